#!/usr/bin/env bash
# Lines of C per folder, and the ten longest files. Files are 150 to 500 lines; above 700 one should be split.
set -euo pipefail
cd "$(dirname "$0")/../.."
for d in ir frontend passes codegen runtime/host runtime/cpu runtime/include tests; do
    printf '%-18s %6d\n' "$d" "$(find $d -name '*.[ch]' -o -name '*.def' -path "$d/*" | xargs cat | wc -l)"
done
find ir frontend passes codegen runtime tests -name '*.[ch]' | xargs wc -l | sort -rn | sed -n 2,11p
