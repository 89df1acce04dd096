/* data_test.c -- the first contents of params: files of every element type, literals, and
 * the generator, which is the trainer's.
 */
#include "test.h"

#include "ir/ir.h"
#include "runtime/host/host_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ef_ctx *
context(void)
{
    ef_ctx *ctx = ef_ctx_new();
    ctx->diag = tmpfile();
    NEED(ctx->diag != NULL);
    return ctx;
}

static void
done(ef_ctx *ctx, ir_module *m)
{
    ir_module_free(m);
    fclose(ctx->diag);
    ef_ctx_free(ctx);
}

static ir_param *
param(ir_module *m, const char *name, ir_dtype d, int64_t rows, int64_t cols)
{
    if (!m->units.n)
        ir_unit_new(m, "all");
    const ir_type *t = ir_type_get(m->ctx, d, 2, (int64_t[]){rows, cols});
    return ir_param_new(m, name, t, IR_FROZEN, 0);
}

/* `data` behind 3 bytes of something else, as elements of type d: read as doubles. */
static void
check_file(ir_dtype d, const void *data, size_t size, int n, const double *want)
{
    char path[] = "/tmp/efficc-data-XXXXXX";
    int fd = mkstemp(path);
    NEED(fd >= 0);
    NEED(write(fd, "abc", 3) == 3);
    NEED(write(fd, data, size * (size_t)n) == (ssize_t)(size * (size_t)n));
    close(fd);
    ef_ctx *ctx = context();
    ir_module *m = ir_module_new(ctx);
    ir_param *p = param(m, "w", IR_F32, 1, n);
    p->init = IR_INIT_FILE;
    p->path = path;
    p->at = 3;
    p->file_dtype = d;
    double got[8] = {0};
    float some[8] = {0};
    CHECK(ir_read_f64(m, p, 0, 0, n, got));
    CHECK(ir_read_f32(m, p, 0, 1, n - 1, some));
    for (int i = 0; i < n; i++)
        CHECK(got[i] == want[i] && (i == 0 || some[i - 1] == (float)want[i]));
    NEED(truncate(path, 3 + (off_t)size * n - 1) == 0);
    CHECK(!ir_read_f64(m, p, 0, 0, n, got));
    CHECK(ctx->nerror == 1);
    unlink(path);
    done(ctx, m);
}

TEST(files_of_every_element_type_are_converted)
{
    check_file(IR_F32, (float[]){1.5f, -2, 0.1f}, 4, 3, (double[]){1.5, -2, 0.1f});
    check_file(IR_F16, (uint16_t[]){0x3c00, 0xc000, 0x0001, 0x7c00, 0x3555}, 2, 5,
               (double[]){1, -2, 0x1p-24, INFINITY, 0.333251953125});
    check_file(IR_BF16, (uint16_t[]){0x3f80, 0xc000, 0xff80}, 2, 3,
               (double[]){1, -2, -INFINITY});
    check_file(IR_I64, (int64_t[]){-100, (int64_t)1 << 52}, 8, 2,
               (double[]){-100, 0x1p52});
    check_file(IR_I32, (int32_t[]){-7, 2147483647}, 4, 2, (double[]){-7, 2147483647});
    check_file(IR_I8, (int8_t[]){-128, 127}, 1, 2, (double[]){-128, 127});
    check_file(IR_U8, (uint8_t[]){0, 255}, 1, 2, (double[]){0, 255});
    check_file(IR_BOOL, (uint8_t[]){1, 0}, 1, 2, (double[]){1, 0});
}

TEST(a_missing_file_is_named)
{
    ef_ctx *ctx = context();
    ir_module *m = ir_module_new(ctx);
    ir_param *p = param(m, "emb.weight", IR_F32, 2, 2);
    p->init = IR_INIT_FILE;
    p->path = "/nonexistent/weights.bin";
    double x[4];
    char said[256] = "";
    CHECK(!ir_read_f64(m, p, 0, 0, 4, x));
    rewind(ctx->diag);
    said[fread(said, 1, sizeof said - 1, ctx->diag)] = 0;
    CHECK(strstr(said, "emb.weight") && strstr(said, "/nonexistent/weights.bin"));
    done(ctx, m);
}

