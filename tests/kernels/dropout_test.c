/* Dropout: the bits are Philox's, in the place that the contract says. */
#include "kernel.h"
#include "runtime/cpu/low_int.h"
#include "runtime/cpu/philox_int.h"

/* Known answers of Random123 1.14, kat_vectors. */
TEST(philox_gives_the_known_words)
{
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } t[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        uint32_t w[PHILOX_WORDS];
        philox x =
            philox_of((int64_t)((uint64_t)t[i].key[1] << 32 | t[i].key[0]),
                      (int64_t)((uint64_t)t[i].counter[1] << 32 | t[i].counter[0]),
                      t[i].counter[3]);
        philox_block(w, &x, t[i].counter[2]);
        CHECK(!memcmp(w, t[i].word, sizeof t[i].word));
    }
}

/* A group alone, for each of a block, from both forms. */
TEST(groups_of_a_block_follow_each_other)
{
    uint32_t w[4 * PHILOX_WORDS], one[PHILOX_WORDS], four[4];
    philox x = philox_of(0x123456789a, 0x2000000003, 7);
    philox_words(w, &x, 8, 3 * PHILOX_WORDS, 5);
    for (int i = 0; i < 3 * PHILOX_WORDS; i += 4) {
        philox_block(one, &x, (uint32_t)(8 + i) / 4 + (5u << 20));
        philox_four(four, &x, philox_group(8 + i, 5));
        CHECK(!memcmp(w + i, one, sizeof four) && !memcmp(w + i, four, sizeof four));
    }
}

static uint32_t
word_of(const rt_drop *d, int64_t key, int64_t row, int64_t column)
{
    uint32_t w[PHILOX_WORDS];
    philox x = philox_of(key, row, d->site);
    philox_block(w, &x, (uint32_t)(column / 4));
    return w[column % 4];
}

/* In place and to another place; off: floats that x begins behind what is aligned. */
static void
check_drop(const int64_t *z, float p, int64_t site, int off)
{
    rt_drop d = {z[0], z[1], site, p, RT_F32};
    int64_t n = d.rows * d.cols, wrong = 0;
    float *x = kt_noise(n + off, 3, 2) + off;
    int64_t *keys = kt_bytes(d.rows * 8), *key = kt_bytes(8);
    *key = 0xabcdef1234567;
    for (int64_t r = 0; r < d.rows; r++)
        keys[r] = r << 24 | (r * 7 % 31);
    float *y[KT_TEAMS], *inplace[KT_TEAMS];
    rt_program program = {0};
    RUN_TEAMS(&program, s, team)
    {
        y[team] = kt_floats(n), inplace[team] = kt_copy(x, n);
        rt_dropout(s, y[team], x, keys, key, &d);
        rt_dropout(s, inplace[team], inplace[team], keys, key, &d);
    }
    CHECK(kt_same((void **)y, n * 4) && kt_same((void **)inplace, n * 4));
    CHECK(!memcmp(y[0], inplace[0], (size_t)n * sizeof *x));
    for (int64_t k = 0; k < n; k++) {
        bool gone = word_of(&d, *key, keys[k / d.cols], k % d.cols) <
                    (double)d.p * 4294967296.0;
        wrong += y[0][k] != (gone ? 0 : x[k] * (1 / (1 - d.p)));
    }
    CHECK(wrong == 0);
    kt_done();
}

TEST(dropped_where_the_word_is_below_p)
{
    static const int64_t z[][2] = {{1, 1},   {5, 7},    {3, 64},    {33, 31},
                                   {127, 3}, {40, 129}, {300, 200}, {31, 1000},
                                   {0, 4},   {2, 0}};
    static const float p[] = {0, 0.1f, 0.5f, 0.999f};
    for (int i = 0; i < 8 * (int)(sizeof z / sizeof *z); i++)
        check_drop(z[i / 8], p[i % 4], i, i / 4 % 2);
}

/* What is dropped is 0 whatever it was, what is kept stays what it is. */
TEST(dropout_of_what_is_not_finite)
{
    enum { COLS = 200 };
    rt_drop d = {1, COLS, 1, 0.5f, RT_F32};
    float *x = kt_floats(COLS), *y = kt_floats(COLS);
    int64_t *keys = kt_bytes(8), *key = kt_bytes(8), wrong = 0;
    *keys = 3, *key = 4;
    for (int k = 0; k < COLS; k++)
        x[k] = k % 2 ? NAN : -INFINITY;
    rt_program program = {0};
    rt_stream *s = kt_open(&program, 1);
    rt_dropout(s, y, x, keys, key, &d);
    rt_device_close(s);
    for (int64_t k = 0; k < COLS; k++) {
        bool gone = word_of(&d, *key, *keys, k) < 0x80000000u;
        wrong += gone ? y[k] != 0 : k % 2 ? !isnan(y[k]) : y[k] != -INFINITY;
    }
    CHECK(wrong == 0);
    kt_done();
}

