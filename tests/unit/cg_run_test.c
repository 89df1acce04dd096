/* cg_run_test.c -- generated programs against the interpreter: ops of floats, and training.
 * cg_low_test.c has low types and rows.
 */
#include "cg_agree.h"

/* ---- elementwise ---- */

TEST(every_elementwise_formula)
{
    static const struct {
        const char *name, *out;
        int arity;
    } row[] = {
#define EW(name, arity, out, formula) {#name, #out, arity},
#include "ir/elementwise.def"
#undef EW
    };
    ef_arena *a = ef_arena_new();
    ef_buf b = {.arena = a}, ret = {.arena = a};
    ef_puts(&b, PLANNED_NEXT "param $a : f32[3,70] frozen unit=0 normal\n"
                             "param $b : f32[70] frozen unit=0 normal\n"
                             "param $c : f32[3,1] frozen unit=0 normal\n"
                             "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                             "  %k = const {value=40} : f32[]\n"
                             "  %x = mul $a, %k : f32[3,70]\n"
                             "  %y = mul $b, %k : f32[70]\n"
                             "  %z = mul $c, %k : f32[3,1]\n"
                             "  %p = gt %x, %y : bool[3,70]\n");
    for (int i = 0; i < (int)EF_COUNT(row); i++) {
        bool choice = *row[i].out == 'W';
        ef_putf(&b, "  %%r%d = %s %s%s%s : %s[3,70]\n", i, row[i].name,
                choice ? "%p" : "%x", row[i].arity > 1 ? ", %y" : "",
                row[i].arity > 2 ? ", %z" : "", *row[i].out == 'B' ? "bool" : "f32");
        ef_putf(&ret, "%s%%r%d", i ? ", " : "  ret ", i);
    }
    ef_putf(&b, "%s\n}\n", ret.s);
    agree(b.s, 1, 2e-6);
    ef_arena_free(a);
}

TEST(element_types_and_conversions)
{
    agree(
        PLANNED_NEXT
        "param $f : f32[4,6] frozen unit=0 normal\n"
        "param $n : i64[6] const unit=0 = 3 -7 0 5 -1 1099511627776\n"
        "param $t : bool[4,1] const unit=0 = 0 1 1 0\n"
        "func $step(%i : i64[4,1]) {\n@b: fwd unit=0\n"
        "  %big = const {value=1000} : f32[]\n"
        "  %g = mul $f, %big : f32[4,6]\n"
        "  %g.i = cast %g : i64[4,6]\n"
        "  %g.w = cast %g : i32[4,6]\n"
        "  %g.b = cast %g : bool[4,6]\n"
        "  %w.i = cast %g.w : i64[4,6]\n"
        "  %t.f = cast $t : f32[4,1]\n"
        "  %s = add %g, %t.f : f32[4,6]\n"
        "  %sum = add $n, %i : i64[4,6]\n"
        "  %quot = div $n, %i : i64[4,6]\n"
        "  %pick = where $t, $n, %i : i64[4,6]\n"
        "  %less = lt $n, %i : bool[4,6]\n"
        "  %both = and %less, $t : bool[4,6]\n"
        "  %neither = not %both : bool[4,6]\n"
        "  %seven = const {value=-7} : i64[]\n"
        "  %is = eq $n, %seven : bool[6]\n"
        "  %n.f = cast $n : f32[6]\n"
        "  %inf = const {value=-inf} : f32[]\n"
        "  %masked = where %neither, %s, %inf : f32[4,6]\n"
        "  %wide = expand %n.f : f32[2,4,6]\n"
        "  ret %g.i, %g.w, %g.b, %w.i, %s, %sum, %quot, %pick, %less, %both, %neither, "
        "%is, %n.f, %masked, %wide\n}\n",
        1, 1e-6);
}

TEST(long_and_deep_loops)
{
    agree(PLANNED_NEXT "param $a : f32[20001] frozen unit=0 normal\n"
                       "param $b : f32[3,5,4,7] frozen unit=0 normal\n"
                       "param $c : f32[5,1,7] frozen unit=0 normal\n"
                       "param $d : f32[3,1,4,1] frozen unit=0 normal\n"
                       "param $e : f32[2,9000] frozen unit=0 normal\n"
                       "param $f : f32[2,1] frozen unit=0 normal\n"
                       "func $step(%i : i64[2], %scale : f32[]) {\n@b: fwd unit=0\n"
                       "  %p = exp $a : f32[20001]\n"
                       "  %q = mul $b, $c : f32[3,5,4,7]\n"
                       "  %r = add %q, $d : f32[3,5,4,7]\n"
                       "  %s = sub $e, $f : f32[2,9000]\n"
                       "  %t = mul %scale, %scale : f32[]\n"
                       "  %u = mul %s, %t : f32[2,9000]\n"
                       "  ret %p, %r, %s, %t, %u\n}\n",
          1, 1e-6);
}

