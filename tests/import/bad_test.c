/* bad_test.c -- hostile and broken files of tests/cases/bad, through the whole compiler.
 *
 * A good refusal ends with exit code 1 and one message of at most 12 lines that has the
 * words of expect.txt, within a second of a processor's time and 200 MB, and leaves no
 * output folder. (Sanitizers need more of both.)
 */
#include "ir/base.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CASES SRC_DIR "/tests/cases/bad/"

enum { MAX_LINES = 12, MAX_MB = 200, MAX_ARGS = 16, OUTPUT_BYTES = 1 << 20 };
#if defined(__SANITIZE_ADDRESS__)
enum { MAX_MS = 20000, CHECK_MEMORY = 0 };
#else
enum { MAX_MS = 1000, CHECK_MEMORY = 1 };
#endif

typedef struct outcome {
    int code; /* of exit, or 128 + signal */
    long ms, mb;
    char *text; /* both streams */
} outcome;

static long
ms_of(struct timeval t)
{
    return t.tv_sec * 1000 + t.tv_usec / 1000;
}

/* Runs efficc with its output in a file of the working folder. */
static outcome
run(ef_arena *a, char **argv)
{
    outcome o = {0};
    struct rusage usage;
    int status;
    pid_t pid = fork();
    if (!pid) {
        int fd = open("text", O_CREAT | O_TRUNC | O_WRONLY, 0600);
        dup2(fd, 1);
        dup2(fd, 2);
        execv(argv[0], argv);
        _exit(127);
    }
    wait4(pid, &status, 0, &usage);
    o.ms = ms_of(usage.ru_utime) + ms_of(usage.ru_stime);
    o.mb = usage.ru_maxrss / 1024;
    o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    size_t n;
    o.text = ef_read_file(a, "text", OUTPUT_BYTES, &n);
    return o;
}

static int
lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* Splits s at the separator, trims blanks; returns the number of parts. */
static int
split(char *s, const char *separator, char **part, int max)
{
    int n = 0;
    for (char *save, *p = strtok_r(s, separator, &save); p && n < max;
         p = strtok_r(NULL, separator, &save)) {
        p += strspn(p, " ");
        for (size_t k = strlen(p); k && (p[k - 1] == ' ' || p[k - 1] == '\n'); k--)
            p[k - 1] = 0;
        part[n++] = p;
    }
    return n;
}

/* What is wrong with the outcome; NULL: nothing. */
static const char *
judge(ef_arena *a, const outcome *o, const char *want, char *words)
{
    char *word[8];
    bool may_work = *want != 'e' || want[1] == 'i', may_fail = *want == 'e';
    struct stat st;
    if (!(o->code == 0 && may_work) && !(o->code == 1 && may_fail))
        return ef_printf(a, "exit code %d", o->code);
    if (o->code == 0)
        return NULL;
    if (lines(o->text) < 1 || lines(o->text) > MAX_LINES)
        return ef_printf(a, "%d lines", lines(o->text));
    if (o->ms > MAX_MS)
        return ef_printf(a, "%ld ms", o->ms);
    if (CHECK_MEMORY && o->mb > MAX_MB)
        return ef_printf(a, "%ld MB", o->mb);
    if (!stat("out", &st))
        return "an output folder was left";
    for (int i = 0, n = split(words, ",", word, 8); i < n; i++)
        if (!strstr(o->text, word[i]))
            return ef_printf(a, "'%s' is not mentioned", word[i]);
    return NULL;
}

static void
varint(ef_buf *b, size_t v)
{
    for (; v > 127; v >>= 7)
        ef_putn(b, (char[]){(char)(v | 128)}, 1);
    ef_putn(b, (char[]){(char)v}, 1);
}

/* ModelProto.graph { node { attribute { g { node { ... } } } } }, `levels` graphs deep. */
static void
write_nested(ef_arena *a, const char *path, int levels)
{
    static const unsigned char tag[3] = {0x0a, 0x2a, 0x32}; /* node, attribute, g */
    size_t *size = EF_NEWN(a, size_t, 3 * levels + 1);
    for (int i = 1; i <= 3 * levels; i++) {
        size_t n = size[i - 1];
        size[i] = n + 1 + (n < 128 ? 1 : n < 16384 ? 2 : n < 2097152 ? 3 : 4);
    }
    ef_buf b = {.arena = a};
    ef_putn(&b, "\x08\x08\x3a", 3); /* ir_version 8, graph */
    for (int i = 3 * levels; i >= 0; i--) {
        varint(&b, size[i]);
        if (i)
            ef_putn(&b, (const char *)&tag[(3 * levels - i) % 3], 1);
    }
    FILE *f = fopen(path, "wb");
    NEED(f && fwrite(b.s, 1, b.n, f) == b.n && !fclose(f));
}

static void
check_row(ef_arena *a, char *row)
{
    char *field[4] = {0}, *option[8] = {0}, *argv[MAX_ARGS] = {BIN_DIR "/efficc"};
    int n = split(row, "|", field, 4), argc = 1;
    NEED(n >= 2);
    argv[argc++] = field[0];
    for (int i = 0, k = n > 3 ? split(field[3], " ", option, 8) : 0; i < k; i++)
        argv[argc++] = option[i];
    argv[argc++] = "-o";
    argv[argc++] = "out";
    outcome o = run(a, argv);
    const char *wrong = judge(a, &o, field[1], n > 2 ? field[2] : ef_strdup(a, ""));
    if (wrong)
        printf("%s: %s\n%s\n", field[0], wrong, o.text);
    CHECK(!wrong);
    CHECK(!system("rm -rf out"));
}

static void
copy_file(ef_arena *a, const char *from, const char *to)
{
    size_t n;
    char *bytes = ef_read_file(a, from, 1 << 24, &n);
    FILE *f = fopen(to, "wb");
    NEED(bytes && f && fwrite(bytes, 1, n, f) == n && !fclose(f));
}

TEST(bad_files)
{
    ef_arena *a = ef_arena_new();
    char temp[] = "/tmp/efficc-bad-XXXXXX";
    size_t n;
    char *row[100], *table = ef_read_file(a, CASES "expect.txt", 1 << 16, &n);
    NEED(table && mkdtemp(temp) && !chdir(temp));
    NEED(!symlink("/etc/passwd", "weights_link.bin"));
    copy_file(a, CASES "external_small.bin", "external_small.bin");
    int count = split(table, "\n", row, 100), done = 0;
    for (int i = 0; i < count; i++) {
        const char *name = ef_strndup(a, row[i], strcspn(row[i], " |"));
        if (*name == '#')
            continue;
        if (!strcmp(name, "nested_20000.onnx"))
            write_nested(a, name, 20000);
        else
            copy_file(a, ef_printf(a, CASES "%s", name), name);
        check_row(a, row[i]);
        done++;
    }
    CHECK(done == 42);
    NEED(!chdir("/") && !system(ef_printf(a, "rm -r %s", temp)));
    ef_arena_free(a);
}
