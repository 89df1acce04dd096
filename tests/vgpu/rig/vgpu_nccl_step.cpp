// vgpu_nccl_step.cpp -- collectives through POSIX shared memory, one process a rank.
//
// A call never blocks: it is stepped until all ranks have posted their data, and then each rank
// computes its own results from them, in rank order. So every rank has the same sums, and they do
// not depend on who came first. Low types are rounded after every addition, as a ring does it. What
// the ranks call is compared: a mismatch names both calls.
#include "vgpu_low.h"
#include "vgpu_nccl.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace vgpu {

// Pages that nobody touches cost nothing.
enum : size_t { HEAD = 1 << 20, AREA = 1ull << 30, BOX = 1ull << 26 };
static const double JOIN_SECONDS = 120;
const char *const collective_names[] = {"?",
                                        "ncclAllReduce",
                                        "ncclAllGather",
                                        "ncclReduceScatter",
                                        "ncclBroadcast",
                                        "ncclReduce",
                                        "ncclSend",
                                        "ncclRecv"};

size_t
type_bytes(int type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    default:
        return 8;
    }
}

static char *
area(const ncclComm *c, int rank)
{
    return c->areas + (size_t)rank * AREA;
}

static char *
box(const ncclComm *c, int from, int to)
{
    return c->boxes + (size_t)(from * c->ranks + to) * BOX;
}

// ---- sums ----

template <class T>
static T
combine(T a, T b, int op)
{
    switch (op) {
    case ncclMax:
        return b > a ? b : a;
    case ncclMin:
        return b < a ? b : a;
    case ncclProd:
        return (T)(a * b);
    default:
        return (T)(a + b);
    }
}

// to [n] = all ranks' elements from `first`; Load and Store know how T lies in memory.
template <class S, class T, T (*load)(S), S (*store)(T)>
static void
reduce_as(void *to, const ncclComm *c, size_t first, size_t n, int op)
{
    for (size_t i = 0; i < n; i++) {
        T sum = load(((const S *)area(c, 0))[first + i]);
        for (int r = 1; r < c->ranks; r++)
            sum =
                load(store(combine(sum, load(((const S *)area(c, r))[first + i]), op)));
        if (op == ncclAvg)
            sum = (T)(sum / (T)c->ranks);
        ((S *)to)[i] = store(sum);
    }
}

template <class T>
static T
same(T x)
{
    return x;
}

template <class T>
static void
reduce_plain(void *to, const ncclComm *c, size_t first, size_t n, int op)
{
    reduce_as<T, T, same<T>, same<T>>(to, c, first, n, op);
}

static void
reduce_to(void *to, const ncclComm *c, size_t first, const Call &k)
{
    size_t n = k.count;
    switch (k.type) {
    case ncclFloat32:
        return reduce_plain<float>(to, c, first, n, k.op);
    case ncclFloat64:
        return reduce_plain<double>(to, c, first, n, k.op);
    case ncclInt8:
        return reduce_plain<int8_t>(to, c, first, n, k.op);
    case ncclUint8:
        return reduce_plain<uint8_t>(to, c, first, n, k.op);
    case ncclInt32:
        return reduce_plain<int32_t>(to, c, first, n, k.op);
    case ncclUint32:
        return reduce_plain<uint32_t>(to, c, first, n, k.op);
    case ncclInt64:
        return reduce_plain<int64_t>(to, c, first, n, k.op);
    case ncclUint64:
        return reduce_plain<uint64_t>(to, c, first, n, k.op);
    case ncclBfloat16:
        return reduce_as<uint16_t, float, bf16_to_float, float_to_bf16>(to, c, first, n,
                                                                        k.op);
    case ncclFloat16:
        return reduce_as<uint16_t, float, f16_to_float, float_to_f16>(to, c, first, n,
                                                                      k.op);
    }
}

// ---- messages ----

static bool
step_send(const Call &k)
{
    ncclComm *c = k.comm;
    int me = c->rank, to = k.root;
    size_t bytes = k.count * type_bytes(k.type);
    if (c->shared->taken[me][to] < c->sent[to])
        return false; // the last one still lies there
    if (bytes > BOX)
        die("ncclSend: %zu bytes are more than the rig's mailboxes hold", bytes);
    memcpy(box(c, me, to), k.from, bytes);
    c->shared->letter[me][to] = Letter{k.count, k.type};
    c->shared->sent[me][to] = ++c->sent[to];
    return true;
}

