/* onnx_ops.c -- arithmetic operators as ops of the IR.
 *
 * A builder reads its operands, emits ops and leaves its results in c->out; false: said
 * why. Faults in operands that a shape rule of the IR finds need no check here.
 */
#include "ops_int.h"

#include <math.h>
#include <string.h>

const fe_row fe_rows[] = {
#define ONNX(op, domain, since, until, builder, code, attrs) \
    {#op, domain, since, until, op_##builder, code, attrs},
#include "onnx_ops.def"
#undef ONNX
};
const int fe_nrows = EF_COUNT(fe_rows);

const fe_row *
fe_row_of(const char *domain, const char *op, int opset)
{
    for (int i = 0; i < fe_nrows; i++) {
        const fe_row *r = &fe_rows[i];
        if (r->name[0] == op[0] && !strcmp(r->name, op) && !strcmp(r->domain, domain) &&
            opset >= r->since && (!r->until || opset <= r->until))
            return r;
    }
    return NULL;
}

/* ---- elementwise ---- */

bool
op_ew1(fe_call *c)
{
    return fe_result(c, fe_ew1(c, c->row->code, fe_in(c, 0)));
}

bool
op_ew2(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    if (!a || !b)
        return false;
    bool logic = c->row->code == IR_OP_and || c->row->code == IR_OP_or;
    if (logic && (a->type->dtype != IR_BOOL || b->type->dtype != IR_BOOL))
        return fe_fail(c, "operands are %s and %s, expected bool",
                       ir_type_text(c->im->ctx, a->type),
                       ir_type_text(c->im->ctx, b->type));
    return fe_result(c, fe_ew2(c, c->row->code, a, b));
}

/* The exponent may be of another type; the result has that of the base. */
bool
op_pow(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    return b && fe_result(c, fe_ew2(c, IR_OP_pow, a, fe_convert(c, b, a->type->dtype)));
}

/* Remainder with the sign of the dividend (fmod, all that floats have) or the divisor. */
bool
op_mod(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    if (!a || !b)
        return false;
    bool fmod = fe_attr_i(c, "fmod", 0) != 0;
    ir_dtype d = a->type->dtype;
    if (ir_dtypes[d].is_float && !fmod)
        return fe_fail(c, "floats need fmod=1");
    fe_val *whole = fe_convert(c, fe_ew2(c, IR_OP_div, a, b), IR_I64);
    fe_val *rest =
        fe_ew2(c, IR_OP_sub, a, fe_ew2(c, IR_OP_mul, b, fe_convert(c, whole, d)));
    if (fmod || !rest)
        return fe_result(c, rest);
    fe_val *zero = fe_num(c, d, 0);
    fe_val *wrong_sign = fe_ew2(c, IR_OP_lt, fe_ew2(c, IR_OP_mul, rest, b), zero);
    fe_val *pick[] = {wrong_sign, fe_ew2(c, IR_OP_add, rest, b), rest};
    return fe_result(c, fe_emit(c, IR_OP_where, 3, pick, 0, NULL, NULL));
}

/* Max and Min take any number of operands. */
bool
op_fold_ew(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    for (int i = 1; v && i < c->n->nin; i++) {
        fe_val *more = fe_in(c, i);
        v = more ? fe_ew2(c, c->row->code, v, more) : NULL;
    }
    return fe_result(c, v);
}

/* Bounds are attributes before opset 11; either may be missing. */
bool
op_clip(fe_call *c)
{
    static const char *const name[] = {"min", "max"};
    fe_val *v = fe_in(c, 0);
    for (int i = 0; v && i < 2; i++) {
        fe_val *bound = NULL;
        if (c->opset >= 11 ? !fe_has(c, i + 1) : !fe_node_attr(c->n->p, name[i]))
            continue;
        bound = c->opset >= 11 ? fe_in(c, i + 1)
                               : fe_num(c, v->type->dtype, fe_attr_f(c, name[i], 0));
        v = bound ? fe_ew2(c, i ? IR_OP_min : IR_OP_max, v, bound) : NULL;
    }
    return fe_result(c, v);
}

bool
op_gelu(fe_call *c)
{
    const char *how = fe_attr_s(c, "approximate", "none");
    bool tanh = !strcmp(how, "tanh");
    if (!tanh && strcmp(how, "none"))
        return fe_fail(c, "approximate='%s' is not supported", how);
    return fe_result(c, fe_ew1(c, tanh ? IR_OP_gelu_tanh : IR_OP_gelu, fe_in(c, 0)));
}

bool
op_where(fe_call *c)
{
    fe_val *v[3];
    for (int i = 0; i < 3; i++)
        if (!(v[i] = fe_in(c, i)))
            return false;
    return fe_result(c, fe_emit(c, IR_OP_where, 3, v, 0, NULL, NULL));
}

bool
op_cast(fe_call *c)
{
    int to = (int)fe_attr_i(c, "to", 0);
    ir_dtype d = fe_dtype(to);
    if (d == IR_NDTYPES)
        return fe_fail(c, "type %s is not supported", fe_type_name(to));
    d = d == IR_BOOL ? IR_BOOL : ir_dtypes[d].is_float ? IR_F32 : IR_I64;
    return fe_result(c, fe_convert(c, fe_in(c, 0), d));
}

bool
op_cast_like(fe_call *c)
{
    fe_val *like = fe_in(c, 1);
    return like && fe_result(c, fe_convert(c, fe_in(c, 0), like->type->dtype));
}

/* An Identity of a weight is another name for it, known since the weights were named. */
bool
op_identity(fe_call *c)
{
    return ef_map_has(&c->im->aliases, c->n->out[0]) || fe_result(c, fe_in(c, 0));
}

/* The exporter's own dropout is left out: a trainer for fine-tuning runs without. */
bool
op_dropout(fe_call *c)
{
    double training = 0;
    if (fe_has(c, 2) && !fe_num_in(c, 2, "training_mode", &training))
        return false;
    c->im->dropout |= training != 0;
    if (c->n->nout > 1 && *c->n->out[1] &&
        fe_users_of(c->im->main, c->n->out[1])->node.n)
        return fe_fail(c, "its mask is read, which is not supported");
    return fe_result(c, fe_in(c, 0));
}

/* ---- products ---- */

/* Vectors become matrices of one row or column, which the result then lacks. */
bool
op_matmul(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    if (!a || !b)
        return false;
    if (!a->type->rank || !b->type->rank)
        return fe_fail(c, "an operand is a scalar");
    bool row = a->type->rank == 1, col = b->type->rank == 1;
    if (row)
        a = fe_reshape(c, a, 2, (int64_t[]){1, a->type->dim[0]});
    if (col)
        b = fe_reshape(c, b, 2, (int64_t[]){b->type->dim[0], 1});
    fe_val *v = fe_emit(c, IR_OP_matmul, 2, (fe_val *[]){a, b}, 0, NULL, NULL);
    if (!v || (!row && !col))
        return fe_result(c, v);
    int64_t dim[IR_MAX_RANK];
    int n = 0;
    for (int i = 0; i < v->type->rank; i++)
        if (!(row && i == v->type->rank - 2) && !(col && i == v->type->rank - 1))
            dim[n++] = v->type->dim[i];
    return fe_result(c, fe_reshape(c, v, n, dim));
}

static fe_val *
scaled(fe_call *c, fe_val *v, double by)
{
    return by == 1 || !v ? v : fe_ew2(c, IR_OP_mul, v, fe_num(c, v->type->dtype, by));
}

/* alpha A B + beta C */
bool
op_gemm(fe_call *c)
{
    fe_val *v[2] = {fe_in(c, 0), fe_in(c, 1)};
    if (!v[0] || !v[1])
        return false;
    if (v[0]->type->rank != 2 || v[1]->type->rank != 2)
        return fe_fail(c, "operands are %s and %s, expected matrices",
                       ir_type_text(c->im->ctx, v[0]->type),
                       ir_type_text(c->im->ctx, v[1]->type));
    ir_attr attr[2];
    int n = 0;
    if (fe_attr_i(c, "transA", 0))
        attr[n++] = ir_attr_i(IR_ATTR_ta, 1);
    if (fe_attr_i(c, "transB", 0))
        attr[n++] = ir_attr_i(IR_ATTR_tb, 1);
    fe_val *y = scaled(c, fe_emit(c, IR_OP_matmul, 2, v, n, attr, NULL),
                       fe_attr_f(c, "alpha", 1));
    double beta = fe_attr_f(c, "beta", 1);
    if (!y || !fe_has(c, 2) || beta == 0)
        return fe_result(c, y);
    const ir_type *t = y->type;
    y = fe_ew2(c, IR_OP_add, y, scaled(c, fe_in(c, 2), beta));
    if (y && y->type != t)
        return fe_fail(c, "operand 2 does not fit a result of %s",
                       ir_type_text(c->im->ctx, t));
    return fe_result(c, y);
}

/* ---- reductions ---- */

/* axes: an attribute up to opset 12 for ReduceSum and 17 for the others. */
bool
op_reduce(fe_call *c)
{
    bool sum = c->row->code == IR_OP_reduce_sum;
    fe_val *v = fe_in(c, 0);
    const int64_t *axes = NULL;
    int n = 0;
    if (!v)
        return false;
    if (c->opset < (sum ? 13 : 18))
        axes = fe_attr_is(c, "axes", &n);
    else if (fe_has(c, 1) && !(axes = fe_ints_in(c, 1, "axes", &n)))
        return false;
    if (!n && fe_attr_i(c, "noop_with_empty_axes", 0))
        return fe_result(c, v);
    bool reduced[IR_MAX_RANK] = {false};
    for (int i = 0; i < n; i++) {
        int axis;
        if (!fe_axis(c, axes[i], v->type->rank, &axis))
            return false;
        reduced[axis] = true;
    }
    int64_t list[IR_MAX_RANK];
    int len = 0;
    for (int i = 0; i < v->type->rank; i++)
        if (!n || reduced[i])
            list[len++] = i;
    if (!len)
        return fe_result(c, v);
    ir_attr attr[] = {ir_attr_l(IR_ATTR_axes, len, list),
                      ir_attr_i(IR_ATTR_keep, fe_attr_i(c, "keepdims", 1) != 0)};
    return fe_result(c, fe_emit(c, c->row->code, 1, &v, 2, attr, NULL));
}

static fe_val *
reversed(fe_call *c, fe_val *v, int axis)
{
    if (!v)
        return NULL;
    int64_t n = v->type->dim[axis];
    ir_attr attr[] = {ir_attr_i(IR_ATTR_axis, axis), ir_attr_i(IR_ATTR_start, n - 1),
                      ir_attr_i(IR_ATTR_step, -1)};
    return n < 2 ? v : fe_emit(c, IR_OP_slice, 1, &v, 3, attr, v->type);
}

bool
op_cumsum(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    double at;
    int axis;
    if (!x || !fe_num_in(c, 1, "axis", &at) ||
        !fe_axis(c, (int64_t)at, x->type->rank, &axis))
        return false;
    bool reverse = fe_attr_i(c, "reverse", 0) != 0;
    ir_attr attr = ir_attr_i(IR_ATTR_axis, axis);
    fe_val *v = reverse ? reversed(c, x, axis) : x;
    v = fe_emit(c, IR_OP_cumsum, 1, &v, 1, &attr, NULL);
    v = reverse ? reversed(c, v, axis) : v;
    if (fe_attr_i(c, "exclusive", 0))
        v = v ? fe_ew2(c, IR_OP_sub, v, x) : NULL;
    return fe_result(c, v);
}

/* ---- softmax and norm ---- */

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
    v = fe_permute(c, v, swap);
    v = fe_emit(c, IR_OP_softmax, 1, &v, 0, NULL, NULL);
    return fe_result(c, fe_permute(c, v, swap));
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
    v = fe_reshape(c, v, axis + 1, dim);
    v = fe_emit(c, IR_OP_softmax, 1, &v, 0, NULL, NULL);
    return fe_result(c, fe_reshape(c, v, t->rank, t->dim));
}

