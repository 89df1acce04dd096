/* output_test.c -- the output folder: whole or not there, and nobody's files are lost. */
#include "frontend/output_int.h"
#include "ir/config.h"
#include "test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static ef_ctx *ctx;
static ef_config cfg;
static char *said, temp[40];
static size_t nsaid;

static void
begin(void)
{
    strcpy(temp, "/tmp/efficc-output-XXXXXX");
    NEED(mkdtemp(temp) && !chdir(temp));
    ctx = ef_ctx_new();
    ctx->diag = open_memstream(&said, &nsaid);
    ctx->report = NULL;
    cfg = ef_config_default;
    cfg.input = "m.onnx";
    cfg.output = "out";
    ctx->cfg = &cfg;
}

static void
end(void)
{
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", temp);
    NEED(!chdir("/") && !system(command));
    fclose(ctx->diag);
    free(said);
    ef_ctx_free(ctx);
}

static void
write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    NEED(f && fputs(text, f) >= 0 && !fclose(f));
}

static bool
has(const char *path, const char *text)
{
    size_t n;
    char *got = ef_read_file(ctx->arena, path, 1000, &n);
    return got && !strcmp(got, text);
}

/* A build: plan.json and trainer with the given text. false: refused or failed. */
static bool
build(const char *text)
{
    fe_output *o = fe_output_open(ctx);
    bool ok = o && fe_output_begin(o);
    if (ok) {
        write_file(ef_printf(ctx->arena, "%s/plan.json", fe_output_dir(o)),
                   "{\"efficc\": \"1\"}");
        write_file(ef_printf(ctx->arena, "%s/trainer", fe_output_dir(o)), text);
        ok = fe_output_commit(o);
    }
    fe_output_close(o);
    fflush(ctx->diag);
    return ok;
}

static int
entries(void)
{
    FILE *p = popen("ls -A | wc -l", "r");
    int n = -1;
    NEED(p && fscanf(p, "%d", &n) == 1);
    pclose(p);
    return n;
}

TEST(made_and_made_again)
{
    begin();
    CHECK(build("one") && has("out/trainer", "one"));
    CHECK(build("two") && has("out/trainer", "two"));
    CHECK(entries() == 1);
    end();
}

TEST(folders_above_are_made)
{
    begin();
    cfg.output = "a/b/out/";
    CHECK(build("one") && has("a/b/out/trainer", "one"));
    write_file("file", "");
    cfg.output = "file/out";
    CHECK(!build("two") && strstr(said, "file/out"));
    cfg.output = "a/c//d";
    CHECK(build("three") && has("a/c/d/trainer", "three"));
    end();
}

TEST(files_of_the_user_move_along)
{
    begin();
    CHECK(build("one"));
    NEED(!mkdir("out/run", 0700) && !mkdir("out/src", 0700));
    write_file("out/run/log.jsonl", "precious");
    write_file("out/src/old.c", "stale");
    CHECK(build("two") && has("out/trainer", "two"));
    CHECK(has("out/run/log.jsonl", "precious") && access("out/src", F_OK));
    CHECK(entries() == 1);
    end();
}

TEST(a_failure_leaves_the_older_build)
{
    begin();
    CHECK(build("one"));
    fe_output *o = fe_output_open(ctx);
    NEED(o && fe_output_begin(o));
    write_file(ef_printf(ctx->arena, "%s/trainer", fe_output_dir(o)), "half");
    CHECK(entries() == 2);
    fe_output_close(o);
    CHECK(has("out/trainer", "one") && entries() == 1);
    end();
}

TEST(an_interrupt_leaves_nothing)
{
    begin();
    CHECK(build("one"));
    pid_t child = fork();
    if (!child) {
        fe_output *o = fe_output_open(ctx);
        NEED(o && fe_output_begin(o) && entries() == 2);
        raise(SIGINT);
        _exit(0);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    CHECK(entries() == 1 && has("out/trainer", "one"));
    end();
}

/* A build that failed, when the log held the text. */
static const char *
failed(const char *log)
{
    static const char *const name[] = {"src/build.log", "src/step.c", "plan.json",
                                       "base.safetensors", "template.onnx"};
    fe_output *o = fe_output_open(ctx);
    NEED(o && fe_output_begin(o));
    const char *dir = fe_output_dir(o);
    NEED(!mkdir(ef_printf(ctx->arena, "%s/src", dir), 0700));
    for (int i = 0; i < 5; i++)
        write_file(ef_printf(ctx->arena, "%s/%s", dir, name[i]), i ? "x" : log);
    fe_output_keep(o);
    fe_output_close(o);
    fflush(ctx->diag);
    return dir;
}

TEST(what_a_compiler_refused_stays_without_weights)
{
    begin();
    CHECK(build("one"));
    failed("");
    CHECK(entries() == 1);
    const char *dir = failed("cc: no such flag");
    CHECK(entries() == 2 && strstr(said, dir) && strstr(said, "without weights"));
    CHECK(has(ef_printf(ctx->arena, "%s/src/step.c", dir), "x"));
    CHECK(has(ef_printf(ctx->arena, "%s/plan.json", dir), "x"));
    CHECK(access(ef_printf(ctx->arena, "%s/base.safetensors", dir), F_OK));
    CHECK(access(ef_printf(ctx->arena, "%s/template.onnx", dir), F_OK));
    ctx->nbug = 1;
    failed("");
    CHECK(entries() == 3 && has("out/trainer", "one"));
    end();
}

TEST(folders_of_others_are_left_alone)
{
    begin();
    NEED(!mkdir("out", 0700));
    CHECK(build("into an empty one"));
    NEED(!unlink("out/plan.json"));
    CHECK(!build("x") && strstr(said, "efficc did not make it"));
    write_file("out/plan.json", "{\"plan\": 1}");
    CHECK(!build("x") && has("out/trainer", "into an empty one"));
    cfg.force = true;
    CHECK(build("forced") && has("out/trainer", "forced"));
    cfg.output = ".";
    CHECK(!build("x") && strstr(said, "working folder"));
    write_file("file", "text");
    cfg.output = "file";
    CHECK(!build("x") && has("file", "text"));
    end();
}

TEST(name_follows_the_model)
{
    begin();
    cfg.output = NULL;
    CHECK(build("x") && has("m.efficc/trainer", "x"));
    cfg.output = "with/";
    CHECK(build("x") && has("with/trainer", "x"));
    end();
}
