/* Files of named tensors: what is written is read back, what is broken is refused. */
#include "test.h"

#include "host_toy.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const float six[] = {1, 2, 3, 4, 5, 6};

static const char *
write_two(const char *name)
{
    rt_st_out t[] = {{"b", 2, {3, 2}, six, true, NULL},
                     {"a", 1, {6}, six, false, NULL}};
    const char *path = toy_path(name);
    NEED(rt_st_write(path, t, 2, true) == RT_OK);
    return path;
}

TEST(what_is_written_is_read)
{
    rt_st st;
    float x[6];
    NEED(rt_st_open(&st, write_two("two")) == RT_OK);
    CHECK(st.torch && st.n == 2);
    CHECK_STR(st.tensor[0].name, "a");
    const rt_st_tensor *b = rt_st_find(&st, "b");
    NEED(b && b->rank == 2 && b->dim[0] == 3 && b->dim[1] == 2);
    NEED(rt_st_read_f32(&st, b, x) == RT_OK);
    /* data was [2,3]: 1 2 3 / 4 5 6 */
    const float want[] = {1, 4, 2, 5, 3, 6};
    CHECK(!memcmp(x, want, sizeof want));
    CHECK(rt_st_find(&st, "c") == NULL);
    rt_st_close(&st);
    CHECK(access(toy_path("two.tmp"), F_OK));
}

TEST(large_transposes_are_streamed_right)
{
    enum { R = 37, C = 1009 };
    float *x = malloc(sizeof(float) * R * C), *y = malloc(sizeof(float) * R * C);
    for (int i = 0; i < R * C; i++)
        x[i] = (float)i;
    rt_st_out t = {"w", 2, {R, C}, x, true, NULL}; /* x is [C,R] */
    NEED(rt_st_write(toy_path("large"), &t, 1, false) == RT_OK);
    rt_st st;
    NEED(rt_st_open(&st, toy_path("large")) == RT_OK);
    CHECK(!st.torch);
    NEED(rt_st_read_f32(&st, &st.tensor[0], y) == RT_OK);
    int wrong = 0;
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            wrong += y[r * C + c] != x[c * R + r];
    CHECK(wrong == 0);
    rt_st_close(&st);
    free(x);
    free(y);
}

static const char *
raw(const char *name, const char *header, const void *data, size_t n)
{
    const char *path = toy_path(name);
    FILE *f = fopen(path, "wb");
    uint64_t length = strlen(header);
    fwrite(&length, 8, 1, f);
    fputs(header, f);
    fwrite(data, 1, n, f);
    fclose(f);
    return path;
}

TEST(half_precision_becomes_float)
{
    const uint16_t h[] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x3f80, 0xc000};
    const char *path =
        raw("half",
            "{\"h\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]},"
            "\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]}}",
            h, sizeof h);
    rt_st st;
    float x[4];
    NEED(rt_st_open(&st, path) == RT_OK);
    NEED(rt_st_read_f32(&st, rt_st_find(&st, "h"), x) == RT_OK);
    CHECK(x[0] == 1 && x[1] == -2 && x[2] == 0x1p-24f && x[3] == 65504);
    NEED(rt_st_read_f32(&st, rt_st_find(&st, "b"), x) == RT_OK);
    CHECK(x[0] == 1 && x[1] == -2);
    rt_st_close(&st);
}

static void
refuses(const char *header, const char *mention)
{
    rt_st st;
    const char *path = raw("broken", header, six, sizeof six);
    toy_listen();
    CHECK(rt_st_open(&st, path) == RT_USER);
    toy_heard();
    TOY_HEARD(mention);
    rt_st_close(&st);
}

TEST(broken_headers_are_refused)
{
    refuses("", "not a safetensors file");
    refuses("not json", "not JSON");
    refuses("[1]", "not JSON");
    refuses("{\"a\":1}", "has no dtype");
    refuses("{\"a\":{\"dtype\":\"Q7\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            "unknown dtype");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[0,28]}}",
            "outside the file");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}",
            "outside the file");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}",
            "outside the file");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
            "do not fit its shape");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1e9,1e9],\"data_offsets\":[0,4]}}",
            "too many elements");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[0.5],\"data_offsets\":[0,4]}}",
            "whole numbers");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":["
            "0,4]}}",
            "up to 8");
}

