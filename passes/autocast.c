/* autocast.c -- pass autocast: what runs in bf16 or fp16.
 *
 *     %h = linear %x, $w, $b : f32[4,8]       %x.bf16 = cast %x : bf16[4,8]
 *     %y = gelu %h : f32[4,8]             ->  %h = linear %x.bf16, $w.bf16, $b : bf16[4,8]
 *     %z = add %y, %x : f32[4,8]              %y = gelu %h : bf16[4,8]
 *                                             %y.f32 = cast %y : f32[4,8]
 *                                             %z = add %y.f32, %x : f32[4,8]
 *
 * By the cast class of ops.def: LOW ops that depend on the tokens read low operands, FULL ones
 * f32, WIDE ones the widest that they get, KEEP ones what comes; results follow. Ops are
 * visited in order, so operands have their final types. Rules as in PyTorch's autocast, but for this: elementwise arithmetic
 * is f32 in registers whatever the types, norms read and write either type, and the sum of
 * embeddings, the residual stream, is f32 unless --residual bf16.
 *
 * No step casts a weight: a trained one gets an image in the low type, which the optimizer
 * writes; a frozen one, and a constant, is stored in the low type alone where nothing reads it
 * as f32. Casts of activations between elementwise ops cost nothing, they happen in registers.
 */
#include <math.h>
#include <string.h>

#include "pass_int.h"

typedef struct autocast {
    pass_ctx *pc;
    ir_module *m;
    ir_dtype low;
    bool low_stream;
    ef_map low_of, full_of; /* ir_value* -> the same in the other type */
    ef_map active;          /* set of ir_value*: they depend on the tokens */
    int nlow, ncast;
} autocast;

static bool
is_float(const ir_value *v)
{
    return ir_dtypes[v->type->dtype].is_float;
}

static const char *
named(const autocast *a, const ir_value *v, ir_dtype d)
{
    return ef_internf(a->m->ctx, "%s.%s", v->name, ir_dtypes[d].name);
}

/* ---- values in the other type ---- */

static ir_value *
image(autocast *a, ir_param *of)
{
    const ir_type *t = ir_type_with(a->m->ctx, of->value->type, a->low);
    ir_param *p =
        ir_param_new(a->m, named(a, of->value, a->low), t, IR_IMAGE, of->unit);
    p->of = of;
    p->loc = of->loc;
    return p->value;
}

/* A constant in the low type beside itself, from the same source. */
static ir_value *
low_constant(autocast *a, const ir_param *c)
{
    const ir_type *t = ir_type_with(a->m->ctx, c->value->type, a->low);
    ir_param *p = ir_param_new(a->m, named(a, c->value, a->low), t, IR_CONST, c->unit);
    p->init = c->init;
    p->path = c->path;
    p->at = c->at;
    p->file_dtype = c->file_dtype;
    p->values = c->values;
    p->onnx = c->onnx;
    p->loc = c->loc;
    return p->value;
}

/* A cast behind the definition of v; of a constant or an argument, at the start. */
static ir_value *
cast(autocast *a, ir_value *v, ir_dtype d)
{
    ir_builder b = v->def ? ir_after(v->def) : ir_at(ir_first_op(a->m->step));
    a->ncast++;
    return ir_emit(&b, IR_OP_cast, named(a, v, d), 1, &v, 0, NULL,
                   ir_type_with(a->m->ctx, v->type, d));
}

/* v in dtype d, which is another than its own. */
static ir_value *
in_type(autocast *a, ir_value *v, ir_dtype d)
{
    ef_map *made = d == IR_F32 ? &a->full_of : &a->low_of;
    ir_value *other = ef_map_get(made, v);
    if (other)
        return other;
    if (v->def && v->def->code == IR_OP_cast && v->def->arg[0]->type->dtype == d)
        other =
            v->def->arg[0]; /* a pair that cancels; d is not narrower than its source */
    else if (v->def && v->def->code == IR_OP_const) {
        ir_builder b = ir_after(v->def);
        other = ir_const(&b, named(a, v, d), ir_type_with(a->m->ctx, v->type, d),
                         ir_attr_num(v->def, IR_ATTR_value, 0));
    } else if (v->param && d == a->low)
        other =
            v->param->cls == IR_CONST ? low_constant(a, v->param) : image(a, v->param);
    else
        other = cast(a, v, d);
    ef_map_set(a->pc->scratch, made, v, other);
    return other;
}

static void
operand(autocast *a, ir_op *op, int i, ir_dtype d)
{
    ir_value *v = op->arg[i];
    if (is_float(v) && v->type->dtype != d)
        ir_set_arg(op, i, in_type(a, v, d));
}

