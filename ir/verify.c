/* verify.c -- what holds of every module between passes:
 *
 * V1   An op has the number of operands, results and attributes of its row in ops.def, and
 *      its results have the types of its shape rule. No op but a shardwise one has a "/dp"
 *      operand.
 * V2   An operand is a param of the module, an argument of the function, or the result of
 *      an op above. Update blocks run once a step, the others once a micro-batch: an op in
 *      an update block reads params and results of update blocks only (ret may read all).
 * V3   Names consist of [A-Za-z0-9_./-]; values are unique in their function, params in
 *      the module, blocks in their function.
 * V4   ir_value.nuse is the number of operands that are the value, in all functions.
 * V5   Links agree: prev and next, first and last, the block of an op, the function of a
 *      block, the op of a result.
 * V6   A function's blocks are fwd, then bwd, then update; eval has fwd blocks only. Their
 *      units exist.
 * V7   The last op of a function is ret, and no other is.
 * V8   accum adds to an IR_GRAD param, outside update blocks. norm2 reads IR_GRAD params.
 *      optim updates an IR_TRAIN param from its IR_GRAD and two IR_STATE, and writes its
 *      IR_IMAGE if there is one, in an update block. No other op touches IR_GRAD and
 *      IR_STATE params. rescale changes an IR_SCALER param, in an update block; beside it
 *      clip_scale and slice may read it.
 * V9   A param's unit exists; it has what its init needs. IR_GRAD, IR_STATE and IR_IMAGE, and
 *      only those, belong to an IR_TRAIN param (an image also to an IR_FROZEN one) that stands
 *      above, in the same unit and with the same dims; there is one IR_GRAD and one IR_IMAGE
 *      at most of each. An image is of bf16 or f16. There is one IR_SCALER at most.
 *      Adapters name their module; rows of a part lie within part_of.
 * V10  Planned params of one unit, class and, for states, order do not overlap.
 * V11  A planned op has one offset a result in `at`, and two numbers in `ws`.
 *
 * A fault is reported and the check goes on; what can not be followed further is skipped.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ir_int.h"

typedef struct verifier {
    const ir_module *m;
    ef_arena *arena;
    /* ir_value* -> uses seen, as a number + 1; its keys are all params, arguments and
     * results that are known so far */
    ef_map uses;
    ef_map graded;    /* params whose gradient was seen */
    ef_map imaged;    /* likewise their image */
    bool scaled;      /* an IR_SCALER was seen */
    const void *what; /* that is checked: param, function, block or op */
    const char *loc;  /* ONNX node or initializer of it, or NULL */
    const ir_op *op;  /* that is checked, or NULL */
    int nfault;
} verifier;

/* What faults are about from now on. */
static void
look_at(verifier *v, const void *what, const char *loc)
{
    v->what = what;
    v->loc = loc;
    v->op = NULL;
}

static void
fault(verifier *v, const char *fmt, ...)
{
    const char *line = v->what ? ef_map_get(&v->m->lines, v->what) : NULL;
    va_list ap;
    va_start(ap, fmt);
    const char *text = ef_vprintf(v->arena, fmt, ap);
    va_end(ap);
    v->nfault++;
    if (v->op)
        text = ef_printf(v->arena, "%s: %s", ir_ops[v->op->code].name, text);
    ef_error(v->m->ctx, line ? line : v->loc, E_IR_VERIFY, text);
}

static void
count_use(verifier *v, const ir_value *x)
{
    intptr_t n = (intptr_t)ef_map_get(&v->uses, x);
    ef_map_set(v->arena, &v->uses, x, (void *)(n + 1));
}

/* ---- params ---- */

static bool
name_ok(const char *name)
{
    if (!name || !*name)
        return false;
    while (ir_name_char(*name))
        name++;
    return !*name;
}

