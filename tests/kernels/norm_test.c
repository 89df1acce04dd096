/* Layer normalisation and softmax against plain loops in double. */
#include "kernel.h"

typedef struct size2 {
    int64_t rows, cols;
} size2;
static const size2 sizes[] = {{1, 1},   {3, 5},    {7, 16},
                              {64, 17}, {33, 768}, {300, 1030}};

typedef struct ln {
    float *x, *w, *b, *dy;
    double *mean, *rstd;
} ln;

static ln
make(const size2 *z)
{
    int64_t n = z->rows * z->cols;
    ln p = {kt_noise(n, 1, 3), kt_noise(z->cols, 2, 1), kt_noise(z->cols, 3, 1),
            kt_noise(n, 4, 1), kt_doubles(z->rows),     kt_doubles(z->rows)};
    for (int64_t r = 0; r < z->rows; r++) {
        const float *x = p.x + r * z->cols;
        double m = 0, v = 0;
        for (int64_t c = 0; c < z->cols; c++)
            m += (double)x[c] / (double)z->cols;
        for (int64_t c = 0; c < z->cols; c++)
            v += ((double)x[c] - m) * ((double)x[c] - m) / (double)z->cols;
        p.mean[r] = m;
        p.rstd[r] = 1 / sqrt(v + 1e-3);
    }
    return p;
}

TEST(layernorm_forward)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size2 *z = &sizes[i];
        ln p = make(z);
        rt_program program = {0};
        int64_t n = z->rows * z->cols;
        double *want = kt_doubles(n);
        void *y[KT_TEAMS];
        float *mean = kt_floats(z->rows), *rstd = kt_floats(z->rows);
        for (int64_t k = 0; k < n; k++)
            want[k] = ((double)p.x[k] - p.mean[k / z->cols]) * p.rstd[k / z->cols] *
                          (double)p.w[k % z->cols] +
                      (double)p.b[k % z->cols];
        RUN_TEAMS(&program, s, team)
        {
            y[team] = kt_floats(n);
            rt_layernorm(s, y[team], mean, rstd, p.x, p.w, p.b,
                         &(rt_norm){z->rows, z->cols, RT_F32, RT_F32, 1e-3f});
        }
        CHECK(kt_same(y, n * (int64_t)sizeof(float)));
        CHECK_NEAR(kt_error(y[0], want, n), 0, 3e-6);
        CHECK_NEAR(kt_error(mean, p.mean, z->rows), 0, 1e-6);
        CHECK_NEAR(kt_error(rstd, p.rstd, z->rows), 0, 1e-5);
        kt_done();
    }
}

/* dx, dw, db in double. */
static void
backward(const size2 *z, const ln *p, double *dx, double *dw, double *db)
{
    for (int64_t r = 0; r < z->rows; r++) {
        double ag = 0, agx = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t c = 0; c < z->cols; c++) {
                int64_t k = r * z->cols + c;
                double xh = ((double)p->x[k] - p->mean[r]) * p->rstd[r];
                double g = (double)p->dy[k] * (double)p->w[c];
                if (pass) {
                    dx[k] = p->rstd[r] * (g - ag - xh * agx);
                    continue;
                }
                ag += g / (double)z->cols;
                agx += g * xh / (double)z->cols;
                dw[c] += (double)p->dy[k] * xh;
                db[c] += (double)p->dy[k];
            }
    }
}

