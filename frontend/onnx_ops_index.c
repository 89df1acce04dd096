/* onnx_ops_index.c -- operators that pick or place elements by index, and padding.
 *
 * All of them become one gather of rows. Where elements are placed, every place of the result
 * gets the number of the row that it shows in the end, of the operand or of what is placed;
 * for this the indices have to be known.
 */
#include "ops_int.h"

#include <string.h>

/* ---- flat numbers ---- */

/* i64 [n] of numbers from fe_room(), which may have failed. */
static fe_val *
listed(fe_call *c, int64_t n, const double *x)
{
    return x ? fe_known_val(c->im, fe_type(c, IR_I64, 1, &n), x) : NULL;
}

/* Negative indices, known or not, count from the end of n. */
static fe_val *
from_start(fe_call *c, fe_val *x, int64_t n)
{
    if (!x)
        return NULL;
    fe_val *pick[] = {fe_with(c, IR_OP_lt, x, 0), fe_with(c, IR_OP_add, x, (double)n),
                      x};
    return fe_emit(c, IR_OP_where, 3, pick, 0, NULL, NULL);
}

/* Rows of v, seen as [rows, rest], whose row is an index over dims [batch, batch + k) within
 * the same place of the `batch` dims before. */
typedef struct rows {
    int batch, k;
    int64_t each, n, rest; /* rows of one batch, of all; elements of a row */
} rows;

static bool
rows_of(fe_call *c, const ir_type *t, const ir_type *index, rows *r)
{
    int64_t k = index->rank ? index->dim[index->rank - 1] : 0;
    bool fits = index->dtype == IR_I64 && k >= 1 && k + r->batch <= t->rank &&
                r->batch >= 0 && r->batch < index->rank;
    for (int i = 0; fits && i < r->batch; i++)
        fits = index->dim[i] == t->dim[i];
    if (!fits)
        return fe_fail(c, "indices %s do not fit %s", ir_type_text(c->im->ctx, index),
                       ir_type_text(c->im->ctx, t));
    *r = (rows){.batch = r->batch, .k = (int)k, .each = 1, .n = 1, .rest = 1};
    for (int i = 0; i < t->rank; i++) {
        *(i < r->k + r->batch ? &r->n : &r->rest) *= t->dim[i];
        r->each *= i >= r->batch && i < r->k + r->batch ? t->dim[i] : 1;
    }
    return true;
}

/* [.., k] indices as [m] row numbers. */
static fe_val *
row_numbers(fe_call *c, fe_val *index, const ir_type *t, const rows *r)
{
    int64_t m = ir_type_count(index->type) / r->k, stride = r->each, batches = 1;
    fe_val *sum = NULL, *flat = fe_reshape(c, index, 2, (int64_t[]){m, r->k});
    for (int i = 0; flat && i < r->k; i++) {
        int64_t dim = t->dim[r->batch + i];
        stride /= dim ? dim : 1;
        fe_val *x = fe_reshape(c, fe_slice(c, flat, 1, i, 1, 1), 1, &m);
        x = fe_with(c, IR_OP_mul, from_start(c, x, dim), (double)stride);
        sum = i ? fe_ew2(c, IR_OP_add, sum, x) : x;
    }
    for (int i = 0; i < r->batch; i++)
        batches *= t->dim[i];
    if (!r->batch || !batches)
        return sum;
    double *first = fe_room(c, m);
    for (int64_t i = 0; first && i < m; i++)
        first[i] = (double)(i / (m / batches) * r->each);
    return fe_ew2(c, IR_OP_add, sum, listed(c, m, first));
}

/* Numbers of the elements of a [t] that `index`, of the same rank, picks along axis. */
static fe_val *
element_numbers(fe_call *c, fe_val *index, const ir_type *t, int axis)
{
    int64_t n = ir_type_count(index->type), stride = 1;
    double *rest = fe_room(c, n);
    for (int64_t e = 0; rest && e < n; e++) {
        int64_t k = e, at = 0, s = 1;
        for (int d = t->rank - 1; d >= 0; d--) {
            at += d == axis ? 0 : k % index->type->dim[d] * s;
            k /= index->type->dim[d];
            s *= t->dim[d];
        }
        rest[e] = (double)at;
    }
    for (int d = axis + 1; d < t->rank; d++)
        stride *= t->dim[d];
    fe_val *x = from_start(c, fe_reshape(c, index, 1, &n), t->dim[axis]);
    x = fe_with(c, IR_OP_mul, x, (double)stride);
    return fe_ew2(c, IR_OP_add, x, listed(c, n, rest));
}

