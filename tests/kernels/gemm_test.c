/* Products: a library's and our own against plain loops, of all types, and the same for any
 * thread count or order of execution. */
#include "kernel.h"
#include "runtime/cpu/mm_int.h"
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct shape {
    int64_t m, n, k;
    int64_t extra; /* added to leading dimensions */
} shape;

static const shape shapes[] = {
    {1, 1, 1, 0},     {1, 5, 7, 0},     {5, 1, 700, 3},    {14, 32, 64, 0},
    {15, 33, 65, 1},  {37, 53, 71, 5},  {64, 64, 2048, 0}, {2, 128, 1500, 0},
    {128, 8, 300, 0}, {8, 128, 300, 2}, {130, 70, 800, 0}, {100, 200, 50, 0},
    {256, 96, 1, 0},  {96, 40, 96, 0},
};
enum { NSHAPES = sizeof shapes / sizeof *shapes };

static rt_gemm_desc
describe(const shape *z, unsigned form)
{
    rt_gemm_desc d = {.m = z->m,
                      .n = z->n,
                      .k = z->k,
                      .ta = form & 1,
                      .tb = form >> 1 & 1,
                      .bias = form >> 2 & 1,
                      .add = form >> 3 & 1,
                      .batch = 1,
                      .alpha = 1};
    d.lda = (d.ta ? d.m : d.k) + z->extra;
    d.ldb = (d.tb ? d.k : d.n) + z->extra;
    d.ldc = d.n + z->extra;
    return d;
}

static int64_t
rows_of(int64_t rows, int64_t ld)
{
    return rows * ld;
}

typedef struct operands {
    float *a, *b, *c,
        *bias; /* rounded to the types of la, lb, lc: what the product takes */
    void *la, *lb, *lc;
    int64_t na, nb, nc;
} operands;

static operands
make(const rt_gemm_desc *d)
{
    operands o = {.na = rows_of(d->ta ? d->k : d->m, d->lda) + (d->batch - 1) * d->sa,
                  .nb = rows_of(d->tb ? d->n : d->k, d->ldb) + (d->batch - 1) * d->sb,
                  .nc = rows_of(d->m, d->ldc) + (d->batch - 1) * d->sc};
    o.a = kt_noise(o.na, 1, 1);
    o.b = kt_noise(o.nb, 2, 1);
    o.c = kt_noise(o.nc, 3, 1);
    o.bias = kt_noise(d->n, 4, 1);
    o.la = kt_as(o.a, o.na, d->a);
    o.lb = kt_as(o.b, o.nb, d->b);
    o.lc = kt_as(o.c, o.nc, d->c);
    return o;
}

/* What C shall be; gaps between rows keep C's old values. */
static double *
expect(const rt_gemm_desc *d, const operands *o)
{
    double *c = kt_doubles(o->nc);
    for (int64_t i = 0; i < o->nc; i++)
        c[i] = (double)o->c[i];
    for (int64_t q = 0; q < d->batch; q++)
        for (int64_t i = 0; i < d->m; i++)
            for (int64_t j = 0; j < d->n; j++) {
                const float *a = o->a + q * d->sa, *b = o->b + q * d->sb;
                double s = 0;
                for (int64_t p = 0; p < d->k; p++)
                    s += (double)a[d->ta ? p * d->lda + i : i * d->lda + p] *
                         (double)b[d->tb ? j * d->ldb + p : p * d->ldb + j];
                double *to = &c[q * d->sc + i * d->ldc + j];
                *to = (double)d->alpha * s + (d->bias ? (double)o->bias[j] : 0) +
                      (d->add ? *to : 0);
            }
    return c;
}

/* C is off by less than its sum may be, and half a unit in the last place of its type; on a GPU the
 * bias [-1, 1] is rounded, too. */
