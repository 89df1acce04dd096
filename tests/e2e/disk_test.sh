#!/bin/sh
# A real trainer on a disk that fills up, on damaged checkpoints, and beside a second trainer: exit codes, messages, and
# that the run goes on to the end that the undisturbed run has. The small disk needs the right to mount in a name
# space of its own; without it those checks are skipped.
set -eu
build=$1
model=$PWD/tests/cases/gpt2-legacy17/model.onnx
self=$PWD/$0
case $0 in /*) self=$0 ;; esac
. "$(dirname "$0")/../counts.sh"

says() # WORDS: stand in the log
{
    grep -qF -- "$1" log || { echo "not said: $1"; cat log; return 1; }
}
train() # OPTIONS.. ; the exit code is in $code
{
    code=0
    prog/trainer --train-data rows.jsonl --save-steps 2 --logging-steps 20 --learning-rate 1e-3 \
        --lr-scheduler-type constant --threads 2 "$@" >log 2>&1 || code=$?
}
same_end() # DIR WHOLE: its results are those of the undisturbed run
{
    cmp -s "$2/model.onnx" "$1/model.onnx" && cmp -s "$2/model.safetensors" "$1/model.safetensors" &&
        for saved in "$2"/checkpoint-*; do
            cmp -s "$saved/optimizer.safetensors" "$1/${saved##*/}/optimizer.safetensors" || return 1
        done
}
alone() # DIR: nothing half-written is there
{
    [ -z "$(find "$1" -name '*.tmp*')" ]
}
finish() # DIR: goes on to the end
{
    train --max-steps 20 --output-dir "$1" --resume-from-checkpoint auto
    check "$1 goes on" [ "$code" = 0 ]
    check "$1 ends as the undisturbed run" same_end "$1" whole
}

# In a name space of its own, with a small disk on ./small: a run without end, whose disk somebody fills, but for $3 kB,
# as soon as there is a checkpoint, and again when room is made by removing an old one: else the run might fit for ever.
if [ "${1-}" = --small-disk ]; then
    cd "$2"
    mount -t tmpfs -o size=4m none small || exit 77
    left=$3
    (
        set -- small/none
        until [ -e "$1" ]; do
            sleep 0.01
            set -- small/out/checkpoint-*[0-9]
        done
        while :; do
            more=$(($(df --output=avail -k small | tail -n 1) - left))
            [ "$more" -le 0 ] || head -c "${more}k" /dev/zero >>small/fill 2>/dev/null || true
            sleep 0.01
        done
    ) &
    filler=$!
    train --max-steps 100000000 --output-dir small/out
    kill $filler 2>/dev/null || true
    wait $filler 2>/dev/null || true
    check "a full disk ends with 75, not $code" [ "$code" = 75 ]
    check "says what is full" says "No space left on device"
    check "says what is needed" says "a checkpoint needs 5"
    check "says how to go on" says "make room, then go on with: "
    check "leaves nothing half-written" alone small/out
    step=$(ls small/out | sed -n 's/^checkpoint-//p' | sort -n | tail -n 1)
    step=$((step + 10))
    rm -rf room long
    cp -r small/out room
    train --max-steps $step --save-steps $step --output-dir room --resume-from-checkpoint auto
    check "goes on from the newest" says "room/checkpoint-$((step - 10)): goes on after step $((step - 10))"
    train --max-steps $step --save-steps $step --output-dir long
    check "ends as the undisturbed run" same_end room long
    counts
    exit
fi

temp=$(mktemp -d) first=
trap 'kill -9 $first 2>/dev/null || true; rm -rf "$temp"' EXIT
cd "$temp"
"$build/efficc" "$model" --batch 2 --seq 8 --fp32 --threads 2 --quiet -o prog
i=0
while [ $i -lt 40 ]; do
    echo "{\"input_ids\": [$((i % 60)), $((i * 7 % 60)), $((i * i % 60)), $((i * 11 % 60))]}"
    i=$((i + 1))
done >rows.jsonl
train --max-steps 20 --save-steps 20 --output-dir whole
check "the undisturbed run" [ "$code" = 0 ]

# A limit on the size of a file stops the optimizer's file, which is the larger one.
(
    ulimit -f 400 # 200 kB
    train --max-steps 20 --output-dir limit
    echo "$code" >code
)
check "a file that may not grow ends with 75" [ "$(cat code)" = 75 ]
check "says which file" says "checkpoint-2.tmp/optimizer.safetensors: writing failed: File too large"
check "leaves nothing half-written" alone limit
finish limit

