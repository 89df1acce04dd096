#include "vgpu_low.h"
// vgpu: NCCL subset over POSIX shared memory; one process per rank
#include <nccl.h>
#include "vgpu_int.h"
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <atomic>
#include <vector>
namespace vgpu {
static const int MAXR = 16; static const size_t AREA = 1ull << 30, MBOX = 1ull << 26;    // sparse
struct Sig { int kind, dt, op, root; size_t count; };
struct Head {
    std::atomic<int> joined, left; std::atomic<uint64_t> posted[MAXR], finished[MAXR]; Sig sig[MAXR];
    std::atomic<uint64_t> sent[MAXR][MAXR], taken[MAXR][MAXR]; size_t mlen[MAXR][MAXR]; int mdt[MAXR][MAXR];
};
enum { C_ALLREDUCE = 1, C_ALLGATHER, C_REDSCAT, C_BCAST, C_REDUCE, C_SEND, C_RECV };
static const char *names[] = {"?", "ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast", "ncclReduce", "ncclSend", "ncclRecv"};
static size_t dsz(int t) { switch (t) { case ncclInt8: case ncclUint8: return 1; case ncclFloat16: case ncclBfloat16: return 2; case ncclInt32: case ncclUint32: case ncclFloat32: return 4; default: return 8; } }
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
}
using namespace vgpu;
struct ncclComm { int rank, n; Head *h; char *area, *mbox; uint64_t seq = 0; uint64_t nsend[MAXR] = {}, nrecv[MAXR] = {}; char name[64]; uint64_t issued = 0; };
namespace vgpu {
struct Call { int kind; const void *s; void *d; size_t count; int dt, op, root; ncclComm *c; cudaStream_t st; int phase = 0; };
static char *area(ncclComm *c, int r) { return c->area + (size_t)r * AREA; }
static char *mbox(ncclComm *c, int s, int d) { return c->mbox + ((size_t)s * c->n + d) * MBOX; }
template <class T, class L, class St> static void red(int n, size_t cnt, int op, L ld, St st) {
    for (size_t i = 0; i < cnt; i++) { T a = ld(0, i); for (int r = 1; r < n; r++) { T b = ld(r, i); a = op == ncclMax ? (b > a ? b : a) : op == ncclMin ? (b < a ? b : a) : op == ncclProd ? a * b : a + b; } if (op == ncclAvg) a = a / (T)n; st(i, a); }
}
static void reduce_into(void *d, ncclComm *c, size_t off, size_t cnt, int dt, int op) {
    int n = c->n;
    if (dt == ncclFloat32) red<float>(n, cnt, op, [&](int r, size_t i) { return ((float *)area(c, r))[off + i]; }, [&](size_t i, float v) { ((float *)d)[i] = v; });
    else if (dt == ncclBfloat16)          // rounds at every hop, as a ring does
        for (size_t i = 0; i < cnt; i++) { float a = bf16_to_float(((uint16_t *)area(c, 0))[off + i]); for (int r = 1; r < n; r++) { float b = bf16_to_float(((uint16_t *)area(c, r))[off + i]); a = bf16_to_float(float_to_bf16(op == ncclMax ? (b > a ? b : a) : a + b)); } if (op == ncclAvg) a /= n; ((uint16_t *)d)[i] = float_to_bf16(a); }
    else if (dt == ncclInt32) red<int>(n, cnt, op, [&](int r, size_t i) { return ((int *)area(c, r))[off + i]; }, [&](size_t i, int v) { ((int *)d)[i] = v; });
    else if (dt == ncclFloat64) red<double>(n, cnt, op, [&](int r, size_t i) { return ((double *)area(c, r))[off + i]; }, [&](size_t i, double v) { ((double *)d)[i] = v; });
    else die("nccl: reduction of data type %d not in the rig", dt);
}
static bool step(Call &k) {               // true when finished
    ncclComm *c = k.c; Head *h = c->h; size_t es = dsz(k.dt), by = k.count * es; int n = c->n, me = c->rank;
    if (k.kind == C_SEND) {
        int p = k.root;
        if (h->taken[me][p] < c->nsend[p]) return false;        // mailbox still full
        if (by > MBOX) die("ncclSend: message larger than the rig's mailbox");
        memcpy(mbox(c, me, p), k.s, by); h->mlen[me][p] = k.count; h->mdt[me][p] = k.dt; c->nsend[p]++; h->sent[me][p] = c->nsend[p]; return true;
    }
    if (k.kind == C_RECV) {
        int p = k.root;
        if (h->sent[p][me] <= c->nrecv[p]) return false;
        if (h->mlen[p][me] != k.count || h->mdt[p][me] != k.dt) die("ncclRecv from %d: %zu elements of type %d expected, %zu of type %d sent", p, k.count, k.dt, h->mlen[p][me], h->mdt[p][me]);
        memcpy(k.d, mbox(c, p, me), by); c->nrecv[p]++; h->taken[p][me] = c->nrecv[p]; return true;
    }
    if (k.phase == 0) {
        for (int r = 0; r < n; r++) if (h->finished[r] < c->seq) return false;     // my area may still be read
        bool whole = k.kind == C_REDSCAT; size_t in = whole ? by * n : by;
        if (in > AREA) die("nccl: buffer larger than the rig's area");
        if (k.kind != C_BCAST || me == k.root) memcpy(area(c, me), k.s, in);
        h->sig[me] = Sig{k.kind, k.dt, k.op, k.root, k.count};
        h->posted[me] = ++c->seq; k.phase = 1;
    }
    for (int r = 0; r < n; r++) if (h->posted[r] < c->seq) return false;
    for (int r = 0; r < n; r++) { Sig &s = h->sig[r]; if (s.kind != k.kind || s.dt != k.dt || s.op != k.op || s.root != k.root || s.count != k.count)
        die("collective #%llu of communicator %s: this rank calls %s(count %zu, type %d, op %d, root %d), rank %d calls %s(count %zu, type %d, op %d, root %d)", (unsigned long long)c->seq, c->name,
            names[k.kind], k.count, k.dt, k.op, k.root, r, names[s.kind], s.count, s.dt, s.op, s.root); }
    switch (k.kind) {
    case C_ALLGATHER: for (int r = 0; r < n; r++) memcpy((char *)k.d + r * by, area(c, r), by); break;
    case C_ALLREDUCE: reduce_into(k.d, c, 0, k.count, k.dt, k.op); break;
    case C_REDUCE: if (me == k.root) reduce_into(k.d, c, 0, k.count, k.dt, k.op); break;
    case C_REDSCAT: reduce_into(k.d, c, k.count * me, k.count, k.dt, k.op); break;
    case C_BCAST: memcpy(k.d, area(c, k.root), by); break;
    }
    h->finished[me] = c->seq; k.phase = 0;
    return true;
}
static int depth; static std::vector<Call> group;
static void push(std::vector<Call> v) {          // one op per (group, stream)
    while (!v.empty()) {
        cudaStream_t st = v[0].st; auto w = std::make_shared<std::vector<Call>>(), done = std::make_shared<std::vector<Call>>(); std::vector<Call> rest;
        for (auto &c : v) (c.st == st ? *w : rest).push_back(c);
        auto t0 = std::make_shared<double>(0); auto idx = std::make_shared<std::vector<char>>(w->size(), 0);
        Op o; o.name = w->size() > 1 ? "nccl group" : names[(*w)[0].kind];
        o.step = [=] {
            if (*t0 == 0) *t0 = now();
            bool all = true;
            for (size_t i = 0; i < w->size(); i++) { if ((*idx)[i]) continue;
                bool earlier = false; for (size_t j = 0; j < i; j++) if (!(*idx)[j] && (*w)[j].c == (*w)[i].c && (*w)[i].kind < C_SEND && (*w)[j].kind < C_SEND) earlier = true;
                if (!earlier && step((*w)[i])) (*idx)[i] = 1; else all = false; }
            if (!all && now() - *t0 > 20) { Call &k = (*w)[0]; die("%s (collective #%llu of communicator %s, count %zu) waits for other ranks since 20 s", names[k.kind], (unsigned long long)k.c->seq, k.c->name, k.count); }
            if (all) { *t0 = 0; std::fill(idx->begin(), idx->end(), 0); }
            return all;
        };
        enqueue(st, o); v.swap(rest);
    }
}
static ncclResult_t call(Call k) {
    if (k.s) check_pointer(names[k.kind], 0, k.s); if (k.d) check_pointer(names[k.kind], 1, k.d);
    if (depth) group.push_back(k); else push({k});
    return ncclSuccess;
}
}
extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId *u) { static int n; memset(u, 0, sizeof *u); snprintf(u->internal, sizeof u->internal, "/vgpu-%d-%d-%ld", (int)getpid(), n++, (long)(now() * 1e6)); return ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t *out, int n, ncclUniqueId u, int r) {
    if (n > MAXR || r < 0 || r >= n) die("ncclCommInitRank: %d ranks", n);
    ncclComm *c = new ncclComm(); c->rank = r; c->n = n; snprintf(c->name, sizeof c->name, "%s", u.internal);
    size_t sz = (1 << 20) + n * AREA + (size_t)n * n * MBOX;
    int fd = shm_open(u.internal, O_RDWR | O_CREAT, 0600); if (fd < 0 || ftruncate(fd, (off_t)sz)) die("ncclCommInitRank: shared memory");
    char *m = (char *)mmap(nullptr, sz, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0); close(fd);
    c->h = (Head *)m; c->area = m + (1 << 20); c->mbox = c->area + n * AREA; c->h->joined++;
    double t = now(); while (c->h->joined < n) { usleep(100); if (now() - t > 20) die("ncclCommInitRank: %d of %d ranks came", (int)c->h->joined, n); }
    shm_unlink(u.internal); *out = c; return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) { cudaDeviceSynchronize(); delete c; return ncclSuccess; }
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommCount(const ncclComm_t c, int *n) { *n = c->n; return ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *r) { *r = c->rank; return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *e) { *e = ncclSuccess; return ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t e) { return e ? "nccl error" : "no error"; }
ncclResult_t ncclAllReduce(const void *s, void *d, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t st) { return call({C_ALLREDUCE, s, d, n, t, op, 0, c, st}); }
ncclResult_t ncclAllGather(const void *s, void *d, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t st) { return call({C_ALLGATHER, s, d, n, t, 0, 0, c, st}); }
ncclResult_t ncclReduceScatter(const void *s, void *d, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t st) { return call({C_REDSCAT, s, d, n, t, op, 0, c, st}); }
ncclResult_t ncclBroadcast(const void *s, void *d, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t st) { return call({C_BCAST, s, d, n, t, 0, root, c, st}); }
ncclResult_t ncclReduce(const void *s, void *d, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t st) { return call({C_REDUCE, s, d, n, t, op, root, c, st}); }
ncclResult_t ncclSend(const void *s, size_t n, ncclDataType_t t, int p, ncclComm_t c, cudaStream_t st) { return call({C_SEND, s, nullptr, n, t, 0, p, c, st}); }
ncclResult_t ncclRecv(void *d, size_t n, ncclDataType_t t, int p, ncclComm_t c, cudaStream_t st) { return call({C_RECV, nullptr, d, n, t, 0, p, c, st}); }
ncclResult_t ncclGroupStart(void) { depth++; return ncclSuccess; }
ncclResult_t ncclGroupEnd(void) { if (depth <= 0) die("ncclGroupEnd without ncclGroupStart"); if (!--depth) { std::vector<Call> v; v.swap(group); push(v); } return ncclSuccess; }
}
