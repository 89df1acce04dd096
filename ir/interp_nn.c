/* interp_nn.c -- the interpreter's softmax, layer norm and attention.
 *
 * Attention takes heads out of packed rows: head h of q is columns qo + h*d .. of a row.
 * The gradient is that of the scores recomputed from the stored log-sum-exp, as the kernels
 * do it: P = exp(s - lse), dV = P' dY, dS = P * (dY V' - rowsum(dY * Y)). Under dropout with
 * factors D, dV has P * D for P, and dS dY V' * D for dY V'.
 */
#include "interp_int.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- softmax ---- */

bool
ir_ev_softmax(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    for (int64_t r = 0; r < rows; r++) {
        const double *x = e->arg[0]->data + r * n;
        double *y = e->res[0]->data + r * n, max = -INFINITY, sum = 0;
        for (int64_t i = 0; i < n; i++)
            max = x[i] > max ? x[i] : max;
        for (int64_t i = 0; i < n; i++)
            sum += y[i] = exp(x[i] - max);
        for (int64_t i = 0; i < n; i++)
            y[i] /= sum;
    }
    return true;
}

/* Where no gradient comes in none goes out, though y may be NaN (a row of -inf). */
bool
ir_ev_softmax_grad(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    for (int64_t r = 0; r < rows; r++) {
        const double *dy = e->arg[0]->data + r * n, *y = e->arg[1]->data + r * n;
        double *dx = e->res[0]->data + r * n, dot = 0;
        bool any = false;
        for (int64_t i = 0; i < n; i++) {
            dot += dy[i] * y[i];
            any |= dy[i] != 0;
        }
        for (int64_t i = 0; i < n; i++)
            dx[i] = any ? y[i] * (dy[i] - dot) : 0;
    }
    return true;
}

/* ---- layer norm ---- */

bool
ir_ev_layernorm(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    const double *w = e->arg[1]->data, *b = e->arg[2]->data;
    double eps = ir_attr_num(e->op, IR_ATTR_eps, 1e-5);
    for (int64_t r = 0; r < rows; r++) {
        const double *x = e->arg[0]->data + r * n;
        double *y = e->res[0]->data + r * n, mean = 0, var = 0;
        for (int64_t i = 0; i < n; i++)
            mean += x[i];
        mean /= (double)n;
        for (int64_t i = 0; i < n; i++)
            var += (x[i] - mean) * (x[i] - mean);
        double rstd = 1 / sqrt(var / (double)n + eps);
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * w[i] + b[i];
        e->res[1]->data[r] = mean;
        e->res[2]->data[r] = rstd;
    }
    return true;
}

bool
ir_ev_layernorm_dx(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    const double *w = e->arg[2]->data;
    for (int64_t r = 0; r < rows; r++) {
        const double *dy = e->arg[0]->data + r * n, *x = e->arg[1]->data + r * n;
        double mean = e->arg[3]->data[r], rstd = e->arg[4]->data[r];
        double *dx = e->res[0]->data + r * n, sum = 0, dot = 0;
        for (int64_t i = 0; i < n; i++) {
            sum += dy[i] * w[i];
            dot += dy[i] * w[i] * (x[i] - mean) * rstd;
        }
        for (int64_t i = 0; i < n; i++)
            dx[i] = rstd * (dy[i] * w[i] - sum / (double)n -
                            (x[i] - mean) * rstd * dot / (double)n);
    }
    return true;
}

bool
ir_ev_layernorm_dwb(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    double *dw = e->res[0]->data, *db = e->res[1]->data;
    ir_clear(e->res[0]);
    ir_clear(e->res[1]);
    for (int64_t r = 0; r < rows; r++) {
        const double *dy = e->arg[0]->data + r * n, *x = e->arg[1]->data + r * n;
        double mean = e->arg[2]->data[r], rstd = e->arg[3]->data[r];
        for (int64_t i = 0; i < n; i++) {
            dw[i] += dy[i] * (x[i] - mean) * rstd;
            db[i] += dy[i];
        }
    }
    return true;
}

