/* print.c -- a module as text. One way to print a module, so that texts can be compared
 * byte by byte; parse.c reads it back. The grammar is in docs/ir.md.
 */
#include <inttypes.h>
#include <string.h>

#include "ir_int.h"

const char *const ir_phase_word[3] = {"fwd", "bwd", "update"};
const char *const ir_class_word[IR_NCLASSES] = {"train", "frozen", "const", "grad",
                                                "state", "image",  "scaler"};
const char *const ir_role_word[5] = {"base", "lora_a", "lora_b", "head", "module"};
const char *const ir_init_word[6] = {NULL, "file", NULL, "zero", "kaiming", "normal"};

void
ir_put_quoted(ef_buf *b, const char *s)
{
    ef_puts(b, "\"");
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            ef_putf(b, "\\%c", *s);
        else if ((unsigned char)*s < ' ' || *s == 0x7f)
            ef_putf(b, "\\x%02x", (unsigned char)*s);
        else
            ef_putn(b, s, 1);
    }
    ef_puts(b, "\"");
}

const char *
ir_value_text(ef_ctx *ctx, const ir_value *v)
{
    return ef_internf(ctx, "%c%s", v->param ? '$' : '%', v->name);
}

static void
put_value(ef_buf *b, const ir_value *v)
{
    ef_puts(b, v->param ? "$" : "%");
    ef_puts(b, v->name);
}

static void
put_loc(ef_buf *b, const char *loc)
{
    if (!loc)
        return;
    ef_puts(b, "  !");
    ir_put_quoted(b, loc);
}

/* ---- ops ---- */

static void
put_attr(ef_buf *b, const ir_attr *a)
{
    const ir_attrinfo *info = &ir_attrs[a->key];
    ef_putf(b, "%s=", info->name);
    switch (info->kind) {
    case 'i':
        ef_putf(b, "%" PRId64, a->u.i);
        break;
    case 'f':
        ef_puts(b, ef_ftoa(a->u.f));
        break;
    case 's':
        ir_put_quoted(b, a->u.s);
        break;
    default:
        ef_puts(b, "[");
        for (int i = 0; i < a->n; i++)
            ef_putf(b, "%s%" PRId64, i ? "," : "", a->u.l[i]);
        ef_puts(b, "]");
    }
}

void
ir_print_op(const ir_op *op, ef_buf *b)
{
    ef_ctx *ctx = op->block->func->module->ctx;
    for (int i = 0; i < op->nres; i++) {
        ef_puts(b, i ? ", " : "");
        put_value(b, op->res[i]);
    }
    ef_putf(b, "%s%s", op->nres ? " = " : "", ir_ops[op->code].name);
    for (int i = 0; i < op->narg; i++) {
        ef_puts(b, i ? ", " : " ");
        put_value(b, op->arg[i]);
    }
    for (int i = 0; i < op->nattr; i++) {
        ef_puts(b, i ? ", " : " {");
        put_attr(b, &op->attr[i]);
    }
    ef_puts(b, op->nattr ? "}" : "");
    for (int i = 0; i < op->nres; i++)
        ef_putf(b, "%s%s", i ? ", " : " : ", ir_type_text(ctx, op->res[i]->type));
    put_loc(b, op->loc);
}

/* ---- params ---- */

static void
put_field(ef_buf *b, const char *name, const char *value)
{
    if (!value)
        return;
    ef_putf(b, " %s=", name);
    ir_put_quoted(b, value);
}

/* " = 0*16 1 2": equal neighbours as value*count. */
static void
put_values(ef_buf *b, const double *v, int64_t n)
{
    ef_puts(b, " =");
    for (int64_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && !memcmp(&v[i + run], &v[i], sizeof *v);)
            run++;
        ef_putf(b, " %s", ef_ftoa(v[i]));
        if (run > 1)
            ef_putf(b, "*%" PRId64, run);
    }
}

