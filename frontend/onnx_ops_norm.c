/* onnx_ops_norm.c -- softmax and norms.
 *
 * LayerNormalization is an op of the IR; the mean of squares is written as the ops that
 * exporters write, which pass recognise knows. onnxruntime's Skip.. operators add first and
 * hand the sum out as a further result.
 */
#include "ops_int.h"

#include <math.h>
#include <string.h>

/* ---- softmax ---- */

/* Of rows; the logarithm is x - m - log sum exp(x - m), m being the maximum. */
static fe_val *
over_rows(fe_call *c, fe_val *v)
{
    if (!v || strcmp(c->row->name, "LogSoftmax"))
        return fe_emit(c, IR_OP_softmax, 1, &v, 0, NULL, NULL);
    int64_t last = v->type->rank - 1;
    ir_attr attr[] = {ir_attr_l(IR_ATTR_axes, 1, &last), ir_attr_i(IR_ATTR_keep, 1)};
    v = fe_ew2(c, IR_OP_sub, v, fe_emit(c, IR_OP_reduce_max, 1, &v, 2, attr, NULL));
    fe_val *e = fe_ew1(c, IR_OP_exp, v);
    fe_val *sum = fe_emit(c, IR_OP_reduce_sum, 1, &e, 2, attr, NULL);
    return fe_ew2(c, IR_OP_sub, v, fe_ew1(c, IR_OP_log, sum));
}

/* The IR's softmax is over the last dimension. */
bool
op_softmax(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    int axis;
    if (!v || !fe_axis(c, fe_attr_i(c, "axis", -1), v->type->rank, &axis))
        return false;
    int64_t swap[IR_MAX_RANK];
    for (int i = 0; i < v->type->rank; i++)
        swap[i] = i;
    swap[axis] = v->type->rank - 1;
    swap[v->type->rank - 1] = axis;
    return fe_result(c, fe_permute(c, over_rows(c, fe_permute(c, v, swap)), swap));
}

/* Before opset 13: over all dimensions from axis on, as if they were one. */
bool
op_softmax_flat(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    int axis;
    if (!v || !fe_axis(c, fe_attr_i(c, "axis", 1), v->type->rank, &axis))
        return false;
    const ir_type *t = v->type;
    int64_t dim[IR_MAX_RANK], cols = 1;
    for (int i = 0; i < t->rank; i++) {
        dim[i] = t->dim[i];
        cols *= i < axis ? 1 : dim[i];
    }
    dim[axis] = cols;
    v = over_rows(c, fe_reshape(c, v, axis + 1, dim));
    return fe_result(c, fe_reshape(c, v, t->rank, t->dim));
}

/* ---- LayerNormalization ---- */

/* onnxruntime's operators with a sum before the norm add less if nothing is said. */
static double
epsilon(fe_call *c)
{
    bool other =
        !strncmp(c->row->name, "Skip", 4) || !strncmp(c->row->name, "Embed", 5);
    return fe_attr_f(c, "epsilon", other ? 1e-12f : 1e-5f);
}

/* x seen as rows: dimensions from axis on are one, of n elements. */
typedef struct norm {
    const ir_type *t;
    int axis;
    int64_t n, rows[IR_MAX_RANK], stat[IR_MAX_RANK]; /* stat: one number a row */
} norm;

static norm
norm_of(const ir_type *t, int axis)
{
    norm m = {.t = t, .axis = axis, .n = 1};
    for (int i = 0; i < t->rank; i++) {
        m.stat[i] = i < axis ? t->dim[i] : 1;
        m.rows[i] = t->dim[i];
        m.n *= i < axis ? 1 : t->dim[i];
    }
    m.rows[axis] = m.n;
    return m;
}

/* Scale or bias as a vector of the n normalised elements; absent: all `fill`. */
static fe_val *
norm_vector(fe_call *c, int i, const norm *m, double fill)
{
    const ir_type *want = fe_type(c, IR_F32, 1, &m->n);
    if (!fe_has(c, i))
        return fe_splat(c, want, fill);
    fe_val *v = fe_in(c, i);
    if (!v || ir_type_count(v->type) == m->n)
        return fe_reshape(c, v, 1, &m->n);
    const ir_type *inner =
        fe_type(c, IR_F32, m->t->rank - m->axis, m->t->dim + m->axis);
    if (!inner || ir_type_broadcast(c->im->ctx, inner, v->type) != inner) {
        fe_fail(c, "operand %d is %s, expected %lld elements", i,
                ir_type_text(c->im->ctx, v->type), (long long)m->n);
        return NULL;
    }
    return fe_reshape(c, fe_expand(c, v, inner->rank, inner->dim), 1, &m->n);
}

