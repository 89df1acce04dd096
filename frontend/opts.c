/* opts.c -- the command line of efficc, from the table options.def.
 *
 * An option is --NAME VALUE or --NAME=VALUE; '-' and '_' are the same; a flag stands alone
 * and takes --no-NAME. What is not understood is an error that names the nearest option.
 */
#include "frontend.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { K_FLAG, K_INT, K_NUM, K_STR, K_LIST } kind;

static const struct option {
    const char *name;
    kind kind;
    size_t field; /* offset in ef_config */
    const char *arg, *group, *help;
} options[] = {
#define OPT(field, name, kind, def, arg, group, help) \
    {name, K_##kind, offsetof(ef_config, field), arg, group, help},
#include "../ir/options.def"
#undef OPT
};

/* Values of options that take one of a few words. */
static const struct choice {
    const char *name, *words;
} choices[] = {
    /* of regression, pass task says that it is not there yet */
    {"task", "causal-lm,seq-cls,token-cls,mlm,regression"},
    {"pool", "first,mean,pooler"},
    {"lora-scale", "alpha/r,alpha,alpha/sqrt(r)"},
    {"target", "cpu"},
    {"verify", "each,end,none"},
};

/* What people try although it is not there. */
static const struct absent {
    const char *name, *hint;
} absent[] = {
    {"bf16", "fp32 is the only precision yet"},
    {"fp16", "fp32 is the only precision yet"},
    {"gradient-checkpointing",
     "recomputation is not there yet: lower --batch or --seq"},
};

enum { ALPHA_MAX = 1000000 }; /* times the rank */
enum { INT_MAX_VALUE = 1 << 30, HELP_COLUMN = 26, HELP_WIDTH = 92 };

typedef struct parser {
    ef_ctx *ctx;
    ef_config *cfg;
    int argc, at;
    char **argv;
} parser;

/* ---- help ---- */

/* Text from column HELP_COLUMN on, broken at spaces. */
static void
wrapped(FILE *f, int column, const char *text)
{
    for (; column < HELP_COLUMN; column++)
        fputc(' ', f);
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + (int)word > HELP_WIDTH) {
            fprintf(f, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            fputc(' ', f);
            column++;
        }
        fwrite(text, 1, word, f);
        column += (int)word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', f);
}

static void
help_row(FILE *f, const char *no, const char *name, const char *arg, const char *text)
{
    int n = fprintf(f, "  --%s%s%s%s", no, name, arg ? " " : "", arg ? arg : "");
    if (n > HELP_COLUMN - 2)
        n = fprintf(f, "\n") - 1;
    wrapped(f, n, text);
}

/* Is it a flag that is on unless told otherwise? Only these have a --no- form. */
static bool
is_on(const struct option *o)
{
    const char *defaults = (const char *)&ef_config_default;
    return o->kind == K_FLAG && *(const bool *)(defaults + o->field);
}

void
fe_help(FILE *f)
{
    fputs("usage: efficc MODEL.onnx [options] -o DIR\n"
          "\n"
          "Compiles a transformer in ONNX into DIR/trainer, a program that fine-tunes "
          "it.\n"
          "DIR/trainer --help shows what that program takes. An .ir file, text of the\n"
          "intermediate representation, goes on from where it was printed.\n",
          f);
    const char *group = "";
    for (size_t i = 0; i < EF_COUNT(options); i++) {
        const struct option *o = &options[i];
        if (strcmp(group, o->group))
            fprintf(f, "\n%s\n", group = o->group);
        help_row(f, is_on(o) ? "no-" : "", o->name, o->arg, o->help);
    }
    fputs("\nOther\n", f);
    help_row(f, "", "help", NULL, "this text (also -h)");
    help_row(f, "", "version", NULL, "version number");
    fputs("\nExit codes: 0 done, 1 what the user can mend, 70 a fault of efficc.\n", f);
}

/* ---- names ---- */

/* Compares an option as typed, n characters, with a name of the table. */
static bool
same(const char *typed, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if ((typed[i] == '_' ? '-' : typed[i]) != name[i])
            return false;
    return !name[n];
}

/* The option of that name; *off: it was the --no- form of a flag. NULL: none. */
static const struct option *
find(const char *typed, size_t n, bool *off)
{
    *off = false;
    for (size_t i = 0; i < EF_COUNT(options); i++)
        if (same(typed, n, options[i].name))
            return &options[i];
    if (n < 3 || !same(typed, 3, "no-"))
        return NULL;
    *off = true;
    for (size_t i = 0; i < EF_COUNT(options); i++)
        if (is_on(&options[i]) && same(typed + 3, n - 3, options[i].name))
            return &options[i];
    return NULL;
}

static bool
unknown(parser *p, const char *arg, const char *typed, size_t n)
{
    ef_arena *a = p->ctx->arena;
    char *plain = ef_strndup(a, typed, n);
    for (char *c = plain; *c; c++)
        *c = *c == '_' ? '-' : (char)tolower((unsigned char)*c);
    const char *best = NULL, *why = NULL;
    for (size_t i = 0; i < EF_COUNT(absent); i++)
        why = !strcmp(plain, absent[i].name) ? absent[i].hint : why;
    int near = (int)n / 3 + 2; /* further away is no help */
    for (size_t i = 0; i < EF_COUNT(options); i++) {
        const char *name = options[i].name;
        int d = ef_edit_distance(plain, name);
        if (d < near) {
            near = d;
            best = name;
        }
    }
    ef_error(p->ctx, NULL, E_OPT_UNKNOWN,
             ef_strndup(a, arg, (size_t)(typed - arg) + n));
    if (why)
        ef_hint(p->ctx, "%s", why);
    else if (best)
        ef_hint(p->ctx, "did you mean --%s?", best);
    else
        ef_hint(p->ctx, "efficc --help lists the options; those of the training itself "
                        "belong to the trainer");
    return false;
}

/* ---- values ---- */

static bool bad(parser *p, const struct option *o, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static bool
bad(parser *p, const struct option *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = ef_vprintf(p->ctx->arena, fmt, ap);
    va_end(ap);
    return ef_error(p->ctx, NULL, E_OPT_VALUE, o->name, text);
}

static bool
parse_int(const char *s, int64_t *v)
{
    char *end;
    errno = 0;
    long long x = strtoll(s, &end, 10);
    *v = x;
    return isdigit((unsigned char)*s) && !*end && !errno && x >= 1 &&
           x <= INT_MAX_VALUE;
}

static bool
set_number(parser *p, const struct option *o, const char *s)
{
    void *field = (char *)p->cfg + o->field;
    if (o->kind == K_INT)
        return parse_int(s, field) ||
               bad(p, o, "'%s' is not a whole number from 1 to %d", s, INT_MAX_VALUE);
    char *end;
    double x = strtod(s, &end);
    if (end == s || *end || !isfinite(x) || x <= 0)
        return bad(p, o, "'%s' is not a number above 0", s);
    *(double *)field = x;
    return true;
}

static bool
is_word_of(const char *words, const char *s)
{
    size_t n = strlen(s);
    for (const char *w = words; *w; w += strcspn(w, ","), w += *w == ',')
        if (strcspn(w, ",") == n && !strncmp(w, s, n))
            return n > 0;
    return false;
}

static bool
set_text(parser *p, const struct option *o, const char *s)
{
    const char **field = (const char **)((char *)p->cfg + o->field);
    for (size_t i = 0; i < EF_COUNT(choices); i++)
        if (!strcmp(choices[i].name, o->name) && !is_word_of(choices[i].words, s))
            return bad(p, o, "'%s' is not one of %s", s, choices[i].words);
    if (o->kind == K_STR && !*s)
        return bad(p, o, "a value is missing");
    bool more = o->kind == K_LIST && *field && **field && *s;
    *field = more ? ef_printf(p->ctx->arena, "%s,%s", *field, s) : s;
    return true;
}

static bool
set(parser *p, const struct option *o, const char *s)
{
    if (!strcmp(o->name, "run-pass"))
        p->cfg->given_run_pass = true;
    return o->kind == K_INT || o->kind == K_NUM ? set_number(p, o, s)
                                                : set_text(p, o, s);
}

/* Is a word behind an unknown option its value? As far as one can tell. */
static bool
is_value(const char *word)
{
    size_t n = strlen(word);
    bool model = (n > 5 && !strcmp(word + n - 5, ".onnx")) ||
                 (n > 3 && !strcmp(word + n - 3, ".ir"));
    return *word != '-' && !model;
}

/* --verify alone means --verify=each; WHEN may stand behind it all the same. */
static bool
stands_alone(const struct option *o, const char *next)
{
    return !strcmp(o->name, "verify") && (!next || !is_value(next));
}

/* argv[at], which begins with '-', and its value. */
static bool
option(parser *p)
{
    const char *arg = p->argv[p->at], *typed = arg + (arg[1] == '-' ? 2 : 1);
    size_t n = strcspn(typed, "=");
    bool off;
    const struct option *o = find(typed, n, &off);
    if (!strcmp(arg, "-o"))
        o = find("output", strlen("output"), &off);
    else if (arg[1] != '-')
        o = NULL;
    const char *next = p->at + 1 < p->argc ? p->argv[p->at + 1] : NULL;
    if (!o) {
        p->at += next && !typed[n] && is_value(next);
        return unknown(p, arg, typed, n);
    }
    if (o->kind == K_FLAG) {
        *(bool *)((char *)p->cfg + o->field) = !off;
        return !typed[n] || bad(p, o, "it takes no value");
    }
    if (typed[n])
        return set(p, o, typed + n + 1);
    if (stands_alone(o, next))
        return set(p, o, "each");
    bool number = o->kind == K_INT || o->kind == K_NUM;
    if (!next || (number && !strncmp(next, "--", 2)))
        return bad(p, o, "a value is missing: --%s %s", o->name, o->arg);
    p->at++;
    return set(p, o, next);
}

/* ---- the whole ---- */

/* Each entry of --dim is NAME=N. */
static bool
check_dims(parser *p)
{
    bool off;
    const struct option *o = find("dim", 3, &off);
    const char *s = p->cfg->dim;
    while (s && *s) {
        size_t n = strcspn(s, ",");
        const char *entry = ef_strndup(p->ctx->arena, s, n), *eq = strrchr(entry, '=');
        int64_t v;
        if (!eq || eq == entry || !parse_int(eq + 1, &v))
            return bad(p, o, "'%s' is not NAME=N with a number N from 1 on", entry);
        s += n + (s[n] == ',');
    }
    return true;
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

/* ok: nothing was wrong so far; else what is missing may be what was not understood. */
static bool
finish(parser *p, bool ok)
{
    ef_config *c = p->cfg;
    bool off;
    c->lora_implied =
        !c->lora_r && (c->lora_alpha > 0 || c->lora_targets || c->lora_scale);
    if (c->lora_implied)
        c->lora_r = 8;
    ok &= check_dims(p);
    if (ok && c->lora_alpha > ALPHA_MAX * (double)c->lora_r)
        ok = bad(p, find("lora-alpha", strlen("lora-alpha"), &off),
                 "%g is more than a million times the rank, %" PRId64, c->lora_alpha,
                 c->lora_r);
    if (ok && !c->input && !c->list_passes) {
        ef_error(p->ctx, NULL, E_FILE, "no model given",
                 "efficc MODEL.onnx [options] -o DIR");
        ef_hint(p->ctx, "efficc --help lists the options");
        return false;
    }
    return ok;
}

int
fe_options(ef_ctx *ctx, int argc, char **argv, ef_config *cfg)
{
    *cfg = ef_config_default;
    cfg->argv_run = quoted(ctx->arena, argc, argv);
    parser p = {ctx, cfg, argc, 1, argv};
    bool rest = false, ok = true; /* rest: behind "--", no more options */
    for (; p.at < argc; p.at++) {
        const char *arg = argv[p.at];
        if (!rest && (!strcmp(arg, "--help") || !strcmp(arg, "-h"))) {
            fe_help(stdout);
            return ok ? 0 : 1;
        }
        if (!rest && !strcmp(arg, "--version")) {
            puts("efficc " EFFICC_VERSION);
            return ok ? 0 : 1;
        }
        if (!rest && !strcmp(arg, "--")) {
            rest = true;
        } else if (!rest && arg[0] == '-' && arg[1]) {
            ok &= option(&p);
        } else if (cfg->input) {
            ok = ef_error(ctx, NULL, E_FILE, arg, "one model is enough");
        } else {
            cfg->input = arg;
        }
    }
    return finish(&p, ok) ? -1 : 1;
}
