/* recognise.c -- many small ops become the one that they mean.
 *
 * The rows of recognise.def are tried in order, each at every op that can be its root. What
 * matches is replaced; what no row takes stays as plain ops, and still trains. Reshapes and
 * transposes that a recogniser leaves around its op cancel in the sweeps of pass canon.
 */
#include <string.h>

#include "canon_int.h"
#include "pass_int.h"
#include "recognise_int.h"

typedef struct row {
    const char *name, *pattern;
    rec_fn *build;
} row;

static const row rows[] = {
#define RECOGNISE(name, pattern, build, doc) {#name, pattern, rec_##build},
#include "recognise.def"
#undef RECOGNISE
};

/* ---- builders ---- */

typedef struct attrs {
    int n;
    const ir_attr *at;
} attrs;

/* The recognised op, before the root of the match; its first result. */
static ir_value *
emit(const pass_match *m, ir_opcode code, int narg, ir_value *const *arg, attrs list)
{
    ir_builder b = ir_at(m->op[0]);
    return ir_insert(&b, code, NULL, narg, arg, list.n, list.at, NULL, -1)->res[0];
}

/* %y = gather $w, %ids {axis=0}             ->  %y = embed $w, %ids */
ir_value *
rec_embed(recogniser *r, const pass_match *m)
{
    (void)r;
    ir_value *w = pass_bound(m, "w"), *ids = pass_bound(m, "ids");
    if (w->type->rank != 2 || ids->type->dtype != IR_I64 ||
        ir_attr_int(m->op[0], IR_ATTR_axis, 0) != 0)
        return NULL;
    if (canon_is_const(
            ids)) /* negative ids count from the end: only gather knows that */
        for (int64_t i = 0; !ids->def && i < ir_type_count(ids->type); i++)
            if (ids->param->values[i] < 0)
                return NULL;
    return emit(m, IR_OP_embed, 2, (ir_value *[]){w, ids}, (attrs){0});
}

/* What a reshape is of, if it only splits or joins the rows of x; else x. */
static ir_value *
without_reshape(ir_value *x)
{
    if (!x->def || x->def->code != IR_OP_reshape)
        return x;
    ir_value *from = x->def->arg[0];
    const ir_type *t = from->type, *tx = x->type;
    return t->rank >= 2 && t->dim[t->rank - 1] == tx->dim[tx->rank - 1] ? from : x;
}

/* %r = reshape %x : f32[32,48]              ->  %l = linear %x, $w : f32[2,16,144]
 * %y = matmul %r, $w : f32[32,144]              %y = reshape %l : f32[32,144] */
ir_value *
rec_linear(recogniser *r, const pass_match *m)
{
    (void)r;
    ir_op *op = m->op[0];
    ir_value *x = pass_bound(m, "x"), *w = pass_bound(m, "w");
    if (op->arg[1] != w || w->type->rank != 2 || x->type->rank < 2 ||
        ir_attr_int(op, IR_ATTR_ta, 0))
        return NULL;
    ir_attr tb = ir_attr_i(IR_ATTR_tb, 1);
    int nattr = ir_attr_int(op, IR_ATTR_tb, 0) != 0;
    ir_value *y = emit(m, IR_OP_linear, 2, (ir_value *[]){without_reshape(x), w},
                       (attrs){nattr, &tb});
    return canon_reshape(op, y, op->res[0]->type);
}

/* %r = reshape %x   %y = linear %r, $w      ->  %l = linear %x, $w   %y = reshape %l */
ir_value *
rec_unfold(recogniser *r, const pass_match *m)
{
    (void)r;
    ir_op *op = m->op[0];
    ir_value *arg[3] = {without_reshape(op->arg[0]), op->arg[1]};
    if (arg[0] == op->arg[0])
        return NULL;
    if (op->narg > 2)
        arg[2] = op->arg[2];
    ir_value *y = emit(m, IR_OP_linear, op->narg, arg, (attrs){op->nattr, op->attr});
    return canon_reshape(op, y, op->res[0]->type);
}

