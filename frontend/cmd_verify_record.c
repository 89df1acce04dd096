/* cmd_verify_record.c -- reads what a trainer recorded of a step; the format stands in
 * runtime/host/record.c. All elements become doubles, which hold every type exactly.
 */
#include "cmd_verify.h"

#include <efficc_rt.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

/* One tensor. 1: there was one; 0: the end; -1: it is damaged. */
static int
read_tensor(record *r, FILE *f)
{
    char kind[32], name[256], dtype[16];
    long long bytes, dim;
    record_tensor *t = EF_NEW(r->arena, record_tensor);
    int got = fscanf(f, "%31s %255s %15s %*d %*d %*d %d", kind, name, dtype, &t->rank);
    if (got == EOF)
        return 0;
    int word = got == 4 ? word_named(dtype) : NO_WORD;
    if (word == NO_WORD || t->rank < 0 || t->rank > IR_MAX_RANK)
        return -1;
    t->n = 1;
    for (int i = 0; i < t->rank; i++) {
        if (fscanf(f, "%lld", &dim) != 1)
            return -1;
        t->dim[i] = dim;
        t->n *= dim;
    }
    size_t size = (size_t)words[word].size;
    if (fscanf(f, "%lld", &bytes) != 1 || fgetc(f) != '\n' ||
        (int64_t)size * t->n != bytes)
        return -1;
    ef_arena *scratch = ef_arena_new();
    char *raw = ef_alloc(scratch, (size_t)bytes + 1);
    bool whole = fread(raw, 1, (size_t)bytes, f) == (size_t)bytes;
    t->data = EF_NEWN(r->arena, double, t->n + 1);
    for (int64_t i = 0; i < t->n && whole; i++)
        t->data[i] = element(word, raw + (size_t)i * size);
    ef_arena_free(scratch);
    add(r, kind, name, t);
    return whole ? 1 : -1;
}

bool
verify_read_record(record *r, const char *path)
{
    char head[64];
    FILE *f = fopen(path, "rb");
    if (!f)
        return ef_error(r->ctx, NULL, E_FILE, path, strerror(errno));
    bool ok = fgets(head, sizeof head, f) && !strncmp(head, "efficc record 1 ", 16);
    int got = ok ? 1 : -1;
    while (got > 0)
        got = read_tensor(r, f);
    fclose(f);
    if (!got && record_get(r, "number", "end"))
        return true;
    return ef_error(r->ctx, NULL, E_FILE, path, "it is no whole record of a step");
}

record_tensor *
record_get(const record *r, const char *kind, const char *name)
{
    return ef_map_get(&r->of, ef_internf(r->ctx, "%s %s", kind, name));
}

double
record_number(const record *r, const char *name)
{
    const record_tensor *t = record_get(r, "number", name);
    return t ? t->data[0] : 0;
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
        if (!from)
            return ef_error(r->ctx, NULL, E_FILE, "record",
                            ef_printf(r->arena, "it lacks input %s", v->name));
        ir_type type = *v->type;
        for (int d = 0; d < type.rank; d++)
            type.dim[d] = from->dim[d];
        ir_tensor *t = put(env, v, ir_type_intern(r->ctx, &type));
        memcpy(t->data, from->data, (size_t)from->n * sizeof *t->data);
    }
    return true;
}

/* What the record has of param p under the name of its owner; the rest is left. */
static bool
take(const record *r, const char *kind, const ir_param *p, ir_tensor *t)
{
    const record_tensor *from = record_get(r, kind, p->value->name);
    if (from)
        memcpy(t->data, from->data, (size_t)from->n * sizeof *t->data);
    return from != NULL;
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
