/* data_row.c -- one row: is it what the model wants, and what stands for it on disk.
 *
 * A record is int32 n, nlabel and the set of its fields, then the fields, 4 bytes a value. A
 * field that says what is assumed without it anyway (a mask of ones) is left out.
 */
#include "data_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 3, FLOATS = 1 << RT_NFIELDS }; /* in the set: labels are floats */

static const char *const field_name[RT_NFIELDS] = {
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "labels"};

const char *
rt_field_name(rt_field f)
{
    return field_name[f];
}

/* ---- records ---- */

void *
rt_row_room(rt_row *row, size_t bytes)
{
    if (row->bytes < bytes) {
        row->bytes = bytes + bytes / 2 + 256;
        row->memory = rt_grow(row->memory, row->bytes);
    }
    return row->memory;
}

void
rt_row_free(rt_row *row)
{
    free(row->memory);
    *row = (rt_row){0};
}

size_t
rt_row_size(const rt_row *row)
{
    int64_t values = HEAD + row->nlabel;
    for (int f = 0; f < RT_F_LABELS; f++)
        values += row->field[f] ? row->n : 0;
    return (size_t)values * sizeof(int32_t);
}

void
rt_row_unpack(rt_row *row)
{
    const int32_t *head = row->memory, *at = head + HEAD;
    row->n = head[0];
    row->nlabel = head[1];
    for (int f = 0; f < RT_F_LABELS; f++) {
        row->field[f] = head[2] >> f & 1 ? at : NULL;
        at += row->field[f] ? row->n : 0;
    }
    bool floats = head[2] & FLOATS;
    row->field[RT_F_LABELS] = row->nlabel && !floats ? at : NULL;
    row->value = row->nlabel && floats ? (const float *)at : NULL;
}

/* ---- what follows from a row ---- */

/* What a field is assumed to be at token t of a row without it. *seen: real tokens before it;
 * counts this one. */
static int64_t
derived(const rt_data_spec *spec, const rt_row *row, rt_field f, int64_t t,
        int64_t *seen)
{
    const int32_t *mask = row->field[RT_F_MASK];
    bool real = !mask || mask[t];
    *seen += real;
    if (f == RT_F_POSITIONS)
        return *seen ? *seen - 1 : 0;
    if (f == RT_F_LABELS)
        return spec->causal && real ? row->field[RT_F_IDS][t] : RT_IGNORE;
    return f == RT_F_MASK;
}

void
rt_row_field(const rt_data *d, const rt_row *row, rt_field f, int64_t *out)
{
    const int32_t *x = row->field[f];
    int64_t seen = 0;
    if (f == RT_F_LABELS && row->nlabel != row->n)
        x = NULL;
    for (int64_t t = 0; t < row->n; t++)
        out[t] = x ? x[t] : derived(&d->spec, row, f, t, &seen);
}

int64_t
rt_row_real(const rt_row *row)
{
    const int32_t *mask = row->field[RT_F_MASK];
    int64_t n = mask ? 0 : row->n;
    for (int64_t t = 0; mask && t < row->n; t++)
        n += mask[t] != 0;
    return n;
}

int64_t
rt_row_supervised(const rt_data_spec *spec, const rt_row *row)
{
    const int32_t *label = row->field[RT_F_LABELS], *mask = row->field[RT_F_MASK];
    int64_t n = 0;
    for (int64_t k = 0; row->value && k < row->nlabel; k++)
        n += !isnan(row->value[k]);
    for (int64_t t = spec->causal; label && t < row->nlabel; t++)
        n += label[t] != RT_IGNORE;
    for (int64_t t = 1; spec->causal && !row->nlabel && t < row->n; t++)
        n += !mask || mask[t];
    return n;
}

void
rt_row_count(const rt_data_spec *spec, const rt_row *row, rt_counts *c)
{
    c->n++;
    c->ntoken += row->n;
    c->nreal += rt_row_real(row);
    c->supervised += rt_row_supervised(spec, row);
}

void
rt_notes_join(rt_notes *to, const rt_notes *from)
{
    for (int f = 0; f < RT_NFIELDS; f++) {
        to->absent[f] += from->absent[f];
        to->ignored[f] += from->ignored[f];
    }
    to->foreign += from->foreign;
    for (int i = 0; i < from->nunknown; i++) {
        int k = 0;
        while (k < to->nunknown && strcmp(to->unknown[k], from->unknown[i]))
            k++;
        if (k == to->nunknown && k < RT_KEYS)
            memcpy(to->unknown[to->nunknown++], from->unknown[i], RT_KEY);
    }
}

/* ---- checks ---- */

typedef struct check {
    const rt_data_spec *spec;
    const rt_json *j;
    rt_row *row;
    rt_found *found;
    int32_t *at;   /* where the record goes on */
    int32_t set;   /* fields that it has */
    bool try_only; /* a fault is not one: the labels are left out */
} check;

