/* adapter.c -- adapters as PEFT's adapter_model.safetensors: what modules there are, and writing.
 *
 * A module has one adapter in the file, of rank R. A program that adapts a whole module has
 * one part, R = r. On row ranges (q and v of a fused matrix) it has several parts, and the
 * file's adapter is their block structure: R = r * parts, A stacked, B zero but for
 *
 *     B[rows of part i, i*r .. (i+1)*r) = B_i      lora_alpha = scale * R
 *
 * which computes the same sum. Reading, in adapter_load.c, undoes it.
 */
#include "adapter_int.h"
#include "peft.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static rt_adapted *
module_of(rt_modules *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->at[i].name, name))
            return &m->at[i];
    m->at[m->n].name = name;
    return &m->at[m->n++];
}

rt_modules
rt_modules_of(const rt_program *p)
{
    rt_modules m = {.at = rt_new((size_t)p->nparam + 1, sizeof *m.at)};
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *a = &p->param[i];
        if (a->role != RT_LORA_A)
            continue;
        rt_adapted *at = module_of(&m, a->module);
        if (at->n == RT_PARTS)
            exit(rt_fail(RT_BUG, "more than %d adapters on %s", RT_PARTS, a->module));
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

static char *
key_of(const char *module, const char *what)
{
    rt_text t = {0};
    rt_putf(&t, "base_model.model.%s%s", module, what);
    return t.s;
}

/* ---- the base ---- */

/* Weight of an adapted module; NULL: there is none by that name. */
static const rt_param *
base_weight(const rt_program *p, const char *module)
{
    size_t n = strlen(module);
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *w = &p->param[i];
        const char *name = w->hf ? w->hf : w->name, *dot = strrchr(name, '.');
        size_t k = dot ? (size_t)(dot - name) : strlen(name);
        if (w->role == RT_BASE && w->cls != RT_CONST && w->rank == 2 && k == n &&
            !strncmp(name, module, n))
            return w;
    }
    return NULL;
}

static int
by_name(const void *a, const void *b)
{
    return strcmp(((const rt_adapted *)a)->name, ((const rt_adapted *)b)->name);
}

static void
hash_base(const rt_run *run, const rt_modules *m, const rt_param *const *w,
          char hex[17])
{
    rt_base_hash h;
    rt_base_hash_begin(&h);
    for (int i = 0; i < m->n; i++) {
        const float *x =
            rt_look(run, rt_param_data(run, w[i]), (int64_t)rt_param_bytes(w[i]));
        rt_base_hash_add(&h, m->at[i].name, x, w[i]->dim[0], w[i]->dim[1],
                         w[i]->transposed);
        rt_looked(x);
    }
    rt_base_hash_end(&h, hex);
}

bool
rt_adapter_base(const rt_run *run, const char *program_dir, rt_modules *m, char hex[17])
{
    const rt_param **w = rt_new((size_t)m->n + 1, sizeof *w);
    bool known = m->n > 0, rounded = false;
    qsort(m->at, (size_t)m->n, sizeof *m->at, by_name);
    for (int i = 0; i < m->n && known; i++) {
        w[i] = base_weight(run->program, m->at[i].name);
        known = w[i] && w[i]->cls == RT_FROZEN;
        rounded |= known && w[i]->dtype != RT_F32;
    }
    if (known && rounded)
        known = rt_source_hash(run, program_dir, w, m->n, hex);
    else if (known)
        hash_base(run, m, w, hex);
    free(w);
    return known;
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
add_module(saver *s, const rt_adapted *m, int64_t rank)
{
    int64_t in = m->a[0]->dim[1], out = rt_module_rows(m->b[0]);
    float *a = rt_new((size_t)(rank * in), 4), *b = rt_new((size_t)(out * rank), 4);
    for (int i = 0; i < m->n; i++) {
        int64_t r = m->a[i]->dim[0], from = i * r;
        rt_download(s->run->compute, a + from * in, rt_param_data(s->run, m->a[i]),
                    r * in * 4);
        int64_t bytes = (int64_t)rt_param_bytes(m->b[i]);
        const float *data = rt_look(s->run, rt_param_data(s->run, m->b[i]), bytes);
        for (int64_t o = 0; o < m->b[i]->dim[0]; o++)
            memcpy(b + rt_part_row(m->b[i], o) * rank + from, data + o * r,
                   (size_t)r * 4);
        rt_looked(data);
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
        float *made = param->shift != 0 ? rt_new((size_t)param->n, sizeof *made) : NULL;
        float *room = made;
        rt_st_out o = {.name = key_of(param->hf ? param->hf : param->name, ""),
                       .rank = param->rank,
                       .transposed = param->transposed && param->rank == 2};
        rt_torch_data(s->run, param, &room, &o);
        for (int d = 0; d < o.rank; d++)
            o.dim[d] = param->dim[o.transposed ? 1 - d : d];
        add(s, o, made);
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
                             .data = rt_param_data(run, param),
                             .of = run};
        memcpy(out[n++].dim, param->dim, sizeof param->dim);
    }
    char *path = rt_path(dir, "head.safetensors");
    rt_text meta = {0};
    rt_putf(&meta, "{\"format\":\"pt\"");
    if (p->pool && *p->pool)
        rt_putf(&meta, ",\"efficc.pool\":\"%s\"", p->pool);
    rt_putf(&meta, "}");
    int code = n ? rt_st_write_meta(path, out, n, meta.s) : RT_OK;
    if (n && !code)
        rt_say("saved",
               "%s: the head, %d tensors that have no place in a PEFT file "
               "(--init-adapter reads it, too)",
               path, n);
    free(meta.s);
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
rt_adapter_save(const rt_run *run, const char *program_dir, const char *dir)
{
    const rt_program *p = run->program;
    rt_modules m = rt_modules_of(p);
    int64_t rank = p->lora_r * m.parts;
    char **extra = extra_modules(p);
    saver s = {run, rt_new((size_t)p->nparam * 2 + 1, sizeof *s.out),
               rt_new((size_t)p->nparam * 2 + 1, sizeof *s.block), 0};
    char meta[80] = "{\"format\":\"pt\"}", hex[17];
    if (rt_adapter_base(run, program_dir, &m, hex))
        snprintf(meta, sizeof meta, "{\"format\":\"pt\",\"efficc.base\":\"%s\"}", hex);
    for (int i = 0; i < m.n; i++)
        add_module(&s, &m.at[i], rank);
    add_whole(&s, extra);
    char *path = rt_path(dir, "adapter_model.safetensors");
    int n = s.n,
        code = rt_st_write_meta(path, s.out, n, meta); /* sorts out, not block */
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
