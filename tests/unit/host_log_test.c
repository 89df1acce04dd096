/* log.jsonl and TensorBoard's event files: what rows become, how a log is cut back, and what
 * a full disk leaves. Event files are read here by the format's description, with a CRC of
 * its own. */
#include "test.h"

#include "host_toy.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

static const char *
folder(const char *name)
{
    const char *path = toy_path(name);
    mkdir(path, 0777);
    return path;
}

static char *
text_of(const char *dir)
{
    int err;
    char *path = rt_path(dir, "log.jsonl"), *text = rt_read_text(path, 1 << 20, &err);
    free(path);
    return text;
}

static void
add_step(rt_log *l, double step)
{
    rt_log_value row[] = {RT_LOG_NUMBER("step", step), RT_LOG_NUMBER("loss", step / 8),
                          RT_LOG_NUMBER("grad_norm", step == 2 ? NAN : step),
                          RT_LOG_NUMBER("learning_rate", 1e-3)};
    rt_log_row(l, 4, row);
}

static void
add_end(rt_log *l)
{
    rt_log_value row[] = {RT_LOG_NUMBER("total_seconds", 1.5),
                          RT_LOG_TEXT("end", "done")};
    rt_log_row(l, 2, row);
}

#define ROW(s, loss, norm)                                       \
    "{\"step\": " s ", \"loss\": " loss ", \"grad_norm\": " norm \
    ", \"learning_rate\": 0.001}\n"
static const char three[] =
    ROW("1", "0.125", "1") ROW("2", "0.25", "null") ROW("3", "0.375", "3");

TEST(rows_are_objects_a_line)
{
    rt_log l;
    const char *dir = folder("rows");
    NEED(rt_log_open(&l, dir, -1) == RT_OK);
    for (int step = 1; step <= 3; step++)
        add_step(&l, step);
    rt_log_value marked[] = {RT_LOG_NUMBER("step", 3), RT_LOG_FLAG("outlier", true),
                             RT_LOG_FLAG("clipped", false)};
    rt_log_row(&l, 3, marked);
    add_end(&l);
    rt_log_sync(&l);
    CHECK(rt_log_close(&l) == RT_OK);
    char *text = text_of(dir);
    NEED(text && !strncmp(text, three, strlen(three)));
    CHECK_STR(text + strlen(three),
              "{\"step\": 3, \"outlier\": true, \"clipped\": false}\n"
              "{\"total_seconds\": 1.5, \"end\": \"done\"}\n");
    free(text);
    rt_log none = {0}; /* of a run without a log */
    add_step(&none, 1);
    rt_log_sync(&none);
    CHECK(rt_log_close(&none) == RT_OK);
}

/* The log after it was opened with `keep`, had `before` in it, and got a row of step 3. */
static char *
cut(const char *before, int64_t keep)
{
    rt_log l;
    const char *dir = folder("cut");
    toy_write("cut/log.jsonl", before);
    toy_listen();
    NEED(rt_log_open(&l, dir, keep) == RT_OK);
    toy_heard();
    add_step(&l, 3);
    CHECK(rt_log_close(&l) == RT_OK);
    return text_of(dir);
}
#define CUT(before, keep, want)       \
    do {                              \
        char *is = cut(before, keep); \
        CHECK_STR(is, want);          \
        free(is);                     \
    } while (0)

TEST(a_log_is_cut_back_to_a_step)
{
    static const char two[] = ROW("1", "0.125", "1") ROW("2", "0.25", "null");
    char text[2048];
    CUT(three, 2, three);
    CHECK_STR(toy_said, "");
    CUT(three, 0, ROW("3", "0.375", "3"));
    CUT(three, -1, ROW("3", "0.375", "3"));
    CUT("", 2, ROW("3", "0.375", "3"));
    /* an evaluation at the step stays, the end of the run does not */
    snprintf(text, sizeof text, "%s{\"step\": 2, \"eval_loss\": 4}\n%s", two,
             "{\"total_seconds\": 1.5, \"end\": \"signal\"}\n");
    char *is = cut(text, 2);
    CHECK(strstr(is, "{\"step\": 2, \"eval_loss\": 4}\n{\"step\": 3, ") != NULL);
    CHECK(!strstr(is, "total_seconds"));
    free(is);
    CHECK_STR(toy_said, "");
}

