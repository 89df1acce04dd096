/* --on-nonfinite with the toy program: what is named, what goes on, what stays untouched. */
#include "test.h"

#include "host_toy.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>
#include <unistd.h>

static const float bias0[3] = {0.01f, -0.02f, 0.03f};

typedef struct start { /* what the weights are at first */
    float fc;          /* of the layer: about this size */
    int at;            /* but for this element of it, */
    float odd;         /* which is this; at < 0: none */
    float far;         /* embedding of id 7, which row 3 alone has */
} start;

static const char *
program_folder(start s)
{
    float emb[32], fc[12];
    for (int i = 0; i < 32; i++)
        emb[i] = i < 28 ? 0.1f * (float)(i % 7) - 0.3f : s.far;
    for (int i = 0; i < 12; i++)
        fc[i] = i == s.at ? s.odd : s.fc * (0.1f * (float)(i % 5) - 0.2f);
    mkdir(toy_path("prog"), 0777);
    rt_st_out t[] = {{"emb.weight", 2, {8, 4}, emb, false, NULL},
                     {"fc.weight", 2, {4, 3}, fc, false, NULL},
                     {"fc.bias", 1, {3}, bias0, false, NULL}};
    NEED(toy_base(toy_path("prog/base.safetensors"), t, 3) == RT_OK);
    toy_write("prog/template.onnx", "0123456789");
    toy_write("prog/template.json", "{\"size\": 10, \"holes\": []}");
    return toy_path("prog");
}

static const char *
rows(int n)
{
    static const char *const line[] = {"{\"input_ids\": [1,2,3], \"labels\": 0}\n",
                                       "{\"input_ids\": [4,5], \"labels\": 1}\n",
                                       "{\"input_ids\": [7], \"labels\": 2}\n",
                                       "{\"input_ids\": [2,2], \"labels\": 1}\n"};
    char text[512] = "";
    for (int i = 0; i < n; i++)
        strcat(text, line[i]);
    return toy_write(n == 4 ? "four.jsonl" : "two.jsonl", text);
}

static int
run_words(start s, int n, char **words)
{
    char *all[48] = {"--shuffle",           "false",    "--logging-steps",       "1",
                     "--lr-scheduler-type", "constant", "--overwrite-output-dir"};
    memcpy(all + 7, words, (size_t)n * sizeof *words);
    rt_program p = toy_program();
    return toy_run(&p, program_folder(s), n + 7, all);
}
#define RUN(start, ...) run_words(start, TOY_WORDS(__VA_ARGS__))
#define DATA(n)         "--train-data", (char *)rows(n)
#define INTO(name)      "--output-dir", (char *)toy_path(name)

static const start good = {1, -1, 0, 0.5f};

/* A value of the log's row of a step; NaN: null or not there. */
static double
logged(const char *dir, int step, const char *key)
{
    char path[128];
    int err;
    double x = NAN;
    snprintf(path, sizeof path, "%s/log.jsonl", dir);
    char *text = rt_read_text(toy_path(path), 1 << 20, &err);
    for (char *line = text; line && *line; line = strchr(line, '\n') + 1) {
        cJSON *row = cJSON_ParseWithOpts(line, NULL, false);
        cJSON *at = cJSON_GetObjectItemCaseSensitive(row, "step");
        cJSON *v = cJSON_GetObjectItemCaseSensitive(row, key);
        if (cJSON_IsNumber(at) && at->valuedouble == step && cJSON_IsNumber(v))
            x = v->valuedouble;
        cJSON_Delete(row);
    }
    free(text);
    return x;
}

TEST(a_weight_that_was_never_good_is_named)
{
    start s = {1, 5, INFINITY, 0.5f};
    CHECK(RUN(s, DATA(4), "--max-steps", "4", INTO("weight")) == RT_USER);
    TOY_HEARD("step 1: the loss is not finite (learning rate 5e-05)");
    TOY_HEARD(
        "first result that is not finite: head forward, %loss = ce_grad (loss), in "
        "one loop with linear (/fc/MatMul): inf\n");
    TOY_HEARD("its operand $fc.weight is not finite itself: 1 of 12 values, the first "
              "(inf) at [1,2]; it was loaded like that");
    TOY_HEARD("rows 1, 2 of /tmp/");
    TOY_HEARD("mend the weights that the run starts from");
    CHECK(access(toy_path("weight/model.onnx"), F_OK));
    /* no step will ever be good */
    CHECK(RUN(s, DATA(4), "--max-steps", "4", "--on-nonfinite", "skip",
              INTO("weight")) == RT_USER);
    TOY_HEARD("step 1: the loss is not finite");
}

