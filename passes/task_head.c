/* task_head.c -- a head, of a classifier or a regression, for a model that was exported
 * without one.
 *
 * One linear layer, head.weight [N,H] and head.bias [N], on one vector per row of the batch:
 * the hidden state of the first token, the mean over the real tokens, or the output of the
 * model's own pooler. fe_write_template() appends the same to the ONNX file.
 */
#include <inttypes.h>
#include <string.h>

#include "pass_int.h"
#include "task_int.h"

static bool
fail(const task *t, const char *what, const char *hint)
{
    ef_error(t->ctx, NULL, E_TASK, what);
    ef_hint(t->ctx, "%s", hint);
    return false;
}

const char *
task_output_name(const task *t, int i)
{
    const char *list = ir_meta_get(t->m, "outputs");
    for (int k = 0; list && *list; k++) {
        size_t n = strcspn(list, ",");
        if (k == i)
            return ef_internn(t->ctx, list, n);
        list += n + (list[n] == ',');
    }
    return t->ret->arg[i]->name;
}

/* The attention mask among step's arguments, [B,S]; NULL: none. */
static ir_value *
find_mask(const task *t)
{
    const ir_type *h = t->out->type;
    for (int i = 0; i < t->f->args.n; i++) {
        ir_value *v = t->f->args.at[i];
        if (pass_input_is(t->m, v, "mask") && v->type->dtype == IR_I64 &&
            v->type->rank == 2 && v->type->dim[0] == h->dim[0] &&
            v->type->dim[1] == h->dim[1])
            return v;
    }
    return NULL;
}

#define DIMS(...) ((int64_t[]){__VA_ARGS__})

static const ir_type *
shape(const task *t, ir_dtype d, int rank, const int64_t *dim)
{
    return ir_type_get(t->ctx, d, rank, dim);
}

static ir_value *
emit(ir_builder *b, ir_opcode code, ir_value *x, const ir_attr *attr,
     const ir_type *given)
{
    return ir_emit(b, code, "head.pooled", 1, &x, attr != NULL, attr, given);
}

/* [B,S,H] -> [B,H]: position 0. */
static ir_value *
first_token(const task *t, ir_builder *b)
{
    const ir_type *h = t->out->type;
    ir_attr axis = ir_attr_i(IR_ATTR_axis, 1);
    ir_value *one = emit(b, IR_OP_slice, t->out, &axis,
                         shape(t, h->dtype, 3, DIMS(h->dim[0], 1, h->dim[2])));
    return emit(b, IR_OP_reshape, one, NULL,
                shape(t, h->dtype, 2, DIMS(h->dim[0], h->dim[2])));
}

/* [B,S,H] -> [B,H]: mean over positions where the mask is not 0, or over all. */
static ir_value *
mean_token(const task *t, ir_builder *b)
{
    const ir_type *h = t->out->type;
    int64_t one = 1;
    ir_attr axes = ir_attr_l(IR_ATTR_axes, 1, &one);
    ir_value *mask = find_mask(t);
    if (!mask)
        return emit(b, IR_OP_reduce_mean, t->out, &axes, NULL);
    ir_meta_set(t->m, "pool.mask", mask->name);
    ir_value *real =
        emit(b, IR_OP_cast, mask, NULL, ir_type_with(t->ctx, mask->type, IR_BOOL));
    real = emit(b, IR_OP_cast, real, NULL, ir_type_with(t->ctx, mask->type, h->dtype));
    real = emit(b, IR_OP_reshape, real, NULL,
                shape(t, h->dtype, 3, DIMS(h->dim[0], h->dim[1], 1)));
    ir_value *kept = ir_ew2(b, IR_OP_mul, "head.pooled", t->out, real);
    ir_value *sum = emit(b, IR_OP_reduce_sum, kept, &axes, NULL);
    ir_value *n = emit(b, IR_OP_reduce_sum, real, &axes, NULL);
    n = ir_ew2(b, IR_OP_max, "head.pooled", n,
               ir_const(b, "head.pooled", shape(t, h->dtype, 0, NULL), 1));
    return ir_ew2(b, IR_OP_div, "head.pooled", sum, n);
}

/* Makes the output that the head reads [B,*] in t->main and t->out. */
static bool
use_pooler(task *t)
{
    for (int i = 0; i < t->ret->narg; i++) {
        const ir_type *type = t->ret->arg[i]->type;
        if (type->rank == 2 && ir_dtypes[type->dtype].is_float) {
            t->main = i;
            t->out = t->ret->arg[i];
            return true;
        }
    }
    return fail(t, "--pool pooler: the model has no output [batch, hidden]",
                "use --pool first or --pool mean");
}

/* What the head reads, [B,H]; NULL: said why. */
static ir_value *
pool(task *t, ir_builder *b)
{
    const char *how = t->ctx->cfg->pool;
    if (t->out->type->rank == 2) { /* a vector per row already */
        if (!strcmp(how, "mean"))
            return fail(t, "--pool mean: the model's output has no tokens",
                        "leave --pool out"),
                   NULL;
        how = "pooler";
    }
    ir_meta_set(t->m, "pool", how);
    if (!strcmp(how, "pooler"))
        return use_pooler(t) ? t->out : NULL;
    return !strcmp(how, "first") ? first_token(t, b) : mean_token(t, b);
}

static ir_value *
new_param(const task *t, const char *name, const ir_type *type, ir_init init)
{
    ir_param *p = ir_param_new(t->m, name, type, IR_TRAIN, t->ret->block->unit);
    p->role = IR_HEAD;
    p->init = init;
    return p->value;
}

bool
task_add_head(task *t)
{
    int64_t labels = t->ctx->cfg->num_labels;
    bool values = t->kind == TASK_REGRESSION;
    if (!labels)
        return fail(
            t, "the model has no head: how many outputs a new one has is not known",
            "give --num-labels N");
    if (labels == 1 && !values)
        return fail(t, "a classifier with one class has nothing to learn",
                    "give --num-labels N, at least 2, or --task regression");
    if (ir_param_by_name(t->m, "head.weight") || ir_param_by_name(t->m, "head.bias"))
        return fail(t, "the model has a parameter head.weight or head.bias already",
                    "rename it in the model: these are the names of the new head");
    ir_builder b = ir_at(t->ret);
    b.loc = ef_intern(t->ctx, "head");
    ir_value *x = pool(t, &b);
    if (!x)
        return false;
    ir_meta_set(t->m, "head.input", task_output_name(t, t->main));
    ir_value *arg[] = {
        x,
        new_param(t, "head.weight",
                  shape(t, x->type->dtype, 2, DIMS(labels, x->type->dim[1])),
                  IR_INIT_NORMAL),
        new_param(t, "head.bias", shape(t, x->type->dtype, 1, &labels), IR_INIT_ZERO)};
    ir_attr tb = ir_attr_i(IR_ATTR_tb, 1);
    t->out = ir_emit(&b, IR_OP_linear, "logits", 3, arg, 1, &tb, NULL);
    t->head = true;
    ef_report(t->ctx, "head: new, %" PRId64 " %s, reads %s of output %s", labels,
              !values       ? "classes"
              : labels == 1 ? "output"
                            : "outputs",
              !strcmp(ir_meta_get(t->m, "pool"), "first")  ? "the first token"
              : !strcmp(ir_meta_get(t->m, "pool"), "mean") ? "the mean"
                                                           : "the whole",
              task_output_name(t, t->main));
    return true;
}
