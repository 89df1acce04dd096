#!/bin/sh
# Golden tests of passes.
#
#     passes_test.sh BUILD [--bless] [PART-OF-A-NAME]
#
# Every tests/golden/*/NAME.ir whose first line is "; run: OPTIONS" is given to efficc with
# these options (a word efficc before them, as in crash-PASS.ir, does not count). Standard
# output must be NAME.want, byte for byte, and the exit code 0; where there is no NAME.want the
# exit code must be 1. Standard error must be NAME.err if that exists. --bless writes what
# comes out into the files that exist, and makes NAME.want (exit code 0) or NAME.err (else) for
# a new NAME.ir; look at the difference before you commit it. What efficc leaves where it runs,
# crash-PASS.ir, is kept in BUILD/golden-crashes.
build=$(cd "${1:?usage: passes_test.sh BUILD [--bless] [PART-OF-A-NAME]}" && pwd) || exit 2
bless=
only=
shift
for a in "$@"; do
    case $a in --bless) bless=1 ;; *) only=$a ;; esac
done
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/run"
cd "$tmp/run" || exit 2
passed=0 failed=0 skipped=0

# compare WANT GOT: shows the first differences
same() {
    cmp -s "$1" "$2" && return 0
    diff -u "$1" "$2" | head -n 20
    return 1
}

for ir in "$here"/*/*.ir; do
    head=$(head -n 1 "$ir")
    name=${ir#"$here"/}
    case $head in "; run: "*) ;; *) continue ;; esac
    case $name in *"$only"*) ;; *) continue ;; esac
    stem=${ir%.ir}
    cp "$ir" .
    options=${head#; run: }
    eval "set -- ${options#efficc }"
    "$build/efficc" "$@" "$(basename "$ir")" >"$tmp/out" 2>"$tmp/err"
    code=$?
    if [ "$bless" ]; then
        if [ ! -e "$stem.want" ] && [ ! -e "$stem.err" ]; then
            [ $code = 0 ] && : >"$stem.want" || : >"$stem.err"
        fi
        [ -e "$stem.want" ] && cp "$tmp/out" "$stem.want"
        [ -e "$stem.err" ] && cp "$tmp/err" "$stem.err"
    fi
    ok=1
    if [ ! -e "$stem.want" ] && [ ! -e "$stem.err" ]; then
        echo "$name: neither .want nor .err"
        ok=0
    fi
    want=1
    [ -e "$stem.want" ] && want=0
    if [ $code != $want ]; then
        echo "$name: exit code $code, expected $want"
        head -n 5 "$tmp/err"
        ok=0
    elif [ -e "$stem.want" ] && ! same "$stem.want" "$tmp/out"; then
        ok=0
    elif [ -e "$stem.err" ] && ! same "$stem.err" "$tmp/err"; then
        ok=0
    fi
    rm "${ir##*/}"
    for left in *; do
        [ -e "$left" ] || continue
        mkdir -p "$build/golden-crashes"
        mv "$left" "$build/golden-crashes"
        echo "$name: efficc left $build/golden-crashes/$left"
        ok=0
    done
    if [ $ok = 1 ]; then
        passed=$((passed + 1))
    else
        echo "FAIL $name"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed != 0 ]
