/* cost.c -- bytes, operations and kernels of the calls of step; see cost.h and cost.def.
 *
 * Most rules are one: what an op reads and writes follows from the types of its operands and
 * results, and from where pass plan put the results. The others are of ops that touch less
 * than whole tensors, or run in stages.
 */
#include "cost.h"

#include "../runtime/cuda/scratch.h"
#include "cg_int.h"

#include <string.h>

typedef struct rule rule;

typedef struct pricing {
    const ir_module *m;
    ef_arena *arena;
    cg_costs *out;
} pricing;

typedef void cost_rule(pricing *, const ir_op *, const rule *);

struct rule { /* a row of cost.def */
    cg_kind kind;
    int kernels;
    cost_rule *price;
    double per;
};

const char *const cg_kind_text[CG_NKINDS] = {
#define KIND(name, text) [CG_##name] = text,
#define COST(op, kind, kernels, rule, per)
#include "cost.def"
#undef KIND
#undef COST
};

/* ---- rows ---- */

static cg_cost *
put(pricing *p, const ir_op *op, cg_cost row)
{
    row.op = op;
    row.stage = row.stage ? row.stage : "";
    ef_push(p->arena, p->out->at, row);
    return &p->out->at.at[p->out->at.n - 1];
}

static cg_cost *
put_call(pricing *p, const ir_op *op, const rule *r, double bytes, double flop)
{
    return put(p, op,
               (cg_cost){.kind = r->kind,
                         .calls = 1,
                         .kernels = r->kernels,
                         .bytes = bytes,
                         .flop = flop});
}

static cg_cost *
put_stage(pricing *p, const ir_op *op, const rule *r, const char *stage, int kernels,
          double moved, double flop)
{
    return put(p, op,
               (cg_cost){.stage = stage,
                         .kind = r->kind,
                         .kernels = kernels,
                         .bytes = moved,
                         .flop = flop});
}

/* ---- traffic ---- */

static double
count(const ir_value *v)
{
    return (double)ir_type_count(v->type);
}

static double
bytes(const ir_value *v)
{
    return (double)ir_type_bytes(v->type);
}

static double
element(const ir_value *v)
{
    return (double)cg_size(v->type->dtype);
}

/* Operands, each value once. */
static double
read_bytes(const ir_op *op)
{
    double sum = 0;
    for (int i = 0; i < op->narg; i++) {
        int before = 0;
        while (op->arg[before] != op->arg[i])
            before++;
        sum += before == i ? bytes(op->arg[i]) : 0;
    }
    return sum;
}

/* Results; what is added to a gradient is read before. */
static double
written_bytes(const ir_op *op)
{
    double sum = 0;
    for (int i = 0; i < op->nres; i++)
        sum += bytes(op->res[i]) * (cg_adds(op, i) ? 2 : 1);
    return sum;
}

static double
largest_count(const ir_op *op)
{
    double most = 0;
    for (int i = 0; i < op->narg; i++)
        most = count(op->arg[i]) > most ? count(op->arg[i]) : most;
    for (int i = 0; i < op->nres; i++)
        most = count(op->res[i]) > most ? count(op->res[i]) : most;
    return most;
}

static void
cs_free(pricing *p, const ir_op *op, const rule *r)
{
    (void)p, (void)op, (void)r;
}

static void
cs_stream(pricing *p, const ir_op *op, const rule *r)
{
    put_call(p, op, r, read_bytes(op) + written_bytes(op), r->per * largest_count(op));
}

/* Without a weight's gradient there is no second stage of sums over rows. */
static void
cs_norm_grad(pricing *p, const ir_op *op, const rule *r)
{
    cg_cost *c = put_call(p, op, r, read_bytes(op) + written_bytes(op),
                          r->per * largest_count(op));
    if (!ir_attr_int(op, IR_ATTR_wgrad, 0))
        c->kernels = 1;
}

/* ---- elementwise kernels ---- */

static bool
is_member(const ir_op *op, int64_t kernel)
{
    return ir_attr_int(op, IR_ATTR_kernel, -1) == kernel;
}

