/* lower.c -- emitters of products, of ops that move data, and of the update.
 *
 * A product becomes rt_gemm with a row of the program's GEMM table; transposition, column
 * ranges, a bias and adding to a gradient are fields of the row or an offset of a pointer,
 * never a copy.
 */
#include "cg_int.h"

cg_emitter *const cg_emitters[IR_NOPS] = {
#define OP(name, in, in_max, out, out_max, flags, cast, attrs, shape, vjp, lower, doc) \
    [IR_OP_##name] = lower,
#include "../ir/ops.def"
#undef OP
};

/* ---- operands and results ---- */

const char *
cg_refuse(cg *c, const char *why)
{
    if (!c->why)
        c->why = why;
    return NULL;
}

static const char *
pointer(cg *c, const ir_value *v)
{
    if (c->dry)
        return "";
    const ir_value *grad = ef_map_get(&c->gradient, v);
    const char *name = ef_map_get(&c->names, grad ? grad : v);
    EF_ASSERT(name);
    return name;
}

static const char *
typed(cg *c, const ir_value *v, ir_dtype t)
{
    if (v->type->dtype != t)
        return cg_refuse(
            c, ef_printf(c->ctx->arena, "%s is %s, and only %s is implemented", v->name,
                         ir_type_text(c->ctx, v->type), ir_dtypes[t].name));
    return pointer(c, v);
}

const char *
cg_arg(cg *c, const ir_op *op, int i, ir_dtype t)
{
    return typed(c, op->arg[i], t);
}

const char *
cg_res(cg *c, const ir_op *op, int i, ir_dtype t)
{
    return typed(c, op->res[i], t);
}

static const char *
untyped(cg *c, const ir_value *v)
{
    if (!cg_ctype(v->type->dtype))
        return cg_refuse(c, ef_printf(c->ctx->arena, "no elements of type %s yet",
                                      ir_dtypes[v->type->dtype].name));
    return pointer(c, v);
}

const char *
cg_any_arg(cg *c, const ir_op *op, int i)
{
    return untyped(c, op->arg[i]);
}

const char *
cg_any_res(cg *c, const ir_op *op, int i)
{
    return untyped(c, op->res[i]);
}

bool
cg_adds(const ir_op *op, int i)
{
    const ir_attr *at = ir_attr_get(op, IR_ATTR_at);
    return at && i < at->n && at->u.l[i] == PASS_IN_GRADIENT;
}

int64_t
cg_offset(const ir_value *v)
{
    while (v->def && pass_is_view(v->def))
        v = v->def->arg[0];
    const ir_attr *at = v->def ? ir_attr_get(v->def, IR_ATTR_at) : NULL;
    for (int i = 0; at && i < at->n; i++)
        if (v->def->res[i] == v)
            return at->u.l[i];
    return -1;
}

const char *
cg_scratch(cg *c, int64_t bytes)
{
    if (bytes < 0)
        cg_refuse(c, "the library has no implementation for these sizes");
    if (c->dry) {
        c->scratch = bytes > c->scratch ? bytes : c->scratch;
        return "";
    }
    const char *name = ef_map_get(&c->names, c->op);
    return bytes > 0 && name ? name : "NULL";
}

const char *
cg_constant(cg *c, cg_table *t, const char *value)
{
    for (int i = 0; i < t->value.n; i++)
        if (t->value.at[i] == ef_intern(c->ctx, value))
            return t->name.at[i];
    const char *name = ef_printf(c->arena, "%s_%d", t->stem, t->name.n);
    ef_push(c->arena, t->value, ef_intern(c->ctx, value));
    ef_push(c->arena, t->name, name);
    return name;
}

int64_t
cg_last(const ir_value *v)
{
    return v->type->dim[v->type->rank - 1];
}

int64_t
cg_product(const ir_type *t, int from, int to)
{
    int64_t n = 1;
    for (int i = from; i < to; i++)
        n *= t->dim[i];
    return n;
}

int64_t
cg_rows(const ir_value *v)
{
    return cg_product(v->type, 0, v->type->rank - 1);
}

const char *
cg_plus(cg *c, const char *p, int64_t elements)
{
    return elements && p ? ef_printf(c->arena, "%s + %lld", p, (long long)elements) : p;
}

/* ---- products ---- */

static bool
same_gemm(const rt_gemm_desc *a, const rt_gemm_desc *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->ta == b->ta &&
           a->tb == b->tb && a->bias == b->bias && a->add == b->add &&
           a->alpha == b->alpha && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->batch == b->batch && a->sa == b->sa &&
           a->sb == b->sb && a->sc == b->sc && a->scratch == b->scratch;
}

/* Enumerator of d in the table: its sizes, and a number where that is not enough. */
static const char *
gemm_name(cg *c, const rt_gemm_desc *d)
{
    for (int i = 0; i < c->gemm.n; i++)
        if (same_gemm(&c->gemm.at[i], d))
            return c->gemm_name.at[i];
    const char *name = cg_ident(
        c, "gemm_",
        ef_printf(c->arena, "%lldx%lldx%lld%s%s%s%s", (long long)d->m, (long long)d->n,
                  (long long)d->k, d->ta ? "_ta" : "", d->tb ? "_tb" : "",
                  d->bias ? "_bias" : "", d->add ? "_add" : ""));
    ef_push(c->arena, c->gemm, *d);
    ef_push(c->arena, c->gemm_name, name);
    return name;
}

typedef struct product { /* operands of rt_gemm as text */
    const char *c, *a, *b, *bias;
} product;

/* The call as text; NULL when dry. Its scratch space is what the plan gives the op. */
static const char *
gemm_text(cg *c, rt_gemm_desc *d, const product *p)
{
    const ir_attr *given = ir_attr_get(c->op, IR_ATTR_ws);
    d->scratch = given ? given->u.l[1] : 0;
    const char *ws =
        cg_scratch(c, c->dry ? rt_gemm_scratch(d, c->threads) : d->scratch);
    if (c->dry || c->why)
        return NULL;
    return ef_printf(c->arena, "rt_gemm(st, %s, %s, %s, %s, %s, %s);", gemm_name(c, d),
                     p->c, p->a, p->b, p->bias ? p->bias : "NULL", ws);
}

static void
gemm(cg *c, rt_gemm_desc d, product p)
{
    const char *text = gemm_text(c, &d, &p);
    if (text)
        cg_code(c->out, 4, text);
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

void
lw_linear(cg *c, const ir_op *op)
{
    const ir_value *x = op->arg[0], *y = op->res[0];
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    rt_gemm_desc d = plain_gemm(cg_rows(x), cg_last(y), cg_last(x), false, tb);
    d.bias = op->narg > 2;
    gemm(c, d,
         (product){cg_res(c, op, 0, IR_F32), cg_arg(c, op, 0, IR_F32),
                   cg_arg(c, op, 1, IR_F32),
                   op->narg > 2 ? cg_arg(c, op, 2, IR_F32) : NULL});
}

void
lw_linear_dw(cg *c, const ir_op *op)
{
    int64_t rows = cg_rows(op->arg[0]);
    int64_t in = cg_last(op->arg[0]), out = cg_last(op->arg[1]);
    bool tb = ir_attr_int(op, IR_ATTR_tb, 0);
    rt_gemm_desc d = plain_gemm(tb ? out : in, tb ? in : out, rows, true, false);
    d.add = cg_adds(op, 0);
    const char *x = cg_arg(c, op, 0, IR_F32), *dy = cg_arg(c, op, 1, IR_F32);
    gemm(c, d, (product){cg_res(c, op, 0, IR_F32), tb ? dy : x, tb ? x : dy, NULL});
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
    product p = {cg_res(c, op, 0, IR_F32), cg_arg(c, op, 0, IR_F32),
                 cg_arg(c, op, 1, IR_F32), NULL};
    gemm_loops(c, &d, p, rank, dim, stride);
}

/* ---- LoRA: skinny products on ranges of columns ---- */

void
lw_lora_add(cg *c, const ir_op *op)
{
    const char *y = cg_res(c, op, 0, IR_F32), *x = cg_arg(c, op, 0, IR_F32);
    const ir_type *b = op->arg[2]->type;
    ir_columns at = ir_adapted_columns(op, b->dim[0]);
    if (!c->dry && cg_offset(op->res[0]) != cg_offset(op->arg[0]))
        cg_call(c, "rt_copy", "%s, %s, %lld", y, x,
                (long long)ir_type_bytes(op->res[0]->type));
    rt_gemm_desc d = plain_gemm(cg_rows(op->arg[0]), at.width, b->dim[1], false, true);
    d.ldc = cg_last(op->arg[0]);
    d.alpha = (float)ir_attr_num(op, IR_ATTR_by, 1);
    d.add = true;
    if (at.n > 1) { /* all blocks with one t */
        d.batch = at.n;
        d.sb = at.width * b->dim[1];
        d.sc = at.stride;
    }
    gemm(c, d,
         (product){cg_plus(c, y, at.first), cg_arg(c, op, 1, IR_F32),
                   cg_arg(c, op, 2, IR_F32), NULL});
}

void
lw_lora_dt(cg *c, const ir_op *op)
{
    const ir_type *b = op->arg[1]->type;
    ir_columns at = ir_adapted_columns(op, b->dim[0]);
    const char *dy = cg_arg(c, op, 0, IR_F32), *to = cg_res(c, op, 0, IR_F32);
    const char *rows = cg_arg(c, op, 1, IR_F32);
    rt_gemm_desc d = plain_gemm(cg_rows(op->arg[0]), b->dim[1], at.width, false, false);
    d.lda = cg_last(op->arg[0]);
    d.alpha = (float)ir_attr_num(op, IR_ATTR_by, 1);
    for (int64_t i = 0; i < at.n; i++) { /* the sum over blocks */
        d.add = i > 0;
        gemm(c, d,
             (product){to, cg_plus(c, dy, at.first + i * at.stride),
                       cg_plus(c, rows, i * at.width * b->dim[1]), NULL});
    }
}

void
lw_lora_db(cg *c, const ir_op *op)
{
    int64_t r = cg_last(op->arg[1]);
    ir_columns at = ir_adapted_columns(op, ir_attr_int(op, IR_ATTR_len, 0));
    const char *dy = cg_arg(c, op, 0, IR_F32);
    rt_gemm_desc d = plain_gemm(at.width, r, cg_rows(op->arg[0]), true, false);
    d.lda = cg_last(op->arg[0]);
    d.alpha = (float)ir_attr_num(op, IR_ATTR_by, 1);
    d.add = cg_adds(op, 0);
    if (at.n > 1) {
        d.batch = at.n;
        d.sa = at.stride;
        d.sc = at.width * r;
    }
    gemm(c, d,
         (product){cg_res(c, op, 0, IR_F32), cg_plus(c, dy, at.first),
                   cg_arg(c, op, 1, IR_F32), NULL});
}

/* ---- structure ---- */

void
lw_view(cg *c, const ir_op *op) /* plan.h gives both names one address */
{
    cg_any_res(c, op, 0);
}

void
lw_transpose(cg *c, const ir_op *op)
{
    const ir_type *x = op->arg[0]->type;
    const ir_attr *perm = ir_attr_get(op, IR_ATTR_perm);
    cg_call(c, "rt_transpose", "%s, %s, %d, (int64_t[]){%s}, (int[]){%s}, %d",
            cg_any_res(c, op, 0), cg_any_arg(c, op, 0), x->rank,
            cg_ints(c->arena, x->rank, x->dim), cg_ints(c->arena, perm->n, perm->u.l),
            cg_size(x->dtype));
}

static void
move(cg *c, const ir_op *op, int arg, const rt_block_copy *b)
{
    const char *y = cg_any_res(c, op, 0), *x = cg_any_arg(c, op, arg);
    if (c->dry || c->why)
        return;
    const char *value = ef_printf(
        c->arena,
        "{.outer = %lld, .n = %lld, .inner = %lld, .ys = %lld, .ystart = %lld, "
        ".ystep = %lld, .xs = %lld, .xstart = %lld, .xstep = %lld, .size = %d}",
        (long long)b->outer, (long long)b->n, (long long)b->inner, (long long)b->ys,
        (long long)b->ystart, (long long)b->ystep, (long long)b->xs,
        (long long)b->xstart, (long long)b->xstep, b->size);
    cg_call(c, "rt_move", "%s, %s, &%s", y, x, cg_constant(c, &c->move, value));
}

/* Block copy of all of x, which has n indices along the op's axis, into rows of yn. */
static rt_block_copy
along_axis(const ir_op *op, const ir_type *x, int64_t yn)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    int64_t inner = cg_product(x, axis + 1, x->rank);
    return (rt_block_copy){.outer = cg_product(x, 0, axis),
                           .n = x->dim[axis],
                           .inner = inner,
                           .ys = yn * inner,
                           .ystep = 1,
                           .xs = x->dim[axis] * inner,
                           .xstep = 1,
                           .size = cg_size(x->dtype)};
}

void
lw_concat(cg *c, const ir_op *op)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    int64_t start = 0;
    for (int i = 0; i < op->narg; i++) {
        rt_block_copy b = along_axis(op, op->arg[i]->type, op->res[0]->type->dim[axis]);
        b.ystart = start;
        start += b.n;
        if (b.n)
            move(c, op, i, &b);
    }
}

