#!/bin/bash
# vgpu_headers_test.sh -- the rig's declarations are NVIDIA's.
#
# Where there is a toolkit, the rig is compiled with NVIDIA's own headers (a function that they
# declare otherwise is an error), and each constant of the rig's headers must have the value that it
# has in NVIDIA's. Without one: skipped.
. "$(dirname "$0")/../counts.sh"
here=$(cd "$(dirname "$0")" && pwd)
rig=$here/rig
cxx=${CXX:-g++}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

toolkit=
for dir in "$CUDA_HOME" /usr/local/cuda "$HOME/.cache/efficc/cuda" "$(dirname "$(dirname "$(command -v nvcc)")")"; do
    [ -f "$dir/include/cublasLt.h" ] && { toolkit=$dir; break; }
done
nccl=$(ls "$toolkit"/include/nccl.h /usr/local/include/nccl.h /usr/include/nccl.h 2> /dev/null | head -1)
if [ -z "$toolkit" ] || [ -z "$nccl" ]; then
    echo "skipped: no CUDA toolkit with cublasLt.h and nccl.h"
    skipped=1
    counts
    exit 0
fi
real=(-DVGPU_REAL_HEADERS -isystem "$toolkit/include" -isystem "$(dirname "$nccl")")
flags=(-std=c++17 -march=native -fsyntax-only -Wno-unknown-pragmas -include "$rig/vgpu_device.h")

compiles() { # file
    "$cxx" "${flags[@]}" "${real[@]}" -x c++ "$1" > "$tmp/log" 2>&1 || { grep -m 3 error "$tmp/log"; return 1; }
}
for file in "$rig"/*.cpp; do
    check "$(basename "$file") with NVIDIA's headers" compiles "$file"
done

# Enumerators and macros that are numbers.
names=$(grep -hoE '^ *(cuda|CUDA_R|CUBLAS|CUBLASLT|nccl)[A-Za-z0-9_]*( =|,|$)' "$rig"/vgpu_types.h \
    "$rig"/include/{cublasLt,nccl,library_types}.h | tr -d ' =,' | grep -v '_t$' | sort -u)
names+=" $(grep -hoE '^#define (cuda[A-Za-z]*|NCCL_UNIQUE_ID_BYTES) +[0-9]' "$rig"/vgpu_types.h \
    "$rig"/include/nccl.h | awk '{print $2}')"
{
    echo '#include <cublasLt.h>'
    echo '#include <nccl.h>'
    echo '#include <cstdio>'
    echo 'int main() {'
    for name in $names; do echo "printf(\"$name %lld\\n\", (long long)$name);"; done
    echo '}'
} > "$tmp/values.cpp"
values() { # output, flags
    "$cxx" -std=c++17 -march=native "${@:2}" "$tmp/values.cpp" -o "$tmp/values" 2> "$tmp/log" &&
        "$tmp/values" > "$1" && return
    grep -m 3 error "$tmp/log"
    return 1
}
check "constants in the rig's headers" values "$tmp/rig" -I"$rig/include"
check "constants in NVIDIA's headers" values "$tmp/real" "${real[@]}"
check "at least 100 constants" [ "$(wc -l < "$tmp/rig")" -ge 100 ]
check "constants are NVIDIA's" diff "$tmp/rig" "$tmp/real"
counts
