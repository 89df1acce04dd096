/* lower_move.c -- emitters of ops that only move elements, of any type. */
#include "cg_int.h"

void
lw_view(cg *c, const ir_op *op) /* plan.h gives both names one address */
{
    cg_any_res(c, op, 0);
}

void
lw_transpose(cg *c, const ir_op *op)
{
    const ir_type *x = op->arg[0]->type;
    const ir_attr *perm = ir_attr_get(op, IR_ATTR_perm);
    ef_buf dims = {.arena = c->arena};
    for (int i = 0; i < x->rank; i++)
        ef_putf(&dims, "%s%s", i ? ", " : "", cg_times(c, x, i, i + 1, 1));
    cg_call(c, "rt_transpose", "%s, %s, %d, (int64_t[]){%s}, (int[]){%s}, %d",
            cg_any_res(c, op, 0), cg_any_arg(c, op, 0), x->rank, x->rank ? dims.s : "",
            cg_ints(c->arena, perm->n, perm->u.l), cg_size(x->dtype));
}

/* The copy as one constant, or, where the number of blocks varies, made at the call. */
static void
move(cg *c, const ir_op *op, int arg, const rt_block_copy *b)
{
    const char *y = cg_any_res(c, op, 0), *x = cg_any_arg(c, op, arg);
    const ir_type *t = op->arg[arg]->type;
    if (c->dry || c->why)
        return;
    const char *value = ef_printf(
        c->arena,
        "{.outer = %s, .n = %lld, .inner = %lld, .ys = %lld, .ystart = %lld, "
        ".ystep = %lld, .xs = %lld, .xstart = %lld, .xstep = %lld, .size = %d}",
        cg_times(c, t, 0, (int)ir_attr_int(op, IR_ATTR_axis, 0), 1), (long long)b->n,
        (long long)b->inner, (long long)b->ys, (long long)b->ystart,
        (long long)b->ystep, (long long)b->xs, (long long)b->xstart,
        (long long)b->xstep, b->size);
    cg_call(c, "rt_move", "%s, %s, &%s", y, x,
            cg_varies(t) ? ef_printf(c->arena, "(rt_block_copy)%s", value)
                         : cg_constant(c, &c->move, value));
}

/* Block copy of all of x, which has n indices along the op's axis, into rows of yn. */
static rt_block_copy
along_axis(const ir_op *op, const ir_type *x, int64_t yn)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    int64_t inner = cg_product(x, axis + 1, x->rank);
    return (rt_block_copy){.n = x->dim[axis],
                           .inner = inner,
                           .ys = yn * inner,
                           .ystep = 1,
                           .xs = x->dim[axis] * inner,
                           .xstep = 1,
                           .size = cg_size(x->dtype)};
}

void
lw_concat(cg *c, const ir_op *op)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    int64_t start = 0;
    for (int i = 0; i < op->narg; i++) {
        rt_block_copy b = along_axis(op, op->arg[i]->type, op->res[0]->type->dim[axis]);
        b.ystart = start;
        start += b.n;
        if (b.n)
            move(c, op, i, &b);
    }
}

void
lw_slice(cg *c, const ir_op *op)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    rt_block_copy b = along_axis(op, op->arg[0]->type, op->res[0]->type->dim[axis]);
    b.n = op->res[0]->type->dim[axis];
    b.xstart = ir_attr_int(op, IR_ATTR_start, 0);
    b.xstep = ir_attr_int(op, IR_ATTR_step, 1);
    move(c, op, 0, &b);
}

void
lw_unslice(cg *c, const ir_op *op)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    rt_block_copy b = along_axis(op, op->arg[0]->type, op->res[0]->type->dim[axis]);
    b.ystart = ir_attr_int(op, IR_ATTR_start, 0);
    b.ystep = ir_attr_int(op, IR_ATTR_step, 1);
    cg_call(c, "rt_zero", "%s, %s", cg_any_res(c, op, 0), cg_bytes(c, op->res[0]));
    move(c, op, 0, &b);
}

/* "outer, n, inner, m": of gather from x along axis, at indices idx. */
static const char *
gather_sizes(cg *c, const ir_op *op, const ir_type *x, const ir_value *idx)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    return ef_printf(c->arena, "%s, %s, %s, %s", cg_times(c, x, 0, axis, 1),
                     cg_times(c, x, axis, axis + 1, 1),
                     cg_times(c, x, axis + 1, x->rank, 1), cg_count(c, idx));
}

void
lw_gather(cg *c, const ir_op *op)
{
    const ir_type *x = op->arg[0]->type;
    cg_call(c, "rt_gather", "%s, %s, %s, %s, %d", cg_any_res(c, op, 0),
            cg_any_arg(c, op, 0), cg_arg(c, op, 1, IR_I64),
            gather_sizes(c, op, x, op->arg[1]), cg_size(x->dtype));
}

void
lw_gather_grad(cg *c, const ir_op *op)
{
    const ir_value *dx = op->res[0], *dy = op->arg[0];
    if (dx->type->dtype != dy->type->dtype)
        cg_refuse(c, "operand and result differ in type");
    cg_call(c, "rt_gather_grad", "%s, %s, %s, %s, %s", cg_float_res(c, op, 0),
            cg_float_arg(c, op, 0), cg_arg(c, op, 1, IR_I64),
            gather_sizes(c, op, dx->type, op->arg[1]), cg_dtype(dx));
}
