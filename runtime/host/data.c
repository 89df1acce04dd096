/* data.c -- the rows of all files: what the program wants of them, opening, and access by
 * number.
 */
#include "data_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const rt_input *
rt_input_of(const rt_program *p, rt_input_role role)
{
    for (int i = 0; i < p->ninput; i++)
        if (p->input[i].role == role)
            return &p->input[i];
    return NULL;
}

/* ---- what a program wants ---- */

static void
lower(int64_t *limit, int64_t to)
{
    if (to && (!*limit || to < *limit))
        *limit = to;
}

rt_data_spec
rt_data_spec_of(const rt_program *p, rt_use use)
{
    static const rt_input_role role[RT_NFIELDS] = {RT_IDS, RT_MASK, RT_TYPES,
                                                   RT_POSITIONS, RT_TARGETS};
    const rt_input *targets = rt_input_of(p, RT_TARGETS);
    const rt_input *values = rt_input_of(p, RT_VALUES);
    rt_data_spec s = {.use = use, .seq = p->seq, .label = RT_LABEL_TOKEN};
    for (int f = 0; f < RT_NFIELDS; f++) {
        const rt_input *in = rt_input_of(p, role[f]);
        s.takes[f] = in != NULL;
        s.other[f] =
            in && strcmp(in->name, rt_field_name((rt_field)f)) ? in->name : NULL;
        s.high[f] = in ? in->limit : 0;
    }
    if (targets && targets->rank == 1 && !targets->vary)
        s.label = RT_LABEL_ROW;
    if (values) {
        s.label = RT_LABEL_VALUES;
        s.labels = values->rank > 1 ? values->dim[1] : 1;
    }
    s.causal = !strcmp(p->task, "causal-lm");
    s.takes[RT_F_MASK] = true; /* positions and labels follow from it */
    s.takes[RT_F_LABELS] = targets || values;
    s.other[RT_F_LABELS] = "label";
    s.high[RT_F_MASK] = 2;
    lower(&s.high[RT_F_IDS], p->vocab);
    lower(&s.high[RT_F_LABELS], p->labels ? p->labels : p->vocab);
    return s;
}

/* ---- records of all files ---- */

int
rt_store_add(struct rt_store *s, const void *record, size_t n)
{
    uint64_t at = s->record.n;
    int code = rt_spool_add(&s->index, &at, sizeof at);
    return code ? code : rt_spool_add(&s->record, record, n);
}

int64_t
rt_store_read(const struct rt_store *s, int64_t i, rt_row *row)
{
    uint64_t at[2] = {0, s->record.n}, first = (uint64_t)i * sizeof *at;
    bool last = first + sizeof *at == s->index.n;
    if (rt_spool_read(&s->index, first, at, last ? sizeof *at : sizeof at))
        return -1;
    size_t n = (size_t)(at[1] - at[0]);
    return rt_spool_read(&s->record, at[0], rt_row_room(row, n), n) ? -1 : (int64_t)n;
}

/* ---- what was found ---- */

/* Each decision that was taken for the user, in a line. */
static void
say_decisions(const rt_data *d, const rt_notes *n)
{
    const char *const rule[RT_NFIELDS] = {NULL, "1 for every token of a row", "0",
                                          "counted from the row's first real token",
                                          d->causal ? "the row's own tokens are learnt"
                                                    : "not supervised"};
    bool training = d->spec.use != RT_PREDICTION && d->spec.label != RT_LABEL_ANY;
    for (int f = RT_F_MASK; f < RT_NFIELDS; f++) {
        if (n->absent[f] && (f != RT_F_LABELS || training))
            rt_say("", "%s: not in %lld of %lld rows: %s", rt_field_name((rt_field)f),
                   (long long)n->absent[f], (long long)d->n, rule[f]);
        if (n->ignored[f] && f != RT_F_LABELS)
            rt_say("", "%s: not used, the model has no such input",
                   rt_field_name((rt_field)f));
    }
    if (n->foreign)
        rt_say("", "labels: %lld are not labels of this model and are left out",
               (long long)n->foreign);
    rt_text t = {0};
    for (int k = 0; k < n->nunknown; k++)
        rt_putf(&t, "%s%s", k ? ", " : "", n->unknown[k]);
    if (t.s)
        rt_say("", "other keys of the rows are not used: %s", t.s);
    free(t.s);
}

/* "3 rows, 10 tokens, 8 supervised" */
static void
put_counts(const rt_data *d, const rt_data_file *f, rt_text *t)
{
    rt_putf(t, "%lld rows, %lld tokens", (long long)f->n, (long long)f->ntoken);
    if (d->spec.use != RT_PREDICTION)
        rt_putf(t, ", %lld supervised", (long long)f->supervised);
}

static void
say_files(const rt_data *d)
{
    static const char *const purpose[] = {"train", "eval", "predict"};
    const char *subject = purpose[d->spec.use];
    rt_data_file all = {
        .n = d->n, .ntoken = d->ntoken, .nreal = d->nreal, .supervised = d->supervised};
    rt_text t = {0};
    for (int k = 0; k < d->nfile; k++) {
        const rt_data_file *f = &d->file[k];
        rt_putf(&t, "%s: ", f->path);
        if (strcmp(f->format, "JSONL"))
            rt_putf(&t, "%s: ", f->format);
        put_counts(d, f, &t);
        if (d->weighted)
            rt_putf(&t, "; weight %g: %lld of the %lld rows of an epoch", f->weight,
                    (long long)f->share, (long long)d->n);
        rt_say(k ? "" : subject, "%s", t.s);
        t.n = 0;
    }
    put_counts(d, &all, &t);
    if (d->nfile > 1)
        rt_say("", "%d files: %s", d->nfile, t.s);
    free(t.s);
}

