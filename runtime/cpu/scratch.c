/* scratch.c -- the table of functions by which a plan knows how much space kernels want. */
#include "rt_cpu_int.h"

const rt_scratch rt_cpu_scratch = {.gemm = rt_gemm_scratch,
                                   .attention = rt_attention_scratch,
                                   .attention_grad = rt_attention_grad_scratch,
                                   .head_ce = rt_head_ce_scratch,
                                   .embed_grad = rt_embed_grad_scratch,
                                   .colsum = rt_colsum_scratch,
                                   .layernorm_dwb = rt_layernorm_dwb_scratch,
                                   .rmsnorm_dw = rt_rmsnorm_dw_scratch};
