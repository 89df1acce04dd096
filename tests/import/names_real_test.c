/* names_real_test.c -- names of the params of real exports: each initializer must be the
 * parameter that case.json says PyTorch has there, and no param may have another name; so too
 * where nodes have lost the scopes in their names.
 */
#include "fixture.h"

#include <cjson/cJSON.h>
#include <dirent.h>

#define CASES SRC_DIR "/tests/cases/"

static const ir_param *
unshared(const ir_module *m, const char *hf)
{
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i]->hf && !strcmp(m->params.at[i]->hf, hf))
            return m->params.at[i]->onnx ? NULL : m->params.at[i];
    return NULL;
}

/* 1 where the file holds parameter + 1. */
static int
shift_of(const cJSON *entry)
{
    const cJSON *x = cJSON_GetObjectItem(entry, "offset");
    return cJSON_IsNumber(x) ? (int)x->valuedouble : 0;
}

static bool
check_entry(const ir_module *m, const cJSON *entry)
{
    const char *name = cJSON_GetObjectItem(entry, "param")->valuestring;
    found f = find(m, entry->string);
    if (!f.p || !f.p->hf || strcmp(f.p->hf, name) || f.p->cls != IR_TRAIN)
        return false;
    if (f.transposed != cJSON_IsTrue(cJSON_GetObjectItem(entry, "transposed")) ||
        f.p->shift != shift_of(entry))
        return false;
    const cJSON *also;
    cJSON_ArrayForEach(
        also, cJSON_GetObjectItem(
                  entry, "also")) if (!unshared(m, also->valuestring)) return false;
    return true;
}

static int64_t
trained_numbers(const ir_module *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i]->cls == IR_TRAIN)
            n += ir_type_count(m->params.at[i]->value->type);
    return n;
}

/* Shape arithmetic is gone: integers are inputs and tables, moved about at most. */
static bool
computes_integers(const ir_module *m)
{
    for (ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op))
        for (int i = 0; i < op->nres; i++)
            if (op->res[i]->type->dtype == IR_I64 && op->code != IR_OP_reshape &&
                op->code != IR_OP_expand && op->code != IR_OP_const)
                return true;
    return false;
}

typedef struct real { /* a real export */
    said s;
    ef_config cfg;
    cJSON *json; /* case.json */
    fe_model *f;
} real;

static void
open_case(real *r, const char *name)
{
    *r = (real){.cfg = ef_config_default};
    said_open(&r->s);
    r->cfg.batch = 2;
    r->cfg.seq = 16;
    r->s.ctx->cfg = &r->cfg;
    size_t n;
    const char *dir = ef_printf(r->s.ctx->arena, CASES "%s/", name);
    const char *path = ef_printf(r->s.ctx->arena, "%scase.json", dir);
    r->json = cJSON_Parse(ef_read_file(r->s.ctx->arena, path, 1 << 22, &n));
    r->f = fe_load(r->s.ctx, ef_printf(r->s.ctx->arena, "%smodel.onnx", dir));
    NEED(r->json && r->f);
}

static void
close_case(real *r, ir_module *m)
{
    cJSON_Delete(r->json);
    ir_module_free(m);
    fe_unload(r->f);
    said_close(&r->s);
}

/* Is it a name of the case's parameters? */
static bool
is_parameter(const cJSON *params, const char *hf)
{
    const cJSON *entry, *also;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(params, "initializers"))
    {
        if (!strcmp(cJSON_GetObjectItem(entry, "param")->valuestring, hf))
            return true;
        cJSON_ArrayForEach(also, cJSON_GetObjectItem(entry, "also"))
        {
            if (!strcmp(also->valuestring, hf))
                return true;
        }
    }
    return false;
}

/* Every entry has its param, every weight a name of an entry. */
static void
check_names(const char *name, const cJSON *params, const ir_module *m)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(params, "initializers"))
    {
        bool ok = check_entry(m, entry);
        if (!ok)
            printf("  %s: %s\n", name, entry->string);
        CHECK(ok);
    }
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        bool ok = p->cls != IR_TRAIN || (p->hf && is_parameter(params, p->hf));
        if (!ok)
            printf("  %s: %s is called %s\n", name, p->value->name,
                   p->hf ? p->hf : "-");
        CHECK(ok);
    }
}

static void
check_case(const char *name)
{
    real r;
    open_case(&r, name);
    ir_module *m = fe_import(r.s.ctx, r.f);
    NEED(m != NULL);
    const cJSON *params = cJSON_GetObjectItem(r.json, "parameters");
    check_names(name, params, m);
    bool whole = !cJSON_GetArraySize(cJSON_GetObjectItem(params, "unmatched")) &&
                 !strstr(name, "static"); /* some rows of the table of positions */
    int64_t count = (int64_t)cJSON_GetObjectItem(params, "count")->valuedouble;
    CHECK(whole ? trained_numbers(m) == count : trained_numbers(m) < count);
    CHECK(!computes_integers(m));
    CHECK(m->units.n == 4 || strstr(name, "minilm")); /* two layers, three in minilm */
    close_case(&r, m);
}

/* As if the exporter had given the nodes no scopes. */
static void
forget_scopes(Onnx__GraphProto *g)
{
    for (size_t i = 0; i < g->n_node; i++) {
        g->node[i]->name = NULL;
        g->node[i]->n_metadata_props = 0;
    }
}

/* config.json of a case in a temporary file. */
static const char *
write_config(real *r, const char *path)
{
    static const char *const other[][2] = {{"gpt-neox", "gpt_neox"},
                                           {"minilm", "bert"}};
    const char *type = cJSON_GetObjectItem(r->json, "family")->valuestring;
    const char *class = cJSON_GetObjectItem(r->json, "architecture")->valuestring;
    for (size_t i = 0; i < EF_COUNT(other); i++)
        type = strcmp(type, other[i][0]) ? type : other[i][1];
    FILE *f = fopen(path, "w");
    const cJSON *versions = cJSON_GetObjectItem(r->json, "versions");
    NEED(f && fprintf(f,
                      "{\"model_type\": \"%s\", \"architectures\": [\"%s\"], "
                      "\"transformers_version\": \"%s\"}",
                      type, class,
                      cJSON_GetObjectItem(versions, "transformers")->valuestring) > 0);
    NEED(!fclose(f));
    return path;
}

static void
check_without_scopes(const char *name)
{
    real r;
    open_case(&r, name);
    forget_scopes(r.f->proto->graph);
    char path[60];
    snprintf(path, sizeof path, "/tmp/efficc-config-%ld.json", (long)getpid());
    /* no weight tells that it is Gemma, nor what the head is called */
    if (strstr(name, "gemma") || strstr(name, "neox"))
        r.cfg.hf_config = write_config(&r, path);
    ir_module *m = fe_import(r.s.ctx, r.f);
    NEED(m != NULL);
    check_names(name, cJSON_GetObjectItem(r.json, "parameters"), m);
    CHECK(m->units.n == 4 || strstr(name, "minilm"));
    remove(path);
    close_case(&r, m);
}

TEST(cases)
{
    DIR *d = opendir(CASES);
    int n = 0;
    NEED(d != NULL);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, CASES "%s/model.onnx", e->d_name);
        if (access(path, R_OK))
            continue;
        check_case(e->d_name);
        check_without_scopes(e->d_name);
        n++;
    }
    CHECK(n >= 16);
    closedir(d);
}
