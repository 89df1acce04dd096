/* Norm, clipping, AdamW and SGD over a program's flat buffers. */
#include "kernel.h"

enum { NUNIT = 2, NPARAM = 4, STEPS = 5 };
static const rt_param params[NPARAM] = {
    {.name = "w",
     .cls = RT_TRAIN,
     .unit = 0,
     .offset = 0,
     .n = 3001,
     .image = -1,
     .rank = 2},
    {.name = "b",
     .cls = RT_TRAIN,
     .unit = 0,
     .offset = 12032,
     .n = 70,
     .image = -1,
     .rank = 1,
     .shift = 1},
    {.name = "frozen",
     .cls = RT_FROZEN,
     .unit = 1,
     .offset = 0,
     .n = 16,
     .image = -1,
     .rank = 2},
    {.name = "big",
     .cls = RT_TRAIN,
     .unit = 1,
     .offset = 64,
     .n = 40000,
     .image = -1,
     .rank = 3},
};
static const int64_t unit_bytes[NUNIT][RT_NCLASSES] = {
    {12352, 12352, 12352, 12352, 0, 0}, {160064, 160064, 160064, 160064, 64, 0}};
static const char *const units[NUNIT] = {"u", "v"};

static rt_program
program_of(void)
{
    return (rt_program){.nunit = NUNIT,
                        .unit = units,
                        .unit_bytes = unit_bytes,
                        .nparam = NPARAM,
                        .param = params};
}

typedef struct state {
    char *base[RT_NCLASSES][NUNIT];
    rt_run run;
} state;

/* Parameters of noise, gradients of step k, moments zero; pads are zero. */
static state *
make(const rt_program *p)
{
    state *s = kt_bytes(sizeof *s);
    memset(s, 0, sizeof *s);
    s->run.program = p;
    for (int c = 0; c < RT_NCLASSES; c++) {
        for (int u = 0; u < NUNIT; u++) {
            s->base[c][u] = kt_bytes(unit_bytes[u][c]);
            memset(s->base[c][u], 0, (size_t)unit_bytes[u][c]);
        }
        s->run.base[c] = s->base[c];
    }
    return s;
}

static float *
data(state *s, rt_class c, const rt_param *q)
{
    return (float *)(s->base[c][q->unit] + q->offset);
}

static void
fill(state *s, rt_class c, uint32_t seed, float range)
{
    for (int i = 0; i < NPARAM; i++) {
        if (params[i].cls != RT_TRAIN)
            continue;
        float *x = kt_noise(params[i].n, seed + (uint32_t)i, range);
        memcpy(data(s, c, &params[i]), x, (size_t)params[i].n * sizeof *x);
    }
}

/* The same steps in double, as PyTorch writes them. */
static void
reference(const rt_param *q, const rt_hyper *h, double coef, double *x[4])
{
    double *p = x[0], *g = x[1], *m = x[2], *v = x[3], t = (double)h->step;
    double wd = h->decay_all || q->rank >= 2 ? h->weight_decay : 0;
    for (int64_t i = 0; i < q->n; i++) {
        double d = g[i] * coef;
        if (h->sgd) {
            d += wd * (p[i] - (double)q->shift);
            m[i] = h->momentum * m[i] + d;
            p[i] -= h->lr * (h->nesterov ? d + h->momentum * m[i] : m[i]);
            continue;
        }
        m[i] = h->beta1 * m[i] + (1 - h->beta1) * d;
        v[i] = h->beta2 * v[i] + (1 - h->beta2) * d * d;
        p[i] -= h->lr * wd * (p[i] - (double)q->shift);
        p[i] -= h->lr / (1 - pow(h->beta1, t)) * m[i] /
                (sqrt(v[i]) / sqrt(1 - pow(h->beta2, t)) + h->eps);
    }
}

