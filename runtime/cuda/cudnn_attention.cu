/* cudnn_attention.cu -- attention by cuDNN, where it is there.
 *
 * While rt_prepare() captures the program for the first time, attentions are only taken down.
 * Then cuDNN is loaded and a plan is made of each shape and tried against our own kernels on the
 * very operands (cudnn_trial.cu); a shape that has no plan, wants more workspace than the program
 * has, or comes out differently stays with our own kernels, which is said once. What is
 * captured after that uses the plans. EFFICC_CUDNN=0 keeps cuDNN out.
 *
 * Around a plan our own kernels do what it can't: lengths and offsets of rows in the form that it
 * wants, and zeros behind the last sample; a bias for masked keys, finite, so that a query
 * without any key gives a number, and then y = 0 and lse = -inf for such queries. Its gradient
 * gets +inf in their place, which makes all weights 0.
 *
 * cuDNN adds dq up in no fixed order: gradients differ in the last bits from run to run. Its
 * ordered sums want batch * heads * seq^2 * 2 bytes, so they aren't used.
 */
#include "cudnn_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 256, BLOCKS = 128 };
static const float HIDDEN = -1e9f; /* the bias of a key that is no key */

/* ---- kernels ---- */

typedef struct row_steps { /* elements from one row to the next, by RTC_DNN_OFFSETS */
    int64_t n[RTC_DNN_OFFSETS];
} row_steps;

/* to: rows of rtc_dnn_row() offsets. */
static __global__ void
place_samples(int32_t *lengths, int64_t *to, const int64_t *offsets, int64_t batch,
              int64_t row, row_steps step)
{
    for (int64_t b = threadIdx.x; b <= batch; b += blockDim.x) {
        for (int i = 0; i < RTC_DNN_OFFSETS; i++)
            to[i * row + b] = offsets[b] * step.n[i];
        if (b < batch)
            lengths[b] = (int32_t)(offsets[b + 1] - offsets[b]);
    }
}

/* A sample: its first row, and how many there are. offsets: NULL: seq each. */
typedef struct sample {
    int64_t row, n;
} sample;

static __device__ __forceinline__ sample
sample_of(const int64_t *offsets, int64_t b, int64_t seq)
{
    return offsets ? sample{offsets[b], offsets[b + 1] - offsets[b]}
                   : sample{b * seq, seq};
}

static __global__ void
make_bias(float *bias, const int64_t *mask, const int64_t *offsets, int64_t batch,
          int64_t seq)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch * seq)
        return;
    sample s = sample_of(offsets, i / seq, seq);
    bias[i] = i % seq >= s.n || mask[s.row + i % seq] ? 0.0f : HIDDEN;
}

/* lse for a gradient: +inf where a query has no key. */
static __global__ void
turn_lse(float *to, const float *lse, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        to[i] = lse[i] == -INFINITY ? INFINITY : lse[i];
}

/* Queries that have no key: all before the first one under `causal`, else all or none. A block is a
 * sample. */
template <class T>
static __global__ void
clear_keyless(T *y, float *lse, rt_attn_at at, rt_attn a)
{
    __shared__ int64_t first;
    int64_t b = blockIdx.x, width = a.heads * a.d;
    sample s = sample_of(at.offsets, b, a.seq);
    if (threadIdx.x == 0) {
        first = 0;
        while (first < s.n && !at.mask[s.row + first])
            first++;
    }
    __syncthreads();
    int64_t n = a.causal || first == s.n ? first : 0;
    for (int64_t i = threadIdx.x; i < n * width; i += blockDim.x)
        y[s.row * width + i] = rtc_as<T>(0.0f);
    for (int64_t i = threadIdx.x; i < n * a.heads; i += blockDim.x)
        lse[at.offsets ? s.row * a.heads + i : (b * a.heads + i / n) * a.seq + i % n] =
            -INFINITY;
}

typedef struct columns { /* of heads in rows */
    void *x;
    int64_t ld, step, heads;
} columns;

/* Zeros in rows behind the last sample. */
template <class T>
static __global__ void
clear_tail(columns c, int64_t d, const int64_t *offsets, int64_t batch, int64_t rows)
{
    int64_t begin = offsets[batch], width = c.heads * d;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < (rows - begin) * width; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = begin + i / width, h = i % width / d;
        ((T *)c.x)[row * c.ld + h * c.step + i % d] = rtc_as<T>(0.0f);
    }
}

static __global__ void
clear_tail_lse(float *lse, int64_t heads, const int64_t *offsets, int64_t batch,
               int64_t rows)
{
    int64_t i = offsets[batch] * heads + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < rows * heads; i += (int64_t)gridDim.x * blockDim.x)
        lse[i] = -INFINITY;
}

/* ---- a call ---- */

static void *
moved(const void *x, int64_t elements)
{
    return (char *)x + elements * 2;
}

