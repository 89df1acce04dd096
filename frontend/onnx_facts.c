/* onnx_facts.c -- what passes and trainer have to know of a model besides its ops.
 *
 * Inputs get their roles by name, else by use: token ids index the biggest table. The
 * vocabulary is the size of that table; the pad id is what the graph itself compares the
 * ids with; classes are the columns of logits. Buffers of PyTorch's model, and tables of
 * sines, cosines and masks, are no weights and become constants.
 */
#include "structure_int.h"

#include <string.h>

static void
put_int(fe_imp *im, const char *key, int64_t x)
{
    ir_meta_set(im->m, key, ef_internf(im->ctx, "%lld", (long long)x));
}

/* Through ops that move elements or change their type only. */
static ir_value *
source_of(ir_value *v)
{
    while (v->def && (v->def->code == IR_OP_reshape || v->def->code == IR_OP_cast ||
                      v->def->code == IR_OP_expand || v->def->code == IR_OP_transpose ||
                      v->def->code == IR_OP_slice))
        v = v->def->arg[0];
    return v;
}

/* ---- roles ---- */

typedef struct input {
    ir_value *arg;
    const char *role;
    int64_t rows; /* of the smallest table that it indexes; 0: none */
} input;

typedef struct inputs {
    EF_VEC(input) at;
} inputs;

static const char *
role_by_name(const char *name)
{
    static const struct {
        const char *part, *role;
    } rows[] = {{"token_type", "types"},   {"segment", "types"},
                {"position", "positions"}, {"mask", "mask"},
                {"input_ids", "ids"},      {"tokens", "ids"},
                {"input_id", "ids"},       {"token_ids", "ids"}};
    for (size_t i = 0; i < EF_COUNT(rows); i++)
        if (strstr(name, rows[i].part))
            return rows[i].role;
    return NULL;
}

static void
find_tables(fe_imp *im, inputs *ins)
{
    for (ir_op *op = ir_first_op(im->m->step); op; op = ir_next_op(op)) {
        if (op->code != IR_OP_gather || !op->arg[0]->param ||
            op->arg[0]->type->rank != 2)
            continue;
        const ir_value *from = source_of(op->arg[1]);
        int64_t rows = op->arg[0]->type->dim[0];
        for (int i = 0; i < ins->at.n; i++) {
            input *in = &ins->at.at[i];
            if (in->arg == from && (!in->rows || rows < in->rows))
                in->rows = rows;
        }
    }
}

static input *
with_role(inputs *ins, const char *role)
{
    for (int i = 0; i < ins->at.n; i++)
        if (ins->at.at[i].role && !strcmp(ins->at.at[i].role, role))
            return &ins->at.at[i];
    return NULL;
}

/* Roles of inputs whose names say nothing. */
static void
roles_by_use(inputs *ins)
{
    input *biggest = NULL;
    for (int i = 0; i < ins->at.n; i++) {
        input *in = &ins->at.at[i];
        if (!in->role && in->rows && (!biggest || in->rows > biggest->rows))
            biggest = in;
    }
    if (biggest && !with_role(ins, "ids"))
        biggest->role = "ids";
    for (int i = 0; i < ins->at.n; i++) {
        input *in = &ins->at.at[i];
        if (!in->role && in->arg->nuse)
            in->role = !in->rows ? "mask" : in->rows <= 16 ? "types" : "positions";
    }
}

/* Inputs that nothing reads and no name explains are left out. */
static void
keep_roles(fe_imp *im, const inputs *ins)
{
    im->m->step->args.n = 0;
    for (int i = 0; i < ins->at.n; i++) {
        const input *in = &ins->at.at[i];
        if (!in->role)
            continue;
        ef_push(im->m->arena, im->m->step->args, in->arg);
        ir_meta_set(im->m, ef_internf(im->ctx, "input.%s", in->arg->name), in->role);
    }
}

static bool
check_roles(fe_imp *im, inputs *ins)
{
    static const char *const role[] = {"ids", "mask", "types", "positions"};
    for (size_t r = 0; r < EF_COUNT(role); r++) {
        const input *first = with_role(ins, role[r]);
        for (int i = 0; i < ins->at.n; i++) {
            const input *in = &ins->at.at[i];
            if (in != first && in->role && !strcmp(in->role, role[r]) && in->arg->nuse)
                return ef_error(im->ctx, NULL, E_ONNX_INPUT, in->arg->name,
                                ef_internf(im->ctx,
                                           "has the same role (%s) as %s, which is "
                                           "not supported",
                                           role[r], first->arg->name));
        }
    }
    const input *at = with_role(ins, "positions"), *ids = with_role(ins, "ids");
    if (at && at->rows && at->rows < im->seq)
        return ef_error(im->ctx, NULL, E_ONNX_INPUT, at->arg->name,
                        ef_internf(im->ctx,
                                   "the table that it indexes has %lld rows: give a "
                                   "--seq of at most that",
                                   (long long)at->rows));
    if (ids && ids->rows)
        return true;
    return ef_error(
        im->ctx, NULL, E_ONNX_GRAPH,
        "no input is looked up in an embedding table: efficc trains transformers "
        "over token ids, this file is not supported");
}

