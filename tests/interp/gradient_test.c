/* gradient_test.c -- every gradient rule against central differences.
 *
 * A case is a few lines of IR that end in `ret %y`. If y is not a scalar, the loss is its
 * inner product with a fixed random tensor, so that dy is different everywhere. Pass grad
 * makes the gradients; the interpreter runs in unrounded double, so differences are good to
 * about 1e-8. One test walks adjoints.def, another fails if a rule of ops.def has no case.
 */
#include "noise.h"
#include "test.h"

#include "passes/pass.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct rule_case {
    const char *params, *body; /* units and blocks are added */
    double low, high;          /* range of the params' elements; 0, 0: [-1.5, 1.5] */
} rule_case;

/* In (0, 1), different for every (name, i). */
static double
noise(const char *name, int64_t i)
{
    return ((double)(noise_bits(name, i) >> 12) + 0.5) * 0x1p-52;
}

/* y of `ret y` becomes loss = sum(y * probe). */
static void
add_loss(ir_module *m)
{
    ir_op *ret = m->step->last->last;
    ir_value *y = ret->arg[0];
    if (!y->type->rank)
        return;
    int64_t axes[] = {0, 1, 2, 3, 4, 5, 6, 7};
    ir_builder b = ir_at(ret);
    ir_param *probe = ir_param_new(m, "probe", y->type, IR_FROZEN, 0);
    probe->init = IR_INIT_ZERO; /* filled with noise, as all params */
    ir_attr all = ir_attr_l(IR_ATTR_axes, y->type->rank, axes);
    ir_value *p = ir_ew2(&b, IR_OP_mul, "probed", y, probe->value);
    ir_set_arg(ret, 0, ir_emit(&b, IR_OP_reduce_sum, "loss", 1, &p, 1, &all, NULL));
}

static ir_module *
module_of(ef_ctx *ctx, const rule_case *c)
{
    char text[4096];
    snprintf(
        text, sizeof text,
        "efficc-ir 1\n\nunit 0 \"all\"\n\n%s\nfunc $step() {\n@all: fwd unit=0\n%s}\n",
        c->params, c->body);
    ir_module *m = ir_parse(ctx, "case", text);
    NEED(m != NULL);
    add_loss(m);
    return m;
}

static double
loss_of(const ir_module *m, ir_env *env)
{
    ir_env_zero_grads(m, env);
    NEED(ir_interp(m->step, 1u << IR_FWD | 1u << IR_BWD, env));
    return ir_env_get(env, m->step->last->last->arg[0])->data[0];
}

static void
fill(const ir_module *m, ir_env *env, const rule_case *c)
{
    double low = c->low, high = c->high;
    if (low == high)
        low = -1.5, high = 1.5;
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        if (p->init == IR_INIT_VALUES || p->cls == IR_GRAD)
            continue;
        ir_tensor *t = ir_env_new(env, p->value);
        for (int64_t k = 0; k < ir_type_count(t->type); k++)
            t->data[k] = low + (high - low) * noise(p->value->name, k);
    }
}

/* Every element of every gradient buffer against (f(x+h) - f(x-h)) / 2h. */
static void
compare(const ir_module *m, ir_env *env, const char *what)
{
    const double h = 1e-5;
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *g = m->params.at[i];
        if (g->cls != IR_GRAD)
            continue;
        ir_tensor *x = ir_env_get(env, g->of->value);
        int64_t n = ir_type_count(x->type);
        loss_of(m, env);
        double *got = ef_dup(env->arena, ir_env_get(env, g->value)->data,
                             sizeof *got * (size_t)n);
        for (int64_t k = 0; k < n; k++) {
            double at = x->data[k];
            x->data[k] = at + h;
            double up = loss_of(m, env);
            x->data[k] = at - h;
            double down = loss_of(m, env);
            x->data[k] = at;
            double want = (up - down) / (2 * h);
            if (!(fabs(got[k] - want) <= 1e-7 * (1 + fabs(want))))
                printf("  %s: gradient of $%s[%d]\n", what, g->of->value->name, (int)k);
            CHECK_NEAR(got[k], want, 1e-7 * (1 + fabs(want)));
        }
    }
}

