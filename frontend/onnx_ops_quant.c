/* onnx_ops_quant.c -- weights that are stored as small integers and frozen.
 *
 * Integers of a file are known, so their floats are computed while the model is imported:
 * what is left is a constant, to which adapters can be added.
 */
#include "ops_int.h"

#include <string.h>

/* A weight that this operator reads as numbers. */
static fe_val *
known_in(fe_call *c, int i)
{
    const fe_tensor *t =
        fe_has(c, i) ? ef_map_get(&c->im->f->inits, c->n->in[i]) : NULL;
    return t ? fe_load_known(c, t) : fe_in(c, i);
}

/* A scale or zero point of x: one number, a vector along axis, or one for each block of
 * `block` elements along axis; in the shape of x or to be broadcast to it. */
static fe_val *
spread(fe_call *c, fe_val *s, const ir_type *x, int axis, int64_t block)
{
    if (!s || ir_type_count(s->type) == 1)
        return s ? fe_reshape(c, s, 0, x->dim) : NULL;
    int64_t dim[IR_MAX_RANK + 1];
    int rank = x->rank;
    if (!block) {
        for (int i = 0; i < rank; i++)
            dim[i] = i == axis ? x->dim[i] : 1;
        return fe_reshape(c, s, rank, dim);
    }
    if (rank >= IR_MAX_RANK || s->type->rank != rank) {
        fe_fail(c, "scale %s does not fit", ir_type_text(c->im->ctx, s->type));
        return NULL;
    }
    int64_t blocks = s->type->dim[axis], own[IR_MAX_RANK];
    if (!ir_dims_ok(2, (int64_t[]){blocks, block})) {
        fe_fail(c, "block_size is %lld", (long long)block);
        return NULL;
    }
    for (int i = 0, k = 0; i < rank; i++) {
        own[i] = s->type->dim[i];
        dim[k++] = own[i];
        if (i == axis)
            dim[k++] = 1;
    }
    s = fe_reshape(c, s, rank + 1, dim);
    dim[axis + 1] = block;
    own[axis] = blocks * block;
    s = fe_reshape(c, fe_expand(c, s, rank + 1, dim), rank, own);
    return s ? fe_slice(c, s, axis, 0, 1, x->dim[axis]) : NULL;
}

/* (x - zero point) scale */
bool
op_dequantize(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *scale = !x        ? NULL
                                      : x->data ? known_in(c, 1)
                                                : fe_in(c, 1);
    int axis = 0;
    int64_t block = fe_attr_i(c, "block_size", 0);
    if (!scale)
        return false;
    bool one = ir_type_count(scale->type) == 1;
    if (!one && !fe_axis(c, fe_attr_i(c, "axis", 1), x->type->rank, &axis))
        return false;
    const ir_type *t = x->type;
    x = fe_convert(c, x, IR_F32);
    if (fe_has(c, 2)) {
        fe_val *zero = spread(c, fe_in(c, 2), t, axis, block);
        x = fe_ew2(c, IR_OP_sub, x, fe_convert(c, zero, IR_F32));
    }
    return fe_result(c, fe_ew2(c, IR_OP_mul, x, spread(c, scale, t, axis, block)));
}

/* ---- MatMulNBits ---- */

typedef struct blocks { /* B is [n, count, block bits / 8] bytes */
    int64_t k, n, bits, size, count;
} blocks;

/* Number i of a row of bytes, the low bits first. */
static double
packed(const double *byte, int64_t bits, int64_t i)
{
    unsigned b = (unsigned)(int)byte[i * bits / 8] & 255;
    return (double)(b >> i * bits % 8 & ((1u << bits) - 1));
}

/* Zero points of row r: packed in bytes, or floats; absent: half of the range. */
static double
zero_of(const fe_val *zero, const blocks *b, int64_t r, int64_t block)
{
    if (!zero)
        return (double)(1 << (b->bits - 1));
    if (ir_dtypes[zero->type->dtype].is_float)
        return zero->data[r * b->count + block];
    int64_t bytes = (b->count * b->bits + 7) / 8;
    return packed(zero->data + r * bytes, b->bits, block);
}

