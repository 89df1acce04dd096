#!/usr/bin/env python3
"""Turns text into data for a trainer: tokens, labels, and -100 where nothing is to be learnt.

Needs Python 3.8 and Hugging Face's tokenizers (pip install tokenizers); no PyTorch, no transformers.

    tokenize.py corpus.txt --tokenizer gpt2/ --seq 1024 -o train.bin
        the whole file as one text, cut into rows of 1024 tokens
    tokenize.py lines.txt --tokenizer tokenizer.json --append-eos --max-length 512 -o train.jsonl
        a row a line
    tokenize.py reviews.jsonl --tokenizer vocab.txt --lowercase --label-field label --labels bad,good -o train.jsonl
        classification: {"text": "..", "label": "good"}; --text-pair-field for pairs
    tokenize.py tasks.jsonl --tokenizer gpt2/ --append-eos -o train.jsonl
        {"prompt": "..", "completion": ".."}: the prompt is not learnt
    tokenize.py chats.jsonl --tokenizer qwen/ --template chatml -o train.jsonl
        {"messages": [{"role": "user", "content": ".."}, ..]}: only the assistant's turns are learnt

Files that end in .jsonl or .json hold an object a line, others are text. What a JSON row is follows from the fields that are named, else
from the keys of the first one: messages, prompt and completion, or text.
"""
import os
import sys

# Python has a module of this file's name, which others import: this folder comes last.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != HERE] + [HERE]

import argparse  # noqa: E402
import array  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402

from tokenize_chat import TEMPLATES, template_of  # noqa: E402
from tokenize_out import FORMATS, NO_LABELS, Problem, format_of  # noqa: E402

IGNORE = -100
PIECE = 1 << 20  # characters of a long text that are encoded at a time
BATCH = 512  # rows


# ---- the tokenizer ----

def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise Problem(f"{path}: {e}") from None


def token_text(entry):
    """Special tokens stand in configurations as text or as {"content": text}."""
    return entry.get("content") if isinstance(entry, dict) else entry


class Tokenizer:
    """A tokenizer.json, a vocab.txt, or a folder that holds one of them and says more."""

    def __init__(self, path, lowercase):
        try:
            import tokenizers
        except ImportError:
            raise Problem("Python's package tokenizers is missing: pip install tokenizers") from None
        self.folder = path if os.path.isdir(path) else None
        file = self.file_of(path)
        self.config = read_json(os.path.join(path, "tokenizer_config.json")) if self.folder else {}
        self.special = read_json(os.path.join(path, "special_tokens_map.json")) if self.folder else {}
        try:
            if file.endswith(".json"):
                if lowercase:
                    raise Problem("--lowercase is for a vocab.txt; a tokenizer.json says itself what it does")
                self.hf = tokenizers.Tokenizer.from_file(file)
            else:
                lower = lowercase or bool(self.config.get("do_lower_case"))
                self.hf = tokenizers.BertWordPieceTokenizer(file, lowercase=lower)
        except Problem:
            raise
        except Exception as e:  # the library's own errors have no common type
            raise Problem(f"{file}: {e}") from None
        self.path = file
        self.hf.no_padding()
        self.hf.no_truncation()
        self.ids = self.hf.get_vocab()
        self.size = max(self.ids.values(), default=-1) + 1
        if not self.size:
            raise Problem(f"{file} has no tokens")

    @staticmethod
    def file_of(path):
        if not os.path.exists(path):
            raise Problem(f"{path}: No such file or directory")
        if not os.path.isdir(path):
            return path
        for name in ("tokenizer.json", "vocab.txt"):
            if os.path.exists(os.path.join(path, name)):
                return os.path.join(path, name)
        raise Problem(f"{path} holds neither tokenizer.json nor vocab.txt")

    def id(self, token, why):
        if token not in self.ids:
            raise Problem(f"{self.path} has no token {token!r}, which {why}")
        return self.ids[token]

    def named(self, name):
        """Text of eos_token and the like; None: nothing says."""
        return token_text(self.config.get(name) or self.special.get(name))

    def unknown(self):
        return self.ids.get(self.named("unk_token") or "[UNK]")

    def eos(self, given):
        token = given if isinstance(given, str) else self.named("eos_token")
        if token is None:
            raise Problem("nothing says which token ends a text: give --append-eos TOKEN")
        return self.id(token, "--append-eos asks for")


