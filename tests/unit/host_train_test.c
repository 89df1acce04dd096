/* Whole runs of the trainer with the toy program: loss, log, results, predictions, and what
 * stops it. */
#include "test.h"

#include "host_toy.h"
#include "runtime/host/checkpoint_int.h"

#include <cjson/cJSON.h>
#include <signal.h>
#include <sys/stat.h>

static const float emb0[32] = {0.1f,  -0.2f, 0.3f,  0.4f,  -0.5f, 0.6f,  0.7f, -0.8f,
                               0.9f,  1.0f,  -1.1f, 0.2f,  0.3f,  -0.4f, 0.5f, 0.6f,
                               -0.7f, 0.8f,  0.9f,  -1.0f, 0.1f,  0.2f,  0.3f, 0.4f,
                               0.5f,  -0.6f, 0.7f,  0.8f,  -0.9f, 1.0f,  0.1f, -0.2f};
static const float fc0[12] = {0.3f, -0.1f, 0.2f, 0.5f,  0.4f,  -0.3f,
                              0.1f, 0.2f,  0.6f, -0.2f, -0.5f, 0.7f};
static const float bias0[3] = {0.01f, -0.02f, 0.03f};

/* The folder that efficc would have made: weights, and a template of 10 bytes around two
 * holes, the second for the transpose of the layer's weight. */
static const char *
program_folder(void)
{
    mkdir(toy_path("prog"), 0777);
    rt_st_out t[] = {{"emb.weight", 2, {8, 4}, emb0, false, NULL},
                     {"fc.weight", 2, {4, 3}, fc0, false, NULL},
                     {"fc.bias", 1, {3}, bias0, false, NULL}};
    NEED(toy_base(toy_path("prog/base.safetensors"), t, 3) == RT_OK);
    toy_write("prog/template.onnx", "0123456789");
    toy_write("prog/template.json",
              "{\"size\": 70, \"holes\": [{\"at\": 4, \"bytes\": 12, \"tensor\": "
              "\"fc.bias\", "
              "\"transposed\": false, \"dtype\": \"f32\"}, {\"at\": 18, \"bytes\": 48, "
              "\"tensor\": \"fc.weight\", \"transposed\": true, \"dtype\": \"f32\"}]}");
    return toy_path("prog");
}

static const char *
train_rows(void)
{
    return toy_write("train.jsonl",
                     "{\"input_ids\": [1,2,3], \"labels\": 0}\n"
                     "{\"input_ids\": [4,5], \"labels\": 1}\n"
                     "{\"input_ids\": [6], \"labels\": 2}\n"
                     "{\"input_ids\": [7,0,1,2], \"attention_mask\": [1,1,1,0], "
                     "\"labels\": 1}\n"
                     "{\"input_ids\": [2,2], \"labels\": -100}\n");
}

static int
run_words(int n, char **words)
{
    rt_program p = toy_program();
    return toy_run(&p, program_folder(), n, words);
}
#define RUN(...) run_words(TOY_WORDS(__VA_ARGS__))
#define COMMON                                                                     \
    "--train-data", (char *)train_rows(), "--shuffle", "false", "--logging-steps", \
        "1", "--learning-rate", "1e-2", "--lr-scheduler-type", "constant"

/* Row i of the log (from 0); NULL: none. Delete it. */
static cJSON *
log_row(const char *dir, int i)
{
    char path[128];
    int err;
    snprintf(path, sizeof path, "%s/log.jsonl", dir);
    char *text = rt_read_text(toy_path(path), 1 << 20, &err), *line = text;
    for (; line && *line && i; i--)
        line = strchr(line, '\n') + 1;
    cJSON *row = line && *line ? cJSON_ParseWithOpts(line, NULL, false) : NULL;
    free(text);
    return row;
}

static double
logged(const char *dir, int i, const char *key)
{
    cJSON *row = log_row(dir, i);
    cJSON *item = cJSON_GetObjectItemCaseSensitive(row, key);
    double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    cJSON_Delete(row);
    return x;
}

