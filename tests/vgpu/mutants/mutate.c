/* mutate.c -- sources with every mutant in them, one of which a number switches on.
 *
 *     mutate FIRST OUT LIST SEEDED FILE..
 *
 * Writes a copy of each FILE into the folder OUT, and a line for each mutant to LIST: number, file,
 * function, what it is, with tabs between them. Numbers are above FIRST, and NUMBERS apart for each file. A copy is the file as it was as long as mutant(i)
 * is false for all i: a statement that mutant i leaves out stands behind `if (!mutant(i))`, and once
 * more behind `if (mutant(i))` where another puts it. So all mutants are compiled at once, and lines
 * keep their numbers.
 *
 * The rules: each statement of `ordering` is left out, moved down over the statement behind it
 * and up over the one before, as long as that is in its block; each wait for copies lets one group
 * more go on; each assignment of 0 to shared memory is left out; each stream of a call is another
 * one. SEEDED adds replacements: FILE@FUNCTION@WHAT@OLD@NEW, where OLD occurs in one line. What the
 * rules know of the sources' form is clang-format's: a statement ends where indentation comes
 * back. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_LINES = 2000,
    MOST_NAMES = 40,
    NUMBERS = 100,
    MOST_MUTANTS = NUMBERS - 1,
    TEXT = 1000
};

typedef struct line {
    char *old, *text; /* as it was; with replacements */
    char *before, *behind;
    bool comment; /* or empty, or a # directive: no part of a statement */
    int indent;
} line;

typedef struct source {
    const char *name;
    line line[MOST_LINES];
    int n;
    char *shared[MOST_NAMES]; /* names of arrays in shared memory */
    int nshared;
    char *names[MOST_MUTANTS];
    int nnames;
} source;

static int mutants;
static FILE *list;
static const char *const ordering[] = {
    "__syncthreads(",
    "__syncwarp(",
    "__threadfence",
    "rt_copy_commit(",
    "rt_copy_wait<",
    "cudaEventRecord(",
    "cudaStreamWaitEvent(",
    "cudaStreamSynchronize(",
    "cudaEventSynchronize(",
    "cudaDeviceSynchronize(",
    "cudaMemset(",
    "cudaMemsetAsync(",
    "    rt_zero(",
    "rt_await(s",
    "rt_mark(s",
};

