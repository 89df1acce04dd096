/* cmd_verify_nodes.c -- every result of the trainer against the interpreter.
 *
 * The interpreter goes through the step op by op. What the trainer recorded of an op's
 * results is compared, and then put in the place of the interpreter's: so each op is judged
 * on the trainer's own operands, and an error shows where it is made. Values that stay in
 * registers of a kernel are not recorded; the interpreter computes them without rounding, as
 * the kernel does, and its last op answers for all of it. Within a kernel stored results, too,
 * go on unrounded, so recorded ones take their places when it ends.
 *
 * Differences count over the largest element of the result. Where the result is a sum that
 * cancels, what can be asked for is less: then the sizes of what was added count instead,
 * which the op gives when it is evaluated on the operands' absolute values.
 */
#include "cmd_verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A result whose record takes its place when its kernel ends. */
typedef struct waiting {
    const void *kernel; /* NULL: of none */
    ir_tensor *t;
    const record_tensor *got;
    const double *before; /* what is subtracted, or NULL */
} waiting;

typedef struct check {
    ir_module *m;
    const record *r;
    ir_env *env;
    ef_arena *arena;
    ef_map gradient; /* a value that is added where it is made -> its gradient buffer */
    ef_map last;     /* kernel number + 1 -> its last op */
    EF_VEC(waiting) waiting;
    ef_map seen; /* gradient buffer -> the next record of it */
    verify_rows *rows;
    int64_t live[IR_SUP + 1]; /* rows that mean something */
} check;

/* ---- what is allowed ---- */

/* Half a unit in the last place of elements near 1. */
double
verify_half_ulp(ir_dtype t)
{
    return t == IR_BF16 ? 0x1p-8 : t == IR_F16 ? 0x1p-11 : 0x1p-24;
}

/* Is result k a sum of products whose terms all count as much? Its size on absolute values is
 * a bound of what was added. */
static bool
adds_up(const ir_op *op, int k)
{
    switch (op->code) {
    case IR_OP_layernorm:
        return k == 1; /* the mean */
    case IR_OP_matmul:
    case IR_OP_linear:
    case IR_OP_linear_add:
    case IR_OP_linear_gelu:
    case IR_OP_linear_dgelu:
    case IR_OP_linear_dw:
    case IR_OP_linear_dwb:
    case IR_OP_reduce_sum:
    case IR_OP_reduce_mean:
    case IR_OP_lora_add:
    case IR_OP_lora_dt:
    case IR_OP_lora_db:
    case IR_OP_embed_grad:
    case IR_OP_gather_grad:
    case IR_OP_layernorm_dwb:
    case IR_OP_rmsnorm_dw:
    case IR_OP_rotary:
    case IR_OP_rotary2:
    case IR_OP_attention_grad:
    case IR_OP_add:
    case IR_OP_sub:
        return true;
    default:
        return false;
    }
}

/* Rounding of the result, and of what is added up in f32 before it: of n terms in blocks
 * about sqrt(n) 2^-24, so 128 is enough for sums of thousands of terms. Polynomials for
 * exp, tanh and erf are good to a few 2^-24. Attention in a low type rounds the weights
 * before it multiplies. */
static double
allowed(const ir_op *op, const ir_value *v)
{
    double sums = 128 * 0x1p-24, low = verify_half_ulp(v->type->dtype);
    bool attends = op->code == IR_OP_attention || op->code == IR_OP_attention_grad;
    if (op->code == IR_OP_head_ce_grad && ir_is_low(op->arg[0]->type->dtype))
        attends = true; /* d logits are rounded, too */
    if (attends && ir_is_low(op->arg[0]->type->dtype))
        low = 4 * verify_half_ulp(op->arg[0]->type->dtype);
    return low + sums;
}

/* ---- one result ---- */

static int64_t
live_count(const check *c, const ir_tensor *t, const ir_value *v)
{
    int64_t n = ir_type_count(t->type);
    ir_sym sym = v->type->rank ? (ir_sym)v->type->sym[0] : IR_FIXED;
    return sym && t->type->dim[0] ? n / t->type->dim[0] * c->live[sym] : n;
}

static double
ulps(ir_dtype t, double got, double want)
{
    int bits = t == IR_BF16 ? 8 : t == IR_F16 ? 11 : 24, e;
    frexp(want, &e);
    e = want == 0 ? -126 : e;
    return fabs(got - want) / ldexp(1, e - bits);
}

static double
largest(const double *x, int64_t n)
{
    double size = 0;
    for (int64_t i = 0; i < n; i++)
        size = isfinite(x[i]) && fabs(x[i]) > size ? fabs(x[i]) : size;
    return size;
}

