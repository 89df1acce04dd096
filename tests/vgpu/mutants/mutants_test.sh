#!/bin/bash
# mutants_test.sh -- are the mutants of the CUDA runtime caught? See mutate.c for what they are.
#
#   mutants_test.sh BUILD                       a sample: each is caught by what results.txt says
#   EFFICC_MUTANTS=all mutants_test.sh BUILD    all of them; makes results.txt anew
#   EFFICC_MUTANTS=N,N.. mutants_test.sh BUILD  these
#
# A mutant is tried with the tests that reach it, the quick ones first, until one fails: as they are,
# then under the race detector, then, where a kernel is what was changed, under ThreadSanitizer, to
# which each CUDA thread is a thread. Tests are those of kernels, and trainers. What none of them
# catches stands in equivalent.txt with the reason why it is no error. EFFICC_MUTANT_JOBS: how many
# at a time, else as many as there are processors.
build=$(cd "${1:?build folder}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../counts.sh"
folder=$build/mutants
export LC_ALL=C OMP_WAIT_POLICY=passive
export TSAN_OPTIONS="halt_on_error=1 exitcode=66 atexit_sleep_ms=0 report_bugs=1"
if ! [ -x "$folder/mutant_kernels" ]; then
    echo "no mutants in this build"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi

kernel_tests() {
    local of_cpu=pairs_test.c
    find "$here/../../kernels" "$here/../cudnn" -name '*_test.c' ! -name $of_cpu -exec sed -n 's/^TEST(\([a-z_0-9]*\)).*/\1/p' {} + | sort -u
}
# Trainers: the program, and the seed of the rig.
trainer_tests="train-float-0 train-float-1 train-float-2 train-float-3 train-scaled-0 train-scaled-2"

# Programs whose own kernels have mutants, too: $work/emitted lists them.
make_trainer() { # float|scaled, what makes it so, number of its first mutant
    local dir=$work/$1/src
    "$build/efficc" "$here/../../cases/minilm-legacy17/model.onnx" --task seq-cls --num-labels 2 "$2" --batch 4 --seq 8 \
        --target cuda --nvcc "$build/vgpu-nvcc" --align 4096 --no-build -o "$work/$1" &&
        mkdir "$dir/mutated" &&
        "$folder/mutate" "$3" "$dir/mutated" "$dir/list" /dev/null "$dir/kernels.cu" &&
        mv "$dir/mutated/kernels.cu" "$dir" &&
        sed "s/\tkernels.cu\t/\tkernels.cu ($1)\t/" "$dir/list" >>"$work/emitted" &&
        ln -s "$folder/libefficc_rt_vgpu.a" "$dir/libefficc_rt_cuda.a" &&
        VGPU_BUILD=$folder make -C "$dir" RT_LIB=./libefficc_rt_cuda.a NVFLAGS="-std=c++17 -O1 -Xcompiler -include,$here/mutant.h"
}

# An emitted program orders nothing itself: what can be wrong is the stream of a kernel.
emitted_is_plain() {
    local dir=$work/plain
    "$build/efficc" "$here/../../cases/minilm-legacy17/model.onnx" --task seq-cls --num-labels 2 --bf16 --batch 4 --seq 8 \
        --target cuda --nvcc "$build/vgpu-nvcc" --no-build -o "$dir" >"$work/plain.log" 2>&1 && mkdir "$dir/mutated" &&
        "$folder/mutate" 0 "$dir/mutated" "$dir/list" /dev/null "$dir"/src/{kernels.cu,step.c} &&
        grep -q . "$dir/list" && ! grep -v "the legacy stream in" "$dir/list"
}

make_trainers() {
    local i=0 k ids
    [ -x "$work/scaled/trainer" ] && return
    while [ $((i += 1)) -le 18 ]; do
        ids=$((i * 7 % 150 + 1))
        for k in 3 5 8 13 21 34 55; do
            [ $((i * k % 9)) -lt 6 ] && ids="$ids,$((i * k % 150 + 1))"
        done
        echo "{\"input_ids\": [$ids], \"labels\": $((i % 3 == 0))}"
    done >"$work/rows.jsonl"
    head -n 6 "$work/rows.jsonl" >"$work/dev.jsonl"
    { make_trainer float --fp32 3600 && make_trainer scaled --fp16 3700; } >"$work/trainers.log" 2>&1 ||
        { cat "$work/trainers.log"; return 1; }
}

# Seconds until a test has no end; the original's may take as long as on a machine with other work.
most() { # SECONDS
    [ -n "$EFFICC_MUTANT" ] && echo "$1" || echo $(($1 * 10))
}

# A run with the checkpoints and evaluations of a real one; its weights are those of the original, in any order. Losses, too.
train() { # float|scaled SEED
    local dir
    dir=$(mktemp -d "$work/run.XXXX")
    XDG_CACHE_HOME=$dir/cache VGPU_SEED=$2 timeout "$(most 60)" "$work/$1/trainer" --train-data "$work/rows.jsonl" --eval-data "$work/dev.jsonl" --output-dir "$dir/out" \
        --num-train-epochs 2 --logging-steps 1 --learning-rate 1e-3 --global-batch-size 8 --save-strategy steps --save-steps 5 \
        >"$dir/said" 2>&1
    local code=$?
    cat "$dir/said"
    if [ $code = 0 ]; then
        grep -o '"\(eval_loss\|loss\|grad_norm\)": [^,}]*' "$dir/out/log.jsonl" | cat - "$dir/out/model.safetensors" | cksum >"$dir/sum"
        [ -n "$EFFICC_MUTANT" ] || [ -f "$work/$1.sum" ] || cp "$dir/sum" "$work/$1.sum"
        cmp -s "$dir/sum" "$work/$1.sum" || code=1
    fi
    rm -rf "$dir"
    return $code
}

# Exit code of a test, and what it says. Only tests of cuDNN find one.
run_test() { # plain|race|thread TEST
    local race=0 program=$folder/mutant_kernels
    grep -q "^TEST($2)" "$here/../cudnn/cudnn_test.c" && local -x LD_LIBRARY_PATH=$build/vgpu-cudnn
    [ "$1" = race ] && race=1
    [ "$1" = thread ] && program=$folder/thread/mutant_kernels_thread
    export VGPU_RACE=$race
    case $2 in
    train-*) IFS=- read -r _ type seed <<<"$2"; train "$type" "$seed" ;;
    *) XDG_CACHE_HOME=/dev/null timeout "$(most 120)" "$program" "$2" ;; # no algorithms of earlier runs
    esac
}

