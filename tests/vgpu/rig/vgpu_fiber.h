// vgpu_fiber.h -- stacks on which the threads of a block run.
#pragma once
#include <stddef.h>

namespace vgpu {

struct Fiber {
    void *sp;
    char *low; // of its stack
    size_t bytes;
    Fiber *next; // in the list of free ones
};

// A fiber that will run main(), or a free one, which goes on where it gave itself back.
Fiber *take_fiber(void (*main)());
void give_fiber(Fiber *);
// Leaves `from` and goes on in another one, `to`; nullptr is the host. thread: that will run,
// for TSan.
void switch_fiber(Fiber *from, Fiber *to, int thread);
void begin_fiber(); // called first on a new stack

} // namespace vgpu

// Hooks for ThreadSanitizer: each CUDA thread is a fiber of its own for it, and only barriers
// and __syncwarp order their memory, so that it reports races with the lines of the source.
#ifdef VGPU_TSAN
extern "C" {
void __tsan_acquire(void *);
void __tsan_release(void *);
void __tsan_read_range(void *, long);
void __tsan_write_range(void *, long);
}
namespace vgpu {
extern char tsan_barrier, tsan_block, tsan_warp[32];
void tsan_begin(int threads);
void tsan_go(int thread); // of which code runs from here on; -1: the host
} // namespace vgpu
#define TSAN_ACQUIRE(x)  __tsan_acquire(x)
#define TSAN_RELEASE(x)  __tsan_release(x)
#define TSAN_READ(p, n)  __tsan_read_range((void *)(p), n)
#define TSAN_WRITE(p, n) __tsan_write_range((void *)(p), n)
#define TSAN_BEGIN(n)    vgpu::tsan_begin(n)
#define TSAN_GO(thread)  vgpu::tsan_go(thread)
#else
#define TSAN_ACQUIRE(x)  ((void)0)
#define TSAN_RELEASE(x)  ((void)0)
#define TSAN_READ(p, n)  ((void)0)
#define TSAN_WRITE(p, n) ((void)0)
#define TSAN_BEGIN(n)    ((void)0)
#define TSAN_GO(thread)  ((void)0)
#endif
