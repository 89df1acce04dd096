/* norm.c -- layer normalisation over the rows of [rows, cols] (Ba et al., 2016), and RMSNorm
 * (Zhang and Sennrich, 2019), the same without mean and bias.
 *
 *     y = (x - mean) * rstd * w + b,   rstd = 1 / sqrt(var + eps)
 *     dx = rstd * (g - avg(g) - xh * avg(g * xh)),   g = dy * w,   xh = (x - mean) * rstd
 *     dw = sum over rows of dy * xh,   db = sum over rows of dy
 *     RMSNorm: mean = 0, var = avg(x^2), and no avg(g)
 *
 * The variance takes a second pass over the row, which is in cache. Sums over rows go
 * through RT_ROW_BLOCKS partial sums, whatever the thread count.
 */
#include "rt_cpu_int.h"
#include "simd_int.h"

static float
row_mean(const float *x, int64_t cols)
{
    vf s = {0};
    for (int64_t i = 0; i < cols; i += VW)
        s += v_load_to(x + i, cols - i);
    return v_sum(s) / (float)cols;
}

static float
row_rstd(const float *x, float mean, int64_t cols, float eps)
{
    vf s = {0}, m = v_set(mean);
    int64_t i = 0;
    for (; i + VW <= cols; i += VW) {
        vf d = v_load(x + i) - m;
        s = v_fma(d, d, s);
    }
    if (i < cols) {
        vf d = v_first_n(cols - i, v_load_n(x + i, cols - i) - m, (vf){0});
        s = v_fma(d, d, s);
    }
    return 1 / sqrtf(v_sum(s) / (float)cols + eps);
}

void
rt_layernorm(rt_stream *s, void *to, float *mean, float *rstd, const void *from,
             const float *w, const float *b, const rt_norm *n)
{
    int64_t rows = n->rows, cols = n->cols;
    const float *x = from, eps = n->eps;
    float *y = to;
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols;
        float m = row_mean(in, cols), q = row_rstd(in, m, cols, eps);
        for (int64_t i = 0; i < cols; i += VW) {
            int64_t left = cols - i;
            vf xh = (v_load_to(in + i, left) - m) * q;
            vf o = v_fma(xh, v_load_to(w + i, left), v_load_to(b + i, left));
            v_store_to(out + i, o, left);
        }
        mean[r] = m;
        rstd[r] = q;
    }
}

void
rt_rmsnorm(rt_stream *s, void *to, float *rstd, const void *from, const float *w,
           const rt_norm *n)
{
    int64_t rows = n->rows, cols = n->cols;
    const float *x = from, eps = n->eps;
    float *y = to;
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float q = row_rstd(in, 0, cols, eps);
        for (int64_t i = 0; i < cols; i += VW) {
            int64_t left = cols - i;
            vf o = v_load_to(in + i, left) * q * v_load_to(w + i, left);
            v_store_to(y + r * cols + i, o, left);
        }
        rstd[r] = q;
    }
}

/* Row r's normalised x and dy * w at column i; zeros past the end. */
typedef struct ln_row {
    const float *dy, *x, *w;
    float mean, rstd;
    int64_t cols;
} ln_row;

V_INLINE void
ln_at(const ln_row *r, int64_t i, vf *xh, vf *g)
{
    int64_t left = r->cols - i;
    *xh = (v_load_to(r->x + i, left) - r->mean) * r->rstd;
    *g = v_load_to(r->dy + i, left) * v_load_to(r->w + i, left);
}

V_INLINE void
dx_row(float *dx, const ln_row *row, bool centred)
{
    vf sum_g = {0}, sum_gx = {0}, xh, g;
    for (int64_t i = 0; i < row->cols; i += VW) {
        ln_at(row, i, &xh, &g);
        sum_g += g;
        sum_gx = v_fma(g, xh, sum_gx);
    }
    vf avg_g = v_set(centred ? v_sum(sum_g) / (float)row->cols : 0);
    vf avg_gx = v_set(v_sum(sum_gx) / (float)row->cols);
    for (int64_t i = 0; i < row->cols; i += VW) {
        ln_at(row, i, &xh, &g);
        vf d = (g - avg_g - xh * avg_gx) * row->rstd;
        v_store_to(dx + i, d, row->cols - i);
    }
}

