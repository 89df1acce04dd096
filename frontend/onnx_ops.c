/* onnx_ops.c -- arithmetic operators as ops of the IR.
 *
 * A builder reads its operands, emits ops and leaves its results in c->out; false: said
 * why. Faults in operands that a shape rule of the IR finds need no check here.
 */
#include "ops_int.h"

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

static fe_val *
where(fe_call *c, fe_val *cond, fe_val *yes, fe_val *no)
{
    return fe_emit(c, IR_OP_where, 3, (fe_val *[]){cond, yes, no}, 0, NULL, NULL);
}

/* x without its fraction; integers have none. */
static fe_val *
truncated(fe_call *c, fe_val *x)
{
    if (!x || !ir_dtypes[x->type->dtype].is_float)
        return x;
    return where(c, fe_with(c, IR_OP_lt, x, 0), fe_ew1(c, IR_OP_ceil, x),
                 fe_ew1(c, IR_OP_floor, x));
}

/* Remainder with the sign of the dividend (fmod) or the divisor. What is within (-b, b) stays
 * as it is: b may be infinite. */
bool
op_mod(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    if (!a || !b)
        return false;
    bool fmod = fe_attr_i(c, "fmod", 0) != 0;
    ir_dtype d = a->type->dtype;
    fe_val *rest =
        fe_ew2(c, IR_OP_sub, a,
               fe_ew2(c, IR_OP_mul, b, truncated(c, fe_ew2(c, IR_OP_div, a, b))));
    fe_val *small =
        fe_ew2(c, IR_OP_lt, fe_ew1(c, IR_OP_abs, a), fe_ew1(c, IR_OP_abs, b));
    if (ir_dtypes[d].is_float)
        rest = where(c, small, a, rest);
    if (fmod || !rest)
        return fe_result(c, rest);
    fe_val *zero = fe_num(c, d, 0);
    fe_val *wrong_sign = fe_ew2(c, IR_OP_lt, fe_ew2(c, IR_OP_mul, rest, b), zero);
    return fe_result(c, where(c, wrong_sign, fe_ew2(c, IR_OP_add, rest, b), rest));
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

/* Dropout of x. Where its rows are none of tokens or samples it stays x, which the report
 * tells. */
static fe_val *
dropped(fe_call *c, fe_val *x, double ratio)
{
    fe_imp *im = c->im;
    ir_builder b = ir_end(im->block, c->n->loc);
    ir_value *v = fe_place(im, x), *keys = ir_drop_keys(im->m, im->batch, im->seq);
    if (!v || !keys || !ir_drop_keys_fit(keys, v->type)) {
        im->nundropped++;
        return v ? x : NULL;
    }
    ir_attr attr[2] = {ir_attr_f(IR_ATTR_p, ratio),
                       ir_attr_i(IR_ATTR_site, im->ndropped++)};
    ir_value *arg[3] = {v, ir_drop_keys_of(&b, keys, v->type), ir_drop_key(im->m)};
    return fe_ir_val(
        im, ir_emit(&b, IR_OP_dropout, fe_base_name(im, c->n), 3, arg, 2, attr, NULL));
}

/* Of a file that was exported in training mode; else it is nothing. Its mask is not there. */
bool
op_dropout(fe_call *c)
{
    double training = 0, ratio = 0.5;
    fe_val *x = fe_in(c, 0);
    if (!x || (fe_has(c, 2) && !fe_num_in(c, 2, "training_mode", &training)) ||
        (fe_has(c, 1) && !fe_num_in(c, 1, "ratio", &ratio)))
        return false;
    bool drops = training != 0 && ratio != 0;
    if (ratio < 0 || ratio >= 1)
        return fe_fail(c, "its ratio is %s, expected 0 <= ratio < 1", ef_ftoa(ratio));
    if (c->n->nout > 1 && *c->n->out[1]) {
        if (drops && fe_users_of(c->im->main, c->n->out[1])->node.n)
            return fe_fail(c, "its mask is read, which is not supported");
        c->out[1] = fe_splat(
            c, ir_type_with(c->im->ctx, x->type, c->opset < 10 ? IR_F32 : IR_BOOL), 1);
    }
    return fe_result(c, drops ? dropped(c, x, ratio) : x);
}
