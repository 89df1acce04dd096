// vgpu: runs one grid. One OS thread; every CUDA thread that blocks gets a fiber.
#include "vgpu_device.h"
#include "vgpu_int.h"
#include <sys/mman.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/asan_interface.h>
#define ASAN 1
#endif

#ifdef VGPU_TSAN                       // every CUDA thread is a TSan fiber; only __syncthreads and __syncwarp order memory
extern "C" { void *__tsan_create_fiber(unsigned); void __tsan_switch_to_fiber(void *, unsigned); void *__tsan_get_current_fiber(); void __tsan_acquire(void *); void __tsan_release(void *); void __tsan_set_fiber_name(void *, const char *); void __tsan_read_range(void *, unsigned long); void __tsan_write_range(void *, unsigned long); }
static void *tsan_ctx[1024], *tsan_host; static char tsan_bar, tsan_blk, tsan_warp[32];
#define TS_GO(t) __tsan_switch_to_fiber((t) < 0 ? tsan_host : tsan_ctx[t], 1)
#define TS_RD(a, n) __tsan_read_range((void *)(a), n)
#define TS_WR(a, n) __tsan_write_range((void *)(a), n)
#define TS_ACQ(a) __tsan_acquire(a)
#define TS_REL(a) __tsan_release(a)
#else
#define TS_RD(a, n)
#define TS_WR(a, n)
#define TS_GO(t)
#define TS_ACQ(a)
#define TS_REL(a)
#endif
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" char __start_vgpu_shared[] __attribute__((weak));
extern "C" char __stop_vgpu_shared[] __attribute__((weak));

