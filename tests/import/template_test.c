/* template_test.c -- the trained model: template and holes put together again.
 *
 * A template is written for a real export whose zero biases and norm weights share
 * initializers, with a new head; its holes are filled with numbers that say which param
 * they are; the result is loaded again, and every tensor must be where it belongs.
 */
#include "frontend/onnx_int.h"
#include "test.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CASE SRC_DIR "/tests/cases/bert-legacy17-dedup/model.onnx"

enum { CLASSES = 3 };

typedef struct fixture {
    ef_ctx *ctx;
    fe_model *m;
    ir_module *module;
    char dir[40];

    int nshared;
} fixture;

static ir_param *
add_param(fixture *f, const char *name, int rank, const int64_t *dim)
{
    return ir_param_new(f->module, name, ir_type_get(f->ctx, IR_F32, rank, dim),
                        IR_TRAIN, 0);
}

static const Onnx__NodeProto *
writer_of(const Onnx__GraphProto *g, const char *name)
{
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_output; k++)
            if (!strcmp(g->node[i]->output[k], name))
                return g->node[i];
    return NULL;
}

/* Each reader of an Identity of an initializer gets a param of its own. */
static void
unshare(fixture *f)
{
    Onnx__GraphProto *g = f->m->proto->graph;
    for (size_t i = 0; i < g->n_node; i++) {
        Onnx__NodeProto *n = g->node[i];
        for (int k = 0; k < (int)n->n_input; k++) {
            const Onnx__NodeProto *w = writer_of(g, n->input[k]);
            if (!w || strcmp(w->op_type, "Identity"))
                continue;
            const char *init = ef_intern(f->ctx, w->input[0]);
            const fe_tensor *t = ef_map_get(&f->m->inits, init);
            if (!t)
                continue;
            const char *name = ef_internf(f->ctx, "own.%zu.%d", i, k);
            ir_param *p = add_param(f, name, t->rank, t->dim);
            p->onnx = init;
            fe_unshared u = {p->value->name, init, n, k};
            ef_push(f->m->arena, f->m->unshared, u);
            f->nshared++;
        }
    }
}

static void
open_fixture(fixture *f)
{
    *f = (fixture){.dir = "/tmp/efficc-template-XXXXXX"};
    NEED(mkdtemp(f->dir) && !chdir(f->dir));
    f->ctx = ef_ctx_new();
    f->m = fe_load(f->ctx, CASE);
    NEED(f->m != NULL);
    f->module = ir_module_new(f->ctx);
    ir_unit_new(f->module, "all");
    for (int i = 0; i < f->m->inits.n; i++) {
        const fe_tensor *t = f->m->inits.val[i];
        if (t->rank == 2)
            add_param(f, t->name, t->rank, t->dim)->onnx = t->name;
    }
    unshare(f);
    NEED(f->nshared > 5);
}

static void
close_fixture(fixture *f)
{
    char command[64];
    fe_unload(f->m);
    ir_module_free(f->module);
    ef_ctx_free(f->ctx);
    snprintf(command, sizeof(command), "rm -r %s", f->dir);
    NEED(!chdir("/") && !system(command));
}

/* The number that stands for a param in its hole. */
static float
mark(const fixture *f, const char *param)
{
    for (int i = 0; i < f->module->params.n; i++)
        if (!strcmp(f->module->params.at[i]->value->name, param))
            return (float)(i + 1);
    return 0;
}

