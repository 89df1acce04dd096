/* type.c -- interned types, their sizes, text and strides. */
#include <inttypes.h>
#include <string.h>

#include "base_int.h"
#include "ir_int.h"

static uint64_t
hash_type(const ir_type *t)
{
    uint64_t h = (uint64_t)t->dtype * 31 + t->rank + (t->sharded ? 977 : 0);
    h ^= ef_hash(t->dim, sizeof t->dim[0] * t->rank);
    return h ^ ef_hash(t->sym, t->rank) << 1;
}

static bool
equal(const ir_type *a, const ir_type *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->sharded == b->sharded &&
           !memcmp(a->dim, b->dim, sizeof a->dim[0] * a->rank) &&
           !memcmp(a->sym, b->sym, a->rank);
}

static void
types_rehash(ef_ctx *ctx)
{
    ef_interns *in = ctx->interns;
    size_t cap = in->type_cap ? in->type_cap * 2 : 256;
    const ir_type **slot = EF_NEWN(ctx->arena, const ir_type *, cap);
    for (size_t i = 0; i < in->type_cap; i++) {
        if (!in->type[i])
            continue;
        size_t at = hash_type(in->type[i]) & (cap - 1);
        while (slot[at])
            at = (at + 1) & (cap - 1);
        slot[at] = in->type[i];
    }
    in->type = slot;
    in->type_cap = cap;
}

const ir_type *
ir_type_intern(ef_ctx *ctx, const ir_type *t)
{
    EF_ASSERT(t->rank <= IR_MAX_RANK && t->dtype < IR_NDTYPES);
    ef_interns *in = ctx->interns;
    if (in->ntype * 2 >= in->type_cap)
        types_rehash(ctx);
    size_t at = hash_type(t) & (in->type_cap - 1);
    for (; in->type[at]; at = (at + 1) & (in->type_cap - 1))
        if (equal(in->type[at], t))
            return in->type[at];
    ir_type *copy = EF_NEW(ctx->arena, ir_type);
    copy->dtype = t->dtype;
    copy->rank = t->rank;
    copy->sharded = t->sharded;
    memcpy(copy->dim, t->dim, sizeof t->dim[0] * t->rank);
    memcpy(copy->sym, t->sym, t->rank);
    in->ntype++;
    return in->type[at] = copy;
}

const ir_type *
ir_type_get(ef_ctx *ctx, ir_dtype dtype, int rank, const int64_t *dim)
{
    EF_ASSERT(rank >= 0 && rank <= IR_MAX_RANK);
    ir_type t = {.dtype = dtype, .rank = (uint8_t)rank};
    if (rank)
        memcpy(t.dim, dim, sizeof *dim * (size_t)rank);
    return ir_type_intern(ctx, &t);
}

const ir_type *
ir_type_with(ef_ctx *ctx, const ir_type *t, ir_dtype dtype)
{
    ir_type copy = *t;
    copy.dtype = dtype;
    return ir_type_intern(ctx, &copy);
}

bool
ir_dims_ok(int rank, const int64_t *dim)
{
    if (rank < 0 || rank > IR_MAX_RANK)
        return false;
    int64_t n = 1; /* of the dims that are not 0: those must fit even where one is 0 */
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 0 || dim[i] > IR_MAX_COUNT / n)
            return false;
        n *= dim[i] ? dim[i] : 1;
    }
    return true;
}

int64_t
ir_type_count(const ir_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dim[i];
    return n;
}

int64_t
ir_type_bytes(const ir_type *t)
{
    return (ir_type_count(t) * ir_dtypes[t->dtype].bits + 7) / 8;
}

const char *
ir_type_text(ef_ctx *ctx, const ir_type *t)
{
    static const char *const sym[] = {"", "rows:", "sup:"};
    char s[IR_MAX_RANK * 28 + 32];
    int n = snprintf(s, sizeof s, "%s", ir_dtypes[t->dtype].name);
    if (t->dtype != IR_FUT) {
        for (int i = 0; i < t->rank; i++)
            n += snprintf(s + n, sizeof s - (size_t)n, "%s%s%" PRId64, i ? "," : "[",
                          sym[t->sym[i]], t->dim[i]);
        n += snprintf(s + n, sizeof s - (size_t)n, "%s", t->rank ? "]" : "[]");
    }
    snprintf(s + n, sizeof s - (size_t)n, "%s", t->sharded ? "/dp" : "");
    return ef_intern(ctx, s);
}

const ir_type *
ir_type_broadcast(ef_ctx *ctx, const ir_type *a, const ir_type *b)
{
    const ir_type *more = a->rank >= b->rank ? a : b, *less = more == a ? b : a;
    ir_type t = *more;
    t.dtype = a->dtype;
    int skip = more->rank - less->rank;
    for (int i = skip; i < t.rank; i++) {
        int64_t d = less->dim[i - skip];
        uint8_t sym = less->sym[i - skip];
        if (d == t.dim[i] && sym == t.sym[i])
            continue;
        if (d == 1 && sym == IR_FIXED)
            continue;
        if (t.dim[i] != 1 || t.sym[i] != IR_FIXED)
            return NULL;
        t.dim[i] = d;
        t.sym[i] = sym;
    }
    return ir_dims_ok(t.rank, t.dim) ? ir_type_intern(ctx, &t) : NULL;
}

/* ---- loops over dense operands ---- */

void
ir_strides(const ir_type *t, int rank, int64_t *stride)
{
    int64_t s = 1;
    for (int d = rank - 1; d >= 0; d--) {
        int own = d - (rank - t->rank);
        int64_t n = own < 0 ? 1 : t->dim[own];
        stride[d] = n == 1 ? 0 : s;
        s *= n;
    }
}

/* Can dimension d be run as one with d + 1? */
static bool
joins(int d, const int64_t *dim, int n, int64_t (*stride)[IR_MAX_RANK])
{
    for (int k = 0; k < n; k++)
        if (stride[k][d] != stride[k][d + 1] * dim[d + 1])
            return false;
    return true;
}

int
ir_collapse(int rank, int64_t *dim, int n, int64_t (*stride)[IR_MAX_RANK])
{
    for (int d = rank - 1; d >= 0; d--) {
        bool join = d + 1 < rank && joins(d, dim, n, stride);
        if (dim[d] != 1 && !join)
            continue;
        if (join)
            dim[d + 1] *= dim[d];
        rank--;
        for (int i = d; i < rank; i++) {
            dim[i] = dim[i + 1];
            for (int k = 0; k < n; k++)
                stride[k][i] = stride[k][i + 1];
        }
    }
    return rank;
}
