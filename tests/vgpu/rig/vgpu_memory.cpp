// vgpu_memory.cpp -- allocations that show what is done to them.
//
// One range of addresses is reserved for the device, one for what the host sees, too. Every
// allocation ends at a page that can't be touched, and no address is given twice: so what runs over
// an end, or uses what was freed, faults, and the fault can be named. Memory starts as NaN. The
// bytes of its pages outside an allocation are canaries: a huge number, as sums would keep a NaN.
#include "vgpu_int.h"
#include <algorithm>
#include <map>
#include <stdio.h>
#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace vgpu {

enum : size_t { REGION = 1ull << 36 };
enum { POISON = 0xff, CANARY = 0xfb };
// The host's heaps and stacks are above it. Below it two small integers side by side may look like an
// address of the shadow that AddressSanitizer maps there.
enum : uintptr_t { LOWEST_HOST = 1ull << 45 };
// Of cudaMalloc; in the other kinds of memory, the end is as near to the guard as may be.
enum : size_t { DEVICE_ALIGN = 256, HOST_ALIGN = 16 };

static char *device_base, *device_top, *visible_base, *visible_top;
static std::map<char *, Allocation> allocations; // by page
static size_t live_bytes, peak_bytes;

void
open_memory()
{
    char *m = (char *)mmap(nullptr, 2 * REGION, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        die("no address space");
    device_base = m;
    device_top = m + PAGE;
    visible_base = m + REGION;
    visible_top = visible_base + PAGE;
}

bool
is_device(const void *p)
{
    return (const char *)p >= device_base && (const char *)p < device_base + REGION;
}

bool
is_visible(const void *p)
{
    return (const char *)p >= visible_base && (const char *)p < visible_base + REGION;
}

size_t
device_bytes()
{
    return live_bytes;
}

size_t
device_peak()
{
    return peak_bytes;
}

void *
allocate(size_t bytes, Kind kind)
{
    char *&top = kind == DEVICE ? device_top : visible_top;
    char *end = kind == DEVICE ? device_base + REGION : visible_base + REGION;
    size_t align = kind == DEVICE ? DEVICE_ALIGN : HOST_ALIGN;
    size_t room = (bytes + align - 1) / align * align;
    size_t pages = std::max<size_t>(1, (room + PAGE - 1) / PAGE);
    if (pages + 1 > (size_t)(end - top) / PAGE)
        return nullptr;
    if (kind == DEVICE &&
        (live_bytes > settings.memory || bytes > settings.memory - live_bytes))
        return nullptr;
    char *page = top, *p = page + pages * PAGE - room;
    if (mprotect(page, pages * PAGE, PROT_READ | PROT_WRITE))
        return nullptr;
    top += (pages + 1) * PAGE;
    memset(page, CANARY, (size_t)(p - page));
    memset(p + bytes, CANARY, room - bytes);
    if (settings.poison)
        memset(p, POISON, bytes);
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(page, p - page);
    ASAN_POISON_MEMORY_REGION(p + bytes, room - bytes);
#endif
    int number = (int)allocations.size() + 1;
    allocations[page] = Allocation{p, page, bytes, pages, kind, true, number};
    if (kind == DEVICE)
        live_bytes += bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
    if (settings.race)
        mprotect(page, pages * PAGE, PROT_NONE);
    return p;
}

// The last allocation that begins at or below p.
static const Allocation *
below(const void *p)
{
    auto it = allocations.upper_bound((char *)p);
    return it == allocations.begin() ? nullptr : &std::prev(it)->second;
}

const Allocation *
find_allocation(const void *p)
{
    const Allocation *a = below(p);
    return a && a->live && (const char *)p < a->page + a->pages * PAGE ? a : nullptr;
}

Text
describe(const void *p)
{
    Text t;
    const Allocation *a = is_device(p) || is_visible(p) ? below(p) : nullptr;
    if (!a) {
        snprintf(t.text, sizeof t.text, "%p, which is no memory of the GPU", p);
        return t;
    }
    static const char *const names[] = {"device", "pinned", "managed"};
    snprintf(t.text, sizeof t.text, "%p = %s allocation %d (%zu bytes%s) %+td", p,
             names[a->kind], a->number, a->bytes, a->live ? "" : ", freed",
             (const char *)p - a->at);
    return t;
}

static void
check_guard(const Allocation &a)
{
#ifndef __SANITIZE_ADDRESS__
    char *end = a.page + a.pages * PAGE;
    if (settings.race)
        mprotect(a.page, a.pages * PAGE, PROT_READ);
    for (char *c = a.page; c < end; c++) {
        if (c == a.at)
            c += a.bytes;
        if (c < end && *c != (char)CANARY)
            die("a write outside of allocation %d (%zu bytes), at %+td", a.number,
                a.bytes, c - a.at);
    }
    if (settings.race)
        mprotect(a.page, a.pages * PAGE, PROT_NONE);
#else
    (void)a;
#endif
}

void
check_guards()
{
    for (const auto &x : allocations)
        if (x.second.live)
            check_guard(x.second);
}

void
release(void *p, const char *function)
{
    if (!p)
        return;
    auto it = allocations.upper_bound((char *)p);
    Allocation *a = it == allocations.begin() ? nullptr : &std::prev(it)->second;
    if (!a || a->at != p || !a->live)
        die("%s: %p is no live allocation", function, p);
    check_guard(*a);
    a->live = false;
    if (a->kind == DEVICE)
        live_bytes -= a->bytes;
    forget_pages(*a);
    madvise(a->page, a->pages * PAGE, MADV_DONTNEED);
    mprotect(a->page, a->pages * PAGE, PROT_NONE);
}

// ---- arguments of kernels ----

void
check_pointer(const char *kernel, int i, const void *p)
{
    if (p && !is_device(p) && !is_visible(p))
        die("argument %d of %s is %p, no memory of the GPU", i, kernel, p);
}

// Is this the address of something that the host has mapped?
static bool
mapped(uintptr_t p)
{
    unsigned char state;
    bool user = p >= 0x10000 && p < 1ull << 47;
    return user && mincore((void *)(p / PAGE * PAGE), PAGE, &state) == 0;
}

void
check_struct(const char *kernel, int i, const void *p, size_t bytes)
{
    for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
        uintptr_t x;
        memcpy(&x, (const char *)p + at, sizeof x);
        if (x < LOWEST_HOST || is_device((void *)x) || is_visible((void *)x) ||
            !mapped(x))
            continue;
        die("argument %d of %s holds, at byte %zu, the host's address %p", i, kernel,
            at, (void *)x);
    }
}

} // namespace vgpu
