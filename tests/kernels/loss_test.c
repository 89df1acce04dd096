/* Cross entropy of given logits and of a chunked head, and squared errors, against plain
 * loops in double. */
#include "kernel.h"

typedef struct want {
    double loss, *d, *prob, *each; /* d: of logits, without scale; each: row losses */
    int64_t right, *best;
} want;

/* From logits in double. */
static want
reference(const double *x, const int64_t *targets, int64_t rows, int64_t c)
{
    want w = {.d = kt_doubles(rows * c),
              .prob = kt_doubles(rows * c),
              .each = kt_doubles(rows),
              .best = kt_bytes(rows * 8)};
    for (int64_t r = 0; r < rows; r++) {
        const double *in = x + r * c;
        int64_t best = 0;
        double sum = 0;
        for (int64_t k = 0; k < c; k++)
            best = in[k] > in[best] ? k : best;
        for (int64_t k = 0; k < c; k++)
            sum += exp(in[k] - in[best]);
        for (int64_t k = 0; k < c; k++)
            w.prob[r * c + k] = exp(in[k] - in[best]) / sum;
        w.best[r] = targets[r] == RT_IGNORE ? -1 : best;
        if (targets[r] == RT_IGNORE)
            continue;
        for (int64_t k = 0; k < c; k++)
            w.d[r * c + k] = w.prob[r * c + k] - (k == targets[r] ? 1 : 0);
        w.each[r] = in[best] + log(sum) - in[targets[r]];
        w.loss += w.each[r];
        w.right += best == targets[r];
    }
    return w;
}

static int64_t *
targets_of(int64_t rows, int64_t c, int kind)
{
    int64_t *t = kt_bytes(rows * (int64_t)sizeof *t);
    uint32_t seed = 9;
    for (int64_t r = 0; r < rows; r++) {
        bool on = kind == 0 || (kind == 1 && r % 3 != 1);
        t[r] = on ? kt_random(&seed) % c : RT_IGNORE;
    }
    return t;
}

TEST(cross_entropy_of_logits)
{
    static const int64_t z[][2] = {{1, 1},    {4, 2},    {70, 3},
                                   {130, 33}, {9, 4000}, {3, 5000}};
    for (int i = 0; i < 18; i++) {
        int64_t rows = z[i / 3][0], c = z[i / 3][1], n = rows * c;
        float *x = kt_noise(n, 1, 8), *scale = kt_value(0.25f), *loss2 = kt_floats(1);
        int64_t *t = targets_of(rows, c, i % 3), *right = kt_bytes(8);
        void *loss[KT_TEAMS];
        rt_program program = {0};
        void *prob[KT_TEAMS], *dx[KT_TEAMS], *each[KT_TEAMS];
        double *xd = kt_doubles(n);
        for (int64_t k = 0; k < n; k++)
            xd[k] = (double)x[k];
        want w = reference(xd, t, rows, c);
        for (int64_t k = 0; k < n; k++)
            w.d[k] *= 0.25;
        RUN_TEAMS(&program, s, team)
        {
            prob[team] = kt_floats(n), dx[team] = kt_floats(n);
            each[team] = kt_floats(rows);
            loss[team] = kt_floats(1);
            rt_ce(s, loss[team], right, prob[team], each[team], x, t, scale, rows, c);
            rt_ce_grad(s, loss2, dx[team], x, t, scale, rows, c);
            kt_wait(s);
            CHECK(*loss2 == *(float *)loss[team]);
        }
        CHECK(kt_same(loss, sizeof(float)));
        CHECK(kt_same(prob, n * (int64_t)sizeof(float)));
        CHECK(kt_same(dx, n * (int64_t)sizeof(float)));
        CHECK_NEAR((double)*loss2, 0.25 * w.loss, 1e-6 * (1 + w.loss));
        CHECK_NEAR(kt_error(prob[0], w.prob, n), 0, 5e-7);
        CHECK(kt_same(each, rows * (int64_t)sizeof(float)));
        CHECK_NEAR(kt_error(each[0], w.each, rows), 0, 4e-6);
        CHECK_NEAR(kt_error(dx[0], w.d, n), 0, 5e-7);
        CHECK(*right == w.right);
        kt_done();
    }
}

TEST(the_first_of_equal_logits_is_predicted)
{
    rt_program program = {0};
    float *x = kt_copy((float[]){1, 5, 5, 2, 2, 2}, 6), *prob = kt_floats(6);
    int64_t *t = kt_bytes(2 * sizeof *t), *right = kt_bytes(sizeof *right);
    t[0] = 2, t[1] = 0;
    rt_stream *s = kt_open(&program, 1);
    rt_ce(s, kt_floats(1), right, prob, kt_floats(2), x, t, kt_value(1), 2, 3);
    rt_device_close(s);
    CHECK(*right == 1);
    kt_done();
}

