/* scan.c -- what floats hold, for the search of the first op that went wrong. One thread: it
 * runs after a failure only.
 */
#include "rt_cpu_int.h"

#include <math.h>

rt_scan
rt_scan_floats(rt_stream *s, const void *in, rt_dtype type, int64_t n)
{
    rt_scan r = {.nan_at = -1, .inf_at = -1};
    const float *x = in;
    (void)s, (void)type;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i])) {
            r.largest = fmaxf(r.largest, fabsf(x[i]));
            continue;
        }
        bool nan = isnan(x[i]);
        int64_t *first = nan ? &r.nan_at : &r.inf_at;
        *(nan ? &r.nans : &r.infs) += 1;
        *first = *first < 0 ? i : *first;
    }
    return r;
}
