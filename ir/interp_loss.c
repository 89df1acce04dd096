/* interp_loss.c -- the interpreter's losses, gradient norm and optimizer.
 *
 * A target of -100, or a value of NaN, is not supervised: no loss, no gradient, not counted
 * as right.
 */
#include "interp_int.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { IGNORE = -100 };

/* ---- cross entropy of one row ---- */

typedef struct row_ce {
    double loss;     /* cross entropy; 0 where not supervised */
    int64_t target;  /* -1: not supervised */
    int64_t best;    /* the first of the largest columns */
    double max, sum; /* probability of column j: exp(x[j] - max) / sum */
} row_ce;

/* false: said why. */
static bool
row_of(ir_ev *e, const double *x, int64_t n, double target, row_ce *r)
{
    *r = (row_ce){.target = -1, .max = -INFINITY};
    for (int64_t j = 0; j < n; j++)
        if (x[j] > r->max) {
            r->max = x[j];
            r->best = j;
        }
    for (int64_t j = 0; j < n; j++)
        r->sum += exp(x[j] - r->max);
    if (target == IGNORE)
        return true;
    if (!(target >= 0 && target < (double)n))
        return ir_ev_fail(e, "target %.0f is not one of %lld classes", target,
                          (long long)n);
    r->target = (int64_t)target;
    r->loss = log(r->sum) + r->max - x[r->target];
    return true;
}

/* dx = scale * (probabilities - one-hot target); dx may be x. */
static void
row_grad(double *dx, const double *x, int64_t n, const row_ce *r, double scale)
{
    for (int64_t j = 0; j < n; j++) {
        double p = exp(x[j] - r->max) / r->sum;
        dx[j] = r->target < 0 ? 0 : scale * (p - (j == r->target));
    }
}

bool
ir_ev_ce(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]), right = 0;
    double loss = 0;
    for (int64_t i = 0; i < rows; i++) {
        const double *x = e->arg[0]->data + i * n;
        row_ce r;
        if (!row_of(e, x, n, e->arg[1]->data[i], &r))
            return false;
        loss += r.loss;
        right += r.best == r.target;
        e->res[3]->data[i] = r.loss;
        for (int64_t j = 0; j < n; j++)
            e->res[2]->data[i * n + j] = exp(x[j] - r.max) / r.sum;
    }
    *e->res[0]->data = loss * *e->arg[2]->data;
    *e->res[1]->data = (double)right;
    return true;
}

bool
ir_ev_ce_grad(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    double loss = 0, scale = *e->arg[2]->data;
    for (int64_t i = 0; i < rows; i++) {
        const double *x = e->arg[0]->data + i * n;
        row_ce r;
        if (!row_of(e, x, n, e->arg[1]->data[i], &r))
            return false;
        loss += r.loss;
        row_grad(e->res[1]->data + i * n, x, n, &r, scale);
    }
    *e->res[0]->data = loss * scale;
    return true;
}

/* ---- head and loss in one ---- */

typedef struct head {
    int64_t rows, h, v;
    bool tb;
    double scale;
    const double *x, *w, *bias; /* bias NULL: none */
    double *logits;             /* scratch, of one row [v] */
} head;

static head
head_of(const ir_ev *e)
{
    head a = {.rows = ir_rows(e->arg[0]),
              .h = ir_cols(e->arg[0]),
              .tb = ir_attr_int(e->op, IR_ATTR_tb, 0) != 0,
              .scale = *e->arg[3]->data,
              .x = e->arg[0]->data,
              .w = e->arg[1]->data,
              .bias = e->op->narg > 4 ? e->arg[4]->data : NULL};
    a.v = a.tb ? ir_rows(e->arg[1]) : ir_cols(e->arg[1]);
    a.logits = EF_NEWN(e->scratch, double, a.v + 1);
    return a;
}

/* y[n] += f * x[n] */
static void
add_scaled(double *restrict y, const double *restrict x, int64_t n, double f)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += f * x[i];
}

static double
dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Logits of row i into a->logits. */
static void
head_logits(const head *a, int64_t i)
{
    const double *x = a->x + i * a->h;
    for (int64_t j = 0; j < a->v; j++)
        a->logits[j] = a->bias ? a->bias[j] : 0;
    for (int64_t j = 0; j < a->v && a->tb; j++)
        a->logits[j] += dot(x, a->w + j * a->h, a->h);
    for (int64_t k = 0; k < a->h && !a->tb; k++)
        add_scaled(a->logits, a->w + k * a->v, a->v, x[k]);
}

