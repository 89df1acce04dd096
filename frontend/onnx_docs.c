/* onnx_docs.c -- the table of docs/onnx-support.md, from onnx_ops.def. */
#include "import_int.h"

#include <string.h>

static void
put_attrs(FILE *f, const char *attrs)
{
    for (; *attrs; attrs += *attrs == ',') {
        size_t n = strcspn(attrs, ",");
        fprintf(f, "`%.*s`%s", (int)n, attrs, attrs[n] ? ", " : "");
        attrs += n;
    }
}

void
fe_print_docs(FILE *f)
{
    fputs("| operator | opsets | attributes | becomes |\n| --- | --- | --- | --- |\n",
          f);
    for (int i = 0; i < fe_nrows; i++) {
        const fe_row *r = &fe_rows[i];
        int until = r->until ? r->until : FE_OPSET_MAX;
        fprintf(f, "| %s%s%s | %d-%d | ", r->domain, *r->domain ? "::" : "", r->name,
                r->since < FE_OPSET_MIN ? FE_OPSET_MIN : r->since, until);
        put_attrs(f, r->attrs);
        fprintf(f, " | %s |\n",
                r->code == IR_NOPS ? "known or the same" : ir_ops[r->code].name);
    }
}