/* Logits that exp() can't hold, masked ones, and rows of nothing but masked ones, which have no
 * loss. A row that is not supervised says nothing, whatever is in it. */
TEST(extreme_logits)
{
    enum { C = 40, ROWS = 5 };
    rt_program program = {0};
    float *x = kt_floats(ROWS * C), *dx = kt_floats(ROWS * C), *each = kt_floats(ROWS);
    float *loss = kt_floats(1), *prob = kt_floats(ROWS * C);
    int64_t *t = kt_bytes(ROWS * 8), *right = kt_bytes(8);
    for (int i = 0; i < ROWS * C; i++)
        x[i] = i / C == 0 ? (float)i * 1e30f : i / C == 1 ? -1e5f : -INFINITY;
    x[2 * C + 33] = 5, x[2 * C + 1] = 5 - logf(3); /* 3/4 and 1/4 of a masked row */
    for (int r = 0; r < ROWS; r++)
        t[r] = r == 0 ? C - 1 : r == 1 ? 7 : r == 2 ? 1 : RT_IGNORE;
    for (int bad = 0; bad < 2; bad++) {
        t[4] = bad ? 3 : RT_IGNORE;
        rt_stream *s = kt_open(&program, 1);
        rt_ce(s, loss, right, prob, each, x, t, kt_value(1), ROWS, C);
        rt_ce_grad(s, loss, dx, x, t, kt_value(1), ROWS, C);
        rt_device_close(s);
        CHECK(bad ? isnan(*loss) : isfinite(*loss));
        CHECK(each[0] == 0 && each[3] == 0 && isnan(each[4]) == bad && *right == 1);
        CHECK_NEAR((double)each[1], log(C), 1e-5);
        CHECK_NEAR((double)each[2], log(4), 1e-5);
        CHECK_NEAR((double)dx[2 * C + 33], 0.75, 1e-6);
        CHECK(dx[0] == 0 && dx[2 * C] == 0 && dx[3 * C] == 0 && dx[C - 1] == 0);
        CHECK(isnan(prob[4 * C]));
    }
    kt_done();
}

TEST(losses_of_no_rows)
{
    rt_program program = {0};
    float *loss = kt_floats(2), *none = kt_floats(0);
    int64_t *right = kt_bytes(8), *t = kt_bytes(0);
    rt_stream *s = kt_open(&program, 1);
    rt_ce(s, loss, right, none, none, none, t, kt_value(1), 0, 3);
    rt_mse(s, loss + 1, none, none, none, kt_value(1), 0, 3);
    rt_device_close(s);
    CHECK(loss[0] == 0 && loss[1] == 0 && *right == 0);
    kt_done();
}

typedef struct head {
    rt_head d;
    float *x, *w, *bias; /* x, w: what lx, lw hold */
    void *lx, *lw;
    int64_t *targets, nx, nw;
} head;

static head
make(const int64_t z[4], rt_dtype type, int form)
{
    int64_t rows = z[0], h = z[1], v = z[2];
    head p = {.d = {rows, h, v, z[3], form & 1, type}, .nx = rows * h, .nw = h * v};
    p.x = kt_noise(p.nx, 1, 1);
    p.w = kt_noise(p.nw, 2, 1);
    p.lx = kt_as(p.x, p.nx, type);
    p.lw = kt_as(p.w, p.nw, type);
    p.bias = form & 2 ? kt_noise(v, 3, 2) : NULL;
    p.targets = targets_of(rows, v, form >> 2);
    return p;
}

static int64_t
w_at(const head *p, int64_t i, int64_t j) /* input i, output j */
{
    return p->d.tb ? j * p->d.h + i : i * p->d.v + j;
}

static double *
logits_of(const head *p)
{
    double *y = kt_doubles(p->d.rows * p->d.v);
    for (int64_t r = 0; r < p->d.rows; r++)
        for (int64_t j = 0; j < p->d.v; j++) {
            double s = p->bias ? (double)p->bias[j] : 0;
            for (int64_t i = 0; i < p->d.h; i++)
                s += (double)p->x[r * p->d.h + i] * (double)p->w[w_at(p, i, j)];
            y[r * p->d.v + j] = s;
        }
    return y;
}

