/* vjp_nn.c -- gradient rules of recognised ops: each is one or two fused kernels.
 *
 * The loss is special: ce, mse and head_ce turn into ce_grad, mse_grad and head_ce_grad,
 * which compute the loss as well, so that logits are formed once. The new loss takes the old
 * one's place and name.
 *
 *     %loss, %right, %pred, %losses = head_ce %x, $w, %targets, %scale {tb=1, chunk=128}
 *     ->  %loss, %x.d, %w.d = head_ce_grad %x, $w, %targets, %scale {tb=1, chunk=128, wgrad=1}
 */
#include "vjp_int.h"

/* The attributes of op that its row in ops.def has, and not those of a plan; returns how many.
 * out has room for all of the row. */
static int
own_attrs(const ir_op *op, ir_attr *out)
{
    int n = 0;
    for (int i = 0; i < op->nattr; i++)
        if (ir_ops[op->code].attrs >> op->attr[i].key & 1)
            out[n++] = op->attr[i];
    return n;
}

bool
pass_vj_embed(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
              ir_value **darg)
{
    (void)want;
    darg[0] = ir_emit(&v->b, IR_OP_embed_grad, pass_vjp_name(v, op->arg[0], ""), 2,
                      (ir_value *[]){dres[0], op->arg[1]}, 0, NULL,
                      ir_type_with(v->b.m->ctx, op->arg[0]->type, IR_F32));
    return true;
}

bool
pass_vj_layernorm(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                  ir_value **darg)
{
    ir_value *x = op->arg[0], *w = op->arg[1], *b = op->arg[2], *dy = dres[0];
    ir_value *mean = op->res[1], *rstd = op->res[2];
    if (!dy || dres[1] || dres[2]) /* of mean and 1/std: no kernel */
        return pass_vjp_no_rule(v, op);
    if (want[1] || want[2]) {
        ir_op *dwb = ir_insert(&v->b, IR_OP_layernorm_dwb, pass_vjp_name(v, w, ""), 4,
                               (ir_value *[]){dy, x, mean, rstd}, 0, NULL, NULL, 2);
        ir_rename(v->b.f, dwb->res[1], pass_vjp_name(v, b, ""));
        darg[1] = dwb->res[0];
        darg[2] = dwb->res[1];
    }
    if (want[0])
        darg[0] = ir_emit(&v->b, IR_OP_layernorm_dx, pass_vjp_name(v, x, ""), 5,
                          (ir_value *[]){dy, x, w, mean, rstd}, 0, NULL, NULL);
    return true;
}

bool
pass_vj_rmsnorm(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                ir_value **darg)
{
    ir_value *x = op->arg[0], *w = op->arg[1], *dy = dres[0], *rstd = op->res[1];
    if (!dy || dres[1]) /* of 1/rms: no kernel */
        return pass_vjp_no_rule(v, op);
    if (want[1])
        darg[1] = ir_emit(&v->b, IR_OP_rmsnorm_dw, pass_vjp_name(v, w, ""), 3,
                          (ir_value *[]){dy, x, rstd}, 0, NULL, NULL);
    if (want[0])
        darg[0] = ir_emit(&v->b, IR_OP_rmsnorm_dx, pass_vjp_name(v, x, ""), 4,
                          (ir_value *[]){dy, x, w, rstd}, 0, NULL, NULL);
    return true;
}

/* The map is linear: its transpose on dy. The tables are positions, not weights. */
bool
pass_vj_rotary(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
               ir_value **darg)
{
    ir_attr attr[4];
    if (want[1] || want[2])
        return pass_vjp_no_rule(v, op);
    ir_value *arg[] = {dres[0], op->arg[1], op->arg[2]};
    ir_op *back = ir_insert(&v->b, IR_OP_rotary, pass_vjp_name(v, op->arg[0], ""), 3,
                            arg, own_attrs(op, attr), attr, NULL, 1);
    if (ir_attr_int(op, IR_ATTR_inverse, 0))
        ir_attr_remove(back, IR_ATTR_inverse);
    else
        ir_attr_set(v->b.m, back, ir_attr_i(IR_ATTR_inverse, 1));
    darg[0] = back->res[0];
    return true;
}

/* Where q, k and v are one packed value, so is the gradient. Where they are one value and
 * share columns, it is the sum of three. */
bool
pass_vj_attention(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                  ir_value **darg)
{
    (void)want; /* one kernel computes all three */
    if (!dres[0] || dres[1])
        return pass_vjp_no_rule(v, op);
    ir_value *q = op->arg[0], *k = op->arg[1], *x = op->arg[2];
    ir_value *arg[11] = {dres[0], q, k, x, op->res[0], op->res[1]};
    ir_attr attr[15];
    int narg = 6, nres = ir_attention_packed(op, 0) ? 1 : 3,
        nattr = own_attrs(op, attr);
    for (int i = 3; i < op->narg; i++)
        arg[narg++] = op->arg[i];
    ir_op *g = ir_insert(&v->b, IR_OP_attention_grad, pass_vjp_name(v, q, ""), narg,
                         arg, nattr, attr, NULL, nres);
    for (int i = 0; i < nres; i++) {
        if (i)
            ir_rename(v->b.f, g->res[i], pass_vjp_name(v, op->arg[i], ""));
        darg[i] = g->res[i];
    }
    return true;
}

