/* data_array.c -- numbers that lie in a file as an array, and rows made of them.
 *
 * Files are read, not mapped: pages of a mapped file count as memory of the process, and a
 * file that is cut short would end it. All numbers are checked once, in parallel; each read
 * after that checks again, since a file may change under a run.
 */
#include "data_int.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { RAW = 1 << 15, GRAIN = 1 << 20, SAMPLES = 64, SAMPLE = 4096 };

/* ---- the file ---- */

bool
rt_stat_differs(const struct stat *a, const struct stat *b)
{
    return a->st_size != b->st_size || a->st_mtim.tv_sec != b->st_mtim.tv_sec ||
           a->st_mtim.tv_nsec != b->st_mtim.tv_nsec;
}

int
rt_array_open(rt_array *a, const char *path)
{
    a->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (a->fd < 0)
        return rt_fail(RT_USER, "%s: %s", path, strerror(errno));
    a->path = strdup(path);
    if (fstat(a->fd, &a->was))
        return rt_fail(RT_USER, "%s: %s", path, strerror(errno));
    if (!S_ISREG(a->was.st_mode))
        return rt_fail(RT_USER, "%s is not a file that can be read anywhere", path);
    return RT_OK;
}

void
rt_array_close(rt_array *a)
{
    if (a->path && a->fd >= 0)
        close(a->fd);
    free(a->path);
    *a = (rt_array){0};
}

static int
changed(const rt_array *a)
{
    return rt_fail(RT_USER,
                   "%s has changed since the trainer started; rows of it would be "
                   "wrong\nstart again, with data that stay as they are",
                   a->path);
}

int
rt_array_bytes(const rt_array *a, int64_t at, void *out, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(a->fd, (char *)out + done, n - done, (off_t)at + (off_t)done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return rt_fail(RT_USER, "%s: %s", a->path, strerror(errno));
        if (k == 0)
            return rt_fail(RT_USER, "%s ends at byte %lld, %lld were expected", a->path,
                           (long long)at + (long long)done,
                           (long long)at + (long long)n);
        done += (size_t)k;
    }
    return RT_OK;
}

const char *
rt_array_type(const rt_array *a)
{
    static const char *const name[3][4] = {{"uint8", "uint16", "uint32", "uint64"},
                                           {"int8", "int16", "int32", "int64"},
                                           {"?", "float16", "float32", "float64"}};
    int log = a->size == 8 ? 3 : a->size / 2;
    return name[a->kind == 'f' ? 2 : a->kind == 'i'][log];
}

uint64_t
rt_array_hash(const rt_array *a, uint64_t seed)
{
    char block[SAMPLE];
    int64_t bytes = a->n * a->size;
    int64_t n = bytes < SAMPLE ? bytes : SAMPLE, step = (bytes - n) / (SAMPLES - 1);
    uint64_t hash = XXH3_64bits_withSeed(&a->n, sizeof a->n, seed ^ (uint64_t)a->size);
    for (int64_t i = 0; i < SAMPLES; i++) {
        if (rt_array_bytes(a, a->at + step * i, block, (size_t)n))
            break; /* said; the next read fails as well */
        hash = XXH3_64bits_withSeed(block, (size_t)n, hash);
    }
    return hash;
}

/* ---- numbers ---- */

/* How many of n numbers are out of range. */
#define COUNT(type)                                                              \
    for (int64_t i = 0; i < n; i++) {                                            \
        int64_t x = (int64_t)((const type *)raw)[i];                             \
        count += ((uint64_t)x >= (uint64_t)high) & !(ignore & (x == RT_IGNORE)); \
    }                                                                            \
    break

