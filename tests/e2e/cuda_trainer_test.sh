#!/bin/sh
# A trainer for a GPU, on the virtual one: the numbers of the processor's trainer, the same ones whatever the order of
# streams and threads, no race of host and device, runs that go on, predictions, steps that are not finite, and what is
# said where there is no GPU or not enough memory.
set -eu
build=$1
cases=$PWD/tests/cases
. "$(dirname "$0")/../counts.sh"
if ! [ -x "$build/vgpu-nvcc" ] || ! [ -f "$build/libefficc_rt_vgpu.a" ]; then
    echo "no virtual GPU in this build"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_WAIT_POLICY=passive XDG_CACHE_HOME="$work/cache"

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

make() # DIR CASE OPTIONS..: trainers DIR_cpu and DIR_cuda
{
    name=$1 model=$cases/$2/model.onnx
    shift 2
    "$build/efficc" "$model" --fp32 --batch 4 --seq 8 "$@" --target cpu -o "${name}_cpu" >log 2>&1 &&
        "$build/efficc" "$model" --fp32 --batch 4 --seq 8 "$@" --target cuda --nvcc "$build/vgpu-nvcc" \
            -o "${name}_cuda" >log 2>&1 || { cat log; result 1 "trainers of $model"; counts; exit 1; }
}
predictions() # NAME DATA OPTIONS..: the same labels of every row
{
    name=$1 data=$2
    shift 2
    for target in cpu cuda; do
        code=0
        VGPU_RACE=1 "${name}_$target/trainer" --predict "$data" "$@" >$target.rows 2>log || code=$?
        check "predictions of ${name}_$target: 0, not $code" [ "$code" = 0 ]
        cut -d'"' -f3 $target.rows >$target.labels
    done
    check "the same labels of $name" cmp -s cpu.labels cuda.labels
    check "of every row" [ "$(wc -l <cuda.labels)" = "$(wc -l <"$data")" ]
}
make cls minilm-legacy17 --task seq-cls --num-labels 2

train host cls_cpu --eval-data dev.jsonl
check "the processor's run ends with 0, not $code" [ "$code" = 0 ]
VGPU_RACE=1 train whole cls_cuda --eval-data dev.jsonl --save-strategy steps --save-steps 5
check "without races: 0, not $code" [ "$code" = 0 ]
check "the losses of the processor" near host whole loss 1e-5
check "its norms" near host whole grad_norm 1e-4
check "its evaluation" near host whole eval_loss 1e-4
check "says which device and how many graphs" says "device    virtual GPU, sm_90"
for seed in 1 2 3; do
    VGPU_SEED=$seed train "seed$seed" cls_cuda --save-strategy no
    check "order $seed gives the same weights" same_results "seed$seed" whole
done

VGPU_RACE=1 train direct cls_cuda --eval-data dev.jsonl --save-strategy no --no-graphs
check "without graphs: 0, not $code" [ "$code" = 0 ]
check "that is said" says "; no graphs"
check "the same weights" same_results direct whole
for key in loss grad_norm eval_loss; do
    column whole $key >a
    column direct $key >b
    check "each $key is the same" cmp -s a b
    check "and there is one" [ -s a ]
done
train none cls_cpu --no-graphs
check "the processor has none: 1, not $code" [ "$code" = 1 ]
check "and says so" says "--no-graphs is of trainers for a GPU"

mkdir part
cp -r whole/checkpoint-10 part
cp whole/log.jsonl part
VGPU_RACE=1 train part cls_cuda --eval-data dev.jsonl --save-strategy steps --save-steps 5 \
    --resume-from-checkpoint part/checkpoint-10
check "a run goes on: 0, not $code" [ "$code" = 0 ]
check "and ends as the undisturbed one" same_results part whole

predictions cls dev.jsonl --init-tensors whole/model.safetensors
sed 's/, "labels".*/}/' dev.jsonl >text.jsonl
make lm gemma2-legacy17 # whose probabilities are all there
predictions lm text.jsonl

VGPU_RACE=1 train broken cls_cuda --optim sgd --learning-rate 1e9 --max-grad-norm 0 --save-strategy no
check "a step that is not finite ends with 1, not $code" [ "$code" = 1 ]
check "says which op" says "first result that is not finite: "
check "and names the rows" says " of rows.jsonl"
VGPU_STATS=1 train full cls_cuda --optim sgd --learning-rate 1e-9 --save-strategy no
bytes=$(sed -n 's/.*most device bytes \([0-9]*\)$/\1/p' log)
VGPU_MEMORY=${bytes:-0} train full cls_cuda --optim sgd --learning-rate 1e9 --max-grad-norm 0 --save-strategy no --overwrite-output-dir
check "where there is no byte left, too: 1, not $code" [ "$code" = 1 ]
check "the op is said" says "first result that is not finite: "
VGPU_RACE=1 train skipping cls_cuda --optim sgd --learning-rate 1e9 --max-grad-norm 0 --save-strategy no --on-nonfinite skip
check "or is skipped" says "is not finite; first: "
VGPU_RACE=1 train recorded cls_cuda --max-steps 2 --global-batch-size 4 --record-step record
check "a step is recorded: 0, not $code" [ "$code" = 0 ]
check "to its end" grep -aq "number end f64" record

VGPU_MEMORY=1000000 train small cls_cuda
check "too little memory ends with 1, not $code" [ "$code" = 1 ]
check "says how much is needed" says "of device memory, but 1.0 MB are free"
check "and for what" says "the largest are: activations"
VGPU_SHARED=10000 train narrow cls_cuda
check "too little shared memory ends with 1, not $code" [ "$code" = 1 ]
check "says for what" says "attention in fp32 with heads of"
VGPU_DEVICES=0 train none cls_cuda
check "no GPU ends with 1, not $code" [ "$code" = 1 ]
check "says what to do" says "--target cpu"
counts
