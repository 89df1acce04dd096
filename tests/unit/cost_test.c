/* cost_test.c -- bytes, operations and kernels of each kind of call against numbers worked out by
 * hand; that no op is free by oversight; and what cards make of them.
 */
#include "test.h"

#include "codegen/cg_int.h"
#include "codegen/cost.h"
#include "frontend/frontend.h"
#include "said.h"

#include <unistd.h>

/* ---- a planned module and its costs ---- */

typedef struct rig {
    said s;
    ir_module *m;
    ef_arena *arena;
    cg_costs costs;
} rig;

static void
rig_open(rig *r, const char *params, const char *args, const char *body)
{
    *r = (rig){.arena = ef_arena_new()};
    said_open(&r->s);
    const char *text = ef_printf(
        r->arena,
        "efficc-ir 1 canon recognise task eval grad cse optim dce\n"
        "unit 0 \"u\"\n%s\nfunc $step(%%i : i64[6]%s) {\n@b: fwd unit=0\n%s\n}\n",
        params, args, body);
    r->m = ir_parse(r->s.ctx, "t.ir", text);
    if (!r->m)
        printf("%s", said_text(&r->s));
    NEED(r->m != NULL);
    pass_ctx pc = {r->m, ef_arena_new(), cg_target(r->s.ctx)};
    bool ok = pass_plan(&pc) && cg_cost_of(r->m, r->arena, &r->costs);
    if (!ok)
        printf("%s", said_text(&r->s));
    NEED(ok);
    ef_arena_free(pc.scratch);
}

static void
rig_close(rig *r)
{
    ir_module_free(r->m);
    ef_arena_free(r->arena);
    said_close(&r->s);
}

/* Row n is of that op, and its bytes and operations are these. */
static const cg_cost *
row(const rig *r, int n, const char *op, double bytes, double flop)
{
    NEED(n < r->costs.at.n);
    const cg_cost *c = &r->costs.at.at[n];
    CHECK_STR(ir_ops[c->op->code].name, op);
    CHECK_NEAR(c->bytes, bytes, 0);
    CHECK_NEAR(c->flop, flop, 0);
    return c;
}

/* ---- one kind after the other ---- */

TEST(products_move_each_matrix_once)
{
    rig r;
    rig_open(&r,
             "param $w : bf16[4,10] frozen unit=0 normal\n"
             "param $b : f32[10] frozen unit=0 normal\n",
             ", %x : bf16[2,3,4], %a : f32[5,2,3], %c : f32[5,3,7]",
             "  %y = linear %x, $w, $b : bf16[2,3,10]\n"
             "  %d = linear_dw %x, %y : f32[4,10]\n"
             "  %e = matmul %a, %c : f32[5,2,7]\n  ret %y, %d, %e");
    /* [6,4] x [4,10]: 48 + 80 bytes of bf16 and 40 of the bias; 120 of the result */
    const cg_cost *c = row(&r, 0, "linear", 48 + 80 + 40 + 120, 2 * 6 * 4 * 10);
    CHECK(c->kind == CG_GEMM && c->work == CG_PRODUCT && c->low && c->size == 4);
    CHECK(c->calls == 1 && c->kernels == 2); /* one rounds the bias */
    /* [4,6] x [6,10] in floats */
    c = row(&r, 1, "linear_dw", 48 + 120 + 160, 2 * 6 * 4 * 10);
    CHECK(c->size == 4);
    /* five times [2,3] x [3,7] of floats */
    c = row(&r, 2, "matmul", 4 * (30 + 105 + 70), 5 * 2 * 2 * 3 * 7);
    CHECK(c->size == 2 && !c->low);
    CHECK(r.costs.at.n == 3);
    rig_close(&r);
}

