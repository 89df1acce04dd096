/* memory.c -- the buffers of a program.
 *
 * Page faults in the middle of a step cost more than the work they interrupt, so memory is
 * mapped in huge pages where the system has them and touched before the first step, each
 * thread its share.
 */
#include "rt_cpu_int.h"
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, SMALL_PAGE = 4096 };

/* A mapping of n bytes, a multiple of HUGE_PAGE, that starts on one; NULL: errno. */
static char *
map_aligned(size_t n)
{
    char *raw = mmap(NULL, n + HUGE_PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    size_t head = (size_t)(-(uintptr_t)raw % HUGE_PAGE);
    if (head)
        munmap(raw, head);
    if (head < HUGE_PAGE)
        munmap(raw + head + n, HUGE_PAGE - head);
    return raw + head;
}

void *
rt_alloc(size_t bytes)
{
    size_t n = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    char *p = map_aligned(n ? n : HUGE_PAGE);
    if (!p)
        return NULL;
    madvise(p, n, MADV_HUGEPAGE); /* a hint: small pages work as well */
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += SMALL_PAGE)
        ((volatile char *)p)[i] = 0;
    return p;
}
