/* cmd_inspect_model.c -- the facts of efficc inspect: of the file, of the imported module. */
#include "cmd_inspect.h"
#include "import_int.h"

#include <string.h>

/* ---- the file ---- */

static void
add_external(cJSON *json, const fe_model *m)
{
    cJSON *list = cJSON_AddArrayToObject(json, "external_data");
    ef_map seen = {0};
    for (int i = 0; i < m->tensors.n; i++) {
        const char *path = m->tensors.at[i]->path;
        if (!path || !strcmp(path, m->path) ||
            ef_map_has(&seen, ef_intern(m->ctx, path)))
            continue;
        ef_map_set(m->arena, &seen, ef_intern(m->ctx, path), list);
        cJSON_AddItemToArray(list, cJSON_CreateString(path));
    }
}

void
inspect_file(cJSON *json, const fe_model *m)
{
    const Onnx__ModelProto *p = m->proto;
    cJSON_AddStringToObject(json, "model", m->path);
    cJSON_AddStringToObject(json, "exporter",
                            ef_printf(m->arena, "%s %s", fe_str(p->producer_name),
                                      fe_str(p->producer_version)));
    cJSON_AddNumberToObject(json, "ir_version", (double)p->ir_version);
    cJSON *opsets = cJSON_AddObjectToObject(json, "opsets");
    for (size_t i = 0; i < p->n_opset_import; i++) {
        const char *domain = fe_str(p->opset_import[i]->domain);
        cJSON_AddNumberToObject(opsets, *domain ? domain : "ai.onnx",
                                (double)p->opset_import[i]->version);
    }
    cJSON_AddNumberToObject(json, "bytes", (double)m->file_bytes);
    add_external(json, m);
    cJSON_AddNumberToObject(json, "nodes", (double)p->graph->n_node);
}

/* ---- operators ---- */

/* Names that the outputs depend on; the nodes are sorted. */
static void
mark_needed(ef_ctx *ctx, ef_arena *a, const Onnx__GraphProto *g, ef_map *needed)
{
    for (size_t i = 0; i < g->n_output; i++)
        ef_map_set(a, needed, ef_intern(ctx, fe_str(g->output[i]->name)), a);
    for (size_t i = g->n_node; i-- > 0;) {
        const Onnx__NodeProto *n = g->node[i];
        bool use = false;
        for (size_t k = 0; k < n->n_output; k++)
            use |= ef_map_has(needed, ef_intern(ctx, fe_str(n->output[k])));
        for (size_t k = 0; use && k < n->n_input; k++)
            ef_map_set(a, needed, ef_intern(ctx, fe_str(n->input[k])), a);
    }
}

void
inspect_operators(cJSON *json, ef_ctx *ctx, const fe_model *m)
{
    const Onnx__GraphProto *g = m->proto->graph;
    cJSON *list = cJSON_AddArrayToObject(json, "operators_without_rule");
    ef_map needed = {0}, kinds = {0};
    mark_needed(ctx, m->arena, g, &needed);
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        const char *domain = fe_str(n->domain), *op = fe_str(n->op_type);
        domain = strcmp(domain, "ai.onnx") ? domain : "";
        bool use = false;
        for (size_t k = 0; k < n->n_output; k++)
            use |= ef_map_has(&needed, ef_intern(ctx, fe_str(n->output[k])));
        if (!use || fe_row_of(domain, op, fe_opset(m, domain)))
            continue;
        const char *key = ef_internf(ctx, "%s%s%s", domain, *domain ? "::" : "", op);
        cJSON *item = ef_map_get(&kinds, key);
        if (!item) {
            item = cJSON_CreateObject();
            cJSON_AddStringToObject(item, "operator", key);
            cJSON_AddNumberToObject(item, "nodes", 0);
            cJSON_AddItemToArray(list, item);
            ef_map_set(m->arena, &kinds, key, item);
        }
        cJSON *count = cJSON_GetObjectItem(item, "nodes");
        cJSON_SetNumberValue(count, count->valuedouble + 1);
    }
}

