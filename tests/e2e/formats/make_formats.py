"""Writes the same rows in every format that trainers read, beside this script.

rows.jsonl      12 rows of 16 ids below 160; the same as one stream in stream.npy, nanogpt.bin, llmc1.bin, llmc7.bin,
                as an array in rows.npy (int64), and as one Megatron document in document.bin/.idx
ragged.jsonl    rows of 3 to 16 ids; the same as Megatron sequences in ragged.bin/.idx (uint16), two of which were longer
masked.jsonl    rows of 16 with attention_mask and labels; the same in masked.npy and the files beside it

    python make_formats.py
"""
import json
import os
import struct

import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
SEQ, ROWS, VOCAB = 16, 12, 160


def path(name):
    return os.path.join(here, name)


def jsonl(name, rows):
    with open(path(name), "w") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")


def megatron(name, sequences, dtype, code):
    with open(path(name + ".bin"), "wb") as f:
        for s in sequences:
            f.write(np.asarray(s, dtype).tobytes())
    lengths = np.array([len(s) for s in sequences], "<i4")
    size = np.dtype(dtype).itemsize
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * size
    documents = np.arange(len(sequences) + 1, dtype="<i8")
    with open(path(name + ".idx"), "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(documents)))
        f.write(lengths.tobytes() + pointers.astype("<i8").tobytes() + documents.tobytes())


def llmc(name, magic, version, ids, dtype):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(ids)
    with open(path(name), "wb") as f:
        f.write(header.tobytes() + np.asarray(ids, dtype).tobytes())


rng = np.random.default_rng(7)
ids = rng.integers(0, VOCAB, (ROWS, SEQ))
flat = ids.reshape(-1)
jsonl("rows.jsonl", [{"input_ids": r.tolist()} for r in ids])
np.save(path("rows.npy"), ids.astype("<i8"))
np.save(path("stream.npy"), flat.astype("<u2"))
flat.astype("<u2").tofile(path("nanogpt.bin"))
llmc("llmc1.bin", 20240520, 1, flat, "<u2")
llmc("llmc7.bin", 20240801, 7, flat, "<u4")
megatron("document", [flat], "<i4", 4)

sequences = [rng.integers(0, VOCAB, n).tolist() for n in (16, 3, 40, 9, 16, 21, 5, 12)]
pieces = [s[i:i + SEQ] for s in sequences for i in range(0, len(s), SEQ)]
jsonl("ragged.jsonl", [{"input_ids": p} for p in pieces])
megatron("ragged", sequences, "<u2", 8)

length = rng.integers(5, SEQ + 1, ROWS)
mask = (np.arange(SEQ) < length[:, None]).astype("u1")
labels = np.where(mask & (rng.random((ROWS, SEQ)) < 0.7), ids, -100)
jsonl("masked.jsonl", [{"input_ids": i.tolist(), "attention_mask": m.tolist(), "labels": t.tolist()}
                       for i, m, t in zip(ids, mask, labels)])
np.save(path("masked.npy"), ids.astype("<u4"))
np.save(path("masked.attention_mask.npy"), mask.astype("?"))
np.save(path("masked.labels.npy"), labels.astype("<i2"))
