/* onnx_order.c -- single assignment and order of nodes.
 *
 * Every name is written once, in the whole of a graph and the graphs around it; every name
 * that is read is written somewhere; nothing depends on itself. ONNX asks for nodes in an
 * order in which they can run, but optimisers are known to write others, so nodes are
 * sorted here; a graph that is in order stays as it is.
 */
#include "onnx_int.h"

#include <string.h>

typedef struct scope {
    ef_map
        names; /* name -> FROM_OUTSIDE, or index of the node that writes it + FIRST */
    const struct scope *outer; /* of the graph around this one */
    bool in_function;
} scope;

/* Values of scope.names. */
enum { FROM_OUTSIDE = 1, FIRST = 2 };

typedef struct body { /* of a graph or a function */
    Onnx__NodeProto **node;
    size_t n;
} body;

typedef struct order {
    fe_model *m;
    ef_arena *scratch;
} order;

static bool
fault(order *o, const char *loc, const char *text)
{
    return ef_error(o->m->ctx, loc, E_ONNX_GRAPH, text);
}

static bool
is_defined(const scope *s, const char *name)
{
    for (; s; s = s->outer)
        if (ef_map_has(&s->names, name))
            return true;
    return false;
}

static bool
define(order *o, scope *s, const char *raw, uintptr_t value, const char *loc)
{
    const char *name = ef_intern(o->m->ctx, fe_str(raw));
    if (is_defined(s, name))
        return fault(o, loc, ef_printf(o->scratch, "tensor %s is written twice", name));
    ef_map_set(o->scratch, &s->names, name, (void *)value);
    return true;
}

static bool
define_nodes(order *o, scope *s, body b)
{
    bool ok = true;
    for (size_t i = 0; i < b.n; i++) {
        const Onnx__NodeProto *n = b.node[i];
        const char *loc = fe_node_loc(o->m->ctx, n);
        if (!*fe_str(n->op_type))
            ok = fault(o, loc, "the node has no operator");
        for (size_t k = 0; k < n->n_output; k++)
            if (*n->output[k]) /* "": an optional output that is left out */
                ok &= define(o, s, n->output[k], i + FIRST, loc);
    }
    return ok;
}

static bool check_graph(order *, Onnx__GraphProto *, const scope *outer,
                        bool in_function);

static bool
check_attributes(order *o, const scope *s, const Onnx__NodeProto *n)
{
    const char *loc = fe_node_loc(o->m->ctx, n);
    ef_map seen = {0};
    bool ok = true;
    for (size_t i = 0; i < n->n_attribute; i++) {
        Onnx__AttributeProto *a = n->attribute[i];
        const char *name = ef_intern(o->m->ctx, fe_str(a->name));
        if (!*name || ef_map_has(&seen, name))
            ok = fault(o, loc,
                       ef_printf(o->scratch, "attribute '%s' %s", name,
                                 *name ? "is given twice" : "has no name"));
        ef_map_set(o->scratch, &seen, name, a);
        if (a->ref_attr_name && *a->ref_attr_name && !s->in_function)
            ok = fault(o, loc,
                       ef_printf(o->scratch,
                                 "attribute '%s' refers to a function's "
                                 "attribute outside a function",
                                 name));
        if (a->g)
            ok &= check_graph(o, a->g, s, s->in_function);
        for (size_t k = 0; k < a->n_graphs; k++)
            ok &= check_graph(o, a->graphs[k], s, s->in_function);
    }
    return ok;
}

static bool
check_reads(order *o, const scope *s, body b)
{
    bool ok = true;
    for (size_t i = 0; i < b.n; i++) {
        const Onnx__NodeProto *n = b.node[i];
        const char *loc = fe_node_loc(o->m->ctx, n);
        for (size_t k = 0; k < n->n_input; k++) {
            const char *name = ef_intern(o->m->ctx, n->input[k]);
            if (*name && !is_defined(s, name))
                ok = fault(o, loc,
                           ef_printf(o->scratch,
                                     "the node reads %s, which no node, "
                                     "input or initializer defines",
                                     name));
        }
        ok &= check_attributes(o, s, n);
    }
    return ok;
}

/* ---- sorting ---- */

typedef struct deps { /* indices of nodes that must come first */
    EF_VEC(int) at;
} deps;

typedef struct sorter {
    order *o;
    const scope *s;
    body b;
    deps *deps;
    int *next;   /* per node: how many of its deps have been looked at */
    char *state; /* 0 new, 1 on the stack, 2 placed */
    EF_VEC(int) stack;
    Onnx__NodeProto **sorted;
    size_t nsorted;
} sorter;

