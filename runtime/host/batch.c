/* batch.c -- rows to the inputs of a micro-batch.
 *
 * Short rows are padded; a batch that runs out of rows is filled up with empty ones: one
 * visible pad token (so that no attention row is without a key) and no target.
 *
 * A program that computes no padding gets, besides, which rows of [B,S] are real: those that
 * the mask shows, those that are supervised and those at the position that the task reads.
 */
#include "data_int.h"

#include <math.h>
#include <stdlib.h>

static int64_t
row_elements(const rt_input *in)
{
    int64_t n = 1;
    for (int d = 1; d < in->rank; d++)
        n *= in->dim[d];
    return n;
}

typedef struct filling {
    const rt_program *p;
    const rt_data *d;
    const rt_row *row; /* n 0: an empty one */
} filling;

/* Targets of a row with a label a token. For a prediction something is wanted of each. */
static void
fill_targets(const filling *f, int64_t *out)
{
    int64_t n = f->row->n, seq = f->p->seq, shift = f->d->causal;
    if (n)
        rt_row_field(f->d, f->row, RT_F_LABELS, out);
    for (int64_t t = 0; t < seq; t++) {
        out[t] = t + shift < n ? out[t + shift] : RT_IGNORE;
        if (f->d->spec.use == RT_PREDICTION && t < n && out[t] == RT_IGNORE)
            out[t] = 0;
    }
}

static void
fill_class(const filling *f, int64_t *out)
{
    const int32_t *label = f->row->field[RT_F_LABELS];
    bool predict = f->row->n && f->d->spec.use == RT_PREDICTION;
    *out = label ? label[0] : RT_IGNORE;
    if (predict && *out == RT_IGNORE)
        *out = 0;
}

static void
fill_values(const filling *f, float *out, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        out[k] = f->row->value && k < f->row->nlabel ? f->row->value[k] : NAN;
}

static void
fill_tokens(const filling *f, rt_input_role role, int64_t *out)
{
    static const rt_field field[] = {[RT_IDS] = RT_F_IDS,
                                     [RT_MASK] = RT_F_MASK,
                                     [RT_TYPES] = RT_F_TYPES,
                                     [RT_POSITIONS] = RT_F_POSITIONS};
    int64_t n = f->row->n, real = rt_row_real(f->row), pad = 0;
    if (n)
        rt_row_field(f->d, f->row, field[role], out);
    if (role == RT_IDS)
        pad = f->p->pad;
    if (role == RT_POSITIONS && real)
        pad = real - 1;
    for (int64_t t = n; t < f->p->seq; t++)
        out[t] = pad;
    if (!n && role == RT_MASK)
        out[0] = 1;
}

/* One input of the batch's row b. */
static void
fill(const filling *f, const rt_input *in, void *data, int64_t b)
{
    int64_t n = row_elements(in);
    if (in->role == RT_VALUES)
        fill_values(f, (float *)data + b * n, n);
    else if (in->role == RT_TARGETS && in->vary)
        fill_targets(f, (int64_t *)data +
                            b * f->p->seq); /* made shorter by list_sample() */
    else if (in->role == RT_TARGETS && in->rank == 1)
        fill_class(f, (int64_t *)data + b);
    else if (in->role == RT_TARGETS)
        fill_targets(f, (int64_t *)data + b * n);
    else if (in->role == RT_IDS || in->role == RT_MASK || in->role == RT_TYPES ||
             in->role == RT_POSITIONS)
        fill_tokens(f, in->role, (int64_t *)data + b * n);
}

/* ---- rows instead of padding ---- */

typedef struct lists { /* inputs by role; NULL: the program has none */
    const int64_t *mask;
    int64_t *row, *offsets, *position, *sup, *targets, *pooled;
    int64_t nrow, nsup;
} lists;

static void *
data_of(const rt_run *run, rt_input_role role)
{
    const rt_input *in = rt_input_of(run->program, role);
    return in ? run->host_input[in - run->program->input] : NULL;
}

