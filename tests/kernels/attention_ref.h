/* attention_ref.h -- attention and its gradient as plain loops in double, on padded samples. */
#ifndef EFFICC_ATTENTION_REF_H
#define EFFICC_ATTENTION_REF_H

#include "kernel.h"
#include "runtime/cpu/philox_int.h"

typedef struct form {
    int64_t batch, seq, heads, kv_heads, d;
    bool causal, packed; /* packed: q, k, v in one [B,S,3*heads*d] */
    int mask; /* 0 none, 1 right padding, 2 holes and left padding, 3 a row of 0 */
    bool interleaved; /* if packed: q, k, v head by head */
    int64_t window;
    float cap, p;
} form;

typedef struct problem {
    rt_attn a;
    float *q, *k, *v, *dy;
    int64_t *mask, *keys, *key, nq, nk, ny, nlse;
} problem;

static int64_t *
mask_of(const form *f)
{
    if (!f->mask)
        return NULL;
    int64_t *m = kt_bytes(f->batch * f->seq * (int64_t)sizeof *m);
    for (int64_t b = 0; b < f->batch; b++)
        for (int64_t j = 0; j < f->seq; j++) {
            bool on = f->mask == 1   ? j <= f->seq / (b + 2)
                      : f->mask == 2 ? j > f->seq / 3 && (j + b) % 3
                                     : b != 1;
            m[b * f->seq + j] = on ? 7 : 0; /* any nonzero value counts */
        }
    return m;
}

static problem
make(const form *f)
{
    int64_t rows = f->batch * f->seq, wq = f->heads * f->d, wk = f->kv_heads * f->d;
    problem p = {.a = {f->batch, f->seq, f->heads, f->kv_heads, f->d, .ldq = wq,
                       .ldk = wk, .ldv = wk, .qs = f->d, .ks = f->d, .vs = f->d,
                       .window = f->window, .softcap = f->cap,
                       .scale = 1.3f / sqrtf((float)f->d), .causal = f->causal,
                       .p = f->p, .site = 9},
                 .mask = mask_of(f),
                 .keys = kt_bytes(rows * 8),
                 .key = kt_bytes(8),
                 .ny = rows * wq,
                 .nlse = f->batch * f->heads * f->seq};
    *p.key = 0x123456789abc;
    if (f->packed) {
        p.a.ldq = p.a.ldk = p.a.ldv = 3 * wq;
        p.a.ko = wq, p.a.vo = 2 * wq;
    }
    if (f->interleaved) {
        p.a.ko = f->d, p.a.vo = 2 * f->d;
        p.a.qs = p.a.ks = p.a.vs = 3 * f->d;
    }
    p.nq = rows * p.a.ldq, p.nk = rows * p.a.ldk;
    p.q = kt_noise(p.nq, 11, 2);
    p.k = f->packed ? p.q : kt_noise(p.nk, 12, 2);
    p.v = f->packed ? p.q : kt_noise(p.nk, 13, 2);
    p.dy = kt_noise(p.ny, 14, 1);
    for (int64_t r = 0; r < rows; r++)
        p.keys[r] = (r / f->seq + 5) << 24 | r % f->seq;
    return p;
}

static const float *
at(const float *x, int64_t ld, int64_t o, const rt_attn *a, int64_t row, int64_t h)
{
    return x + row * ld + o + h * a->qs; /* qs, ks and vs are equal here */
}

static double
dot(const float *x, const float *y, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * (double)y[i];
    return s;
}

/* Where in a task's order row i of head h of sample b is. */
typedef struct query {
    int64_t b, h, kh, i;
} query;

static query
query_of(const rt_attn *a, int64_t t)
{
    int64_t h = t / a->seq % a->heads;
    return (query){t / a->seq / a->heads, h, h / (a->heads / a->kv_heads), t % a->seq};
}