/* What was dropped has no gradient, the rest that of its factor: the same op on dy. */
bool
pass_vj_dropout(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                ir_value **darg)
{
    (void)want; /* keys are numbers of rows */
    ir_attr attr[2];
    darg[0] = ir_emit(&v->b, IR_OP_dropout, pass_vjp_name(v, op->arg[0], ""), 3,
                      (ir_value *[]){dres[0], op->arg[1], op->arg[2]},
                      own_attrs(op, attr), attr, NULL);
    return true;
}

bool
pass_vj_lora_add(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                 ir_value **darg)
{
    ir_value *t = op->arg[1], *b = op->arg[2], *dy = dres[0];
    ir_attr attr[5];
    int n = own_attrs(op, attr); /* by, and which columns */
    attr[n] = ir_attr_i(IR_ATTR_len, b->type->dim[0]);
    darg[0] = dy;
    if (want[1])
        darg[1] = ir_emit(&v->b, IR_OP_lora_dt, pass_vjp_name(v, t, ""), 2,
                          (ir_value *[]){dy, b}, n, attr, NULL);
    if (want[2])
        darg[2] = ir_emit(&v->b, IR_OP_lora_db, pass_vjp_name(v, b, ""), 2,
                          (ir_value *[]){dy, t}, n + 1, attr, NULL);
    return true;
}

/* ---- the loss ---- */

/* g times the gradient of the loss, which is 1 where nothing follows the loss. */
static ir_value *
times(pass_vjp *v, const ir_value *x, ir_value *g, ir_value *dloss)
{
    double one;
    if (ir_is_const_scalar(dloss, &one) && one == 1)
        return g;
    return ir_ew2(&v->b, IR_OP_mul, pass_vjp_name(v, x, ".by"), g, dloss);
}

/* Result 0 of `grad` takes the place of the loss of op, and its name if op goes. */
static void
replace_loss(pass_vjp *v, ir_op *op, ir_op *grad)
{
    const char *name = op->res[0]->name;
    ir_replace_uses_after(grad, op->res[0], grad->res[0]);
    if (!ir_is_dead(op))
        return;
    ir_remove(op);
    ir_rename(v->b.f, grad->res[0], name);
}

/* Only the loss has a gradient; right answers, probabilities and such have none. */
static bool
loss_only(pass_vjp *v, const ir_op *op, ir_value *const *dres)
{
    for (int i = 1; i < op->nres; i++)
        if (dres[i])
            return pass_vjp_no_rule(v, op);
    return dres[0] || pass_vjp_no_rule(v, op);
}

/* Of a loss op that reads outputs, what they should be, and the scale: the op `grad` on the
 * same operands. */
static bool
loss_of_outputs(pass_vjp *v, ir_op *op, ir_value *const *dres, ir_opcode grad,
                ir_value **darg)
{
    if (!loss_only(v, op, dres))
        return false;
    ir_value *y = op->arg[0];
    ir_op *g = ir_insert(&v->b, grad, op->res[0]->name, 3, op->arg, 0, NULL, NULL, 2);
    ir_rename(v->b.f, g->res[1], pass_vjp_name(v, y, ""));
    darg[0] = times(v, y, g->res[1], dres[0]);
    replace_loss(v, op, g);
    return true;
}

bool
pass_vj_ce(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
           ir_value **darg)
{
    (void)want; /* only the logits have a gradient */
    return loss_of_outputs(v, op, dres, IR_OP_ce_grad, darg);
}

bool
pass_vj_mse(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
            ir_value **darg)
{
    if (want[1]) /* a value that is trained: no kernel */
        return pass_vjp_no_rule(v, op);
    return loss_of_outputs(v, op, dres, IR_OP_mse_grad, darg);
}

bool
pass_vj_head_ce(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                ir_value **darg)
{
    if (!loss_only(v, op, dres))
        return false;
    ir_attr attr[4];
    int nattr = own_attrs(op, attr), nres = 2;
    int of[4] = {-1, 0}; /* result i: gradient of operand of[i] */
    if (want[1]) {
        attr[nattr++] = ir_attr_i(IR_ATTR_wgrad, 1);
        of[nres++] = 1;
    }
    if (op->narg > 4 && want[4]) {
        attr[nattr++] = ir_attr_i(IR_ATTR_bgrad, 1);
        of[nres++] = 4;
    }
    ir_op *g = ir_insert(&v->b, IR_OP_head_ce_grad, op->res[0]->name, op->narg, op->arg,
                         nattr, attr, NULL, nres);
    for (int i = 1; i < nres; i++) {
        const ir_value *x = op->arg[of[i]];
        ir_rename(v->b.f, g->res[i], pass_vjp_name(v, x, ""));
        darg[of[i]] = times(v, x, g->res[i], dres[0]);
    }
    replace_loss(v, op, g);
    return true;
}
