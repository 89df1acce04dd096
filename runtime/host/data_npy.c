/* data_npy.c -- NumPy's .npy: token ids as one stream [n], cut into rows of seq tokens, or as
 * rows [n, tokens]; other fields stand in files beside.
 *
 * NAME.npy has NAME.labels.npy, NAME.attention_mask.npy and so on; a name that ends in
 * input_ids.npy has the field's name in that place: input_ids.npy, labels.npy. Labels are one
 * a token (the shape of the ids) or one a row [n]; for a regression floats, [n] or [n,
 * outputs].
 *
 * Header: numpy/lib/format.py.
 */
#include "data_int.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_HEADER = 65536 };

typedef struct shape {
    int rank; /* 1 or 2 */
    int64_t dim[2];
} shape;

/* ---- the header ---- */

typedef struct header {
    const char *path;
    char type[8];
    bool fortran, have[3]; /* descr, fortran_order, shape */
    shape shape;
} header;

static int
bad_header(const header *h, const char *what)
{
    return rt_fail(RT_USER, "%s: not a NumPy header: %s", h->path, what);
}

static const char *
space(const char *s)
{
    return s + strspn(s, " \n\t");
}

/* 'text' of Python into out; NULL: none stands there, or it is too long. */
static const char *
quoted(const char *s, char *out, size_t size)
{
    char quote = *s;
    const char *end = quote == '\'' || quote == '"' ? strchr(s + 1, quote) : NULL;
    if (!end || (size_t)(end - s) > size)
        return NULL;
    memcpy(out, s + 1, (size_t)(end - s - 1));
    out[end - s - 1] = 0;
    return end + 1;
}

/* "(3,)", "(3, 4)"; a rank of 3: more than two. */
static const char *
tuple(const char *s, shape *out)
{
    if (*s++ != '(')
        return NULL;
    for (s = space(s); *s != ')'; s = space(s)) {
        char *end;
        if (*s < '0' || *s > '9')
            return NULL;
        unsigned long long x = strtoull(s, &end, 10);
        if (end - s > 18)
            return NULL;
        if (out->rank < 2)
            out->dim[out->rank] = (int64_t)x;
        out->rank += out->rank < 3;
        s = space(end + (*end == 'L')); /* of Python 2 */
        if (*s == ',')
            s++;
        else if (*s != ')')
            return NULL;
    }
    return s + 1;
}

static const char *
value(header *h, const char *key, const char *s)
{
    static const char *const known[] = {"descr", "fortran_order", "shape"};
    int k = 0;
    while (k < 3 && strcmp(key, known[k]))
        k++;
    if (k == 3)
        return NULL;
    h->have[k] = true;
    if (k == 0)
        return quoted(s, h->type, sizeof h->type);
    if (k == 2)
        return tuple(s, &h->shape);
    h->fortran = !strncmp(s, "True", 4);
    return h->fortran ? s + 4 : strncmp(s, "False", 5) ? NULL : s + 5;
}

static int
parse(header *h, const char *s)
{
    s = space(s);
    if (*s++ != '{')
        return bad_header(h, "no dictionary");
    for (s = space(s); *s != '}'; s = space(s)) {
        char key[32];
        if (!(s = quoted(s, key, sizeof key)))
            return bad_header(h, "a key is missing");
        s = space(s);
        if (*s != ':')
            return bad_header(h, "':' is missing");
        bool type = !strcmp(key, "descr");
        s = space(s + 1);
        if (type && *s == '[')
            return rt_fail(RT_USER, "%s: elements with several fields can't be read",
                           h->path);
        if (!(s = value(h, key, s)))
            return bad_header(h, key);
        s = space(s);
        s += *s == ',';
    }
    if (!h->have[0] || !h->have[1] || !h->have[2])
        return bad_header(h, "descr, fortran_order or shape is missing");
    return RT_OK;
}

/* Text of the header into *text (free it) and the first element into a->at. */
static int
header_text(rt_array *a, char **text)
{
    unsigned char head[12];
    int code = rt_array_bytes(a, 0, head, 10);
    header h = {.path = a->path};
    if (code)
        return code;
    bool one = head[6] == 1;
    if (memcmp(head, "\x93NUMPY", 6) || head[6] < 1 || head[6] > 3)
        return bad_header(&h, "its version is not 1, 2 or 3");
    code = one ? RT_OK : rt_array_bytes(a, 10, head + 10, 2);
    if (code)
        return code;
    uint32_t n = head[8] | (uint32_t)head[9] << 8;
    n |= one ? 0 : (uint32_t)head[10] << 16 | (uint32_t)head[11] << 24;
    if (n > MOST_HEADER)
        return bad_header(&h, "it is too long");
    a->at = (one ? 10 : 12) + (int64_t)n;
    *text = rt_new((size_t)n + 1, 1);
    return rt_array_bytes(a, one ? 10 : 12, *text, n);
}