static int64_t
count_bad(const rt_array *a, const void *raw, int64_t n)
{
    int64_t high = rt_below(a->high), count = 0;
    bool ignore = a->ignore;
    switch (a->kind == 'u' ? a->size : -a->size) {
    case 1:
        COUNT(uint8_t);
    case 2:
        COUNT(uint16_t);
    case 4:
        COUNT(uint32_t);
    case 8:
        COUNT(uint64_t);
    case -1:
        COUNT(int8_t);
    case -2:
        COUNT(int16_t);
    case -4:
        COUNT(int32_t);
    default:
        COUNT(int64_t);
    }
    return count;
}

static int64_t
one_int(const rt_array *a, const void *raw, int64_t i)
{
    switch (a->kind == 'u' ? a->size : -a->size) {
    case 1:
        return ((const uint8_t *)raw)[i];
    case 2:
        return ((const uint16_t *)raw)[i];
    case 4:
        return ((const uint32_t *)raw)[i];
    case 8:
        return (int64_t)((const uint64_t *)raw)[i];
    case -1:
        return ((const int8_t *)raw)[i];
    case -2:
        return ((const int16_t *)raw)[i];
    case -4:
        return ((const int32_t *)raw)[i];
    default:
        return ((const int64_t *)raw)[i];
    }
}

static double
one_float(const rt_array *a, const void *raw, int64_t i)
{
    if (a->kind != 'f')
        return (double)one_int(a, raw, i);
    return a->size == 4 ? (double)((const float *)raw)[i] : ((const double *)raw)[i];
}

static bool
in_range(const rt_array *a, int64_t x)
{
    return (x >= 0 && x < rt_below(a->high)) || (a->ignore && x == RT_IGNORE);
}

static bool
unchanged(const rt_array *a)
{
    struct stat now;
    return fstat(a->fd, &now) == 0 && !rt_stat_differs(&a->was, &now);
}

/* Numbers raw[0..n) as elements of out; false: one is not what the check saw. */
typedef bool convert(const rt_array *, const char *raw, int64_t n, void *out);

static int
convert_all(const rt_array *a, int64_t from, int64_t n, convert *put, char *out)
{
    _Alignas(8) char raw[RAW];
    int64_t most = RAW / a->size;
    for (int64_t k; n > 0; from += k, out += 4 * k, n -= k) {
        k = n < most ? n : most;
        int code =
            rt_array_bytes(a, a->at + from * a->size, raw, (size_t)(k * a->size));
        if (code)
            return code;
        if (!put(a, raw, k, out))
            return changed(a);
    }
    return unchanged(a) ? RT_OK : changed(a);
}

static bool
put_ints(const rt_array *a, const char *raw, int64_t n, void *out)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t x = one_int(a, raw, i);
        bool fine = in_range(a, x);
        if (!fine && !a->forgiving)
            return false;
        ((int32_t *)out)[i] = fine ? (int32_t)x : RT_IGNORE;
    }
    return true;
}

static bool
put_floats(const rt_array *a, const char *raw, int64_t n, void *out)
{
    for (int64_t i = 0; i < n; i++)
        ((float *)out)[i] = (float)one_float(a, raw, i);
    return true;
}

int
rt_array_ints(const rt_array *a, int64_t from, int64_t n, int32_t *out)
{
    return convert_all(a, from, n, put_ints, (char *)out);
}

int
rt_array_floats(const rt_array *a, int64_t from, int64_t n, float *out)
{
    return convert_all(a, from, n, put_floats, (char *)out);
}

/* ---- the check of all numbers ---- */

typedef struct range_check {
    const rt_array *a;
    const rt_data_spec *spec;
    rt_field f;
    int64_t row; /* tokens of one; 0: unknown */
} range_check;

static void
fault(rt_sweep *s, int64_t at, double x)
{
    const range_check *c = s->of;
    char where[160], text[RT_FAULT];
    if (c->row > 1)
        snprintf(where, sizeof where, "%s %lld (row %lld, place %lld, from 0)",
                 c->a->field, (long long)at, (long long)(at / c->row),
                 (long long)(at % c->row));
    else
        snprintf(where, sizeof where, "%s %lld (from 0)", c->a->field, (long long)at);
    rt_bad_value(c->spec, c->f, where, x, text);
    rt_faults_add(&s->faults, at, "%s", text);
}

