/* step.c -- the program that efficc made of encoder.onnx: every call of a training step
 * and of an evaluation, in order. plan.h explains the names. */
#include "kernels.h"
#include "plan.h"

/* ---- step: embeddings, forward ---- */
static void
step_embeddings(rt_run *run, rt_stream *st)
{
    /* %e = embed $word, %input_ids : f32[2,4,8]  !"/emb/Gather" */
    rt_embed(st, s_e, RT_F32, w_word, RT_F32, in_input_ids, 8, 8);
    rt_done(run, 0);

    /* %p = slice $type {axis=0} : f32[1,8]  !"/types/Slice" */
    rt_move(st, s_p, w_type, &move_0);
    rt_done(run, 1);

    /* %h0 = add %e, %p : f32[2,4,8]  !"/Add" */
    k0(st, s_h0, s_e, s_p);
    rt_done(run, 2);
}

/* ---- step: layer.0, forward ---- */
static void
step_layer_0(rt_run *run, rt_stream *st)
{
    /* %n, %mean, %rstd = layernorm %h0, $ln.w, $ln.b {eps=1e-05} : f32[2,4,8],
     * f32[2,4], f32[2,4]  !"/ln" */
    rt_layernorm(st, s_n, s_mean, s_rstd, s_h0, w_ln_w, w_ln_b, &(rt_norm){8, 8, RT_F32,
        RT_F32, 1e-05f});
    rt_done(run, 3);

    /* %qkv = linear %n, $qkv.w : f32[2,4,24]  !"/qkv" */
    rt_gemm(st, gemm_8x24x8, s_qkv, s_n, w_qkv_w, NULL, s_scratch_qkv);
    rt_done(run, 4);

    /* %t = linear %n, $qkv.A {tb=1} : f32[2,4,2]  !"/qkv" */
    rt_gemm(st, gemm_8x2x8_tb, s_t, s_n, w_qkv_A, NULL, s_scratch_t);
    rt_done(run, 5);

    /* %qkv.l = lora_add %qkv, %t, $qkv.B {start=16, by=2} : f32[2,4,24]  !"/qkv" */
    rt_gemm(st, gemm_8x8x2_tb_add, s_qkv_l + 16, s_t, w_qkv_B, NULL, s_scratch_qkv_l);
    rt_done(run, 6);

    /* %a, %lse = attention %qkv.l, %qkv.l, %qkv.l, %attention_mask {heads=2,
     * kv_heads=2, head_dim=4, scale=0.5, ko=8, vo=16} : f32[2,4,8], f32[2,2,4]  !"/attn
     * ./ x .* y" */
    rt_attention(st, s_a, s_lse, s_qkv_l, s_qkv_l, s_qkv_l,
        &(rt_attn_at){.mask = in_attention_mask}, &attn_0, s_scratch_a);
    rt_done(run, 7);

    /* %half = const {value=0.5} : f32[] */
    /* %s = mul %a, %half : f32[2,4,8]  !"/Mul" */
    /* %g = gelu %s : f32[2,4,8]  !"/Gelu" */
    /* %h1 = add %h0, %g : f32[2,4,8]  !"/Add_1" */
    k1(st, s_s, s_h1, s_a, s_h0);
    rt_done(run, 8);
}

/* ---- step: head, forward ---- */
static void
step_head(rt_run *run, rt_stream *st)
{
    /* %first = slice %h1 {axis=1} : f32[2,1,8]  !"/head/Gather" */
    rt_move(st, s_first, s_h1, &move_1);
    rt_done(run, 9);

    /* %pooled = reshape %first : f32[2,8]  !"/head/Gather" */
    /* %logits = linear %pooled, $cls.w, $cls.b {tb=1} : f32[2,3]  !"/head/Gemm" */
    rt_gemm(st, gemm_2x3x8_tb_bias, s_logits, s_pooled, w_cls_w, w_cls_b, s_scratch_logits);
    rt_done(run, 10);
}

