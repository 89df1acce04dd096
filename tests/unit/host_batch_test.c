/* Batches of a program that computes no padding: lists of rows, their sizes and tails. */
#include "test.h"

#include "host_toy.h"

enum { IDS, MASK, TARGETS, ROW, OFFSETS, POSITION, LIST };

static rt_data d;
static rt_program p;
static rt_run run;

/* Token level: targets and LIST are of supervised rows; else LIST is of pooled ones. */
static rt_input tokens[] = {
    {"input_ids", RT_IDS, 2, {TOY_B, TOY_S}, true, TOY_V, RT_FIXED},
    {"attention_mask", RT_MASK, 2, {TOY_B, TOY_S}, true, 0, RT_FIXED},
    {"targets", RT_TARGETS, 1, {TOY_B * TOY_S}, true, 0, RT_SUP},
    {"row", RT_ROW, 1, {TOY_B * TOY_S}, true, 0, RT_ROWS},
    {"offsets", RT_OFFSETS, 1, {TOY_B + 1}, true, 0, RT_FIXED},
    {"position", RT_POSITION, 1, {TOY_B * TOY_S}, true, 0, RT_ROWS},
    {"sup", RT_SUPERVISED, 1, {TOY_B * TOY_S}, true, 0, RT_SUP},
};
static rt_input classes[] = {
    {"input_ids", RT_IDS, 2, {TOY_B, TOY_S}, true, TOY_V, RT_FIXED},
    {"attention_mask", RT_MASK, 2, {TOY_B, TOY_S}, true, 0, RT_FIXED},
    {"targets", RT_TARGETS, 1, {TOY_B}, true, 0, RT_FIXED},
    {"row", RT_ROW, 1, {TOY_B * TOY_S}, true, 0, RT_ROWS},
    {"offsets", RT_OFFSETS, 1, {TOY_B + 1}, true, 0, RT_FIXED},
    {"position", RT_POSITION, 1, {TOY_B * TOY_S}, true, 0, RT_ROWS},
    {"pooled", RT_POOLED, 1, {TOY_B}, true, 0, RT_FIXED},
};

/* Makes the batch of the first n rows of the text. */
static void
fill(const char *task, const char *text, int64_t n)
{
    static const int64_t size[3] = {2, 5, TOY_B * TOY_S};
    bool pooled = !strcmp(task, "seq-cls");
    rt_data_close(&d);
    rt_inputs_free(&run);
    if (run.compute)
        rt_device_close(run.compute);
    p = toy_program();
    p.task = task;
    p.input = pooled ? classes : tokens;
    p.ninput = LIST + 1;
    p.pin = pooled ? 0 : -1;
    p.labels = TOY_C;
    for (int k = RT_ROWS; k <= (pooled ? RT_ROWS : RT_SUP); k++) {
        p.nsize[k] = 3;
        memcpy(p.size[k], size, sizeof size);
    }
    toy_write("rows.jsonl", text);
    const char *path = toy_path("rows.jsonl");
    rt_data_spec spec = rt_data_spec_of(&p, RT_TRAINING);
    toy_listen();
    int code = rt_data_open(&d, &(rt_words){1, &path}, &spec);
    toy_heard();
    NEED(code == 0);
    char error[256];
    run = (rt_run){.program = &p};
    NEED(rt_device_open(&p, &run.compute, error, sizeof error));
    rt_inputs_new(&run, rt_alloc((size_t)rt_inputs_bytes(&p)));
    NEED(rt_batch_fill(&run, &d, (int64_t[]){0, 1}, n) >= 0);
}

static const char *
list(int input)
{
    static char text[4][128];
    static int turn;
    char *to = text[turn++ % 4];
    size_t used = 0;
    for (int64_t i = 0; i < p.input[input].dim[0]; i++)
        used +=
            (size_t)snprintf(to + used, sizeof text[0] - used, "%s%lld", i ? " " : "",
                             (long long)((int64_t *)run.input[input])[i]);
    return to;
}

TEST(rows_are_what_the_mask_shows_and_what_is_supervised)
{
    fill("token-cls",
         "{\"input_ids\": [1,2,3], \"attention_mask\": [0,1,1], \"labels\": "
         "[1,-100,0]}\n"
         "{\"input_ids\": [4,5,6,0], \"attention_mask\": [1,0,0,1], "
         "\"labels\": [-100,-100,1,1]}\n",
         2);
    CHECK_STR(list(ROW), "0 1 2 4 6 7 0 0"); /* 0 and 6 are hidden, but supervised */
    CHECK_STR(list(POSITION), "0 1 2 0 2 3 0 0");
    CHECK_STR(list(OFFSETS), "0 3 6");
    CHECK_STR(list(LIST), "0 2 4 5 0 0 0 0");
    CHECK_STR(list(TARGETS), "1 0 1 1 -100 -100 -100 -100");
    CHECK(run.size[RT_ROWS] == 8 && run.size[RT_SUP] == 5);
    CHECK(rt_result_row(&run, 0, 2) == 1 && rt_result_row(&run, 1, 3) == 3);
}

TEST(a_row_that_is_missing_is_one_token)
{
    fill("token-cls", "{\"input_ids\": [1], \"labels\": [1]}\n", 1);
    CHECK_STR(list(ROW), "0 4 0 0 0 0 0 0");
    CHECK_STR(list(OFFSETS), "0 1 2");
    CHECK_STR(list(LIST), "0 0 0 0 0 0 0 0");
    CHECK_STR(list(TARGETS), "1 -100 -100 -100 -100 -100 -100 -100");
    CHECK(run.size[RT_ROWS] == 2 && run.size[RT_SUP] == 2);
}

TEST(sizes_end_where_rows_are_full)
{
    fill("token-cls",
         "{\"input_ids\": [1,2,3,4], \"labels\": [1,1,1,1]}\n"
         "{\"input_ids\": [4,5,6,0], \"labels\": [0,0,0,0]}\n",
         2);
    CHECK_STR(list(ROW), "0 1 2 3 4 5 6 7");
    CHECK_STR(list(LIST), "0 1 2 3 4 5 6 7");
    CHECK(run.size[RT_ROWS] == 8 && run.size[RT_SUP] == 8);
}

TEST(a_pinned_row_that_the_mask_hides_is_there)
{
    fill("seq-cls",
         "{\"input_ids\": [1,2,3], \"attention_mask\": [1,1,0], \"labels\": 1}\n"
         "{\"input_ids\": [4,5,6,0], \"attention_mask\": [0,0,1,1], \"labels\": 0}\n",
         2);
    CHECK_STR(list(ROW), "0 1 4 6 7 0 0 0");
    CHECK_STR(list(POSITION), "0 1 0 2 3 0 0 0");
    CHECK_STR(list(OFFSETS), "0 2 5");
    CHECK_STR(list(LIST), "0 2");
    CHECK_STR(list(TARGETS), "1 0");
    CHECK(run.size[RT_ROWS] == 5);
}
