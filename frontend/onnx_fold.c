/* onnx_fold.c -- tensors that are known, and ops that are computed while they are imported.
 *
 * Every op of every operator goes through fe_emit(). If all operands are known, the result
 * is computed by the interpreter's evaluator and nothing is built: so shape arithmetic,
 * scalars and masks that depend on no data vanish, by the same code that builds the rest.
 * Weights are never known. Integers are doubles here, as in the interpreter: exact below
 * 2^53, and the "to the end" of a slice, 2^63 - 1, saturates on its way back.
 *
 * A known tensor enters the module where an op needs it: a const op if its elements are all
 * equal, else a param of class IR_CONST; equal contents share one.
 */
#include "import_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

bool
fe_fail(fe_call *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = ef_vprintf(c->im->arena, fmt, ap);
    va_end(ap);
    return ef_error(c->im->ctx, c->n->loc, E_ONNX_OP, fe_str(c->n->p->op_type), text);
}

fe_val *
fe_known_val(fe_imp *im, const ir_type *type, const double *data)
{
    fe_val *v = EF_NEW(im->arena, fe_val);
    v->type = type;
    v->data = data;
    return v;
}

fe_val *
fe_ir_val(fe_imp *im, ir_value *value)
{
    fe_val *v = EF_NEW(im->arena, fe_val);
    v->type = value->type;
    v->v = value;
    return v;
}

const ir_type *
fe_type(fe_call *c, ir_dtype d, int rank, const int64_t *dim)
{
    if (ir_dims_ok(rank, dim))
        return ir_type_get(c->im->ctx, d, rank, dim);
    fe_fail(c, "the result would have %s elements",
            rank > IR_MAX_RANK ? "more than 8 dimensions of" : "more than 2^40");
    return NULL;
}

/* ---- names of new values ---- */

/* "/bert/encoder/layer.0/output/Add" in layer 0 is "l0.output.Add". */
const char *
fe_base_name(const fe_imp *im, const fe_node *n)
{
    if (n->nout == 1)
        for (size_t i = 0; i < im->main->p->n_output; i++)
            if (!strcmp(fe_str(im->main->p->output[i]->name), n->out[0]))
                return n->out[0];
    const char *name = fe_str(n->p->name);
    name = *name ? name : fe_str(n->p->op_type);
    name += *name == '/';
    size_t len = n->layer < 0 ? 0 : strlen(im->layers.at[n->layer]);
    char *s = ef_strdup(im->arena, name);
    for (char *c = s; *c; c++)
        *c = *c == '/' ? '.' : *c;
    if (len && !strncmp(s, im->layers.at[n->layer], len) && s[len] == '.')
        return ef_printf(im->arena, "l%d%s", n->layer, s + len);
    return s;
}

/* ---- computing ---- */

static int
by_key(const void *a, const void *b)
{
    return (int)((const ir_attr *)a)->key - (int)((const ir_attr *)b)->key;
}

/* Result type of the op whose operands have these types, or what is wrong. */
static const char *
result_type(fe_imp *im, const ir_op *op, const ir_type *given, const ir_type **type)
{
    const ir_type *out[4];
    const char *why =
        ir_check(im->m, op->code, op->narg, op->arg, op->nattr, op->attr, given);
    if (!why && given)
        *type = given;
    else if (!why && !(why = ir_ops[op->code].shape(im->ctx, op, out)))
        *type = out[0];
    return why;
}

static fe_val *
compute(fe_call *c, ir_op *op, fe_val *const *arg, const ir_type *type)
{
    ir_tensor t[IR_MAX_RANK], res, *more = t;
    const ir_tensor *at[IR_MAX_RANK], **argp = at;
    if (op->narg > IR_MAX_RANK) {
        more = EF_NEWN(c->im->arena, ir_tensor, op->narg);
        argp = EF_NEWN(c->im->arena, const ir_tensor *, op->narg);
    }
    for (int i = 0; i < op->narg; i++) {
        more[i] = (ir_tensor){arg[i]->type, (double *)arg[i]->data};
        argp[i] = &more[i];
    }
    op->res[0]->type = type;
    if (!ir_eval_op(c->im->ctx, op, argp, &res, c->im->arena))
        return NULL;
    return fe_known_val(c->im, type, res.data);
}

