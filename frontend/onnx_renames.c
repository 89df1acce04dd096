/* onnx_renames.c -- names by family, for what neither the file nor scopes name.
 *
 * What stands before the layers of a family ("model.", "bert.", nothing in a model without a
 * head) is read off the names that are there, else off the architecture in config.json; that
 * tells, too, what is a wrapper's.
 *
 * Exporters compute with what does not depend on the data. In Gemma's norms that is 1 +
 * weight, which loses its name, as no other vector does: it is PyTorch's weight + 1. A file of
 * fixed shapes has the first rows of the table of positions only.
 */
#include "structure_int.h"

#include <ctype.h>
#include <string.h>

static bool
is_nameless(const fe_param *p)
{
    return !p->hf && p->t->count > 1;
}

static const char *
in_base(fe_imp *im, const char *module)
{
    return ef_internf(im->ctx, "%s%s.weight", im->base, module);
}

/* ---- what stands before ---- */

/* "model." of "model.layers.0.mlp.up_proj.weight"; NULL: it is no such name. */
static const char *
base_in(fe_imp *im, const char *name)
{
    const char *layers = im->family->layers;
    size_t k = strlen(layers);
    for (const char *s = strstr(name, layers); s; s = strstr(s + 1, layers))
        if ((s == name || s[-1] == '.') && s[k] == '.' &&
            isdigit((unsigned char)s[k + 1]))
            return ef_internn(im->ctx, name, (size_t)(s - name));
    return NULL;
}

/* Is the model the bare body, as "LlamaModel" in config.json says? */
static bool
is_bare(const fe_imp *im)
{
    const char *a = im->config ? im->config->architecture : NULL;
    size_t n = a ? strlen(a) : 0;
    return n > 5 && !strcmp(a + n - 5, "Model") && !strstr(a, "HeadModel");
}

static void
find_base(fe_imp *im)
{
    for (int i = 0; i < im->params.n && !im->base; i++)
        if (im->params.at[i]->hf)
            im->base = base_in(im, im->params.at[i]->hf);
    if (!im->base)
        im->base = is_bare(im) ? "" : ef_internf(im->ctx, "%s.", im->family->base);
}

/* Names of a model that was exported within another module ("net.model.layers.0.."), without
 * what stands before those of its architecture. */
static void
unwrap(fe_imp *im)
{
    const char *want = is_bare(im) ? "" : ef_internf(im->ctx, "%s.", im->family->base);
    size_t n = strlen(im->base), k = strlen(want), extra = n - k;
    if (!im->config || !im->config->architecture || n <= k ||
        strcmp(im->base + extra, want) || im->base[extra - 1] != '.')
        return;
    const char *before = ef_internn(im->ctx, im->base, extra);
    for (int i = 0; i < im->params.n; i++) {
        fe_param *p = im->params.at[i];
        if (p->hf && !strncmp(p->hf, before, extra))
            p->hf += extra;
        if (p->lookup && !strncmp(p->lookup, before, extra))
            p->lookup += extra;
    }
    im->base = want;
}

/* ---- norms of 1 + weight ---- */

/* "a.input_layernorm.weight", "model.norm.weight" */
static bool
is_norm_name(const char *name)
{
    size_t n = strlen(name), k = strlen("norm.weight");
    return n > k && !strcmp(name + n - k, "norm.weight");
}

/* Do the file's weights have names? Then a vector without one was computed. */
static bool
keeps_names(const fe_imp *im)
{
    for (int i = 0; i < im->params.n; i++)
        if (fe_is_torch_name(im->params.at[i]->key))
            return true;
    return false;
}

/* Is there a product among the nodes that read it, and nothing else but its shape? */
static bool
is_scaled(const fe_users *u)
{
    bool scaled = false;
    for (int i = 0; i < u->node.n; i++) {
        const char *op = fe_str(u->node.at[i]->p->op_type);
        if (strcmp(op, "Shape") && strcmp(op, "Mul"))
            return false;
        scaled |= !strcmp(op, "Mul");
    }
    return scaled;
}

/* Gemma multiplies embeddings by a number before all else. */
static bool
scales_embeddings(const fe_imp *im)
{
    for (int i = 0; i < im->main->order.n; i++) {
        const fe_node *n = im->main->order.at[i];
        const fe_param *p = n->nin ? ef_map_get(&im->use, &n->p->input[0]) : NULL;
        if (!p || !p->table || strcmp(fe_str(n->p->op_type), "Gather"))
            continue;
        return is_scaled(fe_users_of(im->main, n->out[0]));
    }
    return false;
}

static bool
is_gemma(const fe_imp *im)
{
    if (im->config)
        return !strncmp(im->config->type, "gemma", 5);
    return im->family &&
           (!strncmp(im->family->name, "gemma", 5) ||
            (!strcmp(im->family->name, "llama") && scales_embeddings(im)));
}

