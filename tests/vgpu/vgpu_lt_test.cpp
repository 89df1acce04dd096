// vgpu_lt_test.cpp -- cuBLASLt of the virtual GPU: numbers against double, and what it refuses.
#include "rig_test.h"
#include <cublasLt.h>

enum { M = 24, N = 13, K = 18, BATCH = 3, WORKSPACE = 1 << 16 };

struct Case {
    cudaDataType in, out;
    bool ta, tb, add;
    int epilogue, batch;
    bool one_b; // the same B for all products of the batch
};

static float
read_low(const void *p, cudaDataType t, int64_t i)
{
    uint16_t h = t == CUDA_R_32F ? 0 : ((const uint16_t *)p)[i];
    return t == CUDA_R_32F    ? ((const float *)p)[i]
           : t == CUDA_R_16BF ? vgpu::bf16_to_float(h)
                              : vgpu::f16_to_float(h);
}

static void
write_low(void *p, cudaDataType t, int64_t i, float v)
{
    if (t == CUDA_R_32F)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] =
            t == CUDA_R_16BF ? vgpu::float_to_bf16(v) : vgpu::float_to_f16(v);
}

// A matrix [rows, cols] with ld > rows; what lies between the columns stays NaN.
struct Operand {
    cudaDataType type;
    int rows, cols;
    int64_t ld, stride;
    char *data;
    cublasLtMatrixLayout_t layout;

    Operand(cudaDataType t, int r, int c, int batch, unsigned seed, bool one = false)
        : type(t), rows(r), cols(c), ld(r + 8), stride(one ? 0 : ld * c)
    {
        int64_t n = ld * c * batch;
        data = (char *)managed<float>((size_t)n);
        memset(data, 0xff, (size_t)n * sizeof(float));
        for (int b = 0; b < batch; b++)
            for (int j = 0; j < c; j++)
                for (int i = 0; i < r; i++) {
                    seed = seed * 1664525u + 1013904223u;
                    write_low(data, t, at(b, i, j), (float)(seed >> 20) / 2048 - 1);
                }
        OK(cublasLtMatrixLayoutCreate(&layout, t, (uint64_t)r, (uint64_t)c, ld));
        OK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                            &batch, sizeof batch));
        OK(cublasLtMatrixLayoutSetAttribute(layout,
                                            CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                            &stride, sizeof stride));
    }

    int64_t at(int b, int i, int j) const
    {
        return b * stride + j * ld + i;
    }

    double get(int b, int i, int j) const
    {
        return (double)read_low(data, type, at(b, i, j));
    }
};

struct Product {
    Case what;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[4];
    int count = 0;
    Operand a, b, c, d;
    float alpha = 0.5f, beta;
    char *bias, *aux, *workspace;
    int64_t aux_ld = (M + 7) / 8 * 8;
    uint64_t room = WORKSPACE;

