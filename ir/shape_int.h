/* shape_int.h -- what shape rules of recognised ops say of their operands. */
#ifndef EFFICC_SHAPE_INT_H
#define EFFICC_SHAPE_INT_H

#include "ir_int.h"

static inline const ir_type *
arg(const ir_op *op, int i)
{
    return op->arg[i]->type;
}

static inline int64_t
last(const ir_type *t)
{
    return t->dim[t->rank - 1];
}

/* Each is NULL, or what is wrong with operand i. */

/* [.., n] of floats with a last dimension of known size. */
const char *ir_need_rows(ef_ctx *, const ir_op *, int i);
const char *ir_need_type(ef_ctx *, const ir_op *, int i, const ir_type *want);
/* [leading dims of t, n] of t's dtype; n < 0: any n. */
const char *ir_need_beside(ef_ctx *, const ir_op *, int i, const ir_type *t, int64_t n);
/* A matrix of the dtype of t. */
const char *ir_need_matrix(ef_ctx *, const ir_op *, int i, const ir_type *t);

/* Dtype of result 0 of an op that takes attribute `to`, where it would be d; IR_NDTYPES: the
 * attribute names no float type. */
ir_dtype ir_dtype_to(const ir_op *, ir_dtype d);
/* f32 where d is a float type: what sums, biases and such have beside low operands. */
static inline ir_dtype
ir_wide(ir_dtype d)
{
    return ir_dtypes[d].is_float ? IR_F32 : d;
}

/* NULL, or what is wrong with the attributes p and site. */
const char *ir_need_share(ef_ctx *, const ir_op *);

#endif
