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

/* Reads VW words of a row, from word p on. */
typedef vf (*reader)(const tile_src *, int64_t i, int64_t p);

/* n <= VW columns of a group of width w, from rows i.. ; rows that are not there are zeros.
 * More rows at a time would compete for the same lines of the first-level cache. */
V_INLINE void
along_rows(float *dst, int w, int n, const tile_src *s, int64_t row, int64_t words,
           reader read)
{
    for (int64_t p = 0; p < words; p += VW) {
        vf r[VW];
        for (int i = 0; i < VW; i++)
            r[i] = row + i < s->rows && i < n ? read(s, row + i, p) : (vf){0};
        transpose_block(r);
        for (int i = 0; i < VW && i < words - p; i++)
            v_store_n(dst + (p + i) * w, r[i], n);
    }
}

V_INLINE void
pack_along(float *dst, int w, const tile_src *s, int64_t words, reader read)
{
    for (int64_t g = 0; g < s->rows; g += w)
        for (int i = 0; i < w; i += VW)
            along_rows(dst + g * words + i, w, (int)rt_min(VW, w - i), s, g + i, words,
                       read);
}

/* The other way, a reader gives VW columns of row p of memory, n of them. */
typedef vf (*row_reader)(const tile_src *, int64_t p, int64_t i, int64_t n);

V_INLINE void
pack_across(float *dst, int w, const tile_src *s, int64_t words, row_reader read)
{
    for (int64_t p = 0; p < words; p++)
        for (int64_t g = 0; g < s->rows; g += w)
            for (int i = 0; i < w; i += VW) {
                int64_t n = rt_min(VW, w - i), have = rt_min(n, s->rows - g - i);
                v_store_n(dst + g * words + p * w + i,
                          read(s, p, g + i, rt_max(0, have)), n);
            }
}

/* ---- words that are floats ---- */

#define READERS(name, t)                                                          \
    V_INLINE vf along_##name(const tile_src *s, int64_t i, int64_t p)             \
    {                                                                             \
        return v_load_as_to(s->x, s->at + i * s->ld + p, s->kk - p, t);           \
    }                                                                             \
    V_INLINE vf across_##name(const tile_src *s, int64_t p, int64_t i, int64_t n) \
    {                                                                             \
        return v_load_as_n(s->x, s->at + p * s->ld + i, n, t);                    \
    }
READERS(f32, RT_F32)
READERS(f16, RT_F16)
READERS(bf16, RT_BF16)

void
rt_pack_along(float *dst, int w, const tile_src *s)
{
    if (s->type == RT_F32)
        pack_along(dst, w, s, s->kk, along_f32);
    else if (s->type == RT_F16)
        pack_along(dst, w, s, s->kk, along_f16);
    else
        pack_along(dst, w, s, s->kk, along_bf16);
}

void
rt_pack_across(float *dst, int w, const tile_src *s)
{
    if (s->type == RT_F32)
        pack_across(dst, w, s, s->kk, across_f32);
    else if (s->type == RT_F16)
        pack_across(dst, w, s, s->kk, across_f16);
    else
        pack_across(dst, w, s, s->kk, across_bf16);
}

#ifdef RT_DOT
/* ---- words that are pairs of bf16; a last one without a partner gets zero ---- */

V_INLINE vf
along_pairs(const tile_src *s, int64_t i, int64_t p)
{
    const uint16_t *x = (const uint16_t *)s->x + s->at + i * s->ld + 2 * p;
    int64_t left = s->kk - 2 * p;
    if (left >= 2 * VW)
        return (vf)_mm512_loadu_si512(x);
    return (vf)_mm512_maskz_loadu_epi16((__mmask32)((1ull << left) - 1), x);
}

V_INLINE vf
across_pairs(const tile_src *s, int64_t p, int64_t i, int64_t n)
{
    const uint16_t *x = (const uint16_t *)s->x + s->at + 2 * p * s->ld + i;
    vu low = __builtin_convertvector(vh_load_n(x, n), vu), high = low - low;
    if (2 * p + 1 < s->kk)
        high = __builtin_convertvector(vh_load_n(x + s->ld, n), vu);
    return (vf)(high << 16 | low);
}

void
rt_pack_pairs_along(float *dst, int w, const tile_src *s)
{
    pack_along(dst, w, s, (s->kk + 1) / 2, along_pairs);
}

void
rt_pack_pairs_across(float *dst, int w, const tile_src *s)
{
    pack_across(dst, w, s, (s->kk + 1) / 2, across_pairs);
}
#endif
