/* lower_gemm.c -- emitters of products.
 *
 * A product becomes rt_gemm with a row of the program's GEMM table; transposition, column
 * ranges, a bias and adding to a gradient are fields of the row or an offset of a pointer,
 * never a copy.
 */
#include "cg_int.h"

#include <string.h>

/* But for scratch space. */
static bool
same_gemm(const rt_gemm_desc *a, const rt_gemm_desc *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->ta == b->ta &&
           a->tb == b->tb && a->bias == b->bias && a->add == b->add &&
           a->alpha == b->alpha && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->batch == b->batch && a->sa == b->sa &&
           a->sb == b->sb && a->sc == b->sc && a->a == b->a && a->b == b->b &&
           a->c == b->c && a->vary_m == b->vary_m && a->vary_k == b->vary_k &&
           a->epilogue == b->epilogue && a->add_sum == b->add_sum;
}

/* What the name of d says of its types. */
static const char *
type_suffix(const rt_gemm_desc *d)
{
    return d->a == RT_F32   ? ""
           : d->a == RT_F16 ? d->c == RT_F32 ? "_f16_f32" : "_f16"
           : d->c == RT_F32 ? "_bf16_f32"
                            : "_bf16";
}

/* Enumerator of d in the table: its sizes, and a number where that is not enough. Where the plan
 * gives calls of it different scratch space, for what else their ops do, each has the least. */
static const char *
gemm_name(cg *c, const rt_gemm_desc *d)
{
    for (int i = 0; i < c->gemm.n; i++) {
        rt_gemm_desc *known = &c->gemm.at[i];
        if (!same_gemm(known, d))
            continue;
        known->scratch = known->scratch < d->scratch ? known->scratch : d->scratch;
        return c->gemm_name.at[i];
    }
    static const char *const epilogue[] = {[RT_NO_EPILOGUE] = "",
                                           [RT_GELU] = "_gelu",
                                           [RT_DGELU] = "_dgelu",
                                           [RT_SUM_A] = "_sums",
                                           [RT_SUM_B] = "_sums"};
    const char *name = cg_ident(
        c, "gemm_",
        ef_printf(c->arena, "%lldx%lldx%lld%s%s%s%s%s%s", (long long)d->m,
                  (long long)d->n, (long long)d->k, d->ta ? "_ta" : "",
                  d->tb ? "_tb" : "", d->bias ? "_bias" : "", epilogue[d->epilogue],
                  d->add ? "_add" : "", type_suffix(d)));
    ef_push(c->arena, c->gemm, *d);
    ef_push(c->arena, c->gemm_name, name);
    return name;
}

typedef struct product { /* operands of rt_gemm as text */
    const char *c, *a, *b, *bias;
    const char *from; /* of rt_gemm_from(), or NULL */
    const char *with; /* of rt_gemm_with() */
} product;

/* The call as text; NULL when dry. Its scratch space is what the plan gives the op. */
static const char *
gemm_text(cg *c, rt_gemm_desc *d, const product *p)
{
    const ir_attr *given = ir_attr_get(c->op, IR_ATTR_ws);
    d->scratch = given ? given->u.l[1] : 0;
    const char *ws = cg_scratch(c, c->dry ? c->need->gemm(d, c->threads) : d->scratch);
    if (c->dry || c->why)
        return NULL;
    const char *end = p->from ? "_from" : d->epilogue ? "_with" : "";
    const char *more = p->from ? p->from : d->epilogue ? p->with : NULL;
    return ef_printf(c->arena, "rt_gemm%s(st, %s, %s%s%s, %s, %s, %s, %s);", end,
                     gemm_name(c, d), p->c, more ? ", " : "", more ? more : "", p->a,
                     p->b, p->bias ? p->bias : "NULL", ws);
}

static void
gemm(cg *c, rt_gemm_desc d, product p)
{
    const char *text = gemm_text(c, &d, &p);
    if (text)
        cg_code(c->out, 4, text);
}

static bool
is_float(const ir_value *v)
{
    return ir_dtypes[v->type->dtype].is_float;
}

