/* nodes_test.c -- ONNX's own tests of operators, through the interpreter and through code for
 * the CPU.
 *
 * Every test runs three times: by the interpreter as the importer built it, by the interpreter
 * after passes canon and recognise, and as emitted code, where many tests are one program.
 * Gradients of results that are floats are compared with central differences. What does not
 * pass has to stand in exceptions.txt, with a reason, and may be 5 % at most; the table of
 * docs/onnx-support.md is made from the counts (EFFICC_BLESS=1 writes it).
 */
#include "node.h"
#include "node_cpu.h"
#include "test.h"
#include "tests/unit/said.h"

#include "passes/pass.h"

#include <math.h>

#define FOLDER SRC_DIR "/tests/nodes/data"
#define PAGE   SRC_DIR "/docs/onnx-support.md"

typedef struct count { /* of one kind of test */
    const char *kind;
    int tests, interpreted, compiled, gradients, wrong_gradients;
} count;

typedef struct verdict {
    const node_test *t;
    node_known known; /* NODE_WAYS: it can't be imported */
    const char *import, *interp, *passes, *gradient, *cpu; /* what is wrong, or NULL */
    bool differentiated;
} verdict;

static ef_arena *arena;
static node_tests tests;
static verdict *verdicts;

/* ---- one test ---- */

static const char *
first_line(said *s)
{
    const char *text = said_text(s);
    return ef_strndup(arena, text, strcspn(text, "\n"));
}

/* Runs step and compares; NULL: right. */
static const char *
interpret(ir_module *m, const node_run *run)
{
    ir_env env = {.arena = ef_arena_new()};
    const char *wrong = NULL;
    const ir_op *ret = m->step->first->last;
    if (!ir_interp(m->step, 1u << IR_FWD, &env))
        wrong = "the interpreter failed";
    for (int i = 0, k = 0; i < run->n && !wrong; i++) {
        const node_result *r = &run->out[i];
        const ir_tensor *t = r->value ? ir_env_get(&env, ret->arg[k++]) : NULL;
        wrong = r->value && !t ? "no result"
                               : node_compare(arena, run, r, t ? t->data : r->got);
    }
    ef_arena_free(env.arena);
    return wrong;
}

static void
finish(ir_module *m, const node_run *run)
{
    ir_value *v[NODE_OUTPUTS];
    int n = 0;
    for (int i = 0; i < run->n; i++)
        if (run->out[i].value)
            v[n++] = run->out[i].value;
    node_finish(m, n, v);
}

static const char *
through_passes(ir_module *m, const node_run *run)
{
    pass_ctx pc = {.m = m, .scratch = ef_arena_new()};
    bool ok = pass_canon(&pc) && !ir_verify(m) && pass_recognise(&pc) && !ir_verify(m);
    ef_arena_free(pc.scratch);
    return ok ? interpret(m, run) : "canon or recognise failed";
}

/* Imports with as few known inputs as the operator allows. */
static bool
import(ef_ctx *ctx, const node_test *t, node_known known, node_run *run, ir_module **m)
{
    *m = node_module(ctx);
    if (node_import(*m, t, known, IR_FROZEN, run))
        return true;
    ir_module_free(*m);
    return false;
}

static void
check_values(verdict *v)
{
    for (v->known = NODE_NONE; v->known < NODE_WAYS; v->known++) {
        said s;
        said_open(&s);
        node_run run;
        ir_module *m;
        bool ok = import(s.ctx, v->t, v->known, &run, &m);
        v->import = ok ? NULL : first_line(&s);
        if (ok) {
            finish(m, &run);
            v->interp = ir_verify(m) ? "not valid" : interpret(m, &run);
            v->passes = v->interp ? NULL : through_passes(m, &run);
            ir_module_free(m);
        }
        said_close(&s);
        if (ok)
            return;
    }
}

/* ---- gradients ---- */

static double
noise(int64_t i)
{
    uint64_t h = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    return 0.5 + (double)(h >> 12) * 0x1p-52;
}

