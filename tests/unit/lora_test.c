/* lora_test.c -- adapters compute what the merged weights compute.
 *
 * For every golden of pass lora that succeeds, the loss with random A and B is compared
 * with the loss of the module before the pass whose weights have scale * B A added, in rows
 * or columns as the layout says. With B at its initial zero the losses are equal bit by bit.
 */
#include "noise.h"
#include "test.h"

#include "golden.h"
#include "passes/pass.h"
#include "said.h"

#include <math.h>

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
    for (int64_t i = 0; i < ir_type_count(v->type); i++) {
        double x = noise(v->name, i);
        t->data[i] = floats ? x : i % 2 == 0 || x > 0;
    }
}

static void
fill_all(ir_env *env, const ir_module *m)
{
    for (int i = 0; i < m->step->args.n; i++)
        fill(env, m->step->args.at[i]);
    for (int i = 0; i < m->params.n; i++)
        fill(env, m->params.at[i]->value);
}

static double
loss_of(const ir_module *m, ir_env *env)
{
    NEED(ir_interp(m->step, 1u << IR_FWD, env));
    return ir_env_get(env, m->step->last->last->arg[0])->data[0];
}

static const ir_param *
partner(const ir_module *m, const ir_param *a)
{
    const char *name = a->value->name;
    char b[256];
    snprintf(b, sizeof b, "%.*sB", (int)strlen(name) - 1, name);
    return ir_param_by_name(m, b);
}

/* The output feature that row o of the adapter's B makes. */
static int64_t
feature(const ir_param *a, int64_t o)
{
    int64_t within =
        a->part_block ? o / a->part_block * a->part_stride + o % a->part_block : o;
    return a->part ? a->part_start + within : o;
}

/* Adds scale * B A to the weight of the adapter's module in `plain`, where it is [in,out], or
 * [out,in] if its linear has tb. */
static void
merge(const ir_module *adapted, ir_env *from, const ir_module *plain, ir_env *to,
      const ir_param *a)
{
    const ir_param *b = partner(adapted, a), *w = NULL;
    for (int i = 0; i < plain->params.n; i++) {
        const char *hf = plain->params.at[i]->hf;
        size_t n = strlen(a->module);
        if (hf && !strncmp(hf, a->module, n) && !strcmp(hf + n, ".weight"))
            w = plain->params.at[i];
    }
    NEED(b != NULL && w != NULL);
    bool tb = false;
    for (ir_op *op = ir_first_op(plain->step); op; op = ir_next_op(op))
        if (op->code == IR_OP_linear && op->arg[1] == w->value)
            tb = ir_attr_int(op, IR_ATTR_tb, 0);
    double scale = strtod(ir_meta_get(adapted, "lora.scale"), NULL);
    const double *ad = ir_env_get(from, a->value)->data;
    const double *bd = ir_env_get(from, b->value)->data;
    double *wd = ir_env_get(to, w->value)->data;
    int64_t r = a->value->type->dim[0], in = a->value->type->dim[1];
    int64_t rows = b->value->type->dim[0];
    int64_t out = w->value->type->dim[tb ? 0 : 1];
    for (int64_t o = 0; o < rows; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t k = 0; k < r; k++)
                sum += bd[o * r + k] * ad[k * in + i];
            wd[tb ? feature(a, o) * in + i : i * out + feature(a, o)] += scale * sum;
        }
}

