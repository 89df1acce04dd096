/* node_cpu.c -- many tests of operators as one module, compiled and run.
 *
 * The results of all of them are results of step; the program has the test harness of
 * tests/unit in place of the trainer's loop, which gives back their bytes of the arena.
 */
#include "node_cpu.h"
#include "runtime/include/efficc_rt.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codegen/cg.h"
#include "tests/unit/said.h"

typedef struct program {
    said s;
    ef_config cfg;
    ir_module *m;
    ef_arena *arena; /* of the caller */
    node_job **job;
    node_run *run;
    int n;
    EF_VEC(ir_value *) results;
    char dir[64];
} program;

/* ---- the module ---- */

/* A result that is computed, whatever v is: a param and a view have no place of their own. */
static ir_value *
stored(ir_module *m, ir_value *v)
{
    ir_builder b = ir_end(m->step->first, NULL);
    if (v->type->dtype == IR_BOOL)
        return ir_ew2(&b, IR_OP_or, "stored", v, v);
    int64_t none = 0;
    const ir_type *t = ir_type_get(m->ctx, v->type->dtype, 0, &none);
    return ir_ew2(&b, IR_OP_add, "stored", v, ir_const(&b, "zero", t, 0));
}

static bool
make_module(program *p)
{
    static const char *const done[] = {"canon", "recognise", "task", "eval",
                                       "grad",  "cse",       "optim"};
    ir_module *m = p->m = node_module(p->s.ctx);
    int64_t one = 1;
    ir_arg_new(m->step, "i", ir_type_get(m->ctx, IR_I64, 1, &one));
    ir_meta_set(m, "input.i", "ids");
    for (int i = 0; i < p->n; i++) {
        if (!node_import(m, p->job[i]->t, p->job[i]->known, IR_FROZEN, &p->run[i]))
            return false;
        for (int k = 0; k < p->run[i].n; k++)
            if (p->run[i].out[k].value)
                ef_push(m->arena, p->results, stored(m, p->run[i].out[k].value));
    }
    node_finish(m, p->results.n, p->results.at);
    for (size_t i = 0; i < EF_COUNT(done); i++)
        ef_push(m->arena, m->passes, ef_intern(m->ctx, done[i]));
    return true;
}

static bool
build(program *p)
{
    bool stopped = false;
    const pass_target *target = cg_target(p->s.ctx);
    if (!make_module(p) || ir_verify(p->m) || !pass_run(p->m, target, &stopped) ||
        !mkdtemp(p->dir) || !cg_emit(p->m, target, p->dir))
        return false;
    FILE *f = fopen(ef_printf(p->arena, "%s/src/step.c", p->dir), "a");
    if (!f)
        return false;
    fprintf(f, "#include \"%s/tests/unit/cg_harness.c\"\n", SRC_DIR);
    fclose(f);
    return cg_build(p->s.ctx, p->dir);
}

/* ---- data ---- */

static void
put(FILE *f, ir_dtype t, double x)
{
    if (t == IR_F32)
        fwrite(&(float){(float)x}, 4, 1, f);
    else if (t == IR_I64)
        fwrite(&(int64_t){x >= 0x1p63 ? INT64_MAX : (int64_t)x}, 8, 1, f);
    else
        fwrite(&(uint8_t){x != 0}, 1, 1, f);
}

static bool
get(FILE *f, ir_dtype t, double *x)
{
    float real;
    int64_t whole;
    uint8_t bit;
    bool ok = t == IR_F32   ? fread(&real, 4, 1, f) == 1
              : t == IR_I64 ? fread(&whole, 8, 1, f) == 1
                            : fread(&bit, 1, 1, f) == 1;
    if (ok)
        *x = t == IR_F32 ? (double)real : t == IR_I64 ? (double)whole : (double)bit;
    return ok;
}

static int64_t
offset_of(const ir_value *v)
{
    return ir_attr_get(v->def, IR_ATTR_at)->u.l[0];
}

