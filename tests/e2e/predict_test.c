/* predict_test.c -- predictions of every task against PyTorch's logits of the cases.
 *
 * The logits of batch 0 stand in golden.safetensors: of the weights as they are in the file
 * (output.logits), after 20 steps of training (full.logits_after), and of PEFT's adapter
 * after 20 steps (lora.merged_logits_after). Losses and answers are computed from them here,
 * in double, and compared with what --predict prints; so is the loss of --eval-data. Weights
 * that are given (a file, a checkpoint, an adapter) predict the same bytes as those that
 * were just trained.
 */
#include "golden.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shot {                 /* a case and its trainer */
    const char *name, *task, *wanted; /* task NULL: found; wanted: name of the logits */
    char dir[512], path[512];
    tensors golden;
    double loss, count; /* of all rows that were checked: sum, supervised items */
} shot;

static bool
open_shot(shot *s, const char *flags)
{
    snprintf(s->path, sizeof s->path, "%s/tests/cases/%s", SRC_DIR, s->name);
    snprintf(s->dir, sizeof s->dir, "%s", fresh_dir(fmt("predict-%s", s->name)));
    s->golden = tensors_read(fmt("%s/golden.safetensors", s->path));
    const tensor *ids = tensors_get(&s->golden, "batch0.input_ids");
    if (!ids)
        return false;
    int order[4] = {0, 1, 2, 3}, first = 0;
    char data[600];
    snprintf(data, sizeof data, "%s/all.jsonl", s->dir);
    bool ok = batches_write(data, &s->golden, order, 4);
    snprintf(data, sizeof data, "%s/rows.jsonl", s->dir);
    ok &= batches_write(data, &s->golden, &first, 1);
    const char *log = fmt("%s/compile.log", s->dir);
    ok &= run(log,
              "%s/efficc %s/model.onnx --fp32 --batch %d --seq %d %s%s %s -o %s/out "
              "--cflags '-O1 -march=native'",
              BIN_DIR, s->path, (int)ids->dim[0], (int)ids->dim[1],
              s->task ? "--task " : "", s->task ? s->task : "", flags, s->dir) == 0;
    if (!ok)
        printf("  %s: %s\n", s->name, text_read(log));
    return ok;
}

/* Runs the trainer with its stdout in `out` of the scratch folder; the exit code. */
static int
trainer(const shot *s, const char *out, const char *flags)
{
    const char *log = fmt("%s/run.log", s->dir);
    int rc = run(log, "( %s/out/trainer %s >%s/%s )", s->dir, flags, s->dir, out);
    if (rc)
        printf("  %s: exit code %d: %s\n", s->name, rc, text_read(log));
    return rc;
}

/* ---- what should come out ---- */

static const cJSON *
get(const cJSON *j, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(j, key);
}

