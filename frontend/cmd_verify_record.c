/* cmd_verify_record.c -- reads what a trainer recorded of a step; the format stands in
 * runtime/host/record.c. It may be larger than memory has room for as doubles, so it is
 * mapped, and a tensor's elements are read when they are asked for.
 */
#include "cmd_verify.h"

#include <efficc_rt.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the file ---- */

/* The words of the format, and bytes of an element. */
enum { NO_WORD = 6, F64 = 5 };
static const struct {
    const char *name;
    int size;
} words[] = {[RT_F32] = {"f32", 4}, [RT_I64] = {"i64", 8},   [RT_BOOL] = {"bool", 1},
             [RT_F16] = {"f16", 2}, [RT_BF16] = {"bf16", 2}, [F64] = {"f64", 8}};

static double
element(int word, const char *p)
{
    float f;
    double d;
    int64_t i;
    uint16_t h;
    switch (word) {
    case RT_F32:
        memcpy(&f, p, sizeof f);
        return (double)f;
    case F64:
        memcpy(&d, p, sizeof d);
        return d;
    case RT_I64:
        memcpy(&i, p, sizeof i);
        return (double)i;
    case RT_BOOL:
        return *p != 0;
    default:
        memcpy(&h, p, sizeof h);
        return word == RT_BF16 ? ir_from_bfloat(h) : ir_from_half(h);
    }
}

static int
word_named(const char *name)
{
    int w = 0;
    while (w < NO_WORD && strcmp(words[w].name, name))
        w++;
    return w;
}

static void
add(record *r, const char *kind, const char *name, record_tensor *t)
{
    const char *key = ef_internf(r->ctx, "%s %s", kind, name);
    record_tensor *last = ef_map_get(&r->of, key);
    while (last && last->next)
        last = last->next;
    if (last)
        last->next = t;
    else
        ef_map_set(r->arena, &r->of, key, t);
}

/* The numbers behind KIND NAME DTYPE: class, unit and offset are passed over. -1: damaged. */
static int64_t
read_shape(record_tensor *t, char **rest)
{
    long long number[4 + IR_MAX_RANK + 1];
    int n = 0, dims = 4;
    for (const char *word; (word = strtok_r(NULL, " ", rest)); n++) {
        char *end;
        if (n == (int)EF_COUNT(number))
            return -1;
        number[n] = strtoll(word, &end, 10);
        if (*end || (n >= dims && number[n] < 0))
            return -1;
    }
    if (n <= dims || number[3] < 0 || number[3] != n - dims - 1)
        return -1;
    t->rank = (int)number[3];
    t->n = 1;
    for (int i = 0; i < t->rank; i++) {
        t->dim[i] = number[dims + i];
        if (t->dim[i] && t->n > INT64_MAX / 8 / t->dim[i])
            return -1;
        t->n *= t->dim[i];
    }
    return number[n - 1] == words[t->word].size * t->n ? number[n - 1] : -1;
}

/* The tensor at *at, which goes behind it; false: it is damaged. */
static bool
read_tensor(record *r, size_t *at)
{
    const char *from = r->file + *at, *end = memchr(from, '\n', r->size - *at);
    if (!end)
        return false;
    char *rest, *line = ef_strndup(r->arena, from, (size_t)(end - from));
    const char *kind = strtok_r(line, " ", &rest), *name = strtok_r(NULL, " ", &rest);
    const char *dtype = strtok_r(NULL, " ", &rest);
    record_tensor *t = EF_NEW(r->arena, record_tensor);
    t->word = dtype ? word_named(dtype) : NO_WORD;
    int64_t bytes = t->word == NO_WORD ? -1 : read_shape(t, &rest);
    if (bytes < 0 || bytes > r->file + r->size - (end + 1))
        return false;
    t->raw = end + 1;
    *at = (size_t)(t->raw - r->file) + (size_t)bytes;
    add(r, kind, name, t);
    return true;
}

static bool
map(record *r, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && fstat(fd, &st) == 0;
    r->size = ok ? (size_t)st.st_size : 0;
    if (r->size) {
        void *at = mmap(NULL, r->size, PROT_READ, MAP_PRIVATE, fd, 0);
        r->file = at == MAP_FAILED ? NULL : at;
        ok = r->file != NULL;
    }
    int why = errno;
    if (fd >= 0)
        close(fd);
    return ok || ef_error(r->ctx, NULL, E_FILE, path, strerror(why));
}

bool
verify_open_record(record *r, const char *path)
{
    static const char head[] = "efficc record 1 ";
    if (!map(r, path))
        return false;
    bool ok = r->size > sizeof head && !memcmp(r->file, head, sizeof head - 1);
    const char *line = ok ? memchr(r->file, '\n', r->size) : NULL;
    size_t at = line ? (size_t)(line + 1 - r->file) : r->size;
    while (at < r->size && ok)
        ok = read_tensor(r, &at);
    if (ok && record_get(r, "number", "end"))
        return true;
    return ef_error(r->ctx, NULL, E_FILE, path, "it is no whole record of a step");
}

