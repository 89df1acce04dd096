/* recognise_attention.c -- softmax attention in any of its spellings.
 *
 * The pattern finds softmax times values. From there the walk goes back through the scores:
 * factors, masks (each classified by mask_probe.c) and at the end the product of queries and
 * keys. Queries, keys and values are then followed through their reshapes and transposes to
 * one matrix product each, or to one for all three, with view.c:
 *
 *     matmul(softmax(where(mask, q k^T / sqrt(d), -inf)), v)
 *         q = transpose(reshape(slice(%qkv)))  ..
 *     ->  %y, %lse = attention %qkv, %qkv, %qkv, %attention_mask {heads=4, head_dim=12, ..}
 *
 * Nothing is assumed of the order of these steps; what is emitted is right if the index
 * arithmetic, the factors and the masks are, wherever the exporter put them.
 */
#include <math.h>
#include <string.h>

#include "canon_int.h"
#include "pass_int.h"
#include "recognise_int.h"

/* An additive mask must be below this at every masked place: exp() of it is 0 in f32. */
static const double MASKED = -1e4;

typedef struct scores { /* what the walk back from the softmax finds */
    recogniser *r;
    const ir_type *type; /* [B,heads,S,S]; NULL: no mask says it */
    double factor;
    double softcap; /* 0: none */
    int64_t window; /* 0: none */
    bool causal;
    ir_value *key;        /* mask over keys: an input */
    ir_value *computed;   /* or what is computed, [B,1,1,S], seen where true */
    bool inverted;        /* or where false */
    const ir_op *product; /* queries times keys */
    const ir_op *dropout; /* of the weights; NULL: none */
    bool said;            /* why this attention is not one */
} scores;

typedef struct operand { /* queries, keys or values */
    ir_value *base;      /* [B,S,..] */
    head_view h;
    double factor;
} operand;

/* Tells the user why this one stays as it is. Always returns false. */
static bool
refuse(scores *s, const ir_op *at, const char *why)
{
    s->said = true;
    ef_report(s->r->m->ctx, "attention at %s stays plain ops: %s",
              at->loc ? at->loc : "?", why);
    return false;
}

/* ---- scores ---- */

/* The scores of a mask as [B,heads,S,S]. Three dimensions are [B,1,S,S] if the mask differs
 * from row to row, and [1,1,S,S] for its purpose if it does not. NULL: something else. */
static const ir_type *
scores_type(const scores *s, const ir_type *t, const ir_type *mask)
{
    if (t->rank < 3 || t->rank > 4 || t->dim[t->rank - 1] != t->dim[t->rank - 2])
        return NULL;
    int64_t rows =
        t->rank == 4 || (mask->rank == 3 && mask->dim[0] > 1) ? t->dim[0] : 1;
    int64_t heads = t->rank == 4 ? t->dim[1] : 1, seq = t->dim[t->rank - 1];
    const ir_type *four =
        ir_type_get(s->r->m->ctx, t->dtype, 4, (int64_t[]){rows, heads, seq, seq});
    return s->type && s->type != four && rows > 1 ? NULL : four;
}

/* Is x, added to a score or in its place, as good as -inf? Not NaN. */
static bool
hides(double x)
{
    return x <= MASKED;
}

/* A mask that no rule describes, but which hides keys from all queries alike: what it is
 * computed by is the mask over keys, a condition [B,1,1,S]. */
static bool
take_computed(scores *s, const ir_type *t, ir_value *v, bool inverted, double post)
{
    double yes, no;
    if (v->type->dtype != IR_BOOL) { /* where(v, 0, very negative), or the reverse */
        const ir_op *op = v->def;
        if (!op || op->code != IR_OP_where || !canon_uniform(op->arg[1], &yes) ||
            !canon_uniform(op->arg[2], &no) || (yes == 0) == (no == 0) ||
            !hides((yes + no) * post))
            return false;
        inverted = yes != 0;
        v = op->arg[0];
    }
    const ir_type *tv = v->type;
    if (s->key || s->computed || tv->rank != 4 || tv->dim[0] != t->dim[0] ||
        tv->dim[1] != 1 || tv->dim[2] != 1 || tv->dim[3] != t->dim[3])
        return false;
    s->computed = v;
    s->inverted = inverted;
    s->type = t;
    return true;
}

