// vgpu_ranks_test.cpp -- NCCL between processes, and a small sharded trainer on three streams.
#include "rig_test.h"
#include <nccl.h>

enum { N = 512, LAYERS = 4, STEPS = 3, MOST = 4 };

typedef std::function<void(int rank, ncclComm_t gather, ncclComm_t scatter)>
    RankProgram;

// One process a rank; the code and what was said are those of the first that fails.
static Result
run_ranks(int ranks, const RankProgram &program, const Env &env = {})
{
    ncclUniqueId id[2];
    Child child[MOST];
    ncclGetUniqueId(&id[0]);
    ncclGetUniqueId(&id[1]);
    for (int r = 0; r < ranks; r++) {
        Env mine = env;
        mine.push_back({"RANK", std::to_string(r)});
        child[r] = start(
            [=] {
                ncclComm_t comm[2];
                for (int i = 0; i < 2; i++)
                    OK(ncclCommInitRank(&comm[i], ranks, id[i], r));
                program(r, comm[0], comm[1]);
                OK(cudaDeviceSynchronize());
            },
            mine);
    }
    Result first = {0, ""};
    for (int r = 0; r < ranks; r++) {
        Result x = finish(child[r]);
        if (!first.code)
            first = x;
    }
    return first;
}

// ---- each collective ----

template <class T>
static void
collectives(int rank, ncclComm_t comm, ncclDataType_t type, float *out)
{
    int ranks = 0;
    OK(ncclCommCount(comm, &ranks));
    T *x = managed<T>(N), *y = managed<T>(N * MOST);
    cudaStream_t s = stream();
    auto keep = [&](float *to) {
        OK(cudaStreamSynchronize(s));
        to[0] = (float)y[0];
        to[1] = (float)y[N / 2];
    };
    for (int i = 0; i < N; i++)
        x[i] = T((float)(rank + 1 + i / 256));
    OK(ncclAllReduce(x, y, N, type, ncclSum, comm, s));
    keep(out);
    OK(ncclAllReduce(x, y, N, type, ncclMax, comm, s));
    keep(out + 2);
    OK(ncclAllReduce(x, y, N, type, ncclAvg, comm, s));
    keep(out + 4);
    OK(ncclAllGather(x, y, N / 2, type, comm, s));
    keep(out + 6);
    OK(ncclReduceScatter(x, y, N / 2 / (size_t)ranks, type, ncclSum, comm, s));
    keep(out + 8);
    OK(ncclBroadcast(x, y, N, type, 1, comm, s));
    keep(out + 10);
    OK(ncclGroupStart());
    OK(ncclSend(x, N, type, (rank + 1) % ranks, comm, s));
    OK(ncclRecv(y, N, type, (rank + ranks - 1) % ranks, comm, s));
    OK(ncclGroupEnd());
    keep(out + 12);
}

TEST(collectives_of_all_ranks)
{
    const int ranks = 3;
    float *out = share<float>(ranks * 16);
    for (int type = 0; type < 3; type++)
        for (int seed = 0; seed < SEEDS; seed++) {
            Result r = run_ranks(
                ranks,
                [=](int rank, ncclComm_t comm, ncclComm_t) {
                    if (type == 0)
                        collectives<float>(rank, comm, ncclFloat32, out + rank * 16);
                    else if (type == 1)
                        collectives<__nv_bfloat16>(rank, comm, ncclBfloat16,
                                                   out + rank * 16);
                    else
                        collectives<__half>(rank, comm, ncclFloat16, out + rank * 16);
                },
                with_seed(seed));
            CHECK(r.code == 0);
            for (int k = 0; k < ranks; k++) {
                const float *o = out + k * 16;
                CHECK(o[0] == 6 && o[1] == 9);   // sum
                CHECK(o[2] == 3 && o[3] == 4);   // max
                CHECK(o[4] == 2 && o[5] == 3);   // average
                CHECK(o[6] == 1 && o[7] == 2);   // gathered halves
                CHECK(o[8] == 6);                // a part of the sum
                CHECK(o[10] == 2 && o[11] == 3); // of rank 1
                CHECK((int)o[12] == (k + ranks - 1) % ranks + 1);
            }
        }
}

