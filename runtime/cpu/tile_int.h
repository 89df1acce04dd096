/* tile_int.h -- the inner loop of every matrix product that is our own.
 *
 * A tile is MR x NR elements of C held in registers while k runs. Operands are read where
 * they lie packed: A as [k][MR] groups of MR rows, B as [k][NR] groups of NR columns (NR =
 * two vectors), zero-filled at the edges, so that the loop has no special cases. An element
 * of C is always the same chain of fused multiply-adds over k, whatever tile and thread it
 * falls to: that makes products independent of blocking in m and n and of the thread count.
 */
#ifndef EFFICC_TILE_INT_H
#define EFFICC_TILE_INT_H

#include "simd_int.h"
#include <stdbool.h>

#if defined(__AVX512F__)
enum { MR = 14 }; /* 28 of 32 registers accumulate */
#elif defined(__AVX__)
enum { MR = 6 }; /* 12 of 16 */
#else
enum { MR = 4 };
#endif
enum { NR = 2 * VW };

/* Where a tile goes: C [rows, cols], rows <= MR, cols <= NR, becomes alpha * product + bias
 * [cols] if there is one + C if add. */
typedef struct tile_out {
    float *c;
    int64_t ldc;
    int rows, cols;
    float alpha;
    bool add;
    const float *bias;
} tile_out;

/* acc = A B over k steps. A's element (i, p) is a[i*ai + p*ap]: constants at each call, so
 * that they become displacements. B's row p is b[p*bp ..+NR]. */
V_INLINE void
tile_core(int64_t k, const float *restrict a, int64_t ai, int64_t ap,
          const float *restrict b, int64_t bp, int nv, vf acc[MR][2])
{
    _Pragma("GCC unroll 16") for (int i = 0; i < MR; i++) acc[i][0] = acc[i][1] =
        (vf){0};
    for (int64_t p = 0; p < k; p++, a += ap, b += bp) {
        vf b0 = v_load(b), b1 = nv > 1 ? v_load(b + VW) : (vf){0};
        _Pragma("GCC unroll 16") for (int i = 0; i < MR; i++)
        {
            vf x = v_set(a[i * ai]);
            acc[i][0] = v_fma(x, b0, acc[i][0]);
            if (nv > 1)
                acc[i][1] = v_fma(x, b1, acc[i][1]);
        }
    }
}

V_INLINE void
tile_row(float *c, int n, vf acc, float alpha, bool add, const float *bias)
{
    vf base = add ? v_load_n(c, n) : (vf){0};
    if (bias)
        base += v_load_n(bias, n);
    v_store_n(c, v_fma(acc, v_set(alpha), base), n);
}

V_INLINE void
tile_store(vf acc[MR][2], const tile_out *o, int nv)
{
    int n0 = o->cols < VW ? o->cols : VW, n1 = o->cols - n0;
    const float *bias1 = o->bias ? o->bias + VW : NULL;
    _Pragma("GCC unroll 16") for (int i = 0; i < MR; i++)
    {
        if (i >= o->rows)
            break;
        float *c = o->c + i * o->ldc;
        tile_row(c, n0, acc[i][0], o->alpha, o->add, o->bias);
        if (nv > 1)
            tile_row(c + VW, n1, acc[i][1], o->alpha, o->add, bias1);
    }
}

/* Brings the tile's part of C near while its sum runs. */
V_INLINE void
tile_prefetch(const tile_out *o)
{
    for (int i = 0; i < o->rows; i++) {
        __builtin_prefetch(o->c + i * o->ldc, 1);
        __builtin_prefetch(o->c + i * o->ldc + o->cols - 1, 1);
    }
}

/* One tile; columns past the first vector are not computed where there are none. */
V_INLINE void
tile_mul(int64_t k, const float *a, int64_t ai, int64_t ap, const float *b, int64_t bp,
         const tile_out *o)
{
    vf acc[MR][2];
    if (o->cols > VW) {
        tile_core(k, a, ai, ap, b, bp, 2, acc);
        tile_store(acc, o, 2);
    } else {
        tile_core(k, a, ai, ap, b, bp, 1, acc);
        tile_store(acc, o, 1);
    }
}

/* ---- packing: `rows` rows of X, kk elements each, as groups of w rows (the last one filled
 * up with zeros), w * kk elements a group ---- */

/* Element (i, p) of X is x[i*ld + p]: the copy transposes. */
void rt_pack_along(float *dst, int w, const float *x, int64_t ld, int64_t rows,
                   int64_t kk);
/* Element (i, p) of X is x[p*ld + i]. */
void rt_pack_across(float *dst, int w, const float *x, int64_t ld, int64_t rows,
                    int64_t kk);

#endif
