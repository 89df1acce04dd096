/* parse.c -- text to module, the inverse of print.c; grammar in docs/ir.md.
 *
 * A statement is a line, and the parser is one function per statement. A faulty line is
 * reported and skipped, so that a person sees all faults of a file at once; a value whose
 * line was faulty is remembered, and lines that use it are skipped in silence. Types of
 * results are read and compared with the shape rule right away, where line and column are
 * known; everything else that can be wrong with a module is left to the verifier.
 */
#include <inttypes.h>
#include <string.h>

#include "parse_int.h"

enum { MAX_FAULTS = 20, MAX_BLOCKS = 1 << 14, MAX_VALUES = 1 << 26 };

typedef struct parser {
    ir_lexer lx;
    ir_module *m;
    ir_func *f; /* function that is open, or NULL */
    ir_block *block;
    bool skip; /* the function's head was faulty: so its body is not read */
    ef_map lost, lost_params; /* names of values whose line was faulty */
    EF_VEC(ir_value *) arg;   /* of the op that is read */
    EF_VEC(const char *) res;
} parser;

/* Remembers where the param, function, block or op stands, for the verifier. */
static void
stands_at(parser *ps, const void *what, const char *at)
{
    void *loc = (void *)ir_lex_place(&ps->lx, at);
    ef_map_set(ps->m->arena, &ps->m->lines, what, loc);
}

/* ---- head of the file ---- */

static void
parse_head(parser *ps)
{
    ir_lexer *lx = &ps->lx;
    const char *at = lx->p;
    if (strcmp(ir_lex_name(lx, 0, "efficc-ir"), "efficc-ir"))
        ir_lex_fail(lx, at, "expected 'efficc-ir' and the format version");
    at = lx->p;
    int64_t version = ir_lex_int(lx, 1);
    if (!lx->bad && version > IR_FORMAT) {
        const char *loc = ir_lex_place(lx, at);
        ef_error(ps->m->ctx, loc, E_IR_VERSION, version > 9999 ? 9999 : (int)version,
                 IR_FORMAT);
        lx->nfault++;
        lx->bad = true;
    }
    while (!lx->bad && !ir_lex_at_end(lx))
        ef_push(ps->m->arena, ps->m->passes, ir_lex_word(lx, "the name of a pass"));
}

static void
parse_meta(parser *ps)
{
    const char *at = ps->lx.p;
    const char *key = ir_lex_name(&ps->lx, 0, "a key");
    const char *value = ir_lex_quoted(&ps->lx, "a value");
    if (ps->lx.bad)
        return;
    if (ir_meta_get(ps->m, key))
        ir_lex_fail(&ps->lx, at, "'%s' stands there twice", key);
    else
        ir_meta_set(ps->m, key, value);
}

static void
parse_unit(parser *ps)
{
    const char *at = ps->lx.p;
    if (ir_lex_int(&ps->lx, 0) != ps->m->units.n)
        ir_lex_fail(&ps->lx, at, "expected unit %d", ps->m->units.n);
    const char *name = ir_lex_quoted(&ps->lx, "the unit's name");
    if (!ps->lx.bad)
        ir_unit_new(ps->m, name);
}

/* ---- params ---- */

static void
parse_values(parser *ps, ir_param *p)
{
    ir_lexer *lx = &ps->lx;
    const char *at = lx->p;
    int64_t n = ir_type_count(p->value->type), have = 0;
    if (n > MAX_VALUES) {
        ir_lex_fail(lx, at, "expected at most %d literal values", MAX_VALUES);
        return;
    }
    double *v = EF_NEWN(ps->m->arena, double, n);
    while (!lx->bad && !ir_lex_at_end(lx) && *lx->p != '!') {
        double x = ir_lex_float(lx);
        int64_t run = ir_lex_eat(lx, "*") ? ir_lex_int(lx, 1) : 1;
        if (run > n - have) {
            ir_lex_fail(lx, at, "expected %" PRId64 " values, found more", n);
            return;
        }
        for (int64_t i = 0; i < run; i++)
            v[have++] = x;
    }
    if (have < n)
        ir_lex_fail(lx, at, "expected %" PRId64 " values, found %" PRId64, n, have);
    p->init = IR_INIT_VALUES;
    p->values = v;
}

