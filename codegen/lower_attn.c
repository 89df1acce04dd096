/* lower_attn.c -- emitters of attention, of rotary positions and of dropout. */
#include "cg_int.h"
#include "cuda_limits.h"
#include "toolkit.h"

/* Columns from one head to the next. */
static int64_t
step_of(const ir_op *op, ir_attr_key key)
{
    int64_t step = ir_attr_int(op, key, 0);
    return step ? step : ir_attr_int(op, IR_ATTR_head_dim, 0);
}

/* Operands of op but for keys and key, which stand last under p. */
static int
plain_args(const ir_op *op)
{
    return op->narg - (ir_attr_get(op, IR_ATTR_p) ? 2 : 0);
}

/* Is it of rows? Then behind the mask stand the first row of each sample and of the end, and
 * original positions. */
static bool
of_rows(const ir_op *op, int q)
{
    return op->arg[q]->type->rank == 2;
}

/* Sizes of the attention whose queries are operand q, with the mask at operand `mask`. */
static rt_attn
attn_of(const ir_op *op, int q, int mask)
{
    const ir_type *t = op->arg[q]->type;
    bool rows = of_rows(op, q);
    int64_t batch = rows ? op->arg[mask + 1]->type->dim[0] - 1 : t->dim[0];
    return (rt_attn){.batch = batch,
                     .seq = rows ? (t->dim[0] + batch - 1) / batch : t->dim[1],
                     .type = cg_rt_dtype(t->dtype),
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
            ".scale = %s, .softcap = %s, .causal = %s%s%s}",
            (long long)a->batch, (long long)a->seq, (long long)a->heads,
            (long long)a->kv_heads, (long long)a->d, (long long)a->ldq,
            (long long)a->ldk, (long long)a->ldv, (long long)a->qo, (long long)a->ko,
            (long long)a->vo, (long long)a->qs, (long long)a->ks, (long long)a->vs,
            (long long)a->window, cg_float(c->arena, a->scale),
            cg_float(c->arena, a->softcap), a->causal ? "true" : "false",
            a->type == RT_F32
                ? ""
                : ef_printf(c->arena, ", .type = %s", cg_dtype_text(a->type)),
            a->p > 0 ? ef_printf(c->arena, ", .p = %s, .site = %lld",
                                 cg_float(c->arena, a->p), (long long)a->site)
                     : ""));
}

/* What else it works on: from the mask on, which may be missing. q: where queries stand. */
static const char *
attn_at(cg *c, const ir_op *op, int q, int mask)
{
    int narg = plain_args(op);
    ef_buf b = {.arena = c->arena};
    ef_putf(&b, "&(rt_attn_at){.mask = %s",
            narg > mask ? cg_arg(c, op, mask, IR_I64) : "NULL");
    if (of_rows(op, q))
        ef_putf(&b, ", .offsets = %s, .position = %s, .rows = %s",
                cg_arg(c, op, mask + 1, IR_I64), cg_arg(c, op, mask + 2, IR_I64),
                cg_rows_text(c, op->arg[q]));
    if (narg < op->narg)
        ef_putf(&b, ", .keys = %s, .key = %s", cg_arg(c, op, narg, IR_I64),
                cg_arg(c, op, narg + 1, IR_I64));
    ef_puts(&b, "}");
    return b.s;
}

/* "; --cuda-arch sm_80, .. have enough": cards whose blocks have so much shared memory. */
static const char *
cards_with(cg *c, int64_t shared)
{
    ef_buf b = {.arena = c->ctx->arena};
    const cg_gpu_arch *g;
    for (int i = 0; (g = cg_arch_at(i)); i++)
        if (g->shared >= shared)
            ef_putf(&b, "%s%s", b.s ? ", " : "; --cuda-arch ", g->name);
    return b.s ? ef_printf(c->ctx->arena, "%s have enough", b.s) : "";
}

/* Can the card that the program is for start its kernels? cuDNN, which a trainer may find, is not
 * counted on. NULL, or why not. */
static const char *
does_not_fit(cg *c, const rt_attn *a, bool grad)
{
    if (!c->need->attention_shared)
        return NULL;
    ef_arena *arena = c->ctx->arena;
    const cg_gpu_arch *card = cg_arch_find(cg_arch(c->ctx));
    rt_attn low = *a;
    low.type = RT_BF16;
    int64_t bytes = c->need->attention_shared(a, grad);
    int64_t less = c->need->attention_shared(&low, grad);
    if (bytes <= card->shared)
        return NULL;
    return ef_printf(
        arena,
        "with heads of %lld columns in %s it takes %lld bytes of shared memory of a "
        "block, and %s (%s) has %lld%s%s; --target cpu has no such limit",
        (long long)a->d, a->type == RT_F32 ? "fp32" : "16 bits", (long long)bytes,
        card->name, card->card, (long long)card->shared,
        less <= card->shared ? ef_printf(arena, "; --bf16 takes %lld", (long long)less)
                             : "",
        cards_with(c, bytes));
}

