/* shape.c -- result types from operand types: the generic checks, elementwise ops and
 * changes of shape. shape_nn.c has the rest.
 *
 * A rule is only called once the op's row holds: number of operands and results, attributes
 * allowed and present, operands with elements and (but for shardwise ops) not "/dp". It
 * fills out[], or returns what it found and what it expected. A rule of a row with T finds
 * the given type in op->res[0]->type and accepts or refuses it. Sizes come from files: a
 * rule computes with dims up to IR_MAX_COUNT, and what it makes of them is checked here.
 */
#include <inttypes.h>
#include <string.h>

#include "shape_int.h"

const char *
ir_bad(ef_ctx *ctx, const ir_op *op, int operand, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *what = ef_vprintf(ctx->arena, fmt, ap);
    va_end(ap);
    return ef_internf(ctx, "operand %d is %s, expected %s", operand,
                      ir_type_text(ctx, op->arg[operand]->type), what);
}

const ir_type *
ir_type_part(ef_ctx *ctx, const ir_type *t, int lo, int hi, int64_t n)
{
    ir_type part = {.dtype = t->dtype};
    for (int i = lo; i < hi; i++) {
        part.dim[part.rank] = t->dim[i];
        part.sym[part.rank++] = t->sym[i];
    }
    if (n >= 0)
        part.dim[part.rank++] = n;
    return ir_type_intern(ctx, &part);
}

bool
ir_same_dims(const ir_type *a, int alo, const ir_type *b, int blo, int n)
{
    for (int i = 0; i < n; i++)
        if (a->dim[alo + i] != b->dim[blo + i] || a->sym[alo + i] != b->sym[blo + i])
            return false;
    return true;
}

/* ---- generic checks ---- */

static const char *
check_count(ef_ctx *ctx, const char *what, int n, int least, int most)
{
    if (n >= least && (most < 0 || n <= most))
        return NULL;
    if (least == most)
        return ef_internf(ctx, "%d %s, expected %d", n, what, least);
    if (most < 0)
        return ef_internf(ctx, "%d %s, expected at least %d", n, what, least);
    return ef_internf(ctx, "%d %s, expected %d to %d", n, what, least, most);
}

/* What pass plan says of an op, so of any. */
static const uint64_t plan_attrs = (uint64_t)1 << IR_ATTR_at | (uint64_t)1
                                                                   << IR_ATTR_ws;

static const char *
check_attrs(ef_ctx *ctx, const ir_op *op)
{
    uint64_t have = 0, allowed = ir_ops[op->code].attrs | plan_attrs;
    for (int i = 0; i < op->nattr; i++) {
        ir_attr_key key = op->attr[i].key;
        if (!(allowed >> key & 1))
            return ef_internf(ctx, "takes no attribute '%s'", ir_attrs[key].name);
        if (have >> key & 1)
            return ef_internf(ctx, "attribute '%s' stands there twice",
                              ir_attrs[key].name);
        have |= (uint64_t)1 << key;
    }
    for (int key = 0; key < IR_NATTRS; key++)
        if (ir_attrs[key].need && allowed >> key & 1 && !(have >> key & 1))
            return ef_internf(ctx, "attribute '%s' is missing", ir_attrs[key].name);
    return NULL;
}

static const char *
check_operands(ef_ctx *ctx, const ir_op *op)
{
    bool shardwise = ir_ops[op->code].flags & IR_SHARDWISE;
    for (int i = 0; i < op->narg; i++) {
        const ir_type *t = op->arg[i]->type;
        if (t->dtype == IR_FUT)
            return ir_bad(ctx, op, i, "a tensor: wait for it first");
        if (t->sharded && !shardwise)
            return ef_internf(ctx, "operand %d is sharded: gather it first", i);
    }
    return NULL;
}

static const char *
check_given(ef_ctx *ctx, const ir_op *op)
{
    if (!(ir_ops[op->code].flags & IR_TYPED))
        return NULL;
    const ir_type *t = op->res[0]->type;
    if (!t)
        return "its result's type must be given";
    if (t->dtype == IR_FUT || (t->sharded && !(ir_ops[op->code].flags & IR_SHARDWISE)))
        return ef_internf(ctx, "result is %s, expected a whole tensor",
                          ir_type_text(ctx, t));
    return NULL;
}

