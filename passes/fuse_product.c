/* fuse_product.c -- products: what is added to them, a GELU, the sums that a bias gets.
 *
 * cuBLASLt does these on the way (its epilogues, see rt_epilogue), with sums that are still
 * f32. Its GELU is the one by tanh; an exact one stays an op of its own.
 */
#include "fuse_int.h"

static ir_op *
linear_at(const ir_value *v, const ir_block *block)
{
    ir_op *op = v->def;
    return op && op->code == IR_OP_linear && op->block == block ? op : NULL;
}

/* The product whose result v is, or is a cast of, and that nothing else uses: a linear, or a
 * linear_add to one; in block. */
static ir_op *
product_of(const ir_value *v, const ir_block *block)
{
    ir_op *op = v->nuse == 1 ? v->def : NULL;
    if (op && op->code == IR_OP_cast && ir_dtypes[v->type->dtype].is_float &&
        op->arg[0]->nuse == 1)
        op = op->arg[0]->def;
    if (!op || op->block != block || !ir_dtypes[op->res[0]->type->dtype].is_float)
        return NULL;
    bool two = op->code == IR_OP_linear_add && op->arg[0]->nuse == 1 &&
               linear_at(op->arg[0], block);
    return two || op->code == IR_OP_linear ? op : NULL;
}

/* c + product, an op that product_of() found. */
static ir_value *
add_product(ir_builder *b, ir_value *c, const ir_op *product)
{
    ir_attr attr[2];
    ir_value *arg[4] = {c};
    int n = 1, nattr = 0, from = product->code == IR_OP_linear_add;
    if (from)
        arg[0] = add_product(b, c, product->arg[0]->def);
    for (int i = from; i < product->narg; i++)
        arg[n++] = product->arg[i];
    for (int i = 0; i < product->nattr; i++)
        if (product->attr[i].key == IR_ATTR_tb || product->attr[i].key == IR_ATTR_alpha)
            attr[nattr++] = product->attr[i];
    b->loc = product->loc;
    return ir_emit(b, IR_OP_linear_add, product->res[0]->name, n, arg, nattr, attr,
                   NULL);
}

static void
add_into_product(ir_op *add)
{
    ir_op *p[2];
    for (int i = 0; i < 2; i++) {
        bool same =
            add->arg[1 - i]->type == add->res[0]->type && add->arg[0] != add->arg[1];
        p[i] = same ? product_of(add->arg[i], add->block) : NULL;
    }
    int k = p[0] && (!p[1] || ir_op_before(p[1], p[0])) ? 0 : 1;
    ir_value *c = add->arg[1 - k], *v = add->arg[k];
    if (!p[k])
        return;
    ir_builder b = ir_at(add);
    fuse_replace(add->res[0], add_product(&b, c, p[k]));
    if (v->def != p[k])
        fuse_drop(v->def);
    ir_op *first = p[k]->code == IR_OP_linear_add ? p[k]->arg[0]->def : p[k];
    fuse_drop(p[k]);
    if (first != p[k])
        fuse_drop(first);
}

/* Of an adapter on all columns the narrow product comes first, and the wide one adds to it: that
 * one waits for the arithmetic, and reads what it adds to meanwhile. */
static void
adapter_first(ir_op *add)
{
    ir_value *y = add->arg[0];
    ir_op *linear = y->nuse == 1 ? linear_at(y, add->block) : NULL;
    const ir_type *b = add->arg[2]->type;
    ir_columns at = ir_adapted_columns(add, b->dim[0]);
    bool all = at.n == 1 && at.width == y->type->dim[y->type->rank - 1];
    if (!linear || !all || y->type->dtype != b->dtype)
        return;
    ir_builder at_add = ir_at(add);
    ir_attr attr[] = {ir_attr_i(IR_ATTR_tb, 1),
                      ir_attr_f(IR_ATTR_alpha, ir_attr_num(add, IR_ATTR_by, 1))};
    ir_value *narrow = ir_emit(&at_add, IR_OP_linear, add->arg[1]->name, 2,
                               add->arg + 1, 2, attr, NULL);
    fuse_replace(add->res[0], add_product(&at_add, narrow, linear));
    fuse_drop(linear);
}

