/* cg_low_test.c -- generated programs against the interpreter: elements of the low types, and
 * rows whose number varies.
 *
 * The interpreter rounds every result, a kernel only what it stores, so tolerances are a few
 * steps of the type. What is only moved or converted must be equal.
 */
#include "cg_agree.h"

/* text with every TYPE in it as bf16, then as f16. */
static void
agree_low(const char *text, double bf16, double f16)
{
    static const char *const type[] = {"bf16", "f16"};
    for (int i = 0; i < 2; i++) {
        ef_arena *a = ef_arena_new();
        ef_buf b = {.arena = a};
        const char *at = text;
        for (const char *p; (p = strstr(at, "TYPE")); at = p + 4)
            ef_putf(&b, "%.*s%s", (int)(p - at), at, type[i]);
        ef_puts(&b, at);
        agree(b.s, 1, i ? f16 : bf16);
        ef_arena_free(a);
    }
}

TEST(low_elements_are_moved_and_converted_exactly)
{
    agree_low(PLANNED_NEXT "param $a : TYPE[2,3,4] frozen unit=0 normal\n"
                           "param $f : f32[2,3,4] frozen unit=0 normal\n"
                           "param $n : i64[6] const unit=0 = 3 -7 0 5 -1 70\n"
                           "param $k : i64[3] const unit=0 = 2 0 2\n"
                           "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                           "  %t = transpose $a {perm=[2,0,1]} : TYPE[4,2,3]\n"
                           "  %c = concat $a, $a {axis=1} : TYPE[2,6,4]\n"
                           "  %s = slice %c {axis=1, start=5, step=-2} : TYPE[2,2,4]\n"
                           "  %u = unslice $a {axis=1, start=1} : TYPE[2,5,4]\n"
                           "  %g = gather $a, $k {axis=1} : TYPE[2,3,4]\n"
                           "  %v = reshape $a : TYPE[6,4]\n"
                           "  %w = cast %v : f32[6,4]\n"
                           "  %x = cast $f : TYPE[2,3,4]\n"
                           "  %y = cast %x : f32[2,3,4]\n"
                           "  %z = cast $n : TYPE[6]\n"
                           "  %m = cast %z : i64[6]\n"
                           "  %o = gt $a, %x : bool[2,3,4]\n"
                           "  %e = where %o, $a, %x : TYPE[2,3,4]\n"
                           "  ret %t, %c, %s, %u, %g, %w, %x, %z, %m, %o, %e\n}\n",
              0, 0);
}

TEST(low_elementwise_kernels)
{
    agree_low(PLANNED_NEXT "param $a : TYPE[5,9001] frozen unit=0 normal\n"
                           "param $b : TYPE[9001] frozen unit=0 normal\n"
                           "param $c : f32[5,9001] frozen unit=0 normal\n"
                           "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                           "  %k = const {value=40} : TYPE[]\n"
                           "  %x = mul $a, %k : TYPE[5,9001]\n"
                           "  %y = mul $b, %k : TYPE[9001]\n"
                           "  %s = add %x, %y : TYPE[5,9001]\n"
                           "  %g = gelu %s : TYPE[5,9001]\n"
                           "  %d = gelu_d %x, %s : TYPE[5,9001]\n"
                           "  %f = cast %g : f32[5,9001]\n"
                           "  %r = add $c, %f : f32[5,9001]\n"
                           "  ret %s, %g, %d, %r\n}\n",
              1e-2, 2e-3);
}

