/* inspect_test.c -- efficc inspect: what it says of real exports, as JSON and as text. */
#include "test.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 1 << 16 };

/* Standard output of efficc inspect; *code: its exit code. */
static char *
inspect(const char *name, const char *options, int *code)
{
    static char text[TEXT];
    char command[1000];
    snprintf(command, sizeof command,
             BIN_DIR "/efficc inspect " SRC_DIR "/tests/cases/%s/model.onnx %s 2>&1",
             name, options);
    FILE *p = popen(command, "r");
    NEED(p != NULL);
    size_t n = fread(text, 1, TEXT - 1, p);
    text[n] = 0;
    *code = pclose(p);
    return text;
}

static cJSON *
json_of(const char *name, const char *options)
{
    char all[300];
    int code;
    snprintf(all, sizeof all, "--json %s", options);
    cJSON *json = cJSON_Parse(inspect(name, all, &code));
    NEED(json && !code);
    return json;
}

/* "a.b": the item b of the item a. */
static const cJSON *
item(const cJSON *json, const char *path)
{
    char copy[100];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *rest, *s = strtok_r(copy, ".", &rest); s; s = strtok_r(NULL, ".", &rest))
        json = cJSON_GetObjectItem(json, s);
    return json;
}

static double
number(const cJSON *json, const char *path)
{
    const cJSON *x = item(json, path);
    return cJSON_IsNumber(x) ? x->valuedouble : -1;
}

static const char *
text(const cJSON *json, const char *path)
{
    const char *s = cJSON_GetStringValue(item(json, path));
    return s ? s : "";
}

TEST(decoder)
{
    cJSON *o = json_of("gpt2-legacy17", "");
    CHECK_STR(text(o, "family"), "gpt2");
    CHECK_STR(text(o, "task"), "causal-lm");
    CHECK(number(o, "opsets.ai.onnx") < 0 &&
          cJSON_GetObjectItem(item(o, "opsets"), "ai.onnx"));
    CHECK(cJSON_GetArraySize(item(o, "units")) == 4);
    CHECK(number(o, "attention.recognised") == 2);
    CHECK(number(o, "attention.heads") == 4);
    CHECK(number(o, "attention.head_dim") == 12);
    CHECK(cJSON_IsTrue(item(o, "attention.causal")));
    CHECK(cJSON_IsTrue(item(o, "attention.fused_qkv")));
    CHECK(number(o, "parameters.numbers") == 41008);
    CHECK(number(o, "trained.numbers") == 41008);
    CHECK(!strncmp(text(o, "padding"), "not computed", 12));
    const cJSON *tie = cJSON_GetArrayItem(item(o, "ties"), 0);
    CHECK_STR(text(tie, "weight"), "transformer.wte.weight");
    CHECK(cJSON_GetArraySize(item(o, "operators_without_rule")) == 0);
    CHECK(cJSON_GetArraySize(item(o, "problems")) == 0);
    cJSON_Delete(o);
}

TEST(options_decide_what_is_trained)
{
    cJSON *o = json_of("bert-legacy17", "--lora-r 4 --batch 3 --seq 20");
    CHECK(number(o, "batch") == 3 && number(o, "seq") == 20);
    CHECK(number(o, "trained.rank") == 4);
    CHECK(cJSON_GetArraySize(item(o, "trained.adapters")) == 4);
    CHECK(cJSON_GetArraySize(item(o, "trained.besides")) == 2); /* the classifier */
    CHECK(cJSON_IsFalse(item(o, "attention.causal")));
    cJSON_Delete(o);
    o = json_of("bert-legacy17", "--no-unpad");
    CHECK_STR(text(o, "padding"), "computed, under --no-unpad");
    cJSON_Delete(o);
    o = json_of("bert-legacy17", "--lora-targets nothing");
    CHECK(!item(o, "trained") && cJSON_GetArraySize(item(o, "problems")) == 1);
    cJSON_Delete(o);
}

TEST(weights_of_other_kinds)
{
    cJSON *o = json_of("gemma2-legacy17", "");
    CHECK_STR(text(o, "family"), "gemma2");
    CHECK(number(o, "parameters.one_plus_weight") == 9);
    cJSON_Delete(o);
    o = json_of("bert-legacy17-dedup", "");
    CHECK(number(o, "parameters.unshared_readers") == 20);
    cJSON_Delete(o);
}

TEST(a_screen_of_text)
{
    static const char *const facts[] = {
        "model ",      "exporter ", "inputs ",  "units ",     "attention ",
        "parameters ", "ties ",     "trained ", "operators ", "advice "};
    int code;
    const char *s = inspect("gpt2-dynamo-static", "", &code);
    CHECK(!code);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        CHECK(strstr(s, facts[i]) != NULL);
    CHECK(!strstr(s, "--batch 8")); /* the file fixes it */
    int lines = 0;
    for (const char *c = s; *c; c++)
        lines += *c == '\n';
    CHECK(lines <= 24);
}

TEST(what_can_not_be_read)
{
    int code;
    CHECK(strstr(inspect("none", "", &code), "No such file") && code);
    CHECK(strstr(inspect("gpt2-legacy17", "--bach 3", &code), "--batch") && code);
    CHECK(strstr(inspect("gpt2-legacy17", "--help", &code), "--json") && !code);
}