/* ret loss = sum of y times numbers that all differ. */
static void
add_loss(ir_module *m, ir_value *y)
{
    int64_t axes[] = {0, 1, 2, 3, 4, 5, 6, 7}, n = ir_type_count(y->type);
    ir_builder b = ir_end(m->step->first, NULL);
    ir_param *probe = ir_param_new(m, "probe", y->type, IR_FROZEN, 0);
    double *x = EF_NEWN(m->arena, double, n + 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = noise(i);
    probe->init = IR_INIT_VALUES;
    probe->values = x;
    ir_value *p = ir_ew2(&b, IR_OP_mul, "probed", y, probe->value);
    ir_attr all = ir_attr_l(IR_ATTR_axes, y->type->rank, axes);
    if (y->type->rank)
        p = ir_emit(&b, IR_OP_reduce_sum, "loss", 1, &p, 1, &all, NULL);
    node_finish(m, 1, &p);
}

static double
loss_of(const ir_module *m, ir_env *env)
{
    ir_env_zero_grads(m, env);
    if (!ir_interp(m->step, 1u << IR_FWD | 1u << IR_BWD, env))
        return NAN;
    return ir_env_get(env, m->step->last->last->arg[0])->data[0];
}

/* A derivative from both sides; at a kink they differ, and it has to lie between. */
static const char *
check_element(const ir_module *m, ir_env *env, double *x, double got)
{
    const double h = 1e-5, at = *x, here = loss_of(m, env);
    *x = at + h;
    double up = (loss_of(m, env) - here) / h;
    *x = at - h;
    double down = (here - loss_of(m, env)) / h;
    *x = at;
    double low = up < down ? up : down, high = up < down ? down : up;
    double slack = 1e-4 * (1 + fabs(low) + fabs(high));
    if (isfinite(low) && isfinite(high) && !(got >= low - slack && got <= high + slack))
        return ef_printf(arena, "gradient is %.9g, not %.9g to %.9g", got, low, high);
    return NULL;
}

/* At most `MOST` elements of each input, spread over it. */
static const char *
compare_gradients(const ir_module *m, ir_env *env)
{
    enum { MOST = 6 };
    const char *wrong = NULL;
    for (int i = 0; i < m->params.n; i++) {
        const ir_param *g = m->params.at[i];
        if (g->cls != IR_GRAD)
            continue;
        loss_of(m, env);
        ir_tensor *x = ir_env_get(env, g->of->value);
        int64_t n = ir_type_count(g->value->type), step = n / MOST + 1;
        double *got = ef_dup(env->arena, ir_env_get(env, g->value)->data,
                             sizeof *got * (size_t)(n + 1));
        for (int64_t k = 0; k < n && !wrong; k += step)
            wrong = check_element(m, env, &x->data[k], got[k]);
    }
    return wrong;
}

/* Errors of the pass mean that the operator has no gradient. */
static void
check_gradient(verdict *v)
{
    said s;
    said_open(&s);
    node_run run;
    ir_module *m = node_module(s.ctx);
    if (node_import(m, v->t, v->known, IR_TRAIN, &run) && run.fractions &&
        run.out[0].value && ir_type_count(run.out[0].type)) {
        add_loss(m, run.out[0].value);
        pass_ctx pc = {.m = m, .scratch = ef_arena_new()};
        v->differentiated = pass_grad(&pc);
        ir_env env = {.arena = ef_arena_new(), .exact = true};
        if (v->differentiated)
            v->gradient = ir_verify(m) ? "not valid" : compare_gradients(m, &env);
        ef_arena_free(env.arena);
        ef_arena_free(pc.scratch);
    }
    ir_module_free(m);
    said_close(&s);
}

/* ---- all tests ---- */

static void
compile_all(void)
{
    enum { TOGETHER = 160 };
    node_job *job = EF_NEWN(arena, node_job, tests.at.n + 1);
    node_job **group = EF_NEWN(arena, node_job *, tests.at.n + 1);
    int n = 0;
    for (int i = 0; i < tests.at.n; i++) {
        job[i] = (node_job){.t = &tests.at.at[i], .known = verdicts[i].known};
        if (!verdicts[i].import)
            group[n++] = &job[i];
    }
    for (int i = 0; i < n; i += TOGETHER)
        node_cpu_run(arena, group + i, n - i < TOGETHER ? n - i : TOGETHER);
    for (int i = 0; i < tests.at.n; i++)
        verdicts[i].cpu = job[i].wrong;
}

static const char *
wrong_of(const verdict *v)
{
    const char *all[] = {v->import, v->interp, v->passes, v->cpu, v->gradient};
    for (size_t i = 0; i < EF_COUNT(all); i++)
        if (all[i])
            return all[i];
    return NULL;
}

/* ---- exceptions ---- */

static ef_map exceptions; /* name -> reason */

/* Lines "test_name: reason"; lines with # are comments. */
static void
read_exceptions(void)
{
    size_t n;
    char *text =
        ef_read_file(arena, SRC_DIR "/tests/nodes/exceptions.txt", 1 << 20, &n);
    NEED(text != NULL);
    for (char *line; (line = strsep(&text, "\n"));) {
        char *colon = strstr(line, ": ");
        if (*line == '#' || !*line)
            continue;
        NEED(colon != NULL);
        *colon = '\0';
        ef_map_set(arena, &exceptions, ef_strdup(arena, line), colon + 2);
    }
}

static const char *
exception_of(const char *name)
{
    for (int i = 0; i < exceptions.n; i++)
        if (!strcmp(exceptions.key[i], name))
            return exceptions.val[i];
    return NULL;
}

TEST(every_test_passes_or_has_a_reason)
{
    arena = ef_arena_new();
    tests = node_read(arena, FOLDER);
    NEED(tests.at.n > 1000);
    verdicts = EF_NEWN(arena, verdict, tests.at.n);
    read_exceptions();
    for (int i = 0; i < tests.at.n; i++) {
        verdicts[i].t = &tests.at.at[i];
        check_values(&verdicts[i]);
        if (!verdicts[i].import && !verdicts[i].interp)
            check_gradient(&verdicts[i]);
    }
    compile_all();
    int wrong = 0;
    for (int i = 0; i < tests.at.n; i++) {
        const char *why = wrong_of(&verdicts[i]), *name = tests.at.at[i].name;
        const char *known = exception_of(name);
        if (why && !known)
            printf("  %s: %s\n", name, why);
        if (!why && known)
            printf("  %s passes, but stands in exceptions.txt\n", name);
        CHECK(!why == !known);
        wrong += why != NULL;
    }
    printf("  %d of %d tests pass\n", tests.at.n - wrong, tests.at.n);
    CHECK(wrong * 20 <= tests.at.n);
}

/* ---- the table ---- */

static ef_buf
table(void)
{
    ef_buf b = {.arena = arena};
    ef_puts(&b, "| tests of | number | interpreter | CPU | gradients |\n"
                "| --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < tests.at.n;) {
        count c = {.kind = tests.at.at[i].kind};
        for (; i < tests.at.n && !strcmp(tests.at.at[i].kind, c.kind); i++) {
            const verdict *v = &verdicts[i];
            c.tests++;
            c.interpreted += !v->import && !v->interp && !v->passes;
            c.compiled += !v->import && !v->cpu;
            c.gradients += v->differentiated;
            c.wrong_gradients += v->gradient != NULL;
        }
        ef_putf(&b, "| %s | %d | %d | %d | ", c.kind, c.tests, c.interpreted,
                c.compiled);
        if (c.wrong_gradients)
            ef_putf(&b, "%d of %d |\n", c.gradients - c.wrong_gradients, c.gradients);
        else
            ef_putf(&b, c.gradients ? "%d |\n" : "|\n", c.gradients);
    }
    return b;
}

TEST(table_of_the_documentation)
{
    static const char heading[] = "\n## ONNX's tests\n";
    ef_buf b = table();
    size_t n;
    char *page = ef_read_file(arena, PAGE, 1 << 20, &n);
    char *at = page ? strstr(page, heading) : NULL;
    NEED(at != NULL);
    at = strstr(at, "\n| tests of ");
    NEED(at != NULL);
    const char *end = strstr(at + 1, "|\n\n");
    if (getenv("EFFICC_BLESS")) {
        FILE *f = fopen(PAGE, "w");
        NEED(f != NULL);
        fprintf(f, "%.*s%s%s", (int)(at + 1 - page), page, b.s, end ? end + 2 : "");
        fclose(f);
        return;
    }
    CHECK(!strncmp(at + 1, b.s, b.n));
}
