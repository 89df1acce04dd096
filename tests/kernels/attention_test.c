/* Attention, its gradient and rotary positions against plain loops in double. */
#include "attention_ref.h"

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
    {2, 130, 2, 1, 16, true, false, 2, .p = 0.2f},
    {1, 300, 3, 3, 20, false, true, 1, .window = 33, .p = 0.5f},
};

static void
check_grad(const form *f, const problem *p, void *const y[], void *const lse[])
{
    rt_program program = {0};
    void *dq[KT_TEAMS], *dk[KT_TEAMS], *dv[KT_TEAMS];
    double *want_q = kt_doubles(p->nq);
    double *want_k = f->packed ? want_q : kt_doubles(p->nk);
    double *want_v = f->packed ? want_q : kt_doubles(p->nk);
    rt_attn_at places = {.mask = p->mask, .keys = p->keys, .key = p->key};
    reference_grad(p, want_q, want_k, want_v);
    RUN_TEAMS(&program, s, team)
    {
        dq[team] = kt_floats(p->nq);
        dk[team] = f->packed ? dq[team] : kt_floats(p->nk);
        dv[team] = f->packed ? dq[team] : kt_floats(p->nk);
        rt_attention_grad(s, dq[team], dk[team], dv[team], p->dy, p->q, p->k, p->v,
                          y[team], lse[team], &places, &p->a,
                          kt_bytes(kt_scratch.attention_grad(&p->a, kt_threads[team])));
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
        rt_attn_at places = {.mask = p.mask, .keys = p.keys, .key = p.key};
        reference(&p, want, want_lse);
        RUN_TEAMS(&program, s, team)
        {
            y[team] = kt_floats(p.ny), lse[team] = kt_floats(p.nlse);
            rt_attention(s, y[team], lse[team], p.q, p.k, p.v, &places, &p.a,
                         kt_bytes(kt_scratch.attention(&p.a, kt_threads[team])));
        }
        CHECK(kt_same(y, p.ny * (int64_t)sizeof(float)));
        CHECK(kt_same(lse, p.nlse * (int64_t)sizeof(float)));
        CHECK_NEAR(kt_error(y[0], want, p.ny), 0, 3e-6);
        CHECK_NEAR(kt_error(lse[0], want_lse, p.nlse), 0, 3e-6);
        check_grad(&forms[i], &p, y, lse);
        kt_done();
    }
}

/* Of equal scores and values of 1, a query's result is the share of keys that stay, over
 * 1 - p: 1 on the average, give or take 5 standard deviations; what two heads, sites, steps or
 * samples drop has nothing in common, so that all results together are as of independent bits. */
TEST(dropped_weights_are_a_share_of_p)
{
    enum { B = 2, S = 128, HEADS = 4, D = 3, N = B * S * HEADS };
    form f = {B, S, HEADS, HEADS, D, .p = 0.3f};
    problem p = make(&f);
    rt_program program = {0};
    float *y = kt_floats(p.ny), *lse = kt_floats(p.nlse);
    rt_stream *s = kt_open(&program, 2);
    for (int64_t i = 0; i < p.nq; i++)
        p.q[i] = 0, p.v[i] = 1;
    rt_attention(s, y, lse, p.q, p.k, p.v, &(rt_attn_at){.keys = p.keys, .key = p.key},
                 &p.a, kt_bytes(kt_scratch.attention(&p.a, 2)));
    rt_device_close(s);
    double sum = 0, squares = 0, q = (double)f.p, var = q / (1 - q) / S;
    for (int64_t i = 0; i < N; i++) {
        double x = (double)y[i * D];
        CHECK(y[i * D] == y[i * D + 2]); /* weights are dropped, not values */
        sum += x;
        squares += (x - 1) * (x - 1);
    }
    CHECK_NEAR(sum / N, 1, 5 * sqrt(var / N));
    CHECK_NEAR(squares / N, var, 5 * var * sqrt(2.0 / N));
    kt_done();
}

/* A GPU counts at most 65535 blocks along y. Where a row sees itself alone, its result is its
 * value, and the gradient of a value the sum over the heads that read it. */
TEST(as_many_heads_as_there_are)
{
    enum { B = 33000, D = 2 };
    form f = {B, 1, 2, 1, D, .causal = true};
    problem p = make(&f);
    rt_program program = {0};
    rt_attn_at places = {0};
    float *y = kt_floats(p.ny), *lse = kt_floats(p.nlse), *dq = kt_floats(p.nq);
    float *dk = kt_floats(p.nk), *dv = kt_floats(p.nk);
    rt_stream *s = kt_open(&program, 0);
    rt_attention(s, y, lse, p.q, p.k, p.v, &places, &p.a,
                 kt_bytes(kt_scratch.attention(&p.a, 1)));
    rt_attention_grad(s, dq, dk, dv, p.dy, p.q, p.k, p.v, y, lse, &places, &p.a,
                      kt_bytes(kt_scratch.attention_grad(&p.a, 1)));
    rt_device_close(s);
    bool same = true, sum = true;
    for (int64_t i = 0; i < p.ny; i++)
        same = same && y[i] == p.v[i / (2 * D) * D + i % D];
    for (int64_t i = 0; i < p.nk; i++) {
        const float *dy = p.dy + i / D * 2 * D + i % D;
        sum = sum && fabsf(dv[i] - (dy[0] + dy[D])) < 1e-6f;
    }
    CHECK(same);
    CHECK(sum);
    kt_done();
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
                 kt_bytes(kt_scratch.attention(&p.a, 1)));
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
        rt_turn t = {f->batch * f->seq, f->table, f->cols, f->heads, f->start,
                     f->stride,         f->r,     k % 2,   RT_F32};
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
        for (int i = 0; i < 2; i++) {
            float *x = kt_copy(in[0], n);
            void *low = kt_as(x, n, i ? RT_F16 : RT_BF16);
            rt_stream *s = kt_open(&program, 2);
            t.type = RT_F32;
            rt_rotary(s, x, x, in[1], in[2], &t);
            t.type = i ? RT_F16 : RT_BF16;
            rt_rotary(s, low, low, in[1], in[2], &t);
            rt_device_close(s);
            CHECK(kt_is_rounded(low, x, n, t.type));
        }
        kt_done();
    }
}

/* A query that is not a number is not taken for one without keys, and spoils no other. */
TEST(attention_keeps_nan)
{
    form f = {2, 37, 2, 1, 16, true, .mask = 1};
    problem p = make(&f);
    int64_t bad = (37 + 5) * p.a.ldq; /* sample 1, row 5, head 0 */
    rt_attn_at at = {p.mask, NULL, NULL, p.keys, kt_bytes(8), 2 * 37};
    rt_program program = {0};
    float *y = kt_floats(p.ny), *lse = kt_floats(p.nlse);
    p.q[bad + 3] = NAN;
    rt_stream *s = kt_open(&program, 2);
    rt_attention(s, y, lse, p.q, p.k, p.v, &at, &p.a,
                 kt_bytes(kt_scratch.attention(&p.a, 2)));
    rt_device_close(s);
    for (int64_t i = 0; i < p.ny; i++)
        CHECK(!!isnan(y[i]) == (i >= bad && i < bad + 16));
    CHECK(isnan(lse[2 * 37 + 5]));
    CHECK(isfinite(lse[3 * 37 + 5]));
    kt_done();
}
