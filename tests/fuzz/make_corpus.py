#!/usr/bin/env python3
"""Makes the first inputs of the fuzz targets, corpus/<target>/, from the files of tests/. Needs onnx and onnxruntime.

    python make_corpus.py

Models lose their weights, which lie in a file of noise that the target makes, and the long names of their inner tensors. Inputs that
found a fault once are called found-*, and stay.
"""
import glob
import json
import os
import re
import struct
import sys

import onnx

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(TESTS, "golden", "import"))
import make_ops  # noqa: E402  (reads the text of ops.rows)

KEEP = 64  # bytes of a tensor that stay in the file
NOISE = 1 << 18  # of the weights' file, as in importer_fuzz.c
MODELS = ["bert-legacy17-dedup", "gpt2-optimum"]


def put(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)


# ---- models ----

def strip_weights(model):
    at = 0
    for t in model.graph.initializer:
        t.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t), t.name))
        n = len(t.raw_data)
        if n <= KEEP:
            continue
        t.ClearField("raw_data")
        t.data_location = onnx.TensorProto.EXTERNAL
        at = 0 if at + n > NOISE else at
        for key, value in ("location", "w"), ("offset", at), ("length", n):
            t.external_data.add(key=key, value=str(value))
        at += n


def shorten(model):
    kept = {t.name for part in (model.graph.input, model.graph.output, model.graph.initializer) for t in part}
    short = {}
    name = lambda old: old if old in kept or not old else short.setdefault(old, f"t{len(short)}")
    for node in model.graph.node:
        node.doc_string = ""
        node.input[:] = [name(i) for i in node.input]
        node.output[:] = [name(o) for o in node.output]


def small(model):
    strip_weights(model)
    shorten(model)
    return model.SerializeToString()


def operators():
    """Of ops.rows the first row of every operator, and all rows with an If."""
    seen = set()
    with open(os.path.join(TESTS, "golden", "import", "ops.rows")) as f:
        rows = [line.split(" ; ") for line in f if " ; " in line and not line.startswith("#")]
    for name, opsets, text in rows:
        op = name.split()[0]
        if op in seen and "{" not in text:
            continue
        seen.add(op)
        model = make_ops.model(text, int(opsets.split()[0]))
        put("importer", re.sub(r"\W+", "-", name) + ".onnx", small(model))


# ---- tensors ----

