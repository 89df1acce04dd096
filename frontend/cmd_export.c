/* cmd_export.c -- efficc export: the model with an adapter merged, or with trained tensors.
 *
 * Only weights, names and ties of the model are needed, so models that can not be trained are
 * exported too. A head that efficc added is in no model file: then the whole model is
 * imported and pass task adds the head once more.
 */
#include "cmd_export.h"

#include "../passes/pass.h"
#include "onnx_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what was given ---- */

static int
check_options(exporter *e)
{
    const char *pool = cmd_str(e->args, "pool");
    bool torch = cmd_flag(e->args, "safetensors");
    e->model_path = e->args->at[0];
    e->output = cmd_str(e->args, "output");
    e->adapter = cmd_str(e->args, "adapter");
    if (!e->output)
        return rt_fail(RT_USER, "no file to write is given\nadd -o FILE");
    if (e->adapter && cmd_str(e->args, "weights"))
        return rt_fail(RT_USER, "--adapter and --weights exclude each other\nmerge the "
                                "one, then export its result with the other");
    if (!e->adapter && !cmd_str(e->args, "weights") && !torch)
        return rt_fail(RT_USER, "nothing to do\ngive --adapter DIR, --weights FILE or "
                                "--safetensors");
    if (pool && strcmp(pool, "first") && strcmp(pool, "mean") && strcmp(pool, "pooler"))
        return rt_fail(RT_USER, "--pool: '%s' is not first, mean or pooler", pool);
    if (torch && cmd_flag(e->args, "external-data"))
        return rt_fail(RT_USER, "--external-data is of ONNX, not of --safetensors");
    return RT_OK;
}

static bool
is_file(const char *path, const struct stat *st)
{
    struct stat s;
    return !stat(path, &s) && s.st_dev == st->st_dev && s.st_ino == st->st_ino;
}

/* Nothing that is read may be written over. */
static int
check_output(const exporter *e)
{
    struct stat st;
    if (stat(e->output, &st))
        return rt_file_try(e->output);
    if (S_ISDIR(st.st_mode))
        return rt_fail(RT_USER, "%s is a folder\nname a file in it", e->output);
    bool same = is_file(e->model_path, &st) ||
                is_file(e->peft.st.path ? e->peft.st.path : "", &st) ||
                is_file(e->weights.path ? e->weights.path : "", &st);
    for (int i = 0; i < e->model->tensors.n && !same; i++)
        same = e->model->tensors.at[i]->path &&
               is_file(e->model->tensors.at[i]->path, &st);
    if (same)
        return rt_fail(RT_USER,
                       "%s is read: it can't be written, too\ngive another "
                       "--output",
                       e->output);
    return rt_file_try(e->output);
}

/* ---- files ---- */

/* Full weights of a checkpoint; one of adapters has no scale. */
static int
open_checkpoint(exporter *e, const char *dir)
{
    char why[RT_WHY];
    rt_manifest *m = rt_checkpoint_check(dir, why);
    if (!m)
        return rt_fail(RT_USER, "%s: %s", dir, why);
    rt_manifest_free(m);
    char *path = rt_path(dir, "weights.safetensors");
    int code = rt_st_open(&e->weights, path);
    for (int i = 0; i < e->weights.n && !code; i++)
        if (strstr(e->weights.tensor[i].name, "lora_A"))
            code =
                rt_fail(RT_USER,
                        "%s is a checkpoint of adapters\nlet the trainer finish it "
                        "(--resume-from-checkpoint %s), which writes the adapter; then "
                        "--adapter DIR",
                        dir, dir);
    free(path);
    return code;
}

static int
open_weights(exporter *e)
{
    const char *path = cmd_str(e->args, "weights");
    struct stat st;
    if (!path)
        return RT_OK;
    if (!stat(path, &st) && S_ISDIR(st.st_mode))
        return open_checkpoint(e, path);
    return rt_st_open(&e->weights, path);
}

/* What the head in the file reads, which a trainer notes there. */
static void
take_pool(exporter *e, const rt_st *st)
{
    cJSON *meta = st->meta ? cJSON_Parse(st->meta) : NULL;
    const char *noted =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, "efficc.pool"));
    const char *given = cmd_str(e->args, "pool"), *pool = given ? given : noted;
    e->pool = pool ? strdup(pool) : NULL;
    cJSON_Delete(meta);
}

