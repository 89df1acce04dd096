/* shape_nn.c -- shape rules of products, norms, attention, losses and the update.
 * What a rule may rely on stands in shape.c.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ir_int.h"

static const ir_type *
arg(const ir_op *op, int i)
{
    return op->arg[i]->type;
}

static int64_t
last(const ir_type *t)
{
    return t->dim[t->rank - 1];
}

/* t is [.., n] with a last dimension of known size; NULL or what is wrong. */
static const char *
need_rows(ef_ctx *ctx, const ir_op *op, int i)
{
    const ir_type *t = arg(op, i);
    if (!ir_dtypes[t->dtype].is_float || t->rank < 1 || t->sym[t->rank - 1])
        return ir_bad(ctx, op, i,
                      "floats, at least one dimension, the last of fixed size");
    return NULL;
}

/* Operand i must have dtype and exactly the dims given. */
static const char *
need_dims(ef_ctx *ctx, const ir_op *op, int i, ir_dtype dtype, int rank,
          const int64_t *dim)
{
    const ir_type *want = ir_type_get(ctx, dtype, rank, dim);
    return arg(op, i) == want ? NULL
                              : ir_bad(ctx, op, i, "%s", ir_type_text(ctx, want));
}

static const char *
need_type(ef_ctx *ctx, const ir_op *op, int i, const ir_type *want)
{
    return arg(op, i) == want ? NULL
                              : ir_bad(ctx, op, i, "%s", ir_type_text(ctx, want));
}

/* Operand i must be [leading dims of t, n] of t's dtype; n < 0: any n. */
static const char *
need_beside(ef_ctx *ctx, const ir_op *op, int i, const ir_type *t, int64_t n)
{
    const ir_type *x = arg(op, i);
    bool ok = x->dtype == t->dtype && x->rank == t->rank && !x->sym[x->rank - 1] &&
              ir_same_dims(x, 0, t, 0, t->rank - 1) && (n < 0 || last(x) == n);
    if (ok)
        return NULL;
    if (n < 0)
        return ir_bad(ctx, op, i, "%s but for the last dimension",
                      ir_type_text(ctx, t));
    return ir_bad(ctx, op, i, "%s",
                  ir_type_text(ctx, ir_type_part(ctx, t, 0, t->rank - 1, n)));
}

/* Operand i must be a matrix of the dtype of t. */
static const char *
need_matrix(ef_ctx *ctx, const ir_op *op, int i, const ir_type *t)
{
    const ir_type *w = arg(op, i);
    if (w->rank != 2 || w->dtype != t->dtype || w->sym[0] || w->sym[1])
        return ir_bad(ctx, op, i, "a %s matrix", ir_dtypes[t->dtype].name);
    return NULL;
}

/* ---- products ---- */

const char *
sh_matmul(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *a = arg(op, 0), *b = arg(op, 1);
    bool ta = ir_attr_int(op, IR_ATTR_ta, 0), tb = ir_attr_int(op, IR_ATTR_tb, 0);
    for (int i = 0; i < 2; i++)
        if (arg(op, i)->rank < 2 || arg(op, i)->dtype != a->dtype)
            return ir_bad(ctx, op, i, "at least two dimensions of %s",
                          ir_dtypes[a->dtype].name);
    int ka = a->rank - (ta ? 2 : 1), kb = b->rank - (tb ? 1 : 2);
    int m = a->rank - (ta ? 1 : 2), n = b->rank - (tb ? 2 : 1);
    if (a->dim[ka] != b->dim[kb] || a->sym[ka] != b->sym[kb])
        return ir_bad(ctx, op, 1, "%" PRId64 " in dimension %d to match %s", a->dim[ka],
                      kb, ir_type_text(ctx, a));
    ir_type r;
    const ir_type *batch =
        ir_type_broadcast(ctx, ir_type_part(ctx, a, 0, a->rank - 2, -1),
                          ir_type_part(ctx, b, 0, b->rank - 2, -1));
    if (!batch)
        return ir_bad(ctx, op, 1, "leading dimensions that broadcast with %s",
                      ir_type_text(ctx, a));
    r = *batch;
    r.dim[r.rank] = a->dim[m];
    r.sym[r.rank++] = a->sym[m];
    r.dim[r.rank] = b->dim[n];
    r.sym[r.rank++] = b->sym[n];
    out[0] = ir_type_intern(ctx, &r);
    return NULL;
}