/* Without config.json, a nameless scale among weights with names is 1 + weight in Gemma, and
 * in any other family something of which nothing is known. */
static void
find_folded(fe_imp *im)
{
    bool gemma = is_gemma(im), kept = keeps_names(im);
    for (int i = 0; i < im->params.n; i++) {
        fe_param *p = im->params.at[i];
        bool scale = p->t->rank == 1 && p->hf && is_norm_name(p->hf);
        if (!scale || fe_is_torch_name(gemma ? p->onnx : p->key) ||
            (!kept && !im->config))
            continue; /* equal ones of Gemma share an initializer without a name */
        p->shift = gemma;
        if (!gemma && !im->config)
            p->hf = NULL;
    }
}

/* ---- tables ---- */

/* The table of token ids: the one with most rows. */
static fe_param *
ids_table(fe_imp *im)
{
    fe_param *best = NULL;
    for (int i = 0; i < im->params.n; i++) {
        fe_param *p = im->params.at[i];
        if (p->table && p->t->rank == 2 && (!best || p->t->dim[0] > best->t->dim[0]))
            best = p;
    }
    return best;
}

/* "lm_head.weight"; NULL: the family has no head, or one whose name is never lost. */
static const char *
head_name(fe_imp *im)
{
    const char *head = im->family->head, *comma = head ? strchr(head, ',') : NULL;
    bool newer = comma && im->config && im->config->transformers >= 5;
    if (!head)
        return NULL;
    size_t n = comma ? (size_t)(comma - head) : strlen(head);
    return newer ? ef_internf(im->ctx, "%s.weight", comma + 1)
                 : ef_internf(im->ctx, "%.*s.weight", (int)n, head);
}

/* The newer exporter calls a tied table by its head. */
static void
name_ids(fe_imp *im)
{
    fe_param *p = ids_table(im);
    const char *head = head_name(im);
    if (!p || p->lookup)
        return;
    if (!p->hf || (head && !strcmp(p->hf, head))) {
        p->hf = in_base(im, im->family->ids);
        p->lookup = p->hf;
    }
}

/* Are the rows of p, more than one, all the same? false: said why. */
static bool
repeats(fe_imp *im, const fe_param *p, bool *same)
{
    int64_t d = p->t->dim[p->t->rank - 1], n = p->t->count;
    ef_arena *a = ef_arena_new();
    double *first = EF_NEWN(a, double, 2 * d + 1), *row = first + d;
    bool ok = fe_tensor_f64(im->f, p->t, 0, d, first);
    *same = n > d;
    for (int64_t at = d; ok && *same && at < n; at += d) {
        ok = fe_tensor_f64(im->f, p->t, at, d, row);
        *same = ok && !memcmp(row, first, (size_t)d * sizeof *row);
    }
    ef_arena_free(a);
    return ok;
}

static bool
has_name(const fe_imp *im, const char *hf)
{
    for (int i = 0; i < im->params.n; i++)
        if (im->params.at[i]->hf && !strcmp(im->params.at[i]->hf, hf))
            return true;
    return false;
}

/* What an export with fixed shapes looked up: tables that are added to embeddings, as they
 * are, and say so by no name. One is of positions, unless all its rows are those of one token
 * type or the family is not known. */
static bool
name_positions(fe_imp *im)
{
    const fe_param *ids = ids_table(im);
    const char *module = im->family ? im->family->positions : NULL;
    const char *name = module ? in_base(im, module) : NULL;
    bool known = !name || has_name(im, name);
    for (int i = 0; i < im->params.n; i++) {
        fe_param *p = im->params.at[i];
        int rank = p->t->rank, lead = rank == 3 && p->t->dim[0] == 1;
        bool table =
            (rank == 2 || rank == 3) && ids && p->t->dim[rank - 1] == ids->t->dim[1];
        if (!table || p->unit || p->table || fe_is_torch_name(p->key) || !p->added)
            continue;
        if (!repeats(im, p, &p->looked_up))
            return false;
        bool other = known || (rank == 3 && !lead);
        p->looked_up |= other && rank == 3;
        if (p->looked_up || other)
            continue;
        p->hf = name;
        p->lead = lead;
        p->transposed = false;
        p->some_rows = known = true;
    }
    return true;
}

/* ---- layers ---- */

/* The param that a product reads as its matrix. */
static fe_param *
param_of_product(fe_imp *im, const fe_node *n)
{
    const char *name = n->in[1];
    const fe_node *at = n;
    int input = 1;
    for (int hops = 0; hops < 4; hops++) {
        fe_param *p = ef_map_get(&im->use, &at->p->input[input]);
        const fe_node *d = ef_map_get(&im->main->producer, name);
        if (p || !d || !d->nin)
            return p;
        at = d;
        input = 0;
        name = d->in[0];
    }
    return NULL;
}

static bool
flips(const fe_node *n)
{
    const Onnx__AttributeProto *a = fe_node_attr(n->p, "transB");
    return a && a->i;
}

