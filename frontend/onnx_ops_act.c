/* onnx_ops_act.c -- activations and other elementwise operators that are formulas of several
 * ops.
 *
 * Where a formula has two branches, the one that is not taken is kept finite, so that its
 * gradient, which is multiplied with 0, is 0 and not NaN.
 */
#include "ops_int.h"

#include <math.h>
#include <string.h>

static fe_val *
sigmoid(fe_call *c, fe_val *x)
{
    return fe_ew1(c, IR_OP_sigmoid, x);
}

/* x sigmoid(alpha x) */
static fe_val *
swish(fe_call *c, fe_val *x, double alpha)
{
    if (alpha == 1)
        return fe_ew1(c, IR_OP_silu, x);
    return fe_ew2(c, IR_OP_mul, x, sigmoid(c, fe_with(c, IR_OP_mul, x, alpha)));
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)) */
static fe_val *
softplus(fe_call *c, fe_val *x)
{
    fe_val *e = fe_ew1(c, IR_OP_exp, fe_ew1(c, IR_OP_neg, fe_ew1(c, IR_OP_abs, x)));
    return fe_ew2(c, IR_OP_add, fe_with(c, IR_OP_max, x, 0),
                  fe_ew1(c, IR_OP_log, fe_with(c, IR_OP_add, e, 1)));
}

static fe_val *
hard_sigmoid(fe_call *c, fe_val *x, double alpha, double beta)
{
    fe_val *line = fe_with(c, IR_OP_add, fe_with(c, IR_OP_mul, x, alpha), beta);
    return fe_with(c, IR_OP_min, fe_with(c, IR_OP_max, line, 0), 1);
}

static fe_val *
where(fe_call *c, fe_val *cond, fe_val *yes, fe_val *no)
{
    return fe_emit(c, IR_OP_where, 3, (fe_val *[]){cond, yes, no}, 0, NULL, NULL);
}

/* below(x) where x < 0, else x */
static fe_val *
bent(fe_call *c, fe_val *x, fe_val *below)
{
    return where(c, fe_with(c, IR_OP_lt, x, 0), below, x);
}

/* alpha (exp(x / beta) - 1), of min(x, 0) */
static fe_val *
exp_below(fe_call *c, fe_val *x, double alpha, double beta)
{
    fe_val *low = fe_with(c, IR_OP_min, x, 0);
    fe_val *e = fe_ew1(c, IR_OP_exp, fe_with(c, IR_OP_div, low, beta));
    return fe_with(c, IR_OP_mul, fe_with(c, IR_OP_sub, e, 1), alpha);
}

bool
op_softplus(fe_call *c)
{
    return fe_result(c, softplus(c, fe_in(c, 0)));
}

bool
op_softsign(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    fe_val *size = fe_with(c, IR_OP_add, fe_ew1(c, IR_OP_abs, x), 1);
    return fe_result(c, fe_ew2(c, IR_OP_div, x, size));
}

bool
op_mish(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *t = fe_ew1(c, IR_OP_tanh, softplus(c, x));
    return fe_result(c, fe_ew2(c, IR_OP_mul, x, t));
}

bool
op_leaky_relu(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    double alpha = fe_attr_f(c, "alpha", 0.01f);
    return fe_result(c, bent(c, x, fe_with(c, IR_OP_mul, x, alpha)));
}

bool
op_prelu(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *slope = x ? fe_in(c, 1) : NULL;
    return fe_result(c, bent(c, x, fe_ew2(c, IR_OP_mul, x, slope)));
}

bool
op_elu(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    return fe_result(c, bent(c, x, exp_below(c, x, fe_attr_f(c, "alpha", 1), 1)));
}

bool
op_celu(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    double alpha = fe_attr_f(c, "alpha", 1);
    return fe_result(c, bent(c, x, exp_below(c, x, alpha, alpha)));
}

bool
op_selu(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    double alpha = fe_attr_f(c, "alpha", 1.67326319217681884765625);
    double gamma = fe_attr_f(c, "gamma", 1.05070102214813232421875);
    return fe_result(
        c, fe_with(c, IR_OP_mul, bent(c, x, exp_below(c, x, alpha, 1)), gamma));
}

bool
op_thresholded_relu(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    fe_val *above = fe_with(c, IR_OP_gt, x, fe_attr_f(c, "alpha", 1));
    return x && fe_result(c, where(c, above, x, fe_num(c, x->type->dtype, 0)));
}

bool
op_hard_sigmoid(fe_call *c)
{
    return fe_result(c, hard_sigmoid(c, fe_in(c, 0), fe_attr_f(c, "alpha", 0.2f),
                                     fe_attr_f(c, "beta", 0.5)));
}

bool
op_hard_swish(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    return fe_result(
        c, fe_ew2(c, IR_OP_mul, x, hard_sigmoid(c, x, (double)(1 / 6.0f), 0.5)));
}

