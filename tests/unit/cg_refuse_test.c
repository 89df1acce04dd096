/* cg_refuse_test.c -- what codegen refuses, and how it says so: modules, targets, folders, compilers. */
#include <sys/stat.h>
#include <unistd.h>

#include "cg_rig.h"
#include "codegen/toolkit.h"

static void
refused(const char *text, const char *why)
{
    rig r;
    rig_open(&r, text);
    CHECK(!plan_and_emit(&r));
    CHECK(said_has(&r.s, why));
    rig_close(&r);
}

TEST(functions_that_do_not_fit_are_refused)
{
    static const char *const rows[][2] = {
        {"efficc-ir 1 plan\nunit 0 \"u\"\n", "the module has no function step"},
        {MODULE("", "  ret") "func $eval() {\n@b: fwd unit=0\n  ret\n}\n",
         "eval has other arguments than step"},
        {MODULE("", "  ret") "func $eval(%i : i64[5]) {\n@b: fwd unit=0\n  ret\n}\n",
         "eval has other arguments than step"}};
    for (size_t i = 0; i < EF_COUNT(rows); i++) {
        rig r;
        rig_open(&r, rows[i][0]);
        CHECK(!plan_and_emit(&r) && said_has(&r.s, rows[i][1]));
        rig_close(&r);
    }
}

TEST(element_types_without_kernels_are_refused)
{
    refused(
        MODULE("param $w : i4[4] const unit=0 zero", "  %a = cast $w : f32[4] !\"/t\"\n"
                                                     "  ret %a"),
        "/t: error: cast can not be lowered to the cpu target: no elements of type i4 "
        "yet [E0401]");
    refused(
        MODULE("param $w : bf16[4,2] frozen unit=0 zero",
               "  %a = softmax $w : bf16[4,2]\n  ret %a"),
        "softmax can not be lowered to the cpu target: w is bf16[4,2], and only f32 is "
        "implemented");
    refused(
        MODULE(
            "param $w : f32[4,2] frozen unit=0 zero\nparam $k : i32[3] const unit=0 = "
            "0 1 2",
            "  %a = gather $w, $k {axis=0} : f32[3,2] !\"/g\"\n  ret %a"),
        "gather can not be lowered to the cpu target: k is i32[3], and only i64 is "
        "implemented");
    refused(MODULE("param $w : i32[4] const unit=0 zero", "  ret"),
            "a parameter of type i32[4]");
}

TEST(named_dimensions_are_refused_where_their_size_would_be_baked_in)
{
#define OF_ROWS(meta, body)                                                         \
    "efficc-ir 1 canon recognise task eval grad cse optim dce\nunit 0 \"u\"\n" meta \
    "meta input.row \"row\"\nparam $w : f32[4,2] frozen unit=0 zero\n"              \
    "func $step(%row : i64[rows:6]) {\n@b: fwd unit=0\n"                            \
    "  %x = gather $w, %row {axis=0} : f32[rows:6,2]\n" body "}\n"
    refused(OF_ROWS("meta sizes.rows \"2 6\"\n",
                    "  %m = reduce_mean %x {axes=[0]} : f32[2]\n  ret %m\n"),
            "reduce_mean can not be lowered to the cpu target: of a named dimension "
            "there is only the sum");
    refused(OF_ROWS("meta sizes.rows \"2 6\"\n",
                    "  %t = transpose %x {perm=[1,0]} : f32[2,rows:6]\n  ret %t\n"),
            "a named dimension does not stand first");
    refused(OF_ROWS("meta sizes.rows \"2 6\"\n",
                    "  %t = matmul %x, %x {tb=1} : f32[rows:6,rows:6]\n  ret %t\n"),
            "matmul can not be lowered to the cpu target");
    refused(OF_ROWS("", "  ret %x\n"), "meta sizes.rows does not list the sizes");
    refused(OF_ROWS("meta sizes.rows \"6 2\"\n", "  ret %x\n"),
            "meta sizes.rows does not list the sizes");
    refused(OF_ROWS("meta sizes.rows \"2 5\"\n", "  ret %x\n"),
            "meta sizes.rows does not list the sizes");
    refused(OF_ROWS("meta sizes.rows \"1 2 3 4 5 6 7 8 9\"\n", "  ret %x\n"),
            "meta sizes.rows does not list the sizes");
#undef OF_ROWS
}

TEST(an_input_without_a_role_is_refused)
{
    refused("efficc-ir 1 canon recognise task eval grad cse optim dce\nunit 0 \"u\"\n"
            "func $step(%what : i64[4]) {\n@b: fwd unit=0\n  ret\n}\n",
            "what: error: the input has no role");
}

