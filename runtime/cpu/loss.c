/* loss.c -- losses of outputs that are all there: cross entropy of class heads, and the
 * squared error of a regression.
 *
 *     loss = scale * sum over supervised rows of (lse(x) - x[target])
 *     dx = scale * (softmax(x) - onehot(target)),   0 in rows that are not supervised
 *
 *     loss = scale * sum over supervised elements of (y - value)^2
 *     dy = scale * 2 (y - value),                   0 in elements that are not supervised
 *
 * Row losses are added in double, in RT_LOSS_BLOCKS groups of rows, group by group.
 */
#include "row_int.h"

/* The loss of the groups' sums. */
static float
scaled_sum(const double *part, double scale)
{
    double total = 0;
    for (int b = 0; b < RT_LOSS_BLOCKS; b++)
        total += part[b];
    return (float)(total * scale);
}

void
rt_ce(rt_stream *s, float *loss, int64_t *right, float *prob, float *losses,
      const float *logits, const int64_t *targets, const float *scale, int64_t rows,
      int64_t c)
{
    double part[RT_LOSS_BLOCKS];
    int64_t hit[RT_LOSS_BLOCKS];
    int team = rt_team(s, rows * c);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        part[b] = 0, hit[b] = 0;
        for (int64_t r = rows * b / RT_LOSS_BLOCKS; r < rows * (b + 1) / RT_LOSS_BLOCKS;
             r++) {
            const float *x = logits + r * c;
            float sum, max = row_exp(prob + r * c, x, c, &sum);
            row_scale(prob + r * c, c, 1 / sum);
            losses[r] = 0;
            if (targets[r] == RT_IGNORE)
                continue;
            double l = row_loss(max, sum, x[targets[r]]);
            losses[r] = (float)l;
            part[b] += l;
            hit[b] += row_argmax(x, c, max) == targets[r];
        }
    }
    *right = 0;
    for (int b = 0; b < RT_LOSS_BLOCKS; b++)
        *right += hit[b];
    *loss = scaled_sum(part, (double)*scale);
}

void
rt_ce_grad(rt_stream *s, float *loss, float *dlogits, const float *logits,
           const int64_t *targets, const float *scale, int64_t rows, int64_t c)
{
    double part[RT_LOSS_BLOCKS];
    int team = rt_team(s, rows * c);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        part[b] = 0;
        for (int64_t r = rows * b / RT_LOSS_BLOCKS; r < rows * (b + 1) / RT_LOSS_BLOCKS;
             r++) {
            const float *x = logits + r * c;
            float *dx = dlogits + r * c;
            if (targets[r] == RT_IGNORE) {
                memset(dx, 0, (size_t)c * sizeof *dx);
                continue;
            }
            float xt = x[targets[r]], sum, max = row_exp(dx, x, c, &sum);
            part[b] += row_loss(max, sum, xt);
            row_scale(dx, c, *scale / sum);
            dx[targets[r]] -= *scale;
        }
    }
    *loss = scaled_sum(part, (double)*scale);
}

/* ---- squared error ---- */

/* Sum of (y - value)^2 of a row; dy, unless NULL: 2 by (y - value). */
static double
row_mse(const float *y, const float *value, int64_t c, float *dy, double by)
{
    double sum = 0;
    for (int64_t k = 0; k < c; k++) {
        bool on = !isnan(value[k]);
        double d = on ? (double)y[k] - (double)value[k] : 0;
        sum += d * d;
        if (dy)
            dy[k] = (float)(2 * by * d);
    }
    return sum;
}

/* Either of losses [rows] and dy [rows,c] may be NULL. */
static void
mse(rt_stream *s, float *loss, float *losses, float *dy, const float *y,
    const float *values, double scale, int64_t rows, int64_t c)
{
    double part[RT_LOSS_BLOCKS];
    int team = rt_team(s, rows * c);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        part[b] = 0;
        for (int64_t r = rows * b / RT_LOSS_BLOCKS; r < rows * (b + 1) / RT_LOSS_BLOCKS;
             r++) {
            double l =
                row_mse(y + r * c, values + r * c, c, dy ? dy + r * c : NULL, scale);
            if (losses)
                losses[r] = (float)l;
            part[b] += l;
        }
    }
    *loss = scaled_sum(part, scale);
}

void
rt_mse(rt_stream *s, float *loss, float *losses, const float *y, const float *values,
       const float *scale, int64_t rows, int64_t c)
{
    mse(s, loss, losses, NULL, y, values, (double)*scale, rows, c);
}

void
rt_mse_grad(rt_stream *s, float *loss, float *dy, const float *y, const float *values,
            const float *scale, int64_t rows, int64_t c)
{
    mse(s, loss, NULL, dy, y, values, (double)*scale, rows, c);
}
