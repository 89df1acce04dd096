// vgpu_low.h -- bf16 and f16 as 16 bits in memory, float in arithmetic.
//
// Conversions round to nearest even, as __float2bfloat16 and __float2half do. f16 uses the
// processor's instructions where the compiler may, else plain integer arithmetic.
#pragma once
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace vgpu {

inline uint32_t
bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

inline float
float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

inline float
bf16_to_float(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

// Every NaN becomes 0x7fff, as CUDA has it.
inline uint16_t
float_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

#ifdef __F16C__

inline float
f16_to_float(uint16_t h)
{
    return _cvtsh_ss(h);
}

inline uint16_t
float_to_f16(float f)
{
    return f != f ? 0x7fff : _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT);
}

#else

inline float
f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31;
    uint32_t fraction = h & 0x3ff;
    if (exponent == 31)
        return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float small = (float)fraction * 0x1p-24f;
    return sign ? -small : small;
}

inline uint16_t
float_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, size = u & 0x7fffffffu;
    if (size > 0x7f800000u)
        return 0x7fff;
    if (size >= 0x477ff000u) // 65520 and more
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000u) // below the normal numbers: adding 0.5 rounds to 2^-24
        return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (size + 0xfffu + (size >> 13 & 1) - 0x38000000u) >> 13);
}

#endif

} // namespace vgpu
