/* embed.cu -- rows of a table by id, and the way back, without atomics on floats.
 *
 * The gradient of an embedding sorts positions by id, stably, by one block, then cuts the
 * sorted list into chunks of RTC_EMBED_CHUNK positions. A chunk adds up each run of equal ids in
 * order of position. A run inside a chunk is complete and goes to the table; the parts of one
 * that crosses chunks are stored and added in order by a second kernel. So the work is even
 * whatever the ids are, of a vocabulary as of two token types, and the sum is a function of
 * the ids alone.
 */
#include "pack_int.h"
#include "scratch.h"

/* ---- rows of a table ---- */

/* units: packs of N columns. */
template <class To, class From, int N>
static __global__ void
embed_rows(To *y, const From *table, const int64_t *ids, int64_t rows, int64_t units)
{
    for (int64_t r = rtc_row(); r < rows; r += rtc_row_step())
        for (int64_t u = rtc_unit(); u < units; u += rtc_unit_step()) {
            rtc_pack<From, N> v =
                ((const rtc_pack<From, N> *)table)[ids[r] * units + u];
            rtc_pack<To, N> to;
            for (int k = 0; k < N; k++)
                to.at[k] = rtc_as<To>(rtc_float(v.at[k]));
            ((rtc_pack<To, N> *)y)[r * units + u] = to;
        }
}

enum { EMBED_PACK = 4 };

template <class To, class From>
static void
embed(rt_stream *s, void *y, const void *table, const int64_t *ids, int64_t rows,
      int64_t h)
{
    bool wide = h % EMBED_PACK == 0 &&
                rtc_fits(rtc_address(y), EMBED_PACK * sizeof(To)) &&
                rtc_fits(rtc_address(table), EMBED_PACK * sizeof(From));
    int64_t units = wide ? h / EMBED_PACK : h;
    rtc_grid g = rtc_rows_of(rows, units);
    if (wide)
        RT_LAUNCH((embed_rows<To, From, EMBED_PACK>), g.grid, g.block, 0, s->stream,
                  (To *)y, (const From *)table, ids, rows, units);
    else
        RT_LAUNCH((embed_rows<To, From, 1>), g.grid, g.block, 0, s->stream, (To *)y,
                  (const From *)table, ids, rows, units);
}

void
rt_embed(rt_stream *s, void *y, rt_dtype to, const void *table, rt_dtype from,
         const int64_t *ids, int64_t rows, int64_t h)
{
    if (!rows || !h)
        return;
    if (to == from)
        rt_gather(s, y, table, ids, 1, 0, h, rows, (int)rtc_bytes(to));
    else
        RTC_BY_TYPE(
            to, To,
            RTC_BY_TYPE(from, From, embed<To, From>(s, y, table, ids, rows, h)));
}

/* ---- positions in order of their ids ---- */

enum { DIGIT = 8, DIGITS = 1 << DIGIT, WARPS = 32 };

/* Lanes that are in and have the digit of this lane. */
static __device__ __forceinline__ unsigned
same_digit(unsigned digit, bool in)
{
    unsigned same = __ballot_sync(rtc_all, in);
    for (int b = 0; b < DIGIT; b++) {
        unsigned ones = __ballot_sync(rtc_all, digit >> b & 1);
        same &= digit >> b & 1 ? ones : ~ones;
    }
    return same;
}

/* count [WARPS][DIGITS], numbers of elements, become the places of the first of them: smaller
 * digits before, of equal ones those of smaller warps. */
static __device__ __forceinline__ void
places_of(unsigned (*count)[DIGITS], unsigned *start)
{
    int warps = blockDim.x / RTC_WARP, lane = threadIdx.x % RTC_WARP;
    for (int d = threadIdx.x; d < DIGITS; d += blockDim.x) {
        start[d] = 0;
        for (int w = 0; w < warps; w++)
            start[d] += count[w][d];
    }
    __syncthreads();
    if (threadIdx.x < RTC_WARP) {
        const int per = DIGITS / RTC_WARP;
        unsigned mine = 0, all;
        for (int d = 0; d < per; d++)
            mine += start[lane * per + d];
        all = mine;
        for (int o = 1; o < RTC_WARP; o *= 2) {
            unsigned left = __shfl_up_sync(rtc_all, all, o);
            all += lane >= o ? left : 0;
        }
        unsigned at = all - mine;
        for (int d = 0; d < per; d++) {
            unsigned n = start[lane * per + d];
            start[lane * per + d] = at;
            at += n;
        }
    }
    __syncthreads();
    for (int d = threadIdx.x; d < DIGITS; d += blockDim.x) {
        unsigned at = start[d];
        for (int w = 0; w < warps; w++) {
            unsigned n = count[w][d];
            count[w][d] = at;
            at += n;
        }
    }
    __syncthreads();
}

