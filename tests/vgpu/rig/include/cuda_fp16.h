// cuda_fp16.h of the virtual GPU: f16 by named conversions; arithmetic is in float.
#pragma once
#include "../vgpu_device.h"

struct __half_raw {
    unsigned short x;
};
struct __half {
    unsigned short bits;
    __half() = default;
    __half(float f) : bits(vgpu::float_to_f16(f))
    {
    }
    __half(const __half_raw &r) : bits(r.x)
    {
    }
    operator __half_raw() const
    {
        return {bits};
    }
    operator float() const
    {
        return vgpu::f16_to_float(bits);
    }
};
struct alignas(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

inline __half
__float2half(float f)
{
    return f;
}
inline __half
__float2half_rn(float f)
{
    return f;
}
inline float
__half2float(__half h)
{
    return h;
}
inline unsigned short
__half_as_ushort(__half h)
{
    return h.bits;
}
inline __half
__ushort_as_half(unsigned short u)
{
    return __half_raw{u};
}
inline __half2
__floats2half2_rn(float a, float b)
{
    return {a, b};
}
inline __half2
__float22half2_rn(float2 f)
{
    return {f.x, f.y};
}
inline __half2
__halves2half2(__half a, __half b)
{
    return {a, b};
}
inline float2
__half22float2(__half2 h)
{
    return {(float)h.x, (float)h.y};
}
inline float
__low2float(__half2 h)
{
    return h.x;
}
inline float
__high2float(__half2 h)
{
    return h.y;
}
inline __half
__low2half(__half2 h)
{
    return h.x;
}
inline __half
__high2half(__half2 h)
{
    return h.y;
}
