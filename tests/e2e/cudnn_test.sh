#!/usr/bin/env bash
# Attention by cuDNN without a GPU: numbers in cudnn.def are those of cuDNN's header, and cuDNN makes plans of known models' attentions
# for an H200 that isn't there, in the workspace that programs have, from a driver that does nothing: each skipped where cuDNN isn't. And
# a trainer with the virtual GPU's cuDNN has the losses that it has without.
build=$1
. "$(dirname "$0")/../counts.sh"
here=$(cd "$(dirname "$0")/cudnn" && pwd)
root=$(cd "$here/../../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for toolkit in "$CUDA_HOME" /usr/local/cuda "$HOME/.cache/efficc/cuda"; do
    [ -e "$toolkit/lib64/libcudnn.so.9" ] && break
done
flags=(-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -I"$root" -I"$root/runtime/include")

numbers() {
    {
        echo '#include <cudnn.h>'
        echo '#define DNN(name, number) _Static_assert((int)CUDNN_##name == number, #name);'
        echo "#include \"$root/runtime/cuda/cudnn.def\""
    } | cc -std=c11 -isystem "$toolkit/include" -fsyntax-only -Wno-deprecated-declarations -x c - 2> "$dir/log" ||
        { grep -m 3 error "$dir/log"; return 1; }
}
# Functions of the header, as cudnn_api.h declares them, take and give the same: enumerations are ints.
functions() {
    for name in $(sed -n 's/^ *FN([^,]*, \([A-Za-z]*\),.*/\1/p' "$root/runtime/cuda/cudnn_api.h"); do
        grep -qhE "cudnn$name\(" "$toolkit"/include/cudnn_*.h || { echo "cudnn$name is not declared"; return 1; }
    done
}
if [ -e "$toolkit/include/cudnn.h" ]; then
    check "numbers of cuDNN's header" numbers
    check "functions of cuDNN's header" functions
else
    echo "skipped: no cudnn.h"
    skipped=2
fi

check "the driver compiles" cc -std=c11 -Wall -Wextra -Werror -shared -fPIC "$here/driver.c" -o "$dir/libcuda.so.1"
check "plans compile" cc "${flags[@]}" "$here/plans.c" "$root"/runtime/cuda/cudnn_{graph,load}.c \
    "$root"/runtime/cuda/attention_scratch.c -o "$dir/plans" -ldl
if LD_LIBRARY_PATH=$dir:$toolkit/lib64 "$dir/plans" "$here/h200.json" > "$dir/plans.txt" 2> "$dir/log"; then
    cat "$dir/plans.txt"
    check "24 plans" [ "$(grep -c ' of .* cudnn_generated.*_flash_' "$dir/plans.txt")" = 24 ]
elif [ $? = 77 ]; then
    cat "$dir/plans.txt"
    skipped=$((skipped + 1))
else
    cat "$dir/plans.txt"
    tail -5 "$dir/log"
    check "cuDNN makes plans" false
fi

losses() { # DIR
    grep -o '"loss": *[^,]*' "$1/log.jsonl" | grep -o '[0-9.]*$'
}
train() { # DIR, a variable
    env "$2" LD_LIBRARY_PATH="$build/vgpu-cudnn" OMP_WAIT_POLICY=passive "$dir/p/trainer" --train-data "$dir/rows.jsonl" --output-dir "$dir/$1" \
        --num-train-epochs 1 --logging-steps 1 --learning-rate 1e-3 --global-batch-size 8 > "$dir/$1.log" 2>&1 || { tail -3 "$dir/$1.log"; return 1; }
}
near() { # of 3 digits
    paste <(losses "$dir/own") <(losses "$dir/lib") | awk '{ d = $1 - $2; bad += d * d > 9e-6 * $1 * $1 } END { exit bad || NR < 4 }'
}
if [ -x "$build/vgpu-nvcc" ] && [ -e "$build/vgpu-cudnn/libcudnn.so.9" ] && [ -e "$build/libefficc_rt_vgpu.a" ]; then
    export XDG_CACHE_HOME=$dir/cache VGPU_CXXFLAGS="-O1 -march=native -rdynamic"
    for i in $(seq 30); do
        printf '{"input_ids": [%s]}\n' "$(seq -s , $((i % 7 + 1)) $((i % 5 + 1)) 60 | cut -d, -f-$((3 + i * 5 % 12)))"
    done > "$dir/rows.jsonl"
    for form in "" --no-unpad; do
        # shellcheck disable=SC2086
        check "a trainer $form" "$build/efficc" "$root/tests/cases/gpt-neox-dynamo/model.onnx" --target cuda --nvcc "$build/vgpu-nvcc" --bf16 \
            --batch 4 --seq 16 $form -o "$dir/p" > "$dir/log" 2>&1
        rm -rf "$dir/own" "$dir/lib" "$dir/none"
        check "its own attention $form" train own EFFICC_CUDNN=0
        check "cuDNN's $form" train lib VGPU_RACE=1
        check "says so $form" grep -q "attention by cuDNN 9.19" "$dir/lib.log"
        check "the same losses $form" near
        check "an older cuDNN $form" train none VGPU_CUDNN=old
        check "isn't used $form" grep -q "attention by own kernels" "$dir/none.log"
        check "and bitwise nothing differs $form" cmp -s <(losses "$dir/own") <(losses "$dir/none")
    done
else
    echo "skipped: no virtual GPU in this build"
    skipped=$((skipped + 16))
fi
counts