static int
open_adapter(exporter *e)
{
    int code = e->adapter ? rt_peft_open(&e->peft, e->adapter) : RT_OK;
    if (!e->adapter || code)
        return code;
    char *path = rt_path(e->adapter, "head.safetensors");
    if (!access(path, F_OK))
        code = rt_st_open(&e->head, path);
    free(path);
    return code;
}

/* ---- the model ---- */

/* Imports the whole model and adds a head, as for its training. */
static int
import_with_head(exporter *e, int64_t labels)
{
    const ef_config *before = e->ctx->cfg;
    FILE *report = e->ctx->report;
    ef_config cfg = *before;
    cfg.any_size = true;
    cfg.num_labels = labels;
    if (e->pool)
        cfg.pool = e->pool;
    e->ctx->cfg = &cfg;
    e->ctx->report = NULL;
    e->module = fe_import(e->ctx, e->model);
    bool ok = e->module != NULL;
    if (ok) {
        pass_ctx pc = {.m = e->module, .scratch = ef_arena_new()};
        ok = pass_canon(&pc) && pass_recognise(&pc) && pass_task(&pc);
        ef_arena_free(pc.scratch);
    }
    e->ctx->cfg = before;
    e->ctx->report = report;
    return ok ? RT_OK : RT_USER;
}

/* The head that is in no model file; NULL: there is none. */
static const rt_st_tensor *
head_of(exporter *e, const rt_st **st)
{
    *st = e->head.fd >= 0 ? &e->head : &e->weights;
    return (*st)->fd >= 0 ? rt_st_find(*st, "head.weight") : NULL;
}

static int
load_model(exporter *e)
{
    const rt_st *st;
    const rt_st_tensor *head = head_of(e, &st);
    e->ctx->file = e->model_path;
    e->model = fe_load(e->ctx, e->model_path);
    if (!e->model)
        return RT_USER;
    if (head && head->rank == 2) {
        take_pool(e, st);
        if (!e->pool)
            return rt_fail(
                RT_USER,
                "%s does not say what the head reads\ngive --pool first, mean "
                "or pooler, as it was trained",
                st->path);
        return import_with_head(e, head->dim[0]);
    }
    e->module = fe_import_weights(e->ctx, e->model);
    return e->module ? RT_OK : RT_USER;
}

/* ---- the command ---- */

static void
report(const exporter *e)
{
    int whole = e->changes.n - e->peft.n;
    if (e->adapter)
        rt_say("merged", "%d modules, the largest change of a weight is %.3g",
               e->peft.n, e->largest);
    if (whole)
        rt_say("replaced", "%d tensors of %d", whole, e->module->params.n);
    if (e->beside)
        rt_say("saved", "%s, with its weights in %s", e->output, e->beside);
    else if (e->ntensor)
        rt_say("saved", "%s: %d tensors under PyTorch's names", e->output, e->ntensor);
    else
        rt_say("saved", "%s", e->output);
    if (e->peft.n && e->largest == 0)
        rt_warn("%s changes nothing: is it untrained?", e->adapter);
}

static int
run(exporter *e)
{
    int code = check_options(e);
    if (!code)
        code = open_adapter(e);
    if (!code)
        code = open_weights(e);
    if (!code)
        code = load_model(e);
    if (!code)
        code = check_output(e);
    if (!code)
        code = export_match(e);
    if (!code)
        code = export_check_base(e);
    if (!code)
        code = cmd_flag(e->args, "safetensors") ? export_torch(e) : export_onnx(e);
    if (!code)
        report(e);
    return code;
}

int
cmd_export(ef_ctx *ctx, const cmd_args *args)
{
    const ef_config *before = ctx->cfg;
    ef_config cfg = *before;
    cfg.hf_config = cmd_str(args, "hf-config");
    cfg.follow_links = cmd_flag(args, "follow-links");
    ctx->cfg = &cfg;
    exporter e = {.ctx = ctx, .args = args};
    e.peft.st.fd = e.weights.fd = e.head.fd = -1;
    rt_name = "efficc";
    int code = run(&e);
    rt_peft_close(&e.peft);
    rt_st_close(&e.weights);
    rt_st_close(&e.head);
    if (e.module)
        ir_module_free(e.module);
    fe_unload(e.model);
    ctx->cfg = before;
    free(e.pool);
    free(e.beside);
    return code == RT_STOPPED ? RT_USER : code; /* a full disk */
}
