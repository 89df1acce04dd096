#!/usr/bin/env bash
# scripts/setup_cuda.sh, with packages of a few bytes in place of NVIDIA's: which toolkit it names, what it makes of packages, and
# that nothing half-made stays.
set -euo pipefail
. "$(dirname "$0")/../counts.sh"
cd "$(dirname "$0")/../.."
if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "no pip here"
    exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
script=scripts/setup_cuda.sh

# Packages as $script pins them; files of NAME:PATH[:CONTENT], executable.
python3 - "$script" "$dir" <<'PY'
import re, sys, zipfile
pins = dict(re.findall(r"(nvidia-[a-z0-9-]+)==([0-9.]+)", open(sys.argv[1]).read()))
nvcc = '#!/bin/sh\necho "Cuda compilation tools, release 13.0, V13.0.88"\nexit ${NVCC_FAILS:-0}\n'
files = {"nvidia-cuda-nvcc": {"cu13/bin/nvcc": nvcc}, "nvidia-cuda-runtime": {"cu13/include/cuda_runtime.h": "", "cu13/lib/libcudart.so.13": ""},
         "nvidia-cublas": {"cu13/include/cublasLt.h": "", "cu13/lib/libcublasLt.so.13": ""},
         "nvidia-nccl-cu13": {"nccl/include/nccl.h": "", "nccl/lib/libnccl.so.2": ""},
         "nvidia-cudnn-cu13": {"cudnn/include/cudnn.h": "", "cudnn/lib/libcudnn.so.9": ""}}
for name, version in pins.items():
    stem = name.replace("-", "_") + "-" + version
    with zipfile.ZipFile(f"{sys.argv[2]}/{stem}-py3-none-any.whl", "w") as z:
        for path, text in files.get(name, {}).items():
            info = zipfile.ZipInfo("nvidia/" + path)
            info.external_attr = 0o100755 << 16
            z.writestr(info, text)
        z.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        z.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
        z.writestr(f"{stem}.dist-info/RECORD", "")
PY
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$dir
unset CUDA_HOME

kit="$dir/a b/kit"
result "$("$script" "$kit" >"$dir/log" 2>&1; echo $?)" "a toolkit is made: $(cat "$dir/log")"
check "the folder is named" grep -q "CUDA toolkit in $kit: CUDA 13.0" "$dir/log"
check "nothing is lacking" sh -c "! grep -q lacks '$dir/log'"
for f in bin/nvcc include/nccl.h include/cudnn.h lib64/libcudart.so lib64/libcublasLt.so lib64/libnccl.so lib64/libcudnn.so.9 licenses/nvidia_cublas-*; do
    check "$f is in it" sh -c "[ -e '$kit'/$f ]"
done
check "nothing else is" sh -c "! ls '$kit' | grep -qvE '^(bin|include|lib|lib64|licenses)$'"
check "nothing lies beside it" [ "$(ls "$dir/a b")" = kit ]

check "one that is there is named" sh -c "PIP_FIND_LINKS=/none '$script' '$kit' | grep -q 'CUDA 13.0'"
check "so is that of CUDA_HOME" sh -c "CUDA_HOME='$kit' '$script' | grep -q 'export CUDA_HOME=$kit'"
check "a CUDA_HOME without a toolkit is said" sh -c "PATH='$kit/bin':\$PATH CUDA_HOME='$dir/none' '$script' 2>&1 | grep -q 'CUDA_HOME is $dir/none, where there is no bin/nvcc'"
for words in "--cuda -x" "--cuda $dir/e $dir/f" "--fuzz x"; do
    # shellcheck disable=SC2086
    result "$(! scripts/setup.sh $words >"$dir/log" 2>&1; echo $?)" "setup.sh $words"
    check "setup.sh $words: is refused" grep -q "what is '${words##* }'" "$dir/log"
done
rm "$kit/include/nccl.h"
[ -e /usr/include/nccl.h ] || check "what is lacking is named" sh -c "CUDA_HOME='$kit' '$script' | grep -q 'it lacks nccl.h;'"

check "a folder with other things stays" sh -c "! '$script' '$dir/a b' >'$dir/log' 2>&1 && grep -q 'no toolkit in it' '$dir/log'"
check "a toolkit that compiles nothing is refused" sh -c "! NVCC_FAILS=1 '$script' '$dir/c' >'$dir/log' 2>&1"
check "and leaves nothing" sh -c "! ls '$dir' | grep -q '^c'"
check "no packages, no toolkit" sh -c "! PIP_FIND_LINKS=/none '$script' '$dir/d' >'$dir/log' 2>&1 && grep -q 'could not load' '$dir/log'"
check "and nothing stays" sh -c "! ls '$dir' | grep -q '^d\\b'"
counts
