#!/bin/sh
# text_test.sh BUILD -- the text form through the driver.
#
#   roundtrip/*.ir   canonical: `efficc --run-pass=` prints them back byte by byte
#   verify/*.ir      "; error: TEXT" stands on each line that is reported, on no other;
#                    exit code 1
#   streams          a full disk, a reader that left, no standard output at all
#   cases            the text after each pass prints back, and the pipeline that goes on
#                    from it ends where the one that was not interrupted ends; the
#                    planned text makes the same trainer as the model, and is planned
#                    again for another number of threads
build=$(cd "$1" && pwd) || exit 2
efficc=$build/efficc
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
mkdir -p "$build/golden-crashes" && cd "$build/golden-crashes" || exit 2 # for crash-PASS.ir
passed=0 failed=0

result() { # 0|1 FILE
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $2"
    fi
}

for f in "$here"/roundtrip/*.ir; do
    "$efficc" --run-pass= "$f" > "$out/got" 2> "$out/err" && diff "$f" "$out/got"
    result $? "$f"
    cat "$out/err"
done

for f in "$here"/verify/*.ir; do
    "$efficc" --run-pass= "$f" > "$out/got" 2> "$out/err"
    code=$?
    awk '{ at = index($0, "; error: ") } at { print FNR ": " substr($0, at + 9) }' "$f" |
        sort > "$out/want"
    sed -n 's/^[^ ]*:\([0-9]*\):[0-9]*: error: \(.*\) \[E[0-9]*\]$/\1: \2/p' "$out/err" |
        sort > "$out/said"
    [ $code = 1 ] && [ ! -s "$out/got" ] && diff "$out/want" "$out/said"
    result $? "$f"
done

f=$here/../cases/bert-legacy17/model.onnx
if [ -w /dev/full ]; then
    "$efficc" "$f" --batch 2 --seq 16 --fp32 --stop-after=import --quiet > /dev/full 2> "$out/err"
    [ $? = 1 ] && grep -q 'not everything could be written' "$out/err"
    result $? "a full disk behind standard output"
fi

(
    sleep 0.1 # until the reader has left
    "$efficc" "$f" --batch 2 --seq 16 --fp32 --no-build -o "$out/unread" 2> "$out/err"
    echo $? > "$out/code"
) | true
[ "$(cat "$out/code")" = 0 ] && [ ! -s "$out/err" ] && [ -e "$out/unread/plan.json" ]
result $? "a report that nobody reads"
"$efficc" "$f" --batch 2 --seq 16 --fp32 --no-build -o "$out/mute" >&- 2> "$out/err" &&
    diff "$out/unread/src/step.c" "$out/mute/src/step.c"
result $? "without standard output"

goes_on() { # CASE OPTION...
    model=$here/../cases/$1/model.onnx
    shift
    rm -rf "$out/dump"
    "$efficc" "$model" -o "$out/model" --dump="$out/dump" --no-build --force --quiet "$@" ||
        return 1
    for f in "$out"/dump/*.ir; do
        "$efficc" --run-pass= "$f" > "$out/got" && cmp "$f" "$out/got" || return 1
        "$efficc" "$f" --stop-after=plan --quiet "$@" > "$out/got" &&
            cmp "$out"/dump/*-plan.ir "$out/got" || return 1
    done
    "$efficc" "$model" --threads 7 --stop-after=plan --quiet "$@" > "$out/want" &&
        "$efficc" "$out"/dump/*-plan.ir --threads 7 --stop-after=plan --quiet "$@" \
            > "$out/got" && cmp "$out/want" "$out/got" || return 1
    "$efficc" "$out"/dump/*-plan.ir -o "$out/again" --no-build --force --quiet "$@" &&
        diff -r -x plan.json "$out/model" "$out/again"
}

goes_on bert-legacy17 --batch 2 --seq 16 --fp32
result $? "bert-legacy17"
grep -v '^meta model ' "$out"/dump/*-plan.ir > "$out/orphan.ir"
"$efficc" "$out/orphan.ir" -o "$out/orphan" --quiet 2> "$out/err"
[ $? = 1 ] && grep -q 'template.onnx: the text has no meta model' "$out/err" &&
    [ ! -e "$out/orphan" ]
result $? "a text without its model"
goes_on gpt2-legacy14 --batch 2 --seq 16 --fp32 --lora-r 4
result $? "gpt2-legacy14 under LoRA"
goes_on gpt2-legacy14 --batch 2 --seq 16 --fp32 --lora-targets c_attn --lora-scale alpha \
    --trainable '*wpe*' --no-recognise gelu_tanh
result $? "gpt2-legacy14 with options for each pass"
goes_on bert-legacy17 --batch 2 --seq 16 --bf16
result $? "bert-legacy17 in bf16"
goes_on gpt2-legacy14 --batch 2 --seq 16 --fp16 --lora-r 4
result $? "gpt2-legacy14 in fp16 under LoRA"

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ] && [ $passed -gt 0 ]
