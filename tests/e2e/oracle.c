#include "oracle.h"

#include "codegen/cg.h"
#include "frontend/frontend.h"
#include "passes/pass.h"
#include "runtime/host/data.h"

#include <math.h>
#include <string.h>

/* The module after all passes, as the command line asks; *model is what it came from. */
static ir_module *
module_of(ef_ctx *ctx, ef_config *cfg, const oracle_run *r, fe_model **model)
{
    ctx->report = NULL;
    if (fe_options(ctx, r->argc, r->argv, cfg) >= 0)
        return NULL;
    cfg->unpad = false; /* it is fed padded batches, whatever the trainer computes */
    ctx->cfg = cfg;
    ctx->file = cfg->input;
    *model = fe_load(ctx, cfg->input);
    ir_module *m = *model ? fe_import(ctx, *model) : NULL;
    const pass_target *target = m ? cg_target(ctx) : NULL;
    bool stopped = false;
    if (target && pass_run(m, target, &stopped))
        return m;
    ir_module_free(m);
    return NULL;
}

static void
fill(ir_env *env, const ir_value *v, const tensor *t, bool transpose)
{
    ir_tensor *to = ir_env_new(env, v);
    int64_t rows = t->rank > 1 ? t->dim[0] : 1, cols = t->n / rows;
    for (int64_t i = 0; i < t->n; i++)
        to->data[transpose ? i % cols * rows + i / cols : i] = t->data[i];
}

/* Puts adapter and start tensors where the trainer would. */
static void
fill_params(const oracle_run *r, const ir_module *m, ir_env *env)
{
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        const char *name = p->value->name, *key = "";
        if (p->role == IR_LORA_A || p->role == IR_LORA_B)
            key = fmt("base_model.model.%s.lora_%c.weight", p->module,
                      p->role == IR_LORA_A ? 'A' : 'B');
        else if (p->role == IR_MODULE)
            key = fmt("base_model.model.%s", p->hf);
        const tensor *t = r->adapter && !p->part ? tensors_get(r->adapter, key) : NULL;
        if (t)
            fill(env, p->value, t, p->role == IR_MODULE && p->transposed);
        t = r->start ? tensors_get(r->start, fmt("%s%s", r->start_prefix, name)) : NULL;
        if (t)
            fill(env, p->value, t, false);
    }
}

/* Target of item i: labels are unshifted, a causal model predicts the next token. */
static double
target(const tensor *labels, int64_t i, bool causal)
{
    if (!causal)
        return labels->data[i];
    int64_t seq = labels->dim[labels->rank - 1];
    return i % seq == seq - 1 ? -100 : labels->data[i + 1];
}

static int64_t
count_supervised(const tensor *labels, bool causal)
{
    int64_t n = 0;
    for (int64_t i = 0; i < labels->n; i++)
        n += target(labels, i, causal) != -100 && !isnan(labels->data[i]);
    return n;
}

/* Of dropout: %key, and %keys of micro-batch k; false: v is neither. */
static bool
fill_keys(const char *role, ir_tensor *t, int step, int k)
{
    if (role && strcmp(role, "key") == 0) {
        t->data[0] = (double)rt_step_key(0, step);
        return true;
    }
    if (!role || strcmp(role, "keys") != 0)
        return false;
    int64_t batch = t->type->dim[0], seq = t->type->dim[1];
    for (int64_t i = 0; i < batch * seq; i++)
        t->data[i] = (double)((k * batch + i / seq) << 24 | i % seq);
    return true;
}

/* Inputs of micro-batch k of step s. */
static void
fill_inputs(const oracle_run *r, const ir_func *step, ir_env *env, int s, int k,
            double scale)
{
    int batch = (s * r->micro + k) % 4;
    bool causal = strcmp(ir_meta_get(step->module, "task"), "causal-lm") == 0;
    const tensor *labels = tensors_get(r->golden, fmt("batch%d.labels", batch));
    for (int i = 0; i < step->args.n; i++) {
        const ir_value *v = step->args.at[i];
        const char *role = ir_meta_get(step->module, fmt("input.%s", v->name));
        ir_tensor *t = ir_env_new(env, v);
        if (fill_keys(role, t, s, k))
            continue;
        if (role && strcmp(role, "scale") == 0)
            t->data[0] = ir_round(IR_F32, scale);
        else if (role && (strcmp(role, "labels") == 0 || strcmp(role, "values") == 0))
            for (int64_t j = 0; j < labels->n; j++)
                t->data[j] = target(labels, j, causal);
        else
            fill(env, v, tensors_get(r->golden, fmt("batch%d.%s", batch, v->name)),
                 false);
    }
}

static bool
one_step(oracle_run *r, ir_module *m, ir_env *env, int s)
{
    bool causal = strcmp(ir_meta_get(m, "task"), "causal-lm") == 0;
    const ir_op *ret = m->step->last->last;
    int64_t supervised = 0;
    for (int k = 0; k < r->micro; k++)
        supervised += count_supervised(
            tensors_get(r->golden, fmt("batch%d.labels", (s * r->micro + k) % 4)),
            causal);
    ir_env_zero_grads(m, env);
    r->loss[s] = 0;
    for (int k = 0; k < r->micro; k++) {
        fill_inputs(r, m->step, env, s, k, 1.0 / (double)supervised);
        if (!ir_interp(m->step, 1u << IR_FWD | 1u << IR_BWD, env))
            return false;
        r->loss[s] += ir_env_get(env, ret->arg[0])->data[0];
    }
    env->hyper.step = s + 1;
    if (!ir_interp(m->step, 1u << IR_UPDATE, env))
        return false;
    r->norm[s] = sqrt(ir_env_get(env, ret->arg[1])->data[0]);
    return true;
}

bool
oracle_train(oracle_run *r)
{
    ef_ctx *ctx = ef_ctx_new();
    ef_config cfg = ef_config_default;
    fe_model *model = NULL;
    ir_module *m = module_of(ctx, &cfg, r, &model);
    bool ok = m != NULL;
    if (ok) {
        ir_env env = {.arena = ef_arena_new(), .hyper = r->hyper};
        fill_params(r, m, &env);
        for (int s = 0; s < r->steps && ok; s++)
            ok = one_step(r, m, &env, s);
        ef_arena_free(env.arena);
        ir_module_free(m);
    }
    fe_unload(model);
    ef_ctx_free(ctx);
    return ok;
}
