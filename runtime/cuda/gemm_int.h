/* gemm_int.h -- products of one shape, and the algorithms that cuBLASLt has for them. */
#ifndef EFFICC_CUDA_GEMM_INT_H
#define EFFICC_CUDA_GEMM_INT_H

#include "cuda_int.h"
#include <cublasLt.h>

/* All that an algorithm depends on; compared as bytes. from: is C added, and from elsewhere?
 * *_align: largest power of two, up to 256, of which the address is a multiple. */
typedef struct rtc_shape {
    int64_t m, n, k, lda, ldb, ldc, batch, sa, sb, sc;
    int64_t ta, tb, bias, from, a, b, c;
    int64_t a_align, b_align, c_align, from_align;
    int64_t workspace; /* bytes */
} rtc_shape;

/* A product and where its operands are. from: NULL, or what is added, in c's layout. */
typedef struct rtc_call {
    rt_gemm_desc d;
    void *c;
    const void *a, *b, *from;
    const float *bias;
    void *workspace;
    int64_t bytes; /* of workspace */
} rtc_call;

enum { RTC_CANDIDATES = 8 };
typedef struct rtc_product { /* of a shape */
    rtc_shape shape;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c; /* by our names */
    cublasLtMatmulHeuristicResult_t found[RTC_CANDIDATES];
    int nfound, chosen; /* none: our own kernel does it */
    bool settled;       /* chosen is from a measurement */
    bool captured;
    rtc_call call; /* of the first capture */
} rtc_product;

typedef struct rtc_algo { /* of a shape, as it was measured once */
    rtc_shape shape;
    cublasLtMatmulAlgo_t algo;
} rtc_algo;

struct rtc_gemms {
    cublasLtHandle_t library;
    cublasLtMatmulPreference_t preference;
    rtc_product *product;
    int nproduct, room;
    rtc_algo *algo; /* of the cache on disk */
    int nalgo, algo_room;
    bool said; /* that our own kernel does a product */
};

/* Enqueues the product by candidate i of p; bias is in the type that the library wants. */
cublasStatus_t rtc_run_candidate(rt_stream *, const rtc_product *, int i,
                                 const rtc_call *, const void *bias);
/* Our own product: any types, strides and sizes. */
void rtc_own_product(rt_stream *, const rtc_call *);

/* The cache, gemm_cache.cu: nothing in it is an error. */
void rtc_cache_read(rt_stream *);
void rtc_cache_write(rt_stream *);
const cublasLtMatmulAlgo_t *rtc_cache_find(const rtc_gemms *, const rtc_shape *);
void rtc_cache_add(rtc_gemms *, const rtc_shape *, const cublasLtMatmulAlgo_t *);

#endif
