/* Attention of rows: of the same samples it gives what the padded form gives, by loops in
 * double; and of low types the float results, rounded. */
#include "attention_ref.h"

typedef struct layout {
    form f;
    enum { RIGHT, LEFT, HOLES } padding;
    bool masked; /* some of the rows are no keys */
} layout;

static const layout layouts[] = {
    {{5, 2, 1, 1, 4, false, true, 0, .cap = 0}, RIGHT, false},
    {{6, 33, 3, 3, 20, false, true, 0, .cap = 0}, RIGHT, false},
    {{6, 33, 3, 3, 20, false, true, 0, .cap = 0}, LEFT, true},
    {{7, 40, 2, 2, 32, true, true, 0, .cap = 0}, HOLES, false},
    {{5, 130, 4, 2, 16, true, false, 0, .cap = 0}, HOLES, true},
    {{5, 260, 2, 1, 33, true, false, 0, .cap = 0}, RIGHT, false},
    {{5, 300, 2, 2, 8, false, true, 0, .interleaved = true}, LEFT, true},
    {{5, 300, 2, 2, 24, true, false, 0, .window = 33, .cap = 3}, HOLES, false},
    {{5, 260, 2, 2, 16, false, true, 0, .window = 7}, HOLES, true},
    {{5, 64, 3, 3, 32, false, true, 0, .p = 0.1f}, RIGHT, false},
    {{5, 130, 4, 2, 20, true, false, 0, .p = 0.5f}, HOLES, true},
    {{5, 300, 2, 2, 16, true, true, 0, .window = 50, .p = 0.2f}, HOLES, false},
};
enum { TAIL = 3 }; /* rows behind the last sample */

/* The rows of a padded problem. */
typedef struct rows {
    problem p;
    bool packed;
    int64_t n, *from; /* flat index of each row */
    rt_attn_at at;
    float *q, *k, *v, *dy; /* NaN behind the last sample */
} rows;

/* Samples are whole, of one token, empty, of a half and of a third. */
static bool
is_row(const layout *l, int64_t b, int64_t i)
{
    int64_t seq = l->f.seq, part[] = {seq, 1, 0, (seq + 1) / 2, seq / 3 + 1};
    int64_t n = part[b % 5];
    if (n == seq)
        return true;
    if (l->padding == HOLES && n > 1)
        return i < 2 * n && (i * 7 + b) % 5 < 3;
    return l->padding == LEFT ? i >= seq - n : i < n;
}

static float *
taken(const rows *r, const float *x, int64_t ld)
{
    float *y = kt_floats(r->at.rows * ld);
    for (int64_t i = 0; i < r->n; i++)
        memcpy(y + i * ld, x + r->from[i] * ld, (size_t)ld * sizeof *y);
    return y;
}

static void
take_operands(rows *r)
{
    const problem *p = &r->p;
    r->q = taken(r, p->q, p->a.ldq);
    r->k = r->packed ? r->q : taken(r, p->k, p->a.ldk);
    r->v = r->packed ? r->q : taken(r, p->v, p->a.ldv);
    r->dy = taken(r, p->dy, p->a.heads * p->a.d);
}

static rows
rows_of(const layout *l)
{
    rows r = {.p = make(&l->f), .packed = l->f.packed};
    int64_t batch = l->f.batch, seq = l->f.seq, width = l->f.heads * l->f.d;
    int64_t *offsets = kt_bytes((batch + 1) * 8), *mask = kt_bytes(batch * seq * 8);
    int64_t *position = kt_bytes((batch * seq + TAIL) * 8);
    int64_t *keys = kt_bytes((batch * seq + TAIL) * 8);
    int64_t *row_mask = kt_bytes((batch * seq + TAIL) * 8);
    r.from = kt_bytes(batch * seq * 8);
    for (int64_t t = 0; t < batch * seq; t++) {
        int64_t b = t / seq, i = t % seq;
        bool here = is_row(l, b, i), key = here && (!l->masked || i % 5 != 3);
        if (i == 0)
            offsets[b] = r.n;
        mask[t] = key;
        if (!here) {
            memset(r.p.dy + t * width, 0, (size_t)width * sizeof(float));
            continue;
        }
        position[r.n] = i;
        keys[r.n] = r.p.keys[t];
        row_mask[r.n] = 3 * key;
        r.from[r.n++] = t;
    }
    offsets[batch] = r.n;
    r.p.mask = mask;
    r.at = (rt_attn_at){
        l->masked ? row_mask : NULL, offsets, position, keys, NULL, r.n + TAIL};
    take_operands(&r);
    return r;
}

