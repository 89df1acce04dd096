/* dropout.c -- y = x / (1 - p), or 0 where random bits fall below p.
 *
 * The bits of an element are a function of its step, sample, position, column and place in the
 * model, see philox_int.h: so they are the same for any number of threads, order of rows or
 * division of the batch, and the backward part makes them again instead of storing them.
 */
#include "low_int.h"
#include "philox_int.h"
#include "rt_cpu_int.h"

static void
drop_row(void *y, const void *x, int64_t row, const philox *at, const rt_drop *d)
{
    const vf scale = v_set(1 / (1 - d->p));
    int64_t first = row * d->cols;
    uint32_t below = philox_below(d->p), w[PHILOX_WORDS];
    for (int64_t c = 0; c < d->cols; c += PHILOX_WORDS) {
        philox_words(w, at, c, PHILOX_WORDS, 0);
        int64_t n = rt_min(PHILOX_WORDS, d->cols - c);
        for (int64_t i = 0; i < n; i += VW) {
            vf keep = philox_keep(w + i, below, scale);
            vf v = v_load_as_to(x, first + c + i, n - i, d->type);
            v = v_if_less(v_set(0), keep, v * keep, v_set(0));
            v_store_as_to(y, first + c + i, v, n - i, d->type);
        }
    }
}

void
rt_dropout(rt_stream *s, void *y, const void *x, const int64_t *keys,
           const int64_t *key, const rt_drop *d)
{
    int team = rt_team(s, d->rows * d->cols);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t r = 0; r < d->rows; r++) {
        philox at = philox_of(key[0], keys[r], d->site);
        drop_row(y, x, r, &at, d);
    }
}
