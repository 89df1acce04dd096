// vgpu_stream.cpp -- queues of operations and the order in which they run.
//
// An operation that is issued runs when the policy or a synchronisation lets it, in any order that
// streams and events allow: late, out of step with other streams, or at once. With seed 0 all run
// in the order of issue, the reference.
//
// A collective has to wait for other ranks. It is insisted on for a while, as if everything else on
// this device were slow, before other streams run: otherwise the stream that communicates would
// always come last, and a wait that is missing on the other side would never show.
#include "vgpu_stream.h"
#include <sched.h>
#include <stdio.h>
#include <time.h>

namespace vgpu {

static std::vector<cudaStream_t> streams, live; // by id; those that are not destroyed
static Clock host_clock;
static uint64_t epoch = 1; // counts what the host issues
static Random random_order;
static const Task *running_task;
static cudaStream_t running_stream;

double
now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

Random &
order_random()
{
    return random_order;
}

bool
running()
{
    return running_task != nullptr;
}

Actor
current_actor()
{
    if (!running_task)
        return {HOST, epoch, "the host", 0, &host_clock};
    const Op &op = *running_task->op;
    return {running_stream->id, running_task->index, op.name, op.line,
            &running_task->clock};
}

Text
running_text()
{
    Text t;
    if (running_task)
        snprintf(t.text, sizeof t.text, "%.100s (stream %d, %.80s:%d)",
                 running_task->op->name, running_stream->id, running_task->op->file,
                 running_task->op->line);
    else
        snprintf(t.text, sizeof t.text, "the host");
    return t;
}

void
join(Clock &a, const Clock &b)
{
    for (const auto &x : b) {
        uint64_t &y = a[x.first];
        if (x.second > y)
            y = x.second;
    }
}

// ---- queues ----

cudaStream_t
new_stream(unsigned flags)
{
    cudaStream_t s = new CUstream_st();
    s->id = (int)streams.size();
    s->flags = flags;
    s->priority = random_order.unit();
    streams.push_back(s);
    live.push_back(s);
    return s;
}

void
drop_stream(cudaStream_t s)
{
    for (size_t i = 0; i < live.size(); i++)
        if (live[i] == s)
            live.erase(live.begin() + (long)i);
}

cudaStream_t
stream_of(cudaStream_t handle)
{
    init();
    if (streams.empty())
        new_stream(0); // the legacy stream
    return (uintptr_t)handle <= 1 ? streams[0] : handle;
}

const std::vector<cudaStream_t> &
live_streams()
{
    return live;
}

void
push_task(cudaStream_t s, Task t)
{
    t.index = ++s->issued;
    t.issued = epoch;
    if (settings.race) {
        join(s->clock, host_clock);
        s->clock[s->id] = t.index;
        s->clock[HOST] = epoch;
        t.clock = s->clock;
    }
    epoch++;
    s->queue.push_back(std::move(t));
}

void
push_wait(cudaStream_t s, int stream, uint64_t index, const Clock &clock)
{
    Task t;
    t.after.push_back({stream, index});
    join(s->clock, clock);
    push_task(s, std::move(t));
}

// Is there something to wait for? What has run already still is ordered, as clocks must know.
static bool
matters(const cudaStream_t s)
{
    return s->issued > (settings.race ? 0 : s->done);
}

void
order_with_legacy(cudaStream_t s)
{
    cudaStream_t legacy = streams[0];
    if (s->flags & cudaStreamNonBlocking)
        return;
    if (s != legacy) {
        if (matters(legacy))
            push_wait(s, legacy->id, legacy->issued, legacy->clock);
        return;
    }
    for (cudaStream_t t : live)
        if (t != legacy && !(t->flags & cudaStreamNonBlocking) && matters(t))
            push_wait(s, t->id, t->issued, t->clock);
}

cudaError_t
enqueue(cudaStream_t handle, Op op)
{
    cudaStream_t s = stream_of(handle);
    if (running_task)
        die("%s is issued from inside an operation", op.name);
    auto shared = std::make_shared<const Op>(std::move(op));
    if (s->capture) {
        capture_op(s, std::move(shared));
        return cudaSuccess;
    }
    order_with_legacy(s);
    Task t;
    t.op = std::move(shared);
    push_task(s, std::move(t));
    run_eagerly();
    return cudaSuccess;
}

// ---- running ----

static bool
ready(cudaStream_t s)
{
    if (s->queue.empty())
        return false;
    for (const auto &d : s->queue.front().after)
        if (streams[(size_t)d.first]->done < d.second)
            return false;
    return true;
}

static bool
step_op(cudaStream_t s, const Task &t, bool first)
{
    running_task = &t;
    running_stream = s;
    if (settings.race) {
        close_pages();
        begin_touches(*t.op, first);
    }
    bool done = t.op->step();
    running_task = nullptr;
    if (settings.race)
        close_pages();
    return done;
}

// The first task of the stream: true when it has finished.
static bool
run_head(cudaStream_t s)
{
    Task &t = s->queue.front();
    bool first = !t.started, done = true;
    if (running_task)
        die("a call that waits, from inside an operation");
    if (settings.trace && first && t.op)
        fprintf(stderr, "vgpu[%d]: stream %d task %llu: %s\n", settings.rank, s->id,
                (unsigned long long)t.index, t.op->name);
    t.started = true;
    if (t.op)
        done = step_op(s, t, first);
    if (done) {
        stats.operations += t.op != nullptr;
        s->done = t.index;
        s->queue.pop_front();
    }
    return done;
}

static void
rest(int tries)
{
    timespec t{0, 20000};
    if (tries > 20)
        nanosleep(&t, nullptr);
    else
        sched_yield();
}

static cudaStream_t
choose(const std::vector<cudaStream_t> &from)
{
    cudaStream_t best = from[0];
    switch (settings.policy) {
    case AS_ISSUED:
        for (cudaStream_t s : from)
            if (s->queue.front().issued < best->queue.front().issued)
                best = s;
        return best;
    case UNIFORM:
        return from[random_order.next() % from.size()];
    case PRIORITIES:
        if (random_order.next() % 12 == 0)
            from[random_order.next() % from.size()]->priority = random_order.unit();
        for (cudaStream_t s : from)
            if (s->priority > best->priority)
                best = s;
        return best;
    case NEWEST_STREAM:
        break;
    }
    return from.back();
}

// Only collectives that wait for other ranks are left.
static void
poll(const std::vector<cudaStream_t> &waiting)
{
    static int tries;
    bool any = false;
    for (cudaStream_t s : waiting)
        any |= run_head(s);
    tries = any ? 0 : tries + 1;
    rest(tries);
}

static double
patience()
{
    if (settings.policy == AS_ISSUED)
        return 5.0;
    return settings.policy == UNIFORM ? 0.002 * random_order.unit() : 0.02;
}

static void
insist(cudaStream_t chosen, const std::vector<cudaStream_t> &can_run)
{
    Task &t = chosen->queue.front();
    for (int tries = 0; !run_head(chosen); tries++) {
        if (!t.insist)
            t.insist = now() + patience();
        if (now() > t.insist) {
            t.insist = -1;
            for (cudaStream_t s : can_run)
                if (s != chosen)
                    run_head(s);
            return;
        }
        rest(tries);
    }
}

bool
run_one()
{
    static std::vector<cudaStream_t> can_run, eager;
    bool fresh = false;
    can_run.clear();
    eager.clear();
    for (cudaStream_t s : live)
        if (ready(s))
            can_run.push_back(s);
    for (cudaStream_t s : can_run) {
        const Task &t = s->queue.front();
        fresh |= !t.started;
        if (!t.started || t.insist > 0)
            eager.push_back(s);
    }
    if (can_run.empty())
        return false;
    if (eager.empty() || (!fresh && can_run.size() > 1))
        poll(can_run);
    else
        insist(choose(eager), can_run);
    return true;
}

static bool
any_fresh()
{
    for (cudaStream_t s : live)
        if (ready(s) && !s->queue.front().started)
            return true;
    return false;
}

void
run_eagerly()
{
    if (settings.policy == AS_ISSUED && settings.eager >= 1) {
        while (any_fresh())
            run_one();
        return;
    }
    while (random_order.unit() < settings.eager)
        if (!run_one())
            break;
}

// ---- waiting ----

bool
is_done(int stream, uint64_t index)
{
    return streams[(size_t)stream]->done >= index;
}

void
wait_task(int stream, uint64_t index, const Clock &clock, const char *function)
{
    if (running_task)
        die("%s from inside an operation", function);
    while (!is_done(stream, index))
        if (!run_one())
            die("%s never returns: an event or a collective that it needs does not "
                "come",
                function);
    if (settings.race)
        join(host_clock, clock);
}

void
wait_stream(cudaStream_t s, const char *function)
{
    if (s->capture)
        die("%s on a stream that is being captured", function);
    wait_task(s->id, s->issued, s->clock, function);
}

void
wait_all(const char *function)
{
    forbid_in_capture(function);
    stream_of(nullptr);
    for (cudaStream_t s : live)
        wait_stream(s, function);
}

} // namespace vgpu
