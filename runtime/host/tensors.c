/* tensors.c -- the names that tensors have in files, and two options that use them.
 *
 * A param is known by several names: its initializer and those of its tied copies (layout of
 * the model file), PyTorch's (PyTorch's layout, which may be the transpose), and, trained
 * beside or as adapters, its key in a PEFT file. Gradients are written under the first that
 * applies of: adapter key, row range of an adapter, head.weight, initializer, own name.
 */
#include "checkpoint_int.h"
#include "host_int.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *
rt_public_name(const rt_param *p, bool *torch)
{
    rt_text t = {0};
    bool adapter = p->role == RT_LORA_A || p->role == RT_LORA_B;
    const char *kind = p->role == RT_LORA_A ? "lora_A" : "lora_B";
    *torch = p->role == RT_MODULE;
    if (adapter && p->part)
        rt_putf(&t, "%s.%s.%s", p->module, p->part, kind);
    else if (adapter)
        rt_putf(&t, "base_model.model.%s.%s.weight", p->module, kind);
    else if (p->role == RT_MODULE)
        rt_putf(&t, "base_model.model.%s", p->hf ? p->hf : p->name);
    else
        rt_putf(&t, "%s", p->role != RT_HEAD && p->onnx ? p->onnx : p->name);
    return t.s;
}

/* Is `name` an initializer of p? *transposed: it holds p's transpose. */
static bool
is_initializer(const rt_param *p, const char *name, bool *transposed)
{
    *transposed = false;
    if (p->onnx && !strcmp(p->onnx, name))
        return true;
    for (int i = 0; p->also && p->also[i]; i++)
        if (!strcmp(p->also[i] + 1, name)) {
            *transposed = p->also[i][0] == 'T';
            return true;
        }
    return false;
}

/* The ways in which a name may mean p, in the order in which they are tried. */
enum { BY_KEY, BY_TORCH, BY_FILE, BY_OWN, WAYS };

/* What a name says of the tensor's contents. */
typedef struct form {
    bool transposed;
    bool torch; /* they are PyTorch's parameter */
} form;

static bool
is_key(const rt_param *p, const char *name, form *f)
{
    if (p->role == RT_BASE)
        return false;
    char *key = rt_public_name(p, &f->torch);
    bool same = !strcmp(key, name);
    f->transposed = f->torch && p->transposed;
    free(key);
    return same;
}

static bool
means(const rt_param *p, int way, const char *name, form *f)
{
    *f = (form){0};
    switch (way) {
    case BY_KEY:
        return is_key(p, name, f);
    case BY_TORCH:
        *f = (form){p->transposed, true};
        return p->hf && !strcmp(p->hf, name);
    case BY_FILE:
        return is_initializer(p, name, &f->transposed);
    default:
        return !strcmp(p->name, name);
    }
}

static const rt_param *
find(const rt_program *p, const char *name, bool torch_file, form *f)
{
    static const int order[2][WAYS] = {{BY_KEY, BY_FILE, BY_OWN, BY_TORCH},
                                       {BY_KEY, BY_TORCH, BY_FILE, BY_OWN}};
    for (int w = 0; w < WAYS; w++)
        for (int i = 0; i < p->nparam; i++)
            if (p->param[i].cls != RT_CONST &&
                means(&p->param[i], order[torch_file][w], name, f))
                return &p->param[i];
    return NULL;
}

/* Makes *best a copy of candidate if that is nearer to name than *least. */
static void
nearer(const char *name, const char *candidate, char **best, int *least)
{
    int d = candidate ? rt_distance_part(name, candidate) : *least;
    if (d >= *least)
        return;
    free(*best);
    *best = strdup(candidate);
    *least = d;
}

/* The name of a tensor that is near to `name`; NULL: none is. Free it. */
static char *
nearest(const rt_program *p, const char *name)
{
    char *best = NULL;
    int least = 1 << 20;
    for (int i = 0; i < p->nparam; i++) {
        bool torch;
        if (p->param[i].cls == RT_CONST)
            continue;
        char *public_name = rt_public_name(&p->param[i], &torch);
        nearer(name, public_name, &best, &least);
        nearer(name, p->param[i].hf, &best, &least);
        free(public_name);
    }
    if (rt_is_near(name, least))
        return best;
    free(best);
    return NULL;
}

static void
put_shape(rt_text *t, int rank, const int64_t *dim, bool reversed)
{
    rt_putf(t, "[");
    for (int i = 0; i < rank; i++)
        rt_putf(t, "%s%lld", i ? "," : "", (long long)dim[reversed ? rank - 1 - i : i]);
    rt_putf(t, "]");
}

