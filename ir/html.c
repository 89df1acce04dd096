/* html.c -- the IR after each pass, side by side, in one page without dependencies.
 *
 * A column per pass; a pass that changed nothing is merged with its neighbour. Lines that
 * the column to the left does not have are marked. A click on a %value or $param marks it
 * in every column and scrolls the others to where it stands, another click takes the mark
 * away.
 */
#include <string.h>

#include "ir_int.h"

static const char style[] =
    "body{margin:0;font:12px/1.4 monospace;color:#222;background:#fff}\n"
    "h1{font-size:14px;margin:8px}\n"
    "main{display:flex;align-items:flex-start;overflow-x:auto}\n"
    "section{border-left:1px solid #bbb;padding:0 8px;flex:none;position:relative;"
    "max-width:46vw;height:calc(100vh - 64px);overflow:auto}\n"
    "section.shut pre{display:none}\n"
    "h2{font-size:12px;position:sticky;top:0;background:#eee;margin:0 -8px;"
    "padding:4px 8px;cursor:pointer}\n"
    "pre{margin:4px 0}\n"
    ".new{background:#e6ffe6}\n"
    ".loc{color:#888}\n"
    "a{cursor:pointer}\n"
    "a.on{background:#ffd54d}\n";

static const char script[] =
    "document.addEventListener('click',e=>{\n"
    "  if(e.target.tagName=='H2')e.target.parentNode.classList.toggle('shut');\n"
    "  if(e.target.tagName!='A')return;\n"
    "  const name=e.target.textContent,on=!e.target.classList.contains('on');\n"
    "  for(const a of document.getElementsByTagName('a'))\n"
    "    if(a.textContent==name)a.classList.toggle('on',on);\n"
    "  const own=e.target.closest('section'),y=e.target.offsetTop-own.scrollTop;\n"
    "  for(const s of document.getElementsByTagName('section')){\n"
    "    const a=[...s.getElementsByTagName('a')].find(a=>a.textContent==name);\n"
    "    if(on&&a&&s!=own)s.scrollTo(0,a.offsetTop-y);\n"
    "  }\n"
    "});\n";

static void
put_escaped(FILE *f, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        switch (s[i]) {
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc(s[i], f);
        }
}

/* End of the string that starts at s[0] == '"', at most n. */
static size_t
quoted_length(const char *s, size_t n)
{
    size_t i = 1;
    while (i < n && s[i] != '"')
        i += s[i] == '\\' ? 2 : 1;
    return i < n ? i + 1 : n;
}

static size_t
name_length(const char *s, size_t n)
{
    size_t i = 1;
    while (i < n && ir_name_char(s[i]))
        i++;
    return i;
}

/* One line, names as links, locations grey. */
static void
put_line(FILE *f, const char *s, size_t n, bool is_new)
{
    fputs(is_new ? "<span class=new>" : "<span>", f);
    for (size_t i = 0, len; i < n; i += len) {
        len = 1;
        if ((s[i] == '%' || s[i] == '$') && name_length(s + i, n - i) > 1) {
            len = name_length(s + i, n - i);
            fputs("<a>", f);
            put_escaped(f, s + i, len);
            fputs("</a>", f);
        } else if (s[i] == '"') {
            len = quoted_length(s + i, n - i);
            fputs("<span class=loc>", f);
            put_escaped(f, s + i, len);
            fputs("</span>", f);
        } else {
            put_escaped(f, s + i, 1);
        }
    }
    fputs("</span>\n", f);
}

/* The set of a text's lines. */
static ef_map
lines_of(ef_ctx *ctx, const char *text)
{
    ef_map set = {0};
    for (const char *s = text; s && *s;) {
        size_t n = strcspn(s, "\n");
        const char *line = ef_internn(ctx, s, n);
        ef_map_set(ctx->arena, &set, line, (void *)line);
        s += n + (s[n] == '\n');
    }
    return set;
}

static void
put_column(FILE *f, ef_ctx *ctx, const char *text, const char *left)
{
    ef_map before = lines_of(ctx, left);
    fputs("<pre>\n", f);
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, "\n");
        bool is_new = left && !ef_map_has(&before, ef_internn(ctx, s, n));
        put_line(f, s, n, is_new);
        s += n + (s[n] == '\n');
    }
    fputs("</pre>\n", f);
}

/* Texts i and i+1 are equal but for their first lines, which list the passes. */
static bool
unchanged(const char *a, const char *b)
{
    return !strcmp(a + strcspn(a, "\n"), b + strcspn(b, "\n"));
}

void
ir_html(FILE *f, const char *title, int n, const char *const *name,
        const char *const *ir)
{
    ef_ctx *ctx = ef_ctx_new(); /* its own: strings of the page end with it */
    fputs("<!doctype html>\n<meta charset=utf-8>\n<title>", f);
    put_escaped(f, title, strlen(title));
    fprintf(f, "</title>\n<style>\n%s</style>\n<h1>", style);
    put_escaped(f, title, strlen(title));
    fputs("</h1>\n<main>\n", f);
    const char *left = NULL;
    for (int i = 0; i < n; i++) {
        fputs("<section>\n<h2>", f);
        put_escaped(f, name[i], strlen(name[i]));
        for (; i + 1 < n && unchanged(ir[i], ir[i + 1]); i++) {
            fputs(", ", f);
            put_escaped(f, name[i + 1], strlen(name[i + 1]));
        }
        fputs("</h2>\n", f);
        put_column(f, ctx, ir[i], left);
        fputs("</section>\n", f);
        left = ir[i];
    }
    fprintf(f, "</main>\n<script>\n%s</script>\n", script);
    ef_ctx_free(ctx);
}
