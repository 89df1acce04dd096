/* cg.c -- the sources of a trainer.
 *
 * step.c has one function per block of the IR and in it one call per op (or per kernel),
 * in order, below the op's line of the IR. `micro` runs the forward and backward blocks of
 * step, `update` its update blocks, `eval` the blocks of eval. Everything else is a name
 * that plan.h explains.
 */
#include "cg_int.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

void
lw_none(cg *c, const ir_op *op)
{
    (void)op;
    cg_refuse(c, "no pass has replaced it");
}

/* ---- step.c ---- */

static const char *
comment_of(cg *c, const ir_op *op)
{
    const char *line = cg_ir_line(c->arena, op);
    int more = 0;
    if (op->code != IR_OP_optim)
        return line;
    for (const ir_op *o = op->next; o; o = o->next)
        more +=
            o->code == IR_OP_optim && o->arg[0]->param->unit == op->arg[0]->param->unit;
    return more ? ef_printf(c->arena, "%s, and %d more of the unit", line, more) : line;
}

/* Ops without code of their own whose line still helps to read what follows. */
static bool
worth_a_line(const ir_op *op)
{
    return pass_is_ew(op) || pass_is_view(op);
}

static void
put_op(cg *c, const ir_op *op, ef_buf *out)
{
    ef_buf code = {.arena = c->arena};
    c->op = op;
    c->out = &code;
    cg_emitters[op->code](c, op);
    if (c->why)
        ef_error(c->ctx, op->loc, E_CG_OP, ir_ops[op->code].name,
                 cg_is_cuda(c->ctx) ? "cuda" : "cpu", c->why);
    if (!code.n && !worth_a_line(op))
        return;
    if (code.n && c->f == c->m->step && op->block->phase != IR_UPDATE && !c->why)
        ef_putf(&code, "    rt_done(run, %d);\n", cg_new_call(c, op));
    cg_comment(out, 4, comment_of(c, op));
    if (code.n)
        ef_putf(out, "%s\n", code.s);
}

/* Name of the block's function; NULL: it has no code. */
static const char *
put_block(cg *c, const ir_block *b, ef_buf *out)
{
    static const char *const phase[] = {"forward", "backward", "update"};
    ef_buf body = {.arena = c->arena};
    for (const ir_op *op = b->first; op && !c->why; op = op->next)
        put_op(c, op, &body);
    if (!body.n || !strchr(body.s, ';'))
        return NULL;
    while (body.n > 1 && body.s[body.n - 2] == '\n')
        body.n--;
    const char *name = cg_ident(c, ef_printf(c->arena, "%s_", b->func->name), b->name);
    ef_puts(out, "\n");
    cg_comment(out, 0,
               ef_printf(c->arena, "---- %s: %s, %s ----", b->func->name,
                         c->m->units.n > b->unit ? c->m->units.at[b->unit] : "",
                         phase[b->phase]));
    ef_putf(out, "static void\n%s(rt_run *run, rt_stream *st)\n{\n%.*s}\n", name,
            (int)body.n, body.s);
    return name;
}

/* The blocks of f, and a function that runs those of the phases given. */
static void
put_phase(cg *c, const ir_func *f, unsigned phases, const char *name, ef_buf *out)
{
    ef_buf calls = {.arena = c->arena};
    c->f = f;
    for (const ir_block *b = f ? f->first : NULL; b && !c->why; b = b->next) {
        const char *block = phases >> b->phase & 1 ? put_block(c, b, out) : NULL;
        if (block)
            ef_putf(&calls, "    %s(run, run->compute);\n", block);
    }
    ef_putf(out, "\nstatic void\n%s(rt_run *run)\n{\n%s}\n", name,
            calls.n ? calls.s : "    (void)run;\n");
}

