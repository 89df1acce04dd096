/* names_test.c -- params of imported models: names, layouts, ties, un-sharing, units; the
 * rules one by one, on made-up models.
 */
#include "fixture.h"

/* Imports a model whose output is y. */
static void
begin(fixture *t, const char *text)
{
    model_of(t, 17, text, "b,s");
    model_output(&t->m, "y");
    must_import(t);
}

TEST(names_of_folded_weights)
{
    fixture t;
    begin(&t,
          "onnx::MatMul_7 = f32[4,5] ~3 | fc.bias = f32[5] ~4 | val_9 = f32[5,4] ~5 | "
          "onnx::MatMul_8 = f32[4,3] ~6 | tmp_1 = f32[3,2] ~7 | tmp_2 = f32[2] ~8 | "
          "/blk/fc/MatMul: a = MatMul(x, onnx::MatMul_7) | "
          "/blk/fc/Add: b = Add(fc.bias, a) | "
          "/blk/proj/MatMul: c = MatMul(b, val_9) | "
          "MatMul_11: d = MatMul(c, onnx::MatMul_8) | "
          "/out/MatMul: e = MatMul(d, tmp_1) | /out/Add: y = Add(e, tmp_2)");
    CHECK_STR(hf(&t, "onnx::MatMul_7"), "fc.weight transposed"); /* the bias says so */
    CHECK_STR(hf(&t, "fc.bias"), "fc.bias");
    CHECK_STR(hf(&t, "val_9"), "blk.proj.weight transposed"); /* the scope */
    CHECK_STR(hf(&t, "onnx::MatMul_8"), "-");
    CHECK_STR(hf(&t, "tmp_1"), "out.weight transposed");
    CHECK_STR(hf(&t, "tmp_2"), "out.bias");
    end(&t);
}

TEST(what_stands_before_scopes_is_learnt)
{
    fixture t;
    begin(&t, "net.a.weight = f32[4,4] ~3 | net.b.weight = f32[4,4] ~4 | "
              "onnx::MatMul_1 = f32[4,4] ~5 | "
              "/a/MatMul: a = MatMul(x, net.a.weight) | "
              "/b/MatMul: b = MatMul(a, net.b.weight) | /c/MatMul: y = MatMul(b, "
              "onnx::MatMul_1)");
    CHECK_STR(hf(&t, "onnx::MatMul_1"), "net.c.weight transposed");
    end(&t);
}

TEST(a_bias_of_another_module_is_no_name)
{
    fixture t;
    begin(&t, "onnx::MatMul_1 = f32[4,5] ~3 | cls.bias = f32[5] ~4 | "
              "/cls/decoder/MatMul: a = MatMul(x, onnx::MatMul_1) | "
              "/cls/decoder/Add: y = Add(cls.bias, a)");
    CHECK_STR(hf(&t, "onnx::MatMul_1"), "cls.decoder.weight transposed");
    end(&t);
}

TEST(gemm_layouts)
{
    fixture t;
    begin(&t, "s = i64[2] 6 4 | val_1 = f32[5,4] ~3 | val_2 = f32[5,4] ~4 | b.bias = "
              "f32[4] ~5 | "
              "r = Reshape(x, s) | /a/Gemm: a = Gemm(r, val_1) transB=1 | "
              "/b/Gemm: y = Gemm(a, val_2, b.bias)");
    CHECK_STR(hf(&t, "val_1"), "a.weight");
    CHECK_STR(hf(&t, "val_2"), "b.weight transposed");
    end(&t);
}

#define NORMS                                                                     \
    "model.embed_tokens.weight = f32[16,4] ~9 | onnx::Mul_5 = f32[4] ~3 | two = " \
    "f32[] 2 | "                                                                  \
    "model.layers.0.input_layernorm.bias = f32[4] ~4 | "                          \
    "model.layers.0.fc.weight = f32[4,4] ~5 | "                                   \
    "/model/embed_tokens/Gather: e = Gather(model.embed_tokens.weight, ids) | "
