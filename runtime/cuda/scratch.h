/* scratch.h -- how much space kernels of the CUDA device want, and how some of it is cut up.
 *
 * Plain C without anything of CUDA: efficc links these functions, too, so that a plan is made
 * by the same sizes that the kernels go by.
 */
#ifndef EFFICC_CUDA_SCRATCH_H
#define EFFICC_CUDA_SCRATCH_H

#ifdef __cplusplus
extern "C" {
#endif
#include "../include/efficc_rt.h"

enum { RTC_ALIGN = 256 }; /* of each part */

/* Bytes of workspace for the library: enough to split k 16 times, at most 32 MiB. */
int64_t rtc_gemm_workspace(const rt_gemm_desc *);
/* Scratch of a product: offsets in bytes. The workspace is at 0; what is not wanted has no
 * bytes. */
typedef struct rtc_gemm_space {
    int64_t bias;  /* in c's type, where that is a low one */
    int64_t sums;  /* float [m or n]: of an operand, which are then added to others */
    int64_t parts; /* of rt_colsum() over an operand */
    int64_t bytes;
} rtc_gemm_space;
rtc_gemm_space rtc_gemm_layout(const rt_gemm_desc *);
int64_t rtc_gemm_scratch(const rt_gemm_desc *, int threads);

/* Scratch of a head: offsets in bytes. */
typedef struct rtc_head_space {
    int64_t chunk;  /* rows of one */
    int64_t ld;     /* floats from one row of logits to the next */
    int64_t losses; /* double [rows] */
    int64_t logits; /* float [chunk, ld]; then, in their place, d logits of the type */
    int64_t stats;  /* float [chunk, 2]: largest logit, sum of exp(logit - largest) */
    int64_t work;   /* of products */
    int64_t bytes;
} rtc_head_space;
rtc_head_space rtc_head_layout(const rt_head *, bool grad);
/* The products of n rows of a chunk: logits, dx and dw. */
typedef enum rtc_head_product { RTC_HEAD_Y, RTC_HEAD_DX, RTC_HEAD_DW } rtc_head_product;
rt_gemm_desc rtc_head_gemm(const rt_head *, rtc_head_product, int64_t n, int64_t ld);
int64_t rtc_head_ce_scratch(const rt_head *, bool grad, int threads);

/* Groups of rows of which gradients of norms have partial sums: from the rows alone. */
int64_t rtc_norm_groups(int64_t rows);
int64_t rtc_layernorm_dwb_scratch(int64_t rows, int64_t cols, int threads);
int64_t rtc_rmsnorm_dw_scratch(int64_t rows, int64_t cols, int threads);

/* Shared memory of a block of our own kernels; -1: no kernel takes such heads. */
int64_t rtc_attention_shared(const rt_attn *, bool grad);
int64_t rtc_attention_scratch(const rt_attn *, int threads);
int64_t rtc_attention_grad_scratch(const rt_attn *, int threads);
/* Scratch of an attention by cuDNN: offsets in bytes. */
enum { RTC_DNN_OFFSETS = 5 }; /* of q, k, v, y, lse */
typedef struct rtc_dnn_space {
    int64_t lengths;         /* int32 [batch] */
    int64_t offsets;         /* int64 [RTC_DNN_OFFSETS, rtc_dnn_row()] */
    int64_t bias;            /* float [batch, seq] */
    int64_t lse, delta;      /* float [batch, heads, seq] */
    int64_t sum_dq;          /* float [batch, heads, seq, d] */
    int64_t workspace, most; /* of cuDNN, and its bytes */
    int64_t bytes;
} rtc_dnn_space;
/* Numbers in a row of offsets: of batch + 1, and each begins on 16 bytes as cuDNN is told. */
int64_t rtc_dnn_row(int64_t batch);
/* Has cuDNN attention of this kind? */
bool rtc_dnn_serves(const rt_attn *);
rtc_dnn_space rtc_dnn_layout(const rt_attn *, bool grad);

/* Scratch of an embedding's gradient: offsets in bytes; embed.cu says what for. */
enum { RTC_EMBED_CHUNK = 32 };
typedef struct rtc_embed_space {
    int64_t chunks;       /* of RTC_EMBED_CHUNK positions */
    int64_t order, other; /* uint32 [rows] */
    int64_t part;         /* float [2, chunks, h] */
    int64_t bytes;
} rtc_embed_space;
rtc_embed_space rtc_embed_layout(int64_t rows, int64_t h);
int64_t rtc_embed_grad_scratch(int64_t rows, int64_t h, int64_t v, int threads);
/* Groups of rows of which rt_colsum() has partial sums: from the rows alone. */
int64_t rtc_colsum_groups(int64_t rows);
int64_t rtc_colsum_scratch(int64_t rows, int64_t cols, int threads);

#ifdef __cplusplus
}
#endif
#endif
