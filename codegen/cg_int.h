/* cg_int.h -- what the parts of codegen share.
 *
 *     cg.c        the walk over blocks and ops, the files
 *     target.c    the targets; toolkit.c  nvcc and what belongs to it
 *     text.c      C text: names, numbers, strings, calls, comments, files
 *     lower.c       operands, sizes, update    \
 *     lower_gemm.c  products                   |
 *     lower_move.c  ops that move elements     |  one emitter lw_<name> per entry of the
 *     lower_nn.c    embeddings, norms, sums    |  column `lower` of ops.def
 *     lower_attn.c  attention, rotary, dropout |
 *     lower_loss.c  losses                     /
 *     kernels.c   elementwise kernels; kernels_cpu.c, kernels_cuda.c  their text
 *     tables.c    plan.h: addresses and constants
 *     calls.c     plan.h: the calls and what they work on
 *     inputs.c    plan.h: inputs
 *     program.c   plan.h: params and units; the description of the program
 *     planjson.c  plan.json         weights.c  base.safetensors         build.c  the trainer
 *     cost.c      bytes and operations of the calls, for efficc plan; cost_card.c  seconds
 *
 * An emitter serves twice. While pass plan runs it is dry: nothing is written, and the
 * scratch space that its calls want is noted. So plan and program can't disagree.
 */
#ifndef EFFICC_CG_INT_H
#define EFFICC_CG_INT_H

#include "cg.h"

#include <efficc_rt.h>

typedef struct cg_kernel { /* an elementwise kernel; equal ones are one */
    int number;            /* of the first group of ops that needs it */
    const char *comment, *prototype;
    const char *body; /* in C, whatever the target */
    const char *text; /* as it stands in the source */
    bool wide;        /* indices of more than 32 bits */
} cg_kernel;

typedef struct cg_table { /* named constants of plan.h, equal ones are one */
    const char *type, *stem;
    EF_VEC(const char *) value, name;
} cg_table;

typedef struct cg {
    ir_module *m;
    ef_ctx *ctx;
    ef_arena *arena; /* of this emission */
    int threads;
    const rt_scratch *need; /* of the target's kernels */

    bool dry;        /* only asking for scratch space */
    bool asked;      /* dry: it did ask */
    int64_t scratch; /* dry: bytes that the op wants */
    const char *why; /* what can't be lowered, or NULL */

    ef_buf *out;      /* step.c */
    const ir_func *f; /* function being lowered, */
    const ir_op *op;  /* and op */
    ef_map names;     /* ir_value* -> its name in C */
    ef_map taken;     /* interned names in C that are in use */
    /* ir_value* that lies in a gradient buffer -> the buffer's value */
    ef_map gradient;
    EF_VEC(rt_gemm_desc) gemm;
    EF_VEC(const char *) gemm_name;
    cg_table attn, head, move;
    EF_VEC(cg_kernel) kernel;
    EF_VEC(const char *) call, tensor; /* rows of the tables */
    ef_map tensor_of;                  /* ir_value* -> its row */
    ef_map infinite;                   /* set of ir_value*: may hold infinities */
} cg;

/* ---- target.c ---- */
bool cg_is_cuda(const ef_ctx *);
int64_t cg_align(const ef_ctx *);
int cg_threads(const ef_ctx *); /* that scratch space is planned for */
const rt_scratch *cg_need(const ef_ctx *);

/* ---- text.c ---- */
/* name made a C identifier behind prefix, different from all others. */
const char *cg_ident(cg *, const char *prefix, const char *name);
const char *cg_string(ef_arena *, const char *);         /* quoted; NULL: "NULL" */
const char *cg_float(ef_arena *, double);                /* literal that is (float)x */
const char *cg_ints(ef_arena *, int n, const int64_t *); /* "2, 16, 64" */
/* A comment that holds text, folded to the width of a line; harmless whatever it holds. */
void cg_comment(ef_buf *, int indent, const char *text);
/* A line of code, folded behind commas. */
void cg_code(ef_buf *, int indent, const char *text);
/* `name(st, args);` into step.c; nothing when dry. */
void cg_call(cg *, const char *name, const char *args, ...)
    __attribute__((format(printf, 3, 4)));
/* Writes a file into dir; false: said why. */
bool cg_write(ef_ctx *, const char *dir, const char *name, const ef_buf *);
/* "float", as elements lie in memory; NULL: not on this target. */
const char *cg_ctype(ir_dtype);
/* op's line of the IR, without what pass plan added. */
const char *cg_ir_line(ef_arena *, const ir_op *);
int cg_size(ir_dtype);

