// vgpu_nccl.h -- a communicator between processes, and one call on it.
#pragma once
#include "vgpu_int.h"
#include <atomic>
#include <nccl.h>
#include <string>

namespace vgpu {

enum { MAX_RANKS = 16 };
enum Collective {
    ALL_REDUCE = 1,
    ALL_GATHER,
    REDUCE_SCATTER,
    BROADCAST,
    REDUCE,
    SEND,
    RECEIVE
};
extern const char *const collective_names[];

struct Signature { // what all ranks must have called
    int kind, type, op, root;
    size_t count;
};
struct Letter { // that waits in a mailbox
    size_t count;
    int type;
};
struct Shared { // by all ranks
    std::atomic<int> joined;
    std::atomic<uint64_t> posted[MAX_RANKS], finished[MAX_RANKS]; // collectives
    Signature signature[MAX_RANKS];
    std::atomic<uint64_t> sent[MAX_RANKS][MAX_RANKS], taken[MAX_RANKS][MAX_RANKS];
    Letter letter[MAX_RANKS][MAX_RANKS];
};

struct Call {
    Collective kind;
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    int op, root; // root: of a message the other rank
    ncclComm *comm;
    cudaStream_t stream;
    bool posted; // this rank's data lie in its area
};
size_t type_bytes(int nccl_type);
bool step_call(Call *); // true when it has finished
ncclComm *join_comm(const char *name, int ranks, int rank);
void leave_comm(ncclComm *);

} // namespace vgpu

struct ncclComm {
    int rank, ranks;
    vgpu::Shared *shared;
    char *areas, *boxes; // of collectives, one a rank; of messages, one a pair
    size_t bytes;
    uint64_t number; // of collectives so far
    uint64_t sent[vgpu::MAX_RANKS], received[vgpu::MAX_RANKS];
    std::string name;
};
