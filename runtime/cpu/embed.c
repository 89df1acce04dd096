/* embed.c -- rows of a table by index, and the way back.
 *
 * The gradients add rows with equal index in order of position: threads split the columns,
 * never the positions, so the sum is the same for any number of them.
 */
#include "low_int.h"
#include "rt_cpu_int.h"

enum {
    COLS = 64, /* columns that one task adds up: whole cache lines */
    ROWS = 64  /* rows of a low type, of which a task has the sums beside them */
};

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

/* dx [n, inner] += dy [m, inner] at rows idx; both from element dx_at and dy_at on. */
typedef struct rows_sum {
    void *dx;
    const void *dy;
    int64_t dx_at, dy_at;
    const int64_t *idx;
    int64_t n, m, inner;
    rt_dtype type; /* of dy */
} rows_sum;

static inline int64_t
row_at(const rows_sum *s, int64_t j)
{
    return s->idx[j] < 0 ? s->idx[j] + s->n : s->idx[j];
}

/* sum [n] += columns c.. of row j of dy. */
V_INLINE void
add_columns(float *sum, const rows_sum *s, int64_t j, int64_t c, int64_t n, rt_dtype t)
{
    int64_t x = s->dy_at + j * s->inner + c;
    for (int64_t k = 0; k < n; k += VW)
        v_store_to(sum + k,
                   v_load_to(sum + k, n - k) + v_load_as_to(s->dy, x + k, n - k, t),
                   n - k);
}

/* The c-th group of columns, where dx is of floats. */
static void
add_rows(const rows_sum *s, int64_t c)
{
    int64_t at = c * COLS, n = rt_min(COLS, s->inner - at);
    float *dx = (float *)s->dx + s->dx_at + at;
    for (int64_t j = 0; j < s->m; j++)
        if (s->type == RT_F32)
            add_columns(dx + row_at(s, j) * s->inner, s, j, at, n, RT_F32);
        else
            add_columns(dx + row_at(s, j) * s->inner, s, j, at, n, s->type);
}

/* Where dx is of a low type, too, its rows are sums of floats, rounded once: a block of rows
 * and a group of columns at a time, t-th of all. */
static void
sum_block(const rows_sum *s, int64_t t)
{
    int64_t groups = (s->inner + COLS - 1) / COLS;
    int64_t c = t % groups * COLS, n = rt_min(COLS, s->inner - c);
    int64_t first = t / groups * ROWS, rows = rt_min(ROWS, s->n - first);
    float sum[ROWS][COLS];
    memset(sum, 0, (size_t)rows * sizeof *sum);
    for (int64_t j = 0; j < s->m; j++) {
        int64_t row = row_at(s, j) - first;
        if (row >= 0 && row < rows)
            add_columns(sum[row], s, j, c, n, s->type);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < n; k += VW)
            v_store_as_to(s->dx, s->dx_at + (first + i) * s->inner + c + k,
                          v_load(sum[i] + k), n - k, s->type);
}

void
rt_embed_grad(rt_stream *s, float *dtable, const void *dy, rt_dtype type,
              const int64_t *ids, int64_t rows, int64_t h, int64_t v, bool add,
              void *scratch)
{
    (void)scratch;
    if (!add)
        rt_zero(s, dtable, v * h * (int64_t)sizeof *dtable);
    rows_sum sum = {dtable, dy, 0, 0, ids, v, rows, h, type};
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
    int64_t groups = (inner + COLS - 1) / COLS;
    int64_t parts = type == RT_F32 ? groups : groups * ((n + ROWS - 1) / ROWS);
    if (type == RT_F32)
        rt_zero(s, to, outer * n * inner * (int64_t)sizeof(float));
    int team = rt_team(s, outer * (m + n) * inner);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < outer * parts; t++) {
        int64_t o = t / parts;
        rows_sum sum = {to, from, o * n * inner, o * m * inner, idx, n, m, inner, type};
        if (type == RT_F32)
            add_rows(&sum, t % parts);
        else
            sum_block(&sum, t % parts);
    }
}
