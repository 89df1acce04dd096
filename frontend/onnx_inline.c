/* onnx_inline.c -- calls of local functions are replaced by the functions' nodes.
 *
 * A function sees nothing but its inputs and attributes, so every other name in it belongs
 * to the call and gets a prefix of its own. Attributes that refer to one of the function get
 * its value from the call, else the function's default, else they are left out, as the
 * operator's default then counts. Functions were checked for cycles and size before, and
 * their nodes sorted, so the graph stays in order. Afterwards the model has no functions.
 */
#include "onnx_int.h"

#include <string.h>

typedef struct nodes {
    EF_VEC(Onnx__NodeProto *) at;
} nodes;

typedef struct inliner {
    fe_model *m;
    ef_map functions; /* id -> Onnx__FunctionProto* */
    const char *stem; /* no name of the model begins with it */
    int calls;
} inliner;

typedef struct call { /* one that is being replaced */
    inliner *x;
    const Onnx__FunctionProto *f;
    const Onnx__NodeProto *node;
    const char *prefix;
    ef_map names; /* of inputs and outputs -> those of the call */
} call;

static const Onnx__FunctionProto *
function_of(inliner *x, const Onnx__NodeProto *n)
{
    return ef_map_get(&x->functions,
                      fe_function_id(x->m, n->domain, n->op_type, n->overload));
}

/* ---- names ---- */

static char *
renamed(call *c, const char *name)
{
    const char *key = ef_intern(c->x->m->ctx, fe_str(name));
    const char *to = ef_map_get(&c->names, key);
    if (to || !*key)
        return (char *)(to ? to : "");
    return ef_printf(c->x->m->arena, "%s%s", c->prefix, key);
}

static char **
renamed_all(call *c, char *const *name, size_t n)
{
    char **to = EF_NEWN(c->x->m->arena, char *, n + 1);
    for (size_t i = 0; i < n; i++)
        to[i] = renamed(c, name[i]);
    return to;
}

/* "/encoder/layer.0" and "/query/MatMul" are "/encoder/layer.0/query/MatMul". */
static char *
node_name(call *c, const Onnx__NodeProto *n)
{
    const char *outer = fe_str(c->node->name), *inner = fe_str(n->name);
    inner = *inner ? inner : fe_str(n->op_type);
    if (!*outer)
        return ef_strdup(c->x->m->arena, inner);
    return ef_printf(c->x->m->arena, "%s/%s", outer, inner + (*inner == '/'));
}

/* ---- copies ---- */

static Onnx__NodeProto *copy_node(call *, const Onnx__NodeProto *);

static Onnx__ValueInfoProto **
copy_values(call *c, Onnx__ValueInfoProto *const *v, size_t n)
{
    Onnx__ValueInfoProto **to = EF_NEWN(c->x->m->arena, Onnx__ValueInfoProto *, n + 1);
    for (size_t i = 0; i < n; i++) {
        to[i] = ef_dup(c->x->m->arena, v[i], sizeof **to);
        to[i]->name = renamed(c, v[i]->name);
    }
    return to;
}

/* An initializer of a branch, and what is known of its data. */
static Onnx__TensorProto *
copy_tensor(call *c, const Onnx__TensorProto *t)
{
    fe_model *m = c->x->m;
    Onnx__TensorProto *to = ef_dup(m->arena, t, sizeof *t);
    fe_tensor *info = ef_dup(m->arena, fe_tensor_of(m, t), sizeof *info);
    to->name = renamed(c, t->name);
    info->proto = to;
    info->name = ef_intern(m->ctx, to->name);
    ef_push(m->arena, m->tensors, info);
    ef_map_set(m->arena, &m->by_proto, to, info);
    return to;
}

static Onnx__GraphProto *
copy_graph(call *c, const Onnx__GraphProto *g)
{
    Onnx__GraphProto *to = ef_dup(c->x->m->arena, g, sizeof *g);
    to->node = EF_NEWN(c->x->m->arena, Onnx__NodeProto *, g->n_node + 1);
    to->initializer =
        EF_NEWN(c->x->m->arena, Onnx__TensorProto *, g->n_initializer + 1);
    for (size_t i = 0; i < g->n_initializer; i++)
        to->initializer[i] = copy_tensor(c, g->initializer[i]);
    for (size_t i = 0; i < g->n_node; i++)
        to->node[i] = copy_node(c, g->node[i]);
    to->input = copy_values(c, g->input, g->n_input);
    to->output = copy_values(c, g->output, g->n_output);
    to->n_value_info = 0;
    return to;
}

