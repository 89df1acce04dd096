/* interp.c -- runs a module op by op: the oracle of passes, code generation and kernels.
 *
 * Values are arrays of double; each result is rounded to its dtype, so a bf16 value holds
 * what bf16 can hold, while the arithmetic inside of an op is exact to 53 bits. Nothing is
 * planned or fused: every value has storage of its own, which is kept from run to run.
 * The evaluators stand in interp_ew.c (elementwise), interp_ops.c (structure, products),
 * interp_nn.c (recognised ops) and interp_loss.c (loss and update).
 */
#include "interp_int.h"

#include <math.h>
#include <string.h>

static ir_ev_fn *const evaluator[IR_NOPS] = {
#define OP(name, ...) [IR_OP_##name] = ir_ev_##name,
#include "ops.def"
#undef OP
};

/* ---- rounding ---- */

/* x to `bits` significant bits, none of them worth less than 2^lsb; beyond max: infinite. */
static double
round_bits(double x, int bits, int lsb, double max)
{
    if (x == 0 || !isfinite(x))
        return x;
    int e;
    frexp(x, &e);
    int q = e - bits > lsb ? e - bits : lsb;
    double y = ldexp(rint(ldexp(x, -q)), q); /* rint: ties to even */
    return fabs(y) > max ? copysign(INFINITY, x) : y;
}

static double
round_int(double x, double lo, double hi)
{
    return isnan(x) ? 0 : x <= lo ? lo : x >= hi ? hi : trunc(x);
}

double
ir_round(ir_dtype d, double x)
{
    switch (d) {
    case IR_F32:
        return (float)x;
    case IR_F16:
        return round_bits(x, 11, -24, 65504);
    case IR_BF16:
        return round_bits(x, 8, -133, 0x1.fep127);
    case IR_I64:
        return round_int(x, -0x1p63, 0x1p63);
    case IR_I32:
        return round_int(x, -0x1p31, 0x1p31 - 1);
    case IR_I8:
        return round_int(x, -128, 127);
    case IR_U8:
        return round_int(x, 0, 255);
    case IR_I4:
        return round_int(x, -8, 7);
    case IR_BOOL:
        return x != 0;
    default:
        return x;
    }
}

static void
round_tensor(ir_tensor *t, bool exact)
{
    ir_dtype d = t->type->dtype;
    if (exact && ir_dtypes[d].is_float)
        return;
    int64_t n = ir_count(t);
    for (int64_t i = 0; i < n && d == IR_F32; i++)
        t->data[i] = (float)t->data[i];
    for (int64_t i = 0; i < n && d != IR_F32; i++)
        t->data[i] = ir_round(d, t->data[i]);
}

/* ---- one op ---- */

bool
ir_ev_fail(ir_ev *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *what = ef_vprintf(e->ctx->arena, fmt, ap);
    va_end(ap);
    return ef_error(e->ctx, e->op->loc, E_IR_INTERP,
                    ef_printf(e->ctx->arena, "%s: %s", ir_ops[e->op->code].name, what));
}

/* The sizes that named dimensions have in a run; 0: not known. */
typedef struct sizes {
    int64_t of[IR_SUP + 1];
} sizes;

/* Takes over the sizes that t has where its value's type has names. Returns a name whose
 * size is another than that known before, or IR_FIXED. */
static ir_sym
learn_sizes(sizes *known, const ir_type *named, const ir_type *t)
{
    for (int d = 0; d < named->rank; d++) {
        int64_t *size = &known->of[named->sym[d]];
        if (named->sym[d] != IR_FIXED && *size && *size != t->dim[d])
            return named->sym[d];
        *size = t->dim[d];
    }
    return IR_FIXED;
}

/* Type of result i with named dimensions at their actual size: that of the operands, else
 * that of the run, else the maximum. */
static const ir_type *
actual_type(ef_ctx *ctx, const ir_op *op, const ir_tensor *const *arg, int i,
            const sizes *run)
{
    ir_type t = *op->res[i]->type;
    sizes known = run ? *run : (sizes){0};
    bool named = false;
    for (int k = 0; k < op->narg; k++)
        learn_sizes(&known, op->arg[k]->type, arg[k]->type);
    for (int d = 0; d < t.rank; d++)
        if (t.sym[d] != IR_FIXED) {
            t.dim[d] = known.of[t.sym[d]] ? known.of[t.sym[d]] : t.dim[d];
            named = true;
        }
    return named ? ir_type_intern(ctx, &t) : op->res[i]->type;
}

bool
ir_eval_op(ef_ctx *ctx, const ir_op *op, const ir_tensor *const *arg, ir_tensor *res,
           ef_arena *arena)
{
    EF_ASSERT(ir_ops[op->code].flags & IR_PURE);
    ir_tensor **at = EF_NEWN(arena, ir_tensor *, op->nres + 1);
    for (int i = 0; i < op->nres; i++) {
        at[i] = &res[i];
        res[i].type = actual_type(ctx, op, arg, i, NULL);
        res[i].data = EF_NEWN(arena, double, ir_count(&res[i]) + 1);
    }
    ir_ev e = {.ctx = ctx, .op = op, .arg = arg, .res = at, .scratch = arena};
    if (!evaluator[op->code](&e))
        return false;
    for (int i = 0; i < op->nres; i++)
        round_tensor(&res[i], false);
    return true;
}

