/* cuda_limits.h -- can the emitted kernels be launched on the card that they are compiled for?
 *
 * What a kernel needs of a card is known only when it is compiled: `nvcc -Xptxas -v` says
 * it. A launch that needs more fails on the user's card, maybe days later; here it is an error of
 * efficc that names the kernel and the line of the IR.
 */
#ifndef EFFICC_CUDA_LIMITS_H
#define EFFICC_CUDA_LIMITS_H

#include "../ir/diag.h"

#define CG_ARCH_DEFAULT "sm_90"

typedef struct cg_gpu_arch { /* a row of cuda_arch.def */
    const char *name, *card;
    int64_t threads, registers, shared; /* the most that a block has */
} cg_gpu_arch;

typedef struct cg_launch { /* how kernels of a file are started */
    int64_t threads;       /* of a block */
    int64_t shared;        /* bytes of dynamic shared memory */
} cg_launch;

const cg_gpu_arch *cg_arch_at(int row); /* NULL: there are fewer */
const cg_gpu_arch *
cg_arch_find(const char *name);        /* NULL: there is none of that name */
const char *cg_arch_names(ef_arena *); /* "sm_80, sm_86, .." */
/* Judges all kernels that `said`, the output of nvcc -Xptxas -v, tells of, for each card
 * that they were compiled for; `source` is the text that was compiled, for the lines of the
 * IR in it. Registers that don't fit and went to memory stand in the report. false: said
 * why. */
bool cg_cuda_limits(ef_ctx *, const char *said, const char *source, const cg_launch *);

#endif
