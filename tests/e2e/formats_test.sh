#!/bin/sh
# The same ids in every format give the same losses, gradient norms and counts, bit by bit; so do parts of a file and mixtures.
# Data: e2e/formats, made by make_formats.py there.
set -eu
build=$1
data=$PWD/tests/e2e/formats model=$PWD/tests/cases/gpt2-legacy17/model.onnx
. "$(dirname "$0")/../counts.sh"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"

# The log without times.
train() # NAME FILES..
{
    name=$1
    shift
    out/trainer --train-data "$@" --output-dir "run-$name" --logging-steps 1 --num-train-epochs 2 --learning-rate 1e-3 \
        --save-strategy no >"$name.said" 2>&1 || { cat "$name.said"; return 1; }
    sed -n -E 's/.*("step": [0-9]+.*"supervised_tokens": [0-9]+).*/\1/p' "run-$name/log.jsonl" >"$name.log"
    [ -s "$name.log" ]
}
same() # NAME REFERENCE FILES..
{
    name=$1 reference=$2
    shift 2
    train "$name" "$@" || : >"$name.log"
    check "$name: other numbers" cmp "$name.log" "$reference.log"
}

"$build/efficc" "$model" --batch 4 --seq 16 --fp32 --quiet -o out
train rows "$data/rows.jsonl"
train ragged "$data/ragged.jsonl"
train masked "$data/masked.jsonl"
for file in rows.npy stream.npy nanogpt.bin llmc1.bin llmc7.bin document.bin document.idx; do
    same "$file" rows "$data/$file"
done
same ragged.idx ragged "$data/ragged.idx"
same masked.npy masked "$data/masked.npy"

# files one behind the other are one file; weights that fit the sizes take every row of each epoch, too
head -n 5 "$data/rows.jsonl" >first.jsonl
tail -n 7 "$data/rows.jsonl" >last.jsonl
same parts rows first.jsonl last.jsonl
train mixed first.jsonl:0.5 "$data/masked.npy:1.5"
same mixed-again mixed first.jsonl:5 "$data/masked.jsonl:15"
differ() { ! cmp -s "$1.log" "$2.log"; }
check "a mixture has the numbers of its rows" differ mixed rows
counts
