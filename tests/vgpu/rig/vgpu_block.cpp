// vgpu_block.cpp -- runs the threads of one block, in an order that is legal and unkind.
//
// All threads run on the host's one thread. A fiber runs a CUDA thread to its end and then starts
// the next one, so that a kernel without barriers never switches stacks. A thread that has to wait
// leaves its fiber; whoever comes next runs on another. Ready lanes are bit masks, one a warp.
//
// The order decides what a missing barrier shows: a warp that runs as far as it can before any
// other has started sees what they have not written yet. Kind orders (all in turn) hide it.
#include "vgpu_fiber.h"
#include "vgpu_int.h"
#include <stdio.h>
#include <stdlib.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace vgpu {

enum { LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / LANES };
enum State : uint8_t { NEW, READY, AT_BARRIER, AT_MEETING, DONE };

struct Thread {
    uint3 id;
    Fiber *fiber; // on which it has started
    State state;
    uint8_t lane, warp;
    int line; // of the barrier where it waits
};
struct Meeting { // of lanes that wait for each other
    unsigned mask, arrived;
    int op, line;
    Complete complete;
    void *brought[LANES];
};
struct Warp {
    unsigned lanes, exited, ready;
    int meetings;
    Meeting meeting[LANES];
};

static struct {
    const Launch *launch;
    Thread thread[MAX_THREADS];
    Warp warp[MAX_WARPS];
    unsigned ready; // warps with ready lanes
    uint8_t priority[MAX_WARPS];
    int warps, preferred; // -1: none
    int threads, live, at_barrier, current;
} block;

static Fiber *current_fiber;
int g_lane;
Stats stats;
Random thread_random;

int
current_thread()
{
    return block.current;
}

Text
where()
{
    Text w;
    if (block.launch)
        snprintf(w.text, sizeof w.text,
                 "kernel %.120s block (%u,%u,%u) thread (%u,%u,%u)", block.launch->name,
                 blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
                 threadIdx.z);
    else
        snprintf(w.text, sizeof w.text, "no kernel runs");
    return w;
}

// ---- order ----

static void
set_current(int t)
{
    block.current = t;
    threadIdx = block.thread[t].id;
    g_lane = block.thread[t].lane;
}

static void
make_ready(int t)
{
    int w = t / LANES;
    block.thread[t].state = READY;
    block.warp[w].ready |= 1u << t % LANES;
    block.ready |= 1u << w;
}

static int
lowest(unsigned mask)
{
    return __builtin_ctz(mask);
}

static int
highest(unsigned mask)
{
    return 31 - __builtin_clz(mask);
}

static int
random_warp(uint64_t r)
{
    if (!(r & 63)) {
        int i = (int)((r >> 8) % (unsigned)block.warps);
        int j = (int)((r >> 24) % (unsigned)block.warps);
        std::swap(block.priority[i], block.priority[j]);
        block.preferred = -1;
    }
    if (block.preferred >= 0 && block.ready >> block.preferred & 1)
        return block.preferred;
    int i = 0;
    while (!(block.ready >> block.priority[i] & 1))
        i++;
    return block.preferred = block.priority[i];
}

static int
lockstep_warp()
{
    unsigned later = block.ready & ~((2u << block.preferred) - 1);
    return block.preferred = lowest(later ? later : block.ready);
}

// Takes the thread that runs next out of the ready ones; -1: there is none.
static inline int
take_ready()
{
    if (!block.ready)
        return -1;
    int w, lane;
    if (settings.order == RANDOM_WARPS) {
        uint64_t r = thread_random.next();
        w = random_warp(r);
        unsigned m = block.warp[w].ready, turn = r >> 40 & 31;
        unsigned turned = turn ? m >> turn | m << (LANES - turn) : m;
        lane = (lowest(turned) + (int)turn) % LANES;
    } else {
        w = settings.order == LOWEST_FIRST    ? lowest(block.ready)
            : settings.order == HIGHEST_FIRST ? highest(block.ready)
                                              : lockstep_warp();
        unsigned m = block.warp[w].ready;
        lane = settings.order == HIGHEST_FIRST ? highest(m) : lowest(m);
    }
    block.warp[w].ready &= ~(1u << lane);
    if (!block.warp[w].ready)
        block.ready &= ~(1u << w);
    return w * LANES + lane;
}