/* Operand w is [in,out], or [out,in] under tb, with x = operand 0 [..,in]; *n = out. */
static const char *
check_weight(ef_ctx *ctx, const ir_op *op, int w, int64_t *n)
{
    const ir_type *x = arg(op, 0), *t = arg(op, w);
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = need_matrix(ctx, op, w, x);
    if (why)
        return why;
    if (t->dim[tb ? 1 : 0] != last(x))
        return ir_bad(ctx, op, w, "%" PRId64 " in dimension %d to match %s", last(x),
                      tb ? 1 : 0, ir_type_text(ctx, x));
    *n = t->dim[tb ? 0 : 1];
    return NULL;
}

const char *
sh_linear(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0);
    int64_t n = 0;
    const char *why = check_weight(ctx, op, 1, &n);
    if (!why && op->narg > 2)
        why = need_dims(ctx, op, 2, x->dtype, 1, &n);
    if (!why)
        out[0] = ir_type_part(ctx, x, 0, x->rank - 1, n);
    return why;
}

const char *
sh_linear_dw(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0);
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = need_beside(ctx, op, 1, x, -1);
    if (why)
        return why;
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    int64_t in = last(x), n = last(arg(op, 1));
    out[0] =
        ir_type_get(ctx, x->dtype, 2, tb ? (int64_t[]){n, in} : (int64_t[]){in, n});
    return NULL;
}

static const char *
need_ids(ef_ctx *ctx, const ir_op *op, int i)
{
    ir_dtype d = arg(op, i)->dtype;
    return d == IR_I64 || d == IR_I32 ? NULL : ir_bad(ctx, op, i, "integer ids");
}

const char *
sh_embed(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *table = arg(op, 0), *ids = arg(op, 1);
    if (table->rank != 2 || !ir_dtypes[table->dtype].is_float || table->sym[1])
        return ir_bad(ctx, op, 0, "a matrix of floats");
    const char *why = need_ids(ctx, op, 1);
    if (why)
        return why;
    if (ids->rank == IR_MAX_RANK)
        return ir_bad(ctx, op, 1, "fewer than %d dimensions", IR_MAX_RANK);
    ir_type r = *ids;
    r.dtype = table->dtype;
    r.dim[r.rank] = table->dim[1];
    r.sym[r.rank++] = IR_FIXED;
    out[0] = ir_type_intern(ctx, &r);
    return NULL;
}

const char *
sh_embed_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *dy = arg(op, 0), *ids = arg(op, 1), *given = op->res[0]->type;
    out[0] = given;
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = need_ids(ctx, op, 1);
    if (why)
        return why;
    if (dy->rank != ids->rank + 1 || !ir_same_dims(dy, 0, ids, 0, ids->rank))
        return ir_bad(ctx, op, 0, "the dimensions of %s and one more",
                      ir_type_text(ctx, ids));
    if (given->rank != 2 || given->dim[1] != last(dy) || given->sym[0] ||
        given->sym[1] || !ir_dtypes[given->dtype].is_float)
        return ef_internf(ctx, "result is %s, expected a table with rows of %" PRId64,
                          ir_type_text(ctx, given), last(dy));
    return NULL;
}

/* ---- softmax and layernorm ---- */

const char *
sh_softmax(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = need_rows(ctx, op, 0);
    return why ? why : sh_same(ctx, op, out);
}

static const ir_type *
row_stats(ef_ctx *ctx, const ir_type *x)
{
    return ir_type_with(ctx, ir_type_part(ctx, x, 0, x->rank - 1, -1), IR_F32);
}

const char *
sh_layernorm(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0);
    const char *why = need_rows(ctx, op, 0);
    for (int i = 1; !why && i < 3; i++)
        why = need_dims(ctx, op, i, x->dtype, 1, &x->dim[x->rank - 1]);
    if (why)
        return why;
    out[0] = x;
    out[1] = out[2] = row_stats(ctx, x);
    return NULL;
}

