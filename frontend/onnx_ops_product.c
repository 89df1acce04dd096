/* onnx_ops_product.c -- products of matrices: MatMul and Gemm, onnxruntime's fused forms of
 * them, sums of products in Einstein's notation, and convolutions as products.
 */
#include "ops_int.h"

#include <string.h>

/* Vectors become matrices of one row or column, which the result then lacks. */
static fe_val *
matmul(fe_call *c, fe_val *a, fe_val *b, bool ta, bool tb)
{
    if (!a || !b)
        return NULL;
    if (!a->type->rank || !b->type->rank) {
        fe_fail(c, "an operand is a scalar");
        return NULL;
    }
    bool row = a->type->rank == 1, col = b->type->rank == 1;
    if (row)
        a = fe_reshape(c, a, 2, (int64_t[]){1, a->type->dim[0]});
    if (col)
        b = fe_reshape(c, b, 2, (int64_t[]){b->type->dim[0], 1});
    ir_attr attr[2];
    int nattr = 0, n = 0;
    if (ta && !row)
        attr[nattr++] = ir_attr_i(IR_ATTR_ta, 1);
    if (tb && !col)
        attr[nattr++] = ir_attr_i(IR_ATTR_tb, 1);
    fe_val *v = fe_emit(c, IR_OP_matmul, 2, (fe_val *[]){a, b}, nattr, attr, NULL);
    if (!v || (!row && !col))
        return v;
    int64_t dim[IR_MAX_RANK];
    for (int i = 0; i < v->type->rank; i++)
        if (!(row && i == v->type->rank - 2) && !(col && i == v->type->rank - 1))
            dim[n++] = v->type->dim[i];
    return fe_reshape(c, v, n, dim);
}

bool
op_matmul(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    return fe_result(c, matmul(c, a, b, false, false));
}

static fe_val *
scaled(fe_call *c, fe_val *v, double by)
{
    return by == 1 ? v : fe_with(c, IR_OP_mul, v, by);
}

/* The first of the dimensions before the last becomes the last of them: [M, .., K] to
 * [.., M, K]. */
static fe_val *
batch_turned(fe_call *c, fe_val *v)
{
    int64_t perm[IR_MAX_RANK];
    int rank = v ? v->type->rank : 0;
    for (int i = 0; i < rank; i++)
        perm[i] = i < rank - 2 ? i + 1 : i == rank - 2 ? 0 : i;
    return fe_permute(c, v, perm);
}

/* alpha A B, with any of them turned */
bool
op_fused_matmul(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    if (fe_attr_i(c, "transBatchA", 0))
        a = batch_turned(c, a);
    if (fe_attr_i(c, "transBatchB", 0))
        b = batch_turned(c, b);
    fe_val *y =
        matmul(c, a, b, fe_attr_i(c, "transA", 0) != 0, fe_attr_i(c, "transB", 0) != 0);
    return fe_result(c, scaled(c, y, fe_attr_f(c, "alpha", 1)));
}

/* alpha A B + beta C; NULL: said why. */
static fe_val *
gemm(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    if (!a || !b)
        return NULL;
    if (a->type->rank != 2 || b->type->rank != 2) {
        fe_fail(c, "operands are %s and %s, expected matrices",
                ir_type_text(c->im->ctx, a->type), ir_type_text(c->im->ctx, b->type));
        return NULL;
    }
    fe_val *y =
        matmul(c, a, b, fe_attr_i(c, "transA", 0) != 0, fe_attr_i(c, "transB", 0) != 0);
    y = scaled(c, y, fe_attr_f(c, "alpha", 1));
    double beta = fe_attr_f(c, "beta", 1);
    if (!y || !fe_has(c, 2) || beta == 0)
        return y;
    const ir_type *t = y->type;
    y = fe_ew2(c, IR_OP_add, y, scaled(c, fe_in(c, 2), beta));
    if (!y || y->type == t)
        return y;
    fe_fail(c, "operand 2 does not fit a result of %s", ir_type_text(c->im->ctx, t));
    return NULL;
}

bool
op_gemm(fe_call *c)
{
    return fe_result(c, gemm(c));
}

bool
op_fused_gemm(fe_call *c)
{
    fe_val *y = gemm(c);
    const char *name = fe_attr_s(c, "activation", NULL);
    return y && fe_result(c, name ? fe_activation(c, name, y) : y);
}

/* ---- convolution ---- */

enum { SPATIAL_MAX = 3 };

typedef struct conv {
    int n; /* spatial dimensions */
    int64_t in[SPATIAL_MAX], kernel[SPATIAL_MAX], out[SPATIAL_MAX];
    int64_t stride[SPATIAL_MAX], gap[SPATIAL_MAX]; /* gap: between taps of the kernel */
    int64_t before[SPATIAL_MAX], after[SPATIAL_MAX];
    int64_t taps, places; /* products of kernel and of out */
    bool padded;
} conv;

static int64_t
listed(const int64_t *list, int n, int i, int64_t absent)
{
    return list && i < n ? list[i] : absent;
}

/* Padding that auto_pad asks for: results are ceil(in / stride). */
static void
auto_pad(conv *v, int i, bool lower)
{
    int64_t reach = (v->kernel[i] - 1) * v->gap[i] + 1;
    int64_t out = (v->in[i] + v->stride[i] - 1) / v->stride[i];
    int64_t pad = (out - 1) * v->stride[i] + reach - v->in[i];
    pad = pad < 0 ? 0 : pad;
    v->before[i] = lower ? pad - pad / 2 : pad / 2;
    v->after[i] = pad - v->before[i];
}

