/* cuda_limits_test.c -- what ptxas says of kernels, judged; its words are as nvcc 13.0 prints them. */
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "codegen/cg.h"
#include "codegen/cuda_limits.h"
#include "said.h"

static const char source[] = "/* kernels.cu */\n"
                             "#include <efficc_cuda.h>\n"
                             "\n"
                             "/* %y = tanh %x : f32[8]  !\"/h.0/Tanh\" */\n"
                             "static __global__ void\n"
                             "k0_(uint32_t n, float *y0, const float *x0)\n"
                             "{\n"
                             "}\n"
                             "/* %z = mul %y, %y :\n"
                             " * f32[8]  !\"/h.0/Mul\" */\n"
                             "static __global__ void\n"
                             "k10_(uint32_t n, float *y0, const float *x0)\n"
                             "{\n"
                             "    k0_(n, y0, x0);\n"
                             "}\n";

#define KERNEL(symbol, arch, spills, used)                                   \
    "ptxas info    : Compiling entry function '" symbol "' for '" arch "'\n" \
    "ptxas info    : Function properties for " symbol "\n"                   \
    "    " spills "\n"                                                       \
    "ptxas info    : " used "\n"                                             \
    "ptxas info    : Compile time = 1.104 ms\n"
#define NONE "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"

static bool
judge(said *s, const char *output, int64_t threads, int64_t shared)
{
    const cg_launch launch = {threads, shared};
    said_clear(s);
    s->ctx->nbug = 0;
    return cg_cuda_limits(s->ctx, output, source, &launch);
}

static const char small[] = "ptxas info    : 0 bytes gmem\n" KERNEL(
    "_Z3k0_jPfPKf", "sm_80", NONE,
    "Used 10 registers, used 1 barriers, 4000 bytes smem, 360 bytes cmem[0]")
    KERNEL("_Z4k10_jPfPKf", "sm_90", NONE, "Used 206 registers, used 0 barriers");

TEST(kernels_that_fit)
{
    said s;
    said_open(&s);
    CHECK(judge(&s, small, 256, 0));
    CHECK(judge(&s, "", 256, 0));
    CHECK(judge(&s, "nvcc warning : something else\n", 1024, 1 << 30));
    CHECK_STR(said_text(&s), "");
    said_close(&s);
}

TEST(registers_of_all_threads)
{
    said s;
    said_open(&s);
    CHECK(judge(&s, small, 288, 0)); /* 206 take 208 */
    CHECK(judge(&s, small, 289, 0) == false);
    CHECK(said_has(&s, "/h.0/Mul: error: kernel k10_ can not be launched on sm_90 "
                       "(H100, H200): 206 registers for each of 289 threads are 66560, "
                       "of 65536; this is a bug of efficc"));
    CHECK(said_has(&s, "note: written for: %z = mul %y, %y : f32[8]  !\"/h.0/Mul\""));
    CHECK(strstr(said_text(&s), "k0_ can") == NULL);
    CHECK(s.ctx->nbug == 1);
    said_close(&s);
}

TEST(threads_of_a_block)
{
    said s;
    said_open(&s);
    CHECK(
        !judge(&s, KERNEL("_Z3k0_jPfPKf", "sm_90", NONE, "Used 8 registers"), 1025, 0));
    CHECK(said_has(&s, "/h.0/Tanh: error: kernel k0_ can not be launched on sm_90"));
    CHECK(said_has(&s, "a block has 1025 threads, of 1024"));
    said_close(&s);
}

TEST(shared_memory_static_and_dynamic)
{
    static const struct {
        const char *output;
        int64_t most; /* dynamic bytes that fit beside 4000 */
    } row[] = {
#define USED "Used 10 registers, 4000 bytes smem"
        {KERNEL("_Z3k0_jPf", "sm_80", NONE, USED), 162912},
        {KERNEL("_Z3k0_jPf", "sm_89", NONE, USED), 97376},
        {KERNEL("_Z3k0_jPf", "sm_90", NONE, USED), 228448},
        {KERNEL("_Z3k0_jPf", "sm_100", NONE, USED), 228448},
    };
    said s;
    said_open(&s);
    for (size_t i = 0; i < EF_COUNT(row); i++) {
        CHECK(judge(&s, row[i].output, 128, row[i].most));
        CHECK(!judge(&s, row[i].output, 128, row[i].most + 1));
        CHECK(said_has(&s, "bytes of shared memory, of"));
    }
    said_close(&s);
}

TEST(what_ptxas_refuses_is_named)
{
    said s;
    said_open(&s);
    CHECK(!judge(&s,
                 "ptxas error   : Entry function '_Z3k0_Pf' uses too much shared data "
                 "(0x13880 bytes, 0xc000 max)\n",
                 128, 0));
    CHECK(said_has(&s, "/h.0/Tanh: error: kernel k0_ can not be launched on this card: "
                       "uses too much shared data (0x13880 bytes, 0xc000 max)"));
    said_close(&s);
}