static void
check_steps(rt_hyper h)
{
    rt_program p = program_of();
    void *out[KT_TEAMS];
    double *x[NPARAM][4];
    RUN_TEAMS(&p, s, team)
    {
        state *z = make(&p);
        fill(z, RT_TRAIN, 1, 1);
        for (int i = 0; i < NPARAM; i++)
            for (int c = 0; c < 4; c++) {
                x[i][c] = kt_doubles(params[i].n);
                if (c == 0 && params[i].cls == RT_TRAIN)
                    for (int64_t k = 0; k < params[i].n; k++)
                        x[i][0][k] = (double)data(z, RT_TRAIN, &params[i])[k];
            }
        for (h.step = 1; h.step <= STEPS; h.step++) {
            float *coef = kt_value(0.5f + 0.1f * (float)h.step);
            z->run.hyper = h;
            kt_bind(s, &z->run);
            fill(z, RT_GRAD, (uint32_t)(10 * h.step), 0.01f);
            for (int u = 0; u < NUNIT; u++)
                rt_optim(s, &z->run, u, coef);
            for (int i = 0; i < NPARAM; i++) {
                if (params[i].cls != RT_TRAIN)
                    continue;
                for (int64_t k = 0; k < params[i].n; k++)
                    x[i][1][k] = (double)data(z, RT_GRAD, &params[i])[k];
                reference(&params[i], &h, (double)*coef, x[i]);
            }
        }
        kt_wait(s);
        for (int i = 0; i < NPARAM; i++)
            if (params[i].cls == RT_TRAIN)
                CHECK_NEAR(
                    kt_error(data(z, RT_TRAIN, &params[i]), x[i][0], params[i].n), 0,
                    1e-6);
        CHECK(*(float *)z->base[RT_FROZEN][1] == 0);
        out[team] = z->base[RT_TRAIN][1];
    }
    CHECK(kt_same(out, unit_bytes[1][RT_TRAIN]));
    kt_done();
}

TEST(adamw_decays_matrices)
{
    check_steps((rt_hyper){
        .lr = 1e-2, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8});
}

TEST(adamw_decays_all)
{
    check_steps((rt_hyper){.lr = 1e-2,
                           .weight_decay = 0.1,
                           .beta1 = 0.8,
                           .beta2 = 0.95,
                           .eps = 1e-6,
                           .decay_all = true});
}

TEST(sgd)
{
    check_steps((rt_hyper){.lr = 0.1, .weight_decay = 0.05, .sgd = true});
}

TEST(sgd_with_momentum)
{
    check_steps(
        (rt_hyper){.lr = 0.1, .weight_decay = 0.05, .momentum = 0.9, .sgd = true});
}

TEST(sgd_with_nesterovs_momentum)
{
    check_steps((rt_hyper){.lr = 0.1,
                           .weight_decay = 0.05,
                           .momentum = 0.8,
                           .nesterov = true,
                           .decay_all = true,
                           .sgd = true});
}

/* A norm that is not finite: neither parameters nor state change, whatever the optimizer. */
TEST(an_update_that_can_not_be_good_changes_nothing)
{
    static const float bad[] = {INFINITY, NAN};
    static const rt_hyper hypers[] = {
        {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 1},
        {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 1, .max_norm = 1},
        {.lr = 1, .step = 1, .sgd = true},
        {.lr = 1, .step = 1, .sgd = true, .momentum = 0.9, .max_norm = 1}};
    rt_program p = program_of();
    rt_stream *s = kt_open(&p, 2);
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < sizeof hypers / sizeof *hypers; k++) {
            state *z = make(&p), *same = make(&p);
            float *coef = kt_value(0);
            for (int c = RT_TRAIN; c <= RT_STATE_V; c++) {
                fill(z, (rt_class)c, 9, 1);
                fill(same, (rt_class)c, 9, 1);
            }
            z->run.hyper = hypers[k];
            kt_bind(s, &z->run);
            rt_clip_scale(s, coef, kt_value(bad[i]), &z->run);
            for (int u = 0; u < NUNIT; u++)
                rt_optim(s, &z->run, u, coef);
            kt_wait(s);
            CHECK(isnan(*coef));
            for (int c = RT_TRAIN; c <= RT_STATE_V; c++)
                for (int u = 0; u < NUNIT; u++)
                    CHECK(!memcmp(z->base[c][u], same->base[c][u],
                                  (size_t)unit_bytes[u][c]));
        }
    rt_device_close(s);
    kt_done();
}

