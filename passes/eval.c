/* eval.c -- pass eval: the function `eval`, forward only and without dropout.
 *
 *     step:  %loss, %right, %prob, %losses = ce %logits, %targets, %scale : ..
 *            ret %loss
 *   ->
 *     eval:  the same blocks, then
 *            ret %loss, %right, %prob, %losses
 *
 * --predict reads the third result, probabilities of a classifier or the most likely token
 * per position, and the losses. A regression returns what it predicts behind its losses:
 * ret %loss, %losses, %logits.
 */
#include "pass_int.h"

bool
pass_eval(pass_ctx *pc)
{
    ir_module *m = pc->m;
    ef_map map = {0};
    if (!m->step || m->eval)
        return ef_error(m->ctx, NULL, E_TASK,
                        m->eval ? "there is an eval already" : "there is no step");
    ir_func *f = ir_clone_fwd(m->step, "eval", &map);
    ir_op *ret = f->last ? f->last->last : NULL;
    if (!ret || ret->code != IR_OP_ret || ret->narg != 1)
        return ef_error(m->ctx, ret ? ret->loc : NULL, E_TASK,
                        "step does not end in 'ret' of one loss");
    pass_undrop(f);
    const ir_op *loss = ret->arg[0]->def;
    for (int i = 1; loss && i < loss->nres; i++)
        ir_add_arg(m, ret, loss->res[i]);
    if (loss && loss->code == IR_OP_mse)
        ir_add_arg(m, ret, loss->arg[0]);
    return true;
}
