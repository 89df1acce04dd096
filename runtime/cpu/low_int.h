/* low_int.h -- elements of the low types, bf16 and f16: 16 bits in memory, floats in a vf.
 *
 * v_load_as() and v_store_as() take memory of any float type. Where the type is a constant, so
 * in a kernel that is inlined once a type, nothing of the choice is left; where it is not, it
 * is a branch that the processor foresees. Stores round to nearest, ties to even; NaN stays
 * NaN, subnormal numbers stay what they are.
 */
#ifndef EFFICC_LOW_INT_H
#define EFFICC_LOW_INT_H

#include "../include/efficc_rt.h"
#include "simd_int.h"

typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef uint16_t vh
    __attribute__((vector_size(2 * VW))); /* VW elements of a low type */

V_INLINE vf
v_from_bf16(vh h)
{
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

V_INLINE vu
vu_if(vi c, vu a, vu b)
{
    return ((vu)c & a) | (~(vu)c & b);
}

/* The instruction for it, vcvtneps2bf16, would turn subnormal numbers into zeros: other than
 * the interpreter does, and machines that lack it. */
V_INLINE vh
v_to_bf16(vf v)
{
    vu u = (vu)v, near = u + 0x7fff + ((u >> 16) & 1), quiet = u | 0x400000;
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    near = (vu)_mm512_mask_mov_epi32((__m512i)near, nan, (__m512i)quiet);
#else
    near = vu_if(v != v, quiet, near);
#endif
    return __builtin_convertvector(near >> 16, vh);
}

#if defined(__AVX512F__)
V_INLINE vf
v_from_f16(vh h)
{
    return _mm512_cvtph_ps((__m256i)h);
}

V_INLINE vh
v_to_f16(vf v)
{
    return (vh)_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__AVX__) && defined(__F16C__)
V_INLINE vf
v_from_f16(vh h)
{
    return _mm256_cvtph_ps((__m128i)h);
}

V_INLINE vh
v_to_f16(vf v)
{
    return (vh)_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
#else
/* A half's bits, 13 places further up, are a float that is 2^112 too small; infinities and NaN
 * need the largest exponent. Subnormal ones are multiples of 2^-24, which 0.5 + 2^-24 n
 * represents exactly. */
V_INLINE vf
v_from_f16(vh h)
{
    vu u = __builtin_convertvector(h, vu), size = u & 0x7fff;
    vu normal = (size << 13) + (112 << 23);
    normal = vu_if(size >= 0x7c00, normal + (112 << 23), normal);
    vf small = (vf)(size | 126 << 23) - 0.5f;
    vu v = vu_if(size < 0x400, (vu)small, normal);
    return (vf)(v | (u & 0x8000) << 16);
}

/* Of a normal result the 13 lowest bits are rounded off as v_to_bf16() does it, which may carry
 * into the exponent, up to infinity. A subnormal one: adding 0.5 rounds to multiples of
 * 2^-24. */
V_INLINE vh
v_to_f16(vf v)
{
    vu u = (vu)v, size = u & 0x7fffffff;
    vu normal = (size + 0xfff + ((size >> 13) & 1) - (112 << 23)) >> 13;
    vu small = (vu)((vf)size + 0.5f) - (126 << 23);
    vu h = vu_if(size < 113 << 23, small, normal);
    h = vu_if(size >= 143 << 23, h - h + 0x7c00, h);
    h = vu_if(size > 255 << 23, h - h + 0x7e00, h);
    return __builtin_convertvector(h | (u >> 16 & 0x8000), vh);
}
#endif

V_INLINE vh
vh_load_n(const uint16_t *p, int64_t n)
{
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
#else
    vh h = {0};
    memcpy(&h, p, (size_t)n * sizeof *p);
    return h;
#endif
}

V_INLINE void
vh_store_n(uint16_t *p, vh h, int64_t n)
{
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), (__m256i)h);
#else
    memcpy(p, &h, (size_t)n * sizeof *p);
#endif
}

V_INLINE vf
v_from_low(vh h, rt_dtype t)
{
    return t == RT_BF16 ? v_from_bf16(h) : v_from_f16(h);
}

V_INLINE vh
v_to_low(vf v, rt_dtype t)
{
    return t == RT_BF16 ? v_to_bf16(v) : v_to_f16(v);
}

/* ---- memory of type t: RT_F32, RT_BF16 or RT_F16; `at` counts elements ---- */

V_INLINE int64_t
v_bytes(rt_dtype t)
{
    return t == RT_F32 ? 4 : 2;
}

/* Address of element `at`. */
V_INLINE void *
v_at(const void *p, int64_t at, rt_dtype t)
{
    return (char *)p + at * v_bytes(t);
}

V_INLINE vf
v_load_as(const void *p, int64_t at, rt_dtype t)
{
    if (t == RT_F32)
        return v_load((const float *)p + at);
    vh h;
    memcpy(&h, (const uint16_t *)p + at, sizeof h);
    return v_from_low(h, t);
}

V_INLINE void
v_store_as(void *p, int64_t at, vf v, rt_dtype t)
{
    if (t == RT_F32) {
        v_store((float *)p + at, v);
        return;
    }
    vh h = v_to_low(v, t);
    memcpy((uint16_t *)p + at, &h, sizeof h);
}

/* The first n lanes (0 <= n <= VW), zeros after them. */
V_INLINE vf
v_load_as_n(const void *p, int64_t at, int64_t n, rt_dtype t)
{
    return t == RT_F32 ? v_load_n((const float *)p + at, n)
                       : v_from_low(vh_load_n((const uint16_t *)p + at, n), t);
}

V_INLINE void
v_store_as_n(void *p, int64_t at, vf v, int64_t n, rt_dtype t)
{
    if (t == RT_F32)
        v_store_n((float *)p + at, v, n);
    else
        vh_store_n((uint16_t *)p + at, v_to_low(v, t), n);
}

/* Where `left` elements are left in a row: a whole vector, or the rest of it. */
V_INLINE vf
v_load_as_to(const void *p, int64_t at, int64_t left, rt_dtype t)
{
    return left >= VW ? v_load_as(p, at, t) : v_load_as_n(p, at, left, t);
}

V_INLINE void
v_store_as_to(void *p, int64_t at, vf v, int64_t left, rt_dtype t)
{
    if (left >= VW)
        v_store_as(p, at, v, t);
    else
        v_store_as_n(p, at, v, left, t);
}

/* What v becomes when it is stored as t and loaded again. */
V_INLINE vf
v_rounded(vf v, rt_dtype t)
{
    return t == RT_F32 ? v : v_from_low(v_to_low(v, t), t);
}

#endif
