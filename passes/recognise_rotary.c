/* recognise_rotary.c -- rotary positions, on columns of the product that they turn.
 *
 *     x cos + concat(-second half of x, first half of x) sin,   x = [B,heads,S,r]
 *
 * x is followed back to heads in the columns of one value [B,S,..]. The op turns these columns
 * and leaves the others, and its result is then cut into heads as x was: these cuts are what
 * attention sees through. Where only the first columns of a head are turned, exporters join
 * them with the others again; this is undone.
 */
#include <string.h>

#include "canon_int.h"
#include "recognise_int.h"

static const ir_attr *
slice_axis_last(const ir_value *v)
{
    const ir_attr *axis = ir_attr_get(v->def, IR_ATTR_axis);
    return axis && axis->u.i == v->type->rank - 1 ? axis : NULL;
}

/* Is v the columns [start, start + n) of x? */
static bool
is_half(const ir_value *v, int64_t start, int64_t n)
{
    return slice_axis_last(v) && v->type->dim[v->type->rank - 1] == n &&
           ir_attr_int(v->def, IR_ATTR_start, 0) == start &&
           ir_attr_int(v->def, IR_ATTR_step, 1) == 1;
}

/* The value furthest back of which v is heads, in `batch` rows; sets what they are. NULL: of
 * none. */
static ir_value *
heads_of(ir_value *v, bool by_token, head_view *h)
{
    const ir_type *t = v->type;
    if (t->rank != 4)
        return NULL;
    for (int back = view_depth(v); back >= 0; back--) {
        view w;
        if (view_of(v, back, &w) && w.factor == 1 && w.base->type->rank >= 3 &&
            w.base->type->dim[0] == t->dim[0] &&
            w.base->type->dim[1] == t->dim[by_token ? 1 : 2] &&
            view_heads(&w, t->dim[by_token ? 2 : 1], t->dim[3], by_token, h) &&
            h->group == 1)
            return w.base;
    }
    return NULL;
}

/* A table that is broadcast to x [B,heads,S,r], or [B,S,heads,r]: its type as [B or 1,S,r].
 * NULL: it differs from head to head, or is one for all positions. */
static const ir_type *
table_type(ef_ctx *ctx, const ir_type *c, const ir_type *x, bool by_token)
{
    int64_t dim[4] = {1, 1, 1, 1};
    if (c->rank > 4)
        return NULL;
    for (int i = 0; i < c->rank; i++)
        dim[4 - c->rank + i] = c->dim[i];
    int seq = by_token ? 1 : 2, head = by_token ? 2 : 1;
    if (dim[head] != 1 || dim[seq] != x->dim[seq] || dim[3] != x->dim[3] ||
        (dim[0] != 1 && dim[0] != x->dim[0]))
        return NULL;
    return ir_type_get(ctx, c->dtype, 3, (int64_t[]){dim[0], dim[seq], dim[3]});
}

static ir_value *
emit_rotary(ir_op *at, ir_value *x, ir_value *const table[2], const head_view *h)
{
    ir_attr attr[3] = {ir_attr_i(IR_ATTR_heads, h->heads)};
    int n = 1;
    if (h->offset)
        attr[n++] = ir_attr_i(IR_ATTR_start, h->offset);
    if (h->stride != h->d)
        attr[n++] = ir_attr_i(IR_ATTR_stride, h->stride);
    ir_builder b = ir_at(at);
    return ir_emit(&b, IR_OP_rotary, NULL, 3, (ir_value *[]){x, table[0], table[1]}, n,
                   attr, NULL);
}

/* x cos + concat(-hi, lo) sin, x = heads(%b)    ->  heads(rotary %b, %cos, %sin) */
ir_value *
rec_rotary(recogniser *r, const pass_match *m)
{
    ir_op *root = m->op[0];
    ir_value *x = pass_bound(m, "x"), *hi = pass_bound(m, "hi"),
             *lo = pass_bound(m, "lo");
    ir_value *table[] = {pass_bound(m, "c"), pass_bound(m, "s")};
    const ir_type *t = x->type;
    int64_t half = t->rank == 4 ? t->dim[3] / 2 : 0;
    const ir_attr *joined = ir_attr_get(pass_bound(m, "j")->def, IR_ATTR_axis);
    if (root->res[0]->type != t || !half || t->dim[3] % 2 || joined->u.i != 3 ||
        !is_half(hi, half, half) || !is_half(lo, 0, half))
        return NULL;
    for (int by_token = 0; by_token < 2; by_token++) {
        head_view h;
        ir_value *base = heads_of(x, by_token, &h), *flat[2];
        const ir_type *tc = table_type(r->m->ctx, table[0]->type, t, by_token);
        if (!base || !tc || tc != table_type(r->m->ctx, table[1]->type, t, by_token) ||
            tc->dtype != base->type->dtype)
            continue;
        for (int i = 0; i < 2; i++)
            flat[i] = canon_reshape(root, table[i], tc);
        ir_value *y = emit_rotary(root, view_flat(root, base), flat, &h);
        ir_value *v = view_emit_heads(root, y, &h, by_token, t);
        if (v)
            return v;
        ir_remove(y->def);
    }
    return NULL;
}

