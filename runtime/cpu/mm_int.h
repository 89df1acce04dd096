/* mm_int.h -- our own matrix product, for what the library does worse, not reproducibly or
 * not at all: transposed A, the language model head, odd types and machines. */
#ifndef EFFICC_MM_INT_H
#define EFFICC_MM_INT_H

#include "../include/efficc_rt.h"

/* C [m,n] = alpha op(A) op(B) + bias [n] (+ C under add), as rt_gemm_desc says it. batch: so
 * many products one after the other, operands sa, sb, sc elements apart; 0: one. Types are
 * RT_F32 where nothing is said. like_library: sums of bf16 in oneDNN's order. */
typedef struct rt_mm {
    int64_t m, n, k;
    bool ta, tb, add, like_library;
    float alpha;
    int64_t lda, ldb, ldc;
    const void *a, *b;
    const float *bias; /* NULL: none */
    void *c;
    int64_t batch, sa, sb, sc;
    rt_dtype type_a, type_b, type_c;
} rt_mm;

/* Bytes of scratch, the same for any number of threads, and enough for smaller m, n, k. */
int64_t rt_mm_scratch(const rt_mm *);
/* Results do not depend on threads. */
void rt_mm_run(const rt_mm *, int threads, void *scratch);

#endif
