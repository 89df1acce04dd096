#!/usr/bin/env bash
# tests/gpu/run.sh without a GPU: on the virtual one, what it writes; on the machine's own, if it has none, that it says so; the programs that it
# runs are compiled and linked by nvcc, where that is; full-size models, without weights, are recognised, and fill.c fills what lacks.
build=$1
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../counts.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

says() { # FILE PATTERN
    grep -qE -- "$2" "$1" || { echo "$1 doesn't say: $2"; head -n 30 "$1"; return 1; }
}
is_json() { # FILE: as Python reads it
    ! command -v python3 >/dev/null || python3 -m json.tool "$1" >/dev/null
}

# ---- without a GPU ----
if [ ! -e /dev/nvidiactl ]; then
    "$here/run.sh" --build "$dir/none" >"$dir/said" 2>&1
    check "without a GPU: exit code 77, not $?" [ $? = 77 ]
    check "it is said" says "$dir/said" '^no device: '
    check "and counted" says "$dir/said" '^0 passed, 0 failed, [4-9] skipped$'
    check "and written" says "$dir/none/gpu.json" '"what": "benchmarks", "why": "no device: '
    check "as JSON" is_json "$dir/none/gpu.json"
fi

# ---- a machine that has a card and lacks much else: the driver, the toolkit and CMake are ours ----
fake=$dir/fake
mkdir -p "$fake"/{bin,cuda/bin,cuda/include,cuda/lib64} "$fake"/nvidia/{nccl,cudnn}/{include,lib}
cat >"$fake/cuda.c" <<'END'
#include <string.h>
int cuInit(unsigned f) { return f != 0; }
int cuDeviceGetCount(int *n) { return *n = 1, 0; }
int cuDeviceGet(int *d, int i) { return *d = i, 0; }
int cuDeviceGetName(char *s, int n, int d) { return strncpy(s, "a card", (size_t)n), d; }
int cuDriverGetVersion(int *v) { return *v = 13000, 0; }
int cuDeviceGetAttribute(int *v, int what, int d) { return *v = what == 75 ? 9 : 0, d; }
END
cc -shared -fPIC -o "$fake/libcuda.so.1" "$fake/cuda.c"
printf '#!/bin/sh\necho "release 13.0, V13.0.0"\n' >"$fake/cuda/bin/nvcc"
printf '#!/bin/sh\necho "CMake Error: nothing is found"\nexit 1\n' >"$fake/bin/cmake"
chmod +x "$fake/cuda/bin/nvcc" "$fake/bin/cmake"
touch "$fake/cuda/include/cublasLt.h" "$fake/cuda/lib64/libcublasLt.so.13" "$fake/nvidia/nccl/include/nccl.h" "$fake/nvidia/nccl/lib/libnccl.so.2" \
    "$fake/nvidia/cudnn/lib/libcudnn.so.9"
CUDA_HOME=$fake/cuda PYTHONPATH=$fake LD_LIBRARY_PATH=$fake PATH=$fake/bin:$PATH "$here/run.sh" --build "$dir/lacks" >"$dir/said" 2>&1
check "a build that fails: exit code 1, not $?" [ $? = 1 ]
check "the card is said" says "$dir/said" '^card a card$'
check "and the error" says "$dir/said" '^CMake Error: nothing is found$'
check "both are written" says "$dir/lacks/gpu.json" '"part": "build", .* "note": "CMake Error: nothing is found"'
check "as JSON, too" is_json "$dir/lacks/gpu.json"
check "and what CMake said" says "$dir/lacks/gpu.log" '^CMake Error'
if command -v python3 >/dev/null; then
    check "what the toolkit lacks is said" says "$dir/said" 'lacks nccl.h libcudnn.so.9; with what Python has it is '
    for file in bin/nvcc include/nccl.h lib64/{libcublasLt.so.13,libnccl.so.2,libcudnn.so.9}; do
        check "$file of both is there" [ -e "$dir/lacks/toolkit/$file" ]
    done
fi

# ---- what is said of a test that fails ----
printf '#!/bin/sh\nprintf "Suite tests\\n    1. /home/tests/kernels/gemm_test.c:102  - worst\\n   tests  1  1  0  1  0\\n0 passed, 1 failed, 0 skipped\\n"\nexit 1\n' >"$dir/fails"
chmod +x "$dir/fails"
(
    export work=$dir results=$dir/results
    . "$here/parts.sh"
    one kernels "$dir/fails" x $(($(date +%s) + 60)) 60
) >"$dir/said"
check "where a test fails is said" says "$dir/said" '^failed: kernels x: exit code 1: +1\. .*gemm_test.c:102  - worst *$'
check "and what it said is kept" says "$dir/kernels-fails-x.failed" 'gemm_test.c:102'

