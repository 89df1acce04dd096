#!/usr/bin/env bash
# Who may include whom: ir <- frontend, passes, codegen (codegen also passes/pass.h and the runtime's public header); runtime includes none of them.
set -euo pipefail
. "$(dirname "$0")/../counts.sh"
cd "$(dirname "$0")/../.."
includes() { # folder, regular expression of quoted includes that it must not have
    local bad
    bad=$(grep -rnE "^#include \"($2)" "$1" --include='*.[ch]' || true)
    check "$1 includes what it must not: $bad" [ -z "$bad" ]
}
includes ir '(\.\./)?(frontend|passes|codegen|runtime)/|efficc_rt'
includes passes '(\.\./)?(frontend|codegen|runtime)/|efficc_rt'
includes codegen '(\.\./)?frontend/|(\.\./)?passes/[^"]*_int\.h|(\.\./)?ir/[^"]*_int\.h'
includes runtime '(\.\./)*(frontend|passes|codegen|ir)/'
for f in frontend/*.[ch]; do
    [[ $f == frontend/main.c || $f == frontend/cmd*.[ch] ]] || includes "$f" '(\.\./)?(passes|codegen|runtime)/|efficc_rt'
done
counts
