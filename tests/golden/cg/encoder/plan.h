/* plan.h -- where everything lies, and the constants of step.c.
 *
 * `run` is the argument of every function in step.c. Sizes and offsets are
 * bytes. Only step.c includes this file.
 */
#include <efficc_cpu.h>
#include <efficc_rt.h>

/* Sizes of the micro-batch: rows that are computed, rows that are supervised. */
#define ROWS (run->size[RT_ROWS])
#define SUP (run->size[RT_SUP])

/* Parameters (w_) and their gradients (g_). */
#define w_word ((float *)(run->base[RT_FROZEN][0] + 0)) /* f32[9,8] */
#define w_type ((float *)(run->base[RT_TRAIN][0] + 0)) /* f32[2,8] */
#define w_ln_w ((float *)(run->base[RT_FROZEN][1] + 0)) /* f32[8] */
#define w_ln_b ((float *)(run->base[RT_FROZEN][1] + 64)) /* f32[8] */
#define w_qkv_w ((float *)(run->base[RT_FROZEN][1] + 128)) /* f32[8,24] */
#define w_qkv_A ((float *)(run->base[RT_TRAIN][1] + 0)) /* f32[2,8] */
#define w_qkv_B ((float *)(run->base[RT_TRAIN][1] + 64)) /* f32[8,2] */
#define w_cls_w ((float *)(run->base[RT_TRAIN][2] + 0)) /* f32[3,8] */
#define w_cls_b ((float *)(run->base[RT_TRAIN][2] + 128)) /* f32[3] */
#define g_type ((float *)(run->base[RT_GRAD][0] + 0)) /* f32[2,8] */
#define g_qkv_A ((float *)(run->base[RT_GRAD][1] + 0)) /* f32[2,8] */
#define g_qkv_B ((float *)(run->base[RT_GRAD][1] + 64)) /* f32[8,2] */
#define g_cls_w ((float *)(run->base[RT_GRAD][2] + 0)) /* f32[3,8] */
#define g_cls_b ((float *)(run->base[RT_GRAD][2] + 128)) /* f32[3] */

/* Inputs of a micro-batch. */
#define in_input_ids ((const int64_t *)run->input[0]) /* i64[2,4] */
#define in_attention_mask ((const int64_t *)run->input[1]) /* i64[2,4] */
#define in_targets ((const int64_t *)run->input[2]) /* i64[2] */
#define in_scale ((const float *)run->input[3]) /* f32[] */

