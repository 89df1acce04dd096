/* cmd_data.c -- efficc data: what files of rows hold, before anything is trained on them.
 *
 * The files are opened and checked by the trainer's own reader, so what it would refuse is
 * refused here in the same words. Without --task nothing is known about labels: they are
 * told as they are.
 */
#include "cmd_data.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BAR = 40,         /* characters of the longest bar */
    ROWS = 3,         /* shown, if --rows does not say */
    TOKENS = 64,      /* of a row that is shown */
    LABELS_SHOWN = 20 /* in text */
};

typedef struct view {
    ef_arena *arena;
    const cmd_args *args;
    rt_data_spec spec;
    rt_data data;
    cmd_tokens tokens; /* n 0: none given */
    cmd_counts counts;
    int64_t seq, rows; /* --seq, else the longest row; rows to show */
} view;

/* ---- options ---- */

static const struct {
    const char *name;
    rt_label label;
    bool causal;
} tasks[] = {{"causal-lm", RT_LABEL_TOKEN, true},
             {"mlm", RT_LABEL_TOKEN, false},
             {"token-cls", RT_LABEL_TOKEN, false},
             {"seq-cls", RT_LABEL_ROW, false},
             {"regression", RT_LABEL_VALUES, false}};

static int
read_task(view *v)
{
    const char *task = cmd_str(v->args, "task");
    v->spec.label = RT_LABEL_ANY;
    if (!task)
        return RT_OK;
    for (size_t i = 0; i < EF_COUNT(tasks); i++)
        if (!strcmp(tasks[i].name, task)) {
            v->spec.label = tasks[i].label;
            v->spec.causal = tasks[i].causal;
            return RT_OK;
        }
    return rt_fail(RT_USER,
                   "--task: '%s' is not causal-lm, mlm, token-cls, seq-cls or "
                   "regression",
                   task);
}

static int
read_options(view *v)
{
    const char *tokenizer = cmd_str(v->args, "tokenizer");
    int64_t vocab = cmd_int(v->args, "vocab");
    v->spec.use = RT_TRAINING;
    v->spec.seq = cmd_int(v->args, "seq");
    v->rows = cmd_flag(v->args, "no-rows") ? 0 : cmd_int(v->args, "rows");
    if (!v->rows && !cmd_flag(v->args, "no-rows"))
        v->rows = ROWS;
    int code = read_task(v);
    if (!code && tokenizer)
        code = cmd_tokens_open(v->arena, tokenizer, &v->tokens);
    for (int f = 0; f < RT_NFIELDS; f++)
        v->spec.takes[f] = true;
    v->spec.other[RT_F_LABELS] = "label";
    v->spec.high[RT_F_MASK] = 2;
    v->spec.high[RT_F_IDS] = vocab ? vocab : v->tokens.n;
    return code;
}

/* ---- rows ---- */

/* How many tokens of row i are shown. */
static int64_t
shown(const rt_row *row)
{
    return row->n < TOKENS ? row->n : TOKENS;
}

static const char *
ids_text(ef_arena *a, const int32_t *id, int64_t n, const char *between)
{
    ef_buf b = {.arena = a};
    ef_puts(&b, "");
    for (int64_t t = 0; t < n; t++)
        ef_putf(&b, "%s%d", t ? between : "", id[t]);
    return b.s;
}

/* Of the tokens that are shown those with a label; NULL: all or none are. */
static const char *
learnt_text(const view *v, int64_t i, const rt_row *row)
{
    int32_t id[TOKENS];
    int64_t n = 0;
    for (int64_t t = 0; t < shown(row); t++)
        if (rt_data_label(&v->data, i, t) != RT_IGNORE)
            id[n++] = row->field[RT_F_IDS][t];
    if (!n || n == shown(row) || !v->data.causal)
        return NULL;
    return v->tokens.n ? cmd_tokens_text(&v->tokens, v->arena, id, n)
                       : ids_text(v->arena, id, n, " ");
}

static const char *
label_text(const view *v, const rt_row *row)
{
    ef_buf b = {.arena = v->arena};
    for (int64_t k = 0; row->value && k < row->nlabel; k++)
        ef_putf(&b, "%s%s", k ? " " : "",
                isnan(row->value[k]) ? "null" : ef_ftoa((double)row->value[k]));
    if (!row->value && v->counts.row_labels && row->nlabel == 1)
        ef_putf(&b, "%d", row->field[RT_F_LABELS][0]);
    return b.n ? b.s : NULL;
}

static const char *
row_text(const view *v, const rt_row *row)
{
    return v->tokens.n
               ? cmd_tokens_text(&v->tokens, v->arena, row->field[RT_F_IDS], shown(row))
               : ids_text(v->arena, row->field[RT_F_IDS], shown(row), " ");
}

/* ---- as text ---- */

