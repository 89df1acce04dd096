/* meaning_test.c -- passes that must not change what a program computes, don't.
 *
 * For every golden NAME.ir with its NAME.want, both modules run in the interpreter on the
 * same arguments and params: the same function results, gradients included. Recognised
 * formulas have exact constants where files have floats (sqrt 2): hence the tolerance.
 */
#include "noise.h"
#include "test.h"

#include "ir/ir.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* In (-1, 1), different for every (name, i). */
static double
noise(const char *name, int64_t i)
{
    return (double)(noise_bits(name, i) >> 11) * 0x1p-52 - 1;
}

static void
fill(ir_env *env, const ir_value *v)
{
    ir_tensor *t = ir_env_new(env, v);
    bool floats = ir_dtypes[v->type->dtype].is_float;
    int64_t cols = v->type->rank ? v->type->dim[v->type->rank - 1] : 1;
    for (int64_t i = 0; i < ir_type_count(v->type); i++) {
        double x = noise(v->name, i);
        /* ids and masks: 0 or 1, and the first token of a row is never masked */
        t->data[i] = floats ? x : i % cols == 0 || x > -0.3;
    }
}

static void
fill_all(ir_env *env, const ir_module *m, const ir_func *f)
{
    for (int i = 0; i < f->args.n; i++)
        fill(env, f->args.at[i]);
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        if (p->init != IR_INIT_VALUES && p->cls != IR_GRAD)
            fill(env, p->value);
    }
}

static bool
same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-7 * (1 + fabs(a));
}

static void
compare(const char *file, const char *what, const ir_tensor *a, const ir_tensor *b)
{
    NEED(a != NULL && b != NULL);
    NEED(ir_type_count(a->type) == ir_type_count(b->type));
    for (int64_t i = 0; i < ir_type_count(a->type); i++) {
        if (!same(a->data[i], b->data[i]))
            printf("  %s: %s[%d] was %.12g, is %.12g\n", file, what, (int)i, a->data[i],
                   b->data[i]);
        CHECK(same(a->data[i], b->data[i]));
    }
}

static void
compare_func(const char *file, const ir_func *f, const ir_func *g)
{
    ir_env was = {.arena = ef_arena_new(), .exact = true};
    ir_env is = {.arena = ef_arena_new(), .exact = true};
    unsigned phases = 1u << IR_FWD | 1u << IR_BWD;
    fill_all(&was, f->module, f);
    fill_all(&is, g->module, g);
    CHECK(ir_interp(f, phases, &was));
    CHECK(ir_interp(g, phases, &is));
    const ir_op *a = f->last->last, *b = g->last->last;
    CHECK(a->narg == b->narg);
    for (int i = 0; i < a->narg && i < b->narg; i++)
        if (ir_env_get(&was, a->arg[i])) /* not of an update block */
            compare(file, a->arg[i]->name, ir_env_get(&was, a->arg[i]),
                    ir_env_get(&is, b->arg[i]));
    for (int i = 0; i < f->module->params.n; i++) {
        const ir_value *v = f->module->params.at[i]->value;
        const ir_param *p = ir_param_by_name(g->module, v->name);
        if (v->param->cls == IR_GRAD && p && ir_env_get(&was, v))
            compare(file, v->name, ir_env_get(&was, v), ir_env_get(&is, p->value));
    }
    ef_arena_free(was.arena);
    ef_arena_free(is.arena);
}

static ir_module *
read_module(ef_ctx *ctx, const char *path)
{
    size_t n;
    char *text = ef_read_file(ctx->arena, path, 1 << 20, &n);
    return text ? ir_parse(ctx, path, text) : NULL;
}

/* Returns false if the case has no .want (it must fail, then). */
static bool
compare_case(const char *path)
{
    ef_ctx *ctx = ef_ctx_new();
    char want[512];
    snprintf(want, sizeof want, "%.*s.want", (int)strlen(path) - 3, path);
    FILE *f = fopen(want, "r");
    if (f) {
        fclose(f);
        ir_module *was = read_module(ctx, path), *is = read_module(ctx, want);
        NEED(was != NULL && is != NULL);
        if (was->step && is->step)
            compare_func(path, was->step, is->step);
        if (was->eval && is->eval)
            compare_func(path, was->eval, is->eval);
        ir_module_free(was);
        ir_module_free(is);
    }
    ef_ctx_free(ctx);
    return f != NULL;
}

static void
compare_folder(const char *pass)
{
    char pattern[512];
    glob_t found;
    int cases = 0;
    snprintf(pattern, sizeof pattern, SRC_DIR "/tests/golden/%s/*.ir", pass);
    NEED(glob(pattern, 0, NULL, &found) == 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        cases += compare_case(found.gl_pathv[i]);
    globfree(&found);
    CHECK(cases > 0);
}

TEST(canon_keeps_the_meaning)
{
    compare_folder("canon");
}

TEST(recognise_keeps_the_meaning)
{
    compare_folder("recognise");
}

TEST(cse_keeps_the_meaning)
{
    compare_folder("cse");
}

TEST(dce_keeps_the_meaning)
{
    compare_folder("dce");
}
