/* cg_agree.h -- runs a module as a generated program and in the interpreter: every result,
 * gradient and updated parameter must agree. AGREE_NVCC in the environment: the program is
 * for a GPU, which that compiler serves.
 */
#ifndef EFFICC_CG_AGREE_H
#define EFFICC_CG_AGREE_H

#include "test.h"

#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codegen/cg.h"
#include "said.h"

#include <efficc_low.h>

typedef struct given { /* contents of an integer input */
    const char *name;
    const int64_t *x;
} given;

typedef struct trial {
    const char *text;
    int micro;           /* micro-batches before the update */
    double tol;          /* of differences, over the tensor's largest element */
    bool bf16, fp16;     /* what the options say */
    const given *inputs; /* ends with a name NULL; NULL: none */
    int at[RT_NSYMS];    /* which of its sizes a named dimension has in the program, */
    int64_t live[RT_NSYMS]; /* and how many of its rows mean something */
} trial;

typedef struct rig {
    said s;
    ef_config cfg;
    ir_module *m;
    ir_env env;
    char dir[64];
    FILE *in, *out;
    double worst; /* largest difference, over the largest element of its tensor */
    const trial *t;
} rig;

/* ---- building ---- */

static void
rig_open(rig *r, const trial *t)
{
    *r = (rig){.cfg = ef_config_default, .t = t};
    r->cfg.bf16 = t->bf16;
    r->cfg.fp16 = t->fp16;
    r->cfg.unpad =
        strstr(t->text, "sizes.rows") != NULL; /* it has rows, or stays as it is */
    said_open(&r->s);
    r->cfg.nvcc = getenv("AGREE_NVCC");
    r->cfg.target = r->cfg.nvcc ? "cuda" : "cpu";
    r->cfg.threads = r->cfg.nvcc ? 0 : 2;
    r->cfg.align = r->cfg.nvcc ? 4096 : 0;
    r->cfg.argv_run = "test";
    r->cfg.cflags = "-O1 -march=native -Wextra -Wpedantic -Wshadow -Werror";
    r->s.ctx->cfg = &r->cfg;
    r->m = ir_parse(r->s.ctx, "t.ir", t->text);
    bool stopped = false,
         ok = r->m && !ir_verify(r->m) && pass_run(r->m, cg_target(r->s.ctx), &stopped);
    if (!ok)
        printf("%s\n", said_text(&r->s));
    NEED(ok);
    strcpy(r->dir, "/tmp/efficc-cg-XXXXXX");
    NEED(mkdtemp(r->dir) != NULL);
}

/* step.c gets the harness in place of the trainer's loop. */
static void
build(rig *r)
{
    bool ok = cg_emit(r->m, cg_target(r->s.ctx), r->dir);
    char path[128];
    snprintf(path, sizeof path, "%s/src/step.c", r->dir);
    FILE *f = ok ? fopen(path, "a") : NULL;
    if (f) {
        fprintf(f, "#include \"%s/tests/unit/cg_harness.c\"\n", SRC_DIR);
        fclose(f);
        ok = cg_build(r->s.ctx, r->dir);
    }
    if (!ok)
        printf("%s\n", said_text(&r->s));
    NEED(f && ok);
}

static void
rig_close(rig *r)
{
    char cmd[128];
    ef_arena_free(r->env.arena);
    ir_module_free(r->m);
    said_close(&r->s);
    snprintf(cmd, sizeof cmd, "rm -rf %s", r->dir);
    CHECK(system(cmd) == 0);
}

/* ---- data in ---- */

static void
put_number(FILE *f, ir_dtype t, double x)
{
    if (t == IR_F32)
        fwrite(&(float){(float)x}, 4, 1, f);
    else if (t == IR_I64)
        fwrite(&(int64_t){(int64_t)x}, 8, 1, f);
    else if (t == IR_BF16)
        fwrite(&(rt_bf16){rt_to_bf16((float)x)}, 2, 1, f);
    else if (t == IR_F16)
        fwrite(&(rt_f16){rt_to_f16((float)x)}, 2, 1, f);
    else
        fwrite(&(uint8_t){x != 0}, 1, 1, f);
}

