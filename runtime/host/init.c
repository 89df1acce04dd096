/* init.c -- first contents of tensors that are in no file: new adapters, a new head.
 *
 * Element i of a tensor depends on the seed, the tensor's name and i alone, so any rank can
 * make any part of it. The generator is Philox4x32-10 (Salmon et al., SC 2011) with counter
 * i/4 and key FNV-1a(name) ^ seed * 0x9E3779B97F4A7C15; word i%4 of the block is element i.
 * ir/data.c holds the same formulas for the interpreter: change both or none, a test
 * compares them.
 */
#include "host_int.h"

#include <math.h>
#include <string.h>

static uint64_t
name_key(const char *name, uint64_t seed)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h ^ (seed * 0x9e3779b97f4a7c15u);
}

static void
philox(uint64_t counter, uint64_t key, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        uint32_t n2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[0] = n0, c[1] = (uint32_t)b, c[2] = n2, c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    memcpy(out, c, sizeof c);
}

static double
element(rt_init init, uint64_t key, int64_t i, int64_t fan_in)
{
    uint32_t w[4];
    philox((uint64_t)i / 4, key, w);
    /* in (0,1): the word's middle */
    double u = (w[i % 4] + 0.5) * 0x1p-32;
    if (init == RT_INIT_KAIMING)
        return (2 * u - 1) / sqrt((double)(fan_in > 0 ? fan_in : 1));
    /* Box-Muller: an even element and the odd one behind it share two words */
    double u0 = (w[i & 2] + 0.5) * 0x1p-32, u1 = (w[(i & 2) + 1] + 0.5) * 0x1p-32;
    double r = 0.02 * sqrt(-2 * log(u0)), angle = 6.283185307179586477 * u1;
    return i & 1 ? r * sin(angle) : r * cos(angle);
}

void
rt_init_fill(const rt_param *p, uint64_t seed, float *out)
{
    if (p->init != RT_INIT_KAIMING && p->init != RT_INIT_NORMAL) {
        memset(out, 0, (size_t)p->n * sizeof *out);
        return;
    }
    uint64_t key = name_key(p->name, seed);
    for (int64_t i = 0; i < p->n; i++)
        out[i] = (float)element(p->init, key, i, p->rank ? p->dim[p->rank - 1] : 1);
}
