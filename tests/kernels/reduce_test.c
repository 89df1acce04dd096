/* Sums, maxima, running sums, softmax over long rows, and what floats hold. */
#include "kernel.h"

/* [outer, n, inner]; off: floats that buffers begin behind what is aligned. */
static void
check_reductions(const int64_t *z, int off)
{
    int64_t outer = z[0], n = z[1], inner = z[2], total = outer * n * inner;
    rt_program program = {0};
    float *x = kt_noise(total + off, 1, 1) + off;
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
        if (n)
            rt_reduce_max(s, ym[team], x, outer, n, inner);
    }
    CHECK(kt_same(ys, outer * inner * 4) && (!n || kt_same(ym, outer * inner * 4)));
    CHECK_NEAR(kt_error(ys[0], sum, outer * inner), 0, 1e-6 + 1e-7 * (double)n);
    CHECK_NEAR(n ? kt_error(ym[0], max, outer * inner) : 0, 0, 0);
    kt_done();
}

TEST(reductions)
{
    static const int64_t z[][3] = {
        {1, 1, 1},     {5, 3, 1},       {1, 100000, 1}, {3, 7, 5},     {1, 500, 70},
        {2, 130, 1},   {4, 33, 200},    {31, 127, 1},   {33, 1000, 1}, {3, 1025, 1},
        {3, 1024, 31}, {1000, 1, 3},    {2, 31, 33},    {1, 3000, 4},  {0, 3, 1},
        {0, 3, 2},     {1, 16385, 127}, {3, 0, 2},      {70, 3, 128},  {2, 20000, 1}};
    for (size_t i = 0; i < 2 * sizeof z / sizeof *z; i++)
        check_reductions(z[i / 2], i % 2);
}

/* A row of a whole block, rows of warps, and of nothing. */
TEST(small_reductions)
{
    static const int64_t z[][3] = {{2, 1028, 1}, {3, 1025, 1}, {9, 3, 1}, {3, 0, 2}};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++)
        check_reductions(z[i], 0);
}

/* Of rows and of columns, wherever it stands; infinities are numbers. */
TEST(a_maximum_keeps_nan)
{
    enum { N = 37, INNER = 5 };
    for (int i = 0; i < 3; i++) {
        rt_program program = {0};
        float *x = kt_noise(N * INNER, 1, 1), *y = kt_floats(INNER),
              *one = kt_floats(1);
        x[i * 18 * INNER + 2] = NAN;
        x[7 * INNER + 1] = INFINITY;
        for (int k = 0; k < N; k++)
            x[k * INNER + 3] = -INFINITY;
        rt_stream *s = kt_open(&program, 1);
        rt_reduce_max(s, y, x, 1, N, INNER);
        rt_reduce_max(s, one, x, 1, N * INNER, 1);
        rt_device_close(s);
        CHECK(isnan(one[0]) && isnan(y[2]) && isfinite(y[0]) && isfinite(y[4]));
        CHECK(y[1] == INFINITY && y[3] == -INFINITY);
        kt_done();
    }
}

TEST(running_sums)
{
    static const int64_t z[][3] = {{1, 1, 1},  {2, 3, 2},   {3, 31, 1},   {4, 33, 1},
                                   {1, 33, 3}, {5, 127, 1}, {2, 1000, 2}, {0, 3, 1}};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++) {
        int64_t n = z[i][1], inner = z[i][2], total = z[i][0] * n * inner, wrong = 0;
        int64_t *x = kt_bytes(total * 8), *want = kt_bytes(total * 8), *y[KT_TEAMS];
        uint32_t seed = 3;
        for (int64_t k = 0; k < total; k++) {
            x[k] = ((int64_t)kt_random(&seed) - (1 << 23)) * (1 << 20);
            want[k] = x[k] + (k / inner % n ? want[k - inner] : 0);
        }
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            y[team] = kt_bytes(total * 8);
            rt_cumsum(s, y[team], x, z[i][0], n, inner);
        }
        for (int64_t k = 0; k < total * KT_TEAMS; k++)
            wrong += y[k / total][k % total] != want[k % total];
        CHECK(wrong == 0);
        kt_done();
    }
}

static void
check_column_sums(const int64_t *z, rt_dtype t, int off)
{
    int64_t rows = z[0], cols = z[1], ld = z[2], size = kt_size(t);
    rt_program program = {0};
    float *x = kt_noise(rows * ld, 1, 1), *base = kt_noise(cols, 2, 1);
    char *low = kt_bytes(rows * ld * size + off * size);
    double *want = kt_doubles(cols), *more = kt_doubles(cols);
    void *y[KT_TEAMS], *y2[KT_TEAMS];
    low = memcpy(low + off * size, kt_as(x, rows * ld, t), (size_t)(rows * ld * size));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            want[c] += (double)x[r * ld + c];
    for (int64_t c = 0; c < cols; c++)
        more[c] = want[c] + (double)base[c];
    RUN_TEAMS(&program, s, team)
    {
        void *scratch = kt_bytes(kt_scratch.colsum(rows, cols, kt_threads[team]));
        y[team] = kt_floats(cols), y2[team] = kt_copy(base, cols);
        rt_colsum(s, y[team], low, t, rows, cols, ld, false, scratch);
        rt_colsum(s, y2[team], low, t, rows, cols, ld, true, scratch);
    }
    CHECK(kt_same(y, cols * 4) && kt_same(y2, cols * 4));
    CHECK_NEAR(kt_error(y[0], want, cols), 0, 1e-6 + 1e-7 * (double)rows);
    CHECK_NEAR(kt_error(y2[0], more, cols), 0, 1e-6 + 1e-7 * (double)rows);
    kt_done();
}

