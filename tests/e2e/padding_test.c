/* padding_test.c -- a trainer that computes no padding says what one does that computes it.
 *
 * Both are compiled from the same model and run on the same rows: full ones, short ones, padded
 * on the left, with holes in the mask, of one token, supervised where the mask hides; and the
 * last batch of an evaluation is not full. Losses, gradients, evaluations and predictions are
 * the same but for rounding.
 */
#include "golden.h"
#include "test.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES SRC_DIR "/tests/cases"
enum { ROWS = 7, SEQ = 16, STEPS = 3 };

/* What the mask shows: a character a token. */
static const char *const masks[ROWS] = {
    "1111111111111111", "1111111",          "0000000000011111", "1101011100101", "1",
    "1110000",          "0111111111111101",
};

typedef enum kind { A_ROW, A_TOKEN, CAUSAL } kind;

/* Rows with labels; half of what the mask hides is supervised, too. */
static void
write_rows(const char *file, kind k)
{
    FILE *f = fopen(file, "w");
    NEED(f != NULL);
    for (int r = 0; r < ROWS; r++) {
        int n = (int)strlen(masks[r]);
        fprintf(f, "{\"input_ids\": [");
        for (int t = 0; t < n; t++)
            fprintf(f, "%s%d", t ? ", " : "", 3 + (r * 37 + t * 11) % 150);
        fprintf(f, "], \"attention_mask\": [");
        for (int t = 0; t < n; t++)
            fprintf(f, "%s%c", t ? ", " : "", masks[r][t]);
        fprintf(f, "], \"labels\": %s", k == A_ROW ? "" : "[");
        for (int t = 0; t < n && k != A_ROW; t++)
            fprintf(f, "%s%d", t ? ", " : "",
                    (masks[r][t] == '0' && t % 2) || t % 5 == 2 ? -100 : (r + t) % 3);
        if (k == A_ROW)
            fprintf(f, "%d", r % 3);
        fprintf(f, "%s}\n", k == A_ROW ? "" : "]");
    }
    fclose(f);
}

static bool
make(const char *dir, const char *name, const char *flags)
{
    const char *log = fmt("%s/%s.log", dir, name);
    int rc =
        run(log,
            "%s/efficc " CASES "/%s --batch 3 --seq %d --cflags '-O1 -march=native' "
            "-o %s/%s",
            BIN_DIR, flags, SEQ, dir, name);
    char *text = text_read(log);
    bool rows = text && strstr(text, "padding: not computed");
    bool ok = rc == 0 && rows == !strstr(flags, "--no-unpad");
    if (!ok)
        printf("  efficc %s: %d: %.600s\n", flags, rc, text);
    free(text);
    return ok;
}

static bool
train(const char *dir, const char *name)
{
    const char *log = fmt("%s/%s.train.log", dir, name);
    int rc = run(log,
                 "{ cd %s && %s/trainer --train-data rows.jsonl --eval-data rows.jsonl "
                 "--shuffle false --seed 0 --max-steps %d --global-batch-size 6 "
                 "--learning-rate 1e-3 --logging-steps 1 "
                 "--save-gradients %s.gradients --output-dir %s.res && "
                 "%s/trainer --predict rows.jsonl >%s.predictions; }",
                 dir, name, STEPS, name, name, name, name);
    if (rc)
        printf("  %s: %d: %.600s\n", name, rc, text_read(log));
    return rc == 0;
}

/* Numbers of both, alike but for `tolerance`; other things, equal. */
static bool
alike(const cJSON *a, const cJSON *b, double tolerance)
{
    if (!a || !b || a->type != b->type)
        return false;
    if (cJSON_IsNumber(a))
        return fabs(a->valuedouble - b->valuedouble) <=
               tolerance * fmax(1, fabs(b->valuedouble));
    if (cJSON_GetArraySize(a) != cJSON_GetArraySize(b))
        return false;
    const cJSON *y = b->child;
    for (const cJSON *x = a->child; x; x = x->next, y = y->next)
        if (!alike(x, y, tolerance))
            return false;
    return true;
}

