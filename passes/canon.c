/* canon.c -- one form for each thing, so that later passes look for one form only.
 *
 * A table of small rules, each with its before and after. A sweep visits the ops in order;
 * a rule answers with the value that replaces the op's result, and later operands are
 * redirected when they are visited, so that a sweep is linear however much it replaces. New
 * ops are visited too. Then what nobody uses is removed, and the sweep is repeated until
 * nothing changes. Pass recognise ends with the same sweeps to clean up behind itself.
 *
 * The rules over shapes and positions of elements are in canon_shape.c.
 */
#include <math.h>
#include <string.h>

#include "canon_int.h"
#include "match.h"

enum { FOLD_MAX = 1 << 20, SWEEPS_MAX = 50 };

/* ---- questions and building blocks ---- */

bool
canon_is_const(const ir_value *v)
{
    return (v->def && v->def->code == IR_OP_const) ||
           (v->param && v->param->cls == IR_CONST && v->param->init == IR_INIT_VALUES);
}

/* Is every element of v the number *x? */
bool
canon_uniform(const ir_value *v, double *x)
{
    if (v->def && v->def->code == IR_OP_const) {
        *x = ir_attr_num(v->def, IR_ATTR_value, 0);
        return true;
    }
    if (!canon_is_const(v))
        return false;
    int64_t n = ir_type_count(v->type);
    const double *at = v->param->values;
    for (int64_t i = 1; i < n; i++)
        if (memcmp(&at[i], &at[0], sizeof at[0]))
            return false;
    *x = n ? at[0] : 0;
    return n > 0;
}

ir_value *
canon_emit(ir_op *at, ir_opcode code, ir_value *x, const ir_attr *attr,
           const ir_type *given)
{
    ir_builder b = ir_at(at);
    return ir_emit(&b, code, NULL, 1, &x, attr != NULL, attr, given);
}

ir_value *
canon_reshape(ir_op *at, ir_value *x, const ir_type *t)
{
    return x->type == t ? x : canon_emit(at, IR_OP_reshape, x, NULL, t);
}

ir_value *
canon_fit(ir_op *at, ir_value *x)
{
    const ir_type *t = at->res[0]->type;
    if (x->type == t)
        return x;
    return x->type->dtype == t->dtype ? canon_emit(at, IR_OP_expand, x, NULL, t) : NULL;
}

static ir_value *
replace2(ir_op *op, ir_opcode code, ir_value *a, ir_value *b)
{
    ir_builder at = ir_at(op);
    return ir_ew2(&at, code, NULL, a, b);
}

/* ---- constants ---- */

static const ir_tensor *
tensor_of(const ir_value *v, ef_arena *a)
{
    ir_tensor *t = EF_NEW(a, ir_tensor);
    int64_t n = ir_type_count(v->type);
    t->type = v->type;
    t->data = EF_NEWN(a, double, n + 1);
    double x = v->def ? ir_attr_num(v->def, IR_ATTR_value, 0) : 0;
    for (int64_t i = 0; i < n; i++)
        t->data[i] = ir_round(v->type->dtype, v->def ? x : v->param->values[i]);
    return t;
}

static ir_value *
constant_of(ir_op *op, const ir_tensor *t)
{
    ir_module *m = op->block->func->module;
    int64_t n = ir_type_count(t->type);
    bool uniform = n > 0;
    for (int64_t i = 1; i < n && uniform; i++)
        uniform = !memcmp(&t->data[i], &t->data[0], sizeof t->data[0]);
    ir_builder b = ir_at(op);
    if (uniform)
        return ir_const(&b, NULL, t->type, t->data[0]);
    ir_param *p = ir_param_new(m, op->res[0]->name, t->type, IR_CONST, op->block->unit);
    p->init = IR_INIT_VALUES;
    p->values = ef_dup(m->arena, t->data, sizeof(double) * (size_t)n);
    p->loc = op->loc;
    return p->value;
}

