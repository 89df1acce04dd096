/* comm.c -- collectives of one rank: its part of a buffer is the whole of it. */
#include "rt_cpu_int.h"

void
rt_all_gather(rt_stream *s, rt_future *f, void *buf, int64_t bytes)
{
    (void)s;
    (void)buf;
    (void)bytes;
    f->pending = true;
}

void
rt_reduce_scatter(rt_stream *s, rt_future *f, float *buf, int64_t n)
{
    (void)s;
    (void)buf;
    (void)n;
    f->pending = true;
}

void
rt_wait(rt_stream *s, rt_future *f)
{
    (void)s;
    f->pending = false;
}
