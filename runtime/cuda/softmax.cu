/* softmax.cu -- softmax over the rows of [rows, cols], the row's maximum subtracted, and its
 * gradient. A row is a warp's, a long one a block's; what is read again comes from the caches.
 */
#include "pack_int.h"

enum { WARP_ROW = 1024, BLOCK_ROW = 1 << 13, MOST_THREADS = 1024 };

/* Of all threads that have the row. */
static __device__ __forceinline__ float
row_sum(float x, float *shared)
{
    return blockDim.x == RTC_WARP ? rtc_warp_sum(x) : rtc_block_sum(x, shared);
}

static __device__ __forceinline__ float
row_max(float x, float *shared)
{
    return blockDim.x == RTC_WARP ? rtc_warp_max(x) : rtc_block_max(x, shared);
}

/* units: packs of N columns. */
template <int N>
static __global__ void
__launch_bounds__(MOST_THREADS)
    softmax_rows(float *y, const float *x, int64_t rows, int64_t units)
{
    typedef rtc_pack<float, N> pack;
    __shared__ float shared[RTC_WARP];
    int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= rows)
        return;
    const pack *from = (const pack *)x + r * units;
    pack *to = (pack *)y + r * units;
    float max = -INFINITY, sum = 0;
    for (int64_t u = threadIdx.x; u < units; u += blockDim.x) {
        pack v = from[u];
        for (int k = 0; k < N; k++)
            max = fmaxf(max, v.at[k]);
    }
    max = row_max(max, shared);
    for (int64_t u = threadIdx.x; u < units; u += blockDim.x) {
        pack v = from[u];
        for (int k = 0; k < N; k++)
            sum += v.at[k] = expf(v.at[k] - max);
        to[u] = v;
    }
    float by = 1 / row_sum(sum, shared);
    for (int64_t u = threadIdx.x; u < units; u += blockDim.x) {
        pack v = to[u];
        for (int k = 0; k < N; k++)
            v.at[k] *= by;
        to[u] = v;
    }
}

template <int N>
static __global__ void
__launch_bounds__(MOST_THREADS)
    softmax_grad_rows(float *dx, const float *dy, const float *y, int64_t rows,
                      int64_t units)
{
    typedef rtc_pack<float, N> pack;
    __shared__ float shared[RTC_WARP];
    int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= rows)
        return;
    const pack *d = (const pack *)dy + r * units, *p = (const pack *)y + r * units;
    float sum = 0, any = 0;
    for (int64_t u = threadIdx.x; u < units; u += blockDim.x) {
        pack a = d[u], b = p[u];
        for (int k = 0; k < N; k++) {
            sum = fmaf(a.at[k], b.at[k], sum);
            any = a.at[k] != 0 ? 1 : any;
        }
    }
    sum = row_sum(sum, shared);
    /* without dy there is no gradient, though y is NaN in a row of -inf only */
    bool none = row_max(any, shared) == 0;
    for (int64_t u = threadIdx.x; u < units; u += blockDim.x) {
        pack a = d[u], b = p[u];
        for (int k = 0; k < N; k++)
            a.at[k] = none ? 0 : (a.at[k] - sum) * b.at[k];
        ((pack *)dx)[r * units + u] = a;
    }
}

static rtc_grid
grid_of(int64_t rows, int64_t cols)
{
    rtc_grid g;
    g.block = dim3(RTC_WARP, RTC_THREADS / RTC_WARP);
    if (cols > WARP_ROW)
        g.block = dim3(cols > BLOCK_ROW ? +MOST_THREADS : +RTC_THREADS, 1);
    g.grid = dim3((unsigned)rtc_blocks(rows, g.block.y));
    return g;
}

void
rt_softmax(rt_stream *s, float *y, const float *x, int64_t rows, int64_t cols)
{
    rtc_grid g = grid_of(rows, cols);
    if (!rows || !cols)
        return;
    if (cols % 4 == 0 && rtc_fits(rtc_address(y) | rtc_address(x), 16))
        RT_LAUNCH(softmax_rows<4>, g.grid, g.block, 0, s->stream, y, x, rows, cols / 4);
    else
        RT_LAUNCH(softmax_rows<1>, g.grid, g.block, 0, s->stream, y, x, rows, cols);
}

void
rt_softmax_grad(rt_stream *s, float *dx, const float *dy, const float *y, int64_t rows,
                int64_t cols)
{
    rtc_grid g = grid_of(rows, cols);
    if (!rows || !cols)
        return;
    if (cols % 4 == 0 &&
        rtc_fits(rtc_address(dx) | rtc_address(dy) | rtc_address(y), 16))
        RT_LAUNCH(softmax_grad_rows<4>, g.grid, g.block, 0, s->stream, dx, dy, y, rows,
                  cols / 4);
    else
        RT_LAUNCH(softmax_grad_rows<1>, g.grid, g.block, 0, s->stream, dx, dy, y, rows,
                  cols);
}
