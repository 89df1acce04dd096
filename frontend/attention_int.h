/* attention_int.h -- what the operators that hold an attention share. */
#ifndef EFFICC_ATTENTION_INT_H
#define EFFICC_ATTENTION_INT_H

#include "ops_int.h"

typedef struct fe_attend {
    fe_val *q, *k, *v;     /* [B,heads,S,d], [B,kv heads,T,d], [B,kv heads,T,e] */
    double scale, softcap; /* softcap 0: none */
    fe_val *add, *keep;    /* added to the scores; bool: may be attended to; or NULL */
    double hidden;         /* what is added where keep is false */
    bool finite;           /* add is known to have no -inf */
    /* Where to put the scores: scaled, capped, masked, and after the softmax; NULL: nowhere.
     */
    fe_val **products, **capped, **scores, **weights;
} fe_attend;

/* [B,heads,S,e]; NULL: said why. */
fe_val *fe_attention(fe_call *, const fe_attend *);
/* [B,S,heads*d] as [B,heads,S,d], and back. What has four dimensions stays. */
fe_val *fe_heads(fe_call *, fe_val *, int64_t heads);
fe_val *fe_merge_heads(fe_call *, fe_val *);
/* bool [s,t]: key j is at most reach[0] behind query i + past, and at most reach[1] ahead of
 * it; below 0: any number. */
fe_val *fe_window(fe_call *, int64_t s, int64_t t, int64_t past, const int64_t *reach);
fe_val *fe_both(fe_call *, fe_val *a, fe_val *b); /* a and b, either may be NULL */
/* Operand i, keys or values of the past [B,heads,P,d], before v; without it v. */
fe_val *fe_with_past(fe_call *, int i, fe_val *v);

/* x [B,heads,S,d] turned by angles whose cosines and sines are [.,S,r/2] (1 or B rows); r
 * columns of each head are turned, the others stay. pairs: neighbours are turned together,
 * else column i and i + r/2. */
fe_val *fe_rotate(fe_call *, fe_val *x, fe_val *cos, fe_val *sin, bool pairs);

#endif
