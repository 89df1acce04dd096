/* pass.h -- the pass manager and what passes share. */
#ifndef EFFICC_PASS_H
#define EFFICC_PASS_H

#include "../ir/config.h"
#include "../ir/ir.h"

enum pass_fact {
    FACT_TYPED = 1 << 0,
    FACT_FUSED = 1 << 1,
    FACT_LOSS = 1 << 2,
    FACT_EVAL = 1 << 3,
    FACT_GRAD = 1 << 4,
    FACT_UPDATE = 1 << 5,
    FACT_PLANNED = 1 << 6
};

/* What a pass needs to know of the target, given by codegen. */
typedef struct pass_target {
    const char *name; /* "cpu" */
    int64_t align;    /* of every buffer, bytes */
    int64_t logits; /* bytes of a head's logits that may exist at a time; 0: task.c's */
    /* Bytes of library scratch space that op needs; -1: the op can't be lowered, *why. */
    int64_t (*scratch)(ef_ctx *, const ir_op *, const char **why);
    /* Can these two elementwise ops share a generated kernel? */
    bool (*fuse)(const ir_op *first, const ir_op *second);
    /* Does it multiply in this type at full speed, not by emulation? */
    bool (*computes)(ir_dtype);
} pass_target;

typedef struct pass_ctx {
    ir_module *m;
    ef_arena *scratch; /* reset after every pass */
    const pass_target *target;
} pass_ctx;

/* Runs on m->ctx; false: said why. Never reads argv, the environment or the clock;
 * the same input gives the same bytes. */
typedef bool pass_fn(pass_ctx *);
#define PASS(name, needs, gives, breaks, when, summary) pass_fn pass_##name;
#define ORDER(a, b, why)
#include "passes.def"
#undef PASS
#undef ORDER

/* The pipeline from wherever m->passes says it is (pass plan is always repeated), as cfg
 * orders (stop_after, print_after, dump, verify, time, run_pass). false: said why. After
 * success m is planned, or printed where cfg said to stop: *stopped. */
bool pass_run(ir_module *m, const pass_target *target, bool *stopped);
bool pass_exists(const char *name);
void pass_list(FILE *);       /* --passes */
void pass_print_docs(FILE *); /* docs/passes.md, the table */

/* ---- what codegen asks of a planned module ---- */
/* What attribute `at` says of a result that has no place of its own in the arena. */
enum { PASS_IN_REGISTER = -1, PASS_IN_GRADIENT = -2, PASS_IN_OPERAND = -3 };
static inline bool
pass_is_ew(const ir_op *op)
{
    return ir_ops[op->code].flags & IR_EW;
}
static inline bool
pass_is_view(const ir_op *op)
{
    return ir_ops[op->code].flags & IR_VIEW;
}
/* Has this argument of step the role (meta input.NAME, else by its usual name): ids, mask,
 * types, positions, labels or scale? */
bool pass_input_is(const ir_module *, const ir_value *arg, const char *role);

/* ---- gradient rules (vjp.c), used by pass grad ---- */
typedef struct pass_vjp {
    pass_ctx *pc;
    ir_builder b; /* at the end of the bwd block that op's adjoint belongs to */
    ef_arena *scratch;
} pass_vjp;
/* Emits the adjoint of op. dres[i]: gradient of result i or NULL; want[i]: gradient of
 * operand i is needed. Fills darg[i]; NULL stays "zero". false: said why. */
typedef bool pass_vjp_fn(pass_vjp *, ir_op *op, ir_value *const *dres, const bool *want,
                         ir_value **darg);
extern pass_vjp_fn *const pass_vjp_rule[IR_NOPS]; /* NULL: not differentiable */

/* ---- the planner's arithmetic (plan_fit.c), tested alone ---- */
typedef struct pass_buffer { /* lives from op index lo to hi, both included */
    int lo, hi;
    int64_t bytes;  /* in */
    int64_t offset; /* out */
} pass_buffer;
/* Size-descending first-fit. Returns the arena's bytes; *bound: the most that is live at
 * one moment, below which no plan can go. */
int64_t pass_fit(pass_buffer *, int n, int64_t align, ef_arena *scratch,
                 int64_t *bound);
/* NULL, or which two live buffers overlap. */
const char *pass_fit_check(const pass_buffer *, int n, ef_arena *scratch);

#endif
