/* args.c -- the command line of a trainer: a table, options.def, gives parser and help. */
#include "host_int.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_FLAG, KIND_INT, KIND_NUM, KIND_STR, KIND_LIST };
enum { ALWAYS, TRAINING };                      /* the column `when` */
static const double RT_BELOW_1 = 0x1.fffffep-1; /* as a float, which it becomes */

typedef struct row {
    const char *field;
    int kind;
    size_t at; /* in rt_opts */
    double low, high;
    const char *words, *arg, *group;
    int when;
    const char *help;
} row;

static const row rows[] = {
#define OPT(field, kind, def, low, high, words, arg, group, when, help)           \
    {#field, KIND_##kind, offsetof(rt_opts, field), low, high, words, arg, group, \
     when,   help},
#define MOVED(name, text)
#include "options.def"
#undef OPT
#undef MOVED
};

static const struct moved {
    const char *name, *text;
} moved[] = {
#define OPT(field, kind, def, low, high, words, arg, group, when, help)
#define MOVED(name, text) {name, text},
#include "options.def"
#undef OPT
#undef MOVED
};

#define NO_WORDS \
    {            \
        0        \
    }
static const rt_opts defaults = {
#define OPT(field, kind, def, low, high, words, arg, group, when, help) .field = def,
#define MOVED(name, text)
#include "options.def"
#undef OPT
#undef MOVED
};

enum { NROWS = sizeof rows / sizeof *rows, NMOVED = sizeof moved / sizeof *moved };
enum { ERRORS_SHOWN = 10 };

typedef struct parser {
    int argc, at;
    char **argv;
    rt_opts *o;
    bool given[NROWS];
    int wrong; /* options that were told */
} parser;

/* ---- help ---- */

/* The option as a person types it: '-' for '_'. */
static const char *
spelling(const row *r)
{
    static char name[64];
    size_t i = 0;
    for (; r->field[i] && i + 1 < sizeof name; i++)
        name[i] = r->field[i] == '_' ? '-' : r->field[i];
    name[i] = 0;
    return name;
}

static void
put_default(rt_text *t, const row *r)
{
    const char *at = (const char *)&defaults + r->at;
    if (r->kind == KIND_FLAG && *(const bool *)at)
        rt_putf(t, " [true]");
    if (r->kind == KIND_INT && *(const int64_t *)at)
        rt_putf(t, " [%lld]", (long long)*(const int64_t *)at);
    if (r->kind == KIND_NUM)
        rt_putf(t, " [%g]", *(const double *)at);
    if (r->kind == KIND_STR && *(const char *const *)at)
        rt_putf(t, " [%s]", *(const char *const *)at);
}

/* text in lines of at most 80 columns, those after the first indented. */
static void
put_wrapped(FILE *f, int column, const char *text)
{
    enum { INDENT = 34, WIDTH = 80 };
    if (column + 2 > INDENT) {
        fputc('\n', f);
        column = 0;
    }
    for (; column < INDENT; column++)
        fputc(' ', f);
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > INDENT && column + 1 + n > WIDTH) {
            fprintf(f, "\n%*s", INDENT, "");
            column = INDENT;
        }
        column += fprintf(f, "%s%.*s", column > INDENT ? " " : "", n, text);
        text += n + (text[n] == ' ');
    }
    fputc('\n', f);
}

static void
help_row(FILE *f, const row *r)
{
    int column = fprintf(f, "  --%s", spelling(r));
    if (r->arg)
        column += fprintf(f, " %s", r->arg);
    rt_text t = {0};
    rt_putf(&t, "%s", r->help);
    put_default(&t, r);
    put_wrapped(f, column, t.s);
    free(t.s);
}

void
rt_help(FILE *f, const char *trainer, const rt_program *p)
{
    fprintf(f, "usage: %s --train-data FILE [options]\n\n", trainer);
    fprintf(f, "Fine-tunes %s (%s, %lld x %lld tokens a micro-batch, %s).\n", p->model,
            p->task, (long long)p->batch, (long long)p->seq,
            p->lora_r ? "LoRA" : "full fine-tuning");
    fprintf(f, "'-' and '_' are the same in a name; [value] is the default.\n");
    const char *group = "";
    for (int i = 0; i < NROWS; i++) {
        if (strcmp(group, rows[i].group))
            fprintf(f, "\n%s\n", rows[i].group);
        group = rows[i].group;
        help_row(f, &rows[i]);
    }
    fprintf(f, "\n  --help, --version\n\n");
    fprintf(f,
            "Exit codes: 0 done, 1 options, input or data must be mended, 70 a bug in\n"
            "efficc, 75 stopped for want of disk space while saving.\n");
}

