/* batch.c -- rows to the inputs of a micro-batch.
 *
 * Short rows are padded; a batch that runs out of rows is filled up with empty ones: one
 * visible pad token (so that no attention row is without a key) and no target.
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

static int64_t
input_bytes(const rt_input *in)
{
    bool floats = in->role == RT_SCALE || in->role == RT_VALUES;
    return (in->rank ? in->dim[0] : 1) * row_elements(in) *
           (int64_t)(floats ? sizeof(float) : sizeof(int64_t));
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
    else if (in->role == RT_TARGETS && in->rank == 1)
        fill_class(f, (int64_t *)data + b);
    else if (in->role == RT_TARGETS)
        fill_targets(f, (int64_t *)data + b * n);
    else if (in->role != RT_SCALE && in->role != RT_DROP_KEYS &&
             in->role != RT_DROP_KEY)
        fill_tokens(f, in->role, (int64_t *)data + b * n);
}

int64_t
rt_batch_fill(rt_run *run, const rt_data *d, const int64_t *row, int64_t n)
{
    static const rt_row empty = {0};
    const rt_program *p = run->program;
    int64_t tokens = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        filling f = {p, d, b < n ? rt_data_look(d, row[b]) : &empty};
        if (!f.row)
            return -1;
        tokens += rt_row_real(f.row);
        for (int i = 0; i < p->ninput; i++)
            fill(&f, &p->input[i], run->input[i], b);
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

/* Mixes all bits (SplitMix64 of Steele, Lea and Flood, 2014). */
static uint64_t
mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int64_t
rt_step_key(uint64_t seed, int64_t step)
{
    return (int64_t)(mix(mix(seed) ^ (uint64_t)step) >> 12);
}

void
rt_set_keys(rt_run *run, int64_t key, int64_t first)
{
    const rt_program *p = run->program;
    for (int i = 0; i < p->ninput; i++) {
        int64_t *data = run->input[i];
        if (p->input[i].role == RT_DROP_KEY)
            data[0] = key;
        if (p->input[i].role == RT_DROP_KEYS)
            for (int64_t k = 0; k < p->batch * p->seq; k++)
                data[k] = (first + k / p->seq) << 24 | k % p->seq;
    }
}