TEST(an_evaluation_that_is_not_finite_warns)
{
    start s[2] = {{1, 5, INFINITY, 0.5f}, good};
    rt_program p = toy_program();
    for (int k = 0; k < 2; k++) {
        const char *dir = program_folder(s[k]);
        char *argv[] = {"trainer", "--eval-data", (char *)rows(4)};
        toy_listen();
        CHECK(rt_host_main(3, argv, &p, dir) == RT_OK);
        toy_heard();
        bool told =
            strstr(toy_said, "warning: the loss of the evaluation is not finite");
        CHECK(told == (k == 0));
    }
}

TEST(a_row_that_overflows_is_named)
{
    start s = {1, -1, 0, 1e30f};
    CHECK(RUN(s, DATA(4), "--max-steps", "9", "--gradient-accumulation-steps", "2",
              INTO("row")) == RT_USER);
    TOY_HEARD("step 1: the loss is not finite");
    TOY_HEARD("its operands are finite, of size up to 1e+30 in $emb.weight");
    TOY_HEARD("micro-batch 2 of 2, rows 3, 4 of ");
    TOY_HEARD("four.jsonl\n");
    TOY_HEARD("lower --learning-rate, warm up, or clip");
}

TEST(the_newest_checkpoint_is_named)
{
    start s = {1, -1, 0, 1e30f};
    CHECK(RUN(s, DATA(4), "--max-steps", "9", "--save-steps", "1", INTO("saved")) ==
          RT_USER);
    TOY_HEARD("step 2: the loss is not finite");
    TOY_HEARD("saved/checkpoint-1; --resume-from-checkpoint goes on from it; lower "
              "--learning-rate");
    CHECK(!access(toy_path("saved/checkpoint-1/manifest.json"), R_OK));
}

/* What is skipped leaves no trace: as if its rows had not been there. */
TEST(a_skipped_step_changes_nothing)
{
    start s = {1, -1, 0, 1e30f};
    CHECK(RUN(s, DATA(4), "--max-steps", "6", "--on-nonfinite", "skip",
              "--learning-rate", "1e-2", INTO("skip")) == RT_OK);
    TOY_HEARD("step 2: the loss is not finite; first: head forward, %loss = ce_grad");
    TOY_HEARD("rows 3, 4 of ");
    TOY_HEARD("step 6: the loss is not finite");
    CHECK(!strstr(toy_said, "step 3: "));
    CHECK(RUN(s, DATA(2), "--max-steps", "3", "--learning-rate", "1e-2",
              INTO("without")) == RT_OK);
    for (int step = 1; step <= 3; step++) {
        CHECK(logged("skip", 2 * step - 1, "loss") == logged("without", step, "loss"));
        CHECK(logged("skip", 2 * step - 1, "grad_norm") ==
              logged("without", step, "grad_norm"));
        CHECK(isnan(logged("skip", 2 * step, "loss")));
    }
}

TEST(an_update_too_far_is_named)
{
    CHECK(RUN(good, DATA(4), "--max-steps", "50", "--learning-rate", "1e9", "--optim",
              "sgd", "--max-grad-norm", "0", INTO("far")) == RT_USER);
    TOY_HEARD("the loss is not finite (learning rate 1e+09)");
    TOY_HEARD("its operands are finite, of size up to ");
    CHECK(!strstr(toy_said, "mend the weights"));
}

/* Logits are 0, whatever the embedding; the gradient of the layer is as large as that. */
TEST(a_norm_that_overflows_alone_is_said)
{
    start s = {0, -1, 0, 1e25f};
    CHECK(RUN(s, DATA(4), "--max-steps", "4", "--learning-rate", "0", INTO("norm")) ==
          RT_USER);
    TOY_HEARD("step 2: the gradient norm is not finite");
    TOY_HEARD("all results are finite, but not the sum of the gradients' squares: the "
              "largest gradient is ");
    TOY_HEARD("e+24, of $fc.weight");
    CHECK(RUN(s, DATA(4), "--max-steps", "4", "--on-nonfinite", "skip",
              "--learning-rate", "0", INTO("norm")) == RT_OK);
    TOY_HEARD("step 4: the gradient norm is not finite; all results are finite");
}

/* Where nothing goes wrong, skip is stop. */
TEST(a_finite_run_is_the_same_either_way)
{
    static const char *const how[] = {"stop", "skip"};
    for (int i = 0; i < 2; i++)
        CHECK(RUN(good, DATA(4), "--max-steps", "8", "--on-nonfinite", (char *)how[i],
                  INTO((char *)how[i])) == RT_OK);
    for (int step = 1; step <= 8; step++)
        CHECK(logged("stop", step, "loss") > 0 &&
              logged("stop", step, "loss") == logged("skip", step, "loss"));
}
