/* attention_tile.h -- tiles of our own attention kernels: which there are, and the shared memory
 * that a block of threads has of them.
 *
 * Plain C without anything of CUDA: kernels are made by it, and efficc asks it whether the card
 * that a program is for can start them.
 */
#ifndef EFFICC_ATTENTION_TILE_H
#define EFFICC_ATTENTION_TILE_H

/* HEAD(D, tensor, ..): heads of up to D columns; are low types multiplied by tensor cores? The
 * widest that there are take tiles of a quarter, so that they fit into shared memory. */
#define RTC_ATTN_HEADS(HEAD, ...) \
    HEAD(32, true, __VA_ARGS__)   \
    HEAD(64, true, __VA_ARGS__)   \
    HEAD(96, true, __VA_ARGS__)   \
    HEAD(128, true, __VA_ARGS__)  \
    HEAD(256, false, __VA_ARGS__)

/* Queries, and keys, of a tile; elements behind each of its rows, so that rows begin in other
 * banks. `size`: bytes of an element. */
#define RTC_ATTN_SIDE(tensor) ((tensor) ? 64 : 32)
#define RTC_ATTN_PAD(size)    (16 / (int)(size))

/* Bytes of n tiles of rows of heads, of m tiles of scores, and of w words for each of a tile's
 * rows. */
#define RTC_ATTN_BYTES(side, D, size, n, m, w)                                   \
    ((side) *                                                                    \
     (((n) * ((D) + RTC_ATTN_PAD(size)) + (m) * ((side) + RTC_ATTN_PAD(size))) * \
          (int)(size) +                                                          \
      (w)*4))
/* Of attention.cu: q, k, v; weights; places. Of attention_grad.cu: q, dy, k, v; P, dS; lse, delta,
 * floor, places. */
#define RTC_ATTN_FORWARD(side, D, size) RTC_ATTN_BYTES(side, D, size, 3, 1, 1)
#define RTC_ATTN_GRAD(side, D, size)    RTC_ATTN_BYTES(side, D, size, 4, 2, 4)

#endif
