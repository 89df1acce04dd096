/* onnx_tensor.c -- what a TensorProto holds, and reading it.
 *
 * ONNX has five ways to store elements: another file, raw_data, and typed fields whose
 * packed form on the wire is either the plain little-endian array (float_data,
 * double_data) or varints (the rest). The first three are described by a place in a file;
 * varints are decoded here into such an array in memory.
 */
#include "onnx_int.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

typedef enum store { S_NONE, S_FLOAT, S_DOUBLE, S_INT32, S_INT64, S_UINT64 } store;

#define T(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name
static const struct type_row {
    const char *name;
    int bytes;      /* of an element; 0: not supported */
    ir_dtype dtype; /* in the IR */
    bool same;      /* the IR's dtype has the same bytes */
    store store;    /* the typed field for it */
} types[] = {
    [T(UNDEFINED)] = {"undefined", 0, IR_NDTYPES, false, S_NONE},
    [T(FLOAT)] = {"float", 4, IR_F32, true, S_FLOAT},
    [T(UINT8)] = {"uint8", 1, IR_U8, true, S_INT32},
    [T(INT8)] = {"int8", 1, IR_I8, true, S_INT32},
    [T(UINT16)] = {"uint16", 2, IR_I64, false, S_INT32},
    [T(INT16)] = {"int16", 2, IR_I64, false, S_INT32},
    [T(INT32)] = {"int32", 4, IR_I32, true, S_INT32},
    [T(INT64)] = {"int64", 8, IR_I64, true, S_INT64},
    [T(STRING)] = {"string", 0, IR_NDTYPES, false, S_NONE},
    [T(BOOL)] = {"bool", 1, IR_BOOL, true, S_INT32},
    [T(FLOAT16)] = {"float16", 2, IR_F16, true, S_INT32},
    [T(DOUBLE)] = {"double", 8, IR_F32, false, S_DOUBLE},
    [T(UINT32)] = {"uint32", 4, IR_I64, false, S_UINT64},
    [T(UINT64)] = {"uint64", 8, IR_I64, false, S_UINT64},
    [T(COMPLEX64)] = {"complex64", 0, IR_NDTYPES, false, S_NONE},
    [T(COMPLEX128)] = {"complex128", 0, IR_NDTYPES, false, S_NONE},
    [T(BFLOAT16)] = {"bfloat16", 2, IR_BF16, true, S_INT32},
    [T(FLOAT8E4M3FN)] = {"float8e4m3fn", 0, IR_NDTYPES, false, S_NONE},
    [T(FLOAT8E4M3FNUZ)] = {"float8e4m3fnuz", 0, IR_NDTYPES, false, S_NONE},
    [T(FLOAT8E5M2)] = {"float8e5m2", 0, IR_NDTYPES, false, S_NONE},
    [T(FLOAT8E5M2FNUZ)] = {"float8e5m2fnuz", 0, IR_NDTYPES, false, S_NONE},
    [T(UINT4)] = {"uint4", 0, IR_NDTYPES, false, S_NONE},
    [T(INT4)] = {"int4", 0, IR_NDTYPES, false, S_NONE},
    [T(FLOAT4E2M1)] = {"float4e2m1", 0, IR_NDTYPES, false, S_NONE},
    [T(FLOAT8E8M0)] = {"float8e8m0", 0, IR_NDTYPES, false, S_NONE},
    [T(UINT2)] = {"uint2", 0, IR_NDTYPES, false, S_NONE},
    [T(INT2)] = {"int2", 0, IR_NDTYPES, false, S_NONE},
    [T(FLOAT6E2M3)] = {"float6e2m3", 0, IR_NDTYPES, false, S_NONE},
    [T(FLOAT6E3M2)] = {"float6e3m2", 0, IR_NDTYPES, false, S_NONE},
};

static const struct type_row *
type_row(int onnx)
{
    return onnx > 0 && onnx < (int)EF_COUNT(types) ? &types[onnx] : NULL;
}

ir_dtype
fe_dtype(int onnx)
{
    const struct type_row *row = type_row(onnx);
    return row ? row->dtype : IR_NDTYPES;
}

const char *
fe_type_name(int onnx)
{
    const struct type_row *row = type_row(onnx);
    return row ? row->name : "unknown";
}

/* ---- describing ---- */

