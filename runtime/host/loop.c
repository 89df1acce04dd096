/* loop.c -- the loop over steps, and evaluation.
 *
 * A step: zero gradients; count the supervised tokens of all its micro-batches; each
 * micro-batch adds its part of loss and gradient, scaled by 1/count, so the sums are those
 * of one big batch; then norm, clipping and optimizer in update(). Loss and norm that are
 * not finite end the run: nothing that comes after would be worth its time.
 */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct loop {
    const rt_job *job;
    rt_run *run;
    rt_schedule schedule;
    rt_order order;
    rt_progress progress;
    int64_t *row;    /* of a micro-batch */
    int64_t updates; /* steps that were not skipped */
    double paused;   /* seconds spent on evaluation */
    /* since the last row of the log */
    double loss, since;
    int64_t nloss, tokens, supervised;
} loop;

/* ---- evaluation ---- */

/* Sums over all rows of d. */
static void
run_eval(rt_run *run, rt_data *d, double *loss, int64_t *right)
{
    const rt_program *p = run->program;
    rt_order order = {.n = d->n};
    int64_t *row = rt_new((size_t)p->batch, sizeof *row);
    *loss = 0;
    *right = 0;
    rt_set_scale(run, 1);
    for (int64_t m = 0; m * p->batch < d->n; m++) {
        rt_batch_fill(run, d, row,
                      rt_order_rows(&order, 0, m * p->batch, p->batch, row));
        p->eval(run);
        *loss += *(float *)(run->arena + p->eval_loss_at);
        *right += *(int64_t *)(run->arena + p->eval_right_at);
    }
    free(row);
}

void
rt_evaluate(const rt_job *job, int64_t step)
{
    double loss;
    int64_t right, supervised = job->eval->supervised;
    run_eval(job->run, job->eval, &loss, &right);
    loss /= (double)supervised;
    double accuracy = (double)right / (double)supervised;
    rt_log_value row[] = {
        {"step", (double)step, NULL},
        {"eval_loss", loss, NULL},
        {"eval_accuracy", accuracy, NULL}};
    rt_log_row(job->log, 3, row);
    char perplexity[64] = "";
    if (!job->run->program->labels)
        snprintf(perplexity, sizeof perplexity, ", perplexity %.5g", exp(loss));
    rt_say("eval", "step %lld: loss %.5g, accuracy %.4f of %lld%s", (long long)step,
           loss, accuracy, (long long)supervised, perplexity);
}

/* The time that it takes counts neither for the speed of training nor for what is left. */
static void
evaluate(loop *l, int64_t step)
{
    double t = rt_now();
    rt_progress_clear(&l->progress);
    rt_evaluate(l->job, step);
    l->paused += rt_now() - t;
    l->progress.start += rt_now() - t;
}

/* ---- one step ---- */

/* Row numbers of the micro-batch that begins `at` rows into a step; how many. */
static int64_t
micro_rows(loop *l, rt_step s, int64_t at)
{
    int64_t left = s.n - at, n = left < l->schedule.batch ? left : l->schedule.batch;
    return rt_order_rows(&l->order, s.epoch, s.first + at, n, l->row);
}

static int64_t
count_supervised(loop *l, rt_step s)
{
    int64_t n = 0;
    for (int64_t at = 0; at < s.n; at += l->schedule.batch) {
        int64_t rows = micro_rows(l, s, at);
        for (int64_t i = 0; i < rows; i++)
            n += rt_data_supervised(l->job->train, l->row[i]);
    }
    return n;
}

static bool
all_zero(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0)
            return false;
    return true;
}

/* The name of the first param whose gradient is not finite, or NULL; free it. */
static char *
first_not_finite(const rt_run *run)
{
    const rt_program *p = run->program;
    bool torch;
    for (int i = 0; i < p->nparam; i++) {
        const float *g = rt_param_grad(run, &p->param[i]);
        for (int64_t k = 0; p->param[i].cls == RT_TRAIN && k < p->param[i].n; k++)
            if (!isfinite(g[k]))
                return rt_public_name(&p->param[i], &torch);
    }
    return NULL;
}

static int
not_finite(loop *l, int64_t step, const char *what)
{
    char *name = first_not_finite(l->run);
    rt_progress_clear(&l->progress);
    int code =
        rt_fail(RT_USER,
                "step %lld: the %s is not finite (learning rate %.3g)\nfirst gradient "
                "that is not finite: %s\nnothing was saved; lower --learning-rate, "
                "warm up, or clip with --max-grad-norm",
                (long long)step, what, l->run->hyper.lr, name ? name : "none");
    free(name);
    return code;
}

/* After the first step: params that nothing reached, which a user would want to know. An A
 * whose B starts at zero has none yet, and rows of tables count as reached. */
static void
report_without_gradient(const rt_run *run)
{
    const rt_program *p = run->program;
    rt_text t = {0};
    int n = 0;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *param = &p->param[i];
        if (param->cls != RT_TRAIN || param->role == RT_LORA_A ||
            !all_zero(rt_param_grad(run, param), param->n))
            continue;
        bool torch;
        char *name = rt_public_name(param, &torch);
        if (++n <= 3)
            rt_putf(&t, "%s%s", n > 1 ? ", " : "", name);
        free(name);
    }
    if (n)
        rt_warn("%d trained tensors got no gradient in step 1: %s%s", n, t.s,
                n > 3 ? ", .." : "");
    free(t.s);
}

