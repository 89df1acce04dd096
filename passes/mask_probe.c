/* mask_probe.c -- finds out what a mask does by trying it.
 *
 * Exporters build masks in dozens of ways, from comparisons of ranges to gathers and
 * casts, but what comes out is nearly always one rule: position i sees position j if j <= i,
 * if the token at j is real, if j > i - window, some of these, or always. So the mask's ops
 * are evaluated on a few attention masks (all ones, all zeros, random ones) and every element
 * is compared with each rule. A rule that survives everywhere is what the mask means; if none
 * does, the attention stays as plain ops, which compute whatever the mask says. Where all
 * tokens are real, the last position tells whether there is a window, and how wide it is.
 */
#include <math.h>
#include <string.h>

#include "canon_int.h"
#include "mask_int.h"
#include "pass_int.h"
#include "recognise_int.h"

enum {
    KINDS = 2,        /* of rows */
    NO_WINDOW = 0x0f, /* rules, as verdict.alive has them */
    WITH_WINDOW = 0xf0
};

static void
collect(mask_graph *g, const ir_value *v)
{
    g->other |= ++g->visits > 4 * MASK_OPS_MAX;
    if (g->other)
        return;
    if (v->param) {
        g->other |= v->param->cls != IR_CONST;
        return;
    }
    if (!v->def) {
        g->other |= g->key && g->key != v;
        g->key = v;
        return;
    }
    for (int i = 0; i < g->nop; i++)
        if (g->op[i] == v->def)
            return;
    for (int i = 0; i < v->def->narg && !g->other; i++)
        collect(g, v->def->arg[i]);
    g->other |= g->nop == MASK_OPS_MAX || !(ir_ops[v->def->code].flags & IR_PURE);
    if (!g->other)
        g->op[g->nop++] = v->def;
}

bool
mask_like(const ir_value *v)
{
    mask_graph g = {0};
    collect(&g, v);
    return !g.other;
}

/* ---- comparison ---- */

typedef struct verdict {
    bool boolean, inverted;
    int64_t heads, seq; /* of the scores [B,heads,S,S] */
    int64_t window;     /* -1: not yet known */
    unsigned alive;     /* rules not yet refuted; bits of a rule's number: 0 key mask, 1
                           causal, 2 window */
    double masked_max;  /* additive */
    const double *key;  /* [B,S] or NULL */
} verdict;

static bool
is_seen(const verdict *d, double x)
{
    return d->boolean ? (x != 0) != d->inverted : x == 0;
}

/* One row of scores: position i, elements of the mask `stride` apart, and the attention mask
 * of the row or NULL. */
static void
judge_row(verdict *d, const double *x, int64_t stride, const double *key, int64_t i)
{
    for (int64_t j = 0; j < d->seq; j++, x += stride) {
        bool seen = is_seen(d, *x);
        bool real = !key || key[j] != 0, past = j <= i, near = j > i - d->window;
        unsigned says_seen = 1u | (unsigned)real << 1 | (unsigned)past << 2 |
                             (unsigned)(real && past) << 3;
        says_seen |= near ? says_seen << 4 : 0;
        d->alive &= seen ? says_seen : ~says_seen;
        if (!d->boolean && !seen && !(*x <= d->masked_max))
            d->masked_max = isnan(*x) ? INFINITY : *x;
    }
}

/* Has a mask a dimension for rows of the batch? Three dimensions are [heads,S,S], but of
 * scores [B,1,S,S] that had three themselves [B,S,S]. */
static bool
has_batch(const ir_type *t, int64_t heads)
{
    return t->rank == 4 || (t->rank == 3 && heads == 1);
}

/* Which rules may describe the mask t of real tokens: if the last position sees less than all,
 * those with a window of so many. */
static void
measure(verdict *d, const ir_tensor *t)
{
    const ir_type *tt = t->type;
    int64_t seq = d->seq;
    d->window = 0;
    d->alive = NO_WINDOW;
    if (tt->rank < 2 || tt->dim[tt->rank - 1] != seq || tt->dim[tt->rank - 2] != seq)
        return;
    const double *x = t->data + ir_type_count(tt) - seq;
    for (int64_t j = 0; j < seq; j++)
        d->window += is_seen(d, x[j]);
    if (d->window > 0 && d->window < seq)
        d->alive = WITH_WINDOW;
}

/* Compares a mask, broadcast to scores [n,heads,S,S] from `row` on, with every rule. Where it
 * is the same for all rows (and the key is), heads or positions i, it is compared once; for
 * positions the first and the last tell all rules apart. */
static bool
judge(void *verdict_, const ir_tensor *t, int64_t row, int64_t n)
{
    verdict *d = verdict_;
    if (d->window < 0)
        measure(d, t);
    const double *key = d->key ? d->key + row * d->seq : NULL;
    const ir_type *tt = t->type;
    int64_t dim[4] = {n, d->heads, d->seq, d->seq}, stride[4], size = 1;
    int skipped = 4 - tt->rank;
    for (int k = 3; k >= 0; k--) {
        bool moved = skipped == 1 && has_batch(tt, d->heads) && k < 2;
        int from = moved ? (k ? -1 : 0) : k - skipped;
        bool wide = from >= 0 && tt->dim[from] != 1;
        stride[k] = wide ? size : 0;
        size *= wide ? tt->dim[from] : 1;
    }
    dim[0] = stride[0] || key ? dim[0] : 1;
    dim[1] = stride[1] ? dim[1] : 1;
    int64_t skip = stride[2] || d->seq < 3 ? 1 : d->seq - 1;
    for (int64_t b = 0; b < dim[0]; b++)
        for (int64_t h = 0; h < dim[1]; h++)
            for (int64_t i = 0; i < d->seq && d->alive; i += skip)
                judge_row(d, t->data + b * stride[0] + h * stride[1] + i * stride[2],
                          stride[3], key ? key + b * d->seq : NULL, i);
    return d->alive;
}

