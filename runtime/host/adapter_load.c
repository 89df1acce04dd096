/* adapter_load.c -- --init-adapter: an adapter that PEFT or a trainer saved.
 *
 * Everything is read and checked before any weight of the run changes: modules, ranks, scales
 * and shapes against the program, row ranges against the blocks of adapter.c, the base
 * weights against those the adapter was trained on, the head beside it.
 */
#include "adapter_int.h"
#include "peft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct loader {
    rt_run *run;
    const char *program_dir, *dir;
    rt_peft peft;
    rt_modules modules;
    float **a, **b; /* of each module, as in the file */
    int64_t rank;   /* R of adapter.c */
    int missing, extra;
} loader;

/* ---- adapters ---- */

static bool
in_block(const rt_adapted *m, int64_t row, int64_t col)
{
    int64_t part = col / m->a[0]->dim[0];
    if (part >= m->n) /* another module has more parts */
        return false;
    const rt_param *b = m->b[part];
    int64_t at = b->part ? row - b->part_start : row;
    if (!b->part || !b->part_block)
        return at >= 0 && at < b->dim[0];
    return at >= 0 && at / b->part_stride < b->dim[0] / b->part_block &&
           at % b->part_stride < b->part_block;
}

/* The first row of b with a nonzero element outside the blocks, or -1. */
static int64_t
outside(const rt_adapted *m, const float *b, int64_t rank)
{
    int64_t rows = rt_module_rows(m->b[0]);
    for (int64_t i = 0; i < rows * rank; i++)
        if (b[i] != 0 && !in_block(m, i / rank, i % rank))
            return i / rank;
    return -1;
}

static int
check_scale(const loader *l, const rt_peft_pair *pair)
{
    const rt_program *p = l->run->program;
    const char *path = l->peft.config.path;
    if (pair->rank != l->rank)
        return rt_fail(
            RT_USER,
            "%s: rank %lld on %s, but this trainer takes adapters of rank %lld%s", path,
            (long long)pair->rank, pair->module, (long long)l->rank,
            l->rank != p->lora_r
                ? " (one for each row range)\ncompile with --lora-targets that name "
                  "the whole module, or with the --lora-r that the adapter has"
                : "\ncompile with the --lora-r that the adapter has");
    if (fabs(pair->scale - p->lora_scale) > 1e-6 * fabs(p->lora_scale))
        return rt_fail(
            RT_USER,
            "%s: scale %g on %s, but this trainer was compiled for %g\ncompile with "
            "--lora-alpha %g",
            path, pair->scale, pair->module, p->lora_scale,
            pair->scale * (double)p->lora_r);
    return RT_OK;
}

/* Reads the adapter of module i; one that is missing is counted. */
static int
read_module(loader *l, int i)
{
    const rt_adapted *m = &l->modules.at[i];
    const rt_peft_pair *pair = rt_peft_find(&l->peft, m->name);
    const char *path = l->peft.st.path;
    if (!pair) {
        if (++l->missing <= 5)
            rt_fail(RT_USER, "%s: no adapter for module '%s'", path, m->name);
        return RT_OK;
    }
    int code = check_scale(l, pair);
    if (code)
        return code;
    int64_t in = m->a[0]->dim[1], out = rt_module_rows(m->b[0]);
    if (pair->embedding || pair->a->dim[1] != in || pair->b->dim[0] != out)
        return rt_fail(
            RT_USER,
            "%s: the adapter of %s does not fit: lora_A must be [%lld,%lld], lora_B "
            "[%lld,%lld]",
            path, m->name, (long long)l->rank, (long long)in, (long long)out,
            (long long)l->rank);
    l->a[i] = rt_new((size_t)pair->a->count, 4);
    l->b[i] = rt_new((size_t)pair->b->count, 4);
    code = rt_st_read_f32(&l->peft.st, pair->a, l->a[i]);
    if (!code)
        code = rt_st_read_f32(&l->peft.st, pair->b, l->b[i]);
    int64_t row = code ? -1 : outside(m, l->b[i], l->rank);
    if (row >= 0)
        code = rt_fail(
            RT_USER,
            "%s: the adapter of %s changes output feature %lld outside the row "
            "ranges of this trainer (K is not adapted)\ncompile with --lora-targets "
            "%s to adapt the whole module",
            path, m->name, (long long)row, m->name);
    return code;
}

