#!/usr/bin/env python3
"""Do trained models load in transformers, and adapters in PEFT? Makes the table of docs/families.md.

    load_in_torch.py --efficc PATH [--docs docs/families.md] [--keep results.json] CASE...

Needs torch, transformers, peft, safetensors, onnxruntime. CASE is a folder as in tests/cases. Each is trained for two steps, whole and with adapters:
model.safetensors must load by from_pretrained() without a missing or unexpected key, an adapter by PeftModel.from_pretrained() on the model as it was; and PyTorch's
outputs must be those of onnxruntime on the trained model.onnx, or on the model that `efficc export` merged the adapter into. Names in transformers differ between
versions: cases of another major version are left out. --keep adds to results of an earlier call (with the other version) and takes them into the table.
"""
import argparse, json, os, subprocess, sys, tempfile, warnings

warnings.filterwarnings("ignore")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # before it is imported
import numpy as np
import onnxruntime
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.utils.logging.disable_progress_bar()
onnxruntime.set_default_logger_severity(4)
CANNOT_RUN = onnxruntime.capi.onnxruntime_pybind11_state
MAJOR = transformers.__version__.split(".")[0]


def call(*command):
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace", timeout=600)
    if r.returncode:
        lines = (r.stderr.strip() or r.stdout.strip() or "-").splitlines()
        raise RuntimeError(f"{os.path.basename(str(command[0]))}: {lines[0].split('/')[-1][:160]}")


def write_rows(path, golden):
    with open(path, "w") as f:
        for k in range(2):
            batch = {n.split(".", 1)[1]: t for n, t in golden.items() if n.startswith(f"batch{k}.") and "past_key" not in n}
            for i in range(len(batch["labels"])):
                f.write(json.dumps({n: t[i].tolist() for n, t in batch.items()}) + "\n")


class Case:
    def __init__(self, folder, efficc, tmp):
        self.folder, self.efficc, self.tmp = folder, efficc, tmp
        self.meta = json.load(open(f"{folder}/case.json"))
        self.golden = load_file(f"{folder}/golden.safetensors")
        self.model = f"{folder}/model.onnx"
        self.features = self.meta["task"] == "features"
        self.unmatched = set(self.meta["parameters"]["unmatched"])
        write_rows(f"{tmp}/rows.jsonl", self.golden)

    def path(self, *parts):
        return os.path.join(self.tmp, *parts)

    def train(self, kind, *flags):
        rows, length = self.golden["batch0.input_ids"].shape
        task = {"masked-lm": "mlm", "features": "seq-cls"}.get(self.meta["task"], self.meta["task"])
        if self.features:
            flags += ("--num-labels", self.golden["head.weight"].shape[0])
        call(self.efficc, self.model, "--fp32", "--batch", rows, "--seq", length, "--task", task, *flags, "-o", self.path(kind))
        call(self.path(kind, "trainer"), "--train-data", self.path("rows.jsonl"), "--max-steps", 2, "--learning-rate", "1e-2", "--lr-scheduler-type", "constant",
             "--output-dir", self.path(kind, "res"))

    def config(self):
        """transformers' configuration; a table of positions may have fewer rows in the file."""
        values = dict(self.meta["config"])
        for entry in self.meta["parameters"]["initializers"].values():
            if entry.get("rows"):
                for key in ("n_positions", "max_position_embeddings"):
                    if key in values:
                        values[key] = entry["rows"][1]
        return transformers.AutoConfig.for_model(**values)

    def load(self, weights, folder):
        """The model and what is wrong with the keys."""
        os.makedirs(folder, exist_ok=True)
        tensors = load_file(weights)
        save_file({n: t for n, t in tensors.items() if not n.startswith("head.")}, f"{folder}/model.safetensors", {"format": "pt"})
        self.config().save_pretrained(folder)
        cls = getattr(transformers, self.meta["architecture"])
        model, info = cls.from_pretrained(folder, output_loading_info=True, attn_implementation=self.meta["exporter"]["attention"])
        missing = {k for k in info["missing_keys"] if k not in self.unmatched}
        wrong = [f"{len(v)} {what}: {sorted(v)[0]}" for what, v in (("missing", missing), ("unexpected", info["unexpected_keys"])) if v]
        return model.eval(), wrong

    def inputs(self):
        batch = {n.split(".", 1)[1]: t for n, t in self.golden.items() if n.startswith("batch0.") and "past_key" not in n}
        batch.pop("labels")
        return batch

    def torch_output(self, model):
        with torch.no_grad():
            out = model(**self.inputs())
        return (out.last_hidden_state if self.features else out.logits).float().numpy()

    def onnx_output(self, path, rank):
        """The first output of that rank, logits before all."""
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feed = {k: v.numpy() for k, v in self.inputs().items()}
        for i in session.get_inputs():
            if i.name.startswith("past_key"):  # an empty cache
                feed[i.name] = np.zeros([len(feed["input_ids"])] + [d if isinstance(d, int) else 0 for d in i.shape[1:]], np.float32)
        outputs = session.run(None, {i.name: feed[i.name] for i in session.get_inputs()})
        names = [o.name for o in session.get_outputs()]
        first = 0 if self.features or "logits" not in names else names.index("logits")
        return next(o for o in outputs[first:] if o.ndim == rank)

    def compare(self, model, path):
        """None, or what is wrong with the outputs. Some exports onnxruntime does not run; then the keys have to do."""
        got = self.torch_output(model)
        try:
            want = self.onnx_output(path, got.ndim).astype(np.float32)
        except (CANNOT_RUN.NotImplemented, CANNOT_RUN.InvalidArgument):
            return None
        d = np.abs(got - want)
        mask = self.inputs().get("attention_mask")
        if mask is not None and d.ndim == 3:
            d = d[mask.numpy() != 0]
        rounded = self.meta["exporter"]["weights"] != "float32"  # constants, too
        return None if d.max() < (0.1 if rounded else 2e-4) else f"outputs differ by {d.max():.1e}"

    def full(self):
        self.train("full")
        model, wrong = self.load(self.path("full", "res", "model.safetensors"), self.path("full-torch"))
        other = self.compare(model, self.path("full", "res", "model.onnx"))
        return wrong + ([other] if other else [])

    def lora(self):
        self.train("lora", "--lora-r", 4)
        adapter = self.path("lora", "res")
        call(self.efficc, "export", self.model, "--safetensors", "-o", self.path("base.safetensors"))
        base, wrong = self.load(self.path("base.safetensors"), self.path("base-torch"))
        model = peft.PeftModel.from_pretrained(base, adapter)
        have = set(peft.get_peft_model_state_dict(model))
        saved = set(load_file(f"{adapter}/adapter_model.safetensors"))
        wrong += [f"{len(v)} {what}: {sorted(v)[0]}" for what, v in (("missing", have - saved), ("unexpected", saved - have)) if v]
        if not self.features:
            call(self.efficc, "export", self.model, "--adapter", adapter, "-o", self.path("merged.onnx"))
            other = self.compare(model.eval(), self.path("merged.onnx"))
            wrong += [other] if other else []
        return wrong


