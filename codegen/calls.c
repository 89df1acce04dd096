/* calls.c -- plan.h: the calls of micro(), and the floats that each reads and writes.
 *
 * Where a loss or a norm is not finite the trainer runs the step once more and looks at the
 * results of each call, to name the op that went bad first. For that every call is followed
 * by rt_done(run, NUMBER), and this table says what call NUMBER left where. A kernel is one
 * call of many ops: only those whose results are stored can be looked at; the others are
 * named beside them. Operands that a call has written over are not listed.
 *
 * Infinities are no fault where they are meant: in masks, and in what moving and combining
 * elements makes of them. Such values are followed from constants through the ops whose row
 * in ops.def casts as KEEP or WIDE: those that compute nothing else.
 */
#include "cg_int.h"

#include <math.h>

enum { PIECE = 1 << 14, SHOWN = 8 };

/* ---- infinities that are meant ---- */

static bool
holds_infinity(cg *c, const ir_param *p)
{
    int64_t total = ir_type_count(p->value->type);
    float *x = EF_NEWN(c->arena, float, PIECE);
    if (p->cls != IR_CONST || p->value->type->dtype != IR_F32)
        return false;
    for (int64_t first = 0, n; first < total; first += n) {
        n = total - first < PIECE ? total - first : PIECE;
        if (!ir_read_f32(c->m, p, 0, first, n, x))
            return false; /* said; base.safetensors will fail, too */
        for (int64_t i = 0; i < n; i++)
            if (isinf(x[i]))
                return true;
    }
    return false;
}

static void
mark(cg *c, const ir_value *v)
{
    ef_map_set(c->arena, &c->infinite, v, c);
}

void
cg_find_infinite(cg *c, const ir_func *f)
{
    for (int i = 0; i < c->m->params.n; i++)
        if (holds_infinity(c, c->m->params.at[i]))
            mark(c, c->m->params.at[i]->value);
    for (const ir_op *op = ir_first_op(f); op; op = ir_next_op(op)) {
        const ir_opinfo *row = &ir_ops[op->code];
        bool passes_on = row->cast == IR_CAST_KEEP || row->cast == IR_CAST_WIDE;
        bool found =
            op->code == IR_OP_const && isinf(ir_attr_num(op, IR_ATTR_value, 0));
        for (int i = 0; i < op->narg && passes_on; i++)
            found |= ef_map_has(&c->infinite, op->arg[i]);
        for (int i = 0; i < op->nres && found; i++)
            mark(c, op->res[i]);
        if (row->flags & IR_LAST_INF)
            mark(c, op->res[op->nres - 1]);
    }
}

/* ---- tensors ---- */

static const ir_value *
storage(const cg *c, const ir_value *v) /* the value whose memory v is */
{
    while (v->def && pass_is_view(v->def))
        v = v->def->arg[0];
    const ir_value *grad = ef_map_get(&c->gradient, v);
    return grad ? grad : v;
}

/* Class and place of v as C; NULL: it is in no memory, or an input. */
static const char *
place(const cg *c, const ir_value *v)
{
    static const char *const cls[] = {
        [IR_TRAIN] = "RT_TRAIN", [IR_FROZEN] = "RT_FROZEN", [IR_CONST] = "RT_CONST",
        [IR_GRAD] = "RT_GRAD",   [IR_IMAGE] = "RT_IMAGE",   [IR_SCALER] = "RT_SCALER"};
    const ir_value *at = storage(c, v);
    const ir_param *p = at->param;
    if (p)
        return ef_printf(c->arena, "%s, %d, %lld", cls[p->cls],
                         p->of ? p->of->unit : p->unit, (long long)p->offset);
    if (!at->def || cg_offset(at) < 0)
        return NULL;
    return ef_printf(c->arena, "RT_ARENA, 0, %lld", (long long)cg_offset(at));
}

/* Number of v in the table of tensors, as op leaves it (NULL: as an operand); -1: it holds
 * no floats, or is in no memory. */
static int
tensor(cg *c, const ir_value *v, const ir_op *op)
{
    const char *at = ir_dtypes[v->type->dtype].is_float ? place(c, v) : NULL;
    ef_arena *a = c->arena;
    if (!at)
        return -1;
    if (!op && ef_map_has(&c->tensor_of, v))
        return (int)(intptr_t)ef_map_get(&c->tensor_of, v);
    const ir_type *t = v->type;
    const char *name =
        cg_string(a, ef_printf(a, "%c%s", v->param ? '$' : '%', v->name));
    ef_buf b = {.arena = a};
    ef_putf(&b, "{%s, %s, %s, %s, ", name,
            cg_string(a, op ? ir_ops[op->code].name : NULL),
            cg_string(a, op ? op->loc : NULL), at);
    ef_putf(&b, "%d, {%s}, %s, %s, %s},", t->rank,
            t->rank ? cg_ints(a, t->rank, t->dim) : "0",
            ef_map_has(&c->infinite, v) ? "true" : "false", cg_dtype(v), cg_vary(t));
    ef_map_set(a, &c->tensor_of, v, (void *)(intptr_t)c->tensor.n);
    ef_push(a, c->tensor, b.s);
    return c->tensor.n - 1;
}