/* %l = linear %x, $w   %y = add %l, $b      ->  %y = linear %x, $w, $b */
ir_value *
rec_bias(recogniser *r, const pass_match *m)
{
    (void)r;
    ir_value *x = pass_bound(m, "x"), *w = pass_bound(m, "w"), *b = pass_bound(m, "b");
    const ir_op *linear = m->op[m->nop - 1];
    const ir_type *t = m->op[0]->res[0]->type, *tl = linear->res[0]->type;
    int64_t n = tl->dim[tl->rank - 1];
    if (linear->narg != 2 || b->type->rank != 1 || b->type->dim[0] != n ||
        t->dim[t->rank - 1] != n || ir_type_count(t) != ir_type_count(tl))
        return NULL;
    ir_value *y = emit(m, IR_OP_linear, 3, (ir_value *[]){x, w, b},
                       (attrs){linear->nattr, linear->attr});
    return canon_reshape(m->op[0], y, t);
}

static bool
reduces_last(const ir_value *v, const ir_type *of)
{
    const ir_attr *axes = ir_attr_get(v->def, IR_ATTR_axes);
    return axes->n == 1 && axes->u.l[0] == of->rank - 1 &&
           ir_attr_int(v->def, IR_ATTR_keep, 0);
}

/* d = x - mean(x)   y = d / sqrt(mean(d d) + eps) w + b   ->  %y = layernorm %x, $w, $b */
ir_value *
rec_layernorm(recogniser *r, const pass_match *m)
{
    (void)r;
    ir_value *arg[] = {pass_bound(m, "x"), pass_bound(m, "w"), pass_bound(m, "b")};
    const ir_type *t = arg[0]->type;
    if (t->rank < 1 || m->op[0]->res[0]->type != t ||
        !reduces_last(pass_bound(m, "m"), t) || !reduces_last(pass_bound(m, "v"), t))
        return NULL;
    for (int i = 1; i < 3; i++)
        if (arg[i]->type->rank != 1 || arg[i]->type->dim[0] != t->dim[t->rank - 1])
            return NULL;
    ir_attr eps = ir_attr_f(IR_ATTR_eps, pass_number(m, "eps"));
    return emit(m, IR_OP_layernorm, 3, arg, (attrs){1, &eps});
}

/* y = x / sqrt(mean(x x) + eps) w           ->  %y = rmsnorm %x, %w */
ir_value *
rec_rmsnorm(recogniser *r, const pass_match *m)
{
    (void)r;
    ir_value *arg[] = {pass_bound(m, "x"), pass_bound(m, "w")};
    const ir_type *t = arg[0]->type;
    if (t->rank < 1 || m->op[0]->res[0]->type != t ||
        !reduces_last(pass_bound(m, "v"), t) || arg[1]->type->rank != 1 ||
        arg[1]->type->dim[0] != t->dim[t->rank - 1])
        return NULL;
    ir_attr eps = ir_attr_f(IR_ATTR_eps, pass_number(m, "eps"));
    return emit(m, IR_OP_rmsnorm, 2, arg, (attrs){1, &eps});
}

/* %t = transpose %x   %y = rmsnorm %t, %w  ->  %n = rmsnorm %x, %w   %y = transpose %n */
ir_value *
rec_norm_first(recogniser *r, const pass_match *m)
{
    (void)r;
    ir_op *op = m->op[0];
    const ir_attr *perm = ir_attr_get(op->arg[0]->def, IR_ATTR_perm);
    if (perm->u.l[perm->n - 1] != perm->n - 1 || op->res[1]->nuse)
        return NULL;
    ir_value *arg[] = {pass_bound(m, "x"), pass_bound(m, "w")};
    ir_value *y = emit(m, IR_OP_rmsnorm, 2, arg, (attrs){op->nattr, op->attr});
    return canon_emit(op, IR_OP_transpose, y, perm, NULL);
}

