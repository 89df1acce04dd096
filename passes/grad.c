/* grad.c -- pass grad: the backward part of `step`.
 *
 *     @head.fwd: fwd unit=1
 *       %logits = linear %x, $w : f32[4,3]
 *       %loss, %right, %p, %pl = ce %logits, %targets, %scale : f32[], i64[], f32[4,3], f32[4]
 *       ret %loss
 *   ->
 *     @head.fwd: fwd unit=1
 *       %logits = linear %x, $w : f32[4,3]
 *     @head.bwd: bwd unit=1
 *       %loss, %logits.d = ce_grad %logits, %targets, %scale : f32[], f32[4,3]
 *       %w.d = linear_dw %x, %logits.d : f32[8,3]
 *       accum $w.grad, %w.d
 *       ret %loss
 *
 * A value needs a gradient if it is a float and a trained param is behind it. From the loss
 * back, each op whose result got a gradient passes it on by its rule to those operands that
 * need one; a value with several users sums what they give. A param's share goes into its
 * gradient buffer at once, so a tied param has several accums. Blocks mirror the forward
 * ones in reverse.
 */
#include <string.h>

#include "vjp_int.h"

typedef struct note { /* ir_value.aux during this pass */
    bool need;
    ir_value *grad;
} note;

static note *
note_of(pass_ctx *pc, ir_value *v)
{
    if (!v->aux)
        v->aux = EF_NEW(pc->scratch, note);
    return v->aux;
}

/* ---- who needs a gradient ---- */

static bool
trained(const ir_param *p)
{
    return p->cls == IR_TRAIN || (p->cls == IR_IMAGE && p->of->cls == IR_TRAIN);
}

static void
find_needs(pass_ctx *pc)
{
    ir_module *m = pc->m;
    for (int i = 0; i < m->params.n; i++) {
        m->params.at[i]->value->aux = NULL;
        note_of(pc, m->params.at[i]->value)->need = trained(m->params.at[i]);
    }
    for (int i = 0; i < m->step->args.n; i++)
        m->step->args.at[i]->aux = NULL;
    for (ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op)) {
        bool any = false;
        for (int i = 0; i < op->narg; i++)
            any |= note_of(pc, op->arg[i])->need;
        for (int i = 0; i < op->nres; i++) {
            op->res[i]->aux = NULL;
            note_of(pc, op->res[i])->need =
                any && ir_dtypes[op->res[i]->type->dtype].is_float;
        }
    }
}

/* ---- passing gradients on ---- */

/* Adds g to the gradient buffer of p, or of the param that p is an image of; it is made at its
 * first use. */
static void
accumulate(pass_vjp *v, ir_param *p, ir_value *g)
{
    ir_module *m = v->b.m;
    p = p->cls == IR_IMAGE ? p->of : p;
    ir_param *buffer = ir_grad_of(m, p);
    if (!buffer) {
        const char *name = ef_internf(m->ctx, "%s.grad", p->value->name);
        buffer = ir_param_new(m, name, ir_type_with(m->ctx, p->value->type, IR_F32),
                              IR_GRAD, p->unit);
        buffer->of = p;
        buffer->loc = p->loc;
    }
    ir_insert(&v->b, IR_OP_accum, NULL, 2, (ir_value *[]){buffer->value, g}, 0, NULL,
              NULL, 0);
}

static void
give(pass_vjp *v, ir_value *x, ir_value *g)
{
    note *n = note_of(v->pc, x);
    if (x->param)
        accumulate(v, x->param, pass_vjp_as(v, g, IR_F32));
    else if (!n->grad)
        n->grad = g;
    else
        n->grad = ir_ew2(&v->b, IR_OP_add, ef_internf(v->b.m->ctx, "%s.d", x->name),
                         n->grad, g);
}

/* The adjoint of op at the end of v's block. false: said why. */
static bool
backward(pass_vjp *v, ir_op *op)
{
    ir_value **dres = EF_NEWN(v->scratch, ir_value *, op->nres + 1);
    ir_value **darg = EF_NEWN(v->scratch, ir_value *, op->narg + 1);
    ir_value **arg = ef_dup(v->scratch, op->arg, sizeof *arg * (size_t)op->narg);
    bool *want = EF_NEWN(v->scratch, bool, op->narg + 1);
    int narg = op->narg; /* the rule may remove op */
    for (int i = 0; i < op->nres; i++)
        dres[i] = note_of(v->pc, op->res[i])->grad;
    for (int i = 0; i < narg; i++)
        want[i] = note_of(v->pc, arg[i])->need;
    v->b.loc = op->loc;
    pass_vjp_fn *rule = pass_vjp_rule[op->code];
    if (!rule)
        return ef_error(v->b.m->ctx, op->loc, E_NO_VJP, ir_ops[op->code].name);
    if (!rule(v, op, dres, want, darg))
        return false;
    for (int i = 0; i < narg; i++)
        if (want[i] && darg[i])
            give(v, arg[i], darg[i]);
    return true;
}

