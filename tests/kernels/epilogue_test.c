/* Products with an epilogue against plain loops: GELU, its derivative, sums of an operand; done by
 * a library together with the product, or apart. */
#include "kernel.h"
#include <stdio.h>
#include <unistd.h>

typedef struct shape {
    int64_t m, n, k;
} shape;

/* Rows of H of a multiple of 8 elements are what cuBLASLt takes. */
static const shape shapes[] = {
    {1, 1, 1},    {3, 31, 33},   {31, 3, 127},   {33, 127, 31}, {127, 33, 3},
    {1, 1000, 1}, {1000, 1, 33}, {31, 1000, 3},  {1, 8, 1000},  {3, 16, 127},
    {33, 64, 31}, {127, 40, 33}, {24, 33, 1000}, {1000, 24, 31}};
enum { NSHAPES = sizeof shapes / sizeof *shapes };

/* Operands' type, C's type. */
static const rt_dtype types[][2] = {{RT_F32, RT_F32}, {RT_BF16, RT_BF16},
                                    {RT_F16, RT_F16}, {RT_BF16, RT_F32},
                                    {RT_F16, RT_F32}, {RT_F32, RT_BF16}};
enum { NTYPES = sizeof types / sizeof *types };

/* What one has: of GELU whether H is kept, of sums whether C and they are added to. */
enum { BIAS = 1, KEEP = 2, ADD = 4, ADD_SUM = 8 };
static const struct form {
    rt_epilogue epilogue;
    int flags;
} forms[] = {{RT_GELU, 0},
             {RT_GELU, BIAS},
             {RT_GELU, KEEP},
             {RT_GELU, BIAS | KEEP},
             {RT_DGELU, 0},
             {RT_SUM_A, 0},
             {RT_SUM_A, ADD},
             {RT_SUM_A, ADD_SUM},
             {RT_SUM_A, ADD | ADD_SUM},
             {RT_SUM_B, 0},
             {RT_SUM_B, ADD},
             {RT_SUM_B, ADD_SUM},
             {RT_SUM_B, ADD | ADD_SUM}};
enum { NFORMS = sizeof forms / sizeof *forms };

static bool
is_sum(const rt_gemm_desc *d)
{
    return d->epilogue == RT_SUM_A || d->epilogue == RT_SUM_B;
}

/* turned: bit 0 ta, bit 1 tb, but for an operand that is summed. */
static rt_gemm_desc
describe(const shape *z, const struct form *f, const rt_dtype type[2], int turned)
{
    rt_gemm_desc d = {.m = z->m,
                      .n = z->n,
                      .k = z->k,
                      .ta = turned & 1 || f->epilogue == RT_SUM_A,
                      .tb = (turned & 2) && f->epilogue != RT_SUM_B,
                      .a = type[0],
                      .b = type[0],
                      .c = type[1],
                      .bias = f->flags & BIAS,
                      .add = f->flags & ADD,
                      .epilogue = f->epilogue,
                      .add_sum = f->flags & ADD_SUM,
                      .batch = 1,
                      .alpha = 1};
    d.lda = d.ta ? d.m : d.k;
    d.ldb = d.tb ? d.k : d.n;
    d.ldc = d.n;
    return d;
}

typedef struct operands {
    rt_gemm_desc d;
    bool keep;
    float *a, *b, *c, *with, *bias; /* as the product takes them */
    void *la, *lb, *lc, *lwith;     /* the same in the types of memory */
    int64_t na, nb, nc, nwith;
    rt_dtype type;                  /* of with */
    double *want, *want_with, *sum; /* C, with, the product */
} operands;

static operands
make(const rt_gemm_desc *d, bool keep)
{
    operands o = {.d = *d, .keep = keep, .type = is_sum(d) ? RT_F32 : d->c};
    o.na = d->m * d->k, o.nb = d->k * d->n, o.nc = d->m * d->n;
    o.nwith = d->epilogue == RT_SUM_A ? d->m : d->epilogue == RT_SUM_B ? d->n : o.nc;
    o.a = kt_noise(o.na, 1, 1);
    o.b = kt_noise(o.nb, 2, 1);
    o.c = kt_noise(o.nc, 3, 1);
    o.with = kt_noise(o.nwith, 5, 3);
    o.bias = kt_noise(d->n, 4, 1);
    return o;
}

static double
gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double
gelu_slope(double x)
{
    double t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) +
           0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 0.134145 * x * x);
}

static double
left(const operands *o, int64_t i, int64_t p)
{
    return (double)o->a[o->d.ta ? p * o->d.m + i : i * o->d.k + p];
}

static double
right(const operands *o, int64_t p, int64_t j)
{
    return (double)o->b[o->d.tb ? j * o->d.k + p : p * o->d.n + j];
}