/* Mean cross entropy of the rows with the first weights, in double. */
static double
first_loss(int from, int to)
{
    static const int ids[5][4] = {{1, 2, 3}, {4, 5}, {6}, {7, 0, 1}, {2, 2}};
    static const int length[5] = {3, 2, 1, 3, 2}, label[5] = {0, 1, 2, 1, -100};
    double loss = 0, n = 0;
    for (int b = from; b < to; b++) {
        double z[3], sum = 0;
        for (int c = 0; c < 3; c++) {
            z[c] = bias0[c];
            for (int s = 0; s < length[b]; s++)
                for (int k = 0; k < 4; k++)
                    z[c] +=
                        (double)emb0[ids[b][s] * 4 + k] * fc0[k * 3 + c] / length[b];
            sum += exp(z[c]);
        }
        if (label[b] >= 0)
            loss += log(sum) - z[label[b]], n++;
    }
    return loss / n;
}

TEST(a_run_logs_and_learns)
{
    CHECK(RUN(COMMON, "--max-steps", "60", "--output-dir", (char *)toy_path("run")) ==
          0);
    CHECK_NEAR(logged("run", 0, "loss"), first_loss(0, 2), 1e-6);
    CHECK(logged("run", 0, "step") == 1 && logged("run", 59, "step") == 60);
    CHECK(logged("run", 0, "learning_rate") == 1e-2);
    CHECK(logged("run", 0, "supervised_tokens") == 2);
    CHECK(logged("run", 0, "grad_norm") > 0 && logged("run", 0, "seconds") >= 0);
    CHECK(logged("run", 0, "tokens_per_second") > 0);
    CHECK(logged("run", 57, "loss") < 0.5 * logged("run", 0, "loss"));
    CHECK(logged("run", 60, "peak_rss_bytes") > 1e6);
    CHECK(logged("run", 60, "planned_bytes") > 1024);
    CHECK(logged("run", 60, "total_seconds") > 0);
    CHECK(!log_row("run", 61));
    /* a pipe gets plain lines */
    TOY_HEARD("step 59/60  loss ");
    CHECK(!strchr(toy_said, '\r') && !strchr(toy_said, 033));
    TOY_HEARD("attention_mask: not in 4 of 5 rows");
}

TEST(an_unsupervised_step_is_skipped)
{
    CHECK(RUN(COMMON, "--max-steps", "3", "--output-dir", (char *)toy_path("skip")) ==
          0);
    TOY_HEARD("step 3 has no supervised token and is skipped");
    TOY_HEARD("step 3/3  skipped  lr ");
    CHECK(!strstr(toy_said, "nan"));
    cJSON *row = log_row("skip", 2);
    CHECK(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(row, "loss")));
    CHECK(logged("skip", 2, "supervised_tokens") == 0);
    cJSON_Delete(row);
}

/* As under `trainer .. | head -1`: the report ends, the training does not. */
TEST(a_reader_that_leaves_does_not_end_the_run)
{
    char *argv[] = {"trainer", COMMON,         "--max-steps",
                    "5",       "--output-dir", (char *)toy_path("left")};
    rt_program p = toy_program();
    const char *dir = program_folder();
    int end[2];
    NEED(!pipe(end) && !close(end[0]));
    signal(SIGPIPE, SIG_DFL);
    FILE *report = rt_out;
    rt_out = fdopen(end[1], "w");
    NEED(rt_out != NULL);
    CHECK(rt_host_main(sizeof argv / sizeof *argv, argv, &p, dir) == 0);
    fclose(rt_out);
    rt_out = report;
    CHECK(logged("left", 4, "step") == 5 && logged("left", 5, "peak_rss_bytes") > 0);
    CHECK(!access(toy_path("left/model.onnx"), R_OK));
}

