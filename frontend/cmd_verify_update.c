/* cmd_verify_update.c -- what the update made of the trainer's own gradients: norm, params,
 * the optimizer's state, images and the loss scaler.
 *
 * Of a param its change is judged: beside the param itself a wrong step would hardly show.
 * For the same reason rounding of the param counts, too, in parts of the largest change.
 */
#include "cmd_verify.h"

#include <math.h>

/* A handful of operations in f32 an element; norm2 adds up in blocks of 1024. */
static const double sums = 128 * 0x1p-24;

typedef struct update {
    const record *r;
    ir_env *env;
    verify_rows *rows;
    const ir_op *op;
} update;

/* n elements of what `name` says; slack: allowed beside sums and rounding to the type. */
static void
hold(const update *u, const char *name, ir_dtype type, const double *got,
     const double *want, int64_t n, double slack)
{
    verify_row row = {.op = u->op, .name = name};
    double size = 0;
    for (int64_t i = 0; i < n; i++)
        size = fmax(size, fabs(want[i]));
    row.allowed = sums + verify_half_ulp(type) + (size > 0 ? slack / size : 0);
    verify_judge(&row, type, got, want, n, size);
    verify_add(u->r, u->rows, &row);
}

static void
hold_number(const update *u, const char *name, double got, double want)
{
    hold(u, name, IR_F32, &got, &want, 1, 0);
}

/* An operand of optim after it; nothing where the trainer has none. */
static void
hold_operand(const update *u, const char *kind, int k)
{
    const char *param = u->op->arg[0]->name;
    const record_tensor *is = record_get(u->r, kind, param);
    const ir_tensor *want = ir_env_get(u->env, u->op->arg[k]);
    if (!is || !want)
        return;
    ef_arena *a = ef_arena_new();
    double *got = EF_NEWN(a, double, is->n + 1);
    record_read(is, got);
    hold(u, ef_printf(u->r->arena, "%s (%s)", param, kind), want->type->dtype, got,
         want->data, is->n, 0);
    ef_arena_free(a);
}

static bool
hold_change(const update *u)
{
    const char *name = u->op->arg[0]->name;
    const record_tensor *before = record_get(u->r, "param", name),
                        *is = record_get(u->r, "param2", name);
    const double *want = ir_env_get(u->env, u->op->arg[0])->data;
    if (!before || !is || is->n > before->n)
        return ef_error(u->r->ctx, NULL, E_FILE, "record",
                        ef_printf(u->r->arena, "it lacks param %s", name));
    ef_arena *a = ef_arena_new();
    double *was = EF_NEWN(a, double, before->n + 1),
           *got = EF_NEWN(a, double, is->n + 1);
    double *by = EF_NEWN(a, double, is->n + 1), largest = 0;
    record_read(before, was);
    record_read(is, got);
    for (int64_t i = 0; i < is->n; i++) {
        got[i] -= was[i];
        by[i] = want[i] - was[i];
        largest = fmax(largest, fabs(want[i]));
    }
    hold(u, ef_printf(u->r->arena, "%s (change)", name), IR_F32, got, by, is->n,
         largest * verify_half_ulp(IR_F32));
    ef_arena_free(a);
    return true;
}

static bool
hold_optim(const update *u)
{
    hold_operand(u, "m2", 2);
    hold_operand(u, "v2", 3);
    if (u->op->narg > 5)
        hold_operand(u, "image2", 5);
    return hold_change(u);
}

static void
hold_scaler(const update *u)
{
    static const char *const name[] = {"scaler2.0", "scaler2.1", "scaler2.2",
                                       "scaler2.3"};
    const double *want = ir_env_get(u->env, u->op->arg[0])->data;
    for (int i = 0; i < (int)EF_COUNT(name); i++)
        hold_number(u, name[i], record_number(u->r, name[i]), want[i]);
}

static bool
visit(const update *u)
{
    if (!ir_interp_op(u->op, u->env))
        return false;
    if (u->op->code == IR_OP_optim)
        return hold_optim(u);
    if (u->op->code == IR_OP_rescale)
        hold_scaler(u);
    if (u->op->code != IR_OP_norm2)
        return true;
    double *norm2 = ir_env_get(u->env, u->op->res[0])->data;
    double got = record_number(u->r, "norm2");
    hold_number(u, u->op->res[0]->name, got, *norm2);
    *norm2 = got;
    return true;
}

bool
verify_update(const ir_module *m, const record *r, ir_env *env, verify_rows *rows)
{
    update u = {.r = r, .env = env, .rows = rows};
    bool ok = true;
    IR_FOREACH_BLOCK (b, m->step)
        for (u.op = b->first; u.op && ok && b->phase == IR_UPDATE; u.op = u.op->next)
            ok = visit(&u);
    return ok;
}
