// vgpu_threads_test.cpp -- threads, barriers, warps and shared memory of the virtual GPU.
#include "rig_test.h"

enum { BLOCK = 256, BLOCKS = 5, N = BLOCK * BLOCKS };

// What a mutant leaves out.
enum Without { NOTHING, BARRIER, ZEROING, COPY_WAIT };

// y = sums of the block up to and with each thread's x, by way of the neighbours' values.
template <Without without>
static __global__ void
running_sum(int *y, const int *x)
{
    __shared__ int s[2][BLOCK];
    int t = threadIdx.x, i = blockIdx.x * BLOCK + t, at = 0;
    s[0][t] = x[i];
    for (int step = 1; step < BLOCK; step *= 2, at = 1 - at) {
        if (without != BARRIER)
            __syncthreads();
        s[1 - at][t] = s[at][t] + (t >= step ? s[at][t - step] : 0);
    }
    y[i] = s[at][t];
}

template <Without without>
static void
run_sum(int *out)
{
    int *x = managed<int>(N), *y = managed<int>(N);
    for (int i = 0; i < N; i++)
        x[i] = i % 7;
    RT_LAUNCH((running_sum<without>), dim3(BLOCKS), dim3(BLOCK), 0, stream(), y, x);
    OK(cudaDeviceSynchronize());
    memcpy(out, y, N * sizeof(int));
}

TEST(orders_of_threads_give_the_same_bits)
{
    int *out = share<int>(N);
    check_same([=] { run_sum<NOTHING>(out); }, out, N);
    int sum = 0;
    for (int i = 0; i < BLOCK; i++)
        CHECK(out[i] == (sum += i % 7));
}

TEST(a_missing_barrier_shows)
{
    int *out = share<int>(N);
    run([=] { run_sum<NOTHING>(out); });
    std::vector<int> right(out, out + N);
    CHECK(count_wrong<int>([=] { run_sum<BARRIER>(out); }, out, right) >= SEEDS / 2);
}

static __global__ void
barrier_of_some()
{
    if (threadIdx.x % 2)
        __syncthreads();
    __syncthreads();
}

static __global__ void
barrier_in_branches()
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

static __global__ void
shuffle_in_branches(float *y)
{
    float v = threadIdx.x;
    if (threadIdx.x % 2)
        v = __shfl_xor_sync(0xffffffff, v, 1);
    else
        v = __shfl_xor_sync(0xffffffff, v, 2);
    y[threadIdx.x] = v;
}

static __global__ void
shuffle_of_some(float *y)
{
    if (threadIdx.x % 2)
        y[threadIdx.x] = __shfl_xor_sync(0xffffffff, 1.0f, 1);
    __syncthreads();
}

TEST(threads_that_do_not_meet_are_named)
{
    for (int seed = 0; seed < SEEDS; seed++) {
        auto go = [](auto kernel, auto... args) {
            RT_LAUNCH(kernel, dim3(1), dim3(64), 0, stream(), args...);
            OK(cudaDeviceSynchronize());
        };
        check_ends([=] { go(barrier_of_some); }, RULE, "__syncthreads()",
                   with_seed(seed));
        check_ends([=] { go(barrier_in_branches); }, RULE, "different __syncthreads()",
                   with_seed(seed));
        check_ends([=] { go(shuffle_in_branches, managed<float>(64)); }, RULE,
                   "different warp operations", with_seed(seed));
        check_ends([=] { go(shuffle_of_some, managed<float>(64)); }, RULE, "arrived",
                   with_seed(seed));
    }
}

// ---- shared memory ----