/* Scale or bias as a vector of the n normalised elements. */
static fe_val *
norm_vector(fe_call *c, int i, int64_t n)
{
    const ir_type *t = fe_type(c, IR_F32, 1, &n);
    if (!fe_has(c, i))
        return fe_splat(c, t, i == 1);
    fe_val *v = fe_in(c, i);
    if (v && ir_type_count(v->type) == n)
        return fe_reshape(c, v, 1, &n);
    if (v && ir_type_count(v->type) == 1)
        return fe_expand(c, fe_reshape(c, v, 1, (int64_t[]){1}), 1, &n);
    if (v)
        fe_fail(c, "operand %d is %s, expected %lld elements", i,
                ir_type_text(c->im->ctx, v->type), (long long)n);
    return NULL;
}

bool
op_layernorm(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    int axis;
    if (!x || !fe_axis(c, fe_attr_i(c, "axis", -1), x->type->rank, &axis))
        return false;
    const ir_type *t = x->type;
    int64_t dim[IR_MAX_RANK], stat[IR_MAX_RANK], n = 1;
    for (int i = 0; i < t->rank; i++) {
        stat[i] = i < axis ? t->dim[i] : 1;
        dim[i] = t->dim[i];
        n *= i < axis ? 1 : dim[i];
    }
    dim[axis] = n;
    fe_val *w = norm_vector(c, 1, n), *b = w ? norm_vector(c, 2, n) : NULL;
    x = b ? fe_reshape(c, x, axis + 1, dim) : NULL;
    if (!x)
        return false;
    ir_value *arg[] = {fe_place(c->im, x), fe_place(c->im, w), fe_place(c->im, b)};
    ir_attr attr = ir_attr_f(IR_ATTR_eps, fe_attr_f(c, "epsilon", 1e-5f));
    const char *why = ir_check(c->im->m, IR_OP_layernorm, 3, arg, 1, &attr, NULL);
    if (why)
        return fe_fail(c, "%s", why);
    ir_builder at = ir_end(c->im->block, c->n->loc);
    ir_op *op = ir_insert(&at, IR_OP_layernorm, fe_base_name(c->im, c->n), 3, arg, 1,
                          &attr, NULL, 3);
    for (int i = 0; i < c->n->nout && i < 3; i++)
        c->out[i] =
            fe_reshape(c, fe_ir_val(c->im, op->res[i]), t->rank, i ? stat : t->dim);
    return c->out[0] != NULL;
}
