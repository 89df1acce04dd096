/* base_test.c -- arenas, interning, vectors, maps, text. */
#include "test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ir/diag.h"

TEST(arena_gives_zeroed_aligned_memory)
{
    ef_arena *a = ef_arena_new();
    for (size_t n = 0; n < 300; n++) {
        unsigned char *p = ef_alloc(a, n);
        CHECK((uintptr_t)p % 16 == 0);
        for (size_t i = 0; i < n; i++)
            CHECK(p[i] == 0);
        memset(p, 0xab, n);
    }
    char *big = ef_alloc(a, 10 << 20);
    CHECK(big[0] == 0 && big[(10 << 20) - 1] == 0);
    ef_arena_free(a);
    ef_arena_free(NULL);
}

TEST(arena_reset_forgets_but_keeps_chunks)
{
    ef_arena *a = ef_arena_new();
    char *first = ef_alloc(a, 100);
    memset(first, 7, 100);
    for (int i = 0; i < 1000; i++)
        memset(ef_alloc(a, 4000), 7, 4000);
    CHECK(ef_arena_bytes(a) >= 1000 * 4000);
    ef_arena_reset(a);
    CHECK(ef_arena_bytes(a) == 0);
    char *again = ef_alloc(a, 100);
    CHECK(again == first);
    CHECK(again[0] == 0 && again[99] == 0);
    for (int i = 0; i < 1000; i++)
        CHECK(((char *)ef_alloc(a, 4000))[3999] == 0);
    ef_arena_free(a);
}

TEST(arena_strings)
{
    ef_arena *a = ef_arena_new();
    CHECK_STR(ef_strdup(a, "abc"), "abc");
    CHECK_STR(ef_strndup(a, "abcdef", 4), "abcd");
    CHECK_STR(ef_printf(a, "%d-%s", 42, "x"), "42-x");
    CHECK(!memcmp(ef_dup(a, "abc", 3), "abc", 3));
    ef_arena_free(a);
}

