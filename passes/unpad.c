/* unpad.c -- pass unpad: no computing of padding.
 *
 *     %x = embed $wte, %ids : f32[4,8,16]        %ids.flat = reshape %ids : i64[32]
 *     %y = linear %x, $w : f32[4,8,16]      ->   %ids.rows = gather %ids.flat, %row : i64[rows:32]
 *     %loss, .. = head_ce %y, $v, %targets       %x = embed $wte, %ids.rows : f32[rows:32,16]
 *                                                %x.sup = gather %x, %sup : f32[sup:32,16]
 *                                                %y = linear %x.sup, $w : f32[sup:32,16]
 *                                                %loss, .. = head_ce %y, $v, %targets
 *
 * Where the graph allows it (unpad_look.c), a batch is a list of the rows that are real instead
 * of [B,S]: %row says which they are, %offsets where each sample begins, %position where in its
 * sample each stands. What lies behind the last attention is only computed for rows that the
 * loss reads: the supervised ones, %sup, or one of each sample, %pooled. Sums over positions,
 * of a mean, add the rows of each sample. The trainer fills these arguments; rows and sup take
 * one of a few sizes, listed in meta sizes.rows, sizes.sup.
 */
#include <inttypes.h>
#include <string.h>

#include "unpad_int.h"

typedef struct rows {
    unpad u;
    ir_value *row, *offsets, *position;
    ir_value *ends; /* %sup or %pooled */
    ir_value *ones; /* a mask that hides nothing, made when it is needed */
    ef_map by_row, by_position, by_end; /* ir_value* -> its rows */
} rows;

/* ---- types ---- */

/* t with its leading dimensions replaced by one that has the size of `like`. */
static const ir_type *
with_rows(ef_ctx *ctx, const ir_type *t, int lead, const ir_type *like)
{
    ir_type r = {.dtype = t->dtype, .rank = 1};
    r.dim[0] = like->dim[0];
    r.sym[0] = like->sym[0];
    for (int i = lead; i < t->rank; i++) {
        r.dim[r.rank] = t->dim[i];
        r.sym[r.rank++] = t->sym[i];
    }
    return ir_type_intern(ctx, &r);
}

static const ir_type *
fixed(ef_ctx *ctx, const ir_type *t, int drop, int64_t first)
{
    int64_t dim[IR_MAX_RANK];
    int rank = 0;
    if (first)
        dim[rank++] = first;
    for (int i = drop; i < t->rank; i++)
        dim[rank++] = t->dim[i];
    return ir_type_get(ctx, t->dtype, rank, dim);
}

/* ---- getting in ---- */

static ir_builder
behind(const rows *r, const ir_value *v)
{
    return v->def ? ir_after(v->def) : ir_at(ir_first_op(r->u.f));
}

static ir_value *
as_type(ir_builder *b, ir_value *v, const ir_type *t, const char *suffix)
{
    const char *name = ef_internf(b->m->ctx, "%s.%s", v->name, suffix);
    return v->type == t ? v : ir_emit(b, IR_OP_reshape, name, 1, &v, 0, NULL, t);
}

/* Rows `index` of v, seen as `flat`. */
static ir_value *
pick(rows *r, ef_map *made, ir_value *v, const ir_type *flat, ir_value *index,
     const char *suffix)
{
    ir_value *got = ef_map_get(made, v);
    if (got)
        return got;
    ir_builder b = behind(r, v);
    ir_value *from = as_type(&b, v, flat, "flat");
    ir_attr axis = ir_attr_i(IR_ATTR_axis, 0);
    const char *name = ef_internf(r->u.m->ctx, "%s.%s", v->name, suffix);
    got =
        ir_emit(&b, IR_OP_gather, name, 2, (ir_value *[]){from, index}, 1, &axis, NULL);
    ef_map_set(r->u.pc->scratch, made, v, got);
    return got;
}

/* Rows of a padded value, [B,S,..] or [B*S,..]. */
static ir_value *
padded(rows *r, ir_value *v, int lead)
{
    const ir_type *flat = fixed(r->u.m->ctx, v->type, lead, r->u.batch * r->u.seq);
    return pick(r, &r->by_row, v, flat, r->row, "rows");
}

/* Operand i of op, which is aligned to `rank` dimensions of which `lead` lead. */
static void
get_in(rows *r, ir_op *op, int i, int rank, int lead)
{
    ef_ctx *ctx = r->u.m->ctx;
    ir_value *v = op->arg[i];
    if (unpad_lead(&r->u, v) || v->type->sym[0])
        return;
    int extra = v->type->rank - (rank - lead); /* of its leading dimensions */
    switch (unpad_entry_of(&r->u, v, rank, lead)) {
    case ENTRY_POSITION:
        v = pick(r, &r->by_position, v, fixed(ctx, v->type, extra, r->u.seq),
                 r->position, "rows");
        break;
    case ENTRY_ROW:
        v = padded(r, v, extra);
        break;
    default:
        if (extra > 0) {
            ir_builder b = behind(r, v);
            v = as_type(&b, v, fixed(ctx, v->type, extra, 0), "alike");
        }
    }
    ir_set_arg(op, i, v);
}

