/* export_test.c -- efficc export: merged weights are those of PEFT, merged models compute what
 * the trainer computes with the adapter, and what can't be merged is refused.
 *
 * export/NAME are adapters of PEFT on the cases gpt2-legacy17 and bert-legacy17, and
 * export/NAME.safetensors what merge_and_unload() makes of them; make_adapters.py made both.
 */
#include "golden.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADAPTERS SRC_DIR "/tests/e2e/export"
#define QUICK    "--fp32 --quiet --cflags '-O1 -march=native'"

static char dir[512];   /* scratch */
static char model[512]; /* of the case */

static void
open_case(const char *test, const char *name)
{
    snprintf(dir, sizeof dir, "%s", fresh_dir(test));
    snprintf(model, sizeof model, "%s/tests/cases/%s/model.onnx", SRC_DIR, name);
    tensors golden =
        tensors_read(fmt("%s/tests/cases/%s/golden.safetensors", SRC_DIR, name));
    const int order[] = {0, 1, 2, 3};
    char path[600];
    snprintf(path, sizeof path, "%s/data.jsonl", dir);
    NEED(batches_write(path, &golden, order, 4));
    tensors_free(&golden);
}

/* A command in the scratch folder; says what went wrong. */
#define DO(...) CHECK(succeeds(fmt(__VA_ARGS__)))
static bool
succeeds(const char *command)
{
    char log[600];
    snprintf(log, sizeof log, "%s/log", dir);
    int rc = run(log, "cd '%s' && PATH=%s:$PATH && %s", dir, BIN_DIR, command);
    if (rc)
        printf("  %s: exit %d: %.600s\n", command, rc, text_read(log));
    return rc == 0;
}

/* Did the last command say so? */
static bool
said(const char *what)
{
    char *text = text_read(fmt("%s/log", dir));
    bool found = text && strstr(text, what);
    free(text);
    return found;
}

/* Loss of the last evaluation in folder/log.jsonl. */
static double
eval_loss(const char *folder)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s/log.jsonl", dir, folder);
    char *text = text_read(path), *at = NULL;
    for (char *s = text; s && (s = strstr(s, "\"eval_loss\":")); s++)
        at = s;
    double loss = at ? atof(at + strlen("\"eval_loss\":")) : NAN;
    free(text);
    return loss;
}

static bool
near(double a, double b)
{
    return fabs(a - b) <= 1e-5 * fmax(1, fabs(b)); /* not for NaN */
}

/* ---- against PEFT ---- */

static void
check_merged(const char *adapter, const char *name)
{
    open_case("export_peft", name);
    DO("efficc export --adapter %s/%s %s --safetensors -o m.safetensors", ADAPTERS,
       adapter, model);
    tensors got = tensors_read(fmt("%s/m.safetensors", dir));
    tensors want = tensors_read(fmt("%s/%s.safetensors", ADAPTERS, adapter));
    CHECK(got.n > 20 && want.n > 0);
    for (int i = 0; i < want.n; i++) {
        const tensor *t = tensors_get(&got, want.at[i].name);
        if (!strcmp(want.at[i].name, "lm_head.weight")) { /* tied: once, as wte */
            CHECK(!t);
            continue;
        }
        NEED(t != NULL);
        CHECK(tensor_distance(t, &want.at[i], 1) <= 1e-6 * tensor_max(&want.at[i]));
    }
    tensors_free(&got);
    tensors_free(&want);
}

TEST(weights_are_those_that_peft_merges)
{
    check_merged("bert-patterns", "bert-legacy17");
    check_merged("gpt2-conv1d", "gpt2-legacy17");
    check_merged("gpt2-table", "gpt2-legacy17");
    check_merged("gpt2-tied", "gpt2-legacy17");
    check_merged("bert-patterns", "bert-legacy14");
}

/* ---- against the trainer ---- */