template <Without without>
static __global__ void
count_lanes(float *y)
{
    __shared__ float sum;
    RT_DYNAMIC_SHARED(float, own);
    if (without != ZEROING && threadIdx.x == 0)
        sum = 0;
    __syncthreads();
    own[threadIdx.x] = 1;
    __syncthreads();
    for (int w = 0; w < 2; w++) {
        if (threadIdx.x == (unsigned)w * 32)
            for (int l = 0; l < 32; l++)
                sum += own[w * 32 + l];
        __syncthreads();
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

static __global__ void
run_over(int past)
{
    RT_DYNAMIC_SHARED(float, own);
    own[threadIdx.x + past] = 1;
}

template <class K>
static void
launch(float *out, K kernel, size_t shared)
{
    float *y = managed<float>(128);
    RT_LAUNCH(kernel, dim3(2), dim3(64), shared, stream(), y);
    OK(cudaDeviceSynchronize());
    if (out)
        memcpy(out, y, 128 * sizeof(float));
}

TEST(shared_memory_begins_as_nan)
{
    float *out = share<float>(128);
    check_same([=] { launch(out, count_lanes<NOTHING>, 256); }, out, 128);
    CHECK(out[0] == 64 && out[127] == 64);
    run([=] { launch(out, count_lanes<ZEROING>, 256); });
    CHECK(isnan(out[0]) && isnan(out[127]));
}

TEST(a_write_behind_shared_memory_is_found)
{
    check_canary(
        [] {
            RT_LAUNCH(run_over, dim3(1), dim3(64), 64 * 4, stream(), 1);
            OK(cudaDeviceSynchronize());
        },
        "behind the end of dynamic shared memory");
}

TEST(limits_of_a_launch)
{
    auto go = [](dim3 grid, dim3 block, size_t shared) {
        RT_LAUNCH(run_over, grid, block, shared, stream(), 0);
    };
    check_ends([=] { go(dim3(1), dim3(1025), 8192); }, RULE, "1025");
    check_ends([=] { go(dim3(1), dim3(1, 1, 65), 8192); }, RULE, "block of (1,1,65)");
    check_ends([=] { go(dim3(0), dim3(32), 8192); }, RULE, "grid of (0,1,1)");
    check_ends([=] { go(dim3(1, 65536), dim3(32), 8192); }, RULE,
               "grid of (1,65536,1)");
    check_ends([=] { go(dim3(1), dim3(32), 49153); }, RULE, "cudaFuncSetAttribute");
    const auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    check_ends(
        [=] {
            OK(cudaFuncSetAttribute(run_over, most, 227 * 1024));
            go(dim3(1), dim3(32), 227 * 1024);
            OK(cudaDeviceSynchronize());
            ok(cudaFuncSetAttribute(run_over, most, 227 * 1024 + 1) != cudaSuccess,
               "227 KB", __LINE__);
        },
        0, "");
}

// ---- warps ----

// d [16,8] = a [16,16] b [16,8], b given as [8,16], through shared memory as kernels do it.
template <class T, Without without>
static __global__ void
multiply(float *d, const T *a, const T *b)
{
    __shared__ __align__(128) T s[16 * 16 + 8 * 16];
    int l = threadIdx.x;
    rt_copy_async16(s + l * 8, a + l * 8, true);
    if (l < 16)
        rt_copy_async16(s + 256 + l * 8, b + l * 8, true);
    rt_copy_commit();
    if (without != COPY_WAIT)
        rt_copy_wait<0>();
    __syncthreads();
    uint32_t fa[4], fb[4];
    float c[4] = {0, 0, 0, 0};
    rt_ldmatrix4(fa, s + (l % 16) * 16 + l / 16 * 8);
    rt_ldmatrix4(fb, s + 256 + (l % 8) * 16 + l / 8 % 2 * 8);
    if (sizeof(T) == 2 && std::is_same<T, __half>::value)
        rt_mma_f16(c, fa, fb);
    else
        rt_mma_bf16(c, fa, fb);
    for (int i = 0; i < 4; i++)
        d[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = c[i];
}

template <class T, Without without>
static void
run_multiply(float *out)
{
    T *a = managed<T>(256), *b = managed<T>(128);
    float *d = managed<float>(128);
    for (int i = 0; i < 256; i++)
        a[i] = T((float)(i * 7 % 13) - 6);
    for (int i = 0; i < 128; i++)
        b[i] = T((float)(i * 5 % 11) * 0.25f);
    RT_LAUNCH((multiply<T, without>), dim3(1), dim3(32), 0, stream(), d, a, b);
    OK(cudaDeviceSynchronize());
    memcpy(out, d, 128 * sizeof(float));
}

static float
product(int row, int col)
{
    float sum = 0;
    for (int k = 0; k < 16; k++)
        sum += ((float)((row * 16 + k) * 7 % 13) - 6) *
               (float)((col * 16 + k) * 5 % 11) * 0.25f;
    return sum;
}

TEST(tensor_cores_multiply)
{
    float *out = share<float>(128);
    for (int low = 0; low < 2; low++) {
        check_same(
            [=] {
                if (low)
                    run_multiply<__half, NOTHING>(out);
                else
                    run_multiply<__nv_bfloat16, NOTHING>(out);
            },
            out, 128);
        int right = 0;
        for (int i = 0; i < 128; i++)
            right += out[i] == product(i / 8, i % 8);
        CHECK(right == 128);
    }
}

TEST(a_missing_wait_for_a_copy_shows)
{
    float *out = share<float>(128);
    for (int seed = 0; seed < SEEDS; seed++) {
        run([=] { run_multiply<__nv_bfloat16, COPY_WAIT>(out); }, with_seed(seed));
        CHECK(isnan(out[0]));
    }
}

static __global__ void
warp_words(int *y)
{
    int l = threadIdx.x;
    y[l] = __shfl_down_sync(0xffffffff, l, 4) + __shfl_up_sync(0xffffffff, l, 2) +
           __shfl_sync(0xffffffff, l, 3, 8);
    y[32 + l] = (int)__ballot_sync(0xffffffff, l % 3 == 0);
    y[64 + l] = __any_sync(0xffffffff, l == 5) + 2 * __all_sync(0xffffffff, l == 5);
}

TEST(words_of_warps)
{
    int *out = share<int>(96);
    check_same(
        [=] {
            int *y = managed<int>(96);
            RT_LAUNCH(warp_words, dim3(1), dim3(32), 0, stream(), y);
            OK(cudaDeviceSynchronize());
            memcpy(out, y, 96 * sizeof(int));
        },
        out, 96);
    for (int l = 0; l < 32; l++) {
        CHECK(out[l] ==
              (l + 4 < 32 ? l + 4 : l) + (l >= 2 ? l - 2 : l) + (l / 8 * 8 + 3));
        CHECK(out[32 + l] == 0x49249249);
        CHECK(out[64 + l] == 1);
    }
}

// ---- low types ----

TEST(low_types_round_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float b = vgpu::bf16_to_float((uint16_t)h), f = vgpu::f16_to_float((uint16_t)h);
        CHECK(isnan(b) || vgpu::float_to_bf16(b) == h);
        CHECK(isnan(f) || vgpu::float_to_f16(f) == h);
    }
    CHECK(vgpu::float_to_bf16(1.00390625f) == 0x3f80); // halfway: to even
    CHECK(vgpu::float_to_bf16(1.01171875f) == 0x3f82);
    CHECK(vgpu::float_to_f16(65519.0f) == 0x7bff &&
          vgpu::float_to_f16(65520.0f) == 0x7c00);
    CHECK(vgpu::float_to_f16(0x1p-25f) == 0 && vgpu::float_to_f16(0x1.8p-24f) == 2);
}
