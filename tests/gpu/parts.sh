# parts.sh -- the card, the build and the tests of run.sh, which sources this.
#
# $results has a line a test: part, name, passed|failed|skipped, seconds, note (why, or what was measured); $skips a line for each thing that was left out: what, why;
# tabs between. Tests are processes of their own, several at a time, each with a time limit: one that hangs or ends its program costs the
# others nothing.

skip() { # WHAT WHY
    printf '%s\t%s\n' "$1" "$2" >>"$skips"
}

left() { # seconds until the end of the whole
    echo $((limit - (SECONDS - started)))
}

count() { # RESULT
    awk -F '\t' -v what="$1" '$3 == what { n++ } END { print n + 0 }' "$results"
}

# The least of numbers.
least() {
    printf '%s\n' "$@" | sort -g | head -n 1
}

# ---- card and build ----

# Programs from packages of Debian that are not installed, as on a machine without network.
use_packages() {
    local prefix=$build/packages name # stays: programs of the build use it
    name=$prefix/usr/lib/$(gcc -print-multiarch)
    for file in "$packages"/*.deb; do
        dpkg -x "$file" "$prefix" || fail "$file: can't be unpacked"
    done
    export CMAKE_PREFIX_PATH=$prefix/usr PATH=$prefix/usr/bin:$PATH PKG_CONFIG_SYSROOT_DIR=$prefix
    export PKG_CONFIG_PATH=$name/pkgconfig:$prefix/usr/share/pkgconfig LD_LIBRARY_PATH=$name${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

find_nvcc() {
    local path
    for path in "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda/bin/nvcc "$(command -v nvcc)" ~/.cache/efficc/cuda/bin/nvcc; do
        [ -x "$path" ] && echo "$path" && return
    done
}

# Folders of NVIDIA's packages for Python, which may have what the toolkit lacks.
python_folders() {
    timeout 60 python3 -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null | while read -r folder; do
        ls -d "$folder"/*/
    done
}

# Where the toolkit lacks NCCL, cuBLASLt or cuDNN and Python has them: a folder of links to both, with an nvcc that calls the toolkit's.
complete_toolkit() {
    local home=${nvcc%/bin/nvcc} whole=$build/toolkit folder lacks=''
    [ -e "$home/include/nccl.h" ] || lacks+=' nccl.h'
    [ -e "$home/include/cublasLt.h" ] || lacks+=' cublasLt.h'
    compgen -G "$home/lib*/libcudnn.so.9" >/dev/null || lacks+=' libcudnn.so.9'
    [ "$lacks" ] || return 0
    rm -rf "$whole"
    mkdir -p "$whole/bin" "$whole/include" "$whole/lib64"
    for folder in "$home"/{lib64,lib,targets/x86_64-linux/lib}; do
        [ ! -d "$folder" ] || ln -s "$(realpath "$folder")"/* "$whole/lib64" 2>/dev/null # what is there stays
    done
    for folder in $(python_folders); do
        [ ! -d "$folder/lib" ] || ln -s "$folder"lib/lib*.so* "$whole/lib64" 2>/dev/null
        for file in "$folder"include/{nccl,cublas,cudnn}*; do
            [ ! -e "$file" ] || [ -e "$home/include/${file##*/}" ] || ln -s "$file" "$whole/include" 2>/dev/null
        done
    done
    for file in "$whole"/lib64/lib*.so.*; do # the linker's names
        [ -e "${file%%.so.*}.so" ] || ln -s "${file##*/}" "${file%%.so.*}.so"
    done
    printf '#!/bin/sh\nexec "%s" "-I%s" "$@"\n' "$nvcc" "$whole/include" >"$whole/bin/nvcc"
    chmod +x "$whole/bin/nvcc"
    nvcc=$whole/bin/nvcc
    echo "the toolkit in $home lacks$lacks; with what Python has it is $whole"
}

