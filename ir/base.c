/* base.c -- arenas, interned strings, growing arrays, ordered maps.
 *
 * An arena is a chain of chunks; allocation moves a mark forward. After a reset the chunks
 * are used again from the first on. Under AddressSanitizer memory that is not handed out
 * is poisoned, so that a pointer kept over a reset and a write past the end are caught.
 */
#include "base.h"

#include <stdlib.h>
#include <string.h>

#include "base_int.h"
#include "diag.h"

#ifndef __has_feature /* clang's */
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
enum { GAP = 16 }; /* behind each allocation, always poisoned */
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
enum { GAP = 0 };
#endif

enum { ALIGN = 16, CHUNK = 1 << 16, MAX_CHUNK = 1 << 24 };
enum { EXIT_USER = 1, EXIT_BUG = 70 };

typedef struct chunk {
    struct chunk *next;
    size_t used, cap;
    _Alignas(ALIGN) char data[];
} chunk;

struct ef_arena {
    chunk *first, *at; /* chunks behind `at` are empty */
    size_t bytes;      /* handed out */
};

void (*ef_assert_hook)(void);

void
ef_assert_fail(const char *cond, const char *file, int line)
{
    fprintf(stderr, "efficc: internal error: %s:%d: %s\n", file, line, cond);
    void (*hook)(void) = ef_assert_hook;
    ef_assert_hook = NULL; /* the hook may fail an assertion, too */
    if (hook)
        hook();
    exit(EXIT_BUG);
}

/* ---- arena ---- */

static _Noreturn void
out_of_memory(size_t n)
{
    fprintf(
        stderr,
        "efficc: out of memory: no room for %zu bytes; where a model is compiled, a "
        "smaller --seq or --batch needs less\n",
        n);
    exit(EXIT_USER);
}

ef_arena *
ef_arena_new(void)
{
    ef_arena *a = calloc(1, sizeof *a);
    if (!a)
        out_of_memory(sizeof *a);
    return a;
}

void
ef_arena_free(ef_arena *a)
{
    for (chunk *c = a ? a->first : NULL, *next; c; c = next) {
        next = c->next;
        UNPOISON(c->data, c->cap);
        free(c);
    }
    free(a);
}

void
ef_arena_reset(ef_arena *a)
{
    for (chunk *c = a->first; c; c = c->next) {
        POISON(c->data, c->cap);
        c->used = 0;
    }
    a->at = a->first;
    a->bytes = 0;
}

size_t
ef_arena_bytes(const ef_arena *a)
{
    return a->bytes;
}

/* A chunk with room for n bytes, behind a->at; chunks grow with the arena. */
static chunk *
chunk_for(ef_arena *a, size_t n)
{
    while (a->at && a->at->next) {
        a->at = a->at->next;
        if (a->at->cap - a->at->used >= n)
            return a->at;
    }
    size_t cap = a->bytes / 2;
    cap = cap < CHUNK ? CHUNK : cap > MAX_CHUNK ? MAX_CHUNK : cap;
    cap = cap < n ? n : cap;
    chunk *c = cap <= SIZE_MAX - sizeof *c ? malloc(sizeof *c + cap) : NULL;
    if (!c)
        out_of_memory(n);
    *c = (chunk){.cap = cap};
    POISON(c->data, cap);
    if (a->at)
        a->at->next = c;
    else
        a->first = c;
    return a->at = c;
}