/* ---- for emitters (lower.c) ---- */
typedef void cg_emitter(cg *, const ir_op *);
extern cg_emitter *const cg_emitters[IR_NOPS];
/* Notes that the op can't be lowered; the first reason stays. Returns NULL. */
const char *cg_refuse(cg *, const char *why);
/* Pointer expressions of operand or result i of the op, of a given element type. */
const char *cg_arg(cg *, const ir_op *, int i, ir_dtype);
const char *cg_res(cg *, const ir_op *, int i, ir_dtype);
const char *cg_float_arg(cg *, const ir_op *, int i); /* f32, bf16 or f16 */
const char *cg_float_res(cg *, const ir_op *, int i);
const char *cg_any_arg(cg *, const ir_op *, int i); /* any element type */
const char *cg_any_res(cg *, const ir_op *, int i);
int64_t cg_offset(const ir_value *); /* in the arena; below 0: not there */
bool cg_adds(const ir_op *, int i);  /* result i is added into a gradient buffer */
/* Asks for scratch space; bytes < 0: refused. The pointer expression, which plan.h explains:
 * it may be NULL on one target and not on another. */
const char *cg_scratch(cg *, int64_t bytes);
bool cg_asks_scratch(const cg *, const ir_op *);
/* Name in plan.h of a constant of the table. */
const char *cg_constant(cg *, cg_table *, const char *value);
int64_t cg_last(const ir_value *);                     /* its last dimension */
int64_t cg_rows(const ir_value *);                     /* product of the others */
int64_t cg_product(const ir_type *, int from, int to); /* of dims [from, to) */
/* Sizes as C: "64", or "ROWS * 64" where the first dimension is among them and has a name. */
const char *cg_times(cg *, const ir_type *, int from, int to,
                     int64_t by);             /* times by */
const char *cg_count(cg *, const ir_value *); /* elements */
const char *cg_bytes(cg *, const ir_value *);
const char *cg_rows_text(cg *, const ir_value *); /* cg_rows() */
const char *cg_sizes(cg *, const ir_value *);     /* cg_rows(), cg_last() */
bool cg_varies(const ir_type *);                  /* has a named dimension */
const char *cg_vary(const ir_type *);             /* "RT_ROWS" */
rt_dtype cg_rt_dtype(ir_dtype); /* of the types that params and descriptions have */
const char *cg_dtype_text(rt_dtype); /* "RT_F32" */
const char *cg_dtype(const ir_value *);
const char *cg_plus(cg *, const char *pointer, int64_t elements);

/* ---- lower*.c, kernels.c ---- */
#define OP(name, in, in_max, out, out_max, flags, cast, attrs, shape, vjp, lower, doc) \
    cg_emitter lower;
#include "../ir/ops.def"
#undef OP

cg_emitter lw_none; /* of ops that a pass replaces */

/* ---- kernels.c ---- */
enum { CG_CUDA_THREADS = 256 }; /* of a block: RT_BLOCK of efficc_cuda.h */
void cg_kernels_text(cg *, ef_buf *source, ef_buf *header);

/* ---- calls.c ---- */
/* Before anything of f is written: which values may hold infinities. */
void cg_find_infinite(cg *, const ir_func *);
/* A row for the call that was written for op; its number. */
int cg_new_call(cg *, const ir_op *);
void cg_call_table(cg *, ef_buf *);

/* ---- tables.c ---- */
/* C names of params, inputs and values; writes the macros that stand for them. */
void cg_name_values(cg *, ef_buf *defines);
void cg_plan_h(cg *, const ef_buf *defines, ef_buf *out);

/* ---- inputs.c ---- */
bool cg_input_table(cg *, ef_buf *); /* false: said why */
/* Sizes that a named dimension takes (meta sizes.NAME), at most RT_SIZES: their number. 0: no
 * argument of step has it; -1: the text is not right. */
int cg_named_sizes(const ir_module *, ir_sym, int64_t *size);

/* ---- program.c ---- */
void cg_param_table(cg *, ef_buf *);
void cg_unit_table(cg *, ef_buf *); /* bytes of buffers; features of the CPU */
double cg_number(const ir_module *,
                 const char *key); /* of meta; 0: absent or no number */
void cg_program(cg *, ef_buf *);   /* rt_program */
/* Of the planned program; where its files lie doesn't matter. */
const char *cg_hash(const ir_module *, ef_arena *);
/* Bytes of unit's flat buffer of a class; the optimizer's state is as large as the trained
 * parameters, twice. */
int64_t cg_unit_bytes(const ir_module *, int unit, rt_class);
/* Modules that carry adapters, as peft's target_modules: the last part of their names where
 * that is enough to find them, else whole names. */
int cg_lora_targets(cg *, const char ***);
/* Modules that are trained whole beside adapters. */
int cg_saved_modules(cg *, const char ***);

/* ---- planjson.c and weights.c: false: said why ---- */
bool cg_plan_json(cg *, const char *dir);
bool cg_weights(ir_module *, const char *dir);
/* base_hash.c: RT_SOURCE_HASH; "": the trainer makes it, or needs none. */
bool cg_base_hash(ir_module *, ef_arena *, char hex[17]);

/* ---- build.c ---- */
void cg_makefile(ef_ctx *, ef_buf *);

#endif
