// vgpu_race.cpp -- VGPU_RACE=1: accesses of operations that no event orders.
//
// Each operation has a clock from the moment it is issued: of every stream, how many operations
// have finished before it starts, by what stream order, events and synchronisations promise. Memory
// is closed; an access faults, its page is noted for the operation that runs, and opened until it
// ends. Two accesses of overlapping bytes, one of them a write, of operations of which neither
// clock knows the other, are a race, in whatever order they happened to run. Copies, products and
// collectives say exactly which bytes they use; of a kernel whole pages are known, so buffers must
// not share pages. The host's accesses to memory that it shares with the GPU count, too; system
// calls on such memory can't be seen and fail with EFAULT.
#include "vgpu_int.h"
#include <algorithm>
#include <stdio.h>
#include <sys/mman.h>
#include <unordered_map>

namespace vgpu {

enum { REPORTS = 20 };

struct Note { // bytes [low, high) of a page
    int stream, line;
    uint64_t index;
    const char *name;
    uint16_t low, high;
    bool write;
};
struct Page {
    std::vector<Note> notes;
    bool writable = false, open = false;
};
struct Range {
    uintptr_t low, high;
};

static std::unordered_map<uintptr_t, Page> pages;
static std::vector<Range> opened;
static int races;

int
race_count()
{
    return races;
}

static bool
ordered(const Note &n, const Actor &a)
{
    if (n.stream == a.stream)
        return true;
    auto it = a.before->find(n.stream);
    return it != a.before->end() && it->second >= n.index;
}

static void
report(const Note &n, const Actor &a, bool write, uintptr_t page)
{
    if (races++ >= REPORTS)
        return;
    fprintf(
        stderr,
        "vgpu[%d]: RACE: %s (stream %d, operation %llu, line %d) %s and %s (stream %d, "
        "operation %llu, line %d) %s, and nothing orders them; bytes %d to %d of page "
        "%s\n",
        settings.rank, n.name, n.stream, (unsigned long long)n.index, n.line,
        n.write ? "writes" : "reads", a.name, a.stream, (unsigned long long)a.index,
        a.line, write ? "writes" : "reads", n.low, n.high, describe((void *)page).text);
}

static void
add_note(const Actor &a, uintptr_t page, size_t low, size_t high, bool write)
{
    std::vector<Note> &notes = pages[page].notes;
    size_t kept = 0;
    for (const Note &n : notes) {
        bool apart = n.high <= low || high <= n.low;
        if (!apart && (n.write || write) && !ordered(n, a))
            report(n, a, write, page);
        // A later access that is ordered behind this one says all that it does.
        bool covered = low <= n.low && n.high <= high && (write || !n.write);
        if (!(covered && (write || n.stream == a.stream)))
            notes[kept++] = n;
    }
    notes.resize(kept);
    notes.push_back(
        {a.stream, a.line, a.index, a.name, (uint16_t)low, (uint16_t)high, write});
}

static void
add_range(const Actor &a, uintptr_t low, uintptr_t high, bool write)
{
    while (low < high) {
        uintptr_t page = low / PAGE * PAGE,
                  end = std::min<uintptr_t>(high, page + PAGE);
        add_note(a, page, low - page, end - page, write);
        low = end;
    }
}

// The pages are writable until close_pages().
static void
open_range(uintptr_t low, uintptr_t high)
{
    low = low / PAGE * PAGE;
    high = (high + PAGE - 1) / PAGE * PAGE;
    for (uintptr_t p = low; p < high; p += PAGE)
        pages[p].open = pages[p].writable = true;
    mprotect((void *)low, high - low, PROT_READ | PROT_WRITE);
    opened.push_back({low, high});
}

void
begin_touches(const Op &op, bool first)
{
    Actor a = current_actor();
    for (const Access &t : op.touches) {
        if (!t.bytes || !t.count || (!is_device(t.at) && !is_visible(t.at)))
            continue;
        uintptr_t at = (uintptr_t)t.at;
        uintptr_t last =
            at + (t.outer - 1) * t.outer_stride + (t.count - 1) * t.stride + t.bytes;
        if (!find_allocation((void *)(last - 1)))
            continue; // it will fault
        open_range(at, last);
        bool solid = t.count == 1 || t.stride == t.bytes;
        for (size_t o = 0; first && o < t.outer; o++)
            for (size_t i = 0; i < (solid ? 1 : t.count); i++) {
                uintptr_t low = at + o * t.outer_stride + i * t.stride;
                add_range(a, low, low + (solid ? t.bytes * t.count : t.bytes), t.write);
            }
    }
}

bool
race_fault(char *at, bool write)
{
    if (!settings.race || !(is_device(at) || is_visible(at)) || !find_allocation(at))
        return false;
    if (!running() && !is_visible(at))
        return false;
    uintptr_t page = (uintptr_t)at / PAGE * PAGE;
    Page &p = pages[page];
    add_note(current_actor(), page, 0, PAGE, write);
    if (!p.open)
        opened.push_back({page, page + PAGE});
    p.open = true;
    p.writable |= write;
    mprotect((void *)page, PAGE, p.writable ? PROT_READ | PROT_WRITE : PROT_READ);
    stats.faults++;
    return true;
}

void
close_pages()
{
    for (const Range &r : opened) {
        mprotect((void *)r.low, r.high - r.low, PROT_NONE);
        for (uintptr_t p = r.low; p < r.high; p += PAGE)
            pages[p].open = pages[p].writable = false;
    }
    opened.clear();
}

void
forget_pages(const Allocation &a)
{
    for (size_t i = 0; i < a.pages; i++)
        pages.erase((uintptr_t)a.page + i * PAGE);
    auto inside = [&](const Range &r) {
        return r.low >= (uintptr_t)a.page && r.low < (uintptr_t)a.page + a.pages * PAGE;
    };
    opened.erase(std::remove_if(opened.begin(), opened.end(), inside), opened.end());
}

} // namespace vgpu