#define NORMED                                                        \
    "/model/layers.0/input_layernorm/Mul: n = Mul(onnx::Mul_5, h) | " \
    "/model/layers.0/input_layernorm/Add: m = Add(n, "                \
    "model.layers.0.input_layernorm.bias) | "                         \
    "/model/layers.0/fc/MatMul: y = MatMul(m, model.layers.0.fc.weight)"

/* Without a name among named ones: of Gemma 1 + weight, else nothing that is known. */
TEST(a_nameless_norm)
{
    fixture t;
    begin(&t, NORMS "h = Mul(e, two) | " NORMED);
    found f = find(t.module, "onnx::Mul_5");
    CHECK_STR(hf(&t, "onnx::Mul_5"), "model.layers.0.input_layernorm.weight");
    CHECK(f.p && f.p->shift == 1);
    end(&t);
    begin(&t, NORMS "s = Shape(e) | o = ConstantOfShape(s) | g = Mul(e, two) | "
                    "h = Add(g, o) | " NORMED); /* positions of the embeddings' shape */
    f = find(t.module, "onnx::Mul_5");
    CHECK(f.p && f.p->shift == 1);
    end(&t);
    begin(&t,
          NORMS "h = Mul(e, two) | /model/layers.0/input_layernorm/Mul: n = "
                "Mul(onnx::Mul_5, h) | /model/layers.0/input_layernorm/Add: m = "
                "Add(n, model.layers.0.input_layernorm.bias) | "
                "/model/layers.0/post_attention_layernorm/Mul: o = Mul(onnx::Mul_5, m) "
                "| /model/layers.0/fc/MatMul: y = MatMul(o, model.layers.0.fc.weight)");
    for (int i = 0; i < t.module->params.n; i++) { /* two norms share it */
        const ir_param *p = t.module->params.at[i];
        CHECK(p->shift == (p->hf && strstr(p->hf, "norm.weight")));
    }
    CHECK(ir_param_by_name(t.module,
                           "model.layers.0.post_attention_layernorm.weight") != NULL);
    end(&t);
    begin(&t, NORMS "h = Tanh(e) | " NORMED);
    f = find(t.module, "onnx::Mul_5");
    CHECK(f.p && !f.p->hf && !f.p->shift);
    end(&t);
}

/* onnxruntime leaves out the Identity: readers of a shared bias name their own matrices. */
TEST(a_shared_bias_names_no_other_module)
{
    fixture t;
    begin(&t, "onnx::MatMul_1 = f32[4,4] ~3 | onnx::MatMul_2 = f32[4,4] ~4 | "
              "net.h.0.fc.bias = f32[4] 0 0 0 0 | "
              "/net/h.0/fc/MatMul: a = MatMul(x, onnx::MatMul_1) | "
              "/net/h.0/fc/Add: b = Add(net.h.0.fc.bias, a) | "
              "/net/h.1/fc/MatMul: c = MatMul(b, onnx::MatMul_2) | "
              "/net/h.1/fc/Add: y = Add(net.h.0.fc.bias, c)");
    CHECK_STR(hf(&t, "onnx::MatMul_1"), "net.h.0.fc.weight transposed");
    CHECK_STR(hf(&t, "onnx::MatMul_2"), "net.h.1.fc.weight transposed");
    CHECK(ir_param_by_name(t.module, "net.h.1.fc.bias") != NULL);
    end(&t);
}

TEST(no_two_weights_have_one_name)
{
    fixture t;
    begin(&t, "onnx::MatMul_1 = f32[4,4] ~3 | onnx::MatMul_2 = f32[4,4] ~4 | "
              "/net/fc/MatMul: a = MatMul(x, onnx::MatMul_1) | "
              "/net/fc/MatMul_1: y = MatMul(a, onnx::MatMul_2)");
    CHECK_STR(hf(&t, "onnx::MatMul_1"), "net.fc.weight transposed");
    CHECK_STR(hf(&t, "onnx::MatMul_2"), "-");
    end(&t);
}

/* ---- config.json ---- */

