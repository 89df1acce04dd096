/* scaler.c -- the loss scaler of a program in fp16, as the host sees it.
 *
 * It belongs to the step and lies in its memory: gradients are its scale times too large; where
 * they overflow the update changes nothing and the scale halves, and many good steps in a
 * row double it (rt_rescale()). The host sets it before the first step and reads it after
 * each. What it reads is part of the state, so a run that goes on has the same scaler.
 */
#include "host_int.h"

static const double first_scale = 65536;

static float *
scaler_of(const rt_run *run)
{
    return run->program->scaled ? (float *)run->base[RT_SCALER][0] : NULL;
}

void
rt_scaler_start(rt_run *run, rt_train_state *s)
{
    float *x = scaler_of(run);
    if (!x)
        return;
    if (!s->step)
        s->scale = first_scale;
    x[RT_SCALE_AT] = (float)s->scale;
    x[RT_GOOD_AT] = (float)s->good;
    x[RT_SKIPPED_AT] = (float)s->overflows;
    x[RT_UPDATES_AT] = (float)s->updates;
}

float
rt_scaler_scale(const rt_run *run)
{
    const float *x = scaler_of(run);
    return x ? x[RT_SCALE_AT] : 1;
}

void
rt_scaler_see(const rt_run *run, rt_train_state *s)
{
    const float *x = scaler_of(run);
    if (!x)
        return;
    s->scale = (double)x[RT_SCALE_AT];
    s->good = (int64_t)x[RT_GOOD_AT];
    s->overflows = (int64_t)x[RT_SKIPPED_AT];
}
