/* kernels_int.h -- what the parts that write elementwise kernels share.
 *
 *     kernels.c       groups of ops, their operands, loops and expressions
 *     kernels_cpu.c   loop nests in C
 *     kernels_cuda.c  CUDA kernels, and functions that launch them
 */
#ifndef EFFICC_KERNELS_INT_H
#define EFFICC_KERNELS_INT_H

#include "cg_int.h"

enum { CG_KERNEL_MOST = 64 }; /* ops, operands */

typedef struct cg_loop { /* a kernel that is being written */
    cg *c;
    const ir_op *op[CG_KERNEL_MOST];
    int nop;
    const ir_value *in[CG_KERNEL_MOST], *out[CG_KERNEL_MOST]; /* in memory */
    int nin, nout;
    int rank;                 /* of the loops, after merging */
    int64_t dim[IR_MAX_RANK]; /* strides: [nin] is of the results */
    int64_t stride[CG_KERNEL_MOST + 1][IR_MAX_RANK];
    int64_t total;
    int64_t named; /* the most that a named first dimension is; 0: it has no name */
} cg_loop;

/* Type of an element in a register. */
const char *cg_register_type(ir_dtype);
/* What op computes, of a0, a1, .. (operands in memory), t0, t1, .. (results) and literals. */
const char *cg_expression(const cg_loop *, const ir_op *);
/* Number of the op whose result is v. */
int cg_op_index(const cg_loop *, const ir_value *);
bool cg_is_low(const ir_value *); /* bf16 or f16 */

/* Braces and what stands between them. Equal for kernels that compute the same, on whatever
 * target: by it they are told apart. */
const char *cg_cpu_loops(const cg_loop *);
/* The kernel and its host function, which is named k<number> and has these parameters. */
const char *cg_cuda_kernel(const cg_loop *, int number, const char *parameters);
/* Do indices need more than 32 bits? */
bool cg_is_wide(const cg_loop *);

#endif
