#!/usr/bin/env bash
# Who may include whom: ir <- frontend, passes, codegen (codegen also passes/pass.h and the runtime's public header); runtime includes none of them.
set -euo pipefail
cd "$(dirname "$0")/../.."
passed=0 failed=0
check() { # folder, regular expression of quoted includes that it must not have
    local bad
    bad=$(grep -rnE "^#include \"($2)" "$1" --include='*.[ch]' || true)
    if [ -n "$bad" ]; then
        echo "$1 includes what it must not:"
        echo "$bad"
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
}
check ir '(\.\./)?(frontend|passes|codegen|runtime)/|efficc_rt'
check passes '(\.\./)?(frontend|codegen|runtime)/|efficc_rt'
check codegen '(\.\./)?frontend/|(\.\./)?passes/[^"]*_int\.h|(\.\./)?ir/[^"]*_int\.h'
check runtime '(\.\./)*(frontend|passes|codegen|ir)/'
for f in frontend/*.[ch]; do
    [[ $f == frontend/main.c || $f == frontend/cmd*.[ch] ]] || check "$f" '(\.\./)?(passes|codegen|runtime)/|efficc_rt'
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
