/* safetensors.c -- see safetensors.h. */
#include "host_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_HEADER = 100 << 20 }; /* the limit of the reference implementation */

/* ---- reading ---- */

static int
dtype_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int bytes;
    } known[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I64", 8},
                 {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U8", 1},  {"BOOL", 1},
                 {"U64", 8}, {"U32", 4}, {"U16", 2}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(dtype, known[i].name))
            return known[i].bytes;
    return 0;
}

static int
read_at(const rt_st *st, uint64_t at, void *out, uint64_t n)
{
    char *p = out;
    while (n) {
        ssize_t got = pread(st->fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return rt_fail(RT_USER, "%s: %s", st->path,
                           got ? strerror(errno)
                               : "is shorter than when it was opened");
        p += got;
        at += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return RT_OK;
}

/* A whole number below 2^53; false: something else. */
static bool
whole(const cJSON *item, double *out)
{
    *out = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return *out >= 0 && *out < 0x1p53 && *out == floor(*out);
}

/* NULL, or what is wrong with the entry. */
static const char *
read_entry(const cJSON *item, rt_st_tensor *t, uint64_t data, uint64_t size)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    double from, to, d;
    if (!cJSON_IsString(dtype) || !cJSON_IsArray(shape) ||
        cJSON_GetArraySize(offsets) != 2)
        return "has no dtype, shape and data_offsets";
    int bytes = dtype_bytes(dtype->valuestring);
    if (!bytes)
        return "has an unknown dtype";
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype->valuestring);
    if (!whole(offsets->child, &from) || !whole(offsets->child->next, &to) ||
        from > to || to > (double)(size - data))
        return "lies outside the file";
    t->at = data + (uint64_t)from;
    t->bytes = (uint64_t)(to - from);
    t->count = 1;
    const cJSON *dim;
    cJSON_ArrayForEach(dim, shape)
    {
        if (t->rank == 8 || !whole(dim, &d))
            return "has a shape that is not up to 8 whole numbers";
        if (d > 0 && t->count > (int64_t)(0x1p53 / d))
            return "has too many elements";
        t->dim[t->rank++] = (int64_t)d;
        t->count *= (int64_t)d;
    }
    return (uint64_t)t->count * (uint64_t)bytes == t->bytes
               ? NULL
               : "has data_offsets that do not fit its shape";
}

static int
read_header(rt_st *st, const cJSON *header, uint64_t data, uint64_t size)
{
    st->tensor = rt_new((size_t)cJSON_GetArraySize(header) + 1, sizeof *st->tensor);
    const cJSON *item;
    cJSON_ArrayForEach(item, header)
    {
        if (!strcmp(item->string, "__metadata__")) {
            const char *format =
                cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "format"));
            st->torch = format && !strcmp(format, "pt");
            free(st->meta); /* of an object that has the key twice */
            st->meta = cJSON_PrintUnformatted(item);
            continue;
        }
        rt_st_tensor *t = &st->tensor[st->n++];
        t->name = strdup(item->string);
        const char *wrong = read_entry(item, t, data, size);
        if (wrong)
            return rt_fail(RT_USER, "%s: tensor '%.200s' %s", st->path, t->name, wrong);
    }
    return RT_OK;
}

