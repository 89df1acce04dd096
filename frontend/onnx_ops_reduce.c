/* onnx_ops_reduce.c -- operators that reduce dimensions.
 *
 * The IR reduces floats; integers go through floats where the target has nothing else, which
 * is exact up to 2^24. What the IR does not have is made of it: a minimum is the negative of
 * a maximum, a product is made of halves.
 */
#include "ops_int.h"

#include <math.h>
#include <string.h>

typedef struct axes { /* to be reduced, ascending; n 0: nothing is to be done */
    int64_t at[IR_MAX_RANK];
    int n;
    bool keep;
} axes;

/* axes: an attribute up to opset 12 for ReduceSum and 17 for the others. */
static bool
axes_of(fe_call *c, const fe_val *v, axes *a)
{
    const int64_t *list = NULL;
    int n = 0;
    bool reduced[IR_MAX_RANK] = {false};
    a->n = 0;
    a->keep = fe_attr_i(c, "keepdims", 1) != 0;
    if (c->opset < (strcmp(c->row->name, "ReduceSum") ? 18 : 13))
        list = fe_attr_is(c, "axes", &n);
    else if (fe_has(c, 1) && !(list = fe_ints_in(c, 1, "axes", &n)))
        return false;
    for (int i = 0; i < n; i++) {
        int axis;
        if (!fe_axis(c, list[i], v->type->rank, &axis))
            return false;
        reduced[axis] = true;
    }
    bool nothing = !n && fe_attr_i(c, "noop_with_empty_axes", 0);
    for (int i = 0; i < v->type->rank && !nothing; i++)
        if (!n || reduced[i])
            a->at[a->n++] = i;
    return true;
}

static fe_val *
emit(fe_call *c, ir_opcode code, fe_val *v, const axes *a, bool keep)
{
    if (!v || !a->n)
        return v;
    ir_dtype d = v->type->dtype;
    v = fe_convert(c, v, v->data && d != IR_BOOL ? d : IR_F32);
    ir_attr attr[] = {ir_attr_l(IR_ATTR_axes, a->n, a->at),
                      ir_attr_i(IR_ATTR_keep, keep)};
    v = fe_emit(c, code, 1, &v, 2, attr, NULL);
    return d == IR_BOOL ? fe_with(c, IR_OP_gt, v, 0) : fe_convert(c, v, d);
}

static fe_val *
reduce(fe_call *c, ir_opcode code, fe_val *v, const axes *a)
{
    return emit(c, code, v, a, a->keep);
}

bool
op_reduce(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a;
    return v && axes_of(c, v, &a) && fe_result(c, reduce(c, c->row->code, v, &a));
}

/* The smallest element; of bools `all`. */
bool
op_reduce_min(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a;
    if (!v || !axes_of(c, v, &a))
        return false;
    bool logic = v->type->dtype == IR_BOOL;
    ir_opcode turn = logic ? IR_OP_not : IR_OP_neg;
    return fe_result(
        c,
        a.n ? fe_ew1(c, turn, reduce(c, IR_OP_reduce_max, fe_ew1(c, turn, v), &a)) : v);
}

/* Sum of absolute values, and of squares. */
bool
op_reduce_l1(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a;
    return v && axes_of(c, v, &a) &&
           fe_result(c, reduce(c, IR_OP_reduce_sum, fe_ew1(c, IR_OP_abs, v), &a));
}

static fe_val *
squares(fe_call *c, fe_val *v, const axes *a)
{
    return reduce(c, IR_OP_reduce_sum, fe_ew2(c, IR_OP_mul, v, v), a);
}

bool
op_reduce_square(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a;
    return v && axes_of(c, v, &a) && fe_result(c, squares(c, v, &a));
}

bool
op_reduce_l2(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a;
    if (!v || !axes_of(c, v, &a))
        return false;
    ir_dtype d = v->type->dtype;
    fe_val *y = squares(c, fe_convert(c, v, IR_F32), &a);
    return fe_result(c, fe_convert(c, fe_ew1(c, IR_OP_sqrt, y), d));
}

bool
op_reduce_log_sum(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a;
    return v && axes_of(c, v, &a) &&
           fe_result(c, fe_ew1(c, IR_OP_log, reduce(c, IR_OP_reduce_sum, v, &a)));
}

/* log sum exp(x - m) + m, with m the maximum, or 0 where that is infinite. */
bool
op_reduce_log_sum_exp(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a;
    if (!v || !axes_of(c, v, &a))
        return false;
    ir_dtype d = v->type->dtype;
    v = fe_convert(c, v, IR_F32);
    fe_val *most = emit(c, IR_OP_reduce_max, v, &a, true);
    fe_val *zero = fe_num(c, IR_F32, 0);
    fe_val *pick[] = {fe_with(c, IR_OP_eq, fe_ew1(c, IR_OP_abs, most), INFINITY), zero,
                      most};
    most = fe_emit(c, IR_OP_where, 3, pick, 0, NULL, NULL);
    fe_val *e = fe_ew1(c, IR_OP_exp, fe_ew2(c, IR_OP_sub, v, most));
    fe_val *sum = fe_ew1(c, IR_OP_log, emit(c, IR_OP_reduce_sum, e, &a, true));
    fe_val *y = fe_ew2(c, IR_OP_add, sum, most);
    int64_t dim[IR_MAX_RANK];
    int rank = 0;
    for (int i = 0, k = 0; y && i < y->type->rank; i++) {
        bool gone = k < a.n && a.at[k] == i;
        k += gone;
        if (!gone || a.keep)
            dim[rank++] = y->type->dim[i];
    }
    return y && fe_result(c, fe_convert(c, fe_reshape(c, y, rank, dim), d));
}

