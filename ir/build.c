/* build.c -- makes modules: params, functions, blocks, ops.
 *
 * All memory is the module's arena. An op is linked into its block before it has operands;
 * whoever makes one gives it operands, attributes, then types from the shape rule.
 */
#include <stdlib.h>
#include <string.h>

#include "ir_int.h"

ir_module *
ir_module_new(ef_ctx *ctx)
{
    ef_arena *arena = ef_arena_new();
    ir_module *m = EF_NEW(arena, ir_module);
    m->ctx = ctx;
    m->arena = arena;
    return m;
}

void
ir_module_free(ir_module *m)
{
    if (m)
        ef_arena_free(m->arena);
}

/* ---- meta ---- */

const char *
ir_meta_get(const ir_module *m, const char *key)
{
    key = ir_name_clean(m->ctx, key);
    for (int i = 0; i < m->meta.n; i++)
        if (m->meta.at[i].key == key)
            return m->meta.at[i].value;
    return NULL;
}

void
ir_meta_set(ir_module *m, const char *key, const char *value)
{
    ir_meta entry = {ir_name_clean(m->ctx, key), ef_intern(m->ctx, value)};
    for (int i = 0; i < m->meta.n; i++)
        if (m->meta.at[i].key == entry.key) {
            m->meta.at[i] = entry;
            return;
        }
    ef_push(m->arena, m->meta, entry);
}

int64_t
ir_meta_int(const ir_module *m, const char *key, int64_t absent)
{
    const char *s = ir_meta_get(m, key);
    return s ? strtoll(s, NULL, 10) : absent;
}

/* ---- functions, blocks, units, params ---- */

ir_func *
ir_func_new(ir_module *m, const char *name)
{
    ir_func **where = !strcmp(name, "step") ? &m->step : &m->eval;
    EF_ASSERT(!*where && (where == &m->step || !strcmp(name, "eval")));
    ir_func *f = EF_NEW(m->arena, ir_func);
    f->name = ef_intern(m->ctx, name);
    f->module = m;
    return *where = f;
}

static ir_value *
value_new(ir_module *m, const char *name, const ir_type *t)
{
    ir_value *v = EF_NEW(m->arena, ir_value);
    v->name = name;
    v->type = t;
    return v;
}

ir_value *
ir_arg_new(ir_func *f, const char *name, const ir_type *t)
{
    ir_module *m = f->module;
    name = ir_name_unique(m->ctx, m->arena, &f->names, &f->suffixes, name);
    ir_value *v = value_new(m, name, t);
    ir_name_take(m->arena, &f->names, name, v);
    ef_push(m->arena, f->args, v);
    return v;
}

int
ir_unit_new(ir_module *m, const char *name)
{
    ef_push(m->arena, m->units, ef_intern(m->ctx, name));
    return m->units.n - 1;
}

static bool
has_block(const ir_func *f, const char *name)
{
    IR_FOREACH_BLOCK (b, f)
        if (b->name == name)
            return true;
    return false;
}

ir_block *
ir_block_new(ir_func *f, const char *name, ir_phase phase, int unit)
{
    ir_module *m = f->module;
    ir_block *b = EF_NEW(m->arena, ir_block);
    const char *stem = b->name = ir_name_clean(m->ctx, name);
    for (int k = 1; has_block(f, b->name); k++) /* blocks are few: no index is kept */
        b->name = ef_internf(m->ctx, "%s.%d", stem, k);
    b->phase = phase;
    b->unit = unit;
    b->func = f;
    b->prev = f->last;
    *(f->last ? &f->last->next : &f->first) = b;
    return f->last = b;
}

ir_param *
ir_param_new(ir_module *m, const char *name, const ir_type *t, ir_pclass cls, int unit)
{
    ir_param *p = EF_NEW(m->arena, ir_param);
    name = ir_name_unique(m->ctx, m->arena, &m->names, &m->suffixes, name);
    p->value = value_new(m, name, t);
    p->value->param = p;
    p->cls = cls;
    p->unit = unit;
    p->offset = -1;
    ir_name_take(m->arena, &m->names, name, p->value);
    ef_push(m->arena, m->params, p);
    return p;
}

ir_param *
ir_param_by_name(const ir_module *m, const char *name)
{
    ir_value *v = ef_map_get(&m->names, ef_intern(m->ctx, name));
    return v ? v->param : NULL;
}

const char *
ir_param_module(ef_ctx *ctx, const ir_param *p)
{
    const char *name = p->hf ? p->hf : p->value->name, *dot = strrchr(name, '.');
    if (p->module)
        return p->module;
    return ef_internn(ctx, name, dot ? (size_t)(dot - name) : strlen(name));
}

void
ir_param_unlink(ir_module *m, ir_param *p)
{
    EF_ASSERT(!p->value->nuse);
    int kept = 0;
    for (int i = 0; i < m->params.n; i++) {
        EF_ASSERT(m->params.at[i]->of != p);
        if (m->params.at[i] != p)
            m->params.at[kept++] = m->params.at[i];
    }
    EF_ASSERT(kept == m->params.n - 1);
    m->params.n = kept;
    ir_name_free(m->ctx, m->arena, &m->names, &m->suffixes, p->value->name);
}

/* The first param of that class that belongs to `of`; NULL: none. */
static ir_param *
belongs_to(const ir_module *m, ir_pclass cls, const ir_param *of)
{
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i]->cls == cls && m->params.at[i]->of == of)
            return m->params.at[i];
    return NULL;
}

ir_param *
ir_grad_of(const ir_module *m, const ir_param *p)
{
    return belongs_to(m, IR_GRAD, p);
}

ir_param *
ir_image_of(const ir_module *m, const ir_param *p)
{
    return belongs_to(m, IR_IMAGE, p);
}

