// vgpu_streams_test.cpp -- orders of operations, races between them, CUDA graphs.
#include "rig_test.h"

enum { N = 4096, STEPS = 5 };

static __global__ void
scale(float *y, const float *x, const float *factor)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] * *factor + 1;
}

static void
scale_on(cudaStream_t s, float *y, const float *x, const float *factor)
{
    RT_LAUNCH(scale, dim3(N / 256), dim3(256), 0, s, y, x, factor);
}

// What a mutant leaves out.
enum Without { NOTHING, WAIT_OF_OTHER, WAIT_OF_MAIN, HOST_WAIT, JOIN };

// Two streams in turn: b = a f + 1 on one, a = b f + 1 on the other.
struct Ring {
    cudaStream_t main = stream(), other = stream();
    cudaEvent_t there = event(), back = event();
    float *a = device<float>(N), *b = device<float>(N), *factor = device<float>(1024);
    float *result = NULL, *hyper = NULL;

    Ring()
    {
        OK(cudaMallocHost(&result, N * sizeof(float)));
        OK(cudaMallocHost(&hyper, sizeof(float)));
        OK(cudaMemsetAsync(a, 0, N * sizeof(float), main));
    }

    void step(Without without)
    {
        scale_on(main, b, a, factor);
        OK(cudaEventRecord(there, main));
        if (without != WAIT_OF_OTHER)
            OK(cudaStreamWaitEvent(other, there, 0));
        scale_on(other, a, b, factor);
        OK(cudaEventRecord(back, other));
        if (without != WAIT_OF_MAIN && without != JOIN)
            OK(cudaStreamWaitEvent(main, back, 0));
        OK(cudaMemcpyAsync(result, a, N * sizeof(float), cudaMemcpyDeviceToHost, main));
    }

    void upload(float f)
    {
        OK(cudaStreamSynchronize(main)); // hyper may be read until then
        *hyper = f;
        OK(cudaMemcpyAsync(factor, hyper, sizeof(float), cudaMemcpyHostToDevice, main));
    }

    void finish(float *out, Without without)
    {
        if (without != HOST_WAIT)
            OK(cudaStreamSynchronize(main));
        memcpy(out, result, N * sizeof(float));
    }
};

static void
run_plain(float *out, Without without)
{
    Ring r;
    for (int i = 0; i < STEPS; i++) {
        r.upload(0.5f + (float)i);
        r.step(without);
    }
    r.finish(out, without);
}

static void
run_graph(float *out, Without without)
{
    Ring r;
    cudaGraph_t g;
    cudaGraphExec_t e;
    size_t n = 0;
    cudaStreamCaptureStatus status;
    OK(cudaStreamBeginCapture(r.main, cudaStreamCaptureModeGlobal));
    r.step(without);
    OK(cudaStreamIsCapturing(r.other, &status));
    ok(without == WAIT_OF_OTHER || status == cudaStreamCaptureStatusActive, "capturing",
       __LINE__);
    OK(cudaStreamEndCapture(r.main, &g));
    OK(cudaGraphGetNodes(g, NULL, &n));
    ok(n == 3, "nodes", __LINE__);
    OK(cudaGraphInstantiate(&e, g, 0));
    OK(cudaGraphDestroy(g));
    for (int i = 0; i < STEPS; i++) {
        r.upload(0.5f + (float)i);
        OK(cudaGraphLaunch(e, r.main));
    }
    r.finish(out, without);
    OK(cudaGraphExecDestroy(e));
}

static std::vector<float>
expected()
{
    float a = 0;
    for (int i = 0; i < STEPS; i++) {
        float f = 0.5f + (float)i;
        a = fmaf(fmaf(a, f, 1), f, 1);
    }
    return std::vector<float>(N, a);
}

TEST(orders_of_streams_give_the_same_bits)
{
    float *out = share<float>(N);
    check_same([=] { run_plain(out, NOTHING); }, out, N);
    CHECK(memcmp(out, expected().data(), N * sizeof(float)) == 0);
    check_same([=] { run_graph(out, NOTHING); }, out, N);
    CHECK(memcmp(out, expected().data(), N * sizeof(float)) == 0);
}

// By some order, and in the order of issue by the race detector, which names both.
TEST(a_missing_wait_is_found)
{
    float *out = share<float>(N);
    std::vector<float> right = expected();
    for (Without w : {WAIT_OF_OTHER, WAIT_OF_MAIN, HOST_WAIT}) {
        CHECK(count_wrong([=] { run_plain(out, w); }, out, right) > 0);
        Result r = run([=] { run_plain(out, w); }, {{"VGPU_RACE", "1"}});
        CHECK(r.code == RACE && r.says("nothing orders them"));
        CHECK(r.says(w == HOST_WAIT ? "the host" : "scale"));
    }
}

TEST(a_missing_wait_in_a_graph_is_found)
{
    float *out = share<float>(N);
    check_ends([=] { run_graph(out, JOIN); }, RULE, "cudaErrorStreamCaptureUnjoined");
    CHECK(run([=] { run_graph(out, HOST_WAIT); }, {{"VGPU_RACE", "1"}}).code == RACE);
    // Two lanes that are joined at the end, but not where one reads what the other writes.
    auto unordered = [](bool waits) {
        Ring r;
        cudaGraph_t g;
        cudaGraphExec_t e;
        OK(cudaStreamBeginCapture(r.main, cudaStreamCaptureModeGlobal));
        OK(cudaEventRecord(r.there, r.main));
        OK(cudaStreamWaitEvent(r.other, r.there, 0));
        scale_on(r.main, r.b, r.a, r.factor);
        if (waits) {
            OK(cudaEventRecord(r.there, r.main));
            OK(cudaStreamWaitEvent(r.other, r.there, 0));
        }
        scale_on(r.other, r.a, r.b, r.factor);
        OK(cudaEventRecord(r.back, r.other));
        OK(cudaStreamWaitEvent(r.main, r.back, 0));
        OK(cudaStreamEndCapture(r.main, &g));
        OK(cudaGraphInstantiate(&e, g, 0));
        OK(cudaGraphLaunch(e, r.main));
        OK(cudaStreamSynchronize(r.main));
    };
    CHECK(run([=] { unordered(true); }, {{"VGPU_RACE", "1"}}).code == 0);
    CHECK(run([=] { unordered(false); }, {{"VGPU_RACE", "1"}}).code == RACE);
}