static void
check_result(const rt_gemm_desc *d, const void *got, const double *want, int64_t n)
{
    double half = d->c == RT_F32 ? 0 : d->c == RT_F16 ? 0x1p-11 : 0x1p-8, worst = 0;
    double bias = KT_ON_DEVICE && d->bias ? half : 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)kt_element(got, i, d->c) - want[i]);
        worst = fmax(worst, isnan(e) ? INFINITY : e - half * fabs(want[i]) - bias);
    }
    CHECK_NEAR(worst, 0, 2e-7 * (double)d->k + 1e-6);
}

/* Too large for plain loops: only compared between numbers of threads. */
#define LARGE(d) ((d)->m * (d)->n * (d)->k > 20000000)

/* The first product of p, whose sizes at `at` make it `sized`. */
static void
check_sized(rt_program *p, rt_gemm_desc *d, const rt_gemm_desc *sized, const int *at)
{
    operands o = make(sized);
    double *want = LARGE(sized) ? NULL : expect(sized, &o);
    void *out[KT_TEAMS];
    for (int team = 0; team < KT_TEAMS; team++) {
        d->scratch = kt_scratch.gemm(d, kt_threads[team]);
        NEED(d->scratch >= 0);
        rt_stream *s = kt_open(p, kt_threads[team]);
        rt_run run = {.program = p, .compute = s};
        if (at) {
            rt_set_sizes(&run, at);
            CHECK(run.size[RT_ROWS] == p->size[RT_ROWS][at[RT_ROWS]]);
        }
        out[team] = kt_bytes(o.nc * kt_size(d->c));
        memcpy(out[team], o.lc, (size_t)(o.nc * kt_size(d->c)));
        rt_gemm(s, 0, out[team], o.la, o.lb, o.bias, kt_bytes(d->scratch));
        rt_device_close(s);
    }
    CHECK(kt_same(out, o.nc * kt_size(d->c)));
    if (want)
        check_result(d, out[0], want, o.nc);
    kt_done();
}

static void
check_product(rt_gemm_desc *d)
{
    rt_program p = {.ngemm = 1, .gemm = d};
    check_sized(&p, d, d, NULL);
}

TEST(every_form_of_a_product)
{
    for (unsigned i = 0; i < NSHAPES; i++)
        for (unsigned form = 0; form < 16; form++) {
            rt_gemm_desc d = describe(&shapes[i], form);
            check_product(&d);
        }
}

/* Operands' type, C's type. */
static const rt_dtype types[][2] = {{RT_BF16, RT_F32}, {RT_BF16, RT_BF16},
                                    {RT_F16, RT_F32},  {RT_F16, RT_F16},
                                    {RT_F32, RT_BF16}, {RT_F32, RT_F16}};
enum { NTYPES = sizeof types / sizeof *types };

TEST(every_form_of_every_type)
{
    for (unsigned i = 0; i < NSHAPES; i++)
        for (unsigned form = 0; form < 16; form++)
            for (unsigned t = (i + form) % 2; t < NTYPES; t += 2) {
                rt_gemm_desc d = describe(&shapes[i], form);
                d.a = d.b = types[t][0], d.c = types[t][1];
                check_product(&d);
            }
}

/* Rows with gaps between them, which oneDNN's kernel does not take, and without. */
static const shape gaps = {37, 53, 71, 5}, dense = {48, 40, 48, 0};

TEST(alpha_scales_the_product_only)
{
    for (unsigned form = 0; form < 32; form++) {
        rt_gemm_desc d = describe(form & 16 ? &gaps : &dense, form);
        d.alpha = -0.5f;
        check_product(&d);
        d.a = d.b = d.c = form & 1 ? RT_F16 : RT_BF16;
        check_product(&d);
    }
}

TEST(batches_and_shared_operands)
{
    for (unsigned form = 0; form < 32; form++)
        for (int share = 0; share < 3; share++) {
            rt_gemm_desc d = describe(form & 16 ? &gaps : &dense, form);
            d.batch = 3;
            d.sa = share == 1 ? 0 : rows_of(d.ta ? d.k : d.m, d.lda);
            d.sb = share == 2 ? 0 : rows_of(d.tb ? d.n : d.k, d.ldb);
            d.sc = rows_of(d.m, d.ldc);
            check_product(&d);
            d.a = d.b = share == 2 ? RT_F16 : RT_BF16;
            check_product(&d);
        }
}

