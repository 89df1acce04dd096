/* refuse_test.c -- what the importer can not take, and what it says then. */
#include "fixture.h"

/* With outputs y and x. */
static void
begin(fixture *t, int opset, const char *text, const char *dims)
{
    model_of(t, opset, text, dims);
    model_output(&t->m, "y");
    model_output(&t->m, "x");
}

/* The import must fail and say the words, once. */
static void
refused(fixture *t, const char *words)
{
    import_it(t);
    CHECK(t->f != NULL);
    CHECK(t->module == NULL);
    CHECK(said_has(&t->s, words));
}

static void
imported(fixture *t)
{
    if (!import_it(t))
        printf("  %s", said_text(&t->s));
    CHECK(t->module != NULL);
}

/* ---- operators ---- */

TEST(operands_and_attributes)
{
    static const struct {
        int opset;
        const char *text, *words;
    } rows[] = {
        {13, "y = Softmax(x) axis=3", "Softmax: axis 3 is outside of 3 dimensions"},
        {13, "y = Transpose(x) perm=[0,1]",
         "perm has 2 entries, the operand 3 dimensions"},
        {13, "y = Transpose(x) perm=[0,1,1]", "perm is not a permutation"},
        {13, "y = Gelu(x)", "operator Gelu of domain ai.onnx is not supported"},
        {20, "y = Gelu(x) approximate=\"wild\"", "approximate='wild' is not supported"},
        {13, "y = Add(x, x) wild=1", "Add: attribute 'wild' is not supported"},
        {13, "y = Add(x)", "Add: operand 1 is missing"},
        {13, "c = f32[5] ~3 | y = Add(x, c)", "expected a shape that broadcasts"},
        {13, "y = And(x, xb)", "expected bool"},
        {13, "y = Reshape(x, ids)",
         "operand 1 (shape) is i64[2,3], expected a list of integers"},
        {13, "s = i64[1] -1 | v = Reshape(ids, s) | y = Reshape(x, v)",
         "operand 1 (shape) depends on the data"},
        {13, "s = i64[2] -1 -1 | y = Reshape(x, s)", "shape has -1 at place 1"},
        {13, "s = i64[1] 5 | y = Reshape(x, s)", "Reshape:"},
        {13, "s = i64[2] 4611686018427387904 4 | y = Reshape(x, s)", "shape overflows"},
        {13, "s = i64[2] 1099511627776 4 | y = Expand(x, s)", "more than 2^40"},
        {13, "s = i64[9] 1 1 1 1 1 1 1 1 1 | y = Expand(x, s)",
         "more than 8 dimensions"},
        {13, "a = i64[1] 1 | y = Squeeze(x, a)", "dimension 1 has size 3, not 1"},
        {13, "a = i64[2] 0 0 | y = Unsqueeze(x, a)", "axis 0 stands there twice"},
        {13, "s = i64[2] 1 2 | y,z = Split(x, s) axis=2", "the parts are 3, not 4"},
        {13, "s = i64[2] 1 9 | y,z = Split(x, s) axis=2", "the parts are more than 4"},
        {18, "y,z = Split(x) axis=2 num_outputs=3", "num_outputs is not 2"},
        {13, "s = i64[1] 0 | e = i64[2] 1 1 | y = Slice(x, s, e)",
         "2 ends for 1 starts"},
        {13, "s = i64[1] 0 | e = i64[1] 1 | p2 = i64[1] 0 | y = Slice(x, s, e, s, p2)",
         "a step is 0"},
        {13, "i = i64[1] 4 | y = Gather(x, i) axis=2",
         "index 4 is outside of dimension 2, which has 4"},
        {13, "y = Gather(x, p)", "indices are f32[2,3,4]"},
        {13,
         "a = i64[1] -1 | i = Unsqueeze(ids, a) | u = f32[6,4] ~3 | w = f32[16,4] ~3 | "
         "y = ScatterND(w, i, u)",
         "indices depend on the data"},
        {13, "i = i64[1,1] 5 | u = f32[1,3,4] ~3 | y = ScatterND(x, i, u)",
         "an index is outside"},
        {13, "i = i64[1,4] 0 0 0 0 | y = GatherND(x, i)",
         "indices i64[1,4] do not fit"},
        {13, "a = f32[] 0 | b = f32[] 1 | c = f32[] 0 | y = Range(a, b, c)",
         "Range: from 0"},
        {13, "s = f32[2] 1 2 | y = ConstantOfShape(s)",
         "operand 0 (shape) is f32[2], expected a list of integers"},
        {13, "y = Cast(x) to=8", "Cast: type string is not supported"},
        {13, "w = f32[3,4] ~3 | y = Gemm(x, w)", "expected matrices"},
        {13,
         "t = bool[] 1 | k = ReduceMax(ids) keepdims=0 | b = Cast(k) to=9 | "
         "y = If(b) then_branch={yt = Relu(x) -> yt} else_branch={ye = Neg(x) -> ye}",
         "its condition is not constant"},
        {17, "w = f32[3] ~3 | y = LayerNormalization(x, w)", "expected 4 elements"},
        {13, "y = com.example::Relu(x)", "operator Relu of domain com.example"},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        fixture t;
        begin(&t, rows[i].opset, rows[i].text, "b,s");
        refused(&t, rows[i].words);
        CHECK(t.s.ctx->nerror == 1);
        end(&t);
    }
}