/* ---- inputs and units ---- */

static cJSON *
dims_of(const Onnx__ValueInfoProto *in)
{
    cJSON *dims = cJSON_CreateArray();
    const Onnx__TypeProto__Tensor *t = in->type ? in->type->tensor_type : NULL;
    for (size_t k = 0; t && t->shape && k < t->shape->n_dim; k++) {
        const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[k];
        bool fixed =
            d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        const char *name = fixed ? "" : fe_str(d->dim_param);
        cJSON_AddItemToArray(dims, fixed ? cJSON_CreateNumber((double)d->dim_value)
                                         : cJSON_CreateString(*name ? name : "?"));
    }
    return dims;
}

static void
add_number_of(cJSON *json, const ir_module *m, const char *key)
{
    int64_t n = ir_meta_int(m, key, -1);
    if (n >= 0)
        cJSON_AddNumberToObject(json, key, (double)n);
}

void
inspect_inputs(cJSON *json, const fe_model *f, const ir_module *m)
{
    const Onnx__GraphProto *g = f->proto->graph;
    cJSON *list = cJSON_AddArrayToObject(json, "inputs");
    for (size_t i = 0; i < g->n_input; i++) {
        const char *name = fe_str(g->input[i]->name);
        if (ef_map_has(&f->inits, ef_intern(f->ctx, name)))
            continue;
        const char *role =
            m ? ir_meta_get(m, ef_internf(f->ctx, "input.%s", name)) : NULL;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", name);
        cJSON_AddItemToObject(item, "dims", dims_of(g->input[i]));
        if (role)
            cJSON_AddStringToObject(item, "role", role);
        cJSON_AddItemToArray(list, item);
    }
    cJSON *outputs = cJSON_AddArrayToObject(json, "outputs");
    for (size_t i = 0; i < g->n_output; i++)
        cJSON_AddItemToArray(outputs, cJSON_CreateString(fe_str(g->output[i]->name)));
    if (!m)
        return;
    const char *const keys[] = {"batch", "seq", "vocab", "labels"};
    for (size_t i = 0; i < EF_COUNT(keys); i++)
        add_number_of(json, m, keys[i]);
    cJSON *units = cJSON_AddArrayToObject(json, "units");
    for (int i = 0; i < m->units.n; i++)
        cJSON_AddItemToArray(units, cJSON_CreateString(m->units.at[i]));
}

/* ---- weights ---- */

static void
add_tie(cJSON *ties, const ir_param *p)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "weight", p->hf ? p->hf : p->value->name);
    cJSON *copies = cJSON_AddArrayToObject(item, "copies");
    for (int i = 0; i < p->also.n; i++) {
        cJSON *copy = cJSON_CreateObject();
        cJSON_AddStringToObject(copy, "initializer", p->also.at[i] + 1);
        cJSON_AddBoolToObject(copy, "transposed", p->also.at[i][0] == 'T');
        cJSON_AddItemToArray(copies, copy);
    }
    cJSON_AddItemToArray(ties, item);
}

