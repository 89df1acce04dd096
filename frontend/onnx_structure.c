/* onnx_structure.c -- finds attention and feed-forward blocks in a graph without names.
 *
 * Every softmax stands in an attention: walking back from it leads to the product of queries
 * and keys, and from there to the weight products that made them; the product behind the
 * softmax leads to the values and forward to the output projection. A product of a block's
 * inside has no norm between itself and the products that feed it: so the second matrix of a
 * feed-forward block is told from all others, and behind it stand one product, or gate and
 * up. Blocks are numbered by how many attentions the data have passed.
 *
 * Walks stop at weight products and at norms and visit a limited number of nodes, so that a
 * graph of any other kind costs little.
 */
#include "structure_int.h"

#include <string.h>

enum { WALK_MAX = 512 }; /* nodes of one walk */

typedef struct nodes {
    EF_VEC(fe_node *) at;
} nodes;

static bool
is_op(const fe_node *n, const char *list)
{
    const char *op = fe_str(n->p->op_type), *at = list;
    size_t k = strlen(op);
    while ((at = strstr(at, op)) != NULL) {
        if ((at == list || at[-1] == ' ') && (at[k] == ' ' || !at[k]))
            return true;
        at += k;
    }
    return false;
}

static bool
is_matrix(const fe_tensor *t)
{
    return t && t->rank == 2 && t->dim[0] > 1 && t->dim[1] > 1 &&
           ir_dtypes[t->dtype].is_float;
}

/* The matrix called so; *through: the last Transpose, Cast or Identity on the way. */
static const char *
matrix_named(const fe_imp *im, const char *name)
{
    for (int hops = 0; hops < 4; hops++) {
        if (is_matrix(ef_map_get(&im->f->inits, name)))
            return name;
        const fe_node *d = ef_map_get(&im->main->producer, name);
        if (!d)
            return NULL;
        const Onnx__AttributeProto *value =
            is_op(d, "Constant") ? fe_node_attr(d->p, "value") : NULL;
        if (value && value->t)
            return is_matrix(fe_tensor_of(im->f, value->t)) ? name : NULL;
        if (!is_op(d, "Transpose Cast Identity") || !d->nin)
            return NULL;
        name = d->in[0];
    }
    return NULL;
}

const char *
fe_matrix_of(const fe_imp *im, const fe_node *n)
{
    bool product = is_op(n, "MatMul Gemm FusedMatMul FusedGemm") && n->nin > 1;
    return product && !matrix_named(im, n->in[0]) ? matrix_named(im, n->in[1]) : NULL;
}

fe_node *
fe_maker(const fe_imp *im, const fe_node *n, int i)
{
    fe_node *d = i < n->nin ? ef_map_get(&im->main->producer, n->in[i]) : NULL;
    while (d && d->nin && is_op(d, "Reshape Cast Identity Squeeze Unsqueeze Flatten"))
        d = ef_map_get(&im->main->producer, d->in[0]);
    return d;
}

/* ---- walks ---- */

static bool
is_norm(const fe_node *n)
{
    return is_op(n, "LayerNormalization RMSNormalization SimplifiedLayerNormalization "
                    "SkipLayerNormalization SkipSimplifiedLayerNormalization "
                    "ReduceMean EmbedLayerNormalization");
}

/* Weight products behind a name, without passing another product, softmax or lookup; *norm:
 * was a norm met? NULL: no such. `data` are met products of data. */
static void
walk_back(fe_imp *im, const char *name, nodes *weights, nodes *data, bool *norm)
{
    ef_map seen = {0};
    nodes todo = {0};
    fe_node *d = ef_map_get(&im->main->producer, name);
    if (d)
        ef_push(im->arena, todo.at, d);
    for (int i = 0; i < todo.at.n && i < WALK_MAX; i++) {
        fe_node *n = todo.at.at[i];
        if (fe_matrix_of(im, n)) {
            ef_push(im->arena, weights->at, n);
            continue;
        }
        if (is_norm(n)) {
            *norm = true;
            continue;
        }
        if (is_op(n, "MatMul FusedMatMul Gemm Einsum") && data) {
            ef_push(im->arena, data->at, n);
            continue;
        }
        if (is_op(n, "Softmax Gather Shape Constant"))
            continue;
        for (int k = 0; k < n->nin; k++) {
            fe_node *from = ef_map_get(&im->main->producer, n->in[k]);
            if (!from || ef_map_has(&seen, from))
                continue;
            ef_map_set(im->arena, &seen, from, im);
            ef_push(im->arena, todo.at, from);
        }
    }
}

/* The first node of the given ops that the result of n reaches; NULL: none, before a weight
 * product. With `weights`, the first weight product. */
static fe_node *
walk_forward(fe_imp *im, const fe_node *n, const char *ops)
{
    ef_map seen = {0};
    EF_VEC(const fe_node *) todo = {0};
    ef_push(im->arena, todo, n);
    for (int i = 0; i < todo.n && i < WALK_MAX; i++)
        for (int k = 0; k < todo.at[i]->nout; k++) {
            const fe_users *u = fe_users_of(im->main, todo.at[i]->out[k]);
            for (int j = 0; j < u->node.n; j++) {
                fe_node *user = u->node.at[j];
                bool product = fe_matrix_of(im, user) != NULL;
                if (ops ? is_op(user, ops) && !product : product)
                    return user;
                if (product || !user->needed || ef_map_has(&seen, user))
                    continue;
                ef_map_set(im->arena, &seen, user, im);
                ef_push(im->arena, todo, (const fe_node *)user);
            }
        }
    return NULL;
}

