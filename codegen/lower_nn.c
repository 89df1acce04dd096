/* lower_nn.c -- emitters of embeddings, norms and reductions: each is one kernel of the
 * runtime.
 */
#include "cg_int.h"

void
lw_embed(cg *c, const ir_op *op)
{
    cg_call(c, "rt_embed", "%s, %s, %s, %s, %s, %s", cg_float_res(c, op, 0),
            cg_dtype(op->res[0]), cg_float_arg(c, op, 0), cg_dtype(op->arg[0]),
            cg_arg(c, op, 1, IR_I64), cg_sizes(c, op->res[0]));
}

void
lw_embed_grad(cg *c, const ir_op *op)
{
    int64_t rows = cg_rows(op->arg[0]), h = cg_last(op->arg[0]);
    int64_t v = op->res[0]->type->dim[0];
    const char *ws = cg_scratch(c, c->need->embed_grad(rows, h, v, c->threads));
    cg_call(c, "rt_embed_grad", "%s, %s, %s, %s, %s, %lld, %s, %s",
            cg_res(c, op, 0, IR_F32), cg_float_arg(c, op, 0), cg_dtype(op->arg[0]),
            cg_arg(c, op, 1, IR_I64), cg_sizes(c, op->arg[0]), (long long)v,
            cg_adds(op, 0) ? "true" : "false", ws);
}

/* ---- rows ---- */

/* Description of a norm of x with result y, or of its gradient with dy in place of y. */
static const char *
norm(cg *c, const ir_op *op, const ir_value *x, const ir_value *y)
{
    return ef_printf(c->arena, "&(rt_norm){%s, %s, %s, %s}", cg_sizes(c, x),
                     cg_dtype(x), cg_dtype(y),
                     cg_float(c->arena, ir_attr_num(op, IR_ATTR_eps, 0)));
}

void
lw_layernorm(cg *c, const ir_op *op)
{
    cg_call(c, "rt_layernorm", "%s, %s, %s, %s, %s, %s, %s", cg_float_res(c, op, 0),
            cg_res(c, op, 1, IR_F32), cg_res(c, op, 2, IR_F32), cg_float_arg(c, op, 0),
            cg_arg(c, op, 1, IR_F32), cg_arg(c, op, 2, IR_F32),
            norm(c, op, op->arg[0], op->res[0]));
}

void
lw_layernorm_dx(cg *c, const ir_op *op)
{
    cg_call(c, "rt_layernorm_dx", "%s, %s, %s, %s, %s, %s, %s", cg_float_res(c, op, 0),
            cg_float_arg(c, op, 0), cg_float_arg(c, op, 1), cg_arg(c, op, 2, IR_F32),
            cg_arg(c, op, 3, IR_F32), cg_arg(c, op, 4, IR_F32),
            norm(c, op, op->arg[1], op->arg[0]));
}

void
lw_layernorm_dwb(cg *c, const ir_op *op)
{
    int64_t rows = cg_rows(op->arg[0]), cols = cg_last(op->arg[0]);
    const char *ws = cg_scratch(c, c->need->layernorm_dwb(rows, cols, c->threads));
    cg_call(c, "rt_layernorm_dwb", "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
            cg_res(c, op, 0, IR_F32), cg_res(c, op, 1, IR_F32), cg_float_arg(c, op, 0),
            cg_float_arg(c, op, 1), cg_arg(c, op, 2, IR_F32), cg_arg(c, op, 3, IR_F32),
            norm(c, op, op->arg[1], op->arg[0]), cg_adds(op, 0) ? "true" : "false",
            cg_adds(op, 1) ? "true" : "false", ws);
}

void
lw_rmsnorm(cg *c, const ir_op *op)
{
    cg_call(c, "rt_rmsnorm", "%s, %s, %s, %s, %s", cg_float_res(c, op, 0),
            cg_res(c, op, 1, IR_F32), cg_float_arg(c, op, 0), cg_arg(c, op, 1, IR_F32),
            norm(c, op, op->arg[0], op->res[0]));
}

