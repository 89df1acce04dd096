/* onnx_ops_attention.c -- attention as the ops that exporters without such an operator write;
 * pass recognise makes one op of them where it can.
 *
 * All forms come down to queries [B,heads,S,d], keys and values [B,kv heads,T,d], a float
 * mask that is added to the scores and a bool mask of what may be attended to. A query that
 * may attend to nothing gets 0: its softmax would be NaN, which is replaced, so that no
 * gradient flows either.
 */
#include "attention_int.h"

#include <math.h>
#include <string.h>

fe_val *
fe_heads(fe_call *c, fe_val *v, int64_t heads)
{
    if (!v || v->type->rank == 4)
        return v;
    const int64_t *dim = v->type->dim;
    if (v->type->rank != 3 || heads < 1 || dim[2] % heads) {
        fe_fail(c, "an operand is %s, expected %lld heads",
                ir_type_text(c->im->ctx, v->type), (long long)heads);
        return NULL;
    }
    int64_t split[] = {dim[0], dim[1], heads, dim[2] / heads};
    return fe_permute(c, fe_reshape(c, v, 4, split), (int64_t[]){0, 2, 1, 3});
}

fe_val *
fe_merge_heads(fe_call *c, fe_val *v)
{
    v = fe_permute(c, v, (int64_t[]){0, 2, 1, 3});
    if (!v)
        return NULL;
    const int64_t *dim = v->type->dim;
    return fe_reshape(c, v, 3, (int64_t[]){dim[0], dim[1], dim[2] * dim[3]});
}

/* [B,kv,T,d] to [B,heads,T,d]: every head of keys serves heads/kv queries in a row. */
static fe_val *
repeat_heads(fe_call *c, fe_val *v, int64_t heads)
{
    if (!v || v->type->dim[1] == heads)
        return v;
    const int64_t *d = v->type->dim;
    if (!d[1] || heads % d[1]) {
        fe_fail(c, "%lld heads of queries for %lld of keys", (long long)heads,
                (long long)d[1]);
        return NULL;
    }
    int64_t n = heads / d[1];
    v = fe_reshape(c, v, 5, (int64_t[]){d[0], d[1], 1, d[2], d[3]});
    v = fe_expand(c, v, 5, (int64_t[]){d[0], d[1], n, d[2], d[3]});
    return fe_reshape(c, v, 4, (int64_t[]){d[0], heads, d[2], d[3]});
}

fe_val *
fe_window(fe_call *c, int64_t s, int64_t t, int64_t past, const int64_t *reach)
{
    int64_t dim[] = {s, t};
    const ir_type *type = fe_type(c, IR_BOOL, 2, dim);
    double *x = type ? fe_room(c, s * t) : NULL;
    if (!x)
        return NULL;
    for (int64_t k = 0; k < s * t; k++) {
        int64_t ahead = k % t - k / t - past;
        x[k] =
            (reach[0] < 0 || -ahead <= reach[0]) && (reach[1] < 0 || ahead <= reach[1]);
    }
    return fe_known_val(c->im, type, x);
}

fe_val *
fe_both(fe_call *c, fe_val *a, fe_val *b)
{
    return !a ? b : !b ? a : fe_ew2(c, IR_OP_and, a, b);
}

static fe_val *
softcapped(fe_call *c, fe_val *scores, double cap)
{
    if (!(cap > 0))
        return scores;
    fe_val *t = fe_ew1(c, IR_OP_tanh, fe_with(c, IR_OP_div, scores, cap));
    return fe_with(c, IR_OP_mul, t, cap);
}

static fe_val *
where(fe_call *c, fe_val *cond, fe_val *yes, fe_val *no)
{
    return fe_emit(c, IR_OP_where, 3, (fe_val *[]){cond, yes, no}, 0, NULL, NULL);
}