static void
clear_columns(rt_stream *s, const rtc_attn_call *c, columns col)
{
    RTC_BY_TYPE(c->a.type, T,
                RT_LAUNCH((clear_tail<T>), dim3(BLOCKS), dim3(THREADS), 0, s->stream,
                          col, c->a.d, c->at.offsets, c->a.batch, c->at.rows));
}

static void
finish_rows(rt_stream *s, const rtc_attn_call *c)
{
    const rt_attn *a = &c->a;
    if (c->dq) {
        clear_columns(s, c, {moved(c->dq, a->qo), a->ldq, a->qs, a->heads});
        clear_columns(s, c, {moved(c->dk, a->ko), a->ldk, a->ks, a->kv_heads});
        clear_columns(s, c, {moved(c->dv, a->vo), a->ldv, a->vs, a->kv_heads});
        return;
    }
    clear_columns(s, c, {c->y, a->heads * a->d, a->d, a->heads});
    RT_LAUNCH(clear_tail_lse, dim3(BLOCKS), dim3(THREADS), 0, s->stream, c->lse,
              a->heads, c->at.offsets, a->batch, c->at.rows);
}

static void
finish_masked(rt_stream *s, const rtc_attn_call *c)
{
    if (c->dq)
        return;
    RTC_BY_TYPE(c->a.type, T,
                RT_LAUNCH((clear_keyless<T>), dim3((unsigned)c->a.batch), dim3(THREADS),
                          0, s->stream, (T *)c->y, c->lse, c->at, c->a));
}

static void
begin(rt_stream *s, const rtc_attn_call *c, const rtc_dnn_space *space, void *at[])
{
    const rt_attn *a = &c->a;
    char *scratch = (char *)c->scratch;
    int64_t n = a->batch * a->seq, lses = (c->at.offsets ? c->at.rows : n) * a->heads;
    if (c->at.offsets) {
        row_steps steps = {{a->ldq, a->ldk, a->ldv, a->heads * a->d, a->heads}};
        RT_LAUNCH(place_samples, dim3(1), dim3(THREADS), 0, s->stream,
                  (int32_t *)(scratch + space->lengths),
                  (int64_t *)(scratch + space->offsets), c->at.offsets, a->batch,
                  rtc_dnn_row(a->batch), steps);
    }
    if (!c->at.mask)
        return;
    RT_LAUNCH(make_bias, dim3((unsigned)rtc_blocks(n, THREADS)), dim3(THREADS), 0,
              s->stream, (float *)(scratch + space->bias), c->at.mask, c->at.offsets,
              a->batch, a->seq);
    if (!c->dq)
        return;
    at[DNN_LSE] = scratch + space->lse;
    RT_LAUNCH(turn_lse, dim3((unsigned)rtc_blocks(lses, THREADS)), dim3(THREADS), 0,
              s->stream, (float *)at[DNN_LSE], c->lse, lses);
}

int
rtc_dnn_enqueue(rt_stream *s, const rtc_attn_plan *p, const rtc_attn_call *c)
{
    const rt_attn *a = &c->a;
    rtc_dnn *d = s->dnn;
    rtc_dnn_space space = rtc_dnn_layout(a, c->dq != NULL);
    char *scratch = (char *)c->scratch;
    float scale = a->scale, none = -INFINITY, one = 1;
    void *at[DNN_UIDS] = {};
    at[DNN_Q] = moved(c->q, a->qo), at[DNN_K] = moved(c->k, a->ko);
    at[DNN_V] = moved(c->v, a->vo), at[DNN_Y] = c->y, at[DNN_LSE] = c->lse;
    at[DNN_SCALE] = &scale, at[DNN_NONE] = &none, at[DNN_ONE] = &one;
    at[DNN_BIAS] = scratch + space.bias, at[DNN_LENGTH] = scratch + space.lengths;
    for (int i = 0; i < RTC_DNN_OFFSETS; i++)
        at[DNN_OFF_Q + i] = scratch + space.offsets +
                            i * rtc_dnn_row(a->batch) * (int64_t)sizeof(int64_t);
    if (c->dq) {
        at[DNN_DQ] = moved(c->dq, a->qo), at[DNN_DK] = moved(c->dk, a->ko);
        at[DNN_DV] = moved(c->dv, a->vo), at[DNN_DY] = (void *)c->dy;
        at[DNN_DELTA] = scratch + space.delta, at[DNN_SUM_DQ] = scratch + space.sum_dq;
    }
    begin(s, c, &space, at);
    int status = d->api.SetStream(d->handle, s->stream);
    if (!status)
        status =
            rtc_dnn_run(&d->api, &p->plan, d->handle, at, scratch + space.workspace);
    if (c->at.offsets)
        finish_rows(s, c);
    if (c->at.mask)
        finish_masked(s, c);
    return status;
}

/* ---- shapes ---- */

static bool
aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

