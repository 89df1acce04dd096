/* interp_ops.c -- the interpreter's structural ops and matrix products. */
#include "interp_int.h"

#include <string.h>

/* ---- matrix product ---- */

/* x [rows,cols], rows ld apart, as its dense transpose [cols,rows]. */
static double *
transposed(const double *x, int64_t rows, int64_t cols, int64_t ld, ef_arena *scratch)
{
    double *y = EF_NEWN(scratch, double, rows *cols + 1);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            y[j * rows + i] = x[i * ld + j];
    return y;
}

/* One row of c: the rows of b, four at a time, times the elements of a row of a. */
static void
mm_row(double *restrict c, const double *a, const double *b, int64_t ldb,
       const ir_mm *g)
{
    int64_t k = 0;
    for (; k + 4 <= g->k; k += 4) {
        const double *b0 = b + k * ldb, *b1 = b0 + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb;
        double a0 = g->alpha * a[k], a1 = g->alpha * a[k + 1];
        double a2 = g->alpha * a[k + 2], a3 = g->alpha * a[k + 3];
        for (int64_t j = 0; j < g->n; j++)
            c[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
    }
    for (; k < g->k; k++) {
        double a0 = g->alpha * a[k];
        for (int64_t j = 0; j < g->n; j++)
            c[j] += a0 * b[k * ldb + j];
    }
}

void
ir_mm_run(const ir_mm *g, double *c, const double *a, const double *b,
          ef_arena *scratch)
{
    int64_t lda = g->lda, ldb = g->ldb;
    if (g->ta) {
        a = transposed(a, g->k, g->m, lda, scratch);
        lda = g->k;
    }
    if (g->tb) {
        b = transposed(b, g->n, g->k, ldb, scratch);
        ldb = g->n;
    }
    for (int64_t i = 0; i < g->m; i++)
        mm_row(c + i * g->ldc, a + i * lda, b, ldb, g);
}

bool
ir_ev_matmul(ir_ev *e)
{
    const ir_type *ta = e->arg[0]->type, *tb = e->arg[1]->type, *tc = e->res[0]->type;
    int lead = tc->rank - 2;
    ir_mm g = {.ta = ir_attr_int(e->op, IR_ATTR_ta, 0) != 0,
               .tb = ir_attr_int(e->op, IR_ATTR_tb, 0) != 0,
               .alpha = 1};
    g.m = tc->dim[lead];
    g.n = tc->dim[lead + 1];
    g.k = ta->dim[ta->rank - (g.ta ? 2 : 1)];
    g.lda = ta->dim[ta->rank - 1];
    g.ldb = tb->dim[tb->rank - 1];
    g.ldc = g.n;
    int64_t sa[IR_MAX_RANK], sb[IR_MAX_RANK], batch = 1;
    ir_strides(ta, tc->rank, sa);
    ir_strides(tb, tc->rank, sb);
    for (int d = 0; d < lead; d++)
        batch *= tc->dim[d];
    ir_clear(e->res[0]);
    for (int64_t i = 0; i < batch; i++) {
        int64_t rest = i, a = 0, b = 0;
        for (int d = lead - 1; d >= 0; d--) {
            a += rest % tc->dim[d] * sa[d];
            b += rest % tc->dim[d] * sb[d];
            rest /= tc->dim[d];
        }
        ir_mm_run(&g, e->res[0]->data + i * g.m * g.n, e->arg[0]->data + a,
                  e->arg[1]->data + b, e->scratch);
    }
    return true;
}

/* Operand i; NULL: there is none. */
static const ir_tensor *
maybe_arg(const ir_ev *e, int i)
{
    return i < e->op->narg ? e->arg[i] : NULL;
}

/* res[0] += x w + bias, x and w operands `at` and the next. bias: or NULL. */
static void
add_linear(ir_ev *e, int at, const ir_tensor *bias)
{
    const ir_tensor *x = e->arg[at], *w = e->arg[at + 1];
    int64_t n = ir_cols(e->res[0]);
    ir_mm g = {.m = ir_rows(x),
               .n = n,
               .k = ir_cols(x),
               .alpha = ir_attr_num(e->op, IR_ATTR_alpha, 1),
               .lda = ir_cols(x),
               .tb = ir_attr_int(e->op, IR_ATTR_tb, 0) != 0,
               .ldb = ir_cols(w),
               .ldc = n};
    for (int64_t i = 0; bias && i < g.m * n; i++)
        e->res[0]->data[i] += bias->data[i % n];
    ir_mm_run(&g, e->res[0]->data, x->data, w->data, e->scratch);
}

bool
ir_ev_linear(ir_ev *e)
{
    ir_clear(e->res[0]);
    add_linear(e, 0, maybe_arg(e, 2));
    return true;
}

bool
ir_ev_linear_add(ir_ev *e)
{
    memcpy(e->res[0]->data, e->arg[0]->data,
           (size_t)ir_count(e->arg[0]) * sizeof(double));
    add_linear(e, 1, maybe_arg(e, 3));
    return true;
}

bool
ir_ev_linear_dw(ir_ev *e)
{
    const ir_tensor *x = e->arg[0], *dy = e->arg[1];
    if (ir_attr_int(e->op, IR_ATTR_tb, 0)) {
        x = e->arg[1];
        dy = e->arg[0];
    }
    ir_mm g = {.m = ir_cols(x),
               .n = ir_cols(dy),
               .k = ir_rows(x),
               .ta = true,
               .alpha = 1,
               .lda = ir_cols(x),
               .ldb = ir_cols(dy),
               .ldc = ir_cols(dy)};
    ir_clear(e->res[0]);
    ir_mm_run(&g, e->res[0]->data, x->data, dy->data, e->scratch);
    return true;
}

bool
ir_ev_linear_gelu(ir_ev *e)
{
    ir_tensor *y = e->res[0];
    ir_ev_linear(e);
    if (e->op->nres > 1)
        memcpy(e->res[1]->data, y->data, (size_t)ir_count(y) * sizeof(double));
    ir_ew_gelu_tanh(ir_count(y), y->data);
    return true;
}

bool
ir_ev_linear_dgelu(ir_ev *e)
{
    ir_tensor *d = e->res[0];
    ir_clear(d);
    add_linear(e, 0, NULL);
    ir_ew_gelu_tanh_d(ir_count(d), d->data, e->arg[2]->data);
    return true;
}

bool
ir_ev_linear_dwb(ir_ev *e)
{
    const ir_tensor *dy = e->arg[1];
    int64_t n = ir_cols(dy);
    ir_ev_linear_dw(e);
    ir_clear(e->res[1]);
    for (int64_t i = 0; i < ir_count(dy); i++)
        e->res[1]->data[i % n] += dy->data[i];
    return true;
}

/* ---- low-rank adapters ---- */

bool
ir_ev_lora_add(ir_ev *e)
{
    const ir_tensor *y = e->arg[0], *t = e->arg[1], *b = e->arg[2];
    ir_columns c = ir_adapted_columns(e->op, ir_rows(b));
    ir_mm g = {.m = ir_rows(y),
               .n = c.width,
               .k = ir_cols(t),
               .tb = true,
               .alpha = ir_attr_num(e->op, IR_ATTR_by, 1),
               .lda = ir_cols(t),
               .ldb = ir_cols(b),
               .ldc = ir_cols(y)};
    memcpy(e->res[0]->data, y->data, (size_t)ir_count(y) * sizeof(double));
    for (int64_t i = 0; i < c.n; i++)
        ir_mm_run(&g, e->res[0]->data + c.first + i * c.stride, t->data,
                  b->data + i * c.width * ir_cols(b), e->scratch);
    return true;
}

bool
ir_ev_lora_dt(ir_ev *e)
{
    const ir_tensor *dy = e->arg[0], *b = e->arg[1];
    ir_columns c = ir_adapted_columns(e->op, ir_rows(b));
    ir_mm g = {.m = ir_rows(dy),
               .n = ir_cols(b),
               .k = c.width,
               .alpha = ir_attr_num(e->op, IR_ATTR_by, 1),
               .lda = ir_cols(dy),
               .ldb = ir_cols(b),
               .ldc = ir_cols(b)};
    ir_clear(e->res[0]);
    for (int64_t i = 0; i < c.n; i++)
        ir_mm_run(&g, e->res[0]->data, dy->data + c.first + i * c.stride,
                  b->data + i * c.width * ir_cols(b), e->scratch);
    return true;
}

bool
ir_ev_lora_db(ir_ev *e)
{
    const ir_tensor *dy = e->arg[0], *t = e->arg[1];
    ir_columns c = ir_adapted_columns(e->op, ir_rows(e->res[0]));
    ir_mm g = {.m = c.width,
               .n = ir_cols(t),
               .k = ir_rows(t),
               .ta = true,
               .alpha = ir_attr_num(e->op, IR_ATTR_by, 1),
               .lda = ir_cols(dy),
               .ldb = ir_cols(t),
               .ldc = ir_cols(t)};
    ir_clear(e->res[0]);
    for (int64_t i = 0; i < c.n; i++)
        ir_mm_run(&g, e->res[0]->data + i * c.width * ir_cols(t),
                  dy->data + c.first + i * c.stride, t->data, e->scratch);
    return true;
}

/* ---- shape changes ---- */

bool
ir_ev_reshape(ir_ev *e)
{
    memcpy(e->res[0]->data, e->arg[0]->data,
           (size_t)ir_count(e->arg[0]) * sizeof(double));
    return true;
}

/* A tensor seen as [outer, n, inner] around one dimension. */
typedef struct around {
    int64_t outer, n, inner;
} around;

static around
around_axis(const ir_ev *e, const ir_type *t)
{
    int64_t axis = ir_attr_int(e->op, IR_ATTR_axis, 0);
    around a = {1, t->dim[axis], 1};
    for (int d = 0; d < t->rank; d++)
        *(d < axis   ? &a.outer
          : d > axis ? &a.inner
                     : &a.n) *= d == axis ? 1 : t->dim[d];
    return a;
}

bool
ir_ev_concat(ir_ev *e)
{
    around y = around_axis(e, e->res[0]->type);
    int64_t at = 0;
    for (int i = 0; i < e->op->narg; i++) {
        around x = around_axis(e, e->arg[i]->type);
        int64_t n = x.n * x.inner;
        for (int64_t o = 0; o < x.outer; o++)
            memcpy(e->res[0]->data + o * y.n * y.inner + at, e->arg[i]->data + o * n,
                   (size_t)n * sizeof(double));
        at += n;
    }
    return true;
}

/* Copies `few` slices along the axis between a dense tensor of them and every step-th slice
 * of `many`. */
static bool
move_slices(ir_ev *e, around few, around many, bool to_many)
{
    int64_t start = ir_attr_int(e->op, IR_ATTR_start, 0);
    int64_t step = ir_attr_int(e->op, IR_ATTR_step, 1);
    size_t bytes = (size_t)few.inner * sizeof(double);
    for (int64_t o = 0; o < few.outer; o++)
        for (int64_t i = 0; i < few.n; i++) {
            int64_t a = (o * few.n + i) * few.inner;
            int64_t b = (o * many.n + start + i * step) * few.inner;
            memcpy(e->res[0]->data + (to_many ? b : a),
                   e->arg[0]->data + (to_many ? a : b), bytes);
        }
    return true;
}

bool
ir_ev_slice(ir_ev *e)
{
    return move_slices(e, around_axis(e, e->res[0]->type),
                       around_axis(e, e->arg[0]->type), false);
}

bool
ir_ev_unslice(ir_ev *e)
{
    ir_clear(e->res[0]);
    return move_slices(e, around_axis(e, e->arg[0]->type),
                       around_axis(e, e->res[0]->type), true);
}

/* Index i of a gather over n slices, counted from the end if negative; -1: said why. */
static int64_t
index_at(ir_ev *e, int64_t i, int64_t n)
{
    double x = e->arg[1]->data[i];
    if (x >= (double)-n && x < (double)n)
        return (int64_t)x + (x < 0 ? n : 0);
    ir_ev_fail(e, "index %.0f is not one of %lld", x, (long long)n);
    return -1;
}

bool
ir_ev_gather(ir_ev *e)
{
    around x = around_axis(e, e->arg[0]->type);
    int64_t m = ir_count(e->arg[1]);
    for (int64_t o = 0; o < x.outer; o++)
        for (int64_t i = 0; i < m; i++) {
            int64_t at = index_at(e, i, x.n);
            if (at < 0)
                return false;
            memcpy(e->res[0]->data + (o * m + i) * x.inner,
                   e->arg[0]->data + (o * x.n + at) * x.inner,
                   (size_t)x.inner * sizeof(double));
        }
    return true;
}

bool
ir_ev_gather_grad(ir_ev *e)
{
    around x = around_axis(e, e->res[0]->type);
    int64_t m = ir_count(e->arg[1]);
    ir_clear(e->res[0]);
    for (int64_t o = 0; o < x.outer; o++)
        for (int64_t i = 0; i < m; i++) {
            int64_t at = index_at(e, i, x.n);
            if (at < 0)
                return false;
            double *to = e->res[0]->data + (o * x.n + at) * x.inner;
            const double *from = e->arg[0]->data + (o * m + i) * x.inner;
            for (int64_t j = 0; j < x.inner; j++)
                to[j] += from[j];
        }
    return true;
}

bool
ir_ev_embed(ir_ev *e) /* the table's rows are its dimension 0 */
{
    return ir_ev_gather(e);
}

bool
ir_ev_embed_grad(ir_ev *e)
{
    return ir_ev_gather_grad(e);
}

bool
ir_ev_cumsum(ir_ev *e)
{
    around x = around_axis(e, e->arg[0]->type);
    int64_t n = x.n * x.inner;
    for (int64_t o = 0; o < x.outer; o++)
        for (int64_t i = 0; i < n; i++) {
            int64_t at = o * n + i;
            double before = i < x.inner ? 0 : e->res[0]->data[at - x.inner];
            e->res[0]->data[at] = before + e->arg[0]->data[at];
        }
    return true;
}