static void
put_step(cg *c, ef_buf *b)
{
    const char *model = ir_meta_get(c->m, "model");
    cg_comment(
        b, 0,
        ef_printf(c->arena,
                  "step.c -- the program that efficc made of %s: every call of a "
                  "training step and of an evaluation, in order. plan.h explains "
                  "the names.",
                  model ? model : "text"));
    ef_puts(b, "#include \"kernels.h\"\n#include \"plan.h\"\n");
    put_phase(c, c->m->step, 1u << IR_FWD | 1u << IR_BWD, "micro", b);
    put_phase(c, c->m->step, 1u << IR_UPDATE, "update", b);
    put_phase(c, c->m->eval, 1u << IR_FWD | 1u << IR_BWD | 1u << IR_UPDATE, "eval", b);
    ef_puts(b, "\nint\nmain(int argc, char **argv)\n{\n"
               "    return rt_main(argc, argv, &program);\n}\n");
}

/* ---- files ---- */

static bool
make_dir(ef_ctx *ctx, const char *path)
{
    if (!mkdir(path, 0777) || errno == EEXIST)
        return true;
    return ef_error(ctx, NULL, E_CG_OUTPUT, path, strerror(errno));
}

static bool
write_sources(cg *c, const char *dir)
{
    ef_arena *a = c->arena;
    ef_buf defines = {.arena = a}, step = {.arena = a}, plan = {.arena = a};
    ef_buf kernels = {.arena = a}, header = {.arena = a}, makefile = {.arena = a};
    const char *src = ef_printf(a, "%s/src", dir);
    cg_name_values(c, &defines);
    cg_find_infinite(c, c->m->step);
    put_step(c, &step);
    if (c->why)
        return false;
    cg_plan_h(c, &defines, &plan);
    if (!cg_input_table(c, &plan))
        return false;
    cg_unit_table(c, &plan);
    cg_call_table(c, &plan);
    cg_program(c, &plan);
    cg_kernels_text(c, &kernels, &header);
    cg_makefile(c->ctx, &makefile);
    return make_dir(c->ctx, src) && cg_write(c->ctx, src, "step.c", &step) &&
           cg_write(c->ctx, src, "plan.h", &plan) &&
           cg_write(c->ctx, src, cg_is_cuda(c->ctx) ? "kernels.cu" : "kernels.c",
                    &kernels) &&
           cg_write(c->ctx, src, "kernels.h", &header) &&
           cg_write(c->ctx, src, "Makefile", &makefile);
}

/* What a text written by hand may lack. false: said why. */
static bool
check_functions(const ir_module *m)
{
    const ir_func *step = m->step, *eval = m->eval;
    if (!step)
        return ef_error(m->ctx, NULL, E_PLAN, "the module has no function step");
    int64_t size[RT_SIZES];
    for (int sym = IR_ROWS; sym <= IR_SUP; sym++)
        if (cg_named_sizes(m, (ir_sym)sym, size) < 0)
            return ef_error(m->ctx, NULL, E_PLAN,
                            ef_printf(m->ctx->arena,
                                      "meta sizes.%s does not list the sizes of it, "
                                      "ascending up to the largest",
                                      sym == IR_ROWS ? "rows" : "sup"));
    bool same = !eval || eval->args.n == step->args.n;
    for (int i = 0; eval && same && i < step->args.n; i++)
        same = step->args.at[i]->name == eval->args.at[i]->name &&
               step->args.at[i]->type == eval->args.at[i]->type;
    return same || ef_error(m->ctx, NULL, E_PLAN, "eval has other arguments than step");
}

bool
cg_emit(ir_module *m, const pass_target *target, const char *dir)
{
    EF_ASSERT(!strcmp(target->name, "cuda") == cg_is_cuda(m->ctx));
    if (!check_functions(m))
        return false;
    cg c = {.m = m,
            .ctx = m->ctx,
            .arena = ef_arena_new(),
            .attn = {.type = "rt_attn", .stem = "attn"},
            .head = {.type = "rt_head", .stem = "head"},
            .move = {.type = "rt_block_copy", .stem = "move"}};
    c.threads = cg_threads(m->ctx);
    c.need = cg_need(m->ctx);
    bool ok = write_sources(&c, dir) && cg_plan_json(&c, dir) && cg_weights(m, dir);
    ef_arena_free(c.arena);
    return ok;
}
