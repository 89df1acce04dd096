// vgpu_lt.cpp -- the functions of cuBLASLt: they check what the library checks, and enqueue.
//
// An algorithm carries what it was found for: its number, the alignments that it needs and a
// hash of the product. So a lookup that hands out another product's algorithm, a pointer that is
// aligned worse than was said, or a workspace that is too small are refused as on a GPU. The
// reason goes to stderr. VGPU_NO_ALGO=1: no product has an algorithm; VGPU_NO_EPILOGUE=1: none that
// does more than to add a bias; VGPU_SLOW_EPILOGUE=1: those take longer than anything else;
// VGPU_COLD=1: what is captured must have run before, as the library loads code in a first run.
#include "vgpu_gemm.h"
#include "vgpu_stream.h"
#include <algorithm>
#include <iterator>
#include <set>
#include <stdio.h>
#include <stdlib.h>

using namespace vgpu;

namespace vgpu {
uint64_t slow_products;
}

namespace {

std::set<uint64_t> ran; // products, each by an algorithm

struct Desc { // in a cublasLtMatmulDescOpaque_t
    int ta, tb, epilogue, bias_type, aux_type;
    void *bias, *aux;
    int64_t aux_ld;
};
struct Layout {
    int type, batch;
    uint64_t rows, cols;
    int64_t ld, stride;
};
struct Preference {
    uint64_t workspace;
    uint32_t align[4]; // of A, B, C, D
};
enum { VECTOR = 4, ALIGNED }; // behind A, B, C, D: the bias, or its gradient
struct Algo {
    uint64_t magic, product;
    uint32_t number, align[ALIGNED];
    uint64_t workspace;
};
static_assert(sizeof(Desc) <= sizeof(cublasLtMatmulDescOpaque_t), "size");
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "size");
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "size");
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t), "size");

enum : uint64_t { MAGIC = 0x76677075616c676f };
enum { ALGOS = 3 };

Desc *
desc(cublasLtMatmulDesc_t d)
{
    return (Desc *)d;
}

const Layout *
layout(cublasLtMatrixLayout_t l)
{
    return (const Layout *)l;
}

cublasStatus_t
refuse(cublasStatus_t s, const char *why)
{
    fprintf(stderr, "vgpu: cublasLt refuses: %s\n", why);
    return s;
}

template <class T>
bool
take(T *to, const void *from, size_t bytes)
{
    if (bytes != sizeof(T))
        return false;
    memcpy(to, from, bytes);
    return true;
}

// The largest power of two up to 16 that the address is a multiple of; NULL is aligned.
uint32_t
alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return low && low < 16 ? (uint32_t)low : 16;
}