static bool
serves(const rtc_attn_call *c)
{
    const rt_attn *a = &c->a;
    return rtc_dnn_serves(a) && c->at.rows <= a->batch * a->seq && c->scratch &&
           aligned(c->q) && aligned(c->k) && aligned(c->v) && aligned(c->y) &&
           aligned(c->lse) && aligned(c->dy) && aligned(c->dq) && aligned(c->dk) &&
           aligned(c->dv);
}

static rtc_dnn_shape
shape_of(const rtc_attn_call *c)
{
    const rt_attn *a = &c->a;
    rtc_dnn_shape s = {};
    s.batch = a->batch, s.seq = a->seq, s.heads = a->heads, s.kv_heads = a->kv_heads;
    s.d = a->d, s.ldq = a->ldq, s.ldk = a->ldk, s.ldv = a->ldv;
    s.qs = a->qs, s.ks = a->ks, s.vs = a->vs;
    s.type = a->type, s.causal = a->causal, s.rows = c->at.offsets != NULL;
    s.mask = c->at.mask != NULL, s.grad = c->dq != NULL;
    return s;
}

static rtc_attn_plan *
find(rtc_dnn *d, const rtc_dnn_shape *s)
{
    for (int i = 0; i < d->nplans; i++)
        if (!memcmp(&d->plan[i].shape, s, sizeof *s))
            return &d->plan[i];
    return NULL;
}

bool
rtc_dnn_attention(rt_stream *s, const rtc_attn_call *c)
{
    if (!s->dnn)
        s->dnn = (rtc_dnn *)calloc(1, sizeof *s->dnn);
    rtc_dnn *d = s->dnn;
    if (!d || d->own || !serves(c))
        return false;
    rtc_dnn_shape shape = shape_of(c);
    rtc_attn_plan *p = find(d, &shape);
    if (!p && !d->made && d->nplans < RTC_ATTENTIONS) {
        p = &d->plan[d->nplans++];
        p->shape = shape;
        p->call = *c;
    }
    if (!d->made || !p || !p->good)
        return false;
    if (rtc_dnn_enqueue(s, p, c) == 0)
        return true;
    p->good = false; /* it did at the start; the caller does all of it again */
    return false;
}

/* ---- plans ---- */

static void
say_once(rtc_dnn *d, const rtc_dnn_shape *s, const char *why)
{
    if (d->said)
        return;
    d->said = true;
    rt_say("note",
           "cuDNN doesn't do %s of %lld x %lld tokens, %lld heads (%lld of keys) of "
           "%lld%s%s%s: %s; a slower kernel does it, and others like it",
           s->grad ? "the gradient of attention" : "attention", (long long)s->batch,
           (long long)s->seq, (long long)s->heads, (long long)s->kv_heads,
           (long long)s->d, s->causal ? ", causal" : "", s->rows ? ", unpadded" : "",
           s->mask ? ", masked" : "", why);
}

/* cuDNN, ready for use. */
static bool
load(rtc_dnn *d)
{
    char error[200];
    if (!rtc_wanted("EFFICC_CUDNN"))
        return false;
    bool ok = rtc_dnn_load(&d->api, error, sizeof error);
    if (*error)
        rt_say("note", "%s; our own kernels do attention", error);
    if (!ok)
        return false;
    int status = d->api.Create(&d->handle);
    if (!status)
        return true;
    rt_say("note", "cuDNN can't be started: %s; our own kernels do attention",
           d->api.GetErrorString(status));
    d->handle = NULL;
    return false;
}

void
rtc_dnn_prepare(rt_stream *s)
{
    rtc_dnn *d = s->dnn;
    char why[300];
    if (!d || d->made)
        return;
    bool there = d->nplans && load(d);
    for (int i = 0; i < d->nplans && there; i++) {
        rtc_attn_plan *p = &d->plan[i];
        int64_t most = rtc_dnn_layout(&p->call.a, p->call.dq != NULL).most;
        p->good = rtc_dnn_make(&d->api, &p->plan, &p->shape, d->handle, NULL, most, why,
                               sizeof why) &&
                  rtc_dnn_trial(s, p, why, sizeof why);
        if (p->good)
            d->ngood++;
        else
            say_once(d, &p->shape, why);
    }
    d->made = true;
}

void
rtc_dnn_close(rt_stream *s)
{
    rtc_dnn *d = s->dnn;
    if (!d)
        return;
    for (int i = 0; i < d->nplans; i++)
        rtc_dnn_free(&d->api, &d->plan[i].plan);
    if (d->handle)
        d->api.Destroy(d->handle);
    free(d);
    s->dnn = NULL;
}

void
rtc_dnn_text(const rt_stream *s, char *text, size_t n)
{
    const rtc_dnn *d = s->dnn;
    if (!d || !d->made)
        return;
    if (!d->ngood) {
        snprintf(text, n, "; attention by own kernels");
        return;
    }
    int version = (int)d->api.GetVersion();
    snprintf(text, n, "; attention by cuDNN %d.%d%s", version / 10000,
             version / 100 % 100, d->ngood < d->nplans ? " and own kernels" : "");
}
