/* mask_eval.c -- contents of a mask, for all rows of a batch.
 *
 * What does not depend on the key is evaluated once for all probes. Then comes what is
 * computed as a whole, and then what has a row of its own for each row of the batch ("by
 * row"): these ops are evaluated for one row at a time, so that memory does not grow with the
 * batch, and not again for a row whose operands are those of an earlier one.
 */
#include <string.h>

#include "mask_int.h"
#include "pass.h"

enum { SPANS_MAX = 3 * MASK_OPS_MAX + 1 };

typedef struct span { /* a row's part of an operand that was there before */
    const double *data;
    int64_t n; /* of a row */
} span;

static mask_cell *
cell_of(mask_run *u, const ir_value *v)
{
    for (int i = 0; i < u->g->nop; i++)
        if (u->g->op[i]->res[0] == v)
            return &u->cell[i];
    return NULL;
}

static bool
has_rows(const mask_run *u, const ir_type *t)
{
    return t->rank && t->dim[0] == u->rows;
}

/* Does a row of the op's result need only that row of operand k? Else, in an op that goes
 * by row, each row needs all of the operand. */
static bool
is_sliced(const mask_run *u, const ir_op *op, int k)
{
    const ir_type *t = op->arg[k]->type;
    if (op->code == IR_OP_gather)
        return k == 1;
    return has_rows(u, t) &&
           (op->code == IR_OP_reshape || t->rank == op->res[0]->type->rank);
}

/* Can the op be evaluated row by row? */
static bool
goes_by_row(const mask_run *u, const ir_op *op)
{
    if (op->nres != 1 || !has_rows(u, op->res[0]->type))
        return false;
    switch (op->code) {
    case IR_OP_reshape:
        return has_rows(u, op->arg[0]->type);
    case IR_OP_transpose:
        return ir_attr_get(op, IR_ATTR_perm)->u.l[0] == 0;
    case IR_OP_gather:
        return ir_attr_int(op, IR_ATTR_axis, 0) == 0 && has_rows(u, op->arg[1]->type);
    default:
        return pass_is_ew(op);
    }
}

/* Marks the ops that go by row and that nothing needs as a whole, before other marks. `wanted`:
 * the result is looked at row by row. */
static void
mark_rows(mask_run *u, bool wanted)
{
    for (int i = u->g->nop - 1; i >= 0; i--) {
        const ir_op *op = u->g->op[i];
        bool by_row = goes_by_row(u, op) && (wanted || op->res[0] != u->g->result);
        for (int j = i + 1; j < u->g->nop && by_row; j++)
            for (int k = 0; k < u->g->op[j]->narg; k++)
                if (u->g->op[j]->arg[k] == op->res[0])
                    by_row &=
                        u->cell[j].when == MASK_BY_ROW && is_sliced(u, u->g->op[j], k);
        u->cell[i].when = by_row ? MASK_BY_ROW : MASK_WHOLE;
    }
}

/* Marks the ops whose results are the same in all probes, unless they grow with the batch. */
static void
mark_once(mask_run *u)
{
    for (int i = 0; i < u->g->nop; i++) {
        const ir_op *op = u->g->op[i];
        bool once = u->cell[i].when != MASK_BY_ROW || u->rows == 1;
        for (int k = 0; k < op->narg && once; k++) {
            const mask_cell *from = cell_of(u, op->arg[k]);
            once = from ? from->when == MASK_ONCE : op->arg[k]->param != NULL;
        }
        u->cell[i].when = once ? MASK_ONCE : u->cell[i].when;
    }
}

/* Contents of an operand that is no op's result, read once. NULL: said why. */
static const ir_tensor *
leaf(mask_run *u, const ir_value *v)
{
    if (!v->param)
        return &u->key;
    ir_tensor *t = ef_map_get(&u->leaf, v);
    if (t)
        return t;
    t = EF_NEW(u->leaves, ir_tensor);
    int64_t n = ir_type_count(v->type);
    t->type = v->type;
    t->data = EF_NEWN(u->leaves, double, n + 1);
    if (!ir_read_f64(u->m, v->param, 0, 0, n, t->data))
        return NULL;
    ef_map_set(u->leaves, &u->leaf, v, t);
    return t;
}

/* Contents of a value as it is at the moment. NULL: said why. */
static const ir_tensor *
contents(mask_run *u, const ir_value *v)
{
    mask_cell *c = cell_of(u, v);
    return c ? &c->t : leaf(u, v);
}

static const ir_type *
one_row(const mask_run *u, const ir_type *t)
{
    int64_t dim[IR_MAX_RANK] = {1};
    for (int d = 1; d < t->rank; d++)
        dim[d] = t->dim[d];
    return ir_type_get(u->m->ctx, t->dtype, t->rank, dim);
}

/* Operand k of an op that is evaluated for `row`, or -1: as a whole. */
static bool
operand(mask_run *u, const ir_op *op, int k, int64_t row, ir_tensor *out)
{
    const ir_tensor *t = contents(u, op->arg[k]);
    mask_cell *from = cell_of(u, op->arg[k]);
    if (!t)
        return false;
    *out = *t;
    if (row >= 0 && is_sliced(u, op, k) && !(from && from->when == MASK_BY_ROW)) {
        out->type = one_row(u, t->type);
        out->data += row * ir_type_count(out->type);
    }
    return true;
}

static void
release(mask_cell *c)
{
    ef_arena_free(c->arena);
    c->arena = NULL;
}

