/* unpad_int.h -- what the two halves of pass unpad share: the look at the graph, in
 * unpad_look.c, and the rewriting, in unpad.c.
 */
#ifndef EFFICC_UNPAD_INT_H
#define EFFICC_UNPAD_INT_H

#include "pass.h"

/* How an operand gets into the region whose values have a row a token. */
typedef enum unpad_entry {
    ENTRY_ALIKE, /* broadcast over rows: as it is, but for its number of dimensions */
    ENTRY_POSITION, /* the same for all samples: rows of it by %position */
    ENTRY_ROW,      /* padded: rows of it by %row */
    ENTRY_NONE      /* neither: the op needs whole samples */
} unpad_entry;

typedef struct unpad {
    pass_ctx *pc;
    ir_module *m;
    ir_func *f;
    int64_t batch, seq;
    ir_value *mask;   /* the argument; NULL: the graph has none */
    ir_value *labels; /* of tokens; NULL: targets are of samples */
    ef_map
        lead; /* ir_value* -> leading dimensions that a row a token replaces: 2, [B,S,..],
                        or 1, [B*S,..]; NULL: not in the region */
    ef_map given; /* set of ir_value*: they depend on arguments */
    int64_t pin;  /* position of the only rows that a pooled task reads; -1: none */
    int attentions, losses;
    bool masked;        /* some attention has the mask */
    const ir_op *stops; /* what keeps it from being applied, */
    const char *why;    /* and why */
} unpad;

/* Is the op part of the region, and may it be? Fills everything but pc, m, f. */
bool unpad_look(unpad *);
/* Leading dimensions of v; 0: it is not in the region. */
static inline int
unpad_lead(const unpad *u, const ir_value *v)
{
    return (int)(intptr_t)ef_map_get(&u->lead, v);
}
/* The first operand of op that is in the region; NULL: none. */
const ir_value *unpad_operand(const unpad *, const ir_op *);
/* How operand v of an op, aligned to `rank` dimensions of which `lead` lead, gets in. */
unpad_entry unpad_entry_of(const unpad *, const ir_value *v, int rank, int lead);
/* Is it slice of one position of every sample? */
bool unpad_is_pin(const unpad *, const ir_op *);
/* Is it a sum over positions that is not of one sample alone? */
bool unpad_is_sum(const unpad *, const ir_op *);

#endif
