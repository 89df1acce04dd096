/* args_int.h -- what the files of the command line share: the rows of options.def, and what
 * was given. args.c parses, args_check.c knows what goes together, args_text.c writes.
 */
#ifndef EFFICC_ARGS_INT_H
#define EFFICC_ARGS_INT_H

#include "host_int.h"

enum { KIND_FLAG, KIND_INT, KIND_NUM, KIND_STR, KIND_LIST };
enum { ALWAYS, TRAINING };                  /* the column `when` */
#define RT_BELOW_1 ((double)0x1.fffffep-1f) /* as a float, which it becomes */

typedef enum rt_opt_id {
#define OPT(field, kind, def, low, high, words, arg, group, when, help) OPT_##field,
#define MOVED(name, text)
#include "options.def"
#undef OPT
#undef MOVED
    RT_NOPTS
} rt_opt_id;

typedef struct rt_opt_row {
    const char *field;
    int kind;
    size_t at; /* in rt_opts */
    double low, high;
    const char *words, *arg, *group;
    int when;
    const char *help;
} rt_opt_row;
extern const rt_opt_row rt_opt_table[RT_NOPTS];
extern const rt_opts rt_opt_defaults;

typedef struct rt_parser {
    int argc, at;
    char **argv;
    rt_opts *o;
    bool given[RT_NOPTS];
    int wrong; /* options that were told */
} rt_parser;

/* ---- args.c ---- */
/* Equal but for '-' and '_'; compares n characters of a. */
bool rt_same_name(const char *a, size_t n, const char *b);
/* Counts a fault, if code is one; false: enough were told. */
bool rt_more(rt_parser *, int code);

/* ---- args_check.c ---- */
/* Says what no single option can see, and fills in what one option means for another. */
void rt_opts_check(rt_parser *, const rt_program *);

/* ---- args_text.c ---- */
/* The option as a person types it: '-' for '_'. */
const char *rt_opt_name(const rt_opt_row *);

#endif
