/* vjp_int.h -- what the gradient rules of vjp.c and vjp_nn.c share. */
#ifndef EFFICC_VJP_INT_H
#define EFFICC_VJP_INT_H

#include "pass.h"

/* One rule per name in the column `vjp` of ops.def; vj_none is no rule. */
#define OP(name, in, in_max, out, out_max, flags, cast, attrs, shape, vjp, lower, doc) \
    pass_vjp_fn pass_##vjp;
#include "../ir/ops.def"
#undef OP
#define pass_vj_none NULL

/* Name of a gradient of v: "<name of v>.d<suffix>". */
const char *pass_vjp_name(pass_vjp *, const ir_value *v, const char *suffix);
/* g in dtype d: itself, or a cast of it. */
ir_value *pass_vjp_as(pass_vjp *, ir_value *g, ir_dtype d);
/* g as a gradient of v, to which it was broadcast: summed over what v has not, and with v's
 * shape and dtype. */
ir_value *pass_vjp_unbroadcast(pass_vjp *, const ir_value *v, ir_value *g);
/* Reports that op has no rule for what is asked; returns false. */
bool pass_vjp_no_rule(pass_vjp *, const ir_op *op);

#endif