/* ---- picking ---- */

bool
op_gather(fe_call *c)
{
    fe_val *v = fe_in(c, 0), *at = v ? fe_in(c, 1) : NULL;
    int axis;
    if (!at || !fe_axis(c, fe_attr_i(c, "axis", 0), v->type->rank, &axis))
        return false;
    if (at->type->dtype != IR_I64)
        return fe_fail(c, "indices are %s", ir_type_text(c->im->ctx, at->type));
    fe_val *y = fe_gather(c, v, at, axis);
    if (y && !v->data && at->data && axis == 0 && v->type->rank == 2 &&
        y->type->rank > 1) {
        c->im->positions = v->type->dim[0];
        c->im->positions_of = v->v->name;
    }
    return fe_result(c, y);
}

bool
op_gather_nd(fe_call *c)
{
    fe_val *v = fe_in(c, 0), *index = v ? fe_in(c, 1) : NULL;
    rows r = {.batch = (int)fe_attr_i(c, "batch_dims", 0)};
    if (!index || !rows_of(c, v->type, index->type, &r))
        return false;
    int64_t dim[2 * IR_MAX_RANK];
    int rank = index->type->rank - 1;
    memcpy(dim, index->type->dim, sizeof *dim * (size_t)rank);
    for (int i = r.batch + r.k; i < v->type->rank; i++)
        dim[rank++] = v->type->dim[i];
    const ir_type *t = v->type;
    fe_val *y = fe_gather(c, fe_reshape(c, v, 2, (int64_t[]){r.n, r.rest}),
                          row_numbers(c, index, t, &r), 0);
    return y && fe_result(c, fe_reshape(c, y, rank, dim));
}

/* The indices pick along axis; in other dimensions there are at most as many as elements. */
static bool
check_elements(fe_call *c, const fe_val *v, const fe_val *index, int axis)
{
    bool ok = index->type->dtype == IR_I64 && index->type->rank == v->type->rank;
    for (int d = 0; ok && d < v->type->rank; d++)
        ok = d == axis || index->type->dim[d] <= v->type->dim[d];
    if (ok)
        return true;
    return fe_fail(c, "indices %s do not fit %s", ir_type_text(c->im->ctx, index->type),
                   ir_type_text(c->im->ctx, v->type));
}

bool
op_gather_elements(fe_call *c)
{
    fe_val *v = fe_in(c, 0), *index = v ? fe_in(c, 1) : NULL;
    int axis;
    if (!index || !fe_axis(c, fe_attr_i(c, "axis", 0), v->type->rank, &axis) ||
        !check_elements(c, v, index, axis))
        return false;
    int64_t n = ir_type_count(v->type);
    fe_val *at = element_numbers(c, index, v->type, axis);
    fe_val *y = fe_gather(c, fe_reshape(c, v, 1, &n), at, 0);
    return y && fe_result(c, fe_reshape(c, y, index->type->rank, index->type->dim));
}

/* ---- placing ---- */

/* Rows `from` [m] of `with` [m, rest] replace or are added to rows `to` of v [n, rest]. */
static fe_val *
place_rows(fe_call *c, fe_val *v, fe_val *with, fe_val *to, bool add)
{
    if (!v || !with || !to)
        return NULL;
    int64_t n = v->type->dim[0], m = with->type->dim[0];
    if (add) {
        ir_attr attr = ir_attr_i(IR_ATTR_axis, 0);
        fe_val *arg[] = {with, to};
        return fe_ew2(c, IR_OP_add, v,
                      fe_emit(c, IR_OP_gather_grad, 2, arg, 1, &attr, v->type));
    }
    if (!to->data) {
        fe_fail(c, "indices depend on the data, which is not supported");
        return NULL;
    }
    double *from = fe_room(c, n);
    for (int64_t i = 0; from && i < n; i++)
        from[i] = (double)i;
    for (int64_t i = 0; from && i < m; i++) {
        if (to->data[i] < 0 || to->data[i] >= (double)n) {
            fe_fail(c, "an index is outside of the operand");
            return NULL;
        }
        from[(int64_t)to->data[i]] = (double)(n + i);
    }
    fe_val *all = fe_concat(c, 2, (fe_val *[]){v, with}, 0);
    return fe_gather(c, all, listed(c, n, from), 0);
}

