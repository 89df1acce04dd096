/* interp_test.c -- the interpreter against values worked out by hand, against PyTorch's
 * optimizer, and against itself: a recognised op equals the plain ops that it stands for.
 */
#include "test.h"

#include "ir/ir.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct machine {
    ef_ctx *ctx;
    ir_module *m;
    ir_env env;
} machine;

/* The module `params` + step(args) of one block with `body`, not yet run. */
static machine
start(const char *params, const char *args, const char *body)
{
    static char text[8192];
    machine k = {.ctx = ef_ctx_new()};
    k.ctx->diag = tmpfile();
    NEED(k.ctx->diag != NULL);
    snprintf(text, sizeof text,
             "efficc-ir 1\n\nunit 0 \"all\"\n\n%s\nfunc $step(%s) {\n@all: fwd "
             "unit=0\n%s}\n",
             params, args, body);
    k.m = ir_parse(k.ctx, "test", text);
    if (!k.m || ir_verify(k.m)) {
        rewind(k.ctx->diag);
        for (int c; (c = getc(k.ctx->diag)) != EOF;)
            putchar(c);
        CU_FAIL_FATAL("the test's module is wrong");
    }
    k.env.arena = ef_arena_new();
    return k;
}

static bool
run(machine *k)
{
    return ir_interp(k->m->step, 1u << IR_FWD, &k->env);
}

/* Result i of the function. */
static const ir_tensor *
result(const machine *k, int i)
{
    return ir_env_get(&k->env, k->m->step->last->last->arg[i]);
}

static void
stop(machine *k)
{
    ef_arena_free(k->env.arena);
    ir_module_free(k->m);
    fclose(k->ctx->diag);
    ef_ctx_free(k->ctx);
}

static void
check_values(const char *body, const ir_tensor *t, int n, const double *want)
{
    CHECK(ir_type_count(t->type) == n);
    for (int i = 0; i < n && i < ir_type_count(t->type); i++) {
        bool same = isnan(want[i]) ? isnan(t->data[i]) : t->data[i] == want[i];
        if (!same)
            printf("  element %d is %.17g, not %.17g, of\n%s", i, t->data[i], want[i],
                   body);
        CHECK(same);
    }
}

#define LIST(...)                                        \
    (int)EF_COUNT(((double[]){__VA_ARGS__})), (double[]) \
    {                                                    \
        __VA_ARGS__                                      \
    }

/* Result 0 of the body is exactly these values. */
static void
gives(const char *params, const char *body, int n, const double *want)
{
    machine k = start(params, "", body);
    NEED(run(&k));
    check_values(body, result(&k, 0), n, want);
    stop(&k);
}

/* Running fails, and says `want`. */
static void
fails(const char *params, const char *args, const char *body, const char *want)
{
    char said[512] = "";
    machine k = start(params, args, body);
    CHECK(!run(&k));
    rewind(k.ctx->diag);
    said[fread(said, 1, sizeof said - 1, k.ctx->diag)] = 0;
    if (!strstr(said, want))
        printf("  said: %s", said);
    CHECK(strstr(said, want) != NULL);
    stop(&k);
}

/* ---- dtypes ---- */

TEST(values_are_rounded_to_their_dtype)
{
    static const struct {
        ir_dtype d;
        double x, want;
    } row[] = {
        {IR_F32, 0.1, 0.1f},
        {IR_F32, 3.4028235677973366e38, INFINITY}, /* halfway to 2^128 */
        {IR_F32, 3.4028235677973362e38, 3.4028234663852886e38},
        {IR_F32, 1e-45, 0x1p-149},
        {IR_F16, 2049, 2048}, /* ties go to even */
        {IR_F16, 2051, 2052},
        {IR_F16, 65519, 65504},
        {IR_F16, -65520, -INFINITY},
        {IR_F16, 0x1.8p-25, 0x1p-24},
        {IR_F16, 0x1p-25, 0},
        {IR_BF16, 257, 256},
        {IR_BF16, 259, 260},
        {IR_BF16, 3.4e38, INFINITY},
        {IR_BF16, 3.38e38, 0x1.fcp127},
        {IR_I64, -2.9, -2},
        {IR_I32, 1e10, 2147483647},
        {IR_I8, -200, -128},
        {IR_U8, 255.9, 255},
        {IR_I4, 9, 7},
        {IR_I64, NAN, 0},
        {IR_BOOL, -0.5, 1},
        {IR_BOOL, 0, 0},
    };
    for (size_t i = 0; i < EF_COUNT(row); i++)
        CHECK_NEAR(ir_round(row[i].d, row[i].x) == row[i].want ? 0 : (double)i + 1, 0,
                   0);
    CHECK(isnan(ir_round(IR_F32, NAN)) && isnan(ir_round(IR_BF16, NAN)));
    CHECK(ir_round(IR_BF16, -INFINITY) == -INFINITY);
}

