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

def safetensors(tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)"""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


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
    put("safetensors", "empty", safetensors({}))


def adapters():
    """The two programs of adapter_fuzz.c."""
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "use_dora": False,
              "alpha_pattern": {}, "rank_pattern": {}, "fan_in_fan_out": False, "target_modules": ["query", "value"],
              "modules_to_save": ["classifier"], "init_lora_weights": True, "base_model_name_or_path": None, "task_type": "SEQ_CLS"}
    base = "base_model.model."
    whole = {base + f"l.0.{m}.lora_{ab}.weight": floats(*shape)
             for m in ("query", "value") for ab, shape in (("A", (2, 3)), ("B", (4, 2)))}
    whole[base + "classifier.weight"] = floats(2, 3)
    whole[base + "classifier.bias"] = floats(2)
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


def main():
    for old in glob.glob(os.path.join(HERE, "corpus", "*", "*")):
        if not os.path.basename(old).startswith("found-"):
            os.remove(old)
    operators()
    for name in MODELS:
        put("importer", name + ".onnx", small(onnx.load(os.path.join(TESTS, "cases", name, "model.onnx"))))
    tensor_files()
    adapters()


if __name__ == "__main__":
    main()
