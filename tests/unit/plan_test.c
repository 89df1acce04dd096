/* plan_test.c -- where pass plan puts things, and that its checkers notice a wrong plan. */
#include "test.h"

#include "passes/plan_int.h"
#include "said.h"

/* ---- offsets for lifetimes ---- */

static uint32_t
noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

TEST(fit_never_overlaps_and_knows_its_bound)
{
    ef_arena *a = ef_arena_new();
    uint32_t state = 7;
    for (int round = 0; round < 200; round++) {
        pass_buffer b[40];
        int n = 1 + (int)(noise(&state) % 40);
        for (int i = 0; i < n; i++) {
            int lo = (int)(noise(&state) % 30);
            b[i] = (pass_buffer){lo, lo + (int)(noise(&state) % 10),
                                 1 + noise(&state) % 1000, -1};
        }
        int64_t bound, arena = pass_fit(b, n, 64, a, &bound);
        CHECK(!pass_fit_check(b, n, a));
        CHECK(arena >= bound && bound % 64 == 0);
        for (int i = 0; i < n; i++)
            CHECK(b[i].offset % 64 == 0 && b[i].offset + b[i].bytes <= arena);
    }
    ef_arena_free(a);
}

TEST(fit_reaches_the_bound_on_a_training_step)
{
    ef_arena *a = ef_arena_new();
    pass_buffer
        b[60]; /* 20 layers: saved from forward to backward, and two that are not */
    for (int l = 0; l < 20; l++) {
        b[3 * l] = (pass_buffer){l, 39 - l, 4096, 0};
        b[3 * l + 1] = (pass_buffer){l, l + 1, 16384, 0};
        b[3 * l + 2] = (pass_buffer){38 - l, 39 - l, 16384, 0};
    }
    int64_t bound, arena = pass_fit(b, 60, 64, a, &bound);
    CHECK(arena == bound);
    ef_arena_free(a);
}

TEST(fit_of_nothing_is_empty)
{
    ef_arena *a = ef_arena_new();
    int64_t bound = -1;
    CHECK(pass_fit(NULL, 0, 64, a, &bound) == 0 && bound == 0);
    ef_arena_free(a);
}

TEST(check_names_the_buffers_that_overlap)
{
    ef_arena *a = ef_arena_new();
    pass_buffer b[] = {{0, 3, 100, 0}, {3, 5, 100, 99}, {6, 7, 100, 0}};
    const char *wrong = pass_fit_check(b, 3, a);
    NEED(wrong != NULL);
    CHECK_STR(wrong, "buffers 0 and 1 overlap at offset 99");
    b[1].offset = 100;
    CHECK(!pass_fit_check(b, 3, a));
    ef_arena_free(a);
}

/* ---- modules ---- */

static int64_t
scratch(ef_ctx *ctx, const ir_op *op, const char **why)
{
    (void)ctx;
    *why = "the test's target has no such thing";
    return op->code == IR_OP_cumsum ? -1 : op->code == IR_OP_linear ? 100 : 0;
}

static bool
fuse(const ir_op *first, const ir_op *second)
{
    return first->code != IR_OP_erf && second->code != IR_OP_erf;
}

static const pass_target target = {
    .name = "test", .align = 64, .scratch = scratch, .fuse = fuse};

typedef struct planned {
    said s;
    pass_ctx pc;
    bool ok;
} planned;

/* Parses and plans a module. */
static void
plan(planned *p, const char *params, const char *body)
{
    said_open(&p->s);
    const char *text =
        ef_printf(p->s.ctx->arena,
                  "efficc-ir 1\nunit 0 \"u\"\nunit 1 \"v\"\n%s\n"
                  "func $step(%%x : f32[4,8], %%y : f32[8], %%i : i64[4]) "
                  "{\n@b: fwd unit=0\n%s\n}\n",
                  params, body);
    p->pc = (pass_ctx){ir_parse(p->s.ctx, "t.ir", text), ef_arena_new(), &target};
    if (!p->pc.m)
        printf("%s", said_text(&p->s));
    NEED(p->pc.m != NULL);
    p->ok = pass_plan(&p->pc);
}

static void
done(planned *p)
{
    ef_arena_free(p->pc.scratch);
    ir_module_free(p->pc.m);
    said_close(&p->s);
}

static ir_op *
def(const planned *p, const char *name)
{
    for (ir_op *op = ir_first_op(p->pc.m->step); op; op = ir_next_op(op))
        for (int i = 0; i < op->nres; i++)
            if (!strcmp(op->res[i]->name, name))
                return op;
    printf("  no value %%%s\n", name);
    CU_ASSERT_FATAL(false);
    return NULL;
}

