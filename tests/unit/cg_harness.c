/* cg_harness.c -- stands in for the trainer's main loop when cg_agree.h runs a generated
 * program: it is appended to step.c. Reads `in.bin` beside the executable: which of its sizes
 * each named dimension has, contents of all params and inputs, how often micro runs, and which bytes of the arena are wanted; writes
 * to `out.bin` those bytes, gradients and trained parameters after the update.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
get(FILE *f, void *to, size_t n)
{
    if (fread(to, 1, n, f) != n)
        exit(3);
}

static int64_t
get_int(FILE *f)
{
    int64_t x;
    get(f, &x, sizeof x);
    return x;
}

static size_t
size_of(rt_dtype t)
{
    return t == RT_F32 ? 4 : t == RT_I64 ? 8 : t == RT_BOOL ? 1 : 2;
}

static size_t
aligned(const rt_program *p, int64_t bytes)
{
    return (size_t)((bytes + p->align - 1) / p->align * p->align);
}

static size_t
input_bytes(const rt_input *in)
{
    size_t n = in->role == RT_SCALE || in->role == RT_VALUES ? 4 : 8;
    for (int d = 0; d < in->rank; d++)
        n *= (size_t)in->dim[d];
    return n;
}

/* One allocation, from `at` to *end, as the trainer makes it. */
static void
lay_out(rt_run *run, const rt_program *p, char *at, char **end)
{
    for (int k = 0; k < RT_NCLASSES; k++) {
        run->base[k] =
            run->base[k] ? run->base[k] : calloc((size_t)p->nunit, sizeof(char *));
        for (int u = 0; u < p->nunit; u++) {
            run->base[k][u] = at;
            at += aligned(p, p->unit_bytes[u][k]);
        }
    }
    for (int i = 0; i < p->ninput; i++) {
        run->input[i] = at;
        at += aligned(p, (int64_t)input_bytes(&p->input[i]));
    }
    run->arena = at;
    run->device = at + aligned(p, p->arena_bytes);
    *end = run->device + aligned(p, rt_device_bytes(p));
}

static char *
place(rt_run *run, rt_class cls, const rt_param *p)
{
    return run->base[cls][p->unit] + p->offset;
}

/* From the file to the device. */
static void
get_to(rt_run *run, void *device, size_t n, FILE *in)
{
    void *x = malloc(n + 1);
    get(in, x, n);
    rt_upload(run->compute, device, x, (int64_t)n);
    free(x);
}

static void
put_from(rt_run *run, const void *device, size_t n, FILE *out)
{
    void *x = malloc(n + 1);
    rt_download(run->compute, x, device, (int64_t)n);
    fwrite(x, 1, n, out);
    free(x);
}

/* Contents of the param, and its image. */
static void
get_param(rt_run *run, const rt_param *p, FILE *in)
{
    char *x = place(run, p->cls, p);
    get_to(run, x, (size_t)p->n * size_of(p->dtype), in);
    if (p->image >= 0)
        rt_convert(run->compute, run->base[RT_IMAGE][p->unit] + p->image,
                   p->image_dtype, x, p->dtype, p->n);
}

/* Sizes of named dimensions; without one, its number is 0. */
static void
get_sizes(const rt_program *p, int at[RT_NSYMS], FILE *in)
{
    for (int i = 0; i < RT_NSYMS; i++) {
        at[i] = (int)get_int(in);
        if (p->nsize[i] && at[i] >= p->nsize[i])
            exit(4);
    }
}

static void
fill(rt_run *run, const rt_program *p, FILE *in)
{
    char *end = NULL, *start = (char *)(uintptr_t)p->align;
    run->input = calloc((size_t)p->ninput + 1, sizeof(void *));
    lay_out(run, p, start, &end); /* how much it is */
    lay_out(run, p, rt_alloc((size_t)(end - start)), &end);
    for (int i = 0; i < p->nparam; i++)
        get_param(run, &p->param[i], in);
    float scale[RT_SCALER_FLOATS] = {65536};
    if (p->scaled)
        rt_upload(run->compute, run->base[RT_SCALER][0], scale, sizeof scale);
    for (int i = 0; i < p->ninput; i++)
        get_to(run, run->input[i], input_bytes(&p->input[i]), in);
}

/* Gradients are 0; the arena is NaN, unless it is written. */
static void
wipe(rt_run *run, const rt_program *p)
{
    void *nan = malloc((size_t)p->arena_bytes + 1);
    memset(nan, 0xff, (size_t)p->arena_bytes);
    rt_upload(run->compute, run->arena, nan, p->arena_bytes);
    free(nan);
    for (int u = 0; u < p->nunit; u++)
        rt_zero(run->compute, run->base[RT_GRAD][u], p->unit_bytes[u][RT_GRAD]);
}

/* The wanted bytes of the arena: their number, then offset and size of each. */
static void
put_wanted(rt_run *run, FILE *in, FILE *out)
{
    for (int64_t n = get_int(in); n > 0; n--) {
        int64_t at = get_int(in), bytes = get_int(in);
        put_from(run, run->arena + at, (size_t)bytes, out);
    }
}

static void
put_class(rt_run *run, const rt_program *p, rt_class cls, FILE *out)
{
    for (int i = 0; i < p->nparam; i++)
        if (p->param[i].cls == RT_TRAIN)
            put_from(run, place(run, cls, &p->param[i]), (size_t)p->param[i].n * 4,
                     out);
}

static void
clean_up(rt_run *run)
{
    for (int k = 0; k < RT_NCLASSES; k++)
        free(run->base[k]);
    free(run->input);
    rt_device_close(run->compute);
}

int
rt_main(int argc, char **argv, const rt_program *p)
{
    char error[256];
    rt_run run = {.program = p};
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL;
    FILE *out = argc == 3 ? fopen(argv[2], "wb") : NULL;
    if (!in || !out || !rt_device_open(p, &run.compute, error, sizeof error))
        return 2;
    run.hyper = (rt_hyper){.lr = 0.01,
                           .weight_decay = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 0.01, /* else small gradients decide by their sign */
                           .max_norm = 0.5,
                           .step = 1};
    int at[RT_NSYMS];
    get_sizes(p, at, in);
    fill(&run, p, in);
    if (!rt_prepare(&run, error, sizeof error))
        return 2;
    wipe(&run, p);
    rt_set_sizes(&run, at);
    for (int64_t n = get_int(in); n > 0; n--)
        rt_execute(&run, RT_MICRO);
    put_class(&run, p, RT_GRAD, out);
    rt_execute(&run, RT_UPDATE);
    put_wanted(&run, in, out);
    put_class(&run, p, RT_TRAIN, out);
    rt_execute(&run, RT_EVAL);
    put_wanted(&run, in, out);
    clean_up(&run);
    fclose(in);
    return fclose(out) != 0;
}
