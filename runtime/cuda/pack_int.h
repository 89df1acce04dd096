/* pack_int.h -- several elements in one access of memory, and grids over rows.
 *
 * A kernel that takes an rtc_pack<T, N> moves N neighbouring elements at once. Whether they
 * may be is seen on the host, from the addresses and strides: rtc_fits().
 *
 * Grids have one shape: x goes over the units of a row, y over rows. Both are limited, so
 * kernels go on from what they have to what is left by whole grids, in 64 bits.
 */
#ifndef EFFICC_PACK_INT_H
#define EFFICC_PACK_INT_H

#include "cuda_int.h"

template <class T, int N> using rtc_pack = rt_pack<T, N>;

/* Elements of T that 16 bytes hold. */
template <class T> struct rtc_width {
    enum { N = 16 / sizeof(T) };
};

static inline int64_t
rtc_bytes(rt_dtype t)
{
    return t == RT_F32 ? 4 : 2;
}

static inline uintptr_t
rtc_address(const void *p)
{
    return (uintptr_t)p;
}

/* Are addresses and numbers of bytes, or-ed together, multiples of unit, a power of two? */
static inline bool
rtc_fits(uintptr_t bits, int64_t unit)
{
    return !(bits & (uintptr_t)(unit - 1));
}

/* ---- grids ---- */

enum { RTC_THREADS = 256, RTC_GRID_X = 1 << 16, RTC_GRID_Y = 1 << 15 };

static inline int64_t
rtc_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef struct rtc_grid {
    dim3 grid, block;
} rtc_grid;

/* For rows of so many units; neither is 0. */
static inline rtc_grid
rtc_rows_of(int64_t rows, int64_t units)
{
    unsigned x = 1, y = 1;
    while (x < units && x < RTC_THREADS)
        x *= 2;
    while (y < rows && x * y < RTC_THREADS)
        y *= 2;
    rtc_grid g;
    g.block = dim3(x, y);
    g.grid = dim3((unsigned)rtc_min(rtc_blocks(units, x), RTC_GRID_X),
                  (unsigned)rtc_min(rtc_blocks(rows, y), RTC_GRID_Y));
    return g;
}

/* The thread's first row and unit, and how far it is to the next. */
static __device__ __forceinline__ int64_t
rtc_row()
{
    return (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
}
static __device__ __forceinline__ int64_t
rtc_row_step()
{
    return (int64_t)gridDim.y * blockDim.y;
}
static __device__ __forceinline__ int64_t
rtc_unit()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __device__ __forceinline__ int64_t
rtc_unit_step()
{
    return (int64_t)gridDim.x * blockDim.x;
}

#endif
