/* What a step in low precision adds to the optimizer: images of params, the loss scaler. */
#include "kernel.h"

/* Params of one unit, at odd sizes; images lie apart, in another order, one param has none.
 * Bytes between them belong to nobody. */
enum { NPARAM = 4, TRAIN = 160384, IMAGE = 80384 };
static const rt_param params[NPARAM] = {
    {.name = "one", .cls = RT_TRAIN, .n = 1, .image = 80256, .rank = 1},
    {.name = "w", .cls = RT_TRAIN, .offset = 64, .n = 15, .image = 0, .rank = 2},
    {.name = "alone", .cls = RT_TRAIN, .offset = 128, .n = 17, .image = -1, .rank = 2},
    {.name = "big",
     .cls = RT_TRAIN,
     .offset = 256,
     .n = 40011,
     .image = 64,
     .rank = 2}};
static const int64_t unit_bytes[1][RT_NCLASSES] = {
    {TRAIN, TRAIN, TRAIN, TRAIN, 0, 0, IMAGE, 16}};
static const char *const units[] = {"u"};

typedef struct state {
    rt_param param[NPARAM];
    rt_program program;
    char *base[RT_NCLASSES];
    rt_run run;
} state;

/* Noise in params, gradients and first moments, small squares in the second ones. */
static state *
make(rt_dtype low, bool scaled)
{
    state *z = kt_bytes(sizeof *z);
    memset(z, 0, sizeof *z);
    memcpy(z->param, params, sizeof params);
    for (int i = 0; i < NPARAM; i++)
        z->param[i].image_dtype = low;
    z->program = (rt_program){.nunit = 1,
                              .unit = units,
                              .unit_bytes = unit_bytes,
                              .nparam = NPARAM,
                              .param = z->param,
                              .compute = low,
                              .scaled = scaled};
    z->run.program = &z->program;
    for (int c = 0; c < RT_NCLASSES; c++) {
        int64_t bytes = unit_bytes[0][c];
        z->base[c] = (char *)kt_noise(bytes / 4, (uint32_t)c + 1, 0.5f);
        z->run.base[c] = &z->base[c];
    }
    for (int64_t i = 0; i < TRAIN / 4; i++) {
        float *v = (float *)z->base[RT_STATE_V] + i;
        *v = *v * *v;
    }
    memset(z->base[RT_IMAGE], 0x5a, IMAGE);
    return z;
}

static const rt_hyper hypers[] = {
    {.lr = 1e-2, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8},
    {.lr = 0.1, .weight_decay = 0.05, .sgd = true},
    {.lr = 0.1, .weight_decay = 0.05, .sgd = true, .momentum = 0.9},
    {.lr = 0.1, .sgd = true, .momentum = 0.9, .nesterov = true, .decay_all = true}};
enum { NHYPER = sizeof hypers / sizeof *hypers };
static const rt_dtype lows[] = {RT_BF16, RT_F16};

/* Every image is its param, rounded; what lies between images is as it was. */
static void
check_images(const state *z, rt_dtype low)
{
    char *want = memset(kt_bytes(IMAGE), 0x5a, IMAGE);
    for (int i = 0; i < NPARAM; i++) {
        const rt_param *q = &params[i];
        if (q->image < 0)
            continue;
        float *p = kt_copy((float *)(z->base[RT_TRAIN] + q->offset), q->n);
        memcpy(want + q->image, kt_as(p, q->n, low), (size_t)q->n * 2);
    }
    CHECK(!memcmp(want, z->base[RT_IMAGE], IMAGE));
}

TEST(an_image_is_its_parameter_rounded)
{
    for (int i = 0; i < 2 * NHYPER; i++) {
        void *image[KT_TEAMS], *train[KT_TEAMS];
        float *coef = kt_value(0.75f);
        for (int team = 0; team < KT_TEAMS; team++) {
            state *z = make(lows[i % 2], false);
            char *before = (char *)kt_copy((float *)z->base[RT_TRAIN], TRAIN / 4);
            rt_stream *s = kt_open(&z->program, kt_threads[team]);
            z->run.hyper = hypers[i / 2];
            for (z->run.hyper.step = 1; z->run.hyper.step <= 3; z->run.hyper.step++) {
                kt_bind(s, &z->run);
                rt_optim(s, &z->run, 0, coef);
                kt_wait(s);
                check_images(z, lows[i % 2]);
            }
            rt_device_close(s);
            CHECK(memcmp(before, z->base[RT_TRAIN], 4));
            image[team] = z->base[RT_IMAGE], train[team] = z->base[RT_TRAIN];
        }
        CHECK(kt_same(image, IMAGE) && kt_same(train, TRAIN));
        kt_done();
    }
}

TEST(a_skipped_update_leaves_images_alone)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3 * NHYPER; i++) {
        state *z = make(RT_F16, true), *same = make(RT_F16, true);
        rt_stream *s = kt_open(&z->program, 2);
        z->run.hyper = hypers[i / 3];
        z->run.hyper.step = 1;
        kt_bind(s, &z->run);
        rt_optim(s, &z->run, 0, kt_value(bad[i % 3]));
        rt_device_close(s);
        for (int c = 0; c < RT_NCLASSES; c++)
            CHECK(!memcmp(z->base[c], same->base[c], (size_t)unit_bytes[0][c]));
        kt_done();
    }
}

/* Gradients that are `scale` times too large are clipped as the true ones, and come out true. */
TEST(clipping_of_scaled_gradients)
{
    static const struct {
        double norm, max; /* of the true gradient; 0: no clipping */
    } t[] = {{4, 1}, {4, 8}, {4, 0}, {1e-3, 1}, {0, 1}, {4, 4}};
    static const float scales[] = {1, 2, 1024, 65536, 0x1p40f};
    rt_program p = {0};
    rt_run run = {.program = &p};
    rt_stream *s = kt_open(&p, 1);
    for (size_t i = 0; i < 5 * sizeof t / sizeof *t; i++) {
        double norm = t[i / 5].norm, max = t[i / 5].max, scale = (double)scales[i % 5];
        float *norm2 = kt_value((float)(norm * norm * scale * scale));
        float *coef = kt_value(-1), *plain = kt_value(-1);
        float *scaler = kt_copy((float[]){scales[i % 5], 1, 2, 3}, 4);
        run.hyper.max_norm = max;
        kt_bind(s, &run);
        rt_clip_scaled(s, coef, norm2, &run, scaler);
        rt_clip_scale(s, plain, kt_value((float)(norm * norm)), &run);
        kt_wait(s);
        double factor = max > 0 ? fmin(1, max / (norm + 1e-6)) : 1;
        CHECK_NEAR((double)*coef * scale, factor, 1e-6);
        CHECK(*coef == *plain / scales[i % 5]); /* a power of two: exact */
        CHECK(scaler[0] == scales[i % 5] && scaler[1] == 1 && scaler[2] == 2 &&
              scaler[3] == 3);
    }
    for (int i = 0; i < 4; i++) {
        float *norm2 = kt_value(i % 2 ? NAN : INFINITY), *coef = kt_value(0);
        run.hyper.max_norm = i / 2;
        kt_bind(s, &run);
        rt_clip_scaled(s, coef, norm2, &run, kt_copy((float[]){65536, 0, 0, 0}, 4));
        kt_wait(s);
        CHECK(isnan(*coef));
    }
    rt_device_close(s);
    kt_done();
}