/* ---- calls ---- */

typedef struct call {
    cg *c;
    ef_buf list, also;
    int nres, n, nalso;
    ef_map seen; /* operands, and results of the call */
    EF_VEC(const ir_value *) res;
} call;

static void
add(call *k, int number)
{
    ef_putf(&k->list, "%s%d", k->n ? ", " : "", number);
    k->n++;
}

static void
add_result(call *k, const ir_value *v, const ir_op *op)
{
    int number = tensor(k->c, v, op);
    ef_map_set(k->c->arena, &k->seen, v, k);
    ef_push(k->c->arena, k->res, v);
    if (number >= 0)
        add(k, number);
    else if (pass_is_ew(op) && v->nuse && op->code != IR_OP_const)
        if (++k->nalso <= SHOWN)
            ef_putf(&k->also, "%s%s%s%s%s", k->also.n ? ", " : "",
                    ir_ops[op->code].name, op->loc ? " (" : "", op->loc ? op->loc : "",
                    op->loc ? ")" : "");
}

/* Has the call written where v was? */
static bool
is_gone(const call *k, const ir_value *v)
{
    const ir_value *at = storage(k->c, v);
    for (int i = 0; i < k->res.n; i++) {
        const ir_value *r = storage(k->c, k->res.at[i]);
        int64_t from = cg_offset(r), arg = cg_offset(at);
        if (at == r || (at->def && r->def && from >= 0 && arg >= 0 &&
                        arg < from + ir_type_bytes(r->type) &&
                        from < arg + ir_type_bytes(at->type)))
            return true;
    }
    return false;
}

static void
add_operands(call *k, const ir_op *op)
{
    for (int i = 0; i < op->narg; i++) {
        const ir_value *v = op->arg[i];
        int number =
            ef_map_has(&k->seen, v) || is_gone(k, v) ? -1 : tensor(k->c, v, NULL);
        ef_map_set(k->c->arena, &k->seen, v, k);
        if (number >= 0)
            add(k, number);
    }
}

/* Is o an op of the call that was written for op, the last of them? */
static bool
is_of_call(const ir_op *o, const ir_op *op)
{
    return o == op || (pass_is_ew(op) && ir_attr_int(o, IR_ATTR_kernel, -1) ==
                                             ir_attr_int(op, IR_ATTR_kernel, -2));
}

static const ir_op *
first_of_call(const ir_op *op)
{
    const ir_op *first = op;
    for (const ir_op *o = op->prev; o && pass_is_ew(op); o = o->prev)
        first = is_of_call(o, op) ? o : first;
    return first;
}

int
cg_new_call(cg *c, const ir_op *op)
{
    ef_arena *a = c->arena;
    call k = {.c = c, .list = {.arena = a}, .also = {.arena = a}};
    const ir_op *first = first_of_call(op);
    if (op->code == IR_OP_accum)
        add_result(&k, op->arg[0], op);
    for (const ir_op *o = first; o != op->next; o = o->next)
        for (int i = 0; i < o->nres && is_of_call(o, op); i++)
            add_result(&k, o->res[i], o);
    k.nres = k.n;
    for (const ir_op *o = first; o != op->next; o = o->next)
        if (is_of_call(o, op))
            add_operands(&k, o);
    if (k.nalso > SHOWN)
        ef_putf(&k.also, " and %d more", k.nalso - SHOWN);
    ef_buf row = {.arena = a};
    ef_putf(&row, "{%d, %s, %s, %d, %d, ", op->block->unit,
            op->block->phase == IR_BWD ? "true" : "false",
            cg_string(a, k.also.n ? k.also.s : NULL), k.nres, k.n);
    ef_putf(&row, k.n ? "(const int[]){%s}}," : "NULL},", k.list.s);
    ef_push(a, c->call, row.s);
    return c->call.n - 1;
}

/* ---- the tables ---- */

/* `type name[]`, its rows numbered; C has no array without elements. */
static void
put_table(cg *c, ef_buf *b, const char *name, const char *const *row, int n)
{
    ef_putf(b, n ? "static const %s[] = {\n" : "static const %s[1];\n", name);
    for (int i = 0; i < n; i++)
        cg_code(b, 4, ef_printf(c->arena, "/* %d */ %s", i, row[i]));
    ef_puts(b, n ? "};\n" : "");
}

void
cg_call_table(cg *c, ef_buf *b)
{
    ef_puts(b, "\n/* Floats that the calls of micro() work on: name, op and ONNX node, "
               "place, shape,\n * whether infinities are meant, type, and what the "
               "first dimension "
               "is. */\n");
    put_table(c, b, "rt_tensor tensors", c->tensor.at, c->tensor.n);
    ef_puts(b, "\n/* The calls, by the number in rt_done(): unit, backward, ops that "
               "store nothing,\n * tensors: first the results. */\n");
    put_table(c, b, "rt_op calls", c->call.at, c->call.n);
}