ir_param *
ir_scaler(const ir_module *m)
{
    return belongs_to(m, IR_SCALER, NULL);
}

ir_value *
ir_input_new(ir_module *m, const char *name, const char *role, const ir_type *t)
{
    ir_value *v = ir_arg_new(m->step, name, t);
    ir_meta_set(m, ef_internf(m->ctx, "input.%s", v->name), role);
    return v;
}

/* ---- ops ---- */

ir_op *
ir_op_new(ir_block *block, ir_op *before, ir_opcode code, int narg, int nres)
{
    ir_module *m = block->func->module;
    ir_op *op = EF_NEW(m->arena, ir_op);
    op->code = code;
    op->narg = narg;
    op->nres = nres;
    op->arg = narg ? EF_NEWN(m->arena, ir_value *, narg) : NULL;
    op->res = nres ? EF_NEWN(m->arena, ir_value *, nres) : NULL;
    for (int i = 0; i < nres; i++) {
        op->res[i] = value_new(m, NULL, NULL);
        op->res[i]->def = op;
    }
    op->block = block;
    op->next = before;
    op->prev = before ? before->prev : block->last;
    *(op->prev ? &op->prev->next : &block->first) = op;
    *(before ? &before->prev : &block->last) = op;
    return op;
}

void
ir_op_arg(ir_op *op, int i, ir_value *v)
{
    op->arg[i] = v;
    v->nuse++;
}

void
ir_op_name(ir_op *op, int i, const char *unique)
{
    ir_func *f = op->block->func;
    op->res[i]->name = unique;
    ir_name_take(f->module->arena, &f->names, unique, op->res[i]);
}

static int
by_key(const void *a, const void *b)
{
    return (int)((const ir_attr *)a)->key - (int)((const ir_attr *)b)->key;
}

static void
set_attrs(ir_module *m, ir_op *op, int n, const ir_attr *attr)
{
    op->nattr = n;
    op->attr = n ? ef_dup(m->arena, attr, sizeof *attr * (size_t)n) : NULL;
    for (int i = 0; i < n; i++)
        if (ir_attrs[attr[i].key].kind == 'l')
            op->attr[i].u.l =
                ef_dup(m->arena, attr[i].u.l, sizeof(int64_t) * attr[i].n);
    if (n)
        qsort(op->attr, (size_t)n, sizeof *op->attr, by_key);
}

/* A shape rule that does not hold here is a mistake of the caller, see ir_check(). */
static void
types_or_die(ir_module *m, const ir_op *op, const ir_type **out)
{
    const char *why = ir_op_types(m->ctx, op, out);
    if (!why)
        return;
    fprintf(stderr, "efficc: %s%s%s: %s\n", op->loc ? op->loc : "", op->loc ? ": " : "",
            ir_ops[op->code].name, why);
    EF_ASSERT(!"an op that violates its shape rule was built");
}

ir_op *
ir_insert(ir_builder *b, ir_opcode code, const char *name, int narg,
          ir_value *const *arg, int nattr, const ir_attr *attr, const ir_type *given,
          int nres)
{
    ir_module *m = b->m;
    nres = nres < 0 ? ir_ops[code].nres : nres;
    ir_op *op = ir_op_new(b->block, b->before, code, narg, nres);
    op->loc = b->loc;
    for (int i = 0; i < narg; i++)
        ir_op_arg(op, i, arg[i]);
    set_attrs(m, op, nattr, attr);
    if (given && nres)
        op->res[0]->type = given;
    const ir_type *out[IR_MAX_NRES] = {NULL};
    types_or_die(m, op, out);
    for (int i = 0; i < nres; i++) {
        const char *want = name ? name : ir_ops[code].name;
        op->res[i]->type = out[i];
        ir_op_name(
            op, i,
            ir_name_unique(m->ctx, m->arena, &b->f->names, &b->f->suffixes, want));
    }
    return op;
}

ir_value *
ir_emit(ir_builder *b, ir_opcode code, const char *name, int narg, ir_value *const *arg,
        int nattr, const ir_attr *attr, const ir_type *given)
{
    return ir_insert(b, code, name, narg, arg, nattr, attr, given, 1)->res[0];
}

const char *
ir_check(ir_module *m, ir_opcode code, int narg, ir_value *const *arg, int nattr,
         const ir_attr *attr, const ir_type *given)
{
    if (nattr > IR_NATTRS)
        return "an attribute stands there twice";
    ir_attr sorted[IR_NATTRS];
    if (nattr)
        memcpy(sorted, attr, sizeof *attr * (size_t)nattr);
    qsort(sorted, (size_t)nattr, sizeof *sorted, by_key);
    ir_value result = {.type = given};
    ir_value *res[IR_MAX_NRES] = {&result, &result, &result, &result};
    ir_op op = {.code = code,
                .narg = narg,
                .nres = ir_ops[code].nres,
                .nattr = nattr,
                .arg = (ir_value **)arg,
                .res = res,
                .attr = sorted};
    const ir_type *out[IR_MAX_NRES];
    return ir_op_types(m->ctx, &op, out);
}

ir_value *
ir_ew1(ir_builder *b, ir_opcode code, const char *name, ir_value *x)
{
    return ir_emit(b, code, name, 1, &x, 0, NULL, NULL);
}

ir_value *
ir_ew2(ir_builder *b, ir_opcode code, const char *name, ir_value *x, ir_value *y)
{
    return ir_emit(b, code, name, 2, (ir_value *[]){x, y}, 0, NULL, NULL);
}

ir_value *
ir_const(ir_builder *b, const char *name, const ir_type *t, double value)
{
    ir_attr attr = ir_attr_f(IR_ATTR_value, value);
    return ir_emit(b, IR_OP_const, name, 0, NULL, 1, &attr, t);
}
