/* lex.c -- the words of the text form; faults with line, column and a caret.
 *
 * Text may be anything: no word is longer than the line, no number is taken that does not
 * fit, and a line that is shown is cut and cleaned first.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "parse_int.h"

/* ---- faults ---- */

/* The line with a caret under column col, both cut to a window around it. */
static void
show(ir_lexer *lx, int col)
{
    enum { BEFORE = 60, WIDTH = 100 };
    ef_ctx *ctx = lx->m->ctx;
    if (ctx->muted)
        return;
    int from = col > BEFORE + 1 ? col - BEFORE - 1 : 0;
    fputs("  ", ctx->diag);
    for (int i = from; i < from + WIDTH && lx->line[i] && lx->line[i] != '\n'; i++) {
        unsigned char c = (unsigned char)lx->line[i];
        fputc(c < ' ' || c >= 0x7f ? '?' : c, ctx->diag);
    }
    fprintf(ctx->diag, "\n  %*s^\n", col - 1 - from, "");
}

static int
column(const ir_lexer *lx, const char *at)
{
    return (int)((at ? at : lx->p) - lx->line) + 1;
}

const char *
ir_lex_place(const ir_lexer *lx, const char *at)
{
    return ef_internf(lx->m->ctx, "%d:%d", lx->lineno, column(lx, at));
}

void
ir_lex_fail_as(ir_lexer *lx, const char *at, ef_diag d, const char *what,
               const char *why)
{
    if (lx->bad)
        return;
    lx->bad = true;
    lx->nfault++;
    ef_error(lx->m->ctx, ir_lex_place(lx, at), d, what, why);
    show(lx, column(lx, at));
}

void
ir_lex_fail(ir_lexer *lx, const char *at, const char *fmt, ...)
{
    if (lx->bad)
        return;
    va_list ap;
    va_start(ap, fmt);
    ir_lex_fail_as(lx, at, E_IR_SYNTAX, ef_vprintf(lx->m->arena, fmt, ap), NULL);
    va_end(ap);
}

/* ---- lines ---- */

void
ir_lex_blank(ir_lexer *lx)
{
    while (*lx->p == ' ' || *lx->p == '\t' || *lx->p == '\r')
        lx->p++;
    if (*lx->p == ';')
        lx->p += strcspn(lx->p, "\n");
}

bool
ir_lex_at_end(const ir_lexer *lx)
{
    return !*lx->p || *lx->p == '\n';
}

bool
ir_lex_next_line(ir_lexer *lx)
{
    do {
        lx->p += strcspn(lx->p, "\n");
        if (!*lx->p)
            return false;
        lx->line = ++lx->p;
        lx->lineno++;
        ir_lex_blank(lx);
    } while (ir_lex_at_end(lx));
    lx->bad = false;
    return true;
}

void
ir_lex_end(ir_lexer *lx)
{
    if (!ir_lex_at_end(lx))
        ir_lex_fail(lx, NULL, "expected the end of the line");
}

/* ---- words ---- */

bool
ir_lex_eat(ir_lexer *lx, const char *punctuation)
{
    size_t n = strlen(punctuation);
    if (lx->bad || strncmp(lx->p, punctuation, n))
        return false;
    lx->p += n;
    ir_lex_blank(lx);
    return true;
}

void
ir_lex_want(ir_lexer *lx, const char *punctuation)
{
    if (!ir_lex_eat(lx, punctuation))
        ir_lex_fail(lx, NULL, "expected '%s'", punctuation);
}

static const char *
take(ir_lexer *lx, size_t n, const char *what)
{
    if (lx->bad || !n) {
        ir_lex_fail(lx, NULL, "expected %s", what);
        return "";
    }
    const char *s = ef_internn(lx->m->ctx, lx->p, n);
    lx->p += n;
    ir_lex_blank(lx);
    return s;
}

const char *
ir_lex_word(ir_lexer *lx, const char *what)
{
    size_t n = 0;
    while (isalnum((unsigned char)lx->p[n]) || lx->p[n] == '_')
        n++;
    return take(lx, n, what);
}

const char *
ir_lex_name(ir_lexer *lx, char sigil, const char *what)
{
    if (sigil && (lx->bad || *lx->p != sigil)) {
        ir_lex_fail(lx, NULL, "expected %s", what);
        return "";
    }
    lx->p += sigil != 0;
    size_t n = 0;
    while (ir_name_char(lx->p[n]))
        n++;
    return take(lx, n, what);
}

int64_t
ir_lex_int(ir_lexer *lx, int64_t least)
{
    const char *at = lx->p;
    size_t n = *at == '-';
    if (lx->bad || !isdigit((unsigned char)at[n])) {
        ir_lex_fail(lx, at, "expected an integer");
        return least;
    }
    char *end;
    errno = 0;
    long long v = strtoll(at, &end, 10);
    if (errno || v < least)
        ir_lex_fail(lx, at, "expected an integer from %" PRId64 " to %" PRId64, least,
                    INT64_MAX);
    lx->p = end;
    ir_lex_blank(lx);
    return lx->bad ? least : v;
}