void
lw_rmsnorm_dx(cg *c, const ir_op *op)
{
    cg_call(c, "rt_rmsnorm_dx", "%s, %s, %s, %s, %s, %s", cg_float_res(c, op, 0),
            cg_float_arg(c, op, 0), cg_float_arg(c, op, 1), cg_arg(c, op, 2, IR_F32),
            cg_arg(c, op, 3, IR_F32), norm(c, op, op->arg[1], op->arg[0]));
}

void
lw_rmsnorm_dw(cg *c, const ir_op *op)
{
    int64_t rows = cg_rows(op->arg[0]), cols = cg_last(op->arg[0]);
    const char *ws = cg_scratch(c, c->need->rmsnorm_dw(rows, cols, c->threads));
    cg_call(c, "rt_rmsnorm_dw", "%s, %s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_float_arg(c, op, 0), cg_float_arg(c, op, 1), cg_arg(c, op, 2, IR_F32),
            norm(c, op, op->arg[1], op->arg[0]), cg_adds(op, 0) ? "true" : "false", ws);
}

void
lw_norm_grad(cg *c, const ir_op *op)
{
    int centred = op->code == IR_OP_layernorm_grad, stats = 1 + centred;
    int64_t rows = cg_rows(op->arg[1]), cols = cg_last(op->arg[1]);
    bool wgrad = ir_attr_int(op, IR_ATTR_wgrad, 0), low = ir_attr_get(op, IR_ATTR_to);
    int at = wgrad ? 1 + stats : 1; /* of the copy in a low type */
    const char *dw = wgrad ? cg_res(c, op, 1, IR_F32) : "NULL";
    const char *db = wgrad && centred ? cg_res(c, op, 2, IR_F32) : "NULL";
    const char *ws = "NULL";
    if (wgrad)
        ws = cg_scratch(c, centred ? c->need->layernorm_dwb(rows, cols, c->threads)
                                   : c->need->rmsnorm_dw(rows, cols, c->threads));
    const char *of =
        ef_printf(c->arena, "&(rt_norm_grad_of){{%s, %s, %s, 0}, %s, %s, %s}",
                  cg_sizes(c, op->arg[1]), cg_dtype(op->arg[1]), cg_dtype(op->arg[0]),
                  low ? cg_dtype(op->res[at]) : "RT_F32",
                  wgrad && cg_adds(op, 1) ? "true" : "false",
                  wgrad && centred && cg_adds(op, 2) ? "true" : "false");
    cg_call(c, "rt_norm_grad", "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
            cg_float_res(c, op, 0), low ? cg_float_res(c, op, at) : "NULL", dw, db,
            cg_float_arg(c, op, 0), cg_float_arg(c, op, 1), cg_arg(c, op, 2, IR_F32),
            centred ? cg_arg(c, op, 3, IR_F32) : "NULL",
            cg_arg(c, op, 2 + stats, IR_F32),
            op->narg > 3 + stats ? cg_float_arg(c, op, 3 + stats) : "NULL", of, ws);
}

