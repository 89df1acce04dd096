/* onnx_ops_shape.c -- operators that move elements.
 *
 * Sizes are fixed, so shape operands have to be known: they come from Shape and arithmetic
 * on it, which was computed on the way here.
 */
#include "ops_int.h"

#include <string.h>

/* axes as operand i from opset 13 on, before that as attribute. Both may be absent: n = 0
 * and *given false. */
static bool
axes_of(fe_call *c, int i, const int64_t **axes, int *n, bool *given)
{
    *n = 0;
    *axes = NULL;
    if (c->opset < 13)
        *axes = fe_attr_is(c, "axes", n);
    else if (fe_has(c, i) && !(*axes = fe_ints_in(c, i, "axes", n)))
        return false;
    *given = *axes != NULL;
    return true;
}

/* ---- other shapes, same elements ---- */

/* 0 copies the dim of that index (unless allowzero), one -1 is what is left. */
bool
op_reshape(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    int n;
    const int64_t *want = v ? fe_ints_in(c, 1, "shape", &n) : NULL;
    if (!want)
        return false;
    if (n > IR_MAX_RANK)
        return fe_fail(c, "%d dimensions are more than %d", n, IR_MAX_RANK);
    int64_t dim[IR_MAX_RANK], known = 1;
    int hole = -1;
    bool zero = fe_attr_i(c, "allowzero", 0) != 0;
    for (int i = 0; i < n; i++) {
        dim[i] = want[i];
        if (!dim[i] && !zero && i < v->type->rank)
            dim[i] = v->type->dim[i];
        if (dim[i] < -1 || (dim[i] == -1 && hole >= 0))
            return fe_fail(c, "shape has %lld at place %d", (long long)dim[i], i);
        if (dim[i] == -1)
            hole = i;
        else if (__builtin_mul_overflow(known, dim[i], &known))
            return fe_fail(c, "shape overflows");
    }
    if (hole >= 0)
        dim[hole] = known ? ir_type_count(v->type) / known : 0;
    return fe_result(c, fe_reshape(c, v, n, dim));
}

bool
op_flatten(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    if (!v)
        return false;
    int64_t axis = fe_attr_i(c, "axis", 1), dim[2] = {1, 1};
    axis += axis < 0 ? v->type->rank : 0;
    if (axis < 0 || axis > v->type->rank)
        return fe_fail(c, "axis is outside of the operand's dimensions");
    for (int i = 0; i < v->type->rank; i++)
        dim[i >= axis] *= v->type->dim[i];
    return fe_result(c, fe_reshape(c, v, 2, dim));
}

bool
op_squeeze(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    const int64_t *axes;
    int n, k = 0;
    bool given, drop[IR_MAX_RANK] = {false};
    if (!v || !axes_of(c, 1, &axes, &n, &given))
        return false;
    for (int i = 0; i < n; i++) {
        int axis;
        if (!fe_axis(c, axes[i], v->type->rank, &axis))
            return false;
        if (v->type->dim[axis] != 1)
            return fe_fail(c, "dimension %d has size %lld, not 1", axis,
                           (long long)v->type->dim[axis]);
        drop[axis] = true;
    }
    int64_t dim[IR_MAX_RANK];
    for (int i = 0; i < v->type->rank; i++)
        if (given ? !drop[i] : v->type->dim[i] != 1)
            dim[k++] = v->type->dim[i];
    return fe_result(c, fe_reshape(c, v, k, dim));
}

bool
op_unsqueeze(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    const int64_t *axes;
    int n;
    bool given, fresh[IR_MAX_RANK] = {false};
    if (!v || !axes_of(c, 1, &axes, &n, &given))
        return false;
    int rank = v->type->rank + n;
    if (rank > IR_MAX_RANK)
        return fe_fail(c, "%d dimensions are more than %d", rank, IR_MAX_RANK);
    for (int i = 0; i < n; i++) {
        int axis;
        if (!fe_axis(c, axes[i], rank, &axis))
            return false;
        if (fresh[axis])
            return fe_fail(c, "axis %d stands there twice", axis);
        fresh[axis] = true;
    }
    int64_t dim[IR_MAX_RANK];
    for (int i = 0, k = 0; i < rank; i++)
        dim[i] = fresh[i] ? 1 : v->type->dim[k++];
    return fe_result(c, fe_reshape(c, v, rank, dim));
}

