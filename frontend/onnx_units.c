/* onnx_units.c -- which unit each node belongs to: embeddings, one per layer, head.
 *
 * A layer shows in scopes ("bert.encoder.layer.0.attention") or, in files without scopes, in
 * the names of the weights that a node reads: the first number after a dot ends the layer's
 * name. Of all stems ("bert.encoder.layer") the one with the most nodes is the stack. A file
 * without such names has the layers that its structure shows. A node
 * without a layer of its own belongs where its latest operand does; after the last layer
 * that is the head. What depends on nothing but weights and constants goes to its reader.
 *
 * Nodes are then sorted by unit, and stay sorted by operands: a unit is never smaller than
 * that of an operand.
 */
#include "structure_int.h"

#include <ctype.h>
#include <string.h>

enum { STATIC = -1 }; /* unit of a node that depends on no input */

/* ---- layers ---- */

/* Length of the stem and end of the layer's name in a dotted path: "a.layer.3.x" gives 7
 * and 9. false: no number in it. */
static bool
layer_in(const char *path, size_t *stem, size_t *end)
{
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.')) {
        size_t digits = strspn(dot + 1, "0123456789");
        if (digits && (dot[1 + digits] == '.' || !dot[1 + digits])) {
            *stem = (size_t)(dot - path);
            *end = *stem + 1 + digits;
            return true;
        }
    }
    return false;
}

/* The path that tells a node's layer: its scope, or the name of a weight that it reads. */
static const char *
path_of(const fe_imp *im, const fe_node *n)
{
    size_t stem, end;
    if (n->scope && layer_in(n->scope, &stem, &end))
        return n->scope;
    for (int i = 0; !n->scope && i < n->nin; i++)
        if (ef_map_has(&im->f->inits, n->in[i]) && fe_is_torch_name(n->in[i]) &&
            layer_in(n->in[i], &stem, &end))
            return n->in[i];
    return NULL;
}

/* The stem with the most nodes; NULL: none. */
static const char *
main_stem(fe_imp *im)
{
    ef_map count = {0};
    const char *best = NULL;
    for (int i = 0; i < im->main->order.n; i++) {
        const char *path = path_of(im, im->main->order.at[i]);
        size_t stem, end;
        if (!path || !layer_in(path, &stem, &end))
            continue;
        const char *key = ef_internn(im->ctx, path, stem);
        intptr_t n = (intptr_t)ef_map_get(&count, key) + 1;
        ef_map_set(im->arena, &count, key, (void *)n);
        if (!best || n > (intptr_t)ef_map_get(&count, best))
            best = key;
    }
    return best;
}

static void
find_layers(fe_imp *im)
{
    const char *stack = main_stem(im);
    ef_map index = {0};
    for (int i = 0; stack && i < im->main->order.n; i++) {
        fe_node *n = im->main->order.at[i];
        const char *path = path_of(im, n);
        size_t stem, end;
        if (!path || !layer_in(path, &stem, &end) ||
            ef_internn(im->ctx, path, stem) != stack)
            continue;
        const char *layer = ef_internn(im->ctx, path, end);
        if (!ef_map_has(&index, layer)) {
            ef_push(im->arena, im->layers, layer);
            ef_map_set(im->arena, &index, layer, (void *)(intptr_t)im->layers.n);
        }
        n->layer = (int)(intptr_t)ef_map_get(&index, layer) - 1;
    }
}

/* The node and the norm whose result it reads belong to a layer. */
static void
put_in_layer(fe_imp *im, fe_node *n, int layer)
{
    enum { NORM = 10 }; /* nodes of one */
    for (int i = 0; n && i < NORM && n->layer < 0; i++) {
        n->layer = layer;
        n = fe_maker(im, n, 0);
        if (n && (!strcmp(fe_str(n->p->op_type), "Add") || fe_matrix_of(im, n)))
            break; /* the residual stream, or the product before */
    }
}

/* Do names tell of fewer layers than there are? Vectors that layers share have one name. */
static bool
names_tell_less(const fe_imp *im)
{
    bool scopes = false;
    for (int i = 0; i < im->main->order.n; i++)
        scopes |= im->main->order.at[i]->scope != NULL;
    return im->structure.n > im->layers.n && !(scopes && im->layers.n);
}

