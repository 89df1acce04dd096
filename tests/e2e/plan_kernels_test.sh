#!/usr/bin/env bash
# efficc plan --roofline counts the kernels of a step: as many as the virtual GPU runs in one.
set -uo pipefail
build=$1
. "$(dirname "$0")/../counts.sh"
cases=$(cd "$(dirname "$0")/../cases" && pwd)
[ -x "$build/vgpu-nvcc" ] || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export XDG_CACHE_HOME=$dir/cache
for i in 1 2 3 4; do
    echo "{\"input_ids\": [$i, 5, 7, 3, 9, 2, $i, 8], \"labels\": $((i % 2))}"
done >"$dir/classes.jsonl"
sed 's/, "labels": .//' "$dir/classes.jsonl" >"$dir/text.jsonl"

# run STEPS: operations of so many steps, without copies from and to the host, and what the runtime adds up for the host
run() {
    VGPU_TRACE=1 "$dir/out/trainer" --train-data "$dir/$data.jsonl" --max-steps "$1" --no-shuffle --save-strategy no --output-dir "$dir/o$1" 2>"$dir/trace" >"$dir/said" || return 1
    sed -n 's/.* task [0-9]*: //p' "$dir/trace" | grep -vcE '^(memcpy|add_loss|note_update)'
}

counted() { # CASE DATA OPTIONS
    local name=$1 model=$cases/$1/model.onnx one two planned
    data=$2
    shift 2
    rm -rf "$dir"/o*
    "$build/efficc" "$model" --batch 2 --seq 8 "$@" --target cuda --nvcc "$build/vgpu-nvcc" --quiet -o "$dir/out"
    result $? "$name: efficc"
    planned=$("$build/efficc" plan "$model" --batch 2 --seq 8 "$@" --roofline --json | sed -nE 's/^.*"kernels":[[:space:]]*([0-9]+),$/\1/p' | head -1)
    run 1 >"$dir/said" # measures products, once
    rm -rf "$dir/o1"
    one=$(run 1) && two=$(run 2)
    result $? "$name: the trainer"
    [ "$((two - one - 1))" = "$planned" ] # one clears what is added up
    result $? "$name $*: $((two - one - 1)) kernels a step, $planned planned"
}
counted gpt2-legacy17 text --bf16
counted qwen2-dynamo text --bf16 --lora-r 2 --lora-targets all-linear
counted bert-legacy17 classes --fp32
counted gemma2-legacy17 text --fp32 --no-unpad
counts
