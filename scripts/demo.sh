#!/usr/bin/env bash
# The whole way in a minute: installs what is missing, builds efficc, compiles a small pre-trained encoder into a LoRA trainer, fine-tunes it on film
# reviews (it has only ever seen product reviews), and lets it judge five sentences.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }

say "1. What building needs"
scripts/setup.sh

say "2. Build"
cmake --preset release -DEFFICC_TESTS=OFF >/dev/null
cmake --build --preset release -j "$(nproc)" | tail -n 1

work=build/demo
rm -rf $work && mkdir -p $work
say "3. Data: film reviews from models/reviews.c, one JSON row a review"
build/reviews film 4000 2 >$work/train.jsonl
build/reviews film 1000 9 >$work/held-out.jsonl
build/reviews film 3 2 text
head -n 3 $work/train.jsonl
wc -l $work/*.jsonl | head -n 2

say "4. Compile: models/reviews-encoder.onnx becomes a trainer"
show build/efficc models/reviews-encoder.onnx --batch 32 --seq 24 --lora-r 8 -o $work/reviews.efficc

say "5. Before training: accuracy on reviews that it will not be trained on"
show $work/reviews.efficc/trainer --eval-data $work/held-out.jsonl --output-dir $work/before

say "6. Fine-tune"
show $work/reviews.efficc/trainer --train-data $work/train.jsonl --eval-data $work/held-out.jsonl --max-steps 800 \
    --learning-rate 3e-3 --warmup-steps 20 --weight-decay 0.01 --logging-steps 100 --eval-steps 200 --output-dir $work/out

say "7. Five sentences, 1 = praise"
cat >$work/sentences.txt <<'TEXT'
the plot is gripping .
the acting is not dull .
this film was never very charming .
i think that the script is clever but the ending feels lifeless .
overall , the cast was silly but this scene was hardly boring .
TEXT
build/reviews encode <$work/sentences.txt >$work/sentences.jsonl
$work/reviews.efficc/trainer --predict $work/sentences.jsonl --init-adapter $work/out --output-dir $work/predicted >$work/predict.log
paste -d '\t' $work/predicted/predictions.jsonl $work/sentences.txt

say "8. The adapter, which PEFT loads as it is"
ls -l $work/out