# ---- what rows are made of ----

class Maker:
    """Rows of one kind. parts() gives the text of a row, or (text, learnt) pieces; finish() the row of its encoding."""

    def __init__(self, args, tokenizer):
        self.args, self.tokenizer = args, tokenizer
        self.eos = tokenizer.eos(args.append_eos) if args.append_eos else None
        self.names = args.labels.split(",") if args.labels else None
        self.template = template_of(args.template, tokenizer) if args.template else None
        self.special = not args.no_special_tokens
        self.kind = None
        if self.names and len(set(self.names)) != len(self.names):
            raise Problem(f"--labels {args.labels}: a name stands there twice")

    def choose(self, row):
        """The kind of all JSON rows, from the options or from the first row."""
        a = self.args
        if a.messages_field or a.template:
            self.kind = "chat"
        elif a.prompt_field or a.completion_field:
            self.kind = "prompt"
        elif a.text_field or a.text_pair_field or a.label_field:
            self.kind = "text"
        elif "messages" in row:
            self.kind = "chat"
        else:
            self.kind = "prompt" if "prompt" in row and "completion" in row else "text"
        label = next((f for f in ("label", "labels") if f in row), None)
        if self.kind == "text" and label and not a.label_field:
            print(f"tokenize.py: note: rows have a field {label!r}, which is left out; to keep it: --label-field {label}", file=sys.stderr)
        if self.kind == "chat" and not self.template:
            raise Problem(f"rows of messages need --template: {', '.join(TEMPLATES)}")
        if self.kind != "text" and (a.label_field or a.text_pair_field):
            raise Problem("--label-field and --text-pair-field are for rows of text")

    @staticmethod
    def text_in(row, field):
        if field not in row:
            raise Problem(f"has no field {field!r}; there are {', '.join(map(repr, row)) or 'none'}")
        if not isinstance(row[field], str):
            raise Problem(f"{field} is not text")
        return row[field]

    def messages_in(self, row):
        messages = row.get(self.args.messages_field or "messages")
        if not isinstance(messages, list) or not messages:
            raise Problem(f"{self.args.messages_field or 'messages'} is not a list of turns")
        for i, m in enumerate(messages):
            if not isinstance(m, dict) or not isinstance(m.get("role"), str) or not isinstance(m.get("content"), str):
                raise Problem(f"turn {i + 1} has no role and content that are text")
        return messages

    def label_in(self, row):
        field = self.args.label_field
        if field is None:
            return NO_LABELS
        if field not in row:
            raise Problem(f"has no field {field!r}; there are {', '.join(map(repr, row)) or 'none'}")
        value = row[field]
        if self.names:
            if value not in self.names:
                raise Problem(f"{field} is {json.dumps(value)}, which is not among --labels {self.args.labels}")
            return self.names.index(value)
        numbers = value if isinstance(value, list) else [value]
        for x in numbers:
            if isinstance(x, bool) or not isinstance(x, (int, float, type(None))):
                raise Problem(f"{field} is {json.dumps(value)}, not a number"
                              + (": give --labels with the names, in the order of the classes" if isinstance(value, str) else ""))
        return value

    def parts(self, row):
        """What the encoder reads: text, (text, pair), or pieces [(text, learnt)]."""
        a = self.args
        if isinstance(row, str):
            return row
        if self.kind == "chat":
            pieces = list(self.template(self.messages_in(row)))
            if a.train_on == "last":
                last = max((i for i, p in enumerate(pieces) if p[1]), default=None)
                pieces = [(text, i == last) for i, (text, _) in enumerate(pieces)]
            return pieces
        if self.kind == "prompt":
            return [(self.text_in(row, a.prompt_field or "prompt"), False), (self.text_in(row, a.completion_field or "completion"), True)]
        text = self.text_in(row, a.text_field or "text")
        return (text, self.text_in(row, a.text_pair_field)) if a.text_pair_field else text