static fe_val *
build(fe_call *c, const ir_op *op, fe_val *const *arg, const ir_type *given)
{
    ir_value **placed = EF_NEWN(c->im->arena, ir_value *, op->narg + 1);
    for (int i = 0; i < op->narg; i++)
        placed[i] = fe_place(c->im, arg[i]);
    ir_builder b = ir_end(c->im->block, c->n->loc);
    const char *name = ef_printf(c->im->arena, "%s.%s", fe_base_name(c->im, c->n),
                                 ir_ops[op->code].name);
    return fe_ir_val(c->im, ir_emit(&b, op->code, name, op->narg, placed, op->nattr,
                                    op->attr, given));
}

fe_val *
fe_emit(fe_call *c, ir_opcode code, int narg, fe_val *const *arg, int nattr,
        const ir_attr *attr, const ir_type *given)
{
    ir_value *values = EF_NEWN(c->im->arena, ir_value, narg + 1);
    ir_value **at = EF_NEWN(c->im->arena, ir_value *, narg + 1), res = {0},
             *resp = &res;
    bool known = true;
    for (int i = 0; i < narg; i++) {
        if (!arg[i])
            return NULL;
        known &= arg[i]->data != NULL;
        values[i].type = arg[i]->type;
        at[i] = &values[i];
    }
    ir_attr sorted[4];
    EF_ASSERT(nattr <= (int)EF_COUNT(sorted));
    if (nattr)
        memcpy(sorted, attr, sizeof *attr * (size_t)nattr);
    qsort(sorted, (size_t)nattr, sizeof *sorted, by_key);
    ir_op op = {.code = code,
                .narg = narg,
                .nres = 1,
                .nattr = nattr,
                .arg = at,
                .res = &resp,
                .attr = sorted,
                .loc = c->n->loc};
    res.type = given;
    const ir_type *type = NULL;
    const char *why = result_type(c->im, &op, given, &type);
    if (why) {
        fe_fail(c, "%s", why);
        if (c->im->positions && c->im->seq > c->im->positions)
            ef_hint(c->im->ctx, "%s has %lld positions: give a --seq of at most that",
                    c->im->positions_of, (long long)c->im->positions);
        return NULL;
    }
    return known && ir_type_count(type) <= FE_FOLD_MAX ? compute(c, &op, arg, type)
                                                       : build(c, &op, arg, given);
}

/* ---- placing known tensors ---- */

typedef struct fe_table { /* a param with known contents; next has the same hash */
    ir_param *p;
    struct fe_table *next;
} fe_table;

static bool
is_uniform(const double *x, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (x[i] != x[0] && !(isnan(x[i]) && isnan(x[0])))
            return false;
    return n > 0;
}

static const char *
hash_of(ef_ctx *ctx, const fe_val *v)
{
    uint64_t h = 0xcbf29ce484222325u, bits;
    for (int64_t i = 0; i < ir_type_count(v->type); i++) {
        memcpy(&bits, &v->data[i], sizeof bits);
        h = (h ^ bits ^ bits >> 32) * 0x100000001b3u;
    }
    return ef_internf(ctx, "%s %llx", ir_type_text(ctx, v->type),
                      (unsigned long long)h);
}