static void
result(autocast *a, ir_op *op, int i, ir_dtype d)
{
    ir_value *v = op->res[i];
    if (is_float(v))
        v->type = ir_type_with(a->m->ctx, v->type, d);
}

static void
set_to(autocast *a, ir_op *op, ir_dtype d)
{
    const char *name = ef_intern(a->m->ctx, ir_dtypes[d].name);
    ir_attr_set(a->m, op, ir_attr_s(IR_ATTR_to, name));
    result(a, op, 0, d);
}

/* ---- what depends on the tokens ---- */

/* Token ids, and floats that are given: but not masks and positions, of which tables of sines
 * are made that need all their bits. */
static void
find_active_args(autocast *a)
{
    const ir_func *f = a->m->step;
    for (int i = 0; i < f->args.n; i++)
        if (pass_input_is(a->m, f->args.at[i], "ids") || is_float(f->args.at[i]))
            ef_map_set(a->pc->scratch, &a->active, f->args.at[i], a);
}

static bool
depends_on_tokens(autocast *a, const ir_op *op)
{
    for (int i = 0; i < op->narg; i++)
        if (ef_map_has(&a->active, op->arg[i]))
            return true;
    return false;
}

/* ---- ops by class ---- */

/* How many operands of a LOW op are low; the others are f32: biases, scales. */
static int
low_operands(const ir_op *op)
{
    return op->code == IR_OP_attention || op->code == IR_OP_lora_add ? 3 : 2;
}

static void
low_op(autocast *a, ir_op *op)
{
    for (int i = 0; i < op->narg; i++)
        operand(a, op, i, i < low_operands(op) ? a->low : IR_F32);
    if (op->code != IR_OP_head_ce) /* its results are losses */
        result(a, op, 0, a->low);
    a->nlow++;
}

/* Norms take their rows as they are. */
static void
full_op(autocast *a, ir_op *op)
{
    bool norm = op->code == IR_OP_layernorm || op->code == IR_OP_rmsnorm;
    for (int i = norm; i < op->narg; i++)
        operand(a, op, i, IR_F32);
    if (norm)
        result(a, op, 0, op->arg[0]->type->dtype);
}

/* Elementwise ops whose results leave the range of small types at once. */
static bool
grows(const ir_op *op)
{
    return op->code == IR_OP_exp || op->code == IR_OP_pow || op->code == IR_OP_recip;
}

/* The type that operand v asks for: IR_NDTYPES, any, if it is no float or a constant; f32 where
 * the low type would make a finite constant infinite: rows that are masked throughout would
 * get NaN from a softmax. */
static ir_dtype
asks_for(const autocast *a, const ir_value *v)
{
    if (!is_float(v))
        return IR_NDTYPES;
    if (!v->def || v->def->code != IR_OP_const)
        return v->type->dtype;
    double x = ir_attr_num(v->def, IR_ATTR_value, 0);
    return isfinite(x) && !isfinite(ir_round(a->low, x)) ? IR_F32 : IR_NDTYPES;
}

static void
wide_op(autocast *a, ir_op *op)
{
    ir_dtype d = IR_NDTYPES;
    for (int i = 0; i < op->narg && d != IR_F32; i++) {
        ir_dtype its = asks_for(a, op->arg[i]);
        d = its == IR_NDTYPES ? d : its;
    }
    if (d == IR_NDTYPES || grows(op))
        d = IR_F32;
    for (int i = 0; i < op->narg; i++)
        operand(a, op, i, d);
    for (int i = 0; i < op->nres; i++)
        result(a, op, i, d);
}

/* The stream begins here: f32 from a trained or a low table, or low. */
static void
embedding(autocast *a, ir_op *op)
{
    if (op->arg[0]->param && op->arg[0]->param->cls == IR_FROZEN)
        operand(a, op, 0, a->low);
    ir_dtype want = a->low_stream ? a->low : IR_F32;
    result(a, op, 0, op->arg[0]->type->dtype);
    if (op->arg[0]->type->dtype != want)
        set_to(a, op, want);
}

static void
keep_op(autocast *a, ir_op *op)
{
    if (op->code == IR_OP_embed)
        embedding(a, op);
    for (int i = 1; op->code == IR_OP_rotary && i < 3; i++)
        operand(a, op, i, IR_F32);
    if (op->code != IR_OP_embed && op->code != IR_OP_cast && op->narg &&
        is_float(op->arg[0]) && op->nres)
        result(a, op, 0, op->arg[0]->type->dtype);
}

static bool
reads_low(const autocast *a, const ir_op *op)
{
    for (int i = 0; i < op->narg; i++)
        if (op->arg[i]->type->dtype == a->low)
            return true;
    return false;
}

