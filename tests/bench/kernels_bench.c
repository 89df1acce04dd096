/* kernels_bench.c -- the CPU kernels at gpt2's sizes (124M, batch 4, sequence 512), products
 * also at MiniLM's (928 rows, as in a batch without padding), next to what the machine can do
 * at that moment. Products run in float, bf16 with C in float, and all in bf16; attention also
 * on the rows of 32 samples of 5 to 64, as MiniLM has them, in float and bf16, and on the same
 * padded to 64.
 *
 * usage: kernels_bench [threads] [part of a kernel's name]
 *
 * A row is the median of several runs: milliseconds, then GFLOP/s and the share of the peak
 * (register-only fused multiply-adds, measured just before the row) or GB/s moved.
 */
#include "peak.h"
#include "runtime/cpu/mm_int.h"
#include "runtime/include/efficc_rt.h"
#include <stdio.h>
#include <stdlib.h>

enum {
    RUNS = 7,
    BATCH = 4,
    SEQ = 512,
    ROWS = BATCH * SEQ,
    H = 768,
    HEADS = 12,
    FEW = 928, /* rows of MiniLM, */
    G = 384,   /* its width */
    V = 50257
};

static rt_stream *stream;
static const char *only; /* NULL: all */
static int threads;

static float *
noise(int64_t n)
{
    float *x = rt_alloc((size_t)n * sizeof *x);
    uint32_t z = 1;
    if (!x)
        exit(1);
    for (int64_t i = 0; i < n; i++) {
        z = z * 1664525u + 1013904223u;
        x[i] = (float)(z >> 8) / 8388608.0f - 1;
    }
    return x;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct job {
    const char *name;
    double flop, bytes;
    void (*run)(void *);
    void *arg;
} job;

static void
measure(const job *j)
{
    double t[RUNS], top;
    if (only && !strstr(j->name, only))
        return;
    top = bench_peak(threads);
    j->run(j->arg);
    for (int i = 0; i < RUNS; i++) {
        double begin = bench_now();
        j->run(j->arg);
        t[i] = bench_now() - begin;
    }
    qsort(t, RUNS, sizeof *t, by_value);
    double m = t[RUNS / 2];
    printf("%-34s %9.3f ms", j->name, 1e3 * m);
    if (j->flop > 0)
        printf("  %7.1f GFLOP/s  %3.0f %% of %.0f", j->flop / m / 1e9,
               100 * j->flop / m / 1e9 / top, top);
    if (j->bytes > 0)
        printf("  %7.1f GB/s", j->bytes / m / 1e9);
    printf("\n");
    fflush(stdout);
}

/* ---- products ---- */

typedef struct product {
    const char *name;
    int64_t m, n, k;
    bool ta, tb, add;
} product;
static const product products[] = {
    {"qkv forward", ROWS, 3 * H, H, false, false, false},
    {"attention output forward", ROWS, H, H, false, false, false},
    {"mlp up forward", ROWS, 4 * H, H, false, false, false},
    {"mlp down forward", ROWS, H, 4 * H, false, false, false},
    {"qkv dx", ROWS, H, 3 * H, false, true, false},
    {"attention output dx", ROWS, H, H, false, true, false},
    {"mlp up dx", ROWS, H, 4 * H, false, true, false},
    {"mlp down dx", ROWS, 4 * H, H, false, true, false},
    {"qkv dw", H, 3 * H, ROWS, true, false, true},
    {"attention output dw", H, H, ROWS, true, false, true},
    {"mlp up dw", H, 4 * H, ROWS, true, false, true},
    {"mlp down dw", 4 * H, H, ROWS, true, false, true},
    {"lora t = x a^T (rank 8)", ROWS, 8, H, false, true, false},
    {"lora y += t b^T", ROWS, H, 8, false, true, true},
    {"lora da", 8, H, ROWS, true, false, true},
    {"lora db", H, 8, ROWS, true, false, true},
    {"minilm forward 384", FEW, G, G, false, false, false},
    {"minilm forward up", FEW, 4 * G, G, false, false, false},
    {"minilm forward down", FEW, G, 4 * G, false, false, false},
    {"minilm dx 384", FEW, G, G, false, true, false},
    {"minilm dx up", FEW, G, 4 * G, false, true, false},
    {"minilm dx down", FEW, 4 * G, G, false, true, false},
    {"minilm dw 384", G, G, FEW, true, false, true},
    {"minilm dw up", G, 4 * G, FEW, true, false, true},
    {"minilm dw down", 4 * G, G, FEW, true, false, true},
};
enum { NSHAPES = sizeof products / sizeof *products, NPRODUCTS = 3 * NSHAPES };
static const struct {
    const char *name;
    rt_dtype a, c;
} forms[3] = {{"f32", RT_F32, RT_F32},
              {"bf16, C f32", RT_BF16, RT_F32},
              {"bf16", RT_BF16, RT_BF16}};

typedef struct product_run {
    int index;
    rt_gemm_desc d;
    void *a, *b, *c, *scratch;
    bool own;
} product_run;

static void
run_product(void *arg)
{
    product_run *p = arg;
    const rt_gemm_desc *d = &p->d;
    if (!p->own) {
        rt_gemm(stream, p->index, p->c, p->a, p->b, NULL, p->scratch);
        return;
    }
    rt_mm g = {.m = d->m,
               .n = d->n,
               .k = d->k,
               .ta = d->ta,
               .tb = d->tb,
               .add = d->add,
               .alpha = 1,
               .lda = d->lda,
               .ldb = d->ldb,
               .ldc = d->ldc,
               .a = p->a,
               .b = p->b,
               .c = p->c,
               .type_a = d->a,
               .type_b = d->b,
               .type_c = d->c};
    rt_mm_run(&g, threads, p->scratch);
}

static rt_gemm_desc
describe(const product *p, int form)
{
    return (rt_gemm_desc){.m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .a = forms[form].a,
                          .b = forms[form].a,
                          .c = forms[form].c,
                          .ta = p->ta,
                          .tb = p->tb,
                          .add = p->add,
                          .alpha = 1,
                          .lda = p->ta ? p->m : p->k,
                          .ldb = p->tb ? p->k : p->n,
                          .ldc = p->n,
                          .batch = 1};
}

static void
bench_product(int i, const rt_gemm_desc *d, void *operand[2][3], void *scratch)
{
    const product *p = &products[i / 3];
    void **x = operand[d->a == RT_BF16];
    for (int own = d->ta; own < 2; own++) {
        char name[80];
        product_run r = {i, *d, x[0], x[1], operand[d->c == RT_BF16][2], scratch, own};
        snprintf(name, sizeof name, "%s, %s%s", p->name, forms[i % 3].name,
                 own && !d->ta ? ", own" : "");
        measure(&(job){name, 2.0 * (double)(p->m * p->n * p->k), 0, run_product, &r});
    }
}

static void
bench_products(void)
{
    rt_gemm_desc table[NPRODUCTS];
    int64_t space = 0;
    for (int i = 0; i < NPRODUCTS; i++) {
        table[i] = describe(&products[i / 3], i % 3);
        rt_mm own = {.m = table[i].m,
                     .n = table[i].n,
                     .k = table[i].k,
                     .type_a = table[i].a,
                     .type_b = table[i].b,
                     .type_c = table[i].c};
        table[i].scratch = rt_cpu_scratch.gemm(&table[i], threads);
        space = rt_mm_scratch(&own) > space ? rt_mm_scratch(&own) : space;
        space = table[i].scratch > space ? table[i].scratch : space;
    }
    rt_program program = {.threads = threads, .ngemm = NPRODUCTS, .gemm = table};
    char error[200];
    if (!rt_device_open(&program, &stream, error, sizeof error))
        exit(1);
    void *operand[2][3], *scratch = rt_alloc((size_t)space);
    for (int k = 0; k < 3; k++) {
        operand[0][k] = noise(ROWS * 4 * H);
        operand[1][k] = rt_alloc(ROWS * 4 * H * 2);
        rt_convert(stream, operand[1][k], RT_BF16, operand[0][k], RT_F32, ROWS * 4 * H);
    }
    for (int i = 0; i < NPRODUCTS; i++)
        if (!products[i / 3].ta ||
            table[i].c == RT_F32) /* gradients of weights: float */
            bench_product(i, &table[i], operand, scratch);
    rt_device_close(stream);
}

/* ---- the rest ---- */

typedef struct rest {
    rt_attn a;
    rt_attn_at at;
    rt_head head, low; /* of floats, of bf16 */
    float *x, *y, *z, *w, *table, *dtable, *stat;
    void *low_x, *low_table;
    int64_t *ids, *pred;
    void *scratch;
    rt_run run;
    float one, out;
} rest;
static const rt_norm norm = {ROWS, H, RT_F32, RT_F32, 1e-5f};

static void
attention(void *p)
{
    rest *r = p;
    rt_attention(stream, r->y, r->stat, r->x, r->x, r->x, &r->at, &r->a, r->scratch);
}

static void
attention_grad(void *p)
{
    rest *r = p;
    rt_attention_grad(stream, r->z, r->z, r->z, r->w, r->x, r->x, r->x, r->y, r->stat,
                      &r->at, &r->a, r->scratch);
}

static void
layernorm(void *p)
{
    rest *r = p;
    rt_layernorm(stream, r->y, r->stat, r->stat + ROWS, r->x, r->w, r->w, &norm);
}

static void
layernorm_grad(void *p)
{
    rest *r = p;
    rt_layernorm_dx(stream, r->z, r->w, r->x, r->w, r->stat, r->stat + ROWS, &norm);
    rt_layernorm_dwb(stream, r->y, r->y + H, r->w, r->x, r->stat, r->stat + ROWS, &norm,
                     true, true, r->scratch);
}

static void
rmsnorm(void *p)
{
    rest *r = p;
    rt_rmsnorm(stream, r->y, r->stat, r->x, r->w, &norm);
}

static void
rmsnorm_grad(void *p)
{
    rest *r = p;
    rt_rmsnorm_dx(stream, r->z, r->w, r->x, r->w, r->stat, &norm);
    rt_rmsnorm_dw(stream, r->y, r->w, r->x, r->stat, &norm, true, r->scratch);
}

static void
rotary(void *p)
{
    rest *r = p;
    rt_turn t = {ROWS, SEQ, 3 * H, 2 * HEADS, 0, H / HEADS, H / HEADS, false, RT_F32};
    rt_rotary(stream, r->y, r->x, r->w, r->z, &t);
}

static void
colsum(void *p)
{
    rest *r = p;
    rt_colsum(stream, r->z, r->x, RT_F32, ROWS, 3 * H, 3 * H, true, r->scratch);
}

static void
head(void *p)
{
    rest *r = p;
    rt_head_ce(stream, &r->out, r->pred, r->pred + 1, r->z, r->x, r->table, r->ids,
               &r->one, NULL, &r->head, r->scratch);
}

static void
head_grad(void *p)
{
    rest *r = p;
    rt_head_ce_grad(stream, &r->out, r->y, r->dtable, NULL, r->x, r->table, r->ids,
                    &r->one, NULL, &r->head, r->scratch);
}

static void
low_head_grad(void *p)
{
    rest *r = p;
    rt_head_ce_grad(stream, &r->out, r->y, r->dtable, NULL, r->low_x, r->low_table,
                    r->ids, &r->one, NULL, &r->low, r->scratch);
}

static void
embed_grad(void *p)
{
    rest *r = p;
    rt_embed_grad(stream, r->dtable, r->x, RT_F32, r->ids, ROWS, H, V, true,
                  r->scratch);
}

static void
norm2(void *p)
{
    rest *r = p;
    rt_norm2(stream, &r->out, &r->run);
}

static void
optim(void *p)
{
    rest *r = p;
    rt_optim(stream, &r->run, 0, &r->one);
}

static void
bench_rest(void)
{
    enum { N = V * H };
    static const rt_param param = {
        .name = "w", .cls = RT_TRAIN, .n = N, .image = -1, .rank = 2};
    static const int64_t bytes[1][RT_NCLASSES] = {{N * 4, N * 4, N * 4, N * 4, 0, 0}};
    rt_program program = {.threads = threads,
                          .nunit = 1,
                          .unit_bytes = bytes,
                          .nparam = 1,
                          .param = &param};
    char error[200], *base[RT_NCLASSES][1];
    if (!rt_device_open(&program, &stream, error, sizeof error))
        exit(1);
    enum { D = H / HEADS };
    rest r = {.a = {BATCH, SEQ, HEADS, HEADS, D, .ldq = 3 * H, .ldk = 3 * H,
                    .ldv = 3 * H, .ko = H, .vo = 2 * H, .qs = D, .ks = D, .vs = D,
                    .scale = 0.125f, .causal = true},
              .head = {ROWS, H, V, 512, true, RT_F32},
              .low = {ROWS, H, V, 512, true, RT_BF16},
              .one = 1e-3f,
              .x = noise(ROWS * 3 * H),
              .y = noise(ROWS * 3 * H),
              .z = noise(ROWS * 3 * H),
              .w = noise(ROWS * 3 * H),
              .table = noise(N),
              .dtable = noise(N),
              .low_x = rt_alloc(ROWS * H * 2),
              .low_table = rt_alloc(N * 2),
              .stat = noise(BATCH * HEADS * SEQ),
              .ids = rt_alloc(ROWS * 8),
              .pred = rt_alloc(ROWS * 8 + 8),
              .run = {.program = &program,
                      .hyper = {1e-4, 0.01, 0.9, 0.999, 1e-8, 1, 1, false, false}}};
    rt_convert(stream, r.low_x, RT_BF16, r.x, RT_F32, ROWS * H);
    rt_convert(stream, r.low_table, RT_BF16, r.table, RT_F32, N);
    int64_t space = rt_cpu_scratch.head_ce(&r.head, true, threads);
    int64_t low = rt_cpu_scratch.head_ce(&r.low, true, threads);
    space = low > space ? low : space;
    int64_t need = rt_cpu_scratch.attention_grad(&r.a, threads);
    r.scratch = rt_alloc((size_t)(need > space ? need : space));
    for (int i = 0; i < ROWS; i++)
        r.ids[i] = (int64_t)i * 7919 % V;
    base[RT_TRAIN][0] = (char *)r.table, base[RT_GRAD][0] = (char *)r.dtable;
    base[RT_STATE_M][0] = rt_alloc(N * 4), base[RT_STATE_V][0] = rt_alloc(N * 4);
    for (int c = 0; c < RT_NCLASSES; c++)
        r.run.base[c] = base[c];
    double act = 4.0 * ROWS * H, scores = (double)BATCH * HEADS * SEQ * (SEQ + 1) / 2;
    double logits = 2.0 * ROWS * H * V, pair = 2 * scores * (H / HEADS);
    const job jobs[] = {
        {"attention", 2 * pair, 0, attention, &r},
        {"attention grad", 5 * pair, 0, attention_grad, &r},
        {"layernorm", 0, 2 * act, layernorm, &r},
        {"layernorm grad", 0, 5 * act, layernorm_grad, &r},
        {"rmsnorm", 0, 2 * act, rmsnorm, &r},
        {"rmsnorm grad", 0, 5 * act, rmsnorm_grad, &r},
        {"rotary, q and k of a fused product", 0, 6 * act, rotary, &r},
        {"column sums [2048, 2304]", 0, 3 * act, colsum, &r},
        {"head and loss", logits, 0, head, &r},
        {"head, loss and gradients", 3 * logits, 0, head_grad, &r},
        {"head, loss and gradients, bf16", 3 * logits, 0, low_head_grad, &r},
        {"embedding grad", 0, 3 * act, embed_grad, &r},
        {"norm2, 38.6 M", 0, 4.0 * N, norm2, &r},
        {"adamw, 38.6 M", 0, 7 * 4.0 * N, optim, &r},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        measure(&jobs[i]);
    rt_device_close(stream);
}

/* ---- short samples ---- */

enum { SAMPLES = 32, LONGEST = 64 };

typedef struct few { /* one packed buffer of q, k, v */
    rt_attn a;
    rt_attn_at at;
    void *x, *y, *dx, *dy, *scratch;
    float *lse, *w, *stat;
    rt_norm norm;
} few;

static void
few_attention(void *p)
{
    few *f = p;
    rt_attention(stream, f->y, f->lse, f->x, f->x, f->x, &f->at, &f->a, f->scratch);
}

static void
few_attention_grad(void *p)
{
    few *f = p;
    rt_attention_grad(stream, f->dx, f->dx, f->dx, f->dy, f->x, f->x, f->x, f->y,
                      f->lse, &f->at, &f->a, f->scratch);
}

static void
few_layernorm(void *p)
{
    few *f = p;
    rt_layernorm(stream, f->y, f->stat, f->stat + f->norm.rows, f->x, f->w, f->w,
                 &f->norm);
}

static void
few_layernorm_grad(void *p)
{
    few *f = p;
    int64_t rows = f->norm.rows;
    rt_layernorm_dx(stream, f->dx, f->dy, f->x, f->w, f->stat, f->stat + rows,
                    &f->norm);
    rt_layernorm_dwb(stream, f->w, f->w + G, f->dy, f->x, f->stat, f->stat + rows,
                     &f->norm, true, true, f->scratch);
}

static void *
of_type(int64_t n, rt_dtype t)
{
    float *x = noise(n);
    void *y = t == RT_F32 ? x : rt_alloc((size_t)n * 2);
    rt_convert(stream, y, t, x, RT_F32, n);
    return y;
}

/* form: 0 padded, 1 rows, 2 rows of which weights are dropped. */
static void
bench_few(rt_dtype t, int form)
{
    enum { D = G / HEADS, ALL = SAMPLES * LONGEST };
    static const char *const what[] = {"padded", "of rows", "of rows, p 0.1"};
    static int64_t offsets[SAMPLES + 1], at[ALL], keys[ALL], key;
    double pairs = 0;
    for (int64_t b = 0; b < SAMPLES; b++) {
        int64_t n = form ? 5 + b * b * 7 % (LONGEST - 4) : LONGEST;
        offsets[b + 1] = offsets[b] + n;
        pairs += (double)(n * n);
        for (int64_t i = 0; i < n; i++) {
            at[offsets[b] + i] = i;
            keys[offsets[b] + i] = b << 24 | i;
        }
    }
    int64_t rows = offsets[SAMPLES];
    few f = {.a = {SAMPLES, LONGEST, HEADS, HEADS, D, .type = t,
                   .p = form > 1 ? 0.1f : 0, .ldq = 3 * G, .ldk = 3 * G, .ldv = 3 * G,
                   .ko = G, .vo = 2 * G, .qs = D, .ks = D, .vs = D, .scale = 0.2f},
             .at = {.offsets = form ? offsets : NULL,
                    .position = form ? at : NULL,
                    .keys = keys,
                    .key = &key,
                    .rows = rows},
             .x = of_type(ALL * 3 * G, t),
             .y = of_type(ALL * 3 * G, t),
             .dx = of_type(ALL * 3 * G, t),
             .dy = of_type(ALL * 3 * G, t),
             .lse = noise(ALL * HEADS),
             .w = noise(2 * G),
             .stat = noise(2 * ALL),
             .norm = {rows, G, t, t, 1e-5f}};
    int64_t space = rt_cpu_scratch.layernorm_dwb(rows, G, threads);
    int64_t need = rt_cpu_scratch.attention_grad(&f.a, threads);
    f.scratch = rt_alloc((size_t)(need > space ? need : space));
    char name[4][80];
    double flop = 2 * pairs * G, bytes = (double)(rows * G * (t == RT_F32 ? 4 : 2));
    const job jobs[] = {{name[0], 2 * flop, 0, few_attention, &f},
                        {name[1], 5 * flop, 0, few_attention_grad, &f},
                        {name[2], 0, 2 * bytes, few_layernorm, &f},
                        {name[3], 0, 5 * bytes, few_layernorm_grad, &f}};
    for (int i = 0; i < (form ? 4 - 2 * (form > 1) : 2); i++) {
        static const char *const kernel[] = {"attention", "attention grad", "layernorm",
                                             "layernorm grad"};
        snprintf(name[i], sizeof *name, "minilm %s %s, %s", kernel[i], what[form],
                 t == RT_F32 ? "f32" : "bf16");
        measure(&jobs[i]);
    }
}

static void
bench_short_samples(void)
{
    rt_program program = {.threads = threads};
    char error[200];
    if (!rt_device_open(&program, &stream, error, sizeof error))
        exit(1);
    for (int form = 0; form < 3; form++) {
        bench_few(RT_F32, form);
        bench_few(RT_BF16, form);
    }
    rt_device_close(stream);
}

int
main(int argc, char **argv)
{
    threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads();
    only = argc > 2 ? argv[2] : NULL;
    if (threads < 1)
        return 1;
    omp_set_num_threads(threads);
    printf("%d threads, vectors of %d floats, peak %.0f GFLOP/s\n", threads, VW,
           bench_peak(threads));
    bench_products();
    bench_rest();
    bench_short_samples();
    return 0;
}