static void
parse_part(ir_lexer *lx, ir_param *p)
{
    p->part = ir_lex_quoted(lx, "the part");
    ir_lex_want(lx, ":");
    p->part_start = ir_lex_int(lx, 0);
    ir_lex_want(lx, ":");
    p->part_len = ir_lex_int(lx, 0);
    ir_lex_want(lx, ":");
    p->part_of = ir_lex_int(lx, 0);
    if (!ir_lex_eat(lx, ":"))
        return;
    p->part_block = ir_lex_int(lx, 0);
    ir_lex_want(lx, ":");
    p->part_stride = ir_lex_int(lx, 0);
}

static void
parse_of(parser *ps, ir_param *p)
{
    const char *at = ps->lx.p;
    const char *name = ir_lex_name(&ps->lx, '$', "a parameter, $name");
    p->of = ir_param_by_name(ps->m, name);
    if (p->of == p)
        p->of = NULL;
    if (ef_map_has(&ps->lost_params, name))
        ps->lx.bad = true; /* its line was reported */
    else if (!p->of)
        ir_lex_fail(&ps->lx, at, "parameter $%s is not known before this line", name);
}

/* NAME=... */
static void
parse_named_field(parser *ps, ir_param *p, const char *name, const char *at)
{
    ir_lexer *lx = &ps->lx;
    ir_lex_want(lx, "=");
    if (!strcmp(name, "onnx")) {
        p->onnx = ir_lex_quoted(lx, "an initializer's name");
    } else if (!strcmp(name, "also")) {
        ef_push(ps->m->arena, p->also, ir_lex_quoted(lx, "an initializer's name"));
    } else if (!strcmp(name, "hf")) {
        p->hf = ir_lex_quoted(lx, "a name");
    } else if (!strcmp(name, "shift")) {
        p->shift = (int)ir_lex_int(lx, 1);
    } else if (!strcmp(name, "role")) {
        p->role = (ir_prole)ir_lex_choice(lx, "a role", 5, ir_role_word);
    } else if (!strcmp(name, "module")) {
        p->module = ir_lex_quoted(lx, "a module's name");
    } else if (!strcmp(name, "part")) {
        parse_part(lx, p);
    } else if (!strcmp(name, "of")) {
        parse_of(ps, p);
    } else if (!strcmp(name, "at")) {
        p->offset = ir_lex_int(lx, 0);
    } else {
        ir_lex_fail(lx, at, "a parameter has no field '%s'", name);
    }
}

static void
parse_field(parser *ps, ir_param *p)
{
    ir_lexer *lx = &ps->lx;
    const char *at = lx->p, *word = ir_lex_word(lx, "a field of the parameter");
    if (!strcmp(word, "transposed")) {
        p->transposed = true;
        return;
    }
    for (int i = 0; i < (int)EF_COUNT(ir_init_word); i++) {
        if (!ir_init_word[i] || strcmp(ir_init_word[i], word))
            continue;
        p->init = (ir_init)i;
        if (p->init == IR_INIT_FILE) {
            p->file_dtype = ir_lex_dtype(lx);
            p->path = ir_lex_quoted(lx, "a path");
            p->at = (uint64_t)ir_lex_int(lx, 0);
        }
        return;
    }
    parse_named_field(ps, p, word, at);
}

/* A unit that exists. */
static int
parse_in_unit(parser *ps)
{
    const char *at = ps->lx.p;
    if (strcmp(ir_lex_word(&ps->lx, "unit=N"), "unit"))
        ir_lex_fail(&ps->lx, at, "expected unit=N");
    ir_lex_want(&ps->lx, "=");
    int64_t unit = ir_lex_int(&ps->lx, 0);
    if (unit >= ps->m->units.n)
        ir_lex_fail(&ps->lx, at, "unit %" PRId64 " is not among the %d above", unit,
                    ps->m->units.n);
    return ps->lx.bad ? 0 : (int)unit;
}