bool
known(int type)
{
    return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

Matrix
matrix(const Layout *l, const void *at)
{
    return {at,       (cudaDataType)l->type, (int64_t)l->rows, (int64_t)l->cols, l->ld,
            l->stride};
}

uint64_t
mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

uint64_t
hash(const Gemm &g)
{
    uint64_t h = mix(g.ta * 2 + g.tb, (uint64_t)g.epilogue);
    const Matrix *all[4] = {&g.a, &g.b, &g.c, &g.d};
    for (const Matrix *x : all)
        for (uint64_t v : {(uint64_t)x->type, (uint64_t)x->rows, (uint64_t)x->cols,
                           (uint64_t)x->ld, (uint64_t)x->stride})
            h = mix(h, v);
    return mix(h, (uint64_t)g.batch);
}

// The product of four layouts, nullptr, or why it is none.
const char *
understand(Gemm *g, const Desc *d, const Layout *const l[4])
{
    for (int i = 0; i < 4; i++)
        if (l[i]->ld < (int64_t)l[i]->rows || !l[i]->rows || !l[i]->cols)
            return "a leading dimension is less than the rows, or a size is 0";
    bool ta = d->ta != CUBLAS_OP_N, tb = d->tb != CUBLAS_OP_N;
    *g = Gemm();
    g->ta = ta;
    g->tb = tb;
    g->a = matrix(l[0], nullptr);
    g->b = matrix(l[1], nullptr);
    g->c = matrix(l[2], nullptr);
    g->d = matrix(l[3], nullptr);
    g->m = g->d.rows;
    g->n = g->d.cols;
    g->k = ta ? g->a.rows : g->a.cols;
    g->batch = l[3]->batch;
    g->epilogue = d->epilogue;
    g->bias = d->bias;
    g->aux = d->aux;
    g->aux_ld = d->aux_ld;
    g->bias_type = (cudaDataType)(d->bias_type < 0 ? l[3]->type : d->bias_type);
    g->aux_type = (cudaDataType)(d->aux_type < 0 ? l[3]->type : d->aux_type);
    if ((ta ? g->a.cols : g->a.rows) != g->m || (tb ? g->b.cols : g->b.rows) != g->k ||
        (tb ? g->b.rows : g->b.cols) != g->n || g->c.rows != g->m || g->c.cols != g->n)
        return "the shapes of the matrices do not agree";
    for (int i = 0; i < 3; i++)
        if (l[i]->batch != l[3]->batch)
            return "the batch counts of the matrices differ";
    return nullptr;
}

bool
aligned(const void *p, uint64_t to)
{
    return (uintptr_t)p % to == 0;
}

bool
has_epilogue(int e)
{
    static const int all[] = {
        CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_RELU,
        CUBLASLT_EPILOGUE_BIAS,     CUBLASLT_EPILOGUE_RELU_BIAS,
        CUBLASLT_EPILOGUE_GELU,     CUBLASLT_EPILOGUE_GELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU,    CUBLASLT_EPILOGUE_DGELU_BGRAD,
        CUBLASLT_EPILOGUE_BGRADA,   CUBLASLT_EPILOGUE_BGRADB};
    return std::find(std::begin(all), std::end(all), e) != std::end(all);
}

// Does it do more than to add a bias?
bool
more_than_bias(const Gemm &g)
{
    return g.epilogue & ~(CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_BIAS);
}

// Combinations of types and epilogues that the library has; nullptr or what it has not.
const char *
supported(const Gemm &g)
{
    if (!known(g.a.type) || !known(g.c.type) || g.a.type != g.b.type ||
        g.c.type != g.d.type)
        return "A and B, and C and D, must have one type each: 32F, 16F or 16BF";
    if (g.c.type != g.a.type && g.c.type != CUDA_R_32F)
        return "the result is 32F or of the operands' type";
    if (!has_epilogue(g.epilogue))
        return "no such epilogue";
    if (g.epilogue & E_ANY_BIAS && g.bias_type != g.d.type)
        return "a bias, or its gradient, is not of the result's type";
    if (g.batch > 1 && g.epilogue & (E_ANY_BIAS_GRAD | E_ANY_AUX))
        return "gradient of a bias, or aux, in a batch";
    if ((g.epilogue == CUBLASLT_EPILOGUE_BGRADA && g.ta) ||
        (g.epilogue == CUBLASLT_EPILOGUE_BGRADB && !g.tb))
        return "sums of an A that is transposed, or of a B that is not";
    if (!(g.epilogue & E_ANY_AUX))
        return nullptr;
    if (g.aux_ld < g.m || g.aux_ld % 8)
        return "the leading dimension of aux is less than the rows or no multiple of 8";
    if (g.aux_type != g.d.type || !aligned(g.aux, 16))
        return "aux is not of the result's type, or not aligned to 16";
    return nullptr;
}

// What the caller's pointers and workspace must be; SUCCESS or said why.
cublasStatus_t
check_call(const Gemm &g, const Algo *algo, const void *workspace, size_t bytes)
{
    const Matrix *all[4] = {&g.a, &g.b, &g.c, &g.d};
    for (int i = 0; i < 4; i++) {
        if (i == 2 && g.beta == 0)
            continue; // C is not read
        if (!all[i]->at || !aligned(all[i]->at, element_bytes(all[i]->type)))
            return refuse(CUBLAS_STATUS_INVALID_VALUE,
                          "a matrix is NULL or misaligned");
        if (algo && !aligned(all[i]->at, algo->align[i]))
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                          "a pointer is aligned worse than the algorithm needs");
        check_pointer("cublasLtMatmul", i, all[i]->at);
    }
    if (g.epilogue & E_ANY_BIAS) {
        if (!g.bias)
            return refuse(CUBLAS_STATUS_INVALID_VALUE,
                          "the epilogue needs a bias pointer");
        if (algo && !aligned(g.bias, algo->align[VECTOR]))
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                          "the bias is aligned worse than it was for the algorithm");
        check_pointer("cublasLtMatmul bias", 0, g.bias);
    }
    if (g.epilogue & E_ANY_AUX) {
        if (!g.aux)
            return refuse(CUBLAS_STATUS_INVALID_VALUE,
                          "the epilogue needs an aux pointer");
        check_pointer("cublasLtMatmul aux", 0, g.aux);
    }
    if (!algo)
        return CUBLAS_STATUS_SUCCESS;
    if (algo->magic != MAGIC || algo->product != hash(g))
        return refuse(CUBLAS_STATUS_INVALID_VALUE,
                      "the algorithm was found for another product");
    if (algo->workspace > bytes || (algo->workspace && !aligned(workspace, 256)))
        return refuse(CUBLAS_STATUS_INVALID_VALUE,
                      "the workspace is too small or misaligned");
    return CUBLAS_STATUS_SUCCESS;
}

