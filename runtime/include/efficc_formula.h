/* efficc_formula.h -- what formulas of elementwise.def mean alike on every target. */
#ifndef EFFICC_FORMULA_H
#define EFFICC_FORMULA_H

#include "efficc_anywhere.h"

#include <stdint.h>

/* NaN if either is, as numpy and PyTorch have it. */
#define MAX(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
#define MIN(x, y) ((x) < (y) || (x) != (x) ? (x) : (y))
#define ISNAN(x)  ((x) != (x))

/* To an integer type: towards zero, NaN to 0, too large ones to the last that fits. */
RT_ANYWHERE int64_t
rt_to_int(double x, double lo, int64_t first, double hi, int64_t last)
{
    return x != x ? 0 : x <= lo ? first : x >= hi ? last : (int64_t)x;
}
#define TO_I64(x) rt_to_int((double)(x), -0x1p63, INT64_MIN, 0x1p63, INT64_MAX)
#define TO_I32(x) \
    ((int32_t)rt_to_int((double)(x), -0x1p31, INT32_MIN, 0x1p31 - 1, INT32_MAX))
#define TO_I8(x) ((int8_t)rt_to_int((double)(x), -128, -128, 127, 127))
#define TO_U8(x) ((uint8_t)rt_to_int((double)(x), 0, 0, 255, 255))

#endif
