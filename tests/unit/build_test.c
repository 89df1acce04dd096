/* build_test.c -- making and rewriting modules. */
#include "test.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ir/ir.h"
#include "said.h"

/* A module with one function, one block and two arguments. */
typedef struct bench {
    said s;
    ir_module *m;
    ir_func *f;
    ir_builder b;
    const ir_type *t; /* f32[4] */
    ir_value *x, *y;
} bench;

static void
bench_open(bench *k)
{
    said_open(&k->s);
    k->m = ir_module_new(k->s.ctx);
    k->f = ir_func_new(k->m, "step");
    ir_unit_new(k->m, "u");
    k->b = ir_end(ir_block_new(k->f, "b", IR_FWD, 0), "/node");
    k->t = ir_type_get(k->s.ctx, IR_F32, 1, (int64_t[]){4});
    k->x = ir_arg_new(k->f, "x", k->t);
    k->y = ir_arg_new(k->f, "y", k->t);
}

static void
bench_close(bench *k)
{
    ir_module_free(k->m);
    said_close(&k->s);
}

static void
ret(bench *k, ir_value *v)
{
    ir_builder end = ir_end(k->f->last, NULL);
    ir_insert(&end, IR_OP_ret, NULL, v != NULL, &v, 0, NULL, NULL, 0);
}

TEST(ops_go_where_the_builder_points)
{
    bench k;
    bench_open(&k);
    ir_value *a = ir_ew2(&k.b, IR_OP_add, "a", k.x, k.y);
    ir_value *c = ir_ew1(&k.b, IR_OP_exp, "c", a);
    ir_builder before = ir_at(c->def), after = ir_after(a->def);
    ir_value *b0 = ir_ew1(&after, IR_OP_neg, NULL, a);
    ir_value *b1 = ir_ew1(&before, IR_OP_neg, "b1", a);
    ret(&k, c);
    CHECK(k.b.block->first == a->def && a->def->next == b0->def);
    CHECK(b0->def->next == b1->def && b1->def->next == c->def);
    CHECK_STR(b0->name, "neg");
    CHECK_STR(b1->def->loc, "/node");
    CHECK(c->def->prev == b1->def && c->def->next == k.b.block->last);
    CHECK(ir_next_op(a->def) == b0->def && !ir_next_op(k.b.block->last));
    CHECK(ir_op_before(a->def, c->def) && !ir_op_before(c->def, a->def));
    CHECK(!ir_op_before(a->def, a->def));
    CHECK(ir_verify(k.m) == 0);
    bench_close(&k);
}

TEST(uses_are_counted)
{
    bench k;
    bench_open(&k);
    ir_value *a = ir_ew2(&k.b, IR_OP_add, "a", k.x, k.x);
    ir_value *b = ir_ew1(&k.b, IR_OP_neg, "b", a);
    CHECK(k.x->nuse == 2 && a->nuse == 1 && b->nuse == 0);
    ir_set_arg(a->def, 1, k.y);
    CHECK(k.x->nuse == 1 && k.y->nuse == 1);
    ir_set_arg(a->def, 1, k.y);
    CHECK(k.y->nuse == 1);
    ret(&k, b);
    ir_add_arg(k.m, k.b.block->last, a);
    CHECK(a->nuse == 2 && k.b.block->last->narg == 2);
    CHECK(ir_verify(k.m) == 0);
    bench_close(&k);
}

