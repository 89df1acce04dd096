/* comm.cu -- collectives between ranks by NCCL, on the two streams for them.
 *
 * A collective begins when the compute stream has come to where it was started, and rt_wait()
 * holds the compute stream until the collective is complete: both by events, so the host never
 * waits, and a captured program has the same order. Gathers and reductions have a stream and a
 * communicator each. On one rank nothing moves.
 */
#include "comm.h"
#include "cuda_int.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

struct rtc_comm {
    int rank, ranks;
    ncclComm_t gather, scatter; /* each on the stream of that name */
    cudaEvent_t started;
    std::vector<cudaEvent_t> complete; /* one a future */
};

static_assert(2 * sizeof(ncclUniqueId) == RTC_COMM_ID, "two ids");

static void
check(ncclResult_t r, const char *what)
{
    if (r == ncclSuccess)
        return;
    exit(rt_fail(RT_USER, "NCCL: %s\n%s", ncclGetErrorString(r), what));
}
#define NCCL(call) check(call, #call)

void
rtc_comm_id(char id[RTC_COMM_ID])
{
    ncclUniqueId both[2];
    NCCL(ncclGetUniqueId(&both[0]));
    NCCL(ncclGetUniqueId(&both[1]));
    memcpy(id, both, sizeof both);
}

static ncclComm_t
join_ranks(const rtc_comm *c, const char *id)
{
    ncclComm_t comm;
    ncclUniqueId own;
    memcpy(&own, id, sizeof own);
    NCCL(ncclCommInitRank(&comm, c->ranks, own, c->rank));
    return comm;
}

void
rtc_comm_open(rt_stream *s, int rank, int ranks, const char id[RTC_COMM_ID])
{
    if (ranks < 2)
        return;
    rtc_comm *c = new rtc_comm();
    c->rank = rank;
    c->ranks = ranks;
    c->gather = join_ranks(c, id);
    c->scatter = join_ranks(c, id + sizeof(ncclUniqueId));
    RT_CUDA(cudaEventCreateWithFlags(&c->started, cudaEventDisableTiming));
    s->comm = c;
}

void
rtc_comm_close(rt_stream *s)
{
    rtc_comm *c = s->comm;
    if (!c)
        return;
    RT_CUDA(cudaStreamSynchronize(s->gather));
    RT_CUDA(cudaStreamSynchronize(s->scatter));
    NCCL(ncclCommDestroy(c->gather));
    NCCL(ncclCommDestroy(c->scatter));
    for (cudaEvent_t e : c->complete)
        RT_CUDA(cudaEventDestroy(e));
    RT_CUDA(cudaEventDestroy(c->started));
    delete c;
    s->comm = NULL;
}

/* Elements of a rank's part of n. */
static int64_t
part_of(const rtc_comm *c, int64_t n)
{
    if (n % c->ranks)
        exit(rt_fail(RT_BUG, "a buffer of %lld elements has no %d equal parts",
                     (long long)n, c->ranks));
    return n / c->ranks;
}

/* Work on the stream comes behind what the compute stream has by now. */
static void
begin(rt_stream *s, cudaStream_t on)
{
    RT_CUDA(cudaEventRecord(s->comm->started, s->stream));
    RT_CUDA(cudaStreamWaitEvent(on, s->comm->started, 0));
}

static void
end(rtc_comm *c, cudaStream_t on, rt_future *f)
{
    cudaEvent_t e = (cudaEvent_t)f->event;
    if (!e) {
        RT_CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        c->complete.push_back(e);
        f->event = e;
    }
    RT_CUDA(cudaEventRecord(e, on));
}

void
rt_all_gather(rt_stream *s, rt_future *f, void *buf, int64_t bytes)
{
    rtc_comm *c = s->comm;
    f->pending = true;
    if (!c || !bytes)
        return;
    int64_t part = part_of(c, bytes);
    begin(s, s->gather);
    NCCL(ncclAllGather((char *)buf + c->rank * part, buf, (size_t)part, ncclUint8,
                       c->gather, s->gather));
    end(c, s->gather, f);
}

void
rt_reduce_scatter(rt_stream *s, rt_future *f, float *buf, int64_t n)
{
    rtc_comm *c = s->comm;
    f->pending = true;
    if (!c || !n)
        return;
    int64_t part = part_of(c, n);
    begin(s, s->scatter);
    NCCL(ncclReduceScatter(buf, buf + c->rank * part, (size_t)part, ncclFloat32,
                           ncclSum, c->scatter, s->scatter));
    end(c, s->scatter, f);
}

void
rt_wait(rt_stream *s, rt_future *f)
{
    if (f->pending && f->event)
        RT_CUDA(cudaStreamWaitEvent(s->stream, (cudaEvent_t)f->event, 0));
    f->pending = false;
}