TEST(results_are_rounded_unless_the_environment_is_exact)
{
    machine k =
        start("param $a : bf16[] const unit=0 = 1\n", "",
              "  %b = const {value=0.005} : bf16[]\n  %y = add $a, %b : bf16[]\n"
              "  ret %y\n");
    NEED(run(&k));
    CHECK(result(&k, 0)->data[0] == 1.0078125);
    k.env.exact = true;
    NEED(run(&k));
    CHECK(result(&k, 0)->data[0] == 1.005);
    stop(&k);
}

/* ---- elementwise and structure ---- */

#define A6 "param $a : f32[2,3] const unit=0 = 1 2 3 4 5 6\n"

TEST(operands_broadcast)
{
    gives(A6 "param $b : f32[2,1] const unit=0 = 10 20\n",
          "  %y = add $a, $b : f32[2,3]\n  ret %y\n", LIST(11, 12, 13, 24, 25, 26));
    gives(A6 "param $b : f32[3] const unit=0 = 10 20 30\n",
          "  %y = sub $b, $a : f32[2,3]\n  ret %y\n", LIST(9, 18, 27, 6, 15, 24));
    gives("param $b : f32[2,1,2] const unit=0 = 1 2 3 4\n"
          "param $c : f32[3,1] const unit=0 = 10 20 30\n",
          "  %y = mul $b, $c : f32[2,3,2]\n  ret %y\n",
          LIST(10, 20, 20, 40, 30, 60, 30, 40, 60, 80, 90, 120));
    gives("param $b : f32[3,1] const unit=0 = 1 2 3\n",
          "  %y = expand $b : f32[2,3,2]\n  ret %y\n",
          LIST(1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3));
    gives(A6,
          "  %c = const {value=3} : f32[]\n  %m = lt $a, %c : bool[2,3]\n"
          "  %z = const {value=-inf} : f32[]\n  %y = where %m, %z, $a : f32[2,3]\n"
          "  ret %y\n",
          LIST(-INFINITY, -INFINITY, 3, 4, 5, 6));
}

TEST(integers_divide_towards_zero)
{
    gives("param $a : i64[4] const unit=0 = 7 -7 6 9007199254740991\n"
          "param $b : i64[] const unit=0 = 3\n",
          "  %y = div $a, $b : i64[4]\n  ret %y\n", LIST(2, -2, 2, 3002399751580330));
}

TEST(max_and_min_keep_nan)
{
    gives("param $a : f32[3] const unit=0 = nan 1 2\n"
          "param $b : f32[3] const unit=0 = 1 nan 3\n",
          "  %y = max $a, $b : f32[3]\n  ret %y\n", LIST(NAN, NAN, 3));
}

TEST(shapes_change)
{
    gives(A6, "  %y = transpose $a {perm=[1,0]} : f32[3,2]\n  ret %y\n",
          LIST(1, 4, 2, 5, 3, 6));
    gives("param $b : f32[2,1,3] const unit=0 = 1 2 3 4 5 6\n",
          "  %y = transpose $b {perm=[2,1,0]} : f32[3,1,2]\n  ret %y\n",
          LIST(1, 4, 2, 5, 3, 6));
    gives(A6 "param $b : f32[2,1] const unit=0 = 8 9\n",
          "  %y = concat $a, $b {axis=1} : f32[2,4]\n  ret %y\n",
          LIST(1, 2, 3, 8, 4, 5, 6, 9));
    gives(A6, "  %y = slice $a {axis=1, start=2, step=-2} : f32[2,2]\n  ret %y\n",
          LIST(3, 1, 6, 4));
    gives(A6, "  %y = unslice $a {axis=0, start=1, step=2} : f32[4,3]\n  ret %y\n",
          LIST(0, 0, 0, 1, 2, 3, 0, 0, 0, 4, 5, 6));
    gives(A6 "param $i : i64[2,2] const unit=0 = 2 0 -1 1\n",
          "  %y = gather $a, $i {axis=1} : f32[2,2,2]\n  ret %y\n",
          LIST(3, 1, 3, 2, 6, 4, 6, 5));
    gives(A6, "  %y = cumsum $a {axis=0} : f32[2,3]\n  ret %y\n",
          LIST(1, 2, 3, 5, 7, 9));
    gives(A6, "  %y = cast $a : bool[2,3]\n  ret %y\n", LIST(1, 1, 1, 1, 1, 1));
}

