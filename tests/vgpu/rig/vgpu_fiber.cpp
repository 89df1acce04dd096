// vgpu_fiber.cpp -- stacks and the switch between them.
//
// A switch saves the six registers that a function must keep, and the stack pointer: 15 ns. (The
// C library's swapcontext makes a system call.) Stacks start at different offsets in a page, or
// the hot ends of all of them would fall into the same few cache sets; each has a guard page.
#include "vgpu_fiber.h"
#include "vgpu_int.h"
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "vgpu_switch is written for x86-64"
#endif

extern "C" void vgpu_switch(void **save, void *load);
asm(".text\n.globl vgpu_switch\n.type vgpu_switch,@function\nvgpu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size vgpu_switch,.-vgpu_switch\n");

#ifdef VGPU_TSAN
extern "C" {
void *__tsan_create_fiber(unsigned);
void *__tsan_get_current_fiber();
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_set_fiber_name(void *, const char *);
}
#endif

namespace vgpu {

#ifdef __SANITIZE_ADDRESS__
enum : size_t { STACK = 256 * 1024 }; // its frames are larger
#else
enum : size_t { STACK = 64 * 1024 };
#endif
enum { COLOURS = 15, COLOUR_BYTES = 256, SAVED_REGISTERS = 6 };

static Fiber *free_fibers;
static void *host_sp;

static Fiber *
new_fiber(void (*main)())
{
    static int made;
    Fiber *f = new Fiber();
    char *m = (char *)mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        die("no memory for the stacks of threads");
    mprotect(m, PAGE, PROT_NONE);
    f->low = m + PAGE;
    f->bytes = STACK;
    char *top = f->low + STACK - (size_t)(made++ % COLOURS) * COLOUR_BYTES;
    void **sp = (void **)((uintptr_t)top & ~(uintptr_t)15);
    *--sp = nullptr; // main() never returns; so the stack is aligned when it is entered
    *--sp = (void *)main;
    for (int i = 0; i < SAVED_REGISTERS; i++)
        *--sp = nullptr;
    f->sp = sp;
    return f;
}

Fiber *
take_fiber(void (*main)())
{
    Fiber *f = free_fibers;
    if (!f)
        return new_fiber(main);
    free_fibers = f->next;
    return f;
}

void
give_fiber(Fiber *f)
{
    f->next = free_fibers;
    free_fibers = f;
}

#ifdef VGPU_TSAN

char tsan_barrier, tsan_block, tsan_warp[32];
static void *tsan_thread[1024], *tsan_host;

void
tsan_begin(int threads)
{
    if (!tsan_host)
        tsan_host = __tsan_get_current_fiber();
    for (int i = 0; i < threads; i++)
        if (!tsan_thread[i]) {
            char name[32];
            snprintf(name, sizeof name, "cuda thread %d", i);
            tsan_thread[i] = __tsan_create_fiber(0);
            __tsan_set_fiber_name(tsan_thread[i], name);
        }
}

void
tsan_go(int thread)
{
    __tsan_switch_to_fiber(thread < 0 ? tsan_host : tsan_thread[thread], 1);
}

#endif

#ifdef __SANITIZE_ADDRESS__

void
begin_fiber()
{
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
}

static void
asan_start(void **fake, const Fiber *to)
{
    static void *host_low;
    static size_t host_bytes;
    if (!host_low) {
        pthread_attr_t a;
        pthread_getattr_np(pthread_self(), &a);
        pthread_attr_getstack(&a, &host_low, &host_bytes);
        pthread_attr_destroy(&a);
    }
    __sanitizer_start_switch_fiber(fake, to ? to->low : host_low,
                                   to ? to->bytes : host_bytes);
}

static void
asan_finish(void *fake)
{
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}

#else

void
begin_fiber()
{
}
static void
asan_start(void **, const Fiber *)
{
}
static void
asan_finish(void *)
{
}

#endif

void
switch_fiber(Fiber *from, Fiber *to, int thread)
{
    void *fake = nullptr;
    stats.switches++;
    (void)thread;
    TSAN_GO(to ? thread : -1);
    asan_start(&fake, to);
    vgpu_switch(from ? &from->sp : &host_sp, to ? to->sp : host_sp);
    asan_finish(fake);
}

} // namespace vgpu
