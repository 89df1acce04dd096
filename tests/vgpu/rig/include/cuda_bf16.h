// cuda_bf16.h of the virtual GPU: bf16 by named conversions; arithmetic is in float.
#pragma once
#include "../vgpu_device.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : bits(vgpu::float_to_bf16(f))
    {
    }
    __nv_bfloat16(const __nv_bfloat16_raw &r) : bits(r.x)
    {
    }
    operator __nv_bfloat16_raw() const
    {
        return {bits};
    }
    operator float() const
    {
        return vgpu::bf16_to_float(bits);
    }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline __nv_bfloat16
__float2bfloat16(float f)
{
    return f;
}
inline __nv_bfloat16
__float2bfloat16_rn(float f)
{
    return f;
}
inline float
__bfloat162float(__nv_bfloat16 h)
{
    return h;
}
inline unsigned short
__bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.bits;
}
inline __nv_bfloat16
__ushort_as_bfloat16(unsigned short u)
{
    return __nv_bfloat16_raw{u};
}
inline __nv_bfloat162
__floats2bfloat162_rn(float a, float b)
{
    return {a, b};
}
inline __nv_bfloat162
__float22bfloat162_rn(float2 f)
{
    return {f.x, f.y};
}
inline __nv_bfloat162
__halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return {a, b};
}
inline float2
__bfloat1622float2(__nv_bfloat162 h)
{
    return {(float)h.x, (float)h.y};
}
inline float
__low2float(__nv_bfloat162 h)
{
    return h.x;
}
inline float
__high2float(__nv_bfloat162 h)
{
    return h.y;
}
inline __nv_bfloat16
__low2bfloat16(__nv_bfloat162 h)
{
    return h.x;
}
inline __nv_bfloat16
__high2bfloat16(__nv_bfloat162 h)
{
    return h.y;
}
