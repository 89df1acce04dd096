/* predict.c -- --predict: a JSON row a sample.
 *
 * Sequence classification:  {"label": 1, "probabilities": [0.1, 0.9]}
 * Token classification:     {"label": [0, 2], "probabilities": [[..], [..]]}, a token each
 * Masked language model:    {"label": [17, 4]}: the likeliest token at each position
 * Causal language model:    {"label": [17, 4], "next": 4}: the likeliest next token after
 *                           each position, and the one that goes on after the row
 * Regression:               {"prediction": [2.5]}, a number an output
 *
 * A row with labels has "loss", too: the mean over its supervised tokens or values, before
 * any update; a causal model has it of every row, since the row's own tokens are labels where
 * none are given. A number that is not finite is null.
 */
#include "host_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct seen { /* what eval() has left of a batch; NULL: the program has none */
    const float *value, *prob, *loss;
    const int64_t *pred;
} seen;

typedef struct sample { /* a row of the batch that eval() has seen */
    const rt_run *run;
    const rt_data *data;
    const seen *seen;
    int64_t b, row, length; /* place in the batch, number in the data, tokens */
} sample;

/* n elements of 4 or 8 bytes in the arena, `at` bytes from its beginning; at -1: NULL. */
static const void *
result(const rt_run *run, int64_t at, int64_t n, int64_t size)
{
    return at < 0 ? NULL : rt_look(run, run->arena + at, n * size);
}

static seen
look_at(const rt_run *run, const rt_data *d)
{
    const rt_program *p = run->program;
    int64_t rows = p->batch, most = rows * (d->row_labels ? 1 : p->seq);
    for (int k = RT_ROWS; k <= RT_SUP && !d->row_labels; k++)
        most = p->nsize[k] ? run->size[k] : most; /* RT_SUP, if there are sizes of it */
    int64_t columns = p->labels ? p->labels : p->vocab; /* of prob */
    bool values = p->eval_value_at >= 0;
    return (seen){.value = result(run, p->eval_value_at, rows * p->labels, 4),
                  .prob = result(run, p->eval_prob_at, most * columns, 4),
                  .loss = result(run, p->eval_row_loss_at, values ? rows : most, 4),
                  .pred = result(run, p->eval_pred_at, most, 8)};
}

static void
looked_at(const seen *s)
{
    rt_looked(s->value);
    rt_looked(s->prob);
    rt_looked(s->loss);
    rt_looked(s->pred);
}

/* ---- the loss of a row ---- */

static int64_t
count_values(const sample *s)
{
    int64_t n = 0;
    for (int64_t k = 0; k < s->run->program->labels; k++)
        n += !isnan(rt_data_value(s->data, s->row, k));
    return n;
}

/* Sum of the losses of the row's tokens that have a label; how many they are. */
static int64_t
token_losses(const sample *s, const float *loss, double *sum)
{
    int64_t n = 0, shift = s->data->causal;
    for (int64_t t = 0; t + shift < s->length; t++) {
        if (rt_data_label(s->data, s->row, t + shift) == RT_IGNORE)
            continue;
        *sum += (double)loss[rt_result_row(s->run, s->b, t)];
        n++;
    }
    return n;
}

static void
put_number(rt_text *t, double x)
{
    if (isfinite(x))
        rt_putf(t, "%.7g", x);
    else
        rt_putf(t, "null");
}

/* , "loss": .. where the row has labels */
static void
put_loss(rt_text *line, const sample *s)
{
    const rt_program *p = s->run->program;
    const float *loss = s->seen->loss;
    if (!loss)
        return;
    double sum = s->data->row_labels ? (double)loss[s->b] : 0;
    int64_t n;
    if (p->eval_value_at >= 0)
        n = count_values(s);
    else if (s->data->row_labels)
        n = rt_data_label(s->data, s->row, 0) != RT_IGNORE;
    else
        n = token_losses(s, loss, &sum);
    if (!n)
        return;
    rt_putf(line, ", \"loss\": ");
    put_number(line, sum / (double)n);
}

/* ---- what is predicted ---- */

