/* gemm_cache.cu -- measured algorithms on disk, so that a program starts faster the next time.
 *
 * One file for each card and each version of cuBLASLt, whose algorithms mean nothing to another
 * version: $XDG_CACHE_HOME/efficc/algos2-CARD-VERSION, or under ~/.cache. A line holds a shape,
 * whether its epilogue is apart, the algorithm's words and a checksum; lines that don't fit are
 * left out. Without a place to write there is no cache, and that is no error. A new file takes the
 * old one's place by a rename.
 */
#include "gemm_int.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FIELDS = sizeof(rtc_shape) / sizeof(int64_t),
    WORDS = 8,
    FORMAT = 2, /* of a line */
    PATH = 1024,
    LINE = 24 * (FIELDS + WORDS + 2), /* bytes: 64 bits are 20 digits, or fewer */
    MOST = 1 << 14
};
static_assert(sizeof(cublasLtMatmulAlgo_t) == WORDS * sizeof(uint64_t),
              "words of an algorithm");

static uint64_t
hash(const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    uint64_t h = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3;
    return h;
}

/* The file's path; make: its folders, too. false: there is none. */
static bool
cache_path(const rt_stream *s, char *path, bool make)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[PATH / 2], card[sizeof s->card.name];
    if (cache && cache[0] == '/')
        snprintf(folder, sizeof folder, "%s", cache);
    else if (home && home[0] == '/')
        snprintf(folder, sizeof folder, "%s/.cache", home);
    else
        return false;
    if (make)
        mkdir(folder, 0777);
    if (strlen(folder) + sizeof "/efficc" > sizeof folder)
        return false;
    strcat(folder, "/efficc");
    if (make)
        mkdir(folder, 0777);
    snprintf(card, sizeof card, "%s", s->card.name);
    for (char *c = card; *c; c++)
        *c = isalnum((unsigned char)*c) ? *c : '-';
    snprintf(path, PATH, "%s/algos%d-%s-%zu", folder, (int)FORMAT, card,
             cublasLtGetVersion());
    return true;
}

/* The number at *at, and moves it behind that; 0 where there is none, as the checksum tells. */
static uint64_t
read_number(char **at, int base)
{
    return strtoull(*at, at, base);
}

static bool
read_line(char *at, rtc_algo *a)
{
    int64_t *field = (int64_t *)&a->shape;
    for (int i = 0; i < FIELDS; i++)
        field[i] = (int64_t)read_number(&at, 10);
    a->apart = (int64_t)read_number(&at, 10);
    for (int i = 0; i < WORDS; i++)
        a->algo.data[i] = read_number(&at, 16);
    return read_number(&at, 16) == hash(a, sizeof *a);
}

static void
write_line(FILE *f, const rtc_algo *a)
{
    const int64_t *field = (const int64_t *)&a->shape;
    for (int i = 0; i < FIELDS; i++)
        fprintf(f, "%lld ", (long long)field[i]);
    fprintf(f, "%lld ", (long long)a->apart);
    for (int i = 0; i < WORDS; i++)
        fprintf(f, "%llx ", (unsigned long long)a->algo.data[i]);
    fprintf(f, "%llx\n", (unsigned long long)hash(a, sizeof *a));
}

void
rtc_cache_read(rt_stream *s)
{
    char path[PATH], line[LINE];
    rtc_algo a;
    struct stat is;
    bool there = cache_path(s, path, false) && !stat(path, &is) && S_ISREG(is.st_mode);
    FILE *f = there ? fopen(path, "r") : NULL; /* of a pipe it would wait */
    for (int i = 0; f && i < MOST && fgets(line, sizeof line, f); i++)
        if (read_line(line, &a))
            rtc_cache_add(s->gemms, &a);
    if (f)
        fclose(f);
}

void
rtc_cache_write(rt_stream *s)
{
    char path[PATH], part[PATH + 32];
    const rtc_gemms *g = s->gemms;
    if (!cache_path(s, path, true))
        return;
    snprintf(part, sizeof part, "%s.%ld", path, (long)getpid());
    FILE *f = fopen(part, "w");
    if (!f)
        return;
    for (int i = 0; i < g->nalgo; i++)
        write_line(f, &g->algo[i]);
    bool ok = !ferror(f);
    ok = !fclose(f) && ok;
    if (!ok || rename(part, path))
        unlink(part);
}

/* Where the number of a shape's algorithm stands, or would. */
static int *
slot_of(const rtc_gemms *g, const rtc_shape *shape)
{
    uint64_t n = 2 * (uint64_t)g->algo_room, i = hash(shape, sizeof *shape) % n;
    while (g->slot[i] && memcmp(&g->algo[g->slot[i] - 1].shape, shape, sizeof *shape))
        i = (i + 1) % n;
    return &g->slot[i];
}

const rtc_algo *
rtc_cache_find(const rtc_gemms *g, const rtc_shape *shape)
{
    int k = g->nalgo ? *slot_of(g, shape) : 0;
    return k ? &g->algo[k - 1] : NULL;
}

static bool
make_room(rtc_gemms *g)
{
    int room = 2 * g->algo_room + 32;
    int *slot = (int *)calloc(2 * (size_t)room, sizeof *slot);
    rtc_algo *algo =
        slot ? (rtc_algo *)realloc(g->algo, (size_t)room * sizeof *algo) : NULL;
    if (!algo) {
        free(slot);
        return false;
    }
    free(g->slot);
    g->slot = slot;
    g->algo = algo;
    g->algo_room = room;
    for (int i = 0; i < g->nalgo; i++)
        *slot_of(g, &algo[i].shape) = i + 1;
    return true;
}

/* In place of an older one. Out of memory: it is not kept. */
void
rtc_cache_add(rtc_gemms *g, const rtc_algo *a)
{
    rtc_algo *old = (rtc_algo *)rtc_cache_find(g, &a->shape);
    if (old) {
        *old = *a;
        return;
    }
    if (g->nalgo == g->algo_room && !make_room(g))
        return;
    int *slot = slot_of(g, &a->shape);
    g->algo[g->nalgo++] = *a;
    *slot = g->nalgo;
}
