#!/bin/bash
# vgpu_nvcc_test.sh -- vgpu-nvcc takes nvcc's command line, and its programs run.
build=${1:?build folder}
. "$(dirname "$0")/../counts.sh"
nvcc=$build/vgpu-nvcc
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

cat > "$tmp/a.cu" << 'END'
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#ifndef FACTOR
#define FACTOR 1
#endif
template <class T> static __global__ void __launch_bounds__(256) twice(T *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = T(2.0f * FACTOR);
}
int main()
{
    __nv_bfloat16 *y;
    cudaMallocManaged(&y, 2000);
    RT_LAUNCH(twice<__nv_bfloat16>, dim3(4), dim3(256), 0, 0, y, 1000);
    cudaDeviceSynchronize();
    printf("%g\n", __bfloat162float(y[999]));
}
END
runs() { # output
    [ "$("$tmp/a")" = "$1" ]
}
compile() {
    "$nvcc" -std=c++17 -O3 -arch=sm_90 -gencode arch=compute_80,code=sm_80 -Xcompiler -Wall,-Wextra \
        -Xptxas -v -lineinfo -DFACTOR=3 -I "$tmp" -MD -MF "$tmp/a.d" -c "$tmp/a.cu" -o "$tmp/a.o"
}
check "compile" compile
check "dependencies" grep -q a.cu "$tmp/a.d"
check "link" "$nvcc" -o "$tmp/a" "$tmp/a.o" "$build/libvgpu.a" -lcudart -lcublasLt -l:libcublasLt.so.13 \
    -lnccl -Xlinker -rpath -Xlinker /nowhere -lm
check "its program runs" runs 6
check "compile and link at once" "$nvcc" "$tmp/a.cu" "$build/libvgpu.a" -o "$tmp/a"
check "that runs, too" runs 2
check "version" grep -q "release" <("$nvcc" --version)
check "unknown options are errors" eval '! "$nvcc" --no-such-option -c "$tmp/a.cu" 2> /dev/null'
echo "int main() { return nothing; }" > "$tmp/bad.cu"
check "errors of the compiler are errors" eval '! "$nvcc" -c "$tmp/bad.cu" -o "$tmp/bad.o" 2> /dev/null'
counts