/* Images are the new parameters, rounded; other results are as without images. */
static void
check_images(rt_hyper h, rt_dtype type)
{
    rt_param with[NPARAM];
    rt_program p = program_of(), q = program_of();
    rt_stream *s = kt_open(&p, 3);
    state *z = make(&p), *plain = make(&p);
    char **image = kt_bytes(NUNIT * sizeof *image);
    float *coef = kt_value(0.5f);
    memcpy(with, params, sizeof with);
    q.param = with;
    with[0].image = 128, with[3].image = 64;
    with[0].image_dtype = with[3].image_dtype = type;
    for (int c = RT_TRAIN; c <= RT_STATE_V; c++) {
        fill(z, (rt_class)c, 9, 1);
        fill(plain, (rt_class)c, 9, 1);
    }
    for (int u = 0; u < NUNIT; u++) { /* squares are not negative */
        memset(z->base[RT_STATE_V][u], 0, (size_t)unit_bytes[u][RT_STATE_V]);
        memset(plain->base[RT_STATE_V][u], 0, (size_t)unit_bytes[u][RT_STATE_V]);
    }
    for (int u = 0; u < NUNIT; u++)
        image[u] = kt_bytes((u ? 64 + 2 * 40000 : 128 + 2 * 3001));
    z->run.base[RT_IMAGE] = image;
    z->run.program = &q;
    z->run.hyper = plain->run.hyper = h;
    kt_bind(s, &z->run);
    for (int u = 0; u < NUNIT; u++) {
        rt_optim(s, &z->run, u, coef);
        rt_optim(s, &plain->run, u, coef);
    }
    rt_device_close(s);
    for (int u = 0; u < NUNIT; u++) {
        CHECK(!memcmp(z->base[RT_TRAIN][u], plain->base[RT_TRAIN][u],
                      (size_t)unit_bytes[u][RT_TRAIN]));
        for (int i = 0; i < 64; i++) /* in front of it */
            CHECK(image[u][i] == -1);
    }
    CHECK(kt_is_rounded(image[0] + 128, data(z, RT_TRAIN, &with[0]), with[0].n, type));
    CHECK(kt_is_rounded(image[1] + 64, data(z, RT_TRAIN, &with[3]), with[3].n, type));
    kt_done();
}

TEST(images_are_the_new_parameters_rounded)
{
    static const rt_hyper h[] = {{.lr = 0.1,
                                  .weight_decay = 0.1,
                                  .beta1 = 0.9,
                                  .beta2 = 0.99,
                                  .eps = 1e-8,
                                  .step = 3},
                                 {.lr = 0.1, .step = 1, .sgd = true},
                                 {.lr = 0.1, .step = 1, .sgd = true, .momentum = 0.9}};
    for (int i = 0; i < 6; i++)
        check_images(h[i / 2], i % 2 ? RT_F16 : RT_BF16);
}

/* torch.amp.GradScaler with its defaults, but for where it ends. */
TEST(the_loss_scaler)
{
    enum { SCALE, GOOD, SKIPPED, UPDATES };
    rt_program p = program_of();
    rt_stream *s = kt_open(&p, 1);
    float *x = kt_copy((float[]){65536, 0, 0, 0}, 4), *good = kt_value(3);
    float *bad[] = {kt_value(INFINITY), kt_value(NAN)};
    for (int i = 1; i < 2000; i++)
        rt_rescale(s, x, good);
    kt_wait(s);
    CHECK(x[SCALE] == 65536 && x[GOOD] == 1999 && x[SKIPPED] == 0 &&
          x[UPDATES] == 1999);
    rt_rescale(s, x, good);
    kt_wait(s);
    CHECK(x[SCALE] == 131072 && x[GOOD] == 0 && x[UPDATES] == 2000);
    for (int i = 0; i < 5; i++)
        rt_rescale(s, x, good);
    rt_rescale(s, x, bad[0]); /* good ones before it no longer count */
    kt_wait(s);
    CHECK(x[SCALE] == 65536 && x[GOOD] == 0 && x[SKIPPED] == 1 && x[UPDATES] == 2005);
    for (int i = 0; i < 1999; i++)
        rt_rescale(s, x, good);
    kt_wait(s);
    CHECK(x[SCALE] == 65536);
    rt_rescale(s, x, good);
    kt_wait(s);
    CHECK(x[SCALE] == 131072);
    for (int i = 0; i < 17; i++)
        rt_rescale(s, x, bad[i % 2]);
    kt_wait(s);
    CHECK(x[SCALE] == 1 && x[SKIPPED] == 18);
    rt_rescale(s, x, bad[1]); /* not below 1 */
    kt_wait(s);
    CHECK(x[SCALE] == 1 && x[SKIPPED] == 19 && x[UPDATES] == 4005);
    x[SCALE] = 0x1p127f, x[GOOD] = 1999;
    rt_rescale(s, x, good); /* it stays finite */
    kt_wait(s);
    CHECK(x[SCALE] == 0x1p127f && x[GOOD] == 0);
    rt_device_close(s);
    kt_done();
}

