/* move.cu -- kernels that only copy: copy, zero, add, transpose, strided blocks.
 *
 * A copy between strided places is a list of dimensions, each with a step in the result and
 * one in the operand, all in bytes; the last is of the bytes that stay together. Neighbours
 * that stay together are merged, and the copy is then made in the largest unit that addresses
 * and steps allow. A transpose whose last dimension does not stay goes through tiles in shared
 * memory, so that both sides are read and written in whole lines.
 */
#include "pack_int.h"

void
rt_zero(rt_stream *s, void *y, int64_t bytes)
{
    if (bytes)
        RT_CUDA(cudaMemsetAsync(y, 0, (size_t)bytes, s->stream));
}

void
rt_copy(rt_stream *s, void *y, const void *x, int64_t bytes)
{
    if (bytes)
        RT_CUDA(
            cudaMemcpyAsync(y, x, (size_t)bytes, cudaMemcpyDeviceToDevice, s->stream));
}

/* n: packs, of N floats. */
template <int N>
static __global__ void
add_packs(float *y, const float *x, int64_t n)
{
    typedef rtc_pack<float, N> pack;
    for (int64_t i = rtc_unit(); i < n; i += rtc_unit_step()) {
        pack a = ((const pack *)x)[i], b = ((const pack *)y)[i];
        for (int k = 0; k < N; k++)
            b.at[k] += a.at[k];
        ((pack *)y)[i] = b;
    }
}

void
rt_add_to(rt_stream *s, float *y, const float *x, int64_t n)
{
    bool wide = rtc_fits(rtc_address(y) | rtc_address(x), 16);
    int64_t packs = wide ? n / 4 : 0, rest = n - 4 * packs;
    if (packs) {
        rtc_grid g = rtc_rows_of(1, packs);
        RT_LAUNCH(add_packs<4>, g.grid, g.block, 0, s->stream, y, x, packs);
    }
    if (rest) {
        rtc_grid g = rtc_rows_of(1, rest);
        RT_LAUNCH(add_packs<1>, g.grid, g.block, 0, s->stream, y + 4 * packs,
                  x + 4 * packs, rest);
    }
}

/* ---- copies between strided places ---- */

typedef struct places {
    int rank;
    int64_t dim[RT_MAX_RANK + 1], to[RT_MAX_RANK + 1], from[RT_MAX_RANK + 1];
} places;

/* The next dimension inwards; merged with the last one where both sides allow it. */
static void
add_dim(places *p, int64_t dim, int64_t to, int64_t from)
{
    int last = p->rank - 1;
    if (last >= 0 && p->to[last] == to * dim && p->from[last] == from * dim) {
        p->dim[last] *= dim;
        p->to[last] = to;
        p->from[last] = from;
        return;
    }
    p->dim[p->rank] = dim;
    p->to[p->rank] = to;
    p->from[p->rank++] = from;
}

/* n: units to copy, fewer than I can count. */
template <class U, class I>
static __global__ void
copy_places(U *y, const U *x, places p, int64_t n)
{
    for (int64_t t = rtc_unit(); t < n; t += rtc_unit_step()) {
        I rest = (I)t;
        int64_t to = 0, from = 0;
        for (int i = p.rank - 1; i > 0; i--) {
            I dim = (I)p.dim[i], at = rest % dim;
            rest /= dim;
            to += (int64_t)at * p.to[i];
            from += (int64_t)at * p.from[i];
        }
        y[to + (int64_t)rest * p.to[0]] = x[from + (int64_t)rest * p.from[0]];
    }
}

template <class U>
static void
copy_units(rt_stream *s, void *y, const void *x, const places *bytes)
{
    int64_t unit = sizeof(U), n = 1;
    places p = *bytes;
    int last = p.rank - 1;
    p.dim[last] /= unit;
    for (int i = 0; i < p.rank; i++) {
        n *= p.dim[i];
        if (i == last)
            continue;
        p.to[i] /= unit;
        p.from[i] /= unit;
    }
    if (p.dim[last] == 1 && last > 0)
        p.rank--;
    rtc_grid g = rtc_rows_of(1, n);
    if (n < 1ll << 32)
        RT_LAUNCH((copy_places<U, uint32_t>), g.grid, g.block, 0, s->stream, (U *)y,
                  (const U *)x, p, n);
    else
        RT_LAUNCH((copy_places<U, uint64_t>), g.grid, g.block, 0, s->stream, (U *)y,
                  (const U *)x, p, n);
}

