/* data_json.c -- one line of JSON, read in one pass.
 *
 * It takes exactly the texts of RFC 8259, in UTF-8, nested up to DEEPEST: numbers and lists
 * of numbers under the keys that rows have become numbers, all else is only checked. A
 * general parser makes an object a number, which is most of the time that a large file takes.
 *
 * Functions get the place where a value begins and return the place behind it, or NULL after
 * noting what is wrong where.
 */
#include "data_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 1000 };

typedef struct text {
    const char *at_fault, *wrong;
    rt_json *row;
    const rt_data_spec *spec;
} text;

static const char *
wrong(text *t, const char *at, const char *what)
{
    t->at_fault = at;
    t->wrong = what;
    return NULL;
}

static const char *
space(const char *s)
{
    while (*s == ' ' || *s == '\t' || *s == '\r' || *s == '\n')
        s++;
    return s;
}

/* ---- strings ---- */

/* Bytes of the UTF-8 character at s, a lead byte of 0x80 or more; 0: it is none. */
static int
utf8(const unsigned char *s)
{
    int n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool longer = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] > 0x9f;
    bool beyond = s[0] == 0xf4 && s[1] > 0x8f;
    return longer || surrogate || beyond ? 0 : n;
}

/* The code unit of \uXXXX at its first digit; -1: it is none. */
static int
unit(const char *s)
{
    int x = 0;
    for (int i = 0; i < 4; i++) {
        int c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        x = 16 * x + digit;
    }
    return x;
}

/* The escape at s, behind the backslash. *c: its character if that is ASCII, else '?'. */
static const char *
escape(text *t, const char *s, char *c)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known = *s ? strchr(from, *s) : NULL;
    if (known) {
        *c = to[known - from];
        return s + 1;
    }
    int x = *s == 'u' ? unit(s + 1) : -1;
    if (x < 0)
        return wrong(t, s, "no such escape in a string");
    *c = x > 0 && x < 0x80 ? (char)x : '?';
    return s + 5;
}

/* The string whose first character s is at, behind the quote. out: NULL, or gets as much of
 * it as a key has room for. */
static const char *
string(text *t, const char *s, char *out)
{
    size_t n = 0;
    while (*s != '"') {
        unsigned char byte = (unsigned char)*s;
        char c = *s;
        int more = 1;
        if (byte < 0x20)
            return wrong(t, s,
                         byte ? "a control character in a string"
                              : "the string does not end");
        if (byte >= 0x80 && !(more = utf8((const unsigned char *)s)))
            return wrong(t, s, "a byte that is not UTF-8");
        if (c == '\\') {
            if (!(s = escape(t, s + 1, &c)))
                return NULL;
            more = 1, s--;
        }
        for (int i = 0; i < more && out && n + 1 < RT_KEY; i++)
            out[n++] = i ? s[i] : c;
        s += more;
    }
    if (out)
        out[n] = 0;
    if (n + 1 == RT_KEY) /* a name of that length is none of ours */
        memcpy(out + n - 3, "...", 3);
    return s + 1;
}

/* ---- numbers ---- */

static bool
digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *
digits(const char *s)
{
    while (digit(*s))
        s++;
    return s;
}

static const char *
number(text *t, const char *s, double *x)
{
    const char *start = s, *first = s += *s == '-';
    int64_t whole = 0;
    if (!digit(*s))
        return wrong(t, start, "not a JSON value");
    if (*s == '0')
        s++;
    else
        for (; digit(*s); s++)
            whole = s - first < 16 ? 10 * whole + (*s - '0') : 0;
    if (*s != '.' && *s != 'e' && *s != 'E' && s - first <= 15) {
        *x = (double)(*start == '-' ? -whole : whole);
        return s;
    }
    if (*s == '.') {
        if (!digit(*++s))
            return wrong(t, s, "a digit must follow the point");
        s = digits(s);
    }
    if (*s == 'e' || *s == 'E') {
        s += s[1] == '+' || s[1] == '-' ? 2 : 1;
        if (!digit(*s))
            return wrong(t, s, "an exponent without digits");
        s = digits(s);
    }
    *x = strtod(start, NULL);
    return s;
}

/* ---- values ---- */

/* A scalar: *x is a number, or NaN; *kind RT_J_NUMBER for numbers and null. */
static const char *
scalar(text *t, const char *s, double *x, rt_json_kind *kind)
{
    static const char *const word[] = {"null", "true", "false"};
    *x = NAN;
    *kind = RT_J_OTHER;
    if (*s == '"')
        return string(t, s + 1, NULL);
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(word[i]);
        if (*s != word[i][0] || strncmp(s, word[i], n))
            continue;
        *kind = i ? RT_J_OTHER : RT_J_NUMBER;
        return s + n;
    }
    *kind = RT_J_NUMBER;
    return number(t, s, x);
}

/* Behind "key": of an object; s is at the quote. */
static const char *
key(text *t, const char *s, char *out)
{
    if (*s != '"')
        return wrong(t, s, "a key in quotes is missing");
    if (!(s = string(t, s + 1, out)))
        return NULL;
    s = space(s);
    return *s == ':' ? space(s + 1) : wrong(t, s, "':' is missing");
}

