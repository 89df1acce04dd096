/* scan.c -- what floats and elements of low types hold, for the search of the first op that
 * went wrong. One thread: it runs after a failure only.
 */
#include "low_int.h"
#include "rt_cpu_int.h"

#include <math.h>

rt_scan
rt_scan_floats(rt_stream *s, const void *in, rt_dtype type, int64_t n)
{
    rt_scan r = {.nan_at = -1, .inf_at = -1};
    (void)s;
    for (int64_t i = 0; i < n; i++) {
        float x = v_load_as_n(in, i, 1, type)[0];
        if (isfinite(x)) {
            r.largest = fmaxf(r.largest, fabsf(x));
            continue;
        }
        bool nan = isnan(x);
        int64_t *first = nan ? &r.nan_at : &r.inf_at;
        *(nan ? &r.nans : &r.infs) += 1;
        *first = *first < 0 ? i : *first;
    }
    return r;
}
