/* Kernels that move and add data: embedding, gather, transpose, blocks, reductions. */
#include "kernel.h"

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

TEST(embedding_and_its_gradient)
{
    static const int64_t z[][3] = {
        {1, 1, 1}, {50, 7, 5}, {300, 130, 40}, {2000, 64, 9}};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++) {
        int64_t rows = z[i][0], h = z[i][1], v = z[i][2], *ids = ids_of(rows, v, false);
        rt_program program = {0};
        float *table = kt_noise(v * h, 1, 1), *dy = kt_noise(rows * h, 2, 1);
        double *want = kt_doubles(v * h), *more = kt_doubles(v * h);
        void *y = kt_floats(rows * h), *d[KT_TEAMS], *d2[KT_TEAMS];
        for (int64_t k = 0; k < rows * h; k++)
            want[ids[k / h] * h + k % h] += (double)dy[k];
        for (int64_t k = 0; k < v * h; k++)
            more[k] = want[k] + (double)table[k];
        RUN_TEAMS(&program, s, team)
        {
            rt_embed(s, y, RT_F32, table, RT_F32, ids, rows, h);
            for (int64_t r = 0; r < rows; r++)
                CHECK(!memcmp((float *)y + r * h, table + ids[r] * h, (size_t)h * 4));
            void *scratch =
                kt_bytes(kt_scratch.embed_grad(rows, h, v, kt_threads[team]));
            d[team] = kt_floats(v * h), d2[team] = kt_copy(table, v * h);
            rt_embed_grad(s, d[team], dy, RT_F32, ids, rows, h, v, false, scratch);
            rt_embed_grad(s, d2[team], dy, RT_F32, ids, rows, h, v, true, scratch);
        }
        CHECK(kt_same(d, v * h * 4) && kt_same(d2, v * h * 4));
        CHECK_NEAR(kt_error(d[0], want, v * h), 0, 1e-4);
        CHECK_NEAR(kt_error(d2[0], more, v * h), 0, 1e-4);
        kt_done();
    }
}

/* From a table of any type to any type; the gradient of rows of low types. */
TEST(embedding_of_low_types)
{
    enum { ROWS = 301, H = 131, V = 17 };
    static const rt_dtype types[3] = {RT_F32, RT_BF16, RT_F16};
    int64_t *ids = ids_of(ROWS, V, false);
    rt_program program = {0};
    rt_stream *s = kt_open(&program, 3);
    for (int i = 0; i < 9; i++) {
        rt_dtype to = types[i % 3], from = types[i / 3];
        float *x = kt_noise(V * H, 1, 1), *rows = kt_floats(ROWS * H);
        float *dy = kt_noise(ROWS * H, 2, 1), *dx = kt_floats(V * H);
        float *want = kt_floats(V * H);
        const void *table = kt_as(x, V * H, from), *low = kt_as(dy, ROWS * H, from);
        void *y = kt_bytes(ROWS * H * kt_size(to));
        rt_embed(s, y, to, table, from, ids, ROWS, H);
        rt_embed(s, rows, RT_F32, x, RT_F32, ids, ROWS, H);
        CHECK(kt_is_rounded(y, rows, ROWS * H, to));
        rt_embed_grad(s, dx, low, from, ids, ROWS, H, V, false, NULL);
        rt_embed_grad(s, want, dy, RT_F32, ids, ROWS, H, V, false, NULL);
        CHECK(!memcmp(dx, want, V * H * 4));
    }
    rt_device_close(s);
    kt_done();
}

