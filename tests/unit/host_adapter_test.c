/* PEFT adapters: what PEFT wrote is read, what is written is what PEFT writes, and what the
 * program does not compute is refused. */
#include "test.h"

#include "adapter_toy.h"
#include "host_toy.h"

#include <sys/stat.h>

static rt_run run;
static rt_program p;

/* Buffers of plain memory: nothing here runs on a device. */
static void
open_run(const rt_param *param, int n)
{
    p.nparam = n;
    p.param = param;
    run = (rt_run){.program = &p};
    for (int c = 0; c < RT_NCLASSES; c++) {
        run.base[c] = calloc(1, sizeof(char *));
        run.base[c][0] = calloc(1, 1 << 18);
    }
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < param[i].n; k++)
            ((float *)rt_param_data(&run, &param[i]))[k] =
                (float)(100 * i + (int)k + 1);
}

static void
close_run(void)
{
    for (int c = 0; c < RT_NCLASSES; c++) {
        free(run.base[c][0]);
        free(run.base[c]);
    }
}

static void
open_whole(void)
{
    p = toy_whole;
    open_run(p.param, p.nparam);
}

static void
open_rows(void)
{
    p = toy_rows;
    open_run(p.param, p.nparam);
}

static int
save(const char *dir)
{
    mkdir(toy_path(dir), 0777);
    toy_listen();
    int code = rt_adapter_save(&run, toy_folder(), toy_path(dir));
    toy_heard();
    return code;
}

static int
load(const char *dir)
{
    toy_listen();
    int code = rt_adapter_load(&run, toy_folder(), toy_path(dir));
    toy_heard();
    return code;
}

/* Everything that was saved comes back after the params were cleared. */
static void
round_trip(const char *dir)
{
    NEED(save(dir) == RT_OK);
    char *before = malloc(1 << 18);
    memcpy(before, run.base[0][0], 1 << 18);
    memset(run.base[0][0], 0, 1 << 18);
    CHECK(load(dir) == RT_OK);
    CHECK(!memcmp(before, run.base[0][0], 1 << 18));
    free(before);
}

/* Tensor k of the saved ones gets another element. */
static void
spoil(const char *dir, int k, int element)
{
    char path[128];
    rt_st st;
    float x[4][24];
    rt_st_out t[4];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    NEED(rt_st_open(&st, toy_path(path)) == RT_OK && st.n <= 4);
    for (int i = 0; i < st.n; i++) {
        const rt_st_tensor *from = &st.tensor[i];
        NEED(from->count <= 24 && rt_st_read_f32(&st, from, x[i]) == RT_OK);
        t[i] =
            (rt_st_out){from->name, 2, {from->dim[0], from->dim[1]}, x[i], false, NULL};
    }
    x[k][element] = 1e-3f;
    NEED(rt_st_write(toy_path(path), t, st.n, true) == RT_OK);
    rt_st_close(&st);
}

TEST(whole_modules)
{
    open_whole();
    round_trip("whole");
    rt_st st;
    float x[6];
    toy_listen();
    NEED(rt_st_open(&st, toy_path("whole/adapter_model.safetensors")) == RT_OK);
    toy_heard();
    CHECK(st.torch && st.n == 6);
    const rt_st_tensor *a = rt_st_find(&st, "base_model.model.l.0.query.lora_A.weight");
    CHECK(a && a->dim[0] == 2 && a->dim[1] == 3);
    const rt_st_tensor *w = rt_st_find(&st, "base_model.model.classifier.weight");
    NEED(w && w->dim[0] == 2 && w->dim[1] == 3); /* PyTorch's layout */
    NEED(rt_st_read_f32(&st, w, x) == RT_OK);
    CHECK(x[0] == 401 && x[1] == 403 && x[3] == 402);
    CHECK(!rt_st_find(&st, "base_model.model.emb.weight"));
    rt_st_close(&st);
    close_run();
}

