/* nonfinite_test.c -- what a trainer says of a step that is not finite, and --on-nonfinite.
 *
 * Weights that are infinite or huge are given to it; the op and the ONNX node where they do
 * harm are known.
 */
#include "golden.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASE SRC_DIR "/tests/cases/gpt2-optimum"

static char *said; /* by the last trainer */

/* The trainer and its data, made once; the folder of both. */
static const char *
folder(void)
{
    static char dir[512];
    if (*dir)
        return dir;
    snprintf(dir, sizeof dir, "%s", fresh_dir("nonfinite"));
    tensors golden = tensors_read(CASE "/golden.safetensors");
    const tensor *ids = tensors_get(&golden, "batch0.input_ids");
    char data[600];
    snprintf(data, sizeof data, "%s/rows.jsonl", dir);
    NEED(ids != NULL && batches_write(data, &golden, (int[]){0, 1, 2, 3}, 4));
    NEED(run(fmt("%s/compile.log", dir),
             "%s/efficc " CASE "/model.onnx --fp32 --batch %d --seq %d -o %s/out "
             "--cflags '-O1 -march=native'",
             BIN_DIR, (int)ids->dim[0], (int)ids->dim[1], dir) == 0);
    tensors_free(&golden);
    return dir;
}

static int
trainer_with(const char *data, const char *to, const char *options)
{
    const char *dir = folder();
    int code = run(fmt("%s/log", dir),
                   "cd %s && out/trainer --train-data %s --shuffle false "
                   "--max-steps 8 --logging-steps 1 --save-strategy no "
                   "--overwrite-output-dir --output-dir %s %s",
                   dir, data, to, options);
    free(said);
    said = text_read(fmt("%s/log", dir));
    NEED(said != NULL);
    return code;
}

static int
trainer(const char *to, const char *options)
{
    return trainer_with("rows.jsonl", to, options);
}

/* A file for --init-tensors: the weight of the file, with value at `at` and each `step`
 * elements after it. */
static void
spoil(const char *to, const char *name, int64_t at, int64_t step, double value)
{
    tensors base = tensors_read(fmt("%s/out/base.safetensors", folder()));
    const tensor *t = tensors_get(&base, name);
    NEED(t != NULL);
    for (int64_t i = at; i < t->n; i += step)
        t->data[i] = value;
    CHECK(tensors_write(fmt("%s/%s", folder(), to), &t, &name, 1));
    tensors_free(&base);
}

static bool
heard(const char *text)
{
    bool there = strstr(said, text) != NULL;
    if (!there)
        printf("  not said: %s\n%s\n", text, said);
    return there;
}

/* A number of the log's row of a step; NaN: null, or not there. */
static double
logged(const char *where, int step, const char *key)
{
    char *text = text_read(fmt("%s/%s/log.jsonl", folder(), where));
    double x = NAN;
    for (char *line = text; line && *line; line = strchr(line, '\n') + 1) {
        cJSON *row = cJSON_ParseWithOpts(line, NULL, false);
        const cJSON *at = cJSON_GetObjectItemCaseSensitive(row, "step");
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, key);
        if (cJSON_IsNumber(at) && at->valuedouble == step && cJSON_IsNumber(v))
            x = v->valuedouble;
        cJSON_Delete(row);
    }
    free(text);
    return x;
}

TEST(an_infinite_weight_is_found_where_it_is_used)
{
    spoil("inf.safetensors", "transformer.h.1.mlp.c_fc.weight", 3 * 56 + 5, 1 << 30,
          INFINITY);
    CHECK(trainer("inf", "--init-tensors inf.safetensors") == 1);
    CHECK(heard("step 1: the loss is not finite (learning rate 5e-05)"));
    CHECK(heard("first result that is not finite: layer.1 forward, %l1.mlp.act.Mul_3 = "
                "linear_gelu (/transformer/h.1/mlp/c_fc/Gemm): 32 of 1792 values, the "
                "first (inf) at [0,5]"));
    CHECK(
        heard("its operand $transformer.h.1.mlp.c_fc.weight is not finite itself: 1 of "
              "2688 values, the first (inf) at [3,5]; it was loaded like that"));
    CHECK(heard("rows 1, 2 of rows.jsonl"));
    CHECK(heard("nothing was saved; mend the weights"));
    /* no step can be good with it, so none is skipped */
    CHECK(trainer("inf", "--init-tensors inf.safetensors --on-nonfinite skip") == 1);
    CHECK(heard("step 1: the loss is not finite"));
}

