/* gemm_lt.cu -- products by cuBLASLt.
 *
 * The library is column-major: C^T = op(B)^T op(A)^T, so it gets our B as its A, our A as its B,
 * and our rows as its columns. What a product is made of is looked up by its shape: descriptors,
 * and candidates for an algorithm, of which the first is taken until they are measured. That
 * happens for all products that were seen while a stream was captured, on the very operands, and
 * what was found is kept on disk (gemm_cache.cu).
 *
 * Sums are of floats, and split sums are added outside of C, in an order of their own: results
 * are the same every time. The library adds a bias in the type of its result; a bias of floats
 * for a low result is rounded first. What the library has no algorithm for, our own kernel does.
 */
#include "gemm_int.h"
#include "row_int.h"
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3 }; /* of a measurement */

/* ---- shapes ---- */

static int64_t
alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return low == 0 || low > 256 ? 256 : (int64_t)low;
}

static rtc_shape
shape_of(const rtc_call *g)
{
    const rt_gemm_desc *d = &g->d;
    rtc_shape s = {};
    s.m = d->m, s.n = d->n, s.k = d->k;
    s.lda = d->lda, s.ldb = d->ldb, s.ldc = d->ldc;
    s.batch = d->batch;
    if (d->batch > 1)
        s.sa = d->sa, s.sb = d->sb, s.sc = d->sc;
    s.ta = d->ta, s.tb = d->tb, s.bias = g->bias != NULL;
    s.from = g->from ? 1 + (g->from != g->c) : 0;
    s.a = d->a, s.b = d->b, s.c = d->c;
    s.a_align = alignment(g->a), s.b_align = alignment(g->b),
    s.c_align = alignment(g->c);
    s.from_align = alignment(g->from ? g->from : g->c);
    s.workspace = g->bytes;
    return s;
}