static int64_t
best_of(const float *p, int64_t n)
{
    int64_t best = 0;
    for (int64_t c = 0; c < n; c++)
        best = p[c] > p[best] ? c : best;
    return best;
}

static void
put_numbers(rt_text *t, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        rt_putf(t, i ? ", " : "[");
        put_number(t, (double)x[i]);
    }
    rt_putf(t, "]");
}

static void
put_class(rt_text *line, const sample *s, const float *prob)
{
    int64_t n = s->run->program->labels;
    rt_putf(line, "{\"label\": %lld, \"probabilities\": ",
            (long long)best_of(prob + s->b * n, n));
    put_numbers(line, prob + s->b * n, n);
}

/* Of each token: its class, or the likeliest token. */
static void
put_tokens(rt_text *line, const sample *s, const float *prob, const int64_t *pred)
{
    const rt_program *p = s->run->program;
    int64_t n = p->labels ? p->labels : p->vocab, id = -1;
    rt_putf(line, "{\"label\": [");
    for (int64_t t = 0; t < s->length; t++) {
        int64_t at = rt_result_row(s->run, s->b, t);
        id = prob ? best_of(prob + at * n, n) : pred[at];
        rt_putf(line, "%s%lld", t ? ", " : "", (long long)id);
    }
    rt_putf(line, "]");
    if (s->data->causal)
        rt_putf(line, ", \"next\": %lld", (long long)id);
    if (!p->labels)
        return;
    rt_putf(line, ", \"probabilities\": [");
    for (int64_t t = 0; t < s->length; t++) {
        rt_putf(line, t ? ", " : "");
        put_numbers(line, prob + rt_result_row(s->run, s->b, t) * n, n);
    }
    rt_putf(line, "]");
}

static void
put_row(rt_text *line, const sample *s)
{
    const rt_program *p = s->run->program;
    const float *value = s->seen->value, *prob = s->seen->prob;
    if (value) {
        rt_putf(line, "{\"prediction\": ");
        put_numbers(line, value + s->b * p->labels, p->labels);
    } else if (prob && s->data->row_labels) {
        put_class(line, s, prob);
    } else {
        put_tokens(line, s, prob, s->seen->pred);
    }
    put_loss(line, s);
    rt_putf(line, "}\n");
}

/* to: an rt_file, or NULL: stdout. */
static int
write_batch(const rt_run *run, const rt_data *d, const int64_t *row, int64_t n,
            void *to)
{
    int code = RT_OK;
    seen results = look_at(run, d);
    for (int64_t b = 0; b < n && !code; b++) {
        sample s = {run, d, &results, b, row[b], rt_data_length(d, row[b])};
        rt_text line = {0};
        if (s.length < 0) {
            code = RT_USER; /* said why */
            break;
        }
        put_row(&line, &s);
        if (to)
            code = rt_file_write(to, line.s, line.n);
        else if (fputs(line.s, stdout) < 0)
            code = rt_fail(RT_USER, "predictions: writing to stdout failed");
        free(line.s);
    }
    looked_at(&results);
    return code;
}

int
rt_predict(rt_run *run, rt_data *d, const char *to)
{
    const rt_program *p = run->program;
    if (p->eval_prob_at < 0 && p->eval_pred_at < 0 && p->eval_value_at < 0)
        return rt_fail(RT_USER, "--predict: this trainer computes no predictions");
    rt_file f;
    int code = to ? rt_file_open(&f, to) : RT_OK;
    const char *what =
        to ? "predict" : NULL; /* on a terminal, rows are progress enough */
    if (!code)
        code = rt_each_batch(run, d, what, write_batch, to ? &f : NULL);
    if (to) {
        f.code = f.code ? f.code : code; /* rows that are not whole make no file */
        code = rt_file_done(&f);
    } else if (!code && (fflush(stdout) || ferror(stdout))) {
        code = rt_fail(RT_USER, "predictions: writing to stdout failed");
    }
    if (!code)
        rt_say("saved", "%s: %lld predictions", to ? to : "stdout", (long long)d->n);
    return code;
}
