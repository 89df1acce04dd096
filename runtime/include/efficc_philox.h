/* efficc_philox.h -- random bits that are a function of where they are used: Philox4x32-10
 * (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, 2011).
 *
 * A counter of four words and a key of two give four words. A round multiplies words 0 and 2
 * by a constant each; high and low halves of the products change places and are mixed with
 * words 1, 3 and the key, which grows by another constant each round. This is one counter at
 * a time, for C and for CUDA kernels; runtime/cpu/philox_int.h has several together.
 */
#ifndef EFFICC_PHILOX_H
#define EFFICC_PHILOX_H

#include "efficc_anywhere.h"

#include <stdint.h>

enum { RT_PHILOX_ROUNDS = 10 };
#define RT_PHILOX_M0 0xd2511f53u
#define RT_PHILOX_M1 0xcd9e8d57u
#define RT_PHILOX_K0 0x9e3779b9u
#define RT_PHILOX_K1 0xbb67ae85u

/* Counter (row[0], row[1], group, site) and key of the words of one row. */
typedef struct philox {
    uint32_t key[2], row[2], site;
} philox;

/* key and row as the IR has them, one number of 64 bits each. */
RT_ANYWHERE philox
philox_of(int64_t key, int64_t row, int64_t site)
{
    uint64_t k = (uint64_t)key, r = (uint64_t)row;
    philox x = {{(uint32_t)k, (uint32_t)(k >> 32)},
                {(uint32_t)r, (uint32_t)(r >> 32)},
                (uint32_t)site};
    return x;
}

/* Of column c, in head `head` of an attention: word c % 4 of this group. */
RT_ANYWHERE uint32_t
philox_group(int64_t column, int64_t head)
{
    return (uint32_t)(column / 4) | (uint32_t)head << 20;
}

/* Words below it are dropped. */
RT_ANYWHERE uint32_t
philox_below(float p)
{
    return (uint32_t)((double)p * 4294967296.0);
}

/* w [4]: the words of a group. */
RT_ANYWHERE void
philox_four(uint32_t *w, const philox *x, uint32_t group)
{
    uint32_t k0 = x->key[0], k1 = x->key[1];
    uint32_t c0 = x->row[0], c1 = x->row[1], c2 = group, c3 = x->site;
    for (int round = 0; round < RT_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)c0 * RT_PHILOX_M0, p1 = (uint64_t)c2 * RT_PHILOX_M1;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += RT_PHILOX_K0;
        k1 += RT_PHILOX_K1;
    }
    w[0] = c0;
    w[1] = c1;
    w[2] = c2;
    w[3] = c3;
}

#endif
