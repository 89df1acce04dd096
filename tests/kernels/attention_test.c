/* Attention and its gradient against plain loops in double. */
#include "kernel.h"

typedef struct form {
    int64_t batch, seq, heads, kv_heads, d;
    bool causal, packed; /* packed: q, k, v in one [B,S,3*heads*d] */
    int mask; /* 0 none, 1 right padding, 2 holes and left padding, 3 a row of 0 */
    bool interleaved; /* if packed: q, k, v head by head */
    int64_t window;
    float cap;
} form;

static const form forms[] = {
    {1, 1, 1, 1, 4, false, false, 0, .cap = 0},
    {2, 5, 2, 2, 16, true, true, 0, .cap = 0},
    {2, 33, 3, 3, 20, false, true, 1, .cap = 0},
    {1, 130, 2, 2, 64, true, true, 0, .cap = 0},
    {2, 130, 2, 1, 64, true, false, 2, .cap = 0},
    {1, 260, 2, 2, 32, false, false, 1, .cap = 0},
    {2, 300, 4, 2, 48, true, false, 1, .cap = 0},
    {2, 70, 1, 1, 128, false, true, 3, .cap = 0},
    {2, 240, 2, 2, 8, true, true, 3, .cap = 0},
    {1, 513, 1, 1, 80, true, true, 2, .cap = 0},
    {1, 113, 2, 2, 1, false, true, 2, .cap = 0},
    {3, 64, 2, 2, 33, true, true, 1, .cap = 0},
    {2, 70, 3, 3, 16, true, true, 2, .interleaved = true},
    {1, 300, 2, 2, 20, true, true, 1, .interleaved = true, .window = 33, .cap = 3},
    {2, 300, 4, 2, 24, true, false, 2, .window = 1},
    {1, 513, 2, 1, 16, true, false, 0, .window = 250, .cap = 0.5f},
    {2, 260, 2, 2, 16, false, true, 3, .window = 7},
    {2, 40, 2, 1, 17, false, false, 1, .cap = 50},
};

typedef struct problem {
    rt_attn a;
    float *q, *k, *v, *dy;
    int64_t *mask, nq, nk, ny, nlse;
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
                       .scale = 1.3f / sqrtf((float)f->d), .causal = f->causal},
                 .mask = mask_of(f),
                 .ny = rows * wq,
                 .nlse = f->batch * f->heads * f->seq};
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

static void
reference(const problem *p, double *y, double *lse)
{
    const rt_attn *a = &p->a;
    double *w = kt_doubles(a->seq), *slope = kt_doubles(a->seq);
    for (int64_t n = 0; n < a->batch * a->heads * a->seq; n++) {
        query t = query_of(a, n);
        double *out = y + ((t.b * a->seq + t.i) * a->heads + t.h) * a->d;
        lse[n] = weights(p, w, slope, t);
        for (int64_t j = 0; j < a->seq; j++)
            for (int64_t c = 0; c < a->d; c++)
                out[c] += w[j] *
                          (double)at(p->v, a->ldv, a->vo, a, t.b * a->seq + j, t.kh)[c];
    }
}

/* dq, dk, dv in the layouts of q, k, v. */
static void
reference_grad(const problem *p, double *dq, double *dk, double *dv)
{
    const rt_attn *a = &p->a;
    double *w = kt_doubles(a->seq), *dw = kt_doubles(a->seq);
    double *slope = kt_doubles(a->seq);
    for (int64_t n = 0; n < a->batch * a->heads * a->seq; n++) {
        query t = query_of(a, n);
        int64_t row = t.b * a->seq + t.i;
        const float *g = p->dy + (row * a->heads + t.h) * a->d;
        double delta = 0;
        weights(p, w, slope, t);
        for (int64_t j = 0; j < a->seq; j++) {
            dw[j] = dot(g, at(p->v, a->ldv, a->vo, a, t.b * a->seq + j, t.kh), a->d);
            delta += w[j] * dw[j];
        }
        for (int64_t j = 0; j < a->seq; j++) {
            double ds = (double)a->scale * w[j] * (dw[j] - delta) * slope[j];
            int64_t krow = t.b * a->seq + j;
            for (int64_t c = 0; c < a->d; c++) {
                int64_t qi = row * a->ldq + a->qo + t.h * a->qs + c;
                int64_t ki = krow * a->ldk + a->ko + t.kh * a->ks + c;
                int64_t vi = krow * a->ldv + a->vo + t.kh * a->vs + c;
                dq[qi] += ds * (double)p->k[ki];
                dk[ki] += ds * (double)p->q[qi];
                dv[vi] += w[j] * (double)g[c];
            }
        }
    }
}

static void
check_grad(const form *f, const problem *p, void *const y[], void *const lse[])
{
    rt_program program = {0};
    void *dq[KT_TEAMS], *dk[KT_TEAMS], *dv[KT_TEAMS];
    double *want_q = kt_doubles(p->nq);
    double *want_k = f->packed ? want_q : kt_doubles(p->nk);
    double *want_v = f->packed ? want_q : kt_doubles(p->nk);
    reference_grad(p, want_q, want_k, want_v);
    RUN_TEAMS(&program, s, team)
    {
        dq[team] = kt_floats(p->nq);
        dk[team] = f->packed ? dq[team] : kt_floats(p->nk);
        dv[team] = f->packed ? dq[team] : kt_floats(p->nk);
        rt_attention_grad(s, dq[team], dk[team], dv[team], p->dy, p->q, p->k, p->v,
                          y[team], lse[team], &(rt_attn_at){.mask = p->mask}, &p->a,
                          kt_bytes(rt_attention_grad_scratch(&p->a, kt_threads[team])));
    }
    CHECK(kt_same(dq, p->nq * (int64_t)sizeof(float)));
    CHECK(kt_same(dk, p->nk * (int64_t)sizeof(float)));
    CHECK(kt_same(dv, p->nk * (int64_t)sizeof(float)));
    CHECK_NEAR(kt_error(dq[0], want_q, p->nq), 0, 2e-5);
    CHECK_NEAR(kt_error(dk[0], want_k, p->nk), 0, 4e-5);
    CHECK_NEAR(kt_error(dv[0], want_v, p->nk), 0, 4e-5);
}