bool
op_swish(fe_call *c)
{
    return fe_result(c, swish(c, fe_in(c, 0), fe_attr_f(c, "alpha", 1)));
}

/* onnxruntime calls SiLU QuickGelu, with alpha 1. */
bool
op_quick_gelu(fe_call *c)
{
    return fe_result(c, swish(c, fe_in(c, 0), fe_attr_f(c, "alpha", 1.702f)));
}

/* Gelu, BiasGelu and FastGelu of com.microsoft: the bias is operand 1, if there is one. */
bool
op_bias_gelu(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    if (x && fe_has(c, 1))
        x = fe_ew2(c, IR_OP_add, x, fe_in(c, 1));
    return fe_result(c, fe_ew1(c, c->row->code, x));
}

/* By name: what FusedGemm does to its result. */
fe_val *
fe_activation(fe_call *c, const char *name, fe_val *x)
{
    static const struct {
        const char *name;
        ir_opcode code;
    } rows[] = {{"Relu", IR_OP_relu},
                {"Tanh", IR_OP_tanh},
                {"Sigmoid", IR_OP_sigmoid},
                {"Gelu", IR_OP_gelu}};
    for (size_t i = 0; i < EF_COUNT(rows); i++)
        if (!strcmp(rows[i].name, name))
            return fe_ew1(c, rows[i].code, x);
    if (!strcmp(name, "LeakyRelu"))
        return bent(c, x,
                    fe_with(c, IR_OP_mul, x, fe_attr_f(c, "activation_alpha", 0.01f)));
    fe_fail(c, "activation '%s' is not supported", name);
    return NULL;
}

/* ---- arithmetic ---- */

/* Halves go to the even neighbour. */
bool
op_round(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *down = fe_ew1(c, IR_OP_floor, x);
    fe_val *rest = fe_ew2(c, IR_OP_sub, x, down);
    fe_val *half = fe_ew1(c, IR_OP_floor, fe_with(c, IR_OP_mul, down, 0.5));
    fe_val *odd = fe_ew2(c, IR_OP_gt, down, fe_with(c, IR_OP_mul, half, 2));
    fe_val *tie = fe_with(c, IR_OP_eq, rest, 0.5);
    fe_val *up = fe_ew2(c, IR_OP_or, fe_with(c, IR_OP_gt, rest, 0.5),
                        fe_ew2(c, IR_OP_and, tie, odd));
    return fe_result(c, where(c, up, fe_with(c, IR_OP_add, down, 1), down));
}

bool
op_sign(fe_call *c)
{
    fe_val *x = fe_in(c, 0);
    if (!x)
        return false;
    ir_dtype d = x->type->dtype;
    fe_val *rest =
        where(c, fe_with(c, IR_OP_lt, x, 0), fe_num(c, d, -1), fe_num(c, d, 0));
    return fe_result(c, where(c, fe_with(c, IR_OP_gt, x, 0), fe_num(c, d, 1), rest));
}

bool
op_isinf(fe_call *c)
{
    fe_val *x = fe_in(c, 0), *is = NULL;
    bool up = fe_attr_i(c, "detect_positive", 1) != 0;
    bool down = fe_attr_i(c, "detect_negative", 1) != 0;
    if (up)
        is = fe_with(c, IR_OP_eq, x, INFINITY);
    if (down) {
        fe_val *low = fe_with(c, IR_OP_eq, x, -INFINITY);
        is = is ? fe_ew2(c, IR_OP_or, is, low) : low;
    }
    if (!up && !down && x) /* nothing is below -infinity */
        is = fe_with(c, IR_OP_lt, x, -INFINITY);
    return fe_result(c, is);
}

bool
op_xor(fe_call *c)
{
    fe_val *a = fe_in(c, 0), *b = a ? fe_in(c, 1) : NULL;
    if (!b)
        return false;
    if (a->type->dtype != IR_BOOL || b->type->dtype != IR_BOOL)
        return fe_fail(c, "operands are %s and %s, expected bool",
                       ir_type_text(c->im->ctx, a->type),
                       ir_type_text(c->im->ctx, b->type));
    fe_val *both = fe_ew2(c, IR_OP_and, a, b), *any = fe_ew2(c, IR_OP_or, a, b);
    return fe_result(c, fe_ew2(c, IR_OP_and, any, fe_ew1(c, IR_OP_not, both)));
}

/* The mean of any number of operands. */
bool
op_mean(fe_call *c)
{
    fe_val *v = fe_in(c, 0);
    for (int i = 1; v && i < c->n->nin; i++) {
        fe_val *more = fe_in(c, i);
        v = more ? fe_ew2(c, IR_OP_add, v, more) : NULL;
    }
    return fe_result(c, c->n->nin < 2 ? v : fe_with(c, IR_OP_div, v, c->n->nin));
}
