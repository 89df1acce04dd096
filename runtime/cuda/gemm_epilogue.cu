/* gemm_epilogue.cu -- what else a product gives: a bias, GELU, its derivative, sums of an operand.
 *
 * cuBLASLt does these before C goes to memory. To the library, which is column-major, our rows are
 * columns: sums of our A over k are those of its B. It adds a bias in the type of its result, so a
 * bias of floats for a low result is rounded first; and it stores sums, so those that are to be
 * added go to scratch space, from where a kernel adds them.
 *
 * Apart, the plain product runs, and a kernel behind it: GELU reads H, where that is kept, and
 * else C in its place; the derivative multiplies C in its place; sums read the operand once more.
 * What is rounded to a low type in between is H, or the product that the derivative multiplies.
 */
#include "gemm_int.h"
#include "row_int.h"
#include "scratch.h"

/* ---- the library ---- */

static bool
has_aux(const rtc_call *g)
{
    return (g->d.epilogue == RT_GELU && g->with) || g->d.epilogue == RT_DGELU;
}

static bool
has_sums(const rtc_call *g)
{
    return g->d.epilogue == RT_SUM_A || g->d.epilogue == RT_SUM_B;
}

static int64_t
sums_of(const rtc_call *g)
{
    return g->d.epilogue == RT_SUM_A ? g->d.m : g->d.n;
}

static bool
rounds_bias(const rtc_call *g)
{
    return g->bias && g->d.c != RT_F32;
}

/* The rules of NVIDIA's documentation: a row of H is a multiple of 8 elements; sums have C's type;
 * a gradient has no bias. That H begins at a multiple of 16 bytes is our own: nothing is said of
 * it. Sums are those of its B where that is transposed, or its A where that is not, which are our
 * A and B; rt_epilogue has no others, either. */
bool
rtc_epilogue_fits(const rtc_call *g)
{
    const rt_gemm_desc *d = &g->d;
    if (!d->epilogue)
        return true;
    if (!rtc_wanted("EFFICC_EPILOGUES"))
        return false;
    if (has_aux(g) && (d->n % 8 || !rtc_fits(rtc_address(g->with), 16)))
        return false;
    if (has_sums(g) && d->c != RT_F32)
        return false;
    return d->batch == 1 && (d->epilogue == RT_GELU || !g->bias);
}

static cublasLtEpilogue_t
library_epilogue(const rtc_call *g)
{
    switch (g->d.epilogue) {
    case RT_GELU:
        if (g->with)
            return g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                           : CUBLASLT_EPILOGUE_GELU_AUX;
        return g->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case RT_DGELU:
        return CUBLASLT_EPILOGUE_DGELU;
    case RT_SUM_A:
        return CUBLASLT_EPILOGUE_BGRADB;
    case RT_SUM_B:
        return CUBLASLT_EPILOGUE_BGRADA;
    default:
        return g->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

void *
rtc_epilogue_vector(const rtc_call *g)
{
    rtc_gemm_space space = rtc_gemm_layout(&g->d);
    if (has_sums(g))
        return g->d.add_sum ? (char *)g->workspace + space.sums : g->with;
    if (rounds_bias(g))
        return (char *)g->workspace + space.bias;
    return (void *)g->bias;
}

void *
rtc_epilogue_aux(const rtc_call *g)
{
    return has_aux(g) ? g->with : NULL;
}

template <class T>
static bool
set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, T value)
{
    return !cublasLtMatmulDescSetAttribute(op, what, &value, sizeof value);
}

bool
rtc_epilogue_describe(cublasLtMatmulDesc_t op, const rtc_call *g)
{
    int32_t what = library_epilogue(g), type = rtc_library_type(g->d.c);
    return set(op, CUBLASLT_MATMUL_DESC_EPILOGUE, what) &&
           (!rtc_epilogue_vector(g) ||
            set(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type)) &&
           (!has_aux(g) || set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g->d.n));
}

bool
rtc_epilogue_place(cublasLtMatmulDesc_t op, const rtc_call *g)
{
    void *vector = rtc_epilogue_vector(g), *aux = rtc_epilogue_aux(g);
    return (!vector || set(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector)) &&
           (!aux || set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux));
}

static __global__ void
round_bias(void *y, rt_dtype t, const float *x, int64_t n)
{
    int64_t i = rtc_unit();
    if (i < n)
        rtc_put(y, i, t, x[i]);
}

void
rtc_epilogue_begin(rt_stream *s, const rtc_call *g)
{
    if (rounds_bias(g))
        RT_LAUNCH(round_bias, dim3((unsigned)rtc_blocks(g->d.n, RTC_THREADS)),
                  RTC_THREADS, 0, s->stream, rtc_epilogue_vector(g), g->d.c, g->bias,
                  g->d.n);
}

void
rtc_epilogue_end(rt_stream *s, const rtc_call *g)
{
    if (g->d.add_sum)
        rt_add_to(s, (float *)g->with, (const float *)rtc_epilogue_vector(g),
                  sums_of(g));
}

