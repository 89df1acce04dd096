/* fuse.c -- pass fuse: what one kernel can do in one go becomes one op.
 *
 *     %o = linear %a, $w : bf16[R,H]
 *     %o.f32 = cast %o : f32[R,H]               ->  %y = linear_add %x, %a, $w : f32[R,H]
 *     %y = add %x, %o.f32
 *
 *     %h = linear %x, $w, $b
 *     %a = gelu_tanh %h                         ->  %a, %h = linear_gelu %x, $w, $b
 *
 *     %a.d = linear %y.d, $p {tb=1}
 *     %h.d = gelu_tanh_d %a.d, %h               ->  %h.d = linear_dgelu %y.d, $p, %h {tb=1}
 *     $w.d = linear_dw %x, %h.d
 *     $b.d = reduce_sum %h.d {axes=[0]}         ->  $w.d, $b.d = linear_dwb %x, %h.d
 *
 *     %q.l = lora_add %q, %t, $B {by=2}         ->  %n = linear %t, $B {tb=1, alpha=2}
 *         where %q = linear %x, $w                  %q.l = linear_add %n, %x, $w
 *
 *     %q.r = rotary %q, %cos, %sin {heads=4}
 *     %k.r = rotary %k, %cos, %sin {heads=2}    ->  %q.r, %k.r = rotary2 %q, %k, %cos, %sin
 *                                                       {heads=4, kv_heads=2}
 *     $w.d = rmsnorm_dw %d, %x, %r
 *     %x.d = rmsnorm_dx %d, %x, $w, %r          ->  %s, $w.d, %s.bf16 = rmsnorm_grad %d, %x, $w,
 *     %s = add %g, %x.d                                 %r, %g {wgrad=1, to="bf16"}
 *     %s.bf16 = cast %s
 *
 * Each saves kernels and the memory traffic between them; sums are rounded once less. It runs
 * behind grad, so that no gradient rule knows these ops. Elementwise ops then move next to
 * those that they can share a kernel with (fuse_move.c). Products are in fuse_product.c.
 */
#include "fuse_int.h"

ir_op *
fuse_first_user(const ir_value *v)
{
    for (ir_op *op = ir_next_op(v->def); op; op = ir_next_op(op))
        for (int i = 0; i < op->narg; i++)
            if (op->arg[i] == v)
                return op;
    return NULL;
}

bool
fuse_unused_before(const ir_op *op, const ir_op *where)
{
    for (const ir_op *o = ir_next_op(op); o && o != where; o = ir_next_op(o))
        for (int i = 0; i < o->narg; i++)
            for (int k = 0; k < op->nres; k++)
                if (o->arg[i] == op->res[k])
                    return false;
    return true;
}

void
fuse_drop(ir_op *op)
{
    if (ir_is_dead(op))
        ir_remove(op);
}

void
fuse_pass_on(ir_value *old, ir_value *with)
{
    ir_func *f = old->def->block->func;
    const char *name = old->name;
    ir_replace_uses(f, old, with);
    ir_rename(f, old, "replaced");
    ir_rename(f, with, name);
}

void
fuse_replace(ir_value *old, ir_value *with)
{
    fuse_pass_on(old, with);
    fuse_drop(old->def);
}

/* ---- rotary positions ---- */

static bool
whole(const ir_op *op)
{
    return op->code == IR_OP_rotary && !ir_attr_int(op, IR_ATTR_start, 0) &&
           !ir_attr_int(op, IR_ATTR_stride, 0);
}

/* The rotary op before op that is of the same attention; NULL: none. */
static ir_op *
partner(const ir_op *op)
{
    if (!whole(op))
        return NULL;
    for (ir_op *o = op->prev; o; o = o->prev) {
        if (whole(o) && o->arg[0]->type->dtype == op->arg[0]->type->dtype &&
            o->arg[1] == op->arg[1] && o->arg[2] == op->arg[2] &&
            ir_attr_int(o, IR_ATTR_inverse, 0) == ir_attr_int(op, IR_ATTR_inverse, 0) &&
            o->arg[0] != op->arg[0] && fuse_unused_before(o, op))
            return o;
        if (o->code == IR_OP_attention || o->code == IR_OP_attention_grad)
            return NULL;
    }
    return NULL;
}

static void
turn_together(ir_op *second)
{
    ir_op *first = partner(second);
    if (!first || first->arg[0]->def == second || second->arg[0]->def == first)
        return;
    bool back = ir_attr_int(second, IR_ATTR_inverse, 0);
    int64_t heads[2] = {ir_attr_int(first, IR_ATTR_heads, 0),
                        ir_attr_int(second, IR_ATTR_heads, 0)};
    int q = heads[1] > heads[0]; /* queries have more heads, or as many */
    ir_op *of[2] = {q ? second : first, q ? first : second};
    ir_value *arg[] = {of[0]->arg[0], of[1]->arg[0], second->arg[1], second->arg[2]};
    ir_attr attr[] = {ir_attr_i(IR_ATTR_heads, heads[q]),
                      ir_attr_i(IR_ATTR_kv_heads, heads[1 - q]),
                      ir_attr_i(IR_ATTR_inverse, back)};
    ir_builder b = ir_at(second);
    ir_op *both =
        ir_insert(&b, IR_OP_rotary2, NULL, 4, arg, back ? 3 : 2, attr, NULL, 2);
    for (int i = 0; i < 2; i++)
        fuse_replace(of[i]->res[0], both->res[i]);
}

