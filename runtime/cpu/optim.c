/* optim.c -- gradient norm, clipping and the parameter update.
 *
 * AdamW (Loshchilov and Hutter, 2019; in the form of torch.optim.AdamW), t = step,
 * g = gradient * coef:
 *     m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2
 *     p = p - (lr wd p + lr/(1 - b1^t) * m / (sqrt(v)/sqrt(1 - b2^t) + eps))
 * The parameter is rounded once, by the outer subtraction; factors that depend on the step
 * alone are computed in double. SGD in the form of torch.optim.SGD, dampening 0; m is zero at
 * first, so the first step's m is d:
 *     d = wd p + g,   m = momentum m + d,   p = p - lr m
 *     Nesterov's form:                      p = p - lr (d + momentum m)
 *     without momentum:                     p = p - (lr wd p + lr g)
 * Decay falls on params of rank >= 2, or on all under hyper.decay_all; where a param is
 * PyTorch's plus a shift, it acts on PyTorch's.
 */
#include "low_int.h"
#include "rt_cpu_int.h"

enum { INTERVAL = 2000 }; /* good steps after which a loss scale doubles */

/* ---- norm ----
 * Squares and sums are doubles: they overflow for no gradients that are finite, and an element
 * that is not makes the norm so. norm2 itself is a float, finite up to a norm of 1.8e19: with a
 * scale of 2^24 up to 1e12 of the true gradients, far above what any training recovers from, so
 * that more than this may well count as not finite. */

static double
block_squares(const float *x, int64_t n)
{
    double s[16] = {0}, total = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            s[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++)
        s[i % 16] += (double)x[i] * (double)x[i];
    for (int k = 0; k < 16; k++)
        total += s[k];
    return total;
}

void
rt_norm2(rt_stream *s, float *norm2, rt_run *run)
{
    const rt_program *p = run->program;
    double *part = s->partial, total = 0;
    for (int u = 0; u < p->nunit; u++) {
        const float *g = (const float *)run->base[RT_GRAD][u];
        int64_t n = p->unit_bytes[u][RT_GRAD] / (int64_t)sizeof *g;
        int64_t blocks = rt_norm2_blocks(n);
#pragma omp parallel for schedule(static) num_threads(rt_team(s, n))
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = b * RT_NORM_BLOCK;
            part[b] = block_squares(g + at, rt_min(RT_NORM_BLOCK, n - at));
        }
        part += blocks;
    }
    for (const double *q = s->partial; q < part; q++)
        total += *q;
    *norm2 = (float)total;
}

static float
clip(double norm, double scale, const rt_run *run)
{
    double max = run->hyper.max_norm, factor = max / (norm / scale + 1e-6);
    if (!isfinite(norm))
        return NAN;
    return (float)((max > 0 && factor < 1 ? factor : 1) / scale);
}

/* May nothing be updated? Programs without a tally run in tests. */
static bool
halts(const rt_run *run)
{
    const rt_tally *t = (const rt_tally *)run->device;
    return t && (t->halted || !isfinite(t->loss));
}

void
rt_clip_scale(rt_stream *s, float *coef, const float *norm2, const rt_run *run)
{
    (void)s;
    *coef = halts(run) ? NAN : clip(sqrt((double)*norm2), 1, run);
}

void
rt_clip_scaled(rt_stream *s, float *coef, const float *norm2, const rt_run *run,
               const float *scaler)
{
    (void)s;
    *coef =
        halts(run) ? NAN : clip(sqrt((double)*norm2), (double)scaler[RT_SCALE_AT], run);
}

void
rt_rescale(rt_stream *s, float *scaler, const float *norm2)
{
    (void)s;
    if (!isfinite(*norm2)) {
        scaler[RT_SCALE_AT] = fmaxf(1, scaler[RT_SCALE_AT] / 2);
        scaler[RT_GOOD_AT] = 0;
        scaler[RT_SKIPPED_AT]++;
        return;
    }
    scaler[RT_UPDATES_AT]++;
    if (++scaler[RT_GOOD_AT] < INTERVAL)
        return;
    scaler[RT_GOOD_AT] = 0;
    if (isfinite(scaler[RT_SCALE_AT] * 2))
        scaler[RT_SCALE_AT] *= 2;
}

/* ---- update ---- */

typedef struct adam { /* the step's factors */
    float coef, b1, b2, one_b1, one_b2, decay, rate, root, eps;
} adam;

static adam
adam_of(const rt_hyper *h, double t, float coef, bool decays)
{
    return (adam){.coef = coef,
                  .b1 = (float)h->beta1,
                  .b2 = (float)h->beta2,
                  .one_b1 = (float)(1 - h->beta1),
                  .one_b2 = (float)(1 - h->beta2),
                  .decay = decays ? (float)(h->lr * h->weight_decay) : 0,
                  .rate = (float)(h->lr / (1 - pow(h->beta1, t))),
                  .root = (float)(1 / sqrt(1 - pow(h->beta2, t))),
                  .eps = (float)h->eps};
}

