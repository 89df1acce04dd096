// vgpu: runtime API: memory, streams, events, graphs, scheduler, race detector
#include "vgpu_device.h"
#include "vgpu_int.h"
#include <sys/mman.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <time.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif
#include <deque>
#include <map>
#include <set>
#include <vector>
#include <unordered_map>

namespace vgpu {
int thread_order = 0; bool poison = true, strict_barriers = true, race = false;
static int policy = 0;            // 0 fifo/eager, 1 uniform random, 2 random priorities (PCT), 3 lazy newest-stream-first
static double eager = 1.0; static bool inited; static int rank_ = 0;
static uint64_t rs = 88172645463325252ull;
static uint64_t rnd() { rs ^= rs << 13; rs ^= rs >> 7; rs ^= rs << 17; return rs >> 11; }
static double rnd01() { return (double)(rnd() & 0xffffff) / 0x1000000; }

void die(const char *fmt, ...) {
    char w[256]; va_list ap; va_start(ap, fmt);
    fflush(stdout); fprintf(stderr, "vgpu[rank %d]: error: ", rank_); vfprintf(stderr, fmt, ap); fprintf(stderr, " [%s]\n", exec_where(w, sizeof w));
    va_end(ap); fflush(stderr); _exit(99);
}

// ---- memory: one reserved address range; each allocation ends at a guard page --------------
static const size_t PG = 4096, REGION = 1ull << 36;
static char *dev0, *dev_top, *dev_end, *pin0, *pin_top;      // device and pinned halves
struct Alloc { size_t n; char *page; size_t pages; bool live; int id; bool pinned; };
static std::map<char *, Alloc> allocs; static int alloc_id;
static size_t live_bytes, peak_bytes, align_ = 256;
static const int SLACK = 0xFB;              // -2.6e36 in float and bf16: shows when read, changes when written
bool is_device(const void *p) { return (char *)p >= dev0 && (char *)p < dev_end; }
bool is_pinned(const void *p) { return (char *)p >= pin0 && (char *)p < pin0 + REGION; }
static const Alloc *find(const void *p, char **base) {
    auto it = allocs.upper_bound((char *)p); if (it == allocs.begin()) return nullptr; --it;
    *base = it->first; return &it->second;
}
static void describe(const void *p, char *b, size_t n) {
    char *base; const Alloc *a = find(p, &base);
    if (!a || (!is_device(p) && !is_pinned(p))) { snprintf(b, n, "%p (not a device or pinned address)", p); return; }
    snprintf(b, n, "%p = allocation #%d (%zu bytes%s) %+td", p, a->id, a->n, a->live ? "" : ", freed", (char *)p - base);
}
static void *alloc(size_t n, bool pinned) {
    char *&top = pinned ? pin_top : dev_top;
    size_t r = (n + align_ - 1) / align_ * align_, pages = (r + PG - 1) / PG; if (!pages) pages = 1;
    char *pg = top; top += (pages + 1) * PG;
    if (top > (pinned ? pin0 + REGION : dev_end)) return nullptr;
    if (mprotect(pg, pages * PG, PROT_READ | PROT_WRITE)) return nullptr;
    char *p = pg + pages * PG - r;
    memset(pg, SLACK, pages * PG); if (poison) memset(p, 0xFF, n);   // NaN in float and bf16, -1 in int
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(pg, p - pg); ASAN_POISON_MEMORY_REGION(p + n, r - n);
#endif
    allocs[p] = Alloc{n, pg, pages, true, ++alloc_id, pinned};
    live_bytes += n; peak_bytes = std::max(peak_bytes, live_bytes);
    if (race) mprotect(pg, pages * PG, PROT_NONE);
    return p;
}
static void check_slack(char *p, Alloc &a) {
#ifndef __SANITIZE_ADDRESS__
    if (race) mprotect(a.page, a.pages * PG, PROT_READ);
    for (char *c = a.page; c < p; c++) if (*c != (char)SLACK) die("write before the start of allocation #%d (%zu bytes) at %+td", a.id, a.n, c - p);
    for (char *c = p + a.n; c < a.page + a.pages * PG; c++) if (*c != (char)SLACK) die("write past the end of allocation #%d (%zu bytes) at +%td", a.id, a.n, c - p);
    if (race) mprotect(a.page, a.pages * PG, PROT_NONE);
#endif
}
static void free_(void *p) {
    if (!p) return;
    auto it = allocs.find((char *)p); if (it == allocs.end() || !it->second.live) die("free of %p: not a live allocation", p);
    Alloc &a = it->second; check_slack((char *)p, a); a.live = false; live_bytes -= a.n;
    madvise(a.page, a.pages * PG, MADV_DONTNEED);
    mprotect(a.page, a.pages * PG, PROT_NONE);    // address never reused: use after free faults
}
static cudaError_t last; static std::map<const void *, size_t> opted;
static size_t memory_() { const char *v = getenv("VGPU_MEMORY"); return v ? strtoull(v, 0, 0) : (size_t)32 << 30; }
void check_launch(const char *n, dim3 g, dim3 b, size_t shared, const void *k) {
    auto it = opted.find(k); size_t room = it == opted.end() ? 48 * 1024 : std::max<size_t>(48 * 1024, it->second); unsigned long t = (unsigned long)b.x * b.y * b.z;
    if (!t || t > 1024 || b.z > 64) die("%s: block of (%u,%u,%u) threads", n, b.x, b.y, b.z);
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535) die("%s: grid of (%u,%u,%u) blocks", n, g.x, g.y, g.z);
    if (shared > room) die("%s: %zu bytes of dynamic shared memory, %zu allowed (cudaFuncSetAttribute)", n, shared, room);
}
void check_struct(const char *, int, const void *, size_t) {}
void check_pointer(const char *k, int i, const void *p) {
    if (p && !is_device(p) && !is_pinned(p)) die("kernel %s argument %d: %p is not a device pointer", k, i, p);
}

