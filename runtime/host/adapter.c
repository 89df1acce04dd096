/* adapter.c -- adapters as PEFT's adapter_model.safetensors, read and written.
 *
 * A module has one adapter in the file, of rank R. A program that adapts a whole module has
 * one part, R = r. On row ranges (q and v of a fused matrix) it has several parts, and the
 * file's adapter is their block structure: R = r * parts, A stacked, B zero but for
 *
 *     B[rows of part i, i*r .. (i+1)*r) = B_i      lora_alpha = scale * R
 *
 * which computes the same sum. Reading undoes it and refuses anything outside the blocks.
 */
#include "host_int.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARTS = 8 };

typedef struct adapted { /* a module with adapters */
    const char *name;
    int n; /* parts */
    const rt_param *a[PARTS], *b[PARTS];
} adapted;

typedef struct modules {
    int n, parts; /* most parts of any */
    adapted *at;
} modules;

static adapted *
module_of(modules *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->at[i].name, name))
            return &m->at[i];
    m->at[m->n].name = name;
    return &m->at[m->n++];
}

/* The A of each part in the order of the table, B by the part's name. */
static modules
modules_of(const rt_program *p)
{
    modules m = {.at = rt_new((size_t)p->nparam + 1, sizeof *m.at)};
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *a = &p->param[i];
        if (a->role != RT_LORA_A)
            continue;
        adapted *at = module_of(&m, a->module);
        if (at->n == PARTS)
            exit(rt_fail(RT_BUG, "more than %d adapters on %s", PARTS, a->module));
        for (int j = 0; j < p->nparam; j++) {
            const rt_param *b = &p->param[j];
            if (b->role == RT_LORA_B && !strcmp(b->module, a->module) &&
                !strcmp(b->part ? b->part : "", a->part ? a->part : ""))
                at->b[at->n] = b;
        }
        at->a[at->n++] = a;
        if (at->n > m.parts)
            m.parts = at->n;
    }
    return m;
}

/* First output feature of a part, and output features of its module. */
static int64_t
first_row(const rt_param *b)
{
    return b->part ? b->part_start : 0;
}
static int64_t
module_rows(const rt_param *b)
{
    return b->part ? b->part_of : b->dim[0];
}

static char *
key_of(const char *module, const char *what)
{
    rt_text t = {0};
    rt_putf(&t, "base_model.model.%s%s", module, what);
    return t.s;
}

/* ---- loading ---- */

typedef struct loader {
    rt_run *run;
    rt_st st;
    bool *used;   /* tensors of st */
    int64_t rank; /* R */
    int nmissing;
} loader;

/* Marks it as used; NULL: missing, which is said. */
static const rt_st_tensor *
take(loader *l, const char *key)
{
    const rt_st_tensor *t = rt_st_find(&l->st, key);
    if (t)
        l->used[t - l->st.tensor] = true;
    else if (++l->nmissing <= 5)
        rt_fail(RT_USER, "%s: tensor '%s' is missing", l->st.path, key);
    return t;
}

/* Copies A's rows and B's block of each part; clears them in a and b, so that what remains
 * there is outside the blocks. */
static void
take_blocks(rt_run *run, const adapted *m, float *a, float *b, int64_t rank)
{
    for (int i = 0; i < m->n; i++) {
        int64_t r = m->a[i]->dim[0], in = m->a[i]->dim[1], from = i * r;
        memcpy(rt_param_data(run, m->a[i]), a + from * in, (size_t)(r * in) * 4);
        memset(a + from * in, 0, (size_t)(r * in) * 4);
        float *to = rt_param_data(run, m->b[i]);
        for (int64_t o = 0; o < m->b[i]->dim[0]; o++) {
            float *row = b + (first_row(m->b[i]) + o) * rank + from;
            memcpy(to + o * r, row, (size_t)r * 4);
            memset(row, 0, (size_t)r * 4);
        }
    }
}

/* The first row of b with a nonzero element, or -1. Rows of a without a part don't matter. */
static int64_t
left_over(const float *b, int64_t rows, int64_t rank)
{
    for (int64_t i = 0; i < rows * rank; i++)
        if (b[i] != 0)
            return i / rank;
    return -1;
}

static bool
is_shape(const rt_st_tensor *t, int64_t rows, int64_t cols)
{
    return t->rank == 2 && t->dim[0] == rows && t->dim[1] == cols;
}

