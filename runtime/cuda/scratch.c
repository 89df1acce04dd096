/* scratch.c -- the table of functions by which a plan knows how much space kernels of the CUDA
 * device want.
 */
#include "scratch.h"

enum { SPLITS = 16, SMALL_WORKSPACE = 64 << 10, MOST_WORKSPACE = 32 << 20 };
enum { ROWS_PER_GROUP = 16, MOST_GROUPS = 512 }; /* of norms */

static int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t
most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t
round_up(int64_t a, int64_t unit)
{
    return (a + unit - 1) / unit * unit;
}

static int64_t
cut(int64_t *at, int64_t bytes)
{
    int64_t from = *at;
    *at += round_up(bytes, RTC_ALIGN);
    return from;
}

/* ---- products ---- */

int64_t
rtc_gemm_workspace(const rt_gemm_desc *d)
{
    int64_t result = d->m * d->n * d->batch * (int64_t)sizeof(float);
    return least(MOST_WORKSPACE,
                 SMALL_WORKSPACE + round_up(SPLITS * result, RTC_ALIGN));
}

rtc_gemm_space
rtc_gemm_layout(const rt_gemm_desc *d)
{
    bool rounds = d->bias && d->c != RT_F32;
    int64_t sums = d->epilogue == RT_SUM_A ? d->m : d->epilogue == RT_SUM_B ? d->n : 0;
    int64_t at = rtc_gemm_workspace(d);
    rtc_gemm_space s;
    s.bias = cut(&at, rounds ? d->n * (int64_t)sizeof(rt_bf16) : 0);
    s.sums = cut(&at, d->add_sum ? sums * (int64_t)sizeof(float) : 0);
    s.parts = cut(&at, rtc_colsum_scratch(d->k, sums, 1));
    s.bytes = at;
    return s;
}

int64_t
rtc_gemm_scratch(const rt_gemm_desc *d, int threads)
{
    (void)threads;
    return rtc_gemm_layout(d).bytes;
}

/* ---- a head ---- */

/* Leading dimension of d logits, which lie where the floats were. */
static int64_t
low_ld(const rt_head *d, int64_t ld)
{
    return d->type == RT_F32 ? ld : 2 * ld;
}

rt_gemm_desc
rtc_head_gemm(const rt_head *d, rtc_head_product which, int64_t n, int64_t ld)
{
    rt_gemm_desc g = {.a = d->type, .b = d->type, .alpha = 1, .batch = 1};
    int64_t ldw = d->tb ? d->h : d->v;
    if (which == RTC_HEAD_Y) { /* [n,v] = x [n,h] w */
        g.m = n, g.n = d->v, g.k = d->h, g.tb = d->tb;
        g.lda = d->h, g.ldb = ldw, g.ldc = ld;
    } else if (which == RTC_HEAD_DX) { /* [n,h] = dlogits [n,v] w^T */
        g.m = n, g.n = d->h, g.k = d->v, g.tb = !d->tb, g.c = d->type;
        g.lda = low_ld(d, ld), g.ldb = ldw, g.ldc = d->h;
    } else { /* [v,h] += dlogits^T x, or [h,v] += x^T dlogits */
        g.m = d->tb ? d->v : d->h, g.n = d->tb ? d->h : d->v, g.k = n;
        g.ta = true, g.add = true;
        g.lda = d->tb ? low_ld(d, ld) : d->h, g.ldb = d->tb ? d->h : low_ld(d, ld);
        g.ldc = ldw;
    }
    return g;
}

rtc_head_space
rtc_head_layout(const rt_head *d, bool grad)
{
    rtc_head_space s = {.chunk = least(d->chunk, d->rows), .ld = round_up(d->v, 64)};
    rt_gemm_desc y = rtc_head_gemm(d, RTC_HEAD_Y, s.chunk, s.ld);
    int64_t work = rtc_gemm_workspace(&y), at = 0;
    for (int i = RTC_HEAD_DX; grad && i <= RTC_HEAD_DW; i++) {
        rt_gemm_desc g = rtc_head_gemm(d, (rtc_head_product)i, s.chunk, s.ld);
        work = most(work, rtc_gemm_workspace(&g));
    }
    s.losses = cut(&at, d->rows * (int64_t)sizeof(double));
    s.logits = cut(&at, s.chunk * s.ld * (int64_t)sizeof(float));
    s.stats = cut(&at, s.chunk * 2 * (int64_t)sizeof(float));
    s.work = cut(&at, work);
    s.bytes = at;
    return s;
}

int64_t
rtc_head_ce_scratch(const rt_head *d, bool grad, int threads)
{
    (void)threads;
    return rtc_head_layout(d, grad).bytes;
}

/* ---- norms ---- */

int64_t
rtc_norm_groups(int64_t rows)
{
    return most(1, least(MOST_GROUPS, (rows + ROWS_PER_GROUP - 1) / ROWS_PER_GROUP));
}

int64_t
rtc_layernorm_dwb_scratch(int64_t rows, int64_t cols, int threads)
{
    (void)threads;
    return 2 * rtc_norm_groups(rows) * cols * (int64_t)sizeof(float);
}

int64_t
rtc_rmsnorm_dw_scratch(int64_t rows, int64_t cols, int threads)
{
    (void)threads;
    return rtc_norm_groups(rows) * cols * (int64_t)sizeof(float);
}

/* ---- sums over rows ---- */

rtc_embed_space
rtc_embed_layout(int64_t rows, int64_t h)
{
    rtc_embed_space s = {.chunks = (rows + RTC_EMBED_CHUNK - 1) / RTC_EMBED_CHUNK};
    int64_t at = 0;
    s.order = cut(&at, rows * (int64_t)sizeof(uint32_t));
    s.other = cut(&at, rows * (int64_t)sizeof(uint32_t));
    s.part = cut(&at, 2 * s.chunks * h * (int64_t)sizeof(float));
    s.bytes = at;
    return s;
}

int64_t
rtc_embed_grad_scratch(int64_t rows, int64_t h, int64_t v, int threads)
{
    (void)v, (void)threads;
    return rtc_embed_layout(rows, h).bytes;
}

int64_t
rtc_colsum_groups(int64_t rows)
{
    enum { ROWS = 64, GROUPS = 128 };
    return most(1, least(GROUPS, (rows + ROWS - 1) / ROWS));
}

int64_t
rtc_colsum_scratch(int64_t rows, int64_t cols, int threads)
{
    (void)threads;
    return rtc_colsum_groups(rows) * cols * (int64_t)sizeof(float);
}

const rt_scratch rt_cuda_scratch = {.gemm = rtc_gemm_scratch,
                                    .attention = rtc_attention_scratch,
                                    .attention_grad = rtc_attention_grad_scratch,
                                    .attention_shared = rtc_attention_shared,
                                    .head_ce = rtc_head_ce_scratch,
                                    .embed_grad = rtc_embed_grad_scratch,
                                    .colsum = rtc_colsum_scratch,
                                    .layernorm_dwb = rtc_layernorm_dwb_scratch,
                                    .rmsnorm_dw = rtc_rmsnorm_dw_scratch};
