/* Kernels that do in one go what others do one after the other: against those. */
#include "kernel.h"

static double *
doubles(const void *x, int64_t n, rt_dtype t)
{
    double *y = kt_doubles(n);
    for (int64_t i = 0; i < n; i++)
        y[i] = (double)kt_element(x, i, t);
    return y;
}

/* ---- the whole gradient of a norm ---- */

typedef struct norm_case {
    int64_t rows, cols, off; /* operands begin `off` floats into their buffers */
    rt_dtype y, low;         /* low RT_F32: no copy */
    bool centred, from, dw, add;
} norm_case;

static const norm_case norms[] = {
    {1, 1, 0, RT_F32, RT_F32, true, true, true, false},
    {3, 31, 0, RT_F32, RT_F32, false, true, true, true},
    {33, 128, 0, RT_BF16, RT_BF16, false, true, true, true},
    {70, 768, 0, RT_BF16, RT_BF16, true, false, true, true},
    {1000, 64, 0, RT_F16, RT_F16, true, true, true, false},
    {127, 1000, 1, RT_F32, RT_BF16, true, true, true, true},
    {9, 64, 0, RT_F32, RT_BF16, false, false, false, false},
    {2, 20000, 0, RT_F32, RT_F32, false, true, true, false},
    {0, 64, 0, RT_F32, RT_F32, true, false, true, false},
};

typedef struct norm_out {
    void *dx, *low;
    float *dw, *db;
} norm_out;

static norm_out
out_of(const norm_case *z)
{
    int64_t n = z->rows * z->cols;
    return (norm_out){kt_floats(n), kt_bytes(n * 2), kt_noise(z->cols, 7, 1),
                      kt_noise(z->cols, 8, 1)};
}

typedef struct norm_in {
    float *x, *dy, *w, *mean, *rstd, *from;
    void *dy_low;
} norm_in;

static norm_in
in_of(const norm_case *z)
{
    int64_t n = z->rows * z->cols, o = z->off;
    norm_in p = {kt_noise(n + o, 1, 2) + o,
                 kt_noise(n + o, 2, 1) + o,
                 kt_noise(z->cols + o, 3, 1) + o,
                 kt_noise(z->rows, 4, 1),
                 kt_noise(z->rows, 5, 1),
                 kt_noise(n + o, 6, 1) + o,
                 NULL};
    p.dy_low = z->y == RT_F32 ? p.dy : kt_as(p.dy, n, z->y);
    return p;
}

/* The same by the single kernels, from added on the host. */
static void
apart(rt_program *program, const norm_case *z, const norm_in *p, norm_out *o)
{
    rt_norm n = {z->rows, z->cols, RT_F32, z->y, 0};
    rt_stream *s = kt_open(program, 1);
    if (z->centred) {
        rt_layernorm_dx(s, o->dx, p->dy_low, p->x, p->w, p->mean, p->rstd, &n);
        rt_layernorm_dwb(s, o->dw, o->db, p->dy_low, p->x, p->mean, p->rstd, &n, z->add,
                         z->add,
                         kt_bytes(kt_scratch.layernorm_dwb(z->rows, z->cols, 1)));
    } else {
        rt_rmsnorm_dx(s, o->dx, p->dy_low, p->x, p->w, p->rstd, &n);
        rt_rmsnorm_dw(s, o->dw, p->dy_low, p->x, p->rstd, &n, z->add,
                      kt_bytes(kt_scratch.rmsnorm_dw(z->rows, z->cols, 1)));
    }
    rt_device_close(s);
    for (int64_t i = 0; z->from && i < z->rows * z->cols; i++)
        ((float *)o->dx)[i] += p->from[i];
}

TEST(whole_gradients_of_norms)
{
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        const norm_case *z = &norms[i];
        int64_t n = z->rows * z->cols;
        rt_program program = {0};
        norm_in p = in_of(z);
        norm_out want = out_of(z), got = {0};
        void *dx[KT_TEAMS], *dw[KT_TEAMS];
        apart(&program, z, &p, &want);
        RUN_TEAMS(&program, s, team)
        {
            rt_norm_grad_of of = {
                {z->rows, z->cols, RT_F32, z->y, 0}, z->low, z->add, z->add};
            int64_t bytes =
                z->centred
                    ? kt_scratch.layernorm_dwb(z->rows, z->cols, kt_threads[team])
                    : kt_scratch.rmsnorm_dw(z->rows, z->cols, kt_threads[team]);
            got = out_of(z);
            rt_norm_grad(s, got.dx, z->low == RT_F32 ? NULL : got.low,
                         z->dw ? got.dw : NULL, z->dw && z->centred ? got.db : NULL,
                         p.dy_low, p.x, p.w, z->centred ? p.mean : NULL, p.rstd,
                         z->from ? p.from : NULL, &of, z->dw ? kt_bytes(bytes) : NULL);
            dx[team] = got.dx, dw[team] = got.dw;
        }
        CHECK(kt_same(dx, n * 4) && kt_same(dw, z->cols * 4));
        CHECK_NEAR(kt_error(got.dx, doubles(want.dx, n, RT_F32), n), 0, 4e-6);
        double size = 1e-6 * (double)z->rows + 4e-6;
        if (z->dw)
            CHECK_NEAR(kt_error(got.dw, doubles(want.dw, z->cols, RT_F32), z->cols), 0,
                       size);
        if (z->dw && z->centred)
            CHECK_NEAR(kt_error(got.db, doubles(want.db, z->cols, RT_F32), z->cols), 0,
                       size);
        if (z->low != RT_F32)
            CHECK(kt_is_rounded(got.low, got.dx, n, z->low));
        kt_done();
    }
}

