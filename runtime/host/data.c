/* data.c -- JSONL rows, every one checked before step 1, as compact arrays.
 *
 * A row is {"input_ids": [..], "attention_mask": [..], "labels": [..] or a number, ..}. A
 * field that no row has takes no memory: its values are derived when a batch is filled. If
 * some rows have it, the others get the derived values here. The first bad rows are shown
 * with file and line; one bad row is enough to stop.
 */
#include "host_int.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SHOWN = 5, KEYS = 4 };

static const char *const field_name[RT_NFIELDS] = {
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "labels"};
static const rt_input_role field_role[RT_NFIELDS] = {RT_IDS, RT_MASK, RT_TYPES,
                                                     RT_POSITIONS, RT_TARGETS};

struct rt_store {
    int64_t *start; /* row i is tokens start[i] .. start[i+1] */
    int32_t *field
        [RT_NFIELDS]; /* a value a token (row_labels: a row); NULL: no row has it */
    int64_t row_cap, token_cap;
};

typedef struct reader {
    rt_data *d;
    const char *path;
    int64_t line, nbad;
    bool takes[RT_NFIELDS]; /* the program has such an input, or needs it for one */
    int64_t low[RT_NFIELDS], high[RT_NFIELDS]; /* values are in [low, high) */
    const char *other[RT_NFIELDS];             /* a second name that a row may use */
    int64_t ignored[RT_NFIELDS]; /* rows with a field that the program does not take */
    char *unknown[KEYS];         /* other keys, the first few */
    bool ok;                     /* the row so far */
} reader;

const char *
rt_field_name(rt_field f)
{
    return field_name[f];
}

const rt_input *
rt_input_of(const rt_program *p, rt_input_role role)
{
    for (int i = 0; i < p->ninput; i++)
        if (p->input[i].role == role)
            return &p->input[i];
    return NULL;
}

/* ---- messages ---- */

static bool bad(reader *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static bool
bad(reader *r, const char *fmt, ...)
{
    r->ok = false;
    if (++r->nbad > SHOWN)
        return false;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    rt_fail(RT_USER, "%s:%lld: %s", r->path, (long long)r->line, text);
    return false;
}

static bool
bad_value(reader *r, rt_field f, int64_t at, double x)
{
    char where[64];
    snprintf(where, sizeof where, at < 0 ? "%s" : "%s[%lld]", field_name[f],
             (long long)at);
    long long low = r->low[f], high = r->high[f] - 1;
    if (!isfinite(x) || x != floor(x))
        return bad(r, "%s is %g, not a whole number", where, x);
    if (f == RT_F_IDS)
        return bad(r,
                   "%s is %.0f, but the model knows token ids 0 to %lld\n"
                   "make the data with the tokenizer of this model",
                   where, x, high);
    if (f == RT_F_LABELS)
        return bad(r,
                   "%s is %.0f, but labels are 0 to %lld, or -100 for not supervised%s",
                   where, x, high,
                   r->d->row_labels ? "\ncompile with as many labels as the data have: "
                                      "efficc --num-labels N, or mend the data"
                                    : "");
    if (f == RT_F_MASK)
        return bad(r, "%s is %.0f; a mask is 1 (real) or 0 (padding)", where, x);
    return bad(r, "%s is %.0f, but the model knows %lld to %lld", where, x, low, high);
}

/* ---- arrays ---- */

static void
grow_tokens(rt_data *d, int64_t n)
{
    if (d->ntoken + n <= d->store->token_cap && d->store->field[RT_F_IDS])
        return;
    d->store->token_cap = (d->ntoken + n) * 3 / 2 + 1024;
    for (int f = 0; f < RT_NFIELDS; f++)
        if (f == RT_F_IDS ||
            (d->store->field[f] && !(f == RT_F_LABELS && d->row_labels)))
            d->store->field[f] = rt_grow(d->store->field[f],
                                         (size_t)d->store->token_cap * sizeof(int32_t));
}

static void
grow_rows(rt_data *d)
{
    if (d->n + 1 < d->store->row_cap)
        return;
    d->store->row_cap = d->store->row_cap * 3 / 2 + 256;
    d->store->start = rt_grow(d->store->start, (size_t)(d->store->row_cap + 1) *
                                                   sizeof *d->store->start);
    if (d->row_labels)
        d->store->field[RT_F_LABELS] = rt_grow(
            d->store->field[RT_F_LABELS], (size_t)d->store->row_cap * sizeof(int32_t));
}

/* What tokens [from,to) of one row get where the row has no such field. */
static void
derive(rt_data *d, rt_field f, int64_t from, int64_t to)
{
    int32_t seen = 0;
    for (int64_t t = from; t < to; t++) {
        bool real = !d->store->field[RT_F_MASK] || d->store->field[RT_F_MASK][t];
        int32_t value = 0;
        seen += real;
        if (f == RT_F_MASK)
            value = 1;
        else if (f == RT_F_POSITIONS)
            value = seen ? seen - 1 : 0;
        else if (f == RT_F_LABELS)
            value = d->causal && real ? d->store->field[RT_F_IDS][t] : RT_IGNORE;
        d->store->field[f][t] = value;
    }
}

/* The array of a field that this row is the first to have; earlier rows get derived values. */
static void
begin_field(rt_data *d, rt_field f)
{
    d->store->field[f] = rt_grow(NULL, (size_t)d->store->token_cap * sizeof(int32_t));
    for (int64_t i = 0; i < d->n; i++)
        derive(d, f, d->store->start[i], d->store->start[i + 1]);
}

/* Gives back what the arrays have in reserve. */
static void
trim(rt_data *d)
{
    d->store->row_cap = d->n;
    d->store->token_cap = d->ntoken;
    d->store->start =
        rt_grow(d->store->start, (size_t)(d->n + 1) * sizeof *d->store->start);
    for (int f = 0; f < RT_NFIELDS; f++) {
        int64_t n = f == RT_F_LABELS && d->row_labels ? d->n : d->ntoken;
        if (d->store->field[f])
            d->store->field[f] =
                rt_grow(d->store->field[f], (size_t)n * sizeof(int32_t));
    }
}

/* ---- one row ---- */

static bool
read_values(reader *r, rt_field f, const cJSON *list, int32_t *out)
{
    int64_t i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        double x = item->valuedouble;
        if (!cJSON_IsNumber(item))
            return bad(r, "%s[%lld] is not a number", field_name[f], (long long)i);
        bool unsupervised = f == RT_F_LABELS && x == RT_IGNORE;
        if (!unsupervised &&
            !(x >= (double)r->low[f] && x < (double)r->high[f] && x == floor(x)))
            return bad_value(r, f, i, x);
        out[i++] = (int32_t)x;
    }
    return true;
}