/* Copies A's rows and B's block of each part. */
static void
take_blocks(const loader *l, int i)
{
    const rt_adapted *m = &l->modules.at[i];
    for (int k = 0; k < m->n; k++) {
        int64_t r = m->a[k]->dim[0], in = m->a[k]->dim[1], from = k * r;
        rt_upload(l->run->compute, rt_param_data(l->run, m->a[k]), l->a[i] + from * in,
                  r * in * 4);
        float *b = rt_param_data(l->run, m->b[k]);
        int64_t bytes = (int64_t)rt_param_bytes(m->b[k]);
        float *to = rt_edit(l->run, b, bytes);
        for (int64_t o = 0; o < m->b[k]->dim[0]; o++)
            memcpy(to + o * r, l->b[i] + rt_part_row(m->b[k], o) * l->rank + from,
                   (size_t)r * 4);
        rt_edited(l->run, b, to, bytes);
    }
}

/* ---- modules saved whole ---- */

static bool
is_whole(const rt_param *p)
{
    bool lora = p->role == RT_LORA_A || p->role == RT_LORA_B;
    return p->cls != RT_CONST && !lora && (p->hf || p->role == RT_MODULE);
}

static const rt_peft_whole *
whole_of(const loader *l, const rt_param *p)
{
    for (int i = 0; is_whole(p) && i < l->peft.nwhole; i++)
        if (!strcmp(l->peft.whole[i].name, p->hf ? p->hf : p->name))
            return &l->peft.whole[i];
    return NULL;
}

static bool
has_place(const loader *l, const rt_peft_whole *w)
{
    const rt_program *p = l->run->program;
    for (int i = 0; i < p->nparam; i++)
        if (whole_of(l, &p->param[i]) == w)
            return true;
    return false;
}

static bool
has_module(const loader *l, const char *name)
{
    for (int i = 0; i < l->modules.n; i++)
        if (!strcmp(l->modules.at[i].name, name))
            return true;
    return false;
}

static void
no_place(loader *l, const char *tensor)
{
    if (++l->extra <= 5)
        rt_fail(RT_USER, "%s: tensor '%s' has no place in this trainer",
                l->peft.st.path, tensor);
}

/* Every tensor of the program is in the file, and the other way round. */
static int
check_all(loader *l)
{
    const rt_program *p = l->run->program;
    int code = RT_OK;
    for (int i = 0; i < p->nparam && !code; i++) {
        const rt_peft_whole *w = whole_of(l, &p->param[i]);
        if (w)
            code = rt_tensor_check(&p->param[i], &l->peft.st, w->t,
                                   p->param[i].transposed);
        else if (p->param[i].role == RT_MODULE && ++l->missing <= 5)
            rt_fail(RT_USER, "%s: tensor '%s' is missing", l->peft.st.path,
                    p->param[i].hf ? p->param[i].hf : p->param[i].name);
    }
    for (int i = 0; i < l->peft.n; i++)
        if (!has_module(l, l->peft.pair[i].module))
            no_place(l, l->peft.pair[i].a->name);
    for (int i = 0; i < l->peft.nwhole; i++)
        if (!has_place(l, &l->peft.whole[i]))
            no_place(l, l->peft.whole[i].t->name);
    if (!code && (l->missing || l->extra))
        code = rt_fail(RT_USER,
                       "--init-adapter: %d modules or tensors are missing, %d have no "
                       "place\ncompile with the --lora-targets of the adapter",
                       l->missing, l->extra);
    return code;
}

