/* shape_nn.c -- shape rules of products, norms, losses and the update. What a rule may rely on
 * stands in shape.c.
 */
#include <inttypes.h>
#include <string.h>

#include "shape_int.h"

const char *
ir_need_rows(ef_ctx *ctx, const ir_op *op, int i)
{
    const ir_type *t = arg(op, i);
    if (!ir_dtypes[t->dtype].is_float || t->rank < 1 || t->sym[t->rank - 1])
        return ir_bad(ctx, op, i,
                      "floats, at least one dimension, the last of fixed size");
    return NULL;
}

ir_dtype
ir_dtype_to(const ir_op *op, ir_dtype d)
{
    const ir_attr *to = ir_attr_get(op, IR_ATTR_to);
    for (int k = 0; to && k <= IR_NDTYPES; k++) {
        d = (ir_dtype)k;
        if (k == IR_NDTYPES ||
            (ir_dtypes[k].is_float && !strcmp(ir_dtypes[k].name, to->u.s)))
            break;
    }
    return d;
}

/* t as the type of result 0 under attribute `to`; NULL: filled in. */
static const char *
put_result(ef_ctx *ctx, const ir_op *op, const ir_type *t, const ir_type **out)
{
    ir_dtype d = ir_dtype_to(op, t->dtype);
    if (d == IR_NDTYPES)
        return ef_internf(ctx, "to is '%s', expected a float type",
                          ir_attr_get(op, IR_ATTR_to)->u.s);
    *out = ir_type_with(ctx, t, d);
    return NULL;
}

/* Operand i has the dims of t and is a float type: any gradient of it. */
static const char *
need_floats_like(ef_ctx *ctx, const ir_op *op, int i, const ir_type *t)
{
    if (!ir_dtypes[arg(op, i)->dtype].is_float)
        return ir_bad(ctx, op, i, "floats");
    return ir_need_type(ctx, op, i, ir_type_with(ctx, t, arg(op, i)->dtype));
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

const char *
ir_need_type(ef_ctx *ctx, const ir_op *op, int i, const ir_type *want)
{
    return arg(op, i) == want ? NULL
                              : ir_bad(ctx, op, i, "%s", ir_type_text(ctx, want));
}

const char *
ir_need_beside(ef_ctx *ctx, const ir_op *op, int i, const ir_type *t, int64_t n)
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

const char *
ir_need_matrix(ef_ctx *ctx, const ir_op *op, int i, const ir_type *t)
{
    const ir_type *w = arg(op, i);
    if (w->rank != 2 || w->dtype != t->dtype || w->sym[0] || w->sym[1])
        return ir_bad(ctx, op, i, "a %s matrix", ir_dtypes[t->dtype].name);
    return NULL;
}

const char *
ir_need_share(ef_ctx *ctx, const ir_op *op)
{
    double p = ir_attr_num(op, IR_ATTR_p, 0);
    int64_t site = ir_attr_int(op, IR_ATTR_site, 0);
    if (p >= 0 && p < 1 && site >= 0 && site <= UINT32_MAX)
        return NULL;
    return ef_internf(ctx,
                      "p is %s and site %" PRId64
                      ", expected 0 <= p < 1 and a number of 32 bits",
                      ef_ftoa(p), site);
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
    return put_result(ctx, op, ir_type_intern(ctx, &r), out);
}

/* Operand w is [in,out], or [out,in] under tb, with x = operand 0 [..,in]; *n = out. */
static const char *
check_weight(ef_ctx *ctx, const ir_op *op, int w, int64_t *n)
{
    const ir_type *x = arg(op, w - 1), *t = arg(op, w);
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    const char *why = ir_need_rows(ctx, op, w - 1);
    if (!why)
        why = ir_need_matrix(ctx, op, w, x);
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
        why = need_dims(ctx, op, 2, ir_wide(x->dtype), 1, &n);
    return why ? why
               : put_result(ctx, op, ir_type_part(ctx, x, 0, x->rank - 1, n), out);
}

const char *
sh_linear_add(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *c = arg(op, 0), *x = arg(op, 1);
    int64_t n = 0;
    const char *why = check_weight(ctx, op, 2, &n);
    if (!why && op->narg > 3)
        why = need_dims(ctx, op, 3, ir_wide(x->dtype), 1, &n);
    if (!why)
        why = need_floats_like(ctx, op, 0, ir_type_part(ctx, x, 0, x->rank - 1, n));
    out[0] = c;
    return why;
}

const char *
sh_linear_dw(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0);
    const char *why = ir_need_rows(ctx, op, 0);
    if (!why)
        why = ir_need_beside(ctx, op, 1, x, -1);
    if (why)
        return why;
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    int64_t in = last(x), n = last(arg(op, 1));
    out[0] = ir_type_get(ctx, ir_wide(x->dtype), 2,
                         tb ? (int64_t[]){n, in} : (int64_t[]){in, n});
    return NULL;
}