/* ---- probes ---- */

/* How many digits row numbers have. */
static int
digits_of(int64_t rows)
{
    int digits = 1;
    for (int64_t n = KINDS; n < rows; n *= KINDS)
        digits++;
    return digits;
}

/* Ones, zeros, then random rows, the same in every run. They are of few kinds, since equal
 * rows are evaluated once: the digits of a row's number are its kinds in successive probes,
 * so that any two rows differ in one of them. */
static void
fill(ir_tensor *key, int which, uint32_t *seed)
{
    int64_t rows = key->type->dim[0], seq = key->type->dim[1], place = 1;
    for (int i = 0; which >= 2 && i < (which - 2) % digits_of(rows); i++)
        place *= KINDS;
    for (int64_t j = 0; j < seq; j++) {
        double x[KINDS];
        for (int kind = 0; kind < KINDS; kind++) {
            *seed = *seed * 1664525u + 1013904223u;
            x[kind] = which == 0 ? 1 : which == 1 ? 0 : *seed >> 31;
        }
        for (int64_t b = 0; b < rows; b++)
            key->data[b * seq + j] = x[b / place % KINDS];
    }
}

/* Is the argument the attention mask of scores [B,heads,S,S]? */
static bool
is_key_mask(const ir_module *m, const ir_value *v, const ir_type *scores)
{
    const ir_type *t = v->type;
    return t->dtype == IR_I64 && t->rank == 2 && t->dim[0] == scores->dim[0] &&
           t->dim[1] == scores->dim[3] && pass_input_is(m, v, "mask");
}

/* How many probes it takes: each digit of a row's number is its kind in one. */
static int
probes(const mask_run *u)
{
    return u->key.data ? 2 + (digits_of(u->rows) < 2 ? 2 : digits_of(u->rows)) : 1;
}

/* Lets the rules meet all probes. false: said why. */
static bool
try_rules(mask_run *u, verdict *d)
{
    uint32_t seed = 1;
    bool ok = true;
    for (int i = 0; i < probes(u) && ok && d->alive && !u->many; i++) {
        if (u->key.data)
            fill(&u->key, i, &seed);
        ok = mask_eval(u, judge, d);
    }
    return ok;
}

static mask_rule
classify(recogniser *r, ir_value *v, bool inverted, const ir_type *scores)
{
    mask_graph g = {.result = v};
    verdict d = {.boolean = v->type->dtype == IR_BOOL,
                 .inverted = inverted,
                 .heads = scores->dim[1],
                 .seq = scores->dim[3],
                 .window = -1,
                 .alive = NO_WINDOW | WITH_WINDOW,
                 .masked_max = -INFINITY};
    collect(&g, v);
    if (g.other || v->type->rank > 4 || !ir_type_count(scores) ||
        (g.key && !is_key_mask(r->m, g.key, scores)))
        return (mask_rule){0};
    mask_run u;
    mask_open(&u, r->m, &g, scores->dim[0], has_batch(v->type, d.heads));
    d.key = u.key.data;
    bool ok = try_rules(&u, &d);
    mask_close(&u);
    if (!ok || !d.alive || u.many)
        return (mask_rule){0};
    int rule = 0; /* the weakest that survived; they differ only where S is 1 */
    while (!(d.alive >> rule & 1))
        rule++;
    return (mask_rule){.known = true,
                       .causal = rule & 2,
                       .window = rule & 4 ? d.window : 0,
                       .key = rule & 1 ? (ir_value *)g.key : NULL,
                       .masked_max = d.masked_max};
}

/* Are a and b computed alike? Exporters write the mask once more for every layer. *budget:
 * how many more values may be looked at. */
static bool
equal_values(const ir_value *a, const ir_value *b, int *budget)
{
    double x, y;
    if (a == b)
        return true;
    if (--*budget < 0 || a->type != b->type || !a->def || !b->def)
        return false;
    if (canon_uniform(a, &x) && canon_uniform(b, &y))
        return !memcmp(&x, &y, sizeof x);
    const ir_op *p = a->def, *q = b->def;
    if (p->code != q->code || p->narg != q->narg || p->nattr != q->nattr)
        return false;
    for (int i = 0; i < p->nattr; i++)
        if (!pass_same_attr(&p->attr[i], &q->attr[i]))
            return false;
    for (int i = 0; i < p->narg; i++)
        if (!equal_values(p->arg[i], q->arg[i], budget))
            return false;
    return true;
}

/* Evaluating is slow for long sequences: each mask is classified once. */
mask_rule
mask_probe(recogniser *r, ir_value *v, bool inverted, const ir_type *scores)
{
    ef_map *known = &r->probed[inverted];
    mask_rule *rule = ef_map_get(known, v);
    for (int i = 0; i < known->n && !rule; i++) {
        int budget = 4 * MASK_OPS_MAX;
        if (equal_values(known->key[i], v, &budget))
            rule = known->val[i];
    }
    if (!rule) {
        rule = EF_NEW(r->pc->scratch, mask_rule);
        *rule = classify(r, v, inverted, scores);
    }
    ef_map_set(r->pc->scratch, known, v, rule);
    return *rule;
}