TEST(symbols)
{
    static const char *const symbol[] = {
        "_Z3k0_jPfPKf",
        "_ZL3k0_jPf",
        "_Z3k0_IfLi8EEvPT_",
        "_ZN2ns3k0_EPi",
        "_ZN44_INTERNAL_1a2b3c4d_10_kernels_cu_12345678_123k0_EPi",
        "k0_"};
    said s;
    said_open(&s);
    for (size_t i = 0; i < EF_COUNT(symbol); i++) {
        const char *line = ef_printf(
            s.ctx->arena,
            "Compiling entry function '%s' for 'sm_90'\n: Used 8 registers", symbol[i]);
        CHECK(!judge(&s, line, 2000, 0));
        CHECK(said_has(&s, "kernel k0_ can not"));
    }
    CHECK(!judge(&s,
                 "Compiling entry function '_Z99k0' for 'sm_90'\n: Used 8 registers",
                 2000, 0));
    CHECK(said_has(&s, "kernel _Z99k0 can not"));
    said_close(&s);
}

TEST(spills_are_a_note)
{
    static const char spills[] =
        KERNEL("_Z3k0_jPf", "sm_80",
               "560 bytes stack frame, 1036 bytes spill stores, 1080 bytes spill loads",
               "Used 64 registers, used 0 barriers, 560 bytes cumulative stack size");
    said s;
    char *text = NULL;
    size_t n = 0;
    said_open(&s);
    s.ctx->report = open_memstream(&text, &n);
    CHECK(judge(&s, spills, 1024, 0));
    CHECK(judge(&s, small, 128, 0));
    fclose(s.ctx->report);
    CHECK_STR(text,
              "note        kernel k0_ has too few registers on sm_80: 1036 bytes go "
              "to memory, 1080 come from it\n");
    CHECK_STR(said_text(&s), "");
    free(text);
    said_close(&s);
}

/* ---- programs ---- */

typedef struct bench {
    said s;
    ef_config cfg;
    char dir[40];
} bench;

static void
bench_open(bench *k)
{
    said_open(&k->s);
    k->cfg = ef_config_default;
    k->cfg.target = "cuda";
    k->cfg.argv_run = "efficc test";
    k->s.ctx->cfg = &k->cfg;
    strcpy(k->dir, "/tmp/efficc-limits-XXXXXX");
    NEED(mkdtemp(k->dir) != NULL);
}

static void
bench_close(bench *k)
{
    char cmd[80];
    snprintf(cmd, sizeof cmd, "rm -rf %s", k->dir);
    said_close(&k->s);
    CHECK(system(cmd) == 0);
}

/* Emits a program with one kernel, of n elements. */
static bool
emit(bench *k, const char *n)
{
    ef_ctx *ctx = k->s.ctx;
    const char *text =
        ef_printf(ctx->arena,
                  "efficc-ir 1 canon recognise task eval grad cse optim dce\n"
                  "unit 0 \"u\"\nmeta input.i \"ids\"\n"
                  "param $w : f32[%s] frozen unit=0 normal\n"
                  "func $step(%%i : i64[4]) {\n@b: fwd unit=0\n"
                  "  %%a = tanh $w : f32[%s]  !\"/Tanh\"\n  ret %%a\n}\n",
                  n, n);
    ir_module *m = ir_parse(ctx, "t.ir", text);
    const pass_target *target = cg_target(ctx);
    NEED(m && target);
    pass_ctx pc = {m, ef_arena_new(), target};
    bool ok = pass_plan(&pc) && cg_emit(m, target, k->dir);
    ef_arena_free(pc.scratch);
    ir_module_free(m);
    return ok;
}

TEST(blocks_of_a_launch)
{
    bench k;
    bench_open(&k);
    CHECK(!emit(&k, "1099511627775"));
    CHECK(said_has(&k.s, "/Tanh: error: tanh can not be lowered to the cuda target: it "
                         "has more elements than a launch has threads"));
    bench_close(&k);
}

TEST(a_build_stops_at_a_kernel_that_does_not_fit)
{
    bench k;
    bench_open(&k);
    NEED(emit(&k, "64"));
    char *nvcc = ef_printf(k.s.ctx->arena, "%s/nvcc", k.dir);
    FILE *f = fopen(nvcc, "w");
    NEED(f != NULL);
    fputs(
        "#!/bin/sh\n"
        "echo \"ptxas info    : Compiling entry function '_Z3k0_jPfPKf' for 'sm_90'\"\n"
        "echo 'ptxas info    : Used 300 registers, used 0 barriers'\n",
        f);
    CHECK(fchmod(fileno(f), 0755) == 0);
    fclose(f);
    k.cfg.nvcc = nvcc;
    CHECK(!cg_build(k.s.ctx, k.dir));
    CHECK(said_has(&k.s, "/Tanh: error: kernel k0_ can not be launched on sm_90"));
    CHECK(said_has(&k.s, "note: written for: %a = tanh $w : f32[64]  !\"/Tanh\""));
    bench_close(&k);
}

TEST(cards)
{
    ef_arena *a = ef_arena_new();
    CHECK(cg_arch_find(CG_ARCH_DEFAULT) &&
          cg_arch_find(CG_ARCH_DEFAULT)->shared == 232448);
    CHECK(cg_arch_find("sm_80") && cg_arch_find("sm_80")->shared == 166912);
    CHECK(cg_arch_find("sm_89") && cg_arch_find("sm_89")->shared == 101376);
    CHECK(!cg_arch_find("sm_9") && !cg_arch_find("90"));
    CHECK_STR(cg_arch_names(a), "sm_80, sm_86, sm_89, sm_90, sm_100, sm_103, sm_120");
    ef_arena_free(a);
}
