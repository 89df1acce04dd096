/* cmd_plan.c -- efficc plan: what training a model takes, before anything is compiled.
 *
 * The model goes through all passes as it would for a trainer, and the planned module is
 * what is looked at. Of weights no more is read than samples, so that files of which only
 * the shapes are real will do.
 */
#include "cmd_plan.h"

#include "../codegen/cg.h"

#include <string.h>

const char *
plan_size(ef_arena *a, double bytes)
{
    static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
    int i = 0;
    for (; bytes >= 1000 && i + 1 < (int)EF_COUNT(unit); i++)
        bytes /= 1000;
    return ef_printf(a, i ? "%.1f %s" : "%.0f %s", bytes, unit[i]);
}

/* ---- memory ---- */

typedef struct memory {
    cg_memory row[CG_MEMORY_ROWS];
    int64_t arena, saved, scratch, bound, total;
} memory;

static memory
memory_of(const ir_module *m, ef_arena *a)
{
    memory x = {.arena = ir_meta_int(m, "arena_bytes", 0),
                .bound = ir_meta_int(m, "bound_bytes", 0),
                .saved = cg_saved_bytes(m, a),
                .scratch = cg_scratch_bytes(m)};
    x.total = cg_memory_of(m, x.row) + x.arena;
    return x;
}

static void
print_row(ef_arena *a, const char *text, int64_t bytes, const char *note)
{
    printf("  %-28s %10s%s\n", text, plan_size(a, (double)bytes), note);
}

static void
print_memory(ef_arena *a, const memory *x)
{
    puts("memory");
    for (int i = 0; i < CG_MEMORY_ROWS; i++)
        if (x->row[i].bytes)
            print_row(a, x->row[i].text, x->row[i].bytes, "");
    print_row(
        a, "activations", x->arena,
        ef_printf(a, "   %s is the least possible", plan_size(a, (double)x->bound)));
    print_row(a, "  kept for the backward", x->saved, "   among them");
    print_row(a, "  largest scratch space", x->scratch, "   among them");
    print_row(a, "total", x->total, "");
}

static void
put(cJSON *o, const char *name, int64_t x)
{
    cJSON_AddNumberToObject(o, name, (double)x);
}

static void
put_memory(cJSON *json, const memory *x)
{
    cJSON *o = cJSON_AddObjectToObject(json, "memory");
    for (int i = 0; i < CG_MEMORY_ROWS; i++)
        put(o, x->row[i].name, x->row[i].bytes);
    put(o, "arena", x->arena);
    put(o, "arena_bound", x->bound);
    put(o, "kept_for_backward", x->saved);
    put(o, "largest_scratch", x->scratch);
    put(o, "total", x->total);
}

/* ---- the command ---- */

static bool
show(ef_ctx *ctx, const cmd_args *args, const ir_module *m)
{
    ef_arena *a = ef_arena_new();
    cJSON *json = cmd_flag(args, "json") ? cJSON_CreateObject() : NULL;
    memory x = memory_of(m, a);
    if (json)
        put_memory(json, &x);
    else
        print_memory(a, &x);
    bool ok = true;
    if (cmd_flag(args, "roofline")) {
        const char *card = cmd_str(args, "card");
        int64_t micro = cmd_int(args, "gradient-accumulation-steps");
        ok = plan_roofline(ctx, m, cg_card_named(card ? card : "h200", NULL),
                           micro ? micro : 1, (double)x.total, json);
    }
    if (json && ok) {
        char *text = cJSON_Print(json);
        puts(text);
        cJSON_free(text);
    }
    cJSON_Delete(json);
    ef_arena_free(a);
    return ok;
}

/* What does not go together, and the card's name. */
static bool
check(ef_ctx *ctx, const cmd_args *args, const ef_config *cfg)
{
    const char *card = cmd_str(args, "card"), *names;
    bool roofline = cmd_flag(args, "roofline");
    if (!roofline && card)
        return ef_error(ctx, NULL, E_OPT_VALUE, "card", "it belongs to --roofline");
    if (!roofline && cmd_int(args, "gradient-accumulation-steps"))
        return ef_error(ctx, NULL, E_OPT_VALUE, "gradient-accumulation-steps",
                        "it belongs to --roofline");
    if (roofline && cfg->target && !strcmp(cfg->target, "cpu"))
        return ef_error(ctx, NULL, E_OPT_VALUE, "target",
                        "--roofline is of a program for a GPU");
    if (!card || cg_card_named(card, &names))
        return true;
    return ef_error(ctx, NULL, E_OPT_VALUE, "card",
                    ef_printf(ctx->arena, "'%s' is not one of %s", card, names));
}

/* cfg: ctx's, with target and precision to be settled. */
static bool
run(ef_ctx *ctx, const cmd_args *args, ef_config *cfg)
{
    if (cmd_flag(args, "roofline") && !cfg->target)
        cfg->target = "cuda";
    cg_choose_target(ctx, cfg);
    const pass_target *target = cg_target(ctx);
    fe_model *model = NULL;
    bool stopped = false;
    ir_module *m = target ? fe_read(ctx, &model) : NULL;
    if (m)
        fe_precision(ctx, cfg, m, target->computes);
    bool ok = m && pass_run(m, target, &stopped);
    if (ok && !stopped)
        ok = show(ctx, args, m);
    if (m)
        ir_module_free(m);
    fe_unload(model);
    return ok;
}

int
cmd_plan(ef_ctx *ctx, const cmd_args *args)
{
    const ef_config *before = ctx->cfg;
    FILE *report = ctx->report;
    ef_config cfg;
    int code = cmd_compiler_options(ctx, args, &cfg);
    if (code >= 0)
        return code;
    cfg.glance = true;
    ctx->cfg = &cfg;
    ctx->file = cfg.input;
    ctx->report = NULL;
    bool ok = check(ctx, args, &cfg) && run(ctx, args, &cfg);
    ctx->cfg = before;
    ctx->report = report;
    return ok ? 0 : 1;
}
