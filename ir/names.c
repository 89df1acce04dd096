/* names.c -- names of values: what they may contain, and how they become unique.
 *
 * A name that is taken gets the smallest free suffix: %add, %add.1, %add.2. The suffix
 * depends on the names of the moment only, not on how they came about, so that a module
 * that was printed and parsed goes on exactly as the one that was not. `suffixes` keeps a
 * lower bound of the smallest free suffix per stem; without it n equal names would cost
 * n^2 / 2 look-ups.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ir_int.h"

bool
ir_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '/' || c == '-';
}

const char *
ir_name_clean(ef_ctx *ctx, const char *name)
{
    size_t n = strlen(name), ok = 0;
    while (ok < n && ir_name_char(name[ok]))
        ok++;
    if (n && ok == n)
        return ef_intern(ctx, name);
    char *s = ef_strdup(ctx->arena, n ? name : "_");
    for (char *p = s; *p; p++)
        if (!ir_name_char(*p))
            *p = '_';
    return ef_intern(ctx, s);
}

static intptr_t
lowest(const ef_map *suffixes, const char *stem)
{
    intptr_t k = (intptr_t)ef_map_get(suffixes, stem);
    return k ? k : 1;
}

const char *
ir_name_unique(ef_ctx *ctx, ef_arena *arena, const ef_map *names, ef_map *suffixes,
               const char *name)
{
    const char *stem = ir_name_clean(ctx, name);
    if (!ef_map_get(names, stem))
        return stem;
    intptr_t k = lowest(suffixes, stem);
    const char *s;
    while (ef_map_get(names, s = ef_internf(ctx, "%s.%ld", stem, (long)k)))
        k++;
    ef_map_set(arena, suffixes, stem, (void *)k);
    return s;
}

void
ir_name_take(ef_arena *arena, ef_map *names, const char *unique, void *what)
{
    ef_map_set(arena, names, unique, what);
}

void
ir_name_free(ef_ctx *ctx, ef_arena *arena, ef_map *names, ef_map *suffixes,
             const char *name)
{
    ef_map_set(arena, names, name, NULL);
    const char *dot = strrchr(name, '.');
    size_t digits = dot ? strspn(dot + 1, "0123456789") : 0;
    if (!digits || digits > 9 || dot[1 + digits] || dot[1] == '0')
        return;
    const char *stem = ef_internn(ctx, name, (size_t)(dot - name));
    intptr_t k = strtol(dot + 1, NULL, 10);
    if (k < lowest(suffixes, stem))
        ef_map_set(arena, suffixes, stem, (void *)k);
}