/* One pass of a radix sort: to [rows] = from [rows], or 0, 1, .. where it is NULL, by the digit
 * at `shift` of their ids; equal ones stay in order. A warp has `per` neighbours.
 * The ballots let lanes meet, but only barriers make them see what others stored. */
static __device__ __forceinline__ void
sort_by_digit(unsigned *to, const unsigned *from, const int64_t *ids, int64_t rows,
              int shift, unsigned (*count)[DIGITS], unsigned *start)
{
    int warp = threadIdx.x / RTC_WARP, lane = threadIdx.x % RTC_WARP;
    int64_t per = (rows + blockDim.x - 1) / blockDim.x * RTC_WARP;
    int64_t first = warp * per, last = first + per < rows ? first + per : rows;
    for (int d = lane; d < DIGITS; d += RTC_WARP)
        count[warp][d] = 0;
    __syncwarp();
    for (int place = 0; place < 2; place++) {
        for (int64_t i = first; i < last; i += RTC_WARP) {
            bool in = i + lane < last;
            int64_t at = in ? i + lane : i;
            unsigned row = from ? from[at] : (unsigned)at;
            unsigned digit = (unsigned)(ids[row] >> shift) & (DIGITS - 1);
            unsigned same = same_digit(digit, in), before = same & ((1u << lane) - 1);
            if (place && in)
                to[count[warp][digit] + __popc(before)] = row;
            __syncwarp();
            if (in && !before)
                count[warp][digit] += __popc(same);
            __syncwarp();
        }
        __syncthreads();
        if (!place)
            places_of(count, start);
    }
}

/* order [rows]: positions by id, equal ids in order of position; other [rows]: space. One
 * block. */
static __global__ void __launch_bounds__((WARPS * RTC_WARP))
    sort_ids(unsigned *order, unsigned *other, const int64_t *ids, int64_t rows,
             int passes)
{
    __shared__ unsigned count[WARPS][DIGITS], start[DIGITS];
    const unsigned *from = nullptr;
    for (int p = 0; p < passes; p++) {
        unsigned *to = (passes - p) % 2 ? order : other;
        sort_by_digit(to, from, ids, rows, p * DIGIT, count, start);
        from = to;
    }
}

/* ---- sums of runs ---- */

enum { CHUNK = RTC_EMBED_CHUNK, AHEAD = 4 };

/* dtable [v, units] gets rows of dy. part [2][chunks, units]: of the run that goes on from the
 * chunk before; of the one that begins here and goes on. units: packs of N columns. */
typedef struct run_sums {
    float *table, *part;
    const int64_t *ids;
    const unsigned *order;
    int64_t rows, chunks, units;
    bool add;
} run_sums;

static __device__ __forceinline__ int64_t
id_at(const run_sums *p, int64_t k)
{
    return p->ids[p->order[k]];
}

template <int N>
static __device__ __forceinline__ void
put(float *to, const float *sum, bool add)
{
    rtc_pack<float, N> v;
    if (add)
        v = *(rtc_pack<float, N> *)to;
    for (int k = 0; k < N; k++)
        v.at[k] = add ? v.at[k] + sum[k] : sum[k];
    *(rtc_pack<float, N> *)to = v;
}

template <class T, int N>
static __device__ __forceinline__ void
sum_chunk(const run_sums *p, const T *dy, int64_t chunk, int64_t u)
{
    int64_t first = chunk * CHUNK, id = id_at(p, first);
    int64_t last = first + CHUNK < p->rows ? first + CHUNK : p->rows;
    float *head = p->part + (chunk * p->units + u) * N;
    float *tail = head + p->chunks * p->units * N, sum[N] = {};
    bool more = first && id_at(p, first - 1) == id;
    for (int64_t k = first; k < last; k += AHEAD) {
        rtc_pack<T, N> v[AHEAD];
        int64_t next[AHEAD];
        for (int a = 0; a < AHEAD; a++) {
            int64_t row = p->order[k + a < last ? k + a : k];
            next[a] = p->ids[row];
            v[a] = ((const rtc_pack<T, N> *)dy)[row * p->units + u];
        }
        for (int a = 0; a < AHEAD; a++) {
            bool begins = k + a < last && next[a] != id;
            if (begins)
                put<N>(more ? head : p->table + (id * p->units + u) * N, sum,
                       !more && p->add);
            more = more && !begins;
            id = begins ? next[a] : id;
            for (int e = 0; e < N; e++) {
                float x = k + a < last ? rtc_float(v[a].at[e]) : 0.0f;
                sum[e] = (begins ? 0 : sum[e]) + x;
            }
        }
    }
    if (more)
        put<N>(head, sum, false);
    else if (last < p->rows && id_at(p, last) == id)
        put<N>(tail, sum, false);
    else
        put<N>(p->table + (id * p->units + u) * N, sum, p->add);
}

