/* data_order.c -- the order in which an epoch takes the rows; data.h says which.
 *
 * Nothing is stored, any position can be computed, no row comes twice.
 */
#include "host_int.h"

static uint64_t
mix(uint64_t x) /* the finaliser of MurmurHash3 */
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* A Feistel network on an even number of bits is a bijection on [0,4^h); walking on until
 * the value is below n makes it one on [0,n). */
uint64_t
rt_permute(uint64_t i, uint64_t n, uint64_t key)
{
    int bits = 2;
    while (bits < 64 && (uint64_t)1 << bits < n)
        bits += 2;
    int h = bits / 2;
    uint64_t mask = ((uint64_t)1 << h) - 1;
    do {
        uint64_t left = i >> h, right = i & mask;
        for (uint64_t r = 0; r < 6; r++) {
            uint64_t swap =
                left ^ (mix(right ^ mix(key + r * 0x9e3779b97f4a7c15u)) & mask);
            left = right;
            right = swap;
        }
        i = left << h | right;
    } while (i >= n);
    return i;
}

rt_order
rt_order_of(const rt_data *d, bool shuffle, uint64_t seed)
{
    return (rt_order){.n = d->n, .shuffle = shuffle, .seed = seed};
}

int64_t
rt_order_rows(const rt_order *o, int64_t epoch, int64_t first, int64_t n, int64_t *row)
{
    uint64_t key = mix(o->seed ^ mix((uint64_t)epoch + 1));
    int64_t got = 0;
    for (int64_t i = first; got < n && i < o->n; i++)
        row[got++] =
            o->shuffle ? (int64_t)rt_permute((uint64_t)i, (uint64_t)o->n, key) : i;
    return got;
}
