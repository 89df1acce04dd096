/* peft_config.c -- adapter_config.json, read.
 *
 * What changes the meaning of an adapter is honoured (use_rslora, alpha_pattern,
 * rank_pattern) or refused (DoRA, trained biases, ..). PEFT matches the keys of a pattern as
 * Python's re.match("(.*\.)?(KEY)$"), first hit first; keys are handed to regcomp() after the
 * few forms that POSIX writes in another way are changed, and refused where it has none.
 */
#include "host_int.h"
#include "peft.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *
get(const rt_peft_config *c, const char *key)
{
    const cJSON *item, *last = NULL;
    cJSON_ArrayForEach(item, c->json)
    {
        last =
            strcmp(item->string, key) ? last : item; /* of two Python takes the last */
    }
    return last;
}

/* ---- what is not computed ---- */

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
changes_base(const rt_peft_config *c)
{
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    const char *how = cJSON_GetStringValue(get(c, "init_lora_weights"));
    for (size_t i = 0; how && i < sizeof harmless / sizeof *harmless; i++)
        if (!strcmp(how, harmless[i]))
            return false;
    return how != NULL;
}

/* NULL, or the first key that asks for something that is not computed. */
static const char *
unsupported(const rt_peft_config *c)
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
        if (!is_off(get(c, key[i])))
            return key[i];
    const char *bias = cJSON_GetStringValue(get(c, "bias"));
    if (bias && strcmp(bias, "none"))
        return "bias";
    return changes_base(c) ? "init_lora_weights" : NULL;
}

/* ---- types ---- */

static bool
is_switch(const cJSON *item)
{
    return !item || cJSON_IsNull(item) || cJSON_IsBool(item);
}

static bool
is_word(const cJSON *item)
{
    return !item || cJSON_IsNull(item) || cJSON_IsString(item);
}

static bool
is_word_or_switch(const cJSON *item)
{
    return is_word(item) || is_switch(item);
}

static bool
is_map(const cJSON *item)
{
    return is_off(item) || cJSON_IsObject(item);
}

static bool
is_number(const cJSON *item)
{
    return item && cJSON_IsNumber(item);
}