/* Number of params that got a gradient. */
static int
check_case(const rule_case *c)
{
    ef_ctx *ctx = ef_ctx_new();
    ctx->report = NULL;
    ir_module *m = module_of(ctx, c);
    pass_ctx pc = {.m = m, .scratch = ef_arena_new()};
    NEED(pass_grad(&pc));
    CHECK(ir_verify(m) == 0);
    ir_env env = {.arena = ef_arena_new(), .exact = true};
    fill(m, &env, c);
    compare(m, &env, c->body);
    int trained = 0;
    for (int i = 0; i < m->params.n; i++)
        trained += m->params.at[i]->cls == IR_GRAD;
    ef_arena_free(env.arena);
    ef_arena_free(pc.scratch);
    ir_module_free(m);
    ef_ctx_free(ctx);
    return trained;
}

/* ---- adjoints.def ---- */

typedef struct row {
    const char *op;
    int arity, k;
} row;

#define EW(name, arity, out, formula) {#name, arity, 0},
static const row formulas[] = {
#include "ir/elementwise.def"
};
#undef EW
#define ADJ(op, k, via, x, y, z) {#op, 0, k},
static const row adjoints[] = {
#include "ir/adjoints.def"
};

static int
arity_of(const char *op)
{
    for (size_t i = 0; i < EF_COUNT(formulas); i++)
        if (!strcmp(formulas[i].op, op))
            return formulas[i].arity;
    return 0;
}

/* Operand k of op is trained, the others are not; shape[i] of operand i. */
static void
check_adjoint(const row *r, const char *const *shape)
{
    char params[512] = "", body[256];
    bool where = !strcmp(r->op, "where");
    int n = arity_of(r->op), at = 0;
    NEED(n > 0);
    for (int i = 0; i < n; i++) {
        bool mask = where && i == 0;
        at += snprintf(
            params + at, sizeof params - (size_t)at, "param $%c : %s[%s] %s unit=0%s\n",
            'a' + i, mask ? "bool" : "f32", mask ? "2,3" : shape[i],
            i == r->k ? "train" : "frozen", mask ? " = 1 0 0 1 1 0" : " zero");
    }
    snprintf(body, sizeof body, "  %%y = %s $a%s%s : f32[2,3]\n  ret %%y\n", r->op,
             n > 1 ? ", $b" : "", n > 2 ? ", $c" : "");
    bool positive = strchr("dlprs", r->op[0]) && strcmp(r->op, "relu") &&
                    strcmp(r->op, "sub") && strcmp(r->op, "sin") &&
                    strcmp(r->op, "silu");
    rule_case c = {params, body, positive ? 0.3 : 0, positive ? 1.7 : 0};
    CHECK(check_case(&c) == 1);
}

TEST(every_adjoint_is_the_derivative)
{
    for (size_t i = 0; i < EF_COUNT(adjoints); i++)
        check_adjoint(&adjoints[i], (const char *[]){"2,3", "2,3", "2,3"});
}

TEST(adjoints_of_broadcast_operands_are_summed)
{
    for (size_t i = 0; i < EF_COUNT(adjoints); i++) {
        if (arity_of(adjoints[i].op) == 1)
            continue;
        int k = adjoints[i].k;
        const char *column[] = {"2,3", "2,3", "2,3"}, *tail[] = {"2,3", "2,3", "2,3"};
        const char *scalar[] = {"2,3", "2,3", "2,3"};
        column[k] = "2,1";
        tail[k] = "3";
        scalar[k] = "";
        check_adjoint(&adjoints[i], column);
        check_adjoint(&adjoints[i], tail);
        check_adjoint(&adjoints[i], scalar);
    }
}

/* ---- ops.def ---- */

#define P(name, shape)      "param $" name " : f32[" shape "] train unit=0 zero\n"
#define FROZEN(name, shape) "param $" name " : f32[" shape "] frozen unit=0 zero\n"
#define IDS(name, shape, values) \
    "param $" name " : i64[" shape "] const unit=0 = " values "\n"
#define ATTN "heads=2, kv_heads=2, head_dim=3, scale=0.5"