/* Takes the mask v of op `at` into account. `post`: what its elements are multiplied by
 * before they meet the softmax; inverted: v is boolean and true at masked places. */
static bool
add_mask(scores *s, const ir_op *at, ir_value *v, bool inverted, double post)
{
    const ir_type *t = scores_type(s, at->res[0]->type, v->type);
    if (!t)
        return refuse(s, at, "its scores are not [batch, heads, tokens, tokens]");
    if (s->softcap > 0)
        return refuse(s, at, "its mask is inside of the soft cap");
    mask_rule rule = mask_probe(s->r, v, inverted, t);
    if (!rule.known)
        return take_computed(s, t, v, inverted, post) ||
               refuse(s, at, "its mask is neither causal nor one over keys");
    if (v->type->dtype != IR_BOOL && (rule.causal || rule.key || rule.window) &&
        !hides(rule.masked_max * post))
        return refuse(s, at, "its mask is not negative enough");
    if (rule.key && (s->computed || (s->key && s->key != rule.key)))
        return refuse(s, at, "it has two masks over keys");
    s->type = at->res[0]->type->rank == 4 || t->dim[0] > 1 ? t : s->type;
    s->causal |= rule.causal;
    if (rule.window && (!s->window || rule.window < s->window))
        s->window = rule.window;
    s->key = rule.key ? rule.key : s->key;
    return true;
}

/* where: one of arg[1] and arg[2] is what stands at masked places, the other the scores, which
 * it returns; NULL: it is no mask. */
static ir_value *
where_mask(scores *s, const ir_op *op, double post)
{
    double x;
    bool inverted = canon_uniform(op->arg[1], &x);
    if ((!inverted && !canon_uniform(op->arg[2], &x)) || !hides(x * post))
        return NULL;
    return add_mask(s, op, op->arg[0], inverted, post) ? op->arg[inverted ? 2 : 1]
                                                       : NULL;
}

/* Follows v back by one op; NULL: at the product, or at something that is not understood. */
static ir_value *
step_back(scores *s, ir_value *v, double *post)
{
    ir_op *op = v->def;
    double x;
    ir_value *scaled = pass_scaled(op, &x);
    if (scaled) {
        *post *= x;
        return scaled->type == v->type ? scaled : NULL;
    }
    switch (op->code) {
    case IR_OP_reshape:
        return op->arg[0];
    case IR_OP_where:
        return where_mask(s, op, *post);
    case IR_OP_max: /* a clamp to the lowest number there is, as OPT has it */
        return canon_uniform(op->arg[1], &x) && hides(x * *post) ? op->arg[0] : NULL;
    case IR_OP_add: {
        int mask = mask_like(op->arg[1]) ? 1 : 0;
        if (op->arg[1 - mask]->type != v->type || !mask_like(op->arg[mask]))
            return NULL;
        return add_mask(s, op, op->arg[mask], false, *post) ? op->arg[1 - mask] : NULL;
    }
    case IR_OP_tanh: /* c tanh(s / c): what follows is in the scale */
        if (s->softcap > 0 || !(*post > 0 && isfinite(*post)))
            return NULL;
        s->softcap = *post;
        return op->arg[0];
    default:
        return NULL;
    }
}

/* From the softmax's operand to the product of queries and keys. */
static bool
walk_scores(scores *s, ir_value *v)
{
    double post = 1;
    while (v && v->def && v->def->code != IR_OP_matmul && v->nuse == 1)
        v = step_back(s, v, &post);
    if (!v || !v->def || v->def->code != IR_OP_matmul || v->nuse != 1)
        return false;
    s->product = v->def;
    s->factor = post;
    return true;
}

