/* Kernels that move data: copy, zero, add, transpose, blocks. */
#include "kernel.h"

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

/* At all sizes of elements, and at addresses that no vector fits. */
TEST(transpose_of_any_rank_and_size)
{
    static const struct {
        int rank;
        int64_t dim[5];
        int perm[5];
    } t[] = {{1, {7}, {0}},
             {2, {1, 127}, {1, 0}},
             {2, {33, 50}, {1, 0}},
             {2, {31, 1000}, {1, 0}},
             {2, {300, 200}, {1, 0}},
             {3, {4, 5, 6}, {0, 2, 1}},
             {3, {4, 5, 6}, {2, 0, 1}},
             {3, {9, 10, 64}, {2, 0, 1}},
             {3, {1, 1, 1}, {2, 1, 0}},
             {3, {3, 0, 5}, {2, 1, 0}},
             {4, {2, 12, 33, 64}, {0, 2, 1, 3}},
             {4, {2, 12, 33, 64}, {0, 2, 3, 1}},
             {4, {2, 12, 3, 17}, {0, 1, 3, 2}},
             {4, {3, 1, 20, 1}, {3, 2, 1, 0}},
             {5, {2, 9, 4, 5, 33}, {0, 4, 2, 3, 1}},
             {5, {2, 3, 4, 5, 6}, {4, 2, 0, 3, 1}}};
    for (size_t i = 0; i < 8 * sizeof t / sizeof *t; i++) {
        int size = 1 << i % 4, off = i / 4 % 2 ? size : 0;
        int64_t bytes = size;
        for (int k = 0; k < t[i / 8].rank; k++)
            bytes *= t[i / 8].dim[k];
        char *x = (char *)kt_noise((bytes + off) / 4 + 1, 3, 1) + off, *y[KT_TEAMS];
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            y[team] = (char *)kt_bytes(bytes + off) + off;
            rt_transpose(s, y[team], x, t[i / 8].rank, t[i / 8].dim, t[i / 8].perm,
                         size);
        }
        for (int team = 0; team < KT_TEAMS; team++)
            CHECK(transposed(y[team], x, t[i / 8].rank, t[i / 8].dim, t[i / 8].perm,
                             size));
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
    kt_wait(s);
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
    kt_wait(s);
    for (int64_t k = 0; k < 72; k++) {
        int64_t o = k / 18, i = k / 3 % 6, c = k % 3;
        CHECK(joined[k] ==
              (i < 4 ? y[(o * 4 + i) * 3 + c] : x[o * 30 + (i - 4) * 3 + c]));
    }
    rt_device_close(s);
    kt_done();
}

/* y, backwards: x[:, 8:1:-2] of [3,10,inner] elements of any size. */
TEST(blocks_backwards_of_any_size)
{
    static const int64_t inners[] = {1, 3, 31, 33, 64, 127};
    for (size_t i = 0; i < 8 * sizeof inners / sizeof *inners; i++) {
        int size = 1 << i % 4;
        int64_t n = inners[i / 8], off = i / 4 % 2 ? size : 0, row = n * size;
        char *x = (char *)kt_noise((30 * row + off) / 4 + 1, 1, 1) + off, *y[KT_TEAMS];
        rt_block_copy c = {3, 4, n, 4 * n, 0, 1, 10 * n, 8, -2, size};
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            y[team] = (char *)kt_bytes(12 * row + off) + off;
            rt_move(s, y[team], x, &c);
        }
        for (int k = 0; k < 12 * KT_TEAMS; k++)
            CHECK(!memcmp(y[k / 12] + k % 12 * row,
                          x + (k % 12 / 4 * 10 + 8 - 2 * (k % 4)) * row, (size_t)row));
        kt_done();
    }
}

TEST(copy_zero_add)
{
    static const int64_t sizes[] = {0, 1, 3, 31, 33, 127, 1000, 100003};
    for (size_t i = 0; i < 3 * sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i / 3], wrong = 0;
        float *x = kt_noise(n + 1, 1, 1) + (i % 3 == 1), *y[KT_TEAMS],
              *z = kt_floats(n + 1);
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            y[team] = kt_floats(n + 1) + (i % 3 != 0);
            rt_copy(s, y[team], x, n * (int64_t)sizeof *x);
            rt_add_to(s, y[team], x, n);
            rt_zero(s, z + 1, n * (int64_t)sizeof *z);
        }
        for (int64_t k = 0; k < n * KT_TEAMS; k++)
            wrong += y[k / n][k % n] != 2 * x[k % n] || z[1 + k % n] != 0;
        CHECK(wrong == 0 && isnan(z[0]));
        kt_done();
    }
}

/* Tiles that are not whole, on every side. */
TEST(a_small_transpose)
{
    static const int64_t dim[] = {33, 50};
    static const int perm[] = {1, 0};
    rt_program program = {0};
    char *x = (char *)kt_noise(33 * 50, 3, 1), *y[KT_TEAMS];
    RUN_TEAMS(&program, s, team)
    {
        y[team] = kt_bytes(33 * 50 * 4);
        rt_transpose(s, y[team], x, 2, dim, perm, 4);
    }
    for (int team = 0; team < KT_TEAMS; team++)
        CHECK(transposed(y[team], x, 2, dim, perm, 4));
    kt_done();
}
