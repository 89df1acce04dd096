/* base_hash.c -- the hash by which an adapter knows its base, where the trainer can't make it.
 *
 * It is of the values that the model file has. A trainer in bf16 or fp16 holds only rounded
 * ones, so base.safetensors hands it the hash of the others: adapters go from trainers in one
 * precision to those in another.
 */
#include "../runtime/host/peft.h"
#include "cg_int.h"

#include <stdlib.h>
#include <string.h>

static int
by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names of the adapted modules, sorted; how many. */
static int
adapted(const ir_module *m, ef_arena *a, const char ***list)
{
    int n = 0;
    *list = EF_NEWN(a, const char *, m->params.n + 1);
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        bool known = p->role != IR_LORA_A || p->of;
        for (int k = 0; k < n && !known; k++)
            known = !strcmp((*list)[k], p->module);
        if (!known)
            (*list)[n++] = p->module;
    }
    qsort(*list, (size_t)n, sizeof **list, by_name);
    return n;
}

/* As base_weight() of the trainer finds it; NULL: none by that name. */
static const ir_param *
weight_of(const ir_module *m, const char *module)
{
    size_t n = strlen(module);
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        const char *name = p->hf ? p->hf : p->value->name, *dot = strrchr(name, '.');
        size_t k = dot ? (size_t)(dot - name) : strlen(name);
        if (p->role == IR_BASE && !p->of && p->cls <= IR_FROZEN &&
            p->value->type->rank == 2 && k == n && !strncmp(name, module, n))
            return p;
    }
    return NULL;
}

static bool
add(ir_module *m, rt_base_hash *h, const char *module, const ir_param *w)
{
    const ir_type *t = w->value->type;
    ef_arena *a = ef_arena_new();
    float *x = EF_NEWN(a, float, ir_type_count(t));
    bool ok = ir_read_f32(m, w, 0, 0, ir_type_count(t), x);
    if (ok)
        rt_base_hash_add(h, module, x, t->dim[0], t->dim[1], w->transposed);
    ef_arena_free(a);
    return ok;
}

bool
cg_base_hash(ir_module *m, ef_arena *a, char hex[17])
{
    const char **module;
    int n = adapted(m, a, &module);
    const ir_param **w = EF_NEWN(a, const ir_param *, n + 1);
    bool rounded = false, ok = true;
    *hex = 0;
    for (int i = 0; i < n; i++) {
        w[i] = weight_of(m, module[i]);
        if (!w[i] || w[i]->cls != IR_FROZEN)
            return true; /* the trainer does not record it either */
        rounded |= w[i]->value->type->dtype != IR_F32;
    }
    if (!rounded)
        return true;
    rt_base_hash h;
    rt_base_hash_begin(&h);
    for (int i = 0; i < n && ok; i++)
        ok = add(m, &h, module[i], w[i]);
    rt_base_hash_end(&h, hex);
    return ok;
}
