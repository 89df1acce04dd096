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

enum { SHOWN = 5, KEYS = 4 };

static const char *const field_name[RT_NFIELDS] = {
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "labels"};
static const rt_input_role field_role[RT_NFIELDS] = {RT_IDS, RT_MASK, RT_TYPES,
                                                     RT_POSITIONS, RT_TARGETS};

typedef struct reader {
    rt_data *d;
    int64_t line, nbad;
    bool takes[RT_NFIELDS]; /* the program has such an input, or needs it for one */
    int64_t low[RT_NFIELDS], high[RT_NFIELDS]; /* values are in [low, high) */
    const char *other[RT_NFIELDS];             /* a second name that a row may use */
    int64_t ignored[RT_NFIELDS]; /* rows with a field that the program does not take */
    char *unknown[KEYS];         /* other keys, the first few */
    bool ok;                     /* the row so far */
} reader;

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
    rt_fail(RT_USER, "%s:%lld: %s", r->d->path, (long long)r->line, text);
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
    if (d->ntoken + n <= d->token_cap && d->field[RT_F_IDS])
        return;
    d->token_cap = (d->ntoken + n) * 3 / 2 + 1024;
    for (int f = 0; f < RT_NFIELDS; f++)
        if (f == RT_F_IDS || (d->field[f] && !(f == RT_F_LABELS && d->row_labels)))
            d->field[f] = rt_grow(d->field[f], (size_t)d->token_cap * sizeof(int32_t));
}

static void
grow_rows(rt_data *d)
{
    if (d->n + 1 < d->row_cap)
        return;
    d->row_cap = d->row_cap * 3 / 2 + 256;
    d->start = rt_grow(d->start, (size_t)(d->row_cap + 1) * sizeof *d->start);
    if (d->row_labels)
        d->field[RT_F_LABELS] =
            rt_grow(d->field[RT_F_LABELS], (size_t)d->row_cap * sizeof(int32_t));
}

/* What tokens [from,to) of one row get where the row has no such field. */
static void
derive(rt_data *d, rt_field f, int64_t from, int64_t to)
{
    int32_t seen = 0;
    for (int64_t t = from; t < to; t++) {
        bool real = !d->field[RT_F_MASK] || d->field[RT_F_MASK][t];
        int32_t value = 0;
        seen += real;
        if (f == RT_F_MASK)
            value = 1;
        else if (f == RT_F_POSITIONS)
            value = seen ? seen - 1 : 0;
        else if (f == RT_F_LABELS)
            value = d->causal && real ? d->field[RT_F_IDS][t] : RT_IGNORE;
        d->field[f][t] = value;
    }
}

/* The array of a field that this row is the first to have; earlier rows get derived values. */
static void
begin_field(rt_data *d, rt_field f)
{
    d->field[f] = rt_grow(NULL, (size_t)d->token_cap * sizeof(int32_t));
    for (int64_t i = 0; i < d->n; i++)
        derive(d, f, d->start[i], d->start[i + 1]);
}