static lists
lists_of(const rt_run *run)
{
    const rt_input *mask = rt_input_of(run->program, RT_MASK);
    lists l = {.mask = mask && mask->used ? data_of(run, RT_MASK) : NULL,
               .row = data_of(run, RT_ROW),
               .offsets = data_of(run, RT_OFFSETS),
               .position = data_of(run, RT_POSITION),
               .sup = data_of(run, RT_SUPERVISED),
               .pooled = data_of(run, RT_POOLED)};
    if (l.sup)
        l.targets = data_of(run, RT_TARGETS);
    return l;
}

/* Rows of sample b, which has n tokens, go behind those that are listed. Targets move down to
 * where nothing is waiting to be read. */
static void
list_sample(const rt_program *p, lists *l, int64_t b, int64_t n)
{
    l->offsets[b] = l->nrow;
    for (int64_t t = 0; t < p->seq; t++) {
        int64_t at = b * p->seq + t, target = l->targets ? l->targets[at] : RT_IGNORE;
        bool seen = l->mask ? l->mask[at] != 0 : t < n;
        if (!seen && target == RT_IGNORE && t != p->pin)
            continue;
        if (target != RT_IGNORE) {
            l->sup[l->nsup] = l->nrow;
            l->targets[l->nsup++] = target;
        }
        if (t == p->pin)
            l->pooled[b] = l->nrow;
        l->row[l->nrow] = at;
        l->position[l->nrow++] = t;
    }
}

/* Index of the smallest size of the plan that has room for n. */
static int
size_for(const rt_program *p, rt_sym sym, int64_t n)
{
    int i = 0;
    while (i + 1 < p->nsize[sym] && p->size[sym][i] < n)
        i++;
    return i;
}

/* Ends the lists: what is behind them reads row 0, is not supervised and counts for nothing. */
static void
end_lists(rt_run *run, lists *l)
{
    const rt_program *p = run->program;
    int64_t most = p->batch * p->seq;
    int at[RT_NSYMS] = {0};
    l->offsets[p->batch] = l->nrow;
    at[RT_ROWS] = size_for(p, RT_ROWS, l->nrow);
    at[RT_SUP] = size_for(p, RT_SUP, l->nsup);
    for (int64_t i = l->nrow; i < most; i++)
        l->row[i] = l->position[i] = 0;
    for (int64_t i = l->nsup; l->sup && i < most; i++) {
        l->sup[i] = 0;
        l->targets[i] = RT_IGNORE;
    }
    rt_set_sizes(run, at);
}

int64_t
rt_result_row(const rt_run *run, int64_t b, int64_t t)
{
    lists l = lists_of(run);
    int64_t most = run->program->batch * run->program->seq;
    int64_t want = b * run->program->seq + t, lo = 0, hi = most;
    while (l.sup && lo < hi) { /* rows ascend up to where targets end */
        int64_t mid = (lo + hi) / 2;
        if (l.targets[mid] != RT_IGNORE && l.row[l.sup[mid]] < want)
            lo = mid + 1;
        else
            hi = mid;
    }
    return l.sup ? lo : want;
}

int64_t
rt_batch_fill(rt_run *run, const rt_data *d, const int64_t *row, int64_t n)
{
    static const rt_row empty = {0};
    const rt_program *p = run->program;
    rt_inputs_begin(run);
    lists l = lists_of(run);
    int64_t tokens = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        filling f = {p, d, b < n ? rt_data_look(d, row[b]) : &empty};
        if (!f.row)
            return -1;
        tokens += rt_row_real(f.row);
        for (int i = 0; i < p->ninput; i++)
            fill(&f, &p->input[i], run->host_input[i], b);
        if (l.row)
            list_sample(p, &l, b, b < n ? f.row->n : 1);
    }
    if (l.row)
        end_lists(run, &l);
    rt_inputs_send(run);
    return tokens;
}
