/* tables.c -- plan.h: a macro for each address that step.c uses, and its constants.
 *
 * Addresses are bases of `run`, set at start, plus offsets that the plan fixed:
 *
 *     #define s_h_0_ln_1 ((float *)(run->arena + 8192))               value of step
 *     #define e_h_0_ln_1 ((float *)(run->arena + 4096))               value of eval
 *     #define w_h_0_ln_1_weight ((float *)(run->base[RT_TRAIN][1] + 0))
 *     #define g_h_0_ln_1_weight ((float *)(run->base[RT_GRAD][1] + 0))
 *     #define in_input_ids ((const int64_t *)run->input[0])
 */
#include "cg_int.h"

static const char *
type_comment(cg *c, const ir_value *v)
{
    return ef_printf(c->arena, "/* %s */", ir_type_text(c->ctx, v->type));
}

static void
set_name(cg *c, const void *key, const char *name)
{
    ef_map_set(c->arena, &c->names, key, (void *)(uintptr_t)name);
}

static void
name_params(cg *c, ef_buf *b)
{
    static const char *const cls[] = {
        [IR_TRAIN] = "RT_TRAIN", [IR_FROZEN] = "RT_FROZEN", [IR_CONST] = "RT_CONST",
        [IR_GRAD] = "RT_GRAD",   [IR_IMAGE] = "RT_IMAGE",   [IR_SCALER] = "RT_SCALER"};
    for (int i = 0; i < c->m->params.n; i++) {
        const ir_param *p = c->m->params.at[i];
        const ir_param *at = p->of ? p->of : p;
        if (p->cls == IR_STATE)
            continue; /* rt_optim() knows them */
        const char *name = p->cls == IR_GRAD ? cg_ident(c, "g_", at->value->name)
                                             : cg_ident(c, "w_", p->value->name);
        const char *ctype = cg_ctype(p->value->type->dtype);
        set_name(c, p->value, name);
        ef_putf(b, "#define %s ((%s *)(run->base[%s][%d] + %lld)) %s\n", name,
                ctype ? ctype : "void", cls[p->cls], at->unit, (long long)p->offset,
                type_comment(c, p->value));
    }
}

static void
name_inputs(cg *c, ef_buf *b)
{
    const ir_func *step = c->m->step, *eval = c->m->eval;
    ef_puts(b, "\n/* Inputs of a micro-batch. */\n");
    for (int i = 0; i < step->args.n; i++) {
        const ir_value *v = step->args.at[i];
        const char *ctype = cg_ctype(v->type->dtype),
                   *name = cg_ident(c, "in_", v->name);
        set_name(c, v, name);
        if (eval)
            set_name(c, eval->args.at[i], name);
        ef_putf(b, "#define %s ((const %s *)run->input[%d]) %s\n", name,
                ctype ? ctype : "void", i, type_comment(c, v));
    }
}

/* Values that lie in a gradient buffer, which their accum names. */
static void
find_gradients(cg *c, const ir_func *f)
{
    for (const ir_op *op = ir_first_op(f); op; op = ir_next_op(op))
        if (op->code == IR_OP_accum && op->arg[1]->def &&
            !pass_is_view(op->arg[1]->def) && cg_offset(op->arg[1]) == PASS_IN_GRADIENT)
            ef_map_set(c->arena, &c->gradient, op->arg[1], op->arg[0]);
}

static void
name_result(cg *c, const ir_value *v, const char *prefix, ef_buf *b)
{
    const char *ctype = cg_ctype(v->type->dtype);
    bool view = pass_is_view(v->def);
    int64_t at = cg_offset(v);
    if (at < 0 && !view)
        return; /* in registers or a gradient buffer */
    const char *name = cg_ident(c, prefix, v->name);
    set_name(c, v, name);
    if (view)
        ef_putf(b, "#define %s %s %s\n", name,
                (const char *)ef_map_get(&c->names, v->def->arg[0]),
                type_comment(c, v));
    else
        ef_putf(b, "#define %s ((%s *)(run->arena + %lld)) %s\n", name,
                ctype ? ctype : "void", (long long)at, type_comment(c, v));
}

static void
name_scratch(cg *c, const ir_op *op, const char *prefix, ef_buf *b)
{
    const ir_attr *ws = ir_attr_get(op, IR_ATTR_ws);
    const char *of = op->nres ? op->res[0]->name : op->arg[0]->name;
    const char *name = cg_ident(c, ef_printf(c->arena, "%sscratch_", prefix), of);
    set_name(c, op, name);
    if (ws)
        ef_putf(b, "#define %s ((void *)(run->arena + %lld)) /* %lld bytes */\n", name,
                (long long)ws->u.l[0], (long long)ws->u.l[1]);
    else
        ef_putf(b, "#define %s NULL\n", name);
}