/* Elements of a constant that is worth having: a number for each token always is, since indices
 * of tokens tell what a mask means. */
static int64_t
most_folded(const ir_module *m)
{
    int64_t tokens = ir_meta_int(m, "batch", 0) * ir_meta_int(m, "seq", 0);
    return tokens > FOLD_MAX ? tokens : FOLD_MAX;
}

/* %y = add %c, %d, both constant            ->  %y = const, or a param of class const */
static ir_value *
fold(ir_op *op)
{
    int64_t most = most_folded(op->block->func->module);
    if (!(ir_ops[op->code].flags & IR_PURE) || op->nres != 1 || !op->narg ||
        ir_type_count(op->res[0]->type) > most)
        return NULL;
    for (int i = 0; i < op->narg; i++)
        if (!canon_is_const(op->arg[i]) || ir_type_count(op->arg[i]->type) > most)
            return NULL;
    ef_ctx *ctx = op->block->func->module->ctx;
    ef_arena *a = ef_arena_new();
    const ir_tensor **arg = EF_NEWN(a, const ir_tensor *, op->narg);
    for (int i = 0; i < op->narg; i++)
        arg[i] = tensor_of(op->arg[i], a);
    ir_tensor res;
    ir_value *v = ir_eval_op(ctx, op, arg, &res, a) ? constant_of(op, &res) : NULL;
    ef_arena_free(a);
    return v;
}

/* %y = mul %x, const 0.5 : f32[2,16,48]     ->  %y = mul %x, const 0.5 : f32[] */
static ir_value *
shrink_constant(ir_op *op)
{
    if (!(ir_ops[op->code].flags & IR_EW) || op->narg < 2)
        return NULL;
    for (int i = 0; i < op->narg; i++) {
        double x;
        const ir_type *t = op->arg[i]->type;
        if (!t->rank || !canon_uniform(op->arg[i], &x))
            continue;
        ir_builder b = ir_at(op);
        ir_value *arg[3];
        EF_ASSERT(op->narg <= 3);
        memcpy(arg, op->arg, sizeof *arg * (size_t)op->narg);
        const ir_type *scalar = ir_type_get(b.m->ctx, t->dtype, 0, NULL);
        arg[i] = ir_const(&b, NULL, scalar, x);
        ir_op *smaller = ir_insert(&b, op->code, NULL, op->narg, arg, 0, NULL, NULL, 1);
        if (smaller->res[0]->type == op->res[0]->type)
            return smaller->res[0];
        ir_remove(smaller);
        ir_remove(arg[i]->def);
    }
    return NULL;
}

/* ---- arithmetic ---- */

/* %y = add $bias, %x                        ->  %y = add %x, $bias   (constants last) */
static ir_value *
order_operands(ir_op *op)
{
    if (op->narg != 2 || !pass_commutes(op->code))
        return NULL;
    ir_value *a = op->arg[0], *b = op->arg[1];
    int rank_a = canon_is_const(a) ? 2 : a->param != NULL;
    int rank_b = canon_is_const(b) ? 2 : b->param != NULL;
    if (rank_a <= rank_b)
        return NULL;
    ir_set_arg(op, 0, b);
    ir_set_arg(op, 1, a);
    return op->res[0];
}

/* %y = add %x, 0; sub %x, 0; mul %x, 1; div %x, 1; pow %x, 1     ->  %x */
static ir_value *
drop_identity(ir_op *op)
{
    double c;
    if (op->narg != 2 || !canon_uniform(op->arg[1], &c))
        return NULL;
    bool zero = op->code == IR_OP_add || op->code == IR_OP_sub;
    bool one = op->code == IR_OP_mul || op->code == IR_OP_div || op->code == IR_OP_pow;
    return (zero && c == 0) || (one && c == 1) ? canon_fit(op, op->arg[0]) : NULL;
}

