/* onnx_import.c -- from the graph of a file to a module with `step`.
 *
 * The order of the steps is told in import_int.h. When the operators have run, the graph's
 * outputs are returned, what nobody reads is dropped, and what passes have to know of the
 * model is written into meta and the report.
 */
#include "structure_int.h"

#include <string.h>

/* ---- outputs ---- */

typedef struct outputs {
    EF_VEC(ir_value *) value;
    EF_VEC(const char *) name;
} outputs;

/* Is the output the cache of a decoder? */
static bool
is_cache(const char *name)
{
    return !strncmp(name, "present", 7) || strstr(name, "past_key") != NULL;
}

/* The main output: "logits", else the first. */
static size_t
main_output(const Onnx__GraphProto *g)
{
    for (size_t i = 0; i < g->n_output; i++)
        if (!strcmp(fe_str(g->output[i]->name), "logits"))
            return i;
    return 0;
}

static bool
add_output(fe_call *c, const char *name, bool first, outputs *to)
{
    fe_imp *im = c->im;
    fe_val *v = is_cache(name) && !first ? NULL : fe_by_name(c, name);
    if (!v && !is_cache(name))
        return false;
    if (!v || (!first && (v->data || !ir_dtypes[v->type->dtype].is_float))) {
        ef_push(im->arena, im->dropped, name);
        return true;
    }
    ef_push(im->arena, to->value, fe_place(im, v));
    ef_push(im->arena, to->name, name);
    return true;
}

static bool
make_ret(fe_imp *im)
{
    const Onnx__GraphProto *g = im->main->p;
    Onnx__NodeProto ret = ONNX__NODE_PROTO__INIT;
    fe_node node = {.p = &ret, .loc = "outputs"};
    fe_call c = {.im = im, .n = &node};
    outputs to = {0};
    if (!g->n_output)
        return ef_error(im->ctx, NULL, E_ONNX_GRAPH, "the graph has no output");
    im->block = im->m->step->last;
    size_t first = main_output(g);
    for (size_t i = 0; i < g->n_output; i++) {
        size_t k = !i ? first : i <= first ? i - 1 : i;
        if (!add_output(&c, ef_intern(im->ctx, fe_str(g->output[k]->name)), !i, &to))
            return false;
    }
    ef_buf names = {.arena = im->arena};
    for (int i = 0; i < to.name.n; i++)
        ef_putf(&names, "%s%s", i ? "," : "", to.name.at[i]);
    ir_meta_set(im->m, "outputs", names.s);
    ir_builder b = ir_end(im->block, NULL);
    ir_insert(&b, IR_OP_ret, NULL, to.value.n, to.value.at, 0, NULL, NULL, 0);
    return true;
}

/* ---- what is left over ---- */

/* Ops whose results became known or unread: operands of what was computed. */
static void
drop_dead(ir_module *m)
{
    for (ir_block *b = m->step->last; b; b = b->prev)
        for (ir_op *op = b->last, *prev; op; op = prev) {
            prev = op->prev;
            if (ir_is_dead(op))
                ir_remove(op);
        }
    for (int i = m->params.n - 1; i >= 0; i--)
        if (!m->params.at[i]->value->nuse)
            ir_param_unlink(m, m->params.at[i]);
}

static bool
import(fe_imp *im)
{
    im->main = fe_graph_new(im, im->f->proto->graph);
    fe_graph_order(im, im->main);
    if (!fe_graph_supported(im, im->main))
        return false;
    fe_find_structure(im);
    fe_units(im);
    if (!fe_read_config(im) || !fe_inputs(im) || !fe_params(im) || !fe_ties(im) ||
        !fe_run(im, im->main) || !make_ret(im))
        return false;
    drop_dead(im->m);
    fe_record_params(im);
    if (!fe_facts(im))
        return false;
    fe_report_import(im);
    return true;
}

ir_module *
fe_import_by(ef_ctx *ctx, fe_model *f, bool (*import_)(fe_imp *))
{
    fe_imp im = {.ctx = ctx, .f = f, .m = ir_module_new(ctx), .arena = ef_arena_new()};
    ir_func_new(im.m, "step");
    bool ok = import_(&im);
    if (!ok)
        ir_module_free(im.m);
    ef_arena_free(im.arena);
    return ok ? im.m : NULL;
}

ir_module *
fe_import(ef_ctx *ctx, fe_model *f)
{
    return fe_import_by(ctx, f, import);
}
