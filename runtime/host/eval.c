/* eval.c -- eval() over all rows of some data, and what an evaluation says. */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>

int
rt_each_batch(rt_run *run, const rt_data *d, const char *what, rt_batch_seen *seen,
              void *ctx)
{
    const rt_program *p = run->program;
    rt_order order = {.n = d->n}; /* every row once, as they stand */
    int64_t *row = rt_new((size_t)p->batch, sizeof *row), n;
    int code = RT_OK;
    rt_progress bar;
    rt_progress_start(&bar, 0);
    rt_set_scale(run, 1);
    for (int64_t at = 0; !code && at < d->n; at += n) {
        n = rt_order_rows(&order, 0, at, p->batch, row);
        if (rt_stop_asked())
            code = RT_STOPPED;
        else if (rt_batch_fill(run, d, row, n) < 0)
            code = RT_USER;
        if (code)
            break;
        rt_execute(run, RT_EVAL);
        code = seen(run, d, row, n, ctx);
        if (what)
            rt_progress_part(&bar, what, at + n, d->n);
    }
    rt_progress_clear(&bar);
    free(row);
    return code;
}

static int
add_up(const rt_run *run, const rt_data *d, const int64_t *row, int64_t n, void *sums)
{
    (void)d, (void)row, (void)n;
    rt_metrics_add(sums, run);
    return RT_OK;
}

int
rt_evaluate(const rt_job *job, int64_t step, rt_log_value *row, int *n)
{
    const rt_program *p = job->run->program;
    rt_metrics sums;
    rt_metrics_start(&sums, p);
    int code = rt_each_batch(job->run, job->eval, "eval", add_up, &sums);
    if (!code) {
        rt_text text = {0};
        rt_log_value logged[RT_MAX_METRICS + 1] = {{"step", (double)step, NULL}};
        *n = rt_metrics_rows(&sums, p, row, &text);
        for (int i = 0; i < *n; i++)
            logged[1 + i] = row[i];
        rt_log_row(job->log, 1 + *n, logged);
        rt_say("eval", "step %lld: %s", (long long)step, text.s);
        if (!isfinite(row[0].value))
            rt_warn("the loss of the evaluation is not finite: the weights are broken, "
                    "or overflow on these rows");
        free(text.s);
    }
    rt_metrics_free(&sums);
    return code;
}