/* ---- partial ---- */

/* The heads that a rotary op turns. */
static head_view
turned_by(const ir_op *op)
{
    const ir_type *c = op->arg[1]->type;
    int64_t stride = ir_attr_int(op, IR_ATTR_stride, 0);
    return (head_view){ir_attr_int(op, IR_ATTR_start, 0),
                       ir_attr_int(op, IR_ATTR_heads, 1), 1, c->dim[2],
                       stride ? stride : c->dim[2]};
}

static bool
is_rotary(const ir_value *v)
{
    return v->def && v->def->code == IR_OP_rotary;
}

/* Do both hold the same elements in the same order? */
static bool
same_elements(const ir_value *a, const ir_value *b)
{
    while (a->def && a->def->code == IR_OP_reshape)
        a = a->def->arg[0];
    while (b->def && b->def->code == IR_OP_reshape)
        b = b->def->arg[0];
    return a == b;
}

/* concat(heads of rotary %b, more columns of the same heads of %b)
 *     ->  wider heads of rotary %b, which are the same there */
ir_value *
rec_rotary_part(recogniser *r, const pass_match *m)
{
    (void)r;
    ir_op *root = m->op[0];
    ir_value *a = pass_bound(m, "a"), *b = pass_bound(m, "b");
    const ir_type *t = root->res[0]->type;
    if (t->rank != 4 || ir_attr_int(root, IR_ATTR_axis, 0) != 3)
        return NULL;
    for (int by_token = 0; by_token < 2; by_token++) {
        head_view first, rest;
        ir_value *y = heads_of(a, by_token, &first), *x = heads_of(b, by_token, &rest);
        if (!y || !x || !is_rotary(y) || !same_elements(y->def->arg[0], x))
            continue;
        head_view turned = turned_by(y->def);
        bool whole = !memcmp(&turned, &first, sizeof turned) ||
                     (first.heads == 1 && turned.heads == 1 && turned.d == first.d &&
                      turned.offset == first.offset);
        bool beside = rest.offset == first.offset + first.d &&
                      (rest.stride == first.stride || first.heads == 1) &&
                      rest.heads == first.heads;
        int64_t d = first.d + rest.d, stride = first.heads == 1 ? d : first.stride;
        head_view all = {first.offset, first.heads, 1, d, stride};
        ir_value *v = whole && beside && stride >= d
                          ? view_emit_heads(root, y, &all, by_token, t)
                          : NULL;
        if (v)
            return v;
    }
    return NULL;
}

/* ---- fused products ---- */

static bool
meet(const head_view *a, const head_view *b)
{
    ir_columns x = {a->offset, a->heads, a->d, a->stride};
    ir_columns y = {b->offset, b->heads, b->d, b->stride};
    return ir_columns_meet(&x, &y);
}

/* Do turned queries, turned keys and values have columns of their own? Attention, which reads
 * h, then reads no column that another's turn would change. */
static bool
are_apart(const head_view turned[2], const head_view h[3])
{
    return !meet(&turned[0], &turned[1]) && !meet(&turned[0], &h[1]) &&
           !meet(&turned[0], &h[2]) && !meet(&turned[1], &h[0]) &&
           !meet(&turned[1], &h[2]) && !meet(&h[0], &h[1]) && !meet(&h[0], &h[2]) &&
           !meet(&h[1], &h[2]);
}

void
rec_turn_together(ir_op *at, ir_value *v[3], const head_view h[3])
{
    if (!is_rotary(v[0]) || !is_rotary(v[1]))
        return;
    const ir_op *q = v[0]->def, *k = v[1]->def;
    head_view turned[] = {turned_by(q), turned_by(k)};
    if (!same_elements(q->arg[0], v[2]) || !same_elements(k->arg[0], v[2]) ||
        q->res[0]->type != v[2]->type || k->res[0]->type != v[2]->type ||
        !are_apart(turned, h))
        return;
    bool same =
        q->arg[1] == k->arg[1] && q->arg[2] == k->arg[2] &&
        turned[0].stride == turned[1].stride &&
        turned[1].offset == turned[0].offset + turned[0].heads * turned[0].stride;
    ir_value *y = v[2];
    if (same) {
        turned[0].heads += turned[1].heads;
        y = emit_rotary(at, y, q->arg + 1, &turned[0]);
    } else {
        y = emit_rotary(at, y, q->arg + 1, &turned[0]);
        y = emit_rotary(at, y, k->arg + 1, &turned[1]);
    }
    ir_rename(at->block->func, y, v[2]->name);
    v[0] = v[1] = v[2] = y;
}