static bool bad(check *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static bool
bad(check *c, const char *fmt, ...)
{
    char text[RT_FAULT];
    if (c->try_only)
        return false;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    rt_faults_add(&c->found->faults, c->found->line, "%s", text);
    return false;
}

void
rt_bad_value(const rt_data_spec *spec, rt_field f, const char *where, double x,
             char text[RT_FAULT])
{
    enum { size = RT_FAULT };
    long long high = rt_below(spec->high[f]) - 1;
    if (!isfinite(x) || x != floor(x))
        snprintf(text, size, "%s is %g, not a whole number", where, x);
    else if (f == RT_F_IDS && spec->high[f])
        snprintf(text, size,
                 "%s is %.0f, but the model knows token ids 0 to %lld\n"
                 "make the data with the tokenizer of this model",
                 where, x, high);
    else if (f == RT_F_LABELS && spec->high[f])
        snprintf(text, size,
                 "%s is %.0f, but labels are 0 to %lld, or -100 for not supervised%s",
                 where, x, high,
                 spec->label == RT_LABEL_ROW
                     ? "\ncompile with as many labels as the data have: efficc "
                       "--num-labels N, or mend the data"
                     : "");
    else if (f == RT_F_MASK)
        snprintf(text, size, "%s is %.0f; a mask is 1 (real) or 0 (padding)", where, x);
    else if (spec->high[f])
        snprintf(text, size, "%s is %.0f, but the model knows 0 to %lld", where, x,
                 high);
    else
        snprintf(text, size, "%s is %.0f; it must be from 0 to %lld", where, x, high);
}

/* The values of an item as whole numbers at c->at. one: it is not in a list. */
static bool
whole_numbers(check *c, rt_field f, const rt_item *item, bool one)
{
    double high = (double)rt_below(c->spec->high[f]);
    for (int64_t i = 0; i < item->n; i++) {
        double x = item->x[i];
        bool fits = x >= 0 && x < high && x == (double)(int32_t)x;
        if (fits || (f == RT_F_LABELS && x == RT_IGNORE)) {
            c->at[i] = (int32_t)x;
            continue;
        }
        char where[64], text[RT_FAULT];
        snprintf(where, sizeof where, one ? "%s" : "%s[%lld]", field_name[f],
                 (long long)i);
        if (isnan(x))
            return bad(c, "%s is not a number", where);
        rt_bad_value(c->spec, f, where, x, text);
        return bad(c, "%s", text);
    }
    return true;
}

static void
keep(check *c, rt_field f, int64_t n)
{
    c->row->field[f] = c->at;
    c->set |= 1 << f;
    c->at += n;
}

/* What is assumed without the field? Then it need not be kept. */
static bool
says_nothing(const check *c, rt_field f)
{
    int64_t seen = 0;
    for (int64_t t = 0; t < c->row->n; t++)
        if (c->at[t] != derived(c->spec, c->row, f, t, &seen))
            return false;
    return f != RT_F_LABELS || c->spec->causal;
}

static bool
token_list(check *c, rt_field f, const rt_item *item)
{
    int64_t n = c->row->n;
    if (item->kind != RT_J_LIST)
        return bad(c,
                   f == RT_F_LABELS ? "%s must be a list, one label a token"
                                    : "%s must be a list of numbers",
                   field_name[f]);
    if (item->n != n)
        return bad(c, "%s has %lld values, but input_ids has %lld", field_name[f],
                   (long long)item->n, (long long)n);
    if (!whole_numbers(c, f, item, false))
        return false;
    if (says_nothing(c, f))
        return true;
    if (f == RT_F_LABELS)
        c->row->nlabel = n;
    keep(c, f, n);
    return true;
}

static bool
class_label(check *c, const rt_item *item)
{
    if (item->kind != RT_J_NUMBER || isnan(item->x[0]))
        return bad(c, "labels must be one number, the class of the row");
    if (!whole_numbers(c, RT_F_LABELS, item, true))
        return false;
    c->row->nlabel = 1;
    keep(c, RT_F_LABELS, 1);
    return true;
}

/* Floats; null is NaN. */
static bool
value_labels(check *c, const rt_item *item)
{
    bool one = item->kind == RT_J_NUMBER, null = one && isnan(item->x[0]);
    int64_t n = null ? 0 : item->n, want = c->spec->labels;
    if (item->kind == RT_J_OTHER || (!one && item->odd >= 0))
        return bad(c, "labels must be a number or a list of numbers; null: not "
                      "supervised");
    if (!null && want && n != want)
        return bad(c, "labels has %lld values, but the model has %lld outputs",
                   (long long)n, (long long)want);
    float *out = (float *)c->at;
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)item->x[i];
        if (isinf(out[i]))
            return bad(c, "labels[%lld] is too large for a float", (long long)i);
    }
    c->row->nlabel = n;
    c->row->value = n ? out : NULL;
    c->set |= n ? FLOATS : 0;
    c->at += n;
    return true;
}