static const Onnx__AttributeProto *
find(Onnx__AttributeProto *const *a, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(fe_str(a[i]->name), name))
            return a[i];
    return NULL;
}

/* The attribute with its value from the call; NULL: it has none. */
static Onnx__AttributeProto *
copy_attribute(call *c, const Onnx__AttributeProto *a)
{
    const char *ref = fe_str(a->ref_attr_name);
    const Onnx__AttributeProto *from = a;
    if (*ref)
        from = find(c->node->attribute, c->node->n_attribute, ref);
    if (!from)
        from = find(c->f->attribute_proto, c->f->n_attribute_proto, ref);
    if (!from)
        return NULL;
    Onnx__AttributeProto *to = ef_dup(c->x->m->arena, from, sizeof *to);
    to->name = a->name;
    to->ref_attr_name = NULL;
    if (from == a && a->g)
        to->g = copy_graph(c, a->g);
    return to;
}

static Onnx__NodeProto *
copy_node(call *c, const Onnx__NodeProto *n)
{
    Onnx__NodeProto *to = ef_dup(c->x->m->arena, n, sizeof *n);
    to->name = node_name(c, n);
    to->input = renamed_all(c, n->input, n->n_input);
    to->output = renamed_all(c, n->output, n->n_output);
    to->attribute = EF_NEWN(c->x->m->arena, Onnx__AttributeProto *, n->n_attribute + 1);
    to->n_attribute = 0;
    for (size_t i = 0; i < n->n_attribute; i++) {
        Onnx__AttributeProto *a = copy_attribute(c, n->attribute[i]);
        if (a)
            to->attribute[to->n_attribute++] = a;
    }
    if (!n->n_metadata_props) { /* scopes: those of the call are better than none */
        to->n_metadata_props = c->node->n_metadata_props;
        to->metadata_props = c->node->metadata_props;
    }
    return to;
}

/* ---- calls ---- */

static bool add_node(inliner *, nodes *to, Onnx__NodeProto *);

static void
add_identity(inliner *x, nodes *to, const char *in, const char *out)
{
    ef_arena *a = x->m->arena;
    Onnx__NodeProto *n = EF_NEW(a, Onnx__NodeProto);
    *n = (Onnx__NodeProto)ONNX__NODE_PROTO__INIT;
    n->op_type = ef_strdup(a, "Identity");
    n->input = EF_NEWN(a, char *, n->n_input = 1);
    n->output = EF_NEWN(a, char *, n->n_output = 1);
    n->input[0] = ef_strdup(a, in);
    n->output[0] = ef_strdup(a, out);
    ef_push(a, to->at, n);
}

/* Names of the call for inputs and outputs. An output that is an input, or another output,
 * too gets an Identity. */
static void
bind_names(call *c, nodes *later)
{
    ef_ctx *ctx = c->x->m->ctx;
    for (size_t i = 0; i < c->f->n_input; i++)
        ef_map_set(
            c->x->m->arena, &c->names, ef_intern(ctx, c->f->input[i]),
            (void *)ef_intern(ctx, i < c->node->n_input ? c->node->input[i] : ""));
    for (size_t i = 0; i < c->f->n_output && i < c->node->n_output; i++) {
        const char *own = ef_intern(ctx, c->f->output[i]), *out = c->node->output[i];
        if (!*out)
            continue;
        if (ef_map_has(&c->names, own))
            add_identity(c->x, later, ef_map_get(&c->names, own), out);
        else
            ef_map_set(c->x->m->arena, &c->names, own, (void *)ef_intern(ctx, out));
    }
}