namespace vgpu {
int g_lane;
Stats stats;

enum { ST_NEW, ST_READY, ST_BLOCK, ST_WARP, ST_DONE };
struct Fiber { void *sp; char *lo; size_t sz; void *fake; Fiber *next; };
struct Thr { uint3 tid; Fiber *f; uint8_t st, lane; uint16_t warp; const void *site; };
struct Pend { unsigned mask, arrived; int kind; void (*complete)(void **, unsigned); void *pay[32]; };
struct Warp { unsigned live, exited; int npend; Pend pend[32]; };
struct CpA { void *dst; const void *src; int n, srcn; };
struct CpQ { std::vector<CpA> cur; std::vector<std::vector<CpA>> groups; };

static const int MAXT = 1024;
static const size_t STK = 64 * 1024;
static struct {
    Thr t[MAXT]; Warp w[MAXT / 32]; CpQ cp[MAXT];
    unsigned ready[MAXT / 32], wready; uint8_t worder[32]; int nw, pw;     // ready lanes per warp, warps with ready lanes, warps by priority, preferred warp
    int n, live, bar, cur; bool cp_used;
    KernelFn fn; const void *args; const char *name;
} B;
static Fiber *freef; static void *host_sp; static Fiber *curf; static int nfib;
static uint64_t rs = 0x9e3779b97f4a7c15ull;
void exec_seed(uint64_t s) { rs = s * 0x9e3779b97f4a7c15ull + 0x1234567; }
static inline uint64_t rnd() { rs ^= rs << 13; rs ^= rs >> 7; rs ^= rs << 17; return rs; }

static unsigned char smem_buf[256 * 1024] __attribute__((aligned(1024)));
static size_t smem_n;
static bool shared_filled;
void static_shared() {
    if (shared_filled) return;
    shared_filled = true;
    if (poison && __start_vgpu_shared) memset(__start_vgpu_shared, 0xFF, (size_t)(__stop_vgpu_shared - __start_vgpu_shared));
}
void *dynamic_shared() { return smem_buf; }

const char *exec_where(char *b, size_t n) {
    if (!B.name) { snprintf(b, n, "(no kernel running)"); return b; }
    snprintf(b, n, "kernel %s block (%u,%u,%u) thread (%u,%u,%u)", B.name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    return b;
}

// ---- context switch ---------------------------------------------------------
#if defined(__x86_64__)
extern "C" void vgpu_switch(void **save, void *load);
asm(".text\n.globl vgpu_switch\n.type vgpu_switch,@function\nvgpu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size vgpu_switch,.-vgpu_switch\n");
#else
#error "add a switch for this machine (or ucontext)"
#endif
static void fiber_main();
static void fiber_entry() {
#ifdef ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    fiber_main();
}
static Fiber *new_fiber() {
    Fiber *f = freef;
    if (f) { freef = f->next; return f; }
    f = new Fiber();
    size_t pg = 4096;
    char *m = (char *)mmap(nullptr, STK + pg, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) die("no memory for fiber stacks");
    mprotect(m, pg, PROT_NONE);
    f->lo = m + pg; f->sz = STK;
    uintptr_t top = (uintptr_t)(m + pg + STK) - (size_t)(nfib++ % 15) * 256;   // stack colouring: spread over cache sets
    top &= ~(uintptr_t)15;
    void **sp = (void **)top;
    *--sp = nullptr;                       // keeps (rsp+8)%16==0 at entry
    *--sp = (void *)fiber_entry;
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    f->sp = sp;
    return f;
}
#ifdef ASAN
static const void *host_lo; static size_t host_sz;
#endif
static inline void go(Fiber *from, Fiber *to) {     // fiber -> fiber (or host when null)
    stats.switches++; TS_GO(to ? B.cur : -1);
    curf = to;
#ifdef ASAN
    void *fs; __sanitizer_start_switch_fiber(&fs, to ? to->lo : host_lo, to ? to->sz : host_sz);
    vgpu_switch(from ? &from->sp : &host_sp, to ? to->sp : host_sp);
    const void *ol; size_t os; __sanitizer_finish_switch_fiber(fs, &ol, &os);
    if (!from) ; else if (false) { host_lo = ol; host_sz = os; }
#else
    vgpu_switch(from ? &from->sp : &host_sp, to ? to->sp : host_sp);
#endif
}
static inline void set_cur(int t) { B.cur = t; threadIdx = B.t[t].tid; g_lane = B.t[t].lane; }
static inline void push(int t) { B.t[t].st = ST_READY; B.ready[t >> 5] |= 1u << (t & 31); B.wready |= 1u << (t >> 5); }
// Which thread runs next. 0: lowest warp first and to its end, 1: highest first, 2: random warp priorities that change now and then,
// 3: lockstep, all warps in turn. A greedy warp runs until it blocks, which is what shows a missing barrier.
static inline int pop() {
    if (!B.wready) return -1;
    int w, l; unsigned m;
    if (thread_order == 0) w = __builtin_ctz(B.wready);
    else if (thread_order == 1) w = 31 - __builtin_clz(B.wready);
    else if (thread_order == 3) { unsigned h = B.wready & ~((2u << B.pw) - 1); w = __builtin_ctz(h ? h : B.wready); B.pw = w; }
    else {
        uint64_t r = rnd();
        if (!(r & 63)) { int i = (r >> 8) % B.nw, j = (r >> 24) % B.nw; std::swap(B.worder[i], B.worder[j]); B.pw = -1; }
        if (B.pw >= 0 && B.wready >> B.pw & 1) w = B.pw;
        else { int i = 0; while (!(B.wready >> B.worder[i] & 1)) i++; w = B.pw = B.worder[i]; }
        m = B.ready[w]; int rot = (r >> 40) & 31; unsigned x = rot ? (m >> rot | m << (32 - rot)) : m; l = (__builtin_ctz(x) + rot) & 31;
        goto take;
    }
    m = B.ready[w]; l = thread_order == 1 ? 31 - __builtin_clz(m) : __builtin_ctz(m);
take:
    B.ready[w] = m & ~(1u << l); if (!B.ready[w]) B.wready &= ~(1u << w);
    return w * 32 + l;
}

static void report_stuck() {
    int nb = 0, nw = 0, nd = 0;
    for (int i = 0; i < B.n; i++) { nb += B.t[i].st == ST_BLOCK; nw += B.t[i].st == ST_WARP; nd += B.t[i].st == ST_DONE; }
    fprintf(stderr, "vgpu: %s block (%u,%u,%u): deadlock: %d threads at __syncthreads, %d at a warp operation, %d finished\n",
            B.name, blockIdx.x, blockIdx.y, blockIdx.z, nb, nw, nd);
    for (int w = 0; w * 32 < B.n; w++) for (int p = 0; p < B.w[w].npend; p++)
        fprintf(stderr, "vgpu:   warp %d: operation kind %d mask %08x arrived %08x\n", w, B.w[w].pend[p].kind, B.w[w].pend[p].mask, B.w[w].pend[p].arrived);
    die("divergent barrier");
}
static inline void resume_next() {        // current thread blocked: run another one
    int t = pop();
    if (t < 0) report_stuck();
    Fiber *me = curf; Thr &T = B.t[t];
    if (!T.f) { T.f = new_fiber(); }
    set_cur(t);
    go(me, T.f);
}
static void release_block() {
    const void *site = nullptr;
    for (int t = 0; t < B.n; t++) { if (B.t[t].st == ST_BLOCK) {
        if (site && site != B.t[t].site && strict_barriers) die("%s: threads of one block meet at different __syncthreads() calls", B.name);
        site = B.t[t].site; push(t); } }
    B.bar = 0;
}
void block_barrier(const void *site) {
    Thr &T = B.t[B.cur];
    T.site = site; T.st = ST_BLOCK; B.bar++; TS_REL(&tsan_bar);
    if (B.bar == B.live) {                 // last one: everyone goes to the queue, in a new order
        release_block();
        int t = pop();
        if (&B.t[t] == &T) { TS_ACQ(&tsan_bar); return; }
        Fiber *me = curf; set_cur(t); go(me, B.t[t].f);
        TS_ACQ(&tsan_bar); return;
    }
    resume_next(); TS_ACQ(&tsan_bar);
}
static void warp_try(Warp &W, int w, int p) {   // complete pending operation p of warp w if all its live lanes arrived
    Pend &P = W.pend[p];
    if ((P.arrived | W.exited) != (P.mask | W.exited)) return;
    P.complete(P.pay, P.arrived);
    for (int l = 0; l < 32; l++) if (P.arrived >> l & 1 && B.t[w * 32 + l].st == ST_WARP) push(w * 32 + l);
    if (p != --W.npend) W.pend[p] = W.pend[W.npend];
}
void warp_meet(unsigned mask, int kind, void *pay, void (*complete)(void **, unsigned)) {
    int c = B.cur; Thr &T = B.t[c]; Warp &W = B.w[T.warp]; unsigned me = 1u << T.lane;
    stats.warpops++;
    if (!(mask & me)) die("%s: lane %d calls a warp operation with mask %08x that does not name it", B.name, T.lane, mask);
    mask &= W.live | W.exited;             // lanes beyond the block's size
    int p = 0;
    for (; p < W.npend; p++) if (W.pend[p].mask & me || W.pend[p].mask & mask) break;
    if (p == W.npend) { Pend &P = W.pend[W.npend++]; P.mask = mask; P.arrived = 0; P.kind = kind; P.complete = complete; }
    Pend &P = W.pend[p];
    if (P.mask != mask || P.kind != kind)
        die("%s: lanes of one warp meet in different warp operations (mask %08x kind %d vs mask %08x kind %d)", B.name, P.mask, P.kind, mask, kind);
    P.pay[T.lane] = pay; P.arrived |= me; bool order = kind == W_SYNC; if (order) TS_REL(&tsan_warp[T.warp]);
    if ((P.arrived | W.exited) == (P.mask | W.exited)) { warp_try(W, T.warp, p); if (order) TS_ACQ(&tsan_warp[T.warp]); return; }   // T itself keeps running
    T.st = ST_WARP;
    resume_next(); if (order) TS_ACQ(&tsan_warp[T.warp]);
}
unsigned active_mask() { return B.w[B.t[B.cur].warp].live & ~B.w[B.t[B.cur].warp].exited; }

static void run_cp(std::vector<CpA> &v) {
    for (auto &c : v) { TS_RD(c.src, c.srcn); TS_WR(c.dst, c.n); memcpy(c.dst, c.src, c.srcn); memset((char *)c.dst + c.srcn, 0, c.n - c.srcn); }
    v.clear();
}
void copy_async(void *d, const void *s, int n, bool valid) { B.cp[B.cur].cur.push_back({d, s, n, valid ? n : 0}); B.cp_used = true; }
void copy_commit() { CpQ &q = B.cp[B.cur]; q.groups.push_back(std::move(q.cur)); q.cur.clear(); }
void copy_wait(int left) {             // copies happen as late as allowed
    CpQ &q = B.cp[B.cur];
    while ((int)q.groups.size() > left) { run_cp(q.groups.front()); q.groups.erase(q.groups.begin()); }
}

static void thread_exit() {
    Thr &T = B.t[B.cur]; T.st = ST_DONE;
    if (B.cp_used) { CpQ &q = B.cp[B.cur]; q.cur.clear(); q.groups.clear(); }
    Warp &W = B.w[T.warp]; W.exited |= 1u << T.lane; B.live--;
    if (W.npend) for (int p = W.npend - 1; p >= 0; p--) if (p < W.npend) warp_try(W, T.warp, p);
    if (B.bar && B.bar == B.live) release_block();
}
static void fiber_main() {
    for (;;) {
        TS_ACQ(&tsan_blk);
        B.fn(B.args);
        TS_REL(&tsan_blk);
        thread_exit();
        for (;;) {
            int t = pop();
            Fiber *me = curf;
            if (t < 0) {
                if (B.live) report_stuck();
                me->next = freef; freef = me; go(me, nullptr);     // block finished; resumed later with B.cur set
                break;
            }
            set_cur(t);
            if (!B.t[t].f) { B.t[t].f = me; TS_GO(t); break; }                // unstarted thread: run it right here, no switch
            me->next = freef; freef = me; go(me, B.t[t].f);         // someone is waiting: resume it; I am free
            break;                                                  // resumed with a new thread in B.cur
        }
    }
}
static void run_block() {
    int n = B.n;
    B.live = n; B.bar = 0; B.cp_used = false; B.nw = (n + 31) / 32; B.pw = -1; B.wready = 0;
    if (thread_order == 3) B.pw = 31;
    for (int w = 0; w < B.nw; w++) { int k = n - w * 32; unsigned m = k >= 32 ? 0xffffffffu : (1u << k) - 1; B.w[w].live = m; B.w[w].exited = 0; B.w[w].npend = 0; B.ready[w] = m; B.wready |= 1u << w; B.worder[w] = (uint8_t)w; }
    if (thread_order == 2) for (int i = B.nw - 1; i > 0; i--) std::swap(B.worder[i], B.worder[(rnd() >> 20) % (unsigned)(i + 1)]);
    for (int t = 0; t < n; t++) { B.t[t].f = nullptr; B.t[t].st = ST_NEW; }
    TS_REL(&tsan_blk);
    Fiber *f = new_fiber();
    int t = pop(); B.t[t].f = f; set_cur(t);
    go(nullptr, f);
    TS_ACQ(&tsan_blk);
    stats.threads += n;
}
void run_grid(const char *name, dim3 g, dim3 b, size_t smem, KernelFn fn, const void *args) {
    size_t n = (size_t)b.x * b.y * b.z, nb = (size_t)g.x * g.y * g.z;
    if (n == 0 || n > MAXT || nb == 0 || smem > 227 * 1024) die("%s: bad launch configuration", name);
    stats.launches++;
#ifdef ASAN
    if (!host_lo) { static char *h = nullptr; pthread_attr_t a; pthread_getattr_np(pthread_self(), &a); void *lo; size_t sz; pthread_attr_getstack(&a, &lo, &sz); host_lo = lo; host_sz = sz; (void)h; }
#endif
#ifdef VGPU_TSAN
    if (!tsan_host) tsan_host = __tsan_get_current_fiber();
    for (size_t i = 0; i < n; i++) if (!tsan_ctx[i]) { char b[32]; snprintf(b, sizeof b, "cuda thread %zu", i); tsan_ctx[i] = __tsan_create_fiber(0); __tsan_set_fiber_name(tsan_ctx[i], b); }
#endif
    B.fn = fn; B.args = args; B.name = name; B.n = (int)n;
    blockDim = b; gridDim = g; smem_n = smem;
    for (size_t i = 0; i < n; i++) {
        Thr &T = B.t[i]; T.tid = uint3{(unsigned)(i % b.x), (unsigned)(i / b.x % b.y), (unsigned)(i / b.x / b.y)};
        T.lane = i & 31; T.warp = (uint16_t)(i >> 5);
    }
#ifdef ASAN
    ASAN_POISON_MEMORY_REGION(smem_buf + smem, sizeof smem_buf - smem);
#else
    memset(smem_buf + smem, 0xA5, 256);
#endif
    // blocks in an order of their own: affine permutation
    size_t mul = 1, add = 0;
    if (thread_order == 1) { mul = nb - 1; add = nb - 1; }
    if (thread_order == 2 && nb > 2) { mul = rnd() % nb | 1; while (std::__gcd(mul, nb) != 1) mul += 2; add = rnd() % nb; }
    for (size_t i = 0; i < nb; i++) {
        size_t k = (size_t)(((unsigned __int128)i * mul + add) % nb);
        blockIdx = uint3{(unsigned)(k % g.x), (unsigned)(k / g.x % g.y), (unsigned)(k / g.x / g.y)};
        shared_filled = false; if (poison && smem) memset(smem_buf, 0xFF, smem);
        run_block();
#ifndef ASAN
        if (smem + 256 <= sizeof smem_buf) for (int c = 0; c < 256; c++) if (smem_buf[smem + c] != 0xA5)
            die("%s block (%u,%u,%u): write %d bytes past the end of dynamic shared memory (%zu bytes)", name, blockIdx.x, blockIdx.y, blockIdx.z, c, smem);
#endif
    }
#ifdef ASAN
    ASAN_UNPOISON_MEMORY_REGION(smem_buf, sizeof smem_buf);
#endif
    B.name = nullptr;
}

// ---- tensor-core emulation ----------------------------------------------------
struct PMma { float *d; const uint32_t *a, *b; };
template <float (*F)(uint16_t)> static void c_mma(void **p, unsigned m) {
    if (m != 0xffffffffu) die("mma.sync needs all 32 lanes");
    float A[16][16], Bm[16][8], C[16][8];
    for (int l = 0; l < 32; l++) {
        PMma *q = (PMma *)p[l]; int g = l >> 2, t = (l & 3) * 2;
        auto pr = [](float *o, uint32_t v) { o[0] = F((uint16_t)v); o[1] = F((uint16_t)(v >> 16)); };
        pr(&A[g][t], q->a[0]); pr(&A[g + 8][t], q->a[1]); pr(&A[g][t + 8], q->a[2]); pr(&A[g + 8][t + 8], q->a[3]);
        Bm[t][g] = F((uint16_t)q->b[0]); Bm[t + 1][g] = F((uint16_t)(q->b[0] >> 16));
        Bm[t + 8][g] = F((uint16_t)q->b[1]); Bm[t + 9][g] = F((uint16_t)(q->b[1] >> 16));
        C[g][t] = q->d[0]; C[g][t + 1] = q->d[1]; C[g + 8][t] = q->d[2]; C[g + 8][t + 1] = q->d[3];
    }
    for (int i = 0; i < 16; i++) for (int k = 0; k < 16; k++) { float a = A[i][k]; for (int j = 0; j < 8; j++) C[i][j] += a * Bm[k][j]; }
    for (int l = 0; l < 32; l++) {
        PMma *q = (PMma *)p[l]; int g = l >> 2, t = (l & 3) * 2;
        q->d[0] = C[g][t]; q->d[1] = C[g][t + 1]; q->d[2] = C[g + 8][t]; q->d[3] = C[g + 8][t + 1];
    }
    stats.mma++;
}
void mma_16x8x16(WarpOp type, float *d, const uint32_t *a, const uint32_t *b) {
    PMma q{d, a, b}; warp_meet(0xffffffffu, type, &q, type == W_MMA_F16 ? c_mma<f16_to_float> : c_mma<bf16_to_float>);
}
struct PLd { uint32_t *r; const void *row; int n; bool tr; };
static void c_ldm(void **p, unsigned) {
    PLd *q0 = (PLd *)p[0];
    for (int i = 0; i < q0->n; i++) for (int l = 0; l < 32; l++) {
        PLd *q = (PLd *)p[l]; uint16_t lo, hi;
        if (!q->tr) { const uint16_t *r = (const uint16_t *)((PLd *)p[i * 8 + l / 4])->row; lo = r[2 * (l % 4)]; hi = r[2 * (l % 4) + 1]; }
        else { lo = ((const uint16_t *)((PLd *)p[i * 8 + 2 * (l % 4)])->row)[l / 4]; hi = ((const uint16_t *)((PLd *)p[i * 8 + 2 * (l % 4) + 1])->row)[l / 4]; }
        q->r[i] = lo | (uint32_t)hi << 16;
    }
}
void ldmatrix4(uint32_t *r, const void *row, bool tr) {
    int n = 4;
    if ((uintptr_t)row & 15) die("ldmatrix: row address not 16-byte aligned");
    if ((B.t[B.cur].lane >> 3) < n) TS_RD(row, 16);
    PLd q{r, row, n, tr}; warp_meet(0xffffffffu, W_LDMATRIX, &q, c_ldm);
}
}  // namespace vgpu