/* The op that the row is called after, on x. */
ir_value *
rec_unary(recogniser *r, const pass_match *m)
{
    ir_value *x = pass_bound(m, "x");
    if (m->op[0]->res[0]->type != x->type)
        return NULL;
    return emit(m, r->unary, 1, &x, (attrs){0});
}

/* ---- the pass ---- */

/* The op behind v gets the name of what it replaces; reshapes around it mostly vanish. */
static void
pass_name_on(ir_func *f, ir_value *v, const char *name)
{
    while (v->def->code == IR_OP_reshape || v->def->code == IR_OP_transpose)
        v = v->def->arg[0];
    for (int i = 0; i < v->def->nres; i++)
        ir_rename(f, v->def->res[i], name);
}

/* Tries the row at every op of f. */
static void
try_row(recogniser *r, const row *entry, ir_func *f)
{
    const pass_pattern *p = pass_pattern_new(r->pc->scratch, entry->pattern);
    r->unary = ir_op_by_name(entry->name);
    IR_FOREACH_BLOCK (b, f)
        IR_FOREACH_OP (op, b) {
            pass_match m;
            if (!pass_pattern_may_root(p, op) || !pass_match_at(p, op, &m))
                continue;
            ir_value *v = entry->build(r, &m);
            if (!v)
                continue;
            ir_replace_uses_after(op, op->res[0], v);
            const char *name = op->res[0]->name;
            for (int i = 0; i < m.nop; i++)
                if (ir_is_dead(m.op[i]))
                    ir_remove(m.op[i]);
            pass_name_on(f, v, name);
        }
}

/* How many there are now of what the rows are named after. */
static void
report(const recogniser *r)
{
    int count[IR_NOPS] = {0};
    ef_buf b = {.arena = r->pc->scratch};
    for (ir_op *op = ir_first_op(r->m->step); op; op = ir_next_op(op))
        count[op->code]++;
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        int *n = &count[ir_op_by_name(rows[i].name)];
        if (*n)
            ef_putf(&b, "%s %d %s", b.n ? "," : "", *n, rows[i].name);
        *n = 0;
    }
    ef_report(r->m->ctx, "recognised:%s", b.n ? b.s : " nothing");
}

/* Every name in --no-recognise is that of a row. */
static bool
check_names(pass_ctx *pc, const char *list)
{
    ef_ctx *ctx = pc->m->ctx;
    char *rest, *copy = ef_strdup(pc->scratch, list ? list : "");
    for (char *p = strtok_r(copy, ",", &rest); p; p = strtok_r(NULL, ",", &rest)) {
        bool known = !strcmp(p, "all");
        ef_buf b = {.arena = pc->scratch};
        for (size_t i = 0; i < EF_COUNT(rows); i++) {
            known |= !strcmp(p, rows[i].name);
            if (!b.n || !pass_in_list(b.s, rows[i].name))
                ef_putf(&b, "%s%s", b.n ? "," : "", rows[i].name);
        }
        if (known)
            continue;
        ef_error(ctx, NULL, E_OPT_VALUE, "no-recognise",
                 ef_printf(ctx->arena, "no recogniser is called '%s'", p));
        ef_note(ctx, "recognisers are %s, or all", b.s);
        return false;
    }
    return true;
}

/* Needs TYPED; gives FUSED: what the rows of recognise.def know is one op.
 *
 *     %s = sigmoid %x : f32[2,4]
 *     %y = mul %x, %s : f32[2,4]        ->   %y = silu %x : f32[2,4]
 */
bool
pass_recognise(pass_ctx *pc)
{
    const char *off = pc->m->ctx->cfg->no_recognise;
    recogniser r = {.pc = pc, .m = pc->m};
    if (!check_names(pc, off))
        return false;
    if (!pc->m->step || pass_in_list(off, "all"))
        return true;
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        if (!pass_in_list(off, rows[i].name))
            try_row(&r, &rows[i], pc->m->step);
        bool last = i + 1 == EF_COUNT(rows) || strcmp(rows[i].name, rows[i + 1].name);
        if (last && !pass_simplify(pc))
            return false;
    }
    report(&r);
    return true;
}
