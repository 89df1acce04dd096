/* match.c -- the matcher of match.h.
 *
 * A pattern is parsed into a tree once per pass. Matching is a search with goals: "this
 * value looks like that node". A goal of an op with operands in either order has two
 * alternatives, each of which is tried together with all goals that are still open, so that
 * a wrong early choice is taken back. Patterns have some ten nodes: the search is short.
 */
#include "match.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { ANY, WEIGHT, NUMBER, LITERAL, RESULT, SCALE } kind;

enum { MAX_ARGS = 4 };

typedef struct node {
    kind kind;
    int slot; /* -1: no name */
    double number;
    ir_opcode code;
    int narg;
    struct node *arg[MAX_ARGS];
} node;

struct pass_pattern {
    node *root;
    const char *name[MATCH_SLOTS];
    int nname;
};

/* ---- text to tree ---- */

typedef struct reader {
    ef_arena *arena;
    const char *p;
    pass_pattern *pattern;
} reader;

static char *
read_word(reader *r)
{
    size_t n = strcspn(r->p, " ():");
    char *word = ef_strndup(r->arena, r->p, n);
    EF_ASSERT(n > 0);
    r->p += n;
    return word;
}

static int
slot_of(pass_pattern *p, const char *name)
{
    int i = 0;
    while (i < p->nname && strcmp(p->name[i], name))
        i++;
    if (i == p->nname) {
        EF_ASSERT(p->nname < MATCH_SLOTS);
        p->name[p->nname++] = name;
    }
    return i;
}

static node *read_node(reader *);

static void
read_call(reader *r, node *n)
{
    r->p++; /* ( */
    const char *op = read_word(r);
    n->kind = strcmp(op, "scale") ? RESULT : SCALE;
    n->code = n->kind == SCALE ? IR_OP_mul : ir_op_by_name(op);
    EF_ASSERT(n->code != IR_NOPS);
    while (*r->p == ' ') {
        r->p++;
        EF_ASSERT(n->narg < MAX_ARGS);
        n->arg[n->narg++] = read_node(r);
    }
    EF_ASSERT(*r->p == ')');
    r->p++;
}

static node *
read_node(reader *r)
{
    node *n = EF_NEW(r->arena, node);
    n->slot = -1;
    if (*r->p == '(') {
        read_call(r, n);
    } else if (strchr("?$#", *r->p)) {
        n->kind = *r->p == '?' ? ANY : *r->p == '$' ? WEIGHT : NUMBER;
        r->p++;
        n->slot = slot_of(r->pattern, read_word(r));
    } else if (isdigit((unsigned char)*r->p) || *r->p == '-') {
        n->kind = LITERAL;
        n->number = strtod(read_word(r), NULL);
    } else {
        int slot = slot_of(r->pattern, read_word(r));
        EF_ASSERT(r->p[0] == ':' && r->p[1] == '(');
        r->p++;
        read_call(r, n);
        n->slot = slot;
    }
    return n;
}

const pass_pattern *
pass_pattern_new(ef_arena *a, const char *text)
{
    reader r = {a, text, EF_NEW(a, pass_pattern)};
    r.pattern->root = read_node(&r);
    EF_ASSERT(!*r.p && r.pattern->root->kind >= RESULT);
    return r.pattern;
}

bool
pass_pattern_may_root(const pass_pattern *p, const ir_op *op)
{
    return op->code == p->root->code ||
           (p->root->kind == SCALE && op->code == IR_OP_div);
}

/* ---- matching ---- */

typedef struct goal { /* the values still to be matched, innermost first */
    const node *n;
    ir_value *v;
    const struct goal *next;
} goal;

bool
pass_commutes(ir_opcode code)
{
    switch (code) {
    case IR_OP_add:
    case IR_OP_mul:
    case IR_OP_max:
    case IR_OP_min:
    case IR_OP_and:
    case IR_OP_or:
        return true;
    default:
        return false;
    }
}

ir_value *
pass_scaled(const ir_op *op, double *factor)
{
    if (op->code == IR_OP_mul) {
        if (ir_is_const_scalar(op->arg[1], factor))
            return op->arg[0];
        return ir_is_const_scalar(op->arg[0], factor) ? op->arg[1] : NULL;
    }
    if (op->code != IR_OP_div || !ir_is_const_scalar(op->arg[1], factor) ||
        *factor == 0)
        return NULL;
    *factor = 1 / *factor;
    return op->arg[0];
}