TEST(row_ranges_are_one_adapter_of_twice_the_rank)
{
    open_rows();
    round_trip("rows");
    rt_st st;
    float b[24];
    NEED(rt_st_open(&st, toy_path("rows/adapter_model.safetensors")) == RT_OK);
    const rt_st_tensor *t =
        rt_st_find(&st, "base_model.model.h.0.c_attn.lora_B.weight");
    NEED(st.n == 2 && t && t->dim[0] == 6 && t->dim[1] == 4);
    NEED(rt_st_read_f32(&st, t, b) == RT_OK);
    const float want[24] = {101, 102, 0, 0, 103, 104, 0,   0,   0, 0, 0,   0,
                            0,   0,   0, 0, 0,   0,   301, 302, 0, 0, 303, 304};
    CHECK(!memcmp(b, want, sizeof b));
    rt_st_close(&st);
    int err;
    char *config = rt_read_text(toy_path("rows/adapter_config.json"), 1 << 20, &err);
    NEED(config != NULL);
    CHECK(strstr(config, "\"r\": 4,") && strstr(config, "\"lora_alpha\": 4,"));
    CHECK(strstr(config, "\"fan_in_fan_out\": true") &&
          strstr(config, "\"CAUSAL_LM\""));
    free(config);
    close_run();
}

/* Queries, keys and values of two heads of one column each: q 0 and 3, v 2 and 5. */
TEST(blocks_of_rows_lie_where_their_heads_are)
{
    static rt_param blocks[4];
    open_rows();
    close_run();
    memcpy(blocks, toy_rows_param, sizeof blocks);
    for (int i = 0; i < 4; i++) {
        blocks[i].part_start = i < 2 ? 0 : 2;
        blocks[i].part_block = 1;
        blocks[i].part_stride = 3;
    }
    open_run(blocks, 4);
    round_trip("blocks");
    rt_st st;
    float b[24];
    NEED(rt_st_open(&st, toy_path("blocks/adapter_model.safetensors")) == RT_OK);
    NEED(rt_st_read_f32(&st, &st.tensor[1], b) == RT_OK);
    const float want[24] = {101, 102, 0, 0, 0, 0, 0, 0, 0, 0, 301, 302,
                            103, 104, 0, 0, 0, 0, 0, 0, 0, 0, 303, 304};
    CHECK(!memcmp(b, want, sizeof b));
    rt_st_close(&st);
    spoil("blocks", 1, 5 * 4 + 1); /* a value's row in the columns of q */
    CHECK(load("blocks") == RT_USER);
    TOY_HEARD("changes output feature 5 outside the row ranges");
    close_run();
}

TEST(rows_of_k_are_refused)
{
    open_rows();
    NEED(save("krows") == RT_OK);
    spoil("krows", 1, 3 * 4 + 1); /* output feature 3 belongs to K */
    CHECK(load("krows") == RT_USER);
    TOY_HEARD("changes output feature 3 outside the row ranges");
    TOY_HEARD("--lora-targets h.0.c_attn");
    close_run();
}

/* Beside a module of two parts, one of a single part has two columns without any. */
TEST(columns_without_a_part_are_zero)
{
    open_rows();
    close_run();
    open_run(toy_rows_param, TOY_ROWS + 2);
    round_trip("mixed");
    spoil("mixed", 3, 2 * 4 + 3); /* lora_B of c_proj [4,4] */
    CHECK(load("mixed") == RT_USER);
    TOY_HEARD("changes output feature 2 outside");
    close_run();
}

