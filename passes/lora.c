/* lora.c -- pass lora: freezes the model and adds low-rank adapters (Hu et al., 2021).
 *
 *     y' = y + s B (A x)      A [r,in] random, B [out,r] zero, s from --lora-scale
 *
 * On a fused product that makes queries, keys and values, an adapter on q or v covers a
 * range of its columns, or a block of them for each head; the trainer saves both as one
 * adapter that PEFT reads. A classifier is trained whole, as PEFT does.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lora_int.h"
#include "pass_int.h"
#include "task_int.h"

/* ---- what is trained whole ---- */

/* The module to be saved whole that p is in: the shortest leading part of its name that ends
 * with `classifier` or `score`; NULL: none. */
static const char *
classifier_of(ef_ctx *ctx, const ir_param *p)
{
    static const char *const endings[] = {"classifier", "score"};
    for (const char *dot = p->hf ? strchr(p->hf, '.') : NULL; dot;
         dot = strchr(dot + 1, '.'))
        for (size_t i = 0; i < EF_COUNT(endings); i++) {
            size_t n = (size_t)(dot - p->hf), k = strlen(endings[i]);
            if (n >= k && !memcmp(dot - k, endings[i], k))
                return ef_internn(ctx, p->hf, n);
        }
    return NULL;
}

/* Gives the last linear layer before the logits the role of a module trained whole. */
static void
keep_last_linear(lora *l)
{
    const ir_op *op = l->m->step->last->last->arg[0]->def; /* ret of the loss */
    while (op && op->code != IR_OP_linear)
        op = op->narg ? op->arg[0]->def : NULL;
    for (int i = 1; op && i < op->narg; i++)
        if (op->arg[i]->param && op->arg[i]->param->role == IR_BASE) {
            ir_param *p = op->arg[i]->param;
            const char *dot = p->hf ? strrchr(p->hf, '.') : NULL;
            p->role = IR_MODULE;
            p->module = dot ? ef_internn(l->ctx, p->hf, (size_t)(dot - p->hf)) : NULL;
        }
}

/* A classifier's own layers, or a regression's; a new head has its role already. */
static void
keep_classifier(lora *l)
{
    const char *name = ir_meta_get(l->m, "task");
    if (!name || (strcmp(name, "seq-cls") && strcmp(name, "token-cls") &&
                  strcmp(name, "regression")))
        return;
    bool found = false;
    task_mark_reached(l->m->step);
    for (int i = 0; i < l->m->params.n; i++) {
        ir_param *p = l->m->params.at[i];
        const char *module = classifier_of(l->ctx, p);
        found |= p->role == IR_HEAD || p->role == IR_MODULE;
        if (!module || p->role != IR_BASE || !task_is_weight(p) || !p->value->aux)
            continue;
        p->role = IR_MODULE;
        p->module = module;
        found = true;
    }
    if (!found)
        keep_last_linear(l);
}

/* ---- adapters ---- */

static ir_value *
new_adapter(lora *l, const lora_target *t, const char *which, int64_t rows,
            int64_t cols)
{
    const lora_module *m = t->module;
    const char *part = lora_part(t);
    const char *name = ef_printf(l->pc->scratch, "%s%s%s.lora_%s", m->name,
                                 part ? "." : "", part ? part : "", which);
    const ir_type *type = ir_type_get(l->ctx, IR_F32, 2, (int64_t[]){rows, cols});
    ir_param *p = ir_param_new(l->m, name, type, IR_TRAIN, m->w->unit);
    bool is_a = *which == 'A';
    p->role = is_a ? IR_LORA_A : IR_LORA_B;
    p->init = is_a ? IR_INIT_KAIMING : IR_INIT_ZERO;
    p->module = m->name;
    p->loc = m->ops.at[0]->loc;
    if (part) {
        p->part = ef_intern(l->ctx, part);
        p->part_start = t->start;
        p->part_len = t->len;
        p->part_of = m->out;
        p->part_block = t->block;
        p->part_stride = t->stride;
    }
    return p->value;
}

/* What adapters on a product read: x, or under --lora-dropout dropout of it; adapters on parts
 * of one product read the same, as the one of PEFT that they are saved as. */
