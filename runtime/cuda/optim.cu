/* optim.cu -- gradient norm, clipping and the parameter update; formulas in runtime/cpu/optim.c.
 *
 * What changes from step to step is read from memory, since the kernels are in a graph: rtc_hyper,
 * the tally, the loss scaler. An update is one launch for up to PARAMS params of a unit, whose
 * places are an argument of the kernel; a block takes CHUNK elements of one of them, and finds out
 * the step's factors once, in double.
 */
#include "row_int.h"

enum {
    THREADS = 256,
    FOLD = 1024,
    INTERVAL = 2000 /* good steps: the loss scale doubles */
};

/* ---- norm ---- */

/* part[b] = sum of squares of block b of x [n], in double: it is finite where they are. */
static __global__ void
block_squares(double *part, const float *x, int64_t n)
{
    __shared__ double shared[RTC_WARP];
    int64_t at = (int64_t)blockIdx.x * RTC_NORM_BLOCK,
            end = min(at + RTC_NORM_BLOCK, n);
    double sum = 0;
    for (int64_t i = at + threadIdx.x; i < end; i += THREADS)
        sum += (double)x[i] * (double)x[i];
    sum = rtc_block_sum(sum, shared);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

/* sums[b] = sum of group b of part [n] */
static __global__ void
sum_groups(double *sums, const double *part, int64_t n)
{
    __shared__ double shared[RTC_WARP];
    int64_t at = (int64_t)blockIdx.x * RTC_NORM_GROUP;
    double sum = rtc_sum_all(part + at, min((int64_t)RTC_NORM_GROUP, n - at), shared);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

static __global__ void
__launch_bounds__(FOLD) sum_squares(float *norm2, const double *sums, int64_t n)
{
    __shared__ double shared[RTC_WARP];
    double sum = rtc_sum_all(sums, n, shared);
    if (threadIdx.x == 0)
        *norm2 = (float)sum;
}

void
rt_norm2(rt_stream *s, float *norm2, rt_run *run)
{
    const rt_program *p = run->program;
    double *part = s->partial;
    for (int u = 0; u < p->nunit; u++) {
        const float *g = (const float *)run->base[RT_GRAD][u];
        int64_t n = p->unit_bytes[u][RT_GRAD] / (int64_t)sizeof *g;
        int64_t blocks = rtc_blocks(n, RTC_NORM_BLOCK);
        if (blocks)
            RT_LAUNCH(block_squares, (unsigned)blocks, THREADS, 0, s->stream, part, g,
                      n);
        part += blocks;
    }
    int64_t parts = part - s->partial, groups = rtc_blocks(parts, RTC_NORM_GROUP);
    if (groups)
        RT_LAUNCH(sum_groups, (unsigned)groups, THREADS, 0, s->stream, part, s->partial,
                  parts);
    RT_LAUNCH(sum_squares, 1, FOLD, 0, s->stream, norm2, part, groups);
}

/* scaler: NULL: gradients are the true ones. tally: NULL: none. */
static __global__ void
clip(float *coef, const float *norm2, const rtc_hyper *h, const rt_tally *tally,
     const float *scaler)
{
    double norm = sqrt((double)*norm2),
           scale = scaler ? (double)scaler[RT_SCALE_AT] : 1;
    double factor = h->max_norm / (norm / scale + 1e-6);
    bool halts = tally && (tally->halted || !isfinite(tally->loss));
    if (halts || !isfinite(norm))
        *coef = NAN;
    else
        *coef = (float)((h->max_norm > 0 && factor < 1 ? factor : 1) / scale);
}

void
rt_clip_scale(rt_stream *s, float *coef, const float *norm2, const rt_run *run)
{
    rt_clip_scaled(s, coef, norm2, run, NULL);
}

void
rt_clip_scaled(rt_stream *s, float *coef, const float *norm2, const rt_run *run,
               const float *scaler)
{
    (void)run;
    RT_LAUNCH(clip, 1, 1, 0, s->stream, coef, norm2, s->hyper, s->tally, scaler);
}

static __global__ void
rescale(float *scaler, const float *norm2)
{
    if (!isfinite(*norm2)) {
        scaler[RT_SCALE_AT] = fmaxf(1, scaler[RT_SCALE_AT] / 2);
        scaler[RT_GOOD_AT] = 0;
        scaler[RT_SKIPPED_AT] += 1;
        return;
    }
    scaler[RT_UPDATES_AT] += 1;
    scaler[RT_GOOD_AT] += 1;
    if (scaler[RT_GOOD_AT] < INTERVAL)
        return;
    scaler[RT_GOOD_AT] = 0;
    if (isfinite(scaler[RT_SCALE_AT] * 2))
        scaler[RT_SCALE_AT] *= 2;
}

void
rt_rescale(rt_stream *s, float *scaler, const float *norm2)
{
    RT_LAUNCH(rescale, 1, 1, 0, s->stream, scaler, norm2);
}

/* ---- update ---- */

enum { N = 4, PARAMS = 48, CHUNK = 8192 };
typedef rtc_pack<float, N> floats;

typedef struct place {
    int64_t at, n;         /* elements: in the unit's buffers */
    int64_t image;         /* bytes into its images; -1: none */
    int64_t first;         /* of its blocks */
    int64_t matrix, packs; /* is rank >= 2? can it and its image be taken in packs? */
    rt_dtype low;          /* of its image */
    float shift;           /* it is PyTorch's parameter + shift */
} place;

typedef struct update {
    float *p, *m, *v; /* m, v NULL: the optimizer has no such state */
    const float *g;
    char *images;
    const rtc_hyper *h;
    const float *coef, *scaler; /* scaler: NULL: none */
    int n;
    place param[PARAMS];
} update;

typedef struct factors { /* the step's, of a parameter */
    float coef, shift;
    float b1, b2, one_b1, one_b2, decay, rate, root, eps; /* AdamW */
    float momentum, lr; /* SGD; its decay is the factor */
    int32_t sgd, nesterov;
} factors;

static __device__ factors
factors_of(const update &u, const place &q)
{
    const rtc_hyper h = *u.h;
    double t = u.scaler ? (double)u.scaler[RT_UPDATES_AT] + 1 : (double)h.step;
    double decay = h.decay_all || q.matrix ? h.weight_decay : 0;
    factors f = {};
    f.coef = *u.coef;
    f.shift = q.shift;
    f.sgd = h.sgd;
    f.nesterov = h.nesterov;
    f.momentum = (float)h.momentum;
    f.lr = (float)h.lr;
    f.decay = (float)(h.sgd && h.momentum > 0 ? decay : h.lr * decay);
    if (h.sgd)
        return f;
    f.b1 = (float)h.beta1;
    f.b2 = (float)h.beta2;
    f.one_b1 = (float)(1 - h.beta1);
    f.one_b2 = (float)(1 - h.beta2);
    f.rate = (float)(h.lr / (1 - pow(h.beta1, t)));
    f.root = (float)(1 / sqrt(1 - pow(h.beta2, t)));
    f.eps = (float)h.eps;
    return f;
}

/* The new parameter. */
static __device__ __forceinline__ float
adam(const factors &f, float p, float g, float *m, float *v)
{
    g *= f.coef;
    *m = fmaf(*m, f.b1, g * f.one_b1);
    *v = fmaf(*v, f.b2, g * g * f.one_b2);
    float root = fmaf(sqrtf(*v), f.root, f.eps);
    return p - fmaf(p - f.shift, f.decay, *m * f.rate / root);
}

static __device__ __forceinline__ float
sgd_momentum(const factors &f, float p, float g, float *m)
{
    float d = fmaf(p - f.shift, f.decay, g * f.coef);
    *m = fmaf(*m, f.momentum, d);
    float step = f.nesterov ? fmaf(*m, f.momentum, d) : *m;
    return fmaf(-step, f.lr, p);
}

static __device__ __forceinline__ float
sgd(const factors &f, float p, float g)
{
    return p - fmaf(p - f.shift, f.decay, g * (f.lr * f.coef));
}

template <int M>
static __device__ __forceinline__ void
put_image(char *to, int64_t i, rt_dtype low, const rtc_pack<float, M> &p)
{
    if (low == RT_BF16) {
        rtc_pack<__nv_bfloat16, M> y;
        for (int k = 0; k < M; k++)
            y.at[k] = rtc_as<__nv_bfloat16>(p.at[k]);
        *(rtc_pack<__nv_bfloat16, M> *)(to + 2 * i) = y;
    } else {
        rtc_pack<__half, M> y;
        for (int k = 0; k < M; k++)
            y.at[k] = rtc_as<__half>(p.at[k]);
        *(rtc_pack<__half, M> *)(to + 2 * i) = y;
    }
}

/* M elements from element i of the parameter on. */
template <int M>
static __device__ __forceinline__ void
step(const update &u, const place &q, const factors &f, int64_t i)
{
    typedef rtc_pack<float, M> pack;
    int64_t at = q.at + i;
    pack p = *(const pack *)(u.p + at), g = *(const pack *)(u.g + at), m, v;
    if (!f.sgd) {
        m = *(const pack *)(u.m + at);
        v = *(const pack *)(u.v + at);
        for (int k = 0; k < M; k++)
            p.at[k] = adam(f, p.at[k], g.at[k], &m.at[k], &v.at[k]);
        *(pack *)(u.m + at) = m;
        *(pack *)(u.v + at) = v;
    } else if (f.momentum > 0) {
        m = *(const pack *)(u.m + at);
        for (int k = 0; k < M; k++)
            p.at[k] = sgd_momentum(f, p.at[k], g.at[k], &m.at[k]);
        *(pack *)(u.m + at) = m;
    } else {
        for (int k = 0; k < M; k++)
            p.at[k] = sgd(f, p.at[k], g.at[k]);
    }
    *(pack *)(u.p + at) = p;
    if (q.image >= 0)
        put_image<M>(u.images + q.image, i, q.low, p);
}

static __global__ void
update_params(const __grid_constant__ update u)
{
    __shared__ factors f;
    int64_t block = blockIdx.x;
    int i = 0;
    if (!isfinite(*u.coef))
        return;
    while (i + 1 < u.n && u.param[i + 1].first <= block)
        i++;
    const place &q = u.param[i];
    if (threadIdx.x == 0)
        f = factors_of(u, q);
    __syncthreads();
    int64_t at = (block - q.first) * CHUNK, end = min(at + CHUNK, q.n);
    int64_t packs = q.packs ? (end - at) / N : 0, rest = at + packs * N;
    for (int64_t k = threadIdx.x; k < packs; k += THREADS)
        step<N>(u, q, f, at + k * N);
    for (int64_t k = rest + threadIdx.x; k < end; k += THREADS)
        step<1>(u, q, f, k);
}

static place
place_of(const rt_param *q, int64_t blocks, const char *images)
{
    bool image = q->image >= 0;
    uintptr_t bits = image ? rtc_address(images + q->image) : 0;
    place x = {};
    x.at = q->offset / (int64_t)sizeof(float);
    x.n = q->n;
    x.image = image ? q->image : -1;
    x.first = blocks;
    x.low = q->image_dtype;
    x.shift = q->shift;
    x.matrix = q->rank >= 2;
    x.packs = rtc_fits((uintptr_t)q->offset, 16) && rtc_fits(bits, 8);
    return x;
}

static float *
buffer(const rt_run *run, rt_class cls, int unit)
{
    return run->base[cls] ? (float *)run->base[cls][unit] : NULL;
}

static void
flush(rt_stream *s, update *u, int64_t *blocks)
{
    if (*blocks)
        RT_LAUNCH(update_params, (unsigned)*blocks, THREADS, 0, s->stream, *u);
    *blocks = u->n = 0;
}

void
rt_optim(rt_stream *s, rt_run *run, int unit, const float *coef)
{
    const rt_program *p = run->program;
    int64_t blocks = 0;
    update u = {};
    u.p = buffer(run, RT_TRAIN, unit);
    u.m = buffer(run, RT_STATE_M, unit);
    u.v = buffer(run, RT_STATE_V, unit);
    u.g = buffer(run, RT_GRAD, unit);
    u.images = (char *)buffer(run, RT_IMAGE, unit);
    u.h = s->hyper;
    u.coef = coef;
    u.scaler = p->scaled ? buffer(run, RT_SCALER, 0) : NULL;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *q = &p->param[i];
        if (q->cls != RT_TRAIN || q->unit != unit || q->n == 0)
            continue;
        if (u.n == PARAMS)
            flush(s, &u, &blocks);
        u.param[u.n] = place_of(q, blocks, u.images);
        u.param[u.n].packs =
            u.param[u.n].packs && rtc_fits(rtc_address(u.p) | rtc_address(u.g) |
                                               rtc_address(u.m) | rtc_address(u.v),
                                           16);
        u.n++;
        blocks += rtc_blocks(q->n, CHUNK);
    }
    flush(s, &u, &blocks);
}