void
inspect_weights(cJSON *json, const fe_model *f, const ir_module *m)
{
    double numbers = 0, bytes = 0;
    int count = 0, shifted = 0;
    cJSON *o = cJSON_AddObjectToObject(json, "parameters");
    cJSON *unnamed = cJSON_CreateArray(), *types = cJSON_CreateObject();
    cJSON *ties = cJSON_AddArrayToObject(json, "ties");
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        if (p->cls != IR_TRAIN)
            continue;
        const fe_tensor *t =
            p->onnx ? ef_map_get(&f->inits, ef_intern(f->ctx, p->onnx)) : NULL;
        const char *type = t ? fe_type_name(t->type) : "shared";
        cJSON *n = cJSON_GetObjectItem(types, type);
        if (n)
            cJSON_SetNumberValue(n, n->valuedouble + 1);
        else
            cJSON_AddNumberToObject(types, type, 1);
        count++;
        shifted += p->shift != 0;
        numbers += (double)ir_type_count(p->value->type);
        bytes += t ? (double)t->bytes : 0;
        if (!p->hf)
            cJSON_AddItemToArray(unnamed, cJSON_CreateString(p->value->name));
        fe_reading r = fe_reading_of(f, p);
        if (p->also.n || (r.table && r.product))
            add_tie(ties, p);
    }
    cJSON_AddNumberToObject(o, "weights", count);
    cJSON_AddNumberToObject(o, "numbers", numbers);
    cJSON_AddNumberToObject(o, "bytes", bytes);
    cJSON_AddItemToObject(o, "types", types);
    cJSON_AddItemToObject(o, "unnamed", unnamed);
    cJSON_AddNumberToObject(o, "one_plus_weight", shifted);
    cJSON_AddNumberToObject(o, "unshared_readers", f->unshared.n);
}

/* ---- attention, what is trained ---- */

void
inspect_attention(cJSON *json, const ir_module *m)
{
    const ir_op *one = NULL;
    int count = 0, softmaxes = 0;
    for (ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op)) {
        softmaxes += op->code == IR_OP_softmax;
        count += op->code == IR_OP_attention;
        one = op->code == IR_OP_attention && !one ? op : one;
    }
    cJSON *o = cJSON_AddObjectToObject(json, "attention");
    cJSON_AddNumberToObject(o, "recognised", count);
    cJSON_AddNumberToObject(o, "plain_softmax", softmaxes);
    if (!one)
        return;
    cJSON_AddBoolToObject(o, "causal", ir_attr_int(one, IR_ATTR_causal, 0) != 0);
    cJSON_AddBoolToObject(o, "key_mask", one->narg > 3);
    cJSON_AddNumberToObject(o, "heads", (double)ir_attr_int(one, IR_ATTR_heads, 0));
    cJSON_AddNumberToObject(o, "kv_heads",
                            (double)ir_attr_int(one, IR_ATTR_kv_heads, 0));
    cJSON_AddNumberToObject(o, "head_dim",
                            (double)ir_attr_int(one, IR_ATTR_head_dim, 0));
    cJSON_AddBoolToObject(o, "fused_qkv",
                          one->arg[0] == one->arg[1] && one->arg[1] == one->arg[2]);
}

static void
add_adapter(cJSON *list, const ir_param *p)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "module", p->module ? p->module : "");
    if (p->part)
        cJSON_AddStringToObject(item, "part", p->part);
    cJSON_AddItemToArray(list, item);
}

void
inspect_trained(cJSON *json, const ir_module *m)
{
    double trained = 0, frozen = 0;
    cJSON *o = cJSON_AddObjectToObject(json, "trained");
    cJSON *adapters = cJSON_CreateArray(), *whole = cJSON_CreateArray();
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        double n = (double)ir_type_count(p->value->type);
        trained += p->cls == IR_TRAIN ? n : 0;
        frozen += p->cls == IR_FROZEN ? n : 0;
        if (p->role == IR_LORA_A)
            add_adapter(adapters, p);
        else if (p->cls == IR_TRAIN && p->role != IR_LORA_B && p->role != IR_BASE)
            cJSON_AddItemToArray(whole,
                                 cJSON_CreateString(p->hf ? p->hf : p->value->name));
    }
    cJSON_AddNumberToObject(o, "numbers", trained);
    cJSON_AddNumberToObject(o, "frozen", frozen);
    cJSON_AddNumberToObject(o, "rank", (double)ir_meta_int(m, "lora.r", 0));
    cJSON_AddItemToObject(o, "adapters", adapters);
    cJSON_AddItemToObject(o, "besides", whole);
}
