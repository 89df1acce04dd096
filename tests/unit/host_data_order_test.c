/* The order of an epoch: every row once without weights; with weights each file's share,
 * spread evenly, and every row of a file before any comes again.
 */
#include "test.h"

#include "host_toy.h"

static rt_data d;

/* A file of n rows; its name. */
static const char *
rows(const char *name, int n)
{
    FILE *f = fopen(toy_path(name), "w");
    for (int i = 0; i < n; i++)
        fprintf(f, "{\"input_ids\": [1,%d]}\n", i % 7);
    fclose(f);
    return toy_path(name);
}

static const char *
weighted(const char *name, int n, const char *weight)
{
    static char text[8][300];
    static int turn;
    char *t = text[turn++ % 8];
    snprintf(t, sizeof text[0], "%s:%s", rows(name, n), weight);
    return t;
}

static int
open_files(int n, const char **path)
{
    static rt_program p;
    p = toy_program();
    p.task = "causal-lm";
    rt_data_spec spec = rt_data_spec_of(&p, RT_TRAINING);
    spec.label = RT_LABEL_TOKEN;
    rt_data_close(&d);
    toy_listen();
    int code = rt_data_open(&d, &(rt_words){n, path}, &spec);
    toy_heard();
    return code;
}

/* All positions of an epoch, taken `step` at a time; their number. */
static int64_t
epoch_of(const rt_order *o, int64_t epoch, int64_t step, int64_t *row)
{
    int64_t n = 0;
    for (int64_t first = 0; first < o->n; first += step)
        n += rt_order_rows(o, epoch, first, step, row + n);
    return n;
}

TEST(without_weights_every_row_of_every_file_comes_once)
{
    const char *path[] = {rows("a", 13), rows("b", 1), rows("c", 29)};
    NEED(open_files(3, path) == 0);
    CHECK(d.n == 43 && !d.weighted && d.nfile == 3);
    TOY_HEARD("3 files: 43 rows, 86 tokens, 43 supervised");
    for (int shuffle = 0; shuffle < 2; shuffle++)
        for (int epoch = 0; epoch < 3; epoch++) {
            rt_order o = rt_order_of(&d, shuffle, 5);
            int64_t row[43];
            bool seen[43] = {false};
            CHECK(epoch_of(&o, epoch, 5, row) == 43);
            for (int i = 0; i < 43; i++) {
                CHECK(row[i] >= 0 && row[i] < 43 && !seen[row[i]]);
                seen[row[i]] = true;
                CHECK(shuffle || row[i] == i);
            }
        }
    rt_row r = {0}; /* rows of files stand one behind the other */
    CHECK(rt_data_row(&d, 12, &r) == 0 && r.field[RT_F_IDS][1] == 12 % 7);
    CHECK(rt_data_row(&d, 13, &r) == 0 && r.field[RT_F_IDS][1] == 0);
    CHECK(rt_data_row(&d, 14 + 28, &r) == 0 && r.field[RT_F_IDS][1] == 0);
    rt_row_free(&r);
}

/* Counts of each row over epochs, each file in turn; checks the properties of a mixture. */
static void
check_mixture(const int64_t *share, bool shuffle, uint64_t seed)
{
    enum { EPOCHS = 7 };
    rt_order o = rt_order_of(&d, shuffle, seed);
    int64_t *row = rt_new((size_t)d.n, sizeof *row);
    int64_t *count = rt_new((size_t)d.n, sizeof *count);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        CHECK(epoch_of(&o, epoch, 1 + epoch, row) == d.n);
        int64_t got[8] = {0};
        for (int64_t i = 0; i < d.n; i++) {
            int k = 0;
            int64_t base = 0;
            for (; row[i] >= base + d.file[k].n; k++)
                base += d.file[k].n;
            got[k]++;
            /* spread evenly: at any place each file has had its share but for one */
            double due = (double)share[k] * (double)(i + 1) / (double)d.n;
            CHECK((double)got[k] > due - d.nfile && (double)got[k] < due + d.nfile);
            /* no row comes again before all have come */
            int64_t before = count[row[i]]++;
            int64_t taken = epoch * share[k] + got[k] - 1;
            CHECK(before == taken / d.file[k].n);
            if (!shuffle)
                CHECK(row[i] - base == taken % d.file[k].n);
        }
        for (int k = 0; k < d.nfile; k++)
            CHECK(got[k] == share[k]);
    }
    free(row);
    free(count);
}

