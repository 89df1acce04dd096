/* efficc_low.h -- elements of the low types, one at a time: 16 bits in memory, float in
 * arithmetic.
 *
 * A bf16 is the upper half of a float; an f16 has 5 bits of exponent and 10 of mantissa.
 * Stores round to nearest, ties to even; NaN stays NaN, subnormal numbers stay what they are.
 * It is integer arithmetic without branches, so compilers make vectors of a loop around it
 * for any machine.
 */
#ifndef EFFICC_LOW_H
#define EFFICC_LOW_H

#include "efficc_rt.h"

#include <string.h>

static inline uint32_t
rt_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float
rt_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float
rt_from_bf16(rt_bf16 h)
{
    return rt_of_bits((uint32_t)h << 16);
}

static inline rt_bf16
rt_to_bf16(float x)
{
    uint32_t u = rt_bits(x), near = u + 0x7fff + (u >> 16 & 1), quiet = u | 0x400000;
    return (rt_bf16)((x != x ? quiet : near) >> 16);
}

/* A half's bits, 13 places further up, are a float that is 2^112 too small; infinities and
 * NaN need the largest exponent. Subnormal ones are multiples of 2^-24, which 0.5 + 2^-24 n
 * represents exactly. */
static inline float
rt_from_f16(rt_f16 h)
{
    uint32_t size = h & 0x7fffu, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t normal = (size << 13) + (size >= 0x7c00 ? 224u << 23 : 112u << 23);
    uint32_t small = rt_bits(rt_of_bits(size | 126u << 23) - 0.5f);
    return rt_of_bits((size < 0x400 ? small : normal) | sign);
}

/* Below 2^-14 the sum with 0.5 rounds to a multiple of 2^-24. */
static inline rt_f16
rt_to_f16(float x)
{
    uint32_t u = rt_bits(x), size = u & 0x7fffffff;
    uint32_t small = rt_bits(rt_of_bits(size) + 0.5f) - (126u << 23);
    uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t h = size < 113u << 23 ? small : size < 143u << 23 ? normal : large;
    return (rt_f16)(h | (u >> 16 & 0x8000));
}

#endif