typedef struct update { /* one parameter */
    float *p, *m, *v;
    const float *g;
    int64_t n;
    bool decays;
    float shift; /* p is PyTorch's parameter + shift */
    void *image; /* p in a low type; NULL: it has none */
    rt_dtype low;
    adam a;
} update;

/* The new parameter, and its image. */
V_INLINE void
put(const update *u, int64_t i, vf p, int64_t left)
{
    v_store_to(u->p + i, p, left);
    if (u->image)
        v_store_as_to(u->image, i, p, left, u->low);
}

static void
adam_range(const update *u, int64_t lo, int64_t hi)
{
    const adam *a = &u->a;
    for (int64_t i = lo; i < hi; i += VW) {
        int64_t left = hi - i;
        vf g = v_load_to(u->g + i, left) * a->coef, p = v_load_to(u->p + i, left);
        vf m = v_fma(v_load_to(u->m + i, left), v_set(a->b1), g * a->one_b1);
        vf v = v_fma(v_load_to(u->v + i, left), v_set(a->b2), g * g * a->one_b2);
        vf root = v_fma(v_sqrt(v), v_set(a->root), v_set(a->eps));
        vf down = v_fma(p - u->shift, v_set(a->decay), m * a->rate / root);
        v_store_to(u->m + i, m, left);
        v_store_to(u->v + i, v, left);
        put(u, i, p - down, left);
    }
}

static void
momentum_range(const update *u, const rt_hyper *h, int64_t lo, int64_t hi)
{
    const float mu = (float)h->momentum, rate = (float)h->lr;
    const float decay = u->decays ? (float)h->weight_decay : 0;
    for (int64_t i = lo; i < hi; i += VW) {
        int64_t left = hi - i;
        vf p = v_load_to(u->p + i, left);
        vf d = v_fma(p - u->shift, v_set(decay), v_load_to(u->g + i, left) * u->a.coef);
        vf m = v_fma(v_load_to(u->m + i, left), v_set(mu), d);
        vf step = h->nesterov ? v_fma(m, v_set(mu), d) : m;
        v_store_to(u->m + i, m, left);
        put(u, i, p - step * rate, left);
    }
}

static void
sgd_range(const update *u, const rt_hyper *h, int64_t lo, int64_t hi)
{
    const float rate = (float)h->lr * u->a.coef, decay = u->a.decay;
    for (int64_t i = lo; i < hi; i += VW) {
        int64_t left = hi - i;
        vf p = v_load_to(u->p + i, left), g = v_load_to(u->g + i, left);
        put(u, i, p - v_fma(p - u->shift, v_set(decay), g * rate), left);
    }
}

/* Called by every thread of a team; no barrier, since params are independent. */
static void
apply(const update *u, const rt_hyper *h)
{
    enum { CHUNK = 1 << 12 };
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < u->n; i += CHUNK) {
        int64_t end = rt_min(i + CHUNK, u->n);
        if (!h->sgd)
            adam_range(u, i, end);
        else if (h->momentum > 0)
            momentum_range(u, h, i, end);
        else
            sgd_range(u, h, i, end);
    }
}

/* NULL: the optimizer has no such state. */
static float *
state_of(const rt_run *run, rt_class cls, const rt_param *q)
{
    char *base = run->base[cls][q->unit];
    return base ? (float *)(base + q->offset) : NULL;
}

void
rt_optim(rt_stream *s, rt_run *run, int unit, const float *coef)
{
    const rt_program *p = run->program;
    const rt_hyper *h = &run->hyper;
    double t = p->scaled ? (double)((float *)run->base[RT_SCALER][0])[RT_UPDATES_AT] + 1
                         : (double)h->step;
    if (!isfinite(*coef))
        return;
#pragma omp parallel num_threads(rt_team(s, p->unit_bytes[unit][RT_TRAIN] / 4))
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *q = &p->param[i];
        if (q->cls != RT_TRAIN || q->unit != unit)
            continue;
        bool decays = h->decay_all || q->rank >= 2;
        update u = {.p = (float *)(run->base[RT_TRAIN][unit] + q->offset),
                    .g = (const float *)(run->base[RT_GRAD][unit] + q->offset),
                    .m = state_of(run, RT_STATE_M, q),
                    .v = state_of(run, RT_STATE_V, q),
                    .n = q->n,
                    .decays = decays,
                    .shift = q->shift,
                    .image = q->image < 0 ? NULL : run->base[RT_IMAGE][unit] + q->image,
                    .low = q->image_dtype,
                    .a = adam_of(h, t, *coef, decays)};
        apply(&u, h);
    }
}