/* template.onnx and template.json to full.onnx; the number of holes. */
static int
fill(fixture *f)
{
    size_t n, done = 0;
    char *rest = ef_read_file(f->ctx->arena, "template.onnx", 1 << 24, &n);
    char *text = ef_read_file(f->ctx->arena, "template.json", 1 << 20, &(size_t){0});
    cJSON *json = cJSON_Parse(text), *hole;
    FILE *out = fopen("full.onnx", "wb");
    NEED(rest && json && out);
    cJSON_ArrayForEach(hole, cJSON_GetObjectItem(json, "holes"))
    {
        size_t at = (size_t)cJSON_GetObjectItem(hole, "at")->valuedouble;
        size_t bytes = (size_t)cJSON_GetObjectItem(hole, "bytes")->valuedouble;
        const char *name = cJSON_GetObjectItem(hole, "tensor")->valuestring;
        float x = mark(f, name);
        NEED(at >= (size_t)ftell(out) && x > 0);
        CHECK_STR(cJSON_GetObjectItem(hole, "dtype")->valuestring, "f32");
        size_t before = at - (size_t)ftell(out);
        NEED(before <= n - done && fwrite(rest + done, 1, before, out) == before);
        done += before;
        for (size_t i = 0; i < bytes / sizeof(x); i++)
            fwrite(&x, sizeof(x), 1, out);
    }
    fwrite(rest + done, 1, n - done, out);
    CHECK((double)ftell(out) == cJSON_GetObjectItem(json, "size")->valuedouble);
    NEED(!fclose(out));
    int holes = cJSON_GetArraySize(cJSON_GetObjectItem(json, "holes"));
    cJSON_Delete(json);
    return holes;
}

static fe_model *
written(fixture *f)
{
    NEED(fe_write_template(f->m, f->module, "template.onnx", "template.json"));
    CHECK(fill(f) == f->module->params.n);
    fe_model *full = fe_load(f->ctx, "full.onnx");
    NEED(full != NULL);
    return full;
}

TEST(every_param_is_in_its_tensor)
{
    fixture f;
    open_fixture(&f);
    fe_model *full = written(&f);
    for (int i = 0; i < f.module->params.n; i++) {
        const ir_param *p = f.module->params.at[i];
        const char *name =
            strncmp(p->value->name, "own.", 4) ? p->onnx : p->value->name;
        const fe_tensor *t = ef_map_get(&full->inits, ef_intern(f.ctx, name));
        double first, last;
        NEED(t && t->rank == p->value->type->rank);
        NEED(fe_tensor_f64(full, t, 0, 1, &first) &&
             fe_tensor_f64(full, t, t->count - 1, 1, &last));
        CHECK(first == i + 1 && last == i + 1);
    }
    fe_unload(full);
    close_fixture(&f);
}

static const fe_tensor *
tensor_named(const fe_model *m, const char *name)
{
    for (int i = 0; i < m->tensors.n; i++)
        if (m->tensors.at[i]->name == name)
            return m->tensors.at[i];
    return NULL;
}

TEST(what_is_not_trained_keeps_its_bytes)
{
    fixture f;
    open_fixture(&f);
    fe_model *full = written(&f), *old = fe_load(f.ctx, CASE);
    int same = 0;
    NEED(old != NULL);
    for (int i = 0; i < full->tensors.n; i++) {
        const fe_tensor *t = full->tensors.at[i], *before = tensor_named(old, t->name);
        if (!before || t->rank == 2)
            continue;
        double a[256], b[256];
        NEED(t->type == before->type && t->count == before->count && t->count <= 256);
        NEED(fe_tensor_f64(full, t, 0, t->count, a));
        NEED(fe_tensor_f64(old, before, 0, t->count, b));
        CHECK(!memcmp(a, b, sizeof(*a) * (size_t)t->count));
        same++;
    }
    CHECK(same > 50); /* Constants */
    fe_unload(old);
    fe_unload(full);
    close_fixture(&f);
}

TEST(shared_ones_are_read_no_more)
{
    fixture f;
    open_fixture(&f);
    fe_model *full = written(&f);
    const Onnx__GraphProto *g = full->proto->graph;
    int own = 0;
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_input; k++) {
            const Onnx__NodeProto *w = writer_of(g, g->node[i]->input[k]);
            CHECK(!w || strcmp(w->op_type, "Identity"));
            own += !strncmp(g->node[i]->input[k], "own.", 4);
        }
    CHECK(own == f.nshared);
    fe_unload(full);
    close_fixture(&f);
}