/* Notes the types of operands a and b and of result y. */
static void
set_types(cg *c, rt_gemm_desc *d, const ir_value *a, const ir_value *b,
          const ir_value *y)
{
    if (!is_float(a) || !is_float(b) || !is_float(y))
        cg_refuse(c, "products are of floats only");
    d->a = cg_rt_dtype(a->type->dtype);
    d->b = cg_rt_dtype(b->type->dtype);
    d->c = cg_rt_dtype(y->type->dtype);
}

/* The size that the rows of x [rows, ..] are, which is m or k of a product. */
static rt_sym
rows_vary(cg *c, const ir_value *x)
{
    const ir_type *t = x->type;
    if (!cg_varies(t))
        return RT_FIXED;
    if (cg_product(t, 1, t->rank - 1) != 1)
        cg_refuse(c, "the rows of a product are a multiple of a named dimension");
    return t->sym[0] == IR_ROWS ? RT_ROWS : RT_SUP;
}

/* Dense C = op(A) op(B). */
static rt_gemm_desc
plain_gemm(int64_t m, int64_t n, int64_t k, bool ta, bool tb)
{
    return (rt_gemm_desc){.m = m,
                          .n = n,
                          .k = k,
                          .ta = ta,
                          .tb = tb,
                          .alpha = 1,
                          .lda = ta ? m : k,
                          .ldb = tb ? k : n,
                          .ldc = n,
                          .batch = 1};
}

/* The product of x and w, operands `at` and the next, and its operands but for the bias. */
static rt_gemm_desc
linear(cg *c, const ir_op *op, int at, product *p)
{
    const ir_value *x = op->arg[at], *y = op->res[0];
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    rt_gemm_desc d = plain_gemm(cg_rows(x), cg_last(y), cg_last(x), false, tb);
    d.alpha = (float)ir_attr_num(op, IR_ATTR_alpha, 1);
    d.vary_m = rows_vary(c, x);
    set_types(c, &d, x, op->arg[at + 1], y);
    *p = (product){.c = cg_float_res(c, op, 0),
                   .a = cg_float_arg(c, op, at),
                   .b = cg_float_arg(c, op, at + 1)};
    return d;
}

/* Operand i, if it is there, is the bias. */
static void
set_bias(cg *c, const ir_op *op, int i, rt_gemm_desc *d, product *p)
{
    d->bias = op->narg > i;
    if (d->bias)
        p->bias = cg_arg(c, op, i, IR_F32);
}

void
lw_linear(cg *c, const ir_op *op)
{
    product p;
    rt_gemm_desc d = linear(c, op, 0, &p);
    set_bias(c, op, 2, &d, &p);
    gemm(c, d, p);
}

void
lw_linear_add(cg *c, const ir_op *op)
{
    product p;
    rt_gemm_desc d = linear(c, op, 1, &p);
    set_bias(c, op, 3, &d, &p);
    d.add = true;
    p.from = cg_float_arg(c, op, 0);
    gemm(c, d, p);
}

void
lw_linear_gelu(cg *c, const ir_op *op)
{
    product p;
    rt_gemm_desc d = linear(c, op, 0, &p);
    set_bias(c, op, 2, &d, &p);
    d.epilogue = RT_GELU;
    p.with = op->nres > 1 ? cg_float_res(c, op, 1) : "NULL";
    gemm(c, d, p);
}

void
lw_linear_dgelu(cg *c, const ir_op *op)
{
    product p;
    rt_gemm_desc d = linear(c, op, 0, &p);
    d.epilogue = RT_DGELU;
    p.with = cg_float_arg(c, op, 2);
    gemm(c, d, p);
}

/* x^T dy, or its transpose. */
static rt_gemm_desc
weight_gradient(cg *c, const ir_op *op, product *p)
{
    int64_t rows = cg_rows(op->arg[0]);
    int64_t in = cg_last(op->arg[0]), out = cg_last(op->arg[1]);
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    rt_gemm_desc d = plain_gemm(tb ? out : in, tb ? in : out, rows, true, false);
    d.add = cg_adds(op, 0);
    d.vary_k = rows_vary(c, op->arg[0]);
    set_types(c, &d, op->arg[tb ? 1 : 0], op->arg[tb ? 0 : 1], op->res[0]);
    *p = (product){.c = cg_float_res(c, op, 0),
                   .a = cg_float_arg(c, op, tb ? 1 : 0),
                   .b = cg_float_arg(c, op, tb ? 0 : 1)};
    return d;
}