/* ---- queries and keys together ---- */

TEST(queries_and_keys_turn_as_each_does)
{
    enum { ROWS = 33, Q = 4, K = 2, R = 8 };
    for (int t = 0; t < 2; t++) {
        rt_dtype type = t ? RT_BF16 : RT_F32;
        int64_t nq = ROWS * Q * R, nk = ROWS * K * R;
        float *q = kt_noise(nq, 1, 1), *k = kt_noise(nk, 2, 1);
        float *cos = kt_noise(ROWS * R, 3, 1), *sin = kt_noise(ROWS * R, 4, 1);
        void *ql = t ? kt_as(q, nq, type) : q, *kl = t ? kt_as(k, nk, type) : k;
        rt_turn of_q = {ROWS, ROWS, Q * R, Q, 0, R, R, t, type};
        rt_turn of_k = {ROWS, ROWS, K * R, K, 0, R, R, t, type};
        void *y[4];
        rt_program program = {0};
        for (int i = 0; i < 4; i++)
            y[i] = kt_bytes((i % 2 ? nk : nq) * kt_size(type));
        rt_stream *s = kt_open(&program, 2);
        rt_rotary2(s, y[0], ql, &of_q, y[1], kl, &of_k, cos, sin);
        rt_rotary(s, y[2], ql, cos, sin, &of_q);
        rt_rotary(s, y[3], kl, cos, sin, &of_k);
        rt_device_close(s);
        CHECK(!memcmp(y[0], y[2], (size_t)(nq * kt_size(type))));
        CHECK(!memcmp(y[1], y[3], (size_t)(nk * kt_size(type))));
        kt_done();
    }
}

/* ---- products that add to what is elsewhere ---- */

TEST(a_product_is_added_to_what_is_elsewhere)
{
    static const rt_dtype types[][2] = {
        {RT_F32, RT_F32}, {RT_BF16, RT_F32}, {RT_BF16, RT_BF16}};
    enum { M = 33, N = 48, K = 31 };
    for (int t = 0; t < 3; t++) {
        rt_gemm_desc d = {.m = M,
                          .n = N,
                          .k = K,
                          .a = types[t][0],
                          .b = types[t][0],
                          .c = types[t][1],
                          .bias = true,
                          .add = true,
                          .alpha = 1,
                          .lda = K,
                          .ldb = N,
                          .ldc = N,
                          .batch = 1};
        float *a = kt_noise(M * K, 1, 1), *b = kt_noise(K * N, 2, 1);
        float *bias = kt_noise(N, 3, 1), *from = kt_noise(M * N, 4, 1);
        void *al = d.a == RT_F32 ? a : kt_as(a, M * K, d.a);
        void *bl = d.a == RT_F32 ? b : kt_as(b, K * N, d.a);
        void *fl = d.c == RT_F32 ? from : kt_as(from, M * N, d.c);
        void *there = kt_bytes(M * N * 4), *here = kt_bytes(M * N * 4);
        memcpy(here, fl, (size_t)(M * N * kt_size(d.c)));
        rt_program program = {.ngemm = 1, .gemm = &d};
        d.scratch = kt_scratch.gemm(&d, 2);
        rt_stream *s = kt_open(&program, 2);
        rt_gemm_from(s, 0, there, fl, al, bl, bias, kt_bytes(d.scratch));
        rt_gemm_from(s, 0, here, here, al, bl, bias, kt_bytes(d.scratch));
        rt_device_close(s);
        CHECK(!memcmp(there, here, (size_t)(M * N * kt_size(d.c))));
        double *want = kt_doubles(M * N), half = d.c == RT_F32 ? 1e-5 : 0x1p-7;
        for (int i = 0; i < M * N; i++) {
            want[i] = (double)bias[i % N] + (double)from[i];
            for (int k = 0; k < K; k++)
                want[i] += (double)a[i / N * K + k] * (double)b[k * N + i % N];
        }
        for (int i = 0; i < M * N; i++)
            CHECK(fabs((double)kt_element(there, i, d.c) - want[i]) <=
                  half * fmax(1, fabs(want[i])));
        kt_done();
    }
}
