/* data.h -- rows of data: files of several formats behind one interface, the order in which
 * an epoch takes them, and the batches made of them.
 *
 * A row is up to seq tokens. All rows are checked when a file is opened; after that they are
 * read from disk one by one, so that memory does not depend on the size of the data.
 */
#ifndef EFFICC_DATA_H
#define EFFICC_DATA_H

#include "efficc_rt.h"

typedef struct rt_words { /* of an option that takes several words */
    int n;
    const char **at;
} rt_words;

/* ---- data.c ---- */
typedef enum rt_field {
    RT_F_IDS,
    RT_F_MASK,
    RT_F_TYPES,
    RT_F_POSITIONS,
    RT_F_LABELS,
    RT_NFIELDS
} rt_field;
typedef enum rt_use { RT_TRAINING, RT_EVALUATION, RT_PREDICTION } rt_use;
typedef struct rt_data {
    const char *path;
    const rt_program *program;
    rt_use use;      /* RT_PREDICTION: labels are not read */
    bool row_labels; /* one label a row; else one a token */
    bool causal;     /* targets are the labels shifted by one */
    int64_t n, ntoken, supervised;
    int64_t *start; /* row i is tokens start[i] .. start[i+1] */
    int32_t *field
        [RT_NFIELDS]; /* a value a token (row_labels: a row); NULL: no row has it */
    int64_t absent[RT_NFIELDS]; /* rows without it, if some row has it or not */
    int64_t row_cap, token_cap;
} rt_data;
/* Opens and checks the files, FILE or FILE:WEIGHT; says what it found. */
int rt_data_open(rt_data *, const rt_words *files, const rt_program *, rt_use);
void rt_data_close(rt_data *);
int64_t rt_data_bytes(const rt_data *);
/* Label of token t (from 0) of a row, derived where the row has none; row_labels: of the
 * row. */
int64_t rt_data_label(const rt_data *, int64_t row, int64_t t);
int64_t rt_data_supervised(const rt_data *, int64_t row);
int64_t rt_data_length(const rt_data *, int64_t row);           /* tokens */
const rt_input *rt_input_of(const rt_program *, rt_input_role); /* NULL: takes none */

/* ---- batch.c: rows to the inputs of a micro-batch ---- */
void rt_inputs_new(rt_run *);
void rt_inputs_free(rt_run *);
int64_t rt_inputs_bytes(const rt_program *);
/* Fills all inputs with n rows of d, the rest of the batch with empty rows. Returns the
 * number of real tokens; -1: a row could not be read, which was said. */
int64_t rt_batch_fill(rt_run *, rt_data *, const int64_t *row, int64_t n);
void rt_set_scale(rt_run *, double scale); /* the RT_SCALE input */
/* A bijection on [0,n) that key chooses. */
uint64_t rt_permute(uint64_t i, uint64_t n, uint64_t key);
/* The order of an epoch: position to row number, a function of seed and epoch alone. */
typedef struct rt_order {
    int64_t n; /* positions of an epoch */
    bool shuffle;
    uint64_t seed;
} rt_order;
rt_order rt_order_of(const rt_data *, bool shuffle, uint64_t seed);
/* Rows at positions [first, first+n) of an epoch, as far as it goes; returns how many. */
int64_t rt_order_rows(const rt_order *, int64_t epoch, int64_t first, int64_t n,
                      int64_t *row);

#endif
