/* kernels_cuda.c -- elementwise kernels in CUDA, and the host functions that launch them.
 *
 *     static __global__ void k4_(uint32_t n, float *y0, const float *x0, const float *x1)
 *     {
 *         const uint32_t at = rt_thread<uint32_t>();
 *         if (at >= n)
 *             return;
 *         const uint32_t e = at * 4, i = e % 32;
 *         const rt_pack<float, 4> p0 = rt_load<4>(x0 + e), p1 = rt_load<4>(x1 + i);
 *         rt_pack<float, 4> q0;
 *         for (int j = 0; j < 4; j++) { .. q0.at[j] = t1; }
 *         rt_store(y0 + e, q0);
 *     }
 *
 * A thread computes a pack of neighbouring elements, 16 bytes of the smallest floats, if it
 * does not reach over the end of the innermost dimension; then all operands' packs are
 * aligned, since buffers are. An operand that is broadcast along it is one element for all
 * of a pack. All reads of a thread stand before its first write, so results may lie over
 * operands. Indices have 32 bits where the largest fits.
 */
#include "kernels_int.h"

#include <string.h>

/* Bytes of a pack of floats; more operands than FEW keep packs to WIDE_MANY elements, for
 * they are all in registers. */
enum { PACK = 16, FEW = 6, PACK_MANY = 4 };

typedef struct text { /* a kernel that is being written */
    const cg_loop *l;
    int pack;          /* elements of a thread */
    const char *index; /* type of indices */
    ef_buf b;
} text;

bool
cg_is_wide(const cg_loop *l)
{
    return l->total > INT32_MAX;
}

/* Type of elements in device memory. */
static const char *
device_type(const ir_value *v)
{
    return v->type->dtype == IR_BF16  ? "__nv_bfloat16"
           : v->type->dtype == IR_F16 ? "__half"
                                      : cg_ctype(v->type->dtype);
}

/* ---- packs ---- */

/* Elements that lie together whatever size a named dimension has. */
static int64_t
innermost(const cg_loop *l)
{
    int64_t n = l->dim[l->rank - 1];
    return l->rank == 1 && l->named ? n / l->named : n;
}

static int
pack_of(const cg_loop *l)
{
    int64_t n = innermost(l);
    int least = 4; /* bytes of the smallest floats */
    for (int i = 0; i < l->nin + l->nout; i++)
        if (cg_is_low(i < l->nin ? l->in[i] : l->out[i - l->nin]))
            least = 2;
    int pack = PACK / least;
    if (l->nin + l->nout > FEW && pack > PACK_MANY)
        pack = PACK_MANY;
    while (n % pack)
        pack /= 2;
    return pack;
}

/* Does operand k lie as the results do? */
static bool
lies_flat(const cg_loop *l, int k)
{
    for (int d = 0; d < l->rank; d++)
        if (l->stride[k][d] != l->stride[l->nin][d])
            return false;
    return true;
}

/* Is operand k one element for a whole pack? */
static bool
is_single(const text *t, int k)
{
    return t->pack == 1 || !t->l->stride[k][t->l->rank - 1];
}

/* ---- the kernel ---- */

static void
line(text *t, int indent, const char *code)
{
    cg_code(&t->b, indent, code);
}

/* Where operand k's elements are. */
static const char *
place(const text *t, int k)
{
    const cg_loop *l = t->l;
    ef_buf b = {.arena = t->b.arena};
    if (lies_flat(l, k))
        return "e";
    for (int d = 0; d < l->rank; d++) {
        int64_t s = l->stride[k][d];
        if (!s)
            continue;
        ef_putf(&b, b.n ? " + i%d" : "i%d", d);
        if (s != 1)
            ef_putf(&b, " * %lld", (long long)s);
    }
    return b.n ? b.s : "0";
}

/* Does an operand need the index of dimension d? */
static bool
is_needed(const cg_loop *l, int d)
{
    for (int k = 0; k < l->nin; k++)
        if (!lies_flat(l, k) && l->stride[k][d])
            return true;
    return false;
}

static void
write_indices(text *t)
{
    const cg_loop *l = t->l;
    ef_arena *a = t->b.arena;
    int64_t inner = 1;
    line(t, 4, ef_printf(a, "const %s at = rt_thread<%s>();", t->index, t->index));
    line(t, 4, "if (at >= n)");
    line(t, 8, "return;");
    line(t, 4,
         t->pack > 1 ? ef_printf(a, "const %s e = at * %d;", t->index, t->pack)
                     : ef_printf(a, "const %s e = at;", t->index));
    for (int d = l->rank - 1; d >= 0; d--) {
        ef_buf x = {.arena = a};
        ef_putf(&x, "const %s i%d = e", t->index, d);
        if (inner > 1)
            ef_putf(&x, " / %lld", (long long)inner);
        if (d)
            ef_putf(&x, " %% %lld", (long long)l->dim[d]);
        ef_puts(&x, ";");
        if (is_needed(l, d))
            line(t, 4, x.s);
        inner *= l->dim[d];
    }
}