static bool
equal_numbers(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-6 * fabs(b);
}

static bool
bind(pass_match *m, int slot, ir_value *v)
{
    if (slot < 0)
        return true;
    if (m->value[slot])
        return m->value[slot] == v;
    m->value[slot] = v;
    return true;
}

static bool
take(pass_match *m, ir_op *op)
{
    for (int i = 0; i < m->nop; i++)
        if (m->op[i] == op)
            return true;
    if (m->nop == MATCH_OPS)
        return false;
    m->op[m->nop++] = op;
    return true;
}

/* Has no value inside the match, but for the root's results, a use outside? */
static bool
is_closed(const pass_match *m)
{
    for (int i = 1; i < m->nop; i++) {
        uint32_t inside = 0, uses = 0;
        for (int r = 0; r < m->op[i]->nres; r++) {
            const ir_value *v = m->op[i]->res[r];
            uses += v->nuse;
            for (int j = 0; j < m->nop; j++)
                for (int k = 0; k < m->op[j]->narg; k++)
                    inside += m->op[j]->arg[k] == v;
        }
        if (inside != uses)
            return false;
    }
    return true;
}

static bool solve(pass_match *, const goal *);

/* The goal's op, and then its operands, in either order where that is allowed. */
static bool
solve_result(pass_match *m, const goal *g)
{
    const node *n = g->n;
    ir_op *op = g->v->def;
    if (!op || op->code != n->code || op->narg != n->narg || g->v != op->res[0] ||
        !take(m, op) || !bind(m, n->slot, g->v))
        return false;
    pass_match saved = *m;
    int orders = n->narg == 2 && pass_commutes(op->code) ? 2 : 1;
    for (int order = 0; order < orders; order++) {
        goal sub[MAX_ARGS];
        const goal *next = g->next;
        for (int i = n->narg - 1; i >= 0; i--) {
            sub[i] = (goal){n->arg[i], op->arg[order ? n->narg - 1 - i : i], next};
            next = &sub[i];
        }
        *m = saved;
        if (solve(m, next))
            return true;
    }
    return false;
}

static bool
solve_scale(pass_match *m, const goal *g)
{
    const node *n = g->n, *by = g->n->arg[1];
    ir_op *op = g->v->def;
    double factor;
    ir_value *v = op ? pass_scaled(op, &factor) : NULL;
    if (!v || !take(m, op) || !bind(m, n->slot, g->v))
        return false;
    if (by->kind == LITERAL && !equal_numbers(factor, by->number))
        return false;
    if (by->kind == NUMBER) {
        m->value[by->slot] = op->arg[1];
        m->number[by->slot] = factor;
    }
    goal sub = {n->arg[0], v, g->next};
    return solve(m, &sub);
}

static bool
solve(pass_match *m, const goal *g)
{
    if (!g)
        return is_closed(m);
    double number;
    switch (g->n->kind) {
    case RESULT:
        return solve_result(m, g);
    case SCALE:
        return solve_scale(m, g);
    case WEIGHT:
        if (!g->v->param || g->v->param->cls == IR_CONST)
            return false;
        break;
    case NUMBER:
        if (!ir_is_const_scalar(g->v, &m->number[g->n->slot]))
            return false;
        break;
    case LITERAL:
        if (!ir_is_const_scalar(g->v, &number) || !equal_numbers(number, g->n->number))
            return false;
        break;
    case ANY:
        break;
    }
    return bind(m, g->n->slot, g->v) && solve(m, g->next);
}

bool
pass_match_at(const pass_pattern *p, ir_op *root, pass_match *m)
{
    *m = (pass_match){.pattern = p};
    if (root->nres < 1)
        return false;
    goal g = {p->root, root->res[0], NULL};
    return solve(m, &g);
}

static int
slot_named(const pass_match *m, const char *name)
{
    int i = 0;
    while (i < m->pattern->nname && strcmp(m->pattern->name[i], name))
        i++;
    EF_ASSERT(i < m->pattern->nname && m->value[i]);
    return i;
}

ir_value *
pass_bound(const pass_match *m, const char *name)
{
    return m->value[slot_named(m, name)];
}

double
pass_number(const pass_match *m, const char *name)
{
    return m->number[slot_named(m, name)];
}