TEST(accumulation_is_one_mean_over_the_step)
{
    /* an epoch is 3 micro-batches; the second step of an epoch has only the last */
    CHECK(RUN(COMMON, "--max-steps", "1", "--gradient-accumulation-steps", "3",
              "--output-dir", (char *)toy_path("accum")) == 0);
    CHECK_NEAR(logged("accum", 0, "loss"), first_loss(0, 5), 1e-6);
    CHECK(logged("accum", 0, "supervised_tokens") == 4);
    TOY_HEARD("1 of 6 rows (1 an epoch): 3 micro-batches of 2");
    CHECK(!strstr(toy_said, "an epoch has"));
    CHECK(RUN(COMMON, "--max-steps", "1", "--gradient-accumulation-steps", "1000000000",
              "--output-dir", (char *)toy_path("more")) == 0);
    CHECK_NEAR(logged("more", 0, "loss"), first_loss(0, 5), 1e-6);
    TOY_HEARD("an epoch has 5 rows, and a step ends with it: all have fewer");
}

TEST(a_place_for_gradients_that_can_not_be_is_found_before_the_first_step)
{
    CHECK(RUN(COMMON, "--max-steps", "1", "--save-gradients",
              (char *)toy_path("none/grads"), "--output-dir",
              (char *)toy_path("early")) == 1);
    TOY_HEARD("none/grads: cannot be written: No such file");
    CHECK(access(toy_path("early/log.jsonl"), F_OK));
}

TEST(gradients_are_those_of_the_loss)
{
    CHECK(RUN(COMMON, "--max-steps", "1", "--gradient-accumulation-steps", "2",
              "--save-gradients", (char *)toy_path("grads"), "--output-dir",
              (char *)toy_path("grad")) == 0);
    rt_st st;
    float w[12];
    NEED(rt_st_open(&st, toy_path("grads")) == RT_OK);
    CHECK(st.n == 3);
    const rt_st_tensor *t = rt_st_find(&st, "onnx::MatMul_7"); /* the file's layout */
    NEED(t && t->dim[0] == 4 && t->dim[1] == 3);
    NEED(rt_st_read_f32(&st, t, w) == RT_OK);
    double square = 0;
    for (int i = 0; i < st.n; i++) {
        float g[32];
        rt_st_read_f32(&st, &st.tensor[i], g);
        for (int64_t k = 0; k < st.tensor[i].count; k++)
            square += (double)g[k] * g[k];
    }
    CHECK_NEAR(sqrt(square), logged("grad", 0, "grad_norm"), 1e-6);
    /* central difference of the loss in fc.weight[1,2], through --init-tensors */
    float loss[2];
    for (int side = 0; side < 2; side++) {
        float moved[12];
        memcpy(moved, fc0, sizeof moved);
        moved[5] += side ? 0.05f : -0.05f;
        rt_st_out one = {"onnx::MatMul_7", 2, {4, 3}, moved, false, NULL};
        rt_st_write(toy_path("moved"), &one, 1, false);
        CHECK(RUN(COMMON, "--max-steps", "1", "--gradient-accumulation-steps", "2",
                  "--init-tensors", (char *)toy_path("moved"), "--overwrite-output-dir",
                  "--output-dir", (char *)toy_path("grad")) == 0);
        loss[side] = (float)logged("grad", 0, "loss");
    }
    CHECK_NEAR(w[5], (loss[1] - loss[0]) / 0.1, 1e-4);
    rt_st_close(&st);
}