/* A model that is imported with a config.json of this text. */
static void
begin_with(fixture *t, const char *config, const char *text)
{
    char path[60];
    snprintf(path, sizeof path, "/tmp/efficc-config-%ld.json", (long)getpid());
    FILE *file = fopen(path, "w");
    NEED(file && fputs(config, file) >= 0 && !fclose(file));
    model_of(t, 17, text, "b,s");
    model_output(&t->m, "y");
    t->cfg.hf_config = path;
    import_it(t);
    remove(path);
}

/* Number of weights; -1: the model was refused, with these words. */
static int
weights_with(const char *config, const char *model_text, const char *words)
{
    fixture t;
    begin_with(&t, config, model_text);
    int n = t.module ? weights(&t) : -1;
    CHECK(t.module ? !words : words && strstr(said_text(&t.s), words));
    end(&t);
    return n;
}

static bool
has_name(const char *config, const char *model_text, const char *name)
{
    fixture t;
    begin_with(&t, config, model_text);
    bool has = false;
    for (int i = 0; t.module && i < t.module->params.n; i++)
        has |= t.module->params.at[i]->hf && !strcmp(t.module->params.at[i]->hf, name);
    end(&t);
    return has;
}

TEST(a_wrapper_is_told_by_the_architecture)
{
    static const char text[] =
        "net.model.layers.0.input_layernorm.weight = f32[4] ~3 | "
        "net.model.layers.0.fc.weight = f32[4,4] ~4 | net.lm_head.weight = f32[4,4] ~5 "
        "| "
        "h = Mul(x, net.model.layers.0.input_layernorm.weight) | "
        "a = MatMul(h, net.model.layers.0.fc.weight) | y = MatMul(a, "
        "net.lm_head.weight)";
    CHECK(has_name("{\"model_type\": \"llama\", \"architectures\": "
                   "[\"LlamaForCausalLM\"]}",
                   text, "model.layers.0.fc.weight"));
    CHECK(has_name("{\"model_type\": \"llama\", \"architectures\": "
                   "[\"LlamaForCausalLM\"]}",
                   text, "lm_head.weight"));
    CHECK(
        has_name("{\"model_type\": \"llama\"}", text, "net.model.layers.0.fc.weight"));
}

TEST(what_a_config_settles)
{
    static const char head[] =
        "wte = f32[3,2] 1 2 3 4 5 6 | lm = f32[2,3] 1 3 5 2 4 6 | w = f32[4,2] ~3 | "
        "e = Gather(wte, mask) | h = MatMul(x, w) | a = Add(e, h) | y = MatMul(a, lm)";
    static const char layer[] = "net.h.0.a = f32[4,4] ~3 | "
                                "/net/h.0/MatMul: y = MatMul(x, net.h.0.a)";
    CHECK(weights_with("{\"model_type\": \"x\"}", head, NULL) == 3);
    CHECK(weights_with("{\"model_type\": \"x\", \"tie_word_embeddings\": false}", head,
                       NULL) == 4);
    CHECK(weights_with("{}", head, "model_type") < 0);
    CHECK(weights_with("[", head, "model_type") < 0);
    CHECK(weights_with("{\"model_type\": \"x\", \"num_hidden_layers\": 3}", layer,
                       "it says 3 layers, the model has 1") < 0);
}

/* ---- ties ---- */

TEST(transposed_copy_of_the_table_is_tied)
{
    fixture t;
    begin(
        &t,
        "wte = f32[3,2] 1 2 3 4 5 6 | onnx::MatMul_1 = f32[2,3] 1 3 5 2 4 6 | "
        "w = f32[4,2] ~3 | e = Gather(wte, mask) | h = MatMul(x, w) | a = Add(e, h) | "
        "y = MatMul(a, onnx::MatMul_1)");
    ir_param *p = ir_param_by_name(t.module, "wte");
    CHECK(p && p->also.n == 1 && !strcmp(p->also.at[0], "Tonnx::MatMul_1"));
    CHECK(p && p->unit == 0);
    end(&t);
}