double
ir_lex_float(ir_lexer *lx)
{
    char s[64];
    size_t n = 0;
    const char *at = lx->p;
    while (isalnum((unsigned char)at[n]) || (at[n] && strchr("+-.", at[n])))
        n++;
    bool word = n < sizeof s && !lx->bad;
    if (word) {
        memcpy(s, at, n);
        s[n] = '\0';
    }
    char *end = s;
    double v = 0;
    bool special =
        word && (!strcmp(s, "inf") || !strcmp(s, "-inf") || !strcmp(s, "nan"));
    if (special || (word && n && strspn(s, "0123456789+-.eE") == n))
        v = strtod(s, &end);
    if (!word || !n || end != s + n)
        ir_lex_fail(lx, at, "expected a number");
    lx->p += lx->bad ? 0 : n;
    ir_lex_blank(lx);
    return v;
}

static int
hex(char c)
{
    return isdigit((unsigned char)c) ? c - '0'
           : c >= 'a' && c <= 'f'    ? c - 'a' + 10
                                     : -1;
}

/* One character behind a backslash at p; 0: none that we write. */
static char
escape(const char **p)
{
    const char *s = *p;
    if (*s == '"' || *s == '\\') {
        *p += 1;
        return *s;
    }
    if (*s != 'x' || hex(s[1]) < 0 || hex(s[2]) < 0)
        return 0;
    *p += 3;
    return (char)(hex(s[1]) * 16 + hex(s[2]));
}

const char *
ir_lex_quoted(ir_lexer *lx, const char *what)
{
    if (lx->bad || *lx->p != '"') {
        ir_lex_fail(lx, NULL, "expected %s in quotes", what);
        return "";
    }
    ef_buf b = {.arena = lx->m->arena};
    ef_puts(&b, "");
    const char *p = lx->p + 1;
    while (*p && *p != '"' && *p != '\n') {
        char c = *p++;
        const char *at = p - 1;
        if (c == '\\' && !(c = escape(&p))) {
            ir_lex_fail(lx, at, "expected \\\\, \\\" or \\x and two of 0-9a-f, not 00");
            return "";
        }
        ef_putn(&b, &c, 1);
    }
    if (*p != '"') {
        ir_lex_fail(lx, NULL, "expected a closing quote on this line");
        return "";
    }
    lx->p = p + 1;
    ir_lex_blank(lx);
    return ef_intern(lx->m->ctx, b.s);
}

const char *
ir_lex_loc(ir_lexer *lx)
{
    return ir_lex_eat(lx, "!") ? ir_lex_quoted(lx, "a node's name") : NULL;
}

int
ir_lex_choice(ir_lexer *lx, const char *what, int n, const char *const *table)
{
    const char *at = lx->p, *s = ir_lex_word(lx, what);
    for (int i = 0; i < n; i++)
        if (table[i] && !strcmp(table[i], s))
            return i;
    ir_lex_fail(lx, at, "expected %s, found '%s'", what, s);
    return 0;
}

/* ---- types ---- */

ir_dtype
ir_lex_dtype(ir_lexer *lx)
{
    const char *table[IR_NDTYPES];
    for (int i = 0; i < IR_NDTYPES; i++)
        table[i] = ir_dtypes[i].name;
    return (ir_dtype)ir_lex_choice(lx, "an element type", IR_NDTYPES, table);
}

static uint8_t
symbol(ir_lexer *lx)
{
    if (!isalpha((unsigned char)*lx->p))
        return IR_FIXED;
    static const char *const table[] = {NULL, "rows", "sup"};
    int sym = ir_lex_choice(lx, "rows or sup", EF_COUNT(table), table);
    ir_lex_want(lx, ":");
    return (uint8_t)sym;
}

const ir_type *
ir_lex_type(ir_lexer *lx)
{
    const char *at = lx->p;
    ir_type t = {.dtype = ir_lex_dtype(lx)};
    if (t.dtype != IR_FUT || lx->bad) {
        ir_lex_want(lx, "[");
        while (!lx->bad && *lx->p != ']') {
            if (t.rank == IR_MAX_RANK) {
                ir_lex_fail(lx, NULL, "expected at most %d dimensions", IR_MAX_RANK);
                break;
            }
            t.sym[t.rank] = symbol(lx);
            t.dim[t.rank++] = ir_lex_int(lx, 0);
            if (*lx->p != ']')
                ir_lex_want(lx, ",");
        }
        ir_lex_want(lx, "]");
        t.sharded = ir_lex_eat(lx, "/dp");
        if (!lx->bad && !ir_dims_ok(t.rank, t.dim))
            ir_lex_fail(lx, at, "expected a tensor of at most 2^40 elements");
    }
    if (lx->bad)
        t = (ir_type){.dtype = IR_F32};
    return ir_type_intern(lx->m->ctx, &t);
}
