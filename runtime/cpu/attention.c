/* attention.c -- attention without the matrix of scores.
 *
 *     y = softmax(cap(scale * q k^T) + masks) v,   lse = log sum exp of the scores
 *
 * For a block of queries, blocks of keys are walked with a running maximum and sum (Milakov
 * and Gimelshein, 2018); earlier results are rescaled when the maximum rises. A query's
 * result depends on its own keys only, in fixed order, so tasks may be cut anywhere. A query
 * without any key gets y = 0 and lse = -inf.
 */
#include "attn_int.h"
#include <omp.h>

typedef struct fwd_space { /* one thread's scratch, cut up */
    float *kp, *v, *bias;  /* the head's keys packed, values in rows, key mask */
    float *qp, *s, *o;     /* a block's queries packed, scores, results */
    float *max, *sum;      /* [QB] */
    int64_t floats;
} fwd_space;

/* base NULL: only sizes. */
static fwd_space
space_of(const rt_attn *a, float *base)
{
    int64_t keys = rt_round_up(a->seq, NR), width = attn_width(a->d), at = 0;
    fwd_space f;
    struct {
        float **to;
        int64_t n;
    } part[] = {{&f.kp, keys * a->d}, {&f.v, keys * width}, {&f.bias, keys},
                {&f.qp, QB * a->d},   {&f.s, QB * KB},      {&f.o, QB * width},
                {&f.max, QB},         {&f.sum, QB}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        *part[i].to = base ? base + at : NULL;
        at += rt_round_up(part[i].n, RT_ALIGN / (int64_t)sizeof(float));
    }
    f.floats = at;
    return f;
}

int64_t
rt_attention_scratch(const rt_attn *a, int threads)
{
    return threads * space_of(a, NULL).floats * (int64_t)sizeof(float);
}

typedef struct fwd_call {
    const rt_attn *a;
    const rt_attn_at *at;
    const void *q, *k, *v;
    void *y;
    float *lse;
} fwd_call;

static float
row_top(const float *s, const float *bias, int64_t keys)
{
    vf top = v_set(-INFINITY);
    for (int64_t j = 0; j < keys; j += VW) {
        int64_t left = keys - j;
        vf x = v_load(s + j) + v_load(bias + j);
        top = v_max(top, left < VW ? v_first_n(left, x, v_set(-INFINITY)) : x);
    }
    return v_hmax(top);
}

/* Scores of a row become exp(score - max), zeros after them. Returns their sum. */
static float
row_exp(float *s, const float *bias, int64_t keys, float max)
{
    vf sum = {0};
    for (int64_t j = 0; j < keys; j += VW) {
        int64_t left = keys - j;
        vf e = v_exp(v_load(s + j) + v_load(bias + j) - max);
        e = left < VW ? v_first_n(left, e, (vf){0}) : e;
        sum += e;
        v_store(s + j, e);
    }
    return v_sum(sum);
}

/* A maximum does not see NaN; asked for where it saw nothing. */
static bool
any_nan(const float *s, int64_t keys)
{
    for (int64_t j = 0; j < keys; j++)
        if (isnan(s[j]))
            return true;
    return false;
}

/* The sum of weights, by which they are divided in the end, is that of all of them. */
static void
drop(const fwd_call *t, float *s, const attn_block *x, int64_t i, int64_t h)
{
    float factor[KB];
    rt_attn_factors(factor, x, i, t->a, t->at, h);
    for (int64_t j = 0, keys = attn_keys(x, i); j < keys; j++)
        s[j] *= factor[j];
}

/* Scores of a block become weights; running maximum, sum and results are brought to the new
 * maximum. */
static void
weigh(const fwd_call *t, const fwd_space *f, const attn_block *x, int64_t h)
{
    int64_t width = attn_width(t->a->d);
    for (int64_t i = 0; i < x->m; i++) {
        float *s = f->s + i * KB, *o = f->o + i * width;
        int64_t keys = attn_keys(x, i), clear = rt_min(KB, rt_round_up(keys, VW) + MR);
        for (int64_t j = 0, passed = rt_min(keys, attn_passed(x, i)); j < passed; j++)
            s[j] = -INFINITY;
        float top = fmaxf(f->max[i], row_top(s, f->bias + x->j0, keys));
        if (top == -INFINITY && !any_nan(s, keys))
            keys = 0;
        for (int64_t j = rt_round_up(keys, VW); j < clear; j++)
            s[j] = 0;
        if (!keys)
            continue;
        float old = f->max[i] == -INFINITY ? 0 : expf(f->max[i] - top);
        f->sum[i] = f->sum[i] * old + row_exp(s, f->bias + x->j0, keys, top);
        f->max[i] = top;
        if (t->a->p > 0)
            drop(t, s, x, i, h);
        for (int64_t c = 0; old != 1 && c < width; c++)
            o[c] *= old;
    }
}