static bool
read_list(reader *r, rt_field f, const cJSON *item, int64_t n)
{
    rt_data *d = r->d;
    if (!cJSON_IsArray(item))
        return bad(r,
                   f == RT_F_LABELS ? "%s must be a list, one label a token"
                                    : "%s must be a list of numbers",
                   field_name[f]);
    if (cJSON_GetArraySize(item) != n)
        return bad(r, "%s has %d values, but input_ids has %lld", field_name[f],
                   cJSON_GetArraySize(item), (long long)n);
    if (!d->store->field[f])
        begin_field(d, f);
    return read_values(r, f, item, d->store->field[f] + d->ntoken);
}

static bool
read_row_label(reader *r, const cJSON *item)
{
    if (!item)
        return bad(r, "has no labels");
    if (!cJSON_IsNumber(item))
        return bad(r, "labels must be one number, the class of the row");
    double x = item->valuedouble;
    if (x != RT_IGNORE &&
        !(x >= 0 && x < (double)r->high[RT_F_LABELS] && x == floor(x)))
        return bad_value(r, RT_F_LABELS, -1, x);
    r->d->store->field[RT_F_LABELS][r->d->n] = (int32_t)x;
    return true;
}

/* input_ids; returns how many, or -1. */
static int64_t
read_ids(reader *r, const cJSON *item)
{
    rt_data *d = r->d;
    if (!item)
        return bad(r, "has no input_ids"), -1;
    if (!cJSON_IsArray(item))
        return bad(r, "input_ids must be a list of numbers"), -1;
    int64_t n = cJSON_GetArraySize(item);
    if (!n)
        return bad(r, "input_ids is empty"), -1;
    if (n > d->spec.seq)
        return bad(r,
                   "has %lld tokens, but rows have at most %lld\nshorten the row, or "
                   "compile again with efficc --seq %lld",
                   (long long)n, (long long)d->spec.seq, (long long)n),
               -1;
    grow_tokens(d, n);
    return read_values(r, RT_F_IDS, item, d->store->field[RT_F_IDS] + d->ntoken) ? n
                                                                                 : -1;
}

static bool
read_field(reader *r, rt_field f, const cJSON *item, int64_t n)
{
    rt_data *d = r->d;
    int64_t at = d->ntoken;
    if (!r->takes[f]) {
        r->ignored[f] += item != NULL;
        return true;
    }
    if (f == RT_F_LABELS && d->row_labels)
        return read_row_label(r, item);
    if (item)
        return read_list(r, f, item, n);
    if (f == RT_F_LABELS && !d->causal)
        return bad(r, "has no labels");
    d->absent[f]++;
    if (d->store->field[f])
        derive(d, f, at, at + n);
    return true;
}