static double
get_number(FILE *f, ir_dtype t)
{
    float x = NAN;
    int64_t i = -1;
    int32_t w = -1;
    uint8_t b = 99;
    uint16_t h;
    if (t == IR_BF16 || t == IR_F16)
        return fread(&h, 2, 1, f) != 1 ? NAN
               : t == IR_BF16          ? (double)rt_from_bf16(h)
                                       : (double)rt_from_f16(h);
    if (t == IR_F32)
        return fread(&x, 4, 1, f) == 1 ? (double)x : NAN;
    if (t == IR_I64)
        return fread(&i, 8, 1, f) == 1 ? (double)i : NAN;
    if (t == IR_I32)
        return fread(&w, 4, 1, f) == 1 ? (double)w : NAN;
    return fread(&b, 1, 1, f) == 1 ? (double)b : NAN;
}

static void
put_params(rig *r)
{
    for (int i = 0; i < r->m->params.n; i++) {
        const ir_param *p = r->m->params.at[i];
        if (p->cls > IR_CONST)
            continue;
        int64_t n = ir_type_count(p->value->type);
        double *x = EF_NEWN(r->env.arena, double, n + 1);
        NEED(ir_read_f64(r->m, p, 0, 0, n, x));
        for (int64_t k = 0; k < n; k++)
            put_number(r->in, p->value->type->dtype, x[k]);
    }
}

static const int64_t *
given_input(const rig *r, const char *name)
{
    for (const given *g = r->t->inputs; g && g->name; g++)
        if (!strcmp(g->name, name))
            return g->x;
    return NULL;
}

/* Argument values: token-like numbers, the scale 1/8; values of a regression, some of which
 * are not supervised. */
static void
put_inputs(rig *r)
{
    for (int f = 0; f < 2; f++) {
        ir_func *fn = f ? r->m->eval : r->m->step;
        for (int i = 0; fn && i < fn->args.n; i++) {
            ir_value *v = fn->args.at[i];
            ir_tensor *t = ir_env_new(&r->env, v);
            bool mask = strstr(v->name, "mask") != NULL;
            bool values = strstr(v->name, "values") != NULL;
            const int64_t *x = given_input(r, v->name);
            int64_t n = ir_type_count(v->type);
            for (int64_t k = 0; k < n; k++) {
                t->data[k] = x        ? (double)x[k]
                             : values ? (k % 4 == 2 ? NAN : 0.75 * (double)k - 1)
                             : v->type->dtype == IR_F32 ? 0.125
                             : mask                     ? k % 5 != 4
                                                        : (double)((k * 5 + i) % 7);
                if (!f)
                    put_number(r->in, v->type->dtype, t->data[k]);
            }
        }
    }
}

static const ir_op *
ret_of(const ir_func *f)
{
    NEED(f->last && f->last->last && f->last->last->code == IR_OP_ret);
    return f->last->last;
}

static int64_t
offset_of(const ir_value *v)
{
    while (v->def && ir_ops[v->def->code].flags & IR_VIEW)
        v = v->def->arg[0];
    int i = 0;
    NEED(v->def != NULL);
    while (v->def->res[i] != v)
        i++;
    return ir_attr_get(v->def, IR_ATTR_at)->u.l[i];
}

static void
put_wanted(rig *r, const ir_func *f)
{
    const ir_op *ret = f ? ret_of(f) : NULL;
    put_number(r->in, IR_I64, ret ? ret->narg : 0);
    for (int i = 0; ret && i < ret->narg; i++) {
        put_number(r->in, IR_I64, (double)offset_of(ret->arg[i]));
        put_number(r->in, IR_I64, (double)ir_type_bytes(ret->arg[i]->type));
    }
}

/* ---- comparing ---- */