/* got against want, n elements; size: of which errors are parts. */
void
verify_judge(verify_row *row, ir_dtype t, const double *got, const double *want,
             int64_t n, double size)
{
    row->error = row->ulp = 0;
    for (int64_t i = 0; i < n; i++) {
        bool same = got[i] == want[i] || (isnan(got[i]) && isnan(want[i]));
        double off = same ? 0 : size > 0 ? fabs(got[i] - want[i]) / size : INFINITY;
        off = isnan(off) ? INFINITY : off;
        if (off <= row->error)
            continue;
        row->error = off;
        row->ulp = ulps(t, got[i], want[i]);
        row->at = i;
        row->got = got[i];
        row->want = want[i];
    }
}

/* What stands for element x of operand i where sizes add up. The gradient of scores is the
 * weights times (dp - rowsum(dy y)), zero where a row has one key: so y is turned over. What
 * the weights come from stays as it is, v too if it is one value with q and k. */
static double
size_of_term(const ir_op *op, int i, double x)
{
    enum { DY, Q, V = 3, Y };
    if (op->code != IR_OP_attention_grad || i == DY)
        return fabs(x);
    if (i == Y)
        return -fabs(x);
    return i == V && op->arg[V] != op->arg[Q] ? fabs(x) : x;
}

/* The largest size of what op adds up for result k. */
static bool
size_of_terms(check *c, const ir_op *op, int k, double *size)
{
    ir_env abs = {.arena = ef_arena_new(), .exact = true};
    for (int i = 0; i < c->m->step->args.n; i++) {
        const ir_value *v = c->m->step->args.at[i];
        ef_map_set(abs.arena, &abs.of, v, ir_env_get(c->env, v));
    }
    for (int i = 0; i < op->narg; i++) {
        const ir_tensor *from = ir_env_get(c->env, op->arg[i]);
        ir_tensor *t = EF_NEW(abs.arena, ir_tensor);
        int64_t n = ir_type_count(from->type);
        *t = (ir_tensor){from->type, EF_NEWN(abs.arena, double, n + 1)};
        for (int64_t j = 0; j < n; j++)
            t->data[j] = size_of_term(op, i, from->data[j]);
        ef_map_set(abs.arena, &abs.of, op->arg[i], t);
    }
    bool ok = ir_interp_op(op, &abs);
    const ir_tensor *t = ok ? ir_env_get(&abs, op->res[k]) : NULL;
    *size = ok ? largest(t->data, live_count(c, t, op->res[k])) : 0;
    if (op->code == IR_OP_sub && ok)
        for (int i = 0; i < 2; i++) {
            t = ir_env_get(&abs, op->arg[i]);
            *size = fmax(*size, largest(t->data, ir_type_count(t->type)));
        }
    ef_arena_free(abs.arena);
    return ok;
}

void
verify_add(const record *r, verify_rows *s, const verify_row *row)
{
    if (s->n == s->cap)
        s->at = ef_grow(r->arena, s->at, &s->cap, s->n, sizeof *s->at);
    s->at[s->n++] = *row;
    s->bad += !(row->error <= row->allowed);
}

static void *
kernel_of(const ir_op *op) /* NULL: in none */
{
    int64_t number = pass_is_ew(op) ? ir_attr_int(op, IR_ATTR_kernel, -1) : -1;
    return (void *)(uintptr_t)(number + 1);
}

/* Result k of op as recorded against t, and what op adds up for it where that counts. */
static bool
judge(check *c, const ir_op *op, int k, const ir_tensor *t, const record_tensor *got,
      verify_row *row)
{
    const ir_value *v = op->nres ? op->res[k] : op->arg[0];
    int64_t live = live_count(c, t, v);
    ir_dtype type = v->type->dtype;
    ef_arena *a = ef_arena_new();
    double size = largest(t->data, live), *is = EF_NEWN(a, double, got->n + 1), terms;
    bool ok = true;
    record_read(got, is);
    verify_judge(row, type, is, t->data, live, size);
    if (row->error > row->allowed && adds_up(op, k)) {
        ok = size_of_terms(c, op, k, &terms);
        if (ok)
            verify_judge(row, type, is, t->data, live, fmax(size, terms));
    }
    ef_arena_free(a);
    return ok;
}

/* The same, accum's buffer among them; the record takes t's place. */
static bool
compare(check *c, const ir_op *op, int k, ir_tensor *t, const record_tensor *got)
{
    const ir_value *v = op->nres ? op->res[k] : op->arg[0];
    const ir_value *buffer = ef_map_get(&c->gradient, v);
    int64_t n = ir_type_count(t->type);
    verify_row row = {.op = op, .name = v->name, .allowed = allowed(op, v)};
    if (got->n != n)
        return ef_error(c->r->ctx, NULL, E_FILE, "record",
                        ef_printf(c->r->arena, "%%%s has %lld elements, not %lld",
                                  v->name, (long long)got->n, (long long)n));
    double *before = buffer ? ir_env_get(c->env, buffer)->data : NULL;
    for (int64_t i = 0; before && i < n; i++)
        t->data[i] += before[i];
    if (!judge(c, op, k, t, got, &row))
        return false;
    verify_add(c->r, c->rows, &row);
    ef_push(c->arena, c->waiting, ((waiting){kernel_of(op), t, got, before}));
    return true;
}