const char *
ir_op_types(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_opinfo *row = &ir_ops[op->code];
    const char *why = check_count(ctx, "operands", op->narg, row->narg, row->narg_max);
    if (!why)
        why = check_count(ctx, "results", op->nres, row->nres, row->nres_max);
    if (!why)
        why = check_attrs(ctx, op);
    if (!why)
        why = check_operands(ctx, op);
    if (!why)
        why = check_given(ctx, op);
    if (!why)
        why = row->shape(ctx, op, out);
    for (int i = 0; !why && i < op->nres; i++)
        if (!ir_dims_ok(out[i]->rank, out[i]->dim))
            why = ef_internf(ctx, "result %d would have more than 2^40 elements", i);
    return why;
}

static const char *
no_fit(ef_ctx *ctx, const ir_op *op, const char *want)
{
    return ef_internf(ctx, "result is %s, expected %s",
                      ir_type_text(ctx, op->res[0]->type), want);
}

/* NULL if attribute axis is a dimension of t. */
static const char *
check_axis(ef_ctx *ctx, const ir_op *op, const ir_type *t)
{
    int64_t axis = ir_attr_int(op, IR_ATTR_axis, 0);
    if (axis >= 0 && axis < t->rank)
        return NULL;
    return ef_internf(ctx, "axis is %" PRId64 ", expected a dimension of %s", axis,
                      ir_type_text(ctx, t));
}

/* ---- elementwise ---- */

/* Operands [first, narg) of one dtype, broadcast to one type. */
static const char *
broadcast_all(ef_ctx *ctx, const ir_op *op, int first, const ir_type **out)
{
    const ir_type *t = arg(op, first);
    for (int i = first + 1; i < op->narg; i++) {
        if (arg(op, i)->dtype != t->dtype)
            return ir_bad(ctx, op, i, "dtype %s as operand %d has",
                          ir_dtypes[t->dtype].name, first);
        const ir_type *both = ir_type_broadcast(ctx, t, arg(op, i));
        if (!both)
            return ir_bad(ctx, op, i, "a shape that broadcasts with %s",
                          ir_type_text(ctx, t));
        t = both;
    }
    *out = t;
    return NULL;
}

const char *
sh_ew_S(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    for (int i = 0; i < op->narg; i++)
        if (arg(op, i)->dtype == IR_BOOL)
            return ir_bad(ctx, op, i, "numbers: cast it first");
    return broadcast_all(ctx, op, 0, out);
}

const char *
sh_ew_B(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = broadcast_all(ctx, op, 0, out);
    if (!why)
        out[0] = ir_type_with(ctx, out[0], IR_BOOL);
    return why;
}

const char *
sh_ew_W(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    if (arg(op, 0)->dtype != IR_BOOL)
        return ir_bad(ctx, op, 0, "bool");
    const ir_type *t = NULL;
    const char *why = broadcast_all(ctx, op, 1, &t);
    if (why)
        return why;
    out[0] = ir_type_broadcast(ctx, t, arg(op, 0));
    return out[0] ? NULL
                  : ir_bad(ctx, op, 0, "a shape that broadcasts with %s",
                           ir_type_text(ctx, t));
}

const char *
sh_cast(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    out[0] = op->res[0]->type;
    const ir_type *want = ir_type_with(ctx, arg(op, 0), out[0]->dtype);
    return out[0] == want ? NULL : no_fit(ctx, op, ir_type_text(ctx, want));
}

/* ---- changes of shape ---- */

const char *
sh_given(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    (void)ctx;
    out[0] = op->res[0]->type;
    return NULL;
}

/* Each named dimension must stay: its size is not known. */
static bool
same_syms(const ir_type *a, const ir_type *b)
{
    int balance[3] = {0};
    for (int i = 0; i < a->rank; i++)
        balance[a->sym[i]]++;
    for (int i = 0; i < b->rank; i++)
        balance[b->sym[i]]--;
    return !balance[IR_ROWS] && !balance[IR_SUP];
}

