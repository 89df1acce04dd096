/* eval.c -- evaluation: eval() over all rows, and what it says. */
#include "host_int.h"

#include <stdlib.h>

/* Sums over all rows of d. */
static int
run_eval(rt_run *run, rt_data *d, rt_metrics *sums)
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
        p->eval(run);
        rt_metrics_add(sums, run);
        rt_progress_part(&bar, "eval", at + n, d->n);
    }
    rt_progress_clear(&bar);
    free(row);
    return code;
}

int
rt_evaluate(const rt_job *job, int64_t step, rt_log_value *row, int *n)
{
    const rt_program *p = job->run->program;
    rt_metrics sums;
    rt_metrics_start(&sums, p);
    int code = run_eval(job->run, job->eval, &sums);
    if (!code) {
        rt_text text = {0};
        rt_log_value logged[RT_MAX_METRICS + 1] = {{"step", (double)step, NULL}};
        *n = rt_metrics_rows(&sums, p, row, &text);
        for (int i = 0; i < *n; i++)
            logged[1 + i] = row[i];
        rt_log_row(job->log, 1 + *n, logged);
        rt_say("eval", "step %lld: %s", (long long)step, text.s);
        free(text.s);
    }
    rt_metrics_free(&sums);
    return code;
}
