/* cmd_verify_slope.c -- are the gradients that the interpreter computes the slopes of its
 * losses? Without rounding, along a direction d in which all trained params change at once,
 *     (loss(w + e d) - loss(w - e d)) / 2 e  against  sum of g d,
 * and along one for each unit, so that a wrong rule is found where it is. d is random in
 * size and has the gradient's sign: no parts cancel, and each element counts.
 */
#include "cmd_verify.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { SECONDS = 60 }; /* units are left out after that */
static const double step = 1e-7;
/* The error of the difference itself is step^2 times a third derivative; what counts is
 * kinks of relu and the like, which few elements lie at. */
static const double allowed = 1e-4;

typedef struct walk {
    ir_module *m;
    ir_env env;
    uint64_t state;
} walk;

static double
random01(walk *w)
{
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(w->state >> 11) * 0x1p-53;
}

static bool
loss(walk *w, double *out)
{
    const ir_op *ret = w->m->step->last->last;
    ir_env_zero_grads(w->m, &w->env);
    bool ok = ir_interp(w->m->step, 1u << IR_FWD | 1u << IR_BWD, &w->env);
    *out = ok ? ir_env_get(&w->env, ret->arg[0])->data[0] : 0;
    return ok;
}

static bool
moves(const ir_param *p, int unit)
{
    return p->cls == IR_TRAIN && (unit < 0 || p->unit == unit);
}

/* Makes a direction; returns its slope by the gradients in env. d[i]: of param i; NULL: it
 * does not move. */
static double
choose(walk *w, int unit, ef_arena *a, double **d)
{
    double sum = 0;
    for (int i = 0; i < w->m->params.n; i++) {
        const ir_param *p = w->m->params.at[i],
                       *grad = moves(p, unit) ? ir_grad_of(w->m, p) : NULL;
        d[i] = NULL;
        if (!grad)
            continue;
        const double *x = ir_env_get(&w->env, p->value)->data;
        const double *g = ir_env_get(&w->env, grad->value)->data;
        int64_t n = ir_type_count(p->value->type);
        double size = 0;
        for (int64_t k = 0; k < n; k++)
            size += x[k] * x[k];
        size = size > 0 ? sqrt(size / (double)n) : 0.01;
        d[i] = EF_NEWN(a, double, n + 1);
        for (int64_t k = 0; k < n; k++) {
            d[i][k] = g[k] == 0 ? 0 : copysign(size * random01(w), g[k]);
            sum += d[i][k] * g[k];
        }
    }
    return sum;
}

static void
go(walk *w, double *const *d, double by)
{
    for (int i = 0; i < w->m->params.n; i++) {
        const ir_value *v = w->m->params.at[i]->value;
        double *x = d[i] ? ir_env_get(&w->env, v)->data : NULL;
        for (int64_t k = 0; x && k < ir_type_count(v->type); k++)
            x[k] += by * d[i][k];
    }
}

static bool
measure(walk *w, int unit, slope *s)
{
    ef_arena *a = ef_arena_new();
    double **d = EF_NEWN(a, double *, w->m->params.n + 1), at = 0, up = 0, down = 0;
    bool ok = loss(w, &at);
    if (ok)
        s->gradient = choose(w, unit, a, d);
    go(w, d, ok ? step : 0);
    ok = ok && loss(w, &up);
    go(w, d, ok ? -2 * step : 0);
    ok = ok && loss(w, &down);
    go(w, d, ok ? step : 0);
    if (ok) {
        s->difference = (up - down) / (2 * step);
        double size = fmax(fabs(s->gradient), fabs(s->difference));
        /* what rounding of the losses leaves */
        double noise = 1e-13 * fabs(at) / step;
        s->error = size > 0 ? fabs(s->gradient - s->difference) / size : 0;
        s->bad = !(fabs(s->gradient - s->difference) <= allowed * size + noise);
    }
    ef_arena_free(a);
    return ok;
}

static bool
has_trained(const ir_module *m, int unit)
{
    for (int i = 0; i < m->params.n; i++)
        if (moves(m->params.at[i], unit))
            return true;
    return false;
}

bool
verify_slopes(ir_module *m, const record *r, slopes *out)
{
    walk w = {.m = m, .env = {.arena = ef_arena_new(), .exact = true}, .state = 1};
    time_t begin = time(NULL);
    out->at = EF_NEWN(r->arena, slope, m->units.n + 1);
    bool ok = verify_fill(m, r, &w.env);
    for (int unit = -1; unit < m->units.n && ok; unit++) {
        if (!has_trained(m, unit))
            continue;
        if (unit >= 0 && time(NULL) - begin > SECONDS) {
            out->left++;
            continue;
        }
        slope *s = &out->at[out->n++];
        s->unit = unit < 0 ? NULL : m->units.at[unit];
        ok = measure(&w, unit, s);
        out->bad += s->bad;
    }
    ef_arena_free(w.env.arena);
    return ok;
}
