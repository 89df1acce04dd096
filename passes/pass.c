/* pass.c -- the pass manager: which passes run, in which order, and what is shown of them.
 *
 * passes.def is the pipeline. A module knows the names of the passes that have run on it,
 * also as text, so that
 *
 *     efficc model.onnx --stop-after=recognise > m.ir;  efficc m.ir
 *
 * goes on where it stopped. Which facts hold is worked out from those names, never stored.
 * Before each pass the module is printed; if the pass leaves it broken, or an invariant of
 * ours fails, that text becomes crash-<pass>.ir, whose first line says how to repeat it.
 */
#include "pass.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "pass_int.h"

const pass_row pass_table[] = {
#define PASS(name, needs, gives, breaks, when, summary) \
    {#name, pass_##name, needs, gives, breaks, when, summary},
#define ORDER(a, b, why)
#include "passes.def"
#undef PASS
#undef ORDER
};
const int pass_count = EF_COUNT(pass_table);

/* A wrong order of rows does not compile; the compiler's message is the reason. */
#define PASS(name, needs, gives, breaks, when, summary)
#define ORDER(a, b, why) _Static_assert((int)PASS_AT_##a < (int)PASS_AT_##b, why);
#include "passes.def"
#undef PASS
#undef ORDER

const char *const pass_fact_name[] = {"TYPED", "FUSED",  "LOSS",   "EVAL",
                                      "GRAD",  "UPDATE", "PLANNED"};

typedef struct column { /* the module after a pass, for --dump and --time */
    const char *name, *ir;
    double ms;
    size_t bytes; /* of the module's arena that the pass took */
    bool unchanged;
} column;

typedef struct manager {
    pass_ctx pc;
    const struct ef_config *cfg;
    const char *text; /* the module before the pass that runs */
    EF_VEC(column) columns;
} manager;

static const manager *running; /* for the hook of EF_ASSERT, which has no argument */

static const pass_row *
find(const char *name)
{
    for (int i = 0; i < pass_count; i++)
        if (!strcmp(pass_table[i].name, name))
            return &pass_table[i];
    return NULL;
}

bool
pass_exists(const char *name)
{
    return find(name) != NULL;
}

bool
pass_in_list(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && !memcmp(p, name, n))
            return true;
    return false;
}

bool
pass_input_is(const ir_module *m, const ir_value *arg, const char *role)
{
    static const struct {
        const char *name, *role;
    } usual[] = {{"input_ids", "ids"},
                 {"attention_mask", "mask"},
                 {"token_type_ids", "types"},
                 {"position_ids", "positions"}};
    const char *is = ir_meta_get(m, ef_internf(m->ctx, "input.%s", arg->name));
    for (size_t i = 0; i < EF_COUNT(usual) && !is; i++)
        if (!strcmp(usual[i].name, arg->name))
            is = usual[i].role;
    return is && !strcmp(is, role);
}

static bool
unknown(ef_ctx *ctx, const char *name)
{
    ef_error(ctx, NULL, E_PASS_UNKNOWN, name);
    ef_buf b = {.arena = ctx->arena};
    for (int i = 0; i < pass_count; i++)
        ef_putf(&b, "%s%s", i ? " " : "", pass_table[i].name);
    ef_note(ctx, "passes are %s", b.s);
    return false;
}

/* Text of an option of the configuration if it differs from the default. Those that say
 * where output goes are left out. */
