/* cmd_verify_show.c -- what efficc verify found: the worst of it as text, or all as JSON. */
#include "cmd_verify.h"

#include <stdio.h>

enum { SHOWN = 10 };

static const char *const phase[] = {"forward", "backward", "update"};

/* ---- text ---- */

static void
print_rows(const char *name, const verify_rows *rows)
{
    printf("%-11s %d results, %d beyond what is allowed; the worst:\n", name, rows->n,
           rows->bad);
    printf("%12s %10s %10s  result\n", "ulp", "relative", "allowed");
    for (int i = 0; i < rows->n && i < SHOWN; i++) {
        const verify_row *r = &rows->at[i];
        const ir_module *m = r->op->block->func->module;
        printf("%12.3g %10.2e %10.2e  %s%%%s = %s", r->ulp, r->error, r->allowed,
               r->error <= r->allowed ? "" : "WRONG ", r->name,
               ir_ops[r->op->code].name);
        if (r->op->loc)
            printf(" (%s)", r->op->loc);
        printf(", %s %s: [%lld] is %.9g, not %.9g\n", m->units.at[r->op->block->unit],
               phase[r->op->block->phase], (long long)r->at, r->got, r->want);
    }
}

static void
print_slopes(const slopes *s)
{
    for (int i = 0; i < s->n; i++) {
        const slope *w = &s->at[i];
        if (w->bad || !i)
            printf("%-11s %s: gradient %.9g, difference %.9g, relative error %.2e%s\n",
                   i ? "" : "slopes", w->unit ? w->unit : "all trained", w->gradient,
                   w->difference, w->error, w->bad ? " WRONG" : "");
    }
    printf("%-11s %d directions, %d wrong", "", s->n, s->bad);
    if (s->left)
        printf("; %d units left out for want of time", s->left);
    puts("");
}

/* ---- JSON ---- */

static cJSON *
json_of_row(const verify_row *r)
{
    const ir_block *b = r->op->block;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "result", r->name);
    cJSON_AddStringToObject(o, "op", ir_ops[r->op->code].name);
    if (r->op->loc)
        cJSON_AddStringToObject(o, "node", r->op->loc);
    cJSON_AddStringToObject(o, "unit", b->func->module->units.at[b->unit]);
    cJSON_AddStringToObject(o, "phase", phase[b->phase]);
    cJSON_AddNumberToObject(o, "ulp", r->ulp);
    cJSON_AddNumberToObject(o, "error", r->error);
    cJSON_AddNumberToObject(o, "allowed", r->allowed);
    cJSON_AddNumberToObject(o, "at", (double)r->at);
    cJSON_AddNumberToObject(o, "got", r->got);
    cJSON_AddNumberToObject(o, "want", r->want);
    cJSON_AddBoolToObject(o, "ok", r->error <= r->allowed);
    return o;
}

static cJSON *
json_of_slope(const slope *s)
{
    cJSON *o = cJSON_CreateObject();
    if (s->unit)
        cJSON_AddStringToObject(o, "unit", s->unit);
    cJSON_AddNumberToObject(o, "gradient", s->gradient);
    cJSON_AddNumberToObject(o, "difference", s->difference);
    cJSON_AddNumberToObject(o, "error", s->error);
    cJSON_AddBoolToObject(o, "ok", !s->bad);
    return o;
}

static void
put(cJSON *json, const char *name, const verify_rows *rows, const slopes *s)
{
    cJSON *o = cJSON_AddObjectToObject(json, name);
    cJSON_AddNumberToObject(o, "wrong", rows->bad + s->bad);
    cJSON *list = cJSON_AddArrayToObject(o, "results");
    for (int i = 0; i < rows->n; i++)
        cJSON_AddItemToArray(list, json_of_row(&rows->at[i]));
    if (!s->n)
        return;
    list = cJSON_AddArrayToObject(o, "slopes");
    for (int i = 0; i < s->n; i++)
        cJSON_AddItemToArray(list, json_of_slope(&s->at[i]));
    cJSON_AddNumberToObject(o, "slopes_left_out", s->left);
}

/* ---- both ---- */

void
verify_show(cJSON *json, const char *name, const verify_rows *rows, const slopes *s)
{
    if (json) {
        put(json, name, rows, s);
        return;
    }
    print_rows(name, rows);
    if (s->n)
        print_slopes(s);
}

void
verify_show_all(cJSON *json, bool agree)
{
    if (!json) {
        puts(agree ? "verify: all agree" : "verify: WRONG");
        return;
    }
    cJSON_AddBoolToObject(json, "agree", agree);
    char *text = cJSON_Print(json);
    puts(text);
    cJSON_free(text);
}
