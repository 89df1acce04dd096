"""What PyTorch's loss scaler does with overflows: writes ../e2e/scaler/.

    python make_scaler_goldens.py          needs the "old" tools of README.md

The bert-legacy17 case in fp16 (torch.autocast, torch.amp.GradScaler on the CPU), its classifier's weight FACTOR times as large, so that gradients
behind it overflow at large loss scales wherever a row's label is wrong. Labels are those that the model predicts, but for steps 1 and 2 in `first`,
and for step 7 in `seventh`: there activations' gradients overflow, which are fp16 here and there. (Gradients of weights are fp16 in PyTorch only, so
less steep steps would overflow in PyTorch alone.) Each curve is run with FACTOR 20 % smaller and larger, too: if those skipped other steps, the case would hang by
a hair, and another order of summing might decide it.

rows-NAME.jsonl: rows in order, weights.safetensors: the scaled weight (--init-tensors), goldens.json: losses, scale after each step, which were skipped.
"""
import copy
import json
import os

import torch
from safetensors.torch import load_file, save_file

from families import build

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "e2e", "scaler")
CASE, STEPS, FACTOR, RATE = "bert-legacy17", 12, 14.0, 1e-4
KEYS = ["input_ids", "attention_mask", "token_type_ids"]


def scaled(model, factor):
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.classifier.weight *= factor
    return model


def labelled(model, data, wrong):
    """Batches of all steps; `wrong`: in which steps every label is one that the model does not predict."""
    out = []
    for k in range(STEPS):
        b = data[k % len(data)]
        with torch.no_grad():
            best = model(**b).logits.argmax(-1)
        out.append({**b, "labels": (best + 1) % 3 if wrong(k + 1) else best})
    return out


def train(model, batches):
    decays = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decays, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], lr=RATE)
    scaler = torch.amp.GradScaler("cpu")
    curve = {"loss": [], "grad_norm": [], "loss_scale": [], "skipped_steps": []}
    skipped = 0
    for b in batches:
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(**{k: b[k] for k in KEYS}).logits
        loss = torch.nn.functional.cross_entropy(logits.float(), b["labels"])
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        scaler.step(opt)
        scaler.update()
        overflow = scaler.get_scale() < before
        skipped += overflow
        curve["loss"].append(round(loss.item(), 7))
        curve["grad_norm"].append(None if overflow else round(norm, 7))
        curve["loss_scale"].append(scaler.get_scale())
        curve["skipped_steps"].append(skipped)
    return curve


def main():
    golden = load_file(os.path.join(HERE, CASE, "golden.safetensors"))
    data = [{k: golden[f"batch{b}.{k}"] for k in KEYS} for b in range(4)]
    model = build("bert")
    model = model[0] if isinstance(model, tuple) else model
    os.makedirs(OUT, exist_ok=True)
    base = scaled(model, FACTOR)
    save_file({"classifier.weight": base.classifier.weight.detach().clone()}, os.path.join(OUT, "weights.safetensors"), {"format": "pt"})
    goldens = {"case": CASE, "steps": STEPS, "learning_rate": RATE, "runs": {}}
    for name, wrong in (("first", lambda step: step <= 2), ("seventh", lambda step: step == 7)):
        batches = labelled(base, data, wrong)
        with open(os.path.join(OUT, f"rows-{name}.jsonl"), "w") as f:
            for b in batches:
                for i in range(len(b["labels"])):
                    f.write(json.dumps({k: b[k][i].tolist() for k in b}) + "\n")
        curve = train(scaled(model, FACTOR), batches)
        for near in (0.8, 1.2):
            other = train(scaled(model, FACTOR * near), batches)
            assert other["skipped_steps"] == curve["skipped_steps"], (name, near, other, curve)
        goldens["runs"][name] = curve
        print(name, curve)
    with open(os.path.join(OUT, "goldens.json"), "w") as f:
        f.write(json.dumps(goldens).replace('"runs": {', '"runs": {\n').replace('}, "', '},\n"') + "\n")


if __name__ == "__main__":
    main()