bool
op_transpose(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    if (!v)
        return false;
    int n, rank = v->type->rank;
    const int64_t *perm = fe_attr_is(c, "perm", &n);
    int64_t order[IR_MAX_RANK];
    unsigned seen = 0;
    if (perm && n != rank)
        return fe_fail(c, "perm has %d entries, the operand %d dimensions", n, rank);
    for (int i = 0; i < rank; i++) {
        order[i] = perm ? perm[i] : rank - 1 - i;
        if (order[i] < 0 || order[i] >= rank || seen >> order[i] & 1)
            return fe_fail(c, "perm is not a permutation");
        seen |= 1u << order[i];
    }
    return fe_result(c, fe_permute(c, v, order));
}

/* Both ways: a target of 1 keeps the operand's dim. */
bool
op_expand(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    int n;
    const int64_t *want = v ? fe_ints_in(c, 1, "shape", &n) : NULL;
    const ir_type *t = want ? fe_type(c, v->type->dtype, n, want) : NULL;
    if (!t)
        return false;
    const ir_type *both = ir_type_broadcast(c->im->ctx, v->type, t);
    if (!both)
        return fe_fail(c, "%s can not be expanded to %s",
                       ir_type_text(c->im->ctx, v->type), ir_type_text(c->im->ctx, t));
    return fe_result(c, fe_expand(c, v, both->rank, both->dim));
}

/* Repeats along one axis: [.., n, ..] to [.., 1, n, ..], expanded, and merged again. */
static fe_val *
repeat(fe_call *c, fe_val *v, int axis, int64_t times)
{
    if (!v || times == 1)
        return v;
    int rank = v->type->rank;
    int64_t dim[IR_MAX_RANK + 1];
    if (rank + 1 > IR_MAX_RANK) {
        fe_fail(c, "more than %d dimensions", IR_MAX_RANK - 1);
        return NULL;
    }
    memcpy(dim, v->type->dim, sizeof *dim * (size_t)axis);
    memcpy(dim + axis + 1, v->type->dim + axis, sizeof *dim * (size_t)(rank - axis));
    dim[axis] = 1;
    fe_val *wide = fe_reshape(c, v, rank + 1, dim);
    dim[axis] = times;
    wide = fe_expand(c, wide, rank + 1, dim);
    dim[axis] = times * v->type->dim[axis];
    memmove(dim + axis + 1, dim + axis + 2, sizeof *dim * (size_t)(rank - axis - 1));
    return fe_reshape(c, wide, rank, dim);
}

bool
op_tile(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    int n;
    const int64_t *times = v ? fe_ints_in(c, 1, "repeats", &n) : NULL;
    if (!times)
        return false;
    if (n != v->type->rank)
        return fe_fail(c, "%d repeats for %d dimensions", n, v->type->rank);
    for (int i = 0; v && i < n; i++) {
        if (times[i] < 0 || times[i] > INT32_MAX)
            return fe_fail(c, "repeats are %lld at place %d", (long long)times[i], i);
        v = repeat(c, v, i, times[i]);
    }
    return fe_result(c, v);
}

/* ---- parts ---- */

/* Empty operands, such as the keys of an empty past, are left out. */
bool
op_concat(fe_call *c)
{
    fe_val **v = EF_NEWN(c->im->arena, fe_val *, c->n->nin + 1);
    int n = 0, axis;
    for (int i = 0; i < c->n->nin; i++) {
        fe_val *part = fe_in(c, i);
        if (!part)
            return false;
        if (n && !ir_type_count(v[n - 1]->type))
            n--;
        if (!n || ir_type_count(part->type))
            v[n++] = part;
    }
    if (!n || !fe_axis(c, fe_attr_i(c, "axis", 0), v[0]->type->rank, &axis))
        return n ? false : fe_fail(c, "no operands");
    return fe_result(c, fe_concat(c, n, v, axis));
}

/* Sizes of the parts: an attribute before opset 13, then an operand; without either equal
 * ones, the last smaller. */
static bool
split_sizes(fe_call *c, int64_t whole, int64_t *size)
{
    int n = 0, parts = c->n->nout;
    const int64_t *given = c->opset < 13  ? fe_attr_is(c, "split", &n)
                           : fe_has(c, 1) ? fe_ints_in(c, 1, "split", &n)
                                          : NULL;
    if (!given && c->opset >= 13 && fe_has(c, 1))
        return false;
    if (fe_attr_i(c, "num_outputs", parts) != parts)
        return fe_fail(c, "num_outputs is not %d, the number of results", parts);
    if (given && n != parts)
        return fe_fail(c, "%d sizes for %d results", n, parts);
    int64_t each = (whole + parts - 1) / parts, sum = 0;
    for (int i = 0; i < parts; i++) {
        int64_t left = whole - sum;
        size[i] = given ? given[i] : left < each ? left : each;
        if (size[i] < 0 || size[i] > left)
            return fe_fail(c, "the parts are more than %lld", (long long)whole);
        sum += size[i];
    }
    return sum == whole ||
           fe_fail(c, "the parts are %lld, not %lld", (long long)sum, (long long)whole);
}

