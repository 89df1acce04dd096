/* norm.c -- layer normalisation over the rows of [rows, cols] (Ba et al., 2016), and RMSNorm
 * (Zhang and Sennrich, 2019), the same without mean and bias.
 *
 *     y = (x - mean) * rstd * w + b,   rstd = 1 / sqrt(var + eps)
 *     dx = rstd * (g - avg(g) - xh * avg(g * xh)),   g = dy * w,   xh = (x - mean) * rstd
 *     dw = sum over rows of dy * xh,   db = sum over rows of dy
 *     RMSNorm: mean = 0, var = avg(x^2), and no avg(g)
 *
 * Rows are floats or of a low type; all arithmetic is in floats. A kernel is inlined once for
 * floats and once for what the call says.
 *
 * The variance takes a second pass over the row, which is in cache. Sums over rows go
 * through RT_ROW_BLOCKS partial sums, whatever the thread count.
 */
#include "low_int.h"
#include "rt_cpu_int.h"

/* Row at element `at` of memory of type t. */
V_INLINE float
row_mean(const void *x, int64_t at, int64_t cols, rt_dtype t)
{
    vf s = {0};
    for (int64_t i = 0; i < cols; i += VW)
        s += v_load_as_to(x, at + i, cols - i, t);
    return v_sum(s) / (float)cols;
}

V_INLINE float
row_rstd(const void *x, int64_t at, float mean, const rt_norm *n, rt_dtype t)
{
    vf s = {0}, m = v_set(mean);
    int64_t i = 0, cols = n->cols;
    for (; i + VW <= cols; i += VW) {
        vf d = v_load_as(x, at + i, t) - m;
        s = v_fma(d, d, s);
    }
    if (i < cols) {
        vf d = v_first_n(cols - i, v_load_as_n(x, at + i, cols - i, t) - m, (vf){0});
        s = v_fma(d, d, s);
    }
    return 1 / sqrtf(v_sum(s) / (float)cols + n->eps);
}

typedef struct norm_call { /* mean and b NULL: RMSNorm */
    void *y;
    float *mean, *rstd;
    const void *x;
    const float *w, *b;
    const rt_norm *n;
} norm_call;

/* The call comes by value: what is stored can not change it, so that it stays in registers. */
V_INLINE void
normalise(norm_call c, int64_t r, rt_dtype xt, rt_dtype yt, bool centred)
{
    int64_t cols = c.n->cols, at = r * cols;
    float m = centred ? row_mean(c.x, at, cols, xt) : 0;
    float q = row_rstd(c.x, at, m, c.n, xt);
    for (int64_t i = 0; i < cols; i += VW) {
        int64_t left = cols - i;
        vf x = v_load_as_to(c.x, at + i, left, xt), w = v_load_to(c.w + i, left);
        vf xh = (centred ? x - m : x) * q;
        vf o = centred ? v_fma(xh, w, v_load_to(c.b + i, left)) : xh * w;
        v_store_as_to(c.y, at + i, o, left, yt);
    }
    if (centred)
        c.mean[r] = m;
    c.rstd[r] = q;
}

V_INLINE void
all_rows(rt_stream *s, const norm_call *c, bool centred)
{
    const rt_norm *n = c->n;
    bool floats = n->x == RT_F32 && n->y == RT_F32;
    int team = rt_team(s, n->rows * n->cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < n->rows; r++)
        if (floats)
            normalise(*c, r, RT_F32, RT_F32, centred);
        else
            normalise(*c, r, n->x, n->y, centred);
}

void
rt_layernorm(rt_stream *s, void *y, float *mean, float *rstd, const void *x,
             const float *w, const float *b, const rt_norm *n)
{
    norm_call c = {y, mean, rstd, x, w, b, n};
    all_rows(s, &c, true);
}

