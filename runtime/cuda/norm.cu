/* norm.cu -- layer normalisation and RMSNorm over the rows of [rows, cols]; formulas in
 * runtime/cpu/norm.c.
 *
 * One block has one row. Where the row is made of whole packs and fits, its threads keep it in
 * registers, so it is read once; else they read it again, which then comes from cache. Sums over
 * rows are made in two stages: each block sums a group of rows of some columns, and then the
 * groups are added. How rows are grouped depends on their number alone.
 */
#include "row_int.h"
#include "scratch.h"

enum { N = 4, PER = 4 }; /* elements of a pack; packs of a thread */
/* Of a block; of one whose threads keep their packs, for which more have too few registers. */
enum { MOST_THREADS = 1024, PACK_THREADS = 512, MOST_COLS = PACK_THREADS * PER * N };
enum { LANES = 32, STRIPES = 8 }; /* of blocks that sum over rows */

typedef struct norm_call { /* mean and b NULL: RMSNorm */
    void *y;               /* dx in the backward direction */
    const void *x, *dy;
    float *mean, *rstd;
    const float *w, *b;
    int64_t cols;
    rt_dtype x_type, y_type;
    float eps;
    /* of a gradient, and NULL or 0 where it is not wanted: */
    const void *from; /* what dx is added to */
    void *low;        /* dx again, of low_type */
    rt_dtype low_type;
    float *pw, *pb; /* partial sums of dw and db [blocks, cols] */
    int64_t rows;   /* of all blocks together */
} norm_call;

typedef rtc_pack<float, N> floats;

template <class T>
static __device__ __forceinline__ floats
load(const void *x, int64_t i)
{
    rtc_pack<T, N> p = *(const rtc_pack<T, N> *)((const T *)x + i);
    floats f;
    for (int k = 0; k < N; k++)
        f.at[k] = rtc_float(p.at[k]);
    return f;
}

template <class T>
static __device__ __forceinline__ void
store(void *y, int64_t i, const floats &f)
{
    rtc_pack<T, N> p;
    for (int k = 0; k < N; k++)
        p.at[k] = rtc_as<T>(f.at[k]);
    *(rtc_pack<T, N> *)((T *)y + i) = p;
}

/* Column of the thread's pack p. */
static __device__ __forceinline__ int64_t
column(int p)
{
    return (int64_t)(p * blockDim.x + threadIdx.x) * N;
}

/* ---- y ---- */

template <class X, class Y>
static __global__ void
__launch_bounds__(PACK_THREADS) norm_packs(norm_call c)
{
    __shared__ float shared[RTC_WARP];
    int64_t at = blockIdx.x * c.cols;
    floats v[PER];
    float sum = 0, squares = 0, mean = 0;
    for (int p = 0; p < PER; p++)
        for (int k = 0; k < N; k++)
            v[p].at[k] = 0;
#pragma unroll
    for (int p = 0; p < PER; p++)
        if (column(p) < c.cols)
            v[p] = load<X>(c.x, at + column(p));
    if (c.mean) {
#pragma unroll
        for (int p = 0; p < PER; p++)
            for (int k = 0; k < N; k++)
                sum += v[p].at[k];
        mean = rtc_block_sum(sum, shared) / (float)c.cols;
    }
#pragma unroll
    for (int p = 0; p < PER; p++)
        for (int k = 0; k < N && column(p) < c.cols; k++) {
            v[p].at[k] -= mean;
            squares = fmaf(v[p].at[k], v[p].at[k], squares);
        }
    float rstd = 1 / sqrtf(rtc_block_sum(squares, shared) / (float)c.cols + c.eps);
#pragma unroll
    for (int p = 0; p < PER; p++) {
        if (column(p) >= c.cols)
            continue;
        floats w = load<float>(c.w, column(p)), b = {};
        if (c.b)
            b = load<float>(c.b, column(p));
        for (int k = 0; k < N; k++)
            v[p].at[k] = fmaf(v[p].at[k] * rstd, w.at[k], b.at[k]);
        store<Y>(c.y, at + column(p), v[p]);
    }
    if (threadIdx.x == 0) {
        c.rstd[blockIdx.x] = rstd;
        if (c.mean)
            c.mean[blockIdx.x] = mean;
    }
}

