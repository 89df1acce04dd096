/* dropout.cu -- y = x / (1 - p), or 0 where random bits fall below p; the bits are those of
 * runtime/cpu/dropout.c. A thread has four columns: one counter's words.
 */
#include "../include/efficc_philox.h"
#include "pack_int.h"

enum { WORDS = 4 };

/* WIDE: columns are a multiple of four, and so are addresses. */
template <class T, bool WIDE>
static __global__ void
drop(T *y, const T *x, const int64_t *keys, const int64_t *key, rt_drop d)
{
    typedef rtc_pack<T, WORDS> pack;
    const float scale = 1 / (1 - d.p);
    uint32_t below = philox_below(d.p), w[WORDS];
    for (int64_t r = rtc_row(); r < d.rows; r += rtc_row_step()) {
        philox at = philox_of(key[0], keys[r], d.site);
        for (int64_t u = rtc_unit(); u * WORDS < d.cols; u += rtc_unit_step()) {
            int64_t c = u * WORDS, i = r * d.cols + c;
            int n = d.cols - c < WORDS ? (int)(d.cols - c) : WORDS;
            pack v, to;
            if (WIDE)
                v = *(const pack *)(x + i);
            else
                for (int k = 0; k < WORDS; k++)
                    v.at[k] = x[i + (k < n ? k : 0)];
            philox_four(w, &at, philox_group(c, 0));
            for (int k = 0; k < WORDS; k++)
                to.at[k] = rtc_as<T>(w[k] < below ? 0.0f : rtc_float(v.at[k]) * scale);
            if (WIDE)
                ((pack *)y)[i / WORDS] = to;
            else
                for (int k = 0; k < WORDS; k++)
                    if (k < n)
                        y[i + k] = to.at[k];
        }
    }
}

void
rt_dropout(rt_stream *s, void *y, const void *x, const int64_t *keys,
           const int64_t *key, const rt_drop *d)
{
    if (!d->rows || !d->cols)
        return;
    rtc_grid g = rtc_rows_of(d->rows, rtc_blocks(d->cols, WORDS));
    int64_t size = rtc_bytes(d->type);
    bool wide =
        d->cols % WORDS == 0 && rtc_fits(rtc_address(y) | rtc_address(x), WORDS * size);
    RTC_BY_TYPE(d->type, T,
                if (wide) RT_LAUNCH((drop<T, true>), g.grid, g.block, 0, s->stream,
                                    (T *)y, (const T *)x, keys, key, *d);
                else RT_LAUNCH((drop<T, false>), g.grid, g.block, 0, s->stream, (T *)y,
                               (const T *)x, keys, key, *d));
}