static ir_value *
adapter_input(lora *l, ir_builder *at, const ir_op *linear)
{
    double p = l->ctx->cfg->lora_dropout;
    ir_value *x = linear->arg[0], *dropped = ef_map_get(&l->dropped, linear);
    if (p <= 0 || dropped)
        return p > 0 ? dropped : x;
    ir_attr attr[2] = {ir_attr_f(IR_ATTR_p, p), ir_attr_i(IR_ATTR_site, l->site++)};
    ir_value *arg[3] = {x, ir_drop_keys_of(at, l->keys, x->type), ir_drop_key(l->m)};
    const char *name = ef_printf(l->pc->scratch, "%s.a.in", linear->res[0]->name);
    dropped = ir_emit(at, IR_OP_dropout, name, 3, arg, 2, attr, NULL);
    ef_map_set(l->pc->scratch, &l->dropped, linear, dropped);
    return dropped;
}

/* Has each product with an adapter rows that dropout can tell apart? */
static bool
check_dropout(lora *l)
{
    if (l->ctx->cfg->lora_dropout <= 0)
        return true;
    l->site = ir_drop_sites(l->m);
    l->keys =
        ir_drop_keys(l->m, ir_meta_int(l->m, "batch", 0), ir_meta_int(l->m, "seq", 0));
    for (int i = 0; i < l->targets.n; i++) {
        const lora_module *m = l->targets.at[i].module;
        for (int k = 0; k < m->ops.n; k++)
            if (!l->keys || !ir_drop_keys_fit(l->keys, m->ops.at[k]->arg[0]->type))
                return ef_error(
                    l->ctx, m->ops.at[k]->loc, E_OPT_VALUE, "lora-dropout",
                    ef_printf(l->ctx->arena, "%s reads %s, not rows of tokens",
                              m->label,
                              ir_type_text(l->ctx, m->ops.at[k]->arg[0]->type)));
    }
    return true;
}

/* %y = linear %x, $w     ->  %y = linear %x, $w
 *                            %t = linear %x, $A {tb=1}
 *                            %z = lora_add %y, %t, $B {by=s, start=q}     and uses of z */
static void
adapt(lora *l, const lora_target *t, int64_t r, double scale)
{
    lora_module *m = t->module;
    const char *part = lora_part(t);
    ir_value *a = new_adapter(l, t, "A", r, m->in);
    ir_value *b = new_adapter(l, t, "B", t->len, r);
    ir_attr tb = ir_attr_i(IR_ATTR_tb, 1);
    ir_attr attr[4] = {ir_attr_f(IR_ATTR_by, scale)};
    int n = 1;
    if (t->start)
        attr[n++] = ir_attr_i(IR_ATTR_start, t->start);
    if (t->block) {
        attr[n++] = ir_attr_i(IR_ATTR_block, t->block);
        attr[n++] = ir_attr_i(IR_ATTR_stride, t->stride);
    }
    for (int i = 0; i < m->ops.n; i++) {
        ir_op *last = m->ops.at[i], *linear = last;
        while (linear->code == IR_OP_lora_add)
            linear = linear->arg[0]->def;
        ir_value *y = last->res[0];
        const char *stem = ef_printf(l->pc->scratch, "%s%s%s", linear->res[0]->name,
                                     part ? "." : "", part ? part : "");
        ir_builder at = ir_after(last);
        ir_value *low =
            ir_emit(&at, IR_OP_linear, ef_printf(l->pc->scratch, "%s.a", stem), 2,
                    (ir_value *[]){adapter_input(l, &at, linear), a}, 1, &tb, NULL);
        ir_value *sum =
            ir_emit(&at, IR_OP_lora_add, ef_printf(l->pc->scratch, "%s.lora", stem), 3,
                    (ir_value *[]){y, low, b}, n, attr, NULL);
        ir_replace_uses_after(sum->def, y, sum);
        m->ops.at[i] = sum->def;
    }
}

/* ---- the pass ---- */

