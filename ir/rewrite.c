/* rewrite.c -- changes a module that exists: attributes, operands, positions, copies.
 *
 * Use counts are kept here, lists of users are not: ir_uses_of() makes them for the pass
 * that needs them.
 */
#include <string.h>

#include "ir_int.h"

/* ---- attributes ---- */

const ir_attr *
ir_attr_get(const ir_op *op, ir_attr_key key)
{
    for (int i = 0; i < op->nattr; i++)
        if (op->attr[i].key == key)
            return &op->attr[i];
    return NULL;
}

int64_t
ir_attr_int(const ir_op *op, ir_attr_key key, int64_t absent)
{
    const ir_attr *a = ir_attr_get(op, key);
    return a ? a->u.i : absent;
}

double
ir_attr_num(const ir_op *op, ir_attr_key key, double absent)
{
    const ir_attr *a = ir_attr_get(op, key);
    return a ? a->u.f : absent;
}

void
ir_attr_set(ir_module *m, ir_op *op, ir_attr attr)
{
    if (ir_attrs[attr.key].kind == 'l')
        attr.u.l = ef_dup(m->arena, attr.u.l, sizeof(int64_t) * (size_t)attr.n);
    int at = 0;
    while (at < op->nattr && op->attr[at].key < attr.key)
        at++;
    if (at < op->nattr && op->attr[at].key == attr.key) {
        op->attr[at] = attr;
        return;
    }
    ir_attr *wider = EF_NEWN(m->arena, ir_attr, op->nattr + 1);
    for (int i = 0; i < op->nattr; i++)
        wider[i + (i >= at)] = op->attr[i];
    wider[at] = attr;
    op->attr = wider;
    op->nattr++;
}

void
ir_attr_remove(ir_op *op, ir_attr_key key)
{
    int kept = 0;
    for (int i = 0; i < op->nattr; i++)
        if (op->attr[i].key != key)
            op->attr[kept++] = op->attr[i];
    op->nattr = kept;
}

/* ---- operands and positions ---- */

void
ir_rename(ir_func *f, ir_value *v, const char *name)
{
    ir_module *m = f->module;
    ir_name_free(m->ctx, m->arena, &f->names, &f->suffixes, v->name);
    v->name = ir_name_unique(m->ctx, m->arena, &f->names, &f->suffixes, name);
    ir_name_take(m->arena, &f->names, v->name, v);
}

void
ir_set_arg(ir_op *op, int i, ir_value *v)
{
    v->nuse++;
    op->arg[i]->nuse--;
    op->arg[i] = v;
}

void
ir_add_arg(ir_module *m, ir_op *op, ir_value *v)
{
    ir_value **wider = EF_NEWN(m->arena, ir_value *, op->narg + 1);
    if (op->narg)
        memcpy(wider, op->arg, sizeof *wider * (size_t)op->narg);
    op->arg = wider;
    ir_op_arg(op, op->narg++, v);
}

void
ir_cut_args(ir_op *op, int n)
{
    while (op->narg > n)
        op->arg[--op->narg]->nuse--;
}

/* From `op` on; ends early when the last use is gone. */
static void
replace_from(ir_op *op, ir_value *old, ir_value *with)
{
    for (; op && old->nuse; op = ir_next_op(op))
        for (int i = 0; i < op->narg; i++)
            if (op->arg[i] == old)
                ir_set_arg(op, i, with);
}

void
ir_replace_uses(ir_func *f, ir_value *old, ir_value *with)
{
    if (old != with)
        replace_from(old->def ? ir_next_op(old->def) : ir_first_op(f), old, with);
}

void
ir_replace_uses_after(ir_op *after, ir_value *old, ir_value *with)
{
    if (old != with)
        replace_from(ir_next_op(after), old, with);
}

static void
unlink_op(ir_op *op)
{
    *(op->prev ? &op->prev->next : &op->block->first) = op->next;
    *(op->next ? &op->next->prev : &op->block->last) = op->prev;
}

void
ir_move_before(ir_op *op, ir_op *where)
{
    if (op == where)
        return;
    EF_ASSERT(op->block->func == where->block->func);
    unlink_op(op);
    op->block = where->block;
    op->next = where;
    op->prev = where->prev;
    *(op->prev ? &op->prev->next : &op->block->first) = op;
    where->prev = op;
}

void
ir_remove(ir_op *op)
{
    ir_func *f = op->block->func;
    for (int i = 0; i < op->nres; i++) {
        EF_ASSERT(!op->res[i]->nuse);
        ir_name_free(f->module->ctx, f->module->arena, &f->names, &f->suffixes,
                     op->res[i]->name);
    }
    for (int i = 0; i < op->narg; i++)
        op->arg[i]->nuse--;
    unlink_op(op);
}

