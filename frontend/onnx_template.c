/* onnx_template.c -- the model once more, with holes where trained weights go.
 *
 * The unpacked model is edited: each trained tensor becomes a hole, un-shared initializers and
 * a new head are added. onnx_pack.c writes it. For a trainer the holes stay empty and their
 * places are noted, so that it can write the model without knowing protobuf.
 */
#include "pack_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- which tensor is which param ---- */

typedef struct match {
    const ir_param *param;
    bool transposed;
} match;

static void
add_match(fe_writer *w, ef_map *by_name, const char *name, const ir_param *p,
          bool transposed)
{
    match *x = EF_NEW(w->m->arena, match);
    *x = (match){p, transposed};
    ef_map_set(w->m->arena, by_name, ef_intern(w->m->ctx, name), x);
}

static bool
is_unshared(const fe_model *m, const char *param)
{
    for (int i = 0; i < m->unshared.n; i++)
        if (!strcmp(m->unshared.at[i].param, param))
            return true;
    return false;
}

/* Trained params by the tensors of the file that hold them. */
static void
match_params(fe_writer *w, const ir_module *module, ef_map *by_name)
{
    for (int i = 0; i < module->params.n; i++) {
        const ir_param *p = module->params.at[i];
        if (p->cls != IR_TRAIN || is_unshared(w->m, p->value->name))
            continue;
        if (p->onnx)
            add_match(w, by_name, p->onnx, p, false);
        for (int k = 0; k < p->also.n; k++)
            add_match(w, by_name, p->also.at[k] + 1, p, p->also.at[k][0] == 'T');
    }
}

static void
place_tensor(fe_writer *w, const ef_map *by_name, const fe_tensor *t, bool main_graph)
{
    const match *x = main_graph ? ef_map_get(by_name, t->name) : NULL;
    if (!t->bytes || (!x && t->data))
        return; /* it keeps its bytes */
    fe_piece *p = fe_pack_piece(w, (Onnx__TensorProto *)t->proto, t->bytes);
    p->source = t;
    if (x) {
        p->hole.param = x->param;
        p->hole.transposed = x->transposed;
    }
}

static void
place_tensors(fe_writer *w, const ir_module *module)
{
    fe_model *m = w->m;
    const Onnx__GraphProto *g = m->proto->graph;
    ef_map by_name = {0}, in_main = {0};
    match_params(w, module, &by_name);
    for (size_t i = 0; i < g->n_initializer; i++)
        ef_map_set(m->arena, &in_main, g->initializer[i], m);
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_attribute; k++)
            if (g->node[i]->attribute[k]->t)
                ef_map_set(m->arena, &in_main, g->node[i]->attribute[k]->t, m);
    for (int i = 0; i < m->tensors.n; i++) {
        const fe_tensor *t = m->tensors.at[i];
        place_tensor(w, &by_name, t, ef_map_has(&in_main, t->proto));
    }
}

/* ---- un-sharing ---- */

/* Is a shared initializer, or a param that shares it, trained? Else it may stay shared. */
static bool
is_trained(const fe_model *m, const ir_module *module, const char *initializer)
{
    for (int i = 0; i < module->params.n; i++) {
        const ir_param *p = module->params.at[i];
        if (p->cls == IR_TRAIN && p->onnx && !strcmp(p->onnx, initializer))
            return true;
    }
    for (int i = 0; i < m->unshared.n; i++) {
        const ir_param *p = ir_param_by_name(module, m->unshared.at[i].param);
        if (p && p->cls == IR_TRAIN &&
            !strcmp(m->unshared.at[i].initializer, initializer))
            return true;
    }
    return false;
}

static void
count_reads(ef_ctx *ctx, ef_arena *a, const Onnx__GraphProto *g, ef_map *read)
{
    for (size_t i = 0; i < g->n_output; i++)
        ef_map_set(a, read, ef_intern(ctx, fe_str(g->output[i]->name)), a);
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        for (size_t k = 0; k < n->n_input; k++)
            ef_map_set(a, read, ef_intern(ctx, n->input[k]), a);
        for (size_t k = 0; k < n->n_attribute; k++) {
            if (n->attribute[k]->g)
                count_reads(ctx, a, n->attribute[k]->g, read);
            for (size_t j = 0; j < n->attribute[k]->n_graphs; j++)
                count_reads(ctx, a, n->attribute[k]->graphs[j], read);
        }
    }
}

