/* onnx_ops_ms.c -- the attention operators of com.microsoft, which onnxruntime's optimiser and
 * model builder write.
 *
 * Attention projects queries, keys and values itself, with one packed matrix; in
 * MultiHeadAttention and GroupQueryAttention they come from outside, packed or not.
 */
#include "attention_int.h"

#include <math.h>
#include <string.h>

/* ---- masks ---- */

/* Keys below the length of each row, bool [B,1,1,T]; n: i64 [B]. */
static fe_val *
below(fe_call *c, ir_opcode how, fe_val *n, int64_t keys)
{
    fe_val *at = fe_count_up(c, keys);
    if (!n)
        return NULL;
    n = fe_reshape(c, n, 4, (int64_t[]){ir_type_count(n->type), 1, 1, 1});
    return fe_ew2(c, how, at, n);
}

/* What operand i says may be attended to, as bool that fits [B,heads,S,T]: lengths [B], ends
 * and starts [2B], or numbers that are not 0, [B,T] and [B,S,T]. NULL: said why. */
static fe_val *
key_mask(fe_call *c, int i, const fe_attend *a)
{
    fe_val *m = fe_in(c, i);
    int64_t b = a->q->type->dim[0], t = a->k->type->dim[2];
    if (!m)
        return NULL;
    const ir_type *type = m->type;
    const int64_t *dim = type->dim;
    if (type->rank == 1 && dim[0] == b)
        return below(c, IR_OP_lt, m, t);
    if (type->rank == 1 && dim[0] == 2 * b)
        return fe_both(c, below(c, IR_OP_lt, fe_slice(c, m, 0, 0, 1, b), t),
                       below(c, IR_OP_ge, fe_slice(c, m, 0, b, 1, b), t));
    if (type->rank == 2 && dim[1] == t)
        return fe_convert(c, fe_reshape(c, m, 4, (int64_t[]){dim[0], 1, 1, t}),
                          IR_BOOL);
    if (type->rank == 3 && dim[2] == t)
        return fe_convert(c, fe_reshape(c, m, 4, (int64_t[]){dim[0], 1, dim[1], t}),
                          IR_BOOL);
    fe_fail(c, "a mask of %s is not supported", ir_type_text(c->im->ctx, type));
    return NULL;
}

/* Masks of operand `mask`, of what operand `add` adds, and of what comes later. */
static bool
read_masks(fe_call *c, fe_attend *a, int mask, int add)
{
    int64_t s = a->q->type->dim[2], t = a->k->type->dim[2];
    a->hidden = fe_attr_f(c, "mask_filter_value", -10000);
    if (fe_has(c, mask) && !(a->keep = key_mask(c, mask, a)))
        return false;
    if (fe_has(c, add) && !(a->add = fe_in(c, add)))
        return false;
    a->finite = true;
    if (!fe_attr_i(c, "unidirectional", 0))
        return true;
    a->keep = fe_both(c, a->keep, fe_window(c, s, t, t - s, (int64_t[]){-1, 0}));
    return a->keep != NULL;
}

/* Results are y and the keys and values, which nobody may read. */
static bool
finish(fe_call *c, const fe_attend *a)
{
    fe_val *y = fe_merge_heads(c, fe_attention(c, a)), *out[] = {y, a->k, a->v};
    for (int i = 0; i < c->n->nout && i < 3; i++)
        c->out[i] = out[i];
    return y != NULL;
}

static double
scale_of(fe_call *c, const fe_val *q)
{
    double scale = fe_attr_f(c, "scale", 0);
    return scale != 0 ? scale : 1 / sqrt((double)q->type->dim[3]);
}

/* ---- Attention ---- */

/* Widths of queries, keys and values in the packed matrix. */
static bool
packed_widths(fe_call *c, int64_t whole, int64_t *width)
{
    int n;
    const int64_t *given = fe_attr_is(c, "qkv_hidden_sizes", &n);
    if (given && n != 3)
        return fe_fail(c, "qkv_hidden_sizes has %d entries", n);
    int64_t left = whole;
    bool fits = true;
    for (int i = 0; i < 3 && fits; i++) {
        width[i] = given ? given[i] : whole / 3;
        fits = width[i] > 0 && width[i] <= left;
        left -= fits ? width[i] : 0;
    }
    return (fits && !left) ||
           fe_fail(c, "the packed matrix has %lld columns", (long long)whole);
}

