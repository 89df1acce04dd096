/* gemm_own.cu -- a product without a library: for types, strides and sizes that cuBLASLt has
 * no algorithm for. Simple, correct for everything, and far slower.
 *
 * A block computes a tile of C. It walks along k, and keeps a slice of A and B as floats in
 * shared memory; each thread holds EACH x EACH sums.
 */
#include "gemm_int.h"
#include "row_int.h"

enum { TILE = 64, SLICE = 16, EACH = 4, SIDE = TILE / EACH, BATCHES = 65535 };

/* to [SLICE][TILE] = op(x) at lines from `line` on, and depths from p on; zero outside. along:
 * is an element's depth its column in memory? */
static __device__ __forceinline__ void
load_slice(float (*to)[TILE + 1], const void *x, rt_dtype t, int64_t at, int64_t ld,
           bool along, int64_t line, int64_t lines, int64_t p, int64_t k)
{
    int thread = threadIdx.y * SIDE + threadIdx.x;
    for (int i = thread; i < TILE * SLICE; i += SIDE * SIDE) {
        int l = along ? i / SLICE : i % TILE, q = along ? i % SLICE : i / TILE;
        bool in = line + l < lines && p + q < k;
        int64_t e = along ? (line + l) * ld + p + q : (p + q) * ld + line + l;
        to[q][l] = in ? rtc_get(x, at + e, t) : 0.0f;
    }
}

static __device__ __forceinline__ void
store_tile(const rtc_call &g, int64_t batch, int64_t row, int64_t col,
           float (*sum)[EACH])
{
    const rt_gemm_desc &d = g.d;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t r = row + i * SIDE, c = col + j * SIDE,
                    e = batch * d.sc + r * d.ldc + c;
            if (r >= d.m || c >= d.n)
                continue;
            float v = d.alpha * sum[i][j] + (g.bias ? g.bias[c] : 0.0f);
            rtc_put(g.c, e, d.c, g.from ? v + rtc_get(g.from, e, d.c) : v);
        }
}

static __global__ void
tile_product(const __grid_constant__ rtc_call g)
{
    __shared__ float a[SLICE][TILE + 1], b[SLICE][TILE + 1];
    const rt_gemm_desc &d = g.d;
    int64_t row = (int64_t)blockIdx.x * TILE, col = (int64_t)blockIdx.y * TILE;
    for (int64_t q = blockIdx.z; q < d.batch; q += gridDim.z) {
        float sum[EACH][EACH] = {};
        for (int64_t p = 0; p < d.k; p += SLICE) {
            load_slice(a, g.a, d.a, q * d.sa, d.lda, !d.ta, row, d.m, p, d.k);
            load_slice(b, g.b, d.b, q * d.sb, d.ldb, d.tb, col, d.n, p, d.k);
            __syncthreads();
            for (int s = 0; s < SLICE; s++)
                for (int i = 0; i < EACH; i++)
                    for (int j = 0; j < EACH; j++)
                        sum[i][j] = fmaf(a[s][threadIdx.y + i * SIDE],
                                         b[s][threadIdx.x + j * SIDE], sum[i][j]);
            __syncthreads();
        }
        store_tile(g, q, row + threadIdx.y, col + threadIdx.x, sum);
    }
}

void
rtc_own_product(rt_stream *s, const rtc_call *g)
{
    const rt_gemm_desc *d = &g->d;
    /* rows along x: there may be more than 65535 tiles of them, all that y has */
    dim3 grid((unsigned)rtc_blocks(d->m, TILE), (unsigned)rtc_blocks(d->n, TILE),
              (unsigned)rtc_min(d->batch, BATCHES));
    RT_LAUNCH(tile_product, grid, dim3(SIDE, SIDE), 0, s->stream, *g);
}
