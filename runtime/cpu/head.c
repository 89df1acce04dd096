/* head.c -- a head over a vocabulary with its cross entropy, a chunk of rows at a time.
 *
 * Supervised rows are gathered, so rows that carry no target cost nothing. Each chunk's
 * logits live only until its loss and gradients are taken: softmax overwrites them with
 * d logits, then dx = dlogits W^T, dW += x^T dlogits, dbias += column sums. Chunks run in
 * order and rows are summed in fixed groups, in double.
 */
#include "mm_int.h"
#include "row_int.h"

typedef struct head_space { /* scratch, cut up */
    int64_t *row;           /* [rows] supervised rows */
    float *x, *dx, *logits; /* [chunk, h], [chunk, h], [chunk, ld] */
    void *mm, *sum;         /* of products, of column sums */
    int64_t ld, bytes;
} head_space;

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
    int64_t c = rt_min(d->chunk, d->rows), f = sizeof(float), at = 0;
    int64_t mm = rt_mm_scratch(c, d->v, d->h);
    if (grad)
        mm = rt_max(mm, rt_max(rt_mm_scratch(c, d->h, d->v),
                               rt_max(rt_mm_scratch(d->v, d->h, c),
                                      rt_mm_scratch(d->h, d->v, c))));
    s.row = cut(base, &at, d->rows * (int64_t)sizeof *s.row);
    s.x = cut(base, &at, c * d->h * f);
    s.dx = cut(base, &at, grad ? c * d->h * f : 0);
    s.logits = cut(base, &at, c * s.ld * f);
    s.mm = cut(base, &at, mm);
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
    const float *x, *w, *bias;
    const int64_t *targets;
    float scale;
    const int64_t *row;
    int64_t n;
} head_call;

static void
chunk_logits(const head_call *c)
{
    const rt_head *d = c->d;
    int team = rt_team(c->s, c->n * d->h);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < c->n; i++)
        memcpy(c->p.x + i * d->h, c->x + c->row[i] * d->h, (size_t)d->h * sizeof *c->x);
    rt_mm g = {.m = c->n,
               .n = d->v,
               .k = d->h,
               .tb = d->tb,
               .alpha = 1,
               .lda = d->h,
               .ldb = d->tb ? d->h : d->v,
               .ldc = c->p.ld,
               .a = c->p.x,
               .b = c->w,
               .bias = c->bias,
               .c = c->p.logits};
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
        }
    }
    for (int b = 0; b < RT_LOSS_BLOCKS; b++)
        total += part[b];
    return total;
}

static void
chunk_dx(const head_call *c, float *dx)
{
    const rt_head *d = c->d;
    rt_mm g = {.m = c->n,
               .n = d->h,
               .k = d->v,
               .tb = !d->tb,
               .alpha = 1,
               .lda = c->p.ld,
               .ldb = d->tb ? d->h : d->v,
               .ldc = d->h,
               .a = c->p.logits,
               .b = c->w,
               .c = c->p.dx};
    rt_mm_run(&g, c->s->threads, c->p.mm);
    int team = rt_team(c->s, c->n * d->h);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < c->n; i++)
        memcpy(dx + c->row[i] * d->h, c->p.dx + i * d->h, (size_t)d->h * sizeof *dx);
}

static void
chunk_dw(const head_call *c, float *dw)
{
    const rt_head *d = c->d;
    rt_mm g = {.m = d->h,
               .n = d->v,
               .k = c->n,
               .ta = true,
               .add = true,
               .alpha = 1,
               .lda = d->h,
               .ldb = c->p.ld,
               .ldc = d->v,
               .a = c->p.x,
               .b = c->p.logits,
               .c = dw};
    if (d->tb) {
        g.m = d->v, g.n = d->h, g.ldc = d->h;
        g.a = c->p.logits, g.lda = c->p.ld;
        g.b = c->p.x, g.ldb = d->h;
    }
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
        rt_zero(s, dx, d->rows * d->h * (int64_t)sizeof(float));
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
