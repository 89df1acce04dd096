#!/usr/bin/env bash
# Every header compiles alone.
set -euo pipefail
build=$1
. "$(dirname "$0")/../counts.sh"
cd "$(dirname "$0")/../.."
compiles() # HEADER
{
    printf '#include "%s"\n' "$1" | cc -std=c11 -D_GNU_SOURCE -fopenmp -Wall -Wextra -fsyntax-only -I. -Iruntime/include -I"$build" -x c -
}
for h in ir/*.h passes/*.h codegen/*.h frontend/*.h runtime/include/*.h runtime/host/*.h runtime/cpu/*.h; do
    [ -e "$h" ] || continue
    case $h in */efficc_launch.h | */efficc_cuda.h | */efficc_element.h | codegen/clang_lib.h) continue ;; esac # CUDA's, which tests/vgpu compiles; libclang's
    check "$h does not compile alone" compiles "$h"
done
counts
