/* peak.c -- prints the machine's fused multiply-add peak, one thread and all. */
#include "peak.h"
#include <stdio.h>

static double
best(int threads)
{
    double top = 0;
    for (int i = 0; i < 9; i++)
        top = fmax(top, bench_peak(threads));
    return top;
}

int
main(void)
{
    int all = omp_get_max_threads();
    printf("fp32 peak, 1 thread: %.0f GFLOP/s\n", best(1));
    printf("fp32 peak, %d threads: %.0f GFLOP/s\n", all, best(all));
    return 0;
}