static void
layers_by_structure(fe_imp *im)
{
    im->layers.n = 0;
    for (int i = 0; i < im->main->order.n; i++)
        im->main->order.at[i]->layer = -1;
    for (int i = 0; i < im->structure.n; i++) {
        const fe_layer *l = im->structure.at[i];
        fe_node *const parts[] = {l->q.at[0], l->k.at[0], l->v.at[0], l->o,
                                  l->in[0],   l->in[1],   l->fc2};
        ef_push(im->arena, im->layers, ef_internf(im->ctx, "layer %d", i));
        for (size_t k = 0; k < EF_COUNT(parts); k++)
            if (parts[k])
                put_in_layer(im, parts[k], i);
    }
}

/* ---- units ---- */

/* Does the name come from the data? Then *unit is that of its node; inputs are unit 0. */
static bool
comes_from_data(const fe_imp *im, const char *name, int *unit)
{
    const fe_node *d = ef_map_get(&im->main->producer, name);
    if (d)
        *unit = d->unit;
    else
        *unit = *name && !ef_map_has(&im->f->inits, name) ? 0 : STATIC;
    return *unit != STATIC;
}

static void
forward_units(fe_imp *im)
{
    for (int i = 0; i < im->main->order.n; i++) {
        fe_node *n = im->main->order.at[i];
        n->unit = STATIC;
        for (int k = 0; k < fe_ndep(n); k++) {
            int unit;
            if (comes_from_data(im, fe_dep(n, k), &unit) && unit > n->unit)
                n->unit = unit;
        }
        if (n->unit != STATIC && n->layer >= 0 && n->layer + 1 > n->unit)
            n->unit = n->layer + 1;
    }
}

/* Nodes behind the last layer: in its unit, without a layer, and feeding no node of it. */
static void
find_head(fe_imp *im, ef_map *feeds)
{
    int last = im->layers.n, n = im->main->order.n;
    for (int i = n - 1; last && i >= 0; i--) {
        fe_node *node = im->main->order.at[i];
        bool inner = node->layer == last - 1;
        for (int k = 0; k < node->nout && !inner; k++) {
            const fe_users *u = fe_users_of(im->main, node->out[k]);
            for (int j = 0; j < u->node.n && !inner; j++)
                inner = ef_map_has(feeds, u->node.at[j]);
        }
        if (inner)
            ef_map_set(im->arena, feeds, node, im);
        else if (node->unit == last)
            node->unit = last + 1;
    }
}

static void
place_static(fe_imp *im)
{
    for (int i = im->main->order.n - 1; i >= 0; i--) {
        fe_node *n = im->main->order.at[i];
        if (n->unit != STATIC)
            continue;
        int unit = -1;
        for (int k = 0; k < n->nout; k++) {
            const fe_users *u = fe_users_of(im->main, n->out[k]);
            for (int j = 0; j < u->node.n; j++)
                if (u->node.at[j]->needed && (unit < 0 || u->node.at[j]->unit < unit))
                    unit = u->node.at[j]->unit;
        }
        n->unit = unit < 0 ? 0 : unit;
    }
}

/* Counting sort by unit; nodes of one unit keep their order. */
static void
sort_by_unit(fe_imp *im)
{
    int n = im->main->order.n, at = 0;
    fe_node **sorted = EF_NEWN(im->arena, fe_node *, n + 1);
    int *count = EF_NEWN(im->arena, int, im->nunit + 1);
    for (int i = 0; i < n; i++)
        count[im->main->order.at[i]->unit + 1]++;
    for (int u = 0; u < im->nunit; u++)
        count[u] = at += count[u];
    for (int i = 0; i < n; i++)
        sorted[count[im->main->order.at[i]->unit]++] = im->main->order.at[i];
    memcpy(im->main->order.at, sorted, sizeof *sorted * (size_t)n);
}

void
fe_units(fe_imp *im)
{
    find_layers(im);
    if (names_tell_less(im))
        layers_by_structure(im);
    forward_units(im);
    ef_map feeds = {0};
    find_head(im, &feeds);
    place_static(im);
    im->nunit = im->layers.n ? im->layers.n + 2 : 1;
    sort_by_unit(im);
    for (int u = 0; u < im->nunit; u++) {
        const char *name = !u                  ? "embeddings"
                           : u <= im->layers.n ? ef_internf(im->ctx, "layer.%d", u - 1)
                                               : "head";
        ir_unit_new(im->m, name);
        ir_block *b =
            ir_block_new(im->m->step, ef_internf(im->ctx, "%s.fwd", name), IR_FWD, u);
        im->block = im->block ? im->block : b;
    }
}
