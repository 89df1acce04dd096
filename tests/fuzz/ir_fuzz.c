/* ir_fuzz.c -- the text of a module: parser, verifier, printer, and that what was printed
 * reads back as the same text.
 */
#include "fuzz.h"

#include "ir/config.h"
#include "ir/ir.h"

/* The module as text; NULL: it was refused. */
static const char *
again(ef_ctx *ctx, const char *text, bool *valid)
{
    ir_module *m = ir_parse(ctx, "fuzz.ir", text);
    if (!m)
        return NULL;
    *valid = !ir_verify(m);
    ef_buf b = {.arena = ctx->arena};
    ir_print(m, &b);
    ir_module_free(m);
    return b.s;
}

static void
fuzz_input(const uint8_t *data, size_t n)
{
    ef_ctx *ctx = ef_ctx_new();
    ctx->diag = fuzz_null;
    ctx->report = fuzz_null;
    ctx->max_errors = 10;
    bool valid = false, still = false;
    const char *once =
        again(ctx, ef_strndup(ctx->arena, (const char *)data, n), &valid);
    const char *twice = once ? again(ctx, once, &still) : NULL;
    if (once && (!twice || strcmp(once, twice) || valid != still))
        abort();
    ef_ctx_free(ctx);
}
