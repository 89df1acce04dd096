"""What PyTorch's optimizers and transformers' schedules give: writes trainer-goldens.json.

    python make_trainer_goldens.py          needs the "old" tools of README.md

`schedules`: learning rate before each step, as transformers.get_scheduler gives it with the warm-up steps that
TrainingArguments derives. `runs`: curves of the gpt2-optimum case (batch k mod 4 in step k) with options in the
trainer's spelling, which this script reads too, so that both sides are told the same thing once.
"""
import argparse
import copy
import json
import math
import os

import torch
from safetensors.torch import load_file
from transformers import TrainingArguments, get_scheduler

from families import build
from goldens import logits_of, loss_parts, supervised

HERE = os.path.dirname(os.path.abspath(__file__))
CASE, FAMILY, TASK = "gpt2-optimum", "gpt2", "causal-lm"
RUNS = {
    "sgd": "--optim sgd --learning-rate 0.05 --lr-scheduler-type constant --max-grad-norm 0",
    "sgd decay": "--optim sgd --learning-rate 0.05 --lr-scheduler-type linear --weight-decay 0.2 --max-grad-norm 0",
    "sgd decay all": "--optim sgd --learning-rate 0.1 --lr-scheduler-type constant --weight-decay 0.2 --decay-params all",
    "momentum": "--optim sgd --learning-rate 0.02 --lr-scheduler-type constant --momentum 0.9 --max-grad-norm 0",
    "momentum decay": "--optim sgd --learning-rate 0.02 --lr-scheduler-type cosine --warmup-steps 3 --momentum 0.9"
                      " --weight-decay 0.1",
    "nesterov": "--optim sgd --learning-rate 0.02 --lr-scheduler-type constant --momentum 0.8 --nesterov"
                " --weight-decay 0.05 --decay-params all --max-grad-norm 0.5",
    "nesterov two micro-batches": "--optim sgd --learning-rate 0.05 --lr-scheduler-type linear --momentum 0.9 --nesterov"
                                  " --gradient-accumulation-steps 2 --max-grad-norm 1",
    "adamw cosine": "--learning-rate 2e-3 --lr-scheduler-type cosine --warmup-ratio 0.22 --weight-decay 0.1",
    "adamw linear": "--learning-rate 3e-3 --lr-scheduler-type linear --warmup-steps 4 --weight-decay 0.05"
                    " --adam-beta1 0.8 --adam-beta2 0.95 --adam-epsilon 1e-6 --max-grad-norm 0.7",
    "adamw constant": "--learning-rate 1e-3 --lr-scheduler-type constant_with_warmup --warmup-steps 5"
                      " --weight-decay 0.1 --decay-params all --max-grad-norm 0",
}
STEPS = 20


def parse(words):
    p = argparse.ArgumentParser()
    p.add_argument("--optim", default="adamw")
    p.add_argument("--learning-rate", type=float)
    p.add_argument("--lr-scheduler-type")
    p.add_argument("--warmup-steps", type=int, default=0)
    p.add_argument("--warmup-ratio", type=float, default=0)
    p.add_argument("--weight-decay", type=float, default=0)
    p.add_argument("--decay-params", default="matrices")
    p.add_argument("--momentum", type=float, default=0)
    p.add_argument("--nesterov", action="store_true")
    p.add_argument("--adam-beta1", type=float, default=0.9)
    p.add_argument("--adam-beta2", type=float, default=0.999)
    p.add_argument("--adam-epsilon", type=float, default=1e-8)
    p.add_argument("--max-grad-norm", type=float, default=1)
    p.add_argument("--gradient-accumulation-steps", type=int, default=1)
    return p.parse_args(words.split())


def warmup(steps, ratio, total):
    return TrainingArguments(output_dir="/tmp", use_cpu=True, warmup_steps=steps, warmup_ratio=ratio).get_warmup_steps(total)


def optimizer_of(o, model):
    decays = lambda p: o.decay_params == "all" or p.dim() >= 2
    groups = [{"params": [p for p in model.parameters() if decays(p)], "weight_decay": o.weight_decay},
              {"params": [p for p in model.parameters() if not decays(p)], "weight_decay": 0.0}]
    if o.optim == "sgd":
        return torch.optim.SGD(groups, lr=o.learning_rate, momentum=o.momentum, nesterov=o.nesterov)
    return torch.optim.AdamW(groups, lr=o.learning_rate, betas=(o.adam_beta1, o.adam_beta2), eps=o.adam_epsilon)


def train(model, data, words):
    o = parse(words)
    params, opt, micro = list(model.parameters()), optimizer_of(o, model), o.gradient_accumulation_steps
    rate = get_scheduler(o.lr_scheduler_type, opt, warmup(o.warmup_steps, o.warmup_ratio, STEPS), STEPS)
    out = {"options": words, "learning_rate": [], "loss": [], "grad_norm": []}
    for k in range(STEPS):
        part = [data[(k * micro + j) % len(data)] for j in range(micro)]
        count = sum(supervised(b["labels"], TASK) for b in part)
        opt.zero_grad()
        loss = 0.0
        for b in part:
            value = loss_parts(logits_of(model, b), b["labels"], TASK)[0] / count
            value.backward()
            loss += value.item()
        norm = torch.nn.utils.clip_grad_norm_(params, o.max_grad_norm or math.inf)
        out["learning_rate"].append(rate.get_last_lr()[0])
        out["loss"].append(round(loss, 8))
        out["grad_norm"].append(round(norm.item(), 8))
        opt.step()
        rate.step()
    return out


def schedule(kind, total, steps, ratio):
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    rate = get_scheduler(kind, opt, warmup(steps, ratio, total), total)
    values = []
    for _ in range(total):
        values.append(rate.get_last_lr()[0])
        opt.step()
        rate.step()
    return {"type": kind, "total": total, "warmup_steps": steps, "warmup_ratio": ratio, "peak": 3e-4, "learning_rate": values}


def main():
    tensors = load_file(os.path.join(HERE, CASE, "golden.safetensors"))
    keys = ["input_ids", "attention_mask", "labels"]
    data = [{k: tensors[f"batch{b}.{k}"] for k in keys if f"batch{b}.{k}" in tensors} for b in range(4)]
    model = build(FAMILY)
    model = model[0] if isinstance(model, tuple) else model
    plan = [(kind, total, steps, ratio) for kind in ("linear", "cosine", "constant_with_warmup") for total in (1, 7, 20, 53)
            for steps, ratio in ((0, 0), (1, 0), (9, 0), (0, 0.1), (0, 0.33), (5, 0.5))] + [("constant", 7, 0, 0)]
    out = {"case": CASE, "steps": STEPS,
           "runs": [{"name": n, **train(copy.deepcopy(model), data, w)} for n, w in RUNS.items()],
           "schedules": [schedule(*row) for row in plan]}
    text = json.dumps(out, indent=None).replace('{"name"', '\n{"name"').replace('{"type"', '\n{"type"')
    with open(os.path.join(HERE, "trainer-goldens.json"), "w") as f:
        f.write(text.replace('"schedules"', '\n"schedules"') + "\n")


if __name__ == "__main__":
    main()
