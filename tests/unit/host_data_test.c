/* JSONL rows, their checks, what is derived, and the batches made of them. */
#include "test.h"

#include "host_toy.h"

static rt_data d;
static rt_program p;

/* A language model with all inputs: [2,4] tokens, ids below 8. */
static const rt_input lm_input[] = {
    {"input_ids", RT_IDS, 2, {TOY_B, TOY_S}, true, TOY_V, RT_FIXED},
    {"attention_mask", RT_MASK, 2, {TOY_B, TOY_S}, true, 0, RT_FIXED},
    {"token_type_ids", RT_TYPES, 2, {TOY_B, TOY_S}, true, 2, RT_FIXED},
    {"position_ids", RT_POSITIONS, 2, {TOY_B, TOY_S}, true, 6, RT_FIXED},
    {"targets", RT_TARGETS, 2, {TOY_B, TOY_S}, true, 0, RT_FIXED},
    {"scale", RT_SCALE, 0, {0}, true, 0, RT_FIXED},
};

static void
choose(const char *task)
{
    p = toy_program();
    if (!strcmp(task, "seq-cls"))
        return;
    p.task = task;
    p.input = lm_input;
    p.ninput = 6;
    p.pad = 7;
    p.labels = strcmp(task, "token-cls") ? 0 : TOY_C;
}

static int
open_one(const char *path, rt_use use)
{
    rt_data_spec spec = rt_data_spec_of(&p, use);
    return rt_data_open(&d, &(rt_words){1, &path}, &spec);
}

static int
load_as(const char *task, rt_use use, const char *text)
{
    rt_data_close(&d);
    choose(task);
    toy_write("rows.jsonl", text);
    toy_listen();
    int code = open_one(toy_path("rows.jsonl"), use);
    toy_heard();
    return code;
}
#define LOAD(task, text) load_as(task, RT_TRAINING, text)

/* The batch of rows a and b as text of one input. */
static const char *
batch(int input, int64_t a, int64_t b)
{
    static char text[256];
    rt_run run = {.program = &p};
    rt_inputs_new(&run, rt_alloc((size_t)rt_inputs_bytes(&p)));
    rt_batch_fill(&run, &d, (int64_t[]){a, b}, b < 0 ? 1 : 2);
    const rt_input *in = &p.input[input];
    int n = (int)(in->dim[0] * (in->rank > 1 ? in->dim[1] : 1));
    size_t used = 0;
    for (int i = 0; i < n; i++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%lld", i ? " " : "",
                             (long long)((int64_t *)run.input[input])[i]);
    rt_inputs_free(&run);
    return text;
}

TEST(causal_rows_without_labels)
{
    CHECK(LOAD("causal-lm",
               "{\"input_ids\": [1,2,3]}\n\n{\"input_ids\": [4,5,6,0]}\n") == 0);
    CHECK(d.n == 2 && d.ntoken == 7 && d.supervised == 5);
    TOY_HEARD("attention_mask: not in 2 of 2 rows: 1 for every token");
    TOY_HEARD("labels: not in 2 of 2 rows: the row's own tokens are learnt");
    CHECK_STR(batch(0, 0, 1), "1 2 3 7 4 5 6 0");
    CHECK_STR(batch(1, 0, 1), "1 1 1 0 1 1 1 1");
    CHECK_STR(batch(2, 0, 1), "0 0 0 0 0 0 0 0");
    CHECK_STR(batch(3, 0, 1), "0 1 2 2 0 1 2 3");
    CHECK_STR(batch(4, 0, 1), "2 3 -100 -100 5 6 0 -100");
}

TEST(an_empty_row_is_one_visible_pad)
{
    CHECK(LOAD("causal-lm", "{\"input_ids\": [1,2,3]}\n") == 0);
    CHECK_STR(batch(0, 0, -1), "1 2 3 7 7 7 7 7");
    CHECK_STR(batch(1, 0, -1), "1 1 1 0 1 0 0 0");
    CHECK_STR(batch(4, 0, -1), "2 3 -100 -100 -100 -100 -100 -100");
}

