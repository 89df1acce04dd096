/* cmd_inspect_text.c -- the JSON object of efficc inspect as one screen of text: one fact a
 * line, names in the first column.
 */
#include "cmd_inspect.h"

#include <stdarg.h>
#include <string.h>

enum { SHOWN = 4 }; /* of a list, the rest is counted */

typedef struct screen {
    FILE *out;
    const char *head; /* of the next line */
} screen;

__attribute__((format(printf, 2, 3))) static void
line(screen *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(s->out, "%-11s ", s->head);
    vfprintf(s->out, fmt, ap);
    fputs("\n", s->out);
    va_end(ap);
    s->head = "";
}

static double
number(const cJSON *o, const char *key)
{
    const cJSON *x = cJSON_GetObjectItem(o, key);
    return cJSON_IsNumber(x) ? x->valuedouble : 0;
}

static const char *
text(const cJSON *o, const char *key, const char *absent)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItem(o, key));
    return s ? s : absent;
}

static int
size(const cJSON *o, const char *key)
{
    return cJSON_GetArraySize(cJSON_GetObjectItem(o, key));
}

/* 12345 as 12,345 */
static const char *
grouped(double x, char *to)
{
    char digits[32], *w = to;
    int n = snprintf(digits, sizeof digits, "%.0f", x);
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            *w++ = ',';
        *w++ = digits[i];
    }
    *w = 0;
    return to;
}

/* "a, b, .. (12)" */
static void
put_list(screen *s, const cJSON *list, const char *key)
{
    int i = 0, n = cJSON_GetArraySize(list);
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (i == SHOWN)
            break;
        fprintf(s->out, "%s%s", i++ ? ", " : "",
                key ? text(item, key, "") : cJSON_GetStringValue(item));
    }
    if (n > SHOWN)
        fprintf(s->out, ", .. (%d in all)", n);
    fputs("\n", s->out);
}

static void
put_file(screen *s, const cJSON *o)
{
    char b[48];
    s->head = "model";
    line(s, "%s: family %s, task %s", text(o, "model", ""),
         text(o, "family", "unknown"), text(o, "task", "unknown"));
    s->head = "exporter";
    line(s, "%s, IR %.0f, opset %.0f%s", text(o, "exporter", "unknown"),
         number(o, "ir_version"), number(cJSON_GetObjectItem(o, "opsets"), "ai.onnx"),
         size(o, "opsets") > 1 ? " and other operator sets" : "");
    line(s, "%s bytes, %.0f nodes%s", grouped(number(o, "bytes"), b),
         number(o, "nodes"),
         size(o, "external_data") ? ", weights in other files" : "");
}

static void
put_inputs(screen *s, const cJSON *o)
{
    const cJSON *item, *dim;
    int i = 0, n = size(o, "inputs");
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(o, "inputs"))
    {
        if (i++ == SHOWN + 1)
            break;
        fprintf(s->out, "%-11s %s [", i > 1 ? "" : "inputs", text(item, "name", ""));
        int k = 0;
        cJSON_ArrayForEach(dim, cJSON_GetObjectItem(item, "dims"))
        {
            fputs(k++ ? ", " : "", s->out);
            if (cJSON_IsNumber(dim))
                fprintf(s->out, "%.0f", dim->valuedouble);
            else
                fputs(dim->valuestring, s->out);
        }
        fprintf(s->out, "]: %s\n", text(item, "role", "not used"));
    }
    s->head = "";
    if (n > SHOWN + 1)
        line(s, "and %d more, such as caches, which are empty", n - SHOWN - 1);
    fprintf(s->out, "%-11s ", "outputs");
    put_list(s, cJSON_GetObjectItem(o, "outputs"), NULL);
    s->head = "sizes";
    if (cJSON_GetObjectItem(o, "batch"))
        line(s, "looked at with batch %.0f, seq %.0f (--batch, --seq); vocabulary %.0f",
             number(o, "batch"), number(o, "seq"), number(o, "vocab"));
    if (cJSON_GetObjectItem(o, "labels"))
        line(s, "%.0f labels", number(o, "labels"));
}