/* An adapter of full rank or more has at least as many numbers as what it adapts. */
static bool
check_rank(const lora *l, const lora_target *t, int64_t r)
{
    const lora_module *m = t->module;
    const char *part = lora_part(t);
    if (r <= m->in && r <= t->len)
        return true;
    ef_error(
        l->ctx, NULL, E_LORA,
        ef_printf(l->ctx->arena,
                  "rank %" PRId64 " is more than the smaller side of %s%s%s, [in,out] "
                  "= [%" PRId64 ",%" PRId64 "]",
                  r, part ? part : "", part ? " of " : "", m->label, m->in, t->len));
    ef_hint(l->ctx,
            "give --lora-r %" PRId64 " or less, or leave the module out of "
            "--lora-targets",
            m->in < t->len ? m->in : t->len);
    return false;
}

static bool
check_targets(lora *l, int64_t r)
{
    for (int i = 0; i < l->targets.n; i++) {
        const lora_module *m = l->targets.at[i].module;
        if (m->w->value->type->dtype != IR_F32)
            return ef_error(l->ctx, m->ops.at[0]->loc, E_LORA,
                            "adapters are f32, and the weight below them is not");
        if (!check_rank(l, &l->targets.at[i], r))
            return false;
        if (m->name)
            continue;
        ef_error(l->ctx, m->ops.at[0]->loc, E_LORA,
                 ef_printf(l->ctx->arena,
                           "PyTorch's name of the module of parameter %s is "
                           "not in the file, and an adapter is saved under "
                           "it",
                           m->w->value->name));
        ef_hint(
            l->ctx,
            "--hf-config config.json of the model's repository may tell; else export "
            "with node names (torch 1.13 or newer), or train without --lora-r");
        return false;
    }
    return true;
}

/* PEFT saves a module whole or an adapter on it, not both. */
static bool
check_apart(const lora *l)
{
    for (int i = 0; i < l->m->params.n; i++) {
        const ir_param *p = l->m->params.at[i];
        const char *dot = p->hf ? strrchr(p->hf, '.') : NULL;
        for (int k = 0; dot && p->cls == IR_TRAIN && k < l->targets.n; k++) {
            const char *name = l->targets.at[k].module->name;
            size_t n = (size_t)(dot - p->hf);
            if (strlen(name) != n || memcmp(name, p->hf, n))
                continue;
            ef_error(l->ctx, NULL, E_LORA,
                     ef_printf(l->ctx->arena,
                               "%s is to be trained, and its module has an adapter; a "
                               "PEFT file has no place for both",
                               p->hf));
            ef_hint(l->ctx, "leave it out of --trainable, or the module out of "
                            "--lora-targets");
            return false;
        }
    }
    return true;
}

/* Output features that the adapter is on. */
static const char *
columns_text(const lora *l, const lora_target *t)
{
    if (t->block)
        return ef_printf(l->pc->scratch, "%" PRId64 "..%" PRId64 " of every %" PRId64,
                         t->start, t->start + t->block, t->stride);
    return lora_part(t) ? ef_printf(l->pc->scratch, "%" PRId64 "..%" PRId64, t->start,
                                    t->start + t->len)
                        : "all";
}

static void
print_table(const lora *l, int64_t r, double alpha, double scale)
{
    int wide[] = {6, 11}; /* module, columns */
    for (int i = 0; i < l->targets.n; i++) {
        const lora_target *t = &l->targets.at[i];
        int n[] = {(int)strlen(t->module->label), (int)strlen(columns_text(l, t))};
        for (int k = 0; k < 2; k++)
            wide[k] = n[k] > wide[k] ? n[k] : wide[k];
    }
    double p = l->ctx->cfg->lora_dropout;
    ef_report(l->ctx, "LoRA: rank %" PRId64 ", alpha %s, scale %s%s%s, targets %s", r,
              ef_ftoa(alpha), ef_ftoa(scale), p > 0 ? ", dropout " : "",
              p > 0 ? ef_ftoa(p) : "", l->wanted);
    ef_report(l->ctx, "  %-*s  %-4s  %-*s  %-12s  %s", wide[0], "module", "part",
              wide[1], "columns", "[in,out]", "found by");
    for (int i = 0; i < l->targets.n; i++) {
        const lora_target *t = &l->targets.at[i];
        const lora_module *m = t->module;
        char size[64];
        snprintf(size, sizeof size, "[%" PRId64 ",%" PRId64 "]", m->in, m->out);
        ef_report(l->ctx, "  %-*s  %-4s  %-*s  %-12s  %s", wide[0], m->label,
                  t->role ? t->role : "-", wide[1], columns_text(l, t), size,
                  t->role ? "structure" : t->word);
    }
}