static void
write_reads(text *t)
{
    const cg_loop *l = t->l;
    ef_arena *a = t->b.arena;
    for (int i = 0; i < l->nin; i++) {
        const char *at = place(t, i), *type = device_type(l->in[i]);
        bool low = cg_is_low(l->in[i]);
        line(t, 4,
             !is_single(t, i)
                 ? ef_printf(a, "const rt_pack<%s, %d> p%d = rt_load<%d>(x%d + %s);",
                             type, t->pack, i, t->pack, i,
                             strchr(at, ' ') ? ef_printf(a, "(%s)", at) : at)
                 : ef_printf(a,
                             low ? "const %s a%d = rtc_float(x%d[%s]);"
                                 : "const %s a%d = x%d[%s];",
                             cg_register_type(l->in[i]->type->dtype), i, i, at));
    }
}

/* The ops, of element j of packs. */
static void
write_ops(text *t, int indent)
{
    const cg_loop *l = t->l;
    ef_arena *a = t->b.arena;
    for (int i = 0; i < l->nin; i++)
        if (!is_single(t, i))
            line(t, indent,
                 ef_printf(a,
                           cg_is_low(l->in[i]) ? "const %s a%d = rtc_float(p%d.at[j]);"
                                               : "const %s a%d = p%d.at[j];",
                           cg_register_type(l->in[i]->type->dtype), i, i));
    for (int i = 0; i < l->nop; i++)
        if (l->op[i]->res[0]->nuse)
            line(t, indent,
                 ef_printf(a, "const %s t%d = %s;",
                           cg_register_type(l->op[i]->res[0]->type->dtype), i,
                           cg_expression(l, l->op[i])));
    for (int i = 0; i < l->nout; i++) {
        const char *to = ef_printf(a, t->pack > 1 ? "q%d.at[j]" : "y%d[e]", i);
        int from = cg_op_index(l, l->out[i]);
        line(t, indent,
             cg_is_low(l->out[i]) ? ef_printf(a, "%s = rtc_as<%s>(t%d);", to,
                                              device_type(l->out[i]), from)
                                  : ef_printf(a, "%s = t%d;", to, from));
    }
}

static void
write_body(text *t)
{
    const cg_loop *l = t->l;
    ef_arena *a = t->b.arena;
    write_indices(t);
    write_reads(t);
    if (t->pack == 1) {
        write_ops(t, 4);
        return;
    }
    for (int i = 0; i < l->nout; i++)
        line(t, 4,
             ef_printf(a, "rt_pack<%s, %d> q%d;", device_type(l->out[i]), t->pack, i));
    ef_putf(&t->b, "#pragma unroll\n    for (int j = 0; j < %d; j++) {\n", t->pack);
    write_ops(t, 8);
    ef_puts(&t->b, "    }\n");
    for (int i = 0; i < l->nout; i++)
        line(t, 4, ef_printf(a, "rt_store(y%d + e, q%d);", i, i));
}

/* ---- its launch ---- */

/* Pointers, as parameters of the kernel, or cast from those of the host function. */
static const char *
pointers(const text *t, bool cast)
{
    const cg_loop *l = t->l;
    ef_buf b = {.arena = t->b.arena};
    for (int i = 0; i < l->nout + l->nin; i++) {
        bool out = i < l->nout;
        int k = out ? i : i - l->nout;
        const ir_value *v = out ? l->out[k] : l->in[k];
        const char *type =
            ef_printf(b.arena, "%s%s *", out ? "" : "const ", device_type(v));
        ef_putf(&b, ", %s%c%d",
                !cast          ? type
                : cg_is_low(v) ? ef_printf(b.arena, "(%s)", type)
                               : "",
                out ? 'y' : 'x', k);
    }
    return b.s;
}

static void
write_launch(text *t, int number, const char *parameters)
{
    const cg_loop *l = t->l;
    ef_arena *a = t->b.arena;
    int64_t packs = l->total / t->pack, row = l->named ? packs / l->named : 0;
    if (packs / CG_CUDA_THREADS >= INT32_MAX)
        cg_refuse(l->c, "it has more elements than a launch has threads");
    ef_puts(&t->b, "\nvoid\n");
    line(t, 0, ef_printf(a, "k%d(%s)", number, parameters));
    ef_putf(&t->b, "{\n    const %s n = ", t->index);
    if (l->named)
        ef_putf(&t->b, "(%s)(rows * %lld);\n", t->index, (long long)row);
    else
        ef_putf(&t->b, "%lld;\n", (long long)packs);
    line(t, 4,
         ef_printf(
             a, "RT_LAUNCH(k%d_, rt_blocks(n), RT_BLOCK, 0, rt_cuda_stream(st), n%s);",
             number, pointers(t, true)));
    ef_puts(&t->b, "}\n");
}

const char *
cg_cuda_kernel(const cg_loop *l, int number, const char *parameters)
{
    text t = {.l = l,
              .pack = pack_of(l),
              .index = cg_is_wide(l) ? "int64_t" : "uint32_t",
              .b = {.arena = l->c->arena}};
    ef_puts(&t.b, "static __global__ void\n");
    line(&t, 0,
         ef_printf(t.b.arena, "k%d_(%s n%s)", number, t.index, pointers(&t, false)));
    ef_puts(&t.b, "{\n");
    write_body(&t);
    ef_puts(&t.b, "}\n");
    write_launch(&t, number, parameters);
    return t.b.s;
}
