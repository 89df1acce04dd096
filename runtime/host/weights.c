/* weights.c -- the flat buffers of the program and their first contents.
 *
 * All memory of the program is one allocation: class by class (weights, gradients, optimizer
 * state, ..) the buffers of all units, then the arena; run->base[class][unit] points into
 * it. base.safetensors is read straight to its place, so no tensor is in memory twice.
 */
#include "host_int.h"

#include <stdlib.h>
#include <string.h>

static int64_t
aligned(int64_t bytes)
{
    return (bytes + RT_ALIGN - 1) / RT_ALIGN * RT_ALIGN;
}

int64_t
rt_class_bytes(const rt_program *p, rt_class c)
{
    int64_t bytes = 0;
    for (int u = 0; u < p->nunit; u++)
        bytes += aligned(p->unit_bytes[u][c]);
    return bytes;
}

int64_t
rt_weights_bytes(const rt_program *p, unsigned classes)
{
    int64_t bytes = aligned(p->arena_bytes);
    for (int c = 0; c < RT_NCLASSES; c++)
        bytes += classes >> c & 1 ? rt_class_bytes(p, (rt_class)c) : 0;
    return bytes;
}

int
rt_weights_new(rt_run *run, unsigned classes)
{
    const rt_program *p = run->program;
    int64_t bytes = rt_weights_bytes(p, classes), free_bytes = rt_free_memory();
    bool fits = !free_bytes || bytes <= free_bytes;
    char *at = fits ? rt_alloc((size_t)bytes) : NULL;
    if (!at)
        return rt_fail(
            RT_USER,
            "needs %s of memory, but %s are free\ncompile with a smaller --batch "
            "or --seq, or with --lora-r",
            rt_bytes_text((double)bytes), rt_bytes_text((double)free_bytes));
    for (int c = 0; c < RT_NCLASSES; c++) {
        run->base[c] = rt_new((size_t)p->nunit, sizeof(char *));
        for (int u = 0; u < p->nunit && classes >> c & 1; u++) {
            run->base[c][u] = at;
            at += aligned(p->unit_bytes[u][c]);
        }
    }
    run->arena = at;
    return RT_OK;
}

void
rt_weights_free(rt_run *run)
{
    for (int c = 0; c < RT_NCLASSES; c++)
        free(run->base[c]);
}

static void *
place(const rt_run *run, const rt_param *p, rt_class c)
{
    char *base = run->base[c] ? run->base[c][p->unit] : NULL;
    return base ? base + p->offset : NULL;
}

float *
rt_param_data(const rt_run *run, const rt_param *p)
{
    return place(run, p, p->cls);
}

float *
rt_param_grad(const rt_run *run, const rt_param *p)
{
    return place(run, p, RT_GRAD);
}

float *
rt_param_state(const rt_run *run, const rt_param *p, rt_class c)
{
    return place(run, p, c);
}

static int
load_param(const rt_run *run, const rt_st *st, const rt_param *p)
{
    static const char *const dtype[] = {"F32", "I64", "BOOL"};
    static const int bytes[] = {4, 8, 1};
    const rt_st_tensor *t = rt_st_find(st, p->name);
    if (!t)
        return rt_fail(RT_USER,
                       "%s does not hold '%s'\nit belongs to another trainer; "
                       "compile again",
                       st->path, p->name);
    if (strcmp(t->dtype, dtype[p->dtype]) ||
        t->bytes != (uint64_t)(p->n * bytes[p->dtype]))
        return rt_fail(RT_USER,
                       "%s: '%s' has another type or size than the trainer was "
                       "compiled for\ncompile again",
                       st->path, p->name);
    return rt_st_read(st, t, 0, rt_param_data(run, p), t->bytes);
}

int
rt_weights_load(rt_run *run, const char *dir, uint64_t seed)
{
    const rt_program *p = run->program;
    char *path = rt_path(dir, "base.safetensors");
    rt_st st;
    int code = rt_st_open(&st, path);
    if (code)
        rt_warn("the trainer's weights stand in %s, beside it", path);
    for (int i = 0; i < p->nparam && !code; i++) {
        const rt_param *param = &p->param[i];
        if (param->init == RT_INIT_FILE)
            code = load_param(run, &st, param);
        else
            rt_init_fill(param, seed, rt_param_data(run, param));
    }
    rt_st_close(&st);
    free(path);
    return code;
}
