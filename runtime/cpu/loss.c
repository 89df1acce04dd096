/* loss.c -- cross entropy of logits that are all there: class heads.
 *
 *     loss = scale * sum over supervised rows of (lse(x) - x[target])
 *     dx = scale * (softmax(x) - onehot(target)),   0 in rows that are not supervised
 *
 * Row losses are added in double, in RT_LOSS_BLOCKS groups of rows, group by group.
 */
#include "row_int.h"

void
rt_ce(rt_stream *s, float *loss, int64_t *right, float *prob, const float *logits,
      const int64_t *targets, const float *scale, int64_t rows, int64_t c)
{
    double part[RT_LOSS_BLOCKS], total = 0;
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
            if (targets[r] == RT_IGNORE)
                continue;
            part[b] += row_loss(max, sum, x[targets[r]]);
            hit[b] += row_argmax(x, c, max) == targets[r];
        }
    }
    *right = 0;
    for (int b = 0; b < RT_LOSS_BLOCKS; b++) {
        total += part[b];
        *right += hit[b];
    }
    *loss = (float)(total * (double)*scale);
}

void
rt_ce_grad(rt_stream *s, float *loss, float *dlogits, const float *logits,
           const int64_t *targets, const float *scale, int64_t rows, int64_t c)
{
    double part[RT_LOSS_BLOCKS], total = 0;
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
    for (int b = 0; b < RT_LOSS_BLOCKS; b++)
        total += part[b];
    *loss = (float)(total * (double)*scale);
}
