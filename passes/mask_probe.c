/* mask_probe.c -- finds out what a mask does by trying it.
 *
 * Exporters build masks in dozens of ways, from comparisons of ranges to gathers and
 * casts, but what comes out is nearly always one rule: position i sees position j if j <= i,
 * if the token at j is real, both, or always. So the mask's ops are evaluated on a few
 * attention masks (all ones, all zeros, random ones) and every element is compared with
 * each of the four rules. A rule that survives everywhere is what the mask means; if none
 * does, the attention stays as plain ops, which compute whatever the mask says.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "canon_int.h"
#include "pass_int.h"
#include "recognise_int.h"

enum { OPS_MAX = 64, PROBES = 4, RULES = 4 }; /* rule: bit 0 key mask, bit 1 causal */

typedef struct graph { /* the ops that a mask is computed by */
    int nop;
    const ir_op *op[OPS_MAX]; /* operands first */
    const ir_value *key;      /* the argument it depends on; NULL: none */
    const ir_value *result;
    int visits;
    bool other; /* depends on something that no mask depends on */
} graph;

static void
collect(graph *g, const ir_value *v)
{
    g->other |= ++g->visits > 4 * OPS_MAX;
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
    g->other |= g->nop == OPS_MAX || !(ir_ops[v->def->code].flags & IR_PURE);
    if (!g->other)
        g->op[g->nop++] = v->def;
}

bool
mask_like(const ir_value *v)
{
    graph g = {0};
    collect(&g, v);
    return !g.other;
}

/* ---- evaluation ---- */

typedef struct cell { /* a value of the graph, freed after its last use */
    const ir_value *v;
    ef_arena *arena;
    ir_tensor t;
    int uses; /* left */
} cell;

typedef struct run {
    recogniser *r;
    const graph *g;
    const ir_tensor *key; /* contents of the argument */
    cell cell[OPS_MAX];
} run;

static cell *
cell_of(run *u, const ir_value *v)
{
    for (int i = 0; i < u->g->nop; i++)
        if (u->g->op[i]->res[0] == v)
            return &u->cell[i];
    return NULL;
}

/* Contents of an operand that is no op's result; in the arena. NULL: said why. */
static const ir_tensor *
leaf(run *u, const ir_value *v, ef_arena *a)
{
    if (!v->param)
        return u->key;
    ir_tensor *t = EF_NEW(a, ir_tensor);
    int64_t n = ir_type_count(v->type);
    t->type = v->type;
    t->data = EF_NEWN(a, double, n + 1);
    return ir_read_f64(u->r->m, v->param, 0, 0, n, t->data) ? t : NULL;
}

static bool
step(run *u, int i)
{
    const ir_op *op = u->g->op[i];
    cell *c = &u->cell[i];
    ef_arena *leaves = ef_arena_new();
    const ir_tensor **arg = EF_NEWN(leaves, const ir_tensor *, op->narg + 1);
    bool ok = op->nres == 1;
    for (int k = 0; k < op->narg && ok; k++) {
        cell *from = cell_of(u, op->arg[k]);
        arg[k] = from ? &from->t : leaf(u, op->arg[k], leaves);
        ok = arg[k] != NULL;
    }
    c->arena = ef_arena_new();
    ok = ok && ir_eval_op(u->r->m->ctx, op, arg, &c->t, c->arena);
    for (int k = 0; k < op->narg && ok; k++) {
        cell *from = cell_of(u, op->arg[k]);
        if (from && --from->uses == 0) {
            ef_arena_free(from->arena);
            from->arena = NULL;
        }
    }
    ef_arena_free(leaves);
    return ok;
}

static void
count_uses(run *u, const ir_value *result)
{
    for (int i = 0; i < u->g->nop; i++)
        for (int k = 0; k < u->g->op[i]->narg; k++) {
            cell *c = cell_of(u, u->g->op[i]->arg[k]);
            if (c)
                c->uses++;
        }
    cell *last = cell_of(u, result);
    if (last)
        last->uses++; /* by the caller */
}

/* ---- comparison ---- */

typedef struct verdict {
    bool boolean, inverted;
    int64_t seq;       /* tokens */
    unsigned alive;    /* set of rules not yet refuted */
    double masked_max; /* additive */
} verdict;

/* One row of scores: position i, elements of the mask `stride` apart, and the attention mask
 * of the row or NULL. */