TEST(reductions)
{
    gives(A6, "  %y = reduce_sum $a {axes=[0,1]} : f32[]\n  ret %y\n", LIST(21));
    gives(A6, "  %y = reduce_mean $a {axes=[0], keep=1} : f32[1,3]\n  ret %y\n",
          LIST(2.5, 3.5, 4.5));
    gives(A6, "  %y = reduce_max $a {axes=[1]} : f32[2]\n  ret %y\n", LIST(3, 6));
    gives("param $b : f32[2,2,2] const unit=0 = 1 2 3 4 5 6 7 8\n",
          "  %y = reduce_sum $b {axes=[0,2]} : f32[2]\n  ret %y\n", LIST(14, 22));
}

TEST(softmax_of_a_row_without_keys_is_nan)
{
    gives("param $a : f32[2,2] const unit=0 = -inf 0 -inf -inf\n",
          "  %y = softmax $a : f32[2,2]\n  ret %y\n", LIST(0, 1, NAN, NAN));
}

TEST(matrix_products)
{
    gives(A6 "param $b : f32[3,2] const unit=0 = 1 0 0 1 1 1\n",
          "  %y = matmul $a, $b : f32[2,2]\n  ret %y\n", LIST(4, 5, 10, 11));
    gives(A6 "param $b : f32[2,1,3] const unit=0 = 1 0 0 0 0 1\n",
          "  %y = matmul $a, $b {tb=1} : f32[2,2,1]\n  ret %y\n", LIST(1, 4, 3, 6));
    gives(A6, "  %y = matmul $a, $a {ta=1} : f32[3,3]\n  ret %y\n",
          LIST(17, 22, 27, 22, 29, 36, 27, 36, 45));
    gives(A6 "param $w : f32[3,1] const unit=0 = 1 1 1\n"
             "param $b : f32[1] const unit=0 = 0.5\n",
          "  %y = linear $a, $w, $b : f32[2,1]\n  ret %y\n", LIST(6.5, 15.5));
    gives(A6 "param $w : f32[3,1] const unit=0 = 1 1 1\n"
             "param $b : f32[1] const unit=0 = 0.5\n",
          "  %y = linear $a, $w, $b {alpha=2} : f32[2,1]\n  ret %y\n",
          LIST(12.5, 30.5));
    gives(A6 "param $d : f32[2,1] const unit=0 = 1 2\n",
          "  %y = linear_dw $a, $d : f32[3,1]\n  ret %y\n", LIST(9, 12, 15));
    gives(A6 "param $d : f32[2,1] const unit=0 = 1 2\n",
          "  %y, %b = linear_dwb $a, $d {tb=1} : f32[1,3], f32[1]\n  ret %b\n",
          LIST(3));
#define GELU                                                                          \
    A6 "param $w : f32[3,1] const unit=0 = 1 1 -1\nparam $b : f32[1] const unit=0 = " \
       "-1\n"
    gives(GELU, "  %y, %h = linear_gelu $a, $w, $b : f32[2,1], f32[2,1]\n  ret %h\n",
          LIST(-1, 2));
    gives(GELU, "  %y = linear_gelu $a, $w, $b : f32[2,1]\n  ret %y\n",
          LIST(-0.15880800939172324f, 1.9545976940877752f));
#undef GELU
    gives(A6 "param $w : f32[1,3] const unit=0 = 1 1 -1\n"
             "param $h : f32[2,1] const unit=0 = -1 2\n",
          "  %d = linear_dgelu $a, $w, $h {tb=1} : f32[2,1]\n  ret %d\n",
          LIST(0, (float)(3 * 1.0860992566236183)));
    gives(A6 "param $t : f32[2,1] const unit=0 = 1 2\n"
             "param $b : f32[2,1] const unit=0 = 1 10\n",
          "  %y = lora_add $a, $t, $b {start=1, by=0.5} : f32[2,3]\n  ret %y\n",
          LIST(1, 2.5, 8, 4, 6, 16));
}

