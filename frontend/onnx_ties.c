/* onnx_ties.c -- finds matrices that are byte copies of another, as they are or transposed.
 *
 * Exporters write a tied output layer as a second, transposed initializer, and shared
 * matrices twice; trained apart they would drift apart. A few sampled elements of each
 * matrix, read in its own order and in the transposed one, tell which pairs are worth
 * comparing; those are compared whole, in pieces. A matrix whose samples are all equal (a
 * fresh zero) is no copy of anything.
 */
#include "import_int.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 24, CHUNK = 1 << 16, TILE = 1024, ELEMENT_MAX = 8 };

typedef struct matrix {
    fe_param *p;
    int64_t rows, cols;
    int size;              /* bytes of an element */
    uint64_t own, flipped; /* hashes of the samples, of this matrix and its transpose */
    bool uniform;
} matrix;

typedef struct ties {
    fe_imp *im;
    const char *path; /* of the file that is open */
    int fd;           /* -1: none */
    ef_map seen;      /* "rows.cols.hash" -> matrix* */
    uint8_t *a, *b;   /* CHUNK, and TILE rows or columns of a tile */
} ties;

/* ---- reading ---- */

static bool
read_raw(ties *x, const fe_tensor *t, uint64_t at, size_t n, uint8_t *to)
{
    if (t->data) {
        memcpy(to, t->data + at, n);
        return true;
    }
    if (x->path != t->path) {
        if (x->fd >= 0)
            close(x->fd);
        x->path = t->path;
        x->fd = open(t->path, O_RDONLY | O_CLOEXEC);
    }
    for (size_t done = 0; x->fd >= 0 && done < n;) {
        ssize_t k = pread(x->fd, to + done, n - done, (off_t)(t->at + at + done));
        if (k <= 0)
            return ef_error(x->im->ctx, t->name, E_FILE, t->path,
                            k ? strerror(errno) : "the file became shorter");
        done += (size_t)k;
    }
    return x->fd >= 0 ||
           ef_error(x->im->ctx, t->name, E_FILE, t->path, strerror(errno));
}

/* ---- samples ---- */

static uint64_t
mix(uint64_t h, const uint8_t *s, int n)
{
    for (int i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001b3u;
    return h;
}

/* Hash of elements at places that depend on the shape rows x cols only; `flip`: of the
 * transpose of m, whose shape that is. */
static bool
sample(ties *x, matrix *m, bool flip, uint64_t *hash)
{
    int64_t rows = flip ? m->cols : m->rows, cols = flip ? m->rows : m->cols;
    uint8_t first[ELEMENT_MAX], e[ELEMENT_MAX];
    uint64_t h = 0xcbf29ce484222325u, r = 1;
    m->uniform = true;
    for (int i = 0; i < SAMPLES; i++) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        int64_t row = (int64_t)((r >> 33) % (uint64_t)rows);
        r = r * 6364136223846793005u + 1442695040888963407u;
        int64_t col = (int64_t)((r >> 33) % (uint64_t)cols);
        int64_t at = flip ? col * m->cols + row : row * m->cols + col;
        if (!read_raw(x, m->p->t, (uint64_t)at * (uint64_t)m->size, (size_t)m->size, e))
            return false;
        if (!i)
            memcpy(first, e, sizeof first);
        m->uniform &= !memcmp(first, e, (size_t)m->size);
        h = mix(h, e, m->size);
    }
    *hash = h;
    return true;
}

/* ---- whole comparisons ---- */

static bool
same_bytes(ties *x, const matrix *m, const matrix *n, bool *same)
{
    uint64_t bytes = m->p->t->bytes;
    *same = true;
    for (uint64_t at = 0; *same && at < bytes; at += CHUNK) {
        size_t k = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;
        if (!read_raw(x, m->p->t, at, k, x->a) || !read_raw(x, n->p->t, at, k, x->b))
            return false;
        *same = !memcmp(x->a, x->b, k);
    }
    return true;
}

/* Rows [row, row + nrow) and columns [col, col + ncol) of m, packed. */
static bool
read_tile(ties *x, const matrix *m, const int64_t *start, const int64_t *n, uint8_t *to)
{
    size_t line = (size_t)(n[1] * m->size);
    for (int64_t i = 0; i < n[0]; i++) {
        uint64_t at =
            (uint64_t)((start[0] + i) * m->cols + start[1]) * (uint64_t)m->size;
        if (!read_raw(x, m->p->t, at, line, to + (size_t)i * line))
            return false;
    }
    return true;
}

