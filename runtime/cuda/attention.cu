/* attention.cu -- attention without the matrix of scores (FlashAttention-2: Dao, 2023).
 *
 *     y = softmax(cap(scale * q k^T) + masks) v,   lse = log sum exp of the scores
 *
 * A block of threads owns `side` queries of one head, a warp 16 of them, and walks over blocks of
 * keys with a running maximum and sum. A query's result depends on its own keys only, in
 * fixed order. A query without any key gets y = 0 and lse = -inf; so do rows behind the
 * last sample, which are a sample of their own without keys.
 */
#include "attention_int.h"
#include "cudnn_int.h"

typedef struct attn_rows { /* of a thread: its two rows of the warp's 16 */
    int i[2], floor[2];
    float top[2], sum[2];
} attn_rows;

/* Sum and maximum over the four lanes that share a row. */
static __device__ __forceinline__ float
quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(rtc_all, x, 1));
    return fmaxf(x, __shfl_xor_sync(rtc_all, x, 2));
}

static __device__ __forceinline__ float
quad_sum(float x)
{
    x += __shfl_xor_sync(rtc_all, x, 1);
    return x + __shfl_xor_sync(rtc_all, x, 2);
}

/* Products q k^T of a block become scores, -inf where the query does not see the key; the rows'
 * maxima rise. by[2]: what earlier results are multiplied with. */
template <int N>
static __device__ __forceinline__ void
score(float (*s)[4], attn_rows *r, float by[2], const int *place, const rt_attn &a,
      int j0)
{
    int t = threadIdx.x % 4 * 2;
    float top[2] = {r->top[0], r->top[1]};
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int c = j * 8 + t + e % 2, h = e / 2;
            bool sees = place[c] > r->floor[h] && (!a.causal || j0 + c <= r->i[h]);
            s[j][e] = sees ? attn_cap(s[j][e] * a.scale, a.softcap) : -INFINITY;
            top[h] = fmaxf(top[h], s[j][e]);
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = quad_max(top[h]);
        by[h] = r->top[h] == -INFINITY ? 0.0f : expf(r->top[h] - top[h]);
        r->top[h] = top[h];
    }
}

/* Scores become exp(score - max), dropped ones 0 but for the sum of weights. */
template <int N>
static __device__ __forceinline__ void
weigh(float (*s)[4], attn_rows *r, const float by[2], const int *place,
      const rt_attn &a, const rt_attn_at &at, const attn_span &span, int64_t head)
{
    int t = threadIdx.x % 4 * 2;
    float sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int h = e / 2, c = j * 8 + t + e % 2;
            float x = s[j][e] == -INFINITY ? 0.0f : expf(s[j][e] - r->top[h]);
            sum[h] += x;
            if (a.p > 0 && x > 0)
                x *= attn_factor(a, at, span.row + r->i[h], head, place[c]);
            s[j][e] = x;
        }
    for (int h = 0; h < 2; h++)
        r->sum[h] = r->sum[h] * by[h] + sum[h];
}

template <class T, int D>
static __device__ __forceinline__ void
finish(T *y, float *lse, float (*acc)[4], attn_rows *r, const rt_attn &a,
       const rt_attn_at &at, const attn_span &span, int64_t head)
{
    int t = threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = quad_sum(r->sum[h]), by = sum == 0 ? 0 : 1 / sum; /* NaN stays */
        if (r->i[h] >= span.n)
            continue;
        T *row = y + ((span.row + r->i[h]) * a.heads + head) * a.d;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (j * 8 + t + e < a.d)
                    row[j * 8 + t + e] = rtc_as<T>(acc[j][2 * h + e] * by);
        if (t == 0)
            lse[attn_lse(a, at, span, head, r->i[h])] =
                sum == 0 ? -INFINITY : r->top[h] + logf(sum);
    }
}

template <class T, int D, bool MMA> struct forward {
    enum {
        side = attn_tile<T, MMA>::side,
        ld = D + attn_tile<T, MMA>::pad,
        ldp = side + attn_tile<T, MMA>::pad,
        threads = side / 16 * RTC_WARP,
        bytes = RTC_ATTN_FORWARD(side, D, sizeof(T))
    };
};