/* ---- step: head, backward ---- */
static void
step_head_bwd(rt_run *run, rt_stream *st)
{
    /* %loss, %logits.d = ce_grad %logits, %targets, %scale : f32[], f32[2,3]  !"loss" */
    rt_ce_grad(st, s_loss, s_logits_d, s_logits, in_targets, in_scale, 2, 3);
    rt_done(run, 11);

    /* %pooled.d = linear %logits.d, $cls.w : f32[2,8]  !"/head/Gemm" */
    rt_gemm(st, gemm_2x8x3, s_pooled_d, s_logits_d, w_cls_w, NULL, s_scratch_pooled_d);
    rt_done(run, 12);

    /* %cls.w.d = linear_dw %pooled, %logits.d {tb=1} : f32[3,8]  !"/head/Gemm" */
    rt_gemm(st, gemm_3x8x2_ta_add, g_cls_w, s_logits_d, s_pooled, NULL, s_scratch_cls_w_d);
    rt_done(run, 13);

    /* %cls.b.d = reduce_sum %logits.d {axes=[0]} : f32[3]  !"/head/Gemm" */
    rt_colsum(st, g_cls_b, s_logits_d, RT_F32, 2, 3, 3, true, s_scratch_cls_b_d);
    rt_done(run, 14);

    /* %first.d = reshape %pooled.d : f32[2,1,8]  !"/head/Gather" */
    /* %h1.d = unslice %first.d {axis=1} : f32[2,4,8]  !"/head/Gather" */
    rt_zero(st, s_h1_d, 256);
    rt_move(st, s_h1_d, s_first_d, &move_2);
    rt_done(run, 15);
}

/* ---- step: layer.0, backward ---- */
static void
step_layer_0_bwd(rt_run *run, rt_stream *st)
{
    /* %s.d = gelu_d %h1.d, %s : f32[2,4,8]  !"/Gelu" */
    /* %a.d = mul %s.d, %half : f32[2,4,8]  !"/Mul" */
    k2(st, s_a_d, s_h1_d, s_s);
    rt_done(run, 16);

    /* %qkv.l.d = attention_grad %a.d, %qkv.l, %qkv.l, %qkv.l, %a, %lse, %attention_mask
     * {heads=2, kv_heads=2, head_dim=4, scale=0.5, ko=8, vo=16} : f32[2,4,24]  !"/attn
     * ./ x .* y" */
    rt_attention_grad(st, s_qkv_l_d, s_qkv_l_d, s_qkv_l_d, s_a_d, s_qkv_l, s_qkv_l,
        s_qkv_l, s_a, s_lse, &(rt_attn_at){.mask = in_attention_mask}, &attn_0,
        s_scratch_qkv_l_d);
    rt_done(run, 17);

    /* %t.d = lora_dt %qkv.l.d, $qkv.B {start=16, by=2} : f32[2,4,2]  !"/qkv" */
    rt_gemm(st, gemm_8x2x8, s_t_d, s_qkv_l_d + 16, w_qkv_B, NULL, s_scratch_t_d);
    rt_done(run, 18);

    /* %qkv.B.d = lora_db %qkv.l.d, %t {start=16, len=8, by=2} : f32[8,2]  !"/qkv" */
    rt_gemm(st, gemm_8x2x8_ta_add, g_qkv_B, s_qkv_l_d + 16, s_t, NULL, s_scratch_qkv_B_d);
    rt_done(run, 19);

    /* %n.d = linear %t.d, $qkv.A : f32[2,4,8]  !"/qkv" */
    rt_gemm(st, gemm_8x8x2, s_n_d, s_t_d, w_qkv_A, NULL, s_scratch_n_d);
    rt_done(run, 20);

    /* %qkv.A.d = linear_dw %n, %t.d {tb=1} : f32[2,8]  !"/qkv" */
    rt_gemm(st, gemm_2x8x8_ta_add, g_qkv_A, s_t_d, s_n, NULL, s_scratch_qkv_A_d);
    rt_done(run, 21);

    /* %n.d.1 = linear %qkv.l.d, $qkv.w {tb=1} : f32[2,4,8]  !"/qkv" */
    rt_gemm(st, gemm_8x8x24_tb, s_n_d_1, s_qkv_l_d, w_qkv_w, NULL, s_scratch_n_d_1);
    rt_done(run, 22);

    /* %n.d.2 = add %n.d, %n.d.1 : f32[2,4,8]  !"/qkv" */
    k3(st, s_n_d_2, s_n_d, s_n_d_1);
    rt_done(run, 23);

    /* %h0.d = layernorm_dx %n.d.2, %h0, $ln.w, %mean, %rstd : f32[2,4,8]  !"/ln" */
    rt_layernorm_dx(st, s_h0_d, s_n_d_2, s_h0, w_ln_w, s_mean, s_rstd, &(rt_norm){8, 8,
        RT_F32, RT_F32, 0.0f});
    rt_done(run, 24);

    /* %h0.d.1 = add %h1.d, %h0.d : f32[2,4,8]  !"/ln" */
    k3(st, s_h0_d_1, s_h1_d, s_h0_d);
    rt_done(run, 25);
}