void
lw_softmax(cg *c, const ir_op *op)
{
    cg_call(c, "rt_softmax", "%s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32), cg_sizes(c, op->arg[0]));
}

void
lw_softmax_grad(cg *c, const ir_op *op)
{
    cg_call(c, "rt_softmax_grad", "%s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32), cg_arg(c, op, 1, IR_F32),
            cg_sizes(c, op->arg[0]));
}

void
lw_cumsum(cg *c, const ir_op *op)
{
    const ir_type *x = op->arg[0]->type;
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    cg_call(c, "rt_cumsum", "%s, %s, %s, %s, %s", cg_res(c, op, 0, IR_I64),
            cg_arg(c, op, 0, IR_I64), cg_times(c, x, 0, axis, 1),
            cg_times(c, x, axis, axis + 1, 1), cg_times(c, x, axis + 1, x->rank, 1));
}

/* ---- reductions ---- */

typedef struct stage { /* one reduction of [outer, n, inner] over n: dims [from,to) */
    int from, to;
    int64_t outer, n, inner;
} stage;

/* Splits a reduction into stages over neighbouring dimensions, the last ones first. Returns
 * their number. */
static int
reduce_stages(const ir_op *op, stage *out)
{
    const ir_type *x = op->arg[0]->type;
    const ir_attr *axes = ir_attr_get(op, IR_ATTR_axes);
    bool gone[IR_MAX_RANK] = {0};
    int n = 0;
    for (int i = 0; i < axes->n; i++)
        gone[axes->u.l[i]] = true;
    int64_t inner = 1;
    for (int to = x->rank, from; to > 0; to = from) {
        from = to - 1;
        while (from > 0 && gone[from - 1] == gone[to - 1])
            from--;
        int64_t size = cg_product(x, from, to);
        if (gone[to - 1])
            out[n++] = (stage){from, to, cg_product(x, 0, from), size, inner};
        else
            inner *= size;
    }
    return n;
}

/* Sum over leading dimensions: a bias's gradient. */
static void
column_sum(cg *c, const ir_op *op, const stage *s)
{
    const ir_value *x = op->arg[0];
    const char *ws = cg_scratch(c, c->need->colsum(s->n, s->inner, c->threads));
    cg_call(c, "rt_colsum", "%s, %s, %s, %s, %lld, %lld, %s, %s",
            cg_res(c, op, 0, IR_F32), cg_float_arg(c, op, 0), cg_dtype(x),
            cg_times(c, x->type, s->from, s->to, 1), (long long)s->inner,
            (long long)s->inner, cg_adds(op, 0) ? "true" : "false", ws);
}

/* "outer, n, inner" */
static const char *
stage_sizes(cg *c, const ir_op *op, const stage *s)
{
    const ir_type *x = op->arg[0]->type;
    return ef_printf(c->arena, "%s, %s, %lld", cg_times(c, x, 0, s->from, 1),
                     cg_times(c, x, s->from, s->to, 1), (long long)s->inner);
}

void
lw_reduce(cg *c, const ir_op *op)
{
    stage s[IR_MAX_RANK];
    int n = reduce_stages(op, s);
    if (n == 1 && s[0].outer == 1 && op->code == IR_OP_reduce_sum) {
        column_sum(c, op, &s[0]);
        return;
    }
    const char *x = cg_arg(c, op, 0, IR_F32), *y = cg_res(c, op, 0, IR_F32);
    if (cg_varies(op->arg[0]->type) && !s[n - 1].from && op->code != IR_OP_reduce_sum)
        cg_refuse(c, "of a named dimension there is only the sum: how many of its rows "
                     "count is not known");
    int64_t between = 0, at = 0; /* floats of the results between stages */
    double over = 1;
    for (int i = 0; i < n; i++) {
        over *= (double)s[i].n;
        between += i + 1 < n ? s[i].outer * s[i].inner : 0;
    }
    const char *ws = between ? cg_scratch(c, between * (int64_t)sizeof(float)) : NULL;
    for (int i = 0; i < n; i++) {
        bool last = i + 1 == n;
        double by = last && op->code == IR_OP_reduce_mean ? 1 / over : 1;
        const char *to =
            last ? y : cg_plus(c, ef_printf(c->arena, "(float *)%s", ws), at);
        const char *size = stage_sizes(c, op, &s[i]);
        if (op->code == IR_OP_reduce_max)
            cg_call(c, "rt_reduce_max", "%s, %s, %s", to, x, size);
        else
            cg_call(c, "rt_reduce_sum", "%s, %s, %s, %s", to, x, size,
                    cg_float(c->arena, by));
        x = to;
        at += s[i].outer * s[i].inner;
    }
}
