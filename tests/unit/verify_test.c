/* verify_test.c -- the verifier finds what it promises, and nothing else. */
#include "test.h"

#include "golden.h"
#include "ir/ir.h"
#include "said.h"

/* ---- annotated files: "; error: text" stands on each faulty line ---- */

/* Is "file:LINE:..: error: TEXT [E" in what was said? */
static bool
said_on_line(const char *said_so, int line, const char *text, size_t n)
{
    char head[32];
    snprintf(head, sizeof head, ":%d:", line);
    for (const char *s = said_so; s; s = strchr(s, '\n')) {
        s += *s == '\n';
        const char *error = strstr(s, ": error: "), *end = strchrnul(s, '\n');
        const char *at = strstr(s, head);
        if (error && at && at < error && error < end && !strncmp(error + 9, text, n) &&
            !strncmp(error + 9 + n, " [E", 3))
            return true;
        if (!*end)
            break;
        s = end;
    }
    return false;
}

/* Counts annotations, and complains about those that were not said. */
static int
check_annotations(const char *path, const char *text, const char *said_so)
{
    int line = 1, n = 0;
    for (const char *s = text; *s; line++) {
        size_t len = strcspn(s, "\n");
        const char *note = strstr(s, "; error: ");
        if (note && note < s + len) {
            size_t words = len - (size_t)(note + 9 - s);
            bool ok = said_on_line(said_so, line, note + 9, words);
            if (!ok)
                printf("  %s:%d: not said: %.*s\n", path, line, (int)words, note + 9);
            CHECK(ok);
            n++;
        }
        s += len + (s[len] == '\n');
    }
    return n;
}

TEST(annotated_faults_are_found_and_no_others)
{
    ef_arena *arena = ef_arena_new();
    golden g;
    int files = 0;
    golden_open(&g, "verify/*.ir");
    for (; golden_next(&g, arena); files++) {
        said s;
        said_open(&s);
        s.ctx->file = "v.ir";
        ir_module *m = ir_parse(s.ctx, "v.ir", g.text);
        int n = m ? ir_verify(m) : s.ctx->nerror;
        CHECK(n == s.ctx->nerror);
        int want = check_annotations(g.path, g.text, said_text(&s));
        if (n != want)
            printf("  %s: %d faults, expected %d:\n%s", g.path, n, want, said_text(&s));
        CHECK(n == want && n > 0);
        ir_module_free(m);
        said_close(&s);
    }
    CHECK(files >= 7);
    golden_close(&g);
    ef_arena_free(arena);
}

TEST(good_modules_pass)
{
    ef_arena *arena = ef_arena_new();
    golden g;
    golden_open(&g, "roundtrip/*.ir");
    while (golden_next(&g, arena)) {
        said s;
        said_open(&s);
        ir_module *m = ir_parse(s.ctx, g.path, g.text);
        NEED(m != NULL);
        if (ir_verify(m))
            printf("  %s:\n%s", g.path, said_text(&s));
        CHECK(s.ctx->nerror == 0);
        ir_module_free(m);
        said_close(&s);
    }
    golden_close(&g);
    ef_arena_free(arena);
}

/* ---- damage that text can not express ---- */

static const char sound[] = "efficc-ir 1\nunit 0 \"u\"\n"
                            "param $w : f32[4] train unit=0 zero\n"
                            "func $step(%x : f32[4]) {\n@b: fwd unit=0\n"
                            "  %a = add %x, $w : f32[4]  !\"/a\"\n"
                            "  %c = exp %a : f32[4]  !\"/c\"\n"
                            "@d: fwd unit=0\n"
                            "  %e = neg %c : f32[4]  !\"/e\"\n"
                            "  ret %e\n}\n"
                            "func $eval(%x : f32[4]) {\n@b: fwd unit=0\n"
                            "  %a = add %x, $w : f32[4]\n  ret %a\n}\n";

/* Does the verifier say `words` after `damage`, and nothing before? */
static void
check_damage(void (*damage)(ir_module *), const char *words)
{
    said s;
    said_open(&s);
    ir_module *m = ir_parse(s.ctx, "sound.ir", sound);
    NEED(m != NULL);
    CHECK(ir_verify(m) == 0);
    damage(m);
    CHECK(ir_verify(m) > 0);
    CHECK(said_has(&s, words));
    ir_module_free(m);
    said_close(&s);
}

static ir_op *
op_at(ir_module *m, int i)
{
    ir_op *op = ir_first_op(m->step);
    while (i--)
        op = ir_next_op(op);
    return op;
}

static void
wrong_count(ir_module *m)
{
    op_at(m, 1)->res[0]->nuse = 5;
}

static void
uncounted_param_use(ir_module *m)
{
    m->params.at[0]->value->nuse = 1;
}

static void
same_name(ir_module *m)
{
    op_at(m, 1)->res[0]->name = op_at(m, 0)->res[0]->name;
}

static void
bad_name(ir_module *m)
{
    op_at(m, 1)->res[0]->name = "a b";
}

