#!/bin/sh
# A trainer for a GPU, on the virtual one: the numbers of the processor's trainer, the same ones whatever the order of
# streams and threads, no race of host and device, runs that go on, predictions, steps that are not finite, and what is
# said where there is no GPU or not enough memory.
set -eu
build=$1
case=$PWD/tests/cases/minilm-legacy17
. "$(dirname "$0")/../counts.sh"
if ! [ -x "$build/vgpu-nvcc" ] || ! [ -f "$build/libefficc_rt_vgpu.a" ]; then
    echo "no virtual GPU in this build"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_WAIT_POLICY=passive

says() # WORDS: stand in the log
{
    grep -qF -- "$1" log || { echo "not said: $1"; cat log; return 1; }
}
train() # DIR PROGRAM OPTIONS.. ; the exit code is in $code
{
    dir=$1 program=$2 code=0
    shift 2
    "$program/trainer" --train-data rows.jsonl --output-dir "$dir" --num-train-epochs 3 --logging-steps 1 \
        --learning-rate 1e-3 --global-batch-size 8 "$@" >log 2>&1 || code=$?
}
column() # DIR KEY: a value of each row of its log
{
    sed -n "s/.*\"$2\": *\\([0-9.e+-]*\\).*/\\1/p" "$1/log.jsonl"
}
near() # DIR OTHER KEY TOLERANCE: relative
{
    column "$1" "$3" >a
    column "$2" "$3" >b
    paste a b | awk -v most="$4" '{ d = $1 - $2; s = $1 > 0 ? $1 : 1; if (d > most * s || -d > most * s) bad = 1 }
        END { exit bad || !NR }' || { paste a b; return 1; }
}
same_results() # DIR OTHER
{
    cmp -s "$1/model.safetensors" "$2/model.safetensors" && cmp -s "$1/model.onnx" "$2/model.onnx"
}

i=0
while [ $i -lt 26 ]; do
    i=$((i + 1))
    ids=$((i * 7 % 150 + 1))
    for k in 3 5 8 13 21 34 55; do
        [ $((i * k % 9)) -lt 6 ] && ids="$ids,$((i * k % 150 + 1))"
    done
    echo "{\"input_ids\": [$ids], \"labels\": $((i % 3 == 0))}"
done >rows.jsonl
head -n 10 rows.jsonl >dev.jsonl

for target in cpu cuda; do
    set -- --target $target
    [ $target = cpu ] || set -- "$@" --nvcc "$build/vgpu-nvcc"
    "$build/efficc" "$case/model.onnx" --task seq-cls --num-labels 2 --fp32 --batch 4 --seq 8 "$@" -o $target >log 2>&1 ||
        { cat log; result 1 "a trainer for $target"; counts; exit 1; }
done

train host cpu --eval-data dev.jsonl
check "the processor's run ends with 0, not $code" [ "$code" = 0 ]
VGPU_RACE=1 train whole cuda --eval-data dev.jsonl --save-strategy steps --save-steps 5
check "without races: 0, not $code" [ "$code" = 0 ]
check "the losses of the processor" near host whole loss 1e-5
check "its norms" near host whole grad_norm 1e-4
check "its evaluation" near host whole eval_loss 1e-4
check "says which device and how many graphs" says "device    virtual GPU, sm_90"
for seed in 1 2 3; do
    VGPU_SEED=$seed train "seed$seed" cuda --save-strategy no
    check "order $seed gives the same weights" same_results "seed$seed" whole
done

mkdir part
cp -r whole/checkpoint-10 part
cp whole/log.jsonl part
VGPU_RACE=1 train part cuda --eval-data dev.jsonl --save-strategy steps --save-steps 5 \
    --resume-from-checkpoint part/checkpoint-10
check "a run goes on: 0, not $code" [ "$code" = 0 ]
check "and ends as the undisturbed one" same_results part whole

for target in cpu cuda; do
    code=0
    VGPU_RACE=1 $target/trainer --predict dev.jsonl --init-tensors whole/model.safetensors >$target.rows 2>log || code=$?
    check "predictions of $target: 0, not $code" [ "$code" = 0 ]
done
cut -d'"' -f3 cpu.rows >a
cut -d'"' -f3 cuda.rows >b
check "the same labels" cmp -s a b
check "of every row" [ "$(wc -l <b)" = 10 ]

VGPU_RACE=1 train broken cuda --optim sgd --learning-rate 1e9 --max-grad-norm 0 --save-strategy no
check "a step that is not finite ends with 1, not $code" [ "$code" = 1 ]
check "says which op" says "first result that is not finite: "
check "and names the rows" says " of rows.jsonl"
VGPU_RACE=1 train skipping cuda --optim sgd --learning-rate 1e9 --max-grad-norm 0 --save-strategy no --on-nonfinite skip
check "or is skipped" says "is not finite; first: "
VGPU_RACE=1 train recorded cuda --max-steps 2 --global-batch-size 4 --record-step record
check "a step is recorded: 0, not $code" [ "$code" = 0 ]
check "to its end" grep -aq "number end f64" record

VGPU_MEMORY=1000000 train small cuda
check "too little memory ends with 1, not $code" [ "$code" = 1 ]
check "says how much is needed" says "of device memory, but 1.0 MB are free"
check "and for what" says "the largest are: activations"
VGPU_DEVICES=0 train none cuda
check "no GPU ends with 1, not $code" [ "$code" = 1 ]
check "says what to do" says "--target cpu"
counts
