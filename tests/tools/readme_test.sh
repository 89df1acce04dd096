#!/usr/bin/env bash
# The documents name only options that exist and files that are there, and --help of efficc has every row of its table.
set -euo pipefail
build=$1
. "$(dirname "$0")/../counts.sh"
cd "$(dirname "$0")/../.."

# Options of efficc as --help shows them, of its commands, of a trainer from its table, and of the tools that the documents call.
help=$("$build/efficc" --help | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u)
trainer=$(sed -nE 's/^OPT\(([a-z0-9_]+), FLAG,.*/--\1 --no-\1/p; s/^OPT\(([a-z0-9_]+),.*/--\1/p' runtime/host/options.def | tr _ -)
commands=$(sed -nE 's/^OPTION\([a-z]+, "([a-z0-9-]+)",.*/--\1/p' frontend/commands.def)
tokenize=$(grep -oE '"--[a-z-]+"' scripts/tokenize.py | tr -d '"')
known=$(printf '%s\n' $help $trainer $commands $tokenize --bless --cuda --preset --build --fuzz --logdir)

for option in $(sed -nE 's/^OPT\([a-z0-9_]+, "([a-z0-9-]+)",.*/\1/p' ir/options.def); do
    ok=0
    grep -qxE -- "--(no-)?$option" <<<"$help" || ok=1
    result $ok "efficc --help lacks --$option"
done
for page in *.md docs/*.md tests/bench/*.md; do
    for option in $(grep -oE -- '(^|[^a-z0-9-])--[a-z][a-z0-9-]*' "$page" | grep -oE -- '--[a-z0-9-]+' | sort -u); do
        ok=0
        grep -qxF -- "$option" <<<"$known" || ok=1
        result $ok "$page: there is no option $option"
    done
    for link in $(grep -oE '\]\([^)#]+' "$page" | cut -c3- | grep -v '^https\?:' || true); do
        ok=0
        [ -e "$(dirname "$page")/$link" ] || ok=1
        result $ok "$page: the link to $link leads nowhere"
    done
done
counts