static __global__ void
__launch_bounds__(MOST_THREADS) norm_any(norm_call c)
{
    __shared__ float shared[RTC_WARP];
    int64_t at = blockIdx.x * c.cols;
    float sum = 0, squares = 0, mean = 0;
    for (int64_t i = threadIdx.x; i < c.cols && c.mean; i += blockDim.x)
        sum += rtc_get(c.x, at + i, c.x_type);
    if (c.mean)
        mean = rtc_block_sum(sum, shared) / (float)c.cols;
    for (int64_t i = threadIdx.x; i < c.cols; i += blockDim.x) {
        float d = rtc_get(c.x, at + i, c.x_type) - mean;
        squares = fmaf(d, d, squares);
    }
    float rstd = 1 / sqrtf(rtc_block_sum(squares, shared) / (float)c.cols + c.eps);
    for (int64_t i = threadIdx.x; i < c.cols; i += blockDim.x) {
        float xh = (rtc_get(c.x, at + i, c.x_type) - mean) * rstd;
        rtc_put(c.y, at + i, c.y_type, fmaf(xh, c.w[i], c.b ? c.b[i] : 0.0f));
    }
    if (threadIdx.x == 0) {
        c.rstd[blockIdx.x] = rstd;
        if (c.mean)
            c.mean[blockIdx.x] = mean;
    }
}

/* ---- dx ---- */

/* What is asked for beside dx, at element i. */
static __device__ __forceinline__ void
put_copies(const norm_call &c, int64_t i, const floats &d)
{
    if (!c.low)
        return;
    if (c.low_type == RT_BF16)
        store<__nv_bfloat16>(c.low, i, d);
    else
        store<__half>(c.low, i, d);
}

/* Rows of a group. y is dx, which may be dy: a thread reads its own elements only, before it
 * writes them. SUMS: partial sums of dw, and of db where c.pb is there. */
template <class X, class Y, bool SUMS>
static __global__ void
__launch_bounds__(PACK_THREADS) dx_packs(norm_call c)
{
    __shared__ float shared[RTC_WARP];
    int64_t end = c.rows * (blockIdx.x + 1) / gridDim.x;
    floats xh[PER], g[PER], dw[PER] = {}, db[PER] = {};
    for (int64_t r = c.rows * blockIdx.x / gridDim.x; r < end; r++) {
        int64_t at = r * c.cols;
        float rstd = c.rstd[r], mean = c.mean ? c.mean[r] : 0;
        float sum_g = 0, sum_gx = 0, avg_g = 0;
#pragma unroll
        for (int p = 0; p < PER; p++) {
            if (column(p) >= c.cols)
                continue;
            floats w = load<float>(c.w, column(p));
            xh[p] = load<X>(c.x, at + column(p));
            g[p] = load<Y>(c.dy, at + column(p));
            for (int k = 0; k < N; k++) {
                xh[p].at[k] = (xh[p].at[k] - mean) * rstd;
                if (SUMS) {
                    dw[p].at[k] = fmaf(g[p].at[k], xh[p].at[k], dw[p].at[k]);
                    db[p].at[k] += g[p].at[k];
                }
                g[p].at[k] *= w.at[k];
                sum_g += g[p].at[k];
                sum_gx = fmaf(g[p].at[k], xh[p].at[k], sum_gx);
            }
        }
        if (c.mean)
            avg_g = rtc_block_sum(sum_g, shared) / (float)c.cols;
        float avg_gx = rtc_block_sum(sum_gx, shared) / (float)c.cols;
#pragma unroll
        for (int p = 0; p < PER; p++) {
            if (column(p) >= c.cols)
                continue;
            floats from = {};
            if (c.from)
                from = load<X>(c.from, at + column(p));
            for (int k = 0; k < N; k++)
                g[p].at[k] =
                    from.at[k] + (g[p].at[k] - avg_g - xh[p].at[k] * avg_gx) * rstd;
            store<X>(c.y, at + column(p), g[p]);
            put_copies(c, at + column(p), g[p]);
        }
    }
    for (int p = 0; SUMS && p < PER; p++)
        if (column(p) < c.cols) {
            store<float>(c.pw, blockIdx.x * c.cols + column(p), dw[p]);
            if (c.pb)
                store<float>(c.pb, blockIdx.x * c.cols + column(p), db[p]);
        }
}