/* Options of the first line "; run: .." that matter to the pass. */
static void
read_options(const char *text, ef_ctx *ctx, ef_config *cfg)
{
    char *line = ef_strndup(ctx->arena, text, strcspn(text, "\n")), *rest;
    for (char *w = strtok_r(line, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(w, '=');
        if (!value++)
            continue;
        value += *value == '\'';
        value[strcspn(value, "'")] = '\0';
        if (!strncmp(w, "--lora-r=", 9))
            cfg->lora_r = strtoll(value, NULL, 10);
        else if (!strncmp(w, "--lora-alpha=", 13))
            cfg->lora_alpha = strtod(value, NULL);
        else if (!strncmp(w, "--lora-targets=", 15))
            cfg->lora_targets = value;
        else if (!strncmp(w, "--lora-scale=", 13))
            cfg->lora_scale = value;
    }
}

static void
check_case(const char *path, const char *text)
{
    said s;
    said_open(&s);
    ef_config cfg = ef_config_default;
    read_options(text, s.ctx, &cfg);
    s.ctx->cfg = &cfg;
    ir_module *plain = ir_parse(s.ctx, path, text);
    ir_module *adapted = ir_parse(s.ctx, path, text);
    pass_ctx pc = {.m = adapted, .scratch = ef_arena_new()};
    NEED(plain && adapted && pass_lora(&pc) && !ir_verify(adapted));
    ir_env was = {.arena = ef_arena_new(), .exact = true};
    ir_env is = {.arena = ef_arena_new(), .exact = true};
    fill_all(&was, plain);
    fill_all(&is, adapted);
    for (int i = 0; i < adapted->params.n; i++)
        if (adapted->params.at[i]->role == IR_LORA_B) {
            ir_tensor *b = ir_env_get(&is, adapted->params.at[i]->value);
            memset(b->data, 0, sizeof(double) * (size_t)ir_type_count(b->type));
        }
    double before = loss_of(plain, &was);
    CHECK(loss_of(adapted, &is) == before);
    fill_all(&is, adapted);
    int n = 0;
    for (int i = 0; i < adapted->params.n; i++)
        if (adapted->params.at[i]->role == IR_LORA_A) {
            merge(adapted, &is, plain, &was, adapted->params.at[i]);
            n++;
        }
    double loss = loss_of(adapted, &is);
    CHECK(n > 0 && fabs(loss - before) > 1e-6);
    CHECK_NEAR(loss, loss_of(plain, &was), 1e-10 * (1 + fabs(loss)));
    ef_arena_free(was.arena);
    ef_arena_free(is.arena);
    ef_arena_free(pc.scratch);
    ir_module_free(plain);
    ir_module_free(adapted);
    said_close(&s);
}

TEST(adapters_are_what_merging_gives)
{
    ef_arena *a = ef_arena_new();
    golden g;
    int n = 0;
    golden_open(&g, "lora/*.ir");
    while (golden_next(&g, a)) {
        char want[4096];
        snprintf(want, sizeof want, "%.*swant", (int)strlen(g.path) - 2, g.path);
        FILE *f = fopen(want, "r");
        if (!f)
            continue; /* an error is expected */
        fclose(f);
        check_case(g.path, g.text);
        n++;
    }
    CHECK(n >= 8);
    golden_close(&g);
    ef_arena_free(a);
}

/* A module that two products share has one adapter, which both use. */
TEST(a_shared_module_has_one_adapter)
{
    static const char text[] =
        "; run: --lora-r=2 --lora-targets=d\n"
        "efficc-ir 1 canon recognise task\n"
        "meta task \"token-cls\"\n"
        "unit 0 \"a\"\n"
        "param $d : f32[4,4] train unit=0 zero hf=\"d.weight\"\n"
        "param $w : f32[4,3] train unit=0 zero hf=\"classifier.weight\"\n"
        "func $step(%x : f32[2,4], %targets : i64[2], %scale : f32[]) {\n"
        "@f: fwd unit=0\n"
        "  %h = linear %x, $d : f32[2,4]\n"
        "  %t = tanh %h : f32[2,4]\n"
        "  %g = linear %t, $d : f32[2,4]\n"
        "  %y = linear %g, $w : f32[2,3]\n"
        "  %loss, %right, %prob, %losses = ce %y, %targets, %scale : f32[], i64[], "
        "f32[2,3], f32[2]\n"
        "  ret %loss\n"
        "}\n";
    check_case("shared", text);
}
