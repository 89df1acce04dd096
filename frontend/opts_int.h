/* opts_int.h -- a command line against a table of options.
 *
 * An option is --NAME VALUE or --NAME=VALUE; '-' and '_' are the same; a flag stands alone,
 * and one that is on by default takes --no-NAME. What is not understood is an error that
 * names the nearest option. All other words are operands.
 */
#ifndef EFFICC_OPTS_INT_H
#define EFFICC_OPTS_INT_H

#include "frontend.h"

typedef enum fe_kind { K_FLAG, K_INT, K_NUM, K_SHARE, K_STR, K_LIST } fe_kind;

typedef struct fe_option {
    const char *name;
    fe_kind kind;
    size_t field; /* offset in fe_line.values */
    const char *arg, *group, *help;
} fe_option;

typedef struct fe_fact { /* about an option; arrays of them end with {NULL} */
    const char *name, *text;
} fe_fact;

typedef struct fe_line {
    ef_ctx *ctx;
    const char *command; /* "efficc export" */
    const fe_option *option;
    int noption;
    const void *defaults; /* like values; NULL: all zero */
    void *values;
    const fe_fact *words;  /* the values that a K_STR may have, by commas */
    const fe_fact *alone;  /* the value of an option that stands without one */
    const fe_fact *absent; /* what people try although it is not there: a hint */
    void (*help)(FILE *, const struct fe_line *);
    int argc, at; /* argv[at] is the next word */
    char **argv;
    EF_VEC(const char *) operands;
    bool ok; /* nothing was wrong so far */
} fe_line;

/* Reads all words from argv[at] on; each fault is said and clears ok. Returns -1 to go on, or
 * the exit code after --help and --version. */
int fe_line_read(fe_line *);
const fe_option *fe_line_option(const fe_line *, const char *name); /* NULL: none */
/* An error about the value of an option: false, and clears ok. */
bool fe_line_bad(fe_line *, const fe_option *, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool fe_parse_int(const char *, int64_t *); /* a whole number from 1 to 2^30 */
/* The rows of a help text; groups: with a line above each group. */
void fe_line_help(FILE *, const fe_line *, bool groups);
void fe_help_row(FILE *, const char *what, const char *text);
void fe_command_rows(FILE *); /* those of the commands; cmd.c */

#endif
