/* dce.c -- pass dce: drops pure ops whose results nobody uses.
 *
 * One walk from the end: when an op goes, those that only served it are still ahead. Folded
 * tables that nothing reads any more go, too; weights stay, used or not, since they are part
 * of the model that is saved.
 */
#include "canon_int.h"

void
pass_remove_dead(ir_func *f)
{
    for (ir_block *b = f->last; b; b = b->prev)
        for (ir_op *op = b->last, *prev; op; op = prev) {
            prev = op->prev;
            if (ir_is_dead(op))
                ir_remove(op);
        }
}

bool
pass_dce(pass_ctx *pc)
{
    ir_module *m = pc->m;
    if (m->step)
        pass_remove_dead(m->step);
    if (m->eval)
        pass_remove_dead(m->eval);
    for (int i = m->params.n - 1; i >= 0; i--) {
        ir_param *p = m->params.at[i];
        if (p->cls == IR_CONST && p->init == IR_INIT_VALUES && !p->onnx &&
            !p->value->nuse)
            ir_param_unlink(m, p);
    }
    return true;
}
