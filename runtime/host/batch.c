/* batch.c -- rows to the inputs of a micro-batch, and the order of rows.
 *
 * Row i of an epoch is row perm(i) of the file, where perm is a keyed bijection: nothing is
 * stored, any position can be computed, no row comes twice. Short rows are padded; a batch
 * that runs out of rows is filled up with empty ones: one visible pad token (so that no
 * attention row is without a key) and no target.
 */
#include "host_int.h"

#include <stdlib.h>

static int64_t
input_bytes(const rt_input *in)
{
    int64_t n = 1;
    for (int d = 0; d < in->rank; d++)
        n *= in->dim[d];
    return n * (int64_t)(in->role == RT_SCALE ? sizeof(float) : sizeof(int64_t));
}

int64_t
rt_inputs_bytes(const rt_program *p)
{
    int64_t bytes = 0;
    for (int i = 0; i < p->ninput; i++)
        bytes += input_bytes(&p->input[i]);
    return bytes;
}

void
rt_inputs_new(rt_run *run)
{
    const rt_program *p = run->program;
    run->input = rt_new((size_t)p->ninput, sizeof *run->input);
    for (int i = 0; i < p->ninput; i++)
        run->input[i] = rt_new((size_t)input_bytes(&p->input[i]), 1);
}

void
rt_inputs_free(rt_run *run)
{
    for (int i = 0; run->input && i < run->program->ninput; i++)
        free(run->input[i]);
    free(run->input);
    run->input = NULL;
}

/* Targets of a row with a label a token. */
static void
fill_targets(const rt_data *d, int64_t row, int64_t n, int64_t *out, int64_t seq)
{
    for (int64_t t = 0; t < seq; t++) {
        out[t] = RT_IGNORE;
        if (t + d->causal < n)
            out[t] = rt_data_label(d, row, t + d->causal);
        if (d->spec.use == RT_PREDICTION && t < n && out[t] == RT_IGNORE)
            out[t] = 0;
    }
}

static int64_t
last_position(const rt_row *r)
{
    const int32_t *mask = r->field[RT_F_MASK];
    int64_t seen = 0;
    for (int64_t t = 0; t < r->n; t++)
        seen += !mask || mask[t];
    return seen ? seen - 1 : 0;
}

/* One row (or none: -1) of one input; out has seq elements. */
static void
fill_row(const rt_program *p, const rt_data *d, rt_input_role role, int64_t row,
         int64_t *out)
{
    static const rt_field field[] = {[RT_IDS] = RT_F_IDS,
                                     [RT_MASK] = RT_F_MASK,
                                     [RT_TYPES] = RT_F_TYPES,
                                     [RT_POSITIONS] = RT_F_POSITIONS};
    rt_row r = {0};
    if (row >= 0)
        rt_data_row(d, row, &r);
    if (role == RT_TARGETS) {
        fill_targets(d, row, r.n, out, p->seq);
        return;
    }
    rt_row_field(d, &r, field[role], out);
    int64_t pad = role == RT_IDS         ? p->pad
                  : role == RT_POSITIONS ? last_position(&r)
                                         : 0;
    for (int64_t t = r.n; t < p->seq; t++)
        out[t] = pad;
    if (!r.n && role == RT_MASK)
        out[0] = 1;
}

static void
fill_row_label(const rt_data *d, int64_t row, int64_t *out)
{
    *out = row < 0 ? RT_IGNORE : rt_data_label(d, row, 0);
    if (row >= 0 && d->spec.use == RT_PREDICTION && *out == RT_IGNORE)
        *out = 0;
}

int64_t
rt_batch_fill(rt_run *run, const rt_data *d, const int64_t *row, int64_t n)
{
    const rt_program *p = run->program;
    for (int i = 0; i < p->ninput; i++) {
        const rt_input *in = &p->input[i];
        int64_t *out = run->input[i];
        for (int64_t b = 0; b < p->batch && in->role != RT_SCALE; b++)
            if (in->role == RT_TARGETS && d->row_labels)
                fill_row_label(d, b < n ? row[b] : -1, out + b);
            else
                fill_row(p, d, in->role, b < n ? row[b] : -1, out + b * p->seq);
    }
    int64_t tokens = 0;
    for (int64_t b = 0; b < n; b++) {
        rt_row r = {0};
        rt_data_row(d, row[b], &r);
        for (int64_t t = 0; t < r.n; t++)
            tokens += !r.field[RT_F_MASK] || r.field[RT_F_MASK][t];
    }
    return tokens;
}

void
rt_set_scale(rt_run *run, double scale)
{
    for (int i = 0; i < run->program->ninput; i++)
        if (run->program->input[i].role == RT_SCALE)
            *(float *)run->input[i] = (float)scale;
}
