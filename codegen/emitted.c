/* emitted.c -- emitted text, looked at once more: what a line was written for.
 *
 * Lines of the IR stand in comments above the code, as cg_comment() folds them.
 */
#include "emitted.h"

#include <ctype.h>
#include <string.h>

static const char *
next_line(const char *s)
{
    s = strchr(s, '\n');
    return s ? s + 1 : NULL;
}

const char *
cg_line_at(const char *text, unsigned n)
{
    while (text && --n)
        text = next_line(text);
    return text;
}

static const char *
skip_space(const char *s)
{
    return s + strspn(s, " ");
}

/* Text of the comment that starts at s, unfolded. */
static const char *
comment_text(ef_arena *a, const char *s, const char *end)
{
    ef_buf b = {.arena = a};
    for (s += strlen("/*"); s < end;) {
        size_t n = strcspn(s, "\n");
        n = s + n > end ? (size_t)(end - s) : n;
        ef_putn(&b, s, n);
        s = skip_space(s + n + 1);
        s += *s == '*' && s < end;
    }
    while (b.n && isspace((unsigned char)b.s[b.n - 1]))
        b.s[--b.n] = 0;
    return b.n ? skip_space(b.s) : "";
}

/* Has the comment names of values? */
static bool
is_ir(const char *s, const char *end)
{
    for (; s < end; s++)
        if ((*s == '%' || *s == '$') && s[-1] == ' ' && isalnum((unsigned char)s[1]))
            return true;
    return false;
}

const char *
cg_ir_above(ef_arena *a, const char *text, const char *at)
{
    const char *found = NULL, *end = NULL;
    for (const char *p = text; p && p < at; p = next_line(p)) {
        const char *s = skip_space(p);
        const char *stop = strncmp(s, "/* ", 3) ? NULL : strstr(s, "*/");
        if (stop && s < at && is_ir(s, stop)) {
            found = s;
            end = stop;
        }
    }
    return found ? comment_text(a, found, end) : "";
}

const char *
cg_onnx_node(ef_arena *a, const char *ir)
{
    const char *s = strstr(ir, "!\"");
    const char *end = s ? strchr(s + 2, '"') : NULL;
    return end ? ef_strndup(a, s + 2, (size_t)(end - s - 2)) : NULL;
}
