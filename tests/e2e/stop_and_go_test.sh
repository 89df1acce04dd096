#!/bin/sh
# A compilation that stops as text after any pass and goes on from it gives the same sources
# and the same template as one that never stopped.
set -eu
efficc=$1/efficc
model=$PWD/tests/cases/bert-legacy17-dedup/model.onnx
. "$(dirname "$0")/../counts.sh"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"

stop() # OPTIONS PASS [OPTIONS of what goes on]
{
    "$efficc" "$model" --batch 2 --seq 8 $1 --quiet --no-build -o whole
    "$efficc" "$model" --batch 2 --seq 8 $1 --stop-after "$2" >stopped.ir 2>/dev/null
    "$efficc" stopped.ir ${3:-} --quiet --no-build -o parts
    check "stopped after $2 $1: other results" diff -r --exclude=plan.json whole parts
}
for pass in canon recognise task grad plan; do
    stop --fp32 "$pass" --fp32
done
stop "--fp32 --lora-r 4" lora --fp32
stop "--fp32 --lora-r 4" optim --fp32
for pass in autocast grad scale plan; do
    stop "--fp16 --lora-r 4" "$pass"
done
stop --bf16 autocast
stop --bf16 plan
counts
