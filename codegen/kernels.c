/* kernels.c -- elementwise kernels: one function for all ops with one `kernel` number.
 *
 *     %t = tanh %x {kernel=4}            void k4(rt_stream *st, float *y0, const float *x0,
 *     %y = mul %t, %w {kernel=4}                 const float *x1)
 *                                        {
 *     with %x [64,32], %w [32]               for (int64_t i0 = 0; i0 < 64; i0++)
 *                                                for (int64_t i = 0; i < 32; i++) {
 *                                                    const float a0 = x0[i0 * 32 + i];
 *                                                    const float a1 = x1[i];
 *                                                    const float t0 = TANH(a0);
 *                                                    const float t1 = t0 * a1;
 *                                                    y0[i0 * 32 + i] = t1;
 *
 * Dimensions are merged as far as the operands' strides allow. The same kernels are made for
 * all targets, with the same numbers and parameters; what is between the braces is the
 * target's.
 *
 * Elements of the low types become float where they are read and are rounded where they are
 * written; between ops of a kernel they stay as precise as float is. Where the first
 * dimension is a named one, its size is a parameter: only the outermost loop depends on it.
 */
#include "kernels_int.h"

#include <ctype.h>
#include <string.h>

static const char *const formula[IR_NOPS] = {
#define EW(name, arity, out, text) [IR_OP_##name] = #text,
#include "../ir/elementwise.def"
#undef EW
};
static const char *const result_kind[IR_NOPS] = {
#define EW(name, arity, out, text) [IR_OP_##name] = #out,
#include "../ir/elementwise.def"
#undef EW
};

const char *
cg_register_type(ir_dtype t)
{
    return ir_dtypes[t].is_float ? "float" : cg_ctype(t);
}

bool
cg_is_low(const ir_value *v)
{
    return v->type->dtype == IR_BF16 || v->type->dtype == IR_F16;
}

/* ---- operands ---- */

static bool
is_member(const cg_loop *l, const ir_value *v)
{
    for (int i = 0; i < l->nop; i++)
        if (l->op[i]->res[0] == v)
            return true;
    return false;
}

static int
index_of(const ir_value *const *list, int n, const ir_value *v)
{
    for (int i = 0; i < n; i++)
        if (list[i] == v)
            return i;
    return -1;
}

static bool
is_literal(const ir_value *v)
{
    return v->def && v->def->code == IR_OP_const;
}

static const char *
literal(cg *c, const ir_value *v)
{
    double x = ir_attr_num(v->def, IR_ATTR_value, 0);
    ir_dtype t = v->type->dtype;
    if (ir_dtypes[t].is_float)
        return cg_float(c->arena, x);
    if (t == IR_I64 && !(x > -0x1p63 && x < 0x1p63))
        return x < 0 ? "INT64_MIN" : x > 0 ? "INT64_MAX" : "0";
    return ef_printf(c->arena, x < 0 ? "(%.0f)" : "%.0f", ir_round(t, x));
}

int
cg_op_index(const cg_loop *l, const ir_value *v)
{
    for (int i = 0; i < l->nop; i++)
        if (l->op[i]->res[0] == v)
            return i;
    EF_UNREACHABLE();
}

/* v as an expression inside the loop. */
static const char *
operand(const cg_loop *l, const ir_value *v)
{
    if (is_literal(v))
        return literal(l->c, v);
    int in = index_of(l->in, l->nin, v);
    return in < 0 ? ef_printf(l->c->arena, "t%d", cg_op_index(l, v))
                  : ef_printf(l->c->arena, "a%d", in);
}

static void
find_operands(cg_loop *l)
{
    for (int i = 0; i < l->nop; i++) {
        const ir_op *op = l->op[i];
        for (int k = 0; k < op->narg; k++) {
            const ir_value *v = op->arg[k];
            if (is_literal(v) || is_member(l, v) || index_of(l->in, l->nin, v) >= 0)
                continue;
            EF_ASSERT(l->nin < CG_KERNEL_MOST);
            l->in[l->nin++] = v;
        }
        if (cg_offset(op->res[0]) >= 0)
            l->out[l->nout++] = op->res[0];
    }
}

