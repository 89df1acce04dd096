/* unpad_test.c -- rows instead of padding: the same losses and gradients.
 *
 * Each case of tests/cases is made twice, with and without pass unpad, and both modules are
 * run in the interpreter on the same batches, of which the rows are full, short, padded on the
 * left, with holes, of one token or of none at all, and supervised where the mask hides. The
 * lists of rows are filled here by their definition, not by the code of the trainer.
 */
#include "noise.h"
#include "test.h"

#include "frontend/frontend.h"
#include "passes/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 5, SEQ = 8, ITEMS = BATCH * SEQ, IGNORE = -100 };

typedef enum shape { FULL, SHORT, LEFT, HOLES, ONE, NONE } shape;

typedef struct batch {
    const char *name;
    shape row[BATCH];
    bool supervise_all; /* else only what the mask shows */
} batch;

static const batch batches[] = {
    {"full rows", {FULL, FULL, FULL, FULL, FULL}, false},
    {"short rows", {SHORT, FULL, ONE, SHORT, SHORT}, false},
    {"padding on the left", {LEFT, LEFT, FULL, LEFT, ONE}, false},
    {"holes", {HOLES, SHORT, HOLES, LEFT, HOLES}, false},
    {"a row of padding", {NONE, HOLES, NONE, ONE, NONE}, false},
    {"nothing but padding", {NONE, NONE, NONE, NONE, NONE}, false},
    {"supervised where hidden", {SHORT, HOLES, LEFT, NONE, ONE}, true},
};

typedef struct side {
    ef_ctx *ctx;
    ef_config cfg;
    fe_model *model;
    ir_module *m;
    ir_env env;
} side;

/* ---- what a batch holds ---- */

/* In [0, 1), different for every (name, i). */
static double
noise(const char *name, int64_t i)
{
    return (double)(noise_bits(name, i) >> 11) * 0x1p-53;
}

static bool
shown(const batch *b, int64_t i)
{
    int64_t t = i % SEQ;
    switch (b->row[i / SEQ]) {
    case FULL:
        return true;
    case SHORT:
        return t < 3 + i / SEQ;
    case LEFT:
        return t > i / SEQ;
    case HOLES:
        return noise(b->name, i) < 0.6;
    case ONE:
        return t == 0;
    default:
        return false;
    }
}

static double
label(const batch *b, int64_t i, int64_t classes)
{
    if ((!b->supervise_all && !shown(b, i)) || noise("supervised", i) < 0.3)
        return IGNORE;
    return floor(noise("label", i) * (double)classes);
}

static const char *
role_of(const ir_module *m, const ir_value *v)
{
    const char *role = ir_meta_get(m, ef_internf(m->ctx, "input.%s", v->name));
    return role ? role : "";
}

/* Item i of an argument that both modules have. */
static double
item(const ir_module *m, const ir_value *v, const batch *b, int64_t i)
{
    const char *role = role_of(m, v);
    double vocab = (double)ir_meta_int(m, "vocab", 2);
    double x = noise(v->name, i);
    if (!strcmp(role, "mask"))
        return shown(b, i);
    if (!strcmp(role, "positions"))
        return (double)(i % SEQ);
    if (!strcmp(role, "values"))
        return x < 0.3 ? NAN : 3 * x;
    if (!strcmp(role, "scale"))
        return 0.125;
    if (!strcmp(role, "labels"))
        return v->type->rank == 1 ? floor(3 * x)
                                  : label(b, i, ir_meta_int(m, "labels", 3));
    return floor(x * (!strcmp(role, "types") ? 2 : vocab));
}

/* ---- the lists ---- */

static bool
has_mask(const ir_module *m)
{
    const ir_func *f = m->step;
    for (int i = 0; i < f->args.n; i++)
        if (!strcmp(role_of(m, f->args.at[i]), "mask") && f->args.at[i]->nuse)
            return true;
    return false;
}

/* Without a mask, what is real is what comes before the row's end. */
static bool
computed(const ir_module *m, const batch *b, int64_t i)
{
    bool real = shown(b, i);
    for (int64_t k = i; !has_mask(m) && k / SEQ == i / SEQ && k < ITEMS; k++)
        real = real || shown(b, k);
    if (i % SEQ == ir_meta_int(m, "unpad.pin", -1))
        return true;
    bool tokens = ir_meta_get(m, "sizes.sup") != NULL;
    return real || (tokens && label(b, i, 3) != IGNORE);
}

