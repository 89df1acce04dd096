/* plan_int.h -- the parts of pass plan.
 *
 *     plan_kernels.c  which elementwise ops form one kernel
 *     plan.c          where every param, value and scratch space lies
 *     plan_fit.c      offsets for buffers with lifetimes (declared in pass.h)
 *     plan_check.c    replays a planned function and proves that nothing is overwritten
 */
#ifndef EFFICC_PLAN_INT_H
#define EFFICC_PLAN_INT_H

#include "pass.h"

/* A constant whose users all are elementwise: each writes it as a literal, so it needs
 * neither memory nor code. */
bool pass_is_literal(const ir_uses *, const ir_op *);

/* Sets `kernel` on the elementwise ops of f, counting on from *next. */
void pass_plan_kernels(pass_ctx *, ir_func *f, int *next);

/* NULL, or what a planned function would overwrite too early. Knows nothing of lifetimes:
 * it only follows `at`, `ws` and `kernel`, op by op. */
const char *pass_plan_replay(const ir_func *, ef_arena *scratch);

#endif
