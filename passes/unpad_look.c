/* unpad_look.c -- where one row a token is enough.
 *
 * The region begins at embeddings of what the arguments say, [B,S,..], and goes on through ops
 * that work on rows alone: arithmetic, products with weights, norms, attention, changes of
 * shape that leave [B,S] in front, or make one dimension of it. It ends at losses of tokens,
 * where one position of each sample is taken, and at sums over positions of values that the
 * mask has been multiplied with, to which padding adds nothing. Which values are in it
 * follows from data flow, never from sizes: a batch of one row is nothing special.
 */
#include "unpad_int.h"

#include <string.h>

static bool
stop(unpad *u, const ir_op *op, const char *why)
{
    u->stops = op;
    u->why = why;
    return false;
}

static bool
has_lead(const unpad *u, const ir_type *t, int lead)
{
    if (lead == 2)
        return t->rank >= 2 && t->dim[0] == u->batch && t->dim[1] == u->seq;
    return t->rank >= 1 && t->dim[0] == u->batch * u->seq;
}

static void
enter(unpad *u, ir_value *v, int lead)
{
    ef_map_set(u->pc->scratch, &u->lead, v, (void *)(intptr_t)lead);
}

unpad_entry
unpad_entry_of(const unpad *u, const ir_value *v, int rank, int lead)
{
    int64_t d[2] = {1, 1};
    for (int i = 0; i < lead; i++) {
        int at = i - (rank - v->type->rank);
        d[i] = at < 0 ? 1 : v->type->dim[at];
    }
    if (lead == 1)
        return d[0] == 1                   ? ENTRY_ALIKE
               : d[0] == u->batch * u->seq ? ENTRY_ROW
                                           : ENTRY_NONE;
    bool batch = d[0] == u->batch, seq = d[1] == u->seq;
    if (d[0] == 1 && d[1] == 1)
        return ENTRY_ALIKE;
    if (d[0] == 1 && seq && !ef_map_has(&u->given, v))
        return ENTRY_POSITION;
    return batch && seq ? ENTRY_ROW : ENTRY_NONE;
}

/* ---- what each op asks for ---- */

/* Operands from `first` on are in the region with `lead`, or can get in. */
static bool
operands_enter(unpad *u, const ir_op *op, int first, int rank, int lead)
{
    for (int i = first; i < op->narg; i++) {
        const ir_value *v = op->arg[i];
        int own = unpad_lead(u, v);
        if (own ? own != lead || v->type->rank != rank
                : unpad_entry_of(u, v, rank, lead) == ENTRY_NONE)
            return stop(u, op, "its operands are not of the same rows");
    }
    return true;
}

const ir_value *
unpad_operand(const unpad *u, const ir_op *op)
{
    for (int i = 0; i < op->narg; i++)
        if (unpad_lead(u, op->arg[i]))
            return op->arg[i];
    return NULL;
}

static bool
reshapes(unpad *u, const ir_op *op)
{
    const ir_type *t = op->res[0]->type;
    int lead = has_lead(u, t, 2) ? 2 : has_lead(u, t, 1) ? 1 : 0;
    if (!lead)
        return stop(u, op, "it mixes tokens");
    enter(u, op->res[0], lead);
    return true;
}

static bool
keeps_front(unpad *u, const ir_op *op, int lead)
{
    const ir_attr *perm = ir_attr_get(op, IR_ATTR_perm);
    for (int i = 0; i < lead; i++)
        if (perm->u.l[i] != i)
            return stop(u, op, "it moves tokens");
    enter(u, op->res[0], lead);
    return true;
}

bool
unpad_is_pin(const unpad *u, const ir_op *op)
{
    return op->code == IR_OP_slice && unpad_lead(u, op->arg[0]) == 2 &&
           ir_attr_int(op, IR_ATTR_axis, 0) == 1 && op->res[0]->type->dim[1] == 1;
}

bool
unpad_is_sum(const unpad *u, const ir_op *op)
{
    const ir_attr *axes = ir_attr_get(op, IR_ATTR_axes);
    return op->code == IR_OP_reduce_sum && unpad_lead(u, op->arg[0]) == 2 &&
           axes->n == 1 && axes->u.l[0] == 1;
}

/* Is v 0 wherever the mask argument is? */
static bool
follows_mask(const unpad *u, const ir_value *v)
{
    while (v->def && (v->def->code == IR_OP_cast || v->def->code == IR_OP_reshape ||
                      v->def->code == IR_OP_expand))
        v = v->def->arg[0];
    return u->mask && v == u->mask;
}

static bool
is_masked(const unpad *u, const ir_value *v)
{
    const ir_op *op = v->def;
    return op && op->code == IR_OP_mul &&
           (follows_mask(u, op->arg[0]) || follows_mask(u, op->arg[1]));
}

static bool
takes_position(unpad *u, const ir_op *op, int64_t at)
{
    if (u->pin >= 0 && u->pin != at)
        return stop(u, op, "another position is taken elsewhere");
    u->pin = at;
    return true;
}

/* Axes of reductions, slices and joins are behind the tokens. */
static bool
works_behind(unpad *u, const ir_op *op, int lead)
{
    if (unpad_is_pin(u, op))
        return takes_position(u, op, ir_attr_int(op, IR_ATTR_start, 0));
    if (unpad_is_sum(u, op) && is_masked(u, op->arg[0])) /* 0 is added by itself */
        return takes_position(u, op, 0);
    const ir_attr *axes = ir_attr_get(op, IR_ATTR_axes);
    int64_t axis = axes ? axes->u.l[0] : ir_attr_int(op, IR_ATTR_axis, 0);
    if (axis < lead)
        return stop(u, op, "it works across tokens");
    enter(u, op->res[0], lead);
    return true;
}