/* ---- structure and products ---- */

TEST(moving_data)
{
    agree(PLANNED_NEXT "param $a : f32[2,3,4] frozen unit=0 normal\n"
                       "param $b : f32[2,2,4] frozen unit=0 normal\n"
                       "param $n : i64[2,3] const unit=0 = 5 2 -3 4 0 1\n"
                       "param $k : i64[3] const unit=0 = 2 0 2\n"
                       "param $m : i64[2] const unit=0 = 1 -1\n"
                       "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                       "  %t = transpose $a {perm=[2,0,1]} : f32[4,2,3]\n"
                       "  %tn = transpose $n {perm=[1,0]} : i64[3,2]\n"
                       "  %c = concat $a, $b, $a {axis=1} : f32[2,8,4]\n"
                       "  %s = slice %c {axis=1, start=7, step=-3} : f32[2,3,4]\n"
                       "  %s2 = slice $n {axis=1, start=1} : i64[2,2]\n"
                       "  %u = unslice $b {axis=1, start=1, step=2} : f32[2,5,4]\n"
                       "  %g = gather $a, $k {axis=1} : f32[2,3,4]\n"
                       "  %g2 = gather $n, $m {axis=1} : i64[2,2]\n"
                       "  %dg = gather_grad $a, $k {axis=1} : f32[2,3,4]\n"
                       "  %v = reshape $a : f32[6,4]\n"
                       "  %w = reshape %v : f32[24]\n"
                       "  %e = exp %w : f32[24]\n"
                       "  %cum = cumsum $n {axis=1} : i64[2,3]\n"
                       "  ret %t, %tn, %c, %s, %s2, %u, %g, %g2, %dg, %e, %cum\n}\n",
          1, 1e-6);
}

TEST(reductions_over_any_dimensions)
{
    agree(PLANNED_NEXT "param $a : f32[2,3,4,5] frozen unit=0 normal\n"
                       "param $one : f32[1,7] frozen unit=0 normal\n"
                       "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                       "  %a = reduce_sum $a {axes=[0,1]} : f32[4,5]\n"
                       "  %b = reduce_sum $a {axes=[3]} : f32[2,3,4]\n"
                       "  %c = reduce_sum $a {axes=[0,2]} : f32[3,5]\n"
                       "  %d = reduce_mean $a {axes=[0,2], keep=1} : f32[1,3,1,5]\n"
                       "  %e = reduce_max $a {axes=[1,3]} : f32[2,4]\n"
                       "  %f = reduce_mean $a {axes=[0,1,2,3]} : f32[]\n"
                       "  %g = reduce_max $a {axes=[2]} : f32[2,3,5]\n"
                       "  %h = reduce_sum $one {axes=[0]} : f32[7]\n"
                       "  %s = softmax $a : f32[2,3,4,5]\n"
                       "  %ds = softmax_grad $a, %s : f32[2,3,4,5]\n"
                       "  ret %a, %b, %c, %d, %e, %f, %g, %h, %s, %ds\n}\n",
          1, 2e-6);
}

TEST(products_of_every_layout)
{
    agree(PLANNED_NEXT "param $a : f32[2,3,4,5] frozen unit=0 normal\n"
                       "param $b : f32[2,3,5,6] frozen unit=0 normal\n"
                       "param $bt : f32[2,3,6,5] frozen unit=0 normal\n"
                       "param $w : f32[5,6] frozen unit=0 normal\n"
                       "param $h : f32[3,5,6] frozen unit=0 normal\n"
                       "param $r : f32[2,1,5,6] frozen unit=0 normal\n"
                       "param $q : f32[1,3,4,5] frozen unit=0 normal\n"
                       "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                       "  %c = matmul $a, $b : f32[2,3,4,6]\n"
                       "  %d = matmul $a, $bt {tb=1} : f32[2,3,4,6]\n"
                       "  %e = matmul $a, $w : f32[2,3,4,6]\n"
                       "  %f = matmul $a, $h : f32[2,3,4,6]\n"
                       "  %g = matmul $a, $r : f32[2,3,4,6]\n"
                       "  %h = matmul $q, $r : f32[2,3,4,6]\n"
                       "  %j = matmul $a, %c {ta=1} : f32[2,3,5,6]\n"
                       "  %k = matmul $w, $a {ta=1, tb=1} : f32[2,3,6,4]\n"
                       "  ret %c, %d, %e, %f, %g, %h, %j, %k\n}\n",
          1, 2e-6);
}

