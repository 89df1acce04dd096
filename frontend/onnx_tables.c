/* onnx_tables.c -- params whose values say that they are no weights.
 *
 * Exporters fold what depends on no input, such as a causal mask or the sines and cosines of
 * all positions, and PyTorch keeps the same as buffers; in the file both look like weights. A
 * mask holds nothing but 0 and large negative numbers, ALiBi's slopes are certain powers of 2.
 * Sines and cosines lie on a circle: the squares of the two halves of each row, of its even and
 * odd elements, or of two tables of one shape, add up to the same number everywhere. No weight
 * does that; but one that PyTorch calls a weight is one, however it began.
 */
#include "structure_int.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 4096, FIRST = 16 }; /* a few tell nearly all weights from tables */

static bool
is_mask(fe_imp *im, const ir_param *p)
{
    float x[CHUNK];
    const ir_type *t = p->value->type;
    int64_t n = ir_type_count(t);
    bool hides = false;
    if (t->rank < 2 || t->dim[t->rank - 1] != t->dim[t->rank - 2])
        return false;
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t k = n - at < CHUNK ? n - at : CHUNK;
        if (!ir_read_f32(im->m, p, 0, at, k, x))
            return false;
        for (int64_t i = 0; i < k; i++) {
            if (x[i] != 0 && !(x[i] <= -1e4f))
                return false;
            hides |= x[i] != 0;
        }
    }
    return hides;
}

/* ---- sines and cosines ---- */

typedef struct circle { /* round 0 */
    double size;        /* square of the radius; 0: nothing was seen yet */
    double first;
    bool turns; /* not all points are one */
} circle;

/* Are n points (x, y) on it, `step` elements from one to the next? */
static bool
on_circle(circle *c, const float *x, const float *y, int64_t n, int step)
{
    for (int64_t i = 0; i < n * step; i += step) {
        double a = fabs((double)x[i]), b = (double)y[i], size = a * a + b * b;
        if (c->size == 0)
            c->size = size, c->first = a;
        if (!(size > 0) || !(fabs(size - c->size) <= 0.01 * c->size))
            return false;
        c->turns |= fabs(a - c->first) > 0.01 * sqrt(size);
    }
    return true;
}

static bool
is_zero(const float *x, int64_t n)
{
    while (n > 0 && x[n - 1] == 0)
        n--;
    return !n;
}

/* Do p's rows lie on a circle, their halves or (`pairs`) their even and odd elements? A row of
 * zeros is the position of padding. */
static bool
rows_turn(fe_imp *im, const ir_param *p, bool pairs)
{
    float x[CHUNK];
    const ir_type *t = p->value->type;
    int64_t n = ir_type_count(t), d = t->dim[t->rank - 1], half = d / 2;
    circle c = {0};
    if (d % 2 || d > CHUNK)
        return false;
    for (int64_t at = 0; at < n; at += d)
        if (!ir_read_f32(im->m, p, 0, at, d, x) ||
            (!is_zero(x, d) &&
             !on_circle(&c, x, x + (pairs ? 1 : half), half, pairs ? 2 : 1)))
            return false;
    return c.turns;
}

static bool
pair_turns(fe_imp *im, const ir_param *p, const ir_param *q)
{
    float x[CHUNK], y[CHUNK];
    int64_t n = ir_type_count(p->value->type), k = FIRST;
    circle c = {0};
    for (int64_t at = 0; at < n; at += k, k = CHUNK) {
        k = n - at < k ? n - at : k;
        if (!ir_read_f32(im->m, p, 0, at, k, x) ||
            !ir_read_f32(im->m, q, 0, at, k, y) || !on_circle(&c, x, y, k, 1))
            return false;
    }
    return c.turns;
}

static bool
is_called_weight(const ir_param *p)
{
    const char *name = p->hf ? p->hf : p->onnx ? p->onnx : "";
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, ".weight") || !strcmp(dot, ".bias"));
}

static bool
turns(fe_imp *im, const ir_param *p)
{
    if (p->value->type->rank < 2 || is_called_weight(p))
        return false;
    for (int i = 0; i < im->m->params.n; i++) {
        const ir_param *q = im->m->params.at[i];
        if (q != p && q->value->type == p->value->type && !is_called_weight(q) &&
            pair_turns(im, p, q))
            return true;
    }
    return rows_turn(im, p, false) || rows_turn(im, p, true);
}

/* ---- slopes ---- */

/* ALiBi's (Press et al., 2022): of n heads 2^(-8 i / n), where n is a power of two; else of the
 * next lower one, P, and then as many odd powers of 2^(-4 / P) as there are heads left. */
static bool
are_slopes(fe_imp *im, const ir_param *p)
{
    enum { MOST = 256 };
    float x[MOST];
    int64_t n = ir_type_count(p->value->type), power = 1;
    if (n < 2 || n > MOST || is_called_weight(p) || !ir_read_f32(im->m, p, 0, 0, n, x))
        return false;
    while (2 * power <= n)
        power *= 2;
    for (int64_t i = 0; i < n; i++) {
        double k = i < power ? 2.0 * (double)(i + 1) : 2.0 * (double)(i - power) + 1;
        double want = exp2(-4 * k / (double)power);
        if (!(fabs((double)x[i] - want) <= 0.01 * want))
            return false;
    }
    return true;
}

bool
fe_is_table(fe_imp *im, const ir_param *p)
{
    return is_mask(im, p) || turns(im, p) || are_slopes(im, p);
}