/* %y = and %x, true                         ->  %x
 * %y = or %x, false                         ->  %x */
static ir_value *
drop_logic(ir_op *op)
{
    double c;
    if (op->code != IR_OP_and && op->code != IR_OP_or)
        return NULL;
    if (!canon_uniform(op->arg[1], &c) || (c != 0) != (op->code == IR_OP_and))
        return NULL;
    return canon_fit(op, op->arg[0]);
}

/* %y = pow %x, 2     ->  %y = mul %x, %x
 * %y = pow %x, 3     ->  %s = mul %x, %x   %y = mul %s, %x
 * %y = pow %x, 0.5   ->  %y = sqrt %x */
static ir_value *
expand_power(ir_op *op)
{
    double e;
    if (op->code != IR_OP_pow || !canon_uniform(op->arg[1], &e))
        return NULL;
    ir_value *x = op->arg[0];
    if (x->type != op->res[0]->type)
        return NULL;
    if (e == 0.5)
        return canon_emit(op, IR_OP_sqrt, x, NULL, NULL);
    if (e != 2 && e != 3)
        return NULL;
    ir_value *square = replace2(op, IR_OP_mul, x, x);
    return e == 2 ? square : replace2(op, IR_OP_mul, square, x);
}

/* %y = div 1, %x                            ->  %y = recip %x */
static ir_value *
reciprocal(ir_op *op)
{
    double one;
    if (op->code != IR_OP_div || !canon_uniform(op->arg[0], &one) || one != 1 ||
        op->arg[1]->type != op->res[0]->type)
        return NULL;
    return canon_emit(op, IR_OP_recip, op->arg[1], NULL, NULL);
}

/* %y = neg (neg %x); not (not %x)           ->  %x */
static ir_value *
cancel_pair(ir_op *op)
{
    if (op->code != IR_OP_neg && op->code != IR_OP_not)
        return NULL;
    const ir_op *inner = op->arg[0]->def;
    if (!inner || inner->code != op->code || inner->arg[0]->type != op->res[0]->type)
        return NULL;
    return inner->arg[0];
}

/* %y = cast %x to its own type              ->  %x
 * %y = cast (cast %b : f32) : bool          ->  %b, where %b is bool */
static ir_value *
drop_cast(ir_op *op)
{
    if (op->code != IR_OP_cast)
        return NULL;
    ir_value *x = op->arg[0];
    if (x->type == op->res[0]->type)
        return x;
    const ir_op *inner = x->def;
    bool from_bool = inner && inner->code == IR_OP_cast &&
                     inner->arg[0]->type == op->res[0]->type &&
                     op->res[0]->type->dtype == IR_BOOL;
    return from_bool ? inner->arg[0] : NULL;
}

/* %y = where true, %a, %b                   ->  %a
 * %y = where (not %c), %a, %b               ->  %y = where %c, %b, %a */
static ir_value *
choose(ir_op *op)
{
    double c;
    if (op->code != IR_OP_where)
        return NULL;
    if (canon_uniform(op->arg[0], &c))
        return canon_fit(op, op->arg[c != 0 ? 1 : 2]);
    const ir_op *inner = op->arg[0]->def;
    if (!inner || inner->code != IR_OP_not || inner->arg[0]->type->dtype != IR_BOOL)
        return NULL;
    ir_value *a = op->arg[1], *b = op->arg[2];
    ir_set_arg(op, 0, inner->arg[0]);
    ir_set_arg(op, 1, b);
    ir_set_arg(op, 2, a);
    return op->res[0];
}

/* ---- sweeps ---- */

typedef struct naming {
    ir_value *v;
    const char *name;
} naming;

typedef struct sweeper {
    ir_module *m;
    ef_arena *scratch;
    EF_VEC(naming) renames; /* a new op gets the name of the one that it replaces */
    bool changed;
} sweeper;

