/* Conversions between the float types, against arithmetic in double. */
#include "kernel.h"

/* To the nearest number with `bits` bits that is a multiple of 2^least; ties to even. */
static double
nearest(double x, int bits, int least)
{
    int e;
    frexp(x, &e);
    double unit = ldexp(1, e - bits < least ? least : e - bits);
    return isfinite(x) && x != 0 ? nearbyint(x / unit) * unit : x;
}

static double
rounded(double x, rt_dtype t)
{
    double y = t == RT_BF16 ? nearest(x, 8, -133) : nearest(x, 11, -24);
    double most = t == RT_BF16 ? 0x1p128 : 0x1p16;
    return fabs(y) >= most ? copysign(INFINITY, x) : y;
}

static bool
same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

enum { ALL = 65536 };
static const rt_dtype low[2] = {RT_F16, RT_BF16};

TEST(every_number_of_a_low_type_comes_back)
{
    rt_program program = {0};
    rt_stream *s = kt_open(&program, 2);
    for (int t = 0; t < 2; t++) {
        uint16_t *x = kt_bytes(ALL * 2), *y = kt_bytes(ALL * 2);
        float *f = kt_floats(ALL);
        int64_t wrong = 0;
        for (int i = 0; i < ALL; i++)
            x[i] = (uint16_t)i;
        rt_convert(s, f, RT_F32, x, low[t], ALL);
        rt_convert(s, y, low[t], f, RT_F32, ALL);
        kt_wait(s);
        for (int i = 0; i < ALL; i++)
            wrong += !same((double)f[i], (double)kt_element(x, i, low[t])) ||
                     (isnan(f[i]) ? !isnan(kt_element(y, i, low[t])) : x[i] != y[i]);
        CHECK(wrong == 0);
        kt_done();
    }
    rt_device_close(s);
}

/* Floats of all sizes, ties, the edges of the ranges. */
static float *
floats(int64_t n)
{
    static const float edge[] = {0,
                                 -0.0f,
                                 INFINITY,
                                 -INFINITY,
                                 NAN,
                                 65504,
                                 65519.996f,
                                 65520,
                                 -65520,
                                 0x1p-24f,
                                 0x1p-25f,
                                 0x1.8p-25f,
                                 0x1p-14f,
                                 0x1.ffcp-15f,
                                 0x1.ffep-15f,
                                 0x1p-133f,
                                 0x1p-134f,
                                 0x1.8p-134f,
                                 0x1p-149f,
                                 0x1.fep127f,
                                 0x1.fffffep127f,
                                 1 + 0x1p-8f,
                                 1 + 0x1.8p-7f,
                                 1 + 0x1p-11f,
                                 1 + 0x1.8p-10f};
    enum { EDGES = sizeof edge / sizeof *edge };
    float *x = kt_noise(n, 3, 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = i < EDGES ? edge[i] : ldexpf(x[i], (int)(i % 290) - 150);
    return x;
}

TEST(rounded_to_nearest)
{
    static const int64_t lengths[] = {0, 1, 3, 15, 16, 17, 31, 33, 127, 1000, 100003};
    rt_program program = {0};
    for (size_t k = 0; k < 4 * sizeof lengths / sizeof *lengths; k++) {
        int64_t n = lengths[k / 4], wrong = 0;
        int off = k / 2 % 2; /* elements that buffers begin behind what is aligned */
        rt_dtype t = low[k % 2];
        float *x = memcpy(kt_floats(n + off) + off, floats(n), (size_t)n * 4);
        uint16_t *out[KT_TEAMS];
        RUN_TEAMS(&program, s, team)
        {
            out[team] = (uint16_t *)kt_bytes(2 * (n + off)) + off;
            rt_convert(s, out[team], t, x, RT_F32, n);
        }
        for (int64_t i = 0; i < n; i++)
            wrong += !same((double)kt_element(out[0], i, t), rounded((double)x[i], t));
        CHECK(wrong == 0);
        CHECK(kt_same((void **)out, 2 * n));
        kt_done();
    }
}

TEST(from_one_low_type_to_the_other)
{
    rt_program program = {0};
    rt_stream *s = kt_open(&program, 1);
    for (int t = 0; t < 2; t++) {
        enum { N = 37 };
        float *x = floats(N);
        void *a = kt_as(x, N, low[t]), *b = kt_bytes(2 * N);
        int64_t wrong = 0;
        rt_convert(s, b, low[1 - t], a, low[t], N);
        kt_wait(s);
        for (int64_t i = 0; i < N; i++)
            wrong += !same((double)kt_element(b, i, low[1 - t]),
                           rounded((double)x[i], low[1 - t]));
        CHECK(wrong == 0);
        kt_done();
    }
    rt_device_close(s);
}
