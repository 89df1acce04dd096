/* onnx_ops_rotary.c -- rotary position embeddings.
 *
 * Written as x cos + rotate(x) sin, as Hugging Face's models are exported: pass recognise
 * knows that form. Tables hold half of the turned columns.
 */
#include "attention_int.h"

#include <math.h>

/* Columns 0, 1, 2, 3 of [.., r] as 1, 0, 3, 2 (pairs), or its halves exchanged, with the
 * sign that a rotation by 90 degrees gives. */
static fe_val *
quarter_turn(fe_call *c, fe_val *x, bool pairs)
{
    if (!x)
        return NULL;
    int last = x->type->rank - 1;
    int64_t half = x->type->dim[last] / 2, dim[IR_MAX_RANK];
    for (int i = 0; i < last; i++)
        dim[i] = x->type->dim[i];
    dim[last] = half;
    dim[last + 1] = 1;
    int step = pairs ? 2 : 1;
    fe_val *a = fe_slice(c, x, last, 0, step, half);
    fe_val *b =
        fe_ew1(c, IR_OP_neg, fe_slice(c, x, last, pairs ? 1 : half, step, half));
    if (!pairs)
        return fe_concat(c, 2, (fe_val *[]){b, a}, last);
    fe_val *two[] = {fe_reshape(c, b, last + 2, dim), fe_reshape(c, a, last + 2, dim)};
    return two[0] && two[1]
               ? fe_reshape(c, fe_concat(c, 2, two, last + 1), last + 1, x->type->dim)
               : NULL;
}

/* [.,S,r/2] as [.,1,S,r], every number for both of the columns that it turns. */
static fe_val *
both_columns(fe_call *c, fe_val *t, bool pairs)
{
    if (!t)
        return NULL;
    int64_t rows = t->type->dim[0], s = t->type->dim[1], half = t->type->dim[2];
    if (!pairs) {
        t = fe_concat(c, 2, (fe_val *[]){t, t}, 2);
        return fe_reshape(c, t, 4, (int64_t[]){rows, 1, s, 2 * half});
    }
    t = fe_reshape(c, t, 4, (int64_t[]){rows, s, half, 1});
    t = fe_expand(c, t, 4, (int64_t[]){rows, s, half, 2});
    return fe_reshape(c, t, 4, (int64_t[]){rows, 1, s, 2 * half});
}

fe_val *
fe_rotate(fe_call *c, fe_val *x, fe_val *cos, fe_val *sin, bool pairs)
{
    if (!x || !cos || !sin)
        return NULL;
    int64_t width = x->type->rank == 4 ? x->type->dim[3] : 0;
    int64_t r = 2 * cos->type->dim[2];
    if (r > width || r < 1 || sin->type != cos->type) {
        fe_fail(c, "tables %s and %s for heads of %lld columns",
                ir_type_text(c->im->ctx, cos->type),
                ir_type_text(c->im->ctx, sin->type), (long long)width);
        return NULL;
    }
    fe_val *turned = fe_slice(c, x, 3, 0, 1, r);
    fe_val *y = fe_ew2(c, IR_OP_mul, turned, both_columns(c, cos, pairs));
    y = fe_ew2(c, IR_OP_add, y,
               fe_ew2(c, IR_OP_mul, quarter_turn(c, turned, pairs),
                      both_columns(c, sin, pairs)));
    fe_val *parts[] = {y, r < width ? fe_slice(c, x, 3, r, 1, width - r) : NULL};
    return y && r < width ? fe_concat(c, 2, parts, 3) : y;
}

/* Rows of a table [P,r/2] at positions [.,S], or the table itself, [.,S,r/2]. */
static fe_val *
angles(fe_call *c, int i, fe_val *at)
{
    fe_val *t = fe_in(c, i);
    if (!t)
        return NULL;
    if (at ? t->type->rank == 2 && at->type->rank == 2 : t->type->rank == 3)
        return at ? fe_gather(c, t, at, 0) : t;
    fe_fail(c, "table %d is %s", i, ir_type_text(c->im->ctx, t->type));
    return NULL;
}

/* Operand 0 with its heads apart; *flat: it came as [B,S,heads*d]. */
static fe_val *
heads_of(fe_call *c, int64_t width, bool *flat)
{
    fe_val *x = fe_in(c, 0);
    if (!x)
        return NULL;
    int64_t heads = fe_attr_i(c, "num_heads", 0);
    *flat = x->type->rank == 3;
    if (*flat && !heads && width) /* as onnxruntime: whole heads are turned */
        heads = x->type->dim[2] / width;
    return fe_heads(c, x, heads);
}

/* (X, cos, sin, positions) */
bool
op_rotary(fe_call *c)
{
    bool flat;
    fe_val *at = fe_has(c, 3) ? fe_in(c, 3) : NULL, *x = heads_of(c, 0, &flat);
    if (!x || (fe_has(c, 3) && !at))
        return false;
    fe_val *cos = angles(c, 1, at), *sin = cos ? angles(c, 2, at) : NULL;
    int64_t r = fe_attr_i(c, "rotary_embedding_dim", 0);
    if (sin && 2 * cos->type->dim[2] != (r ? r : x->type->dim[3]))
        return fe_fail(c, "the tables have %lld columns", (long long)cos->type->dim[2]);
    fe_val *y = fe_rotate(c, x, cos, sin, fe_attr_i(c, "interleaved", 0) != 0);
    return fe_result(c, flat ? fe_merge_heads(c, y) : y);
}

/* com.microsoft: (input, positions, cos, sin); one position is that of the first token. */
bool
op_ms_rotary(fe_call *c)
{
    bool flat;
    fe_val *at = fe_in(c, 1), *table = at ? fe_in(c, 2) : NULL;
    if (!table || table->type->rank != 2)
        return table &&
               fe_fail(c, "the table is %s", ir_type_text(c->im->ctx, table->type));
    fe_val *x = heads_of(c, 2 * table->type->dim[1], &flat);
    if (!x)
        return false;
    if (fe_attr_f(c, "scale", 1) != 1 || fe_attr_i(c, "is_packed_batching", 0))
        return fe_fail(c, "scale and is_packed_batching are not supported");
    if (ir_type_count(at->type) == 1)
        at = fe_ew2(c, IR_OP_add, fe_count_up(c, x->type->dim[2]),
                    fe_reshape(c, at, 1, (int64_t[]){1}));
    if (at && at->type->rank == 1)
        at = fe_reshape(c, at, 2, (int64_t[]){1, x->type->dim[2]});
    fe_val *y = fe_rotate(c, x, angles(c, 2, at), angles(c, 3, at),
                          fe_attr_i(c, "interleaved", 0) != 0);
    return fe_result(c, flat ? fe_merge_heads(c, y) : y);
}