static ir_param *
table_of(fe_imp *im, const fe_val *v)
{
    size_t bytes = sizeof *v->data * (size_t)ir_type_count(v->type);
    const char *key = hash_of(im->ctx, v);
    fe_table *first = ef_map_get(&im->tables, key);
    for (fe_table *t = first; t; t = t->next)
        if (!memcmp(t->p->values, v->data, bytes)) {
            if (t->p->unit != im->block->unit)
                t->p->unit = 0;
            return t->p;
        }
    fe_table *t = EF_NEW(im->arena, fe_table);
    t->p = ir_param_new(im->m, v->name ? v->name : "table", v->type, IR_CONST,
                        im->block->unit);
    t->p->init = IR_INIT_VALUES;
    t->p->values = ef_dup(im->m->arena, v->data, bytes);
    t->p->loc = v->name ? ef_intern(im->ctx, v->name) : NULL; /* outlives the import */
    t->next = first;
    ef_map_set(im->arena, &im->tables, key, t);
    return t->p;
}

/* A const op of the block; the block has one per type and number. */
static ir_value *
const_of(fe_imp *im, const ir_type *type, double x)
{
    const char *key = ef_internf(im->ctx, "const %d %s %a", im->block->unit,
                                 ir_type_text(im->ctx, type), x);
    ir_value *v = ef_map_get(&im->tables, key);
    if (!v) {
        ir_builder b = ir_end(im->block, NULL);
        ef_map_set(im->arena, &im->tables, key, v = ir_const(&b, "c", type, x));
    }
    return v;
}

ir_value *
fe_place(fe_imp *im, fe_val *v)
{
    if (!v->data)
        return v->v;
    if (v->v && (v->v->param ? v->v->param->unit == im->block->unit
                             : v->v->def->block == im->block))
        return v->v;
    int64_t n = ir_type_count(v->type);
    v->v = is_uniform(v->data, n) ? const_of(im, v->type, v->data[0])
                                  : table_of(im, v)->value;
    return v->v;
}

/* ---- running the graph ---- */

static bool
check_attrs(fe_call *c)
{
    for (size_t i = 0; i < c->n->p->n_attribute; i++) {
        const char *name = fe_str(c->n->p->attribute[i]->name), *s = c->row->attrs;
        size_t len = strlen(name);
        while (s && (strncmp(s, name, len) || (s[len] && s[len] != ',')))
            s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL;
        if (!s || !len)
            return fe_fail(c, "attribute '%s' is not supported", name);
    }
    return true;
}

/* Gives the results their names in the graph; an only one made here gets the node's. */
static void
bind(fe_call *c)
{
    for (int i = 0; i < c->n->nout; i++) {
        fe_val *v = c->out[i];
        if (!v || !*c->n->out[i])
            continue;
        if (v->data && !v->name)
            v->name = fe_base_name(c->im, c->n);
        if (!v->data && v->v->def && v->v->def->loc == c->n->loc && c->n->nout == 1)
            ir_rename(c->im->m->step, v->v, fe_base_name(c->im, c->n));
        ef_map_set(c->im->arena, &c->im->vals, c->n->out[i], v);
    }
}

static bool
run_node(fe_imp *im, fe_node *n)
{
    const char *domain = fe_str(n->p->domain);
    domain = strcmp(domain, "ai.onnx") ? domain : "";
    fe_call c = {.im = im, .n = n, .opset = fe_opset(im->f, domain)};
    c.row = fe_row_of(domain, fe_str(n->p->op_type), c.opset);
    c.out = EF_NEWN(im->arena, fe_val *, n->nout + 1);
    if (!check_attrs(&c) || !c.row->build(&c))
        return false;
    bind(&c);
    return true;
}

/* Blocks and nodes are sorted by unit, so that it is this one or one behind. */
static ir_block *
block_of(fe_imp *im, int unit)
{
    ir_block *b = im->block->unit <= unit ? im->block : im->m->step->first;
    while (b->unit != unit)
        b = b->next;
    return b;
}

bool
fe_run(fe_imp *im, const fe_graph *g)
{
    for (int i = 0; i < g->order.n; i++) {
        fe_node *n = g->order.at[i];
        if (g == im->main && n->unit != im->block->unit)
            im->block = block_of(im, n->unit);
        if (!run_node(im, n))
            return false;
    }
    return true;
}
