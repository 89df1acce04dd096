/* record.c -- --record-step: what the last step works on and makes, for efficc verify.
 *
 * The file holds the step's inputs, the trained params and the optimizer's state before and
 * after, and the results of every call as the call left them. Every value is computed once,
 * so whoever reads the file knows the operands of each call, too: also those that a later
 * call has written over. A tensor is one line of text,
 *     KIND NAME DTYPE CLASS UNIT OFFSET RANK DIM.. BYTES
 * and behind it its elements as they lie in memory. KIND is param, m, v (before the step),
 * param2, m2, v2, image2 (after it), input, result or number. Of params after the step and of
 * the optimizer's state, which is elementwise, only the first rows are there.
 */
#include "host_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 18 }; /* elements of a tensor of which a part does */
static const int size[] = {4, 8, 1, 2, 2}; /* of an element of an rt_dtype */

struct rt_record {
    rt_check check; /* first: run->check points to it */
    FILE *file;
    const char *path;
};

/* ---- one tensor ---- */

typedef struct piece {
    const char *kind, *name;
    rt_dtype dtype;
    int cls, unit;
    int64_t offset;
    int rank;
    const int64_t *dim;
    int64_t first; /* dim[0] */
} piece;

static void
put_host(const rt_record *r, const piece *p, const void *data)
{
    static const char *const name[] = {"f32", "i64", "bool", "f16", "bf16"};
    int64_t n = size[p->dtype];
    fprintf(r->file, "%s %s %s %d %d %lld %d", p->kind, p->name, name[p->dtype], p->cls,
            p->unit, (long long)p->offset, p->rank);
    for (int i = 0; i < p->rank; i++) {
        int64_t dim = i ? p->dim[i] : p->first;
        fprintf(r->file, " %lld", (long long)dim);
        n *= dim;
    }
    fprintf(r->file, " %lld\n", (long long)n);
    fwrite(data, 1, (size_t)n, r->file);
}

/* What lies in the device's memory. */
static void
put(const rt_record *r, const rt_run *run, const piece *p, const void *device)
{
    int64_t n = size[p->dtype];
    for (int i = 0; i < p->rank; i++)
        n *= i ? p->dim[i] : p->first;
    const void *data = rt_look(run, device, n);
    put_host(r, p, data);
    rt_looked(data);
}

static void
put_number(const rt_record *r, const char *name, double x)
{
    fprintf(r->file, "number %s f64 0 0 0 0 8\n", name);
    fwrite(&x, sizeof x, 1, r->file);
}

/* A param or what belongs to it; whole, or its first rows. */
static void
put_param(const rt_record *r, const rt_run *run, const char *kind, const rt_param *p,
          const void *device)
{
    bool whole = p->n <= MOST || strcmp(kind, "param") == 0;
    int64_t first = p->rank ? p->dim[0] : 1, row = p->n / (first ? first : 1);
    if (!whole)
        first = row < MOST ? MOST / row : 1;
    piece part = {.kind = kind,
                  .name = p->name,
                  .dtype = strcmp(kind, "image2") ? RT_F32 : p->image_dtype,
                  .cls = p->cls,
                  .unit = p->unit,
                  .offset = p->offset,
                  .rank = p->rank,
                  .dim = p->dim,
                  .first = first};
    if (device)
        put(r, run, &part, device);
}

/* ---- the step ---- */

static void
see(rt_run *run, int number)
{
    const rt_record *r = (const rt_record *)(const void *)run->check;
    const rt_op *op = &run->program->op[number];
    for (int i = 0; i < op->nres; i++) {
        const rt_tensor *t = &run->program->tensor[op->tensor[i]];
        const char *base = t->cls == RT_ARENA ? run->arena : run->base[t->cls][t->unit];
        piece p = {.kind = "result",
                   .name = t->name,
                   .dtype = t->dtype,
                   .cls = t->cls == RT_GRAD ? (int)RT_GRAD : -1,
                   .unit = t->unit,
                   .offset = t->offset,
                   .rank = t->rank,
                   .dim = t->dim,
                   .first = t->vary ? run->size[t->vary] : t->dim[0]};
        put(r, run, &p, base + t->offset);
    }
}

static void
put_inputs(const rt_record *r, const rt_run *run)
{
    for (int i = 0; i < run->program->ninput; i++) {
        const rt_input *in = &run->program->input[i];
        bool floats = in->role == RT_SCALE || in->role == RT_VALUES;
        piece p = {.kind = "input",
                   .name = in->name,
                   .dtype = floats ? RT_F32 : RT_I64,
                   .rank = in->rank,
                   .dim = in->dim,
                   .first = in->vary ? run->size[in->vary] : in->dim[0]};
        put_host(r, &p, run->host_input[i]);
    }
}

static void
put_state(const rt_record *r, const rt_run *run, bool after)
{
    const rt_program *p = run->program;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *w = &p->param[i];
        if (w->cls != RT_TRAIN)
            continue;
        put_param(r, run, after ? "param2" : "param", w, rt_param_data(run, w));
        put_param(r, run, after ? "m2" : "m", w, rt_param_state(run, w, RT_STATE_M));
        put_param(r, run, after ? "v2" : "v", w, rt_param_state(run, w, RT_STATE_V));
        if (after && w->image >= 0)
            put_param(r, run, "image2", w, run->base[RT_IMAGE][w->unit] + w->image);
    }
    float scaler[RT_SCALER_FLOATS];
    if (p->scaled)
        rt_download(run->compute, scaler, run->base[RT_SCALER][0], sizeof scaler);
    for (int i = 0; p->scaled && i < RT_SCALER_FLOATS; i++) {
        char name[24];
        snprintf(name, sizeof name, "scaler%s.%d", after ? "2" : "", i);
        put_number(r, name, (double)scaler[i]);
    }
}

static void
put_hyper(const rt_record *r, const rt_hyper *h)
{
    put_number(r, "lr", h->lr);
    put_number(r, "weight_decay", h->weight_decay);
    put_number(r, "beta1", h->beta1);
    put_number(r, "beta2", h->beta2);
    put_number(r, "eps", h->eps);
    put_number(r, "max_norm", h->max_norm);
    put_number(r, "momentum", h->momentum);
    put_number(r, "step", (double)h->step);
    put_number(r, "sgd", h->sgd);
    put_number(r, "nesterov", h->nesterov);
    put_number(r, "decay_all", h->decay_all);
}

rt_record *
rt_record_start(rt_run *run, const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file) {
        rt_fail(RT_USER, "--record-step %s: %s", path, strerror(errno));
        return NULL;
    }
    rt_record *r = rt_new(1, sizeof *r);
    *r = (rt_record){.check = {.see = see}, .file = file, .path = path};
    fprintf(file, "efficc record 1 %s\n", run->program->hash);
    put_state(r, run, false);
    run->check = &r->check;
    return r;
}

int
rt_record_end(rt_record *r, rt_run *run, int code)
{
    run->check = NULL;
    if (!code) {
        put_inputs(r, run);
        put_state(r, run, true);
        put_hyper(r, &run->hyper);
        float norm2;
        rt_download(run->compute, &norm2, run->arena + run->program->norm2_at,
                    sizeof norm2);
        put_number(r, "norm2", (double)norm2);
        put_number(r, "end", 1);
    }
    bool bad = ferror(r->file);
    if ((fclose(r->file) || bad) && !code)
        code = rt_fail(rt_errno_code(errno), "--record-step %s: %s", r->path,
                       strerror(errno));
    free(r);
    return code;
}