/* ---- recognised ops equal the plain ones ---- */

/* Fills all params of class frozen with numbers in (-1, 1). */
static void
fill(machine *k)
{
    uint64_t h = 88172645463325252u;
    for (int i = 0; i < k->m->params.n; i++) {
        const ir_param *p = k->m->params.at[i];
        if (p->cls != IR_FROZEN)
            continue;
        ir_tensor *t = ir_env_new(&k->env, p->value);
        for (int64_t j = 0; j < ir_type_count(t->type); j++) {
            h ^= h << 13, h ^= h >> 7, h ^= h << 17;
            t->data[j] = (double)(h >> 11) * 0x1p-52 - 1;
        }
    }
}

/* Results 2i and 2i+1 of the body are the same up to rounding of double. */
static void
agree(const char *params, const char *body)
{
    machine k = start(params, "", body);
    k.env.exact = true;
    fill(&k);
    NEED(run(&k));
    for (int i = 0; i < k.m->step->last->last->narg; i += 2) {
        const ir_tensor *a = result(&k, i), *b = result(&k, i + 1);
        NEED(ir_type_count(a->type) == ir_type_count(b->type));
        for (int64_t j = 0; j < ir_type_count(a->type); j++)
            CHECK_NEAR(a->data[j], b->data[j], 1e-12);
    }
    stop(&k);
}

TEST(layernorm_equals_its_formula)
{
    agree(
        "param $x : f32[2,3,5] frozen unit=0 zero\n"
        "param $w : f32[5] frozen unit=0 zero\nparam $b : f32[5] frozen unit=0 zero\n",
        "  %y, %m, %r = layernorm $x, $w, $b {eps=0.01} : f32[2,3,5], f32[2,3], "
        "f32[2,3]\n"
        "  %mean = reduce_mean $x {axes=[2], keep=1} : f32[2,3,1]\n"
        "  %d = sub $x, %mean : f32[2,3,5]\n"
        "  %dd = mul %d, %d : f32[2,3,5]\n"
        "  %var = reduce_mean %dd {axes=[2], keep=1} : f32[2,3,1]\n"
        "  %eps = const {value=0.01} : f32[]\n"
        "  %ve = add %var, %eps : f32[2,3,1]\n"
        "  %std = sqrt %ve : f32[2,3,1]\n"
        "  %n = div %d, %std : f32[2,3,5]\n"
        "  %nw = mul %n, $w : f32[2,3,5]\n"
        "  %z = add %nw, $b : f32[2,3,5]\n"
        "  %rstd = recip %std : f32[2,3,1]\n"
        "  ret %y, %z, %m, %mean, %r, %rstd\n");
}

