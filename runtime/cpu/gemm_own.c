/* gemm_own.c -- matrix product on packed panels.
 *
 * C is cut into panels of at most MP x NP, k into blocks of KP. All threads pack the panel
 * of A and of B, wait, then take tasks: a few row tiles times some column groups, whose A
 * part stays in the second-level cache while B streams by. Blocks of k are added to C in
 * order; their number depends on k alone, so the result is that of one thread.
 */
#include "mm_int.h"
#include "rt_cpu_int.h"
#include "tile_int.h"
#include <omp.h>

enum { MP = 2048, NP = 2048, KP = 768, TASK_TILES = 7, TASK_GROUPS = 16, PACK = 4 };

typedef struct mm_blocks { /* panel sizes: even shares of m, n, k */
    int64_t m, n, k;
} mm_blocks;

/* n in the fewest equal parts of at most max, rounded up to a multiple of unit. */
static int64_t
share(int64_t n, int64_t max, int64_t unit)
{
    int64_t parts = (n + max - 1) / max;
    return rt_round_up((n + parts - 1) / parts, unit);
}

static mm_blocks
blocks_of(int64_t m, int64_t n, int64_t k)
{
    return (mm_blocks){share(m, MP, MR), share(n, NP, NR), share(k, KP, 1)};
}

/* An upper bound of blocks_of that grows with m, n, k: a caller may plan for the most. */
int64_t
rt_mm_scratch(int64_t m, int64_t n, int64_t k)
{
    int64_t bm = rt_round_up(rt_min(m, MP), MR), bn = rt_round_up(rt_min(n, NP), NR);
    return (bm + bn) * rt_min(k, KP) * (int64_t)sizeof(float) + 2 * RT_ALIGN;
}

/* Rows [i0, i0+rows) of op(A), steps [p0, p0+kk), in groups of MR; a task packs a few. */
static void
pack_a(const rt_mm *g, float *dst, int64_t i0, int64_t rows, int64_t p0, int64_t kk)
{
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < rows; i += PACK * MR) {
        int64_t n = rt_min(PACK * MR, rows - i);
        if (g->ta)
            rt_pack_across(dst + i * kk, MR, g->a + p0 * g->lda + i0 + i, g->lda, n,
                           kk);
        else
            rt_pack_along(dst + i * kk, MR, g->a + (i0 + i) * g->lda + p0, g->lda, n,
                          kk);
    }
}

static void
pack_b(const rt_mm *g, float *dst, int64_t j0, int64_t cols, int64_t p0, int64_t kk)
{
#pragma omp for schedule(static)
    for (int64_t j = 0; j < cols; j += PACK * NR) {
        int64_t n = rt_min(PACK * NR, cols - j);
        if (g->tb)
            rt_pack_along(dst + j * kk, NR, g->b + (j0 + j) * g->ldb + p0, g->ldb, n,
                          kk);
        else
            rt_pack_across(dst + j * kk, NR, g->b + p0 * g->ldb + j0 + j, g->ldb, n,
                           kk);
    }
}

/* The part of C under one panel pair, its corner at c. */
typedef struct mm_panel {
    const float *a, *b, *bias;
    float *c;
    int64_t rows, cols, kk, ldc;
    float alpha;
    bool add;
} mm_panel;

static void
task(const mm_panel *p, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    for (int64_t j = j0; j < j1; j += NR)
        for (int64_t i = i0; i < i1; i += MR) {
            tile_out o = {
                p->c + i * p->ldc + j,       p->ldc,   (int)rt_min(MR, i1 - i),
                (int)rt_min(NR, j1 - j),     p->alpha, p->add,
                p->bias ? p->bias + j : NULL};
            tile_prefetch(&o);
            tile_mul(p->kk, p->a + i * p->kk, 1, MR, p->b + j * p->kk, NR, &o);
        }
}

static void
multiply(const mm_panel *p)
{
    int64_t di = TASK_TILES * MR, ni = (p->rows + di - 1) / di;
    int64_t groups = (p->cols + NR - 1) / NR, want = 8 * omp_get_num_threads();
    int64_t dj = NR * rt_max(1, rt_min(TASK_GROUPS, groups * ni / want));
    int64_t nj = (p->cols + dj - 1) / dj;
#pragma omp for schedule(dynamic)
    for (int64_t t = 0; t < ni * nj; t++) {
        int64_t i = t % ni * di, j = t / ni * dj;
        task(p, i, rt_min(i + di, p->rows), j, rt_min(j + dj, p->cols));
    }
}

/* Called by every thread of a team. */
static void
product(const rt_mm *g, float *scratch)
{
    mm_blocks s = blocks_of(g->m, g->n, g->k);
    float *pa = scratch, *pb = scratch + rt_round_up(s.m * s.k, RT_ALIGN / 4);
    for (int64_t i = 0; i < g->m; i += s.m)
        for (int64_t k = 0; k < g->k; k += s.k) {
            mm_panel p = {.a = pa,
                          .b = pb,
                          .rows = rt_min(s.m, g->m - i),
                          .kk = rt_min(s.k, g->k - k),
                          .ldc = g->ldc,
                          .alpha = g->alpha,
                          .add = g->add || k > 0};
            pack_a(g, pa, i, p.rows, k, p.kk);
            for (int64_t j = 0; j < g->n; j += s.n) {
                p.cols = rt_min(s.n, g->n - j);
                p.c = g->c + i * g->ldc + j;
                p.bias = g->bias && k == 0 ? g->bias + j : NULL;
                pack_b(g, pb, j, p.cols, k, p.kk);
                multiply(&p);
            }
        }
}

void
rt_mm_run(const rt_mm *g, int threads, void *scratch)
{
    int64_t batch = rt_max(1, g->batch);
    double work = (double)batch * (double)g->m * (double)g->n * (double)g->k;
#pragma omp parallel num_threads(work < RT_SMALL ? 1 : threads)
    for (int64_t i = 0; i < batch; i++) {
        rt_mm one = *g;
        one.a += i * g->sa;
        one.b += i * g->sb;
        one.c += i * g->sc;
        product(&one, scratch);
    }
}
