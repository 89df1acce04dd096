#!/usr/bin/env python3
"""The experiment of sst2.py by PyTorch (+ PEFT): the values and the speed that efficc is held against.

    peer_sst2.py --dir OUT_OF_make_sst2 [--lora] [--dtype fp32|bf16] [--pad 64|longest] [--epochs 1] [--lr 5e-5]

Batches of 32, sample order: one fixed permutation (by --seed) per epoch, AdamW (0.9, 0.999, 1e-8, weight decay 0.01), linear schedule to 0
with 10 % warm-up, clip 1.0, dropout 0. LoRA: r 8, alpha 8, query and value, classifier trained too. Prints a JSON line: seconds per epoch
(training only), samples/s, tokens/s (real ones), first and last loss, accuracy on dev and test, peak RSS in MB, losses of the first 20 steps.
"""
import argparse, json, os, random, time
import torch
from transformers import BertForSequenceClassification


def peak_rss_mb():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024


def collate(rows, pad):
    n = pad or max(len(r["input_ids"]) for r in rows)
    ids = torch.zeros(len(rows), n, dtype=torch.int64)
    mask = torch.zeros(len(rows), n, dtype=torch.int64)
    for i, r in enumerate(rows):
        k = len(r["input_ids"])
        ids[i, :k] = torch.tensor(r["input_ids"])
        mask[i, :k] = 1
    return ids, mask, torch.tensor([r["labels"] for r in rows])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dir", required=True)
    p.add_argument("--lora", action="store_true")
    p.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    p.add_argument("--pad", default="longest")
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=None, help="default 5e-5 full, 1e-3 LoRA")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--max-steps", type=int, default=0)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    lr = a.lr or (1e-3 if a.lora else 5e-5)
    pad = 0 if a.pad == "longest" else int(a.pad)
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(os.path.join(a.dir, "hf"), hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    if a.lora:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=8, target_modules=["query", "value"], task_type="SEQ_CLS"))
    train = [json.loads(l) for l in open(os.path.join(a.dir, "train.jsonl"))]
    held = [json.loads(l) for n in ("dev", "test") for l in open(os.path.join(a.dir, n + ".jsonl"))]
    params = [q for q in model.parameters() if q.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01, fused=True)
    per_epoch = len(train) // a.batch
    total = a.max_steps or per_epoch * a.epochs
    warm = max(1, total // 10)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(s / warm, (total - s) / max(1, total - warm)))
    cast = lambda: torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "bf16")
    losses, tokens, seconds, step = [], 0, [], 0
    for epoch in range(a.epochs):
        order = list(range(len(train)))
        random.Random(a.seed + epoch).shuffle(order)
        model.train()
        t = time.perf_counter()
        for b in range(per_epoch):
            if step == total:
                break
            ids, mask, y = collate([train[i] for i in order[b * a.batch:(b + 1) * a.batch]], pad)
            with cast():
                loss = model(input_ids=ids, attention_mask=mask, labels=y).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            opt.step(); sched.step(); opt.zero_grad(set_to_none=True)
            losses.append(float(loss.detach())); tokens += int(mask.sum()); step += 1
        seconds.append(time.perf_counter() - t)
    model.eval()
    right = 0
    with torch.no_grad(), cast():
        for b in range(0, len(held), 64):
            ids, mask, y = collate(held[b:b + 64], pad)
            right += int((model(input_ids=ids, attention_mask=mask).logits.argmax(-1) == y).sum())
    print(json.dumps(dict(vars(a), lr=lr, seconds=[round(s, 2) for s in seconds], samples_per_s=round(step * a.batch / sum(seconds), 1),
                          tokens_per_s=round(tokens / sum(seconds), 1), steps=step, loss_mean_last_50=round(sum(losses[-50:]) / len(losses[-50:]), 4),
                          accuracy=round(right / len(held), 4), peak_rss_mb=round(peak_rss_mb()), losses_20=[round(l, 5) for l in losses[:20]],
                          preload=os.path.basename(os.environ.get("LD_PRELOAD", "")), torch=torch.__version__)))


if __name__ == "__main__":
    main()
