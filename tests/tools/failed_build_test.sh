#!/usr/bin/env bash
# What is left where a trainer isn't made: sources and plan.json if a compiler refused them, never weights; nothing if there
# is nothing to see, or after a signal, which also ends the compilers. An older build stays as it was.
efficc=$1/efficc
. "$(dirname "$0")/../counts.sh"
model=$PWD/tests/cases/gpt2-legacy17/model.onnx
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
mkdir out
echo '{"efficc": "older"}' >out/plan.json

make_trainer() # OPTIONS..
{
    "$efficc" "$model" --target cpu --batch 2 --seq 8 --residual f32 -o out "$@" >said 2>&1
}
says() # WORDS
{
    grep -qF -- "$1" said || { cat said; return 1; }
}
left() # what there is beside the older build
{
    find . -path './out.*' -type f | sed 's|^\./out\.[^/]*/||' | sort | tr '\n' ' '
}
has_ended() # PID, a moment after it was killed
{
    for _ in $(seq 1000); do
        grep -qs '^State:.[^Z]' "/proc/$1/status" || return 0
        sleep 0.02
    done
    return 1
}

make_trainer --cc no-such-compiler
check "a compiler that is not there ends with 1" [ $? = 1 ]
check "it is named" says "can not run 'no-such-compiler'"
check "and nothing is left: $(left)" [ -z "$(left)" ]

make_trainer --cflags -no-such-flag
check "sources that are refused end with 1" [ $? = 1 ]
check "where they are is said" says "the sources stay in out."
check "they are there, without weights: $(left)" \
    [ "$(left)" = "plan.json src/Makefile src/build.log src/kernels.c src/kernels.h src/plan.h src/step.c " ]
rm -rf out.*

cat >slow <<'END'
#!/bin/sh
sleep 1000 &
echo $! >>children
echo $$ >>children
wait
END
chmod +x slow
for signal in TERM INT HUP; do
    # INT is ignored by what a shell starts in the background.
    rm -f children
    env --default-signal=INT,HUP "$efficc" "$model" --target cpu --batch 2 --seq 8 --cc "$PWD/slow" -o out >said 2>&1 &
    pid=$!
    for _ in $(seq 1000); do # both compilers
        [ "$(wc -l 2>/dev/null <children)" = 4 ] && break
        sleep 0.02
    done
    check "$signal: compilers run, beside what is half-written" [ -n "$(left)" ]
    kill -s "$signal" "$pid"
    from=$SECONDS
    wait "$pid" 2>/dev/null
    check "$signal ends efficc as a signal does" [ $? = $((128 + $(kill -l "$signal"))) ]
    check "$signal: at once" [ $((SECONDS - from)) -lt 20 ]
    check "$signal: it is said" says "interrupted; no trainer was written"
    check "$signal: nothing is left: $(left)" [ -z "$(left)" ]
    while read -r child; do
        check "$signal: process $child has ended" has_ended "$child"
    done <children
done
check "the older build is as it was" [ "$(ls out)" = plan.json ]
counts
