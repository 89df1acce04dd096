/* mm_int.h -- our own matrix product, for what the library does worse or not reproducibly:
 * transposed A, the language model head, odd machines. */
#ifndef EFFICC_MM_INT_H
#define EFFICC_MM_INT_H

#include <stdbool.h>
#include <stdint.h>

/* C [m,n] = alpha op(A) op(B) + bias [n] (+ C under add), as rt_gemm_desc says it. batch: so
 * many products one after the other, operands sa, sb, sc elements apart; 0: one. */
typedef struct rt_mm {
    int64_t m, n, k;
    bool ta, tb, add;
    float alpha;
    int64_t lda, ldb, ldc;
    const float *a, *b, *bias; /* bias: NULL, none */
    float *c;
    int64_t batch, sa, sb, sc;
} rt_mm;

/* Bytes of scratch, the same for any number of threads. */
int64_t rt_mm_scratch(int64_t m, int64_t n, int64_t k);
/* Results do not depend on threads. */
void rt_mm_run(const rt_mm *, int threads, void *scratch);

#endif
