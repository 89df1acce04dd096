/* stages_test.c -- real exports keep their meaning from pass to pass.
 *
 * Each case of tests/cases is imported; the graph's outputs are computed by the plain ops
 * that the importer made, then again after canon and after recognise. The loss of pass task
 * is computed again after lora (whose adapters add zero), eval, grad, cse and dce. Recognised
 * formulas have exact constants where the file has floats (sqrt 2), hence the tolerance.
 */
#include "noise.h"
#include "test.h"

#include "frontend/frontend.h"
#include "passes/pass.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 2, SEQ = 12, MAX_OUTPUTS = 4 };
#define TOLERANCE 1e-7

typedef struct stages {
    ef_ctx *ctx;
    ef_config cfg;
    ir_module *m;
    pass_ctx pc;
    const char *name;
    ir_tensor *out[MAX_OUTPUTS]; /* of the first run since `forget` */
} stages;

/* In [0, 1), different for every (name, i). */
static double
noise(const char *name, int64_t i)
{
    return (double)(noise_bits(name, i) >> 11) * 0x1p-53;
}

/* A value that argument v may have: ids below the vocabulary, masks with holes, targets of
 * which some are not supervised. */
static double
argument(const ir_module *m, const ir_value *v, int64_t i)
{
    const char *role = ir_meta_get(m, ef_internf(m->ctx, "input.%s", v->name));
    int64_t col = i % v->type->dim[v->type->rank - 1];
    double x = noise(v->name, i);
    NEED(role != NULL);
    if (!strcmp(role, "mask"))
        return col == 0 || x < 0.8;
    if (!strcmp(role, "positions"))
        return (double)col;
    if (!strcmp(role, "labels"))
        return x < 0.3 && i ? -100 : floor(3 * x);
    if (!strcmp(role, "values"))
        return x < 0.3 && i ? NAN : 3 * x;
    return floor(x * (strcmp(role, "types") ? (double)ir_meta_int(m, "vocab", 2) : 2));
}

static void
fill(const stages *s, ir_env *env)
{
    const ir_func *f = s->m->step;
    for (int i = 0; i < f->args.n; i++) {
        const ir_value *v = f->args.at[i];
        ir_tensor *t = ir_env_new(env, v);
        for (int64_t k = 0; k < ir_type_count(v->type); k++)
            t->data[k] = v->type->rank ? argument(s->m, v, k) : 0.5;
    }
}

static void
compare(const stages *s, const char *pass, const ir_tensor *was, const ir_tensor *is)
{
    double worst = 0;
    NEED(ir_type_count(was->type) == ir_type_count(is->type));
    for (int64_t i = 0; i < ir_type_count(was->type); i++)
        worst =
            fmax(worst, fabs(was->data[i] - is->data[i]) / (1 + fabs(was->data[i])));
    if (!(worst <= TOLERANCE))
        printf("  %s: an output changed by %g in pass %s\n", s->name, worst, pass);
    CHECK(worst <= TOLERANCE);
}

/* Runs step; the first `nout` results must be those of the run before. */
static void
check_run(stages *s, const char *pass, int nout)
{
    ir_env env = {.arena = s->ctx->arena, .exact = true};
    const ir_op *ret = s->m->step->last->last;
    fill(s, &env);
    NEED(ir_interp(s->m->step, 1u << IR_FWD | 1u << IR_BWD, &env));
    NEED(ret->narg >= nout);
    for (int i = 0; i < ret->narg && i < MAX_OUTPUTS; i++) {
        ir_tensor *t = ir_env_get(&env, ret->arg[i]);
        NEED(t != NULL);
        if (i < nout && s->out[i])
            compare(s, pass, s->out[i], t);
        s->out[i] = t;
    }
}

static void
run_pass(stages *s, const char *name, pass_fn *pass)
{
    NEED(pass(&s->pc));
    ef_arena_reset(s->pc.scratch);
    if (ir_verify(s->m))
        printf("  %s: broken by pass %s\n", s->name, name);
    CHECK(ir_verify(s->m) == 0);
}

static stages
open_case(const char *name, const char *task)
{
    stages s = {.ctx = ef_ctx_new(), .cfg = ef_config_default, .name = name};
    s.cfg.batch = BATCH;
    s.cfg.seq = SEQ;
    s.cfg.task = task;
    s.cfg.num_labels = task && !strcmp(task, "seq-cls") ? 3 : 0;
    s.ctx->report = NULL;
    s.ctx->file = ef_printf(s.ctx->arena, SRC_DIR "/tests/cases/%s/model.onnx", name);
    return s;
}

/* Reads the case; s must not move any more. */
static fe_model *
import(stages *s)
{
    s->ctx->cfg = &s->cfg;
    fe_model *model = fe_load(s->ctx, s->ctx->file);
    NEED(model != NULL);
    s->m = fe_import(s->ctx, model);
    NEED(s->m != NULL && ir_verify(s->m) == 0);
    s->pc = (pass_ctx){.m = s->m, .scratch = ef_arena_new()};
    return model;
}

