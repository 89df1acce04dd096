/* cmd_export_match.c -- which weight of the model each tensor changes.
 *
 * Adapted modules and modules_to_save go by PyTorch's names, tensors of a file by these or by
 * the model file's. Each must have its place: what is left out would give a model that is not
 * the one that was trained, and nobody would see it.
 */
#include "cmd_export.h"

#include <stdlib.h>
#include <string.h>

static const char *
torch_name(const ir_param *p)
{
    const char *name = fe_torch_name(p);
    return name ? name : p->value->name;
}

/* Is it called after a parameter that it is computed from? */
static bool
is_computed(const ir_param *p)
{
    return p->hf && !fe_torch_name(p);
}

/* ---- tied weights ---- */

static bool
is_tied(const exporter *e, const ir_param *p)
{
    fe_reading r = fe_reading_of(e->model, p);
    return p->also.n || (r.table && r.product);
}

/* In PyTorch the change is of one of the two layers, here it would be of both. */
static int
refuse_tied(const exporter *e, const ir_param *p, const char *what)
{
    if (!is_tied(e, p))
        return RT_OK;
    return rt_fail(
        RT_USER,
        "%s: the adapter changes %s, but in this model '%s' is tied to another "
        "layer\nmerge in PyTorch, where the layers can be told apart, and export that",
        e->adapter, what, torch_name(p));
}

/* ---- names ---- */

const ir_param *
export_weight_of(exporter *e, const char *module)
{
    const char *name = ef_intern(e->ctx, module);
    for (int i = 0; i < e->module->params.n; i++) {
        const ir_param *p = e->module->params.at[i];
        if (p->cls != IR_CONST && p->role == IR_BASE && p->value->type->rank == 2 &&
            ir_param_module(e->ctx, p) == name)
            return p;
    }
    return NULL;
}

typedef struct found {
    ir_param *param;
    bool transposed;
    int shift;
} found;

/* Is `name` an initializer of p? */
static bool
is_initializer(const ir_param *p, const char *name, bool *transposed)
{
    *transposed = false;
    if (p->onnx && !strcmp(p->onnx, name))
        return true;
    for (int i = 0; i < p->also.n; i++)
        if (!strcmp(p->also.at[i] + 1, name)) {
            *transposed = p->also.at[i][0] == 'T';
            return true;
        }
    return false;
}

/* The weight of a tensor's name, as PyTorch's or as the file's; in the order of --init-tensors
 * of a trainer. */
static found
weight_named(const exporter *e, const char *name, bool torch)
{
    enum { BY_TORCH, BY_FILE, BY_OWN, WAYS };
    static const int order[2][WAYS] = {{BY_FILE, BY_OWN, BY_TORCH},
                                       {BY_TORCH, BY_FILE, BY_OWN}};
    for (int w = 0; w < WAYS; w++)
        for (int i = 0; i < e->module->params.n; i++) {
            ir_param *p = e->module->params.at[i];
            int way = order[torch][w];
            bool flipped = way == BY_TORCH && p->transposed, same;
            const char *hf = fe_torch_name(p);
            if (way == BY_TORCH)
                same = hf && !strcmp(hf, name);
            else if (way == BY_FILE)
                same = is_initializer(p, name, &flipped);
            else /* a name of PyTorch's is not of values computed from its own */
                same = !strcmp(p->value->name, name) && !(torch && is_computed(p));
            if (same && p->cls != IR_CONST)
                return (found){p, flipped && p->value->type->rank == 2,
                               way == BY_TORCH ? p->shift : 0};
        }
    return (found){0};
}

/* The PyTorch name nearest to `name`; modules: of a module. "": none is near; NULL: there is
 * none. */
static const char *
nearest(const exporter *e, const char *name, bool modules)
{
    const char *best = NULL;
    int least = 1 << 20;
    for (int i = 0; i < e->module->params.n; i++) {
        const ir_param *p = e->module->params.at[i];
        if (p->cls == IR_CONST || (modules && p->value->type->rank != 2))
            continue;
        const char *s = modules ? ir_param_module(e->ctx, p) : torch_name(p);
        int d = rt_distance_part(name, s);
        best = d < least ? s : best;
        least = d < least ? d : least;
    }
    return best && !rt_is_near(name, least) ? "" : best;
}

/* ---- changes ---- */

static int
add(exporter *e, ir_param *p, change c)
{
    if (ef_map_has(&e->changes, p))
        return rt_fail(RT_USER, "'%s' is changed by two tensors, one of them %s%s",
                       torch_name(p), c.pair ? "the adapter of " : "",
                       c.pair ? c.pair->module : c.tensor->name);
    c.param = p;
    p->cls = IR_TRAIN;
    ef_map_set(e->ctx->arena, &e->changes, p, ef_dup(e->ctx->arena, &c, sizeof c));
    return RT_OK;
}

static int
no_module(exporter *e, const char *module)
{
    const char *near = nearest(e, module, true);
    return rt_fail(
        RT_USER,
        "%s adapts the module '%s', of which the model has no weight\n%s%s%s%s",
        e->adapter, module, near && *near ? "the nearest name is '" : "",
        near ? near : "", near && *near ? "'; " : "",
        near ? "give the model that was trained, as PyTorch exported it"
             : "it has no matrix of floats: is it quantized? Merge into the model it "
               "was made from");
}