static int64_t
at(const planned *p, const char *name)
{
    const ir_op *op = def(p, name);
    const ir_attr *a = ir_attr_get(op, IR_ATTR_at);
    NEED(a != NULL);
    for (int i = 0; i < op->nres; i++)
        if (!strcmp(op->res[i]->name, name))
            return a->u.l[i];
    return -9;
}

static int64_t
kernel(const planned *p, const char *name)
{
    return ir_attr_int(def(p, name), IR_ATTR_kernel, -1);
}

TEST(params_lie_in_flat_buffers_of_unit_and_class)
{
    planned p;
    plan(&p,
         "param $a : f32[3] train unit=0 zero\n"
         "param $b : f32[20] train unit=0 zero\n"
         "param $c : f32[2] frozen unit=0 zero\n"
         "param $d : f32[2] train unit=1 zero\n"
         "param $b.grad : f32[20] grad unit=0 of=$b\n"
         "param $b.m : f32[20] state unit=0 of=$b\n",
         "  ret");
    CHECK(p.ok);
    CHECK(ir_param_by_name(p.pc.m, "a")->offset == 0);
    CHECK(ir_param_by_name(p.pc.m, "b")->offset == 64);
    CHECK(ir_param_by_name(p.pc.m, "c")->offset == 0);
    CHECK(ir_param_by_name(p.pc.m, "d")->offset == 0);
    CHECK(ir_param_by_name(p.pc.m, "b.grad")->offset == 64);
    CHECK(ir_param_by_name(p.pc.m, "b.m")->offset == 64);
    done(&p);
}

TEST(neighbours_of_one_shape_form_a_kernel)
{
    planned p;
    plan(&p, "",
         "  %t = tanh %x : f32[4,8]\n"
         "  %half = const {value=0.5} : f32[]\n"
         "  %u = mul %t, %half : f32[4,8]\n"
         "  %v = add %u, %y : f32[4,8]\n"
         "  %w = exp %y : f32[8]\n"
         "  ret %v, %w");
    CHECK(kernel(&p, "t") == 0 && kernel(&p, "u") == 0 && kernel(&p, "v") == 0);
    CHECK(kernel(&p, "half") == -1 && at(&p, "half") == -1);
    CHECK(kernel(&p, "w") == 1); /* other dimensions */
    CHECK(at(&p, "t") == -1 && at(&p, "u") == -1);
    CHECK(at(&p, "v") >= 0 && at(&p, "w") >= 0);
    done(&p);
}

TEST(kernels_end_at_other_ops_and_where_the_target_says)
{
    planned p;
    plan(&p, "",
         "  %a = tanh %x : f32[4,8]\n"
         "  %r = reshape %a : f32[32]\n"
         "  %b = tanh %a : f32[4,8]\n"
         "  %s = softmax %b : f32[4,8]\n"
         "  %c = tanh %s : f32[4,8]\n"
         "  %d = erf %c : f32[4,8]\n"
         "  ret %d, %r");
    CHECK(kernel(&p, "a") == 0 && kernel(&p, "b") == 0); /* a view is no code */
    CHECK(kernel(&p, "c") == 1 && kernel(&p, "d") == 2);
    CHECK(at(&p, "a") >= 0 && at(&p, "r") == PASS_IN_OPERAND);
    done(&p);
}

TEST(a_kernel_does_not_read_back_what_it_writes)
{
    planned p;
    plan(&p, "",
         "  %a = exp %y : f32[8]\n"
         "  %b = expand %a : f32[1,8]\n"
         "  %v = reshape %b : f32[8]\n"
         "  %c = expand %v : f32[1,8]\n"
         "  ret %c");
    CHECK(kernel(&p, "b") == 1 && kernel(&p, "c") == 2);
    done(&p);
}

TEST(a_constant_that_others_read_is_made)
{
    planned p;
    plan(&p, "",
         "  %c = const {value=2} : f32[4,8]\n"
         "  %d = mul %x, %c : f32[4,8]\n"
         "  %s = softmax %c : f32[4,8]\n"
         "  ret %d, %s");
    CHECK(kernel(&p, "c") == 0 && at(&p, "c") >= 0);
    done(&p);
}