TEST(equal_matrices_are_one)
{
    fixture t;
    begin(&t,
          "a = f32[4,4] ~3 | b = f32[4,4] ~3 | c = f32[4,4] ~4 | h = MatMul(x, a) | "
          "i = MatMul(h, b) | y = MatMul(i, c)");
    ir_param *p = ir_param_by_name(t.module, "a");
    CHECK(p && p->also.n == 1 && !strcmp(p->also.at[0], "=b"));
    CHECK(weights(&t) == 3); /* with the table of ids */
    end(&t);
}

TEST(fresh_zeros_are_no_tie)
{
    fixture t;
    begin(&t, "a = f32[2,4] 0 0 0 0 0 0 0 0 | b = f32[4,2] 0 0 0 0 0 0 0 0 | "
              "h = MatMul(x, b) | y = MatMul(h, a)");
    CHECK(weights(&t) == 3);
    end(&t);
}

TEST(one_different_element_is_no_tie)
{
    fixture t;
    begin(&t,
          "a = f32[2,3] 1 2 3 4 5 6 | b = f32[2,3] 1 2 3 4 5 7 | w = f32[4,2] ~3 | "
          "s = i64[2] 6 2 | h = MatMul(x, w) | u = MatMul(h, a) | v = MatMul(h, b) | "
          "y = Add(u, v)");
    CHECK(weights(&t) == 4);
    end(&t);
}

/* ---- vectors that the exporter merged ---- */

TEST(identities_are_params_of_their_own)
{
    fixture t;
    begin(&t, "a.bias = f32[4] ~3 | b.bias = Identity(a.bias) | "
              "/a/Add: h = Add(x, a.bias) | /b/Add: y = Add(h, b.bias)");
    ir_param *own = ir_param_by_name(t.module, "b.bias");
    CHECK_STR(hf(&t, "a.bias"), "a.bias");
    CHECK(own && !own->onnx && own->hf && own->init == IR_INIT_FILE);
    CHECK(own && own->at == ir_param_by_name(t.module, "a.bias")->at);
    NEED(t.f->unshared.n == 1);
    const fe_unshared *u = &t.f->unshared.at[0];
    CHECK_STR(u->param, "b.bias");
    CHECK_STR(u->initializer, "a.bias");
    CHECK(!strcmp(u->node->name, "/b/Add") && u->input == 1);
    end(&t);
}

TEST(several_readers_of_one_vector)
{
    fixture t;
    begin(&t, "a.norm.weight = f32[4] ~3 | a.norm.bias = f32[4] ~4 | "
              "/a/norm/LayerNormalization: h = LayerNormalization(x, a.norm.weight, "
              "a.norm.bias) | "
              "/b/norm/LayerNormalization: y = LayerNormalization(h, a.norm.weight, "
              "a.norm.bias)");
    CHECK(weights(&t) == 5);
    CHECK(ir_param_by_name(t.module, "b.norm.weight") != NULL);
    CHECK(ir_param_by_name(t.module, "b.norm.bias") != NULL);
    end(&t);
}

TEST(a_module_that_runs_twice_stays_one)
{
    fixture t;
    begin(&t, "n.weight = f32[4] ~3 | n.bias = f32[4] ~4 | "
              "/n/LayerNormalization: h = LayerNormalization(x, n.weight, n.bias) | "
              "/n/LayerNormalization_1: y = LayerNormalization(h, n.weight, n.bias)");
    CHECK(weights(&t) == 3);
    CHECK(!t.f->unshared.n);
    end(&t);
}