TEST(results_are_a_model_for_onnx_and_one_for_pytorch)
{
    CHECK(RUN(COMMON, "--max-steps", "2", "--output-dir", (char *)toy_path("full")) ==
          0);
    rt_st st;
    float w[12], b[3];
    NEED(rt_st_open(&st, toy_path("full/model.safetensors")) == RT_OK);
    CHECK(st.torch && st.n == 3);
    const rt_st_tensor *t = rt_st_find(&st, "fc.weight"); /* PyTorch's layout */
    NEED(t && t->dim[0] == 3 && t->dim[1] == 4);
    NEED(rt_st_read_f32(&st, t, w) == RT_OK);
    NEED(rt_st_read_f32(&st, rt_st_find(&st, "fc.bias"), b) == RT_OK);
    CHECK(b[0] != bias0[0]);
    char file[80];
    FILE *f = fopen(toy_path("full/model.onnx"), "rb");
    NEED(f && fread(file, 1, sizeof file, f) == 70);
    fclose(f);
    CHECK(!memcmp(file, "0123", 4) && !memcmp(file + 16, "45", 2) &&
          !memcmp(file + 66, "6789", 4));
    CHECK(!memcmp(file + 4, b, sizeof b) && !memcmp(file + 18, w, sizeof w));
    rt_st_close(&st);
}

TEST(a_folder_of_tensors_is_a_checkpoint)
{
    char *folder = (char *)toy_path("folder"), *train = (char *)train_rows();
    mkdir(folder, 0777);
    CHECK(RUN("--eval-data", train, "--init-tensors", folder) == RT_USER);
    TOY_HEARD("the folder is no checkpoint: it has no weights.safetensors");
    TOY_HEARD("give a safetensors file, or a folder checkpoint-<step>");
    mkdir(toy_path("folder/checkpoint-7"), 0777);
    CHECK(RUN("--eval-data", train, "--init-tensors", folder) == RT_USER);
    TOY_HEARD("give a checkpoint in it, such as ");
    TOY_HEARD("folder/checkpoint-7");
    toy_write("folder/adapter_config.json", "{}");
    CHECK(RUN("--eval-data", train, "--init-tensors", folder) == RT_USER);
    TOY_HEARD("an adapter is given by --init-adapter");
    toy_write("folder/model.safetensors", "");
    CHECK(RUN("--eval-data", train, "--init-tensors", folder) == RT_USER);
    TOY_HEARD("folder/model.safetensors");
}

TEST(training_goes_on_from_saved_tensors)
{
    CHECK(RUN(COMMON, "--max-steps", "2", "--output-dir", (char *)toy_path("first")) ==
          0);
    CHECK(RUN(COMMON, "--max-steps", "1", "--init-tensors",
              (char *)toy_path("first/model.safetensors"), "--output-dir",
              (char *)toy_path("second")) == 0);
    CHECK(logged("second", 0, "loss") < logged("first", 0, "loss"));
    static const float x[2] = {0};
    rt_st_out none = {"fc.weigth", 1, {2}, x, false, NULL},
              bent = {"fc.bias", 1, {2}, x, false, NULL};
    rt_st_write(toy_path("none"), &none, 1, false);
    rt_st_write(toy_path("bent"), &bent, 1, false);
    CHECK(RUN(COMMON, "--init-tensors", (char *)toy_path("none"), "--output-dir",
              (char *)toy_path("none_out")) == RT_USER);
    TOY_HEARD("has no tensor 'fc.weigth'");
    TOY_HEARD("the nearest name is 'fc.weight'");
    CHECK(RUN(COMMON, "--init-tensors", (char *)toy_path("bent"), "--output-dir",
              (char *)toy_path("bent_out")) == RT_USER);
    TOY_HEARD("'fc.bias' is [2], but the program has [3]");
    rt_st_out far = {"decoder.block.7", 1, {2}, x, false, NULL};
    rt_st_write(toy_path("far"), &far, 1, false);
    CHECK(RUN(COMMON, "--init-tensors", (char *)toy_path("far"), "--output-dir",
              (char *)toy_path("far_out")) == RT_USER);
    TOY_HEARD("has no tensor 'decoder.block.7'");
    CHECK(!strstr(toy_said, "nearest"));
}