/* (input, weights, bias, mask, past, added to scores) */
bool
op_ms_attention(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *w = x ? fe_in(c, 1) : NULL, *part[3];
    int64_t heads = fe_attr_i(c, "num_heads", 0), width[3], at = 0;
    if (!w)
        return false;
    if (w->type->rank != 2 || fe_has(c, 4) || fe_attr_i(c, "do_rotary", 0))
        return fe_fail(c, "past, do_rotary and weights of %s are not supported",
                       ir_type_text(c->im->ctx, w->type));
    fe_val *y = fe_emit(c, IR_OP_matmul, 2, (fe_val *[]){x, w}, 0, NULL, NULL);
    if (y && fe_has(c, 2))
        y = fe_ew2(c, IR_OP_add, y, fe_in(c, 2));
    if (!y || y->type->rank != 3)
        return y && fe_fail(c, "the operand is %s", ir_type_text(c->im->ctx, x->type));
    if (!packed_widths(c, w->type->dim[1], width))
        return false;
    for (int i = 0; i < 3; i++) {
        part[i] = fe_heads(c, fe_slice(c, y, 2, at, 1, width[i]), heads);
        at += width[i];
    }
    fe_attend a = {.q = part[0], .k = part[1], .v = part[2]};
    if (!a.q || !a.k || !a.v || !read_masks(c, &a, 3, 5))
        return false;
    a.scale = scale_of(c, a.q);
    return finish(c, &a);
}

/* ---- MultiHeadAttention ---- */

/* Part i of [B,S,heads,n,d] as [B,heads,S,d]. */
static fe_val *
unpacked(fe_call *c, fe_val *v, int64_t i)
{
    const int64_t *d = v->type->dim;
    fe_val *part = fe_slice(c, v, 3, i, 1, 1);
    part = fe_reshape(c, part, 4, (int64_t[]){d[0], d[1], d[2], d[4]});
    return fe_permute(c, part, (int64_t[]){0, 2, 1, 3});
}

/* Queries, keys and values: apart, keys and values packed, or all packed. */
static bool
read_qkv(fe_call *c, int64_t heads, fe_val **part)
{
    fe_val *q = fe_in(c, 0), *k = q && fe_has(c, 1) ? fe_in(c, 1) : NULL;
    if (!q || (fe_has(c, 1) && !k))
        return false;
    bool all = q->type->rank == 5 && q->type->dim[3] == 3;
    bool two = k && k->type->rank == 5 && k->type->dim[3] == 2;
    if (!all && !k)
        return fe_fail(c, "queries are %s and there are no keys",
                       ir_type_text(c->im->ctx, q->type));
    part[0] = all ? unpacked(c, q, 0) : fe_heads(c, q, heads);
    part[1] = all ? unpacked(c, q, 1) : two ? unpacked(c, k, 0) : fe_heads(c, k, heads);
    part[2] = all   ? unpacked(c, q, 2)
              : two ? unpacked(c, k, 1)
                    : fe_heads(c, fe_in(c, 2), heads);
    return part[0] && part[1] && part[2];
}

/* Adds to part i its share of the bias of all, operand 3. */
static bool
add_biases(fe_call *c, fe_val **part)
{
    fe_val *bias = fe_in(c, 3);
    int64_t at = 0;
    for (int i = 0; bias && i < 3; i++) {
        int64_t heads = part[i]->type->dim[1], d = part[i]->type->dim[3];
        int64_t n = heads * d;
        if (bias->type->rank != 1 || at + n > bias->type->dim[0])
            return fe_fail(c, "the bias is %s", ir_type_text(c->im->ctx, bias->type));
        fe_val *own = fe_slice(c, bias, 0, at, 1, n);
        own = fe_reshape(c, own, 4, (int64_t[]){1, heads, 1, d});
        if (!(part[i] = fe_ew2(c, IR_OP_add, part[i], own)))
            return false;
        at += n;
    }
    return bias != NULL;
}

/* (query, key, value, bias, key mask, added to scores, past key, past value) */
bool
op_ms_multi_head(fe_call *c)
{
    fe_val *part[3];
    int64_t heads = fe_attr_i(c, "num_heads", 0);
    if (!read_qkv(c, heads, part) || (fe_has(c, 3) && !add_biases(c, part)))
        return false;
    fe_attend a = {.q = part[0],
                   .k = fe_with_past(c, 6, part[1]),
                   .v = fe_with_past(c, 7, part[2])};
    if (!a.k || !a.v || !read_masks(c, &a, 4, 5))
        return false;
    a.scale = scale_of(c, a.q);
    return finish(c, &a);
}

