/* cmd_export.h -- what the files of `efficc export` share.
 *
 * The command loads the model's weights (cmd_export.c), finds which of them each tensor of
 * the adapter or file changes (cmd_export_match.c), computes the new contents one weight at a
 * time (cmd_export_make.c), and streams the model out (cmd_export_write.c). Files are those
 * of the trainer's runtime, whose functions say why they failed.
 */
#ifndef EFFICC_CMD_EXPORT_H
#define EFFICC_CMD_EXPORT_H

#include "../runtime/host/host_int.h"
#include "../runtime/host/peft.h"
#include "cmd.h"

typedef struct change { /* of one weight */
    const ir_param *param;
    const rt_peft_pair *pair; /* W + scale B A; NULL: replaced by .. */
    const rt_st *st;
    const rt_st_tensor *tensor;
    bool transposed; /* the tensor is the weight's transpose */
    int shift;       /* the weight is the tensor + shift */
    bool odd_told;   /* that it has elements that are not finite */
} change;

typedef struct exporter {
    ef_ctx *ctx;
    const cmd_args *args;
    const char *model_path, *output;
    fe_model *model;
    ir_module *module;
    const char *adapter; /* its folder; NULL: none */
    rt_peft peft;
    rt_st weights, head; /* fd -1: none */
    char *pool;          /* what the head reads; NULL: not known */
    ef_map changes;      /* ir_param* -> change* */
    /* for the report */
    double largest; /* change of an element by an adapter */
    char *beside;   /* file of the weights; NULL: none */
    int ntensor;
} exporter;

/* Fills changes; IR_TRAIN are the weights that change, all other ones IR_FROZEN. Exit code. */
int export_match(exporter *);
/* The contents of a weight, as float in the layout of the model's file; free them. NULL: said
 * why. */
float *export_values(exporter *, const ir_param *);
/* The adapter's base against the model's weights. Exit code. */
int export_check_base(exporter *);
/* Write output. Exit code. */
int export_onnx(exporter *);
int export_torch(exporter *);

/* The weight that is W of an adapted module; NULL: none. */
const ir_param *export_weight_of(exporter *, const char *module);

#endif
