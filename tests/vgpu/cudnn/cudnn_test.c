/* Attention by cuDNN against our own kernels. The virtual GPU's cuDNN (cudnn.cpp) does every shape; on a
 * real GPU the one that is there is tested, if any. */
#include "../../kernels/attention_ref.h"

typedef struct shape {
    form f;
    bool unpadded;
} shape;

static const shape shapes[] = {
    {{2, 40, 2, 2, 16, true, true, 0, .cap = 0}, false},
    {{1, 65, 3, 3, 24, false, true, 0, .interleaved = true}, false},
    {{2, 33, 4, 2, 8, true, false, 0, .cap = 0}, false},
    {{3, 40, 2, 2, 16, false, true, 1, .cap = 0}, false},
    {{3, 40, 4, 2, 16, true, false, 2, .cap = 0}, false},
    {{3, 30, 2, 2, 8, false, true, 3, .cap = 0}, false},
    {{3, 30, 2, 1, 8, true, false, 3, .cap = 0}, false},
    {{5, 40, 2, 2, 16, true, true, 0, .cap = 0}, true},
    {{4, 40, 2, 2, 16, true, true, 0, .cap = 0}, true}, /* 5 offsets in a row */
    {{5, 33, 4, 2, 24, false, false, 0, .cap = 0}, true},
    {{5, 66, 3, 3, 8, true, true, 0, .interleaved = true}, true},
    {{5, 40, 2, 2, 16, true, true, 2, .cap = 0}, true},
    {{5, 33, 4, 2, 24, false, false, 2, .cap = 0}, true},
};
enum { TAIL = 3, SIZE = 2 };

typedef struct work {
    rt_attn a;
    rt_attn_at at;
    int64_t rows;
    void *q, *k, *v, *dy, *scratch, *scratch_grad;
} work;

typedef struct results {
    void *y, *dq, *dk, *dv;
    float *lse;
} results;

/* Samples of all, one, no, half and a third of the rows. */
static int64_t *
offsets_of(const form *f)
{
    int64_t *o = kt_bytes((f->batch + 1) * 8);
    int64_t part[] = {f->seq, 1, 0, (f->seq + 1) / 2, f->seq / 3 + 1};
    o[0] = 0;
    for (int64_t b = 0; b < f->batch; b++)
        o[b + 1] = o[b] + part[b % 5];
    return o;
}

static work
work_of(const shape *s, rt_dtype t)
{
    problem p = make(&s->f);
    work w = {.a = p.a, .at = {.mask = p.mask}, .rows = s->f.batch * s->f.seq};
    if (s->unpadded) {
        w.at.offsets = offsets_of(&s->f);
        w.at.rows = w.rows = w.at.offsets[s->f.batch] + TAIL;
        for (int64_t i = 0; i < w.rows && p.mask; i++) /* sample 1 has no key */
            p.mask[i] = i > 2 && i != s->f.seq && i % 5 != 3;
    }
    w.a.type = t;
    w.q = kt_as(p.q, w.rows * p.a.ldq, t);
    w.k = s->f.packed ? w.q : kt_as(p.k, w.rows * p.a.ldk, t);
    w.v = s->f.packed ? w.q : kt_as(p.v, w.rows * p.a.ldv, t);
    w.dy = kt_as(p.dy, w.rows * p.a.heads * p.a.d, t);
    w.scratch = kt_bytes(kt_scratch.attention(&w.a, 1));
    w.scratch_grad = kt_bytes(kt_scratch.attention_grad(&w.a, 1));
    return w;
}

static results
space_for(const work *w, bool packed)
{
    const rt_attn *a = &w->a;
    results r = {.y = kt_bytes(w->rows * a->heads * a->d * SIZE),
                 .dq = kt_bytes(w->rows * a->ldq * SIZE),
                 .lse = kt_floats(w->rows * a->heads)};
    r.dk = packed ? r.dq : kt_bytes(w->rows * a->ldk * SIZE);
    r.dv = packed ? r.dq : kt_bytes(w->rows * a->ldv * SIZE);
    return r;
}

static void
enqueue(rt_stream *s, const work *w, const results *r)
{
    rt_attention(s, r->y, r->lse, w->q, w->k, w->v, &w->at, &w->a, w->scratch);
    rt_attention_grad(s, r->dq, r->dk, r->dv, w->dy, w->q, w->k, w->v, r->y, r->lse,
                      &w->at, &w->a, w->scratch_grad);
}

static void
fill_again(const work *w, const shape *s, rt_dtype t)
{
    work fresh = work_of(s, t);
    memcpy(w->q, fresh.q, (size_t)(w->rows * w->a.ldq * SIZE));
    memcpy(w->k, fresh.k, (size_t)(w->rows * w->a.ldk * SIZE));
    memcpy(w->v, fresh.v, (size_t)(w->rows * w->a.ldv * SIZE));
    memcpy(w->dy, fresh.dy, (size_t)(w->rows * w->a.heads * w->a.d * SIZE));
}

