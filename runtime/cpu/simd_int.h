/* simd_int.h -- one vector type for all kernels.
 *
 * `vf` holds VW floats: 16 under AVX-512, 8 under AVX, else 4; the compiler's vector
 * operators do + - * / and comparisons. What they lack stands here: fused multiply-add
 * (the standard dialect does not contract a*b+c by itself), partial loads and stores,
 * horizontal sums and exp. Partial loads never touch memory past n elements.
 */
#ifndef EFFICC_SIMD_INT_H
#define EFFICC_SIMD_INT_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { VW = 16 };
#elif defined(__AVX__)
enum { VW = 8 };
#else
enum { VW = 4 };
#endif
typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));

#define V_INLINE static inline __attribute__((always_inline, unused))

V_INLINE vf
v_set(float x)
{
    return x - (vf){0};
}

V_INLINE vf
v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

V_INLINE void
v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* x < y ? a : b per lane; b where either is NaN. */
V_INLINE vf
v_if_less(vf x, vf y, vf a, vf b)
{
#if defined(__AVX512F__)
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
#else
    vi c = x < y;
    return (vf)((c & (vi)a) | (~c & (vi)b));
#endif
}

V_INLINE vf
v_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__) && defined(__AVX__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* The larger one; b where either is NaN. */
V_INLINE vf
v_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX__)
    return _mm256_max_ps(a, b);
#else
    return v_if_less(b, a, a, b);
#endif
}

V_INLINE vf
v_sqrt(vf a)
{
#if defined(__AVX512F__)
    return _mm512_sqrt_ps(a);
#elif defined(__AVX__)
    return _mm256_sqrt_ps(a);
#else
    for (int i = 0; i < VW; i++)
        a[i] = sqrtf(a[i]);
    return a;
#endif
}

/* The first n lanes (0 <= n <= VW) from memory, zeros after them. */
V_INLINE vf
v_load_n(const float *p, int64_t n)
{
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    vf v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
#endif
}

V_INLINE void
v_store_n(float *p, vf v, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
#else
    memcpy(p, &v, (size_t)n * sizeof *p);
#endif
}

/* Where `left` elements are left in a row: a whole vector, or the rest of it. */
V_INLINE vf
v_load_to(const float *p, int64_t left)
{
    return left >= VW ? v_load(p) : v_load_n(p, left);
}

V_INLINE void
v_store_to(float *p, vf v, int64_t left)
{
    if (left >= VW)
        v_store(p, v);
    else
        v_store_n(p, v, left);
}

/* x in the first n lanes, y in the others. */
V_INLINE vf
v_first_n(int64_t n, vf x, vf y)
{
#if defined(__AVX512F__)
    return _mm512_mask_mov_ps(y, (__mmask16)((1u << n) - 1), x);
#else
    for (int i = 0; i < VW; i++)
        y[i] = i < n ? x[i] : y[i];
    return y;
#endif
}

V_INLINE float
v_sum(vf v)
{
    float s[VW];
    v_store(s, v);
    for (int w = VW / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            s[i] += s[i + w];
    return s[0];
}

/* The largest lane; NaN where lane 0 of a comparison meets one. */
V_INLINE float
v_hmax(vf v)
{
    float s[VW];
    v_store(s, v);
    for (int w = VW / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            s[i] = s[i] > s[i + w] ? s[i] : s[i + w];
    return s[0];
}

/* Nearest integer, ties to even, for |a| < 2^22. */
V_INLINE vf
v_round(vf a)
{
#if defined(__AVX512F__)
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX__)
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return (a + 12582912.0f) - 12582912.0f;
#endif
}

/* p * 2^n for integral n in [-126, 127]. */
V_INLINE vf
v_scale2(vf p, vf n)
{
#if defined(__AVX512F__)
    return _mm512_scalef_ps(p, n);
#else
    vi e = __builtin_convertvector(n, vi) + 127;
    return p * (vf)(e << 23);
#endif
}

/* e^x, within 3 ulp. Exactly 0 below -87.33 (so for -inf); stops growing at e^88; NaN
 * stays NaN. */
V_INLINE vf
v_exp(vf x)
{
    const vf low = v_set(-87.33f), high = v_set(88);
    vf y = v_if_less(x, low, low, v_if_less(high, x, high, x));
    vf n = v_round(y * 1.44269504f);
    vf f = v_fma(n, v_set(-0.693145752f), y);
    f = v_fma(n, v_set(-1.42860677e-6f), f);
    vf p = v_fma(f, v_set(1.3888889e-3f), v_set(8.3333333e-3f));
    p = v_fma(p, f, v_set(4.1666667e-2f));
    p = v_fma(p, f, v_set(1.6666667e-1f));
    p = v_fma(p, f, v_set(0.5f));
    p = v_fma(p, f, v_set(1.0f));
    p = v_fma(p, f, v_set(1.0f));
    return v_if_less(x, low, v_set(0), v_scale2(p, n));
}

/* tanh x, within 3 ulp: an odd polynomial near 0 (Cephes' tanhf), 1 - 2 / (e^2x + 1) beyond. */
V_INLINE vf
v_tanh(vf x)
{
    vf z = x * x, p = v_fma(z, v_set(-5.70498872745e-3f), v_set(2.06390887954e-2f));
    p = v_fma(p, z, v_set(-5.37397155531e-2f));
    p = v_fma(p, z, v_set(1.33314422036e-1f));
    p = v_fma(p, z, v_set(-3.33332819422e-1f));
    vf near = v_fma(p * z, x, x), far = 1 - 2 / (v_exp(x + x) + 1);
    return v_if_less(z, v_set(0.625f * 0.625f), near, far);
}

#endif