static int64_t
best_of(const double *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static double
log_sum(const double *x, int64_t n)
{
    double max = x[best_of(x, n)], sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    return max + log(sum);
}

/* `label` is the largest of n logits, or as large but for rounding; `p`: probabilities. */
static void
check_class(const double *x, int64_t n, const cJSON *label, const cJSON *p)
{
    int got = label ? label->valueint : -1;
    CHECK(got >= 0 && got < n && x[got] > x[best_of(x, n)] - 2e-3);
    CHECK(!p || cJSON_GetArraySize(p) == n);
    for (int k = 0; p && k < n; k++)
        CHECK_NEAR(cJSON_GetArrayItem(p, k)->valuedouble, exp(x[k] - log_sum(x, n)),
                   1e-3);
}

/* The loss that the row should have; *count items. */
static double
class_losses(const shot *s, const tensor *logits, int64_t row, int64_t *count)
{
    const tensor *labels = tensors_get(&s->golden, "batch0.labels");
    int64_t n = logits->dim[logits->rank - 1];
    int64_t tokens = logits->rank > 2 ? logits->dim[1] : 1;
    int64_t shift = s->task && !strcmp(s->task, "causal-lm");
    double loss = 0;
    for (int64_t t = 0; t + shift < tokens; t++) {
        const double *x = logits->data + (row * tokens + t) * n;
        double label = labels->data[row * tokens + t + shift];
        if (label == -100)
            continue;
        loss += log_sum(x, n) - x[(int64_t)label];
        ++*count;
    }
    return loss;
}

static double
value_losses(const shot *s, const tensor *logits, int64_t row, int64_t *count)
{
    const tensor *labels = tensors_get(&s->golden, "batch0.labels");
    int64_t n = logits->dim[1];
    double loss = 0;
    for (int64_t i = row * n; i < (row + 1) * n; i++)
        if (!isnan(labels->data[i])) {
            loss += pow(logits->data[i] - labels->data[i], 2);
            ++*count;
        }
    return loss;
}

static void
check_answers(const tensor *logits, int64_t row, const cJSON *j)
{
    const cJSON *label = get(j, "label"), *p = get(j, "probabilities");
    int64_t n = logits->dim[logits->rank - 1], tokens = logits->dim[1];
    const double *x = logits->data + row * logits->n / logits->dim[0];
    if (logits->rank == 2) {
        check_class(x, n, label, p);
        return;
    }
    CHECK(cJSON_GetArraySize(label) == tokens);
    for (int t = 0; t < tokens; t++)
        check_class(x + t * n, n, cJSON_GetArrayItem(label, t),
                    p ? cJSON_GetArrayItem(p, t) : NULL);
}

static void
check_values(const tensor *logits, int64_t row, const cJSON *j)
{
    int n = (int)logits->dim[1];
    const cJSON *p = get(j, "prediction");
    CHECK(cJSON_GetArraySize(p) == n);
    for (int k = 0; k < cJSON_GetArraySize(p); k++)
        CHECK_NEAR(cJSON_GetArrayItem(p, k)->valuedouble, logits->data[row * n + k],
                   2e-3);
}

static void
check_row(shot *s, const tensor *logits, int64_t row, const cJSON *j)
{
    bool values = strstr(s->name, "regression") != NULL;
    int64_t count = 0;
    double loss = values ? value_losses(s, logits, row, &count)
                         : class_losses(s, logits, row, &count);
    if (values)
        check_values(logits, row, j);
    else
        check_answers(logits, row, j);
    s->loss += loss;
    s->count += (double)count;
    CHECK((get(j, "loss") != NULL) == (count > 0));
    if (count && get(j, "loss"))
        CHECK_NEAR(get(j, "loss")->valuedouble, loss / (double)count,
                   1e-3 * (1 + loss / (double)count));
    const cJSON *next = get(j, "next");
    CHECK((next != NULL) == (s->task && !strcmp(s->task, "causal-lm")));
    if (next)
        CHECK(
            next->valueint ==
            cJSON_GetArrayItem(get(j, "label"), cJSON_GetArraySize(get(j, "label")) - 1)
                ->valueint);
}

/* Each line of the file against PyTorch's logits. */
static void
check_file(shot *s, const char *file)
{
    const tensor *logits = tensors_get(&s->golden, s->wanted);
    char *text = text_read(fmt("%s/%s", s->dir, file));
    int64_t row = 0;
    NEED(logits && text);
    s->loss = s->count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), row++) {
        cJSON *j = cJSON_Parse(line);
        CHECK(j != NULL && row < logits->dim[0]);
        if (j && row < logits->dim[0])
            check_row(s, logits, row, j);
        cJSON_Delete(j);
    }
    CHECK(row == logits->dim[0]);
    free(text);
}

static bool
same_text(const shot *s, const char *a, const char *b)
{
    char *x = text_read(fmt("%s/%s", s->dir, a)),
         *y = text_read(fmt("%s/%s", s->dir, b));
    bool same = x && y && *x && !strcmp(x, y);
    free(x);
    free(y);
    return same;
}

/* The value of a key in the last row of the log that has it; NAN: none. */
static double
logged(const shot *s, const char *folder, const char *key)
{
    char *text = text_read(fmt("%s/%s/log.jsonl", s->dir, folder));
    double x = NAN;
    for (char *line = text ? strtok(text, "\n") : NULL; line;
         line = strtok(NULL, "\n")) {
        cJSON *j = cJSON_Parse(line);
        x = get(j, key) ? get(j, key)->valuedouble : x;
        cJSON_Delete(j);
    }
    free(text);
    return x;
}

