/* Floats written as elements of other types are the nearest there is, ties to even: the same
 * numbers as the interpreter's rounding. */
#include "test.h"

#include "host_toy.h"
#include "ir/ir.h"

enum { N = 1 << 16 };

/* n elements of x as the type, read back as they are in the file. */
static int64_t
written(const char *dtype, const float *x, int64_t n, void *out)
{
    rt_file f;
    rt_st_out t = {.rank = 1, .dim = {n}, .data = x};
    rt_file_open(&f, toy_path("half"));
    int64_t lost = rt_file_floats(&f, dtype, &t);
    CHECK(rt_file_done(&f) == RT_OK);
    FILE *in = fopen(toy_path("half"), "rb");
    size_t size = (size_t)rt_float_bytes(dtype);
    CHECK(in && fread(out, size, (size_t)n, in) == (size_t)n && fgetc(in) == EOF);
    if (in)
        fclose(in);
    return lost;
}

static bool
same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

TEST(every_half_comes_back)
{
    static float x[N];
    static uint16_t h[N];
    int bad = 0;
    for (int i = 0; i < N; i++)
        x[i] = (float)ir_from_half((uint16_t)i);
    CHECK(written("f16", x, N, h) == 0);
    for (int i = 0; i < N; i++)
        bad += isnan(x[i]) ? !isnan(ir_from_half(h[i])) : h[i] != i;
    CHECK(bad == 0);
    for (int i = 0; i < N; i++)
        x[i] = (float)ir_from_bfloat((uint16_t)i);
    CHECK(written("bf16", x, N, h) == 0);
    bad = 0;
    for (int i = 0; i < N; i++)
        bad += isnan(x[i]) ? !isnan(ir_from_bfloat(h[i])) : h[i] != i;
    CHECK(bad == 0);
}

TEST(between_them_the_nearest_is_taken)
{
    static float x[N];
    static uint16_t h[N], b[N];
    static double d[N];
    uint64_t r = 1;
    for (int i = 0; i < N; i++) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        uint16_t from = (uint16_t)((r >> 32) % 0x7bff);
        double step = ir_from_half((uint16_t)(from + 1)) - ir_from_half(from);
        /* a quarter, a half and three quarters of the way to the next one */
        double at = ir_from_half(from) + step * (double)(i % 4) / 4;
        x[i] = (float)(i & 4 ? -at : at);
    }
    CHECK(written("f16", x, N, h) == 0);
    CHECK(written("bf16", x, N, b) == 0 && written("f64", x, N, d) == 0);
    int bad = 0;
    for (int i = 0; i < N; i++) {
        bad += !same(ir_from_half(h[i]), ir_round(IR_F16, x[i])) || d[i] != x[i] ||
               !same(ir_from_bfloat(b[i]), ir_round(IR_BF16, x[i]));
    }
    CHECK(bad == 0);
}

TEST(what_is_too_large_is_counted)
{
    const float x[] = {65504, 65519, 65520, -1e9f, INFINITY, 1e-30f};
    uint16_t h[6];
    CHECK(written("f16", x, 6, h) == 2);
    CHECK(h[0] == 0x7bff && h[1] == 0x7bff && h[2] == 0x7c00 && h[3] == 0xfc00 &&
          h[4] == 0x7c00 && h[5] == 0);
    CHECK(rt_float_bytes("i64") == 0 && rt_float_bytes("f32") == 4);
}
