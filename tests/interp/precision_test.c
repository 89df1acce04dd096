/* precision_test.c -- modules in bf16 and fp16, in the interpreter.
 *
 * A small language model is trained a few steps in each precision: losses stay near those of
 * f32, gradients have its directions, no step casts a param, and the optimizer keeps images.
 * A loss scaler that meets infinities does what torch.amp.GradScaler does.
 */
#include "test.h"

#include "passes/pass.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char model[] =
    "efficc-ir 1 canon recognise task\n"
    "meta input.ids \"ids\"\n"
    "unit 0 \"a\"\n"
    "param $wte : f32[9,8] train unit=0 normal\n"
    "param $ln.w : f32[8] train unit=0 = 1 1 1 1 1 1 1 1\n"
    "param $ln.b : f32[8] train unit=0 zero\n"
    "param $qkv : f32[8,24] train unit=0 kaiming\n"
    "param $qkv.b : f32[24] train unit=0 zero\n"
    "param $o : f32[8,8] train unit=0 kaiming\n"
    "param $w1 : f32[8,16] train unit=0 kaiming\n"
    "param $w2 : f32[16,8] train unit=0 kaiming\n"
    "param $rms : f32[8] train unit=0 = 1 1 1 1 1 1 1 1\n"
    "func $step(%ids : i64[2,4], %mask : i64[2,4], %targets : i64[2,4], %scale : "
    "f32[]) {\n"
    "@a: fwd unit=0\n"
    "  %x = embed $wte, %ids : f32[2,4,8]\n"
    "  %n, %mean, %rstd = layernorm %x, $ln.w, $ln.b {eps=1e-05} : f32[2,4,8], "
    "f32[2,4], "
    "f32[2,4]\n"
    "  %h = linear %n, $qkv, $qkv.b : f32[2,4,24]\n"
    "  %y, %lse = attention %h, %h, %h, %mask {heads=2, kv_heads=2, head_dim=4, "
    "scale=0.5, causal=1, ko=8, vo=16} : f32[2,4,8], f32[2,2,4]\n"
    "  %p = linear %y, $o : f32[2,4,8]\n"
    "  %r = add %p, %x : f32[2,4,8]\n"
    "  %m, %rr = rmsnorm %r, $rms {eps=1e-06} : f32[2,4,8], f32[2,4]\n"
    "  %f = linear %m, $w1 : f32[2,4,16]\n"
    "  %g = silu %f : f32[2,4,16]\n"
    "  %d = linear %g, $w2 : f32[2,4,8]\n"
    "  %z = add %d, %r : f32[2,4,8]\n"
    "  %loss, %right, %pred, %losses = head_ce %z, $wte, %targets, %scale {tb=1, "
    "chunk=8} "
    ": f32[], i64[], i64[2,4], f32[2,4]\n"
    "  ret %loss\n"
    "}\n";

enum { STEPS = 6 };

typedef struct training {
    ef_ctx *ctx;
    ef_config cfg;
    ir_module *m;
    ir_env env;
} training;