bool
ir_ev_rmsnorm(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    const double *w = e->arg[1]->data;
    double eps = ir_attr_num(e->op, IR_ATTR_eps, 1e-6);
    for (int64_t r = 0; r < rows; r++) {
        const double *x = e->arg[0]->data + r * n;
        double *y = e->res[0]->data + r * n, sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += x[i] * x[i];
        double rstd = 1 / sqrt(sum / (double)n + eps);
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * rstd * w[i];
        e->res[1]->data[r] = rstd;
    }
    return true;
}

bool
ir_ev_rmsnorm_dx(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    const double *w = e->arg[2]->data;
    for (int64_t r = 0; r < rows; r++) {
        const double *dy = e->arg[0]->data + r * n, *x = e->arg[1]->data + r * n;
        double rstd = e->arg[3]->data[r], dot = 0;
        double *dx = e->res[0]->data + r * n;
        for (int64_t i = 0; i < n; i++)
            dot += dy[i] * w[i] * x[i] * rstd;
        for (int64_t i = 0; i < n; i++)
            dx[i] = rstd * (dy[i] * w[i] - x[i] * rstd * dot / (double)n);
    }
    return true;
}

bool
ir_ev_rmsnorm_dw(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    double *dw = e->res[0]->data;
    ir_clear(e->res[0]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            dw[i] += e->arg[0]->data[r * n + i] * e->arg[1]->data[r * n + i] *
                     e->arg[2]->data[r];
    return true;
}

/* The gradient of a norm as one op: dx in res[0] and what is asked for beside it. */
static bool
norm_grad(ir_ev *e, ir_ev_fn *dx, ir_ev_fn *dw, int stats)
{
    const ir_tensor *arg[] = {e->arg[0], e->arg[1], e->arg[3],
                              stats > 1 ? e->arg[4] : NULL};
    ir_ev of_w = *e;
    bool wgrad = ir_attr_int(e->op, IR_ATTR_wgrad, 0), ok = dx(e);
    double *y = e->res[0]->data;
    of_w.arg = arg;
    of_w.res = e->res + 1;
    if (ok && wgrad)
        ok = dw(&of_w);
    for (int64_t i = 0; e->op->narg > 3 + stats && i < ir_count(e->res[0]); i++)
        y[i] += e->arg[3 + stats]->data[i];
    if (ir_attr_get(e->op, IR_ATTR_to))
        memcpy(e->res[1 + wgrad * stats]->data, y,
               (size_t)ir_count(e->res[0]) * sizeof *y);
    return ok;
}

bool
ir_ev_layernorm_grad(ir_ev *e)
{
    return norm_grad(e, ir_ev_layernorm_dx, ir_ev_layernorm_dwb, 2);
}

bool
ir_ev_rmsnorm_grad(ir_ev *e)
{
    return norm_grad(e, ir_ev_rmsnorm_dx, ir_ev_rmsnorm_dw, 1);
}

/* ---- attention ---- */

typedef struct attn {
    int64_t batch, seq, heads, group, d; /* group: query heads of one key head */
    int64_t ldq, ldk, ldv, qo, ko, vo, qs, ks, vs;
    int64_t window; /* 0: none */
    double scale, softcap;
    bool causal;
    const double *q, *k, *v, *mask; /* mask [batch,seq]; NULL: none */
    const double *keys;             /* [batch,seq]; NULL: nothing is dropped */
    /* of rows: the first row of each sample and the end, original positions; else NULL */
    const double *offsets, *position;
    int64_t row; /* the first one of the sample at hand, which has seq rows */
    ir_drop drop;
    double *p; /* scratch [seq,seq] of one head */
} attn;

/* Columns from one head to the next. */
static int64_t
step_of(const ir_op *op, ir_attr_key key, int64_t d)
{
    int64_t step = ir_attr_int(op, key, 0);
    return step ? step : d;
}

/* Operands q, k, v stand at `first`; the mask, if there is one, is operand `mask_at`. */
static attn
attn_of(const ir_ev *e, int first, int mask_at)
{
    const ir_tensor *const *arg = e->arg + first;
    int64_t heads = ir_attr_int(e->op, IR_ATTR_heads, 1);
    bool rows = arg[0]->type->rank == 2;
    attn a = {.batch = arg[0]->type->dim[0],
              .seq = arg[0]->type->dim[1],
              .heads = heads,
              .group = heads / ir_attr_int(e->op, IR_ATTR_kv_heads, heads),
              .d = ir_attr_int(e->op, IR_ATTR_head_dim, 1),
              .ldq = ir_cols(arg[0]),
              .ldk = ir_cols(arg[1]),
              .ldv = ir_cols(arg[2]),
              .qo = ir_attr_int(e->op, IR_ATTR_qo, 0),
              .ko = ir_attr_int(e->op, IR_ATTR_ko, 0),
              .vo = ir_attr_int(e->op, IR_ATTR_vo, 0),
              .causal = ir_attr_int(e->op, IR_ATTR_causal, 0) != 0,
              .q = arg[0]->data,
              .k = arg[1]->data,
              .v = arg[2]->data};
    a.qs = step_of(e->op, IR_ATTR_qs, a.d);
    a.ks = step_of(e->op, IR_ATTR_ks, a.d);
    a.vs = step_of(e->op, IR_ATTR_vs, a.d);
    a.window = ir_attr_int(e->op, IR_ATTR_window, 0);
    a.scale = ir_attr_num(e->op, IR_ATTR_scale, 1 / sqrt((double)a.d));
    a.softcap = ir_attr_num(e->op, IR_ATTR_softcap, 0);
    int narg = e->op->narg;
    if (ir_attr_get(e->op, IR_ATTR_p)) {
        a.keys = e->arg[narg - 2]->data;
        a.drop = ir_drop_of(e->op, e->arg[narg - 1]);
        narg -= 2;
    }
    a.mask = narg > mask_at ? e->arg[mask_at]->data : NULL;
    if (rows) {
        a.offsets = e->arg[mask_at + 1]->data;
        a.position = e->arg[mask_at + 2]->data;
        a.batch = ir_count(e->arg[mask_at + 1]) - 1;
    }
    return a;
}

/* Turns to sample b; false: the operands do not say which rows are its. */
static bool
sample(ir_ev *e, attn *a, int64_t b)
{
    a->row = a->offsets ? (int64_t)a->offsets[b] : b * a->seq;
    if (a->offsets)
        a->seq = (int64_t)a->offsets[b + 1] - a->row;
    if (a->row < 0 || a->seq < 0 ||
        (a->offsets && a->row + a->seq > ir_rows(e->arg[0])))
        return ir_ev_fail(e, "offsets %" PRId64 " and %" PRId64 " are no rows", a->row,
                          a->row + a->seq);
    a->p = EF_NEWN(e->scratch, double, a->seq * a->seq + 1);
    return true;
}

/* Where log-sum-exp of the sample's row i and head h stands. */
static int64_t
lse_at(const attn *a, int64_t h, int64_t i)
{
    return a->offsets ? (a->row + i) * a->heads + h
                      : (a->row / (a->seq + !a->seq) * a->heads + h) * a->seq + i;
}

static int64_t
position_of(const attn *a, int64_t i)
{
    return a->position ? (int64_t)a->position[a->row + i] : i;
}

/* Where the columns of head h begin in the first row of the sample. */
static int64_t
q_at(const attn *a, int64_t h)
{
    return a->row * a->ldq + a->qo + h * a->qs;
}

static int64_t
k_at(const attn *a, int64_t h)
{
    return a->row * a->ldk + a->ko + h / a->group * a->ks;
}

static int64_t
v_at(const attn *a, int64_t h)
{
    return a->row * a->ldv + a->vo + h / a->group * a->vs;
}

static bool
is_hidden(const attn *a, int64_t i, int64_t j)
{
    return (a->causal && j > i) ||
           (a->window && position_of(a, j) <= position_of(a, i) - a->window) ||
           (a->mask && a->mask[a->row + j] == 0);
}

/* Scores of head h into a->p, -inf where a mask hides the key. */
static void
scores(const attn *a, int64_t h, ef_arena *scratch)
{
    int64_t s = a->seq;
    memset(a->p, 0, (size_t)(s * s) * sizeof(double));
    ir_mm g = {s, s, a->d, false, true, a->scale, a->ldq, a->ldk, s};
    ir_mm_run(&g, a->p, a->q + q_at(a, h), a->k + k_at(a, h), scratch);
    for (int64_t i = 0; i < s; i++)
        for (int64_t j = 0; j < s; j++)
            if (is_hidden(a, i, j))
                a->p[i * s + j] = -INFINITY;
            else if (a->softcap > 0)
                a->p[i * s + j] = a->softcap * tanh(a->p[i * s + j] / a->softcap);
}

/* Softmax of the row p[n] in place; returns its log-sum-exp, -inf where there is no key. */
static double
softmax_row(double *p, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++)
        max = p[j] > max ? p[j] : max;
    for (int64_t j = 0; j < n; j++)
        sum += p[j] = max == -INFINITY ? 0 : exp(p[j] - max);
    for (int64_t j = 0; j < n && sum > 0; j++)
        p[j] /= sum;
    return sum > 0 ? max + log(sum) : -INFINITY;
}

