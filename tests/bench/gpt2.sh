#!/usr/bin/env bash
# Trains gpt2 in fp32, batch 4, 512 tokens, by efficc and by PyTorch (eager, jemalloc), in turn, and prints median step times, their ratio,
# and the machine's FMA peak measured beside each. Ratios count; absolute times are this machine's.
#
#   tests/bench/gpt2.sh BUILD GPT2.onnx PYTHON [ROUNDS]      GPT2.onnx: see make_gpt2.py; PYTHON with torch and transformers
set -euo pipefail
build=$1 model=$2 python=$3 rounds=${4:-3}
here=$(cd "$(dirname "$0")" && pwd)
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
jemalloc=$(ls /usr/lib/*/libjemalloc.so.2 2>/dev/null | head -n 1 || true)
[ -n "$jemalloc" ] || { echo "gpt2.sh: install libjemalloc2: PyTorch is measured with it" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

"$build/efficc" "$model" --batch 4 --seq 512 --fp32 --quiet -o "$tmp/gpt2"
for i in $(seq 1 28); do
    awk -v seed="$i" 'BEGIN { srand(seed); printf "{\"input_ids\": ["; for (i = 0; i < 512; i++) printf "%s%d", i ? ", " : "", int(rand() * 50257); print "]}" }'
done >"$tmp/data.jsonl"

median() { sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
for round in $(seq 1 "$rounds"); do
    peak=$("$build/tests/peak" 2>/dev/null | tail -n 1 || echo "no peak")
    "$tmp/gpt2/trainer" --train-data "$tmp/data.jsonl" --max-steps 7 --learning-rate 1e-4 --weight-decay 0.01 --logging-steps 1 --save-strategy no \
        --output-dir "$tmp/out" --overwrite-output-dir >"$tmp/log" 2>&1 || { tail -n 5 "$tmp/log"; exit 1; }
    ours=$(grep tokens_per_second "$tmp/out/log.jsonl" | tail -n +3 | sed -E 's/.*"tokens_per_second": ?([0-9.e+]+).*/\1/' |
        awk '{ print 2048 / $1 }' | median)
    LD_PRELOAD=$jemalloc "$python" "$here/peer_torch.py" --model gpt2 --mode full --dtype fp32 --batch 4 --seq 512 --steps 5 \
        --threads "$(nproc)" 2>/dev/null >"$tmp/peer"
    theirs=$(sed -E 's/.*"step_s": \[([^]]*)\].*/\1/' "$tmp/peer" | tr ',' '\n' | median)
    awk -v a="$ours" -v b="$theirs" -v p="$peak" -v r="$round" 'BEGIN { printf "round %d: efficc %.2f s, PyTorch %.2f s, ratio %.2f (PyTorch / efficc); %s\n", r, a, b, b / a, p }'
done
