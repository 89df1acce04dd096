/* main.c -- rt_main(): the order in which a trainer does things.
 *
 * What is quick to check comes first (options, folder, processor), then the data, then
 * memory and weights, at last the checkpoint to go on from; step 1 starts only when nothing
 * that can be known is wrong.
 */
#include "checkpoint_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct host {
    rt_opts opts;
    rt_program program; /* a copy: --threads may lower its thread count */
    const char *dir;    /* of base.safetensors and the template */
    rt_run run;
    rt_data train, eval, predict;
    rt_log log;
    rt_text options, go_on; /* of rt_job */
    rt_job job;
    rt_train_state state;
    const char *end; /* the log's word for why the run ended; NULL: by its exit code */
    int lock;        /* -1: none */
    double started;
    int64_t planned;
} host;

static int
check_program(const rt_program *p)
{
    if (p->abi != RT_ABI)
        return rt_fail(RT_USER,
                       "the trainer was compiled for another runtime (ABI %d, not "
                       "%d); compile again",
                       p->abi, RT_ABI);
    static const char *const task[] = {"causal-lm", "mlm", "seq-cls", "token-cls",
                                       "regression"};
    for (size_t i = 0; i < sizeof task / sizeof *task; i++)
        if (!strcmp(p->task, task[i]))
            return RT_OK;
    return rt_fail(RT_USER, "task '%s' is not supported by this runtime", p->task);
}

static void
say_program(const host *h)
{
    const rt_program *p = &h->program;
    char how[64] = "full fine-tuning";
    if (p->lora_r)
        snprintf(how, sizeof how, "LoRA r %lld, scale %g", (long long)p->lora_r,
                 p->lora_scale);
    int64_t trained = 0, all = 0;
    for (int i = 0; i < p->nparam; i++) {
        trained += p->param[i].cls == RT_TRAIN ? p->param[i].n : 0;
        all += p->param[i].cls != RT_CONST ? p->param[i].n : 0;
    }
    rt_say("trainer",
           "%s, %s, %s, %s: %lld of %lld numbers trained (efficc %s, schedule %.12s)",
           p->model, p->task, how, rt_precision(p), (long long)trained, (long long)all,
           p->efficc, p->hash);
    if (!rt_computes(p->compute))
        rt_say("note", "this processor does not multiply in %s: it is emulated, slowly",
               rt_precision(p));
}

static int
open_device(host *h)
{
    char error[512] = "";
    if (h->opts.threads && h->opts.threads < h->program.threads)
        h->program.threads = (int)h->opts.threads;
    if (rt_unified && h->opts.threads > h->program.threads)
        return rt_fail(
            RT_USER,
            "--threads %lld, but memory was planned for %d\ncompile with efficc "
            "--threads %lld",
            (long long)h->opts.threads, h->program.threads, (long long)h->opts.threads);
    h->run.program = &h->program;
    if (!rt_device_open(&h->program, &h->run.compute, error, sizeof error))
        return rt_fail(RT_USER, "%s", error);
    return RT_OK;
}

static int
load_one(const host *h, rt_data *d, const rt_words *files, rt_use use)
{
    if (!files->n)
        return RT_OK;
    rt_data_spec spec = rt_data_spec_of(&h->program, use);
    spec.spool = h->opts.output_dir;
    spec.threads = (int)h->opts.threads;
    return rt_data_open(d, files, &spec);
}

static int
load_data(host *h)
{
    int code = load_one(h, &h->train, &h->opts.train_data, RT_TRAINING);
    if (!code)
        code = load_one(h, &h->eval, &h->opts.eval_data, RT_EVALUATION);
    if (!code)
        code = load_one(h, &h->predict, &h->opts.predict, RT_PREDICTION);
    return code;
}