static void
expect_sums(operands *o)
{
    for (int64_t i = 0; i < o->nwith; i++) {
        double s = o->d.add_sum ? (double)o->with[i] : 0;
        for (int64_t p = 0; p < o->d.k; p++)
            s += o->d.epilogue == RT_SUM_A ? left(o, i, p) : right(o, p, i);
        o->want_with[i] = s;
    }
}

static void
expect_element(operands *o, int64_t i, int64_t j)
{
    const rt_gemm_desc *d = &o->d;
    int64_t at = i * d->n + j;
    double s = 0;
    for (int64_t p = 0; p < d->k; p++)
        s += left(o, i, p) * right(o, p, j);
    s += d->bias ? (double)o->bias[j] : 0;
    s += d->add ? (double)o->c[at] : 0;
    o->sum[at] = s;
    o->want[at] = s;
    if (d->epilogue == RT_GELU)
        o->want[at] = gelu(s);
    if (d->epilogue == RT_DGELU)
        o->want[at] = s * gelu_slope((double)o->with[at]);
    if (!is_sum(d))
        o->want_with[at] = d->epilogue == RT_GELU ? s : (double)o->with[at];
}

/* Rounds operands to their types; then what shall come of them. */
static void
expect(operands *o)
{
    o->la = kt_as(o->a, o->na, o->d.a);
    o->lb = kt_as(o->b, o->nb, o->d.b);
    o->lc = kt_as(o->c, o->nc, o->d.c);
    o->lwith = kt_as(o->with, o->nwith, o->type);
    o->want = kt_doubles(o->nc);
    o->want_with = kt_doubles(o->nwith);
    o->sum = kt_doubles(o->nc);
    for (int64_t i = 0; i < o->d.m; i++)
        for (int64_t j = 0; j < o->d.n; j++)
            expect_element(o, i, j);
    if (is_sum(&o->d))
        expect_sums(o);
}

/* Half a unit in the last place of 1. */
static double
half_of(rt_dtype t)
{
    return t == RT_F32 ? 0x1p-24 : t == RT_F16 ? 0x1p-11 : 0x1p-8;
}

/* |got - want| beyond what it may be; both may be NaN. */
static double
beyond(double got, double want, double allowed)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0 : INFINITY;
    return fabs(got - want) - allowed;
}

/* A result may be off by what its sum may be, and a rounding of it; bias and H, or the product that
 * a derivative multiplies, may have been rounded before. Slopes of GELU are less than 1.2. */
static void
check_result(const operands *o, const void *c, const void *with)
{
    const rt_gemm_desc *d = &o->d;
    double half = half_of(d->c), sum = 2e-7 * (double)d->k + 1e-6, worst = 0;
    double bias = d->bias ? half : 0;
    for (int64_t i = 0; i < o->nc; i++) {
        double h = d->epilogue == RT_GELU ? 1.2 * half * fabs(o->sum[i]) : 0;
        double twice = d->epilogue == RT_DGELU ? 2 : 1;
        worst = fmax(worst,
                     beyond((double)kt_element(c, i, d->c), o->want[i],
                            1.2 * (sum + bias) + h + twice * half * fabs(o->want[i])));
    }
    CHECK_NEAR(worst, 0, 1e-9);
    worst = 0;
    for (int64_t i = 0; with && i < o->nwith; i++) {
        double rounding = is_sum(d) ? 0 : bias + half * fabs(o->want_with[i]);
        worst = fmax(worst, beyond((double)kt_element(with, i, o->type),
                                   o->want_with[i], sum + rounding));
    }
    CHECK_NEAR(worst, 0, 1e-9);
}

/* A copy that begins `off` elements behind an aligned address. */
static void *
copy_at(const void *x, int64_t n, rt_dtype t, int64_t off)
{
    char *y = kt_bytes((n + off) * kt_size(t));
    return memcpy(y + off * kt_size(t), x, (size_t)(n * kt_size(t)));
}

/* The product of o's sizes by row d of a table, whose sizes at `at` these are. */
static void
check_sized(rt_program *p, rt_gemm_desc *d, operands *o, const int *at, int64_t off)
{
    void *out[KT_TEAMS], *beside[KT_TEAMS];
    expect(o);
    float *bias = copy_at(o->bias, d->n, RT_F32, off);
    void *a = copy_at(o->la, o->na, d->a, off), *b = copy_at(o->lb, o->nb, d->b, off);
    for (int team = 0; team < KT_TEAMS; team++) {
        d->scratch = kt_scratch.gemm(d, kt_threads[team]);
        NEED(d->scratch >= 0);
        rt_stream *s = kt_open(p, kt_threads[team]);
        rt_run run = {.program = p, .compute = s};
        if (at)
            rt_set_sizes(&run, at);
        out[team] = copy_at(o->lc, o->nc, d->c, off);
        beside[team] = copy_at(o->lwith, o->nwith, o->type, off);
        rt_gemm_with(s, 0, out[team], o->keep ? beside[team] : NULL, a, b, bias,
                     kt_bytes(d->scratch));
        rt_device_close(s);
    }
    CHECK(kt_same(out, o->nc * kt_size(d->c)));
    CHECK(kt_same(beside, o->nwith * kt_size(o->type)));
    check_result(o, out[0], o->keep ? beside[0] : NULL);
}