TEST(evaluation_and_predictions)
{
    const char *eval =
        toy_write("eval.jsonl", "{\"input_ids\": [1,2,3], \"labels\": 0}\n"
                                "{\"input_ids\": [4,5], \"labels\": 1}\n"
                                "{\"input_ids\": [6], \"labels\": 2}\n");
    CHECK(RUN("--eval-data", (char *)eval, "--output-dir", (char *)toy_path("eval")) ==
          0);
    CHECK_NEAR(logged("eval", 0, "eval_loss"), first_loss(0, 3), 1e-6);
    CHECK(logged("eval", 0, "step") == 0);
    CHECK(RUN(COMMON, "--eval-data", (char *)eval, "--eval-steps", "40", "--max-steps",
              "60", "--predict", (char *)eval, "--output-dir",
              (char *)toy_path("pred")) == 0);
    CHECK(logged("pred", 40, "step") == 40 && logged("pred", 40, "eval_accuracy") == 1);
    CHECK(logged("pred", 61, "step") == 60 && logged("pred", 61, "eval_loss") < 0.5);
    int err;
    char *text = rt_read_text(toy_path("pred/predictions.jsonl"), 1 << 20, &err);
    NEED(text != NULL);
    int label = 0;
    for (char *line = text; *line; line = strchr(line, '\n') + 1, label++) {
        cJSON *row = cJSON_ParseWithOpts(line, NULL, false);
        cJSON *p = cJSON_GetObjectItemCaseSensitive(row, "probabilities");
        CHECK(cJSON_GetObjectItemCaseSensitive(row, "label")->valueint == label);
        NEED(cJSON_GetArraySize(p) == 3);
        double sum = 0;
        for (int c = 0; c < 3; c++)
            sum += cJSON_GetArrayItem(p, c)->valuedouble;
        CHECK_NEAR(sum, 1, 1e-5);
        cJSON_Delete(row);
    }
    CHECK(label == 3);
    free(text);
}

/* Predictions of models with an answer a token: eval() only leaves a pattern. */
static rt_input token_input[] = {
    {"input_ids", RT_IDS, 2, {TOY_B, TOY_S}, true, TOY_V, RT_FIXED},
    {"targets", RT_TARGETS, 2, {TOY_B, TOY_S}, true, 0, RT_FIXED},
    {"scale", RT_SCALE, 0, {0}, true, 0, RT_FIXED},
};

static void
token_eval(rt_run *r)
{
    const int64_t *ids = r->input[0], *targets = r->input[1];
    for (int i = 0; i < TOY_B * TOY_S; i++)
        if (r->program->labels)
            for (int c = 0; c < TOY_C; c++)
                ((float *)(r->arena + TOY_PROB))[i * TOY_C + c] =
                    c == ids[i] % TOY_C ? 0.5f : 0.25f;
        else
            ((int64_t *)(r->arena + TOY_PROB))[i] = targets[i] < 0 ? -1 : ids[i] + 100;
}

static char *
predict_tokens(const char *task)
{
    rt_program p = toy_program();
    p.task = task;
    p.input = token_input;
    p.ninput = 3;
    p.eval = token_eval;
    if (strcmp(task, "token-cls")) {
        p.labels = 0;
        p.eval_prob_at = -1;
        p.eval_pred_at = TOY_PROB;
    }
    const char *rows = toy_write("tokens.jsonl", "{\"input_ids\": [1,2,3]}\n"
                                                 "{\"input_ids\": [4]}\n"
                                                 "{\"input_ids\": [5,6]}\n");
    char *argv[] = {"trainer",
                    "--predict",
                    (char *)rows,
                    "--output-dir",
                    (char *)toy_path("tokens"),
                    "--overwrite-output-dir"};
    int err;
    toy_listen();
    CHECK(rt_host_main(6, argv, &p, program_folder()) == 0);
    toy_heard();
    return rt_read_text(toy_path("tokens/predictions.jsonl"), 1 << 20, &err);
}