void
verify_close_record(record *r)
{
    if (r->file)
        munmap(r->file, r->size);
    r->file = NULL;
}

record_tensor *
record_get(const record *r, const char *kind, const char *name)
{
    return ef_map_get(&r->of, ef_internf(r->ctx, "%s %s", kind, name));
}

void
record_read(const record_tensor *t, double *to)
{
    for (int64_t i = 0; i < t->n; i++)
        to[i] = element(t->word, t->raw + i * words[t->word].size);
}

double
record_number(const record *r, const char *name)
{
    const record_tensor *t = record_get(r, "number", name);
    return t && t->n ? element(t->word, t->raw) : 0;
}

/* ---- the state before micro() ---- */

static ir_tensor *
put(ir_env *env, const ir_value *v, const ir_type *type)
{
    ir_tensor *t = EF_NEW(env->arena, ir_tensor);
    t->type = type;
    t->data = EF_NEWN(env->arena, double, ir_type_count(type) + 1);
    ef_map_set(env->arena, &env->of, v, t);
    return t;
}

static bool
fill_args(ir_module *m, const record *r, ir_env *env)
{
    for (int i = 0; i < m->step->args.n; i++) {
        const ir_value *v = m->step->args.at[i];
        const record_tensor *from = record_get(r, "input", v->name);
        if (!from || from->rank != v->type->rank)
            return ef_error(r->ctx, NULL, E_FILE, "record",
                            ef_printf(r->arena, "it lacks input %s", v->name));
        ir_type type = *v->type;
        for (int d = 0; d < type.rank; d++)
            type.dim[d] = from->dim[d];
        ir_tensor *t = put(env, v, ir_type_intern(r->ctx, &type));
        record_read(from, t->data);
    }
    return true;
}

/* What the record has of param p under the name of its owner; the rest is left. */
static bool
take(const record *r, const char *kind, const ir_param *p, ir_tensor *t)
{
    const record_tensor *from = record_get(r, kind, p->value->name);
    if (!from || from->n > ir_type_count(t->type))
        return false;
    record_read(from, t->data);
    return true;
}

static bool
fill_param(ir_module *m, const record *r, ir_env *env, const ir_param *p)
{
    ir_tensor *t = put(env, p->value, p->value->type);
    int64_t n = ir_type_count(t->type);
    const ir_param *from = p->cls == IR_IMAGE ? p->of : p;
    if (p->cls == IR_GRAD || p->cls == IR_STATE)
        return true;
    for (int i = 0; i < 4 && p->cls == IR_SCALER; i++)
        t->data[i] = record_number(r, ef_printf(r->arena, "scaler.%d", i));
    if (p->cls == IR_SCALER)
        return true;
    if (!take(r, "param", from, t) && !ir_read_f64(m, from, env->seed, 0, n, t->data))
        return false;
    for (int64_t i = 0; i < n && ir_dtypes[t->type->dtype].is_float; i++)
        t->data[i] = ir_round(t->type->dtype, t->data[i]);
    return true;
}

/* The optimizer's state, by the ops that read it. */
static void
fill_state(ir_module *m, const record *r, ir_env *env)
{
    IR_FOREACH_BLOCK (b, m->step)
        for (const ir_op *op = b->first; op; op = op->next)
            if (op->code == IR_OP_optim) {
                take(r, "m", op->arg[0]->param, ir_env_get(env, op->arg[2]));
                take(r, "v", op->arg[0]->param, ir_env_get(env, op->arg[3]));
            }
}

bool
verify_fill(ir_module *m, const record *r, ir_env *env)
{
    bool ok = fill_args(m, r, env);
    for (int i = 0; i < m->params.n && ok; i++)
        ok = fill_param(m, r, env, m->params.at[i]);
    if (ok)
        fill_state(m, r, env);
    env->hyper = (ir_hyper){.lr = record_number(r, "lr"),
                            .weight_decay = record_number(r, "weight_decay"),
                            .beta1 = record_number(r, "beta1"),
                            .beta2 = record_number(r, "beta2"),
                            .eps = record_number(r, "eps"),
                            .max_norm = record_number(r, "max_norm"),
                            .momentum = record_number(r, "momentum"),
                            .step = (int64_t)record_number(r, "step"),
                            .sgd = record_number(r, "sgd") != 0,
                            .nesterov = record_number(r, "nesterov") != 0,
                            .decay_all = record_number(r, "decay_all") != 0};
    return ok;
}
