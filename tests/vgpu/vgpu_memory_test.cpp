// vgpu_memory_test.cpp -- what the virtual GPU says of wrong addresses, and of none left.
#include "rig_test.h"

enum { N = 1000 };

static __global__ void
copy_floats(float *y, const float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i];
}

struct Pair {
    float *y;
    const float *x;
    int n, padding;
};

static __global__ void
copy_pair(Pair p)
{
    for (int i = threadIdx.x; i < p.n; i += blockDim.x)
        p.y[i] = p.x[i];
}

static void
copy(float *y, const float *x, int n)
{
    RT_LAUNCH(copy_floats, dim3((n + 255) / 256), dim3(256), 0, stream(), y, x, n);
    OK(cudaDeviceSynchronize());
}

TEST(memory_begins_as_nan)
{
    float *out = share<float>(N);
    run([=] {
        float *x = device<float>(N), *y = managed<float>(N);
        OK(cudaMemset(x, 0, (N - 1) * sizeof(float)));
        copy(y, x, N);
        memcpy(out, y, N * sizeof(float));
    });
    CHECK(out[0] == 0 && out[N - 2] == 0 && isnan(out[N - 1]));
}

TEST(overruns_are_named)
{
    for (int seed = 0; seed < SEEDS; seed++) {
        Env env = with_seed(seed);
        // 1024 floats end at a page.
        check_ends([] { copy(device<float>(2048), device<float>(1024), 1025); }, FAULT,
                   "reads from", env);
        check_ends([] { copy(device<float>(1024), device<float>(2048), 1025); }, FAULT,
                   "(4096 bytes) +4096", env);
        // 1000 floats don't: the canary behind them is seen at the end.
        check_canary(
            [] {
                float *x = device<float>(N + 1);
                OK(cudaMemset(x, 0, (N + 1) * sizeof(float)));
                copy(device<float>(N), x, N + 1);
            },
            "a write outside of allocation 2 (4000 bytes), at +4000", env);
    }
}

TEST(freed_memory_is_gone)
{
    check_ends(
        [] {
            float *x = device<float>(N), *y = device<float>(N);
            OK(cudaFree(x));
            copy(y, x, N);
        },
        FAULT, "freed");
    check_ends(
        [] {
            float *x = device<float>(N);
            OK(cudaFree(x));
            OK(cudaFree(x));
        },
        RULE, "no live allocation");
    check_ends([] { OK(cudaFree(device<float>(N) + 1)); }, RULE, "no live allocation");
}

TEST(host_pointers_in_launches)
{
    check_ends(
        [] {
            float host[N];
            copy(device<float>(N), host, N);
        },
        RULE, "argument 1 of copy_floats");
    check_ends(
        [] {
            static float host[N];
            Pair p = {device<float>(N), host, N, 0};
            RT_LAUNCH(copy_pair, dim3(1), dim3(32), 0, stream(), p);
        },
        RULE, "argument 0 of copy_pair holds, at byte 8, the host's address");
    check_ends(
        [] {
            float *host = (float *)malloc(N * sizeof(float));
            OK(cudaMemcpyAsync(host, device<float>(N), 8, cudaMemcpyHostToDevice,
                               stream()));
        },
        RULE, "not of the kind");
}

TEST(the_host_may_not_look_at_device_memory)
{
    check_ends([] { *device<float>(N) = 1; }, FAULT, "the host writes to",
               {{"VGPU_RACE", "1"}});
    check_ends(
        [] {
            float *x = managed<float>(N);
            OK(cudaMemset(x, 0, N * sizeof(float)));
            OK(cudaDeviceSynchronize());
            if (x[3] != 0)
                exit(1);
        },
        0, "", {{"VGPU_RACE", "1"}});
}

TEST(memory_runs_out)
{
    check_ends(
        [] {
            size_t left = 0, all = 0;
            void *p = NULL, *q = NULL;
            OK(cudaMalloc(&p, 600000));
            OK(cudaMemGetInfo(&left, &all));
            ok(all == 1000000 && left == 400000, "cudaMemGetInfo", __LINE__);
            ok(cudaMalloc(&q, 400001) == cudaErrorMemoryAllocation, "too much",
               __LINE__);
            ok(cudaGetLastError() == cudaErrorMemoryAllocation, "last error", __LINE__);
            ok(cudaGetLastError() == cudaSuccess, "forgotten", __LINE__);
            OK(cudaMalloc(&q, 400000));
            OK(cudaFree(p));
            OK(cudaMemGetInfo(&left, &all));
            ok(left == 600000, "freed", __LINE__);
        },
        0, "", {{"VGPU_MEMORY", "1000000"}});
}

TEST(a_machine_without_a_gpu)
{
    check_ends(
        [] {
            int n = 1;
            void *p;
            cudaStream_t s;
            ok(cudaGetDeviceCount(&n) == cudaErrorNoDevice && n == 0, "count",
               __LINE__);
            ok(cudaSetDevice(0) == cudaErrorNoDevice, "set", __LINE__);
            ok(cudaMalloc(&p, 8) == cudaErrorNoDevice, "malloc", __LINE__);
            ok(cudaStreamCreate(&s) == cudaErrorNoDevice, "stream", __LINE__);
            OK(cudaDriverGetVersion(&n));
            ok(n == 0, "driver", __LINE__);
            ok(strstr(cudaGetErrorString(cudaErrorNoDevice), "no CUDA-capable") != NULL,
               "text", __LINE__);
        },
        0, "", {{"VGPU_DEVICES", "0"}});
}

TEST(what_the_device_is)
{
    check_ends(
        [] {
            cudaDeviceProp p;
            int v = 0;
            OK(cudaGetDeviceProperties(&p, 0));
            ok(p.major == 9 && p.warpSize == 32 && p.maxThreadsPerBlock == 1024,
               "properties", __LINE__);
            OK(cudaDeviceGetAttribute(&v, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
            ok(v == 227 * 1024, "shared memory", __LINE__);
            ok(cudaSetDevice(99) == cudaErrorInvalidDevice, "device 99", __LINE__);
            cudaPointerAttributes a;
            OK(cudaPointerGetAttributes(&a, device<float>(1)));
            ok(a.type == cudaMemoryTypeDevice, "pointer", __LINE__);
            OK(cudaPointerGetAttributes(&a, &v));
            ok(a.type == cudaMemoryTypeUnregistered, "pointer", __LINE__);
        },
        0, "");
}
