/* embed.c -- rows of a table by index, and the way back.
 *
 * The gradients add rows with equal index in order of position: threads split the columns,
 * never the positions, so the sum is the same for any number of them.
 */
#include "rt_cpu_int.h"

enum { COLS = 64 }; /* columns that one task adds up: whole cache lines */

void
rt_embed(rt_stream *s, void *out, rt_dtype to, const void *in, rt_dtype from,
         const int64_t *ids, int64_t rows, int64_t h)
{
    float *y = out;
    const float *table = in;
    (void)to, (void)from;
    int team = rt_team(s, rows * h);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * h, table + ids[r] * h, (size_t)h * sizeof *y);
}

int64_t
rt_embed_grad_scratch(int64_t rows, int64_t h, int64_t v, int threads)
{
    (void)rows, (void)h, (void)v, (void)threads;
    return 0;
}

typedef struct rows_sum { /* dx [n, inner] += dy [m, inner] at rows idx */
    float *dx;
    const float *dy;
    const int64_t *idx;
    int64_t n, m, inner;
} rows_sum;

/* The c-th group of columns. */
static void
add_rows(const rows_sum *s, int64_t c)
{
    int64_t c0 = c * COLS, c1 = rt_min(c0 + COLS, s->inner);
    for (int64_t j = 0; j < s->m; j++) {
        float *to = s->dx + (s->idx[j] < 0 ? s->idx[j] + s->n : s->idx[j]) * s->inner;
        const float *from = s->dy + j * s->inner;
        for (int64_t k = c0; k < c1; k++)
            to[k] += from[k];
    }
}

void
rt_embed_grad(rt_stream *s, float *dtable, const void *dy, rt_dtype type,
              const int64_t *ids, int64_t rows, int64_t h, int64_t v, bool add,
              void *scratch)
{
    (void)scratch, (void)type;
    if (!add)
        rt_zero(s, dtable, v * h * (int64_t)sizeof *dtable);
    rows_sum sum = {dtable, dy, ids, v, rows, h};
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
    float *dx = to;
    const float *dy = from;
    (void)type;
    int64_t nc = (inner + COLS - 1) / COLS;
    rt_zero(s, dx, outer * n * inner * (int64_t)sizeof *dx);
    int team = rt_team(s, outer * m * inner);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < outer * nc; t++) {
        int64_t o = t / nc;
        rows_sum sum = {dx + o * n * inner, dy + o * m * inner, idx, n, m, inner};
        add_rows(&sum, t % nc);
    }
}