/* Rows that are left out must be no keys: they are those that the mask argument hides, or,
 * where nothing has a mask, those behind the tokens of a causal model. */
static bool
attends(unpad *u, const ir_op *op)
{
    bool drops = ir_attr_get(op, IR_ATTR_p), masked = op->narg - 2 * drops > 3;
    u->attentions++;
    u->masked |= masked;
    for (int i = 0; i < 3; i++)
        if (unpad_lead(u, op->arg[i]) != 2 || op->arg[i]->type->rank != 3)
            return stop(u, op, "its operands are not of the same rows");
    const ir_value *mask = masked ? op->arg[3] : NULL;
    while (mask && mask->def && mask->def->code == IR_OP_cast)
        mask = mask->def->arg[0];
    if (masked && mask != u->mask)
        return stop(u, op, "its mask is computed");
    if (!masked && (u->mask || !ir_attr_int(op, IR_ATTR_causal, 0)))
        return stop(u, op, "without a mask padding takes part");
    enter(u, op->res[0], 2);
    return true;
}

static bool
ends(unpad *u, const ir_op *op)
{
    int at = op->code == IR_OP_head_ce ? 2 : 1;
    const ir_value *targets = op->arg[at];
    while (targets->def && targets->def->code == IR_OP_reshape)
        targets = targets->def->arg[0];
    if (!u->labels || targets != u->labels || !unpad_lead(u, op->arg[0]))
        return stop(u, op, "its targets are not those of the data");
    u->losses++;
    return true;
}

static bool
embeds(unpad *u, const ir_op *op)
{
    const ir_value *ids = op->arg[1];
    int lead = has_lead(u, ids->type, 2) ? 2 : has_lead(u, ids->type, 1) ? 1 : 0;
    if (lead && ef_map_has(&u->given, ids) && ids->type->rank == lead)
        enter(u, op->res[0], lead);
    return true;
}

/* Ops that read the region. */
static bool
member(unpad *u, ir_op *op)
{
    const ir_value *from = unpad_operand(u, op);
    int rank = from->type->rank, lead = unpad_lead(u, from);
    switch (op->code) {
    case IR_OP_attention:
        return attends(u, op);
    case IR_OP_head_ce:
    case IR_OP_ce:
        return ends(u, op);
    case IR_OP_reshape:
        return reshapes(u, op);
    case IR_OP_transpose:
        return keeps_front(u, op, lead);
    case IR_OP_slice:
    case IR_OP_reduce_sum:
    case IR_OP_reduce_mean:
    case IR_OP_reduce_max:
        return works_behind(u, op, lead);
    case IR_OP_concat:
        return operands_enter(u, op, 0, rank, lead) && works_behind(u, op, lead);
    case IR_OP_softmax:
    case IR_OP_dropout:
        if (rank <= lead)
            return stop(u, op, "it works across tokens");
        break;
    case IR_OP_matmul:
        if (!unpad_lead(u, op->arg[0]) || rank <= lead || op->arg[1]->type->rank != 2 ||
            unpad_lead(u, op->arg[1]) || ir_attr_int(op, IR_ATTR_ta, 0))
            return stop(u, op, "it multiplies tokens with tokens");
        break;
    case IR_OP_linear:
    case IR_OP_layernorm:
    case IR_OP_rmsnorm:
        if (rank <= lead)
            return stop(u, op, "it works across tokens");
        for (int i = 1; i < op->narg; i++)
            if (unpad_lead(u, op->arg[i]))
                return stop(u, op, "its weights depend on tokens");
        break;
    case IR_OP_rotary:
        if (lead != 2 || unpad_entry_of(u, op->arg[1], 3, 2) == ENTRY_NONE)
            return stop(u, op, "its tables are not of the same rows");
        break;
    default:
        if (!pass_is_ew(op))
            return stop(u, op, "it does not work on rows alone");
        if (!operands_enter(u, op, 0, op->res[0]->type->rank, lead))
            return false;
    }
    for (int i = 0; i < op->nres; i++)
        enter(u, op->res[i], lead);
    return true;
}

static void
find_arguments(unpad *u)
{
    for (int i = 0; i < u->f->args.n; i++) {
        ir_value *v = u->f->args.at[i];
        ef_map_set(u->pc->scratch, &u->given, v, u);
        if (pass_input_is(u->m, v, "mask") && v->nuse)
            u->mask = v;
        if (pass_input_is(u->m, v, "labels") && v->type->rank == 2)
            u->labels = v;
    }
}

bool
unpad_look(unpad *u)
{
    u->pin = -1;
    find_arguments(u);
    if (u->seq < 2)
        return stop(u, NULL, "a sample of one token has no padding");
    for (ir_op *op = ir_first_op(u->f); op; op = ir_next_op(op)) {
        for (int i = 0; i < op->narg; i++)
            if (ef_map_has(&u->given, op->arg[i]))
                for (int k = 0; k < op->nres; k++)
                    ef_map_set(u->pc->scratch, &u->given, op->res[k], u);
        if (op->code == IR_OP_embed ? !embeds(u, op)
                                    : unpad_operand(u, op) && !member(u, op))
            return false;
    }
    if (!u->attentions)
        return stop(u, NULL, "no attention was recognised");
    if (!u->losses && u->pin < 0)
        return stop(u, NULL, "nothing reads single tokens");
    if (u->losses && u->pin >= 0)
        return stop(u, NULL, "losses of tokens read one position of all, too");
    if (!u->masked && u->pin > 0) /* padding in front of it is not hidden from it */
        return stop(u, NULL,
                    "what is read may stand behind padding that no mask hides");
    return true;
}