// ---- streams ------------------------------------------------------------------------------
typedef std::map<int, uint64_t> Clock;            // stream id -> number of ops known finished
static void join(Clock &a, const Clock &b) { for (auto &x : b) { uint64_t &y = a[x.first]; if (x.second > y) y = x.second; } }
struct QOp { Op op; uint64_t idx; Clock clk; std::vector<std::pair<int, uint64_t>> deps; bool started = false; bool nop = false; uint64_t g = 0; double until = 0; };   // g: issue order; until: how long to insist on a started collective
struct Node { int vs; Op op; std::vector<std::pair<int, int>> deps; };     // deps: (virtual stream, index in it)
}
struct CUgraph_st { std::vector<vgpu::Node> nodes; std::vector<int> count; };
struct CUgraphExec_st { CUgraph_st g; std::vector<cudaStream_t> vs; };
struct CUstream_st {
    int id; unsigned flags; std::deque<vgpu::QOp> q; uint64_t issued = 0, done = 0; vgpu::Clock clk; double prio; bool dead = false;
    CUgraph_st *cap = nullptr; int capvs = -1; std::vector<std::pair<int, int>> capdeps; bool cap_origin = false;
};
struct CUevent_st { int sid = -1; uint64_t idx = 0; vgpu::Clock clk; CUgraph_st *cap = nullptr; int vs = 0, ni = 0; double t = 0; };
namespace vgpu {
static std::vector<cudaStream_t> streams; static Clock host_clk; static uint64_t hepoch = 1; static QOp *cur_op; static cudaStream_t cur_stream; static bool running;
static uint64_t op_count; static const char *trace;

static cudaStream_t new_stream(unsigned flags) {
    cudaStream_t s = new CUstream_st(); s->id = (int)streams.size(); s->flags = flags; s->prio = rnd01(); streams.push_back(s); return s;
}
// ---- race detector: happens-before between operations, accesses seen by page faults -----------
struct Acc { int s; uint64_t idx; const char *name; int line; };
struct Page { Acc w{-2, 0, "", 0}; std::vector<Acc> r; char prot; };
static std::unordered_map<uintptr_t, Page> pages; static std::vector<uintptr_t> opened; static int races;
static bool before(const Acc &a, const Clock &c, int self) {
    if (a.s == -2 || a.s == self) return true;
    auto it = c.find(a.s); return it != c.end() && it->second >= a.idx;
}
static void report_race(const Acc &a, const Acc &b, const char *kind, uintptr_t pg) {
    if (races++ > 20) return;
    char d[128]; describe((void *)(pg + 4095), d, sizeof d);
    fprintf(stderr, "vgpu[rank %d]: RACE %s: %s (stream %d op %llu, line %d) and %s (stream %d op %llu, line %d) are not ordered; near %s\n", rank_, kind,
            a.name, a.s, (unsigned long long)a.idx, a.line, b.name, b.s, (unsigned long long)b.idx, b.line, d);
}
static void note(uintptr_t pg, bool wr) {         // current actor touches a page
    Page &P = pages[pg]; Acc me; const Clock *c;
    if (running) { me = Acc{cur_stream->id, cur_op->idx, cur_op->op.name, cur_op->op.line}; c = &cur_op->clk; }
    else { me = Acc{-1, hepoch, "host", 0}; c = &host_clk; }
    if (!before(P.w, *c, me.s)) report_race(P.w, me, wr ? "write/write" : "write/read", pg);
    if (wr) { for (auto &r : P.r) if (!before(r, *c, me.s)) report_race(r, me, "read/write", pg); P.r.clear(); P.w = me; }
    else { bool f = false; for (auto &r : P.r) if (r.s == me.s) { r = me; f = true; } if (!f) P.r.push_back(me); }
}
static void close_pages() { for (uintptr_t p : opened) { mprotect((void *)p, PG, PROT_NONE); pages[p].prot = 0; } opened.clear(); }

static void on_segv(int, siginfo_t *si, void *uc) {
    char *a = (char *)si->si_addr;
    if (race && (is_device(a) || is_pinned(a))) {
        uintptr_t pg = (uintptr_t)a & ~(PG - 1); const Alloc *al = nullptr;
        auto it = allocs.upper_bound(a);             // the allocation whose pages contain a (its first page may hold slack before the first byte)
        if (it != allocs.end() && a >= it->second.page) al = &it->second;
        else if (it != allocs.begin()) { --it; if (a < it->second.page + it->second.pages * PG) al = &it->second; }
        if (al && al->live && (running || is_pinned(a))) {
            bool wr = ((ucontext_t *)uc)->uc_mcontext.gregs[REG_ERR] & 2;
            note(pg, wr); Page &P = pages[pg];
            if (!P.prot) opened.push_back(pg);
            P.prot = wr ? 2 : 1; mprotect((void *)pg, PG, wr ? PROT_READ | PROT_WRITE : PROT_READ);
            stats.faults++; return;
        }
    }
    char d[160], w[200]; describe(a, d, sizeof d);
    if (!running) fprintf(stderr, "vgpu[rank %d]: host code accesses %s\n", rank_, d);
    else fprintf(stderr, "vgpu[rank %d]: illegal access to %s by operation '%s' (stream %d, %s:%d) [%s]\n", rank_, d, cur_op ? cur_op->op.name : "?", cur_stream ? cur_stream->id : -1,
            cur_op ? cur_op->op.file : "", cur_op ? cur_op->op.line : 0, exec_where(w, sizeof w));
    fflush(stderr); _exit(98);
}
static void report_stats() {
    for (auto &x : allocs) if (x.second.live) check_slack(x.first, x.second);
    if (getenv("VGPU_STATS")) fprintf(stderr, "vgpu[rank %d]: ops %llu launches %llu threads %llu switches %llu warp ops %llu mma %llu faults %llu peak device bytes %zu\n", rank_, (unsigned long long)op_count,
        (unsigned long long)stats.launches, (unsigned long long)stats.threads, (unsigned long long)stats.switches, (unsigned long long)stats.warpops, (unsigned long long)stats.mma, (unsigned long long)stats.faults, peak_bytes);
}
int race_count() { return races; }
static void init() {
    if (inited) return; inited = true;
    auto env = [](const char *n, const char *d) { const char *v = getenv(n); return v ? v : d; };
    rank_ = atoi(env("RANK", "0"));
    uint64_t seed = strtoull(env("VGPU_SEED", "0"), 0, 0);
    rs ^= (seed + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)rank_ * 7919; for (int i = 0; i < 8; i++) rnd();
    exec_seed(seed + 17);
    policy = seed == 0 ? 0 : 1 + (int)(seed % 3); eager = seed == 0 ? 1.0 : (seed % 5 == 0 ? 0.5 : seed % 5 == 1 ? 0.1 : 0.0);
    thread_order = seed == 0 ? 0 : seed % 4 == 0 ? 3 : seed % 4 == 3 ? 1 : 2; align_ = seed % 2 ? 256 : 16;
    if (getenv("VGPU_POLICY")) policy = atoi(getenv("VGPU_POLICY"));
    if (getenv("VGPU_EAGER")) eager = atof(getenv("VGPU_EAGER"));
    if (getenv("VGPU_ORDER")) thread_order = atoi(getenv("VGPU_ORDER"));
    poison = atoi(env("VGPU_POISON", "1")); race = atoi(env("VGPU_RACE", "0")); trace = getenv("VGPU_TRACE");
    char *m = (char *)mmap(nullptr, 2 * REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) die("cannot reserve address space");
    dev0 = dev_top = m + PG; dev_end = m + REGION; pin0 = pin_top = m + REGION + PG;
    static char alt[64 * 1024]; stack_t st{}; st.ss_sp = alt; st.ss_size = sizeof alt; sigaltstack(&st, nullptr);
    struct sigaction sa{}; sa.sa_sigaction = on_segv; sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER; sigaction(SIGSEGV, &sa, nullptr); sigaction(SIGBUS, &sa, nullptr);
    if (int n = atoi(env("VGPU_TIMEOUT", "0"))) { struct sigaction a{}; a.sa_handler = [](int) { die("time limit reached; a kernel or a collective does not finish"); }; a.sa_flags = SA_ONSTACK; sigaction(SIGALRM, &a, nullptr); alarm((unsigned)n); }
    new_stream(0);                                   // legacy default stream
    atexit(report_stats);
}
static cudaStream_t S(cudaStream_t s) { init(); return s ? s : streams[0]; }

static bool ready(cudaStream_t s) {
    if (s->q.empty()) return false;
    for (auto &d : s->q.front().deps) if (streams[d.first]->done < d.second) return false;
    return true;
}
static bool exec_head(cudaStream_t s) {               // true when the operation finished
    QOp &o = s->q.front(); if (running) die("runtime call from inside an operation");
    if (trace && !o.started && !o.nop) fprintf(stderr, "vgpu[%d] run stream %d op %llu %s\n", rank_, s->id, (unsigned long long)o.idx, o.op.name);
    o.started = true; bool fin = true;
    if (!o.nop) {
        if (race) close_pages();
        cur_op = &o; cur_stream = s; running = true; fin = o.op.step(); running = false;
        if (race) close_pages();
    }
    if (fin) { op_count += !o.nop; s->done = o.idx; s->q.pop_front(); }
    return fin;
}
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
// Run one operation (or poll); false: nothing can run. A collective that has to wait for other ranks is insisted on for a while, as if
// everything else on this device were slow, and only then are other streams looked at: without this the communication stream would
// always come last and a missing wait on the compute side would never show.
static bool run_one() {
    std::vector<cudaStream_t> c; bool fresh = false; double t = 0;
    for (auto s : streams) if (ready(s)) c.push_back(s);
    if (c.empty()) return false;
    std::vector<cudaStream_t> pick; for (auto s : c) if (!s->q.front().started || s->q.front().until > 0) pick.push_back(s);
    for (auto s : c) if (!s->q.front().started) fresh = true;
    if (pick.empty() || (!fresh && c.size() > 1)) {       // only waiting collectives are left
        bool any = false; for (auto s : c) any |= exec_head(s);
        static int spins; if (any) spins = 0; else if (++spins > 50) { timespec z{0, 50000}; nanosleep(&z, nullptr); } else sched_yield();
        return true;
    }
    cudaStream_t b = pick[0];
    if (policy == 0) { for (auto s : pick) if (s->q.front().g < b->q.front().g) b = s; }
    else if (policy == 1) b = pick[rnd() % pick.size()];
    else if (policy == 2) { if (rnd() % 12 == 0) pick[rnd() % pick.size()]->prio = rnd01(); for (auto s : pick) if (s->prio > b->prio) b = s; }
    else b = pick.back();
    QOp &o = b->q.front();
    if (!o.started) o.until = (t = now()) + (policy == 0 ? 5.0 : policy == 1 ? 0.002 * rnd01() : 0.1);
    for (int i = 0;; i++) {
        if (exec_head(b)) break;
        if (now() > o.until) { o.until = 0; for (auto s : c) if (s != b) exec_head(s); break; }
        if (i > 20) { timespec z{0, 20000}; nanosleep(&z, nullptr); } else sched_yield();
    }
    return true;
}
template <class F> static void run_until(F cond, const char *what) {
    while (!cond()) if (!run_one()) die("deadlock: %s can never finish (an event or collective is missing)", what);
}
static void push_op(cudaStream_t s, QOp o) {
    o.idx = ++s->issued;
    join(s->clk, host_clk); for (auto &d : o.deps) join(s->clk, streams[d.first]->clk);   // deps' clocks joined by callers more precisely
    s->clk[s->id] = o.idx; s->clk[-1] = o.g = hepoch++; o.clk = s->clk;
    s->q.push_back(std::move(o));
}
static void push_dep(cudaStream_t s, int sid, uint64_t idx, const Clock &clk) {
    QOp o; o.nop = true; o.op.name = "wait"; o.deps.push_back({sid, idx});
    o.idx = ++s->issued; join(s->clk, host_clk); join(s->clk, clk); s->clk[s->id] = o.idx; s->clk[-1] = o.g = hepoch++; o.clk = s->clk;
    s->q.push_back(std::move(o));
}
static void legacy_sync(cudaStream_t s) {              // implicit ordering with the legacy default stream
    if (s->id == 0) { for (auto t : streams) if (t->id && !(t->flags & cudaStreamNonBlocking) && t->issued > t->done) push_dep(s, t->id, t->issued, t->clk); }
    else if (!(s->flags & cudaStreamNonBlocking) && streams[0]->issued > streams[0]->done) push_dep(s, 0, streams[0]->issued, streams[0]->clk);
}
static void maybe_run() {
    if (policy == 0 && eager >= 1.0) { for (;;) { bool fresh = false; for (auto s : streams) if (ready(s) && !s->q.front().started) fresh = true; if (!fresh) return; run_one(); } }
    while (rnd01() < eager) if (!run_one()) break;
}
cudaError_t enqueue(cudaStream_t s0, Op op) {
    cudaStream_t s = S(s0);
    if (running) die("operation enqueued from inside an operation");
    if (s->cap) {
        Node n; n.vs = s->capvs; n.op = std::move(op); n.deps = s->capdeps; s->capdeps.clear(); s->cap->nodes.push_back(std::move(n)); s->cap->count[s->capvs]++;
        return cudaSuccess;
    }
    legacy_sync(s);
    QOp q; q.op = std::move(op); push_op(s, std::move(q)); maybe_run(); return cudaSuccess;
}
static void sync_stream(cudaStream_t s) {
    if (s->cap) die("synchronizing a stream that is being captured");
    uint64_t n = s->issued; run_until([&] { return s->done >= n; }, "cudaStreamSynchronize");
    join(host_clk, s->clk);
}
}  // namespace vgpu
using namespace vgpu;

