#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can show: that kernels and trained cases are right there, and how fast training is. Builds with
# nvcc, runs tests of kernels and cases, then the table of benchmarks; writes one JSON. README.md beside this file tells more.
#
#   tests/gpu/run.sh [OPTIONS]
#   --build DIR        build folder (default build-gpu)
#   --json FILE        what is written (default: gpu.json in the build folder)
#   --limit SECONDS    of the whole; what has no time left is skipped (default 470)
#   --parts LIST       of kernels,programs,cases,bench (default: all); the build is always made
#   --packages DIR     folder of Debian packages that are used without being installed (default: .debs in the repository, if it is there)
#   --virtual BUILD    on the virtual GPU of a build, with tiny sizes: a test of this script
#
# Exit code: 0 all passed, 1 something failed, 77 there is no GPU.
set -uo pipefail
started=$SECONDS
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build-gpu json='' limit='' parts=kernels,programs,cases,bench packages='' virtual=''
fail() {
    echo "run.sh: $1" >&2
    exit 1
}
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || fail "no option '$1', or its value lacks; see the head of this file"
    case $1 in
    --build) mkdir -p "$2" && build=$(cd "$2" && pwd) ;;
    --json) json=$2 ;;
    --limit) limit=$2 ;;
    --parts) parts=$2 ;;
    --packages) packages=$(cd "$2" && pwd) ;;
    --virtual) virtual=1 build=$(cd "$2" && pwd) ;;
    *) fail "no option '$1'; see the head of this file" ;;
    esac
    shift 2
done
json=${json:-$build/gpu.json}
slow=1 # times as long as on a card, at most
[ -z "$virtual" ] || slow=6
limit=${limit:-$((470 * slow))}
[ -n "$packages$virtual" ] || [ ! -d "$root/.debs" ] || packages=$root/.debs
mkdir -p "$build" "$(dirname "$json")"
work=$(mktemp -d "$build/gpu-XXXXXX")
results=$work/results skips=$work/skips bench=$work/bench card=$work/card
touch "$results" "$skips" "$bench" "$card"
export OMP_WAIT_POLICY=passive
export XDG_CACHE_HOME=$work/cache # algorithms are measured on this card, now
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
. "$root/tests/gpu/parts.sh"
. "$root/tests/gpu/bench.sh"
. "$root/tests/gpu/json.sh"

echo "== card"
find_card
code=$?
if [ $code = 0 ]; then
    cat "$card"
    has() { [[ ,$parts, == *,$1,* ]]; }
    if make_all; then
        if has bench; then prepare_models >"$work/prepare.log" 2>&1 & fi
        if has kernels; then part_kernels && save; else skip "tests of kernels" "not asked for"; fi
        if has cases; then part_cases && save; else skip "cases" "not asked for"; fi
        if has bench; then part_bench && save; else skip "benchmarks" "not asked for"; fi
        if has programs; then part_programs && save; else skip "small programs" "not asked for"; fi
    fi
else
    cat "$card"
    for what in "tests of kernels" cases benchmarks "small programs"; do
        skip "$what" "$(tail -n 1 "$card")"
    done
fi
summary
save && echo "written: $json"
passed=$(count passed) failed=$(count failed) skipped=$(($(count skipped) + $(wc -l <"$skips")))
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] || exit 1
exit $code
