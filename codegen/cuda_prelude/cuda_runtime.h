/* cuda_runtime.h -- stands in for NVIDIA's when libclang reads emitted CUDA (clang_check.c).
 *
 * Declares what kernels of efficc may use, and what efficc_launch.h uses; nothing is defined,
 * since nothing is compiled. What is missing here is an undeclared name to the check, so
 * whoever lets kernels use more of CUDA adds it. Argument lists are NVIDIA's; sources that
 * pass are compiled by nvcc against the real headers.
 */
#ifndef EFFICC_CUDA_PRELUDE_H
#define EFFICC_CUDA_PRELUDE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define __global__             __attribute__((global))
#define __device__             __attribute__((device))
#define __host__               __attribute__((host))
#define __shared__             __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __forceinline__        inline __attribute__((always_inline))
#define __noinline__           __attribute__((noinline))
#define __align__(n)           __attribute__((aligned(n)))
#define __restrict__ __restrict
#define CU_BOTH static inline __host__ __device__

/* ---- vector types ---- */

#define CU_VECTOR(name, T, align)                      \
    struct __align__((align) / 2) name##2              \
    {                                                  \
        T x, y;                                        \
    };                                                 \
    struct name##3                                     \
    {                                                  \
        T x, y, z;                                     \
    };                                                 \
    struct __align__(align) name##4                    \
    {                                                  \
        T x, y, z, w;                                  \
    };                                                 \
    CU_BOTH name##2 make_##name##2(T x, T y)           \
    {                                                  \
        return {x, y};                                 \
    }                                                  \
    CU_BOTH name##3 make_##name##3(T x, T y, T z)      \
    {                                                  \
        return {x, y, z};                              \
    }                                                  \
    CU_BOTH name##4 make_##name##4(T x, T y, T z, T w) \
    {                                                  \
        return {x, y, z, w};                           \
    }
CU_VECTOR(char, signed char, 4)
CU_VECTOR(uchar, unsigned char, 4)
CU_VECTOR(short, short, 8)
CU_VECTOR(ushort, unsigned short, 8)
CU_VECTOR(int, int, 16)
CU_VECTOR(uint, unsigned, 16)
CU_VECTOR(longlong, long long, 16)
CU_VECTOR(ulonglong, unsigned long long, 16)
CU_VECTOR(float, float, 16)
CU_VECTOR(double, double, 16)

struct dim3 {
    unsigned x, y, z;
    __host__ __device__ constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1)
        : x(a), y(b), z(c)
    {
    }
};

/* ---- host: launches ---- */

typedef enum cudaError { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 } cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
} cudaMemcpyKind;
typedef enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
} cudaFuncAttribute;
typedef struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock, regsPerBlock;
} cudaDeviceProp;
typedef struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    struct cudaLaunchAttribute_st *attrs;
    unsigned numAttrs;
} cudaLaunchConfig_t;

/* The kernel says the types, arguments follow. */
template <class T> struct cu_same {
    typedef T type;
};
template <class... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *, void (*kernel)(P...),
                               typename cu_same<P>::type... args);
template <class T> cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute, int);
extern "C" {
const char *cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError(void);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t);
/* What clang makes of <<<>>>, which only tests have. */
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t = 0, cudaStream_t = 0);
cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
}

/* ---- device: where a thread is, and what a block does together ---- */

extern __device__ const uint3 threadIdx, blockIdx;
extern __device__ const dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

extern "C" __device__ void *memcpy(void *, const void *, size_t) noexcept;
__device__ void __syncthreads();
__device__ int __syncthreads_or(int);
__device__ int __syncthreads_and(int);
__device__ int __syncthreads_count(int);
__device__ void __syncwarp(unsigned = 0xffffffff);
__device__ void __threadfence();
__device__ void __threadfence_block();
__device__ unsigned __ballot_sync(unsigned, int);
__device__ int __any_sync(unsigned, int);
__device__ int __all_sync(unsigned, int);
__device__ size_t __cvta_generic_to_shared(const void *);

#define CU_SHUFFLE(T)                                             \
    __device__ T __shfl_sync(unsigned, T, int, int = 32);         \
    __device__ T __shfl_xor_sync(unsigned, T, int, int = 32);     \
    __device__ T __shfl_up_sync(unsigned, T, unsigned, int = 32); \
    __device__ T __shfl_down_sync(unsigned, T, unsigned, int = 32);
CU_SHUFFLE(int)
CU_SHUFFLE(unsigned)
CU_SHUFFLE(long)
CU_SHUFFLE(unsigned long)
CU_SHUFFLE(long long)
CU_SHUFFLE(unsigned long long)
CU_SHUFFLE(float)
CU_SHUFFLE(double)