/* ---- attention ---- */

static bool
add_layer(fe_imp *im, const fe_node *joined, const char *const from[3])
{
    fe_layer *l = EF_NEW(im->arena, fe_layer);
    for (int i = 0; i < 3; i++) {
        nodes found = {0};
        bool norm = false;
        walk_back(im, from[i], &found, NULL, &norm);
        for (int k = 0; k < found.at.n; k++) {
            if (i == 0)
                ef_push(im->arena, l->q, found.at.at[k]);
            else if (i == 1)
                ef_push(im->arena, l->k, found.at.at[k]);
            else
                ef_push(im->arena, l->v, found.at.at[k]);
        }
    }
    l->o = walk_forward(im, joined, NULL);
    if (l->q.n != 1 || l->k.n != 1 || l->v.n != 1 || !l->o)
        return false;
    ef_push(im->arena, im->structure, l);
    return true;
}

/* softmax(q k^T) v */
static bool
add_softmax(fe_imp *im, const fe_node *n)
{
    nodes weights = {0}, scores = {0};
    bool norm = false;
    walk_back(im, n->in[0], &weights, &scores, &norm);
    const fe_node *joined = walk_forward(im, n, "MatMul FusedMatMul Einsum");
    if (scores.at.n != 1 || weights.at.n || !joined || joined->nin < 2)
        return true; /* no attention */
    const fe_node *s = scores.at.at[0];
    if (s->nin < 2)
        return true;
    return add_layer(im, joined,
                     (const char *const[]){s->in[0], s->in[1], joined->in[1]});
}

static bool
find_attention(fe_imp *im)
{
    for (int i = 0; i < im->main->order.n; i++) {
        const fe_node *n = im->main->order.at[i];
        bool ok = true;
        if (is_op(n, "Softmax") && n->nin)
            ok = add_softmax(im, n);
        else if (is_op(n, "Attention MultiHeadAttention GroupQueryAttention") &&
                 n->nin > 2 && !matrix_named(im, n->in[1]))
            ok = add_layer(im, n, (const char *const[]){n->in[0], n->in[1], n->in[2]});
        if (!ok)
            return false;
    }
    return im->structure.n > 0;
}

/* ---- feed-forward blocks ---- */

/* How many attentions the data of each node have passed, in `depth`. */
static void
count_depths(fe_imp *im, ef_map *depth)
{
    ef_map output = {0};
    for (int i = 0; i < im->structure.n; i++)
        ef_map_set(im->arena, &output, im->structure.at[i]->o, im);
    for (int i = 0; i < im->main->order.n; i++) {
        fe_node *n = im->main->order.at[i];
        intptr_t most = 0;
        for (int k = 0; k < n->nin; k++) {
            const fe_node *d = ef_map_get(&im->main->producer, n->in[k]);
            intptr_t of = d ? (intptr_t)ef_map_get(depth, d) : 0;
            most = of > most ? of : most;
        }
        ef_map_set(im->arena, depth, n, (void *)(most + ef_map_has(&output, n)));
    }
}

/* Is x the gate of a gated block? Its activation reads it, too. */
static bool
is_gate(const fe_imp *im, const fe_node *x)
{
    const fe_users *u = fe_users_of(im->main, x->out[0]);
    return u->node.n > 1 || (u->node.n == 1 && !is_op(u->node.at[0], "Mul"));
}

/* Layer of a block at depth d, -1: none. The parallel kind reads what attention reads. */
static void
place_block(fe_imp *im, fe_node *fc2, const nodes *in, int depth)
{
    bool parallel = depth < im->structure.n && !im->structure.at[depth]->fc2 &&
                    (!depth || im->structure.at[depth - 1]->fc2);
    int at = depth > 0 && !im->structure.at[depth - 1]->fc2 ? depth - 1
             : parallel                                     ? depth
                                                            : -1;
    if (at < 0)
        return;
    fe_layer *l = im->structure.at[at];
    bool swap = in->at.n == 2 && !is_gate(im, in->at.at[0]);
    l->fc2 = fc2;
    l->in[0] = in->at.at[swap];
    l->in[1] = in->at.n == 2 ? in->at.at[!swap] : NULL;
}

static void
find_feed_forward(fe_imp *im)
{
    ef_map depth = {0}, taken = {0};
    count_depths(im, &depth);
    for (int i = 0; i < im->structure.n; i++) {
        const fe_layer *l = im->structure.at[i];
        fe_node *const parts[] = {l->q.at[0], l->k.at[0], l->v.at[0], l->o};
        for (int k = 0; k < 4; k++)
            ef_map_set(im->arena, &taken, parts[k], im);
    }
    for (int i = 0; i < im->main->order.n; i++) {
        fe_node *n = im->main->order.at[i];
        nodes in = {0};
        bool norm = false;
        if (!fe_matrix_of(im, n) || ef_map_has(&taken, n))
            continue;
        walk_back(im, n->in[0], &in, NULL, &norm);
        if (!norm && (in.at.n == 1 || in.at.n == 2) && !ef_map_has(&taken, in.at.at[0]))
            place_block(im, n, &in, (int)(intptr_t)ef_map_get(&depth, n));
    }
}

void
fe_find_structure(fe_imp *im)
{
    if (find_attention(im))
        find_feed_forward(im);
    else
        im->structure.n = 0;
}
