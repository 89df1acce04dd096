/* dropout.c -- pass dropout: --dropout P at the places that the model's family has.
 *
 * transformers' models drop at places that are no part of the graph of a file that was exported
 * for inference. They are found again by structure: attentions; products whose result is added
 * to the stream, behind an attention or not; what the embeddings give; what the classifier
 * reads. Which of these a family has stands in meta dropout.places, from frontend/families.def.
 *
 * A file exported in training mode has dropout of its own; then P is its probability there.
 * Each place has a number of its own, its site: so no two places drop the same columns.
 */
#include <inttypes.h>
#include <string.h>

#include "canon_int.h"
#include "pass_int.h"

enum { PLACES = 7 };

typedef struct dropout {
    ir_module *m;
    ef_ctx *ctx;
    const ir_uses *uses;
    ir_value *keys, *key;
    const char *family; /* its places, by commas */
    ir_attr attr[2];    /* p, and the next site */
    int found[PLACES];
} dropout;

typedef void find_fn(dropout *, int place);
static find_fn embedding, attention, output, mlp, classifier, token_classifier, dense;

static const struct {
    const char *name, *what;
    find_fn *find;
    bool always; /* else of some tasks only */
} places[PLACES] = {
    {"embedding", "embedding", embedding, true},
    {"attention", "attention", attention, true},
    {"output", "attention output", output, true},
    {"mlp", "MLP output", mlp, true},
    {"classifier", "classifier", classifier, false},
    {"tokens", "classifier", token_classifier, false},
    {"dense", "layer before the classifier", dense, false},
};

/* ---- places ---- */

/* Dropout of v before op; NULL: v has no rows of tokens or samples. */
static ir_value *
drop(dropout *d, ir_value *v, ir_op *op, int place)
{
    ir_builder b = op ? ir_at(op) : ir_after(v->def);
    ir_value *keys = ir_drop_keys_of(&b, d->keys, v->type);
    if (!keys)
        return NULL;
    const char *name = ef_internf(d->ctx, "%s.drop", v->name);
    ir_value *y = ir_emit(&b, IR_OP_dropout, name, 3, (ir_value *[]){v, keys, d->key},
                          2, d->attr, NULL);
    d->attr[1].u.i++;
    d->found[place]++;
    return y;
}

/* Operand i of op, dropped. */
static void
drop_arg(dropout *d, ir_op *op, int i, int place)
{
    ir_value *y = drop(d, op->arg[i], op, place);
    if (y)
        ir_set_arg(op, i, y);
}

/* v, dropped, for all that read it. */
static void
drop_all(dropout *d, ir_value *v, int place)
{
    ir_value *y = drop(d, v, NULL, place);
    if (y)
        ir_replace_uses_after(y->def, v, y);
}

static const ir_op *
maker(const ir_value *v)
{
    while (v->def && pass_is_view(v->def))
        v = v->def->arg[0];
    return v->def;
}

/* What the layers get: the sum of the rows of tables, be it behind a norm, if the norm is all
 * that reads the sum. */
static void
embedding(dropout *d, int place)
{
    ir_value *v = NULL;
    for (ir_op *op = ir_first_op(d->m->step); op && !v; op = ir_next_op(op)) {
        const ir_value *ids = op->code == IR_OP_embed ? op->arg[1] : NULL;
        while (ids && ids->def && pass_is_view(ids->def))
            ids = ids->def->arg[0];
        if (ids && !ids->def && pass_input_is(d->m, ids, "ids"))
            v = op->res[0];
    }
    while (v && v->nuse == 1) {
        ir_op *op = ir_users(d->uses, v)->op.at[0];
        bool on = op->code == IR_OP_add || op->code == IR_OP_mul ||
                  op->code == IR_OP_layernorm || op->code == IR_OP_reshape;
        if (!on)
            break;
        v = op->res[0];
        if (op->code == IR_OP_layernorm)
            break;
    }
    if (v)
        drop_all(d, v, place);
}

/* The weights of an attention; where it stayed plain ops, a softmax [batch,heads,S,S]. */
static void
attention(dropout *d, int place)
{
    for (ir_op *op = ir_first_op(d->m->step), *next; op; op = next) {
        next = ir_next_op(op);
        const ir_type *t = op->nres ? op->res[0]->type : NULL;
        if (op->code == IR_OP_softmax && t->rank == 4 && t->dim[2] == t->dim[3])
            drop_all(d, op->res[0], place);
        if (op->code != IR_OP_attention)
            continue;
        ir_add_arg(d->m, op, d->keys);
        ir_add_arg(d->m, op, d->key);
        for (int i = 0; i < 2; i++)
            ir_attr_set(d->m, op, d->attr[i]);
        d->attr[1].u.i++;
        d->found[place]++;
    }
}

/* Does the product read what an attention gives? */
static bool
is_behind_attention(const ir_op *linear)
{
    const ir_op *op = maker(linear->arg[0]);
    while (op && (op->code == IR_OP_transpose || pass_is_view(op)))
        op = op->arg[0]->def;
    return op && (op->code == IR_OP_attention || op->code == IR_OP_matmul);
}

/* Does it bring the rows of a table to the width of the stream, as in OPT? */
static bool
is_of_table(const ir_op *linear)
{
    const ir_op *op = maker(linear->arg[0]);
    return op && op->code == IR_OP_embed;
}