Access
access(const Matrix &x, int64_t batch, bool write)
{
    size_t bytes = element_bytes(x.type);
    Access a{x.at, (size_t)x.rows * bytes, (size_t)x.cols, (size_t)x.ld * bytes, 1, 0,
             write};
    if (batch > 1 && x.stride) {
        a.outer = (size_t)batch;
        a.outer_stride = (size_t)x.stride * bytes;
    }
    return a;
}

void
note_accesses(Op *op, const Gemm &g, void *workspace, size_t bytes)
{
    op->touches = {access(g.a, g.batch, false), access(g.b, g.batch, false)};
    if (g.beta != 0)
        op->touches.push_back(access(g.c, g.batch, false));
    op->touches.push_back(access(g.d, g.batch, true));
    if (bytes)
        op->touches.push_back({workspace, bytes, 1, 0, 1, 0, true});
    bool grad = g.epilogue & E_ANY_BIAS_GRAD;
    int64_t length = g.epilogue & E_SUM_B ? g.n : g.m;
    if (grad || g.epilogue & E_BIAS)
        op->touches.push_back(
            {g.bias, (size_t)length * element_bytes(g.bias_type), 1, 0, 1, 0, grad});
    size_t aux = element_bytes(g.aux_type);
    if (g.epilogue & E_ANY_AUX)
        op->touches.push_back({g.aux, (size_t)g.m * aux, (size_t)g.n,
                               (size_t)g.aux_ld * aux, 1, 0,
                               (g.epilogue & E_GELU_GRAD) == 0});
}

} // namespace

extern "C" {

cublasStatus_t
cublasLtCreate(cublasLtHandle_t *h)
{
    *h = (cublasLtHandle_t) new int(0);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtDestroy(cublasLtHandle_t h)
{
    delete (int *)h;
    return CUBLAS_STATUS_SUCCESS;
}

size_t
cublasLtGetVersion(void)
{
    return 130000;
}

const char *
cublasLtGetStatusName(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
        return "CUBLAS_STATUS_UNKNOWN";
    }
}

const char *
cublasLtGetStatusString(cublasStatus_t s)
{
    return cublasLtGetStatusName(s);
}

cublasStatus_t
cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                         cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                      "compute and scale type must be 32F");
    *d = new cublasLtMatmulDescOpaque_t();
    *desc(*d) = Desc{CUBLAS_OP_N,
                     CUBLAS_OP_N,
                     CUBLASLT_EPILOGUE_DEFAULT,
                     -1,
                     -1,
                     nullptr,
                     nullptr,
                     0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                               cublasLtMatmulDescAttributes_t what, const void *v,
                               size_t n)
{
    Desc *d = desc(handle);
    bool ok = false;
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        ok = take(&d->ta, v, n);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        ok = take(&d->tb, v, n);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        ok = take(&d->epilogue, v, n);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        ok = take(&d->bias, v, n);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        ok = take(&d->aux, v, n);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        ok = take(&d->aux_ld, v, n);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        ok = take(&d->aux_type, v, n);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        ok = take(&d->bias_type, v, n);
        break;
    default:
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                      "an attribute that the rig does not know");
    }
    return ok ? CUBLAS_STATUS_SUCCESS
              : refuse(CUBLAS_STATUS_INVALID_VALUE,
                       "the size of an attribute is wrong");
}