/* Only losses, norms and what evaluations say: nothing about time. */
static cJSON *
results(const char *file)
{
    cJSON *all = cJSON_CreateArray();
    char *text = text_read(file), *rest = NULL;
    for (char *row = text ? strtok_r(text, "\n", &rest) : NULL; row;
         row = strtok_r(NULL, "\n", &rest)) {
        cJSON *j = cJSON_Parse(row);
        for (cJSON *x = j ? j->child : NULL, *next; x; x = next) {
            next = x->next;
            if (!strstr(x->string, "loss") && !strstr(x->string, "norm") &&
                !strstr(x->string, "accuracy") && !strstr(x->string, "label") &&
                !strstr(x->string, "prob") && !strstr(x->string, "next"))
                cJSON_Delete(cJSON_DetachItemViaPointer(j, x));
        }
        cJSON_AddItemToArray(all, j);
    }
    free(text);
    return all;
}

static void
same_file(const char *dir, const char *what, double tolerance)
{
    cJSON *a = results(fmt("%s/rows.%s", dir, what));
    cJSON *b = results(fmt("%s/padded.%s", dir, what));
    CHECK(cJSON_GetArraySize(a) >= STEPS);
    bool same = alike(a, b, tolerance);
    if (!same)
        printf("  %s differs:\n%s\n%s\n", what, cJSON_PrintUnformatted(a),
               cJSON_PrintUnformatted(b));
    CHECK(same);
    cJSON_Delete(a);
    cJSON_Delete(b);
}

static void
same_gradients(const char *dir, double tolerance)
{
    tensors a = tensors_read(fmt("%s/rows.gradients", dir));
    tensors b = tensors_read(fmt("%s/padded.gradients", dir));
    CHECK(a.n > 0 && a.n == b.n);
    for (int i = 0; i < a.n; i++) {
        const tensor *x = &a.at[i], *y = tensors_get(&b, x->name);
        double worst = 0, most = 1e-2; /* those of key biases are 0 but for rounding */
        NEED(y != NULL && y->n == x->n);
        for (int64_t k = 0; k < x->n; k++) {
            worst = fmax(worst, fabs(x->data[k] - y->data[k]));
            most = fmax(most, fabs(y->data[k]));
        }
        if (!(worst <= tolerance * most))
            printf("  gradient of %s is off by %g of %g\n", x->name, worst, most);
        CHECK(worst <= tolerance * most);
    }
    tensors_free(&a);
    tensors_free(&b);
}

static void
check_model(const char *flags, kind k)
{
    static int number;
    char dir[512];
    bool low = strstr(flags, "--bf16");
    snprintf(dir, sizeof dir, "%s", fresh_dir(fmt("padding-%d", number++)));
    write_rows(fmt("%s/rows.jsonl", dir), k);
    bool ok = make(dir, "rows", flags) &&
              make(dir, "padded", fmt("%s --no-unpad", flags)) && train(dir, "rows") &&
              train(dir, "padded");
    CHECK(ok);
    if (!ok)
        return;
    same_file(dir, "res/log.jsonl", low ? 2e-2 : 1e-5);
    same_gradients(dir, low ? 5e-2 : 1e-5);
    if (!low)
        same_file(dir, "predictions", 1e-5);
}

TEST(a_class_a_row)
{
    check_model("bert-legacy17/model.onnx --fp32", A_ROW);
    check_model("bert-legacy17/model.onnx --bf16", A_ROW);
    check_model("minilm-optimum/model.onnx --fp32 --task seq-cls --num-labels 3",
                A_ROW);
}

TEST(a_class_a_token)
{
    check_model("bert-tokencls-legacy17/model.onnx --fp32", A_TOKEN);
    check_model("bert-mlm-legacy17/model.onnx --fp32", A_TOKEN);
}

TEST(causal_models)
{
    check_model("gpt2-legacy17/model.onnx --fp32 --lora-r 2", CAUSAL);
    check_model("llama-tied-dynamo/model.onnx --fp32", CAUSAL);
    check_model("llama-tied-dynamo/model.onnx --bf16", CAUSAL);
}
