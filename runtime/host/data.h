/* data.h -- rows of data: files of several formats behind one interface, the order in which
 * an epoch takes them, and the batches made of them.
 *
 * A row is up to seq tokens. All rows are checked when the files are opened; after that they
 * are read from disk one by one, so that memory does not depend on the size of the data.
 *
 * Order. Without weights an epoch takes every row of every file once: position i is row
 * perm(i), a bijection keyed by seed and epoch, or row i without shuffling. With weights an
 * epoch has as many positions as there are rows; file k gets its share of them (weights
 * normalised, largest remainders), spread evenly: its j-th position stands at (j + 1/2) /
 * share of the epoch, and ties go to the file that was named first (as in Megatron's blended
 * data sets). File k goes on, over epochs, through all its rows in an order of its own before
 * it begins again in another; without shuffling in the file's order. So the rows of a step
 * are a function of seed, epoch and position: there is nothing to save.
 */
#ifndef EFFICC_DATA_H
#define EFFICC_DATA_H

#include "efficc_rt.h"

typedef struct rt_words { /* of an option that takes several words */
    int n;
    const char **at;
} rt_words;
struct rt_text;

typedef enum rt_field {
    RT_F_IDS,
    RT_F_MASK,
    RT_F_TYPES,
    RT_F_POSITIONS,
    RT_F_LABELS,
    RT_NFIELDS
} rt_field;
const char *rt_field_name(rt_field); /* "input_ids", .. */

typedef enum rt_use { RT_TRAINING, RT_EVALUATION, RT_PREDICTION } rt_use;

typedef enum rt_label {
    RT_LABEL_ANY,   /* nothing is known: whatever a row has, or nothing */
    RT_LABEL_TOKEN, /* a class or token id for each token */
    RT_LABEL_ROW,   /* a class for the row */
    RT_LABEL_VALUES /* `labels` floats for the row; NaN: not supervised */
} rt_label;

/* What rows must look like. */
typedef struct rt_data_spec {
    rt_use use;
    rt_label label;
    bool causal;    /* targets are the labels shifted by one; labels may be left out */
    int64_t seq;    /* tokens of a row, at most; 0: any (streams: 1024) */
    int64_t labels; /* RT_LABEL_VALUES: numbers of a row */
    bool takes[RT_NFIELDS];   /* others are left out, which is said */
    int64_t high[RT_NFIELDS]; /* values are in [0, high); 0: any. Labels: or -100 */
    const char *other[RT_NFIELDS]; /* a second key that a row may use; NULL: none */
    const char *spool; /* folder for what is kept of JSONL; NULL: $TMPDIR or /var/tmp */
    int threads;       /* that check; 0: as many as there are cores */
} rt_data_spec;
rt_data_spec rt_data_spec_of(const rt_program *, rt_use);

typedef struct rt_row {
    int64_t n;                        /* tokens */
    const int32_t *field[RT_NFIELDS]; /* n values (labels: nlabel); NULL: not given */
    const float *value;               /* labels that are floats: nlabel; or NULL */
    int64_t nlabel;
    void *memory; /* where they stand; used again for the next row */
    size_t bytes;
} rt_row;

typedef struct rt_data_file {
    char *path, *format; /* "JSONL", "NumPy, int32 [4, 8] with labels", .. */
    int64_t n, ntoken, nreal,
        supervised; /* nreal: tokens that the mask does not hide */
    double weight;  /* 0: none given */
    int64_t share;  /* positions of an epoch, with weights */
    uint64_t hash;  /* of the values, or of samples of a big file */
    struct rt_source *source;
} rt_data_file;

typedef struct rt_data {
    rt_data_spec spec;
    int nfile;
    rt_data_file *file;
    int64_t n, ntoken, nreal, supervised; /* of all files */
    bool weighted;
    int64_t absent[RT_NFIELDS]; /* rows without it */
    bool row_labels, causal;    /* spec.label is not RT_LABEL_TOKEN; spec.causal */
    struct rt_store *store;     /* what is kept of the files, and the row read last */
} rt_data;

