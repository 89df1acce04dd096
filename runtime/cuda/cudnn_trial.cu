/* cudnn_trial.cu -- is a plan of cuDNN right? It is run before the first step, as is our own
 * kernel, on noise in the operands that the program will use, with samples of different lengths or
 * masks with holes; results must be as near as two roundings of weights and results bring them.
 * So neither another version of cuDNN nor another card can change results without a word. The
 * operands, which nobody has filled yet, are zeros afterwards.
 */
#include "cudnn_int.h"

#include <stdio.h>
#include <string.h>

enum { THREADS = 256, LARGE = 1024, PARTS = 4 };

typedef struct part { /* heads of a tensor, or lse: 1 head of floats */
    void *x;
    int64_t rows, heads, d, ld, step;
    bool low;
} part;

static __device__ __forceinline__ int64_t
place_of(const part &p, int64_t i)
{
    return i / (p.heads * p.d) * p.ld + i / p.d % p.heads * p.step + i % p.d;
}

static __device__ __forceinline__ int64_t
elements(const part &p)
{
    return p.rows * p.heads * p.d;
}

/* Numbers in (-by, by), the same for the same seed. */
template <class T>
static __global__ void
fill(part p, uint32_t seed, float by)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t r = (uint32_t)i * 2654435761u + seed * 40503u;
    r = (r ^ r >> 15) * 2246822519u;
    r = (r ^ r >> 13) * 3266489917u;
    if (i < elements(p))
        ((T *)p.x)[place_of(p, i)] = rtc_as<T>(((float)(r >> 8) / 8388608.0f - 1) * by);
}

template <class T>
static __global__ void
keep(T *to, part p)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < elements(p))
        to[i] = ((const T *)p.x)[place_of(p, i)];
}

/* out[2]: the largest difference, and the largest number. One block. */
template <class T>
static __global__ void
__launch_bounds__(LARGE) compare(float *out, part p, const T *want)
{
    __shared__ float space[RTC_WARP];
    float apart = 0, most = 0;
    for (int64_t i = threadIdx.x; i < elements(p); i += blockDim.x) {
        float x = rtc_float(((const T *)p.x)[place_of(p, i)]), y = rtc_float(want[i]);
        if (x == y)
            continue;
        float off = fabsf(x - y);
        apart = fmaxf(apart, off < INFINITY ? off : INFINITY);
    }
    for (int64_t i = threadIdx.x; i < elements(p); i += blockDim.x) {
        float y = fabsf(rtc_float(want[i]));
        most = y < INFINITY ? fmaxf(most, y) : most;
    }
    apart = rtc_block_max(apart, space);
    most = rtc_block_max(most, space);
    if (threadIdx.x == 0)
        out[0] = apart, out[1] = most;
}

/* Samples of 0, 1, all and fewer rows, as far as there are rows; the last ones are behind them. */
static __global__ void
make_offsets(int64_t *offsets, int64_t batch, int64_t seq, int64_t rows)
{
    int64_t at = 0, share = rows / batch;
    for (int64_t b = 0; b <= batch; b++) {
        offsets[b] = at;
        int64_t n = b % 4 == 0   ? seq
                    : b % 4 == 1 ? share / 2 + 1
                    : b % 4 == 2 ? 0
                                 : share;
        at = min(at + min(n, seq), rows - rows / 16);
    }
}

/* Holes, left and right padding, and of many samples one without any key. */
static __global__ void
__launch_bounds__(LARGE) make_mask(int64_t *mask, int64_t batch, int64_t seq)
{
    for (int64_t i = threadIdx.x; i < batch * seq; i += blockDim.x) {
        int64_t b = i / seq, t = i % seq;
        bool on = b % 3 == 0   ? t < seq - seq / 4
                  : b % 3 == 1 ? t > seq / 3 && t % 5
                               : batch < 6 || b % 6 != 5;
        mask[i] = on;
    }
}

/* ---- the host's side ---- */

