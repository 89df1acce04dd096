/* input.c -- the input file, which is a model or a text. */
#include "frontend.h"

#include <errno.h>
#include <string.h>

enum { IR_BYTES_MAX = 1 << 28 };

static bool
has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && !strcmp(s + n - k, suffix);
}

ir_module *
fe_read(ef_ctx *ctx, fe_model **model)
{
    const char *path = ctx->cfg->input;
    *model = NULL;
    if (!has_suffix(path, ".ir")) {
        *model = fe_load(ctx, path);
        return *model ? fe_import(ctx, *model) : NULL;
    }
    size_t n;
    const char *text = ef_read_file(ctx->arena, path, IR_BYTES_MAX, &n);
    if (!text)
        ef_error(ctx, NULL, E_FILE, path, strerror(errno));
    return text ? ir_parse(ctx, path, text) : NULL;
}
