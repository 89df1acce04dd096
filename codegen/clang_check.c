/* clang_check.c -- emitted sources are read by libclang before a compiler sees them.
 *
 * Nothing is compared by hand: clang's own checks are the comparison, and what it has to say
 * becomes a report of efficc. Only warnings that tell a wrong call are on, and they are
 * errors. Conversions that C allows between numbers are among them, since each argument is
 * emitted for one parameter: a float where a count belongs is a mistake of ours.
 *
 * CUDA is read twice, as host and as device code, against the headers of cuda_prelude/
 * instead of a toolkit's: they declare what emitted kernels may use and nothing else.
 */
#include "clang_check.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

#include "../ir/config.h"
#include "clang_lib.h"
#include "emitted.h"

enum { SHOWN = 4, FLAGS = 64, LONG = 240, SOURCE_BYTES = 1 << 28 };

#define NAME_CHARACTERS \
    "_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

static const char *const common[] = {
    "-fopenmp",
    "-D_GNU_SOURCE",
    "-ferror-limit=20",
    "-Wno-everything",
    "-Werror=float-conversion",
    "-Werror=literal-conversion",
    "-Werror=constant-conversion",
    "-Werror=enum-conversion",
    "-Werror=assign-enum",
    "-Werror=excess-initializers",
    "-Werror=undefined-internal",
    "-Werror=return-type",
};
/* What C++ takes for an error by itself. */
static const char *const c_flags[] = {
    "-std=c11",
    "-Werror=implicit-function-declaration",
    "-Werror=implicit-int",
    "-Werror=incompatible-pointer-types",
    "-Werror=pointer-sign",
    "-Werror=int-conversion",
};
/* Without the C++ library: kernels use nothing of it, and its <math.h> takes longer than all
 * the rest. sm_80: the newest that clang 14 knows well. */
static const char *const cuda_flags[] = {
    "-xcuda",     "-std=c++17",        "-nocudainc",
    "-nocudalib", "-nostdinc++",       "--cuda-gpu-arch=sm_80",
    "-I",         EFFICC_CUDA_PRELUDE, "-D__CUDACC__", /* as under nvcc */
};

typedef struct parse { /* a file that is being read */
    ef_ctx *ctx;
    const cg_clang *clang;
    const char *path;
    const char *flag[FLAGS];
    int nflag, faults;
} parse;

typedef struct place {
    const char *file; /* "": none */
    unsigned line;
} place;

static const char *
base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *
skip_space(const char *s)
{
    return s + strspn(s, " ");
}

/* ---- what clang says ---- */

static const char *
take_string(const parse *p, CXString s)
{
    const char *text = p->clang->getCString(s);
    const char *copy = ef_strdup(p->ctx->arena, text ? text : "");
    p->clang->disposeString(s);
    return copy;
}

static place
place_at(const parse *p, CXSourceLocation location)
{
    CXFile file;
    place at;
    p->clang->getExpansionLocation(location, &file, &at.line, NULL, NULL);
    at.file = file ? take_string(p, p->clang->getFileName(file)) : "";
    return at;
}

static place
place_of(const parse *p, CXDiagnostic d)
{
    return place_at(p, p->clang->getDiagnosticLocation(d));
}

/* Does the file lie where the one that is read lies? */
static bool
is_emitted(const parse *p, const char *file)
{
    size_t n = (size_t)(base_name(p->path) - p->path);
    return !strncmp(file, p->path, n) && !strchr(file + n, '/') && file[n];
}

/* Does the line above s, in text, end a statement or a comment? */
static bool
starts_statement(const char *text, const char *s)
{
    while (s > text && isspace((unsigned char)s[-1]))
        s--;
    return s == text || strchr(";{}/>", s[-1]);
}

/* The statement that line n is part of, on one line, cut where it gets long. */
static const char *
statement_at(ef_arena *a, const char *text, unsigned n)
{
    const char *s = cg_line_at(text, n);
    ef_buf b = {.arena = a};
    while (s && n > 1 && !starts_statement(text, s) && *cg_line_at(text, n - 1) != '#')
        s = cg_line_at(text, --n);
    for (s = s ? skip_space(s) : ""; *s && b.n < LONG; s++) {
        ef_putn(&b, *s == '\n' ? " " : s, 1);
        if (*s == ';' || *s == '{')
            break;
        if (*s == '\n')
            s = skip_space(s + 1) - 1;
    }
    return b.n < LONG ? b.n ? b.s : "" : ef_printf(a, "%s...", b.s);
}

typedef struct search { /* for the declaration of a function */
    const parse *p;
    const char *name; /* "": of none */
    place found;
} search;