/* m or k is one of the program's sizes; the last is the most that the plan knows. */
TEST(sizes_that_vary)
{
    static const int64_t sizes[] = {1, 17, 40, 96};
    for (unsigned form = 0; form < 16; form++)
        for (int t = 0; t < 3; t++)
            for (int i = 0; i < 4; i++) {
                rt_program p = {.nsize[RT_ROWS] = 4, .nsize[RT_SUP] = 1};
                memcpy(p.size[RT_ROWS], sizes, sizeof sizes);
                rt_gemm_desc d = describe(&(shape){96, 40, 48, 0}, form);
                d.a = d.b = t ? RT_BF16 : RT_F32, d.c = t == 2 ? RT_BF16 : RT_F32;
                int64_t *size = &d.m;
                if (d.ta) {
                    d = describe(&(shape){48, 40, 96, 0}, form & ~2u);
                    d.a = d.b = t ? RT_BF16 : RT_F32;
                    size = &d.k;
                }
                *(size == &d.m ? &d.vary_m : &d.vary_k) = RT_ROWS;
                rt_gemm_desc sized = d;
                *(size == &d.m ? &sized.m : &sized.k) = sizes[i];
                p.ngemm = 1, p.gemm = &d;
                check_sized(&p, &d, &sized, (int[RT_NSYMS]){0, i, 0});
            }
}

TEST(threads_do_not_change_a_large_product)
{
    static const shape z[] = {
        {928, 384, 384, 0}, {130, 768, 3072, 0}, {96, 64, 4001, 0}};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++)
        for (int t = 0; t < 6; t++) {
            rt_gemm_desc d = describe(&z[i], (unsigned)t % 3);
            d.a = d.b = RT_BF16, d.c = t < 3 ? RT_F32 : RT_BF16;
            check_product(&d);
        }
}

#ifdef KT_DEVICE
TEST(what_this_machine_computes)
{
    CHECK(rt_computes(RT_F32) && rt_computes(RT_BF16) && rt_computes(RT_F16));
}
#else
TEST(what_this_machine_computes)
{
    CHECK(rt_computes(RT_F32) && !rt_computes(RT_F16));
    CHECK(!rt_computes(RT_BF16) || __builtin_cpu_supports("avx512bf16"));
}
#endif

TEST(a_plan_for_more_threads_serves_fewer)
{
    rt_gemm_desc d = describe(&shapes[6], 0);
    operands o = make(&d);
    double *want = expect(&d, &o);
    rt_program p = {.ngemm = 1, .gemm = &d};
    d.scratch = 0; /* too little: the device brings its own */
    rt_stream *s = kt_open(&p, 2);
    rt_gemm(s, 0, o.lc, o.la, o.lb, NULL, NULL);
    rt_device_close(s);
    check_result(&d, o.lc, want, o.nc);
    kt_done();
}

/* Sizes of nothing, and a sum of nothing: the bias, or what is added to. */
TEST(products_of_nothing)
{
    static const shape z[] = {{0, 5, 7, 0}, {5, 0, 7, 0}, {5, 7, 0, 1}};
    for (unsigned form = 0; form < 48; form++) {
        rt_gemm_desc d = describe(&z[form / 16], form % 16);
        if (!KT_ON_DEVICE && d.k == 0) /* efficc makes none for the processor */
            continue;
        d.lda += !d.lda, d.ldb += !d.ldb, d.ldc += !d.ldc;
        check_product(&d);
    }
}

