/* onnx_names.c -- weights become params, with the names that PyTorch gave them.
 *
 * A weight is every float initializer or Constant of more than one element, and of one
 * element a vector with the name of a module's weight or bias (a regression's head has such
 * a bias); other single numbers are constants. Exporters fold transposes into new
 * initializers without a name ("onnx::MatMul_302"); their names come from the bias that is
 * added next, else from the node's scope. What stands in front of all scopes is learnt from
 * the weights that kept their names.
 *
 * Exporters also merge vectors of equal values, through an Identity or not, though they are
 * no ties. Readers of a vector are grouped by the name that each would give it; every group
 * becomes a param of its own. A module that runs several times names it the same each time
 * and stays one.
 */
#include "structure_int.h"

#include <ctype.h>
#include <string.h>

/* ---- names ---- */

bool
fe_is_torch_name(const char *name)
{
    bool dot = false, digit = false;
    if (!isalpha((unsigned char)name[0]) && name[0] != '_')
        return false;
    for (const char *c = name; *c; c++) {
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != '.')
            return false;
        dot |= *c == '.';
        digit |= isdigit((unsigned char)*c) != 0;
    }
    const char *last = strrchr(name, '.');
    return dot ? isalpha((unsigned char)last[1]) || last[1] == '_' : !digit;
}

/* "a.b.weight" gives "a.b"; NULL: no dot. */
static const char *
module_of(fe_imp *im, const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? ef_internn(im->ctx, name, (size_t)(dot - name)) : NULL;
}

/* What PyTorch calls operand `input` of such a node within its module; NULL: no idea. */
static const char *
leaf_of(const fe_node *n, int input)
{
    static const struct {
        const char *op, *leaf[3];
    } rows[] = {
        {"MatMul", {"weight", "weight", NULL}},
        {"Gemm", {NULL, "weight", "bias"}},
        {"FusedMatMul", {"weight", "weight", NULL}},
        {"FusedGemm", {NULL, "weight", "bias"}},
        {"BiasGelu", {NULL, "bias", NULL}},
        {"Gather", {"weight", NULL, NULL}},
        {"LayerNormalization", {NULL, "weight", "bias"}},
        {"RMSNormalization", {NULL, "weight", NULL}},
        {"SimplifiedLayerNormalization", {NULL, "weight", NULL}},
        {"Add", {"bias", "bias", NULL}},
        {"Mul", {"weight", "weight", NULL}},
    };
    for (size_t i = 0; input < 3 && i < EF_COUNT(rows); i++)
        if (!strcmp(rows[i].op, fe_str(n->p->op_type)))
            return rows[i].leaf[input];
    return NULL;
}

/* "a.fc" of "a.fc_1"; NULL: no number at the end. */
static const char *
unnumbered(fe_imp *im, const char *scope)
{
    const char *end = strrchr(scope, '_');
    size_t digits = end ? strspn(end + 1, "0123456789") : 0;
    return digits && !end[1 + digits]
               ? ef_internn(im->ctx, scope, (size_t)(end - scope))
               : NULL;
}

/* Does a matrix show that modules run several times? The exporter numbers the scopes of the
 * runs behind the first, and only a matrix tells that from merged vectors. */
static bool
runs_again(fe_imp *im)
{
    for (int i = 0; i < im->weights.n; i++) {
        const fe_weight *w = im->weights.at[i];
        const char *first = w->uses.n > 1 ? w->uses.at[0].node->scope : NULL;
        for (int k = 1; first && w->t->rank == 2 && k < w->uses.n; k++) {
            const char *s = w->uses.at[k].node->scope;
            if (s && unnumbered(im, s) == first)
                return true;
        }
    }
    return false;
}

static void
find_reruns(fe_imp *im)
{
    ef_map scopes = {0};
    if (!runs_again(im))
        return;
    for (int i = 0; i < im->main->order.n; i++)
        if (im->main->order.at[i]->scope)
            ef_map_set(im->arena, &scopes, im->main->order.at[i]->scope, im);
    for (int i = 0; i < scopes.n; i++) {
        const char *first = unnumbered(im, scopes.key[i]);
        if (first && ef_map_has(&scopes, first))
            ef_map_set(im->arena, &im->reruns, scopes.key[i], (void *)first);
    }
}

/* The scope of a node; onnxruntime's fused ones have that of the product whose bias they add.
 */
static const char *
scope_of_use(const fe_imp *im, const fe_use *u)
{
    const fe_node *n = u->node;
    if (!n->scope && n->nin > 1 && !strncmp(fe_str(n->p->op_type), "Bias", 4))
        n = ef_map_get(&im->main->producer, n->in[0]);
    const char *first = n && n->scope ? ef_map_get(&im->reruns, n->scope) : NULL;
    return first ? first : n ? n->scope : NULL;
}