/* ---- questions ---- */

bool
ir_is_dead(const ir_op *op)
{
    for (int i = 0; i < op->nres; i++)
        if (op->res[i]->nuse)
            return false;
    return ir_ops[op->code].flags & IR_PURE;
}

static ir_op *
first_from(const ir_block *b)
{
    while (b && !b->first)
        b = b->next;
    return b ? b->first : NULL;
}

ir_op *
ir_next_op(const ir_op *op)
{
    return op->next ? op->next : first_from(op->block->next);
}

ir_op *
ir_first_op(const ir_func *f)
{
    return first_from(f->first);
}

bool
ir_op_before(const ir_op *a, const ir_op *b)
{
    if (a->block == b->block) {
        for (const ir_op *op = a->next; op; op = op->next)
            if (op == b)
                return true;
        return false;
    }
    for (const ir_block *k = a->block->next; k; k = k->next)
        if (k == b->block)
            return true;
    return false;
}

bool
ir_is_const_scalar(const ir_value *v, double *value)
{
    if (ir_type_count(v->type) != 1)
        return false;
    if (v->def && v->def->code == IR_OP_const)
        *value = ir_attr_num(v->def, IR_ATTR_value, 0);
    else if (v->param && v->param->cls == IR_CONST && v->param->init == IR_INIT_VALUES)
        *value = v->param->values[0];
    else
        return false;
    return true;
}

ir_builder
ir_at(ir_op *op)
{
    return (ir_builder){op->block->func->module, op->block->func, op->block, op,
                        op->loc};
}

ir_builder
ir_after(ir_op *op)
{
    ir_builder b = ir_at(op);
    b.before = op->next;
    return b;
}

ir_builder
ir_end(ir_block *block, const char *loc)
{
    return (ir_builder){block->func->module, block->func, block, NULL, loc};
}

/* ---- lists of users ---- */

ir_uses *
ir_uses_of(const ir_func *f, ef_arena *scratch)
{
    ir_uses *uses = EF_NEW(scratch, ir_uses);
    for (ir_op *op = ir_first_op(f); op; op = ir_next_op(op))
        for (int i = 0; i < op->narg; i++) {
            ir_uselist *list = ef_map_get(&uses->of, op->arg[i]);
            if (!list) {
                list = EF_NEW(scratch, ir_uselist);
                ef_map_set(scratch, &uses->of, op->arg[i], list);
            }
            ef_push(scratch, list->op, op);
        }
    return uses;
}

const ir_uselist *
ir_users(const ir_uses *uses, const ir_value *v)
{
    static const ir_uselist none;
    const ir_uselist *list = ef_map_get(&uses->of, v);
    return list ? list : &none;
}

/* ---- copies ---- */

static ir_value *
mapped(const ef_map *map, ir_value *v)
{
    ir_value *copy = ef_map_get(map, v);
    return copy ? copy : v;
}

static void
clone_op(ir_block *to, const ir_op *op, ef_map *map)
{
    ir_module *m = to->func->module;
    ir_op *copy = ir_op_new(to, NULL, op->code, op->narg, op->nres);
    copy->loc = op->loc;
    for (int i = 0; i < op->narg; i++) {
        ir_value *v = mapped(map, op->arg[i]);
        EF_ASSERT(v->param || v != op->arg[i]);
        ir_op_arg(copy, i, v);
    }
    for (int i = 0; i < op->nattr; i++)
        ir_attr_set(m, copy, op->attr[i]);
    for (int i = 0; i < op->nres; i++) {
        copy->res[i]->type = op->res[i]->type;
        ir_op_name(copy, i, op->res[i]->name);
        ef_map_set(m->arena, map, op->res[i], copy->res[i]);
    }
}

ir_func *
ir_clone_fwd(ir_func *from, const char *name, ef_map *map)
{
    ir_module *m = from->module;
    ir_func *f = ir_func_new(m, name);
    for (int i = 0; i < from->args.n; i++) {
        ir_value *arg = from->args.at[i];
        ef_map_set(m->arena, map, arg, ir_arg_new(f, arg->name, arg->type));
    }
    IR_FOREACH_BLOCK (b, from) {
        if (b->phase != IR_FWD)
            continue;
        ir_block *copy = ir_block_new(f, b->name, b->phase, b->unit);
        IR_FOREACH_OP (op, b)
            clone_op(copy, op, map);
    }
    return f;
}