/* Products that are added to the stream. */
static void
residual(dropout *d, int place, bool behind_attention)
{
    for (ir_op *op = ir_first_op(d->m->step), *next; op; op = next) {
        next = ir_next_op(op);
        if (op->code != IR_OP_add || op->arg[0]->type != op->arg[1]->type)
            continue;
        for (int i = 0; i < 2; i++) {
            const ir_op *x = maker(op->arg[i]);
            if (x && x->code == IR_OP_linear && !op->arg[1 - i]->param &&
                !is_of_table(x) && is_behind_attention(x) == behind_attention)
                drop_arg(d, op, i, place);
        }
    }
}

static void
output(dropout *d, int place)
{
    residual(d, place, true);
}

static void
mlp(dropout *d, int place)
{
    residual(d, place, false);
}

/* The product that makes the logits of a classifier; NULL: there is none. */
static ir_op *
last_linear(const dropout *d)
{
    const char *task = ir_meta_get(d->m, "task");
    const ir_op *ret = d->m->step->last ? d->m->step->last->last : NULL;
    if (!task || !strcmp(task, "causal-lm") || !strcmp(task, "mlm") || !ret ||
        !ret->narg)
        return NULL;
    const ir_op *loss = ret->arg[0]->def;
    ir_op *op = loss ? loss->arg[0]->def : NULL;
    while (op &&
           (pass_is_view(op) || op->code == IR_OP_slice || op->code == IR_OP_gather ||
            (op->code == IR_OP_add && op->arg[1]->param)))
        op = op->arg[0]->def;
    return op && op->code == IR_OP_linear ? op : NULL;
}

static void
classifier(dropout *d, int place)
{
    ir_op *op = last_linear(d);
    if (op)
        drop_arg(d, op, 0, place);
}

static void
token_classifier(dropout *d, int place)
{
    const char *task = ir_meta_get(d->m, "task");
    if (task && !strcmp(task, "token-cls"))
        classifier(d, place);
}

/* RoBERTa's classifier is two products with tanh between them, if it is the model's own. */
static void
dense(dropout *d, int place)
{
    const ir_op *op = last_linear(d);
    op = op && !ir_meta_get(d->m, "head.input") ? maker(op->arg[0]) : NULL;
    op = op && op->code == IR_OP_dropout ? maker(op->arg[0]) : op;
    const ir_op *first = op && op->code == IR_OP_tanh ? maker(op->arg[0]) : NULL;
    if (first && first->code == IR_OP_linear)
        drop_arg(d, (ir_op *)first, 0, place);
}

/* ---- the pass ---- */

void
pass_undrop(ir_func *f)
{
    IR_FOREACH_BLOCK (b, f)
        IR_FOREACH_OP (op, b) {
            if (op->code == IR_OP_dropout) {
                ir_replace_uses(f, op->res[0], op->arg[0]);
                ir_remove(op);
            } else if (ir_attr_get(op, IR_ATTR_p)) {
                ir_cut_args(op, op->narg - 2);
                ir_attr_remove(op, IR_ATTR_p);
                ir_attr_remove(op, IR_ATTR_site);
            }
        }
    pass_remove_dead(f);
}

/* Gives the file's own dropout probability p; how many there are. */
static int
set_own(ir_module *m, double p)
{
    int n = 0;
    for (ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op)) {
        if (!ir_attr_get(op, IR_ATTR_p))
            continue;
        n++;
        if (p > 0)
            ir_attr_set(m, op, ir_attr_f(IR_ATTR_p, p));
    }
    if (n && p > 0)
        ef_report(m->ctx, "dropout: %s at the %d places that the file has", ef_ftoa(p),
                  n);
    if (n && p == 0)
        pass_undrop(m->step);
    if (n && p == 0)
        ef_report(m->ctx, "dropout: none, %d places of the file are left out", n);
    return n;
}

/* Needs LOSS: the classifier must be there.
 *
 *     %h = add %x, %mlp : f32[2,16,48]
 * ->
 *     %mlp.drop = dropout %mlp, %keys, %key {p=0.1, site=3} : f32[2,16,48]
 *     %h = add %x, %mlp.drop : f32[2,16,48]
 */
bool
pass_dropout(pass_ctx *pc)
{
    ir_module *m = pc->m;
    double p = m->ctx->cfg->dropout;
    if (p < 0 || set_own(m, p) || p == 0)
        return true;
    dropout d = {.m = m, .ctx = m->ctx, .uses = ir_uses_of(m->step, pc->scratch)};
    d.family = ir_meta_get(m, "dropout.places");
    d.attr[0] = ir_attr_f(IR_ATTR_p, p);
    d.attr[1] = ir_attr_i(IR_ATTR_site, 0);
    ef_buf b = {.arena = pc->scratch};
    int n = 0;
    d.keys = ir_drop_keys(m, ir_meta_int(m, "batch", 0), ir_meta_int(m, "seq", 0));
    d.key = ir_drop_key(m);
    for (int i = 0; i < PLACES && d.keys; i++) {
        if (!pass_in_list(d.family, places[i].name))
            continue;
        places[i].find(&d, i);
        n += d.found[i];
        if (d.found[i] || places[i].always)
            ef_putf(&b, "%s %d %s", b.n ? "," : "", d.found[i], places[i].what);
    }
    if (n) {
        ef_report(m->ctx, "dropout %s:%s", ef_ftoa(p), b.s);
        return true;
    }
    ef_error(m->ctx, NULL, E_OPT_VALUE, "dropout",
             d.family ? "none of the places that the model's family has is in the graph"
                      : "the model's family is not known, which would tell its places");
    ef_hint(m->ctx,
            "export the model in training mode, then it has dropout of its own");
    return false;
}
