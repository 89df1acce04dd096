/* embed.c -- rows of a table by index, and the way back.
 *
 * The gradients add rows with equal index in order of position: threads split the columns,
 * never the positions, so the sum is the same for any number of them.
 */
#include "low_int.h"
#include "rt_cpu_int.h"

enum { COLS = 64 }; /* columns that one task adds up: whole cache lines */

void
rt_embed(rt_stream *s, void *out, rt_dtype to, const void *in, rt_dtype from,
         const int64_t *ids, int64_t rows, int64_t h)
{
    int team = rt_team(s, rows * h);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < rows; r++) {
        int64_t y = r * h, x = ids[r] * h;
        if (to == from)
            memcpy(v_at(out, y, to), v_at(in, x, to), (size_t)(h * v_bytes(to)));
        else
            for (int64_t i = 0; i < h; i += VW)
                v_store_as_to(out, y + i, v_load_as_to(in, x + i, h - i, from), h - i,
                              to);
    }
}

int64_t
rt_embed_grad_scratch(int64_t rows, int64_t h, int64_t v, int threads)
{
    (void)rows, (void)h, (void)v, (void)threads;
    return 0;
}

typedef struct
    rows_sum { /* dx [n, inner] += dy [m, inner] at rows idx; both from element
                             dx_at and dy_at on */
    void *dx;
    const void *dy;
    int64_t dx_at, dy_at;
    const int64_t *idx;
    int64_t n, m, inner;
    rt_dtype dx_type, dy_type;
} rows_sum;

/* The c-th group of columns, of types known here. */
V_INLINE void
add_rows_as(const rows_sum *s, int64_t c, rt_dtype to, rt_dtype from)
{
    int64_t c0 = c * COLS, c1 = rt_min(c0 + COLS, s->inner);
    for (int64_t j = 0; j < s->m; j++) {
        int64_t row = s->idx[j] < 0 ? s->idx[j] + s->n : s->idx[j];
        int64_t y = s->dx_at + row * s->inner, x = s->dy_at + j * s->inner;
        for (int64_t k = c0; k < c1; k += VW) {
            vf sum = v_load_as_to(s->dx, y + k, c1 - k, to) +
                     v_load_as_to(s->dy, x + k, c1 - k, from);
            v_store_as_to(s->dx, y + k, sum, c1 - k, to);
        }
    }
}

static void
add_rows(const rows_sum *s, int64_t c)
{
    if (s->dx_type == RT_F32 && s->dy_type == RT_F32)
        add_rows_as(s, c, RT_F32, RT_F32);
    else
        add_rows_as(s, c, s->dx_type, s->dy_type);
}

void
rt_embed_grad(rt_stream *s, float *dtable, const void *dy, rt_dtype type,
              const int64_t *ids, int64_t rows, int64_t h, int64_t v, bool add,
              void *scratch)
{
    (void)scratch;
    if (!add)
        rt_zero(s, dtable, v * h * (int64_t)sizeof *dtable);
    rows_sum sum = {dtable, dy, 0, 0, ids, v, rows, h, RT_F32, type};
    int team = rt_team(s, rows * h);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t c = 0; c < (h + COLS - 1) / COLS; c++)
        add_rows(&sum, c);
}

void
rt_gather(rt_stream *s, void *y, const void *x, const int64_t *idx, int64_t outer,
          int64_t n, int64_t inner, int64_t m, int size)
{
    size_t bytes = (size_t)inner * (size_t)size;
    int team = rt_team(s, outer * m * inner);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < outer * m; t++) {
        int64_t o = t / m, at = idx[t % m];
        const char *from =
            (const char *)x + (size_t)(o * n + (at < 0 ? at + n : at)) * bytes;
        memcpy((char *)y + (size_t)t * bytes, from, bytes);
    }
}

void
rt_gather_grad(rt_stream *s, void *to, const void *from, const int64_t *idx,
               int64_t outer, int64_t n, int64_t inner, int64_t m, rt_dtype type)
{
    int64_t nc = (inner + COLS - 1) / COLS;
    rt_zero(s, to, outer * n * inner * v_bytes(type));
    int team = rt_team(s, outer * m * inner);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < outer * nc; t++) {
        int64_t o = t / nc;
        rows_sum sum = {to, from, o * n * inner, o * m * inner, idx,
                        n,  m,    inner,         type,          type};
        add_rows(&sum, t % nc);
    }
}