TEST(what_a_product_does_beside_is_no_kernel)
{
    rig r;
    rig_open(&r,
             "param $w : f32[4,10] train unit=0 normal\n"
             "param $b : f32[10] train unit=0 normal\n"
             "param $g : f32[4,10] grad unit=0 of=$w\n"
             "param $c : f32[10] grad unit=0 of=$b\n",
             ", %x : f32[6,4], %e : f32[6,4]",
             "  %y, %h = linear_gelu %x, $w, $b : f32[6,10], f32[6,10]\n"
             "  %d = linear_dgelu %e, $w, %h : f32[6,10]\n"
             "  %u, %v = linear_dwb %x, %d : f32[4,10], f32[10]\n"
             "  %s, %t = linear_dwb %x, %y : f32[4,10], f32[10]\n"
             "  accum $g, %u\n  accum $c, %v\n  ret %s, %t");
    const cg_cost *c =
        row(&r, 0, "linear_gelu", 4 * (24 + 40 + 10 + 2 * 60), 2 * 6 * 40);
    CHECK(c->kernels == 1 && c->work == CG_PRODUCT && c->size == 4);
    c = row(&r, 1, "linear_dgelu", 4 * (24 + 40 + 2 * 60), 2 * 6 * 40);
    CHECK(c->kernels == 1);
    c = row(&r, 2, "linear_dwb", 4 * (24 + 60 + 2 * 50), 2 * 6 * 40);
    CHECK(c->kernels == 2); /* sums are added by another one */
    c = row(&r, 3, "linear_dwb", 4 * (24 + 60 + 50), 2 * 6 * 40);
    CHECK(c->kernels == 1 && c->size == 4);
    CHECK(r.costs.at.n == 4);
    rig_close(&r);
}

TEST(a_gradient_that_is_added_to_is_read_too)
{
    rig r;
    rig_open(&r,
             "param $w : f32[4,10] train unit=0 normal\n"
             "param $g : f32[4,10] grad unit=0 of=$w\n",
             ", %x : f32[6,4], %y : f32[6,10], %z : f32[4,10]",
             "  %d = linear_dw %x, %y : f32[4,10]\n  accum $g, %d\n"
             "  accum $g, %z\n  ret %x");
    row(&r, 0, "linear_dw", 4 * (24 + 60 + 2 * 40), 2 * 6 * 4 * 10);
    row(&r, 1, "accum", 3 * 160, 40); /* that of %d is no call */
    CHECK(r.costs.at.n == 2);
    rig_close(&r);
}

TEST(a_kernel_is_priced_as_a_whole)
{
    rig r;
    rig_open(&r, "param $w : f32[5] frozen unit=0 normal\n", ", %x : bf16[6,5]",
             "  %f = cast %x : f32[6,5]\n  %t = tanh %f : f32[6,5]\n"
             "  %y = mul %t, $w : f32[6,5]\n  %z = add %y, %f : f32[6,5]\n  ret %z");
    /* reads %x once and $w, writes %z: three operations an element, the cast is none */
    const cg_cost *c = row(&r, 0, "add", 60 + 20 + 120, 90);
    CHECK(c->kind == CG_ELEMENTWISE && c->work == CG_PLAIN && c->kernels == 1);
    CHECK(r.costs.at.n == 1);
    rig_close(&r);
}

TEST(attention_counts_what_the_mask_leaves)
{
    static const char args[] = ", %q : bf16[2,8,12], %m : i64[2,8]";
    /* %q holds heads of 4: two of queries, one of keys and one of values, hence one value */
    static const char body[] =
        "  %%y, %%l = attention %%q, %%q, %%q, %%m {heads=1, kv_heads=1, head_dim=4, "
        "scale=1, causal=%d, qo=0, ko=4, vo=8%s} : bf16[2,8,4], f32[2,1,8]\n"
        "  %%d = attention_grad %%y, %%q, %%q, %%q, %%y, %%l, %%m {heads=1, "
        "kv_heads=1, head_dim=4, scale=1, causal=%d, qo=0, ko=4, vo=8%s} : "
        "bf16[2,8,12]\n  ret %%d";
    static const struct {
        int causal;
        const char *window;
        double pairs;
    } t[] = {{0, "", 64}, {1, "", 32}, {1, ", window=2", 14}, {0, ", window=2", 46}};
    for (int i = 0; i < (int)EF_COUNT(t); i++) {
        rig r;
        char text[1000];
        snprintf(text, sizeof text, body, t[i].causal, t[i].window, t[i].causal,
                 t[i].window);
        rig_open(&r, "", args, text);
        const cg_cost *c =
            row(&r, 0, "attention", 384 + 128 + 128 + 64, 4 * t[i].pairs * 2 * 4);
        CHECK(c->kind == CG_ATTENTION && c->work == CG_ATTN_FORWARD && c->low);
        CHECK(c->size == 4 && c->seq == 8);
        c = row(&r, 1, "attention_grad", 128 + 384 + 64 + 128 + 384,
                10 * t[i].pairs * 2 * 4);
        CHECK(c->work == CG_ATTN_BACKWARD);
        rig_close(&r);
    }
}

