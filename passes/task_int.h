/* task_int.h -- what the files of pass task share with each other and with pass lora. */
#ifndef EFFICC_TASK_INT_H
#define EFFICC_TASK_INT_H

#include "pass.h"

typedef enum task_kind {
    TASK_CAUSAL_LM,
    TASK_SEQ_CLS,
    TASK_TOKEN_CLS,
    TASK_MLM,
    TASK_REGRESSION
} task_kind;

typedef struct task { /* the forward graph as pass task finds it */
    pass_ctx *pc;
    ir_module *m;
    ef_ctx *ctx;
    ir_func *f;
    ir_op *ret;
    int main;       /* which operand of ret the loss reads */
    ir_value *out;  /* that value: logits, or hidden states if it has no head */
    bool head;      /* it is a product with a weight: logits */
    int64_t vocab;  /* 0: unknown */
    bool causal;    /* some attention is causal */
    bool attention; /* some attention was recognised */
    bool softmax;   /* some softmax stayed a plain op: it may be an attention */
    task_kind kind;
} task;

/* ---- task_head.c ---- */
/* Replaces t->out by the logits of a new linear layer on the hidden states. false: said
 * why. */
bool task_add_head(task *);
/* Name of the graph's output that operand i of ret is. */
const char *task_output_name(const task *, int i);

/* ---- trainable.c ---- */
/* Marks (value->aux) what has a differentiable way to the loss. */
void task_mark_reached(const ir_func *);
/* Is p a weight that could be trained: not a constant, of floats, no scalar? */
bool task_is_weight(const ir_param *);
/* Classes of all weights: `base` for those that the loss reaches, frozen for the others, and
 * then --freeze and --trainable. tell: reports it. false: said why. */
bool task_set_classes(ir_module *, ir_pclass base, bool tell);

#endif