/* Operands that begin anywhere, in types of whose addresses the library has its wishes. */
TEST(operands_at_odd_addresses)
{
    static const shape z = {33, 31, 127, 0};
    for (int i = 0; i < 12; i++) {
        rt_gemm_desc d = describe(&z, (unsigned)i % 4);
        rt_program p = {.ngemm = 1, .gemm = &d};
        d.a = d.b = types[i % 2][0], d.c = i % 3 ? RT_F32 : d.a;
        operands o = make(&d);
        double *want = expect(&d, &o);
        int64_t size = kt_size(d.a), off = i % 4 + 1;
        char *a = kt_bytes((o.na + off) * size), *b = kt_bytes((o.nb + off) * size);
        char *c = kt_bytes((o.nc + off) * kt_size(d.c)), *at = c + off * kt_size(d.c);
        memcpy(a + off * size, o.la, (size_t)(o.na * size));
        memcpy(b + off * size, o.lb, (size_t)(o.nb * size));
        d.scratch = kt_scratch.gemm(&d, 1);
        rt_stream *s = kt_open(&p, 1);
        rt_gemm(s, 0, at, a + off * size, b + off * size, NULL, kt_bytes(d.scratch));
        rt_device_close(s);
        check_result(&d, at, want, o.nc);
        kt_done();
    }
}

#ifdef KT_DEVICE
/* The virtual GPU's library then has no algorithm for anything. */
TEST(our_own_kernel_where_the_library_has_none)
{
    setenv("VGPU_NO_ALGO", "1", 1);
    for (unsigned i = 0; i < NSHAPES; i++)
        for (unsigned form = i % 3; form < 16; form += 3) {
            rt_gemm_desc d = describe(&shapes[i], form);
            if (d.m * d.n * d.k > 1000000)
                continue;
            d.a = d.b = form % 2 ? RT_BF16 : RT_F32;
            d.c = form % 3 ? RT_F32 : RT_F16;
            d.batch = 1 + form % 2;
            d.sa = rows_of(d.ta ? d.k : d.m, d.lda);
            d.sc = rows_of(d.m, d.ldc);
            d.alpha = 0.5f;
            check_product(&d);
        }
    unsetenv("VGPU_NO_ALGO");
}

/* Of several tiles and slices, none of them whole. */
TEST(a_small_product_of_our_own)
{
    static const shape z = {66, 65, 33, 0};
    setenv("VGPU_NO_ALGO", "1", 1);
    for (unsigned form = 0; form < 2; form++) {
        rt_gemm_desc d = describe(&z, 3 * form);
        check_product(&d);
    }
    unsetenv("VGPU_NO_ALGO");
}

/* The product of d in a capture, which is measured and thrown away, and then for good. */
static void
check_measured(rt_gemm_desc *d)
{
    rt_program p = {.ngemm = 1, .gemm = d};
    operands o = make(d);
    double *want = expect(d, &o);
    d->scratch = kt_scratch.gemm(d, 1);
    void *scratch = kt_bytes(d->scratch), *c = kt_bytes(o.nc * kt_size(d->c));
    rt_stream *s = kt_open(&p, 1);
    kt_device_capture(s);
    rt_gemm(s, 0, c, o.la, o.lb, o.bias, scratch);
    kt_device_measure(s);
    kt_wait(s);
    memcpy(c, o.lc, (size_t)(o.nc * kt_size(d->c)));
    rt_gemm(s, 0, c, o.la, o.lb, o.bias, scratch);
    rt_device_close(s);
    check_result(d, c, want, o.nc);
    kt_done();
}

/* Files of the folder efficc in the cache; the last one's path. */
static int
cached(const char *folder, char *path, size_t n)
{
    char command[256];
    int count = 0;
    snprintf(command, sizeof command, "ls %s/efficc/* 2>/dev/null", folder);
    FILE *f = popen(command, "r");
    while (f && fgets(path, (int)n, f))
        count++;
    path[strcspn(path, "\n")] = 0;
    if (f)
        pclose(f);
    return count;
}

/* A file of the cache; of its first line the word that says whether an epilogue is apart, which is
 * the tenth from its end, and where that is. */
typedef struct lines {
    int n;
    long at;
    char apart;
} lines;

static lines
lines_of(const char *path)
{
    char line[2000], *at;
    lines l = {0};
    FILE *f = fopen(path, "r");
    for (; f && fgets(line, sizeof line, f); l.n++) {
        if (l.n)
            continue;
        at = line + strlen(line);
        for (int words = 10; at > line && (words -= at[-1] == ' ');)
            at--;
        l.at = at - line, l.apart = *at;
    }
    if (f)
        fclose(f);
    return l;
}