/* ---- parsing ---- */

/* Equal but for '-' and '_'; compares n characters of a. */
static bool
same_name(const char *a, size_t n, const char *b)
{
    size_t i = 0;
    for (; i < n && b[i]; i++)
        if (a[i] != b[i] && !(strchr("-_", a[i]) && strchr("-_", b[i])))
            return false;
    return i == n && !b[i];
}

static const row *
find(const char *name, size_t n)
{
    for (int i = 0; i < NROWS; i++)
        if (same_name(name, n, rows[i].field))
            return &rows[i];
    return NULL;
}

static int
unknown(const char *name, size_t n)
{
    for (int i = 0; i < NMOVED; i++)
        if (same_name(name, n, moved[i].name))
            return rt_fail(RT_USER, "a trainer has no option --%s\n%s", moved[i].name,
                           moved[i].text);
    char given[64];
    snprintf(given, sizeof given, "%.*s", (int)n, name);
    for (char *c = given; *c; c++)
        *c = *c == '-' ? '_' : *c;
    const row *best = rows;
    int least = 99;
    for (int i = 0; i < NROWS; i++) {
        int d = rt_distance(given, rows[i].field);
        /* a part of a name is nearer than its length says */
        if (*given && strstr(rows[i].field, given) && d > 2)
            d = 2;
        if (d < least)
            least = d, best = &rows[i];
    }
    if (least <= 2 + (int)strlen(given) / 4)
        return rt_fail(RT_USER, "unknown option --%.*s\ndid you mean --%s?", (int)n,
                       name, spelling(best));
    return rt_fail(RT_USER, "unknown option --%.*s\n--help lists them", (int)n, name);
}

/* -1: text is not one of the words for true and false */
static int
truth(const char *text)
{
    static const char *const yes[] = {"true", "yes", "on", "1", "True"};
    static const char *const no[] = {"false", "no", "off", "0", "False"};
    for (int i = 0; text && i < 5; i++) {
        if (!strcmp(text, yes[i]))
            return 1;
        if (!strcmp(text, no[i]))
            return 0;
    }
    return -1;
}

static int
set_number(const row *r, const char *value, rt_opts *o)
{
    char *end;
    errno = 0;
    double x = strtod(value, &end);
    bool whole = r->kind == KIND_INT;
    if (end == value || *end || !isfinite(x) || (whole && x != floor(x)))
        return rt_fail(RT_USER, "--%s needs %s, not '%s'", spelling(r),
                       whole ? "a whole number" : "a number", value);
    if ((x < r->low || x > r->high) && r->high == RT_BELOW_1)
        return rt_fail(RT_USER,
                       "--%s must be from %g up to but not including 1, not %s",
                       spelling(r), r->low, value);
    if (x < r->low || x > r->high)
        return rt_fail(RT_USER, "--%s must be from %g to %g, not %s", spelling(r),
                       r->low, r->high, value);
    if (whole)
        *(int64_t *)((char *)o + r->at) = (int64_t)x;
    else
        *(double *)((char *)o + r->at) = x;
    return RT_OK;
}

static int
set_word(const row *r, const char *value, rt_opts *o)
{
    size_t n = strlen(value);
    bool known = !r->words;
    for (const char *w = r->words; w && !known; w = strchr(w, '|')) {
        w += *w == '|';
        size_t length = strcspn(w, "|");
        known = length == n && !strncmp(w, value, n);
    }
    if (!known)
        return rt_fail(RT_USER, "--%s must be one of %s, not '%s'", spelling(r),
                       r->words, value);
    if (!n)
        return rt_fail(RT_USER, "--%s needs a value", spelling(r));
    *(const char **)((char *)o + r->at) = value;
    return RT_OK;
}

static int
parse_flag(parser *p, const row *r, const char *value, const char *next)
{
    int t = truth(value ? value : next);
    if (value && t < 0)
        return rt_fail(RT_USER, "--%s is true or false, not '%s'", spelling(r), value);
    p->at += !value && t >= 0;
    *(bool *)((char *)p->o + r->at) = t != 0;
    return RT_OK;
}

static void
add_word(rt_words *w, const char *word)
{
    w->at = rt_grow(w->at, (size_t)(w->n + 1) * sizeof *w->at);
    w->at[w->n++] = word;
}

/* All words up to the next option. */
static int
add_words(parser *p, const row *r, const char *value)
{
    rt_words *w = (rt_words *)((char *)p->o + r->at);
    if (value)
        add_word(w, value);
    while (!value && p->at + 1 < p->argc && strncmp(p->argv[p->at + 1], "--", 2))
        add_word(w, p->argv[++p->at]);
    return RT_OK;
}