TEST(calls_that_do_not_match_are_named)
{
    auto program = [](int what) {
        return [=](int rank, ncclComm_t comm, ncclComm_t) {
            float *x = device<float>(N), *y = device<float>(N);
            OK(cudaMemset(x, 0, N * sizeof(float)));
            OK(cudaDeviceSynchronize());
            size_t n = what == 1 && rank ? N / 2 : N;
            cudaStream_t s = stream();
            if (what == 0 && rank)
                OK(ncclBroadcast(x, y, n, ncclFloat32, 0, comm, s));
            else
                OK(ncclAllReduce(x, y, n, ncclFloat32, ncclSum, comm, s));
        };
    };
    Result r = run_ranks(2, program(0));
    CHECK(r.code == RULE && r.says("ncclBroadcast(count 512") &&
          r.says("ncclAllReduce(count 512"));
    r = run_ranks(2, program(1));
    CHECK(r.code == RULE && r.says("count 256") && r.says("count 512"));
    CHECK(run_ranks(2, program(2)).code == 0);
}

// ---- a sharded trainer ----

// What a mutant leaves out.
enum Without {
    NOTHING,
    COMPUTE_WAITS_GATHER,
    GATHER_WAITS_LAST_READER,
    SCATTER_WAITS_GRADIENT,
    GRADIENT_WAITS_SCATTER,
    UPDATE_WAITS_SCATTER,
    GATHER_WAITS_UPDATE,
    HOST_WAITS,
    MUTANTS
};

// x = x / 2 + w; g = x - w, all [N].
static __global__ void
layer(float *x, float *g, const float *w)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = x[i] * 0.5f + w[i];
    g[i] = x[i] - w[i];
}

static __global__ void
update(float *w, const float *g, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        w[i] -= 0.1f * g[i];
}

struct Trainer {
    int rank, ranks;
    Without without;
    bool graph;
    ncclComm_t all = NULL, sums = NULL;
    cudaStream_t compute = stream(), gathers = stream(), scatters = stream();
    float *x = device<float>(N), *whole[2], *gradient[2], *part[LAYERS], *own[LAYERS];
    float *result = NULL;
    cudaEvent_t begun = event(), updated = event(), gathered[LAYERS], used[LAYERS];
    cudaEvent_t ready[LAYERS], scattered[LAYERS];

    Trainer(int r, int n, Without w, bool g) : rank(r), ranks(n), without(w), graph(g)
    {
        OK(cudaMallocHost(&result, N * sizeof(float)));
        for (int i = 0; i < 2; i++) {
            whole[i] = device<float>(N);
            gradient[i] = device<float>(N);
        }
        std::vector<float> start(N, 1.0f + (float)rank);
        upload(x, start);
        for (int l = 0; l < LAYERS; l++) {
            own[l] = device<float>((size_t)size());
            part[l] = device<float>((size_t)size());
            gathered[l] = event();
            used[l] = event();
            ready[l] = event();
            scattered[l] = event();
            start.assign((size_t)size(), (float)(l + rank) * 0.25f);
            upload(own[l], start);
        }
        OK(cudaEventRecord(updated, compute));
    }

    int size() const
    {
        return N / ranks;
    }