/* Opens and checks the files, FILE or FILE:WEIGHT; says what it found. */
int rt_data_open(rt_data *, const rt_words *files, const rt_data_spec *);
void rt_data_close(rt_data *); /* also of one that is zero or could not be opened */
int64_t rt_data_bytes(const rt_data *); /* of memory */
/* What the data are, whatever their names: text that is the same for the same rows in the
 * same order and mixture, one part a file. */
void rt_data_identity(const rt_data *, struct rt_text *);

/* The row from its file. RT_OK, or says why not; *row is zero or was used before. */
int rt_data_row(const rt_data *, int64_t i, rt_row *row);
void rt_row_free(rt_row *);
/* n values of a field for each token, derived where the row has none. Labels that are not one
 * a token: RT_IGNORE. */
void rt_row_field(const rt_data *, const rt_row *, rt_field, int64_t *out);

/* Of row i; each keeps the row that was read last. -1 or RT_IGNORE where the row can't be
 * read, which was said. */
int64_t rt_data_length(const rt_data *, int64_t i); /* tokens */
/* Labels with a loss: of tokens (causal: but for the first), the row's one, or values. */
int64_t rt_data_supervised(const rt_data *, int64_t i);
/* Label of token t, derived where the row has none; of the row for RT_LABEL_ROW. RT_IGNORE:
 * not supervised. */
int64_t rt_data_label(const rt_data *, int64_t i, int64_t t);
float rt_data_value(const rt_data *, int64_t i, int64_t k); /* NaN: not supervised */

/* One line of JSONL, of any bytes: RT_OK if it is empty or a row, else RT_USER, unsaid. */
int rt_data_check_line(const rt_data_spec *, const char *line, size_t n);

const rt_input *rt_input_of(const rt_program *, rt_input_role); /* NULL: takes none */

/* ---- inputs.c: the memory of a micro-batch's inputs ---- */
int64_t rt_inputs_bytes(const rt_program *); /* of device memory */
int rt_inputs_new(rt_run *, void *device);   /* an exit code; device: so much of it */
void rt_inputs_free(rt_run *);
/* rt_run.host_input may be filled; what was set below stands in it. */
void rt_inputs_begin(rt_run *);
/* It is filled: what is executed next has these inputs. */
void rt_inputs_send(rt_run *);
/* ---- batch.c: rows to the inputs of a micro-batch ---- */
/* Fills all inputs with n rows of d, the rest of the batch with empty rows, and sends them.
 * Returns the number of real tokens; -1: a row could not be read, which was said. For RT_PREDICTION a
 * token without a label has target 0, so that something is predicted; rt_data_label() knows
 * which labels are real. */
int64_t rt_batch_fill(rt_run *, const rt_data *d, const int64_t *row, int64_t n);
/* Which of the results that a token has one of each, in the batch that was filled last, belongs
 * to position t of row b, which must have a target. */
int64_t rt_result_row(const rt_run *, int64_t b, int64_t t);
/* The RT_SCALE input of all batches that are filled from now on; 1 at first. */
void rt_set_scale(rt_run *, double scale);
/* RT_DROP_KEY of a step (from 0): below 2^52, as a double holds it. */
int64_t rt_step_key(uint64_t seed, int64_t step);
/* The inputs RT_DROP_KEY and RT_DROP_KEYS of batches that are filled from now on, where one
 * begins `first` rows into the step. Rows of a step are at most RT_MOST_KEYS. */
enum { RT_MOST_KEYS = 1 << 20 };
void rt_set_keys(rt_run *, int64_t key, int64_t first);

/* ---- data_order.c ---- */
/* A bijection on [0,n) that key chooses. */
uint64_t rt_permute(uint64_t i, uint64_t n, uint64_t key);
typedef struct rt_order {
    int64_t n; /* positions of an epoch */
    bool shuffle;
    uint64_t seed;
    const rt_data *mix; /* its files have weights; NULL: every row once */
} rt_order;
rt_order rt_order_of(const rt_data *, bool shuffle, uint64_t seed);
/* Rows at positions [first, first+n) of an epoch, as far as it goes; returns how many. */
int64_t rt_order_rows(const rt_order *, int64_t epoch, int64_t first, int64_t n,
                      int64_t *row);
#endif