/* ---- step: embeddings, backward ---- */
static void
step_embeddings_bwd(rt_run *run, rt_stream *st)
{
    /* %p.d.sum = reduce_sum %h0.d.1 {axes=[0,1]} : f32[8]  !"/Add" */
    rt_colsum(st, s_p_d_sum, s_h0_d_1, RT_F32, 8, 8, 8, false, s_scratch_p_d_sum);
    rt_done(run, 26);

    /* %p.d = reshape %p.d.sum : f32[1,8]  !"/Add" */
    /* %type.d = unslice %p.d {axis=0} : f32[2,8]  !"/types/Slice" */
    rt_zero(st, s_type_d, 64);
    rt_move(st, s_type_d, s_p_d, &move_3);
    rt_done(run, 27);

    /* accum $type.grad, %type.d  !"/types/Slice" */
    rt_add_to(st, g_type, s_type_d, 16);
    rt_done(run, 28);
}

static void
micro(rt_run *run)
{
    step_embeddings(run, run->compute);
    step_layer_0(run, run->compute);
    step_head(run, run->compute);
    step_head_bwd(run, run->compute);
    step_layer_0_bwd(run, run->compute);
    step_embeddings_bwd(run, run->compute);
}

/* ---- step: embeddings, update ---- */
static void
step_embeddings_update(rt_run *run, rt_stream *st)
{
    /* %norm2 = norm2 $type.grad, $qkv.A.grad, $qkv.B.grad, $cls.w.grad, $cls.b.grad :
     * f32[] */
    rt_norm2(st, s_norm2, run);

    /* %coef = clip_scale %norm2 : f32[] */
    rt_clip_scale(st, s_coef, s_norm2, run);

    /* optim $type, $type.grad, $type.m, $type.v, %coef */
    rt_optim(st, run, 0, s_coef);
}

/* ---- step: layer.0, update ---- */
static void
step_layer_0_update(rt_run *run, rt_stream *st)
{
    /* optim $qkv.A, $qkv.A.grad, $qkv.A.m, $qkv.A.v, %coef, and 1 more of the unit */
    rt_optim(st, run, 1, s_coef);
}

/* ---- step: head, update ---- */
static void
step_head_update(rt_run *run, rt_stream *st)
{
    /* optim $cls.w, $cls.w.grad, $cls.w.m, $cls.w.v, %coef, and 1 more of the unit */
    rt_optim(st, run, 2, s_coef);
}

static void
update(rt_run *run)
{
    step_embeddings_update(run, run->compute);
    step_layer_0_update(run, run->compute);
    step_head_update(run, run->compute);
}