static void
find_loops(cg_loop *l)
{
    const ir_type *t = l->op[0]->res[0]->type;
    for (int d = 0; d < t->rank; d++)
        l->dim[d] = t->dim[d];
    for (int i = 0; i < l->nin; i++)
        ir_strides(l->in[i]->type, t->rank, l->stride[i]);
    ir_strides(t, t->rank, l->stride[l->nin]);
    l->rank = ir_collapse(t->rank, l->dim, l->nin + 1, l->stride);
    if (!l->rank)
        l->dim[l->rank++] = 1;
    l->total = ir_type_count(t);
    l->named = cg_varies(t) ? t->dim[0] : 0;
}

/* ---- the body ---- */

/* Formula with a, b, c replaced by arg[]. */
static const char *
substitute(cg *c, const char *text, const char *const *arg)
{
    ef_buf b = {.arena = c->arena};
    for (const char *p = text; *p;) {
        size_t n = 1;
        while (isalnum((unsigned char)*p) &&
               (isalnum((unsigned char)p[n]) || p[n] == '_'))
            n++;
        bool name = n == 1 && *p >= 'a' && *p <= 'c';
        if (name)
            ef_puts(&b, arg[*p - 'a']);
        else
            ef_putn(&b, p, n);
        p += n;
    }
    return b.s;
}

/* x converted to dtype `to`, as ir_round() does it. */
static const char *
convert(cg *c, const char *x, ir_dtype from, ir_dtype to)
{
    static const char *const macro[IR_NDTYPES] = {
        [IR_I64] = "TO_I64", [IR_I32] = "TO_I32", [IR_I8] = "TO_I8", [IR_U8] = "TO_U8"};
    if (from == to || (ir_dtypes[from].is_float && ir_dtypes[to].is_float))
        return x;
    if (to == IR_BOOL)
        return ef_printf(c->arena, "%s != 0", x);
    if (ir_dtypes[to].is_float || (to == IR_I64 && !ir_dtypes[from].is_float))
        return ef_printf(c->arena, "(%s)%s", cg_register_type(to), x);
    return ef_printf(c->arena, "%s(%s)", macro[to], x);
}

/* Arithmetic on integers is in double and rounded back, as the interpreter does it;
 * comparisons and choices are in the operands' own type. */
const char *
cg_expression(const cg_loop *l, const ir_op *op)
{
    cg *c = l->c;
    ir_dtype to = op->res[0]->type->dtype;
    if (op->code == IR_OP_const)
        return literal(c, op->res[0]);
    const char *arg[3] = {0};
    for (int i = 0; i < op->narg; i++)
        arg[i] = operand(l, op->arg[i]);
    if (!formula[op->code]) /* cast, expand */
        return convert(c, arg[0], op->arg[0]->type->dtype, to);
    if (*result_kind[op->code] != 'S' || ir_dtypes[to].is_float)
        return substitute(c, formula[op->code], arg);
    for (int i = 0; i < op->narg; i++)
        arg[i] = ef_printf(c->arena, "(double)%s", arg[i]);
    const char *text = substitute(c, formula[op->code], arg);
    return convert(c, ef_printf(c->arena, "(%s)", text), IR_F32, to);
}

/* ---- kernels of the program ---- */

static const char *
parameters(const cg_loop *l)
{
    ef_buf b = {.arena = l->c->arena};
    ef_puts(&b, "rt_stream *st");
    ef_puts(&b, l->named ? ", int64_t rows" : "");
    for (int i = 0; i < l->nout; i++)
        ef_putf(&b, ", %s *y%d", cg_ctype(l->out[i]->type->dtype), i);
    for (int i = 0; i < l->nin; i++)
        ef_putf(&b, ", const %s *x%d", cg_ctype(l->in[i]->type->dtype), i);
    return b.s;
}

static const char *
group_comment(const cg_loop *l)
{
    ef_buf b = {.arena = l->c->arena};
    for (int i = 0; i < l->nop; i++)
        cg_comment(&b, 0, cg_ir_line(l->c->arena, l->op[i]));
    return b.s;
}

static const char *
cpu_kernel(const cg_loop *l, int number, const char *params, const char *body)
{
    ef_buf b = {.arena = l->c->arena};
    ef_puts(&b, "void\n");
    cg_code(&b, 0, ef_printf(b.arena, "k%d(%s)", number, params));
    ef_putf(&b, "{\n    (void)st;\n%s}\n", body);
    return b.s;
}