/* Values of step; they share memory where they do not live at one time. */
#define s_e ((float *)(run->arena + 1536)) /* f32[2,4,8] */
#define s_p ((float *)(run->arena + 0)) /* f32[1,8] */
#define s_h0 ((float *)(run->arena + 1536)) /* f32[2,4,8] */
#define s_n ((float *)(run->arena + 1792)) /* f32[2,4,8] */
#define s_mean ((float *)(run->arena + 2944)) /* f32[2,4] */
#define s_rstd ((float *)(run->arena + 3008)) /* f32[2,4] */
#define s_qkv ((float *)(run->arena + 0)) /* f32[2,4,24] */
#define s_scratch_qkv ((void *)(run->arena + 768)) /* 192 bytes */
#define s_t ((float *)(run->arena + 2816)) /* f32[2,4,2] */
#define s_scratch_t ((void *)(run->arena + 768)) /* 192 bytes */
#define s_qkv_l ((float *)(run->arena + 0)) /* f32[2,4,24] */
#define s_scratch_qkv_l NULL
#define s_a ((float *)(run->arena + 2304)) /* f32[2,4,8] */
#define s_lse ((float *)(run->arena + 2880)) /* f32[2,2,4] */
#define s_scratch_a ((void *)(run->arena + 768)) /* 192 bytes */
#define s_s ((float *)(run->arena + 2560)) /* f32[2,4,8] */
#define s_h1 ((float *)(run->arena + 768)) /* f32[2,4,8] */
#define s_first ((float *)(run->arena + 1024)) /* f32[2,1,8] */
#define s_pooled s_first /* f32[2,8] */
#define s_logits ((float *)(run->arena + 960)) /* f32[2,3] */
#define s_scratch_logits ((void *)(run->arena + 768)) /* 192 bytes */
#define s_loss ((float *)(run->arena + 3072)) /* f32[] */
#define s_logits_d ((float *)(run->arena + 1088)) /* f32[2,3] */
#define s_pooled_d ((float *)(run->arena + 960)) /* f32[2,8] */
#define s_scratch_pooled_d ((void *)(run->arena + 768)) /* 192 bytes */
#define s_scratch_cls_w_d NULL
#define s_scratch_cls_b_d NULL
#define s_first_d s_pooled_d /* f32[2,1,8] */
#define s_h1_d ((float *)(run->arena + 2048)) /* f32[2,4,8] */
#define s_a_d ((float *)(run->arena + 2560)) /* f32[2,4,8] */
#define s_qkv_l_d ((float *)(run->arena + 768)) /* f32[2,4,24] */
#define s_scratch_qkv_l_d NULL
#define s_t_d ((float *)(run->arena + 448)) /* f32[2,4,2] */
#define s_scratch_t_d NULL
#define s_scratch_qkv_B_d NULL
#define s_n_d ((float *)(run->arena + 0)) /* f32[2,4,8] */
#define s_scratch_n_d ((void *)(run->arena + 256)) /* 192 bytes */
#define s_scratch_qkv_A_d NULL
#define s_n_d_1 ((float *)(run->arena + 256)) /* f32[2,4,8] */
#define s_scratch_n_d_1 ((void *)(run->arena + 512)) /* 192 bytes */
#define s_n_d_2 ((float *)(run->arena + 0)) /* f32[2,4,8] */
#define s_h0_d ((float *)(run->arena + 0)) /* f32[2,4,8] */
#define s_h0_d_1 ((float *)(run->arena + 2048)) /* f32[2,4,8] */
#define s_p_d_sum ((float *)(run->arena + 64)) /* f32[8] */
#define s_scratch_p_d_sum NULL
#define s_p_d s_p_d_sum /* f32[1,8] */
#define s_type_d ((float *)(run->arena + 0)) /* f32[2,8] */
#define s_norm2 ((float *)(run->arena + 0)) /* f32[] */
#define s_coef ((float *)(run->arena + 64)) /* f32[] */

/* Values of eval; they share memory where they do not live at one time. */
#define e_e ((float *)(run->arena + 768)) /* f32[2,4,8] */
#define e_p ((float *)(run->arena + 0)) /* f32[1,8] */
#define e_h0 ((float *)(run->arena + 768)) /* f32[2,4,8] */
#define e_n ((float *)(run->arena + 1024)) /* f32[2,4,8] */
#define e_mean ((float *)(run->arena + 0)) /* f32[2,4] */
#define e_rstd ((float *)(run->arena + 64)) /* f32[2,4] */
#define e_qkv ((float *)(run->arena + 0)) /* f32[2,4,24] */
#define e_scratch_qkv ((void *)(run->arena + 1280)) /* 192 bytes */
#define e_t ((float *)(run->arena + 1472)) /* f32[2,4,2] */
#define e_scratch_t ((void *)(run->arena + 1280)) /* 192 bytes */
#define e_qkv_l ((float *)(run->arena + 0)) /* f32[2,4,24] */
#define e_scratch_qkv_l NULL
#define e_a ((float *)(run->arena + 1024)) /* f32[2,4,8] */
#define e_lse ((float *)(run->arena + 1472)) /* f32[2,2,4] */
#define e_scratch_a ((void *)(run->arena + 1280)) /* 192 bytes */
#define e_h1 ((float *)(run->arena + 1024)) /* f32[2,4,8] */
#define e_first ((float *)(run->arena + 192)) /* f32[2,1,8] */
#define e_pooled e_first /* f32[2,8] */
#define e_logits ((float *)(run->arena + 256)) /* f32[2,3] */
#define e_scratch_logits ((void *)(run->arena + 0)) /* 192 bytes */
#define e_loss ((float *)(run->arena + 192)) /* f32[] */
#define e_right ((int64_t *)(run->arena + 64)) /* i64[] */
#define e_prob ((float *)(run->arena + 0)) /* f32[2,3] */
#define e_losses ((float *)(run->arena + 128)) /* f32[2] */

