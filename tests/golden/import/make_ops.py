#!/usr/bin/env python3
"""Writes ops.want: what onnxruntime computes for the rows of ops.rows.  Needs onnx and onnxruntime.

    python make_ops.py            a line a row and opset: NAME ; OPSET ; DIMS ; VALUES, or "=" if as the line before
The text of models is described in tests/import/model.h.
"""
import os
import re

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "bool": np.bool_, "u8": np.uint8, "i8": np.int8}
BASE = ("emb.weight = f32[16,4] ~1 | pos.weight = f32[16,4] ^2 | x = Gather(emb.weight, ids) | "
        "p = Gather(pos.weight, ids) | xb = Cast(mask) to=9 | ")
IDS = np.array([[1, 15, 7], [3, 0, 9]])
MASK = np.array([[1, 1, 0], [1, 0, 1]])


def formula(n, seed, positive):
    x = ((np.arange(n) * 7919 + seed * 104729) % 101 - 50) / 32
    return np.abs(x) + 0.5 if positive else x


class Text:
    def __init__(self, text):
        self.rest = text.lstrip()

    def take(self, mark):
        if not self.rest.startswith(mark):
            return False
        self.rest = self.rest[len(mark):].lstrip()
        return True

    def word(self, stop):
        m = re.match(f"[^{re.escape(stop)}]*", self.rest)
        self.rest = self.rest[m.end():]
        return m.group().strip()

    def tensor(self, name):
        kind = self.word("[")
        self.take("[")
        dims = [int(d) for d in self.word("]").split(",") if d]
        self.take("]")
        n = int(np.prod(dims))
        if self.rest[:1] in "~^" and self.rest:
            positive = self.rest[0] == "^"
            self.rest = self.rest[1:]
            m = re.match(r"\d+", self.rest)
            self.rest = self.rest[m.end():].lstrip()
            values = formula(n, int(m.group()), positive)
        else:
            words = []
            for _ in range(n):
                m = re.match(r"\S+?(?=[\s>}|]|$)", self.rest)
                words.append(m.group())
                self.rest = self.rest[m.end():].lstrip()
            values = [float(w) if kind == "f32" else int(w) for w in words]
        return numpy_helper.from_array(np.array(values).astype(TYPES[kind]).reshape(dims), name)

    def attribute(self):
        name = self.word("=")
        self.take("=")
        number = lambda w: float(w) if re.search("[.e]", w) else int(w)
        if self.take("["):
            value = [number(w) for w in self.word("]").split(",")]
            self.take("]")
        elif self.take("{"):
            nodes, tensors = self.statements()
            self.take("->")
            out = self.word("}")
            self.take("}")
            value = helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)], tensors)
        elif self.take("<"):
            value = self.tensor("")
            self.take(">")
        elif self.take('"'):
            value = self.word('"')
            self.take('"')
        else:
            value = number(self.word(" |}"))
            self.rest = self.rest.lstrip()
        return name, value

    def statements(self):
        nodes, tensors = [], []
        while True:
            head = self.word("=")
            self.take("=")
            name, _, outs = head.rpartition(": ")
            if re.match(r"\w+\[", self.rest):
                tensors.append(self.tensor(outs))
            else:
                op = self.word("(")
                self.take("(")
                ins = [i.strip() for i in self.word(")").split(",")]
                self.take(")")
                attrs = {}
                while self.rest and self.rest[0] not in "|}" and not self.rest.startswith("->"):
                    k, v = self.attribute()
                    attrs[k] = v
                domain, _, op = op.rpartition("::")
                nodes.append(helper.make_node(op, ins if ins != [""] else [], [o.strip() for o in outs.split(",")], name or None, domain=domain or None, **attrs))
            if not self.take("|"):
                return nodes, tensors


def model(text, opset):
    nodes, tensors = Text(BASE + text).statements()
    nodes.append(helper.make_node("Cast", [nodes[-1].output[0]], ["out"], to=TensorProto.FLOAT))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "ops", [info("ids", TensorProto.INT64, ["b", "s"]), info("mask", TensorProto.INT64, ["b", "s"])],
                              [info("out", TensorProto.FLOAT, None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=8)


def run(text, opset):
    return onnxruntime.InferenceSession(model(text, opset).SerializeToString()).run(None, {"ids": IDS, "mask": MASK})[0]


def main():
    with open(os.path.join(HERE, "ops.rows")) as f, open(os.path.join(HERE, "ops.want"), "w") as g:
        for line in f:
            if line.startswith("#") or not line.strip():
                continue
            name, opsets, text = (part.strip() for part in line.split(" ; "))
            last = None
            for opset in opsets.split():
                y = run(text, int(opset))
                values = f"{','.join(str(d) for d in y.shape)} ; {' '.join(f'{v:.7g}' for v in y.ravel())}"
                g.write(f"{name} ; {opset} ; {'=' if values == last else values}\n")
                last = values


if __name__ == "__main__":
    main()
