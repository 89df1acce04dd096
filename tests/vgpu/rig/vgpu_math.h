// vgpu_math.h -- vectors, atomics, loads, bits and arithmetic of CUDA's kernels.
//
// Arithmetic is the host's: the same formulas, not the same last bits as a GPU's expf(). What
// CUDA offers as faster and less exact (__expf, __fdividef) is the exact function here.
#pragma once
#include "vgpu_low.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef VGPU_REAL_HEADERS
inline float2
make_float2(float x, float y)
{
    return {x, y};
}
inline float3
make_float3(float x, float y, float z)
{
    return {x, y, z};
}
inline float4
make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
inline int2
make_int2(int x, int y)
{
    return {x, y};
}
inline int4
make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
inline uint2
make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline uint3
make_uint3(unsigned x, unsigned y, unsigned z)
{
    return {x, y, z};
}
inline uint4
make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
inline double2
make_double2(double x, double y)
{
    return {x, y};
}
inline longlong2
make_longlong2(long long x, long long y)
{
    return {x, y};
}
inline ushort4
make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w)
{
    return {x, y, z, w};
}
#endif

// ---- atomics: relaxed; one host thread runs the device ----

namespace vgpu {
template <class T, class F>
inline T
exchange(T *p, F next)
{
#ifdef __SANITIZE_THREAD__ // it must see that the access is atomic
    T old, wanted;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do
        wanted = next(old);
    while (!__atomic_compare_exchange(p, &old, &wanted, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
    return old;
#else
    T old = *p;
    *p = next(old);
    return old;
#endif
}
} // namespace vgpu

template <class T, class U>
inline T
atomicAdd(T *p, U v)
{
    return vgpu::exchange(p, [=](T o) { return (T)(o + (T)v); });
}
template <class T, class U>
inline T
atomicSub(T *p, U v)
{
    return vgpu::exchange(p, [=](T o) { return (T)(o - (T)v); });
}
template <class T, class U>
inline T
atomicMax(T *p, U v)
{
    return vgpu::exchange(p, [=](T o) { return (T)v > o ? (T)v : o; });
}
template <class T, class U>
inline T
atomicMin(T *p, U v)
{
    return vgpu::exchange(p, [=](T o) { return (T)v < o ? (T)v : o; });
}
template <class T, class U>
inline T
atomicExch(T *p, U v)
{
    return vgpu::exchange(p, [=](T) { return (T)v; });
}
template <class T, class U, class V>
inline T
atomicCAS(T *p, U is, V v)
{
    return vgpu::exchange(p, [=](T o) { return o == (T)is ? (T)v : o; });
}
template <class T, class U>
inline T
atomicOr(T *p, U v)
{
    return vgpu::exchange(p, [=](T o) { return o | (T)v; });
}
template <class T, class U>
inline T
atomicAnd(T *p, U v)
{
    return vgpu::exchange(p, [=](T o) { return o & (T)v; });
}
inline unsigned
atomicInc(unsigned *p, unsigned last)
{
    return vgpu::exchange(p, [=](unsigned o) { return o >= last ? 0u : o + 1; });
}

// ---- loads and stores with a hint to the caches ----

template <class T>
inline T
__ldg(const T *p)
{
    return *p;
}
template <class T>
inline T
__ldcs(const T *p)
{
    return *p;
}
template <class T>
inline T
__ldcg(const T *p)
{
    return *p;
}
template <class T>
inline T
__ldca(const T *p)
{
    return *p;
}
template <class T>
inline void
__stcs(T *p, T v)
{
    *p = v;
}
template <class T>
inline void
__stcg(T *p, T v)
{
    *p = v;
}
template <class T>
inline void
__stwt(T *p, T v)
{
    *p = v;
}

// ---- bits ----

inline unsigned
__float_as_uint(float f)
{
    return vgpu::bits_of(f);
}
inline float
__uint_as_float(unsigned u)
{
    return vgpu::float_of(u);
}
inline int
__float_as_int(float f)
{
    return (int)vgpu::bits_of(f);
}
inline float
__int_as_float(int i)
{
    return vgpu::float_of((uint32_t)i);
}
inline int
__popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int
__popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
inline int
__ffs(int x)
{
    return __builtin_ffs(x);
}
inline int
__clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int
__clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
inline unsigned
__umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
inline unsigned long long
__umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(__extension__(unsigned __int128) a * b >> 64);
}

// ---- arithmetic; glibc has some of these names for its own use ----

#define __expf(x)    expf(x)
#define __exp10f(x)  exp10f(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __tanf(x)    tanf(x)
inline float
rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double
rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
inline float
__frsqrt_rn(float x)
{
    return 1.0f / sqrtf(x);
}
inline float
__fsqrt_rn(float x)
{
    return sqrtf(x);
}
inline float
__fdividef(float a, float b)
{
    return a / b;
}
inline float
__fdiv_rn(float a, float b)
{
    return a / b;
}
inline float
__frcp_rn(float x)
{
    return 1.0f / x;
}
inline float
__fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline double
__fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
// Never contracted to a fused multiply-add.
__attribute__((noinline)) inline float
__fmul_rn(float a, float b)
{
    return a * b;
}
__attribute__((noinline)) inline float
__fadd_rn(float a, float b)
{
    return a + b;
}
__attribute__((noinline)) inline float
__fsub_rn(float a, float b)
{
    return a - b;
}
__attribute__((noinline)) inline double
__dmul_rn(double a, double b)
{
    return a * b;
}
__attribute__((noinline)) inline double
__dadd_rn(double a, double b)
{
    return a + b;
}
inline int
__float2int_rn(float x)
{
    return (int)rintf(x);
}
inline int
__float2int_rd(float x)
{
    return (int)floorf(x);
}
inline int
__float2int_rz(float x)
{
    return (int)x;
}
inline unsigned
__float2uint_rn(float x)
{
    return (unsigned)rintf(x);
}
inline float
__int2float_rn(int x)
{
    return (float)x;
}
inline float
__uint2float_rn(unsigned x)
{
    return (float)x;
}
inline float
__saturatef(float x)
{
    return x > 0 ? x < 1 ? x : 1 : 0;
}

// min and max of each pair of types that CUDA takes.
#define VGPU_MIN_MAX(R, A, B)             \
    inline R min(A a, B b)                \
    {                                     \
        return (R)b < (R)a ? (R)b : (R)a; \
    }                                     \
    inline R max(A a, B b)                \
    {                                     \
        return (R)a < (R)b ? (R)b : (R)a; \
    }
VGPU_MIN_MAX(int, int, int)
VGPU_MIN_MAX(unsigned, unsigned, unsigned)
VGPU_MIN_MAX(unsigned, int, unsigned)
VGPU_MIN_MAX(unsigned, unsigned, int)
VGPU_MIN_MAX(long, long, long)
VGPU_MIN_MAX(unsigned long, unsigned long, unsigned long)
VGPU_MIN_MAX(unsigned long, long, unsigned long)
VGPU_MIN_MAX(unsigned long, unsigned long, long)
VGPU_MIN_MAX(long long, long long, long long)
VGPU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
VGPU_MIN_MAX(unsigned long long, long long, unsigned long long)
VGPU_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef VGPU_MIN_MAX
// Of a number and a NaN it is the number.
inline float
min(float a, float b)
{
    return fminf(a, b);
}
inline float
max(float a, float b)
{
    return fmaxf(a, b);
}
inline double
min(double a, double b)
{
    return fmin(a, b);
}
inline double
max(double a, double b)
{
    return fmax(a, b);
}