static int
load_module(loader *l, const adapted *m)
{
    char *key_a = key_of(m->name, ".lora_A.weight"),
         *key_b = key_of(m->name, ".lora_B.weight");
    const rt_st_tensor *ta = take(l, key_a), *tb = take(l, key_b);
    free(key_a);
    free(key_b);
    if (!ta || !tb)
        return RT_OK; /* counted */
    int64_t in = m->a[0]->dim[1], out = module_rows(m->b[0]);
    if (!is_shape(ta, l->rank, in) || !is_shape(tb, out, l->rank))
        return rt_fail(
            RT_USER,
            "%s: the adapter of %s does not fit: lora_A must be [%lld,%lld], lora_B "
            "[%lld,%lld]",
            l->st.path, m->name, (long long)l->rank, (long long)in, (long long)out,
            (long long)l->rank);
    float *a = rt_new((size_t)ta->count, 4), *b = rt_new((size_t)tb->count, 4);
    int code = rt_st_read_f32(&l->st, ta, a);
    if (!code)
        code = rt_st_read_f32(&l->st, tb, b);
    if (!code)
        take_blocks(l->run, m, a, b, l->rank);
    int64_t row = code ? -1 : left_over(b, out, l->rank);
    if (row >= 0)
        code = rt_fail(
            RT_USER,
            "%s: the adapter of %s changes output feature %lld outside the row "
            "ranges of this trainer (K is not adapted)\ncompile with --lora-targets "
            "%s to adapt the whole module",
            l->st.path, m->name, (long long)row, m->name);
    free(a);
    free(b);
    return code;
}

/* Modules saved whole, by PyTorch's names; any other tensor is an error. */
static int
load_whole(loader *l)
{
    const rt_program *p = l->run->program;
    int code = RT_OK;
    for (int i = 0; i < p->nparam && !code; i++) {
        const rt_param *param = &p->param[i];
        bool lora = param->role == RT_LORA_A || param->role == RT_LORA_B;
        if (param->cls == RT_CONST || lora || (!param->hf && param->role != RT_MODULE))
            continue;
        char *key = key_of(param->hf ? param->hf : param->name, "");
        const rt_st_tensor *t =
            param->role == RT_MODULE || rt_st_find(&l->st, key) ? take(l, key) : NULL;
        if (t)
            code = rt_tensor_into(l->run, param, &l->st, t, param->transposed);
        free(key);
    }
    int extra = 0;
    for (int i = 0; i < l->st.n && !code; i++)
        if (!l->used[i] && ++extra <= 5)
            rt_fail(RT_USER, "%s: tensor '%s' has no place in this trainer", l->st.path,
                    l->st.tensor[i].name);
    if (extra || l->nmissing)
        return rt_fail(
            RT_USER,
            "--init-adapter: %d tensors are missing, %d have no place\ncompile with "
            "the --lora-targets of the adapter",
            l->nmissing, extra);
    return code;
}

/* The head that a trainer saved beside its adapter. */
static int
load_head(rt_run *run, const char *dir)
{
    bool head = false;
    for (int i = 0; i < run->program->nparam; i++)
        head |= run->program->param[i].role == RT_HEAD;
    char *path = rt_path(dir, "head.safetensors");
    int code = RT_OK;
    if (head && !access(path, F_OK))
        code = rt_tensors_load(run, path);
    else if (head)
        rt_say("start", "%s has no head.safetensors: the head starts new", dir);
    free(path);
    return code;
}

int
rt_adapter_load(rt_run *run, const char *dir)
{
    modules m = modules_of(run->program);
    loader l = {.run = run, .rank = run->program->lora_r * m.parts, .st = {.fd = -1}};
    char *path = rt_path(dir, "adapter_model.safetensors");
    int code = rt_adapter_config_load(run->program, dir, l.rank);
    if (!code)
        code = rt_st_open(&l.st, path);
    l.used = rt_new((size_t)l.st.n + 1, 1);
    for (int i = 0; i < m.n && !code; i++)
        code = load_module(&l, &m.at[i]);
    if (!code)
        code = load_whole(&l);
    if (!code)
        rt_say("start", "adapter of %s, %d tensors", dir, l.st.n);
    if (!code)
        code = load_head(run, dir);
    rt_st_close(&l.st);
    free(l.used);
    free(path);
    free(m.at);
    return code;
}

/* ---- saving ---- */

typedef struct saver {
    const rt_run *run;
    rt_st_out *out;
    float **block; /* what was made for the file; NULL: data of the run */
    int n;
} saver;

/* made: the tensor's data, if they are to be freed; else NULL. */
static void
add(saver *s, rt_st_out tensor, float *made)
{
    s->out[s->n] = tensor;
    s->block[s->n++] = made;
}

static void
add_module(saver *s, const adapted *m, int64_t rank)
{
    int64_t in = m->a[0]->dim[1], out = module_rows(m->b[0]);
    float *a = rt_new((size_t)(rank * in), 4), *b = rt_new((size_t)(out * rank), 4);
    for (int i = 0; i < m->n; i++) {
        int64_t r = m->a[i]->dim[0], from = i * r;
        memcpy(a + from * in, rt_param_data(s->run, m->a[i]), (size_t)(r * in) * 4);
        const float *data = rt_param_data(s->run, m->b[i]);
        for (int64_t o = 0; o < m->b[i]->dim[0]; o++)
            memcpy(b + (first_row(m->b[i]) + o) * rank + from, data + o * r,
                   (size_t)r * 4);
    }
    char *key_a = key_of(m->name, ".lora_A.weight"),
         *key_b = key_of(m->name, ".lora_B.weight");
    add(s, (rt_st_out){.name = key_a, .rank = 2, .dim = {rank, in}, .data = a}, a);
    add(s, (rt_st_out){.name = key_b, .rank = 2, .dim = {out, rank}, .data = b}, b);
}

