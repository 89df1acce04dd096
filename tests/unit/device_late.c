/* The loop on a device (fake_device.c): it is a step ahead where nothing is due, with the same
 * results; memory that is not there. */
#include "test.h"

#include "host_toy.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>

extern int fake_device_ahead;

static const char *
program_folder(void)
{
    float emb[32], fc[12], bias[3] = {0.01f, -0.02f, 0.03f};
    for (int i = 0; i < 32; i++)
        emb[i] = 0.1f * (float)(i % 7) - 0.3f;
    for (int i = 0; i < 12; i++)
        fc[i] = 0.1f * (float)(i % 5) - 0.2f;
    mkdir(toy_path("prog"), 0777);
    rt_st_out t[] = {{"emb.weight", 2, {8, 4}, emb, false, NULL},
                     {"fc.weight", 2, {4, 3}, fc, false, NULL},
                     {"fc.bias", 1, {3}, bias, false, NULL}};
    NEED(toy_base(toy_path("prog/base.safetensors"), t, 3) == RT_OK);
    toy_write("prog/template.onnx", "0123456789");
    toy_write("prog/template.json", "{\"size\": 10, \"holes\": []}");
    return toy_path("prog");
}

/* A micro-batch whose loss is not finite once, the k-th that runs; 0: none. */
static int breaks;

/* The loss tells the key of the step's dropout. */
static void
micro(rt_run *r)
{
    toy_micro(r);
    *(float *)(r->arena + TOY_LOSS) += 1e-3f * (float)(*(int64_t *)r->input[4] % 1000);
    if (breaks && --breaks == 0)
        *(float *)(r->arena + TOY_LOSS) = NAN;
}

static int
run_words(int n, char **words)
{
    static rt_input input[5];
    rt_program p = toy_program();
    memcpy(input, toy_input, sizeof toy_input);
    input[4] = (rt_input){.name = "key", .role = RT_DROP_KEY, .rank = 1, .dim = {1}};
    p.input = input;
    p.ninput = 5;
    p.micro = micro;
    fake_device_ahead = 0;
    return toy_run(&p, program_folder(), n, words);
}
#define ROWS                                                                    \
    (char *)toy_write("rows.jsonl", "{\"input_ids\": [1,2,3], \"labels\": 0}\n" \
                                    "{\"input_ids\": [4,5], \"labels\": 1}\n"   \
                                    "{\"input_ids\": [7], \"labels\": 2}\n"     \
                                    "{\"input_ids\": [6,2], \"labels\": 1}\n"   \
                                    "{\"input_ids\": [3,2], \"labels\": -100}\n")
#define RUN(dir, ...)                                                      \
    run_words(TOY_WORDS("--train-data", ROWS, "--num-train-epochs", "4",   \
                        "--logging-steps", "1", "--learning-rate", "1e-2", \
                        "--output-dir", (char *)toy_path(dir), __VA_ARGS__))

/* A file of the folder; of a log: without times, and rows without a step. */
static char *
text_of(const char *dir, const char *name)
{
    char path[128];
    int err;
    rt_text out = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *text = rt_read_text(toy_path(path), 1 << 20, &err);
    NEED(text != NULL);
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        cJSON *row = cJSON_ParseWithOpts(line, NULL, false);
        cJSON_DeleteItemFromObject(row, "seconds");
        cJSON_DeleteItemFromObject(row, "tokens_per_second");
        char *rest = cJSON_PrintUnformatted(row);
        if (cJSON_HasObjectItem(row, "step") && !cJSON_HasObjectItem(row, "eval_loss"))
            rt_putf(&out, "%s\n", rest);
        free(rest);
        cJSON_Delete(row);
    }
    free(text);
    return out.s;
}

static uint64_t
weights_of(const char *dir)
{
    char path[128];
    rt_st st;
    float x[32];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    NEED(rt_st_open(&st, toy_path(path)) == RT_OK);
    NEED(rt_st_read_f32(&st, rt_st_find(&st, "emb.weight"), x) == RT_OK);
    rt_st_close(&st);
    return XXH3_64bits(x, sizeof x);
}

static void
same(const char *a, const char *b)
{
    char *x = text_of(a, "log.jsonl"), *y = text_of(b, "log.jsonl");
    CHECK_STR(x, y);
    CHECK(weights_of(a) == weights_of(b));
    free(x);
    free(y);
}

TEST(a_step_ahead_is_the_same_run)
{
    CHECK(RUN("late", "--save-strategy", "no") == RT_OK);
    CHECK(fake_device_ahead == 2);
    CHECK(RUN("saves", "--save-strategy", "steps", "--save-steps", "1") == RT_OK);
    CHECK(fake_device_ahead == 1);
    same("late", "saves");
    CHECK(RUN("evaluates", "--save-strategy", "no", "--eval-strategy", "steps",
              "--eval-steps", "1", "--eval-data", ROWS) == RT_OK);
    CHECK(fake_device_ahead == 1);
    same("late", "evaluates");
}

/* Step 4 breaks while step 5 is on its way. */
TEST(a_bad_step_is_found_late)
{
    breaks = 4;
    CHECK(RUN("skips", "--save-strategy", "no", "--on-nonfinite", "skip",
              "--overwrite-output-dir") == RT_OK);
    CHECK(fake_device_ahead == 2);
    TOY_HEARD("step 4: the loss is not finite");
    breaks = 4;
    CHECK(RUN("skips_at_once", "--save-strategy", "steps", "--save-steps", "1",
              "--on-nonfinite", "skip") == RT_OK);
    CHECK(fake_device_ahead == 1);
    same("skips", "skips_at_once");
    breaks = 4;
    CHECK(RUN("ends", "--save-strategy", "no") == RT_USER);
    TOY_HEARD("step 4: the loss is not finite");
    breaks = 0;
}

TEST(memory_that_is_not_there)
{
    setenv("FAKE_DEVICE_BYTES", "1000", 1);
    CHECK(RUN("small", "--save-strategy", "no") == RT_USER);
    unsetenv("FAKE_DEVICE_BYTES");
    TOY_HEARD("of device memory, but 1.0 kB are free");
    TOY_HEARD("the largest are: activations 512 bytes, inputs 320 bytes");
    TOY_HEARD(" of embeddings 128 bytes");
}
