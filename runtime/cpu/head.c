/* head.c -- a head over a vocabulary with its cross entropy, a chunk of rows at a time.
 *
 * Supervised rows are gathered, so rows that carry no target cost nothing. Each chunk's
 * logits live only until its loss and gradients are taken: softmax overwrites them with
 * d logits, then dx = dlogits W^T, dW += x^T dlogits, dbias += column sums. Chunks run in
 * order and rows are summed in fixed groups, in double. Logits are floats; with x and w of a
 * low type d logits are rounded to it for the products that they go into.
 */
#include "low_int.h"
#include "mm_int.h"
#include "row_int.h"

typedef struct head_space { /* scratch, cut up */
    int64_t *row;           /* [rows] supervised rows */
    void *x, *dx;           /* [chunk, h] of the type */
    float *logits;          /* [chunk, ld] */
    void *dlogits;          /* [chunk, ld] of the type; floats: the logits' place */
    void *mm, *sum;         /* of products, of column sums */
    int64_t ld, bytes;
} head_space;

/* ---- the three products of n rows ---- */

static rt_mm
logits_of(const rt_head *d, int64_t n, int64_t ld)
{
    return (rt_mm){.m = n,
                   .n = d->v,
                   .k = d->h,
                   .tb = d->tb,
                   .alpha = 1,
                   .lda = d->h,
                   .ldb = d->tb ? d->h : d->v,
                   .ldc = ld,
                   .type_a = d->type,
                   .type_b = d->type};
}

static rt_mm
dx_of(const rt_head *d, int64_t n, int64_t ld)
{
    return (rt_mm){.m = n,
                   .n = d->h,
                   .k = d->v,
                   .tb = !d->tb,
                   .alpha = 1,
                   .lda = ld,
                   .ldb = d->tb ? d->h : d->v,
                   .ldc = d->h,
                   .type_a = d->type,
                   .type_b = d->type,
                   .type_c = d->type};
}

static rt_mm
dw_of(const rt_head *d, int64_t n, int64_t ld)
{
    return (rt_mm){.m = d->tb ? d->v : d->h,
                   .n = d->tb ? d->h : d->v,
                   .k = n,
                   .ta = true,
                   .add = true,
                   .alpha = 1,
                   .lda = d->tb ? ld : d->h,
                   .ldb = d->tb ? d->h : ld,
                   .ldc = d->tb ? d->h : d->v,
                   .type_a = d->type,
                   .type_b = d->type};
}

static int64_t
products_scratch(const rt_head *d, bool grad, int64_t n, int64_t ld)
{
    rt_mm y = logits_of(d, n, ld), dx = dx_of(d, n, ld), dw = dw_of(d, n, ld);
    int64_t most = rt_mm_scratch(&y);
    if (grad)
        most = rt_max(most, rt_max(rt_mm_scratch(&dx), rt_mm_scratch(&dw)));
    return most;
}

static void *
cut(char *base, int64_t *at, int64_t bytes)
{
    int64_t from = *at;
    *at += rt_round_up(bytes, RT_ALIGN);
    return base ? base + from : NULL;
}

/* base NULL: only sizes. */
static head_space
space_of(const rt_head *d, bool grad, void *base)
{
    head_space s = {.ld = rt_round_up(d->v, VW)};
    int64_t c = rt_min(d->chunk, d->rows), at = 0, rows = c * d->h * v_bytes(d->type);
    int64_t logits = c * s.ld;
    bool low = grad && d->type != RT_F32;
    s.row = cut(base, &at, d->rows * (int64_t)sizeof *s.row);
    s.x = cut(base, &at, rows);
    s.dx = cut(base, &at, grad ? rows : 0);
    s.logits = cut(base, &at, logits * (int64_t)sizeof(float));
    s.dlogits = cut(base, &at, low ? logits * v_bytes(d->type) : 0);
    if (!low)
        s.dlogits = s.logits;
    s.mm = cut(base, &at, products_scratch(d, grad, c, s.ld));
    s.sum = cut(base, &at, grad ? rt_colsum_scratch(c, d->v, 1) : 0);
    s.bytes = at;
    return s;
}

int64_t
rt_head_ce_scratch(const rt_head *d, bool grad, int threads)
{
    (void)threads;
    return space_of(d, grad, NULL).bytes;
}

static int64_t
supervised(int64_t *row, const int64_t *targets, int64_t rows)
{
    int64_t n = 0;
    for (int64_t r = 0; r < rows; r++)
        if (targets[r] != RT_IGNORE)
            row[n++] = r;
    return n;
}

/* A call and the chunk of it that runs: n supervised rows, listed at row. */
typedef struct head_call {
    rt_stream *s;
    const rt_head *d;
    head_space p;
    const void *x, *w;
    const float *bias;
    const int64_t *targets;
    float scale;
    const int64_t *row;
    int64_t n;
} head_call;

/* packed = the chunk's rows of all, and back. */
static void
gather_rows(const head_call *c, void *packed, const void *all)
{
    int64_t bytes = c->d->h * v_bytes(c->d->type);
    int team = rt_team(c->s, c->n * c->d->h);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < c->n; i++)
        memcpy((char *)packed + i * bytes, (const char *)all + c->row[i] * bytes,
               (size_t)bytes);
}

static void
scatter_rows(const head_call *c, void *all, const void *packed)
{
    int64_t bytes = c->d->h * v_bytes(c->d->type);
    int team = rt_team(c->s, c->n * c->d->h);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < c->n; i++)
        memcpy((char *)all + c->row[i] * bytes, (const char *)packed + i * bytes,
               (size_t)bytes);
}

