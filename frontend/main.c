/* main.c -- the compiler's driver: options, file in, passes, folder out.
 *
 * The output folder is made under another name beside its place and put there at the very
 * end, so that a failure leaves nothing half-written and an older build stays whole until
 * then. Of an older build only what efficc writes itself is removed; a user's files, such
 * as results of training, move along.
 */
#include "../codegen/cg.h"
#include "../codegen/clang_check.h"
#include "../passes/pass.h"
#include "cmd.h"
#include "output_int.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ERRORS_SHOWN = 10, OUR_BUG = 70 };

/* The model that the module of a text file came from, imported once more: its un-shared
 * initializers are a result of the import. NULL: said why. */
static fe_model *
reread_model(ef_ctx *ctx, const ir_module *m, const char *path)
{
    const ef_config *given = ctx->cfg;
    FILE *report = ctx->report;
    ef_config cfg = *given;
    cfg.batch = ir_meta_int(m, "batch", cfg.batch);
    cfg.seq = ir_meta_int(m, "seq", cfg.seq);
    ctx->cfg = &cfg;
    ctx->file = path;
    ctx->report = NULL;
    fe_model *model = fe_load(ctx, path);
    ir_module *again = model ? fe_import(ctx, model) : NULL;
    ctx->cfg = given;
    ctx->file = given->input;
    ctx->report = report;
    if (again) {
        ir_module_free(again);
        return model;
    }
    fe_unload(model);
    return NULL;
}

/* What the trainer needs to write the trained model; adapters are written without it. */
static bool
write_template(ef_ctx *ctx, ir_module *m, fe_model *model, const char *dir)
{
    const char *path = ir_meta_get(m, "model");
    if (ir_meta_get(m, "lora.r") || (!path && !ctx->cfg->build))
        return true;
    if (!path) {
        ef_error(ctx, NULL, E_CG_OUTPUT, "template.onnx",
                 "the text has no meta model, so a trainer could not write it trained");
        ef_hint(ctx, "train adapters with --lora-r, or look at the sources of "
                     "--no-build");
        return false;
    }
    fe_model *use = model ? model : reread_model(ctx, m, path);
    bool ok =
        use && fe_write_template(use, m, ef_printf(ctx->arena, "%s/template.onnx", dir),
                                 ef_printf(ctx->arena, "%s/template.json", dir));
    if (!model)
        fe_unload(use);
    return ok;
}

/* Sources, weights, template and trainer into the temporary folder. */
static bool
write_output(ef_ctx *ctx, ir_module *m, fe_model *model, const pass_target *target,
             fe_output *out)
{
    const char *dir = fe_output_dir(out);
    if (!cg_emit(m, target, dir) || !write_template(ctx, m, model, dir))
        return false;
    if (cg_build(ctx, dir))
        return true;
    fe_output_keep(out);
    return false;
}

static bool
compile(ef_ctx *ctx, const pass_target *target, const char *choice, fe_output *out)
{
    const ef_config *given = ctx->cfg;
    ef_config cfg = *given;
    fe_model *model = NULL;
    bool stopped = false;
    ir_module *m = fe_read(ctx, &model);
    const char *precision = m ? fe_precision(ctx, &cfg, m, target->computes) : NULL;
    ctx->cfg = &cfg;
    bool ok = m && pass_run(m, target, &stopped);
    if (ok && !cfg.given_run_pass)
        ef_report(ctx, "%s\n%s", precision, choice);
    if (ok && !stopped)
        ok = fe_output_begin(out) && write_output(ctx, m, model, target, out) &&
             fe_output_commit(out);
    if (m)
        ir_module_free(m);
    fe_unload(model);
    ctx->cfg = given;
    return ok;
}

/* Is the output IR, on standard output? */
static bool
prints(const ef_config *c)
{
    return c->given_run_pass || c->stop_after;
}