TEST(layernorm_backward)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size2 *z = &sizes[i];
        ln p = make(z);
        rt_program program = {0};
        int64_t n = z->rows * z->cols, c = z->cols;
        double *wx = kt_doubles(n), *ww = kt_doubles(c), *wb = kt_doubles(c);
        float *mean = kt_floats(z->rows), *rstd = kt_floats(z->rows);
        void *dx[KT_TEAMS], *dw[KT_TEAMS], *db[KT_TEAMS];
        backward(z, &p, wx, ww, wb);
        for (int64_t r = 0; r < z->rows; r++)
            mean[r] = (float)p.mean[r], rstd[r] = (float)p.rstd[r];
        RUN_TEAMS(&program, s, team)
        {
            dx[team] = kt_copy(p.dy, n); /* in place */
            dw[team] = kt_copy(p.w, c);
            db[team] = kt_floats(c);
            void *scratch = kt_bytes(kt_scratch.layernorm_dwb(z->rows, c, 1));
            rt_norm floats = {z->rows, c, RT_F32, RT_F32, 1e-3f};
            rt_layernorm_dx(s, dx[team], dx[team], p.x, p.w, mean, rstd, &floats);
            rt_layernorm_dwb(s, dw[team], db[team], p.dy, p.x, mean, rstd, &floats,
                             true, false, scratch);
            rt_layernorm_dwb(s, NULL, NULL, p.dy, p.x, mean, rstd, &floats, true, true,
                             scratch);
        }
        for (int64_t k = 0; k < c; k++)
            ww[k] += (double)p.w[k];
        CHECK(kt_same(dx, n * (int64_t)sizeof(float)));
        CHECK(kt_same(dw, c * (int64_t)sizeof(float)));
        CHECK(kt_same(db, c * (int64_t)sizeof(float)));
        CHECK_NEAR(kt_error(dx[0], wx, n), 0, 2e-5);
        CHECK_NEAR(kt_error(dw[0], ww, c), 0, 5e-5);
        CHECK_NEAR(kt_error(db[0], wb, c), 0, 2e-5);
        kt_done();
    }
}

/* 1 / rms of each row, y, dx and dw in double. */
static void
rms_reference(const size2 *z, const ln *p, double *out[4])
{
    double *rstd = out[0], *y = out[1], *dx = out[2], *dw = out[3];
    for (int64_t r = 0; r < z->rows; r++) {
        const float *x = p->x + r * z->cols, *dy = p->dy + r * z->cols;
        double sum = 0, dot = 0;
        for (int64_t c = 0; c < z->cols; c++)
            sum += (double)x[c] * (double)x[c] / (double)z->cols;
        double q = rstd[r] = 1 / sqrt(sum + 1e-3);
        for (int64_t c = 0; c < z->cols; c++) {
            y[r * z->cols + c] = (double)x[c] * q * (double)p->w[c];
            dw[c] += (double)dy[c] * (double)x[c] * q;
            dot += (double)dy[c] * (double)p->w[c] * (double)x[c] * q;
        }
        for (int64_t c = 0; c < z->cols; c++)
            dx[r * z->cols + c] = q * ((double)dy[c] * (double)p->w[c] -
                                       (double)x[c] * q * dot / (double)z->cols);
    }
}

TEST(rmsnorm_and_its_gradients)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size2 *z = &sizes[i];
        ln p = make(z);
        rt_program program = {0};
        int64_t n = z->rows * z->cols, c = z->cols, rows = z->rows;
        double *want[] = {kt_doubles(rows), kt_doubles(n), kt_doubles(n),
                          kt_doubles(c)};
        float *rstd = kt_floats(rows);
        void *y[KT_TEAMS], *dx[KT_TEAMS], *dw[KT_TEAMS];
        rms_reference(z, &p, want);
        RUN_TEAMS(&program, s, team)
        {
            y[team] = kt_floats(n);
            dx[team] = kt_copy(p.dy, n); /* in place */
            dw[team] = kt_copy(p.w, c);
            float *fresh = kt_floats(c);
            void *scratch = kt_bytes(kt_scratch.rmsnorm_dw(rows, c, 1));
            rt_norm floats = {rows, c, RT_F32, RT_F32, 1e-3f};
            rt_rmsnorm(s, y[team], rstd, p.x, p.w, &floats);
            rt_rmsnorm_dx(s, dx[team], dx[team], p.x, p.w, rstd, &floats);
            rt_rmsnorm_dw(s, fresh, p.dy, p.x, rstd, &floats, false, scratch);
            CHECK_NEAR(kt_error(fresh, want[3], c), 0, 5e-5);
            rt_rmsnorm_dw(s, dw[team], p.dy, p.x, rstd, &floats, true, scratch);
        }
        for (int64_t k = 0; k < c; k++)
            want[3][k] += (double)p.w[k];
        CHECK(kt_same(y, n * (int64_t)sizeof(float)));
        CHECK(kt_same(dx, n * (int64_t)sizeof(float)));
        CHECK(kt_same(dw, c * (int64_t)sizeof(float)));
        CHECK_NEAR(kt_error(rstd, want[0], rows), 0, 1e-5);
        CHECK_NEAR(kt_error(y[0], want[1], n), 0, 3e-6);
        CHECK_NEAR(kt_error(dx[0], want[2], n), 0, 2e-5);
        CHECK_NEAR(kt_error(dw[0], want[3], c), 0, 5e-5);
        kt_done();
    }
}

