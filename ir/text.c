/* text.c -- the text part of base.h: buffers, numbers, globs, files. */
#include "base.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void
ef_putn(ef_buf *b, const char *s, size_t n)
{
    if (b->cap - b->n < n + 1) {
        size_t cap = b->cap ? b->cap * 2 : 256;
        while (cap - b->n < n + 1)
            cap *= 2;
        char *p = ef_alloc(b->arena, cap);
        if (b->n)
            memcpy(p, b->s, b->n);
        b->s = p;
        b->cap = cap;
    }
    if (n)
        memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = '\0';
}

void
ef_puts(ef_buf *b, const char *s)
{
    ef_putn(b, s, strlen(s));
}

void
ef_putf(ef_buf *b, const char *fmt, ...)
{
    char small[512];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    EF_ASSERT(n >= 0);
    if ((size_t)n < sizeof small)
        ef_putn(b, small, (size_t)n);
    else
        ef_puts(b, ef_vprintf(b->arena, fmt, again));
    va_end(again);
}

const char *
ef_ftoa(double x)
{
    static char turn[4][32];
    static int next;
    if (isnan(x))
        return "nan";
    if (isinf(x))
        return x > 0 ? "inf" : "-inf";
    char *s = turn[next++ & 3];
    if (fabs(x) < 1e15 && x == floor(x) && !(x == 0 && signbit(x))) {
        snprintf(s, sizeof turn[0], "%.0f", x); /* 1000, not 1e+03 */
        return s;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(s, sizeof turn[0], "%.*g", digits, x);
        if (strtod(s, NULL) == x)
            break;
    }
    return s;
}

int
ef_edit_distance(const char *a, const char *b)
{
    enum { MAX = 98, FAR = 99 };
    int row[MAX + 1];
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX || nb > MAX)
        return FAR;
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int best = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = best < change ? best : change;
        }
    }
    return row[nb];
}

bool
ef_glob(const char *pattern, const char *s)
{
    const char *star = NULL, *resume = NULL; /* the last '*', and where its run ends */
    while (*s) {
        if (*pattern == '*') {
            star = pattern++;
            resume = s;
        } else if (*pattern == '?' || *pattern == *s) {
            pattern++;
            s++;
        } else if (star) {
            pattern = star + 1;
            s = ++resume;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

char *
ef_read_file(ef_arena *a, const char *path, size_t max, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    ef_buf b = {.arena = a};
    char part[1 << 14];
    size_t got;
    ef_putn(&b, "", 0);
    while ((got = fread(part, 1, sizeof part, f)) > 0 && b.n <= max)
        ef_putn(&b, part, got);
    int why = ferror(f) ? EIO : b.n > max ? EFBIG : 0;
    fclose(f);
    if (n)
        *n = b.n;
    errno = why;
    return why ? NULL : b.s;
}
