/* opts_test.c -- the command line. */
#include "frontend/frontend.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static ef_ctx *ctx;
static ef_config cfg;
static char *said; /* what the last parse() reported */
static size_t nsaid;

/* The words of a line as argv; the result of fe_options(). */
static int
parse(const char *line)
{
    char *argv[32] = {"efficc"};
    int argc = 1;
    ctx = ef_ctx_new();
    free(said);
    ctx->diag = open_memstream(&said, &nsaid);
    for (char *save, *p = strtok_r(ef_strdup(ctx->arena, line), " ", &save); p;
         p = strtok_r(NULL, " ", &save))
        argv[argc++] = strcmp(p, "\"\"") ? p : "";
    int code = fe_options(ctx, argc, argv, &cfg);
    fclose(ctx->diag);
    return code;
}

static bool
says(const char *text)
{
    return strstr(said, text) != NULL;
}

#define DONE() ef_ctx_free(ctx)

TEST(defaults)
{
    CHECK(parse("m.onnx") == -1);
    CHECK_STR(cfg.input, "m.onnx");
    CHECK(!cfg.output && !cfg.batch && !cfg.lora_r && cfg.build && !cfg.given_run_pass);
    CHECK_STR(cfg.pool, "first");
    CHECK_STR(cfg.argv_run, "efficc m.onnx");
    DONE();
}

TEST(every_kind_of_value)
{
    CHECK(parse("--batch 4 --seq=512 m.onnx -o out --lora_r 8 --lora-alpha 16.5 --fp32 "
                "--no-build --dim a=3,b=4 --dim c=5 --cflags -O1") == -1);
    CHECK(cfg.batch == 4 && cfg.seq == 512 && cfg.lora_r == 8 && cfg.fp32 &&
          !cfg.build);
    CHECK_NEAR(cfg.lora_alpha, 16.5, 0);
    CHECK_STR(cfg.output, "out");
    CHECK_STR(cfg.dim, "a=3,b=4,c=5");
    CHECK_STR(cfg.cflags, "-O1");
    DONE();
}

TEST(lora_defaults)
{
    CHECK(parse("m.onnx --lora-targets q,v") == -1);
    CHECK(cfg.lora_r == 8 && cfg.lora_implied);
    DONE();
    CHECK(parse("m.onnx --lora-r 4") == -1);
    CHECK(cfg.lora_r == 4 && !cfg.lora_implied);
    DONE();
    CHECK(parse("m.onnx --lora-alpha 16") == -1);
    CHECK(cfg.lora_r == 8 && cfg.lora_implied);
    DONE();
    CHECK(parse("m.onnx --lora-scale alpha/r") == -1);
    CHECK(cfg.lora_r == 8 && cfg.lora_implied);
    DONE();
}

TEST(one_precision)
{
    CHECK(parse("--bf16 m.onnx") == -1 && cfg.bf16 && !cfg.fp16 && !cfg.fp32);
    DONE();
    CHECK(parse("--bf16 --fp32 m.onnx") == 1);
    CHECK(says("--bf16, --fp16 and --fp32 exclude each other"));
    DONE();
    CHECK(parse("--residual bf16 m.onnx") == -1);
    DONE();
    CHECK(parse("--residual bf16 --fp16 m.onnx") == 1);
    CHECK(says("bf16 goes with --bf16 only"));
    DONE();
    CHECK(parse("--residual f16 m.onnx") == 1);
    DONE();
}

/* What fe_precision() makes of the line for a text, on a machine that has bf16 or not. */
static const char *
precision(const char *line, const char *text, bool (*computes)(ir_dtype))
{
    static char was[8];
    NEED(parse(line) == -1);
    ir_module *m = ir_parse(ctx, "m.ir", text);
    NEED(m != NULL);
    ctx->report = NULL;
    fe_precision(ctx, &cfg, m, computes);
    CHECK(cfg.bf16 + cfg.fp16 + cfg.fp32 == 1);
    strcpy(was, cfg.bf16 ? "bf16" : cfg.fp16 ? "fp16" : "fp32");
    ir_module_free(m);
    DONE();
    return was;
}

static bool
all_types(ir_dtype t)
{
    (void)t;
    return true;
}

static bool
no_low_types(ir_dtype t)
{
    return t == IR_F32;
}

TEST(precision_of_a_machine_and_of_a_text)
{
    static const char plain[] = "efficc-ir 1\n",
                      made[] = "efficc-ir 1 autocast\nmeta precision \"fp16\"\n";
    CHECK_STR(precision("m.ir", plain, all_types), "bf16");
    CHECK_STR(precision("m.ir", plain, no_low_types), "fp32");
    CHECK_STR(precision("m.ir --bf16", plain, no_low_types), "bf16");
    CHECK_STR(precision("m.ir --fp32", plain, all_types), "fp32");
    CHECK_STR(precision("m.ir --residual bf16", plain, no_low_types), "bf16");
    CHECK_STR(precision("m.ir", made, all_types), "fp16");
}

TEST(dropout_may_be_zero)
{
    CHECK(parse("m.onnx") == -1 && cfg.dropout < 0);
    DONE();
    CHECK(parse("m.onnx --dropout 0") == -1 && cfg.dropout == 0);
    DONE();
    CHECK(parse("m.onnx --dropout=0.25") == -1 && cfg.dropout == 0.25);
    DONE();
    CHECK(parse("m.onnx --dropout 1") == 1 && says("from 0 to below 1"));
    DONE();
    CHECK(parse("m.onnx --dropout 0.999999999") == 1 && says("from 0 to below 1"));
    DONE();
    CHECK(parse("m.onnx --lora-dropout -0.1") == 1 && says("from 0 to below 1"));
    DONE();
    CHECK(parse("m.onnx --lora-dropout 0") == -1 && cfg.lora_r == 8);
    DONE();
}

