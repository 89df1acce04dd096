/* node.h -- ONNX's tests of single operators, imported. */
#ifndef EFFICC_NODE_H
#define EFFICC_NODE_H

#include "frontend/import_int.h"

enum { NODE_OUTPUTS = 8 };

typedef struct node_test {
    const char *kind, *name; /* of the file, and of the test */
    const uint8_t *bytes;    /* its ModelProto */
    size_t n;
} node_test;

typedef struct node_tests {
    EF_VEC(node_test) at;
} node_tests;

/* Which inputs are known when the model is compiled. */
typedef enum node_known { NODE_NONE, NODE_INTEGERS, NODE_ALL, NODE_WAYS } node_known;

typedef struct node_result {
    ir_value *value; /* NULL: known, in `got` */
    const double *got;
    const ir_type *type, *want_type;
    const double *want;
    double rounding; /* of the test's own numbers: coarse in 16 bits */
} node_result;

typedef struct node_run { /* a test as ops of a module */
    double rtol, atol;
    int n; /* results */
    node_result out[NODE_OUTPUTS];
    bool fractions; /* an input and the first result are floats */
} node_run;

/* All tests of a folder, files in the order of the alphabet. */
node_tests node_read(ef_arena *, const char *folder);
/* Appends the test's ops to the only block of m; float inputs that are not known become params
 * of class `floats`. false: said why. */
bool node_import(ir_module *m, const node_test *, node_known, ir_pclass floats,
                 node_run *);
/* A module with one unit, a function step and one empty block. */
ir_module *node_module(ef_ctx *);
/* Ends step with ret of the values. */
void node_finish(ir_module *, int n, ir_value *const *);
/* NULL, or what is wrong with the elements x of result r. */
const char *node_compare(ef_arena *, const node_run *, const node_result *r,
                         const double *x);

#endif
