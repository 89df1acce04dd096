/* golden.h -- walks over the files of tests/golden. */
#ifndef EFFICC_GOLDEN_H
#define EFFICC_GOLDEN_H

#include <glob.h>
#include <stdio.h>

#include "ir/base.h"

typedef struct golden {
    glob_t found;
    size_t next;
    const char *path;
    char *text;
} golden;

/* Files of tests/golden that match the pattern, "verify" folder and *.ir, say. */
static inline void
golden_open(golden *g, const char *pattern)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/%s", SRC_DIR, pattern);
    g->next = 0;
    if (glob(path, 0, NULL, &g->found))
        g->found.gl_pathc = 0;
}

/* The next file's text into the arena; false: there is none. */
static inline bool
golden_next(golden *g, ef_arena *arena)
{
    if (g->next == g->found.gl_pathc)
        return false;
    size_t n;
    g->path = g->found.gl_pathv[g->next++];
    g->text = ef_read_file(arena, g->path, 1 << 24, &n);
    EF_ASSERT(g->text);
    return true;
}

static inline void
golden_close(golden *g)
{
    if (g->found.gl_pathc)
        globfree(&g->found);
}

#endif