/* The last dimension of p is of bytes. */
static void
copy_bytes(rt_stream *s, void *y, const void *x, const places *p)
{
    uintptr_t bits = rtc_address(y) | rtc_address(x) | (uintptr_t)p->dim[p->rank - 1];
    for (int i = 0; i < p->rank - 1; i++)
        bits |= (uintptr_t)p->to[i] | (uintptr_t)p->from[i];
    if (rtc_fits(bits, 16))
        copy_units<uint4>(s, y, x, p);
    else if (rtc_fits(bits, 8))
        copy_units<uint2>(s, y, x, p);
    else if (rtc_fits(bits, 4))
        copy_units<uint32_t>(s, y, x, p);
    else if (rtc_fits(bits, 2))
        copy_units<uint16_t>(s, y, x, p);
    else
        copy_units<uint8_t>(s, y, x, p);
}

void
rt_move(rt_stream *s, void *y, const void *x, const rt_block_copy *c)
{
    int64_t run = c->inner * c->size;
    places p = {};
    if (c->outer * c->n * run == 0)
        return;
    add_dim(&p, c->outer, c->ys * c->size, c->xs * c->size);
    add_dim(&p, c->n, c->ystep * run, c->xstep * run);
    add_dim(&p, run, 1, 1);
    copy_bytes(s, (char *)y + c->ystart * run, (const char *)x + c->xstart * run, &p);
}

/* ---- transpose ---- */

enum { TILE = 32, TILE_Y = 8, SMALL = 8 };

/* Planes y[i * to + j] = x[i + j * from], i < ni, j < nj, in tiles, one a block; `rest` says where
 * the planes lie. All in elements. */
typedef struct planes {
    int64_t ni, nj, to, from, across;
    places rest;
} planes;

template <class U>
static __global__ void
swap_tiles(U *y, const U *x, planes p)
{
    __shared__ U tile[TILE][TILE + 1];
    int lane = threadIdx.x;
    int64_t down = (p.nj + TILE - 1) / TILE, plane = blockIdx.x / p.across / down;
    int64_t i0 = blockIdx.x % p.across * TILE, j0 = blockIdx.x / p.across % down * TILE;
    int64_t to = i0 * p.to + j0, from = i0 + j0 * p.from;
    for (int i = p.rest.rank - 1; i >= 0; i--) {
        int64_t at = plane % p.rest.dim[i];
        plane /= p.rest.dim[i];
        to += at * p.rest.to[i];
        from += at * p.rest.from[i];
    }
    for (int k = threadIdx.y; k < TILE; k += TILE_Y)
        if (i0 + lane < p.ni && j0 + k < p.nj)
            tile[k][lane] = x[from + lane + k * p.from];
    __syncthreads();
    for (int k = threadIdx.y; k < TILE; k += TILE_Y)
        if (i0 + k < p.ni && j0 + lane < p.nj)
            y[to + k * p.to + lane] = tile[lane][k];
}

/* Of p, in bytes: dimension `fast` is dense in x, `last` in y. */
template <class U>
static void
swap(rt_stream *s, void *y, const void *x, const places *p, int fast, int last)
{
    int64_t size = sizeof(U);
    planes q = {p->dim[fast],
                p->dim[last],
                p->to[fast] / size,
                p->from[last] / size,
                rtc_blocks(p->dim[fast], TILE),
                {}};
    int64_t tiles = q.across * rtc_blocks(q.nj, TILE);
    for (int i = 0; i < last; i++) {
        if (i == fast)
            continue;
        add_dim(&q.rest, p->dim[i], p->to[i] / size, p->from[i] / size);
        tiles *= p->dim[i];
    }
    RT_LAUNCH(swap_tiles<U>, dim3((unsigned)tiles), dim3(TILE, TILE_Y), 0, s->stream,
              (U *)y, (const U *)x, q);
}

void
rt_transpose(rt_stream *s, void *y, const void *x, int rank, const int64_t *dim,
             const int *perm, int size)
{
    int64_t from[RT_MAX_RANK], to[RT_MAX_RANK], x_step = size, y_step = size;
    places p = {};
    for (int i = rank - 1; i >= 0; i--) {
        from[i] = x_step;
        to[i] = y_step;
        x_step *= dim[i];
        y_step *= dim[perm[i]];
    }
    if (!x_step)
        return;
    for (int i = 0; i < rank; i++)
        if (dim[perm[i]] != 1)
            add_dim(&p, dim[perm[i]], to[i], from[perm[i]]);
    add_dim(&p, size, 1, 1);
    int last = p.rank - 2, fast = last;
    for (int i = 0; i < last; i++)
        if (p.from[i] == size)
            fast = i;
    if (fast == last || p.dim[fast] < SMALL || p.dim[last] < SMALL ||
        p.dim[p.rank - 1] != size)
        copy_bytes(s, y, x, &p);
    else if (size == 1)
        swap<uint8_t>(s, y, x, &p, fast, last);
    else if (size == 2)
        swap<uint16_t>(s, y, x, &p, fast, last);
    else if (size == 4)
        swap<uint32_t>(s, y, x, &p, fast, last);
    else
        swap<uint2>(s, y, x, &p, fast, last);
}
