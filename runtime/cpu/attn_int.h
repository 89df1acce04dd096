/* attn_int.h -- blocks of an attention, for attention.c and attention_grad.c.
 *
 * One task has one head's keys. Scores exist for one block of QB queries x KB keys at a
 * time, row-major in scratch. Products run on tiles (tile_int.h): tiles above the diagonal
 * are skipped, and the sums of a tile stop where its last query's keys stop, so a causal
 * attention costs about half. A row's entries past its keys are zero up to where such sums
 * may read.
 */
#ifndef EFFICC_ATTN_INT_H
#define EFFICC_ATTN_INT_H

#include "rt_cpu_int.h"
#include "tile_int.h"

enum { QB = 8 * MR, KB = 16 * MR };
_Static_assert(KB % NR == 0,
               "a block of keys is whole column groups and whole row tiles");

/* The rows of one sample, and what is known of them. */
typedef struct attn_sample {
    int64_t row, n;          /* its first row in q, k, v and y; how many */
    const int64_t *mask;     /* of its rows; NULL: all are keys */
    const int64_t *position; /* of its rows; NULL: 0, 1, .. */
} attn_sample;

attn_sample rt_attn_sample(const rt_attn *, const rt_attn_at *, int64_t b);

/* Where lse of row i of a sample and head stands. */
static inline int64_t
attn_lse(const rt_attn *a, const rt_attn_at *at, const attn_sample *s, int64_t h,
         int64_t i)
{
    return at->offsets ? (s->row + i) * a->heads + h
                       : (s->row / a->seq * a->heads + h) * a->seq + i;
}

/* The first key that row i of a sample sees through the window. */
int64_t rt_attn_first(const attn_sample *, int64_t i, int64_t window);

/* Queries [i0, i0+m) and keys [j0, j0+n) of one head. */
typedef struct attn_block {
    int64_t i0, m, j0, n;
    bool causal;
    int64_t window; /* 0: none */
    const attn_sample *sample;
} attn_block;

/* The first key, at the begin of a block of keys, that any query from i0 on sees. */
static inline int64_t
attn_begin(const attn_block *x)
{
    return x->window ? rt_attn_first(x->sample, x->i0, x->window) / KB * KB : 0;
}

/* Keys of the block that are before row i's window: the first so many. */
static inline int64_t
attn_passed(const attn_block *x, int64_t i)
{
    int64_t first = x->window ? rt_attn_first(x->sample, x->i0 + i, x->window) : 0;
    return rt_max(0, rt_min(x->n, first - x->j0));
}

/* Keys of the block that row i may see: the first so many. */
static inline int64_t
attn_keys(const attn_block *x, int64_t i)
{
    return x->causal ? rt_max(0, rt_min(x->n, x->i0 + i + 1 - x->j0)) : x->n;
}

/* Columns of a head, padded to whole vectors. */
static inline int64_t
attn_width(int64_t d)
{
    return rt_round_up(d, VW);
}

/* ---- operands; rt_pack_along packs queries and keys ---- */
/* Rows of X [rows, kk] copied to [rows, attn_width(kk)], zeros after kk. */
void rt_attn_rows(float *dst, const tile_src *);
/* bias [S] = 0 where mask is nonzero, else -inf. Returns keys up to the last one there. */
int64_t rt_attn_bias(float *bias, const int64_t *mask, int64_t seq);
/* factor [KB]: of the weights of row i for the keys that it sees in the block, 0 where dropped,
 * else 1 / (1 - p); what follows them in a vector is undefined. */
void rt_attn_factors(float *factor, const attn_block *, int64_t i, const rt_attn *,
                     const rt_attn_at *, int64_t head);
/* Whether no key of the block may be attended to. */
bool rt_attn_empty(const float *bias, const attn_block *);

/* ---- products of one block ---- */
/* s [QB, KB] = alpha * A B: qp packed queries (MR), kp packed keys (NR), d long. */
void rt_attn_scores(float *s, const attn_block *, const float *qp, const float *kp,
                    int64_t d, float alpha);
/* s = cap * tanh(s / cap), for the keys that each row sees. */
void rt_attn_cap(float *s, const attn_block *, float cap);
/* out [m, width] += P rows: sums over keys. */
void rt_attn_over_keys(float *out, const attn_block *, const float *p,
                       const float *rows, int64_t d);
/* out [n, width] += P^T rows: sums over queries. */
void rt_attn_over_queries(float *out, const attn_block *, const float *p,
                          const float *rows, int64_t d);

#endif
