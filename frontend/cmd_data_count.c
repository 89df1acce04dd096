/* cmd_data_count.c -- what rows hold, in one pass over all of them.
 *
 * Kept are a number for each length and for each of the first labels that turn up, so that
 * memory does not grow with the data, and quantiles of lengths are still exact.
 */
#include "cmd_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BARS = 12 };

static void
count_length(cmd_counts *c, int64_t n)
{
    if (n >= c->cap) {
        int64_t cap = 2 * n + 64;
        c->length = rt_grow(c->length, (size_t)cap * sizeof *c->length);
        memset(c->length + c->cap, 0, (size_t)(cap - c->cap) * sizeof *c->length);
        c->cap = cap;
    }
    c->length[n]++;
    c->least = !c->longest || n < c->least ? n : c->least;
    c->longest = n > c->longest ? n : c->longest;
}

static void
count_label(cmd_counts *c, int32_t label)
{
    int low = 0, high = c->nlabel;
    while (low < high) {
        int mid = (low + high) / 2;
        if (c->label[mid].label < label)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < c->nlabel && c->label[low].label == label) {
        c->label[low].n++;
        return;
    }
    if (c->nlabel == CMD_LABELS)
        return;
    memmove(&c->label[low + 1], &c->label[low],
            sizeof *c->label * (size_t)(c->nlabel - low));
    c->label[low] = (cmd_label){label, 1};
    c->nlabel++;
}

static void
count_values(cmd_counts *c, const rt_row *row)
{
    for (int64_t k = 0; k < row->nlabel; k++) {
        double x = row->value[k];
        if (isnan(x)) {
            c->nnull++;
            continue;
        }
        c->low = !c->nvalue || x < c->low ? x : c->low;
        c->high = !c->nvalue || x > c->high ? x : c->high;
        c->sum += x;
        c->nvalue++;
    }
}

static void
count_row(const rt_data *d, const rt_row *row, cmd_counts *c)
{
    const int32_t *label = row->field[RT_F_LABELS];
    bool of_row = d->spec.label == RT_LABEL_ROW ||
                  (d->spec.label == RT_LABEL_ANY && row->nlabel == 1 && row->n > 1);
    count_length(c, row->n);
    for (int64_t t = 0; t < row->n; t++)
        if (row->field[RT_F_IDS][t] > c->largest)
            c->largest = row->field[RT_F_IDS][t];
    if (row->value) {
        c->values = true;
        count_values(c, row);
    } else if (label) {
        c->row_labels |= of_row;
        c->token_labels |= !of_row;
        for (int64_t k = 0; k < row->nlabel && !d->causal; k++)
            count_label(c, label[k]);
    }
}

int
cmd_count(const rt_data *d, cmd_counts *c)
{
    c->largest = -1;
    for (int64_t i = 0; i < d->n; i++) {
        const rt_row *row = rt_data_look(d, i);
        if (!row)
            return RT_USER;
        count_row(d, row, c);
        c->unlearnt += !rt_data_supervised(d, i);
    }
    return RT_OK;
}

int64_t
cmd_rows_between(const cmd_counts *c, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t k = from; k < to && k <= c->longest; k++)
        n += c->length[k];
    return n;
}

int64_t
cmd_quantile(const cmd_counts *c, int64_t rows, double share)
{
    int64_t want = (int64_t)ceil(share * (double)rows), have = 0, k = 0;
    while (k < c->longest && (have += c->length[k]) < want)
        k++;
    return k;
}

int64_t
cmd_bar_width(const cmd_counts *c)
{
    int64_t width = 1;
    while (c->longest / width - c->least / width >= BARS)
        width *= 2;
    return width;
}