static bool
is_field(const reader *r, const char *key)
{
    for (int f = 0; f < RT_NFIELDS; f++)
        if (!strcmp(key, field_name[f]) || !strcmp(key, r->other[f]))
            return true;
    return false;
}

static void
note_unknown(reader *r, const cJSON *row)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, row)
    {
        int k = is_field(r, item->string) ? KEYS : 0;
        while (k < KEYS && r->unknown[k] && strcmp(r->unknown[k], item->string))
            k++;
        if (k < KEYS && !r->unknown[k])
            r->unknown[k] = strdup(item->string);
    }
}

/* Parsers differ in which of two values under one name they take. */
static bool
says_twice(reader *r, const cJSON *row)
{
    for (int f = 0; f < RT_NFIELDS; f++) {
        int n = 0;
        const cJSON *item;
        cJSON_ArrayForEach(item, row)
        {
            n += !strcmp(item->string, field_name[f]);
        }
        if (n > 1)
            return !bad(r, "has %s twice", field_name[f]);
    }
    return false;
}

static void
read_row(reader *r, const cJSON *row)
{
    rt_data *d = r->d;
    const cJSON *item[RT_NFIELDS];
    if (says_twice(r, row))
        return;
    for (int f = 0; f < RT_NFIELDS; f++) {
        item[f] = cJSON_GetObjectItemCaseSensitive(row, field_name[f]);
        if (!item[f])
            item[f] = cJSON_GetObjectItemCaseSensitive(row, r->other[f]);
    }
    note_unknown(r, row);
    grow_rows(d);
    int64_t n = read_ids(r, item[RT_F_IDS]);
    bool fine = n >= 0;
    for (int f = RT_F_MASK; f < RT_NFIELDS && fine; f++)
        fine = read_field(r, (rt_field)f, item[f], n);
    if (!fine)
        return;
    int64_t real = 0;
    for (int64_t t = d->ntoken; t < d->ntoken + n; t++)
        real += !d->store->field[RT_F_MASK] || d->store->field[RT_F_MASK][t];
    if (!real) {
        bad(r, "attention_mask hides every token");
        return;
    }
    d->ntoken += n;
    d->store->start[++d->n] = d->ntoken;
}

static void
read_line(reader *r, char *line, size_t n)
{
    r->ok = true;
    if (r->line == 1 && n >= 3 && !memcmp(line, "\xef\xbb\xbf", 3))
        line += 3, n -= 3;
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        line[--n] = 0;
    size_t blank = strspn(line, " \t");
    if (blank == n)
        return;
    if (strlen(line) != n) {
        bad(r, "holds a zero byte; JSONL is text");
        return;
    }
    cJSON *row = cJSON_ParseWithOpts(line, NULL, true);
    if (cJSON_IsObject(row))
        read_row(r, row);
    else if (cJSON_IsArray(row) || line[blank] == '[')
        bad(r, "is a JSON list; JSONL has one object a line");
    else if (line[blank] == '{')
        bad(r, "is not JSON; one whole object must stand on the line (and NaN is not "
               "JSON)");
    else
        bad(r, "is not a JSON object: '%.20s'", line + blank);
    cJSON_Delete(row);
}

/* ---- the file ---- */

static int
read_lines(reader *r, FILE *f)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    errno = 0;
    while ((n = getline(&line, &cap, f)) >= 0) {
        r->line++;
        read_line(r, line, (size_t)n);
    }
    int err = errno;
    free(line);
    if (ferror(f))
        return rt_fail(RT_USER, "%s: %s", r->path, strerror(err));
    if (r->nbad > SHOWN)
        rt_fail(RT_USER, "%s: %lld more bad rows", r->path, (long long)r->nbad - SHOWN);
    if (r->nbad)
        return RT_USER;
    if (!r->d->n)
        return rt_fail(RT_USER, "%s holds no rows", r->path);
    return RT_OK;
}

static void
lower(int64_t *limit, int64_t to)
{
    if (to && (!*limit || to < *limit))
        *limit = to;
}

