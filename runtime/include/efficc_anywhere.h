/* efficc_anywhere.h -- RT_ANYWHERE: functions for C, and for both sides of CUDA. */
#ifndef EFFICC_ANYWHERE_H
#define EFFICC_ANYWHERE_H

#ifdef __CUDACC__
#define RT_ANYWHERE static inline __host__ __device__
#else
#define RT_ANYWHERE static inline
#endif

#endif
