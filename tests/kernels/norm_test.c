/* Layer normalisation and softmax against plain loops in double. */
#include "kernel.h"

typedef struct size2 {
    int64_t rows, cols;
} size2;
static const size2 sizes[] = {{1, 1},     {3, 5},      {7, 16},  {64, 17},
                              {33, 768},  {300, 1030}, {31, 33}, {127, 1000},
                              {2, 16388}, {2, 8192}};

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
            kt_wait(s);
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
        kt_wait(s);
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
        if (!KT_ON_DEVICE || sizes[i / 9].rows * sizes[i / 9].cols < 30000)
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
        int64_t wrong = 0;
        for (int64_t k = 0; k < n; k++)
            wrong += isinf(x[k]) && ((float *)y[0])[k] != 0;
        CHECK(wrong == 0);
        kt_done();
    }
}

TEST(softmax_of_masked_rows_is_nan)
{
    static const float rows[2][3] = {{-INFINITY, -INFINITY, -INFINITY},
                                     {0, -INFINITY, 0}};
    rt_program program = {0};
    float *x = kt_copy(rows[0], 6), *y = kt_floats(6);
    rt_stream *s = kt_open(&program, 1);
    rt_softmax(s, y, x, 2, 3);
    rt_device_close(s);
    CHECK(isnan(y[0]) && isnan(y[1]) && isnan(y[2]));
    CHECK(y[3] == 0.5f && y[4] == 0 && y[5] == 0.5f);
    kt_done();
}

/* Whoever replaces the NaN has no gradient for it, and then nothing may come out. */
TEST(no_gradient_through_masked_rows)
{
    static const float rows[2][3] = {{0, -0.0f, 0}, {0, 1, 0}};
    rt_program program = {0};
    float *y = kt_floats(6), *dx = kt_floats(6), *dy = kt_copy(rows[0], 6);
    rt_stream *s = kt_open(&program, 1);
    rt_softmax_grad(s, dx, dy, y, 2, 3); /* y is NaN */
    rt_device_close(s);
    CHECK(dx[0] == 0 && dx[1] == 0 && dx[2] == 0);
    CHECK(isnan(dx[3]) && isnan(dx[4]) && isnan(dx[5]));
    kt_done();
}

/* Rows that begin anywhere give what aligned ones give. */
TEST(norms_at_odd_addresses)
{
    enum { ROWS = 5, COLS = 772, ALL = ROWS * COLS, OFF = 3 };
    rt_program program = {0};
    ln p = make(&(size2){ROWS, COLS});
    rt_norm n = {ROWS, COLS, RT_F32, RT_F32, 1e-3f};
    float *mean = kt_floats(ROWS), *rstd = kt_floats(ROWS), *rms = kt_floats(ROWS);
    double *wx = kt_doubles(ALL), *ww = kt_doubles(COLS), *wb = kt_doubles(COLS);
    backward(&(size2){ROWS, COLS}, &p, wx, ww, wb);
    for (int off = 0; off < 4; off += OFF) {
        float *x = kt_floats(ALL + OFF), *y = kt_floats(ALL + OFF),
              *w = kt_floats(COLS + OFF);
        float *dy = kt_floats(ALL + OFF), *dw = kt_floats(COLS), *db = kt_floats(COLS);
        float *scratch = kt_bytes(kt_scratch.layernorm_dwb(ROWS, COLS, 1));
        memcpy(x + off, p.x, ALL * sizeof *x);
        memcpy(w + off, p.w, COLS * sizeof *w);
        memcpy(dy + off, p.dy, ALL * sizeof *dy);
        rt_stream *s = kt_open(&program, 1);
        rt_layernorm(s, y + off, mean, rstd, x + off, w + off, p.b, &n);
        rt_rmsnorm(s, y + off, rms, x + off, w + off, &n);
        rt_layernorm_dx(s, y + off, dy + off, x + off, w + off, mean, rstd, &n);
        rt_layernorm_dwb(s, dw, db, dy + off, x + off, mean, rstd, &n, false, false,
                         scratch);
        rt_device_close(s);
        CHECK_NEAR(kt_error(y + off, wx, ALL), 0, 2e-5);
        CHECK_NEAR(kt_error(dw, ww, COLS), 0, 5e-5);
        CHECK_NEAR(kt_error(db, wb, COLS), 0, 2e-5);
    }
    kt_done();
}

/* A row without variance, one whose squares are as large as floats are, one of tiny values. */
TEST(norms_of_extreme_rows)
{
    enum { ROWS = 3, COLS = 1000 };
    static const float size[ROWS] = {7, 1e17f, 1e-20f};
    rt_program program = {0};
    rt_norm n = {ROWS, COLS, RT_F32, RT_F32, 1e-3f};
    float *x = kt_floats(ROWS * COLS), *y = kt_floats(ROWS * COLS),
          *w = kt_floats(COLS);
    float *b = kt_floats(COLS), *mean = kt_floats(ROWS), *rstd = kt_floats(ROWS);
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = i < COLS || i % 2 ? size[i / COLS] : -size[i / COLS];
    for (int i = 0; i < COLS; i++)
        w[i] = 1, b[i] = 0.5f;
    rt_stream *s = kt_open(&program, 1);
    rt_layernorm(s, y, mean, rstd, x, w, b, &n);
    rt_device_close(s);
    CHECK(y[0] == 0.5f && y[COLS - 1] == 0.5f && mean[0] == 7);
    CHECK_NEAR((double)y[COLS], -0.5, 1e-5);
    CHECK_NEAR((double)y[COLS + 1], 1.5, 1e-5);
    CHECK_NEAR((double)y[2 * COLS], 0.5, 1e-6);
    kt_done();
}

TEST(no_rows)
{
    rt_program program = {0};
    float *w = kt_noise(8, 1, 1), *dw = kt_floats(8), *db = kt_copy(w, 8),
          *none = kt_floats(0);
    rt_norm n = {0, 8, RT_F32, RT_F32, 1e-3f};
    rt_stream *s = kt_open(&program, 1);
    rt_layernorm(s, none, none, none, none, w, w, &n);
    rt_layernorm_dx(s, none, none, none, w, none, none, &n);
    rt_layernorm_dwb(s, dw, db, none, none, none, none, &n, false, true,
                     kt_bytes(kt_scratch.layernorm_dwb(0, 8, 1)));
    rt_softmax(s, none, none, 0, 8);
    rt_device_close(s);
    for (int i = 0; i < 8; i++)
        CHECK(dw[i] == 0 && db[i] == w[i]);
    kt_done();
}