TEST(results_lie_over_operands_that_die)
{
    planned p;
    plan(&p, "param $w : f32[8,8] frozen unit=0 zero\n",
         "  %h = linear %x, $w : f32[4,8]\n"
         "  %g = gelu %h : f32[4,8]\n"
         "  %k = linear %g, $w : f32[4,8]\n"
         "  %s = add %k, %g : f32[4,8]\n"
         "  %n = linear %s, $w : f32[4,8]\n"
         "  ret %n, %s");
    CHECK(at(&p, "g") == at(&p, "h"));
    CHECK(at(&p, "k") != at(&p, "g"));
    CHECK(at(&p, "s") == at(&p, "g") || at(&p, "s") == at(&p, "k"));
    CHECK(at(&p, "n") != at(&p, "s"));
    CHECK(ir_attr_get(def(&p, "h"), IR_ATTR_ws)->u.l[1] == 100);
    CHECK(!pass_plan_replay(p.pc.m->step, p.pc.scratch));
    done(&p);
}

TEST(nothing_lies_over_params_arguments_or_broadcast_operands)
{
    planned p;
    plan(&p, "param $w : f32[4,8] frozen unit=0 zero\n",
         "  %a = add %x, $w : f32[4,8]\n"
         "  %s = softmax %y : f32[8]\n"
         "  %e = expand %s : f32[1,8]\n"
         "  %b = add %s, %e : f32[1,8]\n"
         "  %t = softmax %b : f32[1,8]\n"
         "  %c = add %t, %a : f32[4,8]\n"
         "  ret %c");
    CHECK(at(&p, "a") >= 0 && at(&p, "c") != at(&p, "t"));
    CHECK(at(&p, "c") == at(&p, "a"));
    done(&p);
}

TEST(norm_and_adapter_lie_over_their_first_operand_only)
{
    planned p;
    plan(
        &p,
        "param $w : f32[8,8] frozen unit=0 zero\nparam $g : f32[8] frozen unit=0 zero\n"
        "param $b : f32[8,2] frozen unit=0 zero\n",
        "  %m = softmax %x : f32[4,8]\n"
        "  %mean = reduce_mean %x {axes=[1]} : f32[4]\n"
        "  %d = linear %x, $w : f32[4,8]\n"
        "  %dx = layernorm_dx %d, %m, $g, %mean, %mean : f32[4,8]\n"
        "  %t = lora_dt %dx, $b {by=1} : f32[4,2]\n"
        "  %z = linear %x, $w : f32[4,8]\n"
        "  %l = lora_add %z, %t, $b {by=1} : f32[4,8]\n"
        "  ret %l");
    CHECK(at(&p, "dx") == at(&p, "d"));
    CHECK(at(&p, "l") == at(&p, "z"));
    done(&p);
}

TEST(one_value_twice_is_not_written_over)
{
    planned p;
    plan(&p, "param $g : f32[8] frozen unit=0 zero\n",
         "  %m = softmax %x : f32[4,8]\n"
         "  %mean = reduce_mean %x {axes=[1]} : f32[4]\n"
         "  %dx = layernorm_dx %m, %m, $g, %mean, %mean : f32[4,8]\n"
         "  ret %dx");
    CHECK(at(&p, "dx") != at(&p, "m"));
    done(&p);
}

static const char grads[] = "param $w : f32[8,8] train unit=0 zero\n"
                            "param $w.grad : f32[8,8] grad unit=0 of=$w\n"
                            "param $b : f32[8] train unit=0 zero\n"
                            "param $b.grad : f32[8] grad unit=0 of=$b\n"
                            "param $c : f32[4] train unit=0 zero\n"
                            "param $c.grad : f32[4] grad unit=0 of=$c\n";

TEST(gradients_go_straight_into_their_buffers)
{
    planned p;
    plan(&p, grads,
         "  %dw = linear_dw %x, %x : f32[8,8]\n"
         "  accum $w.grad, %dw\n"
         "  %db = reduce_sum %x {axes=[0]} : f32[8]\n"
         "  accum $b.grad, %db\n"
         "  %dc = reduce_sum %x {axes=[1]} : f32[4]\n"
         "  accum $c.grad, %dc\n"
         "  ret");
    CHECK(at(&p, "dw") == PASS_IN_GRADIENT && at(&p, "db") == PASS_IN_GRADIENT);
    CHECK(at(&p, "dc") >= 0); /* no kernel adds such a sum */
    done(&p);
}

TEST(a_gradient_with_two_users_has_a_place)
{
    planned p;
    plan(&p, grads,
         "  %dw = linear_dw %x, %x : f32[8,8]\n"
         "  accum $w.grad, %dw\n"
         "  %n = exp %dw : f32[8,8]\n"
         "  %e = exp %x : f32[4,8]\n"
         "  ret %n, %e");
    CHECK(at(&p, "dw") >= 0);
    done(&p);
}