static bool
step_receive(const Call &k)
{
    ncclComm *c = k.comm;
    int me = c->rank, from = k.root;
    if (c->shared->sent[from][me] <= c->received[from])
        return false;
    const Letter &l = c->shared->letter[from][me];
    if (l.count != k.count || l.type != k.type)
        die("ncclRecv of %zu elements of type %d from rank %d, which sends %zu of type "
            "%d",
            k.count, (int)k.type, from, l.count, l.type);
    memcpy(k.to, box(c, from, me), k.count * type_bytes(k.type));
    c->shared->taken[from][me] = ++c->received[from];
    return true;
}

// ---- collectives ----

// This rank's data are posted, once nobody reads those of the collective before.
static bool
post(Call *k)
{
    ncclComm *c = k->comm;
    Shared *s = c->shared;
    for (int r = 0; r < c->ranks; r++)
        if (s->finished[r] < c->number)
            return false;
    size_t bytes = k->count * type_bytes(k->type);
    if (k->kind == REDUCE_SCATTER)
        bytes *= (size_t)c->ranks;
    if (bytes > AREA)
        die("%s: %zu bytes are more than the rig has room for",
            collective_names[k->kind], bytes);
    if (k->kind != BROADCAST || c->rank == k->root)
        memcpy(area(c, c->rank), k->from, bytes);
    s->signature[c->rank] = Signature{k->kind, k->type, k->op, k->root, k->count};
    s->posted[c->rank] = ++c->number;
    return k->posted = true;
}

static void
compare(const Call &k)
{
    const ncclComm *c = k.comm;
    for (int r = 0; r < c->ranks; r++) {
        const Signature &s = c->shared->signature[r];
        if (s.kind == k.kind && s.type == k.type && s.op == k.op && s.root == k.root &&
            s.count == k.count)
            continue;
        die("collective %llu of communicator %s: this rank calls %s(count %zu, type "
            "%d, op %d, "
            "root %d), rank %d calls %s(count %zu, type %d, op %d, root %d)",
            (unsigned long long)c->number, c->name.c_str(), collective_names[k.kind],
            k.count, (int)k.type, k.op, k.root, r, collective_names[s.kind], s.count,
            s.type, s.op, s.root);
    }
}

static void
finish(const Call &k)
{
    const ncclComm *c = k.comm;
    size_t bytes = k.count * type_bytes(k.type);
    switch (k.kind) {
    case ALL_GATHER:
        for (int r = 0; r < c->ranks; r++)
            memcpy((char *)k.to + (size_t)r * bytes, area(c, r), bytes);
        break;
    case ALL_REDUCE:
        reduce_to(k.to, c, 0, k);
        break;
    case REDUCE:
        if (c->rank == k.root)
            reduce_to(k.to, c, 0, k);
        break;
    case REDUCE_SCATTER:
        reduce_to(k.to, c, k.count * (size_t)c->rank, k);
        break;
    case BROADCAST:
        memcpy(k.to, area(c, k.root), bytes);
        break;
    case SEND:
    case RECEIVE:
        break;
    }
}

bool
step_call(Call *k)
{
    if (k->kind == SEND)
        return step_send(*k);
    if (k->kind == RECEIVE)
        return step_receive(*k);
    if (!k->posted && !post(k))
        return false;
    ncclComm *c = k->comm;
    for (int r = 0; r < c->ranks; r++)
        if (c->shared->posted[r] < c->number)
            return false;
    compare(*k);
    finish(*k);
    c->shared->finished[c->rank] = c->number;
    k->posted = false; // a graph calls it again
    return true;
}

// ---- communicators ----

ncclComm *
join_comm(const char *name, int ranks, int rank)
{
    ncclComm *c = new ncclComm();
    c->rank = rank;
    c->ranks = ranks;
    c->name = name;
    c->bytes = HEAD + (size_t)ranks * AREA + (size_t)(ranks * ranks) * BOX;
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)c->bytes))
        die("ncclCommInitRank: no shared memory %s", name);
    char *m = (char *)mmap(nullptr, c->bytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (m == MAP_FAILED)
        die("ncclCommInitRank: no room for shared memory");
    c->shared = (Shared *)m;
    c->areas = m + HEAD;
    c->boxes = c->areas + (size_t)ranks * AREA;
    c->shared->joined++;
    for (double end = now() + JOIN_SECONDS; c->shared->joined < ranks; usleep(100))
        if (now() > end)
            die("ncclCommInitRank: %d of %d ranks have come", (int)c->shared->joined,
                ranks);
    shm_unlink(name);
    return c;
}

void
leave_comm(ncclComm *c)
{
    munmap((void *)c->shared, c->bytes);
    delete c;
}

} // namespace vgpu
