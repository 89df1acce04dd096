/* Rows of tables: embedding, gather, their gradients, rotary positions. */
#include "kernel.h"

static const rt_dtype types[] = {RT_F32, RT_BF16, RT_F16};
enum { NTYPES = sizeof types / sizeof *types };

static int64_t *
ids_of(int64_t n, int64_t v, bool negative)
{
    int64_t *ids = kt_bytes(n * (int64_t)sizeof *ids);
    uint32_t seed = 5;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = kt_random(&seed) % v;
        if (negative && i % 2)
            ids[i] -= v;
    }
    return ids;
}

static int64_t
differ(const float *a, const float *b, int64_t n)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += a[i] != b[i];
    return wrong;
}

/* ---- embedding ---- */

/* Sums by id, set and added; off: floats that buffers begin behind what is aligned. */
static void
check_embed_grad(const int64_t *ids, int64_t rows, int64_t h, int64_t v, int off)
{
    rt_program program = {0};
    float *table = kt_noise(v * h, 1, 1), *dy = kt_noise(rows * h + off, 2, 1) + off;
    double *want = kt_doubles(v * h), *more = kt_doubles(v * h);
    float *d[KT_TEAMS], *d2[KT_TEAMS];
    for (int64_t k = 0; k < rows * h; k++)
        want[ids[k / h] * h + k % h] += (double)dy[k];
    for (int64_t k = 0; k < v * h; k++)
        more[k] = want[k] + (double)table[k];
    RUN_TEAMS(&program, s, team)
    {
        void *scratch = kt_bytes(kt_scratch.embed_grad(rows, h, v, kt_threads[team]));
        d[team] = kt_floats(v * h + off) + off;
        d2[team] = memcpy(kt_floats(v * h + off) + off, table, (size_t)(v * h) * 4);
        rt_embed_grad(s, d[team], dy, RT_F32, ids, rows, h, v, false, scratch);
        rt_embed_grad(s, d2[team], dy, RT_F32, ids, rows, h, v, true, scratch);
    }
    CHECK(kt_same((void **)d, v * h * 4) && kt_same((void **)d2, v * h * 4));
    CHECK_NEAR(kt_error(d[0], want, v * h), 0, 1e-4);
    CHECK_NEAR(kt_error(d2[0], more, v * h), 0, 1e-4);
}

TEST(gradient_of_an_embedding)
{
    static const int64_t z[][3] = {{1, 1, 1},       {3, 4, 1},     {31, 3, 2},
                                   {33, 31, 1},     {50, 7, 5},    {127, 12, 70000},
                                   {300, 130, 40},  {1000, 33, 2}, {2000, 64, 9},
                                   {513, 127, 300}, {0, 8, 3},     {70, 1000, 260}};
    for (size_t i = 0; i < 2 * sizeof z / sizeof *z; i++) {
        const int64_t *k = z[i / 2];
        check_embed_grad(ids_of(k[0], k[2], false), k[0], k[1], k[2], i % 2);
        kt_done();
    }
}

/* More rows than threads: a warp goes on from one to the next. */
TEST(ids_of_more_rows_than_threads)
{
    check_embed_grad(ids_of(1100, 300, false), 1100, 1, 300, 0);
    kt_done();
}

/* Runs of equal ids in order of position: of every length against that of a chunk. */
TEST(gradient_of_an_embedding_of_runs)
{
    enum { ROWS = 300, V = 7 };
    static const int64_t run[] = {1, 16, 31, 32, 33, 63, 64, 65, 128, 299, 300};
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        int64_t *ids = kt_bytes(ROWS * 8);
        for (int64_t r = 0; r < ROWS; r++)
            ids[r] = r / run[i] % V;
        check_embed_grad(ids, ROWS, 4, V, 0);
        kt_done();
    }
}

