/* kernels.cu -- elementwise kernels of this program.
 *
 * Above each the lines of the IR that it was first made for; a kernel that is
 * equal in all but names serves other layers too.
 */
#include <efficc_cuda.h>

extern "C" {
#include "kernels.h"
}

/* %h0 = add %e, %p : f32[2,4,8]  !"/Add" */
static __global__ void
k0_(uint32_t n, float *y0, const float *x0, const float *x1)
{
    const uint32_t at = rt_thread<uint32_t>();
    if (at >= n)
        return;
    const uint32_t e = at * 4;
    const uint32_t i1 = e % 8;
    const rt_pack<float, 4> p0 = rt_load<4>(x0 + e);
    const rt_pack<float, 4> p1 = rt_load<4>(x1 + i1);
    rt_pack<float, 4> q0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float a0 = p0.at[j];
        const float a1 = p1.at[j];
        const float t0 = a0 + a1;
        q0.at[j] = t0;
    }
    rt_store(y0 + e, q0);
}

void
k0(rt_stream *st, float *y0, const float *x0, const float *x1)
{
    const uint32_t n = 16;
    RT_LAUNCH(k0_, rt_blocks(n), RT_BLOCK, 0, rt_cuda_stream(st), n, y0, x0, x1);
}

/* %s = mul %a, %half : f32[2,4,8]  !"/Mul" */
/* %g = gelu %s : f32[2,4,8]  !"/Gelu" */
/* %h1 = add %h0, %g : f32[2,4,8]  !"/Add_1" */
static __global__ void
k1_(uint32_t n, float *y0, float *y1, const float *x0, const float *x1)
{
    const uint32_t at = rt_thread<uint32_t>();
    if (at >= n)
        return;
    const uint32_t e = at * 4;
    const rt_pack<float, 4> p0 = rt_load<4>(x0 + e);
    const rt_pack<float, 4> p1 = rt_load<4>(x1 + e);
    rt_pack<float, 4> q0;
    rt_pack<float, 4> q1;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float a0 = p0.at[j];
        const float a1 = p1.at[j];
        const float t0 = a0 * 0.5f;
        const float t1 = C(0.5) * t0 * (C(1) + ERF(t0 * C(0.70710678118654752440)));
        const float t2 = a1 + t1;
        q0.at[j] = t0;
        q1.at[j] = t2;
    }
    rt_store(y0 + e, q0);
    rt_store(y1 + e, q1);
}

void
k1(rt_stream *st, float *y0, float *y1, const float *x0, const float *x1)
{
    const uint32_t n = 16;
    RT_LAUNCH(k1_, rt_blocks(n), RT_BLOCK, 0, rt_cuda_stream(st), n, y0, y1, x0, x1);
}

/* %s.d = gelu_d %h1.d, %s : f32[2,4,8]  !"/Gelu" */
/* %a.d = mul %s.d, %half : f32[2,4,8]  !"/Mul" */
static __global__ void
k2_(uint32_t n, float *y0, const float *x0, const float *x1)
{
    const uint32_t at = rt_thread<uint32_t>();
    if (at >= n)
        return;
    const uint32_t e = at * 4;
    const rt_pack<float, 4> p0 = rt_load<4>(x0 + e);
    const rt_pack<float, 4> p1 = rt_load<4>(x1 + e);
    rt_pack<float, 4> q0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float a0 = p0.at[j];
        const float a1 = p1.at[j];
        const float t0 = a0 * (C(0.5) * (C(1) + ERF(a1 * C(0.70710678118654752440))) + a1 *
            C(0.39894228040143267794) * EXP(C(-0.5) * a1 * a1));
        const float t1 = t0 * 0.5f;
        q0.at[j] = t1;
    }
    rt_store(y0 + e, q0);
}

void
k2(rt_stream *st, float *y0, const float *x0, const float *x1)
{
    const uint32_t n = 16;
    RT_LAUNCH(k2_, rt_blocks(n), RT_BLOCK, 0, rt_cuda_stream(st), n, y0, x0, x1);
}

/* %n.d.2 = add %n.d, %n.d.1 : f32[2,4,8]  !"/qkv" */
static __global__ void
k3_(uint32_t n, float *y0, const float *x0, const float *x1)
{
    const uint32_t at = rt_thread<uint32_t>();
    if (at >= n)
        return;
    const uint32_t e = at * 4;
    const rt_pack<float, 4> p0 = rt_load<4>(x0 + e);
    const rt_pack<float, 4> p1 = rt_load<4>(x1 + e);
    rt_pack<float, 4> q0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float a0 = p0.at[j];
        const float a1 = p1.at[j];
        const float t0 = a0 + a1;
        q0.at[j] = t0;
    }
    rt_store(y0 + e, q0);
}

void
k3(rt_stream *st, float *y0, const float *x0, const float *x1)
{
    const uint32_t n = 16;
    RT_LAUNCH(k3_, rt_blocks(n), RT_BLOCK, 0, rt_cuda_stream(st), n, y0, x0, x1);
}

/* %s = mul %a, %half : f32[2,4,8]  !"/Mul" */
/* %g = gelu %s : f32[2,4,8]  !"/Gelu" */
/* %h1 = add %h0, %g : f32[2,4,8]  !"/Add_1" */
static __global__ void
k6_(uint32_t n, float *y0, const float *x0, const float *x1)
{
    const uint32_t at = rt_thread<uint32_t>();
    if (at >= n)
        return;
    const uint32_t e = at * 4;
    const rt_pack<float, 4> p0 = rt_load<4>(x0 + e);
    const rt_pack<float, 4> p1 = rt_load<4>(x1 + e);
    rt_pack<float, 4> q0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float a0 = p0.at[j];
        const float a1 = p1.at[j];
        const float t0 = a0 * 0.5f;
        const float t1 = C(0.5) * t0 * (C(1) + ERF(t0 * C(0.70710678118654752440)));
        const float t2 = a1 + t1;
        q0.at[j] = t2;
    }
    rt_store(y0 + e, q0);
}

void
k6(rt_stream *st, float *y0, const float *x0, const float *x1)
{
    const uint32_t n = 16;
    RT_LAUNCH(k6_, rt_blocks(n), RT_BLOCK, 0, rt_cuda_stream(st), n, y0, x0, x1);
}