static void
check_off(rt_gemm_desc *d, bool keep, int64_t off)
{
    rt_program p = {.ngemm = 1, .gemm = d};
    operands o = make(d, keep);
    check_sized(&p, d, &o, NULL, off);
    kt_done();
}

static bool
keeps(const struct form *f)
{
    return f->epilogue != RT_GELU || f->flags & KEEP;
}

/* Every step-th of all shapes, forms and types; operands are turned in all ways. */
static void
check_all(int step, int64_t most)
{
    int count = 0;
    for (int z = 0; z < NSHAPES; z++)
        for (int f = 0; f < NFORMS; f++)
            for (int t = 0; t < NTYPES; t++, count++) {
                rt_gemm_desc d = describe(&shapes[z], &forms[f], types[t], count / 3);
                if (count % step == 0 && d.m * d.n * d.k <= most)
                    check_off(&d, keeps(&forms[f]), 0);
            }
}

TEST(every_epilogue_of_every_type)
{
    check_all(1, INT64_MAX);
}

TEST(operands_at_odd_addresses)
{
    static const shape z = {31, 40, 33};
    for (int f = 0; f < NFORMS; f++)
        for (int t = 0; t < NTYPES; t++)
            for (int64_t off = 1; off < 9; off += 3) {
                rt_gemm_desc d = describe(&z, &forms[f], types[t], f + t);
                check_off(&d, keeps(&forms[f]), off);
            }
}

/* m or k is one of the program's sizes; the last is the most that the plan knows. */
TEST(sizes_that_vary)
{
    static const int64_t sizes[] = {1, 17, 72, 200};
    for (int f = 0; f < NFORMS; f++)
        for (int i = 0; i < 8; i++) {
            bool sum = forms[f].epilogue >= RT_SUM_A;
            const rt_dtype *type = types[i < 4 ? 0 : sum ? 3 : 1];
            rt_program p = {.nsize[RT_ROWS] = 4, .nsize[RT_SUP] = 1};
            memcpy(p.size[RT_ROWS], sizes, sizeof sizes);
            rt_gemm_desc sized, d;
            d = describe(sum ? &(shape){24, 40, 200} : &(shape){200, 40, 24}, &forms[f],
                         type, sum);
            *(sum ? &d.vary_k : &d.vary_m) = RT_ROWS;
            sized = d;
            *(sum ? &sized.k : &sized.m) = sizes[i % 4];
            p.ngemm = 1, p.gemm = &d;
            operands o = make(&sized, keeps(&forms[f]));
            check_sized(&p, &d, &o, (int[RT_NSYMS]){0, i % 4, 0}, 0);
            kt_done();
        }
}

/* Where tanh is 1 or next to it, 0, and what is no number: each alone in a row of H. */
TEST(extreme_values)
{
    static const float value[] = {0,    -0.0f, 1e-7f, -1e-7f, 1,    -1,    5,   -5,
                                  12.5, -12.5, 100,   -100,   3e4f, -3e4f, NAN, 2};
    enum { N = sizeof value / sizeof *value };
    for (int f = 0; f < 5; f++)
        for (int t = 0; t < 3; t++) {
            rt_gemm_desc d = describe(&(shape){N, 8, 1}, &forms[f], types[t], 0);
            rt_program p = {.ngemm = 1, .gemm = &d};
            operands o = make(&d, keeps(&forms[f]));
            for (int i = 0; i < N; i++) {
                o.a[i] = d.epilogue == RT_GELU ? value[i] : 1;
                for (int j = 0; j < 8; j++)
                    o.with[i * 8 + j] = value[i];
            }
            for (int j = 0; j < 8; j++)
                o.b[j] = 1, o.bias[j] = 0;
            check_sized(&p, &d, &o, NULL, 0);
            kt_done();
        }
}

/* No rows, or no terms of a sum: H is the bias, sums are 0 or what they were. */
TEST(products_of_nothing)
{
    static const shape z[] = {{0, 8, 7}, {5, 8, 0}};
    for (int f = 0; f < 2 * NFORMS; f++) {
        rt_gemm_desc d = describe(&z[f % 2], &forms[f / 2], types[0], 1);
        if (!KT_ON_DEVICE && d.k == 0) /* efficc makes none for the processor */
            continue;
        d.lda += !d.lda, d.ldb += !d.ldb;
        check_off(&d, keeps(&forms[f / 2]), 0);
    }
}

