# bench.sh -- the table of run.sh, which sources this: training steps of full-size models, bf16, random weights and tokens.
#
# A run goes on until its log has enough rows of $every steps, and is then ended: saving a model would take longer than measuring it. The first
# $warm rows count as warm-up. $bench gets a JSON object a run.

# NAME GRAPH BATCH SEQ VOCABULARY TARGET TRAINED OPTIONS..; target: tokens/s on one H200, 0: none
bench_models() {
    if [ "$virtual" ]; then
        echo "gpt2 gpt2-optimum 2 16 100 0 full"
        echo "llama llama-tied-dynamo 2 16 100 0 lora --lora-r 4"
        return
    fi
    echo "gpt2 gpt2 32 1024 50257 500000 full"
    echo "distilbert distilbert 64 512 30522 1350000 full"
    echo "llama-3.2-1b llama-3.2-1b 8 2048 128256 62000 full"
    echo "llama-3.2-1b llama-3.2-1b 8 2048 128256 80000 lora --lora-r 8 --lora-targets all-linear"
}

# Random rows of exactly SEQ tokens, with a class where the model is a classifier.
rows() { # GRAPH ROWS SEQ VOCABULARY
    awk -v class="$([ "$1" = distilbert ] && echo 1)" -v rows="$2" -v seq="$3" -v most="$4" 'BEGIN {
        srand(1)
        for (r = 0; r < rows; r++) {
            printf "{\"input_ids\": ["
            for (i = 0; i < seq; i++) printf "%s%d", i ? ", " : "", int(rand() * most)
            printf "]%s}\n", class ? ", \"label\": " r % 2 : ""
        }
    }'
}

# All graphs with weights and all trainers, several at a time; $work/NAME-TRAINED.ready is the exit code of each.
prepare_models() {
    local name graph batch seq vocabulary target_speed trained options model
    mkdir -p "$work/models"
    [ "$virtual" ] || (cd "$work/models" && cmake -E tar xf "$root/tests/gpu/graphs.tar.xz")
    while read -r name graph _; do
        (
            [ "$virtual" ] || "$build/tests/gpu_fill" "$work/models/$graph.onnx"
            echo $? >"$work/models/$graph.filled"
        ) &
    done < <(bench_models | sort -u -k 2,2)
    wait
    while read -r name graph batch seq vocabulary target_speed trained options; do
        (
            model=$work/models/$graph.onnx
            [ -z "$virtual" ] || model=$root/tests/cases/$graph/model.onnx
            rows "$graph" $((2 * batch)) "$seq" "$vocabulary" >"$work/$name-$trained.jsonl"
            # shellcheck disable=SC2086
            "$build/efficc" "$model" $target --bf16 --batch "$batch" --seq "$seq" $options -o "$work/$name-$trained" \
                >"$work/$name-$trained.said" 2>&1 </dev/null
            echo $? >"$work/$name-$trained.ready"
        ) &
    done < <(bench_models)
    wait
}

# The value of KEY in a row of a log.
value() {
    sed -n "s/.*\"$1\": *\\([0-9.e+-]*\\).*/\\1/p"
}

# Waits until the log has ROWS rows, the trainer ends, or UNTIL.
wait_for_rows() { # PID LOG ROWS UNTIL
    while [ "$(grep -cs tokens_per_second "$2")" -lt "$3" ] 2>/dev/null || [ ! -e "$2" ]; do
        kill -0 "$1" 2>/dev/null && [ "$SECONDS" -lt "$4" ] || return 1
        sleep 0.1
    done
}

median() {
    sort -g | awk '{ x[NR] = $1 } END { if (NR) print x[int((NR + 1) / 2)]; else print "null" }'
}

# What nvidia-smi said from LINE of FILE on: "clocks": .., in MHz, W, MiB, degrees
samples() { # FILE LINE
    local names=(sm_clock_mhz power_w memory_used_mib temperature_c) i
    for i in 0 1 2 3; do
        printf '"%s": %s, ' "${names[i]}" "$(tail -n +"$2" "$1" 2>/dev/null | cut -d, -f$((i + 1)) | grep -E '^ *[0-9.]+ *$' | median)"
    done
}

# bench_run NAME TRAINED BATCH SEQ TARGET CUDNN [--no-graphs]: one run; false: it failed
bench_run() {
    local name=$1 trained=$2 batch=$3 seq=$4 speed=$5 cudnn=$6 direct=${7:-}
    local id=$name-$trained-cudnn$cudnn$direct out log smi=$work/smi sampler='' pid from=1 until ok=passed why='' begun=$SECONDS
    out=$work/run-$id log=$work/run-$id.log
    rm -f "$smi"
    until=$((SECONDS + $(least $((60 * slow)) "$(($(left) - 3))")))
    if [ -z "$virtual" ] && command -v nvidia-smi >/dev/null; then
        nvidia-smi -i 0 --query-gpu=clocks.sm,power.draw,memory.used,temperature.gpu --format=csv,noheader,nounits -lms 250 >"$smi" 2>/dev/null &
        sampler=$!
    fi
    EFFICC_CUDNN=$cudnn "$work/$name-$trained/trainer" --train-data "$work/$name-$trained.jsonl" --max-steps 100000 --learning-rate 1e-5 \
        --logging-steps "$every" --save-strategy no --output-dir "$out" $direct >"$log" 2>&1 </dev/null &
    pid=$!
    wait_for_rows $pid "$out/log.jsonl" "$warm" "$until" && from=$(($(wc -l 2>/dev/null <"$smi" || echo 0) + 1))
    wait_for_rows $pid "$out/log.jsonl" "$rows" "$until"
    kill -KILL $pid $sampler 2>/dev/null
    wait $pid $sampler 2>/dev/null
    grep -s tokens_per_second "$out/log.jsonl" >"$work/log"
    said=$(sed -n 's/^device *//p' "$log")
    grep '^note' "$log"
    if [ "$(wc -l <"$work/log")" -le "$warm" ]; then
        ok=failed why=$(grep -E 'error|needs|free' "$log" | head -n 2 | tr '\t\n' '  ')
        why=${why:-no step was measured within its time: $(tail -n 1 "$log" | tr '\t' ' ')}
        grep -q 'of device memory, but' "$log" && ok=skipped
        rm -rf "$out"
        bench_result "$name $trained cudnn=$cudnn${direct:+ $direct}" $ok $((SECONDS - begun)) "$why"
        return 1
    fi
    bench_row "$from" >>"$bench"
    rm -rf "$out"
    bench_result "$name $trained cudnn=$cudnn${direct:+ $direct}" $ok $((SECONDS - begun)) ''
}