/* ---- queries, keys, values ---- */

/* v [..,S,d], or [..,d,S] if swapped, as heads of a matrix; sets o. The matrix is the value
 * furthest back that explains v, so that slices of a fused product are offsets in it. */
static bool
find_operand(ir_value *v, bool swapped, int64_t heads, operand *o)
{
    const ir_type *t = v->type;
    int64_t d = t->dim[t->rank - (swapped ? 2 : 1)];
    for (int back = view_depth(v); back >= 0; back--) {
        view w;
        if (!view_of(v, back, &w) || w.rank < 3)
            continue;
        if (swapped)
            view_swap_last(&w);
        *o = (operand){.base = w.base, .factor = w.factor};
        if (view_heads(&w, heads, d, false, &o->h))
            return true;
    }
    return false;
}

/* Product of the leading dimensions. */
static int64_t
leading(const ir_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank - 2; i++)
        n *= t->dim[i];
    return n;
}

/* All three operands, of equal shape, and the number of heads. */
static bool
find_operands(const scores *s, const ir_op *out, operand o[3], int64_t *heads)
{
    const ir_op *qk = s->product;
    const ir_type *t = qk->arg[0]->type;
    if (t->rank < 3 || ir_attr_int(out, IR_ATTR_ta, 0))
        return false;
    int64_t lead = leading(t);
    int64_t batch = ir_meta_int(s->r->m, "batch", t->dim[0]);
    if (s->type)
        batch = s->type->dim[0];
    if (batch <= 0 || lead % batch)
        return false;
    *heads = lead / batch;
    if (!find_operand(qk->arg[0], ir_attr_int(qk, IR_ATTR_ta, 0), *heads, &o[0]) ||
        !find_operand(qk->arg[1], !ir_attr_int(qk, IR_ATTR_tb, 0), *heads, &o[1]) ||
        !find_operand(out->arg[1], ir_attr_int(out, IR_ATTR_tb, 0), *heads, &o[2]))
        return false;
    const ir_type *q = o[0].base->type, *k = o[1].base->type, *v = o[2].base->type;
    return o[0].h.heads == *heads && o[1].h.heads == o[2].h.heads &&
           q->dim[0] == k->dim[0] && q->dim[1] == k->dim[1] && k->dim[0] == v->dim[0] &&
           k->dim[1] == v->dim[1] && q->dtype == k->dtype && k->dtype == v->dtype;
}

/* ---- the op ---- */

/* The mask over keys as attention takes it, [B,S]; NULL: there is none. */
static ir_value *
emit_key(const scores *s, ir_op *root)
{
    ir_value *v = s->computed;
    if (!v)
        return s->key;
    const ir_type *t = v->type;
    ef_ctx *ctx = s->r->m->ctx;
    int64_t dim[] = {t->dim[0], t->dim[3]};
    v = canon_reshape(root, v, ir_type_get(ctx, IR_BOOL, 2, dim));
    if (s->inverted)
        v = canon_emit(root, IR_OP_not, v, NULL, NULL);
    return canon_emit(root, IR_OP_cast, v, NULL, ir_type_get(ctx, IR_I64, 2, dim));
}