const char *
sh_layernorm_dx(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1);
    const char *why = need_rows(ctx, op, 1);
    if (!why)
        why = need_type(ctx, op, 0, x);
    if (!why)
        why = need_dims(ctx, op, 2, x->dtype, 1, &x->dim[x->rank - 1]);
    for (int i = 3; !why && i < 5; i++)
        why = need_type(ctx, op, i, row_stats(ctx, x));
    out[0] = x;
    return why;
}

const char *
sh_layernorm_dwb(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1);
    const char *why = need_rows(ctx, op, 1);
    if (!why)
        why = need_type(ctx, op, 0, x);
    for (int i = 2; !why && i < 4; i++)
        why = need_type(ctx, op, i, row_stats(ctx, x));
    if (!why)
        out[0] = out[1] = ir_type_get(ctx, x->dtype, 1, &x->dim[x->rank - 1]);
    return why;
}

const char *
sh_rmsnorm(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0);
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = need_dims(ctx, op, 1, x->dtype, 1, &x->dim[x->rank - 1]);
    if (why)
        return why;
    out[0] = x;
    out[1] = row_stats(ctx, x);
    return NULL;
}

const char *
sh_rmsnorm_dx(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1);
    const char *why = need_rows(ctx, op, 1);
    if (!why)
        why = need_type(ctx, op, 0, x);
    if (!why)
        why = need_dims(ctx, op, 2, x->dtype, 1, &x->dim[x->rank - 1]);
    if (!why)
        why = need_type(ctx, op, 3, row_stats(ctx, x));
    out[0] = x;
    return why;
}

const char *
sh_rmsnorm_dw(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1);
    const char *why = need_rows(ctx, op, 1);
    if (!why)
        why = need_type(ctx, op, 0, x);
    if (!why)
        why = need_type(ctx, op, 2, row_stats(ctx, x));
    if (!why)
        out[0] = ir_type_get(ctx, x->dtype, 1, &x->dim[x->rank - 1]);
    return why;
}

/* ---- attention ---- */

typedef struct heads {
    int64_t n, kv, dim;
} heads;

/* Do `n` blocks of `width` columns, `stride` apart (0: width) from `first` on, lie within the
 * last dimension of t, none over another? */
static bool
has_columns(const ir_type *t, int64_t first, int64_t n, int64_t width, int64_t stride)
{
    int64_t c = last(t);
    stride = stride ? stride : width;
    return first >= 0 && first <= c && stride >= width && width >= 0 && n > 0 &&
           width <= c - first && (n - 1) <= (c - first - width) / (stride + !stride);
}

static const char *
check_heads(ef_ctx *ctx, const ir_op *op, heads *h)
{
    h->n = ir_attr_int(op, IR_ATTR_heads, 0);
    h->kv = ir_attr_int(op, IR_ATTR_kv_heads, 0);
    h->dim = ir_attr_int(op, IR_ATTR_head_dim, 0);
    if (h->n < 1 || h->kv < 1 || h->n % h->kv)
        return ef_internf(ctx,
                          "heads is %" PRId64 " and kv_heads %" PRId64
                          ", expected kv_heads to divide heads",
                          h->n, h->kv);
    if (h->dim < 1 || h->n > IR_MAX_COUNT || h->dim > IR_MAX_COUNT / h->n)
        return ef_internf(ctx, "head_dim is %" PRId64 ", expected columns of a head",
                          h->dim);
    int64_t window = ir_attr_int(op, IR_ATTR_window, 0);
    double cap = ir_attr_num(op, IR_ATTR_softcap, 0);
    if (window < 0 || !(cap >= 0) || isinf(cap))
        return ef_internf(ctx,
                          "window is %" PRId64 " and softcap %s, expected none below 0",
                          window, ef_ftoa(cap));
    return NULL;
}