/* ---- apart: GELU ---- */

/* gelu_tanh and gelu_tanh_d of elementwise.def: sqrt(2 / pi), and the cube's share. */
static const float root = 0.79788456080286535588f, cube = 0.044715f;

static __device__ __forceinline__ float
gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(root * (x + cube * x * x * x)));
}

static __device__ __forceinline__ float
gelu_slope(float x)
{
    float t = tanhf(root * (x + cube * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * root * (1.0f + 3.0f * cube * x * x);
}

/* n: packs. y = GELU of h, which may be y; SLOPE: y times the derivative at h. */
template <class T, int N, bool SLOPE>
static __global__ void
gelu_packs(T *y, const T *h, int64_t n)
{
    typedef rtc_pack<T, N> pack;
    for (int64_t i = rtc_unit(); i < n; i += rtc_unit_step()) {
        pack v = ((const pack *)h)[i], old = v;
        if (SLOPE)
            old = ((const pack *)y)[i];
        for (int k = 0; k < N; k++) {
            float x = rtc_float(v.at[k]);
            v.at[k] = rtc_as<T>(SLOPE ? rtc_float(old.at[k]) * gelu_slope(x) : gelu(x));
        }
        ((pack *)y)[i] = v;
    }
}

template <class T, bool SLOPE>
static void
run_gelu(rt_stream *s, T *y, const T *h, int64_t n)
{
    enum { N = rtc_width<T>::N };
    bool wide = n % N == 0 && rtc_fits(rtc_address(y) | rtc_address(h), 16);
    int64_t packs = wide ? n / N : n;
    if (!n)
        return;
    rtc_grid g = rtc_rows_of(1, packs);
    if (wide)
        RT_LAUNCH((gelu_packs<T, N, SLOPE>), g.grid, g.block, 0, s->stream, y, h,
                  packs);
    else
        RT_LAUNCH((gelu_packs<T, 1, SLOPE>), g.grid, g.block, 0, s->stream, y, h,
                  packs);
}

/* ---- apart: sums ---- */

/* Of rows of memory, `ld` elements apart, each of which has a term of all n sums. */
typedef struct terms {
    int64_t n, k, ld;
    rt_dtype type;
    bool add;
} terms;

/* A warp has a sum. */
static __global__ void
sum_lines(float *y, const void *x, terms p)
{
    for (int64_t i = rtc_row(); i < p.n; i += rtc_row_step()) {
        float sum = 0;
        for (int64_t q = threadIdx.x; q < p.k; q += RTC_WARP)
            sum += rtc_get(x, q * p.ld + i, p.type);
        sum = rtc_warp_sum(sum);
        if (threadIdx.x == 0)
            y[i] = p.add ? y[i] + sum : sum;
    }
}

/* Without scratch space there is none for partial sums. */
static void
run_sums(rt_stream *s, const rtc_call *g)
{
    enum { LINES = RTC_THREADS / RTC_WARP };
    const rt_gemm_desc *d = &g->d;
    bool of_a = d->epilogue == RT_SUM_A;
    const void *x = of_a ? g->a : g->b;
    terms p = {sums_of(g), d->k, of_a ? d->lda : d->ldb, of_a ? d->a : d->b,
               d->add_sum};
    if (g->bytes) {
        char *parts = (char *)g->workspace + rtc_gemm_layout(d).parts;
        rt_colsum(s, (float *)g->with, x, p.type, p.k, p.n, p.ld, p.add, parts);
        return;
    }
    if (!p.n)
        return;
    dim3 grid(1, (unsigned)rtc_min(rtc_blocks(p.n, LINES), RTC_GRID_Y));
    RT_LAUNCH(sum_lines, grid, dim3(RTC_WARP, LINES), 0, s->stream, (float *)g->with, x,
              p);
}

/* ---- apart ---- */

rtc_call
rtc_epilogue_plain(const rtc_call *g)
{
    rtc_call plain = *g;
    plain.d.epilogue = RT_NO_EPILOGUE;
    plain.d.add_sum = false;
    plain.with = NULL;
    if (g->d.epilogue == RT_GELU && g->with)
        plain.c = g->with;
    return plain;
}

void
rtc_epilogue_apart(rt_stream *s, const rtc_call *g)
{
    rtc_call plain = rtc_epilogue_plain(g);
    int64_t n = g->d.m * g->d.n;
    rtc_run_product(s, &plain, g->bytes ? rtc_gemm_scratch(&plain.d, 1) : 0);
    if (has_sums(g))
        run_sums(s, g);
    else if (g->d.epilogue == RT_GELU)
        RTC_BY_TYPE(g->d.c, T, run_gelu<T, false>(s, (T *)g->c, (const T *)plain.c, n));
    else
        RTC_BY_TYPE(g->d.c, T, run_gelu<T, true>(s, (T *)g->c, (const T *)g->with, n));
}