/* Nothing is known of the task: what do they look like? */
static bool
some_labels(check *c, const rt_item *item)
{
    bool whole = item->kind != RT_J_OTHER;
    for (int64_t i = 0; i < item->n && whole; i++)
        whole = item->x[i] == floor(item->x[i]);
    if (whole && item->kind == RT_J_LIST && item->n == c->row->n)
        return token_list(c, RT_F_LABELS, item);
    if (whole && item->kind == RT_J_NUMBER)
        return class_label(c, item);
    return value_labels(c, item);
}

static bool
labels(check *c, const rt_item *item)
{
    rt_label kind = c->spec->label;
    bool optional = kind == RT_LABEL_ANY || kind == RT_LABEL_VALUES ||
                    c->spec->causal || c->spec->use == RT_PREDICTION;
    if (!item) {
        c->found->notes.absent[RT_F_LABELS]++;
        return optional || bad(c, "has no labels");
    }
    c->try_only = c->spec->use == RT_PREDICTION;
    bool fine = kind == RT_LABEL_TOKEN    ? token_list(c, RT_F_LABELS, item)
                : kind == RT_LABEL_ROW    ? class_label(c, item)
                : kind == RT_LABEL_VALUES ? value_labels(c, item)
                                          : some_labels(c, item);
    c->found->notes.foreign += !fine && c->try_only;
    fine |= c->try_only;
    c->try_only = false;
    return fine;
}

static bool
field(check *c, rt_field f, const rt_item *item)
{
    if (!c->spec->takes[f]) {
        c->found->notes.ignored[f] += item != NULL;
        return true;
    }
    if (f == RT_F_LABELS)
        return labels(c, item);
    if (item)
        return token_list(c, f, item);
    c->found->notes.absent[f]++;
    return true;
}

static bool
ids(check *c, const rt_item *item)
{
    long long n, seq = c->spec->seq;
    if (!item)
        return bad(c, "has no input_ids");
    if (item->kind != RT_J_LIST)
        return bad(c, "input_ids must be a list of numbers");
    n = item->n;
    if (!n)
        return bad(c, "input_ids is empty");
    if (seq && n > seq)
        return bad(c,
                   "has %lld tokens, but rows have at most %lld\nshorten the row, or "
                   "compile again with efficc --seq %lld",
                   n, seq, n);
    if (!whole_numbers(c, RT_F_IDS, item, false))
        return false;
    c->row->n = n;
    keep(c, RT_F_IDS, n);
    return true;
}

/* Parsers differ in which of two values under one name they take. */
static bool
says_once(check *c)
{
    for (int i = 0; i < 2 * RT_NFIELDS; i++)
        if (c->j->item[i].times > 1)
            return bad(c, "has %s twice",
                       i < RT_NFIELDS ? field_name[i] : c->spec->other[i - RT_NFIELDS]);
    return true;
}

/* Room for all that the row may keep. */
static void
make_room(check *c)
{
    int64_t values = HEAD;
    for (int i = 0; i < 2 * RT_NFIELDS; i++)
        values += c->j->item[i].kind == RT_J_ABSENT ? 0 : c->j->item[i].n;
    int32_t *record = rt_row_room(c->row, (size_t)values * sizeof(int32_t));
    c->at = record + HEAD;
}

int
rt_row_check(const rt_data_spec *spec, const rt_json *j, rt_row *out, rt_found *found)
{
    check c = {.spec = spec, .j = j, .row = out, .found = found};
    const rt_item *item[RT_NFIELDS];
    for (int f = 0; f < RT_NFIELDS; f++) {
        item[f] = j->item[f].times ? &j->item[f] : &j->item[RT_NFIELDS + f];
        item[f] = item[f]->times ? item[f] : NULL;
        out->field[f] = NULL;
    }
    out->n = out->nlabel = 0;
    out->value = NULL;
    make_room(&c);
    bool fine = says_once(&c) && ids(&c, item[RT_F_IDS]);
    for (int f = RT_F_MASK; f < RT_NFIELDS && fine; f++)
        fine = field(&c, (rt_field)f, item[f]);
    if (fine && !rt_row_real(out))
        fine = bad(&c, "attention_mask hides every token");
    if (!fine)
        return RT_USER;
    int32_t *head = out->memory;
    head[0] = (int32_t)out->n;
    head[1] = (int32_t)out->nlabel;
    head[2] = c.set;
    return RT_OK;
}
