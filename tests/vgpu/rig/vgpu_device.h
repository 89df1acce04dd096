// vgpu_device.h -- the words of CUDA kernels for a host compiler; included before each source.
//
// First what every kernel has: qualifiers, threadIdx, barriers, warp operations. Then the
// macros of the product's launch.h, which defines them only where they are not defined yet:
// so the product does not know that this rig exists. Arithmetic is in vgpu_math.h.
#pragma once
#include "vgpu.h"
#include "vgpu_low.h"

#ifdef VGPU_REAL_HEADERS
#include <cuda_runtime.h>
#include <vector_functions.h>
template <class F>
inline cudaError_t
cudaFuncSetAttribute(F *f, cudaFuncAttribute a, int v)
{
    return cudaFuncSetAttribute((const void *)f, a, v);
}
#endif

#ifndef __global__
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#endif
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// All of them lie in the program's thread-local block, so that the rig finds them and can fill
// them before each block. (GCC ignores a section attribute in templates.)
#define __shared__         \
    vgpu::static_shared(); \
    static __thread __attribute__((aligned(16)))

// One thread of the host runs the whole device.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

#include "vgpu_math.h"

#ifdef __SANITIZE_THREAD__ // a warp operation reads other lanes' stacks: no race
#define VGPU_NO_TSAN __attribute__((no_sanitize_thread, noinline))
#else
#define VGPU_NO_TSAN
#endif

// Threads that meet must come from the same line of the source.
inline void
__syncthreads(int line = __builtin_LINE())
{
    vgpu::block_barrier(line);
}
inline void
__threadfence()
{
}
inline void
__threadfence_block()
{
}
inline void
__threadfence_system()
{
}
#define __trap() vgpu::die("__trap() in a kernel")

// ---- warp operations ----

namespace vgpu {

inline void
nothing(void **, unsigned)
{
}

struct Vote {
    int predicate;
    unsigned ballot;
};

VGPU_NO_TSAN inline void
complete_vote(void **brought, unsigned mask)
{
    unsigned ballot = 0;
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1)
            ballot |= (unsigned)(((Vote *)brought[l])->predicate != 0) << l;
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1)
            ((Vote *)brought[l])->ballot = ballot;
}

VGPU_NO_TSAN inline unsigned
ballot(unsigned mask, int predicate, int line)
{
    Vote v{predicate, 0};
    warp_meet(mask, W_VOTE, &v, complete_vote, line);
    return v.ballot;
}

template <class T> struct Shuffle {
    T in, out;
    int from;
};

// A lane outside the mask has no value to give: CUDA leaves it undefined, here it is NaN.
template <class T>
VGPU_NO_TSAN void
complete_shuffle(void **brought, unsigned mask)
{
    for (int l = 0; l < 32; l++) {
        if (!(mask >> l & 1))
            continue;
        Shuffle<T> *s = (Shuffle<T> *)brought[l];
        if (mask >> s->from & 1)
            s->out = ((Shuffle<T> *)brought[s->from])->in;
        else
            memset((void *)&s->out, 0xff, sizeof(T));
    }
}

template <class T>
VGPU_NO_TSAN inline T
shuffle(unsigned mask, T v, int from, int line)
{
    Shuffle<T> s{v, v, from};
    warp_meet(mask, W_SHUFFLE, &s, complete_shuffle<T>, line);
    return s.out;
}

} // namespace vgpu

inline void
__syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE())
{
    vgpu::warp_meet(mask, vgpu::W_SYNC, nullptr, vgpu::nothing, line);
}
template <class T>
inline T
__shfl_sync(unsigned mask, T v, int lane, int width = 32, int line = __builtin_LINE())
{
    int base = vgpu::g_lane & ~(width - 1);
    return vgpu::shuffle(mask, v, base + (lane & (width - 1)), line);
}
template <class T>
inline T
__shfl_xor_sync(unsigned mask, T v, int bits, int width = 32,
                int line = __builtin_LINE())
{
    int l = vgpu::g_lane, end = (l & ~(width - 1)) + width;
    return vgpu::shuffle(mask, v, (l ^ bits) < end ? l ^ bits : l, line);
}
template <class T>
inline T
__shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32,
                 int line = __builtin_LINE())
{
    int l = vgpu::g_lane, end = (l & ~(width - 1)) + width;
    return vgpu::shuffle(mask, v, l + (int)by < end ? l + (int)by : l, line);
}
template <class T>
inline T
__shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32,
               int line = __builtin_LINE())
{
    int l = vgpu::g_lane, base = l & ~(width - 1);
    return vgpu::shuffle(mask, v, l - (int)by >= base ? l - (int)by : l, line);
}
inline unsigned
__ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return vgpu::ballot(mask, predicate, line);
}
inline int
__any_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return vgpu::ballot(mask, predicate, line) != 0;
}
inline int
__all_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return vgpu::ballot(mask, !predicate, line) == 0;
}
inline unsigned
__activemask()
{
    return vgpu::active_mask();
}

// ---- efficc_launch.h of the product ----

#define RT_LAUNCH(kernel_, grid_, block_, shared_, stream_, ...)                \
    ((void)vgpu::launch(vgpu::launch_op(#kernel_, __FILE__, __LINE__), kernel_, \
                        (grid_), (block_), (size_t)(shared_), (stream_),        \
                        ##__VA_ARGS__))
#define RT_DYNAMIC_SHARED(T, name) \
    T *name = reinterpret_cast<T *>(vgpu::dynamic_shared())

// d += a b: a [16,16] and b [16,8] in the fragments of mma.sync.m16n8k16.
inline void
rt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
            int line = __builtin_LINE())
{
    vgpu::mma_16x8x16(vgpu::W_MMA_BF16, d, a, b, line);
}
inline void
rt_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2],
           int line = __builtin_LINE())
{
    vgpu::mma_16x8x16(vgpu::W_MMA_F16, d, a, b, line);
}
inline void
rt_ldmatrix4(uint32_t r[4], const void *row, int line = __builtin_LINE())
{
    vgpu::ldmatrix4(r, row, false, line);
}
inline void
rt_ldmatrix4_t(uint32_t r[4], const void *row, int line = __builtin_LINE())
{
    vgpu::ldmatrix4(r, row, true, line);
}
inline void
rt_copy_async16(void *shared, const void *global, bool valid)
{
    vgpu::copy_async(shared, global, 16, valid);
}
inline void
rt_copy_commit()
{
    vgpu::copy_commit();
}
template <int N>
inline void
rt_copy_wait()
{
    vgpu::copy_wait(N);
}