extern "C" {
cudaError_t cudaGetDeviceCount(int *n) { init(); const char *v = getenv("VGPU_DEVICES"); *n = v ? atoi(v) : 8; return *n ? cudaSuccess : last = cudaErrorNoDevice; }
cudaError_t cudaSetDevice(int) { init(); return cudaSuccess; }
cudaError_t cudaGetDevice(int *d) { *d = 0; return cudaSuccess; }
cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = cudaSuccess; return e; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorNoDevice ? "no CUDA-capable device is detected" : e ? "unknown error" : "no error"; }
const char *cudaGetErrorName(cudaError_t e) { return e ? "vgpuError" : "cudaSuccess"; }
cudaError_t cudaMalloc(void **p, size_t n) { init(); *p = nullptr; if (n > memory_() - std::min(memory_(), live_bytes)) return last = cudaErrorMemoryAllocation; *p = alloc(n, false); return *p ? cudaSuccess : cudaErrorMemoryAllocation; }
cudaError_t cudaFree(void *p) { cudaDeviceSynchronize(); free_(p); return cudaSuccess; }
cudaError_t cudaMallocHost(void **p, size_t n) { init(); *p = alloc(n, true); return *p ? cudaSuccess : cudaErrorMemoryAllocation; }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) { return cudaMallocHost(p, n); }
cudaError_t cudaFreeHost(void *p) { cudaDeviceSynchronize(); free_(p); return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
    init(); Op o; o.name = k == cudaMemcpyHostToDevice ? "memcpy H2D" : k == cudaMemcpyDeviceToHost ? "memcpy D2H" : "memcpy";
    bool dd = is_device(d), sd = is_device(s);
    if ((k == cudaMemcpyHostToDevice && !(dd && !sd)) || (k == cudaMemcpyDeviceToHost && !(sd && !dd)) || (k == cudaMemcpyDeviceToDevice && !(dd && sd))) die("cudaMemcpyAsync: pointers do not match the copy kind %d", (int)k);
    if (!sd && !is_pinned(s)) {                        // pageable source: staged before the call returns
        auto b = std::make_shared<std::vector<char>>((const char *)s, (const char *)s + n); o.step = [=] { memcpy(d, b->data(), n); return true; };
    } else o.step = [=] { memmove(d, s, n); return true; };
    cudaError_t e = enqueue(st, o);
    if (!dd && !is_pinned(d) && !e) sync_stream(S(st));  // pageable destination: synchronous
    return e;
}
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) { cudaError_t e = cudaMemcpyAsync(d, s, n, k, 0); sync_stream(S(0)); return e; }
cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t st) { init(); if (!is_device(d)) die("cudaMemsetAsync: not a device pointer"); Op o; o.name = "memset"; o.step = [=] { memset(d, v, n); return true; }; return enqueue(st, o); }
cudaError_t cudaMemset(void *d, int v, size_t n) { return cudaMemsetAsync(d, v, n, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { init(); *s = new_stream(f); return cudaSuccess; }
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int) { return cudaStreamCreateWithFlags(s, f); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { sync_stream(s); s->dead = true; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { sync_stream(S(s)); return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { s = S(s); if (rnd() % 2) run_one(); if (s->done < s->issued) return cudaErrorNotReady; join(host_clk, s->clk); return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { init(); for (size_t i = 0; i < streams.size(); i++) if (!streams[i]->cap) sync_stream(streams[i]); return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { init(); *e = new CUevent_st(); return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { delete e; return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    s = S(s);
    if (s->cap) { e->cap = s->cap; e->vs = s->capvs; e->ni = s->cap->count[s->capvs];
        if (!s->capdeps.empty()) { Op n; n.name = "nop"; n.step = [] { return true; }; enqueue(s, n); e->ni = s->cap->count[s->capvs]; } return cudaSuccess; }
    e->cap = nullptr; legacy_sync(s); e->sid = s->id; e->idx = s->issued; e->clk = s->clk; return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    s = S(s);
    if (e->cap) {
        if (!s->cap) { s->cap = e->cap; s->capvs = (int)e->cap->count.size(); e->cap->count.push_back(0); }
        else if (s->cap != e->cap) die("cudaStreamWaitEvent joins two captures");
        if (e->ni) s->capdeps.push_back({e->vs, e->ni}); return cudaSuccess;
    }
    if (s->cap) { if (e->sid < 0) return cudaSuccess; die("a captured stream waits for an event recorded outside the capture"); }
    if (e->sid < 0) return cudaSuccess;               // never recorded: no effect, as in CUDA
    push_dep(s, e->sid, e->idx, e->clk); return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { if (e->sid < 0) return cudaSuccess; run_until([&] { return streams[e->sid]->done >= e->idx; }, "cudaEventSynchronize"); join(host_clk, e->clk); return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) { if (e->sid < 0) return cudaSuccess; if (rnd() % 2) run_one(); if (streams[e->sid]->done < e->idx) return cudaErrorNotReady; join(host_clk, e->clk); return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) { *ms = 1.0f; return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *p) { Op o; o.name = "host function"; o.step = [=] { f(p); return true; }; return enqueue(s, o); }
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode) { s = S(s); if (s->id == 0) die("the legacy stream cannot be captured"); s->cap = new CUgraph_st(); s->capvs = 0; s->cap->count.push_back(0); s->cap_origin = true; return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    CUgraph_st *c = s->cap; if (!c || !s->cap_origin) die("cudaStreamEndCapture on a stream that did not begin the capture");
    std::set<std::pair<int, int>> need; for (size_t v = 1; v < c->count.size(); v++) if (c->count[v]) need.insert({(int)v, c->count[v]});
    auto joined = [&](int v, int n) { for (auto &d : s->capdeps) if (d.first == v && d.second >= n) return true; for (auto &nd : c->nodes) for (auto &d : nd.deps) if (d.first == v && d.second >= n) return true; return false; };
    for (auto &x : need) if (!joined(x.first, x.second)) die("cudaStreamEndCapture: forked stream was not joined back (cudaErrorStreamCaptureUnjoined)");
    for (auto t : streams) if (t->cap == c) { t->cap = nullptr; t->capdeps.clear(); t->cap_origin = false; }
    *g = c; return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long) { *e = new CUgraphExec_st(); (*e)->g = *g; for (size_t i = 0; i < g->count.size(); i++) (*e)->vs.push_back(new_stream(cudaStreamNonBlocking)); return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {   // the graph's nodes become operations of hidden streams
    s = S(s); if (s->cap) die("graph launch inside a capture is not supported");
    legacy_sync(s);
    std::vector<uint64_t> base; for (auto v : e->vs) { push_dep(v, s->id, s->issued, s->clk); base.push_back(v->issued); }
    std::vector<std::vector<uint64_t>> idx(e->vs.size()); std::vector<std::vector<Clock>> ck(e->vs.size());
    for (auto &n : e->g.nodes) {
        cudaStream_t v = e->vs[n.vs];
        for (auto &d : n.deps) push_dep(v, e->vs[d.first]->id, idx[d.first][d.second - 1], ck[d.first][d.second - 1]);
        QOp q; q.op = n.op; push_op(v, std::move(q)); idx[n.vs].push_back(v->issued); ck[n.vs].push_back(v->clk);
    }
    for (auto v : e->vs) push_dep(s, v->id, v->issued, v->clk);
    maybe_run(); return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) { delete g; return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute, int v) { if (v < 0 || v > 227 * 1024) return cudaErrorInvalidValue; opted[f] = (size_t)v; return cudaSuccess; }
cudaError_t cudaMallocManaged(void **p, size_t n, unsigned) { return cudaMallocHost(p, n); }
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) { init(); *t = memory_(); *f = *t - std::min(*t, live_bytes); return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaDeviceReset(void) { return cudaDeviceSynchronize(); }
cudaError_t cudaDeviceGetStreamPriorityRange(int *l, int *h) { *l = 0; *h = -5; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    init(); memset(p, 0, sizeof *p); snprintf(p->name, sizeof p->name, "virtual GPU"); p->totalGlobalMem = memory_(); p->sharedMemPerBlock = 48 * 1024; p->sharedMemPerBlockOptin = 227 * 1024;
    p->sharedMemPerMultiprocessor = 228 * 1024; p->warpSize = 32; p->maxThreadsPerBlock = 1024; p->major = 9; p->multiProcessorCount = 8; p->l2CacheSize = 50 << 20;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64; p->maxGridSize[0] = 0x7fffffff; p->maxGridSize[1] = p->maxGridSize[2] = 65535; return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int) {
    cudaDeviceProp p; cudaGetDeviceProperties(&p, 0);
    switch (a) { case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break; case cudaDevAttrMaxSharedMemoryPerBlock: *v = 48 * 1024; break; case cudaDevAttrWarpSize: *v = 32; break; case cudaDevAttrMultiProcessorCount: *v = p.multiProcessorCount; break;
        case cudaDevAttrL2CacheSize: *v = p.l2CacheSize; break; case cudaDevAttrComputeCapabilityMajor: *v = 9; break; case cudaDevAttrComputeCapabilityMinor: *v = 0; break; case cudaDevAttrManagedMemory: *v = 1; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = 227 * 1024; break; default: return cudaErrorInvalidValue; }
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
    init(); memset(a, 0, sizeof *a); a->type = is_device(p) ? cudaMemoryTypeDevice : is_pinned(p) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered; a->devicePointer = a->type ? (void *)p : nullptr; a->hostPointer = is_device(p) ? nullptr : (void *)p; return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *st) { *st = S(s)->cap ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n) { if (!nodes) *n = g->nodes.size(); else for (size_t i = 0; i < *n; i++) nodes[i] = i < g->nodes.size() ? (cudaGraphNode_t)&g->nodes[i] : nullptr; return cudaSuccess; }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
}
