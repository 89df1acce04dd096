/* host_int.h -- what the files of the trainer's host part share.
 *
 * A run goes: options (args.c), data (data.c), buffers and weights (weights.c, init.c),
 * starting values (adapter.c, tensors.c), the loop (loop.c, with batch.c and schedule.c),
 * what the user sees (log.c, progress.c), results (results.c, adapter.c, onnx_out.c) and
 * predictions (predict.c). Files are read and written through safetensors.c and file.c.
 *
 * A function that can fail returns an exit code: RT_OK, or the reason was said already.
 */
#ifndef EFFICC_HOST_INT_H
#define EFFICC_HOST_INT_H

#include "efficc_rt.h"
#include "safetensors.h"

#include <stdio.h>

/* Exit codes of the trainer. */
enum { RT_OK = 0, RT_USER = 1, RT_BUG = 70, RT_STOPPED = 75 };

/* ---- util.c: messages, memory, text ---- */
extern FILE *rt_out; /* the report; NULL: stdout */
extern FILE *rt_err; /* errors and warnings; NULL: stderr */
FILE *rt_report(void);
/* "trainer: error: ..." to rt_err; a "\n" in the text begins a line of advice. Returns code. */
int rt_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void rt_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A line of the report, its subject in the first column. */
void rt_say(const char *subject, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Zeroed memory; without memory the trainer ends with code 1 and says so. */
void *rt_new(size_t n, size_t size);
void *rt_grow(void *old, size_t bytes);
typedef struct rt_text { /* grows; zero-initialise; free(s) */
    char *s;
    size_t n, cap;
} rt_text;
void rt_putf(rt_text *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void rt_put_json(rt_text *, const char *); /* as a JSON string, with quotes */
const char *rt_bytes_text(double bytes);   /* "12.3 MB"; static buffers of 8 turns */
int rt_distance(const char *a, const char *b); /* Levenshtein, stops counting at 99 */
double rt_now(void);                           /* seconds, monotonic */
int64_t rt_peak_rss(void);                     /* bytes; 0: unknown */
int64_t rt_free_memory(void); /* bytes this process may still get; 0: unknown */

/* ---- args.c: options.def as a structure ---- */
#define RT_KIND_FLAG bool
#define RT_KIND_INT  int64_t
#define RT_KIND_NUM  double
#define RT_KIND_STR  const char *
typedef struct rt_opts {
#define OPT(field, kind, def, low, high, words, arg, group, when, help) \
    RT_KIND_##kind field;
#define MOVED(name, text)
#include "options.def"
#undef OPT
#undef MOVED
} rt_opts;
/* Returns -1 to go on, or the exit code (0 after --help and --version). */
int rt_args(int argc, char **argv, const rt_program *, rt_opts *);
void rt_help(FILE *, const char *trainer, const rt_program *);

/* ---- file.c: files that appear whole or not at all ---- */
typedef struct rt_file {
    int fd, code; /* code: of the first failure, which was said */
    char *path, *tmp;
    uint64_t at; /* bytes written */
    size_t held; /* of them in buf */
    char *buf;
} rt_file;
int rt_file_open(rt_file *, const char *path);
int rt_file_write(rt_file *, const void *, size_t);
int rt_file_done(rt_file *);       /* flush, fsync, rename; after a failure: remove */
int rt_file_try(const char *path); /* can it be made? leaves nothing */
int rt_file_text(const char *path, const char *text);
void rt_file_tensor(rt_file *, const rt_st_out *); /* its elements; safetensors.c */
char *rt_path(const char *dir, const char *name);  /* dir/name; free it */
char *rt_read_text(const char *path, size_t max,
                   int *err); /* NULL: *err is the errno */
/* Code for errno err: RT_STOPPED where space ran out. */
int rt_errno_code(int err);
/* dir exists, or is made, is writable, is empty or may be overwritten. */
int rt_output_dir(const char *dir, bool overwrite);

/* ---- data.c: JSONL rows, checked, as compact arrays ---- */
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
int rt_data_open(rt_data *, const char *path, const rt_program *, rt_use);
void rt_data_close(rt_data *);
int64_t rt_data_bytes(const rt_data *);
/* Label of token t (from 0) of a row, derived where the row has none; row_labels: of the
 * row. */
int64_t rt_data_label(const rt_data *, int64_t row, int64_t t);
int64_t rt_data_supervised(const rt_data *, int64_t row);
const rt_input *rt_input_of(const rt_program *, rt_input_role); /* NULL: takes none */

/* ---- batch.c: rows to the inputs of a micro-batch ---- */
void rt_inputs_new(rt_run *);
void rt_inputs_free(rt_run *);
int64_t rt_inputs_bytes(const rt_program *);
/* Fills all inputs with n rows of d, the rest of the batch with empty rows. Returns the
 * number of real tokens. */
int64_t rt_batch_fill(rt_run *, const rt_data *, const int64_t *row, int64_t n);
void rt_set_scale(rt_run *, double scale); /* the RT_SCALE input */
/* A bijection on [0,n) that key chooses. */
uint64_t rt_permute(uint64_t i, uint64_t n, uint64_t key);
/* Row numbers of micro-batch `micro` of an epoch; returns how many there are. */
typedef struct rt_order {
    int64_t n, batch;
    bool shuffle;
    uint64_t seed;
} rt_order;
int64_t rt_order_rows(const rt_order *, int64_t epoch, int64_t micro, int64_t *row);

/* ---- schedule.c: how many steps, which learning rate ---- */
typedef struct rt_schedule {
    int64_t batches;   /* micro-batches of an epoch */
    int64_t per_epoch; /* optimizer steps of an epoch */
    int64_t total, warmup;
    int64_t accumulate;
    double lr;
    enum { RT_LINEAR, RT_COSINE, RT_CONSTANT } kind;
} rt_schedule;
rt_schedule rt_schedule_of(const rt_opts *, int64_t rows, int64_t batch);
double rt_schedule_lr(const rt_schedule *, int64_t step); /* step from 0 */
/* Epoch, first micro-batch in it and number of micro-batches of a step (from 0). */
typedef struct rt_step {
    int64_t epoch, first, n;
} rt_step;
rt_step rt_schedule_step(const rt_schedule *, int64_t step);

/* ---- weights.c: the flat buffers ---- */
/* Allocates the classes in the set `classes` (1 << rt_class) and the arena. */
int rt_weights_new(rt_run *, unsigned classes);
void rt_weights_free(rt_run *); /* the memory itself stays until the process ends */
int64_t rt_class_bytes(const rt_program *, rt_class);
int64_t rt_weights_bytes(const rt_program *, unsigned classes); /* with the arena */
/* Contents of all params: base.safetensors in dir, or as rt_param.init says. */
int rt_weights_load(rt_run *, const char *dir, uint64_t seed);
float *rt_param_data(const rt_run *, const rt_param *);
float *rt_param_grad(const rt_run *, const rt_param *);

/* ---- init.c ---- */
void rt_init_fill(const rt_param *, uint64_t seed, float *out);

/* ---- tensors.c: public names of params ---- */
/* The name in gradient files: free it. *torch: the tensor stands there in PyTorch's layout. */
char *rt_public_name(const rt_param *, bool *torch);
/* --init-tensors, --save-gradients */
int rt_tensors_load(rt_run *, const char *path);
int rt_gradients_save(const rt_run *, const char *path);
/* Copies a tensor of the file into p. transposed: it is p's transpose. */
int rt_tensor_into(rt_run *, const rt_param *, const rt_st *, const rt_st_tensor *,
                   bool transposed);

/* ---- adapter.c, adapter_config.c: PEFT ---- */
int rt_adapter_load(rt_run *, const char *dir);
int rt_adapter_save(const rt_run *, const char *dir);
/* Reads and checks adapter_config.json against the program. rank: of the saved tensors. */
int rt_adapter_config_load(const rt_program *, const char *dir, int64_t rank);
int rt_adapter_config_save(const rt_program *, const char *dir, int64_t rank,
                           const char *const *extra_modules);

/* ---- results.c, onnx_out.c, predict.c ---- */
int rt_results_save(const rt_run *, const char *program_dir, const char *dir);
/* Is there room on the disk for the results? */
int rt_results_fit(const rt_program *, const char *dir);
/* Can template.json be filled by this program? Asked at start, not after hours. */
int rt_onnx_check(const rt_program *, const char *program_dir);
int rt_onnx_save(const rt_run *, const char *program_dir, const char *path);
/* NULL where to: stdout. */
int rt_predict(rt_run *, const rt_data *, const char *to);

/* ---- log.c: log.jsonl ---- */
typedef struct rt_log {
    FILE *f;
    char *path;
    int err; /* errno of the first failed write */
} rt_log;
int rt_log_open(rt_log *, const char *dir);
typedef struct rt_log_value {
    const char *key;
    double value; /* not finite: null */
} rt_log_value;
void rt_log_row(rt_log *, int n, const rt_log_value *);
int rt_log_close(rt_log *); /* RT_OK, or says that rows are missing */

/* ---- progress.c: what a person sees while it runs ---- */
typedef struct rt_progress {
    bool live;   /* a terminal: one line that changes */
    bool blocks; /* it shows Unicode */
    int shown;   /* columns that the live line covers */
    double start, drawn;
} rt_progress;
typedef struct rt_state { /* of the step that just ended */
    int64_t step, total;
    double loss, lr, grad_norm, tokens_per_second;
} rt_state;
void rt_progress_start(rt_progress *);
/* `logged`: a row of the log was written. */
void rt_progress_step(rt_progress *, const rt_state *, bool logged);
void rt_progress_clear(rt_progress *); /* before any other output */
/* The line for a terminal of `columns`; for tests. */
void rt_progress_line(char *out, size_t n, const rt_progress *, const rt_state *,
                      int columns);

/* ---- loop.c ---- */
typedef struct rt_job { /* what main.c prepared */
    rt_run *run;
    const rt_opts *opts;
    const rt_data *train, *eval; /* eval: NULL: none */
    rt_log *log;
    double started; /* rt_now() */
} rt_job;
int rt_train(const rt_job *);
/* Loss and accuracy over job->eval, into the report and the log. */
void rt_evaluate(const rt_job *, int64_t step);

/* rt_main() with the folder of base.safetensors given. */
int rt_host_main(int argc, char **argv, const rt_program *, const char *dir);

#endif
