/* cmd_data.h -- what the files of `efficc data` share. */
#ifndef EFFICC_CMD_DATA_H
#define EFFICC_CMD_DATA_H

#include "../runtime/host/data_int.h"
#include "cmd.h"

/* ---- cmd_data_tokens.c: ids as text, by the table of a tokenizer alone ---- */
typedef struct cmd_tokens {
    int64_t n, cap;    /* ids are below n */
    const char **text; /* NULL: no such id */
    enum { CMD_WORDS, CMD_BYTES, CMD_PIECES } how;
} cmd_tokens;
/* path: vocab.txt, tokenizer.json or a folder with one. Exit code. */
int cmd_tokens_open(ef_arena *, const char *path, cmd_tokens *);
/* The text of n tokens, fit for a terminal: what can't be printed is escaped. */
const char *cmd_tokens_text(const cmd_tokens *, ef_arena *, const int32_t *id,
                            int64_t n);

/* ---- cmd_data_count.c: one pass over all rows, in memory that depends on the longest ---- */
enum { CMD_LABELS = 1024 };
typedef struct cmd_label {
    int32_t label;
    int64_t n;
} cmd_label;
typedef struct cmd_counts {
    int64_t *length; /* length[k]: rows of k tokens */
    int64_t cap, least, longest;
    int64_t unlearnt;                      /* rows in which nothing is supervised */
    int64_t largest;                       /* id */
    bool row_labels, token_labels, values; /* what rows have */
    int nlabel; /* CMD_LABELS: there are more, and those here are not all */
    cmd_label label[CMD_LABELS]; /* ascending */
    int64_t nvalue, nnull;
    double low, high, sum; /* of values */
} cmd_counts;
/* Zero-initialise c and free c->length. Exit code. */
int cmd_count(const rt_data *, cmd_counts *c);
/* Length that `share` of the rows do not exceed. */
int64_t cmd_quantile(const cmd_counts *, int64_t rows, double share);
/* Rows whose length is in [from, to). */
int64_t cmd_rows_between(const cmd_counts *, int64_t from, int64_t to);
/* Tokens of a bar of a histogram that has at most a dozen. */
int64_t cmd_bar_width(const cmd_counts *);

#endif
