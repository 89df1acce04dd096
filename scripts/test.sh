#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests. Ends with "N passed, N failed, N skipped" and exits non-zero if one failed.
#
#   scripts/test.sh            the default tier: everything, then the quick tests again under ASan and UBSan (under 20 minutes)
#   scripts/test.sh quick      while working: unit, golden, interpreter, import and kernel tests (under 3 minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
tier=${1:-default}
case $tier in quick | default) ;; *)
    echo "test.sh: no tier '$tier'; there are quick and default" >&2
    exit 2 ;;
esac
jobs=$(nproc)
export OMP_WAIT_POLICY=passive # several tests run at a time: threads that wait must not spin
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
    else { P += p[n]; F += f[n]; S += s[n]; if (!ok && !f[n]) F++ }
}
END { print P + 0, F + 0, S + 0 }'
passed=0 failed=0 skipped=0

run() { # title, build folder, ctest's options to choose tests
    echo "== $1"
    local dir=$2 log="$logs/test-$(basename "$2").log"
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
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

scripts/setup.sh
build release
if [ "$tier" = quick ]; then
    run "quick tests" build -L quick
else
    run "all tests" build -L "quick|default"
    for san in asan ubsan; do
        build $san
        run "quick tests under $san, but those that read sources" build-$san -L quick -LE tools
    done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
