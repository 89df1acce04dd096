/* reduce.cu -- sums, maxima and running sums over one dimension.
 *
 * A row is reduced by a warp or a block, columns by a block whose warps have rows of their own
 * and whose lanes have columns; sums over many rows are sums of sums over groups of rows. What
 * is added to what depends on sizes and on the alignment of rows alone.
 */
#include "pack_int.h"
#include "scratch.h"

struct sum_of {
    static __device__ __forceinline__ float none()
    {
        return 0.0f;
    }
    static __device__ __forceinline__ float both(float a, float b)
    {
        return a + b;
    }
};

struct largest_of {
    static __device__ __forceinline__ float none()
    {
        return -INFINITY;
    }
    static __device__ __forceinline__ float both(float a, float b)
    {
        return b > a || b != b ? b : a; /* NaN wins */
    }
};

template <class Op>
static __device__ __forceinline__ float
of_warp(float x)
{
    for (int o = RTC_WARP / 2; o; o /= 2)
        x = Op::both(x, __shfl_xor_sync(rtc_all, x, o));
    return x;
}

/* ---- rows ---- */

enum { WARP_ROW = 1024, BLOCK_ROW = 1 << 14, MOST_THREADS = 1024 };

/* y [rows] = by * that of x [rows, n]; a row is a warp's, or where that is all of blockDim.y a
 * block's. */
template <class Op, int N>
static __global__ void
__launch_bounds__(MOST_THREADS)
    reduce_rows(float *y, const float *x, int64_t rows, int64_t n, float by)
{
    __shared__ float shared[RTC_WARP];
    int lane = threadIdx.x % RTC_WARP, warps = blockDim.x / RTC_WARP;
    int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    float all = Op::none();
    for (int64_t i = threadIdx.x; r < rows && i * N < n; i += blockDim.x) {
        rtc_pack<float, N> v = *(const rtc_pack<float, N> *)(x + r * n + i * N);
        for (int k = 0; k < N; k++)
            all = Op::both(all, v.at[k]);
    }
    all = of_warp<Op>(all);
    if (warps > 1) {
        if (lane == 0)
            shared[threadIdx.x / RTC_WARP] = all;
        __syncthreads();
        all = of_warp<Op>(lane < warps ? shared[lane] : Op::none());
    }
    if (threadIdx.x == 0 && r < rows)
        y[r] = all * by;
}

template <class Op>
static void
reduce_last(rt_stream *s, float *y, const float *x, int64_t rows, int64_t n, float by)
{
    dim3 block(RTC_WARP, RTC_THREADS / RTC_WARP);
    if (n > WARP_ROW)
        block = dim3(n > BLOCK_ROW ? +MOST_THREADS : +RTC_THREADS, 1);
    dim3 grid((unsigned)rtc_blocks(rows, block.y));
    if (n % 4 == 0 && rtc_fits(rtc_address(x), 16))
        RT_LAUNCH((reduce_rows<Op, 4>), grid, block, 0, s->stream, y, x, rows, n, by);
    else
        RT_LAUNCH((reduce_rows<Op, 1>), grid, block, 0, s->stream, y, x, rows, n, by);
}

/* ---- columns ---- */

enum { MANY = 512, WARPS = 8, MOST_WARPS = 32 };

/* y [groups, cols] (+)= by * that of the rows of each group, of x [rows, cols], ld apart. */
typedef struct columns {
    int64_t rows, groups, cols, ld;
    float by;
    bool add;
} columns;

template <class Op, class T, int N>
static __global__ void __launch_bounds__((MOST_WARPS * RTC_WARP))
    reduce_columns(float *y, const T *x, columns p)
{
    __shared__ float shared[MOST_WARPS][N][RTC_WARP];
    int lane = threadIdx.x, warps = blockDim.y;
    int64_t across = (p.cols / N + RTC_WARP - 1) / RTC_WARP;
    int64_t g = blockIdx.x / across, c = (blockIdx.x % across * RTC_WARP + lane) * N;
    int64_t first = p.rows * g / p.groups, last = p.rows * (g + 1) / p.groups;
    float all[N];
    for (int k = 0; k < N; k++)
        all[k] = Op::none();
#pragma unroll 4
    for (int64_t r = first + threadIdx.y; r < last && c < p.cols; r += warps) {
        rtc_pack<T, N> v = *(const rtc_pack<T, N> *)(x + r * p.ld + c);
        for (int k = 0; k < N; k++)
            all[k] = Op::both(all[k], rtc_float(v.at[k]));
    }
    for (int k = 0; k < N; k++)
        shared[threadIdx.y][k][lane] = all[k];
    __syncthreads();
    /* a warp has every warps-th of the N columns of a lane */
    for (int k = threadIdx.y; k < N && c < p.cols; k += warps) {
        float sum = shared[0][k][lane], *to = y + g * p.cols + c + k;
        for (int w = 1; w < warps; w++)
            sum = Op::both(sum, shared[w][k][lane]);
        *to = p.add ? sum * p.by + *to : sum * p.by;
    }
}

