#!/bin/sh
# What a person sees in a terminal of 80 and of 200 columns: each state of the live line fits and
# replaces the one before, messages stand alone, the last line stays, Ctrl-C leaves nothing behind.
# script(1) gives the bytes; tmux, where it is there, the screen that they make.
set -eu
temp=$(mktemp -d)
socket=none
end() # also of tmux, which outlives this shell
{
    tmux -L "$socket" kill-server 2>/dev/null || true
    rm -rf "$temp"
}
trap end EXIT
unset LC_CTYPE LANG
export OMP_WAIT_POLICY=passive LC_ALL=C TERM=xterm-256color SHELL=/bin/sh # tmux asks for it; a service's user has none
efficc=$1/efficc
model=$PWD/tests/cases/bert-legacy17-dedup/model.onnx
. "$(dirname "$0")/../counts.sh"
cd "$temp"

count() # PATTERN FILE
{
    grep -c "$1" "$2" || true
}

"$efficc" "$model" --batch 2 --seq 16 --fp32 --task seq-cls --quiet -o model
awk 'BEGIN { for (i = 0; i < 400; i++) printf "{\"input_ids\": [%d, %d, %d], \"labels\": %d}\n", i % 97 + 3, i % 11 + 3, i % 5 + 3, i % 3 }' >data.jsonl
options="--train-data data.jsonl --eval-data data.jsonl --eval-steps 200 --logging-steps 25 --overwrite-output-dir"

# ---- the bytes ----

run_in() # COLUMNS, number of steps
{
    script -qec "stty cols $1 rows 24; model/trainer $options --max-steps $2 --output-dir out" typescript.raw >/dev/null
    # a line of the file for what stood in a line of the screen at some time
    tr '\r' '\n' <typescript.raw | sed 's/\x1b\[K//g' >all
    grep -a 'tok/s' all >live
}
bytes() # COLUMNS
{
    steps=600
    run_in "$1" $steps
    while [ "$(wc -l <live)" -lt 3 ] && [ $steps -lt 600000 ]; do # a fast machine: a state is shown for a tenth of a second
        steps=$((steps * 10))
        run_in "$1" $steps
    done
    check "$1 columns: states of the line" [ "$(wc -l <live)" -ge 3 ]
    check "$1 columns: a state is too long" awk -v most=$(($1 - 3)) 'length > most { print length ": " $0; bad = 1 } END { exit bad }' live
    check "$1 columns: a state is too short" awk -v least=$(($1 - 3)) 'length < least { print; bad = 1 } END { exit bad }' live
    check "$1 columns: the last state" grep -q "$steps/$steps" live
    check "$1 columns: an evaluation has its line" grep -aq '^eval      step 200: .*[0-9]' all
    check "$1 columns: the end has its line" grep -aq '^done ' all
}
if command -v script >/dev/null && script -qec true /dev/null >/dev/null 2>&1; then
    bytes 80
    bytes 200
else
    echo "no script(1) here"
    skipped=$((skipped + 12))
fi

# ---- the screen ----

keys() # KEYS..
{
    tmux -L "$socket" send-keys -t run "$@"
}
screen() # to the file screen
{
    tmux -L "$socket" capture-pane -p -t run >screen
}
wait_for() # PATTERN [TENTHS]: on the screen
{
    for _ in $(seq "${2:-600}"); do
        screen
        grep -q "$1" screen && return 0
        sleep 0.1
    done
    echo "never seen: $1"
    cat screen
    return 1
}
on_screen() # COLUMNS
{
    socket=efficc-test-$$-$1 # a server each: the one before may still be going
    tmux -L "$socket" -f /dev/null new-session -d -x "$1" -y 40 -s run "PS1='ready ' sh"
    wait_for '^ready'
    keys "clear; model/trainer $options --max-steps 600 --output-dir out" Enter
    check "$1 columns, screen: the run ends" wait_for '^done '
    check "$1 columns, screen: one live line stays" [ "$(count 'tok/s' screen)" = 1 ]
    check "$1 columns, screen: it is the last" grep -q ' 600/600 .*tok/s' screen
    check "$1 columns, screen: evaluations" [ "$(count '^eval      step' screen)" = 3 ]
    endless="$options --eval-steps 1000000 --max-steps 1000000 --output-dir out" # without lines that move the screen
    keys "clear; model/trainer $endless" Enter
    wait_for 'tok/s'
    sleep 0.5
    keys C-c
    check "$1 columns, screen: Ctrl-C stops" wait_for '^stopped '
    check "$1 columns, screen: Ctrl-C leaves nothing" [ "$(count 'tok/s\|\^C' screen)" = 0 ]
    keys "clear; model/trainer $endless --resume-from-checkpoint" Enter
    check "$1 columns, screen: it goes on" wait_for 'tok/s'
    resumed=$(sed -n 's/^resume .*after step \([0-9]*\).*/\1/p' screen)
    shown=$(sed -n 's/.* \([0-9]*\)\/1000000 .*tok.*/\1/p' screen)
    check "$1 columns, screen: steps count from there" [ "${shown:-0}" -gt "${resumed:-999999999}" ]
    keys C-c
    check "$1 columns, screen: it stops again" wait_for '^stopped '
    tmux -L "$socket" kill-server
}
if command -v tmux >/dev/null; then
    on_screen 80
    on_screen 200
else
    echo "no tmux here"
    skipped=$((skipped + 18))
fi
counts