static enum CXChildVisitResult
compare(CXCursor c, CXCursor parent, CXClientData data)
{
    search *s = data;
    const cg_clang *clang = s->p->clang;
    (void)parent;
    if (clang->getCursorKind(c) == CXCursor_LinkageSpec)
        return CXChildVisit_Recurse;
    if (clang->getCursorKind(c) != CXCursor_FunctionDecl ||
        strcmp(take_string(s->p, clang->getCursorSpelling(c)), s->name))
        return CXChildVisit_Continue;
    s->found = place_at(s->p, clang->getCursorLocation(c));
    return CXChildVisit_Break;
}

/* Where the function that a statement calls is declared, or the kernel that it launches. */
static search
find_declaration(const parse *p, CXTranslationUnit unit, const char *statement)
{
    static const char launch[] = "RT_LAUNCH(";
    bool launches = !strncmp(statement, launch, strlen(launch));
    const char *from = statement + (launches ? strlen(launch) : 0);
    size_t n = strspn(from, NAME_CHARACTERS);
    search s = {p, "", {"", 0}};
    if (n && from[n] == (launches ? ',' : '('))
        s.name = ef_strndup(p->ctx->arena, from, n);
    if (*s.name)
        p->clang->visitChildren(p->clang->getTranslationUnitCursor(unit), compare, &s);
    return s;
}

/* Of the fault itself, or where a macro or template of a header was used. */
static place
emitted_place(const parse *p, CXDiagnostic d)
{
    place at = place_of(p, d);
    CXDiagnosticSet notes = p->clang->getChildDiagnostics(d);
    unsigned n = p->clang->getNumDiagnosticsInSet(notes);
    for (unsigned i = 0; i < n && !is_emitted(p, at.file); i++) {
        CXDiagnostic note = p->clang->getDiagnosticInSet(notes, i);
        place used = place_of(p, note);
        const char *text = take_string(p, p->clang->getDiagnosticSpelling(note));
        if (is_emitted(p, used.file) && strncmp(text, "in file included", 16))
            at = used;
    }
    return at;
}

/* What clang found; with the reason why none of the functions of a name fits. */
static const char *
said(const parse *p, CXDiagnostic d)
{
    const char *text = take_string(p, p->clang->getDiagnosticSpelling(d));
    CXDiagnosticSet notes = p->clang->getChildDiagnostics(d);
    unsigned n = p->clang->getNumDiagnosticsInSet(notes);
    for (unsigned i = 0; i < n; i++) {
        CXDiagnostic note = p->clang->getDiagnosticInSet(notes, i);
        const char *why = take_string(p, p->clang->getDiagnosticSpelling(note));
        const char *colon = strstr(why, ": ");
        if (!strncmp(why, "candidate ", 10) && colon)
            return ef_printf(p->ctx->arena, "%s%s", text, colon);
    }
    return text;
}

static void
show(const parse *p, CXTranslationUnit unit, CXDiagnostic d)
{
    ef_ctx *ctx = p->ctx;
    ef_arena *a = ctx->arena;
    size_t n;
    place at = emitted_place(p, d);
    const char *text = *at.file ? ef_read_file(a, at.file, SOURCE_BYTES, &n) : NULL;
    const char *ir = text ? cg_ir_above(a, text, cg_line_at(text, at.line)) : "";
    const char *code = text ? statement_at(a, text, at.line) : "";
    const char *what = said(p, d);
    search s = find_declaration(p, unit, code);
    ef_error(ctx, cg_onnx_node(a, ir), E_CG_CHECK,
             *at.file ? ef_printf(a, "%s:%u", base_name(at.file), at.line)
                      : base_name(p->path),
             what);
    if (*code)
        ef_note(ctx, "%s", code);
    if (*ir)
        ef_note(ctx, "written for: %s", ir);
    if (*s.found.file)
        ef_note(ctx, "%s is declared in %s:%u", s.name, s.found.file, s.found.line);
    else if (*s.name && strstr(what, s.name))
        ef_note(ctx, "no header declares %s", s.name);
}

/* Headers that this clang can't read, such as those of a newer system, are no fault of ours,
 * and what it says of the rest is worth nothing then. false: said. */
static bool
reads_headers(const parse *p, CXDiagnostic d)
{
    ef_arena *a = p->ctx->arena;
    place at = emitted_place(p, d);
    if (is_emitted(p, at.file))
        return true;
    ef_error(p->ctx, NULL, W_CG_CHECK, base_name(p->path),
             ef_printf(a, "%s:%u: %s", *at.file ? at.file : "libclang", at.line,
                       take_string(p, p->clang->getDiagnosticSpelling(d))));
    return false;
}

