/* step.c -- one optimizer step: given to the device, and what it left.
 *
 * A step: zero gradients; count the supervised tokens of all its micro-batches; each
 * micro-batch adds its part of loss and gradient, scaled by 1/count, so the sums are those
 * of one big batch; then norm, clipping and optimizer in the update. All of this is given to
 * the device without looking at anything; what is there to look at, loss, norm and loss
 * scaler, comes back as an rt_tally, while the next step may have begun. An update whose loss
 * or norm is not finite changes nothing, nor do those behind it, so the step that is found to
 * be bad may be run again as it was.
 */
#include "loop_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static rt_tally *
tally_of(const rt_run *run)
{
    return (rt_tally *)(void *)run->device;
}

/* ---- rows ---- */

/* Row numbers of the micro-batch that begins `at` rows into the step; how many. */
static int64_t
micro_rows(rt_loop *l, int64_t at)
{
    const rt_step *s = &l->now->rows;
    int64_t left = s->n - at;
    int64_t n = left < l->schedule.batch ? left : l->schedule.batch;
    return rt_order_rows(&l->order, s->epoch, s->first + at, n, l->row);
}

/* Of the step; -1: a row could not be read, which was said. */
static int64_t
count_supervised(rt_loop *l)
{
    int64_t n = 0;
    for (int64_t at = 0; at < l->now->rows.n; at += l->schedule.batch) {
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

/* Inputs of the micro-batch that begins `at` rows into the step, in l->row; -1: said why. */
static int64_t
fill(rt_loop *l, int64_t at, int64_t n)
{
    int64_t key = rt_step_key((uint64_t)l->job->opts->seed, l->now->number);
    rt_set_keys(l->run, key, at);
    return rt_batch_fill(l->run, l->job->train, l->row, n);
}

/* ---- given to the device ---- */

/* Forward and backward of all micro-batches. */
static int
micro_batches(rt_loop *l)
{
    rt_run *run = l->run;
    rt_begun *b = l->now;
    int64_t gradients = rt_class_bytes(run->program, RT_GRAD);
    rt_zero(run->compute, run->base[RT_GRAD][0], gradients);
    rt_zero(run->compute, &tally_of(run)->loss, sizeof tally_of(run)->loss);
    rt_set_scale(run, 1 / (double)b->supervised);
    for (int64_t at = 0; at < b->rows.n; at += l->schedule.batch) {
        int64_t n = fill(l, at, micro_rows(l, at));
        if (n < 0)
            return RT_USER;
        b->tokens += n;
        rt_execute(run, RT_MICRO);
    }
    return RT_OK;
}

/* --save-gradients: those of a first update that is going to be good. */
static int
save_gradients(const rt_loop *l)
{
    double loss;
    rt_run *run = l->run;
    rt_download(run->compute, &loss, &tally_of(run)->loss, sizeof loss);
    bool overflow = run->program->scaled && !isfinite(rt_gradient_norm2(run));
    if (!isfinite(loss) || overflow)
        return RT_OK;
    return rt_gradients_save(run, l->job->opts->save_gradients);
}

static int
give(rt_loop *l)
{
    rt_run *run = l->run;
    rt_begun *b = l->now;
    const rt_begun *before = &l->begun[(b->number + 1) % RT_BEGUN];
    rt_tally *tally = l->tally[b->number % RT_BEGUN];
    int code = micro_batches(l);
    if (!code && !l->state->updates && l->job->opts->save_gradients)
        code = save_gradients(l);
    if (code)
        return code;
    run->hyper.lr = b->lr;
    run->hyper.step = l->state->updates + 1;
    if (l->ahead && before->supervised)
        run->hyper.step++; /* if it is not good, this one is not done */
    rt_execute(run, RT_UPDATE);
    rt_fetch(run->compute, tally, run->device, sizeof *tally);
    b->mark = rt_mark(run->compute);
    return RT_OK;
}

/* The last step may be one to record. */
static int
give_recorded(rt_loop *l)
{
    const char *path = l->job->opts->record_step;
    if (!path || l->now->number + 1 < l->schedule.total)
        return give(l);
    l->record = rt_record_start(l->run, path);
    int code = l->record ? give(l) : RT_USER;
    if (code && l->record) {
        rt_record_end(l->record, l->run, code);
        l->record = NULL;
    }
    return code;
}

int
rt_step_begin(rt_loop *l)
{
    int64_t number = l->state->step + l->ahead;
    rt_begun *b = l->now = &l->begun[number % RT_BEGUN];
    if (!l->ahead)
        l->clock = rt_now();
    *b = (rt_begun){.number = number,
                    .rows = rt_schedule_step(&l->schedule, number),
                    .lr = rt_schedule_lr(&l->schedule, number)};
    b->supervised = count_supervised(l);
    int code = b->supervised < 0 ? RT_USER : RT_OK;
    if (b->supervised > 0)
        code = give_recorded(l);
    l->ahead += !code;
    return code;
}

/* ---- what it left ---- */

static bool
all_zero(const rt_run *run, const float *g, int64_t n)
{
    enum { PIECE = 1 << 18 };
    bool zero = true;
    for (int64_t at = 0; at < n && zero; at += PIECE) {
        int64_t k = 0, end = n - at < PIECE ? n - at : PIECE;
        const float *x = rt_look(run, g + at, end * (int64_t)sizeof *x);
        while (k < end && x[k] == 0)
            k++;
        zero = k == end;
        rt_looked(x);
    }
    return zero;
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
        if (!all_zero(run, rt_param_grad(run, param), param->n))
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

static void
see_norm(rt_loop *l, double norm)
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

/* The update has changed nothing but the loss scale. */
static void
see_overflow(rt_loop *l)
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

/* rt_bad_step.fill: micro-batch m of the step once more. */
static int64_t
fill_again(void *data, int64_t m, const int64_t **row)
{
    rt_loop *l = data;
    int64_t at = m * l->schedule.batch, n = micro_rows(l, at);
    *row = l->row;
    return fill(l, at, n) < 0 ? -1 : n;
}

/* Whatever was begun behind this step is taken back; the step itself is run again to see what
 * is wrong. */
static int
halted(rt_loop *l, const char *what)
{
    rt_train_state *s = l->state;
    rt_run *run = l->run;
    rt_bad_step bad = {.step = s->step + 1,
                       .updates = s->updates,
                       .saved = l->saved,
                       .what = what,
                       .micros =
                           (l->now->rows.n + l->schedule.batch - 1) / l->schedule.batch,
                       .fill = fill_again,
                       .loop = l};
    l->ahead = 1;
    run->hyper.lr = l->now->lr;
    rt_set_scale(run, 1 / (double)l->now->supervised);
    rt_scaler_put(run, s);
    rt_zero(run->compute, &tally_of(run)->halted, sizeof tally_of(run)->halted);
    rt_progress_clear(&l->progress);
    int code = rt_nonfinite(l->job, &bad);
    s->skipped += !code;
    l->end = code ? "not finite" : l->end;
    return code;
}

/* Into the state and what is shown. */
static int
take(rt_loop *l, const rt_tally *t)
{
    rt_train_state *s = l->state;
    bool scaled = l->run->program->scaled;
    double norm = sqrt((double)t->norm2) / (scaled ? s->scale : 1);
    bool loss = !isfinite(t->loss) && !(scaled && !isfinite(norm));
    int code = RT_OK;
    if (t->halted && loss)
        return halted(l, "loss");
    rt_scaler_see(l->run, t, s);
    if (t->halted)
        code = halted(l, "gradient norm");
    if (code || (t->halted && !scaled))
        return code;
    if (isfinite(norm)) {
        if (!s->updates)
            report_without_gradient(l->run);
        see_norm(l, norm);
        s->updates++;
    } else if (!t->halted)
        see_overflow(l);
    if (isfinite(t->loss)) {
        s->loss += t->loss;
        s->nloss++;
    }
    s->tokens += l->now->tokens;
    s->supervised += l->now->supervised;
    l->shown.loss = t->loss;
    l->shown.grad_norm = norm;
    return RT_OK;
}

int
rt_step_end(rt_loop *l)
{
    rt_train_state *s = l->state;
    rt_begun *b = l->now = &l->begun[s->step % RT_BEGUN];
    int code = RT_OK;
    l->shown.step = b->number + 1;
    l->shown.lr = b->lr;
    if (b->supervised) {
        rt_await(l->run->compute, b->mark);
        code = take(l, l->tally[b->number % RT_BEGUN]);
    } else {
        rt_progress_clear(&l->progress);
        rt_say("note", "step %lld has no supervised token and is skipped",
               (long long)l->shown.step);
    }
    if (l->record)
        code = rt_record_end(l->record, l->run, code);
    l->record = NULL;
    l->ahead--;
    s->step += !code;
    double now = rt_now();
    s->seconds += now - l->clock;
    l->clock = now;
    return code;
}
