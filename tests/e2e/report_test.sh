#!/bin/sh
# report.html of a real run in a headless browser: no error, curves with a point for each row of
# the log, the numbers of the log in the headline, text that can't become markup, a picture that
# is not blank. Skipped where there is no Chromium.
set -eu
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
export OMP_WAIT_POLICY=passive
efficc=$1/efficc
model=$PWD/tests/cases/bert-legacy17-dedup/model.onnx
. "$(dirname "$0")/../counts.sh"
browser=
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v "$name" || true)
done
if [ -z "$browser" ]; then
    echo "no Chromium here"
    echo "0 passed, 0 failed, 31 skipped"
    exit 0
fi
browse() # OPTIONS.. PAGE
{
    timeout 300 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$temp/profile" \
        --enable-logging=stderr "$@" 2>console
}
cd "$temp"

out='o</script><i>x&amp;"' # a folder may be called so
"$efficc" "$model" --batch 2 --seq 16 --fp32 --task seq-cls --lora-r 4 --quiet -o model
awk 'BEGIN { for (i = 0; i < 60; i++) printf "{\"input_ids\": [%d, %d, %d], \"labels\": %d}\n", i % 97 + 3, i % 11 + 3, i % 5 + 3, i % 3 }' >data.jsonl
model/trainer --train-data data.jsonl --eval-data data.jsonl --eval-steps 20 --logging-steps 1 --max-steps 60 \
    --learning-rate 1e-3 --output-dir "$out" >said
cp "$out/report.html" report.html
cp "$out/log.jsonl" log.jsonl

# ---- what stands in the page ----

browse --dump-dom "file://$temp/report.html" >dom
check "the console has errors" [ "$(grep -c 'CONSOLE' console || true)" = 0 ]
check "an error of the script" [ "$(grep -c 'data-error' dom || true)" = 0 ]
check "number of charts" grep -q '<html[^>]* data-drawn="5"' dom

points() # KEY: of the curve
{
    tr '>' '\n' <dom | grep "<path .*data-key=\"$1\"" | sed 's/.* d="\([^"]*\)".*/\1/' | tr -cd 'ML' | wc -c
}
rows() # KEY: of the log, that have a number
{
    grep -c "\"$1\": [-0-9]" log.jsonl
}
for key in loss grad_norm learning_rate tokens_per_second eval_loss eval_accuracy; do
    check "$key: rows in the log" [ "$(rows "$key")" -ge 3 ]
    check "$key: points of the curve" [ "$(points "$key")" = "$(rows "$key")" ]
done
check "points of the smoothed loss" [ "$(points 'smoothed loss')" = 60 ]

headline() # KEY
{
    tr '>' '\n' <dom | sed -n "s/.*<dd .*data-key=\"$1\" data-value=\"\([^\"]*\)\".*/\1/p"
}
logged() # KEY: the last value
{
    sed -n "s/.*\"$1\": \([-+.e0-9]*\).*/\1/p" log.jsonl | tail -1
}
equal()
{
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d * d <= 1e-14 * b * b) }'
}
for key in loss eval_loss eval_accuracy step seconds peak_rss_bytes; do
    check "headline: $key" equal "$(headline "$key")" "$(logged "$key")"
done
check "headline: tokens per second" equal "$(headline tokens_per_second)" \
    "$(sed -n 's/.*"tokens_per_second": \([.e0-9]*\).*/\1/p' log.jsonl | awk '{ s += $1 } END { printf "%.9g", s / NR }')"
check "state of the run" grep -q 'id="state"[^>]*>Finished<' dom
check "LoRA's matches" grep -q '<td>bert.encoder.layer.0.attention.self.query</td>' dom
check "a name that looks like markup" grep -qF 'o&lt;/script&gt;&lt;i&gt;x&amp;amp;"' dom
check "a name became markup" [ "$(grep -cF '<i>x' dom || true)" = 0 ]
check "something would be loaded" [ "$(grep -Eo '(src|href)="[^"]*"|url\([^)]*\)' report.html | grep -cv 'href="data:,"' || true)" = 0 ]

# ---- what it looks like ----

size() # PNG
{
    wc -c <"$1"
}
echo '<!doctype html>' >blank.html
browse --window-size=1000,1400 --screenshot=blank.png "file://$temp/blank.html"
browse --window-size=1000,1400 --screenshot=light.png "file://$temp/report.html"
browse --window-size=500,1400 --blink-settings=preferredColorScheme=0 --screenshot=dark.png "file://$temp/report.html"
check "the picture is blank" [ "$(size light.png)" -gt $(($(size blank.png) * 5)) ]
check "the narrow, dark picture is blank" [ "$(size dark.png)" -gt $(($(size blank.png) * 3)) ]
check "errors at the small width" [ "$(grep -c CONSOLE console || true)" = 0 ]
counts