def learnt_spans(pieces):
    spans, at = [], 0
    for text, learnt in pieces:
        if learnt:
            spans.append((at, at + len(text)))
        at += len(text)
    return spans


def labels_of(encoding, spans):
    """A token is learnt where its text begins in a piece that is learnt. One that the tokenizer added is learnt behind the last piece."""
    labels, k, behind = [], 0, False
    for id, (start, end), special, sequence in zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask, encoding.sequence_ids):
        added = special and sequence is None
        while not added and k < len(spans) and start >= spans[k][1]:
            k += 1
        inside = not added and k < len(spans) and start >= spans[k][0]
        labels.append(id if inside or (added and behind) else IGNORE)
        behind = inside if not added else behind
    return labels


# ---- reading ----

def lines_of(path):
    """(number, line without its end) of a text file."""
    number = 0
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as f:
            for number, line in enumerate(f, 1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as e:
        raise Problem(f"{path}: not UTF-8 text behind line {number}: {e.reason}") from None
    except OSError as e:
        raise Problem(f"{path}: {e.strerror}") from None


def no_number(word):
    raise ValueError(f"{word} is no number of JSON")


def whole_text(parts):
    """All that is encoded of a row; for a pair its two texts."""
    text = "".join(t for t, _ in parts) if isinstance(parts, list) else parts
    try:
        "".join(text).encode()
    except UnicodeEncodeError:
        raise Problem("holds half of a surrogate pair, which is no character") from None
    return text


def rows_of(path, maker):
    """(place, parts, label) of a file with a row a line."""
    is_json = path.endswith((".jsonl", ".json"))
    for number, line in lines_of(path):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        if not is_json:
            yield where, line, NO_LABELS
            continue
        try:
            row = json.loads(line, parse_constant=no_number)
        except ValueError as e:
            raise Problem(f"{where}: not JSON: {e}") from None
        try:
            if not isinstance(row, dict):
                raise Problem("not a JSON object; one must stand on each line")
            if maker.kind is None:
                maker.choose(row)
            parts = maker.parts(row)
            whole_text(parts)
            yield where, parts, maker.label_in(row)
        except Problem as e:
            raise Problem(f"{where}: {e}") from None


def pieces_of(path):
    """A whole text in pieces of about PIECE characters. They end behind the end of a line that has text on both sides: no tokenizer that
    splits at white space has a token across it, so that the pieces give the tokens of the whole."""
    held, n = [], 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as f:
            for line in f:
                if n >= PIECE and held[-1].strip() and not line[:1].isspace():
                    yield "".join(held)
                    held, n = [], 0
                held.append(line)
                n += len(line)
    except UnicodeDecodeError as e:
        raise Problem(f"{path}: not UTF-8 text: {e.reason} at byte {e.start}") from None
    except OSError as e:
        raise Problem(f"{path}: {e.strerror}") from None
    if held:
        yield "".join(held)


# ---- statistics ----

class Counts:
    def __init__(self):
        self.lengths = array.array("i")
        self.supervised = self.truncated = self.empty = self.unlearnt = 0
        self.labels = {}
        self.largest = -1
        self.unknown = 0

    def add(self, ids, labels, learnt, unk):
        self.lengths.append(len(ids))
        self.largest = max(self.largest, max(ids))
        self.unknown += ids.count(unk) if unk is not None else 0
        if isinstance(labels, int):
            self.labels[labels] = self.labels.get(labels, 0) + 1
        if learnt:
            self.supervised += sum(x != IGNORE for x in labels[1:])

    def say(self, maker, paths):
        n, total = len(self.lengths), sum(self.lengths)
        say = lambda *words: print(*words, file=sys.stderr)
        say(f"{' '.join(paths)}: {n} rows, {total} tokens, largest id {self.largest}")
        say(f"lengths: least {min(self.lengths)}, median {statistics.median_low(self.lengths)}, most {max(self.lengths)}")
        if self.supervised:
            say(f"learnt: {self.supervised} of {total} tokens")
        if self.labels and len(self.labels) <= 100:
            name = lambda k: maker.names[k] if maker.names else str(k)
            say("labels: " + ", ".join(f"{name(k)} {self.labels[k]}" for k in sorted(self.labels)))
        if self.truncated:
            say(f"cut to --max-length {maker.args.max_length}: {self.truncated} rows")
        if self.empty:
            say(f"left out: {self.empty} rows without tokens")
        if self.unlearnt:
            say(f"left out: {self.unlearnt} rows in which nothing is learnt")
        if self.unknown:
            say(f"unknown tokens: {self.unknown} ({100 * self.unknown / total:.2f} %)")


# ---- the whole ----

def encode(maker, batch):
    """Encodings of [(place, parts, label)]."""
    hf = maker.tokenizer.hf
    special = maker.special and maker.kind != "chat"  # a chat's template writes them itself
    first = batch[0][1]
    if maker.args.max_length and not isinstance(first, list):
        added = hf.num_special_tokens_to_add(isinstance(first, tuple)) if special else 0
        room = maker.args.max_length - (maker.eos is not None)
        if room <= added:
            raise Problem(f"--max-length {maker.args.max_length} has no room beside {added + maker.args.max_length - room} special tokens")
        hf.enable_truncation(room)
    return hf.encode_batch([whole_text(parts) for _, parts, _ in batch], add_special_tokens=special)


def finish_row(maker, parts, label, e, counts):
    """ids, labels, token types of one encoding; None: nothing is left of it."""
    most = maker.args.max_length
    ids, labels = e.ids, label
    if isinstance(parts, list):
        labels = labels_of(e, learnt_spans(parts))
    cut = bool(e.overflowing)
    if most and isinstance(parts, list) and len(ids) > most:
        ids, labels, cut = ids[:most], labels[:most], True
    if maker.eos is not None and not cut and ids and ids[-1] != maker.eos:
        ids = ids + [maker.eos]
        labels = labels + [maker.eos] if isinstance(parts, list) else labels
    counts.truncated += cut
    if not ids:
        counts.empty += 1
        return None
    if isinstance(parts, list) and all(x == IGNORE for x in labels[1:]):
        counts.unlearnt += 1
        return None
    return ids, labels, e.type_ids if isinstance(parts, tuple) else None


def write_lines(maker, writer, counts):
    unk = maker.tokenizer.unknown()

    def flush(batch):
        for (where, parts, label), e in zip(batch, encode(maker, batch)):
            row = finish_row(maker, parts, label, e, counts)
            if row:
                counts.add(row[0], row[1], isinstance(parts, list), unk)
                writer.row(*row)

    for path in maker.args.input:
        rows = rows_of(path, maker)
        batch = list(itertools.islice(rows, BATCH))
        while batch:
            flush(batch)
            batch = list(itertools.islice(rows, BATCH))


def write_whole(maker, writer, counts):
    seq, stride = maker.args.seq, maker.args.stride or maker.args.seq
    unk = maker.tokenizer.unknown()

    def put(ids):
        counts.add(ids, NO_LABELS, False, unk)
        writer.row(ids, NO_LABELS, None)

    for path in maker.args.input:
        held = []
        for piece in pieces_of(path):
            held += maker.tokenizer.hf.encode(piece, add_special_tokens=False).ids
            at = 0
            while len(held) - at > seq:
                put(held[at:at + seq])
                at += stride
            held = held[at:]
        if maker.eos is not None and held:
            held.append(maker.eos)
        if held:
            put(held[:seq])
        if len(held) > seq:  # the end of text alone did not fit
            put(held[stride:])


def check(args):
    if args.stride and not args.seq:
        raise Problem("--stride is of use with --seq only")
    if args.stride and args.stride > args.seq:
        raise Problem("--stride is larger than --seq: the tokens between would be lost")
    if args.seq and args.max_length:
        raise Problem("--max-length cuts rows; with --seq none is longer than that")
    if args.seq and any(p.endswith((".jsonl", ".json")) for p in args.input):
        raise Problem("--seq takes files of text whole; rows of JSON are cut with --max-length")
    if args.labels and not args.label_field:
        raise Problem("--labels says what --label-field means, which is not given")
    if args.append_eos and args.label_field:
        raise Problem("--append-eos is for texts that are learnt, not for rows with labels")
    for path in args.input:
        if os.path.exists(path) and os.path.exists(args.output) and os.path.samefile(path, args.output):
            raise Problem(f"{path} is both input and output")


def run(args):
    check(args)
    form = format_of(args.output, args.format)
    maker = Maker(args, Tokenizer(args.tokenizer, args.lowercase))
    writer = form(args.output, maker.tokenizer.size)
    counts = Counts()
    try:
        (write_whole if args.seq else write_lines)(maker, writer, counts)
        if not counts.lengths:
            raise Problem(f"{' '.join(args.input)}: no row is left to write")
        writer.finish()
        writer.out.close()
    except OSError as e:
        raise Problem(f"{e.filename or args.output}: {e.strerror}") from None
    finally:
        writer.out.drop()
    counts.say(maker, writer.out.paths)


def positive(text):
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return n


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Problem(f"{message}\n  {self.prog} --help lists all options")


def parser():
    p = Parser(prog="tokenize.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("input", nargs="+", metavar="FILE", help="text or JSONL")
    p.add_argument("-o", "--output", required=True, metavar="FILE", help="appears whole or not at all")
    p.add_argument("--tokenizer", required=True, metavar="PATH", help="tokenizer.json, vocab.txt (BERT's WordPiece) or a folder with one")
    p.add_argument("--lowercase", action="store_true", help="with a vocab.txt of an uncased model")
    p.add_argument("--format", choices=list(FORMATS), help="default: by the name, .jsonl, .npy, .bin (nanoGPT) or .idx (Megatron-LM)")
    g = p.add_argument_group("rows of text")
    g.add_argument("--seq", type=positive, metavar="S", help="take each file whole and cut it into rows of S tokens")
    g.add_argument("--stride", type=positive, metavar="T", help="tokens from the start of a row to that of the next (default S)")
    g.add_argument("--append-eos", nargs="?", const=True, metavar="TOKEN", help="end each text with the tokenizer's end of text, or TOKEN")
    g.add_argument("--no-special-tokens", action="store_true", help="leave out what the tokenizer adds, such as [CLS] and [SEP]")
    g.add_argument("--max-length", type=positive, metavar="N", help="cut rows to N tokens; how many were is told")
    g = p.add_argument_group("fields of JSON rows")
    g.add_argument("--text-field", metavar="NAME", help="default: text")
    g.add_argument("--text-pair-field", metavar="NAME", help="a second text, as of question and answer")
    g.add_argument("--label-field", metavar="NAME", help="class or number (or list of numbers) of the row")
    g.add_argument("--labels", metavar="A,B,..", help="names of the classes, from class 0 on; without it labels are numbers and kept")
    g.add_argument("--prompt-field", metavar="NAME", help="default: prompt; it is not learnt")
    g.add_argument("--completion-field", metavar="NAME", help="default: completion")
    g.add_argument("--messages-field", metavar="NAME", help="default: messages, a list of {role, content}")
    g.add_argument("--template", choices=TEMPLATES, help="how turns are written; tokenizer: by its own chat_template (needs jinja2)")
    g.add_argument("--train-on", choices=("all", "last"), default="all", help="which of the assistant's turns are learnt")
    return p


def main():
    try:
        run(parser().parse_args())
    except Problem as e:
        print(f"tokenize.py: error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tokenize.py: interrupted, nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