/* ---- ops ---- */

/* The list from its entry `first` on, each less by `by`. */
static void
shift_list(rows *r, ir_op *op, ir_attr_key key, int first, int by)
{
    const ir_attr *a = ir_attr_get(op, key);
    int64_t list[IR_MAX_RANK];
    int n = 0;
    for (int i = first; a && i < a->n; i++)
        list[n++] = a->u.l[i] - by;
    if (a)
        ir_attr_set(r->u.m, op, ir_attr_l(key, n, list));
}

/* Attributes that count dimensions: `by` of them have gone in front. */
static void
shift_axes(rows *r, ir_op *op, int by)
{
    if (!by)
        return;
    shift_list(r, op, IR_ATTR_axes, 0, by);
    shift_list(r, op, IR_ATTR_perm, by, by);
    if (ir_attr_get(op, IR_ATTR_axis))
        ir_attr_set(r->u.m, op,
                    ir_attr_i(IR_ATTR_axis, ir_attr_int(op, IR_ATTR_axis, 0) - by));
}

static ir_value *
all_keys(rows *r)
{
    ir_builder b = ir_at(ir_first_op(r->u.f));
    const ir_type *t = ir_type_with(r->u.m->ctx, r->row->type, IR_I64);
    if (!r->ones)
        r->ones = ir_const(&b, "keys.all", t, 1);
    return r->ones;
}

/* The same op on rows, with mask, first rows of samples and positions. */
static void
attention(rows *r, ir_op *op)
{
    bool drops = ir_attr_get(op, IR_ATTR_p);
    int plain = op->narg - 2 * drops, n = 3;
    ir_value *arg[8] = {op->arg[0], op->arg[1], op->arg[2]};
    arg[n++] = plain > 3 ? padded(r, op->arg[3], 2) : all_keys(r);
    arg[n++] = r->offsets;
    arg[n++] = r->position;
    if (drops) {
        arg[n++] = padded(r, op->arg[plain], 2);
        arg[n++] = op->arg[plain + 1];
    }
    ir_builder b = ir_at(op);
    const char *name[2] = {op->res[0]->name, op->res[1]->name};
    ir_op *new = ir_insert(&b, op->code, name[0], n, arg, op->nattr, op->attr, NULL, 2);
    for (int i = 0; i < 2; i++)
        ir_replace_uses(r->u.f, op->res[i], new->res[i]);
    ef_map_set(r->u.pc->scratch, &r->u.lead, new->res[0], (void *)(intptr_t)2);
    ir_remove(op);
    for (int i = 0; i < 2; i++)
        ir_rename(r->u.f, new->res[i], name[i]);
}

/* slice of one position: the rows that %pooled says. */
static void
pin(rows *r, ir_op *op)
{
    ir_value *x = op->arg[0], *y = op->res[0];
    ir_value *got = pick(r, &r->by_end, x, x->type, r->ends, "pooled");
    ir_builder b = ir_at(op);
    ir_replace_uses(r->u.f, y, as_type(&b, got, y->type, "pooled"));
    ir_remove(op);
}

/* 1 where a row of x stands behind position 0, else 0, of x's dtype and number of dimensions. */
static ir_value *
behind_first(rows *r, ir_builder *b, const ir_value *x)
{
    ef_ctx *ctx = r->u.m->ctx;
    ir_type t = {.dtype = x->type->dtype, .rank = x->type->rank};
    t.dim[0] = x->type->dim[0], t.sym[0] = x->type->sym[0];
    for (int i = 1; i < t.rank; i++)
        t.dim[i] = 1;
    ir_value *v = r->position;
    v = ir_emit(b, IR_OP_cast, "later", 1, &v, 0, NULL,
                ir_type_with(ctx, v->type, IR_BOOL));
    v = ir_emit(b, IR_OP_cast, "later", 1, &v, 0, NULL,
                ir_type_with(ctx, v->type, t.dtype));
    return as_type(b, v, ir_type_intern(ctx, &t), "wide");
}

/* Sum over positions, to which padding adds nothing: rows behind position 0 are added up by
 * sample, then those at position 0, which are always there, come on top. So what stands behind
 * the last row, where position and row are 0, has no part in it. */
