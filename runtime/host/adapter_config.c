/* adapter_config.c -- adapter_config.json, read and written.
 *
 * Reading honours what changes the meaning of an adapter (use_rslora, alpha_pattern,
 * rank_pattern) by working out the scale of each module and comparing it with the compiled
 * one, and refuses what the program does not compute (DoRA, trained biases, ..). Writing
 * gives every key that PEFT 0.21 writes, sorted, so that any version loads it.
 */
#include "host_int.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

/* Absent, null, false, 0 or empty. */
static bool
is_off(const cJSON *item)
{
    if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item))
        return true;
    if (cJSON_IsArray(item) || cJSON_IsObject(item))
        return !item->child;
    return cJSON_IsNumber(item) && item->valuedouble == 0;
}

/* PEFT takes PiSSA, OLoRA, LoftQ and so on out of the base weights whenever it makes such
 * an adapter, so its tensors belong to weights that are not those of the model. */
static bool
changes_base(const cJSON *config)
{
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    const char *how = cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(config, "init_lora_weights"));
    for (size_t i = 0; how && i < sizeof harmless / sizeof *harmless; i++)
        if (!strcmp(how, harmless[i]))
            return false;
    return how != NULL;
}

/* NULL, or the first key that asks for something the program does not compute. */
static const char *
unsupported(const cJSON *config)
{
    static const char *const key[] = {"use_dora",
                                      "use_qalora",
                                      "use_bdlora",
                                      "lora_bias",
                                      "layer_replication",
                                      "target_parameters",
                                      "kasa_config",
                                      "monteclora_config",
                                      "velora_config",
                                      "arrow_config",
                                      "megatron_config",
                                      "trainable_token_indices",
                                      "alora_invocation_tokens"};
    for (size_t i = 0; i < sizeof key / sizeof *key; i++)
        if (!is_off(cJSON_GetObjectItemCaseSensitive(config, key[i])))
            return key[i];
    const char *bias =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "bias"));
    if (bias && strcmp(bias, "none"))
        return "bias";
    return changes_base(config) ? "init_lora_weights" : NULL;
}

/* PEFT matches the keys of a pattern as (.*\.)?(KEY)$. Only plain names are understood. */
static bool
is_plain(const char *pattern)
{
    for (; *pattern; pattern++)
        if (!isalnum((unsigned char)*pattern) && !strchr("._-", *pattern))
            return false;
    return true;
}

static bool
ends_with(const char *module, const char *name)
{
    size_t m = strlen(module), n = strlen(name);
    return m >= n && !strcmp(module + m - n, name) &&
           (m == n || module[m - n - 1] == '.');
}

/* Value of a module: of the first pattern that fits, else `otherwise`. */
static double
pattern_value(const cJSON *patterns, const char *module, double otherwise)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, patterns)
    {
        if (ends_with(module, item->string) && cJSON_IsNumber(item))
            return item->valuedouble;
    }
    return otherwise;
}

static int
check_patterns(const cJSON *config, const char *path)
{
    static const char *const key[] = {"alpha_pattern", "rank_pattern"};
    for (int i = 0; i < 2; i++) {
        const cJSON *item;
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(config, key[i]))
        {
            if (!is_plain(item->string))
                return rt_fail(RT_USER,
                               "%s: %s uses the expression '%s', which is not "
                               "supported; only module names are",
                               path, key[i], item->string);
        }
    }
    return RT_OK;
}

static int
check_module(const rt_program *p, const cJSON *config, const char *path,
             const char *module, int64_t rank)
{
    const cJSON *rslora = cJSON_GetObjectItemCaseSensitive(config, "use_rslora");
    double r = cJSON_GetObjectItemCaseSensitive(config, "r")->valuedouble;
    double alpha = cJSON_GetObjectItemCaseSensitive(config, "lora_alpha")->valuedouble;
    r = pattern_value(cJSON_GetObjectItemCaseSensitive(config, "rank_pattern"), module,
                      r);
    alpha = pattern_value(cJSON_GetObjectItemCaseSensitive(config, "alpha_pattern"),
                          module, alpha);
    if (r != (double)rank)
        return rt_fail(
            RT_USER,
            "%s: rank %g on %s, but this trainer takes adapters of rank %lld%s", path,
            r, module, (long long)rank,
            rank != p->lora_r
                ? " (one for each row range)\ncompile with --lora-targets that name "
                  "the whole module, or with the --lora-r that the adapter has"
                : "\ncompile with the --lora-r that the adapter has");
    double scale = alpha / (cJSON_IsTrue(rslora) ? sqrt(r) : r);
    if (fabs(scale - p->lora_scale) > 1e-6 * fabs(p->lora_scale))
        return rt_fail(
            RT_USER,
            "%s: scale %g on %s (lora_alpha %g, r %g%s), but this trainer was "
            "compiled for %g\ncompile with --lora-alpha %g",
            path, scale, module, alpha, r, cJSON_IsTrue(rslora) ? ", use_rslora" : "",
            p->lora_scale, scale * (double)p->lora_r);
    return RT_OK;
}

static int
check_config(const rt_program *p, const cJSON *config, const char *path, int64_t rank)
{
    const char *type =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "peft_type"));
    if (!type || strcmp(type, "LORA"))
        return rt_fail(RT_USER, "%s: peft_type is %s, not LORA", path,
                       type ? type : "absent");
    const char *key = unsupported(config);
    if (key)
        return rt_fail(RT_USER, "%s: %s is not supported", path, key);
    if (!cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(config, "r")) ||
        !cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(config, "lora_alpha")))
        return rt_fail(RT_USER, "%s: r and lora_alpha must be numbers", path);
    int code = check_patterns(config, path);
    for (int i = 0; i < p->nparam && !code; i++)
        if (p->param[i].role == RT_LORA_A)
            code = check_module(p, config, path, p->param[i].module, rank);
    if (!code && !is_off(cJSON_GetObjectItemCaseSensitive(config, "lora_dropout")))
        rt_warn("%s: lora_dropout is not applied", path);
    return code;
}

