/* host_int.h -- what the files of the trainer's host part share.
 *
 * A run goes: options (args.c), data (data.c), buffers and weights (weights.c, init.c),
 * starting values (adapter.c, tensors.c, checkpoint.c), the loop (loop.c, step.c, with batch.c,
 * inputs.c, schedule.c, eval.c, best.c, stop.c, scaler.c and nonfinite.c), what the user sees (log.c,
 * progress.c), results (results.c, adapter.c, onnx_out.c) and predictions (predict.c). Files
 * are read and written through safetensors.c and file.c.
 *
 * A function that can fail returns an exit code: RT_OK, or the reason was said already.
 */
#ifndef EFFICC_HOST_INT_H
#define EFFICC_HOST_INT_H

#include "checkpoint.h"
#include "data.h"
#include "efficc_rt.h"
#include "safetensors.h"

#include <stdio.h>

/* ---- util.c: messages (rt_fail() and rt_say(), too), memory, text ---- */
extern FILE *rt_out; /* the report; NULL: stdout */
extern FILE *rt_err; /* errors and warnings; NULL: stderr */
FILE *rt_report(void);
extern const char *rt_name; /* of the program that speaks: "trainer" */
void rt_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Zeroed memory; without memory the trainer ends with code 1 and says so. */
void *rt_new(size_t n, size_t size);
void *rt_grow(void *old, size_t bytes);
/* An XXH3 state of no bytes yet, for XXH3_freeState(); memory as above. */
struct XXH3_state_s *rt_hash_new(void);
typedef struct rt_text { /* grows; zero-initialise; free(s) */
    char *s;
    size_t n, cap;
} rt_text;
void rt_putf(rt_text *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void rt_put(rt_text *, const void *,
            size_t);                       /* bytes as they are; no zero byte follows */
void rt_put_json(rt_text *, const char *); /* as a JSON string, with quotes */
const char *rt_bytes_text(double bytes);   /* "12.3 MB"; static buffers of 8 turns */
int rt_distance(const char *a, const char *b); /* Levenshtein, stops counting at 99 */
/* The same; a part of a name is nearer than its length says. */
int rt_distance_part(const char *given, const char *known);
/* Is it worth a hint? */
bool rt_is_near(const char *given, int distance);
double rt_now(void);          /* seconds, monotonic */
int64_t rt_peak_rss(void);    /* bytes; 0: unknown */
int64_t rt_free_memory(void); /* bytes this process may still get; 0: unknown */

/* ---- args.c: options.def as a structure ---- */
#define RT_KIND_FLAG bool
#define RT_KIND_INT  int64_t
#define RT_KIND_NUM  double
#define RT_KIND_STR  const char *
#define RT_KIND_LIST rt_words
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
void rt_opts_free(rt_opts *); /* whatever rt_args() returned */
void rt_help(FILE *, const char *trainer, const rt_program *);
/* The options that are not at their default, as a JSON object. */
void rt_opts_json(const rt_opts *, rt_text *);
/* argv as a shell takes it, with --resume-from-checkpoint. */
void rt_go_on(int argc, char **argv, rt_text *);

/* ---- file.c: files that appear whole or not at all ---- */
typedef struct rt_file {
    int fd, code; /* code: of the first failure, which was said */
    char *path, *tmp;
    const char *advice; /* where space runs out; NULL: a failure is only a warning */
    uint64_t at;        /* bytes written */
    uint64_t hash;      /* XXH3 of them, once it is done */
    size_t held;        /* of them in buf */
    char *buf;
    struct XXH3_state_s *state;
} rt_file;
int rt_file_open(rt_file *, const char *path);
/* The same with advice of one's own. */
int rt_file_begin(rt_file *, const char *path, const char *advice);
int rt_file_write(rt_file *, const void *, size_t);
int rt_file_done(rt_file *);       /* flush, fsync, rename; after a failure: remove */
int rt_file_try(const char *path); /* can it be made? leaves nothing */
int rt_file_text(const char *path, const char *text);
/* safetensors.c: the elements of one tensor; all that rt_st_write() writes */
void rt_file_tensor(rt_file *, const rt_st_out *);
void rt_file_tensors(rt_file *, rt_st_out *, int n, bool torch);
/* half.c: the elements as f32, f64, f16 or bf16. Returns how many finite ones became infinite. */
int64_t rt_file_floats(rt_file *, const char *dtype, const rt_st_out *);
/* The same in memory, to f64, f16 or bf16. */
int64_t rt_lower(const char *dtype, const float *x, int64_t n, void *out);
int rt_float_bytes(const char *dtype);            /* of an element; 0: no such type */
char *rt_path(const char *dir, const char *name); /* dir/name; free it */
char *rt_read_text(const char *path, size_t max,
                   int *err); /* NULL: *err is the errno */
/* Is the file of the trainer's folder there? */
int rt_beside(const char *path);
/* An open file and its size; -1: errno. Pipes and devices are no files. */
int rt_open_regular(const char *path, int64_t *size);
/* Code for errno err: RT_STOPPED where space ran out. */
int rt_errno_code(int err);
/* dir exists, or is made, is writable, and is empty but for a lock and what a run left that
 * died before its first checkpoint; or it may hold files: when overwriting and when going on. */
int rt_output_dir(const char *dir, bool overwrite);

/* ---- schedule.c: how many steps, which learning rate ---- */
typedef struct rt_schedule {
    int64_t rows;   /* of an epoch */
    int64_t batch;  /* rows of a micro-batch */
    int64_t global; /* rows of an optimizer step; an epoch's last step may have fewer */
    int64_t per_epoch; /* optimizer steps of an epoch */
    int64_t total, warmup;
    double lr;
    enum { RT_LINEAR, RT_COSINE, RT_CONSTANT } kind;
} rt_schedule;
rt_schedule rt_schedule_of(const rt_opts *, int64_t rows, int64_t batch);
double rt_schedule_lr(const rt_schedule *, int64_t step); /* step from 0 */
/* Epoch, first position in it and number of rows of a step (from 0). */
typedef struct rt_step {
    int64_t epoch, first, n;
} rt_step;
rt_step rt_schedule_step(const rt_schedule *, int64_t step);

/* ---- view.c: what the host sees of the device's memory ----
 * A view is the memory itself under rt_unified, else a copy. */
typedef struct rt_host rt_host; /* inputs.c */
/* To read; after work that was enqueued. NULL stays NULL. rt_looked() ends it. */
const void *rt_look(const rt_run *, const void *device, int64_t bytes);
void rt_looked(const void *view);
/* To write: all of it, for a copy does not hold what is there. rt_edited() ends it, then it
 * is there. */
void *rt_edit(const rt_run *, void *device, int64_t bytes);
void rt_edited(const rt_run *, void *device, void *view, int64_t bytes);
/* Sum of squares of all gradients; waits for it. */
float rt_gradient_norm2(rt_run *);
/* All bytes of the file's tensor to device memory, and into the hash, if there is one. */
int rt_st_load(const rt_run *, const rt_st *, const rt_st_tensor *, void *device,
               struct XXH3_state_s *hash);

/* ---- weights.c: the flat buffers ---- */
/* All device memory of the program: the classes in the set `classes` (1 << rt_class), the arena,
 * inputs and what the device part wants. */
int rt_weights_new(rt_run *, unsigned classes);
void rt_weights_free(rt_run *); /* the memory itself stays until the process ends */
int64_t rt_aligned(const rt_program *, int64_t bytes);
int64_t rt_memory_bytes(const rt_program *, unsigned classes); /* of rt_weights_new() */
int64_t rt_class_bytes(const rt_program *, rt_class);
/* Contents of all params: base.safetensors in dir, or as rt_param.init says. */
int rt_weights_load(rt_run *, const char *dir, uint64_t seed);
/* Places in device memory: of elements of its dtype; of floats. */
void *rt_param_data(const rt_run *, const rt_param *);
uint64_t rt_param_bytes(const rt_param *); /* of its contents */
float *rt_param_grad(const rt_run *, const rt_param *);
/* Fills all images from their owners: whenever params were loaded. */
void rt_images_fill(const rt_run *);
/* RT_SOURCE_HASH of dir/base.safetensors, if params w hold what they have there; false: they
 * don't, or the file does not say it. */
bool rt_source_hash(const rt_run *, const char *dir, const rt_param *const *w, int n,
                    char hex[17]);
/* RT_STATE_M or _V of a trained param; NULL: the optimizer has none. */
float *rt_param_state(const rt_run *, const rt_param *, rt_class);

/* "fp32", "bf16" or "fp16": what the program computes in. */
const char *rt_precision(const rt_program *);

/* ---- init.c ---- */
void rt_init_fill(const rt_param *, uint64_t seed, float *out);

/* ---- tensors.c: public names of params ---- */
/* The name in gradient files: free it. *torch: the tensor stands there in PyTorch's layout. */
char *rt_public_name(const rt_param *, bool *torch);
/* --init-tensors: a file, or a folder checkpoint-<step>. */
int rt_tensors_init(rt_run *, const char *path);
int rt_tensors_load(rt_run *, const char *path);
/* --save-gradients */
int rt_gradients_save(const rt_run *, const char *path);
/* Can all tensors of the file be loaded? Changes nothing. */
int rt_tensors_check(const rt_program *, const char *path);
/* Does a tensor of the file fit p? transposed: it is p's transpose. */
int rt_tensor_check(const rt_param *, const rt_st *, const rt_st_tensor *,
                    bool transposed);
/* Copies it into p. */
int rt_tensor_into(rt_run *, const rt_param *, const rt_st *, const rt_st_tensor *,
                   bool transposed);
void rt_tensor_shift(rt_run *, const rt_param *); /* what was copied is PyTorch's */
/* The elements of PyTorch's parameter, in our layout, as data of what is to be written: those
 * in memory, or made in the room, of which there is enough for all params. */
float *rt_torch_room(const rt_program *); /* free it */
void rt_torch_data(const rt_run *, const rt_param *, float **room, rt_st_out *);

/* ---- adapter.c, adapter_load.c: PEFT ---- */
/* Checks all of it before anything changes. */
int rt_adapter_load(rt_run *, const char *program_dir, const char *dir);
int rt_adapter_save(const rt_run *, const char *program_dir, const char *dir);

/* ---- results.c, onnx_out.c, predict.c ---- */
int rt_results_save(const rt_run *, const char *program_dir, const char *dir);
/* Is there room on the disk for the results and checkpoints? After rt_weights_new(). */
int rt_results_fit(const struct rt_job *);
/* Can template.json be filled by this program? Asked at start, not after hours. */
int rt_onnx_check(const rt_program *, const char *program_dir);
/* DIR/model.onnx, and says so; of a model above 2 GB none, and says what makes one. */
int rt_onnx_save(const rt_run *, const char *program_dir, const char *path);
/* NULL where to: stdout. RT_STOPPED: a stop was asked for; then there is no file. */
int rt_predict(rt_run *, rt_data *, const char *to);

/* ---- log.c: log.jsonl ---- */
typedef struct rt_board rt_board; /* tensorboard.c */
typedef struct rt_records {       /* a file that grows by whole records */
    char *path;                   /* NULL: not open */
    int fd, err;                  /* err: errno of the first failure, which was said */
    int64_t at;                   /* bytes */
} rt_records;
void rt_records_add(rt_records *, const void *, size_t); /* all of it, or nothing */
typedef struct rt_log {
    rt_records file; /* not open: rows go nowhere */
    rt_board *board; /* NULL: none */
} rt_log;
/* keep: -1: a new log; else the rows of steps up to keep stay, later ones are cut off, and
 * so is a row without a step, which ends a run: memory, time and "end", why it ended ("done",
 * "early stopping", "max time", "signal", "not finite", "failed"). */
int rt_log_open(rt_log *, const char *dir, int64_t keep);
/* "end" of the last row of dir's log; NULL: a run that has not ended, or no log. Free it. */
char *rt_log_end(const char *dir);
typedef struct rt_log_value {
    const char *key;
    double value;     /* not finite: null */
    const char *json; /* NULL, or what stands there instead of the value */
} rt_log_value;
#define RT_LOG_NUMBER(key, x)  ((rt_log_value){key, x, NULL})
#define RT_LOG_FLAG(key, on)   ((rt_log_value){key, 0, (on) ? "true" : "false"})
#define RT_LOG_TEXT(key, text) ((rt_log_value){key, 0, "\"" text "\""}) /* a literal */
void rt_log_row(rt_log *, int n, const rt_log_value *);
/* All rows are on the disk: before a checkpoint that relies on them. */
void rt_log_sync(rt_log *);
int rt_log_close(rt_log *); /* RT_OK, or says that rows are missing */

/* ---- metrics.c: what an evaluation says ----
 * Sums over the batches of an evaluation: rt_metrics_start(); then after each call of
 * program->eval(), with scale 1, rt_metrics_add(); then rt_metrics_rows(), and
 * rt_metrics_free(). What is supervised is counted in the inputs, so filled-up rows of a
 * last batch count nothing. */
enum { RT_MAX_METRICS = 6 };
typedef struct rt_metrics {
    double loss, error; /* sums: of losses; regression: of |y - value| */
    int64_t supervised, right;
    struct rt_column *column; /* regression: one an output */
} rt_metrics;
void rt_metrics_start(rt_metrics *, const rt_program *);
void rt_metrics_add(rt_metrics *, const rt_run *);
/* Values for the log, keys "eval_loss" and then eval_accuracy and eval_perplexity, or
 * eval_mse, eval_mae, eval_pearson; returns how many. text: the same for a person. */
int rt_metrics_rows(const rt_metrics *, const rt_program *, rt_log_value *,
                    rt_text *text);
void rt_metrics_free(rt_metrics *);

/* ---- tensorboard.c: event files, fed by rt_log_row() ---- */
/* Makes a file in dir/runs. keep: as for rt_log_open(), which was called before. options: a
 * JSON object, for TensorBoard's page of texts. */
int rt_board_open(rt_log *, const char *dir, int64_t keep, const char *options);
void rt_board_row(rt_board *, int n, const rt_log_value *);
void rt_board_close(rt_board *);

/* ---- progress.c: what a person sees while it runs ---- */
typedef struct rt_progress {
    bool live;   /* a terminal: one line that changes */
    bool blocks; /* it shows Unicode */
    bool shown;  /* its line stands in the terminal */
    double start, drawn;
    int64_t first; /* steps that were done when it began */
} rt_progress;
typedef struct rt_state { /* of the step that just ended */
    int64_t step, total;
    double loss, lr, grad_norm, tokens_per_second;
    int64_t memory; /* of rt_job */
} rt_state;
/* `done`: steps that were done before, of a run that goes on. */
void rt_progress_start(rt_progress *, int64_t done);
/* `logged`: a row of the log was written. */
void rt_progress_step(rt_progress *, const rt_state *, bool logged);
/* Of something that takes long beside the steps: its own line, from half a second on. what:
 * a short word. rt_progress_start() before, rt_progress_clear() after it. */
void rt_progress_part(rt_progress *, const char *what, int64_t done, int64_t total);
void rt_progress_clear(rt_progress *);
void rt_progress_wipe(void); /* whatever line there is; all messages do it */
/* The line for a terminal of `columns`; for tests. */
void rt_progress_line(char *out, size_t n, const rt_progress *, const rt_state *,
                      int columns);

/* ---- report.c: report.html ---- */
/* Writes dir/report.html from dir/log.jsonl, the plan beside the trainer and the options of
 * the run (a JSON object), for a browser without a network. Warns if it can't: the page is
 * made of what is safe in other files. */
void rt_report_write(const char *dir, const char *program_dir, const char *options);
/* The same on the way, but only if it takes less than 1/50 of the time since the last one: a
 * log of a million rows takes seconds. */
void rt_report_update(const char *dir, const char *program_dir, const char *options);

/* ---- loop.c, step.c, eval.c, best.c ---- */
/* All of run->hyper that does not change from step to step; before rt_prepare(). */
void rt_hyper_set(rt_run *, const rt_opts *);
typedef struct rt_job { /* what main.c prepared */
    rt_run *run;
    const rt_opts *opts;
    rt_data *train, *eval; /* eval: NULL: none */
    rt_log *log;
    const char *program_dir;
    const char *options; /* those not at their default, a JSON object */
    const char *go_on;   /* the command that goes on after a stop */
    uint64_t frozen;     /* rt_frozen_hash(), taken at start */
    int64_t memory;      /* bytes on the device; 0: it is the process's own */
} rt_job;
/* From state on to the end, or to where a signal, --max-time or an error stops it; what the
 * results are to hold stands in the buffers then. *end: the log's word for why it ended; NULL:
 * it failed. */
int rt_train(const rt_job *, rt_train_state *, const char **end);
/* No step is left to do, be it for early stopping. */
bool rt_train_done(const rt_job *, const rt_train_state *);
/* What is to be done with a batch that eval() has seen, n rows of the data; an exit code. */
typedef int rt_batch_seen(const rt_run *, const rt_data *, const int64_t *row,
                          int64_t n, void *ctx);
/* eval() over all rows, with scale 1. what: a word for the progress line; NULL: none. The exit
 * code of what went wrong; RT_STOPPED: a stop was asked for. */
int rt_each_batch(rt_run *, const rt_data *, const char *what, rt_batch_seen *,
                  void *ctx);
/* Evaluates job->eval, into the report and the log; row gets the values, *n of at most
 * RT_MAX_METRICS. RT_STOPPED: a stop was asked for before it was done; nothing is logged. */
int rt_evaluate(const rt_job *, int64_t step, rt_log_value *row, int *n);
/* Does --metric-for-best-model name a value that this program's evaluation has? */
int rt_best_check(const rt_opts *, const rt_program *);
/* Takes the values of an evaluation into the state; true: the best so far. */
bool rt_best_see(const rt_job *, rt_train_state *, const rt_log_value *row);
/* Forgets a best value that does not count for this run: of another metric, or one whose
 * weights are wanted at the end but were not saved. */
void rt_best_resume(const rt_job *, rt_train_state *);
/* Early stopping: patience is at its end. */
bool rt_best_stops(const rt_opts *, const rt_train_state *);
/* Notes the gradient norm of a step. Above 10 times the median of the last RT_NORMS (once
 * there are 16) it is an outlier: returns the median then, else 0. */
double rt_norm_see(rt_train_state *, double norm);

/* ---- stop.c: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and --max-time ---- */
/* "90s", "30m", "12h", "HH:MM:SS" or plain seconds; -1: none of these. */
double rt_seconds(const char *);
/* From now on a signal ends the process at once with RT_STOPPED. A signal that the parent
 * had ignored stays so. until: rt_now() at which time is up; 0: never. */
void rt_stop_open(double until);
/* From now on it is only noted; a second SIGINT or SIGTERM has its default action. */
void rt_stop_gently(void);
bool rt_stop_asked(void);
/* "SIGTERM" or "--max-time"; NULL: nobody has asked. */
const char *rt_stop_why(void);
const char *rt_stop_word(void); /* the log's word for it; somebody has asked */
void rt_stop_close(void);       /* as before rt_stop_open() */

/* ---- scaler.c: the loss scaler of a program in fp16 ---- */
/* Of the state of a run that goes on, or a new one; a program without has nothing done. */
void rt_scaler_start(const rt_run *, rt_train_state *);
/* As the state says it. */
void rt_scaler_put(const rt_run *, const rt_train_state *);
/* So many times too large are gradients until the next update(); 1: there is no scaler. */
float rt_scaler_scale(const rt_run *);
/* What it is after update(), into the state. */
void rt_scaler_see(const rt_run *, const rt_tally *, rt_train_state *);

/* ---- the checking mode: what is done behind every call of micro() ---- */
struct rt_check {
    void (*see)(rt_run *, int op);
};

/* ---- record.c: --record-step, for efficc verify ---- */
typedef struct rt_record rt_record;
/* Before a step of one micro-batch: its results are recorded from now on. NULL: said why. */
rt_record *rt_record_start(rt_run *, const char *path);
/* After its update. code: of the step; returns it, or that of an error of the file. */
int rt_record_end(rt_record *, rt_run *, int code);

/* ---- nonfinite.c: a loss or gradient norm that is not finite ---- */
typedef struct rt_bad_step {
    int64_t step;     /* from 1 */
    int64_t updates;  /* steps before it that changed the weights */
    int64_t saved;    /* step of the newest checkpoint; 0: none */
    const char *what; /* "loss", or "gradient norm" */
    int64_t micros;   /* micro-batches of the step */
    /* Fills the inputs with micro-batch m (from 0) of the step, as the step itself did it;
     * *row: its rows. Returns how many; -1: said why. */
    int64_t (*fill)(void *loop, int64_t m, const int64_t **row);
    void *loop;
} rt_bad_step;
/* Runs the micro-batches once more in the checking mode and says which op went bad first.
 * The step must have left the weights as they were: not run update(), or update() with a
 * norm that is not finite. --on-nonfinite skip: RT_OK, the step counts as skipped (unless
 * the weights themselves are bad, where no step will ever be good); stop: RT_USER. */
int rt_nonfinite(const rt_job *, const rt_bad_step *);

/* rt_main() with the folder of base.safetensors given. */
int rt_host_main(int argc, char **argv, const rt_program *, const char *dir);

#endif
