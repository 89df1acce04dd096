#!/usr/bin/env bash
# efficc plan: its memory is that of the trainer's plan.json, a roofline's rows add up to its sums, and what does not go together is refused.
set -uo pipefail
efficc=$1/efficc
. "$(dirname "$0")/../counts.sh"
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
model=models/reviews-encoder.onnx
sizes="--batch 4 --seq 16"

# number FILE NAME: the first number of that name
number() { sed -nE "s/^[[:space:]]*\"$2\":[[:space:]]*([0-9.e+-]+),?$/\1/p" "$1" | head -1; }

for options in "--fp32" "--bf16 --lora-r 2" "--fp16 --no-unpad"; do
    "$efficc" plan $model $sizes --target cpu $options --json >"$dir/plan.json" &&
        "$efficc" $model $sizes --target cpu $options --no-build --quiet --force -o "$dir/out"
    result $? "efficc $options"
    for name in trained gradients state_m frozen constants images arena arena_bound total; do
        [ "$(number "$dir/plan.json" $name)" = "$(number "$dir/out/plan.json" $name)" ]
        result $? "$options: $name is not that of plan.json"
    done
done

"$efficc" plan $model $sizes --roofline --json --gradient-accumulation-steps 3 >"$dir/roof.json"
result $? "--roofline --json"
# Sums over rows, those of forward and backward three times, and the sum that stands ahead of them.
awk -F'[:,\t ]+' '
    /"rows":/ { rows = 1 }
    /"phase":/ { times = /update/ ? 1 : 3 }
    /"(kernels|flop|bytes|seconds)":/ { name = $2; if (rows) sum[name] += times * $3; else if (!(name in all)) all[name] = $3 }
    END {
        for (name in all) {
            d = sum[name] - all[name]
            bad += !(all[name] > 0) || d * d > 1e-12 * all[name] * all[name]
        }
        exit bad || length(all) != 4
    }' "$dir/roof.json"
result $? "rows do not add up to the sums"
[ "$(number "$dir/roof.json" tokens)" = 192 ]
result $? "tokens of a step"

"$efficc" plan $model $sizes --roofline --bf16 --card h100 >"$dir/text" && grep -q 'in bf16 on one H100' "$dir/text" && grep -q '^tokens/s  *[1-9]' "$dir/text"
result $? "the table of an H100"

refused() { # WORDS OPTIONS: exit code 1, and the message has the words
    local words=$1
    shift
    "$efficc" plan $model $sizes "$@" >"$dir/said" 2>&1
    [ $? = 1 ] && grep -qF -- "$words" "$dir/said"
    result $? "$*: not refused with '$words'"
}
refused "h200, h100" --roofline --card tpu
refused "belongs to --roofline" --card h100
refused "belongs to --roofline" --gradient-accumulation-steps 2
refused "program for a GPU" --roofline --target cpu
refused "--gradient-accumulation-steps" --roofline --gradient-accumulation-steps 0
model=nowhere.onnx refused "No such file" --roofline
counts