/* Does the kernel read v from memory, and is it op's operand i for the first time? */
static bool
first_read(const ir_op *op, int i, int64_t kernel)
{
    const ir_value *v = op->arg[i];
    if (v->def && (v->def->code == IR_OP_const || is_member(v->def, kernel)))
        return false;
    for (const ir_op *o = op->block->first;; o = o->next)
        for (int k = 0; is_member(o, kernel) && k < o->narg; k++)
            if (o->arg[k] == v)
                return o == op && k == i;
}

/* The whole kernel, where the last of its ops stands. */
static void
cs_kernel(pricing *p, const ir_op *op, const rule *r)
{
    int64_t kernel = ir_attr_int(op, IR_ATTR_kernel, -1);
    double moved = 0, flop = 0;
    int stored = 0;
    for (const ir_op *o = op->next; o; o = o->next)
        if (kernel < 0 || is_member(o, kernel))
            return;
    for (const ir_op *o = kernel < 0 ? NULL : op->block->first; o != op->next;
         o = o->next) {
        if (!is_member(o, kernel))
            continue;
        bool moves =
            o->code == IR_OP_const || o->code == IR_OP_cast || o->code == IR_OP_expand;
        flop += moves ? 0 : count(o->res[0]);
        for (int i = 0; i < o->narg; i++)
            moved += first_read(o, i, kernel) ? bytes(o->arg[i]) : 0;
        if (cg_offset(o->res[0]) < 0)
            continue;
        moved += bytes(o->res[0]);
        stored++;
    }
    if (stored)
        put_call(p, op, r, moved, flop);
}

/* ---- ops that move elements ---- */

static void
cs_concat(pricing *p, const ir_op *op, const rule *r)
{
    cg_cost *c = put_call(p, op, r, 2 * bytes(op->res[0]), 0);
    c->calls = c->kernels = 0;
    for (int i = 0; i < op->narg; i++)
        c->calls += count(op->arg[i]) > 0;
    c->kernels = c->calls;
}

static void
cs_slice(pricing *p, const ir_op *op, const rule *r)
{
    put_call(p, op, r, 2 * bytes(op->res[0]), 0);
}

static void
cs_unslice(pricing *p, const ir_op *op, const rule *r)
{
    put_call(p, op, r, bytes(op->res[0]) + 2 * bytes(op->arg[0]), 0)->calls = 2;
}

/* Rows of operand 0 at operand 1. */
static void
cs_lookup(pricing *p, const ir_op *op, const rule *r)
{
    const ir_value *y = op->res[0];
    put_call(p, op, r, bytes(y) + count(y) * element(op->arg[0]) + bytes(op->arg[1]),
             0);
}

/* Operand 0 added to rows of a table at operand 1: these are sorted; then sums of runs of
 * equal ones in chunks, and what goes over the end of a chunk. */
static void
cs_embed_grad(pricing *p, const ir_op *op, const rule *r)
{
    const ir_value *y = op->res[0], *dy = op->arg[0];
    double n = count(dy) < count(y) ? count(dy) : count(y);
    bool adds = cg_adds(op, 0);
    cg_cost *c =
        put_call(p, op, r, read_bytes(op) + (adds ? 0 : bytes(y)) + 2 * n * element(y),
                 count(dy));
    c->kernels = 2 + (rtc_embed_layout(cg_rows(dy), cg_last(dy)).chunks > 1) + !adds;
}

static void
cs_reduce(pricing *p, const ir_op *op, const rule *r)
{
    const ir_attr *axes = ir_attr_get(op, IR_ATTR_axes);
    cg_cost *c =
        put_call(p, op, r, read_bytes(op) + written_bytes(op), count(op->arg[0]));
    int stages = 0;
    for (int i = 0; i < axes->n; i++) { /* neighbours are one stage */
        bool joined = false;
        for (int k = 0; k < axes->n; k++)
            joined |= axes->u.l[k] == axes->u.l[i] + 1;
        stages += !joined;
    }
    c->calls = stages;
    c->kernels *= stages;
    if (op->code != IR_OP_reduce_sum || stages != 1 || axes->u.l[0])
        return;
    if (rtc_colsum_groups(cg_product(op->arg[0]->type, 0, axes->n)) > 1)
        c->kernels = 2; /* groups of rows, and their sums */
}

