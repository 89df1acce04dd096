#!/usr/bin/env bash
# A CUDA toolkit for efficc --target cuda. Names the one that is there ($CUDA_HOME, /usr/local/cuda, nvcc on the PATH); where
# there is none, or a folder is named, makes one from the packages that NVIDIA publishes on PyPI. No driver and no GPU is
# needed to compile.
#
#   scripts/setup_cuda.sh [DIR]    DIR: default ~/.cache/efficc/cuda; 1.2 GB are loaded, 1.7 GB stay
#
# The packages have headers and libraries of NCCL and cuDNN in folders of their own, and libraries under their versioned
# names only; the linker wants libNAME.so. cuDNN compiles some of its kernels with NVRTC. PYTHON names the Python with pip; what pip reads from the environment (PIP_*) holds.
set -euo pipefail
# Tried together. Another minor version of CUDA is another line here.
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    nvidia-cuda-nvrtc==13.0.88 nvidia-cublas==13.1.0.3 nvidia-nccl-cu13==2.28.9 nvidia-cudnn-cu13==9.19.0.56)
needed=(cuda_runtime.h cublasLt.h nccl.h cudnn.h)
python=${PYTHON:-python3}

say() { echo "setup: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

# Folder of a toolkit, or nothing.
find_toolkit() {
    local dir nvcc
    nvcc=$(command -v nvcc || true)
    [ -z "$nvcc" ] || nvcc=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    for dir in "${CUDA_HOME:-}" /usr/local/cuda "$nvcc"; do
        if [ -n "$dir" ] && [ -x "$dir/bin/nvcc" ]; then
            echo "$dir"
            return
        fi
    done
}

# Says what is in a toolkit, and what it lacks.
describe() {
    local dir=$1 lacks=() h
    for h in "${needed[@]}"; do
        [ -e "$dir/include/$h" ] || [ -e "/usr/include/$h" ] || lacks+=("$h")
    done
    say "CUDA toolkit in $dir: $("$dir/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/CUDA \1/p')"
    [ ${#lacks[@]} -eq 0 ] || say "it lacks ${lacks[*]}; name a folder to make a whole one there: scripts/setup.sh --cuda DIR"
    say "to use it:  export CUDA_HOME=$dir"
}

# Packages as pip unpacks them, in $1/wheels, to a toolkit in $1.
assemble() {
    local dir=$1 from=$1/wheels/nvidia lib
    mv "$from"/cu13/* "$dir"
    for lib in nccl cudnn; do
        cp -r "$from/$lib/include/." "$dir/include"
        mv "$from/$lib/lib"/lib* "$dir/lib"
    done
    mkdir "$dir/licenses"
    mv "$dir"/wheels/*.dist-info "$dir/licenses"
    rm -rf "$dir/wheels"
    ln -s lib "$dir/lib64"
    for lib in "$dir"/lib/lib*.so.*; do
        ln -sf "$(basename "$lib")" "${lib%%.so.*}.so"
    done
}

make_toolkit() {
    local dir=$1 part=$1.part
    [ ! -e "$dir" ] || [ -z "$(ls -A "$dir")" ] || fail "$dir is there and has no toolkit in it; name another folder"
    "$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip, which loads the packages: apt-get install python3-pip"
    rm -rf "$part"
    mkdir -p "$part/tmp" || fail "can't make $part"
    trap 'rm -rf "$part"' EXIT
    say "loading ${packages[*]}"
    # --only-binary: nothing is run to install them
    TMPDIR=$part/tmp "$python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location --no-cache-dir --no-deps \
        --only-binary :all: --target "$part/wheels" "${packages[@]}" || fail "pip could not load the packages"
    rm -rf "$part/tmp"
    assemble "$part"
    echo 'static __global__ void k(float *y) { y[0] = 1; } void (*use)(float *) = k;' >"$part/try.cu"
    "$part/bin/nvcc" -arch=sm_90 -c "$part/try.cu" -o "$part/try.o" || fail "the toolkit does not compile a kernel"
    rm -f "$part"/try.*
    [ ! -d "$dir" ] || rmdir "$dir"
    mv "$part" "$dir"
    trap - EXIT
}

if [ -n "${1:-}" ]; then
    mkdir -p "$(dirname "$1")"
    dir=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
else
    dir=$(find_toolkit)
    [ -z "${CUDA_HOME:-}" ] || [ -x "$CUDA_HOME/bin/nvcc" ] || say "CUDA_HOME is $CUDA_HOME, where there is no bin/nvcc" >&2
    dir=${dir:-$HOME/.cache/efficc/cuda}
fi
[ -x "$dir/bin/nvcc" ] || make_toolkit "$dir"
describe "$dir"
