/* drop_test.c -- what is dropped is a function of seed, step, row, position and place: so the
 * trainer drops what the interpreter does, whatever the threads, the division of a step into
 * micro-batches, padding that is left out or a stop on the way. Evaluations drop nothing.
 */
#include "golden.h"
#include "oracle.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES    SRC_DIR "/tests/cases"
#define TRAINING SRC_DIR "/tests/e2e/drop/bert-training.onnx"
enum { BATCHES = 4, STEPS = 4 };
/* Shape of the batches of the cases. */
#define BERT "--batch 3 --seq 20"
#define GPT2 "--batch 2 --seq 16"

/* The folder of this run, with data.jsonl: the batches of a case. */
static const char *
folder(const char *of)
{
    static char dir[512], last[64];
    if (!strcmp(last, of))
        return dir;
    snprintf(last, sizeof last, "%s", of);
    snprintf(dir, sizeof dir, "%s", fresh_dir(fmt("dropout-%s", of)));
    tensors golden = tensors_read(fmt(CASES "/%s/golden.safetensors", of));
    char data[600];
    snprintf(data, sizeof data, "%s/data.jsonl", dir);
    NEED(batches_write(data, &golden, (int[]){0, 1, 2, 3}, BATCHES));
    tensors_free(&golden);
    return dir;
}

/* Makes the trainer in DIR/name. */
static bool
compile(const char *dir, const char *name, const char *flags)
{
    const char *log = fmt("%s/%s.log", dir, name);
    int rc = run(log, "%s/efficc %s %s --cflags '-O1 -march=native' -o %s/%s", BIN_DIR,
                 flags, strstr(flags, "f16") || strstr(flags, "fp16") ? "" : "--fp32",
                 dir, name);
    if (rc)
        printf("  efficc %s: %d: %.600s\n", flags, rc, text_read(log));
    return rc == 0;
}

/* Runs it; its results are in DIR/name.to. loss [steps]: what it logs, if it is not NULL. */
static bool
train(const char *dir, const char *name, const char *to, const char *flags,
      double *loss)
{
    const char *log = fmt("%s/%s.%s.log", dir, name, to);
    int rc = run(log,
                 "cd %s && %s/trainer --train-data data.jsonl --shuffle false --seed 0 "
                 "--max-steps %d --learning-rate 1e-2 --lr-scheduler-type constant "
                 "--weight-decay 0.01 --decay-params all --max-grad-norm 0 "
                 "--logging-steps 1 --output-dir %s.%s %s",
                 dir, name, STEPS, name, to, flags);
    if (rc)
        printf("  %s %s: %d: %.600s\n", name, flags, rc, text_read(log));
    char *text = text_read(fmt("%s/%s.%s/log.jsonl", dir, name, to));
    for (char *row = text ? strtok(text, "\n") : NULL; row; row = strtok(NULL, "\n")) {
        cJSON *j = cJSON_Parse(row);
        const cJSON *step = cJSON_GetObjectItem(j, "step");
        const cJSON *x = cJSON_GetObjectItem(j, "loss");
        if (loss && cJSON_IsNumber(x) && step->valueint <= STEPS)
            loss[step->valueint - 1] = x->valuedouble;
        cJSON_Delete(j);
    }
    free(text);
    return rc == 0;
}

/* Largest difference as a share of max(1, loss). */
static double
apart(const double *a, const double *b)
{
    double worst = 0;
    for (int s = 0; s < STEPS; s++)
        worst = fmax(worst, isnan(a[s]) || isnan(b[s])
                                ? INFINITY
                                : fabs(a[s] - b[s]) / fmax(1, fabs(b[s])));
    return worst;
}

/* Of an evaluation. */
static double
eval_loss(const char *dir, const char *name)
{
    char *text = text_read(fmt("%s/%s/log.jsonl", dir, name));
    const char *at = text ? strstr(text, "\"eval_loss\":") : NULL;
    double x = at ? strtod(at + 12, NULL) : NAN;
    free(text);
    return x;
}

TEST(trainer_and_interpreter_drop_the_same)
{
    static const struct {
        const char *of, *flags;
        int micro;
    } t[] = {
        {"bert-legacy17", CASES "/bert-legacy17/model.onnx --dropout 0.3 " BERT, 1},
        {"bert-legacy17", CASES "/bert-legacy17/model.onnx --dropout 0.3 " BERT, 2},
        {"bert-legacy17",
         CASES "/bert-legacy17/model.onnx --dropout 0.3 --no-recognise attention " BERT,
         1},
        {"bert-legacy17", TRAINING " " BERT, 1},
        {"gpt2-legacy17",
         CASES
         "/gpt2-legacy17/model.onnx --lora-r 2 --lora-dropout 0.4 --dropout 0.1 " GPT2,
         1},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const char *dir = folder(t[i].of);
        char line[1024], name[16], *argv[32];
        double got[STEPS], want[STEPS], norm[STEPS];
        snprintf(line, sizeof line, "%s --no-unpad", t[i].flags);
        snprintf(name, sizeof name, "t%zu", i);
        NEED(compile(dir, name, line));
        CHECK(train(dir, name, "res",
                    fmt("--gradient-accumulation-steps %d", t[i].micro), got));
        tensors golden = tensors_read(fmt(CASES "/%s/golden.safetensors", t[i].of));
        oracle_run o = {.argv = argv,
                        .golden = &golden,
                        .steps = STEPS,
                        .micro = t[i].micro,
                        .loss = want,
                        .norm = norm};
        o.hyper = (ir_hyper){.lr = 1e-2,
                             .weight_decay = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .decay_all = true};
        snprintf(line, sizeof line, "efficc %s --no-unpad --fp32", t[i].flags);
        for (char *w = strtok(line, " "); w; w = strtok(NULL, " "))
            argv[o.argc++] = w;
        argv[o.argc] = NULL;
        CHECK(oracle_train(&o));
        CHECK_NEAR(apart(got, want), 0, 1e-5);
        tensors_free(&golden);
    }
}