/* ---- eval: embeddings, forward ---- */
static void
eval_embeddings(rt_run *run, rt_stream *st)
{
    /* %e = embed $word, %input_ids : f32[2,4,8]  !"/emb/Gather" */
    rt_embed(st, e_e, RT_F32, w_word, RT_F32, in_input_ids, 8, 8);

    /* %p = slice $type {axis=0} : f32[1,8]  !"/types/Slice" */
    rt_move(st, e_p, w_type, &move_0);

    /* %h0 = add %e, %p : f32[2,4,8]  !"/Add" */
    k0(st, e_h0, e_e, e_p);
}

/* ---- eval: layer.0, forward ---- */
static void
eval_layer_0(rt_run *run, rt_stream *st)
{
    /* %n, %mean, %rstd = layernorm %h0, $ln.w, $ln.b {eps=1e-05} : f32[2,4,8],
     * f32[2,4], f32[2,4]  !"/ln" */
    rt_layernorm(st, e_n, e_mean, e_rstd, e_h0, w_ln_w, w_ln_b, &(rt_norm){8, 8, RT_F32,
        RT_F32, 1e-05f});

    /* %qkv = linear %n, $qkv.w : f32[2,4,24]  !"/qkv" */
    rt_gemm(st, gemm_8x24x8, e_qkv, e_n, w_qkv_w, NULL, e_scratch_qkv);

    /* %t = linear %n, $qkv.A {tb=1} : f32[2,4,2]  !"/qkv" */
    rt_gemm(st, gemm_8x2x8_tb, e_t, e_n, w_qkv_A, NULL, e_scratch_t);

    /* %qkv.l = lora_add %qkv, %t, $qkv.B {start=16, by=2} : f32[2,4,24]  !"/qkv" */
    rt_gemm(st, gemm_8x8x2_tb_add, e_qkv_l + 16, e_t, w_qkv_B, NULL, e_scratch_qkv_l);

    /* %a, %lse = attention %qkv.l, %qkv.l, %qkv.l, %attention_mask {heads=2,
     * kv_heads=2, head_dim=4, scale=0.5, ko=8, vo=16} : f32[2,4,8], f32[2,2,4]  !"/attn
     * ./ x .* y" */
    rt_attention(st, e_a, e_lse, e_qkv_l, e_qkv_l, e_qkv_l,
        &(rt_attn_at){.mask = in_attention_mask}, &attn_0, e_scratch_a);

    /* %half = const {value=0.5} : f32[] */
    /* %s = mul %a, %half : f32[2,4,8]  !"/Mul" */
    /* %g = gelu %s : f32[2,4,8]  !"/Gelu" */
    /* %h1 = add %h0, %g : f32[2,4,8]  !"/Add_1" */
    k6(st, e_h1, e_a, e_h0);
}

/* ---- eval: head, forward ---- */
static void
eval_head(rt_run *run, rt_stream *st)
{
    /* %first = slice %h1 {axis=1} : f32[2,1,8]  !"/head/Gather" */
    rt_move(st, e_first, e_h1, &move_1);

    /* %pooled = reshape %first : f32[2,8]  !"/head/Gather" */
    /* %logits = linear %pooled, $cls.w, $cls.b {tb=1} : f32[2,3]  !"/head/Gemm" */
    rt_gemm(st, gemm_2x3x8_tb_bias, e_logits, e_pooled, w_cls_w, w_cls_b, e_scratch_logits);

    /* %loss, %right, %prob, %losses = ce %logits, %targets, %scale : f32[], i64[],
     * f32[2,3], f32[2]  !"loss" */
    rt_ce(st, e_loss, e_right, e_prob, e_losses, e_logits, in_targets, in_scale, 2, 3);
}

static void
eval(rt_run *run)
{
    eval_embeddings(run, run->compute);
    eval_layer_0(run, run->compute);
    eval_head(run, run->compute);
}

int
main(int argc, char **argv)
{
    return rt_main(argc, argv, &program);
}