/* The elements of a type that mean something: rows behind the real ones do not. */
static int64_t
live_count(const rig *r, const ir_type *t)
{
    ir_sym sym = t->rank ? t->sym[0] : IR_FIXED;
    return sym ? ir_type_count(t) / t->dim[0] * r->t->live[sym] : ir_type_count(t);
}

/* The next tensor of out.bin. Differences count against its largest finite element. */
static void
compare(rig *r, const char *name, const ir_type *type, const double *want)
{
    int64_t n = live_count(r, type), all = ir_type_count(type), bad = 0;
    double size = 1e-9, worst = 0, got_bad = 0;
    for (int64_t k = 0; k < n; k++)
        size = isfinite(want[k]) && fabs(want[k]) > size ? fabs(want[k]) : size;
    for (int64_t k = 0; k < n; k++) {
        double got = get_number(r->out, type->dtype);
        bool same = got == want[k] || (isnan(got) && isnan(want[k]));
        double off = same ? 0 : fabs(got - want[k]) / size;
        if (off <= worst)
            continue;
        worst = isnan(off) ? INFINITY : off;
        bad = k;
        got_bad = got;
    }
    for (int64_t k = n; k < all; k++)
        get_number(r->out, type->dtype);
    if (worst > r->t->tol)
        printf("  %s[%lld] is %.9g, not %.9g\n", name, (long long)bad, got_bad,
               want[bad]);
    CHECK(worst <= r->t->tol);
    r->worst = worst > r->worst ? worst : r->worst;
}

static void
compare_class(rig *r, bool gradients)
{
    for (int i = 0; i < r->m->params.n; i++) {
        const ir_param *p = r->m->params.at[i];
        const ir_param *of = gradients ? ir_grad_of(r->m, p) : p;
        if (p->cls != IR_TRAIN)
            continue;
        const ir_tensor *t = of ? ir_env_get(&r->env, of->value) : NULL;
        NEED(t != NULL);
        compare(r, of->value->name, p->value->type, t->data);
    }
}

static void
compare_results(rig *r, const ir_func *f)
{
    const ir_op *ret = f ? ret_of(f) : NULL;
    for (int i = 0; ret && i < ret->narg; i++)
        compare(r, ret->arg[i]->name, ret->arg[i]->type,
                ir_env_get(&r->env, ret->arg[i])->data);
}

static void
run_program(rig *r)
{
    char in[128], out[128], cmd[512];
    snprintf(in, sizeof in, "%s/in.bin", r->dir);
    snprintf(out, sizeof out, "%s/out.bin", r->dir);
    r->in = fopen(in, "wb");
    NEED(r->in != NULL);
    for (int i = 0; i < RT_NSYMS; i++)
        put_number(r->in, IR_I64, r->t->at[i]);
    put_params(r);
    put_inputs(r);
    put_number(r->in, IR_I64, r->t->micro);
    put_wanted(r, r->m->step);
    put_wanted(r, r->m->eval);
    fclose(r->in);
    snprintf(cmd, sizeof cmd, "%s/trainer %s %s", r->dir, in, out);
    NEED(system(cmd) == 0);
    r->out = fopen(out, "rb");
    NEED(r->out != NULL);
}

static bool
has_class(const ir_module *m, ir_pclass cls)
{
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i]->cls == cls)
            return true;
    return false;
}

/* Runs the module both ways: micro-batches, the update, then eval. */
static void
try_both(const trial *t)
{
    rig r;
    rig_open(&r, t);
    CHECK(has_class(r.m, IR_IMAGE) == (t->bf16 || t->fp16));
    CHECK(has_class(r.m, IR_SCALER) == t->fp16);
    build(&r);
    r.env = (ir_env){.arena = ef_arena_new()};
    r.env.hyper =
        (ir_hyper){.lr = 0.01,
                   .weight_decay = 0.1,
                   .beta1 = 0.9,
                   .beta2 = 0.999,
                   .eps = 0.01, /* else small gradients decide by their sign */
                   .max_norm = 0.5,
                   .step = 1};
    run_program(&r);
    ir_env_zero_grads(r.m, &r.env);
    for (int i = 0; i < t->micro; i++)
        NEED(ir_interp(r.m->step, 1u << IR_FWD | 1u << IR_BWD, &r.env));
    compare_class(&r, true);
    NEED(ir_interp(r.m->step, 1u << IR_UPDATE, &r.env));
    compare_results(&r, r.m->step);
    compare_class(&r, false);
    if (r.m->eval)
        NEED(ir_interp(r.m->eval, 1u << IR_FWD, &r.env));
    compare_results(&r, r.m->eval);
    CHECK(fgetc(r.out) == EOF);
    fclose(r.out);
    printf("  largest relative difference %.1e\n", r.worst);
    rig_close(&r);
}

