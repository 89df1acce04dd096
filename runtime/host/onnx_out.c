/* onnx_out.c -- model.onnx with the trained weights, without knowing ONNX.
 *
 * efficc left template.onnx, the file's bytes without weights, and template.json, which says
 * at which offset of the finished file which tensor stands. Both are streamed into the
 * result, so that no second copy of the model is in memory.
 */
#include "host_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct hole {
    double at, bytes;
    const char *tensor;
    bool transposed;
} hole;

typedef struct writer {
    const rt_run *run;
    rt_st base; /* for tensors that the program does not hold */
    FILE *from; /* template.onnx */
    const char *json;
    rt_file to;
} writer;

static int
read_hole(const cJSON *item, const char *path, hole *h)
{
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(item, "at");
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(item, "bytes");
    const char *dtype =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "dtype"));
    h->tensor = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "tensor"));
    h->transposed = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "transposed"));
    if (!cJSON_IsNumber(at) || !cJSON_IsNumber(bytes) || !h->tensor || !dtype)
        return rt_fail(RT_USER, "%s: a hole lacks at, bytes, tensor or dtype", path);
    if (strcmp(dtype, "f32"))
        return rt_fail(RT_USER, "%s: '%s' is to be written as %s, only f32 can be",
                       path, h->tensor, dtype);
    h->at = at->valuedouble;
    h->bytes = bytes->valuedouble;
    return RT_OK;
}

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

static const rt_param *
param_named(const rt_program *p, const char *name)
{
    for (int i = 0; i < p->nparam; i++)
        if (!strcmp(p->param[i].name, name))
            return &p->param[i];
    return NULL;
}

/* A tensor that no pass kept in the program, as it was. */
static int
copy_base(writer *w, const hole *h)
{
    const rt_st_tensor *t = rt_st_find(&w->base, h->tensor);
    if (!t || h->transposed || (double)t->bytes != h->bytes)
        return rt_fail(RT_USER,
                       "%s: '%s' is neither in the trainer nor in base.safetensors",
                       w->json, h->tensor);
    char buf[1 << 16];
    int code = RT_OK;
    for (uint64_t at = 0; at < t->bytes && !code; at += sizeof buf) {
        uint64_t n = t->bytes - at < sizeof buf ? t->bytes - at : sizeof buf;
        code = rt_st_read(&w->base, t, at, buf, n);
        if (!code)
            code = rt_file_write(&w->to, buf, n);
    }
    return code;
}

static int
fill(writer *w, const hole *h)
{
    const rt_param *p = param_named(w->run->program, h->tensor);
    int code = copy_template(w, h->at);
    if (code)
        return code;
    if ((double)w->to.at != h->at)
        return rt_fail(RT_USER, "%s: holes overlap at '%s'", w->json, h->tensor);
    if (!p)
        return copy_base(w, h);
    if (h->bytes != 4.0 * (double)p->n || p->dtype != RT_F32 ||
        (h->transposed && p->rank != 2))
        return rt_fail(RT_USER, "%s: '%s' does not fit its hole", w->json, h->tensor);
    rt_st_out o = {
        .rank = p->rank, .data = rt_param_data(w->run, p), .transposed = h->transposed};
    for (int d = 0; d < p->rank; d++)
        o.dim[d] = p->dim[h->transposed ? 1 - d : d];
    rt_file_tensor(&w->to, &o);
    return w->to.code;
}

static int
fill_all(writer *w, const cJSON *json)
{
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(json, "size"), *item;
    int code = RT_OK;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json, "holes"))
    {
        hole h = {0};
        code = code ? code : read_hole(item, w->json, &h);
        code = code ? code : fill(w, &h);
    }
    code = code ? code : copy_template(w, -1);
    if (!code && (!cJSON_IsNumber(size) || size->valuedouble != (double)w->to.at))
        code = rt_fail(RT_USER, "%s: the finished file has not the size it should have",
                       w->json);
    return code;
}

int
rt_onnx_save(const rt_run *run, const char *program_dir, const char *path)
{
    char *template = rt_path(program_dir, "template.onnx");
    char *holes = rt_path(program_dir, "template.json");
    char *base = rt_path(program_dir, "base.safetensors");
    writer w = {.run = run, .json = holes, .from = fopen(template, "rb")};
    int err = errno, code = rt_st_open(&w.base, base);
    char *text = NULL;
    if (!code && !w.from)
        code = rt_fail(RT_USER, "%s: %s", template, strerror(err));
    else if (!code && !(text = rt_read_text(holes, 1 << 30, &err)))
        code = rt_fail(RT_USER, "%s: %s", holes, strerror(err));
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    if (!code && !cJSON_IsObject(json))
        code = rt_fail(RT_USER, "%s is not a JSON object", holes);
    if (!code) {
        rt_file_open(&w.to, path);
        code = fill_all(&w, json);
        w.to.code = w.to.code ? w.to.code : code; /* then nothing is put in its place */
        code = rt_file_done(&w.to);
    }
    cJSON_Delete(json);
    free(text);
    if (w.from)
        fclose(w.from);
    rt_st_close(&w.base);
    free(template);
    free(holes);
    free(base);
    return code;
}