/* The adapter that PEFT 0.21 saved for gpt2's c_attn is read and written byte for byte. */
TEST(what_peft_wrote)
{
    static const rt_param gpt2[] = {
        TOY_LORA("lora_A", RT_LORA_A, "transformer.h.0.attn.c_attn", 0, 8, 48),
        TOY_LORA("lora_B", RT_LORA_B, "transformer.h.0.attn.c_attn", 2048, 144, 8),
        TOY_LORA("lora_A", RT_LORA_A, "transformer.h.1.attn.c_attn", 8192, 8, 48),
        TOY_LORA("lora_B", RT_LORA_B, "transformer.h.1.attn.c_attn", 10240, 144, 8),
    };
    p = (rt_program){.task = "causal-lm",
                     .lora_r = 8,
                     .lora_alpha = 8,
                     .lora_scale = 1,
                     .lora_fan_in_fan_out = true,
                     .lora_targets = toy_fused};
    open_run(gpt2, 4);
    const char *peft = SRC_DIR "/tests/cases/gpt2-legacy17/adapter-init";
    toy_listen();
    int code = rt_adapter_load(&run, toy_folder(), peft);
    toy_heard();
    CHECK(code == RT_OK);
    NEED(save("peft") == RT_OK);
    char command[512];
    snprintf(command, sizeof command,
             "cmp '%s/adapter_config.json' '%s' && "
             "cmp '%s/adapter_model.safetensors' '%s'",
             peft, toy_path("peft/adapter_config.json"), peft,
             toy_path("peft/adapter_model.safetensors"));
    CHECK(system(command) == 0);
    close_run();
}

/* The saved adapter with one piece of its configuration replaced. */
static int
load_with(const char *from, const char *to)
{
    int err;
    open_whole();
    NEED(save("changed") == RT_OK);
    char *text = rt_read_text(toy_path("changed/adapter_config.json"), 1 << 20, &err);
    char *at = text ? strstr(text, from) : NULL, changed[4096];
    NEED(at != NULL);
    *at = 0;
    snprintf(changed, sizeof changed, "%s%s%s", text, to, at + strlen(from));
    free(text);
    toy_write("changed/adapter_config.json", changed);
    int code = load("changed");
    close_run();
    return code;
}

TEST(a_checkpoint_is_no_adapter)
{
    open_whole();
    mkdir(toy_path("checkpoint-3"), 0777);
    toy_write("checkpoint-3/weights.safetensors", "");
    CHECK(load("checkpoint-3") == RT_USER);
    TOY_HEARD("this is a trainer's checkpoint, not an adapter");
    TOY_HEARD("--init-tensors ");
    close_run();
}

TEST(scales)
{
    CHECK(load_with("\"lora_alpha\": 4", "\"lora_alpha\": 8") == RT_USER);
    TOY_HEARD("scale 4 on l.0.query");
    TOY_HEARD("--lora-alpha 8");
    CHECK(load_with("\"use_rslora\": false", "\"use_rslora\": true") == RT_USER);
    TOY_HEARD("scale 2.82843");
    CHECK(load_with("\"lora_alpha\": 4", "\"lora_alpha\": 2.8284271247461903") ==
          RT_USER);
    CHECK(load_with("\"lora_alpha\": 4,", "\"lora_alpha\": 99, \"x\": 0,") == RT_USER);
}

TEST(rslora_is_honoured)
{
    open_whole();
    p.lora_scale = 2.8284271247461903; /* 4 / sqrt(2) */
    NEED(save("changed") == RT_OK);
    close_run();
    open_whole();
    p.lora_scale = 4 / sqrt(2);
    toy_write(
        "changed/adapter_config.json",
        "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, \"use_rslora\": true}");
    CHECK(load("changed") == RT_OK);
    close_run();
}

TEST(patterns_are_honoured)
{
    CHECK(load_with("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"value\": 8}") ==
          RT_USER);
    TOY_HEARD("scale 4 on l.0.value");
    CHECK(load_with("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"other\": 8}") ==
          RT_OK);
    CHECK(load_with("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"alue\": 8}") ==
          RT_OK);
    CHECK(load_with("\"rank_pattern\": {}", "\"rank_pattern\": {\"l.0.query\": 4}") ==
          RT_USER);
    TOY_HEARD("says rank 4");
    CHECK(load_with("\"rank_pattern\": {}", "\"rank_pattern\": [4]") == RT_USER);
    TOY_HEARD("rank_pattern must map names of modules to numbers");
    CHECK(load_with("\"alpha_pattern\": {}", "\"alpha_pattern\": 8") == RT_USER);
    TOY_HEARD("alpha_pattern must map names of modules to numbers");
}