static int
load_weights(host *h)
{
    const rt_opts *o = &h->opts;
    const rt_program *p = &h->program;
    unsigned classes =
        1 << RT_TRAIN | 1 << RT_FROZEN | 1 << RT_CONST | 1 << RT_IMAGE | 1 << RT_SCALER;
    if (o->train_data.n)
        classes |= 1 << RT_GRAD;
    bool sgd = !strcmp(o->optim, "sgd");
    if (o->train_data.n && (!sgd || o->momentum > 0))
        classes |= 1 << RT_STATE_M;
    if (o->train_data.n && !sgd)
        classes |= 1 << RT_STATE_V;
    int64_t size[RT_NCLASSES];
    for (int c = 0; c < RT_NCLASSES; c++)
        size[c] = classes >> c & 1 ? rt_class_bytes(p, (rt_class)c) : 0;
    int64_t data =
        rt_data_bytes(&h->train) + rt_data_bytes(&h->eval) + rt_data_bytes(&h->predict);
    h->planned = rt_memory_bytes(p, classes) + (rt_unified ? data : 0);
    h->job.memory = rt_unified ? 0 : h->planned;
    data += rt_inputs_bytes(p);
    char images[64] = "";
    if (size[RT_IMAGE])
        snprintf(images, sizeof images, "their %s images %s, ", rt_precision(p),
                 rt_bytes_text((double)size[RT_IMAGE]));
    rt_say("memory",
           "weights %s, %sgradients %s, optimizer %s, activations %s, data %s: %s",
           rt_bytes_text((double)(size[RT_TRAIN] + size[RT_FROZEN] + size[RT_CONST])),
           images, rt_bytes_text((double)size[RT_GRAD]),
           rt_bytes_text((double)(size[RT_STATE_M] + size[RT_STATE_V])),
           rt_bytes_text((double)p->arena_bytes), rt_bytes_text((double)data),
           rt_bytes_text((double)h->planned));
    int code = rt_weights_new(&h->run, classes);
    if (!code)
        code = rt_weights_load(&h->run, h->dir, (uint64_t)o->seed);
    if (!code && o->init_adapter)
        code = rt_adapter_load(&h->run, h->dir, o->init_adapter);
    if (!code && o->init_tensors)
        code = rt_tensors_init(&h->run, o->init_tensors);
    if (!code)
        rt_images_fill(&h->run);
    return code;
}

/* The run goes on from a checkpoint that stands in the output folder, whose files are then
 * its own. */
static bool
goes_on_here(const rt_opts *o)
{
    const char *from = o->resume_from_checkpoint;
    if (!from || !strcmp(from, "auto"))
        return from != NULL;
    char *up = rt_path(from, "..");
    char *there = realpath(up, NULL), *here = realpath(o->output_dir, NULL);
    bool same = there && here && !strcmp(there, here);
    free(up);
    free(there);
    free(here);
    return same;
}

/* The folder is there, may be written to, and is no other trainer's. */
static int
open_folder(host *h)
{
    const rt_opts *o = &h->opts;
    if (!o->output_dir)
        return RT_OK;
    const char *from = o->resume_from_checkpoint;
    if (from && strcmp(from, "auto") && access(from, F_OK))
        return rt_fail(RT_USER, "--resume-from-checkpoint %s: %s", from,
                       strerror(errno));
    int code = rt_output_dir(o->output_dir, o->overwrite_output_dir || goes_on_here(o));
    if (!code)
        code = rt_folder_lock(o->output_dir, &h->lock);
    return code;
}

/* A file that a finished run left in dir; NULL: there is none. */
static const char *
result_in(const char *dir)
{
    static const char *const result[] = {"adapter_model.safetensors", "model.onnx",
                                         "model.safetensors", "predictions.jsonl"};
    for (size_t i = 0; i < sizeof result / sizeof *result; i++) {
        char *path = rt_path(dir, result[i]);
        bool there = !access(path, F_OK);
        free(path);
        if (there)
            return result[i];
    }
    char *end = rt_log_end(dir);
    bool done = end && (!strcmp(end, "done") || !strcmp(end, "early stopping"));
    free(end);
    return done ? "log.jsonl" : NULL;
}

/* A run that finds nothing to go on from must not write over what another one made. */
static int
start_anew(const rt_opts *o)
{
    const char *result = o->overwrite_output_dir ? NULL : result_in(o->output_dir);
    if (result)
        return rt_fail(RT_USER,
                       "--output-dir %s holds the results of a finished run (%s), and "
                       "no checkpoint to go on from\nname another folder, or give "
                       "--overwrite-output-dir",
                       o->output_dir, result);
    if (o->resume_from_checkpoint)
        rt_say("resume", "no good checkpoint in %s: starts at step 1", o->output_dir);
    return RT_OK;
}

