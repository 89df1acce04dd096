// vgpu_stream.h -- streams, events and graphs as the rig keeps them.
#pragma once
#include "vgpu_int.h"
#include <deque>

namespace vgpu {

struct Task {                                    // an operation in its stream
    std::shared_ptr<const Op> op;                // nullptr: it only waits
    uint64_t index = 0, issued = 0;              // in its stream, among all
    Clock clock;                                 // what is finished before it starts
    std::vector<std::pair<int, uint64_t>> after; // streams, and which of their tasks
    bool started = false;
    double insist = 0; // no other stream runs before then unless this has finished
};
struct Node { // an operation in a graph
    std::shared_ptr<const Op> op;
    int lane; // nodes of a lane follow each other
    std::vector<int> after;
};

} // namespace vgpu

struct CUgraph_st {
    std::vector<vgpu::Node> node;
    int lanes = 0;
};
struct CUgraphExec_st {
    CUgraph_st graph;
    std::vector<cudaStream_t> stream; // one a lane
};
struct CUstream_st {
    int id;
    unsigned flags;
    std::deque<vgpu::Task> queue;
    uint64_t issued = 0, done = 0; // tasks
    vgpu::Clock clock;             // of the last issued one
    double priority;
    // While it is captured: into what, which lane it is, what the next node comes after.
    CUgraph_st *capture = nullptr;
    bool origin = false;
    int lane = 0;
    std::vector<int> tail;
};
struct CUevent_st {
    bool timing = true;
    int stream = -1; // -1: not recorded yet
    uint64_t index = 0, slow = 0;
    vgpu::Clock clock;
    CUgraph_st *capture =
        nullptr; // recorded while this was captured, after these nodes
    std::vector<int> nodes;
};

namespace vgpu {

cudaStream_t new_stream(unsigned flags);
void drop_stream(cudaStream_t); // finished
cudaStream_t stream_of(cudaStream_t handle);
const std::vector<cudaStream_t> &live_streams();
// Adds a task that waits for others; clocks: what they promise.
void push_wait(cudaStream_t, int stream, uint64_t index, const Clock &);
void push_task(cudaStream_t, Task);
// Orders the stream with the legacy stream as far as its flags want that.
void order_with_legacy(cudaStream_t);
void run_eagerly(); // what the seed lets run as soon as it is issued
bool run_one();     // false: nothing can run
bool is_done(int stream, uint64_t index);
void wait_task(int stream, uint64_t index, const Clock &, const char *function);
void wait_stream(cudaStream_t, const char *function);
void wait_all(const char *function);
void join(Clock &, const Clock &);

// Of graphs.
void capture_op(cudaStream_t, std::shared_ptr<const Op>);
bool is_capture(const CUgraph_st *); // and not ended
// Dies where a function may not be called while some stream is captured.
void forbid_in_capture(const char *function);

} // namespace vgpu