# Fills $card, "KEY VALUE" a line. 77: there is none, and its last line says why.
find_card() {
    [ -z "$packages" ] || use_packages
    jobs=$(nproc) target="--target cuda"
    if [ "$virtual" ]; then
        nvcc=$build/vgpu-nvcc prefix=vgpu target="--target cuda --nvcc $nvcc"
        [ -x "$nvcc" ] && [ -e "$build/libefficc_rt_vgpu.a" ] || fail "no virtual GPU in $build"
        echo "card virtual GPU" >"$card"
        return 0
    fi
    nvcc=$(find_nvcc) prefix=gpu
    local home code
    cc -std=c11 -o "$work/ask" "$root/tests/gpu/card.c" -ldl || fail "no C compiler: scripts/setup.sh installs what is needed"
    [ -z "$nvcc" ] || complete_toolkit
    home=${nvcc%/bin/nvcc}
    LD_LIBRARY_PATH=$home/lib64:$home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout -k 5 60 "$work/ask" >"$card"
    code=$?
    [ $code != 124 ] || echo "no device: the driver gave no answer in 60 s" >>"$card"
    [ $code = 0 ] || return $code
    [ -n "$nvcc" ] || fail "no nvcc: set CUDA_HOME, or make a toolkit with scripts/setup.sh --cuda"
    export CUDA_HOME=$home # efficc's nvcc, too
    [ "$(sed -n 's/^compute_mode //p' "$card")" = 0 ] || jobs=1 # one process at a time, or none
    echo "cuda $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')" >>"$card"
    if command -v nvidia-smi >/dev/null; then
        echo "driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)" >>"$card"
    else
        skip "clocks, power and memory of the card" "nvidia-smi is not here"
    fi
    arch=$(sed -n 's/^capability \([0-9]*\)\.\([0-9]*\)$/\1\2/p' "$card")
    case $arch in 80 | 89 | 90 | 100) target+=" --cuda-arch sm_$arch" ;; esac # others run the PTX
}

make_all() {
    [ -z "$virtual" ] || return 0
    echo "== build"
    local log=$build/gpu-build.log generator='' keep='' from=$SECONDS code=0
    command -v ninja >/dev/null && generator="-G Ninja" keep=0
    # shellcheck disable=SC2086
    timeout 120 cmake -S "$root" -B "$build" $generator -DCMAKE_BUILD_TYPE=Release -DEFFICC_CUDA=ON "-DEFFICC_CUDA_ARCHS=$arch" \
        -DEFFICC_NVCC="$nvcc" >"$log" 2>&1 &&
        timeout -k 5 "$(least 300 "$(left)")" cmake --build "$build" -j "$(nproc)" --target gpu_tests -- -k $keep >>"$log" 2>&1 || code=1
    echo "$((SECONDS - from)) s"
    [ $code = 0 ] && return
    printf 'build\tgpu_tests\tfailed\t%d\t%s\n' $((SECONDS - from)) "$(grep -m 1 -E 'error|Error|FAILED' "$log" | tr '\t' ' ')" >>"$results"
    grep -E 'error|Error|FAILED|lacks' "$log" | head -n 30
    tail -n 20 "$log"
    cp "$log" "$work/build.failed"
    echo "scripts/setup.sh installs what is needed; without network see README.md beside this file"
    if [ -x "$build/efficc" ] && [ -e "$build/libefficc_rt_cuda.a" ]; then
        skip "some tests" "they were not built"
        return 0
    fi
    skip "all tests" "the build failed"
    return 1
}

# ---- tests ----