static void
check_init(verifier *v, const ir_param *p)
{
    const char *name = p->value->name;
    if (p->init == IR_INIT_FILE && (!p->path || p->file_dtype >= IR_FUT))
        fault(v, "$%s comes from a file, expected a path and a dtype", name);
    if (p->init == IR_INIT_VALUES && !p->values)
        fault(v, "$%s has literal values, expected them", name);
    if (p->cls >= IR_GRAD && p->init != IR_INIT_NONE)
        fault(v, "$%s is %s and has contents, expected zeros", name,
              ir_class_word[p->cls]);
}

static void
check_owner(verifier *v, const ir_param *p)
{
    const char *name = p->value->name;
    bool owned = p->cls == IR_GRAD || p->cls == IR_STATE || p->cls == IR_IMAGE;
    bool frozen = p->cls == IR_IMAGE && p->of && p->of->cls == IR_FROZEN;
    if (owned != (p->of != NULL)) {
        fault(v, "$%s is %s and has %s", name, ir_class_word[p->cls],
              owned ? "no parameter it belongs to" : "a parameter it belongs to");
        return;
    }
    if (!owned)
        return;
    ef_map *seen = p->cls == IR_GRAD    ? &v->graded
                   : p->cls == IR_IMAGE ? &v->imaged
                                        : NULL;
    const ir_type *t =
        ir_type_with(v->m->ctx, p->of->value->type, p->value->type->dtype);
    if (!ef_map_has(&v->uses, p->of->value) || (p->of->cls != IR_TRAIN && !frozen))
        fault(v, "$%s belongs to $%s, expected a trained parameter above it", name,
              p->of->value->name);
    else if (seen && ef_map_has(seen, p->of))
        fault(v, "$%s is a second %s of $%s", name,
              p->cls == IR_GRAD ? "gradient" : "image", p->of->value->name);
    else if (p->cls == IR_IMAGE && !ir_is_low(p->value->type->dtype))
        fault(v, "$%s is an image of %s, expected bf16 or f16", name,
              ir_dtypes[p->value->type->dtype].name);
    else if (p->unit != p->of->unit)
        fault(v, "$%s is in unit %d, expected %d as $%s", name, p->unit, p->of->unit,
              p->of->value->name);
    else if (t != p->value->type)
        fault(v, "$%s is %s, expected %s as $%s has", name,
              ir_type_text(v->m->ctx, p->value->type), ir_type_text(v->m->ctx, t),
              p->of->value->name);
    if (seen)
        ef_map_set(v->arena, seen, p->of, v);
}

static void
check_scaler(verifier *v, const ir_param *p)
{
    if (p->cls != IR_SCALER)
        return;
    if (v->scaled)
        fault(v, "$%s is a second loss scaler", p->value->name);
    v->scaled = true;
}

static void
check_role(verifier *v, const ir_param *p)
{
    const char *name = p->value->name;
    bool adapter = p->role == IR_LORA_A || p->role == IR_LORA_B;
    if (adapter && !p->module)
        fault(v, "$%s is an adapter, expected the module it sits on", name);
    int64_t blocks = p->part_block > 0 ? p->part_len / p->part_block : 0;
    bool blocked = blocks > 0 && p->part_len % p->part_block == 0 &&
                   p->part_stride >= p->part_block &&
                   blocks - 1 <= (p->part_of - p->part_block) / p->part_stride;
    if (p->part && (p->part_block || p->part_stride) && !blocked)
        fault(v,
              "$%s covers %" PRId64 " rows in blocks of %" PRId64 ", %" PRId64
              " apart, expected whole blocks within %" PRId64,
              name, p->part_len, p->part_block, p->part_stride, p->part_of);
    int64_t covered =
        blocked ? (blocks - 1) * p->part_stride + p->part_block : p->part_len;
    if (p->part && (p->part_start < 0 || p->part_len < 0 || covered > p->part_of ||
                    p->part_start > p->part_of - covered))
        fault(v, "$%s covers %" PRId64 " rows from %" PRId64 " on, of %" PRId64, name,
              p->part_len, p->part_start, p->part_of);
}

