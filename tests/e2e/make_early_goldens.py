#!/usr/bin/env python3
"""Early stopping and the best model as Hugging Face's Trainer does them: writes early/.

The model is the case bert-legacy17, full fine-tuning in fp32, rows in the order of the file.
Needs torch, transformers and accelerate; the versions stand in what is written.
"""
import json
import os
import sys
import tempfile

import numpy as np
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cases"))
from families import FIRST_WORD, VOCAB, build  # noqa: E402

BATCH, SEQ = 6, 12
COMMON = dict(learning_rate=5e-4, lr_scheduler_type="linear", warmup_steps=2, weight_decay=0.01, max_steps=60)
RUNS = {
    "loss": dict(eval_steps=2, metric="loss", patience=2, threshold=0.0),
    "accuracy": dict(eval_steps=3, metric="accuracy", patience=3, threshold=0.0),
    "threshold": dict(eval_steps=1, metric="loss", patience=3, threshold=0.02),
    "epoch": dict(eval_steps=None, metric="eval_loss", patience=1, threshold=0.0),
    "to_the_end": dict(eval_steps=10, metric="eval_accuracy", patience=50, threshold=0.0),
}


def rows(seed, count, noise):
    """Sequences whose label is a function of their first two tokens, but for the noise."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        ids = rng.integers(FIRST_WORD, VOCAB, rng.integers(4, SEQ + 1))
        label = int(ids[0] * 3 // VOCAB)
        if rng.random() < noise:
            label = int(rng.integers(0, 3))
        out.append({"input_ids": [int(i) for i in ids], "labels": label})
    return out


def collate(batch):
    n = max(len(r["input_ids"]) for r in batch)
    pad = lambda r, x: x + [0] * (n - len(r["input_ids"]))
    return {"input_ids": torch.tensor([pad(r, r["input_ids"]) for r in batch]),
            "attention_mask": torch.tensor([pad(r, [1] * len(r["input_ids"])) for r in batch]),
            "labels": torch.tensor([r["labels"] for r in batch])}


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def accuracy(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


def train(name, eval_steps, metric, patience, threshold, data):
    with tempfile.TemporaryDirectory() as folder:
        when = "epoch" if eval_steps is None else "steps"
        args = transformers.TrainingArguments(
            folder, per_device_train_batch_size=BATCH, per_device_eval_batch_size=len(data["dev"]),
            eval_strategy=when, save_strategy=when, eval_steps=eval_steps, save_steps=eval_steps or 500,
            load_best_model_at_end=True, metric_for_best_model=metric, report_to="none", use_cpu=True,
            disable_tqdm=True, logging_steps=1000, **COMMON)
        stop = transformers.EarlyStoppingCallback(patience, threshold)
        trainer = InOrder(build("bert"), args, collate, data["train"], data["dev"], compute_metrics=accuracy, callbacks=[stop])
        trainer.train()
        state = trainer.state
        log = [[r["step"], r["eval_loss"], r["eval_accuracy"]] for r in state.log_history if "eval_loss" in r]
        final = trainer.evaluate()
    options = ["--metric-for-best-model", metric, "--early-stopping-patience", str(patience),
               "--early-stopping-threshold", str(threshold)]
    options += ["--eval-strategy", "epoch"] if eval_steps is None else ["--eval-steps", str(eval_steps)]
    print(f"{name}: ends at {state.global_step}, best {state.best_metric:.6f} at {state.best_global_step}")
    return {"name": name, "options": " ".join(options), "evaluations": log, "steps": state.global_step,
            "best_step": state.best_global_step, "best": state.best_metric,
            "final": [final["eval_loss"], final["eval_accuracy"]]}


def main():
    out = os.path.join(HERE, "early")
    data = {"train": rows(1, 45, 0.2), "dev": rows(2, 24, 0.0)}
    for part, part_rows in data.items():
        with open(os.path.join(out, part + ".jsonl"), "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in part_rows)
    common = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in COMMON.items())
    runs = [train(name, data=data, **run) for name, run in RUNS.items()]
    with open(os.path.join(out, "goldens.json"), "w") as f:
        json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "options": common,
                   "global_batch": BATCH, "seq": SEQ, "runs": runs}, f, indent=1)
        f.write("\n")


main()
