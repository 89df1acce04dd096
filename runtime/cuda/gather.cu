/* gather.cu -- rows by index, and the way back, without atomics on floats.
 *
 * The gradient is made by its own rows: a block has a few of them in shared memory as floats,
 * looks through all indices for those that are its own, and adds what belongs there in order
 * of position. Columns are threads, so nothing else is shared.
 */
#include "pack_int.h"

/* y [rows, units] = x at idx [m] of each [n, units]. */
template <class U>
static __global__ void
take_rows(U *y, const U *x, const int64_t *idx, int64_t rows, int64_t n, int64_t m,
          int64_t units)
{
    for (int64_t r = rtc_row(); r < rows; r += rtc_row_step()) {
        int64_t o = rows == m ? 0 : r / m, at = idx[r - o * m];
        const U *from = x + (o * n + (at < 0 ? at + n : at)) * units;
        for (int64_t u = rtc_unit(); u < units; u += rtc_unit_step())
            y[r * units + u] = from[u];
    }
}

template <class U>
static void
take(rt_stream *s, void *y, const void *x, const int64_t *idx, int64_t rows, int64_t n,
     int64_t m, int64_t bytes)
{
    int64_t units = bytes / (int64_t)sizeof(U);
    rtc_grid g = rtc_rows_of(rows, units);
    RT_LAUNCH(take_rows<U>, g.grid, g.block, 0, s->stream, (U *)y, (const U *)x, idx,
              rows, n, m, units);
}

void
rt_gather(rt_stream *s, void *y, const void *x, const int64_t *idx, int64_t outer,
          int64_t n, int64_t inner, int64_t m, int size)
{
    int64_t bytes = inner * size, rows = outer * m;
    uintptr_t bits = rtc_address(y) | rtc_address(x) | (uintptr_t)bytes;
    if (!rows || !bytes)
        return;
    if (rtc_fits(bits, 16))
        take<uint4>(s, y, x, idx, rows, n, m, bytes);
    else if (rtc_fits(bits, 8))
        take<uint2>(s, y, x, idx, rows, n, m, bytes);
    else if (rtc_fits(bits, 4))
        take<uint32_t>(s, y, x, idx, rows, n, m, bytes);
    else if (rtc_fits(bits, 2))
        take<uint16_t>(s, y, x, idx, rows, n, m, bytes);
    else
        take<uint8_t>(s, y, x, idx, rows, n, m, bytes);
}

/* ---- the way back ---- */

enum { ROWS = 32, COLS = 256, WARPS = COLS / RTC_WARP, AHEAD = 4 };

/* dx [outer, n, inner] = sums of dy [outer, m, inner], in tiles of ROWS times COLS, one a block. */
typedef struct sums {
    int64_t n, inner, m, across, down;
} sums;

/* The positions of idx [m] from j on, one a thread, whose row is one of ROWS from `first` on:
 * how many; found[i] is the i-th of them, row[i] its row in the tile. */
static __device__ __forceinline__ int
find(const sums *p, const int64_t *idx, int64_t j, int64_t first, int *found, int *row,
     int *count)
{
    int warp = threadIdx.x / RTC_WARP, lane = threadIdx.x % RTC_WARP, before = 0,
        all = 0;
    int64_t at = j + threadIdx.x < p->m ? idx[j + threadIdx.x] : 0;
    at += (at < 0 ? p->n : 0) - first;
    bool hit = j + threadIdx.x < p->m && at >= 0 && at < ROWS;
    unsigned hits = __ballot_sync(rtc_all, hit);
    if (lane == 0)
        count[warp] = __popc(hits);
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? count[w] : 0;
        all += count[w];
    }
    before += __popc(hits & ((1u << lane) - 1));
    if (hit) {
        found[before] = threadIdx.x;
        row[before] = (int)at;
    }
    __syncthreads();
    return all;
}

template <class T>
static __global__ void
add_rows(T *dx, const T *dy, const int64_t *idx, sums p)
{
    __shared__ float sum[ROWS][COLS];
    __shared__ int found[COLS], row[COLS], count[WARPS];
    int x = threadIdx.x;
    int64_t o = blockIdx.x / p.across / p.down;
    int64_t first = blockIdx.x / p.across % p.down * ROWS;
    int64_t c = blockIdx.x % p.across * COLS + x;
    const T *from = dy + o * p.m * p.inner + (c < p.inner ? c : 0);
    for (int r = 0; r < ROWS; r++)
        sum[r][x] = 0;
    for (int64_t j = 0; j < p.m; j += COLS) {
        int all = find(&p, idx, j, first, found, row, count);
        for (int i = 0; i < all; i += AHEAD) {
            T v[AHEAD];
            for (int a = 0; a < AHEAD; a++)
                v[a] = from[(j + found[i + a < all ? i + a : i]) * p.inner];
            for (int a = 0; a < AHEAD; a++)
                if (i + a < all)
                    sum[row[i + a]][x] += rtc_float(v[a]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        if (c < p.inner && first + r < p.n)
            dx[(o * p.n + first + r) * p.inner + c] = rtc_as<T>(sum[r][x]);
}

void
rt_gather_grad(rt_stream *s, void *dx, const void *dy, const int64_t *idx,
               int64_t outer, int64_t n, int64_t inner, int64_t m, rt_dtype type)
{
    sums p = {n, inner, m, rtc_blocks(inner, COLS), rtc_blocks(n, ROWS)};
    int64_t tiles = outer * p.across * p.down;
    if (!tiles)
        return;
    RTC_BY_TYPE(type, T,
                RT_LAUNCH(add_rows<T>, dim3((unsigned)tiles), dim3(COLS), 0, s->stream,
                          (T *)dx, (const T *)dy, idx, p));
}
