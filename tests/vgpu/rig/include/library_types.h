// library_types.h of the virtual GPU.
#pragma once
typedef enum {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16F = 2,
    CUDA_R_16BF = 14
} cudaDataType;
typedef cudaDataType cudaDataType_t;
