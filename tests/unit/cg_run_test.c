/* cg_run_test.c -- generated programs against the interpreter: the same module runs in both,
 * every result, gradient and updated parameter must agree.
 */
#include "test.h"

#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codegen/cg.h"
#include "said.h"

typedef struct rig {
    said s;
    ef_config cfg;
    ir_module *m;
    ir_env env;
    char dir[64];
    FILE *in, *out;
    double worst; /* largest difference, over the largest element of its tensor */
} rig;

/* ---- building ---- */

static void
rig_open(rig *r, const char *text)
{
    *r = (rig){.cfg = ef_config_default};
    said_open(&r->s);
    r->cfg.threads = 2;
    r->cfg.argv_run = "test";
    r->cfg.cflags = "-O1 -march=native -Wextra -Wpedantic -Wshadow -Werror";
    r->s.ctx->cfg = &r->cfg;
    r->m = ir_parse(r->s.ctx, "t.ir", text);
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
        if (p->of)
            continue;
        int64_t n = ir_type_count(p->value->type);
        double *x = EF_NEWN(r->env.arena, double, n + 1);
        NEED(ir_read_f64(r->m, p, 0, 0, n, x));
        for (int64_t k = 0; k < n; k++)
            put_number(r->in, p->value->type->dtype, x[k]);
    }
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
            int64_t n = ir_type_count(v->type);
            for (int64_t k = 0; k < n; k++) {
                t->data[k] = values ? (k % 4 == 2 ? NAN : 0.75 * (double)k - 1)
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

/* The next n elements of out.bin. Differences count against the tensor's largest finite
 * element. */
static void
compare(rig *r, const char *name, const ir_type *type, const double *want, double tol)
{
    int64_t n = ir_type_count(type), bad = 0;
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
    if (worst > tol)
        printf("  %s[%lld] is %.9g, not %.9g\n", name, (long long)bad, got_bad,
               want[bad]);
    CHECK(worst <= tol);
    r->worst = worst > r->worst ? worst : r->worst;
}

static void
compare_class(rig *r, bool gradients, double tol)
{
    for (int i = 0; i < r->m->params.n; i++) {
        const ir_param *p = r->m->params.at[i];
        const ir_param *of = gradients ? ir_grad_of(r->m, p) : p;
        if (p->cls != IR_TRAIN)
            continue;
        const ir_tensor *t = of ? ir_env_get(&r->env, of->value) : NULL;
        NEED(t != NULL);
        compare(r, of->value->name, p->value->type, t->data, tol);
    }
}

static void
compare_results(rig *r, const ir_func *f, double tol)
{
    const ir_op *ret = f ? ret_of(f) : NULL;
    for (int i = 0; ret && i < ret->narg; i++)
        compare(r, ret->arg[i]->name, ret->arg[i]->type,
                ir_env_get(&r->env, ret->arg[i])->data, tol);
}

/* Runs the module both ways: `micro` micro-batches, the update, then eval. */
static void
agree(const char *text, int micro, double tol)
{
    rig r;
    char in[128], out[128], trainer[128], cmd[512];
    rig_open(&r, text);
    build(&r);
    r.env = (ir_env){.arena = ef_arena_new()};
    r.env.hyper = (ir_hyper){.lr = 0.01,
                             .weight_decay = 0.1,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .max_norm = 0.5,
                             .step = 1};
    snprintf(in, sizeof in, "%s/in.bin", r.dir);
    snprintf(out, sizeof out, "%s/out.bin", r.dir);
    snprintf(trainer, sizeof trainer, "%s/trainer", r.dir);
    r.in = fopen(in, "wb");
    NEED(r.in != NULL);
    put_params(&r);
    put_inputs(&r);
    put_number(r.in, IR_I64, micro);
    put_wanted(&r, r.m->step);
    put_wanted(&r, r.m->eval);
    fclose(r.in);
    snprintf(cmd, sizeof cmd, "%s %s %s", trainer, in, out);
    NEED(system(cmd) == 0);
    r.out = fopen(out, "rb");
    NEED(r.out != NULL);

    ir_env_zero_grads(r.m, &r.env);
    for (int i = 0; i < micro; i++)
        NEED(ir_interp(r.m->step, 1u << IR_FWD | 1u << IR_BWD, &r.env));
    compare_class(&r, true, tol);
    NEED(ir_interp(r.m->step, 1u << IR_UPDATE, &r.env));
    compare_results(&r, r.m->step, tol);
    compare_class(&r, false, tol);
    if (r.m->eval)
        NEED(ir_interp(r.m->eval, 1u << IR_FWD, &r.env));
    compare_results(&r, r.m->eval, tol);
    CHECK(fgetc(r.out) == EOF);
    fclose(r.out);
    printf("  largest relative difference %.1e\n", r.worst);
    rig_close(&r);
}

/* A module whose results the passes before plan must not touch. */
#define PLANNED_NEXT                                                           \
    "efficc-ir 1 canon recognise task eval grad cse optim dce\nunit 0 \"u\"\n" \
    "meta input.i \"ids\"\n"

/* ---- elementwise ---- */

TEST(every_elementwise_formula)
{
    static const struct {
        const char *name, *out;
        int arity;
    } row[] = {
#define EW(name, arity, out, formula) {#name, #out, arity},
#include "ir/elementwise.def"
#undef EW
    };
    ef_arena *a = ef_arena_new();
    ef_buf b = {.arena = a}, ret = {.arena = a};
    ef_puts(&b, PLANNED_NEXT "param $a : f32[3,70] frozen unit=0 normal\n"
                             "param $b : f32[70] frozen unit=0 normal\n"
                             "param $c : f32[3,1] frozen unit=0 normal\n"
                             "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                             "  %k = const {value=40} : f32[]\n"
                             "  %x = mul $a, %k : f32[3,70]\n"
                             "  %y = mul $b, %k : f32[70]\n"
                             "  %z = mul $c, %k : f32[3,1]\n"
                             "  %p = gt %x, %y : bool[3,70]\n");
    for (int i = 0; i < (int)EF_COUNT(row); i++) {
        bool choice = *row[i].out == 'W';
        ef_putf(&b, "  %%r%d = %s %s%s%s : %s[3,70]\n", i, row[i].name,
                choice ? "%p" : "%x", row[i].arity > 1 ? ", %y" : "",
                row[i].arity > 2 ? ", %z" : "", *row[i].out == 'B' ? "bool" : "f32");
        ef_putf(&ret, "%s%%r%d", i ? ", " : "  ret ", i);
    }
    ef_putf(&b, "%s\n}\n", ret.s);
    agree(b.s, 1, 2e-6);
    ef_arena_free(a);
}

TEST(element_types_and_conversions)
{
    agree(
        PLANNED_NEXT
        "param $f : f32[4,6] frozen unit=0 normal\n"
        "param $n : i64[6] const unit=0 = 3 -7 0 5 -1 1099511627776\n"
        "param $t : bool[4,1] const unit=0 = 0 1 1 0\n"
        "func $step(%i : i64[4,1]) {\n@b: fwd unit=0\n"
        "  %big = const {value=1000} : f32[]\n"
        "  %g = mul $f, %big : f32[4,6]\n"
        "  %g.i = cast %g : i64[4,6]\n"
        "  %g.w = cast %g : i32[4,6]\n"
        "  %g.b = cast %g : bool[4,6]\n"
        "  %w.i = cast %g.w : i64[4,6]\n"
        "  %t.f = cast $t : f32[4,1]\n"
        "  %s = add %g, %t.f : f32[4,6]\n"
        "  %sum = add $n, %i : i64[4,6]\n"
        "  %quot = div $n, %i : i64[4,6]\n"
        "  %pick = where $t, $n, %i : i64[4,6]\n"
        "  %less = lt $n, %i : bool[4,6]\n"
        "  %both = and %less, $t : bool[4,6]\n"
        "  %neither = not %both : bool[4,6]\n"
        "  %seven = const {value=-7} : i64[]\n"
        "  %is = eq $n, %seven : bool[6]\n"
        "  %n.f = cast $n : f32[6]\n"
        "  %inf = const {value=-inf} : f32[]\n"
        "  %masked = where %neither, %s, %inf : f32[4,6]\n"
        "  %wide = expand %n.f : f32[2,4,6]\n"
        "  ret %g.i, %g.w, %g.b, %w.i, %s, %sum, %quot, %pick, %less, %both, %neither, "
        "%is, %n.f, %masked, %wide\n}\n",
        1, 1e-6);
}

TEST(long_and_deep_loops)
{
    agree(PLANNED_NEXT "param $a : f32[20001] frozen unit=0 normal\n"
                       "param $b : f32[3,5,4,7] frozen unit=0 normal\n"
                       "param $c : f32[5,1,7] frozen unit=0 normal\n"
                       "param $d : f32[3,1,4,1] frozen unit=0 normal\n"
                       "param $e : f32[2,9000] frozen unit=0 normal\n"
                       "param $f : f32[2,1] frozen unit=0 normal\n"
                       "func $step(%i : i64[2], %scale : f32[]) {\n@b: fwd unit=0\n"
                       "  %p = exp $a : f32[20001]\n"
                       "  %q = mul $b, $c : f32[3,5,4,7]\n"
                       "  %r = add %q, $d : f32[3,5,4,7]\n"
                       "  %s = sub $e, $f : f32[2,9000]\n"
                       "  %t = mul %scale, %scale : f32[]\n"
                       "  %u = mul %s, %t : f32[2,9000]\n"
                       "  ret %p, %r, %s, %t, %u\n}\n",
          1, 1e-6);
}

/* ---- structure and products ---- */

TEST(moving_data)
{
    agree(PLANNED_NEXT "param $a : f32[2,3,4] frozen unit=0 normal\n"
                       "param $b : f32[2,2,4] frozen unit=0 normal\n"
                       "param $n : i64[2,3] const unit=0 = 5 2 -3 4 0 1\n"
                       "param $k : i64[3] const unit=0 = 2 0 2\n"
                       "param $m : i64[2] const unit=0 = 1 -1\n"
                       "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                       "  %t = transpose $a {perm=[2,0,1]} : f32[4,2,3]\n"
                       "  %tn = transpose $n {perm=[1,0]} : i64[3,2]\n"
                       "  %c = concat $a, $b, $a {axis=1} : f32[2,8,4]\n"
                       "  %s = slice %c {axis=1, start=7, step=-3} : f32[2,3,4]\n"
                       "  %s2 = slice $n {axis=1, start=1} : i64[2,2]\n"
                       "  %u = unslice $b {axis=1, start=1, step=2} : f32[2,5,4]\n"
                       "  %g = gather $a, $k {axis=1} : f32[2,3,4]\n"
                       "  %g2 = gather $n, $m {axis=1} : i64[2,2]\n"
                       "  %dg = gather_grad $a, $k {axis=1} : f32[2,3,4]\n"
                       "  %v = reshape $a : f32[6,4]\n"
                       "  %w = reshape %v : f32[24]\n"
                       "  %e = exp %w : f32[24]\n"
                       "  %cum = cumsum $n {axis=1} : i64[2,3]\n"
                       "  ret %t, %tn, %c, %s, %s2, %u, %g, %g2, %dg, %e, %cum\n}\n",
          1, 1e-6);
}

TEST(reductions_over_any_dimensions)
{
    agree(PLANNED_NEXT "param $a : f32[2,3,4,5] frozen unit=0 normal\n"
                       "param $one : f32[1,7] frozen unit=0 normal\n"
                       "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                       "  %a = reduce_sum $a {axes=[0,1]} : f32[4,5]\n"
                       "  %b = reduce_sum $a {axes=[3]} : f32[2,3,4]\n"
                       "  %c = reduce_sum $a {axes=[0,2]} : f32[3,5]\n"
                       "  %d = reduce_mean $a {axes=[0,2], keep=1} : f32[1,3,1,5]\n"
                       "  %e = reduce_max $a {axes=[1,3]} : f32[2,4]\n"
                       "  %f = reduce_mean $a {axes=[0,1,2,3]} : f32[]\n"
                       "  %g = reduce_max $a {axes=[2]} : f32[2,3,5]\n"
                       "  %h = reduce_sum $one {axes=[0]} : f32[7]\n"
                       "  %s = softmax $a : f32[2,3,4,5]\n"
                       "  %ds = softmax_grad $a, %s : f32[2,3,4,5]\n"
                       "  ret %a, %b, %c, %d, %e, %f, %g, %h, %s, %ds\n}\n",
          1, 2e-6);
}

TEST(products_of_every_layout)
{
    agree(PLANNED_NEXT "param $a : f32[2,3,4,5] frozen unit=0 normal\n"
                       "param $b : f32[2,3,5,6] frozen unit=0 normal\n"
                       "param $bt : f32[2,3,6,5] frozen unit=0 normal\n"
                       "param $w : f32[5,6] frozen unit=0 normal\n"
                       "param $h : f32[3,5,6] frozen unit=0 normal\n"
                       "param $r : f32[2,1,5,6] frozen unit=0 normal\n"
                       "param $q : f32[1,3,4,5] frozen unit=0 normal\n"
                       "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                       "  %c = matmul $a, $b : f32[2,3,4,6]\n"
                       "  %d = matmul $a, $bt {tb=1} : f32[2,3,4,6]\n"
                       "  %e = matmul $a, $w : f32[2,3,4,6]\n"
                       "  %f = matmul $a, $h : f32[2,3,4,6]\n"
                       "  %g = matmul $a, $r : f32[2,3,4,6]\n"
                       "  %h = matmul $q, $r : f32[2,3,4,6]\n"
                       "  %j = matmul $a, %c {ta=1} : f32[2,3,5,6]\n"
                       "  %k = matmul $w, $a {ta=1, tb=1} : f32[2,3,6,4]\n"
                       "  ret %c, %d, %e, %f, %g, %h, %j, %k\n}\n",
          1, 2e-6);
}

TEST(linears_and_adapters)
{
    agree(PLANNED_NEXT "param $x : f32[2,4,6] frozen unit=0 normal\n"
                       "param $w : f32[6,9] frozen unit=0 normal\n"
                       "param $wt : f32[9,6] frozen unit=0 normal\n"
                       "param $b : f32[9] frozen unit=0 normal\n"
                       "param $A : f32[2,6] frozen unit=0 normal\n"
                       "param $B : f32[3,2] frozen unit=0 normal\n"
                       "func $step(%i : i64[2]) {\n@b: fwd unit=0\n"
                       "  %y = linear $x, $w, $b : f32[2,4,9]\n"
                       "  %z = linear $x, $wt {tb=1} : f32[2,4,9]\n"
                       "  %dw = linear_dw $x, %y : f32[6,9]\n"
                       "  %dwt = linear_dw $x, %y {tb=1} : f32[9,6]\n"
                       "  %t = linear $x, $A {tb=1} : f32[2,4,2]\n"
                       "  %u = lora_add %y, %t, $B {start=3, by=0.5} : f32[2,4,9]\n"
                       "  %v = lora_add %z, %t, $B {start=6, by=2} : f32[2,4,9]\n"
                       "  %dt = lora_dt %u, $B {start=6, by=2} : f32[2,4,2]\n"
                       "  %db = lora_db %u, %t {start=6, len=3, by=2} : f32[3,2]\n"
                       "  ret %y, %dw, %dwt, %u, %v, %dt, %db\n}\n",
          1, 2e-6);
}

/* ---- attention, norms and heads, where results have places of their own ---- */

TEST(attention_on_wide_rows_and_shared_heads)
{
    agree(PLANNED_NEXT
          "meta input.mask \"mask\"\n"
          "param $q : f32[2,5,20] frozen unit=0 normal\n"
          "param $k : f32[2,5,9] frozen unit=0 normal\n"
          "param $v : f32[2,5,8] frozen unit=0 normal\n"
          "param $dy : f32[2,5,16] frozen unit=0 normal\n"
          "func $step(%mask : i64[2,5]) {\n@b: fwd unit=0\n"
          "  %big = const {value=40} : f32[]\n"
          "  %qb = mul $q, %big : f32[2,5,20]\n"
          "  %kb = mul $k, %big : f32[2,5,9]\n"
          "  %y, %l = attention %qb, %kb, $v, %mask {heads=4, kv_heads=2, head_dim=4, "
          "scale=0.5, causal=1, qo=3, ko=1} : f32[2,5,16], f32[2,4,5]\n"
          "  %dq, %dk, %dv = attention_grad $dy, %qb, %kb, $v, %y, %l, %mask {heads=4, "
          "kv_heads=2, head_dim=4, scale=0.5, causal=1, qo=3, ko=1} : f32[2,5,20], "
          "f32[2,5,9], f32[2,5,8]\n"
          "  %z, %m = attention %qb, %kb, $v {heads=4, kv_heads=2, head_dim=4, "
          "scale=0.5, "
          "qo=3, ko=1} : f32[2,5,16], f32[2,4,5]\n"
          "  ret %y, %l, %dq, %dk, %dv, %z, %m\n}\n",
          1, 2e-5);
}

TEST(gradients_that_are_not_added)
{
    agree(
        PLANNED_NEXT
        "meta input.targets \"labels\"\n"
        "param $x : f32[2,3,8] frozen unit=0 normal\n"
        "param $w : f32[8,7] frozen unit=0 normal\n"
        "param $b : f32[7] frozen unit=0 normal\n"
        "param $g : f32[8] frozen unit=0 normal\n"
        "func $step(%i : i64[2,3], %targets : i64[2,3], %scale : f32[]) {\n"
        "@b: fwd unit=0\n"
        "  %y, %m, %r = layernorm $x, $g, $g {eps=1e-05} : f32[2,3,8], f32[2,3], "
        "f32[2,3]\n"
        "  %dx = layernorm_dx $x, %y, $g, %m, %r : f32[2,3,8]\n"
        "  %dg, %db = layernorm_dwb $x, %y, %m, %r : f32[8], f32[8]\n"
        "  %e = embed_grad $x, %i : f32[9,8]\n"
        "  %loss, %dh, %dw, %dc = head_ce_grad %y, $w, %targets, %scale, $b {chunk=4, "
        "wgrad=1, bgrad=1} : f32[], f32[2,3,8], f32[8,7], f32[7]\n"
        "  %loss2, %dh2, %dc2 = head_ce_grad %y, $w, %targets, %scale, $b {bgrad=1} : "
        "f32[], f32[2,3,8], f32[7]\n"
        "  %loss3, %right, %pred, %losses = head_ce %y, $w, %targets, %scale, $b "
        "{chunk=4} : "
        "f32[], "
        "i64[], i64[2,3], f32[2,3]\n"
        "  ret %y, %m, %r, %dx, %dg, %db, %e, %loss, %dh, %dw, %dc, %loss2, %dh2, "
        "%dc2, "
        "%loss3, %right, %pred, %losses\n}\n",
        1, 2e-5);
}

/* ---- training ---- */

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

static const char *
model(ef_arena *a, const char *causal, const char *head)
{
    const char *cut = strstr(encoder, "CAUSAL");
    return ef_printf(a, "%.*s%s%s%s}\n", (int)(cut - encoder), encoder, causal, cut + 6,
                     head);
}

TEST(a_classifier_trains_as_in_the_interpreter)
{
    ef_arena *a = ef_arena_new();
    agree(model(a, "0",
                "  %first = slice %h2 {axis=1} : f32[2,1,8]\n"
                "  %pooled = reshape %first : f32[2,8]\n"
                "  %t = tanh %pooled : f32[2,8]\n"
                "  %logits = linear %t, $cls.w, $cls.b {tb=1} : f32[2,3]\n"
                "  %loss, %right, %prob, %losses = ce %logits, %targets, %scale : "
                "f32[], i64[], "
                "f32[2,3], f32[2]\n  ret %loss\n"),
          1, 2e-5);
    ef_arena_free(a);
}

TEST(a_regression_trains_as_in_the_interpreter)
{
    ef_arena *a = ef_arena_new();
    char *text = ef_strdup(
        a, model(a, "0",
                 "  %first = slice %h2 {axis=1} : f32[2,1,8]\n"
                 "  %pooled = reshape %first : f32[2,8]\n"
                 "  %y = linear %pooled, $cls.w, $cls.b {tb=1} : f32[2,3]\n"
                 "  %loss, %losses = mse %y, %values, %scale : f32[], f32[2]\n"
                 "  ret %loss\n"));
    memcpy(strstr(text, "%targets : i64[2],"), "%values:f32[2,3], ", 18);
    agree(text, 2, 2e-5);
    ef_arena_free(a);
}

TEST(micro_batches_add_up)
{
    ef_arena *a = ef_arena_new();
    agree(model(a, "1",
                "  %mean.1 = reduce_mean %h2 {axes=[1]} : f32[2,8]\n"
                "  %logits = linear %mean.1, $cls.w, $cls.b {tb=1} : f32[2,3]\n"
                "  %loss, %right, %prob, %losses = ce %logits, %targets, %scale : "
                "f32[], i64[], "
                "f32[2,3], f32[2]\n  ret %loss\n"),
          3, 2e-5);
    ef_arena_free(a);
}

TEST(a_tied_head_trains_as_in_the_interpreter)
{
    ef_arena *a = ef_arena_new();
    char *text = ef_strdup(
        a, model(a, "1",
                 "  %loss, %right, %pred, %losses = head_ce %h2, $word, %targets, "
                 "%scale {tb=1, "
                 "chunk=4} : f32[], i64[], i64[2,5], f32[2,5]\n  ret %loss\n"));
    memcpy(strstr(text, "%targets : i64[2],"), "%targets:i64[2,5],", 18);
    agree(text, 2, 2e-5);
    ef_arena_free(a);
}
