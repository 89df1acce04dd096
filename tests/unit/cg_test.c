/* cg_test.c -- the text that codegen writes.
 *
 * BLESS=1 in the environment rewrites tests/golden/cg/ with what comes out.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cg_rig.h"

/* ---- text ---- */

TEST(float_literals_are_exact)
{
    ef_arena *a = ef_arena_new();
    static const double x[] = {0.1, 1, -2.5, 1e-5, 16777217, 1.0 / 3, 3e38, 1e-45};
    for (int i = 0; i < (int)EF_COUNT(x); i++) {
        const char *s = cg_float(a, x[i]);
        CHECK(strtof(s + (*s == '('), NULL) == (float)x[i]);
        CHECK(strchr(s, 'f') && strpbrk(s, ".e"));
    }
    CHECK_STR(cg_float(a, 1), "1.0f");
    CHECK_STR(cg_float(a, -0.5), "(-0.5f)");
    CHECK_STR(cg_float(a, INFINITY), "INFINITY");
    CHECK_STR(cg_float(a, -INFINITY), "(-INFINITY)");
    CHECK_STR(cg_float(a, NAN), "NAN");
    ef_arena_free(a);
}

TEST(strings_can_not_end_early)
{
    ef_arena *a = ef_arena_new();
    CHECK_STR(cg_string(a, "a\"b\\c\n\1\?\?/"), "\"a\\\"b\\\\c\\012\\001\\?\\?/\"");
    CHECK_STR(cg_string(a, NULL), "NULL");
    CHECK_STR(cg_string(a, ""), "\"\"");
    ef_arena_free(a);
}

TEST(comments_can_not_end_early)
{
    ef_arena *a = ef_arena_new();
    ef_buf b = {.arena = a};
    cg_comment(&b, 2, "a */ b /* c\nd */*/ ?\?/");
    CHECK_STR(b.s, "  /* a ./ b .* c d .../ ?./ */\n");
    ef_arena_free(a);
}

TEST(lines_fold_outside_strings_and_inner_braces)
{
    ef_arena *a = ef_arena_new();
    ef_buf b = {.arena = a};
    const char *s =
        "{.name = \"a, long, name, with, many, commas, in, it, and, more\", "
        ".dim = {1000, 2000, 3000, 4000}, .x = 1},";
    cg_code(&b, 0, s);
    CHECK_STR(b.s,
              "{.name = \"a, long, name, with, many, commas, in, it, and, more\",\n"
              "    .dim = {1000, 2000, 3000, 4000}, .x = 1},\n");
    b = (ef_buf){.arena = a};
    cg_code(&b, 0, "short(a, b);");
    CHECK_STR(b.s, "short(a, b);\n");
    ef_arena_free(a);
}

/* ---- whole programs ---- */

/* Scratch space that is the same on every machine. */
static int64_t
fixed_scratch(ef_ctx *ctx, const ir_op *op, const char **why)
{
    (void)ctx;
    (void)why;
    return op->code == IR_OP_linear || op->code == IR_OP_attention ? 192 : 0;
}

static bool
fuse_all(const ir_op *first, const ir_op *second)
{
    return first->code != second->code || first != second;
}

/* tests/golden/cg/FOLDER has these files of the encoder for the target. */
static void
as_kept(const char *target, const char *folder, const char *const *files)
{
    const pass_target fixed = {.name = target,
                               .align = !strcmp(target, "cuda") ? 256 : 64,
                               .scratch = fixed_scratch,
                               .fuse = fuse_all};
    rig r;
    ef_arena *a = ef_arena_new();
    const char *kept = ef_printf(a, SRC_DIR "/tests/golden/cg/%s", folder);
    size_t n;
    char *text = ef_read_file(a, SRC_DIR "/tests/golden/cg/encoder.ir", 1 << 20, &n);
    NEED(text != NULL);
    rig_open(&r, text);
    r.cfg.target = target;
    r.cfg.threads = strcmp(target, "cuda") ? 2 : 0;
    CHECK(plan_with(&r, &fixed) && cg_emit(r.m, &fixed, r.dir));
    for (int i = 0; files[i]; i++) {
        char *got = read_text(&r, ef_printf(a, "src/%s", files[i]));
        NEED(got != NULL);
        const char *path = ef_printf(a, "%s/%s", kept, files[i]);
        if (getenv("BLESS")) {
            ef_buf b = {.arena = a};
            ef_puts(&b, got);
            CHECK(cg_write(r.s.ctx, kept, files[i], &b));
        }
        char *want = ef_read_file(a, path, 1 << 20, &n);
        bool same = want && !strcmp(got, want);
        if (!same)
            printf("  differs: %s; BLESS=1 accepts it\n", path);
        CHECK(same);
    }
    rig_close(&r);
    ef_arena_free(a);
}