static const rule_case rules[] = {
    {P("a", "2,3"), "  %y = cast $a : f16[2,3]\n  %z = cast %y : f32[2,3]\n  ret %z\n",
     0, 0},
    {P("a", "2,3"), "  %y = reshape $a : f32[3,2]\n  ret %y\n", 0, 0},
    {P("a", "2,3,4"), "  %y = transpose $a {perm=[2,0,1]} : f32[4,2,3]\n  ret %y\n", 0,
     0},
    {P("a", "3,1"), "  %y = expand $a : f32[2,3,4]\n  ret %y\n", 0, 0},
    {P("a", "2,3") P("b", "2,1"),
     "  %y = concat $a, $b, $a {axis=1} : f32[2,7]\n  ret %y\n", 0, 0},
    {P("a", "2,6,2"),
     "  %y = slice $a {axis=1, start=1, step=2} : f32[2,3,2]\n  ret %y\n", 0, 0},
    {P("a", "5"), "  %y = slice $a {axis=0, start=4, step=-2} : f32[3]\n  ret %y\n", 0,
     0},
    {P("a", "2,3"),
     "  %y = unslice $a {axis=1, start=1, step=2} : f32[2,7]\n  ret %y\n", 0, 0},
    {P("a", "2,4,2") IDS("i", "3", "3 -1 0"),
     "  %y = gather $a, $i {axis=1} : f32[2,3,2]\n  ret %y\n", 0, 0},
    {P("a", "2,3,2") IDS("i", "3", "3 -1 0"),
     "  %y = gather_grad $a, $i {axis=1} : f32[2,4,2]\n  ret %y\n", 0, 0},
    /* products, with all transpositions and broadcasts */
    {P("a", "2,3") P("b", "3,4"), "  %y = matmul $a, $b : f32[2,4]\n  ret %y\n", 0, 0},
    {P("a", "3,2") P("b", "3,4"), "  %y = matmul $a, $b {ta=1} : f32[2,4]\n  ret %y\n",
     0, 0},
    {P("a", "2,3") P("b", "4,3"), "  %y = matmul $a, $b {tb=1} : f32[2,4]\n  ret %y\n",
     0, 0},
    {P("a", "3,2") P("b", "4,3"),
     "  %y = matmul $a, $b {ta=1, tb=1} : f32[2,4]\n  ret %y\n", 0, 0},
    {P("a", "2,5,3") P("b", "3,4"), "  %y = matmul $a, $b : f32[2,5,4]\n  ret %y\n", 0,
     0},
    {P("a", "2,5,3") P("b", "4,3"),
     "  %y = matmul $a, $b {tb=1} : f32[2,5,4]\n  ret %y\n", 0, 0},
    {P("a", "2,3,5") P("b", "3,4"),
     "  %y = matmul $a, $b {ta=1} : f32[2,5,4]\n  ret %y\n", 0, 0},
    {P("a", "2,1,2,3") P("b", "2,3,2"),
     "  %y = matmul $a, $b : f32[2,2,2,2]\n  ret %y\n", 0, 0},
    {P("a", "2,3,2") P("b", "2,1,4,3"),
     "  %y = matmul $a, $b {ta=1, tb=1} : f32[2,2,2,4]\n  ret %y\n", 0, 0},
    {P("x", "2,2,3") P("w", "3,4") P("b", "4"),
     "  %y = linear $x, $w, $b : f32[2,2,4]\n  ret %y\n", 0, 0},
    {P("x", "2,3") P("w", "4,3"), "  %y = linear $x, $w {tb=1} : f32[2,4]\n  ret %y\n",
     0, 0},
    {FROZEN("x", "2,3") P("w", "3,4"), "  %y = linear $x, $w : f32[2,4]\n  ret %y\n", 0,
     0},
    /* reductions */
    {P("a", "2,3,4"), "  %y = reduce_sum $a {axes=[0,2]} : f32[3]\n  ret %y\n", 0, 0},
    {P("a", "2,3,4"),
     "  %y = reduce_mean $a {axes=[1], keep=1} : f32[2,1,4]\n  ret %y\n", 0, 0},
    {P("a", "2,3"), "  %y = reduce_mean $a {axes=[0,1]} : f32[]\n  ret %y\n", 0, 0},
    {P("a", "2,3,4"),
     "  %y = reduce_max $a {axes=[0,2], keep=1} : f32[1,3,1]\n  ret %y\n", 0, 0},
    {P("a", "2,3"), "  %y = reduce_max $a {axes=[1]} : f32[2]\n  ret %y\n", 0, 0},
    {P("a", "2,4"), "  %y = softmax $a : f32[2,4]\n  ret %y\n", 0, 0},
    /* recognised */
    {P("t", "4,3") IDS("i", "2,2", "3 0 3 1"),
     "  %y = embed $t, $i : f32[2,2,3]\n  ret %y\n", 0, 0},
    {P("x", "3,5") P("w", "5") P("b", "5"),
     "  %y, %m, %r = layernorm $x, $w, $b {eps=1e-05} : f32[3,5], f32[3], f32[3]\n"
     "  ret %y\n",
     0, 0},
    {P("x", "3,5") P("w", "5"),
     "  %y, %r = rmsnorm $x, $w {eps=1e-05} : f32[3,5], f32[3]\n  ret %y\n", 0, 0},
    {P("q", "2,3,6") P("k", "2,3,6") P("v", "2,3,6"),
     "  %y, %l = attention $q, $k, $v {" ATTN "} : f32[2,3,6], f32[2,2,3]\n  ret %y\n",
     0, 0},
    {P("x", "2,3,18") IDS("m", "2,3", "1 1 0 1 1 1"),
     "  %y, %l = attention $x, $x, $x, $m {" ATTN
     ", causal=1, ko=6, vo=12} : f32[2,3,6], f32[2,2,3]\n  ret %y\n",
     0, 0},
    {P("q", "1,3,6") P("x", "1,3,6"), /* grouped heads; k and v are one value */
     "  %y, %l = attention $q, $x, $x {heads=2, kv_heads=1, head_dim=3, scale=0.5, "
     "vo=3} "
     ": f32[1,3,6], f32[1,2,3]\n  ret %y\n",
     0, 0},
    {P("x", "2,2,18") IDS("m", "2,2", "0 0 1 0"), /* a row without a key */
     "  %y, %l = attention $x, $x, $x, $m {" ATTN
     ", ko=6, vo=12} : f32[2,2,6], f32[2,2,2]\n  ret %y\n",
     0, 0},
    {P("x", "2,3,18"), /* heads that lie apart, a window, a soft cap */
     "  %y, %l = attention $x, $x, $x {" ATTN
     ", causal=1, ko=3, vo=6, qs=9, ks=9, vs=9, window=2, softcap=0.7} : f32[2,3,6], "
     "f32[2,2,3]\n  ret %y\n",
     0, 0},
    {P("x", "2,3,18") IDS("m", "2,3", "1 1 0 1 1 1") IDS("k", "2,3", "0 1 2 9 8 7")
         IDS("s", "", "5"),
     "  %y, %l = attention $x, $x, $x, $m, $k, $s {" ATTN
     ", causal=1, ko=6, vo=12, p=0.4, site=2} : f32[2,3,6], f32[2,2,3]\n  ret %y\n",
     0, 0},
    {P("q", "2,3,6") P("k", "2,3,6") P("v", "2,3,6") IDS("r", "2,3", "0 1 2 9 8 7")
         IDS("s", "", "5"),
     "  %y, %l = attention $q, $k, $v, $r, $s {" ATTN
     ", softcap=0.7, p=0.4} : f32[2,3,6], f32[2,2,3]\n  ret %y\n",
     0, 0},
    {P("x", "2,3,9") IDS("k", "2,3", "0 1 2 9 8 7") IDS("s", "", "5"),
     "  %y = dropout $x, $k, $s {p=0.4, site=1} : f32[2,3,9]\n  ret %y\n", 0, 0},
    {P("x", "2,3,9") FROZEN("c", "1,3,2") FROZEN("s", "1,3,2"),
     "  %y = rotary $x, $c, $s {heads=2, start=1, stride=4} : f32[2,3,9]\n  ret %y\n",
     0, 0},
    {P("x", "2,3,8") FROZEN("c", "2,3,4") FROZEN("s", "2,3,4"),
     "  %y = rotary $x, $c, $s {heads=2, inverse=1} : f32[2,3,8]\n  ret %y\n", 0, 0},
    {P("y0", "2,2,9") P("t", "2,2,2") P("b", "4,2"),
     "  %y = lora_add $y0, $t, $b {start=1, by=0.5, block=2, stride=5} : f32[2,2,9]\n"
     "  ret %y\n",
     0, 0},
    {P("y0", "2,2,7") P("t", "2,2,2") P("b", "3,2"),
     "  %y = lora_add $y0, $t, $b {start=4, by=0.5} : f32[2,2,7]\n  ret %y\n", 0, 0},
    /* losses, alone and followed by more */
    {P("x", "3,4") IDS("t", "3", "2 -100 0") FROZEN("s", ""),
     "  %l, %n, %p, %pl = ce $x, $t, $s : f32[], i64[], f32[3,4], f32[3]\n  ret %l\n",
     0, 0},
    {P("x", "3,4") IDS("t", "3", "2 -100 0") FROZEN("s", ""),
     "  %l, %n, %p, %pl = ce $x, $t, $s : f32[], i64[], f32[3,4], f32[3]\n  %y = mul "
     "%l, %l : "
     "f32[]\n"
     "  ret %y\n",
     0, 0},
    {P("x", "2,3") "param $v : f32[2,3] const unit=0 = 1 nan 0.5 -2 3 nan\n" FROZEN("s",
                                                                                    ""),
     "  %l, %e = mse $x, $v, $s : f32[], f32[2]\n  ret %l\n", 0, 0},
    {P("x", "2,3") "param $v : f32[2,3] const unit=0 = 1 nan 0.5 -2 3 nan\n" FROZEN("s",
                                                                                    ""),
     "  %l, %e = mse $x, $v, $s : f32[], f32[2]\n  %y = mul %l, %l : f32[]\n"
     "  ret %y\n",
     0, 0},
    {P("x", "2,2,3") P("w", "3,5") P("b", "5") IDS("t", "2,2", "4 -100 0 1")
         FROZEN("s", ""),
     "  %l, %n, %p, %pl = head_ce $x, $w, $t, $s, $b {chunk=2} : f32[], i64[], "
     "i64[2,2], f32[2,2]\n"
     "  ret %l\n",
     0, 0},
    {P("x", "3,3") P("w", "5,3") IDS("t", "3", "4 -100 0") FROZEN("s", ""),
     "  %l, %n, %p, %pl = head_ce $x, $w, $t, $s {tb=1, chunk=2} : f32[], i64[], "
     "i64[3], f32[3]\n"
     "  %y = exp %l : f32[]\n  ret %y\n",
     0, 0},
    {P("x", "3,3") FROZEN("w", "5,3") IDS("t", "3", "4 -100 0") FROZEN("s", ""),
     "  %l, %n, %p, %pl = head_ce $x, $w, $t, $s {tb=1, chunk=2} : f32[], i64[], "
     "i64[3], f32[3]\n"
     "  ret %l\n",
     0, 0},
};

