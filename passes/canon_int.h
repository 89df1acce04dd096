/* canon_int.h -- what the rules of pass canon share, and its sweep, which others use. */
#ifndef EFFICC_CANON_INT_H
#define EFFICC_CANON_INT_H

#include "pass.h"

/* A rule looks at one op. It returns the value that replaces result 0, having put any new
 * ops before op; or result 0 itself if it changed op in place; or NULL: does not apply. */
typedef ir_value *canon_rule(ir_op *op);

extern canon_rule *const canon_shape[]; /* canon_shape.c */
extern const int canon_nshape;

bool canon_is_const(const ir_value *);             /* the compiler knows its elements */
bool canon_uniform(const ir_value *, double *all); /* and they are all the same */
/* A new op with one operand before `at`. */
ir_value *canon_emit(ir_op *at, ir_opcode, ir_value *x, const ir_attr *,
                     const ir_type *given);
ir_value *canon_reshape(ir_op *at, ir_value *x,
                        const ir_type *); /* x if it has the type */
/* x, expanded if need be, in place of the result of `at`; NULL: its dtype is another. */
ir_value *canon_fit(ir_op *at, ir_value *x);

/* Sweeps over all functions until nothing changes. false: said why. */
bool pass_simplify(pass_ctx *);
/* dce.c: removes pure ops without uses. */
void pass_remove_dead(ir_func *);

#endif
