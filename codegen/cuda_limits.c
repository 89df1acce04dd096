/* cuda_limits.c -- can the emitted kernels be launched on the card that they are compiled for?
 *
 *     ptxas info    : Compiling entry function '_Z3k4_jPfPKf' for 'sm_90'
 *     ptxas info    : Function properties for _Z3k4_jPfPKf
 *         0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
 *     ptxas info    : Used 10 registers, used 1 barriers, 4000 bytes smem
 *
 * The last of these lines ends what is said of a kernel. Where static shared memory alone is
 * too large, ptxas refuses the kernel by itself; then its words are only put into ours.
 */
#include "cuda_limits.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "emitted.h"

enum { WARP = 32, REGISTER_UNIT = 8 };

static const cg_gpu_arch arches[] = {
#define ARCH(name, card, threads, registers, shared) \
    {#name, card, threads, registers, shared},
#include "cuda_arch.def"
#undef ARCH
};

typedef struct kernel { /* what is known of one so far */
    const char *name;
    const cg_gpu_arch *arch; /* NULL: one that is not in the table */
    int64_t stores, loads, registers, shared;
} kernel;

const cg_gpu_arch *
cg_arch_at(int row)
{
    return row < (int)EF_COUNT(arches) ? &arches[row] : NULL;
}

const cg_gpu_arch *
cg_arch_find(const char *name)
{
    for (size_t i = 0; i < EF_COUNT(arches); i++)
        if (!strcmp(arches[i].name, name))
            return &arches[i];
    return NULL;
}

const char *
cg_arch_names(ef_arena *a)
{
    ef_buf b = {.arena = a};
    for (size_t i = 0; i < EF_COUNT(arches); i++)
        ef_putf(&b, "%s%s", i ? ", " : "", arches[i].name);
    return b.s;
}

/* ---- lines of ptxas ---- */

/* The number before the words, such as 4000 of "4000 bytes smem"; 0: they are not there. */
static int64_t
number_before(const char *line, const char *words)
{
    const char *at = strstr(line, words);
    while (at && at > line && isdigit((unsigned char)at[-1]))
        at--;
    return at ? strtoll(at, NULL, 10) : 0;
}

/* What stands in quotes behind the words. NULL: nothing. */
static const char *
quoted_after(ef_arena *a, const char *line, const char *words)
{
    const char *at = strstr(line, words);
    const char *open = at ? strchr(at, '\'') : NULL;
    const char *close = open ? strchr(open + 1, '\'') : NULL;
    return close ? ef_strndup(a, open + 1, (size_t)(close - open - 1)) : NULL;
}

/* The function's own name: the last of those in the mangled one that have a length before
 * them, less what is in namespaces. Another symbol stays as it is. */
static const char *
plain_name(ef_arena *a, const char *symbol)
{
    const char *at = symbol, *name = symbol;
    size_t n = strlen(symbol);
    if (strncmp(at, "_Z", 2))
        return symbol;
    at += 2 + strspn(at + 2, "NL");
    while (isdigit((unsigned char)*at)) {
        char *end;
        size_t length = (size_t)strtoul(at, &end, 10);
        if (length > strlen(end))
            return symbol;
        name = end;
        n = length;
        at = end + length;
        at += *at == 'L';
    }
    return ef_strndup(a, name, n);
}

/* ---- judging ---- */

/* The line of the IR above the definition of the kernel in the source; "": none. */
static const char *
ir_of(ef_ctx *ctx, const char *source, const char *name)
{
    size_t n = strlen(name);
    const char *at = source;
    while ((at = strstr(at, name))) {
        bool whole = at == source || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (whole && at[n] == '(')
            return cg_ir_above(ctx->arena, source, at);
        at += n;
    }
    return "";
}

static bool
refuse(ef_ctx *ctx, const kernel *k, const char *source, const char *why)
{
    const char *ir = ir_of(ctx, source, k->name);
    const char *on =
        k->arch ? ef_printf(ctx->arena, "%s (%s)", k->arch->name, k->arch->card)
                : "this card";
    ef_error(ctx, cg_onnx_node(ctx->arena, ir), E_CG_LIMIT, k->name, on, why);
    if (*ir)
        ef_note(ctx, "written for: %s", ir);
    return false;
}

static int64_t
round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static bool
fits(ef_ctx *ctx, const kernel *k, const char *source, const cg_launch *l)
{
    ef_arena *a = ctx->arena;
    int64_t registers =
        round_up(k->registers, REGISTER_UNIT) * round_up(l->threads, WARP);
    int64_t shared = k->shared + l->shared;
    if (!k->arch)
        return true;
    if (l->threads > k->arch->threads)
        return refuse(ctx, k, source,
                      ef_printf(a, "a block has %lld threads, of %lld",
                                (long long)l->threads, (long long)k->arch->threads));
    if (registers > k->arch->registers)
        return refuse(
            ctx, k, source,
            ef_printf(a, "%lld registers for each of %lld threads are %lld, of %lld",
                      (long long)k->registers, (long long)l->threads,
                      (long long)registers, (long long)k->arch->registers));
    if (shared > k->arch->shared)
        return refuse(ctx, k, source,
                      ef_printf(a, "a block has %lld bytes of shared memory, of %lld",
                                (long long)shared, (long long)k->arch->shared));
    return true;
}

static void
tell_spills(ef_ctx *ctx, const kernel *k)
{
    if (k->stores || k->loads)
        ef_report(
            ctx,
            "%-11s kernel %s has too few registers on %s: %lld bytes go to memory, "
            "%lld come from it",
            "note", k->name, k->arch ? k->arch->name : "this card",
            (long long)k->stores, (long long)k->loads);
}

/* Takes in a line. *done: nothing more will be said of the kernel. false: refused. */
static bool
take_line(ef_ctx *ctx, kernel *k, const char *line, const char *source, bool *done)
{
    ef_arena *a = ctx->arena;
    const char *entry = quoted_after(a, line, "Compiling entry function ");
    const char *too_much = strstr(line, "uses too much shared data");
    const char *refused = too_much ? quoted_after(a, line, "Entry function ") : NULL;
    *done = strstr(line, ": Used ") != NULL;
    if (entry) {
        const char *arch = quoted_after(a, line, " for ");
        *k = (kernel){.name = plain_name(a, entry),
                      .arch = arch ? cg_arch_find(arch) : NULL};
    } else if (refused) {
        *k = (kernel){.name = plain_name(a, refused)};
        return refuse(ctx, k, source, too_much);
    }
    if (strstr(line, "bytes spill stores")) {
        k->stores = number_before(line, " bytes spill stores");
        k->loads = number_before(line, " bytes spill loads");
    }
    if (*done) {
        k->registers = number_before(line, " registers");
        k->shared = number_before(line, " bytes smem");
    }
    return true;
}

bool
cg_cuda_limits(ef_ctx *ctx, const char *said, const char *source, const cg_launch *l)
{
    kernel k = {0};
    bool ok = true, done;
    for (const char *p = said; *p;) {
        size_t n = strcspn(p, "\n");
        ok = take_line(ctx, &k, ef_strndup(ctx->arena, p, n), source, &done) && ok;
        if (done && k.name) {
            ok = fits(ctx, &k, source, l) && ok;
            tell_spills(ctx, &k);
            k = (kernel){0};
        }
        p += n + (p[n] == '\n');
    }
    return ok;
}
