/* cost.h -- what the kernels of a planned program move and compute, and how long a card would
 * take for it.
 *
 * Counted are bytes to and from memory, each operand once and each result once: what a
 * kernel reads again is taken to be in a cache; and operations of floats, a multiplication
 * with an addition being two. The time of a kernel is the longer of bytes over bandwidth and
 * operations over rate; kernels run one after another, without gaps.
 */
#ifndef EFFICC_COST_H
#define EFFICC_COST_H

#include "../ir/ir.h"

typedef enum cg_kind {
#define KIND(name, text) CG_##name,
#define COST(op, kind, kernels, rule, per)
#include "cost.def"
#undef KIND
#undef COST
    CG_NKINDS
} cg_kind;
extern const char *const cg_kind_text[CG_NKINDS];

/* By what the operations of a kernel are limited. */
typedef enum cg_work {
    CG_PLAIN,
    CG_PRODUCT,
    CG_ATTN_FORWARD,
    CG_ATTN_BACKWARD
} cg_work;

typedef struct cg_cost { /* a call of step.c, or one of the stages of a call */
    const ir_op *op;     /* the last one of its kernel */
    const char *stage;   /* "": all of the call */
    cg_kind kind;
    int calls;   /* 0: of a stage behind the first */
    int kernels; /* CUDA kernels that it launches */
    double flop, bytes;
    cg_work work;
    bool low;     /* products are of bf16 or fp16 */
    int64_t size; /* of a product, the least of its three; of attention, of a head */
    int64_t seq;  /* of attention */
} cg_cost;

typedef struct cg_costs {
    EF_VEC(cg_cost) at;
} cg_costs;

/* All calls of step, in order, with named dimensions at their largest. false: said why. */
bool cg_cost_of(const ir_module *, ef_arena *, cg_costs *);
/* Has the op a row of cost.def, or is it elementwise? */
bool cg_has_cost(ir_opcode);

/* ---- memory ---- */
typedef struct cg_memory { /* a row of a table: bytes of a class of buffers */
    const char *name, *text;
    int64_t bytes;
} cg_memory;
enum { CG_MEMORY_ROWS = 8 };
/* All buffers but the arena. Returns the sum. */
int64_t cg_memory_of(const ir_module *, cg_memory row[CG_MEMORY_ROWS]);
/* Of the arena of step: what forward leaves for backward; the largest scratch space. */
int64_t cg_saved_bytes(const ir_module *, ef_arena *);
int64_t cg_scratch_bytes(const ir_module *);

/* ---- cards ---- */
typedef struct cg_card {
    const char *name, *text;
    double memory;                       /* bytes */
    double bandwidth, bandwidth_at_most; /* bytes/s: as measured, of the data sheet */
    double product_at_most, plain; /* operations/s: products of 16 bits; of floats */
} cg_card;
/* NULL: none; *names lists them, by commas. */
const cg_card *cg_card_named(const char *, const char **names);
/* Seconds that a kernel takes: at rates that programs were measured at, or `hard`: not less.
 * *by_bytes: memory is what it waits for. */
double cg_seconds(const cg_card *, const cg_cost *, bool hard, bool *by_bytes);

#endif
