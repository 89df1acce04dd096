/* curve.c -- see curve.h. */
#include "curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* a window of 1/20 of the run on each side, from 20 rows on */
enum { SMOOTH_SHARE = 20, SMOOTH_LEAST = 3, SMOOTH_FROM = 20 };

rt_curve
rt_curve_of(const char *key)
{
    return (rt_curve){.key = strdup(key),
                      .per = 1,
                      .bucket = rt_new(RT_CURVE_BUCKETS, sizeof(rt_bucket))};
}

void
rt_curve_free(rt_curve *c)
{
    free(c->key);
    free(c->bucket);
    *c = (rt_curve){0};
}

/* b follows a. */
static rt_bucket
joined(rt_bucket a, rt_bucket b)
{
    rt_bucket j = a.n ? a : b;
    j.first = a.first;
    j.rows = a.rows + b.rows;
    if (!a.n || !b.n)
        return j;
    j.n = a.n + b.n;
    j.sum = a.sum + b.sum;
    j.steps = a.steps + b.steps;
    j.low = b.low.value < a.low.value ? b.low : a.low;
    j.high = b.high.value > a.high.value ? b.high : a.high;
    return j;
}

static void
halve(rt_curve *c)
{
    for (int i = 0; i < c->nbucket / 2; i++)
        c->bucket[i] = joined(c->bucket[2 * i], c->bucket[2 * i + 1]);
    c->nbucket /= 2;
    c->per *= 2;
}

void
rt_curve_add(rt_curve *c, double step, double value)
{
    rt_point p = {step, value};
    rt_bucket one = {.rows = 1, .first = step};
    bool full = c->nbucket && c->bucket[c->nbucket - 1].rows == c->per;
    if (isfinite(value)) {
        one = (rt_bucket){1, 1, value, step, p, p, step};
        c->low = c->n && c->low.value <= value ? c->low : p;
        c->high = c->n && c->high.value >= value ? c->high : p;
        c->last = p;
        c->sum += value;
        c->n++;
    }
    c->rows++;
    if (full && c->nbucket == RT_CURVE_BUCKETS)
        halve(c);
    if (full || !c->nbucket)
        c->bucket[c->nbucket++] = one;
    else
        c->bucket[c->nbucket - 1] = joined(c->bucket[c->nbucket - 1], one);
}

static void
put_list(rt_text *t, const char *name, const double *x, int n, const char *format)
{
    rt_putf(t, ", \"%s\": [", name);
    for (int i = 0; i < n; i++) {
        rt_putf(t, i ? "," : "");
        rt_putf(t, isfinite(x[i]) ? format : "null", x[i]);
    }
    rt_putf(t, "]");
}

static void
put_points(rt_text *t, const rt_point *p, int n)
{
    double *x = rt_new((size_t)n + 1, sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = p[i].step;
    put_list(t, "x", x, n, "%.10g");
    for (int i = 0; i < n; i++)
        x[i] = p[i].value;
    put_list(t, "y", x, n, "%.6g");
    free(x);
}

/* The extremes of each bucket in the order of their steps; a bucket without a value is a
 * gap. At most two a bucket; returns how many. */
static int
points(const rt_curve *c, rt_point *p)
{
    int n = 0;
    for (int i = 0; i < c->nbucket; i++) {
        const rt_bucket *b = &c->bucket[i];
        bool up = b->low.step <= b->high.step;
        if (!b->n) {
            p[n++] = (rt_point){b->first, NAN};
            continue;
        }
        p[n++] = up ? b->low : b->high;
        if (b->low.step != b->high.step)
            p[n++] = up ? b->high : b->low;
    }
    return n;
}

/* The value at the middle of bucket i by the straight line that fits it and `side`
 * neighbours on both sides best; those further away count less. At the ends there are as many
 * on one side: there, a line follows the curve and a mean would not. */
static rt_point
fitted(const rt_curve *c, int i, int side)
{
    const rt_bucket *at = &c->bucket[i];
    double x = at->n ? at->steps / (double)at->n : at->first;
    int from = i + side < c->nbucket ? i - side : c->nbucket - 1 - 2 * side;
    from = from > 0 ? from : 0;
    int to = from + 2 * side < c->nbucket ? from + 2 * side : c->nbucket - 1;
    int reach = (i - from > to - i ? i - from : to - i) + 1;
    double n = 0, dx = 0, y = 0, xx = 0, xy = 0;
    for (int k = from; k <= to; k++) {
        const rt_bucket *b = &c->bucket[k];
        if (!b->n)
            continue;
        double w = 1 - (double)abs(k - i) / reach, rows = w * (double)b->n;
        double d = b->steps / (double)b->n - x;
        n += rows;
        dx += rows * d;
        y += w * b->sum;
        xx += rows * d * d;
        xy += w * b->sum * d;
    }
    double spread = n * xx - dx * dx;
    double value = spread > 0 ? (xx * y - dx * xy) / spread : y / n;
    return (rt_point){x, n > 0 ? value : (double)NAN};
}

static int
smoothed(const rt_curve *c, int side, rt_point *p)
{
    for (int i = 0; i < c->nbucket; i++)
        p[i] = fitted(c, i, side);
    return c->nbucket;
}

void
rt_curve_json(const rt_curve *c, bool smooth, rt_text *t)
{
    rt_point *p = rt_new(2 * (size_t)c->nbucket + 1, sizeof *p);
    int side = c->nbucket / SMOOTH_SHARE;
    side = side > SMOOTH_LEAST ? side : SMOOTH_LEAST;
    rt_putf(t, "{\"key\": ");
    rt_put_json(t, c->key);
    rt_putf(t, ", \"rows\": %lld, \"per\": %lld", (long long)c->rows,
            (long long)c->per);
    if (c->n)
        rt_putf(t,
                ", \"mean\": %.9g, \"last\": [%.10g,%.9g], \"low\": [%.10g,%.9g], "
                "\"high\": [%.10g,%.9g]",
                c->sum / (double)c->n, c->last.step, c->last.value, c->low.step,
                c->low.value, c->high.step, c->high.value);
    put_points(t, p, points(c, p));
    if (smooth && c->n >= SMOOTH_FROM) {
        rt_putf(t, ", \"smooth\": {\"over\": %lld", (2 * side + 1) * (long long)c->per);
        put_points(t, p, smoothed(c, side, p));
        rt_putf(t, "}");
    }
    rt_putf(t, "}");
    free(p);
}