TEST(emitted_text_is_as_kept)
{
    static const char *const cpu[] = {"step.c", "plan.h", "kernels.c", "kernels.h",
                                      NULL};
    static const char *const cuda[] = {"plan.h", "kernels.cu", NULL};
    as_kept("cpu", "encoder", cpu);
    as_kept("cuda", "encoder-cuda", cuda);
}

/* What is kept of the CPU's step.c and kernels.h holds for a GPU. */
TEST(targets_share_the_calls)
{
    static const char *const files[] = {"step.c", "kernels.h", NULL};
    as_kept("cuda", "encoder", files);
}

/* A pack never reaches over the end of a row, and is whole for all sizes that a named
 * dimension may have. */
TEST(cuda_kernels_take_packs_where_they_are_aligned)
{
    static const struct {
        const char *text, *want[3];
    } row[] = {
        {MODULE("param $w : f32[4,8] frozen unit=0 normal\n",
                "  %a = tanh $w : f32[4,8]\n  ret %a"),
         {"rt_pack<float, 4> p0 = rt_load<4>(x0 + e);", "rt_store(y0 + e, q0);",
          "const uint32_t n = 8;"}},
        {MODULE("param $w : bf16[4,8] frozen unit=0 normal\n",
                "  %a = tanh $w : bf16[4,8]\n  ret %a"),
         {"rt_pack<__nv_bfloat16, 8> p0 = rt_load<8>(x0 + e);",
          "q0.at[j] = rtc_as<__nv_bfloat16>(t0);", "const uint32_t n = 4;"}},
        {MODULE("param $w : f32[3,5] frozen unit=0 normal\n",
                "  %a = tanh $w : f32[3,5]\n  ret %a"),
         {"const uint32_t e = at;", "const float a0 = x0[e];", "y0[e] = t0;"}},
        {MODULE("param $w : f32[3,6] frozen unit=0 normal\nparam $v : f32[6] frozen "
                "unit=0 normal\n",
                "  %a = add $w, $v : f32[3,6]\n  ret %a"),
         {"const uint32_t i1 = e % 6;", "rt_pack<float, 2> p1 = rt_load<2>(x1 + i1);",
          "const uint32_t n = 9;"}},
        {MODULE("param $w : f32[3,2,4] frozen unit=0 normal\nparam $v : f32[3,1,1] "
                "frozen unit=0 normal\n",
                "  %a = add $w, $v : f32[3,2,4]\n  ret %a"),
         {"const uint32_t i0 = e / 8;", "const float a1 = x1[i0];",
          "const float a0 = p0.at[j];"}},
        {MODULE("param $w : f32[70000,40000] frozen unit=0 zero\n",
                "  %a = tanh $w : f32[70000,40000]\n  ret %a"),
         {"k0_(int64_t n, float *y0", "const int64_t e = at * 4;",
          "const int64_t n = 700000000;"}},
    };
    for (size_t i = 0; i < EF_COUNT(row); i++) {
        rig r;
        rig_open(&r, row[i].text);
        r.cfg.target = "cuda";
        r.cfg.threads = 0;
        CHECK(plan_and_emit(&r));
        char *text = read_text(&r, "src/kernels.cu");
        for (int k = 0; text && k < 3; k++) {
            bool there = strstr(text, row[i].want[k]) != NULL;
            if (!there)
                printf("  no '%s' in:\n%s\n", row[i].want[k], text);
            CHECK(there);
        }
        CHECK(text != NULL);
        rig_close(&r);
    }
}

