"""Adapters as PEFT saves them, and the weights that its merge_and_unload() makes of them.

    python make_adapters.py        writes NAME/ and NAME.safetensors beside this file

The models are those of ../../cases (families.py), so the adapters fit their model.onnx. Needs torch,
transformers and peft, as tests/cases/README.md lists them.
"""
import os
import shutil
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "cases"))
import families  # noqa: E402

ADAPTERS = {
    # ranks and scales by module, expressions, a classifier saved whole
    "bert-patterns": ("bert", dict(
        r=4, lora_alpha=8, use_rslora=True, target_modules=["query", "key", "value"], task_type="SEQ_CLS",
        modules_to_save=["classifier"], rank_pattern={r"layer\.1\.attention\.self\.value": 6, "query": 2},
        alpha_pattern={"^bert.encoder.layer.0.attention.self.key": 3, r"layer\.\d+\.(?:output\.)?.*query": 5})),
    # Conv1D modules, some of them square
    "gpt2-conv1d": ("gpt2", dict(r=3, lora_alpha=6, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True,
                                 task_type="CAUSAL_LM")),
    # an embedding
    "gpt2-table": ("gpt2", dict(r=2, lora_alpha=5, target_modules=["wpe"], task_type="CAUSAL_LM")),
    # the output layer is tied to the embedding: both are saved, and stay one
    "gpt2-tied": ("gpt2", dict(r=2, lora_alpha=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM",
                               modules_to_save=["wte", "lm_head"], ensure_weight_tying=True)),
    # one layer of a tied pair alone, which a model that has it once can't hold
    "gpt2-untied": ("gpt2", dict(r=2, lora_alpha=2, target_modules=["wte"], task_type="CAUSAL_LM")),
}


def noise(model):
    """Every trained tensor moves, so that nothing that is left out goes unseen."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                g = torch.Generator().manual_seed(families.seed_of("export", name))
                p.add_(torch.randn(p.shape, generator=g) * 0.1)


def make(name):
    family, config = ADAPTERS[name]
    base = families.build(family)
    before = {k: v.clone() for k, v in base.state_dict().items()}
    torch.manual_seed(1)
    model = get_peft_model(base, LoraConfig(lora_dropout=0.0, **config))
    noise(model)
    out = os.path.join(HERE, name)
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    for f in os.listdir(out):
        if not f.startswith("adapter_"):
            os.remove(os.path.join(out, f))
    merged = model.merge_and_unload().state_dict()
    changed = {k: v.clone() for k, v in merged.items() if not torch.equal(v, before[k])}
    save_file(changed, out + ".safetensors")
    print(name, len(changed), "weights change;", len(load_file(out + "/adapter_model.safetensors")), "tensors")


for name in sys.argv[1:] or ADAPTERS:
    make(name)