/* y, and h like it */
const char *
sh_linear_gelu(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = sh_linear(ctx, op, out);
    if (!why && op->nres > 1)
        out[1] = out[0];
    return why;
}

const char *
sh_linear_dgelu(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0);
    int64_t n = 0;
    const char *why = check_weight(ctx, op, 1, &n);
    if (why)
        return why;
    out[0] = ir_type_part(ctx, x, 0, x->rank - 1, n);
    return ir_need_type(ctx, op, 2, out[0]);
}

const char *
sh_linear_dwb(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = sh_linear_dw(ctx, op, out);
    if (why)
        return why;
    int64_t n = last(arg(op, 1));
    out[1] = ir_type_get(ctx, out[0]->dtype, 1, &n);
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
    return put_result(ctx, op, ir_type_intern(ctx, &r), out);
}

const char *
sh_embed_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *dy = arg(op, 0), *ids = arg(op, 1), *given = op->res[0]->type;
    out[0] = given;
    const char *why = ir_need_rows(ctx, op, 0);
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
    const char *why = ir_need_rows(ctx, op, 0);
    return why ? why : sh_same(ctx, op, out);
}

const char *
sh_dropout(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0);
    const char *why = ir_need_rows(ctx, op, 0);
    if (!why)
        why = ir_need_share(ctx, op);
    if (!why)
        why = ir_need_type(
            ctx, op, 1,
            ir_type_with(ctx, ir_type_part(ctx, x, 0, x->rank - 1, -1), IR_I64));
    if (!why)
        why = ir_need_type(ctx, op, 2, ir_type_get(ctx, IR_I64, 0, NULL));
    out[0] = x;
    return why;
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
    const char *why = ir_need_rows(ctx, op, 0);
    for (int i = 1; !why && i < 3; i++)
        why = need_dims(ctx, op, i, IR_F32, 1, &x->dim[x->rank - 1]);
    if (why)
        return why;
    out[1] = out[2] = row_stats(ctx, x);
    return put_result(ctx, op, x, out);
}

const char *
sh_layernorm_dx(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1);
    const char *why = ir_need_rows(ctx, op, 1);
    if (!why)
        why = need_floats_like(ctx, op, 0, x);
    if (!why)
        why = need_dims(ctx, op, 2, IR_F32, 1, &x->dim[x->rank - 1]);
    for (int i = 3; !why && i < 5; i++)
        why = ir_need_type(ctx, op, i, row_stats(ctx, x));
    out[0] = x;
    return why;
}

const char *
sh_layernorm_dwb(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1);
    const char *why = ir_need_rows(ctx, op, 1);
    if (!why)
        why = need_floats_like(ctx, op, 0, x);
    for (int i = 2; !why && i < 4; i++)
        why = ir_need_type(ctx, op, i, row_stats(ctx, x));
    if (!why)
        out[0] = out[1] = ir_type_get(ctx, IR_F32, 1, &x->dim[x->rank - 1]);
    return why;
}