static int
by_place(const void *a, const void *b)
{
    const rt_st_tensor *x = *(const rt_st_tensor *const *)a,
                       *y = *(const rt_st_tensor *const *)b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int
by_tensor_name(const void *a, const void *b)
{
    return strcmp((*(const rt_st_tensor *const *)a)->name,
                  (*(const rt_st_tensor *const *)b)->name);
}

/* The index by name; a name may stand there once. */
static int
sort_names(rt_st *st)
{
    st->by_name = rt_new((size_t)st->n + 1, sizeof *st->by_name);
    for (int i = 0; i < st->n; i++)
        st->by_name[i] = &st->tensor[i];
    qsort(st->by_name, (size_t)st->n, sizeof *st->by_name, by_tensor_name);
    for (int i = 1; i < st->n; i++)
        if (!by_tensor_name(&st->by_name[i - 1], &st->by_name[i]))
            return rt_fail(RT_USER, "%s holds tensor '%.200s' twice", st->path,
                           st->by_name[i]->name);
    return RT_OK;
}

/* The format wants every byte of the data to belong to one tensor. */
static int
check_places(const rt_st *st, uint64_t data, uint64_t size)
{
    const rt_st_tensor **at = rt_new((size_t)st->n + 1, sizeof *at);
    for (int i = 0; i < st->n; i++)
        at[i] = &st->tensor[i];
    qsort(at, (size_t)st->n, sizeof *at, by_place);
    int code = RT_OK;
    for (int i = 0; i < st->n && !code; data += at[i++]->bytes)
        if (at[i]->at != data)
            code = rt_fail(RT_USER, "%s: tensor '%.200s' %s the one before it",
                           st->path, at[i]->name,
                           at[i]->at < data ? "overlaps" : "does not begin behind");
    if (!code && data != size)
        code = rt_fail(RT_USER, "%s has bytes behind its last tensor", st->path);
    free(at);
    return code;
}

int
rt_st_open(rt_st *st, const char *path)
{
    *st = (rt_st){.path = strdup(path)};
    int64_t bytes = 0;
    st->fd = rt_open_regular(path, &bytes);
    if (st->fd < 0)
        return rt_fail(RT_USER, "%s: %s", path, strerror(errno));
    uint64_t size = (uint64_t)bytes, n = 0;
    unsigned char b[8];
    if (size >= 8 && read_at(st, 0, b, 8))
        return RT_USER;
    for (int i = 7; size >= 8 && i >= 0; i--)
        n = n << 8 | b[i];
    if (n < 2 || n > MAX_HEADER || n > size - 8)
        return rt_fail(RT_USER, "%s is not a safetensors file", path);
    char *text = rt_new(n + 1, 1);
    int code = read_at(st, 8, text, n);
    cJSON *header = code ? NULL : cJSON_ParseWithLength(text, n);
    free(text);
    if (!code && !cJSON_IsObject(header))
        code = rt_fail(RT_USER, "%s: the header is not JSON", path);
    else if (!code)
        code = read_header(st, header, 8 + n, size);
    if (!code)
        code = sort_names(st);
    if (!code)
        code = check_places(st, 8 + n, size);
    cJSON_Delete(header);
    return code;
}

void
rt_st_close(rt_st *st)
{
    for (int i = 0; i < st->n; i++)
        free(st->tensor[i].name);
    free(st->tensor);
    free(st->by_name);
    free(st->meta);
    free(st->path);
    if (st->fd >= 0)
        close(st->fd);
    *st = (rt_st){.fd = -1};
}

const rt_st_tensor *
rt_st_find(const rt_st *st, const char *name)
{
    const rt_st_tensor key = {.name = (char *)name}, *k = &key;
    rt_st_tensor **found =
        st->n ? bsearch(&k, st->by_name, (size_t)st->n, sizeof k, by_tensor_name)
              : NULL;
    return found ? *found : NULL;
}

int
rt_st_read(const rt_st *st, const rt_st_tensor *t, uint64_t from, void *out, uint64_t n)
{
    if (from > t->bytes || n > t->bytes - from)
        return rt_fail(RT_BUG, "%s: read past the end of '%s'", st->path, t->name);
    return read_at(st, t->at + from, out, n);
}

static float
from_half(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double x =
        e == 31 ? (m ? NAN : INFINITY) : ldexp(m + (e ? 1024 : 0), (e ? e : 1) - 25);
    return (float)(h & 0x8000 ? -x : x);
}

static float
from_bfloat(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* n elements of a type that is not F32. */
static void
convert(const char *dtype, const char *in, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        double wide;
        if (!strcmp(dtype, "F64")) {
            memcpy(&wide, in + 8 * i, 8);
            out[i] = (float)wide;
            continue;
        }
        memcpy(&half, in + 2 * i, 2);
        out[i] = dtype[0] == 'F' ? from_half(half) : from_bfloat(half);
    }
}

int
rt_st_check_f32(const rt_st *st, const rt_st_tensor *t)
{
    static const char *const known[] = {"F32", "F16", "BF16", "F64"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(t->dtype, known[i]))
            return RT_OK;
    return rt_fail(RT_USER, "%s: tensor '%s' is %s, not floating point", st->path,
                   t->name, t->dtype);
}

int
rt_st_read_f32(const rt_st *st, const rt_st_tensor *t, float *out)
{
    if (!strcmp(t->dtype, "F32"))
        return rt_st_read(st, t, 0, out, t->bytes);
    if (rt_st_check_f32(st, t))
        return RT_USER;
    enum { PART = 1 << 16 };
    char *buf = rt_new(PART, 8);
    int64_t size = t->count ? (int64_t)t->bytes / t->count : 0;
    int code = RT_OK;
    for (int64_t i = 0; i < t->count && !code; i += PART) {
        int64_t n = t->count - i < PART ? t->count - i : PART;
        code = rt_st_read(st, t, (uint64_t)(i * size), buf, (uint64_t)(n * size));
        if (!code)
            convert(t->dtype, buf, out + i, n);
    }
    free(buf);
    return code;
}

/* ---- writing ---- */

static int
by_name(const void *a, const void *b)
{
    return strcmp(((const rt_st_made *)a)->name, ((const rt_st_made *)b)->name);
}

static int
out_by_name(const void *a, const void *b)
{
    return strcmp(((const rt_st_out *)a)->name, ((const rt_st_out *)b)->name);
}

static int64_t
count(int rank, const int64_t *dim)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dim[i];
    return n;
}