static bool
was_shared(const fe_model *m, const char *name)
{
    for (int i = 0; i < m->unshared.n; i++)
        if (!strcmp(m->unshared.at[i].initializer, name))
            return true;
    return false;
}

/* Does n hand on a shared initializer? Then *out is the name that its readers know. */
static bool
hands_on(const fe_model *m, const Onnx__NodeProto *n, const char **out)
{
    if (strcmp(fe_str(n->op_type), "Identity") || n->n_input != 1 || n->n_output != 1)
        return false;
    *out = n->output[0];
    return was_shared(m, n->input[0]);
}

/* Removes Identity nodes on shared initializers if their name is needed for a param of its
 * own, or (with `read`) if nobody reads them any more. */
static void
drop_identities(fe_model *m, const ef_map *read)
{
    Onnx__GraphProto *g = m->proto->graph;
    size_t n = 0;
    for (size_t i = 0; i < g->n_node; i++) {
        const char *out;
        bool drop =
            hands_on(m, g->node[i], &out) &&
            (read ? !ef_map_has(read, ef_intern(m->ctx, out)) : is_unshared(m, out));
        if (!drop)
            g->node[n++] = g->node[i];
    }
    g->n_node = n;
}

static void
drop_initializers(fe_model *m, const ef_map *read)
{
    Onnx__GraphProto *g = m->proto->graph;
    size_t n = 0;
    for (size_t i = 0; i < g->n_initializer; i++) {
        const char *name = ef_intern(m->ctx, fe_str(g->initializer[i]->name));
        if (!was_shared(m, name) || ef_map_has(read, name))
            g->initializer[n++] = g->initializer[i];
    }
    g->n_initializer = n;
}

/* The initializer of a param of its own; its consumers share it. */
static Onnx__TensorProto *
own_initializer(fe_writer *w, const fe_unshared *u, const ir_param *p, ef_map *made)
{
    fe_model *m = w->m;
    Onnx__TensorProto *own = ef_map_get(made, p);
    if (own)
        return own;
    const fe_tensor *t = ef_map_get(&m->inits, ef_intern(m->ctx, u->initializer));
    EF_ASSERT(t);
    own = fe_new_initializer(m, u->param, t->type, t->rank, t->dim);
    ef_map_set(m->arena, made, p, own);
    fe_piece *x = fe_pack_piece(w, own, t->bytes);
    x->source = t;
    x->hole.param = p->cls == IR_TRAIN ? p : NULL;
    return own;
}

/* Forgets the copies of initializers that may stay shared. */
static void
keep_trained(fe_model *m, const ir_module *module)
{
    ef_map trained = {0};
    int n = 0;
    for (int i = 0; i < m->unshared.n; i++) {
        const char *name = ef_intern(m->ctx, m->unshared.at[i].initializer);
        if (is_trained(m, module, name))
            ef_map_set(m->arena, &trained, name, m);
    }
    for (int i = 0; i < m->unshared.n; i++)
        if (ef_map_has(&trained, ef_intern(m->ctx, m->unshared.at[i].initializer)))
            m->unshared.at[n++] = m->unshared.at[i];
    m->unshared.n = n;
}

static void
add_unshared(fe_writer *w, const ir_module *module)
{
    fe_model *m = w->m;
    ef_map made = {0}, read = {0}, left = {0};
    drop_identities(m, NULL);
    for (int i = 0; i < m->unshared.n; i++) {
        const fe_unshared *u = &m->unshared.at[i];
        const ir_param *p = ir_param_by_name(module, u->param);
        if (p) /* else no pass needs it, and the shared one stays */
            u->node->input[u->input] = own_initializer(w, u, p, &made)->name;
    }
    count_reads(m->ctx, m->arena, m->proto->graph, &read);
    drop_identities(m, &read);
    count_reads(m->ctx, m->arena, m->proto->graph, &left);
    drop_initializers(m, &left);
}

/* ---- a new head ---- */

static bool
add_head(fe_writer *w, const ir_module *module)
{
    const ir_param *weight = NULL, *bias = NULL;
    for (int i = 0; i < module->params.n; i++) {
        const ir_param *p = module->params.at[i];
        if (p->role == IR_HEAD)
            *(p->value->type->rank == 2 ? &weight : &bias) = p;
    }
    if (!weight)
        return true;
    Onnx__TensorProto *made[2] = {0};
    if (!fe_add_head(w->m, module, weight, bias, made))
        return false;
    for (int i = 0; i < 2; i++) {
        const ir_param *p = i ? bias : weight;
        if (!made[i])
            continue;
        int64_t size = ir_dtypes[fe_dtype(made[i]->data_type)].bits / 8;
        uint64_t bytes = (uint64_t)(ir_type_count(p->value->type) * size);
        fe_pack_piece(w, made[i], bytes)->hole.param = p;
    }
    return true;
}

