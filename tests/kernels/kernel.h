/* kernel.h -- what tests of kernels share, whatever the device.
 *
 * RUN_TEAMS runs its body once for each of several thread counts, on a GPU for each of several
 * orders of execution, on an opened device; the body fills out[team] and results are compared bit
 * by bit afterwards. Every buffer that a kernel sees comes from kt_floats() or kt_bytes(): filled
 * with NaN, its end guarded, freed by kt_done().
 *
 * With KT_DEVICE the device is a GPU: buffers are memory that both it and the host address. What a
 * kernel wrote may be read when the device is closed, or behind kt_wait().
 */
#ifndef EFFICC_KERNEL_TEST_H
#define EFFICC_KERNEL_TEST_H

#include "ir/ir.h"
#include "runtime/include/efficc_rt.h"
#include "test.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Under AddressSanitizer reads past the end are found, too. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define KT_HIDE(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define KT_SHOW(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define KT_HIDE(p, n) ((void)(p))
#define KT_SHOW(p, n) ((void)(p))
#endif

enum { KT_TEAMS = 3, KT_GUARD = 64 };

#ifdef KT_DEVICE
/* kernel_device.cu */
void *kt_device_memory(size_t bytes);
void kt_device_free(void *);
void kt_device_seed(int team);
void kt_device_bind(rt_stream *, const rt_run *, void *hyper, void *partial);
void kt_device_capture(rt_stream *); /* what follows does not run */
/* The products of the capture, which ends; how many kernels it had. */
int kt_device_measure(rt_stream *);
bool kt_device_virtual(void);
void kt_device_fail(void); /* as after a call that failed: ends the process */
size_t kt_device_hyper_bytes(void);
size_t kt_device_partial_bytes(const rt_program *);
#define kt_scratch rt_cuda_scratch
#define kt_memory  kt_device_memory
#define kt_free    kt_device_free
static const int kt_threads[KT_TEAMS] = {0, 1, 2}; /* numbers of orders */
enum { KT_ON_DEVICE = true };
#else
#include <omp.h>
#define kt_scratch        rt_cpu_scratch
#define kt_memory(bytes)  aligned_alloc(KT_GUARD, bytes)
#define kt_free           free
#define kt_device_seed(n) omp_set_num_threads(4) /* also where there is one processor */
static const int kt_threads[KT_TEAMS] = {1, 2, 3};
enum { KT_ON_DEVICE = false };
#endif

typedef struct kt_block {
    struct kt_block *next;
    size_t bytes;
    unsigned char *data;
} kt_block;
static kt_block *kt_blocks;

/* NaN everywhere, so that what is not written shows. */
static inline void *
kt_bytes(int64_t n)
{
    size_t bytes = (size_t)n, whole = (bytes + 2 * KT_GUARD - 1) / KT_GUARD * KT_GUARD;
    kt_block *b = malloc(sizeof *b);
    NEED(b != NULL);
    *b = (kt_block){kt_blocks, bytes, kt_memory(whole)};
    NEED(b->data != NULL);
    memset(b->data, 0xff, whole);
    kt_blocks = b;
    KT_HIDE(b->data + bytes, KT_GUARD);
    return b->data;
}

static inline float *
kt_floats(int64_t n)
{
    return kt_bytes(n * (int64_t)sizeof(float));
}

