/* attention_grad.c -- gradient of attention, weights recomputed block by block
 * (FlashAttention: Dao et al., 2022).
 *
 *     P = exp(cap(scale * q k^T) + masks - lse)      delta = row sums of dy * y
 *     dS = scale * cap' * P * (dy v^T - delta),      cap' = 1 - (capped score / c)^2
 *     dq = dS k      dk = dS^T q      dv = P^T dy
 *
 * A task owns one key head of one sample: its query heads and their blocks come in order, so
 * dk and dv are sums in fixed order, whatever the thread count.
 */
#include "attn_int.h"
#include <omp.h>

typedef struct bwd_space {     /* one thread's scratch, cut up */
    float *kp, *vp, *k, *bias; /* the head's keys and values packed, keys in rows */
    float *dk, *dv;            /* [S, width] */
    float *qp, *gp, *q, *g;    /* a block's queries and dy, packed and in rows */
    float *p, *ds, *dq, *lse, *delta;
    int64_t floats;
} bwd_space;

/* base NULL: only sizes. */
static bwd_space
space_of(const rt_attn *a, float *base)
{
    int64_t keys = rt_round_up(a->seq, KB), width = attn_width(a->d), at = 0;
    bwd_space f;
    struct {
        float **to;
        int64_t n;
    } part[] = {{&f.kp, keys * a->d}, {&f.vp, keys * a->d},  {&f.k, keys * width},
                {&f.bias, keys},      {&f.dk, keys * width}, {&f.dv, keys * width},
                {&f.qp, QB * a->d},   {&f.gp, QB * a->d},    {&f.q, QB * width},
                {&f.g, QB * width},   {&f.p, QB * KB},       {&f.ds, QB * KB},
                {&f.dq, QB * width},  {&f.lse, QB},          {&f.delta, QB}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        *part[i].to = base ? base + at : NULL;
        at += rt_round_up(part[i].n, RT_ALIGN / (int64_t)sizeof(float));
    }
    f.floats = at;
    return f;
}

int64_t
rt_attention_grad_scratch(const rt_attn *a, int threads)
{
    return threads * space_of(a, NULL).floats * (int64_t)sizeof(float);
}

typedef struct bwd_call {
    const rt_attn *a;
    const rt_attn_at *at;
    const void *q, *k, *v, *y, *dy;
    const float *lse;
    void *dq, *dk, *dv;
} bwd_call;

/* Scores and dy v^T of a row become P and dS where it sees keys [from, keys), zeros up to
 * `keys` elsewhere. `slope`: 1 / c of the soft cap, or 0. Under dropout with factors D they
 * become P D and P (dy v^T D - delta). */
static void
weigh_row(const bwd_space *f, int64_t i, const float *bias, const int64_t key[2],
          const float by[2], const float *factor)
{
    float *p = f->p + i * KB, *ds = f->ds + i * KB, scale = by[0], slope = by[1];
    for (int64_t j = 0; j < key[1]; j += VW) {
        int64_t left = key[1] - j, passed = key[0] - j;
        vf s = v_load(p + j), t = s * slope;
        vf e = v_exp(s + v_load(bias + j) - f->lse[i]);
        e = left < VW ? v_first_n(left, e, (vf){0}) : e;
        vf g = v_load(ds + j), keep = factor ? v_load(factor + j) : v_set(1);
        vf d = e * (factor ? g * keep - f->delta[i] : g - f->delta[i]) *
               (scale * (1 - t * t));
        e = factor ? e * keep : e;
        d = left < VW ? v_first_n(left, d, (vf){0}) : d;
        v_store(p + j, passed > 0 ? v_first_n(rt_min(passed, VW), (vf){0}, e) : e);
        v_store(ds + j, passed > 0 ? v_first_n(rt_min(passed, VW), (vf){0}, d) : d);
    }
}

/* Scores and dy v^T of a block become P and dS, zeros after each row's keys. */
static void
weigh(const bwd_call *t, const bwd_space *f, const attn_block *x, int64_t h)
{
    const rt_attn *a = t->a;
    float factor[KB + VW] = {0};
    const float by[2] = {a->scale, a->softcap > 0 ? 1 / a->softcap : 0};
    for (int64_t i = 0; i < x->m; i++) {
        int64_t seen = attn_keys(x, i), keys = f->lse[i] == -INFINITY ? 0 : seen;
        int64_t clear = rt_min(KB, rt_round_up(seen, VW) + MR);
        if (a->p > 0)
            rt_attn_factors(factor, x, i, a, t->at, h);
        weigh_row(f, i, f->bias + x->j0, (int64_t[]){attn_passed(x, i), keys}, by,
                  a->p > 0 ? factor : NULL);
        for (int64_t j = rt_round_up(keys, VW); j < clear; j++)
            f->p[i * KB + j] = f->ds[i * KB + j] = 0;
    }
}

/* The block's queries, dy, lse and delta into scratch. */
static void
load_block(const bwd_call *t, const bwd_space *f, const attn_block *x, int64_t h)
{
    const rt_attn *a = t->a;
    int64_t row = x->sample->row + x->i0, ldy = a->heads * a->d;
    int64_t at = row * ldy + h * a->d;
    tile_src q = {t->q, a->type, row * a->ldq + a->qo + h * a->qs, a->ldq, x->m, a->d};
    tile_src g = {t->dy, a->type, at, ldy, x->m, a->d};
    rt_pack_along(f->qp, MR, &q);
    rt_pack_along(f->gp, MR, &g);
    rt_attn_rows(f->q, &q);
    rt_attn_rows(f->g, &g);
    for (int64_t i = 0; i < x->m; i++) {
        vf dot = {0};
        for (int64_t c = 0; c < a->d; c += VW)
            dot = v_fma(v_load_as_to(t->dy, at + i * ldy + c, a->d - c, a->type),
                        v_load_as_to(t->y, at + i * ldy + c, a->d - c, a->type), dot);
        f->delta[i] = v_sum(dot);
        f->lse[i] = t->lse[attn_lse(a, t->at, x->sample, h, x->i0 + i)];
    }
    memset(f->dq, 0,
           (size_t)(rt_round_up(x->m, MR) * attn_width(a->d)) * sizeof *f->dq);
}

