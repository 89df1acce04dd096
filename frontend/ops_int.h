/* ops_int.h -- the builders that onnx_ops.def names. */
#ifndef EFFICC_OPS_INT_H
#define EFFICC_OPS_INT_H

#include "import_int.h"

static inline bool
fe_result(fe_call *c, fe_val *v)
{
    c->out[0] = v;
    return v != NULL;
}

static inline int64_t
fe_clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

typedef bool fe_builder(fe_call *);
fe_builder op_ew1, op_ew2, op_pow, op_mod, op_fold_ew, op_clip, op_gelu, op_where,
    op_cast, op_cast_like, op_identity, op_dropout, op_matmul, op_gemm, op_reduce,
    op_cumsum, op_softmax_flat, op_softmax, op_layernorm;
fe_builder op_reshape, op_flatten, op_squeeze, op_unsqueeze, op_transpose, op_expand,
    op_tile, op_concat, op_split, op_slice, op_gather, op_gather_nd, op_scatter_nd,
    op_trilu;
fe_builder op_constant, op_constant_of_shape, op_shape, op_size, op_range, op_if;

#endif