void
rt_rmsnorm(rt_stream *s, void *y, float *rstd, const void *x, const float *w,
           const rt_norm *n)
{
    norm_call c = {y, NULL, rstd, x, w, NULL, n};
    all_rows(s, &c, false);
}

/* ---- gradient of x ---- */

typedef struct dx_call { /* mean NULL: RMSNorm */
    void *dx;
    const void *dy, *x;
    const float *w, *mean, *rstd;
    const rt_norm *n;
    const void *from; /* what is added; NULL: nothing */
    void *low;        /* the same in another type; NULL: not wanted */
    rt_dtype low_type;
} dx_call;

typedef struct grad_row { /* from element `at` on; x of type t[0], dy of t[1] */
    const void *x, *dy;
    const float *w;
    int64_t at, cols;
    float mean, rstd;
    rt_dtype t[2];
    const void *from;
    void *low;
    rt_dtype low_type;
} grad_row;

/* The row's normalised x and dy * w at column i; zeros past the end. */
V_INLINE void
at_column(grad_row q, int64_t i, vf *xh, vf *g)
{
    int64_t left = q.cols - i;
    *xh = (v_load_as_to(q.x, q.at + i, left, q.t[0]) - q.mean) * q.rstd;
    *g = v_load_as_to(q.dy, q.at + i, left, q.t[1]) * v_load_to(q.w + i, left);
}

V_INLINE void
dx_row(void *dx, grad_row q, bool centred)
{
    vf sum_g = {0}, sum_gx = {0}, xh, g;
    for (int64_t i = 0; i < q.cols; i += VW) {
        at_column(q, i, &xh, &g);
        sum_g += g;
        sum_gx = v_fma(g, xh, sum_gx);
    }
    vf avg_g = v_set(centred ? v_sum(sum_g) / (float)q.cols : 0);
    vf avg_gx = v_set(v_sum(sum_gx) / (float)q.cols);
    for (int64_t i = 0; i < q.cols; i += VW) {
        at_column(q, i, &xh, &g);
        vf d = (g - avg_g - xh * avg_gx) * q.rstd;
        if (q.from)
            d += v_load_as_to(q.from, q.at + i, q.cols - i, q.t[0]);
        v_store_as_to(dx, q.at + i, d, q.cols - i, q.t[0]);
        if (q.low)
            v_store_as_to(q.low, q.at + i, d, q.cols - i, q.low_type);
    }
}

V_INLINE void
dx_as(const dx_call *c, int64_t r, rt_dtype x, rt_dtype y, bool centred)
{
    int64_t cols = c->n->cols;
    float mean = centred ? c->mean[r] : 0;
    grad_row q = {c->x,       c->dy,  c->w,    r * cols, cols,       mean,
                  c->rstd[r], {x, y}, c->from, c->low,   c->low_type};
    dx_row(c->dx, q, centred);
}

V_INLINE void
dx_rows(rt_stream *s, const dx_call *c, bool centred)
{
    const rt_norm *n = c->n;
    bool floats = n->x == RT_F32 && n->y == RT_F32;
    int team = rt_team(s, n->rows * n->cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < n->rows; r++)
        if (floats)
            dx_as(c, r, RT_F32, RT_F32, centred);
        else
            dx_as(c, r, n->x, n->y, centred);
}

void
rt_layernorm_dx(rt_stream *s, void *dx, const void *dy, const void *x, const float *w,
                const float *mean, const float *rstd, const rt_norm *n)
{
    dx_call c = {dx, dy, x, w, mean, rstd, n, NULL, NULL, RT_F32};
    dx_rows(s, &c, true);
}

void
rt_rmsnorm_dx(rt_stream *s, void *dx, const void *dy, const void *x, const float *w,
              const float *rstd, const rt_norm *n)
{
    dx_call c = {dx, dy, x, w, NULL, rstd, n, NULL, NULL, RT_F32};
    dx_rows(s, &c, false);
}

/* ---- gradients of w and b ---- */

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
    const void *dy, *x;
    const float *mean, *rstd;
    const rt_norm *n;
} ln_grad;