bool
op_split(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    int axis;
    if (!v || !c->n->nout || !fe_axis(c, fe_attr_i(c, "axis", 0), v->type->rank, &axis))
        return false;
    int64_t *size = EF_NEWN(c->im->arena, int64_t, c->n->nout), start = 0;
    if (!split_sizes(c, v->type->dim[axis], size))
        return false;
    for (int i = 0; i < c->n->nout; i++) {
        if (!(c->out[i] = fe_slice(c, v, axis, start, 1, size[i])))
            return false;
        start += size[i];
    }
    return true;
}

typedef struct bounds {
    const int64_t *start, *end, *axis, *step;
    int n;
} bounds;

/* Attributes before opset 10, operands from then on; axes and steps may be absent. */
static bool
slice_bounds(fe_call *c, bounds *b)
{
    static const char *const name[] = {"starts", "ends", "axes", "steps"};
    const int64_t **to[] = {&b->start, &b->end, &b->axis, &b->step};
    for (int i = 0; i < 4; i++) {
        int n = 0;
        if (c->opset < 10)
            *to[i] = fe_attr_is(c, name[i], &n);
        else if (i < 2 || fe_has(c, i + 1)) {
            if (!(*to[i] = fe_ints_in(c, i + 1, name[i], &n)))
                return false;
        }
        if (i < 2 && !*to[i])
            return fe_fail(c, "%s are missing", name[i]);
        if (*to[i] && i && n != b->n)
            return fe_fail(c, "%d %s for %d starts", n, name[i], b->n);
        b->n = i ? b->n : n;
    }
    return true;
}

/* Negative bounds count from the end; a backwards slice may end before the first. */
static fe_val *
slice_axis(fe_call *c, fe_val *v, int axis, const bounds *b, int i)
{
    int64_t dim = v->type->dim[axis], step = b->step ? b->step[i] : 1;
    int64_t start = b->start[i], end = b->end[i];
    if (!step) {
        fe_fail(c, "a step is 0");
        return NULL;
    }
    start += start < 0 && start >= -dim ? dim : 0;
    end += end < 0 && end >= -dim ? dim : 0;
    start = fe_clamp(start, 0, step > 0 ? dim : dim - 1);
    end = fe_clamp(end, step > 0 ? 0 : -1, dim);
    int64_t n = step > 0 ? end - start : start - end;
    int64_t by = step > 0 ? step : step == INT64_MIN ? INT64_MAX : -step;
    n = n <= 0 ? 0 : (n - 1) / by + 1;
    return fe_slice(c, v, axis, n ? start : 0, n > 1 ? step : 1, n);
}

bool
op_slice(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    bounds b = {0};
    if (!v || !slice_bounds(c, &b))
        return false;
    for (int i = 0; v && i < b.n; i++) {
        int axis;
        if (!fe_axis(c, b.axis ? b.axis[i] : i, v->type->rank, &axis))
            return false;
        v = slice_axis(c, v, axis, &b, i);
    }
    return fe_result(c, v);
}

/* What is above (or below) diagonal k stays, the rest becomes 0. */
bool
op_trilu(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    double k = 0;
    if (!v || (fe_has(c, 1) && !fe_num_in(c, 1, "k", &k)))
        return false;
    if (v->type->rank < 2)
        return fe_fail(c, "the operand is %s, expected matrices",
                       ir_type_text(c->im->ctx, v->type));
    const int64_t *dim = v->type->dim + v->type->rank - 2;
    const ir_type *t = fe_type(c, IR_BOOL, 2, dim);
    if (!t || ir_type_count(t) > FE_FOLD_MAX * 16)
        return t && fe_fail(c, "the operand is too big");
    bool upper = fe_attr_i(c, "upper", 1) != 0;
    double *keep = EF_NEWN(c->im->arena, double, dim[0] * dim[1] + 1);
    for (int64_t i = 0; i < dim[0]; i++)
        for (int64_t j = 0; j < dim[1]; j++)
            keep[i * dim[1] + j] = upper ? (double)(j - i) >= k : (double)(j - i) <= k;
    fe_val *pick[] = {fe_known_val(c->im, t, keep), v, fe_num(c, v->type->dtype, 0)};
    return fe_result(c, fe_emit(c, IR_OP_where, 3, pick, 0, NULL, NULL));
}