/* ---- head and base ---- */

/* The head that a trainer saved beside its adapter; NULL: there is none, or no head. */
static char *
head_path(const loader *l)
{
    bool head = false;
    for (int i = 0; i < l->run->program->nparam; i++)
        head |= l->run->program->param[i].role == RT_HEAD;
    char *path = rt_path(l->dir, "head.safetensors");
    bool there = !access(path, F_OK);
    if (head && there)
        return path;
    if (head)
        rt_say("start", "%s has no head.safetensors: the head starts new", l->dir);
    free(path);
    return NULL;
}

static int
check_base(loader *l)
{
    char hex[17];
    if (!l->peft.base || !rt_adapter_base(l->run, l->program_dir, &l->modules, hex) ||
        !strcmp(hex, l->peft.base))
        return RT_OK;
    return rt_fail(RT_USER,
                   "%s was trained on other base weights than those of this trainer "
                   "(efficc.base is %s, here %s)\ncompile the model that the adapter "
                   "was made for",
                   l->peft.st.path, l->peft.base, hex);
}

/* ---- the whole ---- */

static int
check(loader *l, const char *head)
{
    int code = check_base(l); /* sorts the modules */
    for (int i = 0; i < l->modules.n && !code; i++)
        code = read_module(l, i);
    if (!code)
        code = check_all(l);
    if (!code && head)
        code = rt_tensors_check(l->run->program, head);
    return code;
}

static int
take(loader *l, const char *head)
{
    const rt_program *p = l->run->program;
    int code = RT_OK;
    for (int i = 0; i < l->modules.n; i++)
        take_blocks(l, i);
    for (int i = 0; i < p->nparam && !code; i++) {
        const rt_peft_whole *w = whole_of(l, &p->param[i]);
        if (w)
            code = rt_tensor_into(l->run, &p->param[i], &l->peft.st, w->t,
                                  p->param[i].transposed);
        if (w && !code)
            rt_tensor_shift(l->run, &p->param[i]);
    }
    if (!code)
        rt_say("start", "adapter of %s, %d tensors", l->dir, l->peft.st.n);
    return code || !head ? code : rt_tensors_load(l->run, head);
}

/* People take the folder of a trainer's checkpoint for an adapter. */
static int
check_folder(const char *dir)
{
    char *config = rt_path(dir, "adapter_config.json");
    char *weights = rt_path(dir, "weights.safetensors");
    bool checkpoint = access(config, F_OK) && !access(weights, F_OK);
    free(config);
    free(weights);
    return checkpoint
               ? rt_fail(RT_USER,
                         "--init-adapter %s: this is a trainer's checkpoint, not "
                         "an adapter\n--init-tensors %s starts from its weights, "
                         "--resume-from-checkpoint %s goes on with its run",
                         dir, dir, dir)
               : RT_OK;
}

int
rt_adapter_load(rt_run *run, const char *program_dir, const char *dir)
{
    if (check_folder(dir))
        return RT_USER;
    loader l = {.run = run,
                .program_dir = program_dir,
                .dir = dir,
                .modules = rt_modules_of(run->program)};
    l.rank = run->program->lora_r * l.modules.parts;
    l.a = rt_new((size_t)l.modules.n + 1, sizeof *l.a);
    l.b = rt_new((size_t)l.modules.n + 1, sizeof *l.b);
    int code = rt_peft_open(&l.peft, dir);
    char *head = code ? NULL : head_path(&l);
    if (!code)
        code = check(&l, head);
    if (!code)
        code = take(&l, head);
    for (int i = 0; i < l.modules.n; i++) {
        free(l.a[i]);
        free(l.b[i]);
    }
    rt_peft_close(&l.peft);
    free(head);
    free(l.a);
    free(l.b);
    free(l.modules.at);
    return code;
}
