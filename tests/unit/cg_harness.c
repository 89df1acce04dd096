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

static char *
place(rt_run *run, rt_class cls, const rt_param *p)
{
    return run->base[cls][p->unit] + p->offset;
}

/* Contents of the param, and its image. */
static void
get_param(rt_run *run, const rt_param *p, FILE *in)
{
    char *x = place(run, p->cls, p);
    get(in, x, (size_t)p->n * size_of(p->dtype));
    if (p->image >= 0)
        rt_convert(run->compute, run->base[RT_IMAGE][p->unit] + p->image,
                   p->image_dtype, x, p->dtype, p->n);
}

/* Sizes of named dimensions; without one, its number is 0. */
static void
set_sizes(rt_run *run, const rt_program *p, FILE *in)
{
    int at[RT_NSYMS];
    for (int i = 0; i < RT_NSYMS; i++) {
        at[i] = (int)get_int(in);
        if (p->nsize[i] && at[i] >= p->nsize[i])
            exit(4);
    }
    rt_set_sizes(run, at);
}

static void
fill(rt_run *run, const rt_program *p, FILE *in)
{
    for (int k = 0; k < RT_NCLASSES; k++) {
        run->base[k] = calloc((size_t)p->nunit, sizeof(char *));
        for (int u = 0; u < p->nunit; u++)
            run->base[k][u] = rt_alloc((size_t)p->unit_bytes[u][k] + RT_ALIGN);
    }
    for (int i = 0; i < p->nparam; i++)
        get_param(run, &p->param[i], in);
    if (p->scaled)
        *(float *)run->base[RT_SCALER][0] = 65536;
    run->input = calloc((size_t)p->ninput, sizeof(void *));
    for (int i = 0; i < p->ninput; i++) {
        rt_input_role role = p->input[i].role;
        size_t n = role == RT_SCALE || role == RT_VALUES ? 4 : 8;
        for (int d = 0; d < p->input[i].rank; d++)
            n *= (size_t)p->input[i].dim[d];
        run->input[i] = malloc(n);
        get(in, run->input[i], n);
    }
    run->arena = rt_alloc((size_t)p->arena_bytes + RT_ALIGN);
    memset(run->arena, 0xff, (size_t)p->arena_bytes); /* NaN, unless it is written */
}

/* The wanted bytes of the arena: their number, then offset and size of each. */
static void
put_wanted(rt_run *run, FILE *in, FILE *out)
{
    for (int64_t n = get_int(in); n > 0; n--) {
        int64_t at = get_int(in), bytes = get_int(in);
        fwrite(run->arena + at, 1, (size_t)bytes, out);
    }
}

static void
put_class(rt_run *run, const rt_program *p, rt_class cls, FILE *out)
{
    for (int i = 0; i < p->nparam; i++)
        if (p->param[i].cls == RT_TRAIN)
            fwrite(place(run, cls, &p->param[i]), 4, (size_t)p->param[i].n, out);
}

static void
clean_up(rt_run *run, const rt_program *p)
{
    for (int k = 0; k < RT_NCLASSES; k++)
        free(run->base[k]);
    for (int i = 0; i < p->ninput; i++)
        free(run->input[i]);
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
    set_sizes(&run, p, in);
    fill(&run, p, in);
    for (int64_t n = get_int(in); n > 0; n--)
        p->micro(&run);
    put_class(&run, p, RT_GRAD, out);
    p->update(&run);
    put_wanted(&run, in, out);
    put_class(&run, p, RT_TRAIN, out);
    p->eval(&run);
    put_wanted(&run, in, out);
    clean_up(&run, p);
    fclose(in);
    return fclose(out) != 0;
}