static bool
tile_is_transpose(const uint8_t *a, const uint8_t *b, const int64_t *n, int size)
{
    for (int64_t i = 0; i < n[0]; i++)
        for (int64_t j = 0; j < n[1]; j++)
            if (memcmp(a + (i * n[1] + j) * size, b + (j * n[0] + i) * size,
                       (size_t)size))
                return false;
    return true;
}

/* Is n the transpose of m? Tiles are TILE x TILE/4, so that lines are long on both sides. */
static bool
same_transposed(ties *x, const matrix *m, const matrix *n, bool *same)
{
    *same = true;
    for (int64_t i = 0; *same && i < m->rows; i += TILE)
        for (int64_t j = 0; *same && j < m->cols; j += TILE / 4) {
            int64_t start[2] = {i, j}, flipped[2] = {j, i};
            int64_t size[2] = {m->rows - i < TILE ? m->rows - i : TILE,
                               m->cols - j < TILE / 4 ? m->cols - j : TILE / 4};
            int64_t turned[2] = {size[1], size[0]};
            if (!read_tile(x, m, start, size, x->a) ||
                !read_tile(x, n, flipped, turned, x->b))
                return false;
            *same = tile_is_transpose(x->a, x->b, size, m->size);
        }
    return true;
}

/* ---- candidates ---- */

static const char *
seen_key(ties *x, const matrix *m, bool flip)
{
    int64_t rows = flip ? m->cols : m->rows, cols = flip ? m->rows : m->cols;
    return ef_internf(x->im->ctx, "%lld.%lld.%d.%llx", (long long)rows, (long long)cols,
                      m->p->t->type, (unsigned long long)(flip ? m->flipped : m->own));
}

/* A table and an output layer that config.json says are two. */
static bool
is_untied_head(const fe_imp *im, const fe_param *p, const fe_param *q)
{
    return im->config && im->config->untied && p->table != q->table;
}

/* Ties m to a matrix that was seen before, or remembers it. */
static bool
consider(ties *x, matrix *m)
{
    if (!sample(x, m, true, &m->flipped) || !sample(x, m, false, &m->own))
        return false;
    if (m->uniform)
        return true;
    const char *key = seen_key(x, m, false);
    for (int flip = 0; flip < 2; flip++) {
        const matrix *root = ef_map_get(&x->seen, flip ? seen_key(x, m, true) : key);
        bool same = false;
        if (root && is_untied_head(x->im, root->p, m->p))
            continue;
        if (root && x->im->ctx->cfg->glance)
            same = true;
        else if (root && !(flip ? same_transposed : same_bytes)(x, root, m, &same))
            return false;
        if (!same)
            continue;
        m->p->tie = root->p;
        m->p->tie_transposed = flip;
        ef_push(x->im->arena, root->p->copies, m->p);
        if (root->p->lookup) /* PyTorch calls a tied pair by the first of them */
            root->p->hf = root->p->lookup;
        return true;
    }
    if (!ef_map_has(&x->seen, key))
        ef_map_set(x->im->arena, &x->seen, key, m);
    return true;
}

static bool
consider_all(ties *x, bool tables)
{
    for (int i = 0; i < x->im->params.n; i++) {
        fe_param *p = x->im->params.at[i];
        if (p->t->rank != 2 || p->table != tables || p->t->dim[0] < 2 ||
            p->t->dim[1] < 2 || p->unit < 0)
            continue;
        matrix *m = EF_NEW(x->im->arena, matrix);
        m->p = p;
        m->rows = p->t->dim[0];
        m->cols = p->t->dim[1];
        m->size = (int)(p->t->bytes / (uint64_t)p->t->count);
        if (m->size <= ELEMENT_MAX && !consider(x, m))
            return false;
    }
    return true;
}

/* Two weights of one name would make a file that nobody can load: only the first keeps it. */
static void
forget_doubles(fe_imp *im)
{
    ef_map seen = {0};
    for (int i = 0; i < im->params.n; i++) {
        fe_param *p = im->params.at[i];
        if (!p->hf || p->tie)
            continue;
        const char *name = ef_intern(im->ctx, p->hf);
        if (ef_map_has(&seen, name))
            p->hf = NULL;
        ef_map_set(im->arena, &seen, name, p);
    }
}

/* Embedding tables come first: a copy of one is tied to it, not the other way round. */
bool
fe_ties(fe_imp *im)
{
    ties x = {.im = im, .fd = -1};
    x.a = ef_alloc(im->arena, TILE * TILE / 4 * ELEMENT_MAX);
    x.b = ef_alloc(im->arena, TILE * TILE / 4 * ELEMENT_MAX);
    bool ok = consider_all(&x, true) && consider_all(&x, false);
    forget_doubles(im);
    if (x.fd >= 0)
        close(x.fd);
    return ok;
}