#define CU_ATOMIC(T)                 \
    __device__ T atomicAdd(T *, T);  \
    __device__ T atomicMin(T *, T);  \
    __device__ T atomicMax(T *, T);  \
    __device__ T atomicAnd(T *, T);  \
    __device__ T atomicOr(T *, T);   \
    __device__ T atomicExch(T *, T); \
    __device__ T atomicCAS(T *, T, T);
CU_ATOMIC(int)
CU_ATOMIC(unsigned)
CU_ATOMIC(unsigned long long)

template <class T> __device__ T __ldg(const T *);
template <class T> __device__ T __ldcs(const T *);
template <class T> __device__ T __ldcg(const T *);
template <class T> __device__ void __stcs(T *, T);
template <class T> __device__ void __stcg(T *, T);

/* ---- device: arithmetic ---- */

#define CU_UNARY(name)               \
    __device__ float name##f(float); \
    __device__ double name(double);  \
    __device__ float name(float);
CU_UNARY(exp)
CU_UNARY(exp2)
CU_UNARY(expm1)
CU_UNARY(log)
CU_UNARY(log2)
CU_UNARY(log10)
CU_UNARY(log1p)
CU_UNARY(sqrt)
CU_UNARY(sin)
CU_UNARY(cos)
CU_UNARY(tanh)
CU_UNARY(erf)
CU_UNARY(erfc)
CU_UNARY(fabs)
CU_UNARY(floor)
CU_UNARY(ceil)
CU_UNARY(trunc)
CU_UNARY(round)
CU_UNARY(rint)
CU_UNARY(nearbyint)
#define CU_BINARY(name)                     \
    __device__ float name##f(float, float); \
    __device__ double name(double, double); \
    __device__ float name(float, float);
CU_BINARY(pow)
CU_BINARY(fmod)
CU_BINARY(fmin)
CU_BINARY(fmax)
CU_BINARY(copysign)
#define CU_ORDER(T)           \
    CU_BOTH T min(T a, T b)   \
    {                         \
        return a < b ? a : b; \
    }                         \
    CU_BOTH T max(T a, T b)   \
    {                         \
        return a < b ? b : a; \
    }
CU_ORDER(int)
CU_ORDER(unsigned)
CU_ORDER(long)
CU_ORDER(unsigned long)
CU_ORDER(long long)
CU_ORDER(unsigned long long)
CU_ORDER(float)
CU_ORDER(double)
__device__ float rsqrtf(float);
__device__ double rsqrt(double);
__device__ float fmaf(float, float, float);
__device__ double fma(double, double, double);
__device__ float ldexpf(float, int);
__device__ double ldexp(double, int);
__device__ void sincosf(float, float *, float *);
__device__ int abs(int);
__device__ long long llabs(long long);

__device__ float __expf(float);
__device__ float __exp10f(float);
__device__ float __logf(float);
__device__ float __log2f(float);
__device__ float __sinf(float);
__device__ float __cosf(float);
__device__ float __powf(float, float);
__device__ float __fdividef(float, float);
__device__ float __saturatef(float);
#define CU_ROUNDED(name, F, D)         \
    __device__ float __f##name##_rn F; \
    __device__ double __d##name##_rn D;
CU_ROUNDED(add, (float, float), (double, double))
CU_ROUNDED(sub, (float, float), (double, double))
CU_ROUNDED(mul, (float, float), (double, double))
CU_ROUNDED(div, (float, float), (double, double))
CU_ROUNDED(rcp, (float), (double))
CU_ROUNDED(sqrt, (float), (double))
__device__ float __fmaf_rn(float, float, float);
__device__ double __fma_rn(double, double, double);
__device__ float __frsqrt_rn(float);

__device__ unsigned __float_as_uint(float);
__device__ int __float_as_int(float);
__device__ float __uint_as_float(unsigned);
__device__ float __int_as_float(int);
__device__ long long __double_as_longlong(double);
__device__ double __longlong_as_double(long long);
__device__ float __double2float_rn(double);
__device__ int __float2int_rn(float);
__device__ int __float2int_rz(float);
__device__ float __int2float_rn(int);
__device__ float __uint2float_rn(unsigned);
__device__ float __ll2float_rn(long long);
__device__ long long __double2ll_rz(double);
__device__ unsigned __umulhi(unsigned, unsigned);
__device__ unsigned long long __umul64hi(unsigned long long, unsigned long long);
__device__ int __clz(int);
__device__ int __popc(unsigned);
__device__ int __ffs(int);
__device__ unsigned __brev(unsigned);
__device__ unsigned __byte_perm(unsigned, unsigned, unsigned);

#endif