static int
attrs_of(const scores *s, const operand o[3], ir_attr *attr)
{
    static const ir_attr_key offset[] = {IR_ATTR_qo, IR_ATTR_ko, IR_ATTR_vo};
    static const ir_attr_key stride[] = {IR_ATTR_qs, IR_ATTR_ks, IR_ATTR_vs};
    int n = 0;
    attr[n++] = ir_attr_i(IR_ATTR_heads, o[0].h.heads);
    attr[n++] = ir_attr_i(IR_ATTR_kv_heads, o[1].h.heads);
    attr[n++] = ir_attr_i(IR_ATTR_head_dim, o[0].h.d);
    attr[n++] = ir_attr_f(IR_ATTR_scale, s->factor * o[0].factor * o[1].factor);
    if (s->causal)
        attr[n++] = ir_attr_i(IR_ATTR_causal, 1);
    if (s->window)
        attr[n++] = ir_attr_i(IR_ATTR_window, s->window);
    if (s->softcap > 0)
        attr[n++] = ir_attr_f(IR_ATTR_softcap, s->softcap);
    for (int i = 0; i < 3; i++) {
        if (o[i].h.offset)
            attr[n++] = ir_attr_i(offset[i], o[i].h.offset);
        if (o[i].h.stride != o[i].h.d)
            attr[n++] = ir_attr_i(stride[i], o[i].h.stride);
    }
    for (int i = 0; s->dropout && i < s->dropout->nattr; i++)
        attr[n++] = s->dropout->attr[i];
    return n;
}

/* Keys of the queries, under dropout; NULL: they are of another shape. */
static ir_value *
keys_of(const scores *s, const operand o[3])
{
    const ir_type *q = o[0].base->type;
    return ir_drop_keys(s->r->m, q->dim[0], q->dim[1]);
}

static ir_value *
emit(const scores *s, ir_op *root, const operand o[3])
{
    const ir_type *out = root->res[0]->type;
    int64_t d = o[0].h.d, heads = o[0].h.heads;
    ir_value *arg[6] = {view_flat(root, o[0].base), view_flat(root, o[1].base),
                        view_flat(root, o[2].base), emit_key(s, root)};
    rec_turn_together(root, arg, (head_view[]){o[0].h, o[1].h, o[2].h});
    ir_attr attr[15];
    int n = attrs_of(s, o, attr), narg = arg[3] ? 4 : 3;
    ir_builder b = ir_at(root);
    if (s->dropout) {
        arg[narg++] = keys_of(s, o);
        arg[narg++] = s->dropout->arg[2];
    }
    ir_value *y =
        ir_insert(&b, IR_OP_attention, NULL, narg, arg, n, attr, NULL, -1)->res[0];
    const ir_type *ty = y->type; /* [B,S,heads*d], to [B,heads,S,d] */
    int64_t dim[] = {ty->dim[0], ty->dim[1], heads, d}, perm[] = {0, 2, 1, 3};
    ir_attr swap = ir_attr_l(IR_ATTR_perm, 4, perm);
    y = canon_reshape(root, y, ir_type_get(b.m->ctx, ty->dtype, 4, dim));
    y = canon_emit(root, IR_OP_transpose, y, &swap, NULL);
    return canon_reshape(root, y, out);
}

/* softmax(mask(factor * q k^T)) v           ->  %y, %lse = attention %q, %k, %v, %mask */
ir_value *
rec_attention(recogniser *r, const pass_match *m)
{
    ir_op *root = m->op[0];
    ir_value *v = pass_bound(m, "v");
    scores s = {.r = r};
    if (root->arg[1] != v)
        return NULL;
    for (int i = 0; i < m->nop; i++)
        s.dropout = m->op[i]->code == IR_OP_dropout ? m->op[i] : s.dropout;
    if (!walk_scores(&s, pass_bound(m, "s"))) {
        if (!s.said)
            refuse(&s, root,
                   "its scores are not queries times keys, scaled and masked, or "
                   "they are used elsewhere");
        return NULL;
    }
    operand o[3];
    int64_t heads;
    if (!find_operands(&s, root, o, &heads)) {
        refuse(&s, root,
               "its queries, keys and values are not heads of [batch, tokens, *]");
        return NULL;
    }
    if (s.dropout && !keys_of(&s, o)) {
        refuse(&s, root, "its queries are not those of all tokens, and it has dropout");
        return NULL;
    }
    if (o[2].factor != 1 || o[1].h.d != o[0].h.d || o[2].h.d != o[0].h.d) {
        refuse(&s, root, "its values have another width than its queries");
        return NULL;
    }
    return emit(&s, root, o);
}
