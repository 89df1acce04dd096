/* epilogue.c -- products with an epilogue: what a GPU does before results go to memory is a walk
 * of its own over them here.
 */
#include "low_int.h"
#include "rt_cpu_int.h"
#include "simd_int.h"

/* Elements of a block: which the vector code and which the tail computes does not depend on the
 * number of threads. */
enum { BLOCK = 4096 };

/* e^-2u of gelu_tanh's u (elementwise.def): (1 + tanh u) / 2 = 1 / (1 + e^-2u), which loses no
 * digits where tanh u is next to -1. */
V_INLINE vf
exp_minus_2u(vf x)
{
    return v_exp(-1.5957691216057308f * (x + 0.044715f * x * x * x));
}

V_INLINE vf
gelu(vf x)
{
    return x / (1 + exp_minus_2u(x));
}

V_INLINE vf
gelu_slope(vf x)
{
    vf e = exp_minus_2u(x), s = 1 / (1 + e);
    vf twice_du = 1.5957691216057308f + 0.21406445f * x * x;
    return s + x * s * (e * s) * twice_du;
}

/* y = gelu(h), or with slope y = y times gelu's derivative at h; elements [i, end). */
V_INLINE void
walk(void *y, const void *h, int64_t i, int64_t end, bool slope, rt_dtype t)
{
    for (; i < end; i += VW) {
        vf x = v_load_as_to(h, i, end - i, t);
        vf r = slope ? v_load_as_to(y, i, end - i, t) * gelu_slope(x) : gelu(x);
        v_store_as_to(y, i, r, end - i, t);
    }
}

static void
walk_all(rt_stream *s, void *y, const void *h, int64_t n, const rt_gemm_desc *d)
{
    bool slope = d->epilogue == RT_DGELU;
    int team = rt_team(s, n);
#pragma omp parallel for schedule(static) num_threads(team)
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t end = rt_min(i + BLOCK, n);
        if (d->c == RT_F32) /* a constant: floats take no branches */
            walk(y, h, i, end, slope, RT_F32);
        else
            walk(y, h, i, end, slope, d->c);
    }
}

/* What is summed: rows of memory, since A is transposed and B is not. */
static void
sums(rt_stream *s, float *y, const void *a, const void *b, const rt_gemm_desc *d,
     void *scratch)
{
    bool of_a = d->epilogue == RT_SUM_A;
    rt_colsum(s, y, of_a ? a : b, of_a ? d->a : d->b, d->k, of_a ? d->m : d->n,
              of_a ? d->lda : d->ldb, d->add_sum, scratch);
}

int64_t
rt_epilogue_scratch(const rt_gemm_desc *d, int threads)
{
    return d->epilogue == RT_SUM_A   ? rt_colsum_scratch(d->k, d->m, threads)
           : d->epilogue == RT_SUM_B ? rt_colsum_scratch(d->k, d->n, threads)
                                     : 0;
}

void
rt_gemm_with(rt_stream *s, int i, void *c, void *with, const void *a, const void *b,
             const float *bias, void *scratch)
{
    rt_gemm_desc d = s->program->gemm[i];
    if (d.vary_m)
        d.m = s->program->size[d.vary_m][s->at[d.vary_m]];
    if (d.vary_k)
        d.k = s->program->size[d.vary_k][s->at[d.vary_k]];
    void *h = d.epilogue == RT_GELU && with ? with : c;
    rt_gemm(s, i, h, a, b, bias, scratch);
    if (d.epilogue == RT_GELU)
        walk_all(s, c, h, d.m * d.n, &d);
    else if (d.epilogue == RT_DGELU)
        walk_all(s, c, with, d.m * d.n, &d);
    else
        sums(s, with, a, b, &d, scratch);
}