/* q, k, v in one value; two query heads on one key head; causal and a key mask. */
TEST(attention_equals_its_formula)
{
    agree("param $x : f32[2,4,12] frozen unit=0 zero\n"
          "param $mask : i64[2,4] const unit=0 = 1 1 1 0 1 0 1 1\n"
          "param $low : bool[1,1,4,4] const unit=0 = 1 0 0 0 1 1 0 0 1 1 1 0 1*4\n",
          "  %y, %lse = attention $x, $x, $x, $mask {heads=2, kv_heads=1, head_dim=3, "
          "scale=0.7, causal=1, ko=6, vo=9} : f32[2,4,6], f32[2,2,4]\n"
          "  %q0 = slice $x {axis=2} : f32[2,4,6]\n"
          "  %q1 = reshape %q0 : f32[2,4,2,3]\n"
          "  %q = transpose %q1 {perm=[0,2,1,3]} : f32[2,2,4,3]\n"
          "  %k0 = slice $x {axis=2, start=6} : f32[2,4,3]\n"
          "  %k = reshape %k0 : f32[2,1,4,3]\n"
          "  %v0 = slice $x {axis=2, start=9} : f32[2,4,3]\n"
          "  %v = reshape %v0 : f32[2,1,4,3]\n"
          "  %s0 = matmul %q, %k {tb=1} : f32[2,2,4,4]\n"
          "  %f = const {value=0.7} : f32[]\n"
          "  %s1 = mul %s0, %f : f32[2,2,4,4]\n"
          "  %m0 = cast $mask : bool[2,4]\n"
          "  %m1 = reshape %m0 : bool[2,1,1,4]\n"
          "  %m = and %m1, $low : bool[2,1,4,4]\n"
          "  %inf = const {value=-inf} : f32[]\n"
          "  %s = where %m, %s1, %inf : f32[2,2,4,4]\n"
          "  %p = softmax %s : f32[2,2,4,4]\n"
          "  %o = matmul %p, %v : f32[2,2,4,3]\n"
          "  %o1 = transpose %o {perm=[0,2,1,3]} : f32[2,4,2,3]\n"
          "  %z = reshape %o1 : f32[2,4,6]\n"
          "  %e = exp %s : f32[2,2,4,4]\n"
          "  %sum = reduce_sum %e {axes=[3]} : f32[2,2,4]\n"
          "  %log = log %sum : f32[2,2,4]\n"
          "  ret %y, %z, %lse, %log\n");
}

TEST(attention_without_keys_gives_zero)
{
    gives("param $x : f32[1,2,2] const unit=0 = 1 2 3 4\n"
          "param $m : i64[1,2] const unit=0 = 0 0\n",
          "  %y, %l = attention $x, $x, $x, $m {heads=1, kv_heads=1, head_dim=2, "
          "scale=1} "
          ": f32[1,2,2], f32[1,1,2]\n  %z = concat %y, %y {axis=2} : f32[1,2,4]\n"
          "  ret %z\n",
          LIST(0, 0, 0, 0, 0, 0, 0, 0));
}

#define HEAD                                                                       \
    "param $x : f32[2,3,4] frozen unit=0 zero\nparam $w : f32[4,5] frozen unit=0 " \
    "zero\n"                                                                       \
    "param $b : f32[5] frozen unit=0 zero\n"                                       \
    "param $t : i64[2,3] const unit=0 = 4 -100 0 2 -100 3\n"                       \
    "param $s : f32[] const unit=0 = 0.25\n"

TEST(head_and_loss_in_one_equal_linear_and_loss)
{
    agree(
        HEAD,
        "  %logits = linear $x, $w, $b : f32[2,3,5]\n"
        "  %l, %n, %p, %pl = ce %logits, $t, $s : f32[], i64[], f32[2,3,5], f32[2,3]\n"
        "  %l1, %n1, %q, %ql = head_ce $x, $w, $t, $s, $b {chunk=4} : f32[], i64[], "
        "i64[2,3], f32[2,3]\n"
        "  %wt = transpose $w {perm=[1,0]} : f32[5,4]\n"
        "  %l2, %n2, %q2, %q2l = head_ce $x, %wt, $t, $s, $b {tb=1, chunk=4} : f32[], "
        "i64[], "
        "i64[2,3], f32[2,3]\n"
        "  %soft = softmax %logits : f32[2,3,5]\n"
        "  ret %l, %l1, %n, %n1, %l, %l2, %n, %n2, %q, %q2, %p, %soft, %pl, %ql, %pl, "
        "%q2l\n");
}

TEST(squared_error_counts_supervised_values_only)
{
    machine k = start("param $y : f32[3,2] const unit=0 = 1 2 3 4 5 6\n"
                      "param $v : f32[3,2] const unit=0 = 0 nan 5 1 nan nan\n"
                      "param $s : f32[] const unit=0 = 0.5\n",
                      "",
                      "  %l, %e = mse $y, $v, $s : f32[], f32[3]\n"
                      "  %l1, %d = mse_grad $y, $v, $s : f32[], f32[3,2]\n"
                      "  ret %l, %e, %l1, %d\n");
    NEED(run(&k));
    CHECK(result(&k, 0)->data[0] == 0.5 * (1 + 4 + 9));
    CHECK(result(&k, 2)->data[0] == result(&k, 0)->data[0]);
    static const double each[] = {1, 13, 0}, d[] = {1, 0, -2, 3, 0, 0};
    CHECK(!memcmp(result(&k, 1)->data, each, sizeof each));
    CHECK(!memcmp(result(&k, 3)->data, d, sizeof d));
    stop(&k);
}

