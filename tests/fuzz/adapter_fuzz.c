/* adapter_fuzz.c -- a PEFT adapter as it is, into a program that adapts whole modules, and
 * into one that adapts row ranges of a fused one.
 *
 * An input is adapter_config.json, a zero byte, adapter_model.safetensors (see fuzz.h).
 */
#include "fuzz.h"

#include "runtime/host/host_int.h"
#include "runtime/host/peft.h"

enum { BYTES = 1 << 10 };

static const char *const qv[] = {"query", "value", NULL};
static const char *const fused[] = {"c_attn", NULL};
static const char *const classifier[] = {"classifier", NULL};

#define LORA(ab, kind, mod, at, r, c)                                               \
    {                                                                               \
        .name = mod "." ab, .role = kind, .n = (r) * (c), .rank = 2, .dim = {r, c}, \
        .offset = at, .module = mod                                                 \
    }
#define ROWS(ab, kind, mod, p, at, r, c, first)                                     \
    {                                                                               \
        .name = mod "." p "." ab, .role = kind, .n = (r) * (c), .rank = 2,          \
        .dim = {r, c}, .offset = at, .module = mod, .part = p, .part_start = first, \
        .part_len = 2, .part_of = 6                                                 \
    }

static const rt_param whole_params[] = {
    LORA("lora_A", RT_LORA_A, "l.0.query", 0, 2, 3),
    LORA("lora_B", RT_LORA_B, "l.0.query", 64, 4, 2),
    LORA("lora_A", RT_LORA_A, "l.0.value", 128, 2, 3),
    LORA("lora_B", RT_LORA_B, "l.0.value", 192, 4, 2),
    {.name = "classifier.weight",
     .hf = "classifier.weight",
     .onnx = "onnx::MatMul_1",
     .role = RT_MODULE,
     .transposed = true,
     .n = 6,
     .rank = 2,
     .dim = {3, 2},
     .offset = 256},
};
static const rt_param rows_params[] = {
    ROWS("lora_A", RT_LORA_A, "h.0.c_attn", "q", 0, 2, 3, 0),
    ROWS("lora_B", RT_LORA_B, "h.0.c_attn", "q", 64, 2, 2, 0),
    ROWS("lora_A", RT_LORA_A, "h.0.c_attn", "v", 128, 2, 3, 4),
    ROWS("lora_B", RT_LORA_B, "h.0.c_attn", "v", 192, 2, 2, 4),
};
static const rt_program whole = {.task = "seq-cls",
                                 .model = "m.onnx",
                                 .family = "bert",
                                 .param = whole_params,
                                 .nparam = 5,
                                 .lora_r = 2,
                                 .lora_alpha = 2,
                                 .lora_scale = 1,
                                 .lora_targets = qv,
                                 .modules_to_save = classifier};
static const rt_program rows = {.task = "causal-lm",
                                .model = "m.onnx",
                                .family = "gpt2",
                                .param = rows_params,
                                .nparam = 4,
                                .lora_r = 2,
                                .lora_alpha = 2,
                                .lora_scale = 1,
                                .lora_rows = true,
                                .lora_fan_in_fan_out = true,
                                .lora_targets = fused,
                                .modules_to_save = classifier + 1};

static void
load_into(const rt_program *p)
{
    static _Alignas(64) char memory[RT_NCLASSES][BYTES];
    static char *unit[RT_NCLASSES];
    rt_run run = {.program = p};
    for (int c = 0; c < RT_NCLASSES; c++) {
        unit[c] = memory[c];
        run.base[c] = &unit[c];
    }
    rt_adapter_load(&run, fuzz_dir);
}

static void
fuzz_input(const uint8_t *data, size_t n)
{
    rt_out = rt_err = fuzz_null;
    const uint8_t *zero = n ? memchr(data, 0, n) : NULL;
    if (!zero)
        return;
    size_t config = (size_t)(zero - data);
    fuzz_file("adapter_config.json", data, config);
    fuzz_tensors("adapter_model.safetensors", zero + 1, n - config - 1);
    rt_peft peft;
    rt_peft_open(&peft, fuzz_dir);
    rt_peft_close(&peft);
    load_into(&whole);
    load_into(&rows);
}