TEST(low_products)
{
    agree_low(
        PLANNED_NEXT
        "param $x : TYPE[2,4,6] frozen unit=0 normal\n"
        "param $w : TYPE[6,9] frozen unit=0 normal\n"
        "param $wt : TYPE[9,6] frozen unit=0 normal\n"
        "param $b : f32[9] frozen unit=0 normal\n"
        "param $A : TYPE[2,6] frozen unit=0 normal\n"
        "param $B : TYPE[3,2] frozen unit=0 normal\n"
        "param $m : TYPE[2,6,5] frozen unit=0 normal\n"
        "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
        "  %y = linear $x, $w, $b : TYPE[2,4,9]\n"
        "  %z = linear $x, $wt, $b {tb=1, to=\"f32\"} : f32[2,4,9]\n"
        "  %dw = linear_dw $x, %y : f32[6,9]\n"
        "  %dwt = linear_dw $x, %y {tb=1} : f32[9,6]\n"
        "  %g, %h = linear_gelu $x, $w, $b : TYPE[2,4,9], TYPE[2,4,9]\n"
        "  %g1 = linear_gelu $x, $wt {tb=1} : TYPE[2,4,9]\n"
        "  %d = linear_dgelu $x, $w, %h : TYPE[2,4,9]\n"
        "  %e = linear_dgelu %h, $w, $x {tb=1} : TYPE[2,4,6]\n"
        "  %n = linear $x, $w, $b {alpha=0.5} : TYPE[2,4,9]\n"
        "  %o = linear_add %n, $x, $wt, $b {tb=1, alpha=-2} : TYPE[2,4,9]\n"
        "  %dv, %dc = linear_dwb $x, %y : f32[6,9], f32[9]\n"
        "  %dvt, %dct = linear_dwb $x, %y {tb=1} : f32[9,6], f32[9]\n"
        "  %t = linear $x, $A {tb=1} : TYPE[2,4,2]\n"
        "  %u = lora_add %y, %t, $B {start=3, by=0.5} : TYPE[2,4,9]\n"
        "  %dt = lora_dt %u, $B {start=6, by=2} : TYPE[2,4,2]\n"
        "  %db = lora_db %u, %t {start=6, len=3, by=2} : f32[3,2]\n"
        "  %p = matmul $x, $m : TYPE[2,4,5]\n"
        "  %q = matmul $x, $m {to=\"f32\"} : f32[2,4,5]\n"
        "  ret %y, %z, %dw, %dwt, %u, %dt, %db, %p, %q, %g, %h, %g1, %d, %e, %dv, "
        "%dc, %dvt, %dct, %n, %o\n}\n",
        1e-2, 2e-3);
}

TEST(low_norms_embeddings_and_sums)
{
    agree_low(
        PLANNED_NEXT
        "param $x : f32[2,3,8] frozen unit=0 normal\n"
        "param $l : TYPE[2,3,8] frozen unit=0 normal\n"
        "param $e : TYPE[9,8] frozen unit=0 normal\n"
        "param $g : f32[8] frozen unit=0 normal\n"
        "param $c : f32[1,3,4] frozen unit=0 normal\n"
        "func $step(%i : i64[2,3]) {\n@b: fwd unit=0\n"
        "  %y, %m, %r = layernorm $x, $g, $g {eps=1e-05, to=\"TYPE\"} : TYPE[2,3,8], "
        "f32[2,3], f32[2,3]\n"
        "  %dx = layernorm_dx $l, $x, $g, %m, %r : f32[2,3,8]\n"
        "  %dw, %db = layernorm_dwb $l, $x, %m, %r : f32[8], f32[8]\n"
        "  %z, %s = rmsnorm $l, $g {eps=1e-05} : TYPE[2,3,8], f32[2,3]\n"
        "  %dz = rmsnorm_dx %y, $l, $g, %s : TYPE[2,3,8]\n"
        "  %dg = rmsnorm_dw %y, $l, %s : f32[8]\n"
        "  %em = embed $e, %i {to=\"f32\"} : f32[2,3,8]\n"
        "  %el = embed $e, %i : TYPE[2,3,8]\n"
        "  %de = embed_grad $l, %i : f32[9,8]\n"
        "  %sum = reduce_sum $l {axes=[0,1], to=\"f32\"} : f32[8]\n"
        "  %turn = rotary $l, $c, $c {heads=2} : TYPE[2,3,8]\n"
        "  ret %y, %m, %r, %dx, %dw, %db, %z, %s, %dz, %dg, %em, %el, %de, %sum, "
        "%turn\n}\n",
        1e-2, 2e-3);
}

