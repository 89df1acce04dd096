/* cmd_inspect.c -- efficc inspect: a look at a model before it is compiled.
 *
 * The model goes through the compiler as far as it is decided what is trained, with messages
 * kept for the end. Where the import fails, its weights are looked at alone. Of the weights no
 * more is read than samples.
 */
#include "cmd_inspect.h"

#include "../passes/pass.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct inspection {
    ef_ctx *ctx;
    ef_config cfg;
    fe_model *model;
    ir_module *module;
    cJSON *json;
    FILE *said; /* messages of the compiler, in text */
    char *text;
    size_t ntext;
} inspection;

/* ---- messages ---- */

static bool
catch_messages(inspection *x)
{
    x->said = open_memstream(&x->text, &x->ntext);
    x->ctx->diag = x->said;
    return x->said != NULL;
}

/* Moves what was said into the list `problems`, one entry a message. */
static void
take_messages(inspection *x)
{
    cJSON *list = cJSON_AddArrayToObject(x->json, "problems");
    ef_diag_finish(x->ctx);
    fclose(x->said);
    x->ctx->diag = stderr;
    cJSON *last = NULL;
    for (char *rest, *line = strtok_r(x->text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        bool more = *line == ' ' && last;
        const char *before = more ? cJSON_GetStringValue(last) : "";
        const char *text = ef_printf(x->ctx->arena, "%s%s%s", before, more ? "; " : "",
                                     line + strspn(line, " "));
        if (more)
            cJSON_SetValuestring(last, text);
        else
            cJSON_AddItemToArray(list, last = cJSON_CreateString(text));
    }
    free(x->text);
}

/* ---- the model ---- */

/* Pass unpad, and what it says. */
static bool
look_at_padding(inspection *x, pass_ctx *pc)
{
    if (!x->cfg.unpad) {
        cJSON_AddStringToObject(x->json, "padding", "computed, under --no-unpad");
        return true;
    }
    static const char head[] = "padding: ";
    char *text = NULL;
    size_t n;
    x->ctx->report = open_memstream(&text, &n);
    bool ok = x->ctx->report && pass_unpad(pc);
    if (x->ctx->report)
        fclose(x->ctx->report);
    x->ctx->report = NULL;
    if (text && !strncmp(text, head, sizeof head - 1)) {
        text[strcspn(text, "\n")] = 0;
        cJSON_AddStringToObject(x->json, "padding", text + sizeof head - 1);
    }
    free(text);
    return ok;
}

/* As far as what is trained is decided. */
static void
run_passes(inspection *x)
{
    pass_ctx pc = {.m = x->module, .scratch = ef_arena_new()};
    bool ok = pass_canon(&pc) && pass_recognise(&pc);
    if (ok) {
        inspect_attention(x->json, x->module);
        ok = pass_task(&pc) && look_at_padding(x, &pc) &&
             (!x->cfg.lora_r || pass_lora(&pc));
    }
    const char *task = ir_meta_get(x->module, "task");
    if (task)
        cJSON_AddStringToObject(x->json, "task", task);
    if (ok)
        inspect_trained(x->json, x->module);
    ef_arena_free(pc.scratch);
}

static bool
look(inspection *x)
{
    inspect_file(x->json, x->model);
    inspect_operators(x->json, x->ctx, x->model);
    x->module = fe_import(x->ctx, x->model);
    bool whole = x->module != NULL;
    if (!whole) {
        fe_unload(x->model); /* a failed import leaves it half changed */
        x->model = fe_load(x->ctx, x->cfg.input);
        x->module = x->model ? fe_import_weights(x->ctx, x->model) : NULL;
    }
    if (!x->module)
        return false;
    const char *family = ir_meta_get(x->module, "family");
    if (family)
        cJSON_AddStringToObject(x->json, "family", family);
    inspect_inputs(x->json, x->model, whole ? x->module : NULL);
    inspect_weights(x->json, x->model, x->module);
    if (whole)
        run_passes(x);
    return true;
}

/* ---- advice ---- */

static void
advise(inspection *x, const char *text)
{
    cJSON_AddItemToArray(cJSON_GetObjectItem(x->json, "advice"),
                         cJSON_CreateString(text));
}

/* " --batch 8" where the file leaves the batch size open; axis 1: of the row's length. */
static const char *
size_option(inspection *x, int axis)
{
    static const char *const option[] = {"batch", "seq"};
    static const int64_t usual[] = {8, 128};
    int64_t given = axis ? x->cfg.seq : x->cfg.batch;
    const cJSON *in, *dim = NULL;
    cJSON_ArrayForEach(in, cJSON_GetObjectItem(x->json, "inputs"))
    {
        const char *role = cJSON_GetStringValue(cJSON_GetObjectItem(in, "role"));
        if (role && !strcmp(role, "ids"))
            dim = cJSON_GetArrayItem(cJSON_GetObjectItem(in, "dims"), axis);
    }
    if (!cJSON_IsString(dim))
        return "";
    return ef_printf(x->ctx->arena, " --%s %" PRId64, option[axis],
                     given ? given : usual[axis]);
}

static void
add_advice(inspection *x)
{
    enum { BIG = 1000000000 };
    ef_arena *a = x->ctx->arena;
    const cJSON *weights = cJSON_GetObjectItem(x->json, "parameters");
    double numbers = cJSON_GetNumberValue(cJSON_GetObjectItem(weights, "numbers"));
    bool trained = cJSON_GetObjectItem(x->json, "trained") != NULL;
    bool big = numbers * 16 > BIG;
    cJSON_AddArrayToObject(x->json, "advice");
    if (cJSON_GetArraySize(cJSON_GetObjectItem(weights, "unnamed")) &&
        !x->cfg.hf_config)
        advise(x,
               "some weights have no PyTorch name: --hf-config config.json may tell");
    if (trained && !x->cfg.lora_r && big)
        advise(x, ef_printf(a,
                            "all weights need about %.1f GB of memory besides "
                            "activations: with --lora-r 8 about %.1f GB",
                            numbers * 16 / 1e9, numbers * 4 / 1e9));
    if (trained)
        advise(x,
               ef_printf(a, "efficc %s%s%s%s -o DIR", x->cfg.input, size_option(x, 0),
                         size_option(x, 1), x->cfg.lora_r || big ? " --lora-r 8" : ""));
    else
        advise(x, "it can not be trained so: see the problems above");
}

/* ---- the command ---- */

static int
run(inspection *x, bool json)
{
    x->cfg.any_size = x->cfg.glance = true;
    x->ctx->cfg = &x->cfg;
    x->ctx->file = x->cfg.input;
    x->ctx->report = NULL;
    x->model = fe_load(x->ctx, x->cfg.input);
    if (!x->model || !catch_messages(x))
        return 1;
    x->json = cJSON_CreateObject();
    bool ok = look(x);
    take_messages(x);
    if (ok)
        add_advice(x);
    if (json) {
        char *text = cJSON_Print(x->json);
        puts(text);
        cJSON_free(text);
    } else {
        inspect_text(stdout, x->json);
    }
    return ok ? 0 : 1;
}

int
cmd_inspect(ef_ctx *ctx, const cmd_args *args)
{
    const ef_config *before = ctx->cfg;
    FILE *report = ctx->report;
    inspection x = {.ctx = ctx};
    int code = cmd_compiler_options(ctx, args, &x.cfg);
    if (code < 0)
        code = run(&x, cmd_flag(args, "json"));
    if (x.module)
        ir_module_free(x.module);
    fe_unload(x.model);
    cJSON_Delete(x.json);
    ctx->cfg = before;
    ctx->report = report;
    return code;
}