static void
fail(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    fputs("mutate: ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

static char *
format(const char *f, ...)
{
    char *s;
    va_list ap;
    va_start(ap, f);
    if (vasprintf(&s, f, ap) < 0)
        fail("out of memory");
    va_end(ap);
    return s;
}

/* ---- lines and statements ---- */

static void
read_source(source *s, const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    bool inside = false;
    if (!f)
        fail("can't read %s", path);
    s->name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    while (getline(&text, &room, f) > 0) {
        line *l = &s->line[s->n++];
        if (s->n == MOST_LINES)
            fail("%s is too long", path);
        text[strcspn(text, "\n")] = 0;
        *l = (line){
            .old = strdup(text), .text = strdup(text), .before = "", .behind = ""};
        l->indent = (int)strspn(text, " ");
        const char *code = text + l->indent;
        l->comment = inside || !*code || *code == '#' || !strncmp(code, "/*", 2);
        if (!strncmp(code, "/*", 2))
            inside = true;
        if (strstr(code, "*/"))
            inside = false;
    }
    free(text);
    fclose(f);
}

/* The line's code without the comment at its end. */
static char *
code_of(const line *l)
{
    char *code = strdup(l->old + l->indent), *comment = strstr(code, "/*");
    if (comment)
        *comment = 0;
    for (size_t n = strlen(code); n && isspace((unsigned char)code[n - 1]); n--)
        code[n - 1] = 0;
    return code;
}

static bool
ends_with(const line *l, const char *any)
{
    char *code = code_of(l);
    bool does = *code && strchr(any, code[strlen(code) - 1]);
    free(code);
    return does;
}

/* The nearest line of code in a direction; -1 or n: none. */
static int
next_code(const source *s, int i, int step)
{
    for (i += step; i >= 0 && i < s->n && s->line[i].comment; i += step)
        ;
    return i;
}

static bool
starts(const line *l, const char *word)
{
    return !strncmp(l->old + l->indent, word, strlen(word));
}

/* Is the line the head of an if, a loop or an else whose body has no braces? */
static bool
heads_one(const source *s, int i)
{
    const line *l = &s->line[i];
    if (starts(l, "else"))
        return !ends_with(l, "{;");
    while (i > 0 && !starts(&s->line[i], "if ") && !starts(&s->line[i], "for ") &&
           !starts(&s->line[i], "while ")) {
        int before = next_code(s, i, -1);
        if (before < 0 || s->line[before].indent >= s->line[i].indent ||
            ends_with(&s->line[before], ";{}"))
            return false;
        i = before;
    }
    return ends_with(l, ")");
}

/* The last line of the statement that begins in line i. */
static int
statement_end(const source *s, int i)
{
    int indent = s->line[i].indent, end = i;
    for (int j = next_code(s, i, 1); j < s->n; j = next_code(s, j, 1)) {
        const line *l = &s->line[j];
        if (l->indent < indent ||
            (l->indent == indent && !starts(l, "}") && !starts(l, "else")))
            break;
        end = j;
    }
    return end;
}

/* The first line of the statement of which line i is a part, in the block of `indent`. */
static int
statement_start(const source *s, int i, int indent)
{
    while (i >= 0 && (s->line[i].indent > indent || starts(&s->line[i], "}") ||
                      starts(&s->line[i], "else")))
        i = next_code(s, i, -1);
    return i;
}

/* The name of the function that line i is in: of the last line of { only, what stands before. */
static char *
function_of(const source *s, int i)
{
    while (i >= 0 && strcmp(s->line[i].old + s->line[i].indent, "{"))
        i--;
    for (i--; i >= 0 && !s->line[i].comment && !ends_with(&s->line[i], ";{}"); i--) {
        char *code = code_of(&s->line[i]), *bounds = strstr(code, "__launch_bounds__(");
        char *open = strchr(bounds ? bounds + strcspn(bounds, ")") : code, '(');
        if (open == code)
            open = NULL;
        char *name = open;
        while (name && name > code &&
               (isalnum((unsigned char)name[-1]) || name[-1] == '_'))
            name--;
        if (name && name < open && strncmp(name, "__launch", 8))
            return strndup(name, (size_t)(open - name));
        free(code);
    }
    return strdup("-");
}

/* Code of lines [i, end], one space between them. */
static char *
joined(const source *s, int i, int end)
{
    char *all = strdup("");
    for (; i <= end; i++) {
        char *code = code_of(&s->line[i]),
             *more = format("%s%s%s", all, *all ? " " : "", code);
        free(code);
        free(all);
        all = more;
    }
    return all;
}

/* ---- mutants ---- */

/* A number, and a name: what is the same as one before gets a count. */
static int
add_mutant(source *s, int at, const char *what)
{
    char *function = function_of(s, at), *name = format("%s\t%.110s", function, what);
    int same = 1;
    for (int i = 0; i < s->nnames; i++)
        same += !strcmp(s->names[i], name);
    if (s->nnames == MOST_MUTANTS)
        fail("%s has too many mutants", s->name);
    s->names[s->nnames++] = name;
    fprintf(list, "%d\t%s\t%s", ++mutants, s->name, name);
    fprintf(list, same > 1 ? " (%d)\n" : "\n", same);
    free(function);
    return mutants;
}

static void
append(char **to, const char *more)
{
    *to = format("%s%s", *to, more);
}

/* Does the code declare a word of `statement`? */
static bool
declares_part(const char *code, const char *statement)
{
    char type[TEXT], name[TEXT];
    if (sscanf(code, "%999[A-Za-z0-9_] %*[*]%999[A-Za-z0-9_]", type, name) != 2 &&
        sscanf(code, "%999[A-Za-z0-9_] %999[A-Za-z0-9_]", type, name) != 2)
        return false;
    return strcmp(type, "return") && strstr(statement, name);
}

/* Statement [i, end] again, behind line `to`, as a mutant. */
static int
move_statement(source *s, int i, int end, int to, const char *what)
{
    char *statement = joined(s, i, end);
    int id = add_mutant(s, i, what);
    append(&s->line[to].behind, format(" if (mutant(%d)) { %s }", id, statement));
    free(statement);
    return id;
}

/* Leaves out [i, end], and moves it where it can be; the condition under which it stands. */
static char *
order_mutants(source *s, int i, int end)
{
    int before = next_code(s, i, -1), next = next_code(s, end, 1),
        indent = s->line[i].indent;
    char *code = joined(s, i, end);
    int near = statement_start(s, before, indent);
    if (near < 0 || s->line[near].indent != indent)
        near = before;
    char *when = format(
        "!mutant(%d)",
        add_mutant(s, i, format("no %s behind %s", code, code_of(&s->line[near]))));
    if (before >= 0 && heads_one(s, before))
        return when;
    if (next < s->n && s->line[next].indent == indent && !starts(&s->line[next], "}") &&
        !starts(&s->line[next], "return")) {
        int last = statement_end(s, next);
        char *over = code_of(&s->line[next]);
        append(&when, format(" && !mutant(%d)",
                             move_statement(s, i, end, last,
                                            format("%s down over %s", code, over))));
    }
    int first = before < 0 ? -1 : statement_start(s, before, indent);
    if (first > 0 && s->line[first].indent == indent) {
        char *over = code_of(&s->line[first]);
        int behind = first - 1;
        while (s->line[behind].comment && *s->line[behind].old == '#')
            behind--;
        if (!declares_part(over, code))
            append(&when, format(" && !mutant(%d)",
                                 move_statement(s, i, end, behind,
                                                format("%s up over %s", code, over))));
    }
    return when;
}

static void
guard(source *s, int i, int end, const char *when)
{
    s->line[i].before = format("{ if (%s) { ", when);
    s->line[end].behind = format(" } }%s", s->line[end].behind);
}

/* The whole statement that line i is a part of. */
static void
find_statement(const source *s, int i, int *first, int *end)
{
    *first = *end = i;
    for (int b; !ends_with(&s->line[*end], ";"); *end = b)
        b = next_code(s, *end, 1);
    for (int b = next_code(s, i, -1);
         b >= 0 && !ends_with(&s->line[b], ";{}") && !heads_one(s, b);
         b = next_code(s, b, -1))
        *first = b;
}

static void
order_line(source *s, int i)
{
    int first, end;
    const char *code = s->line[i].old;
    bool is = false;
    for (size_t k = 0; k < sizeof ordering / sizeof *ordering; k++)
        is = is || strstr(code, ordering[k]);
    if (!is || s->line[i].indent == 0)
        return;
    find_statement(s, i, &first, &end);
    char *when = order_mutants(s, first, end);
    guard(s, first, end, when);
    const char *wait = strstr(code, "rt_copy_wait<");
    if (wait) {
        int left = atoi(strchr(wait, '<') + 1) + 1;
        int id = add_mutant(
            s, i, format("rt_copy_wait<%d>() for %s", left, code_of(&s->line[i])));
        s->line[i].text = format("if (mutant(%d)) rt_copy_wait<%d>(); else %s", id,
                                 left, s->line[i].text + s->line[i].indent);
    }
}

/* ---- shared memory that becomes 0 ---- */

static void
note_shared(source *s, const char *code)
{
    const char *p = strstr(code, "__shared__ ");
    if (!p || !strchr(p, '['))
        return;
    for (p = strchr(strchr(p, ' ') + 1, ' '); p && s->nshared < MOST_NAMES;) {
        p += strspn(p, " ");
        s->shared[s->nshared++] = strndup(p, strcspn(p, "[,;"));
        p = strchr(p, ',');
        p = p ? p + 1 : NULL;
    }
}

static void
zero_line(source *s, int i)
{
    char *code = code_of(&s->line[i]);
    const char *tail = " = 0;";
    size_t n = strlen(code);
    bool zeroes = n > strlen(tail) && !strcmp(code + n - strlen(tail), tail);
    for (int k = 0; zeroes && k < s->nshared; k++) {
        size_t name = strlen(s->shared[k]);
        if (strncmp(code, s->shared[k], name) || code[name] != '[')
            continue;
        guard(s, i, i, format("!mutant(%d)", add_mutant(s, i, format("no %s", code))));
        break;
    }
    free(code);
}

/* ---- streams ---- */

/* Is what stands at `at` of the code an argument or what is returned: no address, no test? */
static bool
is_passed(const char *code, const char *at, const char *end)
{
    const char *open = code + strspn(code, " ");
    if (!*end || !strchr(",);", *end) || strchr(code, '{') ||
        (at > code && at[-1] == '&'))
        return false;
    return strncmp(open, "if (s->", 7) != 0;
}

/* Replaces [at, end) of the line's text by a choice of it and `other`. */
static char *
choice(line *l, char *at, char *end, const char *other, int id)
{
    char *head = strndup(l->text, (size_t)(at - l->text));
    char *old = strndup(at, (size_t)(end - at));
    char *new = format("(mutant(%d) ? %s : %s)", id, other, old);
    size_t next = strlen(head) + strlen(new);
    l->text = format("%s%s%s", head, new, end);
    return l->text + next;
}

static void
stream_line(source *s, int i)
{
    static const char *const field[] = {"stream", "gather", "scatter"};
    line *l = &s->line[i];
    for (int k = 0; k < 3; k++)
        for (char *p = l->text; (p = strstr(p, format("s->%s", field[k])));) {
            char *end = p + 3 + strlen(field[k]), *at = p;
            p = end;
            while (at > l->text &&
                   (isalnum((unsigned char)at[-1]) || strchr("_->.", at[-1])))
                at--;
            if (!is_passed(l->text, at, end))
                continue;
            const char *other = field[k == 0 ? 1 : 0];
            int first, last;
            find_statement(s, i, &first, &last);
            char *base = strndup(at, (size_t)(end - at) - strlen(field[k]));
            char *what = format("%s%s in %s", base, other, joined(s, first, last));
            p = choice(l, at, end, format("%s%s", base, other), add_mutant(s, i, what));
        }
}

/* Kernels of an emitted program. */
static void
emitted_line(source *s, int i)
{
    static const char call[] = "rt_cuda_stream(st)";
    line *l = &s->line[i];
    char *at = strstr(l->text, call);
    if (at)
        choice(l, at, at + strlen(call), "(cudaStream_t)0",
               add_mutant(s, i, format("the legacy stream in %s", code_of(l))));
}

/* ---- seeded mutants ---- */

static char *
field_of(char **p)
{
    char *f = strsep(p, "@");
    if (!f)
        fail("a line of seeded mutants has too few fields");
    return f;
}

static void
seed_line(source *s, int i, const char *what, const char *old, const char *new)
{
    line *l = &s->line[i];
    char *at = strstr(l->text, old), *end = at + strlen(old);
    int id = add_mutant(s, i, format("seeded: %s", what));
    if (old[strlen(old) - 1] != ';') {
        choice(l, at, end, new, id);
        return;
    }
    char *head = strndup(l->text, (size_t)(at - l->text));
    l->text =
        format("%s{ if (mutant(%d)) { %s } else { %s } }%s", head, id, new, old, end);
}

static void
seed_mutants(source *s, const char *path)
{
    FILE *f = fopen(path, "r");
    char text[TEXT];
    if (!f)
        fail("can't read %s", path);
    while (fgets(text, sizeof text, f)) {
        char *p = text, *file, *function, *what, *old;
        text[strcspn(text, "\n")] = 0;
        if (*text == '#' || !*text)
            continue;
        file = field_of(&p), function = field_of(&p), what = field_of(&p),
        old = field_of(&p);
        const char *new = p ? p : "";
        bool found = false;
        if (strcmp(file, s->name))
            continue;
        for (int i = 0; i < s->n && !found; i++) {
            found = !s->line[i].comment && strstr(s->line[i].text, old) &&
                    !strcmp(function_of(s, i), function);
            if (found)
                seed_line(s, i, what, old, new);
        }
        if (!found) /* the sources went on: whoever reads the list says so */
            fprintf(list, "0\t%s\t%s\tstale: %s\n", file, function, what);
    }
    fclose(f);
}

/* ---- */

/* A file that is as it should be stays: nothing need be compiled again. */
static void
write_source(const source *s, const char *folder)
{
    char *path = format("%s/%s", folder, s->name), *text = NULL, *is = NULL;
    size_t n = 0, room = 0;
    FILE *f = open_memstream(&text, &n);
    for (int i = 0; f && i < s->n; i++)
        fprintf(f, "%s%s%s\n", s->line[i].before, s->line[i].text, s->line[i].behind);
    if (!f || fclose(f))
        fail("out of memory");
    f = fopen(path, "r");
    ssize_t got = f ? getdelim(&is, &room, 0, f) : -1;
    if (f)
        fclose(f);
    if (got != (ssize_t)n || memcmp(is, text, n)) {
        f = fopen(path, "w");
        if (!f || fwrite(text, 1, n, f) != n || fclose(f))
            fail("can't write %s", path);
    }
    free(path);
    free(text);
    free(is);
}

int
main(int argc, char **argv)
{
    static source s;
    if (argc < 6)
        fail("usage: mutate FIRST OUT LIST SEEDED FILE..");
    list = fopen(argv[3], "w");
    if (!list)
        fail("can't write %s", argv[3]);
    for (int k = 5; k < argc; k++) {
        memset(&s, 0, sizeof s);
        mutants = atoi(argv[1]) + (k - 5) * NUMBERS;
        read_source(&s, argv[k]);
        for (int i = 0; i < s.n; i++)
            if (!s.line[i].comment)
                note_shared(&s, s.line[i].old);
        for (int i = 0; i < s.n; i++)
            if (!s.line[i].comment) {
                order_line(&s, i);
                zero_line(&s, i);
            }
        for (int i = 0; i < s.n; i++)
            if (!s.line[i].comment) {
                stream_line(&s, i);
                emitted_line(&s, i);
            }
        seed_mutants(&s, argv[4]);
        write_source(&s, argv[2]);
    }
    return fclose(list) ? 1 : 0;
}