static void
chunk_logits(const head_call *c)
{
    rt_mm g = logits_of(c->d, c->n, c->p.ld);
    gather_rows(c, c->p.x, c->x);
    g.a = c->p.x, g.b = c->w, g.bias = c->bias, g.c = c->p.logits;
    rt_mm_run(&g, c->s->threads, c->p.mm);
}

/* Sum of a chunk's row losses. Counts right ones, fills pred and losses. */
static double
chunk_eval(const head_call *c, int64_t *right, int64_t *pred, float *losses)
{
    double part[RT_LOSS_BLOCKS], total = 0;
    int64_t hit[RT_LOSS_BLOCKS], n = c->n, v = c->d->v;
    int team = rt_team(c->s, n * v);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        part[b] = 0, hit[b] = 0;
        for (int64_t i = n * b / RT_LOSS_BLOCKS; i < n * (b + 1) / RT_LOSS_BLOCKS;
             i++) {
            float *x = c->p.logits + i * c->p.ld, sum;
            int64_t r = c->row[i], t = c->targets[r];
            float xt = x[t];
            pred[r] = row_argmax(x, v, row_max(x, v));
            hit[b] += pred[r] == t;
            float max = row_exp(x, x, v, &sum);
            double l = row_loss(max, sum, xt);
            losses[r] = (float)l;
            part[b] += l;
        }
    }
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        total += part[b];
        *right += hit[b];
    }
    return total;
}

void
rt_head_ce(rt_stream *s, float *loss, int64_t *right, int64_t *pred, float *losses,
           const void *x, const void *w, const int64_t *targets, const float *scale,
           const float *bias, const rt_head *d, void *scratch)
{
    head_call c = {s,    d, space_of(d, false, scratch), x, w, bias, targets, *scale,
                   NULL, 0};
    int64_t n = supervised(c.p.row, targets, d->rows);
    double total = 0;
    *right = 0;
    for (int64_t r = 0; r < d->rows; r++)
        pred[r] = -1, losses[r] = 0;
    for (int64_t i = 0; i < n; i += d->chunk) {
        c.row = c.p.row + i;
        c.n = rt_min(d->chunk, n - i);
        chunk_logits(&c);
        total += chunk_eval(&c, right, pred, losses);
    }
    *loss = (float)(total * (double)*scale);
}

static void
round_row(const head_call *c, int64_t i)
{
    for (int64_t j = 0; j < c->p.ld; j += VW) {
        vf v = v_load_to(c->p.logits + i * c->p.ld + j, c->d->v - j);
        v_store_as(c->p.dlogits, i * c->p.ld + j, v, c->d->type);
    }
}

/* Sum of a chunk's row losses; logits become d logits. */
static double
chunk_dlogits(const head_call *c)
{
    double part[RT_LOSS_BLOCKS], total = 0;
    int64_t n = c->n, v = c->d->v;
    int team = rt_team(c->s, n * v);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        part[b] = 0;
        for (int64_t i = n * b / RT_LOSS_BLOCKS; i < n * (b + 1) / RT_LOSS_BLOCKS;
             i++) {
            float *x = c->p.logits + i * c->p.ld, sum;
            int64_t t = c->targets[c->row[i]];
            float xt = x[t], max = row_exp(x, x, v, &sum);
            part[b] += row_loss(max, sum, xt);
            row_scale(x, v, c->scale / sum);
            x[t] -= c->scale;
            if (c->d->type != RT_F32)
                round_row(c, i);
        }
    }
    for (int b = 0; b < RT_LOSS_BLOCKS; b++)
        total += part[b];
    return total;
}

static void
chunk_dx(const head_call *c, void *dx)
{
    rt_mm g = dx_of(c->d, c->n, c->p.ld);
    g.a = c->p.dlogits, g.b = c->w, g.c = c->p.dx;
    rt_mm_run(&g, c->s->threads, c->p.mm);
    scatter_rows(c, dx, c->p.dx);
}

static void
chunk_dw(const head_call *c, float *dw)
{
    rt_mm g = dw_of(c->d, c->n, c->p.ld);
    g.a = c->d->tb ? c->p.dlogits : c->p.x;
    g.b = c->d->tb ? c->p.x : c->p.dlogits;
    g.c = dw;
    rt_mm_run(&g, c->s->threads, c->p.mm);
}

void
rt_head_ce_grad(rt_stream *s, float *loss, void *dx, float *dw, float *dbias,
                const void *x, const void *w, const int64_t *targets,
                const float *scale, const float *bias, const rt_head *d, void *scratch)
{
    head_call c = {s,    d, space_of(d, true, scratch), x, w, bias, targets, *scale,
                   NULL, 0};
    int64_t n = supervised(c.p.row, targets, d->rows);
    double total = 0;
    if (n < d->rows)
        rt_zero(s, dx, d->rows * d->h * v_bytes(d->type));
    for (int64_t i = 0; i < n; i += d->chunk) {
        c.row = c.p.row + i;
        c.n = rt_min(d->chunk, n - i);
        chunk_logits(&c);
        total += chunk_dlogits(&c);
        chunk_dx(&c, dx);
        if (dw)
            chunk_dw(&c, dw);
        if (dbias)
            rt_colsum(s, dbias, c.p.logits, RT_F32, c.n, d->v, c.p.ld, true, c.p.sum);
    }
    *loss = (float)(total * (double)*scale);
}