static int
check_supervised(const rt_data *d)
{
    const char *path = d->file->path, *more = d->nfile > 1 ? " and the others" : "";
    if (d->spec.use == RT_PREDICTION || d->spec.label == RT_LABEL_ANY)
        return RT_OK;
    if (!d->supervised && d->spec.label == RT_LABEL_VALUES)
        return rt_fail(RT_USER, "%s%s: no row is supervised: every label is null", path,
                       more);
    if (!d->supervised)
        return rt_fail(RT_USER, "%s%s: no token is supervised: every label is -100%s",
                       path, more, d->causal ? ", or rows have one token" : "");
    if (!d->row_labels && d->supervised * 100 < d->ntoken)
        rt_warn("%s%s: only %lld of %lld tokens are supervised", path, more,
                (long long)d->supervised, (long long)d->ntoken);
    return RT_OK;
}

/* ---- opening ---- */

static int
open_file(rt_data *d, rt_data_file *f, rt_notes *notes)
{
    rt_loading l = {d, f, notes};
    f->source->reader = rt_format_of(f->path);
    int code = f->source->reader ? f->source->reader->open(&l) : RT_USER;
    d->n += f->n;
    d->ntoken += f->ntoken;
    d->nreal += f->nreal;
    d->supervised += f->supervised;
    return code;
}

int
rt_data_open(rt_data *d, const rt_words *files, const rt_data_spec *spec)
{
    rt_notes notes = {0};
    *d = (rt_data){.spec = *spec, .causal = spec->causal};
    d->row_labels = spec->label == RT_LABEL_ROW || spec->label == RT_LABEL_VALUES;
    d->store = rt_new(1, sizeof *d->store);
    d->store->index.dir = d->store->record.dir = spec->spool;
    d->store->row_at = -1;
    int code = rt_files_of(d, files);
    for (int k = 0; k < d->nfile && !code; k++)
        code = open_file(d, &d->file[k], &notes);
    if (!code)
        code = rt_spool_done(&d->store->index);
    if (!code)
        code = rt_spool_done(&d->store->record);
    if (!code && d->weighted)
        code = rt_shares(d);
    if (code)
        return code;
    memcpy(d->absent, notes.absent, sizeof d->absent);
    say_files(d);
    say_decisions(d, &notes);
    return check_supervised(d);
}

void
rt_data_close(rt_data *d)
{
    for (int k = 0; k < d->nfile; k++) {
        rt_data_file *f = &d->file[k];
        for (int i = 0; f->source && i < RT_NFIELDS; i++)
            rt_array_close(&f->source->array[i]);
        free(f->source);
        free(f->path);
        free(f->format);
    }
    free(d->file);
    if (d->store) {
        rt_spool_free(&d->store->index);
        rt_spool_free(&d->store->record);
        rt_row_free(&d->store->row);
        free(d->store->cursor);
    }
    free(d->store);
    *d = (rt_data){0};
}

int64_t
rt_data_bytes(const rt_data *d)
{
    const struct rt_store *s = d->store;
    return s ? (int64_t)(s->index.cap + s->record.cap + s->row.bytes) : 0;
}

void
rt_data_identity(const rt_data *d, rt_text *t)
{
    double sum = 0;
    for (int k = 0; k < d->nfile; k++)
        sum += d->file[k].weight;
    for (int k = 0; k < d->nfile; k++) {
        const rt_data_file *f = &d->file[k];
        rt_putf(t, "%s%lld rows, %lld tokens, xxh3 %016llx", k ? "; " : "",
                (long long)f->n, (long long)f->ntoken, (unsigned long long)f->hash);
        if (d->weighted)
            rt_putf(t, ", weight %.12g", f->weight / sum);
    }
}

/* ---- rows by number ---- */

int
rt_data_row(const rt_data *d, int64_t i, rt_row *row)
{
    int k = 0;
    for (; k + 1 < d->nfile && i >= d->file[k].n; k++)
        i -= d->file[k].n;
    return d->file[k].source->reader->row(d, &d->file[k], i, row);
}

const rt_row *
rt_data_look(const rt_data *d, int64_t i)
{
    struct rt_store *s = d->store;
    if (s->row_at != i)
        s->row_at = rt_data_row(d, i, &s->row) ? -1 : i;
    return s->row_at < 0 ? NULL : &s->row;
}

int64_t
rt_data_length(const rt_data *d, int64_t i)
{
    const rt_row *row = rt_data_look(d, i);
    return row ? row->n : -1;
}

int64_t
rt_data_supervised(const rt_data *d, int64_t i)
{
    const rt_row *row = rt_data_look(d, i);
    return row ? rt_row_supervised(&d->spec, row) : -1;
}

int64_t
rt_data_label(const rt_data *d, int64_t i, int64_t t)
{
    const rt_row *row = rt_data_look(d, i);
    if (!row)
        return RT_IGNORE;
    const int32_t *label = row->field[RT_F_LABELS], *mask = row->field[RT_F_MASK];
    if (label || !d->causal)
        return label && t < row->nlabel ? label[t] : RT_IGNORE;
    return t < row->n && (!mask || mask[t]) ? row->field[RT_F_IDS][t] : RT_IGNORE;
}

float
rt_data_value(const rt_data *d, int64_t i, int64_t k)
{
    const rt_row *row = rt_data_look(d, i);
    return row && row->value && k < row->nlabel ? row->value[k] : NAN;
}
