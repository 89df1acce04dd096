/* attention_grad.cu -- gradient of attention, weights recomputed block by block
 * (FlashAttention-2: Dao, 2023), without atomic additions.
 *
 *     P = exp(cap(scale * q k^T) + masks - lse)      delta = row sums of dy * y
 *     dS = scale * cap' * P * (dy v^T - delta),      cap' = 1 - (capped score / c)^2
 *     dq = dS k      dk = dS^T q      dv = P^T dy
 *
 * Two kernels: dq, whose blocks of threads own queries, leave their delta behind and walk over
 * keys; dk and dv, whose blocks own keys and walk over the queries of all heads of the group in
 * order. Weights are computed twice, and every sum has a fixed order.
 *
 * 2 * side / 16 warps: warp w has rows w % (side / 16) * 16 of each product, and one half of its
 * columns.
 */
#include "attention_int.h"
#include "cudnn_int.h"

template <class T> struct operands { /* of one head */
    T *dq, *dk, *dv;
    const T *q, *k, *v, *dy, *y;
    const float *lse;
    float *delta; /* [rows, heads] */
    bool wide, wide_dy;
};

/* What a block of queries has beside its tiles. */
struct query_rows {
    float *lse, *delta; /* [side] */
    int *floor;
};

template <class T, int D, bool MMA> struct backward {
    enum {
        side = attn_tile<T, MMA>::side,
        ld = D + attn_tile<T, MMA>::pad,
        ldp = side + attn_tile<T, MMA>::pad,
        rows = side / 16, /* of warps */
        threads = 2 * rows * RTC_WARP,
        half = side / 2,
        bytes = RTC_ATTN_GRAD(side, D, sizeof(T))
    };
    T *q, *dy, *k, *v, *p, *ds;
    query_rows row;
    int *place;

    __device__ __forceinline__ backward(T *shared)
    {
        q = shared, dy = q + side * ld, k = dy + side * ld, v = k + side * ld;
        p = v + side * ld, ds = p + side * ldp;
        row.lse = (float *)(ds + side * ldp);
        row.delta = row.lse + side;
        row.floor = (int *)(row.delta + side);
        place = row.floor + side;
    }

    /* delta of queries [i0, i0+side) of a head: a warp each. */
    __device__ __forceinline__ void find_delta(const operands<T> &o, const rt_attn &a,
                                               const attn_span &s, int64_t head,
                                               int i0) const
    {
        int lane = threadIdx.x % RTC_WARP, n = min(side, s.n - i0);
        for (int i = threadIdx.x / RTC_WARP; i < n; i += blockDim.x / RTC_WARP) {
            int64_t at = (s.row + i0 + i) * a.heads + head;
            float sum = 0;
            for (int c = lane; c < a.d; c += RTC_WARP)
                sum = fmaf(rtc_float(o.dy[at * a.d + c]), rtc_float(o.y[at * a.d + c]),
                           sum);
            sum = rtc_warp_sum(sum);
            if (lane == 0)
                row.delta[i] = o.delta[at] = sum;
        }
    }

    /* Queries [i0, i0+side) of a head but for delta. Behind the last: no key is seen. */
    __device__ __forceinline__ void load_queries(const operands<T> &o, const rt_attn &a,
                                                 const rt_attn_at &at,
                                                 const attn_span &s, int64_t head,
                                                 int i0) const
    {
        int64_t row0 = s.row + i0, ldy = a.heads * a.d;
        attn_load<T, D>(q, ld, o.q + row0 * a.ldq + a.qo + head * a.qs, a.ldq, s.n - i0,
                        side, (int)a.d, o.wide);
        attn_load<T, D>(dy, ld, o.dy + row0 * ldy + head * a.d, ldy, s.n - i0, side,
                        (int)a.d, o.wide_dy);
        for (int i = threadIdx.x; i < side; i += blockDim.x) {
            bool there = i0 + i < s.n;
            float lse = there ? o.lse[attn_lse(a, at, s, head, i0 + i)] : -INFINITY;
            row.lse[i] = lse;
            row.floor[i] = lse == -INFINITY ? INT_MAX : attn_floor(a, s, i0 + i);
        }
    }

    __device__ __forceinline__ void load_delta(const operands<T> &o, const rt_attn &a,
                                               const attn_span &s, int64_t head,
                                               int i0) const
    {
        for (int i = threadIdx.x; i < side && i0 + i < s.n; i += blockDim.x)
            row.delta[i] = o.delta[(s.row + i0 + i) * a.heads + head];
    }

    __device__ __forceinline__ void load_keys(const operands<T> &o, const rt_attn &a,
                                              const attn_span &s, int64_t kh,
                                              int j0) const
    {
        attn_load<T, D>(k, ld, o.k + (s.row + j0) * a.ldk + a.ko + kh * a.ks, a.ldk,
                        s.n - j0, side, (int)a.d, o.wide);
        attn_load<T, D>(v, ld, o.v + (s.row + j0) * a.ldv + a.vo + kh * a.vs, a.ldv,
                        s.n - j0, side, (int)a.d, o.wide);
        attn_places(place, side, s, j0);
    }

    /* P (if asked for) and dS of the block into shared memory. */
    __device__ __forceinline__ void weigh(const rt_attn &a, const rt_attn_at &at,
                                          const attn_span &s, int64_t head, int i0,
                                          int j0, bool keep_p) const
    {
        int warp = threadIdx.x / RTC_WARP, lane = threadIdx.x % RTC_WARP;
        int r0 = warp % rows * 16, c0 = warp / rows * half, g = lane / 4,
            t = lane % 4 * 2;
        float w[half / 8][4], x[half / 8][4];
        attn_clear<half>(w);
        attn_clear<half>(x);
        attn_tile<T, MMA>::template nt<half, D>(w, q + r0 * ld, ld, k + c0 * ld, ld);
        attn_tile<T, MMA>::template nt<half, D>(x, dy + r0 * ld, ld, v + c0 * ld, ld);
#pragma unroll
        for (int j = 0; j < half / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = r0 + g + e / 2 * 8, c = c0 + j * 8 + t + e % 2;
                bool sees = place[c] > row.floor[i] && (!a.causal || j0 + c <= i0 + i);
                float score = attn_cap(w[j][e] * a.scale, a.softcap), keep = 1;
                float weight = sees ? expf(score - row.lse[i]) : 0.0f;
                float slope = a.softcap > 0 ? score / a.softcap : 0;
                if (a.p > 0 && sees)
                    keep = attn_factor(a, at, s.row + i0 + i, head, place[c]);
                w[j][e] = weight * keep;
                x[j][e] = sees ? weight * (x[j][e] * keep - row.delta[i]) *
                                     (a.scale * (1 - slope * slope))
                               : 0.0f;
            }
        if (keep_p)
            attn_keep<T, half>(p + r0 * ldp + c0, ldp, w);
        attn_keep<T, half>(ds + r0 * ldp + c0, ldp, x);
    }
};

