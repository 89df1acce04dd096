#!/usr/bin/env bash
# C files are as clang-format 14 leaves them; skipped where it is not installed.
set -euo pipefail
. "$(dirname "$0")/../counts.sh"
cd "$(dirname "$0")/../.."
tool=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$tool" ] || ! "$tool" --version | grep -q 'version 14\.'; then
    echo "clang-format 14 is not here"
    exit 77
fi
for f in {frontend,ir,passes,codegen,models}/*.[ch] runtime/*/*.[ch] tests/*.[ch] tests/*/*.[ch]; do
    check "$f: run clang-format -i" "$tool" --dry-run --Werror "$f" 2>/dev/null
done
counts
