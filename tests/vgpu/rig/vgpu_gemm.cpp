// vgpu_gemm.cpp -- products in float with one rounding at the end, and their epilogues.
//
// Operands become float panels of 16 rows and 6 columns; a tile of the result stays in
// registers while k runs, in ascending order: every algorithm gives the same bits.
#include "vgpu_gemm.h"
#include "vgpu_low.h"
#include <algorithm>
#include <vector>

namespace vgpu {

enum { TILE_M = 16, TILE_N = 6 };
typedef float Vec __attribute__((vector_size(32), aligned(4)));

static float
get(const void *p, cudaDataType t, int64_t i)
{
    if (t == CUDA_R_32F)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == CUDA_R_16BF ? bf16_to_float(h) : f16_to_float(h);
}

static void
put(void *p, cudaDataType t, int64_t i, float v)
{
    if (t == CUDA_R_32F)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = t == CUDA_R_16BF ? float_to_bf16(v) : float_to_f16(v);
}

static const char *
member(const Matrix &x, int64_t i)
{
    return (const char *)x.at + i * x.stride * (int64_t)element_bytes(x.type);
}

// Panels of op(x) or its transpose: out[panel][l][width] = element (panel * width + w, l).
static void
pack(std::vector<float> &out, const Matrix &x, const char *at, bool transposed,
     int64_t rows, int64_t k, int width)
{
    int64_t panels = (rows + width - 1) / width;
    out.assign((size_t)(panels * k * width), 0.0f);
    for (int64_t r = 0; r < rows; r++) {
        float *to = &out[(size_t)(r / width * k * width + r % width)];
        for (int64_t l = 0; l < k; l++)
            to[l * width] = get(at, x.type, transposed ? r * x.ld + l : l * x.ld + r);
    }
}

// c [TILE_N][TILE_M] of one panel of each.
static void
tile(float *c, const float *a, const float *b, int64_t k)
{
    Vec low[TILE_N] = {}, high[TILE_N] = {};
    for (int64_t l = 0; l < k; l++, a += TILE_M, b += TILE_N) {
        Vec a0 = *(const Vec *)a, a1 = *(const Vec *)(a + 8);
        for (int j = 0; j < TILE_N; j++) {
            low[j] += a0 * b[j];
            high[j] += a1 * b[j];
        }
    }
    for (int j = 0; j < TILE_N; j++) {
        *(Vec *)(c + j * TILE_M) = low[j];
        *(Vec *)(c + j * TILE_M + 8) = high[j];
    }
}

// c [n][m] = alpha op(A) op(B).
static void
multiply(std::vector<float> &c, const Gemm &g, const std::vector<float> &a,
         const std::vector<float> &b)
{
    c.resize((size_t)(g.m * g.n));
    for (int64_t j = 0; j < g.n; j += TILE_N)
        for (int64_t i = 0; i < g.m; i += TILE_M) {
            float t[TILE_N * TILE_M];
            tile(t, &a[(size_t)(i * g.k)], &b[(size_t)(j * g.k)], g.k);
            for (int64_t q = 0; q < std::min<int64_t>(TILE_N, g.n - j); q++)
                for (int64_t r = 0; r < std::min<int64_t>(TILE_M, g.m - i); r++)
                    c[(size_t)((j + q) * g.m + i + r)] = g.alpha * t[q * TILE_M + r];
        }
}

static float
gelu(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float
gelu_grad(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    float slope = 0.7978845608f * (1 + 3 * 0.044715f * x * x);
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * slope;
}

static float
epilogue(const Gemm &g, float x, int64_t row, int64_t col)
{
    int64_t at = col * g.aux_ld + row;
    if (g.epilogue & E_BIAS)
        x += get(g.bias, g.bias_type, row);
    if (g.epilogue & E_RELU)
        x = x > 0 ? x : 0;
    if (g.epilogue & E_GELU) {
        if (g.epilogue & E_AUX)
            put(g.aux, g.aux_type, at, x);
        x = gelu(x);
    }
    if (g.epilogue & E_GELU_GRAD)
        x *= gelu_grad(get(g.aux, g.aux_type, at));
    return x;
}

// Gradients of a bias: sums of rows of the result or of an operand.
static void
bias_grad(const Gemm &g, const std::vector<float> &c)
{
    bool of_b = g.epilogue & E_SUM_B, of_a = g.epilogue & E_SUM_A;
    const Matrix &x = of_b ? g.b : g.a;
    bool t = of_b ? !g.tb : g.ta;
    int64_t rows = of_b ? g.n : g.m, terms = of_a || of_b ? g.k : g.n;
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t l = 0; l < terms; l++)
            sum += of_a || of_b ? get(x.at, x.type, t ? r * x.ld + l : l * x.ld + r)
                                : c[(size_t)(l * g.m + r)];
        put(g.bias, g.bias_type, r, sum);
    }
}

void
run_gemm(const Gemm &g)
{
    static std::vector<float> a, b, c;
    for (int64_t i = 0; i < g.batch; i++) {
        if (!i || g.a.stride)
            pack(a, g.a, member(g.a, i), g.ta, g.m, g.k, TILE_M);
        if (!i || g.b.stride)
            pack(b, g.b, member(g.b, i), !g.tb, g.n, g.k, TILE_N);
        multiply(c, g, a, b);
        for (int64_t j = 0; j < g.n; j++)
            for (int64_t r = 0; r < g.m; r++) {
                float &x = c[(size_t)(j * g.m + r)];
                if (g.beta != 0)
                    x += g.beta * get(member(g.c, i), g.c.type, j * g.c.ld + r);
                x = epilogue(g, x, r, j);
                put((void *)member(g.d, i), g.d.type, j * g.d.ld + r, x);
            }
        if (g.epilogue & E_ANY_BIAS_GRAD)
            bias_grad(g, c);
    }
}

} // namespace vgpu
