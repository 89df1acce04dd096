/* onnx_operands.c -- what builders of operators read and the ops that they often make.
 *
 * Shorthands pass NULL on, so that a builder may nest them and look at the end: whoever
 * found the fault has said it.
 */
#include "ops_int.h"

#include <string.h>

enum { TENSOR_MAX = 1 << 24 }; /* elements of a known tensor */

/* ---- operands ---- */

static ir_dtype
kind_of(ir_dtype d)
{
    return d == IR_BOOL ? IR_BOOL : ir_dtypes[d].is_float ? IR_F32 : IR_I64;
}

fe_val *
fe_load_known(fe_call *c, const fe_tensor *t)
{
    const ir_type *type = fe_type(c, kind_of(t->dtype), t->rank, t->dim);
    if (!type)
        return NULL;
    if (t->count > TENSOR_MAX) {
        fe_fail(c, "constant %s has %lld elements, more than %d", t->name,
                (long long)t->count, TENSOR_MAX);
        return NULL;
    }
    double *x = EF_NEWN(c->im->arena, double, t->count + 1);
    if (!fe_tensor_f64(c->im->f, t, 0, t->count, x))
        return NULL;
    for (int64_t i = 0; i < t->count; i++)
        x[i] = ir_round(type->dtype, x[i]);
    fe_val *v = fe_known_val(c->im, type, x);
    v->name = t->name;
    return v;
}

bool
fe_has(const fe_call *c, int i)
{
    return i < c->n->nin && *c->n->in[i];
}

/* A name that is no operand with a param of its own. */
fe_val *
fe_by_name(fe_call *c, const char *name)
{
    fe_param *p = fe_param_of(c->im, name);
    if (p)
        return fe_param_val(c, p);
    fe_val *v = ef_map_get(&c->im->vals, name);
    if (v)
        return v;
    const fe_tensor *t = ef_map_get(&c->im->f->inits, name);
    if (!t) {
        fe_fail(c, "'%s' has no value", name);
        return NULL;
    }
    if ((v = fe_load_known(c, t)))
        ef_map_set(c->im->arena, &c->im->vals, name, v);
    return v;
}

fe_val *
fe_in(fe_call *c, int i)
{
    if (!fe_has(c, i)) {
        fe_fail(c, "operand %d is missing", i);
        return NULL;
    }
    fe_param *p = ef_map_get(&c->im->use, &c->n->p->input[i]);
    if (p)
        return fe_param_val(c, p);
    const fe_alias *a = ef_map_get(&c->im->aliases, c->n->in[i]);
    if (!a)
        return fe_by_name(c, c->n->in[i]);
    const ir_type *type = fe_type(c, IR_F32, a->w->t->rank, a->w->t->dim);
    return type ? fe_known_val(c->im, type, NULL) : NULL; /* only its shape is read */
}

const int64_t *
fe_ints_in(fe_call *c, int i, const char *what, int *n)
{
    enum { LONGEST = 1 << 16 };
    fe_val *v = fe_in(c, i);
    if (!v)
        return NULL;
    const char *type = ir_type_text(c->im->ctx, v->type);
    if (v->type->dtype != IR_I64 || v->type->rank > 1 ||
        ir_type_count(v->type) > LONGEST) {
        fe_fail(c, "operand %d (%s) is %s, expected a list of integers", i, what, type);
        return NULL;
    }
    if (!v->data) {
        fe_fail(
            c,
            "operand %d (%s) depends on the data: it must be known when the model is "
            "compiled",
            i, what);
        return NULL;
    }
    *n = (int)ir_type_count(v->type);
    int64_t *x = EF_NEWN(c->im->arena, int64_t, *n + 1);
    for (int k = 0; k < *n; k++)
        x[k] = v->data[k] >= 0x1p63 ? INT64_MAX : (int64_t)v->data[k];
    return x;
}

bool
fe_num_in(fe_call *c, int i, const char *what, double *x)
{
    fe_val *v = fe_in(c, i);
    if (v && (!v->data || ir_type_count(v->type) != 1))
        return fe_fail(c,
                       "operand %d (%s) is %s, expected one number that is known when "
                       "the model is compiled",
                       i, what, ir_type_text(c->im->ctx, v->type));
    if (v)
        *x = v->data[0];
    return v != NULL;
}

/* ---- attributes ---- */

int64_t
fe_attr_i(const fe_call *c, const char *name, int64_t absent)
{
    const Onnx__AttributeProto *a = fe_node_attr(c->n->p, name);
    return a ? a->i : absent;
}

double
fe_attr_f(const fe_call *c, const char *name, double absent)
{
    const Onnx__AttributeProto *a = fe_node_attr(c->n->p, name);
    return a ? (double)a->f : absent;
}

const char *
fe_attr_s(const fe_call *c, const char *name, const char *absent)
{
    const Onnx__AttributeProto *a = fe_node_attr(c->n->p, name);
    return a && a->s.data ? ef_internn(c->im->ctx, (const char *)a->s.data, a->s.len)
                          : absent;
}

const int64_t *
fe_attr_is(const fe_call *c, const char *name, int *n)
{
    static const int64_t none;
    const Onnx__AttributeProto *a = fe_node_attr(c->n->p, name);
    *n = a ? (int)a->n_ints : 0;
    return !a ? NULL : a->ints ? a->ints : &none;
}