/* The matrix [k, n], known. */
static fe_val *
unpack(fe_call *c, const blocks *b, fe_val *const *v)
{
    const fe_val *w = v[1], *scale = v[2], *zero = v[3];
    int64_t bytes = b->size * b->bits / 8;
    double *x = fe_room(c, b->k * b->n);
    for (int64_t r = 0; x && r < b->n; r++)
        for (int64_t i = 0; i < b->k; i++) {
            int64_t block = i / b->size;
            const double *at = w->data + (r * b->count + block) * bytes;
            double q = packed(at, b->bits, i % b->size);
            x[i * b->n + r] = ir_round(IR_F32, (q - zero_of(zero, b, r, block)) *
                                                   scale->data[r * b->count + block]);
        }
    if (!x)
        return NULL;
    fe_val *m = fe_known_val(c->im, fe_type(c, IR_F32, 2, (int64_t[]){b->k, b->n}), x);
    m->name = c->n->in[1];
    return m;
}

/* Are the operands known, and of the sizes that the attributes say? */
static bool
check_blocks(fe_call *c, const blocks *b, fe_val *const *v)
{
    bool sane = (b->bits == 2 || b->bits == 4 || b->bits == 8) && b->size > 0 &&
                b->k > 0 && b->n > 0 &&
                ir_dims_ok(3, (int64_t[]){b->n, b->count, b->size}) &&
                b->size * b->bits % 8 == 0;
    if (!sane || fe_has(c, 4))
        return fe_fail(c,
                       "%lld bits in blocks of %lld, %lld x %lld%s, are not supported",
                       (long long)b->bits, (long long)b->size, (long long)b->k,
                       (long long)b->n, fe_has(c, 4) ? ", in another order" : "");
    int64_t want[] = {0, b->n * b->count * b->size * b->bits / 8, b->n * b->count,
                      b->n * ((b->count * b->bits + 7) / 8)};
    for (int i = 1; i < 4; i++) {
        if (i == 3 && !v[3])
            continue;
        bool whole = i == 3 && ir_dtypes[v[3]->type->dtype].is_float;
        if (!v[i]->data)
            return fe_fail(c, "operand %d depends on the data", i);
        if (i == 1 && ir_dtypes[v[i]->type->dtype].is_float)
            return fe_fail(c, "operand 1 is not of integers");
        if (ir_type_count(v[i]->type) != (whole ? want[2] : want[i]))
            return fe_fail(c, "operand %d is %s", i,
                           ir_type_text(c->im->ctx, v[i]->type));
    }
    return true;
}

/* (A, B, scales, zero points, order, bias) */
bool
op_matmul_nbits(fe_call *c)
{
    blocks b = {fe_attr_i(c, "K", 0), fe_attr_i(c, "N", 0), fe_attr_i(c, "bits", 4),
                fe_attr_i(c, "block_size", 0), 0};
    b.count = b.size > 0 ? b.k / b.size + (b.k % b.size > 0) : 0;
    fe_val *v[4] = {fe_in(c, 0)};
    if (fe_attr_i(c, "weight_prepacked", 0))
        return fe_fail(c, "weights in the order of a device are not supported");
    for (int i = 1; i < 4; i++) {
        if (i < 3 || fe_has(c, 3))
            v[i] = known_in(c, i);
        if (!v[0] || (!v[i] && (i < 3 || fe_has(c, 3))))
            return false;
    }
    if (!check_blocks(c, &b, v))
        return false;
    fe_val *y = fe_emit(c, IR_OP_matmul, 2, (fe_val *[]){v[0], unpack(c, &b, v)}, 0,
                        NULL, NULL);
    if (y && fe_has(c, 5))
        y = fe_ew2(c, IR_OP_add, y, fe_in(c, 5));
    return fe_result(c, y);
}
