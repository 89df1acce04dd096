/* weights.c -- base.safetensors: the first contents of params.
 *
 * Tensors are copied in pieces of a megabyte from wherever their bytes stand, so that memory
 * does not grow with the model. Layout is the file's, larger elements stand before smaller
 * ones, so that each tensor is aligned. What the trainer makes itself (zeros,
 * random adapters and heads) is not in the file.
 *
 * The header names the hash of the data. They are read once, so the hash is known only when
 * they are written; it then replaces the zeros that were its place.
 */
#include "cg_int.h"

#include <efficc_low.h>

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PIECE = 1 << 18 }; /* elements */

typedef struct out {
    ir_module *m;
    FILE *f;
    const char *path;
    void *piece;     /* PIECE elements as they are written */
    double *numbers; /* PIECE elements before they are converted */
    XXH3_state_t *hash;
    char source[17]; /* RT_SOURCE_HASH; "": none */
} out;

static const ir_dtype order[] = {IR_I64, IR_F32, IR_BF16, IR_F16, IR_BOOL};
static const char *const word[] = {"I64", "F32", "BF16", "F16", "BOOL"};

static bool
is_stored(const ir_param *p)
{
    return p->cls <= IR_CONST && (p->init == IR_INIT_FILE || p->init == IR_INIT_VALUES);
}

static bool
failed(out *o)
{
    return ef_error(o->m->ctx, NULL, E_CG_OUTPUT, o->path, strerror(errno));
}

/* ---- header ---- */

static void
describe(const ir_param *p, const char *dtype, int64_t *at, cJSON *header)
{
    const ir_type *t = p->value->type;
    cJSON *o = cJSON_AddObjectToObject(header, p->value->name);
    cJSON_AddStringToObject(o, "dtype", dtype);
    cJSON *shape = cJSON_AddArrayToObject(o, "shape");
    for (int i = 0; i < t->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->dim[i]));
    cJSON *offsets = cJSON_AddArrayToObject(o, "data_offsets");
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)*at));
    *at += ir_type_bytes(t);
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)*at));
}

/* What the file begins with, behind the length of its header. */
static const char metadata[] = "{\"__metadata__\":{\"" RT_BASE_HASH "\":\"";
static const char no_hash[] = "0000000000000000";

static bool
write_header(out *o)
{
    cJSON *header = cJSON_CreateObject();
    cJSON *meta = cJSON_AddObjectToObject(header, "__metadata__");
    cJSON_AddStringToObject(meta, RT_BASE_HASH, no_hash);
    if (*o->source)
        cJSON_AddStringToObject(meta, RT_SOURCE_HASH, o->source);
    int64_t at = 0;
    for (int k = 0; k < (int)EF_COUNT(order); k++)
        for (int i = 0; i < o->m->params.n; i++) {
            const ir_param *p = o->m->params.at[i];
            if (is_stored(p) && p->value->type->dtype == order[k])
                describe(p, word[k], &at, header);
        }
    char *text = cJSON_PrintUnformatted(header);
    EF_ASSERT(text && !strncmp(text, metadata, strlen(metadata)));
    uint64_t n = strlen(text), padded = (n + 7) / 8 * 8;
    uint8_t size[8];
    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)(padded >> (8 * i));
    bool ok = fwrite(size, 1, 8, o->f) == 8 && fwrite(text, 1, n, o->f) == n &&
              fprintf(o->f, "%*s", (int)(padded - n), "") == (int)(padded - n);
    free(text);
    cJSON_Delete(header);
    return ok || failed(o);
}

/* ---- contents ---- */

/* y [n] = x [n] as elements of the low type t. */
static void
round_floats(uint16_t *y, const float *x, ir_dtype t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = t == IR_BF16 ? rt_to_bf16(x[i]) : rt_to_f16(x[i]);
}

/* Elements that are not finite; in f16 a number may have become so. */
static int64_t
count_odd(const void *piece, ir_dtype t, int64_t n)
{
    const float *x = piece;
    const uint16_t *y = piece;
    int64_t odd = 0;
    for (int64_t i = 0; i < n; i++)
        odd += t == IR_F32    ? !isfinite(x[i])
               : t == IR_BF16 ? (y[i] & 0x7f80) == 0x7f80
                              : (y[i] & 0x7c00) == 0x7c00;
    return odd;
}

