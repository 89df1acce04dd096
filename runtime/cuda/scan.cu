/* scan.cu -- what floats and elements of low types hold, for the search of the first op that
 * went wrong. Counts, places and sizes come together by atomics on integers, of which the
 * order is no matter: floats that are not negative are ordered as their bits are. They lie where
 * sums between two kernels do, so that this works when the device is full.
 */
#include "pack_int.h"

#include <string.h>

typedef unsigned long long count;

typedef struct found {
    count nans, infs, nan_at, inf_at; /* at: how far from n the first is; 0: none */
    unsigned largest;                 /* bits */
} found;
static_assert(sizeof(found) <= RTC_LOSS_GROUPS * sizeof(double), "room among the sums");

template <class T>
static __global__ void
scan_floats(found *f, const T *x, int64_t n)
{
    found mine = {};
    for (int64_t i = rtc_unit(); i < n; i += rtc_unit_step()) {
        float v = fabsf(rtc_float(x[i]));
        count left = (count)(n - i);
        if (v != v) {
            mine.nans++;
            mine.nan_at = mine.nan_at > left ? mine.nan_at : left;
        } else if (v == INFINITY) {
            mine.infs++;
            mine.inf_at = mine.inf_at > left ? mine.inf_at : left;
        } else {
            unsigned bits = __float_as_uint(v);
            mine.largest = bits > mine.largest ? bits : mine.largest;
        }
    }
    if (mine.nans) {
        atomicAdd(&f->nans, mine.nans);
        atomicMax(&f->nan_at, mine.nan_at);
    }
    if (mine.infs) {
        atomicAdd(&f->infs, mine.infs);
        atomicMax(&f->inf_at, mine.inf_at);
    }
    atomicMax(&f->largest, mine.largest);
}

rt_scan
rt_scan_floats(rt_stream *s, const void *x, rt_dtype type, int64_t n)
{
    enum { MOST_BLOCKS = 1024 };
    rt_scan r = {0, 0, -1, -1, 0};
    found *device = (found *)s->partial, f;
    if (!n)
        return r;
    RT_CUDA(cudaMemsetAsync(device, 0, sizeof *device, s->stream));
    rtc_grid g = rtc_rows_of(1, n);
    g.grid.x = (unsigned)rtc_min(g.grid.x, MOST_BLOCKS);
    RTC_BY_TYPE(type, T,
                RT_LAUNCH(scan_floats<T>, g.grid, g.block, 0, s->stream, device,
                          (const T *)x, n));
    RT_CUDA(cudaMemcpyAsync(&f, device, sizeof f, cudaMemcpyDeviceToHost, s->stream));
    RT_CUDA(cudaStreamSynchronize(s->stream));
    r.nans = (int64_t)f.nans;
    r.infs = (int64_t)f.infs;
    r.nan_at = f.nans ? n - (int64_t)f.nan_at : -1;
    r.inf_at = f.infs ? n - (int64_t)f.inf_at : -1;
    memcpy(&r.largest, &f.largest, sizeof f.largest);
    return r;
}
