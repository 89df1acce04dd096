/* vjp.c -- gradient rules of plain ops: elementwise, structure, products, reductions.
 *
 * A rule gets the gradients of an op's results and emits those of its operands, at the end
 * of a bwd block. It reads forward values where it needs them; nothing else decides what is
 * kept for the backward part.
 *
 *     %y = matmul %x, %w           %x.d = matmul %y.d, %w {tb=1}
 *                                  %w.d = matmul %x, %y.d {ta=1}
 *
 * Rules of recognised ops are in vjp_nn.c.
 */
#include "vjp_int.h"

pass_vjp_fn *const pass_vjp_rule[IR_NOPS] = {
#define OP(name, in, in_max, out, out_max, flags, cast, attrs, shape, vjp, lower, doc) \
    [IR_OP_##name] = pass_##vjp,
#include "../ir/ops.def"
#undef OP
};

/* ---- shared ---- */

const char *
pass_vjp_name(pass_vjp *v, const ir_value *value, const char *suffix)
{
    return ef_internf(v->b.m->ctx, "%s.d%s", value->name, suffix);
}

bool
pass_vjp_no_rule(pass_vjp *v, const ir_op *op)
{
    return ef_error(v->b.m->ctx, op->loc, E_NO_VJP, ir_ops[op->code].name);
}

ir_value *
pass_vjp_as(pass_vjp *v, ir_value *g, ir_dtype d)
{
    if (g->type->dtype == d)
        return g;
    const char *name = ef_internf(v->b.m->ctx, "%s.%s", g->name, ir_dtypes[d].name);
    return ir_emit(&v->b, IR_OP_cast, name, 1, &g, 0, NULL,
                   ir_type_with(v->b.m->ctx, g->type, d));
}

ir_value *
pass_vjp_unbroadcast(pass_vjp *v, const ir_value *x, ir_value *g)
{
    const ir_type *to = x->type, *from = g->type;
    int64_t axes[IR_MAX_RANK];
    int n = 0, extra = from->rank - to->rank;
    for (int d = 0; d < from->rank; d++)
        if (d < extra || (to->dim[d - extra] == 1 && from->dim[d] != 1))
            axes[n++] = d;
    if (n) {
        bool keep = extra == 0, whole = keep || n == extra;
        ir_attr attr[3] = {ir_attr_l(IR_ATTR_axes, n, axes)};
        int nattr = 1;
        if (keep)
            attr[nattr++] = ir_attr_i(IR_ATTR_keep, 1);
        if (ir_is_low(from->dtype) && axes[n - 1] < n)
            attr[nattr++] = ir_attr_s(IR_ATTR_to, ef_intern(v->b.m->ctx, "f32"));
        else if (ir_is_low(from->dtype)) /* only sums of whole rows read low types */
            g = pass_vjp_as(v, g, IR_F32);
        g = ir_emit(&v->b, IR_OP_reduce_sum, pass_vjp_name(v, x, whole ? "" : ".sum"),
                    1, &g, nattr, attr, NULL);
    }
    g = pass_vjp_as(v, g, to->dtype);
    if (g->type != to)
        g = ir_emit(&v->b, IR_OP_reshape, pass_vjp_name(v, x, ""), 1, &g, 0, NULL, to);
    return g;
}

/* The gradient of op's only operand: one op on dy, with attributes, of the operand's type. */
static ir_value *
apply(pass_vjp *v, const ir_op *op, ir_value *dy, ir_opcode code, int nattr,
      const ir_attr *attr)
{
    const ir_type *given = ir_ops[code].flags & IR_TYPED ? op->arg[0]->type : NULL;
    return ir_emit(&v->b, code, pass_vjp_name(v, op->arg[0], ""), 1, &dy, nattr, attr,
                   given);
}

/* ---- elementwise: the table adjoints.def ---- */

typedef enum source {
    FROM___,
    FROM_DY,
    FROM_Y,
    FROM_A,
    FROM_B,
    FROM_X,
    FROM_ZERO
} source;
enum { IR_OP_pass = IR_NOPS }; /* the gradient is the source itself */

typedef struct adjoint {
    int op, k, via;
    source from[3];
} adjoint;

static const adjoint adjoints[] = {
#define ADJ(op, k, via, x, y, z) \
    {IR_OP_##op, k, IR_OP_##via, {FROM_##x, FROM_##y, FROM_##z}},
#include "../ir/adjoints.def"
#undef ADJ
};

static const adjoint *
adjoint_of(ir_opcode op, int k)
{
    for (size_t i = 0; i < EF_COUNT(adjoints); i++)
        if (adjoints[i].op == (int)op && adjoints[i].k == k)
            return &adjoints[i];
    return NULL;
}

static ir_value *
source_of(pass_vjp *v, const ir_op *op, source from, ir_value *dy)
{
    switch (from) {
    case FROM_DY:
        return dy;
    case FROM_Y:
        return op->res[0];
    case FROM_A:
    case FROM_B:
    case FROM_X:
        return op->arg[from - FROM_A];
    case FROM_ZERO:
        return ir_const(&v->b, "zero",
                        ir_type_get(v->b.m->ctx, dy->type->dtype, 0, NULL), 0);
    default:
        EF_UNREACHABLE();
    }
}

bool
pass_vj_ew(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
           ir_value **darg)
{
    for (int k = 0; k < op->narg; k++) {
        if (!want[k])
            continue;
        const adjoint *a = adjoint_of(op->code, k);
        if (!a)
            return pass_vjp_no_rule(v, op);
        ir_value *arg[3], *g;
        int n = a->via == IR_OP_pass ? 1 : ir_ops[a->via].narg;
        for (int i = 0; i < n; i++)
            arg[i] = source_of(v, op, a->from[i], dres[0]);
        bool same = op->arg[k]->type == op->res[0]->type;
        g = a->via == IR_OP_pass
                ? arg[0]
                : ir_emit(&v->b, (ir_opcode)a->via,
                          pass_vjp_name(v, op->arg[k], same ? "" : ".wide"), n, arg, 0,
                          NULL, NULL);
        darg[k] = pass_vjp_unbroadcast(v, op->arg[k], g);
    }
    return true;
}

bool
pass_vj_cast(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
             ir_value **darg)
{
    (void)want;
    darg[0] = apply(v, op, dres[0], IR_OP_cast, 0, NULL);
    return true;
}

/* ---- structure ---- */

bool
pass_vj_reshape(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                ir_value **darg)
{
    (void)want;
    darg[0] = apply(v, op, dres[0], IR_OP_reshape, 0, NULL);
    return true;
}

bool
pass_vj_transpose(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                  ir_value **darg)
{
    (void)want;
    const ir_attr *perm = ir_attr_get(op, IR_ATTR_perm);
    int64_t inverse[IR_MAX_RANK];
    for (int i = 0; i < perm->n; i++)
        inverse[perm->u.l[i]] = i;
    ir_attr attr = ir_attr_l(IR_ATTR_perm, perm->n, inverse);
    darg[0] = apply(v, op, dres[0], IR_OP_transpose, 1, &attr);
    return true;
}

bool
pass_vj_expand(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
               ir_value **darg)
{
    (void)want;
    darg[0] = pass_vjp_unbroadcast(v, op->arg[0], dres[0]);
    return true;
}

bool
pass_vj_concat(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
               ir_value **darg)
{
    int64_t axis = ir_attr_int(op, IR_ATTR_axis, 0), start = 0;
    for (int k = 0; k < op->narg; k++) {
        ir_attr attr[] = {ir_attr_i(IR_ATTR_axis, axis),
                          ir_attr_i(IR_ATTR_start, start)};
        start += op->arg[k]->type->dim[axis];
        if (want[k])
            darg[k] = ir_emit(&v->b, IR_OP_slice, pass_vjp_name(v, op->arg[k], ""), 1,
                              (ir_value *[]){dres[0]}, 2, attr, op->arg[k]->type);
    }
    return true;
}

bool
pass_vj_slice(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
              ir_value **darg)
{
    (void)want;
    darg[0] = apply(v, op, dres[0], IR_OP_unslice, op->nattr, op->attr);
    return true;
}

bool
pass_vj_unslice(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                ir_value **darg)
{
    (void)want;
    darg[0] = apply(v, op, dres[0], IR_OP_slice, op->nattr, op->attr);
    return true;
}

bool
pass_vj_gather(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
               ir_value **darg)
{
    (void)want; /* indices have no gradient */
    darg[0] = ir_emit(&v->b, IR_OP_gather_grad, pass_vjp_name(v, op->arg[0], ""), 2,
                      (ir_value *[]){dres[0], op->arg[1]}, op->nattr, op->attr,
                      op->arg[0]->type);
    return true;
}

bool
pass_vj_gather_grad(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                    ir_value **darg)
{
    (void)want;
    darg[0] = ir_emit(&v->b, IR_OP_gather, pass_vjp_name(v, op->arg[0], ""), 2,
                      (ir_value *[]){dres[0], op->arg[1]}, op->nattr, op->attr, NULL);
    return true;
}

/* ---- products and reductions ---- */

/* matmul of a and b with flags, as a gradient of x. */
static ir_value *
product(pass_vjp *v, const ir_value *x, ir_value *a, bool ta, ir_value *b, bool tb)
{
    ir_attr attr[2];
    int n = 0;
    if (ta)
        attr[n++] = ir_attr_i(IR_ATTR_ta, 1);
    if (tb)
        attr[n++] = ir_attr_i(IR_ATTR_tb, 1);
    ir_value *g = ir_emit(&v->b, IR_OP_matmul, pass_vjp_name(v, x, ""), 2,
                          (ir_value *[]){a, b}, n, attr, NULL);
    return pass_vjp_unbroadcast(v, x, g);
}

/* The gradient of a matrix that many rows were multiplied with: no batch of partial sums. */
static ir_value *
weight_grad(pass_vjp *v, const ir_value *w, ir_value *x, ir_value *dy, bool tb)
{
    ir_attr attr = ir_attr_i(IR_ATTR_tb, 1);
    return ir_emit(&v->b, IR_OP_linear_dw, pass_vjp_name(v, w, ""), 2,
                   (ir_value *[]){x, dy}, tb, &attr, NULL);
}

bool
pass_vj_matmul(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
               ir_value **darg)
{
    ir_value *a = op->arg[0], *b = op->arg[1];
    ir_value *dy = pass_vjp_as(v, dres[0], a->type->dtype);
    bool ta = ir_attr_int(op, IR_ATTR_ta, 0) != 0,
         tb = ir_attr_int(op, IR_ATTR_tb, 0) != 0;
    if (want[0])
        darg[0] =
            ta ? product(v, a, b, tb, dy, true) : product(v, a, dy, false, b, !tb);
    if (want[1] && !ta && b->type->rank == 2)
        darg[1] = weight_grad(v, b, a, dy, tb);
    else if (want[1])
        darg[1] =
            tb ? product(v, b, dy, true, a, ta) : product(v, b, a, !ta, dy, false);
    return true;
}

bool
pass_vj_linear(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
               ir_value **darg)
{
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0) != 0;
    bool bias = op->narg > 2 && want[2];
    ir_attr attr = ir_attr_i(IR_ATTR_tb, 1);
    ir_value *dy = dres[0];
    if (ir_attr_get(op, IR_ATTR_alpha)) /* only pass fuse makes such */
        return pass_vjp_no_rule(v, op);
    if (want[0] || want[1])
        dy = pass_vjp_as(v, dy, op->arg[0]->type->dtype);
    if (want[0])
        darg[0] = ir_emit(&v->b, IR_OP_linear, pass_vjp_name(v, op->arg[0], ""), 2,
                          (ir_value *[]){dy, op->arg[1]}, !tb, &attr, NULL);
    if (want[1])
        darg[1] = weight_grad(v, op->arg[1], op->arg[0], dy, tb);
    if (bias)
        darg[2] = pass_vjp_unbroadcast(v, op->arg[2], dres[0]);
    return true;
}

/* dy spread over the reduced axes of op's operand. */
static ir_value *
spread(pass_vjp *v, const ir_op *op, ir_value *dy)
{
    const ir_attr *axes = ir_attr_get(op, IR_ATTR_axes);
    const ir_value *x = op->arg[0];
    ir_type kept = *x->type;
    dy = pass_vjp_as(v, dy, kept.dtype);
    for (int i = 0; i < axes->n; i++) {
        kept.dim[axes->u.l[i]] = 1;
        kept.sym[axes->u.l[i]] = IR_FIXED;
    }
    const ir_type *t = ir_type_intern(v->b.m->ctx, &kept);
    if (dy->type != t)
        dy = ir_emit(&v->b, IR_OP_reshape, pass_vjp_name(v, x, ".keep"), 1, &dy, 0,
                     NULL, t);
    return ir_emit(&v->b, IR_OP_expand, pass_vjp_name(v, x, ""), 1, &dy, 0, NULL,
                   x->type);
}

bool
pass_vj_reduce_sum(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                   ir_value **darg)
{
    (void)want;
    darg[0] = spread(v, op, dres[0]);
    return true;
}

bool
pass_vj_reduce_mean(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                    ir_value **darg)
{
    (void)want;
    const ir_type *scalar = ir_type_get(v->b.m->ctx, dres[0]->type->dtype, 0, NULL);
    double share = (double)ir_type_count(op->res[0]->type) /
                   (double)ir_type_count(op->arg[0]->type);
    const ir_value *x = op->arg[0];
    ir_value *by = ir_const(&v->b, pass_vjp_name(v, x, ".by"), scalar, share);
    ir_value *g = ir_ew2(&v->b, IR_OP_mul, pass_vjp_name(v, x, ".mean"), dres[0], by);
    darg[0] = spread(v, op, g);
    return true;
}

/* Elements that are the maximum share its gradient. */
bool
pass_vj_reduce_max(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                   ir_value **darg)
{
    (void)want;
    const ir_value *x = op->arg[0];
    const ir_type *t = ir_type_with(v->b.m->ctx, x->type, dres[0]->type->dtype);
    ir_value *is = ir_ew2(&v->b, IR_OP_eq, pass_vjp_name(v, x, ".is"), op->arg[0],
                          spread(v, op, op->res[0]));
    is = ir_emit(&v->b, IR_OP_cast, pass_vjp_name(v, x, ".one"), 1, &is, 0, NULL, t);
    ir_value *n = ir_emit(&v->b, IR_OP_reduce_sum, pass_vjp_name(v, x, ".n"), 1, &is,
                          op->nattr, op->attr, NULL);
    ir_value *g = ir_ew2(&v->b, IR_OP_div, pass_vjp_name(v, x, ".share"), dres[0], n);
    darg[0] = ir_ew2(&v->b, IR_OP_mul, pass_vjp_name(v, x, ""), spread(v, op, g), is);
    return true;
}

bool
pass_vj_softmax(pass_vjp *v, ir_op *op, ir_value *const *dres, const bool *want,
                ir_value **darg)
{
    (void)want;
    darg[0] = ir_emit(&v->b, IR_OP_softmax_grad, pass_vjp_name(v, op->arg[0], ""), 2,
                      (ir_value *[]){dres[0], op->res[0]}, 0, NULL, NULL);
    return true;
}
