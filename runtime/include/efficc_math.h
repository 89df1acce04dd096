/* efficc_math.h -- the arithmetic of generated kernels.
 *
 * Formulas of elementwise.def stand in kernels.c as they are; these macros give them float
 * arithmetic. Vector versions come from glibc's libmvec: declaring the scalar functions as
 * simd lets the compiler use them in `omp simd` loops without -ffast-math, which would also
 * break infinities (masks) and flush small numbers for the whole process.
 */
#ifndef EFFICC_MATH_H
#define EFFICC_MATH_H

#include <features.h>
#include <math.h>
#include <stdint.h>

#include "efficc_formula.h"
#include "efficc_low.h"

#if defined(__x86_64__) && defined(__GLIBC_PREREQ) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 22)
#pragma omp declare simd notinbranch
extern float expf(float);
#pragma omp declare simd notinbranch
extern float logf(float);
#pragma omp declare simd notinbranch
extern float sinf(float);
#pragma omp declare simd notinbranch
extern float cosf(float);
#pragma omp declare simd notinbranch
extern float powf(float, float);
#endif
#if __GLIBC_PREREQ(2, 35)
#pragma omp declare simd notinbranch
extern float tanhf(float);
#pragma omp declare simd notinbranch
extern float erff(float);
#endif
#endif

/* Operands are float; integer operands come as double, exact below 2^53. */
#define RT_PICK(d, f, x) _Generic((x), double : d, default : f)
#define C(x)             ((float)(x))
#define EXP(x)           RT_PICK(exp, expf, x)(x)
#define LOG(x)           RT_PICK(log, logf, x)(x)
#define SQRT(x)          RT_PICK(sqrt, sqrtf, x)(x)
#define TANH(x)          RT_PICK(tanh, tanhf, x)(x)
#define ERF(x)           RT_PICK(erf, erff, x)(x)
#define POW(x, y)        RT_PICK(pow, powf, x)(x, y)
#define ABS(x)           RT_PICK(fabs, fabsf, x)(x)
#define FLOOR(x)         RT_PICK(floor, floorf, x)(x)
#define CEIL(x)          RT_PICK(ceil, ceilf, x)(x)
#define SIN(x)           RT_PICK(sin, sinf, x)(x)
#define COS(x)           RT_PICK(cos, cosf, x)(x)

#endif