TEST(predictions_a_token)
{
    char *text = predict_tokens("token-cls");
    NEED(text != NULL);
    CHECK_STR(text,
              "{\"label\": [1, 2, 0], \"probabilities\": [[0.25, 0.5, 0.25], [0.25, "
              "0.25, 0.5], [0.5, 0.25, 0.25]]}\n"
              "{\"label\": [1], \"probabilities\": [[0.25, 0.5, 0.25]]}\n"
              "{\"label\": [2, 0], \"probabilities\": [[0.25, 0.25, 0.5], [0.5, 0.25, "
              "0.25]]}\n");
    free(text);
    text = predict_tokens("causal-lm");
    NEED(text != NULL);
    CHECK_STR(text, "{\"label\": [101, 102, 103], \"next\": 103}\n"
                    "{\"label\": [104], \"next\": 104}\n"
                    "{\"label\": [105, 106], \"next\": 106}\n");
    free(text);
}

TEST(a_loss_that_is_not_finite_stops_the_run)
{
    CHECK(RUN(COMMON, "--max-steps", "50", "--learning-rate", "1e9", "--optim", "sgd",
              "--max-grad-norm", "0", "--output-dir",
              (char *)toy_path("nan")) == RT_USER);
    TOY_HEARD("is not finite (learning rate 1e+09)");
    TOY_HEARD("nothing was saved");
    CHECK(access(toy_path("nan/model.onnx"), F_OK));
    /* what it left is in nobody's way */
    CHECK(!access(toy_path("nan/log.jsonl"), F_OK));
    CHECK(!access(toy_path("nan/report.html"), F_OK));
    toy_write("nan/mine", "mine");
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("nan")) ==
          1);
    TOY_HEARD("is not empty");
    CHECK(!unlink(toy_path("nan/mine")));
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("nan")) ==
          0);
}

TEST(gradients_replace_nothing_that_is_read)
{
    CHECK(RUN(COMMON, "--save-gradients", (char *)toy_path("train.jsonl"),
              "--output-dir", (char *)toy_path("grads_out")) == 1);
    TOY_HEARD("train.jsonl: the run reads this file");
    CHECK(RUN(COMMON, "--save-gradients", (char *)toy_path("prog/base.safetensors"),
              "--output-dir", (char *)toy_path("grads_out")) == 1);
    TOY_HEARD("base.safetensors: the run reads this file");
    CHECK(!mkfifo(toy_path("pipe"), 0600));
    CHECK(RUN(COMMON, "--save-gradients", (char *)toy_path("pipe"), "--output-dir",
              (char *)toy_path("grads_out")) == 1);
    TOY_HEARD("pipe is there and is not a file");
}

TEST(a_folder_with_files_is_kept)
{
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("kept")) ==
          0);
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("kept")) ==
          1);
    TOY_HEARD("is not empty");
    TOY_HEARD("--overwrite-output-dir");
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("kept"),
              "--overwrite-output-dir") == 0);
    CHECK(rt_folder_remove(toy_path("kept/checkpoint-1")));
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("kept"),
              "--resume-from-checkpoint") == 1);
    TOY_HEARD("holds the results of a finished run (model.onnx), and no checkpoint");
    CHECK(!strstr(toy_said, "starts at step 1"));
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("kept"),
              "--resume-from-checkpoint", "--overwrite-output-dir") == 0);
    CHECK(RUN(COMMON, "--output-dir", (char *)toy_path("kept"),
              "--resume-from-checkpoint", "nowhere") == 1);
    TOY_HEARD("--resume-from-checkpoint nowhere: No such file");
    CHECK(RUN(COMMON, "--output-dir", (char *)toy_path("train.jsonl")) == RT_USER);
    TOY_HEARD("Not a directory");
}

/* What a run left that was killed before its first checkpoint is no reason not to begin;
 * what a finished one left is. */
