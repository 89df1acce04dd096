/* half.c -- floats as elements of another type, rounded to nearest, ties to even. */
#include "efficc_low.h"
#include "host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int
rt_float_bytes(const char *dtype)
{
    if (!strcmp(dtype, "f32"))
        return 4;
    if (!strcmp(dtype, "f64"))
        return 8;
    return !strcmp(dtype, "f16") || !strcmp(dtype, "bf16") ? 2 : 0;
}

int64_t
rt_lower(const char *dtype, const float *x, int64_t n, void *out)
{
    bool half = !strcmp(dtype, "f16"), wide = !strcmp(dtype, "f64");
    int64_t lost = 0;
    for (int64_t i = 0; i < n; i++) {
        if (wide) {
            ((double *)out)[i] = (double)x[i];
            continue;
        }
        uint16_t h = half ? rt_to_f16(x[i]) : rt_to_bf16(x[i]);
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
        lost += rt_lower(dtype, x + i, k, part);
        rt_file_write(f, part, (size_t)(k * size));
    }
    return lost;
}

/* data [cols, rows] as rows x cols, a few rows at a time. */
static int64_t
put_transposed(rt_file *f, const char *dtype, const rt_st_out *t, const float *data)
{
    enum { ROWS = 16 };
    int64_t rows = t->dim[0], cols = t->dim[1], lost = 0;
    float *part = rt_new((size_t)(ROWS * cols), sizeof *part);
    for (int64_t r = 0; r < rows && !f->code; r += ROWS) {
        int64_t n = rows - r < ROWS ? rows - r : ROWS;
        for (int64_t c = 0; c < cols; c++)
            for (int64_t i = 0; i < n; i++)
                part[i * cols + c] = data[c * rows + r + i];
        lost += put(f, dtype, part, n * cols);
    }
    free(part);
    return lost;
}

/* Of n floats of a run, a piece in view at a time. */
static int64_t
put_pieces(rt_file *f, const char *dtype, const rt_st_out *t, int64_t n)
{
    enum { PIECE = 1 << 22 };
    int64_t lost = 0;
    for (int64_t i = 0; i < n && !f->code; i += PIECE) {
        int64_t k = n - i < PIECE ? n - i : PIECE;
        const float *x = rt_look(t->of, t->data + i, k * (int64_t)sizeof *x);
        lost += put(f, dtype, x, k);
        rt_looked(x);
    }
    return lost;
}

int64_t
rt_file_floats(rt_file *f, const char *dtype, const rt_st_out *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dim[i];
    if (!t->transposed)
        return t->of ? put_pieces(f, dtype, t, n) : put(f, dtype, t->data, n);
    if (!t->of)
        return put_transposed(f, dtype, t, t->data);
    const float *x = rt_look(t->of, t->data, n * (int64_t)sizeof *x);
    int64_t lost = put_transposed(f, dtype, t, x);
    rt_looked(x);
    return lost;
}