/* What turning operand i as result i moves: in place the columns that turn, else all. */
static double
turn_bytes(const ir_op *op, int i, double turned)
{
    const ir_value *x = op->arg[i], *y = op->res[i];
    bool in_place = cg_offset(x) == cg_offset(y) && cg_offset(y) >= 0;
    return 2 * element(x) * (in_place ? turned : count(x));
}

static void
cs_rotary(pricing *p, const ir_op *op, const rule *r)
{
    static const ir_attr_key heads[] = {IR_ATTR_heads, IR_ATTR_kv_heads};
    const ir_value *cos = op->arg[op->nres], *sin = op->arg[op->nres + 1];
    double moved = bytes(cos) + bytes(sin), turned = 0;
    for (int i = 0; i < op->nres; i++) {
        double n = (double)ir_attr_int(op, heads[i], 1) * (double)cg_last(cos) *
                   (double)cg_rows(op->arg[i]);
        moved += turn_bytes(op, i, n);
        turned += n;
    }
    put_call(p, op, r, moved, 3 * turned);
}

/* ---- products ---- */

static int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool
is_adapter(const ir_value *v)
{
    const ir_param *p = v->param;
    const ir_param *of = p && p->of ? p->of : p;
    return of && (of->role == IR_LORA_A || of->role == IR_LORA_B);
}

/* Is it a product with an adapter, or one that gives an adapter's gradient? */
static bool
of_adapter(const ir_op *op)
{
    for (int i = 0; i < op->narg; i++)
        if (is_adapter(op->arg[i]))
            return true;
    const ir_op *next = op->next;
    while (next && (next->code != IR_OP_accum || next->arg[1] != op->res[0]))
        next = next->next;
    return next && is_adapter(next->arg[0]);
}

static void
as_product(cg_cost *c, const ir_op *op, int64_t size)
{
    c->work = CG_PRODUCT;
    c->low = ir_is_low(op->arg[op->code == IR_OP_linear_add]->type->dtype);
    c->size = size;
}

static bool
has_bias(const ir_op *op)
{
    switch (op->code) {
    case IR_OP_linear:
    case IR_OP_linear_gelu:
        return op->narg > 2;
    case IR_OP_linear_add:
        return op->narg > 3;
    default:
        return false;
    }
}

static void
cs_product(pricing *p, const ir_op *op, const rule *r)
{
    const ir_value *a = op->arg[op->code == IR_OP_linear_add], *y = op->res[0];
    bool matmul = op->code == IR_OP_matmul;
    bool ta = ir_attr_int(op, IR_ATTR_ta, 0);
    int64_t n = cg_last(y), k = cg_last(a), m = cg_rows(y);
    if (op->code == IR_OP_linear_dw || op->code == IR_OP_linear_dwb)
        k = cg_rows(a);
    if (matmul) /* [.., M, K] */
        m = y->type->dim[y->type->rank - 2];
    if (matmul && ta)
        k = a->type->dim[a->type->rank - 2];
    cg_cost *c = put_call(p, op, r, read_bytes(op) + written_bytes(op),
                          2 * count(y) * (double)k);
    as_product(c, op, least(n, least(m, k)));
    if (has_bias(op) && ir_is_low(y->type->dtype))
        c->kernels++; /* the bias is rounded to the type of the result */
    if (op->code == IR_OP_linear_dwb && cg_adds(op, 1))
        c->kernels++; /* the library does not add to sums */
    if (of_adapter(op))
        c->kind = CG_LORA;
}

/* y += t B^T, dt = dy B, dB = dy^T t, on some columns of y and dy; see ops.def. */
static void
cs_lora(pricing *p, const ir_op *op, const rule *r)
{
    bool adds = op->code == IR_OP_lora_add, db = op->code == IR_OP_lora_db;
    const ir_value *wide = op->arg[0], *t = adds || db ? op->arg[1] : op->res[0];
    int64_t len = adds ? op->arg[2]->type->dim[0]
                  : db ? ir_attr_int(op, IR_ATTR_len, 0)
                       : op->arg[1]->type->dim[0];
    ir_columns at = ir_adapted_columns(op, len);
    double rows = (double)cg_rows(wide), rank = (double)cg_last(t);
    double moved = rows * (double)len * element(wide) * (adds ? 2 : 1) + bytes(t);
    moved += db ? written_bytes(op) : bytes(op->arg[adds ? 2 : 1]);
    bool copies = adds && cg_offset(op->res[0]) != cg_offset(wide);
    cg_cost *c = put_call(p, op, r, moved + (copies ? 2 * bytes(wide) : 0),
                          2 * rows * (double)len * rank);
    as_product(c, op, least(cg_last(t), at.width));
    c->calls = op->code == IR_OP_lora_dt ? (int)at.n : 1 + copies;
    c->kernels = c->calls;
}