static void
parse_param_fields(parser *ps, ir_param *p)
{
    ir_lexer *lx = &ps->lx;
    while (!lx->bad && !ir_lex_at_end(lx) && *lx->p != '!' && *lx->p != '=')
        parse_field(ps, p);
    if (ir_lex_eat(lx, "="))
        parse_values(ps, p);
    p->loc = ir_lex_loc(lx);
}

static void
parse_param(parser *ps)
{
    ir_lexer *lx = &ps->lx;
    const char *at = lx->p;
    const char *name = ir_lex_name(lx, '$', "the parameter's name, $name");
    if (!lx->bad && ir_param_by_name(ps->m, name))
        ir_lex_fail(lx, at, "parameter $%s exists already", name);
    ir_lex_want(lx, ":");
    const ir_type *t = ir_lex_type(lx);
    int cls = ir_lex_choice(lx, "a class of parameters", IR_NCLASSES, ir_class_word);
    int unit = parse_in_unit(ps);
    if (lx->bad) {
        ef_map_set(ps->m->arena, &ps->lost_params, name, ps);
        return;
    }
    ir_param *p = ir_param_new(ps->m, name, t, (ir_pclass)cls, unit);
    stands_at(ps, p, at);
    parse_param_fields(ps, p);
}

/* ---- functions and blocks ---- */

static void
parse_args(parser *ps)
{
    ir_lexer *lx = &ps->lx;
    ir_lex_want(lx, "(");
    while (!lx->bad && *lx->p != ')') {
        const char *at = lx->p, *name = ir_lex_name(lx, '%', "an argument, %name");
        if (ef_map_get(&ps->f->names, name))
            ir_lex_fail(lx, at, "argument %%%s exists already", name);
        ir_lex_want(lx, ":");
        const ir_type *t = ir_lex_type(lx);
        if (!lx->bad)
            ir_arg_new(ps->f, name, t);
        if (*lx->p != ')')
            ir_lex_want(lx, ",");
    }
    ir_lex_want(lx, ")");
}

static void
parse_func(parser *ps)
{
    ir_lexer *lx = &ps->lx;
    const char *at = lx->p, *name = ir_lex_name(lx, '$', "$step or $eval");
    bool step = !strcmp(name, "step");
    if (!step && strcmp(name, "eval"))
        ir_lex_fail(lx, at, "expected $step or $eval");
    if (step ? ps->m->step : ps->m->eval)
        ir_lex_fail(lx, at, "function $%s exists already", name);
    ps->skip = true;
    if (lx->bad)
        return;
    ps->f = ir_func_new(ps->m, name);
    stands_at(ps, ps->f, at);
    ps->block = NULL;
    ps->lost = (ef_map){0};
    parse_args(ps);
    ir_lex_want(lx, "{");
    ps->skip = lx->bad;
    if (lx->bad)
        ps->f = NULL;
}

static void
parse_block(parser *ps, int *nblock)
{
    ir_lexer *lx = &ps->lx;
    const char *at = lx->p, *name = ir_lex_name(lx, '@', "a block, @name");
    IR_FOREACH_BLOCK (b, ps->f)
        if (b->name == name)
            ir_lex_fail(lx, at, "block @%s exists already", name);
    if (++*nblock > MAX_BLOCKS)
        ir_lex_fail(lx, at, "expected at most %d blocks", MAX_BLOCKS);
    ir_lex_want(lx, ":");
    int phase = ir_lex_choice(lx, "fwd, bwd or update", 3, ir_phase_word);
    int unit = parse_in_unit(ps);
    /* also after a fault: the ops below belong somewhere */
    ps->block = ir_block_new(ps->f, *name ? name : "_", (ir_phase)phase, unit);
    stands_at(ps, ps->block, at);
}

/* ---- ops ---- */

