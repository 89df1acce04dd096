/* curve.h -- a curve of any length in bounded memory, for the report.
 *
 * Rows go into buckets, at first one each. When all buckets are full, neighbours become one
 * and each takes twice as many rows from then on. A bucket keeps its smallest and largest
 * value with their steps, so no peak is lost however long the run, and the sum, for the
 * smoothed curve. Values that are not finite are rows without a value: a gap.
 */
#ifndef EFFICC_CURVE_H
#define EFFICC_CURVE_H

#include "host_int.h"

enum { RT_CURVE_BUCKETS = 1024 };

typedef struct rt_point {
    double step, value;
} rt_point;
typedef struct rt_bucket {
    int64_t rows, n;   /* n: with a value */
    double sum, steps; /* of those; steps: sum of their steps */
    rt_point low, high;
    double first; /* step of the first row */
} rt_bucket;
typedef struct rt_curve {
    char *key;
    int64_t rows, n, per; /* n: rows with a value; per: rows of a bucket */
    double sum;
    rt_point low, high, last; /* of those with a value; the first of equal ones */
    int nbucket;
    rt_bucket *bucket;
} rt_curve;

rt_curve rt_curve_of(const char *key);
void rt_curve_add(rt_curve *, double step, double value);
/* {"key", "rows", "per", "mean", "last", "low", "high": [step, value], "x": [..], "y": [..]}
 * with null in y for a gap. smooth: also "smooth": {"over": rows, "x", "y"}, a line fitted to
 * the neighbours of each point. */
void rt_curve_json(const rt_curve *, bool smooth, rt_text *);
void rt_curve_free(rt_curve *);

#endif