TEST(given_labels_are_shifted_and_the_first_is_not_predicted)
{
    CHECK(LOAD("causal-lm", "{\"input_ids\": [1,2,3,4], \"labels\": [1,-100,3,4]}\n") ==
          0);
    CHECK(d.supervised == 2);
    CHECK_STR(batch(4, 0, -1), "-100 3 4 -100 -100 -100 -100 -100");
}

TEST(labels_of_mlm_are_not_shifted)
{
    CHECK(LOAD("mlm", "{\"input_ids\": [1,2,3], \"labels\": [-100,5,-100]}\n") == 0);
    CHECK(d.supervised == 1);
    CHECK_STR(batch(4, 0, -1), "-100 5 -100 -100 -100 -100 -100 -100");
}

TEST(left_padding_gives_positions_from_the_mask)
{
    CHECK(LOAD("causal-lm",
               "{\"input_ids\": [7,7,3,4], \"attention_mask\": [0,0,1,1]}\n") == 0);
    CHECK_STR(batch(3, 0, -1), "0 0 0 1 0 0 0 0");
    /* hidden tokens are not learnt */
    CHECK(d.supervised == 2);
    CHECK_STR(batch(4, 0, -1), "-100 3 4 -100 -100 -100 -100 -100");
}

TEST(fields_that_only_some_rows_have)
{
    CHECK(LOAD("causal-lm", "{\"input_ids\": [1,2]}\n"
                            "{\"input_ids\": [3,4], \"attention_mask\": [1,0], "
                            "\"position_ids\": [5,4], \"token_type_ids\": [1,1]}\n"
                            "{\"input_ids\": [5,6], \"attention_mask\": [0,1], "
                            "\"labels\": [2,2]}\n") == 0);
    TOY_HEARD("token_type_ids: not in 2 of 3 rows: 0");
    CHECK_STR(batch(1, 0, 1), "1 1 0 0 1 0 0 0");
    CHECK_STR(batch(2, 1, 2), "1 1 0 0 0 0 0 0");
    CHECK_STR(batch(3, 0, 1), "0 1 1 1 5 4 0 0");
    CHECK_STR(batch(3, 2, -1), "0 0 0 0 0 0 0 0");
    CHECK_STR(batch(4, 1, 2), "-100 -100 -100 -100 2 -100 -100 -100");
}

TEST(class_labels)
{
    CHECK(LOAD("seq-cls",
               "{\"input_ids\": [1], \"labels\": 2, \"text\": \"x\", \"idx\": 1}\n"
               "{\"input_ids\": [1], \"label\": 0}\n"
               "{\"input_ids\": [1], \"labels\": -100}\n") == 0);
    CHECK(d.supervised == 2 && d.row_labels);
    TOY_HEARD("other keys of the rows are not used: text, idx");
    CHECK_STR(batch(2, 0, 1), "2 0");
    CHECK_STR(batch(2, 2, -1), "-100 -100");
}

TEST(the_graphs_own_name_of_an_input_is_a_key_too)
{
    static const rt_input own[] = {
        {"tokens", RT_IDS, 2, {TOY_B, TOY_S}, true, TOY_V, RT_FIXED},
        {"targets", RT_TARGETS, 1, {TOY_B}, true, 2, RT_FIXED},
    };
    toy_write("own.jsonl", "{\"tokens\": [1,2], \"label\": 1}\n");
    rt_data_close(&d);
    p = toy_program();
    p.input = own;
    p.ninput = 2;
    toy_listen();
    CHECK(open_one(toy_path("own.jsonl"), RT_TRAINING) == 0);
    rt_data_close(&d);
    /* the loss has room for two classes only, whatever the program says */
    toy_write("own.jsonl", "{\"tokens\": [1,2], \"label\": 2}\n");
    CHECK(open_one(toy_path("own.jsonl"), RT_TRAINING) == RT_USER);
    toy_heard();
    TOY_HEARD("labels are 0 to 1");
}

TEST(fields_that_the_model_does_not_take)
{
    CHECK(LOAD("seq-cls",
               "{\"input_ids\": [1], \"token_type_ids\": [0], \"labels\": 2}\n") == 0);
    TOY_HEARD("token_type_ids: not used, the model has no such input");
}