TEST(equal_modules_give_equal_files)
{
    static const char *const files[] = {
        "src/step.c",   "src/plan.h", "src/kernels.c",   "src/kernels.h",
        "src/Makefile", "plan.json",  "base.safetensors"};
    rig r, q;
    rig_open(&r, small);
    rig_open(&q, small);
    CHECK(plan_and_emit(&r) && plan_and_emit(&q));
    for (int i = 0; i < (int)EF_COUNT(files); i++) {
        char *one = read_text(&r, files[i]), *two = read_text(&q, files[i]);
        CHECK(one && two && !strcmp(one, two));
    }
    rig_close(&r);
    rig_close(&q);
}

TEST(equal_kernels_are_written_once)
{
    rig r;
    rig_open(&r, MODULE("param $w : f32[4,8] frozen unit=0 normal\n"
                        "param $v : f32[4,8] frozen unit=0 normal\n",
                        "  %a = tanh $w : f32[4,8]\n  %s = softmax %a : f32[4,8]\n"
                        "  %b = tanh $v : f32[4,8]\n  %t = softmax %b : f32[4,8]\n"
                        "  %c = exp %t : f32[4,8]\n  ret %s, %c"));
    CHECK(plan_and_emit(&r));
    char *text = read_text(&r, "src/kernels.h");
    NEED(text != NULL);
    CHECK(strstr(text, "void k0(") && !strstr(text, "void k1(") &&
          strstr(text, "void k2("));
    rig_close(&r);
}

TEST(only_long_kernels_start_threads)
{
    rig r;
    rig_open(&r, MODULE("param $w : f32[16,1023] frozen unit=0 normal\n"
                        "param $v : f32[16,1024] frozen unit=0 normal\n",
                        "  %a = tanh $w : f32[16,1023]\n"
                        "  %s = softmax %a : f32[16,1023]\n"
                        "  %b = exp $v : f32[16,1024]\n"
                        "  %t = softmax %b : f32[16,1024]\n  ret %s, %t"));
    CHECK(plan_and_emit(&r));
    char *text = read_text(&r, "src/kernels.c");
    NEED(text != NULL && strstr(text, "TANH") && strstr(text, "EXP"));
    CHECK(strstr(text, "omp parallel") > strstr(text, "TANH"));
    CHECK(strstr(text, "omp parallel") < strstr(text, "EXP"));
    rig_close(&r);
}

