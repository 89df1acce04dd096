/* cuda_fp16.h -- stands in for NVIDIA's, see cuda_runtime.h. */
#ifndef EFFICC_CUDA_PRELUDE_FP16_H
#define EFFICC_CUDA_PRELUDE_FP16_H

#include "cuda_runtime.h"

struct __half_raw {
    unsigned short x;
};
struct __align__(2) __half
{
    unsigned short x;
    __half() = default;
    __host__ __device__ __half(__half_raw);
    __host__ __device__ explicit __half(float);
    __host__ __device__ operator __half_raw() const;
    __host__ __device__ explicit operator float() const;
};
struct __align__(4) __half2
{
    __half x, y;
    __half2() = default;
    __host__ __device__ __half2(__half, __half);
};
typedef __half half;
typedef __half2 half2;

__host__ __device__ float __half2float(__half);
__host__ __device__ __half __float2half(float);
__host__ __device__ __half __float2half_rn(float);
__host__ __device__ float2 __half22float2(__half2);
__host__ __device__ __half2 __floats2half2_rn(float, float);
__host__ __device__ __half2 __float22half2_rn(float2);
__host__ __device__ float __low2float(__half2);
__host__ __device__ float __high2float(__half2);
__host__ __device__ __half __low2half(__half2);
__host__ __device__ __half __high2half(__half2);
__host__ __device__ unsigned short __half_as_ushort(__half);
__host__ __device__ __half __ushort_as_half(unsigned short);

#endif