TEST(targets_and_their_options_are_checked)
{
    static const struct {
        ef_config c;
        const char *want;
    } row[] = {
        {{.target = "abacus"},
         "option --target: there is no target 'abacus', only cpu and cuda"},
        {{.target = "cpu", .threads = 5000}, "5000 is more than 4096"},
        {{.target = "cuda", .threads = 2}, "option --threads: it is for --target cpu"},
        {{.target = "cpu", .nvcc = "nvcc"}, "option --nvcc: it is for --target cuda"},
        {{.target = "cpu", .cuda_arch = "sm_80"},
         "option --cuda-arch: it is for --target cuda"},
        {{.target = "cuda", .cuda_arch = "sm_70"}, "'sm_70' is not one of sm_80, "},
        {{.target = "cpu", .align = 96}, "96 is not a power of two from 64 to 1048576"},
        {{.target = "cuda", .align = 64}, "64 is not a power of two from 256 to"},
        {{.target = "cpu", .align = 1 << 21}, "2097152 is not a power of two"},
    };
    for (size_t i = 0; i < EF_COUNT(row); i++) {
        rig r;
        rig_open(&r, small);
        r.s.ctx->cfg = &row[i].c;
        CHECK(cg_target(r.s.ctx) == NULL && said_has(&r.s, row[i].want));
        CHECK(r.s.ctx->nerror == 1);
        rig_close(&r);
    }
}

static void
too_wide(const char *text)
{
    rig r;
    rig_open(&r, text);
    r.cfg.target = "cuda";
    r.cfg.threads = 0;
    CHECK(!plan_and_emit(&r));
    CHECK(said_has(&r.s, "heads of 257 columns") && said_has(&r.s, "--target cpu"));
    rig_close(&r);
}

TEST(heads_that_no_kernel_of_the_target_takes_are_refused)
{
#define WIDE(body)                                          \
    MODULE("param $q : f32[2,5,257] frozen unit=0 normal\n" \
           "param $l : f32[2,1,5] frozen unit=0 normal",    \
           body)
#define HEADS "{heads=1, kv_heads=1, head_dim=257, scale=1}"
    too_wide(WIDE("  %y, %m = attention $q, $q, $q " HEADS
                  " : f32[2,5,257], f32[2,1,5]\n  ret %y"));
    too_wide(WIDE("  %dq, %dk, %dv = attention_grad $q, $q, $q, $q, $q, $l " HEADS
                  " : f32[2,5,257], f32[2,5,257], f32[2,5,257]\n  ret %dq, %dk, %dv"));
#undef HEADS
#undef WIDE
}

/* Is it planned for a card? */
static bool
fits_card(const char *text, const char *card, const char *want)
{
    rig r;
    rig_open(&r, text);
    r.cfg.target = "cuda";
    r.cfg.threads = 0;
    r.cfg.cuda_arch = card;
    bool ok = plan_with(&r, cg_target(r.s.ctx));
    if (!ok && !said_has(&r.s, want))
        printf("%s\n", said_text(&r.s));
    CHECK(ok || (said_has(&r.s, want) && r.s.ctx->nerror == 1));
    rig_close(&r);
    return ok;
}

TEST(attention_that_a_card_has_too_little_shared_memory_for_is_refused)
{
#define OF(type, d, body)                                          \
    MODULE("param $q : " type "[2,5," d "] frozen unit=0 normal\n" \
           "param $l : f32[2,1,5] frozen unit=0 normal",           \
           body)
#define ONE(type, d, n)                                                   \
    "  %y" n ", %m" n " = attention $q, $q, $q {heads=1, kv_heads=1, "    \
    "head_dim=" d ", scale=1} : " type "[2,5," d "], f32[2,1,5] !\"/h." n \
    "/Softmax\"\n"
#define FORWARD(type, d) \
    OF(type, d, ONE(type, d, "0") ONE(type, d, "1") "  ret %y0, %y1")
#define GRAD(type, d)                                                                \
    OF(type, d,                                                                      \
       "  %a, %b, %c = attention_grad $q, $q, $q, $q, $q, $l {heads=1, "             \
       "kv_heads=1, head_dim=" d ", scale=1} : " type "[2,5," d "], " type "[2,5," d \
       "], " type "[2,5," d "] !\"/g/Softmax\"\n  ret %a, %b, %c")
    static const char out[] =
        "; --bf16 takes 53376; --cuda-arch sm_80, sm_90, sm_100, sm_103 have enough; "
        "--target cpu has no such limit";
    CHECK(
        !fits_card(FORWARD("f32", "256"), "sm_89",
                   "/h.0/Softmax: error: attention can not be lowered to the cuda "
                   "target: with heads of 256 columns in fp32 it takes 104576 bytes "
                   "of shared memory of a block, and sm_89 (L40, RTX 40) has 101376"));
    CHECK(!fits_card(FORWARD("f32", "129"), "sm_120", out));
    CHECK(!fits_card(GRAD("f32", "192"), "sm_86", "/g/Softmax: error: attention_grad"));
    CHECK(!fits_card(GRAD("f32", "192"), "sm_89", "142848 bytes"));
    CHECK(fits_card(GRAD("f32", "256"), "sm_90", ""));
    CHECK(fits_card(GRAD("f32", "256"), "sm_80", ""));
    CHECK(fits_card(GRAD("f32", "128"), "sm_89", ""));
    CHECK(fits_card(GRAD("bf16", "256"), "sm_89", ""));
    CHECK(fits_card(FORWARD("bf16", "128"), "sm_89", ""));
#undef GRAD
#undef FORWARD
#undef ONE
#undef OF
}

