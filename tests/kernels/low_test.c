/* Kernels whose operands may be of a low type, against plain loops in double on the values
 * that the operands have: norms, gradients of embeddings. What is stored in a low type may be
 * off by its rounding, and no more. */
#include "kernel.h"

static const rt_dtype types[] = {RT_F32, RT_BF16, RT_F16};
enum { NTYPES = sizeof types / sizeof *types };

/* Half a unit in the last place, relative. */
static double
rounding(rt_dtype t)
{
    return t == RT_F32 ? 0 : t == RT_BF16 ? 0x1p-8 : 0x1p-11;
}

/* Largest |got - want| beyond what the type's rounding explains. */
static double
error_as(const void *got, rt_dtype t, const double *want, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)kt_element(got, i, t) - want[i]);
        d -= rounding(t) * fabs(want[i]);
        worst = d > worst || isnan(d) ? d : worst;
        if (isnan(d))
            return INFINITY;
    }
    return worst;
}

/* ---- norms ---- */

static const int64_t sizes[][2] = {{1, 1},  {5, 15},   {3, 16},
                                   {9, 17}, {90, 387}, {40, 1030}};
enum { NSIZES = sizeof sizes / sizeof *sizes };

typedef struct norm_case {
    rt_norm n;
    bool centred; /* layernorm, else RMSNorm */
    int64_t all;
    float *x, *dy, *w, *b, *mean, *rstd; /* values, and what the backward kernels get */
    void *low_x, *low_dy;
    double *y, *dx, *dw, *db; /* wanted */
} norm_case;

static void
norm_row(norm_case *p, int64_t r)
{
    int64_t cols = p->n.cols, at = r * cols;
    double m = 0, v = 0, ag = 0, agx = 0;
    for (int64_t c = 0; c < cols && p->centred; c++)
        m += (double)p->x[at + c] / (double)cols;
    for (int64_t c = 0; c < cols; c++)
        v += pow((double)p->x[at + c] - m, 2) / (double)cols;
    double q = 1 / sqrt(v + (double)p->n.eps);
    p->mean[r] = (float)m, p->rstd[r] = (float)q;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t c = 0; c < cols; c++) {
            double xh = ((double)p->x[at + c] - m) * q, dy = (double)p->dy[at + c];
            double g = dy * (double)p->w[c];
            if (pass) {
                p->dx[at + c] = q * (g - (p->centred ? ag : 0) - xh * agx);
                continue;
            }
            p->y[at + c] = xh * (double)p->w[c] + (p->centred ? (double)p->b[c] : 0);
            ag += g / (double)cols;
            agx += g * xh / (double)cols;
            p->dw[c] += dy * xh;
            p->db[c] += dy;
        }
}

static norm_case
make_norm(int i)
{
    const int64_t *z = sizes[i / 2 / (NTYPES * NTYPES)];
    rt_dtype x = types[i / 2 % NTYPES], y = types[i / 2 / NTYPES % NTYPES];
    int64_t all = z[0] * z[1];
    norm_case p = {{z[0], z[1], x, y, 1e-3f},
                   i % 2,
                   all,
                   .x = kt_noise(all, 1, 3),
                   .dy = kt_noise(all, 2, 1),
                   .w = kt_noise(z[1], 3, 1),
                   .b = kt_noise(z[1], 4, 1),
                   .mean = kt_floats(z[0]),
                   .rstd = kt_floats(z[0]),
                   .y = kt_doubles(all),
                   .dx = kt_doubles(all),
                   .dw = kt_doubles(z[1]),
                   .db = kt_doubles(z[1])};
    p.low_x = kt_as(p.x, all, x);
    p.low_dy = kt_as(p.dy, all, y);
    for (int64_t r = 0; r < z[0]; r++)
        norm_row(&p, r);
    return p;
}

static void
norm_forward(const norm_case *p)
{
    rt_program program = {0};
    void *y[KT_TEAMS];
    float *mean = kt_floats(p->n.rows), *rstd = kt_floats(p->n.rows);
    RUN_TEAMS(&program, s, team)
    {
        y[team] = kt_bytes(p->all * kt_size(p->n.y));
        if (p->centred)
            rt_layernorm(s, y[team], mean, rstd, p->low_x, p->w, p->b, &p->n);
        else
            rt_rmsnorm(s, y[team], rstd, p->low_x, p->w, &p->n);
    }
    CHECK(kt_same(y, p->all * kt_size(p->n.y)));
    CHECK_NEAR(error_as(y[0], p->n.y, p->y, p->all), 0, 4e-6);
    for (int64_t r = 0; r < p->n.rows; r++) {
        CHECK_NEAR((double)rstd[r], (double)p->rstd[r], 1e-5);
        if (p->centred)
            CHECK_NEAR((double)mean[r], (double)p->mean[r], 1e-6);
    }
}