typedef struct lists {
    int n, nsup;
    double row[ITEMS], position[ITEMS], offsets[BATCH + 1], pooled[BATCH];
    double sup[ITEMS], labels[ITEMS];
} lists;

static void
list(const ir_module *m, const batch *b, lists *l)
{
    int n = 0, nsup = 0;
    *l = (lists){0};
    for (int i = 0; i < ITEMS; i++) {
        if (i % SEQ == 0)
            l->offsets[i / SEQ] = n;
        l->labels[i] = IGNORE;
    }
    for (int i = 0; i < ITEMS; i++) {
        double y = label(b, i, ir_meta_int(m, "labels", 3));
        if (i % SEQ == 0)
            l->offsets[i / SEQ] = n;
        if (!computed(m, b, i))
            continue;
        if (i % SEQ == ir_meta_int(m, "unpad.pin", -1))
            l->pooled[i / SEQ] = n;
        if (y != IGNORE) {
            l->labels[nsup] = y;
            l->sup[nsup++] = n;
        }
        l->position[n] = i % SEQ;
        l->row[n++] = i;
    }
    l->offsets[BATCH] = n;
    l->n = n, l->nsup = nsup;
}

/* The type that v has in this batch: of the smallest size of the plan that has room. */
static const ir_type *
sized(const ir_module *m, const ir_value *v, const lists *l)
{
    ir_type t = *v->type;
    if (!t.rank || !t.sym[0])
        return v->type;
    const char *size = ir_meta_get(m, t.sym[0] == IR_ROWS ? "sizes.rows" : "sizes.sup");
    do
        t.dim[0] = strtoll(size, (char **)&size, 10);
    while (t.dim[0] < (t.sym[0] == IR_ROWS ? l->n : l->nsup));
    return ir_type_intern(m->ctx, &t);
}

static const double *
list_of(const lists *l, const ir_module *m, const ir_value *v)
{
    const char *role = role_of(m, v);
    return !strcmp(role, "row")        ? l->row
           : !strcmp(role, "position") ? l->position
           : !strcmp(role, "offsets")  ? l->offsets
           : !strcmp(role, "pooled")   ? l->pooled
           : !strcmp(role, "sup")      ? l->sup
           : v->type->sym[0] == IR_SUP ? l->labels
                                       : NULL;
}

/* ---- both modules ---- */

static void
run_pass(side *s, pass_fn *pass)
{
    pass_ctx pc = {.m = s->m, .scratch = ef_arena_new()};
    NEED(pass(&pc) && ir_verify(s->m) == 0);
    ef_arena_free(pc.scratch);
}

static bool
is_unpadded(const ir_module *m)
{
    return ir_meta_get(m, "sizes.rows") != NULL;
}

/* task: a name; "mean" is a new classifier of the mean of tokens. */
static void
open_side(side *s, const char *name, const char *task, bool unpad)
{
    bool mean = task && !strcmp(task, "mean");
    task = mean ? "seq-cls" : task;
    *s = (side){.ctx = ef_ctx_new(), .cfg = ef_config_default};
    s->cfg.batch = BATCH, s->cfg.seq = SEQ, s->cfg.task = task;
    s->cfg.num_labels = task && !strcmp(task, "seq-cls") ? 3 : 0;
    if (mean)
        s->cfg.pool = "mean";
    s->ctx->cfg = &s->cfg;
    s->ctx->report = NULL;
    s->ctx->file = ef_printf(s->ctx->arena, SRC_DIR "/tests/cases/%s/model.onnx", name);
    s->model = fe_load(s->ctx, s->ctx->file);
    NEED(s->model != NULL);
    s->m = fe_import(s->ctx, s->model);
    NEED(s->m != NULL);
    run_pass(s, pass_canon);
    run_pass(s, pass_recognise);
    run_pass(s, pass_task);
    if (unpad)
        run_pass(s, pass_unpad);
    run_pass(s, pass_eval);
    run_pass(s, pass_grad);
    run_pass(s, pass_cse);
    run_pass(s, pass_dce);
}

