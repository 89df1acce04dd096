/* planjson.c -- plan.json: what was decided, for people and for tools.
 *
 * An existing output folder is ours if it holds this file.
 */
#include "cg_int.h"
#include "cost.h"
#include "toolkit.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static void
put_int(cJSON *o, const char *name, int64_t x)
{
    cJSON_AddNumberToObject(o, name, (double)x);
}

static void
put_text(cJSON *o, const char *name, const char *s)
{
    if (s)
        cJSON_AddStringToObject(o, name, s);
    else
        cJSON_AddNullToObject(o, name);
}

/* ---- options ---- */

#define PUT_FLAG(o, name, x) cJSON_AddBoolToObject(o, name, x)
#define PUT_INT(o, name, x)  put_int(o, name, x)
#define PUT_NUM(o, name, x)  cJSON_AddNumberToObject(o, name, x)
#define PUT_SHARE(o, name, x) \
    ((x) < 0 ? cJSON_AddNullToObject(o, name) : cJSON_AddNumberToObject(o, name, x))
#define PUT_STR(o, name, x)  put_text(o, name, x)
#define PUT_LIST(o, name, x) put_text(o, name, x)

static void
put_options(const ef_config *cfg, cJSON *root)
{
    cJSON *o = cJSON_AddObjectToObject(root, "options");
#define OPT(f, name, kind, def, arg, group, help) PUT_##kind(o, name, cfg->f);
#include "../ir/options.def"
#undef OPT
}

/* ---- memory ---- */

static void
put_memory(const ir_module *m, cJSON *root)
{
    cJSON *o = cJSON_AddObjectToObject(root, "memory");
    cg_memory row[CG_MEMORY_ROWS];
    int64_t total = cg_memory_of(m, row) + ir_meta_int(m, "arena_bytes", 0);
    for (int i = 0; i < CG_MEMORY_ROWS; i++)
        put_int(o, row[i].name, row[i].bytes);
    put_int(o, "arena", ir_meta_int(m, "arena_bytes", 0));
    put_int(o, "arena_bound", ir_meta_int(m, "bound_bytes", 0));
    put_int(o, "total", total);
}

/* ---- params ---- */

static void
put_param(const ir_module *m, const ir_param *p, cJSON *list)
{
    static const char *const cls[] = {
        [IR_TRAIN] = "trained", [IR_FROZEN] = "frozen", [IR_CONST] = "constant"};
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToArray(list, o);
    put_text(o, "name", p->value->name);
    put_text(o, "initializer", p->onnx);
    put_text(o, "pytorch", p->hf);
    put_text(o, "dtype", ir_dtypes[p->value->type->dtype].name);
    cJSON *shape = cJSON_AddArrayToObject(o, "shape");
    for (int i = 0; i < p->value->type->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)p->value->type->dim[i]));
    put_text(o, "class", cls[p->cls]);
    put_text(o, "unit", p->unit < m->units.n ? m->units.at[p->unit] : NULL);
    put_int(o, "offset", p->offset);
}

static void
put_params(const ir_module *m, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "parameters");
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i]->cls <= IR_CONST)
            put_param(m, m->params.at[i], list);
}

/* ---- LoRA: which adapter sits where ---- */

static void
put_names(cJSON *o, const char *name, int n, const char *const *item)
{
    cJSON *list = cJSON_AddArrayToObject(o, name);
    for (int i = 0; i < n; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(item[i]));
}

static void
put_match(const ir_module *m, const ir_param *p, cJSON *list)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToArray(list, o);
    put_text(o, "module", p->module);
    put_text(o, "adapter", p->value->name);
    put_text(o, "unit", p->unit < m->units.n ? m->units.at[p->unit] : NULL);
    if (!p->part)
        return;
    put_text(o, "part", p->part);
    put_int(o, "first_row", p->part_start);
    put_int(o, "rows", p->part_len);
    put_int(o, "of_rows", p->part_of);
    if (!p->part_block)
        return;
    put_int(o, "block_rows", p->part_block);
    put_int(o, "block_stride", p->part_stride);
}

static void
put_lora(cg *c, cJSON *root)
{
    const ir_module *m = c->m;
    const char **name;
    if (!ir_meta_int(m, "lora.r", 0))
        return;
    cJSON *o = cJSON_AddObjectToObject(root, "lora");
    put_int(o, "r", ir_meta_int(m, "lora.r", 0));
    cJSON_AddNumberToObject(o, "alpha", cg_number(m, "lora.alpha"));
    cJSON_AddNumberToObject(o, "scale", cg_number(m, "lora.scale"));
    int n = cg_lora_targets(c, &name);
    put_names(o, "target_modules", n, name);
    n = cg_saved_modules(c, &name);
    put_names(o, "modules_to_save", n, name);
    cJSON *list = cJSON_AddArrayToObject(o, "matches");
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i]->role == IR_LORA_B && !m->params.at[i]->of)
            put_match(m, m->params.at[i], list);
}

bool
cg_plan_json(cg *c, const char *dir)
{
    ir_module *m = c->m;
    cJSON *root = cJSON_CreateObject();
    put_text(root, "efficc", EFFICC_VERSION);
    put_text(root, "command", c->ctx->cfg->argv_run);
    bool cuda = cg_is_cuda(c->ctx);
    put_text(root, "target", cuda ? "cuda" : "cpu");
    put_text(root, "arch", cuda ? cg_arch(c->ctx) : NULL);
    put_int(root, "align", cg_align(c->ctx));
    put_int(root, "threads", c->threads);
    put_text(root, "schedule_hash", cg_hash(m, c->arena));
    cJSON *facts = cJSON_AddObjectToObject(root, "facts");
    for (int i = 0; i < m->meta.n; i++)
        put_text(facts, m->meta.at[i].key, m->meta.at[i].value);
    put_options(c->ctx->cfg, root);
    put_memory(m, root);
    put_lora(c, root);
    put_params(m, root);
    char *text = cJSON_Print(root);
    EF_ASSERT(text);
    ef_buf b = {.arena = c->arena};
    ef_puts(&b, text);
    ef_puts(&b, "\n");
    free(text);
    cJSON_Delete(root);
    return cg_write(c->ctx, dir, "plan.json", &b);
}
