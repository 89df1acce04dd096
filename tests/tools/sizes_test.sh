#!/usr/bin/env bash
# Sizes beyond all use, by any option and for both targets: refused in a second with the true cause, or planned. Never a crash, an
# overflow, or a message about something else.
efficc=$1/efficc
. "$(dirname "$0")/../counts.sh"
cases=$PWD/tests/cases
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

compile() # MODEL, OPTIONS..
{
    timeout 60 "$efficc" "$cases/$1/model.onnx" --no-build --force -o out "${@:2}" >said 2>&1
}
says() # WORDS
{
    grep -qF -- "$1" said || { tail -n 5 said; return 1; }
}
refused() # WORDS, MODEL, OPTIONS..
{
    compile "${@:2}"
    check "${*:2} ends with 1" [ $? = 1 ]
    check "${*:2} says why" says "$1"
}
for target in cpu cuda; do
    # More tokens than a constant may else have elements: the mask is known by its indices all the same.
    compile gpt2-legacy17 --target $target --batch 400000 --seq 8
    check "$target: 3200000 tokens are planned" [ $? = 0 ]
    check "$target: attention is recognised" says "2 attention"
    check "$target: its memory is told" says " GB  ("
    for n in 1048577 1073741824; do
        refused "a micro-batch has $n rows, of at most 1048576" gpt2-legacy17 --target $target --batch $n --seq 8
        refused "a row has $n tokens, of at most 65536" llama-tied-dynamo --target $target --batch 1 --seq $n
    done
    refused "tokens in a micro-batch, of at most 16777216" llama-tied-dynamo --target $target --batch 32768 --seq 4096
    refused "'1073741825' is not a whole number from 1 to 1073741824" gpt2-legacy17 --target $target --batch 1073741825 --seq 8
    refused "give --lora-r 48 or less" gpt2-legacy17 --target $target --batch 2 --seq 8 --lora-r 1073741824
done
counts