static int
element_type(rt_array *a, const header *h)
{
    const char *t = h->type;
    a->kind = t[0] ? t[1] : 0;
    a->size = a->kind && t[2] >= '1' && t[2] <= '8' && !t[3] ? t[2] - '0' : 0;
    if (a->kind == 'b' && a->size == 1)
        a->kind = 'u';
    bool whole = a->kind == 'i' || a->kind == 'u';
    bool known = whole ? a->size == 1 || a->size == 2 || a->size == 4 || a->size == 8
                       : a->kind == 'f' && (a->size == 4 || a->size == 8);
    if (t[0] == '>' && known && a->size > 1)
        return rt_fail(RT_USER,
                       "%s: numbers are big endian (%s)\nconvert with numpy: "
                       "array.astype('<%s')",
                       a->path, t, t + 1);
    if (!known || (t[0] != '<' && t[0] != '|'))
        return rt_fail(RT_USER,
                       "%s: elements of type '%s' can't be read\nconvert with numpy: "
                       "array.astype('int32')",
                       a->path, t);
    if (h->fortran && h->shape.rank > 1)
        return rt_fail(
            RT_USER,
            "%s: columns stand one behind the other (fortran_order)\nconvert "
            "with numpy.ascontiguousarray()",
            a->path);
    return RT_OK;
}

static int
elements(rt_array *a, const header *h)
{
    int64_t bytes, want;
    if (h->shape.rank < 1 || h->shape.rank > 2)
        return rt_fail(
            RT_USER, "%s has %s dimensions; it must have one (a stream) or two (rows)",
            a->path, h->shape.rank ? "more than two" : "no");
    a->n = h->shape.dim[0];
    bool fits =
        h->shape.rank == 1 || !__builtin_mul_overflow(a->n, h->shape.dim[1], &a->n);
    fits = fits && !__builtin_mul_overflow(a->n, a->size, &bytes) &&
           !__builtin_add_overflow(bytes, a->at, &want);
    if (!fits || want != a->was.st_size)
        return rt_fail(
            RT_USER,
            "%s: its header says %lld x %lld numbers of %d bytes behind byte "
            "%lld, but the file has %lld bytes",
            a->path, (long long)h->shape.dim[0],
            h->shape.rank > 1 ? (long long)h->shape.dim[1] : 1, a->size,
            (long long)a->at, (long long)a->was.st_size);
    return RT_OK;
}

static int
open_array(rt_array *a, const char *path, shape *out)
{
    header h = {.path = path};
    char *text = NULL;
    int code = rt_array_open(a, path);
    if (!code)
        code = header_text(a, &text);
    if (!code)
        code = parse(&h, text);
    if (!code)
        code = element_type(a, &h);
    if (!code)
        code = elements(a, &h);
    *out = h.shape;
    free(text);
    return code;
}

/* ---- the files of a data set ---- */

/* The file of a field; free it. */
static char *
path_of(const char *ids, rt_field f)
{
    static const char own[] = "input_ids.npy";
    size_t n = strlen(ids), end = sizeof own - 1;
    rt_text t = {0};
    bool has_own = n >= end && !strcmp(ids + n - end, own);
    bool has_end = n > 4 && !strcmp(ids + n - 4, ".npy");
    n -= has_own ? end : has_end ? 4 : 0;
    rt_putf(&t, "%.*s%s%s.npy", (int)n, ids, has_own ? "" : ".", rt_field_name(f));
    return t.s;
}

static const char *
shape_text(const shape *s, char *out, size_t size)
{
    if (s->rank == 1)
        snprintf(out, size, "[%lld]", (long long)s->dim[0]);
    else
        snprintf(out, size, "[%lld, %lld]", (long long)s->dim[0], (long long)s->dim[1]);
    return out;
}

static bool
equal(const shape *a, const shape *b)
{
    return a->rank == b->rank && a->dim[0] == b->dim[0] && a->dim[1] == b->dim[1];
}

static int
want_shape(const rt_array *a, const shape *got, const shape *want, const char *why)
{
    char is[64], must[64];
    if (equal(got, want))
        return RT_OK;
    return rt_fail(RT_USER, "%s is %s, but must be %s%s", a->path,
                   shape_text(got, is, sizeof is), shape_text(want, must, sizeof must),
                   why);
}