const char *
sh_reshape(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *from = arg(op, 0), *to = op->res[0]->type;
    out[0] = to;
    if (from->dtype != to->dtype || ir_type_count(from) != ir_type_count(to) ||
        !same_syms(from, to))
        return no_fit(ctx, op,
                      ef_internf(ctx, "dtype and number of elements of %s",
                                 ir_type_text(ctx, from)));
    return NULL;
}

const char *
sh_transpose(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *t = arg(op, 0);
    const ir_attr *perm = ir_attr_get(op, IR_ATTR_perm);
    if (perm->n != t->rank)
        return ef_internf(ctx, "perm has %d entries, expected one per dimension of %s",
                          perm->n, ir_type_text(ctx, t));
    ir_type r = {.dtype = t->dtype, .rank = t->rank};
    unsigned seen = 0;
    for (int i = 0; i < t->rank; i++) {
        int64_t d = perm->u.l[i];
        if (d < 0 || d >= t->rank || seen >> d & 1)
            return ef_internf(ctx,
                              "perm[%d] is %" PRId64 ", expected each of 0..%d once", i,
                              d, t->rank - 1);
        seen |= 1u << d;
        r.dim[i] = t->dim[d];
        r.sym[i] = t->sym[d];
    }
    out[0] = ir_type_intern(ctx, &r);
    return NULL;
}

const char *
sh_expand(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    out[0] = op->res[0]->type;
    if (ir_type_broadcast(ctx, arg(op, 0), out[0]) != out[0])
        return no_fit(ctx, op,
                      ef_internf(ctx, "a shape that %s broadcasts to",
                                 ir_type_text(ctx, arg(op, 0))));
    return NULL;
}

/* Are a and b equal but for the size of dimension `axis`, which has no name? */
static bool
same_but_axis(const ir_type *a, const ir_type *b, int axis)
{
    return a->dtype == b->dtype && a->rank == b->rank && !a->sym[axis] &&
           !b->sym[axis] && ir_same_dims(a, 0, b, 0, axis) &&
           ir_same_dims(a, axis + 1, b, axis + 1, a->rank - axis - 1);
}

const char *
sh_concat(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const char *why = check_axis(ctx, op, arg(op, 0));
    if (why)
        return why;
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    ir_type r = *arg(op, 0);
    r.dim[axis] = 0;
    for (int i = 0; i < op->narg; i++) {
        if (!same_but_axis(arg(op, 0), arg(op, i), axis))
            return ir_bad(ctx, op, i, "%s but for the size of fixed dimension %d",
                          ir_type_text(ctx, arg(op, 0)), axis);
        if (r.dim[axis] <= IR_MAX_COUNT)
            r.dim[axis] += arg(op, i)->dim[axis];
    }
    out[0] = ir_type_intern(ctx, &r);
    return NULL;
}

/* Is `part` what slice takes of `whole`? */
static const char *
check_slice(ef_ctx *ctx, const ir_op *op, const ir_type *whole, const ir_type *part)
{
    const char *why = check_axis(ctx, op, whole);
    if (why)
        return why;
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    int64_t start = ir_attr_int(op, IR_ATTR_start, 0);
    int64_t step = ir_attr_int(op, IR_ATTR_step, 1);
    if (whole->rank != part->rank || !same_but_axis(whole, part, axis))
        return ef_internf(ctx,
                          "the part is %s, expected %s but for the size of fixed "
                          "dimension %d",
                          ir_type_text(ctx, part), ir_type_text(ctx, whole), axis);
    int64_t n = part->dim[axis], size = whole->dim[axis];
    if (!n)
        return NULL;
    /* the division keeps the product from overflowing */
    bool fits = step && start >= 0 && start < size &&
                (n == 1 || (step > 0 ? step <= (size - 1 - start) / (n - 1)
                                     : step >= -(start / (n - 1))));
    return fits ? NULL
                : ef_internf(ctx,
                             "start %" PRId64 ", step %" PRId64 " and %" PRId64
                             " elements leave dimension %d of %s",
                             start, step, n, axis, ir_type_text(ctx, whole));
}

