/* row_int.h -- one row of a softmax or a cross entropy. */
#ifndef EFFICC_ROW_INT_H
#define EFFICC_ROW_INT_H

#include "rt_cpu_int.h"
#include "simd_int.h"

enum { RT_LOSS_BLOCKS = 64 };

/* The largest of c elements; lanes past the end do not count. */
V_INLINE float
row_max(const float *x, int64_t c)
{
    vf m = v_set(-INFINITY);
    int64_t i = 0;
    for (; i + VW <= c; i += VW)
        m = v_max(m, v_load(x + i));
    if (i < c)
        m = v_max(m, v_first_n(c - i, v_load_n(x + i, c - i), v_set(-INFINITY)));
    return v_hmax(m);
}

/* e[i] = exp(x[i] - max); e may be x. Returns max, *sum is that of e. */
V_INLINE float
row_exp(float *e, const float *x, int64_t c, float *sum)
{
    float max = row_max(x, c);
    vf s = {0};
    for (int64_t i = 0; i < c; i += VW) {
        int64_t left = c - i;
        vf v = v_exp(v_load_to(x + i, left) - max);
        s += left < VW ? v_first_n(left, v, (vf){0}) : v;
        v_store_to(e + i, v, left);
    }
    *sum = v_sum(s);
    return max;
}

V_INLINE void
row_scale(float *e, int64_t c, float by)
{
    for (int64_t i = 0; i < c; i += VW)
        v_store_to(e + i, v_load_to(e + i, c - i) * by, c - i);
}

V_INLINE double
row_loss(float max, float sum, float at_target)
{
    return (double)max + log((double)sum) - (double)at_target;
}

/* The first place of the maximum. */
V_INLINE int64_t
row_argmax(const float *x, int64_t c, float max)
{
    int64_t i = 0;
    while (i < c - 1 && x[i] != max)
        i++;
    return i;
}

#endif
