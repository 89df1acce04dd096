#!/usr/bin/env python3
"""Makes ONNX files of full-size models whose weights are zeros in a sparse file, for efficc plan: a few MB on disk each.

    pip install torch transformers "optimum-onnx[onnxruntime]"
    make_shapes.py --out DIR NAME ..        writes DIR/NAME.onnx and DIR/NAME.onnx.data
    make_shapes.py --list

The graph of a decoder holds its heads as constants, but neither its width nor those of the feed-forward layers and of the
vocabulary: these stand in the shapes of weights alone. So a model with all its layers and heads, but with three small
widths that nothing else in it is, is exported by optimum as any model is; in its weights' shapes the small widths become
the true ones, and the weights a hole in a file of the right length.
"""
import argparse
import os
import struct
import tempfile

import onnx
import torch
from optimum.exporters.onnx import main_export
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

WIDTH, INNER, VOCAB = 40, 56, 72  # stand for hidden size, feed-forward size, vocabulary
ALIGN = 4096

# layers, width, heads, key heads, head size, feed-forward size, vocabulary, tied
SHAPES = {
    "qwen2.5-0.5b": (Qwen2Config, 24, 896, 14, 2, 64, 4864, 151936, True),
    "qwen2.5-1.5b": (Qwen2Config, 28, 1536, 12, 2, 128, 8960, 151936, True),
    "qwen2.5-3b": (Qwen2Config, 36, 2048, 16, 2, 128, 11008, 151936, True),
    "qwen2.5-7b": (Qwen2Config, 28, 3584, 28, 4, 128, 18944, 152064, False),
    "llama-3.2-1b": (LlamaConfig, 16, 2048, 32, 8, 64, 8192, 128256, True),
    "llama-3.1-8b": (LlamaConfig, 32, 4096, 32, 8, 128, 14336, 128256, False),
}


def export(shape, folder):
    """The small-width model as folder/model.onnx."""
    kind, layers, _, heads, kv_heads, head_dim, _, _, tied = shape
    config = kind(hidden_size=WIDTH, intermediate_size=INNER, vocab_size=VOCAB, num_hidden_layers=layers,
                  num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                  max_position_embeddings=8192, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(os.path.join(folder, "hf"))
    main_export(os.path.join(folder, "hf"), output=folder, do_validation=False, task="text-generation",
                library_name="transformers")
    return onnx.load(os.path.join(folder, "model.onnx"))


def tie(model):
    """The output layer's weight, if the exporter copied it, is the transposed table again."""
    weights = {tuple(w.dims): w for w in model.graph.initializer}
    copy, table = weights.get((WIDTH, VOCAB)), weights[VOCAB, WIDTH]
    if copy is None:
        return
    node = onnx.helper.make_node("Transpose", [table.name], [copy.name], perm=[1, 0])
    model.graph.initializer.remove(copy)
    model.graph.node.insert(0, node)


def widen(model, shape, data):
    """True widths in the shapes of weights and outputs; weights become holes of the file `data`. Returns its length and
    where weights begin."""
    true = {WIDTH: shape[2], INNER: shape[6], VOCAB: shape[7]}
    at, starts = 0, []
    for w in model.graph.initializer:
        if not set(w.dims) & set(true):
            continue
        assert w.data_type == onnx.TensorProto.FLOAT, w.name
        dims = [true.get(n, n) for n in w.dims]
        bytes = 4
        for n in dims:
            bytes *= n
        w.ClearField("raw_data")
        w.ClearField("float_data")
        w.dims[:] = dims
        w.data_location = onnx.TensorProto.EXTERNAL
        for key, value in ("location", data), ("offset", at), ("length", bytes):
            entry = w.external_data.add()
            entry.key, entry.value = key, str(value)
        starts.append(at)
        at += (bytes + ALIGN - 1) // ALIGN * ALIGN
    del model.graph.value_info[:]
    for v in model.graph.output:
        for d in v.type.tensor_type.shape.dim:
            if d.dim_value in true:
                d.dim_value = true[d.dim_value]
    return at, starts


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", choices=[[], *SHAPES])
    p.add_argument("--out", default=".")
    p.add_argument("--list", action="store_true", help="the names")
    a = p.parse_args()
    if a.list:
        print(*SHAPES)
    os.makedirs(a.out, exist_ok=True)
    for name in a.names:
        with tempfile.TemporaryDirectory() as tmp:
            model = export(SHAPES[name], tmp)
        if SHAPES[name][-1]:
            tie(model)
        length, starts = widen(model, SHAPES[name], name + ".onnx.data")
        onnx.save(model, os.path.join(a.out, name + ".onnx"))
        with open(os.path.join(a.out, name + ".onnx.data"), "wb") as f:
            f.truncate(length)
            for at in starts:  # a square of zeros only would be read to its end, in search of a mask
                f.seek(at)
                f.write(struct.pack("<f", 1.0))
        print(os.path.join(a.out, name + ".onnx"), "weights of %.1f GB" % (length / 1e9))


if __name__ == "__main__":
    main()
