/* execute.c -- what the host part asks of a device, where the device is the processor itself:
 * calls run at once, copies are copies, and every mark is reached.
 */
#include "rt_cpu_int.h"

#include <math.h>
#include <stdlib.h>

const bool rt_unified = true;

int64_t
rt_device_bytes(const rt_program *p)
{
    (void)p;
    return rt_round_up(sizeof(rt_tally), RT_ALIGN);
}

bool
rt_prepare(rt_run *run, char *error, size_t n)
{
    (void)run, (void)error, (void)n;
    return true;
}

void
rt_device_text(const rt_stream *s, char *text, size_t n)
{
    (void)s;
    if (n)
        *text = 0;
}

static void
tally_update(const rt_run *run, rt_tally *t)
{
    const rt_program *p = run->program;
    bool answer = p->scaled && t->scaler[RT_SCALE_AT] > 1; /* as it was before */
    if (p->scaled)
        memcpy(t->scaler, run->base[RT_SCALER][0], sizeof t->scaler);
    if (p->norm2_at >= 0)
        t->norm2 = *(const float *)(run->arena + p->norm2_at);
    if (isfinite(t->norm2) ? !isfinite(t->loss) : !answer)
        t->halted = 1;
}

void
rt_execute(rt_run *run, rt_part part)
{
    const rt_program *p = run->program;
    rt_tally *t = (rt_tally *)run->device;
    if (part == RT_EVAL)
        p->eval(run);
    if (part == RT_MICRO) {
        p->micro(run);
        t->loss += (double)*(const float *)(run->arena + p->loss_at);
    }
    if (part == RT_UPDATE) {
        if (p->scaled)
            memcpy(t->scaler, run->base[RT_SCALER][0], sizeof t->scaler);
        p->update(run);
        tally_update(run, t);
    }
}

int64_t
rt_free_bytes(void)
{
    return 0;
}

void *
rt_staging(size_t bytes)
{
    return calloc(bytes + !bytes, 1);
}

void
rt_staging_free(void *staging)
{
    free(staging);
}

static void
copy(void *to, const void *from, int64_t bytes)
{
    if (to != from)
        memcpy(to, from, (size_t)bytes);
}

void
rt_upload(rt_stream *s, void *device, const void *host, int64_t bytes)
{
    (void)s;
    copy(device, host, bytes);
}

void
rt_fetch(rt_stream *s, void *staging, const void *device, int64_t bytes)
{
    (void)s;
    copy(staging, device, bytes);
}

void
rt_download(rt_stream *s, void *host, const void *device, int64_t bytes)
{
    (void)s;
    copy(host, device, bytes);
}

int64_t
rt_mark(rt_stream *s)
{
    return ++s->marks;
}

void
rt_await(rt_stream *s, int64_t mark)
{
    (void)s, (void)mark;
}
