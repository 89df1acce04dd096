/* loop.c -- the loop over steps.
 *
 * A step: zero gradients; count the supervised tokens of all its micro-batches; each
 * micro-batch adds its part of loss and gradient, scaled by 1/count, so the sums are those
 * of one big batch; then norm, clipping and optimizer in update(). After the step come its
 * row in the log, its evaluation and its checkpoint, if they are due.
 *
 * What one step hands to the next stands in rt_train_state, and nowhere else: a run that
 * goes on from a checkpoint is the run that was never stopped. An evaluation that a stop
 * cut short is made up for when the run goes on.
 */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct loop {
    const rt_job *job;
    rt_run *run;
    rt_train_state *state;
    rt_schedule schedule;
    rt_order order;
    rt_progress progress;
    rt_state shown; /* what the progress line says */
    int64_t *row;   /* of a micro-batch */
    int64_t saved;  /* step of the newest checkpoint; 0: none */
    rt_step now;    /* the step that runs */
    bool outlier_told;
    int overflows_told;
    const char *end; /* the log's word for why the run ended; NULL: it failed */
} loop;

static rt_schedule
schedule_of(const rt_job *job)
{
    return rt_schedule_of(job->opts, job->train->n, job->run->program->batch);
}

/* ---- one step ---- */

/* Row numbers of the micro-batch that begins `at` rows into the step; how many. */
static int64_t
micro_rows(loop *l, int64_t at)
{
    int64_t left = l->now.n - at;
    int64_t n = left < l->schedule.batch ? left : l->schedule.batch;
    return rt_order_rows(&l->order, l->now.epoch, l->now.first + at, n, l->row);
}