TEST(uses_are_replaced)
{
    bench k;
    bench_open(&k);
    ir_value *a = ir_ew1(&k.b, IR_OP_neg, "a", k.x);
    ir_value *b = ir_ew2(&k.b, IR_OP_add, "b", a, k.x);
    ir_value *c = ir_ew2(&k.b, IR_OP_mul, "c", b, k.x);
    ir_replace_uses_after(b->def, k.x, k.y);
    CHECK(a->def->arg[0] == k.x && b->def->arg[1] == k.x && c->def->arg[1] == k.y);
    ir_replace_uses(k.f, k.x, k.y);
    CHECK(k.x->nuse == 0 && k.y->nuse == 3);
    ir_replace_uses(k.f, b, b);
    CHECK(b->nuse == 1);
    ir_replace_uses(k.f, b, a);
    CHECK(ir_is_dead(b->def) && !ir_is_dead(a->def));
    ir_remove(b->def);
    CHECK(a->def->next == c->def && c->def->prev == a->def && a->nuse == 1);
    ret(&k, c);
    CHECK(!ir_is_dead(k.b.block->last));
    CHECK(ir_verify(k.m) == 0);
    bench_close(&k);
}

TEST(a_removed_op_gives_its_name_back)
{
    bench k;
    bench_open(&k);
    ir_value *a = ir_ew1(&k.b, IR_OP_neg, "a", k.x);
    ir_value *b = ir_ew1(&k.b, IR_OP_exp, "a", k.x);
    CHECK_STR(b->name, "a.1");
    ret(&k, b);
    ir_remove(a->def);
    ir_rename(k.f, b, "a");
    CHECK_STR(b->name, "a");
    CHECK_STR(ir_arg_new(k.f, "a.1", k.t)->name, "a.1");
    CHECK(ir_verify(k.m) == 0);
    bench_close(&k);
}

TEST(ops_move_across_blocks)
{
    bench k;
    bench_open(&k);
    ir_value *a = ir_ew1(&k.b, IR_OP_neg, "a", k.x);
    ir_block *second = ir_block_new(k.f, "b", IR_FWD, 0);
    CHECK_STR(second->name, "b.1");
    ir_builder end = ir_end(second, NULL);
    ir_value *c = ir_ew1(&end, IR_OP_exp, "c", k.y);
    ret(&k, c);
    CHECK(ir_next_op(a->def) == c->def && ir_op_before(a->def, c->def));
    ir_move_before(c->def, a->def);
    CHECK(c->def->block == a->def->block && second->first == second->last);
    ir_move_before(c->def, c->def);
    ir_move_before(a->def, c->def);
    CHECK(k.f->first->first == a->def && k.f->first->last == c->def);
    CHECK(ir_verify(k.m) == 0);
    bench_close(&k);
}

TEST(attributes_are_sorted_and_copied)
{
    bench k;
    bench_open(&k);
    const ir_type *m = ir_type_get(k.s.ctx, IR_F32, 2, (int64_t[]){2, 3});
    ir_value *v = ir_const(&k.b, "m", m, 1);
    int64_t axes[] = {1};
    ir_attr attr[] = {ir_attr_i(IR_ATTR_keep, 1), ir_attr_l(IR_ATTR_axes, 1, axes)};
    ir_value *r = ir_emit(&k.b, IR_OP_reduce_sum, "r", 1, &v, 2, attr, NULL);
    axes[0] = 7;
    CHECK(r->def->attr[0].key == IR_ATTR_axes && r->def->attr[0].u.l[0] == 1);
    CHECK(ir_attr_int(r->def, IR_ATTR_keep, 0) == 1);
    CHECK(ir_attr_int(r->def, IR_ATTR_start, -5) == -5);
    ir_attr_set(k.m, r->def, ir_attr_i(IR_ATTR_keep, 0));
    ir_attr_set(k.m, r->def, ir_attr_i(IR_ATTR_start, 3));
    ir_attr_set(k.m, r->def, ir_attr_i(IR_ATTR_axis, 2));
    CHECK(r->def->nattr == 4 && r->def->attr[0].key == IR_ATTR_axis);
    for (int i = 1; i < 4; i++)
        CHECK(r->def->attr[i].key > r->def->attr[i - 1].key);
    ir_attr_remove(r->def, IR_ATTR_axes);
    ir_attr_remove(r->def, IR_ATTR_eps);
    CHECK(r->def->nattr == 3 && !ir_attr_get(r->def, IR_ATTR_axes));
    CHECK(ir_attr_num(v->def, IR_ATTR_value, 0) == 1.0);
    bench_close(&k);
}

