/* shape_attn.c -- shape rules of attention, rotary positions and adapters: ops that work on
 * ranges of columns. What a rule may rely on stands in shape.c.
 */
#include <inttypes.h>
#include <math.h>

#include "shape_int.h"

/* ---- attention ---- */

enum { MANY_BLOCKS = 1 << 20 }; /* more are never compared one by one */

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
check_qkv(ef_ctx *ctx, const ir_op *op, int at, heads *h)
{
    const char *wrong = check_heads(ctx, op, h);
    if (wrong)
        return wrong;
    static const ir_attr_key offset[3] = {IR_ATTR_qo, IR_ATTR_ko, IR_ATTR_vo};
    static const ir_attr_key step[3] = {IR_ATTR_qs, IR_ATTR_ks, IR_ATTR_vs};
    const ir_type *q = arg(op, at);
    if (q->rank != 3 && q->rank != 2)
        return ir_bad(ctx, op, at, "[B,S,columns], or [rows,columns]");
    for (int i = 0; i < 3; i++) {
        const ir_type *t = arg(op, at + i);
        const char *why = ir_need_rows(ctx, op, at + i);
        if (!why)
            why = ir_need_beside(ctx, op, at + i, q, -1);
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

bool
ir_columns_meet(const ir_columns *a, const ir_columns *b)
{
    int64_t i = 0, k = 0;
    if (a->n > MANY_BLOCKS || b->n > MANY_BLOCKS)
        return true;
    while (i < a->n && k < b->n) {
        int64_t x = a->first + i * a->stride, y = b->first + k * b->stride;
        if (x < y + b->width && y < x + a->width)
            return true;
        i += x < y;
        k += x >= y;
    }
    return false;
}

bool
ir_attention_packed(const ir_op *op, int at)
{
    static const ir_attr_key offset[3] = {IR_ATTR_qo, IR_ATTR_ko, IR_ATTR_vo};
    static const ir_attr_key step[3] = {IR_ATTR_qs, IR_ATTR_ks, IR_ATTR_vs};
    if (op->arg[at] != op->arg[at + 1] || op->arg[at] != op->arg[at + 2])
        return false;
    ir_columns c[3];
    for (int i = 0; i < 3; i++) {
        c[i].first = ir_attr_int(op, offset[i], 0);
        c[i].n = ir_attr_int(op, i ? IR_ATTR_kv_heads : IR_ATTR_heads, 0);
        c[i].width = ir_attr_int(op, IR_ATTR_head_dim, 0);
        c[i].stride = ir_attr_int(op, step[i], 0);
        c[i].stride = c[i].stride ? c[i].stride : c[i].width;
    }
    return !ir_columns_meet(&c[0], &c[1]) && !ir_columns_meet(&c[1], &c[2]) &&
           !ir_columns_meet(&c[0], &c[2]);
}

/* Log-sum-exp of the rows of q [B,S,*]: [B,heads,S]; of [rows,*]: [rows,heads]. */
static const ir_type *
lse_type(ef_ctx *ctx, const ir_type *q, int64_t n)
{
    if (q->rank == 2)
        return ir_type_with(ctx, ir_type_part(ctx, q, 0, 1, n), IR_F32);
    ir_type t = {.dtype = IR_F32, .rank = 3};
    t.dim[0] = q->dim[0], t.sym[0] = q->sym[0];
    t.dim[1] = n;
    t.dim[2] = q->dim[1], t.sym[2] = q->sym[1];
    return ir_type_intern(ctx, &t);
}

static const char *
need_mask(ef_ctx *ctx, const ir_op *op, int i, const ir_type *q)
{
    const ir_type *want =
        ir_type_with(ctx, ir_type_part(ctx, q, 0, q->rank - 1, -1), IR_I64);
    return ir_need_type(ctx, op, i, want);
}

/* The key mask, operand i, if there are so many, and what stands behind it where q is [rows,*]:
 * first rows of the samples, positions. n: operands but for those of dropout. */
static const char *
need_context(ef_ctx *ctx, const ir_op *op, int i, int n, const ir_type *q)
{
    if (q->rank == 3 && n > i + 1)
        return "a mask is all that may follow v where q is [B,S,columns]";
    if (q->rank == 3)
        return n > i ? need_mask(ctx, op, i, q) : NULL;
    if (n != i + 3)
        return "where q is [rows,columns] a mask, first rows of samples and positions "
               "follow v";
    const char *why = need_mask(ctx, op, i, q);
    const ir_type *first = arg(op, i + 1);
    if (!why && (first->rank != 1 || first->dtype != IR_I64 || first->sym[0] ||
                 first->dim[0] < 1))
        why = ir_bad(ctx, op, i + 1,
                     "i64[N+1], the first row of each sample and the end");
    return why ? why : need_mask(ctx, op, i + 2, q);
}

/* Operands but for keys and key, which stand last under p. */
static int
plain_args(const ir_op *op)
{
    return op->narg - (ir_attr_get(op, IR_ATTR_p) ? 2 : 0);
}

/* Those two, of queries q. */
static const char *
need_keys(ef_ctx *ctx, const ir_op *op, const ir_type *q)
{
    int at = plain_args(op);
    if (at == op->narg)
        return NULL;
    const ir_type *rows = ir_type_part(ctx, q, 0, q->rank - 1, -1);
    const char *why = ir_need_share(ctx, op);
    if (!why)
        why = ir_need_type(ctx, op, at, ir_type_with(ctx, rows, IR_I64));
    return why ? why : ir_need_type(ctx, op, at + 1, ir_type_get(ctx, IR_I64, 0, NULL));
}

const char *
sh_attention(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *q = arg(op, 0);
    heads h;
    if (plain_args(op) < 3)
        return "it lacks keys and key, operands for p";
    const char *why = check_qkv(ctx, op, 0, &h);
    if (!why)
        why = need_context(ctx, op, 3, plain_args(op), q);
    if (!why)
        why = need_keys(ctx, op, q);
    if (why)
        return why;
    out[0] = ir_type_part(ctx, q, 0, q->rank - 1, h.n * h.dim);
    out[1] = lse_type(ctx, q, h.n);
    return NULL;
}

const char *
sh_attention_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *q = arg(op, 1);
    heads h;
    if (plain_args(op) < 6)
        return "it lacks keys and key, operands for p";
    const char *why = check_qkv(ctx, op, 1, &h);
    if (why)
        return why;
    const ir_type *y = ir_type_part(ctx, q, 0, q->rank - 1, h.n * h.dim);
    why = ir_need_type(ctx, op, 0, y);
    if (!why)
        why = ir_need_type(ctx, op, 4, y);
    if (!why)
        why = ir_need_type(ctx, op, 5, lse_type(ctx, q, h.n));
    if (!why)
        why = need_context(ctx, op, 6, plain_args(op), q);
    if (!why)
        why = need_keys(ctx, op, q);
    /* three are always right: values that were different may have become one */
    bool packed = !why && ir_attention_packed(op, 1);
    if (!why && op->nres != 3 && !(packed && op->nres == 1))
        return ef_internf(ctx, "%d results, expected dq, dk and dv%s", op->nres,
                          packed ? ", or the gradient of the value that they are" : "");
    for (int i = 0; !why && i < op->nres; i++)
        out[i] = arg(op, 1 + i);
    return why;
}

/* ---- rotary positions ---- */

/* Operand i: x of which `heads` heads are turned by the tables, operands t and t + 1. */
static const char *
check_turn(ef_ctx *ctx, const ir_op *op, int i, int t, ir_attr_key key)
{
    const ir_type *x = arg(op, i), *c = arg(op, t);
    const char *why = ir_need_rows(ctx, op, i);
    if (why)
        return why;
    if (x->rank != 3 && x->rank != 2)
        return ir_bad(ctx, op, i, "[B,S,columns], or [rows,columns]");
    bool rows = x->rank == 2 && c->rank == 2 && c->dtype == IR_F32 && !c->sym[1] &&
                ir_same_dims(c, 0, x, 0, 1) && last(c) % 2 == 0;
    bool table =
        rows || (x->rank == 3 && c->rank == 3 && c->dtype == IR_F32 && !c->sym[2] &&
                 (c->dim[0] == 1 || ir_same_dims(c, 0, x, 0, 1)) &&
                 ir_same_dims(c, 1, x, 1, 1) && last(c) % 2 == 0);
    if (!table)
        return ir_bad(ctx, op, t, "a table [B or 1,S,r], or [rows,r], for %s, r even",
                      ir_type_text(ctx, x));
    why = ir_need_type(ctx, op, t + 1, c);
    if (why)
        return why;
    int64_t n = ir_attr_int(op, key, 0);
    int64_t first = ir_attr_int(op, IR_ATTR_start, 0);
    int64_t stride = ir_attr_int(op, IR_ATTR_stride, 0);
    if (!has_columns(x, first, n, last(c), stride))
        return ir_bad(ctx, op, i,
                      "%" PRId64 " heads of %" PRId64 " columns, %" PRId64
                      " apart from %" PRId64 " on",
                      n, last(c), stride ? stride : last(c), first);
    return NULL;
}

const char *
sh_rotary(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    out[0] = arg(op, 0);
    return check_turn(ctx, op, 0, 1, IR_ATTR_heads);
}

const char *
sh_rotary2(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = check_turn(ctx, op, 0, 2, IR_ATTR_heads);
    if (!why)
        why = check_turn(ctx, op, 1, 2, IR_ATTR_kv_heads);
    if (!why && arg(op, 0)->dtype != arg(op, 1)->dtype)
        why = ir_bad(ctx, op, 1, "%s as operand 0 has",
                     ir_dtypes[arg(op, 0)->dtype].name);
    out[0] = arg(op, 0);
    out[1] = arg(op, 1);
    return why;
}

/* ---- adapters ---- */

ir_columns
ir_adapted_columns(const ir_op *op, int64_t len)
{
    int64_t start = ir_attr_int(op, IR_ATTR_start, 0);
    int64_t block = ir_attr_int(op, IR_ATTR_block, 0);
    int64_t stride = ir_attr_int(op, IR_ATTR_stride, 0);
    if (!block || !stride || stride == block) /* they touch */
        return (ir_columns){start, 1, len, len};
    return (ir_columns){start, len / block, block, stride};
}

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
    const char *why = ir_need_rows(ctx, op, 0);
    if (!why)
        why = ir_need_matrix(ctx, op, 2, y);
    if (!why)
        why = ir_need_beside(ctx, op, 1, y, b->dim[1]);
    if (!why)
        why = check_columns(ctx, op, b->dim[0]);
    out[0] = y;
    return why;
}

const char *
sh_lora_dt(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *dy = arg(op, 0), *b = arg(op, 1);
    const char *why = ir_need_rows(ctx, op, 0);
    if (!why)
        why = ir_need_matrix(ctx, op, 1, dy);
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
    const char *why = ir_need_rows(ctx, op, 0);
    if (!why)
        why = ir_need_beside(ctx, op, 1, dy, -1);
    if (!why)
        why = check_columns(ctx, op, len);
    if (!why)
        out[0] =
            ir_type_get(ctx, ir_wide(dy->dtype), 2, (int64_t[]){len, last(arg(op, 1))});
    return why;
}