static void
put_structure(screen *s, const cJSON *o)
{
    const cJSON *a = cJSON_GetObjectItem(o, "attention");
    int units = size(o, "units");
    s->head = "units";
    if (units == 1)
        line(s, "one: no layers were found");
    else if (units)
        line(s, "embeddings, %d layer%s, head", units - 2, units == 3 ? "" : "s");
    s->head = "attention";
    if (a && number(a, "recognised") > 0)
        line(s, "%.0f, %s%s, %.0f heads of %.0f, %.0f of keys and values%s",
             number(a, "recognised"),
             cJSON_IsTrue(cJSON_GetObjectItem(a, "causal")) ? "causal" : "both ways",
             cJSON_IsTrue(cJSON_GetObjectItem(a, "key_mask")) ? " with a mask of keys"
                                                              : "",
             number(a, "heads"), number(a, "head_dim"), number(a, "kv_heads"),
             cJSON_IsTrue(cJSON_GetObjectItem(a, "fused_qkv"))
                 ? ", from one fused product"
                 : "");
    if (a && number(a, "plain_softmax") > 0)
        line(s, "%.0f softmax%s computed as plain operators: right, but slower",
             number(a, "plain_softmax"), number(a, "plain_softmax") > 1 ? "es" : "");
}

static void
put_types(screen *s, const cJSON *types)
{
    const cJSON *t;
    cJSON_ArrayForEach(t, types)
        fprintf(s->out, " %s (%.0f)", t->string, t->valuedouble);
    fputs("\n", s->out);
}

static void
put_weights(screen *s, const cJSON *o)
{
    const cJSON *p = cJSON_GetObjectItem(o, "parameters"), *tie;
    char b[48], c[48];
    int unnamed = size(p, "unnamed"), n = 0;
    fprintf(s->out, "%-11s %.0f, %s numbers, %s bytes:", "parameters",
            number(p, "weights"), grouped(number(p, "numbers"), b),
            grouped(number(p, "bytes"), c));
    put_types(s, cJSON_GetObjectItem(p, "types"));
    s->head = "";
    if (!unnamed) {
        line(s, "all have PyTorch names");
    } else {
        fprintf(s->out, "%-11s without PyTorch name: ", "");
        put_list(s, cJSON_GetObjectItem(p, "unnamed"), NULL);
    }
    if (number(p, "one_plus_weight") > 0)
        line(s, "%.0f norms hold 1 + weight, as Gemma's", number(p, "one_plus_weight"));
    if (number(p, "unshared_readers") > 0)
        line(s, "%.0f readers of merged vectors get their own",
             number(p, "unshared_readers"));
    s->head = "ties";
    cJSON_ArrayForEach(tie, cJSON_GetObjectItem(o, "ties"))
    {
        const cJSON *copy = cJSON_GetArrayItem(cJSON_GetObjectItem(tie, "copies"), 0);
        if (n++ >= SHOWN)
            continue;
        if (!copy)
            line(s, "%s is the output layer, too", text(tie, "weight", ""));
        else
            line(s, "%s = %s%s", text(tie, "weight", ""), text(copy, "initializer", ""),
                 cJSON_IsTrue(cJSON_GetObjectItem(copy, "transposed")) ? ", transposed"
                                                                       : "");
    }
    if (!n)
        line(s, "none");
}

static void
put_trained(screen *s, const cJSON *o)
{
    const cJSON *t = cJSON_GetObjectItem(o, "trained");
    char b[48], c[48];
    if (!t)
        return;
    s->head = "trained";
    line(s, "%s numbers, %s stay as they are", grouped(number(t, "numbers"), b),
         grouped(number(t, "frozen"), c));
    if (size(t, "adapters")) {
        fprintf(s->out, "%-11s %d adapters of rank %.0f: ", "", size(t, "adapters"),
                number(t, "rank"));
        put_list(s, cJSON_GetObjectItem(t, "adapters"), "module");
    }
    if (size(t, "besides")) {
        fprintf(s->out, "%-11s and ", "");
        put_list(s, cJSON_GetObjectItem(t, "besides"), NULL);
    }
}

static void
put_rest(screen *s, const cJSON *o)
{
    const cJSON *item;
    fprintf(s->out, "%-11s ", "operators");
    if (size(o, "operators_without_rule")) {
        fputs("without a rule: ", s->out);
        put_list(s, cJSON_GetObjectItem(o, "operators_without_rule"), "operator");
    } else {
        fputs("all have a rule\n", s->out);
    }
    s->head = "problems";
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(o, "problems"))
        line(s, "%s", item->valuestring);
    s->head = "advice";
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(o, "advice"))
        line(s, "%s", item->valuestring);
}

void
inspect_text(FILE *out, const cJSON *o)
{
    screen s = {.out = out};
    put_file(&s, o);
    put_inputs(&s, o);
    put_structure(&s, o);
    put_weights(&s, o);
    put_trained(&s, o);
    s.head = "padding";
    if (cJSON_GetObjectItem(o, "padding"))
        line(&s, "%s", text(o, "padding", ""));
    put_rest(&s, o);
}
