"""The files that tokenize.py writes.

A format has row(ids, labels, types), once a row, and finish(); labels that are NO_LABELS are not written, nor types that are None. Layouts: see
runtime/host/data_bin.c and data_npy.c, which read them.
"""
import array
import json
import os
import re
import struct
import sys

NO_LABELS = ()


class Problem(Exception):
    """Something that the user can mend."""


class Output:
    """Files that appear whole at close(), or not at all."""

    def __init__(self, paths):
        self.paths = paths
        self.files = []
        for path in paths:
            folder = os.path.dirname(path)
            if os.path.exists(path) and not os.path.isfile(path):  # a device would be replaced
                self.drop()
                raise Problem(f"{path} is there and is not a file")
            try:
                if folder:
                    os.makedirs(folder, exist_ok=True)
                self.files.append(open(f"{path}.tmp-{os.getpid()}", "wb"))
            except OSError as e:
                self.drop()
                raise Problem(f"{path}: {e.strerror}") from None

    def drop(self):
        for f in self.files:
            f.close()
            if os.path.exists(f.name):
                os.remove(f.name)

    def close(self):
        for f in self.files:
            f.flush()
            os.fsync(f.fileno())
            f.close()
        for f, path in zip(self.files, self.paths):
            os.replace(f.name, path)


class Jsonl:
    def __init__(self, path, _):
        self.out = Output([path])

    def row(self, ids, labels, types):
        row = {"input_ids": ids}
        if types:
            row["token_type_ids"] = types
        if labels != NO_LABELS:
            row["labels"] = labels
        self.out.files[0].write(json.dumps(row).encode() + b"\n")

    def finish(self):
        pass


class Tokens:
    """Formats that hold tokens only; as it stands nanoGPT's, uint16 and nothing else."""
    name = "bin"

    def __init__(self, path, vocab):
        self.wide = vocab > 1 << 16
        if self.wide and self.name == "bin":
            raise Problem(f"nanoGPT's .bin holds ids below 65536, but the tokenizer has {vocab}: --format llm.c")
        self.out = Output(self.paths(path))
        self.n = 0

    def paths(self, path):
        return [path]

    def row(self, ids, labels, types):
        if labels != NO_LABELS or types:
            raise Problem(f"format {self.name} holds tokens only, no labels and no masked prompts: write .jsonl")
        data = array.array("I" if self.wide else "H", ids)
        if sys.byteorder == "big":
            data.byteswap()
        data.tofile(self.out.files[0])
        self.n += len(ids)

    def finish(self):
        pass


class Npy(Tokens):
    """NumPy's: a header of 128 bytes, then one stream of tokens."""
    name = "npy"

    def header(self):
        text = f"{{'descr': '<u{4 if self.wide else 2}', 'fortran_order': False, 'shape': ({self.n},), }}"
        return b"\x93NUMPY\1\0" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n"

    def __init__(self, path, vocab):
        super().__init__(path, vocab)
        self.out.files[0].write(self.header())

    def finish(self):
        self.out.files[0].seek(0)
        self.out.files[0].write(self.header())


class Llmc(Tokens):
    """llm.c: 256 int32, of them magic, version and number of tokens; then the tokens."""
    name = "llm.c"

    def __init__(self, path, vocab):
        super().__init__(path, vocab)
        self.out.files[0].write(bytes(1024))

    def finish(self):
        magic, version = (20240801, 7) if self.wide else (20240520, 1)
        if self.n >= 1 << 31:
            raise Problem("format llm.c counts tokens in 31 bits: write several files")
        self.out.files[0].seek(0)
        self.out.files[0].write(struct.pack("<3i", magic, version, self.n))


class Megatron(Tokens):
    """Megatron-LM: .bin with the tokens, .idx with type, lengths, places and documents; a row is a document."""
    name = "megatron"

    def __init__(self, path, vocab):
        self.lengths = array.array("i")
        super().__init__(path, vocab)

    def paths(self, path):
        stem = re.sub(r"\.(bin|idx)$", "", path)
        return [stem + ".bin", stem + ".idx"]

    def row(self, ids, labels, types):
        super().row(ids, labels, types)
        self.lengths.append(len(ids))

    def finish(self):
        size, n = (4 if self.wide else 2), len(self.lengths)
        f = self.out.files[1]
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4 if self.wide else 8, n, n + 1))
        f.write(struct.pack(f"<{n}i", *self.lengths))
        at = 0
        for length in self.lengths:
            f.write(struct.pack("<q", at))
            at += length * size
        f.write(struct.pack(f"<{n + 1}q", *range(n + 1)))


FORMATS = {"jsonl": Jsonl, "npy": Npy, "bin": Tokens, "llm.c": Llmc, "megatron": Megatron}


def format_of(path, name):
    """The class of the format that is named, or that the path's ending means."""
    if name:
        return FORMATS[name]
    suffix = os.path.splitext(path)[1]
    known = {".jsonl": Jsonl, ".npy": Npy, ".bin": Tokens, ".idx": Megatron}
    if suffix not in known:
        raise Problem(f"{path}: the name ends in none of {', '.join(known)}, so give --format {'|'.join(FORMATS)}")
    return known[suffix]
