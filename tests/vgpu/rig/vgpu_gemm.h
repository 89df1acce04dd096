// vgpu_gemm.h -- a product as cuBLASLt's functions have understood it.
#pragma once
#include <cublasLt.h>
#include <stdint.h>

namespace vgpu {

enum { // bits of cublasLtEpilogue_t
    E_RELU = 2,
    E_BIAS = 4,
    E_BIAS_GRAD = 16,
    E_GELU = 32,
    E_GELU_GRAD = 64,
    E_AUX = 128,
    E_SUM_A = 256,
    E_SUM_B = 512,
    E_ANY_BIAS_GRAD = E_BIAS_GRAD | E_SUM_A | E_SUM_B,
    E_ANY_BIAS = E_BIAS | E_ANY_BIAS_GRAD,
    E_ANY_AUX = E_GELU_GRAD | E_AUX
};

struct Matrix { // column-major
    const void *at;
    cudaDataType type;
    int64_t rows, cols, ld, stride; // stride: elements to the next of the batch
};

// D = epilogue(alpha op(A) op(B) + beta C): op(A) [m,k], op(B) [k,n], D [m,n].
struct Gemm {
    bool ta, tb;
    int64_t m, n, k, batch;
    float alpha, beta;
    Matrix a, b, c, d; // c.at, d.at may be the same
    int epilogue;
    void *bias, *aux;
    cudaDataType bias_type, aux_type;
    int64_t aux_ld;
};

inline size_t
element_bytes(cudaDataType t)
{
    return t == CUDA_R_32F ? 4 : 2;
}

void run_gemm(const Gemm &);

} // namespace vgpu