typedef struct results {
    void *y, *lse, *dq, *dk, *dv;
} results;

/* Of any number of threads; y: of which the gradient is, NULL: the own. */
static results
run(const rows *r, rt_dtype type, const void *y)
{
    rt_attn a = r->p.a;
    rt_attn_at at = r->at;
    rt_program program = {0};
    int64_t size = kt_size(type), n = at.rows;
    void *o[5][KT_TEAMS];
    int64_t bytes[5] = {n * a.heads * a.d * size, n * a.heads * 4, n * a.ldq * size,
                        n * a.ldk * size, n * a.ldv * size};
    a.type = type;
    at.key = r->p.key;
    RUN_TEAMS(&program, s, t)
    {
        for (int i = 0; i < 5; i++)
            o[i][t] = i > 2 && r->packed ? o[2][t] : kt_bytes(bytes[i]);
        rt_attention(s, o[0][t], o[1][t], r->q, r->k, r->v, &at, &a,
                     kt_bytes(kt_scratch.attention(&a, kt_threads[t])));
        rt_attention_grad(s, o[2][t], o[3][t], o[4][t], r->dy, r->q, r->k, r->v,
                          y ? y : o[0][t], o[1][t], &at, &a,
                          kt_bytes(kt_scratch.attention_grad(&a, kt_threads[t])));
    }
    for (int i = 0; i < 5; i++)
        CHECK(kt_same(o[i], bytes[i]));
    return (results){o[0][0], o[1][0], o[2][0], o[3][0], o[4][0]};
}

/* Rows are those of the padded reference; 0 behind them. Columns that no head covers are not
 * written: NaN in both. */
static void
check(const rows *r, const float *got, const double *padded, int64_t ld, double within)
{
    double *want = kt_doubles(r->at.rows * ld);
    for (int64_t i = 0; i < r->n; i++)
        memcpy(want + i * ld, padded + r->from[i] * ld, (size_t)ld * sizeof *want);
    CHECK_NEAR(kt_error(got, want, r->at.rows * ld), 0, within);
}

static void
check_lse(const rows *r, const float *got, const double *want)
{
    const rt_attn *a = &r->p.a;
    double *of_rows = kt_doubles(r->at.rows * a->heads);
    for (int64_t i = 0; i < r->at.rows; i++)
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t b = i < r->n ? r->from[i] / a->seq : 0;
            int64_t s = i < r->n ? r->from[i] % a->seq : 0;
            of_rows[i * a->heads + h] =
                i < r->n ? want[(b * a->heads + h) * a->seq + s] : -INFINITY;
        }
    CHECK_NEAR(kt_error(got, of_rows, r->at.rows * a->heads), 0, 3e-6);
}

TEST(rows_are_as_padded)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        rows r = rows_of(&layouts[i]);
        const problem *p = &r.p;
        double *y = kt_doubles(p->ny), *lse = kt_doubles(p->nlse);
        double *dq = kt_doubles(p->nq), *dk = r.packed ? dq : kt_doubles(p->nk);
        double *dv = r.packed ? dq : kt_doubles(p->nk);
        reference(p, y, lse);
        reference_grad(p, dq, dk, dv);
        results o = run(&r, RT_F32, NULL);
        check(&r, o.y, y, p->a.heads * p->a.d, 5e-6);
        check_lse(&r, o.lse, lse);
        check(&r, o.dq, dq, p->a.ldq, 4e-5);
        check(&r, o.dk, dk, p->a.ldk, 4e-5);
        check(&r, o.dv, dv, p->a.ldv, 4e-5);
        kt_done();
    }
}

/* In place of all operands: elements of the type, and the floats that they are. */
static rows
lower(rows *r, rt_dtype t)
{
    const rt_attn *a = &r->p.a;
    rows low = *r;
    low.q = kt_as(r->q, r->at.rows * a->ldq, t);
    low.k = r->packed ? low.q : kt_as(r->k, r->at.rows * a->ldk, t);
    low.v = r->packed ? low.q : kt_as(r->v, r->at.rows * a->ldv, t);
    low.dy = kt_as(r->dy, r->at.rows * a->heads * a->d, t);
    return low;
}

