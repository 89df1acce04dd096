/* plan.c -- pass plan: where everything lies.
 *
 * Params lie in flat buffers, one per unit and class; a gradient and the optimizer's state
 * have the offset of their parameter, an image in the compute type has one of its own. All
 * other values share one arena, with room for the largest size of named dimensions. The two
 * functions never run at the same time, so each is planned from offset 0.
 *
 *     %h = linear %x, $w            {at=[0], ws=[8192,4096]}  scratch space: bytes 8192..
 *     %y = gelu %h                  {kernel=0, at=[0]}        over %h, which dies here
 *     %r = reshape %y               {at=[-3]}                 %y's bytes
 *     %d = linear_dw %x, %g         {at=[-2]}                 straight into $w.grad, so that
 *     accum $w.grad, %d                                       this line costs nothing
 *
 * Time is counted in instructions: an op, or all ops of one kernel. A buffer lives from the
 * instruction that writes it to the last that reads it, both included; a result that lies
 * over an operand (in place) only prolongs the operand's buffer.
 */
#include "plan_int.h"

#include <string.h>

enum {
    MOST_RESULTS = 8, /* of an op */
    OTHERS_NAMED = 4
};

typedef struct place { /* of a value; hangs on ir_value.aux while the pass runs */
    int where;         /* PASS_IN_REGISTER .. PASS_IN_OPERAND, or 0: the arena */
    int last;          /* last instruction that reads it or a view of it */
    int buffer;        /* in the arena: index into buffers */
    ir_value *root;    /* the value whose bytes these are; differs from it for a view */
} place;

typedef struct step { /* an op and its instruction */
    ir_op *op;
    int time;
} step;

typedef struct plan {
    pass_ctx *pc;
    ir_func *f;
    ir_uses *uses;
    EF_VEC(step) steps;
    EF_VEC(pass_buffer) buffers;
    EF_VEC(int) ws; /* buffer of each step's scratch space; -1: none */
    int64_t arena, bound;
} plan;

/* ---- params ---- */

static int64_t
round_up(int64_t bytes, int64_t align)
{
    return (bytes + align - 1) / align * align;
}

/* Gradients and state are as large as their owner. */
static bool
lies_as_owner(const ir_param *p)
{
    return p->cls == IR_GRAD || p->cls == IR_STATE;
}

static void
place_params(pass_ctx *pc)
{
    ir_module *m = pc->m;
    int64_t(*end)[IR_NCLASSES] =
        ef_alloc(pc->scratch, sizeof *end * (size_t)m->units.n);
    for (int i = 0; i < m->params.n; i++) {
        ir_param *p = m->params.at[i];
        if (lies_as_owner(p))
            continue;
        int unit = p->of ? p->of->unit : p->unit;
        EF_ASSERT(unit < m->units.n);
        int64_t *at = &end[unit][p->cls];
        p->offset = *at;
        *at += round_up(ir_type_bytes(p->value->type), pc->target->align);
    }
    for (int i = 0; i < m->params.n; i++)
        if (lies_as_owner(m->params.at[i]))
            m->params.at[i]->offset = m->params.at[i]->of->offset;
}

/* ---- where each result lives ---- */

static place *
place_of(const ir_value *v)
{
    return v->aux;
}

/* The place of v's bytes; NULL: a param or an argument. */
static place *
root_of(const ir_value *v)
{
    return v->aux ? place_of(place_of(v)->root) : NULL;
}

static void
number_steps(plan *p)
{
    int time = -1;
    int64_t kernel = -1;
    for (ir_op *op = ir_first_op(p->f); op; op = ir_next_op(op)) {
        int64_t k = ir_attr_int(op, IR_ATTR_kernel, -1);
        bool code = !pass_is_view(op) && !pass_is_literal(p->uses, op);
        if (code && (k < 0 || k != kernel)) {
            time++;
            kernel = k;
        }
        /* A view ahead of all code still wants a time. */
        ef_push(p->pc->scratch, p->steps, ((step){op, time < 0 ? 0 : time}));
    }
}

/* Can this result be added straight into a gradient buffer? Head_ce_grad's first two
 * results and sums that are not over leading dimensions have no such form. */
static bool
can_accumulate(const ir_op *op, int result)
{
    if (!(ir_ops[op->code].flags & IR_ACC))
        return false;
    if (op->code == IR_OP_head_ce_grad)
        return result >= 2;
    if (op->code == IR_OP_reduce_sum) {
        const ir_attr *axes = ir_attr_get(op, IR_ATTR_axes);
        for (int i = 0; axes && i < axes->n; i++)
            if (axes->u.l[i] != i)
                return false;
    }
    return true;
}

