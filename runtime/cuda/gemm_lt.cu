/* gemm_lt.cu -- products by cuBLASLt.
 *
 * The library is column-major: C^T = op(B)^T op(A)^T, so it gets our B as its A, our A as its B,
 * and our rows as its columns. What a product is made of is looked up by its shape: descriptors,
 * and candidates for an algorithm, of which the first is taken until they are measured. That
 * happens for all products that were seen while a stream was captured, on the very operands, and
 * what was found is kept on disk (gemm_cache.cu).
 *
 * Sums are of floats, and split sums are added outside of C, in an order of their own: results
 * are the same every time. What the library has no algorithm for, our own kernel does.
 *
 * An epilogue (gemm_epilogue.cu) is part of the shape. Where one was captured, the same product
 * without it is measured, too, and then the epilogue apart, as a kernel behind that product: what
 * is faster stays. Where the library has no algorithm with the epilogue it is apart at once, and
 * with EFFICC_EPILOGUES=0 always.
 */
#include "gemm_int.h"
#include "row_int.h"
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3 }; /* of a measurement */

/* ---- shapes ---- */

/* Of NULL: 256. */
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
    s.epilogue = d->epilogue;
    s.with = g->with ? 1 + d->add_sum : 0;
    s.a_align = alignment(g->a), s.b_align = alignment(g->b),
    s.c_align = alignment(g->c);
    s.from_align = alignment(g->from ? g->from : g->c);
    s.vector_align = alignment(rtc_epilogue_vector(g));
    s.aux_align = alignment(rtc_epilogue_aux(g));
    s.workspace = g->bytes;
    return s;
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
    return !cublasLtMatrixLayoutCreate(l, rtc_library_type(type), rows, cols,
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
set_transposed(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, bool t)
{
    int32_t value = t ? CUBLAS_OP_T : CUBLAS_OP_N;
    return !cublasLtMatmulDescSetAttribute(op, what, &value, sizeof value);
}

/* What is at the epilogue's places the library wants to know before it names algorithms. */
static bool
make_op(rtc_product *p, const rtc_call *g)
{
    return !cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
           set_transposed(p->op, CUBLASLT_MATMUL_DESC_TRANSA, g->d.tb) &&
           set_transposed(p->op, CUBLASLT_MATMUL_DESC_TRANSB, g->d.ta) &&
           rtc_epilogue_describe(p->op, g) && rtc_epilogue_place(p->op, g);
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

/* The cache's algorithm for p, if the library still takes it; or none, where the epilogue is
 * apart. */
static bool
take_cached(rtc_gemms *g, rtc_product *p)
{
    const rtc_algo *a = rtc_cache_find(g, &p->shape);
    cublasLtMatmulHeuristicResult_t r = {};
    if (a && a->apart)
        return p->settled = true;
    if (!a ||
        cublasLtMatmulAlgoCheck(g->library, p->op, p->b, p->a, p->c, p->c, &a->algo,
                                &r) ||
        (int64_t)r.workspaceSize > p->shape.workspace)
        return false;
    r.algo = a->algo;
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
find_candidates(rtc_gemms *g, rtc_product *p, const rtc_call *call)
{
    if (!library_takes(&p->shape) || !rtc_epilogue_fits(call) || !make_op(p, call) ||
        !make_layouts(p) || take_cached(g, p) || !set_preference(g, &p->shape))
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
    find_candidates(g, p, call);
    return p;
}

/* Ends the process where e is no refusal but an error of the device: another kernel would meet it,
 * too, and take the blame. */
static void
check_product(cublasStatus_t e, const rtc_call *g)
{
    if (e != CUBLAS_STATUS_EXECUTION_FAILED && e != CUBLAS_STATUS_INTERNAL_ERROR)
        return;
    RT_CUDA(cudaGetLastError());
    if (e == CUBLAS_STATUS_EXECUTION_FAILED)
        exit(rt_fail(RT_BUG, "a product of %lld x %lld x %lld failed in cuBLASLt: %s",
                     (long long)g->d.m, (long long)g->d.n, (long long)g->d.k,
                     cublasLtGetStatusName(e)));
}

/* Enqueues g by candidate i of p. false: the library refused, and nothing was enqueued but what
 * goes before. */
static bool
run_candidate(rt_stream *s, const rtc_product *p, int i, const rtc_call *g)
{
    float beta = g->from ? 1 : 0;
    if (!rtc_epilogue_place(p->op, g))
        return false;
    rtc_epilogue_begin(s, g);
    cublasStatus_t e =
        cublasLtMatmul(s->gemms->library, p->op, &g->d.alpha, g->b, p->b, g->a, p->a,
                       &beta, g->from ? g->from : g->c, p->c, g->c, p->c,
                       &p->found[i].algo, g->workspace, (size_t)g->bytes, s->stream);
    check_product(e, g);
    if (e != CUBLAS_STATUS_SUCCESS)
        return false;
    rtc_epilogue_end(s, g);
    return true;
}

static void
say_once(rt_stream *s, const rtc_shape *p)
{
    static const char *const names[] = {"f32", "?", "?", "f16", "bf16"};
    if (s->gemms->said)
        return;
    s->gemms->said = true;
    rt_say("note",
           "cuBLASLt has no algorithm for a product of %lld x %lld x %lld (%s, %s to "
           "%s; rows %lld, %lld, %lld elements apart); a slower kernel does it, and "
           "others like it",
           (long long)p->m, (long long)p->n, (long long)p->k, names[p->a], names[p->b],
           names[p->c], (long long)p->lda, (long long)p->ldb, (long long)p->ldc);
}

/* Runs a candidate, the chosen one first; those that fail are forgotten. */
static bool
run_library(rt_stream *s, rtc_product *p, const rtc_call *g)
{
    while (p->nfound) {
        if (run_candidate(s, p, p->chosen, g))
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

/* Keeps g for a measurement; of two products the one without the epilogue is measured first. */
static void
note_captured(rt_stream *s, const rtc_call *g)
{
    if (g->d.epilogue) {
        rtc_call plain = rtc_epilogue_plain(g);
        note_captured(s, &plain);
    }
    rtc_product *p = product_for(s->gemms, g);
    if (!p->captured) {
        p->captured = true;
        p->call = *g;
    }
}

static void
without_library(rt_stream *s, const rtc_call *g)
{
    if (g->d.epilogue)
        rtc_epilogue_apart(s, g);
    else
        rtc_own_product(s, g);
}

void
rtc_run_product(rt_stream *s, rtc_call *g, int64_t have)
{
    bool empty = g->d.m == 0 || g->d.n == 0 || g->d.batch == 0;
    rtc_gemm_space space = rtc_gemm_layout(&g->d);
    if (empty && !g->d.epilogue)
        return;
    g->bytes = have < space.bytes ? 0 : rtc_gemm_workspace(&g->d);
    /* without space there is none either for what the library takes from there */
    if (empty || g->d.k == 0 || (!g->bytes && space.bias < space.parts)) {
        without_library(s, g);
        return;
    }
    if (capturing(s))
        note_captured(s, g);
    if (s->learns)
        return;
    rtc_product *p = product_for(s->gemms, g);
    if (run_library(s, p, g))
        return;
    if (!g->d.epilogue)
        say_once(s, &p->shape);
    without_library(s, g);
}

void
rtc_matmul(rt_stream *s, const rt_gemm_desc *d, void *c, const void *a, const void *b,
           const float *bias, const void *from, void *workspace)
{
    const void *add = from ? from : d->add ? c : NULL;
    rtc_call g = {};
    g.d = *d;
    g.c = c, g.a = a, g.b = b, g.from = add;
    g.bias = d->bias ? bias : NULL;
    g.workspace = workspace;
    rtc_run_product(s, &g, workspace ? rtc_gemm_scratch(d, 1) : 0);
}

/* g: but for the description, which is number i of the table. */
static void
run_row(rt_stream *s, int i, rtc_call *g)
{
    const rt_program *p = s->program;
    rt_gemm_desc *d = &g->d;
    *d = p->gemm[i];
    if (d->vary_m)
        d->m = p->size[d->vary_m][s->at[d->vary_m]];
    if (d->vary_k)
        d->k = p->size[d->vary_k][s->at[d->vary_k]];
    g->from = d->add ? g->from : NULL;
    g->bias = d->bias ? g->bias : NULL;
    rtc_run_product(s, g, g->workspace ? d->scratch : 0);
}

void
rt_gemm(rt_stream *s, int i, void *c, const void *a, const void *b, const float *bias,
        void *scratch)
{
    rtc_call g = {};
    g.c = c, g.a = a, g.b = b, g.from = c, g.bias = bias;
    g.workspace = scratch;
    run_row(s, i, &g);
}

void
rt_gemm_from(rt_stream *s, int i, void *c, const void *from, const void *a,
             const void *b, const float *bias, void *scratch)
{
    rtc_call g = {};
    g.c = c, g.a = a, g.b = b, g.from = from, g.bias = bias;
    g.workspace = scratch;
    run_row(s, i, &g);
}

void
rt_gemm_with(rt_stream *s, int i, void *c, void *with, const void *a, const void *b,
             const float *bias, void *scratch)
{
    rtc_call g = {};
    g.c = c, g.a = a, g.b = b, g.from = c, g.bias = bias;
    g.with = with;
    g.workspace = scratch;
    run_row(s, i, &g);
}

/* ---- measurement ---- */

/* By candidate i, or behind the last of them apart. */
static bool
run_way(rt_stream *s, const rtc_product *p, int i)
{
    if (i < p->nfound)
        return run_candidate(s, p, i, &p->call);
    rtc_epilogue_apart(s, &p->call);
    return true;
}

/* Milliseconds of a run of way i; infinite: it fails. */
static float
measure(rt_stream *s, const rtc_product *p, int i, cudaEvent_t event[2])
{
    float ms = INFINITY;
    if (!run_way(s, p, i))
        return ms;
    RT_CUDA(cudaEventRecord(event[0], s->stream));
    for (int k = 0; k < ROUNDS; k++)
        if (!run_way(s, p, i))
            return ms;
    RT_CUDA(cudaEventRecord(event[1], s->stream));
    RT_CUDA(cudaEventSynchronize(event[1]));
    RT_CUDA(cudaEventElapsedTime(&ms, event[0], event[1]));
    return ms;
}

/* The first of the fastest ways. */
static void
choose(rt_stream *s, rtc_product *p, cudaEvent_t event[2])
{
    float best = INFINITY;
    int ways = p->nfound + (p->shape.epilogue ? 1 : 0);
    for (int i = 0; i < ways; i++) {
        float ms = measure(s, p, i, event);
        if (ms < best)
            best = ms, p->chosen = i;
    }
    rtc_algo a = {p->shape, p->chosen == p->nfound, {}};
    if (!a.apart)
        a.algo = p->found[p->chosen].algo;
    else
        p->nfound = p->chosen = 0;
    p->settled = true;
    if (best < INFINITY)
        rtc_cache_add(s->gemms, &a);
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
        if (!p->captured || !p->nfound)
            continue;
        if (!p->settled)
            choose(s, p, event);
        else if (run_library(s, p, &p->call))
            continue;
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
    free(g->slot);
    free(g);
    s->gemms = NULL;
}
