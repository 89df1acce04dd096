/* early_test.c -- early stopping and the best model against Hugging Face's Trainer: when each
 * run ends, which evaluation is the best, and that its weights are the results.
 * make_early_goldens.py made the numbers and the data.
 */
#include "golden.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EARLY SRC_DIR "/tests/e2e/early"

static double
number(const cJSON *object, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(x) ? x->valuedouble : NAN;
}

static const char *
string(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

/* The evaluations of a log as [step, loss, accuracy]; delete it. */
static cJSON *
evaluations(const char *dir)
{
    cJSON *all = cJSON_CreateArray();
    char *text = text_read(fmt("%s/log.jsonl", dir));
    for (char *line = text; line && *line; line = strchr(line, '\n') + 1) {
        cJSON *row = cJSON_ParseWithOpts(line, NULL, false);
        const double at[] = {number(row, "step"), number(row, "eval_loss"),
                             number(row, "eval_accuracy")};
        if (!isnan(at[1]))
            cJSON_AddItemToArray(all, cJSON_CreateDoubleArray(at, 3));
        cJSON_Delete(row);
    }
    free(text);
    return all;
}

static void
check_evaluation(const cJSON *got, const cJSON *want, int first)
{
    static const double tolerance[] = {0, 1e-4, 1e-9};
    NEED(cJSON_GetArraySize(got) == 3 && cJSON_GetArraySize(want) >= 2);
    for (int i = first; i < 3; i++)
        CHECK_NEAR(cJSON_GetArrayItem(got, i)->valuedouble,
                   cJSON_GetArrayItem(want, i - first)->valuedouble, tolerance[i]);
}

static bool
compile(const char *dir, const cJSON *goldens)
{
    return !run(fmt("%s/compile.log", dir),
                "%s/efficc %s/tests/cases/bert-legacy17/model.onnx --batch 4 --seq %d "
                "--fp32 --task seq-cls --threads 1 -o %s/out",
                BIN_DIR, SRC_DIR, (int)number(goldens, "seq"), dir);
}

static void
check_run(const char *dir, const cJSON *goldens, const cJSON *want)
{
    const char *name = string(want, "name"), *log = fmt("%s/%s.log", dir, name);
    int rc = run(log,
                 "%s/out/trainer --train-data " EARLY "/train.jsonl --eval-data " EARLY
                 "/dev.jsonl --no-shuffle --global-batch-size %d %s %s "
                 "--load-best-model-at-end --save-strategy no --logging-steps 1000 "
                 "--output-dir %s/%s",
                 dir, (int)number(goldens, "global_batch"), string(goldens, "options"),
                 string(want, "options"), dir, name);
    CHECK(rc == 0);
    cJSON *got = evaluations(fmt("%s/%s", dir, name));
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(want, "evaluations");
    CHECK(cJSON_GetArraySize(got) == cJSON_GetArraySize(rows));
    for (int i = 0; i < cJSON_GetArraySize(rows) && i < cJSON_GetArraySize(got); i++)
        check_evaluation(cJSON_GetArrayItem(got, i), cJSON_GetArrayItem(rows, i), 0);
    cJSON_Delete(got);
    /* the line of the report that tells the best */
    char *said = text_read(log);
    const char *line = strstr(said, "\nbest ");
    int step = 0;
    double value = NAN;
    char metric[64];
    NEED(line &&
         sscanf(line + 1, "best step %d: %63s %lf", &step, metric, &value) == 3);
    CHECK(step == (int)number(want, "best_step"));
    CHECK_NEAR(value, number(want, "best"), 1e-4);
    free(said);
}

/* The results are the weights of the best evaluation. */
static void
check_results(const char *dir, const cJSON *want)
{
    const char *name = string(want, "name");
    int rc = run(fmt("%s/%s-again.log", dir, name),
                 "%s/out/trainer --eval-data " EARLY "/dev.jsonl --init-tensors "
                 "%s/%s/model.safetensors --output-dir %s/%s-again",
                 dir, dir, name, dir, name);
    CHECK(rc == 0);
    cJSON *got = evaluations(fmt("%s/%s-again", dir, name));
    NEED(cJSON_GetArraySize(got) == 1);
    check_evaluation(cJSON_GetArrayItem(got, 0),
                     cJSON_GetObjectItemCaseSensitive(want, "final"), 1);
    cJSON_Delete(got);
}

TEST(as_the_trainer_of_hugging_face)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s", fresh_dir("early"));
    cJSON *goldens = json_read(EARLY "/goldens.json");
    NEED(goldens != NULL);
    NEED(compile(dir, goldens));
    const cJSON *want;
    cJSON_ArrayForEach(want, cJSON_GetObjectItemCaseSensitive(goldens, "runs"))
    {
        check_run(dir, goldens, want);
        check_results(dir, want);
    }
    cJSON_Delete(goldens);
}
