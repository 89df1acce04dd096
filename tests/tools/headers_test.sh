#!/usr/bin/env bash
# Every header compiles alone.
set -euo pipefail
build=$1
cd "$(dirname "$0")/../.."
passed=0 failed=0
for h in ir/*.h passes/*.h codegen/*.h frontend/*.h runtime/include/*.h runtime/host/*.h runtime/cpu/*.h; do
    [ -e "$h" ] || continue
    if printf '#include "%s"\n' "$h" | cc -std=c11 -D_GNU_SOURCE -fopenmp -Wall -Wextra -fsyntax-only -I. -Iruntime/include -I"$build" -x c -; then
        passed=$((passed + 1))
    else
        echo "$h does not compile alone"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
