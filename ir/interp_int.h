/* interp_int.h -- what the files of the interpreter share.
 *
 * Every row of ops.def has an evaluator ir_ev_<name>(); a row without one does not link.
 */
#ifndef EFFICC_INTERP_INT_H
#define EFFICC_INTERP_INT_H

#include "ir.h"

typedef struct ir_ev { /* one evaluation of one op */
    ef_ctx *ctx;
    const ir_op *op;
    const ir_tensor *const *arg;
    ir_tensor *const *res; /* typed and allocated; contents are whatever was there */
    ir_env *env;           /* NULL in ir_eval_op(): effects are impossible */
    ef_arena *scratch;     /* reset after the op */
} ir_ev;

/* Fills e->res, not yet rounded. false: said why. */
typedef bool ir_ev_fn(ir_ev *e);
#define OP(name, ...) ir_ev_fn ir_ev_##name;
#include "ops.def"
#undef OP

/* Reports what is wrong with the data of e->op; returns false. */
bool ir_ev_fail(ir_ev *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A loop over up to IR_MAX_RANK dimensions with up to four pointers that advance by strides
 * of their own (0: broadcast). p[0] is the result. */
typedef struct ir_walk {
    int rank, np;
    int64_t dim[IR_MAX_RANK];
    int64_t stride[4][IR_MAX_RANK];
} ir_walk;
/* n elements, p[i] advances by s[i]. */
typedef void ir_walk_fn(int64_t n, double *const *p, const int64_t *s);
void ir_walk_run(ir_walk *, double *const *p, ir_walk_fn *);
/* y = gelu_tanh(y); d = d times its derivative at h. */
void ir_ew_gelu_tanh(int64_t n, double *y);
void ir_ew_gelu_tanh_d(int64_t n, double *d, const double *h);

/* c [m,n] += alpha * op(a) op(b). op(a) [m,k] is a, or under ta the transpose of a [k,m];
 * likewise tb for b. ld*: elements from one row in memory to the next. */
typedef struct ir_mm {
    int64_t m, n, k;
    bool ta, tb;
    double alpha;
    int64_t lda, ldb, ldc;
} ir_mm;
void ir_mm_run(const ir_mm *, double *c, const double *a, const double *b,
               ef_arena *scratch);

/* Rows and columns of a tensor seen as a matrix: the last dimension is the columns. */
static inline int64_t
ir_cols(const ir_tensor *t)
{
    return t->type->rank ? t->type->dim[t->type->rank - 1] : 1;
}
static inline int64_t
ir_count(const ir_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->type->rank; d++)
        n *= t->type->dim[d];
    return n;
}
static inline int64_t
ir_rows(const ir_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d + 1 < t->type->rank; d++)
        n *= t->type->dim[d];
    return n;
}
static inline void
ir_clear(ir_tensor *t)
{
    int64_t n = ir_count(t);
    for (int64_t i = 0; i < n; i++)
        t->data[i] = 0;
}

/* ---- interp_drop.c ---- */
/* What attributes p and site of an op and its operand `key` say of the weights that it drops. */
typedef struct ir_drop {
    double scale;   /* of what is kept */
    uint32_t below; /* words below it are dropped */
    uint32_t key[2], site;
} ir_drop;
ir_drop ir_drop_of(const ir_op *, const ir_tensor *key);
/* 0 or scale: what the element is multiplied by that has word `column` % 4 of counter (keys of
 * the row, column / 4 | head << 20, site). */
double ir_drop_factor(const ir_drop *, double keys, int64_t column, int64_t head);

#endif