/* What the kernels give for x, dy of the types and w, b. */
typedef struct outs {
    void *y, *ry, *dx, *rdx, *mean, *rstd, *dw, *db, *rdw;
} outs;

static outs
run(rt_stream *s, const rt_norm *n, const void *x, const void *dy, const ln *p)
{
    int64_t all = n->rows * n->cols, nx = all * kt_size(n->x), ny = all * kt_size(n->y);
    outs o = {kt_bytes(ny),       kt_bytes(ny),       kt_bytes(nx),
              kt_bytes(nx),       kt_floats(n->rows), kt_floats(n->rows),
              kt_floats(n->cols), kt_floats(n->cols), kt_floats(n->cols)};
    float *q = kt_floats(n->rows);
    void *scratch = kt_bytes(kt_scratch.layernorm_dwb(n->rows, n->cols, 3));
    rt_layernorm(s, o.y, o.mean, o.rstd, x, p->w, p->b, n);
    rt_layernorm_dx(s, o.dx, dy, x, p->w, o.mean, o.rstd, n);
    rt_layernorm_dwb(s, o.dw, o.db, dy, x, o.mean, o.rstd, n, false, false, scratch);
    rt_rmsnorm(s, o.ry, q, x, p->w, n);
    rt_rmsnorm_dx(s, o.rdx, dy, x, p->w, q, n);
    rt_rmsnorm_dw(s, o.rdw, dy, x, q, n, false, scratch);
    return o;
}

static void
check_types(const size2 *z, rt_dtype tx, rt_dtype ty)
{
    ln p = make(z);
    int64_t n = z->rows * z->cols, row = z->rows * 4, col = z->cols * 4;
    const void *x = kt_as(p.x, n, tx), *dy = kt_as(p.dy, n, ty);
    rt_norm floats = {z->rows, z->cols, RT_F32, RT_F32, 1e-3f}, low = floats;
    rt_program program = {0};
    low.x = tx, low.y = ty;
    RUN_TEAMS(&program, s, team)
    {
        outs want = run(s, &floats, p.x, p.dy, &p), got = run(s, &low, x, dy, &p);
        CHECK(kt_is_rounded(got.y, want.y, n, ty));
        CHECK(kt_is_rounded(got.ry, want.ry, n, ty));
        CHECK(kt_is_rounded(got.dx, want.dx, n, tx));
        CHECK(kt_is_rounded(got.rdx, want.rdx, n, tx));
        CHECK(!memcmp(got.mean, want.mean, (size_t)row));
        CHECK(!memcmp(got.rstd, want.rstd, (size_t)row));
        CHECK(!memcmp(got.dw, want.dw, (size_t)col));
        CHECK(!memcmp(got.db, want.db, (size_t)col));
        CHECK(!memcmp(got.rdw, want.rdw, (size_t)col));
    }
    kt_done();
}

