// vgpu.h -- what code compiled for the virtual GPU calls: launches and collectives.
//
// The virtual GPU runs CUDA sources that the host compiler has compiled as C++. A launch is an
// operation of a stream, kept until the scheduler runs it: then the kernel's threads run one
// after another on fibers, in an order that a seed decides. vgpu_device.h builds the words of
// CUDA's kernels on the functions below; the rest of the rig is behind vgpu_int.h.
#pragma once
#include <functional>
#include <math.h>
#include <memory>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef VGPU_REAL_HEADERS // types come from NVIDIA's headers
#include <cuda_runtime_api.h>
#include <vector_types.h>
#else
#include "vgpu_types.h"
#endif

namespace vgpu {

// What an operation that is no kernel reads or writes: pieces of `bytes`, `count` of them
// `stride` bytes apart, and that `outer` times.
struct Access {
    const void *at;
    size_t bytes, count, stride, outer, outer_stride;
    bool write;
};

// An operation of a stream. step() is called until it returns true. touches: all that it
// accesses; empty: the race detector finds out.
struct Op {
    const char *name = "?", *file = "";
    int line = 0;
    std::function<bool()> step;
    std::vector<Access> touches;
};
cudaError_t enqueue(cudaStream_t, Op);

typedef void (*KernelFn)(const void *args);
void run_grid(const char *name, dim3 grid, dim3 block, size_t shared, KernelFn,
              const void *args);
// The limits of the hardware; `kernel` finds what cudaFuncSetAttribute said.
void check_launch(const char *name, dim3 grid, dim3 block, size_t shared,
                  const void *kernel);
// Argument i of a kernel: a pointer must point to memory that the GPU sees.
void check_pointer(const char *kernel, int i, const void *);
// Looks for pointers to host memory in a struct that goes by value.
void check_struct(const char *kernel, int i, const void *, size_t bytes);
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

template <class P>
inline void
check_arg(const char *kernel, int i, const P &p)
{
    if constexpr (std::is_pointer<P>::value)
        check_pointer(kernel, i, (const void *)p);
    else if constexpr (std::is_class<P>::value && sizeof(P) >= sizeof(void *)) {
        P copy = p;
        __builtin_clear_padding(&copy); // it may hold what was there before
        check_struct(kernel, i, &copy, sizeof copy);
    }
}

// A kernel with its arguments.
template <class K, class T> struct Closure {
    K kernel;
    T args;
    static void call(const void *p)
    {
        const Closure *c = (const Closure *)p;
        std::apply(c->kernel, c->args);
    }
};

template <class K, class T>
cudaError_t
launch_closure(Op op, const void *key, K kernel, T args, dim3 grid, dim3 block,
               size_t shared, cudaStream_t stream)
{
    typedef Closure<K, T> C;
    auto c = std::make_shared<C>(C{kernel, std::move(args)});
    const char *name = op.name;
    check_launch(name, grid, block, shared, key);
    int i = 0;
    std::apply([&](auto &...x) { (check_arg(name, i++, x), ...); }, c->args);
    (void)i;
    op.step = [=] {
        run_grid(name, grid, block, shared, &C::call, c.get());
        return true;
    };
    return enqueue(stream, std::move(op));
}

// Functions: arguments are converted to the parameters' types before they are copied.
template <class... P, class... A>
cudaError_t
launch(Op op, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
       cudaStream_t stream, A &&...args)
{
    static_assert(sizeof...(P) == sizeof...(A), "wrong number of kernel arguments");
    typedef std::tuple<std::decay_t<P>...> T;
    return launch_closure(std::move(op), (const void *)kernel, kernel,
                          T(static_cast<P>(args)...), grid, block, shared, stream);
}

// Lambdas and other objects that can be called.
template <class F, class... A, class = std::enable_if_t<std::is_class<F>::value>>
cudaError_t
launch(Op op, F kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
       A &&...args)
{
    return launch_closure(std::move(op), (const void *)nullptr, kernel,
                          std::tuple<std::decay_t<A>...>(args...), grid, block, shared,
                          stream);
}

inline Op
launch_op(const char *name, const char *file, int line)
{
    Op op;
    op.name = name;
    op.file = file;
    op.line = line;
    return op;
}

// ---- called by kernels ----

// What the lanes of a warp can meet for. Lanes that meet in different ones are an error.
enum WarpOp { W_SYNC = 1, W_SHUFFLE, W_VOTE, W_MMA_BF16, W_MMA_F16, W_LDMATRIX };

extern int g_lane; // of the running thread
// line: of the source, that all who meet must have in common.
void block_barrier(int line);
// Waits for all lanes of mask; then complete() is called once with what each of them brought.
typedef void (*Complete)(void **brought, unsigned mask);
void warp_meet(unsigned mask, int op, void *brought, Complete complete, int line);
unsigned active_mask();
void *dynamic_shared();
// A block's static shared memory is filled before the first of its threads declares some.
void static_shared();
// Copies of cp.async take place as late as the waits allow.
void copy_async(void *to, const void *from, int bytes, bool valid);
void copy_commit();
void copy_wait(int newest_left);
void mma_16x8x16(WarpOp type, float *d, const uint32_t *a, const uint32_t *b, int line);
void ldmatrix4(uint32_t *r, const void *row, bool transposed, int line);

} // namespace vgpu
