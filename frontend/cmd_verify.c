/* cmd_verify.c -- efficc verify: does a trainer compute what the interpreter computes?
 *
 * The model is compiled as the options say, in fp32 and in bf16 unless they name a
 * precision, into a temporary folder. Each trainer trains two steps on rows that are made
 * up, and records all results of the second, when adapters are no longer zero. Each result
 * is held against the interpreter on the trainer's own operands; and the gradients, as the
 * interpreter computes them in fp32, against differences of its losses.
 */
#include "cmd_verify.h"
#include "../ir/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINES = 10, LOG_BYTES = 1 << 20 };

typedef struct verify {
    ef_ctx *ctx;
    ef_config cfg;
    const char *dir;
    cJSON *json; /* NULL: text is wanted */
    int bad;     /* results and slopes beyond what is allowed */
} verify;

/* ---- a trainer and its record ---- */

static bool
write_template(fe_model *model, const ir_module *m, ef_arena *a, const char *dir)
{
    return ir_meta_get(m, "lora.r") ||
           fe_write_template(model, m, ef_printf(a, "%s/template.onnx", dir),
                             ef_printf(a, "%s/template.json", dir));
}

/* The last lines of the trainer's output: what went wrong. */
static void
show_log(ef_ctx *ctx, const char *path)
{
    size_t n = 0;
    const char *text = ef_read_file(ctx->arena, path, LOG_BYTES, &n), *end = text + n;
    for (int lines = 0; text && end > text; end--)
        if (end[-1] == '\n' && ++lines > LINES)
            break;
    text = text ? end : NULL;
    while (text && *text) {
        size_t k = strcspn(text, "\n");
        ef_note(ctx, "%.*s", (int)k, text);
        text += k + (text[k] == '\n');
    }
}

/* Two steps with a learning rate that moves adapters away from zero. */
static bool
train(ef_ctx *ctx, const char *dir)
{
    ef_arena *a = ctx->arena;
    char *log = ef_printf(a, "%s/trainer.log", dir);
    char *argv[] = {ef_printf(a, "%s/trainer", dir),
                    "--train-data",
                    ef_printf(a, "%s/rows.jsonl", dir),
                    "--max-steps",
                    "2",
                    "--learning-rate",
                    "1e-3",
                    "--lr-scheduler-type",
                    "constant",
                    "--no-shuffle",
                    "--save-strategy",
                    "no",
                    "--output-dir",
                    ef_printf(a, "%s/out", dir),
                    "--record-step",
                    ef_printf(a, "%s/record", dir),
                    NULL};
    pid_t pid;
    int said = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (said < 0)
        return ef_error(ctx, NULL, E_FILE, log, strerror(errno));
    int why = ef_start(&pid, argv, said);
    close(said);
    if (why)
        return ef_error(ctx, NULL, E_FILE, argv[0], strerror(why));
    int status = ef_wait(pid);
    if (WIFEXITED(status) && !WEXITSTATUS(status))
        return true;
    ef_error(ctx, NULL, E_FILE, argv[0], "the trainer failed");
    show_log(ctx, log);
    return false;
}

/* ---- one precision ---- */

static bool
check(verify *x, ir_module *m, const char *dir, const char *name)
{
    record r = {.ctx = x->ctx, .arena = ef_arena_new()};
    ir_env env = {.arena = ef_arena_new(), .seed = 42};
    verify_rows rows = {0};
    slopes s = {0};
    bool ok = verify_open_record(&r, ef_printf(r.arena, "%s/record", dir)) &&
              verify_nodes(m, &r, &env, &rows);
    ef_arena_free(env.arena); /* the slopes need as much again */
    if (ok && x->ctx->cfg->fp32)
        ok = verify_slopes(m, &r, &s);
    if (ok)
        verify_show(x->json, name, &rows, &s);
    x->bad += rows.bad + s.bad + !rows.n;
    verify_close_record(&r);
    ef_arena_free(r.arena);
    return ok;
}

static bool
make_dir(ef_ctx *ctx, const char *dir)
{
    return !mkdir(dir, 0777) || ef_error(ctx, NULL, E_CG_OUTPUT, dir, strerror(errno));
}

