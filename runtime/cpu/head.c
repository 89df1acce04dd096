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
rt_head_ce_scratch(int64_t rows, int64_t h, int64_t v, int64_t chunk, bool grad,
                   int threads)
{
    (void)threads;
    rt_head d = {rows, h, v, chunk, false};
    return space_of(&d, grad, NULL).bytes;
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

static void
chunk_logits(rt_stream *s, const rt_head *d, const head_space *p, const int64_t *row,
             int64_t n, const float *const in[3])
{
    const float *x = in[0], *w = in[1], *bias = in[2];
#pragma omp parallel for schedule(static) num_threads(rt_team(s, n * d->h))
    for (int64_t i = 0; i < n; i++)
        memcpy(p->x + i * d->h, x + row[i] * d->h, (size_t)d->h * sizeof *x);
    rt_mm g = {.m = n,
               .n = d->v,
               .k = d->h,
               .tb = d->tb,
               .alpha = 1,
               .lda = d->h,
               .ldb = d->tb ? d->h : d->v,
               .ldc = p->ld,
               .a = p->x,
               .b = w,
               .bias = bias,
               .c = p->logits};
    rt_mm_run(&g, s->threads, p->mm);
}

/* Row losses of a chunk; *right and pred where wanted. */
static double
chunk_eval(rt_stream *s, const rt_head *d, const head_space *p, const int64_t *row,
           int64_t n, const int64_t *targets, int64_t *right, int64_t *pred)
{
    double part[RT_LOSS_BLOCKS], total = 0;
    int64_t hit[RT_LOSS_BLOCKS];
#pragma omp parallel for schedule(static) num_threads(rt_team(s, n * d->v))
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        part[b] = 0, hit[b] = 0;
        for (int64_t i = n * b / RT_LOSS_BLOCKS; i < n * (b + 1) / RT_LOSS_BLOCKS;
             i++) {
            float *x = p->logits + i * p->ld, sum;
            int64_t t = targets[row[i]];
            float xt = x[t], max = row_max(x, d->v);
            int64_t best = row_argmax(x, d->v, max);
            row_exp(x, x, d->v, &sum);
            part[b] += row_loss(max, sum, xt);
            hit[b] += best == t;
            pred[row[i]] = best;
        }
    }
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        total += part[b];
        *right += hit[b];
    }
    return total;
}

void
rt_head_ce(rt_stream *s, float *loss, int64_t *right, int64_t *pred, const float *x,
           const float *w, const int64_t *targets, const float *scale,
           const float *bias, const rt_head *d, void *scratch)
{
    head_space p = space_of(d, false, scratch);
    int64_t n = supervised(p.row, targets, d->rows);
    double total = 0;
    *right = 0;
    for (int64_t r = 0; r < d->rows; r++)
        pred[r] = -1;
    for (int64_t i = 0; i < n; i += d->chunk) {
        int64_t c = rt_min(d->chunk, n - i);
        chunk_logits(s, d, &p, p.row + i, c, (const float *const[3]){x, w, bias});
        total += chunk_eval(s, d, &p, p.row + i, c, targets, right, pred);
    }
    *loss = (float)(total * (double)*scale);
}

/* Logits become d logits. */
static double
chunk_dlogits(rt_stream *s, const rt_head *d, const head_space *p, const int64_t *row,
              int64_t n, const int64_t *targets, float scale)
{
    double part[RT_LOSS_BLOCKS], total = 0;
#pragma omp parallel for schedule(static) num_threads(rt_team(s, n * d->v))
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        part[b] = 0;
        for (int64_t i = n * b / RT_LOSS_BLOCKS; i < n * (b + 1) / RT_LOSS_BLOCKS;
             i++) {
            float *x = p->logits + i * p->ld, sum;
            int64_t t = targets[row[i]];
            float xt = x[t], max = row_exp(x, x, d->v, &sum);
            part[b] += row_loss(max, sum, xt);
            row_scale(x, d->v, scale / sum);
            x[t] -= scale;
        }
    }
    for (int b = 0; b < RT_LOSS_BLOCKS; b++)
        total += part[b];
    return total;
}

/* Gradients of a chunk's x and of the weights. */
static void
chunk_grads(rt_stream *s, const rt_head *d, const head_space *p, int64_t n,
            const float *w, float *dw, float *dbias)
{
    int64_t ldw = d->tb ? d->h : d->v;
    rt_mm gx = {.m = n,
                .n = d->h,
                .k = d->v,
                .tb = !d->tb,
                .alpha = 1,
                .lda = p->ld,
                .ldb = ldw,
                .ldc = d->h,
                .a = p->logits,
                .b = w,
                .c = p->dx};
    rt_mm_run(&gx, s->threads, p->mm);
    rt_mm gw = {.m = d->h,
                .n = d->v,
                .k = n,
                .ta = true,
                .add = true,
                .alpha = 1,
                .lda = d->h,
                .ldb = p->ld,
                .ldc = ldw,
                .a = p->x,
                .b = p->logits,
                .c = dw};
    if (d->tb) {
        gw.m = d->v, gw.n = d->h;
        gw.a = p->logits, gw.lda = p->ld;
        gw.b = p->x, gw.ldb = d->h;
    }
    if (dw)
        rt_mm_run(&gw, s->threads, p->mm);
    if (dbias)
        rt_colsum(s, dbias, p->logits, n, d->v, p->ld, true, p->sum);
}

void
rt_head_ce_grad(rt_stream *s, float *loss, float *dx, float *dw, float *dbias,
                const float *x, const float *w, const int64_t *targets,
                const float *scale, const float *bias, const rt_head *d, void *scratch)
{
    head_space p = space_of(d, true, scratch);
    int64_t n = supervised(p.row, targets, d->rows);
    double total = 0;
    if (n < d->rows)
        rt_zero(s, dx, d->rows * d->h * (int64_t)sizeof *dx);
    for (int64_t i = 0; i < n; i += d->chunk) {
        int64_t c = rt_min(d->chunk, n - i), *row = p.row + i;
        chunk_logits(s, d, &p, row, c, (const float *const[3]){x, w, bias});
        total += chunk_dlogits(s, d, &p, row, c, targets, *scale);
        chunk_grads(s, d, &p, c, w, dw, dbias);
#pragma omp parallel for schedule(static) num_threads(rt_team(s, c * d->h))
        for (int64_t k = 0; k < c; k++)
            memcpy(dx + row[k] * d->h, p.dx + k * d->h, (size_t)d->h * sizeof *dx);
    }
    *loss = (float)(total * (double)*scale);
}