static void
norm_backward(const norm_case *p)
{
    rt_program program = {0};
    int64_t c = p->n.cols, rows = p->n.rows;
    void *dx[KT_TEAMS], *dw[KT_TEAMS], *db[KT_TEAMS];
    RUN_TEAMS(&program, s, team)
    {
        int64_t space = p->centred ? kt_scratch.layernorm_dwb(rows, c, kt_threads[team])
                                   : kt_scratch.rmsnorm_dw(rows, c, kt_threads[team]);
        void *scratch = kt_bytes(space);
        dx[team] = kt_bytes(p->all * kt_size(p->n.x));
        dw[team] = kt_floats(c), db[team] = kt_copy(p->b, c);
        if (!p->centred) {
            rt_rmsnorm_dx(s, dx[team], p->low_dy, p->low_x, p->w, p->rstd, &p->n);
            rt_rmsnorm_dw(s, dw[team], p->low_dy, p->low_x, p->rstd, &p->n, false,
                          scratch);
            continue;
        }
        rt_layernorm_dx(s, dx[team], p->low_dy, p->low_x, p->w, p->mean, p->rstd,
                        &p->n);
        rt_layernorm_dwb(s, dw[team], db[team], p->low_dy, p->low_x, p->mean, p->rstd,
                         &p->n, false, true, scratch);
    }
    for (int64_t k = 0; k < c; k++)
        p->db[k] = (double)p->b[k] + (p->centred ? p->db[k] : 0);
    CHECK(kt_same(dx, p->all * kt_size(p->n.x)));
    CHECK(kt_same(dw, c * 4) && kt_same(db, c * 4));
    CHECK_NEAR(error_as(dx[0], p->n.x, p->dx, p->all), 0, 3e-5);
    CHECK_NEAR(kt_error(dw[0], p->dw, c), 0, 3e-5);
    CHECK_NEAR(kt_error(db[0], p->db, c), 0, 1e-5);
}

TEST(norms_of_any_types)
{
    for (int i = 0; i < 2 * NTYPES * NTYPES * NSIZES; i++) {
        norm_case p = make_norm(i);
        norm_forward(&p);
        norm_backward(&p);
        kt_done();
    }
}

TEST(dx_of_a_low_norm_may_be_dy)
{
    for (int i = 0; i < 2 * NTYPES * NTYPES * NSIZES; i++) {
        norm_case p = make_norm(i);
        rt_program program = {0};
        rt_stream *s = kt_open(&program, 2);
        if (p.n.x == p.n.y && p.centred)
            rt_layernorm_dx(s, p.low_dy, p.low_dy, p.low_x, p.w, p.mean, p.rstd, &p.n);
        else if (p.n.x == p.n.y)
            rt_rmsnorm_dx(s, p.low_dy, p.low_dy, p.low_x, p.w, p.rstd, &p.n);
        rt_device_close(s);
        if (p.n.x == p.n.y)
            CHECK_NEAR(error_as(p.low_dy, p.n.x, p.dx, p.all), 0, 3e-5);
        kt_done();
    }
}

/* ---- embeddings ---- */

static int64_t *
ids_of(int64_t n, int64_t v)
{
    int64_t *ids = kt_bytes(n * (int64_t)sizeof *ids);
    uint32_t seed = 5;
    for (int64_t i = 0; i < n; i++)
        ids[i] = kt_random(&seed) % v;
    return ids;
}

TEST(gradient_of_an_embedding_from_low_dy)
{
    static const int64_t z[][3] = {{1, 1, 1}, {50, 17, 5}, {9, 15, 3}, {300, 387, 40}};
    for (size_t i = 0; i < NTYPES * sizeof z / sizeof *z; i++) {
        const int64_t *k = z[i / NTYPES];
        int64_t rows = k[0], h = k[1], v = k[2], *ids = ids_of(rows, v);
        rt_dtype t = types[i % NTYPES];
        float *dy = kt_noise(rows * h, 2, 1), *base = kt_noise(v * h, 3, 1);
        void *low = kt_as(dy, rows * h, t), *d[KT_TEAMS], *more[KT_TEAMS];
        double *want = kt_doubles(v * h), *sum = kt_doubles(v * h);
        for (int64_t e = 0; e < rows * h; e++)
            want[ids[e / h] * h + e % h] += (double)dy[e];
        for (int64_t e = 0; e < v * h; e++)
            sum[e] = want[e] + (double)base[e];
        rt_program program = {0};
        RUN_TEAMS(&program, s, team)
        {
            void *scratch =
                kt_bytes(kt_scratch.embed_grad(rows, h, v, kt_threads[team]));
            d[team] = kt_floats(v * h), more[team] = kt_copy(base, v * h);
            rt_embed_grad(s, d[team], low, t, ids, rows, h, v, false, scratch);
            rt_embed_grad(s, more[team], low, t, ids, rows, h, v, true, scratch);
        }
        CHECK(kt_same(d, v * h * 4) && kt_same(more, v * h * 4));
        CHECK_NEAR(kt_error(d[0], want, v * h), 0, 1e-5);
        CHECK_NEAR(kt_error(more[0], sum, v * h), 0, 1e-5);
        kt_done();
    }
}
