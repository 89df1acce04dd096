/* plan_fit.c -- offsets for buffers whose lifetimes are known.
 *
 * Size-descending first-fit: the largest buffer takes the lowest offset, each further one
 * the lowest gap between those already placed that live at the same time. On the training
 * steps of transformers this reaches the lower bound (the most bytes live at one moment):
 * there the few large sizes nest. On adversarial inputs it may be some 30 % above; the plan
 * reports both numbers.
 */
#include "pass.h"

#include <stdlib.h>

static int64_t
round_up(int64_t bytes, int64_t align)
{
    return (bytes + align - 1) / align * align;
}

static bool
live_together(const pass_buffer *a, const pass_buffer *b)
{
    return a->lo <= b->hi && b->lo <= a->hi;
}

/* Larger first; of equal ones the longer lived; then the order given. */
static int
by_size(const void *x, const void *y)
{
    const pass_buffer *a = *(pass_buffer *const *)x, *b = *(pass_buffer *const *)y;
    int life_a = a->hi - a->lo, life_b = b->hi - b->lo;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (life_a != life_b)
        return life_a > life_b ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* The most bytes that are live at one moment. */
static int64_t
most_live(const pass_buffer *b, int n, int64_t align, ef_arena *scratch)
{
    int end = 0;
    for (int i = 0; i < n; i++)
        end = b[i].hi > end ? b[i].hi : end;
    int64_t *change = EF_NEWN(scratch, int64_t, end + 2);
    for (int i = 0; i < n; i++) {
        change[b[i].lo] += round_up(b[i].bytes, align);
        change[b[i].hi + 1] -= round_up(b[i].bytes, align);
    }
    int64_t live = 0, most = 0;
    for (int t = 0; t <= end; t++) {
        live += change[t];
        most = live > most ? live : most;
    }
    return most;
}

int64_t
pass_fit(pass_buffer *buffer, int n, int64_t align, ef_arena *scratch, int64_t *bound)
{
    pass_buffer **order = EF_NEWN(scratch, pass_buffer *, n + 1);
    pass_buffer **placed = EF_NEWN(scratch, pass_buffer *, n + 1); /* by offset */
    int64_t arena = 0;
    for (int i = 0; i < n; i++)
        order[i] = &buffer[i];
    qsort(order, (size_t)n, sizeof *order, by_size);
    for (int i = 0; i < n; i++) {
        pass_buffer *b = order[i];
        int64_t bytes = round_up(b->bytes, align), at = 0;
        for (int k = 0; k < i && placed[k]->offset - at < bytes; k++) {
            int64_t end = placed[k]->offset + round_up(placed[k]->bytes, align);
            if (live_together(b, placed[k]) && end > at)
                at = end;
        }
        b->offset = at;
        arena = at + bytes > arena ? at + bytes : arena;
        int k = i;
        for (; k > 0 && placed[k - 1]->offset > at; k--)
            placed[k] = placed[k - 1];
        placed[k] = b;
    }
    *bound = most_live(buffer, n, align, scratch);
    return arena;
}

const char *
pass_fit_check(const pass_buffer *b, int n, ef_arena *scratch)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (live_together(&b[i], &b[k]) && b[i].offset < b[k].offset + b[k].bytes &&
                b[k].offset < b[i].offset + b[i].bytes)
                return ef_printf(scratch, "buffers %d and %d overlap at offset %lld", k,
                                 i, (long long)b[i].offset);
    return NULL;
}