static cudaDataType
library_type(int64_t t)
{
    return t == RT_BF16 ? CUDA_R_16BF : t == RT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Sizes and types that the library has products of. */
static bool
library_takes(const rtc_shape *s)
{
    bool low = s->a != RT_F32;
    return s->a == s->b && (s->c == RT_F32 || (low && s->c == s->a));
}

/* ---- descriptors ---- */

static bool
make_layout(cublasLtMatrixLayout_t *l, int64_t type, const int64_t rows_cols_ld[3],
            int64_t batch, int64_t stride)
{
    int32_t count = (int32_t)batch;
    uint64_t rows = (uint64_t)rows_cols_ld[0], cols = (uint64_t)rows_cols_ld[1];
    return !cublasLtMatrixLayoutCreate(l, library_type(type), rows, cols,
                                       rows_cols_ld[2]) &&
           !cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                             &count, sizeof count) &&
           !cublasLtMatrixLayoutSetAttribute(
               *l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

static bool
make_layouts(rtc_product *p)
{
    const rtc_shape *s = &p->shape;
    int64_t a[3] = {s->ta ? s->m : s->k, s->ta ? s->k : s->m, s->lda};
    int64_t b[3] = {s->tb ? s->k : s->n, s->tb ? s->n : s->k, s->ldb};
    int64_t c[3] = {s->n, s->m, s->ldc};
    return make_layout(&p->a, s->a, a, s->batch, s->sa) &&
           make_layout(&p->b, s->b, b, s->batch, s->sb) &&
           make_layout(&p->c, s->c, c, s->batch, s->sc);
}

static bool
set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, int32_t value)
{
    return !cublasLtMatmulDescSetAttribute(op, what, &value, sizeof value);
}

static bool
make_op(rtc_product *p)
{
    const rtc_shape *s = &p->shape;
    if (cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        !set(p->op, CUBLASLT_MATMUL_DESC_TRANSA, s->tb ? CUBLAS_OP_T : CUBLAS_OP_N) ||
        !set(p->op, CUBLASLT_MATMUL_DESC_TRANSB, s->ta ? CUBLAS_OP_T : CUBLAS_OP_N))
        return false;
    return !s->bias ||
           (set(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS) &&
            set(p->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, library_type(s->c)));
}

static bool
prefer(rtc_gemms *g, cublasLtMatmulPreferenceAttributes_t what, int64_t value)
{
    uint32_t v = (uint32_t)value;
    return !cublasLtMatmulPreferenceSetAttribute(g->preference, what, &v, sizeof v);
}

static bool
set_preference(rtc_gemms *g, const rtc_shape *s)
{
    size_t bytes = (size_t)s->workspace;
    return !cublasLtMatmulPreferenceSetAttribute(
               g->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
               sizeof bytes) &&
           prefer(g, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) &&
           prefer(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s->b_align) &&
           prefer(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s->a_align) &&
           prefer(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s->from_align) &&
           prefer(g, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s->c_align);
}

/* ---- products ---- */

/* The cache's algorithm for p, if the library still takes it. */
static bool
take_cached(rtc_gemms *g, rtc_product *p)
{
    const cublasLtMatmulAlgo_t *algo = rtc_cache_find(g, &p->shape);
    cublasLtMatmulHeuristicResult_t r = {};
    if (!algo ||
        cublasLtMatmulAlgoCheck(g->library, p->op, p->b, p->a, p->c, p->c, algo, &r) ||
        (int64_t)r.workspaceSize > p->shape.workspace)
        return false;
    r.algo = *algo;
    p->found[0] = r;
    p->nfound = 1;
    return p->settled = true;
}

static void
free_product(rtc_product *p)
{
    if (p->op)
        cublasLtMatmulDescDestroy(p->op);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        cublasLtMatrixLayoutDestroy(p->c);
}

/* Candidates for p; none: the library can't do it. */
static void
find_candidates(rtc_gemms *g, rtc_product *p)
{
    if (!library_takes(&p->shape) || !make_op(p) || !make_layouts(p) ||
        take_cached(g, p) || !set_preference(g, &p->shape))
        return;
    if (cublasLtMatmulAlgoGetHeuristic(g->library, p->op, p->b, p->a, p->c, p->c,
                                       g->preference, RTC_CANDIDATES, p->found,
                                       &p->nfound))
        p->nfound = 0;
    int n = 0;
    for (int i = 0; i < p->nfound; i++)
        if (p->found[i].state == CUBLAS_STATUS_SUCCESS)
            p->found[n++] = p->found[i];
    p->nfound = n;
}

static rtc_product *
product_for(rtc_gemms *g, const rtc_call *call)
{
    rtc_shape shape = shape_of(call);
    for (int i = 0; i < g->nproduct; i++)
        if (!memcmp(&g->product[i].shape, &shape, sizeof shape))
            return &g->product[i];
    if (g->nproduct == g->room) {
        int room = 2 * g->room + 16;
        void *more = realloc(g->product, (size_t)room * sizeof *g->product);
        if (!more)
            RT_CUDA(cudaErrorMemoryAllocation);
        g->product = (rtc_product *)more;
        g->room = room;
    }
    rtc_product *p = &g->product[g->nproduct++];
    memset((void *)p, 0, sizeof *p);
    p->shape = shape;
    find_candidates(g, p);
    return p;
}

cublasStatus_t
rtc_run_candidate(rt_stream *s, const rtc_product *p, int i, const rtc_call *g,
                  const void *bias)
{
    float beta = g->from ? 1 : 0;
    if (bias && cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                               &bias, sizeof bias))
        return CUBLAS_STATUS_INVALID_VALUE;
    return cublasLtMatmul(s->gemms->library, p->op, &g->d.alpha, g->b, p->b, g->a, p->a,
                          &beta, g->from ? g->from : g->c, p->c, g->c, p->c,
                          &p->found[i].algo, g->workspace, (size_t)g->bytes, s->stream);
}

