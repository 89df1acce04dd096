/* onnx_tables.c -- params whose values say that they are no weights.
 *
 * Exporters fold what depends on no input, such as a causal mask or the sines and cosines of
 * all positions, and PyTorch keeps the same as buffers; in the file both look like weights. A
 * mask holds nothing but 0 and large negative numbers. Sines and cosines lie on a circle: the
 * squares of the two halves of each row, or of two tables of one shape, add up to the same
 * number everywhere. No weight does that; but one that PyTorch calls a weight is one, however
 * it began.
 */
#include "structure_int.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 4096 };

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

/* Are the n points (x, y) on it? */
static bool
on_circle(circle *c, const float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double a = fabs((double)x[i]), b = (double)y[i], size = a * a + b * b;
        if (c->size == 0)
            c->size = size, c->first = a;
        if (!(size > 0) || !(fabs(size - c->size) <= 0.01 * c->size))
            return false;
        c->turns |= fabs(a - c->first) > 0.01 * sqrt(size);
    }
    return true;
}

/* Do the halves of p's rows lie on a circle? */
static bool
halves_turn(fe_imp *im, const ir_param *p)
{
    float x[CHUNK];
    const ir_type *t = p->value->type;
    int64_t n = ir_type_count(t), d = t->dim[t->rank - 1];
    circle c = {0};
    if (d % 2 || d > CHUNK)
        return false;
    for (int64_t at = 0; at < n; at += d)
        if (!ir_read_f32(im->m, p, 0, at, d, x) || !on_circle(&c, x, x + d / 2, d / 2))
            return false;
    return c.turns;
}

static bool
pair_turns(fe_imp *im, const ir_param *p, const ir_param *q)
{
    float x[CHUNK], y[CHUNK];
    int64_t n = ir_type_count(p->value->type);
    circle c = {0};
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t k = n - at < CHUNK ? n - at : CHUNK;
        if (!ir_read_f32(im->m, p, 0, at, k, x) ||
            !ir_read_f32(im->m, q, 0, at, k, y) || !on_circle(&c, x, y, k))
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
    return halves_turn(im, p);
}

bool
fe_is_table(fe_imp *im, const ir_param *p)
{
    return is_mask(im, p) || turns(im, p);
}
