/* onnx_template.c -- the model once more, with holes where trained weights go.
 *
 * The unpacked model is edited (un-shared initializers, a new head) and packed again. A
 * tensor that is trained, or whose bytes the pre-scan cut out, has as its raw_data the
 * address of a `piece`: protobuf-c never looks at bytes, it hands them to a buffer, and our
 * buffer knows these addresses. It leaves a hole and notes its exact place for a trained
 * tensor, and streams the bytes from their file for another one. So the trainer can write
 * a model without knowing protobuf, and no weight is in memory here.
 */
#include "onnx_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COPY_BYTES = 1 << 20 };

typedef struct piece {
    uint64_t bytes;
    const ir_param *param; /* a hole for this param; NULL: bytes of source */
    bool transposed;       /* the tensor is the transpose of the param */
    const char *dtype;
    const fe_tensor *source;
    uint64_t at; /* where it came to lie in the finished file */
} piece;

typedef struct writer {
    ProtobufCBuffer base; /* must be first: protobuf-c hands it back to append() */
    fe_model *m;
    const char *path;
    FILE *out;
    piece *pieces;
    int npiece, cap;
    uint64_t at; /* bytes of the finished file so far */
    bool ok;
    uint8_t *copy; /* COPY_BYTES */
} writer;

static const char *
dtype_name(int onnx)
{
    return onnx == ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE
               ? "f64"
               : ir_dtypes[fe_dtype(onnx)].name;
}

/* Makes the next piece the contents of t, whatever they were. */
static piece *
set_piece(writer *w, Onnx__TensorProto *t, uint64_t bytes)
{
    EF_ASSERT(w->npiece < w->cap);
    piece *p = &w->pieces[w->npiece++];
    *p = (piece){.bytes = bytes, .dtype = dtype_name(t->data_type)};
    t->n_float_data = t->n_double_data = t->n_int32_data = 0;
    t->n_external_data = 0;
    t->has_data_location = false;
    t->has_raw_data = true;
    t->raw_data = (ProtobufCBinaryData){(size_t)bytes, (uint8_t *)p};
    return p;
}

/* ---- which tensor is which param ---- */

typedef struct match {
    const ir_param *param;
    bool transposed;
} match;

static void
add_match(writer *w, ef_map *by_name, const char *name, const ir_param *p,
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
match_params(writer *w, const ir_module *module, ef_map *by_name)
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
place_tensor(writer *w, const ef_map *by_name, const fe_tensor *t, bool main_graph)
{
    const match *x = main_graph ? ef_map_get(by_name, t->name) : NULL;
    if (!t->bytes || (!x && t->data))
        return; /* it keeps its bytes */
    piece *p = set_piece(w, (Onnx__TensorProto *)t->proto, t->bytes);
    p->source = t;
    if (x) {
        p->param = x->param;
        p->transposed = x->transposed;
    }
}

static void
place_tensors(writer *w, const ir_module *module)
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

/* The trainer writes floats only: it evaluates models of other types, and trains adapters. */
static void
warn_of_types(const writer *w)
{
    for (int i = 0; i < w->npiece; i++) {
        const piece *p = &w->pieces[i];
        if (!p->param || !strcmp(p->dtype, "f32"))
            continue;
        const char *name = p->param->value->name;
        ef_error(w->m->ctx, name, W_ONNX,
                 ef_printf(w->m->arena,
                           "it is %s in the file, and only float can be written: this "
                           "trainer will evaluate, but not train",
                           p->dtype));
        ef_hint(w->m->ctx, "adapters can be trained on it: --lora-r 8");
        return;
    }
}

/* ---- un-sharing ---- */

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
own_initializer(writer *w, const fe_unshared *u, const ir_param *p, ef_map *made)
{
    fe_model *m = w->m;
    Onnx__TensorProto *own = ef_map_get(made, p);
    if (own)
        return own;
    const fe_tensor *t = ef_map_get(&m->inits, ef_intern(m->ctx, u->initializer));
    EF_ASSERT(t);
    own = fe_new_initializer(m, u->param, t->type, t->rank, t->dim);
    ef_map_set(m->arena, made, p, own);
    piece *x = set_piece(w, own, t->bytes);
    x->source = t;
    x->param = p->cls == IR_TRAIN ? p : NULL;
    return own;
}

static void
add_unshared(writer *w, const ir_module *module)
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
add_head(writer *w, const ir_module *module)
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
        set_piece(w, made[i], (uint64_t)(ir_type_count(p->value->type) * size))->param =
            p;
    }
    return true;
}