// ---- waiting ----

[[noreturn]] static void
report_stuck()
{
    int count[DONE + 1] = {};
    for (int t = 0; t < block.threads; t++)
        count[block.thread[t].state]++;
    fprintf(stderr,
            "vgpu: %d threads at __syncthreads(), %d at a warp operation, %d done\n",
            count[AT_BARRIER], count[AT_MEETING], count[DONE]);
    for (int w = 0; w < block.warps; w++)
        for (int m = 0; m < block.warp[w].meetings; m++) {
            const Meeting &p = block.warp[w].meeting[m];
            fprintf(stderr, "vgpu: warp %d, line %d: mask %08x, arrived %08x\n", w,
                    p.line, p.mask, p.arrived);
        }
    die("deadlock: a barrier that not all threads reach");
}

static void thread_main();

// The current thread can't go on: another one does. Returns when it is its turn again.
static void
wait_turn()
{
    int t = take_ready();
    if (t < 0)
        report_stuck();
    Thread &next = block.thread[t];
    Fiber *me = current_fiber;
    if (t == block.current)
        return;
    if (!next.fiber)
        next.fiber = take_fiber(thread_main);
    set_current(t);
    current_fiber = next.fiber;
    switch_fiber(me, next.fiber, t);
}

static void
release_barrier()
{
    int line = 0;
    for (int t = 0; t < block.threads; t++) {
        Thread &x = block.thread[t];
        if (x.state != AT_BARRIER)
            continue;
        if (line && line != x.line)
            die("threads of a block meet at different __syncthreads(), lines %d and %d",
                line, x.line);
        line = x.line;
        make_ready(t);
    }
    block.at_barrier = 0;
}

void
block_barrier(int line)
{
    Thread &t = block.thread[block.current];
    t.line = line;
    t.state = AT_BARRIER;
    TSAN_RELEASE(&tsan_barrier);
    if (++block.at_barrier == block.live)
        release_barrier(); // and all of them run in a new order
    wait_turn();
    TSAN_ACQUIRE(&tsan_barrier);
}

static bool
complete(const Meeting &m, const Warp &w)
{
    return !(m.mask & ~(m.arrived | w.exited));
}

static void
finish_meeting(int warp, int m)
{
    Warp &w = block.warp[warp];
    Meeting &p = w.meeting[m];
    p.complete(p.brought, p.arrived);
    for (int l = 0; l < LANES; l++) {
        int t = warp * LANES + l;
        if (p.arrived >> l & 1 && block.thread[t].state == AT_MEETING)
            make_ready(t);
    }
    if (m != --w.meetings)
        w.meeting[m] = w.meeting[w.meetings];
}

// The meeting that lane `me` comes to; begins it when it is the first.
static int
join_meeting(Warp &w, unsigned mask, unsigned me, int op, int line)
{
    int m = 0;
    while (m < w.meetings && !(w.meeting[m].mask & (me | mask)))
        m++;
    Meeting &p = w.meeting[m];
    if (m == w.meetings) {
        w.meetings++;
        p.mask = mask;
        p.arrived = 0;
        p.op = op;
        p.line = line;
        return m;
    }
    if (p.mask != mask || p.op != op || p.line != line)
        die("lanes of a warp meet in different warp operations, lines %d and %d (masks "
            "%08x "
            "and %08x)",
            p.line, line, p.mask, mask);
    return m;
}

void
warp_meet(unsigned mask, int op, void *brought, Complete done, int line)
{
    Thread &t = block.thread[block.current];
    Warp &w = block.warp[t.warp];
    unsigned me = 1u << t.lane;
    stats.warp_ops++;
    if (!(mask & me))
        die("line %d: lane %d is not in the mask %08x of its warp operation", line,
            t.lane, mask);
    mask &= w.lanes;
    int m = join_meeting(w, mask, me, op, line);
    Meeting &p = w.meeting[m];
    p.complete = done;
    p.brought[t.lane] = brought;
    p.arrived |= me;
    if (op == W_SYNC)
        TSAN_RELEASE(&tsan_warp[t.warp]);
    if (complete(p, w)) {
        finish_meeting(t.warp, m); // t itself goes on
    } else {
        t.state = AT_MEETING;
        wait_turn();
    }
    if (op == W_SYNC)
        TSAN_ACQUIRE(&tsan_warp[t.warp]);
}

