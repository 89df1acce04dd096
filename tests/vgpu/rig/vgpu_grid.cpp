// vgpu_grid.cpp -- launches: the limits of the hardware, shared memory, the order of blocks.
//
// Shared memory is NaN when a block begins, so that no block sees what another has left. What lies
// behind dynamic shared memory is a canary. Static shared memory is what the program has of
// thread-local variables without an initial value: so no other code may have such ones.
#include "vgpu_int.h"
#include <link.h>
#include <map>
#include <numeric>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace vgpu {

// An H100 has these.
enum : size_t {
    SHARED_DEFAULT = 48 * 1024, // more only after cudaFuncSetAttribute
    CANARY_BYTES = 256
};
enum : unsigned {
    THREADS_MOST = 1024,
    BLOCK_Z_MOST = 64,
    GRID_X_MOST = 0x7fffffff,
    GRID_YZ_MOST = 65535
};
enum { CANARY = 0xa5 };

static unsigned char shared_memory[SHARED_MOST + CANARY_BYTES]
    __attribute__((aligned(1024)));
static size_t shared_bytes;
static bool static_filled;
static std::map<const void *, size_t> shared_allowed;

struct Span {
    char *low, *high;
};

static int
find_static(dl_phdr_info *info, size_t, void *found)
{
    Span *span = (Span *)found;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &h = info->dlpi_phdr[i];
        if (h.p_type != PT_TLS || !info->dlpi_tls_data)
            continue;
        span->low = (char *)info->dlpi_tls_data + h.p_filesz;
        span->high = (char *)info->dlpi_tls_data + h.p_memsz;
    }
    return 1; // the program itself comes first
}

// Of this thread of the host. The variable has an initial value, and so lies outside.
static const Span &
static_span()
{
    static __thread Span span = {(char *)1, nullptr};
    if (span.low == (char *)1) {
        span.low = nullptr;
        dl_iterate_phdr(find_static, &span);
    }
    return span;
}

void *
dynamic_shared()
{
    return shared_memory;
}

void
static_shared()
{
    if (static_filled)
        return;
    static_filled = true;
    const Span &s = static_span();
    if (settings.poison && s.low)
        memset(s.low, 0xff, (size_t)(s.high - s.low));
}

bool
in_shared(const void *p, size_t bytes)
{
    const char *c = (const char *)p, *dynamic = (const char *)shared_memory;
    const Span &s = static_span();
    return (c >= dynamic && c + bytes <= dynamic + shared_bytes) ||
           (c >= s.low && c + bytes <= s.high);
}

bool
allow_shared(const void *kernel, int bytes)
{
    if (bytes < 0 || (size_t)bytes > settings.shared)
        return false;
    shared_allowed[kernel] = (size_t)bytes;
    return true;
}

void
check_launch(const char *name, dim3 grid, dim3 block, size_t shared, const void *kernel)
{
    auto said = shared_allowed.find(kernel);
    size_t room = said == shared_allowed.end()
                      ? (size_t)SHARED_DEFAULT
                      : std::max<size_t>(SHARED_DEFAULT, said->second);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > THREADS_MOST || block.z > BLOCK_Z_MOST)
        die("launch of %s: a block of (%u,%u,%u) threads; at most %u", name, block.x,
            block.y, block.z, (unsigned)THREADS_MOST);
    if (!grid.x || !grid.y || !grid.z || grid.x > GRID_X_MOST ||
        grid.y > GRID_YZ_MOST || grid.z > GRID_YZ_MOST)
        die("launch of %s: a grid of (%u,%u,%u) blocks", name, grid.x, grid.y, grid.z);
    if (shared > room)
        die("launch of %s: %zu bytes of dynamic shared memory, %zu are allowed%s", name,
            shared, room,
            room < SHARED_MOST ? "; cudaFuncSetAttribute allows more" : "");
}

static void
begin_shared(size_t bytes)
{
    shared_bytes = bytes;
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(shared_memory + bytes, sizeof shared_memory - bytes);
#else
    memset(shared_memory + bytes, CANARY, CANARY_BYTES);
#endif
}

static void
end_shared()
{
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(shared_memory, sizeof shared_memory);
#endif
    shared_bytes = 0;
}

static void
check_canary()
{
#ifndef __SANITIZE_ADDRESS__
    for (size_t i = 0; i < CANARY_BYTES; i++)
        if (shared_memory[shared_bytes + i] != CANARY)
            die("a write %zu bytes behind the end of dynamic shared memory (%zu bytes)",
                i, shared_bytes);
#endif
}

// Block number i of the order is (i * step + first) % n.
static void
block_order(uint64_t n, uint64_t *step, uint64_t *first)
{
    *step = 1;
    *first = 0;
    if (settings.order == HIGHEST_FIRST)
        *step = *first = n - 1;
    if (settings.order != RANDOM_WARPS || n < 3)
        return;
    *step = thread_random.next() % n | 1;
    while (std::gcd(*step, n) != 1)
        *step += 2;
    *first = thread_random.next() % n;
}

void
run_grid(const char *name, dim3 grid, dim3 size, size_t shared, KernelFn kernel,
         const void *args)
{
    uint64_t n = (uint64_t)grid.x * grid.y * grid.z, step, first;
    Launch launch{name, kernel, args};
    stats.launches++;
    blockDim = size;
    gridDim = grid;
    begin_shared(shared);
    begin_blocks(&launch, size);
    block_order(n, &step, &first);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t b = (uint64_t)(((unsigned __int128)i * step + first) % n);
        blockIdx = uint3{(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                         (unsigned)(b / grid.x / grid.y)};
        static_filled = false;
        if (settings.poison && shared)
            memset(shared_memory, 0xff, shared);
#ifdef VGPU_TSAN
        static_shared(); // no thread's own doing
#endif
        run_block();
        check_canary();
    }
    begin_blocks(nullptr, size);
    end_shared();
}

} // namespace vgpu
