#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests. Ends with "N passed, N failed, N skipped" and exits non-zero if one failed.
#
#   scripts/test.sh            the default tier: everything, the quick tests again under ASan and UBSan, the fuzz targets (under 20 minutes)
#   scripts/test.sh quick      while working: unit, golden, interpreter, import and kernel tests (under 3 minutes)
#   scripts/test.sh full       before an issue ends: everything in release; all but what reads sources or makes programs for the
#                              virtual GPU under ASan and UBSan, too; the cases with recognisers off, with other thread counts, and on
#                              the virtual GPU in every precision and order and with races looked for; all mutants; goes on where it was stopped on the same commit; writes
#                              tests/full-results.txt
set -euo pipefail
cd "$(dirname "$0")/.."
tier=${1:-default}
case $tier in quick | default | full) ;; *)
    echo "test.sh: no tier '$tier'; there are quick, default and full" >&2
    exit 2 ;;
esac
jobs=$(nproc)
export OMP_WAIT_POLICY=passive # several tests run at a time: threads that wait must not spin
export LC_ALL=C                # what tools sort and say does not depend on the user
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

build() { # preset; its tests may have been switched off by demo.sh
    echo "== build $1"
    local log="$logs/build-$1.log"
    if ! { cmake --preset "$1" -DEFFICC_TESTS=ON && cmake --build --preset "$1" -j "$jobs"; } >"$log" 2>&1; then
        grep -E "error|Error|warning|FAILED" "$log" | head -n 40 || true
        tail -n 20 "$log"
        echo "test.sh: the build of preset $1 failed; no test was run on it" >&2
        exit 1
    fi
}

