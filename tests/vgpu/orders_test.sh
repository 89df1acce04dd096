#!/usr/bin/env bash
# Trainers of --target cuda on the virtual GPU: the same bits whatever order the device takes, no race in any precision,
# checkpoints that move to the processor, efficc verify, products that cuBLASLt does not take, or in which the device fails.
set -uo pipefail
build=$1
cases=$PWD/tests/cases
. "$(dirname "$0")/../counts.sh"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"
export XDG_CACHE_HOME=$temp/cache OMP_NUM_THREADS=1

rows() { # how many, how many classes; 0: text
    awk -v n="$1" -v classes="$2" 'BEGIN {
        for (i = 0; i < n; i++) {
            line = ""
            for (t = 0; t < 3 + i % 6; t++)
                line = line (t ? ", " : "") (4 + (i * 7 + t * t * 13) % 150)
            print "{\"input_ids\": [" line "]" (classes ? ", \"labels\": " i % classes : "") "}"
        }
    }'
}
rows 40 0 >text.jsonl
rows 40 3 >train.jsonl

compile() { # folder, case, efficc's options
    "$build/efficc" "$cases/$2/model.onnx" --target cuda --nvcc "$build/vgpu-nvcc" --batch 4 --seq 8 --quiet "${@:3}" -o "$1" || exit 1
}
classes=(--task seq-cls --num-labels 3 --pool mean)
train() { # folder of the trainer, output, options
    "$1/trainer" --train-data "$data" --output-dir "$2" --logging-steps 1 "${@:3}" >"$2.said" 2>&1
}
logged() { # the log without times and the row that ends a run
    grep '"step"' "$1/log.jsonl" | sed -E 's/"(tokens_per_second|seconds)": [^,}]*,? ?//g'
}

# ---- six orders of the device, bit by bit ----
compile full gpt2-legacy17 --fp32
compile lora llama-tied-dynamo --lora-r 4 --lora-dropout 0.1
compile head minilm-legacy17 "${classes[@]}" --dropout 0.1
for name in full lora head; do
    data=text.jsonl
    [ $name = head ] && data=train.jsonl
    for seed in 0 1 2 3 4 5; do
        VGPU_SEED=$seed train $name $name.$seed --max-steps 4 || { echo "$name, seed $seed:" && tail -n 3 $name.$seed.said; }
        what=model.safetensors
        [ -e $name.0/$what ] || what=adapter_model.safetensors
        check "$name: $what is another one with seed $seed" cmp -s $name.0/$what $name.$seed/$what
        check "$name: the log is another one with seed $seed" diff <(logged $name.0) <(logged $name.$seed)
    done
done

# ---- a step under the race detector, with buffers on pages of their own ----
race() { # what, case, efficc's options
    compile race "$2" --align 4096 "${@:3}"
    VGPU_RACE=1 train race race.out --max-steps 2 --gradient-accumulation-steps 2 --overwrite-output-dir
    result $? "$1 under the race detector: $(tail -n 5 race.out.said)"
}
data=text.jsonl
race "gpt2 in fp32" gpt2-legacy17 --fp32
race "llama in bf16 with adapters" llama-tied-dynamo --lora-r 4 --lora-dropout 0.1
race "gemma2 in fp16, padded" gemma2-legacy17 --fp16 --no-unpad
data=train.jsonl
race "a classifier in bf16 with dropout" minilm-legacy17 "${classes[@]}" --dropout 0.1

# ---- a checkpoint of the device goes on on the processor ----
"$build/efficc" "$cases/minilm-legacy17/model.onnx" --batch 4 --seq 8 --quiet --fp32 "${classes[@]}" -o cpu || exit 1
compile gpu minilm-legacy17 --fp32 "${classes[@]}"
train gpu gpu.out --max-steps 6 --save-steps 3 --save-strategy steps || tail -n 3 gpu.out.said
near() { # FILE FILE: the same words, numbers within 1e-4; something is in them
    [ -s "$1" ] && [ -s "$2" ] || return 1
    paste -d' ' <(tr -s ' ,:{}[]"' '\n' <"$1") <(tr -s ' ,:{}[]"' '\n' <"$2") | awk '
        NF && $1 != $2 { d = $1 - $2; if (($1 + 0 == 0 && $1 !~ /^-?0/) || d > 1e-4 || d < -1e-4) bad = 1 } END { exit bad }'
}
cp -r gpu.out across
rm -r across/checkpoint-6
train cpu across --max-steps 6 --save-steps 3 --save-strategy steps --resume-from-checkpoint across/checkpoint-3 || tail -n 3 across.said
logged gpu.out >gpu.log
logged across >across.log
check "it ends with other numbers" near gpu.log across.log

# ---- verify ----
"$build/efficc" verify "$cases/qwen2-dynamo/model.onnx" --target cuda --nvcc "$build/vgpu-nvcc" --batch 2 --seq 8 >verify.said 2>&1
result $? "verify: $(tail -n 3 verify.said)"

# ---- no product is captured that never ran: with none in the cache, then with all ----
data=text.jsonl
for way in measured cached; do
    VGPU_COLD=1 XDG_CACHE_HOME=$temp/cold train full cold.$way --eval-data text.jsonl --max-steps 2
    result $? "products that are captured have run, $way: $(tail -n 2 cold.$way.said)"
done
data=train.jsonl

# ---- products without an algorithm ----
VGPU_NO_ALGO=1 XDG_CACHE_HOME=$temp/none train gpu own --max-steps 6
result $? "products without an algorithm: $(tail -n 2 own.said)"
check "it is said once" [ "$(grep -c 'cuBLASLt has no algorithm' own.said)" = 1 ]
logged own >own.log
check "own products give other losses" near gpu.log own.log

# ---- a product in which the device fails is no product without an algorithm ----
VGPU_PRODUCT_FAILS=1 XDG_CACHE_HOME=$temp/none train gpu broken --max-steps 1 --no-graphs
check "a product that fails: 70, not $?" [ $? = 70 ]
check "it is said" grep -q 'error: a product of .* failed in cuBLASLt: CUBLAS_STATUS_EXECUTION_FAILED' broken.said
check "and nothing else is blamed" [ "$(grep -c 'has no algorithm' broken.said)" = 0 ]
counts