# Is the original without fault in it? Only then does a mutant's failure say anything.
is_clean() { # MODE TEST
    local mark=$work/clean-$1-$2
    if ! [ -f "$mark" ]; then
        local code=0
        EFFICC_MUTANT='' run_test "$1" "$2" >"$mark.log" 2>&1 || code=$?
        echo $code >"$mark"
        [ $code = 0 ] || echo "the original fails in $2 ($1)" >&2
    fi
    [ "$(cat "$mark")" = 0 ]
}

# What a failure is called: by the exit codes of the rig, of ThreadSanitizer, of timeout.
called() {
    case $1 in
    97) echo "race detector" ;;
    98) echo "address" ;;
    99) echo "rule" ;;
    66) echo "ThreadSanitizer" ;;
    124 | 137 | 142) echo "no end" ;;
    *) echo "numbers" ;;
    esac
}

# Milliseconds and name of each test that reaches mutants, and what they reach.
find_reach() {
    local t begin code
    mkdir -p "$work/hits"
    for t in $(kernel_tests) $trainer_tests; do
        : >"$work/hits/$t"
        begin=$(date +%s%N) code=0
        EFFICC_MUTANT_HITS=$work/hits/$t EFFICC_MUTANT='' run_test plain "$t" >"$work/clean-plain-$t.log" 2>&1 || code=$?
        echo $code >"$work/clean-plain-$t"
        echo "$((($(date +%s%N) - begin) / 1000000)) $t"
        [ $code = 0 ] || grep -q '^0 passed, 0 failed' "$work/clean-plain-$t.log" || echo "the original fails in $t" >&2
    done | sort -n >"$work/times"
}