/* ---- attention ---- */

/* Pairs of query and key in a row of s tokens, of which `window` are seen (0: all): half the
 * square where it is causal. */
static double
pairs(double s, double window, bool causal)
{
    double k = window > 0 && window < s ? window : s;
    return causal ? k * s - k * k / 2 : s * s - (s - k) * (s - k) / 2;
}

/* Are there columns in gradient i that no head covers? */
static bool
has_gaps(const ir_op *op, int i)
{
    int64_t d = ir_attr_int(op, IR_ATTR_head_dim, 0);
    int64_t q = d * ir_attr_int(op, IR_ATTR_heads, 0);
    int64_t kv = d * ir_attr_int(op, IR_ATTR_kv_heads, 0);
    return cg_last(op->res[i]) > (op->nres == 1 ? q + 2 * kv : i ? kv : q);
}

static void
cs_attention(pricing *p, const ir_op *op, const rule *r)
{
    bool grad = op->code == IR_OP_attention_grad;
    int mask = grad ? 6 : 3;
    const ir_type *q = op->arg[grad]->type;
    bool rows = q->rank == 2;
    int64_t batch = rows ? op->arg[mask + 1]->type->dim[0] - 1 : q->dim[0];
    int64_t seq = rows ? (q->dim[0] + batch - 1) / batch : q->dim[1];
    int64_t heads = ir_attr_int(op, IR_ATTR_heads, 0);
    int64_t d = ir_attr_int(op, IR_ATTR_head_dim, 0);
    double square = pairs((double)seq, (double)ir_attr_int(op, IR_ATTR_window, 0),
                          ir_attr_int(op, IR_ATTR_causal, 0) != 0);
    double forward = 4 * square * (double)(batch * heads * d);
    cg_cost *c = put_call(p, op, r, read_bytes(op) + written_bytes(op),
                          forward * (grad ? 2.5 : 1));
    for (int i = 0; grad && i < op->nres; i++)
        if (has_gaps(op, i)) { /* cleared before */
            c->calls++;
            c->kernels++;
            c->bytes += bytes(op->res[i]);
        }
    c->work = grad ? CG_ATTN_BACKWARD : CG_ATTN_FORWARD;
    c->low = ir_is_low(q->dtype);
    c->size = d;
    c->seq = seq;
}

/* ---- a head over a vocabulary ---- */

typedef struct head {
    double rows, h, v, chunks, element;
    int64_t least;
} head;

static void
put_product(pricing *p, const ir_op *op, const head *d, const char *stage, double moved)
{
    cg_cost *c = put(p, op,
                     (cg_cost){.stage = stage,
                               .kind = CG_HEAD,
                               .calls = *stage == 'l',
                               .kernels = (int)d->chunks,
                               .bytes = moved,
                               .flop = 2 * d->rows * d->h * d->v});
    as_product(c, op, d->least);
}

/* Logits are floats; the weight, and its gradient, move once a chunk. */
static void
cs_head(pricing *p, const ir_op *op, const rule *r)
{
    bool grad = op->code == IR_OP_head_ce_grad;
    const ir_value *x = op->arg[0], *w = op->arg[1];
    int64_t rows = cg_rows(x), v = ir_type_count(w->type) / cg_last(x);
    int64_t chunk = least(ir_attr_int(op, IR_ATTR_chunk, rows), rows);
    head d = {.rows = (double)rows,
              .h = (double)cg_last(x),
              .v = (double)v,
              .chunks = (double)((rows + chunk - 1) / chunk),
              .element = element(x),
              .least = least(chunk, least(v, cg_last(x)))};
    double n = d.rows * d.v, weight = d.chunks * d.h * d.v, in = bytes(x);
    put_product(p, op, &d, "logits", in + weight * d.element + 4 * n);
    put_stage(p, op, r, "softmax", (int)d.chunks,
              grad ? n * (4 + 4 + d.element) : 4 * n, 6 * n);
    put_stage(p, op, r, "losses", 1, 8 * d.rows, d.rows);
    if (!grad)
        return;
    put_product(p, op, &d, "dx", n * d.element + weight * d.element + in);
    if (ir_attr_int(op, IR_ATTR_wgrad, 0))
        put_product(p, op, &d, "dw", n * d.element + in + 2 * 4 * weight);
    if (ir_attr_int(op, IR_ATTR_bgrad, 0))
        put_stage(p, op, r, "dbias", 2 * (int)d.chunks, 2 * 4 * n, n);
    for (int i = 2; i < op->nres; i++)
        if (!cg_adds(op, i)) /* the kernel adds */
            put_stage(p, op, r, "zero", 1, bytes(op->res[i]), 0)->calls = 1;
}