/* ---- the weights as they are in the file ---- */

static void
as_exported(const char *name, const char *task)
{
    shot s = {.name = name, .task = task, .wanted = "output.logits"};
    NEED(open_shot(&s, ""));
    CHECK(trainer(&s, "got.jsonl", fmt("--predict %s/rows.jsonl", s.dir)) == 0);
    check_file(&s, "got.jsonl");
    CHECK(trainer(&s, "eval.out",
                  fmt("--eval-data %s/rows.jsonl --output-dir %s/eval", s.dir,
                      s.dir)) == 0);
    cJSON *meta = json_read(fmt("%s/case.json", s.path));
    double loss = logged(&s, "eval", "eval_loss");
    CHECK_NEAR(loss, s.loss / s.count, 1e-4 * (1 + loss));
    CHECK_NEAR(loss, get(get(meta, "loss"), "value")->valuedouble, 1e-4 * (1 + loss));
    cJSON_Delete(meta);
    tensors_free(&s.golden);
}

TEST(causal_lm)
{
    as_exported("gpt2-legacy17", "causal-lm");
}

TEST(seq_cls)
{
    as_exported("bert-legacy17", "seq-cls");
}

TEST(masked_lm)
{
    as_exported("bert-mlm-legacy17", "mlm");
}

TEST(token_cls)
{
    as_exported("bert-tokencls-legacy17", "token-cls");
}

TEST(regression_found_by_its_one_logit)
{
    as_exported("bert-regression-legacy17", NULL);
}

TEST(regression_of_three_values)
{
    as_exported("bert-regression3-legacy17", "regression");
}

/* ---- rows without labels ---- */

static bool
has_loss(char *line)
{
    cJSON *j = cJSON_Parse(line);
    bool has = get(j, "loss") != NULL;
    CHECK(j != NULL);
    cJSON_Delete(j);
    return has;
}

TEST(a_row_without_labels_has_no_loss)
{
    shot s = {.name = "bert-regression3-legacy17", .task = "regression"};
    NEED(open_shot(&s, ""));
    CHECK(run("/dev/null",
              "( (echo '{\"input_ids\": [5, 6, 7]}'; "
              "echo '{\"input_ids\": [5, 6, 7], \"labels\": [null, 2, null]}'; "
              "echo '{\"input_ids\": [8], \"labels\": [null, null, null]}') "
              ">%s/some.jsonl )",
              s.dir) == 0);
    CHECK(trainer(&s, "some.out", fmt("--predict %s/some.jsonl", s.dir)) == 0);
    char *text = text_read(fmt("%s/some.out", s.dir)), *line[4] = {0};
    int n = 0;
    for (char *l = text ? strtok(text, "\n") : NULL; l && n < 4; l = strtok(NULL, "\n"))
        line[n++] = l;
    CHECK(n == 3);
    CHECK(n == 3 && !has_loss(line[0]) && has_loss(line[1]) && !has_loss(line[2]));
    free(text);
    tensors_free(&s.golden);
}

TEST(own_tokens_are_the_labels_of_a_causal_model)
{
    shot s = {.name = "gpt2-legacy17", .task = "causal-lm"};
    NEED(open_shot(&s, ""));
    CHECK(run("/dev/null",
              "( (echo '{\"input_ids\": [5, 6, 7], \"labels\": [5, 6, 7]}'; "
              "echo '{\"input_ids\": [5, 6, 7], \"labels\": [-100, -100, 7]}'; "
              "echo '{\"input_ids\": [5], \"labels\": [5]}') >%s/own.jsonl )",
              s.dir) == 0);
    CHECK(run("/dev/null", "( echo '{\"input_ids\": [5, 6, 7]}' >%s/bare.jsonl )",
              s.dir) == 0);
    CHECK(trainer(&s, "own.out", fmt("--predict %s/own.jsonl", s.dir)) == 0);
    CHECK(trainer(&s, "bare.out", fmt("--predict %s/bare.jsonl", s.dir)) == 0);
    char *own = text_read(fmt("%s/own.out", s.dir));
    char *bare = text_read(fmt("%s/bare.out", s.dir));
    NEED(own && bare);
    CHECK(!strncmp(own, bare, strlen(bare)));
    char *last = strtok(own, "\n");
    CHECK(has_loss(last));
    last = strtok(NULL, "\n");
    CHECK(last && has_loss(last));
    last = strtok(NULL, "\n"); /* one token predicts nothing that is known */
    CHECK(last && !has_loss(last));
    free(own);
    free(bare);
    tensors_free(&s.golden);
}

