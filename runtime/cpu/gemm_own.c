/* gemm_own.c -- matrix product on packed panels.
 *
 * C is cut into panels of at most MP x NP, k into blocks of KP. All threads pack the panel
 * of A and of B, wait, then take tasks: a few row tiles times some column groups, whose A
 * part stays in the second-level cache while B streams by. Blocks of k are added to C in
 * order; their number depends on k alone, so the result is that of one thread. Where C is of
 * a low type and k has several blocks, they add up in a panel of floats.
 *
 * bf16 times bf16 is a sum of dot products of pairs where the processor has them, and as such
 * a sum everywhere (tile_int.h). A product that the library takes, where the processor has
 * them, is summed in its order: blocks of its sizes add up before alpha, bias and C come in.
 * So a processor without them computes the same numbers. Everything else of a low type becomes
 * floats as it is packed, and products of floats are the same.
 */
#include "mm_int.h"
#include "rt_cpu_int.h"
#include "tile_int.h"
#include <omp.h>

enum { MP = 2048, NP = 2048, KP = 768, TASK_TILES = 7, TASK_GROUPS = 16, PACK = 4 };
enum { LIBRARY_STEP = 1024 }; /* oneDNN 2.6: half of it where that is two blocks */

/* n in the fewest equal parts of at most max, rounded up to a multiple of unit. */
static int64_t
share(int64_t n, int64_t max, int64_t unit)
{
    int64_t parts = (n + max - 1) / max;
    return rt_round_up((n + parts - 1) / parts, unit);
}

static bool
in_pairs(const rt_mm *g)
{
    return g->type_a == RT_BF16 && g->type_b == RT_BF16;
}

/* Of n elements along k. */
static int64_t
words_of(const rt_mm *g, int64_t n)
{
    return in_pairs(g) ? (n + PAIR_WORD - 1) / PAIR_WORD : n;
}

/* Elements of a block of k. */
static int64_t
step_of(const rt_mm *g)
{
    if (!in_pairs(g))
        return share(g->k, KP, 1);
    if (!g->like_library)
        return share(g->k, 2 * KP, 2);
    return g->k > LIBRARY_STEP ? LIBRARY_STEP : LIBRARY_STEP / 2;
}

static bool
needs_sums(const rt_mm *g)
{
    return g->k > step_of(g) &&
           (g->type_c != RT_F32 || (in_pairs(g) && g->like_library));
}

typedef struct mm_space { /* scratch, cut up: panels of A, B, sums; in floats */
    int64_t b, sums, floats;
} mm_space;

/* An upper bound, which grows with m, n, k. */
static mm_space
space_of(const rt_mm *g)
{
    int64_t m = rt_round_up(rt_min(g->m, MP), MR),
            n = rt_round_up(rt_min(g->n, NP), NR);
    int64_t k = words_of(g, rt_min(g->k, in_pairs(g) ? 2 * KP : KP));
    mm_space s = {.b = rt_round_up(m * k, RT_ALIGN / 4)};
    s.sums = s.b + rt_round_up(n * k, RT_ALIGN / 4);
    s.floats = s.sums + (needs_sums(g) ? m * n : 0);
    return s;
}

int64_t
rt_mm_scratch(const rt_mm *g)
{
    return space_of(g).floats * (int64_t)sizeof(float);
}

static void
pack(float *dst, int w, const tile_src *s, bool along, bool pairs)
{
#ifdef RT_DOT
    if (pairs) {
        (along ? rt_pack_pairs_along : rt_pack_pairs_across)(dst, w, s);
        return;
    }
#endif
    (void)pairs;
    (along ? rt_pack_along : rt_pack_across)(dst, w, s);
}

/* The part of C under one panel pair: its corner is element `at` of c. */
typedef struct mm_panel {
    const rt_mm *g;
    float *a, *b;
    const float *bias;
    void *c;
    rt_dtype type;
    int64_t at, ldc;
    int64_t i, j, k;        /* where it lies in the product */
    int64_t rows, cols, kk; /* how large it is */
    int64_t words;          /* along k */
    float alpha;
    bool pairs, add;
} mm_panel;

/* Rows of op(A), steps [k, k+kk), in groups of MR; a task packs a few. */
static void
pack_a(const mm_panel *p)
{
    const rt_mm *g = p->g;
    tile_src s = {g->a, g->type_a, 0, g->lda, 0, p->kk};
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < p->rows; i += PACK * MR) {
        tile_src t = s;
        int64_t row = p->i + i;
        t.at = g->ta ? p->k * g->lda + row : row * g->lda + p->k;
        t.rows = rt_min(PACK * MR, p->rows - i);
        pack(p->a + i * p->words, MR, &t, !g->ta, p->pairs);
    }
}