# A test program prints its own counts; one without them (or that died) counts as one test.
count='
match($0, /^[0-9]+: +[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped *$/) {
    split($0, w, /[^0-9]+/); p[w[1]] += w[2]; f[w[1]] += w[3]; s[w[1]] += w[4]; own[w[1]] = 1
}
/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
    n = $0; sub(/^[^#]*#/, "", n); sub(/:.*/, "", n); ok = /Passed/; skip = /\*\*\*Skipped/
    if (!own[n]) { if (skip) S++; else if (ok) P++; else F++ }
    else { P += p[n]; F += f[n]; S += s[n]; if (!ok && !skip && !f[n]) F++ }
}
END { print P + 0, F + 0, S + 0 }'
passed=0 failed=0 skipped=0 built=""

run() { # title, build folder, ctest's options to choose tests
    echo "== $1"
    local dir=$2 log="$logs/test-$BASHPID.log"
    shift 2
    ctest --test-dir "$dir" "$@" -V --schedule-random -j "$jobs" >"$log" 2>&1 || true
    grep -E "^ *[0-9]+/[0-9]+ Test " "$log" | sed -E 's/^ *//' | sort -k4 || true
    local failures
    failures=$(grep -E "^ *[0-9]+/[0-9]+ Test .*(Failed|Timeout|Exception|Not Run)" "$log" | sed -E 's/.*#([0-9]+):.*/\1/' || true)
    for n in $failures; do
        echo "---- output of test $n"
        grep -E "^$n: " "$log" | grep -vE "Test:.*passed" | tail -n 40 || true
    done
    read -r p f s < <(awk "$count" "$log")
    last="$p passed, $f failed, $s skipped"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# A row of the full tier; one that passed on this commit is not run again. The case flags are added to efficc's in the cases.
row() { # title, preset, case flags, ctest's options
    local title=$1 preset=$2 flags=$3 dir=build
    shift 3
    if grep -qs "^$title: [0-9]* passed, 0 failed" "$done"; then
        echo "== $title: done before"
        return
    fi
    case $built in *" $preset "*) ;; *) build "$preset" && built="$built $preset " ;; esac
    [ "$preset" = release ] || dir=build-$preset
    EFFICC_CASE_FLAGS=$flags run "$title" "$dir" "$@"
    echo "$title: $last" >>"$done"
}

# A row of one test on one processor, with others beside it; of the release build.
cases() { # title, case flags
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    {
        export EFFICC_TEST_RUN=$BASHPID
        row "$1" release "$2" -R e2e/cases_test >"$logs/row-$BASHPID" 2>&1
        cat "$logs/row-$BASHPID"
        rm -rf "build/tests/tmp$BASHPID"
    } &
}

# Fuzz targets, some seconds each, need clang's libFuzzer.
fuzz_targets=(tests/fuzz/*_fuzz.c)
has_fuzzer() {
    clang -fsanitize=fuzzer -fopenmp -x c - -o "$logs/fuzzer" <<<'int LLVMFuzzerTestOneInput(void) { return 0; }' 2>/dev/null && return
    echo "== fuzz targets: skipped, clang's libFuzzer is not there"
    return 1
}

full() {
    export EFFICC_KILLS=50 # of trainers, while they write a checkpoint
    done=build/full-$(git rev-parse --short HEAD).txt
    mkdir -p build
    touch "$done"
    sed -i '/ 0 failed,/!d' "$done" # rows that failed are run again
    build release
    built=" release "
    row "release, everything" release "" -L "quick|default"
    local gpu="--target cuda --nvcc $PWD/build/vgpu-nvcc" precision seed
    cases "cases as plain operators" "--no-recognise all"
    cases "cases on one thread" "--threads 1"
    cases "cases on three threads" "--threads 3"
    cases "cases on the virtual GPU" "$gpu"
    for precision in bf16 fp16; do
        cases "cases on the virtual GPU, $precision" "$gpu --$precision"
    done
    for seed in 1 2 3 4 5; do
        VGPU_SEED=$seed cases "cases on the virtual GPU, order $seed" "$gpu"
    done
    VGPU_RACE=1 cases "cases on the virtual GPU, races looked for" "$gpu --align 4096"
    VGPU_RACE=1 cases "cases on the virtual GPU, bf16, races looked for" "$gpu --align 4096 --bf16"
    wait
    EFFICC_NVCC_CASES=all row "nvcc compiles every case" release "" -R nvcc_test
    row "ASan and UBSan, everything" san "" -L "quick|default" -LE tools
    row "ASan and UBSan, kernels and rig of the virtual GPU" san-vgpu "" -L vgpu -E "vgpu/(cases|orders|mutants|vgpu_headers|vgpu_nvcc)"
    row "debug, quick tests" debug "" -L quick
    if has_fuzzer; then
        row "fuzz targets" fuzz "" -L fuzz
    else
        echo "fuzz targets: 0 passed, 0 failed, ${#fuzz_targets[@]} skipped" >>"$done"
    fi
    EFFICC_MUTANTS=all row "every mutant of the CUDA runtime" release "" -R mutants_test
    { echo "scripts/test.sh full, commit $(git rev-parse --short HEAD), $(date +%F), $(uname -m), $jobs cores"; cat "$done"; } >tests/full-results.txt
    read -r passed failed skipped < <(sed -E 's/.*: ([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped/\1 \2 \3/' "$done" |
        awk '{ p += $1; f += $2; s += $3 } END { print p, f, s }')
}

if [ "$tier" = quick ]; then
    scripts/setup.sh
else
    scripts/setup.sh --fuzz || scripts/setup.sh # what can't be had is skipped and counted
fi
[ "$tier" = full ] || build release
if [ "$tier" = full ]; then
    full
elif [ "$tier" = quick ]; then
    run "quick tests" build -L quick
else
    run "all tests" build -L "quick|default"
    build san
    run "quick tests under ASan and UBSan, but those that read sources" build-san -L quick -LE tools
    if has_fuzzer; then
        build fuzz
        run "fuzz targets" build-fuzz -L fuzz
    else
        skipped=$((skipped + ${#fuzz_targets[@]}))
    fi
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