static void
judge(parse *p, CXTranslationUnit unit)
{
    EF_VEC(CXDiagnostic) error = {0};
    unsigned n = p->clang->getNumDiagnostics(unit);
    bool readable = true;
    for (unsigned i = 0; i < n; i++) {
        CXDiagnostic d = p->clang->getDiagnostic(unit, i);
        if (p->clang->getDiagnosticSeverity(d) >= CXDiagnostic_Error)
            ef_push(p->ctx->arena, error, d);
    }
    for (int i = 0; i < error.n && readable; i++)
        readable = reads_headers(p, error.at[i]);
    for (int i = 0; i < error.n && readable && i < SHOWN; i++)
        show(p, unit, error.at[i]);
    p->faults += readable ? error.n : 0;
    if (readable && error.n > SHOWN)
        ef_note(p->ctx, "and more in %s", base_name(p->path));
}

/* ---- reading ---- */

static void
add(parse *p, const char *flag)
{
    EF_ASSERT(p->nflag < FLAGS);
    p->flag[p->nflag++] = flag;
}

static void
add_all(parse *p, const char *const *flag, size_t n)
{
    for (size_t i = 0; i < n; i++)
        add(p, flag[i]);
}

static bool
exists(ef_ctx *ctx, const char *folder, const char *name)
{
    return !access(ef_printf(ctx->arena, "%s/%s", folder, name), R_OK);
}

/* Folders of headers. The compiler's own <stddef.h> serves where clang's are not. */
static void
add_headers(parse *p, const cg_headers *h)
{
    const char *resource = h->resource ? h->resource : EFFICC_CLANG_RESOURCE;
    if (exists(p->ctx, resource, "include/stddef.h")) {
        add(p, "-resource-dir");
        add(p, resource);
    } else {
        add(p, "-isystem");
        add(p, EFFICC_CC_INCLUDE);
    }
    add(p, "-I");
    add(p, h->runtime ? h->runtime : EFFICC_RT_INCLUDE);
}

/* Reads the file with one flag more, or none; faults are counted and said. */
static void
read_file(parse *p, const char *more)
{
    const cg_clang *clang = p->clang;
    CXTranslationUnit unit = NULL;
    int n = p->nflag;
    if (more)
        add(p, more);
    CXIndex index = clang->createIndex(0, 0);
    enum CXErrorCode code = clang->parseTranslationUnit2(
        index, p->path, p->flag, p->nflag, NULL, 0, CXTranslationUnit_KeepGoing, &unit);
    if (code)
        ef_error(p->ctx, NULL, W_CG_CHECK, base_name(p->path),
                 ef_printf(p->ctx->arena, "libclang failed with code %d", (int)code));
    else
        judge(p, unit);
    if (unit)
        clang->disposeTranslationUnit(unit);
    clang->disposeIndex(index);
    p->nflag = n;
}

bool
cg_check_file(ef_ctx *ctx, const char *path, const cg_headers *headers)
{
    parse p = {.ctx = ctx, .clang = cg_clang_load(), .path = path};
    const char *suffix = strrchr(base_name(path), '.');
    bool cuda = suffix && !strcmp(suffix, ".cu");
    if (!p.clang)
        return true;
    add_all(&p, common, EF_COUNT(common));
    if (cuda)
        add_all(&p, cuda_flags, EF_COUNT(cuda_flags));
    else
        add_all(&p, c_flags, EF_COUNT(c_flags));
    add_headers(&p, headers);
    read_file(&p, cuda ? "--cuda-host-only" : NULL);
    if (cuda && !p.faults)
        read_file(&p, "--cuda-device-only");
    return !p.faults;
}

bool
cg_check_sources(ef_ctx *ctx, const char *src)
{
    static const char *const files[] = {"step.c", "kernels.c", "kernels.cu"};
    const cg_headers own = {0};
    bool ok = true;
    for (size_t i = 0; i < EF_COUNT(files); i++)
        if (exists(ctx, src, files[i]))
            ok = cg_check_file(ctx, ef_printf(ctx->arena, "%s/%s", src, files[i]),
                               &own) &&
                 ok;
    if (!ok)
        ef_note(ctx, "the sources: %s", src);
    return ok;
}

bool
cg_checks(void)
{
    return cg_clang_load() != NULL;
}

const char *
cg_check_about(void)
{
    static char text[200];
    const cg_clang *clang = cg_clang_load();
    if (!clang)
        return "emitted sources are not checked before they are compiled: there is no "
               "library " EFFICC_LIBCLANG;
    CXString version = clang->getClangVersion();
    snprintf(text, sizeof text,
             "emitted sources are checked before they are compiled: %s",
             clang->getCString(version));
    clang->disposeString(version);
    return text;
}