template <class T, int N>
static __global__ void
sum_runs(run_sums p, const T *dy)
{
    for (int64_t c = rtc_row(); c < p.chunks; c += rtc_row_step())
        for (int64_t u = rtc_unit(); u < p.units; u += rtc_unit_step())
            sum_chunk<T, N>(&p, dy, c, u);
}

/* The last place of the id, which begins at `first`. */
static __device__ __forceinline__ int64_t
last_of(const run_sums *p, int64_t id, int64_t first)
{
    int64_t lo = first, hi = p->rows; /* lo has the id, hi has not */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (id_at(p, mid) == id)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Runs that begin in a chunk and end in a later one. units: of one column. */
static __global__ void
add_parts(run_sums p)
{
    for (int64_t c = rtc_row(); c < p.chunks - 1; c += rtc_row_step()) {
        int64_t first = c * CHUNK, last = first + CHUNK, id = id_at(&p, last - 1);
        bool began = first && id_at(&p, first - 1) == id;
        if (began || id_at(&p, last) != id)
            continue;
        int64_t end = last_of(&p, id, last) / CHUNK;
        for (int64_t u = rtc_unit(); u < p.units; u += rtc_unit_step()) {
            float sum = p.part[(p.chunks + c) * p.units + u];
#pragma unroll 8
            for (int64_t e = c + 1; e <= end; e++)
                sum += p.part[e * p.units + u];
            put<1>(p.table + id * p.units + u, &sum, p.add);
        }
    }
}

template <class T, int N>
static void
sum_ids(rt_stream *s, run_sums p, const T *dy, int64_t h)
{
    p.units = h / N;
    rtc_grid g = rtc_rows_of(p.chunks, p.units);
    RT_LAUNCH((sum_runs<T, N>), g.grid, g.block, 0, s->stream, p, dy);
    if (p.chunks < 2)
        return;
    p.units = h;
    g = rtc_rows_of(p.chunks - 1, h);
    RT_LAUNCH(add_parts, g.grid, g.block, 0, s->stream, p);
}

static void
sort_positions(rt_stream *s, unsigned *order, unsigned *other, const int64_t *ids,
               int64_t rows, int64_t v)
{
    int passes = 1;
    while (passes < 4 && v - 1 >> passes * DIGIT)
        passes++;
    int64_t threads = rtc_min(WARPS * RTC_WARP, rtc_blocks(rows, RTC_WARP) * RTC_WARP);
    RT_LAUNCH(sort_ids, dim3(1), dim3((unsigned)threads), 0, s->stream, order, other,
              ids, rows, passes);
}

void
rt_embed_grad(rt_stream *s, float *dtable, const void *dy, rt_dtype type,
              const int64_t *ids, int64_t rows, int64_t h, int64_t v, bool add,
              void *scratch)
{
    if (!add)
        rt_zero(s, dtable, v * h * (int64_t)sizeof *dtable);
    if (!rows || !h)
        return;
    rtc_embed_space space = rtc_embed_layout(rows, h);
    unsigned *order = (unsigned *)((char *)scratch + space.order);
    sort_positions(s, order, (unsigned *)((char *)scratch + space.other), ids, rows, v);
    run_sums p = {dtable, (float *)((char *)scratch + space.part),
                  ids,    order,
                  rows,   space.chunks,
                  0,      add};
    uintptr_t bits = rtc_address(dtable) | rtc_address(dy) | rtc_address(scratch);
    if (rtc_fits(bits, 16) && h % (16 / rtc_bytes(type)) == 0)
        RTC_BY_TYPE(type, T, sum_ids<T, rtc_width<T>::N>(s, p, (const T *)dy, h));
    else
        RTC_BY_TYPE(type, T, sum_ids<T, 1>(s, p, (const T *)dy, h));
}