TEST(every_rule_is_the_derivative)
{
    for (size_t i = 0; i < EF_COUNT(rules); i++)
        CHECK(check_case(&rules[i]) > 0);
}

TEST(every_rule_has_a_case)
{
    for (int code = 0; code < IR_NOPS; code++) {
        if (!pass_vjp_rule[code] || pass_vjp_rule[code] == pass_vjp_rule[IR_OP_add])
            continue;
        char call[64];
        bool found = false;
        snprintf(call, sizeof call, "= %s ", ir_ops[code].name);
        for (size_t i = 0; i < EF_COUNT(rules); i++)
            found |= strstr(rules[i].body, call) != NULL;
        if (!found)
            printf("  no case for the rule of %s\n", ir_ops[code].name);
        CHECK(found);
    }
}

/* ---- structure of what pass grad makes ---- */

TEST(shared_values_sum_their_gradients)
{
    static const rule_case c = {
        P("a", "2,3") P("b", "3"),
        "  %x = mul $a, $b : f32[2,3]\n  %u = exp %x : f32[2,3]\n"
        "  %v = mul %x, %u : f32[2,3]\n  %w = add %v, %x : f32[2,3]\n  ret %w\n",
        0, 0};
    CHECK(check_case(&c) == 2);
}

TEST(a_tied_param_has_several_accums)
{
    static const rule_case c = {P("w", "4,3") IDS("i", "2", "3 1") IDS("t", "2", "0 3")
                                    FROZEN("s", ""),
                                "  %x = embed $w, $i : f32[2,3]\n"
                                "  %l, %n, %p, %pl = head_ce %x, $w, $t, $s {tb=1, "
                                "chunk=8} : f32[], i64[], i64[2], f32[2]\n"
                                "  ret %l\n",
                                0, 0};
    CHECK(check_case(&c) == 1);
}