static bool
build_and_check(verify *x, fe_model *model, ir_module *m, const pass_target *target)
{
    ef_ctx *ctx = x->ctx;
    const char *name = ctx->cfg->fp32 ? "fp32" : ctx->cfg->bf16 ? "bf16" : "fp16";
    const char *dir = ef_printf(ctx->arena, "%s/%s", x->dir, name);
    bool stopped = false;
    bool ok = pass_run(m, target, &stopped) && make_dir(ctx, dir) &&
              cg_emit(m, target, dir) && write_template(model, m, ctx->arena, dir) &&
              cg_build(ctx, dir) &&
              verify_write_data(m, ef_printf(ctx->arena, "%s/rows.jsonl", dir)) &&
              train(ctx, dir);
    return ok && check(x, m, dir, name);
}

/* x->cfg names the precision, or leaves it to fe_precision(). */
static bool
one_precision(verify *x, const pass_target *target)
{
    ef_ctx *ctx = x->ctx;
    ef_config cfg = x->cfg;
    FILE *report = ctx->report;
    ctx->cfg = &cfg;
    ctx->report = NULL;
    fe_model *model = fe_load(ctx, cfg.input);
    ir_module *m = model ? fe_import(ctx, model) : NULL;
    if (m)
        fe_precision(ctx, &cfg, m, target->computes);
    bool ok = m && build_and_check(x, model, m, target);
    if (m)
        ir_module_free(m);
    fe_unload(model);
    ctx->cfg = &x->cfg;
    ctx->report = report;
    return ok;
}

/* ---- the command ---- */

/* In fp32 and, where the machine multiplies in it, in bf16; or as the options say. */
static bool
all_precisions(verify *x)
{
    cg_choose_target(x->ctx, &x->cfg);
    const ef_config given = x->cfg;
    const pass_target *target = cg_ready(x->ctx) ? cg_target(x->ctx) : NULL;
    bool named =
        given.fp32 || given.bf16 || given.fp16 || !strcmp(given.residual, "bf16");
    if (!target || named)
        return target && one_precision(x, target);
    x->cfg.fp32 = true;
    bool ok = one_precision(x, target);
    x->cfg = given;
    x->cfg.bf16 = true;
    return ok && (!target->computes(IR_BF16) || one_precision(x, target));
}

/* A trainer is made, whatever the options say of what else efficc could do. */
static bool
wants_trainer(ef_ctx *ctx, ef_config *c)
{
    if (!c->build)
        return ef_error(ctx, NULL, E_OPT_VALUE, "no-build",
                        "efficc verify runs a trainer that it builds");
    if (!c->stop_after && !c->given_run_pass)
        return true;
    return ef_error(ctx, NULL, E_OPT_VALUE, c->stop_after ? "stop-after" : "run-pass",
                    "efficc verify needs all passes");
}

static int
run(verify *x)
{
    ef_ctx *ctx = x->ctx;
    const char *root = getenv("TMPDIR");
    char *dir =
        ef_printf(ctx->arena, "%s/efficc-verify-XXXXXX", root && *root ? root : "/tmp");
    ctx->cfg = &x->cfg;
    ctx->file = x->cfg.input;
    if (!wants_trainer(ctx, &x->cfg))
        return 1;
    ef_hold_signals(true);
    x->dir = mkdtemp(dir);
    ef_unfinished(x->dir);
    ef_hold_signals(false);
    if (!x->dir) {
        ef_error(ctx, NULL, E_CG_OUTPUT, dir, strerror(errno));
        return 1;
    }
    bool ok = all_precisions(x);
    ef_remove_unfinished();
    if (ok)
        verify_show_all(x->json, !x->bad);
    return ok && !x->bad ? 0 : 1;
}

int
cmd_verify(ef_ctx *ctx, const cmd_args *args)
{
    const ef_config *before = ctx->cfg;
    verify x = {.ctx = ctx};
    int code = cmd_compiler_options(ctx, args, &x.cfg);
    if (code < 0) {
        x.json = cmd_flag(args, "json") ? cJSON_CreateObject() : NULL;
        code = run(&x);
        cJSON_Delete(x.json);
    }
    ctx->cfg = before;
    return code;
}