static bool
stays_in_kernel(const plan *p, const ir_op *op)
{
    const ir_uselist *users = ir_users(p->uses, op->res[0]);
    int64_t kernel = ir_attr_int(op, IR_ATTR_kernel, -1);
    bool literal = op->code == IR_OP_const; /* elementwise users write it themselves */
    for (int i = 0; i < users->op.n; i++)
        if (!(literal && pass_is_ew(users->op.at[i])) &&
            ir_attr_int(users->op.at[i], IR_ATTR_kernel, -2) != kernel)
            return false;
    return true;
}

static int
where_is(const plan *p, const ir_op *op, int result)
{
    const ir_uselist *users = ir_users(p->uses, op->res[result]);
    if (pass_is_view(op))
        return PASS_IN_OPERAND;
    if (pass_is_ew(op) && stays_in_kernel(p, op))
        return PASS_IN_REGISTER;
    if (users->op.n == 1 && users->op.at[0]->code == IR_OP_accum &&
        users->op.at[0]->arg[1] == op->res[result] &&
        users->op.at[0]->arg[0]->type == op->res[result]->type &&
        can_accumulate(op, result))
        return PASS_IN_GRADIENT;
    return 0;
}

/* Gives every result its place, and sets `at` with 0 for offsets that are not known yet. */
static void
settle_results(plan *p)
{
    int64_t at[MOST_RESULTS];
    for (int s = 0; s < p->steps.n; s++) {
        ir_op *op = p->steps.at[s].op;
        EF_ASSERT(op->nres <= MOST_RESULTS);
        for (int i = 0; i < op->nres; i++) {
            place *pl = EF_NEW(p->pc->scratch, place);
            pl->where = where_is(p, op, i);
            pl->last = p->steps.at[s].time;
            pl->buffer = -1;
            pl->root = op->res[i];
            if (pl->where == PASS_IN_OPERAND && op->arg[0]->aux)
                pl->root = place_of(op->arg[0])->root;
            op->res[i]->aux = pl;
            at[i] = pl->where;
        }
        if (op->nres)
            ir_attr_set(p->pc->m, op, ir_attr_l(IR_ATTR_at, op->nres, at));
    }
}

static void
find_last_uses(plan *p)
{
    for (int s = 0; s < p->steps.n; s++) {
        const ir_op *op = p->steps.at[s].op;
        for (int i = 0; !pass_is_view(op) && i < op->narg; i++) {
            place *pl = root_of(op->arg[i]);
            if (pl)
                pl->last = p->steps.at[s].time;
        }
    }
}

/* ---- buffers ---- */

static int
new_buffer(plan *p, int time, int last, int64_t bytes)
{
    ef_push(p->pc->scratch, p->buffers, ((pass_buffer){time, last, bytes, 0}));
    return p->buffers.n - 1;
}

/* May a result of v's size lie over operand i of op, which runs at `time`? For a kernel:
 * each thread reads an element before it writes it, so only broadcasting forbids it. */
static bool
may_overwrite(const plan *p, const ir_op *op, int i, const ir_value *v, int time)
{
    const place *pl = root_of(op->arg[i]);
    if (!pl || pl->where || pl->last != time || pl->buffer < 0 ||
        p->buffers.at[pl->buffer].hi != time ||
        ir_type_bytes(op->arg[i]->type) != ir_type_bytes(v->type))
        return false;
    return ir_type_count(op->arg[i]->type) == ir_type_count(v->type);
}

/* All reads of operand `of` by the kernel [from, to) are of whole dimensions. */
static bool
read_evenly(const plan *p, int from, int to, const place *of)
{
    for (int s = from; s < to; s++) {
        const ir_op *op = p->steps.at[s].op;
        for (int i = 0; pass_is_ew(op) && i < op->narg; i++)
            if (root_of(op->arg[i]) == of &&
                ir_type_count(op->arg[i]->type) != ir_type_count(op->res[0]->type))
                return false;
    }
    return true;
}

/* A dying operand of the instruction [from, to) that v, a result of it, may lie over; NULL:
 * none. */