    explicit Product(const Case &k)
        : what(k), a(k.in, k.ta ? K : M, k.ta ? M : K, k.batch, 1),
          b(k.in, k.tb ? N : K, k.tb ? K : N, k.batch, 2, k.one_b),
          c(k.out, M, N, k.batch, 3), d(k.out, M, N, k.batch, 4),
          beta(k.add ? 2.0f : 0.0f)
    {
        cublasOperation_t ta = k.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
        cublasOperation_t tb = k.tb ? CUBLAS_OP_T : CUBLAS_OP_N;
        cublasLtEpilogue_t e = (cublasLtEpilogue_t)k.epilogue;
        bias = (char *)managed<float>(M + N);
        aux = (char *)managed<float>((size_t)(aux_ld * N));
        workspace = device<char>(WORKSPACE);
        for (int i = 0; i < M; i++)
            write_low(bias, k.out, i, (float)i / 8 - 1);
        for (int64_t i = 0; i < aux_ld * N; i++)
            write_low(aux, k.out, i, (float)(i % 17) / 8 - 1);
        OK(cublasLtCreate(&lt));
        OK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, ta);
        set(CUBLASLT_MATMUL_DESC_TRANSB, tb);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, e);
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
        OK(cublasLtMatmulPreferenceCreate(&preference));
        OK(cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
    }

    template <class T> void set(cublasLtMatmulDescAttributes_t what_, T v)
    {
        OK(cublasLtMatmulDescSetAttribute(desc, what_, &v, sizeof v));
    }

    cublasStatus_t find()
    {
        return cublasLtMatmulAlgoGetHeuristic(lt, desc, a.layout, b.layout, c.layout,
                                              d.layout, preference, 4, found, &count);
    }

    cublasStatus_t multiply(int algo, size_t skew = 0)
    {
        return cublasLtMatmul(lt, desc, &alpha, a.data + skew, a.layout, b.data,
                              b.layout, &beta, c.data, c.layout, d.data, d.layout,
                              &found[algo].algo, workspace, room, 0);
    }

    // Of op(A), op(B).
    double left(int x, int i, int k) const
    {
        return what.ta ? a.get(x, k, i) : a.get(x, i, k);
    }

    double right(int x, int k, int j) const
    {
        return what.tb ? b.get(x, j, k) : b.get(x, k, j);
    }

    // Before GELU.
    double before(int x, int i, int j) const
    {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += left(x, i, k) * right(x, k, j);
        sum = sum * (double)alpha + (what.add ? (double)beta * c.get(x, i, j) : 0);
        if (what.epilogue & CUBLASLT_EPILOGUE_BIAS)
            sum += (double)read_low(bias, what.out, i);
        return sum;
    }

    double expected(int x, int i, int j) const
    {
        double sum = before(x, i, j),
               t = tanh(0.7978845608 * (sum + 0.044715 * sum * sum * sum));
        if (what.epilogue & CUBLASLT_EPILOGUE_GELU)
            sum *= 0.5 * (1 + t);
        if (what.epilogue & 64) {
            double z = (double)read_low(aux, what.out, j * aux_ld + i),
                   z3 = 0.044715 * z * z;
            t = tanh(0.7978845608 * (z + z3 * z));
            sum *= 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * 0.7978845608 * (1 + 3 * z3);
        }
        return sum;
    }

    // What else there is: rows of the result summed, an operand summed, or what GELU was of.
    int beside() const
    {
        return what.epilogue & 16                                   ? M
               : what.epilogue == CUBLASLT_EPILOGUE_BGRADA          ? M
               : what.epilogue == CUBLASLT_EPILOGUE_BGRADB          ? N
               : (what.epilogue & ~4) == CUBLASLT_EPILOGUE_GELU_AUX ? M * N
                                                                    : 0;
    }

    double beside_expected(int at) const
    {
        double sum = 0;
        if (what.epilogue & CUBLASLT_EPILOGUE_GELU)
            return before(0, at % M, at / M);
        if (what.epilogue & 16)
            for (int j = 0; j < N; j++)
                sum += expected(0, at, j);
        else
            for (int k = 0; k < K; k++)
                sum += what.epilogue == CUBLASLT_EPILOGUE_BGRADA ? left(0, at, k)
                                                                 : right(0, k, at);
        return sum;
    }

    double beside_got(int at) const
    {
        if (what.epilogue & CUBLASLT_EPILOGUE_GELU)
            return (double)read_low(aux, what.out, at / M * aux_ld + at % M);
        return (double)read_low(bias, what.out, at);
    }
};

// The largest error of a product, relative to the rounding of its type; all algorithms agree.
static double
measure(const Case &k)
{
    Product p(k);
    double worst = 0, unit = k.out == CUDA_R_32F   ? 1e-6
                             : k.out == CUDA_R_16F ? 1e-3
                                                   : 8e-3;
    auto note = [&](double got, double want) {
        double e = fabs(got - want) / (1 + fabs(want)) / unit;
        worst = e <= worst ? worst : e; // NaN counts
    };
    OK(p.find());
    ok(p.count == 3, "three algorithms", __LINE__);
    for (int algo = 0; algo < p.count; algo++) {
        OK(p.multiply(algo));
        OK(cudaDeviceSynchronize());
        for (int x = 0; x < k.batch; x++)
            for (int j = 0; j < N; j++)
                for (int i = 0; i < M; i++)
                    note(p.d.get(x, i, j), p.expected(x, i, j));
        for (int i = 0; i < p.beside(); i++)
            note(p.beside_got(i), p.beside_expected(i));
    }
    return worst;
}

