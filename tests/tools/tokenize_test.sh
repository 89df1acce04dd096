#!/usr/bin/env bash
# scripts/tokenize.py against tokenizers and rows of tests/tokenize. EFFICC_PYTHON: a python3 that has the package tokenizers.
cd "$(dirname "$0")/.."
python=${EFFICC_PYTHON:-python3}
if ! "$python" -c "import tokenizers" 2>/dev/null; then
    echo "$python has no package tokenizers"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi
exec "$python" -B tokenize/check.py
