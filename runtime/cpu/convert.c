/* convert.c -- from one float type to another. */
#include "low_int.h"
#include "rt_cpu_int.h"

void
rt_convert(rt_stream *s, void *y, rt_dtype to, const void *x, rt_dtype from, int64_t n)
{
#pragma omp parallel for schedule(static) num_threads(rt_team(s, n))
    for (int64_t i = 0; i < n; i += VW)
        v_store_as_to(y, i, v_load_as_to(x, i, n - i, from), n - i, to);
}