static __global__ void
__launch_bounds__(MOST_THREADS) dx_any(norm_call c)
{
    __shared__ float shared[RTC_WARP];
    int64_t at = blockIdx.x * c.cols;
    float rstd = c.rstd[blockIdx.x], mean = c.mean ? c.mean[blockIdx.x] : 0;
    float sum_g = 0, sum_gx = 0, avg_g = 0;
    for (int64_t i = threadIdx.x; i < c.cols; i += blockDim.x) {
        float xh = (rtc_get(c.x, at + i, c.x_type) - mean) * rstd;
        float g = rtc_get(c.dy, at + i, c.y_type) * c.w[i];
        sum_g += g;
        sum_gx = fmaf(g, xh, sum_gx);
    }
    if (c.mean)
        avg_g = rtc_block_sum(sum_g, shared) / (float)c.cols;
    float avg_gx = rtc_block_sum(sum_gx, shared) / (float)c.cols;
    for (int64_t i = threadIdx.x; i < c.cols; i += blockDim.x) {
        float xh = (rtc_get(c.x, at + i, c.x_type) - mean) * rstd;
        float g = rtc_get(c.dy, at + i, c.y_type) * c.w[i];
        float d = (g - avg_g - xh * avg_gx) * rstd;
        d += c.from ? rtc_get(c.from, at + i, c.x_type) : 0;
        rtc_put(c.y, at + i, c.x_type, d);
        if (c.low)
            rtc_put(c.low, at + i, c.low_type, d);
    }
}

/* ---- launches of a block for each row ---- */

static int
threads_for(int64_t cols, int64_t each)
{
    int64_t warps = rtc_blocks(rtc_blocks(cols, each), RTC_WARP);
    return (int)(rtc_min(warps, MOST_THREADS / RTC_WARP) * RTC_WARP);
}

/* Can rows be taken in packs? */
static bool
packs_fit(const norm_call *c)
{
    int64_t x = N * rtc_bytes(c->x_type), y = N * rtc_bytes(c->y_type);
    bool ok = rtc_fits(rtc_address(c->x), x) &&
              rtc_fits(rtc_address(c->w) | rtc_address(c->b), 16);
    if (c->dy)
        ok = ok && rtc_fits(rtc_address(c->y) | rtc_address(c->from), x) &&
             rtc_fits(rtc_address(c->dy), y) && rtc_fits(rtc_address(c->low), N * 2);
    else
        ok = ok && rtc_fits(rtc_address(c->y), y);
    return ok && c->cols % N == 0 && c->cols <= MOST_COLS;
}

/* rows [rows, cols]; the blocks are `groups` where partial sums are asked for, else rows. */
static void
run_rows(rt_stream *s, const norm_call *c, int64_t rows, int64_t groups)
{
    if (rows == 0 || c->cols == 0)
        return;
    dim3 grid((unsigned)(c->pw ? groups : rows));
    if (!packs_fit(c)) {
        int threads = threads_for(c->cols, PER);
        if (c->dy)
            RT_LAUNCH(dx_any, grid, threads, 0, s->stream, *c);
        else
            RT_LAUNCH(norm_any, grid, threads, 0, s->stream, *c);
        return;
    }
    int threads = threads_for(c->cols, N * PER);
    RTC_BY_TYPE(
        c->x_type, X, RTC_BY_TYPE(c->y_type, Y, {
            if (c->pw)
                RT_LAUNCH((dx_packs<X, Y, true>), grid, threads, 0, s->stream, *c);
            else if (c->dy)
                RT_LAUNCH((dx_packs<X, Y, false>), grid, threads, 0, s->stream, *c);
            else
                RT_LAUNCH((norm_packs<X, Y>), grid, threads, 0, s->stream, *c);
        }));
}

static norm_call
call_of(const rt_norm *n, void *y, const void *x, const float *w, const float *mean,
        const float *rstd)
{
    norm_call c = {};
    c.y = y, c.x = x, c.w = w;
    c.mean = (float *)mean, c.rstd = (float *)rstd;
    c.rows = n->rows, c.cols = n->cols;
    c.x_type = n->x, c.y_type = n->y;
    c.eps = n->eps;
    return c;
}

void
rt_layernorm(rt_stream *s, void *y, float *mean, float *rstd, const void *x,
             const float *w, const float *b, const rt_norm *n)
{
    norm_call c = call_of(n, y, x, w, mean, rstd);
    c.b = b;
    run_rows(s, &c, n->rows, 0);
}

