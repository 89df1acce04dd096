/* pack.c -- operands of a product in the order in which tiles read them (tile_int.h).
 *
 * Along k the copy is a transpose: VW x VW blocks go through registers. Across, it moves
 * whole vectors.
 */
#include "rt_cpu_int.h"
#include "tile_int.h"

#if defined(__AVX512F__)
static inline void
transpose_block(vf r[VW])
{
    __m512i t[16], *v = (__m512i *)r;
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}
#else
static inline void
transpose_block(vf r[VW])
{
    for (int i = 0; i < VW; i++)
        for (int j = 0; j < i; j++) {
            float x = r[i][j];
            r[i][j] = r[j][i];
            r[j][i] = x;
        }
}
#endif

/* n <= VW columns of a group of width w, from as many rows; rows that are not there are
 * zeros. More rows at a time would compete for the same lines of the first-level cache. */
static inline void
along_rows(float *dst, int w, int n, const float *x, int64_t ld, int64_t rows,
           int64_t kk)
{
    for (int64_t p = 0; p < kk; p += VW) {
        vf r[VW];
        int64_t left = kk - p;
        for (int i = 0; i < VW; i++)
            r[i] = i < rows ? v_load_to(x + i * ld + p, left) : (vf){0};
        transpose_block(r);
        for (int i = 0; i < VW && i < left; i++)
            v_store_n(dst + (p + i) * w, r[i], n);
    }
}

void
rt_pack_along(float *dst, int w, const float *x, int64_t ld, int64_t rows, int64_t kk)
{
    for (int64_t g = 0; g < rows; g += w)
        for (int i = 0; i < w; i += VW)
            along_rows(dst + g * kk + i, w, (int)rt_min(VW, w - i), x + (g + i) * ld,
                       ld, rt_min(w, rows - g) - i, kk);
}

void
rt_pack_across(float *dst, int w, const float *x, int64_t ld, int64_t rows, int64_t kk)
{
    for (int64_t p = 0; p < kk; p++)
        for (int64_t g = 0; g < rows; g += w)
            for (int i = 0; i < w; i += VW) {
                int64_t n = rt_min(VW, w - i), have = rt_min(n, rows - g - i);
                v_store_n(dst + g * kk + p * w + i,
                          v_load_n(x + p * ld + g + i, rt_max(0, have)), n);
            }
}