rt_data_spec
rt_data_spec_of(const rt_program *p, rt_use use)
{
    rt_data_spec s = {.use = use, .seq = p->seq};
    for (int f = 0; f < RT_NFIELDS; f++) {
        const rt_input *in = rt_input_of(p, field_role[f]);
        s.takes[f] = in != NULL;
        s.other[f] = in && strcmp(in->name, field_name[f]) ? in->name : NULL;
        s.high[f] = in ? in->limit : 0;
    }
    const rt_input *targets = rt_input_of(p, RT_TARGETS);
    const rt_input *values = rt_input_of(p, RT_VALUES);
    s.label = values                          ? RT_LABEL_VALUES
              : targets && targets->rank == 1 ? RT_LABEL_ROW
                                              : RT_LABEL_TOKEN;
    s.causal = !strcmp(p->task, "causal-lm");
    s.labels = values && values->rank > 1 ? values->dim[1] : 1;
    s.takes[RT_F_MASK] = true; /* positions and labels follow from it */
    s.takes[RT_F_LABELS] |= values != NULL;
    s.other[RT_F_LABELS] = "label";
    s.high[RT_F_MASK] = 2;
    lower(&s.high[RT_F_IDS], p->vocab);
    lower(&s.high[RT_F_LABELS], p->labels ? p->labels : p->vocab);
    return s;
}

static void
limits(reader *r)
{
    const rt_data_spec *s = &r->d->spec;
    for (int f = 0; f < RT_NFIELDS; f++) {
        r->takes[f] = s->takes[f];
        r->high[f] = s->high[f] ? s->high[f] : INT32_MAX;
        r->other[f] = s->other[f] ? s->other[f] : field_name[f];
    }
    r->takes[RT_F_LABELS] &= s->use != RT_PREDICTION;
}

/* Each decision that was taken for the user, in a line. */
static void
say_decisions(const reader *r)
{
    static const char *const rule[RT_NFIELDS] = {
        NULL, "1 for every token of a row", "0",
        "counted from the row's first real token", "the row's own tokens are learnt"};
    const rt_data *d = r->d;
    for (int f = RT_F_MASK; f < RT_NFIELDS; f++) {
        bool needed = f == RT_F_LABELS ? d->causal && d->spec.use != RT_PREDICTION
                                       : d->spec.takes[f];
        if (needed && d->absent[f])
            rt_say("", "%s: not in %lld of %lld rows: %s", field_name[f],
                   (long long)d->absent[f], (long long)d->n, rule[f]);
        if (r->ignored[f] && f != RT_F_LABELS)
            rt_say("", "%s: not used, the model has no such input", field_name[f]);
    }
    rt_text t = {0};
    for (int k = 0; k < KEYS && r->unknown[k]; k++)
        rt_putf(&t, "%s%s", k ? ", " : "", r->unknown[k]);
    if (t.s)
        rt_say("", "other keys of the rows are not used: %s", t.s);
    free(t.s);
}

static void
say_rows(const rt_data *d)
{
    static const char *const purpose[] = {"train", "eval", "predict"};
    char supervised[64] = "";
    if (d->spec.use != RT_PREDICTION)
        snprintf(supervised, sizeof supervised, ", %lld supervised",
                 (long long)d->supervised);
    rt_say(purpose[d->spec.use], "%s: %lld rows, %lld tokens%s", d->file->path,
           (long long)d->n, (long long)d->ntoken, supervised);
}

static int
check_supervised(const rt_data *d)
{
    if (d->spec.use == RT_PREDICTION)
        return RT_OK;
    if (!d->supervised)
        return rt_fail(RT_USER, "%s: no token is supervised: every label is -100%s",
                       d->file->path, d->causal ? ", or rows have one token" : "");
    if (!d->row_labels && d->supervised * 100 < d->ntoken)
        rt_warn("%s: only %lld of %lld tokens are supervised", d->file->path,
                (long long)d->supervised, (long long)d->ntoken);
    return RT_OK;
}

int
rt_data_open(rt_data *d, const rt_words *files, const rt_data_spec *spec)
{
    const char *path = files->at[0];
    *d = (rt_data){.spec = *spec,
                   .nfile = 1,
                   .row_labels = spec->label != RT_LABEL_TOKEN,
                   .causal = spec->causal};
    d->store = rt_new(1, sizeof *d->store);
    d->store->start = rt_new(1, sizeof *d->store->start);
    d->file = rt_new(1, sizeof *d->file);
    d->file->path = strdup(path);
    d->file->format = "JSONL";
    reader r = {.d = d, .path = path};
    limits(&r);
    FILE *f = fopen(path, "r");
    if (!f)
        return rt_fail(RT_USER, "%s: %s", path, strerror(errno));
    int code = read_lines(&r, f);
    fclose(f);
    for (int64_t i = 0; i < d->n && d->spec.use != RT_PREDICTION; i++)
        d->supervised += rt_data_supervised(d, i);
    if (!code) {
        trim(d);
        say_rows(d);
        say_decisions(&r);
        code = check_supervised(d);
    }
    d->nreal = d->ntoken;
    d->file->n = d->n;
    d->file->ntoken = d->file->nreal = d->ntoken;
    d->file->supervised = d->supervised;
    for (int k = 0; k < KEYS; k++)
        free(r.unknown[k]);
    return code;
}

