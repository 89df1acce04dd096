/* interp_ew.c -- the interpreter's elementwise ops, made from elementwise.def, and the loop
 * over strided operands that they and the structural ops share.
 */
#include "interp_int.h"

#include <math.h>

void
ir_walk_run(ir_walk *w, double *const *p, ir_walk_fn *fn)
{
    w->rank = ir_collapse(w->rank, w->dim, w->np, w->stride);
    int last = w->rank - 1;
    int64_t n = last < 0 ? 1 : w->dim[last], at[IR_MAX_RANK] = {0}, step[4] = {0};
    double *q[4];
    for (int i = 0; i < w->np; i++) {
        q[i] = p[i];
        step[i] = last < 0 ? 0 : w->stride[i][last];
    }
    for (int d = 0; d <= last; d++)
        if (w->dim[d] == 0)
            return;
    for (;;) {
        fn(n, q, step);
        int d = last - 1;
        for (; d >= 0; d--) { /* the odometer of the outer dimensions */
            bool carry = ++at[d] == w->dim[d];
            int64_t move = carry ? at[d] - 1 : -1;
            for (int i = 0; i < w->np; i++)
                q[i] -= move * w->stride[i][d];
            if (!carry)
                break;
            at[d] = 0;
        }
        if (d < 0)
            return;
    }
}

/* ---- operands of an elementwise op, broadcast to its result ---- */

static bool
broadcast(ir_ev *e, ir_walk_fn *fn)
{
    const ir_type *t = e->res[0]->type;
    ir_walk w = {.rank = t->rank, .np = e->op->narg + 1};
    double *p[4] = {e->res[0]->data};
    for (int d = 0; d < t->rank; d++)
        w.dim[d] = t->dim[d];
    ir_strides(t, t->rank, w.stride[0]);
    for (int i = 0; i < e->op->narg; i++) {
        ir_strides(e->arg[i]->type, t->rank, w.stride[i + 1]);
        p[i + 1] = e->arg[i]->data;
    }
    ir_walk_run(&w, p, fn);
    return true;
}

#define C(x)      (x)
#define EXP       exp
#define LOG       log
#define SQRT      sqrt
#define TANH      tanh
#define ERF       erf
#define POW       pow
#define ABS       fabs
#define FLOOR     floor
#define CEIL      ceil
#define SIN       sin
#define COS       cos
#define MAX(x, y) ((x) > (y) || isnan(x) ? (x) : (y))
#define MIN(x, y) ((x) < (y) || isnan(x) ? (x) : (y))
#define ISNAN(x)  isnan(x)

#define LOAD(i)         p[i][k * s[i]]
#define OPERANDS_1      a = LOAD(1)
#define OPERANDS_2      a = LOAD(1), b = LOAD(2)
#define OPERANDS_3      a = LOAD(1), b = LOAD(2), c = LOAD(3)
#define OPERANDS(arity) OPERANDS_##arity
#define EW(name, arity, out, formula)                                      \
    static void loop_##name(int64_t n, double *const *p, const int64_t *s) \
    {                                                                      \
        for (int64_t k = 0; k < n; k++) {                                  \
            const double OPERANDS(arity);                                  \
            LOAD(0) = formula;                                             \
        }                                                                  \
    }                                                                      \
    bool ir_ev_##name(ir_ev *e)                                            \
    {                                                                      \
        return broadcast(e, loop_##name);                                  \
    }
#include "elementwise.def"

/* ---- as parts of other ops ---- */

void
ir_ew_gelu_tanh(int64_t n, double *y)
{
    loop_gelu_tanh(n, (double *[]){y, y}, (int64_t[]){1, 1});
}

void
ir_ew_gelu_tanh_d(int64_t n, double *d, const double *h)
{
    loop_gelu_tanh_d(n, (double *[]){d, d, (double *)h}, (int64_t[]){1, 1, 1});
}

/* ---- those without a formula ---- */

static void
copy(int64_t n, double *const *p, const int64_t *s)
{
    for (int64_t k = 0; k < n; k++)
        LOAD(0) = LOAD(1);
}

bool
ir_ev_cast(ir_ev *e) /* rounding the result does it */
{
    return broadcast(e, copy);
}

bool
ir_ev_expand(ir_ev *e)
{
    return broadcast(e, copy);
}

bool
ir_ev_const(ir_ev *e)
{
    double x = ir_attr_num(e->op, IR_ATTR_value, 0);
    int64_t n = ir_count(e->res[0]);
    for (int64_t i = 0; i < n; i++)
        e->res[0]->data[i] = x;
    return true;
}

bool
ir_ev_transpose(ir_ev *e)
{
    const ir_type *t = e->res[0]->type;
    const int64_t *perm = ir_attr_get(e->op, IR_ATTR_perm)->u.l;
    ir_walk w = {.rank = t->rank, .np = 2};
    int64_t from[IR_MAX_RANK];
    ir_strides(e->arg[0]->type, t->rank, from);
    ir_strides(t, t->rank, w.stride[0]);
    for (int d = 0; d < t->rank; d++) {
        w.dim[d] = t->dim[d];
        w.stride[1][d] = from[perm[d]];
    }
    ir_walk_run(&w, (double *[]){e->res[0]->data, e->arg[0]->data}, copy);
    return true;
}

/* ---- reductions: the result is the operand that does not move along the axes ---- */

static void
fold_sum(int64_t n, double *const *p, const int64_t *s)
{
    if (s[0] == 0) {
        double sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += LOAD(1);
        *p[0] += sum;
        return;
    }
    for (int64_t k = 0; k < n; k++)
        LOAD(0) += LOAD(1);
}

static void
fold_max(int64_t n, double *const *p, const int64_t *s)
{
    for (int64_t k = 0; k < n; k++)
        LOAD(0) = MAX(LOAD(1), LOAD(0));
}

/* Returns how many elements fall on one of the result. */
static int64_t
reduce(ir_ev *e, ir_walk_fn *fn, double start)
{
    const ir_type *t = e->arg[0]->type;
    const ir_attr *axes = ir_attr_get(e->op, IR_ATTR_axes);
    ir_walk w = {.rank = t->rank, .np = 2};
    int64_t each = 1, s = 1, n = ir_count(e->res[0]);
    bool gone[IR_MAX_RANK] = {0};
    for (int i = 0; axes && i < axes->n; i++)
        gone[axes->u.l[i]] = true;
    ir_strides(t, t->rank, w.stride[1]);
    for (int d = t->rank - 1; d >= 0; d--) {
        w.dim[d] = t->dim[d];
        w.stride[0][d] = gone[d] ? 0 : s;
        *(gone[d] ? &each : &s) *= t->dim[d];
    }
    for (int64_t i = 0; i < n; i++)
        e->res[0]->data[i] = start;
    ir_walk_run(&w, (double *[]){e->res[0]->data, e->arg[0]->data}, fn);
    return each;
}

bool
ir_ev_reduce_sum(ir_ev *e)
{
    reduce(e, fold_sum, 0);
    return true;
}

bool
ir_ev_reduce_mean(ir_ev *e)
{
    double each = (double)reduce(e, fold_sum, 0);
    int64_t n = ir_count(e->res[0]);
    for (int64_t i = 0; i < n; i++)
        e->res[0]->data[i] /= each;
    return true;
}

bool
ir_ev_reduce_max(ir_ev *e)
{
    reduce(e, fold_max, -INFINITY);
    return true;
}