/* Equal indices add up in floats, and the sum is rounded: as that of floats is. */
TEST(gather_of_low_types)
{
    static const int64_t z[][4] = {
        {1, 1, 1, 1}, {2, 5, 3, 90}, {1, 40, 33, 300}, {2, 150, 130, 20}};
    for (size_t i = 0; i < 2 * (sizeof z / sizeof *z); i++) {
        int64_t outer = z[i / 2][0], n = z[i / 2][1], inner = z[i / 2][2],
                m = z[i / 2][3], nx = outer * n * inner, ny = outer * m * inner;
        rt_dtype t = i % 2 ? RT_F16 : RT_BF16;
        int64_t *idx = ids_of(m, n, true);
        rt_program program = {0};
        float *dy = kt_noise(ny, 2, 1), *want = kt_floats(nx);
        float *x = kt_noise(nx, 3, 1), *taken = kt_floats(ny);
        void *low = kt_as(dy, ny, t), *from = kt_as(x, nx, t), *y = kt_bytes(ny * 2);
        RUN_TEAMS(&program, s, team)
        {
            void *dx = kt_bytes(nx * 2);
            rt_gather_grad(s, dx, low, idx, outer, n, inner, m, t);
            rt_gather_grad(s, want, dy, idx, outer, n, inner, m, RT_F32);
            CHECK(kt_is_rounded(dx, want, nx, t));
            rt_gather(s, y, from, idx, outer, n, inner, m, 2);
            rt_gather(s, taken, x, idx, outer, n, inner, m, 4);
            CHECK(kt_is_rounded(y, taken, ny, t));
        }
        kt_done();
    }
}

TEST(column_sums_of_low_types)
{
    enum { ROWS = 203, COLS = 77, LD = 80 };
    for (int i = 0; i < 2; i++) {
        float *x = kt_noise(ROWS * LD, 1, 1), *y = kt_floats(COLS),
              *want = kt_floats(COLS);
        const void *low = kt_as(x, ROWS * LD, i ? RT_F16 : RT_BF16);
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            void *scratch = kt_bytes(kt_scratch.colsum(ROWS, COLS, 3));
            rt_colsum(s, want, x, RT_F32, ROWS, COLS, LD, false, scratch);
            rt_colsum(s, y, low, i ? RT_F16 : RT_BF16, ROWS, COLS, LD, false, scratch);
            CHECK(!memcmp(y, want, COLS * 4));
        }
        kt_done();
    }
}

TEST(gather_takes_negative_indices)
{
    static const int64_t z[][4] = {{1, 4, 1, 3}, {3, 5, 2, 9}, {2, 30, 100, 40}};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++) {
        int64_t outer = z[i][0], n = z[i][1], inner = z[i][2], m = z[i][3];
        int64_t *idx = ids_of(m, n, true), nx = outer * n * inner,
                ny = outer * m * inner;
        rt_program program = {0};
        float *x = kt_noise(nx, 1, 1), *dy = kt_noise(ny, 2, 1), *y = kt_floats(ny);
        double *want = kt_doubles(nx);
        void *dx[KT_TEAMS];
        RUN_TEAMS(&program, s, team)
        {
            dx[team] = kt_floats(nx);
            rt_gather(s, y, x, idx, outer, n, inner, m, sizeof *x);
            rt_gather_grad(s, dx[team], dy, idx, outer, n, inner, m, RT_F32);
        }
        for (int64_t k = 0; k < ny; k++) {
            int64_t at = idx[k / inner % m] + (idx[k / inner % m] < 0 ? n : 0);
            int64_t from = (k / inner / m * n + at) * inner + k % inner;
            CHECK(y[k] == x[from]);
            want[from] += (double)dy[k];
        }
        CHECK(kt_same(dx, nx * 4));
        CHECK_NEAR(kt_error(dx[0], want, nx), 0, 1e-5);
        kt_done();
    }
}

/* y[perm of i] = x[i], element by element. */
static bool
transposed(const char *y, const char *x, int rank, const int64_t *dim, const int *perm,
           int size)
{
    int64_t total = 1, out[RT_MAX_RANK];
    for (int i = 0; i < rank; i++) {
        total *= dim[i];
        out[i] = dim[perm[i]];
    }
    for (int64_t k = 0; k < total; k++) {
        int64_t at[RT_MAX_RANK], rest = k, from = 0;
        for (int i = rank - 1; i >= 0; rest /= out[i--])
            at[perm[i]] = rest % out[i];
        for (int i = 0; i < rank; i++)
            from = from * dim[i] + at[i];
        if (memcmp(y + k * size, x + from * size, (size_t)size))
            return false;
    }
    return true;
}