/* ---- packing ---- */

static void
fail(writer *w, const char *path, const char *why)
{
    if (w->ok)
        ef_error(w->m->ctx, NULL, E_FILE, path, why);
    w->ok = false;
}

static void
put(writer *w, const void *data, size_t n)
{
    if (n && w->ok && fwrite(data, 1, n, w->out) != n)
        fail(w, w->path, strerror(errno));
}

/* The bytes of a tensor from where they are. */
static void
put_source(writer *w, const fe_tensor *t)
{
    if (t->data) {
        put(w, t->data, (size_t)t->bytes);
        return;
    }
    int fd = open(t->path, O_RDONLY | O_CLOEXEC);
    for (uint64_t done = 0; w->ok && done < t->bytes;) {
        uint64_t n = t->bytes - done < COPY_BYTES ? t->bytes - done : COPY_BYTES;
        ssize_t got =
            fd < 0 ? -1 : pread(fd, w->copy, (size_t)n, (off_t)(t->at + done));
        if (got <= 0)
            fail(w, t->path, got ? strerror(errno) : "the file became shorter");
        else
            put(w, w->copy, (size_t)got);
        done += got > 0 ? (uint64_t)got : 0;
    }
    if (fd >= 0)
        close(fd);
}

static void
append(ProtobufCBuffer *buffer, size_t n, const uint8_t *data)
{
    writer *w = (writer *)buffer;
    uintptr_t first = (uintptr_t)w->pieces, here = (uintptr_t)data;
    if (here < first || here >= first + sizeof(piece) * (size_t)w->npiece) {
        put(w, data, n);
    } else {
        piece *p = &w->pieces[(here - first) / sizeof(piece)];
        EF_ASSERT(p->bytes == n);
        p->at = w->at;
        if (!p->param)
            put_source(w, p->source);
    }
    w->at += n;
}

static bool
pack(writer *w)
{
    const Onnx__ModelProto *model = w->m->proto;
    if (onnx__model_proto__get_packed_size(model) > INT_MAX) {
        fail(w, w->path,
             "the trained model would be larger than 2 GB, which ONNX files "
             "can not be");
        ef_hint(w->m->ctx, "adapters have no such limit: --lora-r 8");
        return false;
    }
    w->out = fopen(w->path, "wb");
    if (!w->out) {
        fail(w, w->path, strerror(errno));
        return false;
    }
    onnx__model_proto__pack_to_buffer(model, &w->base);
    if (fclose(w->out))
        fail(w, w->path, strerror(errno));
    return w->ok;
}

static bool
write_holes(writer *w, const char *path)
{
    cJSON *json = cJSON_CreateObject(), *holes = cJSON_CreateArray();
    cJSON_AddNumberToObject(json, "size", (double)w->at);
    cJSON_AddItemToObject(json, "holes", holes);
    for (int i = 0; i < w->npiece; i++) {
        const piece *p = &w->pieces[i];
        if (!p->param || !p->at)
            continue; /* not a hole, or dropped */
        cJSON *hole = cJSON_CreateObject();
        cJSON_AddNumberToObject(hole, "at", (double)p->at);
        cJSON_AddNumberToObject(hole, "bytes", (double)p->bytes);
        cJSON_AddStringToObject(hole, "tensor", p->param->value->name);
        cJSON_AddBoolToObject(hole, "transposed", p->transposed);
        cJSON_AddStringToObject(hole, "dtype", p->dtype);
        cJSON_AddItemToArray(holes, hole);
    }
    char *text = cJSON_Print(json);
    FILE *f = fopen(path, "w");
    bool ok = f && text && fputs(text, f) >= 0;
    if (f)
        ok = !fclose(f) && ok;
    cJSON_free(text);
    cJSON_Delete(json);
    if (!ok)
        fail(w, path, strerror(errno));
    return w->ok;
}

static int
by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

bool
fe_write_template(fe_model *m, const ir_module *module, const char *template_path,
                  const char *holes_path)
{
    writer w = {.base = {append}, .m = m, .path = template_path, .ok = true};
    w.cap = m->tensors.n + m->unshared.n + 2;
    w.pieces = EF_NEWN(m->arena, piece, w.cap);
    w.copy = ef_alloc(m->arena, COPY_BYTES);
    place_tensors(&w, module);
    add_unshared(&w, module);
    if (!add_head(&w, module))
        return false;
    warn_of_types(&w);
    if (!pack(&w))
        return false;
    qsort(w.pieces, (size_t)w.npiece, sizeof(piece), by_place);
    return write_holes(&w, holes_path);
}