TEST(too_large_a_model_has_none)
{
    fixture f;
    open_fixture(&f);
    fe_tensor *t =
        ef_map_get(&f.m->inits, ef_intern(f.ctx, f.module->params.at[0]->onnx));
    t->bytes = 3ull << 30;
    NEED(fe_write_template(f.m, f.module, "template.onnx", "template.json"));
    CHECK(access("template.onnx", F_OK));
    cJSON *json =
        cJSON_Parse(ef_read_file(f.ctx->arena, "template.json", 1 << 20, &(size_t){0}));
    NEED(json != NULL);
    CHECK(cJSON_GetObjectItem(json, "size")->valuedouble > 3e9);
    CHECK_STR(cJSON_GetObjectItem(json, "export")->valuestring, CASE);
    CHECK(!cJSON_GetObjectItem(json, "holes"));
    cJSON_Delete(json);
    close_fixture(&f);
}

TEST(holes_have_the_type_of_the_file)
{
    fixture f;
    open_fixture(&f);
    fe_tensor *t =
        ef_map_get(&f.m->inits, ef_intern(f.ctx, f.module->params.at[0]->onnx));
    ((Onnx__TensorProto *)t->proto)->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16;
    t->bytes /= 2;
    NEED(fe_write_template(f.m, f.module, "template.onnx", "template.json"));
    size_t n;
    char *holes = ef_read_file(f.ctx->arena, "template.json", 1 << 24, &n);
    NEED(holes != NULL);
    CHECK(strstr(holes, "f16") != NULL && strstr(holes, "f32") != NULL);
    close_fixture(&f);
}

TEST(what_is_not_trained_stays_shared)
{
    fixture f;
    open_fixture(&f);
    for (int i = 0; i < f.module->params.n; i++)
        f.module->params.at[i]->cls = IR_FROZEN;
    size_t before = f.m->proto->graph->n_initializer;
    NEED(fe_writer_new(f.m, f.module) != NULL);
    CHECK(f.m->proto->graph->n_initializer == before);
    close_fixture(&f);
}

static void
check_head(const char *pool, const char *mask, const char *const *ops)
{
    fixture f;
    const int64_t dims[] = {CLASSES, 3}; /* the case's logits stand for hidden states */
    open_fixture(&f);
    add_param(&f, "head.weight", 2, dims)->role = IR_HEAD;
    add_param(&f, "head.bias", 1, dims)->role = IR_HEAD;
    ir_meta_set(f.module, "head.input", f.m->proto->graph->output[0]->name);
    ir_meta_set(f.module, "pool", pool);
    if (mask)
        ir_meta_set(f.module, "pool.mask", mask);
    fe_model *full = written(&f);
    const Onnx__GraphProto *g = full->proto->graph;
    CHECK(g->n_output == 2);
    const Onnx__NodeProto *n = writer_of(g, g->output[0]->name);
    NEED(n != NULL);
    CHECK_STR(n->op_type, "Gemm");
    CHECK_STR(n->input[1], "head.weight");
    CHECK_STR(n->input[2], "head.bias");
    const Onnx__TensorShapeProto *s = g->output[0]->type->tensor_type->shape;
    CHECK(s->n_dim == 2 && s->dim[1]->dim_value == CLASSES);
    for (; *ops; ops++) {
        n = writer_of(g, n->input[0]);
        NEED(n != NULL);
        CHECK_STR(n->op_type, *ops);
    }
    fe_unload(full);
    close_fixture(&f);
}

TEST(heads)
{
    check_head("first", NULL, (const char *[]){"Gather", NULL});
    check_head("mean", NULL, (const char *[]){"ReduceMean", NULL});
    check_head("mean", "attention_mask",
               (const char *[]){"Div", "ReduceSum", "Mul", NULL});
    check_head("pooler", NULL, (const char *[]){"Gemm", NULL});
}
