/* row_int.h -- rows of losses, sums of arrays, elements of a type that a call says.
 *
 * A team is a warp or a whole block; what it computes of a row is the same in all its threads.
 */
#ifndef EFFICC_CUDA_ROW_INT_H
#define EFFICC_CUDA_ROW_INT_H

#include "pack_int.h"

/* ---- any type: where speed does not count ---- */

static __device__ __forceinline__ float
rtc_get(const void *x, int64_t i, rt_dtype t)
{
    if (t == RT_BF16)
        return rtc_float(((const __nv_bfloat16 *)x)[i]);
    if (t == RT_F16)
        return rtc_float(((const __half *)x)[i]);
    return ((const float *)x)[i];
}

static __device__ __forceinline__ void
rtc_put(void *y, int64_t i, rt_dtype t, float v)
{
    if (t == RT_BF16)
        ((__nv_bfloat16 *)y)[i] = rtc_as<__nv_bfloat16>(v);
    else if (t == RT_F16)
        ((__half *)y)[i] = rtc_as<__half>(v);
    else
        ((float *)y)[i] = v;
}

/* ---- sums ---- */

/* Sum of x [n], by one block, in an order that only n and blockDim fix. */
static __device__ __forceinline__ double
rtc_sum_all(const double *x, int64_t n, double *shared)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[i];
    return rtc_block_sum(sum, shared);
}

/* ---- softmax of a row ---- */

typedef struct rtc_softmax { /* what a thread, or its team, has seen */
    float max, sum;          /* of exp(x - max) */
    float first;             /* where max stands first */
} rtc_softmax;

static __device__ __forceinline__ rtc_softmax
rtc_softmax_none()
{
    rtc_softmax s = {-INFINITY, 0.0f, INFINITY};
    return s;
}

/* One element more; i ascends. Nothing but -inf so far has no sum. */
static __device__ __forceinline__ void
rtc_softmax_add(rtc_softmax *s, float x, int64_t i)
{
    if (x > s->max) {
        s->sum *= expf(s->max - x);
        s->max = x;
        s->first = (float)i;
    }
    if (x > -INFINITY || s->max > -INFINITY || x != x)
        s->sum += expf(x - s->max);
}

/* Of all threads of the block together. shared: 32 floats. A row of c elements without a largest
 * one has its first at the end. */
static __device__ __forceinline__ rtc_softmax
rtc_softmax_block(rtc_softmax s, int64_t c, float *shared)
{
    rtc_softmax all;
    all.max = rtc_block_max(s.max, shared);
    float part = s.first < INFINITY ? s.sum * expf(s.max - all.max) : s.sum;
    all.sum = rtc_block_sum(part, shared);
    all.first = -rtc_block_max(s.max == all.max ? -s.first : -INFINITY, shared);
    all.first = fminf(all.first, (float)(c - 1));
    return all;
}

static __device__ __forceinline__ rtc_softmax
rtc_softmax_warp(rtc_softmax s, int64_t c)
{
    rtc_softmax all;
    all.max = rtc_warp_max(s.max);
    float part = s.first < INFINITY ? s.sum * expf(s.max - all.max) : s.sum;
    all.sum = rtc_warp_sum(part);
    all.first = -rtc_warp_max(s.max == all.max ? -s.first : -INFINITY);
    all.first = fminf(all.first, (float)(c - 1));
    return all;
}

static __device__ __forceinline__ double
rtc_row_loss(const rtc_softmax &s, float at_target)
{
    return (double)s.max + log((double)s.sum) - (double)at_target;
}

#endif