/* Products: rt_gemm() takes the number of a row. */
enum {
    gemm_8x24x8,
    gemm_8x2x8_tb,
    gemm_8x8x2_tb_add,
    gemm_2x3x8_tb_bias,
    gemm_2x8x3,
    gemm_3x8x2_ta_add,
    gemm_8x2x8,
    gemm_8x2x8_ta_add,
    gemm_8x8x2,
    gemm_2x8x8_ta_add,
    gemm_8x8x24_tb,
};
static const rt_gemm_desc gemms[] = {
    [gemm_8x24x8] = {.m = 8, .n = 24, .k = 8, .alpha = 1.0f, .lda = 8, .ldb = 24,
        .ldc = 24, .batch = 1, .scratch = 192},
    [gemm_8x2x8_tb] = {.m = 8, .n = 2, .k = 8, .tb = true, .alpha = 1.0f, .lda = 8,
        .ldb = 8, .ldc = 2, .batch = 1, .scratch = 192},
    [gemm_8x8x2_tb_add] = {.m = 8, .n = 8, .k = 2, .tb = true, .add = true, .alpha = 2.0f,
        .lda = 2, .ldb = 2, .ldc = 24, .batch = 1, .scratch = 0},
    [gemm_2x3x8_tb_bias] = {.m = 2, .n = 3, .k = 8, .tb = true, .bias = true,
        .alpha = 1.0f, .lda = 8, .ldb = 8, .ldc = 3, .batch = 1, .scratch = 192},
    [gemm_2x8x3] = {.m = 2, .n = 8, .k = 3, .alpha = 1.0f, .lda = 3, .ldb = 8, .ldc = 8,
        .batch = 1, .scratch = 192},
    [gemm_3x8x2_ta_add] = {.m = 3, .n = 8, .k = 2, .ta = true, .add = true, .alpha = 1.0f,
        .lda = 3, .ldb = 8, .ldc = 8, .batch = 1, .scratch = 0},
    [gemm_8x2x8] = {.m = 8, .n = 2, .k = 8, .alpha = 2.0f, .lda = 24, .ldb = 2, .ldc = 2,
        .batch = 1, .scratch = 0},
    [gemm_8x2x8_ta_add] = {.m = 8, .n = 2, .k = 8, .ta = true, .add = true, .alpha = 2.0f,
        .lda = 24, .ldb = 2, .ldc = 2, .batch = 1, .scratch = 0},
    [gemm_8x8x2] = {.m = 8, .n = 8, .k = 2, .alpha = 1.0f, .lda = 2, .ldb = 8, .ldc = 8,
        .batch = 1, .scratch = 192},
    [gemm_2x8x8_ta_add] = {.m = 2, .n = 8, .k = 8, .ta = true, .add = true, .alpha = 1.0f,
        .lda = 2, .ldb = 8, .ldc = 8, .batch = 1, .scratch = 0},
    [gemm_8x8x24_tb] = {.m = 8, .n = 8, .k = 24, .tb = true, .alpha = 1.0f, .lda = 24,
        .ldb = 24, .ldc = 8, .batch = 1, .scratch = 192},
};

/* Sizes of attentions, heads and copies. */
static const rt_attn attn_0 = {.batch = 2, .seq = 4, .heads = 2, .kv_heads = 2, .d = 4,
    .ldq = 24, .ldk = 24, .ldv = 24, .qo = 0, .ko = 8, .vo = 16, .qs = 4, .ks = 4, .vs = 4,
    .window = 0, .scale = 0.5f, .softcap = 0.0f, .causal = false};
static const rt_block_copy move_0 = {.outer = 1, .n = 1, .inner = 8, .ys = 8, .ystart = 0,
    .ystep = 1, .xs = 16, .xstart = 0, .xstep = 1, .size = 4};
static const rt_block_copy move_1 = {.outer = 2, .n = 1, .inner = 8, .ys = 8, .ystart = 0,
    .ystep = 1, .xs = 32, .xstart = 0, .xstep = 1, .size = 4};