bool
ir_ev_head_ce(ir_ev *e)
{
    head a = head_of(e);
    double loss = 0, right = 0;
    for (int64_t i = 0; i < a.rows; i++) {
        row_ce r;
        e->res[2]->data[i] = -1;
        e->res[3]->data[i] = 0;
        if (e->arg[2]->data[i] == IGNORE)
            continue;
        head_logits(&a, i);
        if (!row_of(e, a.logits, a.v, e->arg[2]->data[i], &r))
            return false;
        loss += r.loss;
        right += r.best == r.target;
        e->res[2]->data[i] = (double)r.best;
        e->res[3]->data[i] = r.loss;
    }
    *e->res[0]->data = loss * a.scale;
    *e->res[1]->data = right;
    return true;
}

/* From d logits of row i: dx of the row, and what it adds to dw. */
static void
head_row_grad(const head *a, int64_t i, double *dx, double *dw)
{
    const double *x = a->x + i * a->h, *d = a->logits;
    for (int64_t j = 0; j < a->v && a->tb; j++) {
        add_scaled(dx, a->w + j * a->h, a->h, d[j]);
        if (dw)
            add_scaled(dw + j * a->h, x, a->h, d[j]);
    }
    for (int64_t k = 0; k < a->h && !a->tb; k++) {
        dx[k] = dot(d, a->w + k * a->v, a->v);
        if (dw)
            add_scaled(dw + k * a->v, d, a->v, x[k]);
    }
}

bool
ir_ev_head_ce_grad(ir_ev *e)
{
    head a = head_of(e);
    bool wgrad = ir_attr_int(e->op, IR_ATTR_wgrad, 0) != 0;
    bool bgrad = ir_attr_int(e->op, IR_ATTR_bgrad, 0) != 0;
    double *dw = wgrad ? e->res[2]->data : NULL, loss = 0;
    double *db = bgrad ? e->res[wgrad ? 3 : 2]->data : NULL;
    for (int i = 1; i < e->op->nres; i++)
        ir_clear(e->res[i]);
    for (int64_t i = 0; i < a.rows; i++) {
        row_ce r;
        if (e->arg[2]->data[i] == IGNORE)
            continue;
        head_logits(&a, i);
        if (!row_of(e, a.logits, a.v, e->arg[2]->data[i], &r))
            return false;
        loss += r.loss;
        row_grad(a.logits, a.logits, a.v, &r, a.scale);
        head_row_grad(&a, i, e->res[1]->data + i * a.h, dw);
        if (db)
            add_scaled(db, a.logits, a.v, 1);
    }
    *e->res[0]->data = loss * a.scale;
    return true;
}

/* ---- squared error ---- */

/* y - value, 0 where not supervised. */
static double
deviation(const ir_ev *e, int64_t i)
{
    double value = e->arg[1]->data[i];
    return isnan(value) ? 0 : e->arg[0]->data[i] - value;
}

bool
ir_ev_mse(ir_ev *e)
{
    int64_t rows = ir_rows(e->arg[0]), n = ir_cols(e->arg[0]);
    double loss = 0;
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++)
            sum += deviation(e, i * n + j) * deviation(e, i * n + j);
        e->res[1]->data[i] = sum;
        loss += sum;
    }
    *e->res[0]->data = loss * *e->arg[2]->data;
    return true;
}

bool
ir_ev_mse_grad(ir_ev *e)
{
    int64_t n = ir_count(e->arg[0]);
    double loss = 0, scale = *e->arg[2]->data;
    for (int64_t i = 0; i < n; i++) {
        double d = deviation(e, i);
        loss += d * d;
        e->res[1]->data[i] = 2 * scale * d;
    }
    *e->res[0]->data = loss * scale;
    return true;
}

/* ---- gradients and the update: these change their operands ---- */

static double
keep(const ir_ev *e, const ir_tensor *t, double x)
{
    return e->env->exact ? x : ir_round(t->type->dtype, x);
}

