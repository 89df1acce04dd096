/* print_test.c -- what importing a real export reports and gives, as text, byte by byte.
 *
 * The goldens are tests/golden/import/NAME.want: the report, then the module; EFFICC_BLESS=1
 * writes them.
 */
#include "frontend/frontend.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    NEED(f != NULL);
    fputs(text, f);
    fclose(f);
}

static void
check_golden(ef_ctx *ctx, const char *name, const char *got)
{
    size_t n;
    const char *path =
        ef_printf(ctx->arena, SRC_DIR "/tests/golden/import/%s.want", name);
    if (getenv("EFFICC_BLESS"))
        write_file(path, got);
    const char *want = ef_read_file(ctx->arena, path, 1 << 22, &n);
    bool same = want && !strcmp(want, got);
    CHECK(same);
    if (same)
        return;
    const char *file = ef_printf(ctx->arena, BIN_DIR "/%s.got", name);
    write_file(file, got);
    printf("  diff %s %s\n", path, file);
}

static void
check_case(const char *name)
{
    NEED(!chdir(SRC_DIR "/tests/cases")); /* paths of weights stand in the text */
    ef_ctx *ctx = ef_ctx_new();
    ef_config cfg = ef_config_default;
    char *report = NULL;
    size_t n = 0;
    cfg.batch = 2;
    cfg.seq = 8;
    ctx->cfg = &cfg;
    ctx->report = open_memstream(&report, &n);
    fe_model *f = fe_load(ctx, ef_printf(ctx->arena, "%s/model.onnx", name));
    ir_module *m = f ? fe_import(ctx, f) : NULL;
    fclose(ctx->report);
    NEED(m != NULL);
    ef_buf text = {.arena = ctx->arena};
    ef_puts(&text, report);
    ef_puts(&text, "\n");
    ir_print(m, &text);
    check_golden(ctx, name, text.s);
    free(report);
    ir_module_free(m);
    fe_unload(f);
    ef_ctx_free(ctx);
}

TEST(gpt2)
{
    check_case("gpt2-legacy17");
}

TEST(bert_with_shared_vectors)
{
    check_case("bert-legacy17-dedup");
}