fe_writer *
fe_writer_new(fe_model *m, const ir_module *module)
{
    fe_writer *w = EF_NEW(m->arena, fe_writer);
    fe_pack_init(w, m, m->tensors.n + m->unshared.n + 2);
    keep_trained(m, module);
    place_tensors(w, module);
    add_unshared(w, module);
    return add_head(w, module) ? w : NULL;
}

/* ---- for a trainer ---- */

typedef struct template
{ /* a file without the holes' contents */
    fe_sink sink;
    ef_ctx *ctx;
    const char *path;
    FILE *out;
}
template;

static bool
put(fe_sink *sink, bool beside, const void *data, size_t n)
{
    template *t = (template *)sink;
    EF_ASSERT(!beside);
    return fwrite(data, 1, n, t->out) == n ||
           ef_error(t->ctx, NULL, E_FILE, t->path, strerror(errno));
}

static bool
leave(fe_sink *sink, bool beside, const fe_hole *hole)
{
    (void)sink, (void)beside, (void)hole;
    return true;
}

static bool
write_file(fe_writer *w, const char *path)
{
    template t = {{put, leave}, w->m->ctx, path, fopen(path, "wb")};
    if (!t.out)
        return ef_error(t.ctx, NULL, E_FILE, path, strerror(errno));
    bool ok = fe_writer_run(w, &t.sink);
    if (fclose(t.out) && ok)
        ok = ef_error(t.ctx, NULL, E_FILE, path, strerror(errno));
    return ok;
}

static bool
write_json(ef_ctx *ctx, cJSON *json, const char *path)
{
    char *text = cJSON_Print(json);
    FILE *f = fopen(path, "w");
    bool ok = f && text && fputs(text, f) >= 0;
    if (f)
        ok = !fclose(f) && ok;
    cJSON_free(text);
    cJSON_Delete(json);
    return ok || ef_error(ctx, NULL, E_FILE, path, strerror(errno));
}

static bool
write_holes(const fe_writer *w, const char *path)
{
    cJSON *json = cJSON_CreateObject(), *holes = cJSON_CreateArray();
    cJSON_AddNumberToObject(json, "size", (double)w->at);
    cJSON_AddItemToObject(json, "holes", holes);
    for (int i = 0; i < w->npiece; i++) {
        const fe_piece *p = &w->pieces[i];
        if (!p->hole.param || !p->at)
            continue; /* not a hole, or dropped */
        cJSON *hole = cJSON_CreateObject();
        cJSON_AddNumberToObject(hole, "at", (double)p->at);
        cJSON_AddNumberToObject(hole, "bytes", (double)p->hole.bytes);
        cJSON_AddStringToObject(hole, "tensor", p->hole.param->value->name);
        cJSON_AddBoolToObject(hole, "transposed", p->hole.transposed);
        cJSON_AddStringToObject(hole, "dtype", p->hole.dtype);
        cJSON_AddItemToArray(holes, hole);
    }
    return write_json(w->m->ctx, json, path);
}

/* Instead of holes: which model `efficc export` puts the result into. */
static bool
write_export(fe_writer *w, const char *path)
{
    ef_report(w->m->ctx, "results     model.safetensors alone: ONNX files end at 2 GB; "
                         "efficc export makes one of it with its weights beside it");
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "size", (double)fe_writer_bytes(w));
    cJSON_AddStringToObject(json, "export", w->m->path);
    return write_json(w->m->ctx, json, path);
}

static int
by_place(const void *a, const void *b)
{
    const fe_piece *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

bool
fe_write_template(fe_model *m, const ir_module *module, const char *template_path,
                  const char *holes_path)
{
    fe_writer *w = fe_writer_new(m, module);
    if (w && fe_writer_bytes(w) > INT_MAX)
        return write_export(w, holes_path);
    if (!w || !write_file(w, template_path))
        return false;
    qsort(w->pieces, (size_t)w->npiece, sizeof *w->pieces, by_place);
    return write_holes(w, holes_path);
}
