#!/usr/bin/env python3
"""Makes models/reviews-encoder.onnx: a 2-layer BERT encoder, pre-trained on product reviews.

    cc -o reviews models/reviews.c && python models/make_demo_model.py ./reviews

The data comes from the generator models/reviews.c. The pre-trained model classifies product reviews and guesses at
film reviews, whose words it never saw; the demo fine-tunes it on those. Exported by PyTorch's TorchScript exporter,
opset 17, as a classifier with two labels. Made with torch 2.9.1 and transformers 4.57.6, seed 0. Takes a minute.
"""
import json
import os
import subprocess
import sys

import torch
from transformers import BertConfig, BertForSequenceClassification

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTH = 24


def rows(generator, domain, n, seed):
    """ids and mask [n, LENGTH], labels [n]"""
    text = subprocess.run([generator, domain, str(n), str(seed)], check=True, capture_output=True, text=True).stdout
    data = [json.loads(line) for line in text.splitlines()]
    ids = torch.zeros(n, LENGTH, dtype=torch.int64)
    mask = torch.zeros(n, LENGTH, dtype=torch.int64)
    for i, row in enumerate(data):
        k = len(row["input_ids"])
        ids[i, :k] = torch.tensor(row["input_ids"])
        mask[i, :k] = 1
    return ids, mask, torch.tensor([row["labels"] for row in data])


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        return float((model(input_ids=data[0], attention_mask=data[1]).logits.argmax(-1) == data[2]).float().mean())


def train(model, data, steps, batch, lr):
    model.train()
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min((k + 1) / 20, 1) * (1 - k / steps))
    pick = torch.Generator().manual_seed(1)
    for _ in range(steps):
        i = torch.randint(0, len(data[0]), (batch,), generator=pick)
        loss = model(input_ids=data[0][i], attention_mask=data[1][i], labels=data[2][i]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        schedule.step()
        opt.zero_grad()


def export(model, path):
    ids = torch.zeros(2, LENGTH, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {n: {0: "batch", 1: "seq"} for n in names}
    axes["logits"] = {0: "batch"}
    torch.onnx.export(model.eval(), (ids, torch.ones_like(ids), ids), path, input_names=names, output_names=["logits"],
                      dynamic_axes=axes, opset_version=17, dynamo=False)


def main():
    generator = os.path.abspath(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(2)
    words = subprocess.run([generator, "vocab"], check=True, capture_output=True, text=True).stdout.split()
    model = BertForSequenceClassification(BertConfig(
        vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=32, num_labels=2, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0))
    train(model, rows(generator, "product", 20000, 1), 2500, 64, 1e-3)
    print("product reviews", accuracy(model, rows(generator, "product", 1000, 8)),
          "film reviews", accuracy(model, rows(generator, "film", 1000, 9)))
    export(model, os.path.join(HERE, "reviews-encoder.onnx"))


if __name__ == "__main__":
    main()
