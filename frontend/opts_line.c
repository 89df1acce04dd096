/* opts_line.c -- see opts_int.h. */
#include "opts_int.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INT_MAX_VALUE = 1 << 30, HELP_COLUMN = 26, HELP_WIDTH = 92 };

const char *(*fe_about)(void);

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

void
fe_help_row(FILE *f, const char *what, const char *text)
{
    int n = fprintf(f, "  %s", what);
    if (n > HELP_COLUMN - 2)
        n = fprintf(f, "\n") - 1;
    wrapped(f, n, text);
}

/* Is it a flag that is on unless told otherwise? Only these have a --no- form. */
static bool
is_on(const fe_line *l, const fe_option *o)
{
    const char *defaults = l->defaults;
    return o->kind == K_FLAG && defaults && *(const bool *)(defaults + o->field);
}

void
fe_line_help(FILE *f, const fe_line *l, bool groups)
{
    const char *group = "";
    for (int i = 0; i < l->noption; i++) {
        const fe_option *o = &l->option[i];
        if (groups && strcmp(group, o->group))
            fprintf(f, "\n%s\n", group = o->group);
        char what[80];
        snprintf(what, sizeof what, "--%s%s%s%s", is_on(l, o) ? "no-" : "", o->name,
                 o->arg ? " " : "", o->arg ? o->arg : "");
        fe_help_row(f, what, o->help);
    }
    fputs(groups ? "\nOther\n" : "", f);
    fe_help_row(f, "--help", "this text (also -h)");
    fe_help_row(f, "--version", "version number");
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
static const fe_option *
find(const fe_line *l, const char *typed, size_t n, bool *off)
{
    *off = false;
    for (int i = 0; i < l->noption; i++)
        if (same(typed, n, l->option[i].name))
            return &l->option[i];
    if (n < 3 || !same(typed, 3, "no-"))
        return NULL;
    *off = true;
    for (int i = 0; i < l->noption; i++)
        if (is_on(l, &l->option[i]) && same(typed + 3, n - 3, l->option[i].name))
            return &l->option[i];
    return NULL;
}

const fe_option *
fe_line_option(const fe_line *l, const char *name)
{
    bool off;
    return find(l, name, strlen(name), &off);
}

/* NULL: nothing is said of that name. */
static const char *
fact(const fe_fact *facts, const char *name)
{
    for (; facts && facts->name; facts++)
        if (!strcmp(facts->name, name))
            return facts->text;
    return NULL;
}

static void
unknown(fe_line *l, const char *arg, const char *typed, size_t n)
{
    ef_arena *a = l->ctx->arena;
    char *plain = ef_strndup(a, typed, n);
    for (char *c = plain; *c; c++)
        *c = *c == '_' ? '-' : (char)tolower((unsigned char)*c);
    const char *best = NULL, *why = fact(l->absent, plain);
    int near = (int)n / 3 + 2; /* further away is no help */
    for (int i = 0; i < l->noption; i++) {
        const char *name = l->option[i].name;
        int d = ef_edit_distance(plain, name);
        if (d < near) {
            near = d;
            best = name;
        }
    }
    l->ok = ef_error(l->ctx, NULL, E_OPT_UNKNOWN,
                     ef_strndup(a, arg, (size_t)(typed - arg) + n));
    if (why)
        ef_hint(l->ctx, "%s", why);
    else if (best)
        ef_hint(l->ctx, "did you mean --%s?", best);
    else
        ef_hint(l->ctx,
                "%s --help lists the options; those of the training itself belong to "
                "the trainer",
                l->command);
}

/* ---- values ---- */

bool
fe_line_bad(fe_line *l, const fe_option *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = ef_vprintf(l->ctx->arena, fmt, ap);
    va_end(ap);
    return l->ok = ef_error(l->ctx, NULL, E_OPT_VALUE, o->name, text);
}

bool
fe_parse_int(const char *s, int64_t *v)
{
    char *end;
    errno = 0;
    long long x = strtoll(s, &end, 10);
    *v = x;
    return isdigit((unsigned char)*s) && !*end && !errno && x >= 1 &&
           x <= INT_MAX_VALUE;
}

static void
set_number(fe_line *l, const fe_option *o, const char *s)
{
    void *field = (char *)l->values + o->field;
    if (o->kind == K_INT) {
        if (!fe_parse_int(s, field))
            fe_line_bad(l, o, "'%s' is not a whole number from 1 to %d", s,
                        INT_MAX_VALUE);
        return;
    }
    char *end;
    double x = strtod(s, &end);
    bool share = o->kind == K_SHARE, number = end != s && !*end && isfinite(x);
    if (!number || (share ? x < 0 || (float)x >= 1 : x <= 0))
        fe_line_bad(l, o,
                    share ? "'%s' is not a number from 0 to below 1"
                          : "'%s' is not a number above 0",
                    s);
    *(double *)field = x;
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

static void
set_text(fe_line *l, const fe_option *o, const char *s)
{
    const char **field = (const char **)((char *)l->values + o->field);
    const char *words = fact(l->words, o->name);
    bool more = o->kind == K_LIST && *field && **field && *s;
    if (words && !is_word_of(words, s))
        fe_line_bad(l, o, "'%s' is not one of %s", s, words);
    else if (o->kind == K_STR && !*s)
        fe_line_bad(l, o, "a value is missing");
    else
        *field = more ? ef_printf(l->ctx->arena, "%s,%s", *field, s) : s;
}

static bool
is_number(const fe_option *o)
{
    return o->kind == K_INT || o->kind == K_NUM || o->kind == K_SHARE;
}

static void
set(fe_line *l, const fe_option *o, const char *s)
{
    if (is_number(o))
        set_number(l, o, s);
    else
        set_text(l, o, s);
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

static void
set_flag(fe_line *l, const fe_option *o, bool on, bool valued)
{
    *(bool *)((char *)l->values + o->field) = on;
    if (valued)
        fe_line_bad(l, o, "it takes no value");
}

/* argv[at], which begins with '-', and its value. */
static void
option(fe_line *l)
{
    const char *arg = l->argv[l->at], *typed = arg + (arg[1] == '-' ? 2 : 1);
    size_t n = strcspn(typed, "=");
    bool off;
    const fe_option *o = find(l, typed, n, &off);
    if (!strcmp(arg, "-o"))
        o = fe_line_option(l, "output");
    else if (arg[1] != '-')
        o = NULL;
    const char *next = l->at + 1 < l->argc ? l->argv[l->at + 1] : NULL;
    if (!o) {
        l->at += next && !typed[n] && is_value(next);
        unknown(l, arg, typed, n);
        return;
    }
    const char *alone = fact(l->alone, o->name);
    if (o->kind == K_FLAG) {
        set_flag(l, o, !off, typed[n]);
    } else if (typed[n]) {
        set(l, o, typed + n + 1);
    } else if (alone && (!next || !is_value(next))) {
        set(l, o, alone);
    } else if (!next || (is_number(o) && !strncmp(next, "--", 2))) {
        fe_line_bad(l, o, "a value is missing: --%s %s", o->name, o->arg);
    } else {
        l->at++;
        set(l, o, next);
    }
}

/* ---- the whole ---- */

int
fe_line_read(fe_line *l)
{
    bool rest = false; /* behind "--", no more options */
    l->ok = true;
    for (; l->at < l->argc; l->at++) {
        const char *arg = l->argv[l->at];
        if (!rest && (!strcmp(arg, "--help") || !strcmp(arg, "-h"))) {
            l->help(stdout, l);
            return l->ok ? 0 : 1;
        }
        if (!rest && !strcmp(arg, "--version")) {
            puts("efficc " EFFICC_VERSION);
            if (fe_about)
                puts(fe_about());
            return l->ok ? 0 : 1;
        }
        if (!rest && !strcmp(arg, "--"))
            rest = true;
        else if (!rest && arg[0] == '-' && arg[1])
            option(l);
        else
            ef_push(l->ctx->arena, l->operands, arg);
    }
    return -1;
}