/* Weights of a query over all keys, and the slopes of the soft cap; returns lse. */
static double
weights(const problem *p, double *w, double *slope, query t)
{
    const rt_attn *a = &p->a;
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < a->seq; j++) {
        bool on = (!a->causal || j <= t.i) && (!a->window || j > t.i - a->window) &&
                  (!p->mask || p->mask[t.b * a->seq + j]);
        double x = (double)a->scale *
                   dot(at(p->q, a->ldq, a->qo, a, t.b * a->seq + t.i, t.h),
                       at(p->k, a->ldk, a->ko, a, t.b * a->seq + j, t.kh), a->d);
        double cap = (double)a->softcap, y = cap > 0 ? tanh(x / cap) : 0;
        slope[j] = 1 - y * y;
        w[j] = !on ? -INFINITY : cap > 0 ? cap * y : x;
        max = fmax(max, w[j]);
    }
    for (int64_t j = 0; j < a->seq; j++)
        sum += w[j] = max == -INFINITY ? 0 : exp(w[j] - max);
    for (int64_t j = 0; j < a->seq; j++)
        w[j] = sum > 0 ? w[j] / sum : 0;
    return sum > 0 ? max + log(sum) : -INFINITY;
}

/* What dropout multiplies a weight with. */
static double
factor(const problem *p, query t, int64_t j)
{
    if (!(p->a.p > 0))
        return 1;
    uint32_t w[PHILOX_WORDS];
    philox x = philox_of(*p->key, p->keys[t.b * p->a.seq + t.i], p->a.site);
    philox_block(w, &x, (uint32_t)(j / 4) | (uint32_t)t.h << 20);
    return w[j % 4] < (double)p->a.p * 4294967296.0 ? 0 : 1 / (1 - (double)p->a.p);
}

static inline void
reference(const problem *p, double *y, double *lse)
{
    const rt_attn *a = &p->a;
    double *w = kt_doubles(a->seq), *slope = kt_doubles(a->seq);
    for (int64_t n = 0; n < a->batch * a->heads * a->seq; n++) {
        query t = query_of(a, n);
        double *out = y + ((t.b * a->seq + t.i) * a->heads + t.h) * a->d;
        lse[n] = weights(p, w, slope, t);
        for (int64_t j = 0; j < a->seq; j++) {
            const float *v = at(p->v, a->ldv, a->vo, a, t.b * a->seq + j, t.kh);
            double by = w[j] > 0 ? w[j] * factor(p, t, j) : 0;
            for (int64_t c = 0; c < a->d; c++)
                out[c] += by * (double)v[c];
        }
    }
}

/* dq, dk, dv in the layouts of q, k, v. */
static inline void
reference_grad(const problem *p, double *dq, double *dk, double *dv)
{
    const rt_attn *a = &p->a;
    double *w = kt_doubles(a->seq), *dw = kt_doubles(a->seq);
    double *slope = kt_doubles(a->seq), *kept = kt_doubles(a->seq);
    for (int64_t n = 0; n < a->batch * a->heads * a->seq; n++) {
        query t = query_of(a, n);
        int64_t row = t.b * a->seq + t.i;
        const float *g = p->dy + (row * a->heads + t.h) * a->d;
        double delta = 0;
        weights(p, w, slope, t);
        for (int64_t j = 0; j < a->seq; j++) {
            kept[j] = factor(p, t, j);
            dw[j] = kept[j] *
                    dot(g, at(p->v, a->ldv, a->vo, a, t.b * a->seq + j, t.kh), a->d);
            delta += w[j] * dw[j];
        }
        for (int64_t j = 0; j < a->seq; j++) {
            double ds = (double)a->scale * w[j] * (dw[j] - delta) * slope[j];
            int64_t krow = t.b * a->seq + j;
            for (int64_t c = 0; c < a->d; c++) {
                int64_t qi = row * a->ldq + a->qo + t.h * a->qs + c;
                int64_t ki = krow * a->ldk + a->ko + t.kh * a->ks + c;
                int64_t to_v = krow * a->ldv + a->vo + t.kh * a->vs + c;
                dq[qi] += ds * (double)p->k[ki];
                dk[ki] += ds * (double)p->q[qi];
                dv[to_v] += w[j] * kept[j] * (double)g[c];
            }
        }
    }
}

#endif