/* What the weights p [seq,seq] of head h become under dropout; NULL: they stay. */
static double *
dropped(const attn *a, int64_t h, const double *p, ef_arena *scratch)
{
    int64_t s = a->seq;
    if (!a->keys)
        return NULL;
    double *y = EF_NEWN(scratch, double, s *s + 1);
    for (int64_t i = 0; i < s; i++)
        for (int64_t j = 0; j < s; j++)
            y[i * s + j] = p[i * s + j] * ir_drop_factor(&a->drop, a->keys[a->row + i],
                                                         position_of(a, j), h);
    return y;
}

bool
ir_ev_attention(ir_ev *e)
{
    attn a = attn_of(e, 0, 3);
    int64_t ldy = a.heads * a.d, count = ir_count(e->res[1]);
    ir_clear(e->res[0]);
    for (int64_t i = 0; i < count; i++) /* of rows behind the last sample */
        e->res[1]->data[i] = -INFINITY;
    for (int64_t b = 0; b < a.batch; b++) {
        if (!sample(e, &a, b))
            return false;
        for (int64_t h = 0, s = a.seq; h < a.heads; h++) {
            scores(&a, h, e->scratch);
            for (int64_t i = 0; i < s; i++)
                e->res[1]->data[lse_at(&a, h, i)] = softmax_row(a.p + i * s, s);
            const double *p = dropped(&a, h, a.p, e->scratch);
            ir_mm g = {s, a.d, s, false, false, 1, s, a.ldv, ldy};
            ir_mm_run(&g, e->res[0]->data + a.row * ldy + h * a.d, p ? p : a.p,
                      a.v + v_at(&a, h), e->scratch);
        }
    }
    return true;
}