template <class Op, class T>
static void
reduce_first(rt_stream *s, float *y, const T *x, columns p)
{
    enum { N = rtc_width<T>::N };
    bool wide = p.cols % N == 0 && p.ld % N == 0 && rtc_fits(rtc_address(x), 16);
    int64_t across = rtc_blocks(wide ? p.cols / N : p.cols, RTC_WARP);
    dim3 grid((unsigned)(across * p.groups));
    dim3 block(RTC_WARP, p.rows / p.groups > MANY ? MOST_WARPS : WARPS);
    if (wide)
        RT_LAUNCH((reduce_columns<Op, T, N>), grid, block, 0, s->stream, y, x, p);
    else
        RT_LAUNCH((reduce_columns<Op, T, 1>), grid, block, 0, s->stream, y, x, p);
}

void
rt_reduce_sum(rt_stream *s, float *y, const float *x, int64_t outer, int64_t n,
              int64_t inner, float by)
{
    columns p = {outer * n, outer, inner, inner, by, false};
    if (!n)
        rt_zero(s, y, outer * inner * (int64_t)sizeof *y);
    else if (inner == 1 && outer)
        reduce_last<sum_of>(s, y, x, outer, n, by);
    else if (outer * inner > 0)
        reduce_first<sum_of>(s, y, x, p);
}

void
rt_reduce_max(rt_stream *s, float *y, const float *x, int64_t outer, int64_t n,
              int64_t inner)
{
    columns p = {outer * n, outer, inner, inner, 1, false};
    if (inner == 1 && outer)
        reduce_last<largest_of>(s, y, x, outer, n, 1);
    else if (outer * inner > 0)
        reduce_first<largest_of>(s, y, x, p);
}

void
rt_colsum(rt_stream *s, float *y, const void *x, rt_dtype type, int64_t rows,
          int64_t cols, int64_t ld, bool add, void *scratch)
{
    int64_t groups = rtc_colsum_groups(rows);
    columns first = {rows, groups, cols, ld, 1, groups == 1 && add};
    columns second = {groups, 1, cols, cols, 1, add};
    float *part = groups == 1 ? y : (float *)scratch;
    if (!rows && !add)
        rt_zero(s, y, cols * (int64_t)sizeof *y);
    if (!rows || !cols)
        return;
    RTC_BY_TYPE(type, T, reduce_first<sum_of>(s, part, (const T *)x, first));
    if (groups > 1)
        reduce_first<sum_of>(s, y, (const float *)part, second);
}

/* ---- running sums ---- */

/* A warp has a line: n elements, `inner` apart. */
static __global__ void
running_sums(int64_t *y, const int64_t *x, int64_t lines, int64_t n, int64_t inner)
{
    int lane = threadIdx.x;
    for (int64_t t = rtc_row(); t < lines; t += rtc_row_step()) {
        int64_t at = t / inner * n * inner + t % inner, before = 0;
        for (int64_t i = lane; i - lane < n; i += RTC_WARP) {
            int64_t sum = i < n ? x[at + i * inner] : 0;
            for (int o = 1; o < RTC_WARP; o *= 2) {
                int64_t left = __shfl_up_sync(rtc_all, sum, o);
                sum += lane >= o ? left : 0;
            }
            sum += before;
            if (i < n)
                y[at + i * inner] = sum;
            before = __shfl_sync(rtc_all, sum, RTC_WARP - 1);
        }
    }
}

void
rt_cumsum(rt_stream *s, int64_t *y, const int64_t *x, int64_t outer, int64_t n,
          int64_t inner)
{
    enum { LINES = RTC_THREADS / RTC_WARP };
    if (outer * n * inner == 0)
        return;
    dim3 grid(1, (unsigned)rtc_min(rtc_blocks(outer * inner, LINES), RTC_GRID_Y));
    RT_LAUNCH(running_sums, grid, dim3(RTC_WARP, LINES), 0, s->stream, y, x,
              outer * inner, n, inner);
}