bool
fe_axis(fe_call *c, int64_t axis, int rank, int *out)
{
    if (axis < -rank || axis >= rank)
        return fe_fail(c, "axis %lld is outside of %d dimensions", (long long)axis,
                       rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return true;
}

/* ---- shorthands ---- */

double *
fe_room(fe_call *c, int64_t n)
{
    enum { MOST = 1 << 26 };
    if (n <= MOST)
        return EF_NEWN(c->im->arena, double, n + 1);
    fe_fail(c, "%lld numbers are more than %d", (long long)n, MOST);
    return NULL;
}

fe_val *
fe_count_up(fe_call *c, int64_t n)
{
    double *x = fe_room(c, n);
    for (int64_t i = 0; x && i < n; i++)
        x[i] = (double)i;
    return x ? fe_known_val(c->im, fe_type(c, IR_I64, 1, &n), x) : NULL;
}

fe_val *
fe_ew1(fe_call *c, ir_opcode code, fe_val *a)
{
    return fe_emit(c, code, 1, &a, 0, NULL, NULL);
}

fe_val *
fe_ew2(fe_call *c, ir_opcode code, fe_val *a, fe_val *b)
{
    return fe_emit(c, code, 2, (fe_val *[]){a, b}, 0, NULL, NULL);
}

fe_val *
fe_splat(fe_call *c, const ir_type *t, double x)
{
    ir_attr attr = ir_attr_f(IR_ATTR_value, x);
    return t ? fe_emit(c, IR_OP_const, 0, NULL, 1, &attr, t) : NULL;
}

fe_val *
fe_num(fe_call *c, ir_dtype d, double x)
{
    return fe_splat(c, fe_type(c, d, 0, NULL), x);
}

fe_val *
fe_with(fe_call *c, ir_opcode code, fe_val *a, double x)
{
    return a ? fe_ew2(c, code, a, fe_num(c, a->type->dtype, x)) : NULL;
}

static bool
same_dims(const ir_type *t, int rank, const int64_t *dim)
{
    return t->rank == rank && !memcmp(t->dim, dim, sizeof *dim * (size_t)rank);
}

fe_val *
fe_reshape(fe_call *c, fe_val *v, int rank, const int64_t *dim)
{
    if (!v || same_dims(v->type, rank, dim))
        return v;
    const ir_type *t = fe_type(c, v->type->dtype, rank, dim);
    if (!t)
        return NULL;
    if (v->data && ir_type_count(t) == ir_type_count(v->type))
        return fe_known_val(c->im, t, v->data);
    return fe_emit(c, IR_OP_reshape, 1, &v, 0, NULL, t);
}

fe_val *
fe_expand(fe_call *c, fe_val *v, int rank, const int64_t *dim)
{
    if (!v || same_dims(v->type, rank, dim))
        return v;
    const ir_type *t = fe_type(c, v->type->dtype, rank, dim);
    return t ? fe_emit(c, IR_OP_expand, 1, &v, 0, NULL, t) : NULL;
}

fe_val *
fe_permute(fe_call *c, fe_val *v, const int64_t *perm)
{
    if (!v)
        return NULL;
    bool same = true;
    for (int i = 0; i < v->type->rank; i++)
        same &= perm[i] == i;
    ir_attr attr = ir_attr_l(IR_ATTR_perm, v->type->rank, perm);
    return same ? v : fe_emit(c, IR_OP_transpose, 1, &v, 1, &attr, NULL);
}

fe_val *
fe_convert(fe_call *c, fe_val *v, ir_dtype d)
{
    if (!v || v->type->dtype == d)
        return v;
    const ir_type *t = ir_type_with(c->im->ctx, v->type, d);
    return fe_emit(c, IR_OP_cast, 1, &v, 0, NULL, t);
}

fe_val *
fe_slice(fe_call *c, fe_val *v, int axis, int64_t start, int64_t step, int64_t n)
{
    if (!v || (start == 0 && step == 1 && n == v->type->dim[axis]))
        return v;
    ir_type t = *v->type;
    t.dim[axis] = n;
    ir_attr attr[] = {ir_attr_i(IR_ATTR_axis, axis), ir_attr_i(IR_ATTR_start, start),
                      ir_attr_i(IR_ATTR_step, step)};
    return fe_emit(c, IR_OP_slice, 1, &v, 3, attr, ir_type_intern(c->im->ctx, &t));
}

fe_val *
fe_concat(fe_call *c, int n, fe_val *const *v, int axis)
{
    ir_attr attr = ir_attr_i(IR_ATTR_axis, axis);
    return n == 1 ? v[0] : fe_emit(c, IR_OP_concat, n, v, 1, &attr, NULL);
}

/* Indices that are known and negative count from the end. */
fe_val *
fe_gather(fe_call *c, fe_val *v, fe_val *indices, int axis)
{
    if (!v || !indices)
        return NULL;
    int64_t rows = v->type->dim[axis], n = ir_type_count(indices->type);
    double *x = indices->data
                    ? ef_dup(c->im->arena, indices->data, sizeof *x * (size_t)n)
                    : NULL;
    for (int64_t i = 0; x && i < n; i++) {
        if (x[i] < -(double)rows || x[i] >= (double)rows) {
            fe_fail(c, "index %.0f is outside of dimension %d, which has %lld", x[i],
                    axis, (long long)rows);
            if (c->im->seq > rows)
                ef_hint(c->im->ctx, "give a --seq of at most %lld", (long long)rows);
            return NULL;
        }
        x[i] += x[i] < 0 ? (double)rows : 0;
    }
    if (x) {
        fe_val *fixed = fe_known_val(c->im, indices->type, x);
        fixed->name = indices->name;
        indices = fixed;
    }
    ir_attr attr = ir_attr_i(IR_ATTR_axis, axis);
    return fe_emit(c, IR_OP_gather, 2, (fe_val *[]){v, indices}, 1, &attr, NULL);
}