static void
say_once(rt_stream *s, const rtc_shape *p)
{
    static const char *const names[] = {"f32", "?", "?", "f16", "bf16"};
    if (s->gemms->said)
        return;
    s->gemms->said = true;
    fprintf(stderr,
            "note: cuBLASLt has no algorithm for a product of %lld x %lld x %lld (%s, "
            "%s to %s; "
            "rows %lld, %lld, %lld elements apart); a slower kernel does it, and "
            "others like it\n",
            (long long)p->m, (long long)p->n, (long long)p->k, names[p->a], names[p->b],
            names[p->c], (long long)p->lda, (long long)p->ldb, (long long)p->ldc);
}

/* Runs a candidate, the chosen one first; those that fail are forgotten. */
static bool
run_library(rt_stream *s, rtc_product *p, const rtc_call *g, const void *bias)
{
    while (p->nfound) {
        if (rtc_run_candidate(s, p, p->chosen, g, bias) == CUBLAS_STATUS_SUCCESS)
            return true;
        p->found[p->chosen] = p->found[--p->nfound];
        p->chosen = 0;
    }
    return false;
}

static bool
capturing(rt_stream *s)
{
    enum cudaStreamCaptureStatus status;
    RT_CUDA(cudaStreamIsCapturing(s->stream, &status));
    return status == cudaStreamCaptureStatusActive;
}

static __global__ void
round_bias(void *y, rt_dtype t, const float *x, int64_t n)
{
    int64_t i = rtc_unit();
    if (i < n)
        rtc_put(y, i, t, x[i]);
}

/* The bias in c's type: rounded into space, where that is a low one. */
static const void *
bias_for(rt_stream *s, const rtc_call *g, void *space)
{
    if (!g->bias || g->d.c == RT_F32)
        return g->bias;
    RT_LAUNCH(round_bias, dim3((unsigned)rtc_blocks(g->d.n, RTC_THREADS)), RTC_THREADS,
              0, s->stream, space, g->d.c, g->bias, g->d.n);
    return space;
}

/* have: bytes at g->workspace. */
static void
run_product(rt_stream *s, rtc_call *g, int64_t have)
{
    if (g->d.m == 0 || g->d.n == 0 || g->d.batch == 0)
        return;
    if (have < rtc_gemm_scratch(&g->d, 1)) /* too little for both of its parts */
        have = 0;
    g->bytes = have ? rtc_gemm_workspace(&g->d) : 0;
    bool rounds = g->bias && g->d.c != RT_F32;
    if (g->d.k == 0 || (rounds && !have)) {
        rtc_own_product(s, g);
        return;
    }
    rtc_product *p = product_for(s->gemms, g);
    const void *bias =
        p->nfound ? bias_for(s, g, (char *)g->workspace + g->bytes) : NULL;
    if (capturing(s) && !p->captured) {
        p->captured = true;
        p->call = *g;
    }
    if (run_library(s, p, g, bias))
        return;
    say_once(s, &p->shape);
    rtc_own_product(s, g);
}

void
rtc_matmul(rt_stream *s, const rt_gemm_desc *d, void *c, const void *a, const void *b,
           const float *bias, const void *from, void *workspace)
{
    const void *add = from ? from : d->add ? c : NULL;
    rtc_call g = {*d, c, a, b, add, d->bias ? bias : NULL, workspace, 0};
    run_product(s, &g, workspace ? rtc_gemm_scratch(d, 1) : 0);
}

static void
run_row(rt_stream *s, int i, void *c, const void *from, const void *a, const void *b,
        const float *bias, void *scratch)
{
    const rt_program *p = s->program;
    rt_gemm_desc d = p->gemm[i];
    if (d.vary_m)
        d.m = p->size[d.vary_m][s->at[d.vary_m]];
    if (d.vary_k)
        d.k = p->size[d.vary_k][s->at[d.vary_k]];
    rtc_call g = {d, c, a, b, d.add ? from : NULL, d.bias ? bias : NULL, scratch, 0};
    run_product(s, &g, scratch ? d.scratch : 0);
}