def safetensors(tensors, metadata=None, raw=False):
    """tensors: name -> (dtype, shape, bytes). Unless raw, the frame of fuzz.h: header, zero byte, data."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    head = struct.pack("<Q", len(text)) + text if raw else text + b"\0"
    return head + b"".join(data for _, _, data in tensors.values())


def floats(*shape):
    n = 1
    for d in shape:
        n *= d
    return "F32", list(shape), struct.pack(f"<{n}f", *((7919 * i % 101 - 50) / 32 for i in range(n)))


def tensor_files():
    one = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "U64": 8}
    put("safetensors", "types", safetensors({k: (k, [1, 2], bytes(range(2 * n))) for k, n in one.items()}, {"format": "pt"}))
    put("safetensors", "matrix", safetensors({"a.weight": floats(3, 4), "a.bias": floats(3)}))
    put("safetensors", "scalar", safetensors({"x": floats(), "none": ("F32", [0, 5], b"")}))
    put("safetensors", "dimensions", safetensors({"x": floats(*[1] * 8)}))
    put("safetensors", "empty", safetensors({}, raw=True))
    put("safetensors", "raw", safetensors({"a.weight": floats(3, 4), "a.bias": floats(3)}, raw=True))


def adapters():
    """The two programs of adapter_fuzz.c."""
    with open(os.path.join(TESTS, "cases", "bert-legacy17", "adapter-init", "adapter_config.json")) as f:
        config = {**json.load(f), "r": 2, "lora_alpha": 2, "modules_to_save": ["classifier"]}
    base = "base_model.model."
    whole = {base + f"l.0.{m}.lora_{ab}.weight": floats(*shape)
             for m in ("query", "value") for ab, shape in (("A", (2, 3)), ("B", (4, 2)))}
    whole[base + "classifier.weight"] = floats(2, 3)
    frame = lambda c, t: json.dumps(c).encode() + b"\0" + safetensors(t, {"format": "pt"})
    put("adapter", "whole", frame(config, whole))
    put("adapter", "rslora", frame({**config, "use_rslora": True, "lora_alpha": 2 ** 0.5 * 2 / 2}, whole))
    put("adapter", "patterns", frame({**config, "alpha_pattern": {"l.0.query": 2}, "rank_pattern": {"query": 2}}, whole))
    put("adapter", "dora", frame({**config, "use_dora": True}, whole))
    rows = {base + "h.0.c_attn.lora_A.weight": floats(4, 3),
            base + "h.0.c_attn.lora_B.weight": ("F32", [6, 4], b"".join(
                struct.pack("<4f", *(x if row // 2 == 0 else 0 for x in (1, 2)), *(x if row // 2 == 2 else 0 for x in (3, 4)))
                for row in range(6)))}
    put("adapter", "rows", frame({**config, "r": 4, "lora_alpha": 4, "fan_in_fan_out": True, "target_modules": ["c_attn"],
                                  "modules_to_save": None, "task_type": "CAUSAL_LM"}, rows))


# ---- data: format, kind of rows, length of the first file; see data_fuzz.c ----

def npy(dtype, shape, data):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\1\0" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n" + data


def data_files():
    def file(name, kind, spec, first, second=b""):
        put("data", name, struct.pack("<BBH", kind, spec, len(first)) + first + second)

    lines = lambda *rows: "".join(json.dumps(r) + "\n" for r in rows).encode()
    ids = struct.pack("<12H", *range(3, 15))
    token, row, values, causal, seq, limit = 1, 2, 3, 4, 8, 0x80
    file("jsonl-causal", 0, token | causal | seq | limit, lines({"input_ids": [5, 17, 9]}, {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}))
    file("jsonl-classes", 0, row | seq | limit, lines({"input_ids": [1, 2], "labels": 1}, {"input_ids": [3], "label": -100, "other": [{"a": None}]}))
    file("jsonl-values", 0, values, lines({"input_ids": [1, 2], "labels": [0.5, None]}, {"input_ids": [3], "labels": [1e-3, -2]}))
    file("jsonl-fields", 0, token, lines({"input_ids": [1, 2], "attention_mask": [0, 1], "token_type_ids": [0, 1], "position_ids": [0, 0],
                                          "labels": [-100, 1], "text": "\u00e9\n\ud83d\ude42 漢"}))
    file("npy-stream", 1, token | causal | seq, npy("<u2", (12,), ids))
    file("npy-rows", 1, row, npy("<u2", (3, 4), ids), npy("<i4", (3,), struct.pack("<3i", 0, 2, -100)))
    file("npy-values", 1, values, npy("|u1", (3, 2), bytes(range(6))), npy("<f4", (3, 2), struct.pack("<6f", *range(6))))
    file("npy-tokens", 1, token, npy("<i8", (2, 2), struct.pack("<4q", *range(4))), npy("<i8", (2, 2), struct.pack("<4q", -100, 1, 2, 3)))
    file("nanogpt", 2, token | causal | seq, ids)
    file("llmc-1", 2, token | causal | seq, struct.pack("<3i", 20240520, 1, 12) + bytes(1012) + ids)
    file("llmc-7", 2, token | causal | seq, struct.pack("<3i", 20240801, 7, 3) + bytes(1012) + struct.pack("<3I", 7, 8, 9))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4) + struct.pack("<3i3q4q", 2, 7, 3, 0, 4, 18, 0, 1, 2, 3)
    file("megatron", 3, token | causal | seq, index, ids)


def manifests():
    """What rt_manifest_text() writes, without its last line."""
    table = lambda name, word: re.findall(word + r"\((\w+), (\w+)", open(os.path.join(TESTS, "..", "runtime", "host", name)).read())
    state = {k: 3 if t == "int64_t" else "0.5" for k, t in table("state.def", "STATE")}
    text = json.dumps({"format": 2, "efficc": "0.1.0", "program": "0123456789abcdef", "same": {k: "x" for k, _ in table("checkpoint.def", "SAME")},
                       "options": {"learning_rate": 1e-3}, "state": {**state, "norm": ["0.25", "inf", "nan(0x8000000000000)", "-0"] * 16},
                       "files": [{"name": "weights.safetensors", "bytes": 100, "xxh3": "0123456789abcdef"},
                                 {"name": "optimizer.safetensors", "bytes": 200, "xxh3": "fedcba9876543210"}]})
    put("manifest", "whole", (text[:-1] + ",\n").encode())


def main():
    for old in glob.glob(os.path.join(HERE, "corpus", "*", "*")):
        if not os.path.basename(old).startswith("found-"):
            os.remove(old)
    operators()
    for name in MODELS:
        put("importer", name + ".onnx", small(onnx.load(os.path.join(TESTS, "cases", name, "model.onnx"))))
    tensor_files()
    adapters()
    data_files()
    manifests()


if __name__ == "__main__":
    main()
