/* head.cu -- a head over a vocabulary with its cross entropy, a chunk of rows at a time.
 *
 * The logits of a chunk live only until its loss and gradients are taken. One block has one row:
 * it goes through the logits once for their largest and the sum of exponentials, and again to put
 * d logits in their place, rounded to the type of the products that follow, dx = dlogits W^T and
 * dW += x^T dlogits. How many rows are supervised the host does not know, so all of them are
 * computed; d logits of the others are 0. Losses of rows are doubles, and one block adds them when
 * all chunks are done.
 */
#include "row_int.h"
#include "scratch.h"

enum {
    N = 4,
    PER = 4,
    THREADS = 1024
};                                /* elements of a pack; least packs of a thread */
enum { LANES = 32, STRIPES = 8 }; /* of blocks that sum columns */

typedef rtc_pack<float, N> floats;

typedef struct chunk { /* n rows of a head */
    float *logits;     /* [n, ld], a multiple of N */
    float2 *stats;     /* [n]; NULL: not wanted */
    const int64_t *targets;
    double *losses;
    const float *scale;
    int64_t *pred; /* and each: evaluation */
    float *each;
    int64_t n, v, ld;
} chunk;

/* Logits of the row from i on; those past its end are -inf. */
static __device__ __forceinline__ floats
logits_at(const float *row, int64_t i, int64_t v)
{
    floats x = *(const floats *)(row + i);
    for (int k = 0; k < N; k++)
        if (i + k >= v)
            x.at[k] = -INFINITY;
    return x;
}

static __device__ __forceinline__ rtc_softmax
row_softmax(const float *row, int64_t v, float *shared)
{
    rtc_softmax s = rtc_softmax_none();
    for (int64_t i = (int64_t)threadIdx.x * N; i < v; i += (int64_t)blockDim.x * N) {
        floats x = logits_at(row, i, v);
        for (int k = 0; k < N && i + k < v; k++)
            rtc_softmax_add(&s, x.at[k], i + k);
    }
    return rtc_softmax_block(s, v, shared);
}

/* Of each row: its loss, what it predicts, and what column sums need. */
static __global__ void
__launch_bounds__(THREADS) row_losses(chunk c)
{
    __shared__ float shared[RTC_WARP];
    int64_t r = blockIdx.x, t = c.targets[r];
    const float *row = c.logits + r * c.ld;
    bool on = t != RT_IGNORE;
    rtc_softmax s = row_softmax(row, c.v, shared);
    if (threadIdx.x)
        return;
    double loss = on ? rtc_row_loss(s, row[t]) : 0;
    c.losses[r] = loss;
    if (c.stats)
        c.stats[r] = make_float2(s.max, s.sum);
    if (c.pred)
        c.pred[r] = on ? (int64_t)s.first : -1;
    if (c.each)
        c.each[r] = (float)loss;
}

/* d logits of type T over the logits: what a thread writes of tile i lies before tile i + 1 of
 * the floats, and the barrier lets nobody write over what others have yet to read. */
template <class T>
static __device__ __forceinline__ void
put_dlogits(float *row, int64_t v, int64_t t, const rtc_softmax &s, float scale)
{
    float by = scale / s.sum;
    for (int64_t tile = 0; tile < v; tile += (int64_t)blockDim.x * N) {
        int64_t i = tile + (int64_t)threadIdx.x * N;
        rtc_pack<T, N> d;
        if (i < v) {
            floats x = logits_at(row, i, v);
            for (int k = 0; k < N; k++) {
                float e = t == RT_IGNORE ? 0.0f : expf(x.at[k] - s.max) * by;
                d.at[k] = rtc_as<T>(i + k == t ? e - scale : e);
            }
        }
        __syncthreads();
        if (i < v)
            *(rtc_pack<T, N> *)((T *)row + i) = d;
    }
}

template <class T>
static __global__ void
__launch_bounds__(THREADS) row_dlogits(chunk c)
{
    __shared__ float shared[RTC_WARP];
    int64_t r = blockIdx.x, t = c.targets[r];
    float *row = c.logits + r * c.ld;
    bool on = t != RT_IGNORE;
    rtc_softmax s = row_softmax(row, c.v, shared);
    if (threadIdx.x == 0)
        c.losses[r] = on ? rtc_row_loss(s, row[t]) : 0;
    put_dlogits<T>(row, c.v, t, s, *c.scale);
}

/* dbias [v] += column sums of d logits, before they are rounded. */
static __global__ void
add_columns(float *dbias, chunk c)
{
    __shared__ float shared[STRIPES][LANES];
    int64_t j = (int64_t)blockIdx.x * LANES + threadIdx.x;
    float sum = 0, scale = *c.scale;
    for (int64_t r = threadIdx.y; r < c.n && j < c.v; r += STRIPES) {
        if (c.targets[r] == RT_IGNORE)
            continue;
        float2 s = c.stats[r];
        float e = expf(c.logits[r * c.ld + j] - s.x) * (scale / s.y);
        sum += j == c.targets[r] ? e - scale : e;
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || j >= c.v)
        return;
    for (int i = 1; i < STRIPES; i++)
        sum += shared[i][threadIdx.x];
    dbias[j] += sum;
}