void
lw_linear_dw(cg *c, const ir_op *op)
{
    product p;
    gemm(c, weight_gradient(c, op, &p), p);
}

void
lw_linear_dwb(cg *c, const ir_op *op)
{
    product p;
    rt_gemm_desc d = weight_gradient(c, op, &p);
    d.epilogue = ir_attr_int(op, IR_ATTR_tb, 0) ? RT_SUM_A : RT_SUM_B;
    d.add_sum = cg_adds(op, 1);
    p.with = cg_res(c, op, 1, IR_F32);
    gemm(c, d, p);
}

/* Loops over leading dimensions that one strided batch can't express. */
static void
gemm_loops(cg *c, rt_gemm_desc *d, product p, int loops, const int64_t *dim,
           int64_t (*stride)[IR_MAX_RANK])
{
    const char **operand[] = {&p.c, &p.a, &p.b};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < loops; i++)
            if (stride[k][i])
                *operand[k] = ef_printf(c->arena, "%s + i%d * %lld", *operand[k], i,
                                        (long long)stride[k][i]);
    const char *text = gemm_text(c, d, &p);
    if (!text)
        return;
    for (int i = 0; i < loops; i++)
        ef_putf(c->out, "%*sfor (int64_t i%d = 0; i%d < %lld; i%d++)\n", 4 + 4 * i, "",
                i, i, (long long)dim[i], i);
    cg_code(c->out, 4 + 4 * loops, text);
}

/* Named dimensions of a matmul: rows of A, or, transposed, what the sum goes over. */
static void
matmul_vary(cg *c, const ir_op *op, rt_gemm_desc *d)
{
    const ir_value *a = op->arg[0], *b = op->arg[1];
    bool ta = ir_attr_int(op, IR_ATTR_ta, 0), tb = ir_attr_int(op, IR_ATTR_tb, 0);
    if (!cg_varies(a->type) && !cg_varies(b->type))
        return;
    bool k = ta && cg_varies(b->type);
    if (a->type->rank != 2 || b->type->rank != 2 || ta != k ||
        cg_varies(b->type) != (k && !tb))
        cg_refuse(c, "a named dimension is neither the rows of the product nor what it "
                     "sums over");
    *(k ? &d->vary_k : &d->vary_m) = rows_vary(c, a);
}

void
lw_matmul(cg *c, const ir_op *op)
{
    const ir_value *y = op->res[0], *v[3] = {y, op->arg[0], op->arg[1]};
    bool ta = ir_attr_int(op, IR_ATTR_ta, 0), tb = ir_attr_int(op, IR_ATTR_tb, 0);
    int rank = y->type->rank - 2;
    int64_t dim[IR_MAX_RANK], stride[3][IR_MAX_RANK];
    int64_t m = y->type->dim[rank], n = cg_last(y);
    rt_gemm_desc d =
        plain_gemm(m, n, ta ? cg_rows(op->arg[0]) : cg_last(op->arg[0]), ta, tb);
    if (ta)
        d.k = op->arg[0]->type->dim[op->arg[0]->type->rank - 2];
    for (int i = 0; i < rank; i++)
        dim[i] = y->type->dim[i];
    for (int k = 0; k < 3; k++) {
        ir_type lead = *v[k]->type;
        int64_t matrix = cg_product(&lead, lead.rank - 2, lead.rank);
        lead.rank = (uint8_t)(lead.rank - 2);
        ir_strides(&lead, rank, stride[k]);
        for (int i = 0; i < rank; i++)
            stride[k][i] *= matrix;
    }
    rank = ir_collapse(rank, dim, 3, stride);
    if (rank && !ta && !stride[2][rank - 1] && stride[1][rank - 1] == d.m * d.k) {
        rank--; /* one B for all: more rows of A */
        d.m *= dim[rank];
    }
    if (rank) {
        rank--;
        d.batch = dim[rank];
        d.sc = stride[0][rank];
        d.sa = stride[1][rank];
        d.sb = stride[2][rank];
    }
    matmul_vary(c, op, &d);
    set_types(c, &d, op->arg[0], op->arg[1], y);
    product p = {.c = cg_float_res(c, op, 0),
                 .a = cg_float_arg(c, op, 0),
                 .b = cg_float_arg(c, op, 1)};
    gemm_loops(c, &d, p, rank, dim, stride);
}