TEST(attention_and_its_gradient)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        problem p = make(&forms[i]);
        rt_program program = {0};
        double *want = kt_doubles(p.ny), *want_lse = kt_doubles(p.nlse);
        void *y[KT_TEAMS], *lse[KT_TEAMS];
        reference(&p, want, want_lse);
        RUN_TEAMS(&program, s, team)
        {
            y[team] = kt_floats(p.ny), lse[team] = kt_floats(p.nlse);
            rt_attention(s, y[team], lse[team], p.q, p.k, p.v,
                         &(rt_attn_at){.mask = p.mask}, &p.a,
                         kt_bytes(rt_attention_scratch(&p.a, kt_threads[team])));
        }
        CHECK(kt_same(y, p.ny * (int64_t)sizeof(float)));
        CHECK(kt_same(lse, p.nlse * (int64_t)sizeof(float)));
        CHECK_NEAR(kt_error(y[0], want, p.ny), 0, 3e-6);
        CHECK_NEAR(kt_error(lse[0], want_lse, p.nlse), 0, 3e-6);
        check_grad(&forms[i], &p, y, lse);
        kt_done();
    }
}

TEST(large_scores_do_not_overflow)
{
    form f = {1, 40, 1, 1, 16, true, true, 0, .cap = 0};
    problem p = make(&f);
    rt_program program = {0};
    double *want = kt_doubles(p.ny), *want_lse = kt_doubles(p.nlse);
    p.a.scale = 300;
    reference(&p, want, want_lse);
    float *y = kt_floats(p.ny), *lse = kt_floats(p.nlse);
    rt_stream *s = kt_open(&program, 1);
    rt_attention(s, y, lse, p.q, p.k, p.v, &(rt_attn_at){0}, &p.a,
                 kt_bytes(rt_attention_scratch(&p.a, 1)));
    rt_device_close(s);
    CHECK_NEAR(kt_error(y, want, p.ny), 0, 1e-2);
    CHECK_NEAR(kt_error(lse, want_lse, p.nlse), 0, 1e-2);
    kt_done();
}

typedef struct turn_form {
    int64_t batch, seq, table, cols, heads, start, stride, r;
} turn_form;

/* What each column becomes, by the formula. */
static void
turn_reference(const rt_turn *t, const float *in[3], double *y)
{
    int64_t h = t->r / 2;
    for (int64_t i = 0; i < t->rows; i++) {
        const float *x = in[0] + i * t->cols;
        const float *c = in[1] + i % t->table * t->r, *s = in[2] + i % t->table * t->r;
        for (int64_t k = 0; k < t->cols; k++) {
            int64_t o = k - t->start, p = o % t->stride;
            y[i * t->cols + k] = (double)x[k];
            if (o < 0 || o / t->stride >= t->heads || p >= t->r)
                continue;
            int64_t pair = p < h ? p + h : p - h, from = t->back ? pair : p;
            double with = (p < h) == t->back ? (double)s[from] : -(double)s[from];
            y[i * t->cols + k] =
                (double)x[k] * (double)c[p] + (double)x[k - p + pair] * with;
        }
    }
}

TEST(rotary_and_its_transpose)
{
    static const turn_form list[] = {{1, 1, 1, 2, 1, 0, 2, 2},
                                     {2, 5, 5, 48, 4, 0, 12, 12},
                                     {2, 7, 14, 192, 4, 16, 48, 16},
                                     {3, 33, 33, 100, 3, 4, 32, 20},
                                     {2, 40, 40, 256, 2, 0, 128, 128}};
    for (size_t k = 0; k < 2 * (sizeof list / sizeof *list); k++) {
        const turn_form *f = &list[k / 2];
        rt_turn t = {f->batch * f->seq, f->table,  f->cols, f->heads,
                     f->start,          f->stride, f->r,    k % 2};
        int64_t n = t.rows * t.cols;
        const float *in[] = {kt_noise(n, 21, 2), kt_noise(t.table * t.r, 22, 1),
                             kt_noise(t.table * t.r, 23, 1)};
        double *want = kt_doubles(n);
        rt_program program = {0};
        void *y[KT_TEAMS], *z[KT_TEAMS];
        turn_reference(&t, in, want);
        RUN_TEAMS(&program, s, team)
        {
            y[team] = kt_floats(n), z[team] = kt_copy(in[0], n);
            rt_rotary(s, y[team], in[0], in[1], in[2], &t);
            rt_rotary(s, z[team], z[team], in[1], in[2], &t); /* in place */
        }
        CHECK(kt_same(y, n * (int64_t)sizeof(float)));
        CHECK(kt_same(z, n * (int64_t)sizeof(float)));
        CHECK(!memcmp(y[0], z[0], (size_t)n * sizeof(float)));
        CHECK_NEAR(kt_error(y[0], want, n), 0, 1e-6);
        kt_done();
    }
}