static void
name_results(cg *c, const ir_func *f, const char *prefix, ef_buf *b)
{
    ef_putf(
        b,
        "\n/* Values of %s; they share memory where they do not live at one time. */\n",
        f->name);
    for (const ir_op *op = ir_first_op(f); op; op = ir_next_op(op)) {
        for (int i = 0; i < op->nres; i++)
            name_result(c, op->res[i], prefix, b);
        if (cg_asks_scratch(c, op))
            name_scratch(c, op, prefix, b);
    }
}

void
cg_name_values(cg *c, ef_buf *b)
{
    ef_puts(b, "\n/* Parameters (w_) and their gradients (g_). */\n");
    name_params(c, b);
    name_inputs(c, b);
    find_gradients(c, c->m->step);
    name_results(c, c->m->step, "s_", b);
    if (c->m->eval)
        name_results(c, c->m->eval, "e_", b);
}

/* ---- constants ---- */

static void
put_gemms(cg *c, ef_buf *b)
{
    static const char *const epilogue[] = {[RT_GELU] = "RT_GELU",
                                           [RT_DGELU] = "RT_DGELU",
                                           [RT_SUM_A] = "RT_SUM_A",
                                           [RT_SUM_B] = "RT_SUM_B"};
    ef_puts(b, "\n/* Products: rt_gemm() takes the number of a row. */\n");
    if (!c->gemm.n) {
        ef_puts(b, "static const rt_gemm_desc gemms[1];\n");
        return;
    }
    ef_puts(b, "enum {\n");
    for (int i = 0; i < c->gemm.n; i++)
        ef_putf(b, "    %s,\n", c->gemm_name.at[i]);
    ef_puts(b, "};\nstatic const rt_gemm_desc gemms[] = {\n");
    for (int i = 0; i < c->gemm.n; i++) {
        const rt_gemm_desc *d = &c->gemm.at[i];
        ef_buf row = {.arena = c->arena};
        ef_putf(&row, "[%s] = {.m = %lld, .n = %lld, .k = %lld", c->gemm_name.at[i],
                (long long)d->m, (long long)d->n, (long long)d->k);
        if (d->vary_m || d->vary_k)
            ef_putf(&row, ", .vary_%c = %s", d->vary_m ? 'm' : 'k',
                    (d->vary_m ? d->vary_m : d->vary_k) == RT_ROWS ? "RT_ROWS"
                                                                   : "RT_SUP");
        if (d->a != RT_F32)
            ef_putf(&row, ", .a = %s, .b = %s, .c = %s", cg_dtype_text(d->a),
                    cg_dtype_text(d->b), cg_dtype_text(d->c));
        ef_putf(&row, "%s%s%s%s, .alpha = %s", d->ta ? ", .ta = true" : "",
                d->tb ? ", .tb = true" : "", d->bias ? ", .bias = true" : "",
                d->add ? ", .add = true" : "", cg_float(c->arena, d->alpha));
        if (d->epilogue)
            ef_putf(&row, ", .epilogue = %s%s", epilogue[d->epilogue],
                    d->add_sum ? ", .add_sum = true" : "");
        ef_putf(&row, ", .lda = %lld, .ldb = %lld, .ldc = %lld, .batch = %lld",
                (long long)d->lda, (long long)d->ldb, (long long)d->ldc,
                (long long)d->batch);
        if (d->batch > 1)
            ef_putf(&row, ", .sa = %lld, .sb = %lld, .sc = %lld", (long long)d->sa,
                    (long long)d->sb, (long long)d->sc);
        ef_putf(&row, ", .scratch = %lld},", (long long)d->scratch);
        cg_code(b, 4, row.s);
    }
    ef_puts(b, "};\n");
}

static void
put_constants(cg *c, const cg_table *t, ef_buf *b)
{
    for (int i = 0; i < t->name.n; i++)
        cg_code(b, 0,
                ef_printf(c->arena, "static const %s %s = %s;", t->type, t->name.at[i],
                          t->value.at[i]));
}

void
cg_plan_h(cg *c, const ef_buf *defines, ef_buf *b)
{
    ef_puts(
        b,
        "/* plan.h -- where everything lies, and the constants of step.c.\n"
        " *\n"
        " * `run` is the argument of every function in step.c. Sizes and offsets are\n"
        " * bytes. Only step.c includes this file.\n"
        " */\n"
        "#include <efficc_cpu.h>\n"
        "#include <efficc_rt.h>\n");
    ef_puts(b, "\n/* Sizes of the micro-batch: rows that are computed, rows that are "
               "supervised. */\n"
               "#define ROWS (run->size[RT_ROWS])\n"
               "#define SUP (run->size[RT_SUP])\n");
    ef_puts(b, defines->s);
    put_gemms(c, b);
    if (c->attn.name.n + c->head.name.n + c->move.name.n)
        ef_puts(b, "\n/* Sizes of attentions, heads and copies. */\n");
    put_constants(c, &c->attn, b);
    put_constants(c, &c->head, b);
    put_constants(c, &c->move, b);
    cg_param_table(c, b);
}