TEST(all_unsupported_operators_at_once)
{
    fixture t;
    begin(&t, 17,
          "a = Loop(x) | b = Loop(a) | c = com.microsoft::Sampling(b) | d = Scan(c) | "
          "e = MaxPool(d) | f = Det(e) | g = Hardmax(f) | h = Lrn(g) | unused = "
          "NonZero(x) | "
          "y = Foo(h)",
          "b,s");
    refused(&t, "operator Loop of domain ai.onnx is not supported (opset 17, 2 nodes)");
    CHECK(said_has(&t.s, "operator Sampling of domain com.microsoft"));
    CHECK(said_has(&t.s, "nor are Lrn (1), Foo (1)"));
    CHECK(said_has(&t.s, "  hint: "));
    CHECK(!strstr(said_text(&t.s), "NonZero")); /* nothing reads it */
    int lines = 0;
    for (const char *s = said_text(&t.s); *s; s++)
        lines += *s == '\n';
    CHECK(lines <= 12);
    end(&t);
}

/* ---- dimensions ---- */

TEST(every_open_dimension_is_named)
{
    fixture t;
    begin(&t, 13, "y = Relu(x)", "batch,tokens");
    t.cfg.batch = t.cfg.seq = 0;
    refused(&t, "dimension batch of ids is not known: give --batch B");
    CHECK(said_has(&t.s, "dimension tokens of ids is not known: give --seq S"));
    CHECK(t.s.ctx->nerror == 2);
    end(&t);
}

TEST(fixed_dimensions_are_taken)
{
    fixture t;
    begin(&t, 13, "y = Relu(x)", "2,8");
    t.cfg.batch = t.cfg.seq = 0;
    imported(&t);
    CHECK(t.module && ir_meta_int(t.module, "batch", 0) == 2);
    CHECK(t.module && ir_meta_int(t.module, "seq", 0) == 8);
    end(&t);
}

TEST(an_option_against_the_file)
{
    fixture t;
    begin(&t, 13, "y = Relu(x)", "2,8");
    refused(&t, "input ids: dimension 1 is 8 by the file, but 3 by --seq");
    end(&t);
}

TEST(one_name_has_one_size)
{
    fixture t;
    begin(&t, 13, "y = Relu(x)", "n,n");
    refused(&t, "dimension 1 (n) is 2 by --batch, but 3 by --seq");
    end(&t);
}

TEST(named_dimensions)
{
    fixture t;
    begin(&t, 13, "y = Relu(x)", "b,s");
    t.cfg.batch = t.cfg.seq = 0;
    t.cfg.dim = "b=2,s=5";
    imported(&t);
    CHECK(t.module && ir_meta_int(t.module, "seq", 0) == 5);
    end(&t);
}

TEST(wrong_dim_options)
{
    static const char *const rows[][2] = {
        {"width=3", "no dimension is called width; there are b, s"},
        {"b", "'b' is not NAME=N"},
        {"b=0", "'b=0' is not NAME=N"},
        {"b=2x", "'b=2x' is not NAME=N"},
        {"s=4", "dimension 1 (s) is 4 by --dim, but 3 by --seq"},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        fixture t;
        begin(&t, 13, "y = Relu(x)", "b,s");
        t.cfg.dim = rows[i][0];
        refused(&t, rows[i][1]);
        end(&t);
    }
}

/* ---- inputs ---- */

TEST(inputs_that_are_no_tokens)
{
    static const struct {
        const char *name, *dims, *text, *words;
        int type;
    } rows[] = {
        {"past_key_values.0.key", "b,4,8", "y = Relu(x)", "export without past", 1},
        {"past_key_values.0.key", "b,4,7,8", "y = Relu(x)", "fixes 7 past positions",
         1},
        {"pixels", "b,3,8,8", "y = Relu(pixels)", "inputs of real numbers", 1},
        {"more_mask", "b,s",
         "f = Cast(more_mask) to=1 | g = Cast(mask) to=1 | y = Add(f, g)",
         "has the same role", 7},
        {"window", "b,w,w", "z = Cast(window) to=1 | y = Relu(x)",
         "dimension w of window is not known: give --dim w=N", 7},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        fixture t;
        begin(&t, 13, rows[i].text, "b,s");
        model_input(&t.m, rows[i].name, rows[i].type, rows[i].dims);
        refused(&t, rows[i].words);
        end(&t);
    }
}