/* From a table of any type to any type; the gradient of rows of low types. */
TEST(embedding_of_any_type)
{
    static const int64_t z[][3] = {{1, 1, 1}, {301, 131, 17}, {33, 64, 300}, {0, 4, 2}};
    for (size_t i = 0; i < NTYPES * NTYPES * sizeof z / sizeof *z; i++) {
        const int64_t *k = z[i / NTYPES / NTYPES];
        rt_dtype to = types[i % NTYPES], from = types[i / NTYPES % NTYPES];
        int64_t rows = k[0], h = k[1], v = k[2], *ids = ids_of(rows, v, false);
        float *x = kt_noise(v * h, 1, 1), *plain = kt_floats(rows * h);
        float *dy = kt_noise(rows * h, 2, 1), *dx[KT_TEAMS], *want = kt_floats(v * h);
        const void *table = kt_as(x, v * h, from), *low = kt_as(dy, rows * h, from);
        void *y[KT_TEAMS];
        rt_program program = {0};
        for (int64_t e = 0; e < rows * h; e++)
            plain[e] = x[ids[e / h] * h + e % h];
        RUN_TEAMS(&program, s, team)
        {
            void *scratch =
                kt_bytes(kt_scratch.embed_grad(rows, h, v, kt_threads[team]));
            y[team] = kt_bytes(rows * h * kt_size(to)), dx[team] = kt_floats(v * h);
            rt_embed(s, y[team], to, table, from, ids, rows, h);
            rt_embed_grad(s, dx[team], low, from, ids, rows, h, v, false, scratch);
            rt_embed_grad(s, want, dy, RT_F32, ids, rows, h, v, false, scratch);
        }
        CHECK(kt_is_rounded(y[0], plain, rows * h, to));
        CHECK(kt_same(y, rows * h * kt_size(to)) && kt_same((void **)dx, v * h * 4));
        CHECK(differ(dx[0], want, v * h) == 0);
        kt_done();
    }
}

/* ---- gather ---- */

static void
check_gather(const int64_t *z, rt_dtype t, int off)
{
    int64_t outer = z[0], n = z[1], inner = z[2], m = z[3], nx = outer * n * inner,
            ny = outer * m * inner, *idx = ids_of(m, n, true);
    float *x = kt_noise(nx, 1, 1), *dy = kt_noise(ny, 2, 1), *want = kt_floats(ny);
    double *sum = kt_doubles(nx);
    char *low = kt_bytes((nx + off) * kt_size(t)),
         *back = kt_bytes((ny + off) * kt_size(t));
    void *y[KT_TEAMS], *dx[KT_TEAMS];
    rt_program program = {0};
    low = memcpy(low + off * kt_size(t), kt_as(x, nx, t), (size_t)(nx * kt_size(t)));
    back = memcpy(back + off * kt_size(t), kt_as(dy, ny, t), (size_t)(ny * kt_size(t)));
    for (int64_t k = 0; k < ny; k++) {
        int64_t at = idx[k / inner % m] + (idx[k / inner % m] < 0 ? n : 0);
        int64_t from = (k / inner / m * n + at) * inner + k % inner;
        want[k] = x[from];
        sum[from] += (double)dy[k];
    }
    RUN_TEAMS(&program, s, team)
    {
        y[team] = kt_bytes(ny * kt_size(t)), dx[team] = kt_bytes(nx * kt_size(t));
        rt_gather(s, y[team], low, idx, outer, n, inner, m, (int)kt_size(t));
        rt_gather_grad(s, dx[team], back, idx, outer, n, inner, m, t);
    }
    CHECK(kt_same(y, ny * kt_size(t)) && kt_same(dx, nx * kt_size(t)));
    CHECK(kt_is_rounded(y[0], want, ny, t));
    for (int64_t k = 0; k < nx; k++) {
        double step = t == RT_F32 ? 0x1p-24 : t == RT_BF16 ? 0x1p-8 : 0x1p-11;
        CHECK_NEAR((double)kt_element(dx[0], k, t), sum[k], 1e-5 + step * fabs(sum[k]));
    }
    kt_done();
}

TEST(gather_and_its_gradient)
{
    static const int64_t z[][4] = {
        {1, 1, 1, 1},     {1, 4, 1, 3},     {3, 5, 2, 9},      {2, 5, 3, 90},
        {1, 40, 33, 300}, {2, 30, 100, 40}, {2, 150, 130, 20}, {1, 2, 8, 1000},
        {2, 33, 300, 31}, {2, 7, 5, 0},     {1, 31, 127, 513}};
    for (size_t i = 0; i < 2 * NTYPES * sizeof z / sizeof *z; i++)
        check_gather(z[i / 2 / NTYPES], types[i / 2 % NTYPES], i % 2);
}