void
rt_rmsnorm(rt_stream *s, void *y, float *rstd, const void *x, const float *w,
           const rt_norm *n)
{
    norm_call c = call_of(n, y, x, w, NULL, rstd);
    run_rows(s, &c, n->rows, 0);
}

void
rt_layernorm_dx(rt_stream *s, void *dx, const void *dy, const void *x, const float *w,
                const float *mean, const float *rstd, const rt_norm *n)
{
    norm_call c = call_of(n, dx, x, w, mean, rstd);
    c.dy = dy;
    run_rows(s, &c, n->rows, 0);
}

void
rt_rmsnorm_dx(rt_stream *s, void *dx, const void *dy, const void *x, const float *w,
              const float *rstd, const rt_norm *n)
{
    norm_call c = call_of(n, dx, x, w, NULL, rstd);
    c.dy = dy;
    run_rows(s, &c, n->rows, 0);
}

/* ---- dw, db ---- */

typedef struct sum_call {
    const void *x, *dy;
    const float *mean, *rstd; /* mean NULL: 0 */
    float *pw, *pb;           /* [groups, cols]; NULL: not wanted */
    int64_t rows, cols;
    rt_dtype x_type, y_type;
} sum_call;

/* M elements from i on, of a type known here or by the call. */
template <class T, int M> struct row_of {
    static __device__ __forceinline__ void get(float *f, const void *x, int64_t i,
                                               rt_dtype)
    {
        floats p = load<T>(x, i);
        for (int k = 0; k < M; k++)
            f[k] = p.at[k];
    }
};
template <> struct row_of<void, 1> {
    static __device__ __forceinline__ void get(float *f, const void *x, int64_t i,
                                               rt_dtype t)
    {
        *f = rtc_get(x, i, t);
    }
};

/* to [M] of the block's columns = sum of v over its stripes, in their order. */
template <int M>
static __device__ __forceinline__ void
sum_stripes(float *to, const float *v, int64_t left, float (*shared)[LANES * M])
{
    for (int k = 0; k < M; k++)
        shared[threadIdx.y][threadIdx.x * M + k] = v[k];
    __syncthreads();
    int i = threadIdx.y * LANES + threadIdx.x;
    if (i < LANES * M && i < left) {
        float sum = 0;
        for (int y = 0; y < STRIPES; y++)
            sum += shared[y][i];
        to[i] = sum;
    }
    __syncthreads();
}

/* Block (x, y): group y of rows, M columns for each lane. */
template <class X, class Y, int M>
static __global__ void
sum_rows(sum_call c)
{
    __shared__ float shared[STRIPES][LANES * M];
    int64_t g = blockIdx.y, end = c.rows * (g + 1) / gridDim.y;
    int64_t first = (int64_t)blockIdx.x * LANES * M, col = first + threadIdx.x * M;
    float w[M] = {}, b[M] = {}, x[M], dy[M];
    for (int64_t r = c.rows * g / gridDim.y + threadIdx.y; r < end && col < c.cols;
         r += STRIPES) {
        float mean = c.mean ? c.mean[r] : 0, rstd = c.rstd[r];
        row_of<X, M>::get(x, c.x, r * c.cols + col, c.x_type);
        row_of<Y, M>::get(dy, c.dy, r * c.cols + col, c.y_type);
        for (int k = 0; k < M; k++) {
            w[k] = fmaf(dy[k], (x[k] - mean) * rstd, w[k]);
            b[k] += dy[k];
        }
    }
    if (c.pw)
        sum_stripes<M>(c.pw + g * c.cols + first, w, c.cols - first, shared);
    if (c.pb)
        sum_stripes<M>(c.pb + g * c.cols + first, b, c.cols - first, shared);
}

typedef struct group_sums { /* y [cols] (+)= sum over groups of part [groups, cols] */
    float *y[2];
    const float *part[2];
    bool add[2];
} group_sums;

/* Grid: columns; which of the two. */
static __global__ void
sum_groups(group_sums c, int64_t groups, int64_t cols)
{
    __shared__ float shared[STRIPES][LANES];
    int64_t col = (int64_t)blockIdx.x * LANES + threadIdx.x;
    const float *part = c.part[blockIdx.y];
    float *y = c.y[blockIdx.y], sum = 0;
    for (int64_t g = threadIdx.y; g < groups && col < cols; g += STRIPES)
        sum += part[g * cols + col];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || col >= cols)
        return;
    for (int i = 1; i < STRIPES; i++)
        sum += shared[i][threadIdx.x];
    y[col] = c.add[blockIdx.y] ? y[col] + sum : sum;
}

