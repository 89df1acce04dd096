/* cse.c -- pass cse: equal pure ops of one block become one.
 *
 *     %x.t = transpose %x {perm=[1,0]}        %x.t = transpose %x {perm=[1,0]}
 *     %x.u = transpose %x {perm=[1,0]}   ->
 *     %y = add %x.t, %x.u                     %y = add %x.t, %x.t
 *
 * Only within a block: a value that is used from block to block lives long, and memory is
 * what is short. Params do not change while fwd and bwd blocks read them.
 */
#include <string.h>

#include "match.h"
#include "pass_int.h"

bool
pass_same_attr(const ir_attr *a, const ir_attr *b)
{
    if (a->key != b->key)
        return false;
    switch (ir_attrs[a->key].kind) {
    case 'l':
        return a->n == b->n && !memcmp(a->u.l, b->u.l, sizeof(int64_t) * (size_t)a->n);
    case 's':
        return a->u.s == b->u.s; /* interned */
    case 'f':
        return !memcmp(&a->u.f, &b->u.f, sizeof a->u.f); /* -0 is not 0 */
    default:
        return a->u.i == b->u.i;
    }
}

static bool
same_args(const ir_op *a, const ir_op *b)
{
    if (pass_commutes(a->code) && a->arg[0] == b->arg[1] && a->arg[1] == b->arg[0])
        return true;
    for (int i = 0; i < a->narg; i++)
        if (a->arg[i] != b->arg[i])
            return false;
    return true;
}

static bool
same(const ir_op *a, const ir_op *b)
{
    if (a->code != b->code || a->narg != b->narg || a->nres != b->nres ||
        a->nattr != b->nattr || !same_args(a, b))
        return false;
    for (int i = 0; i < a->nattr; i++)
        if (!pass_same_attr(&a->attr[i], &b->attr[i]))
            return false;
    for (int i = 0; i < a->nres; i++)
        if (a->res[i]->type != b->res[i]->type)
            return false;
    return true;
}

/* The first op above op in its block that computes the same; NULL: none. */
static ir_op *
earlier(const ir_op *op)
{
    for (ir_op *e = op->block->first; e != op; e = e->next)
        if (same(e, op))
            return e;
    return NULL;
}

static void
cse_func(ir_func *f)
{
    IR_FOREACH_BLOCK (b, f)
        IR_FOREACH_OP (op, b) {
            ir_op *e = ir_ops[op->code].flags & IR_PURE ? earlier(op) : NULL;
            if (!e)
                continue;
            for (int i = 0; i < op->nres; i++)
                ir_replace_uses(f, op->res[i], e->res[i]);
            ir_remove(op);
        }
}

bool
pass_cse(pass_ctx *pc)
{
    if (pc->m->step)
        cse_func(pc->m->step);
    if (pc->m->eval)
        cse_func(pc->m->eval);
    return true;
}
