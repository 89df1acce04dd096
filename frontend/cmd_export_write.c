/* cmd_export_write.c -- the model with its new weights, as ONNX or safetensors.
 *
 * One weight is in memory at a time. A file appears whole or not at all; a second one, for
 * weights above protobuf's 2 GB, is never put over an older one, so that no model can ever
 * refer to weights of another.
 */
#include "cmd_export.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- ONNX ---- */

typedef struct onnx_file {
    fe_sink sink;
    exporter *e;
    rt_file model, beside;
} onnx_file;

static bool
put(fe_sink *sink, bool beside, const void *data, size_t n)
{
    onnx_file *f = (onnx_file *)sink;
    return !rt_file_write(beside ? &f->beside : &f->model, data, n);
}

/* Elements of a weight, none of which may get lost in the type of the file. */
static bool
put_values(rt_file *f, const ir_param *p, const char *dtype, const rt_st_out *t)
{
    int64_t lost = rt_file_floats(f, dtype, t);
    if (lost && !f->code)
        f->code =
            rt_fail(RT_USER,
                    "%lld elements of '%s' are beyond the range of %s, the type of "
                    "the model's weights\nexport the model in float32",
                    (long long)lost, p->value->name, dtype);
    return !f->code;
}

static bool
fill(fe_sink *sink, bool beside, const fe_hole *hole)
{
    onnx_file *f = (onnx_file *)sink;
    const ir_type *type = hole->param->value->type;
    float *w = export_values(f->e, hole->param);
    if (!w)
        return false;
    rt_st_out t = {.rank = type->rank, .data = w, .transposed = hole->transposed};
    for (int d = 0; d < t.rank; d++)
        t.dim[d] = type->dim[t.transposed ? 1 - d : d];
    bool ok = put_values(beside ? &f->beside : &f->model, hole->param, hole->dtype, &t);
    free(w);
    return ok;
}

/* Name of the file beside the model: exit code, *path is freed by the caller. */
static int
name_beside(const exporter *e, char **path)
{
    rt_text t = {0};
    rt_putf(&t, "%s.data", e->output);
    *path = t.s;
    if (access(*path, F_OK))
        return RT_OK;
    return rt_fail(RT_USER,
                   "%s exists; the weights would go there\nremove it, or give another "
                   "--output",
                   *path);
}

/* The whole model through the writer; files appear if all went well. */
static int
write_onnx(exporter *e, fe_writer *w, const char *beside)
{
    onnx_file f = {.sink = {put, fill}, .e = e};
    int code = RT_OK;
    rt_file_open(&f.model, e->output);
    if (beside)
        rt_file_open(&f.beside, beside);
    if (f.model.code || f.beside.code || !fe_writer_run(w, &f.sink))
        code = f.model.code | f.beside.code ? f.model.code | f.beside.code : RT_USER;
    f.model.code =
        f.model.code ? f.model.code : code; /* then nothing is put in place */
    if (beside) {
        f.beside.code = f.beside.code ? f.beside.code : f.model.code;
        code = rt_file_done(&f.beside);
        f.model.code = f.model.code ? f.model.code : code;
    }
    code = rt_file_done(&f.model);
    if (code && beside)
        unlink(beside); /* it was not there before */
    return code;
}

int
export_onnx(exporter *e)
{
    fe_writer *w = fe_writer_new(e->model, e->module);
    if (!w)
        return RT_USER;
    char *beside = NULL;
    int code = RT_OK;
    if (cmd_flag(e->args, "external-data") || fe_writer_bytes(w) > INT_MAX) {
        code = name_beside(e, &beside);
        const char *slash = strrchr(beside, '/');
        if (!code)
            fe_writer_beside(w, slash ? slash + 1 : beside);
    }
    if (!code)
        code = write_onnx(e, w, beside);
    e->beside = beside;
    return code;
}

/* ---- PyTorch ---- */

static const char *
dtype_of(const ir_param *p)
{
    bool file = p->init == IR_INIT_FILE && p->role != IR_HEAD;
    return file && p->file_dtype == IR_F16    ? "F16"
           : file && p->file_dtype == IR_BF16 ? "BF16"
                                              : "F32";
}

static void
put_made(rt_file *f, const rt_st_made *made, void *arg)
{
    const ir_param *p = made->of;
    float *w = export_values(arg, p);
    char dtype[8] = "";
    for (int i = 0; made->dtype[i] && i < 7; i++)
        dtype[i] = (char)tolower((unsigned char)made->dtype[i]);
    int shift = fe_torch_name(p) ? p->shift : 0;
    for (int64_t i = 0; w && shift && i < ir_type_count(p->value->type); i++)
        w[i] -= (float)shift;
    rt_st_out t = {
        .rank = made->rank, .data = w, .transposed = p->transposed && made->rank == 2};
    memcpy(t.dim, made->dim, sizeof t.dim);
    if (!w)
        f->code = f->code ? f->code : RT_USER;
    else
        put_values(f, p, dtype, &t);
    free(w);
}

int
export_torch(exporter *e)
{
    int n = 0, unknown = 0;
    rt_st_made *made = rt_new((size_t)e->module->params.n + 1, sizeof *made);
    for (int i = 0; i < e->module->params.n; i++) {
        const ir_param *p = e->module->params.at[i];
        const ir_type *type = p->value->type;
        if (p->cls == IR_CONST)
            continue;
        rt_st_made *t = &made[n++];
        const char *hf = fe_torch_name(p);
        *t = (rt_st_made){hf        ? hf
                          : p->onnx ? p->onnx
                                    : p->value->name,
                          dtype_of(p),
                          type->rank,
                          {0},
                          p};
        for (int d = 0; d < t->rank; d++)
            t->dim[d] = type->dim[p->transposed && t->rank == 2 ? 1 - d : d];
        unknown += !hf && p->role == IR_BASE;
    }
    int code = rt_st_write_made(e->output, made, n, "{\"format\":\"pt\"}", put_made, e);
    e->ntensor = n;
    if (!code && unknown)
        rt_warn(
            "%d of %d tensors have no PyTorch name, or are computed from a parameter "
            "(as Gemma's 1 + weight)\nthey keep the names of the model file",
            unknown, n);
    free(made);
    return code;
}
