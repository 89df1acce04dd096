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

stop() # OPTIONS PASS
{
    "$efficc" "$model" --batch 2 --seq 8 $1 --quiet --no-build -o whole
    "$efficc" "$model" --batch 2 --seq 8 $1 --stop-after "$2" >stopped.ir 2>/dev/null
    "$efficc" stopped.ir --quiet --no-build -o parts
    check "stopped after $2 $1: other results" diff -r --exclude=plan.json whole parts
}
for pass in canon recognise task grad plan; do
    stop "" "$pass"
done
stop "--lora-r 4" lora
stop "--lora-r 4" optim
counts