TEST(a_name_stands_there_once)
{
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[12,12]},"
            "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]}}",
            "holds tensor 'a' twice");
}

TEST(deep_json_is_refused)
{
    enum { DEEP = 1 << 20 };
    char *deep = calloc(DEEP + 8, 1);
    memset(deep, '[', DEEP);
    refuses(deep, "not JSON");
    for (int i = 0; i + 5 <= DEEP; i += 5)
        memcpy(deep + i, "{\"a\":", 5);
    refuses(deep, "not JSON");
    free(deep);
}

TEST(only_regular_files_are_read)
{
    rt_st st;
    toy_listen();
    CHECK(!mkfifo(toy_path("pipe"), 0666));
    CHECK(rt_st_open(&st, toy_path("pipe")) == RT_USER); /* does not wait */
    rt_st_close(&st);
    CHECK(rt_st_open(&st, toy_folder()) == RT_USER);
    rt_st_close(&st);
    CHECK(rt_st_open(&st, "/dev/zero") == RT_USER);
    rt_st_close(&st);
    toy_heard();
    TOY_HEARD("pipe: Invalid argument");
    TOY_HEARD("Is a directory");
}

/* A file whose last tensor does not fit overwrites nothing. */
TEST(initial_tensors_are_all_or_nothing)
{
    rt_program p = toy_program();
    rt_run run = {.program = &p};
    NEED(rt_weights_new(&run, 1 << RT_TRAIN) == RT_OK);
    rt_st_out t[] = {{"fc.bias", 1, {3}, six, false, NULL},
                     {"fc.weight", 2, {2, 3}, six, false, NULL}};
    NEED(rt_st_write(toy_path("half_right"), t, 2, true) == RT_OK);
    toy_listen();
    CHECK(rt_tensors_load(&run, toy_path("half_right")) == RT_USER);
    toy_heard();
    TOY_HEARD("'fc.weight' is [2,3], but the program has [3,4]");
    const float *bias = rt_param_data(&run, &toy_param[2]);
    CHECK(bias[0] == 0 && bias[1] == 0 && bias[2] == 0);
    NEED(rt_st_write(toy_path("right"), t, 1, true) == RT_OK);
    toy_listen();
    CHECK(rt_tensors_load(&run, toy_path("right")) == RT_OK && bias[2] == 3);
    toy_heard();
    rt_weights_free(&run);
}

TEST(every_byte_belongs_to_one_tensor)
{
#define TWO(a, b)                                                        \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[" a "]}," \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[" b "]}}"
    refuses(TWO("0,12", "0,12"), "'b' overlaps");
    refuses(TWO("8,20", "0,12"), "'a' overlaps");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}}",
            "'a' does not begin behind");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,20]}}",
            "bytes behind its last tensor");
    rt_st st;
    CHECK(rt_st_open(&st, raw("exact", TWO("12,24", "0,12"), six, sizeof six)) ==
          RT_OK);
    rt_st_close(&st);
#undef TWO
}

TEST(a_header_longer_than_the_file_is_refused)
{
    rt_st st;
    const char *path = toy_write("short", "\xff\xff\xff\xff\xff\xff\xff\x7f{}");
    toy_listen();
    CHECK(rt_st_open(&st, path) == RT_USER);
    rt_st_close(&st);
    CHECK(rt_st_open(&st, toy_path("absent")) == RT_USER);
    rt_st_close(&st);
    toy_heard();
    TOY_HEARD("not a safetensors file");
    TOY_HEARD("No such file");
}

TEST(a_full_disk_leaves_the_old_file)
{
    const char *path = write_two("kept");
    float *big = calloc(1 << 20, sizeof *big);
    rt_st_out t = {"big", 1, {1 << 20}, big, false, NULL};
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){1 << 16, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    toy_listen();
    CHECK(rt_st_write(path, &t, 1, true) == RT_STOPPED);
    toy_heard();
    setrlimit(RLIMIT_FSIZE, &old);
    TOY_HEARD("make room");
    rt_st st;
    CHECK(rt_st_open(&st, path) == RT_OK && st.n == 2);
    rt_st_close(&st);
    CHECK(access(toy_path("kept.tmp"), F_OK));
    free(big);
}
