/* onnx_out.c -- model.onnx with the trained weights, without knowing ONNX.
 *
 * efficc left template.onnx, the file's bytes without weights, and template.json, which says
 * at which offset of the finished file which tensor stands. Both are streamed into the
 * result, so that no second copy of the model is in memory. Of a model that is larger than
 * an ONNX file can be there is none: efficc export makes it of model.safetensors.
 */
#include "host_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct hole {
    double at, bytes;
    const char *tensor, *dtype; /* belong to the JSON */
    bool transposed;
    const rt_param *param;
} hole;

typedef struct holes {
    char *path;
    cJSON *json;
    hole *at;
    int n;
    double size;       /* of the finished file */
    const char *large; /* the model, too large for a file; belongs to the JSON */
} holes;

typedef struct writer {
    const rt_run *run;
    FILE *from; /* template.onnx */
    rt_file to;
} writer;

/* ---- template.json ---- */

static const rt_param *
param_named(const rt_program *p, const char *name)
{
    for (int i = 0; i < p->nparam; i++)
        if (!strcmp(p->param[i].name, name))
            return &p->param[i];
    return NULL;
}

static int
read_hole(const rt_program *p, const cJSON *item, const char *path, hole *h)
{
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(item, "at");
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(item, "bytes");
    h->dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "dtype"));
    h->tensor = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "tensor"));
    h->transposed = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "transposed"));
    if (!cJSON_IsNumber(at) || !cJSON_IsNumber(bytes) || !h->tensor || !h->dtype)
        return rt_fail(RT_USER, "%s: a hole lacks at, bytes, tensor or dtype", path);
    h->at = at->valuedouble;
    h->bytes = bytes->valuedouble;
    h->param = param_named(p, h->tensor);
    if (!h->param)
        return rt_fail(RT_USER, "%s: the trainer has no '%s'; compile again", path,
                       h->tensor);
    int size = rt_float_bytes(h->dtype);
    if (!size)
        return rt_fail(RT_USER, "%s: '%s' is %s in the model, which is not written",
                       path, h->tensor, h->dtype);
    if (h->bytes != (double)size * (double)h->param->n || h->param->dtype != RT_F32 ||
        (h->transposed && h->param->rank != 2))
        return rt_fail(RT_USER, "%s: '%s' does not fit its hole; compile again", path,
                       h->tensor);
    return RT_OK;
}

static int
read_holes(const rt_program *p, const char *dir, holes *h)
{
    *h = (holes){.path = rt_path(dir, "template.json")};
    int err, code = rt_beside(h->path);
    char *text = code ? NULL : rt_read_text(h->path, 1 << 30, &err);
    if (code)
        return code;
    if (!text)
        return rt_fail(RT_USER, "%s: %s", h->path, strerror(err));
    h->json = cJSON_Parse(text);
    free(text);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(h->json, "holes"), *item;
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(h->json, "size");
    h->large =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(h->json, "export"));
    if (h->large)
        return RT_OK;
    if (!cJSON_IsArray(list) || !cJSON_IsNumber(size))
        return rt_fail(RT_USER, "%s has no size and holes", h->path);
    h->size = size->valuedouble;
    h->at = rt_new((size_t)cJSON_GetArraySize(list) + 1, sizeof *h->at);
    cJSON_ArrayForEach(item, list)
    {
        if (!code)
            code = read_hole(p, item, h->path, &h->at[h->n++]);
    }
    return code;
}

static void
free_holes(holes *h)
{
    cJSON_Delete(h->json);
    free(h->path);
    free(h->at);
}

/* Does template.onnx have the bytes between the holes, and no others? */
static int
check_template(const char *path, const holes *h)
{
    struct stat s;
    double filled = 0;
    for (int i = 0; i < h->n; i++)
        filled += h->at[i].bytes;
    if (rt_beside(path) || stat(path, &s))
        return RT_USER;
    if ((double)s.st_size + filled != h->size)
        return rt_fail(RT_USER, "%s does not fit template.json; compile again", path);
    return RT_OK;
}

int
rt_onnx_check(const rt_program *p, const char *program_dir)
{
    char *template = rt_path(program_dir, "template.onnx");
    holes h;
    int code = read_holes(p, program_dir, &h);
    if (!code && !h.large)
        code = check_template(template, &h);
    free_holes(&h);
    free(template);
    return code;
}

/* ---- model.onnx ---- */

/* Bytes of the template up to offset `at` of the result (at < 0: all). */
static int
copy_template(writer *w, double at)
{
    char buf[1 << 16];
    while (!w->to.code && (at < 0 || (double)w->to.at < at)) {
        double want = at < 0 ? sizeof buf : at - (double)w->to.at;
        size_t n =
            fread(buf, 1, want < sizeof buf ? (size_t)want : sizeof buf, w->from);
        if (ferror(w->from) || (!n && at >= 0))
            return rt_fail(RT_USER, "template.onnx beside the trainer is too short");
        if (!n)
            break;
        rt_file_write(&w->to, buf, n);
    }
    return w->to.code;
}

static int
fill(writer *w, const hole *h)
{
    int code = copy_template(w, h->at);
    if (code)
        return code;
    if ((double)w->to.at != h->at)
        return rt_fail(RT_USER, "template.json: holes overlap at '%s'", h->tensor);
    rt_st_out o = {.rank = h->param->rank,
                   .data = rt_param_data(w->run, h->param),
                   .of = w->run,
                   .transposed = h->transposed};
    for (int d = 0; d < o.rank; d++)
        o.dim[d] = h->param->dim[h->transposed ? 1 - d : d];
    int64_t lost = rt_file_floats(&w->to, h->dtype, &o);
    if (lost)
        rt_warn(
            "%lld elements of '%s' are beyond the range of %s, the type of the model "
            "file, and infinite in it",
            (long long)lost, h->tensor, h->dtype);
    return w->to.code;
}

static int
fill_all(writer *w, const holes *h)
{
    int code = RT_OK;
    for (int i = 0; i < h->n && !code; i++)
        code = fill(w, &h->at[i]);
    if (!code)
        code = copy_template(w, -1);
    if (!code && h->size != (double)w->to.at)
        code = rt_fail(RT_USER, "%s: the finished file has not the size it should have",
                       h->path);
    return code;
}

int
rt_onnx_save(const rt_run *run, const char *program_dir, const char *path)
{
    char *template = rt_path(program_dir, "template.onnx");
    holes h;
    writer w = {.run = run, .from = fopen(template, "rb")};
    int err = errno, code = read_holes(run->program, program_dir, &h);
    if (!code && !w.from && !h.large)
        code = rt_fail(RT_USER, "%s: %s", template, strerror(err));
    if (!code && h.large)
        rt_say("note",
               "no model.onnx, for ONNX files end at 2 GB: efficc export --weights "
               "%.*s.safetensors %s -o %s has its weights beside it",
               (int)(strlen(path) - strlen(".onnx")), path, h.large, path);
    else if (!code) {
        rt_file_open(&w.to, path);
        code = fill_all(&w, &h);
        w.to.code = w.to.code ? w.to.code : code; /* then nothing is put in its place */
        code = rt_file_done(&w.to);
        if (!code)
            rt_say("saved", "%s: the trained model", path);
    }
    if (w.from)
        fclose(w.from);
    free_holes(&h);
    free(template);
    return code;
}