/* ---- GroupQueryAttention ---- */

/* Queries, keys and values with their heads apart; packed, if there are no keys. */
static bool
grouped_qkv(fe_call *c, int64_t heads, int64_t kv, fe_val **part)
{
    fe_val *q = fe_in(c, 0);
    if (!q || q->type->rank != 3 || heads < 1 || kv < 1 || heads > q->type->dim[2] ||
        kv > heads)
        return q && fe_fail(c, "queries are %s with %lld heads, %lld of keys",
                            ir_type_text(c->im->ctx, q->type), (long long)heads,
                            (long long)kv);
    bool packed = !fe_has(c, 1);
    int64_t n_all = packed ? heads + 2 * kv : heads, d = q->type->dim[2] / n_all,
            at = 0;
    if (q->type->dim[2] % n_all)
        return fe_fail(c, "queries are %s, expected %lld heads",
                       ir_type_text(c->im->ctx, q->type), (long long)n_all);
    for (int i = 0; i < 3; i++) {
        int64_t n = i ? kv : heads;
        fe_val *v = packed ? fe_slice(c, q, 2, at, 1, n * d) : fe_in(c, i);
        if (!(part[i] = fe_heads(c, v, n)))
            return false;
        at += n * d;
    }
    return true;
}

/* Tables, operands 7 and 8, at the first positions or at operand 9. */
static bool
turn_grouped(fe_call *c, fe_val **part)
{
    int64_t s = part[0]->type->dim[2];
    fe_val *at = fe_has(c, 9) ? fe_in(c, 9)
                              : fe_reshape(c, fe_count_up(c, s), 2, (int64_t[]){1, s});
    fe_val *cos = at ? fe_in(c, 7) : NULL, *sin = cos ? fe_in(c, 8) : NULL;
    if (!sin || cos->type->rank != 2 || sin->type->rank != 2 || at->type->rank != 2)
        return sin && fe_fail(c, "the tables are %s and %s",
                              ir_type_text(c->im->ctx, cos->type),
                              ir_type_text(c->im->ctx, sin->type));
    cos = fe_gather(c, cos, at, 0);
    sin = fe_gather(c, sin, at, 0);
    bool pairs = fe_attr_i(c, "rotary_interleaved", 0) != 0;
    for (int i = 0; i < 2; i++)
        if (!(part[i] = fe_rotate(c, part[i], cos, sin, pairs)))
            return false;
    return true;
}

/* (query, key, value, past key, past value, last positions, longest, cos, sin, positions,
 * added to scores). Rows are padded on the right, if at all, so that the causal mask hides
 * what their lengths hide from every token that counts. */
bool
op_ms_grouped(fe_call *c)
{
    fe_val *part[3];
    int64_t heads = fe_attr_i(c, "num_heads", 0), kv = fe_attr_i(c, "kv_num_heads", 0);
    if (fe_attr_i(c, "smooth_softmax", 0))
        return fe_fail(c, "smooth_softmax is not supported");
    if (!grouped_qkv(c, heads, kv, part))
        return false;
    if (fe_attr_i(c, "do_rotary", 0) && !turn_grouped(c, part))
        return false;
    fe_attend a = {.q = part[0],
                   .k = fe_with_past(c, 3, part[1]),
                   .v = fe_with_past(c, 4, part[2]),
                   .softcap = fe_attr_f(c, "softcap", 0),
                   .hidden = -INFINITY,
                   .finite = true};
    if (!a.k || !a.v)
        return false;
    int64_t s = a.q->type->dim[2], t = a.k->type->dim[2];
    if (t != s)
        return fe_fail(c, "past keys are not supported");
    int64_t window = fe_attr_i(c, "local_window_size", -1); /* with the query's own */
    a.keep = fe_window(c, s, t, 0, (int64_t[]){window > 0 ? window - 1 : -1, 0});
    if (!a.keep || (fe_has(c, 10) && !(a.add = fe_in(c, 10))))
        return false;
    a.scale = scale_of(c, a.q);
    return finish(c, &a);
}