static void
sum(rows *r, ir_op *op)
{
    ef_ctx *ctx = r->u.m->ctx;
    ir_value *x = op->arg[0], *y = op->res[0];
    ir_builder b = ir_at(op);
    ir_attr axis = ir_attr_i(IR_ATTR_axis, 0);
    ir_value *seq =
        ir_const(&b, "seq", ir_type_get(ctx, IR_I64, 0, NULL), (double)r->u.seq);
    ir_value *of[2] = {ir_ew2(&b, IR_OP_mul, "later", x, behind_first(r, &b, x)),
                       ir_ew2(&b, IR_OP_div, "sample", r->row, seq)};
    ir_value *later = ir_emit(&b, IR_OP_gather_grad, "sums", 2, of, 1, &axis,
                              fixed(ctx, x->type, 1, r->u.batch));
    ir_value *first = pick(r, &r->by_end, x, x->type, r->ends, "pooled");
    ir_value *got = ir_ew2(&b, IR_OP_add, "sums", later, first);
    ir_replace_uses(r->u.f, y, as_type(&b, got, y->type, "sums"));
    ir_remove(op);
}

static void
loss(rows *r, ir_op *op)
{
    ef_ctx *ctx = r->u.m->ctx;
    int at = op->code == IR_OP_head_ce ? 2 : 1;
    ir_value *x = op->arg[0], *t = op->arg[at];
    const ir_type *sup = r->ends->type;
    for (; t->def; t = t->def->arg[0]) /* reshapes of what the trainer gives */
        t->type = ir_type_with(ctx, sup, IR_I64);
    t->type = ir_type_with(ctx, sup, IR_I64);
    ir_set_arg(op, 0, pick(r, &r->by_end, x, x->type, r->ends, "sup"));
    op->res[3]->type = ir_type_with(ctx, sup, IR_F32);
    op->res[2]->type = op->code == IR_OP_ce ? op->arg[0]->type : t->type;
}

/* An op of the region whose operands are rows by now, instead of `lead` dimensions. */
static void
rewrite(rows *r, ir_op *op, int lead)
{
    ef_ctx *ctx = r->u.m->ctx;
    int rank = op->res[0]->type->rank;
    if (op->code == IR_OP_embed || op->code == IR_OP_dropout) /* ids, keys */
        ir_set_arg(op, 1, padded(r, op->arg[1], op->arg[1]->type->rank));
    else if (op->code == IR_OP_rotary)
        for (int i = 1; i < 3; i++)
            get_in(r, op, i, 3, 2);
    else if ((pass_is_ew(op) && op->code != IR_OP_const) || op->code == IR_OP_concat)
        for (int i = 0; i < op->narg; i++)
            get_in(r, op, i, rank, lead);
    shift_axes(r, op, lead - 1);
    for (int i = 0; i < op->nres; i++)
        op->res[i]->type = with_rows(ctx, op->res[i]->type,
                                     unpad_lead(&r->u, op->res[i]), r->row->type);
}

static void
rewrite_all(rows *r)
{
    for (ir_op *op = ir_first_op(r->u.f), *next; op; op = next) {
        next = ir_next_op(op);
        const ir_value *from = unpad_operand(&r->u, op);
        int lead = from ? unpad_lead(&r->u, from) : 0;
        bool member = op->nres && unpad_lead(&r->u, op->res[0]);
        if (lead && op->code == IR_OP_attention)
            attention(r, op);
        else if (lead && unpad_is_pin(&r->u, op))
            pin(r, op);
        else if (lead && unpad_is_sum(&r->u, op))
            sum(r, op);
        else if (lead && (op->code == IR_OP_head_ce || op->code == IR_OP_ce))
            loss(r, op);
        else if (member)
            rewrite(r, op, lead ? lead : unpad_lead(&r->u, op->res[0]));
    }
}

/* ---- moving the gathers up ---- */

static bool
is_end(const rows *r, const ir_op *op)
{
    return op->code == IR_OP_gather && op->arg[1] == r->ends;
}

/* Is all that reads op's results in `few`, or takes the rows that the loss reads? */
static bool
read_by_few(const rows *r, const ir_uses *uses, const ef_map *few, const ir_op *op)
{
    if (!(ir_ops[op->code].flags & IR_ROWWISE) || !op->narg ||
        op->res[0]->type->sym[0] != IR_ROWS)
        return false;
    int n = 0;
    for (int i = 0; i < op->nres; i++) {
        const ir_uselist *list = ir_users(uses, op->res[i]);
        n += list->op.n;
        for (int k = 0; k < list->op.n; k++)
            if (!ef_map_has(few, list->op.at[k]) && !is_end(r, list->op.at[k]))
                return false;
    }
    return n > 0;
}

