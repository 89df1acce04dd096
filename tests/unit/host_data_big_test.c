/* Files that threads share: rows, line numbers and messages are those of one thread, what is
 * kept goes to a file, and memory does not grow with the data.
 */
#include "test.h"

#include "host_toy.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const rt_data_spec causal = {
    .label = RT_LABEL_TOKEN,
    .causal = true,
    .takes = {true, true, false, false, true},
    .high = {50000, 2, 0, 0, 50000},
    .threads = 4,
};

static int
open_with(rt_data *d, const char *path, int threads)
{
    rt_data_spec spec = causal;
    spec.threads = threads;
    toy_listen();
    int code = rt_data_open(d, &(rt_words){1, &path}, &spec);
    toy_heard();
    return code;
}

/* n rows of 1 to 60 tokens; every bad_each-th line is bad, 0: none. */
static const char *
write_rows(const char *name, int n, int bad_each)
{
    FILE *f = fopen(toy_path(name), "w");
    for (int i = 0; i < n; i++) {
        if (bad_each && i % bad_each == bad_each - 1)
            fprintf(f, "{\"input_ids\": [50000]}\n");
        if (i % 7 == 0)
            fprintf(f, "\r\n");
        fprintf(f, "{\"input_ids\": [%d", i);
        for (int t = 0; t < i % 60; t++)
            fprintf(f, ", %d", (i * 31 + t * 17) % 50000);
        fprintf(f, i % 3 ? "]}\n" : "], \"other%d\": \"x\"}\n", i % 9);
    }
    fclose(f);
    return toy_path(name);
}

TEST(rows_do_not_depend_on_threads)
{
    enum { N = 20000 };
    const char *path = write_rows("rows", N, 0);
    rt_data one = {0}, four = {0};
    rt_row a = {0}, b = {0};
    CHECK(open_with(&one, path, 1) == 0);
    char *said = strdup(toy_said);
    CHECK(open_with(&four, path, 4) == 0);
    CHECK_STR(said, toy_said);
    TOY_HEARD("other keys of the rows are not used: other0, other3, other6");
    NEED(one.n == N && four.n == N);
    CHECK(one.ntoken == four.ntoken && one.supervised == four.supervised);
    CHECK(one.file->hash == four.file->hash);
    for (int64_t i = 0; i < N; i++) {
        NEED(rt_data_row(&one, i, &a) == 0 && rt_data_row(&four, i, &b) == 0);
        NEED(a.n == 1 + i % 60 && b.n == a.n && a.field[RT_F_IDS][0] == i);
        NEED(!memcmp(a.field[RT_F_IDS], b.field[RT_F_IDS], 4 * (size_t)a.n));
    }
    rt_row_free(&a);
    rt_row_free(&b);
    rt_data_close(&one);
    rt_data_close(&four);
    free(said);
}

TEST(the_first_bad_rows_are_named_whoever_finds_them)
{
    const char *path = write_rows("bad", 30000, 2500);
    rt_data d = {0};
    CHECK(open_with(&d, path, 1) == RT_USER);
    char *said = strdup(toy_said);
    rt_data_close(&d);
    for (int i = 0; i < 5; i++) {
        CHECK(open_with(&d, path, 4) == RT_USER);
        CHECK_STR(said, toy_said);
        rt_data_close(&d);
    }
    TOY_HEARD("bad:2857: input_ids[0] is 50000"); /* after 2499 rows, 357 empty lines */
    TOY_HEARD("7 more bad rows");
    free(said);
}

TEST(bad_numbers_of_arrays_are_named_in_order)
{
    enum { N = 5 << 20 };
    uint16_t *x = rt_new(N, sizeof *x);
    for (int i = N - 1; i > 0; i -= N / 9)
        x[i] = 50000;
    FILE *f = fopen(toy_path("big.bin"), "w");
    fwrite(x, sizeof *x, N, f);
    fclose(f);
    free(x);
    rt_data d = {0};
    CHECK(open_with(&d, toy_path("big.bin"), 1) == RT_USER);
    char *said = strdup(toy_said);
    rt_data_close(&d);
    CHECK(open_with(&d, toy_path("big.bin"), 4) == RT_USER);
    CHECK_STR(said, toy_said);
    TOY_HEARD("5 more bad values");
    rt_data_close(&d);
    free(said);
}

/* Rows of 4000 tokens: 4 bytes each when they are kept. */
static const char *
write_long_rows(const char *name, int n)
{
    FILE *f = fopen(toy_path(name), "w");
    for (int i = 0; i < n; i++) {
        fprintf(f, "{\"input_ids\": [%d", i);
        for (int t = 1; t < 4000; t++)
            fprintf(f, ",%d", (i + t) % 10);
        fprintf(f, "]}\n");
    }
    fclose(f);
    return toy_path(name);
}

