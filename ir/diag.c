/* diag.c -- the context of a run, and reports to the user.
 *
 * Errors beyond ctx->max_errors are counted but not printed, nor are their notes; the end
 * of the run says how many were cut.
 */
#include "diag.h"

#include <ctype.h>
#include <string.h>

#include "base_int.h"
#include "config.h"

static const struct {
    const char *text;
    int number;
    ef_severity severity;
} rows[EF_NDIAGS] = {
#define DIAG(code, number, severity, text) {text, number, severity},
#include "diags.def"
#undef DIAG
};

ef_ctx *
ef_ctx_new(void)
{
    ef_arena *arena = ef_arena_new();
    ef_ctx *ctx = EF_NEW(arena, ef_ctx);
    *ctx = (ef_ctx){.arena = arena,
                    .interns = EF_NEW(arena, ef_interns),
                    .cfg = &ef_config_default,
                    .diag = stderr,
                    .report = stdout};
    return ctx;
}

void
ef_ctx_free(ef_ctx *ctx)
{
    if (ctx)
        ef_arena_free(ctx->arena);
}

/* Is it "12:3"? Then it belongs to the file's name, as compilers print it. */
static bool
is_line(const char *loc)
{
    return isdigit((unsigned char)loc[0]) && !loc[strspn(loc, "0123456789:")];
}

/* Names come from files: what a terminal would obey is shown as \xNN instead. */
static void
put_safely(FILE *f, const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < ' ' && *s != '\n' && *s != '\t')
            fprintf(f, "\\x%02x", (unsigned char)*s);
        else
            fputc(*s == 0x7f ? '?' : *s, f);
}

static void
put_formatted(ef_ctx *ctx, FILE *f, const char *fmt, va_list ap)
{
    put_safely(f, ef_vprintf(ctx->arena, fmt, ap));
}

static void
say(ef_ctx *ctx, const char *loc, ef_diag d, va_list ap)
{
    static const char *const word[] = {"error", "warning", "error"};
    if (ctx->file)
        fprintf(ctx->diag, "%s:%s", ctx->file, loc && is_line(loc) ? "" : " ");
    if (loc) {
        put_safely(ctx->diag, loc);
        fputs(": ", ctx->diag);
    }
    fprintf(ctx->diag, "%s: ", word[rows[d].severity]);
    put_formatted(ctx, ctx->diag, rows[d].text, ap);
    fprintf(ctx->diag, " [%c%04d]\n", rows[d].severity == EF_WARNING ? 'W' : 'E',
            rows[d].number);
}

bool
ef_error(ef_ctx *ctx, const char *loc, ef_diag d, ...)
{
    EF_ASSERT(d < EF_NDIAGS);
    bool error = rows[d].severity != EF_WARNING;
    ctx->nbug += rows[d].severity == EF_BUG;
    ctx->nerror += error;
    ctx->nwarning += !error;
    ctx->muted = error && ctx->max_errors && ctx->nerror > ctx->max_errors;
    if (!ctx->muted) {
        va_list ap;
        va_start(ap, d);
        say(ctx, loc, d, ap);
        va_end(ap);
    }
    return false;
}

static void
line(ef_ctx *ctx, FILE *f, const char *head, const char *fmt, va_list ap)
{
    fputs(head, f);
    put_formatted(ctx, f, fmt, ap);
    fputc('\n', f);
}

void
ef_note(ef_ctx *ctx, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!ctx->muted)
        line(ctx, ctx->diag, "  note: ", fmt, ap);
    va_end(ap);
}

void
ef_hint(ef_ctx *ctx, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!ctx->muted)
        line(ctx, ctx->diag, "  hint: ", fmt, ap);
    va_end(ap);
}

void
ef_report(ef_ctx *ctx, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (ctx->report)
        line(ctx, ctx->report, "", fmt, ap);
    va_end(ap);
}

void
ef_diag_finish(ef_ctx *ctx)
{
    int cut = ctx->max_errors ? ctx->nerror - ctx->max_errors : 0;
    if (cut > 0)
        fprintf(ctx->diag, "and %d more error%s\n", cut, cut == 1 ? "" : "s");
}

const char *
ef_diag_text(ef_diag d)
{
    EF_ASSERT(d < EF_NDIAGS);
    return rows[d].text;
}
