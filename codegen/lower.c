/* lower.c -- operands, results and sizes as C; emitters of the update.
 *
 * A size that depends on a named dimension is an expression of ROWS or SUP, macros of plan.h
 * for the sizes of the micro-batch that runs. A named dimension is always the first, so
 * places in memory and strides never depend on it.
 */
#include "cg_int.h"

cg_emitter *const cg_emitters[IR_NOPS] = {
#define OP(name, in, in_max, out, out_max, flags, cast, attrs, shape, vjp, lower, doc) \
    [IR_OP_##name] = lower,
#include "../ir/ops.def"
#undef OP
};

/* ---- operands and results ---- */

const char *
cg_refuse(cg *c, const char *why)
{
    if (!c->why)
        c->why = why;
    return NULL;
}

static const char *
pointer(cg *c, const ir_value *v)
{
    for (int i = 1; i < v->type->rank; i++)
        if (v->type->sym[i])
            return cg_refuse(c, "a named dimension does not stand first");
    if (c->dry)
        return "";
    const ir_value *grad = ef_map_get(&c->gradient, v);
    const char *name = ef_map_get(&c->names, grad ? grad : v);
    EF_ASSERT(name);
    return name;
}

/* Refuses what this kernel has no elements for. */
static const char *
wrong_type(cg *c, const ir_value *v, const char *want)
{
    return cg_refuse(c, ef_printf(c->ctx->arena, "%s is %s, and only %s is implemented",
                                  v->name, ir_type_text(c->ctx, v->type), want));
}

static const char *
typed(cg *c, const ir_value *v, ir_dtype t)
{
    return v->type->dtype == t ? pointer(c, v) : wrong_type(c, v, ir_dtypes[t].name);
}

static const char *
floats(cg *c, const ir_value *v)
{
    return ir_dtypes[v->type->dtype].is_float ? pointer(c, v)
                                              : wrong_type(c, v, "f32, bf16 or f16");
}

const char *
cg_arg(cg *c, const ir_op *op, int i, ir_dtype t)
{
    return typed(c, op->arg[i], t);
}

const char *
cg_res(cg *c, const ir_op *op, int i, ir_dtype t)
{
    return typed(c, op->res[i], t);
}

const char *
cg_float_arg(cg *c, const ir_op *op, int i)
{
    return floats(c, op->arg[i]);
}

const char *
cg_float_res(cg *c, const ir_op *op, int i)
{
    return floats(c, op->res[i]);
}

static const char *
untyped(cg *c, const ir_value *v)
{
    if (!cg_ctype(v->type->dtype))
        return cg_refuse(c, ef_printf(c->ctx->arena, "no elements of type %s yet",
                                      ir_dtypes[v->type->dtype].name));
    return pointer(c, v);
}

const char *
cg_any_arg(cg *c, const ir_op *op, int i)
{
    return untyped(c, op->arg[i]);
}

const char *
cg_any_res(cg *c, const ir_op *op, int i)
{
    return untyped(c, op->res[i]);
}

bool
cg_adds(const ir_op *op, int i)
{
    const ir_attr *at = ir_attr_get(op, IR_ATTR_at);
    return at && i < at->n && at->u.l[i] == PASS_IN_GRADIENT;
}

int64_t
cg_offset(const ir_value *v)
{
    while (v->def && pass_is_view(v->def))
        v = v->def->arg[0];
    const ir_attr *at = v->def ? ir_attr_get(v->def, IR_ATTR_at) : NULL;
    for (int i = 0; at && i < at->n; i++)
        if (v->def->res[i] == v)
            return at->u.l[i];
    return -1;
}

const char *
cg_scratch(cg *c, int64_t bytes)
{
    if (bytes < 0)
        cg_refuse(c, "the library has no implementation for these sizes");
    if (c->dry) {
        c->asked = true;
        c->scratch = bytes > c->scratch ? bytes : c->scratch;
        return "";
    }
    const char *name = ef_map_get(&c->names, c->op);
    EF_ASSERT(name);
    return name;
}

bool
cg_asks_scratch(const cg *c, const ir_op *op)
{
    cg dry = {.ctx = c->ctx,
              .arena = c->arena,
              .dry = true,
              .op = op,
              .threads = c->threads,
              .need = c->need};
    cg_emitters[op->code](&dry, op);
    return dry.asked;
}

const char *
cg_constant(cg *c, cg_table *t, const char *value)
{
    for (int i = 0; i < t->value.n; i++)
        if (t->value.at[i] == ef_intern(c->ctx, value))
            return t->name.at[i];
    const char *name = ef_printf(c->arena, "%s_%d", t->stem, t->name.n);
    ef_push(c->arena, t->value, ef_intern(c->ctx, value));
    ef_push(c->arena, t->name, name);
    return name;
}

int64_t
cg_last(const ir_value *v)
{
    return v->type->dim[v->type->rank - 1];
}

int64_t
cg_product(const ir_type *t, int from, int to)
{
    int64_t n = 1;
    for (int i = from; i < to; i++)
        n *= t->dim[i];
    return n;
}

int64_t
cg_rows(const ir_value *v)
{
    return cg_product(v->type, 0, v->type->rank - 1);
}

/* ---- sizes that may vary ---- */

static const char *const sym_macro[] = {[IR_ROWS] = "ROWS", [IR_SUP] = "SUP"};

const char *
cg_times(cg *c, const ir_type *t, int from, int to, int64_t by)
{
    const char *sym = from < to && t->sym[from] ? sym_macro[t->sym[from]] : NULL;
    int64_t n = by * cg_product(t, from + (sym != NULL), to);
    return !sym     ? ef_printf(c->arena, "%lld", (long long)n)
           : n == 1 ? sym
                    : ef_printf(c->arena, "%s * %lld", sym, (long long)n);
}

const char *
cg_count(cg *c, const ir_value *v)
{
    return cg_times(c, v->type, 0, v->type->rank, 1);
}

const char *
cg_bytes(cg *c, const ir_value *v)
{
    return cg_times(c, v->type, 0, v->type->rank, cg_size(v->type->dtype));
}

const char *
cg_rows_text(cg *c, const ir_value *v)
{
    return cg_times(c, v->type, 0, v->type->rank - 1, 1);
}

const char *
cg_sizes(cg *c, const ir_value *v)
{
    return ef_printf(c->arena, "%s, %lld", cg_rows_text(c, v), (long long)cg_last(v));
}

bool
cg_varies(const ir_type *t)
{
    return t->rank && t->sym[0];
}

const char *
cg_vary(const ir_type *t)
{
    static const char *const name[] = {
        [IR_FIXED] = "RT_FIXED", [IR_ROWS] = "RT_ROWS", [IR_SUP] = "RT_SUP"};
    return name[t->rank ? t->sym[0] : IR_FIXED];
}

rt_dtype
cg_rt_dtype(ir_dtype t)
{
    return t == IR_BF16  ? RT_BF16
           : t == IR_F16 ? RT_F16
           : t == IR_I64 ? RT_I64
           : t == IR_F32 ? RT_F32
                         : RT_BOOL;
}

const char *
cg_dtype_text(rt_dtype t)
{
    static const char *const name[] = {[RT_F32] = "RT_F32",
                                       [RT_I64] = "RT_I64",
                                       [RT_BOOL] = "RT_BOOL",
                                       [RT_F16] = "RT_F16",
                                       [RT_BF16] = "RT_BF16"};
    return name[t];
}

const char *
cg_dtype(const ir_value *v)
{
    return cg_dtype_text(cg_rt_dtype(v->type->dtype));
}

const char *
cg_plus(cg *c, const char *p, int64_t elements)
{
    return elements && p ? ef_printf(c->arena, "%s + %lld", p, (long long)elements) : p;
}

/* ---- gradients and the update ---- */

void
lw_accum(cg *c, const ir_op *op)
{
    const char *grad = cg_arg(c, op, 0, IR_F32), *value = cg_arg(c, op, 1, IR_F32);
    if (!ef_map_has(&c->gradient, op->arg[1])) /* else it is there already */
        cg_call(c, "rt_add_to", "%s, %s, %s", grad, value, cg_count(c, op->arg[0]));
}

void
lw_norm2(cg *c, const ir_op *op)
{
    cg_call(c, "rt_norm2", "%s, run", cg_res(c, op, 0, IR_F32));
}

void
lw_clip_scale(cg *c, const ir_op *op)
{
    if (op->narg > 1) {
        cg_call(c, "rt_clip_scaled", "%s, %s, run, %s", cg_res(c, op, 0, IR_F32),
                cg_arg(c, op, 0, IR_F32), cg_arg(c, op, 1, IR_F32));
        return;
    }
    cg_call(c, "rt_clip_scale", "%s, %s, run", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32));
}

void
lw_rescale(cg *c, const ir_op *op)
{
    cg_call(c, "rt_rescale", "%s, %s", cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_F32));
}

void
lw_optim(cg *c, const ir_op *op) /* one call updates all of the unit, at its first op */
{
    int unit = op->arg[0]->param->unit;
    const char *coef = cg_arg(c, op, 4, IR_F32);
    for (const ir_op *o = op->prev; o; o = o->prev)
        if (o->code == IR_OP_optim && o->arg[0]->param->unit == unit)
            return;
    cg_call(c, "rt_optim", "run, %d, %s", unit, coef);
}

void
lw_ret(cg *c, const ir_op *op) /* the runtime knows where results lie: see rt_program */
{
    (void)c;
    (void)op;
}
