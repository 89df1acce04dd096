/* host_saved.h -- a toy run that can be saved and gone on from, for the tests of checkpoints.
 *
 * No step is trained: weights and optimizer state are numbers drawn from a seed.
 */
#ifndef EFFICC_HOST_SAVED_H
#define EFFICC_HOST_SAVED_H

#include "host_toy.h"

#include "runtime/host/checkpoint_int.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>

typedef struct bench {
    rt_program program;
    rt_run run;
    rt_opts opts;
    rt_data data;
    rt_job job;
    rt_text options;
    char words[512]; /* that opts points into */
} bench;

static inline const char *
bench_data(void)
{
    return toy_write("rows.jsonl", "{\"input_ids\": [1, 2], \"labels\": 0}\n"
                                   "{\"input_ids\": [3], \"labels\": 1}\n"
                                   "{\"input_ids\": [4, 5, 6], \"labels\": 2}\n"
                                   "{\"input_ids\": [7, 1], \"labels\": 1}\n");
}

/* A run of this program in the folder, with the options; weights and states are zero. */
static inline void
bench_open_program(bench *b, const rt_program *program, const char *dir,
                   const char *options)
{
    *b = (bench){.program = *program};
    char *argv[64] = {"t", "--train-data", (char *)bench_data(), "--output-dir",
                      (char *)dir};
    int n = 5;
    snprintf(b->words, sizeof b->words, "%s", options);
    for (char *w = strtok(b->words, " "); w; w = strtok(NULL, " "))
        argv[n++] = w;
    if (rt_args(n, argv, &b->program, &b->opts) != -1)
        abort();
    bool sgd = !strcmp(b->opts.optim, "sgd");
    unsigned classes = 1 << RT_TRAIN | 1 << RT_GRAD | 1 << RT_FROZEN;
    classes |= sgd && b->opts.momentum == 0 ? 0 : 1 << RT_STATE_M;
    classes |= sgd ? 0 : 1 << RT_STATE_V;
    b->run.program = &b->program;
    FILE *report = rt_out;
    rt_out = fopen("/dev/null", "w");
    rt_data_spec spec = rt_data_spec_of(&b->program, RT_TRAINING);
    if (rt_data_open(&b->data, &b->opts.train_data, &spec) ||
        rt_weights_new(&b->run, classes))
        abort();
    fclose(rt_out);
    rt_out = report;
    rt_opts_json(&b->opts, &b->options);
    b->job = (rt_job){.run = &b->run,
                      .opts = &b->opts,
                      .train = &b->data,
                      .options = b->options.s,
                      .go_on = "t --resume-from-checkpoint",
                      .frozen = rt_frozen_hash(&b->run)};
}

static inline void
bench_open(bench *b, const char *dir, const char *options)
{
    rt_program p = toy_program();
    bench_open_program(b, &p, dir, options);
}

static inline void
bench_close(bench *b)
{
    rt_weights_free(&b->run);
    rt_data_close(&b->data);
    rt_opts_free(&b->opts);
    free(b->options.s);
}

/* Element i of a tensor of class c, as the seed has it. */
static inline float
bench_number(int seed, int param, int c, int64_t i)
{
    uint64_t x = (uint64_t)(seed * 1000003 + param * 8191 + c * 131) + (uint64_t)i;
    return (float)(rt_permute(x % (1 << 20), 1 << 20, 7) / 3e5 - 1.5);
}

static inline void
bench_fill(bench *b, int seed)
{
    for (int p = 0; p < b->program.nparam; p++)
        for (int c = 0; c < RT_NCLASSES; c++) {
            const rt_param *param = &b->program.param[p];
            float *x = param->cls == RT_TRAIN && c != RT_GRAD
                           ? rt_param_state(&b->run, param, (rt_class)c)
                           : NULL;
            for (int64_t i = 0; x && i < param->n; i++)
                x[i] = bench_number(seed, p, c, i);
        }
}

/* Does class c hold the seed's numbers? */
static inline bool
bench_holds(const bench *b, int seed, rt_class c)
{
    for (int p = 0; p < b->program.nparam; p++) {
        const rt_param *param = &b->program.param[p];
        const float *x =
            param->cls == RT_TRAIN ? rt_param_state(&b->run, param, c) : NULL;
        for (int64_t i = 0; x && i < param->n; i++)
            if (x[i] != bench_number(seed, p, c, i))
                return false;
    }
    return true;
}

static inline rt_train_state
bench_state(int64_t step)
{
    return (rt_train_state){.run = 7,
                            .step = step,
                            .updates = step,
                            .loss = 0.1,
                            .best = 0x1.8p-3,
                            .norm = {1, 2}};
}

/* Saves a checkpoint of the step whose tensors are those of seed = step. */
static inline int
bench_save(bench *b, int64_t step)
{
    rt_train_state s = bench_state(step);
    bench_fill(b, (int)step);
    return rt_checkpoint_save(&b->job, &s);
}

/* A fresh folder; steps: checkpoints in it, 0 at the end. */
static inline const char *
bench_folder(const char *name, const char *options, const int *steps)
{
    static char dir[16][256];
    static int turn;
    char *d = dir[turn++ % 16];
    snprintf(d, sizeof dir[0], "%s", toy_path(name));
    if (mkdir(d, 0777))
        abort();
    bench b;
    bench_open(&b, d, options);
    for (; *steps; steps++)
        if (bench_save(&b, *steps))
            abort();
    bench_close(&b);
    return d;
}

/* Resumes in dir with these options; what was said is in toy_said. Returns the step, or
 * -1 - code. The tensors of the step must be those that were saved. */
static inline int64_t
bench_resume(const char *dir, const char *options)
{
    bench b;
    rt_train_state s;
    bench_open(&b, dir, options);
    toy_listen();
    int code = rt_checkpoint_resume(&b.job, &s);
    toy_heard();
    if (!code && s.step)
        CHECK(bench_holds(&b, (int)s.step, RT_TRAIN) &&
              bench_holds(&b, (int)s.step, RT_STATE_M) &&
              bench_holds(&b, (int)s.step, RT_STATE_V));
    bench_close(&b);
    return code ? -1 - code : s.step;
}

/* printf into one of 16 static buffers in turn. */
__attribute__((format(printf, 1, 2))) static inline const char *
bench_path(const char *fmt, ...)
{
    static char path[16][512];
    static int turn;
    char *p = path[turn++ % 16];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p, sizeof path[0], fmt, ap);
    va_end(ap);
    return p;
}

static inline bool
there(const char *dir, const char *name)
{
    struct stat s;
    return !lstat(bench_path("%s/%s", dir, name), &s);
}

#endif
