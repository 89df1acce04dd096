/* ops_test.c -- every operator form against onnxruntime.
 *
 * The rows of tests/golden/import/ops.rows become models, which are imported and evaluated
 * by the interpreter; ops.want has what onnxruntime computes. Rows with known operands test
 * the folding, rows over x, p, ids and xb the ops that are built.
 */
#include "model.h"
#include "test.h"

#define FOLDER SRC_DIR "/tests/golden/import/"

static const double ids[] = {1, 15, 7, 3, 0, 9}, mask[] = {1, 1, 0, 1, 0, 1};

typedef struct row {
    const char *name, *opsets, *text;
} row;

/* Cuts "A ; B ; C" into its parts. */
static int
cut(char *line, char **part, int max)
{
    int n = 0;
    for (char *s = line; s && n < max; n++) {
        char *next = n + 1 < max ? strstr(s, " ; ") : NULL;
        if (next)
            *next = '\0';
        part[n] = s;
        s = next ? next + 3 : NULL;
    }
    return n;
}

static char *
next_line(char **text)
{
    char *line = *text, *end = line ? strchr(line, '\n') : NULL;
    if (!end)
        return NULL;
    *end = '\0';
    *text = end + 1;
    return line;
}

static bool
is_row(const char *line)
{
    return *line && *line != '#';
}

static ir_tensor *
evaluate(ir_module *m, ir_env *env)
{
    for (int i = 0; i < m->step->args.n; i++) {
        ir_value *a = m->step->args.at[i];
        memcpy(ir_env_new(env, a)->data, strcmp(a->name, "ids") ? mask : ids,
               sizeof ids);
    }
    bool ok = ir_interp(m->step, 1u << IR_FWD, env);
    return ok ? ir_env_get(env, m->step->last->last->arg[0]) : NULL;
}

static bool
same_dims(const ir_type *t, const char *dims)
{
    int n = 0;
    for (char *s = (char *)dims; *s; n++) {
        if (n == t->rank || strtoll(s, &s, 10) != t->dim[n])
            return false;
        s += *s == ',';
    }
    return n == t->rank;
}

static bool
same_values(const ir_tensor *t, const char *values)
{
    char *s = (char *)values;
    for (int64_t i = 0; i < ir_type_count(t->type); i++) {
        double want = strtod(s, &s), got = t->data[i];
        double allowed = 2e-6 * (want < 0 ? 1 - want : 1 + want);
        if (!(got - want <= allowed && want - got <= allowed))
            return false;
    }
    return true;
}

/* Statements with the result's name changed into a cast to `out`. */
static const char *
with_out(ef_arena *a, const char *text)
{
    const char *result = text, *depth = text;
    int inside = 0;
    for (; *depth; depth++) {
        inside += (*depth == '{') - (*depth == '}');
        if (*depth == '|' && !inside)
            result = depth + 1;
    }
    result += strspn(result, " ");
    size_t n = strcspn(result, ", =");
    return ef_printf(a, MODEL_BASE "%s | out = Cast(%.*s) to=1", text, (int)n, result);
}

static void
check_row(const row *r, int opset, const char *dims, const char *values)
{
    ef_ctx *ctx = ef_ctx_new();
    ef_config cfg = ef_config_default;
    cfg.batch = 2;
    cfg.seq = 3;
    ctx->cfg = &cfg;
    ctx->report = NULL;
    model m = model_new(opset, with_out(ctx->arena, r->text));
    model_input(&m, "ids", 7, "b,s");
    model_input(&m, "mask", 7, "b,s");
    model_output(&m, "out");
    model_output(&m, "x");
    fe_model *f = NULL;
    ir_module *module = model_import(ctx, &m, &f);
    ir_env env = {.arena = ctx->arena};
    ir_tensor *t = module ? evaluate(module, &env) : NULL;
    bool ok = t && same_dims(t->type, dims) && same_values(t, values);
    if (!ok)
        printf("  row '%s' at opset %d is wrong\n", r->name, opset);
    CHECK(ok);
    ir_module_free(module);
    fe_unload(f);
    model_free(&m);
    ef_ctx_free(ctx);
}

/* ops.want has a line for each opset of a row, in the same order. */
TEST(rows)
{
    ef_arena *a = ef_arena_new();
    size_t n;
    char *rows = ef_read_file(a, FOLDER "ops.rows", 1 << 20, &n), *line;
    char *want = ef_read_file(a, FOLDER "ops.want", 1 << 20, &n);
    int checked = 0;
    NEED(rows && want);
    while ((line = next_line(&rows))) {
        char *part[3], *last[4] = {NULL};
        if (!is_row(line))
            continue;
        NEED(cut(line, part, 3) == 3);
        row r = {part[0], part[1], part[2]};
        for (char *s = part[1]; *s; s += strspn(s, " ")) {
            int opset = (int)strtol(s, &s, 10);
            char *now[4], *line_of_want = next_line(&want);
            NEED(line_of_want != NULL);
            int parts = cut(line_of_want, now, 4);
            NEED(parts >= 3 && !strcmp(now[0], r.name) && atoi(now[1]) == opset);
            if (strcmp(now[2], "="))
                memcpy(last, now, sizeof last);
            check_row(&r, opset, last[2], last[3] ? last[3] : "");
            checked++;
        }
    }
    CHECK(checked > 150);
    CHECK(*want == '\0');
    ef_arena_free(a);
}

/* The table and the rows are about the same operators. */
TEST(every_operator_has_a_row)
{
    static const char *const op[] = {
#define ONNX(name, ...) #name,
#include "frontend/onnx_ops.def"
#undef ONNX
    };
    ef_arena *a = ef_arena_new();
    size_t n;
    char *rows = ef_read_file(a, FOLDER "ops.rows", 1 << 20, &n);
    NEED(rows != NULL);
    for (size_t i = 0; i < EF_COUNT(op); i++) {
        bool found = strstr(rows, ef_printf(a, "%s(", op[i])) != NULL;
        if (!found)
            printf("  no row has %s\n", op[i]);
        CHECK(found);
    }
    ef_arena_free(a);
}