/* Labels a row: s->nlabel; one a token: 0. */
static int
shape_of_labels(rt_loading *l, rt_array *a, const shape *got, const shape *ids)
{
    const rt_data_spec *spec = &l->d->spec;
    struct rt_source *s = l->file->source;
    bool a_token = equal(got, ids);
    int64_t n = got->rank == 1 ? 1 : got->dim[1];
    s->floats =
        spec->label == RT_LABEL_VALUES ||
        (spec->label == RT_LABEL_ANY && (a->kind == 'f' || (!a_token && n > 1)));
    if (!s->floats && a->kind == 'f')
        return rt_fail(RT_USER,
                       "%s: labels are floats, but classes and token ids are whole "
                       "numbers\nconvert with numpy: array.astype('int32')",
                       a->path);
    if (spec->label == RT_LABEL_TOKEN ||
        (spec->label == RT_LABEL_ANY && a_token && !s->floats))
        return want_shape(a, got, ids, ": one label a token");
    s->nlabel = n;
    if (ids->rank == 1)
        return rt_fail(RT_USER,
                       "%s: labels of rows, but the ids are one stream and not rows",
                       a->path);
    if (got->dim[0] != ids->dim[0])
        return want_shape(a, got, &(shape){1, {ids->dim[0], 0}}, ": one label a row");
    if (spec->label == RT_LABEL_ROW && n != 1)
        return rt_fail(RT_USER, "%s has %lld labels a row; one is wanted", a->path,
                       (long long)n);
    if (spec->label == RT_LABEL_VALUES && spec->labels && n != spec->labels)
        return rt_fail(RT_USER,
                       "%s has %lld values a row, but the model has %lld outputs",
                       a->path, (long long)n, (long long)spec->labels);
    return RT_OK;
}

static int
open_field(rt_loading *l, rt_field f, const shape *ids, rt_text *found)
{
    rt_array *a = &l->file->source->array[f];
    const rt_data_spec *spec = &l->d->spec;
    char *path = path_of(l->file->path, f);
    shape got;
    int code = RT_OK;
    bool exists = access(path, F_OK) == 0;
    if (exists && !spec->takes[f])
        l->notes->ignored[f] += l->file->n;
    else if (exists)
        code = open_array(a, path, &got);
    free(path);
    if (code || !a->path)
        return code;
    a->field = rt_field_name(f);
    a->high = spec->high[f];
    rt_putf(found, "%s %s", found->n ? "," : "", rt_field_name(f));
    if (f == RT_F_LABELS) {
        a->ignore = true;
        a->forgiving = spec->use == RT_PREDICTION;
        return shape_of_labels(l, a, &got, ids);
    }
    if (a->kind == 'f')
        return rt_fail(RT_USER, "%s: %s are whole numbers, not %s", a->path, a->field,
                       rt_array_type(a));
    return want_shape(a, &got, ids, ", as the ids are");
}

static int
open_ids(rt_loading *l, shape *ids)
{
    const rt_data_spec *spec = &l->d->spec;
    rt_data_file *f = l->file;
    rt_array *a = &f->source->array[RT_F_IDS];
    int code = open_array(a, f->path, ids);
    if (code)
        return code;
    if (a->kind == 'f')
        return rt_fail(RT_USER,
                       "%s: token ids are whole numbers, not %s\nconvert with numpy: "
                       "array.astype('int32')",
                       a->path, rt_array_type(a));
    int64_t stream = spec->seq ? spec->seq : 1024;
    f->source->width = ids->rank == 2 ? ids->dim[1] : stream;
    if (ids->rank == 2 && spec->seq && ids->dim[1] > spec->seq)
        return rt_fail(
            RT_USER,
            "%s: rows have %lld tokens, but at most %lld can be taken\nshorten "
            "the rows, or compile again with efficc --seq %lld",
            a->path, (long long)ids->dim[1], (long long)spec->seq,
            (long long)ids->dim[1]);
    a->field = "token";
    a->high = spec->high[RT_F_IDS];
    f->ntoken = a->n;
    f->n = a->n ? (a->n + f->source->width - 1) / f->source->width : 0;
    return RT_OK;
}

static int
open_npy(rt_loading *l)
{
    shape ids = {0};
    rt_text found = {0}, t = {0};
    int code = open_ids(l, &ids);
    for (int f = RT_F_MASK; f < RT_NFIELDS && !code; f++)
        code = open_field(l, (rt_field)f, &ids, &found);
    if (!code) {
        char text[64];
        rt_putf(&t, "NumPy, %s %s", rt_array_type(&l->file->source->array[RT_F_IDS]),
                shape_text(&ids, text, sizeof text));
        rt_putf(&t, found.n ? " with%s" : "%s", found.n ? found.s : " alone");
        l->file->format = t.s;
        code = rt_arrays_check(l);
    }
    free(found.s);
    return code;
}

const rt_reader rt_npy_reader = {open_npy, rt_arrays_row};
