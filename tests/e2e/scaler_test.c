/* scaler_test.c -- the loss scaler of fp16 against torch.amp.GradScaler, across a stop, and at
 * its end.
 *
 * tests/cases/make_scaler_goldens.py made scaler/: which steps are skipped and the scales are
 * the same, losses within 1e-3 max(1, loss), norms within 2 %.
 */
#include "golden.h"
#include "test.h"

#include "runtime/host/host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DATA SRC_DIR "/tests/e2e/scaler"

static char dir[256];

/* Trainers of the case: fp16/trainer, fp32/trainer. */
static const char *
trainers(void)
{
    static const char *const precision[] = {"fp16", "fp32"};
    if (*dir)
        return dir;
    snprintf(dir, sizeof dir, "%s", fresh_dir("scaler"));
    for (int i = 0; i < 2; i++)
        NEED(run(fmt("%s/compile.log", dir),
                 "%s/efficc %s/tests/cases/bert-legacy17/model.onnx --batch 3 --seq 20 "
                 "--%s --quiet --cflags '-O1 -march=native' -o %s/%s",
                 BIN_DIR, SRC_DIR, precision[i], dir, precision[i]) == 0);
    return dir;
}

/* Runs a trainer on rows-NAME.jsonl with these options into folder `to`; the exit code. */
static int
train(const char *precision, const char *name, const char *to, const char *options)
{
    return run(fmt("%s/%s.log", trainers(), to),
               "%s/%s/trainer --train-data %s/rows-%s.jsonl --init-tensors "
               "%s/weights.safetensors --shuffle false --logging-steps 1 "
               "--learning-rate 1e-4 --lr-scheduler-type constant --weight-decay 0.01 "
               "--output-dir %s/%s --overwrite-output-dir %s",
               dir, precision, DATA, name, DATA, dir, to, options);
}

static double
number(const cJSON *j, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, key);
    return cJSON_IsNumber(v) ? v->valuedouble : (double)NAN;
}

static double
element(const cJSON *run, const char *key, int i)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(run, key);
    const cJSON *v = cJSON_GetArrayItem(list, i);
    return cJSON_IsNumber(v) ? v->valuedouble : (double)NAN;
}

/* Rows of the log that have a step; delete them. */
static int
rows_of(const char *to, cJSON *row[], int most)
{
    char *text = text_read(fmt("%s/%s/log.jsonl", dir, to)), *save = NULL;
    int n = 0;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save)) {
        cJSON *j = cJSON_Parse(line);
        bool is_step = cJSON_HasObjectItem(j, "step") && n < most;
        if (is_step)
            row[n++] = j;
        else
            cJSON_Delete(j);
    }
    free(text);
    return n;
}

enum { STEPS = 12 };

static void
compare(const cJSON *want, const char *name)
{
    cJSON *row[STEPS];
    NEED(rows_of(name, row, STEPS) == STEPS);
    for (int k = 0; k < STEPS; k++) {
        double loss = element(want, "loss", k), norm = element(want, "grad_norm", k);
        double got = number(row[k], "loss"), got_norm = number(row[k], "grad_norm");
        CHECK(fabs(got - loss) <= 1e-3 * fmax(1, loss));
        CHECK(number(row[k], "loss_scale") == element(want, "loss_scale", k));
        CHECK(number(row[k], "skipped_steps") == element(want, "skipped_steps", k));
        CHECK(isnan(norm) == isnan(got_norm));
        CHECK(isnan(norm) || fabs(got_norm - norm) <= 0.02 * fmax(norm, 0.01));
        cJSON_Delete(row[k]);
    }
}

TEST(overflows_as_with_pytorch)
{
    cJSON *goldens = json_read(DATA "/goldens.json"), *want;
    NEED(goldens != NULL);
    cJSON_ArrayForEach(want, cJSON_GetObjectItem(goldens, "runs"))
    {
        NEED(train("fp16", want->string, want->string, "--max-steps 12") == 0);
        compare(want, want->string);
    }
    char *said = text_read(fmt("%s/first.log", dir));
    CHECK(strstr(said, "step 2: overflow, loss scale 16384, step skipped") != NULL);
    free(said);
    cJSON_Delete(goldens);
}

/* The part behind a checkpoint is bitwise that of the run that went on. */
TEST(a_checkpoint_holds_the_scaler)
{
    static const char *const key[] = {"loss", "grad_norm", "loss_scale",
                                      "skipped_steps"};
    cJSON *whole[STEPS], *parts[STEPS];
    char again[600];
    NEED(train("fp16", "first", "whole", "--max-steps 12") == 0);
    NEED(train("fp16", "first", "parts", "--max-steps 5") == 0);
    snprintf(again, sizeof again,
             "--max-steps 12 --resume-from-checkpoint %s/parts/checkpoint-5", dir);
    CHECK(train("fp32", "first", "other", again) == 1);
    char *said = text_read(fmt("%s/other.log", dir));
    CHECK(strstr(said, "the precision is fp16 there and fp32 here") != NULL);
    free(said);
    NEED(train("fp16", "first", "parts", again) == 0);
    NEED(rows_of("whole", whole, STEPS) == STEPS);
    NEED(rows_of("parts", parts, STEPS) == STEPS);
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < 4; i++) {
            double a = number(whole[k], key[i]), b = number(parts[k], key[i]);
            CHECK(a == b || (isnan(a) && isnan(b)));
        }
        cJSON_Delete(whole[k]);
        cJSON_Delete(parts[k]);
    }
}

/* No scale helps where the weights themselves are bad: 16 steps halve it, then the run ends. */
TEST(a_scale_of_1_is_the_end)
{
    float w[3 * 48];
    for (int i = 0; i < 3 * 48; i++)
        w[i] = 1e6f;
    rt_st_out t = {.name = "classifier.weight", .rank = 2, .dim = {3, 48}, .data = w};
    char *path = rt_path(trainers(), "bad.safetensors");
    NEED(rt_st_write(path, &t, 1, true) == RT_OK);
    int code = run(fmt("%s/end.log", dir),
                   "%s/fp16/trainer --train-data %s/rows-first.jsonl --init-tensors %s "
                   "--max-steps 30 --logging-steps 1 --output-dir %s/end "
                   "--overwrite-output-dir",
                   dir, DATA, path, dir);
    cJSON *row[STEPS * 3];
    char *said = text_read(fmt("%s/end.log", dir));
    CHECK(code == 1);
    CHECK(strstr(said, "step 17: the") != NULL &&
          strstr(said, "is not finite") != NULL);
    CHECK(strstr(said, "fp16 ends at 65504") != NULL);
    int n = rows_of("end", row, STEPS * 3);
    CHECK(n == 17 && number(row[15], "loss_scale") == 1);
    CHECK(n == 17 && number(row[15], "skipped_steps") == 16);
    for (int k = 0; k < n; k++)
        cJSON_Delete(row[k]);
    free(said);
    free(path);
}