static inline uint32_t
kt_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* n floats in (-range, range), the same for the same seed. */
static inline float *
kt_noise(int64_t n, uint32_t seed, float range)
{
    float *x = kt_floats(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = ((float)kt_random(&seed) / 8388608.0f - 1) * range;
    return x;
}

static inline float *
kt_copy(const float *x, int64_t n)
{
    return memcpy(kt_floats(n), x, (size_t)n * sizeof *x);
}

static inline float *
kt_value(float x)
{
    return kt_copy(&x, 1);
}

static inline int64_t
kt_size(rt_dtype t)
{
    return t == RT_F32 ? 4 : 2;
}

static inline float
kt_element(const void *x, int64_t i, rt_dtype t)
{
    if (t == RT_F32)
        return ((const float *)x)[i];
    uint16_t h = ((const uint16_t *)x)[i];
    return (float)(t == RT_BF16 ? ir_from_bfloat(h) : ir_from_half(h));
}

/* The nearest element of a low type, to even where two are. */
static inline uint16_t
kt_low(float x, rt_dtype t)
{
    int bits = t == RT_BF16 ? 8 : 11, least = t == RT_BF16 ? -133 : -24, e;
    double max = t == RT_BF16 ? 0x1.fep127 : 65504, d = fabs((double)x);
    uint16_t infinite = t == RT_BF16 ? 0x7f80 : 0x7c00, sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return infinite | 1 << (bits - 2);
    frexp(d, &e);
    double unit = ldexp(1, e - bits < least ? least : e - bits);
    d = isinf(d) || d == 0 ? d : nearbyint(d / unit) * unit;
    if (d > max)
        return sign | infinite;
    frexp(d, &e);
    if (d == 0 || e - bits < least) /* no leading bit */
        return sign | (uint16_t)ldexp(d, -least);
    return sign |
           (uint16_t)(((e - bits - least) << (bits - 1)) + (int)ldexp(d, bits - e));
}

/* A copy of x [n] in the type; x gets its values. */
static inline void *
kt_as(float *x, int64_t n, rt_dtype t)
{
    void *y = kt_bytes(n * kt_size(t));
    if (t == RT_F32)
        return memcpy(y, x, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        ((uint16_t *)y)[i] = kt_low(x[i], t);
        x[i] = kt_element(y, i, t);
    }
    return y;
}

/* The floats of x [n]. */
static inline float *
kt_as_floats(const void *x, int64_t n, rt_dtype t)
{
    float *y = kt_floats(n);
    for (int64_t i = 0; i < n; i++)
        y[i] = kt_element(x, i, t);
    return y;
}

/* Does y [n] hold the floats x [n], rounded once? */
static inline bool
kt_is_rounded(const void *y, const float *x, int64_t n, rt_dtype t)
{
    return !memcmp(y, kt_as(kt_copy(x, n), n, t), (size_t)(n * kt_size(t)));
}

/* Frees all buffers; fails where one was written past its end. */
static inline void
kt_done(void)
{
    while (kt_blocks) {
        kt_block *b = kt_blocks;
        const unsigned char *end = b->data + b->bytes;
        KT_SHOW(end, KT_GUARD);
        for (int i = 0; i < KT_GUARD; i++)
            if (end[i] != 0xff) {
                CHECK(!"a buffer was written past its end");
                break;
            }
        kt_blocks = b->next;
        kt_free(b->data);
        free(b);
    }
}

static inline void
kt_wait(rt_stream *s)
{
    rt_await(s, rt_mark(s));
}

/* What kernels of an update read beside their arguments is the run's from here on, as
 * rt_execute() would have it. Again after each change of run->hyper. */
static inline void
kt_bind(rt_stream *s, const rt_run *run)
{
#ifdef KT_DEVICE
    kt_wait(s);
    kt_device_bind(s, run, kt_bytes((int64_t)kt_device_hyper_bytes()),
                   kt_bytes((int64_t)kt_device_partial_bytes(run->program)));
#else
    (void)s, (void)run;
#endif
}

static inline rt_stream *
kt_open(rt_program *p, int threads)
{
    char error[256] = "";
    rt_stream *s = NULL;
    rt_run run = {.program = p};
    kt_device_seed(threads);
    p->threads = threads;
    bool ok = rt_device_open(p, &s, error, sizeof error);
    if (!ok)
        printf("  %s\n", error);
    NEED(ok);
    kt_bind(s, &run);
    return s;
}

#define RUN_TEAMS(program, s, team)                                \
    for (int team = 0; team < KT_TEAMS; team++)                    \
        for (rt_stream *s = kt_open(program, kt_threads[team]); s; \
             rt_device_close(s), s = NULL)

static inline bool
kt_same(void *const out[KT_TEAMS], int64_t bytes)
{
    for (int i = 1; i < KT_TEAMS; i++)
        if (memcmp(out[0], out[i], (size_t)bytes))
            return false;
    return true;
}

/* Largest |got - want|; infinity where one is NaN and the other is not. */
static inline double
kt_error(const float *got, const double *want, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (isnan(d) || isinf((double)got[i]) || isinf(want[i]))
            d = (double)got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))
                    ? 0
                    : INFINITY;
        worst = fmax(worst, d);
    }
    return worst;
}

static inline double *
kt_doubles(int64_t n)
{
    double *x = kt_bytes(n * (int64_t)sizeof(double));
    memset(x, 0, (size_t)n * sizeof *x);
    return x;
}

#endif
