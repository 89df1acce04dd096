/* efficc_cpu.h -- RT_CPU_FEATURES: what the compiler was allowed to use in this file, as
 * strings of __builtin_cpu_supports(), each followed by a comma. A trainer lists them, so
 * that another machine refuses it with a clear message and not with an illegal instruction.
 */
#ifndef EFFICC_CPU_H
#define EFFICC_CPU_H

#ifdef __AVX__
#define RT_CPU_AVX "avx",
#else
#define RT_CPU_AVX
#endif
#ifdef __AVX2__
#define RT_CPU_AVX2 "avx2",
#else
#define RT_CPU_AVX2
#endif
#ifdef __FMA__
#define RT_CPU_FMA "fma",
#else
#define RT_CPU_FMA
#endif
#ifdef __BMI2__
#define RT_CPU_BMI2 "bmi2",
#else
#define RT_CPU_BMI2
#endif
#ifdef __AVX512F__
#define RT_CPU_AVX512F "avx512f",
#else
#define RT_CPU_AVX512F
#endif
#ifdef __AVX512BW__
#define RT_CPU_AVX512BW "avx512bw",
#else
#define RT_CPU_AVX512BW
#endif
#ifdef __AVX512DQ__
#define RT_CPU_AVX512DQ "avx512dq",
#else
#define RT_CPU_AVX512DQ
#endif
#ifdef __AVX512VL__
#define RT_CPU_AVX512VL "avx512vl",
#else
#define RT_CPU_AVX512VL
#endif
#ifdef __AVX512BF16__
#define RT_CPU_AVX512BF16 "avx512bf16",
#else
#define RT_CPU_AVX512BF16
#endif

#define RT_CPU_FEATURES                                                          \
    RT_CPU_AVX RT_CPU_AVX2 RT_CPU_FMA RT_CPU_BMI2 RT_CPU_AVX512F RT_CPU_AVX512BW \
        RT_CPU_AVX512DQ RT_CPU_AVX512VL RT_CPU_AVX512BF16

#endif
