"""Writes bert-training.onnx: a classifier of one layer, exported in training mode, with a probability of its own at each
kind of place. Needs torch 2.9 and transformers 4.57.

    python make_model.py
"""
import contextlib
import os

import torch
import transformers as tf
import transformers.masking_utils as masks

HERE = os.path.dirname(os.path.abspath(__file__))


def broadcasting_mask(rule, bh_indices=True):
    """Instead of vmap, which this exporter does not know."""
    def mask(b, h, q, k):
        return rule(b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), q.view(1, 1, -1, 1), k.view(1, 1, 1, -1))
    return mask


def main():
    masks._vmap_for_bhqkv, masks.TransformGetItemToIndex = broadcasting_mask, contextlib.nullcontext
    torch.manual_seed(0)
    model = tf.BertForSequenceClassification(tf.BertConfig(
        vocab_size=160, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24, num_labels=3, hidden_dropout_prob=0.125, attention_probs_dropout_prob=0.25,
        classifier_dropout=0.375, attn_implementation="eager")).train()
    plain = model.forward
    model.forward = lambda ids, mask: plain(input_ids=ids, attention_mask=mask).to_tuple()[:1]
    ids = torch.randint(1, 160, (2, 8))
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(model, (ids, torch.ones_like(ids)), os.path.join(HERE, "bert-training.onnx"), dynamo=False,
                      opset_version=17, input_names=names, output_names=["logits"],
                      dynamic_axes={n: {0: "batch", 1: "seq"} for n in names},
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)


main()