TEST(norms_and_turns)
{
    rig r;
    rig_open(&r, "param $w : f32[8] frozen unit=0 normal\n",
             ", %x : f32[6,8], %c : f32[6,2], %s : f32[6,2], %g : bf16[6,8]",
             "  %y, %r = rmsnorm %x, $w {eps=1e-6, to=\"bf16\"} : bf16[6,8], f32[6]\n"
             "  %t = rotary %y, %c, %s {heads=2} : bf16[6,8]\n"
             "  %u = rotary %g, %c, %s {heads=2} : bf16[6,8]\n"
             "  %d = rmsnorm_dw %g, %x, %r : f32[8]\n  ret %t, %u, %d");
    row(&r, 0, "rmsnorm", 192 + 32 + 96 + 24, 4 * 48);
    /* in place 2 x 2 of 8 columns are touched; else all are copied */
    row(&r, 1, "rotary", 2 * 2 * 24 + 2 * 48, 3 * 24);
    row(&r, 2, "rotary", 2 * 96 + 2 * 48, 3 * 24);
    CHECK(row(&r, 3, "rmsnorm_dw", 96 + 192 + 24 + 32, 3 * 48)->kernels == 2);
    rig_close(&r);
}

TEST(moves_touch_what_they_move)
{
    rig r;
    rig_open(&r, "param $t : f32[100,4] frozen unit=0 normal\n", ", %x : f32[6,8]",
             "  %e = embed $t, %i : f32[6,4]\n"
             "  %s = slice %x {axis=1} : f32[6,2]\n"
             "  %u = unslice %s {axis=1} : f32[6,8]\n"
             "  %k = concat %s, %e {axis=1} : f32[6,6]\n"
             "  %g = embed_grad %e, %i : f32[100,4]\n"
             "  %m = reduce_sum %x {axes=[0]} : f32[8]\n  ret %u, %k, %g, %m");
    row(&r, 0, "embed", 2 * 96 + 48, 0); /* six rows of the table, not all */
    row(&r, 1, "slice", 2 * 48, 0);
    CHECK(row(&r, 2, "unslice", 192 + 2 * 48, 0)->calls == 2);
    CHECK(row(&r, 3, "concat", 2 * 144, 0)->calls == 2);
    row(&r, 4, "embed_grad", 96 + 48 + 1600 + 2 * 96, 24);
    row(&r, 5, "reduce_sum", 192 + 32, 48);
    rig_close(&r);
}

TEST(adapters_are_a_kind_of_their_own)
{
    rig r;
    rig_open(&r,
             "param $a : f32[2,8] train unit=0 kaiming role=lora_a module=\"m\"\n"
             "param $b : f32[5,2] train unit=0 zero role=lora_b module=\"m\"\n"
             "param $a.g : f32[2,8] grad unit=0 of=$a\n",
             ", %x : f32[6,8], %y : f32[6,12]",
             "  %z = neg %y : f32[6,12]\n"
             "  %t = linear %x, $a {tb=1} : f32[6,2]\n"
             "  %u = lora_add %z, %t, $b {by=1, start=3} : f32[6,12]\n"
             "  %e = lora_dt %y, $b {by=1, start=3} : f32[6,2]\n"
             "  %f = lora_db %y, %t {by=1, start=3, len=5} : f32[5,2]\n"
             "  %g = linear_dw %x, %e {tb=1} : f32[2,8]\n  accum $a.g, %g\n"
             "  ret %u, %f");
    row(&r, 0, "neg", 2 * 288, 72);
    const cg_cost *c = row(&r, 1, "linear", 4 * (48 + 16 + 12), 2 * 6 * 8 * 2);
    CHECK(c->kind == CG_LORA && c->size == 2);
    /* five columns of %z, read and written in place */
    c = row(&r, 2, "lora_add", 4 * (2 * 30 + 12 + 10), 2 * 6 * 5 * 2);
    CHECK(c->kind == CG_LORA && c->calls == 1);
    row(&r, 3, "lora_dt", 4 * (30 + 10 + 12), 2 * 6 * 5 * 2);
    row(&r, 4, "lora_db", 4 * (30 + 12 + 10), 2 * 6 * 5 * 2);
    c = row(&r, 5, "linear_dw", 4 * (48 + 12 + 2 * 16), 2 * 6 * 8 * 2);
    CHECK(c->kind == CG_LORA);
    rig_close(&r);
}