static int
add_pair(exporter *e, const rt_peft_pair *pair)
{
    ir_param *p = (ir_param *)export_weight_of(e, pair->module);
    if (!p)
        return no_module(e, pair->module);
    int code = refuse_tied(e, p, pair->module);
    return code ? code : add(e, p, (change){.pair = pair});
}

static bool
same_shape(const ir_type *t, const rt_st_tensor *x, bool transposed)
{
    bool same = t->rank == x->rank;
    for (int i = 0; i < t->rank && same; i++)
        same = x->dim[i] == t->dim[transposed ? t->rank - 1 - i : i];
    return same;
}

static int
no_weight(const exporter *e, const rt_st *st, const char *name)
{
    for (int i = 0; i < e->module->params.n; i++) {
        const ir_param *p = e->module->params.at[i];
        if (is_computed(p) && !strcmp(p->hf, name))
            return rt_fail(
                RT_USER,
                "%s: the model has not '%s' itself: its exporter computed '%s' "
                "from it\nexport the model with the new weights from PyTorch",
                st->path, name, p->onnx);
    }
    const char *near = nearest(e, name, false);
    bool is_near = near && *near;
    return rt_fail(RT_USER, "%s: the model has no weight '%s'%s%s%s", st->path, name,
                   is_near ? "\nthe nearest name is '" : "", is_near ? near : "",
                   is_near ? "'" : "\nis it of another model?");
}

/* tensor of st replaces the weight of that name. */
static int
add_tensor(exporter *e, const rt_st *st, const rt_st_tensor *t, const char *name,
           bool torch)
{
    found f = weight_named(e, name, torch);
    if (!f.param)
        return no_weight(e, st, name);
    if (!same_shape(f.param->value->type, t, f.transposed))
        return rt_fail(RT_USER, "%s: '%s' does not fit: the model has %s%s", st->path,
                       name, ir_type_text(e->ctx, f.param->value->type),
                       f.transposed ? ", transposed" : "");
    int code = rt_st_check_f32(st, t);
    return code ? code
                : add(e, f.param,
                      (change){.st = st,
                               .tensor = t,
                               .transposed = f.transposed,
                               .shift = f.shift});
}

static bool
same_values(const rt_st *st, const rt_st_tensor *a, const rt_st_tensor *b)
{
    enum { CHUNK = 1 << 16 };
    bool same = a->bytes == b->bytes && !strcmp(a->dtype, b->dtype);
    char *x = rt_new(2, CHUNK);
    for (uint64_t at = 0; same && at < a->bytes; at += CHUNK) {
        uint64_t n = a->bytes - at < CHUNK ? a->bytes - at : CHUNK;
        same = !rt_st_read(st, a, at, x, n) && !rt_st_read(st, b, at, x + CHUNK, n) &&
               !memcmp(x, x + CHUNK, (size_t)n);
    }
    free(x);
    return same;
}

/* PyTorch saves both layers of a tied pair, the model has one of them: w's other layer, if it
 * has the same values. */
static bool
has_twin(const exporter *e, const rt_peft_whole *w, bool known)
{
    for (int i = 0; i < e->peft.nwhole; i++) {
        const rt_peft_whole *o = &e->peft.whole[i];
        const ir_param *p = weight_named(e, o->name, true).param;
        if (o != w && !p == known && (known || is_tied(e, p)) &&
            same_values(&e->peft.st, w->t, o->t))
            return true;
    }
    return false;
}

/* A trainer trains the weight of a tied pair as one and notes that; PEFT notes the same, but
 * then saves both or leaves the other as it was. */
static int
add_whole(exporter *e, const rt_peft_whole *w)
{
    const ir_param *p = weight_named(e, w->name, true).param;
    bool as_one = e->peft.config.tied && e->peft.base;
    if (!p && has_twin(e, w, false))
        return RT_OK;
    int code = RT_OK;
    if (p && is_tied(e, p) && !as_one && !has_twin(e, w, true))
        code = refuse_tied(e, p, w->name);
    return code ? code : add_tensor(e, &e->peft.st, w->t, w->name, true);
}

static int
add_file(exporter *e, const rt_st *st)
{
    int code = RT_OK;
    for (int i = 0; st->fd >= 0 && i < st->n && !code; i++)
        code = add_tensor(e, st, &st->tensor[i], st->tensor[i].name, st->torch);
    return code;
}

/* A head that efficc made must get its weights: they are in no file of the model. */
static int
check_head(const exporter *e)
{
    for (int i = 0; i < e->module->params.n; i++) {
        const ir_param *p = e->module->params.at[i];
        if (p->role == IR_HEAD && !ef_map_has(&e->changes, p))
            return rt_fail(RT_USER, "tensor '%s' of the new head is missing",
                           p->value->name);
    }
    return RT_OK;
}

int
export_match(exporter *e)
{
    for (int i = 0; i < e->module->params.n; i++)
        if (e->module->params.at[i]->cls == IR_TRAIN)
            e->module->params.at[i]->cls = IR_FROZEN;
    int code = RT_OK;
    for (int i = 0; i < e->peft.n && !code; i++)
        code = add_pair(e, &e->peft.pair[i]);
    for (int i = 0; i < e->peft.nwhole && !code; i++)
        code = add_whole(e, &e->peft.whole[i]);
    if (!code)
        code = add_file(e, &e->weights);
    if (!code)
        code = add_file(e, &e->head);
    return code ? code : check_head(e);
}
