/* half.c -- floats as elements of another type, rounded to nearest, ties to even. */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* IEEE 754 binary16: 11 significant bits, 2^-24 is the smallest step. */
static uint16_t
half_bits(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float a = fabsf(x);
    int e;
    if (isnan(a))
        return sign | 0x7e00;
    if (a >= 65520) /* half a step above the largest */
        return sign | 0x7c00;
    frexpf(a, &e); /* a in [2^(e-1), 2^e), or 0 */
    bool small = a == 0 || e < -13;
    long steps = lrintf(ldexpf(a, small ? 24 : 11 - e)); /* up to 2048: carries over */
    return (uint16_t)(sign | (small ? steps : (e + 13) * 1024 + steps));
}

/* The upper half of a binary32. */
static uint16_t
bfloat_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if (isnan(x))
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

int
rt_float_bytes(const char *dtype)
{
    if (!strcmp(dtype, "f32"))
        return 4;
    if (!strcmp(dtype, "f64"))
        return 8;
    return !strcmp(dtype, "f16") || !strcmp(dtype, "bf16") ? 2 : 0;
}

/* Returns how many became infinite. */
static int64_t
convert(const char *dtype, const float *x, int64_t n, void *out)
{
    bool half = !strcmp(dtype, "f16"), wide = !strcmp(dtype, "f64");
    int64_t lost = 0;
    for (int64_t i = 0; i < n; i++) {
        if (wide) {
            ((double *)out)[i] = (double)x[i];
            continue;
        }
        uint16_t h = half ? half_bits(x[i]) : bfloat_bits(x[i]);
        lost += isfinite(x[i]) && (h & 0x7fff) == (half ? 0x7c00 : 0x7f80);
        ((uint16_t *)out)[i] = h;
    }
    return lost;
}

static int64_t
put(rt_file *f, const char *dtype, const float *x, int64_t n)
{
    enum { PIECE = 1 << 13 };
    int64_t lost = 0, size = rt_float_bytes(dtype);
    double part[PIECE];
    if (size == 4) {
        rt_file_write(f, x, (size_t)n * 4);
        return 0;
    }
    for (int64_t i = 0; i < n && !f->code; i += PIECE) {
        int64_t k = n - i < PIECE ? n - i : PIECE;
        lost += convert(dtype, x + i, k, part);
        rt_file_write(f, part, (size_t)(k * size));
    }
    return lost;
}

/* data [cols, rows] as rows x cols, a few rows at a time. */
static int64_t
put_transposed(rt_file *f, const char *dtype, const rt_st_out *t)
{
    enum { ROWS = 16 };
    int64_t rows = t->dim[0], cols = t->dim[1], lost = 0;
    float *part = rt_new((size_t)(ROWS * cols), sizeof *part);
    for (int64_t r = 0; r < rows && !f->code; r += ROWS) {
        int64_t n = rows - r < ROWS ? rows - r : ROWS;
        for (int64_t c = 0; c < cols; c++)
            for (int64_t i = 0; i < n; i++)
                part[i * cols + c] = t->data[c * rows + r + i];
        lost += put(f, dtype, part, n * cols);
    }
    free(part);
    return lost;
}

int64_t
rt_file_floats(rt_file *f, const char *dtype, const rt_st_out *t)
{
    if (t->transposed)
        return put_transposed(f, dtype, t);
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dim[i];
    return put(f, dtype, t->data, n);
}