const char *
sh_norm_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1), *w = arg(op, 2);
    int centred = op->code == IR_OP_layernorm_grad, stats = 3 + centred + 1, n = 1;
    const char *why = ir_need_rows(ctx, op, 1);
    if (!why)
        why = need_floats_like(ctx, op, 0, x);
    if (!why)
        why = need_dims(ctx, op, 2, IR_F32, 1, &x->dim[x->rank - 1]);
    for (int i = 3; !why && i < stats; i++)
        why = ir_need_type(ctx, op, i, row_stats(ctx, x));
    if (!why && op->narg > stats)
        why = ir_need_type(ctx, op, stats, x);
    if (why)
        return why;
    out[0] = x;
    for (int i = 0; ir_attr_int(op, IR_ATTR_wgrad, 0) && i < 1 + centred; i++)
        out[n++] = w;
    if (ir_attr_get(op, IR_ATTR_to))
        why = put_result(ctx, op, x, &out[n++]);
    return why || n == op->nres
               ? why
               : ef_internf(ctx, "%d results, expected %d", op->nres, n);
}

const char *
sh_rmsnorm(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 0);
    const char *why = ir_need_rows(ctx, op, 0);
    if (!why)
        why = need_dims(ctx, op, 1, IR_F32, 1, &x->dim[x->rank - 1]);
    if (why)
        return why;
    out[1] = row_stats(ctx, x);
    return put_result(ctx, op, x, out);
}

const char *
sh_rmsnorm_dx(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1);
    const char *why = ir_need_rows(ctx, op, 1);
    if (!why)
        why = need_floats_like(ctx, op, 0, x);
    if (!why)
        why = need_dims(ctx, op, 2, IR_F32, 1, &x->dim[x->rank - 1]);
    if (!why)
        why = ir_need_type(ctx, op, 3, row_stats(ctx, x));
    out[0] = x;
    return why;
}

const char *
sh_rmsnorm_dw(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *x = arg(op, 1);
    const char *why = ir_need_rows(ctx, op, 1);
    if (!why)
        why = need_floats_like(ctx, op, 0, x);
    if (!why)
        why = ir_need_type(ctx, op, 2, row_stats(ctx, x));
    if (!why)
        out[0] = ir_type_get(ctx, IR_F32, 1, &x->dim[x->rank - 1]);
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
    const char *why = ir_need_type(ctx, op, at, ir_type_with(ctx, rows, IR_I64));
    return why ? why : ir_need_type(ctx, op, at + 1, scalar(ctx, IR_F32));
}

const char *
sh_ce(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = ir_need_rows(ctx, op, 0);
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
    const char *why = ir_need_rows(ctx, op, 0);
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
    const char *why = ir_need_rows(ctx, op, 0);
    if (!why)
        why = ir_need_type(ctx, op, 1, ir_type_with(ctx, arg(op, 0), IR_F32));
    return why ? why : ir_need_type(ctx, op, 2, scalar(ctx, IR_F32));
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
        why = need_dims(ctx, op, 4, ir_wide(x->dtype), 1, &n);
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
        out[2] = ir_type_with(ctx, arg(op, 1), ir_wide(arg(op, 1)->dtype));
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
    return ir_need_type(ctx, op, 1, ir_type_with(ctx, buffer, arg(op, 1)->dtype));
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
        why =
            ir_need_type(ctx, op, i, ir_type_with(ctx, arg(op, 0), arg(op, i)->dtype));
    if (!why && op->narg > 5)
        why = need_floats_like(ctx, op, 5, arg(op, 0));
    return why ? why : ir_need_type(ctx, op, 4, scalar(ctx, IR_F32));
}

static const char *
need_scaler(ef_ctx *ctx, const ir_op *op, int i)
{
    return ir_need_type(ctx, op, i, ir_type_get(ctx, IR_F32, 1, (int64_t[]){4}));
}

const char *
sh_rescale(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    (void)out;
    const char *why = need_scaler(ctx, op, 0);
    return why ? why : ir_need_type(ctx, op, 1, scalar(ctx, IR_F32));
}

/* norm2, and the loss scaler where there is one. */
const char *
sh_clip_scale(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = op->narg > 1 ? need_scaler(ctx, op, 1) : NULL;
    out[0] = arg(op, 0);
    return why;
}
