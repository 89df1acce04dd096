/* clang_check_test.c -- what libclang finds in sources, and how efficc says it. */
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "codegen/cg.h"
#include "codegen/clang_check.h"
#include "passes/pass.h"
#include "said.h"

typedef struct bench {
    said s;
    char dir[64];
} bench;

static void
bench_open(bench *k)
{
    said_open(&k->s);
    strcpy(k->dir, "/tmp/efficc-clang-XXXXXX");
    NEED(mkdtemp(k->dir) != NULL);
}

static void
bench_close(bench *k)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", k->dir);
    said_close(&k->s);
    CHECK(system(cmd) == 0);
}

static const char *
put(bench *k, const char *name, const char *text)
{
    const char *path = ef_printf(k->s.ctx->arena, "%s/%s", k->dir, name);
    FILE *f = fopen(path, "w");
    NEED(f != NULL);
    fputs(text, f);
    CHECK(fclose(f) == 0);
    return path;
}

/* ---- C ---- */

static const char header[] = "#include <stdbool.h>\n"
                             "#include <stdint.h>\n"
                             "typedef struct rt_stream rt_stream;\n"
                             "typedef enum rt_dtype { RT_F32, RT_I64 } rt_dtype;\n"
                             "typedef enum rt_class { RT_TRAIN } rt_class;\n"
                             "void rt_sum(rt_stream *, float *y,\n"
                             "            const float *x, int64_t n, rt_dtype);\n";

/* A step with one call, below its line of the IR. */
static bool
check_step(bench *k, const char *call, const cg_headers *h)
{
    const char *text = ef_printf(k->s.ctx->arena,
                                 "/* step.c -- made of a model, 100 %% */\n"
                                 "#include <efficc_rt.h>\n"
                                 "void step(rt_stream *st, float *y, int64_t *i);\n"
                                 "void step(rt_stream *st, float *y, int64_t *i)\n"
                                 "{\n"
                                 "    (void)i;\n"
                                 "    /* %%y = sum %%x :\n"
                                 "     * f32[8]  !\"/h.0/Sum\" */\n"
                                 "    %s\n"
                                 "}\n",
                                 call);
    said_clear(&k->s);
    k->s.ctx->nbug = 0;
    put(k, "efficc_rt.h", header);
    return cg_check_file(k->s.ctx, put(k, "step.c", text), h);
}

TEST(calls_that_fit_pass)
{
    bench k;
    bench_open(&k);
    cg_headers h = {.runtime = k.dir};
    CHECK(check_step(&k, "rt_sum(st, y, y + 8, 8, RT_F32);", &h));
    CHECK_STR(said_text(&k.s), "");
    h.resource = "/none"; /* the compiler's headers serve, then */
    CHECK(check_step(&k, "rt_sum(st, y, y + 8, 8, RT_F32);", &h));
    CHECK_STR(said_text(&k.s), "");
    bench_close(&k);
}

static const struct {
    const char *call, *said;
} wrong_calls[] = {
    {"rt_sum(st, y, y + 8, RT_F32);", "step.c:9: too few arguments"},
    {"rt_sum(st, y, y, 8, 8, RT_F32);", "step.c:9: too many arguments"},
    {"rt_sum(st, i, y + 8, 8, RT_F32);", "'int64_t *' (aka 'long *') to parameter of"},
    {"rt_sum(st, y, 3, 8, RT_F32);", "step.c:9: incompatible integer to pointer"},
    {"rt_sum(st, y, y + 8, 0.5f, RT_F32);", "step.c:9: implicit conversion"},
    {"rt_sum(st, y, y + 8, 8, RT_TRAIN);", "different enumeration type 'rt_dtype'"},
    {"rt_sum(st, y, y + 8, 8, 7);", "step.c:9: integer constant not in range"},
    {"rt_sum(st, y, z,\n        8, RT_F32);", "step.c:9: use of undeclared identifier"},
};

TEST(calls_that_do_not_fit_are_named_with_their_declaration)
{
    bench k;
    bench_open(&k);
    if (!cg_checks()) {
        bench_close(&k);
        SKIP("no libclang");
    }
    const cg_headers h = {.runtime = k.dir};
    for (size_t i = 0; i < EF_COUNT(wrong_calls); i++) {
        CHECK(!check_step(&k, wrong_calls[i].call, &h));
        CHECK(said_has(&k.s, wrong_calls[i].said));
        CHECK(said_has(&k.s, "/h.0/Sum: error: step.c:9: "));
        CHECK(said_has(&k.s, "note: written for: %y = sum %x : f32[8]  !\"/h.0/Sum\""));
        CHECK(said_has(&k.s, "note: rt_sum is declared in /tmp/efficc-clang-"));
        CHECK(said_has(&k.s, "/efficc_rt.h:6\n"));
        CHECK(k.s.ctx->nbug > 0);
    }
    CHECK(said_has(&k.s, "note: rt_sum(st, y, z, 8, RT_F32);"));
    bench_close(&k);
}