static void
check_params(verifier *v)
{
    const ir_module *m = v->m;
    ef_map names = {0};
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        const char *name = p->value->name;
        look_at(v, p, p->loc);
        if (!name_ok(name) || ef_map_has(&names, name))
            fault(v, "parameter name '%s' is %s", name ? name : "",
                  name_ok(name) ? "not unique" : "not made of [A-Za-z0-9_./-]");
        ef_map_set(v->arena, &names, name, v);
        if (p->value->param != p || p->value->def)
            fault(v, "$%s: links of value and parameter disagree", name);
        if (p->unit < 0 || p->unit >= m->units.n)
            fault(v, "$%s is in unit %d, expected one of the %d units", name, p->unit,
                  m->units.n);
        if (p->value->type->dtype == IR_FUT)
            fault(v, "$%s has no elements", name);
        check_init(v, p);
        check_owner(v, p);
        check_scaler(v, p);
        check_role(v, p);
        ef_map_set(v->arena, &v->uses, p->value, (void *)(intptr_t)1);
    }
}

/* ---- places of params ---- */

typedef struct place {
    const ir_param *p;
    int nth; /* which of the states of its owner */
} place;

static int
by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->p->unit != y->p->unit)
        return x->p->unit < y->p->unit ? -1 : 1;
    if (x->p->cls != y->p->cls)
        return x->p->cls < y->p->cls ? -1 : 1;
    if (x->nth != y->nth)
        return x->nth < y->nth ? -1 : 1;
    return x->p->offset < y->p->offset ? -1 : x->p->offset > y->p->offset;
}

static void
check_places(verifier *v)
{
    const ir_module *m = v->m;
    place *at = EF_NEWN(v->arena, place, m->params.n);
    ef_map states = {0}; /* owner -> states seen */
    int n = 0;
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        int nth = p->cls == IR_STATE ? (int)(intptr_t)ef_map_get(&states, p->of) : 0;
        if (p->cls == IR_STATE)
            ef_map_set(v->arena, &states, p->of, (void *)(intptr_t)(nth + 1));
        if (p->offset >= 0 && ir_type_bytes(p->value->type))
            at[n++] = (place){p, nth};
    }
    if (n)
        qsort(at, (size_t)n, sizeof *at, by_place);
    for (int i = 1; i < n; i++) {
        const ir_param *p = at[i - 1].p, *q = at[i].p;
        bool together =
            p->unit == q->unit && p->cls == q->cls && at[i - 1].nth == at[i].nth;
        look_at(v, q, q->loc);
        if (together && q->offset - p->offset < ir_type_bytes(p->value->type))
            fault(v, "$%s at %" PRId64 " overlaps $%s, %" PRId64 " bytes at %" PRId64,
                  q->value->name, q->offset, p->value->name,
                  ir_type_bytes(p->value->type), p->offset);
    }
}

/* ---- ops ---- */

static bool
is_class(const ir_op *op, int i, ir_pclass cls)
{
    return op->arg[i]->param && op->arg[i]->param->cls == cls;
}

static void
check_buffers(verifier *v, const ir_op *op)
{
    bool update = op->block->phase == IR_UPDATE;
    bool optim = op->code == IR_OP_optim, accum = op->code == IR_OP_accum;
    if (optim && !(is_class(op, 0, IR_TRAIN) && is_class(op, 1, IR_GRAD) &&
                   is_class(op, 2, IR_STATE) && is_class(op, 3, IR_STATE) &&
                   (op->narg < 6 || is_class(op, 5, IR_IMAGE))))
        fault(v, "expected a trained parameter, its gradient and two states");
    else
        for (int i = 1; optim && i < op->narg; i++)
            if (i != 4 && op->arg[i]->param->of != op->arg[0]->param)
                fault(v, "operand %d belongs to another parameter than operand 0", i);
    if ((optim && !update) || (accum && update))
        fault(v, "expected it in %s", optim ? "an update block" : "a bwd block");
    if (accum && !is_class(op, 0, IR_GRAD))
        fault(v, "operand 0 is no gradient buffer");
    for (int i = 0; i < op->narg; i++) {
        bool grad = is_class(op, i, IR_GRAD), state = is_class(op, i, IR_STATE);
        bool mine = optim || (accum && i == 0) || (op->code == IR_OP_norm2 && grad);
        if ((grad || state) && !mine)
            fault(v, "operand %d is a %s buffer, which it may not read", i,
                  ir_class_word[op->arg[i]->param->cls]);
        if (op->code == IR_OP_norm2 && !grad)
            fault(v, "operand %d is no gradient buffer", i);
    }
}

