/* reduce.c -- sums, maxima and running sums over one dimension.
 *
 * Long sums are sums of partial sums: over blocks of SUM_BLOCK elements, or over
 * RT_ROW_BLOCKS groups of rows. That is as fast, more accurate than one chain, and the same
 * for any number of threads.
 */
#include "low_int.h"
#include "rt_cpu_int.h"
#include "simd_int.h"

enum { SUM_BLOCK = 64, LANES = 4 };

int64_t
rt_row_blocks(int64_t rows)
{
    return rt_max(1, rt_min(RT_ROW_BLOCKS, rows / 8));
}

void
rt_sum_partials(rt_stream *s, float *y, const float *part, int64_t blocks, int64_t cols,
                bool add)
{
    int team = rt_team(s, blocks * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t c = 0; c < cols; c += VW) {
        int64_t left = cols - c;
        vf sum = {0};
        for (int64_t b = 0; b < blocks; b++)
            sum += v_load_to(part + b * cols + c, left);
        if (add)
            sum += v_load_to(y + c, left);
        v_store_to(y + c, sum, left);
    }
}

int64_t
rt_colsum_scratch(int64_t rows, int64_t cols, int threads)
{
    (void)threads;
    return rt_row_blocks(rows) * cols * (int64_t)sizeof(float);
}

/* p [c0, c1) += those columns of the row at element `at`. */
V_INLINE void
add_columns(float *p, const void *x, int64_t at, int64_t c0, int64_t c1, rt_dtype t)
{
    for (int64_t c = c0; c < c1; c += VW) {
        vf sum = v_load_to(p + c, c1 - c) + v_load_as_to(x, at + c, c1 - c, t);
        v_store_to(p + c, sum, c1 - c);
    }
}

void
rt_colsum(rt_stream *s, float *y, const void *in, rt_dtype type, int64_t rows,
          int64_t cols, int64_t ld, bool add, void *scratch)
{
    int64_t nb = rt_row_blocks(rows), nc = (cols + RT_COL_CHUNK - 1) / RT_COL_CHUNK;
    float *part = scratch;
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < nb * nc; t++) {
        int64_t b = t / nc, c0 = t % nc * RT_COL_CHUNK;
        int64_t c1 = rt_min(c0 + RT_COL_CHUNK, cols);
        float *p = part + b * cols;
        memset(p + c0, 0, (size_t)(c1 - c0) * sizeof *p);
        for (int64_t r = rows * b / nb; r < rows * (b + 1) / nb; r++)
            if (type == RT_F32)
                add_columns(p, in, r * ld, c0, c1, RT_F32);
            else
                add_columns(p, in, r * ld, c0, c1, type);
    }
    rt_sum_partials(s, y, part, nb, cols, add);
}

static float
sum_row(const float *x, int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < n; i += SUM_BLOCK * VW) {
        int64_t end = rt_min(i + SUM_BLOCK * VW, n);
        vf s = {0};
        for (int64_t k = i; k < end; k += VW)
            s += v_load_to(x + k, end - k);
        total += (double)v_sum(s);
    }
    return (float)total;
}

/* by times sums over n of `cols` <= LANES * VW neighbouring columns, rows `inner` apart. */
static void
sum_columns(float *y, const float *x, int64_t n, int64_t inner, int64_t cols, float by)
{
    for (int64_t c = 0; c < cols; c += VW) {
        int64_t left = cols - c;
        vf total = {0};
        for (int64_t i = 0; i < n; i += SUM_BLOCK) {
            vf s = {0};
            for (int64_t k = i; k < rt_min(i + SUM_BLOCK, n); k++)
                s += v_load_to(x + k * inner + c, left);
            total += s;
        }
        v_store_to(y + c, total * by, left);
    }
}

void
rt_reduce_sum(rt_stream *s, float *y, const float *x, int64_t outer, int64_t n,
              int64_t inner, float by)
{
    int64_t width = LANES * VW, nc = (inner + width - 1) / width;
    int team = rt_team(s, outer * n * inner);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < outer * nc; t++) {
        int64_t o = t / nc, c = t % nc * width;
        if (inner == 1)
            y[o] = sum_row(x + o * n, n) * by;
        else
            sum_columns(y + o * inner + c, x + o * n * inner + c, n, inner,
                        rt_min(width, inner - c), by);
    }
}

void
rt_reduce_max(rt_stream *s, float *y, const float *x, int64_t outer, int64_t n,
              int64_t inner)
{
    int team = rt_team(s, outer * n * inner);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t o = 0; o < outer; o++)
        for (int64_t c = 0; c < inner; c++) {
            const float *p = x + o * n * inner + c;
            float m = p[0];
            for (int64_t i = 1; i < n; i++) {
                float v = p[i * inner];
                m = v > m || v != v ? v : m; /* NaN wins */
            }
            y[o * inner + c] = m;
        }
}

void
rt_cumsum(rt_stream *s, int64_t *y, const int64_t *x, int64_t outer, int64_t n,
          int64_t inner)
{
    int team = rt_team(s, outer * n * inner);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < inner; c++) {
                int64_t at = (o * n + i) * inner + c;
                y[at] = x[at] + (i ? y[at - inner] : 0);
            }
}
