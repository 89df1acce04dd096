#!/usr/bin/env bash
# The two targets make one program: the same step.c, the same losses, checkpoints and adapters that go from one to the other. The GPU
# is the virtual one of tests/vgpu.
efficc=$1/efficc nvcc=$1/vgpu-nvcc
. "$(dirname "$0")/../counts.sh"
cases=$(cd "$(dirname "$0")/../cases" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMP_WAIT_POLICY=passive
cd "$dir" || exit 1
if [ ! -e "$1/libefficc_rt_vgpu.a" ]; then
    echo "no virtual GPU here"
    skipped=1
    counts
    exit
fi
for i in $(seq 1 24); do
    echo "{\"input_ids\": [$((i % 17 + 1)), $((i * 3 % 29 + 1)), $((i * 7 % 23 + 1)), 4, 5, $((i % 5 + 6)), 7]}"
done >rows.jsonl

for target in cpu cuda; do
    flags="--target cpu"
    [ $target = cpu ] || flags="--nvcc $nvcc"
    for lora in "" "--lora-r 4"; do
        # shellcheck disable=SC2086
        "$efficc" "$cases/gpt2-legacy17/model.onnx" --batch 2 --seq 16 --fp32 $flags $lora -o "$target${lora:+-lora}" >said 2>&1
        result $? "efficc $flags $lora"
        [ "$target$lora" = cuda ] && check "the choice is said" grep -q '^target  *cuda, which --nvcc means' said
        [ "$target$lora" = cuda ] && check "and the nvcc" grep -qx "nvcc  *$nvcc" said
    done
done
check "step.c is the same" cmp cpu/src/step.c cuda/src/step.c
check "kernels.h is the same" cmp cpu/src/kernels.h cuda/src/kernels.h
check "plan.json has the target" grep -q '"target":	"cuda"' cuda/plan.json
check "plan.json has the GPU" grep -q '"arch":	"sm_90"' cuda/plan.json
check "a GPU's kernels are CUDA" [ -e cuda/src/kernels.cu ]
check "and not C" [ ! -e cuda/src/kernels.c ]
check "a trainer for a GPU is for any processor" grep -qx 'CFLAGS = -O3' cuda/src/Makefile
check "one for the CPU is for this one" grep -qx 'CFLAGS = -O3 -march=native' cpu/src/Makefile
if ! command -v objdump >/dev/null; then
    echo "no objdump here"
    skipped=1
elif [ -e "$1/libefficc_rt_cuda.a" ]; then
    ! objdump -d "$1/libefficc_rt_cuda.a" | grep -qE '%[yz]mm'
    result $? "so is the runtime that it links"
fi

mkdir "a folder"
ln -s "$nvcc" "a folder/nvcc #1"
"$efficc" "$cases/gpt2-legacy17/model.onnx" --batch 2 --seq 16 --fp32 --nvcc "$PWD/a folder/nvcc #1" -o odd >said 2>&1
result $? "nvcc at a path with spaces" || tail -n 3 said
mv odd/trainer built
touch libefficc_rt_cuda.a # the name is all that this nvcc wants
make -s -C odd/src RT_LIB="$PWD/libefficc_rt_cuda.a" >said 2>&1
result $? "and by make" || tail -n 3 said
check "make has made a trainer" [ -x odd/trainer ]
! "$efficc" "$cases/gpt2-legacy17/model.onnx" --batch 2 --seq 16 --fp32 --nvcc true -o none >said 2>&1
result $? "an nvcc that makes nothing"
check "is told so" grep -q "made no trainer" said
! "$efficc" "$cases/gpt2-legacy17/model.onnx" --batch 2 --seq 16 --fp32 --nvcc "$PWD/no/nvcc" -o none >said 2>&1
result $? "an nvcc that is not there"
check "is told so before the work" grep -q "option --nvcc: there is no program '$PWD/no/nvcc'" said
check "and nothing is written" [ ! -e none ]

sources() { # of a program for a GPU, with this folder as CUDA_HOME
    CUDA_HOME=$PWD/$1 "$efficc" "$cases/gpt2-legacy17/model.onnx" --batch 2 --seq 16 --fp32 --target cuda --no-build -o "of-$1" >said 2>&1
    result $? "CUDA_HOME is $1" || tail -n 3 said
}
mkdir -p home/bin
ln -s "$nvcc" home/bin/nvcc
sources home
check "its nvcc is said" grep -qx "nvcc  *$PWD/home/bin/nvcc" said
check "and used" grep -qx "NVCC = $PWD/home/bin/nvcc" of-home/src/Makefile
sources nowhere
check "a CUDA_HOME without nvcc is said" grep -q "^nvcc .*; CUDA_HOME is $PWD/nowhere, where there is no bin/nvcc" said

train() { # program, folder, options
    "$1/trainer" --train-data rows.jsonl --output-dir "$2" --logging-steps 1 "${@:3}" >said 2>&1
    result $? "$1 into $2" || tail -n 3 said
}
losses() {
    grep -oE '"loss": [0-9.]+' "$1/log.jsonl" | cut -d' ' -f2
}
same() { # what, folder, folder, how many losses
    paste <(losses "$2") <(losses "$3") >both
    check "$1: $4 losses" [ "$(wc -l <both)" = "$4" ]
    check "$1: losses are the same" awk '{ d = $1 - $2; if (d > 2e-5 * $1 || -d > 2e-5 * $1) exit 1 }' both
}

train cpu c --max-steps 8 --save-steps 4
train cuda g --max-steps 8 --save-steps 4
same "cpu and cuda" c g 8
for from in c g; do
    to=cuda
    [ $from = c ] || to=cpu
    mkdir "on-$from"
    cp -r $from/checkpoint-4 $from/log.jsonl "on-$from"
    train $to "on-$from" --max-steps 8 --resume-from-checkpoint
    same "a checkpoint goes on under $to" c "on-$from" 8
    train "${to}-lora" "lora-$to" --max-steps 3
done
for to in cpu cuda; do
    from=cuda
    [ $to = cuda ] || from=cpu
    train "$to-lora" "again-$to" --max-steps 3 --init-adapter "lora-$from"
done
same "an adapter goes on" again-cpu again-cuda 3
counts