TEST(linears_and_adapters)
{
    agree(PLANNED_NEXT
          "param $x : f32[2,4,6] frozen unit=0 normal\n"
          "param $w : f32[6,9] frozen unit=0 normal\n"
          "param $wt : f32[9,6] frozen unit=0 normal\n"
          "param $b : f32[9] frozen unit=0 normal\n"
          "param $A : f32[2,6] frozen unit=0 normal\n"
          "param $B : f32[3,2] frozen unit=0 normal\n"
          "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
          "  %y = linear $x, $w, $b : f32[2,4,9]\n"
          "  %z = linear $x, $wt {tb=1} : f32[2,4,9]\n"
          "  %dw = linear_dw $x, %y : f32[6,9]\n"
          "  %dwt = linear_dw $x, %y {tb=1} : f32[9,6]\n"
          "  %g, %h = linear_gelu $x, $w, $b : f32[2,4,9], f32[2,4,9]\n"
          "  %g1 = linear_gelu $x, $wt {tb=1} : f32[2,4,9]\n"
          "  %d = linear_dgelu $x, $w, %h : f32[2,4,9]\n"
          "  %e = linear_dgelu %h, $w, $x {tb=1} : f32[2,4,6]\n"
          "  %n = linear $x, $w, $b {alpha=0.5} : f32[2,4,9]\n"
          "  %o = linear_add %n, $x, $wt, $b {tb=1, alpha=-2} : f32[2,4,9]\n"
          "  %dv, %dc = linear_dwb $x, %y : f32[6,9], f32[9]\n"
          "  %dvt, %dct = linear_dwb $x, %y {tb=1} : f32[9,6], f32[9]\n"
          "  %t = linear $x, $A {tb=1} : f32[2,4,2]\n"
          "  %u = lora_add %y, %t, $B {start=3, by=0.5} : f32[2,4,9]\n"
          "  %v = lora_add %z, %t, $B {start=6, by=2} : f32[2,4,9]\n"
          "  %dt = lora_dt %u, $B {start=6, by=2} : f32[2,4,2]\n"
          "  %db = lora_db %u, %t {start=6, len=3, by=2} : f32[3,2]\n"
          "  ret %y, %dw, %dwt, %u, %v, %dt, %db, %g, %h, %g1, %d, %e, %dv, %dc, "
          "%dvt, %dct, %n, %o\n}\n",
          1, 2e-6);
}

/* ---- attention, norms and heads, where results have places of their own ---- */

TEST(attention_on_wide_rows_and_shared_heads)
{
    agree(PLANNED_NEXT
          "meta input.mask \"mask\"\n"
          "param $q : f32[2,5,20] frozen unit=0 normal\n"
          "param $k : f32[2,5,9] frozen unit=0 normal\n"
          "param $v : f32[2,5,8] frozen unit=0 normal\n"
          "param $dy : f32[2,5,16] frozen unit=0 normal\n"
          "func $step(%mask : i64[2,5]) {\n@b: fwd unit=0\n"
          "  %big = const {value=40} : f32[]\n"
          "  %qb = mul $q, %big : f32[2,5,20]\n"
          "  %kb = mul $k, %big : f32[2,5,9]\n"
          "  %y, %l = attention %qb, %kb, $v, %mask {heads=4, kv_heads=2, head_dim=4, "
          "scale=0.5, causal=1, qo=3, ko=1} : f32[2,5,16], f32[2,4,5]\n"
          "  %dq, %dk, %dv = attention_grad $dy, %qb, %kb, $v, %y, %l, %mask {heads=4, "
          "kv_heads=2, head_dim=4, scale=0.5, causal=1, qo=3, ko=1} : f32[2,5,20], "
          "f32[2,5,9], f32[2,5,8]\n"
          "  %z, %m = attention %qb, %kb, $v {heads=4, kv_heads=2, head_dim=4, "
          "scale=0.5, "
          "qo=3, ko=1} : f32[2,5,16], f32[2,4,5]\n"
          "  ret %y, %l, %dq, %dk, %dv, %z, %m\n}\n",
          1, 2e-5);
}