TEST(what_may_not_be_captured)
{
    auto captured = [](auto call) {
        Ring r;
        OK(cudaEventRecord(r.back, r.other));
        OK(cudaStreamBeginCapture(r.main, cudaStreamCaptureModeGlobal));
        call(r);
    };
    check_ends([=] { captured([](Ring &r) { cudaStreamSynchronize(r.main); }); }, RULE,
               "being captured");
    check_ends([=] { captured([](Ring &) { cudaDeviceSynchronize(); }); }, RULE,
               "being captured");
    check_ends([=] { captured([](Ring &) { device<float>(1); }); }, RULE,
               "being captured");
    check_ends(
        [=] { captured([](Ring &r) { cudaStreamWaitEvent(r.main, r.back, 0); }); },
        RULE, "outside of the capture");
    check_ends(
        [=] {
            captured([](Ring &r) {
                float host;
                cudaMemcpyAsync(&host, r.a, 4, cudaMemcpyDeviceToHost, r.main);
            });
        },
        RULE, "pageable");
    check_ends(
        [=] {
            captured([](Ring &r) {
                cudaGraph_t g;
                cudaEventRecord(r.there, r.main);
                cudaStreamEndCapture(r.main, &g);
                cudaStreamWaitEvent(r.other, r.there, 0);
            });
        },
        RULE, "cudaErrorCapturedEvent");
}

// Copies say which bytes they use: halves of a page are no race, overlapping ones are.
TEST(races_of_copies_are_exact)
{
    auto halves = [](size_t at) {
        char *page = device<char>(4096), *from = device<char>(8192);
        OK(cudaMemcpyAsync(page, from, 2048, cudaMemcpyDeviceToDevice, stream()));
        OK(cudaMemcpyAsync(page + at, from, 2048, cudaMemcpyDeviceToDevice, stream()));
        OK(cudaDeviceSynchronize());
    };
    CHECK(run([=] { halves(2048); }, {{"VGPU_RACE", "1"}}).code == 0);
    CHECK(run([=] { halves(2047); }, {{"VGPU_RACE", "1"}}).code == RACE);
}

// Pinned memory is read when the copy runs; pageable memory then or when it is issued.
TEST(copies_read_their_source_late)
{
    enum { COPIES = 16 };
    float *out = share<float>(2 * COPIES);
    auto program = [=](bool pinned) {
        float plain = 0, *shared = NULL, *x = device<float>(COPIES);
        cudaStream_t s = stream();
        OK(cudaMallocHost(&shared, sizeof(float)));
        float *from = pinned ? shared : &plain;
        for (int i = 0; i < COPIES; i++) {
            *from = 1;
            OK(cudaMemcpyAsync(x + i, from, sizeof(float), cudaMemcpyHostToDevice, s));
        }
        *from = 2;
        OK(cudaStreamSynchronize(s));
        OK(cudaMemcpy(out + pinned * COPIES, x, COPIES * sizeof(float),
                      cudaMemcpyDeviceToHost));
    };
    Env late = {{"VGPU_POLICY", "1"}, {"VGPU_EAGER", "0"}};
    run([=] { program(false); }, late);
    run([=] { program(true); }, late);
    int early = 0;
    for (int i = 0; i < COPIES; i++) {
        early += out[i] == 1;
        CHECK(out[i] == 1 || out[i] == 2);
        CHECK(out[COPIES + i] == 2);
    }
    CHECK(early > 0 && early < COPIES);
}

// The legacy stream waits for streams that are not cudaStreamNonBlocking, and they for it.
TEST(the_legacy_stream_orders_blocking_ones)
{
    auto program = [](unsigned flags) {
        float *x = device<float>(N);
        cudaStream_t s;
        OK(cudaStreamCreateWithFlags(&s, flags));
        OK(cudaMemset(x, 0, N * sizeof(float)));
        scale_on(s, x, x, x);
        OK(cudaDeviceSynchronize());
    };
    CHECK(run([=] { program(cudaStreamDefault); }, {{"VGPU_RACE", "1"}}).code == 0);
    CHECK(run([=] { program(cudaStreamNonBlocking); }, {{"VGPU_RACE", "1"}}).code ==
          RACE);
}

TEST(events_have_times_if_they_want)
{
    check_ends(
        [] {
            cudaStream_t s = stream();
            cudaEvent_t a, b, c = event();
            float ms = 0;
            OK(cudaEventCreate(&a));
            OK(cudaEventCreate(&b));
            OK(cudaEventRecord(a, s));
            OK(cudaEventRecord(b, s));
            OK(cudaEventRecord(c, s));
            OK(cudaEventSynchronize(c));
            OK(cudaEventElapsedTime(&ms, a, b));
            ok(ms > 0, "time", __LINE__);
            ok(cudaEventElapsedTime(&ms, a, c) == cudaErrorInvalidResourceHandle,
               "no timing", __LINE__);
        },
        0, "");
}
