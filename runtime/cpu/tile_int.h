/* tile_int.h -- the inner loop of every matrix product that is our own.
 *
 * A tile is MR x NR elements of C held in registers while k runs. Operands are read where
 * they lie packed: A as [k][MR] groups of MR rows, B as [k][NR] groups of NR columns (NR =
 * two vectors), zero-filled at the edges, so that the loop has no special cases. An element
 * of C is always the same chain of fused multiply-adds over k, whatever tile and thread it
 * falls to: that makes products independent of blocking in m and n and of the thread count.
 *
 * Packed words are floats, or pairs: two bf16 that are neighbours along k, for the processor's
 * dot product of pairs, where it has one. That adds the second product of a pair first, each
 * rounded once. Elsewhere the words of bf16 are floats, and the chain runs in the same order,
 * so that a processor without the instruction gives the same sums bit by bit. (All but those
 * of subnormal numbers, which the instruction takes for zeros.)
 */
#ifndef EFFICC_TILE_INT_H
#define EFFICC_TILE_INT_H

#include "low_int.h"
#include <stdbool.h>

/* RT_EMULATE: a build that does without the instruction, for tests. */
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    !defined(RT_EMULATE)
#define RT_DOT 1
#endif

#if defined(__AVX512F__)
enum { MR = 14 }; /* 28 of 32 registers accumulate */
#elif defined(__AVX__)
enum { MR = 6 }; /* 12 of 16 */
#else
enum { MR = 4 };
#endif
enum { NR = 2 * VW };

/* Where a tile goes: C [rows, cols], rows <= MR, cols <= NR, becomes alpha * product + bias
 * [cols] if there is one + C if add, rounded after each. */
typedef struct tile_out {
    void *c;
    int64_t ldc;
    int rows, cols;
    float alpha;
    bool add;
    const float *bias;
    rt_dtype type; /* of C */
} tile_out;

/* Elements of bf16 in a word. */
#ifdef RT_DOT
enum { PAIR_WORD = 2 };
#else
enum { PAIR_WORD = 1 };
#endif

/* acc + x b: a's word is broadcast. */
V_INLINE vf
tile_step(const float *a, vf b, vf acc, bool pairs)
{
#ifdef RT_DOT
    if (pairs) {
        int32_t x;
        memcpy(&x, a, sizeof x);
        return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(x), (__m512bh)b);
    }
#endif
    (void)pairs;
    return v_fma(v_set(*a), b, acc);
}

/* The n-th of k steps that take the second of two neighbours first. */
V_INLINE int64_t
tile_turn(int64_t n, int64_t k)
{
    return n % 2 || n + 1 == k ? n - n % 2 : n + 1;
}

/* acc = A B over k steps. A's word (i, p) is a[i*ai + p*ap]: constants at each call, so that
 * they become displacements. B's row p is b[p*bp ..+NR]. */
V_INLINE void
tile_core(int64_t k, const float *restrict a, int64_t ai, int64_t ap,
          const float *restrict b, int64_t bp, int nv, bool pairs, vf acc[MR][2])
{
    _Pragma("GCC unroll 16") for (int i = 0; i < MR; i++) acc[i][0] = acc[i][1] =
        (vf){0};
    for (int64_t n = 0; n < k; n++) {
        int64_t p = pairs && PAIR_WORD == 1 ? tile_turn(n, k) : n;
        const float *x = a + p * ap, *y = b + p * bp;
        vf b0 = v_load(y), b1 = nv > 1 ? v_load(y + VW) : (vf){0};
        _Pragma("GCC unroll 16") for (int i = 0; i < MR; i++)
        {
            acc[i][0] = tile_step(x + i * ai, b0, acc[i][0], pairs);
            if (nv > 1)
                acc[i][1] = tile_step(x + i * ai, b1, acc[i][1], pairs);
        }
    }
}

/* n columns of a row, from column j of the tile on. */
V_INLINE void
tile_row(const tile_out *o, int64_t i, int64_t j, int64_t n, vf acc)
{
    vf v = acc * o->alpha;
    if (o->bias)
        v += v_load_n(o->bias + j, n);
    if (o->add)
        v += v_load_as_n(o->c, i * o->ldc + j, n, o->type);
    v_store_as_n(o->c, i * o->ldc + j, v, n, o->type);
}

V_INLINE void
tile_store(vf acc[MR][2], const tile_out *o, int nv)
{
    int n0 = o->cols < VW ? o->cols : VW, n1 = o->cols - n0;
    _Pragma("GCC unroll 16") for (int i = 0; i < MR; i++)
    {
        if (i >= o->rows)
            break;
        tile_row(o, i, 0, n0, acc[i][0]);
        if (nv > 1)
            tile_row(o, i, VW, n1, acc[i][1]);
    }
}

/* Brings the tile's part of C near while its sum runs. */
V_INLINE void
tile_prefetch(const tile_out *o)
{
    for (int i = 0; i < o->rows; i++) {
        __builtin_prefetch(v_at(o->c, i * o->ldc, o->type), 1);
        __builtin_prefetch(v_at(o->c, i * o->ldc + o->cols - 1, o->type), 1);
    }
}

/* One tile; columns past the first vector are not computed where there are none. */
V_INLINE void
tile_product(int64_t k, const float *a, int64_t ai, int64_t ap, const float *b,
             int64_t bp, bool pairs, const tile_out *o)
{
    vf acc[MR][2];
    if (o->cols > VW) {
        tile_core(k, a, ai, ap, b, bp, 2, pairs, acc);
        tile_store(acc, o, 2);
    } else {
        tile_core(k, a, ai, ap, b, bp, 1, pairs, acc);
        tile_store(acc, o, 1);
    }
}

V_INLINE void
tile_mul(int64_t k, const float *a, int64_t ai, int64_t ap, const float *b, int64_t bp,
         const tile_out *o)
{
    tile_product(k, a, ai, ap, b, bp, false, o);
}

/* ---- packing: `rows` rows of X, kk elements each, as groups of w rows (the last one filled
 * up with zeros), w * kk words a group. X begins at element `at` of x. ---- */
typedef struct tile_src {
    const void *x;
    rt_dtype type;
    int64_t at, ld, rows, kk;
} tile_src;

/* Element (i, p) of X is x[at + i*ld + p]: the copy transposes. */
void rt_pack_along(float *dst, int w, const tile_src *);
/* Element (i, p) of X is x[at + p*ld + i]. */
void rt_pack_across(float *dst, int w, const tile_src *);
#ifdef RT_DOT
/* The same of bf16, where a word is two neighbours along k, (kk + 1) / 2 words a row. */
void rt_pack_pairs_along(float *dst, int w, const tile_src *);
void rt_pack_pairs_across(float *dst, int w, const tile_src *);
#endif

#endif