void
rt_data_close(rt_data *d)
{
    for (int f = 0; f < RT_NFIELDS && d->store; f++)
        free(d->store->field[f]);
    for (int k = 0; k < d->nfile; k++)
        free(d->file[k].path);
    free(d->file);
    if (d->store)
        free(d->store->start);
    free(d->store);
    *d = (rt_data){0};
}

int64_t
rt_data_bytes(const rt_data *d)
{
    if (!d->store)
        return 0;
    int64_t bytes = d->store->row_cap * (int64_t)sizeof *d->store->start;
    for (int f = 0; f < RT_NFIELDS; f++)
        if (d->store->field[f])
            bytes += 4 * (f == RT_F_LABELS && d->row_labels ? d->store->row_cap
                                                            : d->store->token_cap);
    return bytes;
}

void
rt_data_identity(const rt_data *d, rt_text *t)
{
    uint64_t hash = 0;
    for (int f = 0; f < RT_NFIELDS; f++) {
        int64_t n = f == RT_F_LABELS && d->row_labels ? d->n : d->ntoken;
        if (d->store->field[f])
            hash = XXH3_64bits_withSeed(d->store->field[f], (size_t)n * sizeof(int32_t),
                                        hash);
    }
    rt_putf(t, "%lld rows, %lld tokens, xxh3 %016llx", (long long)d->n,
            (long long)d->ntoken, (unsigned long long)hash);
}

int
rt_data_row(const rt_data *d, int64_t i, rt_row *row)
{
    const struct rt_store *s = d->store;
    row->n = s->start[i + 1] - s->start[i];
    for (int f = 0; f < RT_NFIELDS; f++)
        row->field[f] = s->field[f] ? s->field[f] + s->start[i] : NULL;
    row->nlabel = row->field[RT_F_LABELS] ? row->n : 0;
    if (d->row_labels && s->field[RT_F_LABELS]) {
        row->field[RT_F_LABELS] = s->field[RT_F_LABELS] + i;
        row->nlabel = 1;
    }
    return RT_OK;
}

void
rt_row_free(rt_row *row)
{
    free(row->memory);
    *row = (rt_row){0};
}

void
rt_row_field(const rt_data *d, const rt_row *row, rt_field f, int64_t *out)
{
    const int32_t *mask = row->field[RT_F_MASK], *x = row->field[f];
    int64_t seen = 0;
    for (int64_t t = 0; t < row->n; t++) {
        int64_t real = !mask || mask[t];
        seen += real;
        if (x && (f != RT_F_LABELS || !d->row_labels))
            out[t] = x[t];
        else if (f == RT_F_POSITIONS)
            out[t] = seen ? seen - 1 : 0;
        else if (f == RT_F_LABELS)
            out[t] = d->causal && real ? row->field[RT_F_IDS][t] : RT_IGNORE;
        else
            out[t] = f == RT_F_MASK;
    }
}

int64_t
rt_data_label(const rt_data *d, int64_t row, int64_t t)
{
    if (d->row_labels)
        return d->store->field[RT_F_LABELS] && d->spec.use != RT_PREDICTION
                   ? d->store->field[RT_F_LABELS][row]
                   : RT_IGNORE;
    int64_t at = d->store->start[row] + t;
    if (d->store->field[RT_F_LABELS])
        return d->store->field[RT_F_LABELS][at];
    bool real = !d->store->field[RT_F_MASK] || d->store->field[RT_F_MASK][at];
    return d->causal && real ? d->store->field[RT_F_IDS][at] : RT_IGNORE;
}

float
rt_data_value(const rt_data *d, int64_t row, int64_t k)
{
    (void)d, (void)row, (void)k;
    return NAN;
}

int64_t
rt_data_supervised(const rt_data *d, int64_t row)
{
    if (d->row_labels)
        return rt_data_label(d, row, 0) != RT_IGNORE;
    int64_t n = 0, length = rt_data_length(d, row);
    for (int64_t t = d->causal; t < length; t++)
        n += rt_data_label(d, row, t) != RT_IGNORE;
    return n;
}

int64_t
rt_data_length(const rt_data *d, int64_t row)
{
    return d->store->start[row + 1] - d->store->start[row];
}