/* Modules whose weights are trained beside the adapters: classifiers, new heads, and what
 * --trainable names. */
static void
print_whole(const lora *l)
{
    enum { MOST = 8 };
    ef_buf b = {.arena = l->pc->scratch};
    ef_map told = {0};
    for (int i = 0; i < l->m->params.n; i++) {
        const ir_param *p = l->m->params.at[i];
        if (p->cls != IR_TRAIN || p->role == IR_LORA_A || p->role == IR_LORA_B)
            continue;
        const char *module = ir_param_module(l->ctx, p);
        if (ef_map_has(&told, module))
            continue;
        if (told.n <= MOST)
            ef_putf(&b, "%s%s", told.n ? ", " : "", told.n < MOST ? module : "..");
        ef_map_set(l->pc->scratch, &told, module, NULL);
    }
    if (told.n)
        ef_report(l->ctx, "trained beside the adapters: %s", b.s);
}

/* A module of which --freeze leaves nothing to train is not saved either. */
static void
drop_frozen_modules(lora *l)
{
    for (int i = 0; i < l->m->params.n; i++) {
        ir_param *p = l->m->params.at[i];
        bool trained = p->role != IR_MODULE;
        for (int k = 0; k < l->m->params.n && !trained; k++) {
            const ir_param *q = l->m->params.at[k];
            trained =
                q->role == IR_MODULE && q->module == p->module && q->cls == IR_TRAIN;
        }
        if (!trained)
            p->role = IR_BASE;
    }
}

static void
set_meta(lora *l, int64_t r, double alpha, double scale)
{
    ir_meta_set(l->m, "lora.r", ef_internf(l->ctx, "%" PRId64, r));
    ir_meta_set(l->m, "lora.alpha", ef_ftoa(alpha));
    ir_meta_set(l->m, "lora.scale", ef_ftoa(scale));
}

/* Needs LOSS: the head must be known, since it stays trained.
 *
 *     %q = linear %x, $query.weight, $query.bias : f32[2,16,48]
 * ->
 *     %q = linear %x, $query.weight, $query.bias : f32[2,16,48]
 *     %q.a = linear %x, $query.lora_A {tb=1} : f32[2,16,8]
 *     %q.lora = lora_add %q, %q.a, $query.lora_B {by=1} : f32[2,16,48]
 */
bool
pass_lora(pass_ctx *pc)
{
    ir_module *m = pc->m;
    const ef_config *cfg = m->ctx->cfg;
    lora l = {.pc = pc, .m = m, .ctx = m->ctx};
    l.wanted = cfg->lora_targets ? cfg->lora_targets : PASS_LORA_TARGETS;
    int64_t r = cfg->lora_r ? cfg->lora_r : 8; /* 0: --run-pass=lora alone */
    double alpha = cfg->lora_alpha > 0 ? cfg->lora_alpha : (double)r;
    const char *rule = cfg->lora_scale ? cfg->lora_scale : PASS_LORA_SCALE;
    double scale = !strcmp(rule, "alpha")     ? alpha
                   : !strcmp(rule, "alpha/r") ? alpha / (double)r
                                              : alpha / sqrt((double)r);
    if (ir_meta_get(m, "lora.r"))
        return ef_error(m->ctx, NULL, E_LORA, "the module has adapters already");
    keep_classifier(&l);
    lora_find_modules(&l);
    if (!lora_find_targets(&l) || !check_targets(&l, r) || !check_dropout(&l))
        return false;
    for (int i = 0; i < l.targets.n; i++)
        adapt(&l, &l.targets.at[i], r, scale);
    print_table(&l, r, alpha, scale);
    set_meta(&l, r, alpha, scale);
    if (!task_set_classes(m, IR_FROZEN, true) || !check_apart(&l))
        return false;
    drop_frozen_modules(&l);
    print_whole(&l);
    return true;
}
