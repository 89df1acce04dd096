/* data.c -- the first contents of params: bytes of a file, literal values, or a generator.
 *
 * Element i of a generated param depends on the seed, the param's name and i alone, so that
 * any piece of it can be made by anyone who needs it. The generator is Philox4x32-10 (Salmon
 * et al., SC 2011) with counter i/4 and key FNV-1a(name) ^ seed * 0x9e3779b97f4a7c15:
 *
 *   u(j)      (word j%4 of block j/4 + 1/2) * 2^-32
 *   KAIMING   element i = (2 u(i) - 1) / sqrt(last dimension)
 *   NORMAL    elements i and i+1, i even = 0.02 sqrt(-2 log u(i)) times cos, sin of 2 pi u(i+1)
 *
 * runtime/host/init.c holds the same formulas for the trainer: change both or none, a test
 * compares them.
 */
#include "ir.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 13 }; /* elements converted at a time */

/* ---- the generator ---- */

static uint64_t
name_key(const char *name, uint64_t seed)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h ^ (seed * 0x9e3779b97f4a7c15u);
}

static void
philox(uint64_t counter, uint64_t key, uint32_t c[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    c[0] = (uint32_t)counter;
    c[1] = (uint32_t)(counter >> 32);
    c[2] = c[3] = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* u(j) of the block w that j lies in, in (0, 1) */
static double
uniform(const uint32_t w[4], int64_t j)
{
    return (w[j % 4] + 0.5) * 0x1p-32;
}

static double
normal(const uint32_t w[4], int64_t i)
{
    int64_t even = i - i % 2;
    double r = 0.02 * sqrt(-2 * log(uniform(w, even)));
    double angle = 6.283185307179586477 * uniform(w, even + 1);
    return i % 2 ? r * sin(angle) : r * cos(angle);
}

static void
generate(const ir_param *p, uint64_t seed, int64_t first, int64_t n, double *out)
{
    const ir_type *t = p->value->type;
    uint64_t key = name_key(p->value->name, seed);
    double root = t->rank ? sqrt((double)t->dim[t->rank - 1]) : 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t i = first + k;
        uint32_t w[4];
        philox((uint64_t)i / 4, key, w);
        double x =
            p->init == IR_INIT_NORMAL ? normal(w, i) : (2 * uniform(w, i) - 1) / root;
        out[k] = ir_round(t->dtype, x);
    }
}

/* ---- files ---- */

double
ir_from_half(uint16_t h)
{
    int e = h >> 10 & 31, f = h & 1023;
    double x = e == 31 ? (f ? NAN : INFINITY)
               : e     ? ldexp(f + 1024, e - 25)
                       : ldexp(f, -24);
    return h >> 15 ? -x : x;
}

double
ir_from_bfloat(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Element i of little-endian data of type d. */
static double
element(ir_dtype d, const void *data, int64_t i)
{
    switch (d) {
    case IR_F32:
        return ((const float *)data)[i];
    case IR_F16:
        return ir_from_half(((const uint16_t *)data)[i]);
    case IR_BF16:
        return ir_from_bfloat(((const uint16_t *)data)[i]);
    case IR_I64:
        return (double)((const int64_t *)data)[i];
    case IR_I32:
        return ((const int32_t *)data)[i];
    case IR_I8:
        return ((const int8_t *)data)[i];
    default:
        return ((const uint8_t *)data)[i];
    }
}

static bool
fail(ir_module *m, const ir_param *p, const char *what)
{
    return ef_error(m->ctx, p->loc, E_IR_DATA, p->value->name, what);
}

/* n bytes at `at`; NULL, or what is wrong. */
static const char *
read_at(int fd, void *to, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)to + done, n - done, (off_t)(at + done));
        if (got == 0)
            return "the file is too short";
        if (got < 0 && errno != EINTR)
            return strerror(errno);
        done += got > 0 ? (size_t)got : 0;
    }
    return NULL;
}

static bool
read_file(ir_module *m, const ir_param *p, int64_t first, int64_t n, double *out)
{
    int64_t buf[CHUNK]; /* aligned for every element type */
    int bits = ir_dtypes[p->file_dtype].bits;
    if (bits < 8)
        return fail(m, p, "4-bit elements are not supported");
    int fd = open(p->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(m, p, ef_printf(m->ctx->arena, "%s: %s", p->path, strerror(errno)));
    uint64_t size = (uint64_t)bits / 8;
    const char *bad = NULL;
    for (int64_t k = 0; k < n && !bad; k += CHUNK) {
        int64_t some = n - k < CHUNK ? n - k : CHUNK;
        bad =
            read_at(fd, buf, (size_t)some * size, p->at + (uint64_t)(first + k) * size);
        for (int64_t i = 0; i < some && !bad; i++)
            out[k + i] = element(p->file_dtype, buf, i);
    }
    close(fd);
    return bad ? fail(m, p, ef_printf(m->ctx->arena, "%s: %s", p->path, bad)) : true;
}

bool
ir_read_f64(ir_module *m, const ir_param *p, uint64_t seed, int64_t first, int64_t n,
            double *out)
{
    EF_ASSERT(first >= 0 && n >= 0 && first + n <= ir_type_count(p->value->type));
    switch (p->init) {
    case IR_INIT_FILE:
        return read_file(m, p, first, n, out);
    case IR_INIT_VALUES:
        memcpy(out, p->values + first, (size_t)n * sizeof *out);
        return true;
    case IR_INIT_KAIMING:
    case IR_INIT_NORMAL:
        generate(p, seed, first, n, out);
        return true;
    default:
        memset(out, 0, (size_t)n * sizeof *out);
        return true;
    }
}

bool
ir_read_f32(ir_module *m, const ir_param *p, uint64_t seed, int64_t first, int64_t n,
            float *out)
{
    double buf[CHUNK];
    for (int64_t k = 0; k < n; k += CHUNK) {
        int64_t some = n - k < CHUNK ? n - k : CHUNK;
        if (!ir_read_f64(m, p, seed, first + k, some, buf))
            return false;
        for (int64_t i = 0; i < some; i++)
            out[k + i] = (float)buf[i];
    }
    return true;
}