TEST(a_check_says_what_is_wrong)
{
    bench k;
    bench_open(&k);
    const ir_type *m = ir_type_get(k.s.ctx, IR_F32, 1, (int64_t[]){3});
    ir_value *arg[] = {k.x, ir_const(&k.b, "c", m, 1)};
    CHECK(!ir_check(k.m, IR_OP_add, 2, (ir_value *[]){k.x, k.y}, 0, NULL, NULL));
    const char *why = ir_check(k.m, IR_OP_add, 2, arg, 0, NULL, NULL);
    NEED(why != NULL);
    CHECK(strstr(why, "operand 1 is f32[3], expected") != NULL);
    CHECK(ir_check(k.m, IR_OP_reshape, 1, arg, 0, NULL, m) != NULL);
    CHECK(ir_check(k.m, IR_OP_reshape, 1, arg, 0, NULL, NULL) != NULL);
    ir_attr twice[] = {ir_attr_f(IR_ATTR_value, 1), ir_attr_f(IR_ATTR_value, 2)};
    CHECK(ir_check(k.m, IR_OP_const, 0, NULL, 2, twice, m) != NULL);
    CHECK(k.x->nuse == 0 && k.b.block->first == k.b.block->last);
    bench_close(&k);
}

TEST(building_a_wrong_op_is_a_bug_of_ours)
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        NEED(freopen("/dev/null", "w", stderr) != NULL);
        bench k;
        bench_open(&k);
        ir_value *v = ir_const(&k.b, "c", ir_type_get(k.s.ctx, IR_I64, 0, NULL), 1);
        ir_ew2(&k.b, IR_OP_add, "a", k.x, v);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 70);
}

TEST(several_results)
{
    bench k;
    bench_open(&k);
    ir_value *arg[] = {k.x, k.y, k.y};
    ir_attr eps = ir_attr_f(IR_ATTR_eps, 1e-5);
    ir_op *op = ir_insert(&k.b, IR_OP_layernorm, "n", 3, arg, 1, &eps, NULL, -1);
    CHECK(op->nres == 3);
    CHECK_STR(op->res[0]->name, "n");
    CHECK_STR(op->res[2]->name, "n.2");
    CHECK(op->res[0]->type == k.t && op->res[1]->type->rank == 0);
    CHECK(op->res[1]->def == op);
    bench_close(&k);
}

TEST(users_are_listed_in_order)
{
    bench k;
    bench_open(&k);
    ir_value *a = ir_ew2(&k.b, IR_OP_add, "a", k.x, k.x);
    ir_value *b = ir_ew2(&k.b, IR_OP_add, "b", k.x, a);
    ret(&k, b);
    ef_arena *scratch = ef_arena_new();
    ir_uses *uses = ir_uses_of(k.f, scratch);
    const ir_uselist *of_x = ir_users(uses, k.x);
    CHECK(of_x->op.n == 3 && of_x->op.at[0] == a->def && of_x->op.at[2] == b->def);
    CHECK(ir_users(uses, k.y)->op.n == 0);
    ef_arena_free(scratch);
    bench_close(&k);
}

TEST(constants_are_seen)
{
    bench k;
    bench_open(&k);
    const ir_type *one = ir_type_get(k.s.ctx, IR_F32, 2, (int64_t[]){1, 1});
    double v = 0;
    CHECK(ir_is_const_scalar(ir_const(&k.b, "c", one, 2.5), &v) && v == 2.5);
    CHECK(!ir_is_const_scalar(ir_const(&k.b, "c", k.t, 2.5), &v));
    CHECK(!ir_is_const_scalar(k.x, &v));
    double three = 3;
    ir_param *p = ir_param_new(k.m, "p", one, IR_CONST, 0);
    p->init = IR_INIT_VALUES;
    p->values = &three;
    CHECK(ir_is_const_scalar(p->value, &v) && v == 3);
    p->cls = IR_TRAIN;
    CHECK(!ir_is_const_scalar(p->value, &v));
    bench_close(&k);
}

