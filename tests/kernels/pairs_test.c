/* Products of bf16 bit by bit: whoever computes them -- oneDNN, our own kernel with the
 * processor's dot product of pairs, or without it -- adds in one order. Builds with and
 * without -DEFFICC_EMULATE=ON must pass, so both train alike. */
#include "kernel.h"
#include <cpuid.h>

typedef struct shape {
    int64_t m, n, k;
} shape;

/* Round the sizes of oneDNN's blocks of k, 512 and 1024. */
static const shape shapes[] = {{1, 1, 1},      {3, 5, 7},      {17, 33, 65},
                               {15, 40, 512},  {9, 17, 513},   {16, 32, 1024},
                               {4, 20, 1025},  {33, 7, 1536},  {2, 70, 2048},
                               {40, 48, 3001}, {1, 384, 1536}, {100, 2, 768}};
enum { NSHAPES = sizeof shapes / sizeof *shapes, LONGEST_TRANSPOSED = 1536 };

/* Elements of k that one chain adds; the chains are added in order. */
static int64_t
chain_of(const rt_gemm_desc *d)
{
    if (d->ta || d->k <= 512)
        return d->k;
    return d->k <= 1024 ? 512 : 1024;
}

/* Sum over k in [from, to): the second product of each pair comes first. */
static float
chain(const rt_gemm_desc *d, const float *a, const float *b, const int64_t range[2])
{
    int64_t sa = d->ta ? d->lda : 1, sb = d->tb ? 1 : d->ldb;
    float sum = 0;
    for (int64_t k = range[0]; k < range[1]; k += 2) {
        if (k + 1 < range[1])
            sum = fmaf(a[(k + 1) * sa], b[(k + 1) * sb], sum);
        sum = fmaf(a[k * sa], b[k * sb], sum);
    }
    return sum;
}

static float
element(const rt_gemm_desc *d, const float *a, const float *b)
{
    int64_t step = chain_of(d);
    float sum = 0;
    for (int64_t k = 0; k < d->k; k += step) {
        int64_t end = k + step < d->k ? k + step : d->k;
        float part = chain(d, a, b, (int64_t[]){k, end});
        sum = k ? sum + part : part;
    }
    return sum;
}

/* C after the product, before it is rounded to its type; gaps between rows stay. */
static void
expect(const rt_gemm_desc *d, float *c, const float *a, const float *b,
       const float *bias)
{
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->n; j++) {
            float v =
                element(d, a + (d->ta ? i : i * d->lda), b + (d->tb ? j * d->ldb : j));
            v *= d->alpha;
            v += d->bias ? bias[j] : 0;
            v += d->add ? c[i * d->ldc + j] : 0;
            c[i * d->ldc + j] = v;
        }
}

static void
check(rt_gemm_desc *d)
{
    int64_t na = (d->ta ? d->k : d->m) * d->lda, nb = (d->tb ? d->n : d->k) * d->ldb;
    int64_t nc = d->m * d->ldc;
    float *a = kt_noise(na, 1, 1), *b = kt_noise(nb, 2, 1), *c = kt_noise(nc, 3, 1);
    float *bias = kt_noise(d->n, 4, 1);
    void *la = kt_as(a, na, d->a), *lb = kt_as(b, nb, d->b), *got = kt_as(c, nc, d->c);
    d->scratch = kt_scratch.gemm(d, 2);
    NEED(d->scratch >= 0);
    rt_program p = {.ngemm = 1, .gemm = d};
    rt_stream *s = kt_open(&p, 2);
    rt_gemm(s, 0, got, la, lb, bias, kt_bytes(d->scratch));
    rt_device_close(s);
    expect(d, c, a, b, bias);
    CHECK(kt_is_rounded(got, c, nc, d->c));
    kt_done();
}

/* There oneDNN's products are matrix instructions, of another order. */
static bool
has_tiles(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1;
}

TEST(sums_of_bf16_are_chains_of_pairs)
{
    enum {
        TA = 1,
        TB = 2,
        BIAS = 4,
        ADD = 8,
        LOW = 16,
        ALPHA = 32,
        GAPS = 64,
        ALL = 128
    };
    for (unsigned i = 0; i < NSHAPES && !has_tiles(); i++)
        for (unsigned form = i % 3; form < ALL; form += 3) {
            const shape *z = &shapes[i];
            rt_gemm_desc d = {.m = z->m,
                              .n = z->n,
                              .k = z->k,
                              .a = RT_BF16,
                              .b = RT_BF16,
                              .c = form & LOW ? RT_BF16 : RT_F32,
                              .ta = form & TA,
                              .tb = form & TB,
                              .bias = form & BIAS,
                              .add = form & ADD,
                              .alpha = form & ALPHA ? -0.37f : 1,
                              .batch = 1};
            int64_t gap = form & GAPS ? 3 : 0;
            d.lda = (d.ta ? d.m : d.k) + gap;
            d.ldb = (d.tb ? d.k : d.n) + gap;
            d.ldc = d.n + gap;
            if (!d.ta || d.k <= LONGEST_TRANSPOSED)
                check(&d);
        }
}
