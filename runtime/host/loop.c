/* loop.c -- the loop over steps.
 *
 * Steps are given to the device and ended (step.c); after a step come its row in the log, its
 * evaluation and its checkpoint, if they are due. Where the host does not work itself, it
 * gives the device the next step before it ends one, unless something is due behind that
 * one, which needs the weights as they are then.
 *
 * What one step hands to the next stands in rt_train_state, and nowhere else: a run that
 * goes on from a checkpoint is the run that was never stopped. An evaluation that a stop
 * cut short is made up for when the run goes on.
 */
#include "loop_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static rt_schedule
schedule_of(const rt_job *job)
{
    return rt_schedule_of(job->opts, job->train->n, job->run->program->batch);
}

/* ---- what is due after a step ---- */

/* Behind that many steps. */
static bool
evaluation_due(const rt_loop *l, int64_t steps)
{
    const rt_opts *o = l->job->opts;
    if (!l->job->eval || l->state->evaluated == steps)
        return false;
    if (steps == l->schedule.total)
        return true;
    if (!strcmp(o->eval_strategy, "epoch"))
        return steps % l->schedule.per_epoch == 0;
    return !strcmp(o->eval_strategy, "steps") && steps % o->eval_steps == 0;
}

static bool
done(const rt_loop *l)
{
    return rt_train_done(l->job, l->state);
}

/* The last step has one, too: from it the run can be made longer. */
static bool
checkpoint_due(const rt_loop *l, int64_t steps)
{
    const rt_opts *o = l->job->opts;
    if (!strcmp(o->save_strategy, "no"))
        return false;
    if (steps == l->schedule.total || done(l))
        return true;
    return steps % (!strcmp(o->save_strategy, "epoch") ? l->schedule.per_epoch
                                                       : o->save_steps) ==
           0;
}

/* Must the newest step that is begun be ended before another one begins? */
static bool
must_end(const rt_loop *l)
{
    const rt_opts *o = l->job->opts;
    int64_t steps = l->state->step + l->ahead;
    return rt_unified || !l->state->updates || steps >= l->schedule.total ||
           (o->record_step && steps + 1 == l->schedule.total) || rt_stop_asked() ||
           evaluation_due(l, steps) || checkpoint_due(l, steps);
}

static void
log_step(rt_loop *l)
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
show(rt_loop *l)
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
save(rt_loop *l)
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
stop(rt_loop *l)
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
after_step(rt_loop *l)
{
    rt_train_state *s = l->state;
    bool best = false;
    int code = RT_OK;
    if (evaluation_due(l, s->step)) {
        rt_log_value row[RT_MAX_METRICS];
        int n;
        rt_progress_clear(&l->progress);
        code = rt_evaluate(l->job, s->step, row, &n);
        if (code == RT_STOPPED)
            return stop(l);
        best = !code && rt_best_see(l->job, s, row);
        s->evaluated = s->step;
    }
    if (!code &&
        (checkpoint_due(l, s->step) || (best && l->job->opts->load_best_model_at_end)))
        code = save(l);
    if (!code && !done(l) && rt_stop_asked())
        code = stop(l);
    return code;
}

/* ---- the loop ---- */

void
rt_hyper_set(rt_run *run, const rt_opts *o)
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

/* The oldest that is begun; what is due behind it, unless another one is begun already. */
static int
end_step(rt_loop *l)
{
    int code = rt_step_end(l);
    if (code)
        return code;
    show(l);
    if (l->ahead)
        return RT_OK;
    double begin = rt_now();
    code = after_step(l);
    l->progress.start += rt_now() - begin;
    return code;
}

static int
run_steps(rt_loop *l)
{
    /* what a stop kept from being done the last time */
    int code = l->state->step ? after_step(l) : RT_OK;
    while (!code && !done(l)) {
        int begun = rt_step_begin(l), stay = begun || must_end(l) ? 0 : RT_BEGUN - 1;
        while (!code && l->ahead > stay)
            code = end_step(l);
        code = code ? code : begun;
    }
    return code;
}

/* The steps that were good, and the one that was not. */
static void
log_not_finite(rt_loop *l)
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
finish(rt_loop *l)
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
say_steps(const rt_loop *l)
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
    if (micros > (s->rows + s->batch - 1) / s->batch)
        rt_say("", "an epoch has %lld rows, and a step ends with it: all have fewer",
               (long long)s->rows);
    rt_say("", "learning rate %g %s, %lld steps of warm-up", o->learning_rate,
           o->lr_scheduler_type, (long long)s->warmup);
}

int
rt_train(const rt_job *job, rt_train_state *state, const char **end)
{
    const rt_opts *o = job->opts;
    rt_loop l = {.job = job, .run = job->run, .state = state};
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
    for (int i = 0; i < RT_BEGUN; i++) {
        l.tally[i] = rt_staging(sizeof *l.tally[i]);
        if (!l.tally[i])
            exit(rt_fail(RT_USER, "out of memory"));
    }
    l.shown = (rt_state){.total = l.schedule.total, .memory = job->memory};
    if (rt_checkpoint_is_of(o->output_dir, state->step, state->run))
        l.saved = state->step;
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
    /* what was taken back may still be on its way */
    rt_await(job->run->compute, rt_mark(job->run->compute));
    for (int i = 0; i < RT_BEGUN; i++)
        rt_staging_free(l.tally[i]);
    free(l.row);
    return code;
}