/* `from` of the configuration made `to`: refused, and why. */
static void
refused(const char *from, const char *to, const char *why)
{
    CHECK(load_with(from, to) == RT_USER);
    TOY_HEARD(why);
}

TEST(types_are_those_that_peft_writes)
{
    refused("\"use_rslora\": false", "\"use_rslora\": 1",
            "use_rslora must be true or false");
    refused("\"fan_in_fan_out\": false", "\"fan_in_fan_out\": \"true\"",
            "fan_in_fan_out must be true or false");
    refused("\"bias\": \"none\"", "\"bias\": [\"all\"]", "bias must be a word");
    refused("\"init_lora_weights\": true", "\"init_lora_weights\": {}",
            "init_lora_weights must be true, false or a word");
    refused("\"r\": 2", "\"r\": \"2\"", "r must be a number");
    refused("\"use_rslora\": false", "\"use_rslora\": false, \"use_rslora\": true",
            "scale"); /* the last one counts */
}

TEST(expressions_that_take_too_much_are_refused)
{
    char deep[4096];
    snprintf(deep, sizeof deep, "\"alpha_pattern\": {\"%0600d\": 8}", 0);
    for (char *c = strchr(deep, '0'); *c == '0'; c++)
        *c = '(';
    refused("\"alpha_pattern\": {}", deep, "is not supported");
    refused("\"alpha_pattern\": {}",
            "\"alpha_pattern\": {\"(((a{1,200}){1,200}){,200})\": 8}",
            "is not supported");
    CHECK(load_with("\"alpha_pattern\": {}",
                    "\"alpha_pattern\": {\"l.\\\\d{1,2}.other\": 8}") == RT_OK);
}

/* A key of alpha_pattern that must, or must not, change the scale of l.0.value. */
static void
pattern(const char *key, bool fits)
{
    char to[200];
    snprintf(to, sizeof to, "\"alpha_pattern\": {\"%s\": 8}", key);
    CHECK(load_with("\"alpha_pattern\": {}", to) == (fits ? RT_USER : RT_OK));
    if (fits)
        TOY_HEARD("scale 4 on l.0.value");
}

