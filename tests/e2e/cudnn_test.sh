#!/usr/bin/env bash
# Attention by cuDNN without a GPU: numbers in cudnn.def are those of cuDNN's header, and cuDNN makes plans of known models' attentions
# for an H200 that isn't there, in the workspace that programs have, from a driver that does nothing. Each skipped where cuDNN isn't.
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
counts
