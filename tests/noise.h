/* noise.h -- numbers that look random and are the same in every run: a hash of a name and a
 * number (FNV-1a, with a last mix of all bits).
 */
#ifndef EFFICC_NOISE_H
#define EFFICC_NOISE_H

#include <stdint.h>

static inline uint64_t
noise_bits(const char *name, int64_t i)
{
    uint64_t h = 14695981039346656037u + (uint64_t)i * 0x9e3779b97f4a7c15u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    return (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
}

#endif
