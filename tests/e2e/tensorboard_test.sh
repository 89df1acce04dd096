#!/bin/sh
# TensorBoard's own reader finds in the event files of a run that was stopped and went on just what
# log.jsonl holds. Skipped where Python (EFFICC_PYTHON, else python3) has no tensorboard.
set -eu
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
export OMP_WAIT_POLICY=passive
python=${EFFICC_PYTHON:-python3}
efficc=$1/efficc
model=$PWD/tests/cases/bert-legacy17-dedup/model.onnx
if ! "$python" -c 'import tensorboard' 2>/dev/null; then
    echo "no tensorboard here"
    echo "0 passed, 0 failed, 5 skipped"
    exit 0
fi
cd "$temp"
"$efficc" "$model" --batch 2 --seq 16 --fp32 --task seq-cls --quiet -o model
awk 'BEGIN { for (i = 0; i < 60; i++) printf "{\"input_ids\": [%d, %d, %d], \"labels\": %d}\n", i % 97 + 3, i % 11 + 3, i % 5 + 3, i % 3 }' >data.jsonl
train() # OPTIONS
{
    model/trainer --train-data data.jsonl --eval-data data.jsonl --eval-steps 15 --logging-steps 1 \
        --save-steps 20 --save-total-limit 0 --report-to tensorboard --output-dir out "$@" >said 2>&1 || { cat said; exit 1; }
}
train --max-steps 50
rm -r out/checkpoint-40 out/checkpoint-50 # as if it had been killed at step 37
train --max-steps 50 --resume-from-checkpoint out/checkpoint-20
[ "$(ls out/runs | wc -l)" = 2 ]
"$python" - <<'END'
import json, logging, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
logging.disable(logging.CRITICAL)
passed = failed = 0
def check(what, ok):
    global passed, failed
    passed += ok
    failed += not ok
    if not ok: print(what)
board = EventAccumulator('out/runs', size_guidance={'scalars': 0, 'tensors': 0})
board.Reload()
want = {}
for row in map(json.loads, open('out/log.jsonl')):
    for key, value in row.items():
        if 'step' in row and key != 'step' and isinstance(value, (int, float)) and not isinstance(value, bool):
            tag = 'eval/' + key[5:] if key.startswith('eval_') else 'train/' + key
            want.setdefault(tag, []).append((row['step'], value))
check('tags', sorted(board.Tags()['scalars']) == sorted(want))
points = {tag: [(e.step, e.value) for e in board.Scalars(tag)] for tag in board.Tags()['scalars']}
check('steps', all([s for s, _ in points.get(t, [])] == [s for s, _ in want[t]] for t in want))
check('values', all(abs(a - b) <= 1e-6 * abs(b) for t in want for (_, a), (_, b) in zip(points.get(t, []), want[t])))
check('loss of each step', [s for s, _ in points.get('train/loss', [])] == list(range(1, 51)))
text = board.Tensors('options/text_summary')[0].tensor_proto.string_val[0].decode()
check('options', '| logging_steps | 1 |' in text.replace('\\_', '_'))
print(f'{passed} passed, {failed} failed, 0 skipped')
sys.exit(failed > 0)
END