static void
other_type(ir_module *m)
{
    op_at(m, 1)->res[0]->type = ir_type_get(m->ctx, IR_F32, 1, (int64_t[]){5});
}

static void
no_type(ir_module *m)
{
    op_at(m, 1)->res[0]->type = NULL;
}

static void
used_above(ir_module *m)
{
    op_at(m, 0)->arg[0] = op_at(m, 1)->res[0];
}

static void
of_other_function(ir_module *m)
{
    op_at(m, 0)->arg[0] = m->eval->args.at[0];
}

static void
of_other_op(ir_module *m)
{
    op_at(m, 1)->res[0]->def = op_at(m, 0);
}

static void
broken_chain(ir_module *m)
{
    op_at(m, 1)->prev = NULL;
}

static void
wrong_block(ir_module *m)
{
    op_at(m, 2)->block = m->step->first;
}

static void
no_such_op(ir_module *m)
{
    op_at(m, 1)->code = (ir_opcode)IR_NOPS;
}

static void
no_such_unit(ir_module *m)
{
    m->step->last->unit = 1;
}

static void
no_such_param_unit(ir_module *m)
{
    m->params.at[0]->unit = -1;
}

static void
same_block_name(ir_module *m)
{
    m->step->last->name = m->step->first->name;
}

static void
future_argument(ir_module *m)
{
    m->eval->args.at[0]->type = ir_type_get(m->ctx, IR_FUT, 0, NULL);
}

static void
same_argument_name(ir_module *m)
{
    ir_arg_new(m->eval, "y", m->eval->args.at[0]->type);
    m->eval->args.at[1]->name = m->eval->args.at[0]->name;
}

static void
same_param_name(ir_module *m)
{
    ir_param *p = ir_param_new(m, "v", m->params.at[0]->value->type, IR_FROZEN, 0);
    p->value->name = m->params.at[0]->value->name;
}

static void
unlinked_param(ir_module *m)
{
    m->params.at[0]->value->def = op_at(m, 0);
}

static void
future_param(ir_module *m)
{
    ir_param_new(m, "v", ir_type_get(m->ctx, IR_FUT, 0, NULL), IR_FROZEN, 0);
}

static void
many_results(ir_module *m)
{
    op_at(m, 1)->nres = 5;
    op_at(m, 1)->res = EF_NEWN(m->arena, ir_value *, 5);
    for (int i = 0; i < 5; i++)
        op_at(m, 1)->res[i] = op_at(m, 0)->res[0];
}

static void
stray_block(ir_module *m)
{
    m->step->last->func = m->eval;
}

static void
file_without_path(ir_module *m)
{
    m->params.at[0]->init = IR_INIT_FILE;
}

static void
values_without_values(ir_module *m)
{
    m->params.at[0]->init = IR_INIT_VALUES;
}

TEST(damage_is_found)
{
    check_damage(wrong_count, "%c counts 5 uses, has 1");
    check_damage(uncounted_param_use, "$w counts 1 uses, has 2");
    check_damage(same_name, "exp: result name 'a' is not unique");
    check_damage(bad_name, "exp: result name 'a b' is not made of");
    check_damage(other_type, "exp: result 0 is f32[5], expected f32[4]");
    check_damage(no_type, "exp: result 0 is (none), expected f32[4]");
    check_damage(used_above, "add: operand 0, %c, is not defined above");
    check_damage(of_other_function, "add: operand 0, %x, is not defined above");
    check_damage(of_other_op, "exp: links of result 0 disagree");
    check_damage(broken_chain, "links of op and block @b disagree");
    check_damage(wrong_block, "links of op and block @d disagree");
    check_damage(no_such_op, "does not exist");
    check_damage(no_such_unit, "block @d is of unit 1, expected one of the 1 units");
    check_damage(no_such_param_unit, "$w is in unit -1");
    check_damage(same_block_name, "block name 'b' is not unique");
    check_damage(future_argument, "argument %x of $eval is no plain tensor");
    check_damage(same_argument_name, "argument name 'x' of $eval is not unique");
    check_damage(same_param_name, "parameter name 'w' is not unique");
    check_damage(unlinked_param, "$w: links of value and parameter disagree");
    check_damage(future_param, "$v has no elements");
    check_damage(many_results, "exp: 5 results, more than any op has");
    check_damage(stray_block, "links of block @d and $step disagree");
    check_damage(file_without_path, "$w comes from a file, expected a path");
    check_damage(values_without_values, "$w has literal values, expected them");
}

/* A fault of an op without a line says its node. */
TEST(faults_name_the_onnx_node)
{
    said s;
    said_open(&s);
    ir_module *m = ir_parse(s.ctx, "sound.ir", sound);
    NEED(m != NULL);
    m->lines = (ef_map){0};
    s.ctx->file = "m.onnx";
    other_type(m);
    CHECK(ir_verify(m) > 0);
    CHECK(said_has(&s, "m.onnx: /c: error: exp: result 0 is f32[5]"));
    ir_module_free(m);
    said_close(&s);
}