TEST(a_head_moves_its_weight_once_a_chunk)
{
    rig r;
    rig_open(&r, "param $w : bf16[100,8] frozen unit=0 normal\n",
             ", %x : bf16[6,8], %s : f32[]",
             "  %l, %d, %w = head_ce_grad %x, $w, %i, %s {tb=1, chunk=4, wgrad=1} : "
             "f32[], bf16[6,8], f32[100,8]\n  ret %l, %d, %w");
    /* two chunks; logits of 600 floats, their gradients in bf16; %w is in no gradient */
    static const struct {
        const char *stage;
        int calls, kernels;
        double bytes, flop;
    } t[] = {{"logits", 1, 2, 96 + 2 * 1600 + 2400, 9600},
             {"softmax", 0, 2, 2400 + 2400 + 1200, 3600},
             {"losses", 0, 1, 48, 6},
             {"dx", 0, 2, 1200 + 2 * 1600 + 96, 9600},
             {"dw", 0, 2, 1200 + 96 + 2 * 2 * 3200, 9600},
             {"zero", 1, 1, 3200, 0}};
    for (int i = 0; i < (int)EF_COUNT(t); i++) {
        const cg_cost *c = row(&r, i, "head_ce_grad", t[i].bytes, t[i].flop);
        CHECK_STR(c->stage, t[i].stage);
        CHECK(c->kind == CG_HEAD && c->calls == t[i].calls);
        CHECK(c->kernels == t[i].kernels);
        CHECK(c->flop != 9600 || (c->size == 4 && c->low && c->work == CG_PRODUCT));
    }
    CHECK(r.costs.at.n == (int)EF_COUNT(t));
    rig_close(&r);
}

TEST(one_call_updates_a_unit)
{
    rig r;
    rig_open(&r,
             "param $w : f32[4,5] train unit=0 normal\n"
             "param $b : f32[5] train unit=0 normal\n"
             "param $w.bf16 : bf16[4,5] image unit=0 of=$w\n"
             "param $w.g : f32[4,5] grad unit=0 of=$w\n"
             "param $b.g : f32[5] grad unit=0 of=$b\n"
             "param $w.m : f32[4,5] state unit=0 of=$w\n"
             "param $w.v : f32[4,5] state unit=0 of=$w\n"
             "param $b.m : f32[5] state unit=0 of=$b\n"
             "param $b.v : f32[5] state unit=0 of=$b\n",
             "",
             "@c: update unit=0\n  %n = norm2 $w.g, $b.g : f32[]\n"
             "  %k = clip_scale %n : f32[]\n"
             "  optim $w, $w.g, $w.m, $w.v, %k, $w.bf16\n"
             "  optim $b, $b.g, $b.m, $b.v, %k\n  ret %n");
    CHECK(row(&r, 0, "norm2", 100 + 4, 2 * 25)->kernels == 3);
    const cg_cost *c = row(&r, 1, "norm2", 100, 0);
    CHECK_STR(c->stage, "zero gradients");
    CHECK(c->calls == 0);
    row(&r, 2, "clip_scale", 8, 4);
    /* parameter, m and v in and out, gradient in, image out */
    c = row(&r, 3, "optim", 25 * (6 * 4 + 4) + 40, 15 * 25);
    CHECK(c->calls == 1 && c->kind == CG_OPTIMIZER && r.costs.at.n == 4);
    rig_close(&r);
}

/* ---- none is forgotten ---- */

TEST(every_op_that_is_lowered_has_a_cost)
{
    for (int i = 0; i < IR_NOPS; i++) {
        bool has = cg_has_cost((ir_opcode)i);
        if (has != (cg_emitters[i] != lw_none))
            printf("  %s: %s\n", ir_ops[i].name,
                   has ? "cost.def has a row, but no code stands for it"
                       : "cost.def has no row");
        CHECK(has == (cg_emitters[i] != lw_none));
    }
}

/* Calls in the text of step.c ahead of eval. */
static int
calls_in(const char *text)
{
    const char *end = strstr(text, "\nupdate(rt_run *run)\n");
    int n = 0;
    NEED(end != NULL);
    for (const char *p = text; (p = strstr(p, "(st,")) && p < end; p++)
        n++;
    for (const char *p = text; (p = strstr(p, "    rt_optim(")) && p < end; p++)
        CHECK(!strncmp(p, "    rt_optim(st,", 16));
    return n;
}

