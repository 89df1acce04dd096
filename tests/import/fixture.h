/* fixture.h -- made-up models, imported, and what became of their initializers. */
#ifndef EFFICC_FIXTURE_H
#define EFFICC_FIXTURE_H

#include "model.h"
#include "test.h"
#include "tests/unit/said.h"

typedef struct found { /* what stands for an initializer */
    const ir_param *p;
    bool transposed; /* PyTorch's layout is the transpose of the initializer's */
} found;

static inline found
find(const ir_module *m, const char *initializer)
{
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *p = m->params.at[i];
        if (p->onnx && !strcmp(p->onnx, initializer))
            return (found){p, p->transposed};
        for (int k = 0; k < p->also.n; k++)
            if (!strcmp(p->also.at[k] + 1, initializer))
                return (found){p, p->transposed != (p->also.at[k][0] == 'T')};
    }
    return (found){NULL, false};
}

typedef struct fixture {
    said s;
    ef_config cfg;
    model m;
    fe_model *f;
    ir_module *module;
} fixture;

/* A model with inputs ids and mask of the dims, for batch 2 and sequence 3 until cfg is
 * changed; import it after it has its outputs. */
static inline void
model_of(fixture *t, int opset, const char *text, const char *dims)
{
    *t = (fixture){.cfg = ef_config_default};
    said_open(&t->s);
    t->cfg.batch = 2;
    t->cfg.seq = 3;
    t->s.ctx->cfg = &t->cfg;
    t->m = model_new(opset, ef_printf(t->s.ctx->arena, MODEL_BASE "%s", text));
    model_input(&t->m, "ids", 7, dims);
    model_input(&t->m, "mask", 7, dims);
}

/* NULL: refused. */
static inline ir_module *
import_it(fixture *t)
{
    return t->module = model_import(t->s.ctx, &t->m, &t->f);
}

/* It must not be refused. */
static inline void
must_import(fixture *t)
{
    if (!import_it(t))
        printf("  %s", said_text(&t->s));
    NEED(t->module != NULL);
}

static inline void
end(fixture *t)
{
    ir_module_free(t->module);
    fe_unload(t->f);
    model_free(&t->m);
    said_close(&t->s);
}

/* "hf" or "hf transposed" of the param called so; "-" if its name is not known. */
static inline const char *
hf(fixture *t, const char *initializer)
{
    found f = find(t->module, initializer);
    return !f.p      ? "no such param"
           : f.p->hf ? ef_printf(t->s.ctx->arena, "%s%s", f.p->hf,
                                 f.transposed ? " transposed" : "")
                     : "-";
}

static inline int
weights(fixture *t)
{
    int n = 0;
    for (int i = 0; i < t->module->params.n; i++)
        n += t->module->params.at[i]->cls == IR_TRAIN;
    return n;
}

static inline int
unit_of(fixture *t, const char *name)
{
    ir_param *p = ir_param_by_name(t->module, name);
    return p ? p->unit : -1;
}

#endif
