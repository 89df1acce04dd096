/* attention_int.h -- tiles of an attention, for attention.cu and attention_grad.cu.
 *
 * A block of threads works on `side` queries x `side` keys of one head at a time. Tiles of q, k, v
 * and dy lie in shared memory, rows padded with zeros from d to D columns. A warp's part of
 * a product is 16 rows: element e of acc[j] is row g + 8 (e / 2), column 8 j + 2 t + e % 2,
 * where its lane is 4 g + t, as mma.m16n8k16 has it.
 *
 * Which keys a query sees is one comparison: a key's place is its original position, or -1 if it
 * is masked or there is none; a query sees keys whose place is above its floor, position -
 * window or -1. Under `causal` the key's number may not be above the query's.
 */
#ifndef EFFICC_CUDA_ATTENTION_INT_H
#define EFFICC_CUDA_ATTENTION_INT_H

#include "../include/efficc_philox.h"
#include "attention_tile.h"
#include "cuda_int.h"
#include <limits.h>
#include <stdlib.h>

/* ---- products of a warp on tiles in shared memory ---- */

/* Low types: tensor cores. */
template <class T>
static __device__ __forceinline__ void attn_mma(float d[4], const uint32_t a[4],
                                                const uint32_t b[2]);
template <>
__device__ __forceinline__ void
attn_mma<__nv_bfloat16>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    rt_mma_bf16(d, a, b);
}
template <>
__device__ __forceinline__ void
attn_mma<__half>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    rt_mma_f16(d, a, b);
}

template <class T, bool MMA> struct attn_tile;

template <class T> struct attn_tile<T, true> {
    enum { side = RTC_ATTN_SIDE(true), pad = RTC_ATTN_PAD(sizeof(T)) };

    /* acc [16,N] += A [16,K] B^T, B [N,K]. */
    template <int N, int K>
    static __device__ __forceinline__ void nt(float (*acc)[4], const T *a, int lda,
                                              const T *b, int ldb)
    {
        int lane = threadIdx.x % RTC_WARP;
        a += lane % 16 * lda + lane / 16 * 8;
        b += (lane % 8 + lane / 16 * 8) * ldb + lane / 8 % 2 * 8;
#pragma unroll
        for (int k = 0; k < K; k += 16) {
            uint32_t fa[4], fb[4];
            rt_ldmatrix4(fa, a + k);
#pragma unroll
            for (int j = 0; j < N / 16; j++) {
                rt_ldmatrix4(fb, b + j * 16 * ldb + k);
                attn_mma<T>(acc[2 * j], fa, fb);
                attn_mma<T>(acc[2 * j + 1], fa, fb + 2);
            }
        }
    }

    /* acc [16,N] += A [16,K] B, B [K,N]. */
    template <int N, int K>
    static __device__ __forceinline__ void nn(float (*acc)[4], const T *a, int lda,
                                              const T *b, int ldb)
    {
        int lane = threadIdx.x % RTC_WARP;
        a += lane % 16 * lda + lane / 16 * 8;
        b += lane % 16 * ldb + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < K; k += 16) {
            uint32_t fa[4], fb[4];
            rt_ldmatrix4(fa, a + k);
#pragma unroll
            for (int j = 0; j < N / 16; j++) {
                rt_ldmatrix4_t(fb, b + k * ldb + j * 16);
                attn_mma<T>(acc[2 * j], fa, fb);
                attn_mma<T>(acc[2 * j + 1], fa, fb + 2);
            }
        }
    }

    /* acc [16,N] += A^T B, A [K,16], B [K,N]. */
    template <int N, int K>
    static __device__ __forceinline__ void tn(float (*acc)[4], const T *a, int lda,
                                              const T *b, int ldb)
    {
        int lane = threadIdx.x % RTC_WARP;
        a += (lane % 8 + lane / 16 * 8) * lda + lane / 8 % 2 * 8;
        b += lane % 16 * ldb + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < K; k += 16) {
            uint32_t fa[4], fb[4];
            rt_ldmatrix4_t(fa, a + k * lda);
#pragma unroll
            for (int j = 0; j < N / 16; j++) {
                rt_ldmatrix4_t(fb, b + k * ldb + j * 16);
                attn_mma<T>(acc[2 * j], fa, fb);
                attn_mma<T>(acc[2 * j + 1], fa, fb + 2);
            }
        }
    }
};