/* Grid: blocks of queries of the heads of all samples, and of the tail. */
template <class T, int D, bool MMA>
static __global__ void __launch_bounds__((forward<T, D, MMA>::threads))
    attention_kernel(T *y, float *lse, const T *q, const T *k, const T *v, rt_attn a,
                     rt_attn_at at, bool wide)
{
    typedef attn_tile<T, MMA> tile;
    typedef forward<T, D, MMA> f;
    const int side = f::side, ld = f::ld;
    RT_DYNAMIC_SHARED(T, qs);
    T *ks = qs + side * ld, *vs = ks + side * ld, *ps = vs + side * ld;
    int *place = (int *)(ps + side * f::ldp);
    attn_place my = attn_place_of(a, a.heads, side);
    int head = my.head, kh = head / ((int)a.heads / (int)a.kv_heads);
    attn_span span = attn_span_of(a, at, my.sample);
    int warp = threadIdx.x / RTC_WARP * 16, g = threadIdx.x % RTC_WARP / 4;
    q += span.row * a.ldq + a.qo + head * a.qs;
    k += span.row * a.ldk + a.ko + kh * a.ks;
    v += span.row * a.ldv + a.vo + kh * a.vs;
    for (int i0 = my.first; i0 < span.n; i0 += my.step) {
        float acc[D / 8][4], s[side / 8][4], by[2];
        attn_rows r = {{i0 + warp + g, i0 + warp + g + 8},
                       {-1, -1},
                       {-INFINITY, -INFINITY},
                       {0, 0}};
        int end = span.tail ? 0 : a.causal ? min(span.n, i0 + side) : span.n;
        for (int h = 0; h < 2; h++)
            r.floor[h] = r.i[h] < span.n ? attn_floor(a, span, r.i[h]) : INT_MAX;
        attn_clear<D>(acc);
        __syncthreads(); /* the turn before this one has read its tiles */
        if (end)
            attn_load<T, D>(qs, ld, q + i0 * a.ldq, a.ldq, span.n - i0, side, (int)a.d,
                            wide);
        for (int j0 = 0; j0 < end; j0 += side) {
            if (attn_passed(a, span, i0, j0, side))
                continue;
            int rows = span.n - j0;
            attn_load<T, D>(ks, ld, k + j0 * a.ldk, a.ldk, rows, side, (int)a.d, wide);
            rt_copy_commit();
            attn_load<T, D>(vs, ld, v + j0 * a.ldv, a.ldv, rows, side, (int)a.d, wide);
            rt_copy_commit();
            attn_places(place, side, span, j0);
            rt_copy_wait<1>();
            __syncthreads();
            attn_clear<side>(s);
            tile::template nt<side, D>(s, qs + warp * ld, ld, ks, ld);
            score<side>(s, &r, by, place, a, j0);
            weigh<side>(s, &r, by, place, a, at, span, head);
            attn_keep<T, side>(ps + warp * f::ldp, f::ldp, s);
#pragma unroll
            for (int j = 0; j < D / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    acc[j][e] *= by[e / 2];
            rt_copy_wait<0>();
            __syncthreads();
            tile::template nn<D, side>(acc, ps + warp * f::ldp, f::ldp, vs, ld);
            __syncthreads();
        }
        finish<T, D>(y, lse, acc, &r, a, at, span, head);
    }
}

void
rtc_refuse_attention(const rt_stream *s, const rt_attn *a, size_t bytes)
{
    exit(rt_fail(RT_USER,
                 "attention in %s with heads of %lld columns takes %zu bytes of shared "
                 "memory for a block, and %s has %zu\n"
                 "%sa card with more can run it, and so can the CPU: --target cpu",
                 a->type == RT_F32 ? "fp32" : "16 bits", (long long)a->d, bytes,
                 s->card.name, (size_t)s->card.sharedMemPerBlockOptin,
                 a->type == RT_F32 ? "--bf16 takes half of it; " : ""));
}

template <class T, int D, bool MMA>
static void
start(rt_stream *s, void *y, float *lse, const void *q, const void *k, const void *v,
      const rt_attn_at *at, const rt_attn *a)
{
    typedef forward<T, D, MMA> f;
    bool wide = attn_wide(q, a->type, a->ldq, a->qo, a->qs, a->d) &&
                attn_wide(k, a->type, a->ldk, a->ko, a->ks, a->d) &&
                attn_wide(v, a->type, a->ldv, a->vo, a->vs, a->d);
    attn_allow(s, a, attention_kernel<T, D, MMA>, f::bytes);
    RT_LAUNCH((attention_kernel<T, D, MMA>), attn_grid(a, at, a->heads, f::side),
              dim3(f::threads), f::bytes, s->stream, (T *)y, lse, (const T *)q,
              (const T *)k, (const T *)v, *a, *at, wide);
}

extern "C" void
rt_attention(rt_stream *s, void *y, float *lse, const void *q, const void *k,
             const void *v, const rt_attn_at *at, const rt_attn *a, void *scratch)
{
    rtc_attn_call call = {*a, *at, y, lse, q, k, v, NULL, NULL, NULL, NULL, scratch};
    if (rtc_dnn_attention(s, &call))
        return;
#define RUN(T, D, MMA) start<T, D, MMA>(s, y, lse, q, k, v, at, a)
    ATTN_BY_TYPE(a->type, a->d, RUN);
#undef RUN
}
