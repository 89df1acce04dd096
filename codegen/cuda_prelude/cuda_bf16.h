/* cuda_bf16.h -- stands in for NVIDIA's, see cuda_runtime.h. */
#ifndef EFFICC_CUDA_PRELUDE_BF16_H
#define EFFICC_CUDA_PRELUDE_BF16_H

#include "cuda_runtime.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};
struct __align__(2) __nv_bfloat16
{
    unsigned short x;
    __nv_bfloat16() = default;
    __host__ __device__ __nv_bfloat16(__nv_bfloat16_raw);
    __host__ __device__ explicit __nv_bfloat16(float);
    __host__ __device__ operator __nv_bfloat16_raw() const;
    __host__ __device__ explicit operator float() const;
};
struct __align__(4) __nv_bfloat162
{
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __host__ __device__ __nv_bfloat162(__nv_bfloat16, __nv_bfloat16);
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

__host__ __device__ float __bfloat162float(__nv_bfloat16);
__host__ __device__ __nv_bfloat16 __float2bfloat16(float);
__host__ __device__ __nv_bfloat16 __float2bfloat16_rn(float);
__host__ __device__ float2 __bfloat1622float2(__nv_bfloat162);
__host__ __device__ __nv_bfloat162 __floats2bfloat162_rn(float, float);
__host__ __device__ __nv_bfloat162 __float22bfloat162_rn(float2);
__host__ __device__ float __low2float(__nv_bfloat162);
__host__ __device__ float __high2float(__nv_bfloat162);
__host__ __device__ __nv_bfloat16 __low2bfloat16(__nv_bfloat162);
__host__ __device__ __nv_bfloat16 __high2bfloat16(__nv_bfloat162);
__host__ __device__ unsigned short __bfloat16_as_ushort(__nv_bfloat16);
__host__ __device__ __nv_bfloat16 __ushort_as_bfloat16(unsigned short);

#endif
