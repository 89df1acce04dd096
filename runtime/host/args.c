/* args.c -- the command line of a trainer: a table, options.def, gives parser and help. */
#include "args_int.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const rt_opt_row rt_opt_table[RT_NOPTS] = {
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
const rt_opts rt_opt_defaults = {
#define OPT(field, kind, def, low, high, words, arg, group, when, help) .field = def,
#define MOVED(name, text)
#include "options.def"
#undef OPT
#undef MOVED
};

enum { NMOVED = sizeof moved / sizeof *moved, ERRORS_SHOWN = 10 };

bool
rt_same_name(const char *a, size_t n, const char *b)
{
    size_t i = 0;
    for (; i < n && b[i]; i++)
        if (a[i] != b[i] && !(strchr("-_", a[i]) && strchr("-_", b[i])))
            return false;
    return i == n && !b[i];
}

static const rt_opt_row *
find(const char *name, size_t n)
{
    for (int i = 0; i < RT_NOPTS; i++)
        if (rt_same_name(name, n, rt_opt_table[i].field))
            return &rt_opt_table[i];
    return NULL;
}

static int
unknown(const char *name, size_t n)
{
    for (int i = 0; i < NMOVED; i++)
        if (rt_same_name(name, n, moved[i].name))
            return rt_fail(RT_USER, "a trainer has no option --%s\n%s", moved[i].name,
                           moved[i].text);
    char given[64];
    snprintf(given, sizeof given, "%.*s", (int)n, name);
    for (char *c = given; *c; c++)
        *c = *c == '-' ? '_' : *c;
    const rt_opt_row *best = rt_opt_table;
    int least = 99;
    for (int i = 0; i < RT_NOPTS; i++) {
        int d = rt_distance_part(given, rt_opt_table[i].field);
        if (d < least)
            least = d, best = &rt_opt_table[i];
    }
    if (rt_is_near(given, least))
        return rt_fail(RT_USER, "unknown option --%.*s\ndid you mean --%s?", (int)n,
                       name, rt_opt_name(best));
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
set_number(const rt_opt_row *r, const char *value, rt_opts *o)
{
    char *end;
    errno = 0;
    double x = strtod(value, &end);
    bool whole = r->kind == KIND_INT;
    if (end == value || *end || !isfinite(x) || (whole && x != floor(x)))
        return rt_fail(RT_USER, "--%s needs %s, not '%s'", rt_opt_name(r),
                       whole ? "a whole number" : "a number", value);
    if ((x < r->low || x > r->high) && r->high == RT_BELOW_1)
        return rt_fail(RT_USER,
                       "--%s must be from %g up to but not including 1, not %s",
                       rt_opt_name(r), r->low, value);
    if (x < r->low || x > r->high)
        return rt_fail(RT_USER, "--%s must be from %g to %g, not %s", rt_opt_name(r),
                       r->low, r->high, value);
    if (whole)
        *(int64_t *)((char *)o + r->at) = (int64_t)x;
    else
        *(double *)((char *)o + r->at) = x;
    return RT_OK;
}

static int
set_word(const rt_opt_row *r, const char *value, rt_opts *o)
{
    size_t n = strlen(value);
    bool known = !r->words;
    for (const char *w = r->words; w && !known; w = strchr(w, '|')) {
        w += *w == '|';
        size_t length = strcspn(w, "|");
        known = length == n && !strncmp(w, value, n);
    }
    if (!known)
        return rt_fail(RT_USER, "--%s must be one of %s, not '%s'", rt_opt_name(r),
                       r->words, value);
    if (!n)
        return rt_fail(RT_USER, "--%s needs a value", rt_opt_name(r));
    *(const char **)((char *)o + r->at) = value;
    return RT_OK;
}

static int
parse_flag(rt_parser *p, const rt_opt_row *r, const char *value, const char *next)
{
    int t = truth(value ? value : next);
    if (value && t < 0)
        return rt_fail(RT_USER, "--%s is true or false, not '%s'", rt_opt_name(r),
                       value);
    p->at += !value && t >= 0;
    *(bool *)((char *)p->o + r->at) = t != 0;
    return RT_OK;
}

static int
add_word(rt_words *w, const rt_opt_row *r, const char *word)
{
    if (!*word)
        return rt_fail(RT_USER,
                       "--%s: the name of a file is empty; is a variable of the shell "
                       "not set?",
                       rt_opt_name(r));
    w->at = rt_grow(w->at, (size_t)(w->n + 1) * sizeof *w->at);
    w->at[w->n++] = word;
    return RT_OK;
}

/* All words up to the next option. */
static int
add_words(rt_parser *p, const rt_opt_row *r, const char *value)
{
    rt_words *w = (rt_words *)((char *)p->o + r->at);
    int code = value ? add_word(w, r, value) : RT_OK;
    while (!value && p->at + 1 < p->argc && strncmp(p->argv[p->at + 1], "--", 2))
        code |= add_word(w, r, p->argv[++p->at]);
    return code;
}

/* The option at argv[at]; moves it over a value that it takes. */
static int
parse_one(rt_parser *p)
{
    const char *name = p->argv[p->at] + 2, *value = strchr(name, '=');
    const char *next = p->at + 1 < p->argc ? p->argv[p->at + 1] : NULL;
    size_t n = value ? (size_t)(value++ - name) : strlen(name);
    const rt_opt_row *r = find(name, n);
    if (!r && n > 3 && rt_same_name(name, 3, "no-")) {
        r = find(name + 3, n - 3);
        if (r && r->kind == KIND_FLAG && !value) {
            p->given[r - rt_opt_table] = true;
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
    p->given[r - rt_opt_table] = true;
    if (r->kind == KIND_FLAG)
        return parse_flag(p, r, value, next);
    if (!value && option_next && r->arg[0] == '[')
        value = "auto";
    if (!value && option_next)
        return rt_fail(RT_USER, "--%s needs a value: %s", rt_opt_name(r), r->arg);
    if (r->kind == KIND_LIST)
        return add_words(p, r, value);
    if (!value) {
        value = next;
        p->at++;
    }
    return r->kind == KIND_STR ? set_word(r, value, p->o) : set_number(r, value, p->o);
}

bool
rt_more(rt_parser *p, int code)
{
    p->wrong += code != RT_OK;
    return p->wrong < ERRORS_SHOWN;
}

int
rt_args(int argc, char **argv, const rt_program *p, rt_opts *o)
{
    rt_parser s = {.argc = argc, .at = 1, .argv = argv, .o = o};
    bool go_on = true;
    *o = rt_opt_defaults;
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
            go_on =
                rt_more(&s, rt_fail(RT_USER,
                                    "unexpected argument '%s'\noptions begin with --; "
                                    "--help lists them",
                                    a));
        else
            go_on = rt_more(&s, parse_one(&s));
    }
    if (!o->output_dir && o->train_data.n)
        o->output_dir = rt_opt_defaults.output_dir;
    if (!s.wrong) /* else what is missing may be what was not understood */
        rt_opts_check(&s, p);
    return s.wrong ? RT_USER : -1;
}

void
rt_opts_free(rt_opts *o)
{
    for (int i = 0; i < RT_NOPTS; i++)
        if (rt_opt_table[i].kind == KIND_LIST)
            free(((rt_words *)((char *)o + rt_opt_table[i].at))->at);
    *o = (rt_opts){0};
}