/* Results of rows [i0, i0+m) of head h. */
static void
finish(const fwd_call *t, const fwd_space *f, const attn_block *x, int64_t h)
{
    const rt_attn *a = t->a;
    int64_t width = attn_width(a->d);
    for (int64_t i = 0; i < x->m; i++) {
        float sum = f->sum[i], by = sum == 0 ? 0 : 1 / sum; /* NaN stays */
        int64_t row = x->i0 + i, y = ((x->sample->row + row) * a->heads + h) * a->d;
        for (int64_t c = 0; c < a->d; c += VW)
            v_store_as_to(t->y, y + c, v_load(f->o + i * width + c) * by, a->d - c,
                          a->type);
        t->lse[attn_lse(a, t->at, x->sample, h, row)] =
            sum == 0 ? -INFINITY : f->max[i] + logf(sum);
    }
}

/* One block of queries against all its keys, of which the last is before `limit`. */
static void
query_block(const fwd_call *t, const fwd_space *f, const attn_sample *s, int64_t h,
            int64_t i0, int64_t limit)
{
    const rt_attn *a = t->a;
    int64_t width = attn_width(a->d), q = (s->row + i0) * a->ldq + a->qo + h * a->qs;
    attn_block x = {i0, rt_min(QB, s->n - i0), 0, 0, a->causal, a->window, s};
    int64_t end = a->causal ? rt_min(limit, i0 + x.m) : limit;
    rt_pack_along(f->qp, MR, &(tile_src){t->q, a->type, q, a->ldq, x.m, a->d});
    memset(f->o, 0, (size_t)(rt_round_up(x.m, MR) * width) * sizeof *f->o);
    for (int64_t i = 0; i < x.m; i++)
        f->max[i] = -INFINITY, f->sum[i] = 0;
    for (x.j0 = attn_begin(&x); x.j0 < end; x.j0 += KB) {
        x.n = rt_min(KB, end - x.j0);
        if (rt_attn_empty(f->bias, &x))
            continue;
        rt_attn_scores(f->s, &x, f->qp, f->kp, a->d, a->scale);
        if (a->softcap > 0)
            rt_attn_cap(f->s, &x, a->softcap);
        weigh(t, f, &x, h);
        rt_attn_over_keys(f->o, &x, f->s, f->v, a->d);
    }
    finish(t, f, &x, h);
}

/* Query blocks `part`, part + parts, .. of one head. */
static void
head_task(const fwd_call *t, const fwd_space *f, int64_t bh, int64_t part,
          int64_t parts)
{
    const rt_attn *a = t->a;
    int64_t b = bh / a->heads, kh = bh % a->heads / (a->heads / a->kv_heads);
    attn_sample s = rt_attn_sample(a, t->at, b);
    int64_t k = s.row * a->ldk + a->ko + kh * a->ks;
    int64_t v = s.row * a->ldv + a->vo + kh * a->vs;
    if (part * QB >= s.n)
        return;
    int64_t limit = rt_attn_bias(f->bias, s.mask, s.n);
    rt_pack_along(f->kp, NR, &(tile_src){t->k, a->type, k, a->ldk, s.n, a->d});
    rt_attn_rows(f->v, &(tile_src){t->v, a->type, v, a->ldv, s.n, a->d});
    for (int64_t i = part * QB; i < s.n; i += parts * QB)
        query_block(t, f, &s, bh % a->heads, i, limit);
}

/* Rows behind the last sample. */
static void
clear_tail(const fwd_call *t)
{
    const rt_attn *a = t->a;
    int64_t from = t->at->offsets[a->batch], n = t->at->rows - from;
    int64_t width = a->heads * a->d;
    memset(v_at(t->y, from * width, a->type), 0,
           (size_t)(n * width * v_bytes(a->type)));
    for (int64_t i = from * a->heads; i < t->at->rows * a->heads; i++)
        t->lse[i] = -INFINITY;
}

void
rt_attention(rt_stream *s, void *y, float *lse, const void *q, const void *k,
             const void *v, const rt_attn_at *at, const rt_attn *a, void *scratch)
{
    fwd_call call = {a, at, q, k, v, y, lse};
    int64_t bh = a->batch * a->heads, blocks = (a->seq + QB - 1) / QB;
    int64_t parts = rt_min(blocks, (4 * s->threads + bh - 1) / bh);
    int64_t floats = space_of(a, NULL).floats;
    int team = rt_team(s, bh * a->seq * a->seq);
#pragma omp parallel num_threads(team)
    {
        fwd_space f = space_of(a, (float *)scratch + omp_get_thread_num() * floats);
#pragma omp for schedule(dynamic)
        for (int64_t t = 0; t < bh * parts; t++)
            head_task(&call, &f, t / parts, t % parts, parts);
    }
    if (at->offsets)
        clear_tail(&call);
}