static const char *
scope_name(fe_imp *im, const fe_use *u, int rank)
{
    const char *leaf = leaf_of(u->node, u->input);
    const char *op = fe_str(u->node->p->op_type), *scope = scope_of_use(im, u);
    bool vector = !strcmp(op, "Add") || !strcmp(op, "Mul");
    return leaf && scope && (rank == 1 || !vector)
               ? ef_internf(im->ctx, "%s%s.%s", im->prefix, scope, leaf)
               : NULL;
}

static const char *
last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* "net." of module "net.a.fc" and scope "a.fc"; NULL: the scope is not its end. */
static const char *
prefix_of(fe_imp *im, const char *module, const char *scope)
{
    size_t m = module ? strlen(module) : 0, s = scope ? strlen(scope) : 0;
    if (!m || !s || m < s || strcmp(module + m - s, scope))
        return NULL;
    return m == s || module[m - s - 1] == '.' ? ef_internn(im->ctx, module, m - s)
                                              : NULL;
}

static bool
read_once(const fe_imp *im, const char *name)
{
    const fe_alias *a = ef_map_get(&im->aliases, name);
    int n = 0;
    for (int i = 0; a && i < a->w->uses.n; i++)
        n += a->w->uses.at[i].alias == name;
    return n == 1;
}

/* Module of the bias that is added to a product; NULL: none, or one of another module. */
static const char *
module_of_bias(fe_imp *im, const fe_node *n)
{
    const char *bias = n->nin > 2 ? n->in[2] : NULL;
    const fe_users *u = fe_users_of(im->main, n->out[0]);
    for (int i = 0; !bias && i < u->node.n; i++)
        for (int k = 0; k < u->node.at[i]->nin; k++)
            if (!strcmp(fe_str(u->node.at[i]->p->op_type), "Add") &&
                ef_map_has(&im->aliases, u->node.at[i]->in[k]))
                bias = u->node.at[i]->in[k];
    if (!bias || !fe_is_torch_name(bias) || strcmp(last_part(bias), "bias"))
        return NULL;
    const char *module = module_of(im, bias);
    if (!module || read_once(im, bias)) {
        bool same =
            !n->scope || !module || !strcmp(last_part(n->scope), last_part(module));
        return same ? module : NULL;
    }
    return prefix_of(im, module, n->scope) ? module
                                           : NULL; /* several modules share it */
}

static void
name_param(fe_imp *im, fe_param *p, const fe_use *u)
{
    if (fe_is_torch_name(p->key)) {
        p->hf = p->key;
        return;
    }
    if (!u)
        return;
    const char *op = fe_str(u->node->p->op_type);
    bool gemm = !strcmp(op, "Gemm") || !strcmp(op, "FusedGemm");
    bool product = gemm || !strcmp(op, "MatMul") || !strcmp(op, "FusedMatMul");
    const Onnx__AttributeProto *tb =
        product ? fe_node_attr(u->node->p, "transB") : NULL;
    const char *module = product && u->input == 1 ? module_of_bias(im, u->node) : NULL;
    p->hf = module ? ef_internf(im->ctx, "%s.weight", module)
                   : scope_name(im, u, p->t->rank);
    p->transposed =
        p->hf && product && u->input == 1 && p->t->rank == 2 && !(tb && tb->i);
}

/* ---- weights and who reads them ---- */

static bool
is_weight(const fe_tensor *t, const char *name)
{
    if (!ir_dtypes[t->dtype].is_float)
        return false;
    const char *dot = strrchr(name, '.');
    bool named = dot && fe_is_torch_name(name) &&
                 (!strcmp(dot, ".bias") || !strcmp(dot, ".weight"));
    return t->count != 1 || (t->rank == 1 && named);
}

static fe_weight *
add_weight(fe_imp *im, const fe_tensor *t, const char *name)
{
    fe_weight *w = EF_NEW(im->arena, fe_weight);
    w->t = t;
    w->name = name;
    ef_push(im->arena, im->weights, w);
    fe_alias *a = EF_NEW(im->arena, fe_alias);
    *a = (fe_alias){w, name};
    ef_map_set(im->arena, &im->aliases, name, a);
    return w;
}

static void
add_constant(fe_imp *im, const fe_node *n)
{
    const Onnx__AttributeProto *a = fe_node_attr(n->p, "value");
    const fe_tensor *t = a && a->t ? fe_tensor_of(im->f, a->t) : NULL;
    if (t && is_weight(t, n->out[0]))
        add_weight(im, t, n->out[0]);
}

