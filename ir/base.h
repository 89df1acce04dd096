/* base.h -- what C lacks: arenas, interned strings, growing arrays, ordered maps.
 *
 * Nothing here knows of the IR. Memory comes from an arena and is freed with it; a
 * pointer into an arena is never freed singly. Iteration over a map is in order of
 * insertion, so that the same input always gives the same output.
 */
#ifndef EFFICC_BASE_H
#define EFFICC_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct ef_ctx ef_ctx;     /* see diag.h */
typedef struct ef_arena ef_arena; /* chain of chunks */

/* A broken invariant of ours, in every build type: prints file:line, calls
 * ef_assert_hook, exits 70. */
#define EF_ASSERT(c)     ((c) ? (void)0 : ef_assert_fail(#c, __FILE__, __LINE__))
#define EF_UNREACHABLE() ef_assert_fail("unreachable", __FILE__, __LINE__)
_Noreturn void ef_assert_fail(const char *cond, const char *file, int line);
/* Called by ef_assert_fail() after its message; the pass manager writes the reproducer
 * here. NULL: none. */
extern void (*ef_assert_hook)(void);

#define EF_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- arena ---- */
ef_arena *ef_arena_new(void);
void ef_arena_free(ef_arena *); /* NULL is fine */
/* Forgets all allocations but keeps the chunks; poisoned under ASan until reused. */
void ef_arena_reset(ef_arena *);
size_t ef_arena_bytes(const ef_arena *); /* handed out since the last reset */
/* n bytes, zeroed, aligned to 16. Out of memory: message and exit 70. */
void *ef_alloc(ef_arena *, size_t n);
void *ef_dup(ef_arena *, const void *data, size_t n); /* copy of n bytes */
char *ef_strndup(ef_arena *, const char *, size_t n); /* NUL added */
char *ef_strdup(ef_arena *, const char *);
char *ef_printf(ef_arena *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *ef_vprintf(ef_arena *, const char *fmt, va_list);
#define EF_NEW(arena, type)     ((type *)ef_alloc((arena), sizeof(type)))
#define EF_NEWN(arena, type, n) ((type *)ef_alloc((arena), sizeof(type) * (size_t)(n)))

/* ---- interning: equal strings, equal pointers; they live as long as the ctx ---- */
const char *ef_intern(ef_ctx *, const char *);
const char *ef_internn(ef_ctx *, const char *, size_t n);
const char *ef_internf(ef_ctx *, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- growing array: EF_VEC(int) v = {0}; ef_push(arena, v, 3); v.at[0]; v.n ---- */
#define EF_VEC(type) \
    struct {         \
        type *at;    \
        int n, cap;  \
    }
#define ef_push(arena, v, x)                                                      \
    (((v).n == (v).cap                                                            \
          ? ((v).at = ef_grow((arena), (v).at, &(v).cap, (v).n, sizeof(*(v).at))) \
          : (v).at),                                                              \
     (v).at[(v).n++] = (x))
void *ef_grow(ef_arena *, void *old, int *cap, int n, size_t size);

/* ---- map from interned string (or any pointer) to pointer; ordered by insertion.
 * Keys are compared by address: intern strings first. Zero-initialise it. ---- */
typedef struct ef_map {
    const void **key; /* in order of insertion, n of them */
    void **val;
    int n, cap;
    int *slot; /* open addressing into key[] */
    int nslot;
} ef_map;
void *ef_map_get(const ef_map *, const void *key); /* NULL: absent */
bool ef_map_has(const ef_map *, const void *key);
/* Adds or replaces. */
void ef_map_set(ef_arena *, ef_map *, const void *key, void *val);

/* ---- text ---- */
typedef struct ef_buf { /* grows; always NUL-terminated once anything was added */
    ef_arena *arena;
    char *s;
    size_t n, cap;
} ef_buf;
void ef_puts(ef_buf *, const char *);
void ef_putn(ef_buf *, const char *, size_t n);
void ef_putf(ef_buf *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Short decimal text that reads back as exactly x ("1000", "0.1", "1e-05", "inf", "-inf",
 * "nan"). Static buffer of 4 turns. */
const char *ef_ftoa(double x);
/* Levenshtein distance, for "did you mean"; stops counting at 99. */
int ef_edit_distance(const char *a, const char *b);
/* Glob match: '*' any run, '?' one character; whole string. */
bool ef_glob(const char *pattern, const char *s);
/* Whole file into the arena, NUL-terminated, at most max bytes; NULL: errno says why. */
char *ef_read_file(ef_arena *, const char *path, size_t max, size_t *n);

#endif