TEST(loss_counts_supervised_rows_only)
{
    machine k =
        start("param $x : f32[4,2] const unit=0 = 0 0 3 1 1 3 0 0\n"
              "param $t : i64[4] const unit=0 = 0 0 0 -100\n"
              "param $s : f32[] const unit=0 = 0.5\n",
              "",
              "  %l, %n, %p, %pl = ce $x, $t, $s : f32[], i64[], f32[4,2], f32[4]\n"
              "  %l1, %d = ce_grad $x, $t, $s : f32[], f32[4,2]\n"
              "  ret %l, %n, %d, %l1\n");
    k.env.exact = true;
    NEED(run(&k));
    double soft = log(1 + exp(-2)); /* of a row that is right by 2 */
    CHECK_NEAR(result(&k, 0)->data[0], 0.5 * (log(2) + soft + soft + 2), 1e-15);
    CHECK(result(&k, 1)->data[0] == 2); /* equal logits: the first is the largest */
    CHECK_NEAR(result(&k, 2)->data[0], -0.25, 1e-15);
    CHECK(result(&k, 2)->data[6] == 0 && result(&k, 2)->data[7] == 0);
    CHECK(result(&k, 3)->data[0] == result(&k, 0)->data[0]);
    stop(&k);
}

/* ---- what is not there ---- */

TEST(indices_out_of_range_are_errors)
{
    fails(A6 "param $i : i64[1] const unit=0 = 3\n", "",
          "  %y = gather $a, $i {axis=1} : f32[2,1] !\"/emb/Gather\"\n  ret %y\n",
          "/emb/Gather: error: gather: index 3 is not one of 3");
    fails(A6 "param $i : i64[1] const unit=0 = -3\n", "",
          "  %y = embed $a, $i : f32[1,3]\n  ret %y\n", "index -3 is not one of 2");
    fails("param $x : f32[1,2] const unit=0 = 0 0\nparam $t : i64[1] const unit=0 = 2\n"
          "param $s : f32[] const unit=0 = 1\n",
          "",
          "  %l, %n, %p, %pl = ce $x, $t, $s : f32[], i64[], f32[1,2], f32[1]\n  ret "
          "%l\n",
          "target 2 is not one of 2 classes");
}

TEST(an_argument_without_a_value_is_named)
{
    fails("", "%ids : i64[2]", "  %y = neg %ids : i64[2]\n  ret %y\n",
          "no value was given for %ids");
}

TEST(a_param_whose_file_is_missing_is_named)
{
    fails("param $w : f32[2] frozen unit=0 file f32 \"/nonexistent/w.bin\" 0\n", "",
          "  %y = neg $w : f32[2]\n  ret %y\n",
          "can not read the data of 'w': /nonexistent/w.bin");
}

/* ---- named dimensions ---- */

TEST(named_dimensions_take_the_size_of_the_operands)
{
    machine k =
        start("param $w : f32[2,2] const unit=0 = 1 2 3 4\n", "%x : f32[rows:5,2]",
              "  %y = linear %x, $w : f32[rows:5,2]\n"
              "  %z = gelu %y : f32[rows:5,2]\n  ret %y, %z\n");
    const ir_value *x = k.m->step->args.at[0];
    ir_tensor *t = ir_env_new(&k.env, x);
    t->type = ir_type_get(k.ctx, IR_F32, 2, (int64_t[]){1, 2});
    t->data[0] = 1;
    t->data[1] = 1;
    NEED(run(&k));
    CHECK(result(&k, 0)->type->dim[0] == 1 && result(&k, 1)->type->dim[0] == 1);
    CHECK(result(&k, 0)->data[0] == 4 && result(&k, 0)->data[1] == 6);
    stop(&k);
}

static void
give(machine *k, int arg, int n, const double *x)
{
    ir_tensor *t = ir_env_new(&k->env, k->m->step->args.at[arg]);
    t->type = ir_type_get(k->ctx, t->type->dtype, 1, (int64_t[]){n});
    memcpy(t->data, x, sizeof *x * (size_t)n);
}

