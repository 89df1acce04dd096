/* onnx_families.c -- which family of transformers a file is of: by config.json, else by the
 * names of its weights; see families.def.
 */
#include "structure_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const fe_family families[] = {
#define FAMILY(name, types, sign, base, layers, ids, positions, head, final, conv1d, \
               dropout)                                                              \
    {name, types, sign, base, layers, ids, positions, head, final, conv1d, dropout},
#define PART(name, role, module)
#include "families.def"
#undef FAMILY
#undef PART
};

static const struct part {
    const char *families;
    fe_role role;
    const char *module;
} parts[] = {
#define FAMILY(name, types, sign, base, layers, ids, positions, head, final, conv1d, \
               dropout)
#define PART(name, role, module) {name, FE_##role, module},
#include "families.def"
#undef FAMILY
#undef PART
};

/* Is word in a list by commas? */
static bool
listed(const char *list, const char *word)
{
    size_t k = strlen(word);
    for (const char *s = list; s; s = strchr(s, ',')) {
        s += *s == ',';
        if (strcspn(s, ",") == k && !strncmp(s, word, k))
            return true;
    }
    return false;
}

const char *
fe_part(const fe_family *f, fe_role role)
{
    for (size_t i = 0; i < EF_COUNT(parts); i++)
        if (parts[i].role == role && listed(parts[i].families, f->name))
            return parts[i].module;
    return NULL;
}

/* ---- config.json ---- */

static int64_t
int_of(const cJSON *json, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(x) && x->valuedouble > 0 && x->valuedouble < 1e12
               ? (int64_t)x->valuedouble
               : 0;
}

static const char *
text_of(fe_imp *im, const cJSON *x)
{
    return cJSON_IsString(x) ? ef_intern(im->ctx, x->valuestring) : NULL;
}

static void
take_config(fe_imp *im, const cJSON *json)
{
    fe_config *c = EF_NEW(im->arena, fe_config);
    const cJSON *tie = cJSON_GetObjectItemCaseSensitive(json, "tie_word_embeddings");
    c->type = text_of(im, cJSON_GetObjectItemCaseSensitive(json, "model_type"));
    c->architecture = text_of(
        im,
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "architectures"), 0));
    const cJSON *version =
        cJSON_GetObjectItemCaseSensitive(json, "transformers_version");
    c->transformers =
        cJSON_IsString(version) ? strtol(version->valuestring, NULL, 10) : 0;
    c->untied = cJSON_IsFalse(tie);
    const char *const layers[] = {"num_hidden_layers", "n_layer", "n_layers"};
    for (size_t i = 0; i < EF_COUNT(layers) && !c->layers; i++)
        c->layers = int_of(json, layers[i]);
    im->config = c;
}

bool
fe_read_config(fe_imp *im)
{
    enum { MOST = 1 << 24 };
    const char *path = im->ctx->cfg->hf_config;
    size_t n;
    if (!path)
        return true;
    const char *text = ef_read_file(im->arena, path, MOST, &n);
    if (!text)
        return ef_error(im->ctx, NULL, E_FILE, path, strerror(errno));
    cJSON *json = cJSON_Parse(text);
    if (cJSON_IsObject(json))
        take_config(im, json);
    cJSON_Delete(json);
    if (im->config && im->config->type)
        return true;
    ef_error(im->ctx, NULL, E_FILE, path, "no JSON object with a model_type");
    ef_hint(im->ctx,
            "--hf-config takes the config.json that lies beside the weights in "
            "the model's repository");
    return false;
}

/* ---- the family ---- */

static bool
some_name_has(const fe_imp *im, const char *part)
{
    for (int i = 0; i < im->params.n; i++) {
        const fe_param *p = im->params.at[i];
        const char *name = p->hf ? p->hf : p->key;
        if (strstr(name, part))
            return true;
    }
    return false;
}

static const fe_family *
family_named(const char *type)
{
    for (size_t i = 0; i < EF_COUNT(families); i++)
        if (listed(families[i].types, type))
            return &families[i];
    return NULL;
}

/* One of the same names but for the fused matrix that the layers have; f: there is none. */
static const fe_family *
fused_like(const fe_imp *im, const fe_family *f)
{
    const fe_layer *l = im->structure.n ? im->structure.at[0] : NULL;
    bool fused = l && l->q.at[0] == l->k.at[0] && l->k.at[0] == l->v.at[0];
    for (size_t i = 0; fused && !fe_part(f, FE_QKV) && i < EF_COUNT(families); i++)
        if (!strcmp(families[i].base, f->base) &&
            !strcmp(families[i].layers, f->layers) && fe_part(&families[i], FE_QKV))
            return &families[i];
    return f;
}

void
fe_find_family(fe_imp *im)
{
    if (im->config) {
        im->family = family_named(im->config->type);
        return;
    }
    for (size_t i = 0; i < EF_COUNT(families) && !im->family; i++)
        if (families[i].sign && some_name_has(im, families[i].sign))
            im->family = fused_like(im, &families[i]);
}