static void
train_open(training *t, bool bf16, bool fp16, const char *residual)
{
    *t = (training){.ctx = ef_ctx_new(), .cfg = ef_config_default};
    t->cfg.bf16 = bf16, t->cfg.fp16 = fp16;
    t->cfg.residual = residual;
    t->ctx->cfg = &t->cfg;
    t->ctx->report = NULL;
    t->m = ir_parse(t->ctx, "model.ir", model);
    NEED(t->m != NULL);
    pass_ctx pc = {.m = t->m, .scratch = ef_arena_new()};
    NEED(!(bf16 || fp16) || pass_autocast(&pc));
    NEED(pass_eval(&pc) && pass_grad(&pc));
    NEED(!fp16 || pass_scale(&pc));
    NEED(pass_cse(&pc) && pass_optim(&pc) && pass_dce(&pc));
    NEED(ir_verify(t->m) == 0);
    ef_arena_free(pc.scratch);
    t->env = (ir_env){.arena = t->ctx->arena, .seed = 3};
    t->env.hyper = (ir_hyper){
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    static const double ids[] = {1, 5, 2, 8, 3, 3, 7, 0},
                        mask[] = {1, 1, 1, 1, 0, 1, 1, 1},
                        targets[] = {5, 2, 8, -100, 3, 7, 0, 4};
    const double *data[] = {ids, mask, targets};
    for (int i = 0; i < 3; i++)
        memcpy(ir_env_new(&t->env, t->m->step->args.at[i])->data, data[i], sizeof ids);
    *ir_env_new(&t->env, t->m->step->args.at[3])->data = 1.0 / 7;
}

static void
train_close(training *t)
{
    ir_module_free(t->m);
    ef_ctx_free(t->ctx);
}

static double
train_step(training *t, int step)
{
    t->env.hyper.step = step + 1;
    ir_env_zero_grads(t->m, &t->env);
    NEED(ir_interp(t->m->step, 1u << IR_FWD | 1u << IR_BWD | 1u << IR_UPDATE, &t->env));
    return *ir_env_get(&t->env, t->m->step->last->last->arg[0])->data;
}

static const ir_tensor *
param(const training *t, const char *name)
{
    const ir_param *p = ir_param_by_name(t->m, name);
    NEED(p != NULL);
    return ir_env_get(&t->env, p->value);
}

static void
losses_stay_near(bool bf16, bool fp16, const char *residual)
{
    training whole, low;
    train_open(&whole, false, false, "f32");
    train_open(&low, bf16, fp16, residual);
    for (int i = 0; i < STEPS; i++) {
        double want = train_step(&whole, i), got = train_step(&low, i);
        CHECK(fabs(got - want) < 0.02 * want);
        CHECK(i == 0 || got != want);
    }
    const ir_tensor *w = param(&low, "w1"),
                    *image = param(&low, fp16 ? "w1.f16" : "w1.bf16");
    for (int i = 0; i < 8 * 16; i++)
        CHECK(image->data[i] == ir_round(image->type->dtype, w->data[i]));
    train_close(&low);
    train_close(&whole);
}

TEST(losses_are_near_those_of_f32)
{
    losses_stay_near(true, false, "f32");
    losses_stay_near(true, false, "bf16");
    losses_stay_near(false, true, "f32");
}

TEST(gradients_point_where_those_of_f32_do)
{
    static const char *const name[] = {"wte.grad",  "qkv.grad", "qkv.b.grad",
                                       "ln.w.grad", "w2.grad",  "rms.grad",
                                       "o.grad"};
    training whole, low;
    train_open(&whole, false, false, "f32");
    train_open(&low, true, false, "f32");
    train_step(&whole, 0);
    train_step(&low, 0);
    for (size_t k = 0; k < EF_COUNT(name); k++) {
        const ir_tensor *a = param(&whole, name[k]), *b = param(&low, name[k]);
        double aa = 0, bb = 0, ab = 0;
        for (int64_t i = 0; i < ir_type_count(a->type); i++) {
            aa += a->data[i] * a->data[i];
            bb += b->data[i] * b->data[i];
            ab += a->data[i] * b->data[i];
        }
        CHECK(b->type->dtype == IR_F32);
        CHECK(ab > 0.999 * sqrt(aa * bb));
    }
    train_close(&low);
    train_close(&whole);
}

static void
set(training *t, const ir_param *p, int i, double x)
{
    ir_env_get(&t->env, p->value)->data[i] = x;
    for (int k = 0; k < t->m->params.n; k++) {
        const ir_param *image = t->m->params.at[k];
        if (image->cls == IR_IMAGE && image->of == p)
            ir_env_get(&t->env, image->value)->data[i] = x;
    }
}

static double
loss_of(training *t)
{
    ir_env_zero_grads(t->m, &t->env);
    NEED(ir_interp(t->m->step, 1u << IR_FWD | 1u << IR_BWD, &t->env));
    return *ir_env_get(&t->env, t->m->step->last->last->arg[0])->data;
}

/* Without rounding, a module in low types computes the true gradient, times the loss's scale. */
static void
gradients_are_slopes(bool fp16, const char *residual)
{
    const double h = 1e-5, scale = fp16 ? IR_FIRST_SCALE : 1;
    int seen = 0;
    training t;
    train_open(&t, !fp16, fp16, residual);
    t.env.exact = true;
    loss_of(&t);
    for (int k = 0; k < t.m->params.n; k++) {
        const ir_param *g = t.m->params.at[k];
        int n = (int)ir_type_count(g->value->type);
        for (int i = 0; g->cls == IR_GRAD && i < n; i += 5) {
            double at = ir_env_get(&t.env, g->of->value)->data[i];
            set(&t, g->of, i, at + h);
            double up = loss_of(&t);
            set(&t, g->of, i, at - h);
            double slope = (up - loss_of(&t)) / (2 * h);
            set(&t, g->of, i, at);
            loss_of(&t);
            CHECK_NEAR(ir_env_get(&t.env, g->value)->data[i] / scale, slope, 1e-7);
            seen++;
        }
    }
    CHECK(seen > 50);
    train_close(&t);
}

TEST(gradients_without_rounding_are_slopes)
{
    gradients_are_slopes(false, "f32");
    gradients_are_slopes(false, "bf16");
    gradients_are_slopes(true, "f32");
}

TEST(no_step_casts_a_param)
{
    training t;
    train_open(&t, true, false, "f32");
    for (const ir_op *op = ir_first_op(t.m->step); op; op = ir_next_op(op))
        CHECK(op->code != IR_OP_cast || !op->arg[0]->param);
    train_close(&t);
}

/* The history of a scaler that starts with `scale`, for a loss scale of which the first n steps
 * overflow. */
TEST(a_scaler_skips_halves_and_doubles)
{
    training t;
    train_open(&t, false, true, "f32");
    ir_tensor *s = ir_env_new(&t.env, ir_param_by_name(t.m, "scaler")->value);
    s->data[0] = 0x1p24; /* times gradients: beyond 65504 */
    double before = NAN;
    int skipped = 0;
    for (int i = 0; i < 20 && s->data[3] == 0; i++) {
        double scale = s->data[0];
        train_step(&t, i);
        const double *w = param(&t, "w1")->data;
        if (s->data[3] == 0) { /* skipped */
            skipped++;
            CHECK(s->data[0] == scale / 2 && s->data[1] == 0);
            CHECK(isnan(before) || *w == before);
        } else
            CHECK(s->data[0] == scale && s->data[1] == 1 && *w != before);
        before = *w;
    }
    CHECK(skipped > 0 && s->data[2] == skipped && s->data[3] == 1);
    s->data[1] = 1999;
    double scale = s->data[0];
    train_step(&t, 0);
    CHECK(s->data[0] == 2 * scale && s->data[1] == 0 && s->data[3] == 2);
    s->data[0] = 1;
    *ir_env_get(&t.env, t.m->step->args.at[3])->data = INFINITY;
    train_step(&t, 0);
    CHECK(s->data[0] == 1 && s->data[2] == skipped + 1);
    train_close(&t);
}
