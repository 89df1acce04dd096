/* task.c -- pass task: from a graph of outputs to a step that ends in a loss.
 *
 * What the model is for follows from its graph: a product with a weight is a head, its
 * columns are the vocabulary or classes, causal attention makes a language model. --task
 * overrides and is checked against what is there; as in Hugging Face's transformers, one
 * logit a row is a regression. The trainer's data come in through two new arguments:
 * %targets, of which the host makes -100 where nothing is supervised (and which it shifts
 * for a causal language model), for a regression %values, NaN where nothing is; and %scale,
 * one over the number of supervised items of the whole step.
 */
#include <inttypes.h>
#include <string.h>

#include "canon_int.h"
#include "pass_int.h"
#include "task_int.h"

enum { LOGITS_BYTES = 64 << 20 }; /* that exist at a time, unless the target says */

static const struct {
    const char *name;
    bool per_token;  /* a row of logits a token */
    bool vocabulary; /* whose columns are the vocabulary */
} tasks[] = {
    [TASK_CAUSAL_LM] = {"causal-lm", true, true},
    [TASK_SEQ_CLS] = {"seq-cls", false, false},
    [TASK_TOKEN_CLS] = {"token-cls", true, false},
    [TASK_MLM] = {"mlm", true, true},
    [TASK_REGRESSION] = {"regression", false, false},
};