/* coef for gradients of a norm; scale 0: without a scaler. */
static float
clipped(rt_stream *s, rt_run *run, double max_norm, float norm2, float scale)
{
    float *coef = kt_value(-1), *at = kt_value(norm2);
    run->hyper.max_norm = max_norm;
    kt_bind(s, run);
    if (scale > 0)
        rt_clip_scaled(s, coef, at, run, kt_copy((float[]){scale, 0, 0, 0}, 4));
    else
        rt_clip_scale(s, coef, at, run);
    kt_wait(s);
    return *coef;
}

TEST(clipping_of_scaled_gradients)
{
    rt_program p = program_of();
    rt_run run = {.program = &p};
    float norm2 = 16 * 1024.0f * 1024.0f; /* the true norm is 4 */
    rt_stream *s = kt_open(&p, 1);
    CHECK(clipped(s, &run, 0, norm2, 1024) == 1.0f / 1024);
    CHECK_NEAR((double)clipped(s, &run, 1, norm2, 1024) * 1024, 1 / (4 + 1e-6), 1e-7);
    CHECK(clipped(s, &run, 8, norm2, 1024) == 1.0f / 1024);
    CHECK(isnan(clipped(s, &run, 8, INFINITY, 1024)));
    rt_device_close(s);
    kt_done();
}

/* A tally that is halted, or whose loss is no number, lets nothing be updated. */
TEST(what_has_halted_stays_so)
{
    rt_program p = program_of();
    rt_run run = {.program = &p};
    rt_tally *t = kt_bytes(sizeof *t);
    run.device = (char *)t;
    rt_stream *s = kt_open(&p, 1);
    *t = (rt_tally){.loss = 2};
    CHECK(clipped(s, &run, 0, 16, 0) == 1 && clipped(s, &run, 0, 16, 2) == 0.5f);
    t->halted = 1;
    CHECK(isnan(clipped(s, &run, 0, 16, 0)) && isnan(clipped(s, &run, 0, 16, 2)));
    *t = (rt_tally){.loss = INFINITY};
    CHECK(isnan(clipped(s, &run, 1, 16, 0)));
    *t = (rt_tally){.loss = NAN};
    CHECK(isnan(clipped(s, &run, 1, 16, 2)));
    rt_device_close(s);
    kt_done();
}

/* With a scaler AdamW's t counts the updates that were made, whatever the step. */
TEST(skipped_steps_do_not_count_for_adamw)
{
    rt_program p = program_of(), scaled = program_of();
    rt_stream *s = kt_open(&p, 2);
    state *z = make(&p), *plain = make(&p);
    float *coef = kt_value(1), *scaler = kt_copy((float[]){1, 0, 7, 2}, 4);
    char *at[1] = {(char *)scaler};
    rt_hyper h = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .step = 3};
    scaled.scaled = true;
    fill(z, RT_GRAD, 9, 1);
    fill(plain, RT_GRAD, 9, 1);
    plain->run.hyper = z->run.hyper = h;
    z->run.hyper.step = 10;
    z->run.program = &scaled;
    z->run.base[RT_SCALER] = at;
    for (int u = 0; u < NUNIT; u++) {
        kt_bind(s, &z->run);
        rt_optim(s, &z->run, u, coef);
        kt_bind(s, &plain->run);
        rt_optim(s, &plain->run, u, coef);
        kt_wait(s);
        CHECK(!memcmp(z->base[RT_TRAIN][u], plain->base[RT_TRAIN][u],
                      (size_t)unit_bytes[u][RT_TRAIN]));
    }
    CHECK(scaler[3] == 2);
    rt_device_close(s);
    kt_done();
}

