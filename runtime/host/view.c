/* view.c -- what the host reads and writes of the device's memory.
 *
 * Where the host addresses that memory, a view is the bytes themselves and nothing moves. Else
 * it is a copy, of one tensor at a time; what is read from a file goes there in pieces.
 */
#include "host_int.h"

#include <stdlib.h>
#include <xxhash.h>

const void *
rt_look(const rt_run *run, const void *device, int64_t bytes)
{
    if (rt_unified || !device)
        return device;
    void *copy = rt_new((size_t)bytes, 1);
    rt_download(run->compute, copy, device, bytes);
    return copy;
}

void
rt_looked(const void *view)
{
    if (!rt_unified)
        free((void *)(uintptr_t)view);
}

void *
rt_edit(const rt_run *run, void *device, int64_t bytes)
{
    (void)run;
    return rt_unified ? device : rt_new((size_t)bytes, 1);
}

void
rt_edited(const rt_run *run, void *device, void *view, int64_t bytes)
{
    if (rt_unified)
        return;
    rt_upload(run->compute, device, view, bytes);
    free(view);
}

int
rt_st_load(const rt_run *run, const rt_st *st, const rt_st_tensor *t, void *device,
           XXH3_state_t *hash)
{
    enum { PIECE = 16 << 20 };
    size_t room = t->bytes < PIECE ? t->bytes : PIECE;
    char *piece = rt_unified ? NULL : rt_new(room + 1, 1);
    int code = RT_OK;
    for (uint64_t at = 0; at < t->bytes && !code; at += PIECE) {
        uint64_t n = t->bytes - at < PIECE ? t->bytes - at : PIECE;
        char *there = (char *)device + at, *to = piece ? piece : there;
        code = rt_st_read(st, t, at, to, n);
        if (!code && hash)
            XXH3_64bits_update(hash, to, n);
        if (!code)
            rt_upload(run->compute, there, to, (int64_t)n);
    }
    free(piece);
    return code;
}

float
rt_gradient_norm2(rt_run *run)
{
    float *there = &((rt_tally *)run->device)->norm2, norm2;
    rt_norm2(run->compute, there, run);
    rt_download(run->compute, &norm2, there, sizeof norm2);
    return norm2;
}
