/* data_order.c -- the order in which an epoch takes the rows; data.h says which.
 *
 * Nothing is stored and any position can be computed. A mixture stands as items (2j + 1) /
 * (2 share) of each file, sorted; to find the i-th, one starts a little before it, where the
 * counts of all files follow from their shares, and goes on by merging.
 */
#include "data_int.h"

#include <math.h>
#include <stdlib.h>

__extension__ typedef __int128 wide;

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

/* ---- mixtures ---- */

/* The file whose exact share is furthest above what it has. */
static int
most_due(const rt_data *d, double sum)
{
    int best = 0;
    double most = -INFINITY;
    for (int k = 0; k < d->nfile; k++) {
        double due = d->file[k].weight / sum * (double)d->n - (double)d->file[k].share;
        if (due > most)
            best = k, most = due;
    }
    return best;
}

int
rt_shares(rt_data *d)
{
    double sum = 0;
    int64_t given = 0;
    for (int k = 0; k < d->nfile; k++)
        sum += d->file[k].weight;
    for (int k = 0; k < d->nfile; k++) {
        rt_data_file *f = &d->file[k];
        f->share = (int64_t)floor(f->weight / sum * (double)d->n);
        given += f->share;
    }
    for (; given < d->n; given++)
        d->file[most_due(d, sum)].share++;
    for (int k = 0; k < d->nfile; k++)
        if (!d->file[k].share)
            return rt_fail(RT_USER,
                           "%s: weight %g is less than one of the %lld rows of an epoch"
                           "\ngive it more weight, or leave it out",
                           d->file[k].path, d->file[k].weight, (long long)d->n);
    d->store->cursor = rt_new((size_t)d->nfile, sizeof *d->store->cursor);
    return RT_OK;
}

/* Items of each file that stand before p/n of the epoch; their number. */
static int64_t
items_before(const rt_data *d, int64_t p)
{
    int64_t all = 0;
    for (int k = 0; k < d->nfile; k++) {
        wide most = 2 * (wide)p * d->file[k].share - d->n;
        d->store->cursor[k] =
            most > 0 ? (int64_t)((most - 1) / (2 * (wide)d->n) + 1) : 0;
        all += d->store->cursor[k];
    }
    return all;
}

/* The file of the next item. */
static int
next_item(const rt_data *d)
{
    const int64_t *at = d->store->cursor;
    int best = -1;
    for (int k = 0; k < d->nfile; k++) {
        if (at[k] >= d->file[k].share)
            continue;
        if (best < 0 || (wide)(2 * at[k] + 1) * d->file[best].share <
                            (wide)(2 * at[best] + 1) * d->file[k].share)
            best = k;
    }
    d->store->cursor[best]++;
    return best;
}

/* The row for item j of file k in an epoch. */
static int64_t
row_of(const rt_order *o, int64_t epoch, int k, int64_t j)
{
    const rt_data_file *f = &o->mix->file[k];
    int64_t base = 0, taken = epoch * f->share + j; /* of this file, since the start */
    for (int i = 0; i < k; i++)
        base += o->mix->file[i].n;
    int64_t round = taken / f->n, row = taken % f->n;
    uint64_t key = mix(mix(o->seed ^ mix((uint64_t)round + 1)) + (uint64_t)k + 1);
    if (o->shuffle)
        row = (int64_t)rt_permute((uint64_t)row, (uint64_t)f->n, key);
    return base + row;
}

static int64_t
mixed_rows(const rt_order *o, int64_t epoch, int64_t first, int64_t n, int64_t *row)
{
    const rt_data *d = o->mix;
    int64_t got = 0, early = first < d->nfile ? 0 : first - d->nfile;
    for (int64_t i = items_before(d, early); got < n && i < o->n; i++) {
        int k = next_item(d);
        if (i >= first)
            row[got++] = row_of(o, epoch, k, d->store->cursor[k] - 1);
    }
    return got;
}

/* ---- orders ---- */

rt_order
rt_order_of(const rt_data *d, bool shuffle, uint64_t seed)
{
    return (rt_order){
        .n = d->n, .shuffle = shuffle, .seed = seed, .mix = d->weighted ? d : NULL};
}

int64_t
rt_order_rows(const rt_order *o, int64_t epoch, int64_t first, int64_t n, int64_t *row)
{
    if (o->mix)
        return mixed_rows(o, epoch, first, n, row);
    uint64_t key = mix(o->seed ^ mix((uint64_t)epoch + 1));
    int64_t got = 0;
    for (int64_t i = first; got < n && i < o->n; i++)
        row[got++] =
            o->shuffle ? (int64_t)rt_permute((uint64_t)i, (uint64_t)o->n, key) : i;
    return got;
}
