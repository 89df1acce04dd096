/* docs.c -- the tables part of docs/ir.md, from the .def files. */
#include <string.h>

#include "ir_int.h"

/* Text for a table's cell: '|' would end it. */
static void
put_cell(FILE *f, const char *s)
{
    for (; *s; s++)
        fputs(*s == '|' ? "\\|" : (char[]){*s, '\0'}, f);
}

static void
put_dtypes(FILE *f)
{
    fputs("## Element types\n\n| name | bits | float |\n| --- | --- | --- |\n", f);
    for (int i = 0; i < IR_NDTYPES; i++)
        fprintf(f, "| `%s` | %d | %s |\n", ir_dtypes[i].name, ir_dtypes[i].bits,
                ir_dtypes[i].is_float ? "yes" : "no");
}

static void
put_attrs(FILE *f)
{
    fputs("\n## Attributes\n\nIn the order in which they print. An op that accepts a "
          "needed one must have it; any other means 0 where it is absent, but `step` "
          "means 1.\n\n| name | kind | needed | meaning |\n| --- | --- | --- | --- |\n",
          f);
    for (int i = 0; i < IR_NATTRS; i++) {
        const ir_attrinfo *a = &ir_attrs[i];
        const char *kind = a->kind == 'i'   ? "integer"
                           : a->kind == 'f' ? "number"
                           : a->kind == 's' ? "string"
                                            : "list";
        fprintf(f, "| `%s` | %s | %s | ", a->name, kind, a->need ? "yes" : "");
        put_cell(f, a->doc);
        fputs(" |\n", f);
    }
}

static void
put_count(FILE *f, int least, int most)
{
    if (most < 0)
        fprintf(f, "%d.. | ", least);
    else if (most > least)
        fprintf(f, "%d..%d | ", least, most);
    else
        fprintf(f, "%d | ", least);
}

static const struct {
    unsigned flag;
    char letter;
    const char *meaning;
} flags[] = {
    {IR_PURE, 'P', "pure"},
    {IR_EFFECT, 'E', "has an effect, never dead"},
    {IR_EW, 'W', "elementwise"},
    {IR_VIEW, 'V', "the result may share operand 0's storage"},
    {IR_ACC, 'G', "may add into a gradient buffer"},
    {IR_TYPED, 'T', "the result's type is given"},
    {IR_INPLACE, 'I', "may overwrite an operand that dies"},
    {IR_SHARDWISE, 'S', "works on `/dp` operands"},
    {IR_LAST_INF, 'N', "the last result may be -inf though nothing went wrong"},
    {IR_ROWWISE, 'R', "works on rows one by one"}};

static void
put_op(FILE *f, const ir_opinfo *op)
{
    static const char *const cast[] = {"low", "full", "wide", "keep"};
    fprintf(f, "| `%s` | ", op->name);
    put_count(f, op->narg, op->narg_max);
    put_count(f, op->nres, op->nres_max);
    for (size_t i = 0; i < EF_COUNT(flags); i++)
        if (op->flags & flags[i].flag)
            fputc(flags[i].letter, f);
    fprintf(f, " | %s |", cast[op->cast]);
    const char *comma = "";
    for (int i = 0; i < IR_NATTRS; i++)
        if (op->attrs >> i & 1) {
            fprintf(f, "%s %s", comma, ir_attrs[i].name);
            comma = ",";
        }
    fputs(" | ", f);
    put_cell(f, op->doc);
    fputs(" |\n", f);
}

static void
put_ops(FILE *f, bool elementwise)
{
    fputs("\n| op | operands | results | flags | cast | attributes | meaning |\n"
          "| --- | --- | --- | --- | --- | --- | --- |\n",
          f);
    for (int i = 0; i < IR_NOPS; i++)
        if ((ir_ops[i].shape == sh_ew_S || ir_ops[i].shape == sh_ew_B ||
             ir_ops[i].shape == sh_ew_W) == elementwise)
            put_op(f, &ir_ops[i]);
}

void
ir_print_docs(FILE *f)
{
    put_dtypes(f);
    put_attrs(f);
    fputs("\n## Ops\n\nFlags:", f);
    for (size_t i = 0; i < EF_COUNT(flags); i++)
        fprintf(f, "%s %c %s", i ? "," : "", flags[i].letter, flags[i].meaning);
    fputs(". Cast: what mixed precision makes of the op.\n", f);
    put_ops(f, false);
    fputs("\n### Elementwise ops\n\n`a`, `b`, `c` are the operands, which broadcast as "
          "in "
          "NumPy. All have one element type; `where` and comparisons aside, it is the "
          "result's, too, and not bool. Comparisons and logic give bool, `where` takes "
          "bool as its first operand.\n",
          f);
    put_ops(f, true);
}