static void
say_files(const view *v)
{
    for (int k = 0; k < v->data.nfile; k++) {
        const rt_data_file *f = &v->data.file[k];
        rt_text t = {0};
        rt_putf(&t, "%s: %s: %" PRId64 " rows, %" PRId64 " tokens", f->path, f->format,
                f->n, f->ntoken);
        if (f->nreal != f->ntoken)
            rt_putf(&t, ", %" PRId64 " of them hidden by the mask",
                    f->ntoken - f->nreal);
        if (v->data.weighted)
            rt_putf(&t, "; weight %g: %" PRId64 " rows of an epoch", f->weight,
                    f->share);
        rt_say(k ? "" : "data", "%s", t.s);
        free(t.s);
    }
    if (v->data.nfile > 1)
        rt_say("", "%d files: %" PRId64 " rows, %" PRId64 " tokens", v->data.nfile,
               v->data.n, v->data.ntoken);
}

static void
say_lengths(const view *v)
{
    const cmd_counts *c = &v->counts;
    int64_t n = v->data.n, width = cmd_bar_width(c), most = 1;
    int64_t first = c->least / width * width;
    rt_say("lengths",
           "least %" PRId64 ", median %" PRId64 ", 95 %% up to %" PRId64
           ", most %" PRId64 ", mean %.1f",
           c->least, cmd_quantile(c, n, 0.5), cmd_quantile(c, n, 0.95), c->longest,
           (double)v->data.ntoken / (double)n);
    for (int64_t k = first; k <= c->longest; k += width) {
        int64_t rows = cmd_rows_between(c, k, k + width);
        most = rows > most ? rows : most;
    }
    for (int64_t k = first; k <= c->longest && c->least < c->longest; k += width) {
        int64_t rows = cmd_rows_between(c, k, k + width);
        int bar = (int)ceil((double)rows * BAR / (double)most);
        rt_say("", "%6" PRId64 " .. %-6" PRId64 " %-*.*s %" PRId64, k, k + width - 1,
               BAR, bar, "########################################", rows);
    }
}

static double
padding(const view *v)
{
    return 1 - (double)v->data.nreal / ((double)v->data.n * (double)v->seq);
}

static void
say_learnt(const view *v)
{
    const rt_data *d = &v->data;
    rt_say("padding", "%.1f %% of a batch at --seq %" PRId64 "%s", 100 * padding(v),
           v->seq, v->spec.seq ? "" : ", the longest row");
    if (d->row_labels || v->counts.row_labels || v->counts.values)
        return;
    rt_say("learnt", "%" PRId64 " of %" PRId64 " tokens (%.1f %%)", d->supervised,
           d->ntoken, 100 * (double)d->supervised / (double)d->ntoken);
    if (v->spec.label == RT_LABEL_ANY && !v->counts.token_labels)
        rt_say("", "rows have no labels; a causal language model learns its ids: "
                   "--task causal-lm");
    else if (v->counts.unlearnt)
        rt_say("", "nothing in %" PRId64 " rows", v->counts.unlearnt);
}

static void
say_labels(const view *v)
{
    const cmd_counts *c = &v->counts;
    int64_t n = 0;
    if (c->values)
        rt_say("labels",
               "%" PRId64 " numbers: least %g, mean %g, most %g; %" PRId64 " null",
               c->nvalue, c->low, c->nvalue ? c->sum / (double)c->nvalue : 0, c->high,
               c->nnull);
    for (int i = 0; i < c->nlabel; i++)
        n += c->label[i].n;
    for (int i = 0; i < c->nlabel && i < LABELS_SHOWN; i++)
        rt_say(i ? "" : "labels", "%6d  %5.1f %%  %" PRId64 "%s", c->label[i].label,
               100 * (double)c->label[i].n / (double)n, c->label[i].n,
               c->label[i].label == RT_IGNORE ? "  (not learnt)" : "");
    if (c->nlabel == CMD_LABELS)
        rt_say("", "more than %d different ones", CMD_LABELS);
    else if (c->nlabel > LABELS_SHOWN)
        rt_say("", "and %d others", c->nlabel - LABELS_SHOWN);
}

static void
say_rows(const view *v)
{
    int64_t high = v->spec.high[RT_F_IDS];
    rt_say("ids", "largest %" PRId64 "%s", v->counts.largest,
           high ? ef_printf(v->arena, ", below %" PRId64, high) : "");
    for (int64_t i = 0; i < v->rows && i < v->data.n; i++) {
        const rt_row *row = rt_data_look(&v->data, i);
        if (!row)
            return;
        const char *label = label_text(v, row), *learnt = learnt_text(v, i, row);
        rt_say(ef_printf(v->arena, "row %" PRId64, i + 1), "%" PRId64 " tokens%s%s%s",
               row->n, label ? ", label " : "", label ? label : "",
               row->n > TOKENS ? ef_printf(v->arena, ", here the first %d", TOKENS)
                               : "");
        rt_say("", "%s", row_text(v, row));
        if (learnt)
            rt_say("", "learnt: %s", learnt);
    }
}

/* ---- as JSON ---- */

