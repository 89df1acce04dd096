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

/* Value of an input at token t of a row that has `n` real tokens in the file. */
static int64_t
token(const rt_data *d, rt_field f, int64_t row, int64_t t)
{
    const int32_t *values = d->field[f];
    if (values)
        return values[d->start[row] + t];
    return f == RT_F_MASK ? 1 : 0;
}

static void
fill_positions(const rt_data *d, int64_t row, int64_t n, int64_t *out, int64_t seq)
{
    int64_t seen = 0;
    for (int64_t t = 0; t < seq; t++) {
        seen += t < n ? token(d, RT_F_MASK, row, t) : 0;
        out[t] = t < n && d->field[RT_F_POSITIONS] ? token(d, RT_F_POSITIONS, row, t)
                 : seen                            ? seen - 1
                                                   : 0;
    }
}

/* Targets of a row with a label a token. Predictions are wanted everywhere. */
static void
fill_targets(const rt_data *d, int64_t row, int64_t n, int64_t *out, int64_t seq)
{
    for (int64_t t = 0; t < seq; t++) {
        out[t] = RT_IGNORE;
        if (d->use == RT_PREDICTION)
            out[t] = t < n ? 0 : RT_IGNORE;
        else if (t + d->causal < n)
            out[t] = rt_data_label(d, row, t + d->causal);
    }
}

/* One row (or none: -1) of one input; out has seq elements. */
static void
fill_row(const rt_data *d, rt_input_role role, int64_t row, int64_t *out)
{
    const rt_program *p = d->program;
    int64_t seq = p->seq, n = row < 0 ? 0 : d->start[row + 1] - d->start[row];
    if (role == RT_POSITIONS) {
        fill_positions(d, row, n, out, seq);
        return;
    }
    if (role == RT_TARGETS) {
        fill_targets(d, row, n, out, seq);
        return;
    }
    rt_field f = role == RT_IDS ? RT_F_IDS : role == RT_MASK ? RT_F_MASK : RT_F_TYPES;
    for (int64_t t = 0; t < seq; t++)
        out[t] = t < n ? token(d, f, row, t) : role == RT_IDS ? p->pad : 0;
    if (!n && role == RT_MASK)
        out[0] = 1;
}

static void
fill_row_label(const rt_data *d, int64_t row, int64_t *out)
{
    if (row < 0)
        *out = RT_IGNORE;
    else
        *out = d->use == RT_PREDICTION ? 0 : rt_data_label(d, row, 0);
}

int64_t
rt_batch_fill(rt_run *run, rt_data *d, const int64_t *row, int64_t n)
{
    const rt_program *p = run->program;
    for (int i = 0; i < p->ninput; i++) {
        const rt_input *in = &p->input[i];
        int64_t *out = run->input[i];
        for (int64_t b = 0; b < p->batch && in->role != RT_SCALE; b++)
            if (in->role == RT_TARGETS && d->row_labels)
                fill_row_label(d, b < n ? row[b] : -1, out + b);
            else
                fill_row(d, in->role, b < n ? row[b] : -1, out + b * p->seq);
    }
    int64_t tokens = 0;
    for (int64_t b = 0; b < n; b++)
        for (int64_t t = d->start[row[b]]; t < d->start[row[b] + 1]; t++)
            tokens += !d->field[RT_F_MASK] || d->field[RT_F_MASK][t];
    return tokens;
}

void
rt_set_scale(rt_run *run, double scale)
{
    for (int i = 0; i < run->program->ninput; i++)
        if (run->program->input[i].role == RT_SCALE)
            *(float *)run->input[i] = (float)scale;
}

/* ---- order ---- */

static uint64_t
mix(uint64_t x) /* the finaliser of MurmurHash3 */
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* A Feistel network on an even number of bits is a bijection on [0,4^h); walking on until
 * the value is below n makes it one on [0,n). */
uint64_t
rt_permute(uint64_t i, uint64_t n, uint64_t key)
{
    int bits = 2;
    while (bits < 64 && (uint64_t)1 << bits < n)
        bits += 2;
    int h = bits / 2;
    uint64_t mask = ((uint64_t)1 << h) - 1;
    do {
        uint64_t left = i >> h, right = i & mask;
        for (uint64_t r = 0; r < 6; r++) {
            uint64_t swap =
                left ^ (mix(right ^ mix(key + r * 0x9e3779b97f4a7c15u)) & mask);
            left = right;
            right = swap;
        }
        i = left << h | right;
    } while (i >= n);
    return i;
}

rt_order
rt_order_of(const rt_data *d, bool shuffle, uint64_t seed)
{
    return (rt_order){.n = d->n, .shuffle = shuffle, .seed = seed};
}

int64_t
rt_order_rows(const rt_order *o, int64_t epoch, int64_t first, int64_t n, int64_t *row)
{
    uint64_t key = mix(o->seed ^ mix((uint64_t)epoch + 1));
    int64_t got = 0;
    for (int64_t i = first; got < n && i < o->n; i++)
        row[got++] =
            o->shuffle ? (int64_t)rt_permute((uint64_t)i, (uint64_t)o->n, key) : i;
    return got;
}
