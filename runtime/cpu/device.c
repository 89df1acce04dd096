/* device.c -- opening and closing the CPU device.
 *
 * All threads are OpenMP's. The program's thread count is a maximum, since its scratch
 * space is planned for that many; fewer processors or OMP_NUM_THREADS lower it. Results do
 * not change with it.
 */
#include "rt_cpu_int.h"
#include "tile_int.h"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

/* __builtin_cpu_supports wants literals. */
#define FEATURES     \
    F("sse4.1")      \
    F("sse4.2")      \
    F("popcnt")      \
    F("avx")         \
    F("avx2")        \
    F("fma")         \
    F("bmi")         \
    F("bmi2")        \
    F("avx512f")     \
    F("avx512bw")    \
    F("avx512cd")    \
    F("avx512dq")    \
    F("avx512vl")    \
    F("avx512ifma")  \
    F("avx512vbmi")  \
    F("avx512vbmi2") \
    F("avx512vnni")  \
    F("avx512bitalg") F("avx512vpopcntdq") F("avx512bf16") F("gfni") F("vpclmulqdq")

/* NULL, or what keeps this machine from running the program. */
static const char *
missing_feature(const rt_program *p)
{
    __builtin_cpu_init();
    for (const char *const *f = p->cpu_features; f && *f; f++) {
        bool known = false, there = false;
#define F(name)                               \
    if (!strcmp(*f, name)) {                  \
        known = true;                         \
        there = __builtin_cpu_supports(name); \
    }
        FEATURES
#undef F
        if (!known || !there)
            return *f;
    }
    return NULL;
}

static int64_t
norm_partials(const rt_program *p)
{
    int64_t n = 0;
    for (int u = 0; u < p->nunit; u++)
        n += rt_norm2_blocks(p->unit_bytes[u][RT_GRAD] / (int64_t)sizeof(float));
    return n;
}

static bool
fail(char *error, size_t n, const char *what, const char *name)
{
    snprintf(error, n, "%s%s", what, name);
    return false;
}

static bool
open_parts(rt_stream *s, char *error, size_t n)
{
    const rt_program *p = s->program;
    const char *lacks = missing_feature(p);
    if (lacks)
        return fail(
            error, n,
            "this program was compiled for a processor with a feature that this "
            "one lacks; compile it again on this machine: ",
            lacks);
    s->partial = calloc((size_t)norm_partials(p) + 1, sizeof *s->partial);
    if (!s->partial)
        return fail(error, n, "out of memory", "");
    return rt_gemm_open(s, error, n);
}

bool
rt_device_open(const rt_program *p, rt_stream **compute, char *error, size_t n)
{
    rt_stream *s = calloc(1, sizeof *s);
    *compute = NULL;
    if (!s)
        return fail(error, n, "out of memory", "");
    s->program = p;
    s->threads_before = omp_get_max_threads();
    s->threads = (int)rt_max(1, rt_min(p->threads, s->threads_before));
    for (int k = 0; k < RT_NSYMS; k++)
        s->at[k] = (int)rt_max(0, p->nsize[k] - 1);
    omp_set_dynamic(0);
    omp_set_num_threads(s->threads);
    if (!open_parts(s, error, n)) {
        rt_device_close(s);
        return false;
    }
    *compute = s;
    return true;
}

void
rt_set_sizes(rt_run *run, const int at[RT_NSYMS])
{
    const rt_program *p = run->program;
    for (int k = 0; k < RT_NSYMS; k++) {
        if (p->nsize[k] == 0)
            continue;
        run->compute->at[k] = at[k];
        run->size[k] = p->size[k][at[k]];
    }
}

bool
rt_computes(rt_dtype t)
{
#ifdef RT_DOT
    return t == RT_F32 || (t == RT_BF16 && __builtin_cpu_supports("avx512bf16"));
#else
    return t == RT_F32;
#endif
}

void
rt_device_close(rt_stream *s)
{
    if (!s)
        return;
    rt_gemm_close(s);
    omp_set_num_threads(s->threads_before);
    free(s->partial);
    free(s);
}