TEST(a_log_is_cut_where_it_is_no_log)
{
    static const char two[] = ROW("1", "0.125", "1") ROW("2", "0.25", "null");
    static const char *const rest[] = {"{\"step\": 2, \"eval_lo", "{\"step\": 2}",
                                       "not a row\n", "\n", "[2]\n"};
    char text[2048];
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        snprintf(text, sizeof text, "%s%s", two, rest[i]);
        CUT(text, 2, three);
        TOY_HEARD("log.jsonl, line 3 is not a whole row; the log is cut there");
    }
    /* a block of zeros, as after a power cut */
    FILE *f = fopen(toy_write("cut/log.jsonl", two), "a");
    NEED(f && !fputc(0, f) && !fputc(0, f));
    fclose(f);
    rt_log l;
    toy_listen();
    NEED(rt_log_open(&l, toy_path("cut"), 2) == RT_OK);
    toy_heard();
    TOY_HEARD("line 3 is not a whole row");
    CHECK(l.file.at == (int64_t)strlen(two));
    CHECK(rt_log_close(&l) == RT_OK);
}

TEST(a_log_that_can_not_be_is_refused)
{
    rt_log l;
    toy_listen();
    CHECK(rt_log_open(&l, toy_path("no/such"), 3) == RT_USER);
    toy_heard();
    TOY_HEARD("no/such/log.jsonl: No such file or directory");
    CHECK(!l.file.path);
    mkdir(toy_path("odd"), 0777); /* a log that can't be read is not cut */
    mkdir(toy_path("odd/log.jsonl"), 0777);
    toy_listen();
    CHECK(rt_log_open(&l, toy_path("odd"), 3) == RT_USER);
    toy_heard();
    TOY_HEARD("odd/log.jsonl: Is a directory");
    toy_write("file", "");
    toy_listen();
    CHECK(rt_board_open(&l, toy_path("file"), -1, "{}") == RT_USER);
    toy_heard();
    TOY_HEARD("file/runs: Not a directory");
    CHECK(!l.board);
}

static void
limit_files(rlim_t bytes)
{
    struct rlimit r;
    NEED(!getrlimit(RLIMIT_FSIZE, &r));
    r.rlim_cur = bytes;
    NEED(!setrlimit(RLIMIT_FSIZE, &r));
}

TEST(a_full_disk_leaves_whole_rows)
{
    rt_log l;
    const char *dir = folder("full");
    signal(SIGXFSZ, SIG_IGN);
    NEED(rt_log_open(&l, dir, -1) == RT_OK);
    for (int step = 1; step <= 3; step++)
        add_step(&l, step);
    toy_listen();
    limit_files(strlen(three) + 10); /* 10 bytes of the next row still fit */
    add_step(&l, 4);
    add_step(&l, 5);
    char *text = text_of(dir);
    CHECK_STR(text, three);
    free(text);
    limit_files(RLIM_INFINITY);
    add_end(&l);
    CHECK(rt_log_close(&l) == RT_STOPPED);
    toy_heard();
    TOY_HEARD("training goes on without it");
    TOY_HEARD("lacks rows: File too large");
    text = text_of(dir);
    CHECK(!strncmp(text, three, strlen(three)));
    CHECK_STR(text + strlen(three), "{\"total_seconds\": 1.5, \"end\": \"done\"}\n");
    free(text);
}

/* ---- event files ---- */

static uint32_t
crc32c(const unsigned char *s, size_t n)
{
    uint32_t table[256], crc = 0xffffffff;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++)
            table[i] = table[i] & 1 ? table[i] >> 1 ^ 0x82f63b78 : table[i] >> 1;
    }
    while (n--)
        crc = table[(crc ^ *s++) & 255] ^ crc >> 8;
    return ~crc;
}