/* Forward and backward of all micro-batches; the loss of the step. */
static double
micro_batches(loop *l, rt_step s, int64_t supervised)
{
    const rt_program *p = l->run->program;
    double loss = 0;
    rt_zero(l->run->compute, l->run->base[RT_GRAD][0], rt_class_bytes(p, RT_GRAD));
    rt_set_scale(l->run, 1 / (double)supervised);
    for (int64_t at = 0; at < s.n; at += l->schedule.batch) {
        int64_t rows = micro_rows(l, s, at);
        l->tokens += rt_batch_fill(l->run, l->job->train, l->row, rows);
        p->micro(l->run);
        loss += *(float *)(l->run->arena + p->loss_at);
    }
    return loss;
}

static int
train_step(loop *l, int64_t step, rt_state *state)
{
    const rt_opts *o = l->job->opts;
    const rt_program *p = l->run->program;
    rt_step s = rt_schedule_step(&l->schedule, step);
    int64_t supervised = count_supervised(l, s);
    state->step = step + 1;
    state->lr = l->run->hyper.lr = rt_schedule_lr(&l->schedule, step);
    if (!supervised) {
        rt_progress_clear(&l->progress);
        rt_say("note", "step %lld has no supervised token and is skipped",
               (long long)state->step);
        return RT_OK;
    }
    state->loss = micro_batches(l, s, supervised);
    state->grad_norm = NAN;
    l->loss += state->loss;
    l->nloss++;
    l->supervised += supervised;
    if (!isfinite(state->loss))
        return not_finite(l, state->step, "loss");
    int code = RT_OK;
    if (!l->updates && o->save_gradients)
        code = rt_gradients_save(l->run, o->save_gradients);
    if (!l->updates)
        report_without_gradient(l->run);
    l->run->hyper.step = ++l->updates;
    p->update(l->run);
    state->grad_norm = sqrt(*(float *)(l->run->arena + p->norm2_at));
    if (!isfinite(state->grad_norm))
        return not_finite(l, state->step, "gradient norm");
    return code;
}

static void
log_step(loop *l, rt_state *state)
{
    double now = rt_now() - l->paused, spent = now - l->since;
    state->tokens_per_second = spent > 0 ? (double)l->tokens / spent : 0;
    rt_log_value row[] = {
        {"step", (double)state->step, NULL},
        {"loss", l->nloss ? l->loss / (double)l->nloss : NAN, NULL},
        {"grad_norm", l->nloss ? state->grad_norm : NAN, NULL},
        {"learning_rate", state->lr, NULL},
        {"supervised_tokens", (double)l->supervised, NULL},
        {"tokens_per_second", state->tokens_per_second, NULL},
        {"seconds", now - l->job->started, NULL},
    };
    rt_log_row(l->job->log, (int)(sizeof row / sizeof *row), row);
    state->loss = row[1].value; /* what is shown is what was logged */
    l->since = now;
    l->loss = 0;
    l->nloss = l->tokens = l->supervised = 0;
}

static void
set_hyper(rt_run *run, const rt_opts *o)
{
    run->hyper = (rt_hyper){.weight_decay = o->weight_decay,
                            .beta1 = o->adam_beta1,
                            .beta2 = o->adam_beta2,
                            .eps = o->adam_epsilon,
                            .max_norm = o->max_grad_norm,
                            .sgd = !strcmp(o->optim, "sgd"),
                            .decay_all = !strcmp(o->decay_params, "all")};
}

static int
run_steps(loop *l)
{
    const rt_opts *o = l->job->opts;
    rt_state state = {.total = l->schedule.total};
    int code = RT_OK;
    for (int64_t step = 0; step < state.total && !code; step++) {
        code = train_step(l, step, &state);
        bool last = state.step == state.total;
        bool logged = code || last || state.step % o->logging_steps == 0;
        double spent = rt_now() - l->paused - l->since;
        if (logged)
            log_step(l, &state);
        else if (spent > 0)
            state.tokens_per_second = (double)l->tokens / spent;
        if (!code)
            rt_progress_step(&l->progress, &state, logged);
        bool due = o->eval_steps && state.step % o->eval_steps == 0;
        if (!code && l->job->eval && (last || due))
            evaluate(l, state.step);
    }
    return code;
}

int
rt_train(const rt_job *job)
{
    const rt_opts *o = job->opts;
    const rt_program *p = job->run->program;
    loop l = {.job = job, .run = job->run};
    l.schedule = rt_schedule_of(o, job->train->n, p->batch);
    l.order = rt_order_of(job->train, o->shuffle, (uint64_t)o->seed);
    l.row = rt_new((size_t)p->batch, sizeof *l.row);
    set_hyper(job->run, o);
    rt_say("steps",
           "%lld of %lld x %lld rows (%lld an epoch), learning rate %g %s, %lld "
           "steps of warm-up",
           (long long)l.schedule.total, (long long)o->gradient_accumulation_steps,
           (long long)p->batch, (long long)l.schedule.per_epoch, o->learning_rate,
           o->lr_scheduler_type, (long long)l.schedule.warmup);
    rt_progress_start(&l.progress, 0);
    l.since = rt_now();
    int code = run_steps(&l);
    rt_progress_clear(&l.progress);
    free(l.row);
    return code;
}