/* Number of the kernel that computes l; made if there is none yet. */
static int
kernel_number(cg_loop *l)
{
    cg *c = l->c;
    const char *params = parameters(l), *body = cg_cpu_loops(l);
    bool wide = cg_is_wide(l);
    for (int i = 0; i < c->kernel.n; i++) {
        const cg_kernel *k = &c->kernel.at[i];
        if (!strcmp(k->prototype, params) && !strcmp(k->body, body) && k->wide == wide)
            return k->number;
    }
    int number = (int)ir_attr_int(l->op[0], IR_ATTR_kernel, 0);
    const char *text = cg_is_cuda(c->ctx) ? cg_cuda_kernel(l, number, params)
                                          : cpu_kernel(l, number, params, body);
    ef_push(c->arena, c->kernel,
            ((cg_kernel){number, group_comment(l), params, body, text, wide}));
    return number;
}

static void
call_kernel(cg_loop *l)
{
    ef_buf args = {.arena = l->c->arena};
    int number = kernel_number(l);
    if (l->named)
        ef_puts(&args, cg_times(l->c, l->out[0]->type, 0, 1, 1));
    for (int i = 0; i < l->nout; i++)
        ef_putf(&args, "%s%s", args.n ? ", " : "", cg_any_res(l->c, l->out[i]->def, 0));
    for (int i = 0; i < l->nin; i++)
        ef_putf(&args, ", %s", (const char *)ef_map_get(&l->c->names, l->in[i]));
    cg_call(l->c, ef_printf(l->c->arena, "k%d", number), "%s", args.s);
}

/* Is another op of this kernel still to come? */
static bool
goes_on(const ir_op *op)
{
    int64_t k = ir_attr_int(op, IR_ATTR_kernel, -1);
    for (const ir_op *o = op->next; o; o = o->next)
        if (ir_attr_int(o, IR_ATTR_kernel, -1) == k)
            return true;
    return false;
}

static void
check_types(cg *c, const ir_op *op)
{
    cg_any_res(c, op, 0);
    for (int i = 0; i < op->narg; i++)
        cg_any_arg(c, op, i);
}

/* The kernel is called where the last of its ops stands. */
void
lw_ew(cg *c, const ir_op *op)
{
    int64_t k = ir_attr_int(op, IR_ATTR_kernel, -1);
    if (c->dry)
        check_types(c, op);
    if (c->dry || k < 0 || goes_on(op)) /* k < 0: a literal */
        return;
    cg_loop *l = EF_NEW(c->arena, cg_loop);
    l->c = c;
    const ir_op *o = op->block->first;
    for (; o != op->next; o = o->next) {
        if (ir_attr_int(o, IR_ATTR_kernel, -1) != k)
            continue;
        EF_ASSERT(l->nop < CG_KERNEL_MOST);
        l->op[l->nop++] = o;
    }
    find_operands(l);
    find_loops(l);
    if (l->nout)
        call_kernel(l);
}

void
cg_kernels_text(cg *c, ef_buf *source, ef_buf *header)
{
    bool cuda = cg_is_cuda(c->ctx);
    ef_puts(header, "/* kernels.h -- elementwise kernels of this program. */\n"
                    "#include <efficc_rt.h>\n\n");
    ef_putf(source,
            "/* kernels.%s -- elementwise kernels of this program.\n"
            " *\n"
            " * Above each the lines of the IR that it was first made for; a kernel "
            "that is\n"
            " * equal in all but names serves other layers too.\n"
            " */\n%s",
            cuda ? "cu" : "c",
            cuda ? "#include <efficc_cuda.h>\n\n"
                   "extern \"C\" {\n#include \"kernels.h\"\n}\n"
                 : "#include \"kernels.h\"\n\n#include <efficc_math.h>\n");
    for (int i = 0; i < c->kernel.n; i++) {
        const cg_kernel *k = &c->kernel.at[i];
        cg_code(header, 0,
                ef_printf(c->arena, "void k%d(%s);", k->number, k->prototype));
        ef_putf(source, "\n%s%s", k->comment, k->text);
    }
}
