/* fuse_move.c -- elementwise ops move to where they can share a kernel.
 *
 *     %s = silu %g                                %u = linear %x, $up
 *     %u = linear %x, $up                  ->     %s = silu %g          one kernel
 *     %y = mul %s, %u                             %y = mul %s, %u
 *
 *     %d = mul %dy, %u                            %d = mul %dy, %u      one kernel
 *     %a = linear %e, $up                  ->     %f = silu_d %d, %g
 *     %f = silu_d %d, %g                          %a = linear %e, $up
 *
 * Down to the first op that reads the result, or up to the one that only it reads. Either way
 * one value of the same size lives longer and another not at all.
 */
#include "fuse_int.h"

static bool
is_loop(const ir_op *op)
{
    return pass_is_ew(op) && op->code != IR_OP_const;
}

static bool
same_space(const ir_type *a, const ir_type *b)
{
    bool same = a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++)
        same = a->dim[i] == b->dim[i] && a->sym[i] == b->sym[i];
    return same;
}

/* Is there an op between the two that ends a kernel? */
static bool
apart(const ir_op *a, const ir_op *b)
{
    for (const ir_op *op = a->next; op && op != b; op = op->next)
        if (!pass_is_ew(op) && !pass_is_view(op))
            return true;
    return false;
}

/* Is v, an operand of op, one of its size that nothing reads after it? */
static bool
ends_at(const ir_value *v, const ir_op *op)
{
    return v->nuse == 1 && !v->param && same_space(v->type, op->res[0]->type);
}

/* May op's operands wait until `to`, though they would be gone by then? */
static bool
can_wait(const ir_op *op)
{
    int64_t more = 0, size = ir_type_bytes(op->res[0]->type);
    for (int i = 0; i < op->narg; i++) {
        const ir_value *v = op->arg[i];
        if (!ends_at(v, op))
            continue;
        more += ir_type_bytes(v->type);
        if (v->def && is_loop(v->def) && v->def->block == op->block)
            return false; /* it would have stayed in a register */
    }
    return more <= size;
}

static void
sink(ir_op *op)
{
    ir_op *user = op->res[0]->nuse ? fuse_first_user(op->res[0]) : NULL;
    if (user && user->block == op->block && is_loop(user) && apart(op, user) &&
        same_space(op->res[0]->type, user->res[0]->type) && can_wait(op))
        ir_move_before(op, user);
}

/* The elementwise op that makes an operand of op for it alone, above all that op needs beside it;
 * NULL: none. */
static ir_op *
feeder(const ir_op *op)
{
    ir_op *last = NULL;
    for (int i = 0; i < op->narg; i++) {
        ir_op *def = op->arg[i]->def;
        if (def && def->block == op->block && def->code != IR_OP_const &&
            (!last || ir_op_before(last, def)))
            last = def;
    }
    bool feeds = last && is_loop(last) && ends_at(last->res[0], op) && apart(last, op);
    return feeds ? last : NULL;
}

/* Numbers among the operands go along. */
static void
hoist(ir_op *op)
{
    ir_op *from = feeder(op);
    if (!from)
        return;
    ir_op *where = from->next;
    for (int i = 0; i < op->narg; i++) {
        ir_op *def = op->arg[i]->def;
        if (def && def->code == IR_OP_const && def->block == op->block &&
            ir_op_before(from, def))
            ir_move_before(def, where);
    }
    ir_move_before(op, where);
}

void
fuse_move(ir_func *f)
{
    IR_FOREACH_BLOCK (b, f) {
        IR_FOREACH_OP (op, b)
            if (is_loop(op))
                hoist(op);
        for (ir_op *op = b->last, *before; op; op = before) {
            before = op->prev;
            if (is_loop(op))
                sink(op);
        }
    }
}