/* A warp's [16, D / 2] to where the head's columns lie. */
template <class T, int D, int ROWS>
static __device__ __forceinline__ void
put(T *to, int64_t ld, int rows, int d, const float (*acc)[4])
{
    int warp = threadIdx.x / RTC_WARP, lane = threadIdx.x % RTC_WARP;
    int r0 = warp % ROWS * 16 + lane / 4, c0 = warp / ROWS * (D / 2) + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = r0 + e / 2 * 8, c = c0 + j * 8 + e % 2;
            if (r < rows && c < d)
                to[r * ld + c] = rtc_as<T>(acc[j][e]);
        }
}

/* Grid: blocks of queries of the heads of all samples, and of the tail. */
template <class T, int D, bool MMA>
static __global__ void __launch_bounds__((backward<T, D, MMA>::threads))
    queries_kernel(operands<T> o, rt_attn a, rt_attn_at at)
{
    typedef backward<T, D, MMA> f;
    RT_DYNAMIC_SHARED(T, shared);
    const f b(shared);
    const int side = f::side;
    attn_place my = attn_place_of(a, a.heads, side);
    int head = my.head, kh = head / ((int)a.heads / (int)a.kv_heads);
    attn_span s = attn_span_of(a, at, my.sample);
    int warp = threadIdx.x / RTC_WARP, r0 = warp % f::rows * 16,
        c0 = warp / f::rows * (D / 2);
    for (int i0 = my.first; i0 < s.n; i0 += my.step) {
        int end = s.tail ? 0 : a.causal ? min(s.n, i0 + side) : s.n;
        float dq[D / 16][4];
        attn_clear<D / 2>(dq);
        __syncthreads(); /* the turn before this one has read its tiles */
        if (!s.tail) {
            b.load_queries(o, a, at, s, head, i0);
            b.find_delta(o, a, s, head, i0);
        }
        for (int j0 = 0; j0 < end; j0 += side) {
            if (attn_passed(a, s, i0, j0, side))
                continue;
            b.load_keys(o, a, s, kh, j0);
            rt_copy_commit();
            rt_copy_wait<0>();
            __syncthreads();
            b.weigh(a, at, s, head, i0, j0, false);
            __syncthreads();
            attn_tile<T, MMA>::template nn<D / 2, side>(dq, b.ds + r0 * f::ldp, f::ldp,
                                                        b.k + c0, f::ld);
            __syncthreads();
        }
        put<T, D, f::rows>(o.dq + (s.row + i0) * a.ldq + a.qo + head * a.qs, a.ldq,
                           s.n - i0, (int)a.d, dq);
    }
}