/* Of a low type: equal indices add up in floats, and the sum is rounded once. */
TEST(gradient_of_a_low_gather_is_that_of_floats_rounded)
{
    enum { N = 40, M = 300, INNER = 33 };
    for (int i = 1; i < NTYPES; i++) {
        int64_t *idx = ids_of(M, N, true);
        float *dy = kt_noise(M * INNER, 2, 1), *want = kt_floats(N * INNER);
        void *low = kt_as(dy, M * INNER, types[i]), *dx = kt_bytes(N * INNER * 2);
        rt_program program = {0};
        rt_stream *s = kt_open(&program, 2);
        rt_gather_grad(s, dx, low, idx, 1, N, INNER, M, types[i]);
        rt_gather_grad(s, want, dy, idx, 1, N, INNER, M, RT_F32);
        rt_device_close(s);
        CHECK(kt_is_rounded(dx, want, N * INNER, types[i]));
        kt_done();
    }
}

/* ---- rotary positions ---- */

/* Column k of a row by the formula. */
static double
turned(const rt_turn *t, const float *x, const float *cos, const float *sin, int64_t k)
{
    int64_t o = k - t->start, p = o % t->stride, half = t->r / 2;
    if (o < 0 || o / t->stride >= t->heads || p >= t->r)
        return (double)x[k];
    int64_t other = p < half ? p + half : p - half;
    double s = (double)sin[t->back ? other : p];
    return (double)x[k] * (double)cos[p] +
           (double)x[k - p + other] * ((p < half) == t->back ? s : -s);
}

/* In place and to another place, packed heads and heads between other columns. */
TEST(rotary_positions)
{
    static const rt_turn list[] = {{1, 1, 2, 1, 0, 2, 2, false, RT_F32},
                                   {3, 1, 64, 2, 0, 32, 32, false, RT_F32},
                                   {31, 31, 33, 3, 0, 11, 10, true, RT_F32},
                                   {33, 11, 127, 2, 1, 63, 62, false, RT_F32},
                                   {64, 16, 192, 4, 64, 16, 16, true, RT_F32},
                                   {5, 5, 288, 3, 32, 64, 48, false, RT_F32},
                                   {4, 2, 80, 1, 16, 33, 32, true, RT_F32},
                                   {2, 2, 1000, 5, 0, 200, 128, false, RT_F32},
                                   {99, 33, 387, 3, 4, 40, 34, true, RT_F32},
                                   {80, 80, 256, 2, 0, 128, 128, true, RT_F32},
                                   {0, 1, 64, 2, 0, 32, 32, false, RT_F32}};
    for (size_t i = 0; i < 2 * NTYPES * sizeof list / sizeof *list; i++) {
        rt_turn t = list[i / 2 / NTYPES];
        t.type = types[i / 2 % NTYPES];
        int64_t n = t.rows * t.cols, size = kt_size(t.type), off = i % 2 * size;
        float *x = kt_noise(n, 1, 2), *cos = kt_noise(t.table * t.r, 2, 1);
        float *sin = kt_noise(t.table * t.r, 3, 1);
        double *want = kt_doubles(n);
        char *low = kt_bytes(n * size + off), *y[KT_TEAMS], *same[KT_TEAMS];
        low = memcpy(low + off, kt_as(x, n, t.type), (size_t)(n * size));
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            y[team] = (char *)kt_bytes(n * size + off) + off;
            same[team] =
                memcpy((char *)kt_bytes(n * size + off) + off, low, (size_t)(n * size));
            rt_rotary(s, y[team], low, cos, sin, &t);
            rt_rotary(s, same[team], same[team], cos, sin, &t);
        }
        CHECK(kt_same((void **)y, n * size) && kt_same((void **)same, n * size));
        CHECK(!memcmp(y[0], same[0], (size_t)(n * size)));
        for (int64_t e = 0; e < n; e++) {
            int64_t at = e / t.cols % t.table * t.r, first = e / t.cols * t.cols;
            double step = t.type == RT_F32 ? 0 : t.type == RT_BF16 ? 0x1p-8 : 0x1p-11;
            want[e] = turned(&t, x + first, cos + at, sin + at, e % t.cols);
            CHECK_NEAR((double)kt_element(y[0], e, t.type), want[e],
                       1e-6 + step * fabs(want[e]));
        }
        kt_done();
    }
}