TEST(low_attention_and_heads)
{
    agree_low(
        PLANNED_NEXT
        "meta input.targets \"labels\"\nmeta input.mask \"mask\"\n"
        "param $x : TYPE[2,5,24] frozen unit=0 normal\n"
        "param $dy : TYPE[2,5,8] frozen unit=0 normal\n"
        "param $w : TYPE[8,7] frozen unit=0 normal\n"
        "param $b : f32[7] frozen unit=0 normal\n"
        "func $step(%mask : i64[2,5], %targets : i64[2,5], %scale : f32[]) {\n"
        "@b: fwd unit=0\n"
        "  %big = const {value=40} : TYPE[]\n"
        "  %q = mul $x, %big : TYPE[2,5,24]\n"
        "  %y, %l = attention %q, %q, %q, %mask {heads=2, kv_heads=2, head_dim=4, "
        "scale=0.5, causal=1, ko=8, vo=16} : TYPE[2,5,8], f32[2,2,5]\n"
        "  %dq = attention_grad $dy, %q, %q, %q, %y, %l, %mask {heads=2, kv_heads=2, "
        "head_dim=4, scale=0.5, causal=1, ko=8, vo=16} : TYPE[2,5,24]\n"
        "  %loss, %dh, %dw, %dc = head_ce_grad %y, $w, %targets, %scale, $b {chunk=4, "
        "wgrad=1, bgrad=1} : f32[], TYPE[2,5,8], f32[8,7], f32[7]\n"
        "  %loss2, %right, %pred, %losses = head_ce %y, $w, %targets, %scale, $b "
        "{chunk=4} : f32[], i64[], i64[2,5], f32[2,5]\n"
        "  ret %y, %l, %dq, %loss, %dh, %dw, %dc, %loss2, %losses\n}\n",
        3e-2, 4e-3);
}

/* ---- training ---- */

static const char classifier[] =
    "  %first = slice %h2 {axis=1} : f32[2,1,8]\n"
    "  %pooled = reshape %first : f32[2,8]\n"
    "  %t = tanh %pooled : f32[2,8]\n"
    "  %logits = linear %t, $cls.w, $cls.b {tb=1} : f32[2,3]\n"
    "  %loss, %right, %prob, %losses = ce %logits, %targets, %scale : f32[], i64[], "
    "f32[2,3], f32[2]\n  ret %loss\n";

TEST(a_classifier_trains_in_either_precision)
{
    ef_arena *a = ef_arena_new();
    const char *text = cg_model(a, "0", classifier);
    try_both(&(trial){.text = text, .micro = 2, .tol = 3e-2, .bf16 = true});
    try_both(&(trial){.text = text, .micro = 2, .tol = 4e-3, .fp16 = true});
    ef_arena_free(a);
}

TEST(a_tied_head_trains_in_either_precision)
{
    ef_arena *a = ef_arena_new();
    char *text = ef_strdup(
        a, cg_model(a, "1",
                    "  %loss, %right, %pred, %losses = head_ce %h2, $word, %targets, "
                    "%scale {tb=1, chunk=4} : f32[], i64[], i64[2,5], f32[2,5]\n"
                    "  ret %loss\n"));
    memcpy(strstr(text, "%targets : i64[2],"), "%targets:i64[2,5],", 18);
    try_both(&(trial){.text = text, .micro = 2, .tol = 3e-2, .bf16 = true});
    try_both(&(trial){.text = text, .micro = 2, .tol = 4e-3, .fp16 = true});
    ef_arena_free(a);
}

/* ---- rows ---- */

/* Two samples of 5 positions, of which 3 and 2 are computed, one of each is supervised. */
static const given two_samples[] = {
    {"ids", (const int64_t[]){3, 1, 4, 8, 8, 2, 6, 8, 8, 8}},
    {"row", (const int64_t[]){0, 1, 2, 5, 6, 0, 0, 0, 0, 0}},
    {"position", (const int64_t[]){0, 1, 2, 0, 1, 0, 0, 0, 0, 0}},
    {"offsets", (const int64_t[]){0, 3, 5}},
    {"sup", (const int64_t[]){1, 4, 0, 0, 0, 0, 0, 0, 0, 0}},
    {"targets",
     (const int64_t[]){5, 2, -100, -100, -100, -100, -100, -100, -100, -100}},
    {"pooled", (const int64_t[]){0, 3}},
    {"keys", (const int64_t[]){0, 1, 2, 3, 4, 16777216, 16777217, 16777218, 16777219,
                               16777220}},
    {"key", (const int64_t[]){123456789}},
    {NULL, NULL}};