/* Of n elements p n are dropped, give or take 5 standard deviations; in any column, row and
 * site; and what two sites or keys drop has nothing in common. */
TEST(shares_are_those_of_independent_bits)
{
    enum { ROWS = 512, COLS = 256 };
    static const float p[] = {0.1f, 0.5f, 0.75f};
    for (int i = 0; i < 3; i++) {
        float *x = kt_floats(ROWS * COLS), *y[3];
        int64_t *keys = kt_bytes(ROWS * 8), *key = kt_bytes(2 * 8);
        int64_t zeros[3] = {0}, both[3] = {0}, n = ROWS * COLS;
        double column[COLS] = {0}, q = (double)p[i], sum = 0;
        for (int64_t k = 0; k < n; k++)
            x[k] = 1;
        key[0] = 77, key[1] = 78;
        for (int64_t r = 0; r < ROWS; r++)
            keys[r] = (r / 64) << 24 | r % 64;
        rt_program program = {0};
        rt_stream *s = kt_open(&program, 2);
        for (int j = 0; j < 3; j++) {
            y[j] = kt_floats(n);
            rt_dropout(s, y[j], x, keys, &key[j == 1],
                       &(rt_drop){ROWS, COLS, j == 2, p[i], RT_F32});
        }
        rt_device_close(s);
        for (int64_t k = 0; k < n; k++) {
            column[k % COLS] += y[0][k] == 0;
            sum += (double)y[0][k];
            for (int j = 0; j < 3; j++) {
                zeros[j] += y[j][k] == 0;
                both[j] += y[0][k] == 0 && y[j][k] == 0;
            }
        }
        for (int j = 0; j < 3; j++) {
            CHECK_NEAR((double)zeros[j], q * (double)n,
                       5 * sqrt((double)n * q * (1 - q)));
            if (j)
                CHECK_NEAR((double)both[j], q * q * (double)n,
                           5 * sqrt((double)n * q * q * (1 - q * q)));
        }
        CHECK_NEAR(sum / (double)n, 1, 5 * sqrt(q / (1 - q) / (double)n));
        for (int c = 0; c < COLS; c++)
            CHECK_NEAR(column[c], q * ROWS, 5 * sqrt(ROWS * q * (1 - q)));
        kt_done();
    }
}

/* Of a low type: the float result, rounded. */
TEST(low_types_drop_the_same)
{
    static const int64_t z[][2] = {{1, 1}, {9, 77}, {31, 64}, {3, 1000}};
    for (size_t i = 0; i < 4 * sizeof z / sizeof *z; i++) {
        int64_t rows = z[i / 4][0], n = rows * z[i / 4][1], off = i / 2 % 2, wrong = 0;
        rt_dtype type = i % 2 ? RT_F16 : RT_BF16;
        rt_drop d = {rows, z[i / 4][1], 4, 0.3f, RT_F32}, l = d;
        l.type = type;
        float *x = kt_noise(n, 3, 2), *want = kt_floats(n);
        uint16_t *low = kt_as(x, n, type), *from = kt_bytes((n + off) * 2);
        int64_t *keys = kt_bytes(rows * 8), *key = kt_bytes(8);
        from = memcpy(from + off, low, (size_t)n * 2);
        *key = 5;
        for (int64_t r = 0; r < rows; r++)
            keys[r] = r;
        rt_program program = {0};
        rt_stream *s = kt_open(&program, 2);
        rt_dropout(s, want, x, keys, key, &d);
        rt_dropout(s, low, from, keys, key, &l);
        rt_dropout(s, from, from, keys, key, &l);
        rt_device_close(s);
        CHECK(kt_is_rounded(low, want, n, type) && !memcmp(low, from, (size_t)n * 2));
        for (int64_t k = 0; k < n; k++)
            wrong += (kt_element(low, k, type) == 0) != (want[k] == 0);
        CHECK(wrong == 0);
        kt_done();
    }
}