TEST(patterns_are_expressions)
{
    pattern("value", true);
    pattern("alue", false); /* a whole part of the path, or more */
    pattern("l.0.value", true);
    pattern("^l.0.value", true);
    pattern("^0.value", false);
    pattern("l\\\\.\\\\d+\\\\.(?:key|value)", true);
    pattern("l\\\\.\\\\d+\\\\.(?:key|velue)", false);
    pattern("v.*", true);
    pattern("[uva-l]+e", true);
    CHECK(load_with("\"alpha_pattern\": {}",
                    "\"alpha_pattern\": {\"(?!x)value\": 8}") == RT_USER);
    TOY_HEARD("expression '(?!x)value' is not supported");
    CHECK(load_with("\"alpha_pattern\": {}",
                    "\"alpha_pattern\": {\"val[\\\\w]e\": 8}") == RT_USER);
    TOY_HEARD("is not supported"); /* in POSIX a set of \\ and w */
    CHECK(load_with("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"value(\": 8}") ==
          RT_USER);
    TOY_HEARD("expression");
}

TEST(what_the_program_does_not_compute)
{
    CHECK(load_with("\"use_dora\": false", "\"use_dora\": true") == RT_USER);
    TOY_HEARD("use_dora is not supported");
    TOY_HEARD("merge_and_unload");
    CHECK(load_with("\"bias\": \"none\"", "\"bias\": \"all\"") == RT_USER);
    TOY_HEARD("bias is not supported");
    CHECK(load_with("\"lora_bias\": false", "\"lora_bias\": true") == RT_USER);
    CHECK(load_with("\"layer_replication\": null", "\"layer_replication\": [[0,1]]") ==
          RT_USER);
    CHECK(load_with("\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\"") == RT_USER);
    TOY_HEARD("peft_type is IA3");
    CHECK(load_with("\"init_lora_weights\": true",
                    "\"init_lora_weights\": \"pissa_niter_4\"") == RT_USER);
    TOY_HEARD("init_lora_weights is not supported");
    CHECK(load_with("\"init_lora_weights\": true",
                    "\"init_lora_weights\": \"gaussian\"") == RT_OK);
    CHECK(load_with("\"r\": 2", "\"r\": \"2\"") == RT_USER);
    CHECK(load_with("\"r\": 2", "\"r\": 8") == RT_USER);
    TOY_HEARD("says rank 8");
    CHECK(load_with("\"lora_dropout\": 0.0", "\"lora_dropout\": 0.1") == RT_OK);
    TOY_HEARD("lora_dropout is not applied");
}

TEST(missing_and_extra_tensors)
{
    static const float two[2] = {1, 2};
    open_whole();
    NEED(save("few") == RT_OK);
    rt_st_out t[] = {
        {"base_model.model.l.9.query.lora_A.weight", 1, {2}, two, false, NULL}};
    NEED(rt_st_write(toy_path("few/adapter_model.safetensors"), t, 1, true) == RT_OK);
    CHECK(load("few") == RT_USER);
    TOY_HEARD("lora_B of l.9.query is missing");
    close_run();
    open_whole();
    CHECK(load("nowhere") == RT_USER);
    TOY_HEARD("No such file");
    close_run();
}

TEST(a_module_trained_besides_is_saved_whole)
{
    static const rt_param norm[] = {
        TOY_LORA("lora_A", RT_LORA_A, "l.0.query", 0, 2, 3),
        TOY_LORA("lora_B", RT_LORA_B, "l.0.query", 64, 4, 2),
        {.name = "ln.weight",
         .hf = "ln.weight",
         .n = 2,
         .rank = 1,
         .dim = {2},
         .offset = 128,
         .image = -1},
        {.name = "ln.bias",
         .hf = "ln.bias",
         .cls = RT_FROZEN,
         .n = 2,
         .rank = 1,
         .dim = {2},
         .image = -1},
        {.name = "head.weight",
         .role = RT_HEAD,
         .n = 2,
         .rank = 2,
         .dim = {1, 2},
         .offset = 192,
         .image = -1},
    };
    p = (rt_program){.task = "seq-cls",
                     .lora_r = 2,
                     .lora_alpha = 2,
                     .lora_scale = 1,
                     .lora_targets = toy_qv};
    open_run(norm, 5);
    round_trip("extra");
    int err;
    char *config = rt_read_text(toy_path("extra/adapter_config.json"), 1 << 20, &err);
    NEED(config != NULL);
    CHECK(strstr(config, "\"modules_to_save\": [\n    \"ln\"\n  ]") != NULL);
    CHECK(strstr(config, "FEATURE_EXTRACTION") != NULL);
    free(config);
    rt_st st;
    NEED(rt_st_open(&st, toy_path("extra/adapter_model.safetensors")) == RT_OK);
    CHECK(st.n == 4 && rt_st_find(&st, "base_model.model.ln.bias"));
    rt_st_close(&st);
    NEED(rt_st_open(&st, toy_path("extra/head.safetensors")) == RT_OK);
    CHECK(st.n == 1 && rt_st_find(&st, "head.weight"));
    rt_st_close(&st);
    close_run();
}

/* ---- as others write it ---- */

static void
put_as(rt_file *f, const rt_st_made *t, void *dtype)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dim[i];
    rt_file_floats(f, dtype, &(rt_st_out){.rank = 1, .dim = {n}, .data = t->of});
}