/* y, mean and 1/std into out[3]. */
static bool
layernorm(fe_call *c, fe_val *x, const norm *m, fe_val *w, fe_val *b, fe_val **out)
{
    x = w && b ? fe_reshape(c, x, m->axis + 1, m->rows) : NULL;
    if (!x)
        return false;
    ir_value *arg[] = {fe_place(c->im, x), fe_place(c->im, w), fe_place(c->im, b)};
    ir_attr attr = ir_attr_f(IR_ATTR_eps, epsilon(c));
    const char *why = ir_check(c->im->m, IR_OP_layernorm, 3, arg, 1, &attr, NULL);
    if (why)
        return fe_fail(c, "%s", why);
    ir_builder at = ir_end(c->im->block, c->n->loc);
    ir_op *op = ir_insert(&at, IR_OP_layernorm, fe_base_name(c->im, c->n), 3, arg, 1,
                          &attr, NULL, 3);
    for (int i = 0; i < 3; i++)
        out[i] = fe_reshape(c, fe_ir_val(c->im, op->res[i]), m->t->rank,
                            i ? m->stat : m->t->dim);
    return true;
}

static bool
copy_results(fe_call *c, int n, fe_val *const *from)
{
    for (int i = 0; i < c->n->nout && i < n; i++)
        c->out[i] = from[i];
    return c->out[0] != NULL;
}

bool
op_layernorm(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *out[3];
    int axis;
    if (!x || !fe_axis(c, fe_attr_i(c, "axis", -1), x->type->rank, &axis))
        return false;
    norm m = norm_of(x->type, axis);
    fe_val *w = norm_vector(c, 1, &m, 1), *b = w ? norm_vector(c, 2, &m, 0) : NULL;
    return layernorm(c, x, &m, w, b, out) && copy_results(c, 3, out);
}

/* ---- mean of squares ---- */

/* x / sqrt(mean of x^2 + eps) over the dimensions from axis on; *inverse: the factor. */
static fe_val *
rms(fe_call *c, fe_val *x, int axis, fe_val **inverse)
{
    int64_t axes[IR_MAX_RANK];
    int n = 0;
    for (int i = axis; i < x->type->rank; i++)
        axes[n++] = i;
    ir_attr attr[] = {ir_attr_l(IR_ATTR_axes, n, axes), ir_attr_i(IR_ATTR_keep, 1)};
    fe_val *square = fe_with(c, IR_OP_pow, x, 2);
    fe_val *mean = fe_emit(c, IR_OP_reduce_mean, 1, &square, 2, attr, NULL);
    mean = fe_with(c, IR_OP_add, mean, epsilon(c));
    *inverse = fe_ew1(c, IR_OP_recip, fe_ew1(c, IR_OP_sqrt, mean));
    return fe_ew2(c, IR_OP_mul, x, *inverse);
}

/* y and 1/rms into out[2]; the scale is operand i. */
static bool
scaled_rms(fe_call *c, fe_val *x, int axis, int i, fe_val **out)
{
    fe_val *w = x ? fe_in(c, i) : NULL;
    if (!w || !(x = rms(c, x, axis, &out[1])))
        return false;
    const ir_type *both = ir_type_broadcast(c->im->ctx, x->type, w->type);
    if (both != x->type)
        return fe_fail(c, "the scale is %s, the operand %s",
                       ir_type_text(c->im->ctx, w->type),
                       ir_type_text(c->im->ctx, x->type));
    out[0] = fe_ew2(c, IR_OP_mul, x, w);
    return out[0] != NULL;
}

bool
op_rms_norm(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *out[2];
    int axis;
    if (!x || !fe_axis(c, fe_attr_i(c, "axis", -1), x->type->rank, &axis))
        return false;
    return scaled_rms(c, x, axis, 1, out) && copy_results(c, 2, out);
}

/* ---- with a sum before ---- */

/* input + skip + bias; the bias is operand `bias`. */
static fe_val *
skip_sum(fe_call *c, int bias)
{
    fe_val *x = fe_in(c, 0), *skip = x ? fe_in(c, 1) : NULL;
    if (x && fe_has(c, bias))
        x = fe_ew2(c, IR_OP_add, x, fe_in(c, bias));
    x = fe_ew2(c, IR_OP_add, x, skip);
    if (x && x->type->rank < 2) {
        fe_fail(c, "the operand is %s", ir_type_text(c->im->ctx, x->type));
        return NULL;
    }
    return x;
}

/* (input, skip, gamma, beta, bias): y, mean, 1/std, sum */
bool
op_skip_layernorm(fe_call *c)
{
    fe_val *x = skip_sum(c, 4), *out[4];
    if (!x)
        return false;
    norm m = norm_of(x->type, x->type->rank - 1);
    fe_val *w = norm_vector(c, 2, &m, 1), *b = w ? norm_vector(c, 3, &m, 0) : NULL;
    out[3] = x;
    return layernorm(c, x, &m, w, b, out) && copy_results(c, 4, out);
}

