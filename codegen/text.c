/* text.c -- C as text. Names, strings and comments come from model files, so each goes
 * through one of these functions: no file can end a comment or a string early.
 */
#include "cg_int.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 92 };

const char *
cg_ident(cg *c, const char *prefix, const char *name)
{
    char *s = ef_printf(c->arena, "%s%s", prefix, name);
    for (char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p))
            *p = '_';
    const char *id = ef_intern(c->ctx, s);
    for (int i = 2; ef_map_has(&c->taken, id); i++)
        id = ef_internf(c->ctx, "%s__%d", s, i);
    ef_map_set(c->arena, &c->taken, id, c);
    return id;
}

const char *
cg_string(ef_arena *a, const char *s)
{
    ef_buf b = {.arena = a};
    if (!s)
        return "NULL";
    ef_puts(&b, "\"");
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        if (ch == '"' || ch == '\\' || ch == '?') /* no trigraphs */
            ef_putf(&b, "\\%c", ch);
        else if (ch < 0x20 || ch >= 0x7f)
            ef_putf(&b, "\\%03o", ch);
        else
            ef_putn(&b, s, 1);
    }
    ef_puts(&b, "\"");
    return b.s;
}

const char *
cg_float(ef_arena *a, double x)
{
    float f = (float)x;
    if (isnan(f))
        return "NAN";
    if (isinf(f))
        return f > 0 ? "INFINITY" : "(-INFINITY)";
    char s[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, (double)f);
        if (strtof(s, NULL) == f)
            break;
    }
    const char *point = strpbrk(s, ".e") ? "" : ".0";
    return ef_printf(a, f < 0 ? "(%s%sf)" : "%s%sf", s, point);
}

const char *
cg_ints(ef_arena *a, int n, const int64_t *x)
{
    ef_buf b = {.arena = a};
    for (int i = 0; i < n; i++)
        ef_putf(&b, i ? ", %lld" : "%lld", (long long)x[i]);
    return n ? b.s : "";
}

/* End of the first line of prose: behind the last space that fits into room columns, or the
 * first one if none does. */
static const char *
prose_end(const char *s, size_t room)
{
    const char *end = NULL;
    for (const char *p = s; *p; p++) {
        if (*p == ' ' && (!end || (size_t)(p - s) < room))
            end = p + 1;
        if ((size_t)(p - s) >= room && end)
            return end;
    }
    return s + strlen(s);
}

typedef struct cut { /* where a line of code may end */
    const char *at;
    int depth; /* of braces */
} cut;

/* End of the line of code that starts at s: behind the last comma that fits, else the last
 * space; never inside a string or an inner pair of braces. *depth: of braces at both. */
static const char *
code_end(const char *s, size_t room, int *depth)
{
    cut comma = {0}, space = {0};
    int d = *depth;
    bool quoted = false;
    if (strlen(s) <= room)
        return s + strlen(s);
    for (const char *p = s; *p && ((size_t)(p - s) < room || !(comma.at || space.at));
         p++) {
        if (quoted && *p == '\\' && p[1])
            p++;
        else if (*p == '"')
            quoted = !quoted;
        else if (!quoted && (*p == '{' || *p == '}'))
            d += *p == '{' ? 1 : -1;
        else if (!quoted && d <= 1 && *p == ' ')
            *(p > s && p[-1] == ',' ? &comma : &space) = (cut){p, d};
    }
    cut end = comma.at ? comma : space;
    *depth = end.depth;
    return end.at ? end.at : s + strlen(s);
}

void
cg_comment(ef_buf *b, int indent, const char *text)
{
    char *s = ef_strdup(b->arena, text);
    for (char *p = s; *p; p++) {
        bool ends = (p[0] == '*' && p[1] == '/') || (p[0] == '/' && p[1] == '*');
        bool trigraph = p > s && p[-1] == '?' && *p == '?';
        if (ends || trigraph || (unsigned char)*p < 0x20)
            *p = ends || trigraph ? '.' : ' ';
    }
    size_t room = (size_t)(WIDTH - indent - 6);
    for (const char *at = s, *end; *at; at = end) {
        end = strlen(at) <= room ? at + strlen(at) : prose_end(at, room);
        ef_putf(b, "%*s%s%.*s", indent, "", at == s ? "/* " : " * ", (int)(end - at),
                at);
        while (b->n && b->s[b->n - 1] == ' ')
            b->s[--b->n] = 0;
        ef_puts(b, *end ? "\n" : " */\n");
    }
}

void
cg_code(ef_buf *b, int indent, const char *text)
{
    size_t room = (size_t)(WIDTH - indent);
    int depth = 0;
    for (const char *at = text, *end; *at; at = end) {
        int more = at == text ? 0 : 4;
        end = code_end(at, room - (size_t)more, &depth);
        ef_putf(b, "%*s%.*s\n", indent + more, "", (int)(end - at), at);
        while (*end == ' ')
            end++;
    }
}

void
cg_call(cg *c, const char *name, const char *args, ...)
{
    if (c->dry || c->why)
        return;
    va_list ap;
    va_start(ap, args);
    const char *text = ef_vprintf(c->arena, args, ap);
    va_end(ap);
    cg_code(c->out, 4, ef_printf(c->arena, "%s(st, %s);", name, text));
}

bool
cg_write(ef_ctx *ctx, const char *dir, const char *name, const ef_buf *b)
{
    const char *path = ef_printf(ctx->arena, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    if (!f)
        return ef_error(ctx, NULL, E_CG_OUTPUT, path, strerror(errno));
    bool ok = fwrite(b->s, 1, b->n, f) == b->n;
    int why = errno;
    if (fclose(f) && ok) {
        ok = false;
        why = errno;
    }
    return ok || ef_error(ctx, NULL, E_CG_OUTPUT, path, strerror(why));
}

const char *
cg_ctype(ir_dtype t)
{
    switch (t) {
    case IR_F32:
        return "float";
    case IR_F16:
        return "rt_f16";
    case IR_BF16:
        return "rt_bf16";
    case IR_I64:
        return "int64_t";
    case IR_I32:
        return "int32_t";
    case IR_I8:
        return "int8_t";
    case IR_U8:
    case IR_BOOL:
        return "uint8_t";
    default:
        return NULL;
    }
}

int
cg_size(ir_dtype t)
{
    return ir_dtypes[t].bits / 8;
}

const char *
cg_ir_line(ef_arena *a, const ir_op *op)
{
    ef_buf b = {.arena = a};
    ir_op bare = *op; /* attributes are sorted; the plan's are the last */
    while (bare.nattr && bare.attr[bare.nattr - 1].key >= IR_ATTR_kernel)
        bare.nattr--;
    ir_print_op(&bare, &b);
    const char *s = b.s;
    while (*s == ' ')
        s++;
    return s;
}
