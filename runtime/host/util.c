/* util.c -- messages, memory, growing text and the clock. */
#include "host_int.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

FILE *rt_out, *rt_err;
const char *rt_name = "trainer";

FILE *
rt_report(void)
{
    return rt_out ? rt_out : stdout;
}

static void
message(const char *kind, const char *fmt, va_list ap)
{
    FILE *f = rt_err ? rt_err : stderr;
    rt_progress_wipe();
    fflush(rt_report());
    fprintf(f, "%s: %s: ", rt_name, kind);
    char text[4096];
    vsnprintf(text, sizeof text, fmt, ap);
    for (char *line = text, *end; line; line = end) {
        if ((end = strchr(line, '\n')))
            *end++ = 0;
        fprintf(f, "%s%s\n", line == text ? "" : "  ", line);
    }
    fflush(f);
}

int
rt_fail(int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    message("error", fmt, ap);
    va_end(ap);
    return code;
}

void
rt_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    message("warning", fmt, ap);
    va_end(ap);
}

void
rt_say(const char *subject, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    rt_progress_wipe();
    fprintf(rt_report(), "%-9s ", subject);
    vfprintf(rt_report(), fmt, ap);
    fputc('\n', rt_report());
    fflush(rt_report());
    va_end(ap);
}

void *
rt_grow(void *old, size_t bytes)
{
    void *p = realloc(old, bytes ? bytes : 1);
    if (!p)
        exit(rt_fail(RT_USER, "out of memory: %zu more bytes are not there", bytes));
    return p;
}

XXH3_state_t *
rt_hash_new(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_64bits_reset(state) == XXH_ERROR)
        exit(rt_fail(RT_USER, "out of memory"));
    return state;
}

void *
rt_new(size_t n, size_t size)
{
    if (size && n > SIZE_MAX / 2 / size)
        exit(rt_fail(RT_USER, "out of memory: %zu x %zu bytes are too many", n, size));
    return memset(rt_grow(NULL, n * size), 0, n * size);
}

void
rt_putf(rt_text *t, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t need = (size_t)vsnprintf(NULL, 0, fmt, ap);
    if (t->n + need + 1 > t->cap)
        t->s = rt_grow(t->s, t->cap = 2 * t->cap + need + 64);
    vsnprintf(t->s + t->n, need + 1, fmt, again);
    t->n += need;
    va_end(again);
    va_end(ap);
}

void
rt_put(rt_text *t, const void *bytes, size_t n)
{
    if (!n) /* memcpy() takes no NULL, not even for nothing */
        return;
    if (t->n + n + 1 > t->cap)
        t->s = rt_grow(t->s, t->cap = 2 * t->cap + n + 64);
    memcpy(t->s + t->n, bytes, n);
    t->n += n;
}

void
rt_put_json(rt_text *t, const char *s)
{
    rt_putf(t, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            rt_putf(t, "\\%c", c);
        else if (c < 0x20)
            rt_putf(t, "\\u%04x", c);
        else
            rt_putf(t, "%c", c);
    }
    rt_putf(t, "\"");
}

const char *
rt_bytes_text(double bytes)
{
    static char text[8][32];
    static int turn;
    char *s = text[turn++ % 8];
    const char *unit[] = {"bytes", "kB", "MB", "GB", "TB"};
    int u = 0;
    for (; bytes >= 999.5 && u < 4; u++)
        bytes /= 1000;
    snprintf(s, sizeof text[0], u && bytes < 99.95 ? "%.1f %s" : "%.0f %s", bytes,
             unit[u]);
    return s;
}

int
rt_distance(const char *a, const char *b)
{
    enum { MAX = 99 };
    int row[MAX + 1];
    int n = (int)strnlen(b, MAX);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i] && i < MAX; i++) {
        int corner = row[0];
        row[0] = i + 1;
        for (int j = 1; j <= n; j++) {
            int change = corner + (a[i] != b[j - 1]);
            corner = row[j];
            int insert = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < insert ? change : insert;
        }
    }
    return row[n];
}

int
rt_distance_part(const char *given, const char *known)
{
    int d = rt_distance(given, known);
    return d > 2 && *given && strstr(known, given) ? 2 : d;
}

bool
rt_is_near(const char *given, int distance)
{
    return distance <= 2 + (int)strlen(given) / 4;
}

double
rt_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The number behind key in a file of "key: number kB" lines; 0: not there. */
static int64_t
kilobytes(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    char line[256];
    long long kb = 0;
    size_t n = strlen(key);
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && sscanf(line + n, ": %lld", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb * 1024;
}

int64_t
rt_peak_rss(void)
{
    return kilobytes("/proc/self/status", "VmHWM");
}

/* The first number of a file; -1: none. */
static int64_t
number_in(const char *path)
{
    FILE *f = fopen(path, "r");
    long long n = -1;
    if (f && fscanf(f, "%lld", &n) != 1)
        n = -1;
    if (f)
        fclose(f);
    return n;
}

int64_t
rt_free_memory(void)
{
    int64_t bytes = kilobytes("/proc/meminfo", "MemAvailable");
    /* a container's own limit; "max" reads as no number */
    int64_t most = number_in("/sys/fs/cgroup/memory.max");
    return most > 0 && most < bytes ? most : bytes;
}

void
rt_check_op(rt_run *run, int op)
{
    run->check->see(run, op);
}