/* ---- the environment ---- */

ir_tensor *
ir_env_get(const ir_env *env, const ir_value *v)
{
    return ef_map_get(&env->of, v);
}

static ir_tensor *
env_new(ir_env *env, const ir_value *v, const ir_type *type)
{
    ir_tensor *t = EF_NEW(env->arena, ir_tensor);
    t->type = type;
    t->data = EF_NEWN(env->arena, double, ir_count(t) + 1);
    ef_map_set(env->arena, &env->of, v, t);
    return t;
}

ir_tensor *
ir_env_new(ir_env *env, const ir_value *v)
{
    return env_new(env, v, v->type);
}

void
ir_env_zero_grads(const ir_module *m, ir_env *env)
{
    for (int i = 0; i < m->params.n; i++) {
        ir_tensor *t = ir_env_get(env, m->params.at[i]->value);
        if (t && m->params.at[i]->cls == IR_GRAD)
            ir_clear(t);
    }
}

static ir_tensor *operand(ir_module *, ir_env *, const ir_op *, const ir_value *);

/* First contents of a param. NULL: said why. */
static ir_tensor *
param_data(ir_module *m, ir_env *env, const ir_op *op, const ir_value *v)
{
    const ir_param *p = v->param;
    ir_tensor *t = ir_env_new(env, v);
    if (p->cls == IR_SCALER)
        t->data[0] = IR_FIRST_SCALE;
    if (p->cls == IR_GRAD || p->cls == IR_STATE || p->cls == IR_SCALER)
        return t;
    if (p->cls == IR_IMAGE) {
        const ir_tensor *of = operand(m, env, op, p->of->value);
        if (!of)
            return NULL;
        memcpy(t->data, of->data, (size_t)ir_count(t) * sizeof *t->data);
    } else if (!ir_read_f64(m, p, env->seed, 0, ir_count(t), t->data))
        return NULL;
    if (ir_is_low(v->type->dtype))
        round_tensor(t, env->exact);
    return t;
}

/* The tensor of an operand; a param is read at its first use. NULL: said why. */
static ir_tensor *
operand(ir_module *m, ir_env *env, const ir_op *op, const ir_value *v)
{
    ir_tensor *t = ir_env_get(env, v);
    if (t)
        return t;
    if (!v->param) {
        ef_error(m->ctx, op->loc, E_IR_INTERP,
                 ef_printf(m->ctx->arena, "%s: no value was given for %%%s",
                           ir_ops[op->code].name, v->name));
        return NULL;
    }
    return param_data(m, env, op, v);
}

/* ---- the function ---- */

static bool
run_op(ir_module *m, const ir_op *op, ir_env *env, const sizes *run, ef_arena *scratch)
{
    ef_arena_reset(scratch);
    const ir_tensor **arg = EF_NEWN(scratch, const ir_tensor *, op->narg + 1);
    ir_tensor **res = EF_NEWN(scratch, ir_tensor *, op->nres + 1);
    for (int i = 0; i < op->narg; i++)
        if (!(arg[i] = operand(m, env, op, op->arg[i])))
            return false;
    for (int i = 0; i < op->nres; i++) {
        const ir_type *type = actual_type(m->ctx, op, arg, i, run);
        res[i] = ir_env_get(env, op->res[i]);
        if (!res[i] || res[i]->type != type)
            res[i] = env_new(env, op->res[i], type);
    }
    ir_ev e = {m->ctx, op, arg, res, env, scratch};
    if (!evaluator[op->code](&e))
        return false;
    for (int i = 0; i < op->nres; i++)
        round_tensor(res[i], env->exact);
    return true;
}

/* The sizes of named dimensions in the arguments that were given. */
static bool
sizes_of_args(const ir_func *f, const ir_env *env, sizes *run)
{
    static const char *const name[] = {NULL, "rows", "sup"};
    for (int i = 0; i < f->args.n; i++) {
        const ir_value *v = f->args.at[i];
        const ir_tensor *t = ir_env_get(env, v);
        ir_sym sym = t ? learn_sizes(run, v->type, t->type) : IR_FIXED;
        if (sym != IR_FIXED)
            return ef_error(
                f->module->ctx, NULL, E_IR_INTERP,
                ef_printf(f->module->ctx->arena,
                          "%%%s has another number of %s than the arguments "
                          "before it",
                          v->name, name[sym]));
    }
    return true;
}

bool
ir_interp_op(const ir_op *op, ir_env *env)
{
    const ir_func *f = op->block->func;
    sizes run = {0};
    if (!sizes_of_args(f, env, &run))
        return false;
    ef_arena *scratch = ef_arena_new();
    bool ok = run_op(f->module, op, env, &run, scratch);
    ef_arena_free(scratch);
    return ok;
}

bool
ir_interp(const ir_func *f, unsigned phases, ir_env *env)
{
    sizes run = {0};
    if (!sizes_of_args(f, env, &run))
        return false;
    ef_arena *scratch = ef_arena_new();
    bool ok = true;
    IR_FOREACH_BLOCK (b, f) {
        if (!(phases & 1u << b->phase))
            continue;
        for (const ir_op *op = b->first; op && ok; op = op->next)
            ok = run_op(f->module, op, env, &run, scratch);
    }
    ef_arena_free(scratch);
    return ok;
}
