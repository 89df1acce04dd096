/* view.c -- chains of reshapes, transposes, slices and expands as index arithmetic.
 *
 * Exporters split and join heads in many ways: [B,S,h*d] -> reshape [B,S,h,d] -> transpose
 * [B,h,S,d], or both transposes of the keys merged into one, or everything through
 * [B*h,S,d]. All of them only move an index. A value is kept as atoms (size, stride in the
 * base); a reshape regroups atoms and splits some, a transpose permutes groups, a slice
 * moves the offset, an expand adds atoms of stride 0. Two chains mean the same if their
 * atoms are the same:
 *
 *     keys for q k^T, [B,h,d,S] of a base [B,S,C]:  (B,S*C) (h,d) (d,1) (S,C), offset ko
 */
#include <string.h>

#include "canon_int.h"
#include "recognise_int.h"

enum { MAX_DEPTH = 32, MAX_GROUP = 1 << 12 };

/* The operand that op is a view of, and the factor it has on the elements; NULL: none. */
static ir_value *
viewed(const ir_op *op, double *factor)
{
    *factor = 1;
    if (!op)
        return NULL;
    switch (op->code) {
    case IR_OP_reshape:
    case IR_OP_transpose:
    case IR_OP_slice:
    case IR_OP_expand:
        return op->arg[0];
    default: {
        ir_value *v = pass_scaled(op, factor);
        return v && v->type == op->res[0]->type ? v : NULL;
    }
    }
}

int
view_depth(const ir_value *v)
{
    double factor;
    int n = 0;
    while (n < MAX_DEPTH && (v = viewed(v->def, &factor)))
        n++;
    return n;
}

static bool
add_atom(view *w, int64_t size, int64_t stride)
{
    if (w->natom == VIEW_ATOMS)
        return false;
    w->size[w->natom] = size;
    w->stride[w->natom++] = stride;
    return true;
}

static void
next_dim(view *w)
{
    w->first[++w->rank] = w->natom;
}

/* An empty view that keeps what does not depend on dimensions. */
static view
emptied(const view *w)
{
    return (view){.base = w->base, .factor = w->factor, .offset = w->offset};
}

static void
whole(ir_value *v, view *w)
{
    const ir_type *t = v->type;
    int64_t stride[IR_MAX_RANK], n = 1;
    *w = (view){.base = v, .factor = 1};
    for (int i = t->rank - 1; i >= 0; i--) {
        stride[i] = n;
        n *= t->dim[i];
    }
    for (int i = 0; i < t->rank; i++) {
        add_atom(w, t->dim[i], stride[i]);
        next_dim(w);
    }
}

/* Deals the atoms out to the new dimensions, splitting one where a new edge cuts it. */
static bool
reshape(view *w, const ir_type *t)
{
    view out = emptied(w);
    int k = 0;
    int64_t size = w->natom ? w->size[0] : 1; /* what is left of atom k */
    for (int i = 0; i < t->rank; i++) {
        int64_t want = t->dim[i];
        while (want > 1) {
            while (k < w->natom && size == 1)
                size = ++k < w->natom ? w->size[k] : 1;
            if (k == w->natom)
                return false;
            int64_t taken = size <= want ? size : want;
            if (want % taken || size % taken)
                return false;
            size /= taken;
            want /= taken;
            if (!add_atom(&out, taken, w->stride[k] * size))
                return false;
        }
        next_dim(&out);
    }
    *w = out;
    return true;
}

static bool
permute(view *w, const int64_t *perm)
{
    view out = emptied(w);
    for (int i = 0; i < w->rank; i++) {
        for (int k = w->first[perm[i]]; k < w->first[perm[i] + 1]; k++)
            if (!add_atom(&out, w->size[k], w->stride[k]))
                return false;
        next_dim(&out);
    }
    *w = out;
    return true;
}

/* Of a dimension that is a single atom, size 1 aside. */
static bool
slice(view *w, const ir_op *op)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0), at = -1;
    for (int k = w->first[axis]; k < w->first[axis + 1]; k++) {
        if (w->size[k] != 1 && at >= 0)
            return false;
        at = w->size[k] != 1 ? k : at;
    }
    if (at < 0)
        return true;
    w->offset += ir_attr_int(op, IR_ATTR_start, 0) * w->stride[at];
    w->size[at] = op->res[0]->type->dim[axis];
    if (w->size[at] > 1) /* else any step goes, and the product could overflow */
        w->stride[at] *= ir_attr_int(op, IR_ATTR_step, 1);
    return true;
}

static bool
expand(view *w, const ir_type *from, const ir_type *to)
{
    view out = emptied(w);
    int lead = to->rank - from->rank;
    for (int i = 0; i < to->rank; i++) {
        bool wider = i < lead || from->dim[i - lead] != to->dim[i];
        if (wider && !add_atom(&out, to->dim[i], 0))
            return false;
        for (int k = wider ? 0 : w->first[i - lead];
             !wider && k < w->first[i - lead + 1]; k++)
            if (!add_atom(&out, w->size[k], w->stride[k]))
                return false;
        next_dim(&out);
    }
    *w = out;
    return true;
}

static bool
apply(view *w, const ir_op *op)
{
    double factor;
    switch (op->code) {
    case IR_OP_reshape:
        return reshape(w, op->res[0]->type);
    case IR_OP_transpose:
        return permute(w, ir_attr_get(op, IR_ATTR_perm)->u.l);
    case IR_OP_slice:
        return slice(w, op);
    case IR_OP_expand:
        return expand(w, op->arg[0]->type, op->res[0]->type);
    default:
        pass_scaled(op, &factor);
        w->factor *= factor;
        return true;
    }
}