/* Gives back what the arrays have in reserve. */
static void
trim(rt_data *d)
{
    d->row_cap = d->n;
    d->token_cap = d->ntoken;
    d->start = rt_grow(d->start, (size_t)(d->n + 1) * sizeof *d->start);
    for (int f = 0; f < RT_NFIELDS; f++) {
        int64_t n = f == RT_F_LABELS && d->row_labels ? d->n : d->ntoken;
        if (d->field[f])
            d->field[f] = rt_grow(d->field[f], (size_t)n * sizeof(int32_t));
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
    if (!d->field[f])
        begin_field(d, f);
    return read_values(r, f, item, d->field[f] + d->ntoken);
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
    r->d->field[RT_F_LABELS][r->d->n] = (int32_t)x;
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
    if (n > d->program->seq)
        return bad(r,
                   "has %lld tokens, but rows have at most %lld\nshorten the row, or "
                   "compile again with efficc --seq %lld",
                   (long long)n, (long long)d->program->seq, (long long)n),
               -1;
    grow_tokens(d, n);
    return read_values(r, RT_F_IDS, item, d->field[RT_F_IDS] + d->ntoken) ? n : -1;
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
    if (d->field[f])
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
        real += !d->field[RT_F_MASK] || d->field[RT_F_MASK][t];
    if (!real) {
        bad(r, "attention_mask hides every token");
        return;
    }
    d->ntoken += n;
    d->start[++d->n] = d->ntoken;
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
        return rt_fail(RT_USER, "%s: %s", r->d->path, strerror(err));
    if (r->nbad > SHOWN)
        rt_fail(RT_USER, "%s: %lld more bad rows", r->d->path,
                (long long)r->nbad - SHOWN);
    if (r->nbad)
        return RT_USER;
    if (!r->d->n)
        return rt_fail(RT_USER, "%s holds no rows", r->d->path);
    return RT_OK;
}

static void
lower(int64_t *limit, int64_t to)
{
    if (to && to < *limit)
        *limit = to;
}

static void
limits(reader *r)
{
    const rt_program *p = r->d->program;
    for (int f = 0; f < RT_NFIELDS; f++) {
        const rt_input *in = rt_input_of(p, field_role[f]);
        r->takes[f] = in != NULL;
        r->high[f] = INT32_MAX;
        r->other[f] = in ? in->name : field_name[f];
        lower(&r->high[f], in ? in->limit : 0);
    }
    r->takes[RT_F_MASK] = true; /* positions and labels follow from it */
    r->takes[RT_F_LABELS] &= r->d->use != RT_PREDICTION;
    r->other[RT_F_LABELS] = "label";
    r->high[RT_F_MASK] = 2;
    lower(&r->high[RT_F_IDS], p->vocab);
    lower(&r->high[RT_F_LABELS], p->labels ? p->labels : p->vocab);
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
        bool needed = f == RT_F_LABELS ? d->causal && d->use != RT_PREDICTION
                                       : rt_input_of(d->program, field_role[f]) != NULL;
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
    if (d->use != RT_PREDICTION)
        snprintf(supervised, sizeof supervised, ", %lld supervised",
                 (long long)d->supervised);
    rt_say(purpose[d->use], "%s: %lld rows, %lld tokens%s", d->path, (long long)d->n,
           (long long)d->ntoken, supervised);
}

static int
check_supervised(const rt_data *d)
{
    if (d->use == RT_PREDICTION)
        return RT_OK;
    if (!d->supervised)
        return rt_fail(RT_USER, "%s: no token is supervised: every label is -100%s",
                       d->path, d->causal ? ", or rows have one token" : "");
    if (!d->row_labels && d->supervised * 100 < d->ntoken)
        rt_warn("%s: only %lld of %lld tokens are supervised", d->path,
                (long long)d->supervised, (long long)d->ntoken);
    return RT_OK;
}

int
rt_data_open(rt_data *d, const rt_words *files, const rt_program *p, rt_use use)
{
    const char *path = files->at[0];
    const rt_input *targets = rt_input_of(p, RT_TARGETS);
    *d = (rt_data){.path = path, .program = p, .use = use};
    d->row_labels = targets && targets->rank == 1;
    d->causal = !strcmp(p->task, "causal-lm");
    d->start = rt_new(1, sizeof *d->start);
    reader r = {.d = d};
    limits(&r);
    FILE *f = fopen(path, "r");
    if (!f)
        return rt_fail(RT_USER, "%s: %s", path, strerror(errno));
    int code = read_lines(&r, f);
    fclose(f);
    for (int64_t i = 0; i < d->n && use != RT_PREDICTION; i++)
        d->supervised += rt_data_supervised(d, i);
    if (!code) {
        trim(d);
        say_rows(d);
        say_decisions(&r);
        code = check_supervised(d);
    }
    for (int k = 0; k < KEYS; k++)
        free(r.unknown[k]);
    return code;
}

void
rt_data_close(rt_data *d)
{
    for (int f = 0; f < RT_NFIELDS; f++)
        free(d->field[f]);
    free(d->start);
    *d = (rt_data){0};
}

int64_t
rt_data_bytes(const rt_data *d)
{
    int64_t bytes = d->row_cap * (int64_t)sizeof *d->start;
    for (int f = 0; f < RT_NFIELDS; f++)
        if (d->field[f])
            bytes +=
                4 * (f == RT_F_LABELS && d->row_labels ? d->row_cap : d->token_cap);
    return bytes;
}

int64_t
rt_data_label(const rt_data *d, int64_t row, int64_t t)
{
    if (d->row_labels)
        return d->field[RT_F_LABELS][row];
    int64_t at = d->start[row] + t;
    if (d->field[RT_F_LABELS])
        return d->field[RT_F_LABELS][at];
    bool real = !d->field[RT_F_MASK] || d->field[RT_F_MASK][at];
    return d->causal && real ? d->field[RT_F_IDS][at] : RT_IGNORE;
}

int64_t
rt_data_supervised(const rt_data *d, int64_t row)
{
    if (d->row_labels)
        return rt_data_label(d, row, 0) != RT_IGNORE;
    int64_t n = 0, length = d->start[row + 1] - d->start[row];
    for (int64_t t = d->causal; t < length; t++)
        n += rt_data_label(d, row, t) != RT_IGNORE;
    return n;
}

int64_t
rt_data_length(const rt_data *d, int64_t row)
{
    return d->start[row + 1] - d->start[row];
}
