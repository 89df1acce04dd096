#!/usr/bin/env bash
# The real toolkit compiles and links emitted programs for sm_90 without a warning, through the Makefile among the sources, and a machine
# without a GPU refuses to run one in a line. Skipped and counted where nvcc is not there. EFFICC_NVCC_CASES=all: every case.
efficc=$1/efficc
. "$(dirname "$0")/../counts.sh"
cases=$(cd "$(dirname "$0")/../cases" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
programs=("bert-legacy17 --fp32 --dropout 0.1" "llama-tied-dynamo --bf16" "gpt2-legacy17 --bf16 --lora-r 4")
if [ "${EFFICC_NVCC_CASES:-}" = all ]; then
    for case in "$cases"/*/case.json; do
        case=$(basename "$(dirname "$case")")
        programs+=("$case --fp32" "$case --fp16 --lora-r 4" "$case --bf16 --no-unpad")
    done
fi
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
[ -x "$nvcc" ] || nvcc=$(command -v nvcc)
if [ -z "$nvcc" ]; then
    echo "no nvcc here"
    skipped=${#programs[@]}
    counts
    exit
fi

# Sizes that the file leaves open.
sizes() { # case
    case $1 in
    *static*) ;;
    minilm*) echo "--batch 4 --seq 16 --task seq-cls --num-labels 3" ;;
    *) echo "--batch 4 --seq 16" ;;
    esac
}

for program in "${programs[@]}"; do
    read -r case flags <<<"$program"
    out=$dir/$case
    # shellcheck disable=SC2046,SC2086
    if ! "$efficc" "$cases/$case/model.onnx" $(sizes "$case") $flags --target cuda --no-build --force -o "$out" >"$dir/said" 2>&1; then
        result 1 "$program: efficc"
        tail -n 5 "$dir/said"
        continue
    fi
    goal=../trainer
    if [ ! -e "$1/libefficc_rt_cuda.a" ]; then
        goal="step.o kernels.o"
        skipped=$((skipped + 1))
    fi
    # shellcheck disable=SC2086
    make -s -C "$out/src" NVCC="$nvcc" CFLAGS="-Wextra -Werror" ARCH="-gencode arch=compute_90,code=sm_90" \
        NVFLAGS="-std=c++17 -O3 -Xcompiler -Wall,-Wextra -Werror all-warnings" $goal >"$dir/said" 2>&1
    result $? "$program: nvcc"
    check "$program: nothing is said" [ ! -s "$dir/said" ]
    head -n 20 "$dir/said"
    trainer=$out/trainer
    [ "${last:-}" ] || last=$trainer
done
if [ -x "${last:-}" ]; then
    make -s -B -C "$(dirname "$last")/src" NVCC="$nvcc" kernels.o >"$dir/said" 2>&1
    check "the Makefile as it is: nothing is said" [ ! -s "$dir/said" ]
fi
if [ -x "${last:-}" ] && [ ! -e /dev/nvidiactl ]; then
    echo '{"input_ids": [1, 2, 3], "label": 1}' >"$dir/rows.jsonl"
    "$last" --train-data "$dir/rows.jsonl" --output-dir "$dir/run" >"$dir/said" 2>&1
    check "a machine without a GPU: exit code $?" [ $? = 1 ]
    check "a machine without a GPU: --target cpu is named" grep -q 'target cpu' "$dir/said"
    check "a machine without a GPU: one line" [ "$(wc -l <"$dir/said")" = 1 ]
fi
counts
