#!/usr/bin/env bash
# A real trainer that is stopped from outside: SIGTERM, SIGINT, SIGHUP, SIGUSR1 and --max-time end it with 75 and a
# checkpoint, from which it goes on to the results of a run that was never stopped.
set -uo pipefail
build=$1
export OMP_NUM_THREADS=1
cases=$PWD/tests/cases
. "$(dirname "$0")/../counts.sh"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"
rows() { # how many
    awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++)
        printf "{\"input_ids\": [%d, %d, %d, %d], \"labels\": %d}\n", 4 + i % 150, 4 + i * 7 % 150, 9, 4 + i * i % 150, i * i % 3 }'
}
rows 50 >train.jsonl
"$build/efficc" "$cases/minilm-legacy17/model.onnx" --batch 2 --seq 4 --fp32 --task seq-cls --num-labels 3 --pool mean --quiet -o model || exit 1

command() { # folder, more options
    echo "model/trainer --train-data train.jsonl --eval-data train.jsonl --max-steps 600 --logging-steps 1 --output-dir $*"
}
begun() { # folder: its log has a few rows
    for _ in $(seq 6000); do
        [ "$(wc -l 2>/dev/null <"$1/log.jsonl")" -ge 3 ] 2>/dev/null && return
        sleep 0.01
    done
}
saved() { # out-file: step that it says is saved
    sed -nE 's/^stopped .*: step ([0-9]+) of 600 is saved; go on with: .*--resume-from-checkpoint$/\1/p' "$1"
}
logged() { # the log without times and the row that ends a run
    grep '"step"' "$1/log.jsonl" | sed -E 's/"(tokens_per_second|seconds)": [^,}]*,? ?//g'
}
as_calm() { # folder
    cmp -s "$1/model.onnx" calm/model.onnx && cmp -s "$1/model.safetensors" calm/model.safetensors &&
        diff <(logged "$1") <(logged calm) >/dev/null
}

$(command calm) >calm.out 2>&1
result $? "the run failed: $(tail -n 3 calm.out)"

set -m # jobs of their own, as from a terminal: without it a shell ignores SIGINT for them
for signal in TERM INT HUP USR1; do
    for _ in 1 2 3 4 5; do # where the machine is busy, the run may be over before the signal comes
        rm -rf $signal
        $(command $signal) >$signal.out 2>&1 &
        pid=$!
        begun $signal
        kill -$signal $pid 2>/dev/null
        wait $pid
        rc=$?
        [ $rc = 0 ] || break
    done
    result $((rc != 75)) "SIG$signal: exit code $rc, $(tail -n 3 $signal.out)"
    step=$(saved $signal.out)
    ok=0 && grep -q "^stopped  *SIG$signal: " $signal.out && [ -f "$signal/checkpoint-${step:-none}/manifest.json" ] || ok=1
    result $ok "SIG$signal: no checkpoint, or not said: $(tail -n 3 $signal.out)"
    # the command is the one that was said
    sed -n 's/^stopped .*go on with: //p' $signal.out >go-on.sh
    sh ./go-on.sh >$signal.out 2>&1
    result $? "SIG$signal: going on failed: $(tail -n 3 $signal.out)"
    as_calm $signal
    result $? "SIG$signal: another run"
done

# `timeout` sends its signal to the trainer and then to its process group.
for seconds in 0.5 2 8 32; do # it may come before the trainer listens, or the two half a second apart
    rm -rf twice
    timeout --preserve-status -s TERM $seconds $(command twice --max-steps 1000000) >twice.out 2>&1
    rc=$?
    [ $rc = 143 ] || break
done
result $((rc != 75)) "a signal that comes twice at once: exit code $rc, $(tail -n 3 twice.out)"
set +m

# What was ignored before stays ignored: jobs of a shell script, and nohup.
$(command ignored) >ignored.out 2>&1 &
pid=$!
begun ignored
kill -INT $pid
wait $pid
result $? "an ignored SIGINT stopped the run: $(tail -n 3 ignored.out)"
as_calm ignored
result $? "an ignored SIGINT made another run"

# Before the first step: the data does not end.
mkfifo endless.jsonl
{ rows 50; exec sleep 1000; } >endless.jsonl &
writer=$!
model/trainer --train-data endless.jsonl --output-dir early >early.out 2>&1 &
pid=$!
for _ in $(seq 6000); do grep -q ^trainer early.out && break || sleep 0.01; done
kill -TERM $pid
wait $pid
rc=$?
kill $writer
wait $writer 2>/dev/null
result $((rc != 75)) "SIGTERM before the first step: exit code $rc, $(tail -n 3 early.out)"
ok=0 && grep -q "nothing is lost" early.out && [ ! -e early/log.jsonl ] || ok=1
result $ok "SIGTERM before the first step: $(cat early.out)"

# --max-time, again and again, as a batch system does it
begin=$SECONDS
for k in 1 2; do
    $(command slices --max-steps 1000000 --lr-scheduler-type constant --max-time 1s --resume-from-checkpoint auto) >slices$k.out 2>&1
    rc=$?
    result $((rc != 75)) "--max-time: exit code $rc, $(tail -n 3 slices$k.out)"
done
result $((SECONDS - begin > 60)) "--max-time 1s took too long"
first=$(sed -nE 's/^stopped .*--max-time: step ([0-9]+) of .*/\1/p' slices1.out)
second=$(sed -nE 's/^stopped .*--max-time: step ([0-9]+) of .*/\1/p' slices2.out)
ok=0 && [ "${first:-0}" -gt 0 ] && [ "${second:-0}" -gt "$first" ] && grep -q "goes on after step $first" slices2.out || ok=1
result $ok "--max-time: stopped at $first, then at $second"

# Two trainers on one folder.
$(command mine --max-steps 1000000) >mine.out 2>&1 &
pid=$!
begun mine
$(command mine --overwrite-output-dir) >theirs.out 2>&1
rc=$?
ok=0 && [ $rc = 1 ] && grep -q "is in use by trainer process $pid" theirs.out || ok=1
result $ok "a second trainer: exit code $rc, $(tail -n 3 theirs.out)"
for use in --eval-data --predict; do
    model/trainer $use train.jsonl --output-dir mine --overwrite-output-dir >theirs.out 2>&1
    rc=$?
    ok=0 && [ $rc = 1 ] && grep -q "is in use by trainer process $pid" theirs.out || ok=1
    result $ok "$use beside a trainer: exit code $rc, $(tail -n 3 theirs.out)"
done
kill -TERM $pid
wait $pid
rc=$?
result $((rc != 75)) "after a second trainer: exit code $rc, $(tail -n 3 mine.out)"

counts