/* (input, skip, gamma, bias): y, nothing, 1/rms, sum */
bool
op_skip_rms_norm(fe_call *c)
{
    fe_val *x = skip_sum(c, 3), *y[2], *out[4] = {NULL};
    if (!x || !scaled_rms(c, x, x->type->rank - 1, 2, y))
        return false;
    out[0] = y[0];
    out[2] = y[1];
    out[3] = x;
    return copy_results(c, 4, out);
}

/* x over the sum of |x|^p along axis, which is taken as 1 where it is 0. */
bool
op_lp_norm(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    int axis;
    if (!x || !fe_axis(c, fe_attr_i(c, "axis", -1), x->type->rank, &axis))
        return false;
    int64_t p = fe_attr_i(c, "p", 2), axes = axis;
    if (p != 1 && p != 2)
        return fe_fail(c, "p is %lld, not 1 or 2", (long long)p);
    ir_attr attr[] = {ir_attr_l(IR_ATTR_axes, 1, &axes), ir_attr_i(IR_ATTR_keep, 1)};
    fe_val *size = p == 1 ? fe_ew1(c, IR_OP_abs, x) : fe_ew2(c, IR_OP_mul, x, x);
    size = fe_emit(c, IR_OP_reduce_sum, 1, &size, 2, attr, NULL);
    fe_val *pick[] = {fe_with(c, IR_OP_eq, size, 0), fe_num(c, IR_F32, 1), size};
    size = fe_emit(c, IR_OP_where, 3, pick, 0, NULL, NULL);
    if (p == 2)
        size = fe_ew1(c, IR_OP_sqrt, size);
    return fe_result(c, fe_ew2(c, IR_OP_div, x, size));
}

/* ---- EmbedLayerNormalization ---- */

/* Rows of table i at ids; NULL: said why. */
static fe_val *
lookup(fe_call *c, int i, fe_val *ids)
{
    fe_val *table = ids ? fe_in(c, i) : NULL;
    if (table && (table->type->rank != 2 || ids->type->dtype != IR_I64)) {
        fe_fail(c, "operand %d is %s, expected a table", i,
                ir_type_text(c->im->ctx, table->type));
        return NULL;
    }
    return fe_gather(c, table, ids, 0);
}

/* Positions [1, seq], 0, 1, .. in every row, or what operand 8 says. */
static fe_val *
positions(fe_call *c, const ir_type *ids)
{
    if (fe_has(c, 8))
        return fe_in(c, 8);
    int64_t dim[] = {1, ids->dim[1]};
    return fe_reshape(c, fe_count_up(c, dim[1]), 2, dim);
}

/* How many positions of a row may be attended to: the sum of its mask. */
static fe_val *
lengths(fe_call *c, const ir_type *ids)
{
    if (!fe_has(c, 7))
        return fe_splat(c, fe_type(c, IR_I64, 1, ids->dim), (double)ids->dim[1]);
    fe_val *mask = fe_convert(c, fe_in(c, 7), IR_F32);
    ir_attr attr = ir_attr_l(IR_ATTR_axes, 1, &(int64_t){1});
    return fe_convert(c, fe_emit(c, IR_OP_reduce_sum, 1, &mask, 1, &attr, NULL),
                      IR_I64);
}

/* (ids, types, word table, position table, type table, gamma, beta, mask, positions): y,
 * lengths of the rows, sum of the embeddings */
bool
op_embed_layernorm(fe_call *c)
{
    fe_val *ids = fe_in(c, 0), *x = lookup(c, 2, ids), *out[3];
    if (!x)
        return false;
    if (ids->type->rank != 2)
        return fe_fail(c, "the ids are %s, expected [batch, sequence]",
                       ir_type_text(c->im->ctx, ids->type));
    fe_val *pos = positions(c, ids->type), *table = pos ? fe_in(c, 3) : NULL;
    if (table && table->type->rank == 2 && pos->data) {
        c->im->positions = table->type->dim[0];
        c->im->positions_of = c->n->in[3];
    }
    x = fe_ew2(c, IR_OP_add, x, lookup(c, 3, pos));
    if (fe_has(c, 4) && fe_has(c, 1))
        x = fe_ew2(c, IR_OP_add, x, lookup(c, 4, fe_in(c, 1)));
    if (!x)
        return false;
    norm m = norm_of(x->type, x->type->rank - 1);
    fe_val *w = norm_vector(c, 5, &m, 1), *b = w ? norm_vector(c, 6, &m, 0) : NULL;
    if (!layernorm(c, x, &m, w, b, out))
        return false;
    out[1] = lengths(c, ids->type);
    out[2] = x;
    return copy_results(c, 3, out);
}