static bool
step(mask_run *u, int i, int64_t row)
{
    const ir_op *op = u->g->op[i];
    mask_cell *c = &u->cell[i];
    ir_value result = *op->res[0];
    ir_op one = *op;
    c->arena = ef_arena_new();
    ir_tensor *t = EF_NEWN(c->arena, ir_tensor, op->narg + 1);
    const ir_tensor **arg = EF_NEWN(c->arena, const ir_tensor *, op->narg + 1);
    bool ok = op->nres == 1;
    for (int k = 0; k < op->narg && ok; k++) {
        arg[k] = &t[k];
        ok = operand(u, op, k, row, &t[k]);
    }
    one.res = (ir_value *[]){&result};
    result.type = row < 0 ? result.type : one_row(u, result.type);
    ok = ok && ir_eval_op(u->m->ctx, &one, arg, &c->t, c->arena);
    for (int k = 0; k < op->narg && ok; k++) {
        mask_cell *from = cell_of(u, op->arg[k]);
        if (from && from->when == c->when && --from->uses == 0)
            release(from);
    }
    return ok;
}

/* Evaluates the ops of one kind, those that go by row for one of them (else row is -1). */
static bool
evaluate(mask_run *u, mask_when when, int64_t row)
{
    bool ok = true;
    for (int i = 0; i < u->g->nop; i++)
        if (u->cell[i].when == when)
            u->cell[i].uses = u->g->op[i]->res[0] == u->g->result; /* by the caller */
    for (int i = 0; i < u->g->nop; i++)
        for (int k = 0; k < u->g->op[i]->narg; k++) {
            mask_cell *c = cell_of(u, u->g->op[i]->arg[k]);
            if (c && c->when == when)
                c->uses++; /* by an op of another kind: it stays to the end */
        }
    for (int i = 0; i < u->g->nop && ok; i++)
        if (u->cell[i].when == when)
            ok = step(u, i, row);
    return ok;
}

/* What tells one row from another: its part of the key and of all that is sliced. false:
 * said why. */
static bool
find_spans(mask_run *u, span *s, int *n)
{
    *n = 0;
    if (u->key.type)
        s[(*n)++] = (span){u->key.data, ir_type_count(u->key.type) / u->rows};
    for (int i = 0; i < u->g->nop; i++)
        for (int k = 0; k < u->g->op[i]->narg; k++) {
            const ir_op *op = u->g->op[i];
            mask_cell *from = cell_of(u, op->arg[k]);
            if (u->cell[i].when != MASK_BY_ROW || (from && from->when == MASK_BY_ROW) ||
                !is_sliced(u, op, k))
                continue;
            const ir_tensor *t = contents(u, op->arg[k]);
            if (!t)
                return false;
            s[(*n)++] = (span){t->data, ir_type_count(t->type) / u->rows};
        }
    return true;
}

static bool
is_repeated(const span *s, int n, int64_t row, int64_t earlier)
{
    for (int i = 0; i < n; i++)
        if (memcmp(s[i].data + row * s[i].n, s[i].data + earlier * s[i].n,
                   (size_t)s[i].n * sizeof(double)))
            return false;
    return true;
}

/* Shows the rows of a result that goes by row. */
static bool
eval_rows(mask_run *u, mask_look *look, void *data)
{
    ef_arena *a = ef_arena_new();
    span *s = EF_NEWN(a, span, SPANS_MAX);
    int64_t known[MASK_ROWS_MAX];
    int64_t nknown = 0;
    int n;
    bool ok = find_spans(u, s, &n), more = true;
    mask_cell *result = cell_of(u, u->g->result);
    for (int64_t row = 0; row < u->rows && ok && more; row++) {
        int64_t k = 0;
        while (k < nknown && !is_repeated(s, n, row, known[k]))
            k++;
        if (k < nknown)
            continue;
        if ((u->many = nknown == MASK_ROWS_MAX))
            break;
        known[nknown++] = row;
        ok = evaluate(u, MASK_BY_ROW, row);
        more = ok && look(data, &result->t, row, 1);
        release(result);
    }
    ef_arena_free(a);
    return ok;
}

bool
mask_eval(mask_run *u, mask_look *look, void *data)
{
    const mask_cell *result = cell_of(u, u->g->result);
    bool ok = u->begun || evaluate(u, MASK_ONCE, -1);
    u->begun = true;
    ok = ok && evaluate(u, MASK_WHOLE, -1);
    if (ok && result && result->when == MASK_BY_ROW)
        ok = eval_rows(u, look, data);
    else if (ok) {
        const ir_tensor *t = contents(u, u->g->result);
        ok = t != NULL;
        if (ok)
            look(data, t, 0, u->rows);
    }
    for (int i = 0; i < u->g->nop; i++)
        if (u->cell[i].when != MASK_ONCE)
            release(&u->cell[i]);
    return ok;
}

void
mask_open(mask_run *u, ir_module *m, const mask_graph *g, int64_t rows, bool by_row)
{
    *u = (mask_run){.m = m, .g = g, .rows = rows, .leaves = ef_arena_new()};
    if (g->key) {
        u->key.type = g->key->type;
        u->key.data = EF_NEWN(u->leaves, double, ir_type_count(g->key->type) + 1);
    }
    mark_rows(u, by_row);
    mark_once(u);
}

void
mask_close(mask_run *u)
{
    for (int i = 0; i < u->g->nop; i++)
        release(&u->cell[i]);
    ef_arena_free(u->leaves);
}