bool
ir_ev_accum(ir_ev *e)
{
    const ir_tensor *g = e->arg[0];
    int64_t n = ir_count(g);
    for (int64_t i = 0; i < n; i++)
        g->data[i] = keep(e, g, g->data[i] + e->arg[1]->data[i]);
    return true;
}

bool
ir_ev_norm2(ir_ev *e)
{
    double sum = 0;
    for (int i = 0; i < e->op->narg; i++)
        sum += dot(e->arg[i]->data, e->arg[i]->data, ir_count(e->arg[i]));
    *e->res[0]->data = sum;
    return true;
}

bool
ir_ev_clip_scale(ir_ev *e)
{
    double max = e->env ? e->env->hyper.max_norm : 0;
    double scale = e->op->narg > 1 ? e->arg[1]->data[0] : 1;
    double factor = max / (sqrt(*e->arg[0]->data) / scale + 1e-6);
    *e->res[0]->data = (max > 0 && factor < 1 ? factor : 1) / scale;
    if (!isfinite(*e->arg[0]->data))
        *e->res[0]->data = NAN;
    return true;
}

/* What a loss scaler's numbers are, and after how many good steps its scale doubles. */
enum { SCALE, GOOD, SKIPPED, UPDATES, INTERVAL = 2000 };

bool
ir_ev_rescale(ir_ev *e)
{
    double *s = e->arg[0]->data;
    if (!isfinite(*e->arg[1]->data)) {
        s[SCALE] = fmax(1, s[SCALE] / 2);
        s[GOOD] = 0;
        s[SKIPPED]++;
        return true;
    }
    s[UPDATES]++;
    if (++s[GOOD] < INTERVAL)
        return true;
    s[GOOD] = 0;
    s[SCALE] = s[SCALE] * 2 <= FLT_MAX ? s[SCALE] * 2 : s[SCALE];
    return true;
}

/* Number of the update that runs: a loss scaler has counted those before it. */
static double
update_number(const ir_ev *e)
{
    const ir_param *scaler = ir_scaler(e->op->block->func->module);
    const ir_tensor *s = scaler ? ir_env_get(e->env, scaler->value) : NULL;
    return s ? s->data[UPDATES] + 1 : scaler ? 1 : (double)e->env->hyper.step;
}

/* torch.optim.SGD: buffer m, which is zero at first; what of it (and decay) is subtracted. */
static double
sgd_step(const ir_ev *e, const ir_hyper *h, int64_t i, double d)
{
    const ir_tensor *m = e->arg[2];
    if (!h->momentum)
        return d;
    m->data[i] = keep(e, m, h->momentum * m->data[i] + d);
    return h->nesterov ? d + h->momentum * m->data[i] : m->data[i];
}

/* AdamW as torch.optim.AdamW has it, but for one rounding of the parameter: decay and step
 * are subtracted together. Decay acts on PyTorch's parameter, of which ours is the sum with
 * a shift. */
bool
ir_ev_optim(ir_ev *e)
{
    const ir_tensor *p = e->arg[0], *m = e->arg[2], *v = e->arg[3];
    const ir_hyper *h = &e->env->hyper;
    double coef = *e->arg[4]->data,
           wd = h->decay_all || p->type->rank >= 2 ? h->weight_decay : 0;
    double t = update_number(e);
    double bc1 = 1 - pow(h->beta1, t), bc2 = sqrt(1 - pow(h->beta2, t));
    double shift = e->op->arg[0]->param->shift;
    int64_t n = isfinite(coef) ? ir_count(p) : 0;
    for (int64_t i = 0; i < n; i++) {
        double g = e->arg[1]->data[i] * coef, decay = wd * (p->data[i] - shift), step;
        if (h->sgd) {
            step = sgd_step(e, h, i, decay + g);
            decay = 0;
        } else {
            m->data[i] = keep(e, m, h->beta1 * m->data[i] + (1 - h->beta1) * g);
            v->data[i] = keep(e, v, h->beta2 * v->data[i] + (1 - h->beta2) * g * g);
            step = m->data[i] / bc1 / (sqrt(v->data[i]) / bc2 + h->eps);
        }
        p->data[i] = keep(e, p, p->data[i] - h->lr * (decay + step));
        if (e->op->narg > 5)
            e->arg[5]->data[i] = keep(e, e->arg[5], p->data[i]);
    }
    return true;
}

bool
ir_ev_ret(ir_ev *e)
{
    (void)e;
    return true;
}