void
lw_slice(cg *c, const ir_op *op)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    rt_block_copy b = along_axis(op, op->arg[0]->type, op->res[0]->type->dim[axis]);
    b.n = op->res[0]->type->dim[axis];
    b.xstart = ir_attr_int(op, IR_ATTR_start, 0);
    b.xstep = ir_attr_int(op, IR_ATTR_step, 1);
    move(c, op, 0, &b);
}

void
lw_unslice(cg *c, const ir_op *op)
{
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    rt_block_copy b = along_axis(op, op->arg[0]->type, op->res[0]->type->dim[axis]);
    b.ystart = ir_attr_int(op, IR_ATTR_start, 0);
    b.ystep = ir_attr_int(op, IR_ATTR_step, 1);
    cg_call(c, "rt_zero", "%s, %lld", cg_any_res(c, op, 0),
            (long long)ir_type_bytes(op->res[0]->type));
    move(c, op, 0, &b);
}

void
lw_gather(cg *c, const ir_op *op)
{
    const ir_type *x = op->arg[0]->type;
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    cg_call(c, "rt_gather", "%s, %s, %s, %lld, %lld, %lld, %lld, %d",
            cg_any_res(c, op, 0), cg_any_arg(c, op, 0), cg_arg(c, op, 1, IR_I64),
            (long long)cg_product(x, 0, axis), (long long)x->dim[axis],
            (long long)cg_product(x, axis + 1, x->rank),
            (long long)ir_type_count(op->arg[1]->type), cg_size(x->dtype));
}