/* Float arithmetic on elements of any type. */
template <class T> struct attn_tile<T, false> {
    enum { side = RTC_ATTN_SIDE(false), pad = RTC_ATTN_PAD(sizeof(T)) };

    /* acc [16,N] += sum over k of A's element (i, k) at i ai + k ak, B's (k, j) at j bj + k bk. */
    template <int N, int K>
    static __device__ __forceinline__ void product(float (*acc)[4], const T *a, int ai,
                                                   int ak, const T *b, int bj, int bk)
    {
        int lane = threadIdx.x % RTC_WARP, g = lane / 4, t = lane % 4 * 2;
        for (int k = 0; k < K; k++) {
            float low = rtc_float(a[g * ai + k * ak]);
            float high = rtc_float(a[(g + 8) * ai + k * ak]);
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                float x = rtc_float(b[(j * 8 + t) * bj + k * bk]);
                float y = rtc_float(b[(j * 8 + t + 1) * bj + k * bk]);
                acc[j][0] = fmaf(low, x, acc[j][0]);
                acc[j][1] = fmaf(low, y, acc[j][1]);
                acc[j][2] = fmaf(high, x, acc[j][2]);
                acc[j][3] = fmaf(high, y, acc[j][3]);
            }
        }
    }
    template <int N, int K>
    static __device__ __forceinline__ void nt(float (*acc)[4], const T *a, int lda,
                                              const T *b, int ldb)
    {
        product<N, K>(acc, a, lda, 1, b, ldb, 1);
    }
    template <int N, int K>
    static __device__ __forceinline__ void nn(float (*acc)[4], const T *a, int lda,
                                              const T *b, int ldb)
    {
        product<N, K>(acc, a, lda, 1, b, 1, ldb);
    }
    template <int N, int K>
    static __device__ __forceinline__ void tn(float (*acc)[4], const T *a, int lda,
                                              const T *b, int ldb)
    {
        product<N, K>(acc, a, 1, lda, b, 1, ldb);
    }
};

template <int N>
static __device__ __forceinline__ void
attn_clear(float (*acc)[4])
{
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
}

/* A warp's [16,N] into shared memory, rounded. */
template <class T, int N>
static __device__ __forceinline__ void
attn_keep(T *to, int ld, const float (*acc)[4])
{
    int lane = threadIdx.x % RTC_WARP, g = lane / 4, t = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[(g + e / 2 * 8) * ld + j * 8 + t + e % 2] = rtc_as<T>(acc[j][e]);
}

/* ---- samples, rows ---- */

typedef struct attn_span { /* a sample: rows of q, k and v */
    int64_t row;
    int n;
    bool tail; /* rows behind the last sample: neither queries nor keys of anything */
    const int64_t *mask, *position; /* of its rows; NULL: all are keys | 0, 1, .. */
} attn_span;

/* Sample b; batch: the tail. */
static __device__ __forceinline__ attn_span
attn_span_of(const rt_attn &a, const rt_attn_at &at, int64_t b)
{
    attn_span s = {b * a.seq, (int)a.seq, false, NULL, NULL};
    if (at.offsets) {
        s.row = at.offsets[b];
        s.tail = b == a.batch;
        s.n = (int)((s.tail ? at.rows : at.offsets[b + 1]) - s.row);
    }
    s.mask = at.mask ? at.mask + s.row : NULL;
    s.position = at.position ? at.position + s.row : NULL;
    return s;
}

static __device__ __forceinline__ int
attn_position(const attn_span &s, int i)
{
    return s.position ? (int)s.position[i] : i;
}

/* Places of the keys from j0 on. */
static __device__ __forceinline__ void
attn_places(int *place, int side, const attn_span &s, int j0)
{
    for (int j = threadIdx.x; j < side; j += blockDim.x) {
        bool there = j0 + j < s.n && (!s.mask || s.mask[j0 + j]);
        place[j] = there ? attn_position(s, j0 + j) : -1;
    }
}

static __device__ __forceinline__ int
attn_floor(const rt_attn &a, const attn_span &s, int i)
{
    return a.window ? max(-1, attn_position(s, i) - (int)a.window) : -1;
}

/* Are all keys of the block from j0 on at or below the floor of query i0 and those after it? */
static __device__ __forceinline__ bool
attn_passed(const rt_attn &a, const attn_span &s, int i0, int j0, int side)
{
    return a.window &&
           attn_position(s, min(j0 + side, s.n) - 1) <= attn_floor(a, s, i0);
}

/* A block of threads: every step-th block of `side` rows of a sample, from `first` on, of one of
 * `heads` heads. They are numbered along x, since y has room for 65535 only. */