/* ALBERT: the scopes of a second run are numbered, and the matrix tells that it is one. */
TEST(numbered_runs_of_a_module_are_one)
{
    fixture t;
    begin(&t, "net.fc.weight = f32[4,4] ~3 | net.fc.bias = f32[4] ~4 | "
              "net.ln.weight = f32[4] ~5 | net.ln.bias = f32[4] ~6 | "
              "/net/fc/MatMul: a = MatMul(x, net.fc.weight) | "
              "/net/fc/Add: b = Add(net.fc.bias, a) | "
              "/net/ln/LayerNormalization: c = LayerNormalization(b, net.ln.weight, "
              "net.ln.bias) | "
              "/net/fc_1/MatMul: d = MatMul(c, net.fc.weight) | "
              "/net/fc_1/Add: e = Add(net.fc.bias, d) | "
              "/net/ln_1/LayerNormalization: y = LayerNormalization(e, net.ln.weight, "
              "net.ln.bias)");
    CHECK(weights(&t) == 5);
    CHECK(!t.f->unshared.n);
    end(&t);
    begin(&t,
          "net.ln_1.weight = f32[4] ~5 | net.ln_1.bias = f32[4] ~6 | "
          "/net/ln_1/LayerNormalization: a = LayerNormalization(x, net.ln_1.weight, "
          "net.ln_1.bias) | "
          "/net/ln_2/LayerNormalization: y = LayerNormalization(a, net.ln_1.weight, "
          "net.ln_1.bias)");
    CHECK(weights(&t) == 5);
    CHECK(ir_param_by_name(t.module, "net.ln_2.weight") != NULL);
    end(&t);
}

TEST(matrices_stay_shared)
{
    fixture t;
    char *report = NULL;
    size_t n = 0;
    model_of(&t, 17,
             "a.weight = f32[4,4] ~3 | /a/MatMul: h = MatMul(x, a.weight) | "
             "/b/MatMul: y = MatMul(h, a.weight)",
             "b,s");
    model_output(&t.m, "y");
    t.s.ctx->report = open_memstream(&report, &n);
    must_import(&t);
    fclose(t.s.ctx->report);
    t.s.ctx->report = NULL;
    CHECK(weights(&t) == 2);
    CHECK(strstr(report, "a.weight is read in a and b: one weight") != NULL);
    free(report);
    end(&t);
}

/* ---- what is no weight ---- */

TEST(tables_of_sines_and_masks_are_constants)
{
    fixture t;
    begin(&t, "freq = f32[4] ~3 | hide = f32[3,3] 0 -inf -inf 0 0 -inf 0 0 0 | "
              "w = f32[4,4] ~4 | a = Mul(x, freq) | s = Sin(a) | q = MatMul(x, w) | "
              "k = Transpose(s) perm=[0,2,1] | r = MatMul(q, k) | m = Add(r, hide) | "
              "y = Softmax(m)");
    CHECK(ir_param_by_name(t.module, "freq")->cls == IR_CONST);
    CHECK(ir_param_by_name(t.module, "hide")->cls == IR_CONST);
    CHECK(ir_param_by_name(t.module, "w")->cls == IR_TRAIN);
    end(&t);
}

/* Folded sines and cosines, whatever they are called. */
TEST(circles_are_constants)
{
    fixture t;
    begin(&t,
          "turn = f32[1,3,4] 1 1 1 1 0.54 0.99 0.54 0.99 -0.416 0.98 -0.416 0.98 | "
          "sin = f32[1,3,4] 0 0 0 0 0.841 0.1 0.841 0.1 0.909 0.199 0.909 0.199 | "
          "h.positions = f32[3,4] 0 0 2 2 1.683 0.2 1.08 1.99 1.819 0.397 -0.832 1.96 "
          "| h.pe = f32[1,4,4] 0 1 0 1 0.841 0.54 0.1 0.995 0.909 -0.416 0.199 0.98 0 "
          "0 0 0 "
          "| one.weight = f32[2,2] 0 1 0.6 0.8 | gamma = f32[1,2] 1 1 | "
          "beta = f32[1,2] 0 0 | w = f32[3,4] ~4 | v = f32[4,2] ~3 | "
          "h.w = f32[4,4] ~5 | k = Mul(h.w, h.pe) | ry = ReduceMean(k) axes=[0,1,2] "
          "keepdims=0 | a = Mul(w, turn) | b = Mul(w, sin) | c = Mul(a, h.positions) | "
          "d = Add(b, c) "
          "| e = MatMul(x, v) | f = MatMul(e, one.weight) | g = Mul(f, gamma) | "
          "i = Add(g, beta) | t = Transpose(i) perm=[0,2,1] | o = MatMul(t, d) | y = "
          "Add(o, ry)");
    CHECK(ir_param_by_name(t.module, "turn")->cls == IR_CONST);
    CHECK(ir_param_by_name(t.module, "sin")->cls == IR_CONST);
    CHECK(ir_param_by_name(t.module, "h.positions")->cls == IR_CONST);
    CHECK(ir_param_by_name(t.module, "h.pe")->cls == IR_CONST);
    CHECK(ir_param_by_name(t.module, "h.w")->cls == IR_TRAIN);
    CHECK(ir_param_by_name(t.module, "one.weight")->cls == IR_TRAIN);
    CHECK(ir_param_by_name(t.module, "gamma")->cls == IR_TRAIN);
    CHECK(ir_param_by_name(t.module, "beta")->cls == IR_TRAIN);
    CHECK(ir_param_by_name(t.module, "w")->cls == IR_TRAIN);
    end(&t);
}

