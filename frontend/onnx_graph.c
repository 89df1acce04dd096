/* onnx_graph.c -- tables over an ONNX graph: who writes a name, who reads it, which nodes
 * run.
 *
 * The file's nodes were sorted when it was loaded, but it may hold nodes that nobody reads.
 * Subgraphs of an If are graphs of their own; what they read from outside counts as
 * operands of the If.
 */
#include "import_int.h"

#include <string.h>

const Onnx__AttributeProto *
fe_node_attr(const Onnx__NodeProto *p, const char *name)
{
    for (size_t i = 0; i < p->n_attribute; i++)
        if (!strcmp(fe_str(p->attribute[i]->name), name))
            return p->attribute[i];
    return NULL;
}

/* ---- tables ---- */

typedef struct names {
    EF_VEC(const char *) at;
} names;

/* Every name that nodes of g read, those of its subgraphs too. The nesting was limited
 * when the file was scanned. */
static void
collect_reads(fe_imp *im, const Onnx__GraphProto *g, names *to)
{
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *p = g->node[i];
        for (size_t k = 0; k < p->n_input; k++)
            ef_push(im->arena, to->at, ef_intern(im->ctx, fe_str(p->input[k])));
        for (size_t k = 0; k < p->n_attribute; k++)
            if (p->attribute[k]->g)
                collect_reads(im, p->attribute[k]->g, to);
    }
    for (size_t i = 0; i < g->n_output; i++)
        ef_push(im->arena, to->at, ef_intern(im->ctx, fe_str(g->output[i]->name)));
}

static const char **
intern_all(fe_imp *im, size_t n, char *const *s)
{
    const char **out = EF_NEWN(im->arena, const char *, n + 1);
    for (size_t i = 0; i < n; i++)
        out[i] = ef_intern(im->ctx, fe_str(s[i]));
    return out;
}

/* The paths in "['', 'network', 'network.0', 'linear']", as the newer exporter writes it:
 * the last is the node, the one before its module. */
static const char *
scope_of_list(fe_imp *im, const char *list)
{
    const char *part[2] = {NULL, NULL};
    size_t len[2] = {0, 0};
    for (const char *s = strchr(list, '\''); s;) {
        const char *e = strchr(s + 1, '\'');
        if (!e)
            break;
        part[0] = part[1], len[0] = len[1];
        part[1] = s + 1, len[1] = (size_t)(e - s - 1);
        s = strchr(e + 1, '\'');
    }
    return part[0] && len[0] ? ef_internn(im->ctx, part[0], len[0]) : NULL;
}

/* "/bert/encoder/layer.0/attention/self/query/MatMul": all but the last part, with dots;
 * onnxruntime writes "fused " before. */
static const char *
scope_of_name(fe_imp *im, const char *name)
{
    name += strncmp(name, "fused /", 7) ? 0 : 6;
    const char *end = strrchr(name, '/');
    if (name[0] != '/' || end == name)
        return NULL;
    char *s = ef_strndup(im->arena, name + 1, (size_t)(end - name - 1));
    for (char *c = s; *c; c++)
        if (*c == '/')
            *c = '.';
    return ef_intern(im->ctx, s);
}

static const char *
scope_of(fe_imp *im, const Onnx__NodeProto *p)
{
    for (size_t i = 0; i < p->n_metadata_props; i++)
        if (!strcmp(fe_str(p->metadata_props[i]->key), "pkg.torch.onnx.name_scopes"))
            return scope_of_list(im, fe_str(p->metadata_props[i]->value));
    return scope_of_name(im, fe_str(p->name));
}

static void
add_user(fe_imp *im, fe_graph *g, const char *name, fe_node *n)
{
    fe_users *u = ef_map_get(&g->users, name);
    if (!u)
        ef_map_set(im->arena, &g->users, name, u = EF_NEW(im->arena, fe_users));
    ef_push(im->arena, u->node, n);
}

static void
node_init(fe_imp *im, fe_graph *g, fe_node *n, Onnx__NodeProto *p)
{
    n->p = p;
    n->in = intern_all(im, n->nin = (int)p->n_input, p->input);
    n->out = intern_all(im, n->nout = (int)p->n_output, p->output);
    n->loc = fe_node_loc(im->ctx, p);
    n->scope = scope_of(im, p);
    n->layer = -1;
    names outer = {0};
    for (size_t k = 0; k < p->n_attribute; k++)
        if (p->attribute[k]->g)
            collect_reads(im, p->attribute[k]->g, &outer);
    n->captured = outer.at.at;
    n->ncaptured = outer.at.n;
    for (int i = 0; i < n->nin; i++)
        if (*n->in[i])
            add_user(im, g, n->in[i], n);
    for (int i = 0; i < n->ncaptured; i++)
        add_user(im, g, n->captured[i], n);
    for (int i = 0; i < n->nout; i++)
        if (*n->out[i])
            ef_map_set(im->arena, &g->producer, n->out[i], n);
}