const char *
sh_slice(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    out[0] = op->res[0]->type;
    return check_slice(ctx, op, arg(op, 0), out[0]);
}

const char *
sh_unslice(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    out[0] = op->res[0]->type;
    return check_slice(ctx, op, out[0], arg(op, 0));
}

/* Type of data's slices along axis at indices of type idx. */
static const char *
gathered(ef_ctx *ctx, const ir_op *op, const ir_type *data, const ir_type **out)
{
    const ir_type *idx = arg(op, 1);
    const char *why = check_axis(ctx, op, data);
    if (why)
        return why;
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    if (idx->dtype != IR_I64 && idx->dtype != IR_I32)
        return ir_bad(ctx, op, 1, "integer indices");
    if (data->rank - 1 + idx->rank > IR_MAX_RANK)
        return ef_internf(ctx, "the result would have more than %d dimensions",
                          IR_MAX_RANK);
    ir_type r = *ir_type_part(ctx, data, 0, axis, -1);
    for (int i = 0; i < idx->rank; i++) {
        r.dim[r.rank] = idx->dim[i];
        r.sym[r.rank++] = idx->sym[i];
    }
    for (int i = axis + 1; i < data->rank; i++) {
        r.dim[r.rank] = data->dim[i];
        r.sym[r.rank++] = data->sym[i];
    }
    *out = ir_type_intern(ctx, &r);
    return NULL;
}

const char *
sh_gather(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    return gathered(ctx, op, arg(op, 0), out);
}

const char *
sh_gather_grad(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    out[0] = op->res[0]->type;
    const ir_type *dy = NULL;
    const char *why = gathered(ctx, op, out[0], &dy);
    if (why)
        return why;
    if (dy == ir_type_with(ctx, arg(op, 0), dy->dtype))
        return NULL;
    return ir_bad(ctx, op, 0, "%s", ir_type_text(ctx, dy));
}

const char *
sh_same(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    for (int i = 1; i < op->narg; i++)
        if (arg(op, i) != arg(op, 0))
            return ir_bad(ctx, op, i, "%s", ir_type_text(ctx, arg(op, 0)));
    out[0] = arg(op, 0);
    bool has_axis = ir_ops[op->code].attrs >> IR_ATTR_axis & 1;
    return has_axis ? check_axis(ctx, op, out[0]) : NULL;
}

const char *
sh_reduce(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    const ir_type *t = arg(op, 0);
    const ir_attr *axes = ir_attr_get(op, IR_ATTR_axes);
    bool keep = ir_attr_int(op, IR_ATTR_keep, 0);
    unsigned reduced = 0;
    for (int i = 0; i < axes->n; i++) {
        int64_t d = axes->u.l[i];
        if (d < 0 || d >= t->rank || (i && d <= axes->u.l[i - 1]))
            return ef_internf(
                ctx, "axes[%d] is %" PRId64 ", expected dimensions of %s, ascending", i,
                d, ir_type_text(ctx, t));
        reduced |= 1u << d;
    }
    if (!reduced)
        return "axes is empty, expected at least one dimension";
    ir_type r = {.dtype = t->dtype};
    for (int i = 0; i < t->rank; i++) {
        bool gone = reduced >> i & 1;
        if (gone && !keep)
            continue;
        r.dim[r.rank] = gone ? 1 : t->dim[i];
        r.sym[r.rank++] = gone ? (uint8_t)IR_FIXED : t->sym[i];
    }
    r.dtype = ir_dtype_to(op, r.dtype);
    if (r.dtype == IR_NDTYPES)
        return "attribute to names no float type";
    out[0] = ir_type_intern(ctx, &r);
    return NULL;
}

const char *
sh_none(ef_ctx *ctx, const ir_op *op, const ir_type **out)
{
    (void)ctx, (void)op, (void)out;
    return NULL;
}