/* An export with fixed shapes looks up positions and, for all tokens, one type. */
TEST(one_row_for_all_tokens_is_no_table_of_positions)
{
    fixture t;
    model_of(&t, 17,
             "bert.embeddings.word_embeddings.weight = f32[20,4] ~9 | "
             "embedding_1 = f32[1,3,4] 1 2 3 4 1 2 3 4 1 2 3 4 | "
             "embedding_2 = f32[1,3,4] ~5 | "
             "bert.encoder.layer.0.attention.self.query.weight = f32[4,4] ~3 | "
             "bert.encoder.layer.0.attention.self.query.bias = f32[4] ~4 | "
             "e = Gather(bert.embeddings.word_embeddings.weight, ids) | "
             "a = Add(e, embedding_1) | b = Add(a, embedding_2) | "
             "c = MatMul(b, bert.encoder.layer.0.attention.self.query.weight) | "
             "y = Add(c, bert.encoder.layer.0.attention.self.query.bias)",
             "b,s");
    t.m.p->producer_name = ef_strdup(t.m.a, "pytorch");
    model_output(&t.m, "y");
    must_import(&t);
    const char *name = "bert.embeddings.position_embeddings.weight";
    CHECK_STR(hf(&t, "embedding_2"), name);
    CHECK(find(t.module, "embedding_2").p->cls == IR_TRAIN);
    CHECK(find(t.module, "embedding_1").p->cls == IR_CONST);
    end(&t);
}

/* Of a norm without weights, saved by onnxruntime. */
TEST(a_constant_that_became_an_initializer_is_none_of_pytorchs)
{
    fixture t;
    model_of(&t, 17,
             "/norm/Constant_1_output_0 = f32[4] 1 1 1 1 | norm.bias = f32[4] ~4 | "
             "y = LayerNormalization(x, /norm/Constant_1_output_0, norm.bias)",
             "b,s");
    t.m.p->producer_name = ef_strdup(t.m.a, "pytorch");
    model_output(&t.m, "y");
    must_import(&t);
    CHECK(find(t.module, "/norm/Constant_1_output_0").p->cls == IR_CONST);
    CHECK(find(t.module, "norm.bias").p->cls == IR_TRAIN);
    end(&t);
}

TEST(slopes_are_constants)
{
    fixture t;
    begin(&t,
          "unsqueeze_1 = f32[6,1] 0.25 0.0625 0.015625 0.00390625 0.5 0.125 | "
          "v = f32[6,1] 0.25 0.0625 0.015625 0.00390625 0.5 0.25 | "
          "w = f32[4,6] ~4 | a = MatMul(x, w) | b = MatMul(a, v) | "
          "c = Transpose(b) perm=[0,2,1] | d = MatMul(unsqueeze_1, c) | y = Relu(d)");
    CHECK(ir_param_by_name(t.module, "unsqueeze_1")->cls == IR_CONST);
    CHECK(ir_param_by_name(t.module, "v")->cls == IR_TRAIN);
    end(&t);
}