static const char rows_and_sup[] =
    "  %h = embed $w, %ids : f32[rows:6,2]\n"
    "  %s = gather %h, %at {axis=0} : f32[sup:3,2]\n"
    "  %h.d = gather_grad %s, %at {axis=0} : f32[rows:6,2]\n"
    "  %t = transpose %h.d {perm=[1,0]} : f32[2,rows:6]\n"
    "  %w.d = embed_grad %h.d, %ids : f32[3,2]\n  ret %s, %t, %w.d\n";

/* A result whose operands do not have the dimension takes its size from the arguments. */
TEST(rows_and_supervised_rows)
{
    machine k = start("param $w : f32[3,2] const unit=0 = 1 2 3 4 5 6\n",
                      "%ids : i64[rows:6], %at : i64[sup:3]", rows_and_sup);
    give(&k, 0, 4, (double[]){2, 0, 1, 2});
    give(&k, 1, 2, (double[]){3, 1});
    NEED(run(&k));
    check_values(rows_and_sup, result(&k, 0), 4, (double[]){5, 6, 1, 2});
    check_values(rows_and_sup, result(&k, 1), 8, (double[]){0, 1, 0, 5, 0, 2, 0, 6});
    check_values(rows_and_sup, result(&k, 2), 6, (double[]){1, 2, 0, 0, 5, 6});
    stop(&k);
}

TEST(arguments_agree_on_named_dimensions)
{
    machine k = start("", "%x : f32[rows:6], %y : f32[rows:6]",
                      "  %z = neg %x : f32[rows:6]\n  ret %z\n");
    give(&k, 0, 4, (double[4]){0});
    give(&k, 1, 2, (double[4]){0});
    CHECK(!run(&k));
    stop(&k);
}

/* ---- gradients and the update ---- */

static const char update_text[] = "efficc-ir 1\n\nunit 0 \"all\"\n\n"
                                  "param $w : f32[2,2] train unit=0 = 0.5 -1.25 2 0\n"
                                  "param $w.grad : f32[2,2] grad unit=0 of=$w\n"
                                  "param $w.m : f32[2,2] state unit=0 of=$w\n"
                                  "param $w.v : f32[2,2] state unit=0 of=$w\n"
                                  "\nfunc $step(%dy : f32[2,2]) {\n"
                                  "@all.bwd: bwd unit=0\n"
                                  "  accum $w.grad, %dy\n"
                                  "@all.update: update unit=0\n"
                                  "  %norm2 = norm2 $w.grad : f32[]\n"
                                  "  %coef = clip_scale %norm2 : f32[]\n"
                                  "  optim $w, $w.grad, $w.m, $w.v, %coef\n"
                                  "  ret %norm2\n"
                                  "}\n";

/* Three steps of two micro-batches each, whose gradients sum to those of the reference. */
static void
check_update(ir_hyper hyper, const double *want)
{
    ef_ctx *ctx = ef_ctx_new();
    ir_module *m = ir_parse(ctx, "update", update_text);
    NEED(m != NULL && !ir_verify(m));
    ir_env env = {.arena = ef_arena_new(), .hyper = hyper, .exact = true};
    ir_tensor *dy = ir_env_new(&env, m->step->args.at[0]);
    for (int s = 0; s < 3; s++) {
        double half[] = {0.05 * (s + 1), -0.1, 0.15, 0.2 - 0.15 * s};
        memcpy(dy->data, half, sizeof half);
        env.hyper.step = s + 1;
        ir_env_zero_grads(m, &env);
        NEED(ir_interp(m->step, 1u << IR_BWD, &env));
        NEED(ir_interp(m->step, 1u << IR_BWD, &env));
        NEED(ir_interp(m->step, 1u << IR_UPDATE, &env));
    }
    CHECK_NEAR(sqrt(ir_env_get(&env, m->step->last->last->arg[0])->data[0]),
               0.5099019513592785, 1e-15);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(ir_env_get(&env, m->params.at[0]->value)->data[i], want[i], 1e-14);
    ef_arena_free(env.arena);
    ir_module_free(m);
    ef_ctx_free(ctx);
}

