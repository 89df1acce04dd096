/* cmd_test.c -- command lines of the commands beside compiling. */
#include "frontend/cmd.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ef_ctx *ctx;
static cmd_args args;
static char *said;
static size_t nsaid;
static char *argv[16];

/* The words of a line as argv; their number. */
static int
words(const char *line)
{
    int argc = 0;
    for (char *save, *p = strtok_r(ef_strdup(ctx->arena, line), " ", &save); p;
         p = strtok_r(NULL, " ", &save))
        argv[argc++] = p;
    argv[argc] = NULL;
    return argc;
}

static int
parse(const char *line)
{
    ctx = ef_ctx_new();
    free(said);
    ctx->diag = open_memstream(&said, &nsaid);
    int code = cmd_parse(ctx, words(line), argv, &args);
    fclose(ctx->diag);
    return code;
}

#define DONE()      ef_ctx_free(ctx)
#define SAYS(text_) CHECK(strstr(said, text_) != NULL)

TEST(values_by_name)
{
    CHECK(parse("efficc export m.onnx --adapter=ad -o out --external_data") == -1);
    CHECK_STR(args.word, "export");
    CHECK(args.n == 1);
    CHECK_STR(args.at[0], "m.onnx");
    CHECK_STR(cmd_str(&args, "adapter"), "ad");
    CHECK_STR(cmd_str(&args, "output"), "out");
    CHECK(cmd_flag(&args, "external-data") && !cmd_flag(&args, "safetensors"));
    CHECK(!cmd_str(&args, "pool"));
    DONE();
}

TEST(faults)
{
    static const struct {
        const char *line, *text;
    } rows[] = {
        {"m.onnx --adaptor x", "did you mean --adapter?"},
        {"m.onnx --batch 2", "efficc export --help lists the options"},
        {"m.onnx --adapter", "option --adapter: a value is missing: --adapter DIR"},
        {"m.onnx --safetensors=yes", "option --safetensors: it takes no value"},
        {"m.onnx -x", "unknown option '-x'"},
        {"m.onnx n.onnx", "n.onnx: one operand too many"},
        {"--adapter x", "no file given"},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        char line[200];
        snprintf(line, sizeof line, "efficc export %s", rows[i].line);
        CHECK(parse(line) == 1);
        if (!strstr(said, rows[i].text))
            printf("  %s: %s", line, said);
        SAYS(rows[i].text);
        DONE();
    }
}

static bool
is(const char *line)
{
    ctx = ef_ctx_new();
    bool yes = cmd_is(words(line), argv);
    ef_ctx_free(ctx);
    return yes;
}

TEST(words_and_files)
{
    CHECK(is("efficc export") && is("efficc export m.onnx"));
    CHECK(!is("efficc") && !is("efficc m.onnx") && !is("efficc --export"));
    char dir[] = "/tmp/efficc-cmd-XXXXXX", here[4096];
    NEED(mkdtemp(dir) && getcwd(here, sizeof here) && !chdir(dir));
    FILE *f = fopen("export", "w"); /* a model of that name */
    CHECK(!is("efficc export"));
    fclose(f);
    unlink("export");
    CHECK(is("efficc export"));
    CHECK(!chdir(here) && !rmdir(dir));
}