static void
set_streams(ef_ctx *ctx)
{
    const ef_config *c = ctx->cfg;
    ctx->file = c->input;
    if (prints(c))
        ctx->report = stderr; /* standard output is for the IR */
    if (c->quiet)
        ctx->report = NULL;
}

static int
run(ef_ctx *ctx, const char *choice)
{
    const ef_config *c = ctx->cfg;
    if (c->list_passes) {
        pass_list(stdout);
        return 0;
    }
    set_streams(ctx);
    const pass_target *target = cg_target(ctx);
    fe_output *out = fe_output_open(ctx);
    bool ok = target && out && (prints(c) || cg_ready(ctx)) &&
              compile(ctx, target, choice, out);
    fe_output_close(out);
    return ok ? 0 : 1;
}

/* ---- standard streams ---- */

/* One that is closed becomes /dev/null, for reading: else one of our files would get its number,
 * and the report; and what is written there would get lost unnoticed. */
static bool /* standard output was closed */
fill_streams(void)
{
    int fd;
    bool no_output = false;
    do {
        fd = open("/dev/null", O_RDONLY);
        no_output |= fd == STDOUT_FILENO;
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
    return no_output;
}

/* Has the reader of a pipe left, such as head? */
static bool
nobody_reads(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && p.revents & (POLLERR | POLLHUP);
}

static void
do_nothing(int signal)
{
    (void)signal;
}

/* The function of a command. */
static int
run_command(ef_ctx *ctx, const cmd_args *args)
{
    static const struct {
        const char *word;
        int (*run)(ef_ctx *, const cmd_args *);
    } commands[] = {
#define COMMAND(word, operands, least, most, help) {#word, cmd_##word},
#define OPTION(word, name, kind, arg, help)
#include "commands.def"
#undef COMMAND
#undef OPTION
        {NULL, NULL},
    };
    int i = 0;
    while (strcmp(commands[i].word, args->word))
        i++;
    return commands[i].run(ctx, args);
}

static int
do_command(ef_ctx *ctx, int argc, char **argv)
{
    cmd_args args;
    int code = cmd_parse(ctx, argc, argv, &args);
    return code < 0 ? run_command(ctx, &args) : code;
}

/* *builds: the result is a folder, and standard output only tells of it. */
static int
do_compile(ef_ctx *ctx, int argc, char **argv, bool *builds)
{
    ef_config cfg;
    int code = fe_options(ctx, argc, argv, &cfg);
    if (code >= 0)
        return code;
    const ef_config *defaults = ctx->cfg;
    ctx->cfg = &cfg;
    *builds = !prints(&cfg) && !cfg.list_passes;
    if (*builds) /* without a reader of the report, too; SIG_IGN would pass on to cc */
        signal(SIGPIPE, do_nothing);
    code = run(ctx, cg_choose_target(ctx, &cfg));
    ctx->cfg = defaults;
    return code;
}

int
main(int argc, char **argv)
{
    bool no_output = fill_streams();
    signal(SIGXFSZ, do_nothing);      /* a limit on file sizes is an error of write() */
    setvbuf(stdout, NULL, _IOLBF, 0); /* in a log, report and errors stay in order */
    ef_ctx *ctx = ef_ctx_new();
    ctx->max_errors = ERRORS_SHOWN;
    fe_about = cg_check_about;
    bool builds = false;
    int code = cmd_is(argc, argv) ? do_command(ctx, argc, argv)
                                  : do_compile(ctx, argc, argv, &builds);
    if (code && ctx->nbug)
        code = OUR_BUG;
    ef_diag_finish(ctx);
    bool lost = fflush(stdout) || ferror(stdout);
    bool wanted = !builds || !(no_output || nobody_reads(STDOUT_FILENO));
    if (lost && !code && wanted) {
        ef_error(ctx, NULL, E_FILE, "standard output",
                 "not everything could be written");
        code = 1;
    }
    ef_ctx_free(ctx);
    return code;
}
