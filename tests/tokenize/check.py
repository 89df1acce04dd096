#!/usr/bin/env python3
"""Runs scripts/tokenize.py on golden.json and on what it must refuse; called by tests/tools/tokenize_test.sh."""
import array
import contextlib
import importlib.util
import io
import json
import os
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "..", "..", "scripts")
spec = importlib.util.spec_from_file_location("text_to_tokens", os.path.join(SCRIPTS, "tokenize.py"))
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
passed = failed = skipped = 0
BPE = ["--tokenizer", "bpe"]


def check(name, fine, *shown):
    global passed, failed
    passed, failed = passed + bool(fine), failed + (not fine)
    if not fine:
        print(f"FAILED: {name}", *shown)


def run(args, data, folder, suffix=None, out="out/rows.jsonl"):
    """Exit code, what was said, and the path of the output."""
    suffix = suffix or (".txt" if isinstance(data, (str, bytes)) or (data and isinstance(data[0], str)) else ".jsonl")
    path, out = os.path.join(folder, "input" + suffix), os.path.join(folder, out)
    text = data if isinstance(data, (str, bytes)) else "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in data)
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    said = io.StringIO()
    args = [os.path.join(HERE, a) if a.startswith(("bpe", "word")) else a for a in args]
    with contextlib.redirect_stderr(said):
        sys.argv = ["tokenize.py", path, "-o", out, *args]
        code = script.main()
    return code, said.getvalue(), out


