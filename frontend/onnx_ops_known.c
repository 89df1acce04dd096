/* onnx_ops_known.c -- operators whose results are known when the model is compiled, and If,
 * whose condition has to be.
 */
#include "ops_int.h"

#include <math.h>
#include <string.h>

/* A list of numbers given as attribute. */
static fe_val *
listed(fe_call *c, ir_dtype d, int rank, size_t n, const int64_t *i, const float *f)
{
    double *x = EF_NEWN(c->im->arena, double, n + 1);
    for (size_t k = 0; k < n; k++)
        x[k] = i ? (double)i[k] : (double)f[k];
    int64_t dim = (int64_t)n;
    return fe_known_val(c->im, fe_type(c, d, rank, &dim), x);
}

bool
op_constant(fe_call *c)
{
    if (ef_map_has(&c->im->aliases, c->n->out[0]))
        return true; /* a weight */
    if (c->n->p->n_attribute != 1)
        return fe_fail(c, "expected one attribute");
    const Onnx__AttributeProto *a = c->n->p->attribute[0];
    const char *name = fe_str(a->name);
    if (!strcmp(name, "value_int"))
        return fe_result(c, listed(c, IR_I64, 0, 1, &a->i, NULL));
    if (!strcmp(name, "value_ints"))
        return fe_result(c, listed(c, IR_I64, 1, a->n_ints, a->ints, NULL));
    if (!strcmp(name, "value_float"))
        return fe_result(c, listed(c, IR_F32, 0, 1, NULL, &a->f));
    if (!strcmp(name, "value_floats"))
        return fe_result(c, listed(c, IR_F32, 1, a->n_floats, NULL, a->floats));
    return a->t ? fe_result(c, fe_load_known(c, fe_tensor_of(c->im->f, a->t)))
                : fe_fail(c, "its tensor is missing");
}

bool
op_constant_of_shape(fe_call *c)
{
    int n;
    const int64_t *dim = fe_ints_in(c, 0, "shape", &n);
    if (!dim)
        return false;
    const Onnx__AttributeProto *a = fe_node_attr(c->n->p, "value");
    fe_val *x = a && a->t ? fe_load_known(c, fe_tensor_of(c->im->f, a->t))
                          : fe_num(c, IR_F32, 0);
    if (!x || ir_type_count(x->type) != 1)
        return x && fe_fail(c, "value has more than one element");
    return fe_result(c, fe_splat(c, fe_type(c, x->type->dtype, n, dim), x->data[0]));
}

bool
op_shape(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    if (!v)
        return false;
    int64_t rank = v->type->rank;
    int64_t start = fe_attr_i(c, "start", 0), end = fe_attr_i(c, "end", rank);
    start = fe_clamp(start < 0 ? start + rank : start, 0, rank);
    end = fe_clamp(end < 0 ? end + rank : end, start, rank);
    return fe_result(
        c, listed(c, IR_I64, 1, (size_t)(end - start), v->type->dim + start, NULL));
}

bool
op_size(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    int64_t n = v ? ir_type_count(v->type) : 0;
    return v && fe_result(c, listed(c, IR_I64, 0, 1, &n, NULL));
}

bool
op_range(fe_call *c)
{
    double start, end, step;
    fe_val *first = fe_in(c, 0);
    if (!first || !fe_num_in(c, 0, "start", &start) ||
        !fe_num_in(c, 1, "limit", &end) || !fe_num_in(c, 2, "delta", &step))
        return false;
    double count = ceil((end - start) / step);
    if (!(count <= FE_FOLD_MAX))
        return fe_fail(c, "from %g to %g by %g: more than %d elements", start, end,
                       step, FE_FOLD_MAX);
    int64_t n = count > 0 ? (int64_t)count : 0;
    double *x = EF_NEWN(c->im->arena, double, n + 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = ir_round(first->type->dtype, start + (double)i * step);
    return fe_result(c, fe_known_val(c->im, fe_type(c, first->type->dtype, 1, &n), x));
}

/* The branch that a known condition chooses runs in place of the node. */
bool
op_if(fe_call *c)
{
    fe_val *cond = fe_in(c, 0);
    if (!cond)
        return false;
    if (!cond->data || ir_type_count(cond->type) != 1)
        return fe_fail(c, "its condition is not constant, which is not supported");
    const char *which = cond->data[0] != 0 ? "then_branch" : "else_branch";
    const Onnx__AttributeProto *a = fe_node_attr(c->n->p, which);
    if (!a || !a->g || (int)a->g->n_output != c->n->nout)
        return fe_fail(c, "%s does not have the node's results", which);
    fe_graph *g = fe_branch(c->im, a->g);
    for (size_t i = 0; i < a->g->n_initializer; i++) {
        const fe_tensor *t = fe_tensor_of(c->im->f, a->g->initializer[i]);
        const char *name = ef_intern(c->im->ctx, t->name);
        fe_val *v = ef_map_has(&c->im->aliases, name) ? NULL : fe_load_known(c, t);
        if (v)
            ef_map_set(c->im->arena, &c->im->vals, name, v);
    }
    if (!g->order.n)
        fe_graph_order(c->im, g);
    if (!fe_graph_supported(c->im, g) || !fe_run(c->im, g))
        return false;
    for (int i = 0; i < c->n->nout; i++) {
        const char *name = ef_intern(c->im->ctx, fe_str(a->g->output[i]->name));
        if (!(c->out[i] = fe_by_name(c, name)))
            return false;
    }
    return true;
}
