/* target.c -- the targets, and for which of them a program is.
 *
 * Both make the same program: the same calls in the same order. What differs is asked for
 * here: alignment of buffers, scratch space of kernels, types that are multiplied at full
 * speed.
 */
#include "cg_int.h"
#include "cuda_limits.h"
#include "toolkit.h"

#include <sched.h>
#include <string.h>

enum { THREADS_MAX = 4096 }; /* scratch space grows with them */
enum { CUDA_ALIGN = 256, ALIGN_MAX = 1 << 20 };
/* Each chunk of a head moves its weight and the gradient of that: at 128,000 columns this
 * makes 1,000 rows, with which the products take longer than that. */
enum { CUDA_LOGITS = 512 << 20 };

bool
cg_is_cuda(const ef_ctx *ctx)
{
    return ctx->cfg->target && !strcmp(ctx->cfg->target, "cuda");
}

int64_t
cg_align(const ef_ctx *ctx)
{
    return ctx->cfg->align ? ctx->cfg->align : cg_is_cuda(ctx) ? CUDA_ALIGN : RT_ALIGN;
}

int
cg_threads(const ef_ctx *ctx)
{
    cpu_set_t set;
    if (cg_is_cuda(ctx))
        return 1;
    if (ctx->cfg->threads > 0)
        return (int)ctx->cfg->threads;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    return CPU_COUNT(&set);
}

const rt_scratch *
cg_need(const ef_ctx *ctx)
{
    return cg_is_cuda(ctx) ? &rt_cuda_scratch : &rt_cpu_scratch;
}

/* ---- what passes ask ---- */

/* Lowers the op with nowhere to write to. */
static int64_t
scratch(ef_ctx *ctx, const ir_op *op, const char **why)
{
    cg c = {.ctx = ctx,
            .dry = true,
            .op = op,
            .threads = cg_threads(ctx),
            .need = cg_need(ctx)};
    c.arena = ef_arena_new();
    EF_ASSERT(cg_emitters[op->code]);
    cg_emitters[op->code](&c, op);
    *why = c.why;
    ef_arena_free(c.arena);
    return c.why ? -1 : c.scratch;
}

/* Any two elementwise ops can share a kernel: mixed element types are converted in it. */
static bool
fuse(const ir_op *first, const ir_op *second)
{
    return ir_ops[first->code].flags & ir_ops[second->code].flags & IR_EW;
}

static bool
cpu_computes(ir_dtype t)
{
    return rt_computes(cg_rt_dtype(t));
}

static bool
cuda_computes(ir_dtype t)
{
    return ir_dtypes[t].is_float;
}

/* NULL, or what is wrong with a value of --align. */
static const char *
wrong_align(const ef_ctx *ctx)
{
    int64_t n = ctx->cfg->align, least = cg_is_cuda(ctx) ? CUDA_ALIGN : RT_ALIGN;
    if (!n || (n >= least && n <= ALIGN_MAX && !(n & (n - 1))))
        return NULL;
    return ef_printf(ctx->arena, "%lld is not a power of two from %d to %d",
                     (long long)n, (int)least, ALIGN_MAX);
}

/* The option that is of no use for the target, and why; NULL: none. */
static const char *
wrong_option(const ef_config *c, bool cuda, const char **why)
{
    *why = cuda ? "it is for --target cpu: on a GPU nothing depends on it"
                : "it is for --target cuda";
    return cuda && c->threads ? "threads"
           : cuda             ? NULL
           : c->nvcc          ? "nvcc"
           : c->cuda_arch     ? "cuda-arch"
                              : NULL;
}

const pass_target *
cg_target(ef_ctx *ctx)
{
    const ef_config *c = ctx->cfg;
    bool cuda = cg_is_cuda(ctx);
    const char *name = c->target ? c->target : "cpu", *why = wrong_align(ctx), *other;
    const char *option = wrong_option(c, cuda, &other);
    if (!cuda && strcmp(name, "cpu"))
        ef_error(
            ctx, NULL, E_OPT_VALUE, "target",
            ef_printf(ctx->arena, "there is no target '%s', only cpu and cuda", name));
    else if (c->threads > THREADS_MAX)
        ef_error(ctx, NULL, E_OPT_VALUE, "threads",
                 ef_printf(ctx->arena,
                           "%lld is more than %d, the most that are planned",
                           (long long)c->threads, THREADS_MAX));
    else if (option)
        ef_error(ctx, NULL, E_OPT_VALUE, option, other);
    else if (why)
        ef_error(ctx, NULL, E_OPT_VALUE, "align", why);
    else if (cuda && !cg_arch_find(cg_arch(ctx)))
        ef_error(ctx, NULL, E_OPT_VALUE, "cuda-arch",
                 ef_printf(ctx->arena, "'%s' is not one of %s", cg_arch(ctx),
                           cg_arch_names(ctx->arena)));
    else {
        pass_target *t = EF_NEW(ctx->arena, pass_target);
        *t = (pass_target){.name = name,
                           .align = cg_align(ctx),
                           .logits = cuda ? CUDA_LOGITS : 0,
                           .scratch = scratch,
                           .fuse = fuse,
                           .computes = cuda ? cuda_computes : cpu_computes};
        return t;
    }
    return NULL;
}

/* ---- the choice ---- */

/* Why a machine that has a driver gets no program for it; NULL: it may. */
static const char *
lacks(ef_ctx *ctx)
{
    return !cg_nvcc(ctx)
               ? ef_printf(ctx->arena, "no nvcc was found%s; scripts/setup.sh --cuda",
                           cg_wrong_home(ctx))
           : !cg_has_cuda_runtime() ? "efficc was built without a CUDA toolkit"
                                    : NULL;
}

static const char *
choose(ef_ctx *ctx, ef_config *c)
{
    c->target = "cpu";
    if (c->threads || c->nvcc || c->cuda_arch) {
        c->target = c->threads ? "cpu" : "cuda";
        return ef_printf(ctx->arena, "which --%s means",
                         c->threads ? "threads"
                         : c->nvcc  ? "nvcc"
                                    : "cuda-arch");
    }
    int devices = cg_cuda_devices();
    const char *why = devices ? lacks(ctx) : "no CUDA device was found";
    if (why)
        return ef_printf(ctx->arena, "since %s", why);
    c->target = "cuda";
    return ef_printf(ctx->arena, "since there %s %d CUDA device%s; or --target cpu",
                     devices == 1 ? "is" : "are", devices, devices == 1 ? "" : "s");
}

const char *
cg_choose_target(ef_ctx *ctx, ef_config *c)
{
    const char *why = c->target ? "as the options say" : choose(ctx, c);
    if (strcmp(c->target, "cuda"))
        return ef_printf(ctx->arena, "%-11s %s, %s", "target", c->target, why);
    const char *nvcc = cg_nvcc(ctx);
    return ef_printf(
        ctx->arena, "%-11s cuda, %s%s\n%-11s %s%s", "target", why,
        cg_cuda_devices() ? "" : "; for another machine: no CUDA device was found here",
        "nvcc", nvcc ? nvcc : "none was found", cg_wrong_home(ctx));
}