void
rt_gemm(rt_stream *s, int i, void *c, const void *a, const void *b, const float *bias,
        void *scratch)
{
    run_row(s, i, c, c, a, b, bias, scratch);
}

void
rt_gemm_from(rt_stream *s, int i, void *c, const void *from, const void *a,
             const void *b, const float *bias, void *scratch)
{
    run_row(s, i, c, from, a, b, bias, scratch);
}

/* ---- measurement ---- */

/* Milliseconds of a run of candidate i; infinite: it fails. */
static float
measure(rt_stream *s, const rtc_product *p, int i, cudaEvent_t event[2])
{
    const rtc_call *g = &p->call;
    const void *bias = g->bias && g->d.c != RT_F32 ? (char *)g->workspace + g->bytes
                                                   : (const void *)g->bias;
    float ms = INFINITY;
    if (rtc_run_candidate(s, p, i, g, bias) != CUBLAS_STATUS_SUCCESS)
        return ms;
    RT_CUDA(cudaEventRecord(event[0], s->stream));
    for (int k = 0; k < ROUNDS; k++)
        if (rtc_run_candidate(s, p, i, g, bias) != CUBLAS_STATUS_SUCCESS)
            return ms;
    RT_CUDA(cudaEventRecord(event[1], s->stream));
    RT_CUDA(cudaEventSynchronize(event[1]));
    RT_CUDA(cudaEventElapsedTime(&ms, event[0], event[1]));
    return ms;
}

static void
choose(rt_stream *s, rtc_product *p, cudaEvent_t event[2])
{
    float best = INFINITY;
    for (int i = 0; i < p->nfound; i++) {
        float ms = measure(s, p, i, event);
        if (ms < best)
            best = ms, p->chosen = i;
    }
    p->settled = true;
    if (best < INFINITY)
        rtc_cache_add(s->gemms, &p->shape, &p->found[p->chosen].algo);
}

bool
rtc_gemms_measure(rt_stream *s, char *error, size_t n)
{
    rtc_gemms *g = s->gemms;
    cudaEvent_t event[2];
    bool news = false;
    (void)error, (void)n;
    RT_CUDA(cudaEventCreate(&event[0]));
    RT_CUDA(cudaEventCreate(&event[1]));
    for (int i = 0; i < g->nproduct; i++) {
        rtc_product *p = &g->product[i];
        if (!p->captured || p->settled || !p->nfound)
            continue;
        choose(s, p, event);
        news = true;
    }
    RT_CUDA(cudaStreamSynchronize(s->stream));
    RT_CUDA(cudaEventDestroy(event[0]));
    RT_CUDA(cudaEventDestroy(event[1]));
    if (news)
        rtc_cache_write(s);
    return true;
}

/* ---- opening ---- */

bool
rtc_gemms_open(rt_stream *s, char *error, size_t n)
{
    rtc_gemms *g = s->gemms = (rtc_gemms *)calloc(1, sizeof *g);
    if (!g) {
        snprintf(error, n, "out of memory");
        return false;
    }
    cublasStatus_t e = cublasLtCreate(&g->library);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulPreferenceCreate(&g->preference);
    if (e != CUBLAS_STATUS_SUCCESS) {
        snprintf(error, n, "cuBLASLt can't be started: %s", cublasLtGetStatusName(e));
        return false;
    }
    rtc_cache_read(s);
    return true;
}

void
rtc_gemms_close(rt_stream *s)
{
    rtc_gemms *g = s->gemms;
    if (!g)
        return;
    for (int i = 0; i < g->nproduct; i++)
        free_product(&g->product[i]);
    if (g->preference)
        cublasLtMatmulPreferenceDestroy(g->preference);
    if (g->library)
        cublasLtDestroy(g->library);
    free(g->product);
    free(g->algo);
    free(g);
    s->gemms = NULL;
}
