/* rotary.cu -- rotary positions; the formula is that of runtime/cpu/rotary.c.
 *
 * A thread has N neighbouring columns of the two halves of one head, or, where y is not x, N
 * columns that stay. Units of a row: first those of the heads, then the others.
 */
#include "pack_int.h"

typedef struct turn_plan {
    rt_turn t;
    int heads, others; /* units of a row */
} turn_plan;

/* The j-th column that no head turns. */
static __device__ __forceinline__ int64_t
other_column(const rt_turn *t, int64_t j)
{
    int64_t gap = t->stride - t->r, head = t->heads - 1;
    if (j < t->start || !t->heads)
        return j;
    j -= t->start;
    if (gap && j / gap < head)
        head = j / gap;
    return t->start + head * t->stride + t->r + j - head * gap;
}

template <class T, int N>
static __global__ void
turn(T *y, const T *x, const float *cos, const float *sin, turn_plan p)
{
    typedef rtc_pack<T, N> pack;
    typedef rtc_pack<float, N> floats;
    int half = (int)(p.t.r / 2), per = half / N;
    for (int64_t row = rtc_row(); row < p.t.rows; row += rtc_row_step()) {
        int64_t at = row % p.t.table * p.t.r;
        for (int k = (int)rtc_unit(); k < p.heads + p.others;
             k += (int)rtc_unit_step()) {
            int64_t first = row * p.t.cols;
            if (k >= p.heads) {
                first += other_column(&p.t, (int64_t)(k - p.heads) * N);
                *(pack *)(y + first) = *(const pack *)(x + first);
                continue;
            }
            int i = k % per * N;
            first += p.t.start + k / per * p.t.stride + i;
            pack u = *(const pack *)(x + first), v = *(const pack *)(x + first + half);
            floats cu = *(const floats *)(cos + at + i);
            floats cv = *(const floats *)(cos + at + half + i);
            floats su = *(const floats *)(sin + at + i);
            floats sv = *(const floats *)(sin + at + half + i);
            for (int e = 0; e < N; e++) {
                float a = rtc_float(u.at[e]), b = rtc_float(v.at[e]);
                float to_u = p.t.back ? b * sv.at[e] : -(b * su.at[e]);
                float to_v = p.t.back ? -(a * su.at[e]) : a * sv.at[e];
                u.at[e] = rtc_as<T>(fmaf(a, cu.at[e], to_u));
                v.at[e] = rtc_as<T>(fmaf(b, cv.at[e], to_v));
            }
            *(pack *)(y + first) = u;
            *(pack *)(y + first + half) = v;
        }
    }
}

template <class T, int N>
static void
launch(rt_stream *s, void *y, const void *x, const float *cos, const float *sin,
       const rt_turn *t)
{
    int64_t turned = t->heads * t->r;
    turn_plan p = {*t, (int)(turned / 2 / N),
                   y == x ? 0 : (int)((t->cols - turned) / N)};
    if (!p.heads && !p.others)
        return;
    rtc_grid g = rtc_rows_of(t->rows, p.heads + p.others);
    RT_LAUNCH((turn<T, N>), g.grid, g.block, 0, s->stream, (T *)y, (const T *)x, cos,
              sin, p);
}

void
rt_rotary(rt_stream *s, void *y, const void *x, const float *cos, const float *sin,
          const rt_turn *t)
{
    if (!t->rows)
        return;
    int64_t n = t->type == RT_F32 ? 4 : 8;
    int64_t columns = t->r / 2 | t->start | t->cols | (t->heads > 1 ? t->stride : 0);
    bool wide = columns % n == 0 && rtc_fits(rtc_address(y) | rtc_address(x) |
                                                 rtc_address(cos) | rtc_address(sin),
                                             16);
    if (!wide)
        RTC_BY_TYPE(t->type, T, launch<T, 1>(s, y, x, cos, sin, t));
    else
        RTC_BY_TYPE(t->type, T, launch<T, rtc_width<T>::N>(s, y, x, cos, sin, t));
}