bench_result() { # NAME RESULT SECONDS WHY
    printf 'bench\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$results"
    [ "$2" = passed ] || echo "$2: $1: $4"
}

# The JSON object of a run, from $work/log, whose variables are bench_run's; prints the line of the table, too.
bench_row() { # first line of nvidia-smi's that counts
    local took tokens steps rate low high first last
    took=$(value seconds <"$work/log" | awk -v warm="$warm" 'NR == warm { a = $1 } END { print $1 - a }')
    steps=$(value step <"$work/log" | awk -v warm="$warm" 'NR == warm { a = $1 } END { print $1 - a }')
    tokens=$((steps * batch * seq))
    rate=$(awk -v n="$tokens" -v s="$took" 'BEGIN { printf "%.0f", n / s }')
    low=$(tail -n +$((warm + 1)) "$work/log" | value tokens_per_second | sort -g | head -n 1)
    high=$(tail -n +$((warm + 1)) "$work/log" | value tokens_per_second | sort -g | tail -n 1)
    first=$(head -n 1 "$work/log" | value loss) last=$(tail -n 1 "$work/log" | value loss)
    printf '{"model": "%s", "trained": "%s", "batch": %d, "seq": %d, "precision": "bf16", "cudnn": %s, "graphs": %s, ' \
        "$name" "$trained" "$batch" "$seq" "$([[ $said == *cuDNN* ]] && echo true || echo false)" "$([ "$direct" ] && echo false || echo true)"
    printf '"tokens_per_second": %s, "lowest": %.0f, "highest": %.0f, "target": %s, "steps": %d, "step_ms": %.3f, ' "$rate" "$low" "$high" \
        "$speed" "$steps" "$(awk -v s="$took" -v n="$steps" 'BEGIN { print 1000 * s / n }')"
    samples "$smi" "$1"
    printf '"planned": %s, "device": %s, "first_loss": %s, "last_loss": %s}\n' "$(sed -n 's/^memory.*: *//p' "$log" | json_text)" \
        "$(json_text <<<"$said")" "${first:-null}" "${last:-null}"
    printf '%-14s %-5s %3d x %-5d cuDNN %d %s %9s tokens/s  (target %s)  %s\n' "$name" "$trained" "$batch" "$seq" "$cudnn" "$direct" "$rate" "$speed" \
        "$(samples "$smi" "$1" | sed 's/"//g; s/, $//')" >&2
}

part_bench() {
    local name graph batch seq vocabulary target_speed trained options cudnn said file
    every=10 warm=2 rows=7
    [ -z "$virtual" ] || every=1 rows=4
    echo "== benchmarks"
    for file in $(bench_models | awk '{ print $1 "-" $7 }'); do
        while [ ! -e "$work/$file.ready" ] && [ "$(left)" -gt 20 ]; do sleep 0.2; done
    done
    for cudnn in 1 0; do
        while read -r name graph batch seq vocabulary target_speed trained options <&3; do
            file=$work/$name-$trained
            if [ "$(cat "$file.ready" 2>/dev/null)" != 0 ]; then
                [ $cudnn = 0 ] || bench_result "$name $trained" failed 0 "no trainer: $(tail -n 2 "$file.said" 2>/dev/null | tr '\t\n' '  ')"
            elif [ $cudnn = 0 ] && [ -e "$file.own" ]; then
                skip "$name $trained without cuDNN" "the run before used none"
            elif [ "$(left)" -lt 15 ]; then
                skip "$name $trained, cuDNN $cudnn" "no time left"
            elif bench_run "$name" "$trained" "$batch" "$seq" "$target_speed" $cudnn; then
                [[ $said != *"by own kernels"* ]] || touch "$file.own"
            fi
        done 3< <(bench_models)
    done
    while read -r name graph batch seq vocabulary target_speed trained options <&3; do
        if [ "$(cat "$work/$name-$trained.ready" 2>/dev/null)" != 0 ] || [ "$(left)" -lt 15 ]; then
            skip "steps without CUDA graphs" "no time left, or no trainer"
        else
            bench_run "$name" "$trained" "$batch" "$seq" "$target_speed" 1 --no-graphs
        fi
    done 3< <(bench_models | head -n 1)
}
