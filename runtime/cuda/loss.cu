/* loss.cu -- losses of outputs that are all there: cross entropy of class heads, and the squared
 * error of a regression; formulas in runtime/cpu/loss.c.
 *
 * Rows are in groups, whose number depends on that of the rows alone. A block has one group: it
 * goes through its rows in order, a warp for each row, or the whole block where rows are long.
 * Sums of losses are doubles, a partial one for each group, which a second kernel adds.
 */
#include "row_int.h"

enum { THREADS = 256, WARPS = THREADS / RTC_WARP, LONG = 4096 };

typedef struct ce_call {
    float *prob, *losses, *dlogits; /* dlogits NULL: evaluation; else the other two */
    const float *logits, *scale;
    const int64_t *targets;
    double *partial; /* losses of groups; right ones from RTC_LOSS_GROUPS on */
    int64_t rows, c;
} ce_call;

/* Threads of the team of a row, number of the thread in it. */
template <bool WIDE>
static __device__ __forceinline__ int
team_size()
{
    return WIDE ? (int)THREADS : (int)RTC_WARP;
}
template <bool WIDE>
static __device__ __forceinline__ int
team_lane()
{
    return WIDE ? threadIdx.x : threadIdx.x % RTC_WARP;
}

/* The loss of row r, in its team's threads; *right: 1 where the largest logit is the target's. */
template <bool WIDE>
static __device__ __forceinline__ double
ce_row(const ce_call &c, int64_t r, double *right, float *shared)
{
    const float *x = c.logits + r * c.c;
    float *y = (c.dlogits ? c.dlogits : c.prob) + r * c.c;
    int64_t t = c.targets[r];
    bool on = t != RT_IGNORE;
    rtc_softmax s = rtc_softmax_none();
    for (int64_t i = team_lane<WIDE>(); i < c.c; i += team_size<WIDE>())
        rtc_softmax_add(&s, x[i], i);
    s = WIDE ? rtc_softmax_block(s, c.c, shared) : rtc_softmax_warp(s, c.c);
    float scale = *c.scale, by = (c.dlogits ? scale : 1.0f) / s.sum;
    for (int64_t i = team_lane<WIDE>(); i < c.c; i += team_size<WIDE>()) {
        float e = expf(x[i] - s.max) * by;
        if (c.dlogits)
            e = on ? e - (i == t ? scale : 0.0f) : 0.0f;
        y[i] = e;
    }
    double loss = on ? rtc_row_loss(s, x[t]) : 0;
    *right = on && (int64_t)s.first == t;
    if (c.losses && team_lane<WIDE>() == 0)
        c.losses[r] = (float)loss;
    return loss;
}

/* Of each team's sum the first thread's counts; *to = their sum. */
template <bool WIDE>
static __device__ __forceinline__ void
store_partial(double *to, double sum, double *shared)
{
    double all = rtc_block_sum(team_lane<WIDE>() ? 0.0 : sum, shared);
    if (threadIdx.x == 0)
        *to = all;
}

template <bool WIDE>
static __global__ void
ce_groups(ce_call c)
{
    __shared__ float shared[RTC_WARP];
    __shared__ double sums[RTC_WARP];
    int64_t g = blockIdx.x, end = c.rows * (g + 1) / gridDim.x;
    int first = WIDE ? 0 : threadIdx.x / RTC_WARP, step = WIDE ? 1 : WARPS;
    double loss = 0, right = 0, hit;
    for (int64_t r = c.rows * g / gridDim.x + first; r < end; r += step) {
        loss += ce_row<WIDE>(c, r, &hit, shared);
        right += hit;
    }
    store_partial<WIDE>(&c.partial[g], loss, sums);
    store_partial<WIDE>(&c.partial[RTC_LOSS_GROUPS + g], right, sums);
}

/* right NULL: not wanted. */
static __global__ void
sum_losses(float *loss, int64_t *right, const double *partial, int64_t groups,
           const float *scale)
{
    __shared__ double shared[RTC_WARP];
    double sum = rtc_sum_all(partial, groups, shared);
    double hits = rtc_sum_all(partial + RTC_LOSS_GROUPS, right ? groups : 0, shared);
    if (threadIdx.x)
        return;
    *loss = (float)(sum * (double)*scale);
    if (right)
        *right = (int64_t)hits;
}

