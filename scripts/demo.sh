#!/usr/bin/env bash
# The whole way in a minute: installs what is missing, builds efficc, compiles a small pre-trained encoder into a LoRA trainer, fine-tunes it on film
# reviews (it has only ever seen product reviews), and lets it judge five sentences. Everything that it makes is in build/.
set -euo pipefail
cd "$(dirname "$0")/.."
bold='' dim='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'; fi
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
exec 3>&1 # so that a command is shown where its own output goes into a file
show() { printf '%s$ %s%s\n' "$dim" "$*" "$plain" >&3; "$@"; }

say "1. What building needs"
scripts/setup.sh

say "2. Build"
cmake --preset release -DEFFICC_TESTS=OFF >/dev/null
cmake --build --preset release -j "$(nproc)" | tail -n 1

work=build/demo
rm -rf $work && mkdir -p $work
say "3. Data: film reviews that models/reviews.c makes up; 4000 to train on, 1000 held out; label 1 = praise"
build/reviews film 4000 2 >$work/train.jsonl
build/reviews film 1000 9 >$work/held-out.jsonl
build/reviews film 3 2 text
echo "the first of them as a row of $work/train.jsonl:"
head -n 1 $work/train.jsonl

say "4. Compile: models/reviews-encoder.onnx becomes a trainer"
show build/efficc models/reviews-encoder.onnx --batch 32 --seq 24 --lora-r 8 -o $work/reviews.efficc

say "5. Before training: accuracy on the held-out reviews"
show $work/reviews.efficc/trainer --eval-data $work/held-out.jsonl --output-dir $work/before

say "6. Fine-tune"
show $work/reviews.efficc/trainer --train-data $work/train.jsonl --eval-data $work/held-out.jsonl --max-steps 800 \
    --learning-rate 3e-3 --warmup-steps 20 --weight-decay 0.01 --logging-steps 100 --eval-steps 200 --output-dir $work/out

say "7. Five sentences: label, its probability, text"
cat >$work/sentences.txt <<'TEXT'
the plot is gripping .
the acting is not dull .
this film was never very charming .
i think that the script is clever but the ending feels lifeless .
overall , the cast was silly but this scene was hardly boring .
TEXT
build/reviews encode <$work/sentences.txt >$work/sentences.jsonl
show $work/reviews.efficc/trainer --predict $work/sentences.jsonl --init-adapter $work/out >$work/predictions.jsonl 2>$work/predict.log ||
    { cat $work/predict.log; exit 1; }
# from {"label": 1, "probabilities": [0.1, 0.9]}
sed -E 's/.*"label": ([01]).*\[([^,]*), ([^]]*)\].*/\1 \2 \3/' $work/predictions.jsonl | paste -d ' ' - $work/sentences.txt |
    while read -r label pan praise text; do
        if [ "$label" = 1 ]; then printf 'praise  %-6.6s  %s\n' "$praise" "$text"; else printf 'pan     %-6.6s  %s\n' "$pan" "$text"; fi
    done

say "8. The adapter, which PEFT loads as it is: $work/out"
ls -lh $work/out
