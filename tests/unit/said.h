/* said.h -- a context for tests that collects what it would say to the user. */
#ifndef EFFICC_SAID_H
#define EFFICC_SAID_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/ir.h"

typedef struct said {
    ef_ctx *ctx;
    char *text; /* diagnostics so far; through said_text() only */
    size_t n;
} said;

static inline void
said_open(said *s)
{
    s->ctx = ef_ctx_new();
    s->ctx->diag = open_memstream(&s->text, &s->n);
    s->ctx->report = NULL;
}

static inline const char *
said_text(said *s)
{
    fflush(s->ctx->diag);
    return s->text;
}

/* Does the text contain the words? Prints it if it does not. */
static inline bool
said_has(said *s, const char *words)
{
    bool found = strstr(said_text(s), words) != NULL;
    if (!found)
        printf("  expected \"%s\" in:\n%s", words, said_text(s));
    return found;
}

static inline void
said_clear(said *s)
{
    fclose(s->ctx->diag);
    free(s->text);
    s->ctx->diag = open_memstream(&s->text, &s->n);
    s->ctx->nerror = s->ctx->nwarning = 0;
}

static inline void
said_close(said *s)
{
    fclose(s->ctx->diag);
    free(s->text);
    ef_ctx_free(s->ctx);
}

#endif
