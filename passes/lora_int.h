/* lora_int.h -- what lora.c and targets.c share. */
#ifndef EFFICC_LORA_INT_H
#define EFFICC_LORA_INT_H

#include "pass.h"

/* A weight that linear ops multiply by: a PyTorch module. */
typedef struct lora_module {
    ir_param *w;
    int index;         /* in lora.modules */
    const char *name;  /* of the module; NULL: not in the file */
    const char *label; /* name, or the parameter's name in brackets */
    int64_t in, out;   /* features */
    bool saved_whole;  /* trained whole beside the adapters */
    /* the linear ops; once adapted, the last lora_add on each */
    EF_VEC(ir_op *) ops;
} lora_module;

typedef struct lora_target { /* one adapter */
    lora_module *module;
    const char *role;      /* "q" or "v", found by structure; NULL: named */
    int64_t start, len;    /* output features [start, start+len) */
    int64_t block, stride; /* or len in blocks, stride apart; 0: together */
    const char *word;      /* of --lora-targets */
} lora_target;

typedef struct lora { /* one run of the pass */
    pass_ctx *pc;
    ir_module *m;
    ef_ctx *ctx;
    const char *wanted; /* comma list: q, v, all-linear, names, patterns */
    EF_VEC(lora_module *) modules;
    EF_VEC(lora_target) targets;
    ir_value *keys; /* under --lora-dropout */
    int64_t site;   /* the next one */
    ef_map dropped; /* linear op -> what adapters on it read */
} lora;

/* Fills modules. Those of role IR_MODULE are saved whole. */
void lora_find_modules(lora *);
/* Fills targets from `wanted`. false: said why. */
bool lora_find_targets(lora *);

/* "q" or "v" if the adapter is on a range of the module's columns; NULL: on all of them. */
static inline const char *
lora_part(const lora_target *t)
{
    return t->len < t->module->out ? t->role : NULL;
}

#endif