/* Padding on the left: with a causal mask its queries have no key, so that the logs of their
 * sums are -inf. That is meant, and not what went bad. */
TEST(queries_without_keys_are_no_fault)
{
    FILE *f = fopen(fmt("%s/row.jsonl", folder()), "w");
    NEED(f != NULL);
    fputs("{\"input_ids\": [5, 6, 7, 8], \"attention_mask\": [0, 0, 1, 1]}\n", f);
    fclose(f);
    spoil("inf.safetensors", "transformer.h.1.mlp.c_proj.bias", 7, 1 << 30, INFINITY);
    CHECK(trainer_with("row.jsonl", "keys", "--init-tensors inf.safetensors") == 1);
    CHECK(heard(
        "layer.1 forward, %l1.Add_1 = linear_add (/transformer/h.1/mlp/c_proj/Gemm)"));
    CHECK(heard("its operand $transformer.h.1.mlp.c_proj.bias is not finite itself"));
    CHECK(heard("\n  row 1 of row.jsonl"));
}

/* The derivative of tanh-GELU squares its operand; what went in is finite. */
TEST(a_derivative_that_overflows_is_named)
{
    spoil("big.safetensors", "transformer.h.1.mlp.c_fc.weight", 0, 1, 1e30);
    CHECK(trainer("big", "--init-tensors big.safetensors") == 1);
    CHECK(heard("step 1: the gradient norm is not finite"));
    CHECK(heard("layer.1 backward, %l1.mlp.c_fc.Gemm.d = linear_dgelu "
                "(/transformer/h.1/mlp/c_proj/Gemm"));
    CHECK(heard("its operands are finite, of size up to 2.47e+30 in "
                "%l1.mlp.c_fc.Gemm\n"));
    CHECK(heard("lower --learning-rate, warm up, or clip with --max-grad-norm"));
}

TEST(an_update_too_far_is_found_in_its_micro_batch)
{
    CHECK(trainer("far", "--learning-rate 1e9 --gradient-accumulation-steps 2") == 1);
    CHECK(heard("step 2: the loss is not finite"));
    CHECK(heard("layer.0 forward, %l0.attn.MatMul_1 = attention "
                "(/transformer/h.0/attn/MatMul_1): "));
    CHECK(heard("its operands are finite, of size up to "));
    CHECK(heard("micro-batch 1 of 2, rows 5, 6 of rows.jsonl"));
}

/* All results are finite, only the sum of squares is not: every row of the table was looked
 * at, and none of them gave a false alarm. */
TEST(a_norm_that_overflows_is_skipped)
{
    const char *far = "--optim sgd --learning-rate 1e3 --max-grad-norm 0 "
                      "--lr-scheduler-type constant";
    CHECK(trainer("norm", far) == 1);
    CHECK(heard("step 3: the gradient norm is not finite"));
    CHECK(
        heard("all results are finite, but not the sum of the gradients' squares: the "
              "largest gradient is "));
    CHECK(trainer("norm", fmt("%s --on-nonfinite skip", far)) == 0);
    CHECK(heard("skipped   step 3: the gradient norm is not finite; all results are "));
    CHECK(heard("skipped   step 8: "));
    CHECK(isnan(logged("norm", 3, "loss")) && isnan(logged("norm", 3, "grad_norm")));
    CHECK(logged("norm", 3, "skipped_steps") == 1);
    CHECK(logged("norm", 8, "skipped_steps") == 6);
}

/* As long as all is finite the mode changes no bit. */
TEST(finite_steps_are_the_same_either_way)
{
    CHECK(trainer("stop", "--learning-rate 1e-3") == 0);
    CHECK(trainer("skip", "--learning-rate 1e-3 --on-nonfinite skip") == 0);
    for (int k = 1; k <= 8; k++)
        CHECK(logged("stop", k, "loss") == logged("skip", k, "loss") &&
              logged("stop", k, "grad_norm") == logged("skip", k, "grad_norm"));
    CHECK(run("/dev/null", "cmp %s/stop/model.onnx %s/skip/model.onnx", folder(),
              folder()) == 0);
}