    void upload(float *to, const std::vector<float> &from)
    {
        OK(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(float),
                           cudaMemcpyHostToDevice, compute));
        OK(cudaStreamSynchronize(compute)); // memory that is not pinned may be read late
    }

    void wait(cudaStream_t s, cudaEvent_t e, Without w)
    {
        if (without != w)
            OK(cudaStreamWaitEvent(s, e, 0));
    }

    void gather(int l)
    {
        if (l >= 2)
            wait(gathers, used[l - 2], GATHER_WAITS_LAST_READER);
        OK(ncclAllGather(own[l], whole[l % 2], (size_t)size(), ncclFloat32, all,
                         gathers));
        OK(cudaEventRecord(gathered[l], gathers));
    }

    void step()
    {
        OK(cudaEventRecord(begun, compute));
        wait(gathers, graph ? begun : updated, GATHER_WAITS_UPDATE);
        gather(0);
        for (int l = 0; l < LAYERS; l++) {
            if (l + 1 < LAYERS)
                gather(l + 1);
            wait(compute, gathered[l], COMPUTE_WAITS_GATHER);
            if (l >= 2)
                wait(compute, scattered[l - 2], GRADIENT_WAITS_SCATTER);
            RT_LAUNCH(layer, dim3(N / 128), dim3(128), 0, compute, x, gradient[l % 2],
                      whole[l % 2]);
            OK(cudaEventRecord(used[l], compute));
            OK(cudaEventRecord(ready[l], compute));
            wait(scatters, ready[l], SCATTER_WAITS_GRADIENT);
            OK(ncclReduceScatter(gradient[l % 2], part[l], (size_t)size(), ncclFloat32,
                                 ncclAvg, sums, scatters));
            OK(cudaEventRecord(scattered[l], scatters));
        }
        for (int l = 0; l < LAYERS; l++) {
            wait(compute, scattered[l], UPDATE_WAITS_SCATTER);
            RT_LAUNCH(update, dim3(N / 128), dim3(128), 0, compute, own[l], part[l],
                      size());
        }
        OK(cudaMemcpyAsync(result, x, N * sizeof(float), cudaMemcpyDeviceToHost,
                           compute));
        OK(cudaEventRecord(updated, compute));
    }

    void run(float *out)
    {
        cudaGraph_t g;
        cudaGraphExec_t e = NULL;
        if (graph) {
            OK(cudaStreamBeginCapture(compute, cudaStreamCaptureModeGlobal));
            step();
            OK(cudaStreamEndCapture(compute, &g));
            OK(cudaGraphInstantiate(&e, g, 0));
        }
        for (int i = 0; i < STEPS; i++)
            if (graph)
                OK(cudaGraphLaunch(e, compute));
            else
                step();
        if (without != HOST_WAITS)
            OK(cudaStreamSynchronize(compute));
        memcpy(out, result, N * sizeof(float));
    }
};

static RankProgram
trainer(int ranks, float *out, Without without, bool graph)
{
    return [=](int rank, ncclComm_t gather, ncclComm_t scatter) {
        Trainer t(rank, ranks, without, graph);
        t.all = gather;
        t.sums = scatter;
        t.run(out + rank * N);
    };
}

TEST(a_sharded_trainer_gives_the_same_bits)
{
    float *out = share<float>(MOST * N);
    std::vector<float> first;
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int run = 0; run < 2 * SEEDS + 2; run++) {
            Env env = with_seed(run % SEEDS);
            if (run >= 2 * SEEDS)
                env.push_back({"VGPU_RACE", "1"});
            Result r = run_ranks(ranks, trainer(ranks, out, NOTHING, run % 2), env);
            CHECK(r.code == 0);
            if (r.code)
                printf("  %s", r.said.c_str());
            if (!run)
                first.assign(out, out + ranks * N);
            CHECK(memcmp(first.data(), out, (size_t)(ranks * N) * sizeof(float)) == 0);
            CHECK(out[0] > 0 && out[0] < 100);
        }
}

// In the order of issue nothing would show but for the race detector.
TEST(each_missing_wait_of_a_trainer_is_a_race)
{
    float *out = share<float>(MOST * N);
    for (int w = NOTHING + 1; w < MUTANTS; w++) {
        Result r =
            run_ranks(2, trainer(2, out, (Without)w, false), {{"VGPU_RACE", "1"}});
        CHECK(r.code == RACE && r.says("nothing orders them"));
        if (r.code != RACE)
            printf("  mutant %d: exit code %d: %s\n", w, r.code, r.said.c_str());
    }
}

// Other orders show them without it, most seeds or some.
TEST(each_missing_wait_of_a_trainer_changes_results)
{
    float *out = share<float>(MOST * N);
    CHECK(run_ranks(2, trainer(2, out, NOTHING, false)).code == 0);
    std::vector<float> right(out, out + 2 * N);
    for (int w = NOTHING + 1; w < MUTANTS; w++) {
        int wrong = 0;
        for (int seed = 1; seed <= 12; seed++) {
            Result r =
                run_ranks(2, trainer(2, out, (Without)w, false), with_seed(seed));
            wrong += r.code || memcmp(right.data(), out, 2 * N * sizeof(float)) != 0;
        }
        CHECK(wrong > 0);
        if (!wrong)
            printf("  mutant %d: no seed shows it\n", w);
    }
}