static void
check_eval(const head *p, const want *w, float scale)
{
    rt_program program = {0};
    float *by = kt_value(scale);
    int64_t *right = kt_bytes(8), *pred = kt_bytes(p->d.rows * 8);
    void *each[KT_TEAMS], *loss[KT_TEAMS];
    RUN_TEAMS(&program, s, team)
    {
        int64_t bytes = kt_scratch.head_ce(&p->d, false, kt_threads[team]);
        each[team] = kt_floats(p->d.rows);
        loss[team] = kt_floats(1);
        rt_head_ce(s, loss[team], right, pred, each[team], p->lx, p->lw, p->targets, by,
                   p->bias, &p->d, kt_bytes(bytes));
        kt_wait(s);
        CHECK(*right == w->right);
        CHECK(!memcmp(pred, w->best, (size_t)p->d.rows * 8));
    }
    CHECK(kt_same(loss, sizeof(float)));
    CHECK_NEAR((double)*(float *)loss[0], (double)scale * w->loss,
               1e-6 * (1 + w->loss));
    CHECK(kt_same(each, p->d.rows * (int64_t)sizeof(float)));
    CHECK_NEAR(kt_error(each[0], w->each, p->d.rows), 0, 2e-6);
}

typedef struct grads {
    double *dx, *dw, *db;
} grads;

static grads
gradients(const head *p, const want *w, double scale)
{
    grads g = {kt_doubles(p->nx), kt_doubles(p->nw), kt_doubles(p->d.v)};
    for (int64_t r = 0; r < p->d.rows; r++)
        for (int64_t j = 0; j < p->d.v; j++) {
            double d = scale * w->d[r * p->d.v + j];
            g.db[j] += d;
            for (int64_t i = 0; i < p->d.h; i++) {
                g.dx[r * p->d.h + i] += d * (double)p->w[w_at(p, i, j)];
                g.dw[w_at(p, i, j)] += d * (double)p->x[r * p->d.h + i];
            }
        }
    return g;
}

/* What d logits and dx lose when they are rounded to the type, at most: half a unit in the
 * last place of each d logit of a sum, and of the sum. */
static double
rounding(const head *p, const want *w, double scale)
{
    double half = p->d.type == RT_F32 ? 0 : p->d.type == RT_F16 ? 0x1p-11 : 0x1p-8;
    double row = 0, column = 0;
    for (int64_t r = 0; r < p->d.rows; r++) {
        double s = 0;
        for (int64_t j = 0; j < p->d.v; j++)
            s += fabs(w->d[r * p->d.v + j]);
        row = fmax(row, s);
    }
    for (int64_t j = 0; j < p->d.v; j++) {
        double s = 0;
        for (int64_t r = 0; r < p->d.rows; r++)
            s += fabs(w->d[r * p->d.v + j]);
        column = fmax(column, s);
    }
    return 2 * half * scale * fmax(row, column);
}

static void
check_grad(const head *p, const want *w, float scale)
{
    rt_program program = {0};
    grads g = gradients(p, w, (double)scale);
    double low = rounding(p, w, (double)scale);
    int64_t bytes_x = p->nx * kt_size(p->d.type);
    float *base = kt_noise(p->nw, 7, 1), *by = kt_value(scale);
    float *db_base = kt_noise(p->d.v, 7, 1);
    void *loss[KT_TEAMS], *dx[KT_TEAMS], *dw[KT_TEAMS], *db[KT_TEAMS];
    for (int64_t i = 0; i < p->nw; i++)
        g.dw[i] += (double)base[i];
    for (int64_t i = 0; i < p->d.v; i++)
        g.db[i] += (double)db_base[i];
    RUN_TEAMS(&program, s, team)
    {
        int64_t bytes = kt_scratch.head_ce(&p->d, true, kt_threads[team]);
        void *scratch = kt_bytes(bytes);
        dx[team] = kt_bytes(bytes_x), dw[team] = kt_copy(base, p->nw);
        db[team] = kt_copy(db_base, p->d.v);
        loss[team] = kt_floats(1);
        rt_head_ce_grad(s, loss[team], dx[team], NULL, NULL, p->lx, p->lw, p->targets,
                        by, p->bias, &p->d, scratch);
        rt_head_ce_grad(s, loss[team], dx[team], dw[team], db[team], p->lx, p->lw,
                        p->targets, by, p->bias, &p->d, scratch);
    }
    CHECK(kt_same(loss, sizeof(float)));
    CHECK(kt_same(dx, bytes_x) && kt_same(dw, p->nw * 4) && kt_same(db, p->d.v * 4));
    CHECK_NEAR((double)*(float *)loss[0], (double)scale * w->loss,
               1e-6 * (1 + w->loss));
    float *fx = kt_as_floats(dx[0], p->nx, p->d.type);
    CHECK_NEAR(kt_error(fx, g.dx, p->nx), 0, 3e-6 + low);
    CHECK_NEAR(kt_error(dw[0], g.dw, p->nw), 0, 3e-6 + low);
    CHECK_NEAR(kt_error(db[0], g.db, p->d.v), 0, 3e-6);
}