TEST(params_have_names_and_gradients)
{
    bench k;
    bench_open(&k);
    ir_param *w = ir_param_new(k.m, "a weight", k.t, IR_TRAIN, 0);
    ir_param *g = ir_param_new(k.m, "a_weight.grad", k.t, IR_GRAD, 0);
    CHECK(!ir_grad_of(k.m, w));
    g->of = w;
    CHECK(ir_grad_of(k.m, w) == g && !ir_grad_of(k.m, g));
    CHECK(ir_param_by_name(k.m, "a_weight") == w && !ir_param_by_name(k.m, "nope"));
    CHECK(w->offset == -1);
    ir_param_unlink(k.m, g);
    CHECK(k.m->params.n == 1 && !ir_param_by_name(k.m, "a_weight.grad"));
    CHECK_STR(ir_param_new(k.m, "a_weight.grad", k.t, IR_GRAD, 0)->value->name,
              "a_weight.grad");
    bench_close(&k);
}

TEST(meta_is_kept_in_order)
{
    bench k;
    bench_open(&k);
    ir_meta_set(k.m, "task", "mlm");
    ir_meta_set(k.m, "batch", "12");
    ir_meta_set(k.m, "task", "seq-cls");
    CHECK(k.m->meta.n == 2);
    CHECK_STR(ir_meta_get(k.m, "task"), "seq-cls");
    CHECK(ir_meta_int(k.m, "batch", -1) == 12 && ir_meta_int(k.m, "seq", -1) == -1);
    CHECK(!ir_meta_get(k.m, "seq"));
    bench_close(&k);
}

TEST(forward_blocks_are_cloned)
{
    bench k;
    bench_open(&k);
    ir_param *w = ir_param_new(k.m, "w", k.t, IR_TRAIN, 0);
    ir_value *a = ir_ew2(&k.b, IR_OP_mul, "a", k.x, w->value);
    ir_block *bwd = ir_block_new(k.f, "bwd", IR_BWD, 0);
    ir_builder end = ir_end(bwd, NULL);
    ir_value *d = ir_ew1(&end, IR_OP_neg, "d", a);
    ret(&k, d);
    ef_map map = {0};
    ir_func *eval = ir_clone_fwd(k.f, "eval", &map);
    CHECK(k.m->eval == eval && eval->args.n == 2 && eval->first == eval->last);
    ir_value *copy = ef_map_get(&map, a);
    NEED(copy != NULL);
    CHECK(copy != a && copy->type == a->type && copy->def->arg[1] == w->value);
    CHECK_STR(copy->name, "a");
    CHECK_STR(copy->def->loc, "/node");
    CHECK(copy->def->arg[0] == eval->args.at[0] && w->value->nuse == 2);
    ir_builder eend = ir_end(eval->last, NULL);
    ir_insert(&eend, IR_OP_ret, NULL, 1, &copy, 0, NULL, NULL, 0);
    CHECK(ir_verify(k.m) == 0);
    bench_close(&k);
}

/* Building must stay linear: every op here wants the same name. */
TEST(a_graph_of_100000_ops)
{
    enum { N = 100000 };
    bench k;
    bench_open(&k);
    clock_t start = clock();
    ir_value *v = k.x;
    for (int i = 0; i < N; i++)
        v = ir_ew2(&k.b, IR_OP_add, "node", v, k.y);
    ret(&k, v);
    CHECK_STR(v->name, "node.99999");
    CHECK(ir_verify(k.m) == 0);
    ef_buf text = {.arena = k.m->arena};
    ir_print(k.m, &text);
    ir_module *again = ir_parse(k.s.ctx, "big.ir", text.s);
    NEED(again != NULL);
    ir_module_free(again);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK(seconds < 20); /* well below a second without sanitizers */
    bench_close(&k);
}