code=0
(
    ulimit -f 40 # 20 kB
    "$build/efficc" "$model" --batch 2 --seq 8 --fp32 --quiet -o grown
) >log 2>&1 || code=$?
check "a compilation whose files may not grow ends with 1, not $code" [ "$code" = 1 ]
check "says why" says "File too large"
check "leaves nothing" [ -z "$(find . -name 'grown*')" ]

mkdir small
for kilobytes in 0 300; do
    rc=0
    unshare -m "$self" --small-disk "$temp" $kilobytes >small.log 2>&1 ||
        unshare -rm "$self" --small-disk "$temp" $kilobytes >small.log 2>&1 || rc=$?
    if grep -q passed small.log; then
        passed=$((passed + $(sed -n 's/\([0-9]*\) passed.*/\1/p' small.log)))
        failed=$((failed + $(sed -n 's/.* \([0-9]*\) failed.*/\1/p' small.log)))
        grep -v "passed, 0 failed" small.log || true
    else
        echo "skipped: no right to mount a small disk"
        skipped=$((skipped + 1))
    fi
done

# A trainer that waits in the folder: the second one is told, and changes nothing.
train --max-steps 4 --output-dir shared
cp -r shared before
: >first.log
prog/trainer --train-data rows.jsonl --save-steps 1000000 --max-steps 100000000 --learning-rate 1e-3 \
    --lr-scheduler-type constant --threads 2 --output-dir shared --resume-from-checkpoint auto >first.log 2>&1 &
first=$!
while kill -0 $first && ! grep -q '^steps' first.log; do sleep 0.01; done
train --max-steps 20 --output-dir shared --resume-from-checkpoint auto
check "the second trainer ends with 1" [ "$code" = 1 ]
check "and says who is there" says "shared is in use by trainer process $first ($(uname -n))"
check "and changes no checkpoint" diff -r before/checkpoint-4 shared/checkpoint-4
kill -9 $first
wait $first 2>/dev/null || true
first=
finish shared

# Damage, by kind: told, passed over; by path it is refused.
damaged() # WORDS COMMAND: to checkpoint-4 of a run of 4 steps
{
    rm -rf hurt && cp -r before hurt
    (cd hurt/checkpoint-4 && eval "$2")
    train --max-steps 20 --output-dir hurt --resume-from-checkpoint hurt/checkpoint-4
    check "$2: refused" [ "$code" = 1 ]
    check "$2: says why" says "$1"
    finish hurt
    check "$2: passed over" says "hurt/checkpoint-4 is passed over: $1"
}
damaged "weights.safetensors is truncated" "truncate -s -4 weights.safetensors"
damaged "optimizer.safetensors is damaged: its hash is" \
    "printf x | dd of=optimizer.safetensors bs=1 seek=200000 conv=notrunc 2>/dev/null"
damaged "manifest.json is missing" "rm manifest.json"
damaged "manifest.json is missing" "rm ./*"

# In a folder with checkpoints of another program only, nothing is begun without leave; then nothing of them is removed.
"$build/efficc" "$model" --batch 2 --seq 8 --fp32 --threads 2 --lora-r 2 --quiet -o other
another() # OPTIONS..
{
    code=0
    other/trainer --train-data rows.jsonl --max-steps 6 --save-steps 2 --save-total-limit 1 --threads 2 --output-dir hurt \
        --resume-from-checkpoint auto "$@" >log 2>&1 || code=$?
}
rm -rf hurt && cp -r before hurt
another
check "another program does not begin" [ "$code" = 1 ]
check "says what differs" says "the adapter is none there and LoRA of rank 2"
check "says what to do" says "hurt holds no good checkpoint of this trainer, but of another one"
check "says no wrong thing" [ -z "$(grep 'starts at step 1' log)" ]
check "and changes nothing" diff -r -x .lock before hurt
another --overwrite-output-dir
check "another program starts anew" [ "$code" = 0 ]
check "and says so" says "hurt/checkpoint-2 is passed over: the adapter is none there and LoRA of rank 2"
check "and says so" says "starts at step 1"

# Compiled anew with another batch, the run still goes on.
"$build/efficc" "$model" --batch 1 --seq 8 --fp32 --threads 2 --quiet -o again
code=0
again/trainer --train-data rows.jsonl --max-steps 8 --gradient-accumulation-steps 2 --threads 2 --output-dir before \
    --resume-from-checkpoint auto >log 2>&1 || code=$?
check "a trainer compiled with another batch goes on" [ "$code" = 0 ]
check "and says that bits may differ" says "the trainer was compiled anew"

counts