bool
view_of(ir_value *v, int back, view *out)
{
    double factor;
    ir_value *from = back ? viewed(v->def, &factor) : NULL;
    if (!back) {
        whole(v, out);
        return ir_type_count(v->type) > 0;
    }
    return from && view_of(from, back - 1, out) && apply(out, v->def);
}

void
view_swap_last(view *w)
{
    int64_t perm[IR_MAX_RANK];
    for (int i = 0; i < w->rank; i++)
        perm[i] = i;
    EF_ASSERT(w->rank >= 2);
    perm[w->rank - 2] = w->rank - 1;
    perm[w->rank - 1] = w->rank - 2;
    permute(w, perm);
}

/* Atoms without size 1, neighbours joined that are one stretch; returns how many. */
static int
joined(int n, int64_t *size, int64_t *stride)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (size[i] == 1)
            continue;
        bool follows = kept && stride[kept - 1] == size[i] * stride[i];
        if (follows) {
            size[kept - 1] *= size[i];
            stride[kept - 1] = stride[i];
        } else {
            size[kept] = size[i];
            stride[kept++] = stride[i];
        }
    }
    return kept;
}

bool
view_is(const view *v, int n, const int64_t *size, const int64_t *stride)
{
    int64_t a[2][VIEW_ATOMS], b[2][VIEW_ATOMS];
    EF_ASSERT(n <= VIEW_ATOMS);
    memcpy(a[0], v->size, sizeof a[0]);
    memcpy(a[1], v->stride, sizeof a[1]);
    memcpy(b[0], size, sizeof *size * (size_t)n);
    memcpy(b[1], stride, sizeof *stride * (size_t)n);
    int na = joined(v->natom, a[0], a[1]), nb = joined(n, b[0], b[1]);
    size_t bytes = sizeof(int64_t) * (size_t)na;
    return na == nb && !memcmp(a[0], b[0], bytes) && !memcmp(a[1], b[1], bytes);
}

/* ---- heads ---- */

static bool
heads_fit(const view *v, const head_view *h, bool by_token)
{
    const ir_type *t = v->base->type;
    int64_t row = ir_type_count(t) / t->dim[0], c = row / t->dim[1];
    int64_t first[] = {t->dim[0], h->heads, h->group, t->dim[1], h->d};
    int64_t stride1[] = {row, h->stride, 0, c, 1};
    int64_t second[] = {t->dim[0], t->dim[1], h->heads, h->group, h->d};
    int64_t stride2[] = {row, c, h->stride, 0, 1};
    return view_is(v, 5, by_token ? second : first, by_token ? stride2 : stride1) &&
           h->stride >= h->d && v->offset >= 0 &&
           v->offset + (h->heads - 1) * h->stride + h->d <= c;
}

bool
view_heads(const view *v, int64_t heads, int64_t d, bool by_token, head_view *out)
{
    const ir_type *t = v->base->type;
    if (t->rank < 3 || !ir_type_count(t))
        return false;
    for (int64_t group = 1; group <= heads && group <= MAX_GROUP; group++) {
        *out = (head_view){v->offset, heads / group, group, d, d};
        if (heads % group)
            continue;
        if (heads_fit(v, out, by_token))
            return true;
        for (int k = 0; k < v->natom && group < heads; k++) {
            out->stride = v->stride[k];
            if (heads_fit(v, out, by_token))
                return true;
        }
    }
    return false;
}

static ir_value *
slice_of(ir_op *at, ir_value *x, int axis, int64_t start, int64_t n)
{
    ir_type t = *x->type;
    if (t.dim[axis] == n)
        return x;
    t.dim[axis] = n;
    ir_builder b = ir_at(at);
    ir_attr attr[] = {ir_attr_i(IR_ATTR_axis, axis), ir_attr_i(IR_ATTR_start, start)};
    return ir_emit(&b, IR_OP_slice, NULL, 1, &x, 2, attr, ir_type_intern(b.m->ctx, &t));
}

ir_value *
view_flat(ir_op *at, ir_value *base)
{
    const ir_type *t = base->type;
    int64_t dim[] = {t->dim[0], t->dim[1], ir_type_count(t) / t->dim[0] / t->dim[1]};
    ef_ctx *ctx = at->block->func->module->ctx;
    return canon_reshape(at, base, ir_type_get(ctx, t->dtype, 3, dim));
}

ir_value *
view_emit_heads(ir_op *at, ir_value *base, const head_view *h, bool by_token,
                const ir_type *type)
{
    const ir_type *t = base->type;
    ef_ctx *ctx = at->block->func->module->ctx;
    int64_t within = h->offset % h->stride, first = h->offset - within;
    if (within + h->d > h->stride || first + h->heads * h->stride > t->dim[2]) {
        if (h->stride != h->d) /* a head would lie across two pieces */
            return NULL;
        within = 0, first = h->offset;
    }
    int64_t dim[] = {t->dim[0], t->dim[1], h->heads, h->stride}, perm[] = {0, 2, 1, 3};
    ir_value *x = slice_of(at, base, 2, first, h->heads * h->stride);
    x = canon_reshape(at, x, ir_type_get(ctx, t->dtype, 4, dim));
    x = slice_of(at, x, 3, within, h->d);
    ir_attr swap = ir_attr_l(IR_ATTR_perm, 4, perm);
    if (!by_token)
        x = canon_emit(at, IR_OP_transpose, x, &swap, NULL);
    return canon_reshape(at, x, type);
}