/* The adapter in dir written again with other keys and types; name: of dtype in the file. */
static void
rewrite(const char *dir, char *(*key)(const char *), const char *dtype,
        const char *name)
{
    char path[100];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    rt_st st;
    rt_st_made made[16] = {0};
    NEED(rt_st_open(&st, toy_path(path)) == RT_OK);
    for (int i = 0; i < st.n; i++) {
        float *x = malloc((size_t)st.tensor[i].count * 4);
        NEED(rt_st_read_f32(&st, &st.tensor[i], x) == RT_OK);
        made[i] = (rt_st_made){key(st.tensor[i].name), name, st.tensor[i].rank, {0}, x};
        memcpy(made[i].dim, st.tensor[i].dim, sizeof made[i].dim);
    }
    NEED(rt_st_write_made(toy_path(path), made, st.n, NULL, put_as, (void *)dtype) ==
         RT_OK);
    for (int i = 0; i < st.n; i++) {
        free((char *)made[i].name);
        free((void *)made[i].of);
    }
    rt_st_close(&st);
}

static char *
same_key(const char *key)
{
    return strdup(key);
}

/* Without base_model.model. */
static char *
bare_key(const char *key)
{
    return strdup(key + strlen("base_model.model."));
}

static char *
twice_key(const char *key)
{
    char s[200];
    snprintf(s, sizeof s, "base_model.model.%s", key);
    return strdup(s);
}

/* As in a state_dict: lora_A.default.weight, classifier.modules_to_save.default.weight. */
static char *
state_key(const char *key)
{
    char s[200];
    const char *last = strrchr(key, '.');
    snprintf(s, sizeof s, "%.*s%s.default%s", (int)(last - key), key,
             strstr(key, "lora_") ? "" : ".modules_to_save", last);
    return strdup(s);
}

static char *
dora_key(const char *key)
{
    const char *a = strstr(key, "l.0.query.lora_A.weight");
    return strdup(a ? "base_model.model.l.0.query.lora_magnitude_vector" : key);
}

/* Is it read as what it was? */
static void
check_rewritten(char *(*key)(const char *), const char *dtype, const char *name)
{
    open_whole();
    NEED(save("other") == RT_OK);
    rewrite("other", key, dtype, name);
    char *before = malloc(1 << 18);
    memcpy(before, run.base[0][0], 1 << 18);
    memset(run.base[0][0], 0, 1 << 18);
    CHECK(load("other") == RT_OK);
    CHECK(!memcmp(before, run.base[0][0], 1 << 18));
    free(before);
    close_run();
}

TEST(keys_and_types_of_others)
{
    check_rewritten(bare_key, "f32", "F32");
    check_rewritten(twice_key, "f32", "F32");
    check_rewritten(state_key, "f32", "F32");
    /* the numbers are whole and below 2048: halves hold them */
    check_rewritten(same_key, "f16", "F16");
    check_rewritten(same_key, "f64", "F64");
    open_whole();
    NEED(save("dora") == RT_OK);
    rewrite("dora", dora_key, "f32", "F32");
    CHECK(load("dora") == RT_USER);
    TOY_HEARD("lora_magnitude_vector' belongs to a kind of adapter");
    close_run();
}

TEST(pickled_adapters)
{
    open_whole();
    NEED(save("bin") == RT_OK);
    char from[512];
    snprintf(from, sizeof from, "%s", toy_path("bin/adapter_model.safetensors"));
    NEED(rename(from, toy_path("bin/adapter_model.bin")) == 0);
    CHECK(load("bin") == RT_USER);
    TOY_HEARD("is pickled, which only Python can read");
    close_run();
}

/* ---- all or nothing ---- */