/* The part of V8 on the loss scaler. */
static void
check_scaling(verifier *v, const ir_op *op)
{
    bool rescale = op->code == IR_OP_rescale, clip = op->code == IR_OP_clip_scale;
    if (rescale && op->block->phase != IR_UPDATE)
        fault(v, "expected it in an update block");
    for (int i = 0; i < op->narg; i++) {
        bool scaler = is_class(op, i, IR_SCALER);
        bool its = (rescale && i == 0) || (clip && i == 1);
        if (its && !scaler)
            fault(v, "operand %d is no loss scaler", i);
        if (scaler && !its && op->code != IR_OP_slice)
            fault(v, "operand %d is a loss scaler, which it may not read", i);
    }
}

/* V2; false: the operands can't be looked at. */
static bool
check_operands(verifier *v, const ir_op *op)
{
    bool ok = true;
    for (int i = 0; i < op->narg; i++) {
        const ir_value *x = op->arg[i];
        if (!x || !ef_map_has(&v->uses, x)) {
            fault(v, "operand %d, %s, is not defined above", i,
                  x && x->name ? ir_value_text(v->m->ctx, x) : "(none)");
            ok = false;
            continue;
        }
        count_use(v, x);
        bool once = op->block->phase == IR_UPDATE && op->code != IR_OP_ret;
        if (once && !x->param && (!x->def || x->def->block->phase != IR_UPDATE))
            fault(v,
                  "operand %d, %%%s, is a micro-batch's: an update reads "
                  "parameters and results of update blocks",
                  i, x->name);
    }
    return ok;
}

static void
check_types(verifier *v, const ir_op *op)
{
    ef_ctx *ctx = v->m->ctx;
    if (op->nres > IR_MAX_NRES) {
        fault(v, "%d results, more than any op has", op->nres);
        return;
    }
    const ir_type *out[IR_MAX_NRES] = {NULL};
    const char *why = ir_op_types(ctx, op, out);
    if (why) {
        fault(v, "%s", why);
        return;
    }
    for (int i = 0; i < op->nres; i++)
        if (op->res[i]->type != out[i])
            fault(v, "result %d is %s, expected %s", i,
                  op->res[i]->type ? ir_type_text(ctx, op->res[i]->type) : "(none)",
                  ir_type_text(ctx, out[i]));
    const ir_attr *at = ir_attr_get(op, IR_ATTR_at), *ws = ir_attr_get(op, IR_ATTR_ws);
    if ((at && at->n != op->nres) || (ws && ws->n != 2))
        fault(v, "expected an offset per result in at, offset and bytes in ws");
}

static void
check_results(verifier *v, const ir_op *op, ef_map *names)
{
    for (int i = 0; i < op->nres; i++) {
        const ir_value *r = op->res[i];
        if (!name_ok(r->name) || ef_map_has(names, r->name))
            fault(v, "result name '%s' is %s", r->name ? r->name : "",
                  name_ok(r->name) ? "not unique" : "not made of [A-Za-z0-9_./-]");
        if (r->def != op || r->param)
            fault(v, "links of result %d disagree", i);
        if (r->name)
            ef_map_set(v->arena, names, r->name, v);
        if (r->type)
            ef_map_set(v->arena, &v->uses, r, (void *)(intptr_t)1);
    }
}

