/* scaler.c -- the loss scaler of a program in fp16, as the host sees it.
 *
 * It belongs to the step and lies in its memory: gradients are its scale times too large; where
 * they overflow the update changes nothing and the scale halves, and many good steps in a
 * row double it (rt_rescale()). The host sets it before the first step and reads what each
 * leaves of it. What it reads is part of the state, so a run that goes on has the same scaler.
 */
#include "host_int.h"

static const double first_scale = 65536;

void
rt_scaler_put(const rt_run *run, const rt_train_state *s)
{
    float x[RT_SCALER_FLOATS] = {[RT_SCALE_AT] = (float)s->scale,
                                 [RT_GOOD_AT] = (float)s->good,
                                 [RT_SKIPPED_AT] = (float)s->overflows,
                                 [RT_UPDATES_AT] = (float)s->updates};
    if (run->program->scaled)
        rt_upload(run->compute, run->base[RT_SCALER][0], x, sizeof x);
}

void
rt_scaler_start(const rt_run *run, rt_train_state *s)
{
    if (run->program->scaled && !s->step)
        s->scale = first_scale;
    rt_scaler_put(run, s);
}

float
rt_scaler_scale(const rt_run *run)
{
    float x[RT_SCALER_FLOATS] = {[RT_SCALE_AT] = 1};
    if (run->program->scaled)
        rt_download(run->compute, x, run->base[RT_SCALER][0], sizeof x);
    return x[RT_SCALE_AT];
}

void
rt_scaler_see(const rt_run *run, const rt_tally *t, rt_train_state *s)
{
    if (!run->program->scaled)
        return;
    s->scale = (double)t->scaler[RT_SCALE_AT];
    s->good = (int64_t)t->scaler[RT_GOOD_AT];
    s->overflows = (int64_t)t->scaler[RT_SKIPPED_AT];
}
