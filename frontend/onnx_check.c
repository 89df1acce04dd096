/* onnx_check.c -- rules that a model keeps before it makes sense to look at operators.
 *
 * Versions, what goes in and out, names of initializers, and local functions; the rules of
 * single assignment and order are in onnx_order.c. A file that breaks one of them is
 * refused with what was found and where. Rules that no exporter keeps are not asked for:
 * unused operator sets may be unknown, nodes may stand in any order, shapes in value_info
 * may be wrong, names may be absent.
 */
#include "onnx_int.h"

#include <limits.h>
#include <string.h>

enum { FUNCTIONS_MAX = 10000, CALLS_MAX = 100, NODES_MAX = 1000000, OPS_LISTED = 8 };

static bool fault(fe_model *m, const char *loc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static bool
fault(fe_model *m, const char *loc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = ef_vprintf(m->arena, fmt, ap);
    va_end(ap);
    return ef_error(m->ctx, loc, E_ONNX_GRAPH, text);
}

/* ---- versions ---- */

static bool
is_default(const char *domain)
{
    return !domain || !*domain || !strcmp(domain, "ai.onnx");
}

static bool
check_opsets(fe_model *m, Onnx__OperatorSetIdProto **set, size_t n)
{
    int64_t version = 0;
    for (size_t i = 0; i < n; i++) {
        const char *domain = fe_str(set[i]->domain);
        int64_t v = set[i]->version;
        if (v < 1 || v > INT_MAX)
            return fault(m, NULL, "opset %lld of domain '%s' is not a version",
                         (long long)v, domain);
        if (!is_default(domain))
            continue;
        if (version && version != v)
            return fault(m, NULL, "the model names two opsets, %lld and %lld",
                         (long long)version, (long long)v);
        version = v;
    }
    if (!version)
        return fault(m, NULL, "the model does not say which opset it uses");
    if (version >= FE_OPSET_MIN && version <= FE_OPSET_MAX) {
        m->opset = (int)version;
        return true;
    }
    bool newer = version > FE_OPSET_MAX;
    fault(m, NULL, "opset %lld is %s than %d, the %s that is supported",
          (long long)version, newer ? "newer" : "older",
          newer ? FE_OPSET_MAX : FE_OPSET_MIN, newer ? "newest" : "oldest");
    ef_hint(m->ctx,
            "export with opset 17, or convert the file with onnx.version_converter");
    return false;
}

static bool
check_versions(fe_model *m)
{
    int64_t ir = m->proto->has_ir_version ? m->proto->ir_version : 0;
    if (ir < 3)
        return fault(m, NULL,
                     "IR version %lld: ONNX files that can be read have 3 or more",
                     (long long)ir);
    if (ir > FE_IR_MAX)
        return fault(m, NULL,
                     "IR version %lld is newer than %d, the newest that is supported",
                     (long long)ir, FE_IR_MAX);
    if (m->proto->n_training_info)
        ef_error(m->ctx, NULL, W_ONNX, "the training part of the file is ignored");
    return check_opsets(m, m->proto->opset_import, m->proto->n_opset_import);
}

/* ---- what goes in and out ---- */

static const char *
kind_of(const Onnx__TypeProto *t)
{
    switch (t->value_case) {
    case ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE:
        return "a sequence type";
    case ONNX__TYPE_PROTO__VALUE_MAP_TYPE:
        return "a map type";
    case ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE:
        return "an optional type";
    case ONNX__TYPE_PROTO__VALUE_SPARSE_TENSOR_TYPE:
        return "a sparse type";
    case ONNX__TYPE_PROTO__VALUE_OPAQUE_TYPE:
        return "an opaque type";
    default:
        return "no type";
    }
}

static bool
check_value(fe_model *m, const char *what, const Onnx__ValueInfoProto *v)
{
    const char *name = fe_str(v->name);
    const Onnx__TypeProto *type = v->type;
    if (!*name)
        return fault(m, NULL, "an %s has no name", what);
    if (!type && *what == 'o')
        return true; /* its type follows from the graph */
    if (!type || type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
        return fault(m, name, "%s %s has %s, which is not supported", what, name,
                     type ? kind_of(type) : "no type");
    int elem = type->tensor_type->elem_type;
    if (fe_dtype(elem) == IR_NDTYPES)
        return fault(m, name,
                     "%s %s is a %s tensor (data type %d), which is not supported",
                     what, name, fe_type_name(elem), elem);
    const Onnx__TensorShapeProto *shape = type->tensor_type->shape;
    if (shape && shape->n_dim > IR_MAX_RANK)
        return fault(m, name, "%s %s has %zu dimensions, more than %d", what, name,
                     shape->n_dim, IR_MAX_RANK);
    for (size_t i = 0; shape && i < shape->n_dim; i++)
        if (shape->dim[i]->value_case ==
                ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE &&
            shape->dim[i]->dim_value < 0)
            return fault(m, name, "%s %s has a negative dimension %lld", what, name,
                         (long long)shape->dim[i]->dim_value);
    return true;
}

static bool
check_initializers(fe_model *m, const Onnx__GraphProto *g)
{
    bool ok = true;
    if (g->n_sparse_initializer)
        return fault(m, NULL, "sparse initializers are not supported");
    for (size_t i = 0; i < g->n_initializer; i++) {
        const fe_tensor *t = fe_tensor_of(m, g->initializer[i]);
        if (!*t->name)
            return fault(m, NULL, "initializer number %zu has no name", i);
        if (ef_map_has(&m->inits, t->name))
            return fault(m, t->name, "two initializers are called %s", t->name);
        ef_map_set(m->arena, &m->inits, t->name, (void *)t);
        if (!t->count && t->rank > 1 && ir_dtypes[t->dtype].is_float)
            ok = ef_error(m->ctx, t->name, E_ONNX_TENSOR,
                          ef_printf(m->arena,
                                    "zero-size (%s): there is nothing to train",
                                    fe_dims_text(m->arena, (size_t)t->rank, t->dim)));
    }
    return ok;
}

/* "Conv (2), MaxPool, Gemm": the operators of the graph in order of appearance. */
static const char *
op_list(fe_model *m, const Onnx__GraphProto *g)
{
    ef_map count = {0};
    ef_buf b = {.arena = m->arena};
    for (size_t i = 0; i < g->n_node; i++) {
        const char *op = ef_intern(m->ctx, fe_str(g->node[i]->op_type));
        uintptr_t n = (uintptr_t)ef_map_get(&count, op);
        ef_map_set(m->arena, &count, op, (void *)(n + 1));
    }
    for (int i = 0; i < count.n && i < OPS_LISTED; i++)
        ef_putf(&b, "%s%s (%d)", i ? ", " : "", (const char *)count.key[i],
                (int)(uintptr_t)count.val[i]);
    if (count.n > OPS_LISTED)
        ef_puts(&b, ", ...");
    return count.n ? b.s : "nothing";
}

static bool
check_tokens(fe_model *m, const Onnx__GraphProto *g)
{
    ef_buf names = {.arena = m->arena};
    for (size_t i = 0; i < g->n_input; i++) {
        const Onnx__ValueInfoProto *v = g->input[i];
        if (ef_map_has(&m->inits, ef_intern(m->ctx, v->name)))
            continue;
        int type = v->type->tensor_type->elem_type;
        if (type == ONNX__TENSOR_PROTO__DATA_TYPE__INT64 ||
            type == ONNX__TENSOR_PROTO__DATA_TYPE__INT32)
            return true;
        ef_putf(&names, "%s%s: %s", names.n ? ", " : "", v->name, fe_type_name(type));
    }
    fault(m, NULL, "no token input: no input is an int64 or int32 tensor (%s)",
          names.n ? names.s : "the graph has no inputs");
    ef_note(m->ctx, "this is not a transformer of text; its operators are %s",
            op_list(m, g));
    return false;
}

static bool
check_interface(fe_model *m, const Onnx__GraphProto *g)
{
    bool ok = true;
    for (size_t i = 0; i < g->n_input; i++)
        ok &= check_value(m, "input", g->input[i]);
    for (size_t i = 0; i < g->n_output; i++)
        ok &= check_value(m, "output", g->output[i]);
    if (!g->n_node)
        return fault(m, NULL, "the graph has no nodes");
    if (!g->n_output)
        return fault(m, NULL, "the graph has no outputs");
    return ok && check_initializers(m, g) && check_tokens(m, g);
}

/* ---- local functions: no recursion, and a bound on what inlining makes ---- */

typedef struct function {
    const Onnx__FunctionProto *proto;
    const char *id;
    int state; /* 0 new, 1 under way, 2 done */
    int calls; /* depth of calls below it */
    int64_t nodes;
} function;

typedef struct function_check {
    fe_model *m;
    ef_map by_id; /* -> function* */
} function_check;

const char *
fe_function_id(fe_model *m, const char *domain, const char *name, const char *overload)
{
    return ef_internf(m->ctx, "%s::%s%s%s", is_default(domain) ? "" : domain,
                      fe_str(name), overload && *overload ? ":" : "", fe_str(overload));
}

static bool measure_function(function_check *, function *);

/* Adds the nodes that `node` becomes to f's. */
static bool
measure_nodes(function_check *c, function *f, Onnx__NodeProto **node, size_t n)
{
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        const Onnx__NodeProto *p = node[i];
        function *callee = ef_map_get(
            &c->by_id, fe_function_id(c->m, p->domain, p->op_type, p->overload));
        ok = !callee || measure_function(c, callee);
        f->nodes += callee ? callee->nodes : 1;
        if (callee && callee->calls >= f->calls)
            f->calls = callee->calls + 1;
        if (ok && (f->nodes > NODES_MAX || f->calls > CALLS_MAX))
            return fault(c->m, f->id,
                         "its functions call each other more than %d deep or "
                         "make more than %d nodes",
                         CALLS_MAX, NODES_MAX);
        for (size_t k = 0; ok && k < p->n_attribute; k++) {
            const Onnx__AttributeProto *a = p->attribute[k];
            ok = !a->g || measure_nodes(c, f, a->g->node, a->g->n_node);
            for (size_t j = 0; ok && j < a->n_graphs; j++)
                ok = measure_nodes(c, f, a->graphs[j]->node, a->graphs[j]->n_node);
        }
    }
    return ok;
}

static bool
measure_function(function_check *c, function *f)
{
    if (f->state == 1)
        return fault(c->m, f->id, "function %s calls itself", f->id);
    if (f->state == 2)
        return true;
    f->state = 1;
    if (!measure_nodes(c, f, f->proto->node, f->proto->n_node))
        return false;
    f->state = 2;
    return true;
}

static bool
check_functions(fe_model *m)
{
    function_check c = {.m = m};
    if (m->proto->n_functions > FUNCTIONS_MAX)
        return fault(m, NULL, "%zu local functions, more than %d",
                     m->proto->n_functions, FUNCTIONS_MAX);
    for (size_t i = 0; i < m->proto->n_functions; i++) {
        const Onnx__FunctionProto *p = m->proto->functions[i];
        function *f = EF_NEW(m->arena, function);
        f->proto = p;
        f->id = fe_function_id(m, p->domain, p->name, p->overload);
        if (ef_map_has(&c.by_id, f->id))
            return fault(m, f->id, "two functions are called %s", f->id);
        ef_map_set(m->arena, &c.by_id, f->id, f);
    }
    for (int i = 0; i < c.by_id.n; i++)
        if (!measure_function(&c, c.by_id.val[i]))
            return false;
    function main = {.id = "graph"};
    return measure_nodes(&c, &main, m->proto->graph->node, m->proto->graph->n_node);
}

bool
fe_check(fe_model *m)
{
    return check_versions(m) && check_functions(m) &&
           check_interface(m, m->proto->graph) && fe_order(m) && fe_inline(m);
}