/* A merged decoder: nothing is past, so the branch without a cache is taken, and the keys of
 * the present are the new ones. */
TEST(caches_are_empty)
{
    fixture t;
    begin(&t, 17,
          "a = i64[1] 1 | k = Unsqueeze(x, a) | all = Concat(past_key_values.0.key, k) "
          "axis=2 | y = If(use_cache_branch) then_branch={yt = Neg(x) -> yt} "
          "else_branch={ye = ReduceSum(all, a) keepdims=0 -> ye} | "
          "present.0.key = Identity(all)",
          "b,s");
    model_input(&t.m, "past_key_values.0.key", 1, "b,1,past,4");
    model_input(&t.m, "use_cache_branch", 9, "1");
    model_input(&t.m, "attention_mask", 7, "b,past + s");
    model_output(&t.m, "present.0.key");
    imported(&t);
    const ir_op *ret = t.module->step->last->last;
    CHECK(ret->narg == 2); /* y and x */
    CHECK(ret->arg[0]->def->code == IR_OP_reduce_sum);
    CHECK_STR(ir_type_text(t.s.ctx, ret->arg[0]->type), "f32[2,3,4]");
    for (int i = 0; i < t.module->step->args.n; i++)
        CHECK(!strstr(t.module->step->args.at[i]->name, "past"));
    end(&t);
}

/* efficc inspect: sizes that are not given are made up, those that are hold for all inputs. */
TEST(any_size_is_the_last_resort)
{
    fixture t;
    begin(&t, 17, "a = i64[1] 1 | y = Unsqueeze(x, a)", "b,s");
    model_input(&t.m, "past_key_values.0.key", 1, "b,1,past,4");
    model_input(&t.m, "attention_mask", 7, "b,past + s");
    t.cfg.any_size = true;
    t.cfg.seq = 0;
    imported(&t);
    const ir_type *y = t.module->step->last->last->arg[0]->type;
    CHECK(y->dim[0] == 2 && y->dim[2] > 1);
    end(&t);
}

TEST(no_token_ids)
{
    fixture t;
    begin(&t, 13, "f = Cast(ids) to=1 | y = Relu(f)", "b,s");
    t.m.p->graph->n_output = 1; /* x, which looks ids up, is no output */
    refused(&t, "no input is looked up in an embedding table");
    end(&t);
}

TEST(sequence_beyond_the_positions)
{
    fixture t;
    begin(&t, 13,
          "table.weight = f32[4,4] ~3 | s = Shape(ids) | o = i64[] 1 | z = i64[] 0 | "
          "n = Gather(s, o) | r = Range(z, n, o) | q = Gather(table.weight, r) | "
          "y = Add(x, q)",
          "b,s");
    t.cfg.seq = 5;
    refused(&t, "index 4 is outside of dimension 0, which has 4");
    CHECK(said_has(&t.s, "hint: give a --seq of at most 4"));
    end(&t);
}

/* Sizes that the rest of efficc, or a GPU, can't number. */
TEST(sizes_beyond_all_use)
{
    static const struct {
        int64_t batch, seq;
        const char *words, *hint;
    } rows[] = {
        {1, 65537, "ids: a row has 65537 tokens, of at most 65536", "a smaller --seq"},
        {1 << 30, 1 << 30, "a row has 1073741824 tokens", "a smaller --seq"},
        {1048577, 1, "ids: a micro-batch has 1048577 rows, of at most 1048576",
         "a smaller --batch; the trainer's --gradient-accumulation-steps"},
        {1 << 20, 17,
         "1048576 rows of 17 are 17825792 tokens in a micro-batch, of at "
         "most 16777216",
         "a smaller --batch"},
    };
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        fixture t;
        begin(&t, 13, "y = Relu(x)", "b,s");
        t.cfg.batch = rows[i].batch;
        t.cfg.seq = rows[i].seq;
        refused(&t, rows[i].words);
        CHECK(said_has(&t.s, rows[i].hint));
        end(&t);
    }
    fixture t;
    begin(&t, 13, "y = Relu(x)", "1,65537");
    t.cfg.batch = t.cfg.seq = 0;
    refused(&t, "a row has 65537 tokens");
    CHECK(said_has(&t.s, "the file fixes it"));
    end(&t);
}

TEST(as_large_as_may_be)
{
    fixture t;
    begin(&t, 13, "y = Relu(x)", "b,s");
    t.cfg.batch = 1 << 20;
    t.cfg.seq = 16;
    imported(&t);
    end(&t);
}

TEST(zero_sized_weight)
{
    fixture t;
    begin(&t, 13, "w = f32[4,0] | v = f32[0,4] | h = MatMul(x, w) | y = MatMul(h, v)",
          "b,s");
    t.module = model_import(t.s.ctx, &t.m, &t.f);
    CHECK(!t.module);
    CHECK(said_has(&t.s, "zero"));
    end(&t);
}