/* pw, pb [n] += what a row has in the columns from q.at on; pb NULL: not wanted. */
V_INLINE void
add_row(float *pw, float *pb, grad_row q)
{
    for (int64_t c = 0; c < q.cols; c += VW) {
        int64_t left = q.cols - c;
        vf d = v_load_as_to(q.dy, q.at + c, left, q.t[1]);
        vf xh = (v_load_as_to(q.x, q.at + c, left, q.t[0]) - q.mean) * q.rstd;
        v_store_to(pw + c, v_fma(d, xh, v_load_to(pw + c, left)), left);
        if (pb)
            v_store_to(pb + c, d + v_load_to(pb + c, left), left);
    }
}

/* Sums over rows [r0, r1) of columns [c0, c1). */
V_INLINE void
ln_partial(const ln_grad *g, float *pw, float *pb, const int64_t row[2],
           const int64_t col[2])
{
    const rt_norm *n = g->n;
    int64_t cols = col[1] - col[0];
    memset(pw, 0, (size_t)cols * sizeof *pw);
    if (pb)
        memset(pb, 0, (size_t)cols * sizeof *pb);
    for (int64_t r = row[0]; r < row[1]; r++) {
        float mean = pb ? g->mean[r] : 0;
        grad_row q = {.x = g->x,
                      .dy = g->dy,
                      .at = r * n->cols + col[0],
                      .cols = cols,
                      .mean = mean,
                      .rstd = g->rstd[r],
                      .t = {RT_F32, RT_F32}};
        if (n->x == RT_F32 && n->y == RT_F32) {
            add_row(pw, pb, q);
            continue;
        }
        q.t[0] = n->x, q.t[1] = n->y;
        add_row(pw, pb, q);
    }
}

/* Partial sums pw, and pb unless it is NULL, [row blocks, cols]. */
V_INLINE void
partial_sums(rt_stream *s, const ln_grad *g, float *pw, float *pb)
{
    int64_t rows = g->n->rows, cols = g->n->cols, nb = rt_row_blocks(rows);
    int64_t nc = (cols + RT_COL_CHUNK - 1) / RT_COL_CHUNK;
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t t = 0; t < nb * nc; t++) {
        int64_t b = t / nc, c = t % nc * RT_COL_CHUNK;
        int64_t row[2] = {rows * b / nb, rows * (b + 1) / nb};
        int64_t col[2] = {c, rt_min(c + RT_COL_CHUNK, cols)};
        ln_partial(g, pw + b * cols + c, pb ? pb + b * cols + c : NULL, row, col);
    }
}

void
rt_layernorm_dwb(rt_stream *s, float *dw, float *db, const void *dy, const void *x,
                 const float *mean, const float *rstd, const rt_norm *n, bool add_w,
                 bool add_b, void *scratch)
{
    ln_grad g = {dy, x, mean, rstd, n};
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
    ln_grad g = {dy, x, NULL, rstd, n};
    partial_sums(s, &g, scratch, NULL);
    rt_sum_partials(s, dw, scratch, rt_row_blocks(n->rows), n->cols, add);
}

void
rt_norm_grad(rt_stream *s, void *dx, void *low, float *dw, float *db, const void *dy,
             const void *x, const float *w, const float *mean, const float *rstd,
             const void *from, const rt_norm_grad_of *g, void *scratch)
{
    const rt_norm *n = &g->norm;
    dx_call c = {dx, dy, x, w, mean, rstd, n, from, low, g->low};
    if (dw && mean)
        rt_layernorm_dwb(s, dw, db, dy, x, mean, rstd, n, g->add_w, g->add_b, scratch);
    else if (dw)
        rt_rmsnorm_dw(s, dw, dy, x, rstd, n, g->add_w, scratch);
    if (mean)
        dx_rows(s, &c, true);
    else
        dx_rows(s, &c, false);
}
