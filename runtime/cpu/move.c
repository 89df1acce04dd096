/* move.c -- kernels that only copy: copy, zero, add, transpose, strided blocks. */
#include "rt_cpu_int.h"

enum { PIECE = 1 << 16, TILE = 16 };

void
rt_zero(rt_stream *s, void *y, int64_t bytes)
{
#pragma omp parallel for schedule(static) num_threads(rt_team(s, bytes / 4))
    for (int64_t i = 0; i < bytes; i += PIECE)
        memset((char *)y + i, 0, (size_t)rt_min(PIECE, bytes - i));
}

void
rt_copy(rt_stream *s, void *y, const void *x, int64_t bytes)
{
    enum { CHUNK = 4 * PIECE };
#pragma omp parallel for schedule(static) num_threads(rt_team(s, bytes / 4))
    for (int64_t i = 0; i < bytes; i += CHUNK)
        memcpy((char *)y + i, (const char *)x + i, (size_t)rt_min(CHUNK, bytes - i));
}

void
rt_add_to(rt_stream *s, float *y, const float *x, int64_t n)
{
#pragma omp parallel for simd schedule(static) num_threads(rt_team(s, n))
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* ---- transpose ---- */

/* A permutation as strides: `dim` and `step` of the result's dimensions in the operand,
 * neighbours that stay together merged into one. */
typedef struct walk {
    int rank;
    int64_t dim[RT_MAX_RANK], step[RT_MAX_RANK];
} walk;

static walk
walk_of(int rank, const int64_t *dim, const int *perm)
{
    int64_t stride[RT_MAX_RANK], s = 1;
    walk w = {0};
    for (int i = rank - 1; i >= 0; s *= dim[i--])
        stride[i] = s;
    for (int i = 0; i < rank; i++) {
        int from = perm[i], last = w.rank - 1;
        if (dim[from] == 1)
            continue;
        if (last >= 0 && w.step[last] == stride[from] * dim[from]) {
            w.dim[last] *= dim[from];
            w.step[last] = stride[from];
            continue;
        }
        w.dim[w.rank] = dim[from];
        w.step[w.rank++] = stride[from];
    }
    return w;
}

/* y[i*ys + j] = x[i + j*xs] for i < ni, j < nj, in tiles that fit the caches. */
#define SWAP(name, type)                                                         \
    static void name(type *y, const type *x, int64_t ni, int64_t nj, int64_t ys, \
                     int64_t xs)                                                 \
    {                                                                            \
        for (int64_t j0 = 0; j0 < nj; j0 += TILE)                                \
            for (int64_t i = 0; i < ni; i++)                                     \
                for (int64_t j = j0; j < rt_min(j0 + TILE, nj); j++)             \
                    y[i * ys + j] = x[i + j * xs];                               \
    }
SWAP(swap8, uint8_t)
SWAP(swap16, uint16_t)
SWAP(swap32, uint32_t)
SWAP(swap64, uint64_t)
#undef SWAP

static void
swap(char *y, const char *x, const int64_t n[2], const int64_t step[2], int size)
{
    if (size == 1)
        swap8((uint8_t *)y, (const uint8_t *)x, n[0], n[1], step[0], step[1]);
    else if (size == 2)
        swap16((uint16_t *)y, (const uint16_t *)x, n[0], n[1], step[0], step[1]);
    else if (size == 4)
        swap32((uint32_t *)y, (const uint32_t *)x, n[0], n[1], step[0], step[1]);
    else
        swap64((uint64_t *)y, (const uint64_t *)x, n[0], n[1], step[0], step[1]);
}

/* Offsets (elements) in result and operand of the t-th position over all dimensions of w
 * but those of mask `skip`. */
static void
locate(const walk *w, unsigned skip, int64_t t, int64_t *to, int64_t *from)
{
    int64_t place = 1;
    *to = *from = 0;
    for (int i = w->rank - 1; i >= 0; place *= w->dim[i--]) {
        if (skip >> i & 1)
            continue;
        *to += t % w->dim[i] * place;
        *from += t % w->dim[i] * w->step[i];
        t /= w->dim[i];
    }
}

/* Places in the result from one index of dimension i to the next. */
static int64_t
place_of(const walk *w, int i)
{
    int64_t place = 1;
    for (int k = i + 1; k < w->rank; k++)
        place *= w->dim[k];
    return place;
}

void
rt_transpose(rt_stream *s, void *y, const void *x, int rank, const int64_t *dim,
             const int *perm, int size)
{
    walk w = walk_of(rank, dim, perm);
    int last = w.rank - 1, fast = last; /* fast: the dimension that is dense in x */
    int64_t total = 1;
    for (int i = 0; i < w.rank; i++) {
        total *= w.dim[i];
        if (w.step[i] == 1)
            fast = i;
    }
    if (last < 0 || fast == last) { /* whole runs stay together */
        int64_t run = last < 0 ? 1 : w.dim[last];
        unsigned skip = last < 0 ? 0 : 1u << last;
#pragma omp parallel for schedule(static) num_threads(rt_team(s, total))
        for (int64_t t = 0; t < total / run; t++) {
            int64_t to, from;
            locate(&w, skip, t, &to, &from);
            memcpy((char *)y + to * size, (const char *)x + from * size,
                   (size_t)(run * size));
        }
        return;
    }
    int64_t n[2] = {rt_min(w.dim[fast], TILE), w.dim[last]};
    int64_t step[2] = {place_of(&w, fast), w.step[last]};
    int64_t strips = (w.dim[fast] + TILE - 1) / TILE,
            rest = total / (w.dim[fast] * n[1]);
#pragma omp parallel for schedule(static) num_threads(rt_team(s, total))
    for (int64_t t = 0; t < rest * strips; t++) {
        int64_t to, from, i = t % strips * TILE;
        int64_t part[2] = {rt_min(n[0], w.dim[fast] - i), n[1]};
        locate(&w, 1u << last | 1u << fast, t / strips, &to, &from);
        swap((char *)y + (to + i * step[0]) * size, (const char *)x + (from + i) * size,
             part, step, size);
    }
}

void
rt_move(rt_stream *s, void *y, const void *x, const rt_block_copy *c)
{
    bool dense = c->ystep == 1 && c->xstep == 1;
    int64_t n = dense ? 1 : c->n, run = dense ? c->n * c->inner : c->inner;
#pragma omp parallel for schedule(static) \
    num_threads(rt_team(s, c->outer * c->n * c->inner))
    for (int64_t t = 0; t < c->outer * n; t++) {
        int64_t o = t / n, i = t % n;
        int64_t to = o * c->ys + (i * c->ystep + c->ystart) * c->inner;
        int64_t from = o * c->xs + (i * c->xstep + c->xstart) * c->inner;
        memcpy((char *)y + to * c->size, (const char *)x + from * c->size,
               (size_t)(run * c->size));
    }
}