void *
ef_alloc(ef_arena *a, size_t n)
{
    if (n > SIZE_MAX - 2 * ALIGN - GAP)
        out_of_memory(n);
    size_t whole = n ? (n + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN;
    chunk *c = a->at;
    if (!c || c->cap - c->used < whole + GAP)
        c = chunk_for(a, whole + GAP);
    char *p = c->data + c->used;
    c->used += whole + GAP;
    a->bytes += whole;
    UNPOISON(p, n);
    memset(p, 0, n);
    return p;
}

void *
ef_dup(ef_arena *a, const void *data, size_t n)
{
    void *p = ef_alloc(a, n);
    if (n)
        memcpy(p, data, n);
    return p;
}

char *
ef_strndup(ef_arena *a, const char *s, size_t n)
{
    char *p = ef_alloc(a, n + 1);
    if (n)
        memcpy(p, s, n);
    return p;
}

char *
ef_strdup(ef_arena *a, const char *s)
{
    return ef_strndup(a, s, strlen(s));
}

char *
ef_vprintf(ef_arena *a, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    EF_ASSERT(n >= 0);
    char *s = ef_alloc(a, (size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

char *
ef_printf(ef_arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = ef_vprintf(a, fmt, ap);
    va_end(ap);
    return s;
}

void *
ef_grow(ef_arena *a, void *old, int *cap, int n, size_t size)
{
    EF_ASSERT(n < (1 << 29));
    *cap = n < 4 ? 8 : n * 2;
    void *p = ef_alloc(a, (size_t)*cap * size);
    if (n)
        memcpy(p, old, (size_t)n * size);
    return p;
}

/* ---- interning ---- */

uint64_t
ef_hash(const void *data, size_t n)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a, then mixed: slots use the low bits */
    const unsigned char *s = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static void
strings_rehash(ef_ctx *ctx)
{
    ef_interns *in = ctx->interns;
    size_t cap = in->str_cap ? in->str_cap * 2 : 1024;
    const char **slot = EF_NEWN(ctx->arena, const char *, cap);
    for (size_t i = 0; i < in->str_cap; i++) {
        if (!in->str[i])
            continue;
        size_t at = ef_hash(in->str[i], strlen(in->str[i])) & (cap - 1);
        while (slot[at])
            at = (at + 1) & (cap - 1);
        slot[at] = in->str[i];
    }
    in->str = slot;
    in->str_cap = cap;
}

const char *
ef_internn(ef_ctx *ctx, const char *s, size_t n)
{
    ef_interns *in = ctx->interns;
    if (in->nstr * 2 >= in->str_cap)
        strings_rehash(ctx);
    size_t at = ef_hash(s, n) & (in->str_cap - 1);
    for (; in->str[at]; at = (at + 1) & (in->str_cap - 1))
        if (!strncmp(in->str[at], s, n) && !in->str[at][n])
            return in->str[at];
    in->nstr++;
    return in->str[at] = ef_strndup(ctx->arena, s, n);
}

const char *
ef_intern(ef_ctx *ctx, const char *s)
{
    return ef_internn(ctx, s, strlen(s));
}

const char *
ef_internf(ef_ctx *ctx, const char *fmt, ...)
{
    char small[256];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    EF_ASSERT(n >= 0);
    const char *s = (size_t)n < sizeof small
                        ? ef_internn(ctx, small, (size_t)n)
                        : ef_intern(ctx, ef_vprintf(ctx->arena, fmt, again));
    va_end(again);
    return s;
}

/* ---- map ---- */

static size_t
hash_key(const void *key)
{
    uint64_t h = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 32);
}

/* Index into key[] or -1; *at: its slot, or the free one where it belongs. */
static int
map_find(const ef_map *m, const void *key, size_t *at)
{
    if (!m->nslot)
        return -1;
    size_t mask = (size_t)m->nslot - 1;
    size_t i = hash_key(key) & mask;
    for (; m->slot[i]; i = (i + 1) & mask)
        if (m->key[m->slot[i] - 1] == key)
            break;
    *at = i;
    return m->slot[i] - 1;
}

void *
ef_map_get(const ef_map *m, const void *key)
{
    size_t at;
    int i = map_find(m, key, &at);
    return i < 0 ? NULL : m->val[i];
}

bool
ef_map_has(const ef_map *m, const void *key)
{
    size_t at;
    return map_find(m, key, &at) >= 0;
}

static void
map_rehash(ef_arena *a, ef_map *m)
{
    m->nslot = m->nslot ? m->nslot * 2 : 16;
    m->slot = EF_NEWN(a, int, m->nslot);
    size_t mask = (size_t)m->nslot - 1;
    for (int k = 0; k < m->n; k++) {
        size_t i = hash_key(m->key[k]) & mask;
        while (m->slot[i])
            i = (i + 1) & mask;
        m->slot[i] = k + 1;
    }
}

void
ef_map_set(ef_arena *a, ef_map *m, const void *key, void *val)
{
    size_t at = 0;
    int i = map_find(m, key, &at);
    if (i >= 0) {
        m->val[i] = val;
        return;
    }
    if (m->n * 2 >= m->nslot) {
        map_rehash(a, m);
        map_find(m, key, &at);
    }
    if (m->n == m->cap) {
        int cap;
        m->key = ef_grow(a, m->key, &cap, m->n, sizeof *m->key);
        m->val = ef_grow(a, m->val, &cap, m->n, sizeof *m->val);
        m->cap = cap;
    }
    m->key[m->n] = key;
    m->val[m->n] = val;
    m->slot[at] = ++m->n;
}