/* Is got [n] what the floats are, rounded? A device multiplies weights in the low type, so
 * there it is close to it: within 3 units in the last place of the largest. */
static void
check_low(const void *got, const float *want, int64_t n, rt_dtype t)
{
#ifdef KT_DEVICE
    double *x = kt_doubles(n), most = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i] = (double)want[i];
        most = isfinite(x[i]) ? fmax(most, fabs(x[i])) : most;
    }
    double unit = t == RT_BF16 ? 0x1p-8 : 0x1p-11;
    CHECK_NEAR(kt_error(kt_as_floats(got, n, t), x, n), 0, 3 * unit * most);
#else
    CHECK(kt_is_rounded(got, want, n, t));
#endif
}

static void
check_low_lse(const float *got, const float *want, int64_t n)
{
#ifdef KT_DEVICE
    double *x = kt_doubles(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (double)want[i];
    CHECK_NEAR(kt_error(got, x, n), 0, 3e-6);
#else
    CHECK(!memcmp(got, want, (size_t)n * sizeof *got));
#endif
}

TEST(low_types_are_the_float_results_rounded)
{
    static const rt_dtype types[] = {RT_BF16, RT_F16};
    for (size_t i = 0; i < 2 * (sizeof layouts / sizeof *layouts); i++) {
        rt_dtype t = types[i % 2];
        rows r = rows_of(&layouts[i / 2]), low = lower(&r, t);
        const rt_attn *a = &r.p.a;
        int64_t n = r.at.rows, ny = n * a->heads * a->d;
        results got = run(&low, t, NULL);
        results want = run(&r, RT_F32, kt_as_floats(got.y, ny, t));
        check_low(got.y, want.y, ny, t);
        check_low_lse(got.lse, want.lse, n * a->heads);
        check_low(got.dq, want.dq, n * a->ldq, t);
        check_low(got.dk, want.dk, n * a->ldk, t);
        check_low(got.dv, want.dv, n * a->ldv, t);
        kt_done();
    }
}

/* The padded form has the same types. */
TEST(padded_low_types_are_the_float_results_rounded)
{
    static const rt_dtype types[] = {RT_BF16, RT_F16};
    for (int i = 0; i < 2; i++) {
        layout l = {
            {2, 70, 4, 2, 20, true, false, 2, .window = 40, .p = 0.2f}, RIGHT, false};
        rows r = {.p = make(&l.f)};
        r.n = l.f.batch * l.f.seq;
        r.from = kt_bytes(r.n * 8);
        for (int64_t k = 0; k < r.n; k++)
            r.from[k] = k;
        r.at = (rt_attn_at){r.p.mask, NULL, NULL, r.p.keys, NULL, r.n};
        take_operands(&r);
        rows low = lower(&r, types[i]);
        results got = run(&low, types[i], NULL);
        results want = run(&r, RT_F32, kt_as_floats(got.y, r.p.ny, types[i]));
        check_low(got.y, want.y, r.p.ny, types[i]);
        check_low_lse(got.lse, want.lse, r.p.nlse);
        check_low(got.dq, want.dq, r.p.nq, types[i]);
        check_low(got.dk, want.dk, r.p.nk, types[i]);
        check_low(got.dv, want.dv, r.p.nk, types[i]);
        kt_done();
    }
}

/* No sample has a row: all rows are tail. */
TEST(a_batch_without_rows_is_zeros)
{
    layout l = {{2, 8, 2, 2, 4, false, true, 0, .cap = 0}, RIGHT, false};
    rows r = rows_of(&l);
    int64_t *none = kt_bytes(3 * 8);
    r.at.offsets = memset(none, 0, 3 * 8), r.n = 0;
    for (int64_t i = 0; i < r.at.rows * r.p.a.ldq; i++)
        r.q[i] = NAN;
    results o = run(&r, RT_F32, NULL);
    for (int64_t i = 0; i < r.at.rows * r.p.a.ldq; i++)
        CHECK(((float *)o.dq)[i] == 0);
    for (int64_t i = 0; i < r.at.rows * 8; i++)
        CHECK(((float *)o.y)[i] == 0);
    kt_done();
}