TEST(any_piece_of_a_param_can_be_read)
{
    enum { N = 20000 }; /* more than is converted at a time */
    ef_ctx *ctx = context();
    ir_module *m = ir_module_new(ctx);
    ir_param *p = param(m, "w", IR_F32, N / 100, 100);
    static double all[N], piece[N];
    static float floats[N];
    p->init = IR_INIT_NORMAL;
    CHECK(ir_read_f64(m, p, 7, 0, N, all));
    CHECK(ir_read_f64(m, p, 7, 12345, 100, piece));
    CHECK(!memcmp(all + 12345, piece, 100 * sizeof *piece));
    CHECK(ir_read_f32(m, p, 7, 0, N, floats));
    for (int i = 0; i < N; i++)
        CHECK(floats[i] == (float)all[i]);
    double values[] = {1, 2, 3, 4};
    ir_param *q = param(m, "q", IR_I64, 2, 2);
    q->init = IR_INIT_VALUES;
    q->values = values;
    CHECK(ir_read_f64(m, q, 0, 1, 2, piece) && piece[0] == 2 && piece[1] == 3);
    p->init = IR_INIT_ZERO;
    CHECK(ir_read_f64(m, p, 0, 0, 2, piece) && piece[0] == 0 && piece[1] == 0);
    done(ctx, m);
}

TEST(generated_values_have_the_right_distribution)
{
    enum { N = 40000 };
    ef_ctx *ctx = context();
    ir_module *m = ir_module_new(ctx);
    ir_param *p = param(m, "head.weight", IR_F32, N / 100, 100);
    static double x[N], y[N];
    double mean = 0, square = 0, low = 1, high = -1;
    p->init = IR_INIT_NORMAL;
    CHECK(ir_read_f64(m, p, 1, 0, N, x));
    for (int i = 0; i < N; i++) {
        mean += x[i] / N;
        square += x[i] * x[i] / N;
    }
    CHECK_NEAR(mean, 0, 4 * 0.02 / sqrt(N));
    CHECK_NEAR(sqrt(square), 0.02, 0.0003);
    p->init = IR_INIT_KAIMING; /* of 100 inputs: within 0.1 */
    CHECK(ir_read_f64(m, p, 1, 0, N, x));
    for (int i = 0; i < N; i++) {
        low = fmin(low, x[i]);
        high = fmax(high, x[i]);
    }
    CHECK(low > -0.1 && low < -0.0999 && high < 0.1 && high > 0.0999);
    CHECK(ir_read_f64(m, p, 2, 0, N, y)); /* another seed */
    CHECK(memcmp(x, y, sizeof x) != 0);
    ir_param *q = param(m, "head.bias", IR_F32, N / 100, 100); /* another name */
    q->init = IR_INIT_KAIMING;
    CHECK(ir_read_f64(m, q, 1, 0, N, y));
    CHECK(memcmp(x, y, sizeof x) != 0);
    done(ctx, m);
}

TEST(the_trainer_makes_the_same_values)
{
    enum { ROWS = 6, COLS = 7 };
    ef_ctx *ctx = context();
    ir_module *m = ir_module_new(ctx);
    ir_param *p = param(m, "layer.0.q.lora_A", IR_F32, ROWS, COLS);
    rt_param q = {.name = "layer.0.q.lora_A",
                  .n = (int64_t)ROWS * COLS,
                  .rank = 2,
                  .dim = {ROWS, COLS}};
    for (int normal = 0; normal < 2; normal++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            float a[ROWS * COLS], b[ROWS * COLS];
            p->init = normal ? IR_INIT_NORMAL : IR_INIT_KAIMING;
            q.init = normal ? RT_INIT_NORMAL : RT_INIT_KAIMING;
            CHECK(ir_read_f32(m, p, seed, 0, ROWS * COLS, a));
            rt_init_fill(&q, seed, b);
            CHECK(!memcmp(a, b, sizeof a));
        }
    done(ctx, m);
}