static void
put_at(const char *path, long at, const char *text)
{
    FILE *f = fopen(path, "r+");
    NEED(f != NULL);
    fseek(f, at, SEEK_SET);
    fputs(text, f);
    fclose(f);
}

/* Lines behind one that is damaged are known, and a pipe is not waited for. */
TEST(lines_of_the_cache)
{
    char folder[] = "/tmp/efficc-cache-XXXXXX", path[300] = "", command[400];
    rt_gemm_desc d = describe(&shapes[5], 12), other = describe(&shapes[6], 0);
    NEED(mkdtemp(folder) != NULL);
    setenv("XDG_CACHE_HOME", folder, 1);
    check_measured(&d);
    check_measured(&other);
    NEED(cached(folder, path, sizeof path) == 1);
    CHECK(lines_of(path).n == 2);
    put_at(path, 0, "x");
    check_measured(&d); /* again, and now it is behind the other */
    lines l = lines_of(path);
    CHECK(l.n == 2 && l.apart == '0');
    put_at(path, l.at, "1");
    check_measured(&other); /* again: it is not apart */
    l = lines_of(path);
    CHECK(l.n == 2 && l.apart == '0');
    unlink(path);
    CHECK(!mkfifo(path, 0600));
    check_measured(&d);
    CHECK(lines_of(path).n == 1);
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* nowhere */
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(!system(command));
}

/* What was measured is kept; a cache that is damaged, or can't be written, does no harm. */
TEST(algorithms_are_kept_on_disk)
{
    char folder[] = "/tmp/efficc-cache-XXXXXX", path[300] = "", command[400];
    rt_gemm_desc d = describe(&shapes[5], 12), low = d, other = describe(&shapes[6], 0);
    low.a = low.b = low.c = RT_BF16;
    NEED(mkdtemp(folder) != NULL);
    setenv("XDG_CACHE_HOME", folder, 1);
    check_measured(&d);
    CHECK(cached(folder, path, sizeof path) == 1);
    check_measured(&low);
    check_measured(&d);
    CHECK(cached(folder, path, sizeof path) == 1);
    put_at(path, 100, "7 7 7");
    check_measured(&d);
    check_measured(&other);
    CHECK(!truncate(path, 50));
    check_measured(&d);
    snprintf(command, sizeof command, "rm -rf '%s' && touch '%s'", folder, folder);
    CHECK(!system(command));
    check_measured(&d); /* a file where the folder should be */
    unlink(folder);
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* nowhere */
}
#else
static void
check_own(const rt_gemm_desc *d)
{
    operands o = make(d);
    double *want = expect(d, &o);
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
               .a = o.la,
               .b = o.lb,
               .bias = d->bias ? o.bias : NULL,
               .type_a = d->a,
               .type_b = d->b,
               .type_c = d->c};
    void *out[KT_TEAMS];
    for (int team = 0; team < KT_TEAMS; team++) {
        g.c = out[team] = kt_bytes(o.nc * kt_size(d->c));
        memcpy(g.c, o.lc, (size_t)(o.nc * kt_size(d->c)));
        rt_mm_run(&g, kt_threads[team], kt_bytes(rt_mm_scratch(&g)));
    }
    CHECK(kt_same(out, o.nc * kt_size(d->c)));
    check_result(d, out[0], want, o.nc);
    kt_done();
}

/* Panels and k blocks: sizes around their limits. */
TEST(own_product_across_panels)
{
    static const shape z[] = {{2049, 40, 9, 0},  {15, 2050, 10, 0}, {20, 40, 769, 0},
                              {30, 33, 1600, 0}, {31, 33, 1537, 0}, {5, 2050, 1537, 0}};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++)
        for (unsigned form = 0; form<16; form += z[i].k> 1536 ? 3 : 1) {
            rt_gemm_desc d = describe(&z[i], form);
            check_own(&d);
            d.a = d.b = d.c = form % 3 ? RT_BF16 : RT_F16;
            check_own(&d);
        }
}
#endif