TEST(transpose_of_any_rank_and_size)
{
    static const struct {
        int rank;
        int64_t dim[5];
        int perm[5];
    } t[] = {{1, {7}, {0}},
             {2, {33, 50}, {1, 0}},
             {2, {300, 200}, {1, 0}},
             {3, {4, 5, 6}, {0, 2, 1}},
             {3, {4, 5, 6}, {2, 0, 1}},
             {3, {1, 1, 1}, {2, 1, 0}},
             {4, {2, 12, 33, 64}, {0, 2, 1, 3}},
             {4, {2, 12, 3, 17}, {0, 1, 3, 2}},
             {4, {3, 1, 20, 1}, {3, 2, 1, 0}},
             {5, {2, 3, 4, 5, 6}, {4, 2, 0, 3, 1}}};
    static const int size[] = {1, 2, 4, 8};
    for (size_t i = 0; i < 4 * sizeof t / sizeof *t; i++) {
        int64_t bytes = size[i % 4];
        for (int k = 0; k < t[i / 4].rank; k++)
            bytes *= t[i / 4].dim[k];
        char *x = (char *)kt_noise(bytes / 4 + 1, 3, 1);
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            char *y = kt_bytes(bytes);
            rt_transpose(s, y, x, t[i / 4].rank, t[i / 4].dim, t[i / 4].perm,
                         size[i % 4]);
            CHECK(transposed(y, x, t[i / 4].rank, t[i / 4].dim, t[i / 4].perm,
                             size[i % 4]));
        }
        kt_done();
    }
}

TEST(blocks_between_strided_places)
{
    rt_program program = {0};
    float *x = kt_noise(4 * 10 * 3, 1, 1);
    rt_stream *s = kt_open(&program, 2);
    float *y = kt_floats(4 * 4 * 3), *z = kt_floats(4 * 10 * 3);
    /* x[:, 1:8:2] of [4,10,3], and back into zeros */
    rt_block_copy take = {4, 4, 3, 12, 0, 1, 30, 1, 2, sizeof *x};
    rt_block_copy back = {4, 4, 3, 30, 1, 2, 12, 0, 1, sizeof *x};
    rt_move(s, y, x, &take);
    rt_zero(s, z, 4 * 10 * 3 * (int64_t)sizeof *z);
    rt_move(s, z, y, &back);
    for (int64_t k = 0; k < 120; k++) {
        int64_t o = k / 30, i = k / 3 % 10, c = k % 3;
        bool in = i % 2 == 1 && i < 8;
        CHECK(z[k] == (in ? x[k] : 0));
        if (in)
            CHECK(y[(o * 4 + i / 2) * 3 + c] == x[k]);
    }
    /* concat: two dense blocks into [4, 6, 3] */
    float *joined = kt_floats(4 * 6 * 3);
    rt_block_copy first = {4, 4, 3, 18, 0, 1, 12, 0, 1, sizeof *x};
    rt_block_copy second = {4, 2, 3, 18, 4, 1, 30, 0, 1, sizeof *x};
    rt_move(s, joined, y, &first);
    rt_move(s, joined, x, &second);
    for (int64_t k = 0; k < 72; k++) {
        int64_t o = k / 18, i = k / 3 % 6, c = k % 3;
        CHECK(joined[k] ==
              (i < 4 ? y[(o * 4 + i) * 3 + c] : x[o * 30 + (i - 4) * 3 + c]));
    }
    rt_device_close(s);
    kt_done();
}

TEST(copy_zero_add)
{
    enum { N = 100003 };
    rt_program program = {0};
    float *x = kt_noise(N, 1, 1);
    RUN_TEAMS(&program, s, team)
    {
        float *y = kt_floats(N);
        rt_copy(s, y, x, N * sizeof *x);
        CHECK(!memcmp(x, y, N * sizeof *x));
        rt_add_to(s, y, x, N);
        for (int i = 0; i < N; i++)
            CHECK(y[i] == 2 * x[i]);
        rt_zero(s, y, N * (int64_t)sizeof *y);
        for (int i = 0; i < N; i++)
            CHECK(y[i] == 0);
    }
    kt_done();
}