TEST(equal_strings_are_interned_once)
{
    ef_ctx *ctx = ef_ctx_new();
    char copy[] = "weight";
    CHECK(ef_intern(ctx, copy) == ef_intern(ctx, "weight"));
    CHECK(ef_internn(ctx, "weights", 6) == ef_intern(ctx, "weight"));
    CHECK(ef_intern(ctx, "weights") != ef_intern(ctx, "weight"));
    CHECK(ef_intern(ctx, "") == ef_internn(ctx, "x", 0));
    const char *first[5000];
    for (int i = 0; i < 5000; i++)
        first[i] = ef_internf(ctx, "n%d", i);
    for (int i = 0; i < 5000; i++)
        CHECK(first[i] == ef_internf(ctx, "n%d", i));
    char longer[1000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK(ef_internf(ctx, "%s", longer) == ef_intern(ctx, longer));
    ef_ctx_free(ctx);
}

TEST(vectors_grow)
{
    ef_arena *a = ef_arena_new();
    EF_VEC(int) v = {0};
    for (int i = 0; i < 1000; i++)
        ef_push(a, v, i * i);
    CHECK(v.n == 1000);
    for (int i = 0; i < 1000; i++)
        CHECK(v.at[i] == i * i);
    ef_arena_free(a);
}

TEST(maps_keep_the_order_of_insertion)
{
    ef_arena *a = ef_arena_new();
    static int key[3000];
    ef_map m = {0};
    CHECK(!ef_map_get(&m, &key[0]) && !ef_map_has(&m, &key[0]));
    for (int i = 0; i < 3000; i++)
        ef_map_set(a, &m, &key[i * 7 % 3000], &key[i]);
    for (int i = 0; i < 3000; i++) {
        CHECK(ef_map_get(&m, &key[i * 7 % 3000]) == &key[i]);
        CHECK(m.key[i] == &key[i * 7 % 3000]);
    }
    ef_map_set(a, &m, &key[5], NULL);
    CHECK(m.n == 3000);
    CHECK(ef_map_has(&m, &key[5]) && !ef_map_get(&m, &key[5]));
    ef_arena_free(a);
}

TEST(buffers_grow_and_end_in_nul)
{
    ef_arena *a = ef_arena_new();
    ef_buf b = {.arena = a};
    ef_puts(&b, "");
    CHECK_STR(b.s, "");
    char want[3001] = "";
    for (int i = 0; i < 1000; i++) {
        ef_putf(&b, "%c", 'a' + i % 26);
        ef_putn(&b, "xyz", 2);
        sprintf(want + 3 * i, "%cxy", 'a' + i % 26);
    }
    CHECK_STR(b.s, want);
    CHECK(b.n == 3000);
    char longer[2000];
    memset(longer, 'q', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    ef_putf(&b, "%s", longer);
    CHECK(b.n == 4999 && b.s[4998] == 'q' && !b.s[4999]);
    ef_arena_free(a);
}

TEST(numbers_read_back_exactly)
{
    CHECK_STR(ef_ftoa(0.1), "0.1");
    CHECK_STR(ef_ftoa(1e-5), "1e-05");
    CHECK_STR(ef_ftoa(1), "1");
    CHECK_STR(ef_ftoa(100000), "100000");
    CHECK_STR(ef_ftoa(-0.0), "-0");
    CHECK_STR(ef_ftoa(1e300), "1e+300");
    CHECK_STR(ef_ftoa(INFINITY), "inf");
    CHECK_STR(ef_ftoa(-INFINITY), "-inf");
    CHECK_STR(ef_ftoa(NAN), "nan");
    CHECK_STR(ef_ftoa(-NAN), "nan");
    uint64_t x = 1;
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        double d;
        memcpy(&d, &x, sizeof d);
        if (isfinite(d))
            CHECK(strtod(ef_ftoa(d), NULL) == d);
        CHECK(strtod(ef_ftoa((double)(float)d), NULL) == (double)(float)d || d != d);
    }
}

TEST(edit_distance)
{
    CHECK(ef_edit_distance("", "") == 0);
    CHECK(ef_edit_distance("batch", "batch") == 0);
    CHECK(ef_edit_distance("batch", "bacth") == 2);
    CHECK(ef_edit_distance("kitten", "sitting") == 3);
    CHECK(ef_edit_distance("", "abc") == 3);
    char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK(ef_edit_distance(longer, "x") == 99);
}

TEST(globs)
{
    CHECK(ef_glob("", "") && ef_glob("*", "") && !ef_glob("?", ""));
    CHECK(ef_glob("h.*.attn", "h.0.attn") && !ef_glob("h.*.attn", "h.0.attn.w"));
    CHECK(ef_glob("*bias", "a.bias") && !ef_glob("*bias", "a.biases"));
    CHECK(ef_glob("l??er", "layer") && !ef_glob("l??er", "lair"));
    CHECK(ef_glob("**a*b", "xxaxxaxb") && !ef_glob("*a", "ab"));
    char many[64] = "*a*a*a*a*a*a*a*a*a*a*b", s[2001];
    memset(s, 'a', 2000);
    s[2000] = '\0';
    CHECK(!ef_glob(many, s)); /* in linear time, or this test does not end */
}

TEST(files)
{
    ef_arena *a = ef_arena_new();
    char path[] = "/tmp/efficc_base_XXXXXX";
    int fd = mkstemp(path);
    NEED(fd >= 0);
    char data[50000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)i;
    CHECK(write(fd, data, sizeof data) == sizeof data);
    close(fd);
    size_t n;
    char *read = ef_read_file(a, path, sizeof data, &n);
    NEED(read != NULL);
    CHECK(n == sizeof data && !memcmp(read, data, n) && !read[n]);
    CHECK(!ef_read_file(a, path, sizeof data - 1, &n) && errno == EFBIG);
    unlink(path);
    CHECK(!ef_read_file(a, path, 100, &n) && errno == ENOENT);
    ef_arena_free(a);
}

static void
hook(void)
{
    fputs("hook ran\n", stderr);
}

TEST(a_broken_invariant_runs_the_hook_and_exits_70)
{
    int fd[2];
    NEED(!pipe(fd));
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        dup2(fd[1], 2);
        ef_assert_hook = hook;
        EF_ASSERT(1 + 1 == 3);
        _exit(0);
    }
    close(fd[1]);
    char said[500] = "";
    size_t n = 0;
    for (ssize_t got; (got = read(fd[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    close(fd[0]);
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 70);
    CHECK(strstr(said, "base_test.c:") && strstr(said, "1 + 1 == 3"));
    CHECK(strstr(said, "hook ran") != NULL);
}
