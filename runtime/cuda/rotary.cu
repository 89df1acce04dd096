/* rotary.cu -- rotary positions; the formula is that of runtime/cpu/rotary.c.
 *
 * A thread has N neighbouring columns of the two halves of one head, or, where y is not x, N
 * columns that stay. Units of a row: first those of the heads, then the others.
 */
#include "pack_int.h"

typedef struct turn_plan { /* of one tensor; several go in one launch */
    rt_turn t;
    int heads, others; /* units of a row */
    void *y;
    const void *x;
} turn_plan;

typedef struct turns {
    turn_plan of[2]; /* by blockIdx.z */
} turns;

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
turn(turns both, const float *cos, const float *sin)
{
    const turn_plan p = both.of[blockIdx.z];
    T *y = (T *)p.y;
    const T *x = (const T *)p.x;
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
            ((pack *)y)[first / N] = u;
            ((pack *)y)[(first + half) / N] = v;
        }
    }
}

/* Columns and addresses in terms of which packs of n elements must fit. */
static bool
is_wide(const turn_plan *p, const float *cos, const float *sin)
{
    const rt_turn *t = &p->t;
    int64_t n = t->type == RT_F32 ? 4 : 8;
    int64_t columns = t->r / 2 | t->start | t->cols | (t->heads > 1 ? t->stride : 0);
    return columns % n == 0 && rtc_fits(rtc_address(p->y) | rtc_address(p->x) |
                                            rtc_address(cos) | rtc_address(sin),
                                        16);
}

template <class T, int N>
static void
launch(rt_stream *s, turns both, int n, const float *cos, const float *sin)
{
    int most = 0;
    for (int i = 0; i < n; i++) {
        turn_plan *p = &both.of[i];
        int64_t turned = p->t.heads * p->t.r;
        p->heads = (int)(turned / 2 / N);
        p->others = p->y == p->x ? 0 : (int)((p->t.cols - turned) / N);
        most = p->heads + p->others > most ? p->heads + p->others : most;
    }
    if (!most)
        return;
    rtc_grid g = rtc_rows_of(both.of[0].t.rows, most);
    g.grid.z = (unsigned)n;
    RT_LAUNCH((turn<T, N>), g.grid, g.block, 0, s->stream, both, cos, sin);
}

/* Both are of one type and have as many rows. */
static void
run(rt_stream *s, const turns *both, int n, const float *cos, const float *sin)
{
    bool wide = true;
    if (!both->of[0].t.rows)
        return;
    for (int i = 0; i < n; i++)
        wide = wide && is_wide(&both->of[i], cos, sin);
    if (!wide)
        RTC_BY_TYPE(both->of[0].t.type, T, launch<T, 1>(s, *both, n, cos, sin));
    else
        RTC_BY_TYPE(both->of[0].t.type, T,
                    launch<T, rtc_width<T>::N>(s, *both, n, cos, sin));
}

void
rt_rotary(rt_stream *s, void *y, const void *x, const float *cos, const float *sin,
          const rt_turn *t)
{
    turns one = {{{*t, 0, 0, y, x}}};
    run(s, &one, 1, cos, sin);
}

void
rt_rotary2(rt_stream *s, void *yq, const void *xq, const rt_turn *q, void *yk,
           const void *xk, const rt_turn *k, const float *cos, const float *sin)
{
    turns both = {{{*q, 0, 0, yq, xq}, {*k, 0, 0, yk, xk}}};
    run(s, &both, 2, cos, sin);
}