TEST(auto_starts_over_what_is_left_of_a_killed_run)
{
    mkdir(toy_path("killed"), 0777);
    mkdir(toy_path("killed/checkpoint-3"), 0777);
    toy_write("killed/log.jsonl", "{\"step\": 3, \"loss\": 1}\n{\"step\": 4, \"lo");
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("killed"),
              "--resume-from-checkpoint") == 0);
    TOY_HEARD("checkpoint-3 is passed over: manifest.json is missing");
    TOY_HEARD("no good checkpoint in");
    TOY_HEARD("starts at step 1");
    mkdir(toy_path("ended"), 0777);
    toy_write("ended/log.jsonl", "{\"step\": 3, \"loss\": 1}\n{\"end\": \"done\"}\n");
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("ended"),
              "--resume-from-checkpoint") == 1);
    TOY_HEARD("holds the results of a finished run (log.jsonl)");
}

/* Of a run that was killed before it had logged a step there is nothing to lose; of one that had,
 * and of a page whose log is lost, there is. */
TEST(an_empty_log_alone_is_no_reason_not_to_begin)
{
    mkdir(toy_path("blank"), 0777);
    toy_write("blank/log.jsonl", "");
    toy_write("blank/.lock", "run 0\n1 host\n");
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("blank")) ==
          0);
    mkdir(toy_path("rows"), 0777);
    toy_write("rows/log.jsonl", "{\"step\": 3, \"loss\": 1}\n");
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("rows")) ==
          1);
    TOY_HEARD("is not empty");
    mkdir(toy_path("page"), 0777);
    toy_write("page/log.jsonl", "");
    toy_write("page/report.html", "a user's");
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("page")) ==
          1);
    TOY_HEARD("is not empty");
    mkdir(toy_path("link"), 0777);
    NEED(!symlink(toy_path("page/log.jsonl"), toy_path("link/log.jsonl")));
    CHECK(RUN(COMMON, "--max-steps", "1", "--output-dir", (char *)toy_path("link")) ==
          1);
}

TEST(a_foreign_folder_is_refused)
{
    rt_program p = toy_program();
    char *argv[] = {"trainer", "--train-data", (char *)train_rows(), "--output-dir",
                    (char *)toy_path("foreign")};
    program_folder();
    rt_st_out t[] = {{"emb.weight", 2, {8, 4}, emb0, false, NULL}};
    toy_base(toy_path("prog/base.safetensors"), t, 1);
    toy_listen();
    CHECK(rt_host_main(5, argv, &p, toy_path("prog")) == RT_USER);
    toy_heard();
    TOY_HEARD("does not hold 'fc.weight'");
    unlink(toy_path("prog/base.safetensors"));
    toy_listen();
    CHECK(rt_host_main(5, argv, &p, toy_path("prog")) == RT_USER);
    toy_heard();
    TOY_HEARD("base.safetensors: No such file");
    TOY_HEARD("copy the whole folder, not the trainer alone");
    toy_write(
        "prog/template.json",
        "{\"size\": 70, \"holes\": [{\"at\": 4, \"bytes\": 12, \"tensor\": \"other\", "
        "\"dtype\": \"f32\"}]}");
    toy_listen();
    CHECK(rt_host_main(5, argv, &p, toy_path("prog")) == RT_USER);
    toy_heard();
    TOY_HEARD("the trainer has no 'other'; compile again");
    unlink(toy_path("prog/template.json"));
    toy_listen();
    CHECK(rt_host_main(5, argv, &p, toy_path("prog")) == RT_USER);
    toy_heard();
    TOY_HEARD("template.json: No such file");
    program_folder();
    toy_write("prog/template.onnx", "012345678");
    toy_listen();
    CHECK(rt_host_main(5, argv, &p, toy_path("prog")) == RT_USER);
    toy_heard();
    TOY_HEARD("template.onnx does not fit template.json");
    unlink(toy_path("prog/template.onnx"));
    toy_listen();
    CHECK(rt_host_main(5, argv, &p, toy_path("prog")) == RT_USER);
    toy_heard();
    TOY_HEARD("template.onnx: No such file");
    CHECK(access(toy_path("foreign/log.jsonl"), F_OK)); /* not one step was made */
    p.abi = RT_ABI + 1;
    toy_listen();
    CHECK(rt_host_main(5, argv, &p, toy_path("prog")) == RT_USER);
    toy_heard();
    TOY_HEARD("compile again");
}