TEST(many_rows_are_kept_in_a_file)
{
    enum { N = 800 }; /* 12.8 MB */
    const char *path = write_long_rows("long", N);
    rt_data d = {0};
    rt_row r = {0};
    setenv("TMPDIR", toy_folder(), 1);
    NEED(open_with(&d, path, 3) == 0);
    unsetenv("TMPDIR");
    CHECK(d.n == N && rt_data_bytes(&d) < 1 << 20);
    for (int64_t i = N; i-- > 0;) {
        NEED(rt_data_row(&d, i, &r) == 0 && r.n == 4000);
        NEED(r.field[RT_F_IDS][0] == i && r.field[RT_F_IDS][3999] == (i + 3999) % 10);
    }
    CHECK(d.supervised == 3999 * N && rt_data_supervised(&d, 7) == 3999);
    rt_row_free(&r);
    rt_data_close(&d);
}

TEST(no_room_for_what_is_kept_is_said)
{
    const char *path = write_long_rows("long", 800);
    rt_data d = {0};
    setenv("TMPDIR", "/nonexistent", 1);
    CHECK(open_with(&d, path, 2) == RT_USER);
    TOY_HEARD("can't be kept in /nonexistent: No such file or directory");
    rt_data_close(&d);
    setenv("TMPDIR", toy_folder(), 1);
    struct rlimit was, few;
    signal(SIGXFSZ, SIG_IGN);
    NEED(getrlimit(RLIMIT_FSIZE, &was) == 0);
    few = was;
    few.rlim_cur = 9 << 20;
    NEED(setrlimit(RLIMIT_FSIZE, &few) == 0);
    CHECK(open_with(&d, path, 2) == RT_USER);
    setrlimit(RLIMIT_FSIZE, &was);
    TOY_HEARD("File too large");
    TOY_HEARD("set TMPDIR to a folder with room");
    rt_data_close(&d);
    unsetenv("TMPDIR");
}

TEST(a_line_may_be_longer_than_a_piece)
{
    FILE *f = fopen(toy_path("wide"), "w");
    for (int i = 0; i < 4; i++) {
        fprintf(f, "{\"input_ids\": [%d], \"text\": \"", i);
        for (int k = 0; k < (i % 2 ? 3000000 : 3); k++)
            fputc('a', f);
        fprintf(f, i < 3 ? "\"}\n" : "\"}");
    }
    fclose(f);
    rt_data d = {0};
    rt_data_spec spec = causal;
    spec.causal = false;
    spec.label = RT_LABEL_ANY;
    const char *path = toy_path("wide");
    toy_listen();
    CHECK(rt_data_open(&d, &(rt_words){1, &path}, &spec) == 0);
    toy_heard();
    CHECK(d.n == 4);
    rt_data_close(&d);
}

/* A pipe has no size and can't be read twice. */
TEST(rows_may_come_from_a_pipe)
{
    enum { N = 3000 };
    const char *path = write_rows("rows", N, 0), *fifo = toy_path("fifo");
    NEED(mkfifo(fifo, 0600) == 0);
    pid_t child = fork();
    if (child == 0) {
        char text[4096];
        int from = open(path, O_RDONLY), to = open(fifo, O_WRONLY);
        for (ssize_t n; (n = read(from, text, sizeof text)) > 0;)
            if (write(to, text, (size_t)n) != n)
                break;
        _exit(0);
    }
    rt_data d = {0};
    CHECK(open_with(&d, fifo, 2) == 0 && d.n == N);
    rt_data_close(&d);
    waitpid(child, NULL, 0);
}

/* Peak memory of a process that opens the file and reads rows. */
static int64_t
peak_of(const char *path)
{
    int ends[2];
    int64_t peak = -1;
    NEED(pipe(ends) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        rt_data d = {0};
        int code = open_with(&d, path, 2);
        for (int64_t i = 0; i < d.n && !code; i += 3)
            code = rt_data_supervised(&d, i) < 0;
        peak = code ? -1 : rt_peak_rss();
        _exit(write(ends[1], &peak, sizeof peak) != sizeof peak);
    }
    CHECK(read(ends[0], &peak, sizeof peak) == sizeof peak);
    close(ends[0]);
    close(ends[1]);
    waitpid(child, NULL, 0);
    return peak;
}

TEST(memory_does_not_grow_with_the_data)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    SKIP("sanitizers keep memory of their own");
#endif
    enum { chance = 16 << 20 }; /* threads hold more pieces at once, or fewer */
    setenv("TMPDIR", toy_folder(), 1);
    int64_t few = peak_of(write_long_rows("long", 1500));
    int64_t many = peak_of(write_long_rows("long", 6000)); /* 96 MB */
    CHECK(few > 0 && many > 0 && many < few + chance);
    if (many >= few + chance)
        printf("  %lld, then %lld bytes\n", (long long)few, (long long)many);
    const char *path = toy_path("stream.bin");
    NEED(truncate(toy_write("stream.bin", ""), 4 << 20) == 0); /* zeros */
    few = peak_of(path);
    NEED(truncate(path, 256 << 20) == 0);
    many = peak_of(path);
    CHECK(few > 0 && many > 0 && many < few + chance);
    unsetenv("TMPDIR");
}