/* x and y each of any type: what floats give, rounded once. */
TEST(norms_of_low_types_are_the_float_results_rounded)
{
    static const rt_dtype types[3] = {RT_F32, RT_BF16, RT_F16};
    for (size_t i = 0; i < 9 * (sizeof sizes / sizeof *sizes); i++)
        check_types(&sizes[i / 9], types[i % 3], types[i / 3 % 3]);
}

TEST(softmax_and_its_gradient)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size2 *z = &sizes[i];
        int64_t n = z->rows * z->cols;
        rt_program program = {0};
        float *x = kt_noise(n, 5, 30), *dy = kt_noise(n, 6, 1);
        double *want = kt_doubles(n), *grad = kt_doubles(n);
        void *y[KT_TEAMS], *dx[KT_TEAMS];
        for (int64_t k = 0; k < n; k += 3)
            if (k % z->cols)
                x[k] = -INFINITY; /* a mask */
        for (int64_t r = 0; r < z->rows; r++) {
            double max = -INFINITY, sum = 0, dot = 0;
            for (int64_t k = r * z->cols; k < (r + 1) * z->cols; k++)
                max = fmax(max, (double)x[k]);
            for (int64_t k = r * z->cols; k < (r + 1) * z->cols; k++)
                sum += exp((double)x[k] - max);
            for (int64_t k = r * z->cols; k < (r + 1) * z->cols; k++) {
                want[k] = exp((double)x[k] - max) / sum;
                dot += want[k] * (double)dy[k];
            }
            for (int64_t k = r * z->cols; k < (r + 1) * z->cols; k++)
                grad[k] = ((double)dy[k] - dot) * want[k];
        }
        RUN_TEAMS(&program, s, team)
        {
            y[team] = kt_floats(n), dx[team] = kt_floats(n);
            rt_softmax(s, y[team], x, z->rows, z->cols);
            rt_softmax_grad(s, dx[team], dy, y[team], z->rows, z->cols);
        }
        CHECK(kt_same(y, n * (int64_t)sizeof(float)));
        CHECK(kt_same(dx, n * (int64_t)sizeof(float)));
        CHECK_NEAR(kt_error(y[0], want, n), 0, 5e-7);
        CHECK_NEAR(kt_error(dx[0], grad, n), 0, 1e-6);
        for (int64_t k = 0; k < n; k++)
            CHECK(isinf(x[k]) ? ((float *)y[0])[k] == 0 : true);
        kt_done();
    }
}

TEST(softmax_of_masked_rows_is_nan)
{
    rt_program program = {0};
    float x[2][3] = {{-INFINITY, -INFINITY, -INFINITY}, {0, -INFINITY, 0}}, y[2][3];
    rt_stream *s = kt_open(&program, 1);
    rt_softmax(s, y[0], x[0], 2, 3);
    rt_device_close(s);
    CHECK(isnan(y[0][0]) && isnan(y[0][1]) && isnan(y[0][2]));
    CHECK(y[1][0] == 0.5f && y[1][1] == 0 && y[1][2] == 0.5f);
}

/* Whoever replaces the NaN has no gradient for it, and then nothing may come out. */
TEST(no_gradient_through_masked_rows)
{
    rt_program program = {0};
    float y[2][3] = {{NAN, NAN, NAN}, {NAN, NAN, NAN}}, dx[2][3];
    float dy[2][3] = {{0, -0.0f, 0}, {0, 1, 0}};
    rt_stream *s = kt_open(&program, 1);
    rt_softmax_grad(s, dx[0], dy[0], y[0], 2, 3);
    rt_device_close(s);
    CHECK(dx[0][0] == 0 && dx[0][1] == 0 && dx[0][2] == 0);
    CHECK(isnan(dx[1][0]) && isnan(dx[1][1]) && isnan(dx[1][2]));
}