static bool wrong(fe_model *m, const fe_tensor *t, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static bool
wrong(fe_model *m, const fe_tensor *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = ef_vprintf(m->arena, fmt, ap);
    va_end(ap);
    return ef_error(m->ctx, t->name, E_ONNX_TENSOR, text);
}

const char *
fe_dims_text(ef_arena *a, size_t rank, const int64_t *dim)
{
    ef_buf b = {.arena = a};
    for (size_t i = 0; i < rank; i++)
        ef_putf(&b, "%s%lld", i ? " x " : "", (long long)dim[i]);
    return rank ? b.s : "1";
}

static bool
describe_type(fe_model *m, fe_tensor *t)
{
    const Onnx__TensorProto *p = t->proto;
    t->type = p->data_type;
    const struct type_row *row = type_row(t->type);
    if (!row)
        return wrong(m, t, "unknown data type %d", t->type);
    if (!row->bytes) {
        wrong(m, t, "%s tensors are not supported", row->name);
        ef_hint(m->ctx, "weights may be float, float16 or bfloat16");
        return false;
    }
    t->dtype = row->dtype;
    return true;
}

static bool
describe_dims(fe_model *m, fe_tensor *t)
{
    const Onnx__TensorProto *p = t->proto;
    if (p->n_dims > IR_MAX_RANK)
        return wrong(m, t, "%zu dimensions, more than %d", p->n_dims, IR_MAX_RANK);
    t->rank = (int)p->n_dims;
    for (int i = 0; i < t->rank; i++) {
        t->dim[i] = p->dims[i];
        if (t->dim[i] < 0)
            return wrong(m, t, "negative dimension %lld", (long long)t->dim[i]);
    }
    int64_t n = 1, bytes;
    bool over = false;
    for (int i = 0; i < t->rank; i++)
        over |= __builtin_mul_overflow(n, t->dim[i], &n);
    over |= __builtin_mul_overflow(n, (int64_t)types[t->type].bytes, &bytes);
    if (over)
        return wrong(m, t, "its size overflows (%s)",
                     fe_dims_text(m->arena, p->n_dims, p->dims));
    t->count = n;
    t->bytes = (uint64_t)bytes;
    return true;
}

/* Elements in typed fields, and whether more than one kind of field is in use. */
static size_t
typed_count(const Onnx__TensorProto *p, store s, bool *mixed)
{
    const size_t n[] = {[S_FLOAT] = p->n_float_data,
                        [S_DOUBLE] = p->n_double_data,
                        [S_INT32] = p->n_int32_data,
                        [S_INT64] = p->n_int64_data,
                        [S_UINT64] = p->n_uint64_data};
    for (size_t i = 1; i < EF_COUNT(n); i++)
        *mixed |= n[i] && i != (size_t)s;
    return n[s];
}

/* The typed field as a plain array of t->type. */
static const uint8_t *
decode(fe_model *m, const fe_tensor *t, store s)
{
    const Onnx__TensorProto *p = t->proto;
    if (s == S_FLOAT)
        return (const uint8_t *)p->float_data;
    if (s == S_DOUBLE)
        return (const uint8_t *)p->double_data;
    if (s == S_INT64)
        return (const uint8_t *)p->int64_data;
    size_t size = (size_t)types[t->type].bytes;
    uint8_t *out = ef_alloc(m->arena, (size_t)t->bytes);
    for (size_t i = 0; i < (size_t)t->count; i++) /* low bytes: little-endian machine */
        memcpy(out + i * size,
               s == S_INT32 ? (const void *)&p->int32_data[i]
                            : (const void *)&p->uint64_data[i],
               size);
    return out;
}

static bool
describe_data(fe_model *m, fe_tensor *t, const fe_payload *where)
{
    const Onnx__TensorProto *p = t->proto;
    store s = types[t->type].store;
    bool mixed = false;
    size_t n = typed_count(p, s, &mixed);
    bool raw = where->field == 9;
    bool array = raw || (where->field == 4 && s == S_FLOAT) ||
                 (where->field == 10 && s == S_DOUBLE); /* one piece of the file */
    if (mixed || (raw && n) || (where->cut && !array))
        return wrong(m, t, "it holds data that are not of its type, %s",
                     types[t->type].name);
    uint64_t bytes = array ? where->bytes : n * (uint64_t)types[t->type].bytes;
    if (t->bytes && !bytes)
        return wrong(m, t, "no data");
    if (bytes != t->bytes)
        return wrong(m, t, "%llu bytes of data for %llu", (unsigned long long)bytes,
                     (unsigned long long)t->bytes);
    if (array) {
        t->path = m->path;
        t->at = where->at;
    }
    if (!where->cut && t->count)
        t->data = raw ? p->raw_data.data : decode(m, t, s);
    return true;
}

bool
fe_tensor_describe(fe_model *m, fe_tensor *t, const fe_payload *where)
{
    const Onnx__TensorProto *p = t->proto;
    if (!describe_type(m, t) || !describe_dims(m, t))
        return false;
    if (p->segment)
        return wrong(m, t, "tensors in segments are not supported");
    bool external = p->has_data_location &&
                    p->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    if (!external && p->n_external_data)
        return wrong(m, t,
                     "it names external data but does not say that they are used");
    if (external &&
        (where->field || p->n_int32_data || p->n_int64_data || p->n_uint64_data))
        return wrong(m, t, "its data are both in the file and external");
    if (external ? !fe_external(m, t) : !describe_data(m, t, where))
        return false;
    t->direct = t->path && types[t->type].same;
    return true;
}

/* ---- reading ---- */

/* Bytes [first, first+n) of t into out. */
static bool
read_bytes(const fe_model *m, const fe_tensor *t, uint64_t first, size_t n,
           uint8_t *out)
{
    if (t->data) {
        memcpy(out, t->data + first, n);
        return true;
    }
    int fd = open(t->path, O_RDONLY | O_CLOEXEC);
    size_t got = 0;
    ssize_t r = fd < 0 ? -1 : 1;
    while (r > 0 && got < n) {
        r = pread(fd, out + got, n - got, (off_t)(t->at + first + got));
        if (r > 0)
            got += (size_t)r;
        else if (r < 0 && errno == EINTR)
            r = 1;
    }
    const char *why = r < 0 ? strerror(errno) : "the file became shorter";
    if (fd >= 0)
        close(fd);
    return got == n || ef_error(m->ctx, t->name, E_IR_DATA, t->name, why);
}

/* One element, of any type that has bytes; *i gets it if it is an integer. */
static double
element(int type, const uint8_t *at, int64_t *i)
{
    union {
        float f;
        double d;
        int64_t i64;
        int32_t i32;
        uint32_t u32;
        int16_t i16;
        uint16_t u16;
        int8_t i8;
    } u;
    memcpy(&u, at, (size_t)types[type].bytes);
    switch (type) {
    case T(FLOAT):
        return (double)u.f;
    case T(DOUBLE):
        return u.d;
    case T(FLOAT16):
        return ir_from_half(u.u16);
    case T(BFLOAT16):
        return ir_from_bfloat(u.u16);
    case T(UINT8):
        return (double)(*i = *at);
    case T(INT8):
        return (double)(*i = u.i8);
    case T(UINT16):
        return (double)(*i = u.u16);
    case T(INT16):
        return (double)(*i = u.i16);
    case T(INT32):
        return (double)(*i = u.i32);
    case T(UINT32):
        return (double)(*i = u.u32);
    case T(BOOL):
        return (double)(*i = *at != 0);
    case T(UINT64):
        return *i = u.i64, (double)(uint64_t)u.i64;
    case T(INT64):
        return (double)(*i = u.i64);
    default:
        EF_UNREACHABLE();
    }
}

enum { CHUNK = 4096 }; /* elements read at a time */

/* Reads into f or i, whichever is not NULL. */
static bool
read_elements(const fe_model *m, const fe_tensor *t, int64_t first, int64_t n,
              double *f, int64_t *i)
{
    uint8_t buf[CHUNK * 8];
    size_t size = (size_t)types[t->type].bytes;
    EF_ASSERT(first >= 0 && n >= 0 && first + n <= t->count);
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t k = n - at < CHUNK ? n - at : CHUNK;
        if (!read_bytes(m, t, (uint64_t)(first + at) * size, (size_t)k * size, buf))
            return false;
        for (int64_t j = 0; j < k; j++) {
            int64_t whole = INT64_MIN;
            double x = element(t->type, buf + (size_t)j * size, &whole);
            bool is_float = ir_dtypes[t->dtype].is_float;
            if (is_float && x >= -0x1p63 && x < 0x1p63)
                whole = (int64_t)x;
            if (f)
                f[at + j] = x;
            else
                i[at + j] = whole;
        }
    }
    return true;
}

bool
fe_tensor_f64(const fe_model *m, const fe_tensor *t, int64_t first, int64_t n,
              double *out)
{
    return read_elements(m, t, first, n, out, NULL);
}

bool
fe_tensor_i64(const fe_model *m, const fe_tensor *t, int64_t first, int64_t n,
              int64_t *out)
{
    return read_elements(m, t, first, n, NULL, out);
}