/* Operands at, at+1, at+2 are q, k, v [B,S,*] and hold the columns that the heads cover. */
static const char *
check_qkv(ef_ctx *ctx, const ir_op *op, int at, const heads *h)
{
    static const ir_attr_key offset[3] = {IR_ATTR_qo, IR_ATTR_ko, IR_ATTR_vo};
    static const ir_attr_key step[3] = {IR_ATTR_qs, IR_ATTR_ks, IR_ATTR_vs};
    const ir_type *q = arg(op, at);
    if (q->rank != 3)
        return ir_bad(ctx, op, at, "three dimensions, [B,S,columns]");
    for (int i = 0; i < 3; i++) {
        const ir_type *t = arg(op, at + i);
        const char *why = need_rows(ctx, op, at + i);
        if (!why)
            why = need_beside(ctx, op, at + i, q, -1);
        if (why)
            return why;
        int64_t first = ir_attr_int(op, offset[i], 0), n = i ? h->kv : h->n;
        int64_t stride = ir_attr_int(op, step[i], 0);
        if (!has_columns(t, first, n, h->dim, stride))
            return ir_bad(ctx, op, at + i,
                          "%" PRId64 " heads of %" PRId64 " columns, %" PRId64
                          " apart from %" PRId64 " on",
                          n, h->dim, stride ? stride : h->dim, first);
    }
    return NULL;
}

/* Log-sum-exp of the rows of q [B,S,*]: [B,heads,S]. */
static const ir_type *
lse_type(ef_ctx *ctx, const ir_type *q, int64_t n)
{
    ir_type t = {.dtype = IR_F32, .rank = 3};
    t.dim[0] = q->dim[0], t.sym[0] = q->sym[0];
    t.dim[1] = n;
    t.dim[2] = q->dim[1], t.sym[2] = q->sym[1];
    return ir_type_intern(ctx, &t);
}

static const char *
need_mask(ef_ctx *ctx, const ir_op *op, int i, const ir_type *q)
{
    const ir_type *want = ir_type_with(ctx, ir_type_part(ctx, q, 0, 2, -1), IR_I64);
    return need_type(ctx, op, i, want);
}

const char *
sh_attention(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *q = arg(op, 0);
    heads h;
    const char *why = check_heads(ctx, op, &h);
    if (!why)
        why = check_qkv(ctx, op, 0, &h);
    if (!why && op->narg > 3)
        why = need_mask(ctx, op, 3, q);
    if (why)
        return why;
    out[0] = ir_type_part(ctx, q, 0, 2, h.n * h.dim);
    out[1] = lse_type(ctx, q, h.n);
    return NULL;
}

const char *
sh_attention_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *q = arg(op, 1);
    heads h;
    const char *why = check_heads(ctx, op, &h);
    if (!why)
        why = check_qkv(ctx, op, 1, &h);
    if (why)
        return why;
    const ir_type *y = ir_type_part(ctx, q, 0, 2, h.n * h.dim);
    why = need_type(ctx, op, 0, y);
    if (!why)
        why = need_type(ctx, op, 4, y);
    if (!why)
        why = need_type(ctx, op, 5, lse_type(ctx, q, h.n));
    if (!why && op->narg > 6)
        why = need_mask(ctx, op, 6, q);
    bool one = op->arg[1] == op->arg[2] && op->arg[2] == op->arg[3];
    if (!why && op->nres != (one ? 1 : 3))
        return ef_internf(ctx, "%d results, expected %s", op->nres,
                          one ? "1, since q, k and v are one value" : "dq, dk and dv");
    for (int i = 0; !why && i < op->nres; i++)
        out[i] = arg(op, 1 + i);
    return why;
}

/* ---- rotary positions ---- */

