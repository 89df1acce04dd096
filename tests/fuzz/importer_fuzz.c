/* importer_fuzz.c -- an ONNX file through reader and importer and, if it is taken, through
 * all passes.
 *
 * Weights of the inputs lie in the file "w" beside them, which holds 256 kB of noise: so
 * inputs are small, and what is mutated is structure. Whether adapters or a new head are
 * asked for follows from the size of the input.
 */
#include "fuzz.h"

#include "frontend/frontend.h"
#include "passes/pass.h"

enum { WEIGHT_BYTES = 1 << 18, BATCH = 2, SEQ = 8 };

static int64_t
no_scratch(ef_ctx *ctx, const ir_op *op, const char **why)
{
    (void)ctx, (void)op, (void)why;
    return 0;
}

static bool
fuses(const ir_op *first, const ir_op *second)
{
    (void)first, (void)second;
    return true;
}

static void
weights(void)
{
    static float w[WEIGHT_BYTES / sizeof(float)];
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) {
        x = x * 1664525u + 1013904223u;
        w[i] = (float)(x >> 8) / (1 << 25) - 0.25f;
    }
    fuzz_file("w", w, sizeof w);
}

static void
compile(ef_ctx *ctx, const char *path)
{
    static const pass_target target = {
        .name = "fuzz", .align = 64, .scratch = no_scratch, .fuse = fuses};
    fe_model *f = fe_load(ctx, path);
    ir_module *m = f ? fe_import(ctx, f) : NULL;
    if (m) {
        bool stopped;
        if (ir_verify(m))
            abort(); /* the importer made it */
        pass_run(m, &target, &stopped);
        ir_module_free(m);
    }
    fe_unload(f);
}

static void
fuzz_input(const uint8_t *data, size_t n)
{
    if (access(fuzz_path("w"), F_OK))
        weights();
    ef_config cfg = ef_config_default;
    cfg.batch = BATCH;
    cfg.seq = SEQ;
    cfg.num_labels = n % 8 < 2 ? 2 : 0;
    cfg.lora_r = n & 1 ? 2 : 0;
    ef_ctx *ctx = ef_ctx_new();
    ctx->cfg = &cfg;
    ctx->diag = fuzz_null;
    ctx->report = fuzz_null;
    ctx->max_errors = 10;
    ctx->file = "model.onnx";
    compile(ctx, fuzz_file("model.onnx", data, n));
    ef_ctx_free(ctx);
}