/* Has every row of a mask something to attend to, whatever the data are? */
static bool
has_keys(const fe_val *keep)
{
    int64_t n = ir_type_count(keep->type), cols = 1, row = 0;
    if (!keep->data)
        return false;
    if (keep->type->rank)
        cols = keep->type->dim[keep->type->rank - 1];
    for (int64_t i = 0; i < n; i++) {
        row += keep->data[i] != 0;
        if (i % cols == cols - 1 && !row)
            return false;
        row = i % cols == cols - 1 ? 0 : row;
    }
    return true;
}

/* Softmax of the masked scores. */
static fe_val *
weights_of(fe_call *c, fe_val *scores, const fe_attend *a)
{
    fe_val *zero = fe_num(c, IR_F32, 0), *low = fe_num(c, IR_F32, a->hidden);
    if (a->add)
        scores = fe_ew2(c, IR_OP_add, scores, a->add);
    if (a->keep)
        scores = fe_ew2(c, IR_OP_add, scores, where(c, a->keep, zero, low));
    if (a->scores)
        *a->scores = scores;
    fe_val *w = fe_emit(c, IR_OP_softmax, 1, &scores, 0, NULL, NULL);
    bool finite = (!a->add || a->finite) &&
                  (!a->keep || isfinite(a->hidden) || has_keys(a->keep));
    return finite ? w : where(c, fe_ew1(c, IR_OP_isnan, w), zero, w);
}

fe_val *
fe_attention(fe_call *c, const fe_attend *a)
{
    if (!a->q || !a->k || !a->v)
        return NULL;
    int64_t heads = a->q->type->dim[1];
    fe_val *k = repeat_heads(c, a->k, heads), *v = repeat_heads(c, a->v, heads);
    k = fe_permute(c, k, (int64_t[]){0, 1, 3, 2});
    fe_val *scores = fe_emit(c, IR_OP_matmul, 2, (fe_val *[]){a->q, k}, 0, NULL, NULL);
    scores = a->scale == 1 ? scores : fe_with(c, IR_OP_mul, scores, a->scale);
    if (a->products)
        *a->products = scores;
    scores = softcapped(c, scores, a->softcap);
    if (a->capped)
        *a->capped = scores;
    fe_val *w = weights_of(c, scores, a);
    if (a->weights)
        *a->weights = w;
    return fe_emit(c, IR_OP_matmul, 2, (fe_val *[]){w, v}, 0, NULL, NULL);
}

/* past, if it has any positions, before v. */
fe_val *
fe_with_past(fe_call *c, int i, fe_val *v)
{
    if (!v || !fe_has(c, i))
        return v;
    fe_val *past = fe_in(c, i);
    if (past && past->type->rank != 4) {
        fe_fail(c, "operand %d is %s", i, ir_type_text(c->im->ctx, past->type));
        return NULL;
    }
    if (past && !past->type->dim[2])
        return v;
    return past ? fe_concat(c, 2, (fe_val *[]){past, v}, 2) : NULL;
}

/* ---- the operator of opset 23 ---- */

/* A mask that ends before the last key hides the rest. */
static fe_val *
long_enough(fe_call *c, fe_val *mask, int64_t keys)
{
    ir_type t = *mask->type;
    int last = t.rank - 1;
    if (last < 0 || t.dim[last] >= keys || t.dim[last] == 1)
        return mask;
    t.dim[last] = keys - t.dim[last];
    fe_val *rest =
        fe_splat(c, ir_type_intern(c->im->ctx, &t), t.dtype == IR_BOOL ? 0 : -INFINITY);
    return fe_concat(c, 2, (fe_val *[]){mask, rest}, last);
}

/* Lengths of the rows, operand 6, as [B,1,1,1]. */
static fe_val *
lengths(fe_call *c)
{
    fe_val *n = fe_in(c, 6);
    return n ? fe_reshape(c, n, 4, (int64_t[]){ir_type_count(n->type), 1, 1, 1}) : NULL;
}

/* fe_window() where the past of a row is its length - queries: with d = j - i + queries,
 * length - left <= d and d <= length + right. */