void
rt_file_tensor(rt_file *f, const rt_st_out *t)
{
    rt_file_floats(f, "f32", t);
}

static char *
header_of(const rt_st_made *t, int n, const char *meta)
{
    rt_text h = {0};
    rt_putf(&h, "{%s%s", meta ? "\"__metadata__\":" : "", meta ? meta : "");
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        rt_putf(&h, "%s", meta || i ? "," : "");
        rt_put_json(&h, t[i].name);
        rt_putf(&h, ":{\"dtype\":\"%s\",\"shape\":[", t[i].dtype);
        for (int d = 0; d < t[i].rank; d++)
            rt_putf(&h, "%s%lld", d ? "," : "", (long long)t[i].dim[d]);
        int64_t bytes = count(t[i].rank, t[i].dim) * dtype_bytes(t[i].dtype);
        rt_putf(&h, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
                (long long)(at + bytes));
        at += bytes;
    }
    rt_putf(&h, "}");
    while (h.n % 8) /* so that the data are aligned */
        rt_putf(&h, " ");
    return h.s;
}

typedef void put_fn(rt_file *, const rt_st_made *, void *arg);

static void
put_all(rt_file *f, rt_st_made *t, int n, const char *meta, put_fn *put, void *arg)
{
    qsort(t, (size_t)n, sizeof *t, by_name);
    char *header = header_of(t, n, meta);
    uint64_t length = strlen(header);
    unsigned char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)(length >> 8 * i);
    rt_file_write(f, b, 8);
    rt_file_write(f, header, length);
    for (int i = 0; i < n && !f->code; i++)
        put(f, &t[i], arg);
    free(header);
}

static void
put_data(rt_file *f, const rt_st_made *t, void *arg)
{
    (void)arg;
    rt_file_tensor(f, t->of);
}

static void
put_tensors(rt_file *f, rt_st_out *t, int n, const char *meta)
{
    qsort(t, (size_t)n, sizeof *t, out_by_name);
    rt_st_made *made = rt_new((size_t)n + 1, sizeof *made);
    for (int i = 0; i < n; i++) {
        made[i] = (rt_st_made){t[i].name, "F32", t[i].rank, {0}, &t[i]};
        memcpy(made[i].dim, t[i].dim, sizeof made[i].dim);
    }
    put_all(f, made, n, meta, put_data, NULL);
    free(made);
}

static const char torch_meta[] = "{\"format\":\"pt\"}";

void
rt_file_tensors(rt_file *f, rt_st_out *t, int n, bool torch)
{
    put_tensors(f, t, n, torch ? torch_meta : NULL);
}

int
rt_st_write_meta(const char *path, rt_st_out *t, int n, const char *meta)
{
    rt_file f;
    rt_file_open(&f, path);
    put_tensors(&f, t, n, meta);
    return rt_file_done(&f);
}

int
rt_st_write(const char *path, rt_st_out *t, int n, bool torch)
{
    return rt_st_write_meta(path, t, n, torch ? torch_meta : NULL);
}

int
rt_st_write_made(const char *path, rt_st_made *t, int n, const char *meta, put_fn *put,
                 void *arg)
{
    rt_file f;
    rt_file_open(&f, path);
    put_all(&f, t, n, meta, put, arg);
    return rt_file_done(&f);
}