unsigned
active_mask()
{
    const Warp &w = block.warp[block.thread[block.current].warp];
    return w.lanes & ~w.exited;
}

// ---- life of a thread ----

static void
end_thread()
{
    Thread &t = block.thread[block.current];
    Warp &w = block.warp[t.warp];
    t.state = DONE;
    drop_copies(block.current);
    w.exited |= 1u << t.lane;
    block.live--;
    for (int m = w.meetings - 1; m >= 0; m--)
        if (complete(w.meeting[m], w))
            finish_meeting(t.warp, m);
    if (block.at_barrier && block.at_barrier == block.live)
        release_barrier();
}

// What a fiber does: it runs its thread, then threads that have not started, on the same stack;
// where a thread waits on another stack, it goes there and becomes free.
static void
thread_main()
{
    begin_fiber();
    for (;;) {
        TSAN_ACQUIRE(&tsan_block);
        block.launch->kernel(block.launch->args);
        TSAN_RELEASE(&tsan_block);
        end_thread();
        Fiber *me = current_fiber;
        int t = take_ready();
        if (t >= 0 && !block.thread[t].fiber) {
            set_current(t);
            block.thread[t].fiber = me;
            TSAN_GO(t);
            continue;
        }
        if (t < 0 && block.live)
            report_stuck();
        Fiber *next = t < 0 ? nullptr : block.thread[t].fiber;
        if (next)
            set_current(t);
        give_fiber(me);
        current_fiber = next;
        switch_fiber(me, next, t);
    }
}

static void
reset_warps()
{
    for (int w = 0; w < block.warps; w++) {
        int left = block.threads - w * LANES;
        unsigned lanes = left >= LANES ? 0xffffffffu : (1u << left) - 1;
        Warp &x = block.warp[w];
        x.lanes = x.ready = lanes;
        x.exited = 0;
        x.meetings = 0;
        block.ready |= 1u << w;
        block.priority[w] = (uint8_t)w;
    }
    if (settings.order == RANDOM_WARPS)
        for (int w = block.warps - 1; w > 0; w--) {
            unsigned other = (unsigned)(thread_random.next() >> 20) % (unsigned)(w + 1);
            std::swap(block.priority[w], block.priority[other]);
        }
}

void
begin_blocks(const Launch *launch, dim3 size)
{
    block.launch = launch;
    if (!launch)
        return;
    block.threads = (int)(size.x * size.y * size.z);
    block.warps = (block.threads + LANES - 1) / LANES;
    TSAN_BEGIN(block.threads);
    for (int i = 0; i < block.threads; i++) {
        Thread &t = block.thread[i];
        unsigned n = (unsigned)i;
        t.id = uint3{n % size.x, n / size.x % size.y, n / size.x / size.y};
        t.lane = (uint8_t)(i % LANES);
        t.warp = (uint8_t)(i / LANES);
    }
}

void
run_block()
{
    block.live = block.threads;
    block.at_barrier = 0;
    block.ready = 0;
    block.preferred = settings.order == LOCKSTEP ? MAX_WARPS - 1 : -1;
    reset_warps();
    for (int t = 0; t < block.threads; t++) {
        block.thread[t].fiber = nullptr;
        block.thread[t].state = NEW;
    }
    TSAN_RELEASE(&tsan_block);
    Fiber *f = take_fiber(thread_main);
    int t = take_ready();
    block.thread[t].fiber = f;
    set_current(t);
    current_fiber = f;
    switch_fiber(nullptr, f, t);
    TSAN_ACQUIRE(&tsan_block);
    stats.threads += (uint64_t)block.threads;
}

} // namespace vgpu
