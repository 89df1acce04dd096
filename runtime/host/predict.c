/* predict.c -- --predict: a JSON row a sample.
 *
 * Sequence classification:  {"label": 1, "probabilities": [0.1, 0.9]}
 * Token classification:     {"label": [0, 2], "probabilities": [[..], [..]]}, a token each
 * Language models:          {"label": [17, 4]}: the likeliest token at each position; for a
 *                           causal model that is the next one
 */
#include "host_int.h"

#include <stdlib.h>
#include <string.h>

static void
put_class(rt_text *label, rt_text *probabilities, const float *p, int64_t n)
{
    int64_t best = 0;
    for (int64_t c = 0; c < n; c++) {
        rt_putf(probabilities, "%s%.6g", c ? ", " : "[", (double)p[c]);
        best = p[c] > p[best] ? c : best;
    }
    rt_putf(probabilities, "]");
    rt_putf(label, "%lld", (long long)best);
}

/* One row of the batch as a line of text; free it. */
static char *
row_text(const rt_run *run, const rt_data *d, int64_t b, int64_t length)
{
    const rt_program *p = run->program;
    const float *prob =
        p->eval_prob_at < 0 ? NULL : (float *)(run->arena + p->eval_prob_at);
    const int64_t *pred =
        p->eval_pred_at < 0 ? NULL : (int64_t *)(run->arena + p->eval_pred_at);
    rt_text label = {0}, more = {0};
    if (prob && d->row_labels)
        put_class(&label, &more, prob + b * p->labels, p->labels);
    for (int64_t t = 0; t < length && !d->row_labels; t++) {
        rt_putf(&label, t ? ", " : "[");
        rt_putf(&more, t ? ", " : "[");
        if (prob)
            put_class(&label, &more, prob + (b * p->seq + t) * p->labels, p->labels);
        else
            rt_putf(&label, "%lld", (long long)(pred ? pred[b * p->seq + t] : -1));
    }
    if (!d->row_labels) {
        rt_putf(&label, "]");
        rt_putf(&more, "]");
    }
    rt_text line = {0};
    rt_putf(&line, "{\"label\": %s", label.s);
    if (prob)
        rt_putf(&line, ", \"probabilities\": %s", more.s);
    rt_putf(&line, "}\n");
    free(label.s);
    free(more.s);
    return line.s;
}

static int
write_batch(rt_run *run, const rt_data *d, int64_t first, int64_t n, rt_file *f)
{
    int code = RT_OK;
    for (int64_t b = 0; b < n && !code; b++) {
        int64_t length = rt_data_length(d, first + b);
        char *line = row_text(run, d, b, length);
        if (f)
            code = rt_file_write(f, line, strlen(line));
        else
            fputs(line, stdout);
        free(line);
    }
    return code;
}

int
rt_predict(rt_run *run, rt_data *d, const char *to)
{
    const rt_program *p = run->program;
    if (p->eval_prob_at < 0 && p->eval_pred_at < 0)
        return rt_fail(RT_USER, "--predict: this trainer computes no predictions");
    rt_file f;
    int code = to ? rt_file_open(&f, to) : RT_OK;
    int64_t *row = rt_new((size_t)p->batch, sizeof *row);
    rt_order order = {.n = d->n};
    rt_set_scale(run, 1);
    for (int64_t m = 0; m * p->batch < d->n && !code; m++) {
        int64_t n = rt_order_rows(&order, 0, m * p->batch, p->batch, row);
        rt_batch_fill(run, d, row, n);
        p->eval(run);
        code = write_batch(run, d, m * p->batch, n, to ? &f : NULL);
    }
    free(row);
    if (to)
        code = rt_file_done(&f);
    else if (fflush(stdout) || ferror(stdout))
        code = rt_fail(RT_USER, "predictions: writing to stdout failed");
    if (!code)
        rt_say("saved", "%s: %lld predictions", to ? to : "stdout", (long long)d->n);
    return code;
}
