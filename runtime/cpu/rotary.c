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
#include "rt_cpu_int.h"
#include "simd_int.h"

/* One head of one row, in place; c, s: the tables' row. */
static void
turn(float *x, const float *c, const float *s, int64_t half, bool back)
{
    for (int64_t i = 0; i < half; i += VW) {
        int64_t left = half - i;
        vf u = v_load_to(x + i, left), v = v_load_to(x + half + i, left);
        vf cu = v_load_to(c + i, left), cv = v_load_to(c + half + i, left);
        vf su = v_load_to(s + i, left), sv = v_load_to(s + half + i, left);
        vf to_u = back ? v * sv : -(v * su), to_v = back ? -(u * su) : u * sv;
        v_store_to(x + i, v_fma(u, cu, to_u), left);
        v_store_to(x + half + i, v_fma(v, cv, to_v), left);
    }
}

void
rt_rotary(rt_stream *st, void *out, const void *in, const float *cos, const float *sin,
          const rt_turn *t)
{
    float *y = out;
    const float *x = in;
    int team = rt_team(st, t->rows * t->cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < t->rows; i++) {
        float *row = y + i * t->cols;
        int64_t at = i % t->table * t->r;
        if (y != x)
            memcpy(row, x + i * t->cols, (size_t)t->cols * sizeof *row);
        for (int64_t h = 0; h < t->heads; h++)
            turn(row + t->start + h * t->stride, cos + at, sin + at, t->r / 2, t->back);
    }
}