TEST(the_hash_is_of_the_schedule_not_of_the_place)
{
#define PLACED(dir, width)                                              \
    MODULE("meta model \"" dir "m.onnx\"\n"                             \
           "param $w : f32[4," #width "] frozen unit=0 file f32 \"" dir \
           "m.onnx\" 64\n",                                             \
           "  %a = tanh $w : f32[4," #width "]\n  ret %a")
    static const char *const text[] = {PLACED("here/", 8), PLACED("/there/", 8),
                                       PLACED("here/", 9)};
    const char *hash[3];
    ef_arena *a = ef_arena_new();
    for (int i = 0; i < 3; i++) {
        rig r;
        rig_open(&r, text[i]);
        CHECK(plan_with(&r, cg_target(r.s.ctx)));
        hash[i] = cg_hash(r.m, a);
        rig_close(&r);
    }
    CHECK_STR(hash[0], hash[1]);
    CHECK(strcmp(hash[0], hash[2]));
    ef_arena_free(a);
}

TEST(names_of_any_kind_compile)
{
    rig r;
    rig_open(&r,
             MODULE("meta model \"a\\\"b\\\\c*/ ?\?/\"\n"
                    "param $a.b : f32[4] frozen unit=0 onnx=\"x\\\"\\\\y\" = 1 2 3 4\n"
                    "param $a_b : f32[4] frozen unit=0 also=\"=z\\x0a*/\" = 1 2 3 4\n"
                    "param $int : f32[4] frozen unit=0 hf=\"/* ?\?'\" = 1 2 3 4\n",
                    "  %a.b = add $a.b, $a_b : f32[4]  !\"*/ int x; /*\"\n"
                    "  %a_b = softmax %a.b : f32[4]  !\"\\\\\"\n"
                    "  %int = add %a_b, $int : f32[4]  !\"?\?/\"\n"
                    "  ret %int"));
    bool ok = plan_and_emit(&r) && cg_build(r.s.ctx, r.dir);
    if (!ok)
        printf("%s\n", said_text(&r.s));
    CHECK(ok);
    /* the same model gives the same files, so no log of this build stays */
    CHECK(access(ef_printf(r.s.ctx->arena, "%s/src/build.log", r.dir), F_OK) != 0);
    rig_close(&r);
}

TEST(the_makefile_builds_the_trainer)
{
    rig r;
    char cmd[256];
    struct stat st;
    rig_open(&r, small);
    CHECK(plan_and_emit(&r));
    snprintf(cmd, sizeof cmd, "make -s -C %s/src > %s/log 2>&1", r.dir, r.dir);
    if (system("make --version > /dev/null 2>&1"))
        printf("  no make here\n");
    else
        CHECK(system(cmd) == 0 &&
              !stat(ef_printf(r.s.ctx->arena, "%s/trainer", r.dir), &st));
    rig_close(&r);
}

/* Where infinities are meant: from a constant, literal or not, through moves and elementwise
 * ops, but not through a softmax. */
TEST(infinities_of_masks_are_no_fault)
{
    rig r;
    rig_open(
        &r,
        MODULE("param $m : f32[4] const unit=0 = 0 -inf 0 0\n"
               "param $w : f32[4] frozen unit=0 = 1 2 3 4\n",
               "  %c = const {value=-inf} : f32[]\n"
               "  %p = le $w, $m : bool[4]\n"
               "  %a = where %p, %c, $w : f32[4]\n  %sa = softmax %a : f32[4]\n"
               "  %b = add $w, $m : f32[4]\n  %tb = transpose %b {perm=[0]} : f32[4]\n"
               "  %sb = softmax %tb : f32[4]\n"
               "  %d = add %sb, $w : f32[4]\n  %sd = softmax %d : f32[4]\n"
               "  ret %sa, %sd"));
    CHECK(plan_and_emit(&r));
    char *text = read_text(&r, "src/plan.h");
    NEED(text != NULL);
    static const char *const row[][2] = {{"{\"%a\", \"where\", NULL, RT_ARENA", "true"},
                                         {"{\"%b\", \"add\"", "true"},
                                         {"{\"%tb\", \"transpose\"", "true"},
                                         {"{\"$m\", NULL", "true"},
                                         {"{\"%sa\", \"softmax\"", "false"},
                                         {"{\"%sb\", \"softmax\"", "false"},
                                         {"{\"%d\", \"add\"", "false"},
                                         {"{\"$w\", NULL", "false"}};
    for (int i = 0; i < (int)EF_COUNT(row); i++) {
        const char *at = strstr(text, row[i][0]), *end = at ? strchr(at, '\n') : NULL;
        bool as_wanted = end && strstr(at, row[i][1]) && strstr(at, row[i][1]) < end;
        if (!as_wanted)
            printf("  %s: not %s\n", row[i][0], row[i][1]);
        CHECK(as_wanted);
    }
    rig_close(&r);
}

/* ---- files beside the sources ---- */

TEST(weights_lie_aligned_behind_a_header)
{
    rig r;
    rig_open(&r, MODULE("param $b : bool[3] const unit=0 = 1 0 1\n"
                        "param $w : f32[2,2] frozen unit=0 = 1 -2.5 inf nan\n"
                        "param $h : bf16[3] frozen unit=0 = 1 -2.5 0.1\n"
                        "param $f : f16[2] frozen unit=0 = 0.1 70000\n"
                        "param $n : i64[2] const unit=0 = -5 7\n"
                        "param $z : f32[2] frozen unit=0 zero\n",
                        "  ret"));
    CHECK(plan_and_emit(&r));
    size_t n;
    const char *path = ef_printf(r.s.ctx->arena, "%s/base.safetensors", r.dir);
    char *data = ef_read_file(r.s.ctx->arena, path, 1 << 20, &n);
    NEED(data != NULL && n > 8);
    uint64_t size = 0;
    memcpy(&size, data, 8);
    NEED(size % 8 == 0 && n == 8 + size + 16 + 16 + 6 + 4 + 3);
    cJSON *header = cJSON_ParseWithLength(data + 8, size);
    NEED(header != NULL);
    CHECK(cJSON_GetArraySize(header) == 6); /* zeros are the trainer's business */
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)XXH3_64bits(data + 8 + size, 16 + 16 + 6 + 4 + 3));
    const cJSON *meta = cJSON_GetObjectItem(header, "__metadata__");
    CHECK_STR(cJSON_GetObjectItem(meta, RT_BASE_HASH)->valuestring, hash);
    const cJSON *w = cJSON_GetObjectItem(header, "w");
    CHECK_STR(cJSON_GetObjectItem(w, "dtype")->valuestring, "F32");
    CHECK(cJSON_GetArrayItem(cJSON_GetObjectItem(w, "data_offsets"), 0)->valueint ==
          16);
    CHECK_STR(
        cJSON_GetObjectItem(cJSON_GetObjectItem(header, "h"), "dtype")->valuestring,
        "BF16");
    CHECK_STR(
        cJSON_GetObjectItem(cJSON_GetObjectItem(header, "f"), "dtype")->valuestring,
        "F16");
    cJSON_Delete(header);
    int64_t ints[2];
    float floats[4];
    uint16_t low[5];
    memcpy(low, data + 8 + size + 32, sizeof low);
    CHECK(low[0] == 0x3f80 && low[1] == 0xc020 && low[2] == 0x3dcd);
    CHECK(low[3] == 0x2e66 && low[4] == 0x7c00); /* too large for f16 */
    CHECK(said_has(&r.s,
                   "warning: f has 1 elements of 2 that are infinite or no number"));
    memcpy(ints, data + 8 + size, sizeof ints);
    memcpy(floats, data + 8 + size + 16, sizeof floats);
    CHECK(ints[0] == -5 && ints[1] == 7);
    CHECK(floats[0] == 1 && floats[1] == -2.5f && isinf(floats[2]) && isnan(floats[3]));
    CHECK(!memcmp(data + n - 3, "\1\0\1", 3));
    CHECK(said_has(&r.s,
                   "warning: w has 2 elements of 4 that are infinite or no number"));
    rig_close(&r);
}