void
lw_gather_grad(cg *c, const ir_op *op)
{
    const ir_type *x = op->res[0]->type;
    int axis = (int)ir_attr_int(op, IR_ATTR_axis, 0);
    cg_call(c, "rt_gather_grad", "%s, %s, %s, %lld, %lld, %lld, %lld, RT_F32",
            cg_res(c, op, 0, IR_F32), cg_arg(c, op, 0, IR_F32),
            cg_arg(c, op, 1, IR_I64), (long long)cg_product(x, 0, axis),
            (long long)x->dim[axis], (long long)cg_product(x, axis + 1, x->rank),
            (long long)ir_type_count(op->arg[1]->type));
}

/* ---- gradients and the update ---- */

void
lw_accum(cg *c, const ir_op *op)
{
    const char *grad = cg_arg(c, op, 0, IR_F32), *value = cg_arg(c, op, 1, IR_F32);
    if (!ef_map_has(&c->gradient, op->arg[1])) /* else it is there already */
        cg_call(c, "rt_add_to", "%s, %s, %lld", grad, value,
                (long long)ir_type_count(op->arg[0]->type));
}

void
lw_norm2(cg *c, const ir_op *op)
{
    cg_call(c, "rt_norm2", "%s, run", cg_res(c, op, 0, IR_F32));
}

void
lw_clip_scale(cg *c, const ir_op *op)
{
    cg_call(c, "rt_clip_scale", "%s, %s, run", cg_res(c, op, 0, IR_F32),
            cg_arg(c, op, 0, IR_F32));
}

void
lw_optim(cg *c, const ir_op *op) /* one call updates all of the unit, at its first op */
{
    int unit = op->arg[0]->param->unit;
    const char *coef = cg_arg(c, op, 4, IR_F32);
    for (const ir_op *o = op->prev; o; o = o->prev)
        if (o->code == IR_OP_optim && o->arg[0]->param->unit == unit)
            return;
    cg_call(c, "rt_optim", "run, %d, %s", unit, coef);
}

void
lw_ret(cg *c, const ir_op *op) /* the runtime knows where results lie: see rt_program */
{
    (void)c;
    (void)op;
}
