#!/usr/bin/env python3
"""Writes data/*.nodes: ONNX's own tests of operators, for those that efficc claims (frontend/onnx_ops.def).

    python make_nodes.py [--testdata DIR]     needs onnx 1.23.2 (its case generator) and onnxruntime; DIR: Debian's
                                              libonnx-testdata, for the forms of operators up to opset 17

ONNX has no tests of com.microsoft's operators: the rows of tests/golden/import/ops.rows that use them or SimplifiedLayerNormalization,
which is in no standard, with what onnxruntime computes, stand in for them. A file a kind of test (operator, or `expanded`: the bodies of operators that are functions); it holds one ModelProto a test, each behind
its length (4 bytes, little-endian). Inputs of the test are initializers of the model, results have "want." before their name; those
without elements, which are no initializers, are inputs of the graph. A further input makes efficc's loader believe that there are tokens.
The model's producer_version is the tolerance, relative and absolute. Left out, and counted: element types that efficc does not know
(strings, 4 and 8 bit floats, ..), sequences and optionals, tests whose results are random, and what is larger than LARGEST bytes.
"""
import argparse
import collections
import glob
import os
import re
import struct
import sys
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
LARGEST, LARGEST_EXPANDED = 30000, 8000
KNOWN = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT64, TensorProto.INT32,
         TensorProto.INT16, TensorProto.INT8, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.BOOL}


def claimed():
    """{(domain, operator): [(since, until)]}"""
    rows = collections.defaultdict(list)
    with open(os.path.join(HERE, "../../frontend/onnx_ops.def")) as f:
        for m in re.finditer(r'^ONNX\((\w+), "([\w.]*)", (\d+), (\d+),', f.read(), re.M):
            rows[m[2], m[1]].append((int(m[3]), int(m[4]) or 99))
    return rows


def nodes_of(graph):
    for n in graph.node:
        yield n
        for a in n.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from nodes_of(a.g)


def is_claimed(model, rows):
    opset = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    return opset.get("", 99) >= 7 and all(any(a <= opset.get(n.domain, 1) <= b for a, b in rows.get((n.domain, n.op_type), []))
                                          for n in nodes_of(model.graph))


def tensors(values, infos):
    """TensorProtos with the names of the graph, or None if one is of another kind."""
    out = []
    for v, info in zip(values, infos):
        if isinstance(v, np.ndarray) or np.isscalar(v):
            v = numpy_helper.from_array(np.asarray(v))
        if not isinstance(v, TensorProto):
            return None
        t = TensorProto()
        t.CopyFrom(v)
        elem = info.type.tensor_type.elem_type
        if elem == TensorProto.BFLOAT16 and t.data_type == TensorProto.UINT16:  # as old versions of onnx stored them
            t.data_type = elem
        if t.data_type != elem or t.data_type not in KNOWN:
            return None
        t.name = info.name
        out.append(t)
    return out


def packed(name, model, inputs, outputs, tolerance):
    """The model with its data, or why it is left out."""
    for value in list(model.graph.input) + list(model.graph.output):
        if not value.type.HasField("tensor_type"):
            return "kind"
    ins = tensors(inputs, [i for i in model.graph.input])
    outs = tensors(outputs, model.graph.output)
    if ins is None or outs is None or len(outs) < len(model.graph.output):
        return "type"
    if "training_dropout" in name and "zero_ratio" not in name:
        return "random"
    m = onnx.ModelProto()
    m.CopyFrom(model)
    m.producer_name, m.producer_version, m.doc_string, m.graph.doc_string = name, tolerance, "", ""
    del m.graph.input[:]
    for t in ins:
        add(m.graph, t)
    for t in outs:
        t.name = "want." + t.name
        add(m.graph, t)
    m.graph.input.append(helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, 1]))
    return m.SerializeToString()


def add(graph, t):
    if 0 in t.dims:
        graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    else:
        graph.initializer.append(t)


def generated():
    from onnx.backend.test.case.node import collect_testcases
    for c in collect_testcases(None):
        if c.model is not None:
            inputs, outputs = c.data_sets[0]
            yield c.name, c.model, list(inputs), list(outputs), f"{c.rtol:g} {c.atol:g}"


def read(path, info):
    t = TensorProto()
    with open(path, "rb") as f:
        data = f.read()
    if info.type.HasField("tensor_type"):
        t.ParseFromString(data)
    return t


def installed(folder):
    for path in sorted(glob.glob(os.path.join(folder, "node/*/model.onnx"))):
        where = os.path.dirname(path)
        model = onnx.load(path)
        data = [[read(os.path.join(where, f"test_data_set_0/{kind}_{i}.pb"), info) for i, info in enumerate(infos)
                 if os.path.exists(os.path.join(where, f"test_data_set_0/{kind}_{i}.pb"))]
                for kind, infos in (("input", model.graph.input), ("output", model.graph.output))]
        yield os.path.basename(where), model, data[0], data[1], "0.001 1e-07"


def is_other(node):
    return node.domain == "com.microsoft" or node.op_type == "SimplifiedLayerNormalization"


def of_microsoft():
    sys.path.insert(0, os.path.join(HERE, "../golden/import"))
    import make_ops
    for line in open(os.path.join(HERE, "../golden/import/ops.rows")):
        if line.startswith("#") or not line.strip():
            continue
        name, opsets, text = (part.strip() for part in line.split(" ; "))
        model = make_ops.model(text, int(opsets.split()[0]))
        if any(is_other(n) for n in model.graph.node):
            y = make_ops.run(text, int(opsets.split()[0]))
            yield "microsoft " + name, model, [make_ops.IDS, make_ops.MASK], [y], "0.0001 1e-06"


def opset(model):
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--testdata", default="/usr/share/libonnx-testdata/data")
    a = p.parse_args()
    rows, files, left, seen = claimed(), collections.defaultdict(list), collections.Counter(), {}
    for source in (generated(), installed(a.testdata), of_microsoft()):
        for name, model, inputs, outputs, tolerance in source:
            if not is_claimed(model, rows):
                continue
            if seen.get(name) == opset(model):
                continue
            data = packed(name if name not in seen else f"{name}@{opset(model)}", model, inputs, outputs, tolerance)
            ops = {n.op_type for n in model.graph.node}
            other = [n.op_type for n in model.graph.node if is_other(n)]
            kind = f"com.microsoft.{other[0]}" if other else "expanded" if "_expanded" in name or len(ops) > 1 else ops.pop()
            if isinstance(data, str):
                left[data] += 1
            elif len(data) > (LARGEST_EXPANDED if kind == "expanded" else LARGEST):
                left["size"] += 1
            else:
                seen.setdefault(name, opset(model))
                files[kind].append((name, data))
    os.makedirs(os.path.join(HERE, "data"), exist_ok=True)
    for old in glob.glob(os.path.join(HERE, "data/*.nodes")):
        os.remove(old)
    for kind, tests in files.items():
        with open(os.path.join(HERE, f"data/{kind}.nodes"), "wb") as f:
            for _, data in sorted(tests, key=lambda t: t[0]):
                f.write(struct.pack("<I", len(data)) + data)
    print(f"{sum(len(t) for t in files.values())} tests of {len(files)} kinds; left out: {dict(left)}")


if __name__ == "__main__":
    main()