#ifdef KT_DEVICE
/* Without any space for the library, sums are apart, and one by one. */
TEST(epilogues_without_scratch)
{
    for (int f = 0; f < NFORMS; f++)
        for (int t = 0; t < NTYPES; t++) {
            rt_gemm_desc d = describe(&(shape){31, 40, 200}, &forms[f], types[t], 1);
            rt_program p = {.ngemm = 1, .gemm = &d};
            operands o = make(&d, keeps(&forms[f]));
            expect(&o);
            rt_stream *s = kt_open(&p, 1);
            rt_gemm_with(s, 0, o.lc, o.keep ? o.lwith : NULL, o.la, o.lb, o.bias, NULL);
            rt_device_close(s);
            check_result(&o, o.lc, o.keep ? o.lwith : NULL);
            kt_done();
        }
}

/* Kernels of two captures with a measurement between them. */
typedef struct kernels {
    int before, after;
} kernels;

static kernels
measure(rt_gemm_desc *d, bool keep)
{
    rt_program p = {.ngemm = 1, .gemm = d};
    operands o = make(d, keep);
    kernels n;
    expect(&o);
    d->scratch = kt_scratch.gemm(d, 1);
    void *scratch = kt_bytes(d->scratch), *c = kt_bytes(o.nc * kt_size(d->c));
    void *with = kt_bytes(o.nwith * kt_size(o.type)), *h = keep ? with : NULL;
    rt_stream *s = kt_open(&p, 1);
    for (int i = 0; i < 2; i++) {
        kt_device_capture(s);
        rt_gemm_with(s, 0, c, h, o.la, o.lb, o.bias, scratch);
        *(i ? &n.after : &n.before) = kt_device_measure(s);
    }
    kt_wait(s);
    memcpy(c, o.lc, (size_t)(o.nc * kt_size(d->c)));
    memcpy(with, o.lwith, (size_t)(o.nwith * kt_size(o.type)));
    rt_gemm_with(s, 0, c, h, o.la, o.lb, o.bias, scratch);
    rt_device_close(s);
    check_result(&o, c, h);
    kt_done();
    return n;
}

static bool
takes(rt_gemm_desc d, bool keep, int before, int after)
{
    kernels n = measure(&d, keep);
    if (n.before == before && n.after == after)
        return true;
    printf("  epilogue %d: %d and %d kernels\n", d.epilogue, n.before, n.after);
    return false;
}

/* All of them, or each step-th, where a variable of the environment keeps the library's out. */
static void
check_apart(const char *variable, const char *value, int step)
{
    rt_gemm_desc d = describe(&(shape){24, 40, 40}, &forms[0], types[0], 0);
    setenv(variable, value, 1);
    CHECK(!kt_device_virtual() || takes(d, false, 2, 2));
    check_all(step, INT64_MAX);
    unsetenv(variable);
}

TEST(epilogues_apart)
{
    check_apart("EFFICC_EPILOGUES", "0", 1);
}

TEST(epilogues_that_the_library_has_not)
{
    if (!kt_device_virtual())
        SKIP("only the virtual GPU's library can be without");
    check_apart("VGPU_NO_EPILOGUE", "1", 7);
}

TEST(epilogues_of_our_own_product)
{
    setenv("VGPU_NO_ALGO", "1", 1);
    check_all(7, 40000);
    unsetenv("VGPU_NO_ALGO");
}

/* Together with the product it is one kernel, and one more that rounds a bias or adds sums. */
TEST(what_is_faster_is_kept_on_disk)
{
    char folder[] = "/tmp/efficc-cache-XXXXXX", command[100];
    if (!kt_device_virtual())
        SKIP("only the virtual GPU can be told what is faster");
    NEED(mkdtemp(folder) != NULL);
    setenv("XDG_CACHE_HOME", folder, 1);
    for (int f = 0; f < NFORMS; f++)
        for (int t = 0; t < 5; t++) {
            bool keep = keeps(&forms[f]);
            rt_gemm_desc d = describe(&(shape){24, 40, 40}, &forms[f], types[t], 1);
            rt_gemm_desc other = describe(&(shape){24, 40, 48}, &forms[f], types[t], 1);
            int more = (d.bias && d.c != RT_F32) || d.add_sum;
            if (is_sum(&d) && d.c != RT_F32)
                continue;
            CHECK(takes(d, keep, 1 + more, 1 + more));
            setenv("VGPU_SLOW_EPILOGUE", "1", 1);
            CHECK(takes(d, keep, 1 + more, 1 + more)); /* as it was */
            more -= d.add_sum;
            CHECK(takes(other, keep, 1 + more + d.add_sum, 2 + more));
            unsetenv("VGPU_SLOW_EPILOGUE");
            CHECK(takes(other, keep, 2 + more, 2 + more));
        }
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* nowhere */
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(!system(command));
}
#endif