TEST(names_that_no_header_has)
{
    bench k;
    bench_open(&k);
    if (!cg_checks()) {
        bench_close(&k);
        SKIP("no libclang");
    }
    const cg_headers h = {.runtime = k.dir};
    CHECK(!check_step(&k, "rt_sun(st, y, y + 8, 8, RT_F32);", &h));
    CHECK(said_has(&k.s, "no header declares rt_sun"));
    CHECK(!check_step(&k, "a(1); b(2); c(3); d(4); e(5); f(6);", &h));
    CHECK(said_has(&k.s, "implicit declaration of function 'd'"));
    CHECK(!strstr(said_text(&k.s), "of function 'e'"));
    CHECK(said_has(&k.s, "and more in step.c"));
    bench_close(&k);
}

TEST(headers_that_clang_can_not_read_stop_nobody)
{
    bench k;
    bench_open(&k);
    if (!cg_checks()) {
        bench_close(&k);
        SKIP("no libclang");
    }
    const char *sub = ef_printf(k.s.ctx->arena, "%s/sys", k.dir);
    const cg_headers h = {.runtime = sub};
    NEED(!mkdir(sub, 0777));
    put(&k, "sys/efficc_rt.h", "typedef _Newer17 rt_newer;\n");
    CHECK(check_step(&k, "rt_sum(st, y);", &h));
    CHECK(said_has(&k.s, "warning: step.c was not checked before it is compiled: "));
    CHECK(said_has(&k.s, "/sys/efficc_rt.h:1: unknown type name '_Newer17'"));
    CHECK(k.s.ctx->nbug == 0 && k.s.ctx->nwarning == 1);
    bench_close(&k);
}

/* ---- CUDA ---- */

static const char kernels[] =
    "#include <efficc_cuda.h>\n"
    "#include <unistd.h>\n"
    "static int host_only(int x) { return x + 1; }\n"
    "/* %%y = scale %%x : f32[8]  !\"/h.0/Mul\" */\n"
    "static __global__ void\n"
    "k0_device(float *y, const float *x, int64_t n)\n"
    "{\n"
    "    __shared__ float s[32];\n"
    "    RT_DYNAMIC_SHARED(uint32_t, d);\n"
    "    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    s[threadIdx.x %% 32] = __shfl_xor_sync(0xffffffff, x[i], 16);\n"
    "    __syncthreads();\n"
    "    float acc[4] = {expf(s[0]), fmaxf(s[1], 0.f), INFINITY, 0.f};\n"
    "    rt_mma_bf16(acc, d, d + 4);\n"
    "    rt_copy_wait<1>();\n"
    "    if (i < n)\n"
    "        y[i] = acc[0] + __bfloat162float(__float2bfloat16_rn(acc[1])) + %s;\n"
    "}\n"
    "extern \"C\" void\n"
    "k0(cudaStream_t st, float *y, const float *x, int64_t n)\n"
    "{\n"
    "    int launched = host_only(0);\n"
    "    RT_LAUNCH(k0_device, dim3(8), dim3(256), 128, st, %s);\n"
    "    (void)launched;\n"
    "}\n";

static bool
check_kernels(bench *k, const char *value, const char *args)
{
    const cg_headers own = {0};
    said_clear(&k->s);
    const char *text = ef_printf(k->s.ctx->arena, kernels, value, args);
    return cg_check_file(k->s.ctx, put(k, "kernels.cu", text), &own);
}