static void
put_files(const view *v, rt_text *t)
{
    for (int k = 0; k < v->data.nfile; k++) {
        const rt_data_file *f = &v->data.file[k];
        rt_putf(t, "%s{\"path\": ", k ? ", " : "\"files\": [");
        rt_put_json(t, f->path);
        rt_putf(t, ", \"format\": ");
        rt_put_json(t, f->format);
        rt_putf(t, ", \"rows\": %" PRId64 ", \"tokens\": %" PRId64 "}", f->n,
                f->ntoken);
    }
}

static void
put_counts(const view *v, rt_text *t)
{
    const cmd_counts *c = &v->counts;
    int64_t n = v->data.n, width = cmd_bar_width(c), first = c->least / width * width;
    rt_putf(t,
            "], \"rows\": %" PRId64 ", \"tokens\": %" PRId64
            ", \"real_tokens\": %" PRId64 ", \"supervised\": %" PRId64
            ", \"unlearnt_rows\": %" PRId64 ", \"largest_id\": %" PRId64,
            n, v->data.ntoken, v->data.nreal, v->data.supervised, c->unlearnt,
            c->largest);
    rt_putf(t,
            ", \"lengths\": {\"least\": %" PRId64 ", \"median\": %" PRId64
            ", \"p95\": %" PRId64 ", \"most\": %" PRId64 ", \"mean\": %.17g}",
            c->least, cmd_quantile(c, n, 0.5), cmd_quantile(c, n, 0.95), c->longest,
            (double)v->data.ntoken / (double)n);
    for (int64_t k = first; k <= c->longest; k += width)
        rt_putf(t,
                "%s{\"from\": %" PRId64 ", \"to\": %" PRId64 ", \"rows\": %" PRId64 "}",
                k == first ? ", \"histogram\": [" : ", ", k, k + width - 1,
                cmd_rows_between(c, k, k + width));
    rt_putf(t, "], \"padding\": {\"seq\": %" PRId64 ", \"share\": %.17g}", v->seq,
            padding(v));
}

static void
put_labels(const view *v, rt_text *t)
{
    const cmd_counts *c = &v->counts;
    rt_putf(t, ", \"labels\": [");
    for (int i = 0; i < c->nlabel; i++)
        rt_putf(t, "%s{\"label\": %d, \"n\": %" PRId64 "}", i ? ", " : "",
                c->label[i].label, c->label[i].n);
    rt_putf(t, "], \"more_labels\": %s", c->nlabel == CMD_LABELS ? "true" : "false");
    if (c->nvalue)
        rt_putf(t,
                ", \"values\": {\"n\": %" PRId64 ", \"null\": %" PRId64
                ", \"least\": %.9g, \"mean\": %.9g, \"most\": %.9g}",
                c->nvalue, c->nnull, c->low, c->sum / (double)c->nvalue, c->high);
}

static void
put_rows(const view *v, rt_text *t)
{
    rt_putf(t, ", \"first_rows\": [");
    for (int64_t i = 0; i < v->rows && i < v->data.n; i++) {
        const rt_row *row = rt_data_look(&v->data, i);
        if (!row)
            break;
        rt_putf(t, "%s{\"tokens\": %" PRId64 ", \"input_ids\": [%s]", i ? ", " : "",
                row->n, ids_text(v->arena, row->field[RT_F_IDS], shown(row), ", "));
        if (v->tokens.n) {
            rt_putf(t, ", \"text\": ");
            rt_put_json(t, row_text(v, row));
        }
        rt_putf(t, "}");
    }
    rt_putf(t, "]");
}

static void
print_json(const view *v)
{
    rt_text t = {0};
    rt_putf(&t, "{");
    put_files(v, &t);
    put_counts(v, &t);
    put_labels(v, &t);
    put_rows(v, &t);
    printf("%s}\n", t.s);
    free(t.s);
}

/* ---- the command ---- */

/* What the trainer's reader says on the way is told better below. */
static int
open_quietly(view *v)
{
    const rt_words files = {v->args->n, v->args->at};
    rt_out = fopen("/dev/null", "w");
    int code = rt_data_open(&v->data, &files, &v->spec);
    if (rt_out)
        fclose(rt_out);
    rt_out = NULL;
    return code;
}

static int
run(view *v)
{
    int code = read_options(v);
    if (!code)
        code = open_quietly(v);
    if (!code)
        code = cmd_count(&v->data, &v->counts);
    if (code)
        return code;
    v->seq = v->spec.seq ? v->spec.seq : v->counts.longest;
    if (cmd_flag(v->args, "json")) {
        print_json(v);
        return RT_OK;
    }
    say_files(v);
    say_lengths(v);
    say_learnt(v);
    say_labels(v);
    say_rows(v);
    return RT_OK;
}

int
cmd_data(ef_ctx *ctx, const cmd_args *args)
{
    view v = {.arena = ctx->arena, .args = args};
    rt_name = "efficc";
    int code = run(&v);
    rt_data_close(&v.data);
    free(v.counts.length);
    return code == RT_STOPPED ? RT_USER : code; /* no room for the spool */
}