/* So that nothing overflows. */
static bool
in_range(const conv *v, int i)
{
    const int64_t most = FE_FOLD_MAX;
    return v->stride[i] >= 1 && v->gap[i] >= 1 && v->before[i] >= 0 &&
           v->after[i] >= 0 && v->stride[i] <= most && v->gap[i] <= most &&
           v->before[i] <= most && v->after[i] <= most && v->in[i] <= most &&
           v->kernel[i] <= most;
}

static bool
conv_of(fe_call *c, const ir_type *x, const ir_type *w, conv *v)
{
    int ns, ng, np;
    const int64_t *stride = fe_attr_is(c, "strides", &ns);
    const int64_t *gap = fe_attr_is(c, "dilations", &ng);
    const int64_t *pad = fe_attr_is(c, "pads", &np);
    const char *how = fe_attr_s(c, "auto_pad", "NOTSET");
    *v = (conv){.n = x->rank - 2, .taps = 1, .places = 1};
    if (v->n < 1 || v->n > SPATIAL_MAX || w->rank != x->rank)
        return fe_fail(c, "operands are %s and %s", ir_type_text(c->im->ctx, x),
                       ir_type_text(c->im->ctx, w));
    for (int i = 0; i < v->n; i++) {
        v->in[i] = x->dim[i + 2];
        v->kernel[i] = w->dim[i + 2];
        v->stride[i] = listed(stride, ns, i, 1);
        v->gap[i] = listed(gap, ng, i, 1);
        v->before[i] = listed(pad, np, i, 0);
        v->after[i] = listed(pad, np, i + v->n, 0);
        if (!in_range(v, i))
            return fe_fail(c, "a size, stride, dilation or padding is out of range");
        if (!strncmp(how, "SAME", 4))
            auto_pad(v, i, !strcmp(how, "SAME_LOWER"));
        int64_t reach = (v->kernel[i] - 1) * v->gap[i] + 1;
        int64_t room = v->in[i] + v->before[i] + v->after[i] - reach;
        if (room < 0)
            return fe_fail(c, "the kernel is larger than its operand");
        v->out[i] = room / v->stride[i] + 1;
        v->taps *= v->kernel[i];
        v->places *= v->out[i];
        v->padded |= v->before[i] || v->after[i];
        if (v->taps > FE_FOLD_MAX || v->places > FE_FOLD_MAX)
            return fe_fail(c, "more than %d elements", FE_FOLD_MAX);
    }
    return true;
}

/* Which element each tap reads at each place, [taps, places]; that behind the last is the
 * zero of the padding. */
static fe_val *
reads_of(fe_call *c, const conv *v)
{
    int64_t dim[] = {v->taps * v->places}, whole = 1;
    double *x = fe_room(c, dim[0]);
    for (int i = 0; i < v->n; i++)
        whole *= v->in[i];
    for (int64_t k = 0; x && k < dim[0]; k++) {
        int64_t tap = k / v->places, place = k % v->places, at = 0, stride = 1;
        bool inside = true;
        for (int i = v->n - 1; i >= 0; i--) {
            int64_t y = place % v->out[i] * v->stride[i] +
                        tap % v->kernel[i] * v->gap[i] - v->before[i];
            inside &= y >= 0 && y < v->in[i];
            at += y * stride;
            stride *= v->in[i];
            tap /= v->kernel[i];
            place /= v->out[i];
        }
        x[k] = (double)(inside ? at : whole);
    }
    return x ? fe_known_val(c->im, fe_type(c, IR_I64, 1, dim), x) : NULL;
}

/* Gathers what each place reads as a column, [batch, group, channels taps, places], and
 * multiplies it with the weight, [group, out, channels taps]. */
bool
op_conv(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *w = x ? fe_in(c, 1) : NULL;
    conv v;
    if (!w || !conv_of(c, x->type, w->type, &v))
        return false;
    int64_t groups = fe_attr_i(c, "group", 1), batch = x->type->dim[0];
    int64_t channels = x->type->dim[1], out = w->type->dim[0], whole = 1;
    if (groups < 1 || channels % groups || out % groups ||
        w->type->dim[1] != channels / groups)
        return fe_fail(c, "operands %s and %s do not fit %lld groups",
                       ir_type_text(c->im->ctx, x->type),
                       ir_type_text(c->im->ctx, w->type), (long long)groups);
    for (int i = 0; i < v.n; i++)
        whole *= v.in[i];
    x = fe_reshape(c, x, 3, (int64_t[]){batch, channels, whole});
    const ir_type *edge = fe_type(c, IR_F32, 3, (int64_t[]){batch, channels, 1});
    fe_val *wide[] = {x, v.padded ? fe_splat(c, edge, 0) : NULL};
    x = fe_gather(c, v.padded ? fe_concat(c, 2, wide, 2) : x, reads_of(c, &v), 2);
    int64_t rows = channels / groups * v.taps;
    x = fe_reshape(c, x, 4, (int64_t[]){batch, groups, rows, v.places});
    w = fe_reshape(c, w, 3, (int64_t[]){groups, out / groups, rows});
    int64_t dim[SPATIAL_MAX + 2] = {batch, out}, bias[SPATIAL_MAX + 1] = {out, 1, 1, 1};
    memcpy(dim + 2, v.out, sizeof *dim * (size_t)v.n);
    fe_val *y = fe_reshape(c, matmul(c, w, x, false, false), v.n + 2, dim);
    if (y && fe_has(c, 2))
        y = fe_ew2(c, IR_OP_add, y, fe_reshape(c, fe_in(c, 2), v.n + 1, bias));
    return fe_result(c, y);
}
