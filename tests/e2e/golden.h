/* golden.h -- reads what tests/cases holds (format: its README.md) and drives the programs. */
#ifndef EFFICC_GOLDEN_H
#define EFFICC_GOLDEN_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tensor { /* of a safetensors file, as double */
    char *name;
    int rank;
    int64_t dim[8], n;
    double *data;
} tensor;

typedef struct tensors {
    tensor *at;
    int n;
} tensors;

/* f32 and i64 tensors of a safetensors file; n == 0 if it can't be read. */
tensors tensors_read(const char *path);
const tensor *tensors_get(const tensors *, const char *name); /* NULL: absent */
void tensors_free(tensors *);
/* Writes the given tensors as f32. */
bool tensors_write(const char *path, const tensor *const *, const char *const *name,
                   int n);

/* Largest |got - want| over the share (0..1] of elements that differ least. */
double tensor_distance(const tensor *got, const tensor *want, double share);
double tensor_max(const tensor *);

cJSON *json_read(const char *path); /* NULL: can't */
/* Rows of the batches with the numbers order[0..n) as JSON Lines for the trainer. */
bool batches_write(const char *path, const tensors *golden, const int *order, int n);

/* Runs a command line through the shell, output into the file `log`; exit status, or 128 +
 * signal. */
int run(const char *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *text_read(const char *path); /* whole file, NUL-terminated; NULL: can't */
/* A fresh folder under BIN_DIR/tests/tmp; static buffers, four in turn. */
const char *fresh_dir(const char *name);
/* printf into one of eight static buffers in turn. */
const char *fmt(const char *f, ...) __attribute__((format(printf, 1, 2)));

#endif
