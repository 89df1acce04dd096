/* philox_int.h -- the random bits of efficc_philox.h, several counters together.
 *
 * PL counters go together, a word of each in the low half of a 64-bit lane. The high halves
 * hold garbage: a product does not look at them, and what it is shifted by clears them.
 */
#ifndef EFFICC_PHILOX_INT_H
#define EFFICC_PHILOX_INT_H

#include "../include/efficc_philox.h"
#include "simd_int.h"

enum { PL = VW / 2, PHILOX_WORDS = 4 * PL };
typedef uint64_t vu64 __attribute__((vector_size(8 * PL)));

V_INLINE vu64
philox_all(uint32_t x)
{
    return (uint64_t)x - (vu64){0};
}

/* Products of the low halves. */
V_INLINE vu64
philox_mul(vu64 a, vu64 b)
{
#if defined(__AVX512F__)
    return (vu64)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vu64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (a & 0xffffffff) * b;
#endif
}

/* w [PHILOX_WORDS]: words 0..3 of group `group`, then those of the groups behind it. */
V_INLINE void
philox_block(uint32_t *w, const philox *x, uint32_t group)
{
    const vu64 m0 = philox_all(RT_PHILOX_M0), m1 = philox_all(RT_PHILOX_M1);
    uint32_t k0 = x->key[0], k1 = x->key[1];
    vu64 c0 = philox_all(x->row[0]), c1 = philox_all(x->row[1]);
    vu64 c2 = philox_all(group), c3 = philox_all(x->site);
    for (int i = 0; i < PL; i++)
        c2[i] += (uint64_t)i;
    for (int round = 0; round < RT_PHILOX_ROUNDS; round++) {
        vu64 p0 = philox_mul(c0, m0), p1 = philox_mul(c2, m1);
        c0 = (p1 >> 32) ^ c1 ^ philox_all(k0);
        c2 = (p0 >> 32) ^ c3 ^ philox_all(k1);
        c1 = p1;
        c3 = p0;
        k0 += RT_PHILOX_K0;
        k1 += RT_PHILOX_K1;
    }
    vu64 front = (c0 & 0xffffffff) | c1 << 32, back = (c2 & 0xffffffff) | c3 << 32;
    for (int i = 0; i < PL; i++) {
        uint64_t pair[2] = {front[i], back[i]};
        memcpy(w + 4 * i, pair, sizeof pair); /* the low half of a number comes first */
    }
}

/* Words of n columns from `first`, a multiple of 4, on: column c has word c % 4 of group
 * c / 4 + 2^20 head. w has room for n rounded up to PHILOX_WORDS. */
V_INLINE void
philox_words(uint32_t *w, const philox *x, int64_t first, int64_t n, int64_t head)
{
    uint32_t group = philox_group(first, head);
    for (int64_t i = 0; i < n; i += PHILOX_WORDS)
        philox_block(w + i, x, group + (uint32_t)(i / 4));
}

/* 1 / (1 - p) where a word says that the element is kept, else 0; for VW words. */
V_INLINE vf
philox_keep(const uint32_t *w, uint32_t below, vf scale)
{
#if defined(__AVX512F__)
    __mmask16 keep =
        _mm512_cmpge_epu32_mask(_mm512_loadu_si512(w), _mm512_set1_epi32((int)below));
    return _mm512_maskz_mov_ps(keep, scale);
#else
    vi x, low = (int32_t)(below ^ 0x80000000u) - (vi){0};
    memcpy(&x, w, sizeof x);
    x ^= INT32_MIN - (vi){0}; /* order of signed numbers */
    return (vf)((x >= low) & (vi)scale);
#endif
}

#endif
