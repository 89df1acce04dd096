/* metrics.c -- what an evaluation says beside the loss.
 *
 * Classifiers and language models: the share of supervised targets that the largest logit
 * hits, and for language models e to the loss. Regression: the mean of the absolute errors
 * and Pearson's correlation of predictions and values, for several outputs the mean of
 * their correlations. Means and products of deviations are updated value by value (Welford,
 * 1962), so large values far from zero lose nothing.
 */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>

typedef struct rt_column { /* of the supervised pairs (x, y) of an output */
    int64_t n;
    double x, y;       /* means */
    double xx, yy, xy; /* sums of products of deviations */
} rt_column;

void
rt_metrics_start(rt_metrics *m, const rt_program *p)
{
    *m = (rt_metrics){0};
    if (p->eval_value_at >= 0)
        m->column = rt_new((size_t)p->labels, sizeof *m->column);
}

void
rt_metrics_free(rt_metrics *m)
{
    free(m->column);
    m->column = NULL;
}

static void
add_pair(rt_column *c, double x, double y)
{
    double dx = x - c->x, dy = y - c->y;
    c->n++;
    c->x += dx / (double)c->n;
    c->y += dy / (double)c->n;
    c->xx += dx * (x - c->x);
    c->yy += dy * (y - c->y);
    c->xy += dx * (y - c->y);
}

static void
add_values(rt_metrics *m, const rt_run *run, const float *value)
{
    const rt_program *p = run->program;
    int64_t n = p->batch * p->labels;
    const float *y =
        rt_look(run, run->arena + p->eval_value_at, n * (int64_t)sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        if (isnan(value[i]))
            continue;
        m->supervised++;
        m->error += fabs((double)y[i] - (double)value[i]);
        add_pair(&m->column[i % p->labels], (double)y[i], (double)value[i]);
    }
    rt_looked(y);
}

static int64_t
count_targets(const rt_input *in, const int64_t *target)
{
    int64_t n = 1, supervised = 0;
    for (int d = 0; d < in->rank; d++)
        n *= in->dim[d];
    for (int64_t i = 0; i < n; i++)
        supervised += target[i] != RT_IGNORE;
    return supervised;
}

void
rt_metrics_add(rt_metrics *m, const rt_run *run)
{
    const rt_program *p = run->program;
    float loss;
    int64_t right = 0;
    rt_download(run->compute, &loss, run->arena + p->eval_loss_at, sizeof loss);
    if (p->eval_right_at >= 0)
        rt_download(run->compute, &right, run->arena + p->eval_right_at, sizeof right);
    m->loss += (double)loss;
    m->right += right;
    for (int i = 0; i < p->ninput; i++) {
        if (p->input[i].role == RT_TARGETS)
            m->supervised += count_targets(&p->input[i], run->host_input[i]);
        if (p->input[i].role == RT_VALUES && p->eval_value_at >= 0)
            add_values(m, run, run->host_input[i]);
    }
}

/* Mean over the outputs; not a number where a column does not vary. */
static double
pearson(const rt_metrics *m, int64_t columns)
{
    double sum = 0;
    for (int64_t k = 0; k < columns; k++)
        sum += m->column[k].xy / sqrt(m->column[k].xx * m->column[k].yy);
    return sum / (double)columns;
}

static void
put_number(rt_text *t, const char *name, double x)
{
    if (isfinite(x))
        rt_putf(t, ", %s %.5g", name, x);
    else
        rt_putf(t, ", %s unknown", name);
}

int
rt_metrics_rows(const rt_metrics *m, const rt_program *p, rt_log_value *out,
                rt_text *text)
{
    int n = 0;
    double loss = m->loss / (double)m->supervised;
    out[n++] = RT_LOG_NUMBER("eval_loss", loss);
    rt_putf(text, "loss %.5g", loss);
    if (m->column) {
        out[n++] = RT_LOG_NUMBER("eval_mse", loss);
        out[n++] = RT_LOG_NUMBER("eval_mae", m->error / (double)m->supervised);
        put_number(text, "mean absolute error", out[n - 1].value);
        out[n++] = RT_LOG_NUMBER("eval_pearson", pearson(m, p->labels));
        put_number(text, "Pearson correlation", out[n - 1].value);
        rt_putf(text, " of %lld values", (long long)m->supervised);
        return n;
    }
    out[n++] = RT_LOG_NUMBER("eval_accuracy", (double)m->right / (double)m->supervised);
    rt_putf(text, ", accuracy %.4f of %lld", out[n - 1].value,
            (long long)m->supervised);
    if (!p->labels) {
        out[n++] = RT_LOG_NUMBER("eval_perplexity", exp(loss));
        put_number(text, "perplexity", exp(loss));
    }
    return n;
}