/* ---- LoRA: skinny products on ranges of columns ---- */

void
lw_lora_add(cg *c, const ir_op *op)
{
    const char *y = cg_float_res(c, op, 0), *x = cg_float_arg(c, op, 0);
    const ir_type *b = op->arg[2]->type;
    ir_columns at = ir_adapted_columns(op, b->dim[0]);
    if (!c->dry && cg_offset(op->res[0]) != cg_offset(op->arg[0]))
        cg_call(c, "rt_copy", "%s, %s, %s", y, x, cg_bytes(c, op->res[0]));
    rt_gemm_desc d = plain_gemm(cg_rows(op->arg[0]), at.width, b->dim[1], false, true);
    d.ldc = cg_last(op->arg[0]);
    d.alpha = (float)ir_attr_num(op, IR_ATTR_by, 1);
    d.add = true;
    d.vary_m = rows_vary(c, op->arg[0]);
    set_types(c, &d, op->arg[1], op->arg[2], op->res[0]);
    if (at.n > 1) { /* all blocks with one t */
        d.batch = at.n;
        d.sb = at.width * b->dim[1];
        d.sc = at.stride;
    }
    gemm(c, d,
         (product){.c = cg_plus(c, y, at.first),
                   .a = cg_float_arg(c, op, 1),
                   .b = cg_float_arg(c, op, 2)});
}

void
lw_lora_dt(cg *c, const ir_op *op)
{
    const ir_type *b = op->arg[1]->type;
    ir_columns at = ir_adapted_columns(op, b->dim[0]);
    const char *dy = cg_float_arg(c, op, 0), *to = cg_float_res(c, op, 0);
    const char *rows = cg_float_arg(c, op, 1);
    rt_gemm_desc d = plain_gemm(cg_rows(op->arg[0]), b->dim[1], at.width, false, false);
    d.lda = cg_last(op->arg[0]);
    d.alpha = (float)ir_attr_num(op, IR_ATTR_by, 1);
    d.vary_m = rows_vary(c, op->arg[0]);
    set_types(c, &d, op->arg[0], op->arg[1], op->res[0]);
    for (int64_t i = 0; i < at.n; i++) { /* the sum over blocks */
        d.add = i > 0;
        gemm(c, d,
             (product){.c = to,
                       .a = cg_plus(c, dy, at.first + i * at.stride),
                       .b = cg_plus(c, rows, i * at.width * b->dim[1])});
    }
}

void
lw_lora_db(cg *c, const ir_op *op)
{
    int64_t r = cg_last(op->arg[1]);
    ir_columns at = ir_adapted_columns(op, ir_attr_int(op, IR_ATTR_len, 0));
    const char *dy = cg_float_arg(c, op, 0);
    rt_gemm_desc d = plain_gemm(at.width, r, cg_rows(op->arg[0]), true, false);
    d.lda = cg_last(op->arg[0]);
    d.alpha = (float)ir_attr_num(op, IR_ATTR_by, 1);
    d.add = cg_adds(op, 0);
    d.vary_k = rows_vary(c, op->arg[0]);
    set_types(c, &d, op->arg[0], op->arg[1], op->res[0]);
    if (at.n > 1) {
        d.batch = at.n;
        d.sa = at.stride;
        d.sc = at.width * r;
    }
    gemm(c, d,
         (product){.c = cg_float_res(c, op, 0),
                   .a = cg_plus(c, dy, at.first),
                   .b = cg_float_arg(c, op, 1)});
}
