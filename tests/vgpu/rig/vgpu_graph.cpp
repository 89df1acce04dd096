// vgpu_graph.cpp -- stream capture and CUDA graphs.
//
// A captured operation becomes a node that comes after the nodes its stream has waited for: its own
// last one, and those of events. The nodes of each captured stream are a lane. A launch issues them
// as tasks of hidden streams, one a lane, so that random orders and the race detector reach into
// graphs. What CUDA refuses ends the program here: a fork that is not joined, a wait for an event
// from outside, a synchronisation while something is captured.
#include "vgpu_stream.h"
#include <algorithm>
#include <set>

namespace vgpu {

static std::set<const CUgraph_st *> captures; // that have not ended

bool
is_capture(const CUgraph_st *g)
{
    return captures.count(g) != 0;
}

void
forbid_in_capture(const char *function)
{
    if (!captures.empty())
        die("%s while a stream is being captured (cudaErrorStreamCaptureUnsupported)",
            function);
}

void
capture_op(cudaStream_t s, std::shared_ptr<const Op> op)
{
    CUgraph_st *g = s->capture;
    g->node.push_back(Node{std::move(op), s->lane, s->tail});
    s->tail.assign(1, (int)g->node.size() - 1);
}

// Every node must be waited for by the stream that began the capture.
static bool
all_joined(const CUgraph_st &g, const std::vector<int> &tail)
{
    std::vector<bool> seen(g.node.size());
    std::vector<int> open = tail;
    while (!open.empty()) {
        int n = open.back();
        open.pop_back();
        if (seen[(size_t)n])
            continue;
        seen[(size_t)n] = true;
        for (int before : g.node[(size_t)n].after)
            open.push_back(before);
    }
    return std::find(seen.begin(), seen.end(), false) == seen.end();
}

static void
end_capture(CUgraph_st *g)
{
    for (cudaStream_t s : live_streams())
        if (s->capture == g) {
            s->capture = nullptr;
            s->origin = false;
            s->tail.clear();
        }
    captures.erase(g);
}

// A wait for an event that was recorded in a capture brings its stream into it.
static void
wait_captured(cudaStream_t s, cudaEvent_t e)
{
    if (!is_capture(e->capture))
        die("cudaStreamWaitEvent: the event was last recorded in a capture that has "
            "ended "
            "(cudaErrorCapturedEvent)");
    if (!s->capture) {
        s->capture = e->capture;
        s->lane = e->capture->lanes++;
    }
    if (s->capture != e->capture)
        die("cudaStreamWaitEvent joins two captures");
    for (int n : e->nodes)
        if (std::find(s->tail.begin(), s->tail.end(), n) == s->tail.end())
            s->tail.push_back(n);
}

// Issues the nodes as tasks of the lanes' streams.
static void
issue_nodes(const CUgraphExec_st &e)
{
    size_t n = e.graph.node.size();
    std::vector<uint64_t> index(n);
    std::vector<Clock> clock(settings.race ? n : 0);
    for (size_t i = 0; i < n; i++) {
        const Node &x = e.graph.node[i];
        cudaStream_t lane = e.stream[(size_t)x.lane];
        Task t;
        t.op = x.op;
        for (int b : x.after) {
            const Node &before = e.graph.node[(size_t)b];
            if (before.lane == x.lane)
                continue;
            t.after.push_back({e.stream[(size_t)before.lane]->id, index[(size_t)b]});
            if (settings.race)
                join(lane->clock, clock[(size_t)b]);
        }
        push_task(lane, std::move(t));
        index[i] = lane->issued;
        if (settings.race)
            clock[i] = lane->clock;
    }
}

} // namespace vgpu

using namespace vgpu;

extern "C" {

cudaError_t
cudaEventRecord(cudaEvent_t e, cudaStream_t handle)
{
    cudaStream_t s = stream_of(handle);
    if (s->capture) {
        e->capture = s->capture;
        e->nodes = s->tail;
        return cudaSuccess;
    }
    order_with_legacy(s);
    e->capture = nullptr;
    e->stream = s->id;
    e->index = s->issued;
    e->slow = slow_products;
    e->clock = s->clock;
    return cudaSuccess;
}

cudaError_t
cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned)
{
    cudaStream_t s = stream_of(handle);
    if (e->capture)
        wait_captured(s, e);
    else if (s->capture && e->stream >= 0)
        die("a captured stream waits for an event from outside of the capture "
            "(cudaErrorStreamCaptureIsolation)");
    else if (!s->capture && e->stream >= 0) // never recorded: nothing to wait for
        push_wait(s, e->stream, e->index, e->clock);
    return cudaSuccess;
}

cudaError_t
cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode)
{
    cudaStream_t s = stream_of(handle);
    if (!s->id)
        die("cudaStreamBeginCapture: the legacy stream can't be captured");
    if (s->capture)
        die("cudaStreamBeginCapture: the stream is being captured already");
    s->capture = new CUgraph_st();
    s->origin = true;
    s->lane = s->capture->lanes++;
    captures.insert(s->capture);
    return cudaSuccess;
}

cudaError_t
cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *g)
{
    cudaStream_t s = stream_of(handle);
    if (!s->capture || !s->origin)
        die("cudaStreamEndCapture: not on the stream that began the capture");
    *g = s->capture;
    if (!all_joined(**g, s->tail))
        die("cudaStreamEndCapture: a stream that was forked off was not joined again "
            "(cudaErrorStreamCaptureUnjoined)");
    end_capture(*g);
    return cudaSuccess;
}

cudaError_t
cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    *status = stream_of(handle)->capture ? cudaStreamCaptureStatusActive
                                         : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t
cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    if (nodes)
        for (size_t i = 0; i < *n; i++)
            nodes[i] = i < g->node.size() ? (cudaGraphNode_t)&g->node[i] : nullptr;
    if (!nodes || *n > g->node.size())
        *n = g->node.size();
    return cudaSuccess;
}

cudaError_t
cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long)
{
    *e = new CUgraphExec_st{*g, {}};
    for (int i = 0; i < g->lanes; i++)
        (*e)->stream.push_back(new_stream(cudaStreamNonBlocking));
    return cudaSuccess;
}

cudaError_t
cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t
cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t handle)
{
    cudaStream_t s = stream_of(handle);
    if (s->capture)
        die("cudaGraphLaunch on a stream that is being captured");
    order_with_legacy(s);
    for (cudaStream_t lane : e->stream)
        push_wait(lane, s->id, s->issued, s->clock);
    issue_nodes(*e);
    for (cudaStream_t lane : e->stream)
        push_wait(s, lane->id, lane->issued, lane->clock);
    run_eagerly();
    return cudaSuccess;
}

cudaError_t
cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return cudaSuccess;
}

cudaError_t
cudaGraphExecDestroy(cudaGraphExec_t e)
{
    for (cudaStream_t s : e->stream) {
        wait_stream(s, "cudaGraphExecDestroy");
        drop_stream(s);
    }
    delete e;
    return cudaSuccess;
}
}
