/* inputs.c -- plan.h: arguments of step and eval, and the sizes that named dimensions take. */
#include "cg_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int
cg_named_sizes(const ir_module *m, ir_sym sym, int64_t *size)
{
    const char *s = ir_meta_get(m, sym == IR_ROWS ? "sizes.rows" : "sizes.sup");
    int64_t most = 0;
    int n = 0;
    for (int i = 0; m->step && i < m->step->args.n; i++) {
        const ir_type *t = m->step->args.at[i]->type;
        if (t->rank && t->sym[0] == sym)
            most = t->dim[0];
    }
    for (char *end; most && s && *s; s = end) {
        long long x = strtoll(s, &end, 10);
        if (end == s || n == RT_SIZES || x <= (n ? size[n - 1] : 0))
            return -1;
        size[n++] = x;
        end += strspn(end, " ");
    }
    return !most || (n && size[n - 1] == most) ? n : -1;
}

/* ---- inputs ---- */

static const char *
role_of(const ir_module *m, const ir_value *v)
{
    static const char *const word[][2] = {
        {"ids", "RT_IDS"},         {"mask", "RT_MASK"},
        {"types", "RT_TYPES"},     {"positions", "RT_POSITIONS"},
        {"labels", "RT_TARGETS"},  {"values", "RT_VALUES"},
        {"scale", "RT_SCALE"},     {"keys", "RT_DROP_KEYS"},
        {"key", "RT_DROP_KEY"},    {"row", "RT_ROW"},
        {"offsets", "RT_OFFSETS"}, {"position", "RT_POSITION"},
        {"sup", "RT_SUPERVISED"},  {"pooled", "RT_POOLED"}};
    for (int i = 0; i < (int)EF_COUNT(word); i++)
        if (pass_input_is(m, v, word[i][0]))
            return word[i][1];
    return !strcmp(v->name, "targets")  ? "RT_TARGETS"
           : !strcmp(v->name, "values") ? "RT_VALUES"
           : !strcmp(v->name, "scale")  ? "RT_SCALE"
                                        : NULL;
}

/* Rows of what op indexes with operand k; 0: it indexes nothing with it. */
static int64_t
table_rows(const ir_op *op, int k)
{
    const ir_type *t = op->arg[0]->type;
    switch (op->code) {
    case IR_OP_embed:
        return k == 1 ? t->dim[0] : 0;
    case IR_OP_gather:
        return k == 1 ? t->dim[ir_attr_int(op, IR_ATTR_axis, 0)] : 0;
    case IR_OP_ce:
    case IR_OP_ce_grad:
        return k == 1 ? t->dim[t->rank - 1] : 0;
    case IR_OP_head_ce:
    case IR_OP_head_ce_grad:
        return k == 2 ? op->arg[1]->type->dim[ir_attr_int(op, IR_ATTR_tb, 0) ? 0 : 1]
                      : 0;
    default:
        return 0;
    }
}

/* The argument or other value that v's elements are taken from. */
static const ir_value *
source(const ir_value *v)
{
    while (v->def && (pass_is_view(v->def) || v->def->code == IR_OP_gather))
        v = v->def->arg[0];
    return v;
}

/* The smallest table that argument i of f indexes; INT64_MAX: none. */
static int64_t
limit_in(const ir_func *f, int i)
{
    int64_t limit = INT64_MAX;
    for (const ir_op *op = f ? ir_first_op(f) : NULL; op; op = ir_next_op(op))
        for (int k = 0; k < op->narg; k++) {
            bool from_it = source(op->arg[k]) == f->args.at[i];
            int64_t rows = from_it ? table_rows(op, k) : 0;
            limit = rows && rows < limit ? rows : limit;
        }
    return limit;
}

bool
cg_input_table(cg *c, ef_buf *b)
{
    const ir_func *step = c->m->step, *eval = c->m->eval;
    ef_puts(
        b, "\n/* Arguments of step and eval. */\nstatic const rt_input inputs[] = {\n");
    for (int i = 0; i < step->args.n; i++) {
        const ir_value *v = step->args.at[i];
        const char *role = role_of(c->m, v);
        if (!role)
            return ef_error(c->ctx, v->name, E_PLAN,
                            "the input has no role (meta input.NAME)");
        int64_t limit = limit_in(step, i), other = limit_in(eval, i);
        bool used = v->nuse || (eval && eval->args.at[i]->nuse);
        limit = other < limit ? other : limit;
        const ir_type *t = v->type;
        ef_buf row = {.arena = c->arena};
        ef_putf(&row, "{.name = %s, .role = %s, .rank = %d",
                cg_string(c->arena, v->name), role, t->rank);
        if (t->rank)
            ef_putf(&row, ", .dim = {%s}", cg_ints(c->arena, t->rank, t->dim));
        ef_puts(&row, used ? ", .used = true" : "");
        if (limit < INT64_MAX)
            ef_putf(&row, ", .limit = %" PRId64, limit);
        if (cg_varies(t))
            ef_putf(&row, ", .vary = %s", cg_vary(t));
        ef_puts(&row, "},");
        cg_code(b, 4, row.s);
    }
    ef_puts(b, "};\n");
    return true;
}