/* Elements [first, first+n) into o->piece as they are written; *odd counts those that are
 * not finite. */
static bool
read_piece(out *o, const ir_param *p, int64_t first, int64_t n, int64_t *odd)
{
    ir_dtype t = p->value->type->dtype;
    if (ir_dtypes[t].is_float) {
        void *floats = t == IR_F32 ? o->piece : o->numbers;
        if (!ir_read_f32(o->m, p, 0, first, n, floats))
            return false;
        if (t != IR_F32)
            round_floats(o->piece, floats, t, n);
        *odd += count_odd(o->piece, t, n);
        return true;
    }
    if (!ir_read_f64(o->m, p, 0, first, n, o->numbers))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (t == IR_I64)
            ((int64_t *)o->piece)[i] = (int64_t)o->numbers[i];
        else
            ((uint8_t *)o->piece)[i] = o->numbers[i] != 0;
    return true;
}

static bool
write_param(out *o, const ir_param *p)
{
    int64_t total = ir_type_count(p->value->type), odd = 0;
    size_t size = (size_t)cg_size(p->value->type->dtype);
    for (int64_t first = 0, n; first < total; first += n) {
        n = total - first < PIECE ? total - first : PIECE;
        if (!read_piece(o, p, first, n, &odd))
            return false;
        if (fwrite(o->piece, size, (size_t)n, o->f) != (size_t)n)
            return failed(o);
        XXH3_64bits_update(o->hash, o->piece, size * (size_t)n);
    }
    if (odd && p->cls != IR_CONST) /* masks hold -inf */
        ef_error(o->m->ctx, p->loc, W_CG_NOT_FINITE, p->value->name, (long long)odd,
                 (long long)total);
    return true;
}

static bool
write_hash(out *o)
{
    long at = 8 + (long)strlen(metadata);
    unsigned long long hash = XXH3_64bits_digest(o->hash);
    bool ok = !fseek(o->f, at, SEEK_SET) && fprintf(o->f, "%016llx", hash) == 16;
    return ok || failed(o);
}

static bool
write_all(out *o)
{
    bool ok = write_header(o);
    for (int k = 0; k < (int)EF_COUNT(order); k++)
        for (int i = 0; i < o->m->params.n && ok; i++) {
            const ir_param *p = o->m->params.at[i];
            if (is_stored(p) && p->value->type->dtype == order[k])
                ok = write_param(o, p);
        }
    return ok && write_hash(o);
}

/* Elements of other types have no place in the program yet. */
static bool
check_types(const ir_module *m)
{
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        ir_dtype t = p->value->type->dtype;
        bool low = t == IR_BF16 || t == IR_F16;
        bool right = t == IR_F32 ||
                     (low && (p->cls == IR_FROZEN || p->cls == IR_CONST ||
                              p->cls == IR_IMAGE)) ||
                     ((t == IR_I64 || t == IR_BOOL) && p->cls == IR_CONST);
        if (!right)
            return ef_error(m->ctx, p->loc, E_CG_OP, p->value->name, "cpu",
                            ef_internf(m->ctx, "a parameter of type %s",
                                       ir_type_text(m->ctx, p->value->type)));
    }
    return true;
}

bool
cg_weights(ir_module *m, const char *dir)
{
    if (!check_types(m))
        return false;
    ef_arena *a = ef_arena_new();
    out o = {.m = m, .path = ef_printf(m->ctx->arena, "%s/base.safetensors", dir)};
    o.piece = ef_alloc(a, PIECE * sizeof(int64_t));
    o.numbers = EF_NEWN(a, double, PIECE);
    o.hash = XXH3_createState();
    EF_ASSERT(o.hash);
    XXH3_64bits_reset(o.hash);
    bool ok = cg_base_hash(m, a, o.source);
    o.f = ok ? fopen(o.path, "wb") : NULL;
    if (ok)
        ok = o.f ? write_all(&o) : failed(&o);
    if (o.f && fclose(o.f) && ok)
        ok = failed(&o);
    XXH3_freeState(o.hash);
    ef_arena_free(a);
    return ok;
}