def attempt(what):
    try:
        wrong = what()
        return "; ".join(wrong) if wrong else "ok"
    except Exception as e:  # whatever goes wrong belongs into the table
        return f"{e}".splitlines()[0][:200] if str(e) else type(e).__name__


def one(folder, efficc):
    meta = json.load(open(f"{folder}/case.json"))
    if meta["versions"]["transformers"].split(".")[0] != MAJOR:
        return None
    with tempfile.TemporaryDirectory() as tmp:
        case = Case(folder, efficc, tmp)
        row = {"family": meta["family"], "transformers": transformers.__version__, "full": attempt(case.full), "lora": attempt(case.lora)}
    return row


HEAD = """# Families

What was trained has PyTorch's names: `model.safetensors` loads in transformers by `from_pretrained`, an adapter in PEFT. This table comes from
`tests/tools/load_in_torch.py`, which trains every case for two steps, loads what came out and compares PyTorch's outputs with those of onnxruntime on the trained
`model.onnx` (with adapters: on the model that `efficc export` merged). *ok*: no missing and no unexpected key, the same outputs.

| family | export | whole model | adapters |
| --- | --- | --- | --- |
"""


def write_docs(path, results):
    refused = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../import/refused.md")).read()
    cell = lambda name, text: "[why not](../tests/import/refused.md)" if text != "ok" and f"`{name}`" in refused else text
    old = open(path).read() if os.path.exists(path) else ""
    tail = old[old.index("\n## "):] if "\n## " in old else ""
    rows = sorted(results.items(), key=lambda r: (r[1]["family"], r[0]))
    with open(path, "w") as f:
        f.write(HEAD)
        for name, r in rows:
            export = name[len(r["family"]) + 1:] if name.startswith(r["family"] + "-") else name
            f.write(f"| {r['family']} | {export} | {cell(name, r['full'])} | {cell(name, r['lora'])} |\n")
        f.write(tail)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--efficc", required=True)
    p.add_argument("--docs")
    p.add_argument("--keep")
    p.add_argument("case", nargs="+")
    a = p.parse_args()
    results = json.load(open(a.keep)) if a.keep and os.path.exists(a.keep) else {}
    bad = 0
    for folder in a.case:
        name = os.path.basename(folder.rstrip("/"))
        row = one(folder, a.efficc) if os.path.exists(f"{folder}/case.json") else None
        if not row:
            continue
        results[name] = row
        bad += row["full"] != "ok" or row["lora"] != "ok"
        print(f"{name:28} full: {row['full']:30} adapters: {row['lora']}", flush=True)
    if a.keep:
        json.dump(results, open(a.keep, "w"), indent=1)
    if a.docs:
        write_docs(a.docs, results)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
