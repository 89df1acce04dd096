/* onnx_weights.c -- the weights of a file and how its graph reads them, without its operators.
 *
 * To put other weights into a file, their names, ties and layouts are all that has to be
 * known; so this works for files that can not be trained, such as decoders with a cache.
 */
#include "structure_int.h"

#include <string.h>

/* ---- how weights are read ---- */

static bool
flips(const Onnx__NodeProto *n, const char *attr)
{
    const Onnx__AttributeProto *a = fe_node_attr(n, attr);
    return a && a->i;
}

static void
note_product(fe_reading *r, bool out_in)
{
    r->product = true;
    r->out_in = out_in;
}

/* Follows the transpose of a weight to the product that reads it. */
static void
follow(fe_imp *im, fe_reading *r, const fe_node *transpose)
{
    const fe_users *u = fe_users_of(im->main, transpose->out[0]);
    for (int i = 0; i < u->node.n; i++) {
        const fe_node *n = u->node.at[i];
        const char *op = fe_str(n->p->op_type);
        bool second = n->nin > 1 && n->in[1] == transpose->out[0];
        if (second && !strcmp(op, "MatMul"))
            note_product(r, true);
        else if (second && !strcmp(op, "Gemm"))
            note_product(r, !flips(n->p, "transB"));
    }
}

static void
note_use(fe_imp *im, fe_reading *r, const fe_use *u)
{
    const char *op = fe_str(u->node->p->op_type);
    if (!strcmp(op, "Gather") && u->input == 0)
        r->table = true;
    else if (u->input == 1 && (!strcmp(op, "MatMul") || !strcmp(op, "Gemm") ||
                               !strcmp(op, "FusedMatMul")))
        note_product(r, flips(u->node->p, "transB"));
    else if (!strcmp(op, "Transpose") && u->node == u->owner)
        follow(im, r, u->node);
}

static void
record_use(fe_imp *im, const fe_weight *w, const fe_use *u)
{
    fe_param *p = ef_map_get(&im->use, &u->node->p->input[u->input]);
    const ir_param *ir = p->tie ? p->tie->ir : p->ir;
    if (!ir)
        return;
    fe_reading *r = ef_map_get(&im->f->readings, ir), as_root = {0};
    if (!r) {
        r = EF_NEW(im->f->arena, fe_reading);
        ef_map_set(im->f->arena, &im->f->readings, ir, r);
    }
    note_use(im, &as_root, u);
    r->table |= as_root.table;
    if (as_root.product)
        note_product(r, as_root.out_in != p->tie_transposed);
    if (!p->owner && p->ir)
        ef_push(im->f->arena, im->f->unshared,
                ((fe_unshared){ir->value->name, w->name, u->node->p, u->input}));
}

void
fe_record_params(fe_imp *im)
{
    for (int i = 0; i < im->weights.n; i++) {
        const fe_weight *w = im->weights.at[i];
        for (int k = 0; k < w->uses.n; k++)
            record_use(im, w, &w->uses.at[k]);
    }
}

fe_reading
fe_reading_of(const fe_model *m, const ir_param *p)
{
    const fe_reading *r = ef_map_get(&m->readings, p);
    return r ? *r : (fe_reading){0};
}

const char *
fe_torch_name(const ir_param *p)
{
    bool folded =
        p->value->type->rank == 1 && !p->shift && p->onnx && !fe_is_torch_name(p->onnx);
    return folded ? NULL : p->hf;
}

/* ---- what is no weight ---- */

/* Names that results depend on by other ways than sines and cosines. */
static void
mark_values(fe_imp *im, ef_map *marked)
{
    const Onnx__GraphProto *g = im->main->p;
    for (size_t i = 0; i < g->n_output; i++)
        ef_map_set(im->arena, marked, ef_intern(im->ctx, fe_str(g->output[i]->name)),
                   im);
    for (int i = im->main->order.n - 1; i >= 0; i--) {
        const fe_node *n = im->main->order.at[i];
        const char *op = fe_str(n->p->op_type);
        bool live = false;
        for (int k = 0; k < n->nout; k++)
            live |= ef_map_has(marked, n->out[k]);
        for (int k = 0;
             live && strcmp(op, "Sin") && strcmp(op, "Cos") && k < fe_ndep(n); k++)
            ef_map_set(im->arena, marked, fe_dep(n, k), im);
    }
}

/* Tables of sines, cosines and masks become constants, as in fe_facts(). */
static void
free_constants(fe_imp *im)
{
    ef_map marked = {0}, used = {0};
    mark_values(im, &marked);
    for (int i = 0; i < im->weights.n; i++)
        for (int k = 0; k < im->weights.at[i]->uses.n; k++) {
            const fe_use *u = &im->weights.at[i]->uses.at[k];
            const fe_param *p = ef_map_get(&im->use, &u->node->p->input[u->input]);
            const ir_param *ir = p->tie ? p->tie->ir : p->ir;
            if (u->node != u->owner || ef_map_has(&marked, u->alias))
                ef_map_set(im->arena, &used, ir, im);
        }
    for (int i = 0; i < im->m->params.n; i++) {
        ir_param *p = im->m->params.at[i];
        if (!ef_map_has(&used, p) || fe_is_table(im, p))
            p->cls = IR_CONST;
    }
    for (int i = 0; i < im->params.n; i++)
        if (im->params.at[i]->ir && fe_is_buffer(im, im->params.at[i]))
            im->params.at[i]->ir->cls = IR_CONST;
}

/* ---- the import ---- */

static bool
import(fe_imp *im)
{
    im->main = fe_graph_new(im, im->f->proto->graph);
    fe_graph_order(im, im->main);
    fe_find_structure(im);
    fe_units(im);
    if (!fe_read_config(im) || !fe_params(im) || !fe_ties(im))
        return false;
    for (int i = 0; i < im->params.n; i++) {
        fe_param *p = im->params.at[i];
        if (!p->tie && !fe_make_param(im, p))
            return false;
    }
    fe_record_params(im);
    free_constants(im);
    return true;
}

ir_module *
fe_import_weights(ef_ctx *ctx, fe_model *f)
{
    return fe_import_by(ctx, f, import);
}