TEST(products_are_right)
{
    const cudaDataType types[][2] = {{CUDA_R_32F, CUDA_R_32F},
                                     {CUDA_R_16BF, CUDA_R_16BF},
                                     {CUDA_R_16BF, CUDA_R_32F},
                                     {CUDA_R_16F, CUDA_R_16F},
                                     {CUDA_R_16F, CUDA_R_32F}};
    for (const auto &t : types)
        for (int e : {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                      CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS,
                      CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                      CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD,
                      CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB})
            for (int flags = 0; flags < 8; flags++) {
                if ((e == CUBLASLT_EPILOGUE_BGRADA && flags & 1) ||
                    (e == CUBLASLT_EPILOGUE_BGRADB && !(flags & 2)))
                    continue; // the library has none
                Case k = {
                    t[0], t[1], (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, e,
                    1,    false};
                Result r = run([=] { ok(measure(k) < 2, "error", __LINE__); });
                CHECK(r.code == 0);
                if (r.code)
                    printf("  types %d %d, epilogue %d, flags %d: %s", t[0], t[1], e,
                           flags, r.said.c_str());
            }
}

static const Case plain = {
    CUDA_R_16BF, CUDA_R_16BF, false, true, true, CUBLASLT_EPILOGUE_DEFAULT, 1, false};

TEST(batches)
{
    for (int one = 0; one < 2; one++) {
        Case k = plain;
        k.batch = BATCH;
        k.one_b = one;
        check_ends([=] { ok(measure(k) < 2, "error", __LINE__); }, 0, "");
    }
}

// What is refused says why.
static void
check_refused(void (*change)(Product *), cublasStatus_t status, const char *why,
              const Env &env = {})
{
    check_ends(
        [=] {
            Product p(plain), other(plain);
            OK(p.find());
            change(&p);
            cublasStatus_t s = p.multiply(2);
            ok(s == status, "the status", __LINE__);
        },
        0, why, env);
}

TEST(refusals)
{
    check_refused(
        [](Product *p) {
            OK(cublasLtMatrixLayoutCreate(&p->a.layout, CUDA_R_16BF, M, K, M - 1));
        },
        CUBLAS_STATUS_INVALID_VALUE, "leading dimension");
    check_refused(
        [](Product *p) {
            OK(cublasLtMatrixLayoutCreate(&p->a.layout, CUDA_R_16BF, M, K + 1, M));
        },
        CUBLAS_STATUS_INVALID_VALUE, "shapes");
    check_refused(
        [](Product *p) {
            OK(cublasLtMatrixLayoutCreate(&p->a.layout, CUDA_R_16BF, M, K, M));
        },
        CUBLAS_STATUS_INVALID_VALUE, "another product");
    check_refused([](Product *p) { p->a.data += 2; }, CUBLAS_STATUS_NOT_SUPPORTED,
                  "aligned worse");
    check_refused([](Product *p) { p->a.data += 1; }, CUBLAS_STATUS_INVALID_VALUE,
                  "misaligned");
    check_refused([](Product *p) { p->room = 100; }, CUBLAS_STATUS_INVALID_VALUE,
                  "workspace");
}

TEST(pointers_of_the_host_and_misalignment_that_was_said)
{
    check_ends(
        [] {
            Product p(plain);
            static char host[100000];
            OK(p.find());
            p.a.data = host;
            p.multiply(0);
        },
        RULE, "cublasLtMatmul");
    check_ends(
        [] {
            Product p(plain);
            uint32_t align = 2;
            OK(cublasLtMatmulPreferenceSetAttribute(
                p.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align,
                sizeof align));
            OK(p.find());
            OK(p.multiply(0, 2));
        },
        0, "");
}

TEST(no_algorithm)
{
    check_ends(
        [] {
            Product p(plain);
            ok(p.find() == CUBLAS_STATUS_NOT_SUPPORTED && !p.count, "none", __LINE__);
        },
        0, "", {{"VGPU_NO_ALGO", "1"}});
    check_ends(
        [] {
            Case k = plain;
            k.in = CUDA_R_32F; // into bf16
            Product p(k);
            ok(p.find() == CUBLAS_STATUS_NOT_SUPPORTED, "types", __LINE__);
        },
        0, "the result is 32F");
}

static const Case gelu = {CUDA_R_16BF, CUDA_R_16BF, false,
                          false,       false,       CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                          1,           false};

// What is said of an epilogue before algorithms are named.
static void
check_not_found(void (*change)(Product *), const char *why, const Env &env = {})
{
    check_ends(
        [=] {
            Product p(gelu);
            change(&p);
            ok(p.find() == CUBLAS_STATUS_NOT_SUPPORTED && !p.count, "none", __LINE__);
        },
        0, why, env);
}

TEST(epilogues_without_algorithm)
{
    check_not_found(
        [](Product *p) {
            p->set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)M + 4);
        },
        "no multiple of 8");
    check_not_found(
        [](Product *p) {
            p->set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p->aux + 8);
        },
        "aligned to 16");
    check_not_found(
        [](Product *p) { p->set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F); },
        "not of the result's type");
    check_not_found(
        [](Product *p) { p->set(CUBLASLT_MATMUL_DESC_EPILOGUE, (int32_t)96); },
        "no such epilogue");
    check_not_found([](Product *) {}, "", {{"VGPU_NO_EPILOGUE", "1"}});
    for (int e : {CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB})
        check_ends(
            [=] {
                Case k = gelu;
                k.ta = e == CUBLASLT_EPILOGUE_BGRADA;
                k.epilogue = e;
                Product p(k);
                ok(p.find() == CUBLAS_STATUS_NOT_SUPPORTED, "turned", __LINE__);
            },
            0, "sums of an A that is transposed, or of a B that is not");
    check_ends(
        [] {
            Case k = plain;
            k.epilogue = CUBLASLT_EPILOGUE_BIAS;
            Product p(k);
            OK(p.find());
            OK(p.multiply(0));
            p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias + 2);
            ok(p.multiply(0) == CUBLAS_STATUS_NOT_SUPPORTED, "status", __LINE__);
        },
        0, "the bias is aligned worse", {{"VGPU_NO_EPILOGUE", "1"}});
}

