/* cmd_plan_roof.c -- efficc plan --roofline: operations and bytes of a step, and what a card
 * makes of them; see codegen/cost.h.
 *
 * Two predictions: "demonstrated", at rates that programs were measured at, and "hard", which
 * no program can pass: the fastest product of any shape, and memory as the data sheet has it.
 */
#include "cmd_plan.h"

#include <string.h>

typedef struct share { /* of a kind of kernel, in a step; the last one is the sum */
    double kernels, flop, bytes, seconds, hard, waiting; /* waiting: for memory */
} share;

typedef struct roof {
    ef_ctx *ctx;
    ef_arena *arena;
    const ir_module *m;
    const cg_card *card;
    int64_t micro;
    cg_costs costs;
    share kind[CG_NKINDS + 1];
    int layer;                /* unit of the layer in the middle; -1: there is none */
    int calls[2], kernels[2]; /* of it, forward and backward */
} roof;

static void
add(share *s, const roof *x, const cg_cost *c)
{
    bool by_bytes, hard_by_bytes;
    double times = c->op->block->phase == IR_UPDATE ? 1 : (double)x->micro;
    double seconds = cg_seconds(x->card, c, false, &by_bytes);
    s->kernels += times * c->kernels;
    s->flop += times * c->flop;
    s->bytes += times * c->bytes;
    s->seconds += times * seconds;
    s->hard += times * cg_seconds(x->card, c, true, &hard_by_bytes);
    s->waiting += by_bytes ? times * seconds : 0;
}

static int
middle_layer(const ir_module *m)
{
    int unit[2] = {0, -1}; /* how many there are, the one in the middle */
    for (int i = 0; i < m->units.n; i++)
        unit[0] += !strncmp(m->units.at[i], "layer.", 6);
    for (int i = 0, n = 0; i < m->units.n && unit[1] < 0; i++)
        if (!strncmp(m->units.at[i], "layer.", 6) && n++ == unit[0] / 2)
            unit[1] = i;
    return unit[1];
}

static void
sum_up(roof *x)
{
    x->layer = middle_layer(x->m);
    for (int i = 0; i < x->costs.at.n; i++) {
        const cg_cost *c = &x->costs.at.at[i];
        const ir_block *b = c->op->block;
        add(&x->kind[c->kind], x, c);
        add(&x->kind[CG_NKINDS], x, c);
        if (b->unit == x->layer && b->phase != IR_UPDATE) {
            x->calls[b->phase] += c->calls;
            x->kernels[b->phase] += c->kernels;
        }
    }
}

/* Of a step. */
static double
tokens(const roof *x)
{
    return (double)(ir_meta_int(x->m, "batch", 0) * ir_meta_int(x->m, "seq", 0) *
                    x->micro);
}

/* ---- text ---- */

static void
print_share(const roof *x, const char *text, const share *s)
{
    double part = 100 * s->seconds / x->kind[CG_NKINDS].seconds;
    double waiting = s->seconds > 0 ? 100 * s->waiting / s->seconds : 0;
    if (s->kernels > 0)
        printf("  %-18s %8.0f %10.1f %10.2f %10.3f %5.0f %%   %s %.0f %%\n", text,
               s->kernels, s->flop / 1e9, s->bytes / 1e9, 1e3 * s->seconds, part,
               waiting > 50 ? "memory" : "compute",
               waiting > 50 ? waiting : 100 - waiting);
}

static void
print(const roof *x, double memory)
{
    const share *all = &x->kind[CG_NKINDS];
    const char *precision = ir_meta_get(x->m, "precision");
    printf("predicted, not measured: one step of %lld x %.0f tokens in %s on one %s\n",
           (long long)x->micro, tokens(x) / (double)x->micro,
           precision ? precision : "fp32", x->card->text);
    printf("  %-18s %8s %10s %10s %10s %7s   %s\n", "", "kernels", "GFLOP", "GB", "ms",
           "share", "waits for");
    for (int i = 0; i < CG_NKINDS; i++)
        print_share(x, cg_kind_text[i], &x->kind[i]);
    print_share(x, "all", all);
    if (tokens(x) > 0)
        printf("tokens/s    %.0f at demonstrated rates, %.0f at most\n",
               tokens(x) / all->seconds, tokens(x) / all->hard);
    if (x->layer >= 0)
        printf("%-11s %d calls, %d kernels forward; %d calls, %d kernels backward\n",
               x->m->units.at[x->layer], x->calls[0], x->kernels[0], x->calls[1],
               x->kernels[1]);
    printf("card        %s of %s%s\n", plan_size(x->arena, memory),
           plan_size(x->arena, x->card->memory),
           memory > x->card->memory ? ": TOO MUCH" : "");
}