static bool fail(const task *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static bool
fail(const task *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *what = ef_vprintf(t->ctx->arena, fmt, ap);
    va_end(ap);
    return ef_error(t->ctx, t->out && t->out->def ? t->out->def->loc : NULL, E_TASK,
                    what);
}

/* ---- what is there ---- */

/* Is v a product with a weight, with or without a bias? */
static bool
is_product(const ir_value *v)
{
    const ir_op *op = v->def;
    while (op && (op->code == IR_OP_reshape || op->code == IR_OP_gather ||
                  (op->code == IR_OP_add && op->arg[1]->param)))
        op = op->arg[0]->def;
    return op &&
           (op->code == IR_OP_linear ||
            (op->code == IR_OP_matmul && (op->arg[1]->param || op->arg[0]->param)));
}

/* Rows of the table that token ids choose from; 0: not found. */
static int64_t
find_vocab(const ir_module *m)
{
    int64_t vocab = ir_meta_int(m, "vocab", 0);
    for (ir_op *op = ir_first_op(m->step); op && !vocab; op = ir_next_op(op)) {
        const ir_value *ids = op->code == IR_OP_embed ? op->arg[1] : NULL;
        while (ids && ids->def && ids->def->code == IR_OP_reshape)
            ids = ids->def->arg[0];
        if (ids && !ids->def && !ids->param && pass_input_is(m, ids, "ids"))
            vocab = op->arg[0]->type->dim[0];
    }
    return vocab;
}

static bool
look(task *t)
{
    ir_func *f = t->f;
    t->ret = f->last ? f->last->last : NULL;
    if (!t->ret || t->ret->code != IR_OP_ret || !t->ret->narg)
        return ef_error(t->ctx, NULL, E_TASK, "the graph has no output");
    t->out = t->ret->arg[0];
    for (ir_op *op = ir_first_op(f); op; op = ir_next_op(op)) {
        t->attention |= op->code == IR_OP_attention;
        t->causal |= op->code == IR_OP_attention && ir_attr_int(op, IR_ATTR_causal, 0);
        t->softmax |= op->code == IR_OP_softmax && op->arg[0]->type->rank > 2;
    }
    const ir_type *type = t->out->type;
    t->vocab = find_vocab(t->m);
    t->head =
        is_product(t->out) || /* or, as in Gemma 2, something squashed behind it */
        (type->rank == 3 && type->dim[2] == t->vocab);
    if (!ir_dtypes[type->dtype].is_float || (type->rank != 2 && type->rank != 3))
        return fail(t,
                    "the output is %s, expected logits or hidden states, [batch, *] or "
                    "[batch, tokens, *]",
                    ir_type_text(t->ctx, type));
    return true;
}

/* ---- which task ---- */

static bool
parse_task(task *t, const char *name)
{
    for (size_t i = 0; i < EF_COUNT(tasks); i++)
        if (!strcmp(tasks[i].name, name)) {
            t->kind = (task_kind)i;
            return true;
        }
    fail(t, "no task is called '%s'", name);
    ef_note(t->ctx, "tasks are causal-lm, seq-cls, token-cls, mlm, regression");
    return false;
}

static bool
detect(task *t)
{
    const ir_type *type = t->out->type;
    int64_t columns = type->dim[type->rank - 1];
    if (!t->head && t->ctx->cfg->num_labels) {
        t->kind = t->ctx->cfg->num_labels == 1 ? TASK_REGRESSION : TASK_SEQ_CLS;
        return true;
    }
    if (!t->head) {
        fail(t, "the model has no head: its output is hidden states, %s",
             ir_type_text(t->ctx, type));
        ef_hint(t->ctx, "give --num-labels N for a new classifier (--task seq-cls), or "
                        "for N numbers --task regression, too");
        return false;
    }
    bool words = type->rank == 3 && columns == t->vocab && !t->causal;
    if (words && type->dim[1] == 1) {
        fail(t, "causal-lm or mlm: rows of one token do not say which");
        ef_hint(t->ctx, "give a longer --seq (a causal language model predicts nothing "
                        "in rows of one token), or --task mlm");
        return false;
    }
    if (words && t->softmax) {
        fail(t, "causal-lm or mlm: an attention was not recognised, so its mask is not "
                "known");
        ef_hint(t->ctx, "give --task causal-lm or --task mlm");
        return false;
    }
    if (type->rank == 2)
        t->kind = columns == 1 ? TASK_REGRESSION : TASK_SEQ_CLS;
    else if (t->causal || (!t->attention && columns == t->vocab))
        t->kind = TASK_CAUSAL_LM; /* without attention each token sees itself only */
    else
        t->kind = columns == t->vocab ? TASK_MLM : TASK_TOKEN_CLS;
    return true;
}

/* Does the task fit the logits that the graph has? */
static bool
check_logits(const task *t)
{
    const ir_type *type = t->out->type;
    const char *name = tasks[t->kind].name;
    int64_t columns = type->dim[type->rank - 1], labels = t->ctx->cfg->num_labels;
    if (!t->head) {
        fail(t, "task %s needs logits, and the output is hidden states, %s", name,
             ir_type_text(t->ctx, type));
        ef_hint(t->ctx, "a new head is made for --task seq-cls or regression, with "
                        "--num-labels N, only");
        return false;
    }
    if ((type->rank == 3) != tasks[t->kind].per_token)
        return fail(t, "task %s needs logits %s, and they are %s", name,
                    tasks[t->kind].per_token ? "[batch, tokens, *]" : "[batch, *]",
                    ir_type_text(t->ctx, type));
    if (t->kind == TASK_SEQ_CLS && columns == 1) {
        fail(t, "a classifier with one class has nothing to learn, and the output has "
                "one column");
        ef_hint(t->ctx, "give --task regression");
        return false;
    }
    if (tasks[t->kind].vocabulary && labels)
        return fail(t, "--num-labels has no meaning for task %s", name);
    if (strcmp(t->ctx->cfg->pool, ef_config_default.pool))
        return fail(t, "--pool is of a new head, and the model has one");
    if (labels && labels != columns)
        return fail(t,
                    "--num-labels is %" PRId64 ", and the model's head has %" PRId64
                    " column%s",
                    labels, columns, columns == 1 ? "" : "s");
    if (tasks[t->kind].vocabulary && t->vocab && columns != t->vocab) {
        fail(t,
             "logits have %" PRId64 " columns but the embedding has %" PRId64
             " rows: token ids can't be labels",
             columns, t->vocab);
        ef_hint(t->ctx, "if the columns are classes, give --task token-cls");
        return false;
    }
    return true;
}

static void
warn_of_mask(const task *t)
{
    if (t->kind == TASK_CAUSAL_LM && t->attention && !t->causal)
        ef_error(t->ctx, NULL, W_PASS,
                 "no attention is causal: each token sees the one it has to predict");
    if (t->kind == TASK_MLM && t->causal)
        ef_error(t->ctx, NULL, W_PASS, "masked LM with causal attention");
}

/* Settles t->kind, and t->out as logits, adding a head where there is none. */
static bool
choose_task(task *t)
{
    const ef_config *cfg = t->ctx->cfg;
    bool ok = cfg->task ? parse_task(t, cfg->task) : detect(t);
    if (!ok)
        return false;
    warn_of_mask(t);
    if (!tasks[t->kind].per_token && !t->head)
        return task_add_head(t);
    return check_logits(t);
}

/* ---- the loss ---- */

/* Rows of logits that exist at a time, all chunks of about one size; see head_ce. */
static int64_t
chunk_rows(const pass_target *target, int64_t rows, int64_t columns)
{
    int64_t bytes = target && target->logits ? target->logits : LOGITS_BYTES;
    int64_t most = bytes / (4 * columns);
    most = most < 1 ? 1 : most > rows ? rows : most;
    int64_t chunks = (rows + most - 1) / most;
    return (rows + chunks - 1) / chunks;
}

/* %logits = linear %x, $w, $b      ->  %loss, %right, %pred, %losses = head_ce %x, $w, .. */
static ir_op *
emit_head_ce(const task *t, ir_builder *b, ir_value *targets, ir_value *scale)
{
    const ir_op *linear = t->out->def;
    const ir_type *type = t->out->type;
    int64_t columns = type->dim[type->rank - 1];
    ir_value *arg[5] = {linear->arg[0], linear->arg[1], targets, scale};
    if (linear->narg > 2)
        arg[4] = linear->arg[2];
    ir_attr attr[2] = {
        ir_attr_i(IR_ATTR_chunk,
                  chunk_rows(t->pc->target, ir_type_count(type) / columns, columns)),
        ir_attr_i(IR_ATTR_tb, 1)};
    int nattr = 1 + (ir_attr_int(linear, IR_ATTR_tb, 0) != 0);
    return ir_insert(b, IR_OP_head_ce, "loss", linear->narg + 2, arg, nattr, attr, NULL,
                     4);
}

static void
add_loss(task *t)
{
    const ir_type *type = t->out->type;
    bool values = t->kind == TASK_REGRESSION, words = tasks[t->kind].vocabulary;
    ir_value *wanted =
        values
            ? ir_input_new(t->m, "values", "values", ir_type_with(t->ctx, type, IR_F32))
            : ir_input_new(t->m, "targets", "labels",
                           ir_type_get(t->ctx, IR_I64, type->rank - 1, type->dim));
    ir_value *scale =
        ir_input_new(t->m, "scale", "scale", ir_type_get(t->ctx, IR_F32, 0, NULL));
    bool uses_elsewhere = t->out->nuse > 1;
    ir_builder b = ir_at(t->ret);
    b.loc = t->out->def ? t->out->def->loc : b.loc;
    const ir_op *last = t->out->def;
    bool fused = words && last && last->code == IR_OP_linear && !uses_elsewhere &&
                 !ir_attr_get(last, IR_ATTR_alpha);
    ir_opcode code = values ? IR_OP_mse : IR_OP_ce;
    ir_value *arg[] = {t->out, wanted, scale};
    ir_op *loss =
        fused ? emit_head_ce(t, &b, wanted, scale)
              : ir_insert(&b, code, "loss", 3, arg, 0, NULL, NULL, values ? 2 : 4);
    ir_rename(t->f, loss->res[values ? 1 : 3], "losses");
    if (!values) {
        ir_rename(t->f, loss->res[1], "right");
        ir_rename(t->f, loss->res[2], fused ? "pred" : "prob");
    }
    ir_insert(&b, IR_OP_ret, NULL, 1, loss->res, 0, NULL, NULL, 0);
    ir_remove(t->ret);
}

/* Facts for the trainer, and what the user should know. */
static void
tell(const task *t)
{
    const ir_type *type = t->out->type;
    int64_t columns = type->dim[type->rank - 1];
    ir_meta_set(t->m, "task", tasks[t->kind].name);
    if (t->vocab)
        ir_meta_set(t->m, "vocab", ef_internf(t->ctx, "%" PRId64, t->vocab));
    if (!tasks[t->kind].vocabulary)
        ir_meta_set(t->m, "labels", ef_internf(t->ctx, "%" PRId64, columns));
    bool one = t->kind == TASK_REGRESSION;
    const char *why =
        ir_meta_get(t->m, "head.input")
            ? (one ? " (a new head of one output)" : " (a new head of several outputs)")
        : one ? " (found from the graph: one logit)"
              : " (found from the graph)";
    ef_report(t->ctx, "task: %s%s, logits %s", tasks[t->kind].name,
              t->ctx->cfg->task ? "" : why, ir_type_text(t->ctx, type));
    for (int i = 0; i < t->ret->narg; i++)
        if (i != t->main)
            ef_report(t->ctx, "output %s is dropped: the loss does not need it",
                      task_output_name(t, i));
}

/* Needs FUSED; gives LOSS: step ends in its loss, weights are trained or frozen.
 *
 *     %l = linear %h, $w : f32[2,16,160]
 *     ret %l
 * ->
 *     %loss, %right, %pred, %losses = head_ce %h, $w, %targets, %scale {chunk=32} : ..
 *     ret %loss
 */
bool
pass_task(pass_ctx *pc)
{
    ir_module *m = pc->m;
    task t = {.pc = pc, .m = m, .ctx = m->ctx, .f = m->step};
    if (!m->step || m->eval)
        return ef_error(m->ctx, NULL, E_TASK,
                        "expected a module with step and without eval");
    if (!look(&t) || !choose_task(&t))
        return false;
    tell(&t);
    add_loss(&t);
    pass_remove_dead(m->step);
    return task_set_classes(m, IR_TRAIN, !m->ctx->cfg->lora_r);
}