void
rt_layernorm_dx(rt_stream *s, void *to, const void *grad, const void *from,
                const float *w, const float *mean, const float *rstd, const rt_norm *n)
{
    int64_t rows = n->rows, cols = n->cols;
    const float *dy = grad, *x = from;
    float *dx = to;
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < rows; r++) {
        ln_row row = {dy + r * cols, x + r * cols, w, mean[r], rstd[r], cols};
        dx_row(dx + r * cols, &row, true);
    }
}

void
rt_rmsnorm_dx(rt_stream *s, void *to, const void *grad, const void *from,
              const float *w, const float *rstd, const rt_norm *n)
{
    int64_t rows = n->rows, cols = n->cols;
    const float *dy = grad, *x = from;
    float *dx = to;
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < rows; r++) {
        ln_row row = {dy + r * cols, x + r * cols, w, 0, rstd[r], cols};
        dx_row(dx + r * cols, &row, false);
    }
}

int64_t
rt_layernorm_dwb_scratch(int64_t rows, int64_t cols, int threads)
{
    (void)threads;
    return 2 * rt_row_blocks(rows) * cols * (int64_t)sizeof(float);
}

int64_t
rt_rmsnorm_dw_scratch(int64_t rows, int64_t cols, int threads)
{
    (void)threads;
    return rt_row_blocks(rows) * cols * (int64_t)sizeof(float);
}

typedef struct ln_grad {
    const float *dy, *x, *mean, *rstd;
    int64_t rows, cols;
} ln_grad;

/* Sums over rows [r0, r1) of columns [c0, c1); pb NULL: not wanted. */
V_INLINE void
ln_partial(const ln_grad *g, float *pw, float *pb, const int64_t row[2],
           const int64_t col[2])
{
    size_t bytes = (size_t)(col[1] - col[0]) * sizeof *pw;
    memset(pw + col[0], 0, bytes);
    if (pb)
        memset(pb + col[0], 0, bytes);
    for (int64_t r = row[0]; r < row[1]; r++) {
        const float *dy = g->dy + r * g->cols, *x = g->x + r * g->cols;
        float m = pb ? g->mean[r] : 0, q = g->rstd[r];
        for (int64_t c = col[0]; c < col[1]; c += VW) {
            int64_t left = col[1] - c;
            vf d = v_load_to(dy + c, left), xh = (v_load_to(x + c, left) - m) * q;
            v_store_to(pw + c, v_fma(d, xh, v_load_to(pw + c, left)), left);
            if (pb)
                v_store_to(pb + c, d + v_load_to(pb + c, left), left);
        }
    }
}

/* Partial sums pw, and pb unless it is NULL, [row blocks, cols]. */
V_INLINE void
partial_sums(rt_stream *s, const ln_grad *g, float *pw, float *pb)
{
    int64_t rows = g->rows, cols = g->cols, nb = rt_row_blocks(rows);
    int64_t nc = (cols + RT_COL_CHUNK - 1) / RT_COL_CHUNK;
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < nb * nc; t++) {
        int64_t b = t / nc, c = t % nc * RT_COL_CHUNK;
        int64_t row[2] = {rows * b / nb, rows * (b + 1) / nb};
        int64_t col[2] = {c, rt_min(c + RT_COL_CHUNK, cols)};
        ln_partial(g, pw + b * cols, pb ? pb + b * cols : NULL, row, col);
    }
}

void
rt_layernorm_dwb(rt_stream *s, float *dw, float *db, const void *dy, const void *x,
                 const float *mean, const float *rstd, const rt_norm *n, bool add_w,
                 bool add_b, void *scratch)
{
    ln_grad g = {dy, x, mean, rstd, n->rows, n->cols};
    int64_t nb = rt_row_blocks(n->rows), cols = n->cols;
    float *pw = scratch, *pb = pw + nb * cols;
    partial_sums(s, &g, pw, pb);
    if (dw)
        rt_sum_partials(s, dw, pw, nb, cols, add_w);
    if (db)
        rt_sum_partials(s, db, pb, nb, cols, add_b);
}

void
rt_rmsnorm_dw(rt_stream *s, float *dw, const void *dy, const void *x, const float *rstd,
              const rt_norm *n, bool add, void *scratch)
{
    ln_grad g = {dy, x, NULL, rstd, n->rows, n->cols};
    partial_sums(s, &g, scratch, NULL);
    rt_sum_partials(s, dw, scratch, rt_row_blocks(n->rows), n->cols, add);
}