/* No sizes that vary, params, the argument, how often micro runs, and which bytes are wanted. */
static bool
write_inputs(program *p, const char *path)
{
    FILE *f = fopen(path, "wb");
    for (int i = 0; f && i < RT_NSYMS; i++)
        put(f, IR_I64, 0);
    for (int i = 0; f && i < p->m->params.n; i++) {
        const ir_param *q = p->m->params.at[i];
        for (int64_t k = 0; k < ir_type_count(q->value->type); k++)
            put(f, q->value->type->dtype, q->values[k]);
    }
    if (!f)
        return false;
    put(f, IR_I64, 0);
    put(f, IR_I64, 1);
    const ir_op *ret = p->m->step->first->last;
    put(f, IR_I64, ret->narg);
    for (int i = 0; i < ret->narg; i++) {
        put(f, IR_I64, (double)offset_of(ret->arg[i]));
        put(f, IR_I64, (double)ir_type_bytes(ret->arg[i]->type));
    }
    put(f, IR_I64, 0);
    return !fclose(f);
}

static void
read_outputs(program *p, FILE *f)
{
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->run[i].n; k++) {
            const node_result *r = &p->run[i].out[k];
            int64_t n = ir_type_count(r->type);
            double *x = EF_NEWN(p->m->arena, double, n + 1);
            bool ok = true;
            for (int64_t e = 0; e < n && ok; e++)
                ok =
                    r->value ? get(f, r->type->dtype, &x[e]) : (x[e] = r->got[e], true);
            const char *wrong =
                ok ? node_compare(p->arena, &p->run[i], r, x) : "no result";
            p->job[i]->wrong = p->job[i]->wrong ? p->job[i]->wrong : wrong;
        }
}

/* ---- running ---- */

static const char *
reason(program *p)
{
    const char *text = said_text(&p->s);
    return ef_strndup(p->arena, text, strcspn(text, "\n"));
}

static bool
run(program *p)
{
    char *in = ef_printf(p->arena, "%s/in.bin", p->dir);
    char *out = ef_printf(p->arena, "%s/out.bin", p->dir);
    FILE *f = NULL;
    if (write_inputs(p, in) &&
        !system(ef_printf(p->arena, "%s/trainer %s %s", p->dir, in, out)))
        f = fopen(out, "rb");
    if (f) {
        read_outputs(p, f);
        fclose(f);
    }
    return f != NULL;
}

/* false: the program could not be made; *why says why. */
static bool
attempt(ef_arena *a, node_job **job, int n, const char **why)
{
    program p = {.cfg = ef_config_default, .arena = a, .job = job, .n = n};
    said_open(&p.s);
    p.s.ctx->cfg = &p.cfg;
    p.cfg.threads = 2;
    p.cfg.argv_run = "test";
    p.cfg.cflags = "-O1";
    p.run = EF_NEWN(a, node_run, n);
    strcpy(p.dir, "/tmp/efficc-nodes-XXXXXX");
    bool ok = build(&p) && run(&p);
    *why = ok ? NULL : reason(&p);
    if (access(p.dir, F_OK) == 0 && system(ef_printf(a, "rm -rf %s", p.dir)))
        ok = false;
    ir_module_free(p.m);
    said_close(&p.s);
    return ok;
}

/* Halves until the test is found that is at fault; where it is none of them, not for long. */
void
node_cpu_run(ef_arena *a, node_job **job, int n)
{
    enum { FAILURES_MAX = 40 };
    static int failures;
    const char *why;
    if (!n || attempt(a, job, n, &why))
        return;
    if (n == 1 || ++failures > FAILURES_MAX) {
        for (int i = 0; i < n; i++)
            job[i]->wrong = *why ? why : "no program";
        return;
    }
    node_cpu_run(a, job, n / 2);
    node_cpu_run(a, job + n / 2, n - n / 2);
}