/* dw and db, each or NULL, from their partial sums. */
static void
sum_partials(rt_stream *s, float *dw, const float *pw, bool add_w, float *db,
             const float *pb, bool add_b, int64_t groups, int64_t cols)
{
    group_sums c = {{dw, db}, {pw, pb}, {add_w, add_b}};
    if (!dw)
        c.y[0] = db, c.part[0] = pb, c.add[0] = add_b;
    unsigned n = (dw != NULL) + (db != NULL);
    if (n)
        RT_LAUNCH(sum_groups, dim3((unsigned)rtc_blocks(cols, LANES), n),
                  dim3(LANES, STRIPES), 0, s->stream, c, groups, cols);
}

static void
run_sums(rt_stream *s, const sum_call *c, int64_t groups)
{
    int64_t x = N * rtc_bytes(c->x_type), y = N * rtc_bytes(c->y_type);
    bool packs = rtc_fits(rtc_address(c->x), x) && rtc_fits(rtc_address(c->dy), y) &&
                 c->cols % N == 0;
    dim3 block(LANES, STRIPES);
    dim3 grid((unsigned)rtc_blocks(c->cols, LANES * (packs ? N : 1)), (unsigned)groups);
    if (!packs) {
        RT_LAUNCH((sum_rows<void, void, 1>), grid, block, 0, s->stream, *c);
        return;
    }
    RTC_BY_TYPE(c->x_type, X, RTC_BY_TYPE(c->y_type, Y, {
                    RT_LAUNCH((sum_rows<X, Y, N>), grid, block, 0, s->stream, *c);
                }));
}

void
rt_layernorm_dwb(rt_stream *s, float *dw, float *db, const void *dy, const void *x,
                 const float *mean, const float *rstd, const rt_norm *n, bool add_w,
                 bool add_b, void *scratch)
{
    int64_t groups = rtc_norm_groups(n->rows), cols = n->cols;
    float *pw = (float *)scratch, *pb = pw + groups * cols;
    sum_call c = {x,       dy,   mean, rstd, dw ? pw : NULL, db ? pb : NULL,
                  n->rows, cols, n->x, n->y};
    if (cols == 0 || (!dw && !db))
        return;
    run_sums(s, &c, groups);
    sum_partials(s, dw, pw, add_w, db, pb, add_b, groups, cols);
}

void
rt_rmsnorm_dw(rt_stream *s, float *dw, const void *dy, const void *x, const float *rstd,
              const rt_norm *n, bool add, void *scratch)
{
    int64_t groups = rtc_norm_groups(n->rows), cols = n->cols;
    float *pw = (float *)scratch;
    sum_call c = {x, dy, NULL, rstd, pw, NULL, n->rows, cols, n->x, n->y};
    if (cols == 0)
        return;
    run_sums(s, &c, groups);
    sum_partials(s, dw, pw, add, NULL, NULL, false, groups, cols);
}

void
rt_norm_grad(rt_stream *s, void *dx, void *low, float *dw, float *db, const void *dy,
             const void *x, const float *w, const float *mean, const float *rstd,
             const void *from, const rt_norm_grad_of *of, void *scratch)
{
    const rt_norm *n = &of->norm;
    int64_t groups = rtc_norm_groups(n->rows);
    norm_call c = call_of(n, dx, x, w, mean, rstd);
    c.dy = dy, c.from = from, c.low = low, c.low_type = of->low;
    bool once = dw && packs_fit(&c) && rtc_fits(rtc_address(scratch), 16);
    if (once) {
        c.pw = (float *)scratch;
        c.pb = db ? c.pw + groups * n->cols : NULL;
    } else if (dw && mean)
        rt_layernorm_dwb(s, dw, db, dy, x, mean, rstd, n, of->add_w, of->add_b,
                         scratch);
    else if (dw)
        rt_rmsnorm_dw(s, dw, dy, x, rstd, n, of->add_w, scratch);
    run_rows(s, &c, n->rows, groups);
    if (!once || n->cols == 0)
        return;
    if (n->rows == 0)
        RT_CUDA(cudaMemsetAsync(c.pw, 0, rtc_norm_groups(0) * n->cols * (db ? 8 : 4),
                                s->stream));
    sum_partials(s, dw, c.pw, of->add_w, db, c.pb, of->add_b, groups, n->cols);
}