TEST(plan_json_tells_what_was_decided)
{
    rig r;
    ef_arena *a = ef_arena_new();
    size_t n;
    char *text = ef_read_file(a, SRC_DIR "/tests/golden/cg/encoder.ir", 1 << 20, &n);
    NEED(text != NULL);
    rig_open(&r, text);
    CHECK(plan_and_emit(&r));
    cJSON *root = cJSON_Parse(read_text(&r, "plan.json"));
    NEED(root != NULL);
    const cJSON *lora = cJSON_GetObjectItem(root, "lora");
    const cJSON *memory = cJSON_GetObjectItem(root, "memory");
    const cJSON *match = cJSON_GetArrayItem(cJSON_GetObjectItem(lora, "matches"), 0);
    NEED(lora && memory && match);
    CHECK(cJSON_GetObjectItem(lora, "r")->valueint == 2);
    CHECK_STR(
        cJSON_GetArrayItem(cJSON_GetObjectItem(lora, "target_modules"), 0)->valuestring,
        "qkv");
    CHECK_STR(cJSON_GetArrayItem(cJSON_GetObjectItem(lora, "modules_to_save"), 0)
                  ->valuestring,
              "classifier");
    CHECK_STR(cJSON_GetObjectItem(match, "part")->valuestring, "v");
    CHECK(cJSON_GetObjectItem(match, "first_row")->valueint == 16);
    CHECK(cJSON_GetObjectItem(memory, "gradients")->valueint ==
          cJSON_GetObjectItem(memory, "state_m")->valueint);
    CHECK(cJSON_GetObjectItem(memory, "arena")->valueint ==
          ir_meta_int(r.m, "arena_bytes", -1));
    CHECK_STR(cJSON_GetObjectItem(root, "command")->valuestring, "efficc test");
    cJSON_Delete(root);
    rig_close(&r);
    ef_arena_free(a);
}

