/* diag.h -- the context of one run of the compiler, and how it speaks to the user.
 *
 *     model.onnx: /h.3/attn/Softmax: error: Softmax over axis 1 is not supported [E0204]
 *       note: operand 0 is f32[4,12,128,128]
 *       hint: export with axis=-1
 *
 * Whoever detects a fault reports it, once; callers only pass the failure on ("said why").
 * Texts stand in diags.def, one row each. Voice: lower case, no full stop, what was found
 * then what was expected; names quoted as in the user's file.
 */
#ifndef EFFICC_DIAG_H
#define EFFICC_DIAG_H

#include "base.h"

typedef enum ef_severity {
    EF_ERROR,
    EF_WARNING,
    EF_BUG /* an error that is efficc's own: exit code 70 */
} ef_severity;

typedef enum ef_diag {
#define DIAG(code, number, severity, text) code,
#include "diags.def"
#undef DIAG
    EF_NDIAGS
} ef_diag;

struct ef_config; /* config.h */

struct ef_ctx {
    ef_arena *arena;             /* lives as long as the ctx */
    struct ef_interns *interns;  /* strings and types; private, base_int.h */
    const struct ef_config *cfg; /* options; never NULL after ef_ctx_new() */
    const char *file;            /* input file that diagnostics are about, or NULL */
    const char *pass;            /* name of the pass that runs, or NULL */
    FILE *diag;                  /* where diagnostics go: stderr, or a test's buffer */
    FILE *report;                /* import report, match table, plan; NULL: quiet */
    int nerror, nwarning, nbug;  /* bugs are errors, too */
    int max_errors; /* errors printed in full before "and N more"; 0 = no limit */
    bool muted;     /* private to diag.c: the last report was cut, so are its notes */
};

ef_ctx *ef_ctx_new(void); /* default configuration, stderr and stdout */
void ef_ctx_free(ef_ctx *);

/* Reports a row of diags.def, formatted with the arguments. `loc`: ONNX node, initializer
 * or "line:col"; NULL for none. Counts it in nerror or nwarning. Returns false, so that
 * `return ef_error(...)` reads well. */
bool ef_error(ef_ctx *, const char *loc, ef_diag, ...);
/* Lines that belong to the report before; silent if that one was not printed. */
void ef_note(ef_ctx *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ef_hint(ef_ctx *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line of the report for the user (decisions, tables); to ctx->report. */
void ef_report(ef_ctx *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "and N more errors", if max_errors cut some. Call once at the end of a run. */
void ef_diag_finish(ef_ctx *);
const char *ef_diag_text(ef_diag); /* the format of a row, for docs and tests */

#endif