const char *
sh_rotary(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0), *c = arg(op, 1);
    const char *why = need_rows(ctx, op, 0);
    if (why)
        return why;
    if (x->rank != 3)
        return ir_bad(ctx, op, 0, "three dimensions, [B,S,columns]");
    bool table = c->rank == 3 && c->dtype == x->dtype && !c->sym[2] &&
                 (c->dim[0] == 1 || ir_same_dims(c, 0, x, 0, 1)) &&
                 ir_same_dims(c, 1, x, 1, 1) && last(c) % 2 == 0;
    if (!table)
        return ir_bad(ctx, op, 1, "a table [B or 1,S,r] for %s, r even",
                      ir_type_text(ctx, x));
    why = need_type(ctx, op, 2, c);
    if (why)
        return why;
    int64_t n = ir_attr_int(op, IR_ATTR_heads, 0);
    int64_t first = ir_attr_int(op, IR_ATTR_start, 0);
    int64_t stride = ir_attr_int(op, IR_ATTR_stride, 0);
    if (!has_columns(x, first, n, last(c), stride))
        return ir_bad(ctx, op, 0,
                      "%" PRId64 " heads of %" PRId64 " columns, %" PRId64
                      " apart from %" PRId64 " on",
                      n, last(c), stride ? stride : last(c), first);
    out[0] = x;
    return NULL;
}

/* ---- adapters ---- */

/* Does operand 0 have n columns from attribute `start` on, or `block` of them at a time? */
static const char *
check_columns(ef_ctx *ctx, const ir_op *op, int64_t n)
{
    int64_t start = ir_attr_int(op, IR_ATTR_start, 0);
    int64_t block = ir_attr_int(op, IR_ATTR_block, 0);
    int64_t stride = ir_attr_int(op, IR_ATTR_stride, 0);
    if (!block && !stride)
        return n >= 0 && has_columns(arg(op, 0), start, 1, n, n)
                   ? NULL
                   : ir_bad(ctx, op, 0, "%" PRId64 " columns from %" PRId64 " on", n,
                            start);
    if (block > 0 && n > 0 && n % block == 0 &&
        has_columns(arg(op, 0), start, n / block, block, stride))
        return NULL;
    return ir_bad(ctx, op, 0,
                  "%" PRId64 " columns in blocks of %" PRId64 ", %" PRId64
                  " apart from %" PRId64 " on",
                  n, block, stride, start);
}

const char *
sh_lora_add(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *y = arg(op, 0), *b = arg(op, 2);
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = need_matrix(ctx, op, 2, y);
    if (!why)
        why = need_beside(ctx, op, 1, y, b->dim[1]);
    if (!why)
        why = check_columns(ctx, op, b->dim[0]);
    out[0] = y;
    return why;
}

const char *
sh_lora_dt(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *dy = arg(op, 0), *b = arg(op, 1);
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = need_matrix(ctx, op, 1, dy);
    if (!why)
        why = check_columns(ctx, op, b->dim[0]);
    if (!why)
        out[0] = ir_type_part(ctx, dy, 0, dy->rank - 1, b->dim[1]);
    return why;
}

const char *
sh_lora_db(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *dy = arg(op, 0);
    int64_t len = ir_attr_int(op, IR_ATTR_len, 0);
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = need_beside(ctx, op, 1, dy, -1);
    if (!why)
        why = check_columns(ctx, op, len);
    if (!why)
        out[0] = ir_type_get(ctx, dy->dtype, 2, (int64_t[]){len, last(arg(op, 1))});
    return why;
}

/* ---- losses ---- */

static const ir_type *
scalar(ef_ctx *ctx, ir_dtype d)
{
    return ir_type_get(ctx, d, 0, NULL);
}

/* Operand `at` are targets of the rows of t, operand at+1 is the scale. */
static const char *
check_targets(ef_ctx *ctx, const ir_op *op, int at, const ir_type *t)
{
    const ir_type *rows = ir_type_part(ctx, t, 0, t->rank - 1, -1);
    const char *why = need_type(ctx, op, at, ir_type_with(ctx, rows, IR_I64));
    return why ? why : need_type(ctx, op, at + 1, scalar(ctx, IR_F32));
}

const char *
sh_ce(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = check_targets(ctx, op, 1, arg(op, 0));
    out[0] = scalar(ctx, IR_F32);
    out[1] = scalar(ctx, IR_I64);
    out[2] = arg(op, 0);
    out[3] = ir_type_with(ctx, arg(op, 1), IR_F32);
    return why;
}