static place *
dying_operand(const plan *p, int from, int to, const ir_value *v)
{
    int time = p->steps.at[from].time;
    bool kernel = pass_is_ew(v->def);
    for (int s = from; s < to; s++) {
        const ir_op *op = p->steps.at[s].op;
        if (!(kernel ? pass_is_ew(op) : op == v->def))
            continue;
        for (int i = 0; i < (kernel ? op->narg : 1); i++) {
            place *pl = root_of(op->arg[i]);
            bool once = true;
            for (int k = 1; !kernel && k < op->narg; k++)
                once &= root_of(op->arg[k]) != pl;
            if (once && may_overwrite(p, op, i, v, time) &&
                (!kernel || read_evenly(p, from, to, pl)))
                return pl;
        }
    }
    return NULL;
}

/* Lets v lie over a dying operand; false: there is none. */
static bool
take_over(plan *p, int from, int to, const ir_value *v)
{
    place *of = dying_operand(p, from, to, v), *pl = place_of(v);
    if (!of)
        return false;
    pl->buffer = of->buffer;
    p->buffers.at[pl->buffer].hi = pl->last;
    of->last = -1; /* nobody else takes it */
    return true;
}

/* Buffers of the results of the instruction [from, to). */
static void
place_results(plan *p, int from, int to)
{
    for (int s = from; s < to; s++) {
        ir_op *op = p->steps.at[s].op;
        for (int i = 0; i < op->nres; i++) {
            place *pl = place_of(op->res[i]);
            bool may = ir_ops[op->code].flags & IR_INPLACE && i == 0;
            if (pl->where || (may && take_over(p, from, to, op->res[i])))
                continue;
            pl->buffer = new_buffer(p, p->steps.at[s].time, pl->last,
                                    ir_type_bytes(op->res[i]->type));
        }
    }
}

/* Ops that the target refused for one reason. */
typedef struct refused {
    const char *why; /* "": none so far */
    int others;      /* behind the one that it was said of */
    ef_buf names;    /* of their nodes, the first few */
} refused;

static void
say_others(plan *p, const refused *r)
{
    if (r->others)
        ef_note(p->pc->m->ctx, "so it is with %d more:%s%s", r->others, r->names.s,
                r->others > OTHERS_NAMED ? ", .." : "");
}

/* What holds for an op of every layer is said of the first. */
static void
refuse(plan *p, refused *r, const ir_op *op, const char *why)
{
    if (strcmp(why, r->why)) {
        say_others(p, r);
        ef_error(p->pc->m->ctx, op->loc, E_CG_OP, ir_ops[op->code].name,
                 p->pc->target->name, why);
        *r = (refused){.why = why, .names.arena = p->pc->scratch};
    } else if (r->others++ < OTHERS_NAMED) {
        ef_putf(&r->names, "%s %s", r->names.n ? "," : "",
                op->loc ? op->loc : ir_ops[op->code].name);
    }
}

static bool
place_scratch(plan *p)
{
    refused r = {.why = ""};
    for (int s = 0; s < p->steps.n; s++) {
        const ir_op *op = p->steps.at[s].op;
        const char *why = NULL;
        int64_t bytes = p->pc->target->scratch(p->pc->m->ctx, op, &why);
        int time = p->steps.at[s].time;
        if (bytes < 0)
            refuse(p, &r, op, why);
        ef_push(p->pc->scratch, p->ws,
                bytes > 0 ? new_buffer(p, time, time, bytes) : -1);
    }
    say_others(p, &r);
    return !*r.why;
}

static void
place_values(plan *p)
{
    for (int from = 0, to = 0; from < p->steps.n; from = to) {
        while (to < p->steps.n && p->steps.at[to].time == p->steps.at[from].time)
            to++;
        place_results(p, from, to);
    }
}

static void
write_offsets(plan *p)
{
    int64_t at[MOST_RESULTS];
    for (int s = 0; s < p->steps.n; s++) {
        ir_op *op = p->steps.at[s].op;
        for (int i = 0; i < op->nres; i++) {
            const place *pl = place_of(op->res[i]);
            at[i] = pl->where ? pl->where : p->buffers.at[pl->buffer].offset;
        }
        if (op->nres)
            ir_attr_set(p->pc->m, op, ir_attr_l(IR_ATTR_at, op->nres, at));
        if (p->ws.at[s] >= 0) {
            const pass_buffer *b = &p->buffers.at[p->ws.at[s]];
            ir_attr_set(p->pc->m, op,
                        ir_attr_l(IR_ATTR_ws, 2, (int64_t[]){b->offset, b->bytes}));
        }
    }
}

/* ---- functions and module ---- */

