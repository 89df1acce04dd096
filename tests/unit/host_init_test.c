/* The trainer and the interpreter start new tensors with the same numbers. */
#include "test.h"

#include "host_toy.h"
#include "ir/ir.h"

enum { ROWS = 5, COLS = 7, N = ROWS * COLS };

static void
compare(rt_init init, ir_init same, uint64_t seed)
{
    const char *name = "encoder.layer.0.attention.self.query.lora_A";
    ef_ctx *ctx = ef_ctx_new();
    ir_module *m = ir_module_new(ctx);
    int unit = ir_unit_new(m, "u");
    ir_param *ip = ir_param_new(
        m, name, ir_type_get(ctx, IR_F32, 2, (int64_t[]){ROWS, COLS}), IR_TRAIN, unit);
    ip->init = same;
    rt_param rp = {.name = name, .init = init, .n = N, .rank = 2, .dim = {ROWS, COLS}};
    float a[N], b[N];
    NEED(ir_read_f32(m, ip, seed, 0, N, a));
    rt_init_fill(&rp, seed, b);
    CHECK(!memcmp(a, b, sizeof a));
    ir_module_free(m);
    ef_ctx_free(ctx);
}

TEST(trainer_and_interpreter_agree)
{
    compare(RT_INIT_KAIMING, IR_INIT_KAIMING, 42);
    compare(RT_INIT_KAIMING, IR_INIT_KAIMING, 0);
    compare(RT_INIT_NORMAL, IR_INIT_NORMAL, 42);
    compare(RT_INIT_ZERO, IR_INIT_ZERO, 42);
}

TEST(distributions)
{
    enum { BIG = 40000 };
    float *x = malloc(BIG * sizeof *x);
    rt_param p = {
        .name = "a", .init = RT_INIT_KAIMING, .n = BIG, .rank = 2, .dim = {400, 100}};
    rt_init_fill(&p, 1, x);
    double sum = 0, square = 0, most = 0;
    for (int i = 0; i < BIG; i++) {
        sum += x[i];
        square += (double)x[i] * x[i];
        most = fmax(most, fabs(x[i]));
    }
    CHECK(most <= 0.1 && most > 0.0999);
    CHECK_NEAR(sum / BIG, 0, 1e-3);
    CHECK_NEAR(square / BIG, 0.01 / 3, 1e-4);
    p.init = RT_INIT_NORMAL;
    rt_init_fill(&p, 1, x);
    sum = square = 0;
    for (int i = 0; i < BIG; i++) {
        sum += x[i];
        square += (double)x[i] * x[i];
    }
    CHECK_NEAR(sum / BIG, 0, 5e-4);
    CHECK_NEAR(sqrt(square / BIG), 0.02, 3e-4);
    free(x);
}

TEST(names_and_seeds_give_different_numbers)
{
    float a[4], b[4], c[4];
    rt_param p = {.name = "a", .init = RT_INIT_NORMAL, .n = 4, .rank = 1, .dim = {4}};
    rt_init_fill(&p, 1, a);
    rt_init_fill(&p, 2, b);
    p.name = "b";
    rt_init_fill(&p, 1, c);
    CHECK(memcmp(a, b, sizeof a) && memcmp(a, c, sizeof a));
}