/* The option at argv[at]; moves it over a value that it takes. */
static int
parse_one(parser *p)
{
    const char *name = p->argv[p->at] + 2, *value = strchr(name, '=');
    const char *next = p->at + 1 < p->argc ? p->argv[p->at + 1] : NULL;
    size_t n = value ? (size_t)(value++ - name) : strlen(name);
    const row *r = find(name, n);
    if (!r && n > 3 && same_name(name, 3, "no-")) {
        r = find(name + 3, n - 3);
        if (r && r->kind == KIND_FLAG && !value) {
            p->given[r - rows] = true;
            *(bool *)((char *)p->o + r->at) = false;
            return RT_OK;
        }
        r = NULL;
    }
    bool option_next = !next || !strncmp(next, "--", 2);
    if (!r) {
        p->at += !value && !option_next; /* its value, as far as one can tell */
        return unknown(name, n);
    }
    p->given[r - rows] = true;
    if (r->kind == KIND_FLAG)
        return parse_flag(p, r, value, next);
    if (!value && option_next && r->arg[0] == '[')
        value = "auto";
    if (!value && option_next)
        return rt_fail(RT_USER, "--%s needs a value: %s", spelling(r), r->arg);
    if (r->kind == KIND_LIST)
        return add_words(p, r, value);
    if (!value) {
        value = next;
        p->at++;
    }
    return r->kind == KIND_STR ? set_word(r, value, p->o) : set_number(r, value, p->o);
}

/* Counts a fault; false: enough were told. */
static bool
more(parser *p, int code)
{
    p->wrong += code != RT_OK;
    return p->wrong < ERRORS_SHOWN;
}

/* Options that would change nothing without training. */
static bool
check_training(parser *p)
{
    bool go_on = true;
    for (int i = 0; i < NROWS && go_on && !p->o->train_data.n; i++)
        if (p->given[i] && rows[i].when == TRAINING)
            go_on =
                more(p, rt_fail(RT_USER, "--%s is for training: it needs --train-data",
                                spelling(&rows[i])));
    return go_on;
}

static int
check_batch(const rt_opts *o, const rt_program *p)
{
    int64_t b = o->per_device_train_batch_size;
    if (!b || b == p->batch)
        return RT_OK;
    return rt_fail(RT_USER,
                   "--per-device-train-batch-size %lld, but this trainer was compiled "
                   "for %lld rows\ncompile again with efficc --batch %lld, or use "
                   "--gradient-accumulation-steps",
                   (long long)b, (long long)p->batch, (long long)b);
}

/* What no single option can see. */
static void
check(parser *s, const rt_program *p)
{
    const rt_opts *o = s->o;
    if (!o->train_data.n && !o->eval_data.n && !o->predict.n) {
        s->wrong++;
        rt_fail(RT_USER, "nothing to do: give --train-data FILE (or --eval-data, "
                         "--predict)\n--help lists the options");
        return;
    }
    if (!check_training(s) || !more(s, check_batch(o, p)))
        return;
    if (o->train_data.n && o->eval_steps && !o->eval_data.n &&
        !more(s, rt_fail(RT_USER, "--eval-steps needs --eval-data")))
        return;
    if (o->init_adapter && !p->lora_r)
        more(s,
             rt_fail(RT_USER, "--init-adapter: this trainer has no adapters\ncompile "
                              "with efficc --lora-r R"));
}

int
rt_args(int argc, char **argv, const rt_program *p, rt_opts *o)
{
    parser s = {.argc = argc, .at = 1, .argv = argv, .o = o};
    bool go_on = true;
    *o = defaults;
    /* without training there is no folder unless one was asked for */
    o->output_dir = NULL;
    for (; s.at < argc && go_on; s.at++) {
        const char *a = argv[s.at];
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            rt_help(rt_report(), argv[0], p);
            return s.wrong ? RT_USER : RT_OK;
        }
        if (!strcmp(a, "--version")) {
            fprintf(rt_report(), "efficc %s, schedule %s\n", p->efficc, p->hash);
            return s.wrong ? RT_USER : RT_OK;
        }
        if (strncmp(a, "--", 2) || !a[2])
            go_on = more(&s, rt_fail(RT_USER,
                                     "unexpected argument '%s'\noptions begin with --; "
                                     "--help lists them",
                                     a));
        else
            go_on = more(&s, parse_one(&s));
    }
    if (!o->output_dir && o->train_data.n)
        o->output_dir = defaults.output_dir;
    if (!s.wrong) /* else what is missing may be what was not understood */
        check(&s, p);
    return s.wrong ? RT_USER : -1;
}