TEST(a_masked_softmax_has_no_nan_gradient)
{
    static const rule_case c = {
        P("a", "2,3") "param $m : bool[2,3] const unit=0 = 1 0 1 1 1 0\n",
        "  %inf = const {value=-inf} : f32[]\n  %x = where $m, $a, %inf : f32[2,3]\n"
        "  %y = softmax %x : f32[2,3]\n  ret %y\n",
        0, 0};
    CHECK(check_case(&c) == 1);
}

/* The gradient of the only param of a module that ends in a scalar, at given values. */
static void
gradient_at(const rule_case *c, int n, const double *x, double *g)
{
    ef_ctx *ctx = ef_ctx_new();
    ir_module *m = module_of(ctx, c);
    pass_ctx pc = {.m = m, .scratch = ef_arena_new()};
    NEED(pass_grad(&pc));
    ir_env env = {.arena = ef_arena_new()};
    memcpy(ir_env_new(&env, m->params.at[0]->value)->data, x, sizeof *x * (size_t)n);
    loss_of(m, &env);
    memcpy(g, ir_env_get(&env, ir_grad_of(m, m->params.at[0])->value)->data,
           sizeof *g * (size_t)n);
    ef_arena_free(env.arena);
    ef_arena_free(pc.scratch);
    ir_module_free(m);
    ef_ctx_free(ctx);
}