TEST(prediction_takes_labels_where_they_are)
{
    CHECK(load_as("causal-lm", RT_PREDICTION,
                  "{\"input_ids\": [1,2,3], \"labels\": \"?\"}\n"
                  "{\"input_ids\": [1,2,3], \"labels\": [1,-100,4]}\n") == 0);
    TOY_HEARD("labels: 1 are not labels of this model and are left out");
    CHECK_STR(batch(4, 0, 1), "2 3 0 -100 0 4 0 -100");
    CHECK(rt_data_label(&d, 0, 1) == 2 && rt_data_label(&d, 1, 1) == RT_IGNORE);
    CHECK(rt_data_supervised(&d, 0) == 2 && rt_data_supervised(&d, 1) == 1);
    CHECK(load_as("seq-cls", RT_PREDICTION,
                  "{\"input_ids\": [1,2,3]}\n{\"input_ids\": [1], \"label\": 2}\n"
                  "{\"input_ids\": [1], \"label\": -1}\n") == 0);
    CHECK_STR(batch(2, 0, 1), "0 2");
    CHECK_STR(batch(2, 2, -1), "0 -100");
    CHECK(rt_data_label(&d, 0, 0) == RT_IGNORE && rt_data_label(&d, 1, 0) == 2);
    CHECK(rt_data_label(&d, 2, 0) == RT_IGNORE && d.supervised == 1);
    CHECK(load_as("mlm", RT_PREDICTION, "{\"input_ids\": [1,2]}\n") == 0);
    CHECK_STR(batch(4, 0, -1), "0 0 -100 -100 -100 -100 -100 -100");
}

static const rt_input values_input[] = {
    {"input_ids", RT_IDS, 2, {TOY_B, TOY_S}, true, TOY_V, RT_FIXED},
    {"values", RT_VALUES, 2, {TOY_B, 2}, true, 0, RT_FIXED},
};

static int
load_values(rt_use use, const char *text)
{
    rt_data_close(&d);
    p = toy_program();
    p.task = "regression";
    p.input = values_input;
    p.ninput = 2;
    p.labels = 2;
    toy_write("rows.jsonl", text);
    toy_listen();
    int code = open_one(toy_path("rows.jsonl"), use);
    toy_heard();
    return code;
}

TEST(values_of_a_regression)
{
    NEED(load_values(RT_TRAINING, "{\"input_ids\": [1,2], \"labels\": [0.5, -1e3]}\n"
                                  "{\"input_ids\": [1], \"labels\": [null, 7]}\n"
                                  "{\"input_ids\": [1], \"labels\": null}\n"
                                  "{\"input_ids\": [1]}\n") == 0);
    TOY_HEARD("4 rows, 5 tokens, 3 supervised");
    TOY_HEARD("labels: not in 1 of 4 rows: not supervised");
    CHECK(d.supervised == 3 && d.row_labels && rt_data_supervised(&d, 1) == 1);
    CHECK(rt_data_value(&d, 0, 0) == 0.5f && rt_data_value(&d, 0, 1) == -1000);
    CHECK(isnan(rt_data_value(&d, 1, 0)) && rt_data_value(&d, 1, 1) == 7);
    CHECK(isnan(rt_data_value(&d, 2, 0)) && isnan(rt_data_value(&d, 3, 1)));
    rt_run run = {.program = &p};
    rt_inputs_new(&run, rt_alloc((size_t)rt_inputs_bytes(&p)));
    CHECK(rt_batch_fill(&run, &d, (int64_t[]){1}, 1) == 1);
    const float *v = run.input[1];
    CHECK(isnan(v[0]) && v[1] == 7 && isnan(v[2]) && isnan(v[3]));
    rt_inputs_free(&run);
    static const char *const bad[][2] = {
        {"1", "labels has 1 values, but the model has 2 outputs"},
        {"[1]", "labels has 1 values"},
        {"[1,2,3]", "labels has 3 values"},
        {"[]", "labels has 0 values"},
        {"\"1\"", "labels must be a number or a list of numbers"},
        {"[true, 1]", "labels must be a number or a list"},
        {"{}", "labels must be a number"},
        {"[1e39, 1]", "labels[0] is too large for a float"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"input_ids\": [1], \"labels\": %s}\n",
                 bad[i][0]);
        CHECK(load_values(RT_TRAINING, text) == RT_USER);
        TOY_HEARD(bad[i][1]);
        CHECK(load_values(RT_PREDICTION, text) == 0 && isnan(rt_data_value(&d, 0, 0)));
    }
    CHECK(load_values(RT_TRAINING, "{\"input_ids\": [1], \"labels\": null}\n") ==
          RT_USER);
    TOY_HEARD("no row is supervised: every label is null");
}