/* "none" or "add"; others are refused. */
static bool
reduction_of(fe_call *c, const fe_val *v, bool *add)
{
    const char *how = fe_attr_s(c, "reduction", "none");
    *add = !strcmp(how, "add");
    if (*add && !ir_dtypes[v->type->dtype].is_float)
        return fe_fail(c, "reduction 'add' of %s is not supported",
                       ir_type_text(c->im->ctx, v->type));
    return *add || !strcmp(how, "none") ||
           fe_fail(c, "reduction '%s' is not supported", how);
}

bool
op_scatter_nd(fe_call *c)
{
    fe_val *v = fe_in(c, 0), *index = v ? fe_in(c, 1) : NULL;
    fe_val *with = index ? fe_in(c, 2) : NULL;
    rows r = {0};
    bool add;
    if (!with || !rows_of(c, v->type, index->type, &r) || !reduction_of(c, v, &add))
        return false;
    int64_t m = ir_type_count(index->type) / r.k;
    if (ir_type_count(with->type) != m * r.rest)
        return fe_fail(c, "updates are %s, expected %lld elements",
                       ir_type_text(c->im->ctx, with->type), (long long)(m * r.rest));
    fe_val *y = place_rows(c, fe_reshape(c, v, 2, (int64_t[]){r.n, r.rest}),
                           fe_reshape(c, with, 2, (int64_t[]){m, r.rest}),
                           row_numbers(c, index, v->type, &r), add);
    return y && fe_result(c, fe_reshape(c, y, v->type->rank, v->type->dim));
}

bool
op_scatter_elements(fe_call *c)
{
    fe_val *v = fe_in(c, 0), *index = v ? fe_in(c, 1) : NULL;
    fe_val *with = index ? fe_in(c, 2) : NULL;
    int axis;
    bool add;
    if (!with || !reduction_of(c, v, &add) ||
        !fe_axis(c, fe_attr_i(c, "axis", 0), v->type->rank, &axis) ||
        !check_elements(c, v, index, axis))
        return false;
    int64_t n = ir_type_count(v->type), m = ir_type_count(index->type);
    if (ir_type_count(with->type) != m)
        return fe_fail(c, "updates are %s, indices %s",
                       ir_type_text(c->im->ctx, with->type),
                       ir_type_text(c->im->ctx, index->type));
    fe_val *y = place_rows(c, fe_reshape(c, v, 1, &n), fe_reshape(c, with, 1, &m),
                           element_numbers(c, index, v->type, axis), add);
    return y && fe_result(c, fe_reshape(c, y, v->type->rank, v->type->dim));
}

/* values [off, on] at axis: on where the index is the place. */
bool
op_one_hot(fe_call *c)
{
    fe_val *index = fe_in(c, 0), *values = index ? fe_in(c, 2) : NULL;
    double depth;
    int axis;
    if (!values || !fe_num_in(c, 1, "depth", &depth) ||
        !fe_axis(c, fe_attr_i(c, "axis", -1), index->type->rank + 1, &axis))
        return false;
    if (index->type->rank >= IR_MAX_RANK || !(depth >= 0 && depth <= FE_FOLD_MAX) ||
        ir_type_count(values->type) != 2)
        return fe_fail(c, "a depth of %g is not supported", depth);
    int64_t n = (int64_t)depth, dim[IR_MAX_RANK], place[IR_MAX_RANK];
    for (int i = 0, k = 0; i <= index->type->rank; i++) {
        dim[i] = i == axis ? 1 : index->type->dim[k++];
        place[i] = i == axis ? n : 1;
    }
    int rank = index->type->rank + 1;
    index = from_start(c, fe_convert(c, index, IR_I64), n);
    fe_val *at = fe_reshape(c, fe_count_up(c, n), rank, place);
    fe_val *pick[] = {fe_ew2(c, IR_OP_eq, fe_reshape(c, index, rank, dim), at),
                      fe_reshape(c, fe_slice(c, values, 0, 1, 1, 1), 0, dim),
                      fe_reshape(c, fe_slice(c, values, 0, 0, 1, 1), 0, dim)};
    return fe_result(c, fe_emit(c, IR_OP_where, 3, pick, 0, NULL, NULL));
}