/* Of gradients that are finite the norm is, far above any that a scale makes; one element that
 * is not makes it so. */
TEST(the_norm_is_finite_where_gradients_are)
{
    static const float large[] = {1e17f, -6e15f, INFINITY, -INFINITY, NAN};
    rt_program p = program_of();
    rt_stream *s = kt_open(&p, 2);
    for (int i = 0; i < 5; i++) {
        state *z = make(&p);
        float *norm2 = kt_floats(1);
        fill(z, RT_GRAD, 3, 1e10f);
        data(z, RT_GRAD, &params[3])[39999] = large[i];
        rt_norm2(s, norm2, &z->run);
        kt_wait(s);
        CHECK(!isfinite(*norm2) == !isfinite(large[i]));
        if (i < 2)
            CHECK_NEAR((double)*norm2 / ((double)large[i] * (double)large[i]), 1, 1e-4);
    }
    rt_device_close(s);
    kt_done();
}

TEST(a_scan_of_low_types)
{
    rt_program p = program_of();
    rt_stream *s = kt_open(&p, 1);
    for (int i = 0; i < 2; i++) {
        float x[] = {1, -7, INFINITY, NAN, 3, -INFINITY, NAN};
        rt_dtype t = i ? RT_F16 : RT_BF16;
        const void *low = kt_as(x, 7, t);
        rt_scan r = rt_scan_floats(s, low, t, 7);
        CHECK(r.nans == 2 && r.nan_at == 3 && r.infs == 2 && r.inf_at == 2);
        CHECK(r.largest == 7);
    }
    rt_device_close(s);
    kt_done();
}

TEST(a_scan_finds_what_is_not_finite)
{
    rt_program p = program_of();
    rt_stream *s = kt_open(&p, 1);
    float *x = kt_copy((float[]){1, -7, INFINITY, NAN, 3, -INFINITY, NAN}, 7);
    rt_scan r = rt_scan_floats(s, x, RT_F32, 7);
    CHECK(r.nans == 2 && r.nan_at == 3 && r.infs == 2 && r.inf_at == 2);
    CHECK(r.largest == 7);
    r = rt_scan_floats(s, x, RT_F32, 2);
    CHECK(!r.nans && !r.infs && r.nan_at == -1 && r.inf_at == -1 && r.largest == 7);
    r = rt_scan_floats(s, x, RT_F32, 0);
    CHECK(!r.nans && !r.infs && r.largest == 0);
    rt_device_close(s);
    kt_done();
}

TEST(norm_counts_every_gradient_once)
{
    rt_program p = program_of();
    void *got[KT_TEAMS];
    RUN_TEAMS(&p, s, team)
    {
        state *z = make(&p);
        double want = 0;
        fill(z, RT_GRAD, 3, 1);
        for (int i = 0; i < NPARAM; i++)
            for (int64_t k = 0; params[i].cls == RT_TRAIN && k < params[i].n; k++)
                want += pow((double)data(z, RT_GRAD, &params[i])[k], 2);
        got[team] = kt_floats(1);
        rt_norm2(s, got[team], &z->run);
        kt_wait(s);
        CHECK_NEAR((double)*(float *)got[team], want, 1e-7 * want);
    }
    CHECK(kt_same(got, sizeof(float)));
    kt_done();
}

/* A GPU adds sums of 1024 elements in groups of 1024: a unit that ends inside of a sum, and one
 * with which there are as many sums as a group takes, or two groups; an element more or fewer. */