static fe_val *
window_within(fe_call *c, int64_t queries, int64_t keys, const int64_t *reach)
{
    int64_t dim[] = {queries, keys};
    double *x = fe_room(c, queries * keys);
    if (!x)
        return NULL;
    for (int64_t i = 0; i < queries * keys; i++)
        x[i] = (double)(i % keys - i / keys + queries);
    fe_val *d = fe_known_val(c->im, fe_type(c, IR_I64, 2, dim), x);
    fe_val *n = lengths(c), *keep = NULL;
    if (n && reach[1] >= 0)
        keep = fe_ew2(c, IR_OP_le, d, fe_with(c, IR_OP_add, n, (double)reach[1]));
    if (n && reach[0] >= 0)
        keep =
            fe_both(c, keep,
                    fe_ew2(c, IR_OP_ge, d, fe_with(c, IR_OP_sub, n, (double)reach[0])));
    return keep;
}

/* Masks from operands 3 and 6, is_causal and windows, `past` keys being from before. false: said
 * why. */
static bool
read_masks(fe_call *c, fe_attend *a, int64_t past)
{
    int64_t s = a->q->type->dim[2], t = a->k->type->dim[2];
    if (fe_has(c, 3)) {
        fe_val *mask = fe_in(c, 3);
        if (!mask || !(mask = long_enough(c, mask, t)))
            return false;
        *(mask->type->dtype == IR_BOOL ? &a->keep : &a->add) = mask;
    }
    int64_t reach[] = {fe_attr_i(c, "left_window_size", -1),
                       fe_attr_i(c, "right_window_size", -1)};
    if (fe_attr_i(c, "is_causal", 0))
        reach[1] = 0;
    if (reach[0] >= 0 || reach[1] >= 0) {
        fe_val *near = fe_has(c, 6) && !past ? window_within(c, s, t, reach)
                                             : fe_window(c, s, t, past, reach);
        if (!near || !(a->keep = fe_both(c, a->keep, near)))
            return false;
    }
    if (fe_has(c, 6)) {
        fe_val *within = fe_ew2(c, IR_OP_lt, fe_count_up(c, t), lengths(c));
        if (!within || !(a->keep = fe_both(c, a->keep, within)))
            return false;
    }
    return true;
}

/* (Q, K, V, mask, past key, past value, lengths): Y, keys, values, scores */
bool
op_attention(fe_call *c)
{
    fe_val *v[3], *scores[4] = {NULL};
    for (int i = 0; i < 3; i++)
        if (!(v[i] = fe_in(c, i)) ||
            !(v[i] = fe_heads(c, v[i],
                              fe_attr_i(c, i ? "kv_num_heads" : "q_num_heads", 0))))
            return false;
    bool flat = fe_in(c, 0)->type->rank == 3;
    int64_t own = v[1]->type->dim[2];
    fe_attend a = {.q = v[0],
                   .k = fe_with_past(c, 4, v[1]),
                   .v = fe_with_past(c, 5, v[2]),
                   .scale = 1 / sqrt((double)v[0]->type->dim[3]),
                   .softcap = fe_attr_f(c, "softcap", 0),
                   .hidden = -INFINITY,
                   .products = &scores[0],
                   .capped = &scores[1],
                   .scores = &scores[2],
                   .weights = &scores[3]};
    a.scale = fe_attr_f(c, "scale", a.scale);
    if (!a.k || !a.v || !read_masks(c, &a, a.k->type->dim[2] - own))
        return false;
    fe_val *y = fe_attention(c, &a);
    int64_t mode = fe_attr_i(c, "qk_matmul_output_mode", 0);
    if (mode < 0 || mode > 3)
        return fe_fail(c, "qk_matmul_output_mode is %lld", (long long)mode);
    fe_val *out[] = {flat ? fe_merge_heads(c, y) : y, a.k, a.v, scores[mode]};
    for (int i = 0; i < c->n->nout && i < 4; i++)
        c->out[i] = out[i];
    return out[0] != NULL;
}
