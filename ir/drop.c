/* drop.c -- what random bits of dropout are keyed by.
 *
 * %key, a number of seed and step, and %keys [B,S], the sample's number within the step's batch
 * times 2^24 plus the position, are arguments of step. They are made when the first op needs
 * them, and each op gets keys of the shape of its rows:
 *
 *     x [B,S,*]     %keys                     x [B,*] or [B,1,*]: those of position 0
 *     x [rows,*]    %keys at %row             x [B*S,*]   %keys, reshaped
 *     x [sup,*]     those at %sup
 *     x [B,H,S,*]   %keys + h 2^44            x [B*H,S,*] the same, reshaped
 */
#include <string.h>

#include "ir.h"

/* Keys of so many heads are below 2^53: a double is one. */
enum { HEADS_MAX = 512 };

static ir_value *
input(ir_module *m, const char *role)
{
    for (int i = 0; m->step && i < m->step->args.n; i++) {
        ir_value *v = m->step->args.at[i];
        const char *is = ir_meta_get(m, ef_internf(m->ctx, "input.%s", v->name));
        if (is && !strcmp(is, role))
            return v;
    }
    return NULL;
}

ir_value *
ir_drop_key(ir_module *m)
{
    ir_value *v = input(m, "key");
    return v ? v : ir_input_new(m, "key", "key", ir_type_get(m->ctx, IR_I64, 0, NULL));
}

ir_value *
ir_drop_keys(ir_module *m, int64_t batch, int64_t seq)
{
    ir_value *v = input(m, "keys");
    const ir_type *t = ir_type_get(m->ctx, IR_I64, 2, (int64_t[]){batch, seq});
    if (v)
        return v->type == t ? v : NULL;
    return batch > 0 && seq > 0 ? ir_input_new(m, "keys", "keys", t) : NULL;
}

static ir_value *
as(ir_builder *b, ir_value *v, int rank, const int64_t *dim)
{
    const ir_type *t = ir_type_get(b->m->ctx, IR_I64, rank, dim);
    return v->type == t ? v : ir_emit(b, IR_OP_reshape, "keys", 1, &v, 0, NULL, t);
}

/* keys [B,S] of each of n heads: [B,n,S]. */
static ir_value *
of_heads(ir_builder *b, ir_value *keys, int64_t n)
{
    int64_t batch = keys->type->dim[0], seq = keys->type->dim[1];
    ir_param *p = ir_param_new(b->m, "keys.head",
                               ir_type_get(b->m->ctx, IR_I64, 3, (int64_t[]){1, n, 1}),
                               IR_CONST, b->block->unit);
    double *values = EF_NEWN(b->m->arena, double, n);
    for (int64_t h = 0; h < n; h++)
        values[h] = (double)h * 0x1p44;
    p->init = IR_INIT_VALUES;
    p->values = values;
    keys = as(b, keys, 3, (int64_t[]){batch, 1, seq});
    return ir_ew2(b, IR_OP_add, "keys", keys, p->value);
}

/* keys [B,S] at the rows of a list that the host fills: of computed ones, of supervised ones. */
static ir_value *
listed(ir_builder *b, ir_value *keys, ir_sym list)
{
    ir_attr axis = ir_attr_i(IR_ATTR_axis, 0);
    ir_value *arg[2] = {
        as(b, keys, 1, (int64_t[]){keys->type->dim[0] * keys->type->dim[1]}),
        input(b->m, "row")};
    arg[0] = ir_emit(b, IR_OP_gather, "keys", 2, arg, 1, &axis, NULL);
    if (list == IR_ROWS)
        return arg[0];
    arg[1] = input(b->m, "sup");
    return ir_emit(b, IR_OP_gather, "keys", 2, arg, 1, &axis, NULL);
}

/* How rows of x are told apart. */
typedef enum rows {
    OTHERS,
    TOKENS,   /* [B,S,*] */
    FLAT,     /* [B*S,*] */
    COMPUTED, /* [rows,*], [sup,*] */
    SAMPLES,  /* [B,*], [B,1,*] */
    HEADS     /* [B,H,S,*], [B*H,S,*] */
} rows;

static rows
rows_of(const ir_value *keys, const ir_type *x, int64_t *heads)
{
    int64_t batch = keys->type->dim[0], seq = keys->type->dim[1];
    int n = x->rank - 1;
    const int64_t *d = x->dim;
    if (n == 1 && x->sym[0])
        return COMPUTED;
    if (n == 2 && d[0] == batch && d[1] == seq)
        return TOKENS;
    if ((n == 1 || (n == 2 && d[1] == 1)) && d[0] == batch)
        return SAMPLES;
    if (n == 1)
        return d[0] == batch * seq ? FLAT : OTHERS;
    if (n == 3 && d[0] == batch && d[2] == seq)
        *heads = d[1];
    else if (n == 2 && d[1] == seq && d[0] % batch == 0)
        *heads = d[0] / batch;
    return *heads > 0 && *heads <= HEADS_MAX ? HEADS : OTHERS;
}

bool
ir_drop_keys_fit(const ir_value *keys, const ir_type *x)
{
    int64_t heads = 0;
    return x->rank > 1 && rows_of(keys, x, &heads) != OTHERS;
}

ir_value *
ir_drop_keys_of(ir_builder *b, ir_value *keys, const ir_type *x)
{
    int64_t batch = keys->type->dim[0], heads = 0;
    const ir_type *first = ir_type_get(b->m->ctx, IR_I64, 2, (int64_t[]){batch, 1});
    ir_attr axis = ir_attr_i(IR_ATTR_axis, 1);
    int n = x->rank - 1;
    switch (ir_drop_keys_fit(keys, x) ? rows_of(keys, x, &heads) : OTHERS) {
    case TOKENS:
        return keys;
    case FLAT:
        return as(b, keys, n, x->dim);
    case COMPUTED:
        return listed(b, keys, x->sym[0]);
    case SAMPLES:
        keys = ir_emit(b, IR_OP_slice, "keys", 1, &keys, 1, &axis, first);
        return as(b, keys, n, x->dim);
    case HEADS:
        return as(b, of_heads(b, keys, heads), n, x->dim);
    default:
        return NULL;
    }
}

int64_t
ir_drop_sites(const ir_module *m)
{
    int64_t n = 0;
    for (const ir_op *op = m->step ? ir_first_op(m->step) : NULL; op;
         op = ir_next_op(op))
        if (ir_attr_get(op, IR_ATTR_p) && ir_attr_int(op, IR_ATTR_site, 0) >= n)
            n = ir_attr_int(op, IR_ATTR_site, 0) + 1;
    return n;
}