/* Has op a result that got a gradient? */
static bool
takes_part(pass_ctx *pc, const ir_op *op)
{
    for (int i = 0; i < op->nres; i++)
        if (note_of(pc, op->res[i])->grad)
            return true;
    return false;
}

/* Lets v emit into the bwd block that mirrors `fwd`, made when its first op needs it. ret
 * stays the last op of the function. */
static void
enter(pass_vjp *v, const ir_block *fwd)
{
    ir_func *f = fwd->func;
    ir_op *ret = f->last->last;
    if (f->last->phase == IR_BWD && f->last->unit == fwd->unit) {
        v->b = ir_at(ret);
        return;
    }
    const char *unit = f->module->units.at[fwd->unit];
    ir_block *b =
        ir_block_new(f, ef_internf(f->module->ctx, "%s.bwd", unit), IR_BWD, fwd->unit);
    ir_builder end = ir_end(b, ret->loc);
    v->b =
        ir_at(ir_insert(&end, IR_OP_ret, NULL, ret->narg, ret->arg, 0, NULL, NULL, 0));
    ir_remove(ret);
}

static bool
backward_all(pass_vjp *v, ir_block *last_fwd)
{
    for (ir_block *b = last_fwd; b; b = b->prev)
        for (ir_op *op = b->last, *prev; op; op = prev) {
            prev = op->prev;
            if (!takes_part(v->pc, op))
                continue;
            enter(v, b);
            if (!backward(v, op))
                return false;
        }
    return true;
}

/* ---- the ends ---- */

/* The gradient buffer of p in list[n]; NULL: none. */
static ir_param *
buffer_in(ir_param *const *list, int n, const ir_param *p)
{
    for (int i = 0; i < n; i++)
        if (list[i]->cls == IR_GRAD && list[i]->of == p)
            return list[i];
    return NULL;
}

/* Trained params that the loss does not reach stay as they are; gradient buffers go behind
 * all others, in the order of their params. */
static void
settle_params(pass_ctx *pc)
{
    ir_module *m = pc->m;
    int n = m->params.n, kept = 0;
    ir_param **old = ef_dup(pc->scratch, m->params.at, sizeof *old * (size_t)n);
    for (int i = 0; i < n; i++)
        if (old[i]->cls != IR_GRAD)
            m->params.at[kept++] = old[i];
    for (int i = 0; i < n; i++) {
        if (old[i]->cls != IR_TRAIN)
            continue;
        ir_param *buffer = buffer_in(old, n, old[i]);
        if (buffer) {
            m->params.at[kept++] = buffer;
            continue;
        }
        old[i]->cls = IR_FROZEN;
        ef_report(m->ctx, "%s: no gradient reaches it, left as it is",
                  old[i]->hf ? old[i]->hf : old[i]->value->name);
    }
    EF_ASSERT(kept == n);
}

/* Needs `ret` of one loss as the last op of step; gives bwd blocks, `ret` behind them. */
bool
pass_grad(pass_ctx *pc)
{
    ir_module *m = pc->m;
    ir_op *ret = m->step && m->step->last ? m->step->last->last : NULL;
    if (!ret || ret->code != IR_OP_ret || ret->narg != 1 || ret->arg[0]->type->rank)
        return ef_error(m->ctx, ret ? ret->loc : NULL, E_TASK,
                        "step does not end in 'ret' of one loss, f32[]");
    find_needs(pc);
    ir_value *loss = ret->arg[0];
    if (loss->param || !note_of(pc, loss)->need) {
        ef_error(m->ctx, ret->loc, E_TASK, "the loss depends on no trained parameter");
        ef_hint(m->ctx, "freeze less, or train more with --trainable PATTERN");
        return false;
    }
    pass_vjp v = {.pc = pc, .scratch = pc->scratch};
    ir_block *last_fwd = m->step->last;
    enter(&v, last_fwd);
    ir_value *one =
        ir_const(&v.b, ef_internf(m->ctx, "%s.d", loss->name), loss->type, 1);
    note_of(pc, loss)->grad = one;
    if (!backward_all(&v, last_fwd))
        return false;
    if (!one->nuse)
        ir_remove(one->def);
    settle_params(pc);
    return true;
}