/* Its scratch space; of CUDA's kernels the heads may be too wide. */
static const char *
space(cg *c, const rt_attn *a, bool grad)
{
    int64_t bytes = grad ? c->need->attention_grad(a, c->threads)
                         : c->need->attention(a, c->threads);
    if (bytes < 0)
        return cg_refuse(c,
                         ef_printf(c->ctx->arena,
                                   "heads of %lld columns are wider than this target's "
                                   "attention takes; --target cpu takes them",
                                   (long long)a->d));
    const char *why = does_not_fit(c, a, grad);
    return why ? cg_refuse(c, why) : cg_scratch(c, bytes);
}

void
lw_attention(cg *c, const ir_op *op)
{
    rt_attn a = attn_of(op, 0, 3);
    const char *ws = space(c, &a, false);
    const char *y = cg_float_res(c, op, 0), *lse = cg_res(c, op, 1, IR_F32);
    const char *q = cg_float_arg(c, op, 0), *k = cg_float_arg(c, op, 1);
    const char *v = cg_float_arg(c, op, 2), *at = attn_at(c, op, 0, 3);
    if (!c->dry && !c->why)
        cg_call(c, "rt_attention", "%s, %s, %s, %s, %s, %s, &%s, %s", y, lse, q, k, v,
                at, attn_name(c, &a), ws);
}

/* Zeroes result i where the heads' columns do not cover it. */
static void
clear_gaps(cg *c, const ir_op *op, int i, int64_t covered)
{
    if (covered < cg_last(op->res[i]))
        cg_call(c, "rt_zero", "%s, %s", cg_float_res(c, op, i),
                cg_bytes(c, op->res[i]));
}

void
lw_attention_grad(cg *c, const ir_op *op)
{
    rt_attn a = attn_of(op, 1, 6);
    int64_t nq = a.heads * a.d, nkv = a.kv_heads * a.d;
    bool packed = op->nres == 1;
    const char *ws = space(c, &a, true);
    const char *d[3], *x[6];
    for (int i = 0; i < 3 && !c->why; i++)
        d[i] = cg_float_res(c, op, packed ? 0 : i);
    for (int i = 0; i < 6; i++)
        x[i] = i < 5 ? cg_float_arg(c, op, i) : cg_arg(c, op, i, IR_F32);
    const char *at = attn_at(c, op, 1, 6);
    if (c->dry || c->why)
        return;
    for (int i = 0; i < op->nres; i++)
        clear_gaps(c, op, i, packed ? nq + 2 * nkv : i == 0 ? nq : nkv);
    cg_call(c, "rt_attention_grad", "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, &%s, %s",
            d[0], d[1], d[2], x[0], x[1], x[2], x[3], x[4], x[5], at, attn_name(c, &a),
            ws);
}

/* What is done with operand i, whose heads are turned by tables r columns wide. */
static const char *
turn(cg *c, const ir_op *op, int i, const ir_value *table, ir_attr_key heads)
{
    const ir_value *x = op->arg[i];
    int64_t r = cg_last(table), stride = ir_attr_int(op, IR_ATTR_stride, 0);
    const char *low = x->type->dtype == IR_F32
                          ? ""
                          : ef_printf(c->arena, ", .type = %s", cg_dtype(x));
    return ef_printf(c->arena,
                     "&(rt_turn){.rows = %s, .table = %s, .cols = %lld, .heads = %lld, "
                     ".start = %lld, "
                     ".stride = %lld, .r = %lld, .back = %s%s}",
                     cg_rows_text(c, x), cg_rows_text(c, table), (long long)cg_last(x),
                     (long long)ir_attr_int(op, heads, 1),
                     (long long)ir_attr_int(op, IR_ATTR_start, 0),
                     (long long)(stride ? stride : r), (long long)r,
                     ir_attr_int(op, IR_ATTR_inverse, 0) ? "true" : "false", low);
}

void
lw_rotary(cg *c, const ir_op *op)
{
    const char *y = cg_float_res(c, op, 0), *x = cg_float_arg(c, op, 0);
    const char *cos = cg_arg(c, op, 1, IR_F32), *sin = cg_arg(c, op, 2, IR_F32);
    cg_call(c, "rt_rotary", "%s, %s, %s, %s, %s", y, x, cos, sin,
            turn(c, op, 0, op->arg[1], IR_ATTR_heads));
}

void
lw_rotary2(cg *c, const ir_op *op)
{
    const char *cos = cg_arg(c, op, 2, IR_F32), *sin = cg_arg(c, op, 3, IR_F32);
    const char *q = turn(c, op, 0, op->arg[2], IR_ATTR_heads);
    const char *k = turn(c, op, 1, op->arg[2], IR_ATTR_kv_heads);
    cg_call(c, "rt_rotary2", "%s, %s, %s, %s, %s, %s, %s, %s", cg_float_res(c, op, 0),
            cg_float_arg(c, op, 0), q, cg_float_res(c, op, 1), cg_float_arg(c, op, 1),
            k, cos, sin);
}

void
lw_dropout(cg *c, const ir_op *op)
{
    cg_call(c, "rt_dropout", "%s, %s, %s, %s, &(rt_drop){%s, %lld, %s, %s}",
            cg_float_res(c, op, 0), cg_float_arg(c, op, 0), cg_arg(c, op, 1, IR_I64),
            cg_arg(c, op, 2, IR_I64), cg_sizes(c, op->arg[0]),
            (long long)ir_attr_int(op, IR_ATTR_site, 0),
            cg_float(c->arena, ir_attr_num(op, IR_ATTR_p, 0)), cg_dtype(op->arg[0]));
}