static const rt_param based[] = {
    TOY_LORA("lora_A", RT_LORA_A, "l.0.query", 0, 2, 3),
    TOY_LORA("lora_B", RT_LORA_B, "l.0.query", 64, 4, 2),
    {.name = "l.0.query.weight",
     .hf = "l.0.query.weight",
     .transposed = true,
     .cls = RT_FROZEN,
     .n = 12,
     .rank = 2,
     .dim = {3, 4},
     .image = -1},
};

TEST(another_base)
{
    p = (rt_program){.task = "causal-lm",
                     .lora_r = 2,
                     .lora_alpha = 4,
                     .lora_scale = 2,
                     .lora_targets = toy_qv};
    open_run(based, 3);
    round_trip("based");
    rt_st st;
    NEED(rt_st_open(&st, toy_path("based/adapter_model.safetensors")) == RT_OK);
    CHECK(st.torch && st.meta && strstr(st.meta, "\"efficc.base\"") != NULL);
    rt_st_close(&st);
    ((float *)rt_param_data(&run, &based[2]))[11] += 1e-3f;
    memset(run.base[0][0], 0, 1 << 18);
    CHECK(load("based") == RT_USER);
    TOY_HEARD("was trained on other base weights");
    CHECK(((float *)rt_param_data(&run, &based[0]))[0] == 0);
    close_run();
}

/* The same weight in the other layout, as another exporter writes it, is the same base. */
TEST(the_base_does_not_depend_on_the_layout)
{
    static rt_param turned[3];
    memcpy(turned, based, sizeof turned);
    turned[2].transposed = false;
    turned[2].dim[0] = 4;
    turned[2].dim[1] = 3;
    p = (rt_program){.task = "causal-lm",
                     .lora_r = 2,
                     .lora_alpha = 4,
                     .lora_scale = 2,
                     .lora_targets = toy_qv};
    open_run(based, 3);
    NEED(save("layout") == RT_OK);
    float w[12];
    memcpy(w, rt_param_data(&run, &based[2]), sizeof w);
    close_run();
    open_run(turned, 3);
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 3; c++)
            ((float *)rt_param_data(&run, &turned[2]))[r * 3 + c] = w[c * 4 + r];
    CHECK(load("layout") == RT_OK);
    close_run();
}

TEST(nothing_changes_if_one_tensor_is_wrong)
{
    open_whole();
    NEED(save("late") == RT_OK);
    close_run();
    static rt_param wide[TOY_WHOLE];
    memcpy(wide, toy_whole_param, sizeof wide);
    wide[5].n = wide[5].dim[0] = 3; /* classifier.bias, the last that is read */
    open_whole();
    p.param = wide;
    memset(run.base[0][0], 0, 1 << 18);
    CHECK(load("late") == RT_USER);
    TOY_HEARD("classifier.bias' is [2], but the program has [3]");
    for (int i = 0; i < 1 << 16; i++)
        NEED(((float *)run.base[0][0])[i] == 0);
    close_run();
}

TEST(the_base_model_is_named)
{
    open_whole();
    p.model = "no/such/model.onnx";
    NEED(save("named") == RT_OK);
    int err;
    char *config = rt_read_text(toy_path("named/adapter_config.json"), 1 << 20, &err);
    NEED(config != NULL);
    CHECK(strstr(config, "\"base_model_name_or_path\": \"no/such/model.onnx\"") !=
          NULL);
    free(config);
    toy_write("named/model.onnx", "");
    toy_write("named/config.json", "{}");
    p.model = strdup(toy_path("named/model.onnx"));
    NEED(save("named") == RT_OK);
    config = rt_read_text(toy_path("named/adapter_config.json"), 1 << 20, &err);
    NEED(config != NULL);
    CHECK(strstr(config, "named\",\n  \"bias\"") != NULL); /* the folder */
    free(config);
    free((char *)p.model);
    close_run();
}