/* ---- GELU ---- */

/* The linear op with result v, of the types of its operands; above `where` in its block, and
 * v is not used in between. NULL: there is none. */
static ir_op *
linear_before(const ir_value *v, const ir_op *where)
{
    ir_op *op = linear_at(v, where->block);
    bool is = op && !ir_attr_get(op, IR_ATTR_to) && !ir_attr_get(op, IR_ATTR_alpha) &&
              fuse_unused_before(op, where);
    return is ? op : NULL;
}

static void
gelu_of_product(ir_op *gelu)
{
    ir_value *h = gelu->arg[0];
    ir_op *linear = linear_before(h, gelu);
    if (!linear)
        return;
    ir_builder b = ir_at(gelu);
    bool kept = h->nuse > 1;
    b.loc = linear->loc;
    ir_op *both = ir_insert(&b, IR_OP_linear_gelu, NULL, linear->narg, linear->arg,
                            linear->nattr, linear->attr, NULL, kept ? 2 : 1);
    fuse_replace(gelu->res[0], both->res[0]);
    if (kept)
        fuse_pass_on(h, both->res[1]);
    fuse_drop(linear);
}

static void
gelu_gradient_of_product(ir_op *grad)
{
    ir_value *d = grad->arg[0], *h = grad->arg[1];
    ir_op *linear = d->nuse == 1 && d->type == h->type ? linear_before(d, grad) : NULL;
    if (!linear || linear->narg > 2)
        return;
    ir_builder b = ir_at(grad);
    ir_value *arg[] = {linear->arg[0], linear->arg[1], h};
    b.loc = linear->loc;
    ir_value *y = ir_emit(&b, IR_OP_linear_dgelu, NULL, 3, arg, linear->nattr,
                          linear->attr, NULL);
    fuse_replace(grad->res[0], y);
    fuse_drop(linear);
}

/* ---- gradients of biases ---- */

/* What op reads as the gradient of a linear's result; NULL: it does not. */
static const ir_value *
gradient_read(const ir_op *op)
{
    if (op->code == IR_OP_linear_dw)
        return op->arg[1];
    if (op->code != IR_OP_reduce_sum)
        return NULL;
    const ir_value *dy = op->arg[0];
    const ir_attr *axes = ir_attr_get(op, IR_ATTR_axes);
    bool sums = op->res[0]->type->rank == 1 && op->res[0]->type->dtype == IR_F32 &&
                axes->n == dy->type->rank - 1;
    for (int i = 0; i < axes->n; i++)
        sums &= axes->u.l[i] != dy->type->rank - 1;
    return sums ? dy : NULL;
}

/* op is the second of linear_dw and reduce_sum of one gradient. */
static void
bias_with_weight(ir_op *op)
{
    const ir_value *dy = gradient_read(op);
    ir_op *first = dy ? op->prev : NULL;
    while (first && (first->code == op->code || gradient_read(first) != dy))
        first = first->prev;
    if (!first)
        return;
    ir_op *dw = op->code == IR_OP_linear_dw ? op : first, *sum = dw == op ? first : op;
    const ir_op *x = dw->arg[0]->def;
    if (x && !ir_op_before(x, first))
        return;
    ir_builder b = ir_at(first);
    b.loc = dw->loc;
    ir_op *both =
        ir_insert(&b, IR_OP_linear_dwb, NULL, 2, dw->arg, dw->nattr, dw->attr, NULL, 2);
    fuse_replace(sum->res[0], both->res[1]);
    fuse_replace(dw->res[0], both->res[0]);
}

void
fuse_product(ir_op *op)
{
    switch (op->code) {
    case IR_OP_add:
        add_into_product(op);
        break;
    case IR_OP_lora_add:
        adapter_first(op);
        break;
    case IR_OP_gelu_tanh:
        gelu_of_product(op);
        break;
    case IR_OP_gelu_tanh_d:
        gelu_gradient_of_product(op);
        break;
    case IR_OP_linear_dw:
    case IR_OP_reduce_sum:
        bias_with_weight(op);
        break;
    default:
        break;
    }
}