/* form: bit 0 tb, bit 1 bias, above: rows supervised all, two thirds, none. */
TEST(head_with_cross_entropy_in_chunks)
{
    static const int64_t z[][4] = {
        {1, 1, 1, 1}, {10, 8, 33, 4}, {65, 20, 150, 64}, {40, 33, 2100, 512}};
    static const rt_dtype types[] = {RT_F32, RT_BF16, RT_F16};
    for (size_t i = 0; i < sizeof z / sizeof *z; i++)
        for (int k = 0; k<3 * 12; k += z[i][2]> 2000 ? 5 : 1) {
            head p = make(z[i], types[k % 3], k / 3);
            want w = reference(logits_of(&p), p.targets, p.d.rows, p.d.v);
            check_eval(&p, &w, 0.1f);
            check_grad(&p, &w, 0.1f);
            kt_done();
        }
}

/* Rows of several tiles, of which a block has several warps; some without label. */
TEST(a_head_of_long_rows)
{
    static const int64_t z[] = {5, 3, 1101, 512};
    static const rt_dtype types[] = {RT_F32, RT_BF16};
    for (int k = 0; k < 2; k++) {
        head p = make(z, types[k], 1 << 2 | 2 | k);
        want w = reference(logits_of(&p), p.targets, p.d.rows, p.d.v);
        check_eval(&p, &w, 0.1f);
        check_grad(&p, &w, 0.1f);
        kt_done();
    }
}

/* Fewer rows than scratch was planned for. */
TEST(head_of_fewer_rows)
{
    static const int64_t most[] = {65, 20, 150, 64}, few[] = {3, 20, 150, 64};
    for (int t = 0; t < 3; t++) {
        head p = make(few, (rt_dtype[]){RT_F32, RT_BF16, RT_F16}[t], 0), q = p;
        q.d.rows = most[0];
        for (int grad = 0; grad < 2; grad++)
            CHECK(kt_scratch.head_ce(&p.d, grad, 2) <=
                  kt_scratch.head_ce(&q.d, grad, 2));
        kt_done();
    }
}

/* ---- squared error ---- */

/* Values near y; NaN for all, two thirds or none of the elements, as kind says. */
static float *
values_of(int64_t n, int kind)
{
    float *v = kt_noise(n, 5, 3);
    for (int64_t i = 0; i < n; i++)
        if (kind == 2 || (kind == 1 && i % 3 == 1))
            v[i] = NAN;
    return v;
}

TEST(squared_error)
{
    static const int64_t z[][2] = {{1, 1},    {4, 2},    {70, 3},
                                   {130, 33}, {9, 4000}, {3, 5000}};
    for (int i = 0; i < 18; i++) {
        int64_t rows = z[i / 3][0], c = z[i / 3][1], n = rows * c;
        float *y = kt_noise(n, 1, 3), *v = values_of(n, i % 3);
        float *scale = kt_value(0.25f), *loss2 = kt_floats(1);
        rt_program program = {0};
        void *loss[KT_TEAMS], *dy[KT_TEAMS], *each[KT_TEAMS];
        double *d = kt_doubles(n), *sum = kt_doubles(rows), total = 0;
        for (int64_t k = 0; k < n; k++) {
            double e = isnan(v[k]) ? 0 : (double)y[k] - (double)v[k];
            d[k] = 0.5 * e; /* 2 scale */
            sum[k / c] += e * e;
            total += e * e;
        }
        RUN_TEAMS(&program, s, team)
        {
            dy[team] = kt_floats(n), each[team] = kt_floats(rows);
            loss[team] = kt_floats(1);
            rt_mse(s, loss[team], each[team], y, v, scale, rows, c);
            rt_mse_grad(s, loss2, dy[team], y, v, scale, rows, c);
            kt_wait(s);
            CHECK(*loss2 == *(float *)loss[team]);
        }
        CHECK(kt_same(loss, sizeof(float)));
        CHECK(kt_same(each, rows * (int64_t)sizeof(float)));
        CHECK(kt_same(dy, n * (int64_t)sizeof(float)));
        CHECK_NEAR((double)*loss2, 0.25 * total, 1e-6 * (1 + total));
        CHECK_NEAR(kt_error(each[0], sum, rows), 0, 1e-7 * (1 + total));
        CHECK_NEAR(kt_error(dy[0], d, n), 0, 5e-7);
        kt_done();
    }
}

TEST(a_prediction_that_is_no_number_is_seen)
{
    rt_program program = {0};
    float *y = kt_floats(2), *v = kt_copy((float[]){1, NAN}, 2); /* y is NaN */
    float *loss = kt_floats(1), *each = kt_floats(2);
    rt_stream *s = kt_open(&program, 1);
    rt_mse(s, loss, each, y, v, kt_value(1), 2, 1);
    rt_device_close(s);
    CHECK(isnan(*loss) && isnan(each[0]) && each[1] == 0);
    kt_done();
}
