/* opts.c -- the command line of efficc, from the table options.def. */
#include "../ir/config.h"
#include "opts_int.h"

#include <inttypes.h>
#include <string.h>

static const fe_option options[] = {
#define OPT(field, name, kind, def, arg, group, help) \
    {name, K_##kind, offsetof(ef_config, field), arg, group, help},
#include "../ir/options.def"
#undef OPT
};

/* Values of options that take one of a few words. */
static const fe_fact words[] = {
    {"task", "causal-lm,seq-cls,token-cls,mlm,regression"},
    {"pool", "first,mean,pooler"},
    {"lora-scale", "alpha/r,alpha,alpha/sqrt(r)"},
    {"target", "cuda,cpu"},
    {"verify", "each,end,none"},
    {"residual", "f32,bf16"},
    {NULL, NULL},
};

/* --verify alone means --verify=each; WHEN may stand behind it all the same. */
static const fe_fact alone[] = {{"verify", "each"}, {NULL, NULL}};

/* What people try although it is not there. */
static const fe_fact absent[] = {
    {"gradient-checkpointing",
     "recomputation is not there yet: lower --batch or --seq"},
    {NULL, NULL},
};

enum { ALPHA_MAX = 1000000 }; /* times the rank */

static void
help(FILE *f, const fe_line *l)
{
    fputs("usage: efficc MODEL.onnx [options] -o DIR\n"
          "       efficc COMMAND ...\n"
          "\n"
          "Compiles a transformer in ONNX into DIR/trainer, a program that fine-tunes "
          "it.\n"
          "DIR/trainer --help shows what that program takes. An .ir file, text of the\n"
          "intermediate representation, goes on from where it was printed.\n"
          "\n"
          "Commands; efficc COMMAND --help tells more\n",
          f);
    fe_command_rows(f);
    fe_line_help(f, l, true);
}

static fe_line
line_of(ef_ctx *ctx, ef_config *cfg)
{
    return (fe_line){.ctx = ctx,
                     .command = "efficc",
                     .option = options,
                     .noption = EF_COUNT(options),
                     .defaults = &ef_config_default,
                     .values = cfg,
                     .words = words,
                     .alone = alone,
                     .absent = absent,
                     .help = help};
}

void
fe_help(FILE *f)
{
    fe_line l = line_of(NULL, NULL);
    help(f, &l);
}

/* Each entry of --dim is NAME=N. */
static void
check_dims(fe_line *l, const ef_config *c)
{
    const char *s = c->dim;
    while (s && *s) {
        size_t n = strcspn(s, ",");
        const char *entry = ef_strndup(l->ctx->arena, s, n), *eq = strrchr(entry, '=');
        int64_t v;
        if (!eq || eq == entry || !fe_parse_int(eq + 1, &v)) {
            fe_line_bad(l, fe_line_option(l, "dim"),
                        "'%s' is not NAME=N with a number N from 1 on", entry);
            return;
        }
        s += n + (s[n] == ',');
    }
}

/* The command line as a shell would take it. */
static const char *
quoted(ef_arena *a, int argc, char **argv)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_-+=./,:@%";
    ef_buf b = {.arena = a};
    for (int i = 0; i < argc; i++) {
        ef_puts(&b, i ? " " : "");
        if (*argv[i] && !argv[i][strspn(argv[i], plain)]) {
            ef_puts(&b, argv[i]);
            continue;
        }
        ef_puts(&b, "'");
        for (const char *c = argv[i]; *c; c++)
            *c == '\'' ? ef_puts(&b, "'\\''") : ef_putn(&b, c, 1);
        ef_puts(&b, "'");
    }
    return b.s;
}

/* Precisions, of which a program has one. */
static void
check_precision(fe_line *l, const ef_config *c)
{
    if (c->bf16 + c->fp16 + c->fp32 > 1)
        l->ok = ef_error(l->ctx, NULL, E_OPT_VALUE, c->bf16 ? "bf16" : "fp16",
                         "--bf16, --fp16 and --fp32 exclude each other");
    else if (!strcmp(c->residual, "bf16") && (c->fp16 || c->fp32))
        fe_line_bad(l, fe_line_option(l, "residual"), "bf16 goes with --bf16 only");
}

/* The model, and what options mean together. Where something was wrong already, what is
 * missing may be what was not understood. */
static void
finish(fe_line *l, ef_config *c)
{
    c->given_run_pass = c->run_pass != NULL;
    c->lora_implied = !c->lora_r && (c->lora_alpha > 0 || c->lora_targets ||
                                     c->lora_scale || c->lora_dropout >= 0);
    if (c->lora_implied)
        c->lora_r = 8;
    for (int i = 0; i < l->operands.n; i++)
        if (i)
            l->ok = ef_error(l->ctx, NULL, E_FILE, l->operands.at[i],
                             "one model is enough");
        else
            c->input = l->operands.at[i];
    check_dims(l, c);
    check_precision(l, c);
    if (l->ok && c->lora_alpha > ALPHA_MAX * (double)c->lora_r)
        fe_line_bad(l, fe_line_option(l, "lora-alpha"),
                    "%g is more than a million times the rank, %" PRId64, c->lora_alpha,
                    c->lora_r);
    if (l->ok && c->lora_alpha && c->lora_alpha * ALPHA_MAX < 1)
        fe_line_bad(l, fe_line_option(l, "lora-alpha"), "%g is less than a millionth",
                    c->lora_alpha);
    if (l->ok && !c->input && !c->list_passes) {
        l->ok = ef_error(l->ctx, NULL, E_FILE, "no model given",
                         "efficc MODEL.onnx [options] -o DIR");
        ef_hint(l->ctx, "efficc --help lists the options");
    }
}

int
fe_options(ef_ctx *ctx, int argc, char **argv, ef_config *cfg)
{
    *cfg = ef_config_default;
    cfg->argv_run = quoted(ctx->arena, argc, argv);
    fe_line l = line_of(ctx, cfg);
    l.argc = argc;
    l.at = 1;
    l.argv = argv;
    int code = fe_line_read(&l);
    if (code < 0)
        finish(&l, cfg);
    return code < 0 && !l.ok ? 1 : code;
}