typedef struct trial {
    rt_stream *s;
    const rtc_attn_plan *plan;
    rtc_attn_call call; /* with offsets and masks of its own */
    part in[PARTS], out[PARTS];
    int nin, nout;
    char *space;
    void *want[PARTS];
    int64_t *offsets, *mask; /* [batch + 1]; [batch * seq] */
    float *result;
} trial;

static int64_t
count(const part *p)
{
    return p->rows * p->heads * p->d;
}

static dim3
blocks(const part *p)
{
    return dim3((unsigned)rtc_blocks(count(p), THREADS));
}

static int64_t
bytes(const part *p)
{
    return rtc_blocks(count(p) * (p->low ? 2 : 4), RTC_ALIGN) * RTC_ALIGN;
}

static part
heads_of(const trial *t, const void *x, int64_t o, int64_t ld, int64_t step, bool keys)
{
    const rt_attn *a = &t->call.a;
    int64_t rows = t->call.at.offsets ? t->call.at.rows : a->batch * a->seq;
    return part{
        (char *)x + 2 * o, rows, keys ? a->kv_heads : a->heads, a->d, ld, step, true};
}

static void
list_parts(trial *t)
{
    const rtc_attn_call *c = &t->call;
    const rt_attn *a = &c->a;
    part y = heads_of(t, c->y, 0, a->heads * a->d, a->d, false);
    part lse = {c->lse, y.rows, a->heads, 1, a->heads, 1, false};
    t->in[t->nin++] = heads_of(t, c->q, a->qo, a->ldq, a->qs, false);
    t->in[t->nin++] = heads_of(t, c->k, a->ko, a->ldk, a->ks, true);
    t->in[t->nin++] = heads_of(t, c->v, a->vo, a->ldv, a->vs, true);
    if (!c->dq) {
        t->out[t->nout++] = y;
        t->out[t->nout++] = lse;
        return;
    }
    t->in[t->nin++] = heads_of(t, c->dy, 0, a->heads * a->d, a->d, false);
    t->out[t->nout++] = heads_of(t, c->dq, a->qo, a->ldq, a->qs, false);
    t->out[t->nout++] = heads_of(t, c->dk, a->ko, a->ldk, a->ks, true);
    t->out[t->nout++] = heads_of(t, c->dv, a->vo, a->ldv, a->vs, true);
}

static bool
make_space(trial *t)
{
    const rt_attn *a = &t->call.a;
    int64_t n = RTC_ALIGN,
            places = (a->batch * (a->seq + 1) + 1) * (int64_t)sizeof(int64_t);
    for (int i = 0; i < t->nout; i++)
        n += bytes(&t->out[i]);
    if (cudaMalloc((void **)&t->space, (size_t)(n + places)) != cudaSuccess) {
        cudaGetLastError(); /* the caller says it */
        return false;
    }
    char *at = t->space + RTC_ALIGN;
    t->result = (float *)t->space;
    for (int i = 0; i < t->nout; i++) {
        t->want[i] = at;
        at += bytes(&t->out[i]);
    }
    t->offsets = (int64_t *)at;
    t->mask = t->offsets + a->batch + 1;
    return true;
}

static void
fill_part(const trial *t, const part *p, uint32_t seed, float by)
{
    if (p->low)
        RTC_BY_TYPE(t->call.a.type, T,
                    RT_LAUNCH((fill<T>), blocks(p), dim3(THREADS), 0, t->s->stream, *p,
                              seed, by));
    else
        RT_LAUNCH((fill<float>), blocks(p), dim3(THREADS), 0, t->s->stream, *p, seed,
                  by);
}

static void
keep_part(const trial *t, int i)
{
    const part *p = &t->out[i];
    if (p->low)
        RTC_BY_TYPE(t->call.a.type, T,
                    RT_LAUNCH((keep<T>), blocks(p), dim3(THREADS), 0, t->s->stream,
                              (T *)t->want[i], *p));
    else
        RT_LAUNCH((keep<float>), blocks(p), dim3(THREADS), 0, t->s->stream,
                  (float *)t->want[i], *p);
}