static inline void
agree(const char *text, int micro, double tol)
{
    try_both(&(trial){.text = text, .micro = micro, .tol = tol});
}

/* A module whose results the passes before plan must not touch. */
#define PLANNED_NEXT                                                           \
    "efficc-ir 1 canon recognise task eval grad cse optim dce\nunit 0 \"u\"\n" \
    "meta input.i \"ids\"\n"

static const char encoder[] =
    "efficc-ir 1 canon recognise task\n"
    "meta task \"seq-cls\"\nmeta labels \"3\"\n"
    "unit 0 \"embeddings\"\nunit 1 \"layer.0\"\nunit 2 \"head\"\n"
    "param $word : f32[9,8] train unit=0 normal\n"
    "param $pos : f32[7,8] train unit=0 normal\n"
    "param $at : i64[1,5] const unit=0 = 0 1 2 3 4\n"
    "param $ln.w : f32[8] train unit=1 normal\n"
    "param $ln.b : f32[8] train unit=1 zero\n"
    "param $qkv.w : f32[8,24] train unit=1 normal\n"
    "param $qkv.b : f32[24] train unit=1 normal\n"
    "param $out.w : f32[8,8] train unit=1 normal\n"
    "param $fc.w : f32[8,16] frozen unit=1 normal\n"
    "param $fc2.w : f32[16,8] train unit=1 normal\n"
    "param $cls.w : f32[3,8] train unit=2 normal\n"
    "param $cls.b : f32[3] train unit=2 zero\n"
    "func $step(%input_ids : i64[2,5], %attention_mask : i64[2,5], %targets : i64[2], "
    "%scale : f32[]) {\n"
    "@embeddings: fwd unit=0\n"
    "  %e = embed $word, %input_ids : f32[2,5,8]\n"
    "  %p = embed $pos, $at : f32[1,5,8]\n"
    "  %h0 = add %e, %p : f32[2,5,8]\n"
    "@layer.0: fwd unit=1\n"
    "  %n, %mean, %rstd = layernorm %h0, $ln.w, $ln.b {eps=1e-05} : f32[2,5,8], "
    "f32[2,5], "
    "f32[2,5]\n"
    "  %qkv = linear %n, $qkv.w, $qkv.b : f32[2,5,24]\n"
    "  %a, %lse = attention %qkv, %qkv, %qkv, %attention_mask {heads=2, kv_heads=2, "
    "head_dim=4, scale=0.5, causal=CAUSAL, ko=8, vo=16} : f32[2,5,8], f32[2,2,5]\n"
    "  %o = linear %a, $out.w : f32[2,5,8]\n"
    "  %h1 = add %h0, %o : f32[2,5,8]\n"
    "  %fc = linear %h1, $fc.w : f32[2,5,16]\n"
    "  %g = gelu %fc : f32[2,5,16]\n"
    "  %m = linear %g, $fc2.w : f32[2,5,8]\n"
    "  %h2 = add %h1, %m : f32[2,5,8]\n"
    "@head: fwd unit=2\n";

/* A small encoder that has passed task, with this head. */
static inline const char *
cg_model(ef_arena *a, const char *causal, const char *head)
{
    const char *cut = strstr(encoder, "CAUSAL");
    return ef_printf(a, "%.*s%s%s%s}\n", (int)(cut - encoder), encoder, causal, cut + 6,
                     head);
}

#endif
