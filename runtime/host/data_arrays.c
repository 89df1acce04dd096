/* data_arrays.c -- the rows of a file of arrays when it is opened: every number is in range,
 * no row is hidden, how many labels there are.
 */
#include "data_int.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 1024 };

/* What only whole rows show, for those in [from,to). */
static void
check_rows(rt_sweep *s, int64_t from, int64_t to)
{
    const rt_loading *l = s->of;
    const rt_data_spec *spec = &l->d->spec;
    rt_row row = {0};
    rt_counts c = {0};
    rt_faults faults = {0};
    int code = RT_OK;
    for (int64_t i = from; i < to && !code; i++) {
        code = rt_arrays_row(l->d, l->file, i, &row);
        if (!code && !rt_row_real(&row))
            rt_faults_add(&faults, i,
                          "row %lld (from 0): attention_mask hides every token",
                          (long long)i);
        for (int64_t k = 0; !code && row.value && k < row.nlabel; k++)
            if (isinf(row.value[k]))
                rt_faults_add(&faults, i, "row %lld (from 0): a label is infinite",
                              (long long)i);
        if (!code)
            rt_row_count(spec, &row, &c);
    }
    rt_row_free(&row);
    pthread_mutex_lock(&s->lock);
    rt_faults_join(&s->faults, &faults, 0);
    s->found[0] += c.nreal;
    s->found[1] += c.supervised;
    s->code = s->code ? s->code : code;
    pthread_mutex_unlock(&s->lock);
}

/* Counts that follow from the sizes alone, or from a look at each row. */
static int
count(rt_loading *l)
{
    rt_data_file *f = l->file;
    const struct rt_source *s = f->source;
    f->nreal = f->ntoken;
    f->supervised = l->d->causal ? f->ntoken - f->n : 0;
    if (!s->array[RT_F_MASK].path && !s->array[RT_F_LABELS].path)
        return RT_OK;
    rt_sweep scan = {.threads = rt_sweep_threads(&l->d->spec, f->n / ROWS + 1),
                     .n = f->n,
                     .grain = ROWS,
                     .work = check_rows,
                     .of = l};
    int code = rt_sweep_run(&scan);
    f->nreal = scan.found[0];
    f->supervised = scan.found[1];
    return code ? code : rt_faults_say(&scan.faults, f->path, false);
}

/* A set without labels that needs them. */
static int
check_labels(const rt_loading *l)
{
    const rt_data_spec *spec = &l->d->spec;
    bool optional =
        spec->causal || spec->use == RT_PREDICTION || spec->label == RT_LABEL_ANY;
    if (l->file->source->array[RT_F_LABELS].path || optional)
        return RT_OK;
    return rt_fail(RT_USER,
                   "%s has no labels, which this model learns from\ngive JSONL with "
                   "labels, or NumPy arrays with a file of labels beside",
                   l->file->path);
}

int
rt_arrays_check(rt_loading *l)
{
    rt_data_file *f = l->file;
    struct rt_source *s = f->source;
    const rt_data_spec *spec = &l->d->spec;
    int code = check_labels(l);
    if (!f->n && !code)
        code = rt_fail(RT_USER, "%s holds no rows", f->path);
    for (int k = 0; k < RT_NFIELDS && !code; k++) {
        rt_array *a = &s->array[k];
        int64_t foreign = 0;
        if (!a->path) {
            l->notes->absent[k] += spec->takes[k] ? f->n : 0;
            continue;
        }
        bool values = k == RT_F_LABELS && s->floats;
        int64_t row = k == RT_F_LABELS && s->nlabel ? s->nlabel : s->width;
        if (!values)
            code = rt_array_check(a, spec, (rt_field)k, row, &foreign);
        l->notes->foreign += foreign;
        f->hash = rt_array_hash(a, f->hash + (uint64_t)k);
    }
    return code ? code : count(l);
}
