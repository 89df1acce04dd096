/* diag_test.c -- how the compiler speaks, and the default configuration. */
#include "test.h"

#include "ir/config.h"
#include "said.h"

TEST(an_error_has_file_place_text_and_number)
{
    said s;
    said_open(&s);
    s.ctx->file = "m.onnx";
    CHECK(!ef_error(s.ctx, "/h.3/Softmax", E_ONNX_OP, "Softmax", "axis 1"));
    CHECK_STR(said_text(&s), "m.onnx: /h.3/Softmax: error: Softmax: axis 1 [E0203]\n");
    CHECK(s.ctx->nerror == 1 && s.ctx->nwarning == 0);
    said_close(&s);
}

TEST(line_and_column_belong_to_the_file)
{
    said s;
    said_open(&s);
    s.ctx->file = "m.ir";
    ef_error(s.ctx, "12:3", E_IR_SYNTAX, "expected ','");
    CHECK_STR(said_text(&s), "m.ir:12:3: error: expected ',' [E0101]\n");
    said_clear(&s);
    s.ctx->file = NULL;
    ef_error(s.ctx, NULL, W_PASS, "odd");
    CHECK_STR(said_text(&s), "warning: odd [W0309]\n");
    CHECK(s.ctx->nerror == 0 && s.ctx->nwarning == 1);
    said_close(&s);
}

TEST(errors_beyond_the_limit_are_counted)
{
    said s;
    said_open(&s);
    s.ctx->max_errors = 2;
    for (int i = 1; i <= 5; i++) {
        ef_error(s.ctx, NULL, E_TASK, i == 2 ? "two" : "other");
        ef_note(s.ctx, "note %d", i);
        ef_hint(s.ctx, "hint %d", i);
    }
    ef_error(s.ctx, NULL, W_PASS, "still shown");
    ef_diag_finish(s.ctx);
    CHECK_STR(said_text(&s), "error: other [E0303]\n  note: note 1\n  hint: hint 1\n"
                             "error: two [E0303]\n  note: note 2\n  hint: hint 2\n"
                             "warning: still shown [W0309]\n"
                             "and 3 more errors\n");
    CHECK(s.ctx->nerror == 5);
    said_close(&s);
}

TEST(reports_go_where_they_should)
{
    said s;
    said_open(&s);
    ef_report(s.ctx, "nobody hears %d", 1);
    s.ctx->report = s.ctx->diag;
    ef_report(s.ctx, "task: %s", "mlm");
    CHECK_STR(said_text(&s), "task: mlm\n");
    said_close(&s);
}

TEST(names_from_files_can_not_steer_the_terminal)
{
    said s;
    said_open(&s);
    ef_error(s.ctx, "/h\x1b[2J\x7f", E_ONNX_OP, "a\rb", "c");
    CHECK_STR(said_text(&s), "/h\\x1b[2J?: error: a\\x0db: c [E0203]\n");
    said_close(&s);
}

TEST(numbers_of_diagnostics_are_unique)
{
    static const int number[] = {
#define DIAG(code, n, severity, text) n,
#include "ir/diags.def"
#undef DIAG
    };
    for (size_t i = 1; i < EF_COUNT(number); i++)
        CHECK(number[i] > number[i - 1]);
    CHECK_STR(ef_diag_text(E_ONNX_OP), "%s: %s");
}

TEST(defaults_of_the_configuration)
{
    ef_ctx *ctx = ef_ctx_new();
    CHECK(ctx->cfg == &ef_config_default);
    CHECK(ctx->cfg->build && !ctx->cfg->force && !ctx->cfg->batch);
    CHECK(ctx->cfg->target == NULL); /* chosen by what the machine has */
    CHECK_STR(ctx->cfg->verify, "each");
    CHECK(!ctx->cfg->input);
    ef_ctx_free(ctx);
}