/* Ops whose results only the ends read work on those rows alone. */
static void
narrow(rows *r)
{
    ef_arena *a = r->u.pc->scratch;
    ir_uses *uses = ir_uses_of(r->u.f, a);
    ef_map few = {0};
    for (const ir_block *b = r->u.f->last; b; b = b->prev)
        for (ir_op *op = b->last; op; op = op->prev)
            if (read_by_few(r, uses, &few, op))
                ef_map_set(a, &few, op, op);
    const char *suffix = r->u.losses ? "sup" : "pooled";
    for (ir_op *op = ir_first_op(r->u.f), *next; op; op = next) {
        next = ir_next_op(op);
        if (is_end(r, op) && op->arg[0]->def && ef_map_has(&few, op->arg[0]->def)) {
            ir_replace_uses(r->u.f, op->res[0], op->arg[0]);
            ir_remove(op);
            continue;
        }
        if (!ef_map_has(&few, op))
            continue;
        for (int i = 0; i < op->narg; i++)
            if (op->arg[i]->type->sym[0] == IR_ROWS)
                ir_set_arg(
                    op, i,
                    pick(r, &r->by_end, op->arg[i], op->arg[i]->type, r->ends, suffix));
        for (int i = 0; i < op->nres; i++)
            op->res[i]->type =
                with_rows(r->u.m->ctx, op->res[i]->type, 1, r->ends->type);
    }
}

/* ---- the whole ---- */

static ir_value *
argument(rows *r, const char *role, const ir_type *t)
{
    return ir_input_new(r->u.m, role, role, t);
}

static const ir_type *
list_type(ef_ctx *ctx, int64_t n, ir_sym sym)
{
    ir_type t = {.dtype = IR_I64, .rank = 1, .dim = {n}, .sym = {(uint8_t)sym}};
    return ir_type_intern(ctx, &t);
}

/* At most 8 sizes up to n, multiples of 16, each about 4/5 of the next: a batch is rounded up
 * by an eighth on average, wherever it lies. */
static void
put_sizes(ir_module *m, const char *key, int64_t n)
{
    enum { SIZES = 8, UNIT = 16 };
    int64_t size[SIZES] = {n};
    int count = 1;
    for (double want = 0.8 * (double)n; want >= 1 && count < SIZES; want *= 0.8) {
        int64_t s = ((int64_t)want + UNIT - 1) / UNIT * UNIT;
        if (s < size[count - 1])
            size[count++] = s;
    }
    ef_buf b = {.arena = m->arena};
    while (count--)
        ef_putf(&b, b.n ? " %" PRId64 : "%" PRId64, size[count]);
    ir_meta_set(m, key, b.s);
}

/* Is there anything that padding could be left out of? */
static bool
has_attention(const ir_func *f)
{
    for (const ir_op *op = ir_first_op(f); op; op = ir_next_op(op))
        if (op->code == IR_OP_attention)
            return true;
    return false;
}

static void
say_why_not(const unpad *u)
{
    const char *loc = u->stops ? u->stops->loc : NULL;
    ef_report(u->m->ctx, "padding: computed, because of %s%s%s%s: %s",
              u->stops ? ir_ops[u->stops->code].name : "the graph", loc ? " (" : "",
              loc ? loc : "", loc ? ")" : "", u->why);
}

/* Needs the loss; where it can't be applied the module stays as it is, and the report says what
 * stops it. */
bool
pass_unpad(pass_ctx *pc)
{
    ir_module *m = pc->m;
    ef_ctx *ctx = m->ctx;
    rows r = {.u = {.pc = pc, .m = m, .f = m->step}};
    r.u.batch = ir_meta_int(m, "batch", 0);
    r.u.seq = ir_meta_int(m, "seq", 0);
    int64_t n = r.u.batch * r.u.seq;
    if (n < 1 || !unpad_look(&r.u)) {
        if (n > 0 && has_attention(m->step))
            say_why_not(&r.u);
        return true;
    }
    r.row = argument(&r, "row", list_type(ctx, n, IR_ROWS));
    r.offsets = argument(&r, "offsets", list_type(ctx, r.u.batch + 1, IR_FIXED));
    r.position = argument(&r, "position", list_type(ctx, n, IR_ROWS));
    r.ends = r.u.losses ? argument(&r, "sup", list_type(ctx, n, IR_SUP))
                        : argument(&r, "pooled", list_type(ctx, r.u.batch, IR_FIXED));
    rewrite_all(&r);
    narrow(&r);
    put_sizes(m, "sizes.rows", n);
    if (r.u.losses)
        put_sizes(m, "sizes.sup", n);
    else
        ir_meta_set(m, "unpad.pin", ef_printf(m->arena, "%" PRId64, r.u.pin));
    ef_report(ctx,
              "padding: not computed; %" PRId64 " rows at most, behind the last "
              "attention %s",
              n, r.u.losses ? "the supervised ones" : "one of each sample");
    return true;
}