static int64_t
groups_of(int64_t rows)
{
    return rtc_min(rows, RTC_LOSS_GROUPS);
}

static void
finish(rt_stream *s, float *loss, int64_t *right, const float *scale, int64_t rows)
{
    RT_LAUNCH(sum_losses, 1, THREADS, 0, s->stream, loss, right, s->partial,
              groups_of(rows), scale);
}

static void
run_ce(rt_stream *s, float *loss, int64_t *right, const ce_call *c)
{
    dim3 grid((unsigned)groups_of(c->rows));
    if (c->rows && c->c >= LONG)
        RT_LAUNCH(ce_groups<true>, grid, THREADS, 0, s->stream, *c);
    else if (c->rows)
        RT_LAUNCH(ce_groups<false>, grid, THREADS, 0, s->stream, *c);
    finish(s, loss, right, c->scale, c->rows);
}

void
rt_ce(rt_stream *s, float *loss, int64_t *right, float *prob, float *losses,
      const float *logits, const int64_t *targets, const float *scale, int64_t rows,
      int64_t c)
{
    ce_call call = {prob, losses, NULL, logits, scale, targets, s->partial, rows, c};
    run_ce(s, loss, right, &call);
}

void
rt_ce_grad(rt_stream *s, float *loss, float *dlogits, const float *logits,
           const int64_t *targets, const float *scale, int64_t rows, int64_t c)
{
    ce_call call = {NULL, NULL, dlogits, logits, scale, targets, s->partial, rows, c};
    run_ce(s, loss, NULL, &call);
}

/* ---- squared error ---- */

typedef struct mse_call {
    float *losses, *dy; /* either may be NULL */
    const float *y, *values, *scale;
    double *partial;
    int64_t rows, c;
} mse_call;

template <bool WIDE>
static __device__ __forceinline__ double
mse_row(const mse_call &m, int64_t r, double *shared)
{
    double sum = 0, by = 2 * (double)*m.scale;
    for (int64_t i = team_lane<WIDE>(); i < m.c; i += team_size<WIDE>()) {
        float value = m.values[r * m.c + i];
        double d = isnan(value) ? 0 : (double)m.y[r * m.c + i] - (double)value;
        sum += d * d;
        if (m.dy)
            m.dy[r * m.c + i] = (float)(by * d);
    }
    sum = WIDE ? rtc_block_sum(sum, shared) : rtc_warp_sum(sum);
    if (m.losses && team_lane<WIDE>() == 0)
        m.losses[r] = (float)sum;
    return sum;
}

template <bool WIDE>
static __global__ void
mse_groups(mse_call m)
{
    __shared__ double shared[RTC_WARP];
    int64_t g = blockIdx.x, end = m.rows * (g + 1) / gridDim.x;
    int first = WIDE ? 0 : threadIdx.x / RTC_WARP, step = WIDE ? 1 : WARPS;
    double loss = 0;
    for (int64_t r = m.rows * g / gridDim.x + first; r < end; r += step)
        loss += mse_row<WIDE>(m, r, shared);
    store_partial<WIDE>(&m.partial[g], loss, shared);
}

static void
run_mse(rt_stream *s, float *loss, const mse_call *m)
{
    dim3 grid((unsigned)groups_of(m->rows));
    if (m->rows && m->c >= LONG)
        RT_LAUNCH(mse_groups<true>, grid, THREADS, 0, s->stream, *m);
    else if (m->rows)
        RT_LAUNCH(mse_groups<false>, grid, THREADS, 0, s->stream, *m);
    finish(s, loss, NULL, m->scale, m->rows);
}

void
rt_mse(rt_stream *s, float *loss, float *losses, const float *y, const float *values,
       const float *scale, int64_t rows, int64_t c)
{
    mse_call m = {losses, NULL, y, values, scale, s->partial, rows, c};
    run_mse(s, loss, &m);
}

void
rt_mse_grad(rt_stream *s, float *loss, float *dy, const float *y, const float *values,
            const float *scale, int64_t rows, int64_t c)
{
    mse_call m = {NULL, dy, y, values, scale, s->partial, rows, c};
    run_mse(s, loss, &m);
}
