/* mask_int.h -- the evaluation of a mask's ops, for mask_probe.c. */
#ifndef EFFICC_MASK_INT_H
#define EFFICC_MASK_INT_H

#include "../ir/ir.h"

enum {
    MASK_OPS_MAX = 64,
    MASK_ROWS_MAX =
        1024 /* different ones: each is evaluated, and compared with the others */
};

typedef struct mask_graph { /* the ops that a mask is computed by */
    int nop;
    const ir_op *op[MASK_OPS_MAX]; /* operands first */
    const ir_value *key;           /* the argument it depends on; NULL: none */
    const ir_value *result;
    int visits;
    bool other; /* depends on something that no mask depends on */
} mask_graph;

typedef enum mask_when {             /* an op is evaluated */
                         MASK_ONCE,  /* for all probes */
                         MASK_WHOLE, /* once a probe */
                         MASK_BY_ROW /* once a row of the batch */
} mask_when;

typedef struct mask_cell { /* a value of the graph, freed after its last use */
    mask_when when;
    ef_arena *arena;
    ir_tensor t;
    int uses; /* left */
} mask_cell;

typedef struct mask_run { /* contents of the values */
    ir_module *m;
    const mask_graph *g;
    int64_t rows;     /* of the batch */
    ir_tensor key;    /* of the argument; data NULL: there is none */
    ef_arena *leaves; /* of constants */
    ef_map leaf;
    mask_cell cell[MASK_OPS_MAX]; /* of g->op[i] */
    bool begun;                   /* what is evaluated once is */
    bool many; /* more than MASK_ROWS_MAX rows differ: not all were looked at */
} mask_run;

/* `by_row`: dimension 0 of the result is the rows of the batch. Close it in any case. */
void mask_open(mask_run *, ir_module *, const mask_graph *, int64_t rows, bool by_row);
void mask_close(mask_run *);
/* Looks at the result for rows [row, row + n) of the batch; false: that is enough. */
typedef bool mask_look(void *, const ir_tensor *, int64_t row, int64_t n);
/* Evaluates the mask on what u->key holds and lets `look` see all of it, except for rows that
 * are equal to an earlier one, as is their key. false: said why. */
bool mask_eval(mask_run *u, mask_look *look, void *data);

#endif