static void
parse_results(parser *ps)
{
    ir_lexer *lx = &ps->lx;
    ps->res.n = 0;
    if (*lx->p != '%')
        return;
    do {
        const char *at = lx->p, *name = ir_lex_name(lx, '%', "a result, %name");
        bool taken = ef_map_get(&ps->f->names, name) != NULL;
        for (int i = 0; i < ps->res.n; i++)
            taken |= ps->res.at[i] == name;
        if (taken)
            ir_lex_fail(lx, at, "value %%%s exists already", name);
        if (ps->res.n == IR_MAX_NRES)
            ir_lex_fail(lx, at, "expected at most %d results", IR_MAX_NRES);
        if (!lx->bad)
            ef_push(ps->m->arena, ps->res, name);
    } while (ir_lex_eat(lx, ","));
    ir_lex_want(lx, "=");
}

static void
parse_operand(parser *ps)
{
    ir_lexer *lx = &ps->lx;
    bool param = *lx->p == '$';
    const char *at = lx->p;
    const char *name = ir_lex_name(lx, param ? '$' : '%', "an operand, %name or $name");
    if (lx->bad)
        return;
    ir_value *v = ef_map_get(param ? &ps->m->names : &ps->f->names, name);
    if (v)
        ef_push(ps->m->arena, ps->arg, v);
    else if (ef_map_has(param ? &ps->lost_params : &ps->lost, name))
        lx->bad = true; /* its line was reported */
    else
        ir_lex_fail(lx, at, "%c%s is not known before this line", param ? '$' : '%',
                    name);
}

static void
parse_operands(parser *ps)
{
    ps->arg.n = 0;
    if (*ps->lx.p != '%' && *ps->lx.p != '$')
        return;
    do
        parse_operand(ps);
    while (ir_lex_eat(&ps->lx, ","));
}

static void
parse_list(parser *ps, ir_attr *a)
{
    EF_VEC(int64_t) list = {0};
    ir_lex_want(&ps->lx, "[");
    while (!ps->lx.bad && *ps->lx.p != ']') {
        ef_push(ps->m->arena, list, ir_lex_int(&ps->lx, INT64_MIN));
        if (*ps->lx.p != ']')
            ir_lex_want(&ps->lx, ",");
    }
    ir_lex_want(&ps->lx, "]");
    a->u.l = list.at;
    a->n = list.n;
}

static void
parse_attr(parser *ps, ir_op *op)
{
    ir_lexer *lx = &ps->lx;
    const char *at = lx->p, *table[IR_NATTRS];
    for (int i = 0; i < IR_NATTRS; i++)
        table[i] = ir_attrs[i].name;
    ir_attr a = {.key = ir_lex_choice(lx, "an attribute", IR_NATTRS, table)};
    if (!lx->bad && ir_attr_get(op, a.key))
        ir_lex_fail(lx, at, "attribute '%s' stands there twice", table[a.key]);
    ir_lex_want(lx, "=");
    switch (ir_attrs[a.key].kind) {
    case 'i':
        a.u.i = ir_lex_int(lx, INT64_MIN);
        break;
    case 'f':
        a.u.f = ir_lex_float(lx);
        break;
    case 's':
        a.u.s = ir_lex_quoted(lx, "a string");
        break;
    default:
        parse_list(ps, &a);
    }
    if (!lx->bad)
        ir_attr_set(ps->m, op, a);
}

static void
parse_types(parser *ps, ir_op *op)
{
    for (int i = 0; i < op->nres; i++) {
        ir_lex_want(&ps->lx, i ? "," : ":");
        op->res[i]->type = ir_lex_type(&ps->lx);
    }
}

/* The types that were read against the shape rule's. */
static void
check_types(parser *ps, const ir_op *op, const char *at)
{
    ef_ctx *ctx = ps->m->ctx;
    const ir_type *out[IR_MAX_NRES] = {NULL};
    const char *why = ps->lx.bad ? NULL : ir_op_types(ctx, op, out);
    for (int i = 0; !why && !ps->lx.bad && i < op->nres; i++)
        if (op->res[i]->type != out[i])
            why = ef_internf(ctx, "result %d is %s, expected %s", i,
                             ir_type_text(ctx, op->res[i]->type),
                             ir_type_text(ctx, out[i]));
    if (why)
        ir_lex_fail_as(&ps->lx, at, E_IR_SHAPE, ir_ops[op->code].name, why);
}