static uint32_t
masked(const unsigned char *s, size_t n)
{
    uint32_t crc = crc32c(s, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

typedef struct message { /* what is left of one */
    const unsigned char *at, *end;
} message;
typedef struct field {
    int number;
    uint64_t value; /* of numbers, bit by bit */
    message bytes;  /* of the others */
} field;

static uint64_t
little(const unsigned char *s, int n)
{
    uint64_t x = 0;
    while (n-- > 0)
        x = x << 8 | s[n];
    return x;
}

static uint64_t
varint(message *m)
{
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
        NEED(m->at < m->end && shift < 64);
        x |= (uint64_t)(*m->at & 127) << shift;
        if (*m->at++ < 128)
            return x;
    }
}

static bool
next_field(message *m, field *f)
{
    if (m->at == m->end)
        return false;
    uint64_t key = varint(m);
    *f = (field){.number = (int)(key >> 3)};
    int wire = (int)(key & 7), fixed = wire == 1 ? 8 : 4;
    if (wire == 0) {
        f->value = varint(m);
    } else if (wire == 2) {
        size_t n = varint(m);
        NEED(n <= (size_t)(m->end - m->at));
        f->bytes = (message){m->at, m->at + n};
        m->at += n;
    } else {
        NEED((wire == 1 || wire == 5) && m->end - m->at >= fixed);
        f->value = little(m->at, fixed);
        m->at += fixed;
    }
    return true;
}

static bool
is_text(message m, const char *s)
{
    return (size_t)(m.end - m.at) == strlen(s) && !memcmp(m.at, s, strlen(s));
}

/* What all event files of a folder hold, as "step tag value\n" in the order of names. */
typedef struct board {
    rt_text scalars, other; /* other: versions, starts and texts */
    int files;
    double first, last; /* wall times */
} board;

static void
read_value(board *b, int64_t step, message m)
{
    field f;
    char tag[64] = "", plugin[16] = "";
    message tensor = {0};
    while (next_field(&m, &f)) {
        float x;
        uint32_t bits = (uint32_t)f.value;
        memcpy(&x, &bits, sizeof x);
        if (f.number == 1)
            snprintf(tag, sizeof tag, "%.*s", (int)(f.bytes.end - f.bytes.at),
                     (const char *)f.bytes.at);
        else if (f.number == 2)
            rt_putf(&b->scalars, "%lld %s %.9g\n", (long long)step, tag, x);
        else if (f.number == 8)
            tensor = f.bytes;
        else if (f.number == 9 && is_text(f.bytes, "\n\6\n\4text"))
            strcpy(plugin, "text");
    }
    while (next_field(&tensor, &f))
        if (f.number == 8)
            rt_putf(&b->other, "%s %s\n%.*s", plugin, tag,
                    (int)(f.bytes.end - f.bytes.at), (const char *)f.bytes.at);
}

static void
read_event(board *b, message m)
{
    field f, v;
    int64_t step = 0;
    while (next_field(&m, &f)) {
        if (f.number == 1)
            memcpy(&b->last, &f.value, sizeof b->last);
        else if (f.number == 2)
            step = (int64_t)f.value;
        else if (f.number == 3)
            rt_putf(&b->other, "%.*s\n", (int)(f.bytes.end - f.bytes.at),
                    (const char *)f.bytes.at);
        else if (f.number == 7)
            rt_putf(&b->other, "start %lld %s\n", (long long)step,
                    is_text(f.bytes, "\10\1") ? "1" : "?");
        while (f.number == 5 && next_field(&f.bytes, &v))
            read_value(b, step, v.bytes);
    }
    b->first = b->first > 0 ? b->first : b->last;
}

static void
read_file(board *b, const char *path)
{
    int err;
    struct stat st;
    char *text = rt_read_text(path, 1 << 20, &err);
    NEED(text && !stat(path, &st));
    const unsigned char *s = (const unsigned char *)text, *end = s + st.st_size;
    while (s < end) {
        NEED(end - s >= 16);
        uint64_t n = little(s, 8);
        CHECK(masked(s, 8) == little(s + 8, 4));
        NEED(n <= (uint64_t)(end - s) - 16);
        CHECK(masked(s + 12, n) == little(s + 12 + n, 4));
        read_event(b, (message){s + 12, s + 12 + n});
        s += 16 + n;
    }
    b->files++;
    free(text);
}

static board
read_board(const char *dir)
{
    board b = {0};
    struct dirent **name;
    char *runs = rt_path(dir, "runs");
    int n = scandir(runs, &name, NULL, alphasort);
    NEED(n >= 0);
    for (int i = 0; i < n; i++) {
        char *path = rt_path(runs, name[i]->d_name);
        if (!strncmp(name[i]->d_name, "events.out.tfevents.", 20))
            read_file(&b, path);
        free(path);
        free(name[i]);
    }
    free(name);
    free(runs);
    return b;
}

static void
forget(board *b)
{
    free(b->scalars.s);
    free(b->other.s);
}

static void
open_both(rt_log *l, const char *dir, int64_t keep, const char *options)
{
    NEED(rt_log_open(l, dir, keep) == RT_OK);
    NEED(rt_board_open(l, dir, keep, options) == RT_OK);
}

TEST(checksum_is_the_known_one)
{
    CHECK(crc32c((const unsigned char *)"123456789", 9) == 0xe3069283); /* RFC 3720 */
}

TEST(tensorboard_gets_each_row)
{
    rt_log l;
    const char *dir = folder("board");
    double before = (double)time(NULL);
    open_both(&l, dir, -1,
              "{\"seed\": 7, \"output_dir\": \"a|b\", \"shuffle\": false}");
    for (int step = 1; step <= 2; step++)
        add_step(&l, step);
    rt_log_value eval[] = {RT_LOG_NUMBER("step", 300), RT_LOG_NUMBER("eval_loss", 0.5),
                           RT_LOG_FLAG("best", true)};
    rt_log_row(&l, 3, eval);
    board b = read_board(dir); /* it is all there before the file is closed */
    add_end(&l);               /* has no step, and no place among curves */
    CHECK(rt_log_close(&l) == RT_OK);
    NEED(b.files == 1 && b.scalars.s && b.other.s);
    CHECK_STR(b.scalars.s, "1 train/loss 0.125\n1 train/grad_norm 1\n"
                           "1 train/learning_rate 0.00100000005\n"
                           "2 train/loss 0.25\n2 train/learning_rate 0.00100000005\n"
                           "300 eval/loss 0.5\n");
    CHECK_STR(b.other.s, "brain.Event:2\nstart 0 1\ntext options/text_summary\n"
                         "| option | value |\n| --- | --- |\n| seed | 7 |\n"
                         "| output_dir | a\\|b |\n| shuffle | false |\n");
    CHECK(b.first >= before && b.last >= b.first && b.last < before + 60);
    board again = read_board(dir);
    CHECK_STR(b.scalars.s, again.scalars.s);
    forget(&b);
    forget(&again);
}

TEST(a_run_that_goes_on_has_another_file)
{
    rt_log l;
    const char *dir = folder("on");
    open_both(&l, dir, -1, "{}");
    add_step(&l, 1);
    rt_log_close(&l);
    open_both(&l, dir, 1,
              "{}"); /* within the same second: behind the first all the same */
    add_step(&l, 2);
    rt_log_close(&l);
    board b = read_board(dir);
    CHECK(b.files == 2);
    CHECK(strstr(b.other.s, "start 0 1\n") < strstr(b.other.s, "start 2 1\n"));
    CHECK(strstr(b.scalars.s, "1 train/loss") < strstr(b.scalars.s, "2 train/loss"));
    forget(&b);
    open_both(&l, dir, -1, "{}"); /* a new run: the old one's points go */
    add_step(&l, 5);
    rt_log_close(&l);
    b = read_board(dir);
    CHECK(b.files == 1 && !strncmp(b.scalars.s, "5 train/loss", 12));
    forget(&b);
}

TEST(a_full_disk_leaves_whole_records)
{
    rt_log l;
    const char *dir = folder("tight");
    signal(SIGXFSZ, SIG_IGN);
    open_both(&l, dir, -1, "{}");
    add_step(&l, 1);
    toy_listen();
    limit_files(600); /* in the middle of a record */
    for (int step = 2; step < 20; step++)
        add_step(&l, step);
    limit_files(RLIM_INFINITY);
    add_step(&l, 20);
    rt_log_close(&l);
    toy_heard();
    TOY_HEARD("tfevents");
    TOY_HEARD("File too large; training goes on without it");
    board b = read_board(dir);
    CHECK(!strncmp(b.scalars.s, "1 train/loss 0.125\n", 19));
    CHECK(strstr(b.scalars.s, "\n20 train/loss 2.5\n") != NULL);
    CHECK(!strstr(b.scalars.s, "\n19 "));
    forget(&b);
}
