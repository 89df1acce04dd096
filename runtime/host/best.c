/* best.c -- what a run remembers of its evaluations and gradients: the best value of the
 * metric, how long it has not improved, and which norms stand out.
 *
 * As in the Hugging Face Trainer: any improvement is a new best; early stopping, which looks
 * first, counts an evaluation as worse unless it improves on the best so far by more than
 * the threshold; a value that is not a number is no improvement.
 */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MIN_NORMS = 16, OUTLIER = 10 };

/* ---- the metric ---- */

/* The keys of this program's evaluation; how many. */
static int
metric_keys(const rt_program *p, rt_log_value *row)
{
    rt_metrics none;
    rt_text text = {0};
    rt_metrics_start(&none, p);
    int n = rt_metrics_rows(&none, p, row, &text);
    rt_metrics_free(&none);
    free(text.s);
    return n;
}

/* "eval_loss" as people call it. */
static const char *
plain(const char *key)
{
    return strncmp(key, "eval_", 5) ? key : key + 5;
}

static int
find_metric(const char *name, int n, const rt_log_value *row)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(plain(name), plain(row[i].key)))
            return i;
    return -1;
}

/* Losses and errors are better when they are lower. */
static bool
greater_is_better(const char *key)
{
    return !strcmp(plain(key), "accuracy") || !strcmp(plain(key), "pearson");
}

int
rt_best_check(const rt_opts *o, const rt_program *p)
{
    rt_log_value row[RT_MAX_METRICS];
    int n = metric_keys(p, row);
    if (find_metric(o->metric_for_best_model, n, row) >= 0)
        return RT_OK;
    rt_text t = {0};
    for (int i = 0; i < n; i++)
        rt_putf(&t, "%s%s", i ? ", " : "", plain(row[i].key));
    int code =
        rt_fail(RT_USER,
                "--metric-for-best-model: an evaluation of this trainer (%s) has "
                "no '%s'\nit has %s",
                p->task, o->metric_for_best_model, t.s);
    free(t.s);
    return code;
}

/* ---- the best evaluation ---- */

/* Which data are evaluated: a number as large as a manifest's may be. */
static int64_t
evaluation_of(const rt_job *job)
{
    rt_text t = {0};
    rt_data_identity(job->eval, &t);
    uint64_t hash = XXH3_64bits(t.s, t.n);
    free(t.s);
    return (int64_t)(hash % ((uint64_t)1 << 53));
}

bool
rt_best_see(const rt_job *job, rt_train_state *s, const rt_log_value *row)
{
    const rt_opts *o = job->opts;
    rt_log_value keys[RT_MAX_METRICS];
    int n = metric_keys(job->run->program, keys);
    int k = find_metric(o->metric_for_best_model, n, keys);
    double x = row[k].value, gain = x - s->best;
    if (!greater_is_better(row[k].key))
        gain = -gain;
    bool better = isfinite(x) && (!s->best_step || gain > 0);
    bool enough = !s->evaluated ||
                  (better && (!s->best_step || gain > o->early_stopping_threshold));
    s->worse = enough ? 0 : s->worse + 1;
    s->metric = k;
    s->evaluation = evaluation_of(job);
    if (!better)
        return false;
    s->best = x;
    s->best_step = s->step;
    return true;
}

bool
rt_best_stops(const rt_opts *o, const rt_train_state *s)
{
    return o->early_stopping_patience && s->worse >= o->early_stopping_patience;
}

static void
forget(rt_train_state *s, const char *why)
{
    rt_say("note", "the best evaluation so far, step %lld, does not count: %s",
           (long long)s->best_step, why);
    s->best = 0;
    s->best_step = s->worse = 0;
}

void
rt_best_resume(const rt_job *job, rt_train_state *s)
{
    const rt_opts *o = job->opts;
    rt_log_value keys[RT_MAX_METRICS];
    int n = metric_keys(job->run->program, keys);
    if (s->best_step && s->metric != find_metric(o->metric_for_best_model, n, keys))
        forget(s, "it was of another metric");
    if (s->best_step && job->eval && s->evaluation != evaluation_of(job))
        forget(s, "it was of other --eval-data");
    if (s->best_step && o->load_best_model_at_end &&
        !rt_checkpoint_is_of(o->output_dir, s->best_step, s->run))
        forget(s, "its weights were not saved here");
}

/* ---- gradient norms ---- */

static int
compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double
rt_norm_see(rt_train_state *s, double norm)
{
    double sorted[RT_NORMS];
    int64_t n = s->nnorm < RT_NORMS ? s->nnorm : RT_NORMS;
    memcpy(sorted, s->norm, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    double median = n ? sorted[n / 2] : 0;
    s->norm[s->nnorm++ % RT_NORMS] = norm;
    bool outlier = n >= MIN_NORMS && median > 0 && norm > OUTLIER * median;
    s->outliers += outlier;
    return outlier ? median : 0;
}