/* Grid: blocks of keys of the key heads of all samples, and of the tail. */
template <class T, int D, bool MMA>
static __global__ void __launch_bounds__((backward<T, D, MMA>::threads))
    keys_kernel(operands<T> o, rt_attn a, rt_attn_at at)
{
    typedef backward<T, D, MMA> f;
    typedef attn_tile<T, MMA> tile;
    RT_DYNAMIC_SHARED(T, shared);
    const f b(shared);
    const int side = f::side;
    attn_place my = attn_place_of(a, a.kv_heads, side);
    int kh = my.head, group = (int)a.heads / (int)a.kv_heads;
    attn_span s = attn_span_of(a, at, my.sample);
    int warp = threadIdx.x / RTC_WARP, r0 = warp % f::rows * 16,
        c0 = warp / f::rows * (D / 2);
    for (int j0 = my.first; j0 < s.n; j0 += my.step) {
        float dk[D / 16][4], dv[D / 16][4];
        attn_clear<D / 2>(dk);
        attn_clear<D / 2>(dv);
        __syncthreads(); /* the turn before this one has read its tiles */
        if (!s.tail)
            b.load_keys(o, a, s, kh, j0);
        for (int head = kh * group; head < (kh + 1) * group && !s.tail; head++)
            for (int i0 = a.causal ? j0 : 0; i0 < s.n; i0 += side) {
                if (attn_passed(a, s, i0, j0, side))
                    continue;
                b.load_queries(o, a, at, s, head, i0);
                b.load_delta(o, a, s, head, i0);
                rt_copy_commit();
                rt_copy_wait<0>();
                __syncthreads();
                b.weigh(a, at, s, head, i0, j0, true);
                __syncthreads();
                tile::template tn<D / 2, side>(dv, b.p + r0, f::ldp, b.dy + c0, f::ld);
                tile::template tn<D / 2, side>(dk, b.ds + r0, f::ldp, b.q + c0, f::ld);
                __syncthreads();
            }
        put<T, D, f::rows>(o.dk + (s.row + j0) * a.ldk + a.ko + kh * a.ks, a.ldk,
                           s.n - j0, (int)a.d, dk);
        put<T, D, f::rows>(o.dv + (s.row + j0) * a.ldv + a.vo + kh * a.vs, a.ldv,
                           s.n - j0, (int)a.d, dv);
    }
}

template <class T, int D, bool MMA>
static void
start(rt_stream *s, const operands<T> &o, const rt_attn_at *at, const rt_attn *a)
{
    typedef backward<T, D, MMA> f;
    attn_allow(s, a, queries_kernel<T, D, MMA>, f::bytes);
    attn_allow(s, a, keys_kernel<T, D, MMA>, f::bytes);
    RT_LAUNCH((queries_kernel<T, D, MMA>), attn_grid(a, at, a->heads, f::side),
              dim3(f::threads), f::bytes, s->stream, o, *a, *at);
    RT_LAUNCH((keys_kernel<T, D, MMA>), attn_grid(a, at, a->kv_heads, f::side),
              dim3(f::threads), f::bytes, s->stream, o, *a, *at);
}

extern "C" void
rt_attention_grad(rt_stream *s, void *dq, void *dk, void *dv, const void *dy,
                  const void *q, const void *k, const void *v, const void *y,
                  const float *lse, const rt_attn_at *at, const rt_attn *a,
                  void *scratch)
{
    rtc_attn_call call = {*a, *at, (void *)y, (float *)lse, q,  k,
                          v,  dy,  dq,        dk,           dv, scratch};
    if (rtc_dnn_attention(s, &call))
        return;
    bool wide = attn_wide(q, a->type, a->ldq, a->qo, a->qs, a->d) &&
                attn_wide(k, a->type, a->ldk, a->ko, a->ks, a->d) &&
                attn_wide(v, a->type, a->ldv, a->vo, a->vs, a->d);
    bool wide_dy = attn_wide(dy, a->type, a->heads * a->d, 0, a->d, a->d);
#define RUN(T, D, MMA)                                                                \
    start<T, D, MMA>(s,                                                               \
                     operands<T>{(T *)dq, (T *)dk, (T *)dv, (const T *)q,             \
                                 (const T *)k, (const T *)v, (const T *)dy,           \
                                 (const T *)y, lse, (float *)scratch, wide, wide_dy}, \
                     at, a)
    ATTN_BY_TYPE(a->type, a->d, RUN);
#undef RUN
}