TEST(a_mixture_gives_each_file_its_share)
{
    const char *path[] = {weighted("a", 13, "0.5"), weighted("b", 5, "3e-1"),
                          weighted("c", 42, ".2")};
    NEED(open_files(3, path) == 0);
    CHECK(d.n == 60 && d.weighted);
    TOY_HEARD("weight 0.3: 18 of the 60 rows of an epoch");
    for (uint64_t seed = 0; seed < 3; seed++)
        for (int shuffle = 0; shuffle < 2; shuffle++)
            check_mixture((int64_t[]){30, 18, 12}, shuffle, seed);
    /* shares that are no whole numbers: largest remainders */
    const char *odd[] = {weighted("a", 7, "1"), weighted("b", 3, "1"),
                         weighted("c", 1, "1")};
    NEED(open_files(3, odd) == 0);
    check_mixture((int64_t[]){4, 4, 3}, true, 1);
    const char *one[] = {weighted("a", 7, "4")};
    NEED(open_files(1, one) == 0);
    check_mixture((int64_t[]){7}, true, 1);
}

TEST(a_mixture_is_the_same_however_it_is_asked_for)
{
    const char *path[] = {weighted("a", 40, "7"), weighted("b", 30, "2"),
                          weighted("c", 20, "1")};
    NEED(open_files(3, path) == 0);
    rt_order o = rt_order_of(&d, true, 9), other = rt_order_of(&d, true, 10);
    int64_t all[90], row[90], differ = 0;
    for (int epoch = 0; epoch < 3; epoch++) {
        CHECK(epoch_of(&o, epoch, 90, all) == 90);
        for (int i = 90; i-- > 0;)
            CHECK(rt_order_rows(&o, epoch, i, 1, row) == 1 && row[0] == all[i]);
        CHECK(rt_order_rows(&o, epoch, 88, 5, row) == 2 && row[1] == all[89]);
        CHECK(rt_order_rows(&o, epoch, 90, 5, row) == 0);
        rt_order_rows(&other, epoch, 0, 90, row);
        for (int i = 0; i < 90; i++)
            differ += row[i] != all[i];
    }
    CHECK(differ > 200); /* another seed */
    rt_order_rows(&o, 0, 0, 90, all);
    rt_order_rows(&o, 1, 0, 90, row);
    differ = 0;
    for (int i = 0; i < 90; i++)
        differ += row[i] != all[i];
    CHECK(differ > 60); /* another epoch */
}

TEST(without_shuffling_files_alternate)
{
    const char *path[] = {weighted("a", 4, "1"), weighted("b", 4, "1")};
    NEED(open_files(2, path) == 0);
    rt_order o = rt_order_of(&d, false, 0);
    int64_t row[8];
    CHECK(epoch_of(&o, 0, 3, row) == 8);
    for (int i = 0; i < 8; i++)
        CHECK(row[i] == i / 2 + i % 2 * 4);
}

static void
refuses(const char *a, const char *b, const char *mention)
{
    const char *path[] = {a, b};
    CHECK(open_files(2, path) == RT_USER);
    TOY_HEARD(mention);
    if (!strstr(toy_said, mention))
        printf("  no '%s' in: %s", mention, toy_said);
}

TEST(weights_that_make_no_sense)
{
    refuses(weighted("a", 3, "0.5"), rows("b", 3), "b has no weight, but other files");
    refuses(weighted("a", 3, "0"), weighted("b", 3, "1"), "positive number, not '0'");
    refuses(weighted("a", 3, "-1"), weighted("b", 3, "1"), "not '-1'");
    refuses(weighted("a", 3, "x"), weighted("b", 3, "1"), "not 'x'");
    refuses(weighted("a", 3, "nan"), weighted("b", 3, "1"), "not 'nan'");
    refuses(weighted("a", 3, "inf"), weighted("b", 3, "1"), "not 'inf'");
    refuses(weighted("a", 3, ""), weighted("b", 3, "1"), "not ''");
    refuses(weighted("a", 3, "1 "), weighted("b", 3, "1"), "not '1 '");
    refuses(weighted("a", 3, "1e-9"), weighted("b", 3, "1"), "less than one of the 6");
    refuses("/nowhere/a:0.5", rows("b", 3), "/nowhere/a:0.5: No such file");
}

TEST(weights_are_for_training)
{
    const char *path = weighted("a", 3, "2");
    rt_program p = toy_program();
    rt_data_spec spec = rt_data_spec_of(&p, RT_EVALUATION);
    rt_data_close(&d);
    toy_listen();
    CHECK(rt_data_open(&d, &(rt_words){1, &path}, &spec) == RT_USER);
    toy_heard();
    TOY_HEARD("weights are for --train-data");
}

TEST(a_name_may_hold_a_colon)
{
    const char *whole = rows("x:3", 5); /* wins over file x with weight 3 */
    rows("x", 2);
    NEED(open_files(1, &whole) == 0);
    CHECK(d.n == 5 && !d.weighted);
    const char *both[] = {weighted("x:3", 5, "3"), weighted("x", 2, "1")};
    NEED(open_files(2, both) == 0);
    CHECK(d.file[0].n == 5 && d.file[0].weight == 3);
    rt_data_close(&d);
}