/* One bad line, after a good one, is refused and named. */
static void
refuses(const char *task, const char *line, const char *mention)
{
    char text[2048];
    snprintf(text, sizeof text, "%s\n%s\n",
             !strcmp(task, "seq-cls") ? "{\"input_ids\": [1], \"labels\": 0}"
                                      : "{\"input_ids\": [1,2], \"labels\": [0,0]}",
             line);
    CHECK(LOAD(task, text) == RT_USER);
    TOY_HEARD("rows.jsonl:2: ");
    TOY_HEARD(mention);
    if (!strstr(toy_said, mention))
        printf("  no '%s' in: %s", mention, toy_said);
}

TEST(bad_rows_are_named)
{
    refuses("seq-cls", "{\"input_ids\": [1], \"labels\": 3}",
            "labels is 3, but labels are 0 to 2");
    refuses("seq-cls", "{\"input_ids\": [1], \"labels\": [1]}", "one number");
    refuses("seq-cls", "{\"input_ids\": [1], \"labels\": 0.5}", "not a whole number");
    refuses("seq-cls", "{\"input_ids\": [1]}", "has no labels");
    refuses("seq-cls", "{\"labels\": 1}", "has no input_ids");
    refuses("seq-cls", "{\"input_ids\": [1], \"labels\": 1, \"labels\": 2}",
            "has labels twice");
    refuses("seq-cls", "{\"input_ids\": [], \"labels\": 1}", "input_ids is empty");
    refuses("seq-cls", "{\"input_ids\": 3, \"labels\": 1}", "must be a list");
    refuses("seq-cls", "{\"input_ids\": [8], \"labels\": 1}",
            "input_ids[0] is 8, but the model knows token ids 0 to 7");
    refuses("seq-cls", "{\"input_ids\": [1,-1], \"labels\": 1}", "input_ids[1] is -1");
    refuses("seq-cls", "{\"input_ids\": [1.5], \"labels\": 1}", "not a whole number");
    refuses("seq-cls", "{\"input_ids\": [1e400], \"labels\": 1}", "not a whole number");
    refuses("seq-cls", "{\"input_ids\": [\"a\"], \"labels\": 1}", "not a number");
    refuses("seq-cls", "{\"input_ids\": [null], \"labels\": 1}", "not a number");
    refuses("seq-cls", "{\"input_ids\": [1,2,3,4,5], \"labels\": 1}", "efficc --seq 5");
    refuses("seq-cls", "{\"input_ids\": [1], \"attention_mask\": [1,1], \"labels\": 1}",
            "attention_mask has 2 values, but input_ids has 1");
    refuses("seq-cls", "{\"input_ids\": [1], \"attention_mask\": [2], \"labels\": 1}",
            "a mask is 1 (real) or 0");
    refuses("seq-cls", "{\"input_ids\": [1], \"attention_mask\": [0], \"labels\": 1}",
            "hides every token");
    refuses("seq-cls", "{\"input_ids\": [NaN], \"labels\": 1}", "is not JSON");
    refuses("seq-cls", "{\"input_ids\": [1], \"labels\": 1} {}", "is not JSON");
    refuses("seq-cls", "{", "one whole object");
    refuses("seq-cls", "{\"input_ids\": [1], \"labels\": 1,}", "column 32: a key");
    refuses("seq-cls", "{\"input_ids\": [1], \"label\": 1, \"label\": 1}",
            "has label twice");
    refuses("seq-cls", "{\"input_ids\": [01], \"labels\": 1}", "is not JSON");
    refuses("seq-cls", "{\"input_ids\": [1], \"x\": \"\xff\"}", "not UTF-8");
    refuses("seq-cls", "{\"input_ids\": [true], \"labels\": 1}", "not a number");
    refuses("seq-cls", "{\"input_ids\": [1], \"labels\": null}", "one number");
    refuses("seq-cls", "{\"input_ids\": [4294967297], \"labels\": 1}",
            "input_ids[0] is 4294967297");
    refuses("seq-cls", "[1,2,3]", "is a JSON list");
    refuses("seq-cls", "some text", "not a JSON object: 'some text'");
    refuses("causal-lm", "{\"input_ids\": [1,2], \"labels\": [1,8]}", "labels[1] is 8");
    refuses("causal-lm", "{\"input_ids\": [1,2], \"labels\": 1}", "one label a token");
    refuses("causal-lm", "{\"input_ids\": [1,2], \"labels\": [1]}", "has 1 values");
    refuses("causal-lm", "{\"input_ids\": [1], \"token_type_ids\": [2]}",
            "knows 0 to 1");
    refuses("causal-lm", "{\"input_ids\": [1], \"position_ids\": [6]}", "knows 0 to 5");
    refuses("mlm", "{\"input_ids\": [1,2]}", "has no labels");
    refuses("token-cls", "{\"input_ids\": [1], \"labels\": [3]}", "labels are 0 to 2");
}