/* Behind what may follow a value: brackets that close, a comma. The stack of open brackets
 * is open[0..*depth). */
static const char *
close_brackets(text *t, const char *s, const char *open, int *depth)
{
    s = space(s);
    while (*depth && *s == (open[*depth - 1] == '[' ? ']' : '}')) {
        --*depth;
        s = space(s + 1);
    }
    if (!*depth)
        return s;
    if (*s != ',')
        return wrong(t, s,
                     *s ? "',' or a bracket is missing" : "the line ends too soon");
    s = space(s + 1);
    return open[*depth - 1] == '{' ? key(t, s, NULL) : s;
}

/* Any value, without recursion. */
static const char *
skip(text *t, const char *s)
{
    char open[DEEPEST];
    int depth = 0;
    double x;
    rt_json_kind kind;
    do {
        bool list = *s == '[', opens = list || *s == '{';
        if (opens && depth == DEEPEST)
            return wrong(t, s, "nested too deeply");
        if (opens) {
            open[depth++] = *s;
            s = space(s + 1);
            if (*s == (list ? ']' : '}'))
                s = close_brackets(t, s, open, &depth);
            else if (!list)
                s = key(t, s, NULL);
            if (!s)
                return NULL;
            continue; /* with the first element, or with what follows the empty one */
        }
        if (!(s = scalar(t, s, &x, &kind)) || !(s = close_brackets(t, s, open, &depth)))
            return NULL;
    } while (depth);
    return s;
}

static const char *
list(text *t, const char *s, rt_item *item)
{
    s = space(s + 1);
    item->kind = RT_J_LIST;
    item->odd = -1;
    item->n = 0;
    if (*s == ']')
        return s + 1;
    for (;; s = space(s + 1)) {
        rt_json_kind kind = RT_J_OTHER;
        double x = NAN;
        if (item->n == item->cap) {
            item->cap = 2 * item->cap + 256;
            item->x = rt_grow(item->x, (size_t)item->cap * sizeof *item->x);
        }
        if (digit(*s))
            kind = RT_J_NUMBER, s = number(t, s, &x);
        else
            s = *s == '[' || *s == '{' ? skip(t, s) : scalar(t, s, &x, &kind);
        if (!s)
            return NULL;
        if (kind == RT_J_OTHER && item->odd < 0)
            item->odd = item->n;
        item->x[item->n++] = x;
        s = space(s);
        if (*s == ']')
            return s + 1;
        if (*s != ',')
            return wrong(t, s, *s ? "',' or ']' is missing" : "the line ends too soon");
    }
}

/* ---- the object ---- */

static rt_item *
item_of(text *t, const char *name)
{
    for (int f = 0; f < RT_NFIELDS; f++)
        if (!strcmp(name, rt_field_name((rt_field)f)))
            return &t->row->item[f];
    for (int f = 0; f < RT_NFIELDS; f++)
        if (t->spec->other[f] && !strcmp(name, t->spec->other[f]))
            return &t->row->item[RT_NFIELDS + f];
    if (t->row->nunknown < RT_KEYS)
        memcpy(t->row->unknown[t->row->nunknown++], name, RT_KEY);
    return NULL;
}

static const char *
member(text *t, const char *s)
{
    char name[RT_KEY] = "";
    if (!(s = key(t, s, name)))
        return NULL;
    rt_item *item = item_of(t, name);
    if (!item)
        return skip(t, s);
    item->times++;
    if (*s == '[')
        return list(t, s, item);
    if (*s == '{') {
        item->kind = RT_J_OTHER;
        item->n = 0;
        return skip(t, s);
    }
    if (!item->cap) {
        item->cap = 1;
        item->x = rt_grow(item->x, sizeof *item->x);
    }
    item->n = 1;
    return scalar(t, s, item->x, &item->kind);
}

static const char *
object(text *t, const char *s)
{
    s = space(s);
    if (*s != '{')
        return wrong(t, s, "not a JSON object");
    s = space(s + 1);
    for (bool more = *s != '}'; more; s = space(s + 1)) {
        if (!(s = member(t, s)))
            return NULL;
        s = space(s);
        more = *s == ',';
        if (!more && *s != '}')
            return wrong(t, s, *s ? "',' or '}' is missing" : "the line ends too soon");
        if (!more)
            break;
    }
    s = space(s + 1);
    return *s ? wrong(t, s, "something follows the object") : s;
}

const char *
rt_json_line(rt_json *row, const rt_data_spec *spec, const char *line, size_t n,
             size_t *column)
{
    text t = {.row = row, .spec = spec};
    for (int i = 0; i < 2 * RT_NFIELDS; i++) {
        row->item[i].kind = RT_J_ABSENT;
        row->item[i].times = 0;
    }
    row->nunknown = 0;
    const char *end = object(&t, line);
    if (end && end != line + n)
        wrong(&t, end, "a zero byte");
    *column = t.wrong ? (size_t)(t.at_fault - line) + 1 : 0;
    return t.wrong;
}

void
rt_json_free(rt_json *row)
{
    for (int i = 0; i < 2 * RT_NFIELDS; i++)
        free(row->item[i].x);
    *row = (rt_json){0};
}