/* ---- padding ---- */

/* Which of n elements stands at place i of a padded row; i may be below 0 or above n. */
static int64_t
padded_from(const char *mode, int64_t i, int64_t n)
{
    if (!strcmp(mode, "edge"))
        return fe_clamp(i, 0, n - 1);
    if (!strcmp(mode, "wrap"))
        return (i % n + n) % n;
    int64_t round = n > 1 ? 2 * (n - 1) : 1; /* reflect: the ends stand once */
    i = (i % round + round) % round;
    return i < n ? i : round - i;
}

/* Adds before and after elements along axis; negative numbers take away. */
static fe_val *
pad_axis(fe_call *c, fe_val *v, int axis, const int64_t *by, fe_val *fill)
{
    const char *mode = fe_attr_s(c, "mode", "constant");
    int64_t n = v->type->dim[axis];
    bool sane = by[0] >= -n && by[1] >= -n && by[0] <= FE_FOLD_MAX &&
                by[1] <= FE_FOLD_MAX && n + by[0] + by[1] >= 0;
    if (!sane) {
        fe_fail(c, "pads are %lld and %lld for %lld elements", (long long)by[0],
                (long long)by[1], (long long)n);
        return NULL;
    }
    if (strcmp(mode, "constant")) {
        int64_t size = n + by[0] + by[1];
        double *from = fe_room(c, size);
        for (int64_t i = 0; from && i < size; i++)
            from[i] = (double)(n ? padded_from(mode, i - by[0], n) : 0);
        return fe_gather(c, v, listed(c, size, from), axis);
    }
    fe_val *part[3];
    int k = 0;
    for (int i = 0; i < 3; i++) {
        ir_type t = *v->type;
        t.dim[axis] = i == 1 ? 0 : by[i / 2];
        if (i == 1)
            part[k++] = fe_slice(c, v, axis, by[0] < 0 ? -by[0] : 0, 1,
                                 n + (by[0] < 0 ? by[0] : 0) + (by[1] < 0 ? by[1] : 0));
        else if (by[i / 2] > 0)
            part[k++] = fe_expand(c, fill, t.rank, t.dim);
    }
    return fe_concat(c, k, part, axis);
}

static bool
is_mode(const char *mode)
{
    static const char *const modes[] = {"constant", "edge", "reflect", "wrap"};
    for (size_t i = 0; i < EF_COUNT(modes); i++)
        if (!strcmp(mode, modes[i]))
            return true;
    return false;
}

/* Pads and axes are attributes before opset 11. */
bool
op_pad(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    int n = 0, naxes = 0;
    bool old = c->opset < 11;
    const int64_t *pad = !v    ? NULL
                         : old ? fe_attr_is(c, "pads", &n)
                               : fe_ints_in(c, 1, "pads", &n);
    const int64_t *axes = NULL;
    if (!pad || (fe_has(c, 3) && !(axes = fe_ints_in(c, 3, "axes", &naxes))))
        return false;
    int rank = v->type->rank, count = axes ? naxes : rank;
    if (!is_mode(fe_attr_s(c, "mode", "constant")))
        return fe_fail(c, "mode '%s' is not supported", fe_attr_s(c, "mode", ""));
    if (n != 2 * count)
        return fe_fail(c, "%d pads for %d dimensions", n, count);
    fe_val *fill = !old && fe_has(c, 2)
                       ? fe_in(c, 2)
                       : fe_num(c, v->type->dtype, fe_attr_f(c, "value", 0));
    fill = fill ? fe_reshape(c, fill, 0, v->type->dim) : NULL;
    for (int i = 0; v && fill && i < count; i++) {
        int axis;
        if (!fe_axis(c, axes ? axes[i] : i, rank, &axis))
            return false;
        int64_t by[] = {pad[i], pad[i + count]};
        if (by[0] || by[1])
            v = pad_axis(c, v, axis, by, fill);
    }
    return fill && fe_result(c, v);
}
