#!/usr/bin/env bash
# C files are as clang-format 14 leaves them; skipped where it is not installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
tool=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$tool" ] || ! "$tool" --version | grep -q 'version 14\.'; then
    echo "clang-format 14 is not here"
    exit 77
fi
passed=0 failed=0
for f in {frontend,ir,passes,codegen,models}/*.[ch] runtime/*/*.[ch] tests/*.[ch] tests/*/*.[ch]; do
    if "$tool" --dry-run --Werror "$f" 2>/dev/null; then
        passed=$((passed + 1))
    else
        echo "$f: run clang-format -i"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