static void
add_uses(fe_imp *im, fe_node *n, fe_node *owner)
{
    for (int i = 0; i < n->nin; i++) {
        fe_alias *a = ef_map_get(&im->aliases, n->in[i]);
        if (a)
            ef_push(im->arena, a->w->uses, ((fe_use){n, owner, i, a->name}));
    }
}

static void
scan_node(fe_imp *im, fe_node *n, fe_node *owner)
{
    const char *op = fe_str(n->p->op_type);
    fe_alias *a = n->nin ? ef_map_get(&im->aliases, n->in[0]) : NULL;
    if (!strcmp(op, "Constant")) {
        add_constant(im, n);
    } else if (!strcmp(op, "Identity") && a) {
        fe_alias *b = EF_NEW(im->arena, fe_alias);
        *b = (fe_alias){a->w, n->out[0]};
        ef_map_set(im->arena, &im->aliases, b->name, b);
    } else if (strcmp(op, "Shape") && strcmp(op, "Size")) {
        add_uses(im, n, owner);
    }
    for (size_t i = 0; i < n->p->n_attribute; i++) {
        Onnx__GraphProto *g = n->p->attribute[i]->g;
        if (!g)
            continue;
        for (size_t k = 0; k < g->n_initializer; k++) {
            const fe_tensor *t = fe_tensor_of(im->f, g->initializer[k]);
            const char *name = ef_intern(im->ctx, t->name);
            if (is_weight(t, name))
                add_weight(im, t, name);
        }
        fe_graph *branch = fe_branch(im, g);
        for (int k = 0; k < branch->n; k++)
            scan_node(im, &branch->node[k], owner);
    }
}

/* ---- what stands before all scopes ---- */

static void
learn_prefix(fe_imp *im)
{
    ef_map votes = {0};
    im->prefix = ef_intern(im->ctx, "");
    intptr_t most = 0;
    for (int i = 0; i < im->weights.n; i++) {
        const fe_weight *w = im->weights.at[i];
        if (w->uses.n != 1 || !fe_is_torch_name(w->name))
            continue;
        const char *p =
            prefix_of(im, module_of(im, w->name), w->uses.at[0].node->scope);
        if (!p)
            continue;
        intptr_t n = (intptr_t)ef_map_get(&votes, p) + 1;
        ef_map_set(im->arena, &votes, p, (void *)n);
        if (n > most) {
            most = n;
            im->prefix = p;
        }
    }
}

/* ---- groups of readers ---- */

static int
direct_uses(const fe_weight *w)
{
    int n = 0;
    for (int i = 0; i < w->uses.n; i++)
        n += w->uses.at[i].alias == w->name;
    return n;
}

/* The name of the group that a reader of a vector belongs to. */
static const char *
key_of(fe_imp *im, const fe_weight *w, int i, int direct)
{
    const fe_use *u = &w->uses.at[i];
    bool in_file = ef_map_has(&im->f->inits, w->name);
    if (w->t->rank != 1 || w->uses.n == 1 || !in_file || u->node != u->owner)
        return w->name;
    if (u->alias != w->name && fe_is_torch_name(u->alias))
        return u->alias;
    if (u->alias == w->name && direct == 1)
        return w->name;
    const char *derived = scope_name(im, u, 1);
    return derived ? derived : i ? ef_internf(im->ctx, "%s.%d", w->name, i) : w->name;
}

static fe_param *
new_param(fe_imp *im, const fe_weight *w, const char *key)
{
    fe_param *p = EF_NEW(im->arena, fe_param);
    p->t = w->t;
    p->key = key;
    p->onnx = w->name;
    p->unit = -1;
    ef_push(im->arena, im->params, p);
    return p;
}

static void
join(fe_imp *im, fe_param *p, const fe_use *u)
{
    ef_map_set(im->arena, &im->use, &u->node->p->input[u->input], p);
    p->unit = p->unit < 0 || p->unit == u->owner->unit ? u->owner->unit : 0;
    const char *op = fe_str(u->node->p->op_type), *scope = scope_of_use(im, u);
    p->reader = p->reader ? p->reader : scope;
    p->other = scope && scope != p->reader ? scope : p->other;
    bool table = u->input == 0 && !strcmp(op, "Gather");
    p->table |= table;
    p->product |= !table;
    p->added |= !strcmp(op, "Add");
    p->foreign |= *fe_str(u->node->p->domain) && strcmp(u->node->p->domain, "ai.onnx");
    if (table && !p->lookup)
        p->lookup = scope_name(im, u, p->t->rank);
}

