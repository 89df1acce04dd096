/* kernels.c -- elementwise kernels of this program.
 *
 * Above each the lines of the IR that it was first made for; a kernel that is
 * equal in all but names serves other layers too.
 */
#include "kernels.h"

#include <efficc_math.h>

/* %h0 = add %e, %p : f32[2,4,8]  !"/Add" */
void
k0(rt_stream *st, float *y0, const float *x0, const float *x1)
{
    (void)st;
    for (int64_t i0 = 0; i0 < 8; i0++)
#pragma omp simd
        for (int64_t i = 0; i < 8; i++) {
            const float a0 = x0[i0 * 8 + i];
            const float a1 = x1[i];
            const float t0 = a0 + a1;
            y0[i0 * 8 + i] = t0;
        }
}

/* %s = mul %a, %half : f32[2,4,8]  !"/Mul" */
/* %g = gelu %s : f32[2,4,8]  !"/Gelu" */
/* %h1 = add %h0, %g : f32[2,4,8]  !"/Add_1" */
void
k1(rt_stream *st, float *y0, float *y1, const float *x0, const float *x1)
{
    (void)st;
#pragma omp simd
    for (int64_t i = 0; i < 64; i++) {
        const float a0 = x0[i];
        const float a1 = x1[i];
        const float t0 = a0 * 0.5f;
        const float t1 = C(0.5) * t0 * (C(1) + ERF(t0 * C(0.70710678118654752440)));
        const float t2 = a1 + t1;
        y0[i] = t0;
        y1[i] = t2;
    }
}

/* %s.d = gelu_d %h1.d, %s : f32[2,4,8]  !"/Gelu" */
/* %a.d = mul %s.d, %half : f32[2,4,8]  !"/Mul" */
void
k2(rt_stream *st, float *y0, const float *x0, const float *x1)
{
    (void)st;
#pragma omp simd
    for (int64_t i = 0; i < 64; i++) {
        const float a0 = x0[i];
        const float a1 = x1[i];
        const float t0 = a0 * (C(0.5) * (C(1) + ERF(a1 * C(0.70710678118654752440))) + a1 *
            C(0.39894228040143267794) * EXP(C(-0.5) * a1 * a1));
        const float t1 = t0 * 0.5f;
        y0[i] = t1;
    }
}

/* %n.d.2 = add %n.d, %n.d.1 : f32[2,4,8]  !"/qkv" */
void
k3(rt_stream *st, float *y0, const float *x0, const float *x1)
{
    (void)st;
#pragma omp simd
    for (int64_t i = 0; i < 64; i++) {
        const float a0 = x0[i];
        const float a1 = x1[i];
        const float t0 = a0 + a1;
        y0[i] = t0;
    }
}

/* %s = mul %a, %half : f32[2,4,8]  !"/Mul" */
/* %g = gelu %s : f32[2,4,8]  !"/Gelu" */
/* %h1 = add %h0, %g : f32[2,4,8]  !"/Add_1" */
void
k6(rt_stream *st, float *y0, const float *x0, const float *x1)
{
    (void)st;
#pragma omp simd
    for (int64_t i = 0; i < 64; i++) {
        const float a0 = x0[i];
        const float a1 = x1[i];
        const float t0 = a0 * 0.5f;
        const float t1 = C(0.5) * t0 * (C(1) + ERF(t0 * C(0.70710678118654752440)));
        const float t2 = a1 + t1;
        y0[i] = t2;
    }
}