/* The state to go on from, and the log up to there. */
static int
open_log(host *h)
{
    const rt_opts *o = &h->opts;
    int code = RT_OK;
    if (o->train_data.n) {
        h->job.frozen = rt_frozen_hash(&h->run);
        code = rt_checkpoint_resume(&h->job, &h->state);
        if (!code && !h->state.step)
            code = start_anew(o);
    }
    if (!code && h->state.step)
        rt_best_resume(&h->job, &h->state);
    if (code || !o->output_dir || !(o->train_data.n || o->eval_data.n))
        return code;
    int64_t keep = h->state.step ? h->state.step : -1;
    code = rt_log_open(&h->log, o->output_dir, keep);
    if (!code && strcmp(o->report_to, "none"))
        code = rt_board_open(&h->log, o->output_dir, keep, h->options.s);
    return code;
}

static bool
same_file(const char *a, const char *b)
{
    struct stat s, t;
    return !stat(a, &s) && !stat(b, &t) && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

/* Gradients can be written, and not over what the run reads. */
static int
try_gradients(const host *h)
{
    const char *path = h->opts.save_gradients, *tensors = h->opts.init_tensors;
    const rt_data *data[] = {&h->train, &h->eval, &h->predict};
    char *base = rt_path(h->dir, "base.safetensors");
    bool read = same_file(path, base) || (tensors && same_file(path, tensors));
    free(base);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < data[k]->nfile; i++)
            read |= same_file(path, data[k]->file[i].path);
    return read ? rt_fail(RT_USER, "--save-gradients %s: the run reads this file", path)
                : rt_file_try(path);
}

/* What the device part makes before the first step. */
static int
prepare_device(host *h)
{
    char text[512] = "";
    rt_hyper_set(&h->run, &h->opts);
    h->run.direct = !h->opts.graphs;
    if (!rt_prepare(&h->run, text, sizeof text))
        return rt_fail(RT_USER, "%s", text);
    rt_device_text(h->run.compute, text, sizeof text);
    if (*text)
        rt_say("device", "%s", text);
    return RT_OK;
}

static int
prepare(host *h)
{
    const rt_opts *o = &h->opts;
    int code = check_program(&h->program);
    if (!code)
        code = open_device(h);
    if (!code)
        say_program(h);
    if (!code)
        code = open_folder(h);
    if (!code && o->train_data.n && !h->program.lora_r)
        code = rt_onnx_check(&h->program, h->dir);
    if (!code)
        code = load_data(h);
    if (!code && o->save_gradients)
        code = try_gradients(h);
    if (!code)
        code = load_weights(h);
    if (!code && o->train_data.n)
        code = rt_results_fit(&h->job);
    if (!code)
        code = open_log(h);
    if (!code)
        code = prepare_device(h);
    return code;
}

/* ---- the work ---- */

/* The log's last row. */
static void
summarise(host *h, int code)
{
    double seconds = rt_now() - h->started;
    int64_t peak = rt_peak_rss(), device = h->job.memory;
    rt_text end = {0};
    rt_put_json(&end, h->end ? h->end : code ? "failed" : "done");
    rt_log_value row[] = {RT_LOG_NUMBER("device_bytes", (double)device),
                          RT_LOG_NUMBER("peak_rss_bytes", (double)peak),
                          RT_LOG_NUMBER("planned_bytes", (double)h->planned),
                          RT_LOG_NUMBER("total_seconds", seconds),
                          {"end", 0, end.s}};
    rt_log_row(&h->log, device ? 5 : 4, device ? row : row + 1);
    free(end.s);
    if (!code)
        rt_say("done", "%.1f s, %s memory %s (planned %s)", seconds,
               device ? "device" : "peak",
               rt_bytes_text((double)(device ? device : peak)),
               rt_bytes_text((double)h->planned));
}

static int
train(host *h)
{
    bool done = h->state.step && rt_train_done(&h->job, &h->state);
    int code = rt_train(&h->job, &h->state, &h->end);
    if (!code && done)
        rt_say("note",
               "the run was complete at step %lld; its results are written again",
               (long long)h->state.step);
    if (code)
        return code;
    code = rt_results_save(&h->run, h->dir, h->opts.output_dir);
    h->end = code ? NULL : h->end;
    return code;
}

