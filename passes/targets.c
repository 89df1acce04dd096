/* targets.c -- which matrices get adapters.
 *
 * `q` and `v` are found by structure: operands 0 and 2 of each attention lead to a matrix
 * product, of which the attention reads all columns or, where one product makes queries,
 * keys and values, a range of them. Names are matched as PEFT does: the whole name of a
 * module or its ending behind a dot; `*` and `?` match characters. A target that names
 * nothing, or two different things, is an error.
 */
#include <inttypes.h>
#include <string.h>

#include "lora_int.h"

/* ---- modules ---- */

/* "a.b" of "a.b.weight"; NULL: no such name. */
static const char *
module_name(ef_ctx *ctx, const ir_param *p)
{
    static const char ending[] = ".weight";
    size_t n = p->hf ? strlen(p->hf) : 0, k = sizeof ending - 1;
    return n > k && !strcmp(p->hf + n - k, ending) ? ef_internn(ctx, p->hf, n - k)
                                                   : NULL;
}

void
lora_find_modules(lora *l)
{
    ef_map by_weight = {0};
    ef_arena *a = l->pc->scratch;
    for (ir_op *op = ir_first_op(l->m->step); op; op = ir_next_op(op)) {
        ir_param *w = op->code == IR_OP_linear ? op->arg[1]->param : NULL;
        if (!w || (w->role != IR_BASE && w->role != IR_MODULE))
            continue;
        lora_module *m = ef_map_get(&by_weight, w);
        if (!m) {
            const ir_type *t = w->value->type;
            bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
            m = EF_NEW(a, lora_module);
            m->w = w;
            m->index = l->modules.n;
            m->name = module_name(l->ctx, w);
            m->label = m->name ? m->name : ef_printf(a, "(%s)", w->value->name);
            m->in = t->dim[tb ? 1 : 0];
            m->out = t->dim[tb ? 0 : 1];
            m->saved_whole = w->role == IR_MODULE;
            ef_map_set(a, &by_weight, w, m);
            ef_push(a, l->modules, m);
        }
        ef_push(a, m->ops, op);
    }
}

static lora_module *
module_of(const lora *l, const ir_param *w)
{
    for (int i = 0; i < l->modules.n; i++)
        if (l->modules.at[i]->w == w)
            return l->modules.at[i];
    return NULL;
}

/* ---- targets ---- */

static bool
ambiguous(lora *l, const lora_target *a, const lora_target *b)
{
    ef_error(l->ctx, NULL, E_LORA,
             ef_printf(l->ctx->arena, "it is not clear what to adapt in %s: %s and %s",
                       a->module->label, a->word, b->word));
    ef_hint(l->ctx, "name the module in --lora-targets to adapt all of it");
    return false;
}

static ir_columns
columns_of(const lora_target *t)
{
    return t->block ? (ir_columns){t->start, t->len / t->block, t->block, t->stride}
                    : (ir_columns){t->start, 1, t->len, t->len};
}

/* Have the two a column of the module in common? */
static bool
overlap(const lora_target *a, const lora_target *b)
{
    ir_columns x = columns_of(a), y = columns_of(b);
    return ir_columns_meet(&x, &y);
}

/* Adds the target, once. Two that overlap without being the same are refused, and so is a
 * product whose columns are queries here and values there. */
static bool
add_target(lora *l, lora_target t)
{
    for (int i = 0; i < l->targets.n; i++) {
        const lora_target *o = &l->targets.at[i];
        if (o->module != t.module || !overlap(o, &t))
            continue;
        bool same = o->start == t.start && o->len == t.len && o->block == t.block &&
                    o->stride == t.stride;
        bool clash = o->role && t.role && strcmp(o->role, t.role);
        return (same && !clash) || ambiguous(l, o, &t);
    }
    ef_push(l->pc->scratch, l->targets, t);
    return true;
}

/* Has result 0 of op the columns of operand 0 where they are there? */
static bool
keeps_columns(const ir_op *op)
{
    switch (op->code) {
    case IR_OP_lora_add:
    case IR_OP_reshape: /* of heads to rows and back */
    case IR_OP_rotary:
    case IR_OP_layernorm: /* of each head, as Qwen3 has it */
    case IR_OP_rmsnorm:
        return true;
    default:
        return false;
    }
}

/* The linear op whose result attention reads as v; NULL: it is something else. */
static const ir_op *
product_behind(const ir_value *v)
{
    const ir_type *t = v->type;
    while (v->def && keeps_columns(v->def))
        v = v->def->arg[0];
    bool is = v->def && v->def->code == IR_OP_linear && v->type == t;
    return is ? v->def : NULL;
}

/* The columns of m that the attention reads as queries, or as values. */
static lora_target
heads_target(const ir_op *op, lora_module *m, bool q)
{
    int64_t heads = ir_attr_int(op, q ? IR_ATTR_heads : IR_ATTR_kv_heads, 0);
    int64_t d = ir_attr_int(op, IR_ATTR_head_dim, 0);
    int64_t stride = ir_attr_int(op, q ? IR_ATTR_qs : IR_ATTR_vs, 0);
    const char *part = q ? "q" : "v";
    lora_target t = {m, part, .len = heads * d, .word = part};
    t.start = ir_attr_int(op, q ? IR_ATTR_qo : IR_ATTR_vo, 0);
    if (stride && stride != d) {
        t.block = d;
        t.stride = stride;
    }
    return t;
}

