/* softmax.c -- softmax over the rows of [rows, cols], the row's maximum subtracted.
 *
 * A row of -inf only becomes NaN, as in PyTorch. Attention that was recognised does not
 * come here (attention.c).
 */
#include "row_int.h"

#include <string.h>

void
rt_softmax(rt_stream *s, float *y, const float *x, int64_t rows, int64_t cols)
{
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < rows; r++) {
        float sum, *out = y + r * cols;
        row_exp(out, x + r * cols, cols, &sum);
        row_scale(out, cols, 1 / sum);
    }
}

static bool
all_zero(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0)
            return false;
    return true;
}

void
rt_softmax_grad(rt_stream *s, float *dx, const float *dy, const float *y, int64_t rows,
                int64_t cols)
{
    int team = rt_team(s, rows * cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < rows; r++) {
        const float *d = dy + r * cols, *p = y + r * cols;
        vf dot = {0};
        for (int64_t i = 0; i < cols; i += VW)
            dot = v_fma(v_load_to(d + i, cols - i), v_load_to(p + i, cols - i), dot);
        float sum = v_sum(dot);
        if (sum != sum && all_zero(d, cols)) { /* y is NaN: a row of -inf only */
            memset(dx + r * cols, 0, sizeof *dx * (size_t)cols);
            continue;
        }
        for (int64_t i = 0; i < cols; i += VW) {
            int64_t left = cols - i;
            vf g = (v_load_to(d + i, left) - sum) * v_load_to(p + i, left);
            v_store_to(dx + r * cols + i, g, left);
        }
    }
}