TEST(gradients_that_are_not_added)
{
    agree(
        PLANNED_NEXT
        "meta input.targets \"labels\"\n"
        "param $x : f32[2,3,8] frozen unit=0 normal\n"
        "param $w : f32[8,7] frozen unit=0 normal\n"
        "param $b : f32[7] frozen unit=0 normal\n"
        "param $g : f32[8] frozen unit=0 normal\n"
        "func $step(%i : i64[2,3], %targets : i64[2,3], %scale : f32[]) {\n"
        "@b: fwd unit=0\n"
        "  %y, %m, %r = layernorm $x, $g, $g {eps=1e-05} : f32[2,3,8], f32[2,3], "
        "f32[2,3]\n"
        "  %dx = layernorm_dx $x, %y, $g, %m, %r : f32[2,3,8]\n"
        "  %dg, %db = layernorm_dwb $x, %y, %m, %r : f32[8], f32[8]\n"
        "  %e = embed_grad $x, %i : f32[9,8]\n"
        "  %loss, %dh, %dw, %dc = head_ce_grad %y, $w, %targets, %scale, $b {chunk=4, "
        "wgrad=1, bgrad=1} : f32[], f32[2,3,8], f32[8,7], f32[7]\n"
        "  %loss2, %dh2, %dc2 = head_ce_grad %y, $w, %targets, %scale, $b {bgrad=1} : "
        "f32[], f32[2,3,8], f32[7]\n"
        "  %loss3, %right, %pred, %losses = head_ce %y, $w, %targets, %scale, $b "
        "{chunk=4} : "
        "f32[], "
        "i64[], i64[2,3], f32[2,3]\n"
        "  ret %y, %m, %r, %dx, %dg, %db, %e, %loss, %dh, %dw, %dc, %loss2, %dh2, "
        "%dc2, "
        "%loss3, %right, %pred, %losses\n}\n",
        1, 2e-5);
}

/* ---- training ---- */

TEST(a_classifier_trains_as_in_the_interpreter)
{
    ef_arena *a = ef_arena_new();
    agree(cg_model(a, "0",
                   "  %first = slice %h2 {axis=1} : f32[2,1,8]\n"
                   "  %pooled = reshape %first : f32[2,8]\n"
                   "  %t = tanh %pooled : f32[2,8]\n"
                   "  %logits = linear %t, $cls.w, $cls.b {tb=1} : f32[2,3]\n"
                   "  %loss, %right, %prob, %losses = ce %logits, %targets, %scale : "
                   "f32[], i64[], "
                   "f32[2,3], f32[2]\n  ret %loss\n"),
          1, 2e-5);
    ef_arena_free(a);
}

TEST(a_regression_trains_as_in_the_interpreter)
{
    ef_arena *a = ef_arena_new();
    char *text = ef_strdup(
        a, cg_model(a, "0",
                    "  %first = slice %h2 {axis=1} : f32[2,1,8]\n"
                    "  %pooled = reshape %first : f32[2,8]\n"
                    "  %y = linear %pooled, $cls.w, $cls.b {tb=1} : f32[2,3]\n"
                    "  %loss, %losses = mse %y, %values, %scale : f32[], f32[2]\n"
                    "  ret %loss\n"));
    memcpy(strstr(text, "%targets : i64[2],"), "%values:f32[2,3], ", 18);
    agree(text, 2, 2e-5);
    ef_arena_free(a);
}

TEST(micro_batches_add_up)
{
    ef_arena *a = ef_arena_new();
    agree(cg_model(a, "1",
                   "  %mean.1 = reduce_mean %h2 {axes=[1]} : f32[2,8]\n"
                   "  %logits = linear %mean.1, $cls.w, $cls.b {tb=1} : f32[2,3]\n"
                   "  %loss, %right, %prob, %losses = ce %logits, %targets, %scale : "
                   "f32[], i64[], "
                   "f32[2,3], f32[2]\n  ret %loss\n"),
          3, 2e-5);
    ef_arena_free(a);
}

TEST(a_tied_head_trains_as_in_the_interpreter)
{
    ef_arena *a = ef_arena_new();
    char *text = ef_strdup(
        a, cg_model(a, "1",
                    "  %loss, %right, %pred, %losses = head_ce %h2, $word, %targets, "
                    "%scale {tb=1, "
                    "chunk=4} : f32[], i64[], i64[2,5], f32[2,5]\n  ret %loss\n"));
    memcpy(strstr(text, "%targets : i64[2],"), "%targets:i64[2,5],", 18);
    agree(text, 2, 2e-5);
    ef_arena_free(a);
}