/* torch 2.9.1, double: clip_grad_norm_(0.5), then the optimizer, three times. */
TEST(adamw_is_pytorchs)
{
    check_update((ir_hyper){.lr = 0.01,
                            .weight_decay = 0.1,
                            .beta1 = 0.9,
                            .beta2 = 0.99,
                            .eps = 1e-6,
                            .max_norm = 0.5},
                 (double[]){0.4694827842018262, -1.2162584826026, 1.964010678938165,
                            -0.02126716745748449});
}

TEST(sgd_is_pytorchs)
{
    check_update(
        (ir_hyper){.lr = 0.01, .weight_decay = 0.1, .max_norm = 0.5, .sgd = true},
        (double[]){0.4926507188052908, -1.2404725023710528, 1.985334128431579,
                   -0.002682020242188033});
}

TEST(momentum_is_pytorchs)
{
    ir_hyper h = {
        .lr = 0.01, .weight_decay = 0.1, .max_norm = 0.5, .sgd = true, .momentum = 0.9};
    check_update(h, (double[]){0.48798725553106836, -1.2322935258226078,
                               1.9727396386089118, -0.009819473339077657});
    h.nesterov = true;
    check_update(h, (double[]){0.48185040875309626, -1.2245572213113376,
                               1.960831444609631, -0.011500042449982487});
}

/* The state, too, would be lost for good. */
TEST(an_infinite_norm_changes_nothing)
{
    ef_ctx *ctx = ef_ctx_new();
    ir_module *m = ir_parse(ctx, "update", update_text);
    NEED(m != NULL);
    ir_env env = {.arena = ef_arena_new(), .hyper = {.lr = 1, .step = 1, .beta1 = 0.9}};
    ir_tensor *dy = ir_env_new(&env, m->step->args.at[0]);
    dy->data[3] = INFINITY;
    NEED(ir_interp(m->step, 1u << IR_BWD, &env));
    NEED(ir_interp(m->step, 1u << IR_UPDATE, &env));
    CHECK(ir_env_get(&env, m->params.at[0]->value)->data[1] == -1.25);
    CHECK(ir_env_get(&env, m->params.at[2]->value)->data[3] == 0);
    ef_arena_free(env.arena);
    ir_module_free(m);
    ef_ctx_free(ctx);
}

TEST(vectors_decay_only_when_all_do)
{
    ef_ctx *ctx = ef_ctx_new();
    ir_module *m =
        ir_parse(ctx, "decay",
                 "efficc-ir 1\n\nunit 0 \"all\"\n\nparam $b : f32[1] train unit=0 = 2\n"
                 "param $b.grad : f32[1] grad unit=0 of=$b\nparam $b.m : f32[1] state "
                 "unit=0 of=$b\n"
                 "param $b.v : f32[1] state unit=0 of=$b\n\nfunc $step() {\n"
                 "@all.update: update unit=0\n  %n = norm2 $b.grad : f32[]\n"
                 "  %c = clip_scale %n : f32[]\n  optim $b, $b.grad, $b.m, $b.v, %c\n  "
                 "ret\n}\n");
    NEED(m != NULL && !ir_verify(m));
    ir_env env = {.arena = ef_arena_new(),
                  .hyper = {.lr = 0.5, .weight_decay = 0.5, .sgd = true}};
    NEED(ir_interp(m->step, 1u << IR_UPDATE, &env));
    CHECK(ir_env_get(&env, m->params.at[0]->value)->data[0] == 2);
    env.hyper.decay_all = true;
    NEED(ir_interp(m->step, 1u << IR_UPDATE, &env));
    CHECK(ir_env_get(&env, m->params.at[0]->value)->data[0] == 1.5);
    ef_arena_free(env.arena);
    ir_module_free(m);
    ef_ctx_free(ctx);
}

/* ---- one op alone ---- */

TEST(an_op_is_evaluated_alone)
{
    machine k = start(A6, "", "  %y = reduce_max $a {axes=[0]} : f32[3]\n  ret %y\n");
    const ir_op *op = k.m->step->first->first;
    double data[] = {1, 9, 3, 4, 5, 6};
    ir_tensor x = {op->arg[0]->type, data}, y;
    NEED(ir_eval_op(k.ctx, op, (const ir_tensor *[]){&x}, &y, k.env.arena));
    check_values("reduce_max", &y, LIST(4, 9, 6));
    CHECK(y.type == op->res[0]->type);
    stop(&k);
}