TEST(many_bad_rows_are_counted)
{
    char text[4096] = "";
    for (int i = 0; i < 20; i++)
        strcat(text, "{\"input_ids\": [9], \"labels\": 1}\n");
    CHECK(LOAD("seq-cls", text) == RT_USER);
    TOY_HEARD("rows.jsonl:5: ");
    CHECK(!strstr(toy_said, "rows.jsonl:6: "));
    TOY_HEARD("15 more bad rows");
    int lines = 0;
    for (const char *c = toy_said; *c; c++)
        lines += *c == '\n';
    CHECK(lines <= 12);
}

TEST(files_that_cannot_be_used)
{
    CHECK(LOAD("seq-cls", "") == RT_USER);
    TOY_HEARD("holds no rows");
    CHECK(LOAD("seq-cls", "\n  \n") == RT_USER);
    CHECK(LOAD("seq-cls", "{\"input_ids\": [1], \"labels\": -100}\n") == RT_USER);
    TOY_HEARD("no token is supervised");
    CHECK(LOAD("causal-lm", "{\"input_ids\": [1]}\n") == RT_USER);
    TOY_HEARD("rows have one token");
    toy_listen();
    rt_data_close(&d);
    CHECK(open_one(toy_path("absent"), RT_TRAINING) == RT_USER);
    rt_data_close(&d);
    CHECK(open_one(toy_folder(), RT_TRAINING) == RT_USER);
    toy_heard();
    TOY_HEARD("No such file");
    TOY_HEARD("Is a directory");
}

TEST(windows_text_and_zero_bytes)
{
    CHECK(LOAD("seq-cls", "\xef\xbb\xbf{\"input_ids\": [1], \"labels\": 2}\r\n") == 0);
    FILE *f = fopen(toy_path("zero"), "w");
    fwrite("{\"input_ids\": [1], \"labels\": 2}\n{\0}\n", 1, 36, f);
    fclose(f);
    toy_listen();
    rt_data_close(&d);
    CHECK(open_one(toy_path("zero"), RT_TRAINING) == RT_USER);
    toy_heard();
    TOY_HEARD("zero:2: holds a zero byte");
    rt_data_close(&d);
}

TEST(thousands_of_rows)
{
    FILE *f = fopen(toy_path("many"), "w");
    for (int i = 0; i < 5000; i++)
        fprintf(f,
                i == 3000 ? "{\"input_ids\": [%d,1], \"attention_mask\": [1,0], "
                            "\"labels\": [1,2]}\n"
                          : "{\"input_ids\": [%d,1,2]}\n",
                i % 8);
    fclose(f);
    choose("causal-lm");
    toy_listen();
    CHECK(open_one(toy_path("many"), RT_TRAINING) == 0);
    toy_heard();
    CHECK(d.n == 5000 && d.ntoken == 14999);
    CHECK_STR(batch(0, 2999, 3000), "7 1 2 7 0 1 7 7");
    CHECK_STR(batch(1, 2999, 3000), "1 1 1 0 1 0 0 0");
    CHECK_STR(batch(4, 4999, 3000), "1 2 -100 -100 2 -100 -100 -100");
    rt_data_close(&d);
}