/* Of the step; -1: a row could not be read, which was said. */
static int64_t
count_supervised(loop *l)
{
    int64_t n = 0;
    for (int64_t at = 0; at < l->now.n; at += l->schedule.batch) {
        int64_t rows = micro_rows(l, at);
        for (int64_t i = 0; i < rows; i++) {
            int64_t of_row = rt_data_supervised(l->job->train, l->row[i]);
            if (of_row < 0)
                return -1;
            n += of_row;
        }
    }
    return n;
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
        if (param->cls != RT_TRAIN || param->role == RT_LORA_A)
            continue;
        const float *g = rt_param_grad(run, param);
        int64_t k = 0;
        while (k < param->n && g[k] == 0)
            k++;
        if (k < param->n)
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

/* Inputs of the micro-batch that begins `at` rows into the step, in l->row; -1: said why. */
static int64_t
fill(loop *l, int64_t at, int64_t n)
{
    rt_set_keys(l->run, rt_step_key((uint64_t)l->job->opts->seed, l->state->step), at);
    return rt_batch_fill(l->run, l->job->train, l->row, n);
}

/* Forward and backward of all micro-batches. */
static int
micro_batches(loop *l, int64_t supervised, double *loss, int64_t *tokens)
{
    const rt_program *p = l->run->program;
    *loss = 0;
    *tokens = 0;
    rt_zero(l->run->compute, l->run->base[RT_GRAD][0], rt_class_bytes(p, RT_GRAD));
    rt_set_scale(l->run, 1 / (double)supervised);
    for (int64_t at = 0; at < l->now.n; at += l->schedule.batch) {
        int64_t n = fill(l, at, micro_rows(l, at));
        if (n < 0)
            return RT_USER;
        *tokens += n;
        p->micro(l->run);
        *loss += (double)*(float *)(l->run->arena + p->loss_at);
    }
    return RT_OK;
}

/* rt_bad_step.fill: micro-batch m of the step once more. */
static int64_t
fill_again(void *data, int64_t m, const int64_t **row)
{
    loop *l = data;
    int64_t at = m * l->schedule.batch, n = micro_rows(l, at);
    *row = l->row;
    return fill(l, at, n) < 0 ? -1 : n;
}

static int
not_finite(loop *l, const char *what)
{
    rt_train_state *s = l->state;
    rt_bad_step bad = {.step = s->step + 1,
                       .updates = s->updates,
                       .saved = l->saved,
                       .what = what,
                       .micros = (l->now.n + l->schedule.batch - 1) / l->schedule.batch,
                       .fill = fill_again,
                       .loop = l};
    rt_progress_clear(&l->progress);
    int code = rt_nonfinite(l->job, &bad);
    s->skipped += !code;
    l->end = code ? "not finite" : l->end;
    return code;
}

static void
see_norm(loop *l, double norm)
{
    double median = rt_norm_see(l->state, norm);
    if (median == 0 || l->outlier_told)
        return;
    l->outlier_told = true;
    rt_progress_clear(&l->progress);
    rt_say("note",
           "step %lld: gradient norm %.4g, %.0f times the median of the steps before; "
           "more of these are only in the log, as grad_norm_outliers",
           (long long)l->state->step + 1, norm, norm / median);
}

/* Have the gradients overflowed for the loss scale that they are made with? */
static bool
overflowed(const loop *l)
{
    float norm2;
    if (!l->run->program->scaled)
        return false;
    rt_norm2(l->run->compute, &norm2, l->run);
    return !isfinite(norm2);
}

/* The update has changed nothing but the loss scale. */
static void
see_overflow(loop *l)
{
    enum { TOLD = 3 };
    rt_train_state *s = l->state;
    s->skipped++;
    if (++l->overflows_told > TOLD)
        return;
    rt_progress_clear(&l->progress);
    rt_say("note", "step %lld: overflow, loss scale %g, step skipped%s",
           (long long)s->step + 1, s->scale,
           l->overflows_told == TOLD ? "; more of these are only in the log" : "");
}

/* The update itself. *norm: of the gradients. */
static int
apply(loop *l, double *norm)
{
    rt_run *run = l->run;
    rt_train_state *s = l->state;
    double scale = (double)rt_scaler_scale(run);
    run->hyper.step = s->updates + 1;
    run->program->update(run);
    *norm = sqrt((double)*(float *)(run->arena + run->program->norm2_at)) / scale;
    rt_scaler_see(run, s);
    if (isfinite(*norm)) {
        if (!s->updates)
            report_without_gradient(run);
        see_norm(l, *norm);
        s->updates++;
    } else if (run->program->scaled && scale > 1)
        see_overflow(l);
    else
        return not_finite(l, "gradient norm");
    return RT_OK;
}

/* The step's update; without supervised tokens there is none. */
static int
update(loop *l, int64_t supervised)
{
    rt_train_state *s = l->state;
    const rt_opts *o = l->job->opts;
    double loss, norm;
    int64_t tokens;
    int code = micro_batches(l, supervised, &loss, &tokens);
    if (!code && !isfinite(loss) && !overflowed(l))
        return not_finite(l, "loss");
    if (!code && !s->updates && o->save_gradients && !overflowed(l))
        code = rt_gradients_save(l->run, o->save_gradients);
    if (!code)
        code = apply(l, &norm);
    if (code || (!isfinite(norm) && !l->run->program->scaled))
        return code;
    if (isfinite(loss)) {
        s->loss += loss;
        s->nloss++;
    }
    s->tokens += tokens;
    s->supervised += supervised;
    l->shown.loss = loss;
    l->shown.grad_norm = norm;
    return RT_OK;
}

/* The last step may be one to record. */
static int
recorded_update(loop *l, int64_t supervised)
{
    const char *path = l->job->opts->record_step;
    if (!path || l->state->step + 1 < l->schedule.total)
        return update(l, supervised);
    rt_record *r = rt_record_start(l->run, path);
    return r ? rt_record_end(r, l->run, update(l, supervised)) : RT_USER;
}

static int
train_step(loop *l)
{
    rt_train_state *s = l->state;
    double begin = rt_now();
    l->now = rt_schedule_step(&l->schedule, s->step);
    l->shown.step = s->step + 1;
    l->shown.lr = l->run->hyper.lr = rt_schedule_lr(&l->schedule, s->step);
    int64_t supervised = count_supervised(l);
    int code = supervised < 0 ? RT_USER : RT_OK;
    if (supervised > 0)
        code = recorded_update(l, supervised);
    if (!supervised) {
        rt_progress_clear(&l->progress);
        rt_say("note", "step %lld has no supervised token and is skipped",
               (long long)l->shown.step);
    }
    s->step += !code;
    s->seconds += rt_now() - begin;
    return code;
}

/* ---- what is due after a step ---- */

static bool
epoch_ends(const loop *l)
{
    return l->state->step % l->schedule.per_epoch == 0;
}

static bool
evaluation_due(const loop *l)
{
    const rt_opts *o = l->job->opts;
    const rt_train_state *s = l->state;
    if (!l->job->eval || s->evaluated == s->step)
        return false;
    if (s->step == l->schedule.total)
        return true;
    if (!strcmp(o->eval_strategy, "epoch"))
        return epoch_ends(l);
    return !strcmp(o->eval_strategy, "steps") && s->step % o->eval_steps == 0;
}

static bool
done(const loop *l)
{
    return rt_train_done(l->job, l->state);
}

/* The last step has one, too: from it the run can be made longer. */
static bool
checkpoint_due(const loop *l)
{
    const rt_opts *o = l->job->opts;
    if (!strcmp(o->save_strategy, "no"))
        return false;
    if (done(l))
        return true;
    return !strcmp(o->save_strategy, "epoch") ? epoch_ends(l)
                                              : l->state->step % o->save_steps == 0;
}

static void
log_step(loop *l)
{
    rt_train_state *s = l->state;
    double spent = s->seconds - s->logged;
    l->shown.tokens_per_second = spent > 0 ? (double)s->tokens / spent : 0;
    /* what is shown is what is logged */
    l->shown.loss = s->nloss ? s->loss / (double)s->nloss : (double)NAN;
    bool good = s->nnorm > s->nnorm_logged;
    l->shown.grad_norm = good ? s->norm[(s->nnorm - 1) % RT_NORMS] : (double)NAN;
    rt_log_value row[] = {
        RT_LOG_NUMBER("step", (double)s->step),
        RT_LOG_NUMBER("epoch", (double)s->step / (double)l->schedule.per_epoch),
        RT_LOG_NUMBER("loss", l->shown.loss),
        RT_LOG_NUMBER("grad_norm", l->shown.grad_norm),
        RT_LOG_NUMBER("learning_rate", l->shown.lr),
        RT_LOG_NUMBER("supervised_tokens", (double)s->supervised),
        RT_LOG_NUMBER("global_batch_size", (double)l->schedule.global),
        RT_LOG_NUMBER("tokens_per_second", l->shown.tokens_per_second),
        RT_LOG_NUMBER("seconds", s->seconds),
        RT_LOG_NUMBER("grad_norm_outliers", (double)s->outliers),
        RT_LOG_NUMBER("skipped_steps", (double)s->skipped),
        RT_LOG_NUMBER("loss_scale", s->scale),
    };
    bool scaled = l->run->program->scaled;
    int n = (int)(sizeof row / sizeof *row) - !scaled;
    if (!scaled && strcmp(l->job->opts->on_nonfinite, "skip"))
        n--; /* it is always 0 */
    rt_log_row(l->job->log, n, row);
    s->logged = s->seconds;
    s->nnorm_logged = s->nnorm;
    s->loss = 0;
    s->nloss = s->tokens = s->supervised = s->outliers = 0;
}

/* The row of the log, if the step is due, and the progress line. */
static void
show(loop *l)
{
    rt_train_state *s = l->state;
    bool last = s->step == l->schedule.total;
    bool logged = last || s->step % l->job->opts->logging_steps == 0;
    double spent = s->seconds - s->logged;
    if (logged)
        log_step(l);
    else if (spent > 0)
        l->shown.tokens_per_second = (double)s->tokens / spent;
    rt_progress_step(&l->progress, &l->shown, logged);
}

static int
save(loop *l)
{
    const rt_job *job = l->job;
    if (l->saved == l->state->step)
        return RT_OK;
    rt_log_sync(job->log);
    int code = rt_checkpoint_save(job, l->state);
    if (code)
        return code;
    l->saved = l->state->step;
    rt_report_update(job->opts->output_dir, job->program_dir, job->options);
    return RT_OK;
}

/* A stop was asked for: nothing of what was done gets lost. */
static int
stop(loop *l)
{
    const char *why = rt_stop_why();
    rt_progress_clear(&l->progress);
    int code = save(l);
    if (code)
        return code;
    l->end = rt_stop_word();
    rt_say("stopped", "%s: step %lld of %lld is saved; go on with: %s", why,
           (long long)l->state->step, (long long)l->schedule.total, l->job->go_on);
    return RT_STOPPED;
}

/* Evaluation, checkpoint and stop after a step. */
static int
after_step(loop *l)
{
    rt_train_state *s = l->state;
    bool best = false;
    int code = RT_OK;
    if (evaluation_due(l)) {
        rt_log_value row[RT_MAX_METRICS];
        int n;
        rt_progress_clear(&l->progress);
        code = rt_evaluate(l->job, s->step, row, &n);
        if (code == RT_STOPPED)
            return stop(l);
        best = !code && rt_best_see(l->job, s, row);
        s->evaluated = s->step;
    }
    if (!code && (checkpoint_due(l) || (best && l->job->opts->load_best_model_at_end)))
        code = save(l);
    if (!code && !done(l) && rt_stop_asked())
        code = stop(l);
    return code;
}

/* ---- the loop ---- */

static void
set_hyper(rt_run *run, const rt_opts *o)
{
    run->hyper = (rt_hyper){.weight_decay = o->weight_decay,
                            .beta1 = o->adam_beta1,
                            .beta2 = o->adam_beta2,
                            .eps = o->adam_epsilon,
                            .max_norm = o->max_grad_norm,
                            .momentum = o->momentum,
                            .nesterov = o->nesterov,
                            .sgd = !strcmp(o->optim, "sgd"),
                            .decay_all = !strcmp(o->decay_params, "all")};
}

bool
rt_train_done(const rt_job *job, const rt_train_state *s)
{
    return s->step >= schedule_of(job).total || rt_best_stops(job->opts, s);
}

static int
run_steps(loop *l)
{
    /* what a stop kept from being done the last time */
    int code = l->state->step ? after_step(l) : RT_OK;
    while (!code && !done(l)) {
        code = train_step(l);
        if (code)
            break;
        show(l);
        double begin = rt_now();
        code = after_step(l);
        l->progress.start += rt_now() - begin;
    }
    return code;
}

/* The steps that were good, and the one that was not. */
static void
log_not_finite(loop *l)
{
    l->shown.lr = rt_schedule_lr(&l->schedule, l->state->step - 1);
    if (l->state->nloss)
        log_step(l);
    rt_log_value row[] = {RT_LOG_NUMBER("step", (double)l->state->step + 1),
                          RT_LOG_NUMBER("loss", (double)NAN),
                          RT_LOG_NUMBER("grad_norm", (double)NAN)};
    rt_log_row(l->job->log, 3, row);
}

static int
finish(loop *l)
{
    const rt_opts *o = l->job->opts;
    const rt_train_state *s = l->state;
    bool stopped = rt_best_stops(o, s);
    l->end = stopped ? "early stopping" : "done";
    if (stopped)
        rt_say("stopped",
               "early, after step %lld of %lld: %s has not improved in %lld "
               "evaluations",
               (long long)s->step, (long long)l->schedule.total,
               o->metric_for_best_model, (long long)s->worse);
    if (s->best_step)
        rt_say("best", "step %lld: %s %.5g", (long long)s->best_step,
               o->metric_for_best_model, s->best);
    if (!o->load_best_model_at_end || !s->best_step || s->best_step == s->step)
        return RT_OK;
    int code = rt_checkpoint_load_best(l->job, s);
    l->end = code ? NULL : l->end;
    return code;
}

static void
say_steps(const loop *l)
{
    const rt_opts *o = l->job->opts;
    const rt_schedule *s = &l->schedule;
    int64_t micros = (s->global + s->batch - 1) / s->batch, rest = s->global % s->batch;
    char part[64] = "";
    if (rest)
        snprintf(part, sizeof part, ", the last one with %lld", (long long)rest);
    rt_say("steps", "%lld of %lld rows (%lld an epoch): %lld micro-batch%s of %lld%s",
           (long long)s->total, (long long)s->global, (long long)s->per_epoch,
           (long long)micros, micros == 1 ? "" : "es", (long long)s->batch, part);
    rt_say("", "learning rate %g %s, %lld steps of warm-up", o->learning_rate,
           o->lr_scheduler_type, (long long)s->warmup);
}

int
rt_train(const rt_job *job, rt_train_state *state, const char **end)
{
    const rt_opts *o = job->opts;
    loop l = {.job = job, .run = job->run, .state = state};
    l.schedule = schedule_of(job);
    if (rt_input_of(job->run->program, RT_DROP_KEYS) &&
        l.schedule.global > RT_MOST_KEYS)
        return rt_fail(RT_USER,
                       "a step of %lld rows: dropout tells %d apart; give a smaller "
                       "--global-batch-size",
                       (long long)l.schedule.global, RT_MOST_KEYS);
    if (o->record_step && l.schedule.global > l.schedule.batch)
        return rt_fail(RT_USER, "--record-step: a step must be one micro-batch");
    l.order = rt_order_of(job->train, o->shuffle, (uint64_t)o->seed);
    l.row = rt_new((size_t)job->run->program->batch, sizeof *l.row);
    l.shown = (rt_state){.total = l.schedule.total};
    if (rt_checkpoint_is_of(o->output_dir, state->step, state->run))
        l.saved = state->step;
    set_hyper(job->run, o);
    rt_scaler_start(job->run, state);
    say_steps(&l);
    rt_stop_gently();
    rt_progress_start(&l.progress, state->step);
    int code = run_steps(&l);
    rt_progress_clear(&l.progress);
    if (l.end && !strcmp(l.end, "not finite"))
        log_not_finite(&l);
    if (!code)
        code = finish(&l);
    *end = l.end;
    free(l.row);
    return code;
}