static bool
find_roles(fe_imp *im)
{
    inputs ins = {0};
    ir_func *f = im->m->step;
    for (int i = 0; i < f->args.n; i++) {
        ir_value *v = f->args.at[i];
        const char *role = ir_meta_get(
            im->m, ef_internf(im->ctx, "input.%s", v->name)); /* dropout's */
        ef_push(im->arena, ins.at,
                ((input){v, role ? role : role_by_name(v->name), 0}));
    }
    find_tables(im, &ins);
    roles_by_use(&ins);
    if (!check_roles(im, &ins))
        return false;
    keep_roles(im, &ins);
    put_int(im, "vocab", with_role(&ins, "ids")->rows);
    return true;
}

/* ---- numbers ---- */

static void
find_pad(fe_imp *im)
{
    int64_t pad = 0;
    for (ir_op *op = ir_first_op(im->m->step); op; op = ir_next_op(op)) {
        double x;
        if (op->code != IR_OP_eq)
            continue;
        for (int i = 0; i < 2; i++) {
            ir_value *v = source_of(op->arg[i]);
            const char *key = ef_internf(im->ctx, "input.%s", v->name);
            const char *role = v->def || v->param ? NULL : ir_meta_get(im->m, key);
            if (role && !strcmp(role, "ids") && ir_is_const_scalar(op->arg[1 - i], &x))
                pad = (int64_t)x;
        }
    }
    put_int(im, "pad", pad);
}

static const ir_value *
main_result(const ir_module *m)
{
    return m->step->last->last->arg[0];
}

/* Is v a product with a matrix of weights, maybe with a bias? */
static bool
is_linear(ir_value *v)
{
    for (v = source_of(v); v->def && v->def->code == IR_OP_add; v = source_of(v)) {
        int bias = source_of(v->def->arg[0])->param ? 0 : 1;
        if (!source_of(v->def->arg[bias])->param)
            return false;
        v = v->def->arg[1 - bias];
    }
    return v->def && v->def->code == IR_OP_matmul &&
           source_of(v->def->arg[1])->param != NULL;
}

static void
find_labels(fe_imp *im)
{
    const ir_type *t = main_result(im->m)->type;
    int64_t columns = t->rank ? t->dim[t->rank - 1] : 0;
    bool logits =
        (t->rank == 2 || t->rank == 3) && is_linear((ir_value *)main_result(im->m));
    if (logits && (t->rank == 2 || columns < ir_meta_int(im->m, "vocab", 0)))
        put_int(im, "labels", columns);
}

/* ---- params that are no weights ---- */

/* onnxruntime saves Constants as initializers of the same name: "/norm/Constant_1_output_0". */
static bool
was_constant(const char *name)
{
    const char *last = strrchr(name, '/');
    size_t n = strlen(name), k = strlen("_output_0");
    return last && !strncmp(last + 1, "Constant_", 9) && n > k &&
           !strcmp(name + n - k, "_output_0");
}

bool
fe_is_buffer(const fe_imp *im, const fe_param *p)
{
    bool torch = !strcmp(fe_str(im->f->proto->producer_name), "pytorch");
    bool constant = ef_map_has(&im->main->producer, p->onnx) || was_constant(p->onnx);
    return torch && !p->foreign &&
           (constant || p->looked_up || (!p->hf && p->t->rank > 2));
}

static void
free_buffers(fe_imp *im)
{
    for (int i = 0; i < im->params.n; i++)
        if (im->params.at[i]->ir && fe_is_buffer(im, im->params.at[i]))
            im->params.at[i]->ir->cls = IR_CONST;
}

/* Marks in aux what results depend on by other ways than sines, cosines and masks. */
static void
mark_weights(fe_imp *im)
{
    for (ir_block *b = im->m->step->last; b; b = b->prev)
        for (ir_op *op = b->last; op; op = op->prev) {
            bool live = op->code == IR_OP_ret;
            for (int i = 0; i < op->nres; i++)
                live |= op->res[i]->aux != NULL;
            if (!live || op->code == IR_OP_sin || op->code == IR_OP_cos)
                continue;
            for (int i = 0; i < op->narg; i++)
                op->arg[i]->aux = im;
        }
}

static void
free_constants(fe_imp *im)
{
    free_buffers(im);
    mark_weights(im);
    for (int i = 0; i < im->m->params.n; i++) {
        ir_param *p = im->m->params.at[i];
        if (p->cls == IR_TRAIN && (!p->value->aux || fe_is_table(im, p)))
            p->cls = IR_CONST;
    }
    for (int i = 0; i < im->m->params.n; i++)
        im->m->params.at[i]->value->aux = NULL;
    for (ir_op *op = ir_first_op(im->m->step); op; op = ir_next_op(op))
        for (int i = 0; i < op->nres; i++)
            op->res[i]->aux = NULL;
}

bool
fe_facts(fe_imp *im)
{
    const Onnx__ModelProto *p = im->f->proto;
    ir_meta_set(im->m, "model", im->f->path);
    if (!find_roles(im))
        return false;
    free_constants(im);
    put_int(im, "batch", im->batch);
    put_int(im, "seq", im->seq);
    find_pad(im);
    find_labels(im);
    if (im->family) {
        ir_meta_set(im->m, "family", im->family->name);
        ir_meta_set(im->m, "dropout.places", im->family->dropout);
    }
    ir_meta_set(im->m, "exporter",
                ef_internf(im->ctx, "%s%s%s, IR %lld, opset %d",
                           fe_str(p->producer_name), p->producer_version ? " " : "",
                           fe_str(p->producer_version), (long long)p->ir_version,
                           im->f->opset));
    return true;
}