static void
check_op(verifier *v, const ir_op *op, const ir_block *b, ef_map *names)
{
    look_at(v, op, op->loc);
    if (op->code >= IR_NOPS) {
        fault(v, "opcode %d does not exist", (int)op->code);
        return;
    }
    v->op = op;
    if (op->block != b || (op->prev ? op->prev->next : b->first) != op ||
        (op->next ? op->next->prev : b->last) != op)
        fault(v, "links of op and block @%s disagree", b->name);
    if (check_operands(v, op)) {
        check_types(v, op);
        check_buffers(v, op);
        check_scaling(v, op);
    }
    check_results(v, op, names);
    bool last = !ir_next_op(op);
    if ((op->code == IR_OP_ret) != last)
        fault(v, last ? "expected ret as the last op" : "expected nothing below ret");
}

/* ---- functions ---- */

static void
check_block(verifier *v, const ir_func *f, const ir_block *b, ef_map *names)
{
    look_at(v, b, NULL);
    if (!name_ok(b->name) || ef_map_has(names, b->name))
        fault(v, "block name '%s' is %s", b->name,
              name_ok(b->name) ? "not unique" : "not made of [A-Za-z0-9_./-]");
    ef_map_set(v->arena, names, b->name, v);
    if (b->func != f || (b->prev ? b->prev->next : f->first) != b ||
        (b->next ? b->next->prev : f->last) != b)
        fault(v, "links of block @%s and $%s disagree", b->name, f->name);
    if (b->unit < 0 || b->unit >= v->m->units.n)
        fault(v, "block @%s is of unit %d, expected one of the %d units", b->name,
              b->unit, v->m->units.n);
    if (b->prev && b->prev->phase > b->phase)
        fault(v, "block @%s is %s, expected it above @%s, which is %s", b->name,
              ir_phase_word[b->phase], b->prev->name, ir_phase_word[b->prev->phase]);
    if (f == v->m->eval && b->phase != IR_FWD)
        fault(v, "block @%s of $eval is %s, expected fwd", b->name,
              ir_phase_word[b->phase]);
}

static void
check_func(verifier *v, const ir_func *f)
{
    ef_map values = {0}, blocks = {0};
    int nop = 0;
    look_at(v, f, NULL);
    for (int i = 0; i < f->args.n; i++) {
        const ir_value *x = f->args.at[i];
        if (!name_ok(x->name) || ef_map_has(&values, x->name))
            fault(v, "argument name '%s' of $%s is %s", x->name, f->name,
                  name_ok(x->name) ? "not unique" : "not made of [A-Za-z0-9_./-]");
        if (x->def || x->param || x->type->dtype == IR_FUT)
            fault(v, "argument %%%s of $%s is no plain tensor", x->name, f->name);
        ef_map_set(v->arena, &values, x->name, v);
        ef_map_set(v->arena, &v->uses, x, (void *)(intptr_t)1);
    }
    IR_FOREACH_BLOCK (b, f) {
        check_block(v, f, b, &blocks);
        for (const ir_op *op = b->first; op; op = op->next, nop++)
            check_op(v, op, b, &values);
    }
    look_at(v, f, NULL);
    if (!nop)
        fault(v, "$%s does not end in ret", f->name);
}

int
ir_verify(const ir_module *m)
{
    verifier v = {.m = m, .arena = ef_arena_new()};
    check_params(&v);
    check_places(&v);
    if (m->step)
        check_func(&v, m->step);
    if (m->eval)
        check_func(&v, m->eval);
    for (int i = 0; i < v.uses.n; i++) {
        const ir_value *x = v.uses.key[i];
        intptr_t seen = (intptr_t)v.uses.val[i] - 1;
        look_at(&v, x->def, x->def ? x->def->loc : NULL);
        if (x->nuse != seen)
            fault(&v, "%s counts %u uses, has %ld", ir_value_text(m->ctx, x),
                  (unsigned)x->nuse, (long)seen);
    }
    ef_arena_free(v.arena);
    return v.nfault;
}
