/* embed.c -- rows of a table by index, and the way back.
 *
 * The gradients add rows with equal index in order of position: threads split the columns,
 * never the positions, so the sum is the same for any number of them.
 */
#include "rt_cpu_int.h"

enum { COLS = 64 }; /* columns that one task adds up: whole cache lines */

void
rt_embed(rt_stream *s, float *y, const float *table, const int64_t *ids, int64_t rows,
         int64_t h)
{
#pragma omp parallel for schedule(static) num_threads(rt_team(s, rows *h))
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * h, table + ids[r] * h, (size_t)h * sizeof *y);
}

int64_t
rt_embed_grad_scratch(int64_t rows, int64_t h, int64_t v, int threads)
{
    (void)rows, (void)h, (void)v, (void)threads;
    return 0;
}

/* One slice: dx [n, inner] += dy [m, inner] at rows idx. Columns [c0, c1). */
static void
add_rows(float *dx, const float *dy, const int64_t *idx, int64_t n, int64_t m,
         int64_t inner, int64_t c0, int64_t c1)
{
    for (int64_t j = 0; j < m; j++) {
        float *to = dx + (idx[j] < 0 ? idx[j] + n : idx[j]) * inner;
        const float *from = dy + j * inner;
        for (int64_t c = c0; c < c1; c++)
            to[c] += from[c];
    }
}

void
rt_embed_grad(rt_stream *s, float *dtable, const float *dy, const int64_t *ids,
              int64_t rows, int64_t h, int64_t v, bool add, void *scratch)
{
    (void)scratch;
    if (!add)
        rt_zero(s, dtable, v * h * (int64_t)sizeof *dtable);
    int64_t nc = (h + COLS - 1) / COLS;
#pragma omp parallel for schedule(static) num_threads(rt_team(s, rows *h))
    for (int64_t t = 0; t < nc; t++)
        add_rows(dtable, dy, ids, v, rows, h, t * COLS, rt_min((t + 1) * COLS, h));
}

void
rt_gather(rt_stream *s, void *y, const void *x, const int64_t *idx, int64_t outer,
          int64_t n, int64_t inner, int64_t m, int size)
{
    size_t bytes = (size_t)inner * (size_t)size;
#pragma omp parallel for schedule(static) num_threads(rt_team(s, outer *m *inner))
    for (int64_t t = 0; t < outer * m; t++) {
        int64_t o = t / m, at = idx[t % m];
        const char *from =
            (const char *)x + (size_t)(o * n + (at < 0 ? at + n : at)) * bytes;
        memcpy((char *)y + (size_t)t * bytes, from, bytes);
    }
}

void
rt_gather_grad(rt_stream *s, float *dx, const float *dy, const int64_t *idx,
               int64_t outer, int64_t n, int64_t inner, int64_t m)
{
    int64_t nc = (inner + COLS - 1) / COLS;
    rt_zero(s, dx, outer * n * inner * (int64_t)sizeof *dx);
#pragma omp parallel for schedule(static) num_threads(rt_team(s, outer *m *inner))
    for (int64_t t = 0; t < outer * nc; t++) {
        int64_t o = t / nc, c = t % nc * COLS;
        add_rows(dx + o * n * inner, dy + o * m * inner, idx, n, m, inner, c,
                 rt_min(c + COLS, inner));
    }
}