TEST(whole_module_names_stand_where_a_part_says_too_much)
{
    rig r;
    ef_ctx *ctx = ef_ctx_new();
    cg c = {.ctx = ctx, .arena = ctx->arena};
    const char **name;
    rig_open(
        &r,
        MODULE("param $A : f32[2,8] train unit=0 zero role=lora_a module=\"l.0.q\"\n"
               "param $w : f32[8,8] frozen unit=0 zero hf=\"l.0.q.weight\"\n"
               "param $x : f32[8,8] frozen unit=0 zero hf=\"l.1.q.weight\"\n",
               "  ret"));
    c.m = r.m;
    NEED(cg_lora_targets(&c, &name) == 1);
    CHECK_STR(name[0], "l.0.q"); /* "q" would match l.1.q too */
    ir_param_by_name(r.m, "x")->hf = "l.1.k.weight";
    NEED(cg_lora_targets(&c, &name) == 1);
    CHECK_STR(name[0], "q");
    ef_ctx_free(ctx);
    rig_close(&r);
}

TEST(images_and_the_scaler_have_places)
{
    rig r;
    rig_open(
        &r,
        MODULE("param $u : f32[40] train unit=0 normal\n"
               "param $w : f32[2,5] frozen unit=0 normal\n"
               "param $u.grad : f32[40] grad unit=0 of=$u\n"
               "param $u.h : f16[40] image unit=0 of=$u\n"
               "param $w.h : f16[2,5] image unit=0 of=$w\n"
               "param $scaler : f32[4] scaler unit=0\n"
               "meta precision \"fp16\"\n",
               "  %a = cast $w.h : f32[2,5]\n  %s = softmax %a : f32[2,5]\n  ret %s"));
    CHECK(plan_and_emit(&r));
    char *plan = read_text(&r, "src/plan.h"), *json = read_text(&r, "plan.json");
    NEED(plan && json);
    CHECK(strstr(plan, "#define w_w_h ((rt_f16 *)(run->base[RT_IMAGE][0] + 128))") !=
          NULL);
    CHECK(strstr(plan, "#define w_scaler ((float *)(run->base[RT_SCALER][0] + 0))") !=
          NULL);
    CHECK(strstr(plan, ".image = 0, .image_dtype = RT_F16") != NULL);
    CHECK(strstr(plan, ".image = 128, .image_dtype = RT_F16") != NULL);
    CHECK(strstr(plan, "NPARAM = 2 ") != NULL);
    CHECK(strstr(plan, "{192, 192, 192, 192, 64, 0, 192, 64}") != NULL);
    CHECK(strstr(plan, ".compute = RT_F16,\n    .scaled = true") != NULL);
    cJSON *root = cJSON_Parse(json), *memory = cJSON_GetObjectItem(root, "memory");
    NEED(memory != NULL);
    CHECK(cJSON_GetObjectItem(memory, "images")->valueint == 192);
    CHECK(cJSON_GetObjectItem(memory, "scaler")->valueint == 64);
    CHECK(cJSON_GetObjectItem(memory, "total")->valueint ==
          4 * 192 + 64 + 192 + 64 + cJSON_GetObjectItem(memory, "arena")->valueint);
    cJSON_Delete(root);
    rig_close(&r);
}
