/* node_cpu.h -- tests of operators as one program for the CPU. */
#ifndef EFFICC_NODE_CPU_H
#define EFFICC_NODE_CPU_H

#include "node.h"

typedef struct node_job {
    const node_test *t;
    node_known known;
    const char *wrong; /* out: NULL, or what is wrong with it */
} node_job;

/* Compiles and runs n tests that can be imported. If one can't be compiled, the others are
 * run without it. */
void node_cpu_run(ef_arena *, node_job **, int n);

#endif