/* ---- the step ---- */

static const record_tensor *
next_of_buffer(check *c, const ir_value *buffer)
{
    const record_tensor *t =
        ef_map_has(&c->seen, buffer)
            ? ef_map_get(&c->seen, buffer)
            : record_get(c->r, "result", ef_printf(c->arena, "$%s", buffer->name));
    ef_map_set(c->arena, &c->seen, buffer, t ? t->next : NULL);
    return t;
}

static void
replace(check *c, const void *kernel)
{
    int left = 0;
    for (int k = 0; k < c->waiting.n; k++) {
        const waiting *w = &c->waiting.at[k];
        if (w->kernel != kernel) {
            c->waiting.at[left++] = *w;
            continue;
        }
        int64_t n = ir_type_count(w->t->type);
        record_read(w->got, w->t->data);
        for (int64_t i = 0; i < n && w->before; i++)
            w->t->data[i] -= w->before[i];
    }
    c->waiting.n = left;
}

static bool
compare_all(check *c, const ir_op *op)
{
    for (int i = 0; i < op->nres; i++) {
        const ir_value *v = op->res[i];
        const record_tensor *got =
            record_get(c->r, "result", ef_printf(c->arena, "%%%s", v->name));
        if (got && !compare(c, op, i, ir_env_get(c->env, v), got))
            return false;
    }
    if (op->code != IR_OP_accum || ef_map_has(&c->gradient, op->arg[1]))
        return true;
    const record_tensor *got = next_of_buffer(c, op->arg[0]);
    return !got || compare(c, op, 0, ir_env_get(c->env, op->arg[0]), got);
}

static bool
visit(check *c, const ir_op *op)
{
    if (!ir_interp_op(op, c->env) || !compare_all(c, op))
        return false;
    void *kernel = kernel_of(op);
    if (!kernel || ef_map_get(&c->last, kernel) == op)
        replace(c, kernel);
    return true;
}

static void
find_kernels(check *c)
{
    for (ir_op *op = ir_first_op(c->m->step); op; op = ir_next_op(op))
        if (kernel_of(op))
            ef_map_set(c->arena, &c->last, kernel_of(op), op);
}

static int64_t
place_of(const ir_value *v)
{
    const ir_attr *at = v->def ? ir_attr_get(v->def, IR_ATTR_at) : NULL;
    for (int i = 0; at && i < at->n; i++)
        if (v->def->res[i] == v)
            return at->u.l[i];
    return PASS_IN_REGISTER;
}

static void
find_gradients(check *c)
{
    for (const ir_op *op = ir_first_op(c->m->step); op; op = ir_next_op(op))
        if (op->code == IR_OP_accum && place_of(op->arg[1]) == PASS_IN_GRADIENT)
            ef_map_set(c->arena, &c->gradient, op->arg[1], op->arg[0]);
}

/* Rows behind these are filled up. */
static void
find_live(check *c)
{
    for (int i = 0; i < c->m->step->args.n; i++) {
        const ir_value *v = c->m->step->args.at[i];
        const ir_tensor *t = ir_env_get(c->env, v);
        int64_t n = ir_type_count(t->type);
        if (pass_input_is(c->m, v, "offsets"))
            c->live[IR_ROWS] = (int64_t)t->data[n - 1];
        if (v->type->rank && v->type->sym[0] == IR_SUP &&
            pass_input_is(c->m, v, "labels"))
            for (int64_t k = 0; k < n; k++)
                c->live[IR_SUP] += t->data[k] != -100;
    }
}

static int
worse(const void *a, const void *b)
{
    const verify_row *x = a, *y = b;
    double p = x->error / x->allowed, q = y->error / y->allowed;
    return p < q ? 1 : p > q ? -1 : x < y ? -1 : x > y;
}

bool
verify_nodes(ir_module *m, const record *r, ir_env *env, verify_rows *rows)
{
    check c = {.m = m, .r = r, .env = env, .arena = ef_arena_new(), .rows = rows};
    env->exact = true;
    bool ok = verify_fill(m, r, env);
    if (ok) {
        find_gradients(&c);
        find_kernels(&c);
        find_live(&c);
    }
    IR_FOREACH_BLOCK (b, m->step)
        for (const ir_op *op = b->first; op && ok && b->phase != IR_UPDATE;
             op = op->next)
            ok = visit(&c, op);
    ok = ok && verify_update(m, r, env, rows);
    if (rows->n)
        qsort(rows->at, (size_t)rows->n, sizeof *rows->at, worse);
    ef_arena_free(c.arena);
    return ok;
}