/* Products along one axis, kept with size 1: the upper half times the lower one, until one
 * is left. */
static fe_val *
product(fe_call *c, fe_val *v, int axis)
{
    if (v && !v->type->dim[axis]) {
        ir_type t = *v->type;
        t.dim[axis] = 1;
        return fe_splat(c, ir_type_intern(c->im->ctx, &t), 1);
    }
    while (v && v->type->dim[axis] > 1) {
        int64_t n = v->type->dim[axis], half = n / 2;
        fe_val *both = fe_ew2(c, IR_OP_mul, fe_slice(c, v, axis, 0, 1, half),
                              fe_slice(c, v, axis, half, 1, half));
        fe_val *odd = n % 2 ? fe_slice(c, v, axis, n - 1, 1, 1) : NULL;
        fe_val *parts[] = {both, odd};
        v = n % 2 ? fe_concat(c, 2, parts, axis) : both;
    }
    return v;
}

bool
op_reduce_prod(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a;
    if (!v || !axes_of(c, v, &a))
        return false;
    int64_t dim[IR_MAX_RANK];
    int rank = 0;
    for (int i = 0, k = 0; i < v->type->rank; i++) {
        bool gone = k < a.n && a.at[k] == i;
        k += gone;
        if (!gone || a.keep)
            dim[rank++] = gone ? 1 : v->type->dim[i];
    }
    for (int i = 0; i < a.n; i++)
        v = product(c, v, (int)a.at[i]);
    return fe_result(c, fe_reshape(c, v, rank, dim));
}

/* ---- along one axis ---- */

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

/* A sum of floats that depend on the data is a product with a triangle of ones: that has a
 * gradient, the sum that the IR has is for positions. */
static fe_val *
running_sum(fe_call *c, fe_val *v, int axis)
{
    ir_attr attr = ir_attr_i(IR_ATTR_axis, axis);
    if (!v || v->data || !ir_dtypes[v->type->dtype].is_float)
        return fe_emit(c, IR_OP_cumsum, 1, &v, 1, &attr, NULL);
    int64_t n = v->type->dim[axis], swap[IR_MAX_RANK];
    if (n > 1 << 12) {
        fe_fail(c, "a sum over %lld elements is not supported", (long long)n);
        return NULL;
    }
    double *x = EF_NEWN(c->im->arena, double, n *n + 1);
    for (int64_t i = 0; i < n * n; i++)
        x[i] = i / n <= i % n;
    for (int i = 0; i < v->type->rank; i++)
        swap[i] = i;
    swap[axis] = v->type->rank - 1;
    swap[v->type->rank - 1] = axis;
    fe_val *ones = fe_known_val(c->im, fe_type(c, IR_F32, 2, (int64_t[]){n, n}), x);
    fe_val *row = fe_permute(c, v, swap);
    if (v->type->rank == 1)
        row = fe_reshape(c, row, 2, (int64_t[]){1, n});
    row = fe_emit(c, IR_OP_matmul, 2, (fe_val *[]){row, ones}, 0, NULL, NULL);
    if (v->type->rank == 1)
        return fe_reshape(c, row, 1, &n);
    return fe_permute(c, row, swap);
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
    fe_val *v = reverse ? reversed(c, x, axis) : x;
    v = running_sum(c, v, axis);
    v = reverse ? reversed(c, v, axis) : v;
    if (fe_attr_i(c, "exclusive", 0))
        v = v ? fe_ew2(c, IR_OP_sub, v, x) : NULL;
    return fe_result(c, v);
}

/* The first (or last) place of the maximum (or minimum): where an element is the maximum
 * stands its distance from the other end, elsewhere -1; the largest of those is it. */
bool
op_arg_max(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    axes a = {.n = 1, .keep = fe_attr_i(c, "keepdims", 1) != 0};
    int axis;
    if (!v || !fe_axis(c, fe_attr_i(c, "axis", 0), v->type->rank, &axis))
        return false;
    a.at[0] = axis;
    bool last = fe_attr_i(c, "select_last_index", 0) != 0;
    int64_t n = v->type->dim[axis], dim[IR_MAX_RANK];
    double *x = fe_room(c, n);
    for (int64_t i = 0; x && i < n; i++)
        x[i] = (double)(last ? i : n - 1 - i);
    int rank = v->type->rank;
    for (int i = 0; i < rank; i++)
        dim[i] = i == axis ? n : 1;
    if (x && !strcmp(c->row->name, "ArgMin"))
        v = fe_ew1(c, IR_OP_neg, v);
    if (!x || !v)
        return false;
    fe_val *is = fe_ew2(c, IR_OP_eq, v, emit(c, IR_OP_reduce_max, v, &a, true));
    fe_val *pick[] = {is, fe_known_val(c->im, fe_type(c, IR_F32, rank, dim), x),
                      fe_num(c, IR_F32, -1)};
    fe_val *place = fe_emit(c, IR_OP_where, 3, pick, 0, NULL, NULL);
    place = fe_convert(c, reduce(c, IR_OP_reduce_max, place, &a), IR_I64);
    if (!last && place)
        place = fe_ew2(c, IR_OP_sub, fe_num(c, IR_I64, (double)(n - 1)), place);
    return fe_result(c, place);
}
