/* lower_nn.c -- emitters of embeddings, norms, attention, reductions and losses: each is one
 * kernel of the runtime.
 */
#include "cg_int.h"

/* Rows and columns of v as text: "32, 64". */
static const char *
sizes(cg *c, const ir_value *v)
{
    return cg_ints(c->arena, 2, (int64_t[]){cg_rows(v), cg_last(v)});
}

void
lw_embed(cg *c, const ir_op *op)
{
    cg_call(c, "rt_embed", "%s, RT_F32, %s, RT_F32, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32), cg_arg(c, op, 1, IR_I64), sizes(c, op->res[0]));
}

void
lw_embed_grad(cg *c, const ir_op *op)
{
    int64_t rows = cg_rows(op->arg[0]), h = cg_last(op->arg[0]);
    int64_t v = op->res[0]->type->dim[0];
    const char *ws = cg_scratch(c, rt_embed_grad_scratch(rows, h, v, c->threads));
    cg_call(c, "rt_embed_grad", "%s, %s, RT_F32, %s, %lld, %lld, %lld, %s, %s",
            cg_res(c, op, 0, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_I64), (long long)rows, (long long)h, (long long)v,
            cg_adds(op, 0) ? "true" : "false", ws);
}

/* ---- rows ---- */

/* Description of a norm of x with result y. */
static const char *
norm(cg *c, const ir_op *op, const ir_value *x, const ir_value *y)
{
    (void)y;
    return ef_printf(c->arena, "&(rt_norm){%s, RT_F32, RT_F32, %s}", sizes(c, x),
                     cg_float(c->arena, ir_attr_num(op, IR_ATTR_eps, 0)));
}

void
lw_layernorm(cg *c, const ir_op *op)
{
    cg_call(c, "rt_layernorm", "%s, %s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_F32), cg_res(c, op, 2, IR_F32),
            cg_arg(c, op, 0, IR_F32), cg_arg(c, op, 1, IR_F32),
            cg_arg(c, op, 2, IR_F32), norm(c, op, op->arg[0], op->res[0]));
}

void
lw_layernorm_dx(cg *c, const ir_op *op)
{
    cg_call(c, "rt_layernorm_dx", "%s, %s, %s, %s, %s, %s, %s",
            cg_res(c, op, 0, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_F32), cg_arg(c, op, 2, IR_F32),
            cg_arg(c, op, 3, IR_F32), cg_arg(c, op, 4, IR_F32),
            norm(c, op, op->arg[1], op->arg[0]));
}

void
lw_layernorm_dwb(cg *c, const ir_op *op)
{
    int64_t rows = cg_rows(op->arg[0]), cols = cg_last(op->arg[0]);
    const char *ws = cg_scratch(c, rt_layernorm_dwb_scratch(rows, cols, c->threads));
    cg_call(c, "rt_layernorm_dwb", "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
            cg_res(c, op, 0, IR_F32), cg_res(c, op, 1, IR_F32),
            cg_arg(c, op, 0, IR_F32), cg_arg(c, op, 1, IR_F32),
            cg_arg(c, op, 2, IR_F32), cg_arg(c, op, 3, IR_F32),
            norm(c, op, op->arg[1], op->arg[0]), cg_adds(op, 0) ? "true" : "false",
            cg_adds(op, 1) ? "true" : "false", ws);
}

void
lw_rmsnorm(cg *c, const ir_op *op)
{
    cg_call(c, "rt_rmsnorm", "%s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_F32), norm(c, op, op->arg[0], op->res[0]));
}

void
lw_rmsnorm_dx(cg *c, const ir_op *op)
{
    cg_call(c, "rt_rmsnorm_dx", "%s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32), cg_arg(c, op, 1, IR_F32),
            cg_arg(c, op, 2, IR_F32), cg_arg(c, op, 3, IR_F32),
            norm(c, op, op->arg[1], op->arg[0]));
}

void
lw_rmsnorm_dw(cg *c, const ir_op *op)
{
    int64_t rows = cg_rows(op->arg[0]), cols = cg_last(op->arg[0]);
    const char *ws = cg_scratch(c, rt_rmsnorm_dw_scratch(rows, cols, c->threads));
    cg_call(c, "rt_rmsnorm_dw", "%s, %s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32), cg_arg(c, op, 1, IR_F32),
            cg_arg(c, op, 2, IR_F32), norm(c, op, op->arg[1], op->arg[0]),
            cg_adds(op, 0) ? "true" : "false", ws);
}

void
lw_softmax(cg *c, const ir_op *op)
{
    cg_call(c, "rt_softmax", "%s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32), sizes(c, op->arg[0]));
}

void
lw_softmax_grad(cg *c, const ir_op *op)
{
    cg_call(c, "rt_softmax_grad", "%s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32), cg_arg(c, op, 1, IR_F32), sizes(c, op->arg[0]));
}

void
lw_cumsum(cg *c, const ir_op *op)
{
    const ir_type *x = op->arg[0]->type;
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    cg_call(c, "rt_cumsum", "%s, %s, %lld, %lld, %lld", cg_res(c, op, 0, IR_I64),
            cg_arg(c, op, 0, IR_I64), (long long)cg_product(x, 0, axis),
            (long long)x->dim[axis], (long long)cg_product(x, axis + 1, x->rank));
}

/* ---- reductions ---- */

typedef struct stage { /* one reduction of [outer, n, inner] over n */
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
            out[n++] = (stage){cg_product(x, 0, from), size, inner};
        else
            inner *= size;
    }
    return n;
}

/* Sum over leading dimensions: a bias's gradient. */
static void
column_sum(cg *c, const ir_op *op, const stage *s)
{
    const char *ws = cg_scratch(c, rt_colsum_scratch(s->n, s->inner, c->threads));
    cg_call(c, "rt_colsum", "%s, %s, RT_F32, %lld, %lld, %lld, %s, %s",
            cg_res(c, op, 0, IR_F32), cg_arg(c, op, 0, IR_F32), (long long)s->n,
            (long long)s->inner, (long long)s->inner, cg_adds(op, 0) ? "true" : "false",
            ws);
}

void
lw_reduce(cg *c, const ir_op *op)
{
    stage s[IR_MAX_RANK];
    int n = reduce_stages(op, s);
    const char *x = cg_arg(c, op, 0, IR_F32), *y = cg_res(c, op, 0, IR_F32);
    if (n == 1 && s[0].outer == 1 && op->code == IR_OP_reduce_sum) {
        column_sum(c, op, &s[0]);
        return;
    }
    int64_t between = 0, at = 0; /* floats of the results between stages */
    double over = 1;
    for (int i = 0; i < n; i++) {
        over *= (double)s[i].n;
        between += i + 1 < n ? s[i].outer * s[i].inner : 0;
    }
    const char *ws = cg_scratch(c, between * (int64_t)sizeof(float));
    for (int i = 0; i < n; i++) {
        bool last = i + 1 == n;
        double by = last && op->code == IR_OP_reduce_mean ? 1 / over : 1;
        const char *to =
            last ? y : cg_plus(c, ef_printf(c->arena, "(float *)%s", ws), at);
        const char *size =
            cg_ints(c->arena, 3, (int64_t[]){s[i].outer, s[i].n, s[i].inner});
        if (op->code == IR_OP_reduce_max)
            cg_call(c, "rt_reduce_max", "%s, %s, %s", to, x, size);
        else
            cg_call(c, "rt_reduce_sum", "%s, %s, %s, %s", to, x, size,
                    cg_float(c->arena, by));
        x = to;
        at += s[i].outer * s[i].inner;
    }
}

/* ---- attention ---- */

/* Columns from one head to the next. */
static int64_t
step_of(const ir_op *op, ir_attr_key key)
{
    int64_t step = ir_attr_int(op, key, 0);
    return step ? step : ir_attr_int(op, IR_ATTR_head_dim, 0);
}

static rt_attn
attn_of(const ir_op *op, int q)
{
    const ir_type *t = op->arg[q]->type;
    return (rt_attn){.batch = t->dim[0],
                     .seq = t->dim[1],
                     .heads = ir_attr_int(op, IR_ATTR_heads, 0),
                     .kv_heads = ir_attr_int(op, IR_ATTR_kv_heads, 0),
                     .d = ir_attr_int(op, IR_ATTR_head_dim, 0),
                     .ldq = cg_last(op->arg[q]),
                     .ldk = cg_last(op->arg[q + 1]),
                     .ldv = cg_last(op->arg[q + 2]),
                     .qo = ir_attr_int(op, IR_ATTR_qo, 0),
                     .ko = ir_attr_int(op, IR_ATTR_ko, 0),
                     .vo = ir_attr_int(op, IR_ATTR_vo, 0),
                     .qs = step_of(op, IR_ATTR_qs),
                     .ks = step_of(op, IR_ATTR_ks),
                     .vs = step_of(op, IR_ATTR_vs),
                     .window = ir_attr_int(op, IR_ATTR_window, 0),
                     .softcap = (float)ir_attr_num(op, IR_ATTR_softcap, 0),
                     .scale = (float)ir_attr_num(op, IR_ATTR_scale, 1),
                     .p = (float)ir_attr_num(op, IR_ATTR_p, 0),
                     .site = ir_attr_int(op, IR_ATTR_site, 0),
                     .causal = ir_attr_int(op, IR_ATTR_causal, 0) != 0};
}

static const char *
attn_name(cg *c, const rt_attn *a)
{
    return cg_constant(
        c, &c->attn,
        ef_printf(
            c->arena,
            "{.batch = %lld, .seq = %lld, .heads = %lld, .kv_heads = %lld, .d = %lld, "
            ".ldq = %lld, .ldk = %lld, .ldv = %lld, .qo = %lld, .ko = %lld, "
            ".vo = %lld, .qs = %lld, .ks = %lld, .vs = %lld, .window = %lld, "
            ".scale = %s, .softcap = %s, .causal = %s%s}",
            (long long)a->batch, (long long)a->seq, (long long)a->heads,
            (long long)a->kv_heads, (long long)a->d, (long long)a->ldq,
            (long long)a->ldk, (long long)a->ldv, (long long)a->qo, (long long)a->ko,
            (long long)a->vo, (long long)a->qs, (long long)a->ks, (long long)a->vs,
            (long long)a->window, cg_float(c->arena, a->scale),
            cg_float(c->arena, a->softcap), a->causal ? "true" : "false",
            a->p > 0 ? ef_printf(c->arena, ", .p = %s, .site = %lld",
                                 cg_float(c->arena, a->p), (long long)a->site)
                     : ""));
}

/* What else it works on: the mask, operand `mask` if there is one; under p the last two. */
static const char *
attn_at(cg *c, const ir_op *op, int mask)
{
    bool drops = ir_attr_get(op, IR_ATTR_p);
    int narg = op->narg - (drops ? 2 : 0);
    ef_buf b = {.arena = c->arena};
    ef_putf(&b, "&(rt_attn_at){.mask = %s",
            narg > mask ? cg_arg(c, op, mask, IR_I64) : "NULL");
    if (drops)
        ef_putf(&b, ", .keys = %s, .key = %s", cg_arg(c, op, narg, IR_I64),
                cg_arg(c, op, narg + 1, IR_I64));
    ef_puts(&b, "}");
    return b.s;
}

void
lw_attention(cg *c, const ir_op *op)
{
    rt_attn a = attn_of(op, 0);
    const char *ws = cg_scratch(c, rt_attention_scratch(&a, c->threads));
    const char *y = cg_res(c, op, 0, IR_F32), *lse = cg_res(c, op, 1, IR_F32);
    const char *q = cg_arg(c, op, 0, IR_F32), *k = cg_arg(c, op, 1, IR_F32);
    const char *v = cg_arg(c, op, 2, IR_F32), *at = attn_at(c, op, 3);
    if (!c->dry && !c->why)
        cg_call(c, "rt_attention", "%s, %s, %s, %s, %s, %s, &%s, %s", y, lse, q, k, v,
                at, attn_name(c, &a), ws);
}

/* Zeroes result i where the heads' columns do not cover it. */
static void
clear_gaps(cg *c, const ir_op *op, int i, int64_t covered)
{
    if (covered < cg_last(op->res[i]))
        cg_call(c, "rt_zero", "%s, %lld", cg_res(c, op, i, IR_F32),
                (long long)ir_type_bytes(op->res[i]->type));
}

void
lw_attention_grad(cg *c, const ir_op *op)
{
    rt_attn a = attn_of(op, 1);
    int64_t nq = a.heads * a.d, nkv = a.kv_heads * a.d;
    bool packed = op->nres == 1;
    const char *ws = cg_scratch(c, rt_attention_grad_scratch(&a, c->threads));
    const char *d[3], *x[6];
    for (int i = 0; i < 3 && !c->why; i++)
        d[i] = cg_res(c, op, packed ? 0 : i, IR_F32);
    for (int i = 0; i < 6; i++)
        x[i] = cg_arg(c, op, i, IR_F32);
    const char *at = attn_at(c, op, 6);
    if (c->dry || c->why)
        return;
    for (int i = 0; i < op->nres; i++)
        clear_gaps(c, op, i, packed ? nq + 2 * nkv : i == 0 ? nq : nkv);
    cg_call(c, "rt_attention_grad", "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, &%s, %s",
            d[0], d[1], d[2], x[0], x[1], x[2], x[3], x[4], x[5], at, attn_name(c, &a),
            ws);
}

void
lw_rotary(cg *c, const ir_op *op)
{
    const ir_type *x = op->arg[0]->type, *t = op->arg[1]->type;
    int64_t r = cg_last(op->arg[1]), stride = ir_attr_int(op, IR_ATTR_stride, 0);
    const char *y = cg_res(c, op, 0, IR_F32), *from = cg_arg(c, op, 0, IR_F32);
    const char *cos = cg_arg(c, op, 1, IR_F32), *sin = cg_arg(c, op, 2, IR_F32);
    cg_call(c, "rt_rotary",
            "%s, %s, %s, %s, &(rt_turn){.rows = %lld, .table = %lld, .cols = %lld, "
            ".heads = %lld, .start = %lld, .stride = %lld, .r = %lld, .back = %s}",
            y, from, cos, sin, (long long)cg_rows(op->arg[0]),
            (long long)(t->dim[0] * t->dim[1]), (long long)x->dim[2],
            (long long)ir_attr_int(op, IR_ATTR_heads, 1),
            (long long)ir_attr_int(op, IR_ATTR_start, 0),
            (long long)(stride ? stride : r), (long long)r,
            ir_attr_int(op, IR_ATTR_inverse, 0) ? "true" : "false");
}

void
lw_dropout(cg *c, const ir_op *op)
{
    cg_call(c, "rt_dropout", "%s, %s, %s, %s, &(rt_drop){%s, %lld, %s, RT_F32}",
            cg_res(c, op, 0, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_I64), cg_arg(c, op, 2, IR_I64), sizes(c, op->arg[0]),
            (long long)ir_attr_int(op, IR_ATTR_site, 0),
            cg_float(c->arena, ir_attr_num(op, IR_ATTR_p, 0)));
}

/* ---- losses ---- */

void
lw_ce(cg *c, const ir_op *op)
{
    cg_call(c, "rt_ce", "%s, %s, %s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_I64), cg_res(c, op, 2, IR_F32),
            cg_res(c, op, 3, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_I64), cg_arg(c, op, 2, IR_F32), sizes(c, op->arg[0]));
}

void
lw_ce_grad(cg *c, const ir_op *op)
{
    cg_call(c, "rt_ce_grad", "%s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_I64), cg_arg(c, op, 2, IR_F32), sizes(c, op->arg[0]));
}

/* Both have two results of floats. */
static void
squared_error(cg *c, const ir_op *op, const char *kernel)
{
    cg_call(c, kernel, "%s, %s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_F32), cg_arg(c, op, 2, IR_F32), sizes(c, op->arg[0]));
}

void
lw_mse(cg *c, const ir_op *op)
{
    squared_error(c, op, "rt_mse");
}

void
lw_mse_grad(cg *c, const ir_op *op)
{
    squared_error(c, op, "rt_mse_grad");
}

/* x, w, targets, scale, bias: the operands that both kernels take; and the head's sizes. */
static const char *
head_operands(cg *c, const ir_op *op, bool grad)
{
    const ir_type *w = op->arg[1]->type;
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    int64_t rows = cg_rows(op->arg[0]), h = cg_last(op->arg[0]), v = w->dim[tb ? 0 : 1];
    int64_t chunk = ir_attr_int(op, IR_ATTR_chunk, 0);
    chunk = chunk && chunk < rows ? chunk : rows;
    rt_head d = {.rows = rows, .h = h, .v = v, .chunk = chunk, .tb = tb};
    const char *ws = cg_scratch(c, rt_head_ce_scratch(&d, grad, c->threads));
    const char *x = cg_arg(c, op, 0, IR_F32), *weight = cg_arg(c, op, 1, IR_F32);
    const char *targets = cg_arg(c, op, 2, IR_I64), *scale = cg_arg(c, op, 3, IR_F32);
    const char *bias = op->narg > 4 ? cg_arg(c, op, 4, IR_F32) : "NULL";
    if (c->dry || c->why)
        return "";
    const char *head = cg_constant(
        c, &c->head,
        ef_printf(c->arena,
                  "{.rows = %lld, .h = %lld, .v = %lld, .chunk = %lld, .tb = %s}",
                  (long long)rows, (long long)h, (long long)v, (long long)chunk,
                  tb ? "true" : "false"));
    return ef_printf(c->arena, "%s, %s, %s, %s, %s, &%s, %s", x, weight, targets, scale,
                     bias, head, ws);
}

void
lw_head_ce(cg *c, const ir_op *op)
{
    const char *operands = head_operands(c, op, false);
    cg_call(c, "rt_head_ce", "%s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_I64), cg_res(c, op, 2, IR_I64),
            cg_res(c, op, 3, IR_F32), operands);
}

void
lw_head_ce_grad(cg *c, const ir_op *op)
{
    const char *grad[2] = {"NULL", "NULL"};
    bool wanted[2] = {ir_attr_int(op, IR_ATTR_wgrad, 0),
                      ir_attr_int(op, IR_ATTR_bgrad, 0)};
    const char *operands = head_operands(c, op, true);
    for (int i = 0, res = 2; i < 2; i++) {
        if (!wanted[i])
            continue;
        grad[i] = cg_res(c, op, res, IR_F32);
        if (!cg_adds(op, res)) /* the kernel adds */
            cg_call(c, "rt_zero", "%s, %lld", grad[i],
                    (long long)ir_type_bytes(op->res[res]->type));
        res++;
    }
    cg_call(c, "rt_head_ce_grad", "%s, %s, %s, %s, %s", cg_res(c, op, 0, IR_F32),
            cg_res(c, op, 1, IR_F32), grad[0], grad[1], operands);
}

/* ---- the loss scaler ---- */

void
lw_rescale(cg *c, const ir_op *op)
{
    cg_call(c, "rt_rescale", "%s, %s", cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_F32));
}
