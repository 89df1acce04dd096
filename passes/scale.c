/* scale.c -- pass scale: the loss of fp16 is scaled, so that small gradients are not lost.
 *
 *     %loss, %x.d = ce_grad %x, %targets, %scale
 *   ->
 *     %factor = slice $scaler {axis=0, start=0} : f32[1]
 *     %factor.1 = reshape %factor : f32[]
 *     %scale.s = mul %scale, %factor.1
 *     %loss.s, %x.d = ce_grad %x, %targets, %scale.s
 *     %loss = div %loss.s, %factor.1
 *
 * The loss is what it was, all gradients are $scaler[0] times too large; clip_scale takes that
 * back and rescale adapts the scale (torch.amp.GradScaler). Nothing of it needs the host.
 */
#include "pass.h"

static bool
is_loss_grad(const ir_op *op)
{
    return op->code == IR_OP_ce_grad || op->code == IR_OP_mse_grad ||
           op->code == IR_OP_head_ce_grad;
}

static ir_value *
factor(ir_builder *b, ir_param *scaler)
{
    ir_module *m = b->m;
    ir_attr attr[] = {ir_attr_i(IR_ATTR_axis, 0), ir_attr_i(IR_ATTR_start, 0)};
    ir_value *one = ir_emit(b, IR_OP_slice, "scaler.factor", 1, &scaler->value, 2, attr,
                            ir_type_get(m->ctx, IR_F32, 1, (int64_t[]){1}));
    return ir_emit(b, IR_OP_reshape, "scaler.factor", 1, &one, 0, NULL,
                   ir_type_get(m->ctx, IR_F32, 0, NULL));
}

static void
scale_loss(ir_module *m, ir_op *op, ir_param *scaler)
{
    int at = op->code == IR_OP_head_ce_grad ? 3 : 2;
    ir_builder b = ir_at(op), after = ir_after(op);
    ir_value *by = factor(&b, scaler), *loss = op->res[0];
    ir_set_arg(op, at, ir_ew2(&b, IR_OP_mul, "scale.scaled", op->arg[at], by));
    const char *name = loss->name;
    ir_rename(m->step, loss, ef_internf(m->ctx, "%s.scaled", name));
    ir_value *plain = ir_ew2(&after, IR_OP_div, name, loss, by);
    ir_replace_uses_after(plain->def, loss, plain);
}

/* Needs bwd blocks; gives $scaler and the scaled loss. */
bool
pass_scale(pass_ctx *pc)
{
    ir_module *m = pc->m;
    ir_param *scaler = ir_param_new(
        m, "scaler", ir_type_get(m->ctx, IR_F32, 1, (int64_t[]){4}), IR_SCALER, 0);
    int n = 0;
    for (ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op))
        if (is_loss_grad(op)) {
            scale_loss(m, op, scaler);
            n++;
        }
    if (n == 1)
        return true;
    return ef_error(
        m->ctx, NULL, E_TASK,
        ef_printf(m->ctx->arena, "loss scaling expects one loss, there are %d", n));
}
