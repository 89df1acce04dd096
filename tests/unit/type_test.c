/* type_test.c -- interned types and names. */
#include "test.h"

#include "ir/ir_int.h"
#include "said.h"

static const ir_type *
read_type(ef_ctx *ctx, const char *text)
{
    char *ir = ef_printf(ctx->arena,
                         "efficc-ir 1\nunit 0 \"u\"\nfunc $step(%%x : %s) {\n"
                         "@b: fwd unit=0\n  ret\n}\n",
                         text);
    ir_module *m = ir_parse(ctx, "t.ir", ir);
    if (!m)
        return NULL;
    const ir_type *t = m->step->args.at[0]->type; /* lives in ctx */
    ir_module_free(m);
    return t;
}

TEST(equal_types_are_one)
{
    ef_ctx *ctx = ef_ctx_new();
    const ir_type *t = ir_type_get(ctx, IR_F32, 2, (int64_t[]){3, 4});
    CHECK(t == ir_type_get(ctx, IR_F32, 2, (int64_t[]){3, 4}));
    CHECK(t != ir_type_get(ctx, IR_F32, 2, (int64_t[]){4, 3}));
    CHECK(t != ir_type_get(ctx, IR_I64, 2, (int64_t[]){3, 4}));
    CHECK(t == ir_type_with(ctx, ir_type_with(ctx, t, IR_BF16), IR_F32));
    ir_type named = *t, sharded = *t;
    named.sym[0] = IR_ROWS;
    sharded.sharded = true;
    CHECK(ir_type_intern(ctx, &named) != t && ir_type_intern(ctx, &sharded) != t);
    const ir_type *many[1000];
    for (int i = 0; i < 1000; i++)
        many[i] = ir_type_get(ctx, IR_F32, 1, (int64_t[]){i});
    for (int i = 0; i < 1000; i++)
        CHECK(many[i] == ir_type_get(ctx, IR_F32, 1, (int64_t[]){i}));
    ef_ctx_free(ctx);
}

TEST(types_print_and_parse)
{
    static const char *const text[] = {
        "f32[]",        "i64[2,16]", "bool[1,1,4,4]",  "bf16[rows:96]",
        "f32[8,64]/dp", "f16[0]",    "i4[sup:7,3]/dp", "u8[1,2,3,4,5,6,7,8]"};
    ef_ctx *ctx = ef_ctx_new();
    for (size_t i = 0; i < EF_COUNT(text); i++) {
        const ir_type *t = read_type(ctx, text[i]);
        NEED(t != NULL);
        CHECK_STR(ir_type_text(ctx, t), text[i]);
    }
    CHECK_STR(ir_type_text(ctx, ir_type_get(ctx, IR_FUT, 0, NULL)), "fut");
    ef_ctx_free(ctx);
}

TEST(sizes)
{
    ef_ctx *ctx = ef_ctx_new();
    CHECK(ir_type_count(read_type(ctx, "f32[]")) == 1);
    CHECK(ir_type_count(read_type(ctx, "f32[3,0]")) == 0);
    CHECK(ir_type_bytes(read_type(ctx, "f32[3,5]")) == 60);
    CHECK(ir_type_bytes(read_type(ctx, "i4[5]")) == 3);
    CHECK(ir_type_bytes(read_type(ctx, "bool[5]")) == 5);
    CHECK(ir_dims_ok(2, (int64_t[]){1 << 20, 1 << 20}));
    CHECK(!ir_dims_ok(2, (int64_t[]){1 << 20, (1 << 20) + 1}));
    CHECK(!ir_dims_ok(3, (int64_t[]){0, INT64_MAX, INT64_MAX}));
    CHECK(!ir_dims_ok(1, (int64_t[]){-1}));
    CHECK(!ir_dims_ok(9, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}));
    ef_ctx_free(ctx);
}

