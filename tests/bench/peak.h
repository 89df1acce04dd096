/* peak.h -- what the machine can do at this moment: fused multiply-adds on registers. */
#ifndef EFFICC_BENCH_PEAK_H
#define EFFICC_BENCH_PEAK_H

#include "runtime/cpu/simd_int.h"
#include <omp.h>
#include <time.h>

static inline double
bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* GFLOP/s of all threads with operands in registers. */
static inline double
bench_peak(int threads)
{
    enum { CHAINS = 12, STEPS = 1 << 20 };
    static float sink;
    double begin = bench_now();
#pragma omp parallel num_threads(threads)
    {
        vf a[CHAINS], x = v_set(1 + 1e-7f), y = v_set(1e-9f), s = {0};
        for (int i = 0; i < CHAINS; i++)
            a[i] = v_set((float)i);
        for (int k = 0; k < STEPS; k++)
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) a[i] =
                v_fma(a[i], x, y);
        for (int i = 0; i < CHAINS; i++)
            s += a[i];
#pragma omp critical
        sink += v_sum(s);
    }
    return 2.0 * CHAINS * VW * STEPS * threads / (bench_now() - begin) / 1e9;
}

#endif
