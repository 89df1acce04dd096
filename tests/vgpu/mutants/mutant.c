/* mutant.c -- which mutant is switched on, and which were asked for; see mutant.h. */
#include "mutant.h"

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 4096 };
static int on;
static char *hits, none[MOST];

/* The file is shared memory, as processes may end in any way. */
static void __attribute__((constructor)) begin(void)
{
    const char *number = getenv("EFFICC_MUTANT"), *path = getenv("EFFICC_MUTANT_HITS");
    on = number ? atoi(number) : 0;
    hits = none;
    int f = path ? open(path, O_RDWR) : -1;
    if (f < 0 || ftruncate(f, MOST))
        return;
    void *p = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    hits = p == MAP_FAILED ? none : p;
    close(f);
}

int
mutant(int i)
{
    hits[i] = 1;
    return i == on;
}