TEST(run_pass_may_be_empty)
{
    CHECK(parse("m.ir --run-pass \"\"") == -1 && cfg.given_run_pass);
    DONE();
    CHECK(parse("m.ir --run-pass=") == -1 && cfg.given_run_pass);
    DONE();
    CHECK(parse("m.ir --run-pass canon --run-pass dce") == -1);
    CHECK_STR(cfg.run_pass, "canon,dce");
    DONE();
}

TEST(verify_may_stand_alone)
{
    static const char *const lines[] = {"--verify m.ir", "m.ir --verify",
                                        "--verify --time m.ir", "--verify each m.ir"};
    for (size_t i = 0; i < EF_COUNT(lines); i++) {
        CHECK(parse(lines[i]) == -1);
        CHECK_STR(cfg.verify, "each");
        CHECK_STR(cfg.input, "m.ir");
        DONE();
    }
    CHECK(parse("m.ir --verify none") == -1);
    CHECK_STR(cfg.verify, "none");
    DONE();
}

TEST(the_nearest_option_is_named)
{
    static const char *const rows[][2] = {
        {"--bacth 4", "did you mean --batch?"},
        {"--lora_rank 8", "did you mean --lora-r?"},
        {"--Seq 4", "did you mean --seq?"},
        {"-batch 4", "did you mean --batch?"},
        {"--stop-afer x", "did you mean --stop-after?"},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        char line[64];
        snprintf(line, sizeof(line), "m.onnx %s", rows[i][0]);
        CHECK(parse(line) == 1);
        CHECK(says("unknown option") && says(rows[i][1]));
        DONE();
    }
    CHECK(parse("m.onnx --learning-rate 1e-3") == 1);
    CHECK(says("unknown option '--learning-rate'") && says("belong to the trainer"));
    DONE();
}

TEST(bad_values)
{
    static const char *const rows[][2] = {
        {"--batch 0", "whole number"},
        {"--batch -3", "whole number"},
        {"--batch 4x", "whole number"},
        {"--batch 99999999999999999999", "whole number"},
        {"--batch", "a value is missing: --batch B"},
        {"--batch=", "whole number"},
        {"--lora-alpha nan", "not a number above 0"},
        {"--lora-alpha 0", "not a number above 0"},
        {"--lora-alpha 1e999", "not a number above 0"},
        {"--lora-alpha inf", "not a number above 0"},
        {"--lora-alpha 8000001", "a million times the rank, 8"},
        {"--lora-r 2 --lora-alpha 1e30", "a million times the rank, 2"},
        {"--lora-alpha 9e-7", "9e-07 is less than a millionth"},
        {"--task sequence", "not one of causal-lm,seq-cls,token-cls,mlm"},
        {"--pool max", "not one of first,mean,pooler"},
        {"--verify causal", "not one of"},
        {"--dim seq", "not NAME=N"},
        {"--dim a=1,b=0", "not NAME=N"},
        {"--fp32=yes", "takes no value"},
        {"--no-batch", "unknown option"},
        {"--no-fp32", "unknown option"},
        {"-o", "a value is missing"},
        {"n.onnx", "one model is enough"},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        char line[96];
        snprintf(line, sizeof(line), "m.onnx %s", rows[i][0]);
        bool refused = parse(line) == 1 && says(rows[i][1]);
        if (!refused)
            printf("%s: %s\n", line, said);
        CHECK(refused);
        DONE();
    }
}

static int
count(const char *text)
{
    int n = 0;
    for (const char *p = said; (p = strstr(p, text)); p++)
        n++;
    return n;
}

TEST(all_wrong_options_are_told)
{
    CHECK(
        parse("--bacth 4 m.onnx --seq x --learning-rate 1e-3 --task no --lora-r --dim "
              "a --gradient-checkpointing -o") == 1);
    CHECK(count("error:") == 8);
    CHECK(says("did you mean --batch?") && says("'x' is not a whole number") &&
          says("'--learning-rate'") && says("'no' is not one of") &&
          says("a value is missing: --lora-r R") && says("'a' is not NAME=N") &&
          says("a value is missing: --output"));
    CHECK_STR(cfg.input, "m.onnx");
    DONE();
    CHECK(parse("--fp16 --bf16 m.onnx n.onnx") == 1 && count("error:") == 2);
    DONE();
    CHECK(parse("--modle 3") == 1 && count("error:") == 1);
    DONE();
    CHECK(parse("m.onnx --batch 0 --help") == 1);
    DONE();
}

TEST(a_model_is_needed)
{
    CHECK(parse("--batch 4") == 1 && says("no model given"));
    DONE();
    CHECK(parse("--passes") == -1 && cfg.list_passes);
    DONE();
    CHECK(parse("-- --odd-name.onnx") == -1);
    CHECK_STR(cfg.input, "--odd-name.onnx");
    DONE();
}

TEST(command_line_is_kept_as_a_shell_takes_it)
{
    char *argv[] = {"efficc", "a b.onnx", "--cflags", "-O1 -g", "--dim", "it's=3"};
    ctx = ef_ctx_new();
    CHECK(fe_options(ctx, EF_COUNT(argv), argv, &cfg) == -1);
    CHECK_STR(cfg.argv_run, "efficc 'a b.onnx' --cflags '-O1 -g' --dim 'it'\\''s=3'");
    DONE();
}

TEST(help_names_every_option)
{
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    fe_help(f);
    fclose(f);
#define OPT(field, name, kind, def, arg, group, help) \
    CHECK(strstr(text, "--" name) || strstr(text, "--no-" name));
#include "ir/options.def"
#undef OPT
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n')
        CHECK(strcspn(p, "\n") <= 100);
    free(text);
}
