/* adapter_fuzz.c -- a PEFT adapter as it is, into a program that adapts whole modules, and
 * into one that adapts row ranges of a fused one.
 *
 * An input is adapter_config.json, a zero byte, adapter_model.safetensors (see fuzz.h).
 */
#include "fuzz.h"

#include "runtime/host/host_int.h"
#include "runtime/host/peft.h"
#include "tests/unit/adapter_toy.h"

enum { BYTES = 1 << 10 };

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
    rt_adapter_load(&run, fuzz_dir, fuzz_dir);
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
    rt_program whole = toy_whole; /* as PEFT leaves alpha; without the last params */
    whole.lora_alpha = 2;
    whole.lora_scale = 1;
    whole.nparam = 5;
    load_into(&whole);
    load_into(&toy_rows);
}