/* ---- the update ---- */

static void
cs_accum(pricing *p, const ir_op *op, const rule *r)
{
    const ir_value *v = op->arg[1];
    while (v->def && pass_is_view(v->def))
        v = v->def->arg[0];
    for (int i = 0; v->def && i < v->def->nres; i++)
        if (v->def->res[i] == v && cg_adds(v->def, i))
            return; /* it is there already */
    put_call(p, op, r, 3 * bytes(op->arg[0]), count(op->arg[0]));
}

/* A kernel a unit, and two for their sum. The host part zeroes gradients before the next
 * step, all at once. */
static void
cs_norm2(pricing *p, const ir_op *op, const rule *r)
{
    ef_map units = {0};
    for (int i = 0; i < op->narg; i++)
        ef_map_set(p->arena, &units, &p->m->units.at[op->arg[i]->param->of->unit],
                   p->arena);
    double moved = read_bytes(op);
    cg_cost *c = put_call(p, op, r, moved + written_bytes(op),
                          r->per * moved / (double)sizeof(float));
    c->kernels += units.n;
    put_stage(p, op, r, "zero gradients", 1, moved, 0);
}

/* One call a unit: parameter and state are read and written, the image is written. */
static void
cs_optim(pricing *p, const ir_op *op, const rule *r)
{
    int unit = op->arg[0]->param->unit;
    double moved = 0, n = 0;
    for (const ir_op *o = op->prev; o; o = o->prev)
        if (o->code == IR_OP_optim && o->arg[0]->param->unit == unit)
            return;
    for (const ir_op *o = op; o; o = o->next) {
        if (o->code != IR_OP_optim || o->arg[0]->param->unit != unit)
            continue;
        n += count(o->arg[0]);
        moved += 2 * (bytes(o->arg[0]) + bytes(o->arg[2]) + bytes(o->arg[3])) +
                 bytes(o->arg[1]) + (o->narg > 5 ? bytes(o->arg[5]) : 0);
    }
    put_call(p, op, r, moved, r->per * n);
}

/* ---- all calls ---- */

static const rule rules[IR_NOPS] = {
#define EW(name, arity, out, text) [IR_OP_##name] = {CG_ELEMENTWISE, 1, cs_kernel, 1},
#include "../ir/elementwise.def"
#undef EW
    [IR_OP_cast] = {CG_ELEMENTWISE, 1, cs_kernel, 0},
    [IR_OP_const] = {CG_ELEMENTWISE, 1, cs_kernel, 0},
    [IR_OP_expand] = {CG_ELEMENTWISE, 1, cs_kernel, 0},
#define KIND(name, text)
#define COST(op, kind, kernels, rule, per) \
    [IR_OP_##op] = {CG_##kind, kernels, cs_##rule, per},
#include "cost.def"
#undef KIND
#undef COST
};

bool
cg_has_cost(ir_opcode code)
{
    return rules[code].price != NULL;
}

bool
cg_cost_of(const ir_module *m, ef_arena *arena, cg_costs *out)
{
    pricing p = {m, arena, out};
    *out = (cg_costs){0};
    for (const ir_op *op = ir_first_op(m->step); op; op = ir_next_op(op)) {
        const rule *r = &rules[op->code];
        if (!r->price)
            return ef_error(m->ctx, op->loc, E_CG_OP, ir_ops[op->code].name, "plan",
                            "cost.def has no row for it");
        r->price(&p, op, r);
    }
    return true;
}