# ---- nvcc ----
if grep -q '^EFFICC_NVCC:FILEPATH=/' "$build/CMakeCache.txt" && [ -e "$build/libefficc_rt_cuda.a" ] && ! grep -q '^EFFICC_SAN:STRING=.' "$build/CMakeCache.txt"; then
    cmake --build "$build" --target gpu_tests >"$dir/said" 2>&1
    result $? "gpu_tests are compiled and linked"
    grep -E 'error|FAILED' "$dir/said" | head -n 20
    check "without warnings" [ -z "$(grep -i 'warning' "$dir/said")" ]
    for name in "$here"/../kernels/*_test.c; do
        name=$(basename "$name" .c)
        [ "$name" = pairs_test ] || check "$name for a GPU is there" [ -x "$build/tests/gpu_$name" ]
    done
else
    echo "no nvcc, or a sanitizer: the tests for a GPU are not compiled"
    skipped=$((skipped + 1))
fi

# ---- full-size models ----
(cd "$dir" && cmake -E tar xf "$here/graphs.tar.xz")
recognised() { # NAME BYTES TASK ATTENTION KERNELS OPTIONS..: of inspect and plan, with a hole for weights
    local file=$dir/$1.onnx bytes=$2 task=$3 attention=$4 kernels=$5
    shift 5
    truncate -s "$bytes" "$file.data"
    "$build/efficc" inspect "$file" >"$dir/inspect" 2>&1
    check "$file: task" says "$dir/inspect" "task $task"
    check "$file: attention" says "$dir/inspect" "^attention +$attention"
    check "$file: names" says "$dir/inspect" 'all have PyTorch names'
    "$build/efficc" plan "$file" --target cuda --bf16 --roofline --seq 128 --batch 4 "$@" >"$dir/plan" 2>&1
    check "$file: kernels of a layer" says "$dir/plan" "^layer.*$kernels"
}
recognised gpt2 497307648 causal-lm '12, causal with a mask of keys, 12 heads of 64' ' 9 kernels forward'
recognised distilbert 267595776 seq-cls '6, .*12 heads of 64' 'kernels forward'
recognised llama-3.2-1b 4942995456 causal-lm '16, causal .*32 heads of 64, 8 of keys' ' 1[0-2] kernels forward'

# ---- random weights ----
cases=$here/../cases
"$build/efficc" export "$cases/gpt2-legacy17/model.onnx" --adapter "$cases/gpt2-legacy17/adapter-final" --any-base --external-data -o "$dir/filled.onnx" >"$dir/said" 2>&1
rm -f "$dir/filled.onnx.data"
"$build/tests/gpu_fill" "$dir/filled.onnx" >"$dir/said" 2>&1
result $? "weights are filled in"
check "nothing is said" [ ! -s "$dir/said" ]
deviation() { # of the numbers that are neither 0 nor 1
    od -An -v -t f4 -w4 "$1" | awk '$1 != 0 && $1 != 1 { n++; s += $1; q += $1 * $1 }
        END { m = s / n; exit !(n > 1000 && m * m < 1e-6 && q / n > 0.018 ^ 2 && q / n < 0.022 ^ 2) }'
}
check "they are normal numbers" deviation "$dir/filled.onnx.data"
"$build/efficc" inspect "$dir/filled.onnx" >"$dir/inspect" 2>&1
result $? "the model is whole"
echo nonsense >"$dir/bad.onnx"
"$build/tests/gpu_fill" "$dir/bad.onnx" >"$dir/said" 2>&1
check "a file that is no model: 1, not $?" [ $? = 1 ]

# ---- the virtual GPU ----
if [ -x "$build/vgpu-nvcc" ] && [ -e "$build/libefficc_rt_vgpu.a" ]; then
    folders() { find "$build" -maxdepth 1 -name 'gpu-??????'; }
    before=$(folders) # of a run that was killed
    "$here/run.sh" --virtual "$build" --json "$dir/gpu.json" >"$dir/said" 2>&1
    check "on the virtual GPU: exit code 0, not $?" [ $? = 0 ]
    check "nothing failed" says "$dir/said" '^[1-9][0-9]* passed, 0 failed, [0-9]+ skipped$'
    check "JSON" is_json "$dir/gpu.json"
    for what in '"part": "kernels", "name": "[a-z_]+", "result": "passed"' '"part": "cases-fp32".*passed.*loss [0-9.e-]+ norm' '"part": "cases-bf16".*passed.*loss [0-9]' \
        '"part": "bench", "name": "gpt2 full cudnn=1", "result": "passed"' '"model": "llama", "trained": "lora".*"tokens_per_second": [1-9]' \
        '"card": "virtual GPU"' '"graphs": false, "tokens_per_second": [1-9]'; do
        check "in the JSON: $what" says "$dir/gpu.json" "$what"
    done
    "$here/run.sh" --virtual "$build" --limit 1 --parts kernels --json "$dir/late.json" >"$dir/said" 2>&1
    check "no time: exit code 0, not $?" [ $? = 0 ]
    check "tests without time are skipped" says "$dir/late.json" '"result": "skipped", "seconds": 0, "note": "no time left"'
    check "parts that nobody asked for are, too" says "$dir/late.json" '"what": "cases", "why": "not asked for"'
    check "no folder stays" [ "$(folders)" = "$before" ]
else
    echo "no virtual GPU in this build"
    skipped=$((skipped + 1))
fi
counts
