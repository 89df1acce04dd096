/* gemm_int.h -- products of one shape, and the algorithms that cuBLASLt has for them. */
#ifndef EFFICC_CUDA_GEMM_INT_H
#define EFFICC_CUDA_GEMM_INT_H

#include "cuda_int.h"
#include <cublasLt.h>

/* All that an algorithm depends on; compared as bytes. from: is C added, and from elsewhere? with:
 * is there something beside C, and added to? *_align: largest power of two, up to 256, of which
 * the address is a multiple; of what is not there 256. */
typedef struct rtc_shape {
    int64_t m, n, k, lda, ldb, ldc, batch, sa, sb, sc;
    int64_t ta, tb, bias, from, a, b, c;
    int64_t epilogue, with;
    int64_t a_align, b_align, c_align, from_align, vector_align, aux_align;
    int64_t workspace; /* bytes */
} rtc_shape;

/* A product and where its operands are. from: NULL, or what is added, in c's layout. */
typedef struct rtc_call {
    rt_gemm_desc d;
    void *c;
    const void *a, *b, *from;
    const float *bias;
    void *with;      /* of an epilogue: H, or sums; NULL: H is not kept */
    void *workspace; /* of rtc_gemm_layout() */
    int64_t bytes;   /* that the library may use of it; 0: there is none */
} rtc_call;

enum { RTC_CANDIDATES = 8 };
typedef struct rtc_product { /* of a shape */
    rtc_shape shape;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c; /* by our names */
    cublasLtMatmulHeuristicResult_t found[RTC_CANDIDATES];
    int nfound, chosen; /* none: our own kernel does it, or an epilogue is apart */
    bool settled;       /* chosen is from a measurement */
    bool captured;
    rtc_call call; /* of the first capture */
} rtc_product;

typedef struct rtc_algo { /* of a shape, as it was measured once */
    rtc_shape shape;
    int64_t apart; /* its epilogue is faster by itself; algo is 0 */
    cublasLtMatmulAlgo_t algo;
} rtc_algo;

struct rtc_gemms {
    cublasLtHandle_t library;
    cublasLtMatmulPreference_t preference;
    rtc_product *product;
    int nproduct, room;
    rtc_algo *algo; /* of the cache on disk */
    int nalgo, algo_room;
    int *
        slot; /* 2 algo_room: numbers of algo[] + 1, by the hash of their shapes; 0: free */
    bool said; /* that our own kernel does a product */
};

static inline cudaDataType
rtc_library_type(int64_t t)
{
    return t == RT_BF16 ? CUDA_R_16BF : t == RT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* have: bytes at workspace. */
void rtc_run_product(rt_stream *, rtc_call *, int64_t have);
/* Our own product: any types, strides and sizes, no epilogue. */
void rtc_own_product(rt_stream *, const rtc_call *);

/* ---- epilogues, gemm_epilogue.cu ---- */

/* Has the library an epilogue that does all of this call? Its algorithms are another question. */
bool rtc_epilogue_fits(const rtc_call *);
/* Tells op of it: what is done, in which type, and where. vector: what the library reads or writes
 * as a bias, sums included; aux: H. Both may be NULL. */
bool rtc_epilogue_describe(cublasLtMatmulDesc_t op, const rtc_call *);
bool rtc_epilogue_place(cublasLtMatmulDesc_t op, const rtc_call *);
void *rtc_epilogue_vector(const rtc_call *);
void *rtc_epilogue_aux(const rtc_call *);
/* What has to run before the library's product, and behind it. */
void rtc_epilogue_begin(rt_stream *, const rtc_call *);
void rtc_epilogue_end(rt_stream *, const rtc_call *);
/* The product without its epilogue, and both, one behind the other. */
rtc_call rtc_epilogue_plain(const rtc_call *);
void rtc_epilogue_apart(rt_stream *, const rtc_call *);

/* ---- the cache, gemm_cache.cu: nothing in it is an error ---- */

void rtc_cache_read(rt_stream *);
void rtc_cache_write(rt_stream *);
const rtc_algo *rtc_cache_find(const rtc_gemms *, const rtc_shape *);
void rtc_cache_add(rtc_gemms *, const rtc_algo *);

#endif