/* ---- trained and given weights ---- */

#define TRAINING                                                               \
    "--shuffle false --max-steps 20 --learning-rate 1e-3 --lr-scheduler-type " \
    "constant --weight-decay 0.01 --decay-params all --max-grad-norm 0"

static void
as_trained(const char *name, const char *task)
{
    shot s = {.name = name, .task = task, .wanted = "full.logits_after"};
    NEED(open_shot(&s, ""));
    CHECK(trainer(&s, "train.out",
                  fmt("--train-data %s/all.jsonl " TRAINING " --save-steps 20 "
                      "--predict %s/rows.jsonl --output-dir %s/res",
                      s.dir, s.dir, s.dir)) == 0);
    check_file(&s, "res/predictions.jsonl");
    static const char *const given[] = {"model.safetensors", "checkpoint-20"};
    for (int i = 0; i < 2; i++) {
        CHECK(trainer(&s, "given.out",
                      fmt("--predict %s/rows.jsonl --init-tensors %s/res/%s", s.dir,
                          s.dir, given[i])) == 0);
        CHECK(same_text(&s, "given.out", "res/predictions.jsonl"));
    }
    tensors_free(&s.golden);
}

TEST(trained_causal_lm)
{
    as_trained("gpt2-legacy17", "causal-lm");
}

TEST(trained_regression)
{
    as_trained("bert-regression3-legacy17", "regression");
}

/* Step 20 is worse than an earlier one, so last and best differ. */
TEST(the_best_weights_predict)
{
    shot s = {.name = "bert-regression-legacy17"};
    NEED(open_shot(&s, ""));
    CHECK(trainer(&s, "train.out",
                  fmt("--train-data %s/all.jsonl --eval-data %s/rows.jsonl "
                      "--max-steps 20 --learning-rate 0.1 --lr-scheduler-type constant "
                      "--max-grad-norm 0 --eval-steps 1 --save-steps 20 "
                      "--save-total-limit 0 --load-best-model-at-end "
                      "--predict %s/rows.jsonl --output-dir %s/res",
                      s.dir, s.dir, s.dir, s.dir)) == 0);
    char *text = text_read(fmt("%s/res/log.jsonl", s.dir));
    double best = INFINITY;
    int step = 0;
    for (char *line = text ? strtok(text, "\n") : NULL; line;
         line = strtok(NULL, "\n")) {
        cJSON *j = cJSON_Parse(line);
        const cJSON *loss = get(j, "eval_loss");
        if (loss && loss->valuedouble < best) {
            best = loss->valuedouble;
            step = get(j, "step")->valueint;
        }
        cJSON_Delete(j);
    }
    free(text);
    CHECK(step > 0 && step < 20);
    CHECK(trainer(&s, "best.out",
                  fmt("--predict %s/rows.jsonl --init-tensors %s/res/checkpoint-%d",
                      s.dir, s.dir, step)) == 0);
    CHECK(same_text(&s, "best.out", "res/predictions.jsonl"));
    tensors_free(&s.golden);
}

TEST(an_adapter_of_peft_predicts)
{
    shot s = {.name = "bert-regression-legacy17", .wanted = "lora.merged_logits_after"};
    NEED(open_shot(&s, "--lora-r 4 --lora-alpha 4"));
    CHECK(trainer(&s, "got.jsonl",
                  fmt("--predict %s/rows.jsonl --init-adapter %s/adapter-final", s.dir,
                      s.path)) == 0);
    check_file(&s, "got.jsonl");
    tensors_free(&s.golden);
}
