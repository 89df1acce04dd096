/* weights_test.c -- the import of weights alone names, ties and classifies them as the whole
 * import does, and knows how they are read. */
#include "frontend/frontend.h"
#include "test.h"

#include <string.h>

static const ir_param *
same_named(const ir_module *m, const ir_param *p)
{
    return ir_param_by_name(m, p->value->name);
}

static bool
same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static void
check_case(const char *name)
{
    ef_ctx *ctx = ef_ctx_new();
    ef_config cfg = ef_config_default;
    cfg.any_size = true;
    ctx->cfg = &cfg;
    ctx->report = NULL;
    const char *path =
        ef_printf(ctx->arena, "%s/tests/cases/%s/model.onnx", SRC_DIR, name);
    fe_model *f = fe_load(ctx, path), *g = fe_load(ctx, path);
    NEED(f && g);
    ir_module *all = fe_import(ctx, f), *alone = fe_import_weights(ctx, g);
    NEED(all && alone);
    int n = 0;
    for (int i = 0; i < all->params.n; i++) {
        const ir_param *p = all->params.at[i];
        if (p->cls != IR_TRAIN)
            continue;
        const ir_param *q = same_named(alone, p);
        NEED(q != NULL);
        CHECK(q->cls == IR_TRAIN && q->value->type == p->value->type);
        CHECK(same_text(q->hf, p->hf) && same_text(q->onnx, p->onnx));
        CHECK(q->transposed == p->transposed && q->also.n == p->also.n);
        CHECK(q->init == p->init && q->at == p->at);
        n++;
    }
    for (int i = 0; i < alone->params.n; i++)
        n -= alone->params.at[i]->cls == IR_TRAIN;
    CHECK(n == 0); /* no others are weights */
    ir_module_free(all);
    ir_module_free(alone);
    fe_unload(f);
    fe_unload(g);
    ef_ctx_free(ctx);
}

TEST(as_the_whole_import)
{
    check_case("gpt2-legacy17");
    check_case("gpt2-optimum");
    check_case("bert-legacy14");
    check_case("bert-legacy17-dedup");
    check_case("bert-mlm-legacy17");
    check_case("bert-optimum");
    check_case("minilm-legacy17");
}

static fe_reading
reading(const char *name, const char *param)
{
    ef_ctx *ctx = ef_ctx_new();
    fe_model *f = fe_load(
        ctx, ef_printf(ctx->arena, "%s/tests/cases/%s/model.onnx", SRC_DIR, name));
    ir_module *m = fe_import_weights(ctx, f);
    const ir_param *p = ir_param_by_name(m, param);
    fe_reading r = p ? fe_reading_of(f, p) : (fe_reading){true, true, true};
    ir_module_free(m);
    fe_unload(f);
    ef_ctx_free(ctx);
    return r;
}

TEST(how_weights_are_read)
{
    fe_reading r = reading("gpt2-legacy17", "transformer.h.0.attn.c_attn.weight");
    CHECK(r.product && !r.out_in && !r.table); /* Gemm */
    r = reading("bert-legacy17", "bert.encoder.layer.0.attention.self.query.weight");
    CHECK(r.product && !r.out_in && !r.table); /* MatMul by a transposed copy */
    r = reading("bert-legacy17", "bert.pooler.dense.weight");
    CHECK(r.product && r.out_in && !r.table); /* Gemm, transB */
    r = reading("gpt2-legacy17", "transformer.wte.weight");
    CHECK(r.product && r.out_in && r.table); /* tied: the copy is [in,out] */
    r = reading("gpt2-legacy17", "transformer.wpe.weight");
    CHECK(!r.product && r.table);
    r = reading("gpt2-legacy17", "transformer.ln_f.weight");
    CHECK(!r.product && !r.table);
}