/* "a.b" of "a.b.weight"; free it. */
static char *
module_name(const char *hf)
{
    const char *dot = strrchr(hf, '.');
    return strndup(hf, dot ? (size_t)(dot - hf) : strlen(hf));
}

static bool
in_module(const char *hf, const char *module)
{
    size_t n = strlen(module);
    return hf && !strncmp(hf, module, n) && hf[n] == '.' && !strchr(hf + n + 1, '.');
}

/* Params that were trained beside adapters without being modules_to_save (--trainable):
 * PEFT saves whole modules, so their modules are added; names in a NULL-terminated list. */
static char **
extra_modules(const rt_program *p)
{
    char **list = rt_new((size_t)p->nparam + 1, sizeof *list);
    int n = 0;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *param = &p->param[i];
        if (param->cls != RT_TRAIN || param->role != RT_BASE || !param->hf)
            continue;
        char *name = module_name(param->hf);
        bool known = false;
        for (int k = 0; k < n; k++)
            known |= !strcmp(list[k], name);
        if (known)
            free(name);
        else
            list[n++] = name;
    }
    return list;
}

static void
add_whole(saver *s, char *const *extra)
{
    const rt_program *p = s->run->program;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *param = &p->param[i];
        bool wanted = param->role == RT_MODULE;
        for (int k = 0; extra[k] && param->role == RT_BASE; k++)
            wanted |= in_module(param->hf, extra[k]);
        if (!wanted || param->cls == RT_CONST)
            continue;
        rt_st_out o = {.name = key_of(param->hf ? param->hf : param->name, ""),
                       .rank = param->rank,
                       .data = rt_param_data(s->run, param),
                       .transposed = param->transposed && param->rank == 2};
        for (int d = 0; d < o.rank; d++)
            o.dim[d] = param->dim[o.transposed ? 1 - d : d];
        add(s, o, NULL);
    }
}

/* What PEFT has no place for: a new head, trained params without a PyTorch name. */
static int
save_rest(const rt_run *run, const char *dir)
{
    const rt_program *p = run->program;
    rt_st_out *out = rt_new((size_t)p->nparam + 1, sizeof *out);
    int n = 0;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *param = &p->param[i];
        bool nameless = param->role == RT_BASE && param->cls == RT_TRAIN && !param->hf;
        if (param->role != RT_HEAD && !nameless)
            continue;
        out[n] = (rt_st_out){.name = param->name,
                             .rank = param->rank,
                             .data = rt_param_data(run, param)};
        memcpy(out[n++].dim, param->dim, sizeof param->dim);
    }
    char *path = rt_path(dir, "head.safetensors");
    int code = n ? rt_st_write(path, out, n, true) : RT_OK;
    if (n && !code)
        rt_say("saved",
               "%s: the head, %d tensors that have no place in a PEFT file "
               "(--init-adapter reads it, too)",
               path, n);
    free(path);
    free(out);
    return code;
}

/* PEFT ties what it saves whole only where it knows the embedding's name. */
static void
warn_of_ties(const rt_program *p)
{
    for (int i = 0; i < p->nparam; i++)
        if (p->param[i].cls == RT_TRAIN && p->param[i].also && p->param[i].also[0])
            rt_warn("'%s' is trained and tied to the output layer\nin PEFT the output "
                    "layer "
                    "stays as it was unless PEFT ties it (ensure_weight_tying); "
                    "--init-adapter takes the adapter as it is",
                    p->param[i].name);
}

int
rt_adapter_save(const rt_run *run, const char *dir)
{
    const rt_program *p = run->program;
    modules m = modules_of(p);
    int64_t rank = p->lora_r * m.parts;
    char **extra = extra_modules(p);
    saver s = {run, rt_new((size_t)p->nparam * 2 + 1, sizeof *s.out),
               rt_new((size_t)p->nparam * 2 + 1, sizeof *s.block), 0};
    for (int i = 0; i < m.n; i++)
        add_module(&s, &m.at[i], rank);
    add_whole(&s, extra);
    char *path = rt_path(dir, "adapter_model.safetensors");
    int n = s.n, code = rt_st_write(path, s.out, n, true); /* sorts out, not block */
    if (!code)
        code = rt_adapter_config_save(p, dir, rank, (const char *const *)extra);
    if (!code)
        rt_say("saved", "%s: %d tensors for PEFT, rank %lld, lora_alpha %g", path, n,
               (long long)rank, p->lora_scale * (double)rank);
    if (!code)
        code = save_rest(run, dir);
    warn_of_ties(p);
    for (int i = 0; i < n; i++) {
        free((char *)s.out[i].name);
        free(s.block[i]);
    }
    for (int i = 0; extra[i]; i++)
        free(extra[i]);
    free(s.out);
    free(s.block);
    free(extra);
    free(path);
    free(m.at);
    return code;
}