TEST(reductions)
{
    static const int64_t z[][3] = {{1, 1, 1},    {5, 3, 1},   {1, 100000, 1}, {3, 7, 5},
                                   {1, 500, 70}, {2, 130, 1}, {4, 33, 200}};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++) {
        int64_t outer = z[i][0], n = z[i][1], inner = z[i][2],
                total = outer * n * inner;
        rt_program program = {0};
        float *x = kt_noise(total, 1, 1);
        double *sum = kt_doubles(outer * inner), *max = kt_doubles(outer * inner);
        void *ys[KT_TEAMS], *ym[KT_TEAMS];
        for (int64_t k = 0; k < total; k++) {
            int64_t to = k / inner / n * inner + k % inner;
            sum[to] += 0.5 * (double)x[k];
            max[to] = k / inner % n ? fmax(max[to], (double)x[k]) : (double)x[k];
        }
        RUN_TEAMS(&program, s, team)
        {
            ys[team] = kt_floats(outer * inner), ym[team] = kt_floats(outer * inner);
            rt_reduce_sum(s, ys[team], x, outer, n, inner, 0.5f);
            rt_reduce_max(s, ym[team], x, outer, n, inner);
        }
        CHECK(kt_same(ys, outer * inner * 4) && kt_same(ym, outer * inner * 4));
        CHECK_NEAR(kt_error(ys[0], sum, outer * inner), 0, 1e-6 + 1e-7 * (double)n);
        CHECK_NEAR(kt_error(ym[0], max, outer * inner), 0, 0);
        kt_done();
    }
}

TEST(a_maximum_keeps_nan)
{
    rt_program program = {0};
    float x[4] = {1, NAN, 3, 2}, y;
    rt_stream *s = kt_open(&program, 1);
    rt_reduce_max(s, &y, x, 1, 4, 1);
    rt_device_close(s);
    CHECK(isnan(y));
}

TEST(running_sums)
{
    rt_program program = {0};
    int64_t x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, y[12];
    int64_t want[12] = {1, 2, 4, 6, 9, 12, 7, 8, 16, 18, 27, 30};
    rt_stream *s = kt_open(&program, 1);
    rt_cumsum(s, y, x, 2, 3, 2);
    rt_device_close(s);
    CHECK(!memcmp(y, want, sizeof want));
}

TEST(column_sums)
{
    static const int64_t z[][3] = {
        {1, 1, 1}, {7, 5, 9}, {300, 33, 33}, {2048, 1100, 1200}};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++) {
        int64_t rows = z[i][0], cols = z[i][1], ld = z[i][2];
        rt_program program = {0};
        float *x = kt_noise(rows * ld, 1, 1), *base = kt_noise(cols, 2, 1);
        double *want = kt_doubles(cols), *more = kt_doubles(cols);
        void *y[KT_TEAMS], *y2[KT_TEAMS];
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                want[c] += (double)x[r * ld + c];
        for (int64_t c = 0; c < cols; c++)
            more[c] = want[c] + (double)base[c];
        RUN_TEAMS(&program, s, team)
        {
            void *scratch = kt_bytes(kt_scratch.colsum(rows, cols, kt_threads[team]));
            y[team] = kt_floats(cols), y2[team] = kt_copy(base, cols);
            rt_colsum(s, y[team], x, RT_F32, rows, cols, ld, false, scratch);
            rt_colsum(s, y2[team], x, RT_F32, rows, cols, ld, true, scratch);
        }
        CHECK(kt_same(y, cols * 4) && kt_same(y2, cols * 4));
        CHECK_NEAR(kt_error(y[0], want, cols), 0, 1e-6 + 1e-7 * (double)rows);
        CHECK_NEAR(kt_error(y2[0], more, cols), 0, 1e-6 + 1e-7 * (double)rows);
        kt_done();
    }
}
