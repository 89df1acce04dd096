/* rotary.c -- rotary positions (Su et al., 2021), in the layout of Llama and GPT-NeoX.
 *
 * A head's first r columns are two halves u and v; column i of u and of v are a point that is
 * turned by the position's i-th angle:
 *
 *     u' = u cos - v sin     v' = v cos + u sin
 *     transposed (the gradient): u' = u cos + v sin     v' = v cos - u sin
 *
 * Each half has its own part of the tables, as in the graph. All other columns stay.
 */
#include "low_int.h"
#include "rt_cpu_int.h"

/* One head of one row, at element `at`, in place; c, s: the tables' row. */
V_INLINE void
turn(void *x, int64_t at, rt_dtype t, const float *c, const float *s, int64_t half,
     bool back)
{
    int64_t second = at + half;
    for (int64_t i = 0; i < half; i += VW) {
        int64_t left = half - i;
        vf u = v_load_as_to(x, at + i, left, t);
        vf v = v_load_as_to(x, second + i, left, t);
        vf cu = v_load_to(c + i, left), cv = v_load_to(c + half + i, left);
        vf su = v_load_to(s + i, left), sv = v_load_to(s + half + i, left);
        vf to_u = back ? v * sv : -(v * su), to_v = back ? -(u * su) : u * sv;
        v_store_as_to(x, at + i, v_fma(u, cu, to_u), left, t);
        v_store_as_to(x, second + i, v_fma(v, cv, to_v), left, t);
    }
}

void
rt_rotary(rt_stream *st, void *out, const void *in, const float *cos, const float *sin,
          const rt_turn *t)
{
    int team = rt_team(st, t->rows * t->cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < t->rows; i++) {
        int64_t row = i * t->cols, at = i % t->table * t->r;
        if (out != in)
            memcpy(v_at(out, row, t->type), v_at(in, row, t->type),
                   (size_t)(t->cols * v_bytes(t->type)));
        for (int64_t h = 0; h < t->heads; h++) {
            int64_t head = row + t->start + h * t->stride;
            if (t->type == RT_F32)
                turn(out, head, RT_F32, cos + at, sin + at, t->r / 2, t->back);
            else
                turn(out, head, t->type, cos + at, sin + at, t->r / 2, t->back);
        }
    }
}

void
rt_rotary2(rt_stream *s, void *yq, const void *xq, const rt_turn *q, void *yk,
           const void *xk, const rt_turn *k, const float *cos, const float *sin)
{
    rt_rotary(s, yq, xq, cos, sin, q);
    rt_rotary(s, yk, xk, cos, sin, k);
}