static const rt_block_copy move_2 = {.outer = 2, .n = 1, .inner = 8, .ys = 32, .ystart = 0,
    .ystep = 1, .xs = 8, .xstart = 0, .xstep = 1, .size = 4};
static const rt_block_copy move_3 = {.outer = 1, .n = 1, .inner = 8, .ys = 16, .ystart = 0,
    .ystep = 1, .xs = 8, .xstart = 0, .xstep = 1, .size = 4};

/* Parameters, in the order of the IR. */
static const char *const nothing[] = {NULL};
static const rt_param params[] = {
    {.name = "word", .also = nothing, .hf = "emb.weight", .cls = RT_FROZEN,
        .init = RT_INIT_NORMAL, .unit = 0, .offset = 0, .n = 72, .image = -1, .rank = 2,
        .dim = {9, 8}},
    {.name = "type", .also = nothing, .hf = "types.weight", .cls = RT_TRAIN,
        .init = RT_INIT_NORMAL, .unit = 0, .offset = 0, .n = 16, .image = -1, .rank = 2,
        .dim = {2, 8}},
    {.name = "ln.w", .also = nothing, .cls = RT_FROZEN, .init = RT_INIT_FILE, .unit = 1,
        .offset = 0, .n = 8, .image = -1, .rank = 1, .dim = {8}},
    {.name = "ln.b", .also = nothing, .cls = RT_FROZEN, .init = RT_INIT_ZERO, .unit = 1,
        .offset = 64, .n = 8, .image = -1, .rank = 1, .dim = {8}},
    {.name = "qkv.w", .also = nothing, .hf = "layer.0.qkv.weight", .transposed = true,
        .cls = RT_FROZEN, .init = RT_INIT_NORMAL, .unit = 1, .offset = 128, .n = 192,
        .image = -1, .rank = 2, .dim = {8, 24}},
    {.name = "qkv.A", .also = nothing, .cls = RT_TRAIN, .role = RT_LORA_A,
        .init = RT_INIT_KAIMING, .unit = 1, .offset = 0, .n = 16, .image = -1, .rank = 2,
        .dim = {2, 8}, .module = "layer.0.qkv", .part = "v", .part_start = 16,
        .part_len = 8, .part_of = 24},
    {.name = "qkv.B", .also = nothing, .cls = RT_TRAIN, .role = RT_LORA_B,
        .init = RT_INIT_ZERO, .unit = 1, .offset = 64, .n = 16, .image = -1, .rank = 2,
        .dim = {8, 2}, .module = "layer.0.qkv", .part = "v", .part_start = 16,
        .part_len = 8, .part_of = 24},
    {.name = "cls.w", .also = nothing, .hf = "classifier.weight", .cls = RT_TRAIN,
        .role = RT_MODULE, .init = RT_INIT_NORMAL, .unit = 2, .offset = 0, .n = 24,
        .image = -1, .rank = 2, .dim = {3, 8}},
    {.name = "cls.b", .also = nothing, .hf = "classifier.bias", .cls = RT_TRAIN,
        .role = RT_MODULE, .init = RT_INIT_ZERO, .unit = 2, .offset = 128, .n = 3,
        .image = -1, .rank = 1, .dim = {3}},
};
enum { NPARAM = 9 };

/* Arguments of step and eval. */
static const rt_input inputs[] = {
    {.name = "input_ids", .role = RT_IDS, .rank = 2, .dim = {2, 4}, .used = true,
        .limit = 9},
    {.name = "attention_mask", .role = RT_MASK, .rank = 2, .dim = {2, 4}, .used = true},
    {.name = "targets", .role = RT_TARGETS, .rank = 1, .dim = {2}, .used = true,
        .limit = 3},
    {.name = "scale", .role = RT_SCALE, .rank = 0, .used = true},
};

/* Units, and the bytes of their buffers: trained parameters, gradients,
 * optimizer state m and v, frozen parameters, constants, images, loss scaler. */
static const char *const units[] = {"embeddings", "layer.0", "head", NULL};
static const int64_t unit_bytes[][RT_NCLASSES] = {
    {64, 64, 64, 64, 320, 0, 0, 0},
    {128, 128, 128, 128, 896, 0, 0, 0},
    {192, 192, 192, 192, 0, 0, 0, 0},
};