/* Within two roundings of the weights and of the result? lse: of floats. */
static bool
same(const trial *t, int i)
{
    const part *p = &t->out[i];
    float got[2];
    if (p->low)
        RTC_BY_TYPE(t->call.a.type, T,
                    RT_LAUNCH((compare<T>), dim3(1), dim3(LARGE), 0, t->s->stream,
                              t->result, *p, (const T *)t->want[i]));
    else
        RT_LAUNCH((compare<float>), dim3(1), dim3(LARGE), 0, t->s->stream, t->result,
                  *p, (const float *)t->want[i]);
    rt_download(t->s, got, t->result, sizeof got);
    float unit = t->call.a.type == RT_BF16 ? 0x1p-8f : 0x1p-11f;
    return p->low ? got[0] <= 6 * unit * got[1] && got[1] > 0 : got[0] <= 1e-3f;
}

static void
prepare(trial *t)
{
    const rt_attn *a = &t->call.a;
    cudaStream_t stream = t->s->stream;
    if (t->call.at.offsets) {
        RT_LAUNCH(make_offsets, dim3(1), dim3(1), 0, stream, t->offsets, a->batch,
                  a->seq, t->call.at.rows);
        t->call.at.offsets = t->offsets;
    }
    if (t->call.at.mask) {
        RT_LAUNCH(make_mask, dim3(1), dim3(LARGE), 0, stream, t->mask, a->batch,
                  a->seq);
        t->call.at.mask = t->mask;
    }
    for (int i = 0; i < t->nin; i++)
        fill_part(t, &t->in[i], 7 + (uint32_t)i, 2);
}

/* Our own results are kept, then cuDNN's are there. What it may not count on in its space, zeros
 * above all, is not there: in a program others have used it before. */
static int
run_both(trial *t)
{
    const rtc_attn_call *c = &t->call;
    rtc_dnn *d = t->s->dnn;
    d->own = true;
    rt_attention(t->s, c->y, c->lse, c->q, c->k, c->v, &c->at, &c->a, c->scratch);
    if (c->dq)
        rt_attention_grad(t->s, c->dq, c->dk, c->dv, c->dy, c->q, c->k, c->v, c->y,
                          c->lse, &c->at, &c->a, c->scratch);
    d->own = false;
    for (int i = 0; i < t->nout; i++) {
        keep_part(t, i);
        fill_part(t, &t->out[i], 99, 1);
    }
    int64_t bytes = rtc_dnn_layout(&c->a, c->dq != NULL).bytes;
    RT_CUDA(cudaMemsetAsync(c->scratch, 0xff, (size_t)bytes, t->s->stream));
    return rtc_dnn_enqueue(t->s, t->plan, c);
}

static void
clear(trial *t)
{
    const rt_attn *a = &t->call.a;
    part y = heads_of(t, t->call.y, 0, a->heads * a->d, a->d, false);
    part lse = {t->call.lse, y.rows, a->heads, 1, a->heads, 1, false};
    fill_part(t, &y, 0, 0);
    fill_part(t, &lse, 0, 0);
    for (int i = 0; i < t->nin; i++)
        fill_part(t, &t->in[i], 0, 0);
    for (int i = 0; i < t->nout; i++)
        fill_part(t, &t->out[i], 0, 0);
    RT_CUDA(cudaStreamSynchronize(t->s->stream));
    RT_CUDA(cudaFree(t->space));
}

bool
rtc_dnn_trial(rt_stream *s, const rtc_attn_plan *p, char *why, size_t n)
{
    trial t = {};
    t.s = s, t.plan = p, t.call = p->call;
    list_parts(&t);
    if (!make_space(&t)) {
        snprintf(why, n, "there is no memory left to try it");
        return false;
    }
    prepare(&t);
    int status = run_both(&t);
    bool ok = status == 0;
    if (!ok)
        snprintf(why, n, "%s", s->dnn->api.GetErrorString(status));
    for (int i = 0; i < t.nout && ok; i++) {
        ok = same(&t, i);
        if (!ok)
            snprintf(why, n, "its results differ from ours");
    }
    clear(&t);
    return ok;
}