/* Trains adapters, evaluates them, merges them, compiles the merged model and evaluates it. */
static void
check_trained(const char *name, const char *flags, const char *lora)
{
    open_case("export_trained", name);
    DO("efficc %s %s %s %s -o lora", model, flags, lora, QUICK);
    DO("lora/trainer --train-data data.jsonl --max-steps 6 --learning-rate 1e-2 "
       "--output-dir "
       "ad --save-strategy no");
    DO("lora/trainer --init-adapter ad --eval-data data.jsonl --output-dir with");
    DO("efficc export --adapter ad %s -o merged.onnx", model);
    DO("efficc merged.onnx --batch %s %s -o merged", flags + strlen("--batch "), QUICK);
    DO("merged/trainer --eval-data data.jsonl --output-dir in");
    DO("lora/trainer --eval-data data.jsonl --output-dir without");
    CHECK(near(eval_loss("in"), eval_loss("with")));
    CHECK(!near(eval_loss("without"), eval_loss("with")));
}

TEST(row_ranges)
{
    check_trained("gpt2-legacy17", "--batch 2 --seq 16", "--lora-r 4");
}

TEST(fused_module)
{
    check_trained("gpt2-legacy17", "--batch 2 --seq 16",
                  "--lora-r 4 --lora-targets c_attn");
}

TEST(all_linear_and_a_classifier)
{
    check_trained("bert-legacy17", "--batch 3 --seq 20",
                  "--lora-targets all-linear --lora-scale 'alpha/sqrt(r)'");
}

/* The head is in no model file; how it pools stands in head.safetensors. */
TEST(a_head_goes_into_the_model)
{
    check_trained("minilm-legacy17", "--batch 3 --seq 20",
                  "--lora-r 4 --task seq-cls --num-labels 3 --pool mean");
}

/* ---- --weights ---- */

TEST(trained_tensors)
{
    open_case("export_tensors", "gpt2-legacy17");
    DO("efficc %s --batch 2 --seq 16 %s -o full", model, QUICK);
    DO("full/trainer --train-data data.jsonl --max-steps 2 --learning-rate 1e-3 "
       "--output-dir "
       "res --save-steps 2");
    DO("efficc export --weights res/model.safetensors %s -o a.onnx && cmp a.onnx "
       "res/model.onnx",
       model);
    DO("efficc export --weights res/checkpoint-2 %s -o b.onnx && cmp b.onnx "
       "res/model.onnx",
       model);
    DO("efficc export --safetensors res/model.onnx -o c.safetensors && cmp "
       "c.safetensors "
       "res/model.safetensors");
}

TEST(weights_that_are_not_finite_are_told)
{
    open_case("export_odd", "gpt2-legacy17");
    DO("efficc export --safetensors %s -o w.safetensors", model);
    FILE *f = fopen(fmt("%s/w.safetensors", dir), "r+b");
    NEED(f && !fseek(f, -4, SEEK_END));
    fwrite("\0\0\xc0\x7f", 1, 4, f); /* NaN */
    fclose(f);
    DO("efficc export --weights w.safetensors %s -o w.onnx 2>said && grep -q 'warning: "
       ".* "
       "has 1 elements of .* infinite or no number.*W0404' said && test $(wc -l <said) "
       "= 1",
       model);
}

TEST(weights_beside_the_model)
{
    open_case("export_beside", "bert-legacy17");
    DO("efficc export --adapter %s/bert-patterns %s -o m.onnx", ADAPTERS, model);
    DO("efficc export --adapter %s/bert-patterns %s -o n.onnx --external-data && test "
       "-s "
       "n.onnx.data",
       ADAPTERS, model);
    /* both models hold the same weights */
    DO("efficc export --safetensors m.onnx -o m.safetensors && efficc export "
       "--safetensors "
       "n.onnx -o n.safetensors && cmp m.safetensors n.safetensors");
    CHECK(run(fmt("%s/log", dir),
              "cd '%s' && %s/efficc export --adapter %s/bert-patterns %s -o n.onnx "
              "--external-data",
              dir, BIN_DIR, ADAPTERS, model) == 1);
    CHECK(said("n.onnx.data exists"));
}

