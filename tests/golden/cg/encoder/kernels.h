/* kernels.h -- elementwise kernels of this program. */
#include <efficc_rt.h>

void k0(rt_stream *st, float *y0, const float *x0, const float *x1);
void k1(rt_stream *st, float *y0, float *y1, const float *x0, const float *x1);
void k2(rt_stream *st, float *y0, const float *x0, const float *x1);
void k3(rt_stream *st, float *y0, const float *x0, const float *x1);
void k6(rt_stream *st, float *y0, const float *x0, const float *x1);