static void
put_options(ef_buf *b, const ef_config *cfg)
{
#define SAME_FLAG(f)  (cfg->f == ef_config_default.f)
#define SAME_INT(f)   SAME_FLAG(f)
#define SAME_NUM(f)   SAME_FLAG(f)
#define SAME_SHARE(f) SAME_FLAG(f)
#define SAME_STR(f) \
    (!cfg->f || (ef_config_default.f && !strcmp(cfg->f, ef_config_default.f)))
#define SAME_LIST(f)       SAME_STR(f)
#define PUT_FLAG(f, name)  ef_putf(b, " --%s%s", cfg->f ? "" : "no-", name)
#define PUT_INT(f, name)   ef_putf(b, " --%s=%lld", name, (long long)cfg->f)
#define PUT_NUM(f, name)   ef_putf(b, " --%s=%s", name, ef_ftoa(cfg->f))
#define PUT_SHARE(f, name) PUT_NUM(f, name)
#define PUT_STR(f, name)   ef_putf(b, " --%s='%s'", name, cfg->f)
#define PUT_LIST(f, name)  PUT_STR(f, name)
#define OPT(field, name, kind, def, arg, group, help)              \
    if ((strcmp(group, "Output") && strcmp(group, "Debugging")) || \
        !strcmp(name, "no-recognise"))                             \
        if (!SAME_##kind(field))                                   \
            PUT_##kind(field, name);
#include "../ir/options.def"
#undef OPT
}

/* Writes crash-<pass>.ir: the module before the pass that runs now. */
static void
write_reproducer(void)
{
    const manager *g = running;
    if (!g || !g->text || !g->pc.m->ctx->pass)
        return;
    ef_ctx *ctx = g->pc.m->ctx;
    ef_buf options = {.arena = ctx->arena};
    put_options(&options, g->cfg);
    const char *path = ef_printf(ctx->arena, "crash-%s.ir", ctx->pass);
    FILE *f = fopen(path, "w");
    if (!f) {
        fprintf(ctx->diag, "  note: can not write %s: %s\n", path, strerror(errno));
        return;
    }
    fprintf(f, "; run: efficc --run-pass=%s%s\n%s", ctx->pass,
            options.s ? options.s : "", g->text);
    fclose(f);
    fprintf(
        ctx->diag,
        "  note: the IR before pass %s is in %s; its first line has the options that "
        "repeat the fault\n",
        ctx->pass, path);
}

static const char *
text_of(const ir_module *m)
{
    ef_buf b = {.arena = m->ctx->arena};
    ir_print(m, &b);
    return b.s;
}

/* Facts that hold, from the passes that have run. false: said why. */
static bool
recompute_facts(ir_module *m)
{
    m->facts = 0;
    for (int i = 0; i < m->passes.n; i++) {
        const pass_row *row = find(m->passes.at[i]);
        if (!row)
            return unknown(m->ctx, m->passes.at[i]);
        m->facts = (m->facts | row->gives) & ~row->breaks;
    }
    return true;
}

/* Verifies m after pass `name`, which is at fault if m is broken: reproducer and exit 70. */
static void
verify(const manager *g, const char *name)
{
    ef_ctx *ctx = g->pc.m->ctx;
    if (!ir_verify(g->pc.m))
        return;
    ef_error(ctx, NULL, E_PASS_BUG, name);
    if (!ctx->pass)
        ef_hint(ctx, "--verify=each finds the pass and leaves a reproducer");
    write_reproducer();
    exit(70);
}

static double
now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* What the options want to see after pass `name`, and its column. */
static void
show(manager *g, column c)
{
    const ef_config *cfg = g->cfg;
    if (cfg->print_after_all || pass_in_list(cfg->print_after, c.name))
        fprintf(stderr, "; after %s%s\n%s", c.name, c.unchanged ? " (unchanged)" : "",
                c.unchanged ? "" : c.ir);
    ef_push(g->pc.m->ctx->arena, g->columns, c);
}

/* Runs one pass, with everything that the options want to see of it. */
static bool
run(manager *g, const pass_row *row)
{
    ir_module *m = g->pc.m;
    ef_ctx *ctx = m->ctx;
    unsigned missing = row->needs & ~m->facts;
    for (unsigned bit = 0; missing; bit++, missing >>= 1)
        if (missing & 1)
            return ef_error(ctx, NULL, E_PASS_FACT, row->name, pass_fact_name[bit]);
    ctx->pass = row->name;
    size_t bytes = ef_arena_bytes(m->arena);
    double start = now_ms();
    bool ok = row->run(&g->pc);
    double ms = now_ms() - start;
    ef_arena_reset(g->pc.scratch);
    if (!ok) {
        ctx->pass = NULL;
        return false;
    }
    pass_note_options(m, (int)(row - pass_table));
    const char *before = g->text, *after = text_of(m); /* without the pass's own name */
    ef_push(m->arena, m->passes, row->name);
    m->facts = (m->facts | row->gives) & ~row->breaks;
    if (!strcmp(g->cfg->verify, "each"))
        verify(g, row->name);
    g->text = text_of(m);
    ctx->pass = NULL;
    show(g, (column){row->name, g->text, ms, ef_arena_bytes(m->arena) - bytes,
                     !strcmp(before, after)});
    return true;
}

/* DIR/NN-name.ir for every column, NN being the place in passes.def, and DIR/ir.html. */
static bool
dump(const manager *g)
{
    ef_ctx *ctx = g->pc.m->ctx;
    const char *dir = g->cfg->dump, *path = dir;
    int n = g->columns.n;
    const char **name = EF_NEWN(ctx->arena, const char *, n);
    const char **ir = EF_NEWN(ctx->arena, const char *, n);
    if (mkdir(dir, 0777) && errno != EEXIST)
        return ef_error(ctx, NULL, E_FILE, dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        const column *c = &g->columns.at[i];
        const pass_row *row = find(c->name);
        name[i] = c->name;
        ir[i] = c->ir;
        path = ef_printf(ctx->arena, "%s/%02d-%s.ir", dir,
                         row ? (int)(row - pass_table) + 1 : 0, c->name);
        FILE *f = fopen(path, "w");
        if (!f)
            return ef_error(ctx, NULL, E_FILE, path, strerror(errno));
        fputs(c->ir, f);
        if (fclose(f))
            return ef_error(ctx, NULL, E_FILE, path, strerror(errno));
    }
    path = ef_printf(ctx->arena, "%s/ir.html", dir);
    FILE *f = fopen(path, "w");
    if (!f)
        return ef_error(ctx, NULL, E_FILE, path, strerror(errno));
    const char *model = ir_meta_get(g->pc.m, "model");
    ir_html(f, model ? model : "efficc", n, name, ir);
    return !fclose(f) || ef_error(ctx, NULL, E_FILE, path, strerror(errno));
}

static void
print_times(const manager *g)
{
    fprintf(stderr, "%-12s %10s %12s\n", "pass", "ms", "bytes");
    for (int i = 0; i < g->columns.n; i++) {
        const column *c = &g->columns.at[i];
        if (pass_exists(c->name))
            fprintf(stderr, "%-12s %10.2f %12zu%s\n", c->name, c->ms, c->bytes,
                    c->unchanged ? " (unchanged)" : "");
    }
}

/* The passes of --run-pass, whatever ran before. */
static bool
run_listed(manager *g)
{
    ef_ctx *ctx = g->pc.m->ctx;
    char *list = ef_strdup(ctx->arena, g->cfg->run_pass ? g->cfg->run_pass : ""), *rest;
    for (char *p = strtok_r(list, ",", &rest); p; p = strtok_r(NULL, ",", &rest)) {
        const pass_row *row = find(p);
        if (!row)
            return unknown(ctx, p);
        if (!run(g, row))
            return false;
    }
    return true;
}

/* Scratch space depends on threads and the target's library, so a plan holds for the run
 * that made it: a text that has one is planned again. */
static bool
forget_plan(ir_module *m)
{
    int kept = 0;
    for (int i = 0; i < m->passes.n; i++)
        if (strcmp(m->passes.at[i], pass_table[PASS_AT_plan].name))
            m->passes.at[kept++] = m->passes.at[i];
    m->passes.n = kept;
    return recompute_facts(m);
}

static bool
skips(const manager *g, const pass_row *row)
{
    const ef_config *c = g->cfg;
    switch (row->when) {
    case LORA:
        return !c->lora_r;
    case DROPOUT:
        return c->dropout < 0;
    case UNPAD:
        return !c->unpad;
    case LOW:
        return !c->bf16 && !c->fp16;
    case FP16:
        return !c->fp16;
    default:
        return false;
    }
}

/* The pipeline behind the last pass that ran. *stopped: at --stop-after. */
static bool
run_rest(manager *g, bool *stopped)
{
    ir_module *m = g->pc.m;
    const char *stop = g->cfg->stop_after;
    int next = 0;
    if (!forget_plan(m))
        return false;
    for (int i = 0; i < m->passes.n; i++) {
        int after = (int)(find(m->passes.at[i]) - pass_table) + 1;
        next = after > next ? after : next;
    }
    if (!pass_options_fit(m, next))
        return false;
    const pass_row *last = stop ? find(stop) : NULL;
    if (last && (last < &pass_table[next] || skips(g, last)))
        return ef_error(m->ctx, NULL, E_OPT_VALUE, "stop-after",
                        ef_printf(m->ctx->arena, "pass %s does not run here", stop));
    *stopped = stop && !last; /* after the import */
    for (int i = next; i < pass_count && !*stopped; i++) {
        if (!skips(g, &pass_table[i]) && !run(g, &pass_table[i]))
            return false;
        *stopped = last == &pass_table[i];
    }
    return true;
}

/* Every pass of --print-after has run. */
static bool
check_printed(const manager *g)
{
    ef_ctx *ctx = g->pc.m->ctx;
    const char *wanted = g->cfg->print_after ? g->cfg->print_after : "";
    char *list = ef_strdup(ctx->arena, wanted), *rest;
    for (char *p = strtok_r(list, ",", &rest); p; p = strtok_r(NULL, ",", &rest)) {
        bool ran = false;
        for (int i = 0; i < g->columns.n; i++)
            ran |= !strcmp(g->columns.at[i].name, p);
        if (!ran)
            return ef_error(ctx, NULL, E_OPT_VALUE, "print-after",
                            ef_printf(ctx->arena, "pass %s does not run here", p));
    }
    return true;
}

/* Every pass that the options name exists. */
static bool
check_names(ef_ctx *ctx, const ef_config *cfg)
{
    const char *const lists[] = {cfg->print_after, cfg->stop_after};
    for (size_t i = 0; i < EF_COUNT(lists); i++) {
        char *list = ef_strdup(ctx->arena, lists[i] ? lists[i] : ""), *rest;
        for (char *p = strtok_r(list, ",", &rest); p; p = strtok_r(NULL, ",", &rest))
            if (!pass_exists(p) && strcmp(p, "import"))
                return unknown(ctx, p);
    }
    return true;
}

bool
pass_run(ir_module *m, const pass_target *target, bool *stopped)
{
    ef_ctx *ctx = m->ctx;
    const ef_config *cfg = ctx->cfg;
    manager g = {.pc = {.m = m, .scratch = ef_arena_new(), .target = target},
                 .cfg = cfg};
    *stopped = false;
    running = &g;
    ef_assert_hook = write_reproducer;
    bool ok = check_names(ctx, cfg) && recompute_facts(m) &&
              (!strcmp(cfg->verify, "none") || !ir_verify(m));
    if (ok) {
        g.text = text_of(m);
        show(&g, (column){.name = "import", .ir = g.text});
        ok = cfg->given_run_pass ? run_listed(&g) : run_rest(&g, stopped);
    }
    ok = ok && check_printed(&g);
    if (ok && !strcmp(cfg->verify, "end"))
        verify(&g, g.columns.at[g.columns.n - 1].name);
    if (cfg->dump && g.columns.n)
        ok = dump(&g) && ok;
    if (cfg->time)
        print_times(&g);
    if (ok && (*stopped || cfg->given_run_pass)) {
        *stopped = true;
        fputs(g.text, stdout);
    }
    running = NULL;
    ef_assert_hook = NULL;
    ef_arena_free(g.pc.scratch);
    return ok;
}