static void
visit(autocast *a, ir_op *op)
{
    bool active = depends_on_tokens(a, op);
    for (int i = 0; active && i < op->nres; i++)
        ef_map_set(a->pc->scratch, &a->active, op->res[i], a);
    switch (ir_ops[op->code].cast) {
    case IR_CAST_LOW:
        if (active || reads_low(a, op))
            low_op(a, op);
        break;
    case IR_CAST_FULL:
        full_op(a, op);
        break;
    case IR_CAST_WIDE:
        wide_op(a, op);
        break;
    default:
        keep_op(a, op);
    }
}

/* ---- fusing ---- */

/* Is v read by nothing but casts to d? Then the only such cast, which all readers of its
 * result share; else NULL. */
static ir_op *
only_cast(const ir_uses *uses, const ir_value *v, ir_dtype d)
{
    const ir_uselist *list = ir_users(uses, v);
    ir_op *user = list->op.n == 1 ? list->op.at[0] : NULL;
    return user && user->code == IR_OP_cast && user->res[0]->type->dtype == d ? user
                                                                              : NULL;
}

/* Does something other than an elementwise kernel, which casts in registers, read v? */
static bool
read_from_memory(const ir_uses *uses, const ir_value *v)
{
    const ir_uselist *list = ir_users(uses, v);
    for (int i = 0; i < list->op.n; i++)
        if (!pass_is_ew(list->op.at[i]))
            return true;
    return false;
}

/* Ops that write another type than they read take over a cast of their result. */
static void
fuse(autocast *a)
{
    ir_uses *uses = ir_uses_of(a->m->step, a->pc->scratch);
    for (ir_op *op = ir_first_op(a->m->step), *next; op; op = next) {
        next = ir_next_op(op);
        bool product = op->code == IR_OP_linear || op->code == IR_OP_matmul;
        bool norm = op->code == IR_OP_layernorm || op->code == IR_OP_rmsnorm;
        if (!product && !norm)
            continue;
        ir_dtype d = product ? IR_F32 : a->low;
        ir_op *c = only_cast(uses, op->res[0], d);
        if (!c || op->res[0]->type->dtype == d || !read_from_memory(uses, c->res[0]))
            continue;
        set_to(a, op, d);
        ir_replace_uses(a->m->step, c->res[0], op->res[0]);
        next = ir_next_op(op);
        ir_remove(c);
        a->ncast--;
    }
}

/* Will a result hold the weight as the file has it? That of a whole model does, and adapters
 * hold whole modules of which a part is trained. */
static bool
is_saved(const ir_module *m, const ir_param *w)
{
    const char *module = ir_param_module(m->ctx, w);
    bool saved = !ir_meta_get(m, "lora.r");
    for (int i = 0; i < m->params.n && !saved; i++) {
        const ir_param *p = m->params.at[i];
        saved = p->cls == IR_TRAIN && p->role == IR_BASE &&
                ir_param_module(m->ctx, p) == module;
    }
    return saved;
}

/* A frozen weight that is only read through its image is that image, where no result needs the
 * numbers that it was rounded from. A constant that is only read in the low type goes. */
static void
settle_frozen(autocast *a)
{
    ir_module *m = a->m;
    for (int i = m->params.n - 1; i >= 0; i--) {
        ir_param *p = m->params.at[i];
        if (p->cls == IR_CONST && !p->value->nuse && ef_map_has(&a->low_of, p->value))
            ir_param_unlink(m, p);
        if (p->cls != IR_IMAGE || p->of->cls != IR_FROZEN || p->of->value->nuse ||
            is_saved(m, p->of))
            continue;
        ir_value *whole = p->of->value;
        whole->type = p->value->type;
        ir_replace_uses(m->step, p->value, whole);
        ir_param_unlink(m, p);
    }
}

/* Needs the forward part and the loss in `step`; changes types there, and which params there
 * are. What pass eval copies and pass grad differentiates is the result. */
bool
pass_autocast(pass_ctx *pc)
{
    ir_module *m = pc->m;
    const ef_config *cfg = m->ctx->cfg;
    autocast a = {.pc = pc, .m = m, .low = cfg->fp16 ? IR_F16 : IR_BF16};
    a.low_stream = !strcmp(cfg->residual, "bf16");
    find_active_args(&a);
    for (ir_op *op = ir_first_op(m->step), *next; op; op = next) {
        next = ir_next_op(op);
        visit(&a, op);
    }
    fuse(&a);
    settle_frozen(&a);
    ir_meta_set(m, "precision", cfg->fp16 ? "fp16" : "bf16");
    ef_report(m->ctx, "precision: %d ops in %s, sums and updates in f32; %d casts",
              a.nlow, ir_dtypes[a.low].name, a.ncast);
    return true;
}