static bool
same_shape(const rt_param *p, const rt_st_tensor *t, bool transposed)
{
    bool same = p->rank == t->rank;
    for (int i = 0; i < p->rank && same; i++)
        same = t->dim[i] == p->dim[transposed ? p->rank - 1 - i : i];
    return same;
}

int
rt_tensor_check(const rt_param *p, const rt_st *st, const rt_st_tensor *t,
                bool transposed)
{
    if (same_shape(p, t, transposed && p->rank == 2))
        return rt_st_check_f32(st, t);
    rt_text s = {0};
    rt_putf(&s, "%s: '%s' is ", st->path, t->name);
    put_shape(&s, t->rank, t->dim, false);
    rt_putf(&s, ", but the program has ");
    put_shape(&s, p->rank, p->dim, transposed && p->rank == 2);
    int code = rt_fail(RT_USER, "%s", s.s);
    free(s.s);
    return code;
}

/* The elements in our layout. */
static int
read_floats(const rt_param *p, const rt_st *st, const rt_st_tensor *t, bool transposed,
            float *to)
{
    if (!transposed || p->rank != 2)
        return rt_st_read_f32(st, t, to);
    float *buf = rt_new((size_t)p->n, sizeof *buf);
    int code = rt_st_read_f32(st, t, buf);
    int64_t rows = p->dim[0], cols = p->dim[1];
    for (int64_t r = 0; r < rows && !code; r++)
        for (int64_t c = 0; c < cols; c++)
            to[r * cols + c] = buf[c * rows + r];
    free(buf);
    return code;
}

/* The same, rounded to the type of p. */
static int
read_low(const rt_run *run, const rt_param *p, const rt_st *st, const rt_st_tensor *t,
         bool transposed)
{
    float *x = rt_new((size_t)p->n, sizeof *x);
    void *to = rt_param_data(run, p);
    int64_t bytes = (int64_t)rt_param_bytes(p);
    int code = read_floats(p, st, t, transposed, x);
    if (!code) {
        uint16_t *low = rt_edit(run, to, bytes);
        int64_t lost = rt_lower(p->dtype == RT_F16 ? "f16" : "bf16", x, p->n, low);
        rt_edited(run, to, low, bytes);
        if (lost)
            code = rt_fail(RT_USER,
                           "%s: '%s' has %lld elements beyond the range of %s\ncompile "
                           "with --bf16 or --fp32",
                           st->path, t->name, (long long)lost,
                           p->dtype == RT_F16 ? "fp16" : "bf16");
    }
    free(x);
    return code;
}

int
rt_tensor_into(rt_run *run, const rt_param *p, const rt_st *st, const rt_st_tensor *t,
               bool transposed)
{
    int code = rt_tensor_check(p, st, t, transposed);
    if (code)
        return code;
    if (p->dtype != RT_F32)
        return read_low(run, p, st, t, transposed);
    void *to = rt_param_data(run, p);
    float *x = rt_edit(run, to, (int64_t)rt_param_bytes(p));
    code = read_floats(p, st, t, transposed, x);
    rt_edited(run, to, x, (int64_t)rt_param_bytes(p));
    return code;
}

void
rt_tensor_shift(rt_run *run, const rt_param *p)
{
    float *there = rt_param_data(run, p);
    int64_t bytes = (int64_t)rt_param_bytes(p);
    if (p->shift == 0)
        return;
    const float *x = rt_look(run, there, bytes);
    float *y = rt_edit(run, there, bytes);
    for (int64_t i = 0; i < p->n; i++)
        y[i] = x[i] + p->shift;
    rt_looked(x);
    rt_edited(run, there, y, bytes);
}

float *
rt_torch_room(const rt_program *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->nparam; i++)
        n += p->param[i].shift != 0 ? p->param[i].n : 0;
    return rt_new((size_t)n, sizeof(float));
}

void
rt_torch_data(const rt_run *run, const rt_param *p, float **room, rt_st_out *o)
{
    float *y = *room;
    o->data = rt_param_data(run, p);
    o->of = run;
    if (p->shift == 0)
        return;
    const float *x = rt_look(run, o->data, (int64_t)rt_param_bytes(p));
    for (int64_t i = 0; i < p->n; i++)
        y[i] = x[i] - p->shift;
    rt_looked(x);
    *room += p->n;
    o->data = y;
    o->of = NULL;
}

static int
unknown_tensor(const rt_program *p, const rt_st *st, const char *name)
{
    char *near = nearest(p, name);
    int code = rt_fail(RT_USER,
                       "%s: the program has no tensor '%s'\n%s%s%s--save-gradients "
                       "writes all names that are trained",
                       st->path, name, near ? "the nearest name is '" : "",
                       near ? near : "", near ? "'; " : "");
    free(near);
    return code;
}