static canon_rule *const rules[] = {
    fold,         shrink_constant, order_operands, drop_identity, drop_logic,
    expand_power, reciprocal,      cancel_pair,    drop_cast,     choose,
};

/* Redirects the operands of op that were replaced before. */
static void
resolve(ir_op *op)
{
    for (int i = 0; i < op->narg; i++) {
        ir_value *v = op->arg[i];
        while (v->aux)
            v = v->aux;
        if (v != op->arg[i])
            ir_set_arg(op, i, v);
    }
}

static ir_value *
rewrite(ir_op *op)
{
    ir_value *v = NULL;
    for (size_t i = 0; i < EF_COUNT(rules) && !v; i++)
        v = rules[i](op);
    for (int i = 0; i < canon_nshape && !v; i++)
        v = canon_shape[i](op);
    return v;
}

/* Visits op; returns the op to visit next, which may be a new one before op. */
static ir_op *
visit(sweeper *s, ir_op *op)
{
    if (op->nres && op->res[0]->aux)
        return op->next;
    resolve(op);
    ir_op *before = op->prev;
    ir_value *v = rewrite(op);
    if (!v)
        return op->next;
    s->changed = true;
    if (v != op->res[0]) {
        op->res[0]->aux = v;
        if (v->def && v->def == op->prev && v->def != before)
            ef_push(s->scratch, s->renames, ((naming){v, op->res[0]->name}));
    }
    return before ? before->next : op->block->first;
}

static void
forget_aux(const ir_func *f)
{
    for (int i = 0; i < f->module->params.n; i++)
        f->module->params.at[i]->value->aux = NULL;
    for (int i = 0; i < f->args.n; i++)
        f->args.at[i]->aux = NULL;
    for (ir_op *op = ir_first_op(f); op; op = ir_next_op(op))
        for (int i = 0; i < op->nres; i++)
            op->res[i]->aux = NULL;
}

static void
sweep(sweeper *s, ir_func *f)
{
    forget_aux(f);
    s->changed = false;
    s->renames.n = 0;
    IR_FOREACH_BLOCK (b, f)
        for (ir_op *op = b->first; op;)
            op = visit(s, op);
    pass_remove_dead(f);
    for (int i = 0; i < s->renames.n; i++)
        if (s->renames.at[i].v->nuse)
            ir_rename(f, s->renames.at[i].v, s->renames.at[i].name);
}

static void
drop_unused_constants(ir_module *m)
{
    for (int i = m->params.n - 1; i >= 0; i--)
        if (m->params.at[i]->cls == IR_CONST && !m->params.at[i]->value->nuse)
            ir_param_unlink(m, m->params.at[i]);
}

bool
pass_simplify(pass_ctx *pc)
{
    ir_module *m = pc->m;
    ir_func *const functions[] = {m->step, m->eval};
    sweeper s = {.m = m, .scratch = pc->scratch};
    int nerror = m->ctx->nerror; /* folding reports indices out of range */
    for (size_t i = 0; i < EF_COUNT(functions); i++) {
        int n = 0;
        do {
            if (functions[i])
                sweep(&s, functions[i]);
            EF_ASSERT(n++ < SWEEPS_MAX);
        } while (functions[i] && s.changed && m->ctx->nerror == nerror);
    }
    drop_unused_constants(m);
    return m->ctx->nerror == nerror;
}

/* Needs nothing; gives TYPED: nothing foldable is left, shape changes have one form.
 *
 *     %s = const {value=2} : f32[]
 *     %p = pow %x, %s : f32[2,4]             %p = mul %x, %x : f32[2,4]
 *     %u = reshape %p : f32[2,1,4]      ->   %v = reshape %p : f32[8]
 *     %v = reshape %u : f32[8]               %y = add %v, $b : f32[8]
 *     %y = add $b, %v : f32[8]
 */
bool
pass_canon(pass_ctx *pc)
{
    return pass_simplify(pc);
}