TEST(broadcasting)
{
    static const char *const row[][3] = {
        {"f32[2,3]", "f32[3]", "f32[2,3]"},
        {"f32[3]", "f32[2,3]", "f32[2,3]"},
        {"f32[2,1]", "f32[1,3]", "f32[2,3]"},
        {"f32[]", "f32[4]", "f32[4]"},
        {"f32[0]", "f32[1]", "f32[0]"},
        {"f32[2]", "f32[3]", NULL},
        {"f32[rows:6]", "f32[1]", "f32[rows:6]"},
        {"f32[rows:6]", "f32[6]", NULL},
        {"f32[rows:6]", "f32[sup:6]", NULL},
        {"f32[0]", "f32[2]", NULL},
        {"f32[1048576,1]", "f32[1,1048577]", NULL},
    };
    ef_ctx *ctx = ef_ctx_new();
    for (size_t i = 0; i < EF_COUNT(row); i++) {
        const ir_type *t = ir_type_broadcast(ctx, read_type(ctx, row[i][0]),
                                             read_type(ctx, row[i][1]));
        CHECK((t != NULL) == (row[i][2] != NULL));
        if (t && row[i][2])
            CHECK_STR(ir_type_text(ctx, t), row[i][2]);
    }
    ef_ctx_free(ctx);
}

TEST(names_are_cleaned_and_unique)
{
    ef_ctx *ctx = ef_ctx_new();
    ir_module *m = ir_module_new(ctx);
    ir_func *f = ir_func_new(m, "step");
    const ir_type *t = ir_type_get(ctx, IR_F32, 0, NULL);
    CHECK_STR(ir_arg_new(f, "input ids:0", t)->name, "input_ids_0");
    CHECK_STR(ir_arg_new(f, "a\"\n\xc3\xa9", t)->name, "a____");
    CHECK_STR(ir_arg_new(f, "", t)->name, "_");
    CHECK_STR(ir_arg_new(f, "/h.0/x-1", t)->name, "/h.0/x-1");
    CHECK_STR(ir_arg_new(f, "x.1", t)->name, "x.1");
    CHECK_STR(ir_arg_new(f, "x", t)->name, "x");
    CHECK_STR(ir_arg_new(f, "x", t)->name, "x.2");
    CHECK_STR(ir_arg_new(f, "x.1", t)->name, "x.1.1");
    CHECK_STR(ir_param_new(m, "x", t, IR_FROZEN, 0)->value->name, "x");
    CHECK_STR(ir_param_new(m, "x", t, IR_FROZEN, 0)->value->name, "x.1");
    ir_module_free(m);
    ef_ctx_free(ctx);
}

/* Names that a removed op leaves are given again, so that what a pass calls its values
 * depends on the module only, not on its history. */
TEST(the_smallest_free_suffix_is_taken)
{
    ef_ctx *ctx = ef_ctx_new();
    ir_module *m = ir_module_new(ctx);
    ir_func *f = ir_func_new(m, "step");
    ir_unit_new(m, "u");
    ir_builder b = ir_end(ir_block_new(f, "b", IR_FWD, 0), NULL);
    const ir_type *t = ir_type_get(ctx, IR_F32, 0, NULL);
    ir_value *v[200];
    for (int i = 0; i < 200; i++)
        v[i] = ir_const(&b, "c", t, i);
    CHECK_STR(v[199]->name, "c.199");
    ir_remove(v[150]->def);
    ir_remove(v[7]->def);
    ir_remove(v[0]->def);
    CHECK_STR(ir_const(&b, "c", t, 0)->name, "c");
    CHECK_STR(ir_const(&b, "c", t, 0)->name, "c.7");
    CHECK_STR(ir_const(&b, "c", t, 0)->name, "c.150");
    CHECK_STR(ir_const(&b, "c", t, 0)->name, "c.200");
    ir_rename(f, v[3], "d");
    CHECK_STR(v[3]->name, "d");
    CHECK_STR(ir_const(&b, "c", t, 0)->name, "c.3");
    ir_module_free(m);
    ef_ctx_free(ctx);
}

TEST(dimensions_collapse_as_far_as_strides_allow)
{
    int64_t dim[IR_MAX_RANK] = {2, 3, 1, 4};
    int64_t stride[2][IR_MAX_RANK] = {{12, 4, 0, 1}, {0, 4, 0, 1}};
    CHECK(ir_collapse(4, dim, 2, stride) == 2);
    CHECK(dim[0] == 2 && dim[1] == 12);
    CHECK(stride[0][0] == 12 && stride[0][1] == 1);
    CHECK(stride[1][0] == 0 && stride[1][1] == 1);
}