static void
check_range(rt_sweep *s, int64_t from, int64_t to)
{
    _Alignas(8) char raw[RAW];
    const range_check *c = s->of;
    const rt_array *a = c->a;
    int64_t most = RAW / a->size, bad = 0;
    int code = RT_OK;
    for (int64_t k; from < to && !code; from += k) {
        k = to - from < most ? to - from : most;
        code = rt_array_bytes(a, a->at + from * a->size, raw, (size_t)(k * a->size));
        int64_t here = code ? 0 : count_bad(a, raw, k);
        bad += here;
        if (!here || a->forgiving)
            continue;
        pthread_mutex_lock(&s->lock);
        for (int64_t i = 0; i < k; i++)
            if (!in_range(a, one_int(a, raw, i)))
                fault(s, from + i, (double)one_int(a, raw, i));
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_lock(&s->lock);
    s->code = s->code ? s->code : code;
    s->found[0] += bad;
    pthread_mutex_unlock(&s->lock);
}

int
rt_array_check(const rt_array *a, const rt_data_spec *spec, rt_field f, int64_t row,
               int64_t *foreign)
{
    range_check c = {a, spec, f, row};
    rt_sweep s = {.threads = rt_sweep_threads(spec, a->n / GRAIN + 1),
                  .n = a->n,
                  .grain = GRAIN,
                  .work = check_range,
                  .of = &c};
    bool any = a->kind == 'u' && a->size < 8 && a->n &&
               (int64_t)1 << 8 * a->size <= rt_below(a->high);
    int code = any ? RT_OK : rt_sweep_run(&s);
    *foreign += s.found[0];
    return code ? code : rt_faults_say(&s.faults, a->path, false);
}

/* ---- rows of arrays ---- */

/* First token and number of tokens of row i; may use row->memory. */
static int
place(const rt_data *d, const rt_data_file *f, int64_t i, rt_row *row, int64_t at[2])
{
    const struct rt_source *s = f->source;
    int64_t left = s->array[RT_F_IDS].n - i * s->width;
    at[0] = i * s->width;
    at[1] = left < s->width ? left : s->width;
    if (s->width)
        return RT_OK;
    if (rt_store_read(d->store, s->first + i, row) < 0)
        return RT_USER;
    memcpy(at, row->memory, 2 * sizeof *at);
    return RT_OK;
}

static int
labels(const struct rt_source *s, int64_t i, const int64_t at[2], int32_t *out,
       rt_row *row)
{
    const rt_array *a = &s->array[RT_F_LABELS];
    row->nlabel = s->nlabel ? s->nlabel : row->n;
    int64_t from = s->nlabel ? i * s->nlabel : at[0];
    if (s->floats) {
        row->value = (float *)out;
        return rt_array_floats(a, from, row->nlabel, (float *)out);
    }
    row->field[RT_F_LABELS] = out;
    return rt_array_ints(a, from, row->nlabel, out);
}

int
rt_arrays_row(const rt_data *d, const rt_data_file *f, int64_t i, rt_row *row)
{
    const struct rt_source *s = f->source;
    int64_t at[2] = {0};
    int code = place(d, f, i, row, at);
    row->n = at[1];
    row->value = NULL;
    row->nlabel = 0;
    int32_t *out = rt_row_room(
        row, (size_t)(RT_F_LABELS * at[1] + (s->nlabel ? s->nlabel : at[1])) *
                 sizeof(int32_t));
    for (int k = 0; k < RT_NFIELDS; k++) {
        row->field[k] = NULL;
        if (!s->array[k].path || code)
            continue;
        if (k == RT_F_LABELS) {
            code = labels(s, i, at, out, row);
            continue;
        }
        code = rt_array_ints(&s->array[k], at[0], at[1], out);
        row->field[k] = out;
        out += at[1];
    }
    return code;
}
