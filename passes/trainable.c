/* trainable.c -- which weights are trained: reach of the loss, --freeze, --trainable.
 *
 * A weight that the loss does not reach by a differentiable way has no gradient, so it is
 * frozen: neither updated nor decayed. Tables that go into sines and cosines only, or are
 * those of rotary positions, are positions, not weights, and stay as they are.
 */
#include <inttypes.h>
#include <string.h>

#include "task_int.h"

void
task_mark_reached(const ir_func *f)
{
    static char yes;
    for (int i = 0; i < f->module->params.n; i++)
        f->module->params.at[i]->value->aux = NULL;
    for (ir_op *op = ir_first_op(f); op; op = ir_next_op(op))
        for (int i = 0; i < op->nres; i++)
            op->res[i]->aux = NULL;
    for (ir_block *b = f->last; b; b = b->prev)
        for (ir_op *op = b->last; op; op = op->prev) {
            bool reached = op->code == IR_OP_ret;
            for (int i = 0; i < op->nres; i++)
                reached |= op->res[i]->aux != NULL;
            if (!reached || op->code == IR_OP_sin || op->code == IR_OP_cos)
                continue;
            int n = op->code == IR_OP_rotary ? 1 : op->narg;
            for (int i = 0; i < n; i++)
                if (ir_dtypes[op->arg[i]->type->dtype].is_float)
                    op->arg[i]->aux = &yes;
        }
}

bool
task_is_weight(const ir_param *p)
{
    return (p->cls == IR_TRAIN || p->cls == IR_FROZEN) &&
           ir_dtypes[p->value->type->dtype].is_float && p->value->type->rank > 0;
}

/* By its name, PyTorch's, the initializer's or that of a tied one. */
static bool
fits(const char *pattern, const ir_param *p)
{
    for (int i = 0; i < p->also.n; i++)
        if (ef_glob(pattern, p->also.at[i] + 1))
            return true;
    return ef_glob(pattern, p->value->name) || (p->hf && ef_glob(pattern, p->hf)) ||
           (p->onnx && ef_glob(pattern, p->onnx));
}

/* Does the comma list of patterns name p? */
static bool
named(ef_ctx *ctx, const char *patterns, const ir_param *p)
{
    for (const char *s = patterns; s && *s; s += strcspn(s, ","), s += *s == ',')
        if (fits(ef_internn(ctx, s, strcspn(s, ",")), p))
            return true;
    return false;
}

/* Nearest names first, at most eight. */
static void
note_candidates(const ir_module *m, const char *pattern)
{
    enum { MOST = 8 };
    const char *best[MOST];
    int far[MOST], n = 0, all = 0;
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        if (!task_is_weight(p))
            continue;
        all++;
        const char *name = p->hf ? p->hf : p->value->name;
        int d = ef_edit_distance(pattern, name), at = n < MOST ? n++ : MOST;
        for (; at > 0 && far[at - 1] > d; at--)
            if (at < MOST) {
                best[at] = best[at - 1];
                far[at] = far[at - 1];
            }
        if (at < MOST) {
            best[at] = name;
            far[at] = d;
        }
    }
    ef_buf b = {.arena = m->ctx->arena};
    for (int i = 0; i < n; i++)
        ef_putf(&b, "%s%s", i ? ", " : "", best[i]);
    ef_note(m->ctx, "parameters are %s%s", n ? b.s : "none", all > n ? ", .." : "");
    ef_hint(m->ctx, "* stands for any characters, ? for one: '*.bias'");
}

/* Every pattern of the list names a weight, and one that the loss reaches if it is to be
 * trained. */
static bool
check_patterns(ir_module *m, const char *option, const char *patterns, bool train)
{
    ef_ctx *ctx = m->ctx;
    char *list = ef_strdup(ctx->arena, patterns ? patterns : ""), *rest;
    for (char *s = strtok_r(list, ",", &rest); s; s = strtok_r(NULL, ",", &rest)) {
        int named = 0, reached = 0;
        for (int i = 0; i < m->params.n; i++) {
            const ir_param *p = m->params.at[i];
            bool is = task_is_weight(p) && fits(s, p);
            named += is;
            reached += is && p->value->aux;
        }
        if (!named) {
            ef_error(ctx, NULL, E_TRAINABLE_NONE, option, s);
            note_candidates(m, s);
            return false;
        }
        if (train && !reached)
            return ef_error(ctx, NULL, E_TASK,
                            ef_printf(ctx->arena,
                                      "%s '%s' names only parameters that the "
                                      "loss does not reach",
                                      option, s));
    }
    return true;
}

static void
report(const ir_module *m, int unreached)
{
    int64_t n[2] = {0}, count[2] = {0};
    ef_buf b = {.arena = m->ctx->arena};
    int listed = 0;
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        if (p->cls != IR_TRAIN && p->cls != IR_FROZEN)
            continue;
        n[p->cls == IR_TRAIN] += ir_type_count(p->value->type);
        count[p->cls == IR_TRAIN]++;
        if (task_is_weight(p) && !p->value->aux && listed < 6)
            ef_putf(&b, "%s%s", listed++ ? ", " : "", p->value->name);
    }
    if (unreached)
        ef_report(m->ctx, "not trained, since the loss does not reach them: %s%s", b.s,
                  unreached > listed ? ", .." : "");
    ef_report(m->ctx,
              "trained: %" PRId64 " numbers in %" PRId64
              " parameter%s, frozen: %" PRId64 " in %" PRId64,
              n[1], count[1], count[1] == 1 ? "" : "s", n[0], count[0]);
}

bool
task_set_classes(ir_module *m, ir_pclass base, bool tell)
{
    const ef_config *cfg = m->ctx->cfg;
    /* pass lora decides again: by what pass task was told, if it ran before */
    const char *freeze = cfg->freeze ? cfg->freeze : ir_meta_get(m, "option.freeze");
    const char *train =
        cfg->trainable ? cfg->trainable : ir_meta_get(m, "option.trainable");
    int unreached = 0, trained = 0;
    task_mark_reached(m->step);
    if (!check_patterns(m, "--freeze", freeze, false) ||
        !check_patterns(m, "--trainable", train, true))
        return false;
    for (int i = 0; i < m->params.n; i++) {
        ir_param *p = m->params.at[i];
        if (!task_is_weight(p))
            continue;
        bool reached = p->value->aux != NULL;
        bool own = p->role != IR_BASE; /* adapters, new heads, modules trained whole */
        p->cls = own || base == IR_TRAIN ? IR_TRAIN : IR_FROZEN;
        if (named(m->ctx, freeze, p))
            p->cls = IR_FROZEN;
        if (named(m->ctx, train, p))
            p->cls = IR_TRAIN;
        if (!reached)
            p->cls = IR_FROZEN;
        unreached += !reached;
        trained += p->cls == IR_TRAIN;
    }
    if (tell)
        report(m, unreached);
    return trained || ef_error(m->ctx, NULL, E_TASK, "nothing is left to train");
}
