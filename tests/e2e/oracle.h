/* oracle.h -- trains a case in the interpreter: the compiler's passes without codegen.
 * Dropout has the keys of a trainer under --seed 0. */
#ifndef EFFICC_ORACLE_H
#define EFFICC_ORACLE_H

#include "golden.h"

#include "ir/ir.h"

typedef struct oracle_run {
    int argc; /* efficc's command line */
    char **argv;
    const tensors *golden;    /* batch{k}.* */
    const tensors *start;     /* tensors by public name; may be NULL */
    const char *start_prefix; /* of the names in start that count, "" for all */
    const tensors *adapter;   /* PEFT's; may be NULL */
    ir_hyper hyper;
    int steps, micro;    /* step s uses batches (s*micro + m) mod 4 */
    double *loss, *norm; /* out: one a step */
} oracle_run;

/* false: the compiler said why. */
bool oracle_train(oracle_run *);

#endif