static void
judge_row(verdict *d, const double *x, int64_t stride, const double *key, int64_t i)
{
    for (int64_t j = 0; j < d->seq; j++, x += stride) {
        bool seen = d->boolean ? (*x != 0) != d->inverted : *x == 0;
        bool real = !key || key[j] != 0, past = j <= i;
        unsigned says_seen = 1u | (unsigned)real << 1 | (unsigned)past << 2 |
                             (unsigned)(real && past) << 3;
        d->alive &= seen ? says_seen : ~says_seen;
        if (!d->boolean && !seen && !(*x <= d->masked_max))
            d->masked_max = isnan(*x) ? INFINITY : *x;
    }
}

/* Compares a mask, broadcast to scores [B,heads,S,S], with every rule. */
static void
judge(verdict *d, const ir_tensor *t, const ir_tensor *key, const ir_type *scores)
{
    const ir_type *tt = t->type;
    int64_t dim[4], stride[4], n = 1;
    d->seq = scores->dim[3];
    for (int k = 3; k >= 0; k--) {
        int from = k - (4 - tt->rank);
        bool wide = from >= 0 && tt->dim[from] != 1;
        dim[k] = k == 1 && !wide ? 1 : scores->dim[k];
        stride[k] = wide ? n : 0;
        n *= wide ? tt->dim[from] : 1;
    }
    int64_t rows = dim[0] * dim[1] * dim[2];
    for (int64_t row = 0; row < rows && d->alive; row++) {
        int64_t i = row % dim[2], h = row / dim[2] % dim[1], b = row / dim[2] / dim[1];
        const double *x = t->data + b * stride[0] + h * stride[1] + i * stride[2];
        judge_row(d, x, stride[3], key ? key->data + b * d->seq : NULL, i);
    }
}

/* One probe: the attention mask `key`, or NULL where the mask depends on none. */
static bool
probe(recogniser *r, const graph *g, const ir_tensor *key, const ir_type *scores,
      verdict *d)
{
    run u = {.r = r, .g = g, .key = key};
    bool ok = true;
    ef_arena *a = ef_arena_new();
    count_uses(&u, g->result);
    for (int i = 0; i < g->nop && ok; i++)
        ok = step(&u, i);
    if (ok) {
        cell *c = cell_of(&u, g->result);
        const ir_tensor *t = c ? &c->t : leaf(&u, g->result, a);
        ok = t != NULL;
        if (ok)
            judge(d, t, key, scores);
    }
    for (int i = 0; i < g->nop; i++)
        ef_arena_free(u.cell[i].arena);
    ef_arena_free(a);
    return ok;
}

/* Ones, zeros, then random ones and zeros: the same in every run. */
static void
fill(ir_tensor *key, int which, uint32_t *seed)
{
    int64_t n = ir_type_count(key->type);
    for (int64_t i = 0; i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        key->data[i] = which == 0 ? 1 : which == 1 ? 0 : *seed >> 31;
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

static mask_rule
classify(recogniser *r, ir_value *v, bool inverted, const ir_type *scores)
{
    graph g = {.result = v};
    verdict d = {.boolean = v->type->dtype == IR_BOOL,
                 .inverted = inverted,
                 .alive = (1u << RULES) - 1,
                 .masked_max = -INFINITY};
    collect(&g, v);
    if (g.other || v->type->rank > 4 || (g.key && !is_key_mask(r->m, g.key, scores)))
        return (mask_rule){0};
    ef_arena *a = ef_arena_new();
    ir_tensor key = {.type = g.key ? g.key->type : NULL};
    key.data = g.key ? EF_NEWN(a, double, ir_type_count(key.type) + 1) : NULL;
    uint32_t seed = 1;
    bool ok = true;
    for (int i = 0; i < (g.key ? PROBES : 1) && ok && d.alive; i++) {
        if (g.key)
            fill(&key, i, &seed);
        ok = probe(r, &g, g.key ? &key : NULL, scores, &d);
    }
    ef_arena_free(a);
    if (!ok || !d.alive)
        return (mask_rule){0};
    int rule = 0; /* the weakest that survived; they differ only where S is 1 */
    while (!(d.alive >> rule & 1))
        rule++;
    return (mask_rule){true, rule & 2, rule & 1 ? (ir_value *)g.key : NULL,
                       d.masked_max};
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
        int budget = 4 * OPS_MAX;
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