/* right and pred NULL: not wanted. */
static __global__ void
__launch_bounds__(THREADS)
    sum_losses(float *loss, int64_t *right, const double *losses, const int64_t *pred,
               const int64_t *targets, int64_t rows, const float *scale)
{
    __shared__ double shared[RTC_WARP];
    double sum = rtc_sum_all(losses, rows, shared), hits = 0;
    for (int64_t r = threadIdx.x; right && r < rows; r += blockDim.x)
        hits += targets[r] != RT_IGNORE && pred[r] == targets[r];
    hits = rtc_block_sum(hits, shared);
    if (threadIdx.x)
        return;
    *loss = (float)(sum * (double)*scale);
    if (right)
        *right = (int64_t)hits;
}

/* ---- a call ---- */

typedef struct head_call {
    rt_stream *s;
    const rt_head *d;
    rtc_head_space p;
    char *scratch;
    const char *x;
    const void *w;
    const float *bias, *scale;
    const int64_t *targets;
} head_call;

/* Rows from `row` on, without logits yet. */
static chunk
chunk_at(const head_call *c, int64_t row)
{
    chunk k = {};
    k.n = rtc_min(c->p.chunk, c->d->rows - row);
    k.logits = (float *)(c->scratch + c->p.logits);
    k.losses = (double *)(c->scratch + c->p.losses) + row;
    k.targets = c->targets + row;
    k.scale = c->scale;
    k.v = c->d->v;
    k.ld = c->p.ld;
    return k;
}

static const void *
rows_at(const head_call *c, int64_t row)
{
    return c->x + row * c->d->h * rtc_bytes(c->d->type);
}

static void
make_logits(const head_call *c, const chunk *k, int64_t row)
{
    rt_gemm_desc y = rtc_head_gemm(c->d, RTC_HEAD_Y, k->n, k->ld);
    y.bias = c->bias != NULL;
    rtc_matmul(c->s, &y, k->logits, rows_at(c, row), c->w, c->bias, NULL,
               c->scratch + c->p.work);
}

static int
threads_for(int64_t v)
{
    int64_t warps = rtc_blocks(v, RTC_WARP * N * PER);
    return (int)(RTC_WARP * rtc_min(warps, THREADS / RTC_WARP));
}

static void
finish(const head_call *c, float *loss, int64_t *right, const int64_t *pred)
{
    const double *losses = (const double *)(c->scratch + c->p.losses);
    RT_LAUNCH(sum_losses, 1, THREADS, 0, c->s->stream, loss, right, losses, pred,
              c->targets, c->d->rows, c->scale);
}

void
rt_head_ce(rt_stream *s, float *loss, int64_t *right, int64_t *pred, float *losses,
           const void *x, const void *w, const int64_t *targets, const float *scale,
           const float *bias, const rt_head *d, void *scratch)
{
    head_call c = {s,
                   d,
                   rtc_head_layout(d, false),
                   (char *)scratch,
                   (const char *)x,
                   w,
                   bias,
                   scale,
                   targets};
    for (int64_t row = 0; row < d->rows; row += c.p.chunk) {
        chunk k = chunk_at(&c, row);
        k.pred = pred + row;
        k.each = losses + row;
        make_logits(&c, &k, row);
        RT_LAUNCH(row_losses, (unsigned)k.n, threads_for(d->v), 0, s->stream, k);
    }
    finish(&c, loss, right, pred);
}

/* d logits of the chunk, and what they add to dbias. */
static void
make_dlogits(const head_call *c, chunk *k, float *dbias)
{
    int threads = threads_for(k->v);
    if (dbias) {
        k->stats = (float2 *)(c->scratch + c->p.stats);
        RT_LAUNCH(row_losses, (unsigned)k->n, threads, 0, c->s->stream, *k);
        RT_LAUNCH(add_columns, (unsigned)rtc_blocks(k->v, LANES), dim3(LANES, STRIPES),
                  0, c->s->stream, dbias, *k);
    }
    RTC_BY_TYPE(c->d->type, T, {
        RT_LAUNCH(row_dlogits<T>, (unsigned)k->n, threads, 0, c->s->stream, *k);
    });
}

void
rt_head_ce_grad(rt_stream *s, float *loss, void *dx, float *dw, float *dbias,
                const void *x, const void *w, const int64_t *targets,
                const float *scale, const float *bias, const rt_head *d, void *scratch)
{
    head_call c = {s,
                   d,
                   rtc_head_layout(d, true),
                   (char *)scratch,
                   (const char *)x,
                   w,
                   bias,
                   scale,
                   targets};
    char *work = c.scratch + c.p.work;
    for (int64_t row = 0; row < d->rows; row += c.p.chunk) {
        chunk k = chunk_at(&c, row);
        rt_gemm_desc gx = rtc_head_gemm(d, RTC_HEAD_DX, k.n, k.ld);
        rt_gemm_desc gw = rtc_head_gemm(d, RTC_HEAD_DW, k.n, k.ld);
        make_logits(&c, &k, row);
        make_dlogits(&c, &k, dbias);
        rtc_matmul(s, &gx, (char *)dx + row * d->h * rtc_bytes(d->type), k.logits, w,
                   NULL, NULL, work);
        if (dw)
            rtc_matmul(s, &gw, dw, d->tb ? k.logits : rows_at(&c, row),
                       d->tb ? rows_at(&c, row) : k.logits, NULL, NULL, work);
    }
    finish(&c, loss, NULL, NULL);
}