typedef struct columns { /* of a head: d elements of each of `rows` rows, ld apart */
    void *x;
    int64_t at, ld, rows;
} columns;

/* From [rows, width] to where the head's columns lie; from NULL: zeros. */
static void
put(const columns *to, const float *from, const rt_attn *a)
{
    int64_t width = attn_width(a->d);
    for (int64_t i = 0; i < to->rows; i++)
        for (int64_t c = 0; c < a->d; c += VW)
            v_store_as_to(to->x, to->at + i * to->ld + c,
                          from ? v_load(from + i * width + c) : (vf){0}, a->d - c,
                          a->type);
}

/* One block of queries of head h: its dq, and its part of dk and dv. */
static void
query_block(const bwd_call *t, const bwd_space *f, const attn_sample *s, int64_t h,
            int64_t i0, int64_t limit)
{
    const rt_attn *a = t->a;
    attn_block x = {i0, rt_min(QB, s->n - i0), 0, 0, a->causal, a->window, s};
    int64_t end = a->causal ? rt_min(limit, i0 + x.m) : limit;
    load_block(t, f, &x, h);
    for (x.j0 = attn_begin(&x); x.j0 < end; x.j0 += KB) {
        x.n = rt_min(KB, end - x.j0);
        if (rt_attn_empty(f->bias, &x))
            continue;
        rt_attn_scores(f->p, &x, f->qp, f->kp, a->d, a->scale);
        if (a->softcap > 0)
            rt_attn_cap(f->p, &x, a->softcap);
        rt_attn_scores(f->ds, &x, f->gp, f->vp, a->d, 1);
        weigh(t, f, &x, h);
        rt_attn_over_keys(f->dq, &x, f->ds, f->k, a->d);
        rt_attn_over_queries(f->dv, &x, f->p, f->g, a->d);
        rt_attn_over_queries(f->dk, &x, f->ds, f->q, a->d);
    }
    columns dq = {t->dq, (s->row + i0) * a->ldq + a->qo + h * a->qs, a->ldq, x.m};
    put(&dq, f->dq, a);
}

static void
key_head_task(const bwd_call *t, const bwd_space *f, int64_t b, int64_t kh)
{
    const rt_attn *a = t->a;
    int64_t group = a->heads / a->kv_heads, width = attn_width(a->d);
    attn_sample s = rt_attn_sample(a, t->at, b);
    int64_t at_k = s.row * a->ldk + a->ko + kh * a->ks;
    int64_t at_v = s.row * a->ldv + a->vo + kh * a->vs;
    int64_t limit = rt_attn_bias(f->bias, s.mask, s.n);
    size_t bytes = (size_t)(rt_round_up(s.n, MR) * width) * sizeof *f->dk;
    tile_src k = {t->k, a->type, at_k, a->ldk, s.n, a->d};
    tile_src v = {t->v, a->type, at_v, a->ldv, s.n, a->d};
    rt_pack_along(f->kp, NR, &k);
    rt_pack_along(f->vp, NR, &v);
    rt_attn_rows(f->k, &k);
    memset(f->dk, 0, bytes);
    memset(f->dv, 0, bytes);
    for (int64_t h = kh * group; h < (kh + 1) * group; h++)
        for (int64_t i = 0; i < s.n; i += QB)
            query_block(t, f, &s, h, i, limit);
    put(&(columns){t->dk, at_k, a->ldk, s.n}, f->dk, a);
    put(&(columns){t->dv, at_v, a->ldv, s.n}, f->dv, a);
}

/* Rows behind the last sample. */
static void
clear_tail(const bwd_call *t)
{
    const rt_attn *a = t->a;
    int64_t from = t->at->offsets[a->batch], n = t->at->rows - from;
    for (int64_t h = 0; h < a->heads; h++)
        put(&(columns){t->dq, from * a->ldq + a->qo + h * a->qs, a->ldq, n}, NULL, a);
    for (int64_t h = 0; h < a->kv_heads; h++) {
        put(&(columns){t->dk, from * a->ldk + a->ko + h * a->ks, a->ldk, n}, NULL, a);
        put(&(columns){t->dv, from * a->ldv + a->vo + h * a->vs, a->ldv, n}, NULL, a);
    }
}

void
rt_attention_grad(rt_stream *s, void *dq, void *dk, void *dv, const void *dy,
                  const void *q, const void *k, const void *v, const void *y,
                  const float *lse, const rt_attn_at *at, const rt_attn *a,
                  void *scratch)
{
    bwd_call call = {a, at, q, k, v, y, dy, lse, dq, dk, dv};
    int64_t floats = space_of(a, NULL).floats;
    int team = rt_team(s, a->batch * a->heads * a->seq * a->seq);
#pragma omp parallel num_threads(team)
    {
        bwd_space f = space_of(a, (float *)scratch + omp_get_thread_num() * floats);
#pragma omp for schedule(dynamic)
        for (int64_t t = 0; t < a->batch * a->kv_heads; t++)
            key_head_task(&call, &f, t / a->kv_heads, t % a->kv_heads);
    }
    if (at->offsets)
        clear_tail(&call);
}