static const struct {
    const char *value, *args, *said, *also;
} wrong_kernels[] = {
    {"(float)host_only(1)", "y, x, n",
     "/h.0/Mul: error: kernels.cu:17: no matching function for call to 'host_only': "
     "call to __host__ function from __global__ function",
     "y[i] = acc[0]"},
    {"(float)getpid()", "y, x, n",
     "kernels.cu:17: no matching function for call to 'getpid'",
     "call to __host__ function"},
    {"t7", "y, x, n", "kernels.cu:17: use of undeclared identifier 't7'",
     "!\"/h.0/Mul\""},
    {"expf(1.f, 2.f)", "y, x, n",
     "kernels.cu:17: no matching function for call to 'expf'", "requires"},
    {"x", "y, x, n", "kernels.cu:17: invalid operands", "'const float *'"},
    {"1.f", "y, x", "kernels.cu:23: no matching function", "k0_device is declared in"},
    {"1.f", "y, &n, n", "kernels.cu:23: no matching function", "'const float *'"},
    {"1.f", "y, x, 0.5f", "kernels.cu:23: implicit conversion", "/kernels.cu:6"},
};

TEST(kernels_are_read_without_a_toolkit)
{
    bench k;
    bench_open(&k);
    bool ok = check_kernels(&k, "0.f", "y, x, n");
    CHECK(ok);
    ok = check_kernels(&k, "(float)TO_I64(MAX(x[0], 1))", "y, x, n");
    CHECK(ok);
    CHECK_STR(said_text(&k.s), "");
    bench_close(&k);
}

TEST(what_is_wrong_in_kernels_is_found)
{
    bench k;
    bench_open(&k);
    if (!cg_checks()) {
        bench_close(&k);
        SKIP("no libclang");
    }
    for (size_t i = 0; i < EF_COUNT(wrong_kernels); i++) {
        CHECK(!check_kernels(&k, wrong_kernels[i].value, wrong_kernels[i].args));
        CHECK(said_has(&k.s, wrong_kernels[i].said));
        CHECK(said_has(&k.s, wrong_kernels[i].also));
    }
    bench_close(&k);
}

/* ---- emitted programs ---- */

static const char program[] =
    "efficc-ir 1 canon recognise task eval grad cse optim dce\n"
    "unit 0 \"u\"\nmeta input.i \"ids\"\nparam $w : f32[4,8] frozen unit=0 normal\n"
    "func $step(%i : i64[4]) {\n@b: fwd unit=0\n"
    "  %a = tanh $w : f32[4,8]\n"
    "  %s = softmax %a : f32[4,8]  !\"/Softmax\"\n  ret %s\n}\n";

/* Emits the program and replaces `from` in step.c, if it is given. */
static void
emit(bench *k, const char *from, const char *to)
{
    ef_ctx *ctx = k->s.ctx;
    ir_module *m = ir_parse(ctx, "t.ir", program);
    const pass_target *target = cg_target(ctx);
    if (!m)
        printf("%s", said_text(&k->s));
    NEED(m != NULL);
    pass_ctx pc = {m, ef_arena_new(), target};
    NEED(pass_plan(&pc) && cg_emit(m, target, k->dir));
    ef_arena_free(pc.scratch);
    ir_module_free(m);
    size_t n;
    const char *path = ef_printf(ctx->arena, "%s/src/step.c", k->dir);
    const char *text = ef_read_file(ctx->arena, path, 1 << 24, &n);
    const char *at = from ? strstr(text, from) : text;
    NEED(at != NULL);
    put(k, "src/step.c",
        from ? ef_printf(ctx->arena, "%.*s%s%s", (int)(at - text), text, to,
                         at + strlen(from))
             : text);
}

TEST(a_build_stops_at_a_bug_of_ours)
{
    bench k;
    bench_open(&k);
    ef_config cfg = ef_config_default;
    cfg.argv_run = "efficc test";
    cfg.build = false;
    k.s.ctx->cfg = &cfg;
    emit(&k, NULL, NULL);
    CHECK(cg_build(k.s.ctx, k.dir));
    CHECK_STR(said_text(&k.s), "");
    emit(&k, "rt_softmax(st, ", "rt_softmax(st, st, ");
    CHECK(cg_build(k.s.ctx, k.dir) == !cg_checks());
    if (cg_checks()) {
        CHECK(said_has(&k.s, "/Softmax: error: step.c:"));
        CHECK(said_has(&k.s, "too many arguments to function call"));
        CHECK(said_has(&k.s, "note: rt_softmax is declared in " SRC_DIR
                             "/runtime/include/efficc_rt.h:"));
        CHECK(said_has(&k.s, "note: the sources: /tmp/efficc-clang-"));
    }
    bench_close(&k);
}

TEST(version_tells_whether_sources_are_checked)
{
    const char *word = cg_checks() ? "are checked before" : "not checked";
    CHECK(strstr(cg_check_about(), word) != NULL);
}
