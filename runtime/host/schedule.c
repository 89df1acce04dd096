/* schedule.c -- how many steps there are, what each reads and its learning rate.
 *
 * As the Hugging Face Trainer counts: the last rows of an epoch make a step even if they are
 * fewer than a global batch; a warm-up of W steps gives step s
 * (from 0) the factor s/W, so the first step of a warm-up moves nothing.
 */
#include "host_int.h"

#include <math.h>
#include <string.h>

rt_schedule
rt_schedule_of(const rt_opts *o, int64_t rows, int64_t batch)
{
    rt_schedule s = {.rows = rows,
                     .batch = batch,
                     .global = o->global_batch_size
                                   ? o->global_batch_size
                                   : o->gradient_accumulation_steps * batch,
                     .lr = o->learning_rate,
                     .kind = RT_CONSTANT};
    s.per_epoch = (rows + s.global - 1) / s.global;
    s.total =
        o->max_steps > 0
            ? o->max_steps
            : (int64_t)fmin(ceil(o->num_train_epochs * (double)s.per_epoch), 1e15);
    double warmup = o->warmup_steps ? o->warmup_steps : o->warmup_ratio;
    bool share = warmup < 1 || !o->warmup_steps;
    s.warmup = (int64_t)ceil(share ? warmup * (double)s.total : warmup);
    if (!strcmp(o->lr_scheduler_type, "linear"))
        s.kind = RT_LINEAR;
    if (!strcmp(o->lr_scheduler_type, "cosine"))
        s.kind = RT_COSINE;
    return s;
}

double
rt_schedule_lr(const rt_schedule *s, int64_t step)
{
    if (step < s->warmup)
        return s->lr * (double)step / (double)s->warmup;
    double rest = s->total > s->warmup ? (double)(s->total - s->warmup) : 1;
    double done = (double)(step - s->warmup) / rest;
    if (s->kind == RT_LINEAR)
        return s->lr * fmax(0, 1 - done);
    if (s->kind == RT_COSINE)
        return s->lr * fmax(0, 0.5 * (1 + cos(3.141592653589793 * done)));
    return s->lr;
}

rt_step
rt_schedule_step(const rt_schedule *s, int64_t step)
{
    rt_step r = {.epoch = step / s->per_epoch};
    r.first = step % s->per_epoch * s->global;
    r.n = s->rows - r.first < s->global ? s->rows - r.first : s->global;
    return r;
}
