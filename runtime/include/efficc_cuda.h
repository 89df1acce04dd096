/* efficc_cuda.h -- what kernels.cu is written in: the arithmetic of elementwise.def, several
 * elements in one access of memory, and the stream.
 *
 * As in efficc_math.h formulas stand as they are, and the macros give them float arithmetic;
 * integer operands come as double. A thread takes an rt_pack of neighbouring elements where
 * the plan proves that they lie together and aligned.
 */
#ifndef EFFICC_CUDA_H
#define EFFICC_CUDA_H

extern "C" {
#include "efficc_rt.h"
}
#include "efficc_element.h"
#include "efficc_formula.h"
#include "efficc_launch.h"

#include <math.h>

/* The CUDA stream behind it. */
extern "C" cudaStream_t rt_cuda_stream(rt_stream *);

/* ---- launches: one thread for each pack ---- */

enum { RT_BLOCK = 256 };

static inline unsigned
rt_blocks(int64_t packs)
{
    return (unsigned)((packs + RT_BLOCK - 1) / RT_BLOCK);
}

/* Number of the thread, in 32 bits where all fit. */
template <class I>
static __device__ __forceinline__ I
rt_thread()
{
    return (I)blockIdx.x * RT_BLOCK + threadIdx.x;
}

/* ---- memory ---- */

template <int N, class T>
static __device__ __forceinline__ rt_pack<T, N>
rt_load(const T *x)
{
    return *reinterpret_cast<const rt_pack<T, N> *>(x);
}

template <int N, class T>
static __device__ __forceinline__ void
rt_store(T *y, const rt_pack<T, N> &x)
{
    *reinterpret_cast<rt_pack<T, N> *>(y) = x;
}

/* ---- formulas ---- */

#define RT_UNARY(name, f, d)                                \
    static __device__ __forceinline__ float name(float x)   \
    {                                                       \
        return f(x);                                        \
    }                                                       \
    static __device__ __forceinline__ double name(double x) \
    {                                                       \
        return d(x);                                        \
    }
RT_UNARY(rt_exp, expf, exp)
RT_UNARY(rt_log, logf, log)
RT_UNARY(rt_sqrt, sqrtf, sqrt)
RT_UNARY(rt_tanh, tanhf, tanh)
RT_UNARY(rt_erf, erff, erf)
RT_UNARY(rt_abs, fabsf, fabs)
RT_UNARY(rt_floor, floorf, floor)
RT_UNARY(rt_ceil, ceilf, ceil)
RT_UNARY(rt_sin, sinf, sin)
RT_UNARY(rt_cos, cosf, cos)

static __device__ __forceinline__ float
rt_pow(float x, float y)
{
    return powf(x, y);
}
static __device__ __forceinline__ double
rt_pow(double x, double y)
{
    return pow(x, y);
}

#define C(x)      ((float)(x))
#define EXP(x)    rt_exp(x)
#define LOG(x)    rt_log(x)
#define SQRT(x)   rt_sqrt(x)
#define TANH(x)   rt_tanh(x)
#define ERF(x)    rt_erf(x)
#define POW(x, y) rt_pow(x, y)
#define ABS(x)    rt_abs(x)
#define FLOOR(x)  rt_floor(x)
#define CEIL(x)   rt_ceil(x)
#define SIN(x)    rt_sin(x)
#define COS(x)    rt_cos(x)

#endif
