#!/usr/bin/env python3
"""The sentiment experiment: MiniLM-L6 on SST-2, one epoch of 216 steps of 32 sentences, by efficc and by PyTorch in turn.

    sst2.py BUILD/efficc OUT_OF_make_sst2 [--seeds 1,2,3] [--lora] [--runs fp32,bf16,fp32-padded,torch-fp32,torch-bf16]

A round is one seed: each run once, so that a slow minute of the machine hits all of them. Prints a row per run, then the median seconds, samples
a second and accuracy of each kind, and their ratios. PyTorch is eager, with jemalloc, padded to the longest sentence of a batch; efficc computes
no padding but in runs named -padded. Accuracy is on dev and test together, as the trained model predicts them. Leave the machine idle.
"""
import argparse, glob, json, os, statistics, subprocess, sys, tempfile

STEPS, BATCH = 216, 32


def log_rows(folder):
    return [json.loads(l) for l in open(os.path.join(folder, "log.jsonl"))]


def efficc(a, run, seed, tmp):
    """(seconds of training, accuracy, peak MB)"""
    out, res, held = (os.path.join(tmp, n) for n in (run, run + ".out", "held.jsonl"))
    if not os.path.exists(out):
        flags = ["--" + run.split("-")[0]] + (["--no-unpad"] if run.endswith("-padded") else []) + (["--lora-r", "8"] if a.lora else [])
        subprocess.run([a.efficc, os.path.join(a.dir, "minilm-cls.onnx"), "--batch", str(BATCH), "--seq", "64", "--quiet", *flags, "-o", out], check=True)
    if not os.path.exists(held):
        with open(held, "w") as f:
            for n in ("dev", "test"):
                f.write(open(os.path.join(a.dir, n + ".jsonl")).read())
    subprocess.run([os.path.join(out, "trainer"), "--train-data", os.path.join(a.dir, "train.jsonl"), "--eval-data", held, "--max-steps", str(STEPS),
                    "--learning-rate", "1e-3" if a.lora else "5e-5", "--lr-scheduler-type", "linear", "--warmup-steps", str(STEPS // 10),
                    "--weight-decay", "0.01", "--max-grad-norm", "1.0", "--seed", str(seed), "--save-strategy", "no", "--logging-steps", "1",
                    "--output-dir", res, "--overwrite-output-dir"], check=True, stdout=subprocess.DEVNULL)
    rows = log_rows(res)
    seconds = next(r["seconds"] for r in reversed(rows) if "seconds" in r and "loss" in r)
    accuracy = next(r["eval_accuracy"] for r in reversed(rows) if "eval_accuracy" in r)
    return seconds, accuracy, next(r["peak_rss_bytes"] for r in reversed(rows) if "peak_rss_bytes" in r) / 1e6


def torch(a, run, seed, tmp):
    env = dict(os.environ)
    for n in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        env.pop(n, None)
    env["LD_PRELOAD"] = glob.glob("/usr/lib/*/libjemalloc.so.2")[0]
    peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_sst2.py")
    out = subprocess.run([sys.executable, peer, "--dir", a.dir, "--dtype", run.split("-")[1], "--seed", str(seed), *(["--lora"] if a.lora else [])],
                         check=True, capture_output=True, text=True, env=env).stdout
    r = json.loads(out.splitlines()[-1])
    return sum(r["seconds"]), r["accuracy"], r["peak_rss_mb"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("efficc")
    p.add_argument("dir")
    p.add_argument("--seeds", default="1,2,3")
    p.add_argument("--lora", action="store_true")
    p.add_argument("--runs", default="fp32,bf16,fp32-padded,torch-fp32,torch-bf16")
    a = p.parse_args()
    runs = a.runs.split(",")
    got = {r: [] for r in runs}
    with tempfile.TemporaryDirectory() as tmp:
        for seed in a.seeds.split(","):
            for run in runs:
                r = (torch if run.startswith("torch") else efficc)(a, run, int(seed), tmp)
                got[run].append(r)
                print(f"seed {seed}  {run:12} {r[0]:7.1f} s  accuracy {r[1]:.4f}  peak {r[2]:5.0f} MB", flush=True)
    print("\n| run | seconds | samples/s | accuracy | peak memory |\n| --- | --- | --- | --- | --- |")
    for run in runs:
        s = statistics.median(x[0] for x in got[run])
        accuracy = statistics.mean(x[1] for x in got[run])
        print(f"| {run} | {s:.1f} | {STEPS * BATCH / s:.1f} | {accuracy:.4f} | {max(x[2] for x in got[run]):.0f} MB |")
    for x, y in (("bf16", "fp32"), ("fp32", "fp32-padded"), ("bf16", "bf16-padded"), ("fp32", "torch-fp32"), ("bf16", "torch-bf16")):
        if x in got and y in got:
            print(f"time of {x} / {y}: {statistics.median(p[0] / q[0] for p, q in zip(got[x], got[y])):.3f}")


if __name__ == "__main__":
    main()
