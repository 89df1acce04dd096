/* canon_shape.c -- rules of pass canon about shapes and positions of elements. */
#include <string.h>

#include "canon_int.h"

/* ---- reshape, expand, concat, slice ---- */

/* %u = reshape %x   %y = reshape %u         ->  %y = reshape %x, or %x */
static ir_value *
join_reshapes(ir_op *op)
{
    if (op->code != IR_OP_reshape)
        return NULL;
    ir_value *x = op->arg[0];
    if (x->type == op->res[0]->type)
        return x;
    if (!x->def || x->def->code != IR_OP_reshape)
        return NULL;
    return canon_reshape(op, x->def->arg[0], op->res[0]->type);
}

/* %u = expand %x   %y = expand %u           ->  %y = expand %x, or %x */
static ir_value *
join_expands(ir_op *op)
{
    if (op->code != IR_OP_expand)
        return NULL;
    ir_value *x = op->arg[0];
    if (x->type == op->res[0]->type)
        return x;
    if (!x->def || x->def->code != IR_OP_expand)
        return NULL;
    return canon_emit(op, IR_OP_expand, x->def->arg[0], NULL, op->res[0]->type);
}

/* %u = expand %x   %y = where %u, %a, %b    ->  %y = where %x, %a, %b, if the shape stays */
static ir_value *
drop_expand(ir_op *op)
{
    if (!(ir_ops[op->code].flags & IR_EW) || op->narg < 2 || op->narg > 3)
        return NULL;
    for (int i = 0; i < op->narg; i++) {
        const ir_op *expand = op->arg[i]->def;
        if (!expand || expand->code != IR_OP_expand)
            continue;
        ir_builder b = ir_at(op);
        ir_value *arg[3];
        memcpy(arg, op->arg, sizeof *arg * (size_t)op->narg);
        arg[i] = expand->arg[0];
        ir_op *narrow = ir_insert(&b, op->code, NULL, op->narg, arg, 0, NULL, NULL, 1);
        if (narrow->res[0]->type == op->res[0]->type)
            return narrow->res[0];
        ir_remove(narrow);
    }
    return NULL;
}

/* %y = concat %x, or one that only has empty operands beside it   ->  %x */
static ir_value *
drop_concat(ir_op *op)
{
    if (op->code != IR_OP_concat)
        return NULL;
    for (int i = 0; i < op->narg; i++)
        if (op->arg[i]->type == op->res[0]->type)
            return op->arg[i];
    return NULL;
}

/* %y = slice %x, the whole of it            ->  %x */
static ir_value *
drop_slice(ir_op *op)
{
    return op->code == IR_OP_slice && op->arg[0]->type == op->res[0]->type &&
                   ir_attr_int(op, IR_ATTR_step, 1) == 1
               ? op->arg[0]
               : NULL;
}

/* ---- transpose ---- */

static bool
is_identity(int n, const int64_t *perm)
{
    for (int i = 0; i < n; i++)
        if (perm[i] != i)
            return false;
    return true;
}

/* Do the dimensions that are not 1 keep their order? */
static bool
moves_nothing(const ir_type *t, const int64_t *perm)
{
    int64_t last = -1;
    for (int i = 0; i < t->rank; i++) {
        if (t->dim[perm[i]] == 1)
            continue;
        if (perm[i] < last)
            return false;
        last = perm[i];
    }
    return true;
}

/* %u = transpose %x   %y = transpose %u     ->  %y = transpose %x, or %x
 * %y = transpose %x, moving only 1s         ->  %y = reshape %x */