/* By whatever there is after a capture; says what that is. */
static results
run(const work *w, const shape *s, rt_dtype t, char *text, size_t n)
{
    rt_program program = {0};
    rt_stream *stream = kt_open(&program, 1);
    results r = space_for(w, s->f.packed);
    kt_device_capture(stream);
    enqueue(stream, w, &r);
    kt_device_measure(stream);
    rt_device_text(stream, text, n);
    fill_again(w, s, t); /* a trial clears them */
    enqueue(stream, w, &r);
    rt_device_close(stream);
    return r;
}

static void
check_low(const void *got, const void *want, int64_t n, rt_dtype t)
{
    const float *x = kt_as_floats(want, n, t);
    double *near = kt_doubles(n), most = 0, unit = t == RT_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t i = 0; i < n; i++) {
        near[i] = (double)x[i];
        most = isfinite(near[i]) ? fmax(most, fabs(near[i])) : most;
    }
    CHECK_NEAR(kt_error(kt_as_floats(got, n, t), near, n), 0, 6 * unit * most);
}

static void
check_same(const work *w, const results *got, const results *want, rt_dtype t)
{
    const rt_attn *a = &w->a;
    double *lse = kt_doubles(w->rows * a->heads);
    for (int64_t i = 0; i < w->rows * a->heads; i++)
        lse[i] = (double)want->lse[i];
    CHECK_NEAR(kt_error(got->lse, lse, w->rows * a->heads), 0, 1e-5);
    check_low(got->y, want->y, w->rows * a->heads * a->d, t);
    check_low(got->dq, want->dq, w->rows * a->ldq, t);
    check_low(got->dk, want->dk, w->rows * a->ldk, t);
    check_low(got->dv, want->dv, w->rows * a->ldv, t);
}

TEST(cudnn_gives_what_our_own_kernels_give)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 2; k++) {
            rt_dtype t = k ? RT_F16 : RT_BF16;
            char text[300];
            work w = work_of(&shapes[i], t);
            setenv("EFFICC_CUDNN", "0", 1);
            results want = run(&w, &shapes[i], t, text, sizeof text);
            CHECK(strstr(text, "attention by own kernels") != NULL);
            unsetenv("EFFICC_CUDNN");
            results got = run(&w, &shapes[i], t, text, sizeof text);
            CHECK(!strstr(text, "virtual") || strstr(text, "attention by cuDNN 9.19"));
            CHECK(!strstr(text, "virtual") || !strstr(text, "and own"));
            check_same(&w, &got, &want, t);
            kt_done();
        }
}

/* What cuDNN can't do, or does wrong, our own kernels do, and a note says so. */
TEST(our_own_kernels_do_the_rest)
{
    static const char *const ways[] = {"old", "refuse", "wrong"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char text[300];
        work w = work_of(&shapes[0], RT_BF16);
        setenv("EFFICC_CUDNN", "0", 1);
        results want = run(&w, &shapes[0], RT_BF16, text, sizeof text);
        unsetenv("EFFICC_CUDNN");
        setenv("VGPU_CUDNN", ways[i], 1);
        results got = run(&w, &shapes[0], RT_BF16, text, sizeof text);
        unsetenv("VGPU_CUDNN");
        if (!strstr(text, "virtual"))
            SKIP("NVIDIA's cuDNN is always right");
        CHECK(strstr(text, "attention by own kernels") != NULL);
        CHECK(!memcmp(got.y, want.y, (size_t)(w.rows * w.a.heads * w.a.d * SIZE)));
        CHECK(!memcmp(got.dq, want.dq, (size_t)(w.rows * w.a.ldq * SIZE)));
        kt_done();
    }
}

/* A cuDNN that wants its sums of dq to be zeros: they are not, in a program, so it isn't right. */
TEST(a_gradient_that_wants_zeros_is_not_used)
{
    char text[300];
    work w = work_of(&shapes[0], RT_BF16);
    setenv("EFFICC_CUDNN", "0", 1);
    results want = run(&w, &shapes[0], RT_BF16, text, sizeof text);
    unsetenv("EFFICC_CUDNN");
    memset(w.scratch_grad, 0, (size_t)kt_scratch.attention_grad(&w.a, 1));
    setenv("VGPU_CUDNN", "add", 1);
    results got = run(&w, &shapes[0], RT_BF16, text, sizeof text);
    unsetenv("VGPU_CUDNN");
    if (!strstr(text, "virtual"))
        SKIP("NVIDIA's cuDNN is always right");
    CHECK(strstr(text, "attention by cuDNN 9.19 and own kernels") != NULL);
    check_same(&w, &got, &want, RT_BF16);
    kt_done();
}
