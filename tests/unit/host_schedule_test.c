/* Steps and learning rates, as the Hugging Face Trainer computes them. */
#include "test.h"

#include "host_toy.h"

static rt_opts
options(int argc, char **argv)
{
    static rt_opts o;
    rt_opts_free(&o); /* of the test before */
    rt_program p = toy_program();
    char *all[32] = {"trainer", "--train-data", "x"};
    memcpy(all + 3, argv, (size_t)argc * sizeof *argv);
    NEED(rt_args(argc + 3, all, &p, &o) == -1);
    return o;
}
#define OPTIONS(...) \
    options(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *), (char *[]){__VA_ARGS__})

TEST(an_epoch_rounds_up)
{
    rt_opts o = OPTIONS("--gradient-accumulation-steps", "4");
    rt_schedule s = rt_schedule_of(&o, 75, 8); /* 10 batches, the last of 3 rows */
    CHECK(s.global == 32 && s.per_epoch == 3 && s.total == 9);
    rt_step last = rt_schedule_step(&s, 5);
    CHECK(last.epoch == 1 && last.first == 64 && last.n == 11);
    o = OPTIONS("--num-train-epochs", "0.5");
    CHECK(rt_schedule_of(&o, 75, 8).total == 5);
    o = OPTIONS("--max-steps", "7", "--num-train-epochs", "100");
    CHECK(rt_schedule_of(&o, 75, 8).total == 7);
    o = OPTIONS("--max-steps", "0", "--num-train-epochs", "2"); /* as Hugging Face */
    CHECK(rt_schedule_of(&o, 75, 8).total == 20);
}

TEST(a_global_batch_need_not_be_a_multiple)
{
    rt_opts o = OPTIONS("--global-batch-size", "7", "--num-train-epochs", "2");
    rt_schedule s = rt_schedule_of(&o, 17, 4);
    CHECK(s.global == 7 && s.per_epoch == 3 && s.total == 6);
    static const int64_t want[6][3] = {{0, 0, 7}, {0, 7, 7}, {0, 14, 3},
                                       {1, 0, 7}, {1, 7, 7}, {1, 14, 3}};
    for (int i = 0; i < 6; i++) {
        rt_step step = rt_schedule_step(&s, i);
        CHECK(step.epoch == want[i][0] && step.first == want[i][1] &&
              step.n == want[i][2]);
    }
    o = OPTIONS("--global-batch-size", "100"); /* all rows are one step */
    s = rt_schedule_of(&o, 17, 4);
    CHECK(s.per_epoch == 1 && rt_schedule_step(&s, 2).n == 17);
}

TEST(linear_warms_up_and_decays)
{
    rt_opts o =
        OPTIONS("--max-steps", "10", "--learning-rate", "1", "--warmup-steps", "4");
    rt_schedule s = rt_schedule_of(&o, 100, 2);
    /* transformers.get_linear_schedule_with_warmup(opt, 4, 10) */
    const double want[] = {0, .25, .5, .75, 1, 5. / 6, 4. / 6, .5, 2. / 6, 1. / 6};
    for (int i = 0; i < 10; i++)
        CHECK_NEAR(rt_schedule_lr(&s, i), want[i], 1e-15);
}

TEST(cosine_and_constant)
{
    rt_opts o = OPTIONS("--max-steps", "4", "--learning-rate", "2",
                        "--lr-scheduler-type", "cosine");
    rt_schedule s = rt_schedule_of(&o, 100, 2);
    /* transformers.get_cosine_schedule_with_warmup(opt, 0, 4) */
    const double want[] = {2, 1.7071067811865475, 1, 0.2928932188134525};
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(rt_schedule_lr(&s, i), want[i], 1e-12);
    o = OPTIONS("--max-steps", "4", "--learning-rate", "2", "--lr-scheduler-type",
                "constant", "--warmup-steps", "2");
    s = rt_schedule_of(&o, 100, 2);
    CHECK(rt_schedule_lr(&s, 0) == 0 && rt_schedule_lr(&s, 1) == 1);
    CHECK(rt_schedule_lr(&s, 2) == 2 && rt_schedule_lr(&s, 3) == 2);
}

TEST(warmup_as_a_share)
{
    rt_opts o = OPTIONS("--max-steps", "25", "--warmup-ratio", "0.1");
    CHECK(rt_schedule_of(&o, 10, 1).warmup == 3);
    o = OPTIONS("--max-steps", "25", "--warmup-steps", "0.1");
    CHECK(rt_schedule_of(&o, 10, 1).warmup == 3);
    o = OPTIONS("--max-steps", "25", "--warmup-steps", "5", "--warmup-ratio", "0.9");
    CHECK(rt_schedule_of(&o, 10, 1).warmup == 5);
}

TEST(the_order_is_a_permutation)
{
    const uint64_t size[] = {1, 2, 3, 7, 16, 17, 1000, 4097};
    for (int k = 0; k < 8; k++) {
        uint64_t n = size[k];
        char *seen = calloc(n, 1);
        uint64_t fixed = 0, wrong = 0;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = rt_permute(i, n, 42 + (uint64_t)k);
            wrong += p >= n || seen[p]++;
            fixed += p == i;
        }
        CHECK(wrong == 0);
        CHECK(n < 16 || fixed < n / 4);
        free(seen);
    }
}

TEST(epochs_and_seeds_differ)
{
    rt_order a = {.n = 1000, .shuffle = true, .seed = 42};
    rt_order b = {.n = 1000, .shuffle = true, .seed = 43};
    rt_order file = {.n = 9, .seed = 42};
    int64_t x[8], y[8];
    CHECK(rt_order_rows(&a, 0, 24, 8, x) == 8);
    rt_order_rows(&a, 1, 24, 8, y);
    CHECK(memcmp(x, y, sizeof x));
    rt_order_rows(&b, 0, 24, 8, y);
    CHECK(memcmp(x, y, sizeof x));
    rt_order_rows(&a, 0, 24, 8, y);
    CHECK(!memcmp(x, y, sizeof x));
    CHECK(rt_order_rows(&file, 5, 8, 4, x) == 1 && x[0] == 8);
    CHECK(rt_order_rows(&file, 5, 12, 4, x) == 0);
}