// Milliseconds of a product, and of one with GELU.
static void
check_times(float plain_ms, float gelu_ms, const Env &env)
{
    check_ends(
        [=] {
            for (const Case &k : {plain, gelu}) {
                Product p(k);
                cudaEvent_t event[2];
                float ms = 0;
                OK(p.find());
                OK(cudaEventCreate(&event[0]));
                OK(cudaEventCreate(&event[1]));
                OK(cudaEventRecord(event[0], 0));
                OK(p.multiply(0));
                OK(cudaEventRecord(event[1], 0));
                OK(cudaEventSynchronize(event[1]));
                OK(cudaEventElapsedTime(&ms, event[0], event[1]));
                ok(ms == (k.epilogue == gelu.epilogue ? gelu_ms : plain_ms), "ms",
                   __LINE__);
            }
        },
        0, "", env);
}

TEST(epilogues_may_take_longer)
{
    check_times(1, 1, {});
    check_times(1, 2, {{"VGPU_SLOW_EPILOGUE", "1"}});
}

// What it reads and writes beside the result is known, too.
TEST(epilogues_may_not_share_what_they_write)
{
    auto program = [](int epilogue, bool share) {
        Case k = gelu;
        k.epilogue = epilogue;
        k.tb = epilogue == CUBLASLT_EPILOGUE_BGRADB;
        Product p(k), q(k);
        if (share) {
            q.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
            q.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
        }
        OK(p.find());
        OK(q.find());
        OK(cudaDeviceSynchronize());
        for (Product *x : {&p, &q})
            OK(cublasLtMatmul(x->lt, x->desc, &x->alpha, x->a.data, x->a.layout,
                              x->b.data, x->b.layout, &x->beta, x->c.data, x->c.layout,
                              x->d.data, x->d.layout, &x->found[0].algo, x->workspace,
                              x->room, stream()));
        OK(cudaDeviceSynchronize());
    };
    const Env race = {{"VGPU_RACE", "1"}};
    for (int e : {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_BGRADA,
                  CUBLASLT_EPILOGUE_BGRADB}) {
        CHECK(run([=] { program(e, false); }, race).code == 0);
        CHECK(run([=] { program(e, true); }, race).code == RACE);
    }
    for (int e : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DGELU}) // which are read
        CHECK(run([=] { program(e, true); }, race).code == 0);
}

// A product says what it uses: another one on the same workspace is a race.
TEST(workspaces_may_not_be_shared)
{
    auto program = [](int algo) {
        Product p(plain), q(plain);
        OK(p.find());
        OK(q.find());
        q.workspace = p.workspace;
        OK(cudaDeviceSynchronize());
        for (Product *x : {&p, &q})
            OK(cublasLtMatmul(x->lt, x->desc, &x->alpha, x->a.data, x->a.layout,
                              x->b.data, x->b.layout, &x->beta, x->c.data, x->c.layout,
                              x->d.data, x->d.layout, &x->found[algo].algo,
                              x->workspace, x->room, stream()));
        OK(cudaDeviceSynchronize());
    };
    CHECK(run([=] { program(0); }, {{"VGPU_RACE", "1"}}).code == 0);
    CHECK(run([=] { program(1); }, {{"VGPU_RACE", "1"}}).code == RACE);
}
