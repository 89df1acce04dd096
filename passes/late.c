/* late.c -- options that come too late.
 *
 * Work can go on from text, and then an option that a pass has read already, or the import,
 * can't change what was done: it is an error unless it says the same. What was done stands in
 * the module's meta, as a fact or, under option.NAME, as it was given.
 */
#include <string.h>

#include "pass_int.h"

enum { IMPORT = -1 };

typedef struct row {
    const char *option;
    const char *given; /* NULL: not given */
    const char *fact;  /* key of meta; NULL: option.NAME */
    const char *usual; /* what was done where meta says nothing; NULL: nothing */
    int first, last;   /* passes that read it */
} row;

static const char *
number(ef_ctx *ctx, int64_t n)
{
    return n ? ef_internf(ctx, "%lld", (long long)n) : NULL;
}

enum { ROWS = 19 };

static void
look_at(const ir_module *m, row r[ROWS])
{
    ef_ctx *ctx = m->ctx;
    const ef_config *c = ctx->cfg;
    bool lora = ir_meta_get(m, "lora.r");
    /* pass lora decides once more what is trained */
    int trained = c->lora_r ? PASS_AT_lora : PASS_AT_task;
    const row rows[ROWS] = {
        {"batch", number(ctx, c->batch), "batch", NULL, IMPORT, IMPORT},
        {"seq", number(ctx, c->seq), "seq", NULL, IMPORT, IMPORT},
        {"no-recognise", c->no_recognise, NULL, NULL, PASS_AT_recognise,
         PASS_AT_recognise},
        {"task", c->task, "task", NULL, PASS_AT_task, PASS_AT_task},
        {"num-labels", number(ctx, c->num_labels), "labels", NULL, PASS_AT_task,
         PASS_AT_task},
        {"pool", strcmp(c->pool, ef_config_default.pool) ? c->pool : NULL, "pool", NULL,
         PASS_AT_task, PASS_AT_task},
        {"freeze", c->freeze, NULL, NULL, PASS_AT_task, trained},
        {"trainable", c->trainable, NULL, NULL, PASS_AT_task, trained},
        {"dropout", c->dropout >= 0 ? ef_ftoa(c->dropout) : NULL, NULL, NULL,
         PASS_AT_dropout, PASS_AT_dropout},
        {"lora-dropout", c->lora_dropout > 0 ? ef_ftoa(c->lora_dropout) : NULL, NULL,
         NULL, PASS_AT_lora, PASS_AT_lora},
        {"lora-r", c->lora_implied ? NULL : number(ctx, c->lora_r), "lora.r", NULL,
         PASS_AT_lora, PASS_AT_lora},
        {"lora-alpha", c->lora_alpha > 0 ? ef_ftoa(c->lora_alpha) : NULL, "lora.alpha",
         NULL, PASS_AT_lora, PASS_AT_lora},
        {"lora-targets", c->lora_targets, NULL, lora ? PASS_LORA_TARGETS : NULL,
         PASS_AT_lora, PASS_AT_lora},
        {"lora-scale", c->lora_scale, NULL, lora ? PASS_LORA_SCALE : NULL, PASS_AT_lora,
         PASS_AT_lora},
        {"no-unpad", c->unpad ? NULL : "padding", "sizes.rows", "padding",
         PASS_AT_unpad, PASS_AT_unpad},
        {"bf16", c->bf16 ? "bf16" : NULL, "precision", "fp32", PASS_AT_autocast,
         PASS_AT_autocast},
        {"fp16", c->fp16 ? "fp16" : NULL, "precision", "fp32", PASS_AT_autocast,
         PASS_AT_autocast},
        {"fp32", c->fp32 ? "fp32" : NULL, "precision", "fp32", PASS_AT_autocast,
         PASS_AT_autocast},
        {"residual",
         strcmp(c->residual, ef_config_default.residual) ? c->residual : NULL, NULL,
         NULL, PASS_AT_autocast, PASS_AT_autocast},
    };
    memcpy(r, rows, sizeof rows);
}

static const char *
own_key(ef_ctx *ctx, const row *r)
{
    return ef_internf(ctx, "option.%s", r->option);
}

void
pass_note_options(ir_module *m, int pass)
{
    row r[ROWS];
    look_at(m, r);
    for (int i = 0; i < ROWS; i++)
        if (r[i].given && !r[i].fact && (r[i].first == pass || r[i].last == pass))
            ir_meta_set(m, own_key(m->ctx, &r[i]), r[i].given);
}

bool
pass_options_fit(const ir_module *m, int next)
{
    ef_ctx *ctx = m->ctx;
    bool fit = true;
    row r[ROWS];
    look_at(m, r);
    for (int i = 0; i < ROWS; i++) {
        if (!r[i].given || r[i].last >= next)
            continue;
        const char *done = ir_meta_get(m, r[i].fact ? r[i].fact : own_key(ctx, &r[i]));
        done = done ? done : r[i].usual;
        if (done && !strcmp(done, r[i].given))
            continue;
        fit = ef_error(
            ctx, NULL, E_OPT_VALUE, r[i].option,
            ef_printf(ctx->arena, "%s comes too late: the module was made %s%s",
                      r[i].given, done ? "with " : "without", done ? done : ""));
    }
    if (!fit)
        ef_hint(ctx, "go on from an earlier module, or from the model");
    return fit;
}
