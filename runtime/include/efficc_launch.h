/* efficc_launch.h -- the only place with launches and inline PTX.
 *
 * Kernels are started by RT_LAUNCH, a plain function call, so that any C++ compiler can read the
 * files that use it: whoever compiles them without nvcc defines RT_LAUNCH and all that
 * follows it beforehand.
 */
#ifndef EFFICC_LAUNCH_H
#define EFFICC_LAUNCH_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* Ends the process with a message if e is an error: a failed launch or copy can't be mended. */
void rt_cuda_check(cudaError_t e, const char *what, const char *file, int line);
#define RT_CUDA(call) rt_cuda_check(call, #call, __FILE__, __LINE__)

#ifndef RT_LAUNCH

/* Enqueues kernel(args...) on the stream; failures end the process (rt_cuda_check). shared: bytes of
 * RT_DYNAMIC_SHARED. A kernel with commas in its name stands in parentheses. */
#define RT_LAUNCH(kernel, grid_, block_, shared_, stream_, ...)                   \
    do {                                                                          \
        cudaLaunchConfig_t config_ = {};                                          \
        config_.gridDim = (grid_);                                                \
        config_.blockDim = (block_);                                              \
        config_.dynamicSmemBytes = (shared_);                                     \
        config_.stream = (stream_);                                               \
        rt_cuda_check(cudaLaunchKernelEx(&config_, kernel, __VA_ARGS__), #kernel, \
                      __FILE__, __LINE__);                                        \
    } while (0)

/* T *name: the dynamic shared memory of the block, 128-byte aligned. */
#define RT_DYNAMIC_SHARED(T, name)                                       \
    extern __shared__ __align__(128) unsigned char rt_dynamic_shared_[]; \
    T *name = reinterpret_cast<T *>(rt_dynamic_shared_)

/* d [16,8] += a [16,16] b [16,8] by one warp; fragments as in the PTX ISA, mma.m16n8k16. */
static __device__ __forceinline__ void
rt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void
rt_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
 * _t: each transposed. */
static __device__ __forceinline__ void
rt_ldmatrix4(uint32_t r[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void
rt_ldmatrix4_t(uint32_t r[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* 16 bytes, both addresses 16-byte aligned; zeros where not valid. The copy is there after
 * rt_copy_wait() of its group and a barrier. */
static __device__ __forceinline__ void
rt_copy_async16(void *shared, const void *global, bool valid)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at),
                 "l"(global), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void
rt_copy_commit()
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Until at most N groups, the newest, are on their way. */
template <int N>
static __device__ __forceinline__ void
rt_copy_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

#endif
#endif