/* Checks all tensors of the file; with a run, reads them. */
static int
each_tensor(rt_run *run, const rt_program *program, const rt_st *st)
{
    int code = RT_OK;
    for (int i = 0; i < st->n && !code; i++) {
        const rt_st_tensor *t = &st->tensor[i];
        form f;
        const rt_param *p = find(program, t->name, st->torch, &f);
        if (!p)
            code = unknown_tensor(program, st, t->name);
        else if (run)
            code = rt_tensor_into(run, p, st, t, f.transposed);
        else
            code = rt_tensor_check(p, st, t, f.transposed);
        if (run && f.torch && !code)
            rt_tensor_shift(run, p);
    }
    return code;
}

int
rt_tensors_check(const rt_program *program, const char *path)
{
    rt_st st;
    int code = rt_st_open(&st, path);
    if (!code)
        code = each_tensor(NULL, program, &st);
    rt_st_close(&st);
    return code;
}

int
rt_tensors_load(rt_run *run, const char *path)
{
    rt_st st;
    int code = rt_st_open(&st, path);
    if (!code)
        code = each_tensor(NULL, run->program, &st);
    if (!code)
        code = each_tensor(run, run->program, &st);
    if (!code)
        rt_say("start", "%d tensors of %s", st.n, path);
    rt_st_close(&st);
    return code;
}

/* --init-tensors names a folder that is no checkpoint. */
static int
no_tensors(const char *dir)
{
    static const char *const file[] = {"model.safetensors", "adapter_config.json"};
    bool there[2];
    int n;
    int64_t *step = rt_checkpoint_list(dir, &n);
    char *newest = rt_checkpoint_path(dir, n ? step[0] : 0);
    for (int i = 0; i < 2; i++) {
        char *path = rt_path(dir, file[i]);
        there[i] = !access(path, F_OK);
        free(path);
    }
    rt_text t = {0};
    if (there[0])
        rt_putf(&t, "give %s/model.safetensors", dir);
    else if (there[1])
        rt_putf(&t, "an adapter is given by --init-adapter %s", dir);
    else if (n)
        rt_putf(&t, "give a checkpoint in it, such as %s", newest);
    else
        rt_putf(&t, "give a safetensors file, or a folder checkpoint-<step>");
    int code = rt_fail(RT_USER,
                       "--init-tensors %s: the folder is no checkpoint: it has no "
                       "weights.safetensors\n%s",
                       dir, t.s);
    free(t.s);
    free(newest);
    free(step);
    return code;
}

int
rt_tensors_init(rt_run *run, const char *given)
{
    struct stat st;
    if (stat(given, &st) || !S_ISDIR(st.st_mode))
        return rt_tensors_load(run, given);
    char *path = rt_path(given, "weights.safetensors");
    int code = access(path, F_OK) ? no_tensors(given) : rt_tensors_load(run, path);
    free(path);
    return code;
}

/* Without the factor of a loss scaler; that takes room. */
static void
true_gradient(const rt_run *run, const rt_param *p, float **room, rt_st_out *o)
{
    o->data = rt_param_grad(run, p);
    o->of = run;
    if (!run->program->scaled)
        return;
    float *y = *room, scale = rt_scaler_scale(run);
    const float *g = rt_look(run, o->data, p->n * (int64_t)sizeof *g);
    for (int64_t i = 0; i < p->n; i++)
        y[i] = g[i] / scale;
    rt_looked(g);
    *room += p->n;
    o->data = y;
    o->of = NULL;
}

int
rt_gradients_save(const rt_run *run, const char *path)
{
    const rt_program *p = run->program;
    rt_st_out *out = rt_new((size_t)p->nparam + 1, sizeof *out);
    size_t bytes = p->scaled ? (size_t)rt_class_bytes(p, RT_GRAD) : 1;
    float *made = rt_new(bytes, 1), *room = made;
    int n = 0;
    for (int i = 0; i < p->nparam; i++) {
        const rt_param *param = &p->param[i];
        if (param->cls != RT_TRAIN)
            continue;
        rt_st_out *o = &out[n++];
        bool torch;
        o->name = rt_public_name(param, &torch);
        true_gradient(run, param, &room, o);
        o->rank = param->rank;
        o->transposed = torch && param->transposed && param->rank == 2;
        for (int d = 0; d < o->rank; d++)
            o->dim[d] = param->dim[o->transposed ? 1 - d : d];
    }
    int code = rt_st_write(path, out, n, false);
    for (int i = 0; i < n; i++)
        free((char *)out[i].name);
    free(out);
    free(made);
    if (!code)
        rt_say("saved", "gradients of step 1: %s, %d tensors", path, n);
    return code;
}