static void
compare_calls(const char *name, const char *lora)
{
    said s;
    said_open(&s);
    ef_config cfg = ef_config_default;
    fe_model *model = NULL;
    bool stopped;
    char dir[] = "/tmp/efficc-cost-XXXXXX";
    NEED(mkdtemp(dir) != NULL);
    cfg.input = ef_printf(s.ctx->arena, SRC_DIR "/tests/cases/%s/model.onnx", name);
    cfg.batch = 2;
    cfg.seq = 8;
    cfg.bf16 = true;
    cfg.lora_r = lora ? 2 : 0;
    cfg.lora_targets = lora;
    s.ctx->cfg = &cfg;
    s.ctx->file = cfg.input;
    const pass_target *target = cg_target(s.ctx);
    ir_module *m = fe_read(s.ctx, &model);
    cg_costs costs;
    bool ok = m && pass_run(m, target, &stopped) && cg_emit(m, target, dir) &&
              cg_cost_of(m, s.ctx->arena, &costs);
    if (!ok)
        printf("  %s: %s", name, said_text(&s));
    NEED(ok);
    size_t n;
    const char *text = ef_read_file(
        s.ctx->arena, ef_printf(s.ctx->arena, "%s/src/step.c", dir), 1 << 24, &n);
    int want = calls_in(text), got = 0;
    for (int i = 0; i < costs.at.n; i++) {
        const cg_cost *c = &costs.at.at[i];
        got += c->calls;
        CHECK(c->bytes > 0 && c->kernels > 0 && c->flop >= 0);
    }
    if (got != want)
        printf("  %s: step.c has %d calls, %d are counted\n", name, want, got);
    CHECK(got == want && got > 50);
    CHECK(system(ef_printf(s.ctx->arena, "rm -rf %s", dir)) == 0);
    ir_module_free(m);
    fe_unload(model);
    said_close(&s);
}

TEST(as_many_calls_are_counted_as_are_emitted)
{
    compare_calls("gpt2-legacy17", NULL);
    compare_calls("bert-regression3-legacy17", NULL);
    compare_calls("qwen2-dynamo", NULL);
    compare_calls("gemma2-legacy17", "all-linear");
    compare_calls("gpt-neox-dynamo", "q,v");
}

/* ---- cards ---- */

static double
seconds(const cg_card *card, cg_cost c, bool hard, bool *by_bytes)
{
    return cg_seconds(card, &c, hard, by_bytes);
}

TEST(a_kernel_waits_for_what_takes_longer)
{
    const cg_card *h200 = cg_card_named("h200", NULL);
    bool by_bytes;
    NEED(h200 != NULL);
    cg_cost c = {.bytes = 3.8e12, .flop = 1};
    CHECK_NEAR(seconds(h200, c, false, &by_bytes), 1, 1e-12);
    CHECK(by_bytes);
    CHECK_NEAR(seconds(h200, c, true, &by_bytes), 3.8 / 4.8, 1e-12);
    c = (cg_cost){.bytes = 1, .flop = 590e12, .work = CG_PRODUCT, .low = true};
    CHECK_NEAR(seconds(h200, c, false, &by_bytes), 1, 1e-12); /* below the table */
    CHECK(!by_bytes);
    CHECK_NEAR(seconds(h200, c, true, &by_bytes), 590 / 794.5, 1e-12);
    c.size = (768 + 2048) / 2;
    CHECK_NEAR(seconds(h200, c, false, &by_bytes), 590.0 / 625, 1e-12);
    c.size = 100000;
    CHECK_NEAR(seconds(h200, c, false, &by_bytes), 590.0 / 650, 1e-12);
    c.low = false;
    CHECK_NEAR(seconds(h200, c, false, &by_bytes), 590.0 / 67, 1e-12);
    c = (cg_cost){
        .flop = 1e12, .work = CG_ATTN_BACKWARD, .low = true, .size = 64, .seq = 3072};
    CHECK_NEAR(seconds(h200, c, false, &by_bytes), 1.0 / 275, 1e-12);
    c.size = 120;
    c.seq = 2048;
    CHECK_NEAR(seconds(h200, c, false, &by_bytes), 1.0 / 370, 1e-12);
}

TEST(cards_have_names)
{
    const char *names;
    CHECK(!cg_card_named("h300", &names));
    CHECK_STR(names, "h200, h100");
}
