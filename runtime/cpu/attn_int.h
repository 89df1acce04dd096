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

/* Queries [i0, i0+m) and keys [j0, j0+n) of one head. */
typedef struct attn_block {
    int64_t i0, m, j0, n;
    bool causal;
    int64_t window; /* 0: none */
} attn_block;

/* The first key, at the begin of a block of keys, that any query from i0 on sees. */
static inline int64_t
attn_begin(const rt_attn *a, int64_t i0)
{
    return a->window ? rt_max(0, i0 - a->window + 1) / KB * KB : 0;
}

/* Keys of the block that are before row i's window: the first so many. */
static inline int64_t
attn_passed(const attn_block *x, int64_t i)
{
    int64_t first = x->window ? x->i0 + i - x->window + 1 - x->j0 : 0;
    return rt_max(0, rt_min(x->n, first));
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
/* Rows copied to [rows, attn_width(d)], zeros after d. */
void rt_attn_rows(float *dst, const float *x, int64_t ld, int64_t rows, int64_t d);
/* bias [S] = 0 where mask is nonzero, else -inf. Returns keys up to the last one there. */
int64_t rt_attn_bias(float *bias, const int64_t *mask, int64_t seq);
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