/* From dy, y of one head: ds = p * (dp - rowsum(dy * y)) * slope of the soft cap, where dp
 * arrives in ds. */
static void
score_grads(const attn *a, double *ds, const double *slope, const double *dy,
            const double *y)
{
    int64_t s = a->seq, ldy = a->heads * a->d;
    for (int64_t i = 0; i < s; i++) {
        double dot = 0;
        for (int64_t c = 0; c < a->d; c++)
            dot += dy[i * ldy + c] * y[i * ldy + c];
        for (int64_t j = 0; j < s; j++)
            ds[i * s + j] = a->p[i * s + j] * (ds[i * s + j] - dot) * slope[i * s + j];
    }
}

/* The gradients of one head, added to dq, dk, dv. */
static void
head_grad(ir_ev *e, const attn *a, int64_t h, double *const *d)
{
    int64_t s = a->seq, ldy = a->heads * a->d;
    int64_t at = a->row * ldy + h * a->d;
    const double *dy = e->arg[0]->data + at, *y = e->arg[4]->data + at;
    const double *lse = e->arg[5]->data;
    double *ds = EF_NEWN(e->scratch, double, 2 * s * s + 1), *slope = ds + s * s;
    scores(a, h, e->scratch);
    for (int64_t i = 0; i < s; i++)
        for (int64_t j = 0; j < s; j++) {
            double *p = a->p + i * s + j, t = a->softcap > 0 ? *p / a->softcap : 0;
            slope[i * s + j] = isinf(t) ? 0 : 1 - t * t;
            *p = *p == -INFINITY ? 0 : exp(*p - lse[lse_at(a, h, i)]);
        }
    const double *p = dropped(a, h, a->p, e->scratch);
    ir_mm gv = {s, a->d, s, true, false, 1, s, ldy, a->ldv};
    ir_mm_run(&gv, d[2] + v_at(a, h), p ? p : a->p, dy, e->scratch);
    ir_mm gp = {s, s, a->d, false, true, 1, ldy, a->ldv, s};
    ir_mm_run(&gp, ds, dy, a->v + v_at(a, h), e->scratch);
    p = dropped(a, h, ds, e->scratch);
    if (p)
        memcpy(ds, p, (size_t)(s * s) * sizeof *ds);
    score_grads(a, ds, slope, dy, y);
    ir_mm gq = {s, a->d, s, false, false, a->scale, s, a->ldk, a->ldq};
    ir_mm_run(&gq, d[0] + q_at(a, h), ds, a->k + k_at(a, h), e->scratch);
    ir_mm gk = {s, a->d, s, true, false, a->scale, s, a->ldq, a->ldk};
    ir_mm_run(&gk, d[1] + k_at(a, h), ds, a->q + q_at(a, h), e->scratch);
}