static ir_value *
join_transposes(ir_op *op)
{
    if (op->code != IR_OP_transpose)
        return NULL;
    ir_value *x = op->arg[0];
    const ir_attr *perm = ir_attr_get(op, IR_ATTR_perm);
    if (is_identity(perm->n, perm->u.l))
        return x;
    if (moves_nothing(x->type, perm->u.l))
        return canon_reshape(op, x, op->res[0]->type);
    if (!x->def || x->def->code != IR_OP_transpose)
        return NULL;
    int64_t both[IR_MAX_RANK];
    const int64_t *inner = ir_attr_get(x->def, IR_ATTR_perm)->u.l;
    for (int i = 0; i < perm->n; i++)
        both[i] = inner[perm->u.l[i]];
    if (is_identity(perm->n, both))
        return x->def->arg[0];
    ir_attr joined = ir_attr_l(IR_ATTR_perm, perm->n, both);
    return canon_emit(op, IR_OP_transpose, x->def->arg[0], &joined, NULL);
}

/* Does op exchange its operand's last two dimensions and nothing else? */
static bool
swaps_last(const ir_op *op)
{
    if (!op || op->code != IR_OP_transpose)
        return false;
    const ir_attr *perm = ir_attr_get(op, IR_ATTR_perm);
    int n = perm->n;
    return n >= 2 && perm->u.l[n - 2] == n - 1 && perm->u.l[n - 1] == n - 2 &&
           is_identity(n - 2, perm->u.l);
}

/* %t = transpose $w {perm=[1,0]}   %y = matmul %x, %t   ->  %y = matmul %x, $w {tb=1} */
static ir_value *
absorb_transpose(ir_op *op)
{
    if (op->code != IR_OP_matmul)
        return NULL;
    ir_module *m = op->block->func->module;
    for (int i = 0; i < 2; i++) {
        const ir_op *transpose = op->arg[i]->def;
        ir_attr_key key = i ? IR_ATTR_tb : IR_ATTR_ta;
        if (!swaps_last(transpose))
            continue;
        ir_set_arg(op, i, transpose->arg[0]);
        if (ir_attr_int(op, key, 0))
            ir_attr_remove(op, key);
        else
            ir_attr_set(m, op, ir_attr_i(key, 1));
        return op->res[0];
    }
    return NULL;
}

/* ---- gather ---- */

/* %y = gather %x, const 3 {axis=1} : f32[2,48]
 *     ->  %s = slice %x {axis=1, start=3} : f32[2,1,48]   %y = reshape %s : f32[2,48] */
static ir_value *
gather_one(ir_op *op)
{
    double index;
    if (op->code != IR_OP_gather || !ir_is_const_scalar(op->arg[1], &index))
        return NULL;
    int64_t axis = ir_attr_int(op, IR_ATTR_axis, 0);
    ir_type t = *op->arg[0]->type;
    int64_t start = (int64_t)index + (index < 0 ? t.dim[axis] : 0);
    if (start < 0 || start >= t.dim[axis])
        return NULL; /* out of range: the trainer says so with the data at hand */
    t.dim[axis] = 1;
    ir_builder b = ir_at(op);
    ir_attr attr[] = {ir_attr_i(IR_ATTR_axis, axis), ir_attr_i(IR_ATTR_start, start)};
    ir_value *one = ir_emit(&b, IR_OP_slice, NULL, 1, op->arg, 2, attr,
                            ir_type_intern(b.m->ctx, &t));
    return canon_reshape(op, one, op->res[0]->type);
}

/* %y = gather %x, 0 1 2 .. n-1 {axis=k}     ->  %y = reshape %x, if that is all of axis k */
static ir_value *
gather_all(ir_op *op)
{
    if (op->code != IR_OP_gather || !canon_is_const(op->arg[1]) || op->arg[1]->def)
        return NULL;
    int64_t axis = ir_attr_int(op, IR_ATTR_axis, 0),
            n = ir_type_count(op->arg[1]->type);
    if (n != op->arg[0]->type->dim[axis])
        return NULL;
    for (int64_t i = 0; i < n; i++)
        if (op->arg[1]->param->values[i] != (double)i)
            return NULL;
    return canon_reshape(op, op->arg[0], op->res[0]->type);
}

canon_rule *const canon_shape[] = {
    join_reshapes,   join_expands,     drop_expand, drop_concat, drop_slice,
    join_transposes, absorb_transpose, gather_one,  gather_all,
};
const int canon_nshape = EF_COUNT(canon_shape);
