#!/usr/bin/env bash
# How long data take to open and in how much memory: JSONL of 100000 and of a million rows of 128 tokens (900 MB), token streams of 100 MB
# and 1 GB; all from the page cache, since a disk's speed is the disk's. Needs 3 GB in TMPDIR (or /var/tmp).
#
#   tests/bench/data.sh BUILD
set -euo pipefail
bench=$1/tests/data_bench
tmp=$(mktemp -d "${TMPDIR:-/var/tmp}/efficc-bench-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
for rows in 100000 1000000; do
    "$bench" make jsonl $rows "$tmp/rows.jsonl"
    cat "$tmp/rows.jsonl" >/dev/null
    "$bench" open "$tmp/rows.jsonl"
done
for bytes in 100000000 1000000000; do
    "$bench" make bin $bytes "$tmp/tokens.bin"
    cat "$tmp/tokens.bin" >/dev/null
    "$bench" open "$tmp/tokens.bin"
done