cublasStatus_t
cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows,
                           uint64_t cols, int64_t ld)
{
    *l = new cublasLtMatrixLayoutOpaque_t();
    *(Layout *)*l = Layout{type, 1, rows, cols, ld, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                 cublasLtMatrixLayoutAttribute_t what, const void *v,
                                 size_t n)
{
    Layout *l = (Layout *)handle;
    bool ok = false;
    if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        ok = take(&l->batch, v, n) && l->batch > 0;
    else if (what == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        ok = take(&l->stride, v, n);
    return ok ? CUBLAS_STATUS_SUCCESS
              : refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of a layout");
}

cublasStatus_t
cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = new cublasLtMatmulPreferenceOpaque_t();
    *(Preference *)*p = Preference{0, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                     cublasLtMatmulPreferenceAttributes_t what,
                                     const void *v, size_t n)
{
    Preference *p = (Preference *)handle;
    bool ok = true;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        ok = take(&p->workspace, v, n);
    else if (what >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             what <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        ok = take(&p->align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v, n);
    else if (what != CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        ok = false;
    return ok ? CUBLAS_STATUS_SUCCESS
              : refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of a preference");
}

// The first algorithm needs no workspace, the second some of it, the third all that is allowed.
cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                               cublasLtMatmulPreference_t preference, int want,
                               cublasLtMatmulHeuristicResult_t r[], int *found)
{
    const Layout *l[4] = {layout(a), layout(b), layout(c), layout(out)};
    const Preference *p = (const Preference *)preference;
    Gemm g;
    *found = 0;
    if (const char *why = understand(&g, desc(d), l))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, why);
    if (const char *why = supported(g))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
    init();
    if (settings.no_algo || (settings.no_epilogue && more_than_bias(g)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < std::min<int>(want, ALGOS); i++) {
        uint64_t workspace =
            i * (std::min<uint64_t>(p->workspace, 1 << 20) / (ALGOS - 1)) / 256 * 256;
        Algo algo{MAGIC, hash(g), (uint32_t)i, {}, workspace};
        for (int m = 0; m < 4; m++)
            algo.align[m] = std::min<uint32_t>(p->align[m], 16);
        algo.align[VECTOR] = alignment(g.bias);
        r[i] = cublasLtMatmulHeuristicResult_t();
        memcpy(&r[i].algo, &algo, sizeof algo);
        r[i].workspaceSize = workspace;
        r[i].wavesCount = 1;
        ++*found;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t
cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                        const cublasLtMatmulAlgo_t *given,
                        cublasLtMatmulHeuristicResult_t *r)
{
    const Layout *l[4] = {layout(a), layout(b), layout(c), layout(out)};
    Gemm g;
    Algo algo;
    memcpy(&algo, given, sizeof algo);
    if (understand(&g, desc(d), l) || supported(g) || algo.magic != MAGIC ||
        algo.product != hash(g))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *r = cublasLtMatmulHeuristicResult_t();
    r->algo = *given;
    r->workspaceSize = algo.workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
               const void *a, cublasLtMatrixLayout_t la, const void *b,
               cublasLtMatrixLayout_t lb, const void *beta, const void *c,
               cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t lout,
               const cublasLtMatmulAlgo_t *chosen, void *workspace, size_t bytes,
               cudaStream_t stream)
{
    const Layout *l[4] = {layout(la), layout(lb), layout(lc), layout(lout)};
    Gemm g;
    if (const char *why = understand(&g, desc(d), l))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, why);
    if (const char *why = supported(g))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
    g.alpha = *(const float *)alpha;
    g.beta = *(const float *)beta;
    g.a.at = a;
    g.b.at = b;
    g.c.at = c;
    g.d.at = out;
    Algo algo{};
    if (chosen)
        memcpy(&algo, chosen, sizeof algo);
    cublasStatus_t s = check_call(g, chosen ? &algo : nullptr, workspace, bytes);
    if (s != CUBLAS_STATUS_SUCCESS)
        return s;
    if (settings.product_fails)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    size_t used = (size_t)algo.workspace;
    uint64_t which = mix(hash(g), algo.number);
    if (settings.cold && stream_of(stream)->capture && !ran.count(which))
        die("cublasLtMatmul of %lld x %lld x %lld is captured and has not run before",
            (long long)g.m, (long long)g.n, (long long)g.k);
    slow_products += settings.slow_epilogue && more_than_bias(g);
    Op op;
    op.name = "cublasLtMatmul";
    note_accesses(&op, g, workspace, used);
    op.step = [=] {
        if (used)
            memset(workspace, 0xff, used);
        run_gemm(g);
        ran.insert(which);
        return true;
    };
    return enqueue(stream, std::move(op)) ? CUBLAS_STATUS_INVALID_VALUE
                                          : CUBLAS_STATUS_SUCCESS;
}
}
