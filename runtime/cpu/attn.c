/* attn.c -- what attention and its gradient share: packing, masks, products of a block. */
#include "attn_int.h"
#include "philox_int.h"

attn_sample
rt_attn_sample(const rt_attn *a, const rt_attn_at *at, int64_t b)
{
    attn_sample s = {.row = at->offsets ? at->offsets[b] : b * a->seq};
    s.n = at->offsets ? at->offsets[b + 1] - s.row : a->seq;
    s.mask = at->mask ? at->mask + s.row : NULL;
    s.position = at->position ? at->position + s.row : NULL;
    return s;
}

int64_t
rt_attn_first(const attn_sample *s, int64_t i, int64_t window)
{
    if (!s->position)
        return rt_max(0, i - window + 1);
    int64_t lo = 0, hi = i; /* positions ascend */
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (s->position[mid] + window > s->position[i])
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

void
rt_attn_rows(float *dst, const tile_src *s)
{
    int64_t width = attn_width(s->kk);
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t c = 0; c < s->kk; c += VW)
            v_store(dst + i * width + c,
                    v_load_as_to(s->x, s->at + i * s->ld + c, s->kk - c, s->type));
}

/* Of n <= KB keys at positions first, first + 1, .. */
static void
neighbours(float *factor, const philox *bits, int64_t first, int64_t n, float p,
           int64_t head)
{
    uint32_t w[KB + 2 * PHILOX_WORDS], below = philox_below(p);
    int64_t from = first / 4 * 4;
    philox_words(w, bits, from, first - from + n, head);
    for (int64_t j = 0; j < n; j += VW)
        v_store(factor + j,
                philox_keep(w + first - from + j, below, v_set(1 / (1 - p))));
}

void
rt_attn_factors(float *factor, const attn_block *x, int64_t i, const rt_attn *a,
                const rt_attn_at *at, int64_t head)
{
    const attn_sample *s = x->sample;
    const int64_t *position = s->position ? s->position + x->j0 : NULL;
    philox bits = philox_of(at->key[0], at->keys[s->row + x->i0 + i], a->site);
    int64_t keys = attn_keys(x, i);
    if (!keys)
        return;
    if (!position || position[keys - 1] - position[0] == keys - 1) {
        neighbours(factor, &bits, position ? position[0] : x->j0, keys, a->p, head);
        return;
    }
    uint32_t w[PHILOX_WORDS], below = philox_below(a->p);
    for (int64_t j = 0, from = -PHILOX_WORDS; j < keys; j++) {
        if (position[j] >= from + PHILOX_WORDS) { /* they ascend */
            from = position[j] / PHILOX_WORDS * PHILOX_WORDS;
            philox_words(w, &bits, from, PHILOX_WORDS, head);
        }
        factor[j] = w[position[j] - from] < below ? 0 : 1 / (1 - a->p);
    }
}

int64_t
rt_attn_bias(float *bias, const int64_t *mask, int64_t seq)
{
    int64_t last = mask ? 0 : seq;
    for (int64_t j = 0; j < seq; j++) {
        bool there = !mask || mask[j];
        bias[j] = there ? 0 : -INFINITY;
        if (there)
            last = j + 1;
    }
    return last;
}

bool
rt_attn_empty(const float *bias, const attn_block *x)
{
    for (int64_t j = 0; j < x->n; j++)
        if (bias[x->j0 + j] == 0)
            return false;
    return true;
}

void
rt_attn_scores(float *s, const attn_block *x, const float *qp, const float *kp,
               int64_t d, float alpha)
{
    const float *k = kp + x->j0 * d;
    for (int64_t j = 0; j < x->n; j += NR)
        for (int64_t i = 0; i < x->m; i += MR) {
            if (attn_keys(x, i + MR - 1) <= j)
                continue;
            tile_out o = {s + i * KB + j, KB,    MR,   x->n - j > VW ? NR : VW,
                          alpha,          false, NULL, RT_F32};
            tile_mul(d, qp + i * d, 1, MR, k + j * d, NR, &o);
        }
}

void
rt_attn_cap(float *s, const attn_block *x, float cap)
{
    for (int64_t i = 0; i < x->m; i++)
        for (int64_t j = 0, keys = attn_keys(x, i); j < keys; j += VW)
            v_store(s + i * KB + j, cap * v_tanh(v_load(s + i * KB + j) / cap));
}

void
rt_attn_over_keys(float *out, const attn_block *x, const float *p, const float *rows,
                  int64_t d)
{
    int64_t width = attn_width(d);
    for (int64_t c = 0; c < d; c += NR)
        for (int64_t i = 0; i < x->m; i += MR) {
            tile_out o = {out + i * width + c,
                          width,
                          MR,
                          (int)rt_min(NR, width - c),
                          1,
                          true,
                          NULL,
                          RT_F32};
            tile_mul(attn_keys(x, i + MR - 1), p + i * KB, KB, 1,
                     rows + x->j0 * width + c, width, &o);
        }
}

void
rt_attn_over_queries(float *out, const attn_block *x, const float *p, const float *rows,
                     int64_t d)
{
    int64_t width = attn_width(d);
    for (int64_t c = 0; c < d; c += NR)
        for (int64_t j = 0; j < x->n; j += MR) {
            int64_t from = x->causal ? rt_max(0, x->j0 + j - x->i0) : 0;
            tile_out o = {out + (x->j0 + j) * width + c,
                          width,
                          MR,
                          (int)rt_min(NR, width - c),
                          1,
                          true,
                          NULL,
                          RT_F32};
            tile_mul(x->m - from, p + from * KB + j, 1, KB, rows + from * width + c,
                     width, &o);
        }
}
