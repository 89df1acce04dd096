#!/bin/sh
# A compilation that stops as text after any pass and goes on from it gives the same sources
# and the same template as one that never stopped.
set -eu
efficc=$1/efficc
model=$PWD/tests/cases/bert-legacy17-dedup/model.onnx
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"

passed=0 failed=0
check() # OPTIONS PASS
{
    "$efficc" "$model" --batch 2 --seq 8 $1 --quiet --no-build -o whole
    "$efficc" "$model" --batch 2 --seq 8 $1 --stop-after "$2" >stopped.ir 2>/dev/null
    "$efficc" stopped.ir --quiet --no-build -o parts
    if diff -r --exclude=plan.json whole parts; then
        passed=$((passed + 1))
    else
        echo "stopped after $2 $1: other results"
        failed=$((failed + 1))
    fi
}
for pass in canon recognise task grad plan; do
    check "" "$pass"
done
check "--lora-r 4" lora
check "--lora-r 4" optim
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