/* 6 rows a step. */
TEST(threads_and_micro_batches_change_nothing)
{
    static const int batch[] = {6, 3, 2, 1};
    const char *dir = folder("bert-legacy17");
    double first[STEPS], loss[STEPS];
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", batch[i]);
        NEED(compile(dir, name,
                     fmt(CASES "/bert-legacy17/model.onnx --dropout 0.3 --threads 3 "
                               "--seq 20 --batch %d",
                         batch[i])));
        for (int threads = 1; threads <= 3; threads++) {
            double *to = !i && threads == 1 ? first : loss;
            CHECK(train(dir, name, fmt("res%d", threads),
                        fmt("--global-batch-size 6 --threads %d", threads), to));
            CHECK_NEAR(apart(to, first), 0, 1e-5);
        }
    }
}

TEST(padding_may_be_left_out)
{
    static const char *const flags[] = {
        CASES "/bert-legacy17/model.onnx --dropout 0.3 " BERT,
        CASES
        "/gpt2-legacy17/model.onnx --lora-targets all-linear --lora-dropout 0.4 " GPT2,
        CASES
        "/bert-legacy17/model.onnx --lora-targets all-linear --lora-dropout 0.4 " BERT,
        TRAINING " " BERT};
    for (int i = 0; i < 4; i++) {
        const char *dir = folder(i == 1 ? "gpt2-legacy17" : "bert-legacy17");
        double loss[2][STEPS];
        NEED(compile(dir, "rows", flags[i]));
        NEED(compile(dir, "padded", fmt("%s --no-unpad", flags[i])));
        char *said[2] = {text_read(fmt("%s/rows.log", dir)),
                         text_read(fmt("%s/padded.log", dir))};
        for (int k = 0; k < 2; k++) { /* two programs that differ */
            CHECK(said[k] && (strstr(said[k], "padding: not computed") == NULL) == k);
            free(said[k]);
        }
        CHECK(train(dir, "rows", fmt("%d", i), "", loss[0]));
        CHECK(train(dir, "padded", fmt("%d", i), "", loss[1]));
        CHECK_NEAR(apart(loss[0], loss[1]), 0, 1e-5);
        run("/dev/null", "rm -rf %s/rows %s/padded", dir, dir);
    }
}

TEST(low_precisions_drop_the_same)
{
    static const char *const flags[] = {"--fp32", "--bf16", "--fp16"};
    const char *dir = folder("bert-legacy17");
    double loss[3][STEPS];
    for (int i = 0; i < 3; i++) {
        const char *name = flags[i] + 2;
        NEED(compile(dir, name,
                     fmt(CASES "/bert-legacy17/model.onnx --dropout 0.3 " BERT " %s",
                         i ? flags[i] : "")));
        CHECK(train(dir, name, "res", "", loss[i]));
        CHECK_NEAR(apart(loss[i], loss[0]), 0, 0.05);
    }
}

TEST(a_run_that_goes_on_drops_what_it_would_have)
{
    const char *dir = folder("bert-legacy17");
    double whole[STEPS], rest[STEPS];
    NEED(compile(dir, "stop", CASES "/bert-legacy17/model.onnx --dropout 0.3 " BERT));
    CHECK(train(dir, "stop", "whole", "--save-strategy steps --save-steps 2", whole));
    CHECK(train(dir, "stop", "rest",
                fmt("--resume-from-checkpoint %s/stop.whole/checkpoint-2", dir), rest));
    CHECK(rest[2] == whole[2] && rest[3] == whole[3]);
    CHECK(train(dir, "stop", "seed", "--seed 1", rest));
    CHECK(fabs(rest[0] - whole[0]) > 1e-3);
}

/* Of weights that stay as they are. */
TEST(evaluations_drop_nothing)
{
    static const char *const flags[] = {"", "--dropout 0", "--dropout 0.3"};
    const char *dir = folder("bert-legacy17");
    double loss[3][STEPS], eval[3];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "e%d", i);
        NEED(compile(dir, name, fmt(TRAINING " " BERT " %s", flags[i])));
        CHECK(train(dir, name, "res",
                    "--eval-data data.jsonl --learning-rate 0 --global-batch-size 12",
                    loss[i]));
        eval[i] = eval_loss(dir, fmt("%s.res", name));
    }
    CHECK_NEAR(eval[1], loss[1][0], 1e-6);
    CHECK(fabs(loss[0][0] - eval[0]) > 1e-4 && fabs(loss[2][0] - eval[2]) > 1e-4);
    CHECK(eval[0] == eval[1] && eval[1] == eval[2]);
    CHECK(loss[0][0] != loss[0][1]); /* every step drops others */
    CHECK(loss[1][0] == loss[1][1]);
}