reaches() { # TEST MUTANT
    [ "$(od -An -tu1 -j "$2" -N 1 "$work/hits/$1" | tr -d ' ')" = 1 ]
}

modes_of() { # TEXT
    case $1 in
    *__sync* | *rt_copy_* | *" = 0;" | seeded*) echo plain thread ;;
    *) echo plain race ;;
    esac
}

# Milliseconds and name of tests that reach the mutant: where nearly all do, trainers and some of the others.
tests_for() { # NUMBER
    local ms test
    while read -r ms test; do
        reaches "$test" "$1" && echo "$ms $test"
    done <"$work/times" | awk -v most=24 -v some=15 '{ l[NR] = $0 } END {
        step = NR > most ? NR / some : 1
        for (i = 1; i <= NR; i++)
            if (NR <= most || l[i] ~ /train-/)
                print l[i]
        for (i = 1; NR > most && i <= NR; i += step)
            if (l[int(i)] !~ /train-/)
                print l[int(i)]
    }'
}

# "how: test" for the first test that fails with the mutant, of those that take so many milliseconds.
try_tests() { # NUMBER MODE LEAST MOST, tests
    local ms test code
    while read -r ms test; do
        [[ $2 = thread && $test = train-* ]] && continue
        ((ms >= $3 && ms < $4)) && is_clean "$2" "$test" || continue
        code=0
        EFFICC_MUTANT=$1 run_test "$2" "$test" >/dev/null 2>&1 </dev/null || code=$?
        [ $code = 0 ] && continue
        echo "$(called $code): $test"
        return
    done <<<"$5"
    return 1
}

try_mutant() { # NUMBER TEXT
    local mode end=1000000 tests
    local -A quick=([plain]=2500 [race]=2500 [thread]=500)
    tests=$(tests_for "$1")
    [ -n "$tests" ] || { echo "NOT REACHED"; return; }
    for mode in $(modes_of "$2"); do
        try_tests "$1" "$mode" 0 "${quick[$mode]}" "$tests" && return
    done
    for mode in $(modes_of "$2"); do
        [ -z "$EFFICC_MUTANT_QUICK" ] && try_tests "$1" "$mode" "${quick[$mode]}" $end "$tests" && return
    done
    echo SURVIVED
}

known_reason() { # FILE FUNCTION TEXT
    awk -F'\t' -v f="$1" -v g="$2" -v t="$3" '$1 == f && $2 == g && $3 == t { print $4; exit }' "$here/equivalent.txt"
}

# A line of results for a line of the list.
judge() { # NUMBER FILE FUNCTION TEXT
    local reason
    reason=$(known_reason "$2" "$3" "$4")
    if [ -n "$reason" ]; then
        printf '%s\t%s\t%s\tequivalent: %s\n' "$2" "$3" "$4" "$reason"
    else
        printf '%s\t%s\t%s\t%s\n' "$2" "$3" "$4" "$(try_mutant "$1" "$4")"
    fi
}

# What equivalent.txt or results.txt says of mutants that there are no longer.
stale() { # FILE
    grep -v '^#' "$1" | cut -f1-3 | sort -u | comm -23 - <(cut -f2- "$folder/list" | sort -u)
}

if [ "$2" = judge ]; then # a part of `all`
    work=$3
    IFS=$'\t' read -r number file function text <<<"$4"
    judge "$number" "$file" "$function" "$text"
    exit