bool
ir_ev_attention_grad(ir_ev *e)
{
    attn a = attn_of(e, 1, 6);
    double *d[3];
    for (int i = 0; i < 3; i++) /* one result: q, k and v are one value */
        d[i] = e->res[i < e->op->nres ? i : 0]->data;
    for (int i = 0; i < e->op->nres; i++)
        ir_clear(e->res[i]);
    for (int64_t b = 0; b < a.batch; b++) {
        if (!sample(e, &a, b))
            return false;
        for (int64_t h = 0; h < a.heads; h++)
            head_grad(e, &a, h, d);
    }
    return true;
}

/* ---- rotary positions ---- */

/* The first r columns of a head, turned by the tables' row c, s. */
static void
turn(double *y, const double *x, const double *c, const double *s, int64_t r, bool back)
{
    int64_t h = r / 2;
    for (int64_t i = 0; i < h; i++) {
        double u = x[i], v = x[i + h];
        y[i] = back ? u * c[i] + v * s[i + h] : u * c[i] - v * s[i];
        y[i + h] = back ? v * c[i + h] - u * s[i] : v * c[i + h] + u * s[i + h];
    }
}

/* y = x, heads of it turned by tables c and s. */
static void
turn_heads(const ir_ev *e, ir_tensor *y, const ir_tensor *x,
           const ir_tensor *const *table, ir_attr_key key)
{
    int64_t rows = ir_rows(x), n = ir_cols(x), r = ir_cols(table[0]);
    int64_t heads = ir_attr_int(e->op, key, 1);
    int64_t start = ir_attr_int(e->op, IR_ATTR_start, 0);
    int64_t stride = step_of(e->op, IR_ATTR_stride, r);
    bool back = ir_attr_int(e->op, IR_ATTR_inverse, 0) != 0;
    memcpy(y->data, x->data, (size_t)ir_count(x) * sizeof(double));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = i * n + start + h * stride, t = i % ir_rows(table[0]) * r;
            turn(y->data + at, x->data + at, table[0]->data + t, table[1]->data + t, r,
                 back);
        }
}

bool
ir_ev_rotary(ir_ev *e)
{
    turn_heads(e, e->res[0], e->arg[0], e->arg + 1, IR_ATTR_heads);
    return true;
}

bool
ir_ev_rotary2(ir_ev *e)
{
    turn_heads(e, e->res[0], e->arg[0], e->arg + 2, IR_ATTR_heads);
    turn_heads(e, e->res[1], e->arg[1], e->arg + 2, IR_ATTR_kv_heads);
    return true;
}