/* ---- what is refused ---- */

static void
refused(const char *args, const char *why)
{
    char log[600];
    snprintf(log, sizeof log, "%s/log", dir);
    int rc = run(log, "cd '%s' && %s/efficc export %s", dir, BIN_DIR, args);
    bool ok = rc == 1 && said(why);
    if (!ok) {
        char *text = text_read(log);
        printf("  export %s: exit %d, not '%s': %.400s\n", args, rc, why, text);
        free(text);
    }
    CHECK(ok);
    CHECK(access(fmt("%s/out.onnx", dir), F_OK) != 0 &&
          access(fmt("%s/out.onnx.tmp", dir), F_OK) != 0);
}

TEST(refusals)
{
    open_case("export_refused", "gpt2-legacy17");
    char own[700];
    snprintf(own, sizeof own, "cp '%s' own.onnx && cp -r '%s/gpt2-conv1d' ad", model,
             ADAPTERS);
    DO("%s", own);
#define OUT " own.onnx -o out.onnx"
    refused("own.onnx -o out.onnx", "nothing to do");
    refused("--adapter ad own.onnx", "no file to write");
    refused("--adapter ad --weights x" OUT, "exclude each other");
    refused("--adapter none" OUT, "No such file");
    refused("--adapter ad own.onnx -o own.onnx", "is read");
    refused("--adapter ad own.onnx -o .", "is a folder");
    refused("--adapter ad own.onnx -o none/out.onnx", "No such file");
    refused("--adaptor ad" OUT, "did you mean --adapter?");
    refused("--adapter ad own.onnx two.onnx -o out.onnx", "one operand too many");
    refused("-o out.onnx", "no file given");
    refused("--weights own.onnx" OUT, "not a safetensors file");
    refused("--weights ad/adapter_model.safetensors" OUT, "the model has no weight");
    refused("--weights ad" OUT, "manifest");
    char args[800];
    snprintf(args, sizeof args, "--adapter %s/gpt2-untied" OUT, ADAPTERS);
    refused(args, "is tied to another layer");
    snprintf(args, sizeof args, "--adapter %s/bert-patterns" OUT, ADAPTERS);
    refused(args, "of which the model has no weight");
    CHECK(!said("nearest"));
    DO("sed -i 's/\"use_dora\": false/\"use_dora\": true/' ad/adapter_config.json");
    refused("--adapter ad" OUT, "use_dora is not supported");
    DO("sed -i 's/\"use_dora\": true/\"use_dora\": false/; s/\"r\": 3/\"r\": 5/' "
       "ad/adapter_config.json");
    refused("--adapter ad" OUT, "says rank 5");
    DO("mv ad/adapter_model.safetensors ad/adapter_model.bin");
    refused("--adapter ad" OUT, "which only Python can read");
}

/* The adapter of a trainer knows which weights it belongs to. */
TEST(another_base)
{
    open_case("export_base", "gpt2-legacy17");
    DO("efficc %s --batch 2 --seq 16 --lora-r 2 %s -o lora", model, QUICK);
    DO("lora/trainer --train-data data.jsonl --max-steps 1 --output-dir ad "
       "--save-strategy no");
    DO("efficc export --adapter ad %s -o once.onnx", model);
    DO("cp once.onnx own.onnx");
    refused("--adapter ad own.onnx -o out.onnx", "trained on other base weights");
    DO("efficc export --adapter ad own.onnx -o twice.onnx --any-base");
    DO("efficc once.onnx --batch 2 --seq 16 --lora-r 2 %s -o other", QUICK);
    CHECK(run(fmt("%s/log", dir),
              "cd '%s' && other/trainer --init-adapter ad --eval-data "
              "data.jsonl --output-dir ev",
              dir) == 1);
    char *log = text_read(fmt("%s/log", dir));
    CHECK(log && strstr(log, "trained on other base weights"));
    free(log);
}
