/* inline_test.c -- local functions: models that call some compute what the same model does
 * without.
 */
#include "fixture.h"

/* A function of the model from statements: inputs and outputs by commas. */
static Onnx__FunctionProto *
function(model *m, const char *name, const char *in, const char *out, const char *text)
{
    MODEL_NEW(m, Onnx__FunctionProto, ONNX__FUNCTION_PROTO__INIT, f);
    MODEL_NEW(m, Onnx__GraphProto, ONNX__GRAPH_PROTO__INIT, g);
    f->name = ef_strdup(m->a, name);
    f->domain = ef_strdup(m->a, "com.example");
    m->s = text;
    model_statements(m, g);
    f->node = g->node;
    f->n_node = g->n_node;
    char *part;
    for (char *s = ef_strdup(m->a, in); (part = strsep(&s, ","));)
        MODEL_PUSH(m, f->input, f->n_input, part);
    for (char *s = ef_strdup(m->a, out); (part = strsep(&s, ","));)
        MODEL_PUSH(m, f->output, f->n_output, part);
    MODEL_PUSH(m, f->opset_import, f->n_opset_import, m->p->opset_import[0]);
    MODEL_PUSH(m, m->p->functions, m->p->n_functions, f);
    return f;
}

/* Node i of f has its attribute `name` from the function's attribute `ref`. */
static void
refer(model *m, Onnx__FunctionProto *f, size_t i, const char *name, const char *ref)
{
    MODEL_NEW(m, Onnx__AttributeProto, ONNX__ATTRIBUTE_PROTO__INIT, a);
    a->name = ef_strdup(m->a, name);
    a->ref_attr_name = ef_strdup(m->a, ref);
    MODEL_PUSH(m, f->node[i]->attribute, f->node[i]->n_attribute, a);
}

static void
begin(fixture *t, const char *text)
{
    model_of(t, 17, text, "b,s");
    t->s.ctx->report = NULL;
    model_output(&t->m, "y");
}

/* The imported module without names: what it computes. */
static const char *
shape_of(fixture *t)
{
    ef_buf b = {.arena = t->s.ctx->arena};
    must_import(t);
    for (ir_op *op = ir_first_op(t->module->step); op; op = ir_next_op(op)) {
        ef_putf(&b, "%s", ir_ops[op->code].name);
        for (int i = 0; i < op->nattr; i++)
            if (ir_attrs[op->attr[i].key].kind != 'l' &&
                ir_attrs[op->attr[i].key].kind != 's')
                ef_putf(&b, " %s=%g", ir_attrs[op->attr[i].key].name,
                        ir_attrs[op->attr[i].key].kind == 'f'
                            ? op->attr[i].u.f
                            : (double)op->attr[i].u.i);
        for (int i = 0; i < op->narg; i++)
            ef_putf(&b, " %s", ir_type_text(t->s.ctx, op->arg[i]->type));
        ef_puts(&b, "\n");
    }
    return b.s;
}

static void
same(fixture *with, const char *plain)
{
    fixture t;
    begin(&t, plain);
    CHECK_STR(shape_of(with), shape_of(&t));
    end(&t);
    end(with);
}

TEST(calls_of_calls)
{
    fixture t;
    begin(&t, "w.weight = f32[4,4] ~3 | /h.0: a = com.example::Twice(x, w.weight) | "
              "/h.1: y = com.example::Twice(a, w.weight)");
    function(&t.m, "Once", "v,k", "r", "t = MatMul(v, k) | r = Relu(t)");
    function(&t.m, "Twice", "v,k", "o",
             "t = com.example::Once(v, k) | o = com.example::Once(t, k)");
    same(&t, "w.weight = f32[4,4] ~3 | a = MatMul(x, w.weight) | b = Relu(a) | "
             "c = MatMul(b, w.weight) | d = Relu(c) | e = MatMul(d, w.weight) | "
             "f = Relu(e) | g = MatMul(f, w.weight) | y = Relu(g)");
}