#define ROWS_META                                                                     \
    "meta sizes.rows \"3 6 10\"\nmeta sizes.sup \"2 4 10\"\nmeta input.ids \"ids\"\n" \
    "meta input.row \"row\"\nmeta input.position \"position\"\nunit 0 \"u\"\n"        \
    "meta input.sup \"sup\"\nmeta input.targets \"labels\"\n"                         \
    "meta input.offsets \"offsets\"\nmeta input.pooled \"pooled\"\n"                  \
    "meta input.keys \"keys\"\nmeta input.key \"key\"\n"

/* With room for 5 rows and for no more than are needed, or for the most. */
static void
agree_rows(const char *text, double tol)
{
    for (int big = 0; big < 2; big++) {
        trial t = {.text = text, .micro = 2, .tol = tol, .inputs = two_samples};
        for (int sym = RT_ROWS; sym <= RT_SUP; sym++)
            t.at[sym] = big ? 2 : sym == RT_ROWS ? 1 : 0;
        t.live[RT_ROWS] = 5;
        t.live[RT_SUP] = 2;
        try_both(&t);
        t.bf16 = true;
        t.tol = 3e-2;
        try_both(&t);
    }
}

TEST(a_model_of_rows_trains)
{
    agree_rows(
        "efficc-ir 1 canon recognise task\n" ROWS_META
        "param $word : f32[9,8] train unit=0 normal\n"
        "param $pos : f32[5,8] train unit=0 normal\n"
        "param $g : f32[8] train unit=0 normal\n"
        "param $b : f32[8] train unit=0 normal\n"
        "param $w : f32[8,12] train unit=0 normal\n"
        "param $c : f32[12] train unit=0 normal\n"
        "param $A : f32[2,12] train unit=0 normal\n"
        "param $B : f32[8,2] train unit=0 normal\n"
        "param $h : f32[12,8] frozen unit=0 normal\n"
        "param $v : f32[8,7] train unit=0 normal\n"
        "func $step(%ids : i64[2,5], %row : i64[rows:10], %position : i64[rows:10], "
        "%sup : i64[sup:10], %targets : i64[sup:10], %scale : f32[]) {\n"
        "@b: fwd unit=0\n"
        "  %flat = reshape %ids : i64[10]\n"
        "  %i = gather %flat, %row {axis=0} : i64[rows:10]\n"
        "  %e = embed $word, %i : f32[rows:10,8]\n"
        "  %p = embed $pos, %position : f32[rows:10,8]\n"
        "  %x = add %e, %p : f32[rows:10,8]\n"
        "  %n, %mean, %rstd = layernorm %x, $g, $b {eps=1e-05} : f32[rows:10,8], "
        "f32[rows:10], f32[rows:10]\n"
        "  %f = linear %n, $w, $c : f32[rows:10,12]\n"
        "  %a = gelu %f : f32[rows:10,12]\n"
        "  %o = linear %a, $h : f32[rows:10,8]\n"
        "  %t = linear %a, $A {tb=1} : f32[rows:10,2]\n"
        "  %l = lora_add %o, %t, $B {by=2} : f32[rows:10,8]\n"
        "  %y = add %x, %l : f32[rows:10,8]\n"
        "  %s = gather %y, %sup {axis=0} : f32[sup:10,8]\n"
        "  %loss, %right, %pred, %losses = head_ce %s, $v, %targets, %scale {chunk=4} "
        ": "
        "f32[], i64[], i64[sup:10], f32[sup:10]\n"
        "  ret %loss\n}\n",
        2e-5);
}