TEST(column_sums)
{
    static const rt_dtype types[3] = {RT_F32, RT_BF16, RT_F16};
    static const int64_t z[][3] = {{1, 1, 1},     {7, 5, 9},    {300, 33, 33},
                                   {203, 77, 80}, {31, 127, 1}, {33, 1000, 1000},
                                   {3, 31, 32},   {0, 8, 8},    {2048, 1100, 1200}};
    for (size_t i = 0; i < 6 * sizeof z / sizeof *z; i++) {
        int64_t k[3] = {z[i / 6][0], z[i / 6][1], z[i / 6][2]};
        k[2] = k[2] < k[1] ? k[1] : k[2];
        check_column_sums(k, types[i % 3], i / 3 % 2);
    }
}

TEST(column_sums_of_no_rows)
{
    static const int64_t z[] = {0, 8, 8};
    check_column_sums(z, RT_F32, 0);
}

/* Of a low type: the same sums as of its floats. */
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
        }
        CHECK(!memcmp(y, want, COLS * 4));
        kt_done();
    }
}

/* ---- softmax: what a warp has, what a block has, masked rows, sizes of floats ---- */

static void
check_softmax(int64_t rows, int64_t cols, int off)
{
    int64_t n = rows * cols;
    rt_program program = {0};
    float *x = kt_noise(n + off, 5, 80) + off, *dy = kt_noise(n + off, 6, 1) + off;
    double *want = kt_doubles(n), *grad = kt_doubles(n);
    float *y[KT_TEAMS], *dx[KT_TEAMS];
    for (int64_t r = 0; r < rows; r++) {
        double max = -INFINITY, sum = 0, dot = 0;
        for (int64_t k = r * cols; k < (r + 1) * cols; k++) {
            x[k] = r % 3 == 1 ? -INFINITY : k % 7 == 6 && k % cols ? -3e38f : x[k];
            dy[k] = r % 6 == 1 ? 0 : dy[k];
            max = fmax(max, (double)x[k]);
        }
        for (int64_t k = r * cols; k < (r + 1) * cols; k++)
            sum += exp((double)x[k] - max);
        for (int64_t k = r * cols; k < (r + 1) * cols; k++) {
            want[k] = exp((double)x[k] - max) / sum;
            dot += want[k] * (double)dy[k];
        }
        for (int64_t k = r * cols; k < (r + 1) * cols; k++)
            grad[k] = r % 6 == 1 ? 0 : ((double)dy[k] - dot) * want[k];
    }
    RUN_TEAMS(&program, s, team)
    {
        y[team] = kt_floats(n + off) + off, dx[team] = kt_floats(n + off) + off;
        rt_softmax(s, y[team], x, rows, cols);
        rt_softmax_grad(s, dx[team], dy, y[team], rows, cols);
    }
    CHECK(kt_same((void **)y, n * 4) && kt_same((void **)dx, n * 4));
    CHECK_NEAR(kt_error(y[0], want, n), 0, 1e-6);
    CHECK_NEAR(kt_error(dx[0], grad, n), 0, 2e-6);
    kt_done();
}

TEST(softmax_of_any_row)
{
    static const int64_t cols[] = {1,    3,    31,   33,   127, 128,
                                   1000, 1024, 1027, 4000, 9001};
    for (size_t i = 0; i < 2 * sizeof cols / sizeof *cols; i++)
        check_softmax(cols[i / 2] > 200 ? 3 : 40, cols[i / 2], i % 2);
    check_softmax(0, 5, 0);
}

/* ---- what floats hold ---- */

TEST(scan_counts_what_is_not_finite)
{
    static const rt_dtype types[3] = {RT_F32, RT_BF16, RT_F16};
    static const int64_t sizes[] = {0, 1, 3, 31, 33, 127, 1000, 70001};
    for (size_t i = 0; i < 6 * sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i / 6];
        rt_scan want = {0, 0, -1, -1, 0};
        float *x = kt_noise(n, 3, 100);
        for (int64_t k = 0; k < n && i / 3 % 2; k++)
            x[k] = k % 41 == 40  ? NAN
                   : k % 29 == 1 ? (k % 2 ? INFINITY : -INFINITY)
                                 : x[k];
        const void *low = kt_as(x, n, types[i % 3]);
        for (int64_t k = n - 1; k >= 0; k--) {
            if (isnan(x[k]))
                want.nans++, want.nan_at = k;
            else if (isinf(x[k]))
                want.infs++, want.inf_at = k;
            else
                want.largest = fmaxf(want.largest, fabsf(x[k]));
        }
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            rt_scan got = rt_scan_floats(s, low, types[i % 3], n);
            CHECK(got.nans == want.nans && got.infs == want.infs);
            CHECK(got.nan_at == want.nan_at && got.inf_at == want.inf_at);
            CHECK(got.largest == want.largest);
        }
        kt_done();
    }
}