TEST(attributes_of_the_call_and_defaults)
{
    fixture t;
    begin(&t, "a = com.example::F(x) alpha=0.5 | b = com.example::F(a) | "
              "y = com.example::F(b) axis=1");
    Onnx__FunctionProto *f =
        function(&t.m, "F", "v", "r", "t = Softmax(v) | r = LeakyRelu(t)");
    refer(&t.m, f, 0, "axis", "axis");
    refer(&t.m, f, 1, "alpha", "alpha");
    MODEL_NEW(&t.m, Onnx__AttributeProto, ONNX__ATTRIBUTE_PROTO__INIT, def);
    def->name = ef_strdup(t.m.a, "alpha");
    def->has_type = def->has_f = 1;
    def->type = 1;
    def->f = 0.25F;
    MODEL_PUSH(&t.m, f->attribute_proto, f->n_attribute_proto, def);
    same(&t, "a = Softmax(x) | b = LeakyRelu(a) alpha=0.5 | c = Softmax(b) | "
             "d = LeakyRelu(c) alpha=0.25 | e = Softmax(d) axis=1 | "
             "y = LeakyRelu(e) alpha=0.25");
}

TEST(overloads_are_functions_of_their_own)
{
    fixture t;
    begin(&t, "a = com.example::F(x) | y = com.example::F(a)");
    function(&t.m, "F", "v", "r", "r = Relu(v)");
    function(&t.m, "F", "v", "r", "r = Tanh(v)")->overload = ef_strdup(t.m.a, "2");
    Onnx__GraphProto *g = t.m.p->graph;
    g->node[g->n_node - 1]->overload = ef_strdup(t.m.a, "2");
    same(&t, "a = Relu(x) | y = Tanh(a)");
}

TEST(operands_left_out_and_results_unused)
{
    fixture t;
    begin(&t, "hi = f32[] 0.5 | a, , = com.example::F(x, , hi) | , y, b = "
              "com.example::F(a)");
    function(&t.m, "F", "v,low,high", "r,same,n",
             "r = Clip(v, low, high) | n = Neg(r) | same = Identity(v)");
    same(&t, "hi = f32[] 0.5 | y = Clip(x, , hi)");
}

TEST(results_that_are_inputs)
{
    fixture t;
    begin(&t, "a, b = com.example::F(x) | y = Add(a, b)");
    function(&t.m, "F", "v", "v,r", "r = Relu(v)");
    same(&t, "b = Relu(x) | y = Add(x, b)");
}

TEST(branches_in_functions)
{
    fixture t;
    begin(&t, "c = bool[] 1 | y = com.example::F(x, c)");
    function(
        &t.m, "F", "v,c", "r",
        "z = Neg(v) | r = If(c) then_branch={k = f32[] 3 | p = com.example::G(z) | "
        "q = Mul(p, k) -> q} else_branch={p2 = Neg(z) -> p2}");
    function(&t.m, "G", "v", "r", "r = Exp(v)");
    same(&t, "z = Neg(x) | e = Exp(z) | k = f32[] 3 | y = Mul(e, k)");
}

/* Names in functions may be those of the graph, or begin like what the importer makes. */
TEST(names_do_not_meet)
{
    fixture t;
    begin(&t, "call1/t = Exp(x) | t = com.example::F(call1/t) | y = Add(t, call1/t)");
    function(&t.m, "F", "x", "y", "t = Relu(x) | y = Tanh(t)");
    same(&t, "a = Exp(x) | b = Relu(a) | c = Tanh(b) | y = Add(c, a)");
}

/* Nodes of functions are called after the call, so their weights get their names. */
TEST(scopes_go_through_calls)
{
    fixture t;
    begin(&t, "onnx::MatMul_7 = f32[4,4] ~3 | /h.0/attn: y = com.example::F(x, "
              "onnx::MatMul_7)");
    function(&t.m, "F", "v,k", "r", "/query/MatMul: r = MatMul(v, k)");
    shape_of(&t);
    CHECK(ir_param_by_name(t.module, "h.0.attn.query.weight") != NULL);
    end(&t);
}

TEST(what_is_wrong_with_calls)
{
    fixture t;
    begin(&t, "y = com.example::F(x, x)");
    function(&t.m, "F", "v", "r", "r = Relu(v)");
    CHECK(!model_import(t.s.ctx, &t.m, &t.f));
    CHECK(said_has(&t.s, "function F has 1 inputs and 1 outputs, the call 2 and 1"));
    end(&t);

    begin(&t, "y = com.example::F(x)");
    Onnx__FunctionProto *f = function(&t.m, "F", "v", "r", "r = Relu(v)");
    MODEL_NEW(&t.m, Onnx__OperatorSetIdProto, ONNX__OPERATOR_SET_ID_PROTO__INIT, set);
    set->domain = ef_strdup(t.m.a, "");
    set->has_version = 1;
    set->version = 11;
    f->opset_import[0] = set;
    CHECK(!model_import(t.s.ctx, &t.m, &t.f));
    CHECK(said_has(&t.s, "the function is of opset 11, the model of 17"));
    end(&t);
}