static void
close_side(side *s)
{
    fe_unload(s->model);
    ir_module_free(s->m);
    ef_ctx_free(s->ctx);
}

/* Computes loss and gradients; the loss. */
static double
run_side(side *s, const batch *b)
{
    const ir_func *f = s->m->step;
    lists l;
    list(s->m, b, &l);
    s->env = (ir_env){.arena = s->ctx->arena, .exact = true};
    for (int i = 0; i < f->args.n; i++) {
        const ir_value *v = f->args.at[i];
        ir_tensor *t = ir_env_new(&s->env, v);
        const double *from = list_of(&l, s->m, v);
        t->type = sized(s->m, v, &l);
        for (int64_t k = 0; k < ir_type_count(t->type); k++)
            t->data[k] = from ? from[k] : item(s->m, v, b, k);
    }
    NEED(ir_interp(f, 1u << IR_FWD | 1u << IR_BWD, &s->env));
    return *ir_env_get(&s->env, f->last->last->arg[0])->data;
}

/* Gradients of both, relative to the largest. */
static bool
same_gradients(side *a, side *b)
{
    for (int i = 0; i < a->m->params.n; i++) {
        const ir_param *p = a->m->params.at[i];
        if (p->cls != IR_GRAD)
            continue;
        const ir_param *q = ir_param_by_name(b->m, p->value->name);
        NEED(q != NULL);
        const ir_tensor *x = ir_env_get(&a->env, p->value),
                        *y = ir_env_get(&b->env, q->value);
        double worst = 0, most = 1e-6;
        for (int64_t k = 0; k < ir_type_count(x->type); k++) {
            worst = isnan(x->data[k] - y->data[k])
                        ? INFINITY
                        : fmax(worst, fabs(x->data[k] - y->data[k]));
            most = fmax(most, fabs(y->data[k]));
        }
        if (worst > 1e-9 * most) {
            printf("  %s is off by %g of %g\n", p->value->name, worst, most);
            return false;
        }
    }
    return true;
}

static void
check_case(const char *name, const char *task)
{
    side rows, padded;
    open_side(&rows, name, task, true);
    open_side(&padded, name, task, false);
    if (!is_unpadded(rows.m))
        printf("  %s: stays padded\n", name);
    CHECK(is_unpadded(rows.m));
    for (size_t i = 0; i < EF_COUNT(batches) && is_unpadded(rows.m); i++) {
        double got = run_side(&rows, &batches[i]),
               want = run_side(&padded, &batches[i]);
        bool same = fabs(got - want) <= 1e-9 * fmax(1, fabs(want)) &&
                    same_gradients(&rows, &padded);
        if (!same)
            printf("  %s, %s: loss %.12g, padded %.12g\n", name, batches[i].name, got,
                   want);
        CHECK(same);
    }
    close_side(&padded);
    close_side(&rows);
}

TEST(encoders_with_a_class_a_row)
{
    check_case("bert-legacy14", NULL);
    check_case("bert-legacy17", NULL);
    check_case("bert-optimum", NULL);
    check_case("bert-regression3-legacy17", "regression");
    check_case("minilm-legacy17", "seq-cls");
    check_case("minilm-optimum", "seq-cls");
}

TEST(encoders_with_a_mean_of_tokens)
{
    check_case("minilm-legacy17", "mean");
    check_case("minilm-optimum", "mean");
}

TEST(encoders_with_a_class_a_token)
{
    check_case("bert-tokencls-legacy17", NULL);
    check_case("bert-mlm-legacy17", NULL);
}

TEST(gpt2)
{
    check_case("gpt2-legacy14", NULL);
    check_case("gpt2-legacy17", NULL);
    check_case("gpt2-optimum", NULL);
    check_case("gpt2-dynamo-sim", NULL);
}

TEST(models_with_rotary_positions)
{
    check_case("llama-tied-dynamo", NULL);
    check_case("qwen2-dynamo", NULL);
    check_case("gpt-neox-dynamo", NULL);
    check_case("phi3-dynamo", NULL);
    check_case("gemma2-legacy17", NULL);
}