static void
group_uses(fe_imp *im, fe_weight *w)
{
    ef_map groups = {0};
    int direct = direct_uses(w);
    for (int i = 0; i < w->uses.n; i++) {
        const char *key = key_of(im, w, i, direct);
        fe_param *p = ef_map_get(&groups, key);
        if (!p) {
            ef_map_set(im->arena, &groups, key, p = new_param(im, w, key));
            name_param(im, p, &w->uses.at[i]);
        }
        join(im, p, &w->uses.at[i]);
    }
    fe_param *owner = ef_map_get(&groups, w->name);
    if (!owner && groups.n)
        owner = groups.val[0];
    if (groups.n == 1 && fe_is_torch_name(w->name))
        owner->hf = w->name;
    for (int i = 0; i < groups.n; i++)
        ((fe_param *)groups.val[i])->owner = groups.val[i] == owner;
}

static bool
check_weight(fe_imp *im, const fe_weight *w)
{
    if (w->t->count || !w->uses.n)
        return true;
    return ef_error(im->ctx, w->name, E_ONNX_TENSOR,
                    ef_internf(im->ctx,
                               "a weight of size zero (%s): nothing to train there",
                               fe_dims_text(im->arena, (size_t)w->t->rank, w->t->dim)));
}

bool
fe_params(fe_imp *im)
{
    for (int i = 0; i < im->f->inits.n; i++) {
        const fe_tensor *t = im->f->inits.val[i];
        if (is_weight(t, im->f->inits.key[i]))
            add_weight(im, t, im->f->inits.key[i]);
    }
    for (int i = 0; i < im->main->order.n; i++)
        scan_node(im, im->main->order.at[i], im->main->order.at[i]);
    find_reruns(im);
    learn_prefix(im);
    for (int i = 0; i < im->weights.n; i++) {
        if (!check_weight(im, im->weights.at[i]))
            return false;
        group_uses(im, im->weights.at[i]);
    }
    return fe_rename(im);
}

fe_param *
fe_param_of(fe_imp *im, const char *name)
{
    const fe_alias *a = ef_map_get(&im->aliases, name);
    if (!a)
        return NULL;
    if (a->w->uses.n) {
        const fe_use *u = &a->w->uses.at[0];
        return ef_map_get(&im->use, &u->node->p->input[u->input]);
    }
    fe_param *p = new_param(im, a->w, a->w->name);
    name_param(im, p, NULL);
    p->owner = true;
    return p;
}

/* ---- params of the module ---- */

/* Data that are no plain array in a file: doubles, or numbers stored as varints. */
static bool
read_values(fe_imp *im, const fe_tensor *t, ir_param *p)
{
    double *x = EF_NEWN(im->m->arena, double, t->count);
    p->init = IR_INIT_VALUES;
    p->values = x;
    if (!fe_tensor_f64(im->f, t, 0, t->count, x))
        return false;
    for (int64_t i = 0; i < t->count; i++)
        x[i] = ir_round(IR_F32, x[i]);
    return true;
}

bool
fe_make_param(fe_imp *im, fe_param *p)
{
    const ir_type *type =
        ir_type_get(im->ctx, IR_F32, p->t->rank - p->lead, p->t->dim + p->lead);
    bool root = p->copies.n || p->unit < 0;
    ir_param *ir =
        ir_param_new(im->m, p->hf ? p->hf : p->key, type, IR_TRAIN, root ? 0 : p->unit);
    p->ir = ir;
    ir->onnx = p->owner ? p->onnx : NULL;
    ir->loc = p->onnx;
    ir->hf = p->hf;
    ir->transposed = p->transposed;
    ir->shift = p->shift;
    for (int i = 0; i < p->copies.n; i++)
        ef_push(im->m->arena, ir->also,
                ef_internf(im->ctx, "%c%s", p->copies.at[i]->tie_transposed ? 'T' : '=',
                           p->copies.at[i]->onnx));
    if (!p->t->direct)
        return read_values(im, p->t, ir);
    ir->init = IR_INIT_FILE;
    ir->path = ef_intern(im->ctx, p->t->path);
    ir->at = p->t->at;
    ir->file_dtype = p->t->dtype;
    return true;
}

/* The value of the param, or of what it is a copy of. NULL: said why. */
fe_val *
fe_param_val(fe_call *c, fe_param *p)
{
    fe_imp *im = c->im;
    fe_param *root = p->tie ? p->tie : p;
    if (!root->ir && !fe_make_param(im, root))
        return NULL;
    fe_val *v = fe_ir_val(im, root->ir->value);
    if (p->lead)
        v = fe_reshape(c, v, p->t->rank, p->t->dim);
    return p->tie_transposed ? fe_permute(c, v, (int64_t[]){1, 0}) : v;
}
