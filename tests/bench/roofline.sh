#!/usr/bin/env bash
# What efficc plan --roofline predicts: LLM.Q's runs on one H100, whose tokens/s are published, and the targets on one H200.
#
#     tests/bench/make_shapes.py --out DIR $(tests/bench/make_shapes.py --list)
#     tests/bench/make_gpt2.py DIR/gpt2.onnx
#     tests/bench/roofline.sh BUILD DIR
set -euo pipefail
efficc=$1/efficc dir=$2

# tokens MODEL OPTIONS: tokens/s demonstrated and at most, kernels of a layer forward and backward
tokens() {
    "$efficc" plan "$dir/$1.onnx" --bf16 --roofline "${@:2}" |
        awk '/^tokens/ { d = $2; h = $6 } /^layer/ { f = $4; b = $9 } END { print d, h, f, b }'
}

echo "| model | rows x tokens, micro-batches | published | predicted | ratio | f32 residual |"
echo "| --- | --- | --- | --- | --- | --- |"
while read -r model batch micro published; do
    sizes=(--batch "$batch" --seq 1024 --card h100 --gradient-accumulation-steps "$micro")
    read -r low _ < <(tokens "$model" "${sizes[@]}" --residual bf16)
    read -r full _ < <(tokens "$model" "${sizes[@]}")
    echo "| $model | $batch x 1024, $micro | $published | $low | $(bc -l <<<"scale=3; $low / $published" | sed 's/^\./0./') | $full |"
done <<END
qwen2.5-0.5b 32 16 149500
qwen2.5-1.5b 32 16 58800
qwen2.5-3b 16 32 30920
qwen2.5-7b 4 128 13860
END

echo
echo "| model, one H200 | trained | demonstrated | at most | kernels of a layer, forward and backward | target |"
echo "| --- | --- | --- | --- | --- | --- |"
while read -r model batch seq target trained options; do
    read -r d h f b < <(tokens "$model" --batch "$batch" --seq "$seq" $options)
    echo "| $model, $batch x $seq | $trained | $d | $h | $f, $b | $target |"
done <<END
gpt2 32 1024 500000 all
llama-3.2-1b 8 2048 62000 all
llama-3.2-1b 8 2048 80000 LoRA --lora-r 8 --lora-targets all-linear
llama-3.1-8b 2 4096 15000 LoRA --lora-r 8 --lora-targets all-linear
END
