// vgpu_nccl.cpp -- NCCL's functions: calls become operations of streams, groups one a stream.
#include "vgpu_nccl.h"
#include "vgpu_stream.h"
#include <stdio.h>
#include <unistd.h>

using namespace vgpu;

namespace {

const double PATIENCE_SECONDS = 20;
int depth; // of ncclGroupStart
std::vector<Call> group;

// What a call reads and writes.
void
note(Op *op, const Call &k)
{
    size_t bytes = k.count * type_bytes(k.type), ranks = (size_t)k.comm->ranks;
    bool root = k.comm->rank == k.root;
    bool reads = k.kind != RECEIVE && (k.kind != BROADCAST || root);
    bool writes = k.kind != SEND && (k.kind != REDUCE || root);
    size_t in = k.kind == REDUCE_SCATTER ? bytes * ranks : bytes;
    size_t out = k.kind == ALL_GATHER ? bytes * ranks : bytes;
    if (reads)
        op->touches.push_back({k.from, in, 1, 0, 1, 0, false});
    if (writes)
        op->touches.push_back({k.to, out, 1, 0, 1, 0, true});
}

// The calls of one stream; collectives of a communicator go one after another.
struct Progress {
    std::vector<Call> calls;
    std::vector<bool> done;
    double since = 0;

    bool blocked(size_t i) const
    {
        for (size_t j = 0; j < i; j++)
            if (!done[j] && calls[j].comm == calls[i].comm && calls[j].kind < SEND &&
                calls[i].kind < SEND)
                return true;
        return false;
    }

    bool step()
    {
        bool all = true;
        if (since == 0)
            since = now();
        for (size_t i = 0; i < calls.size(); i++) {
            if (!done[i])
                done[i] = !blocked(i) && step_call(&calls[i]);
            all = all && done[i];
        }
        if (!all && now() - since > PATIENCE_SECONDS)
            die("%s (count %zu, collective %llu of communicator %s) has waited %g "
                "seconds for "
                "other ranks",
                collective_names[calls[0].kind], calls[0].count,
                (unsigned long long)calls[0].comm->number, calls[0].comm->name.c_str(),
                PATIENCE_SECONDS);
        if (all) { // a graph does it again
            since = 0;
            done.assign(calls.size(), false);
        }
        return all;
    }
};

void
issue(const std::vector<Call> &calls, cudaStream_t stream)
{
    auto p = std::make_shared<Progress>();
    Op op;
    for (const Call &k : calls)
        if (k.stream == stream) {
            p->calls.push_back(k);
            note(&op, k);
        }
    p->done.assign(p->calls.size(), false);
    op.name = p->calls.size() > 1 ? "nccl group" : collective_names[p->calls[0].kind];
    op.step = [=] { return p->step(); };
    enqueue(stream, std::move(op));
}

void
issue_all(const std::vector<Call> &calls)
{
    std::vector<cudaStream_t> seen;
    for (const Call &k : calls) {
        bool known = false;
        for (cudaStream_t s : seen)
            known |= s == k.stream;
        if (known)
            continue;
        seen.push_back(k.stream);
        issue(calls, k.stream);
    }
}

ncclResult_t
call(Collective kind, const void *from, void *to, size_t count, ncclDataType_t type,
     int op, int root, ncclComm *comm, cudaStream_t stream)
{
    if (!comm || root < 0 || root >= comm->ranks)
        return ncclInvalidArgument;
    if (from)
        check_pointer(collective_names[kind], 0, from);
    if (to)
        check_pointer(collective_names[kind], 1, to);
    Call k{kind, from, to, count, type, op, root, comm, stream, false};
    if (depth)
        group.push_back(k);
    else
        issue(std::vector<Call>{k}, stream);
    return ncclSuccess;
}

} // namespace

extern "C" {

ncclResult_t
ncclGetVersion(int *v)
{
    *v = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t
ncclGetUniqueId(ncclUniqueId *id)
{
    static int made;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/vgpu-%d-%d-%lld", (int)getpid(),
             made++, (long long)(now() * 1e6));
    return ncclSuccess;
}

ncclResult_t
ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    init();
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    *comm = join_comm(id.internal, ranks, rank);
    return ncclSuccess;
}

ncclResult_t
ncclCommFinalize(ncclComm_t)
{
    return ncclSuccess;
}

ncclResult_t
ncclCommDestroy(ncclComm_t comm)
{
    wait_all("ncclCommDestroy");
    leave_comm(comm);
    return ncclSuccess;
}

ncclResult_t
ncclCommAbort(ncclComm_t comm)
{
    leave_comm(comm);
    return ncclSuccess;
}

ncclResult_t
ncclCommCount(const ncclComm_t comm, int *n)
{
    *n = comm->ranks;
    return ncclSuccess;
}

ncclResult_t
ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t
ncclCommGetAsyncError(ncclComm_t, ncclResult_t *e)
{
    *e = ncclSuccess;
    return ncclSuccess;
}

const char *
ncclGetErrorString(ncclResult_t e)
{
    return e == ncclSuccess           ? "no error"
           : e == ncclInvalidArgument ? "invalid argument"
                                      : "error";
}

const char *
ncclGetLastError(ncclComm_t)
{
    return "";
}

ncclResult_t
ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
              ncclComm_t comm, cudaStream_t stream)
{
    return call(ALL_REDUCE, from, to, n, type, op, 0, comm, stream);
}

ncclResult_t
ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type,
              ncclComm_t comm, cudaStream_t stream)
{
    return call(ALL_GATHER, from, to, n, type, 0, 0, comm, stream);
}

ncclResult_t
ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t type,
                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return call(REDUCE_SCATTER, from, to, n, type, op, 0, comm, stream);
}

ncclResult_t
ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root,
              ncclComm_t comm, cudaStream_t stream)
{
    return call(BROADCAST, from, to, n, type, 0, root, comm, stream);
}

ncclResult_t
ncclReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
           int root, ncclComm_t comm, cudaStream_t stream)
{
    return call(REDUCE, from, to, n, type, op, root, comm, stream);
}

ncclResult_t
ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
         cudaStream_t stream)
{
    return call(SEND, from, nullptr, n, type, 0, peer, comm, stream);
}

ncclResult_t
ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
         cudaStream_t stream)
{
    return call(RECEIVE, nullptr, to, n, type, 0, peer, comm, stream);
}

ncclResult_t
ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t
ncclGroupEnd(void)
{
    if (depth <= 0)
        return ncclInvalidUsage;
    if (--depth)
        return ncclSuccess;
    std::vector<Call> calls;
    calls.swap(group);
    issue_all(calls);
    return ncclSuccess;
}
}
