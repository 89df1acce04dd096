#!/usr/bin/env python3
"""Makes graphs.tar.xz: the graphs of full-size models as optimum exports them, without their weights, for tests/gpu/run.sh.

    pip install torch transformers "optimum-onnx[onnxruntime]"
    make_graphs.py [NAME=MODEL.onnx ..]        exports what is not given

Weights are named as parts of a file NAME.onnx.data, which tests/gpu/fill.c makes.
"""
import os
import sys
import tarfile
import tempfile

import onnx
import torch
from optimum.exporters.onnx import main_export
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, DistilBertConfig, GPT2Config

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "bench"))
import make_shapes  # noqa: E402

LEAST = 1024  # bytes of a tensor that is left out


def export(name, folder):
    torch.manual_seed(0)
    if name == "gpt2":
        model = AutoModelForCausalLM.from_config(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
        task = "text-generation"
    else:
        model = AutoModelForSequenceClassification.from_config(
            DistilBertConfig(dropout=0, attention_dropout=0, seq_classif_dropout=0))
        task = "text-classification"
    model.save_pretrained(os.path.join(folder, "hf"))
    main_export(os.path.join(folder, "hf"), output=folder, do_validation=False, task=task, library_name="transformers")
    return onnx.load(os.path.join(folder, "model.onnx"))


def strip(model, data):
    """Floating-point weights become parts of the file `data`."""
    at = 0
    for w in model.graph.initializer:
        bytes = 4
        for n in w.dims:
            bytes *= n
        if w.data_type != onnx.TensorProto.FLOAT or bytes < LEAST:
            continue
        w.ClearField("raw_data")
        w.ClearField("float_data")
        w.data_location = onnx.TensorProto.EXTERNAL
        for key, value in ("location", data), ("offset", at), ("length", bytes):
            entry = w.external_data.add()
            entry.key, entry.value = key, str(value)
        at += (bytes + make_shapes.ALIGN - 1) // make_shapes.ALIGN * make_shapes.ALIGN


def llama(name, folder):
    shape = make_shapes.SHAPES[name]
    model = make_shapes.export(shape, folder)
    make_shapes.tie(model)
    make_shapes.widen(model, shape, name + ".onnx.data")
    return model


def main():
    given = dict(a.split("=") for a in sys.argv[1:])
    with tempfile.TemporaryDirectory() as tmp, tarfile.open(os.path.join(here, "graphs.tar.xz"), "w:xz", preset=9) as tar:
        for name in "gpt2", "distilbert", "llama-3.2-1b":
            folder = os.path.join(tmp, name)
            os.makedirs(folder)
            if name in given:
                model = onnx.load(given[name], load_external_data=False)
            else:
                model = llama(name, folder) if name.startswith("llama") else export(name, folder)
            if not name.startswith("llama"):
                strip(model, name + ".onnx.data")
            path = os.path.join(folder, name + ".onnx")
            onnx.save(model, path)
            info = tar.gettarinfo(path, name + ".onnx")
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = ""
            with open(path, "rb") as f:
                tar.addfile(info, f)


if __name__ == "__main__":
    main()