TEST(results_of_the_function_survive)
{
    planned p;
    plan(&p, "",
         "  %a = softmax %x : f32[4,8]\n"
         "  %b = softmax %x : f32[4,8]\n"
         "  %c = softmax %b : f32[4,8]\n"
         "  %d = softmax %c : f32[4,8]\n"
         "  ret %a, %d");
    CHECK(at(&p, "a") != at(&p, "b") && at(&p, "a") != at(&p, "c"));
    CHECK(at(&p, "a") != at(&p, "d") && at(&p, "d") == at(&p, "b"));
    CHECK(ir_meta_int(p.pc.m, "arena_bytes", -1) == 3 * 128);
    CHECK(ir_meta_int(p.pc.m, "bound_bytes", -1) == 3 * 128);
    done(&p);
}

TEST(ops_that_the_target_refuses_are_all_reported)
{
    planned p;
    plan(&p, "",
         "  %a = cumsum %i {axis=0} : i64[4] !\"/first\"\n"
         "  %b = cumsum %a {axis=0} : i64[4] !\"/second\"\n"
         "  %c = cumsum %a {axis=0} : i64[4] !\"/third\"\n"
         "  ret %b, %c");
    CHECK(!p.ok);
    CHECK(said_has(&p.s, "/first: error: cumsum can not be lowered to the test target: "
                         "the test's target has no such thing [E0401]"));
    CHECK(said_has(&p.s, "note: so it is with 2 more: /second, /third\n"));
    CHECK(p.s.ctx->nerror == 1);
    done(&p);
}

TEST(planning_twice_gives_the_same)
{
    planned p;
    plan(&p, "param $w : f32[8,8] frozen unit=0 zero\n",
         "  %h = linear %x, $w : f32[4,8]\n"
         "  %g = gelu %h : f32[4,8]\n"
         "  %k = linear %g, $w : f32[4,8]\n"
         "  ret %k");
    ef_buf first = {.arena = p.pc.scratch}, second = {.arena = p.pc.scratch};
    ir_print(p.pc.m, &first);
    CHECK(pass_plan(&p.pc));
    ir_print(p.pc.m, &second);
    CHECK_STR(first.s, second.s);
    done(&p);
}

/* ---- the replay ---- */

static const char *
replay_with(planned *p, const char *name, ir_attr_key key, int n, const int64_t *list)
{
    ir_attr_set(p->pc.m, def(p, name), ir_attr_l(key, n, list));
    return pass_plan_replay(p->pc.m->step, p->pc.scratch);
}

static void
plan_chain(planned *p)
{
    plan(p, "param $w : f32[8,8] frozen unit=0 zero\n",
         "  %a = softmax %x : f32[4,8]\n"
         "  %b = linear %a, $w : f32[4,8]\n"
         "  %c = mul %b, %a : f32[4,8]\n"
         "  ret %c");
    CHECK(!pass_plan_replay(p->pc.m->step, p->pc.scratch));
}

TEST(replay_finds_what_is_overwritten)
{
    planned p;
    plan_chain(&p);
    const char *wrong = replay_with(&p, "b", IR_ATTR_at, 1, (int64_t[]){at(&p, "a")});
    NEED(wrong != NULL);
    CHECK_STR(wrong, "linear at %b: writes over its operand %a");
    done(&p);
}

TEST(replay_finds_scratch_space_over_an_operand)
{
    planned p;
    plan_chain(&p);
    const char *wrong =
        replay_with(&p, "b", IR_ATTR_ws, 2, (int64_t[]){at(&p, "a") + 64, 8});
    NEED(wrong != NULL);
    CHECK_STR(wrong, "linear at %b: has its scratch space over %a");
    done(&p);
}

TEST(replay_finds_results_half_over_operands)
{
    planned p;
    plan_chain(&p);
    const char *wrong =
        replay_with(&p, "c", IR_ATTR_at, 1, (int64_t[]){at(&p, "a") + 64});
    NEED(wrong != NULL);
    CHECK(strstr(wrong, "mul at %c: writes over its operand") != NULL);
    done(&p);
}

TEST(replay_finds_a_value_that_is_gone)
{
    planned p;
    plan(&p, "param $w : f32[8,8] frozen unit=0 zero\n",
         "  %a = softmax %x : f32[4,8]\n"
         "  %b = softmax %x : f32[4,8]\n"
         "  %c = softmax %b : f32[4,8]\n"
         "  ret %a, %c");
    const char *wrong = replay_with(&p, "b", IR_ATTR_at, 1, (int64_t[]){at(&p, "a")});
    NEED(wrong != NULL);
    CHECK(strstr(wrong, "reads what is overwritten, %a") != NULL);
    done(&p);
}