const char *
sh_ce_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = check_targets(ctx, op, 1, arg(op, 0));
    out[0] = scalar(ctx, IR_F32);
    out[1] = arg(op, 0);
    return why;
}

/* Operands of mse and mse_grad: y, values, scale. */
static const char *
check_values(ef_ctx *ctx, const ir_op *op)
{
    const char *why = need_rows(ctx, op, 0);
    if (!why)
        why = need_type(ctx, op, 1, ir_type_with(ctx, arg(op, 0), IR_F32));
    return why ? why : need_type(ctx, op, 2, scalar(ctx, IR_F32));
}

const char *
sh_mse(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = check_values(ctx, op);
    if (why)
        return why;
    const ir_type *y = arg(op, 0);
    out[0] = scalar(ctx, IR_F32);
    out[1] = ir_type_with(ctx, ir_type_part(ctx, y, 0, y->rank - 1, -1), IR_F32);
    return NULL;
}

const char *
sh_mse_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    out[0] = scalar(ctx, IR_F32);
    out[1] = arg(op, 0);
    return check_values(ctx, op);
}

/* Operands of head_ce and head_ce_grad: x, w, targets, scale, bias or none. */
static const char *
check_head(ef_ctx *ctx, const ir_op *op)
{
    const ir_type *x = arg(op, 0);
    int64_t n = 0, chunk = ir_attr_int(op, IR_ATTR_chunk, 0);
    const char *why = check_weight(ctx, op, 1, &n);
    if (!why)
        why = check_targets(ctx, op, 2, x);
    if (!why && op->narg > 4)
        why = need_dims(ctx, op, 4, x->dtype, 1, &n);
    if (!why && chunk < 0)
        why =
            ef_internf(ctx, "chunk is %" PRId64 ", expected rows, or 0 for all", chunk);
    return why;
}

const char *
sh_head_ce(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = check_head(ctx, op);
    if (why)
        return why;
    out[0] = scalar(ctx, IR_F32);
    out[1] = scalar(ctx, IR_I64);
    out[2] = arg(op, 2);
    out[3] = ir_type_with(ctx, arg(op, 2), IR_F32);
    return NULL;
}

const char *
sh_head_ce_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = check_head(ctx, op);
    if (why)
        return why;
    bool wgrad = ir_attr_int(op, IR_ATTR_wgrad, 0);
    bool bgrad = ir_attr_int(op, IR_ATTR_bgrad, 0);
    if (bgrad && op->narg < 5)
        return "bgrad is set, expected a bias as operand 4";
    if (op->nres != 2 + wgrad + bgrad)
        return ef_internf(ctx, "%d results, expected %d: loss, dx%s%s", op->nres,
                          2 + wgrad + bgrad, wgrad ? ", dw" : "",
                          bgrad ? ", dbias" : "");
    out[0] = scalar(ctx, IR_F32);
    out[1] = arg(op, 0);
    if (wgrad)
        out[2] = arg(op, 1);
    if (bgrad)
        out[2 + wgrad] = arg(op, 4);
    return NULL;
}

/* ---- gradients and the update ---- */

const char *
sh_accum(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    (void)out;
    const ir_type *buffer = arg(op, 0);
    if (!ir_dtypes[buffer->dtype].is_float)
        return ir_bad(ctx, op, 0, "a buffer of floats");
    return need_type(ctx, op, 1, ir_type_with(ctx, buffer, arg(op, 1)->dtype));
}

const char *
sh_norm2(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    for (int i = 0; i < op->narg; i++)
        if (!ir_dtypes[arg(op, i)->dtype].is_float)
            return ir_bad(ctx, op, i, "floats");
    out[0] = scalar(ctx, IR_F32);
    return NULL;
}

const char *
sh_optim(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    (void)out;
    if (!ir_dtypes[arg(op, 0)->dtype].is_float)
        return ir_bad(ctx, op, 0, "floats");
    const char *why = NULL;
    for (int i = 1; !why && i < 4; i++)
        why = need_type(ctx, op, i, ir_type_with(ctx, arg(op, 0), arg(op, i)->dtype));
    return why ? why : need_type(ctx, op, 4, scalar(ctx, IR_F32));
}