/* Queries (operand 0) or values (operand 2) of every attention. */
static bool
add_by_structure(lora *l, const char *part, int *count)
{
    bool q = !strcmp(part, "q");
    for (ir_op *op = ir_first_op(l->m->step); op; op = ir_next_op(op)) {
        if (op->code != IR_OP_attention)
            continue;
        const ir_op *linear = product_behind(op->arg[q ? 0 : 2]);
        lora_module *m = linear ? module_of(l, linear->arg[1]->param) : NULL;
        if (!m)
            return ef_error(l->ctx, op->loc, E_LORA,
                            ef_printf(l->ctx->arena,
                                      "the %s of this attention do not come from one "
                                      "matrix product: name modules in --lora-targets",
                                      q ? "queries" : "values"));
        if (!add_target(l, heads_target(op, m, q)))
            return false;
        ++*count;
    }
    return true;
}

static bool
ends_with(const char *name, const char *ending)
{
    size_t n = strlen(name), k = strlen(ending);
    return n == k ? !strcmp(name, ending)
                  : n > k && name[n - k - 1] == '.' && !strcmp(name + n - k, ending);
}

static bool
is_named(const lora_module *m, const char *word)
{
    const char *name = m->name ? m->name : m->w->value->name;
    return strpbrk(word, "*?") ? ef_glob(word, name) : ends_with(name, word);
}

/* All linear modules, or those that the word names. */
static bool
add_by_name(lora *l, const char *word, int *count)
{
    bool all = !strcmp(word, "all-linear");
    for (int i = 0; i < l->modules.n; i++) {
        lora_module *m = l->modules.at[i];
        if (all ? m->saved_whole : !is_named(m, word))
            continue;
        if (m->saved_whole)
            return ef_error(l->ctx, NULL, E_LORA,
                            ef_printf(l->ctx->arena,
                                      "%s is trained whole, so it can't "
                                      "have an adapter, too",
                                      m->label));
        if (!add_target(l, (lora_target){m, NULL, .len = m->out, .word = word}))
            return false;
        ++*count;
    }
    return true;
}

/* ---- what to say when nothing matches ---- */

static const char *
last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* "query (2), key (2), .." */
static void
note_candidates(lora *l)
{
    enum { MOST = 12 };
    ef_map count = {0};
    ef_arena *a = l->pc->scratch;
    for (int i = 0; i < l->modules.n; i++) {
        const lora_module *m = l->modules.at[i];
        const char *key = ef_intern(l->ctx, m->name ? last_part(m->name) : m->label);
        intptr_t n = (intptr_t)ef_map_get(&count, key);
        ef_map_set(a, &count, key, (void *)(n + 1));
    }
    ef_buf b = {.arena = a};
    for (int i = 0; i < count.n && i < MOST; i++)
        ef_putf(&b, "%s%s (%d)", i ? ", " : "", (const char *)count.key[i],
                (int)(intptr_t)count.val[i]);
    if (count.n)
        ef_note(l->ctx, "modules are %s%s", b.s, count.n > MOST ? ", .." : "");
}

static bool
nothing(lora *l, const char *word)
{
    bool attention = false, softmax = false;
    for (ir_op *op = ir_first_op(l->m->step); op; op = ir_next_op(op)) {
        attention |= op->code == IR_OP_attention;
        softmax |= op->code == IR_OP_softmax;
    }
    bool structure = !strcmp(word, "q") || !strcmp(word, "v");
    ef_error(l->ctx, NULL, E_LORA_NONE, l->ctx->cfg->lora_targets ? word : l->wanted);
    note_candidates(l);
    if (structure && !attention && !softmax)
        ef_hint(l->ctx, "the model has no attention; full fine-tuning works, or name "
                        "modules in --lora-targets");
    else if (structure && !attention)
        ef_hint(l->ctx, "no attention was recognised: name modules in --lora-targets");
    else
        ef_hint(l->ctx,
                "--lora-targets takes q, v, all-linear, endings of module names "
                "and patterns with *");
    return false;
}

/* In the order in which the modules run, so that the table reads from top to bottom. */
static void
sort_targets(lora *l)
{
    for (int i = 1; i < l->targets.n; i++) {
        lora_target t = l->targets.at[i];
        int at = i;
        for (; at > 0; at--) {
            const lora_target *o = &l->targets.at[at - 1];
            if (o->module->index < t.module->index ||
                (o->module == t.module && o->start < t.start))
                break;
            l->targets.at[at] = *o;
        }
        l->targets.at[at] = t;
    }
}

bool
lora_find_targets(lora *l)
{
    char *list = ef_strdup(l->pc->scratch, l->wanted), *rest;
    for (char *s = strtok_r(list, ",", &rest); s; s = strtok_r(NULL, ",", &rest)) {
        bool structure = !strcmp(s, "q") || !strcmp(s, "v");
        int count = 0;
        if (structure && !add_by_structure(l, s, &count))
            return false;
        if (!count && !add_by_name(l, s, &count)) /* no attention: a module called q? */
            return false;
        if (!count)
            return nothing(l, s);
    }
    sort_targets(l);
    return l->targets.n || nothing(l, l->wanted);
}