# one PART PROGRAM TEST UNTIL MOST: a test as a process, if it begins before UNTIL ($SECONDS does not go on in other processes: date does)
one() {
    local part=$1 program=$2 name=$3 until=$4 most=$5 log from code what=passed why=''
    log=$work/$part-$(basename "$program")-$name.log
    from=$(date +%s%N)
    if [ "${from%?????????}" -ge "$until" ]; then
        printf '%s\t%s\tskipped\t0\tno time left\n' "$part" "$name" >>"$results"
        return
    fi
    timeout -k 5 "$most" "$program" "=$name" >"$log" 2>&1 </dev/null
    code=$?
    if [ $code = 124 ] || [ $code = 137 ]; then
        what=failed why="over its limit of $most s"
    elif [ $code != 0 ]; then
        what=failed why="exit code $code: $(grep -vE '^ *$|CUnit|cunit|^Suite|Run Summary|^ +(suites|tests|asserts) |Elapsed| passed, [0-9]+ failed' "$log" | head -n 12 | tr '\t\n' '  ' | cut -c 1-600)"
    elif grep -qE ' [1-9][0-9]* skipped$' "$log"; then
        what=skipped why=$(sed -n 's/^ *skipped: //p' "$log" | head -n 1)
    else
        why=$(sed -nE 's/^ +(.* loss [0-9].*)/\1/p' "$log" | head -n 1 | tr -s '\t ' ' ')
    fi
    printf '%s\t%s\t%s\t%.2f\t%s\n' "$part" "$name" $what "$((($(date +%s%N) - from) / 10000000))e-2" "$why" >>"$results"
    [ $what = passed ] || echo "$what: $part $name: $why"
    [ $what != failed ] || { echo "== $part $name: $why"; tail -n 100 "$log"; } >"${log%.log}.failed"
}
export -f one
export results work

# run_tests PART LIMIT MOST: of lines "program test" on stdin, $jobs at a time, LIMIT seconds together, MOST one
run_tests() {
    local part=$1 all from=$SECONDS until
    all=$(least $(($2 * slow)) "$(($(left) - 5))")
    until=$(($(date +%s) + all))
    echo "== $part, at most $all s"
    # shellcheck disable=SC2016
    xargs -r -P "$jobs" -L 1 bash -c 'one "$1" "$4" "$5" "$2" "$3"' one "$part" "$until" $(($3 * slow))
    awk -F '\t' -v part="$part" -v s=$((SECONDS - from)) '$1 == part { n[$3]++ }
        END { printf "%d passed, %d failed, %d skipped; %d s\n", n["passed"], n["failed"], n["skipped"], s }' "$results"
}

# Lines of run_tests: tests of a program whose names fit.
tests_of() { # PROGRAM [PATTERN]
    "$1" --list | grep -E '^[A-Za-z0-9_]+$' | grep -E "${2:-}" | sed "s|^|$1 |"
}

part_kernels() {
    local program names=("$root"/tests/kernels/*_test.c cudnn_test.c) name
    [ -z "$virtual" ] || names=(move_test.c convert_test.c)
    for name in "${names[@]}"; do
        program=$build/tests/${prefix}_$(basename "$name" .c)
        [ ! -x "$program" ] || tests_of "$program"
    done | run_tests kernels 90 80
}

# Every case in fp32 and some in bf16: trained by PyTorch, by the interpreter, and on the card.
part_cases() {
    local fp32='_full_fp32$|_lora_fp32$' bf16='^(gpt2_optimum|bert_optimum|llama_tied_dynamo|gemma2_legacy17|minilm_optimum|qwen2_dynamo)_(full|lora)_fp32$'
    [ -z "$virtual" ] || fp32='^minilm_optimum_lora_fp32$' bf16='^minilm_optimum_full_fp32$'
    export EFFICC_CASE_FLAGS=$target
    tests_of "$build/tests/cases_test" "$fp32" | run_tests cases-fp32 110 60
    EFFICC_CASE_FLAGS="$target --bf16"
    tests_of "$build/tests/cases_test" "$bf16" | run_tests cases-bf16 60 60
    unset EFFICC_CASE_FLAGS
}

# Programs of a few ops against the interpreter: many compilations, so they come last.
part_programs() {
    local pattern=''
    [ -z "$virtual" ] || pattern='xx'
    export AGREE_NVCC=$nvcc
    { tests_of "$build/tests/cg_run_test" "$pattern"; tests_of "$build/tests/cg_low_test" "$pattern"; } | run_tests programs 60 60
    unset AGREE_NVCC
}