static int
predict(host *h)
{
    const rt_opts *o = &h->opts;
    char *to = o->output_dir ? rt_path(o->output_dir, "predictions.jsonl") : NULL;
    rt_stop_gently();
    int code = rt_predict(&h->run, &h->predict, to);
    free(to);
    if (code != RT_STOPPED || !rt_stop_asked()) {
        h->end = code ? NULL : h->end;
        return code;
    }
    h->end = rt_stop_word();
    rt_say("stopped", "%s: %s%s", rt_stop_why(),
           o->output_dir ? "no predictions were written"
                         : "more predictions would have followed",
           o->train_data.n ? "; the results of training are there, and predict from "
                             "--init-adapter or --init-tensors without --train-data"
                           : "");
    return code;
}

static int
work(host *h)
{
    const rt_opts *o = &h->opts;
    rt_log_value row[RT_MAX_METRICS];
    int n, code = RT_OK;
    if (o->train_data.n)
        code = train(h);
    else if (o->eval_data.n)
        code = rt_evaluate(&h->job, 0, row, &n);
    if (!code && o->predict.n)
        code = predict(h);
    summarise(h, code);
    if (o->train_data.n)
        rt_report_write(o->output_dir, h->dir, h->options.s);
    int log_code = rt_log_close(&h->log);
    return code ? code : log_code;
}

static void
close_all(host *h)
{
    rt_stop_close();
    rt_weights_free(&h->run);
    rt_device_close(h->run.compute);
    rt_data_close(&h->train);
    rt_data_close(&h->eval);
    rt_data_close(&h->predict);
    if (h->lock >= 0)
        rt_folder_unlock(h->lock);
    free(h->options.s);
    free(h->go_on.s);
    rt_opts_free(&h->opts);
    free(h);
}

static rt_job
job_of(host *h)
{
    return (rt_job){.run = &h->run,
                    .opts = &h->opts,
                    .train = &h->train,
                    .eval = h->opts.eval_data.n ? &h->eval : NULL,
                    .log = &h->log,
                    .program_dir = h->dir,
                    .options = h->options.s,
                    .go_on = h->go_on.s};
}

int
rt_host_main(int argc, char **argv, const rt_program *program, const char *dir)
{
    host *h = rt_new(1, sizeof *h);
    h->program = *program;
    h->dir = dir;
    h->lock = -1;
    h->started = rt_now();
    int code = rt_args(argc, argv, program, &h->opts);
    if (code >= 0) {
        rt_opts_free(&h->opts);
        free(h);
        return code;
    }
    FILE *report = rt_out;
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write() */
    bool filter = h->opts.predict.n && !h->opts.output_dir;
    if (filter && !rt_out)
        rt_out = stderr; /* stdout is for the predictions */
    if (!filter)
        signal(SIGPIPE, SIG_IGN); /* nobody reads the report: the work goes on */
    rt_opts_json(&h->opts, &h->options);
    rt_go_on(argc, argv, &h->go_on);
    h->job = job_of(h);
    rt_stop_open(h->opts.max_time ? h->started + rt_seconds(h->opts.max_time) : 0);
    code = prepare(h);
    if (!code)
        code = work(h);
    close_all(h);
    rt_out = report;
    return code;
}

/* Threads that wait for each other spin for milliseconds by libgomp's default; where other
 * programs want the processors too, that makes a step many times slower. A short spin is
 * as fast on a quiet machine. libgomp reads its settings before main(), so the program
 * starts itself again, once; what the user has set stays. */
static void
spin_briefly(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    if (setenv("GOMP_SPINCOUNT", "3000", 1) == 0)
        execv("/proc/self/exe", argv); /* comes back only if it can't */
}

/* A standard stream that is closed becomes /dev/null; else one of our files would get its
 * number, and the report. */
static void
fill_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY); /* predictions must not get lost there */
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int
rt_main(int argc, char **argv, const rt_program *program)
{
    char path[PATH_MAX];
    spin_briefly(argv);
    fill_streams();
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return rt_fail(RT_USER, "/proc is needed to find the trainer's folder");
    path[n] = 0;
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = 0;
    return rt_host_main(argc, argv, program, path);
}