static void
name_product(fe_imp *im, const fe_node *n, int layer, fe_role role)
{
    const char *module = n ? fe_part(im->family, role) : NULL;
    fe_param *p = module ? param_of_product(im, n) : NULL;
    if (!p || !is_nameless(p))
        return;
    bool direct = ef_map_get(&im->use, &n->p->input[1]) == p;
    p->hf = ef_internf(im->ctx, "%s%s.%d.%s.weight", im->base, im->family->layers,
                       layer, module);
    p->transposed = (direct && !flips(n)) != im->family->conv1d;
}

/* The param that a node scales by; NULL: none. */
static fe_param *
scale_of(fe_imp *im, const fe_node *n)
{
    for (int i = 0; n && i < n->nin; i++) {
        fe_param *p = ef_map_get(&im->use, &n->p->input[i]);
        if (p && p->t->rank == 1 && is_nameless(p))
            return p;
    }
    return NULL;
}

static void
name_norm(fe_imp *im, const fe_node *n, int layer, fe_role role)
{
    const char *module = fe_part(im->family, role);
    fe_param *p = module ? scale_of(im, n) : NULL;
    if (p)
        p->hf = ef_internf(im->ctx, "%s%s.%d.%s.weight", im->base, im->family->layers,
                           layer, module);
}

/* The norm of a product's result: the reader of which has a scale without a name. */
static const fe_node *
norm_behind(fe_imp *im, const fe_node *n)
{
    enum { STEPS = 8 };
    for (int i = 0; n && i < STEPS; i++) {
        const fe_users *u = fe_users_of(im->main, n->out[0]);
        const fe_node *next = NULL;
        for (int k = 0; k < u->node.n; k++) {
            if (scale_of(im, u->node.at[k]))
                return u->node.at[k];
            if (!strcmp(fe_str(u->node.at[k]->p->op_type), "Mul") ||
                !strcmp(fe_str(u->node.at[k]->p->op_type), "Cast") ||
                !strcmp(fe_str(u->node.at[k]->p->op_type), "Div"))
                next = u->node.at[k];
        }
        n = next;
    }
    return NULL;
}

static void
name_layer(fe_imp *im, int i)
{
    const fe_layer *l = im->structure.at[i];
    const fe_node *q = l->q.at[0], *k = l->k.at[0], *v = l->v.at[0];
    bool fused = q == k && k == v;
    name_product(im, q, i, fused ? FE_QKV : FE_Q);
    if (!fused) {
        name_product(im, k, i, FE_K);
        name_product(im, v, i, FE_V);
    }
    name_product(im, l->o, i, FE_O);
    name_product(im, l->in[0], i, l->in[1] ? FE_GATE : FE_FC1);
    name_product(im, l->in[1], i, FE_UP);
    name_product(im, l->fc2, i, FE_FC2);
    name_norm(im, fe_maker(im, q, 0), i, FE_NORM_IN);
    if (l->in[0])
        name_norm(im, fe_maker(im, l->in[0], 0), i, FE_NORM_MID);
    name_norm(im, norm_behind(im, l->o), i, FE_NORM_O);
    if (l->fc2)
        name_norm(im, norm_behind(im, l->fc2), i, FE_NORM_FC2);
}

/* The product that makes the graph's first output, and the norm before it. */
static void
name_head(fe_imp *im)
{
    for (int i = im->main->order.n - 1; i >= 0; i--) {
        const fe_node *n = im->main->order.at[i];
        if (!fe_matrix_of(im, n))
            continue;
        fe_param *p = param_of_product(im, n);
        if (p && is_nameless(p) && head_name(im)) {
            p->hf = head_name(im);
            p->transposed = ef_map_get(&im->use, &n->p->input[1]) == p && !flips(n);
        }
        fe_param *norm = im->family->final ? scale_of(im, fe_maker(im, n, 0)) : NULL;
        if (norm)
            norm->hf = in_base(im, im->family->final);
        return;
    }
}

/* Has config.json as many layers as the file? */
static bool
fits_config(fe_imp *im)
{
    int64_t want = im->config ? im->config->layers : 0;
    if (!want || !im->layers.n || want == im->layers.n || want == im->structure.n)
        return true; /* layers that share their weights have one name */
    return ef_error(
        im->ctx, NULL, E_FILE, im->ctx->cfg->hf_config,
        ef_internf(im->ctx,
                   "it says %lld layers, the model has %d: it is of another "
                   "model",
                   (long long)want, im->layers.n));
}

bool
fe_rename(fe_imp *im)
{
    fe_find_family(im);
    if (im->family) {
        find_base(im);
        unwrap(im);
        name_ids(im);
    }
    if (!name_positions(im))
        return false;
    if (im->family) {
        for (int i = 0; i < im->structure.n; i++)
            name_layer(im, i);
        if (im->structure.n)
            name_head(im);
    }
    find_folded(im);
    return fits_config(im);
}
