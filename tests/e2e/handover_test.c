/* handover_test.c -- what trainers in different precisions hand each other: adapters, which
 * know their base, and weights; and that results lose nothing of what was not trained.
 */
#include "golden.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PRECISIONS = 3 };
static const char *const precision[PRECISIONS] = {"fp32", "bf16", "fp16"};

static char dir[256], *said;

/* LoRA trainers in lora-P, trainers with frozen embeddings in part-P. */
static const char *
trainers(void)
{
    static const char *const kind[][2] = {
        {"lora", "--lora-r 4"}, {"part", "--freeze '*embeddings*,*layer.0*'"}};
    if (*dir)
        return dir;
    snprintf(dir, sizeof dir, "%s", fresh_dir("handover"));
    tensors golden =
        tensors_read(SRC_DIR "/tests/cases/bert-legacy17/golden.safetensors");
    NEED(batches_write(fmt("%s/rows.jsonl", dir), &golden, (int[]){0, 1}, 2));
    tensors_free(&golden);
    for (int i = 0; i < PRECISIONS; i++)
        for (int k = 0; k < 2; k++)
            NEED(
                run(fmt("%s/compile.log", dir),
                    "%s/efficc %s/tests/cases/bert-legacy17/model.onnx --batch 3 "
                    "--seq 20 --%s %s --quiet --cflags '-O1 -march=native' -o %s/%s-%s",
                    BIN_DIR, SRC_DIR, precision[i], kind[k][1], dir, kind[k][0],
                    precision[i]) == 0);
    return dir;
}

/* Runs kind-P/trainer; the exit code, output in `said`. */
static int
trainer(const char *kind, const char *p, const char *options)
{
    int code =
        run(fmt("%s/log", trainers()),
            "cd %s && %s-%s/trainer --overwrite-output-dir %s", dir, kind, p, options);
    free(said);
    said = text_read(fmt("%s/log", dir));
    return code;
}

#define TRAIN "--train-data rows.jsonl --max-steps 4 --learning-rate 1e-3 --output-dir "

static double
eval_loss(void)
{
    const char *at = said ? strstr(said, "step 0: loss ") : NULL;
    return at ? strtod(at + strlen("step 0: loss "), NULL) : (double)NAN;
}

TEST(adapters_go_from_one_precision_to_another)
{
    double loss[PRECISIONS];
    trainers(); /* before fmt(), whose buffers it uses */
    for (int i = 0; i < PRECISIONS; i++)
        CHECK(trainer("lora", precision[i], fmt(TRAIN "a-%s", precision[i])) == 0);
    for (int i = 0; i < PRECISIONS; i++) {
        for (int k = 0; k < PRECISIONS; k++) {
            CHECK(
                trainer("lora", precision[k],
                        fmt("--init-adapter a-%s --eval-data rows.jsonl --output-dir e",
                            precision[i])) == 0);
            loss[k] = eval_loss();
            CHECK(fabs(loss[k] - loss[0]) <= 0.02);
        }
        /* and it is still known what they were trained on */
        CHECK(run(fmt("%s/log", dir),
                  "%s/efficc export --adapter %s/a-%s "
                  "%s/tests/cases/bert-legacy17/model.onnx -o %s/%s.onnx",
                  BIN_DIR, dir, precision[i], SRC_DIR, dir, precision[i]) == 0);
    }
}

/* Other values under the adapters: a trainer that holds them rounded notices, too. */
TEST(an_adapter_does_not_name_a_base_that_it_was_not_trained_on)
{
    static const char name[] = "bert.encoder.layer.0.attention.self.query.weight";
    tensors t = tensors_read(fmt("%s/lora-fp32/base.safetensors", trainers()));
    const tensor *w = tensors_get(&t, name);
    NEED(w != NULL);
    for (int64_t i = 0; i < w->n; i++)
        w->data[i] *= 1.5;
    const char *names[] = {name};
    NEED(tensors_write(fmt("%s/other.safetensors", dir), &w, names, 1));
    tensors_free(&t);
    CHECK(trainer("lora", "bf16",
                  TRAIN "b --init-tensors other.safetensors --save-strategy no") == 0);
    CHECK(run(fmt("%s/log", dir),
              "! grep -aq efficc.base %s/b/adapter_model.safetensors", dir) == 0);
    CHECK(run(fmt("%s/log", dir),
              "grep -aq efficc.base %s/a-bf16/adapter_model.safetensors", dir) == 0);
}

TEST(what_is_frozen_comes_out_as_it_was)
{
    for (int i = 0; i < PRECISIONS; i++) {
        const char *p = precision[i];
        CHECK(trainer("part", p, fmt(TRAIN "r-%s", p)) == 0);
        tensors got = tensors_read(fmt("%s/r-%s/model.safetensors", dir, p));
        tensors want = tensors_read(fmt("%s/r-fp32/model.safetensors", dir));
        CHECK(got.n > 30 && got.n == want.n);
        for (int k = 0; k < got.n; k++) {
            const tensor *w = tensors_get(&want, got.at[k].name);
            bool frozen = strstr(got.at[k].name, "embeddings") ||
                          strstr(got.at[k].name, "layer.0");
            NEED(w != NULL);
            CHECK(tensor_distance(&got.at[k], w, 1) <= (frozen ? 0 : 1e-2));
        }
        tensors_free(&got);
        tensors_free(&want);
    }
}

TEST(a_run_starts_from_the_weights_of_another_precision)
{
    CHECK(trainer("part", "bf16", TRAIN "n --init-tensors r-fp16/checkpoint-4") == 0);
    CHECK(trainer("part", "bf16",
                  TRAIN "n --resume-from-checkpoint r-fp16/checkpoint-4") == 1);
    CHECK(strstr(said, "the precision is fp16 there and bf16 here") != NULL);
    CHECK(strstr(said, "--init-tensors") != NULL);
}