/* ---- gradients of norms ---- */

/* The op of this code that reads the same dy and x as dx, above or below it in its block. */
static ir_op *
weight_gradient(const ir_op *dx, ir_opcode code)
{
    IR_FOREACH_OP (op, dx->block)
        if (op->code == code && op->arg[0] == dx->arg[0] && op->arg[1] == dx->arg[1])
            return op;
    return NULL;
}

/* The cast of v to a low type that stands first behind it; NULL: none. */
static ir_op *
low_copy(const ir_value *v)
{
    ir_op *op = v->nuse ? fuse_first_user(v) : NULL;
    for (; op; op = ir_next_op(op))
        if (op->code == IR_OP_cast && op->arg[0] == v) {
            ir_dtype d = op->res[0]->type->dtype;
            return d == IR_BF16 || d == IR_F16 ? op : NULL;
        }
    return NULL;
}

/* The add of dx's result, which nothing else uses, to what the stream's gradient was. */
static ir_op *
stream_add(const ir_op *dx)
{
    ir_value *v = dx->res[0];
    ir_op *op = v->nuse == 1 ? fuse_first_user(v) : NULL;
    bool is = op && op->code == IR_OP_add && op->block == dx->block &&
              op->arg[0]->type == v->type && op->arg[1]->type == v->type;
    return is ? op : NULL;
}

/* What is known of a norm's gradient: dx, and what can be had with it. */
typedef struct norm_parts {
    ir_op *dx, *dw, *add, *low; /* NULL but for dx: it is not there */
} norm_parts;

static norm_parts
parts_of(ir_op *dx)
{
    bool centred = dx->code == IR_OP_layernorm_dx;
    norm_parts p = {.dx = dx, .add = stream_add(dx)};
    ir_op *at = p.add ? p.add : dx;
    p.dw = weight_gradient(dx, centred ? IR_OP_layernorm_dwb : IR_OP_rmsnorm_dw);
    if (p.dw && !(ir_op_before(p.dw, at) && fuse_unused_before(p.dw, at)))
        p.dw = NULL;
    p.low = low_copy(at->res[0]);
    return p;
}

/* The op that computes them all, before `at`. */
static ir_op *
whole_norm(ir_module *m, const norm_parts *p, ir_op *at)
{
    bool centred = p->dx->code == IR_OP_layernorm_dx;
    ir_builder b = ir_at(at);
    ir_value *arg[6];
    ir_attr attr[2];
    int n = 0, nattr = 0;
    for (int i = 0; i < p->dx->narg; i++)
        arg[n++] = p->dx->arg[i];
    if (p->add)
        arg[n++] = p->add->arg[p->add->arg[0] == p->dx->res[0]];
    if (p->dw)
        attr[nattr++] = ir_attr_i(IR_ATTR_wgrad, 1);
    if (p->low) {
        ir_dtype d = p->low->res[0]->type->dtype;
        attr[nattr++] = ir_attr_s(IR_ATTR_to, ef_intern(m->ctx, ir_dtypes[d].name));
    }
    b.loc = p->dx->loc;
    return ir_insert(&b, centred ? IR_OP_layernorm_grad : IR_OP_rmsnorm_grad, NULL, n,
                     arg, nattr, attr, NULL, 1 + (p->dw ? p->dw->nres : 0) + !!p->low);
}

static void
whole_gradient(ir_module *m, ir_op *dx)
{
    norm_parts p = parts_of(dx);
    ir_op *at = p.add ? p.add : dx, *all;
    int r = 1;
    if (!p.dw && !p.add && !p.low)
        return;
    all = whole_norm(m, &p, at);
    for (int i = 0, n = p.dw ? p.dw->nres : 0; i < n; i++)
        fuse_pass_on(p.dw->res[i], all->res[r++]);
    if (p.dw)
        fuse_drop(p.dw);
    if (p.low)
        fuse_replace(p.low->res[0], all->res[r]);
    fuse_replace(at->res[0], all->res[0]);
    if (p.add)
        fuse_drop(dx);
}

static void
fuse_func(ir_module *m, ir_func *f, ef_arena *scratch)
{
    EF_VEC(ir_op *) norm = {0}; /* what follows them vanishes, too */
    IR_FOREACH_BLOCK (b, f)
        IR_FOREACH_OP (op, b)
            if (op->code == IR_OP_layernorm_dx || op->code == IR_OP_rmsnorm_dx)
                ef_push(scratch, norm, op);
    for (int i = 0; i < norm.n; i++)
        whole_gradient(m, norm.at[i]);
    IR_FOREACH_BLOCK (b, f)
        IR_FOREACH_OP (op, b) {
            if (op->code == IR_OP_rotary)
                turn_together(op);
            else
                fuse_product(op);
        }
    fuse_move(f);
}

/* Needs bwd blocks. */
bool
pass_fuse(pass_ctx *pc)
{
    if (pc->m->step)
        fuse_func(pc->m, pc->m->step, pc->scratch);
    if (pc->m->eval)
        fuse_func(pc->m, pc->m->eval, pc->scratch);
    return true;
}
