// vgpu_gemm.h -- a product as cuBLASLt's functions have understood it.
#pragma once
#include <cublasLt.h>
#include <stdint.h>

namespace vgpu {

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
