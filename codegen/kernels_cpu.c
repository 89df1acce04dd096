/* kernels_cpu.c -- elementwise kernels as loop nests in C.
 *
 * A long inner loop is cut into blocks of fixed length, so that which elements the vector
 * code and which the scalar tail computes does not depend on the number of threads.
 */
#include "kernels_int.h"

/* More elements than BLOCK in the inner loop are cut. Fewer than SERIAL in all run on one
 * thread: to start and join a team costs more than they do. */
enum { BLOCK = 4096, SERIAL = 16384 };

/* Times round loop d. */
static const char *
turns(const cg_loop *l, int d)
{
    ef_arena *a = l->c->arena;
    if (d || !l->named)
        return ef_printf(a, "%lld", (long long)l->dim[d]);
    int64_t n = l->dim[0] / l->named;
    return n == 1 ? "rows" : ef_printf(a, "rows * %lld", (long long)n);
}

/* "i0 * 64 + i1 * 8 + i": where operand k's element of this turn stands. */
static const char *
element(const cg_loop *l, int k)
{
    ef_buf b = {.arena = l->c->arena};
    for (int d = 0; d < l->rank; d++) {
        int64_t s = l->stride[k][d];
        if (!s)
            continue;
        bool inner = d + 1 == l->rank;
        ef_puts(&b, b.n ? " + i" : "i");
        if (!inner)
            ef_putf(&b, "%d", d);
        if (s != 1)
            ef_putf(&b, " * %lld", (long long)s);
    }
    return b.n ? b.s : "0";
}

static const char *
from_memory(const ir_value *v)
{
    return !cg_is_low(v)               ? ""
           : v->type->dtype == IR_BF16 ? "rt_from_bf16("
                                       : "rt_from_f16(";
}

static const char *
to_memory(const ir_value *v)
{
    return !cg_is_low(v) ? "" : v->type->dtype == IR_BF16 ? "rt_to_bf16" : "rt_to_f16";
}

static void
write_element(const cg_loop *l, int indent, ef_buf *b)
{
    ef_arena *a = l->c->arena;
    for (int i = 0; i < l->nin; i++)
        cg_code(b, indent,
                ef_printf(a, "const %s a%d = %sx%d[%s]%s;",
                          cg_register_type(l->in[i]->type->dtype), i,
                          from_memory(l->in[i]), i, element(l, i),
                          cg_is_low(l->in[i]) ? ")" : ""));
    for (int i = 0; i < l->nop; i++)
        if (l->op[i]->res[0]->nuse)
            cg_code(b, indent,
                    ef_printf(a, "const %s t%d = %s;",
                              cg_register_type(l->op[i]->res[0]->type->dtype), i,
                              cg_expression(l, l->op[i])));
    for (int i = 0; i < l->nout; i++)
        cg_code(b, indent,
                ef_printf(
                    a, cg_is_low(l->out[i]) ? "y%d[%s] = %s(t%d);" : "y%d[%s] = %st%d;",
                    i, element(l, l->nin), to_memory(l->out[i]),
                    cg_op_index(l, l->out[i])));
}

/* The loops: outer dimensions, then blocks of the inner one where it is long. */
const char *
cg_cpu_loops(const cg_loop *l)
{
    ef_buf b = {.arena = l->c->arena};
    const char *n = turns(l, l->rank - 1);
    bool cut = l->dim[l->rank - 1] > BLOCK;
    int outer = l->rank - 1 + cut, indent = 4;
    if (l->total >= SERIAL && outer) {
        ef_puts(&b, "#pragma omp parallel for schedule(static)");
        if (outer > 1)
            ef_putf(&b, " collapse(%d)", outer);
        ef_puts(&b, "\n");
    }
    for (int d = 0; d + 1 < l->rank; d++, indent += 4)
        ef_putf(&b, "%*sfor (int64_t i%d = 0; i%d < %s; i%d++)\n", indent, "", d, d,
                turns(l, d), d);
    if (cut) {
        ef_putf(&b, "%*sfor (int64_t from = 0; from < %s; from += %d) {\n", indent, "",
                n, BLOCK);
        indent += 4;
        ef_putf(&b, "%*sint64_t to = from + %d < %s ? from + %d : %s;\n", indent, "",
                BLOCK, n, BLOCK, n);
    }
    ef_puts(&b, "#pragma omp simd\n");
    if (cut)
        ef_putf(&b, "%*sfor (int64_t i = from; i < to; i++) {\n", indent, "");
    else
        ef_putf(&b, "%*sfor (int64_t i = 0; i < %s; i++) {\n", indent, "", n);
    write_element(l, indent + 4, &b);
    ef_putf(&b, "%*s}\n", indent, "");
    if (cut)
        ef_putf(&b, "%*s}\n", indent - 4, "");
    return b.s;
}
