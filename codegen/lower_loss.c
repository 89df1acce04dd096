/* lower_loss.c -- emitters of losses. */
#include "cg_int.h"

void
lw_ce(cg *c, const ir_op *op)
{
    cg_call(c, "rt_ce", "%s, %s, %s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_I64), cg_res(c, op, 2, IR_F32),
            cg_res(c, op, 3, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_I64), cg_arg(c, op, 2, IR_F32),
            cg_sizes(c, op->arg[0]));
}

void
lw_ce_grad(cg *c, const ir_op *op)
{
    cg_call(c, "rt_ce_grad", "%s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_I64), cg_arg(c, op, 2, IR_F32),
            cg_sizes(c, op->arg[0]));
}

/* Both have two results of floats. */
static void
squared_error(cg *c, const ir_op *op, const char *kernel)
{
    cg_call(c, kernel, "%s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_F32), cg_arg(c, op, 2, IR_F32),
            cg_sizes(c, op->arg[0]));
}

void
lw_mse(cg *c, const ir_op *op)
{
    squared_error(c, op, "rt_mse");
}

void
lw_mse_grad(cg *c, const ir_op *op)
{
    squared_error(c, op, "rt_mse_grad");
}

/* The head's sizes as an expression: a constant, unless its rows vary. */
static const char *
head_text(cg *c, const ir_value *x, const rt_head *d)
{
    const char *low = d->type == RT_F32
                          ? ""
                          : ef_printf(c->arena, ", .type = %s", cg_dtype_text(d->type));
    const char *value = ef_printf(
        c->arena, "{.rows = %s, .h = %lld, .v = %lld, .chunk = %lld, .tb = %s%s}",
        cg_rows_text(c, x), (long long)d->h, (long long)d->v, (long long)d->chunk,
        d->tb ? "true" : "false", low);
    return cg_varies(x->type) ? ef_printf(c->arena, "(rt_head)%s", value)
                              : cg_constant(c, &c->head, value);
}

/* x, w, targets, scale, bias: the operands that both kernels take; and the head's sizes. */
static const char *
head_operands(cg *c, const ir_op *op, bool grad)
{
    const ir_type *w = op->arg[1]->type;
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    int64_t rows = cg_rows(op->arg[0]), chunk = ir_attr_int(op, IR_ATTR_chunk, 0);
    rt_head d = {.rows = rows,
                 .h = cg_last(op->arg[0]),
                 .v = w->dim[tb ? 0 : 1],
                 .chunk = chunk && chunk < rows ? chunk : rows,
                 .tb = tb,
                 .type = cg_rt_dtype(op->arg[0]->type->dtype)};
    const char *ws = cg_scratch(c, c->need->head_ce(&d, grad, c->threads));
    const char *x = cg_float_arg(c, op, 0), *weight = cg_float_arg(c, op, 1);
    const char *targets = cg_arg(c, op, 2, IR_I64), *scale = cg_arg(c, op, 3, IR_F32);
    const char *bias = op->narg > 4 ? cg_arg(c, op, 4, IR_F32) : "NULL";
    if (c->dry || c->why)
        return "";
    return ef_printf(c->arena, "%s, %s, %s, %s, %s, &%s, %s", x, weight, targets, scale,
                     bias, head_text(c, op->arg[0], &d), ws);
}

void
lw_head_ce(cg *c, const ir_op *op)
{
    const char *operands = head_operands(c, op, false);
    cg_call(c, "rt_head_ce", "%s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_I64), cg_res(c, op, 2, IR_I64),
            cg_res(c, op, 3, IR_F32), operands);
}

void
lw_head_ce_grad(cg *c, const ir_op *op)
{
    const char *grad[2] = {"NULL", "NULL"};
    bool wanted[2] = {ir_attr_int(op, IR_ATTR_wgrad, 0),
                      ir_attr_int(op, IR_ATTR_bgrad, 0)};
    const char *operands = head_operands(c, op, true);
    for (int i = 0, res = 2; i < 2; i++) {
        if (!wanted[i])
            continue;
        grad[i] = cg_res(c, op, res, IR_F32);
        if (!cg_adds(op, res)) /* the kernel adds */
            cg_call(c, "rt_zero", "%s, %lld", grad[i],
                    (long long)ir_type_bytes(op->res[res]->type));
        res++;
    }
    cg_call(c, "rt_head_ce_grad", "%s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_float_res(c, op, 1), grad[0], grad[1], operands);
}
