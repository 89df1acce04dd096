/* optim.c -- pass optim: what a step does once, after its last micro-batch.
 *
 *     @embeddings.update: update unit=0
 *       %norm2 = norm2 $a.grad, $b.grad : f32[]
 *       %coef = clip_scale %norm2 : f32[]
 *       optim $a, $a.grad, $a.m, $a.v, %coef
 *     @head.update: update unit=1
 *       optim $b, $b.grad, $b.m, $b.v, %coef
 *       ret %loss, %norm2
 *
 * With a loss scaler the factor is that of the true gradients, and `rescale` stands last.
 * The trainer's options choose the optimizer: under SGD the state is there and unused.
 */
#include "pass.h"

static ir_param *
state_of(ir_module *m, ir_param *p, const char *suffix)
{
    const char *name = ef_internf(m->ctx, "%s.%s", p->value->name, suffix);
    ir_param *s = ir_param_new(m, name, ir_type_with(m->ctx, p->value->type, IR_F32),
                               IR_STATE, p->unit);
    s->of = p;
    s->loc = p->loc;
    return s;
}

/* Norm and clip factor of all gradients: the head of the first update block. */
static void
emit_norm(ir_builder *b, int n, ir_value *const *grad, ir_value **norm2,
          ir_value **coef, ir_param *scaler)
{
    *norm2 = ir_emit(b, IR_OP_norm2, "norm2", n, grad, 0, NULL, NULL);
    ir_value *arg[] = {*norm2, scaler ? scaler->value : NULL};
    *coef = ir_emit(b, IR_OP_clip_scale, "coef", scaler ? 2 : 1, arg, 0, NULL, NULL);
}

static void
emit_update(ir_builder *b, ir_param *p, ir_value *grad, ir_value *coef)
{
    ir_module *m = b->m;
    ir_value *mean = state_of(m, p, "m")->value, *square = state_of(m, p, "v")->value;
    b->loc = p->loc;
    const ir_param *image = ir_image_of(m, p);
    ir_value *arg[] = {p->value, grad, mean, square, coef, image ? image->value : NULL};
    ir_insert(b, IR_OP_optim, NULL, image ? 6 : 5, arg, 0, NULL, NULL, 0);
}

/* Needs gradient buffers and `ret` of the loss as the last op of step; gives update blocks
 * in the order of units, and `ret` of loss and squared gradient norm behind them. */
bool
pass_optim(pass_ctx *pc)
{
    ir_module *m = pc->m;
    int n = m->params.n, ngrad = 0;
    ir_param **buffer = EF_NEWN(pc->scratch, ir_param *, n + 1);
    ir_value **grad = EF_NEWN(pc->scratch, ir_value *, n + 1);
    for (int i = 0; i < n; i++)
        if (m->params.at[i]->cls == IR_GRAD) {
            buffer[ngrad] = m->params.at[i];
            grad[ngrad++] = m->params.at[i]->value;
        }
    ir_op *ret = m->step && m->step->last ? m->step->last->last : NULL;
    if (!ngrad || !ret || ret->code != IR_OP_ret)
        return ef_error(m->ctx, NULL, E_TASK, "step has no gradients");
    ir_value *norm2 = NULL, *coef = NULL;
    ir_param *scaler = ir_scaler(m);
    ir_builder b = {0};
    for (int unit = 0; unit < m->units.n; unit++) {
        ir_block *block = NULL;
        for (int i = 0; i < ngrad; i++) {
            if (buffer[i]->unit != unit)
                continue;
            if (!block) {
                const char *name = ef_internf(m->ctx, "%s.update", m->units.at[unit]);
                block = ir_block_new(m->step, name, IR_UPDATE, unit);
                b = ir_end(block, ret->loc);
            }
            if (!norm2)
                emit_norm(&b, ngrad, grad, &norm2, &coef, scaler);
            emit_update(&b, buffer[i]->of, buffer[i]->value, coef);
        }
    }
    b.loc = ret->loc;
    if (scaler)
        ir_insert(&b, IR_OP_rescale, NULL, 2, (ir_value *[]){scaler->value, norm2}, 0,
                  NULL, NULL, 0);
    ir_insert(&b, IR_OP_ret, NULL, 2, (ir_value *[]){ret->arg[0], norm2}, 0, NULL, NULL,
              0);
    ir_remove(ret);
    return true;
}