static void
pack_b(const mm_panel *p)
{
    const rt_mm *g = p->g;
    tile_src s = {g->b, g->type_b, 0, g->ldb, 0, p->kk};
#pragma omp for schedule(static)
    for (int64_t j = 0; j < p->cols; j += PACK * NR) {
        tile_src t = s;
        int64_t col = p->j + j;
        t.at = g->tb ? col * g->ldb + p->k : p->k * g->ldb + col;
        t.rows = rt_min(PACK * NR, p->cols - j);
        pack(p->b + j * p->words, NR, &t, g->tb, p->pairs);
    }
}

/* A few row tiles times some column groups; `pairs` is a constant at each call. */
V_INLINE void
task(const mm_panel *p, const int64_t i[2], const int64_t j[2], bool pairs)
{
    for (int64_t y = j[0]; y < j[1]; y += NR)
        for (int64_t x = i[0]; x < i[1]; x += MR) {
            tile_out o = {v_at(p->c, p->at + x * p->ldc + y, p->type),
                          p->ldc,
                          (int)rt_min(MR, i[1] - x),
                          (int)rt_min(NR, j[1] - y),
                          p->alpha,
                          p->add,
                          p->bias ? p->bias + y : NULL,
                          p->type};
            tile_prefetch(&o);
            tile_product(p->words, p->a + x * p->words, 1, MR, p->b + y * p->words, NR,
                         pairs, &o);
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
        int64_t to_i[2] = {i, rt_min(i + di, p->rows)};
        int64_t to_j[2] = {j, rt_min(j + dj, p->cols)};
        if (p->pairs)
            task(p, to_i, to_j, true);
        else
            task(p, to_i, to_j, false);
    }
}

/* The part of C at (i, j) is made of its sums. */
static void
round_sums(const mm_panel *p, const float *sums)
{
    const rt_mm *g = p->g;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t j = 0; j < p->cols; j += VW) {
            int64_t at = (p->i + r) * g->ldc + p->j + j, left = p->cols - j;
            vf v = v_load_to(sums + r * p->ldc + j, left) * g->alpha;
            if (g->bias)
                v += v_load_to(g->bias + p->j + j, left);
            if (g->add)
                v += v_load_as_to(g->c, at, left, g->type_c);
            v_store_as_to(g->c, at, v, left, g->type_c);
        }
}

/* The part of C at (i, j), all of k. A's panel is packed already if it is `there`. */
static void
corner(mm_panel *p, int64_t step, float *sums, bool there)
{
    const rt_mm *g = p->g;
    p->c = sums ? sums : g->c;
    p->type = sums ? RT_F32 : g->type_c;
    p->ldc = sums ? rt_round_up(p->cols, VW) : g->ldc;
    p->at = sums ? 0 : p->i * g->ldc + p->j;
    p->alpha = sums ? 1 : g->alpha;
    for (p->k = 0; p->k < g->k; p->k += step) {
        p->kk = rt_min(step, g->k - p->k);
        p->words = words_of(g, p->kk);
        p->add = (g->add && !sums) || p->k > 0;
        p->bias = g->bias && !sums && p->k == 0 ? g->bias + p->j : NULL;
        if (!there)
            pack_a(p);
        pack_b(p);
        multiply(p);
    }
    if (sums)
        round_sums(p, sums);
}

/* Called by every thread of a team. */
static void
product(const rt_mm *g, float *scratch)
{
    mm_space space = space_of(g);
    int64_t m = share(g->m, MP, MR), n = share(g->n, NP, NR), k = step_of(g);
    mm_panel p = {.g = g, .a = scratch, .b = scratch + space.b, .pairs = in_pairs(g)};
    float *sums = needs_sums(g) ? scratch + space.sums : NULL;
    for (p.i = 0; p.i < g->m; p.i += m)
        for (p.j = 0; p.j < g->n; p.j += n) {
            p.rows = rt_min(m, g->m - p.i);
            p.cols = rt_min(n, g->n - p.j);
            corner(&p, k, sums, p.j > 0 && g->k <= k);
        }
}

void
rt_mm_run(const rt_mm *g, int threads, void *scratch)
{
    int64_t batch = rt_max(1, g->batch);
    double work = (double)batch * (double)g->m * (double)g->n * (double)g->k;
#pragma omp parallel num_threads(work < RT_SMALL ? 1 : threads)
    for (int64_t i = 0; g->m > 0 && g->n > 0 && i < batch; i++) {
        rt_mm one = *g;
        one.a = v_at(g->a, i * g->sa, g->type_a);
        one.b = v_at(g->b, i * g->sb, g->type_b);
        one.c = v_at(g->c, i * g->sc, g->type_c);
        product(&one, scratch);
    }
}