/* What counts is of the type that PEFT writes; Python would take others for something, too. */
static int
check_types(const rt_peft_config *c)
{
    static const struct {
        const char *key;
        bool (*is)(const cJSON *);
        const char *type;
    } want[] = {
        {"r", is_number, "be a number"},
        {"lora_alpha", is_number, "be a number"},
        {"use_rslora", is_switch, "be true or false"},
        {"fan_in_fan_out", is_switch, "be true or false"},
        {"ensure_weight_tying", is_switch, "be true or false"},
        {"bias", is_word, "be a word"},
        {"init_lora_weights", is_word_or_switch, "be true, false or a word"},
        {"rank_pattern", is_map, "map names of modules to numbers"},
        {"alpha_pattern", is_map, "map names of modules to numbers"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (!want[i].is(get(c, want[i].key)))
            return rt_fail(RT_USER, "%s: %s must %s", c->path, want[i].key,
                           want[i].type);
    return RT_OK;
}

static int
check(const rt_peft_config *c)
{
    static const char advice[] = "\nmerge it into the model with PEFT "
                                 "(merge_and_unload) and export that to ONNX, "
                                 "or train a plain LoRA adapter anew";
    const char *type = cJSON_GetStringValue(get(c, "peft_type"));
    if (!type || strcmp(type, "LORA"))
        return rt_fail(RT_USER, "%s: peft_type is %s, not LORA%s", c->path,
                       type ? type : "absent", advice);
    const char *key = unsupported(c);
    if (key)
        return rt_fail(RT_USER, "%s: %s is not supported%s", c->path, key, advice);
    if (!is_off(get(c, "lora_dropout")))
        rt_warn("%s: lora_dropout is not applied; the trainer's own is that of efficc "
                "--lora-dropout",
                c->path);
    return check_types(c);
}

int
rt_peft_config_open(rt_peft_config *c, const char *dir)
{
    *c = (rt_peft_config){.path = rt_path(dir, "adapter_config.json")};
    int err;
    char *text = rt_read_text(c->path, 16 << 20, &err);
    if (!text)
        return rt_fail(RT_USER, "%s: %s", c->path, strerror(err));
    c->json = cJSON_Parse(text);
    free(text);
    if (!cJSON_IsObject(c->json))
        return rt_fail(RT_USER, "%s is not a JSON object", c->path);
    c->fan_in_fan_out = cJSON_IsTrue(get(c, "fan_in_fan_out"));
    c->tied = cJSON_IsTrue(get(c, "ensure_weight_tying"));
    return check(c);
}

void
rt_peft_config_close(rt_peft_config *c)
{
    cJSON_Delete(c->json);
    free(c->path);
    *c = (rt_peft_config){0};
}

/* ---- patterns ---- */

/* regcomp() takes memory and time for every repetition, and stack for every parenthesis. */
enum { KEY_MOST = 500, REPEATS_MOST = 1000 };

static bool
is_modest(const char *s)
{
    double repeats = 1;
    if (strlen(s) > KEY_MOST)
        return false;
    for (const char *open = s; (open = strchr(open, '{')); open++) {
        const char *comma = open + 1 + strspn(open + 1, "0123456789");
        double least = strtod(open + 1, NULL);
        double most = *comma == ',' ? strtod(comma + 1, NULL) : 0;
        repeats *= fmax(1, fmax(least, most));
    }
    return repeats <= REPEATS_MOST;
}

/* A Python expression as a POSIX one behind `out`; false: it uses a form that has none. */
static bool
to_posix(const char *s, rt_text *out)
{
    static const char same[] =
        ".[]()*+?{}|^$\\/-"; /* means itself behind a backslash */
    for (bool set = false; *s; s++) {
        if (*s == '\\' && s[1]) {
            s++;
            if (*s == 'd')
                rt_putf(out, set ? "0-9" : "[0-9]");
            else if (strchr("wWsSbB", *s) && !set)
                rt_putf(out, "\\%c", *s);
            else if (strchr(same, *s) && !(set && strchr("]^-", *s)))
                rt_putf(out, set ? "%c" : "\\%c", *s);
            else
                return false;
            continue;
        }
        if (!set && *s == '(' && s[1] == '?') {
            if (s[2] != ':')
                return false; /* look-around, names, flags */
            s += 2;
            rt_putf(out, "(");
            continue;
        }
        if (!set && strchr("*+?}", *s) && (s[1] == '?' || s[1] == '+'))
            return false; /* lazy, possessive */
        if (!set && *s == '[' && (s[1] == ']' || !strncmp(s + 1, "^]", 2)))
            return false;
        set = set ? *s != ']' : *s == '[';
        rt_putf(out, "%c", *s);
    }
    return true;
}

/* Does the module fit a pattern's key? *code: an expression that is not understood. */
static bool
fits(const rt_peft_config *c, const char *key, const char *module, int *code)
{
    rt_text t = {0};
    regex_t re;
    rt_putf(&t, "^(.*\\.)?(");
    bool known = is_modest(key) && to_posix(key, &t);
    rt_putf(&t, ")$");
    bool fit = false;
    if (!known || regcomp(&re, t.s, REG_EXTENDED | REG_NOSUB)) {
        *code =
            rt_fail(RT_USER,
                    "%s: the expression '%.500s' is not supported\nwrite it without "
                    "look-around, named groups, flags, lazy repeats and hundreds "
                    "of repetitions, or name the modules",
                    c->path, key);
    } else {
        fit = !regexec(&re, module, 0, NULL, 0);
        regfree(&re);
    }
    free(t.s);
    return fit;
}

/* Value of a module: of the first key of the pattern that fits, else of `otherwise`. */
static int
pattern_value(const rt_peft_config *c, const char *module, const char *pattern,
              const char *otherwise, double *value)
{
    int code = RT_OK;
    const cJSON *item, *found = NULL;
    cJSON_ArrayForEach(item, get(c, pattern))
    {
        if (!found && !code && fits(c, item->string, module, &code))
            found = item;
    }
    const cJSON *use = found ? found : get(c, otherwise);
    if (!code && !cJSON_IsNumber(use))
        code = rt_fail(RT_USER, "%s: %s of '%s' must be a number", c->path, pattern,
                       use->string);
    *value = code ? 0 : use->valuedouble;
    return code;
}

int
rt_peft_scale(const rt_peft_config *c, const char *module, int64_t *rank, double *scale)
{
    double r, alpha;
    int code = pattern_value(c, module, "rank_pattern", "r", &r);
    if (!code)
        code = pattern_value(c, module, "alpha_pattern", "lora_alpha", &alpha);
    if (code)
        return code;
    if (!(r >= 1 && r <= 0x1p30 && r == floor(r)) || !isfinite(alpha))
        return rt_fail(RT_USER, "%s: rank %g and lora_alpha %g of %s are out of range",
                       c->path, r, alpha, module);
    *rank = (int64_t)r;
    *scale = alpha / (cJSON_IsTrue(get(c, "use_rslora")) ? sqrt(r) : r);
    return RT_OK;
}