/* Options that are of use for one target mean it; else a device and a toolkit do. */
TEST(the_target_is_chosen_and_the_reason_said)
{
    static const struct {
        ef_config c;
        const char *target, *why;
    } row[] = {
        {{.target = "cuda"}, "cuda", "target      cuda, as the options say"},
        {{.target = "cpu"}, "cpu", "target      cpu, as the options say"},
        {{.threads = 2}, "cpu", "target      cpu, which --threads means"},
        {{.nvcc = "x"}, "cuda", "target      cuda, which --nvcc means"},
        {{.cuda_arch = "sm_80"}, "cuda", "target      cuda, which --cuda-arch means"},
        {{.batch = 1}, NULL, ", since "},
    };
    for (size_t i = 0; i < EF_COUNT(row); i++) {
        rig r;
        rig_open(&r, small);
        ef_config c = row[i].c;
        const char *line = cg_choose_target(r.s.ctx, &c);
        CHECK(strstr(line, row[i].why) != NULL);
        CHECK(c.target && (!row[i].target || !strcmp(c.target, row[i].target)));
        rig_close(&r);
    }
}

TEST(a_missing_toolkit_is_said_before_the_work)
{
    rig r;
    rig_open(&r, small);
    r.cfg.target = "cuda";
    r.cfg.threads = 0;
    bool there = cg_nvcc(r.s.ctx) != NULL;
    CHECK(cg_ready(r.s.ctx) == (there && cg_has_cuda_runtime()));
    const char *want = !there                  ? "no nvcc was found"
                       : cg_has_cuda_runtime() ? ""
                                               : "libefficc_rt_cuda.a is not there";
    CHECK(said_has(&r.s, want));
    said_clear(&r.s);
    r.cfg.build = false;
    CHECK(cg_ready(r.s.ctx) && plan_and_emit(&r));
    r.cfg.build = true;
    static const char *const none[] = {"/no/such/nvcc", "no-such-nvcc", "/tmp"};
    for (int i = 0; i < (int)EF_COUNT(none); i++) {
        said_clear(&r.s);
        r.cfg.nvcc = none[i];
        CHECK(!cg_ready(r.s.ctx) && !cg_build(r.s.ctx, r.dir));
        CHECK(said_has(&r.s,
                       ef_printf(r.s.ctx->arena,
                                 "option --nvcc: there is no program '%s'", none[i])));
        CHECK(said_has(&r.s, "hint: --nvcc names NVIDIA's compiler; --target cpu "));
    }
    rig_close(&r);
}

/* CUDA_HOME holds where it has an nvcc; where it has none, that is said with what is used
 * instead, or that there is nothing else. */
TEST(a_wrong_cuda_home_is_said)
{
    rig r;
    char cmd[256];
    const char *before = getenv("CUDA_HOME");
    char *kept = before ? strdup(before) : NULL;
    rig_open(&r, small);
    r.cfg.target = "cuda";
    r.cfg.threads = 0;
    setenv("CUDA_HOME", r.dir, 1);
    const char *nvcc = cg_nvcc(r.s.ctx), *line = cg_choose_target(r.s.ctx, &r.cfg);
    const char *wrong = ef_printf(
        r.s.ctx->arena, "; CUDA_HOME is %s, where there is no bin/nvcc", r.dir);
    CHECK(strstr(line, ef_printf(r.s.ctx->arena, "\nnvcc        %s%s",
                                 nvcc ? nvcc : "none was found", wrong)) != NULL);
    CHECK(cg_ready(r.s.ctx) == (nvcc && cg_has_cuda_runtime()));
    CHECK(nvcc ||
          said_has(&r.s, ef_printf(r.s.ctx->arena, "no nvcc was found%s", wrong)));
    r.cfg.nvcc = "x"; /* then CUDA_HOME is not looked at */
    CHECK(!strstr(cg_choose_target(r.s.ctx, &r.cfg), "CUDA_HOME"));
    r.cfg.nvcc = NULL;
    snprintf(cmd, sizeof cmd,
             "cd %s && mkdir bin && touch bin/nvcc && chmod +x bin/nvcc", r.dir);
    CHECK(system(cmd) == 0);
    line = cg_choose_target(r.s.ctx, &r.cfg);
    CHECK(strstr(line, ef_printf(r.s.ctx->arena, "\nnvcc        %s/bin/nvcc", r.dir)) !=
          NULL);
    CHECK(!strstr(line, "CUDA_HOME"));
    if (kept)
        setenv("CUDA_HOME", kept, 1);
    else
        unsetenv("CUDA_HOME");
    free(kept);
    rig_close(&r);
}

