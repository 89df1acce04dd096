/* convert.cu -- from one float type to another. */
#include "pack_int.h"

enum { PACK = 8 };

/* n: packs of N elements. */
template <class To, class From, int N>
static __global__ void
convert_packs(To *y, const From *x, int64_t n)
{
    for (int64_t i = rtc_unit(); i < n; i += rtc_unit_step()) {
        rtc_pack<From, N> v = ((const rtc_pack<From, N> *)x)[i];
        rtc_pack<To, N> to;
        for (int k = 0; k < N; k++)
            to.at[k] = rtc_as<To>(rtc_float(v.at[k]));
        ((rtc_pack<To, N> *)y)[i] = to;
    }
}

template <class To, class From>
static void
convert(rt_stream *s, To *y, const From *x, int64_t n)
{
    int64_t packs = rtc_fits(rtc_address(y) | rtc_address(x), 16) ? n / PACK : 0;
    int64_t done = packs * PACK, rest = n - done;
    if (packs) {
        rtc_grid g = rtc_rows_of(1, packs);
        RT_LAUNCH((convert_packs<To, From, PACK>), g.grid, g.block, 0, s->stream, y, x,
                  packs);
    }
    if (rest) {
        rtc_grid g = rtc_rows_of(1, rest);
        RT_LAUNCH((convert_packs<To, From, 1>), g.grid, g.block, 0, s->stream, y + done,
                  x + done, rest);
    }
}

void
rt_convert(rt_stream *s, void *y, rt_dtype to, const void *x, rt_dtype from, int64_t n)
{
    if (to == from)
        rt_copy(s, y, x, n * rtc_bytes(to));
    else
        RTC_BY_TYPE(
            to, To,
            RTC_BY_TYPE(from, From, convert<To, From>(s, (To *)y, (const From *)x, n)));
}