TEST(too_large_a_model_is_left_to_export)
{
    rt_program p = toy_program();
    char *argv[] = {"trainer",
                    "--train-data",
                    (char *)train_rows(),
                    "--output-dir",
                    (char *)toy_path("large"),
                    "--max-steps",
                    "1"};
    program_folder();
    unlink(toy_path("prog/template.onnx"));
    toy_write("prog/template.json", "{\"size\": 1e10, \"export\": \"big/one.onnx\"}");
    toy_listen();
    CHECK(rt_host_main(7, argv, &p, toy_path("prog")) == RT_OK);
    toy_heard();
    TOY_HEARD("no model.onnx, for ONNX files end at 2 GB");
    TOY_HEARD("large/model.safetensors big/one.onnx -o ");
    CHECK(!access(toy_path("large/model.safetensors"), R_OK));
    CHECK(access(toy_path("large/model.onnx"), F_OK));
    program_folder();
}

/* Whatever bit of base.safetensors flips, the run ends; but for those of its text that say
 * nothing, as in a number's last digit that is not needed. */
TEST(damaged_weights_are_no_start)
{
    rt_program p = toy_program();
    char *argv[] = {"trainer", "--predict", strdup(train_rows())};
    enum { MOST = 1024 };
    int damaged = 0, fine = 0;
    program_folder();
    char want[MOST], *path = strdup(toy_path("prog/base.safetensors"));
    FILE *whole = fopen(path, "rb");
    NEED(whole != NULL);
    size_t n = fread(want, 1, MOST, whole);
    fclose(whole);
    CHECK(n > 400 && n < MOST);
    for (size_t i = 0; i < n; i += 7) {
        FILE *f = fopen(path, "wb");
        NEED(f != NULL);
        want[i] ^= 1 << i % 8;
        fwrite(want, 1, n, f);
        fclose(f);
        want[i] ^= 1 << i % 8;
        toy_listen();
        int code = rt_host_main(3, argv, &p, toy_path("prog"));
        toy_heard();
        CHECK(code == RT_USER || code == RT_OK);
        damaged +=
            code == RT_USER && strstr(toy_said, "is damaged: the hash of its data");
        fine += code == RT_OK;
    }
    CHECK(damaged > 20 && fine < 5);
    free(path);
    rt_st_out t[] = {{"emb.weight", 2, {8, 4}, emb0, false, NULL},
                     {"fc.weight", 2, {4, 3}, fc0, false, NULL},
                     {"fc.bias", 1, {3}, bias0, false, NULL}};
    CHECK(rt_st_write(toy_path("prog/base.safetensors"), t, 3, false) == RT_OK);
    toy_listen();
    CHECK(rt_host_main(3, argv, &p, toy_path("prog")) == RT_USER);
    toy_heard();
    free(argv[2]);
    TOY_HEARD("base.safetensors is not as efficc wrote it: it lacks its hash");
}

TEST(shuffled_epochs_see_every_row)
{
    rt_order o = {.n = 5, .shuffle = true, .seed = 7};
    for (int epoch = 0; epoch < 4; epoch++) {
        int seen[5] = {0};
        int64_t row[2];
        for (int m = 0; m < 3; m++)
            for (int64_t i = rt_order_rows(&o, epoch, 2 * m, 2, row); i-- > 0;)
                seen[row[i]]++;
        for (int i = 0; i < 5; i++)
            CHECK(seen[i] == 1);
    }
}