/* Names of this graph that n reads, in its subgraphs too. */
static void
add_deps(sorter *s, deps *d, const Onnx__NodeProto *n)
{
    for (size_t k = 0; k < n->n_input; k++) {
        const char *name = ef_intern(s->o->m->ctx, n->input[k]);
        uintptr_t v = (uintptr_t)ef_map_get(&s->s->names, name);
        if (v >= FIRST)
            ef_push(s->o->scratch, d->at, (int)(v - FIRST));
    }
    for (size_t i = 0; i < n->n_attribute; i++) {
        const Onnx__AttributeProto *a = n->attribute[i];
        for (size_t k = 0; a->g && k < a->g->n_node; k++)
            add_deps(s, d, a->g->node[k]);
        for (size_t j = 0; j < a->n_graphs; j++)
            for (size_t k = 0; k < a->graphs[j]->n_node; k++)
                add_deps(s, d, a->graphs[j]->node[k]);
    }
}

/* The stack from the first place of node `at` on is the cycle, each reading the next. */
static bool
cycle(sorter *s, int at)
{
    enum { SHOWN = 6 };
    ef_buf b = {.arena = s->o->scratch};
    int first = s->stack.n - 1;
    while (s->stack.at[first] != at)
        first--;
    int n = s->stack.n - first;
    for (int i = 0; i < n; i++) { /* in the direction of the data */
        const Onnx__NodeProto *node = s->b.node[s->stack.at[s->stack.n - 1 - i]];
        if (i < SHOWN || i == n - 1)
            ef_putf(&b, "%s -> ", node->output[0]);
        else if (i == SHOWN)
            ef_puts(&b, "... -> ");
    }
    ef_puts(&b, s->b.node[s->stack.at[s->stack.n - 1]]->output[0]);
    return fault(s->o, fe_node_loc(s->o->m->ctx, s->b.node[at]),
                 ef_printf(s->o->scratch, "the graph has a cycle (%s)", b.s));
}

/* Places node i behind all that it depends on; depth first, with a stack of its own, since
 * chains are as long as the file wants. */
static bool
place(sorter *s, int i)
{
    ef_push(s->o->scratch, s->stack, i);
    s->state[i] = 1;
    while (s->stack.n) {
        int at = s->stack.at[s->stack.n - 1];
        if (s->next[at] < s->deps[at].at.n) {
            int dep = s->deps[at].at.at[s->next[at]++];
            if (s->state[dep] == 1)
                return cycle(s, dep);
            if (!s->state[dep]) {
                ef_push(s->o->scratch, s->stack, dep);
                s->state[dep] = 1;
            }
            continue;
        }
        s->stack.n--;
        s->state[at] = 2;
        s->sorted[s->nsorted++] = s->b.node[at];
    }
    return true;
}

static bool
sort(order *o, const scope *sc, body b)
{
    ef_arena *a = o->scratch;
    sorter s = {.o = o, .s = sc, .b = b};
    s.deps = EF_NEWN(a, deps, b.n);
    s.next = EF_NEWN(a, int, b.n);
    s.state = EF_NEWN(a, char, b.n);
    s.sorted = EF_NEWN(a, Onnx__NodeProto *, b.n);
    for (size_t i = 0; i < b.n; i++)
        add_deps(&s, &s.deps[i], b.node[i]);
    for (size_t i = 0; i < b.n; i++)
        if (!s.state[i] && !place(&s, (int)i))
            return false;
    if (b.n)
        memcpy(b.node, s.sorted, b.n * sizeof(*b.node));
    return true;
}

/* ---- graphs and functions ---- */

static bool
check_body(order *o, scope *s, body b)
{
    return define_nodes(o, s, b) && check_reads(o, s, b) && sort(o, s, b);
}

static bool
check_graph(order *o, Onnx__GraphProto *g, const scope *outer, bool in_function)
{
    scope s = {.outer = outer, .in_function = in_function};
    bool ok = true;
    for (size_t i = 0; i < g->n_input; i++)
        ok &= define(o, &s, g->input[i]->name, FROM_OUTSIDE, fe_str(g->input[i]->name));
    for (size_t i = 0; i < g->n_initializer; i++) {
        const char *name = ef_intern(o->m->ctx, fe_str(g->initializer[i]->name));
        if (!ef_map_has(&s.names, name)) /* an input may have a default value */
            ok &= define(o, &s, name, FROM_OUTSIDE, name);
    }
    if (!ok || !check_body(o, &s, (body){g->node, g->n_node}))
        return false;
    for (size_t i = 0; i < g->n_output; i++) {
        const char *name = ef_intern(o->m->ctx, fe_str(g->output[i]->name));
        if (!is_defined(&s, name))
            ok = fault(
                o, name,
                ef_printf(o->scratch, "output %s is not written by any node", name));
    }
    return ok;
}

static bool
check_function(order *o, Onnx__FunctionProto *f)
{
    scope s = {.in_function = true};
    bool ok = true;
    for (size_t i = 0; i < f->n_input; i++)
        ok &= define(o, &s, f->input[i], FROM_OUTSIDE, f->name);
    return ok && check_body(o, &s, (body){f->node, f->n_node});
}

bool
fe_order(fe_model *m)
{
    order o = {m, ef_arena_new()};
    bool ok = check_graph(&o, m->proto->graph, NULL, false);
    for (size_t i = 0; i < m->proto->n_functions; i++)
        ok &= check_function(&o, m->proto->functions[i]);
    ef_arena_free(o.scratch);
    return ok;
}