int
rt_adapter_config_load(const rt_program *p, const char *dir, int64_t rank)
{
    char *path = rt_path(dir, "adapter_config.json");
    int err, code;
    char *text = rt_read_text(path, 16 << 20, &err);
    cJSON *config = text ? cJSON_Parse(text) : NULL;
    if (!text)
        code = rt_fail(RT_USER, "--init-adapter: %s: %s", path, strerror(err));
    else if (!cJSON_IsObject(config))
        code = rt_fail(RT_USER, "%s is not a JSON object", path);
    else
        code = check_config(p, config, path, rank);
    cJSON_Delete(config);
    free(text);
    free(path);
    return code;
}

/* ---- writing ---- */

/* The file, sorted; a value that is NULL depends on the program. */
static const char *const row[][2] = {
    {"alora_invocation_tokens", "null"},
    {"alpha_pattern", "{}"},
    {"arrow_config", "null"},
    {"auto_mapping", "null"},
    {"base_model_name_or_path", "null"},
    {"bias", "\"none\""},
    {"corda_config", "null"},
    {"ensure_weight_tying", NULL},
    {"eva_config", "null"},
    {"exclude_modules", "null"},
    {"fan_in_fan_out", NULL},
    {"inference_mode", "true"},
    {"init_lora_weights", "true"},
    {"kasa_config", "null"},
    {"layer_replication", "null"},
    {"layers_pattern", "null"},
    {"layers_to_transform", "null"},
    {"loftq_config", "{}"},
    {"lora_alpha", NULL},
    {"lora_bias", "false"},
    {"lora_dropout", "0.0"},
    {"lora_ga_config", "null"},
    {"megatron_config", "null"},
    {"megatron_core", "\"megatron.core\""},
    {"modules_to_save", NULL},
    {"monteclora_config", "null"},
    {"peft_type", "\"LORA\""},
    {"peft_version", "\"0.21.2\""},
    {"qalora_group_size", "16"},
    {"r", NULL},
    {"rank_pattern", "{}"},
    {"revision", "null"},
    {"target_modules", NULL},
    {"target_parameters", "null"},
    {"task_type", NULL},
    {"trainable_token_indices", "null"},
    {"use_bdlora", "null"},
    {"use_dora", "false"},
    {"use_qalora", "false"},
    {"use_rslora", "false"},
    {"velora_config", "null"},
};

static const char *
task_type(const rt_program *p)
{
    for (int i = 0; i < p->nparam; i++)
        if (p->param[i].role == RT_HEAD) /* PEFT sees the model without our head */
            return "\"FEATURE_EXTRACTION\"";
    if (!strcmp(p->task, "causal-lm"))
        return "\"CAUSAL_LM\"";
    if (!strcmp(p->task, "seq-cls") || !strcmp(p->task, "regression"))
        return "\"SEQ_CLS\"";
    return strcmp(p->task, "token-cls") ? "null" : "\"TOKEN_CLS\"";
}

static void
put_names(rt_text *t, const char *const *a, const char *const *b)
{
    const char *const *list[] = {a, b};
    int n = 0;
    for (int l = 0; l < 2; l++)
        for (int i = 0; list[l] && list[l][i]; i++) {
            rt_putf(t, n++ ? ",\n    " : "[\n    ");
            rt_put_json(t, list[l][i]);
        }
    rt_putf(t, n ? "\n  ]" : "null");
}

/* A tied weight that is trained whole must stay tied in PEFT as well. */
static bool
trains_tied(const rt_program *p)
{
    for (int i = 0; i < p->nparam; i++)
        if (p->param[i].cls == RT_TRAIN && p->param[i].also && p->param[i].also[0])
            return true;
    return false;
}

static void
put_value(rt_text *t, const rt_program *p, const char *key, int64_t rank,
          const char *const *extra)
{
    if (!strcmp(key, "ensure_weight_tying"))
        rt_putf(t, trains_tied(p) ? "true" : "false");
    else if (!strcmp(key, "fan_in_fan_out"))
        rt_putf(t, p->lora_fan_in_fan_out ? "true" : "false");
    else if (!strcmp(key, "lora_alpha"))
        rt_putf(t, "%.15g", p->lora_scale * (double)rank);
    else if (!strcmp(key, "modules_to_save"))
        put_names(t, p->modules_to_save, extra);
    else if (!strcmp(key, "r"))
        rt_putf(t, "%lld", (long long)rank);
    else if (!strcmp(key, "target_modules"))
        put_names(t, p->lora_targets, NULL);
    else
        rt_putf(t, "%s", task_type(p));
}

int
rt_adapter_config_save(const rt_program *p, const char *dir, int64_t rank,
                       const char *const *extra_modules)
{
    rt_text t = {0};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        rt_putf(&t, "%s\n  \"%s\": ", i ? "," : "{", row[i][0]);
        if (row[i][1])
            rt_putf(&t, "%s", row[i][1]);
        else
            put_value(&t, p, row[i][0], rank, extra_modules);
    }
    rt_putf(&t, "\n}"); /* PEFT writes no newline at the end, either */
    char *path = rt_path(dir, "adapter_config.json");
    int code = rt_file_text(path, t.s);
    free(path);
    free(t.s);
    return code;
}
