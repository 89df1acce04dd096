/* adapter_toy.h -- two programs with adapters, a few numbers each: one adapts whole modules,
 * and trains a classifier beside them; one adapts row ranges of a fused matrix.
 */
#ifndef EFFICC_ADAPTER_TOY_H
#define EFFICC_ADAPTER_TOY_H

#include "efficc_rt.h"

static const char *const toy_qv[] = {"query", "value", NULL};
static const char *const toy_fused[] = {"c_attn", NULL};
static const char *const toy_classifier[] = {"classifier", NULL};

#define TOY_LORA(ab, kind, mod, at, r, c)                                           \
    {                                                                               \
        .name = mod "." ab, .role = kind, .n = (r) * (c), .rank = 2, .dim = {r, c}, \
        .offset = at, .image = -1, .module = mod                                    \
    }
#define TOY_ROW_LORA(ab, kind, mod, p_, at, r, c, first)                     \
    {                                                                        \
        .name = mod "." p_ "." ab, .role = kind, .n = (r) * (c), .rank = 2,  \
        .dim = {r, c}, .offset = at, .image = -1, .module = mod, .part = p_, \
        .part_start = first, .part_len = 2, .part_of = 6                     \
    }

static const rt_param toy_whole_param[] = {
    TOY_LORA("lora_A", RT_LORA_A, "l.0.query", 0, 2, 3),
    TOY_LORA("lora_B", RT_LORA_B, "l.0.query", 64, 4, 2),
    TOY_LORA("lora_A", RT_LORA_A, "l.0.value", 128, 2, 3),
    TOY_LORA("lora_B", RT_LORA_B, "l.0.value", 192, 4, 2),
    {.name = "classifier.weight",
     .hf = "classifier.weight",
     .onnx = "onnx::MatMul_1",
     .role = RT_MODULE,
     .transposed = true,
     .n = 6,
     .rank = 2,
     .dim = {3, 2},
     .offset = 256,
     .image = -1},
    {.name = "classifier.bias",
     .hf = "classifier.bias",
     .role = RT_MODULE,
     .n = 2,
     .rank = 1,
     .dim = {2},
     .offset = 320,
     .image = -1},
    {.name = "emb.weight",
     .hf = "emb.weight",
     .cls = RT_FROZEN,
     .n = 4,
     .rank = 2,
     .dim = {2, 2},
     .image = -1},
};

static const rt_param toy_rows_param[] = {
    TOY_ROW_LORA("lora_A", RT_LORA_A, "h.0.c_attn", "q", 0, 2, 3, 0),
    TOY_ROW_LORA("lora_B", RT_LORA_B, "h.0.c_attn", "q", 64, 2, 2, 0),
    TOY_ROW_LORA("lora_A", RT_LORA_A, "h.0.c_attn", "v", 128, 2, 3, 4),
    TOY_ROW_LORA("lora_B", RT_LORA_B, "h.0.c_attn", "v", 192, 2, 2, 4),
    TOY_LORA("lora_A", RT_LORA_A, "h.0.c_proj", 256, 2,
             3), /* TOY_ROWS on: of one test */
    TOY_LORA("lora_B", RT_LORA_B, "h.0.c_proj", 320, 4, 2),
};

enum { TOY_WHOLE = sizeof toy_whole_param / sizeof *toy_whole_param, TOY_ROWS = 4 };

static const rt_program toy_whole = {.task = "seq-cls",
                                     .param = toy_whole_param,
                                     .nparam = TOY_WHOLE,
                                     .lora_r = 2,
                                     .lora_alpha = 4,
                                     .lora_scale = 2,
                                     .lora_targets = toy_qv,
                                     .modules_to_save = toy_classifier};
static const rt_program toy_rows = {.task = "causal-lm",
                                    .param = toy_rows_param,
                                    .nparam = TOY_ROWS,
                                    .lora_r = 2,
                                    .lora_alpha = 2,
                                    .lora_scale = 1,
                                    .lora_rows = true,
                                    .lora_fan_in_fan_out = true,
                                    .lora_targets = toy_fused};

#endif
