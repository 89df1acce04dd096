/* plan_check.c -- a second opinion on the plan.
 *
 * Walks a planned function once, keeping a list of which value's bytes lie where. Every
 * read must find its value untouched, results may lie over operands only where the op
 * allows that, scratch space over neither. It shares no code with the planner, so an error
 * in the planner's lifetimes or aliases shows here.
 */
#include "plan_int.h"

typedef struct extent {
    int64_t lo, hi; /* bytes of the arena */
    const ir_value *value;
} extent;

typedef struct replay {
    EF_VEC(extent) live;
    EF_VEC(const ir_op *)
    now; /* ops of the instruction that runs: one, or a kernel's */
    ef_arena *scratch;
    const char *wrong;
} replay;

static int
result_index(const ir_value *v)
{
    int i = 0;
    while (v->def->res[i] != v)
        i++;
    return i;
}

static int64_t
place_of(const ir_value *v)
{
    const ir_attr *at = ir_attr_get(v->def, IR_ATTR_at);
    EF_ASSERT(at && at->n == v->def->nres);
    return at->u.l[result_index(v)];
}

/* Where v lies; false: not in the arena. */
static bool
extent_of(const ir_value *v, extent *e)
{
    while (v->def && pass_is_view(v->def) && place_of(v) == PASS_IN_OPERAND)
        v = v->def->arg[0];
    int64_t at = v->def ? place_of(v) : -1;
    *e = (extent){at, at + ir_type_bytes(v->type), v};
    return at >= 0;
}

static bool
meet(const extent *a, const extent *b)
{
    return a->lo < b->hi && b->lo < a->hi;
}

static void
complain(replay *r, const ir_op *op, const char *what, const ir_value *v)
{
    if (!r->wrong)
        r->wrong = ef_printf(r->scratch, "%s at %%%s: %s %%%s", ir_ops[op->code].name,
                             op->nres ? op->res[0]->name : "", what, v->name);
}

static void
check_reads(replay *r, const ir_op *op)
{
    extent e;
    for (int i = 0; i < op->narg; i++) {
        const ir_value *v = op->arg[i];
        bool inside = pass_is_ew(op) && v->def && !pass_is_view(v->def) &&
                      (v->def->code == IR_OP_const || place_of(v) == PASS_IN_REGISTER);
        for (int k = 0; k < r->now.n; k++)
            inside |= r->now.at[k] == v->def;
        if (inside || !extent_of(v, &e))
            continue;
        bool found = false;
        for (int k = 0; k < r->live.n; k++)
            found |= r->live.at[k].value == e.value;
        if (!found)
            complain(r, op, "reads what is overwritten,", v);
    }
}

/* Result e of op against the operands of the whole instruction. */
static void
check_result(replay *r, const ir_op *op, const extent *e)
{
    bool may = ir_ops[op->code].flags & IR_INPLACE || pass_is_ew(op);
    extent x;
    for (int k = 0; k < r->now.n; k++)
        for (int i = 0; i < r->now.at[k]->narg; i++)
            if (extent_of(r->now.at[k]->arg[i], &x) && meet(&x, e) &&
                !(may && x.lo == e->lo && x.hi == e->hi))
                complain(r, op, "writes over its operand", r->now.at[k]->arg[i]);
}

/* Scratch space of op against its operands and results. */
static void
check_scratch(replay *r, const ir_op *op, const extent *ws)
{
    extent x;
    for (int i = 0; i < op->narg; i++)
        if (extent_of(op->arg[i], &x) && meet(&x, ws))
            complain(r, op, "has its scratch space over", op->arg[i]);
    for (int i = 0; i < op->nres; i++)
        if (extent_of(op->res[i], &x) && meet(&x, ws))
            complain(r, op, "has its scratch space over", op->res[i]);
}

static void
overwrite(replay *r, const extent *e)
{
    int n = 0;
    for (int i = 0; i < r->live.n; i++)
        if (!meet(&r->live.at[i], e))
            r->live.at[n++] = r->live.at[i];
    r->live.n = n;
}

/* Runs the instruction in r->now: all reads, then all writes. */
static void
run(replay *r)
{
    extent e, written[64];
    int nwritten = 0;
    for (int k = 0; k < r->now.n; k++)
        check_reads(r, r->now.at[k]);
    for (int k = 0; k < r->now.n; k++) {
        const ir_op *op = r->now.at[k];
        const ir_attr *ws = ir_attr_get(op, IR_ATTR_ws);
        if (ws) {
            e = (extent){ws->u.l[0], ws->u.l[0] + ws->u.l[1], NULL};
            check_scratch(r, op, &e);
            overwrite(r, &e);
        }
        for (int i = 0; i < op->nres; i++) {
            if (!extent_of(op->res[i], &e))
                continue;
            check_result(r, op, &e);
            for (int w = 0; w < nwritten; w++)
                if (meet(&written[w], &e))
                    complain(r, op, "writes two results to one place,", op->res[i]);
            overwrite(r, &e);
            ef_push(r->scratch, r->live, e);
            EF_ASSERT(nwritten < (int)EF_COUNT(written));
            written[nwritten++] = e;
        }
    }
    r->now.n = 0;
}

static bool
emits_nothing(const ir_op *op)
{
    return pass_is_view(op) ||
           (op->code == IR_OP_const && !ir_attr_get(op, IR_ATTR_kernel));
}

const char *
pass_plan_replay(const ir_func *f, ef_arena *scratch)
{
    replay r = {.scratch = scratch};
    for (const ir_op *op = ir_first_op(f); op && !r.wrong; op = ir_next_op(op)) {
        if (emits_nothing(op))
            continue;
        int64_t kernel = ir_attr_int(op, IR_ATTR_kernel, -1);
        if (r.now.n &&
            (kernel < 0 || kernel != ir_attr_int(r.now.at[0], IR_ATTR_kernel, -1)))
            run(&r);
        ef_push(scratch, r.now, op);
    }
    if (r.now.n)
        run(&r);
    return r.wrong;
}