static void
forget_plan(ir_module *m, ir_func *f)
{
    for (ir_op *op = ir_first_op(f); op; op = ir_next_op(op)) {
        ir_attr_remove(op, IR_ATTR_kernel);
        ir_attr_remove(op, IR_ATTR_at);
        ir_attr_remove(op, IR_ATTR_ws);
    }
    for (int i = 0; i < f->args.n; i++)
        f->args.at[i]->aux = NULL;
    for (int i = 0; i < m->params.n; i++)
        m->params.at[i]->value->aux = NULL;
}

static bool
plan_func(pass_ctx *pc, ir_func *f, int *kernels, plan *p)
{
    *p = (plan){.pc = pc, .f = f};
    forget_plan(pc->m, f);
    pass_plan_kernels(pc, f, kernels);
    p->uses = ir_uses_of(f, pc->scratch);
    number_steps(p);
    settle_results(p);
    find_last_uses(p);
    if (!place_scratch(p))
        return false;
    place_values(p);
    p->arena = pass_fit(p->buffers.at, p->buffers.n, pc->target->align, pc->scratch,
                        &p->bound);
    EF_ASSERT(!pass_fit_check(p->buffers.at, p->buffers.n, pc->scratch));
    write_offsets(p);
    const char *wrong = pass_plan_replay(f, pc->scratch);
    if (wrong)
        ef_error(pc->m->ctx, NULL, E_PLAN, wrong);
    EF_ASSERT(!wrong);
    return true;
}

/* "497.8 MB", in a static buffer of 4 turns. */
static const char *
human(int64_t bytes)
{
    static char text[4][32];
    static int turn;
    static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
    double x = (double)bytes;
    int u = 0;
    for (; x >= 1000 && u < 4; u++)
        x /= 1000;
    turn = (turn + 1) % 4;
    snprintf(text[turn], sizeof text[turn], u ? "%8.1f %s" : "%8.0f %s", x, unit[u]);
    return text[turn];
}

static void
report(pass_ctx *pc, int64_t arena, int64_t bound)
{
    ef_ctx *ctx = pc->m->ctx;
    int64_t sum[IR_NCLASSES] = {0}, weights;
    for (int i = 0; i < pc->m->params.n; i++)
        sum[pc->m->params.at[i]->cls] +=
            ir_type_bytes(pc->m->params.at[i]->value->type);
    weights =
        sum[IR_TRAIN] + sum[IR_FROZEN] + sum[IR_CONST] + sum[IR_IMAGE] + sum[IR_SCALER];
    ef_report(ctx, "memory");
    ef_report(ctx, "  trained parameters  %s", human(sum[IR_TRAIN]));
    ef_report(ctx, "  frozen parameters   %s", human(sum[IR_FROZEN] + sum[IR_CONST]));
    if (sum[IR_IMAGE])
        ef_report(ctx, "  low copies of them  %s", human(sum[IR_IMAGE]));
    ef_report(ctx, "  gradients           %s", human(sum[IR_GRAD]));
    ef_report(ctx, "  optimizer state     %s", human(sum[IR_STATE]));
    ef_report(ctx, "  activations         %s  (%s is the least possible)", human(arena),
              human(bound) + strspn(human(bound), " "));
    ef_report(ctx, "  total               %s",
              human(weights + sum[IR_GRAD] + sum[IR_STATE] + arena));
}

/* Needs: the whole program, dead code removed. Gives: ir_param.offset; attributes kernel,
 * at and ws; meta arena_bytes and bound_bytes. Ops that the target can not run are reported,
 * all of them. */
bool
pass_plan(pass_ctx *pc)
{
    ir_module *m = pc->m;
    ir_func *funcs[] = {m->step, m->eval};
    int kernels = 0;
    int64_t arena = 0, bound = 0;
    bool ok = true;
    place_params(pc);
    for (int i = 0; i < (int)EF_COUNT(funcs); i++) {
        plan p;
        if (!funcs[i])
            continue;
        if (!plan_func(pc, funcs[i], &kernels, &p)) {
            ok = false;
            continue;
        }
        arena = p.arena > arena ? p.arena : arena;
        bound = p.bound > bound ? p.bound : bound;
    }
    if (!ok)
        return false;
    ir_meta_set(m, "arena_bytes", ef_printf(m->arena, "%lld", (long long)arena));
    ir_meta_set(m, "bound_bytes", ef_printf(m->arena, "%lld", (long long)bound));
    report(pc, arena, bound);
    return true;
}
