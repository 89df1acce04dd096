/* adapter_config.c -- adapter_config.json, written: every key that PEFT 0.21 writes, sorted, so
 * that any version loads it. peft_config.c reads it.
 */
#include "adapter_int.h"

#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The file, sorted; a value that is NULL depends on the program. */
static const char *const row[][2] = {
    {"alora_invocation_tokens", "null"},
    {"alpha_pattern", "{}"},
    {"arrow_config", "null"},
    {"auto_mapping", "null"},
    {"base_model_name_or_path", NULL},
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

/* Where other programs look for the base model: the folder of the model file if it is one of
 * Hugging Face's, else the file. */
static void
put_base(rt_text *t, const rt_program *p)
{
    char *path = p->model && *p->model ? realpath(p->model, NULL) : NULL;
    char *copy = strdup(path ? path : "");
    const char *dir = dirname(copy);
    char *config = rt_path(dir, "config.json");
    bool folder = path && !access(config, F_OK);
    if (folder || (p->model && *p->model))
        rt_put_json(t, folder ? dir : path ? path : p->model);
    else
        rt_putf(t, "null");
    free(config);
    free(copy);
    free(path);
}

static void
put_value(rt_text *t, const rt_program *p, const char *key, int64_t rank,
          const char *const *extra)
{
    if (!strcmp(key, "base_model_name_or_path"))
        put_base(t, p);
    else if (!strcmp(key, "ensure_weight_tying"))
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
