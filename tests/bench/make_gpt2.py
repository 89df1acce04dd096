#!/usr/bin/env python3
"""Exports gpt2 (124 M parameters, random weights, seed 0) by optimum, as tests/bench/gpt2.sh wants it.

    pip install torch transformers peft "optimum-onnx[onnxruntime]"
    make_gpt2.py FILE.onnx
"""
import os
import shutil
import sys
import tempfile

import torch
from optimum.exporters.onnx import main_export
from transformers import AutoModelForCausalLM, GPT2Config


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as tmp:
        hf = os.path.join(tmp, "hf")
        AutoModelForCausalLM.from_config(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).save_pretrained(hf)
        main_export(hf, output=os.path.join(tmp, "onnx"), do_validation=False, task="text-generation", library_name="transformers")
        shutil.move(os.path.join(tmp, "onnx", "model.onnx"), sys.argv[1])


if __name__ == "__main__":
    main()