TEST(equal_operands_of_max_share_the_gradient)
{
    static const rule_case c = {
        P("a", "3"),
        "  %z = const {value=1} : f32[3]\n  %y = max $a, %z : f32[3]\n"
        "  %l = reduce_sum %y {axes=[0]} : f32[]\n  ret %l\n",
        0, 0};
    double g[3];
    gradient_at(&c, 3, (double[]){0.5, 1, 2}, g);
    CHECK(g[0] == 0 && g[1] == 0.5 && g[2] == 1);
}

static char *
text_of(const ir_module *m)
{
    ef_buf b = {.arena = m->arena};
    ir_print(m, &b);
    return b.s;
}

/* Runs pass grad on a module that must fail; what was said. */
static const char *
failure_of(ef_ctx *ctx, const rule_case *c)
{
    static char said[512];
    FILE *to = tmpfile();
    NEED(to != NULL);
    ctx->diag = to;
    ir_module *m = module_of(ctx, c);
    pass_ctx pc = {.m = m, .scratch = ef_arena_new()};
    CHECK(!pass_grad(&pc));
    CHECK(ctx->nerror == 1);
    rewind(to);
    said[fread(said, 1, sizeof said - 1, to)] = 0;
    fclose(to);
    ef_arena_free(pc.scratch);
    ir_module_free(m);
    return said;
}

TEST(an_op_without_a_rule_is_named)
{
    static const rule_case c = {
        P("a", "2,3"), "  %y = floor $a : f32[2,3] !\"/layer/Floor\"\n  ret %y\n", 0,
        0};
    ef_ctx *ctx = ef_ctx_new();
    const char *said = failure_of(ctx, &c);
    CHECK(strstr(said, "/layer/Floor") != NULL);
    CHECK(strstr(said, "floor has no gradient rule") != NULL);
    ef_ctx_free(ctx);
}

TEST(an_op_without_a_rule_behind_frozen_params_is_fine)
{
    static const rule_case c = {
        FROZEN("a", "2,3") P("b", "3"),
        "  %x = floor $a : f32[2,3]\n  %y = mul %x, $b : f32[2,3]\n"
        "  ret %y\n",
        0, 0};
    CHECK(check_case(&c) == 1);
}

TEST(a_loss_without_trained_params_is_an_error)
{
    static const rule_case c = {FROZEN("a", "2,3"),
                                "  %y = exp $a : f32[2,3]\n  ret %y\n", 0, 0};
    ef_ctx *ctx = ef_ctx_new();
    CHECK(strstr(failure_of(ctx, &c), "no trained parameter") != NULL);
    ef_ctx_free(ctx);
}

TEST(a_param_that_the_loss_does_not_reach_is_frozen)
{
    static const rule_case c = {P("a", "2,3") P("pooler.w", "3"),
                                "  %x = mul $a, $pooler.w : f32[2,3]\n"
                                "  %y = exp $a : f32[2,3]\n  ret %y\n",
                                0, 0};
    ef_ctx *ctx = ef_ctx_new();
    ctx->report = tmpfile();
    NEED(ctx->report != NULL);
    ir_module *m = module_of(ctx, &c);
    pass_ctx pc = {.m = m, .scratch = ef_arena_new()};
    NEED(pass_grad(&pc));
    CHECK(m->params.at[0]->cls == IR_TRAIN);
    CHECK(m->params.at[1]->cls == IR_FROZEN);
    CHECK(strstr(text_of(m), "pooler.w.grad") == NULL);
    char said[256] = "";
    rewind(ctx->report);
    said[fread(said, 1, sizeof said - 1, ctx->report)] = 0;
    CHECK_STR(said, "pooler.w: no gradient reaches it, left as it is\n");
    fclose(ctx->report);
    ef_arena_free(pc.scratch);
    ir_module_free(m);
    ef_ctx_free(ctx);
}