static const char *const cpu_features[] = {RT_CPU_FEATURES NULL};

/* Floats that the calls of micro() work on: name, op and ONNX node, place, shape,
 * whether infinities are meant, type, and what the first dimension is. */
static const rt_tensor tensors[] = {
    /* 0 */ {"%e", "embed", "/emb/Gather", RT_ARENA, 0, 1536, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 1 */ {"$word", NULL, NULL, RT_FROZEN, 0, 0, 2, {9, 8}, false, RT_F32, RT_FIXED},
    /* 2 */ {"%p", "slice", "/types/Slice", RT_ARENA, 0, 0, 2, {1, 8}, false, RT_F32,
        RT_FIXED},
    /* 3 */ {"$type", NULL, NULL, RT_TRAIN, 0, 0, 2, {2, 8}, false, RT_F32, RT_FIXED},
    /* 4 */ {"%h0", "add", "/Add", RT_ARENA, 0, 1536, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 5 */ {"%n", "layernorm", "/ln", RT_ARENA, 0, 1792, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 6 */ {"%mean", "layernorm", "/ln", RT_ARENA, 0, 2944, 2, {2, 4}, false, RT_F32,
        RT_FIXED},
    /* 7 */ {"%rstd", "layernorm", "/ln", RT_ARENA, 0, 3008, 2, {2, 4}, false, RT_F32,
        RT_FIXED},
    /* 8 */ {"$ln.w", NULL, NULL, RT_FROZEN, 1, 0, 1, {8}, false, RT_F32, RT_FIXED},
    /* 9 */ {"$ln.b", NULL, NULL, RT_FROZEN, 1, 64, 1, {8}, false, RT_F32, RT_FIXED},
    /* 10 */ {"%qkv", "linear", "/qkv", RT_ARENA, 0, 0, 3, {2, 4, 24}, false, RT_F32,
        RT_FIXED},
    /* 11 */ {"$qkv.w", NULL, NULL, RT_FROZEN, 1, 128, 2, {8, 24}, false, RT_F32, RT_FIXED},
    /* 12 */ {"%t", "linear", "/qkv", RT_ARENA, 0, 2816, 3, {2, 4, 2}, false, RT_F32,
        RT_FIXED},
    /* 13 */ {"$qkv.A", NULL, NULL, RT_TRAIN, 1, 0, 2, {2, 8}, false, RT_F32, RT_FIXED},
    /* 14 */ {"%qkv.l", "lora_add", "/qkv", RT_ARENA, 0, 0, 3, {2, 4, 24}, false, RT_F32,
        RT_FIXED},
    /* 15 */ {"$qkv.B", NULL, NULL, RT_TRAIN, 1, 64, 2, {8, 2}, false, RT_F32, RT_FIXED},
    /* 16 */ {"%a", "attention", "/attn */ x /* y", RT_ARENA, 0, 2304, 3, {2, 4, 8}, false,
        RT_F32, RT_FIXED},
    /* 17 */ {"%lse", "attention", "/attn */ x /* y", RT_ARENA, 0, 2880, 3, {2, 2, 4},
        true, RT_F32, RT_FIXED},
    /* 18 */ {"%s", "mul", "/Mul", RT_ARENA, 0, 2560, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 19 */ {"%h1", "add", "/Add_1", RT_ARENA, 0, 768, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 20 */ {"%first", "slice", "/head/Gather", RT_ARENA, 0, 1024, 3, {2, 1, 8}, false,
        RT_F32, RT_FIXED},
    /* 21 */ {"%logits", "linear", "/head/Gemm", RT_ARENA, 0, 960, 2, {2, 3}, false,
        RT_F32, RT_FIXED},
    /* 22 */ {"%pooled", NULL, NULL, RT_ARENA, 0, 1024, 2, {2, 8}, false, RT_F32, RT_FIXED},
    /* 23 */ {"$cls.w", NULL, NULL, RT_TRAIN, 2, 0, 2, {3, 8}, false, RT_F32, RT_FIXED},
    /* 24 */ {"$cls.b", NULL, NULL, RT_TRAIN, 2, 128, 1, {3}, false, RT_F32, RT_FIXED},
    /* 25 */ {"%loss", "ce_grad", "loss", RT_ARENA, 0, 3072, 0, {0}, false, RT_F32,
        RT_FIXED},
    /* 26 */ {"%logits.d", "ce_grad", "loss", RT_ARENA, 0, 1088, 2, {2, 3}, false, RT_F32,
        RT_FIXED},
    /* 27 */ {"%pooled.d", "linear", "/head/Gemm", RT_ARENA, 0, 960, 2, {2, 8}, false,
        RT_F32, RT_FIXED},
    /* 28 */ {"%cls.w.d", "linear_dw", "/head/Gemm", RT_GRAD, 2, 0, 2, {3, 8}, false,
        RT_F32, RT_FIXED},
    /* 29 */ {"%cls.b.d", "reduce_sum", "/head/Gemm", RT_GRAD, 2, 128, 1, {3}, false,
        RT_F32, RT_FIXED},
    /* 30 */ {"%h1.d", "unslice", "/head/Gather", RT_ARENA, 0, 2048, 3, {2, 4, 8}, false,
        RT_F32, RT_FIXED},
    /* 31 */ {"%first.d", NULL, NULL, RT_ARENA, 0, 960, 3, {2, 1, 8}, false, RT_F32,
        RT_FIXED},
    /* 32 */ {"%a.d", "mul", "/Mul", RT_ARENA, 0, 2560, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 33 */ {"%qkv.l.d", "attention_grad", "/attn */ x /* y", RT_ARENA, 0, 768, 3,
        {2, 4, 24}, false, RT_F32, RT_FIXED},
    /* 34 */ {"%t.d", "lora_dt", "/qkv", RT_ARENA, 0, 448, 3, {2, 4, 2}, false, RT_F32,
        RT_FIXED},
    /* 35 */ {"%qkv.B.d", "lora_db", "/qkv", RT_GRAD, 1, 64, 2, {8, 2}, false, RT_F32,
        RT_FIXED},
    /* 36 */ {"%n.d", "linear", "/qkv", RT_ARENA, 0, 0, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 37 */ {"%qkv.A.d", "linear_dw", "/qkv", RT_GRAD, 1, 0, 2, {2, 8}, false, RT_F32,
        RT_FIXED},
    /* 38 */ {"%n.d.1", "linear", "/qkv", RT_ARENA, 0, 256, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 39 */ {"%n.d.2", "add", "/qkv", RT_ARENA, 0, 0, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 40 */ {"%h0.d", "layernorm_dx", "/ln", RT_ARENA, 0, 0, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 41 */ {"%h0.d.1", "add", "/ln", RT_ARENA, 0, 2048, 3, {2, 4, 8}, false, RT_F32,
        RT_FIXED},
    /* 42 */ {"%p.d.sum", "reduce_sum", "/Add", RT_ARENA, 0, 64, 1, {8}, false, RT_F32,
        RT_FIXED},
    /* 43 */ {"%type.d", "unslice", "/types/Slice", RT_ARENA, 0, 0, 2, {2, 8}, false,
        RT_F32, RT_FIXED},
    /* 44 */ {"%p.d", NULL, NULL, RT_ARENA, 0, 64, 2, {1, 8}, false, RT_F32, RT_FIXED},
    /* 45 */ {"$type.grad", "accum", "/types/Slice", RT_GRAD, 0, 0, 2, {2, 8}, false,
        RT_F32, RT_FIXED},
};

/* The calls, by the number in rt_done(): unit, backward, ops that store nothing,
 * tensors: first the results. */
static const rt_op calls[] = {
    /* 0 */ {0, false, NULL, 1, 2, (const int[]){0, 1}},
    /* 1 */ {0, false, NULL, 1, 2, (const int[]){2, 3}},
    /* 2 */ {0, false, NULL, 1, 2, (const int[]){4, 2}},
    /* 3 */ {1, false, NULL, 3, 6, (const int[]){5, 6, 7, 4, 8, 9}},
    /* 4 */ {1, false, NULL, 1, 3, (const int[]){10, 5, 11}},
    /* 5 */ {1, false, NULL, 1, 3, (const int[]){12, 5, 13}},
    /* 6 */ {1, false, NULL, 1, 3, (const int[]){14, 12, 15}},
    /* 7 */ {1, false, NULL, 2, 3, (const int[]){16, 17, 14}},
    /* 8 */ {1, false, "gelu (/Gelu)", 2, 4, (const int[]){18, 19, 16, 4}},
    /* 9 */ {2, false, NULL, 1, 2, (const int[]){20, 19}},
    /* 10 */ {2, false, NULL, 1, 4, (const int[]){21, 22, 23, 24}},
    /* 11 */ {2, true, NULL, 2, 3, (const int[]){25, 26, 21}},
    /* 12 */ {2, true, NULL, 1, 3, (const int[]){27, 26, 23}},
    /* 13 */ {2, true, NULL, 1, 3, (const int[]){28, 22, 26}},
    /* 14 */ {2, true, NULL, 1, 2, (const int[]){29, 26}},
    /* 15 */ {2, true, NULL, 1, 2, (const int[]){30, 31}},
    /* 16 */ {1, true, "gelu_d (/Gelu)", 1, 2, (const int[]){32, 30}},
    /* 17 */ {1, true, NULL, 1, 5, (const int[]){33, 32, 14, 16, 17}},
    /* 18 */ {1, true, NULL, 1, 3, (const int[]){34, 33, 15}},
    /* 19 */ {1, true, NULL, 1, 3, (const int[]){35, 33, 12}},
    /* 20 */ {1, true, NULL, 1, 3, (const int[]){36, 34, 13}},
    /* 21 */ {1, true, NULL, 1, 3, (const int[]){37, 5, 34}},
    /* 22 */ {1, true, NULL, 1, 3, (const int[]){38, 33, 11}},
    /* 23 */ {1, true, NULL, 1, 2, (const int[]){39, 38}},
    /* 24 */ {1, true, NULL, 1, 5, (const int[]){40, 4, 8, 6, 7}},
    /* 25 */ {1, true, NULL, 1, 2, (const int[]){41, 40}},
    /* 26 */ {0, true, NULL, 1, 2, (const int[]){42, 41}},
    /* 27 */ {0, true, NULL, 1, 2, (const int[]){43, 44}},
    /* 28 */ {0, true, NULL, 1, 2, (const int[]){45, 43}},
};

/* ---- what the trainer must know ---- */

static const char *const lora_targets[] = {"qkv", NULL};
static const char *const modules_to_save[] = {"classifier", NULL};

static void micro(rt_run *);
static void update(rt_run *);
static void eval(rt_run *);

static const rt_program program = {
    .abi = RT_ABI,
    .efficc = "0.1.0",
    .model = "encoder.onnx",
    .task = "seq-cls",
    .family = "",
    .pool = "",
    .batch = 2,
    .seq = 4,
    .vocab = 0,
    .labels = 3,
    .pad = 0,
    .compute = RT_F32,
    .scaled = false,
    .pin = -1,
    .hash = "6914a3e5603e3731",
    .align = 64,
    .threads = 2,
    .cpu_features = cpu_features,
    .nunit = 3,
    .unit = units,
    .unit_bytes = unit_bytes,
    .nparam = NPARAM,
    .param = params,
    .ninput = 4,
    .input = inputs,
    .nop = 29,
    .op = calls,
    .tensor = tensors,
    .ngemm = 11,
    .gemm = gemms,
    .arena_bytes = 3136,
    .bound_bytes = 3136,
    .loss_at = 3072,
    .norm2_at = 0,
    .eval_loss_at = 192,
    .eval_right_at = 64,
    .eval_prob_at = 0,
    .eval_pred_at = -1,
    .eval_value_at = -1,
    .eval_row_loss_at = -1,
    .lora_r = 2,
    .lora_alpha = 4,
    .lora_scale = 2,
    .lora_rows = true,
    .lora_fan_in_fan_out = false,
    .lora_targets = lora_targets,
    .modules_to_save = modules_to_save,
    .micro = micro,
    .update = update,
    .eval = eval,
};