static void
put_param(ef_buf *b, ef_ctx *ctx, const ir_param *p, bool placed)
{
    ef_putf(b, "param $%s : %s %s unit=%d", p->value->name,
            ir_type_text(ctx, p->value->type), ir_class_word[p->cls], p->unit);
    if (ir_init_word[p->init])
        ef_putf(b, " %s", ir_init_word[p->init]);
    if (p->init == IR_INIT_FILE) {
        ef_putf(b, " %s ", ir_dtypes[p->file_dtype].name);
        ir_put_quoted(b, placed ? p->path : "");
        ef_putf(b, " %" PRIu64, p->at);
    }
    put_field(b, "onnx", p->onnx);
    for (int i = 0; i < p->also.n; i++)
        put_field(b, "also", p->also.at[i]);
    put_field(b, "hf", p->hf);
    ef_puts(b, p->transposed ? " transposed" : "");
    if (p->shift)
        ef_putf(b, " shift=%d", p->shift);
    if (p->role)
        ef_putf(b, " role=%s", ir_role_word[p->role]);
    put_field(b, "module", p->module);
    if (p->part) {
        put_field(b, "part", p->part);
        ef_putf(b, ":%" PRId64 ":%" PRId64 ":%" PRId64, p->part_start, p->part_len,
                p->part_of);
        if (p->part_block || p->part_stride)
            ef_putf(b, ":%" PRId64 ":%" PRId64, p->part_block, p->part_stride);
    }
    if (p->of)
        ef_putf(b, " of=$%s", p->of->value->name);
    if (p->offset >= 0)
        ef_putf(b, " at=%" PRId64, p->offset);
    if (p->init == IR_INIT_VALUES)
        put_values(b, p->values, ir_type_count(p->value->type));
    put_loc(b, p->loc);
    ef_puts(b, "\n");
}

/* ---- functions and the module ---- */

static void
put_func(ef_buf *b, ef_ctx *ctx, const ir_func *f)
{
    ef_putf(b, "\nfunc $%s(", f->name);
    for (int i = 0; i < f->args.n; i++)
        ef_putf(b, "%s%%%s : %s", i ? ", " : "", f->args.at[i]->name,
                ir_type_text(ctx, f->args.at[i]->type));
    ef_puts(b, ") {\n");
    IR_FOREACH_BLOCK (k, f) {
        ef_putf(b, "@%s: %s unit=%d\n", k->name, ir_phase_word[k->phase], k->unit);
        IR_FOREACH_OP (op, k) {
            ef_puts(b, "  ");
            ir_print_op(op, b);
            ef_puts(b, "\n");
        }
    }
    ef_puts(b, "}\n");
}

static void
put_module(ef_buf *b, const ir_module *m, bool placed)
{
    ef_putf(b, "efficc-ir %d", IR_FORMAT);
    for (int i = 0; i < m->passes.n; i++)
        ef_putf(b, " %s", m->passes.at[i]);
    ef_puts(b, m->meta.n || m->units.n ? "\n\n" : "\n");
    for (int i = 0; i < m->meta.n; i++) {
        if (!placed && !strcmp(m->meta.at[i].key, "model"))
            continue;
        ef_putf(b, "meta %s ", m->meta.at[i].key);
        ir_put_quoted(b, m->meta.at[i].value);
        ef_puts(b, "\n");
    }
    for (int i = 0; i < m->units.n; i++) {
        ef_putf(b, "unit %d ", i);
        ir_put_quoted(b, m->units.at[i]);
        ef_puts(b, "\n");
    }
    ef_puts(b, m->params.n ? "\n" : "");
    for (int i = 0; i < m->params.n; i++)
        put_param(b, m->ctx, m->params.at[i], placed);
    if (m->step)
        put_func(b, m->ctx, m->step);
    if (m->eval)
        put_func(b, m->ctx, m->eval);
}

void
ir_print(const ir_module *m, ef_buf *b)
{
    put_module(b, m, true);
}

void
ir_print_unplaced(const ir_module *m, ef_buf *b)
{
    put_module(b, m, false);
}
