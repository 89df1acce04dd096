#!/usr/bin/env bash
# A run that goes on from a checkpoint is, bit by bit, the run that was never stopped: results, optimizer and log (but for
# times). Full fine-tuning goes on at every step of 20; LoRA, several times in a row.
set -uo pipefail
build=$1
export OMP_NUM_THREADS=1
cases=$PWD/tests/cases
. "$(dirname "$0")/../counts.sh"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"

# Rows of 3 to 8 ids with a class; causal: without.
rows() { # how many, how many classes
    awk -v n="$1" -v classes="$2" 'BEGIN {
        for (i = 0; i < n; i++) {
            line = ""
            for (t = 0; t < 3 + i % 6; t++)
                line = line (t ? ", " : "") (4 + (i * 7 + t * t * 13) % 150)
            label = i % 9 == 8 ? -100 : int(i * i / 3) % (classes ? classes : 1)
            print "{\"input_ids\": [" line "]" (classes ? ", \"labels\": " label : "") "}"
        }
    }'
}
rows 53 3 >train.jsonl
rows 11 3 >dev.jsonl
rows 53 0 >text.jsonl

"$build/efficc" "$cases/minilm-legacy17/model.onnx" --batch 4 --seq 8 --fp32 --task seq-cls --num-labels 3 --pool mean --quiet -o full || exit 1
"$build/efficc" "$cases/gpt2-legacy17/model.onnx" --batch 2 --seq 8 --fp32 --lora-r 2 --quiet -o lora || exit 1

logged() { # the log without times and the row that ends a run
    grep '"step"' "$1/log.jsonl" | sed -E 's/"(tokens_per_second|seconds)": [^,}]*,? ?//g'
}
same() { # what, folder, the whole run's folder, files
    local ok=0 a=$2 b=$3
    for file in "${@:4}"; do
        cmp -s "$a/$file" "$b/$file" || { ok=1 && echo "$1: $file differs"; }
    done
    diff <(logged "$a") <(logged "$b") >/dev/null || { ok=1 && echo "$1: the log differs"; }
    result $ok "$1 is another run"
}

# 7 rows a step, 53 rows: the last step of an epoch has 4, the last micro-batch of the others 3
full() { # folder, more options
    full/trainer --train-data train.jsonl --eval-data dev.jsonl --global-batch-size 7 --max-steps 20 --logging-steps 3 \
        --eval-steps 6 --lr-scheduler-type cosine --warmup-steps 4 --learning-rate 1e-3 --weight-decay 0.01 --save-steps 1 \
        --save-total-limit 0 --output-dir "$@" >"$1.out" 2>&1
}
full whole
result $? "the whole run failed: $(tail -n 3 whole.out)"
for k in $(seq 1 19); do
    mkdir from$k
    cp -r whole/checkpoint-$k whole/log.jsonl from$k/ # as if it had broken off later
    full from$k --resume-from-checkpoint
    result $? "going on at step $k failed: $(tail -n 3 from$k.out)"
    same "from step $k" from$k whole model.onnx model.safetensors checkpoint-20/{weights,optimizer}.safetensors
done

# From a checkpoint elsewhere into a new folder; the log begins there.
full elsewhere --resume-from-checkpoint whole/checkpoint-12
result $? "going on from a checkpoint elsewhere failed: $(tail -n 3 elsewhere.out)"
ok=0 && cmp -s elsewhere/model.onnx whole/model.onnx || ok=1
result $ok "from a checkpoint elsewhere: another model"

# After the end nothing is trained, and lost results come back.
rm whole/model.safetensors
cp whole/log.jsonl before.jsonl
ok=0 && full whole --resume-from-checkpoint && grep -q "was complete at step 20" whole.out && cmp -s whole/model.safetensors from3/model.safetensors || ok=1
result $ok "a complete run: $(tail -n 3 whole.out)"
ok=0 && diff <(grep '"step"' before.jsonl) <(grep '"step"' whole/log.jsonl) >/dev/null || ok=1
result $ok "a complete run changed its log"

# Another global batch is another run.
ok=0 && { ! full from3 --resume-from-checkpoint --global-batch-size 8 && grep -q global-batch-size from3.out; } || ok=1
result $ok "another global batch was taken: $(tail -n 3 from3.out)"

# LoRA on row ranges, momentum, accumulation: stopped after each of its 20 steps.
lora() { # folder, more options
    lora/trainer --train-data text.jsonl --gradient-accumulation-steps 2 --max-steps 20 --logging-steps 4 --optim sgd \
        --momentum 0.9 --nesterov --learning-rate 0.1 --save-steps 5 --save-total-limit 1 --output-dir "$@" >"$1.out" 2>&1
}
lora calm
result $? "LoRA failed: $(tail -n 3 calm.out)"
lora often --max-time 0.000001
rc=$?
result $((rc != 75)) "LoRA was not stopped after a step: $rc, $(tail -n 3 often.out)"
for k in $(seq 2 19); do
    lora often --resume-from-checkpoint --max-time 0.000001 # always does one step
    rc=$?
    [ $rc = 75 ] || break
done
result $((rc != 75)) "LoRA was not stopped after each of 19 steps: $rc, $(tail -n 3 often.out)"
lora often --resume-from-checkpoint
result $? "LoRA did not go on: $(tail -n 3 often.out)"
same "LoRA in 20 parts" often calm adapter_model.safetensors adapter_config.json checkpoint-20/{weights,optimizer}.safetensors
ok=0 && [ "$(ls -d often/checkpoint-* | wc -l)" = 1 ] || ok=1
result $ok "more than one checkpoint was kept: $(ls often)"

counts