static bool
replace(inliner *x, nodes *to, const Onnx__NodeProto *n, const Onnx__FunctionProto *f)
{
    call c = {.x = x, .f = f, .node = n};
    c.prefix = ef_printf(x->m->arena, "%s%d/", x->stem, ++x->calls);
    nodes later = {0};
    if (n->n_input > f->n_input || n->n_output > f->n_output)
        return ef_error(
            x->m->ctx, fe_node_loc(x->m->ctx, n), E_ONNX_GRAPH,
            ef_printf(x->m->arena,
                      "function %s has %zu inputs and %zu outputs, the call "
                      "%zu and %zu",
                      fe_str(f->name), f->n_input, f->n_output, n->n_input,
                      n->n_output));
    bind_names(&c, &later);
    for (size_t i = 0; i < f->n_node; i++)
        if (!add_node(x, to, copy_node(&c, f->node[i])))
            return false;
    for (int i = 0; i < later.at.n; i++)
        ef_push(x->m->arena, to->at, later.at.at[i]);
    return true;
}

static bool
inline_graph(inliner *x, Onnx__GraphProto *g)
{
    nodes all = {0};
    for (size_t i = 0; i < g->n_node; i++)
        if (!add_node(x, &all, g->node[i]))
            return false;
    g->node = all.at.at;
    g->n_node = (size_t)all.at.n;
    return true;
}

static bool
add_node(inliner *x, nodes *to, Onnx__NodeProto *n)
{
    const Onnx__FunctionProto *f = function_of(x, n);
    if (f)
        return replace(x, to, n, f);
    for (size_t i = 0; i < n->n_attribute; i++)
        if (n->attribute[i]->g && !inline_graph(x, n->attribute[i]->g))
            return false;
    ef_push(x->m->arena, to->at, n);
    return true;
}

/* ---- operator sets ---- */

static bool
is_default(const char *domain)
{
    return !*domain || !strcmp(domain, "ai.onnx");
}

/* A function means the operators of the model's sets; sets that only it names are added. */
static bool
merge_opsets(fe_model *m, const Onnx__FunctionProto *f)
{
    Onnx__ModelProto *p = m->proto;
    for (size_t i = 0; i < f->n_opset_import; i++) {
        Onnx__OperatorSetIdProto *set = f->opset_import[i];
        const char *domain = fe_str(set->domain);
        int has = fe_opset(m, is_default(domain) ? "" : domain);
        if (has == set->version)
            continue;
        if (has && is_default(domain))
            return ef_error(m->ctx, fe_str(f->name), E_ONNX_GRAPH,
                            ef_printf(m->arena,
                                      "the function is of opset %lld, the model of %d, "
                                      "which is not supported",
                                      (long long)set->version, has));
        if (has)
            continue;
        Onnx__OperatorSetIdProto **more =
            EF_NEWN(m->arena, Onnx__OperatorSetIdProto *, p->n_opset_import + 1);
        memcpy(more, p->opset_import, sizeof *more * p->n_opset_import);
        more[p->n_opset_import++] = set;
        p->opset_import = more;
    }
    return true;
}

/* ---- the whole ---- */

/* Makes the stem longer until name does not begin with it. */
static void
avoid(inliner *x, const char *name)
{
    while (!strncmp(fe_str(name), x->stem, strlen(x->stem)))
        x->stem = ef_printf(x->m->arena, "%s_", x->stem);
}

static void
avoid_all(inliner *x, const Onnx__GraphProto *g)
{
    for (size_t i = 0; i < g->n_input; i++)
        avoid(x, g->input[i]->name);
    for (size_t i = 0; i < g->n_initializer; i++)
        avoid(x, g->initializer[i]->name);
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        for (size_t k = 0; k < n->n_output; k++)
            avoid(x, n->output[k]);
        for (size_t k = 0; k < n->n_attribute; k++)
            if (n->attribute[k]->g)
                avoid_all(x, n->attribute[k]->g);
    }
}

bool
fe_inline(fe_model *m)
{
    inliner x = {.m = m, .stem = "call"};
    if (!m->proto->n_functions)
        return true;
    for (size_t i = 0; i < m->proto->n_functions; i++) {
        Onnx__FunctionProto *f = m->proto->functions[i];
        if (!merge_opsets(m, f))
            return false;
        ef_map_set(m->arena, &x.functions,
                   fe_function_id(m, f->domain, f->name, f->overload), f);
    }
    avoid_all(&x, m->proto->graph);
    if (!inline_graph(&x, m->proto->graph))
        return false;
    m->proto->n_functions = 0;
    return true;
}