def rows_of(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def goldens(folder):
    global skipped
    with open(os.path.join(HERE, "golden.json")) as f:
        cases = json.load(f)
    for c in cases:
        if "tokenizer" in c["args"] and not importlib.util.find_spec("jinja2"):
            print(f"skipped for want of jinja2: {c['name']}")
            skipped += 2
            continue
        code, said, out = run(c["args"], c["input"], folder)
        got = rows_of(out) if code == 0 else said
        check(c["name"], got == c["rows"], "\n", got, "\n", c["rows"])
        check(c["name"] + ": counts", f"{len(c['rows'])} rows, {sum(len(r['input_ids']) for r in c['rows'])} tokens" in said, said)


def formats(folder):
    lines = ["The cat sat.", "What is the capital of France?", "a dog"]
    want = [r["input_ids"] for r in rows_of(run(BPE + ["--append-eos"], lines, folder)[2])]
    flat = [i for row in want for i in row]
    read = lambda path, skip=0: list(array.array("H", open(path, "rb").read()[skip:]))
    check("bin", read(run(BPE + ["--append-eos"], lines, folder, out="x.bin")[2]) == flat)
    path = run(BPE + ["--append-eos", "--format", "llm.c"], lines, folder, out="y.bin")[2]
    check("llm.c", read(path, 1024) == flat and struct.unpack("<3i", open(path, "rb").read(12)) == (20240520, 1, len(flat)))
    path = run(BPE + ["--append-eos"], lines, folder, out="x.npy")[2]
    head = open(path, "rb").read(128)
    check("npy", read(path, 128) == flat and head[:8] == b"\x93NUMPY\1\0" and f"({len(flat)},)".encode() in head and head[-1:] == b"\n")
    run(BPE + ["--append-eos"], lines, folder, out="m.idx")
    idx = open(os.path.join(folder, "m.idx"), "rb").read()
    lengths = struct.unpack_from("<3i", idx, 34)
    check("megatron", idx[:9] == b"MMIDIDX\0\0" and struct.unpack_from("<QBQQ", idx, 9) == (1, 8, 3, 4) and lengths == tuple(map(len, want))
          and read(os.path.join(folder, "m.bin")) == flat
          and struct.unpack_from("<3q4q", idx, 46) == (0, 2 * lengths[0], 2 * sum(lengths[:2]), 0, 1, 2, 3))


def whole_texts(folder):
    text = "The cat sat on the mat.\n\nIs it dull?\n  No\nnot at all, é 漢字.\r\nEnd"
    whole = script.Tokenizer(os.path.join(HERE, "bpe"), False).hf.encode(text).ids
    eos = 0
    rows = lambda *args: [r["input_ids"] for r in rows_of(run(BPE + list(args), text, folder)[2])]
    check("rows of a text", sum(rows("--seq", "7"), []) == whole and all(len(r) == 7 for r in rows("--seq", "7")[:-1]))
    over = rows("--seq", "8", "--stride", "5")
    check("rows that overlap", all(r == whole[5 * i:5 * i + 8] for i, r in enumerate(over)) and over[-1][-1] == whole[-1] and len(over[-2]) == 8)
    check("end of text", sum(rows("--seq", str(len(whole)), "--append-eos"), []) == whole + [eos])
    script.PIECE, piece = 1, script.PIECE
    check("pieces give the tokens of the whole", sum(rows("--seq", "5"), []) == whole)
    script.PIECE = piece


def counts(folder):
    code, said, out = run(BPE + ["--max-length", "4"], [{"prompt": "The capital of France", "completion": " is Paris"}, {"prompt": "a", "completion": " dog"}], folder)
    check("cut rows are told, rows without anything to learn left out", code == 0 and len(rows_of(out)) == 1 and "left out: 1 rows in which" in said
          and "cut to --max-length 4: 1 rows" in said, said)
    code, said, out = run(["--tokenizer", "word", "--lowercase"], ["The cat 漢", "", "the dog"], folder)
    check("unknown tokens", code == 0 and "unknown tokens: 1 " in said and len(rows_of(out)) == 2, said)
    code, said, out = run(["--tokenizer", "word", "--lowercase", "--label-field", "y"],
                          [{"text": "a", "y": 0.5}, {"text": "b", "y": [1, None]}, {"text": "c", "y": None}], folder)
    check("numbers are kept", [r["labels"] for r in rows_of(out)] == [0.5, [1, None], None], said)
    code, said, out = run(["--tokenizer", "word", "--lowercase", "--no-special-tokens"], ["the cat"], folder)
    check("no special tokens", len(rows_of(out)[0]["input_ids"]) == 2)


REFUSED = [  # name, options, input, what is said
    ("no tokenizer", ["--tokenizer", "nowhere.json"], ["a"], "nowhere.json"),
    ("a folder without one", ["--tokenizer", "/"], ["a"], "neither tokenizer.json nor vocab.txt"),
    ("not JSON", BPE, ['{"text": "a"}', "{"], "input.jsonl:2: not JSON"),
    ("not an object", BPE, [[1]], "input.jsonl:1: not a JSON object"),
    ("NaN", BPE + ["--label-field", "y"], ['{"text": "a", "y": NaN}'], "input.jsonl:1: not JSON: NaN"),
    ("no field", BPE, [{"txt": "a"}], "input.jsonl:1: has no field 'text'; there are 'txt'"),
    ("not text", BPE, [{"text": 1}], "text is not text"),
    ("half a pair", BPE, ['{"text": "\\ud800"}'], "surrogate"),
    ("names without --labels", BPE + ["--label-field", "y"], [{"text": "a", "y": "good"}], "give --labels"),
    ("unknown name", BPE + ["--label-field", "y", "--labels", "good,bad"], [{"text": "a", "y": "ugly"}], 'y is "ugly", which is not among'),
    ("no label", BPE + ["--label-field", "y"], [{"text": "a"}], "has no field 'y'"),
    ("chat without template", BPE, [{"messages": [{"role": "user", "content": "a"}]}], "need --template"),
    ("turns", BPE + ["--template", "chatml"], [{"messages": [{"role": "user"}]}], "turn 1 has no role and content"),
    ("template without its tokens", ["--tokenizer", "word", "--template", "chatml"], [{"messages": []}], "no token '<|im_start|>'"),
    ("own template without a folder", ["--tokenizer", "bpe/tokenizer.json", "--template", "tokenizer"], [{"messages": []}], "must be a folder"),
    ("end of text unknown", ["--tokenizer", "bpe/tokenizer.json", "--append-eos"], ["a"], "give --append-eos TOKEN"),
    ("end of text that is none", BPE + ["--append-eos", "</s>"], ["a"], "no token '</s>'"),
    ("room", ["--tokenizer", "word", "--max-length", "2"], ["a"], "no room beside 2 special tokens"),
    ("stride", BPE + ["--stride", "3"], ["a"], "--seq only"),
    ("large stride", BPE + ["--seq", "2", "--stride", "3"], ["a"], "would be lost"),
    ("labels in tokens", BPE + ["--label-field", "y", "--format", "bin"], [{"text": "a", "y": 1}], "holds tokens only"),
    ("nothing", BPE, "", "no row is left"),
    ("bytes", BPE, b"a\nb\xff\n", "not UTF-8"),
    ("no tokenizer", ["--tokenizer", "nowhere"], ["a"], "nowhere: No such file"),
    ("unknown option", BPE + ["--colour"], ["a"], "--help lists all"),
]


def notes(folder):
    labelled = [{"text": "be dog", "label": 1}]
    code, said, _ = run(BPE, labelled, folder)
    check("a label that is left out", code == 0 and "'label', which is left out; to keep it: --label-field label" in said, said)
    code, said, _ = run(BPE + ["--label-field", "label"], labelled, folder)
    check("a label that is kept", code == 0 and "note" not in said, said)


def refusals(folder):
    for name, args, data, text in REFUSED:
        suffix = ".jsonl" if isinstance(data, list) and any(not isinstance(r, str) or r.startswith("{") for r in data) else ".txt"
        where = os.path.join(folder, "refused")
        code, said, _ = run(args, data, folder, suffix, "refused/rows.jsonl")
        check(name, code == 1 and text in said and "Traceback" not in said, code, said)
        check(name + ": nothing is left", not os.path.exists(where) or not os.listdir(where))
    pipe = os.path.join(folder, "pipe.jsonl")
    os.mkfifo(pipe)
    code, said, _ = run(BPE, ["a"], folder, out="pipe.jsonl")
    check("pipe", code == 1 and "is there and is not a file" in said and not os.path.isfile(pipe), code, said)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for part in goldens, formats, whole_texts, counts, notes, refusals:
            part(folder)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


sys.exit(main())