typedef struct attn_place {
    int sample, head;
    int first, step; /* rows */
} attn_place;

static __device__ __forceinline__ attn_place
attn_place_of(const rt_attn &a, int64_t heads, int side)
{
    unsigned blocks = (unsigned)((a.seq + side - 1) / side);
    unsigned head = blockIdx.x / blocks, n = (unsigned)heads;
    attn_place p = {(int)(head / n), (int)(head % n), (int)(blockIdx.x % blocks) * side,
                    (int)blocks * side};
    return p;
}

/* Where lse of row i of sample b stands. */
static __device__ __forceinline__ int64_t
attn_lse(const rt_attn &a, const rt_attn_at &at, const attn_span &s, int64_t h, int i)
{
    return at.offsets ? (s.row + i) * a.heads + h
                      : (s.row / a.seq * a.heads + h) * a.seq + i;
}

/* Columns [0,d) of `rows` rows, ld elements apart, zeros up to column D and row `side`. wide: rows
 * begin on 16 bytes and d is whole pieces of them. Complete behind rt_copy_wait() and a
 * barrier. */
template <class T, int D>
static __device__ __forceinline__ void
attn_load(T *to, int lds, const T *from, int64_t ld, int rows, int side, int d,
          bool wide)
{
    const int piece = 16 / sizeof(T);
    if (wide) {
        for (int i = threadIdx.x; i < side * (D / piece); i += blockDim.x) {
            int r = i / (D / piece), c = i % (D / piece) * piece;
            bool there = r < rows && c < d;
            rt_copy_async16(to + r * lds + c, there ? from + r * ld + c : from, there);
        }
        return;
    }
    for (int i = threadIdx.x; i < side * D; i += blockDim.x) {
        int r = i / D, c = i % D;
        to[r * lds + c] = r < rows && c < d ? from[r * ld + c] : rtc_as<T>(0.0f);
    }
}

/* ---- scores ---- */

static __device__ __forceinline__ float
attn_cap(float s, float cap)
{
    return cap > 0 ? cap * tanhf(s / cap) : s;
}

/* What dropout multiplies the weight of a key at `place` with. */
static __device__ __forceinline__ float
attn_factor(const rt_attn &a, const rt_attn_at &at, int64_t row, int64_t h, int place)
{
    philox bits = philox_of(at.key[0], at.keys[row], a.site);
    uint32_t w[4];
    philox_four(w, &bits, philox_group(place, h));
    uint32_t word = place % 4 == 0   ? w[0]
                    : place % 4 == 1 ? w[1]
                    : place % 4 == 2 ? w[2]
                                     : w[3];
    return word < philox_below(a.p) ? 0.0f : 1 / (1 - a.p);
}

/* ---- host side ---- */

/* Rows of x begin on 16 bytes, and heads in them. */
static inline bool
attn_wide(const void *x, rt_dtype type, int64_t ld, int64_t start, int64_t step,
          int64_t d)
{
    int64_t piece = type == RT_F32 ? 4 : 8;
    return (uintptr_t)x % 16 == 0 && ld % piece == 0 && start % piece == 0 &&
           step % piece == 0 && d % piece == 0;
}

/* As attn_place_of() has it. */
static inline dim3
attn_grid(const rt_attn *a, const rt_attn_at *at, int64_t heads, int side)
{
    int64_t samples = a->batch + (at->offsets != NULL);
    return dim3((unsigned)(rtc_blocks(a->seq, side) * samples * heads));
}

/* Ends the program: this card's blocks have less shared memory than that (attention.cu). */
void rtc_refuse_attention(const rt_stream *, const rt_attn *, size_t bytes);

/* Lets the kernel have this much shared memory. */
template <class K>
static inline void
attn_allow(const rt_stream *s, const rt_attn *a, K *kernel, size_t bytes)
{
    if (bytes > s->card.sharedMemPerBlockOptin)
        rtc_refuse_attention(s, a, bytes);
    if (bytes > 48 << 10)
        RT_CUDA(cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
}

/* RUN(T, D, MMA) for an attention's type and head size; efficc refuses wider heads. */
#define ATTN_HEAD(D, tensor, T, d, RUN)        \
    if ((d) <= (D))                            \
        RUN(T, D, (tensor) && sizeof(T) == 2); \
    else
#define ATTN_BY_TYPE(type, d, RUN) \
    RTC_BY_TYPE(type, T, RTC_ATTN_HEADS(ATTN_HEAD, T, d, RUN) abort())

#endif