static void
close_case(stages *s, fe_model *model)
{
    ef_arena_free(s->pc.scratch);
    fe_unload(model);
    ir_module_free(s->m);
    ef_ctx_free(s->ctx);
}

/* With `lora`, adapters on q and v. */
static void
check_case(const char *name, const char *task, bool lora)
{
    stages s = open_case(name, task);
    s.cfg.lora_r = lora ? 4 : 0;
    fe_model *model = import(&s);
    int nout = s.m->step->last->last->narg;
    check_run(&s, "import", 0);
    run_pass(&s, "canon", pass_canon);
    check_run(&s, "canon", nout);
    run_pass(&s, "recognise", pass_recognise);
    check_run(&s, "recognise", nout);
    memset(s.out, 0, sizeof s.out);
    run_pass(&s, "task", pass_task);
    check_run(&s, "task", 1);
    CHECK(isfinite(s.out[0]->data[0]) && s.out[0]->data[0] > 0);
    if (lora)
        run_pass(&s, "lora", pass_lora);
    check_run(&s, "lora", 1);
    run_pass(&s, "eval", pass_eval);
    run_pass(&s, "grad", pass_grad);
    check_run(&s, "grad", 1);
    run_pass(&s, "cse", pass_cse);
    run_pass(&s, "dce", pass_dce);
    check_run(&s, "dce", 1);
    close_case(&s, model);
}

/* Leaves loss and gradients in env. */
static fe_model *
gradients(stages *s, ir_env *env)
{
    fe_model *model = import(s);
    run_pass(s, "canon", pass_canon);
    run_pass(s, "recognise", pass_recognise);
    run_pass(s, "task", pass_task);
    run_pass(s, "grad", pass_grad);
    *env = (ir_env){.arena = s->ctx->arena, .exact = true};
    fill(s, env);
    NEED(ir_interp(s->m->step, 1u << IR_FWD | 1u << IR_BWD, env));
    return model;
}

/* Gradients of the recognised ops are those of the plain ops, relative to the largest. */
static void
check_gradients(const char *name, const char *task)
{
    stages a = open_case(name, task), b = open_case(name, task);
    ir_env fused, plain;
    b.cfg.no_recognise = "all";
    fe_model *ma = gradients(&a, &fused), *mb = gradients(&b, &plain);
    for (int i = 0; i < a.m->params.n; i++) {
        const ir_param *p = a.m->params.at[i];
        const ir_param *q = ir_param_by_name(b.m, p->value->name);
        if (p->cls != IR_GRAD)
            continue;
        NEED(q != NULL);
        ir_tensor *x = ir_env_get(&fused, p->value), *y = ir_env_get(&plain, q->value);
        double worst = 0, most = 1e-3;
        for (int64_t k = 0; k < ir_type_count(x->type); k++) {
            worst = fmax(worst, fabs(x->data[k] - y->data[k]));
            most = fmax(most, fabs(y->data[k]));
        }
        if (!(worst <= 1e-6 * most))
            printf("  %s: %s is off by %g of %g\n", name, p->value->name, worst, most);
        CHECK(worst <= 1e-6 * most);
    }
    close_case(&a, ma);
    close_case(&b, mb);
}

/* task NULL: as the graph says. */
#define CASE(id, name, task)           \
    TEST(id)                           \
    {                                  \
        check_case(name, task, false); \
        check_case(name, task, true);  \
    }

CASE(bert_legacy14, "bert-legacy14", NULL)
CASE(bert_legacy17, "bert-legacy17", NULL)
CASE(bert_optimum, "bert-optimum", NULL)
CASE(bert_legacy17_dedup, "bert-legacy17-dedup", NULL)
CASE(bert_mlm_legacy17, "bert-mlm-legacy17", NULL)
CASE(bert_tokencls_legacy17, "bert-tokencls-legacy17", NULL)
CASE(bert_regression_legacy17, "bert-regression-legacy17", NULL)
CASE(bert_regression3_legacy17, "bert-regression3-legacy17", "regression")
CASE(gpt2_legacy14, "gpt2-legacy14", NULL)
CASE(gpt2_legacy17, "gpt2-legacy17", NULL)
CASE(gpt2_optimum, "gpt2-optimum", NULL)
CASE(minilm_legacy17, "minilm-legacy17", "seq-cls")
CASE(minilm_optimum, "minilm-optimum", "seq-cls")

TEST(plain_ops_give_the_same_gradients)
{
    check_gradients("bert-legacy14", "seq-cls");
    check_gradients("bert-legacy17", "seq-cls");
    check_gradients("bert-mlm-legacy17", "mlm");
    check_gradients("bert-regression3-legacy17", "regression");
    check_gradients("gpt2-legacy14", "causal-lm");
    check_gradients("gpt2-legacy17", "causal-lm");
    check_gradients("minilm-optimum", "seq-cls");
}