TEST(the_norm_of_many_sums)
{
    enum { SUM = 1024, GROUP = 1024 * SUM, FIRST = 1000 };
    static const int64_t sizes[] = {
        0, 1, GROUP - SUM - 1, GROUP - SUM, GROUP - SUM + 1, 2 * GROUP - SUM + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i];
        const int64_t bytes[NUNIT][RT_NCLASSES] = {{[RT_GRAD] = n ? 4 * FIRST : 0},
                                                   {[RT_GRAD] = 4 * n}};
        rt_program p = {.nunit = NUNIT, .unit = units, .unit_bytes = bytes};
        float *g[NUNIT] = {kt_noise(FIRST, 5, 1), kt_noise(n + 1, 6, 1)};
        rt_run run = {.program = &p};
        run.base[RT_GRAD] = (char *[]){(char *)g[0], (char *)g[1]};
        void *got[KT_TEAMS];
        double want = 0;
        for (int u = 0; u < NUNIT; u++)
            for (int64_t k = 0; k < bytes[u][RT_GRAD] / 4; k++)
                want += (double)g[u][k] * (double)g[u][k];
        RUN_TEAMS(&p, s, team)
        {
            got[team] = kt_floats(1);
            rt_norm2(s, got[team], &run);
            kt_wait(s);
            CHECK_NEAR((double)*(float *)got[team], want, 1e-7 * want);
        }
        CHECK(kt_same(got, sizeof(float)));
        kt_done();
    }
}

TEST(clipping)
{
    rt_program p = program_of();
    rt_run run = {.program = &p};
    rt_stream *s = kt_open(&p, 1);
    CHECK(clipped(s, &run, 0, 16, 0) == 1);
    CHECK_NEAR((double)clipped(s, &run, 1, 16, 0), 1 / (4 + 1e-6), 1e-8);
    CHECK(clipped(s, &run, 8, 16, 0) == 1);
    rt_device_close(s);
    kt_done();
}

/* More params than one launch of a GPU takes, at offsets that fit no vector, some of them large;
 * what lies between them stays. */
TEST(a_unit_of_many_params)
{
    enum { MANY = 101, ODD = 37, LARGE = 20011, ALL = MANY * (ODD + 1) + 2 * LARGE };
    static rt_param many[MANY];
    static const int64_t bytes[1][RT_NCLASSES] = {{4 * ALL, 4 * ALL, 4 * ALL, 4 * ALL}};
    rt_hyper h = {.lr = 1e-2,
                  .weight_decay = 0.1,
                  .beta1 = 0.9,
                  .beta2 = 0.99,
                  .eps = 1e-8,
                  .step = 2};
    rt_program p = {
        .nunit = 1, .unit = units, .unit_bytes = bytes, .nparam = MANY, .param = many};
    char *base[RT_NCLASSES] = {NULL};
    rt_run run = {.program = &p, .hyper = h};
    int64_t at = 0;
    for (int i = 0; i < MANY; i++) {
        int64_t n = i == 40 || i == 70 ? LARGE : i % ODD + 1;
        many[i] = (rt_param){
            .cls = RT_TRAIN, .offset = 4 * at, .n = n, .image = -1, .rank = 1 + i % 2};
        at += n + 1;
    }
    for (int c = 0; c <= RT_STATE_V; c++) {
        base[c] = (char *)kt_noise(ALL, (uint32_t)c, 1);
        run.base[c] = &base[c];
    }
    float *v = (float *)base[RT_STATE_V];
    double *x[4] = {kt_doubles(ALL), kt_doubles(ALL), kt_doubles(ALL), kt_doubles(ALL)};
    for (int64_t i = 0; i < ALL; i++) {
        v[i] *= v[i];
        for (int c = 0; c < 4; c++) /* p, g, m, v */
            x[c][i] = (double)((float *)base[c])[i];
    }
    for (int i = 0; i < MANY; i++) {
        int64_t o = many[i].offset / 4;
        reference(&many[i], &h, 0.5,
                  (double *[]){x[0] + o, x[1] + o, x[2] + o, x[3] + o});
    }
    rt_stream *s = kt_open(&p, 2);
    kt_bind(s, &run);
    rt_optim(s, &run, 0, kt_value(0.5f));
    rt_device_close(s);
    for (int c = 0; c < 4; c++)
        CHECK_NEAR(kt_error((float *)base[c], x[c], ALL), 0, 1e-6);
    kt_done();
}