/* A toolkit made from packages: libraries have their versions in their names. */
TEST(libraries_with_versions_are_linked_by_name)
{
    rig r;
    char cmd[512];
    rig_open(&r, small);
    snprintf(cmd, sizeof cmd,
             "cd %s && mkdir -p t/bin t/lib && touch t/bin/nvcc t/lib/libcudart.so.13 "
             "t/lib/libcublasLt.so.13 t/lib/libnccl.so.2 t/lib/libnccl.so",
             r.dir);
    CHECK(system(cmd) == 0);
    cg_words w = {0};
    cg_link_toolkit(r.s.ctx, ef_printf(r.s.ctx->arena, "%s/t/bin/nvcc", r.dir), &w);
    ef_buf b = {.arena = r.s.ctx->arena};
    for (int i = 0; i < w.n; i++)
        ef_putf(&b, "%s ", w.at[i]);
    const char *want = "-L DIR/t/lib -Xlinker -rpath -Xlinker DIR/t/lib "
                       "-l:libcudart.so.13 -cudart none -Xlinker --as-needed "
                       "-l:libcublasLt.so.13 -lnccl ";
    ef_buf there = {.arena = b.arena};
    for (const char *p = want; *p;) {
        bool dir = !strncmp(p, "DIR", 3);
        ef_puts(&there, dir ? r.dir : (char[]){*p, 0});
        p += dir ? 3 : 1;
    }
    CHECK_STR(b.s, there.s);
    rig_close(&r);
}

TEST(folders_that_can_not_be_written_are_named)
{
    rig r;
    rig_open(&r, small);
    const pass_target *target = cg_target(r.s.ctx);
    CHECK(plan_with(&r, target));
    CHECK(!cg_emit(r.m, target, ef_printf(r.s.ctx->arena, "%s/none/at/all", r.dir)));
    CHECK(said_has(&r.s, "none/at/all/src: No such file or directory [E0403]"));
    said_clear(&r.s);
    const char *path = ef_printf(r.s.ctx->arena, "%s/base.safetensors", r.dir);
    NEED(mkdir(path, 0777) == 0);
    CHECK(!cg_emit(r.m, target, r.dir));
    CHECK(said_has(&r.s, "base.safetensors: Is a directory [E0403]"));
    CHECK(r.s.ctx->nerror == 1);
    CHECK(!cg_build(r.s.ctx, ef_printf(r.s.ctx->arena, "%s/none", r.dir)));
    CHECK(said_has(&r.s, "none/src/build.log: No such file or directory [E0403]"));
    rig_close(&r);
}

TEST(a_full_disk_is_noticed)
{
    rig r;
    rig_open(&r, small);
    if (access("/dev/full", W_OK))
        printf("  no /dev/full here\n");
    else {
        CHECK(plan_and_emit(&r));
        const char *path = ef_printf(r.s.ctx->arena, "%s/base.safetensors", r.dir);
        CHECK(!unlink(path) && !symlink("/dev/full", path));
        CHECK(!cg_weights(r.m, r.dir));
        CHECK(said_has(&r.s, "base.safetensors: No space left on device [E0403]"));
    }
    rig_close(&r);
}

TEST(a_missing_compiler_is_named)
{
    rig r;
    rig_open(&r, small);
    CHECK(plan_and_emit(&r));
    r.cfg.cc = "no-such-compiler --fast";
    CHECK(!cg_build(r.s.ctx, r.dir));
    CHECK(said_has(&r.s,
                   "building the trainer failed: can not run 'no-such-compiler': No "
                   "such file or directory [E0402]"));
    CHECK(said_has(&r.s, "hint: --cc names the C compiler"));
    CHECK(r.s.ctx->nerror == 1);
    rig_close(&r);
}

TEST(the_compiler_s_first_lines_are_shown)
{
    rig r;
    rig_open(&r, small);
    CHECK(plan_and_emit(&r));
    r.cfg.cflags = "-O1 -Dtanhf=no_such_thing -Werror";
    CHECK(!cg_build(r.s.ctx, r.dir));
    CHECK(said_has(&r.s, "the compiler refused"));
    char *log = read_text(&r, "src/build.log");
    CHECK(log && strstr(log, "no_such_thing"));
    CHECK(access(ef_printf(r.s.ctx->arena, "%s/trainer", r.dir), F_OK) != 0);
    rig_close(&r);
}