TEST(constants_are_weights)
{
    fixture t;
    begin(&t, "c = Constant() value=<f32[4,2] ~3> | y = MatMul(x, c)");
    CHECK(weights(&t) == 2);
    CHECK_STR(hf(&t, "c"), "c");
    end(&t);
}

/* ---- units ---- */

#define LAYERS                                                                     \
    "net.emb.weight = f32[16,4] ~9 | /net/emb/Gather: e = Gather(net.emb.weight, " \
    "ids) | "                                                                      \
    "net.h.0.fc.weight = f32[4,4] ~3 | net.h.1.fc.weight = f32[4,4] ~4 | "         \
    "net.out.weight = f32[4,2] ~5 | "

TEST(units_from_scopes)
{
    fixture t;
    begin(
        &t, LAYERS
        "/net/h.0/fc/MatMul: a = MatMul(e, net.h.0.fc.weight) | "
        "/net/h.0/Add: b = Add(a, e) | "
        "/net/h.1/fc/MatMul: c = MatMul(b, net.h.1.fc.weight) | "
        "/net/h.1/Add: d = Add(c, b) | /net/out/MatMul: y = MatMul(d, net.out.weight)");
    CHECK(t.module->units.n == 4);
    CHECK_STR(t.module->units.at[1], "layer.0");
    CHECK_STR(t.module->units.at[3], "head");
    CHECK(unit_of(&t, "net.emb.weight") == 0);
    CHECK(unit_of(&t, "net.h.1.fc.weight") == 2);
    CHECK(unit_of(&t, "net.out.weight") == 3);
    end(&t);
}

TEST(units_from_names_of_weights)
{
    fixture t;
    begin(&t, LAYERS "a = MatMul(e, net.h.0.fc.weight) | b = Tanh(a) | "
                     "c = MatMul(b, net.h.1.fc.weight) | d = Tanh(c) | "
                     "y = MatMul(d, net.out.weight)");
    CHECK(t.module->units.n == 4);
    CHECK(unit_of(&t, "net.h.0.fc.weight") == 1);
    CHECK(unit_of(&t, "net.h.1.fc.weight") == 2);
    CHECK(unit_of(&t, "net.out.weight") == 3);
    end(&t);
}

/* A file may list nodes of several layers in any order that computes. */
TEST(nodes_are_sorted_by_unit)
{
    fixture t;
    begin(
        &t, LAYERS
        "/net/h.1/side/Tanh: s = Tanh(e) | "
        "/net/h.0/fc/MatMul: a = MatMul(e, net.h.0.fc.weight) | "
        "/net/h.1/fc/MatMul: c = MatMul(a, net.h.1.fc.weight) | "
        "/net/h.1/Add: d = Add(c, s) | /net/out/MatMul: y = MatMul(d, net.out.weight)");
    int last = 0;
    for (ir_op *op = ir_first_op(t.module->step); op; op = ir_next_op(op)) {
        CHECK(op->block->unit >= last);
        last = op->block->unit;
    }
    end(&t);
}

/* ---- meta ---- */

TEST(facts_for_passes)
{
    fixture t;
    begin(&t,
          "w = f32[4,3] ~3 | b = f32[3] ~4 | pad = i64[] 5 | n = Equal(ids, pad) | "
          "f = Cast(n) to=1 | ax = i64[1] 2 | g = Unsqueeze(f, ax) | k = Add(x, g) | "
          "h = MatMul(k, w) | y = Add(h, b)");
    CHECK_STR(ir_meta_get(t.module, "input.ids"), "ids");
    CHECK_STR(ir_meta_get(t.module, "input.mask"), "mask");
    CHECK_STR(ir_meta_get(t.module, "outputs"), "y");
    CHECK(ir_meta_int(t.module, "vocab", 0) == 16);
    CHECK(ir_meta_int(t.module, "pad", 0) == 5);
    CHECK(ir_meta_int(t.module, "labels", 0) == 3);
    CHECK(ir_meta_int(t.module, "batch", 0) == 2);
    CHECK(ir_meta_int(t.module, "seq", 0) == 3);
    end(&t);
}
