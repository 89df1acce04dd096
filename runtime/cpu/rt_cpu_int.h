/* rt_cpu_int.h -- what the kernels of the CPU device share. */
#ifndef EFFICC_RT_CPU_INT_H
#define EFFICC_RT_CPU_INT_H

#include "../include/efficc_rt.h"
#include <string.h>

typedef struct rt_gemm_table rt_gemm_table; /* objects for the program's products */

struct rt_stream {
    const rt_program *program;
    int threads, threads_before;
    int at[RT_NSYMS]; /* sizes of the micro-batch: indices into program->size */
    rt_gemm_table *gemm;
    int64_t marks;   /* that rt_mark() gave out */
    double *partial; /* of rt_norm2, one per block of all gradient buffers */
};

bool rt_gemm_open(rt_stream *, char *error, size_t n);
void rt_gemm_close(rt_stream *); /* also of a table that failed to open */

/* Partial sums of rt_norm2 in a buffer of n elements. */
enum { RT_NORM_BLOCK = 1024 };
static inline int64_t
rt_norm2_blocks(int64_t n)
{
    return (n + RT_NORM_BLOCK - 1) / RT_NORM_BLOCK;
}

/* Below this much work (elements, or multiply-adds of a product) a second thread costs more
 * than it brings. */
enum { RT_SMALL = 1 << 15 };

static inline int64_t
rt_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t
rt_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t
rt_round_up(int64_t a, int64_t unit)
{
    return (a + unit - 1) / unit * unit;
}

/* Groups of rows that sums over rows are cut into, from the number of rows alone. */
enum { RT_ROW_BLOCKS = 32, RT_COL_CHUNK = 1024 };
int64_t rt_row_blocks(int64_t rows);
/* y [cols] (+)= sum over blocks of part [blocks, cols], in order. */
void rt_sum_partials(rt_stream *, float *y, const float *part, int64_t blocks,
                     int64_t cols, bool add);

/* The functions of rt_cpu_scratch. */
int64_t rt_gemm_scratch(const rt_gemm_desc *, int threads);
int64_t rt_epilogue_scratch(const rt_gemm_desc *, int threads); /* part of it */
int64_t rt_attention_scratch(const rt_attn *, int threads);
int64_t rt_attention_grad_scratch(const rt_attn *, int threads);
int64_t rt_head_ce_scratch(const rt_head *, bool grad, int threads);
int64_t rt_embed_grad_scratch(int64_t rows, int64_t h, int64_t v, int threads);
int64_t rt_colsum_scratch(int64_t rows, int64_t cols, int threads);
int64_t rt_layernorm_dwb_scratch(int64_t rows, int64_t cols, int threads);
int64_t rt_rmsnorm_dw_scratch(int64_t rows, int64_t cols, int threads);

/* Threads for `work` elements. */
static inline int
rt_team(const rt_stream *s, int64_t work)
{
    return work < RT_SMALL ? 1 : s->threads;
}

#endif