fe_graph *
fe_graph_new(fe_imp *im, Onnx__GraphProto *p)
{
    fe_graph *g = EF_NEW(im->arena, fe_graph);
    g->p = p;
    g->n = (int)p->n_node;
    g->node = EF_NEWN(im->arena, fe_node, g->n + 1);
    for (int i = 0; i < g->n; i++)
        node_init(im, g, &g->node[i], p->node[i]);
    return g;
}

fe_graph *
fe_branch(fe_imp *im, Onnx__GraphProto *p)
{
    fe_graph *g = ef_map_get(&im->branches, p);
    if (!g)
        ef_map_set(im->arena, &im->branches, p, g = fe_graph_new(im, p));
    return g;
}

const fe_users *
fe_users_of(const fe_graph *g, const char *name)
{
    static const fe_users nobody;
    const fe_users *u = ef_map_get(&g->users, name);
    return u ? u : &nobody;
}

/* ---- order ---- */

/* Backwards, so that a reader is seen before what it reads. */
void
fe_graph_order(fe_imp *im, fe_graph *g)
{
    ef_map wanted = {0};
    for (size_t i = 0; i < g->p->n_output; i++)
        ef_map_set(im->arena, &wanted,
                   ef_intern(im->ctx, fe_str(g->p->output[i]->name)), im);
    for (int i = g->n - 1; i >= 0; i--) {
        fe_node *n = &g->node[i];
        for (int k = 0; k < n->nout; k++)
            n->needed |= *n->out[k] && ef_map_has(&wanted, n->out[k]);
        for (int k = 0; n->needed && k < fe_ndep(n); k++)
            ef_map_set(im->arena, &wanted, fe_dep(n, k), im);
    }
    for (int i = 0; i < g->n; i++)
        if (g->node[i].needed)
            ef_push(im->arena, g->order, &g->node[i]);
}

/* ---- operators without a row ---- */

typedef struct missing {
    const fe_node *first;
    int count;
} missing;

static const char *
hint_for(const char *domain, const char *op)
{
    static const struct {
        const char *domain, *op, *hint;
    } rows[] = {
        {"com.microsoft", NULL,
         "onnxruntime's optimiser wrote this file: give the model as it was exported"},
        {"", "MaxPool", "a convolutional network is no transformer over token ids"},
        {"", "BatchNormalization",
         "a convolutional network is no transformer over token ids"},
        {"", "QLinearMatMul", "quantised weights can not be trained"},
        {"", "MatMulInteger", "quantised weights can not be trained"},
        {"", "DynamicQuantizeLinear",
         "quantised weights can not be trained: give the model before quantisation"},
        {"", "NonZero", "shapes must not depend on the data"},
        {"", "Unique", "shapes must not depend on the data"},
        {"", "TopK", "a mixture of experts is not supported"},
        {"", "Loop", "export without control flow, with fixed trip counts"},
        {"", "Scan", "export without control flow, with fixed trip counts"},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++)
        if (!strcmp(rows[i].domain, domain) && (!rows[i].op || !strcmp(rows[i].op, op)))
            return rows[i].hint;
    return NULL;
}

static const char *
domain_of(const fe_node *n)
{
    const char *d = fe_str(n->p->domain);
    return strcmp(d, "ai.onnx") ? d : "";
}

static void
report_missing(fe_imp *im, const missing *what, const char **hint)
{
    const fe_node *n = what->first;
    const char *domain = domain_of(n), *op = fe_str(n->p->op_type);
    ef_error(im->ctx, n->loc, E_ONNX_UNSUPPORTED, op, *domain ? domain : "ai.onnx",
             fe_opset(im->f, domain), what->count, what->count == 1 ? "" : "s");
    const char *h = hint_for(domain, op);
    *hint = h ? h : *hint;
}

bool
fe_graph_supported(fe_imp *im, const fe_graph *g)
{
    enum { IN_FULL = 6 }; /* the rest goes into one line */
    ef_map kinds = {0};
    for (int i = 0; i < g->order.n; i++) {
        const fe_node *n = g->order.at[i];
        const char *domain = domain_of(n), *op = fe_str(n->p->op_type);
        if (fe_row_of(domain, op, fe_opset(im->f, domain)))
            continue;
        const char *key = ef_internf(im->ctx, "%s::%s", domain, op);
        missing *what = ef_map_get(&kinds, key);
        if (!what) {
            what = EF_NEW(im->arena, missing);
            what->first = n;
            ef_map_set(im->arena, &kinds, key, what);
        }
        what->count++;
    }
    const char *hint = NULL;
    ef_buf rest = {.arena = im->arena};
    for (int i = 0; i < kinds.n; i++) {
        const missing *what = kinds.val[i];
        if (i < IN_FULL)
            report_missing(im, what, &hint);
        else
            ef_putf(&rest, "%s%s (%d)", rest.n ? ", " : "",
                    fe_str(what->first->p->op_type), what->count);
    }
    if (rest.n)
        ef_note(im->ctx, "nor are %s", rest.s);
    if (hint)
        ef_hint(im->ctx, "%s", hint);
    return !kinds.n;
}