fi

check_all() { # the list
    find_reach
    tr '\n' '\0' <"$1" | xargs -0 -P "${EFFICC_MUTANT_JOBS:-$(nproc)}" -I{} "$0" "$build" judge "$work" {} >"$work/results"
    sort -t$'\t' -k1,3 "$work/results" >"$work/sorted"
    while IFS=$'\t' read -r file function text result; do
        case $result in
        SURVIVED | "NOT REACHED") result 1 "$file: $function: $text: $result" ;;
        *) result 0 ;;
        esac
    done <"$work/sorted"
}

write_results() {
    {
        echo "# Mutants of runtime/cuda, by tests/vgpu/mutants/mutants_test.sh with EFFICC_MUTANTS=all."
        echo "# Commit $(git -C "$here" rev-parse --short HEAD), $(date +%F): $(wc -l <"$work/sorted") mutants."
        cut -f4 "$work/sorted" | sed 's/:.*//' | sort | uniq -c | sort -rn | sed 's/^ *\([0-9]*\) \(.*\)/#   \1 \2/'
        cat "$work/sorted"
    } >"$here/results.txt"
}

# Is what results.txt says caught it still what catches it?
check_sample() {
    local n file function text how test mode code
    local want=${EFFICC_MUTANT_SAMPLE:-12}
    grep -v '^#' "$here/results.txt" | grep -vE $'\t(equivalent|SURVIVED|NOT REACHED)|: (every_|low_types|head_|norms_of_any|train-)' |
        awk -v want="$want" '{ l[NR] = $0 } END { for (i = 0; i < want; i++) print l[int((i + 0.5) * NR / want) + 1] }' >"$work/sample"
    while IFS=$'\t' read -r file function text how; do
        n=$(awk -F'\t' -v f="$file" -v g="$function" -v t="$text" '$2 == f && $3 == g && $4 == t { print $1 }' "$folder/list")
        [ -n "$n" ] || continue # the sources went on
        test=${how#*: } mode=plain code=0
        [[ $how = Thread* ]] && continue
        [[ $how = race* ]] && mode=race
        is_clean $mode "$test"
        result $? "$test without a mutant"
        EFFICC_MUTANT=$n run_test $mode "$test" >/dev/null 2>&1 || code=$?
        result $((code == 0)) "caught by $test: $file: $function: $text"
    done <"$work/sample"
    echo "$(cut -f2- "$folder/list" | sort | comm -23 - <(grep -v '^#' "$here/results.txt" | cut -f1-3 | sort) | wc -l) of" \
        "$(wc -l <"$folder/list") mutants are newer than results.txt"
}

work=${EFFICC_MUTANT_WORK:-$(mktemp -d)}
mkdir -p "$work"
[ -n "$EFFICC_MUTANT_WORK" ] || trap 'rm -rf "$work"' EXIT
stale "$here/equivalent.txt" >"$work/stale"
check "equivalent.txt names mutants that there are no longer: $(cat "$work/stale")" [ ! -s "$work/stale" ]
check "seeded.txt has what is not in the sources: $(grep ^0 "$folder/list")" eval '! grep -q ^0 "$folder/list"'
check "an emitted program orders something: $(cat "$work/plain/list" 2>/dev/null)" emitted_is_plain
case ${EFFICC_MUTANTS:-} in
"") check_sample ;;
all)
    cmake --build "$build" --target mutant_kernels_thread >/dev/null || exit 1
    make_trainers || exit 1
    grep -hv ^0 "$folder/list" "$work/emitted" >"$work/list"
    check_all "$work/list"
    write_results
    ;;
*)
    make_trainers || exit 1
    awk -F'\t' -v want=",$EFFICC_MUTANTS," 'index(want, "," $1 ",")' "$folder/list" "$work/emitted" >"$work/list"
    check_all "$work/list"
    cat "$work/sorted"
    ;;
esac
counts
