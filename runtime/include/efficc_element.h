/* efficc_element.h -- elements of tensors in device code: float, __nv_bfloat16 or __half in
 * memory, float in arithmetic.
 */
#ifndef EFFICC_ELEMENT_H
#define EFFICC_ELEMENT_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ float
rtc_float(float x)
{
    return x;
}
static __device__ __forceinline__ float
rtc_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static __device__ __forceinline__ float
rtc_float(__half x)
{
    return __half2float(x);
}

/* rtc_as<T>(x): rounded to nearest even. */
template <class T> static __device__ __forceinline__ T rtc_as(float x);
template <>
__device__ __forceinline__ float
rtc_as<float>(float x)
{
    return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16
rtc_as<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half
rtc_as<__half>(float x)
{
    return __float2half_rn(x);
}

/* Neighbouring elements that one access of memory takes. */
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) rt_pack {
    T at[N];
};

#endif