TEST(a_classifier_of_rows_trains)
{
    agree_rows(
        "efficc-ir 1 canon recognise task\n" ROWS_META
        "param $word : f32[9,8] train unit=0 normal\n"
        "param $g : f32[8] train unit=0 normal\n"
        "param $w : f32[8,12] train unit=0 normal\n"
        "param $v : f32[6,7] train unit=0 normal\n"
        "param $c : f32[7] train unit=0 normal\n"
        "func $step(%ids : i64[2,5], %row : i64[rows:10], %keys : i64[2,5], %key : "
        "i64[], %pooled : i64[2], %targets : i64[2], %scale : f32[]) {\n"
        "@b: fwd unit=0\n"
        "  %flat = reshape %ids : i64[10]\n"
        "  %i = gather %flat, %row {axis=0} : i64[rows:10]\n"
        "  %e = embed $word, %i : f32[rows:10,8]\n"
        "  %kf = reshape %keys : i64[10]\n"
        "  %k = gather %kf, %row {axis=0} : i64[rows:10]\n"
        "  %d = dropout %e, %k, %key {p=0.25, site=1} : f32[rows:10,8]\n"
        "  %n, %rms = rmsnorm %d, $g {eps=1e-05} : f32[rows:10,8], f32[rows:10]\n"
        "  %f = linear %n, $w : f32[rows:10,12]\n"
        "  %up = slice %f {axis=1} : f32[rows:10,6]\n"
        "  %gate = slice %f {axis=1, start=6} : f32[rows:10,6]\n"
        "  %act = silu %gate : f32[rows:10,6]\n"
        "  %m = mul %up, %act : f32[rows:10,6]\n"
        "  %both = concat %m, %up {axis=1} : f32[rows:10,12]\n"
        "  %heads = reshape %both : f32[rows:10,2,6]\n"
        "  %turned = transpose %heads {perm=[0,2,1]} : f32[rows:10,6,2]\n"
        "  %sum = reduce_sum %turned {axes=[2]} : f32[rows:10,6]\n"
        "  %first = gather %sum, %pooled {axis=0} : f32[2,6]\n"
        "  %logits = linear %first, $v, $c : f32[2,7]\n"
        "  %loss, %right, %prob, %losses = ce %logits, %targets, %scale : f32[], "
        "i64[], "
        "f32[2,7], f32[2]\n"
        "  ret %loss\n}\n",
        2e-5);
}

TEST(long_kernels_of_rows)
{
    static int64_t row[20000];
    for (int i = 0; i < 20000; i++)
        row[i] = i;
    const given inputs[] = {{"row", row}, {NULL, NULL}};
    static const char text[] =
        "efficc-ir 1 canon recognise task eval grad cse optim dce\nunit 0 \"u\"\n"
        "meta input.row \"row\"\nmeta sizes.rows \"4999 9001 20000\"\n"
        "param $a : f32[20000] frozen unit=0 normal\n"
        "param $b : f32[20000,3] frozen unit=0 normal\n"
        "param $c : f32[3] frozen unit=0 normal\n"
        "func $step(%row : i64[rows:20000]) {\n@b: fwd unit=0\n"
        "  %x = gather $a, %row {axis=0} : f32[rows:20000]\n"
        "  %y = gather $b, %row {axis=0} : f32[rows:20000,3]\n"
        "  %u = exp %x : f32[rows:20000]\n"
        "  %v = tanh %y : f32[rows:20000,3]\n"
        "  %w = add %y, $c : f32[rows:20000,3]\n"
        "  %col = reshape %u : f32[rows:20000,1]\n"
        "  %z = mul %w, %col : f32[rows:20000,3]\n"
        "  ret %u, %v, %z\n}\n";
    for (int at = 0; at < 3; at++)
        try_both(&(trial){.text = text,
                          .micro = 1,
                          .tol = 1e-6,
                          .inputs = inputs,
                          .at = {[RT_ROWS] = at},
                          .live = {[RT_ROWS] = at == 0   ? 4999
                                               : at == 1 ? 9001
                                                         : 20000}});
}