/* ---- JSON ---- */

static void
put(cJSON *o, const char *name, double value)
{
    cJSON_AddNumberToObject(o, name, value);
}

static void
put_share(cJSON *o, const share *s)
{
    put(o, "kernels", s->kernels);
    put(o, "flop", s->flop);
    put(o, "bytes", s->bytes);
    put(o, "seconds", s->seconds);
    put(o, "seconds_hard", s->hard);
    put(o, "seconds_waiting_for_memory", s->waiting);
}

static void
put_row(const roof *x, const cg_cost *c, cJSON *list)
{
    static const char *const phase[] = {"forward", "backward", "update"};
    const ir_block *b = c->op->block;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToArray(list, o);
    cJSON_AddStringToObject(o, "op", ir_ops[c->op->code].name);
    if (*c->stage)
        cJSON_AddStringToObject(o, "stage", c->stage);
    if (c->op->nres)
        cJSON_AddStringToObject(o, "value", c->op->res[0]->name);
    cJSON_AddStringToObject(o, "unit", x->m->units.at[b->unit]);
    cJSON_AddStringToObject(o, "phase", phase[b->phase]);
    cJSON_AddStringToObject(o, "kind", cg_kind_text[c->kind]);
    bool by_bytes, hard_by_bytes;
    double seconds = cg_seconds(x->card, c, false, &by_bytes);
    put(o, "calls", c->calls);
    put(o, "kernels", c->kernels);
    put(o, "flop", c->flop);
    put(o, "bytes", c->bytes);
    put(o, "seconds", seconds);
    put(o, "seconds_hard", cg_seconds(x->card, c, true, &hard_by_bytes));
    cJSON_AddStringToObject(o, "waits_for", by_bytes ? "memory" : "compute");
}

static void
put_all(const roof *x, cJSON *json)
{
    const share *all = &x->kind[CG_NKINDS];
    cJSON *o = cJSON_AddObjectToObject(json, "roofline");
    cJSON_AddStringToObject(o, "card", x->card->text);
    put(o, "card_memory", x->card->memory);
    put(o, "micro_batches", (double)x->micro);
    put(o, "tokens", tokens(x));
    put_share(o, all);
    put(o, "tokens_per_second", tokens(x) / all->seconds);
    put(o, "tokens_per_second_hard", tokens(x) / all->hard);
    if (x->layer >= 0) {
        cJSON *layer = cJSON_AddObjectToObject(o, "layer");
        cJSON_AddStringToObject(layer, "unit", x->m->units.at[x->layer]);
        put(layer, "forward_calls", x->calls[0]);
        put(layer, "forward_kernels", x->kernels[0]);
        put(layer, "backward_calls", x->calls[1]);
        put(layer, "backward_kernels", x->kernels[1]);
    }
    cJSON *kinds = cJSON_AddObjectToObject(o, "kinds");
    for (int i = 0; i < CG_NKINDS; i++)
        put_share(cJSON_AddObjectToObject(kinds, cg_kind_text[i]), &x->kind[i]);
    cJSON *rows = cJSON_AddArrayToObject(o, "rows");
    for (int i = 0; i < x->costs.at.n; i++)
        put_row(x, &x->costs.at.at[i], rows);
}

bool
plan_roofline(ef_ctx *ctx, const ir_module *m, const cg_card *card, int64_t micro,
              double memory, cJSON *json)
{
    ef_arena *a = ef_arena_new();
    roof x = {.ctx = ctx, .arena = a, .m = m, .card = card, .micro = micro};
    bool ok = cg_cost_of(m, a, &x.costs);
    if (ok) {
        sum_up(&x);
        if (json)
            put_all(&x, json);
        else
            print(&x, memory);
    }
    ef_arena_free(a);
    return ok;
}