static ir_opcode
parse_opcode(parser *ps)
{
    const char *at = ps->lx.p, *name = ir_lex_word(&ps->lx, "an op");
    ir_opcode code = ir_op_by_name(name);
    if (code == IR_NOPS)
        ir_lex_fail(&ps->lx, at, "no op is called '%s'", name);
    return code;
}

/* [%res, .. =] op [operands] [{attrs}] [: types] [!"loc"] */
static void
parse_op(parser *ps)
{
    ir_lexer *lx = &ps->lx;
    parse_results(ps);
    const char *at = lx->p;
    ir_opcode code = parse_opcode(ps);
    parse_operands(ps);
    if (!lx->bad && !ps->block)
        ir_lex_fail(lx, at,
                    "expected a block, @name: phase unit=N, before the first op");
    if (!lx->bad) {
        ir_op *op = ir_op_new(ps->block, NULL, code, ps->arg.n, ps->res.n);
        for (int i = 0; i < op->narg; i++)
            ir_op_arg(op, i, ps->arg.at[i]);
        if (ir_lex_eat(lx, "{")) {
            do
                parse_attr(ps, op);
            while (ir_lex_eat(lx, ","));
            ir_lex_want(lx, "}");
        }
        parse_types(ps, op);
        op->loc = ir_lex_loc(lx);
        ir_lex_end(lx);
        check_types(ps, op, at);
        for (int i = 0; i < op->nres && !lx->bad; i++)
            ir_op_name(op, i, ps->res.at[i]);
        stands_at(ps, op, at);
    }
    for (int i = 0; i < ps->res.n && lx->bad; i++)
        ef_map_set(ps->m->arena, &ps->lost, ps->res.at[i], ps);
}

/* ---- the module ---- */

static void
parse_line(parser *ps, int *nblock)
{
    ir_lexer *lx = &ps->lx;
    if (ps->skip) {
        ps->skip = *lx->p != '}';
        return;
    }
    if (ps->f && ir_lex_eat(lx, "}")) {
        ps->f = NULL;
    } else if (ps->f && *lx->p == '@') {
        parse_block(ps, nblock);
    } else if (ps->f) {
        parse_op(ps);
    } else {
        const char *at = lx->p, *word = ir_lex_word(lx, "meta, unit, param or func");
        if (!strcmp(word, "meta"))
            parse_meta(ps);
        else if (!strcmp(word, "unit"))
            parse_unit(ps);
        else if (!strcmp(word, "param"))
            parse_param(ps);
        else if (!strcmp(word, "func"))
            parse_func(ps);
        else
            ir_lex_fail(lx, at, "expected meta, unit, param or func");
    }
    ir_lex_end(lx);
}

static void
parse_module(parser *ps, const char *text)
{
    ir_lexer *lx = &ps->lx;
    int nblock = 0;
    lx->line = lx->p = text;
    lx->lineno = 1;
    ir_lex_blank(lx);
    if (ir_lex_at_end(lx))
        ir_lex_next_line(lx);
    parse_head(ps);
    while (lx->nfault < MAX_FAULTS && ir_lex_next_line(lx))
        parse_line(ps, &nblock);
    lx->bad = false;
    if (lx->nfault == MAX_FAULTS)
        ef_note(ps->m->ctx, "reading stops after %d faults", MAX_FAULTS);
    else if (ps->f)
        ir_lex_fail(lx, NULL, "function $%s is not closed: expected '}'", ps->f->name);
}

ir_module *
ir_parse(ef_ctx *ctx, const char *file, const char *text)
{
    const char *outer = ctx->file;
    ctx->file = file;
    parser ps = {.m = ir_module_new(ctx)};
    ps.lx.m = ps.m;
    parse_module(&ps, text);
    ctx->file = outer;
    if (!ps.lx.nfault)
        return ps.m;
    ir_module_free(ps.m);
    return NULL;
}
