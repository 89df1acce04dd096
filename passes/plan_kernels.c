/* plan_kernels.c -- which elementwise ops become one generated kernel.
 *
 * Consecutive elementwise ops of a block whose results have the same dimensions form one
 * kernel: one loop, in which values that only the kernel uses stay in registers.
 *
 *     %t = tanh %x {kernel=4}                 for (i..) {
 *     %u = add %t, %one {kernel=4}     ->         float t = TANH(x[i]);
 *     %y = mul %u, %x {kernel=4}                  y[i] = (t + 1.0f) * x[i];
 *                                              }
 * Operands of other ops may be broadcast. Views and literals in between do not end a
 * kernel, since no code stands for them; the kernel runs where its last op stands. No op is
 * moved.
 */
#include "plan_int.h"

/* A loop should neither read too many streams of memory nor grow without end. */
enum { MOST_OPERANDS = 12, MOST_OPS = 64 };

typedef struct group { /* the kernel that is being formed; nop 0: none */
    ir_op *op[MOST_OPS];
    int nop;
    const ir_value *operand[MOST_OPERANDS];
    int noperand;
} group;

bool
pass_is_literal(const ir_uses *uses, const ir_op *op)
{
    if (op->code != IR_OP_const)
        return false;
    const ir_uselist *users = ir_users(uses, op->res[0]);
    for (int i = 0; i < users->op.n; i++)
        if (!pass_is_ew(users->op.at[i]))
            return false;
    return true;
}

static bool
same_space(const ir_type *a, const ir_type *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i] || a->sym[i] != b->sym[i])
            return false;
    return true;
}

static bool
is_member(const group *g, const ir_op *op)
{
    for (int i = 0; i < g->nop; i++)
        if (g->op[i] == op)
            return true;
    return false;
}

static bool
is_inside(const group *g, const ir_value *v)
{
    if (v->def && (is_member(g, v->def) || v->def->code == IR_OP_const))
        return true;
    for (int i = 0; i < g->noperand; i++)
        if (g->operand[i] == v)
            return true;
    return false;
}

/* Does op read, through a view, what the kernel itself writes to memory? */
static bool
reads_back(const group *g, const ir_op *op)
{
    for (int i = 0; i < op->narg; i++) {
        const ir_value *v = op->arg[i];
        if (!v->def || !pass_is_view(v->def))
            continue;
        while (v->def && pass_is_view(v->def))
            v = v->def->arg[0];
        if (v->def && is_member(g, v->def))
            return true;
    }
    return false;
}

/* Adds op's operands from memory; false: there are too many. */
static bool
add_operands(group *g, const ir_op *op)
{
    for (int i = 0; i < op->narg; i++) {
        if (is_inside(g, op->arg[i]))
            continue;
        if (g->noperand == MOST_OPERANDS)
            return false;
        g->operand[g->noperand++] = op->arg[i];
    }
    return true;
}

/* Adds op to the kernel if it may; else the kernel is as before. */
static bool
join(group *g, ir_op *op, const pass_target *target)
{
    if (!g->nop || g->nop == MOST_OPS || g->op[0]->block != op->block ||
        !same_space(g->op[0]->res[0]->type, op->res[0]->type) || reads_back(g, op) ||
        !target->fuse(g->op[0], op))
        return false;
    int before = g->noperand;
    if (!add_operands(g, op)) {
        g->noperand = before;
        return false;
    }
    g->op[g->nop++] = op;
    return true;
}

void
pass_plan_kernels(pass_ctx *pc, ir_func *f, int *next)
{
    ir_uses *uses = ir_uses_of(f, pc->scratch);
    group *g = EF_NEW(pc->scratch, group);
    for (ir_op *op = ir_first_op(f); op; op = ir_next_op(op)) {
        if (pass_is_view(op) || pass_is_literal(uses, op))
            continue;
        if (!pass_is_ew(op)) {
            g->nop = g->noperand = 0;
            continue;
        }
        if (!join(g, op, pc->target)) {
            g->nop = g->noperand = 0;
            add_operands(g, op);
            g->op[g->nop++] = op;
            (*next)++;
        }
        ir_attr_set(pc->m, op, ir_attr_i(IR_ATTR_kernel, *next - 1));
    }
}
